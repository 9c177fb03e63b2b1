# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge which ranks of each communicator started and completed its initialisation, what ranks called and waited for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import AbstractSet, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from ..core.number import signed, whole
from .checks import CONNECTION, DUPLICATE, MISMATCH, RANKS
from .events import CAUSE, WEAK, Group, Occurrence
from .jobs import Job, rival_sets
from .log_reader import Log
from .names import missing, numbers, of_ranks
from .state import Communicator

_REST = "give this command the rest of the log, and the files of all ranks; if the job hangs, run `busbar hang HOST`"
_NOT_HERE = "a rank that is missing in the log may still have started"
_READY = "a communicator is ready once each of its ranks has Init COMPLETE"
_ONLY_SOME = "look in the program for what only some ranks call, or with another size, just before this operation"
# Communicators that get findings.
_MOST = 3
_DATATYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
_SETTING_UP = re.compile(
    r"\[(\d{1,8})\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(\d{1,8})\]"
)


def judge(log: Log, job: Job, groups: Sequence[Group]) -> List[Finding]:
    """groups: events of the log."""
    rivals = [one for found in rival_sets(job.communicators) for one in found]
    found = [_rivals(job, rivals)] if rivals else []
    apart = {one.key for one in rivals}
    others = [one for one in job.communicators if one.key not in apart]
    complete = [one for one in others if one.done]
    # The table of nccl-tests shows that the one communicator works.
    worked = any(program.rows for program in log.table.programs) and len(job.communicators) == 1 and not groups
    open_ones = [one for one in others if not (one.done or "Destroy" in one.gone or one.partial or worked)]
    waiting = _waits(job, groups)
    open_ones.sort(key=lambda one: -one.ranks)
    found += [_incomplete(job, one, groups, waiting) for one in open_ones[:_MOST]]
    if len(open_ones) > _MOST:
        have = "%d more communicators show no Init COMPLETE" % (len(open_ones) - _MOST)
        subject = "%s communicators" % job.name
        found.append(RANKS.judge(subject, "unknown", "all complete", have, "Init COMPLETE", why=_READY))
    if complete and not open_ones and not rivals and job.world is not None:
        have = "%d communicators, the largest of %d ranks" % (len(complete), job.world.ranks)
        if len(job.world.done) < job.world.ranks:
            have += "; ranks that report it: %s" % numbers(job.world.done)
        found.append(RANKS.judge(job.name, "ok", "complete", have, "Init COMPLETE"))
    return found


def present(job: Job, groups: Sequence[Group] = ()) -> Set[int]:
    """Return ranks of the job's largest communicator that lines name as their writer's."""
    if job.world is None:
        return set()
    labelled = [one for one in job.processes if one.launcher_rank is not None]
    # Otherwise the launcher numbers nodes or tasks, not ranks.
    of_members = all(one.launcher_rank in one.ranks for one in labelled if one.ranks)
    found = {one.launcher_rank for one in labelled if of_members}.union(*(group.ranks for group in groups))
    for process in job.processes if len(job.communicators) == 1 else ():
        found |= process.named_ranks
        found |= {way.rank for way in process.ways if not process.ranks}
    return {rank for rank in found if rank is not None and rank < job.world.ranks} | set(job.world.began)


def _rivals(job: Job, rivals: Sequence[Communicator]) -> Finding:
    each = ["%s with commId %s" % (of_ranks(numbers(one.began)), one.key) for one in rivals[:4]]
    have = "the ranks started with different commIds: %s; they wait in separate communicators" % ", ".join(each)
    why = "ranks find each other by one unique id, which rank 0 makes: with another one they wait, or are refused"
    fix = "check that each start makes a new id that every rank reads: the same MASTER_ADDR and MASTER_PORT, and a"
    fix += " new key or port for each process group that is made again"
    subject, want = "%s commIds" % job.name, "one commId of %d ranks" % rivals[0].ranks
    return RANKS.judge(subject, "unknown", want, have, "Init START", fix, why=why, severity="major")


def _waits(job: Job, groups: Sequence[Group]) -> str:
    """Return what proves that ranks wait for one that has not come; "" where nothing does."""
    root = sorted(process.root_waits for process in job.processes if process.root_waits)
    if root:
        return "the root of its bootstrap reports: %s" % root[-1]
    waited = [one for group in groups if group.event.id == "watchdog" for one in group.kept]
    later = any(int(one.fields.get("seq") or 1) > 1 for one in waited)
    if later or len({process.key for one in job.communicators for process in one.began.values()}) < 2:
        return ""
    of_store = [group.first.text for group in groups if group.event.id == "store"]
    waits = any(group.event.id in ("watchdog", "stuck", "signalled") for group in groups)
    if waits or any("imed" in text or "imeout" in text for text in of_store):
        return "others waited for it until a timeout"
    return "others still try to connect" if any(process.retry for process in job.processes) else ""


def _incomplete(job: Job, one: Communicator, groups: Sequence[Group], waiting: str) -> Finding:
    state, severity, source, fix, why = "unknown", "minor", "Init START", _REST, _NOT_HERE
    gone = missing(one.began, one.ranks)
    away = missing(present(job, groups) if one is job.world else set(one.began), one.ranks)
    after = waiting.endswith("a timeout") and job.world is not None and job.world.done
    crossed = _other_order(one, groups)
    if not gone:
        failed = any(group.tier < WEAK for group in groups)
        have = "%s started, and none has Init COMPLETE here" % of_ranks(numbers(one.began))
        have += ": the job failed before, or lines are cut" if failed else ": the log is cut, or the job waits there"
        fix = "see whether the job still runs; if it hangs, run `busbar hang HOST` to find the rank that is behind"
        quiet = not failed and not any(process.calls or process.retry or process.ended for process in job.processes)
        severity, source, why = "minor" if quiet or one.ranks < 2 else "major", "Init COMPLETE", _READY
    elif one.one_process or one.formed or not away:
        have = "%s no Init START here, and no rank has its Init COMPLETE" % of_ranks(gone, " has", " have")
        have += "; all ranks took part: a line here comes only after the bootstrap" if one.formed else ""
    elif crossed is not None:
        state, severity = "drift", "critical"
        have = (
            "the ranks make communicators in another order: %s in this one for %s, which waits in another for rank %d"
        )
        have %= (of_ranks(numbers(one.began), " waits", " wait"), of_ranks(gone), crossed)
        fix = "let every rank call the collectives of several process groups in one order"
        why = "the first collective of a process group makes its communicator, and needs all of its ranks at that time"
    elif waiting and (one is job.world or after) and not any(group.tier <= CAUSE for group in groups):
        state, severity, fix, why = "drift", "critical", RANKS.fix, RANKS.why
        have = "%s did not begin here, and no rank completed; %s" % (of_ranks(away, " of %d" % one.ranks), waiting)
        have += "; possible causes: not started, cannot reach rank 0, or their log is not among the files"
    else:
        have = "%s not in this log" % of_ranks(away, " of %d is" % one.ranks, " of %d are" % one.ranks)
        have += ", and no rank completed"
    subject, want = "%s communicator %s" % (job.name, one.key), "%d ranks" % one.ranks
    return RANKS.judge(subject, state, want, have, source, fix, why=why, severity=severity)


def _other_order(one: Communicator, groups: Sequence[Group]) -> Optional[int]:
    """Return the rank that a missing rank waits for in another communicator, where that rank waits in this one."""
    for group in groups:
        for report in group.kept if group.event.id == "store" else ():
            match = _SETTING_UP.search(report.text)
            rank, other = map(int, match.groups()) if match else (0, -1)
            if rank < one.ranks and rank not in one.began and other in one.began:
                return other
    return None


def same_gpu(job: Job) -> List[Finding]:
    """Judge two ranks of a communicator that none completed on one GPU: NCCL ends them, and may not come to say why."""
    on: Dict[Tuple[str, str], List[int]] = {}
    for rank, process in job.world.began.items() if job.world is not None and not job.world.done else ():
        if process.host and process.buses.get(rank):
            on.setdefault((process.host, process.buses[rank]), []).append(rank)
    found = []
    for (host, bus), ranks in sorted(on.items()):
        if len(ranks) > 1:
            have = "ranks %s have the same GPU (bus id %s) on %s, and did not complete" % (numbers(ranks), bus, host)
            have += "; or two nodes have this host name"
            subject = "%s %s %s" % (job.name, host, bus)
            found.append(DUPLICATE.judge(subject, "drift", "a GPU for each rank", have, "Init START"))
    return found[:_MOST]


def operations(log: Log, job: Job) -> List[Finding]:
    """Judge what ranks called as one operation of a communicator (NCCL_DEBUG_SUBSYS=COLL)."""
    own = {one.key for one in job.communicators}
    for (key, number), by_rank in log.state.operations.items():
        calls: Dict[Tuple[str, int, int], List[int]] = {}
        for rank, call in by_rank.items():
            calls.setdefault(call, []).append(rank)
        stuck = any((key, rank) in log.state.stuck_operations for rank in by_rank)
        if len(calls) < 2 or stuck or key not in own:
            continue
        have = "ranks call different things as one operation (opCount %s) of communicator %s: " % (number, key)
        have += ", ".join(_call(call, of_ranks(numbers(ranks))) for call, ranks in list(calls.items())[:4])
        return [MISMATCH.judge("%s trace" % job.name, "drift", "one call", have, "opCount", _ONLY_SOME)]
    return []


def _call(call: Tuple[str, int, int], who: str) -> str:
    function, count, kind = call
    return "%s of %d %s by %s" % (function, count, _DATATYPES[kind] if kind < len(_DATATYPES) else "values", who)


def traced(job: Job) -> List[Finding]:
    """Judge operations without Init lines: communicators of one size may be one, where each process has one of it."""
    found: Dict[Tuple[int, str], Dict[Tuple[str, int, int], List[str]]] = {}
    for process in job.processes:
        pointers: Dict[int, Set[str]] = {}
        for (size, _number), (pointer, _of) in process.traced.items():
            pointers.setdefault(size, set()).add(pointer)
        for (size, number), (_pointer, call) in process.traced.items():
            if len(pointers[size]) == 1:
                found.setdefault((size, number), {}).setdefault(call, []).append("%s:%s" % process.key[:2])
    for (size, number), calls in found.items():
        if len(calls) > 1:
            have = "processes call different things as operation %s of a communicator of %d ranks: " % (number, size)
            have += ", ".join(_call(call, ", ".join(who[:4])) for call, who in list(calls.items())[:4])
            have += "; no Init line shows whether it is one communicator"
            return [MISMATCH.judge("%s trace" % job.name, "unknown", "one call", have, "opCount", _ONLY_SOME)]
    return []


def retries(job: Job, events: AbstractSet[str]) -> List[Finding]:
    """Judge TCP connections that are tried again, where nothing else failed."""
    on = [process for process in job.processes if process.retry is not None]
    if not on or events or any(one.done or one.formed for one in job.communicators):
        return []
    fields = on[0].retry or {}
    have = "a TCP connection is tried again and again: %s" % fields.get("why")
    have += "; the peer is %s" % fields["peer"] if fields.get("peer") else "; the address is not named"
    ranks = [rank for rank in map(job.rank_of, on) if rank is not None]
    have += "; on %s" % of_ranks(numbers(ranks)) if ranks else ""
    have += "; possible causes: the peer has not started or has ended, another interface, a firewall"
    return [CONNECTION.judge("%s retries" % job.name, "unknown", "connected", have, "retrying", severity="critical")]


# What PyTorch's watchdogs report: lines of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of pytorch/pytorch.
_GROUP_NAME = re.compile(r"\[PG (?:ID )?([^\]]{1,80}?) ?Rank \d")
# Collectives of a process group up to this number are called early: setting a job up ends there.
_EARLY = 20
# Operation, number, elements.
Call = Tuple[str, Optional[int], Optional[int]]


@dataclass
class Waits:
    """calls: with the ranks that waited in them.   limit: ms.   signalled: ranks that gave up.

    progress: rank -> (enqueued, completed).   groups: names of process groups.   unnamed: waits without a rank.
    """

    calls: Dict[Call, Set[int]] = field(default_factory=dict)
    limit: int = 0
    progress: Dict[int, Tuple[int, int]] = field(default_factory=dict)
    signalled: Set[int] = field(default_factory=set)
    groups: Set[str] = field(default_factory=set)
    unnamed: int = 0

    @property
    def ranks(self) -> Set[int]:
        return {rank for ranks in self.calls.values() for rank in ranks}

    @property
    def out_of_step(self) -> bool:
        """Return whether ranks waited in one number of a group with other operations or sizes."""
        numbered = ((number, ranks) for (_operation, number, _elements), ranks in self.calls.items())
        named = [number for number, ranks in numbered if ranks and number is not None]
        return len(self.groups) < 2 and len(set(named)) < len(named)

    @property
    def behind(self) -> Set[int]:
        """Return ranks that have enqueued less than others of the group."""
        most = max((enqueued for enqueued, _completed in self.progress.values()), default=0)
        behind = {rank for rank, (enqueued, _completed) in self.progress.items() if enqueued < most}
        return behind if len(self.groups) < 2 else set()


def read_waits(groups: Iterable[Group]) -> Waits:
    """Collect the reports of watchdogs."""
    found = Waits()
    for group in groups:
        for one in group.kept if group.event.id in ("watchdog", "signalled", "progress") else ():
            name = _GROUP_NAME.search(one.text)
            if name and len(found.groups) < 64:
                found.groups.add(name.group(1).strip())
            if group.event.id == "watchdog":
                _add_call(found, one)
            enqueued, completed = (signed(one.fields.get(key)) for key in ("enqueued", "completed"))
            if one.rank is not None and enqueued is not None and completed is not None:
                enqueued, completed = max(enqueued, -1), max(completed, -1)
                if completed <= max(enqueued, 0):
                    found.progress[one.rank] = (enqueued, completed)
            by = whole(one.fields.get("by"))
            if group.event.id == "signalled" and (by is not None or one.rank is not None):
                found.signalled.add(by if by is not None else one.rank or 0)
    return found


def _add_call(found: Waits, one: Occurrence) -> None:
    key = (one.fields.get("op") or "", whole(one.fields.get("seq")), whole(one.fields.get("numel")))
    # A line without the operation is about the one with that number.
    named = [other for other in found.calls if other[1] == key[1] and other[0]]
    ranks = found.calls.setdefault(named[0] if named and not key[0] else key, set())
    found.unnamed += one.rank is None
    ranks |= {one.rank} if one.rank is not None else set()
    found.limit = max(found.limit, whole(one.fields.get("limit")) or 0)


def _in_order(waits: Waits) -> List[Tuple[Call, Set[int]]]:
    return sorted(waits.calls.items(), key=lambda one: (one[0][1] or 0, one[0][0]))


def _waiting(call: Call, ranks: Set[int], sized: bool = False) -> str:
    operation, number, elements = call
    text = "%s number %s" % (operation or "a collective", "?" if number is None else number)
    text += ", %s elements," % ("?" if elements is None else elements) if sized else ""
    return "%s on %s" % (text, of_ranks(numbers(ranks)) if ranks else "a rank")


def describe_waits(waits: Waits, job: Job) -> List[str]:
    """Return sentences on who waited for what, and who did not come."""
    found: List[str] = []
    if len(waits.calls) > 1 and (waits.out_of_step or len(waits.groups) > 1):
        what = "the ranks are out of step" if waits.out_of_step else "ranks wait in different collectives"
        what += " of several process groups" if len(waits.groups) > 1 else ""
        each = [_waiting(*one, sized=waits.out_of_step) for one in _in_order(waits)[:4]]
        found.append("%s: %s" % (what, "; ".join(each)))
    if waits.ranks:
        found.append("waiting: %s" % of_ranks(numbers(waits.ranks)))
        if job.world is not None and job.world.ranks > len(waits.ranks):
            found.append("no wait is reported by %s" % of_ranks(missing(waits.ranks, job.world.ranks)))
    if waits.behind:
        least = min(waits.progress[rank][0] for rank in waits.behind)
        most = max(enqueued for enqueued, _completed in waits.progress.values())
        text = "behind: %s enqueued %d collectives, others up to %d: look there first"
        found.append(text % (of_ranks(numbers(waits.behind)), least, most))
    last = max((number for (_operation, number, _elements) in waits.calls if number is not None), default=0)
    if last == 1:
        found.append("it is the first collective of its process group: nothing has run over that yet")
    elif 0 < last <= _EARLY:
        found.append("it is one of the first collectives of its process group")
    return found


def waits_title(waits: Waits, job: Job) -> str:
    """Return the wait in a few words: who waited for whom."""
    if not waits.calls:
        return "a rank signalled a collective timeout, and its lines on that are not in this log"
    (operation, number, elements), _ranks = _in_order(waits)[0]
    call = "%s%s" % (operation or "a collective", "" if number is None else " number %d" % number)
    after = " after %g s" % (waits.limit / 1000) if waits.limit else ""
    if waits.out_of_step:
        return "the ranks are out of step at %s: PyTorch's watchdog gave up%s" % (call, after)
    if len(waits.calls) > 1 and len(waits.groups) < 2:
        text = "ranks wait in different collectives, %s: PyTorch's watchdog gave up%s"
        return text % (", ".join(_waiting(*one) for one in _in_order(waits)[:4]), after)
    size = " (%d elements)" % elements if elements is not None else ""
    text = "PyTorch's watchdog gave up%s on %s%s" % (after, call, size)
    world, ranks = job.world, waits.ranks
    known = world is not None and len(world.began) == world.ranks and len(waits.groups) < 2 and not waits.unnamed
    if world is None or not known or not ranks or len(ranks) == world.ranks:
        return text
    return "%s: %s did not come" % (text, of_ranks(missing(ranks, world.ranks)))
