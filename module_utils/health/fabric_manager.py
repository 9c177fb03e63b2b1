# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and judge the Fabric Manager, without which CUDA does not start on NVSwitches.

CUDA ends with error 802 (system not yet initialized) where it is not. Sources: Fabric Manager User Guide,
NVIDIA/gpu-operator#544.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, ReadError, problem_of
from ..core.systemd_files import start
from . import service
from .service import RECHECK, Service

UNIT = "nvidia-fabricmanager.service"
TOOL = ("nv-fabricmanager", "--version")
_VERSION = re.compile(r"Fabric Manager version is\s*:\s*([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})")
FABRIC_MANAGER = Check(
    "node_health.fabric_manager",
    why="without the Fabric Manager of exactly the driver's version CUDA does not start on NVSwitches (error 802)",
    severity="critical",
)
"Does the Fabric Manager run, now and after a reboot, in exactly the driver's version"


@dataclass(frozen=True)
class FabricManager(Service):
    """version: of the program; None: not read, and ``problem`` has the reason."""

    version: Optional[str] = None


def read(host: Host) -> FabricManager:
    unit = service.read(host, UNIT)
    version, problem = None, unit.problem
    if unit.installed:
        try:
            # Some versions end with another code than 0 here, and print it all the same.
            done = host.run(TOOL)
            text = "%s\n%s" % (done.stdout, done.stderr)
            match = _VERSION.search(text)
            if match is None:
                raise ParseError("%r, expected 'Fabric Manager version is : <version>'" % text.strip()[:100])
            version = match.group(1)
        except (ReadError, ParseError) as error:
            problem = problem_of(error, " ".join(TOOL))
    return FabricManager(unit.installed, unit.active, unit.enabled, unit.state, unit.mask, problem, version)


def judge(have: FabricManager, driver: Optional[str]) -> Finding:
    """Judge the service and its version.   driver: the driver's version; None if it is not loaded."""
    subject, want = "nvidia-fabricmanager", "active, in the driver's version %s" % (driver or "(not loaded)")
    install = "install the nvidia-fabricmanager package of version %s, then %s; %s" % (
        *(driver or "of the driver", start(UNIT, have.mask), RECHECK),
    )
    command = " ".join(TOOL)
    # With another version it does not start: that is the cause, not that it is stopped.
    if have.version is not None and driver is not None and have.version != driver and (have.active or not have.mask):
        text = "%s, version %s" % (have.state, have.version)
        return FABRIC_MANAGER.judge(subject, "drift", want, text, command, install)
    if have.active and (have.version is None or driver is None):
        text = str(have.problem) if have.problem else "%s, of an unknown version" % have.state
        return FABRIC_MANAGER.judge(subject, "unknown", want, text, command, "run %s on the node" % TOOL[0])
    # platform.nvlink_fabric judges the result of another one.
    other = "if a container runs the Fabric Manager, list this in busbar_accepted"
    log = "/var/log/fabricmanager.log"
    return service.judge(FABRIC_MANAGER, subject, UNIT, have, want, install, log, other)
