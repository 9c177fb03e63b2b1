# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Claim: a program sets an interface up at boot, by this file, and how we may write into it.

Each program has a module beside this one, with its reader and its subclass of Claim. Here is also what their files
have in common: addresses, policy rules and routes in ip's syntax, and MTUs.
Sources: ip-rule(8), ip-route(8); systemd.network(5); nm-settings(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import ClassVar, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.ini import FALSE, Setting
from ..core.number import whole
from ..core.plan import Command
from ..machine.netdev_routing import Route, Rule

TABLE_COMMENT = "Written by Busbar (role multirail): a table for what comes from this rail's address."
# Priority of a rule that names none: the kernel puts it before the main table's.
_LAST = 32765
# What netplan, networkd and ip call the parts of rules and routes.
_NAMES = {"From": "from", "To": "to", "Table": "table", "lookup": "table", "Priority": "priority", "pref": "priority"}
_ROUTE_NAMES = {"Gateway": "via", "PreferredSource": "src", "from": "src", "Table": "table"}
Words = Sequence[str]


class Addressing(NamedTuple):
    """Addressing by an owner's files.

    addresses: IPv4 ones as ``10.0.0.1/24``; None if not known. dynamic: DHCP may bring others.

    rules, routes: policy rules, and (table, route).
    """

    addresses: Optional[Tuple[str, ...]] = None
    dynamic: bool = False
    rules: Tuple[Rule, ...] = ()
    routes: Tuple[Tuple[str, Route], ...] = ()

    @classmethod
    def make(
        cls,
        name: str,
        addresses: Iterable[str],
        dynamic: bool,
        rules: Iterable[Words] = (),
        routes: Iterable[Words] = (),
    ) -> Addressing:
        """Parse what an owner has.   rules, routes: what would follow ``ip rule add`` and ``ip route add``."""
        try:
            known: Optional[List[str]] = [str(IPv4Interface(text)) for text in addresses if ":" not in text]
        except ValueError:
            known = None
        parsed = tuple(_route(words, name) for words in routes if words)
        unique = None if known is None else tuple(dict.fromkeys(known))
        return cls(unique, dynamic, tuple(_rule(words) for words in rules if words), parsed)


UNADDRESSED = Addressing()


def _rule(words: Words) -> Rule:
    pairs = {_NAMES.get(key, key): value for key, value in zip(words[::2], words[1::2])}
    source, table = pairs.pop("from", ""), pairs.pop("table", "main")
    priority, to = whole(pairs.pop("priority", "")), pairs.pop("to", "").replace("0.0.0.0/0", "")
    source = "" if source in ("all", "0.0.0.0/0") else source[:-3] if source.endswith("/32") else source
    some = bool(pairs) or len(words) % 2 == 1
    return Rule(_LAST if priority is None else priority, source, table, some or bool(to), to, some)


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
            dynamic = values["DHCP"].lower() not in (*FALSE, "ipv6", "none", "")
        elif section == "RoutingPolicyRule":
            rules.append(words)
        elif section == "Route":
            routes.append([values.get("Destination", "default"), *words])
    return Addressing.make(name, addresses, dynamic, rules, routes)


def parse_keyfile(values: Mapping[str, str], name: str) -> Addressing:
    """Read section ipv4 of a profile of NetworkManager."""
    method = values.get("method", "")
    if method == "shared":
        return Addressing()  # it gets an address that no file names
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
    dynamic = method == "auto" or (not method and not addresses)
    return Addressing.make(name, addresses, dynamic, rules, routes)


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
    return Addressing.make(name, addresses, dynamic, rules, routes)


class Table(NamedTuple):
    """The routing table of a rail. number: of the table, and the priority of its rules, one for each source.

    sources: IPv4 addresses whose packets go by this table.
    """

    number: int
    sources: Tuple[str, ...]
    routes: Tuple[Route, ...]

    @property
    def lines(self) -> List[str]:
        """Return the commands that make it."""
        rules = ["ip rule add from %s table %d priority %d" % (one, self.number, self.number) for one in self.sources]
        ways = ["via %s" % one.gateway if one.gateway else "src %s" % one.source for one in self.routes]
        routes = [(one.destination, way, one.netdev, self.number) for one, way in zip(self.routes, ways)]
        return [*rules, *("ip route add %s %s dev %s table %d" % one for one in routes)]


@dataclass(frozen=True)
class Claim:
    """path: file that sets the interface up. target: file that an MTU has to be written to, with its text and mode.

    mtu: of the interface, None if not set; source: the file that sets it. ident: what the program calls
    the interface: a section of the target, a stanza, or section/ID of netplan. before: None where there is no target.
    refused: why the MTU cannot be written there, and what to do; "" where it can. reload: makes the program read its
    files again, None where nothing has to.

    addressing: addresses, rules and routes that it brings. unmanaged: the program has a file for the interface, and is
    configured to leave it alone.

    stack: the program's name. secret: whether its files may hold passwords. keeps_backup: whether an old file may
    stay beside the new one. gathers: the target holds the MTUs of all interfaces, and nothing else.
    """

    path: str
    target: str
    mtu: Optional[int] = None
    source: str = ""
    ident: str = ""
    before: Optional[str] = None
    mode: int = 0o644
    refused: Tuple[str, str] = ("", "")
    reload: Optional[Command] = None
    addressing: Addressing = UNADDRESSED
    unmanaged: bool = False
    stack: ClassVar[str] = ""
    secret: ClassVar[bool] = False
    keeps_backup: ClassVar[bool] = True
    gathers: ClassVar[bool] = False
    # Commands that give an interface what its file says now.
    apply_again: ClassVar[str] = "ifdown %(name)s; ifup %(name)s"

    def __str__(self) -> str:
        return "%s (%s)" % (self.path, self.stack)

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        """The target's text with this MTU for the interface; None where no such file is needed."""
        raise NotImplementedError

    def overridden(self, mtu: int) -> bool:
        """Return whether a file of the target's kind, which counts more by its name, sets another MTU."""
        if self.mtu in (None, mtu) or self.source in (self.path, self.target):
            return False
        name, target = (one.rpartition("/")[2] for one in (self.source, self.target))
        return name.rpartition(".")[2] == target.rpartition(".")[2] and name > target

    def table_file(self, rail: int) -> str:
        """Our file with the rules and routes of a rail; "" where the program takes none from a file of ours."""
        return ""

    def with_table(self, table: Table) -> str:
        """The text of table_file."""
        raise NotImplementedError


# By interface: claims, and doubts about what could not be read or understood.
Claims = Dict[str, List[Claim]]
Doubts = Dict[str, List[str]]


def mtu_of(value: str, path: str, doubts: List[str]) -> Optional[int]:
    """Return the MTU, as 9000 or 9K, that ``value`` of the file ``path`` sets, or None. No number is a doubt."""
    match = re.fullmatch(r"([0-9]{1,5})([Kk]?)", value)
    if value and match is None:
        doubts.append("%s: MTU %r is not a number" % (path, value[:40]))
    # 0 means automatic, as no value does.
    return int(match.group(1)) << (10 if match.group(2) else 0) or None if match else None
