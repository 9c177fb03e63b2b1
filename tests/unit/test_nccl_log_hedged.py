# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one word does not prove is told as possible, beside what else fits; what the log shows is not asked for."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

LISTED = "#  Rank {0:2} Group  0 Pid 9{0} on n{1} device {0} [0x00] NVIDIA X\n"
ROW = "  134217728  33554432  float  sum  -1  9999.0  0.50  0.50  0  9999.0  0.50  0.50  0\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def two_nodes(*texts: str) -> str:
    begin = (
        "n{0}:7{0}:1 [0] NCCL INFO ncclCommInitRank comm 0x{0}a rank {0} nranks 2 cudaDev 0 busId 10 commId 0x5 - Init"
    )
    begin += (
        " START\nn{0}:7{0}:1 [0] NCCL INFO comm 0x{0}a rank {0} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
    )
    said = "".join(f"n{{0}}:7{{0}}:1 [0] NCCL INFO {text}\n" for text in texts)
    return "".join((said + begin).format(rank) for rank in (0, 1))


def test_libibverbs_that_cannot_be_opened_proves_no_hca() -> None:
    said = printed(two_nodes("Failed to open libibverbs.so[.1]", "Using network Socket"))
    assert "possible causes: libibverbs.so.1 cannot be opened" in said
    assert "no line shows that the nodes have any" in said
    assert "cause: libibverbs" not in said.replace("possible causes: libibverbs", "")
    # Behind what a setting proves it is one of two.
    said = printed(
        two_nodes("NCCL_NET set by environment to Socket.", "Failed to open libibverbs.so[.1]", "Using network Socket")
    )
    assert "cause: NCCL_NET=Socket" in said


def test_rings_that_do_not_fit_are_no_word_on_the_nodes_topology() -> None:
    said = printed(
        "RuntimeError: NCCL error in: x/ProcessGroupNCCL.cpp:9, internal error, NCCL version 2.18.3\nncclInternalError:"
        " Internal check failed.\nLast error:\nError : ring 3 does not contain rank 5\n"
    )
    assert "critical: Error : ring 3 does not contain rank 5 (NCCL's last error, by which the call failed)" in said
    assert "possible causes: ranks with different settings" in said
    assert "NCCL warns about the node's PCI" not in said


def test_low_figures_are_told_with_the_network_that_the_log_names() -> None:
    table = LISTED.format(0, 0) + LISTED.format(1, 1) + "#\n" + ROW
    said = printed(table + two_nodes("Using network Socket"))
    assert (
        "the network of this log is Socket (TCP), which is likely what limits it: these 0.5 GB/s are some 4 Gbit/s"
        in said
    )
    assert "why is not in the table" not in said
    assert "why is not in the table; NCCL_DEBUG=INFO shows network" in printed(table)


def test_ranks_of_a_list_whose_begin_is_cut_are_counted_as_that() -> None:
    said = printed(LISTED.format(1, 0) + LISTED.format(2, 1) + LISTED.format(3, 1) + "#\n" + ROW)
    assert "job: 3 of at least 4 ranks of nccl-tests in what is here of its list" in said
    assert "job: 2 ranks of nccl-tests in its list" in printed(LISTED.format(0, 0) + LISTED.format(1, 1) + "#\n" + ROW)
