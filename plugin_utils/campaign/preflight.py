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

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from .. import exit_code
from . import localise_judge
from .localise_record import HostFinding
from .localise_search import Localisation
from .pairwise_search import ENOUGH, UNKNOWN

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

    cut: why the search was not finished, "" where it was.
    """

    own: dict[str, Finding] = field(default_factory=dict)
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
    verdicts: Sequence[HostFinding]

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
    found = [HostFinding(hosts=(host,), finding=finding) for host, finding in seen.own.items()]
    nodes = tuple(search.nodes)
    found += [one for one in localise_judge.verdicts(search) if not seen.own.keys() >= set(one.hosts)]
    if len(nodes) == 1:
        # One node has no partner to be fast with.
        found = [one for one in found if one.hosts != nodes or one.finding.check in (localise_judge.ALONE.id, *_OWN)]
    state, have = ("unknown", seen.cut) if seen.cut else ("ok", "everything was checked")
    complete = COMPLETE.judge("job", state, "everything was checked", have, _SOURCE)
    found.append(HostFinding(hosts=nodes, finding=complete))
    exclude: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for verdict in found:
        finding = verdict.finding
        if finding.ok or finding.check not in _OF_NODES:
            continue
        for host in verdict.hosts:
            where = exclude if finding.state == "drift" or _unheard(search, host) else unknown
            where.setdefault(host, _why(finding))
    return Outcome(exclude, {host: why for host, why in unknown.items() if host not in exclude}, found)


_WANTED = {ANSWERS.id: "a response", GATE.id: "nothing critical", ALONE.id: "a figure within the node"}
_OWN = tuple(_WANTED)
_OF_NODES = (*_OWN, localise_judge.ALONE.id, localise_judge.NODE.id, localise_judge.MEMBER.id)


def _why(finding: Finding) -> str:
    if finding.because is not None and finding.state != "drift":
        return f"{finding.check}: see {finding.because.partition('[')[0]}"
    return f"{finding.check}: {finding.have}"


def _unheard(search: Localisation, host: str) -> bool:
    """Return whether tests with two good nodes gave no result, or the node was lost in the middle."""
    item = search.pairs.items.get(host)
    return host in search.lost or (item is not None and item.state == UNKNOWN and len(set(item.unheard)) >= ENOUGH)
