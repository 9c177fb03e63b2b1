# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of lines that are alike who says what; and verdicts that name a cause where lines tell it."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, words
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def verdict(text: str) -> str:
    return printed(text).partition("verdict: ")[2][:400]


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("memory of device 4. RC: -22", "device 4"),
        ("memory of device 4. RC: -12", "device 4 RC: -12"),
        ("memory of device 3. RC: -22", ""),
        ("memory of another device 4. RC: -22", ""),
    ],
)
def test_words_of_its_own(other: str, own: str) -> None:
    assert words.own_words("memory of device 3. RC: -22", other) == own
    assert words.own_words("a 1 b 2 c 3 d 4", "a 5 b 6 c 7 d 8") == ""


def test_each_gpu_with_its_device() -> None:
    warn = "n1:7:{0} [{0}] reg(x*):9 NCCL WARN NET/OFI Unable to register memory for device {1}. RC: -22\n"
    assert "alike: n1:7, GPU 2: device 9" in printed(warn.format(1, 8) + warn.format(2, 9))


def test_who_lost_whom_at_the_service_threads() -> None:
    line = "n1:{0}:9 [{0}] NCCL INFO [Service thread] Connection closed by localRank {1}\n"
    text = line.format(4, 0) + line.format(5, 0) + line.format(6, 0) + line.format(6, 1)
    assert "of these GPUs 4-5 lost local rank 0; GPU 6 lost local ranks 0-1" in printed(text)
    assert "GPU 6 of n1 lost local ranks 0-1" in printed(text + line.format(7, 1).replace("n1", "n2"))


def test_who_else_tries_to_connect() -> None:
    again = "n1:{0}:9 [{0}] NCCL INFO ncclSocketPollConnect: connect to 10.0.0.9<500> returned Connection refused,"
    again += " retrying (7/34) after sleep for 700 msec\n"
    end = (
        "n1:8:9 [3] misc/socket.cc:5 NCCL WARN socketPollConnect: connect to 10.0.0.9<500> returned Connection refused,"
    )
    end += " exceeded error retry count (35)\n"
    assert "others are at it: GPUs 1-2 of n1 at try 7 of 34" in printed(again.format(1) + again.format(2) + end)
    assert "others are at it" not in printed(end)


def test_reports_of_several_ranks_are_no_part_of_each_other() -> None:
    line = "10:00:0{0}\tn1:{0}\ttrain\tERROR\tGave up due to:\n[x.cc:5] connection closed by [10.0.0.9]:400{0}\n"
    text = "".join(line.format(number) for number in (1, 2, 3))
    said = printed(text)
    assert "Gave up due to: [x.cc:5] connection closed by [10.0.0.9]:4001 (as a program reports)" in verdict(text)
    assert "2 more alike, up to line 5: n1:2, n1:3" in said
    assert "[10.0.0.9]:4002 (and [10.0.0.9]:4003)" in said
    assert "\\t" not in said


def test_a_verdict_names_the_cause_that_lines_prove() -> None:
    text = "n1:7:8 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\nn1:7:8 [0] NCCL INFO Using network Socket\n"
    text += "n1:7:8 [0] NCCL INFO comm 0xa rank 0 nranks 4 cudaDev 0 busId 1b000 - Init COMPLETE\n"
    text += "n1:7:8 [0] NCCL INFO Channel 00/0 : 3[0] -> 0[0] [receive] via NET/Socket/0\n"
    said = verdict(text)
    assert "(cause: NCCL_IB_DISABLE=1)" in said
    assert "these lines do not show the cause" not in said


def test_a_wait_is_told_with_what_a_program_reported_before() -> None:
    wait = (
        "[rank1]:[E1 00:00:00 x.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds before timing out.\n"
    )
    full = "writer: [Errno 28] No space left on device\n"
    assert "before it a program reports: writer: [Errno 28] No space left on device (line 1)" in verdict(full + wait)
    assert "before it" not in verdict(wait + full)


def test_hosts_with_other_gpus_are_set_apart() -> None:
    row = "#  Rank {0:2} Group  0 Pid {1} on {2} device  {0} [0x0{0}] {3}\n"
    text = row.format(0, 70, "n1", "Model A") + row.format(1, 80, "n2", "Model B")
    assert "n1 (1 of Model A), n2 (1 of Model B); GPUs of several kinds" in printed(text)
    assert "several kinds" not in printed(text.replace("Model B", "Model A"))
