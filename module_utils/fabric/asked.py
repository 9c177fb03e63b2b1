# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node itself can say of its sweeps: whether it could ask at all. The control node judges what they show."""

from __future__ import annotations

from typing import List

from ..core.check import Check
from ..core.finding import Finding
from .diags import LOCK, UNHEALTHY_PORTS, Reading
from .sweep import Sweep

TOOLS = Check(
    "ib_fabric.tools",
    why="the fabric is queried by infiniband-diags; without one of its tools the switches are not checked",
    fix="install it on this host: apt-get install infiniband-diags (dnf install infiniband-diags on EL)",
)
"""Are the tools that query the fabric installed, and may root run them"""
UMAD = Check(
    "ib_fabric.umad",
    why="a fabric query needs /dev/infiniband/umad*, which only root may open, and an InfiniBand port that is up; an"
    " Ethernet port has no subnet",
    fix="run the play as root (become), load the device (modprobe ib_umad), and look at ls -l /dev/infiniband",
)
"""Can the host open the management device of the InfiniBand port that it sweeps through; `unsupported` where its ports
are Ethernet"""
ANSWER = Check(
    "ib_fabric.answer",
    why="if a tool hangs or the subnet manager does not respond, the state of the fabric is unknown",
    fix="run the command on the host to see what it waits for; a device that drops management packets delays each"
    " query",
)
"""Did the tools end in time, and did the subnet manager of each port respond"""

MANAGER_LOG = Check(
    "ib_fabric.manager_log",
    why="a subnet manager that cannot reach or configure a node leaves it without routes, or with old ones",
    severity="minor",
)
"Are the logs of the subnet managers free of errors and of an exit, in the last 24 hours"
UNHEALTHY = Check(
    "ib_fabric.unhealthy_port",
    why="the subnet manager counts the port as unhealthy; it may ignore or isolate it",
)
"Does the subnet manager list no port as unhealthy"


def judge(reading: Reading) -> List[Finding]:
    found: List[Finding] = [
        TOOLS.judge(problem.source, "drift", want="installed, and writable by root alone", have=problem.message)
        for problem in reading.missing
    ]
    if not found:
        found.append(TOOLS.judge("infiniband-diags", "ok", want="installed", have="installed"))
        found += _umad(reading)
        found += _answers(reading)
        found += _logs(reading)
    return found


def _umad(reading: Reading) -> List[Finding]:
    found = [UMAD.unreadable(problem) for problem in reading.problems]
    want = "an active InfiniBand port"
    if not reading.ports:
        infiniband = [port for port in reading.local if port.link_layer == "InfiniBand"]
        bridges = [port for port in infiniband if port.of_nvswitch]
        if infiniband:
            rails = [port for port in infiniband if not port.of_nvswitch]
            have = "none is active: %s" % ", ".join(map(str, rails)) if rails else "none"
            have += "; %s manage NVSwitches" % ", ".join(map(str, bridges)) if bridges else ""
            fix = "run ibstat on the host and repair its ports, or take the host out of busbar_fabric_hosts"
            return [*found, UMAD.judge("InfiniBand ports", "unknown", want=want, have=have, fix=fix)]
        have = "Ethernet alone: %s" % ", ".join(map(str, reading.local)) if reading.local else "no RDMA device"
        fix = "name a host with InfiniBand ports in busbar_fabric_hosts instead of this one"
        return [*found, UMAD.judge("InfiniBand ports", "unsupported", want=want, have=have, fix=fix)]
    refused = {problem.source: problem.message for problem in reading.refused}
    for port in reading.ports:
        name = str(port)
        if port.link_layer not in (None, "InfiniBand"):
            fix = "take %s out of ib_fabric_devices, or set ib_fabric_devices to the ports to sweep from" % name
            found.append(UMAD.judge(name, "unsupported", want=want, have=port.link_layer or "", fix=fix))
        elif port.of_nvswitch:
            fix = "take %s out of ib_fabric_devices, or set ib_fabric_devices to the ports to sweep from" % name
            found.append(UMAD.judge(name, "unsupported", want=want, have="manages NVSwitches", fix=fix))
        elif name in refused:
            found.append(UMAD.judge(name, "unknown", want="a umad device that can be opened", have=refused[name]))
        else:
            found.append(UMAD.judge(name, "ok", want="a umad device that can be opened", have="opened"))
    return found


def _answers(reading: Reading) -> List[Finding]:
    if reading.busy:
        fix = "wait for the other sweep of this host, or find its process: fuser -v /run/busbar/%s" % LOCK
        return [ANSWER.judge("sweep", "unknown", want="one sweep at a time", have="another sweep is running", fix=fix)]
    found = [
        ANSWER.judge(problem.source, "unknown", want="an end in time", have=problem.message) for problem in reading.hung
    ]
    fix = "check that a subnet manager runs in this plane: run sminfo and ibstat (SM lid) on the host"
    for problem in reading.silent:
        want = "a response of the subnet manager"
        found.append(ANSWER.judge(problem.source, "unknown", want=want, have=problem.message, fix=fix))
    if reading.sweeps and not found:
        found.append(ANSWER.judge("sweep", "ok", want="answers", have="%d planes" % len(reading.sweeps)))
    return found


def _logs(reading: Reading) -> List[Finding]:
    """Return what was not read of the subnet managers' files here; the control node judges the rest."""
    fix = "check that root can read %s; rotate a larger log daily (logrotate), or limit it (opensm --log_limit)"
    return [
        (UNHEALTHY if problem.source.endswith(UNHEALTHY_PORTS) else MANAGER_LOG).judge(
            problem.source, "unknown", "all of it read", problem.message, problem.source, fix % problem.source
        )
        for problem in reading.unread
    ]


def of_files(sweeps: List[Sweep]) -> List[Finding]:
    """Return the finding of sweeps that were read from files."""
    have = "%d planes" % len(sweeps)
    return [ANSWER.judge("sweep", "ok", want="answers", have=have, source=sweeps[0].source if sweeps else "sweep")]
