# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Query the RAS of every job on a node twice, to distinguish progress from standstill.

Processes of one user share the port across jobs, and the kernel picks the one that gets a connection, even a stopped
one, which never responds. So queries are repeated, a bounded number of times, until each process was reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.host import ParseError, Problem, ReadError
from . import client as ras_client
from .answer import Communicator, Group, RasStatus
from .processes import Listener, Process

# Asking costs every process of the job a message, and 2.26 and 2.27 have crashed on it: no more often than needed.
MOST_ATTEMPTS = 16
# Of one user on one node; what claims more fills memory.
MOST_JOBS = 8
# Seconds for one port, for all its processes.
PATIENCE = 90.0
Ask = Callable[[str, int], RasStatus]


@dataclass(frozen=True)
class View:
    """RAS status at one port. users: of the processes that listen there.   seconds: between ``before`` and ``now``.

    before: None if there was only one query, or one response.
    """

    source: str
    users: Tuple[str, ...]
    before: Optional[RasStatus]
    now: RasStatus
    seconds: float


@dataclass(frozen=True)
class Silence:
    """A port without a valid response. pids: of the processes that listen there."""

    problem: Problem
    users: Tuple[str, ...]
    pids: Tuple[int, ...]


Endpoint = Tuple[str, int]
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a listener's address means to who connects


def endpoints(processes: Sequence[Process]) -> Dict[Endpoint, Dict[int, List[Process]]]:
    """Return endpoint -> inode of each socket there -> its processes (children inherit it)."""
    found: Dict[Endpoint, Dict[int, List[Process]]] = {}
    for process in processes:
        for listener in () if process.apart else process.ras:
            found.setdefault(_target(listener), {}).setdefault(listener.inode, []).append(process)
    return found


def _target(listener: Listener) -> Endpoint:
    return _ANY.get(listener.address, listener.address), listener.port


def pids(answer: RasStatus) -> FrozenSet[int]:
    """Return the pids of all processes in a response, on any host: enough for one node's listeners."""
    found = {place.pid for one in answer.communicators for place in one.places.values()}
    found |= {rank.place.pid for one in answer.communicators for rank in one.missing if rank.place is not None}
    return frozenset(found | {absent.pid for absent in answer.absent})


def same_job(one: RasStatus, other: RasStatus) -> bool:
    names, others = ({each.name for each in answer.communicators} for answer in (one, other))
    # The text names no communicator whose ranks are alike.
    alike = one.form == other.form == "text" and one.processes == other.processes
    return bool(names & others) or alike or not (names or others)


def read(
    processes: Sequence[Process],
    interval: float,
    ask: Ask = ras_client.query,
    sleep: Callable[[float], None] = time.sleep,
) -> Tuple[List[View], List[Silence]]:
    """Query every job. interval: seconds between the two queries; 0 queries once."""
    first: List[Tuple[Endpoint, Mapping[int, Sequence[Process]], List[RasStatus]]] = []
    silent: List[Silence] = []
    for target, listeners in endpoints(processes).items():
        answers, problem = _every_job(target, listeners, ask)
        first.append((target, listeners, answers))
        if problem is not None and not answers:
            silent.append(_silence(problem, listeners))
    if interval > 0 and any(answers for _target_of, _listeners, answers in first):
        sleep(interval)
    views = []
    for target, listeners, answers in first:
        for answer in answers:
            users = tuple(sorted({process.user for group in listeners.values() for process in group}))
            again, problem = _again(target, answer, ask) if interval > 0 else (None, None)
            source = ras_client.name(*target)
            if again is None:
                views.append(View(source, users, None, answer, 0.0))
                if problem is not None:
                    said = "it has responded once and not again: %s" % problem.message
                    silent.append(_silence(Problem(source, said), listeners))
            else:
                views.append(View(source, users, answer, again, interval))
    return views, silent


def _silence(problem: Problem, listeners: Mapping[int, Sequence[Process]]) -> Silence:
    found = [process for group in listeners.values() for process in group]
    return Silence(
        problem, tuple(sorted({process.user for process in found})), tuple(sorted({process.pid for process in found}))
    )


def _every_job(
    target: Endpoint, listeners: Mapping[int, Sequence[Process]], ask: Ask
) -> Tuple[List[RasStatus], Optional[Problem]]:
    """Return a response of each job at a port, and the last problem."""
    found: List[RasStatus] = []
    problem: Optional[Problem] = None
    unheard: Set[int] = set(listeners)
    repeated = 0
    deadline = time.monotonic() + PATIENCE
    for _attempt in range(min(MOST_ATTEMPTS, 4 + 3 * len(listeners))):
        answer, failed = _query(target, ask)
        problem = failed or problem
        if answer is not None:
            heard = pids(answer)
            unheard -= {
                inode
                for inode, group in listeners.items()
                if any(process.pid in heard or process.inner in heard for process in group)
            }
            if any(same_job(answer, other) for other in found):
                repeated += 1
            else:
                found.append(answer)
            # The text names few of its processes.
            if not unheard or answer.form == "text" or repeated > len(unheard) or len(found) == MOST_JOBS:
                break
        if time.monotonic() > deadline:
            break
    return found, problem


def _again(target: Endpoint, answer: RasStatus, ask: Ask) -> Tuple[Optional[RasStatus], Optional[Problem]]:
    problem: Optional[Problem] = None
    deadline = time.monotonic() + PATIENCE
    for _attempt in range(MOST_ATTEMPTS):
        found, failed = _query(target, ask)
        if found is not None and same_job(answer, found):
            return found, None
        problem = failed or problem
        if time.monotonic() > deadline:
            break
    return None, problem or Problem(ras_client.name(*target), "another job responds there now")


def _query(target: Endpoint, ask: Ask) -> Tuple[Optional[RasStatus], Optional[Problem]]:
    try:
        return ask(*target), None
    except ReadError as error:
        return None, error.problem
    except ParseError as error:
        return None, Problem(ras_client.name(*target), "its response is not valid: %s" % error)


# -- what travels to the control node ----------------------------------------------------------------------------------


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,7``."""
    parts: List[List[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else "%d-%d" % (low, high) for low, high in parts)


def to_dict(view: View) -> Dict[str, object]:
    """Return JSON data; the places of ranks are included once, in ``now``."""
    return {
        "source": view.source,
        "users": list(view.users),
        "seconds": view.seconds,
        "before": None if view.before is None else _answer(view.before, places=False),
        "now": _answer(view.now, places=True),
    }


def _answer(answer: RasStatus, places: bool) -> Dict[str, object]:
    hosts: Dict[str, int] = {}
    return {
        "form": answer.form,
        "version": answer.version,
        "communicators": [_communicator(one, hosts, places) for one in answer.communicators],
        "hosts": list(hosts),
        "rows": [[row.number, row.size, row.status, row.errors] for row in answer.rows],
        "absent": [[one.host, one.pid, one.gpus, one.dead] for one in answer.absent],
        "processes": answer.processes,
        "timeouts": answer.timeouts,
    }


def _communicator(one: Communicator, hosts: Dict[str, int], places: bool) -> Dict[str, object]:
    def groups(of: Sequence[Group]) -> List[List[object]]:
        return [[group.value, group.number, ranges(group.ranks)] for group in of]

    def host_index(host: str) -> int:
        return hosts.setdefault(host, len(hosts))

    return {
        "name": one.name,
        "size": one.size,
        "places": [
            [rank, host_index(place.host), place.pid, place.gpu, place.nvml]
            for rank, place in sorted(one.places.items())
        ]
        if places
        else [],
        "counts": {collective: groups(of) for collective, of in one.counts.items()},
        "statuses": groups(one.statuses),
        "errors": groups(one.errors),
        "missing": [
            [
                rank.rank,
                None
                if rank.place is None
                else [host_index(rank.place.host), rank.place.pid, rank.place.gpu, rank.place.nvml],
                rank.reachable,
                rank.dead,
            ]
            for rank in one.missing
        ],
        "missing_number": one.missing_number,
        "whole": one.whole,
    }
