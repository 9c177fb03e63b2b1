# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults by name, and what each has to be reported as.

A fault changes the model of the machine or one file of the node's system root. It states the one finding it must
cause (its root) and the checks that may follow from that. Any set of compatible faults can be applied together;
faults that hide each other exclude each other.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import (
    cluster_faults,
    environment_faults,
    firmware_faults,
    gpudirect_faults,
    health_faults,
    limits_faults,
    lldp_faults,
    ofed_faults,
    optics_faults,
    port_faults,
    roce_faults,
)
from .fault import ALL, Fault, FileFault, appended, provisioned, rail_nic, removed, said
from .machine import ACS_REDIRECT, NVIDIA, GpuProcess, LabError, Link, Machine

CONF = "/etc/nccl.conf"
GRUB_CFG = "/boot/grub/grub.cfg"
PCIE_UNIT = "/etc/systemd/system/busbar-pcie-path.service"
PCIE_DROPIN = "/etc/systemd/system/multi-user.target.d/busbar-pcie-path.conf"


@dataclass(frozen=True)
class Expectation:
    """A finding that has to be there.

    subject: identity of the subject, None for any: a consequence may show on several.
    state: None for any but ok.   because: check of the root it follows from, None for a root.
    """

    check: str
    subject: str | None
    state: str | None
    because: str | None = None


# -- what the faults do ----------------------------------------------------------------------------------------------


def _gpu(number: int) -> Callable[[Machine], str]:
    return lambda machine: machine.gpu(number).address


def _port_above(rail: int) -> Callable[[Machine], str]:
    return lambda machine: machine.function(machine.rail(rail).address).parent


def _uplink(rail: int) -> Callable[[Machine], str]:
    """The upstream port of the switch that rail's NIC hangs below."""
    return lambda machine: machine.function(_port_above(rail)(machine)).parent


def _unplug_nic(machine: Machine) -> None:
    machine.unplug(machine.rail(3).address)


def _port_down(machine: Machine) -> None:
    machine.take_down(machine.rail(2), "2: Polling")


def _slow_port(machine: Machine) -> None:
    rdma = machine.rail(5)
    rdma.rate = "200 Gb/sec (4X HDR)"
    for netdev in machine.netdevs:
        if netdev.address == rdma.address:
            netdev.speed = 200000


def _width(machine: Machine, address: str, width: int) -> None:
    link = machine.function(address).link
    if link:
        machine.set_link(address, Link(link.speed, width))


def _speed(machine: Machine, address: str, speed: str) -> None:
    link = machine.function(address).link
    if link:
        machine.set_link(address, Link(f"{speed} GT/s PCIe", link.width))


def _small_ib_mtu(machine: Machine) -> None:
    machine.rail(5).active_mtu = 2048


def _limited_member(machine: Machine) -> None:
    machine.rail(4).pkeys = {"0": "0x7fff", "1": "0x0000"}


def _old_firmware(machine: Machine) -> None:
    machine.rail(2).fw_ver = "28.41.1000"


def _unknown_width(machine: Machine) -> None:
    machine.damaged[f"{_uplink(6)(machine)}/current_link_width"] = ""


def _wrong_node(machine: Machine) -> None:
    function = machine.function(machine.rail(4).address)
    function.numa_node = next(node.number for node in machine.nodes if node.number != function.numa_node)


def _unplug_gpu(machine: Machine) -> None:
    machine.unplug(machine.gpu(6).address)


def _lose_gpu(machine: Machine) -> None:
    gpu = machine.gpu(2)
    gpu.in_driver = False
    machine.function(gpu.address).driver = None


def _swap_gpu(machine: Machine) -> None:
    gpu = machine.gpu(0)
    function = machine.function(gpu.address)
    function.vendor, function.device, function.subsystem = NVIDIA, "0x2331", "0x1626"
    gpu.name, gpu.memory_mib = "NVIDIA H100 PCIe", 81559


def _occupy_gpu(machine: Machine) -> None:
    machine.gpu_processes.append(GpuProcess(41873, "python", 0, 70 * 1024))


def _throttle_gpu(machine: Machine) -> None:
    machine.gpu(6).slow = True


def _corrupt_gpu(machine: Machine) -> None:
    machine.gpu(3).wrong = True


def _hang_collectives(machine: Machine) -> None:
    machine.collectives_hang = True


def _drop_nvlink(machine: Machine) -> None:
    machine.gpu(5).nvlinks[11] = False


def _fabric(machine: Machine) -> None:
    machine.fabric = ("In Progress", "N/A")


def _drop_ipv4_gids(machine: Machine) -> None:
    rdma = machine.rail(0)
    rdma.gids = [gid for gid in rdma.gids if ":ffff:" not in gid.value]


def _move_nic(machine: Machine) -> None:
    if machine.spare_slot is None:
        raise LabError(f"{machine.hostname} has no free slot to move a NIC to")
    machine.move_nic(machine.rail(3), machine.spare_slot)


def _tool(behaviour: str) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        machine.gpu_tool = behaviour

    return change


def _truncate_numa(machine: Machine) -> None:
    machine.damaged[f"{machine.rail(2).address}/numa_node"] = ""


def _garbled_rate(machine: Machine) -> None:
    machine.rail(7).rate = "[Unknown Error]"


def _hca_by_prefix(machine: Machine, text: str | None) -> str:
    """The same NICs, named without the = that makes NCCL compare whole names."""
    names = ",".join(rdma.name for rdma in machine.rdma if rdma.rail is not None) or "mlx5_0"
    lines = [line for line in provisioned(CONF, text).splitlines() if not line.startswith("NCCL_IB_HCA=")]
    return "\n".join([*lines, f"NCCL_IB_HCA={names}"]) + "\n"


def _redirect(machine: Machine) -> None:
    machine.function(_port_above(5)(machine)).acs = ACS_REDIRECT


def _small_reads(machine: Machine) -> None:
    machine.function(machine.rail(4).address).read_request = 512


def _hide_config(machine: Machine) -> None:
    machine.function(_port_above(1)(machine)).config_bytes = 64


def _keep(machine: Machine, text: str | None) -> str:
    return provisioned(CONF, text)


def _translate(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.replace(" iommu=pt", "")


def _forget_passthrough(machine: Machine, text: str | None) -> str:
    return (text or "").replace(" iommu=pt", "")


# -- the catalogue ---------------------------------------------------------------------------------------------------

# While a GPU or NIC is missing, or a register cannot be read, nobody says what a boot should set.
_PCIE_UNDECIDED = ("rail-missing", "nic-moved", "gpu-missing", "config-unreadable")
_GPU_FAULTS = ("gpu-lost", "gpu-slot-degraded", "wrong-gpu", "nvlink-down")
_TOOL_FAULTS = ("smi-missing", "smi-hang", "smi-garbage")
_CONF_FAULTS = ("conf-edited", "conf-removed", "conf-mode")
# Without all its rails nobody can say what nccl.conf should hold, nor what contradicts it.
_NO_RAIL_HIDES = (*_CONF_FAULTS, "user-conf", "environment-conf")


def _broken_tool(name: str, description: str, behaviour: str) -> Fault:
    return Fault(
        name,
        description,
        "platform.gpu_tool",
        said("nvidia-smi"),
        _tool(behaviour),
        state="unknown",
        consequences=(
            *("platform.nvlinks", "platform.nvlink_fabric", "platform.cross_check"),
            "node_health.gpu_answers",
        ),
        platforms=ALL,
        excludes=(*_TOOL_FAULTS, "nvlink-down", "gpu-lost", "fabric-not-ready"),
    )


_MEASURED_FAULTS = ("gpu-busy", "gpu-slow", "wrong-sums", "collective-hang")
# With these no benchmark runs, or what it says has two causes.
_NO_BENCHMARK = (*_MEASURED_FAULTS, *_TOOL_FAULTS, "gpu-missing", "gpu-lost", "wrong-gpu", "nvlink-down")


def _measured(
    name: str,
    description: str,
    check: str,
    change: Callable[[Machine], None] | FileFault,
    state: str = "drift",
    consequences: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
) -> Fault:
    hidden = (*_NO_BENCHMARK, "fabric-not-ready", *excludes)
    return Fault(name, description, check, None, change, state, consequences, excludes=hidden, measured=True)


_CATALOGUE = (
    Fault(
        "rail-missing",
        "the NIC of rail 3 has fallen off the bus",
        "platform.rail_device",
        said("rail 3"),
        _unplug_nic,
        consequences=("nccl_conf.rails", "pcie_path.unit", "roce_qos.unit"),
        excludes=("nic-moved", "gpu-missing", *_NO_RAIL_HIDES),
    ),
    Fault(
        "nic-moved",
        "the NIC of rail 3 sits in a slot away from its GPU",
        "platform.rail_device",
        said("rail 3"),
        _move_nic,
        consequences=("nccl_conf.rails", "pcie_path.unit", "roce_qos.unit"),
        excludes=("gpu-missing", *_NO_RAIL_HIDES),
    ),
    Fault(
        "port-down",
        "the cable of rail 2 is out: the port polls",
        "platform.rail_state",
        rail_nic(2),
        _port_down,
        consequences=("platform.rail_rate", "platform.rail_gid"),
    ),
    Fault(
        "firmware-old",
        "the NIC of rail 2 has an older firmware than is declared",
        "platform.rail_firmware",
        rail_nic(2),
        _old_firmware,
        platforms=("hgx-h200",),
        site=lambda machine: {"busbar_firmware": {machine.rail(2).board_id: machine.rail(2).fw_ver}},
    ),
    Fault("rate-low", "rail 5 runs at 200 Gb/s instead of 400", "platform.rail_rate", rail_nic(5), _slow_port),
    Fault(
        "rate-garbage",
        "the driver cannot tell the rate of rail 7",
        "platform.rail_rate",
        rail_nic(7),
        _garbled_rate,
        state="unknown",
    ),
    Fault(
        "slot-degraded",
        "the NIC of rail 1 has trained to x8 of x16",
        "platform.rail_pcie",
        rail_nic(1),
        lambda machine: _width(machine, machine.rail(1).address, 8),
    ),
    Fault(
        "slot-speed",
        "the NIC of rail 6 runs at 16 GT/s of 32",
        "platform.rail_pcie",
        rail_nic(6),
        lambda machine: _speed(machine, machine.rail(6).address, "16.0"),
    ),
    Fault(
        "uplink-narrow",
        "the switch of rail 1 has trained to x4 of x16 towards the CPU",
        "platform.pcie_link",
        _uplink(1),
        lambda machine: _width(machine, _uplink(1)(machine), 4),
    ),
    Fault(
        "uplink-gen3",
        "the switch of rail 4 runs at 8 GT/s of 32 towards the CPU",
        "platform.pcie_link",
        _uplink(4),
        lambda machine: _speed(machine, _uplink(4)(machine), "8.0"),
    ),
    Fault(
        "uplink-unreadable",
        "the kernel cannot tell the width of the link above rail 6's switch",
        "platform.pcie_link",
        _uplink(6),
        _unknown_width,
        state="unknown",
    ),
    Fault(
        "ib-mtu",
        "the subnet manager has given rail 5's port an MTU of 2048",
        "platform.rail_mtu",
        rail_nic(5),
        _small_ib_mtu,
        platforms=("hgx-h100", "hgx-b200"),
    ),
    Fault(
        "partition-limited",
        "the subnet manager has made rail 4's port a limited member of the default partition",
        "platform.rail_partition",
        rail_nic(4),
        _limited_member,
        platforms=("hgx-h100", "hgx-b200"),
        site=lambda machine: {"busbar_fabric_partitions": ["0xffff"]},
    ),
    Fault("numa-wrong", "the NIC of rail 4 reports the other socket", "platform.rail_numa", rail_nic(4), _wrong_node),
    Fault(
        "numa-truncated",
        "numa_node of rail 2's NIC is empty",
        "platform.rail_numa",
        rail_nic(2),
        _truncate_numa,
        state="unknown",
    ),
    Fault(
        "gid-missing",
        "rail 0 has lost its IPv4 GIDs",
        "platform.rail_gid",
        rail_nic(0),
        _drop_ipv4_gids,
        platforms=("hgx-h200",),
    ),
    Fault(
        "gpu-missing",
        "GPU 6 has fallen off the bus",
        "platform.gpu_count",
        said("gpus"),
        _unplug_gpu,
        consequences=("platform.rail_path", "platform.rail_numa", "pcie_path.unit"),
        platforms=ALL,
        # Which GPU a rail belongs to is not known then, so neither is what NUMA node it should have.
        excludes=(*_GPU_FAULTS, "numa-wrong", "numa-truncated"),
    ),
    Fault(
        "gpu-lost",
        "GPU 2 is on the bus, but the driver does not have it",
        "platform.gpu_driver",
        _gpu(2),
        _lose_gpu,
        consequences=("platform.gpu_model", "platform.nvlinks", "platform.cross_check", "node_health.gpu_count"),
        platforms=ALL,
    ),
    Fault(
        "gpu-slot-degraded",
        "GPU 7 has trained to x8 of x16",
        "platform.gpu_pcie",
        _gpu(7),
        lambda machine: _width(machine, machine.gpu(7).address, 8),
        platforms=ALL,
    ),
    Fault("wrong-gpu", "GPU 0 is another model", "platform.gpu_model", _gpu(0), _swap_gpu, platforms=ALL),
    Fault("nvlink-down", "GPU 5 has 17 of 18 NVLinks", "platform.nvlinks", _gpu(5), _drop_nvlink, platforms=ALL),
    Fault(
        "fabric-not-ready",
        "the GPUs have not joined the NVLink fabric",
        "platform.nvlink_fabric",
        said("nvlink fabric"),
        _fabric,
        consequences=("node_health.fabric_state",),
        platforms=ALL,
    ),
    _broken_tool("smi-missing", "nvidia-smi is not installed", "missing"),
    _broken_tool("smi-hang", "nvidia-smi never answers", "hang"),
    _broken_tool("smi-garbage", "nvidia-smi prints binary", "garbage"),
    Fault(
        "conf-edited",
        f"an operator named the HCAs in {CONF} by prefix",
        "nccl_conf.file",
        said(CONF),
        FileFault(CONF, _hca_by_prefix),
        platforms=ALL,
        excludes=_CONF_FAULTS,
    ),
    Fault(
        "conf-removed",
        f"{CONF} is gone",
        "nccl_conf.file",
        said(CONF),
        removed(CONF),
        platforms=ALL,
        excludes=_CONF_FAULTS,
    ),
    Fault(
        "conf-mode",
        f"{CONF} is readable by root only, so NCCL skips it",
        "nccl_conf.file_mode",
        said(CONF),
        FileFault(CONF, _keep, mode=0o600),
        platforms=ALL,
        excludes=_CONF_FAULTS,
    ),
    Fault(
        "user-conf",
        "/root/.nccl.conf sets NCCL_IB_HCA",
        "nccl_conf.conflict",
        said("/root/.nccl.conf NCCL_IB_HCA"),
        appended("/root/.nccl.conf", "NCCL_IB_HCA=mlx5_0\n"),
        platforms=ALL,
    ),
    Fault(
        "user-p2p-off",
        "/root/.nccl.conf sets NCCL_P2P_DISABLE=1",
        "nccl_conf.environment",
        said("/root/.nccl.conf NCCL_P2P_DISABLE"),
        appended("/root/.nccl.conf", "NCCL_P2P_DISABLE=1\n"),
        platforms=ALL,
        excludes=("user-conf",),
    ),
    Fault(
        "environment-conf",
        "/etc/environment sets NCCL_SOCKET_IFNAME",
        "nccl_conf.conflict",
        said("/etc/environment NCCL_SOCKET_IFNAME"),
        appended("/etc/environment", "NCCL_SOCKET_IFNAME=docker0\n"),
        platforms=ALL,
    ),
    Fault(
        "iommu-translated",
        "the node was booted without iommu=pt",
        "iommu.args",
        said("iommu=pt"),
        _translate,
        state="withheld",
        consequences=("iommu.domains",),
        excludes=("grub-forgetful",),
    ),
    Fault(
        "grub-forgetful",
        f"{GRUB_CFG} has lost iommu=pt: the next boot will translate",
        "iommu.args",
        said("iommu=pt"),
        FileFault(GRUB_CFG, _forget_passthrough),
    ),
    Fault(
        "acs-on",
        "the switch port above rail 5's NIC sends its traffic up to the CPU (ACS)",
        "pcie_path.acs",
        _port_above(5),
        _redirect,
    ),
    Fault(
        "acs-back-at-boot",
        "nothing clears ACS at the next boot",
        "pcie_path.unit",
        said(PCIE_UNIT),
        removed(PCIE_DROPIN),
        excludes=_PCIE_UNDECIDED,
    ),
    Fault(
        "mrrs-512",
        "the NIC of rail 4 reads in requests of 512 bytes",
        "pcie_path.max_read_request",
        rail_nic(4),
        _small_reads,
    ),
    Fault(
        "config-unreadable",
        "the config space of the port above rail 1's NIC shows 64 bytes",
        "pcie_path.acs",
        _port_above(1),
        _hide_config,
        state="unknown",
        consequences=("pcie_path.unit",),
        excludes=_PCIE_UNDECIDED,
    ),
    *limits_faults.CATALOGUE,
    _measured("gpu-busy", "a process holds 70 GiB on GPU 0", "nccl_perf.idle", _occupy_gpu, state="unknown"),
    _measured("gpu-slow", "the clocks of GPU 6 are throttled", "nccl_perf.busbw", _throttle_gpu),
    _measured(
        "wrong-sums",
        "GPU 3 computes wrong",
        "nccl_perf.correct",
        _corrupt_gpu,
        consequences=("nccl_perf.ran",),
    ),
    _measured(
        "collective-hang",
        "NCCL's initialisation never ends",
        "nccl_perf.ran",
        _hang_collectives,
        consequences=("nccl_perf.sizes", "nccl_perf.correct", "nccl_perf.nonzero", "nccl_perf.busbw"),
    ),
    *environment_faults.CATALOGUE,
    *ofed_faults.CATALOGUE,
    *gpudirect_faults.CATALOGUE,
    *lldp_faults.CATALOGUE,
    *health_faults.CATALOGUE,
    *port_faults.CATALOGUE,
    *optics_faults.CATALOGUE,
    *firmware_faults.CATALOGUE,
    *(fault for fault in roce_faults.CATALOGUE if fault.name not in roce_faults.BETWEEN_NODES),
)
FAULTS = {fault.name: fault for fault in _CATALOGUE}


def named(name: str) -> Fault:
    """Raises LabError, with the nearest name."""
    if name not in FAULTS:
        near = difflib.get_close_matches(name, [*FAULTS, *(fault.name for fault in cluster_faults.LOCALISED)], 1)
        hint = f"did you mean {near[0]}?" if near else "python3 -m lab faults lists them"
        raise LabError(f"there is no fault {name!r}; {hint}")
    return FAULTS[name]


def compatible(names: Iterable[str]) -> bool:
    """Whether each of these faults shows when all are applied. A fault does not go with itself."""
    faults = [named(name) for name in names]
    return not any(_hides(one, other) for n, one in enumerate(faults) for other in faults[:n])


def _hides(one: Fault, other: Fault) -> bool:
    return one.name == other.name or one.name in other.excludes or other.name in one.excludes


def site(machine: Machine) -> dict[str, Any]:
    """What the inventory sets for a healthy machine: what it says itself, and what faults need to be some."""
    found = dict(machine.site)
    for fault in _CATALOGUE:
        if fault.site and machine.platform in fault.platforms:
            found.update(fault.site(machine))
    return found


def draw(rng: random.Random, count: int, platform: str, measured: bool = False) -> list[str]:
    """``count`` compatible faults at random. Raises LabError where the platform has not so many.

    measured: those that only a benchmark shows, too.
    """
    pool = [f.name for f in _CATALOGUE if platform in f.platforms and (measured or not f.measured)]
    rng.shuffle(pool)
    drawn: list[str] = []
    for name in pool:
        if len(drawn) < count and compatible([*drawn, name]):
            drawn.append(name)
    if len(drawn) < count:
        raise LabError(
            f"{platform or 'this platform'} has no {count} compatible faults, only {', '.join(drawn) or 'none'}"
        )
    return drawn


def expected(machine: Machine, names: Iterable[str]) -> list[Expectation]:
    """What has to be found on ``machine``, healthy as given, with these faults: roots and their consequences.

    A consequence is on its root's subject where that is a device, and on whatever it follows for otherwise.
    """
    expectations = []
    for fault in map(named, names):
        subject = fault.subject(machine) if fault.subject else None
        expectations.append(Expectation(fault.check, subject, fault.state))
        device = subject if subject and re.match(r"[0-9a-f]{4}:", subject) else None
        for check in fault.consequences:
            if _applies(machine, check):
                expectations.append(Expectation(check, device, None, because=fault.check))
    return expectations


def _applies(machine: Machine, check: str) -> bool:
    """Nothing asks for RoCE on InfiniBand, for rails where there are none, nor for registers in a virtual machine."""
    rails = any(rdma.rail is not None for rdma in machine.rdma)
    if check in ("platform.rail_gid", "roce_qos.unit"):
        return rails and machine.site["busbar_fabric"] == "ethernet"
    if check.startswith("pcie_path."):
        return not machine.hypervisor
    return rails or not check.startswith("platform.rail_")
