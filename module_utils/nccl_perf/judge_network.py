# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the transport of an nccl-tests run over several nodes.

A figure between nodes proves nothing without its transport: two nodes over TCP clear a low bar, and NVLS may hide three
missing rails of eight. So there is no verdict on a bandwidth without the proof of that run's transport.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Optional, Sequence

from ..core.check import Check
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
_UNSET = (
    "take %s out of nccl_benchmark_environment and nccl_conf_extra, or out of the file that sets it; then run site.yml"
    " --tags nccl_conf for these nodes; "
) + BETWEEN_AGAIN
_FREE = "find what uses the rails of these nodes (`rdma resource show qp`), and free the nodes; " + BETWEEN_AGAIN
# Of a run on one node whose record stands in for one over several.
_UNKNOWN = Network(missing=("the record has nothing of NCCL's log",))
# Findings on NCCL's log that are not about why a run failed. Of a log that is cut off some ranks' settings are missing.
_NO_FAILURE = (
    *("readable", "level", "variable_effect", "same_settings", "network", "hcas", "gdr", "nvlink"),
    *("intra_node", "mnnvl"),
)


def judge(
    network: Optional[Network], result: Optional[Result], wanted: Wanted, findings: Sequence[Finding]
) -> List[Finding]:
    """Return the findings on one run, and on its transport. result: the table."""
    network = network or _UNKNOWN
    found = [*_explained(findings, network), *_launched(findings, network)]
    if not wanted.several:
        return found
    ran = next(one for one in found if one.check == RAN.id)
    judged = _Judge(network, wanted, "simulated: " if result is not None and result.simulated else "")
    transport = judged.transport(found, ran)
    if wanted.way == "nvlink":
        return [*found, transport, judged.nvlink(transport)]
    over = judged.over(transport)
    cause = over if not over.ok else transport
    rails = judged.rails(cause)
    if not rails.ok and rails.because is None and not ran.ok:
        # A run that was cut off lacks some counters, and others rose by less than a whole run's.
        rails = replace(rails, because=ran.id)
    return [*found, transport, over, judged.hcas(cause), judged.gdr(cause), rails]


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


@dataclass(frozen=True)
class _Judge:
    """Judge the transport of one run. simulated: what its source begins with."""

    network: Network
    wanted: Wanted
    simulated: str

    def finding(
        self,
        check: Check,
        state: str,
        want: str,
        have: Optional[str] = None,
        because: Optional[Finding] = None,
        fix: Optional[str] = None,
        source: str = "NCCL_DEBUG=INFO of the run",
    ) -> Finding:
        return check.judge(self.wanted.subject, state, want, have, self.simulated + source, fix, because)

    def quoted(self, check: str) -> Optional[Finding]:
        """Return what NCCL's log reports on it."""
        return next((one for one in self.network.quoted if one.check == "nccl_log." + check), None)

    def transport(self, findings: Sequence[Finding], ran: Finding) -> Finding:
        network, wanted = self.network, self.wanted
        want = "the transport of all %d ranks on %d nodes" % (wanted.ranks, len(short_names(wanted.hosts)))
        if not network.proven:
            # There is no proof of what did not run, or was not one job.
            explains = (RAN.id, launch.JOB.id, RANKS.id)
            why = next((one for one in findings if one.check in explains and one.state == "drift"), ran)
            return self.finding(TRANSPORT, "unknown", want, "; ".join(network.missing), why)
        used, versions = ", ".join(network.networks) or "no network", ", ".join(network.versions) or "unknown"
        # To NCCL trays that NVLink joins are one node.
        nodes = network.nodes if network.nvlink is None else len(network.hosts)
        have = "%s over %s nodes, %s ranks, NCCL %s" % (used, nodes, network.expected, versions)
        return self.finding(TRANSPORT, "ok", want, have)

    def over(self, transport: Finding) -> Finding:
        """Judge whether it went over RDMA."""
        want, used = "RDMA between nodes", ", ".join(self.network.networks) or None
        if self.network.sockets:
            said = self.quoted("network")
            have, fix = ("sockets (TCP)", None) if said is None else (said.have, said.fix)
            return self.finding(NETWORK, "drift", want, have, fix=fix)
        known = used is not None and transport.ok
        return self.finding(NETWORK, "ok" if known else "unknown", want, used, transport)

    def hcas(self, cause: Finding) -> Finding:
        network, wanted = self.network, self.wanted
        most = max((len(one.found) for one in network.hosts.values()), default=0)
        expected = wanted.rails or most
        want = "%d HCAs on each node" % expected if expected else "every HCA of each node"
        if not cause.ok and (network.sockets or not any(one.devices for one in network.hosts.values())):
            return self.finding(HCAS, "unknown", want, None, cause)
        if not expected:
            return self.finding(HCAS, "unknown", want, "the log does not list them (NET/IB : Using)", cause)
        bad = []
        for host, one in network.hosts.items():
            # A rank uses the HCA that is nearest: fewer ranks than HCAs leave some of them idle.
            least = expected if wanted.rails else min(expected, one.ranks)
            if not wanted.rails and len(one.found) < most:
                bad.append("NCCL finds %d HCAs on %s, and %d on others" % (len(one.found), host, most))
            elif len(one.devices) < least:
                idle = sorted(set(one.found) - set(one.devices))
                said = "%s uses %s" % (host, _few(one.devices) or "none")
                bad.append("%s, not %s" % (said, _few(idle)) if idle else said)
        state = "unknown" if not cause.ok else "drift" if bad else "ok"
        have = _few(bad, "; ") or "%d on each of %d nodes" % (expected, len(network.hosts))
        return self.finding(HCAS, state, want, have, cause)

    def gdr(self, cause: Finding) -> Finding:
        network, want = self.network, "GPUDirect RDMA on every connection between nodes"
        off = [
            "off on %s of %s" % (_few(one.without_gdr), host) for host, one in network.hosts.items() if one.without_gdr
        ]
        if off and not network.sockets:
            said = self.quoted("gdr")
            have = _few(off, "; ") + ("" if said is None else "; NCCL's log: %s" % said.have)
            return self.finding(GDR, "drift", want, have, fix=None if said is None else said.fix)
        if network.gdr is None or not cause.ok:
            return self.finding(GDR, "unknown", want, None, cause)
        return self.finding(GDR, "ok", want, "on all of them")

    def rails(self, cause: Finding) -> Finding:
        network = self.network
        unknown, idle = [], []
        busiest = max((_total(one) for devices in network.rails.values() for one in devices.values()), default=0)
        moved = 0
        for host, one in network.hosts.items():
            counted = network.rails.get(host, {})
            used = [device for device in one.devices if device in counted]
            unknown += ["%s of %s" % (device, host) for device in one.devices if device not in counted]
            still = [device for device in used if _total(counted[device]) <= _IDLE * busiest]
            idle += ["%s of %s (%d bytes)" % (device, host, _total(counted[device])) for device in still]
            moved += sum(counted[device].sent for device in used if device not in still)
            busy = len(used) - len(still)
            if not unknown and not idle and busy < (self.wanted.rails or 1):
                idle.append("all but %d of %s" % (busy, host))
        state, have, because = "ok" if cause.ok else "unknown", None, cause
        if network.sockets or not network.hosts:
            state = "unknown"
        elif idle and cause.ok:
            state, have = "drift", "idle: %s" % _few(idle, "; ")
        elif idle or unknown:
            state, have = "unknown", "no counters of %s" % _few(unknown, "; ") if unknown else None
        elif cause.ok and moved < _LEAST_SENT * self.wanted.sizes[-1]:
            state, have = "drift", "all rails together sent %d bytes" % moved
        else:
            used_by = sum(len(one.devices) for one in network.hosts.values())
            have = "%d rails of %d nodes" % (used_by, len(network.hosts))
        want, source = "every rail that is used moves data", "counters of the HCAs"
        return self.finding(RAILS, state, want, have, None if state == "drift" else because, source=source)

    def nvlink(self, transport: Finding) -> Finding:
        """Judge NVLink between trays: NCCL's log, and the rails' counters, which must not have carried the data."""
        network, said = self.network, self.network.nvlink
        want = "NVLink between all %d trays" % len(short_names(self.wanted.hosts))
        if said is None or not transport.ok:
            return self.finding(NVLINK, "unknown", want, None, transport)
        over = [host for host, one in network.hosts.items() if one.devices]
        if over or not said.on or network.nodes != 1:
            used = ", ".join(network.networks) or "not named"
            have = "the network (%s) between %s" % (used, _few(over or [*network.hosts]))
            if said.on:
                have += ": NVLink joins only parts of them, %s by NCCL's count" % network.nodes
            have += "; cause: %s" % "; ".join(said.causes) if said.causes else "; NCCL's log gives no reason"
            fix = _UNSET % " and ".join(said.variables) if said.variables else None
            return self.finding(NVLINK, "drift", want, have, fix=fix)
        sent = sum(max(one.sent, 0) for devices in network.rails.values() for one in devices.values())
        if sent > _MOST_SENT * self.wanted.sizes[-1]:
            have = "NCCL's log shows NVLink, but the rails sent %s meanwhile: part of it, or data of another job"
            return self.finding(NVLINK, "drift", want, have % size_text(sent), fix=_FREE)
        have = "NVLink between %d trays, nothing over the network" % len(said.joined)
        return self.finding(NVLINK, "ok", want, have)


def _total(one: Moved) -> int:
    return one.sent + one.received


def _few(texts: Sequence[str], separator: str = ", ") -> str:
    more = len(texts) - _NAMED
    return separator.join(texts[:_NAMED]) + (" and %d more" % more if more > 0 else "")


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
