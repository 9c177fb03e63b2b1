# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""RDMA devices, their ports and GIDs, from /sys/class/infiniband.

Boards of HGX B200 and B300 manage their NVSwitches through two to four ConnectX-7 functions. These bridges are not
rails: no job, sweep or comparison uses them, and reading their counters fills the kernel's log with errors.
Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband; NVIDIA Fabric Manager User Guide, Blackwell HGX (VPD).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core.host import Host, ParseError, Problem, ReadError, attempt, noted, read_once
from ..core.number import whole
from .pci import (
    ADDRESS,
    fullmatch,
    matching,
    natural_key,
    parse_address,
    parse_decimal,
    parse_text,
    read_value,
)

DEVICES = "/sys/class/infiniband"
# Hopper and older show their NVSwitches here.
_NVSWITCHES = "/proc/driver/nvidia-nvswitch/devices"
# Of a bridge: its type, its VPD, and the type of the rails of HGX B300, on which no rail has the former.
_BRIDGE_TYPE, _BRIDGE_VPD, _B300_RAIL_TYPE = "MT4129", "SW_MNG", "MT4131"
# What the kernel prints after the number (drivers/infiniband/core/sysfs.c).
_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYS_STATES = ("Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec \(([0-9]{1,2}X(?: [A-Z]+[0-9]*)?)\)")
DEVINFO = ("ibv_devinfo",)
# Families of addresses that RoCE v2 makes GIDs of.
ADDRESS_FAMILIES = ("ipv4", "ipv6")
_GID_TYPES = ("IB/RoCE v1", "RoCE v2")
_EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Gid:
    index: int
    gid: str  # eight groups of four hex digits, as the kernel prints it
    type: Optional[str]  # "IB/RoCE v1" or "RoCE v2"; None where unreadable
    netdev: Optional[str]

    @property
    def ipv4(self) -> Optional[str]:
        """``10.0.0.1`` of an IPv4-mapped address (::ffff:10.0.0.1), None for any other GID."""
        mapped = IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped else None

    @property
    def address(self) -> str:
        """Return the address as ip prints it: ``10.0.0.1``, ``2001:db8::5``."""
        return self.ipv4 or str(IPv6Address(self.gid))


class Port(NamedTuple):
    number: int
    state: Optional[str]  # "ACTIVE", "DOWN", "INIT", "ARMED"
    phys_state: Optional[str]  # "LinkUp", "Disabled", "Polling", ...
    rate_gbps: Optional[float]  # 400.0; 2.5 on a port that is down
    rate_name: Optional[str]  # "4X NDR"
    link_layer: Optional[str]  # "InfiniBand" or "Ethernet"
    gids: Tuple[Gid, ...]  # only entries in use


class RdmaDevice(NamedTuple):
    name: str  # mlx5_0
    pci: Optional[str]  # 0000:1b:00.0; None for software devices (rxe, siw)
    node_guid: Optional[str]
    sys_image_guid: Optional[str]
    firmware: Optional[str]
    hca_type: Optional[str]
    board_id: Optional[str]
    ports: Tuple[Port, ...]
    source: str
    manages_nvswitch: bool = False


class RdmaPort(NamedTuple):
    """active, largest: RDMA MTU of a port in bytes."""

    active: int
    largest: int


# By (device, port); a Problem where they could not be read.
Mtus = Union[Mapping[Tuple[str, int], RdmaPort], Problem]


def parse_state(text: str) -> str:
    """``ACTIVE`` from ``4: ACTIVE``, ``LinkUp`` from ``5: LinkUp``. Raises ParseError."""
    pattern = "[0-9]+: (%s)" % "|".join(_STATES + _PHYS_STATES)
    return fullmatch(pattern, text, "a port state like 4: ACTIVE or 5: LinkUp").group(1)


def parse_rate(text: str) -> Tuple[float, str]:
    """Gbit/s and name: ``(400.0, "4X NDR")`` from ``400 Gb/sec (4X NDR)``. Raises ParseError."""
    rate, name = fullmatch(_RATE, text, "a rate like 400 Gb/sec (4X NDR)").groups()
    return float(rate), name


def parse_gid(text: str) -> str:
    """Eight groups of four lower-case hex digits, from any way to write an IPv6 address. Raises ParseError."""
    if text == _EMPTY_GID:
        return text  # most slots of a table
    try:
        return IPv6Address(text.replace("%", "/")).exploded
    except ValueError as error:
        raise ParseError("%r is not a GID like fe80:0000:0000:0000:0ac0:ebff:fe40:8df2" % text[:80]) from error


def gids_of_family(port: Port, address_family: str) -> Tuple[Gid, ...]:
    """Return GIDs of any type, of configured addresses: "ipv4" or "ipv6". Link-local ones always exist."""
    found = [gid for gid in port.gids if (gid.ipv4 is None) is (address_family != "ipv4")]
    return tuple(gid for gid in found if not gid.gid.startswith("fe80:"))


def rocev2(port: Port, address_family: str) -> Optional[Gid]:
    """The first RoCE v2 GID of a family: the one NCCL takes, by default of "ipv4"."""
    return next((gid for gid in gids_of_family(port, address_family) if gid.type == "RoCE v2"), None)


def parse_devinfo(text: str) -> Dict[Tuple[str, int], RdmaPort]:
    """(device, port) -> MTU, of what ibv_devinfo prints. Raises ParseError."""
    found: Dict[Tuple[str, int], RdmaPort] = {}
    device, port, largest = "", 0, 0
    for name, value in re.findall(r"(?m)^\s*(hca_id|port|max_mtu|active_mtu):\s*(.*?)\s*$", text):
        if name == "hca_id":
            device, port = value, 0
        elif name == "port":
            number = whole(value)
            if number is None:
                raise ParseError("%r names no port" % value[:80])
            port, largest = number, 0
        else:
            mtu = re.fullmatch(r"(256|512|1024|2048|4096) \([1-5]\)", value)
            if mtu is None or not device or not port:
                raise ParseError("%r is not an MTU like 4096 (5) of a port" % value[:80])
            largest = int(mtu.group(1)) if name == "max_mtu" else largest
            if name == "active_mtu":
                found[device, port] = RdmaPort(int(mtu.group(1)), largest or int(mtu.group(1)))
    if not found:
        raise ParseError("%r shows no port with an active_mtu" % text[:80])
    return found


def read_mtus(host: Host) -> Mtus:
    """Return the MTUs of every port from ibv_devinfo: sysfs does not show them."""
    name = " ".join(DEVINFO)
    if not host.has(DEVINFO[0]):
        return Problem(name, "is not installed; install ibverbs-utils (libibverbs-utils on EL)")
    problems: List[Problem] = []
    return attempt(lambda: parse_devinfo(host.query(DEVINFO)), name, problems) or problems[0]


@read_once
def read(host: Host) -> Tuple[Tuple[RdmaDevice, ...], Tuple[Problem, ...]]:
    """RDMA devices in natural order of their names. No such directory: no RDMA driver is loaded, no devices."""
    problems: List[Problem] = []
    names = attempt(lambda: host.listdir(DEVICES), DEVICES, problems) or ()
    devices = [_device(host, name, problems) for name in sorted(names, key=natural_key)]
    infiniband = [one.name for one in devices if all(port.link_layer == "InfiniBand" for port in one.ports)]
    bridges = nvswitch_bridges(host, infiniband)
    return tuple(device._replace(manages_nvswitch=device.name in bridges) for device in devices), tuple(problems)


def nvswitch_bridges(host: Host, infiniband: Sequence[str]) -> FrozenSet[str]:
    """Return the devices that manage NVSwitches.   infiniband: names of the devices without an Ethernet port.

    Their VPD decides; if it cannot be read, as without root, a ConnectX-7 beside ConnectX-8 rails is taken for one.
    """
    if attempt(lambda: host.listdir(_NVSWITCHES), _NVSWITCHES, []):
        return frozenset()
    paths = ["%s/%s" % (DEVICES, name) for name in attempt(lambda: host.listdir(DEVICES), DEVICES, []) or ()]
    types = {path: attempt(partial(host.read, path + "/hca_type"), path, []) for path in paths}
    found = set()
    for name in infiniband:
        path = "%s/%s" % (DEVICES, name)
        if types.get(path) == _BRIDGE_TYPE:
            vpd = attempt(partial(host.read, path + "/device/vpd", "replace"), path, [])
            if _B300_RAIL_TYPE in types.values() if vpd is None else _BRIDGE_VPD in vpd:
                found.add(name)
    return frozenset(found)


def _device(host: Host, name: str, problems: List[Problem]) -> RdmaDevice:
    path = "%s/%s" % (DEVICES, name)
    pci = _pci(host, path, problems)
    known = len(problems)
    numbers = _numbers(host, path + "/ports", problems)
    if not numbers and len(problems) == known:
        problems.append(Problem(path + "/ports", "lists no port"))
    # A software device has no firmware, and the kernel an empty line for it.
    firmware, hca_type, board_id = (
        read_value(host, "%s/%s" % (path, file), parse_text, problems, may_fail=pci is None)
        for file in ("fw_ver", "hca_type", "board_id")
    )
    node_guid, image_guid = (
        read_value(host, "%s/%s" % (path, file), _parse_guid, problems) for file in ("node_guid", "sys_image_guid")
    )
    ports = tuple(_port(host, "%s/ports/%d" % (path, number), number, problems) for number in numbers)
    return RdmaDevice(name, pci, node_guid, image_guid, firmware, hca_type, board_id, ports, path)


def _pci(host: Host, path: str, problems: List[Problem]) -> Optional[str]:
    """None for software devices. rxe names its netdev in ``parent``; old kernels then link its NIC as ``device``."""
    with noted(path, problems):
        target = host.realpath(path + "/device")
        name = target.rsplit("/", 1)[-1] if target and host.realpath(path + "/parent") is None else ""
        # A subfunction is no PCI function but a part of one (mlx5_core.sf.4).
        return parse_address(name) if ADDRESS.fullmatch(name) else None
    return None


def _port(host: Host, path: str, number: int, problems: List[Problem]) -> Port:
    rate, rate_name = read_value(host, path + "/rate", parse_rate, problems) or (None, None)
    state, phys_state = (read_value(host, path + name, parse_state, problems) for name in ("/state", "/phys_state"))
    layer = read_value(host, path + "/link_layer", _parse_link_layer, problems)
    return Port(number, state, phys_state, rate, rate_name, layer, _gids(host, path, problems))


def _gids(host: Host, path: str, problems: List[Problem]) -> Tuple[Gid, ...]:
    """The GIDs in use. The table of a RoCE port has 256 slots, most of them all zero."""
    gids = []
    for index in _numbers(host, path + "/gids", problems):
        gid = read_value(host, "%s/gids/%d" % (path, index), parse_gid, problems)
        if gid is None or gid == _EMPTY_GID:
            continue
        source, kind = "%s/gid_attrs/types/%d" % (path, index), None
        try:
            text = host.read(source)
            kind = None if text is None else _parse_gid_type(text)
        except ReadError as error:
            if isinstance(error.__cause__, OSError):
                continue  # EINVAL: nothing is in this slot any more
            problems.append(error.problem)
        except ParseError as error:
            problems.append(Problem(source, str(error)))
        # EINVAL here is an InfiniBand port: its GIDs have no netdev.
        netdev = read_value(host, "%s/gid_attrs/ndevs/%d" % (path, index), parse_text, problems, may_fail=True)
        gids.append(Gid(index, gid, kind, netdev))
    return tuple(gids)


def _numbers(host: Host, path: str, problems: List[Problem]) -> List[int]:
    """The entries of a directory that numbers its entries, in order."""
    numbers = []
    for name in attempt(lambda: host.listdir(path), path, problems) or ():
        with noted(path, problems):
            numbers.append(parse_decimal(name))
    return sorted(numbers)


_parse_link_layer = matching("InfiniBand|Ethernet", "a link layer (InfiniBand or Ethernet)")
_parse_gid_type = matching("|".join(_GID_TYPES), "one of " + ", ".join(_GID_TYPES))


def _parse_guid(text: str) -> str:
    return fullmatch("[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){3}", text, "a GUID like 9c63:c003:00aa:bb00").group().lower()
