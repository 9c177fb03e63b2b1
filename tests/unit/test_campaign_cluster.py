"""The benchmark between nodes of a simulated cluster: members, bars, jobs, the record, and what a lost node costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster, cluster_plan, cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_wanted import Kinds
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Member, Site
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.nodes import checked

from tests import goldens
from tests.campaigns import ANSWER, FACTS, PERF, ROOT, Nodes, Play, altered, perf, variables
from tests.localising import Cluster

DOMAIN = "0f1e2d3c-0000-4000-8000-aabbccddeeff.32766"
MEMBER, RECORD = "member", "record"


def kinds_of(**hosts: dict[str, Any]) -> Kinds:
    return Kinds(Site(hosts, set(hosts), lambda _calls: [], print), intent_action.bars_of)


def member(facts: Any = None, *, name: str = "node01", there: bool = True, **given: Any) -> Member:
    """Return the member that a host is. facts: result of its module; given: values, or ``registered`` variables."""
    registered = given.pop("registered", {})
    raw = {name: {**variables(**given), **registered}}
    site = Site(raw, {name} if there else (), lambda _calls: [], print)
    read = checked(Call(name, "nccl_cluster", {}), FACTS if facts is None else facts)
    [found] = Kinds(site, intent_action.bars_of).members({name: read} if facts != {} else {}, [name])
    return found


def test_a_node_that_can_take_part_is_reached_as_the_inventory_says() -> None:
    found = member()
    assert (found.unfit, found.name, found.address) == (None, "n1", "node01")
    assert found.rails == {0: ("mlx5_0", 0)}
    assert (found.settings.gpus, found.settings.rails) == (8, tuple(range(8)))
    assert member(nccl_benchmark_address="10.0.0.1").address == "10.0.0.1"
    slurm: dict[str, Any] = {"nccl_benchmark_launcher": "srun"}
    assert member(name="node01.example", **slurm).address == "node01"
    assert member(**slurm, drain_slurm_node="gpu-1").address == "gpu-1"
    # Other values are other jobs.
    assert member().settings == found.settings
    assert member(nccl_benchmark_repeats=5).settings != found.settings
    assert member(altered(domain=DOMAIN, no_domain="")).domain == DOMAIN


@pytest.mark.golden
def test_whoever_cannot_take_part_is_told_why_and_what_to_do() -> None:
    # What a node answers becomes a word of another node's launcher, or a variable of its program: or it does not.
    locked = {"held": False, "findings": [], "passed": [], "holder": None}
    unfit = {
        "no result": member({}),
        "unreachable": member({"unreachable": True, "msg": "no route"}),
        "failed": member({"failed": True, "msg": "no\nprofile"}),
        "locked": member(registered={"node_lock_result": locked}),
        "busy": member({**FACTS, "unfit": [{"have": "busy: job 7", "fix": ""}] * 2}),
        "no inventory": member(registered={"busbar_intent": {}}),
        "an option in its name": member(altered(name="n1 -x LD_PRELOAD")),
        "no name": member(altered(name="")),
        "a path for a device": member(altered(rails={"0": {"device": "../mlx5", "gpu": 0}})),
        "two GPUs of a rail": member(altered(rails={"0": {"device": "mlx5_0", "gpu": "0,1"}})),
        "a path for a domain": member(altered(domain=f"../{DOMAIN}")),
        "no NVLinks to other nodes": member(nccl_benchmark_scope="nvlink_domain"),
        "has left the play": member(there=False),
        "an odd name in the inventory": member(name="node 01"),
    }
    lines = [f"{name}: {'; '.join(one.unfit or ('fit',))}" for name, one in unfit.items()]
    goldens.text("cluster_plan_action", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("when", "stored", "said"),
    [
        ("changed", {"due": "scope cluster: never measured"}, "scope cluster: never measured"),
        ("changed", {"due": ""}, ""),
        ("changed", {"failed": True, "msg": "invalid"}, "its last result is unknown"),
        ("always", {"due": ""}, "nccl_benchmark_when is always"),
        ("never", {"due": "scope cluster: never measured"}, ""),
    ],
)
def test_it_is_measured_when_the_inventory_says(when: str, stored: dict[str, Any], said: str) -> None:
    assert cluster.reason({"nccl_benchmark_when": when}, stored) == said


@pytest.mark.parametrize(
    ("given", "drained", "queried"),
    [
        ({}, (), ""),
        ({"nccl_benchmark_launcher": "srun"}, (), "n0"),
        ({"busbar_drain": "slurm", "drain_slurm_node": "gpu-1"}, (), "gpu-1"),
        ({"busbar_drain": "slurm", "drain_slurm_host": "login"}, (), ""),
        ({"busbar_drain": "slurm"}, ("n0.site",), ""),
    ],
)
def test_slurm_is_queried_where_it_drains_the_node_and_another_has_not_drained_it(
    given: dict[str, Any], drained: Sequence[str], queried: str
) -> None:
    run = mock.Mock(return_value=[{}])
    Site({"n0.site": variables(**given)}, {"n0.site"}, run, print, str, drained).query_members(["n0.site"])
    [calls] = run.call_args.args
    assert [call.arguments["slurm_node"] for call in calls] == [queried]


def test_jobs_have_the_bars_of_their_scope_and_the_messages_of_the_model() -> None:
    given = {"busbar_model_parameters": "7B", "nccl_benchmark_collectives": ["all_reduce", "sendrecv"]}
    hosts = {f"node{n:02d}": variables(**given) for n in range(3)}
    kinds = kinds_of(**hosts)
    members = kinds.members({host: altered(name=host) for host in hosts}, hosts)
    found = cluster_plan.plan(members, kinds.measures, kinds.expected)
    by_name = {job.name: job for jobs in found.rounds for job in jobs}
    whole = by_name["cluster all_reduce 8G 3 nodes"]
    assert None not in (whole.bar, whole.prediction, whole.latency_bar_us)
    assert whole.min_bytes == 8
    assert (whole.rails, by_name["cluster sendrecv 8G 3 nodes"].rails) == (8, 1)
    assert by_name["cluster all_reduce 8G 1 node"].bar is None
    assert "DDP bucket of 25 MiB" in {job.what for job in by_name.values()}
    text = "\n".join(cluster.summarise(found, {"node00": "never measured"}, check_mode=True))
    assert "would be run over 3 nodes (node[00-02]): never measured" in text
    assert "busbar_leaf is not set: all nodes are taken for one leaf" in text


def test_that_nothing_is_measured_is_said_with_the_reason() -> None:
    nobody = cluster_plan.Plan(left_out={"node03": ("unreachable", "see")})
    for standing, said in (
        (["node01", "node02"], "the last results stand of node[01-02]"),
        ([], "no host can be measured"),
    ):
        assert cluster.summarise(nobody, {}, False, standing) == [
            f"BETWEEN NODES: nothing to measure, {said}",
            "  left out: node03: unreachable",
        ]


def test_an_algorithm_that_the_site_sets_itself_is_not_set_once_more() -> None:
    for environment, algorithm in (({}, "Ring"), ({"NCCL_ALGO": "Tree"}, "")):
        kinds = kinds_of(n0=variables(nccl_benchmark_scope="pair", nccl_benchmark_environment=environment))
        measures = kinds.measures(kinds.settings("n0"), 2)
        assert {one.algorithm for one in measures if one.collective == "all_reduce"} == {algorithm}


def test_the_bar_is_for_the_algorithm_that_the_site_sets() -> None:
    def of(collective: str = "all_reduce", **environment: str) -> cluster_plan.Expected:
        kinds = kinds_of(n0=variables(nccl_benchmark_environment=environment))
        settings = kinds.settings("n0")
        [measure] = [m for m in kinds.measures(settings, 4) if m.collective == collective and not m.what]
        return kinds.expected(settings, measure, 4)

    assert "NVLSTree" in of().bar_source
    ring = of(NCCL_ALGO="Ring")
    assert "NVLSTree" not in ring.bar_source
    assert (ring.prediction or 0) < (of().prediction or 0)
    assert of(NCCL_ALGO="Tree") == of()
    sharp = of(NCCL_COLLNET_ENABLE="1")
    # What nccl-tests print for it, 369 GB/s, is near what a ring could carry at most; the algbw is far below the wire.
    assert sharp.bar_source.startswith("190.6 GB/s algbw, derived: 0.85 of the prediction 226.9 GB/s (algbw")
    assert sharp.prediction == pytest.approx(226.9 * 2 * 31 / 32, abs=0.2)
    assert sharp.bar == 369.3
    assert of("all_gather", NCCL_COLLNET_ENABLE="1", NCCL_ALGO="Ring") == of("all_gather")


def test_bars_that_cannot_be_read_stop_the_plan(tmp_path: Path) -> None:
    (tmp_path / "bars.yml").write_text("- {}")
    with pytest.raises(ParseError, match=r"bars\.yml"):
        member(registered={"inventory_dir": str(tmp_path)})
    assert intent_action.bars_of(ROOT)


# -- a whole benchmark -------------------------------------------------------------------------------------------------


def play(count: int, scope: str, **says: Any) -> Play:
    run = Play(Nodes(Cluster(count, noise=False), says={(host, "nccl_perf"): said for host, said in says.items()}))
    for of_host in run.raw.values():
        values = of_host["busbar_intent"]["values"]
        values.update(nccl_benchmark_scope=scope, nccl_benchmark_collectives=["all_reduce"])
    return run


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"failed": True, "msg": "no mpirun\n here"}, "n0000: no mpirun here"),
        ({"unreachable": True, "msg": "no route"}, "n0000: unreachable"),
        ({"findings": [{"check": "x"}], "busbw": 1e99}, "n0000: its result is not valid"),
        ({**PERF, "busbw": 1.0, "passed": ["a.b[live]@c"]}, "n0000: its result is not valid: evidence"),
    ],
)
def test_a_job_without_a_result_costs_its_hosts_their_verdict_and_no_others(said: dict[str, Any], text: str) -> None:
    run = play(4, "pair", n0000=said)
    outcome = run.benchmark()
    assert outcome.record is not None
    assert cluster_record.from_dict(cluster_record.to_dict(outcome.record)) == outcome.record
    lost, fine = outcome.record.jobs
    assert lost.said.startswith(text)
    assert fine.busbw is not None
    checks = {host: [one["check"] for one in of_host["findings"]] for host, of_host in outcome.hosts.items()}
    # The simulation has no figure of a small message.
    lost_one, no_latency = ["nccl_cluster.job"], ["nccl_cluster.latency"]
    assert checks == dict.fromkeys(lost.hosts, lost_one) | dict.fromkeys(fine.hosts, no_latency)
    cluster.store(run.site, outcome.stores)
    stored = {call.host: call.arguments["measured"] for call in run.nodes.calls if "measured" in call.arguments}
    assert stored == outcome.stores


def test_check_mode_measures_nothing_and_gives_the_last_results() -> None:
    run = play(4, "pair")
    outcome = run.benchmark(check_mode=True)
    assert (outcome.record, run.nodes.rounds) == (None, 0)
    assert {of_host["due"] for of_host in outcome.hosts.values()} == {"scope cluster: never measured"}
    assert run.told[0].startswith("BETWEEN NODES: 2 jobs in 1 round would be run over 4 nodes")


def test_a_group_none_of_which_is_due_keeps_its_results() -> None:
    run = play(4, "pair")
    good = {**ANSWER, "passed": ["a.b[live]@c"], "due": ""}
    run.nodes.says = {(host, RECORD): good for host in run.raw}
    outcome = run.benchmark()
    assert run.nodes.rounds == 0
    assert {tuple(of_host["passed"]) for of_host in outcome.hosts.values()} == {("a.b[live]@c",)}


def test_the_search_starts_where_a_bar_is_missed_unless_the_site_forbids_it() -> None:
    run = play(2, "pair")
    run.nodes.says["n0000", "nccl_perf"] = perf(1.0, 2.0)
    assert run.benchmark().misses
    run.raw["n0001"]["busbar_intent"]["values"]["nccl_benchmark_localise"] = False
    outcome = run.benchmark()
    assert not outcome.misses
    assert "playbooks/localise.yml" in outcome.hosts["n0000"]["findings"][0]["fix"]


def test_the_record_is_written_as_it_was_measured(tmp_path: Path) -> None:
    run = play(2, "pair")
    record = run.benchmark().record
    assert record is not None
    cluster.write(run.site, record, str(tmp_path))
    assert cluster_record.read(tmp_path) == record
    assert any(line.startswith("results: ") for line in run.told)


def test_a_host_that_is_left_out_is_told_so_unless_its_last_result_stands() -> None:
    left = [cluster_plan.MEMBER.judge("host", "unknown", "a test", "left out: busy", "a test")]
    good = {"findings": [], "passed": ["a.b[live]@c"], "due": ""}
    due = {"findings": [], "passed": [], "due": "never measured"}
    assert cluster.stored_result(good, left)["findings"] == []
    for stored in (due, {}):
        assert [one["have"] for one in cluster.stored_result(stored, left)["findings"]] == ["left out: busy"]
    assert cluster.stored_result(due)["findings"] == []
    assert cluster.stored_result({"unreachable": True, "msg": "no route"}, left)["unreachable"]


@pytest.mark.parametrize(
    ("scope", "extra", "found"),
    [
        ("cluster", {}, {"1": 1, "2": 1, "4": 1}),
        ("leaf", {"NCCL_IB_QPS_PER_CONNECTION": "4"}, {"1": 4, "2": 4, "4": 4}),
        ("leaf", {"NCCL_IB_QPS_PER_CONNECTION": "many"}, {"1": 1, "2": 1, "4": 1}),
        ("pair", {}, {}),
        ("rail", {}, {}),
    ],
)
def test_queue_pairs_are_jobs_of_their_own(scope: str, extra: dict[str, str], found: dict[str, int]) -> None:
    hosts = {
        f"n{number}": variables(
            nccl_benchmark_scope=scope, nccl_benchmark_qps=[1, 2, 4, 2], nccl_conf_extra=extra, busbar_leaf="leaf01"
        )
        for number in range(2)
    }
    kinds = kinds_of(**hosts)
    members = kinds.members({host: altered(name=host) for host in hosts}, hosts)
    jobs = [job for jobs in cluster_plan.plan(members, kinds.measures, kinds.expected).rounds for job in jobs]
    swept = [job for job in jobs if job.queue_pairs]
    assert {job.environment["NCCL_IB_QPS_PER_CONNECTION"]: job.used_queue_pairs for job in swept} == found
    assert {job.bar for job in swept} <= {None}
    assert len({job.name for job in jobs}) == len(jobs)
    directories = {job.call(kinds._site.values("n0")).arguments["result_directory"] for job in jobs}
    assert scope == "rail" or len(directories) == len(jobs)
