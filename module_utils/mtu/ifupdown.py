# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ifupdown: stanzas of /etc/network/interfaces and of the files that it sources.

Sources: interfaces(5) and ifup 0.8.41.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..core import effective_unit
from ..core.host import Host, ParseError
from . import claim
from .claim import Claims, Doubts, mtu_of, parse_ifupdown
from .device import Device

FILE = "/etc/network/interfaces"
UNIT = "networking.service"
_STANZAS = (
    *("iface", "mapping", "auto", "source", "source-directory"),
    *("rename", "no-auto-down", "no-scripts", "template"),
)
# Methods with the option "mtu"; ifup silently ignores it in others.
_MTU_METHODS = ("static", "manual")
# Options by which a bond, a bridge or a VLAN sets other interfaces up.
_MEMBERS = ("bond-slaves", "bond_slaves", "bridge-ports", "bridge_ports", "vlan-raw-device", "vlan_raw_device")
_HOOKS = ("pre-up", "up", "post-up")


@dataclass(frozen=True)
class Ifupdown(claim.Claim):
    """target: the file that has the interface's stanza, or the one that sets its MTU. ident: the interface."""

    stack: ClassVar[str] = "ifupdown"
    secret: ClassVar[bool] = True
    # It would read the copy, too: many source a whole folder.
    keeps_backup: ClassVar[bool] = False

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return set_mtu(text, self.ident, mtu)


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of interfaces with a stanza. Raises ReadError and ParseError."""
    if not host.has("ifup"):
        return
    files: Dict[str, str] = {}
    mapping = _gather(host, FILE, files)
    stanzas = [(path, one) for path, text in files.items() for one in parse(text)[0]]
    idle = effective_unit.idle(host, UNIT)
    patterns = [pattern for text in files.values() for pattern in started(text, not idle)]
    for name in devices:
        mine = [(path, one) for path, one in stanzas if one.name == name]
        if not mine:
            continue
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            path, fix = mine[0][0], "systemctl unmask %s && systemctl enable %s" % (UNIT, UNIT)
            why = "%s, so that %s has no effect at boot" % (idle or "no line auto or allow-hotplug names " + name, path)
            refused = (why, fix if idle else "write auto %s into %s" % (name, path))
            claims[name].append(Ifupdown(path, "", refused=refused, unmanaged=True))
            continue
        if mapping:
            doubts[name].append("%s has a mapping, which decides at run time" % FILE)
        mtus = [(mtu_of(value, path, doubts[name]), path) for path, one in mine for value in one.mtus]
        sources = sorted({path for _mtu, path in mtus})
        refused = ("several files set its MTU (%s)" % ", ".join(sources), "keep one") if len(sources) > 1 else ("", "")
        path = mtus[0][1] if mtus else mine[0][0]
        mtu = min((number for number, _path in mtus if number is not None), default=None)
        mode = host.mode_system(path) or 0o644
        given = parse_ifupdown([(one.method, one.pairs) for _path, one in mine if one.family == "inet"], name)
        claims[name].append(Ifupdown(path, path, mtu, path, name, files[path], mode, refused, addressing=given))


def _gather(host: Host, path: str, files: Dict[str, str]) -> bool:
    """Add ``path`` and all files that it sources to ``files``. Return whether any of them has a mapping.

    Raises ReadError and ParseError.
    """
    text = host.read_system(path)
    if text is None or path in files:
        return False
    files[path] = text
    _ifaces, sources, mapping = parse(text)
    for kind, pattern in sources:
        pattern = pattern if pattern.startswith("/") else "%s/%s" % (path.rpartition("/")[0], pattern)
        folder, last = (pattern.rstrip("/"), "*") if kind == "source-directory" else pattern.rpartition("/")[::2]
        if re.search(r"[$~`{}\\]|[*?\[]", folder) or re.search(r"[$~`{}\\]", last):
            raise ParseError("%s: %s %s is not understood" % (path, kind, pattern))
        for name in host.listdir_system(folder):
            plain = kind == "source" or re.fullmatch(r"[A-Za-z0-9_-]+", name)
            if plain and fnmatchcase(name, last) and (last[:1] == "." or not name.startswith(".")):
                mapping = _gather(host, "%s/%s" % (folder, name), files) or mapping
    return mapping


class Iface(NamedTuple):
    """An iface stanza. line: last line of its heading. options: (name, value, first line, last line); lines from 0."""

    name: str
    family: str
    method: str
    line: int
    options: Tuple[Tuple[str, str, int, int], ...]

    @property
    def pairs(self) -> List[Tuple[str, str]]:
        return [(name, value) for name, value, _first, _last in self.options]

    @property
    def mtus(self) -> List[str]:
        """Return every MTU that it sets, as it is written."""
        found = (self.mtu_place(name, value) for name, value in self.pairs)
        return [words[at] for words, at in found if at]

    def mtu_place(self, name: str, value: str) -> Tuple[List[str], int]:
        """Return an option's words, and which of them is an MTU; 0 for none."""
        words = [name, *value.split()]
        if name == "mtu" and self.method in _MTU_METHODS:
            return [name, value], 1
        return words, words.index("mtu") + 1 if name in _HOOKS and "mtu" in words[:-1] else 0


def parse(text: str) -> Tuple[List[Iface], List[Tuple[str, str]], bool]:
    """The iface stanzas, each (source or source-directory, pattern), and whether the text has a mapping."""
    ifaces: List[Iface] = []
    sources: List[Tuple[str, str]] = []
    mapping, inside = False, False
    for words, first, last in _logical(text):
        if words[0] in _STANZAS or words[0].startswith("allow-"):
            inside = words[0] == "iface" and len(words) >= 2
            mapping = mapping or words[0] == "mapping"
            if words[0] in ("source", "source-directory"):
                sources += [(words[0], pattern) for pattern in words[1:]]
            elif inside:
                family, method = (words[2:4] + ["", ""])[:2]
                ifaces.append(Iface(words[1], family, method, last, ()))
        elif inside:
            one = ifaces[-1]
            option = (words[0], " ".join(words[1:]), first, last)
            ifaces[-1] = Iface(one.name, one.family, one.method, one.line, (*one.options, option))
    return ifaces, sources, mapping


def started(text: str, by_unit: bool) -> List[str]:
    """Return patterns of interfaces that a boot sets up.   by_unit: UNIT does its part, and not only udev."""
    heads = ("allow-", *_MEMBERS, *(["auto"] if by_unit else []))
    lines = [words for words, _first, _last in _logical(text) if words[0].startswith(heads)]
    return [word.partition("=")[0].lstrip("/") for words in lines for word in words[1:]]


def _logical(text: str) -> Iterable[Tuple[List[str], int, int]]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        first, line = at, lines[at]
        at += 1
        if line.lstrip().startswith("#"):
            continue
        while line.endswith("\\") and at < len(lines):
            line = line[:-1] + lines[at]
            at += 1
        words = line.split()
        if words:
            yield words, first, at - 1


def set_mtu(text: str, name: str, mtu: int) -> str:
    """The text with this MTU wherever a stanza of the interface has an MTU, else in its first. Other lines stay."""
    mine = [one for one in parse(text)[0] if one.name == name]
    lines = text.split("\n")
    if not mine:
        return text
    if any(one.mtus for one in mine):
        # From the end, so that line numbers hold.
        for one in reversed(mine):
            for option, value, first, last in reversed(one.options):
                words, at = one.mtu_place(option, value)
                if at and words[at] != str(mtu):
                    words[at] = str(mtu)
                    lines[first : last + 1] = [_indent(lines[first]) + " ".join(words)]
        return "\n".join(lines)
    fitting = [one for one in mine if one.method in _MTU_METHODS and one.family == "inet"]
    one = (fitting or mine)[0]
    new = "mtu %d" % mtu if fitting else "pre-up ip link set dev %s mtu %d" % (name, mtu)
    indent = _indent(lines[one.options[-1][2]]) if one.options else "    "
    at = max([one.line] + [last for _name, _value, _first, last in one.options]) + 1
    # A last line that goes on would take ours with it.
    lines[at:at] = ([""] if lines[at - 1].endswith("\\") else []) + [indent + new]
    return "\n".join(lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
