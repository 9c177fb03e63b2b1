# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remediate accused nodes: plan over all of them, then decide on each step of one. Documented in library/remediate.py.

What is known of all nodes is registered as ``remediate_read_result`` and ``remediate_plan_result``, what is known of
one as ``remediate_state``.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    codec,
    due_roles,
    findings_file,
    host_variables,
    nodeset,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import (
    accusations,
    action_log,
    machine,
    plan,
    proof,
    report,
    rollout,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.accusations import Accusation
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

display = Display()
_ROOM = 180
# Actions of the log for verdicts that lead to none.
_NOTHING_DONE = {plan.STALE: ("dropped", "done"), plan.REPORTED: ("refused", "held")}
_LIMITS = {
    "max_disruption": "busbar_max_disruption",
    "quarantine": "busbar_remediate_quarantine",
    "share": "busbar_remediate_max_share",
    "attempts": "busbar_remediate_max_attempts",
    "days": "busbar_remediate_window_days",
}


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {
        "phase": {"type": "str", "choices": ["read", "plan", "step", "failed", "report"], "required": True},
        "findings": {"type": "list", "elements": "path", "default": []},
        "results": {"type": "path", "required": True},
        "batches": {"type": "list", "elements": "raw", "default": [1, "10%"]},
        "message": {"type": "str", "default": ""},
    }

    def act(self, variables: Values, given: Values) -> Values:
        if not given["results"]:
            why = "nothing is done to a node without a log of it; name a directory"
            return {"failed": True, "msg": f"nccl_benchmark_results_path is empty: {why}"}
        phases = {"read": self._read, "plan": self._plan, "step": self._step, "failed": self._step}
        try:
            return {**phases.get(given["phase"], self._report)(variables, given), "changed": False}
        except OSError as error:
            return {"failed": True, "msg": f"{error_text(error)}; nothing is done without a record of it"}
        except ParseError as error:
            return {"failed": True, "msg": str(error)}

    # -- all nodes -----------------------------------------------------------------------------------------------------

    def _read(self, variables: Values, given: Values) -> Values:
        inventory = [str(host) for host in variables["groups"].get(findings_file.GROUP) or []]
        there = set(variables["ansible_play_hosts_all"])
        found = accusations.read(given["findings"], set(inventory))
        log = action_log.read(given["results"]).entries
        left = action_log.open_drains(log)
        hosts = {*found.hosts, *left}
        fit = [host for host in inventory if host in there]
        leaves = {host: str(variables["hostvars"].raw_get(host).get("busbar_leaf") or "") for host in fit}
        pairs = rollout.partners(found.accusations, fit, leaves)
        notes = {
            "not in the inventory's group gpu_nodes, so nothing is done there": found.strangers,
            "left out by --limit": [host for host in inventory if host in hosts - there],
            "left drained by an earlier run, and not in the inventory": [h for h in left if h not in inventory],
            "a run measures them with good nodes first": pairs if self._task.check_mode else (),
        }
        for note, names in notes.items():
            if names:
                display.display(f"REMEDIATION: {note}: {nodeset.brief([printable(n)[:80] for n in names], _ROOM)}")
        return {
            "pairs": pairs,
            "drained": sorted({*left, *action_log.held(log)}),
            # In check mode nothing is measured.
            "paired": [] if self._task.check_mode else rollout.good_first(pairs),
            "accused": [host for host in fit if host in hosts],
            "accusations": [asdict(one) for one in found.accusations],
            "wrong": dict(found.wrong),
        }

    def _plan(self, variables: Values, given: Values) -> Values:
        now = time.time()
        hostvars = variables["hostvars"]
        hosts = {str(host): hostvars.raw_get(host) for host in variables["ansible_play_hosts_all"]}
        inventory = [str(host) for host in variables["groups"].get(findings_file.GROUP) or []]
        read = variables["remediate_read_result"]
        accused = [codec.build(Accusation, one) for one in read["accusations"]]
        log = action_log.read(given["results"])
        if log.torn:
            display.warning(f"{action_log.file(given['results'])}: a crash has cut off {log.torn} of its lines")
        limits = {host: _limits(of_host) for host, of_host in hosts.items()}
        plans, results = [], {}
        for host, of_host in hosts.items():
            current = plan.current_result(due_roles.answer(of_host))
            search = _search(of_host, host) if host in read["paired"] else machine.Search()
            if search.result is not None:
                current = replace(proof.with_measured(current, search.result), searched=True)
            own = [one for one in accused if one.host == host]
            own += _interrupted(host, own, current, log.entries, now)
            leaf = host_variables.values(of_host).get("busbar_leaf", "")
            planned = plan.plan_node(host, own, current, limits[host], log.entries, now, leaf)
            plans.append(replace(planned, figure=proof.figure_between(search.record, host)))
            results[host] = current
        share = max((one.share for one in limits.values()), default=0.0)
        found = rollout.plan_rollout(plans, inventory, share, log.entries)
        for line in rollout.plan_lines(found, self._task.check_mode):
            display.display(printable(line))
        if not self._task.check_mode:
            run = node_lock.this_run().id
            action_log.append(
                given["results"], [_entry(one, item, now, run) for one in found.nodes.values() for item in one.items]
            )
        return {
            "hosts": {name: one.to_dict() for name, one in found.nodes.items()},
            "order": list(found.order),
            "batches": rollout.batches(given["batches"], len(found.order)),
            "provision": list(plan.PROVISION),
        }

    # -- one node ------------------------------------------------------------------------------------------------------

    def _step(self, variables: Values, given: Values) -> Values:
        """Return the next step; after a step that has failed whether there is one."""
        host = str(variables["inventory_hostname"])
        planned = variables["remediate_plan_result"]
        state = _state(variables)
        steps = machine.Remediation(
            codec.build(plan.NodePlan, planned["hosts"][host]),
            state or machine.State(),
            variables,
            node_lock.this_run().id,
            partial(accepted.standing, variables=variables),
            _search(variables, host),
        )
        if state is None and not self._task.check_mode:
            raw_get = variables["hostvars"].raw_get
            earlier = {name: _state(raw_get(name)) for name in planned["order"] if name != host}
            steps.begin({name: state for name, state in earlier.items() if state})
        if given["phase"] == "failed":
            steps.fail(given["message"])
            more = bool(steps.state.steps)
        else:
            steps.advance()
            more = bool(steps.state.step)
        if steps.entries:
            action_log.append(given["results"], steps.entries)
        role, tasks = steps.included
        return {"state": asdict(steps.state), "step": steps.state.step, "role": role, "tasks": tasks, "more": more}

    def _report(self, variables: Values, _given: Values) -> Values:
        host = str(variables["inventory_hostname"])
        planned = (variables.get("remediate_plan_result") or {}).get("hosts", {}).get(host)
        wrong = ((variables.get("remediate_read_result") or {}).get("wrong") or {}).get(host, "")
        of_host = codec.build(plan.NodePlan, planned) if planned else None
        return report.result(of_host, _state(variables) or machine.State(), wrong, self._task.check_mode)


def _state(variables: PlainView) -> machine.State | None:
    """Return a host's state, None before its first step."""
    state = (variables.get("remediate_state") or {}).get("state")
    return machine.State(**state) if state else None


def _search(variables: PlainView, host: str) -> machine.Search:
    """Return the last search that the host took part in in this run."""
    found = variables.get("localise_round_result") or {}
    return machine.Search((found.get("hosts") or {}).get(host), found.get("record"))


def _limits(of_host: PlainView) -> plan.Limits:
    values = host_variables.values(of_host)
    given = {name: values[variable] for name, variable in _LIMITS.items() if variable in values}
    return plan.Limits(**given, drains=values.get("busbar_drain", "none") != "none")


def _interrupted(
    host: str, own: list[Accusation], current: plan.CurrentResult, entries: tuple[Entry, ...], now: float
) -> list[Accusation]:
    """Return what a killed run was repairing on the host, as far as it is still wrong."""
    left = action_log.open_drains(entries).get(host)
    if left is None:
        return []
    of_run = {one.finding for one in entries if (one.host, one.run) == (host, left.run)}
    wanted = of_run.intersection(current.findings) - {one.finding.id for one in own}
    return [Accusation(host, current.findings[name], now, current.boot_id) for name in sorted(wanted)]


def _entry(planned: plan.NodePlan, item: plan.Item, now: float, run: str) -> Entry:
    """Return the log's entry on the verdict of one accusation."""
    action, result = _NOTHING_DONE.get(item.verdict, ("refused", "held") if planned.refused else ("asked", "done"))
    return planned.entry(run, action, result, planned.refused or item.why, item, at=now)
