# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""netplan: YAML files that are merged by ID, of which it makes files for networkd or NetworkManager at boot.

Sources: netplan(5), netplan-generate(8) of 0.106; host.md 2.4.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import systemd_files
from ..core.host import Host, ParseError
from ..core.plan import Command
from . import claim
from .claim import TABLE_COMMENT, Table

FOLDERS = ("/run/netplan", "/etc/netplan", "/lib/netplan")
# Our files, of all roles: they define no interface.
_OWN = "90-busbar-"
# Where ours are.
FOLDER = FOLDERS[1]
FILE = FOLDER + "/90-busbar-mtu.yaml"
_TABLE_FILE = FOLDER + "/90-busbar-multirail-%d.yaml"
_COMMENT = "Written by Busbar (role mtu). What else belongs to these interfaces is in the other files here."
GENERATE = Command(("netplan", "generate"), "what netplan makes of it, for the next boot")
SECTIONS = ("ethernets", "bonds", "vlans", "bridges")


@dataclass(frozen=True)
class Netplan(claim.Claim):
    """ident: section/ID. target: a file of ours beside theirs. others: the MTU that their files without ours bring."""

    mode: int = 0o600
    reload: Optional[Command] = GENERATE
    others: Optional[int] = None
    stack: ClassVar[str] = "netplan"
    keeps_backup: ClassVar[bool] = False
    gathers: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        mtus = {"%s/%s" % key: value for key, value in parse(text).items() if value is not None}
        mtus.pop(self.ident, None)
        if self.others != mtu:
            mtus[self.ident] = mtu
        return render(_COMMENT, {ident: ["mtu: %d" % value] for ident, value in mtus.items()}) if mtus else None

    def overridden(self, mtu: int) -> bool:
        return self.mtu not in (None, mtu) and claim.later(self.source, self.target)

    def table_file(self, rail: int) -> str:
        return _TABLE_FILE % rail

    def with_table(self, table: Table) -> str:
        """Lists, which netplan adds to those of other files for the same ID."""
        lines = ["routing-policy:"]
        for source in table.sources:
            lines += ["  - from: %s" % source, "    table: %d" % table.number, "    priority: %d" % table.number]
        lines.append("routes:")
        for route in table.routes:
            if route.gateway:
                lines += ["  - to: 0.0.0.0/0", "    via: %s" % route.gateway]
            else:
                lines += ["  - to: %s" % route.destination, "    scope: link", "    from: %s" % route.source]
            lines.append("    table: %d" % table.number)
        return render(TABLE_COMMENT, {self.ident: lines})


def table_files(host: Host) -> List[str]:
    """Paths of our files with rails' tables, whatever rail they are for. Raises ReadError."""
    start = _TABLE_FILE.partition("%")[0]
    paths = ["%s/%s" % (FOLDER, name) for name in host.listdir_system(FOLDER)]
    return [path for path in paths if path.startswith(start)]


class Reader:
    """The YAML files, read when they are first asked for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: Optional[List[Tuple[str, Dict[Tuple[str, str], Optional[int]]]]] = None
        self.problem = ""

    def claim(self, path: str, ident: str, doubts: List[str]) -> Netplan:
        """path: file that netplan has made of ``ident``. Raises ReadError."""
        if self.files is None:
            self.files = self._read()
        if self.problem:
            doubts.append(self.problem)
        section, mtu, others, source = "", None, None, ""
        for one, found in self.files:
            for (kind, name), value in found.items():
                if name != ident:
                    continue
                if not one.rpartition("/")[2].startswith(_OWN):
                    section = kind
                    others = value if value is not None else others
                if value is not None:
                    mtu, source = value, one
        if not section:
            why = "no file in %s defines %s, though %s is there" % (FOLDER, ident, path)
            return Netplan(path, FILE, refused=(why, "run netplan generate and look at netplan get"))
        before = self.host.read_system(FILE)
        return Netplan(path, FILE, mtu, source, "%s/%s" % (section, ident), before, others=others)

    def _read(self) -> List[Tuple[str, Dict[Tuple[str, str], Optional[int]]]]:
        found = []
        for _name, path in systemd_files.by_name(self.host, FOLDERS, ".yaml"):
            try:
                found.append((path, parse(self.host.read_system(path) or "")))
            except ParseError as error:
                self.problem = "%s: %s" % (path, error)
        return found


# -- the files -------------------------------------------------------------------------------------------------------

_MTU = re.compile(r"[0-9]{1,5}")
_KEY = re.compile(r"""(?:"([^"\\]+)"|'([^']+)'|([A-Za-z0-9_][^\s:#{}\[\]"',&*!|>%@`]*)) *:(?:\s+(.*))?$""")


def parse(text: str) -> Dict[Tuple[str, str], Optional[int]]:
    """(section, ID) -> MTU, None where the file names none. Reads a small part of YAML; ParseError at anything else."""
    found: Dict[Tuple[str, str], Optional[int]] = {}
    path: List[Tuple[int, str]] = []  # indent and key of the mappings around the line
    levels: List[int] = []  # indent of each depth
    skip = -1  # lines that are indented more than this belong to a value that is not read
    open_brackets = 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = _uncommented(raw, number)
        if open_brackets:
            open_brackets += _brackets(line)
            continue
        if not line.strip() or (line == "---" and not path):
            continue
        indent = len(line) - len(line.lstrip(" "))
        content = line.strip()
        if skip >= 0 and (indent > skip or (indent == skip and (content + " ").startswith("- "))):
            continue
        skip = -1
        while path and indent <= path[-1][0]:
            path.pop()
        key, value = _key(content, number)
        keys = [name for _indent, name in path] + [key]
        if levels[len(path) : len(path) + 1] not in ([], [indent]) or (indent and not path):
            raise ParseError("line %d: its indent fits nothing above it" % number)
        levels[len(path) :] = [indent]
        if len(keys) == 1 and key != "network":
            raise ParseError("line %d: %r is not understood here, expected network:" % (number, content[:60]))
        if len(keys) == 3 and tuple(keys[1:]) in found:
            raise ParseError("line %d: %s is there twice" % (number, key))
        if len(keys) == 3 and keys[1] in SECTIONS:
            found[keys[1], key] = None
        if len(keys) == 4 and key == "mtu" and keys[1] in SECTIONS:
            found[keys[1], keys[2]] = _number(value, number)
        elif not value and len(keys) < 4 and (len(keys) < 2 or keys[1] in SECTIONS):
            path.append((indent, key))
        else:
            _check_opaque(value, len(keys), number)
            open_brackets = _brackets(value)
            skip = indent
    return found


def _uncommented(line: str, number: int) -> str:
    if "\t" in line:
        raise ParseError("line %d: has a tab in it" % number)
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (at == 0 or line[at - 1] in " [{,:-"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] == " "):
            line = line[:at]
            break
    if quote:
        raise ParseError("line %d: a quoted text does not end there" % number)
    return line.rstrip()


def _key(content: str, number: int) -> Tuple[str, str]:
    match = _KEY.match(content)
    if match is None:
        raise ParseError("line %d: %r is not understood, expected KEY: VALUE" % (number, content[:60]))
    return match.group(1) or match.group(2) or match.group(3), (match.group(4) or "").strip()


def _check_opaque(value: str, depth: int, number: int) -> None:
    """A value that is passed over must not be able to hold an MTU of the interface."""
    flow = depth == 3 and value[:1] == "{" and not re.search(r"mtu|\\|[&*!]|<<", value)
    if value[:1] in ("&", "*", "!") or (depth < 4 and value[:1] in ("|", ">", "[", "{") and value != "{}" and not flow):
        raise ParseError("line %d: %r is not understood; write it as a block" % (number, value[:60]))
    if depth < 4 and _brackets(value):
        raise ParseError("line %d: a {...} over several lines is not understood; write it as a block" % number)


def _brackets(text: str) -> int:
    plain = re.sub(r"\"[^\"]*\"|'[^']*'", "", text)
    return sum(plain.count(char) for char in "[{") - sum(plain.count(char) for char in "]}")


def _number(value: str, number: int) -> int:
    if _MTU.fullmatch(value) is None:
        raise ParseError("line %d: mtu %r is not a number" % (number, value[:40]))
    return int(value)


def render(comment: str, definitions: Mapping[str, Sequence[str]]) -> str:
    """definitions: ``section/ID`` -> lines. netplan adds them to what other files say of the same ID."""
    lines = ["# %s" % comment, "network:", "  version: 2"]
    for section in SECTIONS:
        names = sorted(ident.partition("/")[2] for ident in definitions if ident.startswith(section + "/"))
        if names:
            lines.append("  %s:" % section)
        for name in names:
            # YAML takes what JSON quotes.
            lines.append("    %s:" % json.dumps(name))
            lines += ["      " + line for line in definitions["%s/%s" % (section, name)]]
    return written.seal(FILE, "\n".join(lines) + "\n")
