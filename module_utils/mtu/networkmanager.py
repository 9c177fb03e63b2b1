# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NetworkManager's keyfiles: of the profiles that fit, the one with the highest priority counts.

Sources: nm-settings-keyfile(5), nm-settings(5), NetworkManager.conf(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Dict, List, Mapping, Optional, Tuple

from ..core import ini, systemd_files
from ..core.host import Host
from ..core.plan import Command
from . import addressing, claim, netplan, networkmanager_conf
from .claim import Claim, Claims, Doubts, Table, mtu_of
from .device import Device, globs, same_mac
from .networkmanager_conf import Configuration

FOLDERS = tuple(folder + "/NetworkManager/system-connections" for folder in ("/etc", "/run", "/usr/lib"))
UNIT = "NetworkManager.service"
_RELOAD = Command(("nmcli", "connection", "reload"), "have NetworkManager read its files again")
_INFINIBAND = "infiniband"
_LONG = "802-3-ethernet"
_SECTIONS = ("ethernet", _LONG, _INFINIBAND)


@dataclass(frozen=True)
class NetworkManager(claim.Claim):
    """target: the keyfile itself. ident: its section for the kind of link."""

    stack: ClassVar[str] = "NetworkManager"
    apply_again: ClassVar[str] = "nmcli connection reload; nmcli device connect %(name)s"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        if self.ident == _INFINIBAND and _INFINIBAND not in ini.sections(text):
            # With such a section and without a mode in it NetworkManager takes no profile at all.
            text = ini.set_setting(text, _INFINIBAND, "transport-mode", "datagram", continued=False)
        return ini.set_setting(text, self.ident, "mtu", str(mtu), continued=False)

    def table_advice(self, table: Table, name: str) -> str:
        ids = [s.value for s in ini.settings(self.before or "", continued=False) if s.key == "id"]
        return nmcli_advice(table, "'%s'" % ids[0] if ids else self.path)


def nmcli_advice(table: Table, profile: str) -> str:
    """Say how to add the rules and routes of a table. profile: as nmcli takes it."""
    rules = ["+ipv4.routing-rules '%s'" % line for line in table.rule_lines]
    ways = [" %s" % one.gateway if one.gateway else "" for one in table.routes]
    more = ["table=%d%s" % (table.number, "" if one.gateway else " src=" + one.source) for one in table.routes]
    to = [one.destination.replace("default", "0.0.0.0/0") for one in table.routes]
    routes = ["+ipv4.routes '%s%s %s'" % one for one in zip(to, ways, more)]
    return "nmcli connection modify %s %s; then nmcli connection up %s" % (profile, " ".join(rules + routes), profile)


@dataclass(frozen=True)
class Profile:
    """Hold a keyfile. values: (section, key) -> value."""

    path: str
    text: str
    values: Mapping[Tuple[str, str], str]

    @property
    def priority(self) -> int:
        return priority(self.values.get(("connection", "autoconnect-priority"), ""))

    @property
    def names_device(self) -> bool:
        keys = [("connection", "interface-name"), *((section, "mac-address") for section in _SECTIONS)]
        return any(self.values.get(key) for key in keys)


def priority(text: str) -> int:
    """Return what a profile's autoconnect-priority means."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,4}", text) else 0


def is_used(host: Host) -> bool:
    """Return whether it runs, or is started at boot. Raises ReadError."""
    running = host.listdir_system("/run/NetworkManager")
    return bool(running) or systemd_files.wanted_at_boot(host, UNIT)


def reload(host: Host) -> Optional[Command]:
    """Return the command by which it reads its files again; None without its tool."""
    return _RELOAD if host.has("nmcli") else None


def state(host: Host, device: Device) -> Dict[str, str]:
    """Return a device's entry of its state file: managed or not, and the connection. Raises ReadError."""
    text = host.read_system("/run/NetworkManager/devices/%s" % device.index) or ""
    return {one.key: one.value for one in ini.settings(text, continued=False) if one.section == "device"}


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of its keyfiles, including netplan's. Raises ReadError."""
    if not is_used(host):
        return
    generated, again, conf = netplan.Reader(host), reload(host), networkmanager_conf.read(host)
    files = systemd_files.by_name(host, FOLDERS, ".nmconnection")
    profiles = [_profile(path, host.read_system(path) or "") for _name, path in files]
    for name, device in devices.items():
        about = state(host, device)
        uuid = about.get("connection-uuid", "")
        fitting = [one for one in profiles if _fits(one, device, doubts[name])]
        unmanaged, why = conf.unmanaged(device)
        if unmanaged is None and fitting:
            doubts[name].append("whether NetworkManager manages %s is not known (%s)" % (name, why))
        elif unmanaged:
            claims[name] += [unmanaged_claim(one.path, why) for one in fitting[:1]]
        if unmanaged or about.get("managed") == "false":
            continue
        best = [one for one in fitting if one.priority == max(each.priority for each in fitting)]
        # Of equal ones NetworkManager takes the one that it used last.
        best = [one for one in best if len(best) == 1 or one.values.get(("connection", "uuid"), "") == uuid] or best
        named = [one for one in fitting if one.names_device and one not in best]
        for one in best:
            match = re.fullmatch(r"/run/NetworkManager/system-connections/netplan-(.+)\.nmconnection", one.path)
            if match:
                claim = generated.claim(one.path, match.group(1), name, doubts[name])
            else:
                claim = _of_keyfile(host, one, again, name, doubts[name])
            if named and not one.names_device:
                claim = replace(claim, refused=_taken(one, named[0]))
            claims[name].append(with_default(replace(claim, priority=one.priority), conf, device, doubts[name]))
        if uuid and not fitting and not claims[name]:
            why = "NetworkManager uses a profile (%s) that has no file in %s" % (uuid, FOLDERS[0])
            fix = "write it to disk: nmcli connection modify %s connection.autoconnect yes" % uuid
            claims[name].append(NetworkManager("connection %s" % uuid, "", refused=(why, fix)))


def _profile(path: str, text: str) -> Profile:
    return Profile(path, text, {(s.section, s.key): s.value for s in ini.settings(text, continued=False)})


def _fits(profile: Profile, device: Device, doubts: List[str]) -> bool:
    answer = matches(profile.values, device)
    if answer is None:
        doubts.append("whether the profile %s is for %s is not known" % (profile.path, device.name))
    return answer is True


def _taken(winner: Profile, own: Profile) -> Tuple[str, str]:
    """Say that a profile for any device takes this one before the device's own."""
    said = "%s fits any device and has a higher autoconnect-priority (%d)" % (winner.path, winner.priority)
    ident = own.values.get(("connection", "id"), own.path)
    return said, "nmcli connection modify '%s' connection.autoconnect-priority %d" % (ident, winner.priority + 1)


def unmanaged_claim(path: str, why: str) -> NetworkManager:
    """Claim that NetworkManager has a file for an interface, and is configured to leave it alone."""
    said = "NetworkManager does not manage it (%s), so that %s has no effect" % (why, path)
    fix = "remove the interface there and restart NetworkManager; or set it up by another program, and remove %s" % path
    return NetworkManager(path, "", refused=(said, fix), unmanaged=True)


def with_default(claim: Claim, conf: Configuration, device: Device, doubts: List[str]) -> Claim:
    """Give a profile that names no MTU the one of NetworkManager's configuration."""
    key = "ethernet.mtu" if device.ether else "infiniband.mtu"
    value, path = conf.default("connection", key, device) if claim.mtu is None else ("", "")
    mtu = mtu_of(value, path, doubts)
    return claim if mtu is None else replace(claim, mtu=mtu, source=path)


def _of_keyfile(host: Host, profile: Profile, again: Optional[Command], name: str, doubts: List[str]) -> NetworkManager:
    path, text = profile.path, profile.text
    found = ini.settings(text, continued=False)
    is_ib = any((s.section, s.key, s.value) == ("connection", "type", _INFINIBAND) for s in found)
    # Of two names for one section NetworkManager takes the long one, and nothing of the other.
    section = _INFINIBAND if is_ib else _LONG if _LONG in ini.sections(text) else "ethernet"
    values = [s.value for s in found if (s.section, s.key) == (section, "mtu")]
    mtu = mtu_of(values[-1] if values else "", path, doubts)
    refused = ("", "")
    if not path.startswith("/etc/"):
        fix = "write it to /etc: nmcli connection modify '%s' connection.autoconnect yes"
        fix %= profile.values.get(("connection", "id"), path)
        refused = ("%s is not the administrator's file" % path, fix)
    mode = host.mode_system(path) or 0o600
    given = addressing.parse_keyfile({key: value for (of, key), value in profile.values.items() if of == "ipv4"}, name)
    return NetworkManager(path, path, mtu, path, section, text, mode, refused, again, given)


def matches(profile: Mapping[Tuple[str, str], str], device: Device) -> Optional[bool]:
    """Return whether NetworkManager automatically connects a device by a profile; None if not known here.

    profile: (section, key) -> value.
    """
    kinds = {"802-3-ethernet": "", "ethernet": "", "infiniband": ""}
    kind = profile.get(("connection", "type"), "")
    if kinds.get(kind, kind) != device.kind or (kind == "infiniband") == device.ether:
        return False
    if profile.get(("connection", "autoconnect"), "true") in ("false", "no", "0"):
        return False
    answers: List[Optional[bool]] = []
    name = profile.get(("connection", "interface-name"))
    if name:
        answers.append(name == device.name)
    for section in _SECTIONS:
        mac = profile.get((section, "mac-address"))
        if mac:
            known = device.permanent or (device.mac if device.kind else None)
            answers.append(None if known is None else same_mac(mac, known))
    for (section, key), value in profile.items():
        words = [word.strip() for word in value.replace(",", ";").split(";") if word.strip()]
        if section == "match" and key in ("interface-name", "path", "driver"):
            text = {"interface-name": device.name, "path": device.path, "driver": device.driver}[key]
            plain = all(word[0] not in "|&" for word in words)
            answers.append(globs(words, text) if plain else None)
        elif section == "match":
            answers.append(None)
    if False in answers:
        return False
    return None if None in answers else True
