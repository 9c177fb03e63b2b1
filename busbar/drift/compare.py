# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare a host's run with its earlier ones: new, fixed, standing or flapping findings, and their origin. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .run import HostResult

# A check that changed its result this often in so many runs is not repaired by another run of the same role.
FLIPS = 3
NIGHTS = 7

# Origin of a finding. corrective: the host changed, it was ok under the same intent. new_intent: the inventory changed.
# never_ok: never seen ok under this intent, so no change is known.
ORIGINS = ("corrective", "new_intent", "never_ok")


@dataclass(frozen=True)
class Mark:
    """Data stored with a finding. first: run that first had it. carried: not judged in that run, known before."""

    first: int
    origin: str
    carried: bool = False


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run that judged the host."""

    run: int
    intent: str | None
    passed: frozenset[str]
    marks: Mapping[str, Mark] = field(default_factory=dict)  # by the id of the finding


@dataclass(frozen=True)
class Changes:
    """Ids of findings. gone: no longer audited, so not known to be fixed. unverified: not judged."""

    new: frozenset[str]
    standing: frozenset[str]
    fixed: frozenset[str]
    gone: frozenset[str]
    unverified: frozenset[str]
    flapping: frozenset[str]


def marks(run: int, tonight: HostResult, nights: Sequence[EarlierRun]) -> dict[str, Mark]:
    """Return the mark of each finding to be stored for this run. nights: the last judging runs, oldest first."""
    last = nights[-1].marks if nights else {}
    new = {name: Mark(run, _origin(name, tonight, nights)) for name in tonight.by_id if name not in last}
    found = {name: new.get(name) or replace(last[name], carried=False) for name in tonight.by_id}
    if tonight.end == "incomplete":
        # An incomplete result says nothing about the rest: earlier findings stay.
        for name, mark in last.items():
            if name not in found and name not in tonight.passed:
                found[name] = replace(mark, carried=True)
    return found


def _origin(name: str, tonight: HostResult, nights: Sequence[EarlierRun]) -> str:
    if tonight.intent is None or not nights:
        return "never_ok"
    if any(name in night.passed and night.intent == tonight.intent for night in nights):
        return "corrective"
    return "new_intent" if nights[-1].intent not in (None, tonight.intent) else "never_ok"


def compare(tonight: HostResult, nights: Sequence[EarlierRun]) -> Changes:
    """Compare a host's run with its last one. A host that was not judged has no changes. nights: oldest first."""
    was, nothing = frozenset(nights[-1].marks if nights else ()), frozenset[str]()
    if not tonight.judged:
        return Changes(nothing, nothing, nothing, nothing, was, nothing)
    now = frozenset(tonight.by_id)
    fixed = (was - now) & tonight.passed
    rest, complete = was - now - fixed, tonight.end == "complete"
    gone, unverified = (rest, nothing) if complete else (nothing, rest)
    return Changes(now - was, now & was, fixed, gone, unverified, _flapping(tonight, nights[1 - NIGHTS :]))


def _flapping(tonight: HostResult, nights: Sequence[EarlierRun]) -> frozenset[str]:
    bad = set(tonight.by_id)
    names = bad.union(*(night.marks for night in nights))
    found = set()
    for name in names:
        marks = [(night.marks.get(name), name in night.passed) for night in nights]
        seen = [mark is not None for mark, passed in marks if passed or (mark and not mark.carried)]
        if name in bad or name in tonight.passed:
            seen.append(name in bad)
        if sum(one != other for one, other in itertools.pairwise(seen)) >= FLIPS:
            found.add(name)
    return frozenset(found)
