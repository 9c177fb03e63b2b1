"""Waits that PyTorch gave up: what comes after them is not their cause, and what they tell is not lost."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, signals
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

HEAD = "[rank{0}]:[E101 {1} ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
TIMEOUT = (
    "[rank{0}]:[E101 10:10:00.5 p.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1},"
    " OpType=ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
)
SIGNAL = HEAD.format(6, "10:10:01.2") + (
    "Received a dump signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info."
    " Last enqueued NCCL work: 44, last completed NCCL work: 44.This is most likely caused by incorrect usages\n"
)
MEMORY = (
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 2 has a total capacity of 79.14"
    " GiB of which 30.00 GiB is free.\n"
)
FIRST = """Root Cause (first observed failure):
[0]:
  host      : n1
  rank      : 6 (local_rank: 6)
  exitcode  : 1 (pid: 71)
"""


def findings(text: str) -> list[Finding]:
    return [finding for finding in judge.judge(job.read([text.encode()])) if not finding.ok]


def by_check(text: str) -> dict[str, Finding]:
    return {one.check.partition(".")[2]: one for one in reversed(findings(text))}


def shown(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, split(log), judge.judge(log), 400).split())


def test_memory_that_no_gpu_has_follows_from_the_wait_before_it() -> None:
    text = TIMEOUT.format(1, 57) + MEMORY.format("150.00")
    first, *_rest = findings(text)
    memory = by_check(text)["cuda"]
    assert (first.check, memory.because) == ("nccl_log.watchdog", first.id)
    assert "invalid data of a collective" in (memory.have or "")
    assert "cause:" not in (memory.have or "")
    assert "smaller batch or" not in memory.fix
    # Before the wait, or of a size that a GPU has, it is what it says.
    early, *_rest = findings(MEMORY.format("150.00") + TIMEOUT.format(1, 57))
    assert early.check == "nccl_log.cuda"
    assert "a size that is not really needed" in (early.have or "")
    real = by_check(TIMEOUT.format(1, 57) + MEMORY.format("40.00"))
    assert "a wait was given up before it in the log" in (real["cuda"].have or "")
    assert real["watchdog"].because is None
    assert "a longer timeout repairs nothing" not in (real["watchdog"].have or "")
    assert "a smaller batch" in real["cuda"].fix


def test_who_signals_a_timeout_comes_before_who_ends_first() -> None:
    first, *rest = findings(SIGNAL + SIGNAL.replace("ank6", "ank3").replace("Rank 6", "Rank 3") + FIRST)
    assert (first.check, first.state) == ("nccl_log.watchdog", "drift")
    assert (first.have or "").startswith("rank 7 signalled a collective timeout")
    assert "requested to ranks 3,6" in (first.have or "")
    assert "ranks 3,6 completed 44 and had enqueued up to 44: nothing was under way there" in (first.have or "")
    [ended] = [one for one in rest if one.check == "nccl_log.exit"]
    assert ended.because == first.id
    assert "the first failure of this log" not in (ended.have or "")
    assert "need not be where it started" in (ended.have or "")
    assert "need not be where it started" not in (findings(FIRST)[0].have or "")


def test_a_dump_signal_beside_a_timeout_is_no_finding_of_its_own_and_is_shown() -> None:
    text = TIMEOUT.format(3, 45) + SIGNAL
    assert [one.check for one in findings(text) if one.check == "nccl_log.watchdog"] == ["nccl_log.watchdog"]
    assert "a timeout of rank 7, too, was signalled" in (by_check(text)["watchdog"].have or "")
    assert "Last enqueued NCCL work: 44" in shown(text)


def test_an_abort_that_did_not_complete_had_begun_before() -> None:
    text = (
        TIMEOUT.format(0, 57)
        + HEAD.format(3, "10:05:30.1")
        + "Future for ProcessGroup abort timed out after 600000 ms\n"
    )
    assert "rank 3, of which no timeout is shown, had started to abort 600 s before line 2, so at about 09:55:30" in (
        by_check(text)["watchdog"].have or ""
    )
    midnight = text.replace("10:05:30.1", "00:05:30.1")
    assert "at about 23:55:30" in (by_check(midnight)["watchdog"].have or "")


def test_an_abort_that_hangs_with_nothing_outstanding_is_a_hang_at_the_taking_down() -> None:
    abort = HEAD.format(0, "10:00:00.1") + "Future for ProcessGroup abort timed out after 600000 ms\n"
    beat = HEAD.format(0, "10:00:01.1") + "Heartbeat monitor timed out! Process will be terminated. "
    have = by_check(abort + beat + "workMetaList_.size()=0\n")["watchdog"].have or ""
    assert "the abort of the process group did not complete before it (line 1); 0 operations outstanding" in have
    assert "it usually hung while the process group was taken down" in have
    assert "what the abort of the process group waited for" in shown(abort + beat + "workMetaList_.size()=0\n")
    for other in (beat + "workMetaList_.size()=0\n", abort + beat + "workMetaList_.size()=2\n"):
        assert "taken down" not in (by_check(other)["watchdog"].have or "")


def test_processes_that_the_heartbeat_monitor_ends() -> None:
    dump = HEAD.format(2, "10:00:00.1") + "ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"
    ended = "".join(
        HEAD.format(rank, f"10:08:0{rank}.1").replace("[E", "[F")
        + "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"
        for rank in range(6)
    )
    last = "E1 10:09:00 7 api.py:9] failed (exitcode: -6) local_rank: 0 (pid: 27) of binary: /usr/bin/python\n"
    found = by_check(dump + ended + last)
    have = found["watchdog"].have or ""
    assert "on ranks 0-5; ended by its heartbeat monitor at 10:08:00 to 10:08:05" in have
    assert "only rank 2 is shown to begin a dump (line 1), 482 s before its end" in have
    assert found["exit"].because == found["watchdog"].id
    assert "only rank" not in (by_check(dump + dump.replace("ank2", "ank4") + ended)["watchdog"].have or "")


def test_a_progress_bar_before_a_line_is_no_part_of_what_it_says() -> None:
    stuck = HEAD.format(2, "10:00:00.1") + "ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress\n"
    assert "Epoch" not in by_check("Epoch 9:  0%|    | 1/12 [00:02<58:30,  0.36it/s]" + stuck)["watchdog"].source
    old = TIMEOUT.format(0, 9).replace("[E101 10:10:00.5", "[E")
    assert by_check(" 33%|##   | 5/17 " + old)["watchdog"].source.startswith("line 1, [rank0]")
    assert "(W pid=7)" in by_check("(W pid=7) " + old)["watchdog"].source


def test_a_port_that_is_taken_is_no_store_that_was_not_reached() -> None:
    bind = "[W socket.cpp:4] [c10d] The server socket has failed to bind to [::]:29500 ({}).\n"
    listen = "[E socket.cpp:5] [c10d] The server socket has failed to listen on any local network address.\n"
    for text in (
        bind.format("errno: 98 - Address already in use") + listen,
        listen,
    ):
        assert "not reached" not in shown(text)
        assert "MASTER_PORT" in by_check(text)["store"].fix
    assert "was not reached" in shown("[c10d] The client socket has timed out after 60s while trying to connect\n")
    assert listen.strip() in shown(bind.format("errno: 98 - Address already in use") + listen)


def test_one_timeout_that_is_told_three_times_is_one() -> None:
    again = "  what():  NCCL watchdog thread terminated with exception: "
    have = by_check(TIMEOUT.format(0, 9) + again + TIMEOUT.format(0, 9))["watchdog"].have or ""
    assert "on rank 0" in have
    assert "times" not in have


def test_calls_that_are_read_whole_alone_differ() -> None:
    bare = (
        "[rank{0}]:[E101 10:10:00.6 p.cpp:1] [PG 0 Rank {0}] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last"
    )
    bare += " completed NCCL work: 7000000000000.\n"
    said = shown("".join(TIMEOUT.format(rank, 1) + bare.format(rank) for rank in range(4)))
    assert "4 ranks, which all wait, for the same call: the transfer itself hangs" in said
    assert "different calls" not in said
    torn = TIMEOUT.replace("ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=600000) ran", "ALLGATn1:7:8 [0] x")
    said = shown("".join((torn if rank == 2 else TIMEOUT).format(rank, 1) for rank in range(4)))
    assert "different calls" not in said
    assert "for the same call" not in said


def test_ranks_that_wait_for_different_calls_hang_by_that() -> None:
    other = TIMEOUT.format(1, 8).replace("NumelOut=4", "NumelOut=2")
    both = TIMEOUT.format(0, 9).replace("NumelOut=4", "NumelOut=2") + other
    assert "for different calls, so that none can complete" in (by_check(both)["watchdog"].have or "")
    assert "the transfer itself hangs" in (
        by_check(other + other.replace("ank1", "ank0").replace("Rank 1", "Rank 0"))["watchdog"].have or ""
    )


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Stack trace of the failed collective: \n#0 f from a.py:1\n", "in its dumps"),
        (
            "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can"
            " enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.\n",
            "set TORCH_NCCL_TRACE_BUFFER_SIZE=20000, as this release calls it",
        ),
        ("", "TORCH_FR_BUFFER_SIZE=20000 (PyTorch before 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE=20000)"),
    ],
)
def test_advice_on_the_flight_recorder_follows_from_what_lines_tell_of_it(said: str, advice: str) -> None:
    text = TIMEOUT.format(1, 9) + (HEAD.format(1, "10:10:00.6") + said if said else "")
    assert advice in by_check(text)["watchdog"].fix


def test_sizes_are_of_one_collective() -> None:
    text = TIMEOUT.format(9, 40) + TIMEOUT.format(9, 52).replace("ALLGATHER, NumelIn=1", "ALLTOALL, NumelIn=7")
    have = by_check(text)["watchdog"].have or ""
    assert "sizes differ" not in have
    assert "later, or in another process group, on ALLTOALL number 52" in have


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            HEAD
            + "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            signals.DEATH,
        ),
        (HEAD + "Exception thrown when waiting for future Flight recorder dump in x: Broken promise", signals.WARNING),
        (HEAD + "Observed flight recorder dump signal from another rank via TCPStore.", signals.WAITS),
        ("[rank0]:[W1] Warning: An unbatched P2P op (send/recv) was called on this ProcessGroup", signals.WARNING),
    ],
)
def test_classes_of_lines_around_a_dump(line: str, kind: str) -> None:
    said = signals.classify(line)
    assert said is not None
    assert said.kind == kind
    assert "which holds the last collectives" not in said.about


def test_a_timeout_whose_line_is_broken_at_its_words_is_one() -> None:
    whole = TIMEOUT.format(0, 51)
    assert "ALLGATHER number 51" in (by_check(whole.replace("timeout: ", "timeout:\n"))["watchdog"].have or "")


def test_ranks_whose_exceptions_are_of_different_collectives() -> None:
    line = (
        "[rank{0}]:[E1 x.cpp:5] [Rank {0}] Collective WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=8) raised the"
        " following async exception: NCCL error: unhandled system error, NCCL version 2.21.5\n"
    )
    apart = shown(line.format(7, 65) + line.format(2, 66))
    assert "different collectives: ALLREDUCE number 65 on rank 7, ALLREDUCE number 66 on rank 2" in apart
    assert "different collectives" not in shown(line.format(7, 65) + line.format(2, 65))


def test_the_programs_own_line_of_a_traceback_is_named() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/u/run/ring.py", line 19, in __call__\n    dist.isend(x)\n'
        '  File "/v/lib/python3.12/site-packages/torch/distributed/c10d.py", line 24, in isend\n    return g.send()\n'
        'RuntimeError: comm != nullptr INTERNAL ASSERT FAILED at "/p/csrc/distributed/c10d/P.cpp":40, x\n'
    )
    said = shown(text)
    assert "isend (the program's own line: ring.py:19)" in said
    assert "a check of PyTorch itself failed" in said
    assert "own line" not in shown(text.replace("/home/u/run/", "/v/lib/python3.12/site-packages/x/"))


def test_the_ends_of_torchruns_list_by_rank() -> None:
    entry = "[{0}]:\n  host      : n1\n  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 7{0})\n"
    said = shown("Failures:\n" + entry.format(1, 1) + entry.format(2, 1) + entry.format(4, -15) + FIRST)
    assert "exit codes in torchrun's list: -15 on rank 4; 1 on ranks 1-2,6" in said.replace(", 1 on", "; 1 on")


def test_a_full_file_system_is_looked_at_by_df() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/a.py", line 1, in _feed\n    f()\n'
        "OSError: [Errno 28] No space left on device: '/tmp/q'\n" + TIMEOUT.format(0, 51)
    )
    first, *_rest = findings(text)
    assert first.check == "nccl_log.program"
    assert "df -h" in first.fix
    assert "ended by its own error" not in (first.why or "")


def test_an_end_that_is_told_before_the_tail_of_its_log_is_not_the_earliest() -> None:
    text = "[srv] Server process exited with code 1.\n{}RuntimeError: no such layer\n"
    assert "line 1 (the earliest report" not in shown(text.format("Log tail:\n"))
    assert "what it had printed before that" in shown(text.format("Last 20 lines:\n"))
    assert "what it had printed before that" not in shown(text.format("loading\n"))


def test_one_process_that_nobody_told_to_end() -> None:
    line = "srun: error: {}: task {}: {}\n"
    alone = line.format("n1", 1, "Exited with exit code 1") + line.format("n2", 0, "Terminated")
    assert "all others were ended" in shown(alone)
    assert "all others" not in shown(alone + line.format("n3", 2, "Exited with exit code 1"))


def test_a_dump_signal_tells_of_its_own_group_alone() -> None:
    own = SIGNAL.replace(" rank 7", "this local rank")
    have = by_check(TIMEOUT.format(6, 45) + own)["watchdog"].have or ""
    assert "nothing was under way there, so the timeout is of another process group" in have
    at = "[rank{0}]:[E101 10:10:00.7 p.cpp:1] [PG ID 1 PG GUID 1 Rank {0}]  failure detected by watchdog at work"
    at += " sequence id: {1} PG status: last enqueued work: {1}, last completed work: 3\n"
    apart = TIMEOUT.format(6, 45) + at.format(6, 45) + TIMEOUT.format(5, 46) + at.format(5, 46)
    assert "several process groups" not in (by_check(apart + own)["watchdog"].have or "")
    # Who merely heard of it does not wait for it.
    both = TIMEOUT.format(1, 45) + TIMEOUT.format(2, 45) + SIGNAL
    assert "waiting: ranks 1-2;" in (by_check(both)["watchdog"].have or "")


def test_an_end_within_an_initialisation() -> None:
    way = "n1:{0}:9 [{1}] NCCL INFO Channel 00/0 : {1}[1] -> 0[2] via P2P/IPC\n"
    trees = "n1:{0}:9 [{1}] NCCL INFO Connected all trees\n"
    crash = "[n1:12:0:9] Caught signal 7 (Bus error: nonexistent physical address)\n"
    ways = way.format(11, 1) + way.format(12, 2)
    assert "in an initialisation: trees are connected on 1 of 2" in shown(ways + crash + trees.format(11, 1))
    assert "in an initialisation" not in shown(ways + crash)
