# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar measure`` over four simulated nodes of a real Slurm: beside no user's job, and leaving nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, measure_job

from tests.drift.conftest import argv, environment
from tests.slurm_daemons import wait

from .nodes import Cluster
from .playing import ALL_GPUS
from .simulated import ROOT, Simulated

LOCK = ROOT.removeprefix("/tmp/") + node_lock.PATH
# Holds nodes until somebody needs them.
HOLD = """
import sys, time
from busbar import measure_hold
with measure_hold.Slurm().job("main", sys.argv[1:], 30) as held:
    print(held.environment["BUSBAR_ALLOCATION"], flush=True)
    while not held.over():
        time.sleep(0.05)
print(held.wanted_by)
"""
# What is measured on a node meanwhile: it takes a second to end, and says when it has.
PROGRAM = """
import sys, time
import busbar
from ansible_collections.busbar.fabric.plugins.module_utils import lease
with lease.held(sys.argv[1]) as over:
    print("begun", flush=True)
    while not over():
        time.sleep(0.05)
    time.sleep(1)
    print(time.time(), flush=True)
"""


class Control:
    """The control node: it reaches slurmctld, and its processes are this machine's."""

    def __init__(self, nodes: Cluster, home: Path) -> None:
        assert nodes.slurm
        self.nodes, self.slurm, self.home = nodes, nodes.slurm, home
        self.started: list[subprocess.Popen[str]] = []

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        there = ["nsenter", f"--target={self.nodes.controller.init}", "--net", "--uts", "--"]
        given = self.slurm.environment
        process = subprocess.Popen(
            [*there, *words],
            cwd=self.home,
            env=environment(self.home, PATH=given["PATH"], SLURM_CONF=given["SLURM_CONF"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def users_job(self, count: int) -> str:
        """A job on so many whole nodes, which writes down when it begins."""
        words = ("sbatch", "--parsable", f"--nodes={count}", "--exclusive", f"--output={self.home}/user")
        return self.slurm.run(*words, "--wrap", "date +%s.%N").strip()

    def jobs(self) -> str:
        return self.slurm.run("squeue", "--noheader", "--format=%j %t").strip()


@pytest.fixture
def control(nodes: Cluster, tmp_path: Path) -> Iterator[Control]:
    made = Control(nodes, tmp_path)
    # Where a job waited a moment ago, Slurm has nodes planned for it until it looks again, half a minute later.
    wait("nodes that nobody has planned", lambda: "planned" not in made.slurm.run("sinfo", "--noheader", "-N", "-o%T"))
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_a_users_job_gets_the_nodes_at_once_and_begins_when_nothing_is_measured_there(control: Control) -> None:
    names = [node.name for node in control.nodes.nodes]
    held = control.start([sys.executable, "-c", HOLD, *names])
    assert held.stdout
    _job, name = held.stdout.readline().split()
    program = control.nodes.nodes[0].start(
        [sys.executable, "-c", PROGRAM, name],
        environment(control.home),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "begun\n"
    # All of them, so that where the program runs is one: ours would last half an hour.
    job = control.users_job(4)
    ended = float(program.communicate(timeout=300)[0])
    assert held.communicate(timeout=300)[0].strip() == job
    wait("the user's job", lambda: (control.home / "user").exists() and (control.home / "user").read_text(), 60)
    assert float((control.home / "user").read_text()) > ended
    wait("an empty queue", lambda: not control.jobs(), 60)


def test_after_a_kill_nothing_is_left_of_the_job_or_on_its_nodes(control: Control) -> None:
    names = [node.name for node in control.nodes.nodes][:2]
    held = control.start([sys.executable, "-c", HOLD, *names])
    assert held.stdout
    assert held.stdout.readline()
    assert measure_job.JOB in control.jobs()
    held.send_signal(signal.SIGKILL)
    held.communicate()
    wait("an empty queue", lambda: not control.jobs(), 60)
    wait("the leases to end", lambda: not any(node.processes() for node in control.nodes.nodes), 60)


def test_a_night(control: Control, simulated: Simulated, site: Path) -> None:
    """It gives the nodes back in the middle, measures them once that is over, and then nothing more."""
    path = site / "hosts.yml"
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    data["gpu_nodes"]["vars"] |= {
        "busbar_measure_budget": 70,
        "busbar_platform": ALL_GPUS,
        "busbar_leaf": "leaf1",
        "nccl_benchmark_scope": "rail",
        "nccl_benchmark_collectives": [],
        "nccl_benchmark_launcher": "srun",
        # Long enough to be ended in the middle.
        "nccl_benchmark_iterations": 20,
    }
    path.write_text(yaml.safe_dump(data))
    results = control.home / "results"

    def programs() -> list[list[str]]:
        found = [words for node in simulated.nodes for words in node.processes().values()]
        return [words for words in found if any("sendrecv_perf" in word for word in words)]

    first = control.start(argv("measure", "-i", site, "--limit", "node01,node02"))
    wait("a benchmark", lambda: first.poll() is not None or programs(), 120)
    job = control.users_job(4)
    out, _none = first.communicate(timeout=300)
    assert first.returncode == 0, out
    assert "to be measured: node[01-02], scope rail; never measured; 60 node-minutes, estimated" in out
    assert f"given back before the end: job {job} waits for them" in out
    wait("the user's job", lambda: (control.home / "user").exists(), 60)
    assert programs() == []
    # Neither a result, nor that one is missing, nor a lock.
    assert not (results / "cluster").exists()
    assert not any((node.tmp / LOCK).exists() for node in simulated.nodes)
    wait("an empty queue", lambda: not control.jobs(), 60)
    out, _none = control.start(argv("measure", "-i", site, "--limit", "node01,node02")).communicate(timeout=300)
    assert "measured, and good: node[01-02]" in out, out
    record = cluster_record.read(results)
    assert set(record.hosts) == {"node01", "node02"}
    ledger = json.loads((results / "measure.json").read_text())
    assert ledger["granted"] is None
    # It has looked for more before it ended.
    assert "left for another night: node[01-02]: measured this night" in out
    assert len([*(results / "cluster").glob("20*")]) == 1
