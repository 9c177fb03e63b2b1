# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which ranks are connected, by which way and in which channels; the order of rings, and trees. Of small jobs alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from .events import Channel
from .process import Process

# Connections that are kept, and lines of rings and of trees.
PAIRS, RINGS = 128, 16
# Of the number of a channel: fewer.
_DIGITS = 5
_ORDER = re.compile(
    r"Channel (?P<channel>\d{1,4})/(?P<of>\d{1,4}) ?:\s*(?P<order>\d[\d ]*(?:\.\.\.)?)(?![\d \[\]-])(?!.{0,80} via )"
)
_NEIGHBOURS = re.compile(
    r"Ring (?P<channel>\d{1,4}) : (?P<before>\d{1,8}) -> (?P<rank>\d{1,8}) -> (?P<after>\d{1,8})\s*$"
)
_TREE = re.compile(r"\[(?P<channel>\d{1,4})\] (?P<down>-?\d[-\d/]{0,40})->(?P<rank>\d{1,8})->(?P<up>-?\d{1,8})")
_OLD_TREE = re.compile(
    r"Tree (?P<channel>\d{1,4}) : (?P<up>-?\d{1,8}) -> (?P<rank>\d{1,8}) -> (?P<down>-?\d[-\d/]{0,40})\s*$"
)


@dataclass
class Pairs:
    """known: (process, source, target, path as printed) -> channels.   orders: (process, channels of the
    communicator) -> the first ring, as printed.   neighbours: (process, rank before, rank, rank behind) -> channels.
    trees: (process, rank) -> in words.

    many: there are more pairs than are kept.
    """

    known: Dict[Tuple[Process, int, int, str], Set[int]] = field(default_factory=dict)
    orders: Dict[Tuple[Process, int], str] = field(default_factory=dict)
    neighbours: Dict[Tuple[Process, int, int, int], Set[int]] = field(default_factory=dict)
    trees: Dict[Tuple[Process, int], List[str]] = field(default_factory=dict)
    many: bool = False

    def connection(self, process: Process, said: Channel, text: bytes) -> None:
        """Takes a connection and its line, which has the number of the channel."""
        key = process, said.source, said.target, said.path
        there = self.known.get(key)
        if there is None:
            if len(self.known) >= PAIRS:
                self.many = True
                self.known.clear()
                return
            there = self.known[key] = set()
        number = text.split(b" ", 2)[1].partition(b"/")[0]
        if number.isdigit() and len(number) < _DIGITS:
            there.add(int(number))

    def has_no_ring_of(self, process: Process) -> bool:
        """Whether no neighbours of the process are kept, nor will be."""
        return len(self.neighbours) >= RINGS and not any(key[0] is process for key in self.neighbours)

    def renamed(self, gone: Dict[Process, Process]) -> None:
        """Takes processes that turned out to be others."""
        self.known, self.orders, self.neighbours, self.trees = (
            {(gone.get(key[0], key[0]), *key[1:]): value for key, value in there.items()}
            for there in (self.known, self.orders, self.neighbours, self.trees)
        )

    def ring(self, process: Process, text: str) -> bool:
        """Takes the line that tells the order of ranks in a ring, or a rank's neighbours there."""
        match = _ORDER.match(text)
        if match is not None:
            of = int(match.group("of"))
            process.channels = max(process.channels, of)
            if len(self.orders) < RINGS or (process, of) in self.orders:
                self.orders.setdefault((process, of), " ".join(match.group("order").split()))
            return True
        match = _NEIGHBOURS.match(text)
        if match is None:
            return False
        key = process, int(match.group("before")), int(match.group("rank")), int(match.group("after"))
        if key in self.neighbours or len(self.neighbours) < RINGS:
            self.neighbours.setdefault(key, set()).add(int(match.group("channel")))
        return True

    def tree(self, process: Process, text: str) -> bool:
        """Takes the line that tells who stands above and below a rank in the trees."""
        old = _OLD_TREE.match(text)
        found = [old] if old is not None else list(_TREE.finditer(text))
        for match in found:
            key = process, int(match.group("rank"))
            if key not in self.trees and len(self.trees) >= RINGS:
                break
            said = self.trees.setdefault(key, [])
            place = _place(match.group("up"), match.group("down").split("/"))
            if len(said) < RINGS and place not in said:
                said.append(place)
        return bool(found)


def _place(up: str, down: List[str]) -> str:
    below = [number for number in down if number.isdigit()]
    above = "is the root" if up.startswith("-") else "below %s" % up
    return above + (", above %s" % " and ".join(below) if below else "")
