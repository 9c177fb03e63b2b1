# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge limits: locked memory and open files of logins and services, and the size of /dev/shm."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..change import written
from ..core import fix_command, mounts
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Problem
from ..core.plan import FileChange, Plan, merge
from . import pam
from .read import LOGIN_FILE, SERVICE_FILE, SUFFIXES, UNITS, USER_CONF, LimitsState, parse_login, parse_service

_SERVICE_KEYS = {"memlock": "DefaultLimitMEMLOCK", "nofile": "DefaultLimitNOFILE"}
_UNIT_KEYS = {"memlock": "LimitMEMLOCK", "nofile": "LimitNOFILE"}
UNLIMITED = "unlimited"
RUN = fix_command.run_tag("host_limits")
_MEMLOCK = "registering memory with a NIC locks it: below the limit NCCL fails with 'Cannot allocate memory'"
LOGIN = Check("host_limits.login", why=_MEMLOCK, fix=RUN, aspect="persisted")
"Will a login get unlimited locked memory and enough files"
SERVICE = Check("host_limits.service", why=_MEMLOCK, fix=RUN, aspect="persisted")
"Will a service get unlimited locked memory and enough files"
CONTAINERD = Check("host_limits.containerd", why=_MEMLOCK, fix=RUN, aspect="persisted")
"""If configured: is containerd installed, and does its unit give containers the limits; `not_owned` for the
containerd of k3s and rke2"""
UNIT = Check(
    "host_limits.unit",
    why="a limit in the unit itself overrides systemd's defaults, from its next start on and for all its processes",
    aspect="persisted",
)
"""Do the units and drop-ins of slurmd, dockerd, the kubelet and users' managers (`user@.service`, `user.conf`) leave
these limits unchanged at their next start"""
GROUP = Check(
    "host_limits.group",
    why="a line for a group or a user overrides the line for all users (*), in whatever file it is",
    severity="minor",
    aspect="persisted",
)
"Does no line in limits.d lower the locked memory of a group or user, which has priority over `*`"
DAEMON = Check(
    "host_limits.daemon",
    why="a job inherits the limits of the daemon that starts it; " + _MEMLOCK,
    # Running jobs may not outlive a restart of their container runtime.
    disruption="driver",
)
"""Do the running slurmd, containerd, dockerd and kubelet have the limits that jobs inherit; of several processes of
one name the worst counts"""
SHM = Check(
    "host_limits.shm",
    why="NCCL and data loaders share memory through /dev/shm: too small, jobs end with a bus error",
    fix="set size= for /dev/shm in /etc/fstab, then mount -o remount /dev/shm",
)
"Is `/dev/shm` large enough"


@dataclass(frozen=True)
class LimitsWanted:
    """nofile: least number of open files. shm: least bytes of /dev/shm, 0 for not wanted."""

    nofile: int
    shm: int


_Limits = Dict[str, Tuple[str, str]]


def plan(have: LimitsState, want: LimitsWanted) -> Plan:
    files = (
        (LOGIN_FILE, render_login(want), _login_ok(have, want), have.login, LOGIN),
        (SERVICE_FILE, render_service(want), _service_ok(have, want), have.service, SERVICE),
    )
    judged = [persisted(check, path, text, good, there, want) for path, text, good, there, check in files]
    findings = [plan.findings[0] for plan in judged]
    findings += _groups(have)
    findings += [pam.judge(service, given) for service, given in have.sessions.items()]
    units = {unit: _unit(unit, files, want) for unit, files in have.units.items() if files}
    # One drop-in may be for several units.
    first = {found.source: found for found in reversed(list(units.values())) if not found.ok}
    roots = {unit: found.ok or first[found.source] is found for unit, found in units.items()}
    findings += [f if roots[unit] else replace(f, because=first[f.source].id) for unit, f in units.items()]
    for name in sorted({*have.daemons, *have.unread}):
        found = _daemon(name, have.daemons.get(name, ()), have.unread.get(name), want)
        unit = units.get(UNITS.get(name, ""))
        # Started by its unit, if every limit that is too low for the process is too low there.
        low = set().union(*(_low(limits, want) for limits in have.daemons.get(name, ())))
        if unit is not None and low and low <= set(_unit_limits(UNITS[name], have.units[UNITS[name]], want)[1]):
            found = replace(found, because=unit.id)
        findings.append(found)
    if want.shm:
        findings.append(_shm(have, want))
    return replace(merge(*judged), findings=tuple(findings))


def render_login(want: LimitsWanted) -> str:
    lines = ["# Written by Busbar (role host_limits). An asterisk does not mean root, which has its own lines."]
    for domain in ("*", "root"):
        lines += ["%s - memlock unlimited" % domain, "%s - nofile %d" % (domain, want.nofile)]
    return written.seal(LOGIN_FILE, "\n".join(lines) + "\n")


def render_service(want: LimitsWanted) -> str:
    text = "# Written by Busbar (role host_limits).\n[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=%d\n"
    return written.seal(SERVICE_FILE, text % want.nofile)


def _login_ok(have: LimitsState, want: LimitsWanted) -> bool:
    values: Dict[Tuple[str, str, str], str] = {}
    for _path, text in have.login:
        values.update(parse_login(text))
    return all(
        enough(values.get((domain, kind, item), ""), least)
        for domain in ("*", "root")
        for kind in ("soft", "hard")
        for item, least in (("memlock", None), ("nofile", want.nofile))
    )


def _service_ok(have: LimitsState, want: LimitsWanted) -> bool:
    values: Dict[str, str] = {}
    for _path, text in have.service:
        values.update(parse_service(text))
    # "soft:hard", or one for both.
    return all(
        enough(part, least)
        for item, least in (("memlock", None), ("nofile", want.nofile))
        for part in values.get(_SERVICE_KEYS[item], "").split(":")
    )


def _unit_keys(name: str) -> Tuple[str, Dict[str, str]]:
    """Section and keys of the limits in a unit, or in user.conf."""
    return ("[Manager]", _SERVICE_KEYS) if name == USER_CONF else ("[Service]", _UNIT_KEYS)


def _unit_limits(name: str, files: Mapping[str, str], want: LimitsWanted) -> Tuple[_Limits, _Limits]:
    """Limits that a unit sets itself, each with its file, and those of them that are too low."""
    section, keys = _unit_keys(name)
    settings: _Limits = {}
    for path, text in files.items():
        for key, value in parse_service(text, section).items():
            settings[key] = (value, path)
    least = {"memlock": None, "nofile": want.nofile}
    own = {item: settings[key] for item, key in keys.items() if settings.get(key, ("",))[0]}
    low = {item: one for item, one in own.items() if not all(enough(part, least[item]) for part in one[0].split(":"))}
    return own, low


def _unit(name: str, files: Mapping[str, str], want: LimitsWanted) -> Finding:
    """Judge what a unit, or user.conf, sets itself; otherwise systemd's defaults count, which are judged elsewhere."""
    keys, least = _unit_keys(name)[1], {"memlock": None, "nofile": want.nofile}
    own, low = _unit_limits(name, files, want)
    have = ", ".join("%s=%s in %s" % (keys[item], value, path) for item, (value, path) in (low or own).items())
    of_users = name == USER_CONF or name.startswith("user@")
    start = "have users log in again" if of_users else "on a drained node systemctl restart %s" % name
    return UNIT.judge(
        name,
        "not_owned" if low else "ok",
        want="memlock unlimited, nofile at least %d" % want.nofile,
        have=have or "systemd's defaults",
        source=next(iter(low.values()))[1] if low else next(reversed(list(files))),
        fix="set %s there; then systemctl daemon-reload, and %s"
        % (" and ".join("%s=%s" % (keys[item], least[item] or "infinity") for item in low), start),
    )


def _groups(have: LimitsState) -> List[Finding]:
    """Groups and users who are given less locked memory than all others."""
    said: Dict[str, Dict[str, Tuple[str, str]]] = {}
    for path, text in have.login:
        for (domain, kind, item), value in parse_login(text).items():
            # "%" counts logins, and root and all others are judged with our own file.
            if item == "memlock" and domain not in ("*", "root") and not domain.startswith("%"):
                said.setdefault(domain, {})[kind] = (value, path)
    findings = []
    for domain, kinds in sorted(said.items()):
        low = {kind: one for kind, one in kinds.items() if not enough(one[0], None)}
        for value, path in list(low.values())[:1]:
            findings.append(
                GROUP.judge(
                    "%s %s" % (path, printable(domain)),
                    "not_owned",
                    want="memlock unlimited",
                    have="%s memlock %s for %s" % (" and ".join(sorted(low)), value, domain),
                    source=path,
                    fix="remove the line from %s, or set it to unlimited there" % path,
                )
            )
    return findings


def enough(value: str, least: Optional[int]) -> bool:
    """least: None for unlimited."""
    if value in (UNLIMITED, "infinity", "-1"):
        return True
    match = re.fullmatch(r"([0-9]{1,20})([KMGTPE]?)", value)
    return least is not None and match is not None and int(match.group(1)) << 10 * SUFFIXES[match.group(2)] >= least


def _amount(value: str) -> float:
    return math.inf if value == UNLIMITED else int(value)


def persisted(
    check: Check, path: str, text: str, good: bool, there: Iterable[Tuple[str, str]], want: LimitsWanted
) -> Plan:
    """Judge a file of ours. text: as it has to be. good: the limits are. there: all files that are read with it."""
    before = dict(there).get(path)
    files = written.compare([FileChange(path, before, text)])
    if good and (before is None or (files.wrong and not files.severity)):
        # Another file gives the limits, or ours gives more.
        files = written.collect([])
    names = list(dict(there))  # in the order that they are read in
    later = [other for other in names[names.index(path) + 1 :] if "/" in other] if path in names else []
    overridden = not good and (not files.wrong or files.severity is not None)
    have = files.wrong or "as wanted"
    fix = RUN
    if not good and before is None:
        have = "no file gives these limits: %s" % have
    if overridden:
        have = "a later file than %s overrides it (%s)" % (path, ", ".join(later) or "another file in that directory")
        fix = "correct its limits in %s" % (" and ".join(later) or "the file that is not Busbar's")
    found = check.judge(
        path,
        "not_owned" if overridden else files.state,
        want="memlock unlimited, nofile at least %d" % want.nofile,
        have=have,
        fix=fix,
        severity=None if overridden else files.severity,
    )
    return Plan((found,), files.changes, notes=files.notes)


def _low(limits: Tuple[str, str], want: LimitsWanted) -> Set[str]:
    """Return the limits of a process that are too low. limits: of locked memory and open files."""
    fits = {"memlock": enough(limits[0], None), "nofile": enough(limits[1], want.nofile)}
    return {item for item, fit in fits.items() if not fit}


def _daemon(name: str, processes: Sequence[Tuple[str, str]], unread: Optional[Problem], want: LimitsWanted) -> Finding:
    """One for all processes of that name: the worst counts."""
    low = [limits for limits in processes if _low(limits, want)]
    if unread is not None and not low:
        state, have = "unknown", str(unread)
    else:
        state = "drift" if low else "ok"
        have = "memlock %s, nofile %s" % min(low or processes, key=lambda limits: tuple(map(_amount, limits)))
        if low and len(processes) > 1:
            have += " (%d of %d processes have too little)" % (len(low), len(processes))
    return DAEMON.judge(
        name,
        state,
        want="memlock unlimited, nofile at least %d" % want.nofile,
        have=have,
        source="/proc/PID/limits of %s" % name,
        fix="on a drained node: systemctl daemon-reexec && systemctl restart %s; if it stays, look for LimitMEMLOCK and"
        " LimitNOFILE in systemctl cat %s" % (name, name),
    )


def _shm(have: LimitsState, want: LimitsWanted) -> Finding:
    state = "unknown" if have.problems else "ok" if (have.shm or 0) >= want.shm else "drift"
    text = str(have.problems[0]) if have.problems else "not mounted" if have.shm is None else gib(have.shm)
    if state == "ok" and have.planned_shm is not None and have.planned_shm < want.shm:
        text = "%s from the next boot on" % gib(have.planned_shm)
        return SHM.judge("/dev/shm", "drift", "at least %s" % gib(want.shm), text, mounts.FSTAB, aspect="persisted")
    return SHM.judge("/dev/shm", state, "at least %s" % gib(want.shm), text, mounts.PATH)


def gib(size: int) -> str:
    return "%.1f GiB" % (size / (1 << 30))
