# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""netplan: YAML files that are merged by ID, of which it makes files for networkd or NetworkManager at boot.

Sources: netplan(5), netplan-generate(8) of 0.106.
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
from . import claim, yaml_text
from .claim import TABLE_COMMENT, Addressing, Table
from .yaml_text import Node

FOLDERS = ("/run/netplan", "/etc/netplan", "/lib/netplan")
# Folder of our files.
FOLDER = FOLDERS[1]
# Prefix of our files, of all roles: they define no interface.
_OWN = "90-busbar-"
FILE = FOLDER + "/90-busbar-mtu.yaml"
_TABLE_FILE = FOLDER + "/90-busbar-multirail-%d.yaml"
_COMMENT = "Written by Busbar (role mtu). What else belongs to these interfaces is in the other files here."
GENERATE = Command(("netplan", "generate"), "what netplan makes of it, for the next boot")
SECTIONS = ("ethernets", "bonds", "vlans", "bridges")
_MTU = re.compile(r"\+?0*[0-9]{1,5}")
Definition = Dict[str, Node]
# (section, ID) -> what a file says of it.
Definitions = Dict[Tuple[str, str], Definition]


@dataclass(frozen=True)
class Netplan(claim.Claim):
    """ident: section/ID. target: a file of ours beside theirs. others: the MTU that their files without ours bring."""

    mode: int = 0o600
    reload: Optional[Command] = GENERATE
    others: Optional[int] = None
    stack: ClassVar[str] = "netplan"
    apply_again: ClassVar[str] = "netplan apply"
    keeps_backup: ClassVar[bool] = False
    gathers: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        mtus = {"%s/%s" % key: mtu_of(value) for key, value in parse(text).items()}
        mtus[self.ident] = None if self.others == mtu else mtu
        lines = {ident: ["mtu: %d" % value] for ident, value in mtus.items() if value is not None}
        return render(_COMMENT, lines) if lines else None

    def table_file(self, rail: int) -> str:
        return _TABLE_FILE % rail

    def with_table(self, table: Table) -> str:
        """Lists, which netplan adds to those of other files for the same ID."""
        lines = ["routing-policy:"]
        for source in table.sources:
            lines += ["  - from: %s" % source, "    table: %d" % table.number, "    priority: %d" % table.number]
        lines.append("routes:")
        for route in table.routes:
            way = ["via: %s" % route.gateway] if route.gateway else ["scope: link", "from: %s" % route.source]
            lines.append("  - to: %s" % ("0.0.0.0/0" if route.gateway else route.destination))
            lines += ["    " + line for line in (*way, "table: %d" % table.number)]
        return render(TABLE_COMMENT, {self.ident: lines})


def table_files(host: Host) -> List[str]:
    """Paths of our files with rails' tables, whatever rail they are for. Raises ReadError."""
    paths = ["%s/%s" % (FOLDER, name) for name in host.listdir_system(FOLDER)]
    return [path for path in paths if path.startswith(_TABLE_FILE.partition("%")[0])]


class Reader:
    """The YAML files, read when they are first needed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: Optional[List[Tuple[str, Definitions]]] = None
        self.problem = ""

    def claim(self, path: str, ident: str, name: str, doubts: List[str]) -> Netplan:
        """Make the claim on an interface.   path: file that netplan has made of ``ident``. Raises ReadError."""
        section, others, mtu, source = "", None, None, ""
        merged: Node = {}
        for file, found in self._read():
            for kind, definition in ((key[0], one) for key, one in found.items() if key[1] == ident):
                value = mtu_of(definition)
                if not _is_own(file):
                    section = kind
                    others = others if value is None else value
                    merged = yaml_text.merge(merged, definition)
                if value is not None:
                    mtu, source = value, file
        if self.problem:
            doubts.append(self.problem)
        if not section:
            why = "no file in %s defines %s, though %s is there" % (FOLDER, ident, path)
            return Netplan(path, FILE, refused=(why, "run netplan generate and look at netplan get"))
        before, given = self.host.read_system(FILE), addressing_of(merged, name)
        return Netplan(path, FILE, mtu, source, "%s/%s" % (section, ident), before, others=others, addressing=given)

    def waiting(self, name: str, first: str) -> str:
        """Return which file will set an interface up at the next boot, before the .network file ``first``, or may."""
        if first < "10-netplan-%s.network" % name or not self.host.has("netplan"):
            return ""
        for path, found in self._read():
            names = [one.get("set-name", "" if "match" in one else key[1]) for key, one in found.items()]
            if name in names and not _is_own(path):
                return "%s defines it, too: netplan takes it over at the next boot" % path
        # A file that is not understood may define it.
        return self.problem

    def _read(self) -> List[Tuple[str, Definitions]]:
        if self.files is None:
            found = []
            for _name, path in systemd_files.by_name(self.host, FOLDERS, ".yaml"):
                try:
                    found.append((path, parse(self.host.read_system(path) or "")))
                except ParseError as error:
                    self.problem = "%s: %s" % (path, error)
            self.files = found
        return self.files


def _is_own(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_OWN)


def parse(text: str) -> Definitions:
    """Return the definitions of a file. Raises ParseError where netplan would refuse the file."""
    document = yaml_text.parse(text)
    if document == "":
        return {}
    if not isinstance(document, dict) or set(document) != {"network"}:
        raise ParseError("line 1: %r is not understood, expected network:" % text[:60])
    network = _mapping(document["network"], "network")
    found: Definitions = {}
    for section in SECTIONS:
        for ident, value in _mapping(network.get(section), section).items():
            if not isinstance(value, dict):
                raise ParseError("line 1: %s: %s is not a mapping" % (section, ident))
            mtu_of(value)
            found[section, ident] = value
    return found


def _mapping(value: Optional[Node], name: str) -> Definition:
    if value and not isinstance(value, dict):
        raise ParseError("line 1: %s is not a mapping" % name)
    return value if isinstance(value, dict) else {}


def mtu_of(definition: Definition) -> Optional[int]:
    """Return the MTU that a definition gives. Raises ParseError for one that netplan would refuse."""
    value = definition.get("mtu", "")
    if not isinstance(value, str) or (value and _MTU.fullmatch(value) is None):
        raise ParseError("line 1: mtu %.40r is not a number" % (value,))
    return int(value) if value else None


def addressing_of(definition: Node, name: str) -> Addressing:
    """Read the addresses, rules and routes of one ID."""
    values = definition if isinstance(definition, dict) else {}
    found = [values.get(key) for key in ("addresses", "routes", "routing-policy")]
    addresses, routes, rules = (one if isinstance(one, list) else [] for one in found)
    listed = [next(iter(one), "") if isinstance(one, dict) else str(one) for one in addresses]
    ways = [[str(one.get("to", "default")), *_words(one, "to")] for one in routes if isinstance(one, dict)]
    policies = [_words(one) for one in rules if isinstance(one, dict)]
    dynamic = str(values.get("dhcp4", "")).lower() in ("true", "on", "yes", "y")
    return Addressing.make(name, listed, dynamic, policies, ways)


def _words(values: Definition, but: str = "") -> List[str]:
    return [word for key, value in values.items() if key != but for word in (key, str(value))]


def render(comment: str, definitions: Mapping[str, Sequence[str]]) -> str:
    """Return a file's text. definitions: ``section/ID`` -> lines, which netplan adds to other files' of the same ID."""
    lines = ["# %s" % comment, "network:", "  version: 2"]
    for section in SECTIONS:
        names = sorted(ident.partition("/")[2] for ident in definitions if ident.startswith(section + "/"))
        lines += ["  %s:" % section] if names else []
        for name in names:
            # YAML takes what JSON quotes.
            lines.append("    %s:" % json.dumps(name))
            lines += ["      " + line for line in definitions["%s/%s" % (section, name)]]
    return written.seal(FILE, "\n".join(lines) + "\n")
