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
from typing import Any, Dict, List, Mapping, Optional, Tuple

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
SERVICE, TIMER = DRIFT.paths
OWN = (*DRIFT.paths, *MEASURE.paths)
# Options of the module, which ``wanted`` has checked; None for absent. measure_schedule: "" for no timer of busbar
# measure; None: it stays.
Options = Mapping[str, Any]
Wanted = Optional[Options]
# Properties of a timer and of its service, as systemctl show gives them.
Units = Tuple[Mapping[str, str], Mapping[str, str]]


@dataclass(frozen=True)
class TimerState:
    """files: of OWN, None if absent. user: it exists. config: the directory has an ansible.cfg.

    missing: paths that the service needs, and what is wrong.   measure: None if not wanted and absent.
    """

    files: Mapping[str, Optional[str]]
    drift: Units
    measure: Optional[Units] = None
    user: bool = True
    config: bool = False
    missing: Tuple[Tuple[str, str], ...] = ()


def wanted(given: Options) -> Wanted:
    """Return the module's options if they can be meant; None for absent. Raises ParseError that names the option."""
    if given["state"] == "absent":
        return None
    for name in ("directory", "command", "inventory"):
        if not given[name]:
            raise ParseError("%s is empty; the timer needs it" % name)
    for name, path in (("directory", given["directory"]), ("command", given["command"][0])):
        if not path.startswith("/"):
            raise ParseError("%s is %r, expected an absolute path" % (name, path))
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", given["user"]):
        raise ParseError("user is %r, expected the name of a user" % given["user"])
    if given["keep_days"] < LEAST_DAYS:
        raise ParseError("keep_days is %d, expected %d or more" % (given["keep_days"], LEAST_DAYS))
    for name in given["environment"]:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ParseError("environment has %r, which is not a name of a variable" % name)
        if redaction.is_secret_name(name):
            raise ParseError("environment has %s: everybody can read a unit; let it name a file" % name)
    texts = [given[name] or "" for name in ("schedule", "measure_schedule", "delay", "directory", "webhook_file")]
    texts += [str(value) for value in given["environment"].values()]
    texts += [word for name in ("command", "inventory", "options", "measure_options", "notify") for word in given[name]]
    for text in texts:
        if printable(text) != text:
            raise ParseError("%s is not a text for a unit" % ascii(text))
    return given


def read(host: Host, want: Wanted) -> TimerState:
    """Raises ReadError, and ParseError for a time that systemd does not take."""
    files = {path: host.read_system(path) for path in OWN}
    drift = _units(host, DRIFT)
    asked_for = want is not None and want["measure_schedule"]
    measure = _units(host, MEASURE) if asked_for or any(files[path] is not None for path in MEASURE.paths) else None
    if want is None:
        return TimerState(files, drift, measure)
    times = [("schedule", "calendar"), ("delay", "timespan")]
    for name, verb in times + ([("measure_schedule", "calendar")] if want["measure_schedule"] else []):
        done = host.run(["systemd-analyze", verb, "--", want[name]])
        if done.rc != 0:
            raise ParseError("%s is %r: %s" % (name, want[name], done.last_words))
    asked = host.run(["getent", "passwd", want["user"]])
    if asked.rc != 2:
        asked.answer()
    config = host.mode_system("%s/ansible.cfg" % want["directory"]) is not None
    return TimerState(files, drift, measure, asked.rc == 0, config, tuple(_missing(host, want)))


def _units(host: Host, job: Job) -> Units:
    result = ("Result", "ExecMainStatus", "ExecMainExitTimestampMonotonic")
    timer = _properties(host, "%s.timer" % job.name, "UnitFileState", "ActiveState")
    return timer, _properties(host, "%s.service" % job.name, *result)


def _properties(host: Host, unit: str, *names: str) -> Dict[str, str]:
    text = host.query(["systemctl", "show", unit, "--property=%s" % ",".join(names)])
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise ParseError("systemctl show %s: no %s in it" % (unit, ", ".join(lacking)))
    return found


def _missing(host: Host, want: Options) -> List[Tuple[str, str]]:
    programs = [want["command"][0], *(path for path in want["notify"][:1] if path.startswith("/"))]
    inventory = [path if path.startswith("/") else "%s/%s" % (want["directory"], path) for path in want["inventory"]]
    found = []
    for path in filter(None, [*programs, want["directory"], *inventory, want["webhook_file"]]):
        mode = host.mode_system(path)
        if mode is None:
            found.append((path, "it is not there"))
        elif path in programs and not mode & 0o111:
            found.append((path, "it cannot be executed"))
        elif path in inventory and mode & 0o002:
            found.append((path, "everybody can write it (chmod o-w), and busbar drift refuses it"))
    return found


# -- the plan --------------------------------------------------------------------------------------------------------


def render(want: Options, config: bool) -> Dict[str, str]:
    """Return path -> text of our files."""
    environment = {"PATH": "%s:%s" % (want["command"][0].rpartition("/")[0], _PATH)}
    environment.update({"ANSIBLE_CONFIG": "%s/ansible.cfg" % want["directory"]} if config else {})
    environment.update({name: str(value) for name, value in sorted(want["environment"].items())})
    inventory = [word for path in want["inventory"] for word in ("-i", path)]
    drift = ["--history", "%s/drift.sqlite" % STATE, "--keep-days", str(want["keep_days"])]
    drift += ["--notify", shlex.join(want["notify"])] if want["notify"] else []
    drift += ["--webhook", want["webhook_file"]] if want["webhook_file"] else []
    jobs = [(DRIFT, want["schedule"], ["drift", *inventory, *drift, *want["options"]])]
    if want["measure_schedule"]:
        jobs.append((MEASURE, want["measure_schedule"], ["measure", *inventory, *want["measure_options"]]))
    found = {}
    for job, schedule, words in jobs:
        values = {
            "name": job.name,
            "what": job.what,
            "user": want["user"],
            "directory": want["directory"].replace("%", "%%"),
            "environment": "\n".join("Environment=%s" % _quoted("%s=%s" % one) for one in environment.items()),
            # Only there a dollar stands for a variable.
            "command": " ".join(_quoted(word).replace("$", "$$") for word in (*want["command"], *words)),
            "schedule": schedule.replace("%", "%%"),
            "delay": want["delay"].replace("%", "%%"),
        }
        for path, text in ((job.service, _SERVICE_TEXT), (job.timer, _TIMER_TEXT)):
            found[path] = written.seal(path, text % values, sorted(values.items()))
    return found


def _quoted(word: str) -> str:
    """Quote a word for systemd."""
    if _PLAIN.fullmatch(word):
        return word
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def plan(have: TimerState, want: Wanted) -> Plan:
    texts = render(want, have.config) if want else {}
    stops: List[Command] = []
    starts: List[Command] = []
    findings: List[Finding] = []
    changes: List[FileChange] = []
    notes: List[str] = []
    for job, units in ((DRIFT, have.drift), (MEASURE, have.measure)):
        undecided = job is MEASURE and want is not None and want["measure_schedule"] is None
        if units is None or undecided:
            notes += [_UNDECIDED % MEASURE.timer] if units else []
            continue
        files = written.compare(FileChange(path, have.files[path], texts.get(path)) for path in job.paths)
        changes += files.changes
        notes += files.notes
        asked_for = job.service in texts
        wants = "a service and its timer as configured" if asked_for else "no timer"
        found = _judged(UNITS, job.service, files.wrong, wants, aspect="persisted")
        findings.append(replace(found, severity=files.severity or found.severity))
        unit, (timer, service) = "%s.timer" % job.name, units
        enabled, active = timer["UnitFileState"] == "enabled", timer["ActiveState"] == "active"
        if asked_for:
            state = "%s, %s" % (timer["UnitFileState"] or "not there", timer["ActiveState"])
            wrong = "" if enabled and active else state
            findings += [_judged(ENABLED, unit, wrong, "enabled, active", aspect="persisted"), *_last(job, service)]
            if files.changes or wrong:
                starts.append(Command(("systemctl", "enable", unit), "the timer has to start at boot"))
                starts.append(Command(("systemctl", "restart", unit), "the timer has to take its new schedule"))
        elif enabled or active:
            stops.append(Command(("systemctl", "disable", "--now", unit), "the timer is no longer wanted"))
    if want is not None:
        user = "" if have.user else "there is none"
        findings.append(_judged(USER, want["user"], user, "a user to run as", aspect="persisted"))
        findings += [_judged(INPUT, path, text, "there, as the service needs it") for path, text in have.missing]
        # ssh runs a ProxyCommand by the user's shell.
        argv = ("useradd", "--system", "--user-group", "--create-home", "--home-dir", STATE, "--shell", "/bin/sh")
        add = Command((*argv, want["user"]), "the service needs a user to run as")
        stops += [] if have.user else [add]
    stops += [Command(("systemctl", "daemon-reload"), "systemd has to load the units")] if changes else []
    return Plan(tuple(findings), tuple(changes), (*stops, *starts), notes=tuple(notes))


def _last(job: Job, service: Mapping[str, str]) -> List[Finding]:
    """Judge the last run since the boot; nothing where there was none."""
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


def work(host: Host, given: Options, check_mode: bool) -> Dict[str, Any]:
    want = wanted(given)

    def look() -> Plan:
        units = effective_unit.overrides(host, UNITS, OWN if want else ())
        return merge(plan(read(host, want), want), units)

    return apply.converge(host, check_mode, look, apply.execute_service)
