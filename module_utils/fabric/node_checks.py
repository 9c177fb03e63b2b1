# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether a node could sweep at all. The control node judges what the sweeps show."""

from __future__ import annotations

from typing import Iterator, List, Sequence

from ..core.check import Check
from ..core.finding import Finding
from .diags import LOCK, UNHEALTHY_PORTS, LocalPort, Reading
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
    if reading.missing:
        want = "installed, and writable by root alone"
        return [TOOLS.judge(problem.source, "drift", want, problem.message) for problem in reading.missing]
    fix = "check that root can read %s; rotate a larger log daily (logrotate), or limit it (opensm --log_limit)"
    return [
        TOOLS.judge("infiniband-diags", "ok", "installed", "installed"),
        *map(UMAD.unreadable, reading.problems),
        *(_ports(reading) if reading.ports else [_no_port(reading.local)]),
        *_responses(reading),
        *(
            (UNHEALTHY if problem.source.endswith(UNHEALTHY_PORTS) else MANAGER_LOG).judge(
                problem.source, "unknown", "all of it read", problem.message, problem.source, fix % problem.source
            )
            for problem in reading.unread
        ),
    ]


def _no_port(local: Sequence[LocalPort]) -> Finding:
    infiniband = [port for port in local if port.link_layer == "InfiniBand"]
    if infiniband:
        rails, bridges = ([str(port) for port in infiniband if port.of_nvswitch is flag] for flag in (False, True))
        state, have = "unknown", "none is active: %s" % ", ".join(rails) if rails else "none"
        have += "; %s manage NVSwitches" % ", ".join(bridges) if bridges else ""
        fix = "run ibstat on the host and repair its ports, or take the host out of busbar_fabric_hosts"
    else:
        state, have = "unsupported", "Ethernet alone: %s" % ", ".join(map(str, local)) if local else "no RDMA device"
        fix = "name a host with InfiniBand ports in busbar_fabric_hosts instead of this one"
    return UMAD.judge("InfiniBand ports", state, "an active InfiniBand port", have, fix=fix)


def _ports(reading: Reading) -> Iterator[Finding]:
    refused = {problem.source: problem.message for problem in reading.refused}
    for port in reading.ports:
        name, fix = str(port), None  # type: str, Optional[str]
        want, state, have = "a umad device that can be opened", "ok", "opened"
        if port.link_layer not in (None, "InfiniBand") or port.of_nvswitch:
            want, state = "an active InfiniBand port", "unsupported"
            have = "manages NVSwitches" if port.link_layer == "InfiniBand" else port.link_layer or ""
            fix = "take %s out of ib_fabric_devices, or set ib_fabric_devices to the ports to sweep from" % name
        elif name in refused:
            state, have = "unknown", refused[name]
        yield UMAD.judge(name, state, want, have, fix=fix)


def _responses(reading: Reading) -> List[Finding]:
    if reading.busy:
        fix = "wait for the other sweep of this host, or find its process: fuser -v /run/busbar/%s" % LOCK
        return [ANSWER.judge("sweep", "unknown", "one sweep at a time", "another sweep is running", fix=fix)]
    fix = "check that a subnet manager runs in this plane: run sminfo and ibstat (SM lid) on the host"
    want = "a response of the subnet manager"
    found = [ANSWER.judge(problem.source, "unknown", "an end in time", problem.message) for problem in reading.hung]
    found += [ANSWER.judge(problem.source, "unknown", want, problem.message, fix=fix) for problem in reading.silent]
    return found or [*map(of_sweeps, [reading.sweeps] if reading.sweeps else [])]


def of_sweeps(sweeps: Sequence[Sweep], source: str = "sweep") -> Finding:
    return ANSWER.judge("sweep", "ok", "answers", "%d planes" % len(sweeps), source)
