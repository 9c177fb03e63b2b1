# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs by the real mpirun over ssh and the real srun: one job is one, and nothing is left of it whatever is killed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch

from tests import series
from tests.slurm_daemons import wait
from tests.trees import put

from .jobs import HELLO, Job, processes, run
from .nodes import STRANGER, Cluster, Node, other_name

KINDS = pytest.mark.parametrize("kind", launch.KINDS)
SECRET = "hush-never-on-a-command-line"
# One that waits until a file is there, so that the job can be looked at.
WAITING = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n" + HELLO
# A rank that never ends, nor heeds SIGTERM, and has started another process.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("running", flush=True)
time.sleep(100000)
"""


def launcher(kind: str) -> launch.Launcher:
    return launch.Launcher(kind, kind, "")


@pytest.fixture
def hardware(tmp_path: Path) -> Path:
    """Two GPUs on different CPUs of this machine."""
    here = sorted(os.sched_getaffinity(0))
    root = tmp_path / "hardware"
    for number in range(2):
        address = f"0000:0{number}:00.0"
        put(root, f"sys/bus/pci/devices/{address}/local_cpulist", f"{here[number % len(here)]}\n")
        put(root, f"proc/driver/nvidia/gpus/{address}/information", f"Device Minor: \t {number}\n")
        put(root, f"dev/nvidia{number}", "")
    return root


@KINDS
def test_one_job_is_one_job_each_rank_on_its_gpu(nodes: Cluster, tmp_path: Path, hardware: Path, kind: str) -> None:
    go = tmp_path / "go"
    program = [sys.executable, "-c", WAITING, str(go)]
    job = Job(nodes.nodes, kind, program, tmp_path / "job", environment={"NCCL_X": SECRET}, root=str(hardware))
    out = tmp_path / "job/stdout"
    wait("the ranks", lambda: out.exists() and out.read_text().count("begin") == 8)
    # Environment and command line of a process are for different eyes.
    assert not [words for words in processes(nodes).values() if SECRET in " ".join(words)]
    go.touch()
    done = job.done()
    assert done.states(asked=["NCCL_X"]) == dict.fromkeys(("job", "left", "binding", "variables"), "ok"), done.said
    assert (done.rc, done.ending) == (0, "")
    # mpirun says of each line whose it is.
    lines = re.sub(r"^\[1,\d\]<stdout>:", "", done.text, flags=re.MULTILINE).split("\n")
    assert sorted(filter(None, lines)) == [f"node0{n // 2 + 1} {n} 8" for n in range(8)]
    assert launch.moved(done.views) == {node.name: {} for node in nodes.nodes}


def test_ranks_that_do_not_find_each_other_are_no_job(nodes: Cluster, tmp_path: Path) -> None:
    """As where an MPI meets a launcher that it does not know: each process is rank 0 of 1, and ends well."""
    done = run(nodes.nodes[:2], "srun", ["true"], tmp_path / "job", options=["--mpi=none"])
    assert done.rc == 0
    assert done.states()["job"].startswith("drift: 4 ranks cannot find each other")


@pytest.mark.parametrize("by", series.first(lambda node: node.address, lambda node: other_name(node.name)))
def test_hosts_are_reached_by_other_names_than_their_own(
    nodes: Cluster, tmp_path: Path, by: Callable[[Node], str]
) -> None:
    some = nodes.nodes[:3]
    done = run(some, "mpirun", ["true"], tmp_path / "job", addresses=[by(node) for node in some])
    assert (done.rc, done.states()["job"]) == (0, "ok"), done.said


@pytest.mark.parametrize("kind", series.first("srun", "mpirun"))
def test_a_rank_that_fails_ends_the_job(nodes: Cluster, tmp_path: Path, kind: str) -> None:
    """The others would wait for it for ever."""
    program = ["sh", "-c", "[ $OMPI_COMM_WORLD_RANK$PMIX_RANK != 3 ] && [ $PMIX_RANK != 3 ] || exit 3; sleep 100000"]
    done = run(nodes.nodes[:2], kind, program, tmp_path / "job")
    assert (done.rc not in (0, None), done.ending) == (True, "")
    assert any(view.ending is not None and view.ending.rc == 3 for view in done.views)


@pytest.mark.parametrize("kind", series.first("mpirun", "srun"))
def test_a_run_that_hangs_is_ended_at_its_limit(nodes: Cluster, tmp_path: Path, kind: str) -> None:
    done = run(nodes.nodes, kind, [sys.executable, "-c", STUBBORN], tmp_path / "job", limit=2)
    assert done.rc != 0
    assert "limit" in {view.ending.why.split()[1] for view in done.views if view.ending}
    wait("the nodes to be idle", lambda: not processes(nodes))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    series.first(
        ("mpirun", {"addresses": ["node01", STRANGER]}, "ssh-keyscan"),
        ("srun", {"options": ["--partition=none"]}, "in nccl_benchmark_launcher_options"),
        ("mpirun", {"addresses": ["node01", "nowhere"]}, "nccl_benchmark_address"),
        ("mpirun", {"addresses": ["node01", "10.77.0.99"]}, "nccl_benchmark_address"),
        ("mpirun", {"python": "/no/such/python3"}, "python3, at the same path"),
        ("mpirun", {"options": ["--no-such-option"]}, "in nccl_benchmark_launcher_options"),
        ("mpirun", {"options": ["--prefix", "/no/such"]}, "--prefix DIRECTORY"),
        ("srun", {"addresses": ["node01", "nowhere"]}, "has to be its NodeName"),
        ("srun", {"options": ["--mpi=none-such"]}, "srun --mpi=list"),
        ("srun", {"options": ["--gpus-per-node=2"]}, "in nccl_benchmark_launcher_options"),
        ("srun", {"options": ["--no-such-option"]}, "in nccl_benchmark_launcher_options"),
        ("srun", {"python": "/no/such/python3"}, "python3, at the same path"),
        brief=2,
    ),
)
def test_a_launcher_that_refuses_names_the_way_out(
    nodes: Cluster, tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:
    done = run(nodes.nodes[:2], kind, ["true"], tmp_path / "job", **changes)
    assert done.rc != 0
    assert done.states()["job"] == "unknown: no rank has started"
    assert said in launch.refusal(launcher(kind), done.rc, done.said), done.said


# -- whatever is killed ----------------------------------------------------------------------------------------------


def family(pid: int, token: str) -> bool:
    """Whether a process, what it has started, or what has started it, has a word in its environment."""
    return any(token.encode() in _environment(one) for one in (*_below(pid), *_above(pid)))


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _below(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def _above(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def kill_one_of_each(nodes: Cluster, tokens: Sequence[str], seconds: float, chance: random.Random) -> list[str]:
    """Kills, at random moments, one random process of each job. Returns what was killed."""
    begin = time.monotonic()
    killed = []
    for moment, token in sorted((chance.uniform(0.3, seconds), token) for token in tokens):
        time.sleep(max(0.0, begin + moment - time.monotonic()))
        # The kinds first, then one of the kind: most processes are ranks.
        found: dict[str, list[int]] = {}
        for pid, words in processes(nodes).items():
            if family(pid, token):
                found.setdefault(_kind(words), []).append(pid)
        if found:
            kind = chance.choice(sorted(found))
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found[kind]), signal.SIGKILL)
            killed.append(f"{kind} at {moment:.1f}")
    return killed


def _kind(words: Sequence[str]) -> str:
    name = os.path.basename(words[0]).rstrip(":") if words else "?"
    if name.startswith("python"):
        return "guard" if "--limit" in words else "head" if "process_group" in " ".join(words) else "rank"
    return name


@pytest.mark.parametrize(
    ("kind", "count"), series.first(("mpirun", 5), ("srun", 5), ("mpirun", 20), ("srun", 20), brief=2)
)
def test_nothing_is_left_whatever_is_killed(nodes: Cluster, tmp_path: Path, kind: str, count: int) -> None:
    """Jobs at once, of two nodes each, lose a process each; the ranks would run for a day."""
    chance = random.Random(17)
    numbers = range(count)
    # Slurm, too, has them beside each other.
    more: dict[str, Any] = {"options": ["--exclusive=user", "--mem=1"] if kind == "srun" else []}
    # Above the moments of the kills, also where to look for processes takes a second.
    more.update(limit=15, per_node=1)
    program = [sys.executable, "-c", STUBBORN]
    jobs = [
        Job(chance.sample(nodes.nodes, 2), kind, program, tmp_path / str(n), environment={"BUSBAR_JOB": str(n)}, **more)
        for n in numbers
    ]
    killed = kill_one_of_each(nodes, [f"BUSBAR_JOB={number}" for number in numbers], 6, chance)
    assert len({each.split()[0] for each in killed}) > count // 5, killed
    done = [job.done() for job in jobs]
    assert not [each for each in done if each.rc == 0]
    wait("the nodes to be idle", lambda: not processes(nodes))
