# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/benchmark.yml between four simulated nodes, by the real launchers, as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import marker
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.programs import PROGRAMS
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record

from busbar.lab.cluster_faults import RAIL
from tests import debian
from tests.conftest import ANSIBLES_OUTPUT
from tests.trees import tool

from .simulated import HARDWARE, ROOT, Simulated

SUITE = Path(__file__).resolve().parent.parent.parent
# Two GPUs and two rails of each node: eight ranks a node take four times as long.
GPUS = 2
PROFILE, ALL_GPUS = "two-rails", "two-rails-of-eight"
NO_PROCESS = 'echo "pid, process_name, used_gpu_memory [MiB]"'
STORE = "var/lib/busbar/nccl_cluster"


class Run(NamedTuple):
    """A run of the playbook. findings: host -> check, state and what is, of each that follows from no other."""

    rc: int
    out: str
    findings: dict[str, list[tuple[str, str, str | None]]]
    results: Path

    @property
    def record(self) -> cluster_record.Record:
        return cluster_record.read(self.results)


@pytest.fixture
def site(simulated: Simulated, tmp_path: Path) -> Path:
    """The inventory's directory, for nodes on which all that a benchmark takes is there, and nobody is busy."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for collective in PROGRAMS:
        shutil.copy(simulated.program(collective), programs / f"{collective}_perf")
    inputs = marker.Inputs(
        marker.Cuda("/usr/local/cuda", "/usr/local/cuda/lib64/libcudart.so.13", "13.0.88"),
        marker.Nccl("/usr/include", "/usr/lib/libnccl.so.2.28.9", "2.28.9"),
        marker.Mpi("/usr/include", "/usr/lib/libmpi.so.40", "Open MPI 4.1.4"),
        ("9.0",),
    )
    digests = {f"{collective}_perf": "0" * 64 for collective in PROGRAMS}
    built = marker.Marker("a" * 40, None, inputs, None, ("make",), digests)
    (programs / marker.MARKER).write_text(marker.render_marker(built))
    for node in simulated.nodes:
        root = node.tmp / ROOT.removeprefix("/tmp/")
        shutil.rmtree(root / "var", ignore_errors=True)
        tool(root, "usr/bin/nvidia-smi", NO_PROCESS)
        for name in ("mpirun", "srun", "scontrol", "squeue"):
            tool(root, f"usr/bin/{name}", f'exec {shutil.which(name, path=debian.PLACES)} "$@"')
    folder = tmp_path / "inventory"
    (folder / "profiles").mkdir(parents=True)
    profile = yaml.safe_load((SUITE / "profiles" / "hgx-h100.yml").read_text())
    profile["rails"] = profile["rails"][:GPUS]
    (folder / "profiles" / f"{ALL_GPUS}.yml").write_text(yaml.safe_dump(profile))
    profile["gpus"]["count"] = GPUS
    (folder / "profiles" / f"{PROFILE}.yml").write_text(yaml.safe_dump(profile))
    values = {
        "busbar_platform": PROFILE,
        "busbar_fabric": "infiniband",
        "busbar_hardware_root": HARDWARE,
        "busbar_system_root": ROOT,
        "nccl_tests_path": str(programs),
        "nccl_benchmark_results_path": str(tmp_path / "results"),
        "nccl_benchmark_collectives": ["all_reduce"],
        "nccl_benchmark_min_bytes": "4G",
        "nccl_benchmark_iterations": 5,
        "nccl_benchmark_timeout": 100,
        "nccl_benchmark_repeats": 1,
        # The tests have another HOME than the user database says.
        "ansible_async_dir": str(tmp_path / "async"),
    }
    hosts = {node.name: node.ansible for node in simulated.nodes}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": values}}))
    return folder


@pytest.fixture
def benchmark(site: Path, tmp_path: Path) -> Callable[..., Run]:
    """Runs the playbook. values: variables for this run."""

    def run(*arguments: str, **values: Any) -> Run:
        path = tmp_path / "findings.json"
        path.unlink(missing_ok=True)
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_REMOTE_TMP": str(tmp_path / "remote"),
            "COLUMNS": "160",
            "LC_ALL": "C.UTF-8",
            **ANSIBLES_OUTPUT,
        }
        given = {"busbar_findings_path": str(path), **values}
        argv = ["ansible-playbook", str(SUITE / "playbooks/benchmark.yml"), "-i", str(site), "--tags", "nccl_cluster"]
        argv += ["-e", json.dumps(given), *arguments]
        done = subprocess.run(
            argv, cwd=SUITE, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        told = json.loads(path.read_text())["hosts"] if path.exists() else {}
        roots = {
            host: [(f["check"], f["state"], f["have"]) for f in one["findings"] if f["because"] is None]
            for host, one in told.items()
        }
        return Run(done.returncode, done.stdout + done.stderr, roots, tmp_path / "results")

    return run


def kept(simulated: Simulated) -> dict[str, Any]:
    """Node -> what it has kept, of every scope."""
    found = {}
    for node in simulated.nodes:
        folder = node.tmp / ROOT.removeprefix("/tmp/") / STORE
        found[node.name] = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return found


def test_a_healthy_cluster_is_measured_whole_and_in_parts(simulated: Simulated, benchmark: Callable[..., Run]) -> None:
    done = benchmark(nccl_benchmark_scope="cluster", nccl_benchmark_launcher="srun")
    assert done.rc == 0, done.out
    assert [(job.ranks, job.what) for job in done.record.jobs] == [
        (4 * GPUS, ""),
        (4 * GPUS, "DDP bucket of 25 MiB"),
        (GPUS, ""),
        (2 * GPUS, ""),
    ]
    assert done.record.simulated
    assert [one.nodes for one in done.record.scaling if one.efficiency is not None] == [2, 4]
    assert all(job.transport["proven"] for job in done.record.jobs if len(job.hosts) > 1)
    assert {name: of_node["cluster"]["state"] for name, of_node in kept(simulated).items()} == dict.fromkeys(
        [node.name for node in simulated.nodes], "ok"
    )


def test_a_slow_rail_is_found_by_itself_told_to_its_pair_and_stays_told(
    simulated: Simulated, benchmark: Callable[..., Run]
) -> None:
    wanted = {"nccl_benchmark_scope": "rail", "busbar_platform": ALL_GPUS, "busbar_leaf": "leaf1"}
    with simulated.broken("slow-rail"):
        done = benchmark(**wanted)
    assert done.rc == 2, done.out
    slow = f"rail {RAIL} node02+node03"
    assert {job.name.partition("8G ")[2]: bool(job.states) for job in done.record.jobs} == {
        f"rail {rail} {pair}": f"rail {rail} {pair}" == slow
        for rail in range(GPUS)
        for pair in ("node01+node04", "node02+node03")
    }
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
    assert {host: told[0][1:] for host, told in done.findings.items()} == dict.fromkeys(
        [node.name for node in simulated.nodes], ("unknown", "never measured")
    )
    assert not any(kept(simulated).values())
    done = benchmark(**wanted)
    assert done.rc == 2, done.out
    assert {job.hosts for job in done.record.jobs} == {("node01", "node04"), ("node03", "node04")}
    assert [one.host for one in done.record.left_out] == ["node02"]
    assert {host for host, told in done.findings.items() if told} == {"node02"}
    assert done.findings["node02"][0][:2] == ("nccl_cluster.member", "unknown")
    assert set(kept(simulated)["node02"]) == set()
    assert kept(simulated)["node04"]["pair"]["over"] == "3 nodes (node[01,03-04])"
