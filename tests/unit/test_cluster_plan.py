"""Who is measured with whom between nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_plan, cluster_wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_plan import Expected, Measure, Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Member, Settings
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens

from .conftest import ROOT

G = 1 << 30
BUILD = "NCCL 2.27.7, Open MPI 4.1.4, nccl-tests a0b82b2260cf"
COLLECTIVES = ("all_reduce", "sendrecv")


def settings(scope: str, kind: str = "hgx-h100 infiniband") -> Settings:
    return Settings(kind, scope, COLLECTIVES, (1 << 20, 8 * G), 8, (0, 1))


def member(number: int, scope: str = "pair", leaf: str = "", **other: object) -> Member:
    rails = {0: ("mlx5_0", 0), 1: ("mlx5_1", 1)}
    known = {"settings": settings(scope), "name": f"n{number}", "address": f"10.0.0.{number}", "build": BUILD}
    return Member(f"node{number:02d}", **{**known, "rails": rails, "leaf": leaf, **other})  # type: ignore[arg-type]


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
        assert job.ranks == len(team) * (1 if job.scope == "rail" else 8)


@given(st.integers(2, 60))
def test_every_node_of_a_leaf_has_a_partner_and_only_the_odd_one_costs_a_second_round(count: int) -> None:
    rounds = cluster_plan.teams("pair", [[member(number) for number in range(count)]])
    pairs = [{one.host for one in team} for round_of in rounds for team in round_of]
    assert set().union(*pairs) == {f"node{number:02d}" for number in range(count)}
    assert [len(round_of) for round_of in rounds] == ([count // 2] if count % 2 == 0 else [count // 2, 1])


@given(st.integers(2, 5000))
def test_scaling_is_over_powers_of_two_and_all_of_them_come_first(nodes: int) -> None:
    found = cluster_plan.counts(nodes)
    assert sorted(found, key=lambda count: count != nodes) == found
    assert len(found) == len(set(found))
    assert all(count & (count - 1) == 0 for count in found[1:])
    assert found[1] == 1


GRADIENT = ("all_reduce", 14 * 10**9, "whole gradient")
RACK = "0f1e2d3c-0000-4000-8000-aabbccddeeff.32766"
PARTITION = "0f1e2d3c-0000-4000-8000-aabbccddeeff.1"
DOMAINS = (RACK, "1" + RACK[1:], RACK, "1" + RACK[1:], RACK, PARTITION, "")
# What keeps node02 from node01 and node03, which are alike.
OTHERS: dict[str, dict[str, object]] = {
    "busy": {"unfit": ("busy: Slurm job 7", "wait")},
    "the same name": {"name": "n1"},
    "the same address": {"address": "10.0.0.1"},
    "another build": {"build": "NCCL 2.28.9"},
    "another leaf": {"leaf": "b"},
    "no leaf": {"leaf": ""},
    "another platform": {"settings": settings("pair", "hgx-b200")},
}


def trays() -> list[Member]:
    """Of two racks, one that is alone in a partition, and one without a domain."""
    of = replace(settings("nvlink_domain"), apart=True)
    members = [member(number, settings=of, domain=domain) for number, domain in enumerate(DOMAINS)]
    return [*members[:-1], replace(members[-1], no_domain="4 of 4 GPUs have no UUID and clique of one")]


def two(scope: str, apart: bool) -> list[Member]:
    """apart: NVLinks between nodes are kept out of what is measured."""
    of = replace(settings(scope), apart=apart)
    return [member(1, scope, settings=of), member(2, scope, settings=of)]


CLUSTERS: dict[str, list[Member]] = {
    "five nodes of two leaves": [member(number, "cluster", leaf) for number, leaf in enumerate("abbba")],
    "rails that are not alike": [member(1, "rail"), member(2, "rail", rails={0: ("mlx5_0", 0), 1: ("mlx5_7", 1)})],
    "a cluster of one": [member(1, "cluster", "a")],
    "a pair of one": [member(1, "pair")],
    "a pair of one, with a leaf": [member(1, "pair", "a")],
    "half against half": [member(number, build=BUILD if number % 2 else "NCCL 2.28.9") for number in range(4)],
    # A job for each domain, at the same time: they share no tray.
    "trays of two racks": trays(),
    **{
        f"{scope}, NVLinks between nodes {'apart' if apart else 'used'}": two(scope, apart)
        for scope in ("pair", "rail", "leaf", "cluster")
        for apart in (True, False)
    },
    **{
        name: [member(1, leaf="a"), member(3, leaf="a"), member(2, **{"leaf": "a", **other})]  # type: ignore[arg-type]
        for name, other in OTHERS.items()
    },
}


@pytest.mark.golden
def test_who_is_measured_with_whom_and_who_is_left_out() -> None:
    lines = []
    for name, members in CLUSTERS.items():
        whole = "trays" in name or "five" in name
        found = planned(members, (GRADIENT, ("all_reduce", 8 * G, "as large as the range")) if whole else ())
        lines.append(f"== {name}{'; taken for one leaf' if found.one_leaf else ''}")
        for number, jobs in enumerate(found.rounds):
            for job in jobs:
                names = ("ranks", "min_bytes", "max_bytes", "bar", "way", "rails", "scaling")
                words = [f"{getattr(job, name)}" for name in names]
                lines.append(f"{number}: {job.name}: {', '.join(job.hosts)}: {' '.join(words)} {job.environment}")
        for host, findings in found.findings().items():
            lines += [f"{host}: {one.subject}: {one.state}: {one.have}; {one.fix}" for one in findings if not one.ok]
    goldens.text("cluster_plan", "\n".join(lines) + "\n")


def of_platform(name: str, **given: object) -> tuple[Settings, cluster_wanted.Kind]:
    profile = yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text())
    values = intent.read({"busbar_platform": name, "busbar_fabric": "infiniband", **given})
    found, asked = cluster_wanted.settings({"values": values, "profile": profile, "profile_name": name}, "x")
    return found, cluster_wanted.Kind(found, values, asked, name, [])


@pytest.mark.parametrize("name", ["gb200-nvl72", "hgx-h100"])
@pytest.mark.parametrize("own", [{}, {"NCCL_MNNVL_ENABLE": 1}])
def test_whoever_sets_the_variable_measures_what_it_says_and_has_no_bar(name: str, own: dict[str, int]) -> None:
    found, kind = of_platform(name, nccl_benchmark_environment=own, nccl_benchmark_scope="pair")
    expected = kind.expected(Measure("all_gather", G, 8 * G), 2)
    tray = name == "gb200-nvl72"
    assert found.apart == (tray and not own)
    assert (expected.bar is None) == (tray and bool(own))
    assert ("NVLinks between nodes left out" in expected.rule) == found.apart


def test_where_no_nvlink_leaves_the_node_there_is_no_bar() -> None:
    _found, kind = of_platform("hgx-h100", nccl_benchmark_scope="nvlink_domain")
    expected = kind.expected(Measure("all_gather", G, 8 * G), 2)
    assert (expected.bar, expected.prediction) == (None, None)
    assert "nvlink_domain" in expected.bar_source


@pytest.mark.parametrize(("name", "nvls"), [("gb200-nvl72", 811), ("gb300-nvl72", 932)])
def test_bars_over_nvlinks_are_predicted_and_say_so(name: str, nvls: int) -> None:
    # SHARP is of the network's switches, and no word on these.
    extra = {"NCCL_COLLNET_ENABLE": "1"}
    _found, kind = of_platform(name, nccl_benchmark_scope="nvlink_domain", nccl_conf_extra=extra)
    for collective, least, most in (("all_reduce", 650, nvls), ("all_gather", 500, 722), ("alltoall", 500, 722)):
        expected = kind.expected(Measure(collective, 8, 16 * G), 18)
        assert expected.bar is not None
        assert expected.prediction is not None
        assert least < expected.bar < expected.prediction <= most
        assert "over the NVLinks of 18 trays: predicted, not measured" in expected.bar_source
        assert expected.latency_bar_us is None
    assert kind.expected(Measure("all_gather", G, 8 * G), 19).bar is None
