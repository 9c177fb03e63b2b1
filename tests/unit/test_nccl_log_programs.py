"""What programs and launchers say beside NCCL: quoted with who wrote it, told as what it is, and never as more."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, quotes, signal_numbers, signals
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

HEAD = "alpha:7:8 [0] NCCL INFO "


def read(text: str) -> job.Log:
    return job.read([text.encode()])


def found(text: str) -> dict[str, str]:
    return {finding.check: finding.have or "" for finding in judge.judge(read(text)) if not finding.ok}


def printed(text: str) -> str:
    log = read(text)
    return " ".join(render(log, split(log), judge.judge(log), 100).split())


@pytest.mark.parametrize(
    ("line", "kind", "about"),
    [
        ("[alpha:41   :0:44] Caught signal 7 (Bus error: nonexistent physical address)", "death", "/dev/shm"),
        ("[alpha:00041] Signal: Segmentation fault (11)", "death", "signal 11"),
        ("srun: error: alpha: task 3: Exited with exit code 137", "death", "Slurm"),
        (
            "mpirun noticed that process rank 2 with PID 9 on node alpha exited on signal 9 (Killed).",
            "death",
            "SIGKILL",
        ),
        ("  Exit code:    139", "death", "signal 11"),
        ("bash: line 1: 77 Bus error               (core dumped) ./train", "death", "signal 7"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected error.", "death", "Ray"),
        ("    reason: OOMKilled", "death", "memory"),
        ("  what():  [1] is not ready", "error", "C++"),
        ("RuntimeError: Triton Error [CUDA]: misaligned address", "error", "Triton"),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:5] Timed out waiting 5000ms for send", "error", "Gloo"),
        ("my.own.package.ShapeError: no such shape", "error", "exception in Python"),
        ("worker 3 could not do it", "error", ""),
        ("WARNING: the device of rank 3 is slow", "warning", ""),
        ("the test is successful", "success", ""),
    ],
)
def test_each_class_of_line_is_told_as_what_it_is(line: str, kind: str, about: str) -> None:
    known = signals.classify(line.strip())
    assert known is not None
    assert (known.kind, about in known.about) == (kind, True)


@pytest.mark.parametrize(
    "line",
    [
        '  File "/x/errors.py", line 5, in fail',
        "frame #3: c10::Error::Error() + 0x57 (0x7fd in libc10.so)",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "x/y.py:3: FutureWarning: this will be an error",
        "process 4 has exit code 0",
        "epoch 3 of 5",
        "    raise ValueError(text)",
    ],
)
def test_what_reports_nothing_is_passed_over(line: str) -> None:
    assert signals.classify(line.strip()) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(137, "signal 9"), (-11, "signal 11"), (139, "signal 11"), (134, "signal 6"), (3, ""), (127, "not")],
)
def test_exit_codes_of_signals(code: int, said: str) -> None:
    assert said in signal_numbers.meaning(code)
    assert bool(said) == bool(signal_numbers.meaning(code))


def test_a_crash_is_a_finding_with_all_its_processes_and_no_certain_cause() -> None:
    crash = "[alpha:{0} :0:{0}] Caught signal 7 (Bus error: nonexistent physical address)\n"
    text = HEAD + "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n" + crash.format(41) + crash.format(42)
    have = found(text)["nccl_log.exit"]
    assert "alpha:41" in have
    assert "alpha:42" in have
    assert "commonly /dev/shm is full" in have
    assert "no network is involved" in have


def test_a_crash_behind_a_failure_of_nccl_is_not_the_first() -> None:
    text = (
        "alpha:7:8 [2] NCCL INFO transport.cc:166 -> 2\n"
        "alpha:7:8 [2] proxy.cc:1 NCCL WARN [Proxy Service 2] Failed to execute operation Connect from rank 2,"
        " retcode 3\n"
        "[alpha:7 :0:7] Caught signal 11 (Segmentation fault: address not mapped)\n"
    )
    said = found(text)
    assert "it comes after other failures of this log (transport.cc:166 -> 2)" in said["nccl_log.exit"]
    assert "the first failure" not in said["nccl_log.exit"]
    assert "Failed to execute operation Connect" in said["nccl_log.warning"]


def test_the_first_process_that_mpirun_names_did_not_fail_first() -> None:
    block = "mpirun detected that a process exited\n\n  Process name: [[4491,1],251]\n  Exit code:    3\n"
    text = "alpha: Test NCCL failure common.cu:1 'unhandled cuda error / '\n" + block
    said = found(text)
    assert "exit code 3; on rank 251" in said["nccl_log.exit"]
    assert "unhandled cuda error" in said["nccl_log.warning"]
    assert "not in this log" in said["nccl_log.warning"]


def test_an_exception_is_told_with_the_calls_above_it_of_its_own_rank() -> None:
    text = (
        '[rank2]:   File "/x/train.py", line 9, in save\n[rank1]:   File "/x/train.py", line 3, in other\n'
        '[rank2]:   File "/y/c10d.py", line 4, in barrier\n'
        "[rank2]: RuntimeError: [/g/gloo/transport/tcp/buffer.cc:8] Timed out waiting 90ms for recv operation\n"
    )
    have = found(text)["nccl_log.program"]
    assert "on rank 2" in have
    assert "called from save > barrier" in have
    assert "no failure of NCCL is in these lines" in have
    assert "the waiting rank is not the cause" in have


def test_the_kernel_at_whose_launch_an_exception_came() -> None:
    text = (
        "ERROR w.py:5]     _scale_rows[(M, )](\nERROR w.py:5] RuntimeError: Triton Error [CUDA]: misaligned address\n"
    )
    assert "at the launch of the program's kernel _scale_rows" in found(text)["nccl_log.program"]


def test_ranks_at_a_store_based_barrier_and_who_is_not_there() -> None:
    line = "Waiting in store based barrier to initialize process group for rank: {}, key: k"
    line += " (world_size=4, worker_count=3, t)\n"
    have = found("".join(line.format(rank) for rank in (0, 1, 3)))["nccl_log.store"]
    assert "3 of 4 processes had come" in have
    assert "waiting: ranks 0-1,3" in have
    assert "no line is of rank 2" in have
    assert "nccl_log.store" not in found(line.replace("worker_count=3", "worker_count=4").format(0))


def test_lines_that_differ_by_numbers_are_quoted_once_with_their_ranks() -> None:
    text = "".join(f"[rank{rank}]: the queue of worker {rank} could not be opened\n" for rank in range(7))
    log = read(text)
    [one] = log.quotes.all
    assert (one.count, one.ranks, one.order, one.last) == (7, set(range(7)), 1, 7)
    assert "on ranks 0-6, line 1, 7 alike" in found(text)["nccl_log.program"]


def test_no_more_quotes_are_kept_and_printed_than_there_is_room_for() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "klmnopqr" for c in "stuvwx"]
    text = "".join(f"the {word} failed here\n" for word in words)
    log = read(text)
    assert len(log.quotes.all) == quotes.QUOTES
    assert log.quotes.left_out == len(words) - quotes.QUOTES
    said = printed(text)
    assert f"and {log.quotes.left_out} more kinds of lines" in said
    assert said.count("failed here") > quotes.QUOTES - 5


def test_what_a_program_prints_cannot_write_to_the_terminal() -> None:
    said = printed("the \x1b[31mqueue\x07 failed: \u202e\n" + "x" * 100_000 + " failed\n")
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert "x" * 500 not in said


TRACED = (
    "alpha:{pid}:{pid} [{gpu}] NCCL INFO {op}: opCount {n:x} sendbuff 0x7f5 recvbuff 0x7f6 count {count} datatype 7 op"
    " 0 root 0 comm 0x55b{pid} [nranks=2] stream 0x55\n"
)


def test_ranks_that_call_other_collectives_under_one_number() -> None:
    one = TRACED.format(pid=7, gpu=0, op="AllReduce", n=40, count=16)
    have = found(one + TRACED.format(pid=9, gpu=1, op="AllGather", n=40, count=16))["nccl_log.mismatch"]
    assert "opCount 28" in have
    assert "AllReduce of 16 float32 by alpha:7, GPU 0" in have
    assert "AllGather of 16 float32 by alpha:9, GPU 1" in have
    assert "if it is one" in have
    # Two communicators of one process cannot be told apart.
    third = TRACED.format(pid=9, gpu=1, op="AllReduce", n=1, count=16).replace("comm 0x55b9", "comm 0x66")
    assert "nccl_log.mismatch" not in found(one + TRACED.format(pid=9, gpu=1, op="AllGather", n=40, count=16) + third)


def test_ranks_that_agree() -> None:
    text = "".join(TRACED.format(pid=pid, gpu=0, op="AllGather", n=15, count=4) for pid in (7, 9))
    assert "nccl_log.mismatch" not in found(text)
    said = printed(text)
    assert "2 AllGather" in said
    assert "the ranks shown agree in operation, count and type" in said
    assert "seen: alpha:7 GPU 0, alpha:9 GPU 0" in said


def test_what_is_shown_of_a_healthy_log_and_what_is_not() -> None:
    text = (
        "vLLM is using nccl==2.21.5\nworld_size=2 rank=1 init_method=tcp://alpha:2000 backend=nccl\n"
        + HEAD + "Bootstrap : Using eth3:2001:db8::7<0>\n"
        + HEAD + "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer\n"
        + HEAD + "ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init COMPLETE\n"
        + "All of it is successful!\n"
    )  # fmt: skip
    said = printed(text)
    for fact in (
        "NCCL 2.21.5",
        "a world of 2 ranks; ranks that report it: 1; processes meet at tcp://alpha:2000; backend nccl",
        "eth3, IPv6 2001:db8::7",
        "0 for NVLS (NVLink SHARP): it is not in use",
        "of 2 ranks: started by 0, Init COMPLETE of 0",
        "a program reports: All of it is successful!",
        "2 of 2 ranks in this log",
        "the beginning (Init START) of rank 1, of which other lines are here",
    ):
        assert fact in said, fact
    assert "what came after the initialisation" not in said
    assert "verdict: no failure is in these lines" in said


def test_one_process_that_has_all_ranks_runs_on_one_node() -> None:
    text = HEAD + "Using network Socket\n" + HEAD + "Failed to open libibverbs.so[.1]\n" + HEAD
    text += "ncclCommInitAll comm 0x5 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init START\n"
    said = printed(text)
    assert "over 1 node" in said
    assert "one process has all of them" in said
    assert "install libibverbs" not in said


def test_a_watchdog_line_that_somebody_has_broken() -> None:
    text = "[rank1]:[E1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST,\n"
    have = found(text + " Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.\n")["nccl_log.watchdog"]
    assert "after 1800 s on BROADCAST number 4" in have


def test_ranks_that_wait_for_other_collectives_under_one_number_are_out_of_step() -> None:
    line = "[rank{0}]:[E1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType={1},"
    line += " NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
    have = found(line.format(7, "BROADCAST") + line.format(3, "ALLREDUCE"))["nccl_log.watchdog"]
    assert "called different things" in have
    assert "out of step" in have
    assert "lowest number" not in have
    assert "out of step" not in found(line.format(7, "BROADCAST") + line.format(3, "BROADCAST"))["nccl_log.watchdog"]


def test_a_timeout_whose_operation_is_not_named() -> None:
    text = (
        "[rank3]:[E2] [PG ID 2 PG GUID 3 Rank 3] Timeout at NCCL work: 32, last enqueued NCCL work: 32, last completed"
    )
    have = found(text + " NCCL work: 31.\n")["nccl_log.watchdog"]
    assert "collective number 32; on rank 3; in group ID 2 PG GUID 3 rank 3 completed 31" in have
    assert "only rank 3 is shown waiting" in have


def test_a_heartbeat_that_stopped_on_two_ranks() -> None:
    text = "".join(
        f"[rank{rank}]:[E1] [PG 5 Rank 0] Heartbeat monitor timed out! Ends after it. workMetaList_.size()={left}\n"
        for rank, left in ((0, 3), (4, 2))
    )
    have = found(text)["nccl_log.watchdog"]
    assert "3 operations outstanding on rank 0; 2 operations outstanding on rank 4" in have
    assert "only buys time" in have


def test_a_mismatch_that_pytorch_found() -> None:
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective:"
    text += " CollectiveFingerPrint(SequenceNumber=5OpType=BARRIER), but Rank 2 is running collective:"
    text += " CollectiveFingerPrint(SequenceNumber=4OpType=BARRIER).\n"
    have = found(text)["nccl_log.mismatch"]
    assert "rank 1 is at number 5 with BARRIER; rank 2 is at number 4 with BARRIER" in have
    assert "out of step by 1 collective:" in have


def test_the_addresses_between_which_rdma_failed() -> None:
    text = (
        "alpha:7:8 [1] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 192.0.2.9<4> with status=12"
        " opcode=1 len=0 vendor err 129 localGid ::ffff:10.1.{}.2 remoteGids::ffff:10.1.1.4 hca mlx5_1\n"
    )
    assert (
        "between GIDs 10.1.1.4 and 10.1.2.2; these are of two subnets" in found(text.format(2))["nccl_log.completion"]
    )
    assert "two subnets" not in found(text.format(1))["nccl_log.completion"]


ROW = "{:>12} {:>10}     float     {}      -1    125.8    1.59  {:>7}      0{}\n"


def test_rows_of_nccl_tests_that_stand_out_or_are_cut() -> None:
    rows = [(1 << 28, 84.0, 86.0), (1 << 29, 86.0, 85.0), (1 << 30, 87.0, 52.0), (1 << 31, 88.0, None)]
    text = "".join(
        ROW.format(size, size // 4, "sum", out, "" if inside is None else f"    125.1    1.60   {inside}   N/A")
        for size, out, inside in rows
    )
    said = printed(text)
    assert "1 GiB: 87 GB/s out of place, 52 in place" in said
    assert "at 2 GiB busbw 88 GB/s out of place, in place is not in the row" in said
    twice = printed("".join(ROW.format(4096, 1024, op, 1.0, "") for op in ("max", "min")))
    assert "2 rows of 1 size up to 4 KiB; reduction max, min" in twice


def test_a_list_of_one_rank_without_its_comment_sign() -> None:
    said = printed(" Using devices\n  Rank  0 Group  0 Pid    127 on alpha device  0 [0x00] NVIDIA X1\n")
    assert "one rank alone: nothing is communicated, so busbw is 0 by definition" in said


def test_a_plugin_that_prints_its_function_for_a_place() -> None:
    text = (
        "[0] tcpxResult_t tcpxCommProgress(tcpxComm*):1231 NCCL WARN 0xa:0xb, nic 0, eth9, 192.0.2.1<39><-192.0.2.5<46>"
    )
    have = found(text + " rx rx ctrl timeout cnt 733, nanos 10000000585\n")["nccl_log.net_plugin"]
    assert "not received from 192.0.2.5 on eth9, for up to 10 s" in have
    other = "alpha:7:8 [0] nccl_net_ofi_some_call:12 NCCL WARN the queue is odd\n"
    assert "a warning of the plugin OFI" in found(other)["nccl_log.net_plugin"]


def test_the_network_of_one_host_has_no_weight() -> None:
    text = "".join(f"alpha:{7 + gpu}:8 [{gpu}] NCCL INFO Using network Socket\n" for gpu in (0, 1))
    finding = {one.check: one for one in judge.judge(read(text))}["nccl_log.network"]
    assert (finding.severity, "between its GPUs the network has no weight" in (finding.have or "")) == ("minor", True)
    other = text.replace("alpha:8", "beta:8")
    assert {one.check: one for one in judge.judge(read(other))}["nccl_log.network"].severity == "major"


def test_calls_of_a_build_that_prints_whole_paths() -> None:
    text = "alpha:7:9 [0] NCCL INFO /usr/src/x/nccl/src/transport/p2p.cc:473 -> 3\n"
    text += "alpha:7:7 [1] NCCL INFO /usr/src/x/nccl/src/group.cc:437 -> 1\n"
    have = found(text)["nccl_log.warning"]
    assert "p2p.cc:473 -> 3 on alpha:7, GPU 0; group.cc:437 -> 1 on GPU 1 (a call of CUDA failed)" in have


def test_what_stands_before_a_head_is_looked_at_at_its_ends() -> None:
    log = read("[rank3]: " + "x" * 15_000 + " alpha:7:8 [0] a.cc:1 NCCL WARN Call to poll failed : odd\n")
    [process] = log.processes.values()
    assert (process.host, process.launcher_rank) == ("alpha", 3)


def test_exit_codes_are_no_numbers_like_others() -> None:
    text = "process 4 has exit code 0\n" * 3 + "process 5 has exit code 1\nprocess 6 has exit code 139\n"
    said = [one.about for one in read(text).quotes.all]
    assert len(said) == 2
    assert "signal 11" in said[1]


def test_a_death_is_quoted_however_much_else_failed() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "klmnopqr" for c in "stuvwx"]
    text = "".join(f"the {word} failed here\n" for word in words) + "[alpha:7 :0:7] Caught signal 7 (Bus error)\n"
    assert "Caught signal 7" in found(text)["nccl_log.exit"]


def test_what_says_nothing_once_may_say_something_of_another_rank() -> None:
    text = "".join(f"[rank{rank}] world_size=8 rank={rank}\n" for rank in (3, 5))
    assert "ranks that report it: 3,5" in printed(text + HEAD + "x\n")


@pytest.mark.parametrize(
    "line",
    [
        "mpirun -np 4 -H alpha,beta -x NCCL_DEBUG=INFO -x PATH=/opt/failed ./build/alltoall_perf -b 8",
        "$ srun --mpi=pmix -N 2 ./train_Error.sh",
        "user@alpha:~$ NCCL_DEBUG=INFO torchrun --nproc-per-node 8 errors.py",
        "+ docker run --rm --gpus all image/that-failed:1",
        "python3 train.py --on-error abort",
    ],
)
def test_a_command_line_reports_nothing(line: str) -> None:
    assert signals.classify(line) is None
    assert "nccl_log.program" not in found(line + "\n")


def test_a_program_s_own_info_is_no_failure() -> None:
    said = signals.classify("INFO 07-22 12:55:39 cuda.py:12] Cannot use the fast backend for this size")
    assert said is not None
    assert said.kind == "warning"


def test_ranks_that_a_stall_inspector_misses() -> None:
    text = (
        "[2026-01-01 10:00:00: W /tmp/horovod/common/stall_inspector.cc:107] One or more tensors were submitted by a"
        " subset of ranks.\nMissing ranks: 0, 1\nStalled ops: sum.3 [missing ranks: 1]\n"
    )
    have = found(text)["nccl_log.program"]
    assert "missing: ranks 0, 1; 1" in have
    assert "no error of a network so far" in have


def test_an_address_that_changed_before_a_completion_failed() -> None:
    event = "alpha:7:8 [1] transport/net_ib.cc:9 NCCL WARN NET/IB : mlx5_1:1 async event: GID table change\n"
    failed = (
        "alpha:7:8 [1] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.9<4> with error 12,"
    )
    failed += " opcode 0, len 0, vendor err 129\n"
    assert "before it the GID table of mlx5_1 changed" in found(event + failed)["nccl_log.completion"]
    assert "GID table" not in found(failed + event)["nccl_log.completion"]


def test_shapes_that_differ_between_ranks() -> None:
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:"
    text += " CollectiveFingerPrint(SequenceNumber=7, OpType=ALLGATHER, TensorShape=[1435], TensorDtypes=Float,"
    text += " TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 3 is running collective: CollectiveFingerPrint("
    text += "SequenceNumber=7, OpType=ALLGATHER, TensorShape=[1436], TensorDtypes=Float).\n"
    assert "[1435] on rank 0, [1436] on rank 3" in found(text)["nccl_log.mismatch"]


def test_a_connection_that_a_proxy_did_not_set_up() -> None:
    text = "alpha:7:8 [1] proxy.cc:9 NCCL WARN Proxy Call to rank 7 failed (Connect)\n"
    text += "alpha:7:8 [1] NCCL INFO init.cc:1 -> 2\n"
    assert "the proxy thread of rank 7 did not do what was requested (Connect)" in found(text)["nccl_log.warning"]


def test_ranks_of_one_host_that_reach_each_other_by_the_network_alone() -> None:
    line = "alpha:7:{0} [{1}] NCCL INFO Channel 00/0 : {2}[0] -> {3}[0] [send] via NET/IB/0\n"
    text = line.format(7, 0, 0, 1) + line.format(8, 1, 1, 0)
    assert "goes over the network" in found(text)["nccl_log.intra_node"]
    assert "nccl_log.intra_node" not in found(line.format(7, 0, 0, 8) + line.format(8, 1, 1, 9))


def test_a_topology_without_heads() -> None:
    text = "=== System : maxBw 48.0 totalBw 370.8 ===\nCPU/0-0 (1/1/2)\n+ PCI[48.0] - PCI/0-17000 (1000)\n"
    text += "              + PCI[48.0] - GPU/0-19000 (0)\n                 + NVL[370.8] - NVS/0\n"
    assert "NVLinks of 370.8 GB/s to NVSwitch on 1 GPU" in printed(text)


def test_sizes_that_differ_under_one_number() -> None:
    line = (
        "[rank{0}]:[E1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=900, OpType=ALLREDUCE,"
    )
    line += " NumelIn={1}, NumelOut={1}, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
    have = found(line.format(1, 64) + line.format(5, 64) + line.format(7, 32))["nccl_log.watchdog"]
    assert "64 elements on ranks 1,5, 32 elements on rank 7" in have
    assert "out of step" in have


def test_a_mismatch_in_two_lines_and_an_algorithm_without_a_head() -> None:
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:"
    text += " CollectiveFingerPrint(SequenceNumber=7, OpType=ALLGATHER, TensorShape=[8, 5], TensorDtypes=Float),\n"
    text += "but Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLGATHER,"
    text += " TensorShape=[8, 6])\n"
    assert "[8, 5] on rank 0, [8, 6] on rank 3" in found(text)["nccl_log.mismatch"]
    text = "No algorithm/protocol available for function Reduce.\nNCCL_ALGO was set to allreduce:tree.\n"
    assert "nccl_log.setting" in found(text)
    assert "NCCL_ALGO=allreduce:tree" in printed(text)
