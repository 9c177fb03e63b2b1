# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find the slow ones of many by tests of two: disjoint pairs first, then failed items with known good ones.

An item is a node, or a leaf with its uplinks. A place is what its items reach each other through: a node's leaf. In the
first round neighbours of a place meet; a pass clears both. Items that are not cleared meet good ones, each of these
once a round: one pass clears, two failures with different good items accuse, with the first one three in all: the odd
item, which has no partner in the first round, fails again. A missing result accuses no item. With k faulty of N, all in
one place and N even, that is 1 + 2 ceil(2k / (N - 2k)) rounds, noise aside.

A path between two places is shared, and may itself be slow. A failure across therefore counts only beside one with a
good item of the same place that itself has passed across. A place in which no item passes is shut: its items are not
accused, the place is. Deterministic: the same outcomes give the same pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

PASS, FAIL, SILENT = "pass", "fail", "silent"
GOOD, ACCUSED, OPEN, UNKNOWN, LOST = "good", "accused", "open", "unknown", "lost"
# Failures with different good partners that accuse, and missing results that end the tests.
ENOUGH = 2
# Tests with good partners after which an item that neither passed nor failed for certain is unknown.
MOST = 6
# Further rounds in which the suspects of a place without a good item meet each other in other pairs, and how many of
# its items then meet good ones of other places, one a round, before the place is shut.
MIXED, SENT = 2, 4
# Up to this many items one disturbed test may leave no good item: they meet again before the search ends.
FEW = 5

Pair = tuple[str, str]


@dataclass
class Item:
    """passed, failed, silent: partners, in the order of the rounds.

    against, across: partners of the same or another place that were good already when this item failed with them.
    unheard: good ones with which there was no result.   state: GOOD, ACCUSED, OPEN, UNKNOWN or LOST.
    """

    name: str
    place: str
    order: int
    state: str = OPEN
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    across: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    passed_across: bool = False
    gone: bool = False

    @property
    def retests(self) -> int:
        return len(self.against) + len(self.across) + len(self.unheard)

    def asked_with(self, other: str) -> bool:
        """Return whether the other item was its partner when that one was good already."""
        return other in self.against or other in self.across or other in self.unheard

    def met(self, other: str) -> bool:
        return other in self.failed or other in self.silent


class PairwiseSearch:
    """places: item -> its place, in the order in which neighbours are to meet.

    stopped: True once the search ended without verdicts: no item passed, or fewer are good than slow.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.items = {name: Item(name, place, order) for order, (name, place) in enumerate(places.items())}
        self.rounds = 0
        self.stopped = False
        self.shut: list[str] = []
        self._asked: tuple[Pair, ...] | None = None
        self._good: dict[str, list[Item]] = {}
        self._open = list(self.items.values())
        self._mixed: dict[str, int] = {}

    def of_state(self, state: str) -> list[str]:
        return [item.name for item in self.items.values() if item.state == state]

    def next_round(self) -> tuple[Pair, ...]:
        """Return disjoint pairs to be tested; empty at the end. The same until ``take``."""
        if self._asked is None:
            self._asked = () if self.stopped else self._first() if not self.rounds else self._again()
            if not self._asked:
                self._close(self._open)
        return self._asked

    def take(self, outcomes: Mapping[Pair, str], lost: Collection[str] = ()) -> None:
        """Take the outcomes: pair of the round -> PASS, FAIL or SILENT; a missing pair was silent.

        lost: items that take no more part, such as a dead node. Their tests without a result count against no item.
        """
        asked = self.next_round()
        self.rounds += 1
        before = {name: self.items[name].state == GOOD for pair in asked for name in pair}
        for pair in asked:
            outcome = outcomes.get(pair, SILENT)
            for name, other in (pair, pair[::-1]):
                if outcome != SILENT or not lost or not {name, other} & set(lost):
                    self._note(self.items[name], self.items[other], outcome, before[other])
        for name in lost:
            item = self.items[name]
            item.gone = True
            if item.state == OPEN:
                item.state = LOST
            if item.state == GOOD:
                self._good[item.place].remove(item)
        self._asked = None
        self._decide()

    def clear(self, name: str, other: str) -> None:
        """Clear an accused item that has passed with a good one after all."""
        item = self.items[name]
        item.passed.append(other)
        item.state = GOOD

    def _note(self, item: Item, other: Item, outcome: str, was_good: bool) -> None:
        near = item.place == other.place
        if outcome == PASS:
            item.passed.append(other.name)
            item.passed_across |= not near
            if item.state == OPEN:
                item.state = GOOD
                self._good.setdefault(item.place, []).append(item)
            return
        (item.failed if outcome == FAIL else item.silent).append(other.name)
        if was_good and item.state == OPEN:
            counted = item.unheard if outcome == SILENT else item.against if near else item.across
            counted.append(other.name)

    def _decide(self) -> None:
        self._open = [item for item in self._open if item.state == OPEN]
        for item in self._open:
            if self._slow(item):
                item.state = ACCUSED
            elif len(set(item.unheard)) >= ENOUGH or item.retests >= MOST:
                item.state = UNKNOWN
        self._open = [item for item in self._open if item.state == OPEN]
        # A good item that was lost since still counts as good.
        good = len(self.of_state(GOOD))
        accused = [item for item in self.items.values() if item.state == ACCUSED]
        if len(accused) > good + len(self._open) or (not good and self._hopeless()):
            self.stopped = True
            self._close([*accused, *self._open])

    def _hopeless(self) -> bool:
        """Return whether no item can be found good. Among few, other pairs may still find two good ones."""
        there = [item for item in self._open if not item.gone]
        if len(there) < 2:
            return True
        fresh = any(not item.failed and not item.silent for item in there)
        rounds = min(len(self.items), 3) if len(self.items) <= FEW else 2 if fresh else 1
        return self.rounds >= rounds

    def _slow(self, item: Item) -> bool:
        near, far = set(item.against), set(item.across)
        proven = any(self.items[name].passed_across for name in near)
        if len(item.failed) <= ENOUGH:
            return False
        return len(near) >= ENOUGH or (bool(near) and len(near | far) >= ENOUGH and proven)

    def _close(self, items: Sequence[Item]) -> None:
        for item in items:
            item.state = UNKNOWN
        self._open = []

    def _first(self) -> tuple[Pair, ...]:
        places: dict[str, list[Item]] = {}
        for item in self._open:
            places.setdefault(item.place, []).append(item)
        return tuple(
            (one.name, other.name)
            for there in places.values()
            for one, other in zip(there[::2], there[1::2], strict=False)
        )

    def _again(self) -> tuple[Pair, ...]:
        """Return pairs, the least tested items first, so that healthy ones become partners before any is accused."""
        found: list[Pair] = []
        used: set[str] = set()
        crossed: set[str] = set()
        self._shut()
        none_good = not any(self._good.values())
        mixed = set()
        for item in sorted(self._open, key=lambda each: (each.retests, each.order)):
            if item.name in used:
                continue
            partner = next(self._near(item, used), None)
            if partner is None and self._may_mix(item.place):
                partner = next(self._mates(item, used, none_good), None)
                if partner is not None:
                    mixed.add(item.place)
            elif partner is None and any(True for _each in self._near(item, ())):
                # Its turn comes in the next round.
                continue
            if partner is None and not none_good and item.place not in mixed | crossed:
                partner = next(self._far(item, used, crossed), None)
                crossed |= {item.place, partner.place} if partner is not None else set()
            if partner is not None:
                found.append((item.name, partner.name))
                used |= {item.name, partner.name}
        for place in mixed:
            self._mixed[place] = self._mixed.get(place, 0) + 1
        return tuple(found)

    def _may_mix(self, place: str) -> bool:
        return not self._good.get(place) and self._mixed.get(place, 0) < MIXED

    def _near(self, item: Item, used: Collection[str]) -> Iterator[Item]:
        """Yield good items of its place that it was not tested with; those that it never met first."""
        there = [each for each in self._good.get(item.place, ()) if each.name not in used]
        yield from (each for each in there if not item.met(each.name))
        yield from (each for each in there if item.met(each.name) and not item.asked_with(each.name))
        if len(set(item.against)) >= ENOUGH:
            # Only the third failure is missing, and no other item could give it.
            yield from (each for each in there if each.name in item.against)

    def _mates(self, item: Item, used: Collection[str], none_good: bool) -> Iterator[Item]:
        """Yield other suspects of its place; if no item is good, also those that it has met."""
        there = [
            each
            for each in self._open
            if each is not item and each.place == item.place and each.name not in used and not each.gone
        ]
        yield from (each for each in there if not item.met(each.name))
        yield from (each for each in there if none_good and item.met(each.name))

    def _far(self, item: Item, used: Collection[str], crossed: Collection[str]) -> Iterator[Item]:
        """Yield good items of other places, each round of another place first: its path may be the slow one.

        One test at a time over the path of a place, which is shared.
        """
        if len(set(item.across)) >= ENOUGH:
            return
        places = [place for place in self._good if place != item.place]
        turn = self.rounds % max(1, len(places))
        for place in [*places[turn:], *places[:turn]]:
            there = [] if place in crossed else self._good[place]
            yield from (each for each in there if each.name not in used and not item.asked_with(each.name))

    def _shut(self) -> None:
        """Shut places of two or more items without a good one, after some met good ones of other places."""
        for place in dict.fromkeys(item.place for item in self._open):
            there = [item for item in self.items.values() if item.place == place]
            tried = [item for item in there if item.across or item.unheard]
            if any(item.state == GOOD for item in there) or len(tried) < min(SENT, len(there)):
                continue
            if len(there) > 1:
                self.shut.append(place)
                self._close([item for item in self._open if item.place == place])
                self._open = [item for item in self.items.values() if item.state == OPEN]
