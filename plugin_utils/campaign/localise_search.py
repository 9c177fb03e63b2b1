# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Search for the slow node, rail, direction, GPU, leaf or uplink: give rounds of tests, take their results.

Only nodes that are fast alone take part. The order: pairs within leaves (pairwise_search.py); the rails of accused
nodes, each direction separately; GPU pairs of nodes that are slow alone or whose rails explain nothing; each leaf,
leaves in pairs, and all leaves without the accused nodes. Nothing here runs a program or waits, and equal nodes and
results give equal tests: localise.py plays it on nodes, tests on a simulation. localise_judge.py judges.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .. import nodeset
from .localise_record import (
    CLUSTER,
    GPUS,
    LEAF,
    LEAVES,
    PAIR,
    RAILS,
    Bar,
    Evidence,
    Node,
    Result,
    Test,
    Way,
    judge_figure,
    node_outcome,
    screened,
)
from .pairwise_search import ACCUSED, FAIL, GOOD, PASS, SILENT, Pair, PairwiseSearch

# Tests of a rail with different good nodes: two failures accuse; a third is made where several, not all, failed twice,
# or only one of a rail's four figures did: noise is as likely.
RAIL_TESTS, MORE_RAIL_TESTS = 2, 3
# Measurements of a team, a leaf or the cluster, before it is slow.
TEAM_TESTS = 3


# A rail, whether the accused node sends, and whether both directions were loaded.
Direction = tuple[int, bool, bool]
BarOf = Callable[[Test], Bar]


@dataclass
class RailSearch:
    """The rails of one accused node. tested: good partners.   silent: how many of these tests had
    no figure.   passed: directions that were fast.

    ended: no further test is needed, or no partner is left.
    """

    host: str
    rails: tuple[int, ...]
    tested: list[str] = field(default_factory=list)
    silent: int = 0
    evidence: dict[Direction, list[Evidence]] = field(default_factory=dict)
    passed: set[Direction] = field(default_factory=set)
    ended: bool = False

    def directions(self) -> list[Direction]:
        return [(rail, sends, both) for rail in self.rails for both in (False, True) for sends in (True, False)]

    def suspects(self) -> list[Direction]:
        return [each for each in self.directions() if each not in self.passed]

    def slow(self) -> list[Direction]:
        """Return directions that failed with enough different good nodes."""
        found = []
        for each in self.suspects():
            others = {host for one in self.evidence.get(each, ()) if one.outcome == FAIL for host in one.test.hosts}
            if len(others - {self.host}) >= RAIL_TESTS:
                found.append(each)
        return found

    def next_rails(self) -> tuple[int, ...]:
        rails = tuple(dict.fromkeys(rail for rail, _sends, _both in self.suspects()))
        # A dead partner is no test; the search does not wait until all of them die.
        heard = len(self.tested) - min(self.silent, RAIL_TESTS)
        if not heard:
            return self.rails if len(self.tested) < RAIL_TESTS else ()
        if heard < RAIL_TESTS:
            return rails
        several = 1 < len(rails) < len(self.rails)
        # A slow direction shows twice: alone, and with both directions loaded.
        suspects = [rail for rail, _sends, _both in self.suspects()]
        alone = any(suspects.count(rail) == 1 for rail in rails)
        return rails if (several or alone) and heard < MORE_RAIL_TESTS else ()


@dataclass
class GpuSearch:
    """The GPUs of one node. evidence: GPU -> its tests."""

    passes: PairwiseSearch
    evidence: dict[int, list[Evidence]] = field(default_factory=dict)

    def next_pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((int(one), int(other)) for one, other in self.passes.next_round())

    def slow(self) -> list[int]:
        return [int(name) for name in self.passes.of_state(ACCUSED)]


class Localisation:
    """A search over some nodes. bar_of: test -> its bar, from the control node and never from a node.

    nodes: with a leaf each, or none with one.   rounds, tests: numbers of each kind of test.
    """

    def __init__(self, nodes: Sequence[Node], bar_of: BarOf) -> None:
        self.nodes = {node.host: node for node in nodes}
        self.bar_of = bar_of
        some = any(node.leaf for node in nodes)
        self.no_leaf = frozenset(node.host for node in nodes if some and not node.leaf)
        self.screened = {host: node for host, node in self.nodes.items() if screened(node) and host not in self.no_leaf}
        self.pairs = PairwiseSearch({host: node.leaf for host, node in self.screened.items()})
        self.rails: dict[str, RailSearch] = {}
        self.gpus: dict[str, GpuSearch] | None = None
        self.appeals: dict[str, Test] | None = None
        self.leaves: dict[str, list[Evidence]] = {}
        self.uplinks: PairwiseSearch | None = None
        self.cluster: list[Evidence] = []
        self.lost: dict[str, str] = {}
        self.evidence: list[Evidence] = []
        self.rounds: dict[str, int] = {}
        self.tests: dict[str, int] = {}
        self.no_bar = ""
        self._of_host: dict[str, list[Evidence]] = {}
        self._round: tuple[Test, ...] | None = None
        self._number = 0

    # -- rounds --------------------------------------------------------------------------------------------------------

    def next_round(self) -> tuple[Test, ...]:
        """Return tests on disjoint hosts, to be run at the same time; empty at the end. The same until take."""
        if self._round is None:
            self._round = ()
            steps = (
                *(self._of_pairs, self._of_rails, self._of_gpus, self._of_appeals),
                *(self._of_leaves, self._of_uplinks, self._of_cluster),
            )
            for step in steps if not self.no_bar else ():
                self._round = tuple(step(self._number + 1))
                if self._round or self.pairs.stopped:
                    break
            for test in self._round:
                if self.bar_of(test).value is None:
                    self.no_bar = self.bar_of(test).source or "it has no bar"
            if self.no_bar:
                self._round = ()
        return self._round

    def take(self, results: Sequence[Result]) -> None:
        """Take the results of the round, one of each test."""
        kind = results[0].test.kind
        lost = {host: why for result in results for host, why in result.lost.items()}
        self.lost.update(lost)
        self._number += 1
        self.rounds[kind] = self.rounds.get(kind, 0) + 1
        self.tests[kind] = self.tests.get(kind, 0) + len(results)
        self._round = None
        if kind in (RAILS, GPUS):
            for result in results:
                (self._take_rails if kind == RAILS else self._take_gpus)(result.test, result)
            return
        found = [self._judged(result) for result in results]
        self.evidence += found
        if kind == PAIR:
            self._take_pairs(found, lost)
        elif kind == LEAF:
            for one in found:
                self.leaves[one.test.about[0]].append(one)
        elif kind == LEAVES and self.uplinks is not None:
            self.uplinks.take({_pair(one.test.about): one.outcome for one in found})
        else:
            self.cluster += found

    def _take_pairs(self, found: Sequence[Evidence], lost: Mapping[str, str]) -> None:
        for one in found:
            for host in one.test.hosts:
                self._of_host.setdefault(host, []).append(one)
        if self.appeals is None:
            self.pairs.take({_pair(one.test.hosts): one.outcome for one in found}, lost)
            return
        for one in found:
            if one.outcome == PASS:
                self.pairs.clear(*one.test.hosts)

    def _judged(self, result: Result) -> Evidence:
        bar = self.bar_of(result.test)
        return Evidence(result.test, result.figure, bar, judge_figure(result.figure, bar), result.said)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _of_pairs(self, number: int) -> list[Test]:
        return [Test(PAIR, pair, number) for pair in self.pairs.next_round()]

    @property
    def good(self) -> list[str]:
        """Return nodes that passed with another and are still there, in their order."""
        return [host for host in self.pairs.of_state(GOOD) if host not in self.lost]

    def _of_rails(self, number: int) -> list[Test]:
        if not self.rails:
            for host in self.pairs.of_state(ACCUSED):
                self.rails[host] = RailSearch(host, self.nodes[host].rails, ended=not self.nodes[host].rails)
        found = []
        used: set[str] = set()
        open_ones = [each for each in self.rails.values() if not each.ended]
        good = self.good if open_ones else []
        for search in open_ones:
            rails = search.next_rails() if search.host not in self.lost else ()
            leaf = self.nodes[search.host].leaf
            may = [host for host in good if self.nodes[host].leaf == leaf and host not in search.tested]
            if not rails or not may:
                search.ended = True
                continue
            partner = next((host for host in may if host not in used), None)
            if partner is not None:
                used.add(partner)
                found.append(Test(RAILS, (search.host, partner), number, rails, (search.host,)))
        return found

    def _take_rails(self, test: Test, result: Result) -> None:
        [host] = test.about
        search, bar = self.rails[host], self.bar_of(test)
        search.tested.append(test.hosts[1])
        ways = {(way.rail, way.source == host, way.both): way for way in result.ways if way.source in test.hosts}
        search.silent += all(judge_figure(way.figure, bar) == SILENT for way in ways.values())
        for each in search.suspects():
            rail, sends, both = each
            if rail not in test.rails:
                continue
            way = ways.get(each, Way(rail, test.hosts[0] if sends else test.hosts[1], None, both))
            one = Evidence(test, way.figure, bar, judge_figure(way.figure, bar), result.said, way)
            search.evidence.setdefault(each, []).append(one)
            if one.outcome == PASS:
                search.passed.add(each)

    def _of_gpus(self, number: int) -> list[Test]:
        if self.gpus is None:
            suspects = [node.host for node in self.nodes.values() if node.unfit is None and node_outcome(node) == FAIL]
            suspects += [search.host for search in self.rails.values() if not self.slow_rails(search.host)]
            self.gpus = {
                host: GpuSearch(PairwiseSearch({str(gpu): "" for gpu in self.nodes[host].gpus}))
                for host in suspects
                if len(self.nodes[host].gpus) > 1
            }
        found = [
            Test(GPUS, (host,), number, pairs=pairs)
            for host, search in self.gpus.items()
            if host not in self.lost and (pairs := search.next_pairs())
        ]
        # Nodes are compared without a bar of GPUs anyway.
        return [test for test in found if self.bar_of(test).value is not None]

    def _take_gpus(self, test: Test, result: Result) -> None:
        [host] = test.hosts
        search, bar = (self.gpus or {})[host], self.bar_of(test)
        outcomes = {}
        for pair in test.pairs:
            figure = result.pairs.get(pair)
            one = Evidence(test, figure, bar, judge_figure(figure, bar), result.said, pair=pair)
            outcomes[str(pair[0]), str(pair[1])] = one.outcome
            for gpu in pair:
                search.evidence.setdefault(gpu, []).append(one)
        search.passes.take(outcomes)

    def _of_appeals(self, number: int) -> list[Test]:
        """Test nodes without an explanation with one more good node: two disturbed figures look like a slow node."""
        if self.appeals is not None:
            return []
        self.appeals = {}
        used: set[str] = set()
        for host in self.pairs.of_state(ACCUSED):
            explained = self.rails[host].slow() or (host in (self.gpus or {}) and (self.gpus or {})[host].slow())
            item = self.pairs.items[host]
            may = [] if explained or host in self.lost else self._teams().get(item.place, [])
            partner = next((each for each in may if not item.met(each) and each not in used), None)
            if partner is not None:
                used.add(partner)
                self.appeals[host] = Test(PAIR, (host, partner), number)
        return [*self.appeals.values()]

    def slow_rails(self, host: str) -> list[int]:
        """Return an accused node's slow rails; none where all of several are: the cause is what they share."""
        search = self.rails.get(host)
        slow = list(dict.fromkeys(rail for rail, _sends, _both in search.slow())) if search else []
        return [] if search and len(slow) == len(search.rails) > 1 else slow

    def _teams(self) -> dict[str, list[str]]:
        """Return leaf -> its good nodes."""
        return nodeset.grouped((self.nodes[host].leaf, host) for host in self.good)

    def _of_leaves(self, number: int) -> list[Test]:
        if not self.leaves:
            self.leaves = {leaf: [] for leaf in self._teams()}
        # Two nodes of a leaf were measured as a pair already.
        teams = {leaf: hosts for leaf, hosts in self._teams().items() if len(hosts) > 2}
        return [
            Test(LEAF, tuple(hosts), number, about=(leaf,))
            for leaf, hosts in teams.items()
            if _needs_test(self.leaves.get(leaf, ()))
        ]

    def fast_leaves(self) -> list[str]:
        """Return leaves that are not slow alone, with good nodes."""
        teams = self._teams()
        return [leaf for leaf, tests in self.leaves.items() if leaf in teams and (not tests or _passed(tests))]

    def _of_uplinks(self, number: int) -> list[Test]:
        if self.uplinks is None:
            self.uplinks = PairwiseSearch(dict.fromkeys(self.fast_leaves(), ""))
        teams = self._teams()
        found = []
        for pair in self.uplinks.next_round():
            one, other = (teams.get(leaf, ()) for leaf in pair)
            hosts = tuple(chain.from_iterable(zip(one, other, strict=False)))
            if hosts:
                found.append(Test(LEAVES, hosts, number, about=pair))
        if not found and self.uplinks.next_round():
            # All nodes of these leaves were lost meanwhile.
            self.uplinks.take({}, {leaf for pair in self.uplinks.next_round() for leaf in pair if leaf not in teams})
            return self._of_uplinks(number)
        return found

    def _of_cluster(self, number: int) -> list[Test]:
        teams = self._teams()
        leaves = self.uplinks.of_state(GOOD) if self.uplinks is not None else []
        hosts = tuple(host for leaf in leaves for host in teams.get(leaf, ()))
        if sum(leaf in teams for leaf in leaves) < 2 or not _needs_test(self.cluster):
            return []
        return [Test(CLUSTER, hosts, number, about=tuple(leaves))]

    # -- results -------------------------------------------------------------------------------------------------------

    def of_host(self, host: str) -> list[Evidence]:
        """Return the tests of a node with another."""
        return self._of_host.get(host, [])


def _needs_test(tests: Sequence[Evidence]) -> bool:
    """Return whether a team is to be measured (again): one pass clears, and one disturbed test accuses no team."""
    return not _passed(tests) and len(tests) < TEAM_TESTS


def _passed(tests: Sequence[Evidence]) -> bool:
    return any(one.outcome == PASS for one in tests)


def _pair(names: tuple[str, ...]) -> Pair:
    one, other = names
    return one, other
