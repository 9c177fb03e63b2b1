# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Play the benchmark between nodes: plan its rounds, measure them, judge all jobs together.

A group of hosts none of which is due keeps its last results. A job without a result costs its own hosts their verdict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

from .. import benchmark_results, busbw_plot, due_roles, nodeset, result_schema, results_compare, suite, terminal
from ..plain_data import Plain, PlainView
from . import cluster_judge, cluster_plan, cluster_plugin, cluster_record, cluster_table
from .cluster_wanted import Kinds
from .engine import Job, Measured, Result
from .members import Site

# Roles whose findings may explain a slow job.
EARLIER = tuple(role.name for role in suite.SUITE if role.name != suite.CLUSTER)
# Characters of host names in a line.
ROOM = 120
NO_RESULT = "its task ended without a result, or was not run"


@dataclass
class Outcome:
    """hosts: host -> its result for the verdict.   record: of what was measured now, None where nothing was.

    misses: a bar of several nodes was missed.
    """

    hosts: dict[str, Result]
    record: cluster_record.Record | None = None
    misses: bool = False
    stores: dict[str, Plain] = field(default_factory=dict)


def play(site: Site, kinds: Kinds, check_mode: bool) -> Outcome:
    """Measure what is due. Raises ParseError where the inventory is wrong."""
    begun = time.time()
    hosts = [host for host in site.variables if site.values(host).get("nccl_benchmark_scope") != "node"]
    stored = site.query("nccl_cluster", hosts, lambda host: _record_options(site, host), profile=False)
    members = kinds.members(site.query_members(hosts), hosts)
    due = {host: reason(site.values(host), stored.get(host, {})) for host in hosts}
    # A group none of whose members is due keeps its last results.
    wanted = {one.settings for one in members if due[one.host] and one.unfit is None}
    asked = [one for one in members if one.settings in wanted or one.unfit is not None]
    plan = cluster_plan.plan(asked, kinds.measures, kinds.expected)
    standing = [one.host for one in members if one.host not in plan.left_out and one.host not in plan.untested]
    reasons = {host: due[host] for host in plan.hosts if due[host]}
    for line in summarise(plan, reasons, check_mode, standing):
        site.say(printable(line))
    findings = plan.findings()
    if not plan.rounds or check_mode:
        left = {} if check_mode else findings
        return Outcome({host: stored_result(stored.get(host, {}), left.get(host, ())) for host in site.variables})
    measured: list[Measured] = []
    for number, jobs in enumerate(plan.rounds, 1):
        results = site.run([job.call(site.values(job.head)) for job in jobs])
        of_round = [judged_result(job, result) for job, result in zip(jobs, results, strict=True)]
        for line in cluster_table.round_lines(number, len(plan.rounds), of_round):
            site.say(line)
        measured += of_round
    return joined(site, plan, findings, stored, measured, begun)


def judged_result(job: Job, result: Result) -> Measured:
    """Return a job with its result, or with the reason why that is none."""
    if set(result.get("passed", ())) - result.get("evidence", {}).keys():
        result = {"failed": True, "msg": result_schema.SAID + "evidence: a passed check has none"}
    if "findings" in result and not result.get("failed"):
        return Measured(job, result)
    why = "unreachable" if result.get("unreachable") else str(result.get("msg") or NO_RESULT)
    return Measured(job, {}, f"{job.head}: {' '.join(why.split())[:300]}")


def joined(
    site: Site,
    plan: cluster_plan.Plan,
    members: Mapping[str, Sequence[Finding]],
    stored: Mapping[str, Result],
    measured: Sequence[Measured],
    begun: float,
) -> Outcome:
    """Judge all jobs together. members: host -> whether it takes part.   stored: host -> its last record's result."""
    over, now = set(plan.hosts), time.time()
    earlier = {host: findings_of(of_host) for host, of_host in site.variables.items() if host in over}
    plugins = {host: cluster_plugin.declared(site.values(host)) for host in plan.hosts}
    judged = cluster_judge.judge(measured, earlier, not localise_enabled(site), plugins)
    hosts: Plain = {}
    for host in site.variables:
        if host in over:
            passed = judged.passed.get(host, {})
            hosts[host] = Plan((*members.get(host, ()), *judged.findings.get(host, ()))).result()
            hosts[host]["passed"] += passed
            hosts[host]["evidence"].update(passed)
        else:
            hosts[host] = stored_result(stored.get(host, {}), members.get(host, ()))
    every = {item["id"]: item for host in hosts for item in hosts[host].get("findings") or []}
    first = measured[0].job
    record = cluster_record.Record(
        simulated=any(one.result.get("simulated") for one in measured),
        begun=begun,
        finished=now,
        scope=first.scope,
        launcher=cluster_record.Launcher(kind=str(site.values(first.head)["nccl_benchmark_launcher"])),
        asked=tuple(site.variables),
        left_out=tuple(cluster_record.LeftOut(host=host, reason=why) for host, (why, _fix) in plan.left_out.items()),
        jobs=judged.jobs,
        scaling=judged.scaling,
        findings=tuple(from_dict(dict(item)) for item in every.values()),
        passed=tuple(dict.fromkeys(name for host in hosts for name in hosts[host].get("passed") or [])),
        net_plugin=plugins.get(first.head, ""),
    )
    stores = cluster_judge.member_records([one.job for one in measured], judged.findings, now)
    misses = cluster_judge.misses(record.findings) and localise_enabled(site)
    return Outcome(hosts, record, misses, stores)


def store(site: Site, stores: Mapping[str, PlainView]) -> None:
    """Leave on the nodes when and among which hosts they were measured, for the nightly check."""
    site.query(
        "nccl_cluster",
        stores,
        lambda host: {**_record_options(site, host), "measured": stores[host]},
        profile=False,
    )


def write(site: Site, record: cluster_record.Record, path: str) -> None:
    """Write record and plots. path: nccl_benchmark_results_path. Raises OSError, ParseError."""
    results = benchmark_results.of_record(record, "this run")
    results_compare.publish(
        cluster_record.folder(path),
        results,
        lambda: cluster_record.write(path, record),
        lambda folder: busbw_plot.plot_results(folder, results, f"NCCL bus bandwidth, scope {record.scope}"),
        site.say,
    )


def localise_enabled(site: Site) -> bool:
    """Return whether the site lets the search for the slow node start automatically."""
    return all(site.values(host).get("nccl_benchmark_localise", True) for host in site.variables)


def stored_result(stored: Result, members: Sequence[Finding] = ()) -> Result:
    """Return the result for the verdict of a host that was not measured now: its last record, where that is good.

    members: otherwise why it was left out; none in check mode, which measures nothing.
    """
    if members and (stored.get("due") or not stored):
        return Plan(tuple(members)).result()
    return stored or Plan().result()


def reason(values: PlainView, stored: Result) -> str:
    """Return why a host is to be measured, by nccl_benchmark_when; "" where its last result is kept."""
    when = values.get("nccl_benchmark_when", "changed")
    if when == "always":
        return "nccl_benchmark_when is always"
    return "" if when == "never" else str(stored.get("due", "its last result is unknown"))


def findings_of(of_host: PlainView) -> list[Finding]:
    """Return the findings of other roles of the run on a host."""
    results = due_roles.results(of_host, EARLIER, EARLIER[0], nightly=False)
    return [from_dict(item) for role in EARLIER for item in result_schema.findings_of(results.get(role))]


def summarise(
    plan: cluster_plan.Plan, reasons: Mapping[str, str], check_mode: bool, standing: Sequence[str] = ()
) -> list[str]:
    """Describe for the user which runs are made, over which hosts, why, and which hosts are left out.

    standing: hosts whose last result is kept, where nothing is run.
    """
    jobs = [job for jobs in plan.rounds for job in jobs]
    if jobs:
        counts = f"{terminal.counted(len(jobs), 'job')} in {terminal.counted(len(plan.rounds), 'round')}"
        over = (
            f"{'would be run ' if check_mode else ''}over {len(plan.hosts)} nodes ({nodeset.brief(plan.hosts, ROOM)})"
        )
        lines = [f"BETWEEN NODES: {counts} {over}: {next(iter(reasons.values()), '')}"]
        kinds = dict.fromkeys(job.name if len(jobs) <= 4 else f"{job.scope} {job.collective}" for job in jobs)
        lines.append("  " + ", ".join(kinds))
    else:
        why = f"the last results stand of {nodeset.brief(standing, ROOM)}" if standing else "no host can be measured"
        lines = [f"BETWEEN NODES: nothing to measure, {why}"]
    if plan.one_leaf:
        lines.append("  busbar_leaf is not set: all nodes are taken for one leaf")
    alike = nodeset.grouped((why, host) for host, (why, _fix) in plan.left_out.items())
    lines += [f"  left out: {nodeset.brief(hosts, ROOM)}: {why}" for why, hosts in alike.items()]
    return lines


def _record_options(site: Site, host: str) -> Plain:
    values = site.values(host)
    scope, days = values["nccl_benchmark_scope"], values["busbar_baseline_max_age_days"]
    return {"phase": "record", "scope": scope, "max_age_days": days}
