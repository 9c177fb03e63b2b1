# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What stands behind a wait that ran out follows from it; a line that names no process is given to none."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

WAIT = "Warning: NCCL EP timeout for combine receive, rank {}, local_expert_idx {}, src_rank 6\n"
RAISED = "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
WARNED = "n1:{}:9 [3] misc/a.cc:{} NCCL WARN Cuda failure 'unspecified launch failure'\n"
GAVE_UP = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
    " OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
)
STATUS = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:2] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure detected by watchdog at"
    " work sequence id: 9 PG status: last enqueued work: {1}, last completed work: {2}\n"
)
GLOO = "[rank{}]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.9]:77\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def test_a_wait_that_ran_out_is_a_finding_ahead_of_cudas_error() -> None:
    said = printed("n1:5:5 [0] NCCL INFO Connected all rings\n" + WAIT.format(4, 7) + RAISED + WARNED.format(8, 1))
    assert "verdict: a wait for a peer ran out before CUDA failed, line 2: Warning: NCCL EP timeout" in said
    assert "set-up had come as far as rings that are connected, on n1:5" in said
    cuda = said.partition("critical: torch.AcceleratorError")[2]
    assert "[nccl_log.cuda] (likely caused by the first)" in cuda
    # Behind the error it is no cause.
    assert "verdict: a wait for a peer" not in printed(RAISED + WARNED.format(8, 1) + WAIT.format(4, 7))


def test_a_line_that_names_no_process_is_not_given_to_that_of_another_line() -> None:
    said = printed(RAISED + WARNED.format(8, 1) + WARNED.format(8, 2))
    assert "its line names no process; NCCL warns of the same on n1:8, GPU 3" in said
    assert "names no process" not in printed(WARNED.format(8, 1) + RAISED)


def test_an_error_of_cuda_that_is_met_again_is_told_as_that() -> None:
    said = printed(RAISED + WARNED.format(8, 1) + WARNED.format(8, 2))
    assert said.count("= the error of line 1 met again") == 2


def test_gloos_lost_peers_behind_a_wait_that_was_given_up_follow_from_it() -> None:
    said = printed(GAVE_UP.format(1) + GAVE_UP.format(2) + GLOO.format(0))
    assert "it stands behind the wait that was given up in line 1" in said
    assert "it stands behind the wait" not in printed(GLOO.format(0) + GAVE_UP.format(1) + GAVE_UP.format(2))


def test_a_rank_that_completed_all_that_it_called_was_not_kept_by_the_network() -> None:
    text = GAVE_UP.format(1) + GAVE_UP.format(2) + STATUS.format(1, 10, 8)
    assert "no network stopped them" in printed(text + STATUS.format(0, 8, 8))
    assert "no network stopped them" not in printed(
        text + STATUS.format(0, 9, 8).replace("{1}", "9") + STATUS.format(2, 9, 7)
    )


def test_tries_to_connect_are_not_given_to_others_where_who_reports_is_not_named() -> None:
    again = "n1:5:9 [2] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (4/34) after sleep"
    end = "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited, NCCL version"
    end += " 2.26.2\nLast error:\n[rank1]: socketPollConnect: connect returned Connection refused, exceeded error retry"
    said = printed(again + " for 400 msec\n" + end + " count (35)\n")
    assert "tries that are shown, of who reports it or of others: GPUs 2 of n1, try 4 of 34" in said
    assert "others are at it" not in said


def test_a_connection_that_was_not_made_is_the_one_that_the_process_announced() -> None:
    head = "n1:7:{} [0] NCCL INFO {}\n"
    text = (
        head.format(7, "ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 busId 10 commId 0x5 - Init START")
        + head.format(7, "ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 busId 10 commId 0x5 - Init COMPLETE")
        + head.format(7, "Channel 00/1 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared")
        + "n1:7:8 [0] misc/socket.cc:5 NCCL WARN ncclSocketInit: connecting to address  with family 9 is neither"
        " AF_INET(2) nor AF_INET6(10)\n"
    )
    failed = head.format(8, "transport/net.cc:5 -> 3") + head.format(7, "transport.cc:6 -> 3")
    said = printed(text + failed)
    assert "the one connection over the network that this process announces is 0->1, so it is likely that one" in said
    assert "requested after its Init COMPLETE" in said
    other = head.format(7, "Channel 00/1 : 1[0] -> 0[0] [receive] via NET/Socket/0/Shared")
    assert "so it is likely that one" not in printed(text.replace("n1:7:8", other + "n1:7:8") + failed)
