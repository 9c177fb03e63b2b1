# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a remediation on one node: repaired or not, by the check that failed, worse or not, and so given back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import codec, result_schema, suite
from ..campaign import localise_record
from ..campaign.localise_record import PAIR
from ..plain_data import PlainView
from . import plan as plans
from .plan import CurrentResult, NodePlan

_MEASURED = {noun for role in suite.SUITE if role.play == "benchmark" for noun in role.nouns}


@dataclass(frozen=True)
class Proof:
    """The current result of the check that failed. state: ok, drift or unknown.   have: for people."""

    finding: str
    state: str
    have: str


@dataclass(frozen=True)
class Outcome:
    """worse: new faults of the node.   state, reason: for slurm_node; the reason is why the node
    stays drained, "" where it goes back.
    """

    proofs: tuple[Proof, ...] = ()
    worse: tuple[str, ...] = ()
    state: str = "resumed"
    reason: str = ""


def with_measured(now: CurrentResult, measured: Mapping[str, object] | None) -> CurrentResult:
    """Return the node's result with later measurements. measured: registered by nccl_benchmark."""
    result = result_schema.given(measured)
    if "findings" not in result:
        return now
    found = {one.id: one for one in map(from_dict, result["findings"])}
    return replace(now, findings={**now.findings, **found}, passed=now.passed | set(result["passed"]))


def prove(finding: Finding, now: CurrentResult, before: Collection[str] = ()) -> Proof:
    """Return the proof by the check that failed: a check that is no longer made proves nothing.

    before: ids that passed before the repair.
    """
    if now.silent:
        return Proof(finding.id, "unknown", f"the node did not respond: {now.silent}")
    standing = now.findings.get(finding.id)
    if standing is not None:
        state = "unknown" if standing.state == "unknown" else "drift"
        return Proof(finding.id, state, standing.have or "nothing")
    if finding.check in plans.BETWEEN and plans.GOOD in now.passed:
        return Proof(finding.id, "ok", "as fast with good nodes as it has to be")
    # A repaired subject may have another name, such as the device that is back. Its neighbours were good before.
    elsewhere = all(one.check != finding.check for one in now.findings.values()) and any(
        name.startswith(f"{finding.check}[") for name in now.passed.difference(before)
    )
    if finding.id in now.passed or elsewhere:
        return Proof(finding.id, "ok", "ok")
    return Proof(finding.id, "unknown", f"it is no longer checked for {finding.check}")


def worse(before: Sequence[str], now: CurrentResult, measured: bool) -> tuple[str, ...]:
    """Return faults that are new. before: ids of findings.   measured: figures were taken in this run."""
    if now.silent:
        return (f"the node did not respond any more: {now.silent}",)
    return tuple(
        f"{one.check}: {one.have or 'nothing'}"
        for one in now.findings.values()
        if one.id not in before
        and one.severity != "minor"
        and one.check not in plans.OF_NO_NODE
        # A result outdated by a repair is no damage.
        and (measured or one.check.partition(".")[0] not in _MEASURED)
    )


def judge(plan: NodePlan, now: CurrentResult, done: bool, kept_out: bool = False) -> Outcome:
    """Return the outcome. done: something was changed on the node.   kept_out: another run of Busbar drained it."""
    proofs = tuple(prove(finding, now, plan.passed) for finding in plan.repaired)
    hardware = [item.finding for item in plan.items if item.verdict == plans.QUARANTINE]
    if not (done or hardware or plan.left or plan.returns):
        return Outcome(proofs, (), "undone")
    found = worse(plan.before, now, plan.measure or plan.between)
    # As after a reboot. A node in service is not drained for a fault that nothing accuses it of.
    critical = [one for one in now.findings.values() if kept_out and one.severity == "critical"]
    reasons = [
        *map(_reason, hardware),
        *(f"got worse, {fault}" for fault in found),
        *(f"{proof.finding.partition('[')[0]} not repaired: {proof.have}" for proof in proofs if proof.state != "ok"),
        *map(_reason, critical),
    ]
    return Outcome(proofs, found, "resumed", reasons[0][: plans.REASON] if reasons else "")


def _reason(finding: Finding) -> str:
    return f"{finding.check} {finding.subject}: {finding.have or '-'}"


def figure(finding: Finding, measured: PlainView | None) -> float | None:
    """Return busbw in GB/s of the finding's run. measured: registered by nccl_benchmark."""
    runs = (measured or {}).get("runs")
    if not codec.is_valid(codec.many(result_schema.a_run), runs):
        return None
    return next((run["busbw"] for run in runs or () if finding.subject in (run["subject"], run["name"])), None)


def figure_between(record: object, host: str) -> float | None:
    """Return the host's highest busbw in GB/s with another, because a slow partner proves nothing about it; or None.

    record: of a search, as plain data.
    """
    try:
        found = localise_record.from_dict(record)
    except ParseError:
        return None
    figures = [test.figure for test in found.tests if host in test.hosts and test.kind == PAIR]
    return max((figure for figure in figures if figure is not None), default=None)
