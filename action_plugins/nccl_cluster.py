# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join all jobs between nodes: findings of each host, the record, the table. Documented in library/nccl_cluster.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    benchmark_results,
    cluster_judge,
    cluster_plot,
    cluster_record,
    cluster_table,
    due_roles,
    result_schema,
    results_compare,
    screen,
    suite,
    terminal,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import values

display = Display()
# Roles whose findings may explain a slow job.
EARLIER = tuple(role.name for role in suite.SUITE if role.name != suite.CLUSTER)


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"path": {"type": "path", "default": ""}}

    def act(self, variables: Values, given: Values) -> Values:
        hostvars = variables["hostvars"]
        raw = {host: hostvars.raw_get(host) for host in variables["ansible_play_hosts_all"]}
        # Read raw: as an option it would template every job.
        plan = raw[variables["inventory_hostname"]]["nccl_cluster_plan_result"]
        path = given["path"]
        anything = bool(plan["rounds"]) and not self._task.check_mode
        result: Values = {"changed": False, "hosts": {}, "records": {}, "path": "", "search": False}
        if not anything:
            check_mode = bool(self._task.check_mode)
            result["hosts"] = {
                host: stored_result(of_host, [] if check_mode else members_of(plan, host))
                for host, of_host in raw.items()
            }
            print_last(path)
            return result
        record, result["hosts"], result["records"] = joined(plan, raw, time.time())
        result["search"] = cluster_judge.misses(record.findings) and localise_enabled(raw)
        display.display(f"\n{_table(record, path)}\n")
        if path:
            now = benchmark_results.of_record(record, "this run")
            said, before = results_compare.with_last(cluster_record.folder(path), now, terminal.COLUMNS)
            if said:
                display.display(said + "\n")
            try:
                folder = cluster_record.write(path, record)
                plots, problem = cluster_plot.plot(folder, record, before)
            except (OSError, ParseError) as error:
                return {**result, "failed": True, "msg": f"nccl_benchmark_results_path: {error_text(error)}"}
            display.display(f"results: {folder}" + "".join(f" {plot.name}" for plot in plots))
            if problem:
                display.display(problem)
            result["path"] = str(folder)
        return result


def localise_enabled(raw: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the site lets the search for the slow node start automatically."""
    return all(values(of_host).get("nccl_benchmark_localise", True) for of_host in raw.values())


def stored_result(of_host: Mapping[str, Any], members: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the result for the verdict of a host that was not measured now: its last record, where that is good.

    members: otherwise why it was left out; none in check mode, which measures nothing.
    """
    stored = result_schema.given(of_host.get("nccl_cluster_stored"), "nccl_cluster_record")
    if members and (stored.get("due") or not stored):
        return Plan(tuple(members)).result()
    return stored or Plan().result()


def members_of(plan: Mapping[str, Any], host: str) -> list[Finding]:
    """Return the plan's findings on whether a host takes part."""
    return [from_dict(dict(item)) for item in plan["member_findings"].get(host, [])]


def print_last(path: str) -> None:
    """Print the table of the last record on this control node, if there is one."""
    if not path or not cluster_record.folder(path).exists():
        return
    try:
        record = cluster_record.read(path)
    except (OSError, ParseError) as error:
        display.display(f"the last record of a benchmark between nodes cannot be read: {error_text(error)}")
        return
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.finished))
    display.display(
        f"\nLAST RESULT BETWEEN NODES, not of this run: scope {record.scope}, measured {when}\n{_table(record, path)}\n"
    )


def _table(record: cluster_record.Record, path: str) -> str:
    text, width = cluster_table.render(record, terminal.COLUMNS), terminal.COLUMNS
    return screen.cut(text, width, f"-v, or {path or 'nccl_benchmark_results_path'}", display.verbosity > 0)


def joined(
    plan: Mapping[str, Any], raw: Mapping[str, Mapping[str, Any]], now: float
) -> tuple[cluster_record.Record, dict[str, Any], dict[str, Any]]:
    """Return the record; host -> its part of the verdict; host -> what the node is to store.

    plan: returned by nccl_cluster_plan.   raw: host -> its registered results.
    """
    jobs = [job for jobs in plan["rounds"] for job in jobs.values()]
    results, failures = answers(jobs, raw)
    measured = set(plan["measured"])
    earlier = {host: findings_of(raw[host]) for host in raw if host in measured}
    judged = cluster_judge.judge(jobs, results, failures, earlier, advise=not localise_enabled(raw))
    hosts: dict[str, Any] = {}
    for host, of_host in raw.items():
        members = members_of(plan, host)
        if host not in measured:
            hosts[host] = stored_result(of_host, members)
            continue
        found = [*members, *judged.findings.get(host, ())]
        hosts[host] = Plan(tuple(found)).result()
        hosts[host]["passed"] += judged.passed.get(host, {})
        hosts[host]["evidence"].update(judged.passed.get(host, {}))
    every = [item for host in hosts for item in hosts[host].get("findings") or []]
    record = cluster_record.Record(
        simulated=any(result.get("simulated") for result in results.values()),
        begun=plan["begun"],
        finished=now,
        scope=jobs[0]["scope"],
        launcher=cluster_record.Launcher(kind=str(values(raw[jobs[0]["head"]])["nccl_benchmark_launcher"])),
        asked=tuple(raw),
        left_out=tuple(cluster_record.LeftOut(**one) for one in plan["left_out"]),
        jobs=judged.jobs,
        scaling=judged.scaling,
        findings=tuple(from_dict(dict(item)) for item in {item["id"]: item for item in every}.values()),
        passed=tuple(dict.fromkeys(name for host in hosts for name in hosts[host].get("passed") or [])),
    )
    return record, hosts, cluster_judge.member_records(jobs, judged.findings, now)


def answers(
    jobs: Sequence[Mapping[str, Any]], raw: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return job name -> valid result of nccl_perf; job name -> why there is no result."""
    said: dict[tuple[str, str], Any] = {}
    for host, of_host in raw.items():
        for one in of_host.get("nccl_cluster_measured") or []:
            said[host, str(one["name"])] = one["result"]
    results, failures = {}, {}
    for job in jobs:
        name, head = str(job["name"]), str(job["head"])
        found = result_schema.given(said.get((head, name)), "nccl_perf")
        if set(found.get("passed", ())) - found.get("evidence", {}).keys():
            found = {"failed": True, "msg": result_schema.SAID + "evidence: a passed check has none"}
        if found and not found.get("failed") and "findings" in found:
            results[name] = found
            continue
        steps = ("nccl_cluster_done", "nccl_cluster_started")
        last = [found, *(due_roles.mapping(raw[head].get(each)) for each in steps)]
        texts = [str(one["msg"]) for one in last if one.get("msg")]
        why = " ".join((texts or ["its task ended without a result, or was not run"])[0].split())[:300]
        failures[name] = f"{head}: {why}"
    return results, failures


def findings_of(of_host: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of other roles of the run on a host."""
    results = due_roles.results(of_host, EARLIER, EARLIER[0], nightly=False)
    return [from_dict(item) for role in EARLIER for item in result_schema.findings_of(results.get(role))]
