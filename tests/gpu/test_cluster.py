"""One job over two nodes by the real mpirun, nccl-tests and NCCL: what is said of it, and what is left of it.

    BUSBAR_NCCL_TESTS_TARBALL=/path/nccl-tests.tar.gz pytest -s tests/gpu/test_cluster.py      as root, with Open MPI

The second node is a host name of its own on this machine (unshare --uts), so that NCCL takes it for another host. It
has the second GPU, or, where there is one alone, shares it. There is no RDMA between the two: they talk over sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trees import tool

from .conftest import ROOT, Show, gpus, module

HERE, OTHER = socket.gethostname().partition(".")[0].lower(), "busbar-other"
# In place of ssh: the words behind the options and the host's name are a command for a shell of that host.
AGENT = """\
#!/bin/sh
while [ "$1" != {other} ]; do shift; done
shift
{gpu}
exec unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' {other} "$@"
"""
LIMIT = 120.0
NOTHING: list[str] = []


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Of root's alone, on a path of root's alone: what is executed as root has to be."""
    top = Path("/opt/busbar-gpu-test")
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(mode=0o755)
    yield top
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def programs(folder: Path) -> dict[str, Path]:
    """all_reduce_perf with MPI, and without."""
    subprocess.run(["tar", "-xzf", os.environ["BUSBAR_NCCL_TESTS_TARBALL"], "-C", str(folder)], check=True)
    source = next(path for path in folder.iterdir() if path.is_dir())
    compiled = subprocess.run(["mpicc", "--showme:incdirs"], capture_output=True, text=True, check=True).stdout.split()
    home = next(str(Path(each).parent) for each in compiled if (Path(each) / "mpi.h").is_file())
    gencode = "NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90"
    found = {}
    for name, more in (("mpi", ["MPI=1", f"MPI_HOME={home}"]), ("alone", NOTHING)):
        build = folder / name
        make = ["make", "-j8", "-C", str(source / "src"), f"BUILDDIR={build}", gencode, *more]
        subprocess.run([*make, str(build / "all_reduce_perf")], check=True, capture_output=True)
        found[name] = build / "all_reduce_perf"
    return found


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(folder: Path, tmp_path: Path) -> Measure:
    agent = folder / "agent"
    tool(folder, "agent", AGENT.format(other=OTHER, gpu="export CUDA_VISIBLE_DEVICES=1" if gpus() > 1 else ":"))
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"here": {"ansible_connection": "local"}}}}))

    def run(program: Path, **arguments: Any) -> dict[str, Any]:
        given = {
            "binary": str(program),
            "launch": {
                "kind": "mpirun",
                "hosts": [HERE, OTHER],
                "addresses": ["localhost", OTHER],
                "per_node": 1,
                "options": ["--mca", "plm_rsh_agent", str(agent)],
            },
            "min_bytes": "1M",
            "max_bytes": "64M",
            "environment": {"NCCL_NVLS_ENABLE": "0"},
            "result_directory": str(folder / "results"),
            "bar_busbw": 0.1,
            "timeout": LIMIT,
            "require_idle": False,
            **arguments,
        }
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        result = module(tmp_path / "hosts.yml", "here", "nccl_perf", given, environment)
        if result.get("run_directory") and not result["busbw"]:
            for name in ("stdout", "stderr"):
                print((Path(result["run_directory"]) / name).read_text(errors="replace")[-3000:])
        return result

    return run


def states(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["state"], one["have"] or "") for one in result["findings"]}


def told(result: dict[str, Any]) -> str:
    lines = ["%-22s %-8s %s" % (check, state, have) for check, (state, have) in states(result).items()]
    return "\n".join(
        [*lines, "ok: " + ", ".join(one["check"] if isinstance(one, dict) else one for one in result["passed"])]
    )


def running() -> list[str]:
    """What of a job still runs on this machine, whichever node it belongs to."""
    return subprocess.run(
        ["pgrep", "-fa", "all_reduce_perf|orted|busbar-rank"], capture_output=True, text=True, check=False
    ).stdout.splitlines()


def test_two_nodes_over_sockets_are_not_ok_whatever_bar_they_clear(
    programs: dict[str, Path], measure: Measure, show: Show
) -> None:
    result = measure(programs["mpi"], repeats=3)
    show("\n== two nodes, 1 rank each, a bar of 0.1 GB/s\n" + told(result))
    show(json.dumps({name: result.get(name) for name in ("busbw", "transport", "rails", "statistics")}))
    found = states(result)
    assert result["busbw"] > 0.1
    assert found["nccl_perf.network"][0] == "drift", found
    assert "socket" in found["nccl_perf.network"][1].lower()
    passed = set(result["passed"])
    assert any(one.startswith("nccl_perf.job") for one in passed), (passed, found)
    assert any(one.startswith("nccl_perf.transport") for one in passed), (passed, found)
    assert running() == NOTHING


def test_a_program_without_mpi_is_two_jobs(programs: dict[str, Path], measure: Measure, show: Show) -> None:
    result = measure(programs["alone"])
    show("\n== built without MPI\n" + told(result))
    found = states(result)
    assert "nccl_perf.ranks" in found or "nccl_perf.job" in found, found
    assert not any(one.startswith("nccl_perf.busbw") for one in result["passed"])
    assert running() == NOTHING


@pytest.mark.parametrize("victim", ["mpirun", "orted", "all_reduce_perf"])
def test_whoever_is_killed_nothing_is_left_and_nothing_is_ok(
    programs: dict[str, Path], measure: Measure, show: Show, victim: str
) -> None:
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        # Once the program runs on both nodes.
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and not killed and not ended.is_set():
            pids = subprocess.run(
                ["pgrep", "-x", victim[:15]], capture_output=True, text=True, check=False
            ).stdout.split()
            ranks = subprocess.run(["pgrep", "-cx", "all_reduce_perf"], capture_output=True, text=True, check=False)
            if pids and int(ranks.stdout) >= 2:
                time.sleep(2)
                with contextlib.suppress(OSError):
                    os.kill(int(pids[-1]), signal.SIGKILL)
                    killed.append(int(pids[-1]))
            time.sleep(0.2)

    killer = threading.Thread(target=kill)
    killer.start()
    limit = 40.0
    begin = time.monotonic()
    result = measure(programs["mpi"], min_bytes="64M", max_bytes="64M", iterations=100000, timeout=limit)
    took = time.monotonic() - begin
    ended.set()
    killer.join()
    show(
        f"\n== kill -9 of {victim}, of a run with a limit of {limit:g} s: it ended after {took:.0f} s\n" + told(result)
    )
    assert killed, "there was nothing to kill"
    assert not any(one.startswith("nccl_perf.ran ") or one == "nccl_perf.ran" for one in result["passed"])
    end = time.monotonic() + 10
    while running() and time.monotonic() < end:
        time.sleep(0.5)
    assert running() == NOTHING
