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


class Detail(NamedTuple):
    """Meaning of an event where its code, its text and its place in the sources fit. why, fix: "": those of the check.

    causes: usual ones, where no line shows one; proven: the line itself states them.   tier: instead of the event's.
    """

    why: str = ""
    fix: str = ""
    causes: str = ""
    proven: bool = False
    tier: Optional[int] = None
    code: Pattern[str] = re.compile("")
    text: Pattern[str] = re.compile("")
    place: Pattern[str] = re.compile("")


class Event(NamedTuple):
    """id: of the event.   check: of its finding.   tier: see above.   details: the last one fits always.

    plain: the line itself states what is wrong.   by_code: each code is a finding of its own.
    """

    id: str
    check: Check
    tier: int
    details: Tuple[Detail, ...]
    severity: str = ""
    state: str = "drift"
    plain: bool = False
    by_code: bool = False

    def detail(self, code: str, text: str, place: str) -> Detail:
        """Merge the details that fit: of each text the first that has it."""
        rows = [row for row in self.details
                if row.code.match(code) and row.text.search(text) and row.place.search(place)]  # fmt: skip

        def first(name: str) -> Detail:
            return next((row for row in rows if getattr(row, name) not in ("", None)), rows[-1])

        return first("causes")._replace(why=first("why").why, fix=first("fix").fix, tier=first("tier").tier)


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


def read_table(table: str) -> Dict[str, Event]:
    """Return the events of a table by id. ``event_table`` describes its form."""
    events = {}
    for block in re.split(r"\n(?=\w)", re.sub(r"\n *\+ ", " ", table.strip())):
        begin, *refinements = re.split(r"\n(?=  (?:code|text|place) )", block)
        row, _end, texts = begin.partition("\n")
        event, check, tier, *words = row.split()
        events[event] = Event(
            *(event, getattr(checks, check), TIERS.index(tier), tuple(map(_read_detail, [*refinements, texts]))),
            severity=next((word for word in words if word in SEVERITIES), ""),
            state="unknown" if "unknown" in words else "drift",
            plain="plain" in words,
            by_code="by_code" in words,
        )
    return events


def _read_detail(lines: str) -> Detail:
    found = {word: rest for word, _blank, rest in (line.strip().partition(" ") for line in lines.splitlines())}
    return Detail(
        *(found.get("why", ""), found.get("fix", ""), found.get("proven", found.get("causes", "")), "proven" in found),
        TIERS.index(found["tier"]) if "tier" in found else None,
        *(re.compile(found.get(name, "")) for name in ("code", "text", "place")),
    )


BY_ID = read_table(TABLE)
