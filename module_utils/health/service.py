# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and judge services of the NVIDIA driver: IMEX, and the Fabric Manager.

Without the Fabric Manager CUDA does not start on NVSwitches: error 802 (system not yet initialized). Sources: Fabric
Manager User Guide, NVIDIA/gpu-operator#544.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError, ToolMissing
from ..core.systemd_files import mask_of, start, unit_files, wanted_at_boot

# End of most remedies.
RECHECK = "then run site.yml --tags node_health for this host again"
# Processes of a unit's control group, cgroup 2 and 1: reading them costs a tenth of systemctl.
_GROUPS = ("/sys/fs/cgroup/system.slice/%s/cgroup.procs", "/sys/fs/cgroup/systemd/system.slice/%s/cgroup.procs")
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
TOOL = ("nv-fabricmanager", "--version")
_VERSION = re.compile(r"Fabric Manager version is\s*:\s*([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})")
FABRIC_MANAGER = Check(
    "node_health.fabric_manager",
    why="without the Fabric Manager of exactly the driver's version CUDA does not start on NVSwitches (error 802)",
    severity="critical",
)
"Does the Fabric Manager run, now and after a reboot, in exactly the driver's version"


@dataclass(frozen=True)
class Service:
    """installed: there is a unit.   active, enabled: now, and at boot; None: not known.   state: as systemd words it.

    mask: the file that masks the unit.   problem: why something is not known.
    version: of the Fabric Manager's program; None: not read.
    """

    installed: Optional[bool] = None
    active: Optional[bool] = None
    enabled: Optional[bool] = None
    state: str = ""
    mask: str = ""
    problem: Optional[Problem] = None
    version: Optional[str] = None


def read(host: Host, unit: str) -> Service:
    try:
        mask = mask_of(host, unit)
        if not mask and not unit_files(host, unit):
            return Service(False, False, False, "not installed")
        active, state = _running(host, unit)
        return Service(True, active, wanted_at_boot(host, unit), state, mask)
    except ReadError as error:
        return Service(problem=error.problem)


def _running(host: Host, name: str) -> Tuple[bool, str]:
    """Return (running, state as systemd words it). Raises ReadError."""
    for path in _GROUPS:
        try:
            if host.read(path % name):
                return True, "active (running)"
        except ReadError:
            continue  # A group that is empty, or that is going.
    # Its group may have another place (Slice=): systemd has the last word.
    argv = ("systemctl", "show", name, "--property=ActiveState,SubState,Result")
    try:
        unit = dict(line.partition("=")[::2] for line in host.query(argv).splitlines())
    except ToolMissing:
        return False, "not running"
    if "ActiveState" not in unit:
        raise ReadError("systemctl show %s" % name, "has no ActiveState")
    state = "%s (%s)" % (unit["ActiveState"][:40], unit.get("SubState", "")[:40])
    return unit["ActiveState"] == "active", state


def read_fabric_manager(host: Host) -> Service:
    """Read the Fabric Manager with its version."""
    unit = read(host, FABRIC_MANAGER_UNIT)
    if not unit.installed:
        return unit
    try:
        # Some versions end with another code than 0 here, and print it all the same.
        done = host.run(TOOL)
    except ReadError as error:
        return replace(unit, problem=error.problem)
    text = "%s\n%s" % (done.stdout, done.stderr)
    match = _VERSION.search(text)
    if match is not None:
        return replace(unit, version=match.group(1))
    return replace(unit, problem=Problem(" ".join(TOOL), "prints no version: %.100r" % text.strip()))


def judge(
    check: Check, subject: str, unit: str, have: Service, want: str, install: Optional[str], log: str, other: str
) -> Finding:
    """Judge whether a service is installed and runs, now and after a reboot.

    install: the remedy if it is not installed.   log: its log file.   other: what to do if another one runs instead.
    """
    source, begin = "systemctl show %s" % unit, "%s; %s" % (start(unit, have.mask), RECHECK)
    if have.installed is None:
        text = str(have.problem or Problem(source, "printed nothing"))
        return check.judge(subject, "unknown", want, text, source, "run %s on the node" % source)
    if not have.installed:
        return check.judge(subject, "drift", want, have.state, source, install)
    if have.mask and not have.active:
        text, fix = "masked: %s" % have.mask, "%s; else %s" % (other, begin)
        return check.judge(subject, "unknown", want, text, source, fix, severity="major")
    if not have.active:
        fix = "read journalctl -u %s and %s, then %s" % (unit, log, begin)
        return check.judge(subject, "drift", want, have.state, source, fix)
    if not have.enabled:
        text = "active, %s: it does not come back after a reboot" % ("masked" if have.mask else "not enabled")
        return check.judge(subject, "drift", want, text, source, begin, severity="major", aspect="persisted")
    return check.judge(subject, "ok", want, have.state, source)


def judge_fabric_manager(have: Service, driver: Optional[str]) -> Finding:
    """Judge the service and its version.   driver: the driver's version; None if it is not loaded."""
    subject, want = "nvidia-fabricmanager", "active, in the driver's version %s" % (driver or "(not loaded)")
    begin = start(FABRIC_MANAGER_UNIT, have.mask)
    install = "install nvidia-fabricmanager of version %s, then %s; %s" % (driver or "of the driver", begin, RECHECK)
    source = " ".join(TOOL)
    # With another version it does not start: that is the cause, not that it is stopped.
    if have.version is not None and driver is not None and have.version != driver and (have.active or not have.mask):
        text = "%s, version %s" % (have.state, have.version)
        return FABRIC_MANAGER.judge(subject, "drift", want, text, source, install)
    if have.active and (have.version is None or driver is None):
        text = str(have.problem) if have.problem else "%s, of an unknown version" % have.state
        return FABRIC_MANAGER.judge(subject, "unknown", want, text, source, "run %s on the node" % TOOL[0])
    # platform.nvlink_fabric judges the result of another one.
    other = "if a container runs the Fabric Manager, list this in busbar_accepted"
    log = "/var/log/fabricmanager.log"
    return judge(FABRIC_MANAGER, subject, FABRIC_MANAGER_UNIT, have, want, install, log, other)
