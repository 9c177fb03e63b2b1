# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join RAS responses of several hosts to jobs and communicators, each once, with their progress between two queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from .answer import Communicator
from .views import View, same_job


def names(view: View) -> List[str]:
    """Return names of the communicators in a view."""
    return [one.name for one in view.now.communicators]


def distinct(views: Sequence[View]) -> List[View]:
    """Make names of different users' communicators unique: a hash is public, and any process may use it."""
    owners: Dict[str, Tuple[str, ...]] = {}
    found = []
    for view in views:
        own = " of %s" % ", ".join(view.users)
        communicators = tuple(
            one
            if owners.setdefault(one.name, view.users) == view.users
            else replace(one, name=one.name.split(":")[0] + own)
            for one in view.now.communicators
        )
        found.append(replace(view, now=replace(view.now, communicators=communicators)))
    return found


def jobs(views: Sequence[View]) -> List[List[View]]:
    """Return the views of one job together."""

    def same(one: View, other: View) -> bool:
        return bool(set(names(one)) & set(names(other))) or (one.users == other.users and same_job(one.now, other.now))

    found: List[List[View]] = []
    for view in views:
        of = [view]
        for job in [job for job in found if any(same(view, other) for other in job)]:
            of = job + of
            found.remove(job)
        found.append(of)
    return found


@dataclass(frozen=True)
class Joined:
    """A communicator over all views. present: ranks that responded in any of them.

    now, source, seconds: of the view with most ranks.   moved: None if not known.   back: as in Progress.
    """

    name: str
    now: Communicator
    source: str
    seconds: float
    present: FrozenSet[int]
    moved: Optional[bool]
    back: Tuple[int, ...]

    @property
    def subject(self) -> str:
        return "communicator %s" % self.name.split(":")[0]

    @property
    def after(self) -> str:
        return "%g s later the same" % self.seconds


def join(views: Sequence[View]) -> List[Joined]:
    """Return each communicator once, from the response with most ranks."""
    found: Dict[str, List[Tuple[Communicator, View]]] = {}
    for view in views:
        for one in view.now.communicators:
            found.setdefault(one.name, []).append((one, view))
    return [_joined(name, pairs) for name, pairs in found.items()]


def _joined(name: str, pairs: Sequence[Tuple[Communicator, View]]) -> Joined:
    now, view = max(pairs, key=lambda pair: (pair[0].progress is not None, len(pair[0].places)))
    progress = [one.progress for one, _view in pairs if one.progress is not None]
    back = tuple(sorted({rank for one in progress for rank in one.back}))
    # Counts that went back are no counts.
    moved = None if back or not progress else any(one.moved for one in progress)
    present = frozenset(rank for one, _view in pairs for rank in one.places)
    return Joined(name, now, view.source, view.seconds, present, moved, back)
