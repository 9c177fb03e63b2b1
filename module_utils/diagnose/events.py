# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of a log: the types, and those of NCCL as rows of event_table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Pattern, Set, Tuple

from ..core.check import Check
from ..core.finding import SEVERITIES
from . import checks
from .event_table import TABLE
from .state import Process

# How far upstream an event is, the most upstream first. OUTSIDE: of hardware, the kernel or the scheduler, which no
# program causes.   CAUSE: a call or a check that failed.   NETWORK: data or a connection that did not arrive.
# EFFECT: a wait that ran out, or a peer that was lost.   WEAK: need not be a failure.   REPORT: of another failure.
# NOTICE: no failure.   An ORDER to end is upstream of what comes after it, and of nothing before it.
OUTSIDE, CAUSE, NETWORK, EFFECT, ORDER, WEAK, REPORT, NOTICE = range(8)
TIERS = ("OUTSIDE", "CAUSE", "NETWORK", "EFFECT", "ORDER", "WEAK", "REPORT", "NOTICE")


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

    proven: ``causes`` is what the line itself states.   tier: instead.
    """

    event: str
    code: Pattern[str] = re.compile("")
    text: Pattern[str] = re.compile("")
    place: Pattern[str] = re.compile("")
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

    @property
    def texts(self) -> Tuple[str, str, str]:
        """Return why, fix and causes: of the refinement, else of the event."""
        event, detail = self.event, self.detail
        return detail.why or event.why, detail.fix or event.fix, detail.causes or event.causes

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


def read_table(table: str) -> Tuple[Dict[str, Event], Tuple[Detail, ...]]:
    """Return the events of a table by id, and their refinements. ``event_table`` describes its form."""
    events, details = {}, []
    for block in re.split(r"\n(?=\w)", re.sub(r"\n *\+ ", " ", table.strip())):
        begin, *refinements = re.split(r"\n(?=  (?:code|text|place) )", block)
        row, _end, texts = begin.partition("\n")
        event, check, tier, *words = row.split()
        found = _fields(texts)
        severity = next((word for word in words if word in SEVERITIES), "")
        state = "unknown" if "unknown" in words else "drift"
        events[event] = Event(
            *(event, getattr(checks, check), TIERS.index(tier)),
            *(found.get(name, "") for name in ("why", "fix", "causes")),
            *(severity, state, "plain" in words, "by_code" in words),
        )
        details += [_refinement(event, _fields(part)) for part in refinements]
    return events, tuple(details)


def _fields(lines: str) -> Dict[str, str]:
    return {word: rest for word, _blank, rest in (line.strip().partition(" ") for line in lines.splitlines())}


def _refinement(event: str, found: Dict[str, str]) -> Detail:
    patterns = (re.compile(found.get(name, "")) for name in ("code", "text", "place"))
    causes, tier = found.get("proven", found.get("causes", "")), found.get("tier")
    number = TIERS.index(tier) if tier is not None else None
    return Detail(event, *patterns, found.get("why", ""), found.get("fix", ""), causes, "proven" in found, number)


BY_ID, DETAILS = read_table(TABLE)
