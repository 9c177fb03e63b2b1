"""``busbar watch`` beside a real training: on two GPUs stalls and late ranks by name, on one or more no healthy phase.

    pytest -s --basetemp /root/watch tests/gpu/test_watch.py      with PyTorch, pytest and GPUs; 20 minutes

As root the folder must be one that only root may write to. Only figures and names are printed. BUSBAR_WATCH_STALLS: how
many are injected (20).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .conftest import ROOT, Show, gpus

JOB = Path(__file__).with_name("watch_job.py")
PATIENCE, INTERVAL = 12, 2


class Training(NamedTuple):
    folder: Path
    ranks: list[subprocess.Popen[bytes]]

    def phase(self, text: str) -> None:
        new = self.folder / "phase.new"
        new.write_text(text)
        new.replace(self.folder / "phase")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    ranks = min(gpus(), 2)
    if not ranks:
        pytest.skip("needs a GPU")
    made = Training(tmp_path, [])
    made.phase("train")
    where = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    where |= {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600"}
    for rank in range(ranks):
        argv = [sys.executable, str(JOB), str(tmp_path)]
        made.ranks.append(subprocess.Popen(argv, env={**where, "RANK": str(rank)}))
    try:
        end = time.time() + 300
        while not all((tmp_path / f"up-{rank}").exists() for rank in range(ranks)):
            assert time.time() < end
            assert {rank.poll() for rank in made.ranks} == {None}
            time.sleep(0.2)
        time.sleep(10)
        yield made
    finally:
        for process in made.ranks:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


Events = Callable[[], list[dict[str, Any]]]


@contextlib.contextmanager
def watch(folder: Path, *options: str) -> Iterator[tuple[Events, subprocess.Popen[bytes]]]:
    out = folder / "events.jsonl"
    argv = [sys.executable, "-m", "busbar", "watch", "--json", "--store", str(folder / "ring"), *options]
    with out.open("wb") as stream, subprocess.Popen(argv, cwd=ROOT, stdout=stream) as process:
        try:
            yield lambda: [json.loads(line) for line in out.read_text().splitlines()], process
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Of a process and those that it has started and that still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            if int(stat.parent.name) == pid or int(words[1]) == pid:
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def test_stalls_and_stragglers_have_a_name(training: Training, show: Show) -> None:
    """RAS is in NCCL, and has to name a rank that was stopped: who is late has launched what the others have."""
    if len(training.ranks) < 2:
        pytest.skip("needs two GPUs")
    number, right, slowest, by_ras = int(os.environ.get("BUSBAR_WATCH_STALLS", "20")), 0, 0.0, 0
    with watch(training.folder, "--patience", str(PATIENCE), "--interval", str(INTERVAL)) as (events, process):
        time.sleep(8)
        for one in range(number):
            rank, kind, known = one % 2, ("rank stopped", "rank late")[one // 2 % 2], len(events())
            assert process.poll() is None
            begun = time.time()
            if kind == "rank stopped":
                training.ranks[rank].send_signal(signal.SIGSTOP)
            else:
                training.phase(f"late {rank}")
            found: list[dict[str, Any]] = []
            while not found and time.time() < begun + PATIENCE + 60:
                time.sleep(0.5)
                found = [event for event in events()[known:] if event.get("late")]
            took = time.time() - begun - PATIENCE
            training.ranks[rank].send_signal(signal.SIGCONT)
            training.phase("train")
            named = [(event["kind"], [late[1] for late in event["late"]]) for event in found]
            good = named[:1] == [(kind, [rank])]
            right, slowest = right + good, max(slowest, took)
            evidence = {one["check"]: one["ranks"] for event in found[:1] for one in event["evidence"]}
            by_ras += kind == "rank stopped" and [rank] in evidence.values()
            line = f"{named or 'nothing'}, {evidence}, {took:.1f} s after the patience"
            show(f"{kind}, rank {rank}: {line}{'' if good else ' WRONG'}")
            time.sleep(5)
    show(f"{right} of {number} named with rank and kind; the slowest {slowest:.1f} s after the patience; RAS: {by_ras}")
    assert right >= 0.95 * number
    assert slowest < 60


def test_no_alarm_in_healthy_training(training: Training, show: Show) -> None:
    """Phases shorter than the patience, as it is by default; seconds: BUSBAR_WATCH_HEALTHY (480)."""
    end = time.time() + float(os.environ.get("BUSBAR_WATCH_HEALTHY", "480"))
    with watch(training.folder) as (events, process):
        began, used = time.time(), cpu_seconds(process.pid)
        while time.time() < end:
            for phase, seconds in (
                ("train", 40),
                ("checkpoint 0", 20),
                ("train", 20),
                (f"evaluate {len(training.ranks) - 1}", 20),
                ("compile", 30),
                ("data", 10),
                ("small", 20),
            ):
                training.phase(phase)
                time.sleep(seconds)
        share = (cpu_seconds(process.pid) - used) / (time.time() - began)
        found = events()
    took = time.time() - began
    assert {rank.poll() for rank in training.ranks} == {None}
    samples = [
        json.loads(line) for ring in (training.folder / "ring").iterdir() for line in ring.read_text().splitlines()
    ]
    busy = [gpu[1] > 50 for sample in samples for gpu in sample["gpus"]]
    assert {True, False} == set(busy)
    of = f"{took:.0f} s of healthy training on {len(training.ranks)} GPUs"
    show(f"{of}: {len(found)} events; {100 * share:.2f} % of one core")
    assert found == []
