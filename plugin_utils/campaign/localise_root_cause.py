# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Link a slow job to the search's findings, and these to the health of the slow node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Health:
    """Findings of slow hosts. found: from right after the load, else known ones.   known: the verdict has them anyway.

    rails: host -> rail number -> PCI address of the NIC.
    """

    found: Mapping[str, Sequence[Finding]]
    known: Mapping[str, Sequence[Finding]]
    rails: Mapping[str, Mapping[int, str]]


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


def named(found: Sequence[HostFinding], health: Health) -> list[HostFinding]:
    """Return the findings for record and table, with the cause in the node's health."""
    return [
        replace(one, finding=_named(one.finding, cause)) if (cause := _cause(one, health)) is not None else one
        for one in found
    ]


def _named(finding: Finding, cause: Finding) -> Finding:
    have = f"{finding.have or 'nothing'}; because {cause.check} of {cause.subject}: {cause.have or 'nothing'}"
    return replace(finding, have=have)


def results(found: Sequence[HostFinding], health: Health) -> dict[str, list[Finding]]:
    """Return host -> findings of the search, linked to its node's health; causes that the verdict lacks are added."""
    of_host: dict[str, dict[str, Finding]] = {}
    for one in found:
        cause = _cause(one, health)
        for host in one.hosts:
            mine = of_host.setdefault(host, {})
            if cause is not None and cause.id not in {known.id for known in health.known.get(host, ())}:
                mine.setdefault(cause.id, cause)
            mine[one.finding.id] = one.finding if cause is None else replace(one.finding, because=cause.id)
    return {host: [*mine.values()] for host, mine in of_host.items()}


def _may_follow(finding: Finding) -> bool:
    return finding.check in _OF_NODE and finding.state == "drift" and finding.because is None


def _cause(found: HostFinding, health: Health) -> Finding | None:
    if not _may_follow(found.finding):
        return None
    [host] = found.hosts
    of_host = health.found.get(host, ())
    kind, _blank, digits = found.finding.subject.partition(" ")
    number = whole(digits)
    if kind == "gpu" and number is not None:
        return slowdown_causes.of_gpu(of_host, number)
    if kind == "rail" and number is not None:
        return slowdown_causes.of_rail(of_host, number, health.rails.get(host, {}).get(number, ""))
    return slowdown_causes.of_node(of_host)
