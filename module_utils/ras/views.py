# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Query the RAS of every job on a node twice, to distinguish progress from standstill; join those of several hosts.

Processes of one user share the port across jobs, and the kernel picks the one that gets a connection, even a stopped
one, which never responds. So queries are repeated, a bounded number of times, until each process was reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.host import ParseError, Problem, ReadError
from . import client as ras_client
from .answer import Communicator, RasStatus
from .processes import Process

# A query costs every process of the job a message: no more often than needed.
MOST_ATTEMPTS = 16
# Of one user on one node; what claims more fills memory.
MOST_JOBS = 8
# Seconds for one port, for all its processes.
PATIENCE = 90.0
Ask = Callable[[str, int], RasStatus]


@dataclass(frozen=True)
class View:
    """RAS status at one port. users: of the processes that listen there.

    seconds: since the response that ``now`` is compared with; 0 if there is none.
    """

    source: str
    users: Tuple[str, ...]
    now: RasStatus
    seconds: float = 0.0


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
        for listener in process.ras:
            target = (_ANY.get(listener.address, listener.address), listener.port)
            found.setdefault(target, {}).setdefault(listener.inode, []).append(process)
    return found


def pids(answer: RasStatus) -> FrozenSet[int]:
    """Return the pids of all processes in a response, on any host: enough for one node's listeners."""
    found = {place.pid for one in answer.communicators for place in one.places.values()}
    return frozenset(found.union(r.place.pid for one in answer.communicators for r in one.missing if r.place))


def same_job(one: RasStatus, other: RasStatus) -> bool:
    names, others = ({each.name for each in answer.communicators} for answer in (one, other))
    return bool(names & others) or not (names or others)


def compare(before: RasStatus, now: RasStatus) -> RasStatus:
    """Return the second response, with the progress of its communicators since the first."""
    old = {one.name: one for one in before.communicators}
    found = (replace(one, progress=one.since(old[one.name])) if one.name in old else one for one in now.communicators)
    return replace(now, communicators=tuple(found))


def read(
    processes: Sequence[Process],
    interval: float,
    ask: Ask = ras_client.query,
    sleep: Callable[[float], None] = time.sleep,
) -> Tuple[List[View], List[Silence]]:
    """Query every job. interval: seconds between the two queries; 0 queries once."""
    ports = endpoints(processes)
    first = {target: _every_job(target, listeners, ask) for target, listeners in ports.items()}
    views: List[View] = []
    silent: List[Silence] = []
    if interval > 0 and any(answers for answers, _problem in first.values()):
        sleep(interval)
    for target, (answers, problem) in first.items():
        source = ras_client.name(*target)
        found = {process.pid: process.user for group in ports[target].values() for process in group}
        users = tuple(sorted(set(found.values())))
        problems = [problem] if problem is not None and not answers else []
        for answer in answers:
            again, problem = _again(target, answer, ask) if interval > 0 else (None, None)
            views.append(
                View(source, users, compare(answer, again), interval) if again else View(source, users, answer)
            )
            if problem is not None:
                problems.append(Problem(source, "it has responded once and not again: %s" % problem.message))
        silent += [Silence(each, users, tuple(sorted(found))) for each in problems]
    return views, silent


def _every_job(
    target: Endpoint, listeners: Mapping[int, Sequence[Process]], ask: Ask
) -> Tuple[List[RasStatus], Optional[Problem]]:
    """Return a response of each job at a port, and the last problem."""
    found: List[RasStatus] = []
    problem: Optional[Problem] = None
    rest: Set[int] = set(listeners)
    repeated = 0
    for answer, failed in _responses(target, ask, min(MOST_ATTEMPTS, 4 + 3 * len(listeners))):
        problem = failed or problem
        if answer is not None:
            known = pids(answer)
            rest -= {inode for inode, group in listeners.items() if any({p.pid, p.inner} & known for p in group)}
            if any(same_job(answer, other) for other in found):
                repeated += 1
            else:
                found.append(answer)
            if not rest or repeated > len(rest) or len(found) == MOST_JOBS:
                break
    return found, problem


def _again(target: Endpoint, answer: RasStatus, ask: Ask) -> Tuple[Optional[RasStatus], Optional[Problem]]:
    problem: Optional[Problem] = None
    for found, failed in _responses(target, ask, MOST_ATTEMPTS):
        if found is not None and same_job(answer, found):
            return found, None
        problem = failed or problem
    return None, problem or Problem(ras_client.name(*target), "another job responds there now")


def _responses(target: Endpoint, ask: Ask, most: int) -> Iterator[Tuple[Optional[RasStatus], Optional[Problem]]]:
    """Query a port again and again. Yield each response, or the problem."""
    deadline = time.monotonic() + PATIENCE
    for _attempt in range(most):
        try:
            yield ask(*target), None
        except ReadError as error:
            yield None, error.problem
        except ParseError as error:
            yield None, Problem(ras_client.name(*target), "its response is not valid: %s" % error)
        if time.monotonic() > deadline:
            return


# -- several hosts -----------------------------------------------------------------------------------------------------


def names(view: View) -> List[str]:
    """Return names of the communicators in a view."""
    return [one.name for one in view.now.communicators]


def distinct(views: Sequence[View]) -> List[View]:
    """Make names of different users' communicators unique: a hash is public, and any process may use it."""
    owners: Dict[str, Tuple[str, ...]] = {}
    found = []
    for view in views:
        own = " of %s" % ", ".join(view.users)
        communicators = tuple(
            one
            if owners.setdefault(one.name, view.users) == view.users
            else replace(one, name=one.name.split(":")[0] + own)
            for one in view.now.communicators
        )
        found.append(replace(view, now=replace(view.now, communicators=communicators)))
    return found


def jobs(views: Sequence[View]) -> List[List[View]]:
    """Return the views of one job together."""

    def same(one: View, other: View) -> bool:
        return bool(set(names(one)) & set(names(other))) or (one.users == other.users and same_job(one.now, other.now))

    found: List[List[View]] = []
    for view in views:
        of = [view]
        for job in [job for job in found if any(same(view, other) for other in job)]:
            of = job + of
            found.remove(job)
        found.append(of)
    return found


@dataclass(frozen=True)
class Joined:
    """A communicator over all views. present: ranks that responded in any of them.

    now, source, seconds: of the view with most ranks.   moved: None if not known.   back: as in Progress.
    """

    name: str
    now: Communicator
    source: str
    seconds: float
    present: FrozenSet[int]
    moved: Optional[bool]
    back: Tuple[int, ...]

    @property
    def subject(self) -> str:
        return "communicator %s" % self.name.split(":")[0]

    @property
    def after(self) -> str:
        return "%g s later the same" % self.seconds


def join(views: Sequence[View]) -> List[Joined]:
    """Return each communicator once, from the response with most ranks."""
    found: Dict[str, List[Tuple[Communicator, View]]] = {}
    for view in views:
        for one in view.now.communicators:
            found.setdefault(one.name, []).append((one, view))
    return [_joined(name, pairs) for name, pairs in found.items()]


def _joined(name: str, pairs: Sequence[Tuple[Communicator, View]]) -> Joined:
    now, view = max(pairs, key=lambda pair: (pair[0].progress is not None, len(pair[0].places)))
    progress = [one.progress for one, _view in pairs if one.progress is not None]
    back = tuple(sorted({rank for one in progress for rank in one.back}))
    # Counts that went back are no counts.
    moved = None if back or not progress else any(one.moved for one in progress)
    present = frozenset(rank for one, _view in pairs for rank in one.places)
    return Joined(name, now, view.source, view.seconds, present, moved, back)
