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

from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.finding import Finding, printable
from .answer import FINALIZE, INIT, NOCOMM, Communicator, Group, Missing, Place
from .checks import ANSWERED, BEHIND, COLLECT, ERROR, INITIALIZED, MISSING, ORDER, PROGRESS, STATUS
from .join import Joined, jobs, join, names
from .known import STATES, Known
from .views import Silence, View, ranges

# Names in one line; the table of busbar hang has all.
_NAMED = 8
# Host, pid and GPU of a place.
Key = Tuple[str, int, int]
_NOWHERE: Key = ("", 0, 0)


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
        ranks: Iterable[int] = _last(one)[0] if finding.check == BEHIND.id else ()
        if finding.check == ERROR.id:
            ranks = [rank for group in one.now.errors for rank in group.ranks]
        why = "is behind in %s" if finding.check == BEHIND.id else "has an error in %s"
        for rank in ranks:
            if rank in one.now.places:
                found.setdefault(one.now.places[rank], why % one.subject)
    responding = _responding([*joined.values()])
    for one in joined.values():
        for lost in one.now.missing:
            if lost.place is not None and not _reachable(lost, responding):
                found.setdefault(lost.place, "does not respond")
    for view in views:
        for absent in view.now.absent:
            if (absent.host, absent.pid) not in {(each.host, each.pid) for each in found}:
                found[absent.place] = "does not respond"
    return found


def _silent(one: Silence, known: Known) -> Tuple[str, str, str, str, str, str]:
    states = {seen.pid: STATES[seen.state] for seen in known.processes.values() if seen.state in STATES}
    odd = ["process %d: %s" % (pid, states[pid]) for pid in one.pids if pid in states]
    have = "; ".join([one.problem.message, *odd])
    fix = "ps -o pid,stat,wchan:32,cmd -p %s" % ",".join(map(str, one.pids[:_NAMED]))
    subject = printable("%s of %s" % (one.problem.source, ", ".join(one.users)))
    return subject, "unknown", "a valid response, twice", have, one.problem.source, "run %s; %s" % (fix, COLLECT)


@dataclass
class _Lost:
    """What does not respond. places: host -> place -> its ranks.   unplaced: ranks of which no host is known.

    sources: host, "" for none -> the RAS that reports it.
    """

    places: Dict[str, Dict[Place, List[str]]]
    unplaced: List[str]
    sources: Dict[str, str]


def _missing(
    views: Sequence[View], joined: Sequence[Joined], known: Known, source: Mapping[str, str]
) -> Dict[str, Finding]:
    """Return host -> finding on its processes that do not respond; "" for ranks on unknown hosts."""
    lost = _lost(views, joined, known, source)
    want = "a response of every process"
    found: Dict[str, Finding] = {}
    for host, places in lost.places.items():
        lines = [_line(known.where(place), [*_shortened(said), known.state(place)]) for place, said in places.items()]
        have, fix = "; ".join(_cut(lines)), _gone_fix(known, host, [*places])
        found[host] = MISSING.judge("host %s" % host, "drift", want, have, lost.sources[host], fix)
    if lost.unplaced:
        # The text of 2.24 and 2.25 names processes that do not respond, and ranks, without relating them.
        told = next((found[known.host(each.host)] for view in views for each in view.now.absent), None)
        have, subject = "; ".join(_cut(lost.unplaced)), "ranks without a known host"
        fix = "query the other hosts of the job as well; NCCL 2.26 and later name their process and host; " + COLLECT
        found[""] = MISSING.judge(subject, "drift", want, have, lost.sources[""], fix, because=told)
    return found


def _lost(views: Sequence[View], joined: Sequence[Joined], known: Known, source: Mapping[str, str]) -> _Lost:
    lost = _Lost({}, [], {})
    responding = _responding(joined)
    for one in joined:
        for rank in one.now.missing:
            # A communicator that has not come about, or ends, is judged by its status.
            if _reachable(rank, responding) and rank.rank not in one.elsewhere:
                continue
            said = "rank %d of %d of %s" % (rank.rank, one.now.size, one.subject)
            if rank.rank in one.elsewhere:
                said += " (it responds to others: the network between is cut, the process runs)"
            said += " (silent for a minute or more)" if rank.dead else ""
            host = known.host(rank.place.host) if rank.place else ""
            lost.sources.setdefault(host, source[one.name])
            of_place = lost.places.setdefault(host, {}).setdefault(rank.place, []) if rank.place else lost.unplaced
            of_place.append(said)
        unnamed = one.now.missing_number - len(one.now.missing)
        if unnamed > 0:
            lost.unplaced.append("%d ranks of %s, which RAS does not name" % (unnamed, one.subject))
            lost.sources.setdefault("", source[one.name])
    for view in views:
        for absent in view.now.absent:
            host = known.host(absent.host)
            if not any(place.pid == absent.pid for place in lost.places.get(host, ())):
                lost.places.setdefault(host, {}).setdefault(absent.place, [])
                lost.sources.setdefault(host, view.source)
    return lost


def _responding(joined: Sequence[Joined]) -> Set[Key]:
    return {_key(place) for one in joined for place in one.now.places.values()}


def _reachable(rank: Missing, answering: Iterable[Key]) -> bool:
    """Return whether its process responds. Before 2.29 a rank of it in another communicator shows that."""
    if rank.reachable is not None:
        return rank.reachable
    return rank.place is not None and not rank.dead and _key(rank.place) in answering


def _gone_fix(known: Known, host: str, places: Sequence[Place]) -> str:
    pids = ",".join(str(known.pid(place)) for place in places[:_NAMED])
    seen = [(known.pid(place), known.seen(place)) for place in places]
    stopped = [pid for pid, process in seen if process is not None and process.state == "T"]
    if stopped:
        fix = "find out what stopped it; on %s, kill -CONT %d lets it continue; before it is killed: %s"
        return fix % (host, stopped[0], "py-spy dump --nonblocking --pid %d" % stopped[0])
    fix = "on %s run ps -o pid,stat,wchan:32,cmd -p %s and dmesg -T (Xid, Out of memory, mlx5); %s"
    return fix % (host, pids, COLLECT)


def _errors(joined: Sequence[Joined], known: Known, source: Mapping[str, str]) -> List[Finding]:
    found = []
    for one in joined:
        if one.now.errors:
            lines = ["%s on %s" % (group.value, _ranks(one.now, group, known)) for group in one.now.errors]
            first = [one.now.places[rank] for group in one.now.errors for rank in group.ranks if rank in one.now.places]
            at = " (%s)" % known.where(first[0]) if first else ""
            fix = "read that rank's log from its first WARN on%s: busbar diagnose LOG explains it; %s" % (at, COLLECT)
            have = "; ".join(_cut(lines))
            found.append(ERROR.judge(one.subject, "drift", "no error", have, source[one.name], fix))
    return found


def _statuses(joined: Sequence[Joined], known: Known, source: Mapping[str, str]) -> List[Finding]:
    found = []
    responding = _responding(joined)
    for one in joined:
        statuses = {group.value for group in one.now.statuses}
        left = [rank.rank for rank in one.now.missing if _reachable(rank, responding)]
        if INIT in statuses:
            check, have = INITIALIZED, _initializing(one, known)
        elif len(statuses) > 1 or (left and FINALIZE not in statuses):
            groups = [*one.now.statuses]
            groups += [Group(NOCOMM, 0, tuple(left))] if left and NOCOMM not in statuses else []
            check = STATUS
            have = "; ".join("%s: %s" % (group.value, _ranks(one.now, group, known)) for group in groups)
        else:
            continue
        # Both are usual for a moment.
        still = one.before is not None and one.before.statuses == one.now.statuses and not one.moved
        state, fix = "unknown", "usual for a moment: query again"
        if still:
            state, have = "drift", "%s; %s" % (have, one.after)
            fix = "look at the missing ranks: read their logs, and run py-spy dump --pid PID on their hosts; " + COLLECT
        found.append(check.judge(one.subject, state, "all ranks alike", have, source[one.name], fix))
    return found


def _initializing(one: Joined, known: Known) -> str:
    groups = [_ranks(one.now, group, known) for group in one.now.statuses if group.value == INIT]
    lack = [rank for rank in range(one.now.size) if rank not in one.now.places] if one.now.whole else []
    return "%s initialize it%s" % ("; ".join(groups), "; missing: rank %s" % ranges(lack) if lack else "")


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
            have = "rank %s had launched more %g s before" % (ranges(one.back), one.seconds)
            fix = "query again: the job was restarted, or another program responds on the port"
            want = "counts that only grow"
            found.append(ANSWERED.judge(one.subject, "unknown", want, have, source[one.name], fix))
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
) -> Tuple[Dict[str, Finding], Dict[Key, Finding]]:
    """Communicators that a silent rank holds up, and processes that wait there -> the finding on that rank's host."""
    names: Dict[str, Finding] = {}
    processes: Dict[Key, Finding] = {}
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
    lines = [
        "%s: %s" % (name, ", ".join("%s by rank %s" % (group.value, ranges(group.ranks)) for group in of))
        for name, of in sorted(one.now.counts.items())
        if len(of) > 1
    ]
    twice = one.before is not None
    have = "; ".join([*lines, *([one.after] if twice else [])])
    want = "the same collectives on every rank"
    return ORDER.judge(one.subject, "drift" if twice else "unknown", want, have, source[one.name])


def _chained(
    waits: Sequence[_Wait],
    blocked: Tuple[Mapping[str, Finding], Mapping[Key, Finding]],
    known: Known,
    source: Mapping[str, str],
) -> List[Finding]:
    """Make a wait follow from the one, in another communicator, of the rank that is behind here."""
    waiting: Dict[Key, _Wait] = {}
    for wait in waits:
        for rank in wait.ahead:
            waiting.setdefault(_key(wait.joined.now.places.get(rank)), wait)
    waiting.pop(_NOWHERE, None)

    def keys(wait: _Wait) -> List[Key]:
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


def _key(place: Optional[Place]) -> Key:
    return _NOWHERE if place is None else (place.host, place.pid, place.nvml)


def _behind_one(wait: _Wait, known: Known, source: Mapping[str, str], because: Optional[Finding]) -> Finding:
    one = wait.joined
    lines = []
    for name, of in sorted(one.now.counts.items()):
        if len(of) > 1:
            least, most = (pick(of, key=lambda group: group.value) for pick in (min, max))
            others = "%d of %d ranks %s" % (most.number, one.now.size, most.value)
            lines.append("%s: %s has launched %s, %s" % (name, _ranks(one.now, least, known), least.value, others))
    twice = one.before is not None
    state = "drift" if twice and one.moved is False else "unknown"
    have = "; ".join([*lines, one.after if twice else "queried once"])
    fix = _look(known, [one.now.places[rank] for rank in wait.last if rank in one.now.places])
    want = "as many on every rank, or numbers that move"
    return BEHIND.judge(one.subject, state, want, have, source[one.name], fix, because)


def _look(known: Known, places: Sequence[Place]) -> str:
    if not places:
        return "RAS does not name them; NCCL 2.28.7 and later name all. py-spy dump --pid PID on every host; " + COLLECT
    fix = "on %s run py-spy dump --pid %d: Python outside of a collective means code, data or storage; %s"
    return fix % (known.host(places[0].host), known.pid(places[0]), COLLECT)


def _progress(views: Sequence[View], joined: Sequence[Joined], found: Sequence[Finding]) -> List[Finding]:
    """One of each job."""
    by_name = {one.name: one for one in joined}
    return [
        _progress_of([by_name[name] for name in sorted({name for view in of for name in names(view)})], of, found)
        for of in jobs(views)
    ]


def _progress_of(ones: Sequence[Joined], views: Sequence[View], found: Sequence[Finding]) -> Finding:
    users = sorted({user for view in views for user in view.users})
    subject = printable("job of %s with %s" % (", ".join(users), ones[0].subject if ones else views[0].source))
    seconds, want, source = max(view.seconds for view in views), "collectives are launched", views[0].source
    moved = [one for one in ones if one.moved]
    if moved:
        have = "in %g s %s" % (seconds, _difference(max(moved, key=lambda one: one.now.size)))
        return PROGRESS.judge(subject, "ok", want, have, source)
    bad = [finding for finding in found if finding.state == "drift" and finding.because is None] if seconds else []
    if not seconds:
        have, fix = "queried once, which does not show progress", "query twice: interval above 0"
    elif bad:
        have, fix = "nothing was launched in %g s" % seconds, "see to %s" % bad[0].id
    elif any(view.now.form == "text" for view in views):
        have = "RAS of NCCL %s does not report how many collectives equal ranks have launched" % views[0].now.version
        fix = "NCCL 2.28.7 and later do. " + _STILL
    else:
        have, fix = "nothing was launched in %g s, and all ranks have launched the same" % seconds, _STILL
    because = bad[0] if bad else None
    return PROGRESS.judge(subject, "drift" if bad else "unknown", want, have, source, fix, because)


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


def _ranks(of: Communicator, group: Group, known: Known) -> str:
    """``rank 3 (node02 process 1234 GPU 1)``."""
    named = sorted(group.ranks)
    if not named:
        return "%d ranks, which RAS does not name," % group.number
    if len(named) > _NAMED:
        return "rank %s" % ranges(named)
    places = [" (%s)" % known.where(of.places[rank]) if rank in of.places else "" for rank in named]
    return ", ".join("rank %d%s" % pair for pair in zip(named, places))


def _line(head: str, said: Sequence[str]) -> str:
    return "%s: %s" % (head, "; ".join(filter(None, said))) if any(said) else head


def _shortened(said: Sequence[str]) -> List[str]:
    return list(said) if len(said) <= 3 else [*said[:2], "and ranks of %d more communicators" % (len(said) - 2)]


def _cut(lines: Sequence[str]) -> List[str]:
    return list(lines) if len(lines) <= _NAMED else [*lines[:_NAMED], "and %d more" % (len(lines) - _NAMED)]
