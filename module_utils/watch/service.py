# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge the service that watches a node: a unit of systemd, and program.py with all that it imports.

It runs as root, since only root may read other users' processes and the kernel's log, and can do little else: it writes
to its own directory, connects to this machine only, and gets a fifth of a core at most.
Sources: systemd.service(5), systemd.exec(5), systemd.resource-control(5).
"""

from __future__ import annotations

import functools
import re
import time
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from ..change import written
from ..core import bundle, fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError
from ..core.number import whole
from ..core.plan import Command, FileChange, Plan
from . import program, ring

PROGRAM = "/usr/local/lib/busbar/watch.py"
UNIT = "busbar-watch.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
OWN = (PROGRAM, UNIT_FILE)
# Seconds without a sample of a GPU after which the watch sees nothing.
QUIET = 600.0
_RUN = fix_command.run_tag("watch")
_WHY = "without it nothing reports a job that stalls or a link that flaps while jobs run"
FILES = Check("watch.files", why=_WHY, fix=_RUN, severity="minor", aspect="persisted")
"Are the program and the unit of `busbar watch` as the role writes them; with `watch_enabled: false`, are they gone"
RUNNING = Check("watch.running", why=_WHY, fix=_RUN, severity="minor", aspect="persisted")
"Does the service run, now and after a boot"
SAMPLES = Check(
    "watch.samples",
    why="a watch that gets no samples of the GPUs reports no stall",
    fix="read journalctl -u %s, and run nvidia-smi on the node" % UNIT,
    severity="minor",
)
"Has the service stored a sample of the GPUs in the last ten minutes"
_PROPERTIES = ("UnitFileState", "ActiveState", "ActiveEnterTimestampMonotonic")
_PATH = re.compile(r"(?:/[A-Za-z0-9_@+=:,.-]+)*")
_HEAD = """\
#!/usr/bin/python3 -IS
# Written by Busbar (role watch): reports stalled jobs and flapping links of this node.
# Python modules of the collection busbar.fabric without their comments.
"""
_MAIN = """
from %s import program
program.main(sys.argv[1:])
""" % program.__name__.rpartition(".")[0]
_UNIT_TEXT = """\
# Written by Busbar (role watch).
[Unit]
Description=Busbar: running jobs and links are watched
After=nvidia-persistenced.service

[Service]
ExecStart=/usr/bin/python3 -I -S %(program)s%(options)s
Restart=always
RestartSec=60
StateDirectory=busbar/watch
StateDirectoryMode=0700
UMask=0077
# On average it takes far less than 0.5 %% of a core; a search for processes of a stalled job takes seconds.
Nice=10
CPUQuota=20%%
MemoryMax=512M
TasksMax=64
# Processes of other users, files of jobs, the kernel's log; devices of a driver that has just been loaded.
CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG CAP_MKNOD
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
IPAddressDeny=any
IPAddressAllow=localhost
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class ServiceState:
    """files, modes: of OWN, None if absent.   unit: properties as systemctl prints them; {} without systemd.

    runs: seconds since the service was started; None: not known.   sampled: seconds since the last sample of a GPU;
    None: none in QUIET seconds.
    """

    files: Mapping[str, Optional[str]]
    modes: Mapping[str, Optional[int]]
    unit: Mapping[str, str] = field(default_factory=dict)
    runs: Optional[float] = None
    sampled: Optional[float] = None


def read(host: Host, enabled: bool) -> ServiceState:
    """Raises ReadError, ParseError."""
    files = {path: host.read_system(path) for path in OWN}
    modes = {path: host.mode_system(path) for path in OWN}
    if not (enabled or any(modes.values())) or not host.has("systemctl"):
        return ServiceState(files, modes)
    text = host.query(["systemctl", "show", UNIT, "--property=" + ",".join(_PROPERTIES)])
    unit = dict(line.partition("=")[::2] for line in text.splitlines())
    if not set(_PROPERTIES) <= set(unit):
        raise ParseError("systemctl show %s prints no %s" % (UNIT, ", ".join(_PROPERTIES)))
    started, now = whole(unit[_PROPERTIES[2]]), time.time()
    # Of the same clock, which a container shares with its host.
    runs = time.monotonic() - started / 1e6 if started else None
    times = [float(str(record["at"])) for record in ring.read(host, now - QUIET) if _has_values(record.get("gpus"))]
    return ServiceState(files, modes, unit, runs, now - max(times) if times else None)


def _has_values(gpus: object) -> bool:
    """Return whether all was read of some GPU: without it, as under MIG, no job is judged."""
    return isinstance(gpus, list) and any(isinstance(gpu, list) and None not in gpu for gpu in gpus)


def render(settings: program.Settings) -> Dict[str, str]:
    """Return path -> text of OWN. Raises ParseError."""
    if not _PATH.fullmatch(settings.inspector):
        raise ParseError("inspector is %r, expected an absolute path of plain characters" % settings.inspector[:80])
    options = " --interval %g --patience %g --window %g" % (settings.interval, settings.patience, settings.window)
    options += " --inspector " + settings.inspector if settings.inspector else ""
    text = _UNIT_TEXT % {"program": PROGRAM, "options": options}
    return {PROGRAM: _program(), UNIT_FILE: written.seal(UNIT_FILE, text, options)}


@functools.lru_cache(maxsize=None)
def _program() -> str:
    """Return the program, the same for all settings; a run builds it before and after its changes."""
    code = bundle.plain_script(bundle.closure([program.__name__], bundle.source_of), _MAIN)
    return written.seal(PROGRAM, _HEAD + code, "")


def plan(have: ServiceState, texts: Mapping[str, str]) -> Plan:
    """Plan our files and the service. texts: path -> text of OWN; {}: they go."""
    files = written.compare(_change(have, path, texts.get(path)) for path in OWN)
    commands: List[Tuple[str, ...]] = [("systemctl", "daemon-reload")] if files.changes else []
    if not texts:
        found = [FILES.judge(UNIT, "drift", "no file: watch_enabled is false", files.wrong)] if files.wrong else []
        if have.unit.get("UnitFileState") == "enabled" or have.unit.get("ActiveState", "inactive") != "inactive":
            commands.insert(0, ("systemctl", "disable", "--now", UNIT))
    else:
        running = _running(have)
        found = [FILES.judge(UNIT, files.state, "as written", files.wrong or "as written", severity=files.severity)]
        found += [running, *(_samples(have) if running.ok else ())]
        if files.changes or running.state == "drift":
            commands += [("systemctl", "enable", UNIT), ("systemctl", "restart", UNIT)]
    is_managed = have.unit and not have.unit["UnitFileState"].startswith("masked")
    steps = tuple(Command(argv, "the service has to be as configured") for argv in commands) if is_managed else ()
    return Plan(tuple(found), files.changes, steps, notes=files.notes)


def _change(have: ServiceState, path: str, text: Optional[str]) -> FileChange:
    # Of the program only the head is shown, which holds its hash.
    heads = ["\n".join((one or "").split("\n", 3)[:3]) for one in (have.files[path], text)]
    shown, mode = ((heads[0], heads[1]), 0o755) if path == PROGRAM else (None, 0o644)
    return FileChange(path, have.files[path], text, mode, have.modes[path], shown=shown)


def _running(have: ServiceState) -> Finding:
    want, source = "enabled, active", "systemctl show"
    if not have.unit:
        fix = "run busbar watch by another service manager, and set watch_enabled: false"
        return RUNNING.judge(UNIT, "unknown", want, "systemctl is not installed", source, fix)
    state = "%s, %s" % (have.unit["UnitFileState"] or "not there", have.unit["ActiveState"])
    # A unit that systemd starts again and again needs more than another start.
    is_ending = have.unit["UnitFileState"] == "enabled" and have.unit["ActiveState"] != "active"
    repair = "repair what journalctl -u %s shows on the node; then %s" % (UNIT, _RUN) if is_ending else None
    return RUNNING.judge(UNIT, "ok" if state == want else "drift", want, state, source, repair)


def _samples(have: ServiceState) -> List[Finding]:
    """Judge the samples of a service that runs; one that has just been started may have none yet."""
    if have.sampled is None and have.runs is not None and have.runs < QUIET:
        return []
    text = "none with utilisation and power in %.0f min" % (QUIET / 60)
    text = text if have.sampled is None else "%.0f s ago" % have.sampled
    return [SAMPLES.judge(UNIT, "unknown" if have.sampled is None else "ok", "a sample", text, ring.FOLDER)]
