# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Link a slow job to the search's findings, and these to the health of the slow node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema, slowdown_causes
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_judge, localise_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import HostFinding

# A slow node, rail or rank explains a slow job, but not wrong sums, or none.
EXPLAINED = (perf.BUSBW.id, perf.SPREAD.id, cluster_judge.SCALING.id, cluster_judge.LATENCY.id)
# Findings on one node, which its health explains; the likeliest first.
_OF_NODE = (localise_judge.RAIL.id, localise_judge.RANK.id, localise_judge.NODE.id, localise_judge.ALONE.id)
# Then findings that several nodes share.
ROOTS = (*_OF_NODE, localise_judge.LEAF.id, localise_judge.UPLINK.id, localise_judge.CLUSTER.id)
# Hosts that a finding names.
_NAMED = 3


def explained(judged: Mapping[str, Any], found: Mapping[str, Sequence[Finding]]) -> dict[str, dict[str, Any]]:
    """Return host -> its result of nccl_cluster, with ``because`` for explained findings.

    judged: host -> that result.   found: host -> findings of the search. A job is a finding of each of its hosts,
    of the same id: where one of them has the cause, it follows from that on the others, too, and names it.
    """
    roots = {host: root for host, of_host in found.items() if (root := root_of(of_host)) is not None}
    whose: dict[str, list[str]] = {}
    for host in roots:
        for item in result_schema.findings_of(judged.get(host)):
            whose.setdefault(item["id"], []).append(host)
    results: dict[str, dict[str, Any]] = {}
    for host, result in judged.items():
        told = [from_dict(dict(item)) for item in result_schema.findings_of(result)]
        changed = [_followed(one, host, roots, whose.get(one.id, ())) for one in told]
        results[host] = {**result, "findings": Plan(tuple(changed)).result()["findings"]} if told else dict(result)
    return results


def root_of(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that explains a slow job."""
    slow = [one for one in findings if one.state == "drift" and one.because is None]
    return next((one for check in ROOTS for one in slow if one.check == check), None)


def _followed(finding: Finding, host: str, roots: Mapping[str, Finding], others: Sequence[str]) -> Finding:
    if finding.check not in EXPLAINED or finding.because is not None or finding.state != "drift":
        return finding
    if host in roots:
        return replace(finding, because=roots[host].id)
    if not others:
        return finding
    named = ", ".join(f"{one} ({roots[one].check})" for one in others[:_NAMED])
    more = " and %d more" % (len(others) - _NAMED) if len(others) > _NAMED else ""
    have = f"{finding.have or 'nothing'}; the search found {named}{more}"
    return replace(finding, have=have, because=roots[others[0]].id)


def slow(found: Sequence[HostFinding]) -> list[str]:
    """Return the hosts with findings that their health may explain."""
    return list(dict.fromkeys(one.hosts[0] for one in found if _may_follow(one.finding)))


def named(
    found: Sequence[HostFinding], health: Mapping[str, Sequence[Finding]], rails: Mapping[str, Mapping[int, str]]
) -> tuple[HostFinding, ...]:
    """Return the findings for record and table, with the cause in the node's health.

    health: host -> findings of node_health.   rails: host -> number of a rail -> PCI address of its NIC.
    """
    told = []
    for one in found:
        cause = _cause(one.finding, health.get(one.hosts[0], ()), rails.get(one.hosts[0], {})) if one.hosts else None
        if cause is not None:
            said = (
                f"{one.finding.have or 'nothing'}; because {cause.check} of {cause.subject}: {cause.have or 'nothing'}"
            )
            one = replace(one, finding=replace(one.finding, have=said))
        told.append(one)
    return tuple(told)


def rooted(
    found: Mapping[str, Sequence[Finding]],
    health: Mapping[str, Sequence[Finding]],
    rails: Mapping[str, Mapping[int, str]],
    known: Mapping[str, Sequence[Finding]],
) -> dict[str, list[Finding]]:
    """Return host -> findings of the search, linked to its node's health. Arguments as of ``named``.

    known: host -> health findings that the verdict has anyway. A cause that is not among them is added.
    """
    told: dict[str, list[Finding]] = {}
    for host, findings in found.items():
        there = {one.id for one in known.get(host, ())}
        for one in findings:
            cause = _cause(one, health.get(host, ()), rails.get(host, {}))
            if cause is not None and cause.id not in there:
                told.setdefault(host, []).append(cause)
                there.add(cause.id)
            told.setdefault(host, []).append(one if cause is None else replace(one, because=cause.id))
    return told


def _may_follow(finding: Finding) -> bool:
    return finding.check in _OF_NODE and finding.state == "drift" and finding.because is None


def _cause(finding: Finding, health: Sequence[Finding], rails: Mapping[int, str]) -> Finding | None:
    if not _may_follow(finding):
        return None
    kind, _blank, digits = finding.subject.partition(" ")
    number = whole(digits)
    if kind == "gpu" and number is not None:
        return slowdown_causes.of_gpu(health, number)
    if kind == "rail" and number is not None:
        return slowdown_causes.of_rail(health, number, rails.get(number, ""))
    return slowdown_causes.of_node(health)
