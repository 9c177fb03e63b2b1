# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare what PyTorch's watchdogs report: which ranks waited, for which collective, and how far each one came.

Lines: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of pytorch/pytorch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ..core.number import whole
from .event import Group, Occurrence
from .jobs import Job
from .names import missing, numbers, of_ranks

_GROUP_NAME = re.compile(r"\[PG (?:ID )?([^\]]{1,80}?) ?Rank \d")
# Collectives of a process group up to this number are called early: setting a job up ends there.
_EARLY = 20


@dataclass
class Waits:
    """calls: (operation, number, elements) -> ranks that waited in it.   limit: ms.   signalled: ranks that gave up.

    progress: rank -> (enqueued, completed).   groups: names of process groups.   unnamed: waits without a rank.
    """

    calls: Dict[Tuple[str, Optional[int], Optional[int]], Set[int]] = field(default_factory=dict)
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
        first: Dict[Optional[int], Set[Tuple[str, Optional[int]]]] = {}
        for (operation, number, elements), ranks in self.calls.items():
            if ranks and number is not None:
                first.setdefault(number, set()).add((operation, elements))
        return len(self.groups) < 2 and any(len(calls) > 1 for calls in first.values())

    @property
    def behind(self) -> Set[int]:
        """Return ranks that have enqueued less than others of the group."""
        most = max((enqueued for enqueued, _completed in self.progress.values()), default=0)
        behind = {rank for rank, (enqueued, _completed) in self.progress.items() if enqueued < most}
        return behind if len(self.groups) < 2 else set()


def read(groups: Iterable[Group]) -> Waits:
    """Collect the reports of watchdogs."""
    found = Waits()
    for group in groups:
        if group.event.id not in ("watchdog", "signalled", "progress"):
            continue
        for one in group.kept:
            name = _GROUP_NAME.search(one.text)
            if name and len(found.groups) < 64:
                found.groups.add(name.group(1).strip())
            if group.event.id == "watchdog":
                _call(found, one)
            rank = one.rank
            enqueued, completed = (_signed(one.fields.get(key)) for key in ("enqueued", "completed"))
            if rank is not None and enqueued is not None and completed is not None and completed <= max(enqueued, 0):
                found.progress[rank] = (enqueued, completed)
            if group.event.id == "signalled":
                by = whole(one.fields.get("by"))
                found.signalled |= {by if by is not None else rank} - {None}  # type: ignore[arg-type]
    return found


def _signed(text: Optional[str]) -> Optional[int]:
    return -1 if text is not None and text[:1] == "-" else whole(text)


def _call(found: Waits, one: Occurrence) -> None:
    key = (one.fields.get("op") or "", whole(one.fields.get("seq")), whole(one.fields.get("numel")))
    # A line without the operation is about the one with that number.
    named = [other for other in found.calls if other[1] == key[1] and other[0]]
    if not key[0] and named:
        key = named[0]
    elif key[0] and ("", key[1], None) in found.calls:
        found.calls[key] = found.calls.pop(("", key[1], None)) | found.calls.get(key, set())
    ranks = found.calls.setdefault(key, set())
    if one.rank is None:
        found.unnamed += 1
    else:
        ranks.add(one.rank)
    found.limit = max(found.limit, whole(one.fields.get("limit")) or 0)


def describe(waits: Waits, job: Job) -> List[str]:
    """Return sentences on who waited for what, and who did not come."""
    found: List[str] = []
    calls = sorted(waits.calls.items(), key=lambda one: (one[0][1] or 0, one[0][0]))
    if waits.out_of_step:
        each = ["%s number %s, %s elements, on %s" % (*_words(key), _who(ranks)) for key, ranks in calls[:4]]
        found.append("the ranks are out of step: %s" % "; ".join(each))
    elif len(calls) > 1:
        each = ["%s number %s (%s)" % (*_words(key)[:2], _who(ranks)) for key, ranks in calls[:4]]
        found.append("ranks wait in different collectives: %s" % ", ".join(each))
        if len(waits.groups) > 1:
            found.append("these are of several process groups")
    if waits.ranks:
        found.append("waiting: %s" % of_ranks(numbers(waits.ranks)))
        if job.world is not None and job.world.ranks > len(waits.ranks):
            found.append("no wait is reported by %s" % of_ranks(missing(waits.ranks, job.world.ranks)))
    if waits.behind:
        least = min(waits.progress[rank][0] for rank in waits.behind)
        most = max(enqueued for enqueued, _completed in waits.progress.values())
        text = "behind: %s enqueued %d collectives, others up to %d: look there first"
        found.append(text % (of_ranks(numbers(waits.behind)), least, most))
    sequence = [number for (_operation, number, _elements) in waits.calls if number is not None]
    if sequence and max(sequence) == 1:
        found.append("it is the first collective of its process group: nothing has run over that yet")
    elif sequence and max(sequence) <= _EARLY:
        found.append("it is one of the first collectives of its process group")
    return found


def _who(ranks: Set[int]) -> str:
    return of_ranks(numbers(ranks)) if ranks else "a rank"


def _words(key: Tuple[str, Optional[int], Optional[int]]) -> Tuple[str, str, str]:
    return (key[0] or "a collective", "?" if key[1] is None else str(key[1]), "?" if key[2] is None else str(key[2]))


def title(waits: Waits, job: Job) -> str:
    """Return the wait in a few words: who waited for whom."""
    if not waits.calls:
        return "a rank signalled a collective timeout, and its lines on that are not in this log"
    (operation, number, elements), _ranks = min(waits.calls.items(), key=lambda one: (one[0][1] or 0, one[0][0]))
    call = "%s%s" % (operation or "a collective", "" if number is None else " number %d" % number)
    after = " after %g s" % (waits.limit / 1000) if waits.limit else ""
    if waits.out_of_step:
        return "the ranks are out of step at %s: PyTorch's watchdog gave up%s" % (call, after)
    size = " (%d elements)" % elements if elements is not None else ""
    text = "PyTorch's watchdog gave up%s on %s%s" % (after, call, size)
    absent = absent_ranks(waits, job)
    return text + (": %s did not come" % of_ranks(absent) if absent else "")


def absent_ranks(waits: Waits, job: Job) -> str:
    """Return the ranks for which the others waited; "" where some ranks have no lines, or all of them waited."""
    world = job.world
    whole = world is not None and len(world.began) == world.ranks and len(waits.groups) < 2 and not waits.unnamed
    if world is None or not whole or not waits.ranks or len(waits.ranks) == world.ranks:
        return ""
    return missing(waits.ranks, world.ranks)
