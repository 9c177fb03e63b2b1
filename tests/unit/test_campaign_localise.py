"""The search on nodes of a simulated cluster: its jobs, its rounds, its findings, its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_gpu
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import RAILS

from tests.campaigns import ANSWER, FACTS, PERF, Nodes, Play, altered, finding, kind_of, roots
from tests.localising import SLOW_GPU, Cluster, Fault, wanted

MEMBER, HEALTH = "member", "node_health"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Play]:
    def made(cluster: Cluster, **more: Any) -> Play:
        return Play(Nodes(cluster, **more), str(tmp_path))

    return made


def ill(check: str, subject: str, have: str) -> dict[str, Any]:
    """Return a finding of node_health."""
    return judge_gpu.THROTTLE.judge(subject, "drift", "not slowed", have, "nvidia-smi").to_dict() | {
        "check": check,
        "id": f"{check}[live]@{subject.split(' ')[0]}",
    }


def health(*findings: dict[str, Any]) -> dict[str, Any]:
    return {**ANSWER, "findings": [*findings], "boot_id": "1", "devices": [], "ports": []}


GPU5 = ill("node_health.throttle", "0000:9a:00.0 GPU5", "hw_thermal_slowdown 340 s in 9 h")
GPU2 = ill("node_health.throttle", "0000:4b:00.0 GPU2", "hw_thermal_slowdown 12 s in 9 h")
RAIL7 = ill("node_health.aer", "0000:17:00.0 rail 7", "900 corrected errors in 9 h")
KERNEL = ill("node_health.kernel_log", "dmesg", "not complete")


def test_a_healthy_cluster_is_cleared_in_two_rounds_and_not_queried_for_its_health(
    play: Callable[..., Play], tmp_path: Path
) -> None:
    run = play(Cluster(8, noise=False))
    assert not roots(run.localise().hosts)
    assert run.nodes.rounds == 2
    assert HEALTH not in {call.module for call in run.nodes.calls}
    record = localise_record.read(tmp_path)
    assert (record.complete, record.simulated, record.launcher) == (True, True, "mpirun")
    assert [(one.kind, one.outcome) for one in record.tests] == [("pair", "pass")] * 4 + [("leaf", "pass")]
    assert record.nodes[0].alone_bar == 440.0
    assert run.told == [
        "LOCALISE: 8 of 8 nodes take part (n[0000-0007])",
        "round 1, pairs: 4 of 4 pass",
        "round 2, leaves: 1 of 1 pass",
    ]


@pytest.mark.parametrize(
    ("kind", "number", "said", "cause"),
    [
        ("slow rank", 5, [KERNEL, GPU2, GPU5], GPU5),
        ("slow rank", 4, [KERNEL, GPU2, GPU5], None),
        ("receives slowly", 7, [GPU5, RAIL7], RAIL7),
        ("receives slowly", 6, [GPU5, RAIL7], None),
        ("sends slowly", 0, [], None),
        ("slow rail", 3, [], None),
        ("slow node", 0, [], None),
        (SLOW_GPU, 3, [], None),
    ],
)
def test_each_fault_is_named_with_its_evidence_and_follows_from_its_own_health(
    play: Callable[..., Play],
    tmp_path: Path,
    kind: str,
    number: int,
    said: list[dict[str, Any]],
    cause: dict[str, Any] | None,
) -> None:
    cluster = Cluster(9, [Fault(kind, "n0004", number)], seed=3)
    run = play(cluster, says={(host, HEALTH): health(*said) for host in cluster.hosts})
    if kind == SLOW_GPU:
        run.raw["n0004"]["nccl_benchmark_result"]["runs"][0]["busbw"] = 288.0
    hosts = run.localise().hosts
    [(_host, localised)] = wanted(cluster)
    assert roots(hosts) == {("n0004", f"{cause['check']} {cause['subject']}" if cause else localised)}
    found = hosts["n0004"]["findings"]
    [slow] = [one for one in found if f"{one['check']} {one['subject']}".removesuffix(" host") == localised]
    assert slow["because"] == (cause["id"] if cause else None)
    assert slow["source"].startswith("simulated: ")
    assert "round" in slow["have"]
    assert {call.host for call in run.nodes.calls if call.module == HEALTH} == {"n0004"}
    kept = [one.finding for one in localise_record.read(tmp_path).findings if one.finding.id == slow["id"]]
    told = [one.have for one in kept if not one.ok]
    assert [cause["have"] in (have or "") if cause else "because" not in (have or "") for have in told] == [True]


def test_health_that_is_known_already_is_told_once(play: Callable[..., Play]) -> None:
    run = play(Cluster(9, [Fault("slow rank", "n0004", 5)], seed=3), says={("n0004", HEALTH): health(GPU5)})
    run.raw["n0004"]["node_health_result"] = {**ANSWER, "findings": [GPU5]}
    found = run.localise().hosts["n0004"]["findings"]
    assert GPU5["id"] not in {one["id"] for one in found}
    assert GPU5["id"] in {one["because"] for one in found}


def test_jobs_are_what_the_benchmark_of_that_scope_would_run(play: Callable[..., Play]) -> None:
    run = play(Cluster(4, noise=False))
    run.localise()
    calls = [call for call in run.nodes.calls if call.module == "nccl_perf"][:2]
    assert [call.host for call in calls] == ["n0000", "n0002"]
    given = calls[0].arguments
    assert (given["launch"]["hosts"], given["launch"]["addresses"]) == (["n0000", "n0001"], ["n0000", "n0001"])
    assert (given["algorithm"], given["min_bytes"], given["max_bytes"]) == ("Ring", 8 << 30, 8 << 30)
    assert (len(given["launch"]["hosts"]), given["repeats"], given["launch"]["per_node"]) == (2, 1, 8)
    assert given["bar_busbw"] > 300
    assert given["binary"].endswith("/all_reduce_perf")
    assert calls[0].seconds == 720


def test_who_is_slow_alone_busy_or_unread_is_left_out_by_name(play: Callable[..., Play]) -> None:
    run = play(Cluster(8, noise=False))
    run.raw["n0000"]["nccl_benchmark_result"]["runs"][0]["busbw"] = 300.0
    run.nodes.says["n0001", MEMBER] = {**FACTS, "unfit": [{"have": "busy: process python", "fix": "wait"}]}
    run.raw["n0002"]["nccl_benchmark_result"] = {"failed": True, "msg": "no GPU"}
    run.raw["n0002"]["busbar_intent"]["benchmark_runs"] = [{"bar": 440.0}]
    run.raw["n0003"]["busbar_intent"] = {}
    run.nodes.says["n0004", MEMBER] = altered(name="n0004", build="NCCL 2.18.3")
    hosts = run.localise().hosts
    said = {name: [one["have"] for one in of_host["findings"]] for name, of_host in hosts.items()}
    assert roots(hosts) == {("n0000", "localise.alone")}
    assert said.pop("n0000")
    assert said.pop("n0004")[0].startswith("left out: it has NCCL 2.18.3; 5 nodes have NCCL 2.28.9")
    assert {name: have for name, have in said.items() if have} == {
        "n0001": ["left out: busy: process python"],
        "n0002": ["left out: it was not measured alone"],
        "n0003": ["left out: its inventory was not read"],
    }


@pytest.mark.parametrize("victim", ["n0002", "n0003"])
def test_a_node_that_dies_is_lost_and_the_search_goes_on(play: Callable[..., Play], victim: str) -> None:
    run = play(Cluster(8, [Fault("slow rail", "n0005", 2)], noise=False), dead={victim: 1})
    hosts = run.localise().hosts
    assert roots(hosts) == {("n0005", "localise.rail rail 2")}
    [lost] = hosts[victim]["findings"]
    assert (lost["check"], lost["state"]) == ("localise.member", "unknown")
    assert "it was lost while it was measured: unreachable" in lost["have"]
    assert f"  {victim} is lost: unreachable" in run.told


def test_a_partner_that_dies_while_rails_are_tested_accuses_nobody_of_them(play: Callable[..., Play]) -> None:
    cluster = Cluster(8, [Fault("slow rail", "n0001", 2)], noise=False)
    first = next(one for one in play(cluster).localise().record.tests if one.kind == RAILS)
    run = play(cluster, dead={first.hosts[1]: first.number})
    assert roots(run.localise().hosts) == {("n0001", "localise.rail rail 2")}


def test_what_is_no_proof_of_a_figure_is_none(play: Callable[..., Play]) -> None:
    """Without a verdict on its bandwidth a job proves nothing, whatever it reaches."""
    unproven = finding("nccl_perf.busbw", "unknown", "90 GB/s") | {"because": "nccl_perf.transport[live]@x"}
    said = {**PERF, "busbw": 999.0, "findings": [finding("nccl_perf.transport", "unknown", "no log"), unproven]}
    run = play(Cluster(4, noise=False), says={(head, "nccl_perf"): said for head in ("n0000", "n0002")})
    tests = run.localise().record.tests
    assert {(one.figure, one.said) for one in tests if one.number == 1} == {(None, "nccl_perf.transport: no log")}
    # Whether they can still take part is asked of all hosts of such tests.
    assert sum(kind_of(call) == MEMBER for call in run.nodes.calls) > len(run.raw)


def test_a_search_that_was_killed_shows_how_far_it_came_and_the_next_starts_anew(
    play: Callable[..., Play], tmp_path: Path
) -> None:
    run = play(Cluster(9, [Fault("slow rail", "n0004", 1)], noise=False), limit=2)
    with pytest.raises(KeyboardInterrupt):
        run.localise()
    record = localise_record.read(tmp_path)
    assert (record.complete, record.rounds) == (False, 2)
    again = play(Cluster(9, noise=False))
    again.localise()
    assert localise_record.read(tmp_path).complete


def test_the_last_record_is_judged_in_check_mode(play: Callable[..., Play], tmp_path: Path) -> None:
    def checked(*hosts: str, days: float = 0) -> set[tuple[str, str]]:
        return roots(localise.judge_record(str(tmp_path), hosts, 30, time.time() + days * 86400)[1])

    assert checked("n0001") == {("n0001", "localise.record")}
    play(Cluster(8, [Fault("slow rail", "n0004", 1)], noise=False)).localise()
    rail, none = ("n0004", "localise.rail rail 1"), ("n0008", "localise.record")
    assert checked("n0001", "n0004", "n0008") == {rail, none}
    assert checked("n0004", days=31) == {("n0004", "localise.record")}
    said = [one["have"] for one in localise.judge_record("", ["n0004"], 30, 0)[1]["n0004"]["findings"]]
    assert said == ["nccl_benchmark_results_path is empty: no record is stored"]
    (tmp_path / "localise" / "latest" / "localise.json").write_text("{}")
    [broken] = localise.judge_record(str(tmp_path), ["n0004"], 30, 0)[1]["n0004"]["findings"]
    assert (broken["state"], "cannot be read" in broken["have"]) == ("unknown", True)


def test_what_the_benchmark_found_follows_from_what_the_search_found(play: Callable[..., Play]) -> None:
    aer = ill("node_health.aer", "0000:11:00.0 rail 1", "900 corrected errors in 9 h")
    run = play(Cluster(8, [Fault("slow rail", "n0004", 1)], noise=False), says={("n0004", HEALTH): health(aer)})
    slow = {**ANSWER, "findings": [finding("nccl_perf.busbw", "drift", "200 GB/s")]}
    wrong = {**ANSWER, "findings": [finding("nccl_perf.correct", "drift", "wrong")]}
    outcome = run.localise(dict.fromkeys(run.raw, slow) | {"n0007": wrong})
    # That follows from the health of the node in turn.
    [root] = [one["id"] for one in outcome.hosts["n0004"]["findings"] if one["because"] == aer["id"]]
    found = {name: of_host["findings"][0] for name, of_host in outcome.cluster.items()}
    assert {name for name, one in found.items() if one["because"] == root} == set(run.raw) - {"n0007"}
    assert found["n0000"]["have"] == "200 GB/s; the search found n0004 (localise.rail)"
    assert found["n0004"]["have"] == "200 GB/s"
    assert found["n0007"] == wrong["findings"][0]
