# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the lines of PyTorch's watchdog say of a collective that did not end: who waited for what, and who is behind."""

from __future__ import annotations

import re
from typing import Dict, List, Match, Optional, Sequence, Set, Tuple

from ..core.number import whole
from . import elsewhere
from .failure_order import by_whom, raised
from .job import Reported
from .jobs import Job, names, numbers, of_ranks

_SIZE = re.compile(r"NumelIn=(\d{1,18})")
_OUTSTANDING = re.compile(r"workMetaList_\.size\(\) ?= ?(\d{1,9})")
_STUCK = re.compile(r"got stuck for (\d{1,6}) ?seconds")
# Of a rank that heard of a timeout, its own or another's.
_SIGNAL = "dump signal due to a collective timeout"
# Numbers of collectives with which a process group begins.
_EARLY = 10
_ABORT = re.compile(r"abort timed out after (?P<ms>\d{4,9}) ms")
# Of PyTorch's head: [rank3]:[E813 12:26:00.651268916 ProcessGroupNCCL.cpp:1321]
_CLOCK = re.compile(r"\[[EFW]\d{3,4} (\d\d):(\d\d):(\d\d)\.\d")
_STACK = re.compile(r"[Ss]tack trace of the failed collective(?! not)")
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d{1,12})")


def gave_up(job: Job, reported: Sequence[Reported]) -> str:
    """What the ranks wait for: of each its earliest collective, for those after it wait for that."""
    earliest: Dict[Optional[int], Tuple[int, str]] = {}
    for one in reported:
        number = int((one.failure.code.rpartition(" ")[2]) if " number " in one.failure.code else 0)
        rank = one.failure.rank
        earliest[rank] = min(earliest.get(rank, (number, one.failure.code)), (number, one.failure.code))
    named = {number: code for number, code in earliest.values() if not code.startswith("collective ")}
    waits: Dict[Tuple[int, str], List[int]] = {}
    for rank, wait in earliest.items():
        # One of the watchdog's lines does not name the operation.
        wait = (wait[0], named[wait[0]]) if wait[1].startswith("collective ") and wait[0] in named else wait
        waits.setdefault(wait, []).extend([] if rank is None else [rank])
    limits = {match.group(1) for match in (_TIMEOUT.search(one.failure.text) for one in reported) if match}
    after = " after %d s" % (int(min(limits)) // 1000) if len(limits) == 1 else ""
    text = "PyTorch's watchdog gave up%s on " % after
    if len(waits) == 1:
        sizes: Dict[str, List[int]] = {}
        code = next(iter(waits))[1]
        for one in reported:
            match = _SIZE.search(one.failure.text) if one.failure.code == code else None
            if match is not None:
                sizes.setdefault(match.group(1), []).extend([] if one.failure.rank is None else [one.failure.rank])
        text += code
        if len(sizes) == 1:
            text += " (%s elements)" % next(iter(sizes))
        elif sizes and len(reported) > 1:
            said = ["%s elements on %s" % (size, of_ranks(numbers(ranks))) for size, ranks in list(sizes.items())[:4]]
            text += "; sizes differ: %s" % ", ".join(said)
            of = groups(job)
            if len({of[rank] for ranks in sizes.values() for rank in ranks if rank in of}) < 2:
                text += "; if these are of one process group, the program's ranks are out of step"
        later = sorted({one.failure.code for one in reported} - {code})
        later = [other for other in later if other.split(" ")[0] not in ("collective", code.split(" ")[0])]
        return text + ("; later, or in another process group, on %s" % names(later, 3) if later else "")
    said = [
        "%s (rank %s)" % (code, numbers(ranks)) if ranks else code for (_number, code), ranks in sorted(waits.items())
    ]
    text += "different collectives: %s" % "; ".join(said[:4])
    text += "; and %d more" % (len(said) - 4) if len(said) > 4 else ""
    of = groups(job)
    said_groups = {rank: of[rank] for ranks in waits.values() for rank in ranks if rank in of}
    if len(set(said_groups.values())) > 1:
        which = ", ".join("rank %d of %s" % pair for pair in sorted(said_groups.items())[:6])
        return text + "; these are of several process groups (%s), whose numbers cannot be compared" % which
    if len({number for number, _code in waits}) == 1:
        text += (
            "; under one number ranks have called different things: if these are of one process group, the program's"
        )
        return text + " ranks are out of step (a branch, another number of steps), and no network makes that"
    text += (
        "; in one process group the lowest number is the rank that is behind%s, late or on another path of the program"
    )
    return text % ("" if said_groups else " (the log does not show the groups)")


_IN_OUT = re.compile(r"OpType=_?(?:ALLGATHER|REDUCE_SCATTER)\w*, NumelIn=(?P<own>\d{1,18}), NumelOut=(?P<out>\d{1,18})")

# With the end of what the line says of the call: of a torn line none of it is sure.
_CALL = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<number>\d{1,18}), )?OpType=(?P<op>\w{1,60}), [^()]{0,200}Timeout\(ms\)=\d{1,12}\)"
)


def _members(reported: Sequence[Reported]) -> str:
    """How many ranks the process group has, as the sizes of what goes in and comes out say."""
    found = set()
    for one in reported:
        match = _IN_OUT.search(one.failure.text)
        if match is not None:
            few, many = sorted((int(match.group("own")), int(match.group("out"))))
            found.add(many // few if few and many % few == 0 else 0)
    size = found.pop() if len(found) == 1 else 0
    if size < 2:
        return ""
    ranks = {one.failure.rank for one in reported if one.failure.rank is not None}
    text = "by the sizes its process group has %d ranks" % size
    if len(ranks) == size:
        calls = _calls(reported)
        text += ", which all wait"
        if len(set(calls.values())) > 1:
            text += ": for different calls, so that none can complete"
        elif len(calls) == size:
            text += ", for the same call: the transfer itself hangs"
    elif size == 2 and ranks in ({0}, {1}):
        text += ": of two ranks in all the other is rank %d, which did not come, or data does not get through" % (
            1 - max(ranks)
        )
    return text


def _calls(reported: Sequence[Reported]) -> Dict[int, Tuple[int, str]]:
    """Rank -> the first call that it waits for, by lines that name it whole."""
    calls: Dict[int, Tuple[int, str]] = {}
    for one in reported:
        match = _CALL.search(one.failure.text)
        if match is not None and one.failure.rank is not None:
            call = int(match.group("number") or 0), match.group("op")
            calls[one.failure.rank] = min(calls.get(one.failure.rank, call), call)
    return calls


def waits(job: Job, reported: Sequence[Reported]) -> List[str]:
    """What the numbers of a timed out collective say of how far the ranks came."""
    parts = []
    numbers_of = {int(one.failure.code.rpartition(" ")[2]) for one in reported if " number " in one.failure.code}
    begun = any(one.done for one in job.communicators)
    if numbers_of == {1}:
        text = "it is the first collective of its process group: nothing has run over that yet, as at a job's start"
        if begun:
            text += ", though a communicator's initialisation completed, so TCP works and data does not flow"
            text += " (P2P between GPUs, the network's path), or a rank does something else"
        else:
            text += ": the initialisation, a path between GPUs or nodes, or a rank that did not come"
        parts.append(text)
    elif numbers_of and max(numbers_of) <= _EARLY:
        text = "it is one of the first collectives of its process group (number %d), so very early: " % max(numbers_of)
        parts.append(text + "a rank did not come to it, or communication between these ranks has hardly worked yet")
    waiting = {one.failure.rank for one in reported}
    told = waiting | {rank for rank, _code in _progress(job)}
    if len(told - {None}) == 1 and not (job.world is not None and job.world.ranks == 1):
        parts.append(
            "only rank %d is shown waiting: which rank did not come is unknown; see the others' logs"
            % (next(iter(waiting - {None})),)
        )
    parts += [*_also_timed_out(job, waiting), *_aborting(job, waiting)]
    parts.append(_members(reported))
    gone = [one for one in job.failures if one.failure.kind == "left" and one.failure.rank not in waiting]
    aborted = [one for one in job.processes if one.ended == "Abort" and not set(job.ranks_of(one)) & waiting]
    if gone and gone[0].order < min(one.order for one in reported):
        who = "a rank" if gone[0].failure.rank is None else "rank %d" % gone[0].failure.rank
        text = "before it %s ended its process without destroying its process group" % who
        text += ", and its communicator was aborted" if aborted else ""
        parts.append(text + ": ranks that wait for it wait forever; look at the program there first, not the network")
    elif aborted:
        parts.append("the communicator of %s was aborted" % names([job.who(one) for one in aborted], 3))
    return parts


def behind(job: Job) -> str:
    """Who has enqueued least, in the group where that differs most: it never reached what the others wait for."""
    groups: Dict[str, Dict[int, int]] = {}
    completed: Dict[str, Dict[int, List[int]]] = {}
    for rank, code in _progress(job):
        said, _of, group = code.partition(" of ")
        enqueued, _blank, done = said.partition(" ")
        groups.setdefault(group, {})[rank] = int(enqueued)
        by = completed.setdefault(group, {}).setdefault(int(done), [])
        by += [] if rank in by else [rank]
    apart = {group: said for group, said in groups.items() if len(set(said.values())) > 1}
    if not apart:
        same = _same_point(job, groups, completed)
        if same:
            return same
        ends = [(group, done, ranks) for group, by in completed.items() for done, ranks in by.items()]
        return "; ".join(
            "in group %s %s completed %d" % (g, of_ranks(numbers(ranks)), done) for g, done, ranks in ends[:3]
        )
    group, said = max(apart.items(), key=lambda pair: max(pair[1].values()) - min(pair[1].values()))
    least, most = min(said.values()), max(said.values())
    ranks = of_ranks(numbers(rank for rank, number in said.items() if number == least))
    text = "in group %s %s enqueued %d collectives, others up to %d: look there first" % (group, ranks, least, most)
    done = completed[group].get(least, [])
    if all(rank in done for rank, number in said.items() if number == least):
        text += ", in the program: they had completed all that they called, so no network stopped them from the"
        text += " next call; likely the ranks' collectives differ, or these are late or stuck in other code"
    return text


def _same_point(job: Job, groups: Dict[str, Dict[int, int]], completed: Dict[str, Dict[int, List[int]]]) -> str:
    """What it means where all ranks that tell their progress in a group are at one point."""
    said = []
    for group, by in groups.items():
        done = completed[group]
        if len(done) != 1 or len(set(by.values())) != 1:
            continue
        last, enqueued = next(iter(done)), next(iter(by.values()))
        who = of_ranks(numbers(by))
        text = "in group %s %s completed %d and had enqueued up to %d" % (group, who, last, enqueued)
        text += " (%d not completed)" % (enqueued - last) if enqueued > last + 1 else ""
        if enqueued == last and set(by) & {
            one.failure.rank for one in job.failures if "%s from this local rank" % _SIGNAL in one.failure.text
        }:
            text += ": nothing was under way there, so the timeout is of another process group"
        elif enqueued == last:
            text += ": nothing was under way there: what another rank waited for these had not called, or it is of"
            text += " another process group"
        elif job.world is not None and len(by) >= job.world.ranks:
            text += ": these are all ranks, and none is behind: the transfer itself hangs, or is slow"
        elif len(by) > 1:
            text += (
                ": these are all at the same point and none of them is behind by these lines; another rank may be, or"
            )
            text += " the transfer itself hangs"
        elif enqueued == last + 1:
            text += ": it has nothing behind the collective that it waits for: it waits for another rank, or for the"
            text += " transfer"
        said.append(text)
    return "; ".join(said[:3])


def signalled(job: Job, reported: Sequence[Reported]) -> str:
    """Who had all ranks write their flight recorders, where no line of the timeout itself is here."""
    by = [by_whom(one.failure) for one in reported]
    who = sorted({rank for rank in by if rank is not None})
    text = "%s signalled a collective timeout" % (of_ranks(numbers(who)) if who else "a rank")
    text += ", whose own lines on it are not in this log"
    heard = {one.failure.rank for one in reported if one.failure.peer} - {None}
    text += "; requested to %s" % of_ranks(numbers(rank for rank in heard if rank is not None)) if heard else ""
    return text


def _also_timed_out(job: Job, waiting: Set[Optional[int]]) -> List[str]:
    """Ranks that told others of a timeout, or so did others of them, and of which no line of the watchdog is here."""
    said = [one.failure for one in job.failures if one.failure.kind == "progress" and _SIGNAL in one.failure.text]
    ranks = {by_whom(one) for one in said} - waiting - {None} - raised(job.failures)
    who = of_ranks(numbers(rank for rank in ranks if rank is not None))
    return ["a timeout of %s, too, was signalled" % who] if ranks else []


def _aborting(job: Job, waiting: Set[Optional[int]]) -> List[str]:
    """Ranks whose process group was not aborted in time: they had begun to end as much earlier."""
    parts = []
    for one in job.quotes:
        match = _ABORT.search(one.text)
        if match is None or not one.ranks:
            continue
        at = _CLOCK.search(one.text)
        ran = int(match.group("ms")) // 1000
        text = "" if one.ranks & waiting else ", of which no timeout is shown,"
        text = "%s%s had started to abort %d s before line %d" % (of_ranks(numbers(one.ranks)), text, ran, one.order)
        if at is not None:
            begun = (_seconds(at) - ran) % 86400
            text += ", so at about %02d:%02d:%02d" % (begun // 3600, begun // 60 % 60, begun % 60)
        parts.append(text + ": what made it end then is the place to look")
    return parts[:3]


def carried(job: Job) -> bool:
    """Whether so many collectives are completed that their ranks had connected all that they have."""
    done = [code.split(" ")[1] for _rank, code in _progress(job)]
    return any(int(number) > _EARLY for number in done) and any(one.done for one in job.communicators)


def groups(job: Job) -> Dict[int, str]:
    """Rank -> the process group in which it waits: who tells of a dump signal is another one, usually."""
    return {rank: code.partition(" of ")[2] for rank, code in _progress(job, signals=False)}


def not_come(job: Job, code: str) -> List[int]:
    """Ranks that have not enqueued a collective for which others of their process group waited."""
    number, told = _at(job, code)
    there = {group for _rank, enqueued, _done, group in told if enqueued >= number}
    came = {rank for rank, enqueued, _done, _group in told if enqueued >= number}
    return [rank for rank, _enqueued, _done, group in told if group in there and rank not in came]


def waiting(job: Job, code: str) -> List[int]:
    """Ranks that have enqueued a collective and not completed it, by what they tell of their progress."""
    number, told = _at(job, code)
    return [rank for rank, enqueued, done, _group in told if done < number <= enqueued]


def _at(job: Job, code: str) -> Tuple[int, List[Tuple[int, int, int, str]]]:
    """The number of a collective; rank, enqueued, completed and group of all that tell it of the groups that wait."""
    number = code.rpartition(" number ")[2]
    groups_of = set(groups(job).values())
    told = []
    for rank, said in _progress(job) if whole(number) is not None else ():
        how_far, _of, group = said.partition(" of ")
        if group in groups_of or not groups_of:
            told.append((rank, int(how_far.split(" ")[0]), int(how_far.split(" ")[1]), group))
    return int(number) if told else 0, told


def _progress(job: Job, signals: bool = True) -> List[Tuple[int, str]]:
    """Rank, and the collectives that it enqueued and completed in a group, of each line that tells them."""
    found = []
    for one in job.failures:
        own = one.failure if one.failure.kind in ("progress", "signalled") and one.failure.code else None
        if not signals and _SIGNAL in one.failure.text:
            continue
        if one.failure.kind == "watchdog":
            own = elsewhere.progress(one.failure.text)
        if own is not None and one.failure.rank is not None:
            found.append((one.failure.rank, own.code))
    return found


def stuck(text: str) -> str:
    """What PyTorch's heartbeat monitor says, in our words; "" of lines of other forms."""
    if "Terminating the process" in text:
        return "PyTorch's heartbeat monitor ended processes, as their watchdog thread made no progress (watchdog hang)"
    match = _STUCK.search(text)
    return "PyTorch's watchdog thread made no progress for %s s (got stuck)" % match.group(1) if match else ""


def outstanding(job: Job, reported: Sequence[Reported]) -> List[str]:
    """What the heartbeat monitor says of how long its thread stood, and how much was under way."""
    stuck = {match.group(1) for match in (_STUCK.search(one.failure.text) for one in reported) if match}
    left = {}
    for one in reported:
        match = _OUTSTANDING.search(one.failure.text)
        if match is not None and one.failure.rank is not None:
            left.setdefault(int(match.group(1)), set()).add(one.failure.rank)
    parts = ["without progress for %s s" % "/".join(sorted(stuck)[:3])] if len(stuck) > 1 else []
    aborts = [one for one in job.quotes if _ABORT.search(one.text)]
    if aborts:
        text = "the abort of the process group did not complete%s (line %d)"
        parts.append(text % ("" if aborts[0].order > reported[0].order else " before it", aborts[0].order))
    for number, ranks in sorted(left.items(), reverse=True)[:4]:
        parts.append("%d operation%s outstanding on rank%s %s" % (
            number, "" if number == 1 else "s", "" if len(ranks) == 1 else "s", numbers(ranks),
        ))  # fmt: skip
    parts += _ended(job, reported)
    if not any(one.failure.kind in ("watchdog", "signalled") for one in job.failures):
        text = "no collective that timed out is named"
        if taken_down(job):
            text += ", and none was outstanding: it usually hung while the process group was taken down, at the"
            text += " program's end or after an error"
        parts.append(text)
    if stuck or left:
        text = "usually a call of CUDA or NCCL hangs, or a lock such as Python's GIL: the lines do not show which"
        parts.append(text + "; a longer TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only buys time; look at the other ranks too")
    return parts


def taken_down(job: Job) -> bool:
    """Whether an abort did not complete and no collective was outstanding, as far as the heartbeat monitor tells."""
    left = {match.group(1) for match in (_OUTSTANDING.search(one.failure.text) for one in job.failures) if match}
    return left == {"0"} and any(_ABORT.search(one.text) for one in job.quotes)


def _ended(job: Job, reported: Sequence[Reported]) -> List[str]:
    """When PyTorch's heartbeat monitor ended the processes, and which of them had begun to dump before."""
    at = [(match, one) for match, one in ((_CLOCK.search(one.failure.text), one) for one in reported)
          if match and "Terminating" in one.failure.text]  # fmt: skip
    if not at:
        return []
    times = sorted("%s:%s:%s" % match.group(1, 2, 3) for match, _one in at)
    parts = [
        "ended by its heartbeat monitor at %s" % (times[0] + ("" if times[-1] == times[0] else " to " + times[-1]))
    ]
    begun = [one for one in job.quotes if "preparing to dump debug info" in one.text and len(one.ranks) == 1]
    if len(begun) == 1 and begun[0].count == 1 and len(at) > 1:
        since = _CLOCK.search(begun[0].text)
        own = [match for match, one in at if one.failure.rank in begun[0].ranks]
        text = "only %s is shown to begin a dump (line %d)" % (of_ranks(numbers(begun[0].ranks)), begun[0].order)
        if since is not None and own and _seconds(own[0]) >= _seconds(since):
            text += ", %d s before its end" % (_seconds(own[0]) - _seconds(since))
        parts.append(text)
    return parts


def _seconds(at: Match[str]) -> int:
    return int(at.group(1)) * 3600 + int(at.group(2)) * 60 + int(at.group(3))


_HANG = "while it hangs run `busbar hang HOST` to find the rank that is behind; "


def look_after(job: Job) -> Optional[str]:
    """What to do, where lines tell of PyTorch's flight recorder whether it is on; None where none does."""
    said = [one.text for one in job.quotes if "ecorder" in one.text or "race of the failed collective" in one.text]
    if any(_STACK.search(text) for text in said):
        return _HANG + (
            "the flight recorder is on: compare the last collective of all ranks in its dumps (by default"
            " /tmp/nccl_trace_rank_RANK, else as in TORCH_NCCL_DEBUG_INFO_TEMP_FILE; `torchfrtrace` reads them)"
        )
    if any("TORCH_NCCL_TRACE_BUFFER_SIZE" in text for text in said):
        return _HANG + (
            "else set TORCH_NCCL_TRACE_BUFFER_SIZE=20000, as this release calls it (newer ones: TORCH_FR_BUFFER_SIZE),"
            " and TORCH_NCCL_DUMP_ON_TIMEOUT=1, and compare the ranks' last collective"
        )
    return None
