# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse addresses, policy rules and routes that an owner's files give an interface, in ip's syntax.

Sources: ip-rule(8), ip-route(8); systemd.network(5); nm-settings(5); ifcfg and rule files of network-scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.ini import Setting
from ..core.number import whole
from ..machine.netdev_routing import Route, Rule

# Priority of a rule that names none: the kernel puts it before the main table's.
_LAST = 32765
# What netplan, networkd and ip call the parts of rules and routes.
_NAMES = {"From": "from", "To": "to", "Table": "table", "lookup": "table", "Priority": "priority", "pref": "priority"}
_ROUTE_NAMES = {"Gateway": "via", "PreferredSource": "src", "from": "src", "Table": "table"}
Words = Sequence[str]


@dataclass(frozen=True)
class Addressing:
    """Addressing by an owner's files.

    addresses: IPv4 ones as ``10.0.0.1/24``; None if not known. dynamic: DHCP may bring others.

    rules, routes: policy rules, and (table, route).
    """

    addresses: Optional[Tuple[str, ...]] = None
    dynamic: bool = False
    rules: Tuple[Rule, ...] = ()
    routes: Tuple[Tuple[str, Route], ...] = ()


NO_ADDRESSING = Addressing()


def make(
    addresses: Iterable[str], dynamic: bool, rules: Iterable[Words] = (), routes: Iterable[Words] = (), name: str = ""
) -> Addressing:
    """Parse what an owner has.   rules, routes: what would follow ``ip rule add`` and ``ip route add``."""
    found: Optional[List[str]] = []
    for text in addresses:
        try:
            found = found if found is None or ":" in text else [*found, str(IPv4Interface(text))]
        except ValueError:
            found = None
    known = None if found is None else tuple(dict.fromkeys(found))
    parsed = tuple(_route(words, name) for words in routes if words)
    return Addressing(known, dynamic, tuple(_rule(words) for words in rules if words), parsed)


def _rule(words: Words) -> Rule:
    pairs = {_NAMES.get(key, key): value for key, value in zip(words[::2], words[1::2])}
    source, table = pairs.pop("from", ""), pairs.pop("table", "main")
    priority, to = pairs.pop("priority", ""), pairs.pop("to", "").replace("0.0.0.0/0", "")
    source = "" if source in ("all", "0.0.0.0/0") else source[:-3] if source.endswith("/32") else source
    number = whole(priority)
    some = bool(pairs) or len(words) % 2 == 1
    return Rule(_LAST if number is None else number, source, table, some or bool(to), to, some)


def _route(words: Words, name: str) -> Tuple[str, Route]:
    pairs = {_ROUTE_NAMES.get(key, key): value for key, value in zip(words[1::2], words[2::2])}
    destination = "default" if words[0] in ("0.0.0.0/0", "0/0") else words[0]
    return pairs.get("table", "main"), Route(destination, pairs.get("via", ""), pairs.get("src", ""), name)


def parse_networkd(blocks: Sequence[Tuple[str, Sequence[Setting]]], name: str) -> Addressing:
    """Read the sections of a .network file and of its drop-ins."""
    addresses: List[str] = []
    rules, routes, dynamic = [], [], False
    for section, settings in blocks:
        values = {one.key: one.value for one in settings}
        words = [word for pair in values.items() for word in pair]
        for one in settings:
            if one.key == "Address" and section in ("Network", "Address"):
                addresses = [*addresses, one.value] if one.value else []
        if section == "Network" and "DHCP" in values:
            dynamic = values["DHCP"].lower() not in ("no", "false", "0", "off", "ipv6", "none", "")
        elif section == "RoutingPolicyRule":
            rules.append(words)
        elif section == "Route":
            routes.append([values.get("Destination", "default"), *words])
    return make(addresses, dynamic, rules, routes, name)


def parse_keyfile(values: Mapping[str, str], name: str) -> Addressing:
    """Read section ipv4 of a profile of NetworkManager."""
    method = values.get("method", "")
    addresses: List[str] = []
    rules, routes = [], []
    for key, text in values.items():
        kind = key.rstrip("0123456789")
        if kind in ("address", "addresses"):
            addresses += [word.strip().partition(",")[0] for word in text.split(";") if word.strip()]
        elif kind == "routing-rule":
            rules.append(text.split())
        elif kind in ("route", "routes"):
            destination, gateway = (*text.split(","), "")[:2]
            options = values.get(key + "_options", "").replace("=", " ").replace(",", " ").split()
            way = ["via", gateway] if gateway not in ("", "0.0.0.0") else []
            routes.append([destination, "table", values.get("route-table", "main"), *way, *options])
    manual = method == "manual" or (not method and bool(addresses))
    if method == "shared":
        return NO_ADDRESSING  # it gets an address that no file names
    return make(addresses, not manual and method in ("", "auto"), rules, routes, name)


def parse_ifcfg(values: Mapping[str, str], name: str, rules: Iterable[str], routes: Iterable[str]) -> Addressing:
    """Read an ifcfg file, and the lines of the files with rules and routes beside it."""
    addresses = []
    for key, text in values.items():
        if key.startswith("IPADDR") and text:
            number = key[len("IPADDR") :]
            # Without a length the address's class decides, which is never intended.
            lengths = [values[word + number] for word in ("PREFIX", "PREFIXLEN", "NETMASK") if word + number in values]
            addresses.append(text if "/" in text else "%s/%s" % (text, (lengths or ["unknown"])[0]))
    own = [text for key, text in values.items() if key.startswith("ROUTING_RULE_")]
    lines = [line.split() for line in (*rules, *own) if not line.startswith("#")]
    return make(addresses, "dhcp" in values.get("BOOTPROTO", ""), lines, [line.split() for line in routes], name)


def parse_ifupdown(stanzas: Iterable[Tuple[str, Sequence[Tuple[str, str]]]], name: str) -> Addressing:
    """Read the stanzas of family inet: (method, options)."""
    addresses, rules, routes, dynamic = [], [], [], False
    for method, options in stanzas:
        values = dict(options)
        dynamic = dynamic or method == "dhcp"
        text = values.get("address", "")
        if method == "static" and text:
            addresses.append(text if "/" in text else "%s/%s" % (text, values.get("netmask", "32")))
        for key, line in options:
            words = [word for word in line.split() if word != "-4"] if key in ("pre-up", "up", "post-up") else []
            rules += [words[3:]] if words[1:3] == ["rule", "add"] else []
            routes += [words[3:]] if words[1:3] in (["route", "add"], ["route", "replace"]) else []
    return make(addresses, dynamic, rules, routes, name)
