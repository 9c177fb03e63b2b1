# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NetworkManager's configuration: unmanaged devices, and defaults of profiles.

Source: NetworkManager.conf(5) of 1.42, and what ``NetworkManager --print-config`` makes of several files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from ..core import ini, systemd_files, udev_rules
from ..core.host import Host
from .device import Device, same_mac

_MAIN = "/etc/NetworkManager/NetworkManager.conf"
_FOLDERS = tuple(folder + "/NetworkManager/conf.d" for folder in ("/etc", "/run", "/usr/lib"))
_INTERN = "/var/lib/NetworkManager/NetworkManager-intern.conf"
_FALSE = ("0", "false", "no", "off")
_UNMANAGED = ("keyfile", "unmanaged-devices")
_TYPES = {"": ("ethernet",), "vlan": ("vlan",), "bond": ("bond",), "bridge": ("bridge",), "team": ("team",)}


@dataclass(frozen=True)
class Configuration:
    """Hold all files.   sections: in the order of the search for defaults. values: (section, key) -> (value, file)."""

    sections: Tuple[str, ...]
    values: Mapping[Tuple[str, str], Tuple[str, str]]
    rules: Tuple[udev_rules.Line, ...] = ()

    def default(self, kind: str, key: str, device: Device) -> Tuple[str, str]:
        """Return (value, file) of the first section of a kind that is for a device and has the key; else "".

        kind: connection or device.
        """
        for section in (one for one in self.sections if one.startswith(kind)):
            words, _file = self.values.get((section, "match-device"), ("*", ""))
            if matches(words, device):
                if (section, key) in self.values:
                    return self.values[section, key]
                if self.values.get((section, "stop-match"), ("", ""))[0] in ("1", "true", "yes", "on"):
                    break
        return "", ""

    def unmanaged(self, device: Device) -> Tuple[Optional[bool], str]:
        """Tell whether it leaves a device alone, by which file; None where that is not known."""
        words, path = self.values.get(_UNMANAGED, ("", ""))
        if words:
            answer = matches(words, device)
            if answer is not False:
                return answer, "unmanaged-devices in %s" % path
        value, path = self.default("device", "managed", device)
        if value:
            return value.lower() in _FALSE, "managed=%s in %s" % (value, path)
        place = device.path[len("pci-") :] if device.path.startswith("pci-") else ""
        known = udev_rules.facts(device.name, device.mac or "", device.driver, place, device.properties, device.ether)
        known.pop("ENV{NM_UNMANAGED}", None)
        found = udev_rules.assignments(self.rules, "ENV{NM_UNMANAGED}", known)
        by_rule = found[-1][1] if found else device.properties.get("NM_UNMANAGED", "")
        source = found[-1][2] if found else "a rule of udev (udevadm info /sys/class/net/%s)" % device.name
        return by_rule.lower() not in ("", *_FALSE), "NM_UNMANAGED by %s" % source


def read(host: Host) -> Configuration:
    """Read the files in the order in which NetworkManager does. Raises ReadError."""
    by_folder: Dict[str, List[str]] = {folder: [] for folder in _FOLDERS}
    for _name, path in systemd_files.by_name(host, _FOLDERS, ".conf"):
        by_folder[path.rpartition("/")[0]].append(path)
    etc, run, vendor = (by_folder[folder] for folder in _FOLDERS)
    sections: List[str] = []
    values: Dict[Tuple[str, str], Tuple[str, str]] = {}
    for path in [*vendor, *run, _MAIN, *etc, _INTERN]:
        text = host.read_system(path) or ""
        # Sections of later files come first; of one file in their order.
        sections = [one for one in ini.sections(text) if one not in sections] + sections
        for one in ini.settings(text, continued=False):
            key, sign = (one.key[:-1], one.key[-1]) if one.key[-1:] in ("+", "-") else (one.key, "")
            old = _split(values.get((one.section, key), ("", ""))[0])
            new = one.value
            if sign:
                gone = _split(new) if sign == "-" else []
                new = ";".join([word for word in old if word not in gone] + (_split(new) if sign == "+" else []))
            values[one.section, key] = (new, path)
    # These two count after all others of their kind.
    last = [one for one in ("connection", "device") if one in sections]
    ordered = [one for one in sections if one not in last] + last
    return Configuration(tuple(ordered), values, tuple(udev_rules.read(host)))


def _split(words: str) -> List[str]:
    return [word for word in re.split(r"[\s,;]+", words) if word]


def matches(words: str, device: Device) -> Optional[bool]:
    """Tell whether a device list has a device; None where that is not known. Exceptions alone mean all others."""
    specs = _split(words)
    excluded = [_match(word[len("except:") :], device) for word in specs if word.startswith("except:")]
    included = [_match(word, device) for word in specs if not word.startswith("except:")]
    if True in excluded:
        return False
    positive = (not included and bool(excluded)) or True in included
    if not positive:
        return None if None in included else False
    return None if None in excluded else True


def _match(word: str, device: Device) -> Optional[bool]:
    kind, _colon, value = word.partition(":")
    if word == "*":
        return True
    rows: Dict[str, Callable[[], Optional[bool]]] = {
        "interface-name": lambda: _name(value, device.name),
        "mac": lambda: None if device.permanent is None else same_mac(value, device.permanent),
        "type": lambda: value in (_TYPES.get(device.kind, (device.kind,)) if device.ether else ("infiniband",)),
        "driver": lambda: fnmatchcase(device.driver, value.partition("/")[0]),
    }
    if kind in rows and value:
        return rows[kind]()
    if re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})+", word):
        return None if device.permanent is None else same_mac(word, device.permanent)
    # A list for other kinds of devices, such as s390-subchannels.
    return word == device.name if not value else False


def _name(value: str, name: str) -> bool:
    return value[1:] == name if value[:1] == "=" else fnmatchcase(name, value[1:] if value[:1] == "~" else value)
