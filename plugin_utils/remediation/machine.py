# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remediate one node step by step: which step is next, and what the action log has of each. Pure.

``advance`` ends the step that was done and begins the next one, which playbooks/tasks/remediate_step.yml does. The
caller has to log ``entries`` before that, so that a killed run has done nothing that the log does not have.

    look, drain, busy -> measure -> roles -> decide, reboot -> audit, figure -> (wait) -> judge -> resume

Steps that the plan does not need are left out. A step that fails, or a node that is in use, leads to resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable

from .. import reboot, result_schema, suite
from ..plain_data import Plain, PlainView
from . import proof
from .action_log import Entry
from .plan import BETWEEN, PROVISION, QUARANTINE, CurrentResult, Item, NodePlan, current_result, in_order

_AFTER = {role.name: role.after for role in suite.SUITE}


@dataclass
class State:
    """Hold what is known of one node in this run.

    step: the one that is being done, "" for none.   steps: those after it.   begun: something was logged that has to
    be closed.   pending: it waits until it is measured with others.   refused, held: why nothing is done.   failure:
    why no more was.   ours: Busbar has drained it.   kept_out: another run of Busbar had.   audit: after the repair.
    stale: a figure is fast enough.   done: roles that were played, and "reboot".   changed: roles that have changed
    something.   before, after: id of finding -> figure.   worse: new faults.   missed: checks that were not repaired.
    back, reason: for slurm_node; why it stays drained.   kept: it stays drained.   lost: why Slurm did not respond.
    """

    step: str = ""
    steps: list[str] = field(default_factory=list)
    begun: bool = False
    closed: bool = False
    pending: bool = False
    refused: str = ""
    held: str = ""
    failure: str = ""
    ours: bool = False
    kept_out: bool = False
    stale: bool = False
    done: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    audit: Plain = field(default_factory=dict)
    before: dict[str, float | None] = field(default_factory=dict)
    after: dict[str, float | None] = field(default_factory=dict)
    proofs: list[dict[str, str]] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    back: str = "undone"
    reason: str = ""
    kept: bool = False
    lost: str = ""


@dataclass(frozen=True)
class Search:
    """A search among nodes. result: of this node.   record: of all of it."""

    result: PlainView | None = None
    record: object = None


def blocked(earlier: Mapping[str, State], checks: Iterable[str]) -> str:
    """Return why this node is not touched, "" where it is. earlier: of all nodes before.   checks: to be repaired."""
    wanted = set(checks)
    for host, state in earlier.items():
        if state.worse:
            return f"{host} got worse: {state.worse[0]}"[:300]
        if state.begun and not state.closed and not state.pending:
            return f"the result for {host} is unknown: its run failed"
        if missed := sorted(wanted.intersection(state.missed)):
            return f"{missed[0]} was not repaired on {host}, which was before it"
    return ""


@dataclass(frozen=True)
class Step:
    """role, tasks: what is included, role "" for that of the step's name; no tasks where nothing is.

    action: that is logged as begun before it is done.   begin: returns whether there is anything to do.
    end: takes what it has registered.
    """

    role: str = ""
    tasks: str = ""
    action: str = ""
    begin: Callable[[Remediation, str], bool] = lambda _remediation, _step: True
    end: Callable[[Remediation, str], None] = lambda _remediation, _step: None


class Remediation:
    """The remediation of one node.

    results: what the steps have registered, by name.   run: id of this run.   standing: leaves out accepted findings.
    """

    def __init__(
        self,
        plan: NodePlan,
        state: State,
        results: PlainView,
        run: str,
        standing: Callable[[Iterable[Finding]], Iterable[Finding]] = list,
        search: Search | None = None,
    ) -> None:
        self.plan = plan
        self.state = state
        self.entries: list[Entry] = []
        self._results = results
        self._run = run
        self._standing = standing
        self._search = search or Search()

    # -- transitions ---------------------------------------------------------------------------------------------------

    def begin(self, earlier: Mapping[str, State]) -> None:
        """Decide whether the node's turn has come, from the outcome of those before it, and list its steps."""
        plan, state = self.plan, self.state
        checks = [item.finding.check for item in plan.acted if item.verdict != QUARANTINE]
        state.refused = blocked(earlier, checks)
        if state.refused:
            self._log("refused", "held", state.refused)
            return
        state.steps = [
            *(("look", "drain", "busy") if plan.drain else ()),
            *(("measure",) if plan.measure else ()),
            *in_order([*plan.roles, *plan.after]),
            *(("decide",) if plan.reboot else ()),
            *("audit", *(("figure",) if plan.measure else ()), *(("wait",) if plan.between else ())),
            *("judge", "resume"),
        ]

    def advance(self) -> None:
        """End the step that was done, and begin the next one; ``state.step`` is "" where nothing is to be done now."""
        state = self.state
        step, state.step, state.pending = state.step, "", False
        if step:
            self.STEPS[step].end(self, step)
        while state.steps and not (state.step or state.pending):
            step = state.steps.pop(0)
            if self.STEPS[step].begin(self, step):
                state.step = step
                self._log_begin(step)

    def _log_begin(self, step: str) -> None:
        """Log what is begun: a node that is drained, or changed, must not be forgotten."""
        action = self.STEPS[step].action
        if action:
            self.state.begun = True
            reasons = (self._results.get("reboot_result") or {}).get("reasons") or []
            why = {"drain": self.plan.reason, "reboot": "; ".join(reasons)}.get(step, "")
            self._log(action, "begun", why, step if action == "role" else "")

    def fail(self, message: str) -> None:
        """Log that the step failed or timed out: the repairs so far are not known to be good."""
        plan, state = self.plan, self.state
        why = " ".join(printable(message or "a task failed").split())[:200]
        step, state.step = state.step, ""
        state.steps = ["resume"] if state.begun and step != "resume" else []
        if step == "resume":
            # Not closed: it is not known how the node is left.
            state.lost = why
            return self._log("left_drained" if state.reason else "resumed", "failed", why)
        if not state.begun:
            state.refused, state.closed = f"a task failed: {why}", True
            return self._log("refused", "failed", why)
        state.failure, state.worse = f"a task failed: {why}", []
        state.missed = [item.finding.check for item in plan.acted] if state.done else []
        state.back = "resumed" if state.done or plan.left else "undone"
        state.reason = f"remediation failed: {why}" if state.back == "resumed" else ""
        return self._log("verified", "failed", why)

    # -- out of service ------------------------------------------------------------------------------------------------

    def _end_look(self, _step: str) -> None:
        self.state.kept_out = bool(self._result("drain").get("ours")) and not self.plan.known

    def _end_busy(self, _step: str) -> None:
        state, drain = self.state, self._result("drain")
        busy = result_schema.given(self._results.get("remediate_busy"), "reboot")
        state.ours, drained = bool(drain.get("ours")), bool(drain.get("drained"))
        only_kept = bool(self.plan.acted) and all(item.verdict == QUARANTINE for item in self.plan.acted)
        if not drained:
            finding = (drain.get("findings") or [{}])[0]
            state.held = "not drained: " + str(finding.get("have") or drain.get("msg") or "no response")
        elif busy.get("reasons"):
            state.held = f"busy: {busy['reasons'][0]}"
        elif (not busy or busy.get("failed") or busy.get("unreachable")) and not only_kept:
            state.held = "whether the node is in use is not known"
        known = "findings" in drain and all(finding["state"] != "unknown" for finding in drain["findings"])
        if state.held and known and not state.ours:
            state.begun, state.closed, state.steps = False, True, []
            return self._log("drained", "held", state.held)
        if state.held:
            state.steps = ["resume"]
        foreign = "an administrator has drained it, and it stays drained" if drained and not state.ours else ""
        return self._log("drained", "done" if known else "failed", state.held or foreign)

    def _begin_resume(self, _step: str) -> bool:
        """Log, before the node is given back or kept out, which of the two it is, and why it is kept out."""
        reason = self.state.reason
        if self.plan.drain:
            self._log("left_drained" if reason else "resumed", "begun", reason)
            return True
        if reason:
            self._log("refused", "held", reason)
        self.state.closed = True
        return False

    def _end_resume(self, _step: str) -> None:
        state, drain = self.state, self._result("drain")
        unknown = [finding for finding in drain.get("findings") or [] if finding["check"] == slurm.STATE.id]
        good = "findings" in drain and not unknown
        why = str(unknown[0]["have"]) if unknown else str(drain.get("msg") or "")
        self._log("left_drained" if state.reason else "resumed", "done" if good else "failed", why)
        state.kept, state.closed = bool(drain.get("ours")), True
        state.lost = "" if good else why or "no response from Slurm"

    # -- repair --------------------------------------------------------------------------------------------------------

    def _end_measure(self, _step: str) -> None:
        """Judge a measurement made before any repair: a figure that is fast enough now was a stale finding."""
        plan, state = self.plan, self.state
        measured = self._results.get("nccl_benchmark_result")
        now = proof.with_measured(CurrentResult(), measured)
        state.before = {item.finding.id: proof.figure(item.finding, measured) for item in plan.acted}
        first = next((figure for figure in state.before.values() if figure is not None), None)
        self._log("measured", "done" if now.passed or now.findings else "failed", before=first)
        state.stale = bool(plan.repaired) and all(
            proof.prove(one, now, plan.passed).state == "ok" for one in plan.repaired
        )
        if state.stale:
            self._log("dropped", "done", "measured again, it is as fast as it has to be", before=first)
            state.steps = [step for step in state.steps if step in ("audit", "wait", "judge", "resume")]

    def _begin_role(self, role: str) -> bool:
        """Decide whether a role is played: roles that repair, and those that check what was changed."""
        if role not in self.plan.roles and not set(_AFTER[role]) & set(self.state.changed):
            return False
        self.state.done.append(role)
        return True

    def _end_role(self, role: str) -> None:
        result = self._result(role, "")
        if result.get("changed"):
            self.state.changed.append(role)
        good = "findings" in result
        self._log(
            "role", "done" if good else "failed", "" if good else str(result.get("msg") or "no result"), role=role
        )

    def _end_decide(self, _step: str) -> None:
        if (self._results.get("reboot_result") or {}).get("reboot"):
            self.state.steps.insert(0, "reboot")

    def _begin_reboot(self, step: str) -> bool:
        self.state.done.append(step)
        return True

    def _end_reboot(self, _step: str) -> None:
        result = self._result("reboot", "")
        wrong = [
            one for one in result.get("findings") or [] if one["check"] in (reboot.RETURNED.id, reboot.VERIFIED.id)
        ]
        bad = bool(wrong) or "findings" not in result
        self._log("rebooted", "failed" if bad else "done", str(wrong[0]["have"]) if wrong else "")

    # -- proof ---------------------------------------------------------------------------------------------------------

    def _end_audit(self, _step: str) -> None:
        audit = self._results.get("remediate_audit") or {}
        self.state.audit = {name: audit[name] for name in ("roles", "msg") if name in audit}

    def _begin_wait(self, _step: str) -> bool:
        """Leave the node drained until it is measured with others, once all nodes of this turn are repaired."""
        self.state.pending = True
        return False

    def _begin_judge(self, _step: str) -> bool:
        """Judge the node by the current result of the check that failed, and so whether it goes back into service."""
        plan, state = self.plan, self.state
        measured = self._results.get("nccl_benchmark_result") if plan.measure else None
        now = current_result(state.audit)
        now = replace(now, findings={one.id: one for one in self._standing(now.findings.values())})
        now = proof.with_measured(now, measured)
        if plan.between:
            now = proof.with_measured(now, self._search.result)
        found = proof.judge(plan, now, bool(state.done), state.kept_out)
        state.proofs = [asdict(one) for one in found.proofs]
        state.worse = list(found.worse)
        missed = [one.finding.partition("[")[0] for one in found.proofs if one.state != "ok"]
        state.missed = missed if state.done else []
        state.back, state.reason = found.state, found.reason
        by_id = {one.finding: one for one in found.proofs}
        for item in plan.acted:
            name = item.finding.id
            state.after[name] = proof.figure(item.finding, measured)
            if item.finding.check in BETWEEN and self._search.result:
                state.before[name] = plan.figure
                state.after[name] = proof.figure_between(self._search.record, plan.name)
            if name in by_id:
                # A figure that was good before anything was done was not repaired.
                action = "dropped" if state.stale else "verified"
                outcome = "done" if by_id[name].state == "ok" else "failed"
                known: Plain = {"before": state.before.get(name), "after": state.after[name]}
                known["boot_id"] = now.boot_id or plan.boot_id
                self.entries.append(plan.entry(self._run, action, outcome, by_id[name].have, item, **known))
        return False

    # -- log -----------------------------------------------------------------------------------------------------------

    def _result(self, role: str, module: str = "slurm_node") -> Plain:
        """Return what a role has registered, as far as it is valid."""
        return result_schema.given(self._results.get(f"{role}_result"), module)

    def _log(self, action: str, result: str, why: str = "", role: str = "", before: float | None = None) -> None:
        """Log an action for each finding that is acted on, or once if there is none."""
        # A role that is played because another one changed something belongs to none of them.
        items: list[Item | None] = [item for item in self.plan.acted if not role or role in item.roles]
        more = {"role": role, "before": before}
        self.entries += [self.plan.entry(self._run, action, result, why, item, **more) for item in items or [None]]

    STEPS: ClassVar[Mapping[str, Step]] = {
        "look": Step("drain", "report", end=_end_look),
        "drain": Step("drain", "drain", "drained"),
        "busy": Step(end=_end_busy),
        "measure": Step("nccl_benchmark", "measure", "measured", end=_end_measure),
        **dict.fromkeys(PROVISION, Step("", "main", "role", _begin_role, _end_role)),
        "decide": Step("reboot", "decide", end=_end_decide),
        "reboot": Step("reboot", "reboot", "rebooted", _begin_reboot, _end_reboot),
        "audit": Step(action="verified", end=_end_audit),
        "figure": Step("nccl_benchmark", "measure"),
        "wait": Step(begin=_begin_wait),
        "judge": Step(begin=_begin_judge),
        "resume": Step("drain", "resume", begin=_begin_resume, end=_end_resume),
    }

    @property
    def included(self) -> tuple[str, str]:
        """Return the role that the step includes, "" for none, and its file of tasks."""
        step = self.STEPS.get(self.state.step, Step())
        return step.role or (self.state.step if step.tasks else ""), step.tasks
