# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar drift`` every night on the control node: a service, a timer, their user, and what the last run came to.

Sources: systemd.service(5), systemd.timer(5), systemd.exec(5), systemd.syntax(7).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .change import apply
from .core import redaction
from .core.check import Check
from .core.finding import Finding, printable
from .core.host import Host, ParseError
from .core.plan import Command, FileChange, Plan

SERVICE = "/etc/systemd/system/busbar-drift.service"
TIMER = "/etc/systemd/system/busbar-drift.timer"
OWN = (SERVICE, TIMER)
STATE = "/var/lib/busbar-drift"
# Fewer nights than busbar drift compares a night with.
LEAST_DAYS = 8
_UNIT = "busbar-drift.timer"
_RUN = "play the role drift_timer for this host again"
_WHY = "a night in which nobody asks the nodes looks like one in which all are well"
UNITS = Check("drift_timer.units", why=_WHY, fix=_RUN)
"Are the service and the timer there on the control node, as the role makes them"
USER = Check("drift_timer.user", why=_WHY, fix=_RUN)
"Is the user there whom the service runs as"
ENABLED = Check("drift_timer.enabled", why=_WHY, fix=_RUN)
"Does the timer wait for the night, also after a boot"
INPUT = Check("drift_timer.input", why=_WHY, fix="put it there, or correct the variable")
"Is each path there that the service needs: busbar, directory, inventory, webhook's file, program that is notified"
LAST_RUN = Check("drift_timer.last_run", why=_WHY, fix="see journalctl -u busbar-drift.service for the reason")
"Did the service's last run since the boot come to its end (to find drift is an end)"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./{}-]+")
_SERVICE_TEXT = """\
# Written by Busbar (role drift_timer).
[Unit]
Description=Busbar: what differs from the intent tonight
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
User=%(user)s
WorkingDirectory=%(directory)s
%(environment)s
ExecStart=%(command)s
# Drift, and hosts without a full answer. With 1 the run itself has failed, with 4 another run has the lock.
SuccessExitStatus=2 3
# Busbar ends Ansible, and writes down that it was interrupted.
KillMode=mixed
TimeoutStopSec=2min
# One that hangs must not cost the next night.
TimeoutStartSec=12h
StateDirectory=busbar-drift
StateDirectoryMode=0750
UMask=0027
PrivateTmp=yes
ProtectSystem=full
SyslogIdentifier=busbar-drift
"""
_TIMER_TEXT = """\
# Written by Busbar (role drift_timer).
[Unit]
Description=Busbar: the nightly check

[Timer]
OnCalendar=%s
RandomizedDelaySec=%s
AccuracySec=1s
# After a night in which this machine was off.
Persistent=true

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True)
class Want:
    """command: argv of busbar, the first an absolute path. inventory: below ``directory`` where not absolute.

    options: of busbar drift. notify: argv. webhook: file with the address, empty for none.
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


@dataclass(frozen=True)
class Have:
    """files: of OWN, None where there is none. user: it is there. config: the directory has an ansible.cfg.

    timer, service: properties as systemctl show gives them. missing: paths that the service needs, and what is wrong.
    """

    files: Mapping[str, Optional[str]]
    timer: Mapping[str, str]
    service: Mapping[str, str]
    user: bool = True
    config: bool = False
    missing: Tuple[Tuple[str, str], ...] = ()


def wanted(given: Mapping[str, Any]) -> Optional[Want]:
    """From the module's options; None where nothing shall be there. Raises ParseError that names the option."""
    if given["state"] == "absent":
        return None
    environment = {str(name): str(value) for name, value in given["environment"].items()}
    want = Want(
        schedule=given["schedule"],
        delay=given["delay"],
        user=given["user"],
        directory=given["directory"],
        command=tuple(given["command"]),
        inventory=tuple(given["inventory"]),
        options=tuple(given["options"]),
        keep_days=given["keep_days"],
        notify=tuple(given["notify"]),
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
            raise ParseError("environment has %r, which is no name of a variable" % name)
        if redaction.named(name):
            raise ParseError("environment has %s: everybody can read a unit; let it name a file" % name)
    texts = [want.schedule, want.delay, want.directory, want.webhook, *environment.values()]
    for text in (*texts, *want.command, *want.inventory, *want.options, *want.notify):
        if printable(text) != text:
            raise ParseError("%s is no text for a unit" % ascii(text))
    return want


def read(host: Host, want: Optional[Want]) -> Have:
    """Raises ReadError, and ParseError for a time that systemd does not take."""
    files = {path: host.read_system(path) for path in OWN}
    timer = _properties(host, _UNIT, "UnitFileState", "ActiveState")
    service = _properties(host, "busbar-drift.service", "Result", "ExecMainStatus", "ExecMainExitTimestampMonotonic")
    if want is None:
        return Have(files, timer, service)
    for name, verb, text in (("schedule", "calendar", want.schedule), ("delay", "timespan", want.delay)):
        done = host.run(["systemd-analyze", verb, "--", text])
        if done.rc != 0:
            raise ParseError("%s is %r: %s" % (name, text, done.last_words))
    asked = host.run(["getent", "passwd", want.user])
    if asked.rc != 2:
        asked.answer()
    return Have(
        files=files,
        timer=timer,
        service=service,
        user=asked.rc == 0,
        config=host.mode_system("%s/ansible.cfg" % want.directory) is not None,
        missing=tuple(_missing(host, want)),
    )


def _properties(host: Host, unit: str, *names: str) -> Dict[str, str]:
    text = host.ask(["systemctl", "show", unit, "--property=%s" % ",".join(names)])
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise ParseError("systemctl show %s: no %s in it" % (unit, ", ".join(lacking)))
    return found


def _missing(host: Host, want: Want) -> List[Tuple[str, str]]:
    programs = [want.command[0], *(path for path in want.notify[:1] if path.startswith("/"))]
    others = [want.directory, *(_below(want.directory, path) for path in want.inventory)]
    found = []
    for path in [*programs, *others, *([want.webhook] if want.webhook else [])]:
        mode = host.mode_system(path)
        if mode is None:
            found.append((path, "it is not there"))
        elif path in programs and not mode & 0o111:
            found.append((path, "it cannot be executed"))
    return found


def _below(directory: str, path: str) -> str:
    return path if path.startswith("/") else "%s/%s" % (directory, path)


# -- the plan --------------------------------------------------------------------------------------------------------


def render(want: Want, config: bool) -> Dict[str, str]:
    """Path -> text of our own files."""
    environment = {"PATH": "%s:%s" % (want.command[0].rpartition("/")[0], _PATH)}
    if config:
        environment["ANSIBLE_CONFIG"] = "%s/ansible.cfg" % want.directory
    environment.update(want.environment)
    argv = [*want.command, "drift"]
    for path in want.inventory:
        argv += ["-i", path]
    argv += ["--history", "%s/drift.sqlite" % STATE, "--keep-days", str(want.keep_days)]
    argv += ["--notify", shlex.join(want.notify)] if want.notify else []
    argv += ["--webhook", want.webhook] if want.webhook else []
    argv += want.options
    values = {
        "user": want.user,
        "directory": want.directory.replace("%", "%%"),
        "environment": "\n".join("Environment=%s" % _quoted("%s=%s" % one) for one in environment.items()),
        # Only there a dollar stands for a variable.
        "command": " ".join(_quoted(word).replace("$", "$$") for word in argv),
    }
    times = tuple(text.replace("%", "%%") for text in (want.schedule, want.delay))
    return {SERVICE: _SERVICE_TEXT % values, TIMER: _TIMER_TEXT % times}


def _quoted(word: str) -> str:
    """As systemd reads it."""
    if _PLAIN.fullmatch(word):
        return word
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def plan(have: Have, want: Optional[Want]) -> Plan:
    texts = render(want, have.config) if want else {}
    changes = tuple(
        FileChange(path, have.files[path], texts.get(path)) for path in OWN if have.files[path] != texts.get(path)
    )
    starts, runs = have.timer["UnitFileState"] == "enabled", have.timer["ActiveState"] == "active"
    units = _judged(
        UNITS,
        SERVICE,
        ", ".join(change.described() for change in changes),
        "a service and its timer as asked for" if want else "no timer",
        aspect="persisted",
    )
    reload = Command(("systemctl", "daemon-reload"), "systemd has to know the units")
    if want is None:
        stop = Command(("systemctl", "disable", "--now", _UNIT), "nothing shall start it any more")
        return Plan((units,), changes, ((stop,) if starts or runs else ()) + ((reload,) if changes else ()))
    state = "%s, %s" % (have.timer["UnitFileState"] or "not there", have.timer["ActiveState"])
    findings = [
        units,
        _judged(USER, want.user, "" if have.user else "there is none", "a user to run as", aspect="persisted"),
        _judged(ENABLED, _UNIT, "" if starts and runs else state, "enabled, active", aspect="persisted"),
        *(_input(path, text) for path, text in have.missing),
        *_last(have.service),
    ]
    commands = [] if have.user else [_useradd(want.user)]
    commands += [reload] if changes else []
    if changes or not (starts and runs):
        commands.append(Command(("systemctl", "enable", _UNIT), "it has to come back after a boot"))
        commands.append(Command(("systemctl", "restart", _UNIT), "it has to know its time"))
    return Plan(tuple(findings), changes, tuple(commands))


def execute(host: Host, planned: Plan) -> List[str]:
    """Raises ReadError where a file cannot be written, or systemd does not take it."""
    # A unit without its file cannot be disabled.
    first = [command for command in planned.commands if "disable" in command.argv]
    for command in first:
        apply.run(host, command)
    for change in planned.changes:
        apply.write(host, change)
    for command in planned.commands:
        if command not in first:
            apply.run(host, command)
    return []


def _useradd(user: str) -> Command:
    # ssh runs a ProxyCommand by the user's shell.
    argv = ("useradd", "--system", "--user-group", "--create-home", "--home-dir", STATE, "--shell", "/bin/sh", user)
    return Command(argv, "the run has to be somebody's")


def _input(path: str, text: str) -> Finding:
    return _judged(INPUT, path, text, "there, as the service needs it")


def _last(service: Mapping[str, str]) -> List[Finding]:
    """Since the boot; none where there was none."""
    result, status = service["Result"], service["ExecMainStatus"]
    if result == "success" and service["ExecMainExitTimestampMonotonic"] == "0":
        return []
    have = "" if result == "success" else "%s, status %s" % (result, status)
    return [_judged(LAST_RUN, "busbar-drift.service", have, "a run that came to its end")]


def _judged(
    check: Check, subject: str, wrong: str, want: str, fix: Optional[str] = None, aspect: str = "live"
) -> Finding:
    """wrong: what is not as it should be; empty where it is."""
    source = subject if subject.startswith("/") else "systemctl show" if check is not USER else "getent passwd"
    return check.judge(subject, "drift" if wrong else "ok", want, wrong or "as wanted", source, fix, aspect=aspect)
