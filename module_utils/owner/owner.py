# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who sets an interface up at boot, by each program's own rules, and how an MTU is put into its file.

netplan, NetworkManager, systemd-networkd, ifupdown or ifcfg. Where the owner is not clear, an Owner says why.
Sources: netplan(5) and netplan generate 0.106; nm-settings-keyfile(5); systemd.network(5), systemd.link(5) of 252;
interfaces(5) and ifup 0.8.41; host.md 2.4, 3.3.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.host import Host, ParseError, Problem, ReadError
from ..machine.netdev import Netdev

NETPLAN_FOLDERS = ("/run/netplan", "/etc/netplan", "/lib/netplan")
NETPLAN_FILE = "/etc/netplan/90-busbar-mtu.yaml"
# Our files there, of all roles: they define no interface.
_OWN_NETPLAN = "90-busbar-"
NETPLAN_SECTIONS = ("ethernets", "bonds", "vlans", "bridges")
NETWORKD_FOLDERS = tuple(
    folder + "/systemd/network" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)
DROPIN = "90-busbar-mtu.conf"
KEYFILE_FOLDERS = tuple(folder + "/NetworkManager/system-connections" for folder in ("/etc", "/run", "/usr/lib"))
INTERFACES = "/etc/network/interfaces"
IFCFG_FOLDERS = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
LINKS = ("ip", "-j", "link", "show")
_MTU = re.compile(r"[0-9]{1,5}")
_BACKUPS = (".bak", ".old", ".orig", ".rpmnew", ".rpmorig", ".rpmsave", "~")


@dataclass(frozen=True)
class Device:
    """kind: DEVTYPE of the kernel, "" for a NIC. permanent: its own MAC address, None where it has another one now.

    path: udev's ID_PATH, "" where it has none. altnames: None where they are not known. lower, upper: interfaces below
    and above it, one step.
    """

    name: str
    mtu: Optional[int]
    kind: str = ""
    mac: Optional[str] = None
    permanent: Optional[str] = None
    driver: str = ""
    path: str = ""
    ether: bool = True
    index: str = ""
    altnames: Optional[Tuple[str, ...]] = ()
    master: Optional[str] = None
    lower: Tuple[str, ...] = ()
    upper: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What sets an interface up at boot. path: its file. target: the file that an MTU has to be written to.

    mtu: what it brings, None where it says nothing; source: the file that says so. ident: section of the target, or
    section and ID in netplan. before, mode: of the target. others: the MTU in netplan's files without ours.
    refused: why the MTU cannot be written there, and what to do.
    """

    stack: str
    path: str
    target: str
    mtu: Optional[int] = None
    source: str = ""
    ident: str = ""
    before: Optional[str] = None
    mode: int = 0o644
    others: Optional[int] = None
    refused: Tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Owner:
    """claims: of those that set it up. doubt: what could not be read or understood of them, "" for nothing."""

    claims: Tuple[Claim, ...] = ()
    doubt: str = ""

    @property
    def unclear(self) -> str:
        """Why nobody knows what will count; "" where it is clear."""
        if self.doubt or len(self.claims) < 2:
            return self.doubt
        said = " and ".join("%s (%s)" % (claim.path, claim.stack) for claim in self.claims)
        return "%s %s set it up" % (said, "both" if len(self.claims) == 2 else "all")


# -- INI files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """first, last: its lines, from 0."""

    section: str
    key: str
    value: str
    first: int
    last: int


# The key of a section's heading, which no line of a file can have.
_HEADING = "\n"


def settings(text: str, continued: bool = True) -> List[Setting]:
    """In their order. continued: a backslash at the end joins lines, as for systemd and not in a keyfile."""
    return [one for one in _ini(text, continued) if one.key != _HEADING]


def _ini(text: str, continued: bool) -> List[Setting]:
    found: List[Setting] = []
    lines = text.split("\n")
    section, at = "", 0
    while at < len(lines):
        first, line = at, lines[at].strip()
        at += 1
        if not line or line[0] in "#;":
            continue
        while continued and line.endswith("\\") and at < len(lines):
            following = lines[at].strip()
            at += 1
            if following[:1] not in ("#", ";"):
                line = line[:-1] + " " + following
        key, equals, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            found.append(Setting(section, _HEADING, "", first, at - 1))
        elif equals:
            found.append(Setting(section, key.strip(), value.strip(), first, at - 1))
    return found


def set_setting(text: str, section: str, key: str, value: str, continued: bool = True) -> str:
    """The text with this value; all other lines stay. The last one of a key counts."""
    there = [setting for setting in _ini(text, continued) if setting.section == section]
    lines = text.split("\n")
    same = [setting for setting in there if setting.key == key]
    if same:
        last = same[-1]
        if last.value != value:
            lines[last.first : last.last + 1] = ["%s=%s" % (key, value)]
        return "\n".join(lines)
    headings = [setting.last for setting in there if setting.key == _HEADING]
    if headings:
        # At once: what ends the section may be a line that goes on.
        lines.insert(headings[-1] + 1, "%s=%s" % (key, value))
        return "\n".join(lines)
    text = text if not text or text.endswith("\n") else text + "\n"
    return "%s%s[%s]\n%s=%s\n" % (text, "\n" if text else "", section, key, value)


# -- netplan ---------------------------------------------------------------------------------------------------------

_KEY = re.compile(r"""(?:"([^"\\]+)"|'([^']+)'|([A-Za-z0-9_][^\s:#{}\[\]"',&*!|>%@`]*)) *:(?:\s+(.*))?$""")


def parse_netplan(text: str) -> Dict[Tuple[str, str], Optional[int]]:
    """(section, ID) -> MTU, None where the file names none. Reads a small part of YAML; ParseError at anything else."""
    found: Dict[Tuple[str, str], Optional[int]] = {}
    path: List[Tuple[int, str]] = []  # indent and key of the mappings that we are in
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
        if len(keys) == 3 and keys[1] in NETPLAN_SECTIONS:
            found[keys[1], key] = None
        if len(keys) == 4 and key == "mtu" and keys[1] in NETPLAN_SECTIONS:
            found[keys[1], keys[2]] = _number(value, number)
        elif not value and len(keys) < 4 and (len(keys) < 2 or keys[1] in NETPLAN_SECTIONS):
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


def render_netplan(comment: str, definitions: Mapping[str, Sequence[str]]) -> str:
    """definitions: ``section/ID`` -> lines. netplan adds them to what other files say of the same ID."""
    lines = ["# %s" % comment, "network:", "  version: 2"]
    for section in NETPLAN_SECTIONS:
        names = sorted(ident.partition("/")[2] for ident in definitions if ident.startswith(section + "/"))
        if names:
            lines.append("  %s:" % section)
        for name in names:
            # YAML takes what JSON quotes.
            lines.append("    %s:" % json.dumps(name))
            lines += ["      " + line for line in definitions["%s/%s" % (section, name)]]
    return "\n".join(lines) + "\n"


# -- systemd-networkd ------------------------------------------------------------------------------------------------


def parse_mtu(text: str) -> int:
    """``9000`` or ``9K``. Raises ParseError."""
    match = re.fullmatch(r"([0-9]{1,5})([Kk]?)", text)
    if match is None:
        raise ParseError("MTU %r is not a number" % text[:40])
    return int(match.group(1)) << (10 if match.group(2) else 0)


def matches(found: Iterable[Setting], device: Device) -> Optional[bool]:
    """Whether a [Match] section is satisfied; None where that hangs on something that is not known here."""
    wanted: Dict[str, List[str]] = {}
    for setting in found:
        if setting.section == "Match":
            words = wanted.setdefault(setting.key, [])
            if not setting.value:
                words.clear()
            words += setting.value.split()
    answers = [_match(key, words, device) for key, words in wanted.items() if words]
    if False in answers:
        return False
    return None if None in answers else True


def _match(key: str, words: Sequence[str], device: Device) -> Optional[bool]:
    if any(quote in word for word in words for quote in "\"'\\"):
        return None
    if key in ("Name", "OriginalName"):
        if any(_globs(words, name) for name in (device.name, *(device.altnames or ()))):
            return True
        # What the kernel called it, before udev renamed it, is not known.
        return None if key == "OriginalName" or device.altnames is None else False
    if key in ("MACAddress", "PermanentMACAddress"):
        mac = device.mac if key == "MACAddress" else device.permanent
        return None if mac is None else _hex(mac) in map(_hex, words)
    values = {"Path": device.path, "Driver": device.driver, "Kind": device.kind}
    values["Type"] = device.kind or ("ether" if device.ether else "infiniband")
    if key not in values or (key == "Driver" and not device.driver):
        return None
    return _globs(words, values[key])


def _globs(words: Sequence[str], text: str) -> bool:
    """As net_condition_test_strv of systemd does: an exclamation mark excludes."""
    if any(word[:1] == "!" and fnmatchcase(text, word[1:]) for word in words):
        return False
    positive = [word for word in words if word[:1] != "!"]
    return not positive or any(bool(text) and fnmatchcase(text, word) for word in positive)


def _hex(mac: str) -> str:
    return re.sub(r"[:.-]", "", mac).lower()


@dataclass(frozen=True)
class ConfigFile:
    """parts: the file itself and its drop-ins, path -> text, in the order in which they count."""

    name: str
    path: str
    parts: Tuple[Tuple[str, str], ...]

    @property
    def settings(self) -> List[Setting]:
        return [setting for _path, text in self.parts for setting in settings(text)]

    def last(self, section: str, key: str) -> Tuple[str, str]:
        """The value that counts and the file that it is in; "" where nothing sets it."""
        value, source = "", ""
        for path, text in self.parts:
            for setting in settings(text):
                if (setting.section, setting.key) == (section, key):
                    value, source = setting.value, path
        return value, source


def config_files(host: Host, folders: Sequence[str], suffix: str) -> List[ConfigFile]:
    """By name, whatever folder they are in; the first folder that has a name wins. An empty file masks. ReadError."""
    found = []
    for name, path in sorted(_first(host, folders, suffix).items()):
        text = host.read_system(path)
        if text:
            inner = ["%s/%s.d" % (folder, name) for folder in folders]
            dropins = sorted(_first(host, inner, ".conf").items())
            parts = [(path, text)] + [(one, host.read_system(one) or "") for _name, one in dropins]
            found.append(ConfigFile(name, path, tuple(parts)))
    return found


def _first(host: Host, folders: Sequence[str], suffix: str) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for folder in folders:
        for name in host.listdir_system(folder):
            if name.endswith(suffix) and not name.startswith("."):
                found.setdefault(name, "%s/%s" % (folder, name))
    return found


def first_match(files: Sequence[ConfigFile], device: Device) -> Tuple[Optional[ConfigFile], str]:
    """The file that counts for a device, and what makes it uncertain."""
    for one in files:
        answer = matches(one.settings, device)
        if answer is None:
            said = "whether %s matches %s is not known (its [Match] section" % (one.path, device.name)
            names = "; %s does not tell its other names" % " ".join(LINKS) if device.altnames is None else ""
            return None, "%s%s)" % (said, names)
        if answer:
            return one, ""
    return None, ""


# -- ifupdown --------------------------------------------------------------------------------------------------------

_STANZAS = (
    "iface",
    "mapping",
    "auto",
    "source",
    "source-directory",
    "rename",
    "no-auto-down",
    "no-scripts",
    "template",
)
# Where ifup knows the option "mtu"; it passes over it in the others without a word.
_MTU_METHODS = ("static", "manual")
_HOOKS = ("pre-up", "up", "post-up")


@dataclass(frozen=True)
class Iface:
    """One iface stanza. options: (name, value, first line, last line). line: its own last one."""

    name: str
    family: str
    method: str
    line: int
    options: Tuple[Tuple[str, str, int, int], ...]

    @property
    def mtus(self) -> List[str]:
        """Every MTU that it sets, as it is written."""
        found = []
        for name, value, _first, _last in self.options:
            words = value.split()
            if name == "mtu" and self.method in _MTU_METHODS:
                found.append(value)
            elif name in _HOOKS and "mtu" in words[:-1]:
                found.append(words[words.index("mtu") + 1])
        return found


def parse_interfaces(text: str) -> Tuple[List[Iface], List[Tuple[str, str]], bool]:
    """Stanzas, (source or source-directory, pattern), and whether a mapping is there."""
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


def set_iface_mtu(text: str, name: str, mtu: int) -> str:
    """Every MTU of the interface's stanzas; where none has one, the first stanza gets a line. Others stay."""
    mine = [one for one in parse_interfaces(text)[0] if one.name == name]
    lines = text.split("\n")
    if not mine:
        return text
    if any(one.mtus for one in mine):
        # From the end, so that line numbers hold.
        for one in reversed(mine):
            for option, value, first, last in reversed(one.options):
                words = value.split()
                if option == "mtu" and one.method in _MTU_METHODS and value != str(mtu):
                    lines[first : last + 1] = ["%smtu %d" % (_indent(lines[first]), mtu)]
                elif option in _HOOKS and "mtu" in words[:-1]:
                    at = words.index("mtu") + 1
                    if words[at] != str(mtu):
                        words[at] = str(mtu)
                        lines[first : last + 1] = ["%s%s %s" % (_indent(lines[first]), option, " ".join(words))]
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


# -- ifcfg -----------------------------------------------------------------------------------------------------------


def parse_ifcfg(text: str) -> Dict[str, str]:
    """Plain assignments, without their quotes; the last one counts."""
    found = {}
    for line in text.split("\n"):
        match = re.match(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$", line)
        if match:
            found[match.group(1)] = _unquoted(match.group(2))
    return found


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"'):
        return value[1:].partition(value[0])[0]
    return (value.split() or [""])[0]


def set_ifcfg(text: str, key: str, value: str) -> str:
    if parse_ifcfg(text).get(key) == value:
        return text
    lines = text.split("\n")
    there = [n for n, line in enumerate(lines) if re.match(r"\s*%s=" % re.escape(key), line)]
    if there:
        lines[there[-1]] = "%s=%s" % (key, value)
        return "\n".join(lines)
    return "%s%s%s=%s\n" % (text, "" if not text or text.endswith("\n") else "\n", key, value)


# -- what is there ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """permanent: hardware address that the device came with, "" where it has that one now."""

    altnames: Tuple[str, ...] = ()
    permanent: str = ""


def parse_links(text: str) -> Dict[str, Link]:
    """By interface, of what LINKS prints. Raises ParseError."""
    try:
        found: Any = json.loads(text)
        return {
            str(one["ifname"]): Link(tuple(map(str, one.get("altnames", ()))), str(one.get("permaddr", "")))
            for one in found
            if one
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("%r is not what ip -j link prints" % text[:80]) from error


def read_devices(host: Host, netdevs: Sequence[Netdev], problems: List[Problem]) -> Dict[str, Device]:
    """All but the loopback, with what the rules of networkd and NetworkManager ask for."""
    links: Optional[Mapping[str, Link]] = None
    with suppress(ReadError, ParseError):  # said where it makes a difference
        links = parse_links(host.run(LINKS).stdout)
    lower = {one.name: set(one.lower) for one in netdevs}
    for one in netdevs:
        if one.master in lower:
            lower[one.master].add(one.name)
    return {one.name: _device(host, one, links, lower, problems) for one in netdevs if one.arp_type in (1, 32)}


def _device(
    host: Host,
    one: Netdev,
    links: Optional[Mapping[str, Link]],
    lower: Mapping[str, Set[str]],
    problems: List[Problem],
) -> Device:
    values = {}
    for name in ("uevent", "addr_assign_type", "ifindex"):
        try:
            values[name] = host.read("%s/%s" % (one.source, name)) or ""
        except ReadError as error:
            problems.append(error.problem)
            values[name] = ""
    kinds = [line[8:] for line in values["uevent"].splitlines() if line.startswith("DEVTYPE=")]
    try:
        driver = host.realpath("%s/device/driver" % one.source) or ""
    except ReadError:
        driver = ""
    # 0: the address is the device's own. A bond gives its members another one.
    permanent = one.mac if values["addr_assign_type"] == "0" and one.master is None else None
    link = (links or {}).get(one.name)
    if link is not None and not kinds:
        permanent = link.permanent or one.mac
    return Device(
        name=one.name,
        mtu=one.mtu,
        kind=(kinds or ["bond" if one.is_bond else ""])[0],
        mac=one.mac,
        permanent=permanent,
        driver=driver.rpartition("/")[2],
        path="pci-%s" % one.pci if one.pci else "",
        ether=one.arp_type == 1,
        index=values["ifindex"],
        altnames=None if links is None else link.altnames if link else (),
        master=one.master,
        lower=tuple(sorted(lower[one.name])),
        upper=tuple(sorted(name for name, below in lower.items() if one.name in below)),
    )


def read_owners(host: Host, devices: Mapping[str, Device]) -> Dict[str, Owner]:
    """What sets each interface up at boot."""
    claims: Dict[str, List[Claim]] = {name: [] for name in devices}
    doubts: Dict[str, List[str]] = {name: [] for name in devices}
    links: List[ConfigFile] = []
    for step in (_networkd, _networkmanager, _ifupdown, _ifcfg):
        try:
            step(host, devices, claims, doubts)
        except (ReadError, ParseError) as error:
            for name in devices:
                doubts[name].append(str(error))
    try:
        links = config_files(host, NETWORKD_FOLDERS, ".link")
    except ReadError as error:
        for name in devices:
            doubts[name].append(str(error))
    owners = {}
    for name, device in devices.items():
        owner = Owner(_resolved(host, device, claims[name]), "; ".join(doubts[name]))
        owners[name] = _with_link(host, device, owner, links)
    return owners


def _with_link(host: Host, device: Device, owner: Owner, links: Sequence[ConfigFile]) -> Owner:
    """A .link file's MTU holds where the owner names none. Where nobody else sets the device up, it is the owner."""
    named = [one for one in links if one.last("Link", "MTUBytes")[0] and not one.path.startswith("/run/")]
    possible = [one for one in named if matches(one.settings, device) is not False]
    if not possible or owner.unclear or (owner.claims and owner.claims[0].mtu is not None):
        return owner
    one, doubt = first_match(links, device)
    if doubt:
        # An MTU that may come from there is one that is not known.
        return Owner(owner.claims, doubt)
    if one not in possible or one is None:
        return owner
    value, source = one.last("Link", "MTUBytes")
    doubts: List[str] = []
    mtu = _mtu(value, source, doubts)
    if doubts:
        return Owner(owner.claims, doubts[0])
    if not owner.claims:
        refused = ("", "")
        if not one.path.startswith("/etc/") or source != one.path:
            refused = ("its MTU is in %s" % source, "set MTUBytes in a .link file below /etc/systemd/network")
        before = host.read_system(one.path)
        mode = host.mode_system(one.path) or 0o644
        claim = Claim("link", one.path, one.path, mtu, source, "Link", before, mode, refused=refused)
        return Owner((claim,))
    return Owner((replace(owner.claims[0], mtu=mtu, source=source),))


Claims = Dict[str, List[Claim]]
Doubts = Dict[str, List[str]]


def _mtu(value: str, path: str, doubts: List[str]) -> Optional[int]:
    try:
        # 0 means automatic, as no value does.
        return (parse_mtu(value) or None) if value else None
    except ParseError as error:
        doubts.append("%s: %s" % (path, error))
        return None


def _started(host: Host, unit: str) -> bool:
    """Whether something wants the unit at boot."""
    for folder in ("/etc/systemd/system", "/run/systemd/generator", "/run/systemd/system", "/usr/lib/systemd/system"):
        for target in ("multi-user.target.wants", "network-online.target.wants", "sysinit.target.wants"):
            if unit in host.listdir_system("%s/%s" % (folder, target)):
                return True
    return False


def _networkd(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    if host.read_system("/run/systemd/netif/state") is None and not _started(host, "systemd-networkd.service"):
        return
    files = config_files(host, NETWORKD_FOLDERS, ".network")
    by_path = {one.path: one for one in files}
    netplan = _Netplan(host)
    for name, device in devices.items():
        one, doubt = first_match(files, device)
        if doubt:
            # What networkd itself took is as good, as long as it runs.
            state = host.read_system("/run/systemd/netif/links/%s" % device.index) if device.index else None
            one = by_path.get(parse_ifcfg(state or "").get("NETWORK_FILE", ""))
            if one is None:
                doubts[name].append(doubt)
                continue
        if one is None or one.last("Link", "Unmanaged")[0] in ("yes", "true", "1", "on"):
            continue
        match = re.fullmatch(r"/run/systemd/network/10-netplan-(.+)\.network", one.path)
        if match:
            claims[name].append(netplan.claim(one.path, match.group(1), doubts[name]))
            continue
        value, source = one.last("Link", "MTUBytes")
        target = "%s/%s.d/%s" % (NETWORKD_FOLDERS[0], one.name, DROPIN)
        before = host.read_system(target)
        mtu = _mtu(value, source, doubts[name])
        claims[name].append(Claim("networkd", one.path, target, mtu, source, "Link", before))


class _Netplan:
    """Its files, read when they are first asked for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: Optional[List[Tuple[str, Dict[Tuple[str, str], Optional[int]]]]] = None
        self.problem = ""

    def claim(self, path: str, ident: str, doubts: List[str]) -> Claim:
        """path: of what netplan has made of ``ident``. Raises ReadError."""
        if self.files is None:
            self.files = self._read()
        if self.problem:
            doubts.append(self.problem)
        section, mtu, others, source = "", None, None, ""
        for one, found in self.files:
            for (kind, name), value in found.items():
                if name != ident:
                    continue
                if not one.rpartition("/")[2].startswith(_OWN_NETPLAN):
                    section = kind
                    others = value if value is not None else others
                if value is not None:
                    mtu, source = value, one
        if not section:
            why = "no file in %s defines %s, though %s is there" % (NETPLAN_FOLDERS[1], ident, path)
            return Claim("netplan", path, NETPLAN_FILE, refused=(why, "run netplan generate and look at netplan get"))
        return Claim("netplan", path, NETPLAN_FILE, mtu, source, "%s/%s" % (section, ident), None, 0o600, others)

    def _read(self) -> List[Tuple[str, Dict[Tuple[str, str], Optional[int]]]]:
        found = []
        for _name, path in sorted(_first(self.host, NETPLAN_FOLDERS, ".yaml").items()):
            try:
                found.append((path, parse_netplan(self.host.read_system(path) or "")))
            except ParseError as error:
                self.problem = "%s: %s" % (path, error)
        return found


def _networkmanager(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    if not host.listdir_system("/run/NetworkManager") and not _started(host, "NetworkManager.service"):
        return
    netplan = _Netplan(host)
    profiles = []
    for _name, path in sorted(_first(host, KEYFILE_FOLDERS, ".nmconnection").items()):
        profiles.append((path, host.read_system(path) or ""))
    for name, device in devices.items():
        state = settings(host.read_system("/run/NetworkManager/devices/%s" % device.index) or "", continued=False)
        about = {setting.key: setting.value for setting in state if setting.section == "device"}
        if about.get("managed") == "false":
            continue
        uuid = about.get("connection-uuid", "")
        fitting: List[Tuple[int, str, str, str]] = []
        for path, text in profiles:
            there = {(s.section, s.key): s.value for s in settings(text, continued=False)}
            answer = profile_matches(there, device)
            if answer is None:
                doubts[name].append("whether the profile %s is for %s is not known" % (path, name))
            elif answer:
                number = there.get(("connection", "autoconnect-priority"), "0")
                priority = int(number) if re.fullmatch(r"-?[0-9]{1,4}", number) else 0
                fitting.append((priority, there.get(("connection", "uuid"), ""), path, text))
        best = [one for one in fitting if one[0] == max(each[0] for each in fitting)]
        # Of equal ones NetworkManager takes the one that it used last.
        best = [one for one in best if len(best) == 1 or one[1] == uuid] or best
        for _priority, _uuid, path, text in best:
            claims[name].append(_keyfile_claim(host, netplan, path, text, doubts[name]))
        if uuid and not fitting and not claims[name]:
            why = "NetworkManager uses a profile (%s) that is in no file of %s" % (uuid, KEYFILE_FOLDERS[0])
            fix = "save it: nmcli connection modify %s save yes" % uuid
            claims[name].append(Claim("NetworkManager", "connection %s" % uuid, "", refused=(why, fix)))


def profile_matches(there: Mapping[Tuple[str, str], str], device: Device) -> Optional[bool]:
    """Whether a keyfile's profile is for a device when it connects by itself; None where that is not known here."""
    kinds = {"802-3-ethernet": "", "ethernet": "", "infiniband": ""}
    kind = there.get(("connection", "type"), "")
    if kinds.get(kind, kind) != device.kind or (kind == "infiniband") == device.ether:
        return False
    if there.get(("connection", "autoconnect"), "true") in ("false", "no", "0"):
        return False
    answers: List[Optional[bool]] = []
    name = there.get(("connection", "interface-name"))
    if name:
        answers.append(name == device.name)
    for section in ("ethernet", "802-3-ethernet", "infiniband"):
        mac = there.get((section, "mac-address"))
        if mac:
            known = device.permanent or (device.mac if device.kind else None)
            answers.append(None if known is None else _hex(mac) == _hex(known))
    for (section, key), value in there.items():
        words = [word.strip() for word in value.replace(",", ";").split(";") if word.strip()]
        if section == "match" and key in ("interface-name", "path", "driver"):
            text = {"interface-name": device.name, "path": device.path, "driver": device.driver}[key]
            plain = all(word[0] not in "|&" for word in words)
            answers.append(_globs(words, text) if plain else None)
        elif section == "match":
            answers.append(None)
    if False in answers:
        return False
    return None if None in answers else True


def _keyfile_claim(host: Host, netplan: _Netplan, path: str, text: str, doubts: List[str]) -> Claim:
    match = re.fullmatch(r"/run/NetworkManager/system-connections/netplan-(.+)\.nmconnection", path)
    if match:
        return netplan.claim(path, match.group(1), doubts)
    found = settings(text, continued=False)
    sections = [s.section for s in found if s.section in ("ethernet", "802-3-ethernet", "infiniband")]
    is_ib = any((s.section, s.key, s.value) == ("connection", "type", "infiniband") for s in found)
    section = (sections or ["infiniband" if is_ib else "ethernet"])[0]
    values = [s.value for s in found if (s.section, s.key) == (section, "mtu")]
    mtu = _mtu(values[-1] if values else "", path, doubts)
    refused = ("", "")
    if not path.startswith("/etc/"):
        refused = ("%s is not the administrator's file" % path, "save it: nmcli connection modify NAME save yes")
    mode = host.mode_system(path) or 0o600
    return Claim("NetworkManager", path, path, mtu, path, section, text, mode, refused=refused)


def _ifupdown(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    if not host.has("ifup"):
        return
    files: Dict[str, str] = {}
    mapping = _gather(host, INTERFACES, files)
    for name in devices:
        values: List[Tuple[str, str]] = []
        mine = []
        for path, text in files.items():
            here = [one for one in parse_interfaces(text)[0] if one.name == name]
            mine += [path] if here else []
            values += [(value, path) for one in here for value in one.mtus]
        if not mine:
            continue
        if mapping:
            doubts[name].append("%s has a mapping, which decides at run time" % INTERFACES)
        path = (values[0][1] if values else "") or mine[0]
        numbers = [_mtu(value, one, doubts[name]) for value, one in values]
        refused = ("", "")
        if len({source for _value, source in values}) > 1:
            refused = ("several files set its MTU (%s)" % ", ".join(sorted({p for _v, p in values})), "keep one")
        mtu = min((number for number in numbers if number is not None), default=None)
        mode = host.mode_system(path) or 0o644
        claims[name].append(Claim("ifupdown", path, path, mtu, path, name, files[path], mode, refused=refused))


def _gather(host: Host, path: str, files: Dict[str, str]) -> bool:
    """The file and all that it sources, in order. Whether one has a mapping. Raises ReadError and ParseError."""
    text = host.read_system(path)
    if text is None or path in files:
        return False
    files[path] = text
    _ifaces, sources, mapping = parse_interfaces(text)
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


def _ifcfg(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    manager = bool(host.listdir_system("/run/NetworkManager")) or _started(host, "NetworkManager.service")
    for folder, used in zip(IFCFG_FOLDERS, (manager or host.has("ifup"), host.has("wicked"))):
        for name in host.listdir_system(folder) if used else ():
            if not name.startswith("ifcfg-") or name.endswith(_BACKUPS):
                continue
            path = "%s/%s" % (folder, name)
            text = host.read_system(path) or ""
            found = parse_ifcfg(text)
            mac, of = found.get("HWADDR", ""), found.get("DEVICE", "" if found.get("HWADDR") else name[6:])
            mode = host.mode_system(path) or 0o644
            for device in devices.values():
                if of and of != device.name:
                    continue
                if mac and device.permanent is None:
                    if not of and device.kind:
                        continue
                    doubts[device.name].append("whether %s is for %s is not known (HWADDR)" % (path, device.name))
                elif not mac or _hex(mac) == _hex(device.permanent or ""):
                    mtu = _mtu(found.get("MTU", ""), path, doubts[device.name])
                    claims[device.name].append(Claim("ifcfg", path, path, mtu, path, "", text, mode))


def _resolved(host: Host, device: Device, claims: Sequence[Claim]) -> Tuple[Claim, ...]:
    """Of several profiles of NetworkManager, keyfiles and ifcfg, the one that it uses."""
    if len(claims) > 1 and {claim.stack for claim in claims} <= {"NetworkManager", "ifcfg"}:
        state = settings(host.read_system("/run/NetworkManager/devices/%s" % device.index) or "", continued=False)
        uuids = [setting.value for setting in state if setting.key == "connection-uuid"]
        used = [claim for claim in claims if uuids and uuids[0] in (claim.before or "")]
        if len(used) == 1:
            return tuple(used)
    return tuple(claims)


def shared(claim: Claim, owners: Mapping[str, Owner], but: Collection[str]) -> Tuple[str, ...]:
    """Other interfaces, without those of ``but``, that the same file sets up. A stanza of ifupdown is for one only."""
    if claim.stack == "ifupdown":
        return ()
    return tuple(
        other
        for other, owner in owners.items()
        if other not in but and any(claim.path in (one.path, one.source) for one in owner.claims)
    )
