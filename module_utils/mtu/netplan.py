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
from . import addressing, claim, yaml_text
from .addressing import Addressing
from .claim import TABLE_COMMENT, Table
from .yaml_text import Node

FOLDERS = ("/run/netplan", "/etc/netplan", "/lib/netplan")
# Prefix of our files, of all roles: they define no interface.
_OWN = "90-busbar-"
# Folder of our files.
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
    apply_again: ClassVar[str] = "netplan apply"
    keeps_backup: ClassVar[bool] = False
    gathers: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        found = {"%s/%s" % key: mtu_of(value) for key, value in parse(text).items()}
        mtus = {ident: value for ident, value in found.items() if value is not None}
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


Definition = Dict[str, Node]


class Reader:
    """The YAML files, read when they are first needed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: Optional[List[Tuple[str, Dict[Tuple[str, str], Definition]]]] = None
        self.problem = ""

    def claim(self, path: str, ident: str, name: str, doubts: List[str]) -> Netplan:
        """Make the claim on an interface.   path: file that netplan has made of ``ident``. Raises ReadError."""
        if self.files is None:
            self.files = self._read()
        if self.problem:
            doubts.append(self.problem)
        section, others, mtu, source = "", None, None, ""
        merged: Node = {}
        for file, found in self.files:
            for kind, definition in ((key[0], one) for key, one in found.items() if key[1] == ident):
                value = mtu_of(definition)
                if not file.rpartition("/")[2].startswith(_OWN):
                    section = kind
                    others = value if value is not None else others
                    merged = yaml_text.merge(merged, definition)
                if value is not None:
                    mtu, source = value, file
        if not section:
            why = "no file in %s defines %s, though %s is there" % (FOLDER, ident, path)
            return Netplan(path, FILE, refused=(why, "run netplan generate and look at netplan get"))
        before = self.host.read_system(FILE)
        found_addressing = addressing_of(merged, name)
        return Netplan(
            path, FILE, mtu, source, "%s/%s" % (section, ident), before, others=others, addressing=found_addressing
        )

    def waiting(self, name: str, first: str) -> str:
        """Say which file will set an interface up at the next boot, before the .network file ``first``; "" for none."""
        if first < "10-netplan-%s.network" % name or not self.host.has("netplan"):
            return ""
        self.files = self._read() if self.files is None else self.files
        for path, found in self.files:
            names = [one.get("set-name", "" if "match" in one else key[1]) for key, one in found.items()]
            if name in names and not path.rpartition("/")[2].startswith(_OWN):
                return "%s defines it, too: netplan takes it over at the next boot" % path
        return ""

    def _read(self) -> List[Tuple[str, Dict[Tuple[str, str], Definition]]]:
        found = []
        for _name, path in systemd_files.by_name(self.host, FOLDERS, ".yaml"):
            try:
                found.append((path, parse(self.host.read_system(path) or "")))
            except ParseError as error:
                self.problem = "%s: %s" % (path, error)
        return found


# -- the files -------------------------------------------------------------------------------------------------------

_MTU = re.compile(r"\+?0*[0-9]{1,5}")
_TRUE = ("true", "on", "yes", "y")


def parse(text: str) -> Dict[Tuple[str, str], Definition]:
    """Return (section, ID) -> what the file says of it. Raises ParseError where netplan would refuse the file."""
    document = yaml_text.parse(text)
    if document == "":
        return {}
    if not isinstance(document, dict) or set(document) != {"network"}:
        raise ParseError("line 1: %r is not understood, expected network:" % text[:60])
    network = document["network"] or {}
    found: Dict[Tuple[str, str], Definition] = {}
    for section in SECTIONS:
        definitions = (network.get(section) if isinstance(network, dict) else None) or {}
        for ident, definition in definitions.items() if isinstance(definitions, dict) else [(section, definitions)]:
            if not isinstance(definition, dict):
                raise ParseError("line 1: %s: %s is not a mapping" % (section, ident))
            mtu_of(definition)
            found[section, ident] = definition
    if not isinstance(network, dict):
        raise ParseError("line 1: network is not a mapping")
    return found


def mtu_of(definition: Definition) -> Optional[int]:
    """Return the MTU that a definition gives. Raises ParseError for one that netplan would refuse."""
    value = definition.get("mtu", "")
    if value == "":
        return None
    if not isinstance(value, str) or _MTU.fullmatch(value) is None:
        raise ParseError("line 1: mtu %.40r is not a number" % (value,))
    return int(value)


def addressing_of(definition: Node, name: str) -> Addressing:
    """Read the addresses, rules and routes of one ID."""
    values = definition if isinstance(definition, dict) else {}
    found = [values.get(key) for key in ("addresses", "routes", "routing-policy")]
    addresses, routes, rules = (one if isinstance(one, list) else [] for one in found)
    listed = [next(iter(one), "") if isinstance(one, dict) else str(one) for one in addresses]
    ways = [[str(one.get("to", "default")), *_words(one, "to")] for one in routes if isinstance(one, dict)]
    policies = [_words(one) for one in rules if isinstance(one, dict)]
    return addressing.make(listed, str(values.get("dhcp4", "")).lower() in _TRUE, policies, ways, name)


def _words(values: Definition, but: str = "") -> List[str]:
    return [word for key, value in values.items() if key != but for word in (key, str(value))]


def render(comment: str, definitions: Mapping[str, Sequence[str]]) -> str:
    """Return a file's text. definitions: ``section/ID`` -> lines, which netplan adds to other files' of the same ID."""
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
