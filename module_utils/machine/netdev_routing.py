# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rules and routing tables beside the main one, and the virtual routers (VRF) that rails are in: procfs shows none.

Each VRF has a routing table, which one rule for all of them leads to.
Sources: kernel Documentation/networking/vrf.rst; ip-link(8), ip-rule(8), ip-route(8) of iproute2.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Sequence, Tuple

from ..core.host import Host, ParseError
from .netdev import Netdev
from .netdev_address import parse_json

RULES = ("ip", "-j", "-4", "rule", "show")
ROUTES = ("ip", "-j", "-4", "route", "show", "table", "all")
VRFS = ("ip", "-j", "-d", "link", "show", "type", "vrf")
_FOR_ALL = {"priority", "src", "srclen", "dst", "dstlen", "table", "protocol", "action", "goto", "suppress_prefixlen"}


class Rule(NamedTuple):
    """source: address or subnet, "" for all. table: its number or name. other: it asks for more than the source.

    destination: subnet, "" for all. some: it is for some packets only, by mark, port, interface or the like.
    """

    priority: int
    source: str
    table: str
    other: bool = False
    destination: str = ""
    some: bool = False


class Route(NamedTuple):
    """destination: ``default`` or ``10.0.0.0/24``. gateway, source: "" for none."""

    destination: str
    gateway: str
    source: str
    netdev: str = ""


def parse_rules(text: str) -> Tuple[Rule, ...]:
    """Parse the output of RULES. Raises ParseError."""
    found = []
    for one in parse_json(text, RULES):
        priority, source = one.get("priority"), str(one.get("src", "all"))
        if not isinstance(priority, int):
            raise ParseError("%r is not a rule: it has no priority" % str(one)[:80])
        length = one.get("srclen", 32)
        source = "" if source == "all" else source if length == 32 else "%s/%s" % (source, length)
        other = bool(set(one) - {"priority", "src", "srclen", "table", "protocol"})
        some = bool(set(one) - _FOR_ALL)
        to = "%s/%s" % (one["dst"], one.get("dstlen", 32)) if one.get("dst", "all") != "all" else ""
        # Without a table it refuses packets, or goes on elsewhere.
        table = str(one.get("table") or one.get("action") or one.get("goto") or ("l3mdev" if "l3mdev" in one else ""))
        found.append(Rule(priority, source, table, other, to, some))
    return tuple(found)


def parse_routes(text: str) -> Dict[str, Tuple[Route, ...]]:
    """Return table -> routes from the output of ROUTES. Raises ParseError."""
    found: Dict[str, Tuple[Route, ...]] = {}
    for one in parse_json(text, ROUTES):
        route = Route(*(str(one.get(key, "")) for key in ("dst", "gateway", "prefsrc", "dev")))
        table = str(one.get("table", "main"))
        found[table] = (*found.get(table, ()), route)
    return found


class Vrf(NamedTuple):
    """families: with the rule that leads to the tables of VRFs.   routes: of its table."""

    name: str
    table: str
    is_up: bool
    families: Tuple[int, ...] = ()
    routes: Tuple[Route, ...] = ()


def parse_vrfs(text: str) -> Tuple[Vrf, ...]:
    """Parse the output of VRFS. Raises ParseError."""
    found = []
    for one in parse_json(text, VRFS):
        try:
            found.append(Vrf(str(one["ifname"]), str(one["linkinfo"]["info_data"]["table"]), "UP" in one["flags"]))
        except (KeyError, TypeError) as error:
            raise ParseError("%r is not a VRF as ip -j -d link prints it" % str(one)[:80]) from error
    return tuple(found)


def vrf_names(host: Host, netdevs: Sequence[Netdev]) -> Dict[str, Vrf]:
    """Return interface -> its VRF, without rules and routes. Asks only if one has a master. Raises as Host does."""
    masters = {one.name: one.master for one in netdevs if one.master}
    known = {one.name: one for one in parse_vrfs(host.query(VRFS))} if masters else {}
    return {name: known[master] for name, master in masters.items() if master in known}


def read_vrfs(host: Host, netdevs: Sequence[Netdev]) -> Dict[str, Vrf]:
    """Return interface -> its VRF. Raises ReadError and ParseError."""
    found = vrf_names(host, netdevs)
    if not found:
        return {}
    families = []
    routes: Dict[str, Tuple[Route, ...]] = {}
    for family in (4, 6):
        rules = parse_rules(host.query(("ip", "-j", "-%d" % family, "rule", "show")))
        families += [family] if any("l3mdev" in rule.table for rule in rules) else []
        # -N: a table's number, which may have a name.
        shown = host.query(("ip", "-j", "-N", "-%d" % family, "route", "show", "table", "all"))
        for table, of_table in parse_routes(shown).items():
            routes[table] = (*routes.get(table, ()), *of_table)
    return {
        name: Vrf(one.name, one.table, one.is_up, tuple(families), routes.get(one.table, ()))
        for name, one in found.items()
    }
