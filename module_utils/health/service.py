# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and judge a service of the NVIDIA driver: the Fabric Manager, IMEX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError, ToolMissing
from ..core.systemd_files import mask_of, start, unit_files, wanted_at_boot

# End of most remedies.
RECHECK = "then run site.yml --tags node_health for this host again"
_SHOWN = "--property=ActiveState,SubState,Result"
# Processes of a unit's control group, cgroup 2 and 1: reading them costs a tenth of systemctl.
_GROUPS = ("/sys/fs/cgroup/system.slice/%s/cgroup.procs", "/sys/fs/cgroup/systemd/system.slice/%s/cgroup.procs")


@dataclass(frozen=True)
class Service:
    """installed: there is a unit.   active, enabled: now, and at boot; None: not known.   state: as systemd words it.

    mask: the file that masks the unit.   problem: why it is not known.
    """

    installed: Optional[bool] = None
    active: Optional[bool] = None
    enabled: Optional[bool] = None
    state: str = ""
    mask: str = ""
    problem: Optional[Problem] = None


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
    try:
        unit = dict(line.partition("=")[::2] for line in host.query(("systemctl", "show", name, _SHOWN)).splitlines())
    except ToolMissing:
        return False, "not running"
    if "ActiveState" not in unit:
        raise ReadError("systemctl show %s" % name, "has no ActiveState")
    state = "%s (%s)" % (unit["ActiveState"][:40], unit.get("SubState", "")[:40])
    return unit["ActiveState"] == "active", state


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
