# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the virtual routers (VRF) that rails are in: each has a routing table, which one rule for all of them leads to.

Sources: kernel Documentation/networking/vrf.rst; ip-link(8), ip-rule(8), ip-route(8) of iproute2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

from ..core.host import Host, ParseError
from .netdev import Netdev
from .netdev_address import parse_json
from .netdev_routing import Route, parse_routes, parse_rules

LINKS = ("ip", "-j", "-d", "link", "show", "type", "vrf")
FAMILIES = (4, 6)


@dataclass(frozen=True)
class Vrf:
    """families: with the rule that leads to the tables of VRFs.   routes: of its table."""

    name: str
    table: str
    is_up: bool
    families: Tuple[int, ...] = ()
    routes: Tuple[Route, ...] = ()


def parse(text: str) -> Tuple[Vrf, ...]:
    """Parse the output of LINKS. Raises ParseError."""
    found = []
    for one in parse_json(text, LINKS):
        try:
            found.append(Vrf(str(one["ifname"]), str(one["linkinfo"]["info_data"]["table"]), "UP" in one["flags"]))
        except (KeyError, TypeError) as error:
            raise ParseError("%r is not a VRF as ip -j -d link prints it" % str(one)[:80]) from error
    return tuple(found)


def names(host: Host, netdevs: Sequence[Netdev]) -> Dict[str, Vrf]:
    """Return interface -> its VRF, without rules and routes. Asks only if one has a master. Raises as Host does."""
    masters = {one.name: one.master for one in netdevs if one.master}
    known = {one.name: one for one in parse(host.query(LINKS))} if masters else {}
    return {name: known[master] for name, master in masters.items() if master in known}


def read(host: Host, netdevs: Sequence[Netdev]) -> Dict[str, Vrf]:
    """Return interface -> its VRF. Raises ReadError and ParseError."""
    found = names(host, netdevs)
    if not found:
        return {}
    families = []
    routes: Dict[str, Tuple[Route, ...]] = {}
    for family in FAMILIES:
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
