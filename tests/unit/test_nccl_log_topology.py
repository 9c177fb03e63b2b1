# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is shown of the printed topology, of choices and tables, and which lines that no rule reads are printed."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render, screenful


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def info(*texts: str, who: str = "n1:7:8 [0]") -> str:
    return "".join(f"{who} NCCL INFO {text}\n" for text in texts)


TREE = info(
    "=== System : maxBw 24.0 totalBw 240.0 ===",
    "CPU/0-0 (1/2/-1)",
    "+ SYS[16.0] - CPU/0-1",
    "+ PCI[0.2] - PCI/0-65000 (104c823200000000)",
    "             + PCI[24.0] - NIC/0-67000",
    "                           + NET[50.0] - NET/0-c (0/d4f9fc0003ae6d94/1/50.000000)",
    "             + PCI[24.0] - GPU/0-68000 (8)",
    "                           + NVL[240.0] - NVS/0-0",
    "GPU/0-68000 :GPU/0-68000 (0/5000.0/LOC) GPU/0-6b000 (2/240.0/NVL) NET/0-c (3/24.0/PIX) NET/0-d (6/16.0/SYS)",
    "NET/0-d :GPU/0-68000 (6/16.0/SYS) GPU/0-6b000 (6/16.0/SYS)",
    "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/10.000000, type NVL/PIX, sameChannels 1",
)


@pytest.mark.parametrize(
    "wanted",
    [
        "topology of n1: NVLinks of 240 GB/s to NVSwitch on 1 GPU; at most 24 GB/s from a GPU and 240 GB/s over all",
        "1 CPU node (AMD x86); between CPUs 16 GB/s",
        "PCIe to PCIe switches 0.2 GB/s (0-65000)",
        "1 NIC of 50 GB/s (NET/0-c)",
        "paths from GPU to GPU: NVL (240 GB/s); paths from GPU to NIC: PIX (24 GB/s), SYS (16 GB/s)",
        # The line of a NIC alone does not tell which one is the nearest.
        "the nearest NICs: of GPU/0-68000 NET/0-c by PIX",
        "ring: 12 channels of 20 GB/s in the node (NVL) and 10 to others (PIX)",
    ],
)
def test_the_printed_topology_is_told(wanted: str) -> None:
    assert wanted in printed(TREE)


def test_what_a_topology_tells_is_not_told_twice() -> None:
    assert "no rule has read" not in printed(TREE)
    # Of a device's number no plugin's name is made.
    assert "lines of a network plugin" not in printed(info("NET/10 :GPU/18000 (6/10.000000/SYS) CPU/0 (4/10.0/SYS)"))


def test_the_topology_without_heads_and_of_old_releases() -> None:
    bare = TREE.replace("n1:7:8 [0] NCCL INFO ", "").replace("maxBw", "maxWidth").replace("totalBw", "totalWidth")
    assert "1 CPU node (AMD x86); between CPUs 16 GB/s" in printed(bare)
    assert "at most 24 GB/s from a GPU and 240 GB/s" in printed(bare)


def test_processes_that_print_the_same_topology_are_told_once() -> None:
    both = TREE + TREE.replace("n1:7:8 [0]", "n2:9:9 [1]")
    assert printed(both).count("topology of") == 1
    assert "topology of n1, n2:" in printed(both)


CHOICES = [
    ("AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}", "AllReduce by RING, protocol SIM"),
    ("AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}", "of 1 MiB, channels 0 to 15"),
    ("AllGather: 8 Bytes -> Algo 1 proto 0 time 12.3", "AllGather by RING, protocol LL: 1 times, of 8 B"),
    ("Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.53 (kernels 0.19, bootstrap 0.05, rest 0.00)",
     "an initialisation took 0.53 s: kernels 0.19"),
    ("16 coll channels, 16 nvls channels, 32 p2p channels, 4 p2p channels per peer",
     "16 channels for collectives, 32 for point-to-point (4 for each peer), 16 for NVLS"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CHOICES)
def test_a_line_that_says_a_number_is_told(text: str, wanted: str) -> None:
    assert wanted in printed(info(text))


def test_speeds_of_ports() -> None:
    speed = "NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=100000 context=0x7 pciPath=/sys/devices/x ar=0"
    assert "HCAs: mlx5_0 (RoCE), port 1; 100 Gb/s each" in printed(
        info(speed, "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB e0:1")
    )


def call(count: int, comm: str) -> str:
    return f"AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 comm {comm} [nranks=2]"


def test_ranks_do_not_disagree_where_the_number_of_operations_stands_still() -> None:
    begun = "".join(
        info(f"comm 0x{n} rank {n} nranks 2 cudaDev {n} busId {n}000 commId 0xabc - Init START") for n in range(2)
    )
    same = info(call(8, "0x0"), call(8, "0x1"), call(16, "0x0"), call(16, "0x1"))
    said = printed(begun + same)
    assert "opCount does not grow here" in said
    assert "nccl_log.mismatch" not in said
    assert "nccl_log.mismatch" in printed(begun + info(call(8, "0x0"), call(16, "0x1")))


HEAD = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"


def test_a_row_that_nccl_has_torn_apart() -> None:
    torn = HEAD + "        1024           256     float     sum      -1" + info("Connected all trees")
    torn += "    10.5    0.10    0.19      0" + info("Connected all trees") + "    10.4    0.10    0.20      0\n"
    assert (
        "1 size up to 1 KiB; reduction sum; values of type float; at 1 KiB busbw 0.19 GB/s out of place, 0.2 in place"
        in (printed(torn))
    )


def test_all_rows_of_a_table_are_told() -> None:
    rows = "".join(
        f"  {size}  {size // 4}  float  sum  -1  10.5  1.0  {size / 1024:.2f}  0  10.4  1.0  0.5  0\n"
        for size in (1024, 2048)
    )
    assert "busbw of each size, out of place/in place, in GB/s: 1 KiB 1/0.5, 2 KiB 2/0.5" in printed(HEAD + rows)


def test_the_error_of_old_nccl_tests_is_no_failure() -> None:
    rows = "  1024  256  float  sum  10.5  0.10  0.19  5e-07  10.4  0.10  0.20  2e-07\n"
    said = printed("  p4  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n" + rows)
    assert "not counted, the largest error is 5e-07" in said
    assert "no failure is in these lines" in said


def test_lines_that_no_rule_reads_are_told_once() -> None:
    text = info("Bootstrap timings total 0.12", "Bootstrap timings total 0.13", "Something new of 2.40 has 8 lanes")
    text += "[bench] 512 MB 18.00 zz algbw 29.82 G\n[bench] 1024 MB  4.83 zz algbw 30.82 G\n"
    said = printed(text)
    assert "NCCL: Bootstrap timings total 0.12 (line 1; 2 such up to line 2" in said
    assert "= seconds of the ranks' first" in said
    assert "NCCL: Something new of 2.40 has 8 lanes (line 3)" in said
    assert "[bench] 512 MB 18.00 zz algbw 29.82 G (line 4; 2 such up to line 5, others: " in said


def test_what_says_most_is_on_the_first_screen() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = "torch 2.9.1+cu130\n" + "".join(f"loading part {letters[n]}\n" for n in range(26))
    log = job.read([(text + info("Connected all rings")).encode()])
    assert "torch 2.9.1+cu130" in screenful(log, jobs.split(log), judge.judge(log))


def test_what_a_plugin_says_of_itself_is_told_whole() -> None:
    said = printed(info("NET/OFI Selected provider is efa, fabric is efa (found 3 nics)"))
    assert "lines of a network plugin: efa" in said
    assert "NCCL: NET/OFI Selected provider is efa, fabric is efa (found 3 nics) (line 1)" in said


LABELS = ["[0] ", "0: ", "worker-0: ", "(Worker pid=7, ip=10.0.0.1) ", "2026-01-02T03:04:05.6Z stdout F "]


@pytest.mark.parametrize("label", LABELS)
def test_rows_behind_a_label(label: str) -> None:
    row = f"{label}  1024  256  float  sum  -1  10.5  0.10  0.19  0  10.4  0.10  0.20  0\n"
    assert "at 1 KiB busbw 0.19 GB/s out of place, 0.2 in place" in printed(row)


@pytest.mark.parametrize(
    "wanted",
    [
        "NCCL decided for GPUDirect RDMA of GPU 86000, af000 with HCA 0",
        "NCCL decided against GPUDirect RDMA of GPU 18000 with HCA 0 (distance 5 > 4)",
    ],
)
def test_what_nccl_decided_on_gpudirect_is_told(wanted: str) -> None:
    on = [f"GPU Direct RDMA Enabled for GPU {gpu} / HCA 0 (distance 4 <= 4), read 0" for gpu in ("86000", "af000")]
    assert wanted in printed(info(*on, "GPU Direct RDMA Disabled for GPU 18000 / HCA 0 (distance 5 > 4)"))


def test_who_a_process_is_with_its_gpus_address() -> None:
    begun = "comm 0x1 rank 3 nranks 4 cudaDev 1 nvmlDev 5 busId a1000 commId 0xabc - Init START"
    assert "rank 3 (n1:7) GPU 1 (busId a1000, nvmlDev 5)" in printed(info(begun))


def test_interfaces_are_told_where_no_bootstrap_is() -> None:
    assert "NET/Socket lists [0] eth0 10.0.0.1" in printed(info("NET/Socket : Using [0]eth0:10.0.0.1<0>"))
    said = printed(info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"))
    assert "HCAs: mlx5_0 (InfiniBand), port 1; control messages over eth0 10.0.0.1 (OOB)" in said


def test_processes_have_no_more_attributes_than_python_shares_the_names_of() -> None:
    """Beyond 30 each of 50,000 processes would keep the names of its own: 1 KB more of each."""
    begun = "comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init"
    text = info(
        *("Bootstrap: Using eth0:10.0.0.1<0>", "cudaDriverVersion 12080", "NCCL version 2.27.7+cuda12.8"),
        *("NET/Plugin: Could not find: libnccl-net.so.", "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
        *("Using network IB", f"{begun} START", "DMA-BUF is available on GPU device 0"),
        *("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", "Connected all rings, use ring PXN 0 GDR 1"),
        *("Connected all trees", "16 coll channels, 0 nvls channels, 32 p2p channels, 4 p2p channels per peer"),
        *("Init timings - ncclCommInitRank: rank 0 nranks 1 total 3.5 (kernels 0.2)", f"{begun} COMPLETE"),
    )
    [process] = job.read([text.encode()]).processes.values()
    assert len(vars(process)) <= 30, sorted(vars(process))
