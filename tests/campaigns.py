"""Nodes of a simulated cluster (tests/localising.py) that run the modules of a campaign, in memory. Simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster, localise, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_wanted import Kinds
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Site
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.nodes import checked

from tests.localising import ALONE, HEALTHY, RAIL, SHARE, Cluster

ROOT = Path(__file__).resolve().parent.parent
ANSWER: dict[str, Any] = {"findings": [], "passed": []}
FACTS: dict[str, Any] = {
    **ANSWER,
    "due": "",
    "unfit": [],
    "member": {"name": "n1", "build": "NCCL 2.28.9", "rails": {"0": {"device": "mlx5_0", "gpu": 0}}},
}
PERF: dict[str, Any] = {
    **ANSWER,
    **{name: {} for name in ("measured", "transport", "rails", "ranks")},
    **{name: [] for name in ("repeats", "statistics", "changed_since")},
    **dict.fromkeys(("nccl_version", "run_directory", "record"), ""),
    "finished_at": 1.0,
    "simulated": True,
    "stored": False,
    "due": "always",
}
RUN: dict[str, Any] = {
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


def variables(**given: Any) -> dict[str, Any]:
    """Return what a run has registered for a host. given: values of the inventory."""
    values = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "nccl_benchmark_scope": "cluster", **given}
    profile = yaml.safe_load((ROOT / "profiles" / "hgx-h100.yml").read_text())
    wanted = {"values": intent.read(values), "profile": profile, "profile_name": "hgx-h100"}
    return {"busbar_intent": wanted, "inventory_dir": str(ROOT)}


def altered(**values: Any) -> dict[str, Any]:
    """Return the result of phase ``member`` of nccl_cluster with other facts."""
    return {**FACTS, "member": {**FACTS["member"], **values}}


def kind_of(call: Call) -> str:
    """Return the module's phase or subset, or the module that has none."""
    return str(call.arguments.get("phase") or call.arguments.get("subset") or call.module)


def rails_of(number: int) -> dict[str, Any]:
    """Return the rails of a node, as topology_info does."""
    all_rails: dict[str, Any] = {"netdev": "", "link_layer": "InfiniBand", "rate_gbps": 400, "mtu": 4096}
    all_rails |= {**dict.fromkeys(("firmware", "psid", "qos")), "gpu": "", "gpu_index": 0}
    rails = [
        {
            "number": rail,
            "pci": f"0000:{16 + rail:02x}:00.0",
            "device": f"mlx5_{rail}",
            "address": f"10.{rail}.{number // 250}.{number % 250 + 1}",
            **all_rails,
        }
        for rail in range(8)
    ]
    return {**ANSWER, "rail_info": {"product": None, "driver": None, "rails": rails, "missing": {}}, "busy": []}


def finding(check: str, state: str, have: str) -> dict[str, Any]:
    text = {"subject": "x", "want": "y", "source": "nccl-tests", "why": "z", "fix": "w", "because": None}
    more = {"severity": "major", "aspect": "live", "disruption": "none", "id": f"{check}[live]@x"}
    return {"check": check, "state": state, "have": have, **text, **more}


def perf(figure: float, least: float) -> dict[str, Any]:
    """Return the result of nccl_perf with that figure, judged against the bar."""
    slow = figure < least
    findings = [finding("nccl_perf.busbw", "drift", "slow")] if slow else []
    evidence = {} if slow else {"nccl_perf.busbw[live]@x": ["fast", "nccl-tests"]}
    return {**PERF, "busbw": figure, "findings": findings, "passed": [*evidence], "evidence": evidence}


@dataclass
class Nodes:
    """The nodes of a cluster. Instances are an ``engine.Run``.

    dead: host -> number of the round in which its job dies, after which it is unreachable.   says: host and
    ``kind_of`` -> result, instead of its own.   calls: all that were made.   rounds: of measurements.   limit: of
    these, after which the run is killed.
    """

    cluster: Cluster
    dead: dict[str, int] = field(default_factory=dict)
    says: dict[tuple[str, str], Any] = field(default_factory=dict)
    limit: int = 40
    calls: list[Call] = field(default_factory=list)
    rounds: int = 0
    _ways: dict[frozenset[str], tuple[localise_record.Way, ...]] = field(default_factory=dict)

    def __call__(self, calls: Sequence[Call]) -> list[Mapping[str, Any]]:
        self.calls += calls
        tested = {pair_of(call): call for call in calls if call.module == "perftest"}
        begun = [pair for pair in tested if pair not in self._ways]
        if begun or any(call.module == "nccl_perf" for call in calls):
            if self.rounds == self.limit:
                raise KeyboardInterrupt
            self.rounds += 1
        for pair in begun:
            rails = tuple(one["rail"] for one in tested[pair].arguments["sessions"])
            self._ways[pair] = self._answer(localise_record.RAILS, tuple(pair), rails=rails).ways
        own = {"nccl_perf": self._perf, "perftest": self._perftest}
        results: list[Mapping[str, Any]] = []
        for call in calls:
            given = self.says.get((call.host, kind_of(call)), own.get(call.module, self._read)(call))
            results.append(checked(call, given if isinstance(given, dict) else {"findings": given}))
        for pair, call in tested.items():
            if not call.arguments["require_idle"]:
                # Both directions at once are the last pass.
                del self._ways[pair]
        return results

    def _is_gone(self, host: str) -> bool:
        return self.dead.get(host, 99) <= self.rounds

    def _read(self, call: Call) -> Any:
        if self._is_gone(call.host):
            return {"unreachable": True, "msg": "no route"}
        return {
            "member": altered(name=call.host),
            "record": {**ANSWER, "due": "scope cluster: never measured"},
            "rails": rails_of(self.cluster.hosts.index(call.host)),
            "node_health": {**ANSWER, "boot_id": "1", "devices": [], "ports": []},
        }[kind_of(call)]

    def _answer(self, kind: str, hosts: tuple[str, ...], **more: Any) -> localise_record.Result:
        return self.cluster.answer(localise_record.Test(kind, hosts, self.rounds, **more))

    def _perf(self, call: Call) -> Any:
        given, least = call.arguments, call.arguments.get("bar_busbw") or 1.0
        hosts = tuple(given["launch"]["hosts"]) if "launch" in given else (call.host,)
        if any(map(self._is_gone, hosts)):
            return {"failed": True, "msg": "mpirun lost a node"}
        if "CUDA_VISIBLE_DEVICES" in given["environment"] and "launch" not in given:
            one, other = map(int, given["environment"]["CUDA_VISIBLE_DEVICES"].split(","))
            figure = self._answer(localise_record.GPUS, hosts, pairs=((one, other),)).pairs[one, other] or 0
            return perf(figure / ALONE * least / SHARE, least)
        kind = given["result_directory"].rpartition("/")[2]
        return perf((self._answer(kind, hosts).figure or 0) / HEALTHY * least / SHARE, least)

    def _perftest(self, call: Call) -> Any:
        pair = pair_of(call)
        if any(map(self._is_gone, pair)):
            return {"failed": True, "msg": "no connection"}
        both = not call.arguments["require_idle"]
        figures = {(way.rail, way.source, way.both): way.figure for way in self._ways[pair]}
        sessions = []
        for session in call.arguments["sessions"]:
            # 0.9 is of the payload in packets of 4,096 bytes: 397.5 Gb/s.
            figure = (figures.get((session["rail"], call.host, both)) or 0) / RAIL * 397.5
            result = perftest.Result("bw", "ib_write_bw", figure, 4096, rc=0, memory="host", simulated=True)
            sessions.append({"session": dict(session), "results": [asdict(result)], "moved": {}})
        return {**ANSWER, "sessions": sessions, "finished_at": 1.0, "simulated": True}


def pair_of(call: Call) -> frozenset[str]:
    return frozenset((call.host, call.arguments["sessions"][0]["peer"]))


@dataclass
class Play:
    """A play over a cluster. raw: host -> what the run has registered before.   told: what it prints."""

    nodes: Nodes
    path: str = ""
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.nodes.cluster.hosts:
            registered = variables(busbar_leaf=self.nodes.cluster.leaf[name])
            self.raw[name] = {**registered, "nccl_benchmark_result": {**ANSWER, "runs": [dict(RUN)]}}
        self.there = set(self.raw)

    @property
    def site(self) -> Site:
        return Site(self.raw, self.there, self.nodes, self.told.append)

    def localise(self, judged: Mapping[str, Any] | None = None) -> localise.Outcome:
        return localise.play(self.site, Kinds(self.site, intent_action.bars_of), judged or {}, self.path)

    def benchmark(self, check_mode: bool = False) -> cluster.Outcome:
        return cluster.play(self.site, Kinds(self.site, intent_action.bars_of), check_mode)


def roots(hosts: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return host, check and subject of each finding that follows from no other, but for hosts left out."""
    return {
        (name, f"{one['check']} {one['subject']}".removesuffix(" host"))
        for name, of_host in hosts.items()
        for one in of_host["findings"]
        if one["because"] is None and one["check"] != "localise.member"
    }
