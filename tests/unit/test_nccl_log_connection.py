# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of connections that somebody has cut: what is left of them is told, and nothing more."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, texts, transport
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

HEAD = "n1:7:8 [0] NCCL INFO "
HCA = f"{HEAD}NET/IB : Using [0]mlx5_0:1/RoCE\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


@pytest.mark.parametrize(
    "line",
    [
        "Channel 00 : 0[0] -> 1[0] [send] via NET/IB/0...",
        "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0 ...",
        "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0 \u2026 [cut]",
    ],
)
def test_of_a_connection_whose_end_is_cut_the_network_is_told_and_gpudirect_is_not(line: str) -> None:
    said = printed(f"{HCA}{HEAD}{line}\n")
    assert "network IB" in said
    assert "0->1 by NET/IB/0 (mlx5_0), 1 channel" in said
    assert "which network is used" not in said
    assert "GPUDirect RDMA is off" not in said
    assert "GPUDirect RDMA is not used" not in said
    assert "the first ring shown" not in said
    log = job.read([f"{HCA}{HEAD}{line}\n".encode()])
    proof = transport.transport(jobs.split(log)[0])
    assert proof.ranks[0].paths[0].gdr is None
    assert "whether 1 connections use GPUDirect RDMA: the ends of their lines are cut" in proof.missing
    # The whole line says that there is none.
    assert "GPUDirect RDMA is off on mlx5_0" in printed(f"{HCA}{HEAD}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n")


def test_what_is_left_out_before_the_way_hides_nothing_of_it() -> None:
    said = printed(f"{HCA}{HEAD}Channel 00/0 : 0[0] -> 1[0] ... via NET/IB/0/GDRDMA\n")
    assert "connections: 1 by NET/IB/GDRDMA" in said


@pytest.mark.parametrize(
    "line",
    [
        f"{HEAD}Channel 00/0 : ... -> 1[0] [receive] via NET/IB/0",
        f"{HEAD}... via NET/IB/0",
        "Channel 00/0 : 3[0] -> 0[0] [receive] via NET/IB/0",
        "Using network IB",
    ],
)
def test_of_a_connection_without_its_ranks_or_its_process_the_network_is_told(line: str) -> None:
    said = printed(f"{HCA}{line}\n")
    assert "network IB" in said
    assert "which network is used" not in said
    assert "the first ring shown" not in said


def test_a_network_that_no_process_signed_is_told_where_none_says_another() -> None:
    assert "network: Socket, by lines whose beginning is not there" in printed(f"{HCA}Using network Socket\n")
    assert "network IB verdict" in printed(f"{HCA}{HEAD}Using network IB\nUsing network Socket\n")


@pytest.mark.parametrize("rest", ["1" * 60000, " " * 60000 + "x", "." * 60000, "a/" * 30000, "-> 1 via " * 8000])
def test_a_hostile_line_is_read_once(rest: str) -> None:
    begin = time.process_time()
    for head in (
        "Channel 00/0 : ",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/",
        "Channel 00 : 0 -> 1 via P2P",
        "... ",
    ):
        texts.event(head + rest)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>\n",
        f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB\n{HEAD}NET/IB : Using [1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]\n",
        f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB\n[1]mlx5_1:1/RoCE\n  [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>\n",
        "NET/IB : Using [0]mlx5_0:1/IB\n[1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>\n",
        f"{HEAD}NET/IB : Using [0]mlx5_0:uverbs0:1/IB [1]mlx5_1:uverbs1:1/RoCE [2]mlx5_2:uverbs2:1/IB [RO]\n",
        "".join(
            f"{HEAD}NET/IB: [{n}] mlx5_{n}:uverbs{n}:1/{layer} provider=Mlx5 speed=400000 context=0x5 pciPath=/x ar=1\n"
            for n, layer in enumerate(("IB", "RoCE", "IB"))
        ),
    ],
)
def test_each_hca_is_told_in_whatever_lines_it_stands(text: str) -> None:
    said = printed(text)
    assert "HCAs: mlx5_0, mlx5_2 (InfiniBand), mlx5_1 (RoCE), port 1 of each" in said
    assert "no rule has read" not in said


def test_a_list_of_hcas_that_is_cut_is_told_as_such() -> None:
    said = printed(f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB ... [3]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>\n")
    assert "mlx5_0, mlx5_3 (InfiniBand), port 1 of each; and others: the list is cut" in said
    assert "mlx5_0:1, mlx5_0:2 (RoCE)" in printed(f"{HEAD}NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_0:2/RoCE [RO]\n")


def test_ports_that_are_used_as_one_are_not_told_twice() -> None:
    lines = "".join(
        f"{HEAD}NET/IB: [{n}] mlx5_{n}:uverbs{n}:1/RoCE provider=Mlx5 speed=200000 context=0x5 pciPath=/x ar=1\n"
        for n in range(2)
    )
    text = lines + f"{HEAD}NET/IB : Using [0]={{[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}} [RO]; OOB eth0:10.0.0.1<0>\n"
    assert "HCAs: mlx5_0:1 and mlx5_1:1 as one device (RoCE)" in printed(text)
    way = f"{HEAD}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA\n"
    assert "1 on mlx5_1" in printed(lines + way)


SPLIT = (
    "n1:{1}:8 [{0}] NCCL INFO ncclCommSplit comm 0xa{0} rank {0} nranks {2} cudaDev {0} nvmlDev {0} busId {1}000 parent"
    " 0xb{0} splitCount 1 color {3} key {0} - Init COMPLETE\n"
)


def test_ranks_that_name_the_parent_of_a_split_by_their_own_addresses_are_of_one_job() -> None:
    hashed = printed(SPLIT.format(0, 10, 4, 1934719490) + SPLIT.format(1, 11, 4, 1934719490))
    assert "2 of 4 ranks in this log" in hashed
    assert "ranks 2-3 of 4 are not in this log" in hashed
    assert "2 of 2 ranks in this log" in printed(SPLIT.format(0, 10, 2, 5) + SPLIT.format(1, 11, 2, 5))
    # Two groups of one small colour, or one rank twice, prove nothing.
    assert "job 2" in printed(SPLIT.format(0, 10, 4, 5) + SPLIT.format(1, 11, 4, 5))
    again = SPLIT.format(0, 11, 4, 1934719490).replace("0xb0", "0xc0")
    assert "job 2" in printed(SPLIT.format(0, 10, 4, 1934719490) + again)


def test_connections_name_ranks_where_each_process_has_one_of_its_own() -> None:
    line = "n1:%d:8 [%d] NCCL INFO Channel 00 : %d[%d] -> %d[%d] via SHM/direct/direct\n"
    ring = line % (70, 0, 4, 0, 5, 1) + line % (71, 1, 5, 1, 4, 0)
    failed = "n1:71:8 [1] include/shm.h:42 NCCL WARN Cuda failure 'invalid argument'\n"
    assert "on rank 5 (n1:71), GPU 1" in printed(ring + failed)
    assert "on n1:71, GPU 1" in printed(ring + line % (71, 1, 7, 1, 4, 0) + failed)
