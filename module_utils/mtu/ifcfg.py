# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ifcfg files: of network-scripts and NetworkManager on EL, of wicked on SUSE.

Sources: ifcfg(5), nm-settings-ifcfg-rh(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, Optional

from ..core.host import Host
from . import claim, networkmanager
from .claim import Claim, Claims, Doubts, mtu_of, parse_ifcfg
from .device import Device, same_mac
from .networkmanager import Configuration

FOLDERS = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
_DISPATCHERS = tuple(folder + "/NetworkManager/dispatcher.d/10-ifcfg-rh-routes.sh" for folder in ("/etc", "/usr/lib"))
_BACKUPS = (".bak", ".old", ".orig", ".rpmnew", ".rpmorig", ".rpmsave", "~")


@dataclass(frozen=True)
class Ifcfg(claim.Claim):
    """target: the file itself."""

    stack: ClassVar[str] = "ifcfg"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return set_value(text, "MTU", str(mtu))


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of interfaces with a file, by name or hardware address. Raises ReadError."""
    by_scripts, by_manager = host.has("ifup"), networkmanager.is_used(host)
    conf = networkmanager.read_configuration(host) if by_manager and not by_scripts else None
    for folder, is_used in zip(FOLDERS, (by_manager or by_scripts, host.has("wicked"))):
        for name in host.listdir_system(folder) if is_used else ():
            if not name.startswith("ifcfg-") or name.endswith(_BACKUPS):
                continue
            path = "%s/%s" % (folder, name)
            text = host.read_system(path) or ""
            found = parse(text)
            if found.get("ONBOOT") in ("no", "false", "n") or found.get("STARTMODE") in ("off", "manual"):
                continue
            mac = found.get("HWADDR", "")
            of = found.get("DEVICE", "" if mac else name[len("ifcfg-") :])
            for device in devices.values():
                if of not in ("", device.name):
                    continue
                if not mac or (device.permanent is not None and same_mac(mac, device.permanent)):
                    claims[device.name].append(_claim(host, path, text, device, conf, doubts[device.name]))
                elif device.permanent is None and (of or not device.kind):
                    doubts[device.name].append("whether %s is for %s is not known (HWADDR)" % (path, device.name))


def _claim(host: Host, path: str, text: str, device: Device, conf: Optional[Configuration], doubts: List[str]) -> Claim:
    """Make the claim of one file.   conf: of NetworkManager if it reads the file, else None."""
    found, folder, name = parse(text), path.rpartition("/")[0], device.name
    unmanaged, why = conf.unmanaged(device) if conf is not None else (False, "")
    if conf is not None and found.get("NM_CONTROLLED") == "no":
        unmanaged, why = True, "NM_CONTROLLED=no in %s" % path
    if unmanaged is None:
        doubts.append("whether NetworkManager manages %s is not known (%s)" % (name, why))
    if unmanaged:
        return networkmanager.unmanaged_claim(path, why)
    # NetworkManager takes rules from the ifcfg file itself, and leaves the others to a dispatcher's script.
    beside = conf is None or any(host.mode_system(one) is not None for one in _DISPATCHERS)
    rules, routes = (
        (host.read_system("%s/%s-%s" % (folder, kind, name)) or "").split("\n") for kind in ("rule", "route")
    )
    claim = Ifcfg(
        *(path, path, mtu_of(found.get("MTU", ""), path, doubts), path),
        before=text,
        mode=host.mode_system(path) or 0o644,
        reload=networkmanager.reload(host),
        addressing=parse_ifcfg(found, name, rules if beside else [], routes),
        priority=networkmanager.priority(found.get("AUTOCONNECT_PRIORITY", "")),
    )
    return claim if conf is None else networkmanager.with_default(claim, conf, device, doubts)


def parse(text: str) -> Dict[str, str]:
    """Variable -> value without its quotes, of plain assignments; the last of a variable counts."""
    found = {}
    for line in text.split("\n"):
        match = re.match(r"""\s*([A-Za-z_][A-Za-z0-9_]*)=(?:(['"])(.*?)(?:\2|$)|\s*(\S*))""", line)
        if match:
            found[match.group(1)] = match.group(3) if match.group(2) else match.group(4)
    return found


def set_value(text: str, key: str, value: str) -> str:
    if parse(text).get(key) == value:
        return text
    lines = text.split("\n")
    there = [n for n, line in enumerate(lines) if re.match(r"\s*%s=" % re.escape(key), line)]
    if there:
        lines[there[-1]] = "%s=%s" % (key, value)
        return "\n".join(lines)
    return "%s%s%s=%s\n" % (text, "" if not text or text.endswith("\n") else "\n", key, value)
