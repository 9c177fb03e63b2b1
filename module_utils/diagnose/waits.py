# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare what PyTorch's watchdogs report: which ranks waited, for which collective, and how far each one came.

Lines: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of pytorch/pytorch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ..core.number import signed, whole
from .events import Group, Occurrence
from .jobs import Job
from .names import missing, numbers, of_ranks

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
        named = [
            number for (_operation, number, _elements), ranks in self.calls.items() if ranks and number is not None
        ]
        return len(self.groups) < 2 and len(set(named)) < len(named)

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
        for one in group.kept if group.event.id in ("watchdog", "signalled", "progress") else ():
            name = _GROUP_NAME.search(one.text)
            if name and len(found.groups) < 64:
                found.groups.add(name.group(1).strip())
            if group.event.id == "watchdog":
                _call(found, one)
            enqueued, completed = (signed(one.fields.get(key)) for key in ("enqueued", "completed"))
            if one.rank is not None and enqueued is not None and completed is not None:
                enqueued, completed = max(enqueued, -1), max(completed, -1)
                if completed <= max(enqueued, 0):
                    found.progress[one.rank] = (enqueued, completed)
            by = whole(one.fields.get("by"))
            if group.event.id == "signalled" and (by is not None or one.rank is not None):
                found.signalled.add(by if by is not None else one.rank or 0)
    return found


def _call(found: Waits, one: Occurrence) -> None:
    key = (one.fields.get("op") or "", whole(one.fields.get("seq")), whole(one.fields.get("numel")))
    # A line without the operation is about the one with that number.
    named = [other for other in found.calls if other[1] == key[1] and other[0]]
    ranks = found.calls.setdefault(named[0] if named and not key[0] else key, set())
    found.unnamed += one.rank is None
    ranks |= {one.rank} if one.rank is not None else set()
    found.limit = max(found.limit, whole(one.fields.get("limit")) or 0)


def _in_order(waits: Waits) -> List[Tuple[Call, Set[int]]]:
    return sorted(waits.calls.items(), key=lambda one: (one[0][1] or 0, one[0][0]))


def describe(waits: Waits, job: Job) -> List[str]:
    """Return sentences on who waited for what, and who did not come."""
    found: List[str] = []
    each = []
    for (operation, number, elements), ranks in _in_order(waits)[:4]:
        text = "%s number %s" % (operation or "a collective", "?" if number is None else number)
        text += ", %s elements" % ("?" if elements is None else elements) if waits.out_of_step else ""
        each.append("%s, on %s" % (text, of_ranks(numbers(ranks)) if ranks else "a rank"))
    if len(waits.calls) > 1:
        what = "the ranks are out of step" if waits.out_of_step else "ranks wait in different collectives"
        what += " of several process groups" if len(waits.groups) > 1 else ""
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


def title(waits: Waits, job: Job) -> str:
    """Return the wait in a few words: who waited for whom."""
    if not waits.calls:
        return "a rank signalled a collective timeout, and its lines on that are not in this log"
    (operation, number, elements), _ranks = _in_order(waits)[0]
    call = "%s%s" % (operation or "a collective", "" if number is None else " number %d" % number)
    after = " after %g s" % (waits.limit / 1000) if waits.limit else ""
    if waits.out_of_step:
        return "the ranks are out of step at %s: PyTorch's watchdog gave up%s" % (call, after)
    size = " (%d elements)" % elements if elements is not None else ""
    text = "PyTorch's watchdog gave up%s on %s%s" % (after, call, size)
    world, ranks = job.world, waits.ranks
    known = world is not None and len(world.began) == world.ranks and len(waits.groups) < 2 and not waits.unnamed
    if world is None or not known or not ranks or len(ranks) == world.ranks:
        return text
    return "%s: %s did not come" % (text, of_ranks(missing(ranks, world.ranks)))
