# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find what systemd will run for a unit at the next boot: masks, files in front, foreign drop-ins, units that want it.

Sources: systemd.unit(5), systemd.exec(5), systemctl(1) of systemd 252.
"""

from __future__ import annotations

from typing import Collection, List, Optional

from . import ini
from .check import Check
from .finding import Finding
from .host import Host
from .plan import Plan
from .systemd_files import read, wanted

_OFF = ("", *ini.FALSE)
# Settings after which a unit does something else, or can do less. Limits, logging and order change nothing.
_EFFECTIVE = (
    *("ExecStart", "ExecCondition", "Type", "User", "DynamicUser", "RootDirectory", "RootImage", "PrivateDevices"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ReadOnlyPaths", "InaccessiblePaths", "PrivateNetwork"),
    *("PrivateUsers", "CapabilityBoundingSet", "SystemCallFilter", "RestrictAddressFamilies"),
    *("OnCalendar", "OnBootSec", "OnActiveSec", "Unit"),
)
_PATHS = ("PathExists", "PathIsDirectory", "FileNotEmpty", "PathIsReadWrite", "FileIsExecutable")


def idle(host: Host, name: str) -> str:
    """Return why the boot does not start a unit; "" if it does, or if its file is not there to know that by."""
    unit = read(host, name)
    if unit.masked:
        return "%s is masked (%s)" % (name, unit.path)
    installs = any(one.section == "Install" for _path, text in unit.parts for one in ini.settings(text))
    return "" if not installs or wanted(host, name) else "%s is disabled: nothing starts it at boot" % name


def overrides(host: Host, check: Check, own: Collection[str], names: Collection[str] = ()) -> Plan:
    """Judge changes that others make to our units: one finding for each foreign file, or file that others may change.

    own: paths of our files. names: other units, and instances of ours, that have to run as they are.
    """
    findings = {one.subject: one for one in owned_by_others(host, check, own)}
    for name in [*names, *(path.rpartition("/")[2] for path in own if path.endswith((".service", ".timer")))]:
        unit = read(host, name)
        # An empty file of ours is not as written. The administrator of instances knows which of them may be masked.
        if unit.masked and unit.path not in own and "@" not in name:
            fix = "find out why it is masked; then run systemctl unmask %s" % name
            findings[unit.path] = check.judge(unit.path, "not_owned", "%s runs" % name, "it is masked", fix=fix)
        for path, text in unit.parts if unit.path in own or name in names else ():
            if path not in (*own, unit.path):
                judged = [_judge(host, check, name, path, one) for one in ini.settings(text)]
                findings.update((path, finding) for finding in judged if finding is not None)
    return Plan(tuple(findings.values()))


def owned_by_others(host: Host, check: Check, own: Collection[str]) -> List[Finding]:
    """Judge files of ours that others than root may change: root runs them, or what they name."""
    doubts = [(path, host.doubt(path)) for path in own if host.is_file_system(path)]
    want, fix = "only root may change it", "chown root:root and chmod go-w %s, or its parent folder that is named here"
    found = [(path, doubt) for path, doubt in doubts if doubt]
    return [check.judge("owner of " + path, "not_owned", want, doubt, path, fix % path) for path, doubt in found]


def _judge(host: Host, check: Check, name: str, path: str, setting: ini.Setting) -> Optional[Finding]:
    """Return a finding; None for a setting that does not change what the unit does."""
    key, value = setting.key, setting.value
    state, said = "not_owned", "it sets %s=%s" % (key, value)
    if setting.section == "Unit" and key.startswith(("Condition", "Assert")):
        holds = _holds(host, key.replace("Assert", "Condition")[len("Condition") :], value)
        state = "unknown" if holds is None else "ok" if holds else state
        said += ", and it is unknown whether it is met" if holds is None else ", which is not met"
    elif key not in _EFFECTIVE or (value.lower() in _OFF and not key.startswith("Exec")):
        return None
    fix = "take %s= out of %s, then systemctl daemon-reload" % (key, path)
    return None if state == "ok" else check.judge(path, state, "%s runs as written" % name, said, path, fix)


def _holds(host: Host, kind: str, value: str) -> Optional[bool]:
    """Return whether a condition is met; None if that cannot be known here."""
    wanted, text = value[:1] != "!", value.lstrip("!")
    if kind in _PATHS and text.startswith("/"):
        look = host.realpath if text.startswith(("/sys/", "/proc/")) else host.mode_system
        return (look(text) is not None) == wanted
    if kind == "KernelCommandLine":
        words = (host.read("/proc/cmdline") or "").split()
        return any(text in (word, word.partition("=")[0]) for word in words) == wanted
    return None if value else True
