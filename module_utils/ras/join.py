# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join RAS responses of several hosts to jobs and communicators, each once, with their progress between two queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from .answer import Communicator, RasStatus
from .views import View, same_job


def names(view: View) -> List[str]:
    """Return names of the communicators in a view."""
    return [one.name for one in view.now.communicators]


def distinct(views: Sequence[View]) -> List[View]:
    """Make names of different users' communicators unique: a hash is public, and any process may use it."""
    owners: Dict[str, Tuple[str, ...]] = {}
    found = []
    for view in views:
        taken = {name for name in names(view) if owners.setdefault(name, view.users) != view.users}
        found.append(view if not taken else _renamed(view, taken))
    return found


def _renamed(view: View, taken: Set[str]) -> View:
    def rename(answer: RasStatus) -> RasStatus:
        said = " of %s" % ", ".join(view.users)
        return replace(
            answer,
            communicators=tuple(
                replace(one, name=one.name.split(":")[0] + said) if one.name in taken else one
                for one in answer.communicators
            ),
        )

    return replace(view, before=None if view.before is None else rename(view.before), now=rename(view.now))


def jobs(views: Sequence[View]) -> List[List[View]]:
    """Views of one job together. A text that names no communicator is known by its user and its size."""
    found: List[List[View]] = []
    for view in views:
        of = [view]
        for job in [job for job in found if any(_together(view, other) for other in job)]:
            of = job + of
            found.remove(job)
        found.append(of)
    return found


def _together(one: View, other: View) -> bool:
    if set(names(one)) & set(names(other)):
        return True
    return one.users == other.users and one.now.rows == other.now.rows and same_job(one.now, other.now)


@dataclass(frozen=True)
class Joined:
    """A communicator over all views. elsewhere: ranks that are missing in the best view and present in another one."""

    name: str
    before: Optional[Communicator]
    now: Communicator
    seconds: float
    version: str
    elsewhere: FrozenSet[int]
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
    found: Dict[str, List[Tuple[Optional[Communicator], Communicator, View]]] = {}
    for view in views:
        before = {one.name: one for one in view.before.communicators} if view.before else {}
        for one in view.now.communicators:
            found.setdefault(one.name, []).append((before.get(one.name), one, view))
    return [_joined(name, told) for name, told in found.items()]


def _joined(name: str, told: Sequence[Tuple[Optional[Communicator], Communicator, View]]) -> Joined:
    best = max(told, key=lambda each: (each[0] is not None, each[1].whole, len(each[1].places)))
    before, now, view = best
    there = {rank for _before, one, _view in told for rank in one.places}
    pairs = [(old, new) for old, new, _view in told if old is not None]
    back = {rank for old, new in pairs for rank in _back(old, new)}
    # Counts that went back are no counts.
    moves = [] if back else [_moved(old, new) for old, new in pairs]
    return Joined(
        name=name,
        before=before,
        now=now,
        seconds=view.seconds,
        version=view.now.version,
        elsewhere=frozenset(rank.rank for rank in now.missing if rank.rank in there and rank.rank not in now.places),
        moved=True if True in moves else None if not moves or None in moves else False,
        back=tuple(sorted(back)),
    )


def _moved(before: Communicator, now: Communicator) -> Optional[bool]:
    """Return whether any rank has launched something in between; None if not known."""
    if before.whole and now.whole:
        old, new = before.launched, now.launched
        return any(old[rank] != new[rank] for rank in old.keys() & new.keys())
    if not before.counts or not now.counts:
        return None
    return {name: {group.value for group in of} for name, of in before.counts.items()} != {
        name: {group.value for group in of} for name, of in now.counts.items()
    }


def _back(before: Communicator, now: Communicator) -> List[int]:
    """Return ranks whose counts were higher before, which is impossible."""
    old, new = before.launched, now.launched
    return [
        rank
        for rank in old.keys() & new.keys()
        if any(new[rank].get(name, 0) < count for name, count in old[rank].items() if name in new[rank])
    ]
