# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The tests of a search for slow nodes: over which hosts, against which bar, with which result."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import FAIL, PASS, SILENT

# Kinds of tests. LEAVES: hosts of two leaves alternate, so that each hop of a ring crosses the uplinks.
PAIR, RAILS, GPUS, LEAF, LEAVES, CLUSTER = "pair", "rails", "gpus", "leaf", "leaves", "cluster"


@dataclass(frozen=True)
class Node:
    """One host, measured alone before the search.

    leaf: "" where the inventory has none.   rails: numbers of the profile's.   alone: busbw of the node alone in
    GB/s, None where it was not measured.   alone_bar: its bar.   gpus: of the profile, by index.
    unfit: why it takes no part (busy, not reached), and what to do.
    """

    host: str
    leaf: str = ""
    rails: tuple[int, ...] = ()
    alone: float | None = None
    alone_bar: float | None = None
    gpus: tuple[int, ...] = ()
    unfit: tuple[str, str] | None = None


@dataclass(frozen=True)
class Test:
    """A measurement over some hosts. number: of the round, from 1.

    kind PAIR: a collective by Ring.   RAILS: each of ``rails`` alone, a write from the first host to the second,
    then from the second to the first, then both at once.   GPUS: a collective within the one host, between the two
    GPUs of each of ``pairs``, which are disjoint, all at once.   LEAF, LEAVES, CLUSTER: one over all of its hosts.
    about: the node whose rails, or the leaves, that are tested.
    """

    # pytest collects what is called Test.
    __test__ = False

    kind: str
    hosts: tuple[str, ...]
    number: int
    rails: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Way:
    """One rail in one direction: GB/s, None without a result. both: while the other direction was loaded, too."""

    rail: int
    source: str
    figure: float | None
    both: bool = False


@dataclass(frozen=True)
class Result:
    """figure: busbw in GB/s; None, 0 or less, or no number: no result, ``said`` has the reason.

    ways: of a test of RAILS.   pairs: of a test of GPUS, the busbw of each pair in GB/s, None where there is none.
    lost: host -> why it no longer takes part (busy, not reached).
    """

    test: Test
    figure: float | None = None
    said: str = ""
    ways: tuple[Way, ...] = ()
    pairs: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """The bar of a test in GB/s, of each way of RAILS and each pair of GPUS; None where unknown.

    source: of the bar.
    """

    value: float | None
    source: str


@dataclass(frozen=True)
class Evidence:
    """One figure against its bar. way: None but for a rail.   pair: of GPUs.   outcome: PASS, FAIL or SILENT."""

    test: Test
    figure: float | None
    bar: Bar
    outcome: str
    said: str = ""
    way: Way | None = None
    pair: tuple[int, int] | None = None


def screened(node: Node) -> bool:
    """Return whether the node is free and good alone."""
    return node.unfit is None and node_outcome(node) == PASS


def node_outcome(node: Node) -> str:
    return judge_figure(node.alone, Bar(node.alone_bar, ""))


def judge_figure(figure: float | None, bar: Bar) -> str:
    """Return PASS, FAIL or SILENT; an invalid figure, or one without a bar, proves nothing."""
    if figure is None or bar.value is None or not math.isfinite(figure) or figure <= 0:
        return SILENT
    return PASS if figure >= bar.value else FAIL
