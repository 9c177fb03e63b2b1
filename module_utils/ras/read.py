# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the RAS status of the NCCL jobs on a node, and judge what a job must set to have one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, Problem, attempt
from ..machine import netdev_address
from ..nccl_conf import library
from ..nccl_conf.version import Version
from . import client, processes
from . import judge as nccl_hang
from . import views as ras_views
from .processes import Process
from .views import Silence, View

RAS = Check(
    "nccl_hang.ras",
    why="without RAS (its JSON: NCCL 2.28.7 and later) nothing outside of a job's processes knows what its ranks wait"
    " for",
    fix="start the job with NCCL 2.28.7 or later, and without NCCL_RAS_ENABLE=0",
)
"Has each NCCL job on the node a RAS that can be queried"
READABLE = Check(
    "nccl_hang.readable",
    why="a job whose processes cannot be read is not queried",
)
"Can the node's processes be read"
# RAS has been there since.
FIRST = (2, 24, 0)
_NAMED = 8


@dataclass(frozen=True)
class Reading:
    """processes: with libnccl mapped.   addresses: IP addresses of the node, by which NCCL names it."""

    processes: Tuple[Process, ...]
    views: Tuple[View, ...]
    silent: Tuple[Silence, ...]
    addresses: Tuple[str, ...]
    problems: Tuple[Problem, ...]


def read(host: Host, interval: float, ask: ras_views.Ask = client.query) -> Reading:
    """Read the jobs. interval: seconds between the two queries."""
    ranks, problems = processes.read(host)
    views, silent = ras_views.read(ranks, interval, ask)
    # What has been stopped, or has died, meanwhile, too.
    now = processes.again(host, ranks)
    found = attempt(lambda: netdev_address.read(host), "ip -j address show", problems) if now else None
    addresses = [each.address for of in (found or {}).values() for each in of]
    return Reading(now, tuple(views), tuple(silent), tuple(addresses), tuple(problems))


def result(reading: Reading) -> Dict[str, object]:
    """Return what the control node gets beside the findings."""
    return {
        "views": [asdict(view) for view in reading.views],
        "processes": [asdict(process) for process in reading.processes],
        "addresses": list(reading.addresses),
    }


def judge(host: Host, reading: Reading) -> List[Finding]:
    """Judge whether the node's jobs have a RAS that responds; plugin_utils/hang.py judges what RAS reports of them."""
    found = [READABLE.unreadable(problem) for problem in reading.problems]
    found += [_silent(one, reading) for one in reading.silent]
    return found + judge_unqueried(reading, lambda process: _version(host, process))


def _silent(one: Silence, reading: Reading) -> Finding:
    of_port = [process for process in reading.processes if process.pid in one.pids]
    states = [(process.pid, nccl_hang.STATES.get(process.state)) for process in of_port]
    odd = ["process %d: %s" % (pid, state) for pid, state in states if state]
    pids, have = ",".join(map(str, one.pids[:_NAMED])), "; ".join([one.problem.message, *odd])
    fix = "run ps -o pid,stat,wchan:32,cmd -p %s; %s" % (pids, nccl_hang.COLLECT)
    subject = printable("%s of %s" % (one.problem.source, ", ".join(one.users)))
    want = "a valid response, twice"
    return nccl_hang.ANSWERED.judge(subject, "unknown", want, have, one.problem.source, fix)


def _version(host: Host, process: Process) -> Optional[Version]:
    """Return the version of the library that a process has mapped, read through its root; None if unreadable."""
    path = host.hardware("/proc/%d/root%s" % (process.pid, process.library))
    found = attempt(lambda: library.scan(path), path, [])
    return None if found is None else found.version


def judge_unqueried(reading: Reading, version: Callable[[Process], Optional[Version]]) -> List[Finding]:
    """Report jobs whose RAS was not queried, and why; one finding for each user and library."""
    of_node, want = reading.processes, "a RAS that responds"
    if not of_node:
        job, have = "a job that uses NCCL", "no process has libnccl mapped"
        return [RAS.judge("processes", "unknown", job, have, "/proc/PID/maps", _NO_PROCESS)]
    jobs: Dict[Tuple[str, str], List[Process]] = {}
    for process in _without(of_node, reading):
        jobs.setdefault((process.user, process.library), []).append(process)
    found = []
    for (user, path), group in jobs.items():
        pids, (why, fix) = [process.pid for process in group], _cause(group[0], version(group[0]))
        more = " and %d more" % (len(pids) - _NAMED) if len(pids) > _NAMED else ""
        have = "%s (process %s%s)" % (why, ", ".join(map(str, pids[:_NAMED])), more)
        subject, source = printable("%s of %s" % (path, user)), "/proc/%d" % pids[0]
        found.append(RAS.judge(subject, "unknown", want, have, source, fix))
    if reading.views and not found:
        have = ", ".join("NCCL %s" % each for each in sorted({view.now.version for view in reading.views}))
        found.append(RAS.judge("processes", "ok", want, have, "/proc/PID/maps"))
    return found


_BY_HAND = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/28028; echo verbose status >&3; timeout 30 cat <&3'"
_NO_PROCESS = (
    "name a host on which the job runs; where NCCL is linked into its framework (no libnccl.so in /proc/PID/maps), run"
    " there: " + _BY_HAND
)


def _without(of_node: Sequence[Process], reading: Reading) -> List[Process]:
    """Return processes of jobs without a query, except parents (launchers) and children (loaders) of others."""
    responding: Set[int] = set()
    for view in reading.views:
        responding |= ras_views.pids(view.now)
    parents = {process.pid: process.parent for process in of_node}

    def chain(pid: int) -> List[int]:
        found: List[int] = []
        while pid in parents and pid not in found:
            found.append(pid)
            pid = parents[pid]
        return found

    covered = {p.pid for p in of_node if p.ras or {p.pid, p.inner} & responding}
    related = {pid for process in covered for pid in chain(process)}
    rest = [process for process in of_node if process.pid not in related and not covered & set(chain(process.pid))]
    # A process with an open GPU is a rank; without any, as before the first kernel, all may be.
    return [process for process in rest if process.gpu] or ([] if covered else rest)


def _cause(process: Process, version: Optional[Version]) -> Tuple[str, str]:
    """Return why its RAS cannot be queried, and the fix."""
    if process.apart:
        inside = "nsenter --target %d --net %s" % (process.pid, _BY_HAND)
        return "it runs in a container with a separate network", "query it there: " + inside
    dotted = ".".join(map(str, version or ()))
    if version and version < FIRST:
        why, start = "NCCL %s has no RAS" % dotted, "with NCCL 2.28.7 or later"
    elif process.disabled:
        why, start = "%s=0 in its environment" % processes.ENABLE, "without it"
    else:
        why = "no RAS of it listens at port %d%s" % (process.port, " (NCCL %s)" % dotted if dotted else "")
        start = (
            "with NCCL 2.28.7 or later and its own port (%s=localhost:%d): another user's job may have this one, or the"
            " job has no communicator yet, or an nccl.conf has %s=0"
            % (processes.ADDRESS, process.port + 1, processes.ENABLE)
        )
    return why, "start the job %s; of the running job: py-spy dump --pid %d" % (start, process.pid)
