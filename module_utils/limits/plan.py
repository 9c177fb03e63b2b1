# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits that verbs and NCCL run into: locked memory and open files of logins and services, and the size of /dev/shm.

A login takes its limits from pam_limits, a service from its unit or else from systemd's defaults when it is started.
Jobs inherit the present limits of the daemon that starts them; its unit has the future ones. Sources: limits.conf(5),
pam_limits of Linux-PAM 1.5, systemd.exec(5), systemd-system.conf(5), proc_pid_limits(5), tmpfs(5).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..change import written
from ..core import fix_command, mounts, systemd_files
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, ParseError, Problem, ReadError, noted
from ..core.plan import FileChange, Plan, merge
from . import pam

LOGIN_FILE = "/etc/security/limits.d/99-busbar.conf"
SERVICE_FILE = "/etc/systemd/system.conf.d/99-busbar.conf"
_LOGIN_MAIN, _LOGIN_FOLDER = "/etc/security/limits.conf", "/etc/security/limits.d"
_SERVICE_KEYS = {"memlock": "DefaultLimitMEMLOCK", "nofile": "DefaultLimitNOFILE"}
# A job inherits the limits of the daemon that starts it.
DAEMONS = ("slurmd", "containerd", "dockerd", "kubelet")
# Units whose own limits count before systemd's defaults: their jobs, sessions and services inherit them. That of
# containerd is container_limits's.
UNITS = {"slurmd": "slurmd.service", "dockerd": "docker.service", "kubelet": "kubelet.service", "": "user@.service"}
_UNIT_KEYS = {"memlock": "LimitMEMLOCK", "nofile": "LimitNOFILE"}
USER_CONF = "user.conf"
MEMINFO = "/proc/meminfo"
UNLIMITED = "unlimited"
# Of sizes in systemd's files, to the base of 1024.
_SUFFIXES = {suffix: power for power, suffix in enumerate(("", *"KMGTPE"))}
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


@dataclass(frozen=True)
class LimitsState:
    """login, service: files in the order in which they count, path -> text; the last one wins.
    daemons: name -> (locked memory, open files) of each process of that name, as /proc shows them.
    unread: name -> why the limits of one of them are not known. problems: of /dev/shm.
    shm: bytes, None where there is no /dev/shm. planned_shm: bytes by fstab, None where that names none.
    """

    login: Tuple[Tuple[str, str], ...]
    service: Tuple[Tuple[str, str], ...]
    daemons: Mapping[str, Tuple[Tuple[str, str], ...]]
    shm: Optional[int]
    planned_shm: Optional[int] = None
    problems: Tuple[Problem, ...] = ()
    unread: Mapping[str, Problem] = field(default_factory=dict)
    # By unit, of those that are there, and user.conf: files in the order in which they count, path -> text.
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By service that has a PAM stack: arguments of its pam_limits, None without.
    sessions: Mapping[str, Optional[str]] = field(default_factory=dict)


_Limits = Dict[str, Tuple[str, str]]

# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_login(text: str) -> Dict[Tuple[str, str, str], str]:
    """(domain, "soft" or "hard", item) -> value. Lines that pam_limits would not take are passed over, as it does."""
    found = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 4 and words[1] in ("soft", "hard", "-"):
            for kind in ("soft", "hard") if words[1] == "-" else (words[1],):
                found[(words[0], kind, words[2])] = words[3]
    return found


def parse_service(text: str, wanted: str = "[Manager]") -> Dict[str, str]:
    """Settings of one section; the last of two counts."""
    found, section = {}, ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        name, equals, value = line.partition("=")
        if equals and section == wanted and not line.startswith(("#", ";")):
            found[name.strip()] = value.strip()
    return found


def parse_proc_limits(text: str) -> Tuple[str, str]:
    """Soft limits (locked memory in bytes, open files) of /proc/PID/limits. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"Max (locked memory|open files) +(unlimited|[0-9]+) ", line)
        if match:
            found[match.group(1)] = match.group(2)
    if len(found) != 2:
        raise ParseError("no line 'Max locked memory' or 'Max open files' in it")
    return found["locked memory"], found["open files"]


def size_of_shm(mounted: Iterable[mounts.Mount], meminfo: str) -> Optional[int]:
    """Return the bytes that /dev/shm may hold; None where nothing is mounted there. Raises ParseError."""
    size = None
    for mount in mounted:
        if mount.folder == "/dev/shm":
            given = [option[5:] for option in mount.options if option.startswith("size=")]
            # A tmpfs without a size takes half of the memory.
            size = _bytes(given[-1] if given else "50%", meminfo)
    return size


def _bytes(text: str, meminfo: str) -> int:
    match = re.fullmatch(r"([0-9]+)([kmg%]?)", text.lower())
    if match is None:
        raise ParseError("size=%s of /dev/shm is not a size" % text[:20])
    if match.group(2) == "%":
        return _memory(meminfo) * int(match.group(1)) // 100
    return int(match.group(1)) << 10 * " kmg".index(match.group(2) or " ")


def _memory(meminfo: str) -> int:
    match = re.search(r"^MemTotal: +([0-9]+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise ParseError("%s: no line MemTotal in it" % MEMINFO)
    return int(match.group(1)) * 1024


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host) -> LimitsState:
    """Raises ReadError where the settings cannot be read."""
    problems: List[Problem] = []
    shm = planned = None
    with noted(mounts.PATH, problems):
        mounted, meminfo = host.read(mounts.PATH), host.read(MEMINFO)
        if mounted is None:
            problems.append(Problem(mounts.PATH, "is not there"))
        else:
            shm = size_of_shm(mounts.parse(mounted), meminfo or "")
            planned = size_of_shm(mounts.parse_fstab(host.read_system(mounts.FSTAB) or ""), meminfo or "")
    daemons, unread = _daemons(host)
    return LimitsState(
        login=_files(host, _LOGIN_MAIN, _LOGIN_FOLDER),
        service=tuple(systemd_files.configuration(host, "system.conf").items()),
        daemons=daemons,
        shm=shm,
        planned_shm=planned,
        problems=tuple(problems),
        unread=unread,
        units={
            USER_CONF: systemd_files.configuration(host, USER_CONF),
            **{unit: _unit_files(host, unit) for unit in (*UNITS.values(), *systemd_files.instances(host, UNITS[""]))},
        },
        sessions=pam.read(host),
    )


def _unit_files(host: Host, unit: str) -> Dict[str, str]:
    """None where only drop-ins for all services are there: it is not installed."""
    found = systemd_files.unit_files(host, unit)
    return found if any("/%s" % unit in path for path in found) else {}


def _files(host: Host, main: str, folder: str) -> Tuple[Tuple[str, str], ...]:
    names = ["%s/%s" % (folder, name) for name in host.listdir_system(folder) if name.endswith(".conf")]
    found = ((path, host.read_system(path)) for path in [main, *names])
    return tuple((path, text) for path, text in found if text is not None)


def _daemons(host: Host) -> Tuple[Dict[str, Tuple[Tuple[str, str], ...]], Dict[str, Problem]]:
    """Limits of the processes by name, and why those of one are not known."""
    found: Dict[str, Tuple[Tuple[str, str], ...]] = {}
    unread: Dict[str, Problem] = {}
    for pid in host.listdir("/proc"):
        if not pid.isdigit():
            continue
        path = "/proc/%s/limits" % pid
        try:
            name = host.read("/proc/%s/comm" % pid)
            text = host.read(path) if name in DAEMONS else None
        except ReadError:
            continue  # it has ended meanwhile
        if name is None or text is None:
            continue
        try:
            found[name] = (*found.get(name, ()), parse_proc_limits(text))
        except ParseError as error:
            unread[name] = Problem(path, str(error))
    return found, unread


# -- the plan --------------------------------------------------------------------------------------------------------


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
    return least is not None and match is not None and int(match.group(1)) << 10 * _SUFFIXES[match.group(2)] >= least


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
