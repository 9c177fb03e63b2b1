# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read PCI devices and their tree, and classify the path between two of them.

Path classes are those of ``nvidia-smi topo -m``: X, PIX, PXB, PHB, NODE, SYS. NCCL has no NODE: it calls it
PHB, because its CPU node is the NUMA node (nccl_class).
Sources: kernel Documentation/ABI/testing/sysfs-bus-pci; NCCL src/graph (2.30).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Callable, Dict, List, Match, NamedTuple, Optional, Pattern, Set, Tuple, TypeVar, Union

from ..core.host import Host, ParseError, Problem, ReadError, attempt, noted, read_once

DEVICES = "/sys/bus/pci/devices"
LOCKDOWN = "/sys/kernel/security/lockdown"

# Nearest first.
PATH_CLASSES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
# Below one PCIe switch, or two.
NEAR = ("PIX", "PXB")


class PciDevice(NamedTuple):
    """One function. Speeds in GT/s, widths in lanes; None where the kernel does not say."""

    address: str  # 0000:1b:00.0
    class_code: int  # 0x030200
    vendor: int
    device: int
    numa_node: Optional[int]  # None for -1: unknown to the firmware
    # From the host bridge down to the parent: ("pci0000:15", "0000:15:01.0", ...); the device itself is not in it.
    ancestors: Tuple[str, ...]
    current_speed_gts: Optional[float] = None
    current_width: Optional[int] = None
    max_speed_gts: Optional[float] = None  # the lower of the device's own and its parent port's
    max_width: Optional[int] = None
    physfn: Optional[str] = None  # address of the physical function if this is an SR-IOV virtual function
    driver: Optional[str] = None
    source: str = ""  # /sys/devices/pci0000:15/...


ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?")
# Class code without its last byte, the programming interface.
_GPU_CLASSES = (0x0300, 0x0302)
_NIC_CLASSES = (0x0200, 0x0207)  # Ethernet, InfiniBand
_NVSWITCH_CLASS = 0x0680
MELLANOX = 0x15B3
# A guest sees a virtual function without its physfn: the device ID is what is left (mlx5_core's table; the last is
# BlueField's).
_MLX5_VF_IDS = (0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E, 0xA2D3)
_DATA_DIRECT_ID = 0x2100
_AMAZON, _EFA_IDS = 0x1D0F, range(0xEFA0, 0xEFB0)

T = TypeVar("T")


def fullmatch(pattern: Union[str, Pattern[str]], text: str, what: str) -> Match[str]:
    """Match a whole text.   what: it has to be, for the ParseError that this raises."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ParseError("%r is not %s" % (text[:80], what))
    return match


def matching(pattern: Union[str, Pattern[str]], what: str) -> Callable[[str], str]:
    """Return a parser of texts that match as a whole."""
    return lambda text: fullmatch(pattern, text, what).group()


def parse_address(text: str) -> str:
    """``0000:1b:00.0`` from ``00000000:1B:00.0``, ``0000:1b:00.0`` or ``1b:00.0``. Raises ParseError."""
    domain, bus, device, function = fullmatch(ADDRESS, text, "a PCI address like 0000:1b:00.0").groups()
    return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus.lower(), device.lower(), function)


def address_key(address: str) -> Tuple[int, ...]:
    """Sort key for addresses as parse_address gives them. As text, domain 10000 would come before 2000."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def natural_key(name: str) -> Tuple[Tuple[int, str], ...]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    parts = re.split(r"([0-9]+)", name)  # text and digits by turns
    return tuple((int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts))


def parse_speed(text: str) -> float:
    """GT/s from ``32.0 GT/s PCIe``. Raises ParseError, also for ``Unknown``."""
    return float(fullmatch(_SPEED, text, "a link speed like 32.0 GT/s PCIe").group(1))


@read_once
def read(host: Host) -> Tuple[Dict[str, PciDevice], Tuple[Problem, ...]]:
    """Every PCI function by address, in PCI order.

    Link, driver and physfn are read only where they matter: GPUs, NICs, NVSwitches and the bridges above them.
    A function whose class, vendor or device ID cannot be read is left out, with a Problem.
    """
    problems: List[Problem] = []
    found: Dict[str, PciDevice] = {}
    names = attempt(lambda: host.listdir(DEVICES), DEVICES, problems)
    if names == []:
        problems.append(Problem(DEVICES, "lists no PCI device"))
    for name in names or ():
        with noted(DEVICES, problems):
            address = parse_address(name)
            found[address] = _identify(host, address, problems)
    ends = [one for one in found.values() if one.class_code >> 8 in (*_GPU_CLASSES, *_NIC_CLASSES, _NVSWITCH_CLASS)]
    wanted = {address for one in ends for address in (one.address, *one.ancestors)}
    linked = {address: _with_link(host, device, problems) for address, device in found.items() if address in wanted}
    unread = {problem.source for problem in problems}
    found.update({address: _capped(device, linked, unread) for address, device in linked.items()})
    return {address: found[address] for address in sorted(found, key=address_key)}, tuple(problems)


def is_gpu_class(class_code: int) -> bool:
    """A VGA or 3D controller."""
    return class_code >> 8 in _GPU_CLASSES


def is_nic_class(class_code: int) -> bool:
    """An Ethernet or InfiniBand controller."""
    return class_code >> 8 in _NIC_CLASSES


def is_mlx5_vf(device: PciDevice) -> bool:
    """A ConnectX virtual function by its device ID, which is how a guest sees it."""
    return device.vendor == MELLANOX and device.device in _MLX5_VF_IDS


def is_efa(device: PciDevice) -> bool:
    """An Elastic Fabric Adapter of AWS: RDMA by its own protocol (SRD), which has no queue pairs of RC."""
    return device.vendor == _AMAZON and device.device in _EFA_IDS


def is_data_direct(device: PciDevice) -> bool:
    """A function of a ConnectX for DMA to a GPU beside it: no network function, whatever its class is."""
    return (device.vendor, device.device) == (MELLANOX, _DATA_DIRECT_ID)


def path_class(a: PciDevice, b: PciDevice) -> str:
    """Return the path class of two functions, one of PATH_CLASSES. Unknown counts as far.

    PIX: at most one PCIe switch between them, which is two bridges: its downstream ports, or one port and its
    upstream port. PXB: more bridges. PHB: nothing in common but the host bridge.
    """
    if a.address == b.address:
        return "X"
    pairs = [one == other for one, other in zip(a.ancestors, b.ancestors)]
    common = [*pairs, False].index(False)
    if common == 0:
        return "NODE" if a.numa_node is not None and a.numa_node == b.numa_node else "SYS"
    if _HOST_BRIDGE.fullmatch(a.ancestors[common - 1]):
        return "PHB"
    return "PIX" if len(a.ancestors) + len(b.ancestors) - 2 * common <= 2 else "PXB"


def nccl_class(path: str) -> str:
    """NCCL's name for a path class: it has no NODE, and calls the same device LOC."""
    return {"NODE": "PHB", "X": "LOC"}.get(path, path)


def read_value(
    host: Host, path: str, parse: Callable[[str], T], problems: List[Problem], may_fail: bool = False
) -> Optional[T]:
    """One sysfs attribute, parsed; None where it is absent, and None plus a Problem where it makes no sense.

    may_fail: on healthy machines the kernel leaves this file empty or refuses to read it; that is no Problem then.
    """
    try:
        text = host.read(path)
        return None if text is None else parse(text)
    except ReadError as error:
        if not may_fail:
            problems.append(error.problem)
    except ParseError as error:
        problems.append(Problem(path, str(error)))
    return None


# Names and versions that are passed on as they are.
parse_text = matching(r"[ -~]{1,128}", "one line of printable text")


def parse_decimal(text: str) -> int:
    """A whole number, perhaps negative. Raises ParseError."""
    return int(fullmatch(r"-?[0-9]{1,20}", text, "a whole number").group())


def parse_hex(text: str) -> int:
    """A number like ``0x030200``. Raises ParseError."""
    return int(fullmatch(r"0x[0-9a-fA-F]{1,16}", text, "a number like 0x10de").group(), 16)


def _identify(host: Host, address: str, problems: List[Problem]) -> PciDevice:
    """The function without its link, driver and physfn. Raises ReadError where it cannot be told what it is."""
    path = "%s/%s" % (DEVICES, address)
    class_code, vendor, device = (_read_id(host, "%s/%s" % (path, name)) for name in ("class", "vendor", "device"))
    numa_node = read_value(host, path + "/numa_node", parse_decimal, problems)
    source = host.realpath(path) or path
    parts = source.split("/")[:-1]
    # In Hyper-V guests the host bridge is deeper.
    bridge = next((number for number, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), None)
    if bridge is None:
        problems.append(Problem(path, "is not below a PCI host bridge: %s" % source))
    numa_node = None if numa_node is None or numa_node < 0 else numa_node
    ancestors = () if bridge is None else tuple(parts[bridge:])
    return PciDevice(address, class_code, vendor, device, numa_node, ancestors, source=source)


def _read_id(host: Host, path: str) -> int:
    try:
        return parse_hex(host.require(path))
    except ParseError as error:
        raise ReadError(path, str(error)) from error


def _with_link(host: Host, device: PciDevice, problems: List[Problem]) -> PciDevice:
    path = "%s/%s" % (DEVICES, device.address)
    targets = {
        name: attempt(partial(host.realpath, path + name), path + name, problems) for name in ("/physfn", "/driver")
    }
    physfn, driver = (target and target.rsplit("/", 1)[-1] for target in targets.values())
    if physfn is not None:
        # The link is the physical function's: a virtual function reads as "Unknown" and width 0.
        return device._replace(physfn=physfn, driver=driver)
    # So may one in a guest, which has no physfn there: that is no problem of the node then.
    unread = [] if is_mlx5_vf(device) else problems
    return device._replace(
        driver=driver,
        current_speed_gts=read_value(host, path + "/current_link_speed", parse_speed, unread),
        current_width=read_value(host, path + "/current_link_width", _parse_width, unread),
        max_speed_gts=read_value(host, path + "/max_link_speed", parse_speed, unread),
        max_width=read_value(host, path + "/max_link_width", _parse_width, unread),
    )


def _parse_width(text: str) -> int:
    return int(fullmatch("1|2|4|8|12|16|32", text, "a link width (1 to 32 lanes)").group())


def _capped(device: PciDevice, linked: Dict[str, PciDevice], unread: Set[str]) -> PciDevice:
    """Return the device with link maxima limited to those of the port that it is plugged into.

    A port without these files (a conventional bridge) limits nothing; unreadable ones make the maxima unknown.
    """
    parent = device.ancestors[-1] if device.ancestors else ""
    if ADDRESS.fullmatch(parent) is None:
        return device  # directly below the host bridge
    port, path = linked.get(parent), "%s/%s" % (DEVICES, parent)
    speed, width = device.max_speed_gts, device.max_width
    if port is None or path + "/max_link_speed" in unread:
        speed = None
    elif speed is not None and port.max_speed_gts is not None:
        speed = min(speed, port.max_speed_gts)
    if port is None or path + "/max_link_width" in unread:
        width = None
    elif width is not None and port.max_width is not None:
        width = min(width, port.max_width)
    return device._replace(max_speed_gts=speed, max_width=width)


def read_lockdown(host: Host) -> str:
    """Return the kernel's lockdown, which Secure Boot enables: even root cannot write PCI registers then.

    ``integrity`` or ``confidentiality``; "" for none, or if it cannot be read: the later write then fails.
    """
    return read_value(host, LOCKDOWN, parse_lockdown, []) or ""


def parse_lockdown(text: str) -> str:
    """``integrity`` from ``none [integrity] confidentiality``. Raises ParseError where no known word is in brackets."""
    pattern = r"[^\[]*\[(none|integrity|confidentiality)\].*"
    return fullmatch(pattern, text, "a lockdown like [none]").group(1).replace("none", "")
