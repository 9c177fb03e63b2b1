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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema, results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import (
    CLUSTER,
    GPUS,
    LEAF,
    LEAVES,
    PAIR,
    RAILS,
    Node,
    Way,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.pairwise_search import FAIL, PASS, SILENT
from ansible_collections.busbar.fabric.plugins.plugin_utils.record_file import RecordFile, shortened

FORMAT = 1
NAME = "localise.json"
# Bytes of the file: 1,024 nodes of eight GPUs are 2 MB.
LIMIT = 64 << 20
HOSTS, TESTS = 20_000, 200_000

_line = result_schema.line
_name = codec.text(codec.LINE, empty=False, line=True)
_rate = codec.maybe(codec.number(0, 1e6))
_rail = codec.whole(0, 99)
_gpu = codec.whole(0, 999)
_hosts = codec.many(_name, HOSTS)

_node = codec.record(
    host=_name,
    leaf=_line,
    rails=codec.many(_rail, 100),
    alone=_rate,
    alone_bar=_rate,
    gpus=codec.many(_gpu, 1000),
    unfit=codec.maybe(codec.record(reason=_line, fix=_line)),
)
_test = codec.record(
    number=codec.whole(1, TESTS),
    kind=codec.one_of(PAIR, RAILS, GPUS, LEAF, LEAVES, CLUSTER),
    hosts=_hosts,
    rails=codec.many(_rail, 100),
    about=codec.many(_line, HOSTS),
    figure=_rate,
    bar=_rate,
    bar_source=_line,
    outcome=codec.one_of(PASS, FAIL, SILENT),
    said=_line,
    ways=codec.many(codec.record(rail=_rail, source=_name, figure=_rate, both=codec.flag), 1000),
    pairs=codec.many(codec.record(gpu=_gpu, other=_gpu, figure=_rate), 1000),
    lost=codec.table(_line, _name, HOSTS),
)
_record = codec.record(
    format=codec.whole(FORMAT, FORMAT),
    simulated=codec.flag,
    begun=result_schema.seconds,
    finished=result_schema.seconds,
    launcher=_line,
    nodes=codec.many(_node, HOSTS),
    tests=codec.many(_test, TESTS),
    findings=codec.many(codec.record(hosts=_hosts, finding=result_schema.a_finding), TESTS),
    complete=codec.flag,
)


@dataclass(frozen=True, kw_only=True)
class MeasuredTest:
    """One test of the search with its result.

    number: of its round, from 1.   kind, hosts, rails, about: as in ``localise.Test``.   figure: busbw; None without
    one, of RAILS, whose figures are ``ways``, and of GPUS, whose are ``pairs``.   bar: in GB/s, of RAILS
    each way; None where unknown.   outcome: PASS, FAIL or SILENT; of RAILS and GPUS the worst.   said: why there
    is no figure.   pairs: two GPUs -> busbw.   lost: host -> why it no longer takes part.
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
    pairs: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
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
    launcher: str
    nodes: tuple[Node, ...]
    tests: tuple[MeasuredTest, ...] = ()
    findings: tuple[HostFinding, ...] = ()
    complete: bool = False

    @property
    def rounds(self) -> int:
        return max((test.number for test in self.tests), default=0)


def to_dict(record: Record) -> dict[str, Any]:
    """Return plain data. Texts are cut to what ``from_dict`` accepts, without terminal control characters."""
    return {
        "format": FORMAT,
        **{name: getattr(record, name) for name in ("simulated", "begun", "finished", "complete")},
        "launcher": shortened(record.launcher),
        "nodes": [_of_node(node) for node in record.nodes],
        "tests": [_of_test(test) for test in record.tests],
        "findings": [{"hosts": list(one.hosts), "finding": one.finding.to_dict()} for one in record.findings],
    }


def _of_node(node: Node) -> dict[str, Any]:
    unfit = None if node.unfit is None else {"reason": shortened(node.unfit[0]), "fix": shortened(node.unfit[1])}
    figures = {"alone": node.alone, "alone_bar": node.alone_bar}
    return {
        "host": node.host,
        "leaf": node.leaf,
        "rails": list(node.rails),
        "gpus": list(node.gpus),
        **figures,
        "unfit": unfit,
    }


def _of_test(test: MeasuredTest) -> dict[str, Any]:
    plain = {name: getattr(test, name) for name in ("number", "kind", "figure", "bar", "outcome")}
    return {
        **plain,
        **{name: list(getattr(test, name)) for name in ("hosts", "rails", "about")},
        "bar_source": shortened(test.bar_source),
        "said": shortened(test.said),
        "ways": [asdict(way) for way in test.ways],
        "pairs": [{"gpu": gpu, "other": other, "figure": figure} for (gpu, other), figure in test.pairs.items()],
        "lost": {host: shortened(why) for host, why in test.lost.items()},
    }


def _build(data: Any) -> Record:
    _record(data)
    record = Record(
        **{name: data[name] for name in ("simulated", "begun", "finished", "launcher", "complete")},
        nodes=tuple(_a_node(one) for one in data["nodes"]),
        tests=tuple(_a_test(one) for one in data["tests"]),
        findings=tuple(found_of(one) for one in data["findings"]),
    )
    known = {node.host for node in record.nodes}
    if len(known) < len(record.nodes):
        raise ParseError("nodes: a host is there twice")
    for test in record.tests:
        named = {*test.hosts, *test.lost, *(way.source for way in test.ways)}
        if not named <= known:
            raise ParseError("tests: %s is not one of the nodes" % min(named - known))
    for one in record.findings:
        if not known.issuperset(one.hosts):
            raise ParseError("findings: %s is not one of the nodes" % min(set(one.hosts) - known))
    return record


def _a_node(data: Mapping[str, Any]) -> Node:
    unfit = data["unfit"] and (data["unfit"]["reason"], data["unfit"]["fix"])
    figures = (data["alone"], data["alone_bar"])
    return Node(data["host"], data["leaf"], tuple(data["rails"]), *figures, tuple(data["gpus"]), unfit)


def _a_test(data: Mapping[str, Any]) -> MeasuredTest:
    lists = {name: tuple(data[name]) for name in ("hosts", "rails", "about")}
    ways = tuple(Way(**way) for way in data["ways"])
    pairs = {(one["gpu"], one["other"]): one["figure"] for one in data["pairs"]}
    return MeasuredTest(**{**data, **lists, "ways": ways, "pairs": pairs})


FILE = RecordFile("localise", NAME, LIMIT, _build)
folder, from_dict, parse, read = FILE.folder, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record, made: Path | None = None) -> Path:
    """Write the record in its own directory, which is returned; ``latest`` beside it leads there.

    results: nccl_benchmark_results_path.   made: the directory of an earlier round of the same search, whose record is
    replaced atomically. Raises OSError; ParseError where the record would not be read again.
    """
    data = to_dict(record)
    from_dict(data)
    text = FILE.text(data, ": search among fewer nodes at once")
    if made is None:
        with results_folder.new(folder(results), record.begun) as made:
            results_folder.put(made / NAME, text)
        return made
    results_folder.replace_file(made / NAME, [text, "\n"])
    return made
