# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network interfaces and the routes that make one of them the management interface.

Sources: kernel Documentation/ABI/testing/sysfs-class-net, /proc/net/route and /proc/net/ipv6_route (proc(5)).
"""

from __future__ import annotations

import re
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import List, NamedTuple, Optional, Tuple, Union

from ..core.host import Host, ParseError, Problem, attempt, read_once
from .pci import ADDRESS, fullmatch, matching, natural_key, parse_address, parse_decimal, read_value

INTERFACES = "/sys/class/net"
ABSENT = "is not there"
ROUTE_FILES = ("/proc/net/route", "/proc/net/ipv6_route")
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_UP, _REJECT, _LOCAL = 0x0001, 0x0200, 0x80000000  # linux/route.h, linux/ipv6_route.h

Address = Union[IPv4Address, IPv6Address]


class Netdev(NamedTuple):
    name: str
    pci: Optional[str]  # None for virtual interfaces
    mac: Optional[str]  # 6 bytes, on InfiniBand 20
    mtu: Optional[int]
    operstate: Optional[str]
    arp_type: Optional[int]  # 1 Ethernet, 32 InfiniBand
    master: Optional[str]  # bond or bridge it belongs to
    lower: Tuple[str, ...]  # interfaces below it: bond members, the parent of a VLAN
    is_bond: bool
    source: str


class Route(NamedTuple):
    """One of the main table; network as a number, length in bits."""

    netdev: str
    family: int  # 4 or 6
    network: int
    length: int
    metric: int

    @property
    def source(self) -> str:
        return ROUTE_FILES[self.family == 6]

    def leads_to(self, address: Address) -> bool:
        shift = address.max_prefixlen - self.length
        return self.family == address.version and int(address) >> shift == self.network >> shift


def parse_route(text: str) -> List[Route]:
    """All routes of /proc/net/route that are in use. Raises ParseError."""
    lines = text.splitlines()
    if not lines or lines[0].split()[:3] != ["Iface", "Destination", "Gateway"]:
        raise ParseError("%r is not the heading of /proc/net/route" % text[:80])
    routes = []
    for line in lines[1:]:
        words = line.split()
        if len(words) < 8:
            raise ParseError("%r has %d columns, expected 11" % (line[:160], len(words)))
        destination, flags, mask = (_hex(words[column], line, 8) for column in (1, 3, 7))
        metric = parse_decimal(words[6])
        if flags & _UP and not flags & _REJECT:
            # Addresses are as they lie in memory.
            network = int.from_bytes(destination.to_bytes(4, "little"), "big")
            routes.append(Route(words[0], 4, network, bin(mask).count("1"), metric))
    return routes


def parse_ipv6_route(text: str) -> List[Route]:
    """All routes of /proc/net/ipv6_route that are in use, without the node's own addresses. Raises ParseError."""
    routes = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 10:
            raise ParseError("%r has %d columns, expected 10" % (line[:160], len(words)))
        network, length, metric, flags = (_hex(words[column], line, 32) for column in (0, 1, 5, 8))
        if length > 128:
            raise ParseError("%d is not a length of a network, in %r" % (length, line[:160]))
        if flags & _UP and not flags & (_REJECT | _LOCAL):
            routes.append(Route(words[9], 6, network, length, metric))
    return routes


def read_routes(host: Host) -> Tuple[Tuple[Route, ...], Tuple[Problem, ...]]:
    """Return routes of both families, IPv4 first. Only the main table: /proc shows no other."""
    problems: List[Problem] = []
    unread: List[Problem] = []
    ipv4 = read_value(host, ROUTE_FILES[0], parse_route, problems)
    if ipv4 is None and not problems:
        problems.append(Problem(ROUTE_FILES[0], ABSENT))
    ipv6 = read_value(host, ROUTE_FILES[1], parse_ipv6_route, unread)
    # It has no heading: empty means that no interface has an IPv6 address.
    problems += [problem for problem in unread if problem.message != "is empty"]
    return (*(ipv4 or ()), *(ipv6 or ())), tuple(problems)


def default_routes(host: Host) -> Tuple[Tuple[Route, ...], Tuple[Problem, ...]]:
    """Default routes of both families, least metric first; of equal metrics IPv4 before IPv6."""
    routes, problems = read_routes(host)
    found = [route for route in routes if route.length == 0 and route.network == 0]
    # A capture may lack the file; only changes that may cut the connection to the node need it (guard).
    unread = tuple(problem for problem in problems if problem.message != ABSENT)
    return tuple(sorted(found, key=lambda route: (route.metric, route.family))), unread


@read_once
def read(host: Host) -> Tuple[Tuple[Netdev, ...], Tuple[Problem, ...]]:
    """All interfaces in natural order of their names, virtual ones too: a route may run over them."""
    problems: List[Problem] = []
    names = attempt(lambda: host.listdir(INTERFACES), INTERFACES, problems)
    if names == []:
        problems.append(Problem(INTERFACES, "lists no interface"))
    found = [
        attempt(partial(_netdev, host, name, problems), "%s/%s" % (INTERFACES, name), problems)
        for name in sorted(names or [], key=natural_key)
    ]
    return tuple(one for one in found if one is not None), tuple(problems)


def _netdev(host: Host, name: str, problems: List[Problem]) -> Optional[Netdev]:
    """None for what is not an interface: bonding_masters is a file. Raises ReadError."""
    path = "%s/%s" % (INTERFACES, name)
    entries = host.listdir(path)
    if not entries:
        return None
    pci, master = _pci(host.realpath(path + "/device")), host.realpath(path + "/master")
    # Tunnels have an empty address.
    mac = read_value(host, path + "/address", _parse_mac, problems, may_fail=pci is None)
    mtu, kind = (read_value(host, path + file, parse_decimal, problems) for file in ("/mtu", "/type"))
    state = read_value(host, path + "/operstate", _parse_operstate, problems)
    above = master.rsplit("/", 1)[-1] if master is not None else None
    lower = tuple(entry[len("lower_") :] for entry in entries if entry.startswith("lower_"))
    return Netdev(name, pci, mac, mtu, state, kind, above, lower, "bonding" in entries, path)


def _pci(device: Optional[str]) -> Optional[str]:
    """The PCI function that is this interface. Not the USB controller that one hangs on, nor a subfunction's parent."""
    name = re.sub("/virtio[0-9]+$", "", device or "").rsplit("/", 1)[-1]
    return parse_address(name) if ADDRESS.fullmatch(name) else None


def _hex(word: str, line: str, digits: int) -> int:
    if len(word) > digits or re.fullmatch(r"[0-9a-fA-F]+", word) is None:
        raise ParseError("%r is not a hexadecimal number, in %r" % (word[:40], line[:160]))
    return int(word, 16)


def _parse_mac(text: str) -> str:
    return fullmatch("[0-9a-fA-F]{2}(:[0-9a-fA-F]{2})*", text, "a hardware address").group().lower()


_parse_operstate = matching("|".join(_OPERSTATES), "one of %s" % ", ".join(_OPERSTATES))
