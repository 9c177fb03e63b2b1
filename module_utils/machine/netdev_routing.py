# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rules and routing tables of IPv4, beside the main table: procfs shows none of them.

Source: ip-rule(8), ip-route(8) of iproute2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

from ..core.host import ParseError
from .netdev_address import parse_json

RULES = ("ip", "-j", "-4", "rule", "show")
ROUTES = ("ip", "-j", "-4", "route", "show", "table", "all")

_FOR_ALL = {"priority", "src", "srclen", "dst", "dstlen", "table", "protocol", "action", "goto", "suppress_prefixlen"}


@dataclass(frozen=True)
class Rule:
    """source: address or subnet, "" for all. table: its number or name. other: it asks for more than the source.

    destination: subnet, "" for all. some: it is for some packets only, by mark, port, interface or the like.
    """

    priority: int
    source: str
    table: str
    other: bool = False
    destination: str = ""
    some: bool = False


@dataclass(frozen=True)
class Route:
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
