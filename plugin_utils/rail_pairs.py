# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pair hosts of one kind, rail by rail: for pings, and for tests, in which each host once sends and once receives.

Only equal rails are paired: separate fabrics connect no others. In one pass of the tests a host is in one pair and has
one role, so that no second test slows a rail. A host without a partner is not proven, and reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import CLIENT, SERVER, Session
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import PARTNERS, Peer, Ping, rounds

from . import host_variables, result_schema
from .campaign.engine import Call, roots
from .plain_data import PlainView

# RDMA MTU where the inventory names none.
MTU = 4096
# Seconds beyond the limit of the tests, after which their task is ended.
_SPARE = 60
PAIR = Check("perftest.pair", why="a rail that was not tested is not proven")
"Has every idle host and rail a partner to be tested with"


@dataclass(frozen=True)
class Candidate:
    """One host. kind: profile and fabric.   name: how other nodes reach it where a rail has no address.

    busy: its users.   mtu: of the inventory, None for what each rail has.   absent: why there is no info.
    """

    host: str
    kind: str
    info: HostInfo | None
    name: str
    busy: tuple[str, ...] = ()
    mtu: int | None = None
    absent: str = ""


@dataclass(frozen=True)
class Pairs:
    """passes: each host -> its sessions.   findings: host -> missing tests."""

    passes: tuple[Mapping[str, tuple[Session, ...]], ...] = ()
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


def plan(candidates: Sequence[Candidate], limit: int) -> Pairs:
    """Return the pairs. limit: rounds, of two passes each. Pure; linear in the hosts for a given number of rounds."""
    kinds: dict[str, dict[str, Candidate]] = {}
    findings: dict[str, list[Finding]] = {one.host: [] for one in candidates}
    for one in candidates:
        if one.info is None:
            findings[one.host].append(untested(one.absent or "nothing was read of its rails", "see why"))
        elif one.busy:
            findings[one.host].append(untested(f"busy: {one.busy[0]}", "run it again when the node is idle"))
        else:
            kinds.setdefault(one.kind, {})[one.host] = one
    passes: list[dict[str, tuple[Session, ...]]] = []
    for kind, group in sorted(kinds.items()):
        planned = rounds(list(group), limit)
        if not planned:
            fix = "add another host of this kind to the run, or wait until one is idle"
            findings[next(iter(group))].append(untested(f"no other idle host of {kind}", fix))
        for number, pairs in enumerate(planned):
            while len(passes) < 2 * (number + 1):
                passes.append({})
            for first, second in pairs:
                one, other = group[first], group[second]
                for turn, (sender, receiver) in enumerate(((one, other), (other, one))):
                    ends = sessions(sender, receiver)
                    passes[2 * number + turn][sender.host] = tuple(session for session, _served in ends)
                    passes[2 * number + turn][receiver.host] = tuple(served for _session, served in ends)
        for one in group.values():
            findings[one.host].extend(_missing(one))
    return Pairs(tuple(passes), {host: tuple(found) for host, found in findings.items()})


def plan_pings(candidates: Sequence[Candidate]) -> dict[str, tuple[list[Ping], list[Finding]]]:
    """Return for each host its pings, and findings on Ethernet rails without a target. Linear in the hosts."""
    kinds: dict[str, dict[str, Candidate]] = {}
    for one in candidates:
        kinds.setdefault(one.kind, {})[one.host] = one
    found: dict[str, tuple[list[Ping], list[Finding]]] = {}
    for kind, group in kinds.items():
        peers = {host: _peers(one) for host, one in group.items()}
        asked: dict[str, list[Ping]] = {host: [] for host in group}
        for pair in itertools.chain(*rounds(list(group), PARTNERS)):
            # A path may work one way only.
            for source, target in (pair, pair[::-1]):
                for rail in sorted(peers[source].keys() & peers[target].keys()):
                    here, there, mtu = peers[source][rail], peers[target][rail], group[source].mtu
                    if here.address and there.address:
                        asked[source].append(Ping(here, there, here.mtu if mtu is None else mtu))
        for host, of_host in peers.items():
            rails = {ping.source.rail for ping in asked[host]}
            found[host] = asked[host], [_unpinged(kind, peer) for rail, peer in of_host.items() if rail not in rails]
    return found


def _peers(one: Candidate) -> dict[int, Peer]:
    rails = [rail for rail in (one.info.rails if one.info else ()) if rail.link_layer == "Ethernet"]
    return {
        rail.number: Peer(
            host=one.host,
            rail=rail.number,
            live=netdev_mtu.LIVE.finding_id(rail.pci),
            netdev=rail.netdev,
            address=rail.address or "",
            mtu=rail.mtu,
            vrf=rail.vrf,
        )
        for rail in rails
    }


def _unpinged(kind: str, peer: Peer) -> Finding:
    have, fix = "no other host of the run has this rail", f"add another host of {kind} to the run"
    if not peer.address:
        have, fix = "it has no address that RDMA would take", f"look at ip address show dev {peer.netdev}"
    return rail_ping.unproven(f"rail {peer.rail}", have, fix)


def sessions(sender: Candidate, receiver: Candidate) -> list[tuple[Session, Session]]:
    """Return both ends of each rail that both hosts have."""
    found = []
    there = {rail.number: rail for rail in receiver.info.rails} if receiver.info else {}
    for rail in sender.info.rails if sender.info else ():
        if other := there.get(rail.number):
            # A program that is not bound to a VRF reaches no address in one.
            address = receiver.name if rail.vrf or other.vrf else other.address or receiver.name
            client = _session(CLIENT, rail, sender, receiver.host, address)
            found.append((client, _session(SERVER, other, receiver, sender.host, "")))
    return found


def _session(role: str, rail: RailInfo, host: Candidate, peer: str, address: str) -> Session:
    of_rail = {name: getattr(rail, name) for name in ("pci", "device", "rate_gbps", "link_layer", "gpu", "gpu_index")}
    return Session(role=role, rail=rail.number, peer=peer, address=address, mtu=rdma_mtu(host.mtu), **of_rail)


def _missing(one: Candidate) -> list[Finding]:
    fix = "run site.yml --tags platform for this host"
    missing = sorted(one.info.missing.items()) if one.info else []
    return [untested(f"no test: {why}", fix, "rail %d" % number) for number, why in missing]


def untested(have: str, fix: str, subject: str = "host") -> Finding:
    """Judge a host, a rail or a partner that has no test."""
    want = "tested against the same rail of another host"
    return PAIR.judge(subject, "unknown", want, have, "inventory and sysfs of all hosts", fix)


def candidate(host: str, of_host: PlainView, there: bool, check_mode: bool) -> Candidate:
    values = host_variables.values(of_host)
    read = result_schema.given(of_host.get("rail_info_result"), "topology_info")
    ping = result_schema.given(of_host.get("rail_ping_result"), "perftest")
    # A host that was lost meanwhile starts nothing more.
    read = ping if ping.get("unreachable") or ping.get("failed") else read
    if "rail_info" in read and "busy" not in read:
        read = {"msg": "its result does not show whether it is in use"}
    absent = "unreachable" if read.get("unreachable") else str(read.get("msg") or "nothing was read of its rails")
    return Candidate(
        host=host,
        kind=host_variables.kind(of_host),
        info=host_variables.of_host({"rail_info_result": read}) if there else None,
        name=str(of_host.get("ansible_host") or host),
        # Stored results of a node in use are valid.
        busy=() if check_mode else tuple(read.get("busy") or ()),
        mtu=values.get("busbar_mtu"),
        absent=absent,
    )


def classes(values: PlainView) -> dict[str, int]:
    """Return the traffic class of a host's tests, and its DSCP and priority; -1 for none. values: of its intent."""
    wanted = host_variables.chain(values)
    return {
        "traffic_class": -1 if wanted.dscp is None else nccl_conf.traffic_class(wanted.dscp),
        "priority": -1 if wanted.priority is None or not wanted.pfc else wanted.priority,
        "dscp": -1 if wanted.dscp is None else wanted.dscp,
    }


def call(host: str, values: PlainView, sessions: Sequence[PlainView], **more: object) -> Call:
    """Return the call of perftest for one pass. values: of the host's intent.   more: other options."""
    arguments = {
        "sessions": list(sessions),
        **{name: values[f"perftest_{name}"] for name in ("seconds", "timeout", "share", "memory")},
        "traffic_class": classes(values)["traffic_class"],
        "address_family": (values["busbar_roce"] or {}).get("address_family", "ipv4"),
        **roots(values),
        **more,
    }
    return Call(host, "perftest", arguments, values["perftest_timeout"] + _SPARE)


def rdma_mtu(mtu: int | None) -> int:
    """Return the RDMA MTU that follows from the inventory's."""
    return netdev_mtu.rdma_mtu(mtu) if mtu else MTU
