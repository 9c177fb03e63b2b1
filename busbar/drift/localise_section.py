# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the last search for slow nodes: causes with their evidence, read from the control node, at most a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, STATES
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    CLUSTER,
    PAIR,
    HostFinding,
    MeasuredTest,
    Record,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import PASS
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .related_results import RelatedResults, limited, moment

# Lines of causes; lines of one check with different texts, more where they accuse.
CAUSES, ACCUSING, OTHERS = 30, 12, 3
# Characters of names in a line.
NAMES = 300
# The last of these decides whether a node is in service.
_TURNS = ("drained", "left_drained", "resumed")
_CHECKS = (localise_judge.NODE, localise_judge.RAIL, localise_judge.RANK, localise_judge.ALONE)
_OF_NODES = tuple(check.id for check in _CHECKS)


def latest(beside: RelatedResults) -> Plain:
    """Return the section of the report. Keys: docs/report.md."""
    path = localise_record.folder(beside.results) / "latest" / localise_record.NAME
    way = "playbooks/localise.yml, which finds slow nodes, has not run here"
    found, record = beside.read(path, lambda: localise_record.read(path), way)
    if record is None:
        return found
    causes = _causes(record, _given_back(record.finished, beside))
    drifting = [one for one in record.findings if one.finding.state == "drift" and one.finding.check in _OF_NODES]
    pairs = [test for test in record.tests if test.kind == PAIR]
    counts = {
        "asked": len(record.nodes),
        "measured": len({host for test in pairs for host in test.hosts}),
        "passed": len({host for test in pairs if test.outcome == PASS for host in test.hosts}),
        "accused": len({host for one in drifting for host in one.hosts}),
    }
    section = {
        **found,
        **beside.aged(record.finished),
        "simulated": record.simulated,
        "begun": moment(record.begun),
        "complete": record.complete,
        "launcher": record.launcher,
        "rounds": record.rounds,
        "tests": len(record.tests),
        "nodes": counts,
        "said": [*_sentences(record, counts)],
        **limited("causes", causes, CAUSES),
    }
    return beside.clean(section)


def _sentences(record: Record, counts: Mapping[str, int]) -> Iterator[str]:
    simulated = "simulated, no figure is a measurement of a cluster: " if record.simulated else ""
    words = "{asked:,} nodes asked, {measured:,} measured with others, {passed:,} of them passed with one"
    yield (simulated + words + ", {accused:,} accused").format_map(counts)
    if not record.complete:
        yield (
            "the search has not come to its end: this is what it had measured after %d round%s; search again"
            % (record.rounds, "s" * (record.rounds != 1))
        )
    alone = [test for test in record.tests if test.kind == CLUSTER]
    if alone:
        yield f"all good nodes together: {_of_test(alone[-1])} over {len(alone[-1].hosts)} nodes"


# -- causes ------------------------------------------------------------------------------------------------------------


def _given_back(since: float, beside: RelatedResults) -> frozenset[str]:
    """Return nodes that remediation has given back after the search; none where its log cannot be read."""
    _found, log = beside.actions
    entries = log.entries if log is not None else ()
    last = {one.host: (one.action, one.outcome) for one in entries if one.at > since and one.action in _TURNS}
    return frozenset(host for host, what in last.items() if what == ("resumed", "done"))


def _causes(record: Record, given_back: Collection[str]) -> list[Plain]:
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
            lines.append(_cause([one for group in groups for one in group], len(groups), follows, given_back))
        else:
            lines += [_cause(group, 1, follows, given_back) for group in groups]
    order = {name: place for place, name in enumerate(SEVERITIES)}
    lines.sort(key=lambda line: (STATES.index(line["state"]), order[line["severity"]], -line["count"]))
    return lines


def _cause(
    group: Sequence[HostFinding], texts: int, follows: Counter[tuple[str, str | None]], given_back: Collection[str]
) -> Plain:
    finding = group[0].finding
    hosts = {host for one in group for host in one.hosts}
    named = group[0].hosts[0] if len(hosts) > 1 and len(group) > 1 else ""
    have, fix = (nodeset.nameless(text, named) or "-" for text in (finding.have, finding.fix))
    if texts > 1:
        have = f"{group[0].hosts[0]}: {finding.have or '-'}; and {texts - 1} others, which are in the record"
    return {
        "check": finding.check,
        "subject": finding.subject,
        "state": finding.state,
        "severity": finding.severity,
        "nodes": nodeset.brief(hosts, NAMES),
        "count": len(hosts),
        "want": finding.want or "-",
        "have": have,
        "fix": fix,
        "why": finding.why,
        "follows": sum(follows[host, finding.id] for host in hosts),
        "given_back": nodeset.brief(hosts.intersection(given_back), NAMES),
    }


def _of_test(test: MeasuredTest) -> str:
    """Format a figure: ``231 of 345.6 GB/s (fail)``; without one, the reason."""
    if test.figure is None:
        return test.said or "no figure"
    return "%.4g of %s GB/s (%s)" % (test.figure, "?" if test.bar is None else "%.4g" % test.bar, test.outcome)
