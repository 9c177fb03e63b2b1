# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ifcfg files: of network-scripts and NetworkManager on EL, of wicked on SUSE.

Sources: ifcfg(5), nm-settings-ifcfg-rh(5); host.md 2.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Dict, Mapping, Optional

from ..core.host import Host
from . import claim, networkmanager
from .claim import Claims, Doubts, mtu_of
from .device import Device, same_mac

FOLDERS = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
_BACKUPS = (".bak", ".old", ".orig", ".rpmnew", ".rpmorig", ".rpmsave", "~")


@dataclass(frozen=True)
class Ifcfg(claim.Claim):
    """target: the file itself."""

    stack: ClassVar[str] = "ifcfg"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return set_value(text, "MTU", str(mtu))


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Adds what has a file, by its name or by its hardware address. Raises ReadError."""
    used = (networkmanager.is_used(host) or host.has("ifup"), host.has("wicked"))
    again = networkmanager.reload(host) if any(used) else None
    for folder in (folder for folder, is_used in zip(FOLDERS, used) if is_used):
        for name in host.listdir_system(folder):
            if not name.startswith("ifcfg-") or name.endswith(_BACKUPS):
                continue
            path = "%s/%s" % (folder, name)
            text = host.read_system(path) or ""
            found = parse(text)
            mac, of = found.get("HWADDR", ""), found.get("DEVICE", "" if found.get("HWADDR") else name[6:])
            mode = host.mode_system(path) or 0o644
            for device in devices.values():
                if of and of != device.name:
                    continue
                if mac and device.permanent is None:
                    if not of and device.kind:
                        continue
                    doubts[device.name].append("whether %s is for %s is not known (HWADDR)" % (path, device.name))
                elif not mac or same_mac(mac, device.permanent or ""):
                    mtu = mtu_of(found.get("MTU", ""), path, doubts[device.name])
                    claims[device.name].append(Ifcfg(path, path, mtu, path, "", text, mode, reload=again))


def parse(text: str) -> Dict[str, str]:
    """Variable -> value without its quotes, of plain assignments; the last of a variable counts."""
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


def set_value(text: str, key: str, value: str) -> str:
    if parse(text).get(key) == value:
        return text
    lines = text.split("\n")
    there = [n for n, line in enumerate(lines) if re.match(r"\s*%s=" % re.escape(key), line)]
    if there:
        lines[there[-1]] = "%s=%s" % (key, value)
        return "\n".join(lines)
    return "%s%s%s=%s\n" % (text, "" if not text or text.endswith("\n") else "\n", key, value)
