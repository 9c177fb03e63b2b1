# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a preflight of a job's nodes: nodes to exclude, nodes that could not be judged, and why.

Pure. A node is excluded for its own results: no response, a critical gate, slow alone or with two good nodes, or no
figure where others have one. A node that was never seen is unknown.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_judge import Verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_tests import Bar, Test
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import ENOUGH, FAIL, UNKNOWN

# Share of the median that a pair or a node has to reach without a bar; and figures needed for a median.
SHARE, FIGURES = 0.90, 3
# Figures in a line.
_SHOWN = 3
_SOURCE = "steps in the job's allocation"
_LEAVE_OUT = "leave the node out (sbatch --exclude, or srun --exclude in this job)"

ANSWERS = Check(
    "preflight.answers",
    severity="critical",
    why="a node that starts no step starts no rank of the job either",
    fix=_LEAVE_OUT + "; report it to the administrators: sinfo -R and slurmd's log of that node have the reason",
)
"Does every node of the job start a step and respond"

GATE = Check(
    "preflight.gate",
    severity="critical",
    why="a finding that the gate calls critical stops or slows every job on this node",
    fix=_LEAVE_OUT + "; report it to the administrators: busbar gate on that node shows the fault",
)
"Has the gate, on every node of the job that has it, found nothing critical"

ALONE = Check(
    "preflight.alone",
    severity="critical",
    why="a collective that fails within one node fails in every job of that node",
    fix=_LEAVE_OUT + "; report it to the administrators: GPUs, Xid errors and NVLinks of that node",
)
"Does a short collective within each node of the job succeed"

TOGETHER = Check(
    "preflight.together",
    severity="critical",
    why="fast pairs do not prove a collective over all nodes",
    fix="run the program by hand over these nodes with NCCL_DEBUG=INFO",
)
"Does a short collective over all good nodes of the job succeed, if pairs are only compared with each other"

COMPLETE = Check(
    "preflight.complete",
    severity="minor",
    why="what was not measured is not known to be good",
    fix="give it more time (--limit); if it was stopped, run it again",
)
"Did the preflight complete within its limit"


@dataclass(frozen=True)
class RollCallResult:
    """A node in the roll call. host: its own host name.   gate: of roll_call.py; None where it has none.

    said: the gate's text.
    """

    node: str
    host: str
    gate: int | None = None
    said: str = ""


@dataclass
class Observations:
    """Facts besides the search. own: node -> its finding in the roll call or alone, which is not ok.

    together: of TOGETHER; None where it was not measured.   cut: why the search was not finished, "" where it was.
    """

    own: dict[str, Finding] = field(default_factory=dict)
    together: Finding | None = None
    cut: str = ""

    def add(self, check: Check, state: str, nodes: Mapping[str, str]) -> None:
        """Add findings of one check. nodes: node -> why."""
        for node, why in nodes.items():
            self.own[node] = check.judge("host", state, _WANTED[check.id], why, _SOURCE)


@dataclass(frozen=True)
class Outcome:
    """exclude, unknown: node -> why.   verdicts: everything, ok or not."""

    exclude: Mapping[str, str]
    unknown: Mapping[str, str]
    verdicts: Sequence[Verdict]

    @property
    def code(self) -> int:
        bad = [one.finding for one in self.verdicts if not one.finding.ok]
        if self.exclude or any(one.state == "drift" for one in bad):
            return exit_code.FINDINGS
        return exit_code.UNKNOWN if bad or self.unknown else exit_code.GOOD

    def shared(self) -> list[Finding]:
        """Return findings that are not ok and belong to no single node."""
        return [one.finding for one in self.verdicts if not one.finding.ok and one.finding.check not in _OF_NODES]


def judge(search: Localisation, seen: Observations) -> Outcome:
    """Return the outcome of a search, also of an unfinished one."""
    found = [Verdict((host,), finding) for host, finding in seen.own.items()]
    nodes = tuple(search.nodes)
    found += [one for one in localise_judge.verdicts(search) if not seen.own.keys() >= set(one.hosts)]
    if len(nodes) == 1:
        # One node has no partner to be fast with.
        found = [one for one in found if one.hosts != nodes or one.finding.check in (localise_judge.ALONE.id, *_OWN)]
    if seen.together is not None:
        found.append(Verdict(nodes, seen.together))
    state, have = ("unknown", seen.cut) if seen.cut else ("ok", "everything was checked")
    found.append(Verdict(nodes, COMPLETE.judge("job", state, "everything was checked", have, _SOURCE)))
    exclude: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for verdict in found:
        finding = verdict.finding
        if finding.ok or finding.check not in _OF_NODES:
            continue
        for host in verdict.hosts:
            where = exclude if finding.state == "drift" or _unheard(search, host) else unknown
            where.setdefault(host, _why(host, verdict))
    return Outcome(exclude, {host: why for host, why in unknown.items() if host not in exclude}, found)


_WANTED = {ANSWERS.id: "a response", GATE.id: "nothing critical", ALONE.id: "a figure within the node"}
_OWN = tuple(_WANTED)
_OF_NODES = (*_OWN, localise_judge.ALONE.id, localise_judge.NODE.id, localise_judge.MEMBER.id)


def _why(host: str, verdict: Verdict) -> str:
    """Return one line: ``localise.node: slow with node01 (38 GB/s), node02 (37 GB/s) of 85.1 GB/s``."""
    finding = verdict.finding
    if finding.because is not None and finding.state != "drift":
        return f"{finding.check}: see {finding.because.partition('[')[0]}"
    slow = [one for one in verdict.evidence if one.outcome == FAIL]
    if finding.state != "drift" or not slow:
        return f"{finding.check}: {finding.have}"
    shown = []
    for one in slow[-_SHOWN:]:
        [other] = [each for each in one.test.hosts if each != host] or [host]
        shown.append("%s (%.4g GB/s)" % (other, one.figure or 0))
    bar = slow[-1].bar
    return "%s: slow with %s of %.4g GB/s: %s" % (finding.check, ", ".join(shown), bar.value or 0, bar.source)


def _unheard(search: Localisation, host: str) -> bool:
    """Return whether tests with two good nodes gave no result, or the node was lost in the middle."""
    item = search.pairs.items.get(host)
    return host in search.lost or (item is not None and item.state == UNKNOWN and len(set(item.unheard)) >= ENOUGH)


# -- relative bars -----------------------------------------------------------------------------------------------------


class Relative:
    """Bars of --relative: a share of the median of the first round. They do not detect a fault that all nodes share.

    Until a kind of tests has its median, its bar is a placeholder: ``learn`` comes before the results are judged.
    """

    def __init__(self) -> None:
        self._of_kind: dict[str, Bar] = {}

    def learn(self, kind: str, figures: Sequence[float | None]) -> None:
        """Learn from the first figures of a kind: later rounds test suspects only."""
        there = [figure for figure in figures if figure is not None]
        if kind not in self._of_kind:
            few = "too few figures for a median: %d, %d are needed" % (len(there), FIGURES)
            bar = Bar(round(SHARE * median(there), 4), f"{SHARE:g} of the median") if len(there) >= FIGURES else None
            self._of_kind[kind] = bar or Bar(None, few)

    def of_kind(self, kind: str) -> Bar:
        return self._of_kind.get(kind, Bar(0.0, "no node has been measured yet"))

    def __call__(self, test: Test) -> Bar:
        return self.of_kind(test.kind)
