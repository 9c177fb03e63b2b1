# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the jobs of a benchmark between nodes: one record, and the findings of every host that took part.

nccl_perf judges a job over its repeats. Here its hosts get its findings, in equal words, so that a thousand hosts are
one line; latency and scaling are judged; a job without a result makes its hosts unknown, and no others. Pure.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import STATES, Finding, from_dict, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as lldp
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import OVER_NVLINK
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, lldp_leaf, nodeset, slowdown_causes
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import Row, Scaling

# Least efficiency relative to the fewest nodes; each figure is a part of its prediction.
EFFICIENT = 0.90
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
        "kernel_args.",
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


# Wrong values have no cause in other roles' findings: no setting makes a sum wrong.
_UNEXPLAINED = (perf.CORRECT.id, BAR.id)


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
    jobs: Sequence[Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
    earlier: Mapping[str, Sequence[Finding]],
    advise: bool = False,
) -> Judged:
    """Judge jobs, ``cluster_plan.Job.to_dict`` of each. results: job name -> result of nccl_perf, where there is one.

    failures: name of a job -> why there is none.   earlier: host -> findings of other roles.
    advise: a missed bar advises the search for the slow node, which does not start automatically.
    """
    trays = {host for job in jobs for host in job["hosts"] if job["scope"] == NVLINK_DOMAIN}
    causes = {
        host: cause
        for host, found in earlier.items()
        if (cause := _root(found, NVLINK_CAUSES if host in trays else CAUSES)) is not None
    }
    of_job: dict[str, list[Finding]] = {}
    good: dict[str, dict[str, Sequence[str]]] = {}
    for job in jobs:
        result = results.get(job["name"])
        said, passed = _of_job(job, result, failures.get(job["name"], "its task was not run"))
        of_job[job["name"]] = [_advised(one, job) for one in said] if advise else said
        good[job["name"]] = passed
    scaling = _scaling(jobs, results, of_job)
    found: dict[str, list[Finding]] = {}
    passes: dict[str, dict[str, Sequence[str]]] = {}
    for job in jobs:
        said = of_job[job["name"]]
        shared = [_name_causes(one, job["hosts"], causes) for one in said]
        for host in job["hosts"]:
            found.setdefault(host, []).extend(shared)
            passes.setdefault(host, {}).update(good[job["name"]])
    findings = {host: tuple(_followed(of_host, causes.get(host))) for host, of_host in found.items()}
    record = tuple(_recorded(job, results.get(job["name"]), of_job[job["name"]]) for job in jobs)
    return Judged(findings, record, scaling, passes)


def misses(findings: Iterable[Finding]) -> bool:
    """Return whether a bar of several nodes was missed: something in the network between them is slow."""
    slow = (one for one in findings if one.check in (perf.BUSBW.id, SCALING.id) and one.state == "drift")
    return any(OVER_NVLINK not in one.subject for one in slow)


def _advised(finding: Finding, job: Mapping[str, Any]) -> Finding:
    if len(job["hosts"]) > 1 and misses([finding]):
        return replace(finding, fix=f"{LOCALISE}; {finding.fix}")
    return finding


def subject(job: Mapping[str, object]) -> str:
    """Return the subject of a job's findings: ``cluster all_reduce 8G 16 nodes``."""
    return str(job["name"])


def _of_job(
    job: Mapping[str, Any], result: Mapping[str, Any] | None, failure: str
) -> tuple[list[Finding], dict[str, Sequence[str]]]:
    if result is None:
        return [JOB.judge(subject(job), "unknown", "a result", failure, _SOURCE)], {}
    simulated = "simulated: " if result.get("simulated") else ""
    found = [JOB.judge(subject(job), "ok", "a result", "there is one", simulated + _SOURCE)]
    own = [from_dict(dict(item)) for item in result["findings"]]
    passed = {name: result["evidence"][name] for name in result["passed"]}
    rail = cluster_record.rail_of(subject(job))
    if rail or len(job["hosts"]) == 1:
        # The node's own benchmark, and those of its other rails, have findings of the same names.
        renamed = {one.id: replace(one, subject=f"{rail or subject(job)}: {one.subject}") for one in own}
        ids = {before: one.id for before, one in renamed.items()}
        own = [replace(one, because=ids.get(one.because or "")) for one in renamed.values()]
        passed = passed if rail else {}
    found += own
    bad = next((one for one in own if not one.ok and one.because is None), None)
    if not job["scaling"]:
        found += [_bar(job, simulated), *_latency(job, result, simulated, bad)]
    return found, passed


def _bar(job: Mapping[str, Any], simulated: str) -> Finding:
    want = "a bar"
    if job["bar"] is not None:
        have = "{:g} GB/s ({})".format(job["bar"], job["bar_source"])
        return BAR.judge(subject(job), "ok", want, have, simulated + "bars.yml")
    if job["what"]:
        # A message of the user's model: its figure is reported beside those with a bar.
        return BAR.judge(subject(job), "ok", "a figure", "no bar: %s" % job["bar_source"], simulated + "bars.yml")
    fix = "put a bar for it into bars.yml beside the inventory, as in docs/bars.md: %s" % job["bar_source"]
    return BAR.judge(subject(job), "unknown", want, None, simulated + "bars.yml", fix)


def _latency(
    job: Mapping[str, Any], result: Mapping[str, Any], simulated: str, bad: Finding | None
) -> Iterable[Finding]:
    limit = job["latency_bar_us"]
    if limit is None:
        return
    row = next((one for one in result["statistics"] if one["size"] == job["min_bytes"]), None)
    want = "at most %g us for %s" % (limit, size_text(job["min_bytes"]))
    time = row and row["time_us"]
    source = simulated + _SOURCE
    fix = LATENCY.fix.replace("SCOPE", job["scope"])
    if time is None:
        yield LATENCY.judge(subject(job), "unknown", want, "no time was measured", source, fix, because=bad)
    else:
        state = "ok" if time <= limit else "drift"
        yield LATENCY.judge(subject(job), state, want, "%.1f us" % time, source, fix, because=bad)


def _scaling(
    jobs: Sequence[Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]], of_job: dict[str, list[Finding]]
) -> tuple[Scaling, ...]:
    """Return each collective over numbers of nodes; add its findings to the job over the most nodes."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for job in jobs:
        if job["scope"] == "cluster" and not job["what"]:
            groups.setdefault((job["kind"], job["head"], job["collective"], job["algorithm"]), []).append(job)
    rows: list[Scaling] = []
    for group in groups.values():
        group.sort(key=lambda job: len(job["hosts"]))
        several = [job for job in group if len(job["hosts"]) > 1]
        if len(group) < 2:
            continue
        first = next((job for job in several if _figure(job, results) is not None), None)
        shares: list[tuple[float, str]] = []
        missing = []
        for job in group:
            nodes, figure = len(job["hosts"]), _figure(job, results)
            efficiency = _efficiency(job, first, results) if first is not None and nodes > 1 else None
            rows.append(
                Scaling(
                    collective=job["collective"],
                    algorithm=job["algorithm"],
                    size=job["max_bytes"],
                    nodes=nodes,
                    busbw=figure,
                    prediction=job["prediction"],
                    efficiency=efficiency,
                )
            )
            if nodes > 1 and efficiency is None:
                missing.append("%d nodes" % nodes)
            elif efficiency is not None and first is not None and job is not first:
                shares.append((efficiency, _scaling_text(job, first, efficiency, results)))
        if len(several) > 1:
            most = several[-1]
            of_job[most["name"]].append(_scaled(most, min(shares, default=None), missing, of_job))
    return tuple(rows)


def _scaled(
    job: Mapping[str, Any],
    worst: tuple[float, str] | None,
    missing: Sequence[str],
    of_job: Mapping[str, Sequence[Finding]],
) -> Finding:
    want = "at least %g of the fewest nodes, measured by predicted" % EFFICIENT
    bad = next((one for one in of_job[job["name"]] if not one.ok and one.because is None), None)
    if worst is None or (missing and worst[0] >= EFFICIENT):
        have = "no figure over %s" % ", ".join(missing)
        return SCALING.judge(subject(job), "unknown", want, have, _SOURCE, because=bad)
    state = "ok" if worst[0] >= EFFICIENT else "drift"
    return SCALING.judge(subject(job), state, want, worst[1], _SOURCE, because=bad)


def _figure(job: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return GB/s at the largest size; None where nothing was measured. A figure of 0 is none."""
    result = results.get(str(job["name"]))
    return float(result["busbw"]) if result is not None and result.get("busbw") else None


def _efficiency(
    job: Mapping[str, Any], first: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Return the ratio of two jobs' figures, each as a part of its prediction; without one, of the plain figures.

    A figure above its prediction is no base: over two nodes NVLSTree may reach twice what any ring does, and no
    number of nodes will again.
    """
    here, there = _figure(job, results), _figure(first, results)
    if here is None or there is None:
        return None
    if job["prediction"] and first["prediction"]:
        return (here / float(job["prediction"])) / min(1.0, there / float(first["prediction"]))
    return here / there


def _scaling_text(
    job: Mapping[str, Any], first: Mapping[str, Any], efficiency: float, results: Mapping[str, Mapping[str, Any]]
) -> str:
    here, there = _figure(job, results) or 0.0, _figure(first, results) or 1.0
    text = "%.2f over %d nodes: %.4g GB/s, %.2f of the %.4g GB/s over %d" % (
        *(efficiency, len(job["hosts"]), here),
        *(here / there, there, len(first["hosts"])),
    )
    if job["prediction"] and first["prediction"]:
        return text + "; predicted %.4g and %.4g GB/s" % (job["prediction"], first["prediction"])
    return text + "; there is no prediction"


def _root(earlier: Sequence[Finding], causes: Sequence[str]) -> Finding | None:
    """Return another role's finding on a host that explains a slow job. causes: prefixes of checks."""
    # Missing data of a switch causes nothing.
    mute = [one for one in earlier if one.check.startswith("lldp.") and one.state == "unknown"]
    roots = [one for one in earlier if not one.ok and one.because is None and one not in mute]
    return next((one for prefix in causes for one in roots if one.check.startswith(prefix)), None)


def _name_causes(finding: Finding, hosts: Sequence[str], causes: Mapping[str, Finding]) -> Finding:
    if finding.ok or finding.because is not None or finding.check in _UNEXPLAINED:
        return finding
    known = [f"{host} ({causes[host].check})" for host in hosts if host in causes]
    if not known:
        return finding
    more = " and %d more" % (len(known) - _NAMED) if len(known) > _NAMED else ""
    have = f"{finding.have or 'nothing'}; begin with {', '.join(known[:_NAMED])}{more}"
    return replace(finding, have=have)


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


def _recorded(
    job: Mapping[str, Any], result: Mapping[str, Any] | None, findings: Sequence[Finding]
) -> cluster_record.Job:
    bad = worst_first(one for one in findings if not one.ok)
    has = result or {}
    rows = tuple(
        Row(**{name: one[name] for name in ("size", "time_us", "algbw", "busbw", "time_p99_us", "spread", "repeats")})
        for one in has.get("statistics") or []
    )
    measured = has.get("measured") or {}
    versions = {"nccl": has.get("nccl_version"), "nccl_tests": measured.get("version")}
    copied = (
        "name",
        "scope",
        "ranks",
        "collective",
        "algorithm",
        "nvls",
        "what",
        "bar",
        "bar_source",
        "latency_bar_us",
    )
    return cluster_record.Job(
        **{name: job[name] for name in (*copied, "prediction", "rule", "min_bytes", "max_bytes")},
        hosts=tuple(job["hosts"]),
        rows=rows,
        busbw=has.get("busbw"),
        spread=max(rows, key=lambda row: row.size).spread if rows else None,
        states=tuple(one.state for one in bad),
        said=(bad[0].have or f"wanted {bad[0].want}") if bad else "",
        transport=has.get("transport") or {},
        rails=has.get("rails") or {},
        versions={name: str(version) for name, version in versions.items() if version},
    )


def member_records(
    jobs: Sequence[Mapping[str, Any]], findings: Mapping[str, Sequence[Finding]], finished: float
) -> dict[str, dict[str, Any]]:
    """Return host -> its record for the nightly check, of every host that a job was over."""
    over: dict[str, set[str]] = {}
    for job in jobs:
        for host in job["hosts"]:
            over.setdefault(host, set()).update(job["hosts"])
    texts: dict[frozenset[str], str] = {}
    found = {}
    for host, others in over.items():
        names = frozenset(others)
        if names not in texts:
            texts[names] = "%d nodes (%s)" % (len(names), nodeset.brief(names, _ROOM))
        bad = worst_first(one for one in findings.get(host, ()) if not one.ok)
        state = min((one.state for one in bad), key=STATES.index, default="ok")
        worst = next((one for one in bad if one.state == state), None)
        said = "" if worst is None else f"{worst.check} of {worst.subject}: {worst.have or worst.want}"
        found[host] = {"finished": finished, "over": texts[names], "state": state, "said": said[:500]}
    return found
