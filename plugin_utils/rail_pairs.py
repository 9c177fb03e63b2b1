# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pair hosts for tests: disjoint pairs of one kind, each host once sending and once receiving, rail by rail.

In one pass a host is in one pair and has one role, so that no second test slows a rail. A host without a partner is not
proven, and reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import CLIENT, SERVER, Session
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import rounds

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

    busy: its users.   mtu: intended RDMA MTU.   absent: why there is no info.
    """

    host: str
    kind: str
    info: HostInfo | None
    name: str
    busy: tuple[str, ...] = ()
    mtu: int = MTU
    absent: str = ""


@dataclass(frozen=True)
class Pairs:
    """passes: each host -> its sessions.   findings: host -> missing tests."""

    passes: tuple[Mapping[str, tuple[Session, ...]], ...] = ()
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


def plan(candidates: Sequence[Candidate], limit: int) -> Pairs:
    """Return the pairs. limit: rounds, of two passes each. Pure; linear in the hosts for a given number of rounds."""
    kinds: dict[str, list[Candidate]] = {}
    findings: dict[str, list[Finding]] = {one.host: [] for one in candidates}
    for one in candidates:
        if one.info is None:
            findings[one.host].append(untested(one.absent or "nothing was read of its rails", "see why"))
        elif one.busy:
            findings[one.host].append(untested(f"busy: {one.busy[0]}", "run it again when the node is idle"))
        else:
            kinds.setdefault(one.kind, []).append(one)
    passes: list[dict[str, tuple[Session, ...]]] = []
    for kind, group in sorted(kinds.items()):
        by_name = {one.host: one for one in group}
        planned = rounds(list(by_name), limit)
        if not planned:
            fix = "add another host of this kind to the run, or wait until one is idle"
            findings[group[0].host].append(untested(f"no other idle host of {kind}", fix))
        for number, pairs in enumerate(planned):
            while len(passes) < 2 * (number + 1):
                passes.append({})
            for first, second in pairs:
                one, other = by_name[first], by_name[second]
                for turn, (sender, receiver) in enumerate(((one, other), (other, one))):
                    ends = sessions(sender, receiver)
                    passes[2 * number + turn][sender.host] = tuple(session for session, _served in ends)
                    passes[2 * number + turn][receiver.host] = tuple(served for _session, served in ends)
        for one in group:
            findings[one.host].extend(_missing(one))
    return Pairs(tuple(passes), {host: tuple(found) for host, found in findings.items()})


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
    return Session(role=role, rail=rail.number, peer=peer, address=address, mtu=host.mtu, **of_rail)


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
        mtu=mtu_of(values),
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


def mtu_of(values: PlainView) -> int:
    """Return the intended RDMA MTU."""
    mtu = values.get("busbar_mtu")
    return netdev_mtu.rdma_mtu(mtu) if mtu else MTU
