# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the last search for slow nodes: causes with their evidence, and maps of the measurements.

Read from the control node, typed, at most a page: of many hosts only failed ones are drawn, with their partners.
Bandwidths are GB/s.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, STATES
from ansible_collections.busbar.fabric.plugins.plugin_utils import localise_judge, localise_record, nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import MORE_RAIL_TESTS
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import HostFinding, MeasuredTest, Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_tests import (
    CLUSTER,
    GPUS,
    LEAF,
    LEAVES,
    PAIR,
    RAILS,
    Bar,
    judge_figure,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.pairwise_search import PASS
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .related_results import RelatedResults, limited, moment

# Rows and columns of a map of hosts, of leaves, and of one node's rails or GPUs; number of nodes with a map.
ITEMS, LEAVES_DRAWN, OF_NODE, NODES = 32, 16, 16, 6
# Lines of causes; lines of one check with different texts, more where they accuse.
CAUSES, ACCUSING, OTHERS = 30, 12, 3
# Characters of a text, of names in a line, of a cell's text, and of a name.
SAID, NAMES, CELL, NAME = 600, 300, 100, 80
# The last of these decides whether a node is in service.
_TURNS = ("drained", "left_drained", "resumed")
_OF_NODES = tuple(
    check.id for check in (localise_judge.NODE, localise_judge.RAIL, localise_judge.RANK, localise_judge.ALONE)
)


@dataclass
class Grid:
    """A map of items by items. cells: row and column -> measurements there, in the order of the rounds.

    kind: hosts, leaves, rails or gpus.   breaks: rows before which another leaf, or test, begins.
    left_out: items that are not drawn.
    """

    kind: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: dict[tuple[int, int], list[tuple[str, float | None, float | None, str]]] = field(default_factory=dict)
    breaks: Sequence[int] = ()
    left_out: int = 0

    def put(self, row: int, column: int, state: str, figure: float | None, bar: float | None, said: str) -> None:
        self.cells.setdefault((row, column), []).append((state, figure, bar, said))

    def plain(self, beside: RelatedResults) -> Plain:
        """Return the map as data: of several tests in one cell the last, whose text names the others."""
        cells = []
        for (row, column), tests in sorted(self.cells.items()):
            state, figure, bar, _said = tests[-1]
            said = "; ".join(said for _state, _figure, _bar, said in tests[-3:])
            said += f"; {len(tests) - 3} earlier" if len(tests) > 3 else ""
            found = {"row": row, "column": column, "outcome": state, "figure": figure, "bar": bar}
            cells.append({**found, "tests": len(tests), "said": beside.text(said, CELL)})
        return {
            "kind": self.kind,
            "title": beside.text(self.title, NAMES),
            "rows": [beside.text(name, NAME) for name in self.rows],
            "columns": [beside.text(name, NAME) for name in self.columns],
            "cells": cells,
            "breaks": [*self.breaks],
            "left_out": self.left_out,
        }


def latest(beside: RelatedResults) -> Plain:
    """Return the section of the report. Keys: docs/report.md."""
    path = localise_record.folder(beside.results) / "latest" / localise_record.NAME
    way = "playbooks/localise.yml, which finds slow nodes, has not run here"
    found, record = beside.read(path, lambda: localise_record.read(path), way)
    if record is None:
        return found
    causes = _causes(record, _given_back(record.finished, beside), beside)
    accused = _accused(record)
    measured = {host for test in record.tests if test.kind == PAIR for host in test.hosts}
    passed = {host for test in record.tests if (test.kind, test.outcome) == (PAIR, PASS) for host in test.hosts}
    rails, rails_left_out = _of_nodes(record, RAILS, accused)
    gpus, gpus_left_out = _of_nodes(record, GPUS, accused)
    grids = [*_hosts(record, accused), *_leaves(record)]
    for host in dict.fromkeys([*rails, *gpus]):
        grids += [_rails(host, rails[host])] if host in rails else []
        grids += [_gpus(host, gpus[host])] if host in gpus else []
    return {
        **found,
        **beside.aged(record.finished),
        "simulated": record.simulated,
        "begun": moment(record.begun),
        "complete": record.complete,
        "launcher": beside.text(record.launcher, NAME),
        "rounds": record.rounds,
        "tests": len(record.tests),
        "nodes": {
            "asked": len(record.nodes),
            "measured": len(measured),
            "passed": len(passed),
            "accused": len(accused),
        },
        "said": [beside.text(text) for text in _sentences(record, measured, passed, accused)],
        **limited("causes", causes, CAUSES),
        "maps": [grid.plain(beside) for grid in grids],
        # Nodes with measured rails or GPUs that have no map.
        "maps_left_out": rails_left_out + gpus_left_out,
    }


def _accused(record: Record) -> dict[str, None]:
    return dict.fromkeys(
        host
        for one in record.findings
        if one.finding.state == "drift" and one.finding.check in _OF_NODES
        for host in one.hosts
    )


def _sentences(record: Record, measured: set[str], passed: set[str], accused: Iterable[str]) -> Iterator[str]:
    simulated = "simulated, no figure is a measurement of a cluster: " if record.simulated else ""
    counts = (len(record.nodes), len(measured), len(passed), len([*accused]))
    words = ("nodes asked", "measured with others", "of them passed with one", "accused")
    yield simulated + ", ".join(f"{number:,} {word}" for number, word in zip(counts, words, strict=True))
    if not record.complete:
        yield (
            "the search has not come to its end: this is what it had measured after %d round%s; search again"
            % (record.rounds, "s" * (record.rounds != 1))
        )
    alone = [test for test in record.tests if test.kind == CLUSTER]
    if alone:
        test = alone[-1]
        yield "all good nodes together: %s over %d nodes" % (
            _of_test(test),
            len(test.hosts),
        )


# -- causes ------------------------------------------------------------------------------------------------------------


def _given_back(since: float, beside: RelatedResults) -> frozenset[str]:
    """Return nodes that remediation has given back after the search; none where its log cannot be read."""
    _found, log = beside.actions
    entries = log.entries if log is not None else ()
    last = {one.host: (one.action, one.outcome) for one in entries if one.at > since and one.action in _TURNS}
    return frozenset(host for host, what in last.items() if what == ("resumed", "done"))


def _causes(record: Record, given_back: Collection[str], beside: RelatedResults) -> list[Plain]:
    """Return root findings that are not ok, worst first; nodes with equal findings are one line."""
    follows = Counter(
        (host, one.finding.because) for one in record.findings if not one.finding.ok for host in one.hosts
    )
    of_check: dict[tuple[str, str, str], dict[tuple[str | None, ...], list[HostFinding]]] = {}
    for one in record.findings:
        finding = one.finding
        if finding.ok or finding.because is not None:
            continue
        host = one.hosts[0] if len(one.hosts) == 1 else ""
        alike = tuple(nodeset.nameless(text, host) for text in (finding.want, finding.have, finding.fix))
        texts = of_check.setdefault((finding.check, finding.subject, finding.state), {})
        texts.setdefault(alike, []).append(one)
    lines = []
    for (_check, _subject, state), texts in of_check.items():
        groups = [*texts.values()]
        if len(groups) > (ACCUSING if state == "drift" else OTHERS):
            lines.append(_cause([one for group in groups for one in group], len(groups), follows, given_back, beside))
        else:
            lines += [_cause(group, 1, follows, given_back, beside) for group in groups]
    order = {name: place for place, name in enumerate(SEVERITIES)}
    lines.sort(key=lambda line: (STATES.index(line["state"]), order[line["severity"]], -line["count"]))
    return lines


def _cause(
    group: Sequence[HostFinding],
    texts: int,
    follows: Counter[tuple[str, str | None]],
    given_back: Collection[str],
    beside: RelatedResults,
) -> Plain:
    finding = group[0].finding
    hosts = {host for one in group for host in one.hosts}
    have = finding.have or "-"
    fix = finding.fix
    if len(hosts) > 1 and len(group) > 1:
        have = nodeset.nameless(have, group[0].hosts[0]) or "-"
        fix = nodeset.nameless(fix, group[0].hosts[0]) or ""
    if texts > 1:
        have = f"{group[0].hosts[0]}: {finding.have or '-'}; and {texts - 1} others, which are in the record"
    return {
        "check": finding.check,
        "subject": beside.text(finding.subject, NAMES),
        "state": finding.state,
        "severity": finding.severity,
        "nodes": beside.text(nodeset.brief(hosts, NAMES), NAMES),
        "count": len(hosts),
        "want": beside.text(finding.want or "-", SAID),
        "have": beside.text(have, SAID),
        "fix": beside.text(fix, SAID),
        "why": beside.text(finding.why, NAMES),
        "follows": sum(follows[host, finding.id] for host in hosts),
        "given_back": beside.text(nodeset.brief(hosts.intersection(given_back), NAMES), NAMES),
    }


# -- maps --------------------------------------------------------------------------------------------------------------


def _figure_text(figure: float | None, bar: float | None, state: str, said: str) -> str:
    """Format a figure: ``231 of 345.6 GB/s (fail)``; without one, the reason."""
    if figure is None:
        return said or "no figure"
    return "%.4g of %s GB/s (%s)" % (figure, "?" if bar is None else "%.4g" % bar, state)


def _of_test(test: MeasuredTest) -> str:
    return _figure_text(test.figure, test.bar, test.outcome, test.said)


def _hosts(record: Record, accused: Iterable[str]) -> Iterator[Grid]:
    tests = [test for test in record.tests if test.kind == PAIR and len(test.hosts) == 2]
    leaves = {node.host: node.leaf for node in record.nodes}
    places = [(test.hosts[0], test.hosts[1], test) for test in tests]
    order = sorted(
        {host for test in tests for host in test.hosts}, key=lambda host: (leaves[host], nodeset.natural(host))
    )
    grid = _between("hosts", "Nodes that were measured together", order, places, accused)
    if grid is not None:
        grid.breaks = [i for i in range(1, len(grid.rows)) if leaves[grid.rows[i]] != leaves[grid.rows[i - 1]]]
        yield grid


def _leaves(record: Record) -> Iterator[Grid]:
    """Yield a map: leaves on the diagonal, pairs of leaves, which test their uplinks, beside it."""
    tests = [
        (test.about[0], test.about[-1], test)
        for test in record.tests
        if (test.kind, len(test.about)) in ((LEAF, 1), (LEAVES, 2))
    ]
    order = sorted({name for one, other, _test in tests for name in (one, other)}, key=nodeset.natural)
    grid = _between(LEAVES, "Leaves by themselves, and over their uplinks", order, tests, ())
    if grid is not None and len(order) > 1:
        grid.rows = grid.columns = [name or "all nodes" for name in grid.rows]
        yield grid


def _between(
    kind: str,
    title: str,
    order: Sequence[str],
    tests: Sequence[tuple[str, str, MeasuredTest]],
    first: Iterable[str],
) -> Grid | None:
    """Return a map of items by items. Of many only those that failed or gave no result, with their partners."""
    drawn = _chosen(order, tests, first, LEAVES_DRAWN if kind == LEAVES else ITEMS)
    if not drawn:
        return None
    number = {name: place for place, name in enumerate(drawn)}
    grid = Grid(kind, title, drawn, drawn, left_out=len(order) - len(drawn))
    for one, other, test in tests:
        if one in number and other in number:
            named = f"{one} with {other}" if one != other else one
            said = f"round {test.number} {named}: {_of_test(test)}"
            for row, column in dict.fromkeys([(one, other), (other, one)]):
                grid.put(number[row], number[column], test.outcome, test.figure, test.bar, said)
    return grid


def _chosen(
    order: Sequence[str], tests: Sequence[tuple[str, str, MeasuredTest]], first: Iterable[str], room: int
) -> list[str]:
    if len(order) <= room:
        return [*order]
    met: dict[str, list[str]] = {}
    bad: dict[str, None] = {}
    for one, other, test in tests:
        met.setdefault(one, []).append(other)
        met.setdefault(other, []).append(one)
        if test.outcome != PASS:
            bad.update({one: None, other: None})
    # Items in a finding, then their partners, then other failures, each with its partners.
    named = [name for name in first if name in met]
    wanted = dict.fromkeys(named)
    for name in (*named, *bad):
        wanted.update(dict.fromkeys((name, *met[name])))
    chosen = {*[*wanted][:room]}
    return [name for name in order if name in chosen]


def _of_nodes(record: Record, kind: str, accused: Iterable[str]) -> tuple[dict[str, list[MeasuredTest]], int]:
    """Return node -> tests of one kind about it, nodes in findings first; and the number of nodes left out."""
    tests: dict[str, list[MeasuredTest]] = {host: [] for host in accused}
    for test in record.tests:
        host = (test.about or test.hosts)[0]
        if test.kind == kind and host in test.hosts:
            tests.setdefault(host, []).append(test)
    found = {host: of_host for host, of_host in tests.items() if of_host}
    return dict([*found.items()][:NODES]), max(0, len(found) - NODES)


def _rails(host: str, tests: Sequence[MeasuredTest]) -> Grid:
    rails = sorted({rail for test in tests for rail in test.rails})
    number = {rail: place for place, rail in enumerate(rails[:OF_NODE])}
    rows: list[str] = []
    breaks: list[int] = []
    left_out = len(rails) - len(number)
    grid = Grid("rails", f"Rails of {host}", rows, [f"rail {rail}" for rail in number], left_out=left_out)
    for test in tests[:MORE_RAIL_TESTS]:
        other = next((each for each in test.hosts if each != host), host)
        ways = {(way.rail, way.source == host, way.both): way.figure for way in test.ways}
        breaks.append(len(rows))
        for both in (False, True):
            for sends in (True, False):
                rows.append(f"{'to' if sends else 'from'} {other}{', both ways' if both else ''}")
                for rail in test.rails:
                    figure = ways.get((rail, sends, both))
                    if rail in number:
                        where = f"rail {rail} {rows[-1]}"
                        grid.put(len(rows) - 1, number[rail], *_of_part(test, figure, where))
    grid.breaks = breaks[1:]
    return grid


def _gpus(host: str, tests: Sequence[MeasuredTest]) -> Grid:
    gpus = sorted({gpu for test in tests for pair in test.pairs for gpu in pair})
    number = {gpu: place for place, gpu in enumerate(gpus[:OF_NODE])}
    names = [f"gpu {gpu}" for gpu in number]
    grid = Grid("gpus", f"GPUs of {host}, in pairs", names, names, left_out=len(gpus) - len(number))
    for test in tests:
        for (one, other), figure in test.pairs.items():
            if one in number and other in number:
                cell = _of_part(test, figure, f"gpu {one} with gpu {other}")
                for row, column in dict.fromkeys([(one, other), (other, one)]):
                    grid.put(number[row], number[column], *cell)
    return grid


def _of_part(test: MeasuredTest, figure: float | None, where: str) -> tuple[str, float | None, float | None, str]:
    """Return the arguments of ``Grid.put`` for one rail's direction or one pair of GPUs."""
    state = judge_figure(figure, Bar(test.bar, ""))
    said = _figure_text(figure, test.bar, state, test.said)
    return state, figure, test.bar, f"round {test.number} {where}: {said}"
