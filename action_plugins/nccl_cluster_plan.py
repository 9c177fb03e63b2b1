# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide over all hosts of the play which are measured together. Documented in library/nccl_cluster_plan.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_plan, cluster_wanted, nodeset, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_plan import Member, Settings
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import kind, values
from ansible_collections.busbar.fabric.plugins.plugin_utils.intent import ADDRESS

display = Display()
# Settings of a host whose inventory could not be read.
UNKNOWN = Settings("unknown", "", (), (0, 0), 0)
AGAIN = "run it again for this host with -vvv"
NOT_READ = ("its inventory was not read", AGAIN)
NO_NVLINKS = "set another nccl_benchmark_scope for it, or name the trays of the rack alone with --limit"
# Characters of host names in a line, and of reasons.
ROOM, REASONS = 120, 300


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        hostvars = variables["hostvars"]
        there = set(variables["ansible_play_hosts"])
        kinds = Kinds()
        try:
            members, due = [], {}
            for host in variables["ansible_play_hosts_all"]:
                of_host = hostvars.raw_get(host)
                if values(of_host).get("nccl_benchmark_scope") == "node":
                    continue
                members.append(kinds.member(host, of_host, host in there))
                due[host] = reason(of_host)
            # A group none of whose members is due keeps its last results.
            wanted = {one.settings for one in members if due[one.host] and one.unfit is None}
            asked = [one for one in members if one.settings in wanted or one.unfit is not None]
            plan = cluster_plan.plan(asked, kinds.measures, kinds.expected)
        except ParseError as error:
            return {"failed": True, "msg": str(error)}
        reasons = {host: due[host] for host in plan.hosts if due[host]}
        standing = [one.host for one in members if one.host not in plan.left_out and one.host not in plan.untested]
        text = summarise(plan, reasons, bool(self._task.check_mode), standing)
        display.display("\n".join(map(printable, text.split("\n"))))
        return {"changed": False, **task_values(plan, reasons)}


class Kinds:
    """Settings of hosts, with profile, bars and predictions read once for all hosts with the same."""

    def __init__(self) -> None:
        self._of_settings: dict[Settings, cluster_wanted.Kind] = {}
        self._expected: dict[tuple[Settings, cluster_plan.Measure, int], cluster_plan.Expected] = {}

    def settings(self, of_host: Mapping[str, Any]) -> Settings:
        """Return a host's settings. Raises ParseError."""
        intent = of_host.get("busbar_intent") or {}
        if "values" not in intent or "profile" not in intent:
            return UNKNOWN
        found, profile = cluster_wanted.settings(intent, kind(of_host))
        if found not in self._of_settings:
            bars = intent_action.bars_of(Path(of_host.get("inventory_dir") or "."))
            name = str(intent["profile_name"])
            self._of_settings[found] = cluster_wanted.Kind(found, intent["values"], profile, name, bars)
        return found

    def of_scope(self, settings: Settings, scope: str) -> cluster_wanted.Kind:
        """Return the settings of hosts, whose inventory was read, for another scope than theirs."""
        kind = next(one for found, one in self._of_settings.items() if replace(found, scope=settings.scope) == settings)
        return replace(kind, settings=replace(kind.settings, scope=scope))

    def measures(self, settings: Settings, nodes: int) -> list[cluster_plan.Measure]:
        return self._of_settings[settings].measures(nodes)

    def expected(self, settings: Settings, measure: cluster_plan.Measure, nodes: int) -> cluster_plan.Expected:
        key = (settings, measure, nodes)
        if key not in self._expected:
            self._expected[key] = self._of_settings[settings].expected(measure, nodes)
        return self._expected[key]

    def _no_such(self, settings: Settings) -> tuple[str, str] | None:
        """Return why the inventory itself keeps a host out, and what to do; None otherwise."""
        if settings is UNKNOWN:
            return NOT_READ
        kind = self._of_settings[settings]
        if settings.scope == NVLINK_DOMAIN and kind.profile.nvlink_domain is None:
            return f"profile {kind.name} declares no NVLinks to other nodes (nvlink_domain)", NO_NVLINKS
        return None

    def member(self, host: str, of_host: Mapping[str, Any], there: bool) -> Member:
        """Return the host as a member. there: it is still in the play. Raises ParseError."""
        wanted = values(of_host)
        settings = self.settings(of_host)
        read = result_schema.given(of_host.get("nccl_cluster_member_result"), "nccl_cluster_member")
        facts = read.get("member") or {}
        address = address_of(host, wanted)
        return Member(
            host=host,
            settings=settings,
            name=facts.get("name", ""),
            address=address,
            leaf=wanted.get("busbar_leaf") or "",
            build=facts.get("build", ""),
            rails={int(number): (one["device"], one["gpu"]) for number, one in (facts.get("rails") or {}).items()},
            unfit=unfit(of_host, read, address, there) or self._no_such(settings),
            domain=facts.get("domain", ""),
            no_domain=facts.get("no_domain", ""),
        )


def address_of(host: str, wanted: Mapping[str, Any]) -> str:
    """Return the host's address for the launcher, from the inventory alone: a node's own result is not trusted."""
    if wanted.get("nccl_benchmark_address"):
        return str(wanted["nccl_benchmark_address"])
    if wanted.get("nccl_benchmark_launcher") == "srun":
        return str(wanted.get("drain_slurm_node") or host.partition(".")[0])
    return host


def unfit(of_host: Mapping[str, Any], read: Mapping[str, Any], address: str, there: bool) -> tuple[str, str] | None:
    """Return why a host cannot take part, and what to do; None where it can. read: result of nccl_cluster_member."""
    lock = result_schema.given(of_host.get("node_lock_result"), "node_lock")
    if lock.get("held") is False:
        return "another run works on it", "run it again when that run has ended"
    if read.get("unreachable") or lock.get("unreachable"):
        return "unreachable", "check that the node is up and that ssh to it works"
    if read.get("failed"):
        return " ".join(str(read.get("msg")).split())[:REASONS], AGAIN
    if "member" not in read or not there:
        return "it was lost before it could be queried", AGAIN
    found = read.get("unfit") or []
    if found:
        more = " (and %d more)" % (len(found) - 1) if len(found) > 1 else ""
        return found[0]["have"][:REASONS] + more, found[0]["fix"] or AGAIN
    if ADDRESS.fullmatch(address) is None:
        return f"{address!r} is not an address for a launcher", "set nccl_benchmark_address for this host"
    return None


def reason(of_host: Mapping[str, Any]) -> str:
    """Return why a host is to be measured, by nccl_benchmark_when; "" where its last result is kept."""
    when = values(of_host).get("nccl_benchmark_when", "changed")
    if when == "always":
        return "nccl_benchmark_when is always"
    if when == "never":
        return ""
    stored = result_schema.given(of_host.get("nccl_cluster_stored"), "nccl_cluster_record")
    return str(stored.get("due", "its last result is unknown"))


def task_values(plan: cluster_plan.Plan, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables that the tasks read. ``rounds``: head -> job, of each."""
    findings = {host: [one.to_dict() for one in found] for host, found in plan.findings().items()}
    return {
        "rounds": [{job.head: job.to_dict() for job in jobs} for jobs in plan.rounds],
        "measured": list(plan.hosts),
        "left_out": [{"host": host, "reason": why} for host, (why, _fix) in plan.left_out.items()],
        "member_findings": findings,
        "one_leaf": sorted(plan.one_leaf),
        "due": dict(reasons),
        "begun": time.time(),
    }


def summarise(
    plan: cluster_plan.Plan, reasons: Mapping[str, str], check_mode: bool, standing: Sequence[str] = ()
) -> str:
    """Describe for the user which runs are made, over which hosts, why, and which hosts are left out.

    standing: hosts whose last result is kept, where nothing is run.
    """
    jobs = [job for jobs in plan.rounds for job in jobs]
    verb, singular = ("would be run", "would be run") if check_mode else ("are run", "is run")
    lines = []
    if jobs:
        first = next(iter(reasons.values()), "")
        lines.append(
            "BETWEEN NODES: %s in %s %s over %d nodes (%s): %s"
            % (
                *(_many(len(jobs), "job"), _many(len(plan.rounds), "round"), verb if len(jobs) > 1 else singular),
                *(len(plan.hosts), nodeset.brief(plan.hosts, ROOM), first),
            )
        )
        kinds = dict.fromkeys(job.name if len(jobs) <= 4 else f"{job.scope} {job.collective}" for job in jobs)
        lines.append("  " + ", ".join(kinds))
    else:
        why = f"the last results stand of {nodeset.brief(standing, ROOM)}" if standing else "no host can be measured"
        lines.append(f"BETWEEN NODES: nothing {'would be' if check_mode else 'is'} measured, {why}")
    if plan.one_leaf:
        lines.append("  busbar_leaf is not set: all nodes are taken for one leaf")
    alike = nodeset.grouped((why, host) for host, (why, _fix) in plan.left_out.items())
    lines += [f"  left out: {nodeset.brief(hosts, ROOM)}: {why}" for why, hosts in alike.items()]
    return "\n".join(lines)


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
