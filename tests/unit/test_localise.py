"""The search for who is slow: disjoint rounds, the bound, no accusation without two good partners. Simulated."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    GPUS,
    LEAF,
    PAIR,
    RAILS,
    Bar,
    Node,
    Result,
    Test,
    Way,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import (
    ACCUSED,
    FAIL,
    GOOD,
    PASS,
    PairwiseSearch,
)

from tests import goldens
from tests.localising import KINDS, SLOW_GPU, UPLINK, Cluster, Fault, accused, any_faults, said, searched, wanted

Answer = Callable[[Test], Result]


def clusters(**more: Any) -> Iterator[Cluster]:
    dice = random.Random(7)
    for number in range(60):
        nodes, size = dice.choice([8, 9, 16, 17, 33, 64, 65, 100]), dice.choice([8, 16, 32])
        faults = any_faults(Cluster(nodes, leaf_size=size), dice.choice([0, 1, 1, 2]), dice)
        yield Cluster(nodes, faults, number, size, **more)


def test_faults_are_named_and_nobody_else_is() -> None:
    for cluster in clusters():
        assert accused(searched(cluster)) == wanted(cluster), cluster


@pytest.mark.parametrize("more", [{}, {"silent": 0.1}, {"lost": {"n0000": 1, "n0003": 2, "n0005": 3, "n0006": 4}}])
def test_rounds_are_disjoint_and_two_different_good_nodes_stand_behind_each_accusation(more: dict[str, Any]) -> None:
    for cluster in clusters(**more):
        search = Localisation(cluster.members(), cluster.bar)
        gone: set[str] = set()
        while tests := search.next_round():
            hosts = [host for test in tests for host in test.hosts]
            assert len(hosts) == len(set(hosts))
            assert not gone & set(hosts)
            if tests[0].kind == PAIR and tests[0].number == 1:
                assert all(cluster.leaf[one] == cluster.leaf[other] for one, other in (test.hosts for test in tests))
            results = [cluster.answer(test) for test in tests]
            gone |= {host for result in results for host in result.lost}
            search.take(results)
        passed = {host for one in search.evidence if one.outcome == PASS for host in one.test.hosts}
        for host in search.pairs.of_state(ACCUSED):
            failed = {other for one in search.of_host(host) if one.outcome == FAIL for other in one.test.hosts}
            assert len(failed & passed) >= 2
            assert host not in passed
        found = {host for host, check in accused(search) if check != "localise.uplink"}
        assert found <= {fault.where for fault in cluster.faults}
        assert set(said(search)) == set(cluster.hosts)


def test_the_bound_holds_without_noise() -> None:
    dice = random.Random(3)
    for _each in range(400):
        nodes = 2 * dice.randrange(2, 40)
        slow = set(dice.sample(range(nodes), dice.randrange(0, (nodes + 1) // 2)))
        order = list(range(nodes))
        dice.shuffle(order)
        search = PairwiseSearch({str(number): "" for number in order})
        while pairs := search.next_round():
            search.take({pair: FAIL if slow & {int(name) for name in pair} else PASS for pair in pairs})
        k = len(slow)
        assert {int(name) for name in search.of_state(ACCUSED)} == slow
        assert len(search.of_state(GOOD)) == nodes - k
        assert search.rounds <= 1 + 2 * math.ceil(2 * k / (nodes - 2 * k)), (nodes, k)


def node(host: str, **more: Any) -> Node:
    return Node(host, **{"rails": (0, 1), "alone": 480.0, "alone_bar": 440.0, **more})


def played(nodes: Sequence[Node], answer: Answer, bar: Callable[[Test], Bar] = Cluster.bar) -> Localisation:
    """A search to its end. answer: what comes of a test."""
    search = Localisation(nodes, bar)
    while tests := search.next_round():
        search.take([answer(test) for test in tests])
    return search


def of(*faults: Fault, nodes: int = 16, leaf_size: int = 8, bar: Callable[[Test], Bar] = Cluster.bar) -> Localisation:
    """A search over a cluster without noise."""
    cluster = Cluster(nodes, faults, leaf_size=leaf_size, noise=False)
    return played(cluster.members(), cluster.answer, bar)


def lonely(*faults: Fault) -> Localisation:
    """The last node is on a leaf of its own, and meets a good one across."""
    cluster = Cluster(9, faults, noise=False)
    cluster.leaf["n0008"] = "alone"
    return searched(cluster)


def crashes(test: Test) -> Result:
    return Result(test, said="it crashed")


def silent_and_dead(test: Test) -> Result:
    if "a" in test.hosts:
        return crashes(test)
    return Result(test, lost={"c": "not reached"}) if "c" in test.hosts else Result(test, 384.0)


def of_gpus(gpus: Sequence[int], slow: Sequence[int]) -> Localisation:
    """A node that is slow alone, with these GPUs."""

    def answer(test: Test) -> Result:
        return Result(test, pairs={pair: 288.0 if set(pair) & set(slow) else 480.0 for pair in test.pairs})

    return played([node("a", alone=300.0, gpus=tuple(gpus))], answer)


def no_bar_of_gpus(test: Test) -> Bar:
    return Bar(None, "none") if test.kind == GPUS else Cluster.bar(test)


def slow_leaf(spoiled: int) -> Localisation:
    """So many tests of a whole leaf are slow; three accuse it."""

    def answer(test: Test) -> Result:
        return Result(test, 200.0 if test.kind == LEAF and test.number <= 1 + spoiled else 384.0)

    return played([node(f"n{number}") for number in range(4)], answer)


SLOW_NODES = [Fault("slow node", f"n{number:04d}") for number in range(9)]
MIXED = [
    node("a"),
    node("b"),
    node("busy", unfit=localise_record.Unfit("busy: a job", "wait")),
    node("slow", alone=300.0),
    node("unscreened", alone=None),
]
WITH_LEAVES = [node("a", leaf="l"), node("b", leaf="l"), node("c"), node("d")]
SEARCHES: dict[str, Callable[[], Localisation]] = {
    **{kind: functools.partial(of, Fault(kind, "n0005", 3)) for kind in KINDS},
    "a slow GPU": lambda: of(Fault(SLOW_GPU, "n0003", 5), nodes=8),
    "a slow uplink": lambda: of(Fault(UPLINK, "leaf01"), nodes=32),
    # Nobody can tell whose it is.
    "a slow uplink of two leaves": lambda: of(Fault(UPLINK, "leaf01")),
    "a leaf in which nobody passes": lambda: of(*SLOW_NODES[:8], nodes=64),
    "fewer good than slow": lambda: of(*SLOW_NODES, leaf_size=32),
    # One cause, one line: that no node has a verdict follows from the bar.
    "a bar that nobody reaches": lambda: of(nodes=8, bar=lambda _test: Bar(1000.0, "a wrong bar")),
    "no bar": lambda: of(nodes=4, bar=lambda _test: Bar(None, "no bar for pair all_reduce")),
    "a lonely node": lonely,
    "a lonely node that is slow": lambda: lonely(Fault("slow node", "n0008")),
    "busy, slow alone, or not screened": lambda: played(MIXED, lambda test: Result(test, 384.0)),
    "a is silent and c dies": lambda: played([node(name) for name in "abcdef"], silent_and_dead),
    "nodes without a leaf among others": lambda: played(WITH_LEAVES, lambda test: Result(test, 384.0)),
    # Nobody is left to tell which of two GPUs it is, or all are slow: what they share.
    "one of two GPUs": lambda: of_gpus((0, 1), (0,)),
    "all eight GPUs": lambda: of_gpus(range(8), range(8)),
    "none of eight GPUs": lambda: of_gpus(range(8), ()),
    "the only GPU": lambda: of_gpus((0,), (0,)),
    "GPUs without a bar": lambda: of(Fault(SLOW_GPU, "n0003", 5), nodes=8, bar=no_bar_of_gpus),
    "GPUs without a result": lambda: played([node("a", alone=300.0, gpus=tuple(range(8)))], crashes),
    "two slow tests of a leaf": lambda: slow_leaf(2),
    "three slow tests of a leaf": lambda: slow_leaf(3),
}


@pytest.mark.golden
def test_what_a_search_says_of_its_nodes() -> None:
    """And how many rounds and tests of each kind it took."""
    lines = []
    for name, search in SEARCHES.items():
        found = search()
        lines.append(f"== {name}: {', '.join(f'{kind} {n}/{found.tests[kind]}' for kind, n in found.rounds.items())}")
        for verdict in localise_judge.verdicts(found):
            one = verdict.finding
            because = f" because {one.because}" if one.because else ""
            if not one.ok:
                hosts = nodeset.brief(verdict.hosts, 60)
                lines.append(f"{hosts}: {one.check} {one.subject}: {one.state}{because}: {one.have}")
    goldens.text("localise_search", "\n".join(lines) + "\n")


def test_a_leaf_is_accused_by_tests_with_different_others() -> None:
    """The golden says which leaf."""
    search = SEARCHES["a leaf in which nobody passes"]()
    across = [test.test.hosts for test in search.evidence if test.outcome == FAIL and test.test.number > 3]
    slow = {fault.where for fault in SLOW_NODES[:8]}
    assert len({host for pair in across for host in pair if host not in slow}) == len(across) == 4


@pytest.mark.parametrize("figure", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_figure_that_is_none_proves_nothing(figure: float | None) -> None:
    assert localise_record.judge_figure(figure, Bar(1.0, "")) == "silent"
    assert localise_record.judge_figure(1.0, Bar(None, "")) == "silent"


@pytest.mark.parametrize(("last", "accused_now"), [(384.0, False), (231.0, True), (None, True)])
def test_whom_nothing_explains_meets_one_more_good_node_before_it_is_accused(
    last: float | None, accused_now: bool
) -> None:
    """Its first partner is slow, and two figures with good ones were spoiled; its rails and GPUs are fast."""
    cluster = Cluster(8, [Fault("slow node", "n0001")], noise=False)
    spoiled: list[str] = []

    def answer(test: Test) -> Result:
        if test.kind != PAIR or "n0000" not in test.hosts or "n0001" in test.hosts:
            return cluster.answer(test)
        spoiled.extend(each for each in test.hosts if each != "n0000")
        return Result(test, 231.0 if len(spoiled) < 3 else last)

    search = played(sorted(cluster.members(), key=lambda each: each.host), answer)
    assert len(spoiled) == len(set(spoiled)) == 3
    assert (("n0000", "localise.node") in accused(search)) is accused_now
    assert ("n0001", "localise.node") in accused(search)
    # What explains itself is not asked again: every rail of the slow node is slow.
    assert all("n0001" not in test.hosts for test in (search.appeals or {}).values())


def test_rails_are_accused_by_two_good_nodes_and_not_by_one_spoiled_figure() -> None:
    cluster = Cluster(8, [Fault("slow rail", "n0001", 2)], noise=False)
    spoiled: list[Test] = []

    def answer(test: Test) -> Result:
        one = cluster.answer(test)
        if test.kind != RAILS or spoiled:
            return one
        spoiled.append(test)
        return replace(one, ways=tuple(replace(way, figure=20.0) if way.rail == 4 else way for way in one.ways))

    assert accused(played(cluster.members(), answer)) == wanted(cluster)
    assert len(spoiled) == 1


@pytest.mark.parametrize(("slow_ways", "times", "rounds_wanted"), [(1, 2, 3), (4, 1, 2)])
def test_figures_of_a_rail_that_were_spoiled_do_not_accuse_it(slow_ways: int, times: int, rounds_wanted: int) -> None:
    """One of four figures is asked of a third good node."""
    rounds: list[int] = []

    def answer(test: Test) -> Result:
        if test.kind != RAILS:
            return Result(test, 200.0 if "n0" in test.hosts else 384.0)
        rounds.append(test.number)
        all_ways = [(1, source, both) for source in ("n0", *test.hosts[1:]) for both in (True, False)]
        slow = all_ways[:slow_ways] if len(rounds) <= times else []
        sides = [(rail, source, both) for rail in test.rails for source in test.hosts for both in (True, False)]
        return Result(test, ways=tuple(Way(*s[:2], 20.0 if s in slow else 48.0, s[2]) for s in sides))

    search = played([node(f"n{number}") for number in range(8)], answer)
    assert len(rounds) == rounds_wanted
    assert accused(search) == {("n0", "localise.node")}
    [found] = [one for one in said(search)["n0"] if one.check == "localise.node"]
    assert "each rail alone is fast" in str(found.have)


def test_a_failure_across_counts_only_where_the_good_one_of_the_place_has_passed_across() -> None:
    for proven in (False, True):
        search = PairwiseSearch({"a": "L", "b": "L", "x": "L", "c": "M", "d": "M"})
        assert search.next_round() == (("a", "b"), ("c", "d"))
        search.take(dict.fromkeys(search.next_round(), PASS))
        assert search.next_round() == (("x", "a"),)
        search.take({("x", "a"): FAIL}, {"b"})
        search.items["a"].passed_across = proven
        [(_x, other)] = search.next_round()
        assert other in "cd"
        search.items["x"].failed.append("before")
        search.take({("x", other): FAIL})
        assert search.items["x"].state == ("accused" if proven else "open")


def test_partners_that_die_one_after_the_other_leave_a_node_neither_accused_nor_unknown() -> None:
    search = PairwiseSearch(dict.fromkeys("abcdefx", ""))
    search.take(dict.fromkeys(search.next_round(), PASS))
    for _each in range(3):
        [(x, other)] = search.next_round()
        search.take({}, {other})
        assert search.items[x].state == "open"
    search.take({search.next_round()[0]: PASS})
    assert search.items["x"].state == GOOD
