# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the accused nodes, and plan the repairs over all of them. Documented in library/remediate.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    action_log,
    due_roles,
    findings_file,
    nodeset,
    remediate,
    remediate_judge,
    suspects,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.suspects import Suspect

display = Display()
_ROOM = 180


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {
        "phase": {"type": "str", "choices": ["read", "plan"], "required": True},
        "findings": {"type": "list", "elements": "path", "default": []},
        "results": {"type": "path", "required": True},
        "batches": {"type": "list", "elements": "raw", "default": [1, "10%"]},
    }

    def act(self, variables: Values, given: Values) -> Values:
        if not given["results"]:
            why = (
                "nccl_benchmark_results_path is empty: nothing is done to a node without a log of it; name a directory"
            )
            return {"failed": True, "msg": why}
        try:
            phase = self._read if given["phase"] == "read" else self._plan
            return {**phase(given, variables), "changed": False}
        except (OSError, ParseError) as error:
            return {"failed": True, "msg": error_text(error)}

    def _read(self, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        inventory = [str(host) for host in variables["groups"].get(findings_file.GROUP) or []]
        there = set(variables["ansible_play_hosts_all"])
        accused = suspects.read(arguments["findings"], set(inventory))
        log = action_log.read(arguments["results"]).entries
        left = action_log.open_drains(log)
        hosts = set(accused.hosts) | set(left)
        told = accused.notes()
        outside = [host for host in inventory if host in hosts and host not in there]
        if outside:
            told.append(f"left out by --limit: {nodeset.brief(outside, _ROOM)}")
        gone = [printable(host)[:80] for host in left if host not in inventory]
        if gone:
            told.append(f"left drained by an earlier run, and not in the inventory: {nodeset.brief(gone, _ROOM)}")
        hostvars = variables["hostvars"]
        fit = [host for host in inventory if host in there]
        leaves = {host: str(hostvars.raw_get(host).get("busbar_leaf") or "") for host in fit}
        pairs = remediate.partners(accused.accusations, fit, leaves)
        if pairs and self._task.check_mode:
            told.append(f"a run measures them with good nodes first: {nodeset.brief([*pairs], _ROOM)}")
        for line in told:
            display.display(f"REMEDIATION: {line}")
        return {
            "pairs": pairs,
            "drained": sorted({*left, *action_log.held(log)}),
            # In check mode nothing is measured.
            "paired": [] if self._task.check_mode else remediate.good_first(pairs),
            "accused": [host for host in inventory if host in hosts and host in there],
            "accusations": [{**asdict(one), "finding": one.finding.to_dict()} for one in accused.accusations],
            "wrong": dict(accused.wrong),
        }

    def _plan(self, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        now = time.time()
        hostvars = variables["hostvars"]
        hosts = [str(host) for host in variables["ansible_play_hosts_all"]]
        inventory = [str(host) for host in variables["groups"].get(findings_file.GROUP) or []]
        read = hostvars.raw_get(hosts[0])["remediate_read_result"]
        accusations = [_suspect(one) for one in read["accusations"]]
        log = action_log.read(arguments["results"])
        if log.torn:
            display.warning(f"{action_log.file(arguments['results'])}: a crash has cut off {log.torn} of its lines")
        found = []
        share = 0.0
        for host in hosts:
            raw = hostvars.raw_get(host)
            limits = _limits(raw)
            share = max(share, limits.share)
            fresh = remediate.fresh(due_roles.answer(raw))
            if host in read["paired"] and "localise_result" in raw:
                fresh = replace(remediate_judge.with_measured(fresh, raw["localise_result"]), searched=True)
            own = [one for one in accusations if one.host == host]
            own += _interrupted(host, own, fresh, log.entries, now)
            planned = remediate.of_host(host, own, fresh, limits, log.entries, now)
            found.append(remediate.placed(planned, _value(raw, "busbar_leaf", "")))
        plan = remediate.plan(found, inventory, share, log.entries)
        check_mode = bool(self._task.check_mode)
        for line in remediate.plan_lines(plan, check_mode):
            display.display(printable(line))
        if not check_mode:
            run = node_lock.this_run().id
            action_log.append(arguments["results"], _log_entries(plan, now, run))
        sizes = remediate.batches(arguments["batches"], len(plan.order))
        record = (hostvars.raw_get(hosts[0]).get("localise_round_result") or {}).get("record")
        figures = {name: remediate_judge.between(record, name) for name in plan.hosts}
        return {
            "hosts": {name: {**host.to_dict(), "figure": figures[name]} for name, host in plan.hosts.items()},
            "order": list(plan.order),
            "batches": sizes,
            "provision": list(remediate.PROVISION),
        }


def _value(raw: Mapping[str, Any], name: str, default: Any) -> Any:
    return ((raw.get("busbar_intent") or {}).get("values") or {}).get(name, default)


def _limits(raw: Mapping[str, Any]) -> remediate.Limits:
    given = {
        "max_disruption": "busbar_max_disruption",
        "quarantine": "busbar_remediate_quarantine",
        "share": "busbar_remediate_max_share",
        "attempts": "busbar_remediate_max_attempts",
        "days": "busbar_remediate_window_days",
    }
    usual = remediate.Limits()
    values = {name: _value(raw, variable, getattr(usual, name)) for name, variable in given.items()}
    return remediate.Limits(**values, drains=_value(raw, "busbar_drain", "none") != "none")


def _suspect(data: Mapping[str, Any]) -> Suspect:
    lists = {name: tuple(data[name]) for name in ("partners", "evidence", "good")}
    return Suspect(**{**data, **lists, "finding": from_dict(data["finding"])})


def _interrupted(
    host: str, own: list[Suspect], fresh: remediate.CurrentResult, entries: tuple[Entry, ...], now: float
) -> list[Suspect]:
    """Return what a killed run was repairing on the host, as far as it is still wrong."""
    left = action_log.open_drains(entries).get(host)
    if left is None:
        return []
    of_run = {one.finding for one in entries if (one.host, one.run) == (host, left.run) and one.finding}
    known = {one.finding.id for one in own}
    return [
        Suspect(host, fresh.findings[name], action_log.NAME, now, fresh.boot_id)
        for name in sorted(of_run - known)
        if name in fresh.findings
    ]


def _log_entries(plan: remediate.Plan, now: float, run: str) -> list[Entry]:
    outcomes = {remediate.STALE: ("dropped", "done"), remediate.TOLD: ("refused", "held")}
    found = []
    for host in plan.hosts.values():
        for item in host.items:
            action, outcome = outcomes.get(item.verdict, ("asked", "done"))
            if host.refused and action == "asked":
                action, outcome = "refused", "held"
            found.append(
                Entry(
                    at=now,
                    run=run,
                    host=host.name,
                    action=action,
                    outcome=outcome,
                    boot_id=host.fresh.boot_id,
                    check=item.finding.check,
                    subject=item.finding.subject,
                    finding=item.finding.id,
                    why=host.refused or item.why,
                )
            )
    return found
