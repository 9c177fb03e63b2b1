"""Who tests with whom, and what became of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo
from ansible_collections.busbar.fabric.plugins.plugin_utils import rail_pairs
from ansible_collections.busbar.fabric.plugins.plugin_utils.rail_pairs import Candidate, Pairs

from tests.unit.test_result_schema import RAIL, RAIL_INFO


def candidate(number: int, rails: int = 2, kind: str = "hgx-h200 ethernet") -> Candidate:
    found = []
    for rail in range(rails):
        values: dict[str, Any] = {**RAIL, "number": rail, "pci": f"0000:1{rail}:00.0"}
        found.append(RailInfo(**{**values, "address": f"10.{16 + rail}.0.{number}"}))
    name = f"node{number:02d}"
    return Candidate(name, kind, HostInfo("X", "mlx5_core 1", tuple(found), {}), f"{name}.example.org")


def roles(pairs: Pairs, host: str) -> list[set[str]]:
    return [{session.role for session in one.get(host, ())} for one in pairs.passes]


@pytest.mark.parametrize("count", [2, 3, 8, 9, 200])
def test_every_host_sends_and_receives_and_has_one_role_at_a_time(count: int) -> None:
    pairs = rail_pairs.plan([candidate(number) for number in range(1, count + 1)], 1)
    for number in range(1, count + 1):
        played = roles(pairs, f"node{number:02d}")
        assert all(len(one) <= 1 for one in played)
        assert set().union(*played) == {"client", "server"}
    assert not any(pairs.findings.values())
    assert [len(one) for one in pairs.passes] == [count - count % 2] * (2 + 2 * (count % 2))


def test_both_ends_of_a_test_agree_and_more_rounds_bring_other_partners() -> None:
    pairs = rail_pairs.plan([candidate(number) for number in range(1, 9)], 3)
    assert len(pairs.passes) == 6
    assert len({session.peer for one in pairs.passes for session in one["node01"]}) == 3
    for one in pairs.passes:
        for host, sessions in one.items():
            for session in sessions:
                [other] = [end for end in one[session.peer] if end.rail == session.rail]
                assert (other.peer, {other.role, session.role}) == (host, {"client", "server"})
                if session.role == "client":
                    assert session.address == f"10.{16 + session.rail}.0.{int(session.peer[4:])}"


@pytest.mark.parametrize("odd", [{"address": None}, {"vrf": "vrf-fabric0"}])
def test_a_rail_without_an_address_or_in_a_vrf_is_reached_by_the_hosts_name(odd: dict[str, Any]) -> None:
    one, other = candidate(1, rails=1), candidate(2, rails=1)
    assert other.info is not None
    bare = replace(other, info=replace(other.info, rails=(replace(other.info.rails[0], **odd),)))
    addresses = {s.address for p in rail_pairs.plan([one, bare], 1).passes for s in p["node01"] if s.role == "client"}
    assert addresses == {"node02.example.org"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"busy": ("Slurm job 7",)}, "busy: Slurm job 7"),
        ({"info": None, "absent": "unreachable"}, "unreachable"),
        ({"kind": "hgx-h100 infiniband"}, "no other idle host of hgx-h100 infiniband"),
    ],
)
def test_a_host_that_cannot_be_tested_is_unknown_and_spares_the_others(change: dict[str, object], says: str) -> None:
    odd = replace(candidate(5), **change)  # type: ignore[arg-type]
    pairs = rail_pairs.plan([*(candidate(number) for number in range(1, 5)), odd], 1)
    [finding] = pairs.findings["node05"]
    assert (finding.check, finding.state, finding.have) == ("perftest.pair", "unknown", says)
    assert [one.get("node05", ()) for one in pairs.passes] == [(), ()]
    assert all(len(one) == 4 for one in pairs.passes)


def test_a_missing_rail_is_not_tested_and_told() -> None:
    one, other = candidate(1), candidate(2)
    assert other.info is not None
    lame = replace(other, info=replace(other.info, rails=other.info.rails[:1], missing={1: "no NIC at PIX of GPU 1"}))
    pairs = rail_pairs.plan([one, lame], 1)
    assert {session.rail for turn in pairs.passes for session in turn["node01"]} == {0}
    [finding] = pairs.findings["node02"]
    assert (finding.subject, finding.have) == ("rail 1", "no test: no NIC at PIX of GPU 1")


def test_of_a_host_that_is_in_use_the_last_results_still_count() -> None:
    one = candidate(1)
    assert one.info is not None
    info = one.info.to_dict()
    of_host: dict[str, Any] = {
        "busbar_intent": {"profile_name": "hgx-h200", "values": {"busbar_fabric": "ethernet", "busbar_mtu": 4200}},
        "rail_info_result": {**RAIL_INFO, "busy": ["Slurm job 7"], "rail_info": json.loads(json.dumps(info))},
        "ansible_host": "10.0.0.1",
    }
    found = [rail_pairs.candidate("node01", of_host, True, check_mode) for check_mode in (False, True)]
    assert [each.busy for each in found] == [("Slurm job 7",), ()]
    assert (found[0].kind, found[0].name, found[0].mtu) == ("hgx-h200 ethernet", "10.0.0.1", 4200)
    assert found[0].info == one.info
    # A result that does not show who uses the host is none.
    del of_host["rail_info_result"]["busy"]
    silent = rail_pairs.candidate("node01", of_host, True, False)
    assert (silent.info, silent.absent) == (None, "its result does not show whether it is in use")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"traffic_class": -1, "priority": -1, "dscp": -1}),
        ({"busbar_roce": {"dscp": 26}}, {"traffic_class": 104, "priority": 3, "dscp": 26}),
        # A lossy fabric has no priority that has to be kept.
        ({"busbar_roce": {"dscp": 26}, "roce_qos_pfc": []}, {"traffic_class": 104, "priority": -1, "dscp": 26}),
    ],
)
def test_tests_are_sent_with_the_class_that_nccl_has(values: dict[str, object], expected: dict[str, int]) -> None:
    assert rail_pairs.classes(values) == expected


# -- pings -------------------------------------------------------------------------------------------------------------

NOBODY = "no other host of the run has this rail"


def test_both_directions_of_every_rail_that_both_have_are_pinged() -> None:
    """With the MTU of the inventory; where it wants none, with that of the rail."""
    plan = rail_pairs.plan_pings([replace(candidate(1), mtu=4200), candidate(2, rails=3)])
    pings = {host: [(one.source.rail, one.target.host, one.mtu) for one in asked] for host, (asked, _) in plan.items()}
    assert pings == {host: [(rail, other, mtu) for rail in (0, 1)] for host, other, mtu in BOTH}
    [alone] = plan["node02"][1]
    assert (alone.state, alone.subject, alone.have) == ("unknown", "rail 2", NOBODY)
    sent = json.loads(json.dumps([asdict(one) for one in plan["node01"][0]]))
    assert rail_ping.pings(sent) == plan["node01"][0]


BOTH = (("node01", "node02", 4200), ("node02", "node01", 9000))


@pytest.mark.parametrize("count", [2, 3, 8, 1001])
def test_each_host_pings_few_partners_and_all_hosts_are_one_ring(count: int) -> None:
    plan = rail_pairs.plan_pings([candidate(number) for number in range(count)])
    partners = {host: {one.target.host for one in asked} for host, (asked, _alone) in plan.items()}
    assert all(1 <= len(found) <= rail_ping.PARTNERS for found in partners.values())
    reached: set[str] = set()
    waiting = ["node00"]
    while waiting:
        host = waiting.pop()
        waiting += partners[host] - reached
        reached.add(host)
    assert reached == set(partners)
    for asked, alone in plan.values():
        assert alone == []
        assert all(one.source.rail == one.target.rail and one.mtu == 9000 for one in asked)


def test_hosts_of_another_kind_and_rails_that_no_partner_has_are_unknown() -> None:
    one, other, lone = candidate(1), candidate(2), candidate(3, kind="hgx-h100 ethernet")
    assert other.info is not None
    bare = replace(other.info.rails[1], address=None)
    other = replace(other, info=replace(other.info, rails=(other.info.rails[0], bare)))
    plan = rail_pairs.plan_pings([one, other, lone])
    assert {host: {one.subject: one.have for one in alone} for host, (_asked, alone) in plan.items()} == {
        "node01": {"rail 1": NOBODY},
        "node02": {"rail 1": "it has no address that RDMA would take"},
        "node03": {"rail 0": NOBODY, "rail 1": NOBODY},
    }
    # InfiniBand has no addresses.
    cable = candidate(4, rails=1)
    assert cable.info is not None
    rail = replace(cable.info.rails[0], link_layer="InfiniBand")
    assert rail_pairs.plan_pings([replace(cable, info=replace(cable.info, rails=(rail,)))]) == {"node04": ([], [])}
