# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find the rank of a running NCCL job that blocks the others, by two queries of its RAS.

Ranks of one communicator launch the same collectives in the same order, so the others wait for a rank that has launched
fewer and launches none in between; unless it waits, too, in another communicator, for another rank. If all have
launched the same and nothing moves, RAS cannot distinguish a job that computes from one that is stuck on the GPUs.
Nothing here ends, signals or changes a process: what to collect first is reported, as commands.
Source: NCCL 2.30.7, docs/userguide troubleshooting/ras.rst.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from .answer import FINALIZE, INIT, NOCOMM, Communicator, Group, Missing, Place, ranges
from .processes import Process
from .views import Joined, View, jobs, join, names

COLLECT = "before you kill anything, save what would be lost: docs/diagnose.md#a-job-hangs"
ANSWERED = Check(
    "nccl_hang.answer",
    why="RAS runs in the job's own processes: where it is silent on all of them, they are stopped or dead",
    fix="look at the processes: ps -o pid,stat,wchan:32,cmd -p PID",
)
"Does RAS give a valid response, twice"
MISSING = Check(
    "nccl_hang.missing",
    why="every other rank waits for it forever",
    severity="critical",
)
"Do all processes of the job respond to RAS"
ERROR = Check(
    "nccl_hang.error",
    why="NCCL has given up in this rank; the others do not know and wait for it",
    severity="critical",
)
"Has no rank an error of NCCL"
INITIALIZED = Check(
    "nccl_hang.init",
    why="a communicator is complete only when all of its ranks have joined",
    severity="critical",
)
"Have all ranks of a communicator started its initialisation"
STATUS = Check(
    "nccl_hang.status",
    why="a rank that ends a communicator, or has left it, launches nothing any more, and the others wait for it",
    severity="major",
)
"If ranks leave a communicator, do all of them leave it"
BEHIND = Check(
    "nccl_hang.behind",
    why="a collective begins when its last rank launches it: the others wait for the rank that has launched the fewest",
    severity="critical",
)
"Have all ranks of a communicator launched as many collectives, or do the numbers move"
ORDER = Check(
    "nccl_hang.order",
    why="ranks that launch different collectives, or the same in another order, wait for each other forever",
    severity="critical",
    fix="the cause is the program: compare the stacks (py-spy dump --pid PID) of a rank of each kind",
)
"Have all ranks of a communicator launched the same kinds of collectives"
PROGRESS = Check(
    "nccl_hang.progress",
    why="a job that launches nothing computes, reads data, or is stuck within a collective, which RAS cannot see",
)
"Does the job launch collectives"
# Names in one line; busbar hang --json has all.
_NAMED = 8


STATES = {
    "T": "it is stopped (a signal)",
    "t": "it is stopped by a debugger",
    "Z": "it is dead, and its parent has not noticed",
    "X": "it is dead",
    "D": "it waits within the kernel",
}


@dataclass(frozen=True)
class Known:
    """names: IP address -> name of the host.   queried: hosts whose processes are all known.

    processes: host and pid, as NCCL reports them -> the process on its node.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    queried: FrozenSet[str] = frozenset()
    processes: Mapping[Tuple[str, int], Process] = field(default_factory=dict)

    def host(self, address: str) -> str:
        return self.names.get(address, address) or "an unknown host"

    def process(self, place: Place) -> Optional[Process]:
        return self.processes.get((self.host(place.host), place.pid))

    def pid(self, place: Place) -> int:
        """Return the pid on its node if known, else the one in its container."""
        process = self.process(place)
        return place.pid if process is None else process.pid

    def where(self, place: Place) -> str:
        gpu = "%d" % place.nvml if place.nvml == place.gpu else "%d (CUDA %d)" % (place.nvml, place.gpu)
        return "%s process %d GPU %s" % (self.host(place.host), self.pid(place), gpu)

    def state(self, place: Place) -> str:
        """Return what is wrong with a process on its node; "" for nothing, or if the node was not queried."""
        process = self.process(place)
        if process is None:
            gone = self.host(place.host) in self.queried and place.pid > 0
            return "it is not there any more" if gone else ""
        return STATES.get(process.state, "")


def by_inner(host: str, processes: Iterable[Process]) -> Dict[Tuple[str, int], Process]:
    """Return the processes of a host by (host, pid in the container)."""
    found: Dict[Tuple[str, int], Process] = {}
    for process in processes:
        key = (host, process.inner)
        # Two containers have a process of that number: NCCL does not report which.
        found[key] = replace(process, pid=process.inner, state="") if key in found else process
    return found


@dataclass(frozen=True)
class _Case:
    """joined: each communicator once.   responding: processes and GPUs of the ranks that gave RAS data.

    suspects: processes that others wait for and that do not wait, and why each is one.
    """

    joined: Sequence[Joined]
    known: Known
    responding: FrozenSet[Place]
    suspects: Dict[Place, str] = field(default_factory=dict)

    def reachable(self, rank: Missing) -> bool:
        """Return whether its process responds. Before 2.29 a rank of it in another communicator shows that."""
        if rank.reachable is not None:
            return rank.reachable
        return not rank.dead and rank.place in self.responding

    def ranks(self, of: Communicator, group: Group) -> str:
        """``rank 3 (node02 process 1234 GPU 1)``."""
        if len(group.ranks) > _NAMED:
            return "rank %s" % ranges(group.ranks)
        places = {rank: " (%s)" % self.known.where(of.places[rank]) for rank in group.ranks if rank in of.places}
        return ", ".join("rank %d%s" % (rank, places.get(rank, "")) for rank in group.ranks)


# -- judgement ---------------------------------------------------------------------------------------------------------


def judge(views: Sequence[View], known: Known) -> List[Finding]:
    """Return findings on the jobs in the views, causes before consequences."""
    return examine(views, known)[0]


def examine(views: Sequence[View], known: Known) -> Tuple[List[Finding], Dict[Place, str]]:
    """Return the findings, and the processes that others wait for and that do not wait, with the reason for each."""
    joined = join(views)
    case = _Case(joined, known, frozenset(place for one in joined for place in one.now.places.values()))
    lost = _missing(case)
    found = [*lost.values(), *_errors(case), *_statuses(case), *_behind(case, lost)]
    return found + _progress(views, joined, found), case.suspects


def _missing(case: _Case) -> Dict[str, Finding]:
    """Return host -> finding on its processes that do not respond; "" for ranks on unknown hosts."""
    lost: Dict[str, Dict[Optional[Place], List[str]]] = {}
    sources: Dict[str, str] = {}
    for one in case.joined:
        for rank in one.now.missing:
            # A communicator that has not come about, or ends, is judged by its status.
            if case.reachable(rank) and rank.rank not in one.present:
                continue
            text = "rank %d of %d of %s" % (rank.rank, one.now.size, one.subject)
            if rank.rank in one.present:
                text += " (it responds to others: the network between is cut, the process runs)"
            text += " (silent for a minute or more)" if rank.dead else ""
            host = case.known.host(rank.place.host) if rank.place else ""
            sources.setdefault(host, one.source)
            lost.setdefault(host, {}).setdefault(rank.place, []).append(text)
            case.suspects.update({rank.place: "does not respond"} if rank.place else {})
    found: Dict[str, Finding] = {}
    for host, places in lost.items():
        subject, fix = "host %s" % host, ""
        known = {place: texts for place, texts in places.items() if place is not None}
        lines = ["%s: %s" % (case.known.where(place), _of_place(case, place, known[place])) for place in known]
        if known:
            pids = ",".join(str(case.known.pid(place)) for place in [*known][:_NAMED])
            fix = "on %s run ps -o pid,stat,wchan:32,cmd -p %s and dmesg -T (Xid, Out of memory, mlx5); %s"
            fix %= host, pids, COLLECT
        else:
            subject, lines = "ranks without a known host", places[None]
            fix = "query the other hosts of the job as well; " + COLLECT
        found[host] = MISSING.judge(
            subject, "drift", "a response of every process", "; ".join(_cut(lines)), sources[host], fix
        )
    return found


def _of_place(case: _Case, place: Place, texts: Sequence[str]) -> str:
    if len(texts) > 3:
        texts = [*texts[:2], "and ranks of %d more communicators" % (len(texts) - 2)]
    return "; ".join(filter(None, [*texts, case.known.state(place)]))


def _errors(case: _Case) -> List[Finding]:
    found = []
    for one in (one for one in case.joined if one.now.errors):
        lines = ["%s on %s" % (group.value, case.ranks(one.now, group)) for group in one.now.errors]
        places = [one.now.places[rank] for group in one.now.errors for rank in group.ranks]
        case.suspects.update(dict.fromkeys(places, "has an error in %s" % one.subject))
        at = case.known.where(places[0])
        fix = "read that rank's log from its first WARN on (%s): busbar diagnose LOG explains it; %s" % (at, COLLECT)
        found.append(ERROR.judge(one.subject, "drift", "no error", "; ".join(_cut(lines)), one.source, fix))
    return found


def _statuses(case: _Case) -> List[Finding]:
    found = []
    for one in case.joined:
        groups = {str(group.value): group for group in one.now.statuses}
        left = tuple(rank.rank for rank in one.now.missing if case.reachable(rank))
        if INIT in groups:
            check, have = INITIALIZED, "%s initialize it" % case.ranks(one.now, groups[INIT])
            lacking = [rank for rank in range(one.now.size) if rank not in one.now.places]
            have += "; missing: rank %s" % ranges(lacking) if lacking else ""
        elif len(groups) > 1 or (left and FINALIZE not in groups):
            check = STATUS
            groups.update({NOCOMM: Group(NOCOMM, left)} if left else {})
            have = "; ".join("%s: %s" % (name, case.ranks(one.now, group)) for name, group in groups.items())
        else:
            continue
        # Both are usual for a moment.
        state, fix = "unknown", "usual for a moment: query again"
        if one.now.progress is not None and one.now.progress.settled and not one.moved:
            state, have = "drift", "%s; %s" % (have, one.after)
            fix = "look at the missing ranks: read their logs, and run py-spy dump --pid PID on their hosts; " + COLLECT
        found.append(check.judge(one.subject, state, "all ranks alike", have, one.source, fix))
    return found


# -- who waits for whom ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wait:
    """A communicator without progress. last: places of the ranks that have launched the fewest.   ahead: the others."""

    joined: Joined
    last: Tuple[Place, ...]
    ahead: Tuple[Place, ...]


def _behind(case: _Case, lost: Mapping[str, Finding]) -> List[Finding]:
    found: List[Finding] = []
    waits: List[_Wait] = []
    for one in case.joined:
        if one.back:
            have = "rank %s had launched more %g s before" % (ranges(one.back), one.seconds)
            fix = "query again: the job was restarted, or another program responds on the port"
            found.append(ANSWERED.judge(one.subject, "unknown", "counts that only grow", have, one.source, fix))
        elif not one.moved and any(len(groups) > 1 for groups in one.now.counts.values()):
            last, ahead = ([one.now.places[rank] for rank in ranks] for ranks in _last(one))
            if ahead:
                waits.append(_Wait(one, tuple(last), tuple(ahead)))
            else:
                found.append(_order(one))
    return found + _chained(case, waits, lost)


def _last(one: Joined) -> Tuple[List[int], List[int]]:
    """Return the ranks that have launched the fewest collectives of all kinds, and the others."""
    totals = {rank: sum(of.values()) for rank, of in sorted(one.now.launched.items())}
    least = min(totals.values(), default=0)
    return [rank for rank in totals if totals[rank] == least], [rank for rank in totals if totals[rank] > least]


def _order(one: Joined) -> Finding:
    lines = [
        "%s: %s" % (name, ", ".join("%s by rank %s" % (group.value, ranges(group.ranks)) for group in groups))
        for name, groups in sorted(one.now.counts.items())
        if len(groups) > 1
    ]
    state, more = ("unknown", []) if one.now.progress is None else ("drift", [one.after])
    return ORDER.judge(one.subject, state, "the same collectives on every rank", "; ".join([*lines, *more]), one.source)


def _chained(case: _Case, waits: Sequence[_Wait], lost: Mapping[str, Finding]) -> List[Finding]:
    """Make a wait follow from the one, in another communicator, of the rank that is behind here."""
    waiting: Dict[Place, _Wait] = {}
    for wait in waits:
        for place in wait.ahead:
            waiting.setdefault(place, wait)
    blocked, held = _blocked(case, lost)
    made: Dict[str, Finding] = {}

    def judged(wait: _Wait, above: FrozenSet[str]) -> Finding:
        name = wait.joined.name
        if name not in made:
            because = blocked.get(name)
            if because is None and all(place in held for place in wait.last):
                because = held[wait.last[0]]
            causes = [waiting.get(place) for place in wait.last]
            cause = causes[0] if all(one not in (None, wait) for one in causes) else None
            # In a ring of communicators that wait for each other, none is the cause.
            if because is None and cause is not None and cause.joined.name not in above:
                because = judged(cause, above | {name})
            if name not in made:
                made[name] = _behind_one(case, wait, because)
        return made[name]

    for wait in waits:
        judged(wait, frozenset((wait.joined.name,)))
    return list(made.values())


def _blocked(case: _Case, lost: Mapping[str, Finding]) -> Tuple[Dict[str, Finding], Dict[Place, Finding]]:
    """Communicators that a silent rank holds up, and processes that wait there -> the finding on that rank's host."""
    names: Dict[str, Finding] = {}
    places: Dict[Place, Finding] = {}
    for one in case.joined:
        hosts = [case.known.host(rank.place.host) if rank.place else "" for rank in one.now.missing]
        cause = next((lost[host] for host in hosts if host in lost), None)
        if cause is not None and not one.moved:
            names[one.name] = cause
            for place in one.now.places.values():
                places.setdefault(place, cause)
    return names, places


def _behind_one(case: _Case, wait: _Wait, because: Optional[Finding]) -> Finding:
    one = wait.joined
    lines = []
    for name, groups in sorted(one.now.counts.items()):
        if len(groups) > 1:
            least, most = (pick(groups, key=lambda group: group.value) for pick in (min, max))
            others = "%d of %d ranks %s" % (len(most.ranks), one.now.size, most.value)
            lines.append("%s: %s has launched %s, %s" % (name, case.ranks(one.now, least), least.value, others))
    have = "; ".join([*lines, "queried once" if one.now.progress is None else one.after])
    fix = "on %s run py-spy dump --pid %d: Python outside of a collective means code, data or storage; %s"
    first = wait.last[0]
    fix %= case.known.host(first.host), case.known.pid(first), COLLECT
    if because is None:
        case.suspects.update(dict.fromkeys(wait.last, "is behind in %s" % one.subject))
    state, want = "drift" if one.moved is False else "unknown", "as many on every rank, or numbers that move"
    return BEHIND.judge(one.subject, state, want, have, one.source, fix, because)


def _progress(views: Sequence[View], joined: Sequence[Joined], found: Sequence[Finding]) -> List[Finding]:
    """One of each job."""
    by_name = {one.name: one for one in joined}
    made = []
    for of in jobs(views):
        ones = [by_name[name] for name in sorted({name for view in of for name in names(view)})]
        made.append(_progress_of(ones, of, found))
    return made


def _progress_of(ones: Sequence[Joined], views: Sequence[View], found: Sequence[Finding]) -> Finding:
    users = sorted({user for view in views for user in view.users})
    subject = printable("job of %s with %s" % (", ".join(users), ones[0].subject if ones else views[0].source))
    seconds, want, source = max(view.seconds for view in views), "collectives are launched", views[0].source
    moved = [one for one in ones if one.moved]
    if moved:
        have = "in %g s ranks of %s launched some" % (seconds, max(moved, key=lambda one: one.now.size).subject)
        return PROGRESS.judge(subject, "ok", want, have, source)
    bad = [finding for finding in found if finding.state == "drift" and finding.because is None] if seconds else []
    if not seconds:
        have, fix = "queried once, which does not show progress", "query twice: interval above 0"
    elif bad:
        have, fix = "nothing was launched in %g s" % seconds, "see to %s" % bad[0].id
    else:
        have, fix = "nothing was launched in %g s, and all ranks have launched the same" % seconds, _STILL
    because = bad[0] if bad else None
    return PROGRESS.judge(subject, "drift" if bad else "unknown", want, have, source, fix, because)


_STILL = (
    "query again with a longer interval (a step may take minutes); if nothing moves, look below Python: nvidia-smi dmon"
    " -s pu -c 3 (100 % and little power: a kernel of NCCL waits), the NICs' counters, the flight recorder; " + COLLECT
)


def _cut(lines: Sequence[str]) -> List[str]:
    return list(lines) if len(lines) <= _NAMED else [*lines[:_NAMED], "and %d more" % (len(lines) - _NAMED)]
