"""The search driven by what a run registers, over a simulated cluster: its jobs, its rounds, its findings, its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.action import localise_round, localise_silent
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_gpu
from ansible_collections.busbar.fabric.plugins.plugin_utils import localise_record, localise_stored
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import GPUS, RAILS, Test

from tests.localising import ALONE, HEALTHY, RAIL, SHARE, SLOW_GPU, Cluster, Fault, wanted

from .test_cluster_plan_action import FACTS, host

ANSWER: dict[str, Any] = {"findings": [], "passed": []}
PERF: dict[str, Any] = {
    **ANSWER,
    "measured": {},
    "finished_at": 1.0,
    "simulated": True,
    "repeats": [],
    "statistics": [],
    "transport": {},
    "rails": {},
    "ranks": {},
    "nccl_version": "",
    "stored": False,
    "due": "always",
    "changed_since": [],
    "run_directory": "",
    "record": "",
}
RUN = {
    "name": "all_reduce-8G",
    "subject": "all_reduce 8 ranks 8G",
    "collective": "all_reduce",
    "gpus": 8,
    "max_bytes": 8 << 30,
    "bar": 440.0,
    "prediction": 460.0,
    "busbw": 480.0,
    "finished": 1.0,
    "simulated": True,
    "stored": True,
    "due": "",
    "rows": [],
}


def rails_of(number: int) -> dict[str, Any]:
    """What rail_info says of a node."""
    rails = [
        {
            "number": rail,
            "pci": f"0000:{16 + rail:02x}:00.0",
            "device": f"mlx5_{rail}",
            "netdev": "",
            "link_layer": "InfiniBand",
            "rate_gbps": 400,
            "address": f"10.{rail}.{number // 250}.{number % 250 + 1}",
            "mtu": 4096,
            "firmware": None,
            "psid": None,
            "qos": None,
            "gpu": "",
            "gpu_index": 0,
        }
        for rail in range(8)
    ]
    return {**ANSWER, "info": {"product": None, "driver": None, "rails": rails, "missing": {}}, "busy": []}


def finding(check: str, state: str, have: str) -> dict[str, Any]:
    text = {"subject": "x", "want": "y", "source": "nccl-tests", "why": "z", "fix": "w", "because": None}
    more = {"severity": "major", "aspect": "live", "disruption": "none", "id": f"{check}[live]@x"}
    return {"check": check, "state": state, "have": have, **text, **more}


def ill(check: str, subject: str, have: str) -> dict[str, Any]:
    """A finding of node_health."""
    return judge_gpu.THROTTLE.judge(subject, "drift", "not slowed", have, "nvidia-smi").to_dict() | {
        "check": check,
        "id": f"{check}[live]@{subject.split(' ')[0]}",
    }


def perf(figure: float, least: float) -> dict[str, Any]:
    """What nccl_perf answers of a run with that figure."""
    slow = figure < least
    findings = [finding("nccl_perf.busbw", "drift", "slow")] if slow else []
    evidence = {} if slow else {"nccl_perf.busbw[live]@x": ["fast", "nccl-tests"]}
    return {**PERF, "busbw": figure, "findings": findings, "passed": [*evidence], "evidence": evidence}


@dataclass
class Site:
    """A run over a simulated cluster: what its tasks register, task by task. told: what it prints.

    dead: host -> number of the round in which its job dies, and it can be reached no more.
    health: host -> findings of node_health, where it is asked for them.
    """

    cluster: Cluster
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    dead: dict[str, int] = field(default_factory=dict)
    health: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    path: str = ""
    check_mode: bool = False
    rounds: int = 0

    def __post_init__(self) -> None:
        for number, name in enumerate(self.cluster.hosts):
            facts = {**FACTS, "member": {**FACTS["member"], "name": name}}  # type: ignore[dict-item]
            self.raw[name] = {
                **host(facts, busbar_leaf=self.cluster.leaf[name]),
                "nccl_benchmark_result": {**ANSWER, "runs": [dict(RUN)]},
                "rail_info_result": rails_of(number),
            }

    @property
    def variables(self) -> dict[str, Any]:
        hosts = [*self.raw]
        hostvars = _HostVars(self.raw)
        return {
            "hostvars": hostvars,
            "ansible_play_hosts_all": hosts,
            "ansible_play_hosts": hosts,
            "inventory_hostname": hosts[0],
        }

    def act(self, module: Any) -> dict[str, Any]:
        action = module.ActionModule.__new__(module.ActionModule)
        action._task = SimpleNamespace(args={}, check_mode=self.check_mode)
        action.validate_argument_spec = lambda **_given: (None, {"path": self.path, "max_age_days": 30.0})
        found: dict[str, Any] = action.run(None, self.variables)
        assert not found.get("failed"), found["msg"]
        return found

    def play(self, limit: int = 40) -> dict[str, Any]:
        """The tasks of localise.yml. limit: rounds after which it is killed."""
        result = self.step()
        while result["more"] and self.rounds < limit:
            self.rounds += 1
            for test in localise_round.Search(self.variables).next():
                self.measure(test, result)
            silent = self.act(localise_silent)["hosts"]
            for name, of_host in self.raw.items():
                gone = self.dead.get(name, 99) <= result["number"]
                asked = {"unreachable": True, "msg": "no route"} if gone else of_host["nccl_cluster_member_result"]
                of_host["localise_asked"] = asked if name in silent else {"skipped": True, "changed": False}
                health = {**ANSWER, "findings": self.health.get(name, [])}
                of_host["localise_health"] = health if name in result["ask"] else {"skipped": True, "changed": False}
            result = self.step()
        return result

    def step(self) -> dict[str, Any]:
        result = self.act(localise_round)
        for of_host in self.raw.values():
            of_host["localise_round_result"] = result
        return result

    def measure(self, test: Test, asked: Mapping[str, Any]) -> None:
        """What nccl_perf and perftest register of one test."""
        died = any(self.dead.get(name, 99) <= test.number for name in test.hosts)
        given = self.cluster.answer(test)
        head = self.raw[test.hosts[0]]
        if test.kind == RAILS:
            for name in asked["sessions"].keys() & set(test.hosts):
                for number, sessions in enumerate(asked["sessions"][name]["passes"]):
                    sends = [one for one in sessions if one["role"] == "client"]
                    if sends:
                        answers = [self.rail(one, name, number == 2, given.ways) for one in sends]
                        answer = {**ANSWER, "sessions": answers, "finished_at": 1.0, "simulated": True}
                        one = {"number": test.number, "pass": number, "result": {} if died else answer}
                        self.raw[name].setdefault("localise_rails_measured", []).append(one)
            return
        if test.kind == GPUS:
            job = asked["gpus"][test.hosts[0]]
            assert job["pairs"] == [list(pair) for pair in test.pairs]
            results = []
            for pair, figure in given.pairs.items():
                result = perf((figure or 0) / ALONE * job["bar"] / SHARE, job["bar"])
                results.append({**result, "localise_gpu_job": {"localise_gpu_pair": list(pair)}})
            one = {"number": test.number, "results": results}
            head.setdefault("localise_gpus_measured", []).append(one)
            return
        job = asked["jobs"][test.hosts[0]]
        assert set(job["hosts"]) == set(test.hosts)
        answer = perf((given.figure or 0) / HEALTHY * job["bar"] / SHARE, job["bar"])
        result = {"failed": True, "msg": "mpirun lost a node"} if died else answer
        head.setdefault("nccl_cluster_measured", []).append({"name": job["name"], "result": result})

    def rail(self, session: Mapping[str, Any], source: str, both: bool, ways: Any) -> dict[str, Any]:
        figure = next(w.figure for w in ways if (w.rail, w.source, w.both) == (session["rail"], source, both))
        # 0.9 is of the payload in packets of 4,096 bytes: 397.5 Gb/s.
        result = {"test": "bw", "command": "ib_write_bw", "figure": figure / RAIL * 397.5, "mtu": 4096, "reason": ""}
        result.update(fix="", rc=0, memory="host", simulated=True)
        return {"session": dict(session), "results": [result], "moved": {}, "meaning": []}


class _HostVars(dict[str, Any]):
    def raw_get(self, name: str) -> Any:
        return self[name]


@pytest.fixture(autouse=True)
def _no_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_given: {})


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def made(cluster: Cluster, **more: Any) -> Site:
        found = Site(cluster, path=str(tmp_path), **more)
        monkeypatch.setattr(localise_round.display, "display", found.told.append)
        return found

    return made


def roots(result: Mapping[str, Any], but: tuple[str, ...] = ("localise.member",)) -> set[tuple[str, str]]:
    """Host, check and subject of what follows from nothing else."""
    return {
        (name, f"{one['check']} {one['subject']}".removesuffix(" host"))
        for name, of_host in result["hosts"].items()
        for one in of_host["findings"]
        if one["because"] is None and one["check"] not in but
    }


def test_a_healthy_cluster_is_cleared_in_three_rounds_and_not_asked_for_its_health(site: Any, tmp_path: Path) -> None:
    run = site(Cluster(8, noise=False), health={"n0001": [GPU5]})
    result = run.play()
    assert not roots(result)
    assert not result["ask"]
    assert {of_host["localise_health"].get("skipped") for of_host in run.raw.values()} == {True}
    assert run.rounds == 2
    record = localise_record.read(tmp_path)
    assert (record.complete, record.simulated, record.launcher) == (True, True, "mpirun")
    assert [(one.kind, one.outcome) for one in record.tests] == [("pair", "pass")] * 4 + [("leaf", "pass")]
    assert record.nodes[0].alone_bar == 440.0
    assert "round 1, pairs: 4 of 4 pass" in run.told
    assert "no node is slow over 8 nodes by mpirun, 2 rounds, 5 tests (pairs 4, leaves 1)" in " ".join(
        run.told[-2].split()
    )


GPU5 = ill("node_health.throttle", "0000:9a:00.0 GPU5", "hw_thermal_slowdown 340 s in 9 h")
GPU2 = ill("node_health.throttle", "0000:4b:00.0 GPU2", "hw_thermal_slowdown 12 s in 9 h")
RAIL7 = ill("node_health.aer", "0000:17:00.0 rail 7", "900 corrected errors in 9 h")
KERNEL = ill("node_health.kernel_log", "dmesg", "not complete")


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
    ],
)
def test_each_fault_is_named_with_its_evidence_and_follows_from_its_own_health(
    site: Any, tmp_path: Path, kind: str, number: int, said: list[dict[str, Any]], cause: dict[str, Any] | None
) -> None:
    cluster = Cluster(9, [Fault(kind, "n0004", number)], seed=3)
    run = site(cluster, health=dict.fromkeys(cluster.hosts, said))
    result = run.play()
    [(_host, localised)] = wanted(cluster)
    root = f"{cause['check']} {cause['subject']}" if cause else localised
    assert roots(result) == {("n0004", root)}
    of_host = result["hosts"]["n0004"]["findings"]
    [slow] = [one for one in of_host if f"{one['check']} {one['subject']}".removesuffix(" host") == localised]
    assert slow["because"] == (cause["id"] if cause else None)
    assert slow["source"].startswith("simulated: ")
    assert "round" in slow["have"]
    # Its own jobs follow from that.
    assert [
        one
        for one in of_host
        if one["because"] is None and one is not slow and one["id"] not in {c["id"] for c in said}
    ] == []
    kept = [one.finding for one in localise_record.read(tmp_path).findings if one.finding.id == slow["id"]]
    told = [one.have for one in kept if not one.ok]
    assert [cause["have"] in (have or "") if cause else "because" not in (have or "") for have in told] == [True]
    assert (str(cause["have"]) if cause else "") in " ".join("\n".join(run.told).split())


def test_health_that_is_known_already_is_told_once(site: Any) -> None:
    cluster = Cluster(9, [Fault("slow rank", "n0004", 5)], seed=3)
    run = site(cluster, health={"n0004": [GPU5]})
    run.raw["n0004"]["node_health_result"] = {**ANSWER, "findings": [GPU5]}
    found = run.play()["hosts"]["n0004"]["findings"]
    assert GPU5["id"] not in {one["id"] for one in found}
    assert GPU5["id"] in {one["because"] for one in found}


def test_the_gpus_of_a_node_that_is_slow_alone_are_measured_in_pairs(site: Any) -> None:
    cluster = Cluster(8, [Fault(SLOW_GPU, "n0004", 3)], noise=False)
    run = site(cluster)
    run.raw["n0004"]["nccl_benchmark_result"]["runs"][0]["busbw"] = 288.0
    result = run.play()
    assert roots(result) == wanted(cluster), "\n".join(run.told)


def test_an_uplink_is_told_of_its_leaf(site: Any) -> None:
    cluster = Cluster(12, [Fault("slow uplink", "leaf01")], leaf_size=4, noise=False)
    result = site(cluster).play()
    assert roots(result) == {(name, "localise.uplink leaf leaf01") for name in cluster.hosts[4:8]}


def test_jobs_are_what_the_benchmark_of_that_scope_would_run(site: Any) -> None:
    run = site(Cluster(4, noise=False))
    result = run.step()
    assert list(result["jobs"]) == ["n0000", "n0002"]
    job = result["jobs"]["n0000"]
    assert (job["hosts"], job["names"], job["algorithm"]) == (["n0000", "n0001"], ["n0000", "n0001"], "Ring")
    assert (job["min_bytes"], job["max_bytes"], job["ranks"]) == (8 << 30, 8 << 30, 16)
    assert job["bar"] > 300
    assert (job["repeats"], job["program"]) == (1, "all_reduce_perf")


def test_who_is_slow_alone_busy_or_unread_is_left_out_by_name(site: Any) -> None:
    run = site(Cluster(8, noise=False))
    run.raw["n0000"]["nccl_benchmark_result"]["runs"][0]["busbw"] = 300.0
    busy = {**FACTS, "unfit": [{"have": "busy: process python", "fix": "wait"}]}
    run.raw["n0001"]["nccl_cluster_member_result"] = busy
    run.raw["n0002"]["nccl_benchmark_result"] = {"failed": True, "msg": "no GPU"}
    run.raw["n0002"]["busbar_intent"]["benchmark_runs"] = [{"bar": 440.0}]
    run.raw["n0003"]["busbar_intent"] = {}
    other = run.raw["n0004"]["nccl_cluster_member_result"]
    run.raw["n0004"]["nccl_cluster_member_result"] = {**other, "member": {**other["member"], "build": "NCCL 2.18.3"}}
    result = run.play()
    said = {name: [one["have"] for one in of_host["findings"]] for name, of_host in result["hosts"].items()}
    assert roots(result) == {("n0000", "localise.alone")}
    assert {name for name, have in said.items() if have} == {f"n000{number}" for number in range(5)}
    assert said["n0001"] == ["left out: busy: process python"]
    assert said["n0002"] == ["left out: it was not measured alone"]
    assert said["n0003"] == ["left out: its inventory was not read"]
    assert said["n0004"][0].startswith("left out: it has NCCL 2.18.3; 5 nodes have NCCL 2.28.9")


@pytest.mark.parametrize("victim", ["n0002", "n0003"])
def test_a_node_that_dies_is_lost_and_the_search_goes_on(site: Any, victim: str) -> None:
    run = site(Cluster(8, [Fault("slow rail", "n0005", 2)], noise=False), dead={victim: 1})
    result = run.play()
    assert roots(result) == {("n0005", "localise.rail rail 2")}
    [lost] = result["hosts"][victim]["findings"]
    assert (lost["check"], lost["state"]) == ("localise.member", "unknown")
    assert "it was lost while it was measured: unreachable" in lost["have"]
    assert any(line == f"  {victim} is lost: unreachable" for line in run.told)


def test_a_partner_that_dies_while_rails_are_tested_accuses_nobody_of_them(site: Any) -> None:
    faulty = Fault("slow rail", "n0001", 2)
    before = localise_record.from_dict(site(Cluster(8, [faulty], noise=False)).play()["record"])
    first = next(one for one in before.tests if one.kind == RAILS)
    run = site(Cluster(8, [faulty], noise=False))
    run.dead = {first.hosts[1]: first.number}
    assert roots(run.play()) == {("n0001", "localise.rail rail 2")}


def test_what_is_no_proof_of_a_figure_is_none(site: Any) -> None:
    """Without a verdict on its bandwidth a job proves nothing, whatever it reaches."""
    run = site(Cluster(4, noise=False))
    result = run.step()
    unproven = finding("nccl_perf.busbw", "unknown", "90 GB/s") | {"because": "nccl_perf.transport[live]@x"}
    for head, job in result["jobs"].items():
        said = {**PERF, "busbw": 999.0, "findings": [finding("nccl_perf.transport", "unknown", "no log"), unproven]}
        run.raw[head]["nccl_cluster_measured"] = [{"name": job["name"], "result": said}]
    results = [one for _group, of_group in localise_round.Search(run.variables).results(lost=False) for one in of_group]
    assert [(one.figure, one.said) for one in results] == [(None, "nccl_perf.transport: no log")] * 2
    assert run.act(localise_silent)["hosts"] == ["n0000", "n0001", "n0002", "n0003"]


def test_a_host_that_has_left_the_play_is_lost(site: Any) -> None:
    run = site(Cluster(4, noise=False))
    run.step()
    run.raw["n0000"]["localise_asked"] = {"skipped": True, "changed": False}
    run.raw["n0002"]["localise_asked"] = run.raw["n0002"]["nccl_cluster_member_result"]
    search = localise_round.Search(run.variables)
    [(_group, results)] = search.results(lost=True)
    assert [sorted(one.lost) for one in results] == [["n0000", "n0001"], ["n0003"]]


def test_a_search_that_was_killed_shows_how_far_it_came_and_the_next_starts_anew(site: Any, tmp_path: Path) -> None:
    run = site(Cluster(9, [Fault("slow rail", "n0004", 1)], noise=False))
    assert run.play(limit=2)["more"]
    record = localise_record.read(tmp_path)
    assert (record.complete, record.rounds) == (False, 2)
    again = site(Cluster(9, noise=False))
    again.step()
    assert "the last search was cut off after round 2" in again.told[0]
    again.play()
    assert localise_record.read(tmp_path).complete


def test_the_last_record_is_judged_in_check_mode(site: Any, tmp_path: Path) -> None:
    fresh = site(Cluster(8, noise=False), check_mode=True)
    assert roots(fresh.step()) == {(name, "localise.record") for name in fresh.raw}
    cluster = Cluster(8, [Fault("slow rail", "n0004", 1)], noise=False)
    site(cluster).play()
    checked = site(replace(cluster, nodes=9), check_mode=True)
    result = checked.step()
    assert roots(result) == {("n0004", "localise.rail rail 1"), ("n0008", "localise.record")}
    assert not result["more"]
    text, hosts = localise_stored.judged(str(tmp_path), ["n0004"], 30, time.time() + 31 * 86400)
    assert "LAST SEARCH" in text
    assert [one["check"] for one in hosts["n0004"]["findings"]] == ["localise.record"]
    assert localise_stored.judged("", ["n0004"], 30, 0)[1]["n0004"]["findings"][0]["state"] == "unknown"
    (tmp_path / "localise" / "latest" / "localise.json").write_text("{}")
    assert "cannot be read" in localise_stored.judged(str(tmp_path), ["n0004"], 30, 0)[0]


def test_what_the_benchmark_found_follows_from_what_the_search_found(site: Any) -> None:
    run = site(Cluster(8, [Fault("slow rail", "n0004", 1)], noise=False))
    slow = {**ANSWER, "findings": [finding("nccl_perf.busbw", "drift", "200 GB/s")]}
    wrong = {**ANSWER, "findings": [finding("nccl_perf.correct", "drift", "wrong")]}
    judged = dict.fromkeys(run.raw, slow) | {"n0007": wrong}
    for of_host in run.raw.values():
        of_host["nccl_cluster_judged"] = {"hosts": judged}
    result = run.play()
    root = next(one["id"] for one in result["hosts"]["n0004"]["findings"] if one["because"] is None)
    found = {name: of_host["findings"][0] for name, of_host in result["cluster"].items()}
    assert {name for name, one in found.items() if one["because"] == root} == set(run.raw) - {"n0007"}
    assert found["n0000"]["have"] == "200 GB/s; the search found n0004 (localise.rail)"
    assert found["n0004"]["have"] == "200 GB/s"
    assert found["n0007"] == wrong["findings"][0]
