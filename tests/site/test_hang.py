"""`busbar hang` and playbooks/hang.yml on two simulated nodes, on which one simulated job of four ranks really runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import ras
from tests.site.conftest import ROOT, Play

# As the lab has them.
ADDRESSES = {"node01": "10.0.0.1", "node02": "10.0.0.2"}


@contextlib.contextmanager
def job(lab: Path, folder: Path, **more: Any) -> Iterator[list[int]]:
    """Ranks 0 and 1 on node01, 2 and 3 on node02: each node's tree shows its own processes, and both the one port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = ras.example(port=port, **more)
    for number, rank in enumerate(given["communicators"][0]["ranks"]):
        rank.update(host=ADDRESSES[f"node0{1 + number // 2}"], gpu=number % 2)
    file = folder / "job.json"
    file.write_text(json.dumps(given))
    environment = {**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    argv = [sys.executable, ras.__file__, str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        pids = [int(word.rstrip(",")) for word in running.stdout.readline().split() if word.rstrip(",").isdigit()][:-1]
        for node, own in (("node01", pids[:2]), ("node02", pids[2:])):
            proc = lab / node / "hw" / "proc"
            for name in ("tcp", "tcp6"):
                (proc / "net" / name).unlink(missing_ok=True)
                (proc / "net" / name).symlink_to(f"/proc/net/{name}")
            for pid in own:
                (proc / str(pid)).symlink_to(f"/proc/{pid}")
        try:
            yield pids
        finally:
            running.send_signal(signal.SIGINT)


def hang(lab: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder), "ANSIBLE_HOME": str(folder / "ansible"), "COLUMNS": "150"}
    argv = [sys.executable, "-m", "busbar", "hang", "-i", str(lab / "inventory"), "--interval", "0.5", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_one_job_over_two_hosts_is_one_job_and_its_late_rank_has_a_name(lab: Path, tmp_path: Path) -> None:
    with job(lab, tmp_path, late={"2": 1}) as pids:
        done = hang(lab, tmp_path, "node01", "node02")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "(1 job, 2 of 2 hosts responded" in done.stdout
    assert f"rank 2 (node02 process {pids[2]} GPU 0) has launched 99, 3 of 4 ranks 100" in done.stdout
    kept = f"ansible node02 -i {lab / 'inventory'} -b -m command -a 'py-spy dump --pid {pids[2]}'"
    assert kept in done.stdout
    assert "VERDICT HUNG" in done.stdout
    assert ", simulated; " in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_a_stopped_rank_is_named_with_what_its_own_host_says_of_it(lab: Path, tmp_path: Path) -> None:
    with job(lab, tmp_path) as pids:
        os.kill(pids[3], signal.SIGSTOP)
        done = hang(lab, tmp_path, "gpu_nodes", "--json")
    assert done.returncode == 2, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["hosts"] == {"node01": "", "node02": ""}
    [finding] = [each for each in report["findings"] if each["check"] == "nccl_hang.missing"]
    assert finding["subject"] == "host node02"
    assert finding["have"].startswith(f"node02 process {pids[3]} GPU 1: rank 3 of 4")
    assert "it is stopped (a signal)" in finding["have"]


@pytest.mark.long
def test_a_job_that_moves_is_no_hang_also_by_hand(lab: Path, tmp_path: Path, play: Play) -> None:
    with job(lab, tmp_path):
        moves = hang(lab, tmp_path, "node01")
        by_hand = play("-i", lab / "inventory", "-e", "hang_interval=0.5", "--check", playbook="playbooks/hang.yml")
    assert moves.returncode == 0, moves.stdout + moves.stderr
    assert "VERDICT MOVES" in moves.stdout
    assert by_hand.rc == 0, by_hand.out
    assert "VERDICT MOVES" in by_hand.out


@pytest.mark.long
def test_of_several_names_one_that_the_inventory_does_not_have_is_said(untouched: Path, tmp_path: Path) -> None:
    done = hang(untouched, tmp_path, "node01", "node07")
    assert done.returncode == 1
    assert "node07" in done.stderr
    assert done.stdout == ""
