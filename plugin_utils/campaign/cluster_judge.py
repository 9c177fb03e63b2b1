# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the jobs of a benchmark between nodes: one record, and the findings of every host that took part.

nccl_perf judges a job over its repeats. Here its hosts get its findings, in equal words, so that a thousand hosts are
one line; latency and scaling are judged; a job without a result makes its hosts unknown, and no others. Pure.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import STATES, Finding, from_dict, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as lldp
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import OVER_NVLINK

from .. import nodeset, slowdown_causes
from ..fleet import lldp_leaf
from . import cluster_plugin, cluster_record
from .cluster_record import Row, Scaling
from .engine import Job, Measured

# Least efficiency relative to the fewest nodes; each figure is a part of its prediction.
EFFICIENT = 0.90
# Share of the best figure that another number of queue pairs has to reach.
AS_GOOD = 0.95
# Possible causes of a bad job between nodes on one of them, the likeliest first: checks of other roles.
CAUSES = (
    *("gpudirect.", "platform.rail", "consistency.", "perftest.", "rail_ping.", "counters.", "roce_qos."),
    *(
        "netdev_mtu.",
        *lldp.SLOWING,
        lldp_leaf.SWAPPED.id,
        lldp_leaf.LEAF.id,
        "multirail.",
        *slowdown_causes.SLOWED,
        "pcie_path.",
        "iommu.",
        "nccl_conf.",
    ),
    *("host_limits.", "platform.", "nic_firmware.", "nccl_tests.", "nccl_perf."),
)
# Possible causes of a job over the NVLinks of a domain, which no rail carries.
NVLINK_CAUSES = (
    "imex.",
    *slowdown_causes.STOPPED,
    *(one for one in slowdown_causes.SLOWED if one not in slowdown_causes.RAIL),
    *("platform.gpu", "gpudirect.", "iommu.", "nccl_conf.", "host_limits.", "nccl_tests.", "nccl_perf."),
)
# Hosts with a cause that a finding names, and characters of host names.
_NAMED, _ROOM = 3, 60
_SOURCE = "nccl-tests over several nodes"
LOCALISE = "run ansible-playbook playbooks/localise.yml -i INVENTORY, which finds the node, rail, rank or leaf"
_AGAIN = "then run ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_scope=SCOPE"

JOB = Check(
    "nccl_cluster.job",
    severity="critical",
    why="a job without a result proves nothing about its nodes",
    fix="run it again with -vvv; the output of the job is in /var/lib/busbar/nccl_cluster on the first of its nodes",
)
"Did every job between nodes give a result"

BAR = Check("nccl_cluster.bar", why="a bandwidth without a bar proves nothing about the network")
"Is there a bar between nodes for this platform, scope and collective, published or derived from a prediction"

LATENCY = Check(
    "nccl_cluster.latency",
    why="small messages of every step wait for it: bandwidth does not show a slow path through host memory or TCP",
    fix="look for CPU frequency governors and C-states, for IRQs and ranks on the wrong NUMA node, and for congestion"
    " on the switches; " + _AGAIN,
)
"Do the smallest messages between nodes take no longer than their bar"

SCALING = Check(
    "nccl_cluster.scaling",
    why="fast over two nodes and slow over all: a leaf, an uplink or a node is slow that pairs do not show",
    fix="measure nccl_benchmark_scope: leaf and pair, compare the leaves and the uplinks' counters; "
    + _AGAIN.replace("SCOPE", "cluster"),
)
"""Is the bandwidth over more nodes, each as a part of its prediction, at least 0.90 of that over the fewest"""

QUEUE_PAIRS = Check(
    "nccl_cluster.queue_pairs",
    severity="minor",
    why="a queue pair is one flow: with few flows some uplinks are full while others are idle",
    fix='set nccl_conf_extra: {NCCL_IB_QPS_PER_CONNECTION: "NUMBER"}; then run site.yml --tags nccl_conf; '
    + _AGAIN.replace("SCOPE", "cluster"),
)
"""Is the number of queue pairs per connection that jobs use within 5 % of the best of `nccl_benchmark_qps`"""


# Wrong values have no cause in other roles' findings: no setting makes a sum wrong.
_UNEXPLAINED = (perf.CORRECT.id, BAR.id)
# What a search for the slow node explains.
_SLOW = (perf.BUSBW.id, SCALING.id)


@dataclass(frozen=True)
class Judged:
    """findings: host -> its findings, ok or not.   jobs, scaling: for the record.

    passed: host -> id of an ok check of nccl_perf -> value and source.
    """

    findings: Mapping[str, tuple[Finding, ...]]
    jobs: tuple[cluster_record.Job, ...]
    scaling: tuple[Scaling, ...]
    passed: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)


def judge(
    measured: Sequence[Measured],
    earlier: Mapping[str, Sequence[Finding]],
    advise: bool = False,
    plugins: Mapping[str, str] | None = None,
) -> Judged:
    """Judge jobs. earlier: host -> findings of other roles.

    advise: a missed bar advises the search for the slow node, which does not start automatically.
    plugins: host -> network plugin that its inventory declares.
    """
    trays = {host for one in measured for host in one.job.hosts if one.job.scope == NVLINK_DOMAIN}
    causes = {
        host: cause
        for host, found in earlier.items()
        if (cause := _root(found, NVLINK_CAUSES if host in trays else CAUSES)) is not None
    }
    of_job: dict[str, list[Finding]] = {}
    passes: dict[str, dict[str, Sequence[str]]] = {}
    for one in measured:
        found, passed = _of_job(one, (plugins or {}).get(one.job.head, ""))
        if advise and len(one.job.hosts) > 1:
            found = [replace(each, fix=f"{LOCALISE}; {each.fix}") if _is_slow(each) else each for each in found]
        of_job[one.job.name] = found
        for host in one.job.hosts:
            passes.setdefault(host, {}).update(passed)
    scaling = _scaling(measured, of_job)
    _compare_queue_pairs(measured, of_job)
    of_host: dict[str, list[Finding]] = {}
    for one in measured:
        shared = [_name_causes(finding, one.job.hosts, causes) for finding in of_job[one.job.name]]
        for host in one.job.hosts:
            of_host.setdefault(host, []).extend(shared)
    findings = {host: tuple(_followed(found, causes.get(host))) for host, found in of_host.items()}
    return Judged(findings, tuple(_recorded(one, of_job[one.job.name]) for one in measured), scaling, passes)


def misses(findings: Iterable[Finding]) -> bool:
    """Return whether a bar of several nodes was missed: something in the network between them is slow."""
    return any(map(_is_slow, findings))


def _is_slow(finding: Finding) -> bool:
    return finding.check in _SLOW and finding.state == "drift" and OVER_NVLINK not in finding.subject


def _of_job(measured: Measured, plugin: str) -> tuple[list[Finding], dict[str, Sequence[str]]]:
    job, result = measured.job, measured.result
    if not result:
        return [JOB.judge(job.name, "unknown", "a result", measured.failure, _SOURCE)], {}
    simulated = "simulated: " if result.get("simulated") else ""
    found = [JOB.judge(job.name, "ok", "a result", "there is one", simulated + _SOURCE)]
    own = [from_dict(dict(item)) for item in result["findings"]]
    passed = {name: result["evidence"][name] for name in result["passed"]}
    rail = cluster_record.rail_of(job.name)
    if rail or len(job.hosts) == 1:
        # The node's own benchmark, and those of its other rails, have findings of the same names.
        renamed = {one.id: replace(one, subject=f"{rail or job.name}: {one.subject}") for one in own}
        ids = {before: one.id for before, one in renamed.items()}
        own = [replace(one, because=ids.get(one.because or "")) for one in renamed.values()]
        passed = passed if rail else {}
    found += own
    found += cluster_plugin.judge(job, result.get("transport") or {}, plugin, _first_root(own))
    if not job.scaling:
        found += [_bar(job, simulated), *_latency(measured, simulated, _first_root(own))]
    return found, passed


def _first_root(findings: Iterable[Finding]) -> Finding | None:
    return next((one for one in findings if not one.ok and one.because is None), None)


def _bar(job: Job, simulated: str) -> Finding:
    source = simulated + "bars.yml"
    if job.bar is not None:
        return BAR.judge(job.name, "ok", "a bar", f"{job.bar:g} GB/s ({job.bar_source})", source)
    if job.what:
        # A message of the user's model: its figure is reported beside those with a bar.
        return BAR.judge(job.name, "ok", "a figure", f"no bar: {job.bar_source}", source)
    fix = f"put a bar for it into bars.yml beside the inventory, as in docs/bars.md: {job.bar_source}"
    return BAR.judge(job.name, "unknown", "a bar", None, source, fix)


def _latency(measured: Measured, simulated: str, bad: Finding | None) -> Iterator[Finding]:
    job = measured.job
    limit = job.latency_bar_us
    if limit is None:
        return
    # No message takes no time.
    time = next((row["time_us"] or None for row in measured.result["statistics"] if row["size"] == job.min_bytes), None)
    state = "unknown" if time is None else "ok" if time <= limit else "drift"
    want = f"at most {limit:g} us for {size_text(job.min_bytes)}"
    have = "no time was measured" if time is None else f"{time:.1f} us"
    fix = LATENCY.fix.replace("SCOPE", job.scope)
    yield LATENCY.judge(job.name, state, want, have, simulated + _SOURCE, fix, because=bad)


def _scaling(measured: Sequence[Measured], of_job: dict[str, list[Finding]]) -> tuple[Scaling, ...]:
    """Return each collective over numbers of nodes; add its findings to the job over the most nodes."""
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for one in measured:
        job = one.job
        if job.scope == "cluster" and not job.what:
            groups.setdefault((job.kind, job.head, job.collective, job.algorithm), []).append(one)
    rows: list[Scaling] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        group.sort(key=lambda one: len(one.job.hosts))
        several = [one for one in group if len(one.job.hosts) > 1]
        first = next((one for one in several if one.busbw is not None), None)
        for one in group:
            row = Scaling(
                **{name: getattr(one.job, name) for name in ("collective", "algorithm", "prediction")},
                size=one.job.max_bytes,
                nodes=len(one.job.hosts),
                busbw=one.busbw,
                efficiency=_efficiency(one, first) if one in several else None,
            )
            rows.append(row)
        if len(several) > 1:
            of_most = of_job[several[-1].job.name]
            of_most.append(_scaled(several, first, _first_root(of_most)))
    return tuple(rows)


def _compare_queue_pairs(measured: Sequence[Measured], of_job: dict[str, list[Finding]]) -> None:
    """Add to the last job of each team whether the queue pairs that jobs use are as good as the best."""
    teams: dict[tuple[str, ...], list[Measured]] = {}
    for one in measured:
        if one.job.queue_pairs:
            teams.setdefault(one.job.hosts, []).append(one)
    for team in teams.values():
        job, figures = team[-1].job, {one.job.queue_pairs: one.busbw for one in team}
        used, best = figures.get(job.used_queue_pairs), max(team, key=lambda one: one.busbw or 0.0)
        state = "ok" if used is not None and used >= AS_GOOD * (best.busbw or 0.0) else "drift"
        lacking = None in figures.values() or used is None
        of_each = (f"{number}: {'no figure' if value is None else f'{value:.4g}'}" for number, value in figures.items())
        have = f"{job.used_queue_pairs} in use; GB/s with {', '.join(of_each)}"
        fix = QUEUE_PAIRS.fix.replace("NUMBER", str(best.job.queue_pairs))
        if lacking:
            state, fix = (
                "unknown",
                f"see its jobs; nccl_benchmark_qps has to hold {job.used_queue_pairs}, which jobs use",
            )
        want = f"at least {AS_GOOD:g} of the best"
        subject = f"{job.scope} of {len(job.hosts)} nodes from {job.head}"
        of_job[job.name].append(QUEUE_PAIRS.judge(subject, state, want, have, _SOURCE, fix))


def _scaled(several: Sequence[Measured], first: Measured | None, bad: Finding | None) -> Finding:
    """Judge a collective over several numbers of nodes, the fewest first. first: with a figure."""
    want = f"at least {EFFICIENT:g} of the fewest nodes, measured by predicted"
    shares = [(share, one) for one in several if one is not first and (share := _efficiency(one, first)) is not None]
    missing = [f"{len(one.job.hosts)} nodes" for one in several if one.busbw is None]
    low, slowest = min(shares, key=lambda item: item[0], default=(0.0, None))
    if first is None or slowest is None or (missing and low >= EFFICIENT):
        state, have = "unknown", f"no figure over {', '.join(missing)}"
    else:
        state, have = "ok" if low >= EFFICIENT else "drift", _scaling_text(slowest, first, low)
    return SCALING.judge(several[-1].job.name, state, want, have, _SOURCE, because=bad)


def _efficiency(one: Measured, first: Measured | None) -> float | None:
    """Return the ratio of two jobs' figures, each as a part of its prediction; without one, of the plain figures.

    A figure above its prediction is no base: over two nodes NVLSTree may reach twice what any ring does, and no
    number of nodes will again.
    """
    if first is None or one.busbw is None or first.busbw is None:
        return None
    if one.job.prediction and first.job.prediction:
        return (one.busbw / one.job.prediction) / min(1.0, first.busbw / first.job.prediction)
    return one.busbw / first.busbw


def _scaling_text(one: Measured, first: Measured, efficiency: float) -> str:
    here, there = one.busbw or 0.0, first.busbw or 1.0
    nodes, fewest = len(one.job.hosts), len(first.job.hosts)
    text = f"{efficiency:.2f} over {nodes} nodes: {here:.4g} GB/s, {here / there:.2f} of the {there:.4g} GB/s over"
    if one.job.prediction and first.job.prediction:
        return f"{text} {fewest}; predicted {one.job.prediction:.4g} and {first.job.prediction:.4g} GB/s"
    return f"{text} {fewest}; there is no prediction"


def _root(earlier: Sequence[Finding], causes: Sequence[str]) -> Finding | None:
    """Return another role's finding on a host that explains a slow job. causes: prefixes of checks."""
    # Missing data of a switch causes nothing.
    mute = [one for one in earlier if one.check.startswith("lldp.") and one.state == "unknown"]
    roots = [one for one in earlier if not one.ok and one.because is None and one not in mute]
    return next((one for prefix in causes for one in roots if one.check.startswith(prefix)), None)


def _name_causes(finding: Finding, hosts: Sequence[str], causes: Mapping[str, Finding]) -> Finding:
    known = [host for host in hosts if host in causes]
    if not known or finding.ok or finding.because is not None or finding.check in _UNEXPLAINED:
        return finding
    return replace(finding, have=f"{finding.have or 'nothing'}; begin with {named(known, causes)}")


def named(hosts: Sequence[str], causes: Mapping[str, Finding]) -> str:
    """Return ``n1 (gpudirect.module), n2 (imex.service) and 3 more``. causes: of each host."""
    more = " and %d more" % (len(hosts) - _NAMED) if len(hosts) > _NAMED else ""
    return ", ".join(f"{host} ({causes[host].check})" for host in hosts[:_NAMED]) + more


def _followed(findings: Sequence[Finding], cause: Finding | None) -> list[Finding]:
    """Link findings to the cause on this host; else to the first of several jobs with the same finding."""
    first: dict[tuple[str, str, str | None], str] = {}
    found = []
    for one in findings:
        if not one.ok and one.because is None and one.check not in _UNEXPLAINED:
            if cause is not None:
                one = replace(one, because=cause.id)
            elif one.have:
                known = first.setdefault((one.check, one.state, one.have), one.id)
                one = replace(one, because=known) if known != one.id else one
        found.append(one)
    return found


def _recorded(measured: Measured, findings: Sequence[Finding]) -> cluster_record.Job:
    job, result = measured.job, measured.result
    bad = worst_first(one for one in findings if not one.ok)
    names = [each.name for each in fields(Row)]
    rows = tuple(Row(**{name: one[name] for name in names}) for one in result.get("statistics") or [])
    versions = {"nccl": result.get("nccl_version"), "nccl_tests": (result.get("measured") or {}).get("version")}
    return cluster_record.Job(
        **{each.name: getattr(job, each.name) for each in fields(cluster_record.Program)},
        ranks=job.ranks,
        rows=rows,
        busbw=result.get("busbw"),
        spread=max(rows, key=lambda row: row.size).spread if rows else None,
        states=tuple(one.state for one in bad),
        said=(bad[0].have or f"wanted {bad[0].want}") if bad else "",
        transport=result.get("transport") or {},
        rails=result.get("rails") or {},
        versions={name: str(version) for name, version in versions.items() if version},
    )


def member_records(
    jobs: Sequence[Job], findings: Mapping[str, Sequence[Finding]], finished: float
) -> dict[str, dict[str, Any]]:
    """Return host -> its record for the nightly check, of every host that a job was over."""
    over: dict[str, set[str]] = {}
    for job in jobs:
        for host in job.hosts:
            over.setdefault(host, set()).update(job.hosts)
    texts = {names: f"{len(names)} nodes ({nodeset.brief(names, _ROOM)})" for names in map(frozenset, over.values())}
    found = {}
    for host, others in over.items():
        bad = worst_first(one for one in findings.get(host, ()) if not one.ok)
        state = min((one.state for one in bad), key=STATES.index, default="ok")
        worst = next((one for one in bad if one.state == state), None)
        said = "" if worst is None else f"{worst.check} of {worst.subject}: {worst.have or worst.want}"
        found[host] = {"finished": finished, "over": texts[frozenset(others)], "state": state, "said": said[:500]}
    return found
