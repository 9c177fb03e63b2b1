# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kinds of logs that are read by layers rather than by single rules: what the answer has to say of each."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, quotes, signals
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

_BRIDGES = "".join(f"[{n}]br-{n:012x}:172.2{n}.0.1<0>\n" for n in range(1, 6))
_ROW = " {size} {count} float sum -1 {time} {alg} {bus} 0\n"


def said(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


# A log, and words of the answer.
KINDS = [
    # Memory that is shared by IMEX; Fabric Manager; EFA.
    ("[ERROR] Failed to get new memory reference with rc: 4\n", "nvidia-imex-ctl -N"),
    ("setup: fabric manager never got ready\n", "systemctl status nvidia-fabricmanager"),
    ("RuntimeError: Error 802: system not yet initialized\n", "systemctl status nvidia-fabricmanager"),
    ("WARN: f Line: 4: NET/OFI Couldn't open AV. RC: -22\n", "fi_info -p efa"),
    ("[ 1.0] infiniband efa_1: Failed to allocate pd[-12]\n", "ulimit -l"),
    # A process without memory, and those that wait for it.
    (
        "[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "n1:7:8 [0] NCCL INFO [Service thread] Connection closed by localRank 4\n"
        "[rank1]:[E ProcessGroupNCCL.cpp:5] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
        " OpType=X, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n",
        "as rank 4 failed before, these ranks wait|make the program need less|local rank 4 closed its connection",
    ),
    # Broken lines, a topology without heads, interfaces one a line.
    (
        "transport/net_socket.cc:4 NCCL WARN NET/Socket : peer 10.0.0.9<5> message truncated :\n"
        "receiving 4096 bytes instead of 64\n",
        "receiving 4096 bytes instead of 64",
    ),
    ("+ PCI[24.0] - GPU/4000 (0)\n" + " " * 8 + "+ NET[50.0] - NET/0 (0/0/50.000000)\n", "1 NIC of 50 GB/s"),
    ("[0]eth4:10.0.0.1<0>\n" + _BRIDGES, "5 interfaces (br-|the one beside them is eth4"),
    (
        "n1:7:8 [0] NCCL INFO threadThresholds 8/8/64 | 16/8/64 | 8/8/64\n",
        "NCCL's thresholds for the number of threads",
    ),
    ("n1:7:8 [0] NCCL INFO ReduceScatter |   0.0/   0.0 |  7.5/ 100.0\n", "tuning table"),
    # Other programs.
    (
        "2025-01-01: F xla/rendezvous.cc:1] Expected 4 threads to join the rendezvous, but only 3 arrived\n",
        "XLA's threads",
    ),
    ("E0101 coordination_service.cc:8] task:3 unexpectedly disconnected.\n", "coordination service (gRPC, no NCCL)"),
    ("/x/transport/ibrc/ibrc.cpp:4: non-zero status: 22 ibv_modify_qp failed\n", "an error of NVSHMEM"),
    ("[12:00 TP3] Watchdog timeout (self.watchdog_last_forward_ct=22)\n", "SGLang's own watchdog"),
    ("Memory access fault by GPU node-2 on address 0x7f. Reason: Unknown.\n", "AMD's runtime"),
    ("Straggler detected: rank 12\n", "no failure is in these lines|a rank is slower"),
    # Of two ranks the other; a driver that is too old; a GPU to be reset; HCAs of others; GCP's plugin.
    (
        "[rank1]:[E1 ProcessGroupNCCL.cpp:5] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
        " OpType=_ALLGATHER_BASE, NumelIn=4, NumelOut=8, Timeout(ms)=600000) ran for 600001 milliseconds.\n",
        "process group has 2 ranks: of two ranks in all the other is rank 0",
    ),
    ("Cuda failure x.cu:8 'CUDA driver version is insufficient for CUDA runtime version'\n", "a newer driver, or"),
    ("Test CUDA failure common.cu:1\nNVRM: x: Reset required [NV_ERR_RESET_REQUIRED]\n", "nvidia-smi --gpu-reset"),
    (
        "n1:7:8 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_open_device failed\n"
        "n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB eth4:10.0.0.1<0>\n",
        "minor: Call to ibv_open_device|continues with the HCAs that it can open (mlx5_4)",
    ),
    ("x.cc:1 NCCL WARN NET/FasTrak ...: INVALID_ARGUMENT: no valid fd set\n", "rxdm"),
    (
        "n1:7:8 [0] NCCL INFO NET/IB: f: Got CQE with error (devIndex=0)\n"
        "n1:7:8 [0] net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<9> with status=9 opcode=0 len=0"
        " vendor err 138 (Send)\n",
        "verdict: completion with status 9",
    ),
    # Who ended first: by torchrun's block alone, and its list of the others is in no order of time.
    (
        "[1]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 41)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 41\n[2]:\n  rank      : 2 (local_rank: 2)\n"
        "  exitcode  : -15 (pid: 43)\n  traceback : Signal 15 (SIGTERM) received by PID 43\n"
        "Root Cause (first observed failure):\n[0]:\n  host      : n1\n  rank      : 1 (local_rank: 1)\n",
        "2 ended; which of them was first is not proven",
    ),
    (
        "Root Cause (first observed failure):\n[0]:\n  host      : n7.x\n  rank      : 12 (local_rank: 4)\n"
        "  exitcode  : -6 (pid: 4711)\n",
        "on rank 12 (n7.x pid 4711)",
    ),
    # Two hosts, of which one could not be connected.
    (
        "(W pid=1, ip=10.0.0.1) RuntimeError: ray::X.f() (pid=2, ip=10.0.0.2)\n"
        "(W pid=1, ip=10.0.0.1) ncclInternalError: Internal check failed.\n(W pid=1, ip=10.0.0.1) Last error:\n"
        "(W pid=1, ip=10.0.0.1) Proxy Call to rank 3 failed (Connect)\n",
        "the proxy thread of rank 3 did not do|of 10.0.0.1, 10.0.0.2: a connection between nodes is likely",
    ),
    # nccl-tests.
    ("#  Rank 15 Group  0 Pid 5 on n2 device 7 [0x01] NVIDIA X\n", "at least 16 ranks"),
    (
        _ROW.format(size=1 << 28, count=4, time=9, alg=60, bus=100)
        + _ROW.format(size=1 << 29, count=4, time=9, alg=80, bus=150),
        "still rises with the size",
    ),
    (_ROW.format(size=1 << 28, count=4, time=9, alg=1, bus=2), "little for GPUs that are joined by NVLink"),
]


@pytest.mark.parametrize(("log", "wanted"), KINDS)
def test_what_is_said_of_a_kind(log: str, wanted: str) -> None:
    answer = said(log)
    for words in wanted.split("|"):
        assert words in answer


def test_bandwidths_of_a_topology_that_are_no_numbers_are_none() -> None:
    assert "NVLinks of 0 GB/s" in said("+ PCI[1.2.3] - GPU/4000 (0)\n        + NVL[1.2.3] - NVS/0\n")


def test_what_is_met_again_is_counted_where_no_further_quote_is_kept() -> None:
    lines = ["ERROR: %s went wrong" % ("x" * n) for n in range(1, quotes.QUOTES + 20)]
    log = job.read(["\n".join([*lines, "ERROR: x went wrong", "w: killed by signal 9", ""]).encode()])
    assert log.quotes.left_out == 19
    assert log.quotes.all[0].count == 2
    assert log.quotes.all[-1].kind == signals.DEATH


def test_a_warning_of_pytorchs_is_quoted_and_no_failure() -> None:
    answer = said(
        "[W101 10:00:00.1 socket.cpp:9] [c10d] The hostname of the client socket cannot be retrieved. err=-2\n"
    )
    assert "no failure is in these lines" in answer
    assert "harmless" in answer
