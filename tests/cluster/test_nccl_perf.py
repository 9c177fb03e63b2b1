# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module nccl_perf over four nodes, by the real mpirun and srun: what it proves of a run, and what ends it.

The program stands in for nccl-tests: an MPI program that prints its table, NCCL's log of each rank in the form of 2.28,
and moves the counters of the HCAs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import debian, series, slurm_daemons
from tests.trees import link, put_all, tool

from .nodes import Cluster

PROGRAM = """\
#!{python}
import ctypes, os, socket, sys, time
argv, ROOT = sys.argv[1:], {root!r}
if "-h" in argv:
    sys.exit("USAGE: all_reduce_perf")
NETWORK, GDR, FOUND = "IB", "/GDRDMA", "NET/IB : Using [0]mlx5_0:1/IB; OOB eth0:10.0.0.1<0>"
DEBUG, RC, FACTOR = True, 0, 1.0
def before(rank): pass
{change}
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
numbers = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(numbers[0])), mpi.MPI_Comm_size(world, ctypes.byref(numbers[1]))
rank, size = (number.value for number in numbers)
host = socket.gethostname()
before(rank)
def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()
names = ctypes.create_string_buffer(64 * size)
own = ctypes.create_string_buffer(host.encode(), 64)
char = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_char")))
mpi.MPI_Allgather(own, 64, char, names, 64, char, world)
hosts = [names.raw[64 * n : 64 * n + 64].rstrip(b"\\0").decode() for n in range(size)]
if rank == 0:
    say("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\\n")
    say("# Collective test starting: all_reduce_perf\\n# Using devices\\n")
    for n in range(size):
        say("#  Rank %2d Group  0 Pid %6d on %10s device  0 [0000:1b:00] NVIDIA H100\\n" % (n, 4000 + n, hosts[n]))
    say("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\\n")
if DEBUG and os.environ.get("NCCL_DEBUG") == "INFO":
    head = "%s:%d:%d [0] NCCL INFO " % (host, os.getpid(), os.getpid())
    init = "ncclCommInitRank comm 0xa%d rank %d nranks %d cudaDev 0 nvmlDev 0 busId 1b000 commId 0xc0ffee - Init " % (
        rank, rank, size)
    for line in ["NCCL version 2.28.9+cuda13.0", FOUND, "Using network " + NETWORK, init + "START",
                 "comm 0xa%d rank %d nRanks %d nNodes %d localRanks 1 localRank 0 MNNVL 0" % (rank, rank, size, size),
                 "Channel 00/0 : %d[0] -> %d[0] [send] via NET/%s/0%s" % (rank, (rank + 1) % size, NETWORK, GDR),
                 init + "COMPLETE"]:
        say(head + line + "\\n")
mpi.MPI_Barrier(world)
for name in ("port_xmit_data", "port_rcv_data"):
    path = "%s/sys/class/infiniband/mlx5_0/ports/1/counters/%s" % (ROOT, name)
    if NETWORK == "IB" and rank == 0:
        open(path, "r+").write("%d" % (int(open(path).read()) + (1 << 28)))
mpi.MPI_Barrier(world)
if rank == 0:
    algbw = FACTOR * 100.0
    busbw = algbw * 2 * (size - 1) / size
    place = "%.1f %.2f %.2f 0" % ((1 << 30) / algbw / 1e3, algbw, busbw)
    say("%12d %12d float sum -1 %s %s\\n" % (1 << 30, 1 << 28, place, place))
    say("# Out of bounds values : 0 OK\\n# Avg bus bandwidth    : 1\\n# Collective test concluded: all_reduce_perf\\n")
mpi.MPI_Finalize()
sys.exit(RC)
"""
CODE = """\
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.modules import nccl_perf
with patch_module_args(json.loads(sys.argv[1])): nccl_perf.main()
"""


@pytest.fixture
def hardware(tmp_path: Path) -> Path:
    """One GPU and one HCA, on every node the same files: what one node's program counts, all nodes have counted."""
    root = tmp_path / "hardware"
    gpu, hca = "pci0000:00/0000:00:01.0/0000:1b:00.0", "pci0000:00/0000:00:01.0/0000:1c:00.0"
    files = {
        "proc/driver/nvidia/gpus/0000:1b:00.0/information": "GPU UUID: GPU-1\nDevice Minor: 0\n",
        "dev/nvidia0": "",
        f"sys/devices/{gpu}/local_cpulist": f"0-{(os.cpu_count() or 1) - 1}\n",
        f"sys/devices/{gpu}/numa_node": "0\n",
        f"sys/devices/{hca}/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "1000",
        f"sys/devices/{hca}/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000",
    }
    put_all(root, files)
    link(root / f"sys/devices/{hca}/infiniband/mlx5_0/device", root / f"sys/devices/{hca}")
    link(root / "sys/bus/pci/devices/0000:1b:00.0", root / f"sys/devices/{gpu}")
    link(root / "sys/class/infiniband/mlx5_0", root / f"sys/devices/{hca}/infiniband/mlx5_0")
    return root


def start(nodes: Cluster, tmp_path: Path, kind: str, change: str = "", **more: Any) -> subprocess.Popen[str]:
    """The module on the first node."""
    root = tmp_path / "hardware"
    tool(tmp_path, "all_reduce_perf", PROGRAM.format(python=sys.executable, change=change, root=str(root)))
    # Tools are looked for below the system root. By a link mpirun would look for its daemon beside the link.
    tool(tmp_path, f"usr/bin/{kind}", f'exec {shutil.which(kind, path=debian.PLACES)} "$@"')
    hosts = [node.name for node in nodes.nodes]
    given = {
        "binary": str(tmp_path / "all_reduce_perf"),
        "launch": {"kind": kind, "hosts": hosts, "per_node": 1, "python": sys.executable},
        "ranks": len(hosts),
        "min_bytes": "1G",
        "max_bytes": "1G",
        "bar_busbw": 100,
        "timeout": 60,
        "result_directory": str(tmp_path / "results"),
        "require_idle": False,
        "system_root": str(tmp_path),
        "hardware_root": str(root),
        **more,
    }
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", CODE, json.dumps(given)]
    module: subprocess.Popen[str] = nodes.nodes[0].start(
        argv, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return module


def measure(nodes: Cluster, tmp_path: Path, kind: str, change: str = "", **more: Any) -> dict[str, Any]:
    """What the module says on the first node."""
    return said(start(nodes, tmp_path, kind, change, **more))


def said(module: subprocess.Popen[str]) -> dict[str, Any]:
    text, problem = module.communicate(timeout=300)
    found: dict[str, Any] = json.loads(text or json.dumps({"failed": True, "msg": problem}))
    return found


def states(result: dict[str, Any]) -> dict[str, str]:
    assert not result.get("failed"), result["msg"]
    print(*("{check}: {have}".format(**finding) for finding in result["findings"]), sep="\n")
    return {finding["check"].partition(".")[2]: finding["state"] for finding in result["findings"]}


@pytest.mark.parametrize("kind", series.first("mpirun", "srun"))
def test_a_good_run_is_one_job_over_a_proven_transport(
    nodes: Cluster, tmp_path: Path, hardware: Path, kind: str
) -> None:
    result = measure(nodes, tmp_path, kind, repeats=2, algorithm="Ring", environment={"NCCL_IB_TC": 106})
    assert states(result) == {}
    assert result["busbw"] == 150.0
    assert [run["rc"] for run in result["repeats"]] == [0, 0]
    assert result["transport"]["networks"] == ["IB"]
    assert result["transport"]["proven"]
    assert result["ranks"] == {node.name: 1 for node in nodes.nodes}
    assert all(of["mlx5_0"]["sent"] == 4 << 28 for of in result["rails"].values())


HEADER = "#  Rank  0 Group  0 Pid   4999 on node04 device  0 [0000:1b:00] NVIDIA H100"
ROW = "1073741824 268435456 float sum -1 1073.7 1000.00 1500.00 0 1073.7 1000.00 1500.00 0"


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    series.first(
        # It clears its bar, and did not use the network that was bought.
        (
            "mpirun",
            'NETWORK, GDR, FOUND = "Socket", "", "NET/Socket : Using [0]eth0:10.0.0.1<0>"',
            {"network": "drift", "hcas": "unknown", "gdr": "unknown", "rails": "unknown"},
        ),
        # NCCL_DEBUG does not reach a rank.
        ("srun", 'DEBUG = socket.gethostname() != "node03"', {"transport": "unknown", "busbw": "unknown"}),
        ("srun", 'GDR = ""', {"gdr": "drift"}),
        # Exit code 0, and nothing.
        ("mpirun", "sys.exit(0)", {"ran": "unknown", "transport": "unknown", "busbw": "unknown"}),
        # Each runs alone, ends well, and has a table with a figure above any bar.
        (
            "mpirun",
            f"print({HEADER!r}.replace('node04', socket.gethostname()))\n"
            "print('# size count type redop root time algbw busbw #wrong time algbw busbw #wrong')\n"
            f"print({ROW!r}, '# Out of bounds values : 0 OK', sep='\\n'); sys.exit(0)",
            {"ranks": "drift", "transport": "unknown", "busbw": "unknown"},
        ),
        # Somebody else's table among it.
        (
            "srun",
            f"def before(rank): rank == 3 and print({HEADER!r}, {ROW!r}, sep='\\n', flush=True)",
            {"ranks": "drift"},
        ),
        brief=2,
    ),
    ids=["sockets", "no log of a rank", "no GPUDirect", "nothing", "singletons", "another's table"],
)
def test_what_is_no_proof_is_never_ok(
    nodes: Cluster, tmp_path: Path, hardware: Path, kind: str, change: str, expected: dict[str, str]
) -> None:
    result = measure(nodes, tmp_path, kind, change)
    found = states(result)
    assert {name: found.get(name, "ok") for name in expected} == expected


@pytest.mark.long
def test_a_rank_that_fails_is_seen_where_the_launcher_passes_over_it(
    nodes: Cluster, tmp_path: Path, hardware: Path
) -> None:
    hosts = [node.name for node in nodes.nodes]
    options = ["--mca", "orte_abort_on_non_zero_status", "0"]
    job = {"kind": "mpirun", "hosts": hosts, "per_node": 1, "python": sys.executable, "options": options}
    found = states(
        measure(nodes, tmp_path, "mpirun", "def before(rank):\n    global RC\n    RC = 3 * (rank == 2)", launch=job)
    )
    assert found == {"ran": "drift"}


@pytest.mark.long
def test_a_run_that_hangs_is_ended_everywhere(nodes: Cluster, tmp_path: Path, hardware: Path) -> None:
    """The fixture waits until nothing is left on any node."""
    started = time.monotonic()
    result = measure(nodes, tmp_path, "mpirun", "def before(rank): rank == 1 and time.sleep(600)", timeout=5, repeats=3)
    assert states(result)["ran"] == "drift"
    assert "no end within 5 s" in next(f["have"] for f in result["findings"] if f["check"] == "nccl_perf.ran")
    assert len(result["repeats"]) == 1
    assert time.monotonic() - started < 100  # and not 600


@pytest.mark.parametrize(
    ("kind", "where", "victim"),
    series.first(("srun", 0, "module"), ("mpirun", 2, "rank guard")),
)
def test_what_is_killed_is_never_ok_and_leaves_nothing(
    nodes: Cluster, tmp_path: Path, hardware: Path, kind: str, where: int, victim: str
) -> None:
    """The fixture waits until nothing is left on any node."""
    module = start(nodes, tmp_path, kind, "def before(rank): open('%s/%d' % (ROOT, rank), 'w'); time.sleep(600)")
    slurm_daemons.wait("all ranks", lambda: all((hardware / str(n)).exists() for n in range(4)), 60)
    marks = {"rank guard": "--limit", "module": CODE}
    found = nodes.nodes[where].processes()
    pids = [pid for pid, words in found.items() if any(marks[victim] in word for word in words)]
    assert pids
    os.kill(min(pids), signal.SIGKILL)
    result = said(module)
    if victim != "module":
        assert states(result)["ran"] in ("drift", "unknown")
        assert states(result)["busbw"] == "unknown"
