# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run ``busbar drift`` every night on the control node, and ``busbar measure`` if wanted.

A service and a timer for each, their user, and the result of the last run.

Sources: systemd.service(5), systemd.timer(5), systemd.exec(5), systemd.syntax(7).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .change import apply, module, written
from .core import effective_unit, redaction
from .core.check import Check
from .core.finding import Finding, printable
from .core.host import Host, ParseError
from .core.plan import Command, FileChange, Plan, merge

_FOLDER = "/etc/systemd/system"
STATE = "/var/lib/busbar-drift"
# Fewer days than busbar drift compares a run with.
LEAST_DAYS = 8
_RUN = "apply the role drift_timer to this host again"
_WHY = "a missed audit looks like one without findings"
UNITS = Check("drift_timer.units", why=_WHY, fix=_RUN)
"Are the service and the timer on the control node as the role writes them"
USER = Check("drift_timer.user", why=_WHY, fix=_RUN)
"Does the service's user exist"
ENABLED = Check("drift_timer.enabled", why=_WHY, fix=_RUN)
"Is the timer active, also after a boot"
INPUT = Check("drift_timer.input", why=_WHY, fix="put it there, or correct the variable")
"Does each path exist that the service needs: busbar, directory, inventory, webhook file, notification program"
LAST_RUN = Check("drift_timer.last_run", why=_WHY, fix="see journalctl -u for that service for the reason")
"Did the service's last run since the boot complete (with drift or without)"
_UNDECIDED = "drift_timer_measure_schedule is not set: %s is not judged, and stays; an empty text removes it"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./{}-]+")
_SERVICE_TEXT = """\
# Written by Busbar (role drift_timer).
[Unit]
Description=Busbar: %(what)s
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
User=%(user)s
WorkingDirectory=%(directory)s
%(environment)s
ExecStart=%(command)s
# Findings, and what could not be judged. 1 is a failure of the run, 4 a lock held by another run.
SuccessExitStatus=2 3
# Busbar ends Ansible, and writes down that it was interrupted.
KillMode=mixed
TimeoutStopSec=2min
# A run that hangs must not prevent the next one.
TimeoutStartSec=12h
StateDirectory=busbar-drift
StateDirectoryMode=0750
UMask=0027
PrivateTmp=yes
ProtectSystem=full
SyslogIdentifier=%(name)s
"""
_TIMER_TEXT = """\
# Written by Busbar (role drift_timer).
[Unit]
Description=Busbar: %(what)s

[Timer]
OnCalendar=%(schedule)s
RandomizedDelaySec=%(delay)s
AccuracySec=1s
# Run at boot if the machine was off at the scheduled time.
Persistent=true

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True)
class Job:
    """A service and its timer. what: it does."""

    name: str
    what: str

    @property
    def service(self) -> str:
        """The path of the unit."""
        return "%s/%s.service" % (_FOLDER, self.name)

    @property
    def timer(self) -> str:
        """The path of the unit."""
        return "%s/%s.timer" % (_FOLDER, self.name)

    @property
    def paths(self) -> Tuple[str, str]:
        return (self.service, self.timer)


DRIFT = Job("busbar-drift", "nodes are checked against the intent")
MEASURE = Job("busbar-measure", "idle nodes are measured, the oldest results first")
JOBS = (DRIFT, MEASURE)
SERVICE, TIMER = DRIFT.paths
OWN = (*DRIFT.paths, *MEASURE.paths)


@dataclass(frozen=True)
class TimerWanted:
    """command: argv of busbar, the first an absolute path. inventory: below ``directory`` where not absolute.

    options: of busbar drift. notify: argv. webhook: file with the address, empty for none.
    measure_schedule, measure_options: of busbar measure, which has no timer where the first is ""; None: it stays.
    """

    schedule: str
    delay: str
    user: str
    directory: str
    command: Tuple[str, ...]
    inventory: Tuple[str, ...]
    options: Tuple[str, ...]
    keep_days: int
    notify: Tuple[str, ...]
    webhook: str
    environment: Tuple[Tuple[str, str], ...]
    measure_schedule: Optional[str] = None
    measure_options: Tuple[str, ...] = ()


@dataclass(frozen=True)
class TimerState:
    """files: of OWN, None if absent. user: it exists. config: the directory has an ansible.cfg.

    timer, service: properties as systemctl show gives them. missing: paths that the service needs, and what is wrong.
    measure: the same two of busbar measure, None if not wanted and absent.
    """

    files: Mapping[str, Optional[str]]
    timer: Mapping[str, str]
    service: Mapping[str, str]
    user: bool = True
    config: bool = False
    missing: Tuple[Tuple[str, str], ...] = ()
    measure: Optional[Tuple[Mapping[str, str], Mapping[str, str]]] = None


def wanted(given: Mapping[str, Any]) -> Optional[TimerWanted]:
    """Return the wanted state of the module's options; None for absent. Raises ParseError that names the option."""
    if given["state"] == "absent":
        return None
    environment = {str(name): str(value) for name, value in given["environment"].items()}
    plain = ("schedule", "delay", "user", "directory", "keep_days", "measure_schedule")
    lists = ("command", "inventory", "options", "notify", "measure_options")
    want = TimerWanted(
        **{name: given[name] for name in plain},
        **{name: tuple(given[name]) for name in lists},
        webhook=given["webhook_file"],
        environment=tuple(sorted(environment.items())),
    )
    for name in ("directory", "command", "inventory"):
        if not given[name]:
            raise ParseError("%s is empty; the timer needs it" % name)
    for name, path in (("directory", want.directory), ("command", want.command[0])):
        if not path.startswith("/"):
            raise ParseError("%s is %r, expected an absolute path" % (name, path))
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", want.user):
        raise ParseError("user is %r, expected the name of a user" % want.user)
    if want.keep_days < LEAST_DAYS:
        raise ParseError("keep_days is %d, expected %d or more" % (want.keep_days, LEAST_DAYS))
    for name in environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ParseError("environment has %r, which is not a name of a variable" % name)
        if redaction.is_secret_name(name):
            raise ParseError("environment has %s: everybody can read a unit; let it name a file" % name)
    texts = [want.schedule, want.measure_schedule or "", want.delay, want.directory, want.webhook]
    texts += environment.values()
    for text in (*texts, *want.command, *want.inventory, *want.options, *want.measure_options, *want.notify):
        if printable(text) != text:
            raise ParseError("%s is not a text for a unit" % ascii(text))
    return want


def read(host: Host, want: Optional[TimerWanted]) -> TimerState:
    """Raises ReadError, and ParseError for a time that systemd does not take."""
    files = {path: host.read_system(path) for path in OWN}
    timer, service = _units(host, DRIFT)
    asked_for = want is not None and want.measure_schedule
    measure = _units(host, MEASURE) if asked_for or any(files[path] is not None for path in MEASURE.paths) else None
    if want is None:
        return TimerState(files, timer, service, measure=measure)
    times = [("schedule", "calendar", want.schedule), ("delay", "timespan", want.delay)]
    times += [("measure_schedule", "calendar", want.measure_schedule)] if want.measure_schedule else []
    for name, verb, text in times:
        done = host.run(["systemd-analyze", verb, "--", text])
        if done.rc != 0:
            raise ParseError("%s is %r: %s" % (name, text, done.last_words))
    asked = host.run(["getent", "passwd", want.user])
    if asked.rc != 2:
        asked.answer()
    return TimerState(
        files=files,
        timer=timer,
        service=service,
        user=asked.rc == 0,
        config=host.mode_system("%s/ansible.cfg" % want.directory) is not None,
        missing=tuple(_missing(host, want)),
        measure=measure,
    )


def _units(host: Host, job: Job) -> Tuple[Mapping[str, str], Mapping[str, str]]:
    """Properties of its timer, and of its service."""
    timer = _properties(host, "%s.timer" % job.name, "UnitFileState", "ActiveState")
    result = ("Result", "ExecMainStatus", "ExecMainExitTimestampMonotonic")
    return timer, _properties(host, "%s.service" % job.name, *result)


def _properties(host: Host, unit: str, *names: str) -> Dict[str, str]:
    text = host.query(["systemctl", "show", unit, "--property=%s" % ",".join(names)])
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise ParseError("systemctl show %s: no %s in it" % (unit, ", ".join(lacking)))
    return found


def _missing(host: Host, want: TimerWanted) -> List[Tuple[str, str]]:
    programs = [want.command[0], *(path for path in want.notify[:1] if path.startswith("/"))]
    others = [want.directory, *(_below(want.directory, path) for path in want.inventory)]
    found = []
    for path in [*programs, *others, *([want.webhook] if want.webhook else [])]:
        mode = host.mode_system(path)
        if mode is None:
            found.append((path, "it is not there"))
        elif path in programs and not mode & 0o111:
            found.append((path, "it cannot be executed"))
        elif path in others[1:] and mode & 0o002:
            found.append((path, "everybody can write it (chmod o-w), and busbar drift refuses it"))
    return found


def _below(directory: str, path: str) -> str:
    return path if path.startswith("/") else "%s/%s" % (directory, path)


# -- the plan --------------------------------------------------------------------------------------------------------


def render(want: TimerWanted, config: bool) -> Dict[str, str]:
    """Return path -> text of our files."""
    environment = {"PATH": "%s:%s" % (want.command[0].rpartition("/")[0], _PATH)}
    if config:
        environment["ANSIBLE_CONFIG"] = "%s/ansible.cfg" % want.directory
    environment.update(want.environment)
    inventory = [word for path in want.inventory for word in ("-i", path)]
    argv = [*want.command, "drift", *inventory]
    argv += ["--history", "%s/drift.sqlite" % STATE, "--keep-days", str(want.keep_days)]
    argv += ["--notify", shlex.join(want.notify)] if want.notify else []
    argv += ["--webhook", want.webhook] if want.webhook else []
    argv += want.options
    found = _rendered(DRIFT, want, environment, argv, want.schedule)
    if want.measure_schedule:
        argv = [*want.command, "measure", *inventory, *want.measure_options]
        found.update(_rendered(MEASURE, want, environment, argv, want.measure_schedule))
    return found


def _rendered(
    job: Job, want: TimerWanted, environment: Mapping[str, str], argv: Sequence[str], schedule: str
) -> Dict[str, str]:
    values = {
        "name": job.name,
        "what": job.what,
        "user": want.user,
        "directory": want.directory.replace("%", "%%"),
        "environment": "\n".join("Environment=%s" % _quoted("%s=%s" % one) for one in environment.items()),
        # Only there a dollar stands for a variable.
        "command": " ".join(_quoted(word).replace("$", "$$") for word in argv),
    }
    values.update(schedule=schedule.replace("%", "%%"), delay=want.delay.replace("%", "%%"))
    texts = {job.service: _SERVICE_TEXT % values, job.timer: _TIMER_TEXT % values}
    return {path: written.seal(path, text, sorted(values.items())) for path, text in texts.items()}


def _quoted(word: str) -> str:
    """Quote a word for systemd."""
    if _PLAIN.fullmatch(word):
        return word
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def plan(have: TimerState, want: Optional[TimerWanted]) -> Plan:
    texts = render(want, have.config) if want else {}
    stops: List[Command] = []
    starts: List[Command] = []
    findings: List[Finding] = []
    changes: List[FileChange] = []
    notes: List[str] = []
    for job, there in ((DRIFT, (have.timer, have.service)), (MEASURE, have.measure)):
        undecided = job is MEASURE and want is not None and want.measure_schedule is None
        if there is None or undecided:
            notes += [_UNDECIDED % MEASURE.timer] if there else []
            continue
        files = written.compare(FileChange(path, have.files[path], texts.get(path)) for path in job.paths)
        changed = files.changes
        changes += changed
        notes += files.notes
        asked_for = job.service in texts
        wants = "a service and its timer as configured" if asked_for else "no timer"
        found = _judged(UNITS, job.service, files.wrong, wants, aspect="persisted")
        findings.append(replace(found, severity=files.severity or found.severity))
        unit, (timer, service) = "%s.timer" % job.name, there
        enabled, active = timer["UnitFileState"] == "enabled", timer["ActiveState"] == "active"
        if asked_for:
            state = "%s, %s" % (timer["UnitFileState"] or "not there", timer["ActiveState"])
            wrong = "" if enabled and active else state
            findings += [_judged(ENABLED, unit, wrong, "enabled, active", aspect="persisted"), *_last(job, service)]
            if changed or wrong:
                starts.append(Command(("systemctl", "enable", unit), "the timer has to start at boot"))
                starts.append(Command(("systemctl", "restart", unit), "the timer has to take its new schedule"))
        elif enabled or active:
            stops.append(Command(("systemctl", "disable", "--now", unit), "the timer is no longer wanted"))
    commands = list(stops)
    if want is not None:
        user = "" if have.user else "there is none"
        findings.append(_judged(USER, want.user, user, "a user to run as", aspect="persisted"))
        findings += [_input(path, text) for path, text in have.missing]
        commands += [] if have.user else [_useradd(want.user)]
    commands += [Command(("systemctl", "daemon-reload"), "systemd has to load the units")] if changes else []
    return Plan(tuple(findings), tuple(changes), (*commands, *starts), notes=tuple(notes))


def _useradd(user: str) -> Command:
    # ssh runs a ProxyCommand by the user's shell.
    argv = ("useradd", "--system", "--user-group", "--create-home", "--home-dir", STATE, "--shell", "/bin/sh", user)
    return Command(argv, "the service needs a user to run as")


def _input(path: str, text: str) -> Finding:
    return _judged(INPUT, path, text, "there, as the service needs it")


def _last(job: Job, service: Mapping[str, str]) -> List[Finding]:
    """Since the boot; none where there was none."""
    result, status = service["Result"], service["ExecMainStatus"]
    if result == "success" and service["ExecMainExitTimestampMonotonic"] == "0":
        return []
    have = "" if result == "success" else "%s, status %s" % (result, status)
    fix = "see journalctl -u %s.service for the reason" % job.name
    return [_judged(LAST_RUN, "%s.service" % job.name, have, "a completed run", fix)]


def _judged(
    check: Check, subject: str, wrong: str, want: str, fix: Optional[str] = None, aspect: str = "live"
) -> Finding:
    """wrong: what is not as it should be; empty where it is."""
    source = subject if subject.startswith("/") else "systemctl show" if check is not USER else "getent passwd"
    return check.judge(subject, "drift" if wrong else "ok", want, wrong or "as wanted", source, fix, aspect=aspect)


# -- the module --------------------------------------------------------------------------------------------------

SPEC: module.Spec = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "schedule": {"type": "str", "default": "02:00"},
    "delay": {"type": "str", "default": "10m"},
    "user": {"type": "str", "default": "busbar"},
    "directory": {"type": "path", "default": ""},
    "command": {"type": "list", "elements": "str", "default": []},
    "inventory": {"type": "list", "elements": "str", "default": []},
    "options": {"type": "list", "elements": "str", "default": []},
    "keep_days": {"type": "int", "default": 400},
    "notify": {"type": "list", "elements": "str", "default": []},
    "webhook_file": {"type": "path", "default": ""},
    "environment": {"type": "dict", "default": {}},
    "measure_schedule": {"type": "str"},
    "measure_options": {"type": "list", "elements": "str", "default": []},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    want = wanted(given)

    def look() -> Plan:
        units = effective_unit.overrides(host, UNITS, OWN if want else ())
        return merge(plan(read(host, want), want), units)

    return apply.converge(host, check_mode, look, apply.execute_service)
