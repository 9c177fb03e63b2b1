# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Communicators of a log, and what lines prove of one that does not stand in them: that all of its ranks have met."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Set

from .process import Process

# Warnings of what NCCL compares once each rank has heard of each.
COMPARED = ("Mismatched NCCL version detected", "Duplicate GPU detected", "No transport found for rank")


@dataclass
class Communicator:
    """key: commId; of a split without one ``PARENT/COLOR``. began, done: rank -> process. nodes: as NCCL counts.

    split: made of another one (ncclCommSplit).   one_process: one process has all of its ranks (ncclCommInitAll).
    gone: how it ended (``Abort``) -> ranks.   named: its begin is not in the log, other lines name it.
    met: a rank of it has a line that NCCL prints only after the bootstrap, in which each rank hears of each.
    """

    key: str
    ranks: int
    began: Dict[int, Process] = field(default_factory=dict)
    done: Set[int] = field(default_factory=set)
    nodes: Optional[int] = None
    local_ranks: int = 0
    split: bool = False
    one_process: bool = False
    gone: Dict[str, Set[int]] = field(default_factory=dict)
    named: bool = False
    met: bool = False

    @property
    def formed(self) -> bool:
        """Whether all ranks have taken part; a communicator that ended in order had been completed."""
        return self.met or "Destroy" in self.gone


def _setting_up(known: Dict[str, Communicator], process: Process) -> Dict[str, Communicator]:
    """Communicators that the process began and has not completed on each of its ranks."""
    found = {}
    for key in set(process.pointers.values()):
        one = known.get(key)
        if one is not None and any(rank not in one.done and one.began.get(rank) is process for rank in process.buses):
            found[key] = one
    return found


def meets(known: Dict[str, Communicator], process: Process) -> None:
    """Takes that a process printed what comes after the bootstrap of the communicator that it sets up."""
    if not process.pointers:
        # The begin of it is not in the log.
        process.met = True
        return
    last = known.get(process.pointers[next(reversed(process.pointers))])
    if last is not None and last.met:
        return
    own = list(_setting_up(known, process).values())
    if len(own) == 1:
        own[0].met = True


def apart(known: Iterable[Communicator]) -> List[Communicator]:
    """Communicators that ranks of a job began in place of one: of one size, none complete, each rank in one of them."""
    of: Dict[int, List[Communicator]] = {}
    for one in known:
        odd = one.named or one.split or one.one_process or one.key.startswith("of ")
        if not (odd or one.formed or one.done or one.gone) and len(one.began) < one.ranks:
            of.setdefault(one.ranks, []).append(one)
    for ranks, found in of.items():
        began = [rank for one in found for rank in one.began]
        by = {process.key for one in found for process in one.began.values()}
        if len(found) > 1 and len(began) == len(set(began)) == len(by) == ranks:
            return found
    return []


def of_rank(known: Dict[str, Communicator], process: Process, rank: int) -> Optional[str]:
    """Key of the one communicator in which the process has just this rank to set up; None where several fit."""
    mine = [key for key in set(process.pointers.values()) if key in known and known[key].began.get(rank) is process]
    begun = [key for key in mine if rank not in known[key].done] or mine
    return begun[0] if len(begun) == 1 else None
