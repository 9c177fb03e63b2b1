# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Claim: a program sets an interface up at boot, by this file, and how we may write into it.

Each program has a module beside this one, with its reader and its subclass of Claim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Optional, Tuple

from ..core.host import ParseError
from ..core.plan import Command
from ..machine.netdev_routing import Route
from .addressing import NO_ADDRESSING, Addressing

TABLE_COMMENT = "Written by Busbar (role multirail): a table for what comes from this rail's address."


@dataclass(frozen=True)
class Table:
    """The routing table of a rail. number: of the table, and the priority of its rules, one for each source.

    sources: IPv4 addresses whose packets go by this table.
    """

    number: int
    sources: Tuple[str, ...]
    routes: Tuple[Route, ...]

    @property
    def rule_lines(self) -> List[str]:
        """Return what follows ``ip rule add``."""
        return ["from %s table %d priority %d" % (source, self.number, self.number) for source in self.sources]

    @property
    def route_lines(self) -> List[str]:
        """Return what follows ``ip route add``."""
        ways = ["via %s" % one.gateway if one.gateway else "src %s" % one.source for one in self.routes]
        return ["%s %s table %d" % (one.destination, way, self.number) for one, way in zip(self.routes, ways)]


@dataclass(frozen=True)
class Claim:
    """path: file that sets the interface up. target: file that an MTU has to be written to, with its text and mode.

    mtu: of the interface, None if not set; source: the file that sets it. ident: what the program calls
    the interface: a section of the target, a stanza, or section/ID of netplan. before: None where there is no target.
    refused: why the MTU cannot be written there, and what to do; "" where it can. reload: makes the program read its
    files again, None where nothing has to.

    addressing: addresses, rules and routes that it brings. priority: of two profiles the higher one counts. unmanaged:
    the program has a file for the interface, and is configured to leave it alone.

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
    addressing: Addressing = NO_ADDRESSING
    priority: int = 0
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
        """Return whether a file with precedence over the target sets another MTU."""
        return False

    def table_file(self, rail: int) -> str:
        """Our file with the rules and routes of a rail; "" where the program takes none from a file of ours."""
        return ""

    def with_table(self, table: Table) -> str:
        """The text of table_file."""
        raise NotImplementedError

    def table_advice(self, table: Table, name: str) -> str:
        """Return where the owner of the interface ``name`` takes the rules and routes of a table from."""
        lines = "; ".join(table.rule_lines + table.route_lines)
        return "let a file of netplan or systemd-networkd set %s up, which Busbar gives this: %s" % (name, lines)


# By interface: claims, and doubts about what could not be read or understood.
Claims = Dict[str, List[Claim]]
Doubts = Dict[str, List[str]]


def later(source: str, target: str) -> bool:
    """Compare two files of one program whose names decide: whether ``source`` counts more than ``target``."""
    same_kind = source.rpartition(".")[2] == target.rpartition(".")[2]
    return same_kind and source.rpartition("/")[2] > target.rpartition("/")[2]


def parse_mtu(text: str) -> int:
    """``9000`` or ``9K``. Raises ParseError."""
    match = re.fullmatch(r"([0-9]{1,5})([Kk]?)", text)
    if match is None:
        raise ParseError("MTU %r is not a number" % text[:40])
    return int(match.group(1)) << (10 if match.group(2) else 0)


def mtu_of(value: str, path: str, doubts: List[str]) -> Optional[int]:
    """Return the MTU that ``value`` of the file ``path`` sets, or None. A value that is no number is a doubt."""
    try:
        # 0 means automatic, as no value does.
        return (parse_mtu(value) or None) if value else None
    except ParseError as error:
        doubts.append("%s: %s" % (path, error))
        return None
