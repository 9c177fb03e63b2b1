# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and write the record of one search for slow nodes, a JSON file: nodes, tests with bars, findings.

It is rewritten after each round, ``complete`` only at the end, so that a killed run leaves its measurements. Its
figures come from nodes: ``from_dict`` types and sizes all of it. Bandwidths are GB/s (1e9 bytes), times seconds since
1970.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_tests import (
    CLUSTER,
    GPUS,
    LEAF,
    LEAVES,
    PAIR,
    RAILS,
    Node,
    Way,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import FAIL, PASS, SILENT
from ansible_collections.busbar.fabric.plugins.plugin_utils.record_file import RecordFile, plain

FORMAT = 1
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

    number: of its round, from 1.   kind, hosts, rails, about: as in ``localise_tests.Test``.   figure: busbw; None
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


def found_of(data: Mapping[str, Any]) -> HostFinding:
    return HostFinding(hosts=tuple(data["hosts"]), finding=finding.from_dict(data["finding"]))


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
_hosts = codec.many(_name, HOSTS)
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
_unfit = codec.record(reason=result_schema.line, fix=result_schema.line)
_node = codec.of_class(Node, _LIMITS, unfit=codec.maybe(_unfit))
_test = codec.of_class(
    MeasuredTest,
    _LIMITS,
    pairs=codec.many(codec.of_class(GpuPair, _LIMITS), 1000),
    lost=codec.table(result_schema.line, _name, HOSTS),
)
_finding = codec.record(hosts=_hosts, finding=result_schema.a_finding)
_record = codec.of_class(
    Record,
    _LIMITS,
    nodes=codec.many(_node, HOSTS),
    tests=codec.many(_test, TESTS),
    findings=codec.many(_finding, TESTS),
)
_file = codec.Record({"format": codec.whole(FORMAT, FORMAT), **_record.keys})


def to_dict(record: Record) -> dict[str, Any]:
    """Return plain data. Texts are cut to what ``from_dict`` accepts, without terminal control characters."""
    data = {"format": FORMAT, **plain(record)}
    for node in data["nodes"]:
        node["unfit"] = node["unfit"] and dict(zip(("reason", "fix"), node["unfit"], strict=True))
    return data


def _build(data: Any) -> Record:
    _file(data)
    found = tuple(map(found_of, data["findings"]))
    nodes = [{**one, "unfit": one["unfit"] and [one["unfit"]["reason"], one["unfit"]["fix"]]} for one in data["nodes"]]
    rest = {name: value for name, value in data.items() if name not in ("format", "findings")}
    record = replace(codec.build(Record, {**rest, "nodes": nodes}), findings=found)
    known = {node.host for node in record.nodes}
    if len(known) < len(record.nodes):
        raise ParseError("nodes: a host is there twice")
    for part, named in (
        (
            "tests",
            {name for test in record.tests for name in (*test.hosts, *test.lost, *(way.source for way in test.ways))},
        ),
        ("findings", {host for one in found for host in one.hosts}),
    ):
        if not named <= known:
            raise ParseError(f"{part}: {min(named - known)} is not one of the nodes")
    return record


FILE = RecordFile("localise", NAME, LIMIT, _build)
folder, from_dict, parse, read = FILE.folder, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record, made: Path | None = None) -> Path:
    """Write the record in its own directory, as RecordFile.write does. made: of an earlier round of the same search."""
    return FILE.write(results, to_dict(record), record.begun, ": search among fewer nodes at once", made)
