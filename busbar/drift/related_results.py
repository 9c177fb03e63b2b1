# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report results on the control node that are not of the run: the last sweep, search and benchmark, and repairs.

Another machine may have written them, and they hold output of nodes: the reader types it, and no text of it reaches a
report but through ``RelatedResults.text``.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, STATES, Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file, nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import (
    cluster_record,
    cluster_table,
    localise_record,
    localise_table,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.certify import record as certify_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.certify.sheet import ANSWERS
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric
from ansible_collections.busbar.fabric.plugins.plugin_utils.manifest import MAX_AGE_DAYS
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import counted

DAY = 86400.0
# Characters of a text, and of names in a line; sentences and lines of a table.
TEXT, NAMES, SENTENCES, LINES = 600, 200, 12, 60
# Columns of a table: a secret in a text that is wrapped would not be recognised.
COLUMNS = 1 << 20
MEASURED, UNREADABLE = "measured", "unreadable"
# Days before the run's end whose actions are counted; nodes still out of service are listed regardless of age.
WINDOW = 30
# Outcome of a finding, by the last of its entries that has one.
_RESULTS = {
    ("verified", "done"): "mended",
    ("verified", "failed"): "not mended",
    ("dropped", "done"): "stale, dropped",
    **dict.fromkeys([("refused", "held"), ("refused", "failed")], "refused"),
    **dict.fromkeys([("drained", "held"), ("drained", "failed")], "held back"),
}


@dataclass(frozen=True)
class _Content:
    """finished: seconds since 1970, None for a log.   sentences: the verdict first.   table: lines of fixed width."""

    finished: float | None
    sentences: Sequence[str]
    table: Sequence[str] = ()
    simulated: bool = False


@dataclass(frozen=True)
class RelatedResults:
    """results: nccl_benchmark_results_path.   ended: when the run ended, ``2026-11-21T02:00:07Z``.

    hidden: secrets of the inventory, as redaction.secret_texts gives them.   max_age_days: of a result that counts.
    """

    results: Path
    ended: str
    hidden: tuple[str, ...] = ()
    max_age_days: float = MAX_AGE_DAYS

    @property
    def now(self) -> float:
        """Return the end of the run in seconds since 1970."""
        return datetime.datetime.fromisoformat(self.ended).timestamp()

    def text(self, text: str) -> str:
        """Return the text without secrets and terminal control characters, cut to TEXT characters."""
        clean = printable(redaction.scrub(text, self.hidden))
        return clean if len(clean) <= TEXT else clean[: TEXT - 3] + "..."

    def sections(self) -> list[Plain]:
        """Return a section for each result that exists. Keys: docs/report.md."""
        return [*filter(None, (self._section(*kind) for kind in _KINDS))]

    def _section(
        self, name: str, title: str, path: Callable[[Path], Path], read: Callable[[Path, float], _Content]
    ) -> Plain | None:
        file = path(self.results)
        section: Plain = {"name": name, "title": title, "path": self.text(str(file)), "why": "", "state": MEASURED}
        try:
            if name == "actions" and not file.exists():
                return None
            content = read(file, self.now)
        except FileNotFoundError:
            return None
        except (OSError, ParseError) as error:
            return {**section, "state": UNREADABLE, "why": self.text(error_text(error))}
        return {
            **section,
            "simulated": content.simulated,
            **(self._aged(content.finished) if content.finished is not None else {"age": "", "old": False}),
            "sentences": [self.text(text) for text in content.sentences[:SENTENCES]],
            "table": [self.text(line) for line in content.table[:LINES]],
            "left_out": len(content.table[LINES:]),
        }

    def _aged(self, finished: float) -> Plain:
        days = (self.now - finished) / DAY
        old = days > self.max_age_days
        age = counted(int(days), "day") + " old" if days >= 0 else "measured after this run"
        return {"age": age + (": too old to show the current state of the cluster" if old else ""), "old": old}


def _cluster(path: Path, _now: float) -> _Content:
    record = cluster_record.read(path)
    table, _, _ = cluster_table.render(record, COLUMNS).rpartition("\n\n")
    *more, verdict = cluster_table.sentences(record)
    return _Content(record.finished, [verdict, *more], table.splitlines(), record.simulated)


def _localised(path: Path, _now: float) -> _Content:
    record = localise_record.read(path)
    *more, verdict = localise_table.sentences(record)
    table = _table((one.hosts, one.finding) for one in record.findings)
    return _Content(record.finished, [verdict, *more], table, record.simulated)


def _fabric(path: Path, _now: float) -> _Content:
    record = fabric_record.read(path)
    fabric, table = Fabric(Evidence(sweeps=record.sweeps, hosts=record.hosts)), _table(record.findings)
    switches = sum(len(plane.switches) for plane in fabric.planes)
    hcas = sum(len(plane.nodes) for plane in fabric.planes) - switches
    found = counted(len(table), "finding") if fabric.cables else "no link was read"
    sentences = [f"{counted(len(fabric.planes), 'plane')}, {switches} switches, {hcas} HCAs; {found}"]
    if not record.complete:
        sentences.append("the sweep is incomplete: what is not listed may be missing, or was not seen")
    if not record.before:
        sentences.append("there is no earlier sweep: error rates and missing devices are not known")
    return _Content(record.finished, sentences, table)


def _table(found: Iterable[tuple[Sequence[str], Finding]]) -> list[str]:
    """Return root findings that are not ok, worst first; nodes with equal findings are one line."""
    groups: dict[tuple[int, int, str, str], list[str]] = {}
    for of_finding, finding in found:
        if not finding.ok and finding.because is None:
            order = STATES.index(finding.state), SEVERITIES.index(finding.severity)
            host = of_finding[0] if len(of_finding) == 1 else ""
            have, fix = (nodeset.nameless(text, host) or "-" for text in (finding.have, finding.fix))
            head = f"{finding.severity}  {finding.state}  {finding.check}  {finding.subject}"
            groups.setdefault((*order, head, f"{have}; do: {fix}"), []).extend(of_finding)
    return [f"{head}  on {nodeset.brief(hosts, NAMES)}: {text}" for (*_, head, text), hosts in sorted(groups.items())]


def _actions(path: Path, now: float) -> _Content:
    log = action_log.read(path.parent)
    recent = [entry for entry in log.entries if entry.at >= now - WINDOW * DAY]
    results: dict[tuple[str, str, str], str] = {}
    for entry in recent:
        if entry.finding:
            key = (entry.run, entry.host, entry.finding)
            results[key] = _RESULTS.get((entry.action, entry.outcome), results.get(key, "not ended"))
    counts = ", ".join(f"{number:,} {word}" for word, number in Counter(results.values()).most_common())
    done = f"{counted(len(results), 'finding')}: {counts}" if results else "no finding was acted on"
    sentences = [f"in the last {WINDOW} days: {done}"]
    pairs = [(one.before, one.after) for one in recent if one.before is not None and one.after is not None]
    if pairs:
        low, high = (f"{min(figures):.4g} to {max(figures):.4g} GB/s" for figures in zip(*pairs, strict=True))
        better = sum(after > before for before, after in pairs)
        sentences.append(f"bandwidth is higher after {better} of {counted(len(pairs), 'repair')}: {low}, then {high}")
    if log.torn:
        sentences.append(f"lines of the action log that a crash has cut off: {log.torn}")
    return _Content(None, sentences, _out_of_service(log.entries))


def _out_of_service(entries: Sequence[Entry]) -> list[str]:
    """Return nodes that a killed run left drained, and those that were left drained for a person to look at."""
    reasons = {
        host: ("not ended: run busbar remediate again", one) for host, one in action_log.open_drains(entries).items()
    }
    held = action_log.held(entries)
    for entry in entries:
        if entry.host in held and (entry.action, entry.outcome) == ("left_drained", "begun"):
            reasons[entry.host] = ("left drained", entry)
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for host, (state, entry) in reasons.items():
        why = nodeset.nameless(entry.why or entry.check, host) or "no reason is logged"
        groups.setdefault((state, why), {})[host] = entry.at
    return [
        f"out of service since {findings_file.utc(min(hosts.values()))}, {state}: {nodeset.brief(hosts, NAMES)}: {why}"
        for (state, why), hosts in groups.items()
    ]


def _acceptance(path: Path, _now: float) -> _Content:
    found = certify_record.read(path)
    counts = [f"{found.counts[answer]} {answer}" for answer in ANSWERS if found.counts.get(answer)]
    table = [f"open  {subject}: {todo}" for subject, todo in found.open]
    return _Content(found.finished, [", ".join(counts) or "no answer"], table, found.simulated)


_KINDS: tuple[tuple[str, str, Callable[[Path], Path], Callable[[Path, float], _Content]], ...] = (
    ("fabric", "InfiniBand fabric: the last sweep", fabric_record.FILE.latest, _fabric),
    ("localised", "Slow nodes: the last search", localise_record.FILE.latest, _localised),
    ("actions", "Repairs", action_log.file, _actions),
    ("cluster", "Between nodes: the last benchmark", cluster_record.FILE.latest, _cluster),
    ("acceptance", "Acceptance: the buyer's test", certify_record.file, _acceptance),
)
