# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Do one step of a host's remediation: logs it first. Documented in library/remediate_step.py.

The host's state goes from step to step as ``remediate_state``, which every step registers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    action_log,
    reboot,
    remediate,
    remediate_judge,
    remediate_report,
    result_schema,
    suite,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values

display = Display()
_OF_NAME = {role.name: role for role in suite.SUITE}
_GIVEN = ("drain", "busy", "asked", "measured", "searched")
State = dict[str, Any]


class Step:
    """One step: its inputs, the state it changes, its result."""

    def __init__(self, variables: Mapping[str, Any], arguments: Mapping[str, Any], check_mode: bool) -> None:
        self.variables = variables
        self.arguments = arguments
        self.check_mode = check_mode
        self.host = str(variables["inventory_hostname"])
        planned = variables.get("remediate_plan_result") or {}
        self.plan: Mapping[str, Any] = (planned.get("hosts") or {}).get(self.host) or {}
        self.state: State = dict((variables.get("remediate_state") or {}).get("state") or {})
        self.result: dict[str, Any] = {}

    def registered(self) -> dict[str, Any]:
        """Return what is registered: the state, and the values that tasks read by name."""
        return {"state": self.state, **self.state, **self.result}

    def log(self, action: str, outcome: str, why: str = "", **more: Any) -> None:
        """Log an action for each finding that is acted on, or once if there is none. On the disk when it returns."""
        at = time.time()
        shared: dict[str, Any] = {
            "at": at,
            "run": node_lock.this_run().id,
            "host": self.host,
            "action": action,
            "outcome": outcome,
        }
        shared.update(why=why, boot_id=self.plan.get("boot_id", ""), **more)
        entries = []
        role = more.get("role")
        for item in self.acted():
            # A role that is played because another one changed something belongs to none of them.
            if role and role not in item["roles"]:
                continue
            found = item["finding"]
            of_item = {name: found[name] for name in ("check", "subject")}
            entries.append(Entry(**{**shared, **of_item, "finding": found["id"], "attempt": item["attempt"]}))
        action_log.append(self.arguments["results"], entries or [Entry(**shared)])

    def acted(self) -> list[dict[str, Any]]:
        """Return the plan's items for which something is done."""
        wanted = (remediate.MEND, remediate.MEASURE, remediate.QUARANTINE)
        return [item for item in self.plan.get("items", []) if item["verdict"] in wanted]

    def fresh(self) -> remediate.CurrentResult:
        """Return the host's current result, with what was measured on it meanwhile."""
        now = remediate.fresh(self.arguments["asked"])
        found = accepted.standing(now.findings.values(), self.variables)
        now = replace(now, findings={finding.id: finding for finding in found})
        now = remediate_judge.with_measured(now, self.arguments["measured"])
        return remediate_judge.with_measured(now, self.arguments["searched"])

    def earlier(self) -> dict[str, Mapping[str, Any]]:
        """Return host -> state, of all hosts before this one."""
        hostvars = self.variables["hostvars"]
        order = (self.variables.get("remediate_plan_result") or {}).get("order", [])
        found = {host: hostvars.raw_get(host).get("remediate_state") for host in order if host != self.host}
        return {host: state["state"] for host, state in found.items() if state and "state" in state}


def _begin(step: Step) -> None:
    """Decide whether the host's turn has come, from the outcome of the hosts in earlier batches."""
    earlier = step.earlier()
    checks = [item["finding"]["check"] for item in step.acted() if item["verdict"] != remediate.QUARANTINE]
    why = remediate_judge.stop(earlier) or remediate_judge.in_vain(earlier, checks)
    roles = [*step.plan["roles"], *step.plan["after"]]
    step.state = {
        "act": not why and not step.check_mode,
        "go": not why and not step.check_mode,
        "stale": False,
        "pending": False,
        "refused": why,
        "roles": [role for role in remediate.PROVISION if role in roles],
        **{name: step.plan[name] for name in ("drain", "measure", "between", "reboot", "reason")},
        "begun": False,
        "closed": False,
        "done": [],
    }
    if why and not step.check_mode:
        step.log("refused", "held", why)


def _drain(step: Step) -> None:
    """Log the drain before it is done: a drained node must not be forgotten. drain: the state before."""
    read = step.variables.get("remediate_read_result") or {}
    ours = bool(result_schema.given(step.arguments["drain"], "slurm_node").get("ours"))
    step.state.update(begun=True, kept_out=ours and step.host not in (read.get("drained") or []))
    step.log("drained", "begun", step.state["reason"])


def _drained(step: Step) -> None:
    drain = result_schema.given(step.arguments["drain"], "slurm_node")
    busy = result_schema.given(step.arguments["busy"], "busy_info")
    users = busy.get("reasons") or []
    ours = bool(drain.get("ours"))
    why = ""
    if not drain.get("drained"):
        found = (drain.get("findings") or [{}])[0]
        why = "not drained: " + str(found.get("have") or drain.get("msg") or "no response")
    elif users:
        why = f"busy: {users[0]}"
    elif (not busy or busy.get("failed") or busy.get("unreachable")) and not _only_kept(step):
        why = "whether the node is in use is not known"
    step.state.update(go=not why, ours=ours, held=why)
    known = "findings" in drain and not any(f["state"] == "unknown" for f in drain["findings"])
    if why and known and not ours:
        step.state.update(begun=False, closed=True)
        step.log("drained", "held", why)
    else:
        said = "an administrator has drained it, and it stays drained" if drain.get("drained") and not ours else ""
        step.log("drained", "done" if known else "failed", why or said)


def _only_kept(step: Step) -> bool:
    return all(item["verdict"] == remediate.QUARANTINE for item in step.acted()) and bool(step.acted())


def _measure(step: Step) -> None:
    step.state["begun"] = True
    step.log("measured", "begun")


def _measured(step: Step) -> None:
    """Judge a measurement made before any repair: a figure that is fast enough now was a stale finding."""
    measured = step.arguments["measured"]
    now = remediate_judge.with_measured(remediate.CurrentResult(), measured)
    figures = {i["finding"]["id"]: remediate_judge.figure(from_dict(i["finding"]), measured) for i in step.acted()}
    step.state["before"] = figures
    step.state["stale"] = remediate_judge.stale(step.plan, now)
    before = next((one for one in figures.values() if one is not None), None)
    step.log("measured", "done" if now.passed or now.findings else "failed", before=before)
    if step.state["stale"]:
        step.log("dropped", "done", "measured again, it is as fast as it has to be", before=before)
        step.state["roles"] = []
        step.state["reboot"] = False


def _role(step: Step) -> None:
    """Decide whether a role is played: roles that repair, and those that check what was changed."""
    name = step.arguments["role"]
    changed = any((step.variables.get(f"{one}_result") or {}).get("changed") for one in _OF_NAME[name].after)
    step.result["play"] = name in step.plan["roles"] or (changed and name in step.plan["after"])
    if step.result["play"]:
        step.state["begun"] = True
        step.state["done"] = [*step.state["done"], name]
        step.log("role", "begun", role=name)


def _role_done(step: Step) -> None:
    name = step.arguments["role"]
    if name not in step.state["done"]:
        return
    found = result_schema.given(step.variables.get(f"{name}_result"))
    good = "findings" in found
    step.log("role", "done" if good else "failed", "" if good else str(found.get("msg") or "no result"), role=name)


def _reboot(step: Step) -> None:
    decided = step.variables.get("reboot_result") or {}
    step.result["reboot_now"] = bool(decided.get("reboot"))
    if step.result["reboot_now"]:
        step.state["done"] = [*step.state["done"], "reboot"]
        step.log("rebooted", "begun", "; ".join(decided.get("reasons") or []))


def _rebooted(step: Step) -> None:
    if "reboot" not in step.state["done"]:
        return
    found = result_schema.given(step.variables.get("reboot_result"))
    wrong = [f for f in found.get("findings") or [] if f["check"] in (reboot.RETURNED.id, reboot.VERIFIED.id)]
    bad = bool(wrong) or "findings" not in found
    step.log("rebooted", "failed" if bad else "done", str(wrong[0]["have"]) if wrong else "")


def _verify(step: Step) -> None:
    step.log("verified", "begun")


def _wait(step: Step) -> None:
    """Leave the node drained until it is measured with others, once all nodes of this turn are repaired."""
    step.state["pending"] = True


def _judge(step: Step) -> None:
    """Judge the host by the current result of the check that failed, and so whether it goes back into service."""
    now = step.fresh()
    step.state["pending"] = False
    found = remediate_judge.judge(step.plan, now, bool(step.state["done"]), bool(step.state.get("kept_out")))
    _record_outcome(step, found, now)


def _record_outcome(step: Step, found: remediate_judge.Outcome, now: remediate.CurrentResult) -> None:
    proofs = [{"finding": one.finding, "state": one.state, "have": one.have} for one in found.proofs]
    missed = [one.finding.partition("[")[0] for one in found.proofs if one.state != remediate_judge.OK]
    step.state.update(
        proofs=proofs,
        worse=list(found.worse),
        missed=missed if step.state["done"] else [],
        give_back={"state": found.state, "reason": found.reason},
    )
    before: dict[str, float | None] = dict(step.state.get("before") or {})
    after: dict[str, float | None] = {}
    record = (step.variables.get("localise_round_result") or {}).get("record")
    for item in step.acted():
        name = item["finding"]["id"]
        after[name] = remediate_judge.figure(from_dict(item["finding"]), step.arguments["measured"])
        if item["finding"]["check"] in remediate.BETWEEN and step.arguments["searched"]:
            before[name], after[name] = step.plan["figure"], remediate_judge.between(record, step.host)
    step.state.update(before=before, after=after)
    by_id = {one.finding: one for one in found.proofs}
    entries = []
    for item in step.acted():
        one = by_id.get(item["finding"]["id"])
        if one is None:
            continue
        entries.append(
            Entry(
                at=time.time(),
                run=node_lock.this_run().id,
                host=step.host,
                boot_id=now.boot_id or step.plan["boot_id"],
                check=item["finding"]["check"],
                subject=item["finding"]["subject"],
                finding=one.finding,
                # A figure that was good before anything was done was not repaired.
                action="dropped" if step.state.get("stale") else "verified",
                outcome="done" if one.state == remediate_judge.OK else "failed",
                attempt=item["attempt"],
                before=before.get(one.finding),
                after=after.get(one.finding),
                why=one.have,
            )
        )
    action_log.append(step.arguments["results"], entries)


def _failed(step: Step) -> None:
    """Log that a task failed or timed out: the repairs so far are not known to be good."""
    why = " ".join(printable(step.arguments["said"] or "a task failed").split())[:200]
    if not step.state.get("begun"):
        step.state.update(go=False, refused=f"a task failed: {why}", closed=True)
        step.log("refused", "failed", why)
        return
    done = bool(step.state["done"])
    state = "resumed" if done or step.plan["left"] else "undone"
    step.state.update(
        go=False,
        pending=False,
        said=f"a task failed: {why}",
        worse=[],
        missed=[item["finding"]["check"] for item in step.acted()] if done else [],
        give_back={"state": state, "reason": f"remediation failed: {why}" if state == "resumed" else ""},
    )
    step.log("verified", "failed", why)


def _close(step: Step) -> None:
    """Log, before the node is given back or kept out, which of the two it is, and why it is kept out.

    A node that was drained, and then not touched, goes back.
    """
    back = step.state.get("give_back") or {"state": "undone", "reason": ""}
    step.state["give_back"] = back
    if not back["reason"]:
        if step.state["drain"]:
            step.log("resumed", "begun")
        return
    drain = step.state["drain"]
    step.log("left_drained" if drain else "refused", "begun" if drain else "held", back["reason"])


def _closed(step: Step) -> None:
    """Log the end. drain: result of slurm_node; {} where nothing had to be given back."""
    back = step.state["give_back"]
    drain = result_schema.given(step.arguments["drain"], "slurm_node")
    action = "left_drained" if back["reason"] else "resumed"
    if step.state["drain"]:
        unknown = [f for f in drain.get("findings") or [] if f["check"] == slurm.STATE.id]
        good = "findings" in drain and not unknown
        step.state["kept"] = bool(drain.get("ours"))
        why = str(unknown[0]["have"]) if unknown else str(drain.get("msg") or "")
        step.log(action, "done" if good else "failed", why)
        step.state["lost"] = "" if good else why or "no response from Slurm"
    step.state["closed"] = True


def _report(step: Step) -> None:
    read = step.variables.get("remediate_read_result") or {}
    wrong = (read.get("wrong") or {}).get(step.host, "")
    step.result = remediate_report.result(step.plan, step.state, wrong, step.check_mode)


_PHASES = {
    "begin": _begin,
    "drain": _drain,
    "drained": _drained,
    "measure": _measure,
    "measured": _measured,
    "role": _role,
    "role_done": _role_done,
    "reboot": _reboot,
    "rebooted": _rebooted,
    "verify": _verify,
    "wait": _wait,
    "judge": _judge,
    "failed": _failed,
    "close": _close,
    "closed": _closed,
    "report": _report,
}


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {
        "phase": {"type": "str", "choices": list(_PHASES), "required": True},
        "results": {"type": "path", "required": True},
        "role": {"type": "str", "default": ""},
        "said": {"type": "str", "default": ""},
        **{name: {"type": "dict", "default": {}} for name in _GIVEN},
    }

    def act(self, variables: Values, given: Values) -> Values:
        step = Step(variables, given, bool(self._task.check_mode))
        try:
            _PHASES[given["phase"]](step)
        except OSError as error:
            msg = f"{error_text(error)}; nothing is done without a record of it"
            return {"failed": True, "msg": msg}
        except ParseError as error:
            return {"failed": True, "msg": str(error)}
        return {**step.registered(), "changed": False}
