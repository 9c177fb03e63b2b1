# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Connections that a process has told already, of another channel: three of four lines of a big job's log.

They are counted where they stand, and go into their process when somebody asks, all of a kind at once.
"""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from .process import Process, Way
from .shared import KNOWN, Shared, put

BEGINS = frozenset([b"Chan", b"Ring"])


class Repeats:
    """``again`` for each line; ``learn`` where that does not know it; ``settle`` before a connection is read."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # Head of a line and what stands behind its channel -> how many lines since; whose, of which rank and way.
        self._counts: Dict[Tuple[bytes, bytes], int] = {}
        self._meant: Dict[Tuple[bytes, bytes], Tuple[Process, int, Way]] = {}

    def again(self, line: bytes, at: int) -> bool:
        """Counts the line, where such a one was learnt. at: where its text's level begins, as in ``Whose.by``."""
        # What _key does, by hand: most lines of a log come here, and few go on.
        device = line.rfind(b" [", 0, at)
        key = line[line.rfind(b" ", 0, device) + 1 : at] if device > 0 else line[:at], line[line.find(b" : ", at) :]
        if key not in self._counts:
            return False
        self._counts[key] += 1
        return True

    def learn(self, line: bytes, at: int, process: Process, rank: Optional[int], way: Optional[Way]) -> None:
        """Takes a line that was read. rank, way: what it counts for; None of one that adds nothing any more."""
        if len(self._counts) >= KNOWN:
            self.settle()
        key = _key(line, at)
        if rank is not None and way is not None:
            if way not in process.connections.get(rank, ()):
                return  # there was no room for it
            self._meant[key] = process, rank, way
        self._counts[key] = 0

    def settle(self) -> None:
        for key, (process, rank, way) in self._meant.items():
            count = self._counts[key]
            if count:
                put(process, "connections", rank, self._shared.count(process.connections[rank], way, count))
        self._counts.clear()
        self._meant.clear()


def _key(line: bytes, at: int) -> Tuple[bytes, bytes]:
    device = line.rfind(b" [", 0, at)
    return line[line.rfind(b" ", 0, device) + 1 : at] if device > 0 else line[:at], line[line.find(b" : ", at) :]
