# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which hosts may be rebooted, and whether the rollout goes on.

Ansible counts neither an unreachable host nor one that a block has rescued against its limits of failure, so a batch
that did not come back would not stop the next one. Here every host checks the outcome of all hosts before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import DISRUPTIONS, Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, judged

from . import due_roles, result_schema, suite
from .plain_data import Plain, PlainView

_WHY = "a change that needs a reboot has no effect before it"
RETURNED = Check(
    "reboot.returned",
    why=_WHY,
    fix="look at the node's console; no further node was rebooted",
    severity="critical",
    disruption="reboot",
)
"Did the node come back from its reboot"
VERIFIED = Check(
    "reboot.verified",
    why=_WHY,
    fix="read the findings above it; the boot loader did not take what was written, or another entry was booted",
    disruption="reboot",
)
"Is the change active for which the node was rebooted"
PENDING = Check("reboot.pending", why=_WHY, disruption="reboot")
"Is no reboot pending on the node; the finding of the role shows the reason"
ROLLOUT = Check("reboot.rollout", why=_WHY, disruption="reboot")
"May the node be rebooted: did every node before it come back"
IDLE = Check(
    "reboot.idle",
    why=_WHY,
    fix="drain the node or wait for the job, then run site.yml again",
    severity="minor",
    disruption="reboot",
)
"Is a node with a pending reboot idle"
# After these no further node is rebooted.
_LOST = tuple(check.id for check in (RETURNED, VERIFIED, ROLLOUT))


@dataclass(frozen=True)
class Decision:
    """reboot: whether to do it now. findings: why not, or failures; empty where no reboot is pending."""

    reboot: bool
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> Plain:
        decided = {"changed": False, "reboot": self.reboot, "reasons": list(self.reasons), "repaired": []}
        return {**decided, **judged(self.findings)}


def reasons(results: Sequence[PlainView]) -> tuple[str, ...]:
    """Return the reasons for a reboot in the results of a host's roles, each once."""
    return tuple(dict.fromkeys(reason for result in results for reason in result.get("reboot_required") or []))


def waiting(of_host: PlainView) -> tuple[str, ...]:
    """Return the reasons for a reboot. of_host: registered results of a host."""
    return reasons([of_host.get(f"{role}_result") or {} for role in suite.REBOOTS])


def turn(of_host: PlainView) -> str:
    """Return what playbooks/reboot.yml has to do on a host: "reboot", "give_back" or "".

    of_host: its registered results. Pending reboots are of roles that were played, and so have read
    the intent; on a host where none had anything to do none is pending. A lost host has nothing to be done.
    """
    values = (of_host.get("busbar_intent") or {}).get("values")
    heard = due_roles.answer(of_host)
    if (values is None and "roles" not in heard) or left_alone(of_host):
        return ""
    if values and values["busbar_max_disruption"] == "reboot" and waiting(of_host):
        return "reboot"
    # A rebooted host is not pending any more, and was given back.
    drains = heard["drain"] if values is None else values["busbar_drain"] != "none"
    return "give_back" if drains and "reboot_result" not in of_host else ""


def left_alone(of_host: PlainView) -> bool:
    """Return whether an earlier play has left the host, as playbooks/tasks/lock.yml does."""
    results = [of_host.get(name) or {} for name in ("platform_result", "node_lock_result", "node_lock_released")]
    return any(found.get("unreachable") for found in results) or not results[1].get("held", True)


def untouched(of_host: PlainView) -> dict[str, PlainView]:
    """Return the results of the roles reboot and drain on a host that no play of reboot.yml included, by role."""
    values = (of_host.get("busbar_intent") or {}).get("values")
    if (values is None and "roles" not in due_roles.answer(of_host)) or left_alone(of_host) or turn(of_host):
        return {}
    decision = decide(waiting(of_host), (values or {}).get("busbar_max_disruption", "none"), {}, None)
    return {"reboot": decision.to_dict(), "drain": Plan().result()}


def decide(
    waiting: Sequence[str],
    max_disruption: str,
    earlier: Mapping[str, Mapping[str, object]],
    busy: Sequence[str] | None,
    drain: Mapping[str, object] | None = None,
) -> Decision:
    """Decide on a reboot. earlier: host -> its decision, for all hosts before it. busy: None where unknown.

    drain: what slurm_node returned for the node, None where it need not be drained.

    If the inventory allows no reboots, findings of the other roles report the pending ones: nothing is added.
    """
    reasons = tuple(waiting)

    def held(check: Check, state: str, have: str, fix: str | None = None) -> Decision:
        return Decision(False, reasons, (_judged(check, state, have, waiting, fix),))

    if not waiting:
        return held(PENDING, "ok", "nothing waits for a reboot")
    if DISRUPTIONS.index(max_disruption) < DISRUPTIONS.index("reboot"):
        return Decision(False, reasons)
    if lost := sorted(host for host, decision in earlier.items() if _lost(decision)):
        have = f"not rebooted: {', '.join(lost[:3])} did not come back as it should"
        return held(ROLLOUT, "withheld", have, f"repair {lost[0]}, then run site.yml again")
    if drain is not None and not drain.get("drained"):
        return Decision(False, reasons, (_not_drained(drain, waiting),))
    if busy is None:
        fix = "make nvidia-smi work on the node, or reboot it by hand"
        return held(IDLE, "unknown", "not rebooted: whether the node is in use is unknown", fix)
    return held(IDLE, "withheld", f"busy: {busy[0]}") if busy else Decision(True, reasons)


def _lost(decision: Mapping[str, object]) -> bool:
    """Return whether a node did not come back as it should: its result is then not a decision."""
    found = result_schema.given(decision)
    return bool(found.get("failed")) or any(finding["check"] in _LOST for finding in found.get("findings") or [])


def _not_drained(drain: PlainView, waiting: Sequence[str]) -> Finding:
    found = (drain.get("findings") or [{}])[0]
    state = "withheld" if found.get("state") == "withheld" else "unknown"
    said = found.get("have") or " ".join(str(drain.get("msg") or "no response").split())[:200]
    fix = found.get("fix") or "make the role drain work on the node, or set busbar_drain: none"
    have = f"not rebooted, not drained: {said}"
    return _judged(IDLE, state, have, waiting, fix, because=found.get("id"))


def give_back(decision: Decision, roles: Sequence[PlainView]) -> dict[str, str]:
    """Return for slurm_node the state, and the reason why a node that Busbar drained stays drained.

    roles: results of the roles that were audited again. A node that was not rebooted is unchanged, so it
    goes back whatever is wrong with it; any other node has to be ok.
    """
    if not decision.reboot and decision.reasons:
        return {"state": "undone", "reason": ""}
    findings = [cast(PlainView, finding.to_dict()) for finding in decision.findings if not finding.ok]
    findings += [f for result in roles for f in result.get("findings") or [] if f["severity"] == "critical"]
    wrong = ["{}: {}".format(finding["check"], finding["have"]) for finding in findings]
    wrong += ["not verified: a role gave no result" for result in roles if "findings" not in result]
    return {"state": "resumed", "reason": wrong[0] if wrong else ""}


def judge(before: PlainView, done: PlainView, left: Sequence[str]) -> Decision:
    """Judge a reboot. before: the decision. done: result of Ansible's reboot. left: reasons that are still there."""
    waiting: list[str] = list(before["reasons"])
    finding = _judged(RETURNED, "ok", f"rebooted in {str(done.get('elapsed', '?'))[:6]} s", waiting)
    if done.get("unreachable") or done.get("failed") or not done.get("rebooted"):
        said = [*str(done.get("msg") or "").strip().splitlines(), "no response"][0]
        finding = _judged(RETURNED, "drift", said[:200], waiting)
    elif left:
        finding = _judged(VERIFIED, "drift", f"back, and still waiting: {left[0]}", left)
    return Decision(True, tuple(waiting), (finding,))


def _judged(
    check: Check, state: str, have: str, waiting: Sequence[str], fix: str | None = None, because: str | None = None
) -> Finding:
    want = "rebooted, for: {}".format("; ".join(waiting)) if waiting else "nothing waits for a reboot"
    return check.judge("the node", state, want, have, "reboot_required of the roles", fix, because)
