# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network interfaces and the routes that make one of them the management interface.

Sources: kernel Documentation/ABI/testing/sysfs-class-net, /proc/net/route and /proc/net/ipv6_route (proc(5)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .host import Host, ParseError, Problem, ReadError
from .pci import natural_key, parse_address, parse_decimal, read_value

INTERFACES = "/sys/class/net"
ROUTE_FILES = ("/proc/net/route", "/proc/net/ipv6_route")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2})*", re.IGNORECASE)  # 6 bytes, on InfiniBand 20
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
# Route flags (linux/route.h).
_UP = 0x0001
_REJECT = 0x0200


@dataclass(frozen=True)
class Netdev:
    name: str
    pci: Optional[str]  # None for virtual interfaces
    mac: Optional[str]
    mtu: Optional[int]
    operstate: Optional[str]
    speed_mbps: Optional[int]  # None where the driver does not say (EINVAL, -1)
    dev_port: Optional[int]
    arp_type: Optional[int]  # 1 Ethernet, 32 InfiniBand
    master: Optional[str]  # bond or bridge it belongs to
    lower: Tuple[str, ...]  # interfaces below it: bond members, the parent of a VLAN
    is_bond: bool
    is_vf: bool
    source: str


@dataclass(frozen=True)
class DefaultRoute:
    netdev: str
    metric: int
    family: int  # 4 or 6
    source: str  # /proc/net/route


def parse_route(text: str) -> Tuple[DefaultRoute, ...]:
    """The IPv4 default routes in /proc/net/route, nearest metric first. Raises ParseError."""
    lines = text.splitlines()
    if not lines or lines[0].split()[:3] != ["Iface", "Destination", "Gateway"]:
        raise ParseError("%r is not the heading of /proc/net/route" % text[:80])
    routes = []
    for line in lines[1:]:
        words = line.split()
        if len(words) < 8:
            raise ParseError("%r has %d columns, expected 11" % (line[:160], len(words)))
        destination, flags, mask = (_hex(words[column], line) for column in (1, 3, 7))
        metric = parse_decimal(words[6])
        if destination == 0 and mask == 0 and flags & _UP and not flags & _REJECT:
            routes.append(DefaultRoute(words[0], metric, 4, "/proc/net/route"))
    return _by_metric(routes)


def parse_ipv6_route(text: str) -> Tuple[DefaultRoute, ...]:
    """The IPv6 default routes in /proc/net/ipv6_route, nearest metric first. Raises ParseError."""
    routes = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 10:
            raise ParseError("%r has %d columns, expected 10" % (line[:160], len(words)))
        destination, length, metric, flags = (_hex(words[column], line) for column in (0, 1, 5, 8))
        if destination == 0 and length == 0 and flags & _UP and not flags & _REJECT:
            routes.append(DefaultRoute(words[9], metric, 6, "/proc/net/ipv6_route"))
    return _by_metric(routes)


def default_routes(host: Host) -> Tuple[Tuple[DefaultRoute, ...], Tuple[Problem, ...]]:
    """Default routes of both families, the one that wins first; at equal metrics IPv4 before IPv6."""
    problems: List[Problem] = []
    ipv4 = read_value(host, "/proc/net/route", parse_route, problems)
    unread: List[Problem] = []
    ipv6 = read_value(host, "/proc/net/ipv6_route", parse_ipv6_route, unread)
    # It has no heading: empty means that no interface has an IPv6 address.
    problems.extend(problem for problem in unread if problem.message != "is empty")
    return _by_metric((ipv4 or ()) + (ipv6 or ())), tuple(problems)


def read(host: Host) -> Tuple[Tuple[Netdev, ...], Tuple[Problem, ...]]:
    """All interfaces in natural order of their names, virtual ones too: a route may run over them."""
    problems: List[Problem] = []
    netdevs = []
    try:
        names = sorted(host.listdir(INTERFACES), key=natural_key)
        if not names:
            problems.append(Problem(INTERFACES, "lists no interface"))
    except ReadError as error:
        return (), (error.problem,)
    for name in names:
        try:
            entries = host.listdir("%s/%s" % (INTERFACES, name))
            if entries:  # bonding_masters is a file
                netdevs.append(_netdev(host, name, entries, problems))
        except ReadError as error:
            problems.append(error.problem)
    return tuple(netdevs), tuple(problems)


def _netdev(host: Host, name: str, entries: List[str], problems: List[Problem]) -> Netdev:
    path = "%s/%s" % (INTERFACES, name)
    pci = _pci(host.realpath(path + "/device"))
    master = host.realpath(path + "/master")
    # Down interfaces and drivers that do not know answer EINVAL or -1, old ones 4294967295.
    speed = read_value(host, path + "/speed", parse_decimal, problems, may_fail=True)
    return Netdev(
        name=name,
        pci=pci,
        # Tunnels have an empty address.
        mac=read_value(host, path + "/address", _parse_mac, problems, may_fail=pci is None),
        mtu=read_value(host, path + "/mtu", parse_decimal, problems),
        operstate=read_value(host, path + "/operstate", _parse_operstate, problems),
        speed_mbps=speed if speed is not None and 0 < speed < 0xFFFFFFFF else None,
        dev_port=read_value(host, path + "/dev_port", parse_decimal, problems),
        arp_type=read_value(host, path + "/type", parse_decimal, problems),
        master=master.rsplit("/", 1)[-1] if master is not None else None,
        lower=tuple(entry[len("lower_") :] for entry in entries if entry.startswith("lower_")),
        is_bond="bonding" in entries,
        is_vf=host.realpath(path + "/device/physfn") is not None,
        source=path,
    )


def _pci(device: Optional[str]) -> Optional[str]:
    """The PCI function that is this interface. Not the USB controller that one hangs on, nor a subfunction's parent."""
    parts = (device or "").split("/")
    if len(parts) > 1 and re.fullmatch("virtio[0-9]+", parts[-1]):
        parts.pop()
    try:
        return parse_address(parts[-1])
    except ParseError:
        return None


def _by_metric(routes: Sequence[DefaultRoute]) -> Tuple[DefaultRoute, ...]:
    return tuple(sorted(routes, key=lambda route: (route.metric, route.family)))


def _hex(word: str, line: str) -> int:
    if re.fullmatch(r"[0-9a-fA-F]{1,32}", word) is None:
        raise ParseError("%r is not a hexadecimal number, in %r" % (word[:40], line[:160]))
    return int(word, 16)


def _parse_mac(text: str) -> str:
    if _MAC.fullmatch(text) is None:
        raise ParseError("%r is not a hardware address" % text[:80])
    return text.lower()


def _parse_operstate(text: str) -> str:
    if text not in _OPERSTATES:
        raise ParseError("%r is not one of %s" % (text[:80], ", ".join(_OPERSTATES)))
    return text
