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
from ..core.plan import Command
from . import addressing, claim, networkmanager, networkmanager_conf
from .claim import Claim, Claims, Doubts, Table, mtu_of
from .device import Device, same_mac
from .networkmanager_conf import Configuration

FOLDERS = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
_DISPATCHERS = tuple(folder + "/NetworkManager/dispatcher.d/10-ifcfg-rh-routes.sh" for folder in ("/etc", "/usr/lib"))
_BACKUPS = (".bak", ".old", ".orig", ".rpmnew", ".rpmorig", ".rpmsave", "~")


@dataclass(frozen=True)
class Ifcfg(claim.Claim):
    """target: the file itself. ident: nmcli where NetworkManager reads it."""

    stack: ClassVar[str] = "ifcfg"
    secret: ClassVar[bool] = True

    def with_mtu(self, text: str, mtu: int) -> Optional[str]:
        return set_value(text, "MTU", str(mtu))

    def table_advice(self, table: Table, name: str) -> str:
        if self.ident == "nmcli":
            return networkmanager.nmcli_advice(table, '"$(nmcli -g GENERAL.CONNECTION device show %s)"' % name)
        if self.path.startswith(FOLDERS[1]):
            return super().table_advice(table, name)
        lines = (FOLDERS[0], name, "; ".join(table.rule_lines), "; ".join(table.route_lines))
        return "add lines to %s/rule-%s: %s; and to route-%s: %s" % (*lines[:3], name, lines[3])


def read(host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts) -> None:
    """Add claims of interfaces with a file, by name or hardware address. Raises ReadError."""
    used = (networkmanager.is_used(host) or host.has("ifup"), host.has("wicked"))
    again = networkmanager.reload(host) if any(used) else None
    by_scripts = host.has("ifup")
    conf = networkmanager_conf.read(host) if networkmanager.is_used(host) and not by_scripts else None
    for folder in (folder for folder, is_used in zip(FOLDERS, used) if is_used):
        for name in host.listdir_system(folder):
            if not name.startswith("ifcfg-") or name.endswith(_BACKUPS):
                continue
            path = "%s/%s" % (folder, name)
            text = host.read_system(path) or ""
            found = parse(text)
            if found.get("ONBOOT") in ("no", "false", "n") or found.get("STARTMODE") in ("off", "manual"):
                continue
            mac, of = found.get("HWADDR", ""), found.get("DEVICE", "" if found.get("HWADDR") else name[6:])
            for device in devices.values():
                if of and of != device.name:
                    continue
                if mac and device.permanent is None:
                    if not of and device.kind:
                        continue
                    doubts[device.name].append("whether %s is for %s is not known (HWADDR)" % (path, device.name))
                elif not mac or same_mac(mac, device.permanent or ""):
                    claims[device.name].append(_claim(host, path, text, device, conf, again, doubts[device.name]))


def _claim(
    host: Host,
    path: str,
    text: str,
    device: Device,
    conf: Optional[Configuration],
    again: Optional[Command],
    doubts: List[str],
) -> Claim:
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
    files = ["%s/%s-%s" % (folder, kind, name) for kind in ("rule", "route")]
    rules, routes = ((host.read_system(one) or "").split("\n") for one in files)
    given = addressing.parse_ifcfg(found, name, rules if beside else [], routes)
    mtu, mode = mtu_of(found.get("MTU", ""), path, doubts), host.mode_system(path) or 0o644
    priority, ident = networkmanager.priority(found.get("AUTOCONNECT_PRIORITY", "")), "nmcli" if conf else ""
    claim = Ifcfg(path, path, mtu, path, ident, text, mode, reload=again, addressing=given, priority=priority)
    return claim if conf is None else networkmanager.with_default(claim, conf, device, doubts)


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
