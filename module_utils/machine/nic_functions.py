# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge PCI functions that belong to a rail's NIC and are no rails: further planes, and Data Direct.

A ConnectX-8 may join planes itself (hardware multiplane): its first function has the RDMA device, the others have an
interface only. Beside a Grace CPU it has a second link, below which are the GPU and a DMA function: Data Direct. RDMA
to the GPU's memory takes that link if both functions have the same UUID in their VPD. NCCL calls such a path
``mlx5_0_dma``, which is no device: NCCL_IB_HCA never has this name.
Sources: linux-rdma/rdma-core rdma_topo (UUID), Mellanox/nic-configuration-operator pkg/udev (planes), NCCL net_ib.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from . import pci, vpd
from .pci import NEAR, PciDevice, is_data_direct, path_class
from .platform_checks import RECHECK
from .topology import Nic, Topology

# ConnectX-8 and -9: older ones have no planes.
_WITH_PLANES = (0x1023, 0x1025)

RAIL_PLANE = Check(
    "platform.rail_plane",
    why="a plane that is down takes its part of the rail's rate",
    fix="set the interface up (ip link set dev INTERFACE up), check its cable and switch port (mlxlink -d ADDRESS -m"
    " shows both); " + RECHECK,
)
"""Is the interface of each plane up that a rail's NIC joins in its hardware; only if one such plane of the node is"""

DATA_DIRECT = Check(
    "platform.rail_data_direct",
    why="without it GPUDirect goes over the CPU, and not over the NIC's own link to the GPU",
    fix="compare lspci -d 15b3:2100 and the firmware of the NIC (mstflint -d ADDRESS query) with a node that has it,"
    " power-cycle the node; " + RECHECK,
)
"""Has the rail's NIC its Data Direct function, below a PCIe switch with a GPU; only where the profile has `data_direct`
or the NIC has one"""


@dataclass(frozen=True)
class DirectState:
    """functions: for Data Direct.   uuids: of NICs and functions; "" without one.   unread: address -> why not."""

    functions: Tuple[PciDevice, ...] = ()
    uuids: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Problem] = field(default_factory=dict)


def read(host: Host, nics: Sequence[Nic]) -> DirectState:
    """Read the Data Direct functions of the host, and the UUIDs if there is one."""
    devices = attempt(lambda: pci.read(host)[0], pci.DEVICES, []) or {}
    functions = tuple(one for one in devices.values() if is_data_direct(one))
    uuids: Dict[str, str] = {}
    unread: Dict[str, Problem] = {}
    ends = [*(nic.pci for nic in nics), *(one.address for one in functions)]
    for address in ends if functions else ():
        problems: List[Problem] = []
        about = attempt(partial(vpd.read, host, address), address, problems)
        uuids.update({address: about.get("uuid", "")} if about is not None else {})
        if problems:
            unread[address] = problems[0]
    return DirectState(functions, uuids, unread)


def judge(topology: Topology, nics: Sequence[Nic], direct: DirectState, wanted: bool) -> List[Finding]:
    """Judge the functions of the rails' NICs.   wanted: the platform has Data Direct."""
    found = [_direct(topology, nic, direct) for nic in nics]
    return _planes(topology, nics) + [one for one in found if one is not None and (wanted or one.ok)]


def _direct(topology: Topology, nic: Nic, direct: DirectState) -> Finding:
    uuid = direct.uuids.get(nic.pci)
    twin = next((one for one in direct.functions if uuid and direct.uuids.get(one.address) == uuid), None)
    state, have = "drift", "no such function on the bus"
    if twin is not None:
        paths = [(gpu, path_class(gpu.device, twin)) for gpu in topology.gpus]
        near = ["%s of GPU %d (%s)" % (path, gpu.index, gpu.pci) for gpu, path in paths if path in NEAR]
        state, have = ("ok" if near else "drift"), "%s, %s" % (twin.address, ", ".join(near) or "which is near no GPU")
    elif direct.unread:
        state, have = "unknown", str(next(iter(direct.unread.values())))
    elif direct.functions:
        have = "none of %d such functions has its UUID %s" % (len(direct.functions), uuid or "(its VPD has none)")
    want, source = "a Data Direct function below a switch with a GPU", "/sys/bus/pci/devices/%s/vpd" % nic.pci
    return DATA_DIRECT.judge(nic.label, state, want, have, source)


def _planes(topology: Topology, nics: Sequence[Nic]) -> List[Finding]:
    cards = {nic.pci[:-1]: nic for nic in nics if nic.device.device in _WITH_PLANES}
    found = []
    for nic in topology.nics:
        rail: Optional[Nic] = cards.get(nic.pci[:-1])
        for one in nic.netdevs if rail is not None and nic.rdma is None else ():
            state = "unknown" if one.operstate is None else "ok" if one.operstate == "up" else "drift"
            want, source = "up, as a plane of %s" % (rail.label if rail else ""), one.source + "/operstate"
            found.append(RAIL_PLANE.judge(nic.label, state, want, one.operstate or "unreadable", source))
    # Where none is up, the site does not use them.
    return found if any(one.ok for one in found) else []
