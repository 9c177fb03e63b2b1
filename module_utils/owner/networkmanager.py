# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NetworkManager: one keyfile a profile, of which it takes the one that fits and has the highest priority.

Sources: nm-settings-keyfile(5), nm-settings(5), NetworkManager.conf(5); host.md 2.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, Optional, Tuple

from ..core import systemd_files
from ..core.host import Host
from ..core.plan import Command
from . import claim, ini, netplan
from .claim import Claims, Doubts, mtu_of
from .device import Device, globs, same_mac

FOLDERS = tuple(folder + "/NetworkManager/system-connections" for folder in ("/etc", "/run", "/usr/lib"))
_RELOAD = Command(("nmcli", "connection", "reload"), "have NetworkManager read its files again")
_INFINIBAND = "infiniband"
_LONG = "802-3-ethernet"
_SECTIONS = ("ethernet", _LONG, _INFINIBAND)


@dataclass(frozen=True)
class NetworkManager(claim.Claim):
    """target: the keyfile itself. ident: its section for the kind of link."""

    stack: ClassVar[str] = "NetworkManager"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        if self.ident == _INFINIBAND and _INFINIBAND not in ini.sections(text):
            # With such a section and without a mode in it NetworkManager takes no profile at all.
            text = ini.set_setting(text, _INFINIBAND, "transport-mode", "datagram", continued=False)
        return ini.set_setting(text, self.ident, "mtu", str(mtu), continued=False)


def is_used(host: Host) -> bool:
    """Whether it runs, or is started at boot. Raises ReadError."""
    running = host.listdir_system("/run/NetworkManager")
    return bool(running) or systemd_files.wanted_at_boot(host, "NetworkManager.service")


def reload(host: Host) -> Optional[Command]:
    """Makes it read its files again; None without its tool."""
    return _RELOAD if host.has("nmcli") else None


def state(host: Host, device: Device) -> Dict[str, str]:
    """What it says of a device in its state file: whether it is managed, and by which connection. Raises ReadError."""
    text = host.read_system("/run/NetworkManager/devices/%s" % device.index) or ""
    return {one.key: one.value for one in ini.settings(text, continued=False) if one.section == "device"}


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Adds what its keyfiles set up, netplan's part of it included. Raises ReadError."""
    if not is_used(host):
        return
    generated, again = netplan.Reader(host), reload(host)
    files = systemd_files.by_name(host, FOLDERS, ".nmconnection")
    profiles = [(path, host.read_system(path) or "") for _name, path in files]
    for name, device in devices.items():
        about = state(host, device)
        if about.get("managed") == "false":
            continue
        uuid = about.get("connection-uuid", "")
        fitting: List[Tuple[int, str, str, str]] = []
        for path, text in profiles:
            profile = {(s.section, s.key): s.value for s in ini.settings(text, continued=False)}
            answer = matches(profile, device)
            if answer is None:
                doubts[name].append("whether the profile %s is for %s is not known" % (path, name))
            elif answer:
                number = profile.get(("connection", "autoconnect-priority"), "0")
                priority = int(number) if re.fullmatch(r"-?[0-9]{1,4}", number) else 0
                fitting.append((priority, profile.get(("connection", "uuid"), ""), path, text))
        best = [one for one in fitting if one[0] == max(each[0] for each in fitting)]
        # Of equal ones NetworkManager takes the one that it used last.
        best = [one for one in best if len(best) == 1 or one[1] == uuid] or best
        for _priority, _uuid, path, text in best:
            match = re.fullmatch(r"/run/NetworkManager/system-connections/netplan-(.+)\.nmconnection", path)
            if match:
                claims[name].append(generated.claim(path, match.group(1), doubts[name]))
            else:
                claims[name].append(_of_keyfile(host, path, text, again, doubts[name]))
        if uuid and not fitting and not claims[name]:
            why = "NetworkManager uses a profile (%s) that is in no file of %s" % (uuid, FOLDERS[0])
            fix = "save it: nmcli connection modify %s save yes" % uuid
            claims[name].append(NetworkManager("connection %s" % uuid, "", refused=(why, fix)))


def _of_keyfile(host: Host, path: str, text: str, again: Optional[Command], doubts: List[str]) -> NetworkManager:
    found = ini.settings(text, continued=False)
    is_ib = any((s.section, s.key, s.value) == ("connection", "type", _INFINIBAND) for s in found)
    # Of two names for one section NetworkManager takes the long one, and nothing of the other.
    section = _INFINIBAND if is_ib else _LONG if _LONG in ini.sections(text) else "ethernet"
    values = [s.value for s in found if (s.section, s.key) == (section, "mtu")]
    mtu = mtu_of(values[-1] if values else "", path, doubts)
    refused = ("", "")
    if not path.startswith("/etc/"):
        refused = ("%s is not the administrator's file" % path, "save it: nmcli connection modify NAME save yes")
    mode = host.mode_system(path) or 0o600
    return NetworkManager(path, path, mtu, path, section, text, mode, refused, again)


def matches(profile: Mapping[Tuple[str, str], str], device: Device) -> Optional[bool]:
    """Whether NetworkManager connects a device by a profile on its own; None where that is not known here.

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
