# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render a search for slow nodes for a terminal: a line a round while it runs, and its findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable, worst_first

from .. import nodeset, terminal
from . import localise_judge
from .cluster_table import short, wrapped
from .localise_record import CLUSTER, GPUS, LEAF, LEAVES, PAIR, RAILS, MeasuredTest, Node, Record
from .pairwise_search import FAIL, PASS, SILENT

# Tests of a round that are reported one by one, and characters of host names and of reasons for no figure.
EACH, _NAMES, _WHY = 6, 60, 160
# Checks whose hosts have a line instead of a row, or beside it.
_LISTED = (localise_judge.MEMBER, localise_judge.NODE)
# Characters of host names in a cell and in a sentence.
CELL, SENTENCE = 22, 180
_WORDS = {
    PAIR: "pairs",
    RAILS: "rails",
    GPUS: "GPUs in pairs",
    LEAF: "leaves",
    LEAVES: "leaves in pairs",
    CLUSTER: "cluster",
}


def began(nodes: Sequence[Node], takes_part: Sequence[str]) -> list[str]:
    """Return lines on the nodes that are searched, and on those left out and why."""
    lines = [f"LOCALISE: {len(takes_part)} of {len(nodes)} nodes take part ({nodeset.brief(takes_part, SENTENCE)})"]
    if takes_part and not any(node.leaf for node in nodes if node.host in set(takes_part)):
        lines.append("  busbar_leaf is not set: all nodes are taken for one leaf")
    return [printable(line) for line in lines]


def round_lines(tests: Sequence[MeasuredTest]) -> list[str]:
    """Return ``round 2, pairs: 3 of 4 pass``, and each test that did not. tests: of one round, of one kind or more."""
    found = []
    for kind, word in _WORDS.items():
        mine = [test for test in tests if test.kind == kind]
        if not mine:
            continue
        counts = {each: sum(test.outcome == each for test in mine) for each in (PASS, FAIL, SILENT)}
        said = "round %d, %s: %d of %d pass" % (mine[0].number, word, counts[PASS], len(mine))
        bad = [test for test in mine if test.outcome != PASS]
        found.append(said + (":" if bad else ""))
        found += [f"  {_test_text(test)}" for test in bad[:EACH]]
        if len(bad) > EACH:
            found.append(f"  and {len(bad) - EACH} more")
        lost = {host: why for test in mine for host, why in test.lost.items()}
        found += [f"  {host} is lost: {short(why, _WHY)}" for host, why in lost.items()]
    return [printable(line) for line in found]


def _test_text(test: MeasuredTest) -> str:
    hosts, said = nodeset.brief(test.hosts, _NAMES), short(test.said, _WHY)
    slow = [
        f"rail {way.rail} from {way.source}{' (both ways full)' if way.both else ''} {way.figure:.4g}"
        for way in test.ways
        if _below(way.figure, test)
    ]
    slow += [f"gpus {one.gpu}+{one.other} {one.figure:.4g}" for one in test.pairs if _below(one.figure, test)]
    if test.kind not in (RAILS, GPUS):
        if test.figure is None or test.outcome == SILENT:
            return f"{hosts}: no result: {said or 'no output'}"
        slow = [f"{test.figure:.4g}"]
    more = f" and {len(slow) - EACH} more" if len(slow) > EACH else ""
    figures = f"{', '.join(slow[:EACH])}{more} of {test.bar or 0:.4g} GB/s" if slow else ""
    return f"{hosts}: {'; '.join(filter(None, (figures, said)))}"


def _below(figure: float | None, test: MeasuredTest) -> bool:
    return figure is not None and test.bar is not None and figure < test.bar


def render(record: Record, width: int = 120) -> str:
    """Return the findings, worst first, with evidence; hosts left out; the measured hosts, and numbers of tests."""
    width = max(width, 40)
    rows = _rows(record)
    lines: list[str] = []
    if rows:
        heads = ("HOST", "WHAT", "STATE", "EVIDENCE")
        table = [(nodeset.brief(hosts, CELL), _what(one), one.state, one.have or "-") for hosts, one in rows]
        lines += [*terminal.aligned([heads, *table], width), ""]
    return "\n".join([*lines, *wrapped(sentences(record), width)])


def _what(finding: Finding) -> str:
    """Return ``rail 3`` for ``localise.rail rail 3``; for a finding on a host the name of its check."""
    return finding.check.partition(".")[2] if finding.subject == "host" else finding.subject


def _rows(record: Record) -> list[tuple[tuple[str, ...], Finding]]:
    """Return hosts and root finding of each that is not ok; hosts left out have a line elsewhere."""
    groups: dict[tuple[str, ...], tuple[list[str], Finding]] = {}
    for one in record.findings:
        found = one.finding
        if not found.ok and found.because is None and found.check != localise_judge.MEMBER.id:
            groups.setdefault(_key(found), ([], found))[0].extend(one.hosts)
    worst = worst_first(found for _hosts, found in groups.values())
    return [(tuple(groups[_key(found)][0]), found) for found in worst]


def _key(found: Finding) -> tuple[str, ...]:
    return (found.id, found.state, found.have or "")


def sentences(record: Record) -> Iterator[str]:
    of_check = {check.id: [one for one in record.findings if one.finding.check == check.id] for check in _LISTED}
    absent = [one for one in of_check[localise_judge.MEMBER.id] if not one.finding.ok]
    alike = nodeset.grouped((one.finding.have or "", host) for one in absent for host in one.hosts)
    for have, hosts in alike.items():
        yield f"{nodeset.brief(hosts, SENTENCE)}: {have}"
    if good := [host for one in of_check[localise_judge.NODE.id] if one.finding.ok for host in one.hosts]:
        yield f"good: {nodeset.brief(good, SENTENCE)}"
    counts = {word: sum(test.kind == kind for test in record.tests) for kind, word in _WORDS.items()}
    tests = ", ".join(f"{word} {count}" for word, count in counts.items() if count)
    yield "%s%s: %s over %s by %s, %s, %s%s, %.0f s" % (
        "simulated: " if record.simulated else "",
        "LOCALISED" if record.complete else "NOT COMPLETE",
        _verdict(record),
        terminal.counted(len(record.nodes), "node"),
        record.launcher,
        terminal.counted(record.rounds, "round"),
        terminal.counted(len(record.tests), "test"),
        f" ({tests})" if tests else "",
        record.finished - record.begun,
    )


def _verdict(record: Record) -> str:
    slow = [found for _hosts, found in _rows(record) if found.state == "drift"]
    so_far = "" if record.complete else " so far"
    if slow:
        return "%s slow%s" % (terminal.counted(len(slow), "thing"), so_far)
    if not record.tests:
        return "nothing was measured"
    return ("not everything was proven" if _rows(record) else "no node is slow") + so_far
