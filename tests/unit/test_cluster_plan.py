"""Who is measured with whom between nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_plan, cluster_wanted, intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_plan import (
    Expected,
    Measure,
    Member,
    Plan,
    Settings,
)
from hypothesis import given
from hypothesis import strategies as st

G = 1 << 30
BUILD = "NCCL 2.27.7, Open MPI 4.1.4, nccl-tests a0b82b2260cf"
COLLECTIVES = ("all_reduce", "sendrecv")


def settings(scope: str, kind: str = "hgx-h100 infiniband") -> Settings:
    return Settings(kind, scope, COLLECTIVES, (1 << 20, 8 * G), 8, (0, 1))


def member(number: int, scope: str = "pair", leaf: str = "", **other: object) -> Member:
    rails = {0: ("mlx5_0", 0), 1: ("mlx5_1", 1)}
    known = {
        "settings": settings(scope),
        "name": f"n{number}",
        "address": f"10.0.0.{number}",
        "build": BUILD,
        "rails": rails,
        "leaf": leaf,
    }
    return Member(f"node{number:02d}", **{**known, **other})  # type: ignore[arg-type]


def planned(members: list[Member], model: tuple[tuple[str, int, str], ...] = ()) -> Plan:
    def expected(_settings: Settings, test: Measure, nodes: int) -> Expected:
        return Expected(bar=100.0 * nodes, bar_source="a test", prediction=200.0, rule=test.collective)

    return cluster_plan.plan(members, lambda wanted, _nodes: cluster_plan.measures(wanted, model), expected)


@st.composite
def clusters(draw: st.DrawFn) -> list[Member]:
    count = draw(st.integers(0, 40))
    leaves = draw(st.sampled_from([("",), ("a", "b"), ("a", "b", "c", "")]))
    scope = draw(st.sampled_from(["pair", "rail", "leaf", "cluster"]))
    kinds = draw(st.sampled_from([("h100",), ("h100", "b200")]))
    found = []
    for number in range(count):
        one = member(number, scope, draw(st.sampled_from(leaves)))
        kind = settings(scope, draw(st.sampled_from(kinds)))
        unfit = ("busy: a job", "wait") if draw(st.integers(0, 5)) == 0 else None
        name = "n0" if draw(st.integers(0, 20)) == 0 else one.name
        build = "NCCL 2.28.9" if draw(st.integers(0, 10)) == 0 else BUILD
        values = {**one.__dict__, "settings": kind, "unfit": unfit, "name": name, "build": build}
        found.append(Member(**values))
    return found


@given(clusters())
def test_jobs_of_a_round_share_no_host_and_every_host_is_measured_or_told_why_not(members: list[Member]) -> None:
    found = planned(members)
    by_host = {one.host: one for one in members}
    for jobs in found.rounds:
        assert max(Counter(host for job in jobs for host in job.hosts).values()) == 1
    names = Counter(job.name for jobs in found.rounds for job in jobs)
    assert not names or max(names.values()) == 1
    assert set(found.hosts) | set(found.left_out) == set(by_host)
    assert not set(found.hosts) & set(found.left_out)
    said = found.findings()
    assert set(said) == set(by_host)
    assert {host for host, [one, *_more] in said.items() if not one.ok} == set(found.left_out)
    for job in (job for jobs in found.rounds for job in jobs):
        team = [by_host[host] for host in job.hosts]
        assert len({one.settings for one in team}) == len({one.build for one in team}) == 1
        assert len({one.name for one in team}) == len(team) == len(job.names)
        assert not [one for one in team if one.unfit]
        if job.scope != "cluster":
            assert len({one.leaf for one in team}) == 1
            assert len(team) == 2 if job.scope in ("pair", "rail") else len(team) >= 2
        assert job.to_dict()["ranks"] == len(team) * (1 if job.scope == "rail" else 8)


@given(st.integers(2, 60))
def test_every_node_of_a_leaf_has_a_partner_and_only_the_odd_one_costs_a_second_round(count: int) -> None:
    rounds = cluster_plan.teams("pair", [[member(number) for number in range(count)]])
    pairs = [{one.host for one in team} for round_of in rounds for team in round_of]
    assert set().union(*pairs) == {f"node{number:02d}" for number in range(count)}
    assert [len(round_of) for round_of in rounds] == ([count // 2] if count % 2 == 0 else [count // 2, 1])


@given(st.integers(0, 5000))
def test_scaling_is_over_powers_of_two_and_all_of_them_come_first(nodes: int) -> None:
    found = cluster_plan.counts(nodes)
    assert sorted(found, key=lambda count: count != nodes) == found
    assert len(found) == len(set(found))
    assert all(count & (count - 1) == 0 for count in found[1:])
    assert not found or found[1] == 1


def test_a_cluster_is_measured_whole_and_in_parts_that_stay_within_a_leaf() -> None:
    leaves = ["a", "b", "b", "b", "a"]
    model = (("all_reduce", 14 * 10**9, "whole gradient"), ("all_reduce", 8 * G, "as large as the range"))
    found = planned([member(number, "cluster", leaf) for number, leaf in enumerate(leaves)], model)
    jobs = [job for jobs in found.rounds for job in jobs]
    assert [job.name for job in jobs] == [
        "cluster all_reduce 8G 5 nodes",
        "cluster sendrecv 8G 5 nodes",
        "cluster all_reduce 14GB 5 nodes",
        "cluster all_reduce 8G 1 node",
        "cluster all_reduce 8G 2 nodes",
        "cluster all_reduce 8G 4 nodes",
    ]
    assert jobs[4].hosts == ("node01", "node02")
    assert jobs[5].hosts == ("node01", "node02", "node03", "node00")
    # Of the range, latency is judged by the smallest message; parts are only compared by the largest.
    assert [job.min_bytes for job in jobs] == [8, 1 << 20, 14 * 10**9, 8 * G, 8 * G, 8 * G]
    assert [job.scaling for job in jobs] == [False] * 3 + [True] * 3
    assert jobs[0].bar == 500
    assert not found.one_leaf


def test_pairs_test_nics_by_ring_and_rails_one_by_one_with_the_gpu_beside_them() -> None:
    found = planned([member(1), member(2)])
    assert [(job.collective, job.algorithm) for [job] in found.rounds] == [("all_reduce", "Ring"), ("sendrecv", "")]
    assert found.one_leaf == {"node01", "node02"}
    odd = member(2, "rail", rails={0: ("mlx5_0", 0), 1: ("mlx5_7", 1)})
    found = planned([member(1, "rail"), odd])
    [[job]] = found.rounds
    assert (job.per_node, job.environment) == (1, {"NCCL_IB_HCA": "=mlx5_0", "CUDA_VISIBLE_DEVICES": "0"})
    [_member, rail] = found.findings()["node01"]
    assert (rail.subject, rail.state) == ("rail 1", "unknown")
    assert rail.have == "not tested: it is mlx5_1 beside GPU 1 and mlx5_7 beside GPU 1 on node01 and node02"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"unfit": ("busy: Slurm job 7", "wait")}, "left out: busy: Slurm job 7"),
        ({"name": "n1"}, "left out: it calls itself n1, and so does node01"),
        ({"address": "10.0.0.1"}, "left out: it is reached by 10.0.0.1, and so does node01"),
        ({"build": "NCCL 2.28.9"}, f"left out: it has NCCL 2.28.9; 2 nodes have {BUILD}"),
        ({"leaf": "b"}, "left out: fewer than two nodes of hgx-h100 infiniband can take part on leaf b"),
        ({"leaf": ""}, "left out: busbar_leaf is set for other nodes, not for this one"),
        (
            {"settings": settings("pair", "hgx-b200")},
            "left out: fewer than two nodes of hgx-b200 can take part on leaf a",
        ),
    ],
)
def test_who_is_left_out_is_named_with_the_reason(other: dict[str, object], said: str) -> None:
    kept = [member(1, leaf="a"), member(3, leaf="a")]
    if not {"leaf", "settings"} & other.keys():
        other = {"leaf": "a", **other}
    found = planned([*kept, member(2, **{"leaf": "a", **other})])  # type: ignore[arg-type]
    [one] = found.findings()["node02"]
    assert (one.state, one.have) == ("unknown", said)
    assert one.fix
    # Of a name that two claim, neither is believed.
    measured = {"node03"} if {"name", "address"} & other.keys() else {"node01", "node03"}
    assert set(found.hosts) == (measured if len(measured) > 1 else set())


def test_a_node_that_is_alone_is_told_what_it_lacks() -> None:
    for scope, leaf, another in (("cluster", "a", False), ("pair", "", False), ("pair", "a", True)):
        [(_why, fix)] = planned([member(1, scope, leaf=leaf)]).left_out.values()
        assert "over both" in fix
        assert ("nccl_benchmark_scope: cluster" in fix) is another


@pytest.mark.parametrize("scope", ["pair", "rail", "leaf", "cluster"])
def test_nvlinks_between_nodes_are_kept_out_of_what_is_measured_there(scope: str) -> None:
    for apart, value in ((True, "0"), (False, None)):
        of = replace(settings(scope), apart=apart)
        found = planned([member(1, scope, settings=of), member(2, scope, settings=of)])
        jobs = [job for jobs in found.rounds for job in jobs]
        assert {job.environment.get("NCCL_MNNVL_ENABLE") for job in jobs} == {value}
        assert all(("NCCL_IB_HCA" in job.environment) == (scope == "rail") for job in jobs)


@pytest.mark.parametrize("name", ["gb200-nvl72", "hgx-h100"])
@pytest.mark.parametrize("own", [{}, {"NCCL_MNNVL_ENABLE": 1}])
def test_whoever_sets_the_variable_measures_what_it_says_and_has_no_bar(name: str, own: dict[str, int]) -> None:
    profiles = Path(__file__).resolve().parent.parent.parent / "profiles"
    given = {"busbar_platform": name, "busbar_fabric": "infiniband", "nccl_benchmark_environment": own}
    values = intent.read({**given, "nccl_benchmark_scope": "pair"})
    wanted = {"values": values, "profile": yaml.safe_load((profiles / f"{name}.yml").read_text()), "profile_name": name}
    found, asked = cluster_wanted.settings(wanted, "x")
    expected = cluster_wanted.Kind(found, values, asked, name, []).expected(Measure("all_gather", G, 8 * G), 2)
    tray = name == "gb200-nvl72"
    assert found.apart == (tray and not own)
    assert (expected.bar is None) == (tray and bool(own))
    assert ("NVLinks between nodes left out" in expected.rule) == found.apart


RACK = "0f1e2d3c-0000-4000-8000-aabbccddeeff.32766"
PARTITION = "0f1e2d3c-0000-4000-8000-aabbccddeeff.1"


def test_trays_are_measured_with_those_of_their_own_domain_and_of_no_other_way() -> None:
    of = replace(settings("nvlink_domain"), apart=True)
    domains = [RACK, "1" + RACK[1:], RACK, "1" + RACK[1:], RACK, PARTITION, ""]
    members = [member(number, settings=of, domain=domain) for number, domain in enumerate(domains)]
    members[6] = replace(members[6], no_domain="4 of 4 GPUs have no UUID and clique of one")
    found = planned(members, (("all_reduce", 14 * 10**9, "whole gradient"),))
    # A job for each domain, at the same time: they share no tray.
    assert [[job.name for job in jobs] for jobs in found.rounds] == [
        [f"nvlink_domain {what} in {uuid}.32766 {count} nodes" for uuid, count in (("0f1e2d3c", 3), ("1f1e2d3c", 2))]
        for what in ("all_reduce 8G", "sendrecv 8G", "all_reduce 14GB")
    ]
    assert found.rounds[0][0].hosts == ("node00", "node02", "node04")
    for job in (job for jobs in found.rounds for job in jobs):
        assert job.environment == {"NCCL_MNNVL_ENABLE": "1"}
        assert (job.to_dict()["way"], job.to_dict()["rails"]) == ("nvlink", 1)
    # Neither a lone tray nor one without a domain is measured, and both are told so, with what to do.
    assert {host: why for host, (why, _fix) in found.left_out.items()} == {
        "node05": f"no other tray of its NVLink domain {PARTITION} can take part",
        "node06": "it is in no NVLink domain: 4 of 4 GPUs have no UUID and clique of one",
    }
    assert all("imex.domain" in fix for _why, fix in found.left_out.values())
    assert not found.one_leaf


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72", "hgx-h100"])
def test_bars_over_nvlinks_are_predicted_and_say_so(name: str) -> None:
    profiles = Path(__file__).resolve().parent.parent.parent / "profiles"
    given = {"busbar_platform": name, "busbar_fabric": "infiniband", "nccl_benchmark_scope": "nvlink_domain"}
    # SHARP is of the network's switches, and no word on these.
    values = intent.read({**given, "nccl_conf_extra": {"NCCL_COLLNET_ENABLE": "1"}})
    wanted = {"values": values, "profile": yaml.safe_load((profiles / f"{name}.yml").read_text()), "profile_name": name}
    found, asked = cluster_wanted.settings(wanted, "x")
    kind = cluster_wanted.Kind(found, values, asked, name, [])
    if name == "hgx-h100":
        expected = kind.expected(Measure("all_gather", G, 8 * G), 2)
        assert (expected.bar, expected.prediction) == (None, None)
        assert "nvlink_domain" in expected.bar_source
        return
    nvls = 932 if name == "gb300-nvl72" else 811
    for collective, least, most in (("all_reduce", 650, nvls), ("all_gather", 500, 722), ("alltoall", 500, 722)):
        expected = kind.expected(Measure(collective, 8, 16 * G), 18)
        assert expected.bar is not None
        assert expected.prediction is not None
        assert least < expected.bar < expected.prediction <= most
        assert "over the NVLinks of 18 trays: predicted, not measured" in expected.bar_source
        assert expected.latency_bar_us is None
    assert kind.expected(Measure("all_gather", G, 8 * G), 19).bar is None


def test_half_against_half_is_not_guessed() -> None:
    members = [member(number, build=BUILD if number % 2 else "NCCL 2.28.9") for number in range(4)]
    assert set(planned(members).left_out) == {one.host for one in members}
