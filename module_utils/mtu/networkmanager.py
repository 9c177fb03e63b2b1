# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NetworkManager's keyfiles, and from its configuration unmanaged devices.

Of the profiles that fit, the one with the highest priority counts.
Sources: nm-settings-keyfile(5), nm-settings(5); NetworkManager.conf(5) of 1.42, and what ``NetworkManager
--print-config`` makes of several files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core import ini, systemd_files, udev_rules
from ..core.host import Host
from ..core.number import signed
from ..core.plan import Command
from . import claim, netplan
from .claim import Claim, Claims, Doubts, mtu_of, parse_keyfile
from .device import Device, every, globs, same_mac

FOLDERS = tuple(folder + "/NetworkManager/system-connections" for folder in ("/etc", "/run", "/usr/lib"))
UNIT = "NetworkManager.service"
_RELOAD = Command(("nmcli", "connection", "reload"), "have NetworkManager read its files again")
_LONG = "802-3-ethernet"
_SECTIONS = ("ethernet", _LONG)
_MAIN = "/etc/NetworkManager/NetworkManager.conf"
_FOLDERS = tuple(folder + "/NetworkManager/conf.d" for folder in ("/etc", "/run", "/usr/lib"))
_INTERN = "/var/lib/NetworkManager/NetworkManager-intern.conf"
Keys = Tuple[str, str]


@dataclass(frozen=True)
class NetworkManager(claim.Claim):
    """target: the keyfile itself. ident: its section for Ethernet."""

    stack: ClassVar[str] = "NetworkManager"
    apply_again: ClassVar[str] = "nmcli connection reload; nmcli device connect %(name)s"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return ini.set_setting(text, self.ident, "mtu", str(mtu), continued=False)


class Profile(NamedTuple):
    """Hold a keyfile. values: (section, key) -> value."""

    path: str
    text: str
    values: Mapping[Keys, str]

    @property
    def priority(self) -> int:
        return signed(self.values.get(("connection", "autoconnect-priority"))) or 0

    @property
    def ident(self) -> str:
        return self.values.get(("connection", "id"), self.path)

    @property
    def names_device(self) -> bool:
        keys = [("connection", "interface-name"), *((section, "mac-address") for section in _SECTIONS)]
        return any(self.values.get(key) for key in keys)

    def matches(self, device: Device) -> Optional[bool]:
        """Return whether NetworkManager automatically connects a device by it; None if not known here."""
        kind = self.values.get(("connection", "type"), "")
        starts = self.values.get(("connection", "autoconnect"), "true") not in ("false", "no", "0")
        if ("" if kind in _SECTIONS else kind) != device.kind or not starts:
            return False
        mac = device.permanent or (device.mac if device.kind else None)
        texts = {"interface-name": device.name, "path": device.path, "driver": device.driver}
        results: List[Optional[bool]] = []
        for (section, key), value in self.values.items():
            words = [word.strip() for word in value.replace(",", ";").split(";") if word.strip()]
            if (section, key) == ("connection", "interface-name") and value:
                results.append(value == device.name)
            elif section in _SECTIONS and key == "mac-address" and value:
                results.append(None if mac is None else same_mac(value, mac))
            elif section == "match":
                plain = key in texts and all(word[0] not in "|&" for word in words)
                results.append(globs(words, texts[key]) if plain else None)
        return every(results)


class Configuration(NamedTuple):
    """words, path: unmanaged devices, and the file that lists them. settings: (section, key) -> (value, file)."""

    words: str
    path: str
    rules: Tuple[udev_rules.Line, ...]
    settings: Mapping[Keys, Keys]

    def default_mtu(self, device: Device) -> Keys:
        """Return the MTU of profiles that leave it out, and its file; "" for none. The plain section counts last."""
        sections = sorted((one for one, key in self.settings if key == "ethernet.mtu"), key="connection".__eq__)
        words = {section: self.settings.get((section, "match-device"), ("*", ""))[0] for section in sections}
        fitting = [self.settings[one, "ethernet.mtu"] for one in sections if matches(words[one], device)]
        return (*fitting, ("", ""))[0]

    def unmanaged(self, device: Device) -> Tuple[Optional[bool], str]:
        """Tell whether it leaves a device alone, by which file; None where that is not known."""
        listed = matches(self.words, device) if self.words else False
        if listed is not False:
            return listed, "unmanaged-devices in %s" % self.path
        place = device.path[len("pci-") :] if device.path.startswith("pci-") else ""
        known = udev_rules.facts(device.name, device.mac or "", device.driver, place, device.properties, device.ether)
        known.pop("ENV{NM_UNMANAGED}", None)
        recorded = "a rule of udev (udevadm info /sys/class/net/%s)" % device.name
        found = udev_rules.assignments(self.rules, "ENV{NM_UNMANAGED}", known)
        _sign, by_rule, source = found[-1] if found else ("", device.properties.get("NM_UNMANAGED", ""), recorded)
        return by_rule.lower() not in ("", *ini.FALSE), "NM_UNMANAGED by %s" % source


def is_used(host: Host) -> bool:
    """Return whether it runs, or is started at boot. Raises ReadError."""
    running = host.listdir_system("/run/NetworkManager")
    return bool(running) or systemd_files.wanted_at_boot(host, UNIT)


def state(host: Host, device: Device) -> Dict[str, str]:
    """Return a device's entry of its state file: managed or not, and the connection. Raises ReadError."""
    text = host.read_system("/run/NetworkManager/devices/%s" % device.index) or ""
    return {one.key: one.value for one in ini.settings(text, continued=False) if one.section == "device"}


def read_configuration(host: Host) -> Configuration:
    """Read the configuration's files in the order in which NetworkManager does. Raises ReadError."""
    paths = [path for _name, path in systemd_files.by_name(host, _FOLDERS, ".conf")]
    etc, run, vendor = ([path for path in paths if path.startswith(folder)] for folder in _FOLDERS)
    words: List[str] = []
    found: Dict[Keys, Keys] = {}
    source = ""
    for path in [*vendor, *run, _MAIN, *etc, _INTERN]:
        for one in ini.settings(host.read_system(path) or "", continued=False):
            found[one.section, one.key] = (one.value, path)
            if one.section == "keyfile" and one.key.rstrip("+-") == "unmanaged-devices":
                new, source = _split(one.value), path
                left = [word for word in words if word not in new] if one.key[-1] in "+-" else []
                words = left + (new if one.key[-1] != "-" else [])
    return Configuration(";".join(words), source, tuple(udev_rules.read(host)), found)


def _split(words: str) -> List[str]:
    return [word for word in re.split(r"[\s,;]+", words) if word]


def matches(words: str, device: Device) -> Optional[bool]:
    """Tell whether a device list has a device; None where that is not known. Exceptions alone mean all others."""
    specs = _split(words)
    excluded = [_match(word[len("except:") :], device) for word in specs if word.startswith("except:")]
    included = [_match(word, device) for word in specs if not word.startswith("except:")] or [bool(excluded)]
    if True in excluded:
        return False
    if True not in included:
        return None if None in included else False
    return None if None in excluded else True


def _match(word: str, device: Device) -> Optional[bool]:
    kind, _colon, value = word.partition(":")
    if (kind == "mac" and value) or re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})+", word):
        mac = value if kind == "mac" else word
        return None if device.permanent is None else same_mac(mac, device.permanent)
    if kind == "interface-name" and value:
        return value[1:] == device.name if value[0] == "=" else fnmatchcase(device.name, value.lstrip("~"))
    if kind == "type":
        return value == (device.kind or "ethernet")
    if kind == "driver" and value:
        return fnmatchcase(device.driver, value.partition("/")[0])
    # A list for other kinds of devices, such as s390-subchannels.
    return word in ("*", device.name)


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of its keyfiles, including netplan's. Raises ReadError."""
    if not is_used(host):
        return
    generated, conf = netplan.Reader(host), read_configuration(host)
    again = _RELOAD if host.has("nmcli") else None
    files = systemd_files.by_name(host, FOLDERS, ".nmconnection")
    profiles = [_profile(path, host.read_system(path) or "") for _name, path in files]
    # A profile for Ethernet sets no InfiniBand interface up.
    for name, device in ((name, device) for name, device in devices.items() if device.ether):
        about = state(host, device)
        uuid = about.get("connection-uuid", "")
        results = [(one, one.matches(device)) for one in profiles]
        fitting = [one for one, fits in results if fits]
        unknown = [one.path for one, fits in results if fits is None]
        doubts[name] += ["whether the profile %s is for %s is not known" % (path, name) for path in unknown]
        unmanaged, why = conf.unmanaged(device)
        if unmanaged is None and fitting:
            doubts[name].append("whether NetworkManager manages %s is not known (%s)" % (name, why))
        elif unmanaged:
            claims[name] += [_unmanaged_claim(one.path, why) for one in fitting[:1]]
        if unmanaged or about.get("managed") == "false":
            continue
        best = _best(fitting, uuid)
        named = [one for one in fitting if one.names_device and one not in best]
        for one in best:
            match = _OF_NETPLAN.fullmatch(one.path)
            claim: Claim = (
                generated.claim(one.path, match.group(1), name, doubts[name])
                if match
                else _of_keyfile(host, one, again, name, doubts[name])
            )
            if claim.mtu is None:
                value, source = conf.default_mtu(device)
                claim = replace(claim, mtu=mtu_of(value, source, doubts[name]), source=source or claim.source)
            if named and not one.names_device:
                claim = replace(claim, refused=_fits_any(one, named[0]))
            claims[name].append(claim)
        if uuid and not fitting and not claims[name]:
            why = "NetworkManager uses a profile (%s) that has no file in %s" % (uuid, FOLDERS[0])
            fix = "%s; of an ifcfg file: nmcli connection migrate" % (_TO_ETC % uuid)
            claims[name].append(NetworkManager("connection %s" % uuid, "", refused=(why, fix)))


def _fits_any(one: Profile, named: Profile) -> Tuple[str, str]:
    said = "%s fits any device and has a higher autoconnect-priority (%d)" % (one.path, one.priority)
    fix = "nmcli connection modify '%s' connection.autoconnect-priority %d" % (named.ident, one.priority + 1)
    return said, fix


_OF_NETPLAN = re.compile(r"/run/NetworkManager/system-connections/netplan-(.+)\.nmconnection")
_TO_ETC = "write it to /etc: nmcli connection modify '%s' connection.autoconnect yes"


def _profile(path: str, text: str) -> Profile:
    return Profile(path, text, {(s.section, s.key): s.value for s in ini.settings(text, continued=False)})


def _best(fitting: Sequence[Profile], uuid: str) -> Sequence[Profile]:
    """Return the profiles of the highest priority; of several NetworkManager takes the one that it used last."""
    best = [one for one in fitting if one.priority == max(each.priority for each in fitting)]
    return [one for one in best if len(best) > 1 and one.values.get(("connection", "uuid"), "") == uuid] or best


def _unmanaged_claim(path: str, why: str) -> NetworkManager:
    """Claim that NetworkManager has a file for an interface, and is configured to leave it alone."""
    said = "NetworkManager does not manage it (%s), so that %s has no effect" % (why, path)
    fix = "remove the interface there and restart NetworkManager; or set it up by another program, and remove %s" % path
    return NetworkManager(path, "", refused=(said, fix), unmanaged=True)


def _of_keyfile(host: Host, profile: Profile, again: Optional[Command], name: str, doubts: List[str]) -> NetworkManager:
    path, text, values = profile.path, profile.text, profile.values
    # Of two names for one section NetworkManager takes the long one, and nothing of the other.
    section = _LONG if _LONG in ini.sections(text) else "ethernet"
    mtu = mtu_of(values.get((section, "mtu"), ""), path, doubts)
    refused = ("", "")
    if not path.startswith("/etc/"):
        refused = ("%s is not the administrator's file" % path, _TO_ETC % profile.ident)
    mode = host.mode_system(path) or 0o600
    given = parse_keyfile({key: value for (of, key), value in values.items() if of == "ipv4"}, name)
    return NetworkManager(path, path, mtu, path, section, text, mode, refused, again, given)
