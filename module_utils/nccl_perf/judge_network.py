# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the transport of an nccl-tests run over several nodes.

A figure between nodes proves nothing without its transport: two nodes over TCP clear a low bar, and NVLS may hide three
missing rails of eight. So there is no verdict on a bandwidth without the proof of that run's transport.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence

from ..core.finding import Finding
from ..core.size import size_text
from ..nccl import launch
from .checks import (
    AGAIN,
    BETWEEN_AGAIN,
    BETWEEN_FRESH,
    BUSBW,
    FRESH,
    GDR,
    HCAS,
    NETWORK,
    NVLINK,
    RAILS,
    RAN,
    RANKS,
    SLOW,
    TRANSPORT,
)
from .output import Result
from .record import Wanted, short_names
from .transport import Moved, Network

# A rail that moved less than this share of the busiest one is idle: the rest is management traffic.
_IDLE = 0.01
# All rails of all hosts together send at least this part of the largest size, whatever the collective.
_LEAST_SENT = 0.25
# Of the largest size: the rails together move less than this part of it where nothing of a run goes over them.
_MOST_SENT = 0.05
_NAMED = 6
# Findings on NCCL's log that are not about why a run failed. Of a log that is cut off some ranks' settings are missing.
_NO_FAILURE = (
    *("readable", "level", "variable_effect", "same_settings", "network", "hcas", "gdr", "nvlink"),
    *("intra_node", "mnnvl"),
)


def judge(
    network: Optional[Network], result: Optional[Result], wanted: Wanted, findings: Sequence[Finding]
) -> List[Finding]:
    """Return the findings on one run, and on its transport. result: the table.

    network: None for a run over several nodes that an earlier release stored.
    """
    found = list(findings)
    if network is not None:
        found = [*_explained(findings, network), *_launched(findings, network)]
    return found + (_of_network(network, result, wanted, found) if wanted.several else [])


def _explained(findings: Sequence[Finding], network: Network) -> List[Finding]:
    """Return the findings on a run and its table, with the transport as a cause."""
    if network.tables > 1:
        have = "; %d programs printed a table: processes ran alone, or another job prints here" % network.tables
        findings = [
            replace(one, state="drift", have=(one.have or "") + have, fix=RANKS.fix, because=None)
            if one.check == RANKS.id
            else one
            for one in findings
        ]
    # Ranks that did not begin are no proof in a part of a log; the output of a run is whole.
    known = (one for one in network.quoted if one.state == "drift" or one.check.endswith(".ranks"))
    failures = (one for one in known if one.check.startswith("nccl_log."))
    said = next((one for one in failures if one.check.partition(".")[2] not in _NO_FAILURE), None)
    if said is None:
        return list(findings)
    text = "; NCCL's log: %s" % (said.have or said.want)
    return [
        replace(one, have=(one.have or "") + text, fix=said.fix) if one.check == RAN.id and not one.ok else one
        for one in findings
    ]


def _launched(findings: Sequence[Finding], network: Network) -> List[Finding]:
    """Make unknown findings on the launch follow from a failed run."""
    ran = next(one for one in findings if one.check == RAN.id)
    return [
        replace(one, because=ran.id) if one.state == "unknown" and not ran.ok and one.because is None else one
        for one in network.launched
    ]


def _of_network(
    network: Optional[Network], result: Optional[Result], wanted: Wanted, findings: Sequence[Finding]
) -> List[Finding]:
    source = "NCCL_DEBUG=INFO of the run"
    ran = next(one for one in findings if one.check == RAN.id)
    want = "the transport of all %d ranks on %d nodes" % (wanted.ranks, len(short_names(wanted.hosts)))
    if network is None:
        have = "recorded by a release that did not store NCCL's log; its transport is unknown"
        return [TRANSPORT.judge(wanted.subject, "unknown", want, have, "record.json")]
    simulated = "simulated: " if result is not None and result.simulated else ""
    source = simulated + source
    used = ", ".join(network.networks) or "no network"
    if network.proven:
        versions = ", ".join(network.versions)
        # To NCCL trays that NVLink joins are one node.
        nodes = network.nodes if network.nvlink is None else len(network.hosts)
        have = "%s over %s nodes, %s ranks, NCCL %s" % (used, nodes, network.expected, versions or "unknown")
        transport = TRANSPORT.judge(wanted.subject, "ok", want, have, source)
    else:
        # There is no proof of what did not run, or was not one job.
        explains = (RAN.id, launch.JOB.id, RANKS.id)
        why = next((one for one in findings if one.check in explains and one.state == "drift"), ran)
        transport = TRANSPORT.judge(wanted.subject, "unknown", want, "; ".join(network.missing), source, because=why)
    if wanted.way == "nvlink":
        return [transport, _nvlink(network, wanted, source, transport)]
    over = _network(network, wanted, source, transport)
    cause = over if not over.ok else transport
    found = [transport, over, _hcas(network, wanted, source, cause), _gdr(network, wanted, source, cause)]
    rails = _rails(network, wanted, simulated + "counters of the HCAs", cause)
    # A run that was cut off lacks some counters, and others rose by less than a whole run's.
    found.append(rails if rails.ok or rails.because is not None or ran.ok else replace(rails, because=ran.id))
    return found


def _network(network: Network, wanted: Wanted, source: str, transport: Finding) -> Finding:
    want = "RDMA between nodes"
    if network.sockets:
        said = _quoted(network, "network")
        have = "sockets (TCP)" if said is None else said.have
        return NETWORK.judge(wanted.subject, "drift", want, have, source, None if said is None else said.fix)
    if not network.networks or not transport.ok:
        have = ", ".join(network.networks) or None
        return NETWORK.judge(wanted.subject, "unknown", want, have, source, because=transport)
    return NETWORK.judge(wanted.subject, "ok", want, ", ".join(network.networks), source)


def _quoted(network: Network, check: str) -> Optional[Finding]:
    return next((one for one in network.quoted if one.check == "nccl_log." + check), None)


def _hcas(network: Network, wanted: Wanted, source: str, cause: Finding) -> Finding:
    most = max((len(one.found) for one in network.hosts.values()), default=0)
    expected = wanted.rails or most
    want = "%d HCAs on each node" % expected if expected else "every HCA of each node"
    if not cause.ok and (network.sockets or not any(one.devices for one in network.hosts.values())):
        return HCAS.judge(wanted.subject, "unknown", want, None, source, because=cause)
    if not expected:
        have = "the log does not list them (NET/IB : Using)"
        return HCAS.judge(wanted.subject, "unknown", want, have, source, because=cause)
    bad = []
    for host, one in network.hosts.items():
        # A rank uses the HCA that is nearest: fewer ranks than HCAs leave some of them idle.
        least = expected if wanted.rails else min(expected, one.ranks)
        if not wanted.rails and len(one.found) < most:
            bad.append("NCCL finds %d HCAs on %s, and %d on others" % (len(one.found), host, most))
        elif len(one.devices) < least:
            idle = sorted(set(one.found) - set(one.devices))
            said = "%s uses %s" % (host, _names(one.devices) or "none")
            bad.append("%s, not %s" % (said, _names(idle)) if idle else said)
    if bad:
        state = "drift" if cause.ok else "unknown"
        return HCAS.judge(wanted.subject, state, want, _few(bad), source, because=cause)
    state = "ok" if cause.ok else "unknown"
    have = "%d on each of %d nodes" % (expected, len(network.hosts)) if wanted.rails or most else None
    return HCAS.judge(wanted.subject, state, want, have, source, because=cause)


def _gdr(network: Network, wanted: Wanted, source: str, cause: Finding) -> Finding:
    want = "GPUDirect RDMA on every connection between nodes"
    off = {host: one.without_gdr for host, one in network.hosts.items() if one.without_gdr}
    if off and not network.sockets:
        said = _quoted(network, "gdr")
        have = _few(["off on %s of %s" % (_names(devices), host) for host, devices in off.items()])
        if said is not None:
            have += "; NCCL's log: %s" % said.have
        return GDR.judge(wanted.subject, "drift", want, have, source, None if said is None else said.fix)
    if network.gdr is None or not cause.ok:
        return GDR.judge(wanted.subject, "unknown", want, None, source, because=cause)
    return GDR.judge(wanted.subject, "ok", want, "on all of them", source)


def _rails(network: Network, wanted: Wanted, source: str, cause: Finding) -> Finding:
    want = "every rail that is used moves data"
    if network.sockets or not network.hosts:
        return RAILS.judge(wanted.subject, "unknown", want, None, source, because=cause)
    busiest = max((_total(one) for devices in network.rails.values() for one in devices.values()), default=0)
    unknown, idle = [], []
    moved = 0
    for host, one in network.hosts.items():
        counted = network.rails.get(host, {})
        of_host = 0
        for device in one.devices:
            if device not in counted:
                unknown.append("%s of %s" % (device, host))
            elif _total(counted[device]) <= _IDLE * busiest:
                idle.append("%s of %s (%d bytes)" % (device, host, _total(counted[device])))
            else:
                of_host += 1
                moved += counted[device].sent
        if not unknown and not idle and of_host < (wanted.rails or 1):
            idle.append("all but %d of %s" % (of_host, host))
    if idle and cause.ok:
        return RAILS.judge(wanted.subject, "drift", want, "idle: %s" % _few(idle), source)
    if idle or unknown:
        have = "no counters of %s" % _few(unknown) if unknown else None
        return RAILS.judge(wanted.subject, "unknown", want, have, source, because=cause)
    if cause.ok and moved < _LEAST_SENT * wanted.sizes[-1]:
        have = "all rails together sent %d bytes" % moved
        return RAILS.judge(wanted.subject, "drift", want, have, source)
    have = "%d rails of %d nodes" % (sum(len(one.devices) for one in network.hosts.values()), len(network.hosts))
    return RAILS.judge(wanted.subject, "ok" if cause.ok else "unknown", want, have, source, because=cause)


def _nvlink(network: Network, wanted: Wanted, source: str, transport: Finding) -> Finding:
    """Judge NVLink between trays: NCCL's log, and the counters of the rails, which must not have carried the data."""
    want = "NVLink between all %d trays" % len(short_names(wanted.hosts))
    said = network.nvlink
    if said is None or not transport.ok:
        return NVLINK.judge(wanted.subject, "unknown", want, None, source, because=transport)
    over = [host for host, one in network.hosts.items() if one.devices]
    if over or not said.on or network.nodes != 1:
        used = ", ".join(network.networks) or "not named"
        have = "the network (%s) between %s" % (used, _names(over or [*network.hosts]))
        if said.on:
            have += ": NVLink joins only parts of them, %s by NCCL's count" % network.nodes
        have += "; cause: %s" % "; ".join(said.causes) if said.causes else "; NCCL's log gives no reason"
        fix = (
            "take %s out of nccl_benchmark_environment and nccl_conf_extra, or out of the file that sets it, and run"
            " site.yml for these nodes with --tags nccl_conf; %s" % (" and ".join(said.variables), BETWEEN_AGAIN)
        )
        return NVLINK.judge(wanted.subject, "drift", want, have, source, fix if said.variables else None)
    sent = sum(max(one.sent, 0) for devices in network.rails.values() for one in devices.values())
    if sent > _MOST_SENT * wanted.sizes[-1]:
        have = "NCCL's log shows NVLink, but the rails sent %s meanwhile: part of it, or data of another job"
        fix = "find what uses the rails of these nodes (`rdma resource show qp`), and free the nodes; " + BETWEEN_AGAIN
        return NVLINK.judge(wanted.subject, "drift", want, have % size_text(sent), source, fix)
    have = "NVLink between %d trays, nothing over the network" % len(said.joined)
    return NVLINK.judge(wanted.subject, "ok", want, have, source)


def _total(one: Moved) -> int:
    return one.sent + one.received


def _names(values: Sequence[str]) -> str:
    more = len(values) - _NAMED
    return ", ".join(values[:_NAMED]) + (" and %d more" % more if more > 0 else "")


def _few(said: Sequence[str]) -> str:
    more = len(said) - _NAMED
    return "; ".join(said[:_NAMED]) + ("; and %d more" % more if more > 0 else "")


def bound(findings: Sequence[Finding]) -> List[Finding]:
    """No verdict on a bandwidth between nodes without its transport; a slow one follows from a way that is wrong."""
    by_check = {one.check: one for one in findings}
    proofs = [by_check[check.id] for check in (TRANSPORT, NVLINK) if check.id in by_check]
    unproven = next((one for one in proofs if not one.ok), None)
    ways = [by_check[check.id] for check in (NETWORK, HCAS, GDR, RAILS) if check.id in by_check]
    wrong = next((one for one in ways if one.state == "drift"), None)
    found = []
    for one in findings:
        if one.check == BUSBW.id and unproven is not None:
            one = replace(one, state="unknown", because=unproven.id, fix=one.fix or unproven.fix)
        elif one.check == BUSBW.id and not one.ok and wrong is not None:
            one = replace(one, because=wrong.id)
        elif one.check == BUSBW.id and not one.ok and NVLINK.id in by_check:
            one = replace(one, fix=SLOW)
        # No role of a single node fixes a run over several.
        found.append(replace(one, fix=one.fix.replace(AGAIN, BETWEEN_AGAIN).replace(FRESH.fix, BETWEEN_FRESH)))
    return found
