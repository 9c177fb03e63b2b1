# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/benchmark.yml between four simulated nodes, by the real launchers, as a user starts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lab.cluster_faults import RAIL
from tests.trees import tool

from .playing import ALL_GPUS, GPUS, NO_PROCESS, Run
from .simulated import ROOT, Simulated

STORE = "var/lib/busbar/nccl_cluster"


@pytest.fixture
def benchmark(play: Callable[..., Run]) -> Callable[..., Run]:
    """Runs the benchmark between the nodes, and nothing else. values: variables for this run."""

    def run(*arguments: str, **values: Any) -> Run:
        return play("benchmark", "--tags", "nccl_cluster", *arguments, nccl_benchmark_localise=False, **values)

    return run


def kept(simulated: Simulated) -> dict[str, Any]:
    """Node -> what it has kept, of every scope."""
    found = {}
    for node in simulated.nodes:
        folder = node.tmp / ROOT.removeprefix("/tmp/") / STORE
        found[node.name] = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return found


@pytest.mark.long
def test_a_healthy_cluster_is_measured_whole_and_in_parts(simulated: Simulated, benchmark: Callable[..., Run]) -> None:
    done = benchmark(nccl_benchmark_scope="cluster", nccl_benchmark_launcher="srun")
    assert done.rc == 0, done.out
    jobs = [(4 * GPUS, ""), (4 * GPUS, "DDP bucket of 25 MiB"), (GPUS, ""), (2 * GPUS, "")]
    assert [(job.ranks, job.what) for job in done.record.jobs] == jobs
    assert done.record.simulated
    assert [one.nodes for one in done.record.scaling if one.efficiency is not None] == [2, 4]
    assert all(job.transport["proven"] for job in done.record.jobs if len(job.hosts) > 1)
    states = {name: of_node["cluster"]["state"] for name, of_node in kept(simulated).items()}
    assert states == {node.name: "ok" for node in simulated.nodes}


def test_a_slow_rail_is_found_by_itself_told_to_its_pair_and_stays_told(
    simulated: Simulated, benchmark: Callable[..., Run]
) -> None:
    wanted = {"nccl_benchmark_scope": "rail", "busbar_platform": ALL_GPUS, "busbar_leaf": "leaf1"}
    with simulated.broken("slow-rail"):
        done = benchmark(**wanted)
    assert done.rc == 2, done.out
    slow = f"rail {RAIL} node02+node03"
    jobs = [f"rail {rail} {pair}" for rail in range(GPUS) for pair in ("node01+node04", "node02+node03")]
    states = {job.name.partition("8G ")[2]: bool(job.states) for job in done.record.jobs}
    assert states == {name: name == slow for name in jobs}
    hosts = [of_host for job in done.record.jobs for of_host in job.transport["hosts"].values()]
    used = {device for of_host in hosts for device in of_host["devices"]}
    assert used == {simulated.machines[0].rail(rail).name for rail in range(GPUS)}
    assert {host for host, told in done.findings.items() if told} == {"node02", "node03"}
    # The nightly check, and check mode, go by what each node has kept.
    again = benchmark("--check", **wanted)
    assert {host: [one[:2] for one in told] for host, told in again.findings.items()} == {
        **{name: [] for name in ("node01", "node04")},
        **{name: [("nccl_cluster.record", "drift")] for name in ("node02", "node03")},
    }


@pytest.mark.long
def test_an_odd_node_meets_a_partner_and_a_busy_one_is_named(
    simulated: Simulated, benchmark: Callable[..., Run]
) -> None:
    busy = simulated.nodes[1]
    process = f"{NO_PROCESS}; echo '4242, python, 71680 MiB'"
    tool(busy.tmp / ROOT.removeprefix("/tmp/"), "usr/bin/nvidia-smi", process)
    wanted = {"nccl_benchmark_scope": "pair", "nccl_benchmark_launcher": "srun"}
    done = benchmark("--check", **wanted)
    assert done.rc == 2
    assert "2 jobs in 2 rounds would be run over 3 nodes (node[01,03-04])" in done.out
    assert "left out: node02: busy: process python" in done.out
    never = {node.name: ("unknown", "never measured") for node in simulated.nodes}
    assert {host: told[0][1:] for host, told in done.findings.items()} == never
    assert not any(kept(simulated).values())
    done = benchmark(**wanted)
    assert done.rc == 2, done.out
    assert {job.hosts for job in done.record.jobs} == {("node01", "node04"), ("node03", "node04")}
    assert [one.host for one in done.record.left_out] == ["node02"]
    assert {host for host, told in done.findings.items() if told} == {"node02"}
    assert done.findings["node02"][0][:2] == ("nccl_cluster.member", "unknown")
    assert set(kept(simulated)["node02"]) == set()
    assert kept(simulated)["node04"]["pair"]["over"] == "3 nodes (node[01,03-04])"
