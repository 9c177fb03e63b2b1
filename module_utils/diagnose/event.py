# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of a log: the types of their tables, occurrences, and groups of occurrences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Set

from ..core.check import Check
from .state import Process

# How far upstream an event is, the most upstream first. OUTSIDE: of hardware, the kernel or the scheduler, which no
# program causes.   CAUSE: a call or a check that failed.   NETWORK: data or a connection that did not arrive.
# EFFECT: a wait that ran out, or a peer that was lost.   WEAK: need not be a failure.   REPORT: of another failure.
# NOTICE: no failure.   An ORDER to end is upstream of what comes after it, and of nothing before it.
OUTSIDE, CAUSE, NETWORK, EFFECT, ORDER, WEAK, REPORT, NOTICE = range(8)


class Event(NamedTuple):
    """id: of the event.   check: of its finding.   tier: see above.   why, fix: "": those of the check.

    causes: usual causes, where no line shows one.   plain: the line itself states what is wrong.
    by_code: each code is a finding of its own.
    """

    id: str
    check: Check
    tier: int
    why: str = ""
    fix: str = ""
    causes: str = ""
    severity: str = ""
    state: str = "drift"
    plain: bool = False
    by_code: bool = False


class Detail(NamedTuple):
    """Meaning of an event with a code, a text or a place of the sources. The first that fits counts.

    code, text, place: patterns; "" fits all.   proven: ``causes`` is what the line itself states.   tier: instead.
    """

    event: str
    code: str = ""
    text: str = ""
    place: str = ""
    why: str = ""
    fix: str = ""
    causes: str = ""
    proven: bool = False
    tier: Optional[int] = None


@dataclass
class Occurrence:
    """An event in one line. order: number of the line, counted through all files.   source: number of the file.

    fields: groups of the pattern.   rank: of the job.   place: FILE:LINE of NCCL's sources.
    """

    event: Event
    order: int
    source: int
    text: str
    fields: Dict[str, Any]
    process: Optional[Process] = None
    device: Optional[int] = None
    rank: Optional[int] = None
    host: str = ""
    place: str = ""
    time: str = ""

    @property
    def code(self) -> str:
        return self.fields.get("code") or ""


@dataclass
class Group:
    """Occurrences of one event and code. first: the earliest.   kept: at most LIMIT of them.   ranks, hosts: of all."""

    LIMIT = 64

    event: Event
    code: str
    tier: int
    first: Occurrence
    detail: Detail
    count: int = 0
    kept: list[Occurrence] = field(default_factory=list)
    ranks: Set[int] = field(default_factory=set)
    hosts: Set[str] = field(default_factory=set)
    last: int = 0
    because: Optional[Group] = None
    # Confidence of ``because``: proven or likely.
    link: str = ""

    @property
    def name(self) -> str:
        return "%s %s" % (self.event.id, self.code) if self.code else self.event.id

    def take(self, one: Occurrence) -> None:
        """Add an occurrence."""
        self.count += 1
        self.last = max(self.last, one.order)
        if len(self.kept) < self.LIMIT:
            self.kept.append(one)
        if one.rank is not None and len(self.ranks) < 100_000:
            self.ranks.add(one.rank)
        if one.host and len(self.hosts) < 10_000:
            self.hosts.add(one.host)
