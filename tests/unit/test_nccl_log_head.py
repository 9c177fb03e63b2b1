# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the head of a report and its side sentences say of a log must be true of all of its lines."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, shown, signals
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(diagnose.render(log, jobs.split(log), judge.judge(log), 100).split())


LEFT = "[rank{0}]:[W101 10:00:00.0 ProcessGroupNCCL.cpp:1] something of rank {0}\n"


def test_all_ranks_that_write_or_are_told_of_are_in_the_head() -> None:
    said = printed(LEFT.format(1) + LEFT.format(5) + "  rank      : 7 (local_rank: 3)\n")
    assert "ranks 1,5,7 in lines of programs" in said


def test_a_task_of_slurms_is_no_rank() -> None:
    said = printed("srun: error: n44: task 3: Exited with exit code 1\n")
    assert "n44: task 3" in said
    assert "rank 3" not in said
    assert "in lines of programs" not in said


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Test Error: ", None),
        ("Test error: 4.25 %", None),
        ("mean squared error = 1.5e-3", None),
        ("Connection error: ", signals.ERROR),
        ("Test error: lost the peer", signals.ERROR),
        ('  rank_zero_warn("Error handling is not set up.")', None),
        ("  warnings.warn('2 failed objects to clean up')", None),
        ("ERROR: warned of it", signals.ERROR),
    ],
)
def test_figures_and_sources_of_warnings_report_no_failure(line: str, kind: str | None) -> None:
    said = signals.classify(line)
    assert (said.kind if said else None) == kind


def test_what_a_healthy_program_measures_is_no_finding() -> None:
    said = printed("Epoch 1\nloss: 2.25  [ 0/60000]\nTest Error: \n Accuracy: 4.1%, Avg loss: 2.17 \n")
    assert "nccl_log.program" not in said
    assert "Test Error: (line 3)" in said
    assert "the program reports (result, line 4): Accuracy: 4.1%, Avg loss: 2.17" in said


def test_a_row_of_figures_between_bars_is_printed() -> None:
    said = printed("|  PP | S_PP t/s |\n|-----|----------|\n|  2048 |   850.39 |\n")
    assert "|  2048 |".replace("  ", " ") in said
    assert "|-----" not in said


def test_the_earliest_report_is_none_where_another_line_may_tell_of_it_before() -> None:
    error = "worker: Error: no such value\n"
    for before, first in (("", [True]), (LEFT.format(0).replace("something", "Warning: NCCL"), [False, False])):
        log = job.read([(before + error).encode()])
        assert [earliest for _one, earliest in shown.quoted(jobs.split(log)[0], "")] == first


def test_lists_of_programs_that_do_not_know_each_other_name_all_hosts() -> None:
    line = "#  Rank  0 Group  0 Pid {} on {} device  0 [0xd8] NVIDIA T600\n"
    said = printed(line.format(454, "a1") + line.format(808, "b2"))
    assert "have 2 entries, of rank 0 in 2 processes on 2 hosts: a1 (1), b2 (1); NVIDIA T600; pids 454 and 808" in said
    assert "in 2 processes on a1, b2" in said


CHANNEL = "n1:{0}:{0} [{1}] NCCL INFO Channel 00 : {1}[0] -> {2}[0] via {3}\n"


def test_gpus_of_a_node_that_go_two_ways_are_told_so() -> None:
    mixed = CHANNEL.format(7, 0, 1, "P2P/IPC") + CHANNEL.format(8, 1, 2, "SHM/direct/direct")
    assert "some GPUs of n1 reach each other through shared memory, others directly (P2P)" in printed(mixed)
    assert ": GPUs of n1 reach each other through shared memory" in printed(
        CHANNEL.format(8, 1, 2, "SHM/direct/direct")
    )


def test_p2p_that_fails_is_not_ok() -> None:
    channel = CHANNEL.format(7, 0, 1, "P2P/IPC")
    assert "ok: P2P" in printed(channel)
    failed = "n1:7:7 [0] /src/transport/p2p.cc:228 NCCL WARN Cuda failure 'invalid device pointer'\n"
    assert "ok: P2P" not in printed(channel + failed)


def test_a_warning_behind_others_is_not_the_first() -> None:
    warned = "n1:7:7 [0] init.cc:{} NCCL WARN {}\n"
    odd = warned.format(9, "Something that nobody knows")
    odd += warned.format(5, "Call to connect returned Connection refused")
    assert "(the first warning of this log)" in printed(odd)


def test_programs_of_one_rank_each_are_no_job_of_one_rank() -> None:
    begun = "a1:7:7 [0] NCCL INFO comm 0x7 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1 commId 0x7 - Init START\n"
    said = printed(begun + "b2:8:8 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n")
    assert "on a1, b2, communicators of one rank alone, NCCL" in said
    assert "1 of 1 ranks in this log, over 1 node" in printed(begun)
