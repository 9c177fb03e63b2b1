# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the Fabric Manager of an NVSwitch machine: unit and version, which must be exactly the driver's.

CUDA ends with error 802 (system not yet initialized) where it is not. Sources: Fabric Manager User Guide,
NVIDIA/gpu-operator#544.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing, problem_of
from ..core.systemd_files import mask_of, unit_files, wanted_at_boot

UNIT = "nvidia-fabricmanager.service"
_SHOWN = "--property=ActiveState,SubState,Result"
TOOL = ("nv-fabricmanager", "--version")
# Processes of a unit's control group, cgroup 2 and 1: reading them costs a tenth of systemctl.
_GROUPS = ("/sys/fs/cgroup/system.slice/%s/cgroup.procs", "/sys/fs/cgroup/systemd/system.slice/%s/cgroup.procs")
_VERSION = re.compile(r"Fabric Manager version is\s*:\s*([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})")


@dataclass(frozen=True)
class FabricManager:
    """installed: there is a unit.   active, enabled: now, and at boot.   state: as systemd words it.

    version: of the program; None: not read.   problem: why something is not known.
    mask: the file that masks the unit.
    """

    installed: Optional[bool] = None
    active: bool = False
    enabled: bool = False
    state: str = ""
    version: Optional[str] = None
    problem: Optional[Problem] = None
    mask: str = ""


def parse_version(text: str) -> str:
    """Return the version. Raises ParseError."""
    match = _VERSION.search(text)
    if match is None:
        raise ParseError("%r, expected 'Fabric Manager version is : <version>'" % text.strip()[:100])
    return match.group(1)


def read(host: Host) -> FabricManager:
    try:
        mask = mask_of(host, UNIT)
        if not mask and not unit_files(host, UNIT):
            return FabricManager(installed=False)
        active, state = running(host, UNIT)
        enabled = wanted_at_boot(host, UNIT)
    except ReadError as error:
        return FabricManager(problem=error.problem)
    version, problem = None, None
    try:
        # Some versions end with another code than 0 here, and print it all the same.
        done = host.run(TOOL)
        version = parse_version(done.stdout + "\n" + done.stderr)
    except (ReadError, ParseError) as error:
        problem = problem_of(error, " ".join(TOOL))
    return FabricManager(True, active, enabled, state, version, problem, mask)


def running(host: Host, name: str) -> Tuple[bool, str]:
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
