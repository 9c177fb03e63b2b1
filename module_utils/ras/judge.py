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

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from .answer import FINALIZE, INIT, NOCOMM, Communicator, Missing, Place
from .join import Joined, jobs, join, names
from .views import Silence, View, ranges

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

# Names in one line; the table of busbar hang has all.
_NAMED = 8


@dataclass(frozen=True)
class Seen:
    """A process as its node shows it. state: letter of proc(5)."""

    pid: int
    state: str
    user: str
    name: str
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """names: IP address -> name of the host.   asked: hosts whose processes are all known.

    processes: host and pid, as NCCL reports them -> the process on its node.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    asked: FrozenSet[str] = frozenset()
    processes: Mapping[Tuple[str, int], Seen] = field(default_factory=dict)

    def host(self, address: str) -> str:
        return self.names.get(address, address) or "an unknown host"

    def seen(self, place: Place) -> Optional[Seen]:
        return self.processes.get((self.host(place.host), place.pid))

    def pid(self, place: Place) -> int:
        """Return the pid on its node if known, else the one in its container."""
        seen = self.seen(place)
        return place.pid if seen is None else seen.pid

    def where(self, place: Place) -> str:
        gpu = "%d" % place.nvml if place.nvml == place.gpu else "%d (CUDA %d)" % (place.nvml, place.gpu)
        return "%s process %d GPU %s" % (self.host(place.host), self.pid(place), gpu)

    def state(self, place: Place) -> str:
        """Return what is wrong with a process on its node; "" for nothing, or if the node was not queried."""
        seen = self.seen(place)
        if seen is None:
            gone = self.host(place.host) in self.asked and place.pid > 0
            return "it is not there any more" if gone else ""
        return STATES.get(seen.state, "")


def seen(host: str, of_node: Iterable[Mapping[str, Any]]) -> Dict[Tuple[str, int], Seen]:
    """Return the processes of a host by (host, inner pid). of_node: as nccl_ras.process_dict returns them."""
    found: Dict[Tuple[str, int], Seen] = {}
    for one in of_node:
        key = (host, one["inner"])
        state = one["state"]
        if key in found:
            # Two containers have a process of that number: NCCL does not report which.
            state = ""
        found[key] = Seen(one["pid"] if state else one["inner"], state, one["user"], one["name"], one["told"])
    return found


STATES = {
    "T": "it is stopped (a signal)",
    "t": "it is stopped by a debugger",
    "Z": "it is dead, and its parent has not noticed",
    "X": "it is dead",
    "D": "it waits within the kernel",
}


# -- judgement ---------------------------------------------------------------------------------------------------------


def judge(views: Sequence[View], silent: Sequence[Silence], known: Known) -> List[Finding]:
    """Return findings on the jobs in the views, causes before consequences."""
    joined = join(views)
    found = [ANSWERED.judge(*_silent(one, known)) for one in silent]
    source = {name: view.source for view in views for name in names(view)}
    lost = _missing(views, joined, known, source)
    found += lost.values()
    found += _errors(joined, known, source)
    found += _statuses(joined, known, source)
    found += _behind(joined, known, source, lost)
    return found + _progress(views, joined, found)


def suspects(views: Sequence[View], known: Known) -> Dict[Place, str]:
    """Return processes that others wait for and that do not wait, and why each is one."""
    found: Dict[Place, str] = {}
    joined = {one.subject: one for one in join(views)}
    for finding in judge(views, (), known):
        one = joined.get(finding.subject)
        if finding.ok or finding.because is not None or one is None:
            continue
        if finding.check == BEHIND.id:
            for rank in _last(one)[0]:
                if rank in one.now.places:
                    found.setdefault(one.now.places[rank], "is behind in %s" % one.subject)
        elif finding.check == ERROR.id:
            for rank in [rank for group in one.now.errors for rank in group.ranks]:
                if rank in one.now.places:
                    found.setdefault(one.now.places[rank], "has an error in %s" % one.subject)
    answering = {_key(place) for one in joined.values() for place in one.now.places.values()}
    for one in joined.values():
        for lost in one.now.missing:
            if lost.place is not None and not _reachable(lost, answering):
                found.setdefault(lost.place, "does not respond")
    for view in views:
        for absent in view.now.absent:
            place = Place(absent.host, absent.pid, *_first_gpu(absent.gpus))
            if (place.host, place.pid) not in {(each.host, each.pid) for each in found}:
                found[place] = "does not respond"
    return found


def _silent(one: Silence, known: Known) -> Tuple[str, str, str, str, str, str]:
    states = {seen.pid: STATES[seen.state] for seen in known.processes.values() if seen.state in STATES}
    odd = ["process %d: %s" % (pid, states[pid]) for pid in one.pids if pid in states]
    have = "; ".join([one.problem.message, *odd])
    fix = "ps -o pid,stat,wchan:32,cmd -p %s" % ",".join(map(str, one.pids[:_NAMED]))
    subject = printable("%s of %s" % (one.problem.source, ", ".join(one.users)))
    return subject, "unknown", "a valid response, twice", have, one.problem.source, "run %s; %s" % (fix, COLLECT)


def _missing(
    views: Sequence[View], joined: Sequence[Joined], known: Known, source: Mapping[str, str]
) -> Dict[str, Finding]:
    """Return host -> finding on its processes that do not respond; "" for ranks on unknown hosts."""
    parts: Dict[str, List[str]] = {}
    places: Dict[str, Dict[Place, List[str]]] = {}
    of: Dict[str, str] = {}
    answering = {_key(place) for one in joined for place in one.now.places.values()}
    for one in joined:
        for rank in one.now.missing:
            # A communicator that has not come about, or ends, is judged by its status.
            if _reachable(rank, answering) and rank.rank not in one.elsewhere:
                continue
            said = "rank %d of %d of %s" % (rank.rank, one.now.size, one.subject)
            host = known.host(rank.place.host) if rank.place else ""
            of.setdefault(host, source[one.name])
            if rank.rank in one.elsewhere:
                said += " (it responds to others: the network between is cut, the process runs)"
            if rank.dead:
                said += " (silent for a minute or more)"
            if rank.place is None:
                parts.setdefault("", []).append(said)
            else:
                places.setdefault(host, {}).setdefault(rank.place, []).append(said)
        unnamed = one.now.missing_number - len(one.now.missing)
        if unnamed > 0:
            parts.setdefault("", []).append("%d ranks of %s, which RAS does not name" % (unnamed, one.subject))
            of.setdefault("", source[one.name])
    for view in views:
        for absent in view.now.absent:
            host = known.host(absent.host)
            if not any(place.pid == absent.pid for place in places.get(host, ())):
                place = Place(absent.host, absent.pid, *_first_gpu(absent.gpus))
                places.setdefault(host, {}).setdefault(place, [])
                of.setdefault(host, view.source)
    found: Dict[str, Finding] = {}
    for host, by_place in places.items():
        lines = []
        for place, said in by_place.items():
            lines.append(_line(known.where(place), [*_shortened(said), known.state(place)]))
        found[host] = MISSING.judge(
            "host %s" % host,
            "drift",
            want="a response of every process",
            have="; ".join(_cut(lines)),
            source=of[host],
            fix=_gone_fix(known, host, list(by_place)),
        )
    if parts:
        # The text of 2.24 and 2.25 names processes that do not respond, and ranks, without relating them.
        told = next((found[known.host(each.host)] for view in views for each in view.now.absent), None)
        found[""] = MISSING.judge(
            "ranks without a known host",
            "drift",
            want="a response of every process",
            have="; ".join(_cut(parts[""])),
            source=of[""],
            because=told,
            fix="query the other hosts of the job as well; NCCL 2.26 and later name their process and host; " + COLLECT,
        )
    return found


def _reachable(rank: Missing, answering: Iterable[Tuple[str, int, int]]) -> bool:
    """Return whether its process responds. Before 2.29 a rank of it in another communicator shows that."""
    if rank.reachable is not None:
        return rank.reachable
    return rank.place is not None and not rank.dead and _key(rank.place) in answering


def _first_gpu(text: str) -> Tuple[int, int]:
    words = text.replace("(NVML ", "").replace(")", "").split()
    numbers = [int(word.split(",")[0]) for word in words]
    return numbers[0], numbers[-1]


def _gone_fix(known: Known, host: str, places: Sequence[Place]) -> str:
    pids = ",".join(str(known.pid(place)) for place in places[:_NAMED])
    stopped = [place for place in places if (known.seen(place) or _NOBODY).state == "T"]
    if stopped:
        first = known.pid(stopped[0])
        return "find out what stopped it; on %s, kill -CONT %d lets it continue; before it is killed: %s" % (
            host,
            first,
            "py-spy dump --nonblocking --pid %d" % first,
        )
    return "on %s run ps -o pid,stat,wchan:32,cmd -p %s and dmesg -T (Xid, Out of memory, mlx5); %s" % (
        host,
        pids,
        COLLECT,
    )


_NOBODY = Seen(0, "", "", "")


def _errors(joined: Sequence[Joined], known: Known, source: Mapping[str, str]) -> List[Finding]:
    found = []
    for one in joined:
        lines = [
            "%s on %s" % (group.value, _ranks(one.now, group.ranks, known, group.number)) for group in one.now.errors
        ]
        if lines:
            first = [one.now.places[rank] for group in one.now.errors for rank in group.ranks if rank in one.now.places]
            at = " (%s)" % known.where(first[0]) if first else ""
            found.append(
                ERROR.judge(
                    one.subject,
                    "drift",
                    want="no error",
                    have="; ".join(_cut(lines)),
                    source=source[one.name],
                    fix="read that rank's log from its first WARN on%s: busbar diagnose LOG explains it; %s"
                    % (at, COLLECT),
                )
            )
    return found


def _statuses(joined: Sequence[Joined], known: Known, source: Mapping[str, str]) -> List[Finding]:
    found = []
    answering = {_key(place) for one in joined for place in one.now.places.values()}
    for one in joined:
        now = {group.value: group for group in one.now.statuses}
        left = [rank.rank for rank in one.now.missing if _reachable(rank, answering)]
        if INIT in now:
            check, have = INITIALIZED, _initializing(one, known)
        elif len(now) > 1 or (left and FINALIZE not in now):
            lines = [
                "%s: %s" % (value, _ranks(one.now, group.ranks, known, group.number)) for value, group in now.items()
            ]
            lines += ["%s: %s" % (NOCOMM, _ranks(one.now, left, known))] if left and NOCOMM not in now else []
            check, have = STATUS, "; ".join(lines)
        else:
            continue
        # Both are usual for a moment.
        still = one.before is not None and one.before.statuses == one.now.statuses and not one.moved
        found.append(
            check.judge(
                one.subject,
                "drift" if still else "unknown",
                want="all ranks alike",
                have="%s%s" % (have, "; %s" % one.after if still else ""),
                source=source[one.name],
                fix="look at the missing ranks: read their logs, and run py-spy dump --pid PID on their hosts; "
                + COLLECT
                if still
                else "usual for a moment: query again",
            )
        )
    return found


def _initializing(one: Joined, known: Known) -> str:
    groups = [group for group in one.now.statuses if group.value == INIT]
    there = set(one.now.places)
    lack = [rank for rank in range(one.now.size) if rank not in there] if one.now.whole else []
    text = "%s initialize it" % "; ".join(_ranks(one.now, group.ranks, known, group.number) for group in groups)
    return text + ("; missing: rank %s" % ranges(lack) if lack else "")


# -- who waits for whom ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wait:
    """A communicator without progress: ranks that have launched the fewest collectives, and the others."""

    joined: Joined
    last: Tuple[int, ...]
    ahead: Tuple[int, ...]


def _behind(
    joined: Sequence[Joined], known: Known, source: Mapping[str, str], lost: Mapping[str, Finding]
) -> List[Finding]:
    found: List[Finding] = []
    waits: List[_Wait] = []
    for one in joined:
        if one.back:
            found.append(
                ANSWERED.judge(
                    one.subject,
                    "unknown",
                    want="counts that only grow",
                    have="rank %s had launched more %g s before" % (ranges(one.back), one.seconds),
                    source=source[one.name],
                    fix="query again: the job was restarted, or another program responds on the port",
                )
            )
            continue
        if one.moved or not any(len(of) > 1 for of in one.now.counts.values()):
            continue
        last, ahead = _last(one)
        if one.now.whole and not ahead:
            found.append(_order(one, source))
        else:
            waits.append(_Wait(one, last, ahead))
    return found + _chained(waits, _blocked(joined, known, lost), known, source)


def _blocked(
    joined: Sequence[Joined], known: Known, lost: Mapping[str, Finding]
) -> Tuple[Dict[str, Finding], Dict[Tuple[str, int, int], Finding]]:
    """Communicators that a silent rank holds up, and processes that wait there -> the finding on that rank's host."""
    names: Dict[str, Finding] = {}
    processes: Dict[Tuple[str, int, int], Finding] = {}
    for one in joined:
        hosts = [known.host(rank.place.host) if rank.place else "" for rank in one.now.missing]
        cause = next((lost[host] for host in hosts if host in lost), None)
        if cause is not None and not one.moved:
            names[one.name] = cause
            for place in one.now.places.values():
                processes.setdefault(_key(place), cause)
    return names, processes


def _last(one: Joined) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Ranks that have launched the fewest collectives of all kinds, and the others, as far as named."""
    unequal = [of for of in one.now.counts.values() if len(of) > 1]
    if one.now.whole:
        totals = {rank: sum(of.values()) for rank, of in one.now.launched.items()}
        least = min(totals.values(), default=0)
    else:
        # Ranks that the text does not name are those of the larger groups.
        totals = {rank: int(group.value) for of in unequal for group in of for rank in group.ranks}
        least = min((int(group.value) for of in unequal for group in of), default=0)
    last = sorted(rank for rank, total in totals.items() if total == least)
    return tuple(last), tuple(sorted(rank for rank, total in totals.items() if total > least))


def _order(one: Joined, source: Mapping[str, str]) -> Finding:
    lines = []
    for name, of in sorted(one.now.counts.items()):
        if len(of) > 1:
            lines.append("%s: %s" % (name, ", ".join("%s by rank %s" % (g.value, ranges(g.ranks)) for g in of)))
    return ORDER.judge(
        one.subject,
        "drift" if one.before is not None else "unknown",
        want="the same collectives on every rank",
        have="; ".join([*lines, *([one.after] if one.before is not None else [])]),
        source=source[one.name],
    )


def _chained(
    waits: Sequence[_Wait],
    blocked: Tuple[Mapping[str, Finding], Mapping[Tuple[str, int, int], Finding]],
    known: Known,
    source: Mapping[str, str],
) -> List[Finding]:
    """Make a wait follow from the one, in another communicator, of the rank that is behind here."""
    waiting: Dict[Tuple[str, int, int], _Wait] = {}
    for wait in waits:
        for rank in wait.ahead:
            waiting.setdefault(_key(wait.joined.now.places.get(rank)), wait)
    waiting.pop(_NOWHERE, None)

    def keys(wait: _Wait) -> List[Tuple[str, int, int]]:
        return [_key(wait.joined.now.places.get(rank)) for rank in wait.last]

    def causing_wait(wait: _Wait) -> Optional[_Wait]:
        """Return the other communicator in which the first of the last ranks waits, if all of them wait."""
        causes = [waiting.get(key) for key in keys(wait)]
        return causes[0] if causes and all(cause not in (None, wait) for cause in causes) else None

    made: Dict[str, Finding] = {}

    def judged(wait: _Wait, above: FrozenSet[str]) -> Finding:
        name = wait.joined.name
        if name not in made:
            because = blocked[0].get(name)
            silent = [blocked[1].get(key) for key in keys(wait)]
            if because is None and silent and all(silent):
                because = silent[0]
            cause = causing_wait(wait)
            # In a ring of communicators that wait for each other, none is the cause.
            if because is None and cause is not None and cause.joined.name not in above:
                because = judged(cause, above | {name})
            if name not in made:
                made[name] = _behind_one(wait, known, source, because)
        return made[name]

    for wait in waits:
        judged(wait, frozenset((wait.joined.name,)))
    return list(made.values())


_NOWHERE = ("", 0, 0)


def _key(place: Optional[Place]) -> Tuple[str, int, int]:
    return _NOWHERE if place is None else (place.host, place.pid, place.nvml)


def _behind_one(wait: _Wait, known: Known, source: Mapping[str, str], because: Optional[Finding]) -> Finding:
    one = wait.joined
    lines = []
    for name, of in sorted(one.now.counts.items()):
        if len(of) > 1:
            least = min(of, key=lambda group: group.value)
            most = max(of, key=lambda group: group.value)
            others = "%d of %d ranks %s" % (most.number, one.now.size, most.value)
            at = _ranks(one.now, least.ranks, known, least.number)
            lines.append("%s: %s has launched %s, %s" % (name, at, least.value, others))
    places = [one.now.places[rank] for rank in wait.last if rank in one.now.places]
    return BEHIND.judge(
        one.subject,
        "drift" if one.before is not None and one.moved is False else "unknown",
        want="as many on every rank, or numbers that move",
        have="; ".join([*lines, one.after if one.before is not None else "queried once"]),
        source=source[one.name],
        fix=_look(known, places),
        because=because,
    )


def _look(known: Known, places: Sequence[Place]) -> str:
    if not places:
        return "RAS does not name them; NCCL 2.28.7 and later name all. py-spy dump --pid PID on every host; " + COLLECT
    first = places[0]
    return "on %s run py-spy dump --pid %d: Python outside of a collective means code, data or storage; %s" % (
        known.host(first.host),
        known.pid(first),
        COLLECT,
    )


def _progress(views: Sequence[View], joined: Sequence[Joined], found: Sequence[Finding]) -> List[Finding]:
    """One of each job."""
    by_name = {one.name: one for one in joined}
    progress = []
    for of in jobs(views):
        told = sorted({name for view in of for name in names(view)})
        progress.append(_progress_of([by_name[name] for name in told], of, found))
    return progress


def _progress_of(ones: Sequence[Joined], views: Sequence[View], found: Sequence[Finding]) -> Finding:
    users = sorted({user for view in views for user in view.users})
    subject = printable("job of %s with %s" % (", ".join(users), ones[0].subject if ones else views[0].source))
    seconds = max(view.seconds for view in views)
    moved = [one for one in ones if one.moved]
    source = views[0].source
    if moved:
        largest = max(moved, key=lambda one: one.now.size)
        have = "in %g s %s" % (seconds, _difference(largest))
        return PROGRESS.judge(subject, "ok", want="collectives are launched", have=have, source=source)
    bad = [finding for finding in found if finding.state == "drift" and finding.because is None]
    if not seconds:
        have, fix = "queried once, which does not show progress", "query twice: interval above 0"
    elif bad:
        have, fix = "nothing was launched in %g s" % seconds, "see to %s" % bad[0].id
    elif any(view.now.form == "text" for view in views):
        have = "RAS of NCCL %s does not report how many collectives equal ranks have launched" % views[0].now.version
        fix = "NCCL 2.28.7 and later do. " + _STILL
    else:
        have = "nothing was launched in %g s, and all ranks have launched the same" % seconds
        fix = _STILL
    return PROGRESS.judge(
        subject,
        "drift" if bad and seconds else "unknown",
        want="collectives are launched",
        have=have,
        source=source,
        fix=fix,
        because=bad[0] if bad and seconds else None,
    )


_STILL = (
    "query again with a longer interval (a step may take minutes); if nothing moves, look below Python: nvidia-smi dmon"
    " -s pu -c 3 (100 % and little power: a kernel of NCCL waits), the NICs' counters, the flight recorder; " + COLLECT
)


def _difference(one: Joined) -> str:
    if one.before is None:
        return "nothing"
    parts = []
    for name, of in sorted(one.now.counts.items()):
        old = one.before.counts.get(name, ())
        high, low = max(int(group.value) for group in of), max([int(group.value) for group in old] or [0])
        if high != low:
            parts.append("%s %d to %d" % (name, low, high))
    return "%s: %s" % (one.subject, ", ".join(parts) or "its ranks moved")


def _ranks(of: Communicator, ranks: Iterable[int], known: Known, number: int = 0) -> str:
    """``rank 3 (node02 process 1234 GPU 1)``."""
    named = sorted(ranks)
    if not named:
        return "%d ranks, which RAS does not name," % number
    if len(named) > _NAMED:
        return "rank %s" % ranges(named)
    said = ["rank %d%s" % (rank, " (%s)" % known.where(of.places[rank]) if rank in of.places else "") for rank in named]
    return ", ".join(said)


def _line(head: str, said: Sequence[str]) -> str:
    return "%s: %s" % (head, "; ".join(filter(None, said))) if any(said) else head


def _shortened(said: Sequence[str]) -> List[str]:
    return list(said) if len(said) <= 3 else [*said[:2], "and ranks of %d more communicators" % (len(said) - 2)]


def _cut(lines: Sequence[str]) -> List[str]:
    return list(lines) if len(lines) <= _NAMED else [*lines[:_NAMED], "and %d more" % (len(lines) - _NAMED)]
