# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the lines of PyTorch's watchdog say of a collective that did not end: who waited for what, and who is behind."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from . import elsewhere
from .job import Reported
from .jobs import Job, names, numbers

_SIZE = re.compile(r"NumelIn=(\d{1,18})")
_OUTSTANDING = re.compile(r"workMetaList_\.size\(\) ?= ?(\d{1,9})")
_STUCK = re.compile(r"got stuck for (\d{1,6}) ?seconds")
# Numbers of collectives with which a process group begins.
_EARLY = 10
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
        for one in reported:
            match = _SIZE.search(one.failure.text)
            if match is not None:
                sizes.setdefault(match.group(1), []).extend([] if one.failure.rank is None else [one.failure.rank])
        text += next(iter(waits))[1]
        if len(sizes) == 1:
            text += " (%s elements)" % next(iter(sizes))
        elif sizes and len(reported) > 1:
            said = ["%s elements on rank %s" % (size, numbers(ranks)) for size, ranks in list(sizes.items())[:4]]
            text += "; sizes differ: %s" % ", ".join(said)
            of = groups(job)
            if len({of[rank] for ranks in sizes.values() for rank in ranks if rank in of}) < 2:
                text += "; if these are of one process group, the program's ranks are out of step"
        return text
    said = [
        "%s (rank %s)" % (code, numbers(ranks)) if ranks else code for (_number, code), ranks in sorted(waits.items())
    ]
    text += "different collectives: %s" % "; ".join(said[:4])
    text += "; and %d more" % (len(said) - 4) if len(said) > 4 else ""
    of = groups(job)
    said_groups = {rank: of[rank] for ranks in waits.values() for rank in ranks if rank in of}
    if len(set(said_groups.values())) > 1:
        which = ", ".join("rank %d of %s" % pair for pair in sorted(said_groups.items())[:6])
        return text + "; these are of several process groups (%s), whose numbers say nothing of each other" % which
    if len({number for number, _code in waits}) == 1:
        text += (
            "; under one number ranks have called different things: if these are of one process group, the program's"
        )
        return text + " ranks are out of step (a branch, another number of steps), and no network makes that"
    if said_groups:
        return text + "; in one process group the lowest number is who is behind"
    return text + "; in one process group the lowest number is who is behind, and the log does not tell the groups"


_IN_OUT = re.compile(r"OpType=_?(?:ALLGATHER|REDUCE_SCATTER)\w*, NumelIn=(?P<own>\d{1,18}), NumelOut=(?P<out>\d{1,18})")


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
    if size == 2 and ranks in ({0}, {1}):
        text += ": of two ranks in all the other is rank %d, which did not come, or data does not get through" % (
            1 - max(ranks)
        )
    return text


def waits(job: Job, reported: Sequence[Reported]) -> List[str]:
    """What the numbers of a timed out collective say of how far the ranks came."""
    parts = []
    numbers_of = {int(one.failure.code.rpartition(" ")[2]) for one in reported if " number " in one.failure.code}
    begun = any(one.done for one in job.communicators)
    if numbers_of == {1}:
        text = "it is the first collective of its process group: between these ranks communication has not worked yet"
        if begun:
            text += ", though a communicator's initialisation completed, so TCP works and data does not flow"
            text += " (P2P between GPUs, the network's path), or a rank does something else"
        else:
            text += " (initialisation, a path between GPUs or nodes, or a rank that did not come)"
        parts.append(text)
    elif numbers_of and max(numbers_of) <= _EARLY:
        text = "it is one of the first collectives of its process group (number %d), so very early: " % max(numbers_of)
        parts.append(text + "a rank did not come to it, or communication between these ranks has hardly worked yet")
    waiting = {one.failure.rank for one in reported}
    if len(waiting - {None}) == 1 and not (job.world is not None and job.world.ranks == 1):
        parts.append(
            "only rank %d is shown waiting: which rank did not come is not told; see the others' logs"
            % (next(iter(waiting - {None})),)
        )
    parts.append(_members(reported))
    gone = [one for one in job.failures if one.failure.kind == "left" and one.failure.rank not in waiting]
    aborted = [one for one in job.processes if one.ended == "Abort" and not set(job.ranks_of(one)) & waiting]
    if gone and gone[0].order < min(one.order for one in reported):
        who = "a rank" if gone[0].failure.rank is None else "rank %d" % gone[0].failure.rank
        text = "before it %s ended its process without destroying its process group" % who
        text += ", and its communicator was aborted" if aborted else ""
        parts.append(
            text + ": who waits for that rank waits for nothing; look at the program there first, not the network"
        )
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
        return "; ".join("in group %s rank %s completed %d" % (g, numbers(ranks), done) for g, done, ranks in ends[:3])
    group, said = max(apart.items(), key=lambda pair: max(pair[1].values()) - min(pair[1].values()))
    least, most = min(said.values()), max(said.values())
    ranks = numbers(rank for rank, number in said.items() if number == least)
    return "in group %s rank %s enqueued %d collectives, others up to %d: look there first" % (
        group,
        ranks,
        least,
        most,
    )


def _same_point(job: Job, groups: Dict[str, Dict[int, int]], completed: Dict[str, Dict[int, List[int]]]) -> str:
    """What it means where all ranks that tell their progress in a group are at one point."""
    said = []
    for group, by in groups.items():
        done = completed[group]
        if len(done) != 1 or len(set(by.values())) != 1:
            continue
        last, enqueued = next(iter(done)), next(iter(by.values()))
        text = "in group %s rank %s completed %d and had enqueued up to %d" % (group, numbers(by), last, enqueued)
        if len(by) > 1:
            text += ": these are all at the same point and none of them is behind; a rank that is not shown is, or the"
            text += " transfer itself hangs"
        elif enqueued == last + 1:
            text += ": it has nothing behind the collective that it waits for: it waits for another rank, which is not"
            text += " shown, or for the transfer"
        said.append(text)
    return "; ".join(said[:3])


def groups(job: Job) -> Dict[int, str]:
    """Rank -> the process group of which PyTorch tells its progress."""
    return {rank: code.partition(" of ")[2] for rank, code in _progress(job)}


def _progress(job: Job) -> List[Tuple[int, str]]:
    """Rank, and the collectives that it enqueued and completed in a group, of each line that tells them."""
    found = []
    for one in job.failures:
        own = one.failure if one.failure.kind == "progress" else None
        if one.failure.kind == "watchdog":
            own = elsewhere.progress(one.failure.text)
        if own is not None and one.failure.rank is not None:
            found.append((one.failure.rank, own.code))
    return found


def outstanding(reported: Sequence[Reported]) -> List[str]:
    """What the heartbeat monitor says of how long its thread stood, and how much was under way."""
    stuck = {match.group(1) for match in (_STUCK.search(one.failure.text) for one in reported) if match}
    left = {}
    for one in reported:
        match = _OUTSTANDING.search(one.failure.text)
        if match is not None and one.failure.rank is not None:
            left.setdefault(int(match.group(1)), set()).add(one.failure.rank)
    parts = ["without progress for %s s" % "/".join(sorted(stuck)[:3])] if stuck else []
    for number, ranks in sorted(left.items(), reverse=True)[:4]:
        parts.append("%d operation%s outstanding on rank%s %s" % (
            number, "" if number == 1 else "s", "" if len(ranks) == 1 else "s", numbers(ranks),
        ))  # fmt: skip
    if parts:
        text = "a call of CUDA or NCCL hangs, or a lock such as Python's GIL: the lines do not tell which; a longer"
        parts.append(text + " TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only buys time; look at the other ranks too")
    return parts


def out_of_step(have: str) -> bool:
    """Whether ``gave_up`` has said that the program's ranks called different things."""
    return "out of step" in have
