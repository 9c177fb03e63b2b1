# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report a run of remediation on one node, as findings for the verdict. Pure."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

from ..plain_data import Plain
from .machine import State
from .plan import ASKED, LEFT, MENDED, QUARANTINE, ROLLOUT, STALE, Item, NodePlan

_SOURCE = "the check that failed"
AGAIN = "run busbar remediate again with the same files"
LOG = "busbar-results/actions.jsonl"


def result(plan: NodePlan | None, state: State, wrong: str, check_mode: bool) -> Plain:
    """Return what is registered as ``remediate_result``.

    plan: None where the run ended before it was made.   state: after the last step.
    wrong: error in the files' findings of this host.
    """
    found: list[Finding] = []
    repaired: list[str] = []
    notes: list[str] = []
    if wrong:
        fix = "audit the node again: busbar drift -i INVENTORY --findings FILE, and remediate that"
        found.append(ASKED.judge("the file", "unknown", "findings", wrong, "the file of findings", fix))
    for item in plan.items if plan else ():
        finding = item.finding
        if item.verdict == STALE:
            found.append(MENDED.judge(finding.id, "ok", finding.want, item.why, _SOURCE))
            notes.append(f"stale, nothing was done: {finding.check} {finding.subject}: {item.why}")
        elif plan and item in plan.acted:
            found.append(_acted(item, plan, state, check_mode))
            if found[-1].ok or (check_mode and plan.act and item.verdict != QUARANTINE):
                repaired.append(finding.id)
        elif item.report:
            found.append(item.report)
    if plan and not check_mode:
        found.append(_drain_finding(plan, state))
    elif plan and (plan.left or plan.returns):
        have = "an earlier run has drained it and was ended before it gave it back"
        found.append(LEFT.judge("the node", "drift", "given back", have, "the action log", AGAIN))
    made = Plan(tuple(found)).result()
    return {**made, "repaired": repaired, "notes": notes, "changed": bool(state.done)}


def _acted(item: Item, plan: NodePlan, state: State, check_mode: bool) -> Finding:
    finding = item.finding
    severity = finding.severity
    refused = plan.refused or state.refused
    if refused:
        fix = "repair what is named there, then " + AGAIN
        return ROLLOUT.judge(finding.id, "withheld", "acted on", refused, "the plan", fix, severity=severity)
    if check_mode:
        fix = "run it without --check; by hand: " + finding.fix
        have = f"{finding.have or '-'}; {item.why}"
        return MENDED.judge(finding.id, "drift", finding.want, have, "the plan", fix, severity=severity)
    if item.report:
        return item.report
    if state.held:
        fix = "wait until the node is idle, then " + AGAIN
        return ROLLOUT.judge(finding.id, "withheld", "an idle node", state.held, "the plan", fix)
    proven = next((one for one in state.proofs if one["finding"] == finding.id), None)
    if proven is None:
        have = state.failure or "the run ended before it was proven, or another run works on the node"
        return MENDED.judge(finding.id, "unknown", finding.want, have, _SOURCE, AGAIN, severity=severity)
    fix = finding.fix or "see " + LOG
    have = proven["have"]
    figures = [figures.get(finding.id) for figures in (state.before, state.after)]
    if any(figure is not None for figure in figures):
        have += ", GB/s before and after: " + ", ".join("-" if one is None else "%.4g" % one for one in figures)
    return MENDED.judge(finding.id, proven["state"], finding.want, have, _SOURCE, fix, severity=severity)


def _drain_finding(plan: NodePlan, state: State) -> Finding:
    if state.lost:
        have = f"Slurm did not respond when it was to be given back: {state.lost}"
        return LEFT.judge("the node", "unknown", "given back", have, "scontrol", AGAIN)
    if state.kept and state.reason:
        fix = f"repair it, then {AGAIN}, which proves that and gives the node back; {LOG} lists what was done"
        return LEFT.judge("the node", "drift", "given back", f"left drained: {state.reason}", "scontrol", fix)
    if state.begun and not state.closed:
        return LEFT.judge("the node", "unknown", "given back", "the run did not come to its end", LOG, AGAIN)
    if plan.left and not state.closed:
        have = "an earlier run has drained it and was ended, and nothing was done about that now"
        return LEFT.judge("the node", "drift", "given back", have, LOG, AGAIN)
    return LEFT.judge("the node", "ok", "given back", "nothing is left", LOG)
