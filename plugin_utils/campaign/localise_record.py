# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Describe the nodes and tests of a search for slow nodes; read and write its record, a JSON file.

It is rewritten after each round, ``complete`` only at the end, so that a killed run leaves its measurements. Its
figures come from nodes: ``from_dict`` types and sizes all of it. Bandwidths are GB/s (1e9 bytes), times seconds since
1970.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import codec, result_schema
from ..record_file import RecordFile, builder
from .pairwise_search import FAIL, PASS, SILENT

# Kinds of tests. LEAVES: hosts of two leaves alternate, so that each hop of a ring crosses the uplinks.
PAIR, RAILS, GPUS, LEAF, LEAVES, CLUSTER = "pair", "rails", "gpus", "leaf", "leaves", "cluster"


class Unfit(NamedTuple):
    """reason: why a node takes no part (busy, not reached).   fix: what to do."""

    reason: str
    fix: str


@dataclass(frozen=True)
class Node:
    """One host, measured alone before the search.

    leaf: "" where the inventory has none.   rails: numbers of the profile's.   alone: busbw of the node alone in
    GB/s, None where it was not measured.   alone_bar: its bar.   gpus: of the profile, by index.
    unfit: None where it can take part.
    """

    host: str
    leaf: str = ""
    rails: tuple[int, ...] = ()
    alone: float | None = None
    alone_bar: float | None = None
    gpus: tuple[int, ...] = ()
    unfit: Unfit | None = None


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


# -- the record --------------------------------------------------------------------------------------------------------

NAME = "localise.json"
# Bytes of the file: 1,024 nodes of eight GPUs are 2 MB.
LIMIT = 64 << 20
HOSTS, TESTS = 20_000, 200_000


@dataclass(frozen=True)
class GpuPair:
    """Two GPUs of a node, and their busbw; None without one."""

    gpu: int
    other: int
    figure: float | None


@dataclass(frozen=True, kw_only=True)
class MeasuredTest:
    """One test of the search with its result.

    number: of its round, from 1.   kind, hosts, rails, about: as in ``Test``.   figure: busbw; None
    without one, of RAILS, whose figures are ``ways``, and of GPUS, whose are ``pairs``.   bar: in GB/s, of RAILS
    each way; None where unknown.   outcome: PASS, FAIL or SILENT; of RAILS and GPUS the worst.   said: why there
    is no figure.   lost: host -> why it no longer takes part.
    """

    number: int
    kind: str
    hosts: tuple[str, ...]
    outcome: str
    rails: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    figure: float | None = None
    bar: float | None = None
    bar_source: str = ""
    said: str = ""
    ways: tuple[Way, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HostFinding:
    """A finding, and the hosts that have it."""

    hosts: tuple[str, ...]
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Record:
    """One search. nodes: all requested ones; those that took no part have the reason (``unfit``), or are slow alone.

    finished: when the last of the tests ended.   launcher: mpirun or srun.   findings: those that are ok, too.
    complete: False for an unfinished search.
    """

    simulated: bool
    begun: float
    finished: float
    complete: bool = False
    launcher: str
    nodes: tuple[Node, ...]
    tests: tuple[MeasuredTest, ...] = ()
    findings: tuple[HostFinding, ...] = ()

    @property
    def rounds(self) -> int:
        return max((test.number for test in self.tests), default=0)


_name = codec.text(codec.LINE, empty=False, line=True)
_LIMITS = {
    **dict.fromkeys(("host", "hosts", "source"), _name),
    **dict.fromkeys(("alone", "alone_bar", "figure", "bar"), codec.number(0, 1e6)),
    **dict.fromkeys(("rail", "rails"), codec.whole(0, 99)),
    **dict.fromkeys(("gpu", "other", "gpus"), codec.whole(0, 999)),
    **dict.fromkeys(("begun", "finished"), result_schema.seconds),
    "kind": codec.one_of(PAIR, RAILS, GPUS, LEAF, LEAVES, CLUSTER),
    "outcome": codec.one_of(PASS, FAIL, SILENT),
    "number": codec.whole(1, TESTS),
}
_node = codec.of_class(Node, _LIMITS)
_test = codec.of_class(
    MeasuredTest,
    _LIMITS,
    pairs=codec.many(codec.of_class(GpuPair, _LIMITS), 1000),
    lost=codec.table(result_schema.line, _name, HOSTS),
)
_finding = codec.of_class(HostFinding, hosts=codec.many(_name, HOSTS), finding=result_schema.a_finding)
_record = codec.of_class(
    Record,
    _LIMITS,
    nodes=codec.many(_node, HOSTS),
    tests=codec.many(_test, TESTS),
    findings=codec.many(_finding, TESTS),
)
_read = builder(Record, _record)


def _build(data: Any) -> Record:
    record = _read(data)
    known = {node.host for node in record.nodes}
    if len(known) < len(record.nodes):
        raise ParseError("nodes: a host is there twice")
    tested = {name for test in record.tests for name in (*test.hosts, *test.lost, *(way.source for way in test.ways))}
    for part, named in (("tests", tested), ("findings", {host for one in record.findings for host in one.hosts})):
        if not named <= known:
            raise ParseError(f"{part}: {min(named - known)} is not one of the nodes")
    return record


FILE = RecordFile("localise", NAME, LIMIT, _build)
folder, to_dict, from_dict, parse, read = FILE.folder, FILE.to_dict, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record, made: Path | None = None) -> Path:
    """Write the record in its own directory, as RecordFile.write does. made: of an earlier round of the same search."""
    return FILE.write(results, to_dict(record), record.begun, ": search among fewer nodes at once", made)
