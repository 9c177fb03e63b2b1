# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge limits: locked memory and open files of logins and services, and the size of /dev/shm."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..change import written
from ..core import fix_command, ini, mounts
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Problem
from ..core.number import whole
from ..core.plan import FileChange, Plan, merge
from . import pam
from .read import LOGIN_FILE, SERVICE_FILE, UNITS, USER_CONF, LimitsState, parse_login

# Section and keys in systemd's configurations, and in units.
_MANAGER = ("Manager", {"memlock": "DefaultLimitMEMLOCK", "nofile": "DefaultLimitNOFILE"})
UNIT_KEYS = ("Service", {"memlock": "LimitMEMLOCK", "nofile": "LimitNOFILE"})
RUN = fix_command.run_tag("host_limits")
_MEMLOCK = "registering memory with a NIC locks it: below the limit NCCL fails with 'Cannot allocate memory'"
LOGIN = Check("host_limits.login", why=_MEMLOCK, fix=RUN, aspect="persisted")
"Will a login get unlimited locked memory and enough files"
SERVICE = Check("host_limits.service", why=_MEMLOCK, fix=RUN, aspect="persisted")
"Will a service get unlimited locked memory and enough files"
CONTAINERD = Check("host_limits.containerd", why=_MEMLOCK, fix=RUN, aspect="persisted")
"If configured: is containerd installed, and does its unit give containers the limits"
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

    def __str__(self) -> str:
        return "memlock unlimited, nofile at least %d" % self.nofile

    def low(self, values: Mapping[str, str], unlimited: str = "infinity") -> Set[str]:
        """Return the items that are too low. values: memlock and nofile, "soft:hard" or one for both; "" for none.

        unlimited: the only word for no limit. systemd ignores a line with another one, or with a suffix of nofile.
        """
        least = {"memlock": math.inf, "nofile": self.nofile}
        pairs = [(item, word) for item, value in values.items() for word in value.split(":")]
        return {item for item, word in pairs if word != unlimited and (whole(word) or 0) < least[item]}


def plan(have: LimitsState, want: LimitsWanted) -> Plan:
    files = (
        (LOGIN, LOGIN_FILE, render_login(want), not _low_logins(have, want), have.login),
        (SERVICE, SERVICE_FILE, render_service(want), not want.low(values_of(have.service, *_MANAGER)), have.service),
    )
    judged = [persisted(*file, want) for file in files]
    findings = [plan.findings[0] for plan in judged]
    findings += _groups(have)
    findings += [pam.judge(service, given) for service, given in have.sessions.items()]
    units = {unit: _unit(unit, files, want) for unit, files in have.units.items() if files}
    # One drop-in may be for several units.
    first = {found.source: found for found in reversed(list(units.values())) if not found.ok}
    roots = {unit: found.ok or first[found.source] is found for unit, found in units.items()}
    findings += [f if roots[unit] else replace(f, because=first[f.source].id) for unit, f in units.items()]
    for name in sorted({*have.daemons, *have.unread}):
        processes = have.daemons.get(name, ())
        unit = units.get(UNITS.get(name, ""))
        # Started by its unit, if every limit that is too low for the process is too low there.
        low = set().union(*(want.low(one, "unlimited") for one in processes))
        cause = unit is not None and low and low <= want.low(_unit_limits(UNITS[name], have.units[UNITS[name]])[0])
        findings.append(_daemon(name, processes, have.unread.get(name), want, unit if cause else None))
    if want.shm:
        findings.append(_shm(have, want))
    return merge(*judged)._replace(findings=tuple(findings))


def render_login(want: LimitsWanted) -> str:
    lines = ["# Written by Busbar (role host_limits). An asterisk does not mean root, which has its own lines."]
    for domain in ("*", "root"):
        lines += ["%s - memlock unlimited" % domain, "%s - nofile %d" % (domain, want.nofile)]
    return written.seal(LOGIN_FILE, "\n".join(lines) + "\n")


def render_service(want: LimitsWanted) -> str:
    text = "# Written by Busbar (role host_limits).\n[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=%d\n"
    return written.seal(SERVICE_FILE, text % want.nofile)


def _low_logins(have: LimitsState, want: LimitsWanted) -> Set[str]:
    values: Dict[Tuple[str, str, str], str] = {}
    for _path, text in have.login:
        values.update(parse_login(text))
    pairs = [(domain, kind) for domain in ("*", "root") for kind in ("soft", "hard")]
    limits = [{item: values.get((*pair, item), "") for item in UNIT_KEYS[1]} for pair in pairs]
    return set().union(*(want.low(one, "unlimited") for one in limits))


def values_of(files: Iterable[Tuple[str, str]], section: str, keys: Mapping[str, str]) -> Dict[str, str]:
    """Return memlock and nofile, "" for none, of units or of systemd's configuration."""
    found = {one.key: one.value for _path, one in _settings(files, section)}
    return {item: found.get(key, "") for item, key in keys.items()}


def _settings(files: Iterable[Tuple[str, str]], section: str) -> List[Tuple[str, ini.Setting]]:
    return [(path, one) for path, text in files for one in ini.settings(text) if one.section == section]


def _unit_limits(name: str, files: Mapping[str, str]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the limits that a unit, or user.conf, sets itself, and the file of each."""
    section, keys = _MANAGER if name == USER_CONF else UNIT_KEYS
    own = {item: value for item, value in values_of(files.items(), section, keys).items() if value}
    paths = {one.key: path for path, one in _settings(files.items(), section)}
    return own, {item: paths[keys[item]] for item in own}


def _unit(name: str, files: Mapping[str, str], want: LimitsWanted) -> Finding:
    """Judge what a unit, or user.conf, sets itself; otherwise systemd's defaults count, which are judged elsewhere."""
    keys = (_MANAGER if name == USER_CONF else UNIT_KEYS)[1]
    own, paths = _unit_limits(name, files)
    low = [item for item in own if item in want.low(own)]
    have = ", ".join("%s=%s in %s" % (keys[item], own[item], paths[item]) for item in (low or own))
    of_users = name == USER_CONF or name.startswith("user@")
    start = "have users log in again" if of_users else "on a drained node systemctl restart %s" % name
    lines = " and ".join("%s=%s" % (keys[item], "infinity" if item == "memlock" else want.nofile) for item in low)
    source = paths[low[0]] if low else list(files)[-1]
    # The package's next update replaces its own file.
    place = "there" if source.startswith("/etc/") or of_users else "by systemctl edit %s, below [Service]" % name
    fix = "set %s %s; then systemctl daemon-reload, and %s" % (lines, place, start)
    have = have or "systemd's defaults"
    return UNIT.judge(name, "not_owned" if low else "ok", str(want), have, source, fix)


def _groups(have: LimitsState) -> List[Finding]:
    """Groups and users who are given less locked memory than all others."""
    limits: Dict[str, Dict[str, Tuple[str, str]]] = {}
    for path, text in have.login:
        for (domain, kind, item), value in parse_login(text).items():
            # "%" counts logins, and root and all others are judged with our own file.
            if item == "memlock" and domain not in ("*", "root") and not domain.startswith("%"):
                limits.setdefault(domain, {})[kind] = (value, path)
    findings = []
    for domain, kinds in sorted(limits.items()):
        low = {kind: one for kind, one in kinds.items() if one[0] != "unlimited"}
        for value, path in list(low.values())[:1]:
            have_text = "%s memlock %s for %s" % (" and ".join(sorted(low)), value, domain)
            fix = "remove the line from %s, or set it to unlimited there" % path
            subject = "%s %s" % (path, printable(domain))
            findings.append(GROUP.judge(subject, "not_owned", "memlock unlimited", have_text, path, fix))
    return findings


def persisted(
    check: Check, path: str, text: str, good: bool, there: Iterable[Tuple[str, str]], want: LimitsWanted
) -> Plan:
    """Judge a file of ours. text: as it has to be. good: the limits are. there: all files that are read with it."""
    texts = dict(there)  # in the order that they are read in
    before = texts.get(path)
    files = written.compare([FileChange(path, before, text)])
    if good and (before is None or (files.wrong and not files.severity)):
        # Another file gives the limits, or ours gives more.
        files = written.collect([])
    have, fix, state, severity = files.wrong or "as wanted", RUN, files.state, files.severity
    if not good and before is None:
        have = "no file gives these limits: %s" % have
    if not good and (not files.wrong or files.severity is not None):
        names = list(texts)
        later = " and ".join(other for other in names[names.index(path) + 1 :] if "/" in other)
        have = "a later file than %s overrides it (%s)" % (path, later or "another file in that directory")
        fix = "correct its limits in %s" % (later or "the file that is not Busbar's")
        state, severity = "not_owned", None
    found = check.judge(path, state, want=str(want), have=have, fix=fix, severity=severity)
    return Plan((found,), files.changes, notes=files.notes)


def _daemon(
    name: str,
    processes: Sequence[Mapping[str, str]],
    unread: Optional[Problem],
    want: LimitsWanted,
    because: Optional[Finding],
) -> Finding:
    """One for all processes of that name: the worst counts."""
    unit = UNITS.get(name, name + ".service")
    low = [limits for limits in processes if want.low(limits, "unlimited")]
    if unread is not None and not low:
        state, have = "unknown", str(unread)
    else:
        state = "drift" if low else "ok"
        values = [[limits[item] for item in UNIT_KEYS[1]] for limits in low or processes]
        worst = min(values, key=lambda pair: [math.inf if value == "unlimited" else int(value) for value in pair])
        have = "memlock %s, nofile %s" % tuple(worst)
        if low and len(processes) > 1:
            have += " (%d of %d processes have too little)" % (len(low), len(processes))
    return DAEMON.judge(
        name,
        state,
        want=str(want),
        have=have,
        source="/proc/PID/limits of %s" % name,
        fix="on a drained node: systemctl daemon-reexec && systemctl restart %s; if it stays, look for LimitMEMLOCK and"
        " LimitNOFILE in systemctl cat %s" % (unit, unit),
        because=because,
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
