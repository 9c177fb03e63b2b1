# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a remediation on one node: repaired or not, by the check that failed, worse or not, and so given back.

Pure. A plan is ``remediate.Host.to_dict``, as a run has registered it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    codec,
    localise_record,
    remediate,
    result_schema,
    suite,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import PAIR
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediate import CurrentResult

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
_MEASURED = {noun for role in suite.SUITE if role.play == "benchmark" for noun in role.nouns}
# Characters of a reason in Slurm.
_REASON = 160


@dataclass(frozen=True)
class Proof:
    """The current result of the check that failed. state: OK, FAILED, UNKNOWN.   have: for people."""

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

    @property
    def ok(self) -> bool:
        return not self.worse and all(proof.state == OK for proof in self.proofs)


def with_measured(now: CurrentResult, measured: Mapping[str, object] | None) -> CurrentResult:
    """Return the node's result with later measurements. measured: registered by nccl_benchmark."""
    result = result_schema.given(measured)
    if "findings" not in result:
        return now
    found = {one.id: one for one in map(from_dict, result["findings"])}
    return replace(now, findings={**now.findings, **found}, passed=now.passed | set(result["passed"]))


def proof(finding: Finding, now: CurrentResult) -> Proof:
    """Return the proof by the check that failed: a check that is no longer made proves nothing."""
    if now.silent:
        return Proof(finding.id, UNKNOWN, f"the node did not respond: {now.silent}")
    standing = now.findings.get(finding.id)
    if standing is None and finding.check in remediate.BETWEEN and remediate.GOOD in now.passed:
        return Proof(finding.id, OK, "as fast with good nodes as it has to be")
    if standing is not None:
        state = UNKNOWN if standing.state == "unknown" else FAILED
        return Proof(finding.id, state, standing.have or "nothing")
    if finding.id in now.passed:
        return Proof(finding.id, OK, "ok")
    # A repaired subject may have another name, such as the device that is back.
    prefix = finding.check + "["
    if any(name.startswith(prefix) for name in now.passed) and not any(
        one.check == finding.check for one in now.findings.values()
    ):
        return Proof(finding.id, OK, "ok")
    return Proof(finding.id, UNKNOWN, f"it is no longer checked for {finding.check}")


def worse(before: Sequence[str], now: CurrentResult, measured: bool) -> tuple[str, ...]:
    """Return faults that are new. before: ids of findings.   measured: figures were taken in this run."""
    if now.silent:
        return (f"the node did not respond any more: {now.silent}",)
    known = set(before)
    return tuple(
        f"{one.check}: {one.have or 'nothing'}"
        for one in now.findings.values()
        if one.id not in known
        and one.severity != "minor"
        and one.check not in remediate.OF_NO_NODE
        # A result outdated by a repair is no damage.
        and (measured or one.check.partition(".")[0] not in _MEASURED)
    )


def judge(plan: Mapping[str, Any], now: CurrentResult, done: bool, kept_out: bool = False) -> Outcome:
    """Return the outcome. done: something was changed on the node.   kept_out: another run of Busbar drained it."""
    items = [(item, from_dict(item["finding"])) for item in plan["items"]]
    acted = [finding for item, finding in items if item["verdict"] in (remediate.MEND, remediate.MEASURE)]
    proofs = tuple(proof(finding, now) for finding in acted)
    kept = [finding for item, finding in items if item["verdict"] == remediate.QUARANTINE]
    if not done and not kept and not plan["left"] and not plan["returns"]:
        return Outcome(proofs, (), "undone")
    found = worse(plan["before"], now, bool(plan["measure"] or plan["between"]))
    reasons = [f"{finding.check} {finding.subject}: {finding.have or '-'}" for finding in kept]
    reasons += [f"got worse, {one}" for one in found]
    checks = {finding.id: finding.check for finding in acted}
    reasons += [f"{checks[one.finding]} not repaired: {one.have}" for one in proofs if one.state != OK]
    # As after a reboot. A node in service is not drained for a fault that nothing accuses it of.
    critical = [one for one in now.findings.values() if kept_out and one.severity == "critical"]
    reasons += [f"{one.check} {one.subject}: {one.have or '-'}" for one in critical]
    return Outcome(proofs, found, "resumed", reasons[0][:_REASON] if reasons else "")


def figure(finding: Finding, measured: Mapping[str, Any] | None) -> float | None:
    """Return busbw in GB/s of the finding's run. measured: registered by nccl_benchmark."""
    runs = (measured or {}).get("runs")
    if not codec.is_valid(codec.many(result_schema.a_run), runs):
        return None
    found = [run["busbw"] for run in runs or [] if run["subject"] == finding.subject or run["name"] == finding.subject]
    return found[0] if found else None


def between(record: object, host: str) -> float | None:
    """Return the host's highest busbw in GB/s with another, because a slow partner proves nothing about it; or None.

    record: of a search, as plain data.
    """
    try:
        found = localise_record.from_dict(record)
    except ParseError:
        return None
    figures = [test.figure for test in found.tests if host in test.hosts and test.kind == PAIR]
    return max((figure for figure in figures if figure is not None), default=None)


def stale(plan: Mapping[str, Any], now: CurrentResult) -> bool:
    """Return whether the node now reaches all figures that it is accused of."""
    acted = [from_dict(i["finding"]) for i in plan["items"] if i["verdict"] in (remediate.MEND, remediate.MEASURE)]
    return bool(acted) and all(proof(finding, now).state == OK for finding in acted)


def stop(earlier: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why no further node is touched, "" where none is. earlier: host -> its remediate_state."""
    for host, state in earlier.items():
        if state.get("worse"):
            return f"{host} got worse: {state['worse'][0]}"[:300]
        if state.get("begun") and not state.get("closed") and not state.get("pending"):
            return f"the result for {host} is unknown: its run failed"
    return ""


def in_vain(earlier: Mapping[str, Mapping[str, Any]], checks: Sequence[str]) -> str:
    """Return why this node is not tried: the same check was not repaired on one before it; "" otherwise."""
    for host, state in earlier.items():
        missed = sorted(set(checks) & set(state.get("missed") or []))
        if missed:
            return f"{missed[0]} was not repaired on {host}, which was before it"
    return ""
