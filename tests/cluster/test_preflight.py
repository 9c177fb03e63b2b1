# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar preflight`` in jobs of a real Slurm over four simulated nodes, started as a job's user starts it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record

from tests.slurm_daemons import wait

from .jobs import processes
from .playing import PROFILE, put_profile
from .simulated import HARDWARE, ROOT, Simulated

SUITE = Path(__file__).resolve().parent.parent.parent
# Of a node with two GPUs nobody has published a figure.
BAR = {"nvls": True, "scope": "node", "collective": "all_reduce", "size": "1G", "busbw": 300, "source": "the test"}


class Done(NamedTuple):
    rc: int
    out: str
    err: str


@pytest.fixture
def site(simulated: Simulated, tmp_path: Path) -> Path:
    """The inventory's directory."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "all_reduce_perf").symlink_to(simulated.program("all_reduce"))
    folder = tmp_path / "inventory"
    put_profile(folder, BAR)
    values = {
        "busbar_platform": PROFILE,
        "busbar_fabric": "infiniband",
        "busbar_hardware_root": HARDWARE,
        "nccl_tests_path": str(programs),
        "nccl_benchmark_launcher": "srun",
        "nccl_benchmark_max_bytes": "1G",
    }
    hosts: dict[str, Any] = {node.name: {} for node in simulated.nodes}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": values}}))
    return folder


@pytest.fixture
def batch(simulated: Simulated, site: Path, tmp_path: Path) -> Callable[..., Any]:
    """Submits a batch script that runs the command, over all nodes. Returns what waits for its end."""
    slurm = simulated.cluster.slurm
    assert slurm is not None

    def submit(*arguments: str, nodes: int = len(simulated.nodes), go: Path | None = None) -> Callable[[], Done]:
        """go: a file that the job waits for before it begins; the job itself is running then."""
        out, err, rc = (tmp_path / name for name in ("out", "err", "rc"))
        words = [sys.executable, "-m", "busbar", "preflight", "-i", str(site), "--python", sys.executable, *arguments]
        script = tmp_path / "job.sh"
        lines = [
            "#!/bin/sh",
            f"export PYTHONPATH={SUITE} HOME={tmp_path} LC_ALL=C.UTF-8",
            f"exec 3>{rc}",
            f"touch {tmp_path / 'runs'}",
            f"until [ -e {go} ]; do sleep 0.1; done" if go else "",
            # The shell gets what Slurm sends, and hands it on.
            "trap 'kill -TERM $pid' TERM",
            f"{shlex.join(words)} >{out} 2>{err} & pid=$!; echo $pid >{tmp_path / 'pid'}",
            'while :; do wait "$pid"; code=$?; kill -0 "$pid" 2>/dev/null || break; done',
            "echo $code >&3",
        ]
        script.write_text("\n".join(lines) + "\n")
        options = ["--parsable", f"--nodes={nodes}", "--exclusive", "--no-requeue", "--no-kill"]
        job = slurm.run("sbatch", *options, "--output=/dev/null", str(script)).strip()

        wait("the job to begin", (tmp_path / "runs").exists)

        def done() -> Done:
            wait("the job", lambda: rc.exists() and rc.read_text().endswith("\n"))
            wait("its end", lambda: not slurm.run("squeue", "--noheader", f"--jobs={job}", check=False))
            return Done(int(rc.read_text()), out.read_text(), err.read_text())

        done.job = job  # type: ignore[attr-defined]
        return done

    return submit


@pytest.mark.long
def test_healthy_nodes_pass_and_leave_a_record(batch: Callable[..., Any], tmp_path: Path) -> None:
    done = batch("--record", str(tmp_path / "results"), "--exclude-file", str(tmp_path / "exclude"), nodes=2)()
    print(done.err)
    assert (done.rc, done.out) == (0, "PREFLIGHT=ok\n")
    assert (tmp_path / "exclude").read_text() == ""
    record = localise_record.read(tmp_path / "results")
    assert (record.complete, record.simulated, record.launcher) == (True, True, "srun")
    assert [(test.kind, test.outcome) for test in record.tests] == [("pair", "pass")]


def test_a_slow_node_is_named(simulated: Simulated, batch: Callable[..., Any], tmp_path: Path) -> None:
    with simulated.broken("slow-rail"):
        done = batch("--record", str(tmp_path / "results"), "--exclude-file", str(tmp_path / "exclude"))()
    print(done.err)
    assert (done.rc, done.out) == (2, "EXCLUDE=node03\nPREFLIGHT=bad\n")
    assert (tmp_path / "exclude").read_text() == "node03\n"
    assert "node[01-02,04]  good" in done.err
    # Those that are left were measured together.
    passed = {test.hosts for test in localise_record.read(tmp_path / "results").tests if test.outcome == "pass"}
    assert ("node01", "node02", "node04") in passed


@contextmanager
def hanging(simulated: Simulated, number: int) -> Iterator[None]:
    """The driver of one node's GPUs does not come back."""
    path = simulated.nodes[number].tmp / ROOT.removeprefix("/tmp/") / "usr/share/busbar-lab/nvidia-smi/.driver.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "hang": True}))
    try:
        yield
    finally:
        path.write_text(before)


def test_who_hangs_and_who_is_dead_are_named_and_what_hangs_is_ended(
    simulated: Simulated, batch: Callable[..., Any], tmp_path: Path
) -> None:
    slurm = simulated.cluster.slurm
    assert slurm is not None
    with hanging(simulated, 1):
        wait_for = batch("--limit", "40", go=tmp_path / "go")
        slurm.kill_node("node04")
        try:
            (tmp_path / "go").touch()
            done = wait_for()
        finally:
            slurm.revive_node("node04")
            slurm.reset()
    print(done.err)
    assert (done.rc, done.out) == (2, "EXCLUDE=node04,node02\nPREFLIGHT=bad\n")
    assert "node02" in done.err
    assert not processes(simulated.cluster)


def test_a_signal_of_slurms_ends_every_step(simulated: Simulated, batch: Callable[..., Any], tmp_path: Path) -> None:
    slurm = simulated.cluster.slurm
    assert slurm is not None
    with hanging(simulated, 1):
        wait_for = batch("--limit", "600")
        wait("the ranks", lambda: any("all_reduce_perf" in words for words in processes(simulated.cluster).values()))
        slurm.run("scancel", "--batch", "--signal=TERM", wait_for.job)
        done = wait_for()
    print(done.err)
    assert (done.rc, done.out.splitlines()[-1]) == (3, "PREFLIGHT=unknown")
    assert "ended by SIGTERM" in done.err
    # Slurm's own part of a step may need some seconds more.
    assert not any("all_reduce_perf" in words for words in processes(simulated.cluster).values())
