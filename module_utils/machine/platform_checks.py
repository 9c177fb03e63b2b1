# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare the checks of a host's GPUs, links and rails, for the ``platform`` role."""

from __future__ import annotations

from ..core.check import Check

RECHECK = "then run site.yml --tags platform for this host again"

GPU_COUNT = Check(
    "platform.gpu_count",
    why="a job that expects every GPU of the node fails or runs on fewer",
    fix="look for 'fallen off the bus' (Xid 79) in dmesg, power-cycle the node, reseat or replace the GPU; " + RECHECK,
    severity="critical",
)
"Are all GPUs on the bus"

GPU_DRIVER = Check(
    "platform.gpu_driver",
    why="a GPU that the NVIDIA driver does not have cannot be used",
    fix="check nvidia-smi and dmesg for Xid errors, load the driver (modprobe nvidia) or reset the GPU; " + RECHECK,
    severity="critical",
)
"Does the NVIDIA driver have each GPU"

GPU_MODEL = Check(
    "platform.gpu_model",
    why="the expected bandwidth, NVLinks and paths are those of the profile's GPU model",
    fix="set busbar_platform to what this node is, or replace the GPU",
    severity="critical",
)
"Is each GPU of the profile's model"

GPU_PCIE = Check(
    "platform.gpu_pcie",
    why="a GPU slot below its width or generation halves host copies and GPUDirect",
    fix="reseat the GPU or its riser, check the BIOS slot setting; " + RECHECK,
)
"Has each GPU's slot its full width now, and can it run at its full generation (an idle GPU trains its link down)"

GPU_TOOL = Check(
    "platform.gpu_tool",
    why="only nvidia-smi reports the state of NVLinks and of the NVSwitch fabric",
    fix="run nvidia-smi on the node; if it hangs, a GPU or the driver is stuck: drain and reboot the node",
)
"Does nvidia-smi work"

NVLINKS = Check(
    "platform.nvlinks",
    why="one inactive NVLink slows every collective of the node",
    fix="run nvidia-smi nvlink -s, check Xid 74 in dmesg, reset the GPU or reboot; " + RECHECK,
    severity="critical",
)
"Are all NVLinks of each GPU active"

NVLINK_FABRIC = Check(
    "platform.nvlink_fabric",
    why="until the fabric is registered CUDA does not start on NVSwitch machines",
    fix="start nvidia-fabricmanager of the driver's version (NVL72: on the switch trays), read its log; " + RECHECK,
    severity="critical",
)
"Is the NVSwitch fabric registered"

RAIL_DEVICE = Check(
    "platform.rail_device",
    why="NCCL silently uses the remaining NICs; every node of the job waits for this one",
    fix="check lspci and dmesg for the NIC, its slot and its driver (mlx5_core), reseat or replace it; " + RECHECK,
    severity="critical",
)
"Does the rail have a NIC, with a driver and an RDMA device"

RAIL_STATE = Check(
    "platform.rail_state",
    why="NCCL silently skips a port that is not ACTIVE",
    fix="check the cable and the switch port (mlxlink -d ADDRESS -m shows both); " + RECHECK,
    severity="critical",
)
"Is the rail's port ACTIVE"

RAIL_RATE = Check(
    "platform.rail_rate",
    why="the slowest rail sets the pace of every ring",
    fix="check the cable, its transceiver and the speed set on the switch port; " + RECHECK,
)
"Is the rail's port at full rate"

RAIL_LINK_LAYER = Check(
    "platform.rail_link_layer",
    why="a port of the other link layer is not on this fabric",
    fix="mlxconfig -d ADDRESS set LINK_TYPE_P1=1 (InfiniBand) or =2 (Ethernet), and reboot; or correct busbar_fabric",
    severity="critical",
)
"Is the rail's port of the right kind"

RAIL_PCIE = Check(
    "platform.rail_pcie",
    why="a slot below its width or generation caps the NIC; NCCL does not notice, it reads the maximum",
    fix="reseat the NIC or its riser, check the BIOS slot setting; " + RECHECK,
)
"Has the slot of the rail's NIC its full width and generation"

PCIE_LINK = Check(
    "platform.pcie_link",
    why="the slowest link on the way sets what a GPU and its NIC, or the host, can exchange; no device reports this",
    fix="reseat what hangs below the bridge, check the BIOS setting of its port and AER errors in dmesg; " + RECHECK,
)
"""Is each link above a GPU or a NIC, up to the CPU, as fast and as wide as both ends support, and enough for the
rails on it; not checked in a virtual machine"""

RAIL_PATH = Check(
    "platform.rail_path",
    why="GPUDirect RDMA is only used, and only fast, over the short path",
    fix="put the NIC into the slot that the profile names; if these nodes are built otherwise, draft their profile:"
    " busbar check --platform custom --write DIR",
)
"Is the rail's NIC as close to its GPUs as in the profile"

RAIL_NUMA = Check(
    "platform.rail_numa",
    why="interrupts and proxy threads land on the wrong socket",
    fix="check the BIOS (NPS, SNC, slot affinity); in a virtual machine set numa: any in a site profile",
    severity="minor",
)
"Are the rail's NIC and its GPUs on one NUMA node"

RAIL_FIRMWARE = Check(
    "platform.rail_firmware",
    why="two firmwares behave differently under congestion, and the slowest rail sets the pace of all",
    fix="on a drained node: mstflint -d ADDRESS -i FILE burn (or mlxfwmanager -u) with the image of the declared"
    " version, then mstfwreset -d ADDRESS -y reset or a reboot; " + RECHECK,
)
"Does the rail's NIC have the firmware that `busbar_firmware` declares for its PSID; not checked without a declaration"

RAIL_MTU = Check(
    "platform.rail_mtu",
    why="no packet of a queue pair is larger than the port's active_mtu, which the subnet manager sets",
    fix="have the subnet manager allow 4096 (opensm: mtu=5 in partitions.conf), compare max_mtu of both ends (smpquery"
    " portinfo), then take the port down and up; " + RECHECK,
)
"InfiniBand: is the port's `active_mtu` 4096, which the subnet manager sets (RoCE: `netdev_mtu.active_mtu`)"

CROSS_CHECK = Check(
    "platform.cross_check",
    why="if two sources disagree, one of them is misread, and no result that is based on them is proven",
    fix="compare the named pair by hand (nvidia-smi topo -m, lspci -t) and report the case",
)
"Do `nvidia-smi topo -m` and NCCL's topology file agree with sysfs"

EFA = Check(
    "platform.efa",
    why="an Elastic Fabric Adapter uses AWS's own protocol (SRD), so the checks here do not prove the node's network",
    fix="take the node out of gpu_nodes, and check it with AWS's own tools (fi_info -p efa, aws-ofi-nccl)",
    severity="critical",
)
"Has the node no Elastic Fabric Adapter of AWS, whose network cannot be checked; only if there is one"
