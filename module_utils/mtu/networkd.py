# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""systemd-networkd, whose .network files set interfaces up, and udev, whose .link files may bring them an MTU.

Sources: systemd.network(5), systemd.link(5), networkd's and udev's sources of 252.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..change import written
from ..core import ini, systemd_files
from ..core.host import Host
from ..core.ini import Setting
from . import claim, netplan
from .claim import TABLE_COMMENT, Claims, Doubts, Table, mtu_of, parse_networkd
from .device import LINKS, Device, every, globs, same_mac

FOLDERS = tuple(folder + "/systemd/network" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))
UNIT = "systemd-networkd.service"
# Values after which networkd leaves an interface alone at boot, or down.
_IDLE = {"Unmanaged": ini.TRUE, "ActivationPolicy": ("manual", "down", "always-down")}
# Our drop-ins of a .network file, in a folder with its name.
_DROPIN = FOLDERS[0] + "/%s.d/90-busbar-mtu.conf"
_TABLE_DROPIN = FOLDERS[0] + "/%s.d/90-busbar-multirail.conf"


@dataclass(frozen=True)
class Networkd(claim.Claim):
    """target: a drop-in of ours."""

    stack: ClassVar[str] = "networkd"
    apply_again: ClassVar[str] = "networkctl reload; networkctl reconfigure %(name)s"
    keeps_backup: ClassVar[bool] = False

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return written.seal(self.target, "# Written by Busbar (role mtu).\n[Link]\nMTUBytes=%d\n" % mtu)

    def table_file(self, rail: int) -> str:
        return _TABLE_DROPIN % self.path.rpartition("/")[2]

    def with_table(self, table: Table) -> str:
        number = "Table=%d" % table.number
        blocks = [
            ["[RoutingPolicyRule]", "From=%s" % source, number, "Priority=%d" % table.number]
            for source in table.sources
        ]
        for route in table.routes:
            way = ["Destination=%s" % route.destination, "Scope=link", "PreferredSource=%s" % route.source]
            blocks.append(["[Route]", *(["Gateway=%s" % route.gateway] if route.gateway else way), number])
        text = "\n\n".join("\n".join(lines) for lines in blocks)
        return written.seal(_TABLE_DROPIN, "# %s\n%s\n" % (TABLE_COMMENT, text))


@dataclass(frozen=True)
class Link(claim.Claim):
    """A .link file that sets an MTU for an interface that no program sets up."""

    stack: ClassVar[str] = "link"


class ConfigFile(NamedTuple):
    """A file of FOLDERS. parts: (path, text) of the file itself and of its drop-ins, the one that counts most last."""

    name: str
    path: str
    parts: Tuple[Tuple[str, str], ...]

    @property
    def settings(self) -> List[Setting]:
        return [setting for _path, text in self.parts for setting in ini.settings(text)]

    def last(self, key: str) -> Tuple[str, str]:
        """Return the value of section Link that counts and its file; "" if nothing sets it."""
        parts = [(path, one) for path, text in self.parts for one in ini.settings(text)]
        found = [(one.value, path) for path, one in parts if (one.section, one.key) == ("Link", key)]
        return found[-1] if found else ("", "")


def table_files(host: Host) -> List[str]:
    """Paths where our drop-ins with rails' tables may be: of every .network file with drop-ins. Raises ReadError."""
    folders = [name for name in host.listdir_system(FOLDERS[0]) if name.endswith(".network.d")]
    return [_TABLE_DROPIN % name[: -len(".d")] for name in folders]


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of networkd, including netplan's. Raises ReadError."""
    running = host.read_system("/run/systemd/netif/state") is not None
    if not running and not systemd_files.wanted_at_boot(host, UNIT):
        return
    files, generated = config_files(host, ".network"), netplan.Reader(host)
    for name, device in devices.items():
        one, doubt = first_match(files, device)
        if doubt:
            # While networkd runs, its state names the file that it took.
            state = host.read_system("/run/systemd/netif/links/%s" % device.index) if device.index else None
            taken = {setting.key: setting.value for setting in ini.settings(state or "")}
            one = next((file for file in files if file.path == taken.get("NETWORK_FILE")), None)
            doubts[name] += [doubt] if one is None else []
        if one is not None:
            claims[name].append(_claim(host, one, name, generated, doubts[name]))


def _claim(host: Host, one: ConfigFile, name: str, generated: netplan.Reader, doubts: List[str]) -> claim.Claim:
    idle = [(key, one.last(key)[1]) for key, values in _IDLE.items() if one.last(key)[0].lower() in values]
    if idle:
        refused = ("%s= stops networkd from setting it up (%s)" % idle[0], "take %s= out of %s" % idle[0])
        return Networkd(one.path, "", refused=refused, unmanaged=idle[0][0] == "Unmanaged")
    match = re.fullmatch(r"/run/systemd/network/10-netplan-(.+)\.network", one.path)
    if match:
        return generated.claim(one.path, match.group(1), name, doubts)
    waiting = generated.waiting(name, one.name)
    doubts += [waiting] if waiting else []
    value, source = one.last("MTUBytes")
    target, mtu = _DROPIN % one.name, mtu_of(value, source, doubts)
    given = parse_networkd([block for _path, text in one.parts for block in ini.blocks(text)], name)
    return Networkd(one.path, target, mtu, source, "Link", text_of(host, target), addressing=given)


def link(device: Device, links: Sequence[ConfigFile], doubts: List[str]) -> Optional[Link]:
    """Return the .link file that gives the device an MTU; None without one. links: all .link files."""
    named = [one for one in links if one.last("MTUBytes")[0] and not one.path.startswith("/run/")]
    possible = [one for one in named if matches(one.settings, device) is not False]
    one, doubt = first_match(links, device) if possible else (None, "")
    # An MTU that may come from there is unknown.
    doubts += [doubt] if doubt else []
    if one is None or one not in possible:
        return None
    value, source = one.last("MTUBytes")
    refused = ("its MTU is in %s" % source, "take MTUBytes out of it, and give the interface a .network file")
    return Link(one.path, "", mtu_of(value, source, doubts), source, refused=refused)


def text_of(host: Host, path: str) -> Optional[str]:
    """Return a file as networkd reads it, which is not a root as udev is; None where it cannot. Raises ReadError."""
    return host.read_system(path) if host.readable_by_others(path, group=True) else None


def config_files(host: Host, suffix: str) -> List[ConfigFile]:
    """Return files by name; the first folder that has a name wins, and an empty file masks. Raises ReadError."""
    found, read = [], host.read_system if suffix == ".link" else partial(text_of, host)
    for name, path in systemd_files.by_name(host, FOLDERS, suffix):
        text = read(path)
        if text:
            dropins = systemd_files.by_name(host, ["%s/%s.d" % (folder, name) for folder in FOLDERS], ".conf")
            parts = [(path, text)] + [(one, read(one) or "") for _name, one in dropins]
            found.append(ConfigFile(name, path, tuple(parts)))
    return found


def first_match(files: Sequence[ConfigFile], device: Device) -> Tuple[Optional[ConfigFile], str]:
    """Return the file that counts for a device, and the reason for doubt."""
    for one in files:
        answer = matches(one.settings, device)
        if answer is None:
            names = "; %s does not list its other names" % " ".join(LINKS) if device.altnames is None else ""
            doubt = "whether %s matches %s is not known (its [Match] section%s)" % (one.path, device.name, names)
            return None, doubt
        if answer:
            return one, ""
    return None, ""


def matches(found: Iterable[Setting], device: Device) -> Optional[bool]:
    """Return whether the [Match] sections fit a device; None if that needs facts that are not known here."""
    wanted: Dict[str, List[str]] = {}
    for setting in found:
        if setting.section == "Match":
            # An exclamation mark before the list is for all of it.
            text, mark = (setting.value[1:], "!") if setting.value[:1] == "!" else (setting.value, "")
            try:
                words = [mark + word for word in shlex.split(text)]
            except ValueError:
                return None
            wanted[setting.key] = wanted.get(setting.key, []) + words if setting.value else []
    if not any(wanted.values()):
        return None  # systemd takes or passes over such a file, by its version
    return every([_match(key, words, device) for key, words in wanted.items() if words])


def _match(key: str, words: Sequence[str], device: Device) -> Optional[bool]:
    if key == "Property":
        values = ["%s=%s" % pair for pair in device.properties.items()]
        # udev's record is known only on a running node.
        return all(word[:1] != "!" and word in values for word in words) or (False if values else None)
    if key in ("Name", "OriginalName"):
        if any(globs(words, name) for name in (device.name, *(device.altnames or ()))):
            return True
        # What the kernel called it, before udev renamed it, is not known.
        return None if key == "OriginalName" or device.altnames is None else False
    if key in ("MACAddress", "PermanentMACAddress"):
        mac = device.mac if key == "MACAddress" else device.permanent
        return None if mac is None else any(same_mac(mac, word) for word in words)
    values_of = {"Path": device.path, "Driver": device.driver, "Kind": device.kind}
    values_of["Type"] = device.kind or ("ether" if device.ether else "infiniband")
    if key not in values_of or (key == "Driver" and not device.driver):
        return None
    return globs(words, values_of[key])
