"""What ended a job: its cause comes first, and orders to end, exit codes and lost connections follow from it."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, signals
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

RAISED = """Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    main()
  File "/x/train.py", line 5, in main
    check(args)
  File "/x/args.py", line 3, in check_sizes
    assert not args.size % 3
AssertionError: size 8 is no multiple of 3
"""
WORKER = "[ERROR] failed (exitcode: 1) local_rank: 0 (pid: 31) of binary: /usr/bin/python\n"
STEP = "slurmstepd: error: *** STEP 7.0 ON alpha CANCELLED AT 2025-01-01T00:00:00 ***\n"
CLOSED = "beta:9:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer alpha<40001>\n"
AH = "[171.3] [alpha:31:0] ib_device.c:1 UCX  ERROR ibv_create_ah(dlid=1 dgid=::ffff:10.9.0.2 sgid_index=3) for UD mlx5"
AH += " connect on mlx5_1 failed: Connection timed out\n"


def findings(text: str) -> list[Finding]:
    return [finding for finding in judge.judge(job.read([text.encode()])) if not finding.ok]


def verdict(text: str) -> str:
    log = job.read([text.encode()])
    said = " ".join(render(log, split(log), judge.judge(log), 400).split())
    return said.partition("verdict: ")[2].partition(" critical")[0]


@pytest.mark.parametrize("after", [WORKER, STEP, CLOSED, WORKER + STEP + CLOSED])
def test_a_program_that_fails_by_itself_is_the_cause_of_what_comes_after(after: str) -> None:
    first, *rest = findings(RAISED + after)
    assert first.check == "nccl_log.program"
    assert first.state == "drift"
    assert "AssertionError: size 8 is no multiple of 3" in (first.have or "")
    assert "check_sizes" in first.fix
    critical = [one for one in rest if one.severity == "critical" and one.check != "nccl_log.level"]
    assert critical
    assert {one.because for one in critical} == {first.id}


@pytest.mark.parametrize("before", [WORKER.replace("exitcode: 1", "exitcode: -9"), STEP, CLOSED])
def test_what_a_program_says_after_another_failure_is_no_cause(before: str) -> None:
    assert not [one for one in findings(before + RAISED) if one.check == "nccl_log.program" and one.state == "drift"]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [3] Connection reset by peer\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: x\n",
        "ray.exceptions.ActorDiedError: the actor is gone\n",
        "Exception ignored in: <function f>: ValueError: x\n",
    ],
)
def test_the_report_of_another_end_is_no_failure_of_its_own(line: str) -> None:
    assert not [one for one in findings(line + WORKER) if one.check == "nccl_log.program" and one.state == "drift"]


def test_an_order_to_end_is_no_failure() -> None:
    text = "W1 api.py:7] Received 15 death signal, shutting down workers\nW1 api.py:8] Sending process 3 closing signal"
    text += " SIGTERM\nW1 api.py:8] Closing process 4 via signal SIGTERM\n"
    [told] = [one for one in findings(text) if one.severity == "critical"]
    assert told.state == "unknown"
    assert "the job was ended on request" in (told.have or "")
    assert "no failure stands before it" in (told.have or "")
    # A failure that is in the log is the cause, wherever the order stands.
    first = findings(text + "[rank3]: RuntimeError: CUDA error: out of memory\n")[0]
    assert first.check == "nccl_log.cuda"


def test_a_connection_of_ucx_that_was_not_made_is_the_cause_and_not_the_cancelling_after_it() -> None:
    text = AH + STEP + "srun: error: alpha: tasks 2-3: Exited with exit code 1\n"
    first, *rest = findings(text)
    assert first.check == "nccl_log.queue_pair"
    assert all(part in (first.have or "") for part in ("mlx5_1", "another program than NCCL", "UCX", "first failure"))
    ends = [one for one in rest if one.check == "nccl_log.exit"]
    assert len(ends) == 2
    assert {one.because for one in ends} == {first.id}
    assert any("alpha: tasks 2-3" in (one.have or "") for one in ends)


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("[W socket.cpp:4] [c10d] The server socket has failed to bind to [::]:29501 (errno: 98 - Address already"
         " in use).", "29501"),
        ("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
         "8000"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
         " port: 29400, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use", "29400"),
    ],
)  # fmt: skip
def test_a_port_that_is_in_use_is_told_as_that(line: str, port: str) -> None:
    first, *rest = findings(line + "\n" + WORKER)
    assert first.check == "nccl_log.store"
    assert port in (first.have or "")
    assert "another one has it" in first.why
    assert {one.because for one in rest if one.check == "nccl_log.exit"} == {first.id}


def test_an_xid_is_told_with_its_gpu_its_meaning_and_what_follows_from_it() -> None:
    text = "[1.0] NVRM: Xid (PCI:0000:03:00): 45, pid=7, name=python3, Ch 00000008\n"
    text += "[1.1] NVRM: Xid (PCI:0000:03:00): 62, pid=7, name=python3, 0000(0000)\n"
    text += "[1.2] NVRM: Xid (PCI:0000:c3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    first, second, *rest = findings(text)
    assert verdict(text).startswith("the kernel reports Xid 62 of the GPU at PCI 0000:03:00: the internal micro-contr")
    assert "python3 (pid 7)" in (first.have or "")
    assert "gpu-reset" in first.fix
    assert "PCI 0000:c3:00: the GPU has fallen off the bus" in (second.have or "")
    assert "reboot" in second.fix
    assert [one.because for one in rest if "Xid 45" in (one.have or "")] == [first.id]


def test_of_several_ends_the_one_that_nobody_ordered_is_told_first() -> None:
    text = "srun: error: alpha: task 0: Terminated\nsrun: error: beta: task 1: Segmentation fault\n"
    assert "Segmentation fault" in verdict(text)
    assert "signal 9, SIGKILL" in verdict("[E] failed (exitcode: -9) local_rank: 0 (pid: 3) of binary: x\n")
    assert "exit code 1" in verdict(WORKER)


def test_what_a_launcher_says_behind_a_long_command_is_told() -> None:
    command = "['python', '-u', 'main.py', '--local_rank=3', %s]" % ", ".join(["'--option_of_some_length'"] * 150)
    text = "[2024] [INFO] [launch.py:3:sigkill_handler] Killing subprocess 7\n"
    text += "[2024] [ERROR] [launch.py:4:sigkill_handler] %s exits with return code = -9\n" % command
    assert "exit code -9, that is: signal 9, SIGKILL" in verdict(text)
    assert "on local rank 3" in (findings(text.replace(", '--option_of_some_length'" * 140, ""))[0].have or "")


def test_where_launchers_tell_ends_alone_what_a_program_lost_before_is_told_first_and_proves_nothing() -> None:
    lost = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.7]:12717\n"
    first, *rest = findings(lost + WORKER)
    assert (first.check, first.state) == ("nccl_log.program", "unknown")
    assert "10.0.0.7" in (first.have or "")
    assert [one.because for one in rest if one.check == "nccl_log.exit"] == [first.id]
    # A signal says more than that.
    assert "SIGKILL" in verdict(lost + WORKER.replace("exitcode: 1", "exitcode: -9"))


def test_the_rank_of_an_exception_is_that_of_the_last_error_below_it() -> None:
    text = "[rank1]:[E415 x.cpp:552] [Rank 1] y: NCCL error: remote process exited, NCCL version 2.21.5\n"
    text += "ncclRemoteError: z\n"
    text += "Last error:\nsocketProgress: Connection closed by remote peer alpha<32926>\n"
    assert "on rank 1;" in (findings(text)[0].have or "")


def test_the_text_of_a_program_below_a_frame_of_a_traceback_is_no_report() -> None:
    logged = "ERROR 04-16 11:53:49 [core.py:387] "
    text = (
        logged + "EngineCore hit an exception: Traceback (most recent call last):\n" + logged + '  File "/x/a.py", line'
    )
    text += " 3, in run\n" + logged + "    raise RuntimeError(self.failed_to_connect)\n" + logged + "ValueError: no\n"
    said = [one.text for one in job.read([text.encode()]).quotes.all]
    assert not any("failed_to_connect" in one for one in said)
    assert any("ValueError: no" in one for one in said)


def test_an_exception_of_the_process_that_a_launcher_names_is_what_it_ended_by() -> None:
    worker = WORKER.replace("local_rank: 0", "local_rank: 5")
    first, *rest = findings(worker + "[rank5]: FileNotFoundError: [Errno 2] No such file or directory: '/x'\n")
    assert (first.check, first.state) == ("nccl_log.program", "drift")
    assert "a path that only one node has" in first.fix
    assert [one.because for one in rest if one.check == "nccl_log.exit"] == [first.id]
    # Another process's exception is not.
    assert findings(worker + "[rank3]: ValueError: x\n")[0].check == "nccl_log.exit"


def test_an_exception_of_the_rank_that_others_lost_is_told_first_and_its_order_left_open() -> None:
    text = (
        "[rank2]: torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId"
    )
    text += " from [0], but store->get('0') got error: Failed to recv, got 0 bytes.\n[rank0]: ValueError: odd sizes\n"
    assert "ValueError: odd sizes" in verdict(text)
    assert "which came first is unknown" in verdict(text)


def test_a_name_that_does_not_resolve_is_told_as_that() -> None:
    first = findings(
        "ssh: Could not resolve hostname gpu-3.pods: Name or service not known\nORTE was unable to start\n"
    )
    assert (first[0].check, first[0].state) == ("nccl_log.bootstrap", "drift")
    assert "getent hosts" in first[0].fix


def test_a_timeout_comes_before_the_ends_that_follow_it_and_not_before_a_crash() -> None:
    timeout = "[E x.cpp:4] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=11, OpType=ALLREDUCE,"
    timeout += " NumelIn=3, NumelOut=3, Timeout(ms)=1800000) ran for 1800035 milliseconds before timing out.\n"
    first, *rest = findings(timeout + STEP + "srun: error: alpha: task 0: Aborted\n")
    assert first.check == "nccl_log.watchdog"
    assert [one.because for one in rest if one.check == "nccl_log.exit"] == [first.id, first.id]
    ends = findings(timeout + "srun: error: alpha: task 0: Killed\n")
    assert [one.because for one in ends if one.check == "nccl_log.exit"] == [None]


def test_the_check_that_failed_in_a_kernel_is_told_with_cudas_error() -> None:
    text = "../cuda/Loss.cu:242: nll_loss: block: [0,0,0], thread: [5,0,0] Assertion `t < n_classes` failed.\n"
    text += "RuntimeError: CUDA error: device-side assert triggered\n"
    first = findings(text)[0]
    assert first.check == "nccl_log.cuda"
    assert "(line 1): ../cuda/Loss.cu:242" in (first.have or "")
    assert "out of range" in first.why


def test_advice_on_cuda_is_of_the_error_and_not_of_all_errors() -> None:
    head = "alpha:7:8 [1] enqueue.cc:47 NCCL WARN Cuda failure '%s'\n"
    fixes = {words: findings(head % words)[0].fix for words in ("named symbol not found", "invalid device ordinal")}
    assert "NVCC_GENCODE" in fixes["named symbol not found"]
    assert "CUDA_VISIBLE_DEVICES" in fixes["invalid device ordinal"]


def test_mnnvl_that_does_not_work_is_the_cause_of_cudas_error_before_it() -> None:
    text = "alpha:7:8 [1] include/alloc.h:228 NCCL WARN Cuda failure 800 'operation not permitted'\n\n"
    text += "alpha:7:8 [1] mnnvl.cc:67 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system.\n"
    assert findings(text)[0].check == "nccl_log.fabric_manager"


def test_what_mpirun_prints_around_an_end_is_no_failure() -> None:
    text = "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction,"
    text += " the job has been aborted.\n"
    text += "mpirun noticed that process rank 7 with PID 9 on node alpha exited on signal 9 (Killed).\n"
    assert verdict(text).startswith("a process ended with signal 9 (Killed), SIGKILL")


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("./run.sh: line 3: 2311 Killed                  python3 -m server --tp 16", "SIGKILL"),
        ("[2025] Received sigquit from a child process. It usually means the child failed.", "SGLang"),
        ("ERROR 06-24 02:48:49 [x.py:1] Worker pid 311 died, exit code: -15", "SIGTERM"),
    ],
)
def test_more_ways_to_tell_an_end(line: str, about: str) -> None:
    known = signals.classify(line)
    assert known is not None
    assert (known.kind, about in known.about) == ("death" if about == "SIGKILL" else "order", True)


def test_an_exception_of_cpp_is_told_by_what_it_says() -> None:
    text = "terminate called after throwing an instance of 'std::system_error'\n"
    text += "  what():  Resource temporarily unavailable\n"
    assert "Resource temporarily unavailable" in verdict(text + STEP)
    assert "a limit of the process" in (findings(text)[0].have or "")


def test_addresses_of_two_families_are_told_where_rdma_fails_between_them() -> None:
    text = (
        "alpha:7:8 [0] ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1,"
    )
    text += " curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.2, remote GID %s\n"
    mixed = findings(text % "fe80::9a03:9bff:fe11:2233")[0].have or ""
    assert "between GIDs 10.0.0.2 and fe80::9a03:9bff:fe11:2233" in mixed
    assert "another kind of address on each node" in mixed
    assert "HCA mlx5_0;" in mixed
    assert "another kind of address" not in (findings(text % "::ffff:10.0.0.3")[0].have or "")
    assert "ping -I" in findings(text.replace("22 Invalid argument", "113 No route to host") % "::ffff:10.0.1.7")[0].fix


def test_a_port_that_nccl_itself_finds_taken_is_told_as_that() -> None:
    first = findings("alpha:7:8 [0] socket.cc:58 NCCL WARN Net : Call to bind failed: Address already in use\n")[0]
    assert "another one has it" in first.why


GOES_ON = (
    "alpha:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init COMPLETE\n"
)


def test_an_exception_after_which_the_program_goes_on_is_no_failure() -> None:
    [told] = [one for one in findings(RAISED + GOES_ON) if one.check == "nccl_log.program"]
    assert told.severity == "minor"
    assert "the program continues behind it (line %d)" % (RAISED.count("\n") + 1) in (told.have or "")
    assert findings(GOES_ON + RAISED)[0].severity == "critical"
    assert findings(RAISED + GOES_ON + WORKER)[0].check == "nccl_log.program"


def test_an_exception_that_python_ignores_is_no_failure() -> None:
    text = "Exception ignored in: <function f at 0x7f>\n" + RAISED
    assert "nccl_log.program" not in {one.check for one in findings(text) if one.severity != "minor"}


def test_who_did_not_find_the_store_ends_by_that() -> None:
    text = "[rank1]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients."
    text += " 1/2 clients joined.\n"
    first, *rest = findings(text + WORKER)
    assert first.check == "nccl_log.store"
    assert [one.because for one in rest if one.check == "nccl_log.exit"] == [first.id]


def test_whom_memory_ended_is_named() -> None:
    text = "srun: error: gpu07: task 56: Out Of Memory\nslurmstepd: error: Detected 1 oom_kill event in StepId=881.0.\n"
    assert "ended by it, as a launcher reports: gpu07: task 56" in (findings(text)[0].have or "")


def test_cudas_errors_after_a_failed_gpu_or_nvswitch_are_told_with_it() -> None:
    text = "kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46 Minion Link DLREQ interrupt\n"
    xid = "kernel: NVRM: Xid (PCI:0000:1b:00): 74, pid=88, name=python3, NVLink: fatal error detected on link 3\n"
    cuda = "alpha:88:99 [0] init.cc:3 NCCL WARN Cuda failure 'unspecified launch failure'\n"
    first, *rest = findings(xid + cuda)
    assert "Xid 74" in (first.have or "")
    assert [one.because for one in rest if "launch failure" in (one.have or "")] == [first.id]
    assert findings(text + cuda)[0].check == "nccl_log.fabric_manager"
    assert not [one for one in findings(text.replace("Fatal", "Non-fatal")) if one.check == "nccl_log.fabric_manager"]


def test_what_an_nvswitch_reports_stands_before_the_xid_behind_it() -> None:
    switch = "kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine instance 12\n"
    xid = "kernel: NVRM: Xid (PCI:0000:1b:00): 62, 00002740 00002b08\n"
    follows = "kernel: NVRM: Xid (PCI:0000:1b:00): 45, pid=7, name=python3, channel 0x0a\n"
    assert "(an NVSwitch reports SXid 24007 before it, in line 1)" in verdict(switch + xid + follows)
    assert "(the first failure of this log)" in verdict(xid + follows + switch)
    first, second = (one for one in findings(switch + xid + follows) if one.check == "nccl_log.cuda")
    assert "not of a program" in first.why
    # Beside the GPU's own fault the channel that was torn down is no error of the program.
    assert ("compute-sanitizer" in second.fix, second.because) == (False, first.id)
    [alone] = (one for one in findings(follows) if one.check == "nccl_log.cuda")
    assert "compute-sanitizer" in alone.fix


def test_who_was_interrupted_has_not_failed() -> None:
    text = (
        '^CTraceback (most recent call last):\n  File "/x/train.py", line 12, in main\n    run()\nKeyboardInterrupt\n'
    )
    assert verdict(text).startswith("the job was ended on request: KeyboardInterrupt")


def test_a_gpu_that_the_driver_lost_is_told_in_one_sentence() -> None:
    text = "[ 1.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    text += "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    text += "               NVRM: fallen off the bus and is not responding to commands.\n"
    assert "0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: fallen off the bus" in verdict(
        text
    )


WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1,"
    " OpType=ALLGATHER, NumelIn=1, NumelOut=2, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.\n"
)


def test_a_wait_that_was_given_up_after_a_failure_may_have_begun_before_it() -> None:
    first, *rest = findings(RAISED + WATCHDOG)
    assert "which came first is unknown" in (first.have or "")
    assert "before anything else failed" not in first.why
    assert {one.because for one in rest if one.check == "nccl_log.watchdog"} == {None}


def test_a_failure_behind_a_wait_that_was_given_up_may_be_how_that_ended() -> None:
    cuda = "beta:9:9 [0] enqueue.cc:49 NCCL WARN Cuda failure 'unspecified launch failure'\n"
    by = {one.check: one for one in findings(WATCHDOG + cuda)}
    assert "may be how that ended" in (by["nccl_log.cuda"].have or "")
    assert by["nccl_log.watchdog"].because is None
    assert "the first failure of this log" in (findings(cuda + WATCHDOG)[0].have or "")


def test_no_room_for_a_window_is_no_lack_of_memory() -> None:
    text = "beta:9:9 [0] include/allocator.cc:12 NCCL WARN Allocation failed. No suitable space found to accommodate"
    finding = findings(text + " size=0x80 within limit=0x40\n")[0]
    assert finding.check == "nccl_log.usage"
    assert "symmetric memory" in finding.why


def test_one_end_that_is_told_as_a_code_and_as_a_signal_is_one() -> None:
    text = WORKER.replace("exitcode: 1", "exitcode: -6") + "  traceback : Signal 6 (SIGABRT) received by PID 31\n"
    have = next(one for one in findings(text) if one.check == "nccl_log.exit").have or ""
    assert "others ended" not in have
    assert "times" not in have
    other = text + "  traceback : Signal 9 (SIGKILL) received by PID 32\n"
    assert "others ended with" in (next(one for one in findings(other) if one.check == "nccl_log.exit").have or "")


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("RuntimeError: Rank 1 has 40 params, while rank 0 has inconsistent 0 params.\n", set()),
        ("[rank3]: RuntimeError: rank 0 has other shapes\n", {3}),
        ("rank 2: RuntimeError: no shard\n", {2}),
        ("ERROR: connection closed by rank 5\n", set()),
    ],
)
def test_ranks_that_an_error_speaks_of_are_not_who_raised_it(line: str, ranks: set[int]) -> None:
    assert job.read([line.encode()]).quotes.all[0].ranks == ranks


def test_a_flight_recorder_that_is_off_wrote_nothing() -> None:
    said = signals.classify("Stack trace not found, potentially because FlightRecorder is disabled. Set the variable")
    assert said is not None
    assert "has no record" in said.about


UCX = "beta:9:9 [0] ucx_plugin.c:498 NCCL WARN Failed: UCX error '-5' Invalid parameter\n"
RETURNED = "beta:9:9 [0] NCCL INFO {} -> {}\n"


def test_a_plugin_that_refuses_a_connection_is_first() -> None:
    text = UCX + RETURNED.format("transport/net.cc:858", 3) + RETURNED.format("proxy.cc:1311", 3) + CLOSED
    first, *rest = findings(text)
    assert (first.check, first.severity, first.state) == ("nccl_log.net_plugin", "critical", "drift")
    assert {one.because for one in rest if one.check == "nccl_log.connection"} == {first.id}


def test_a_plugin_that_gave_way_to_another_network_is_no_failure() -> None:
    refused = RETURNED.format("plugin/net.cc:118", 2)
    assert findings(refused)[0].check == "nccl_log.warning"
    left = refused + "beta:9:9 [0] NCCL INFO Using network IB\n"
    assert not [one for one in findings(left) if one.severity == "critical"]


def test_a_logger_that_marks_the_first_line_of_a_traceback_alone() -> None:
    text = "12:00 beta ERROR Traceback (most recent call last):\n" + RAISED.partition("\n")[2]
    quotes = job.read([text.encode()]).quotes.all
    assert quotes[-1].text == "AssertionError: size 8 is no multiple of 3"
    assert not [one for one in quotes if "cut off" in one.about]


def test_a_count_that_nobody_has_set_is_not_told() -> None:
    line = "[rank2]:[E p.cpp:1] [PG ID 0 PG GUID 0 Rank 2] last enqueued NCCL work: {}, last completed NCCL work: {}.\n"
    assert "enqueued up to 3" in verdict_and_all(WATCHDOG + line.format(3, 2))
    assert "76280750235782912" not in verdict_and_all(WATCHDOG + line.format(1, 76280750235782912))


def verdict_and_all(text: str) -> str:
    return " ".join(one.have or "" for one in findings(text))


def test_the_verdict_of_a_healthy_log_says_which_figure_is_odd() -> None:
    row = "{:>12} 2097152 float sum -1 1.0 {speed} {speed} 0 1.0 {speed} {speed} 0\n"
    table = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    table += row.format(1048576, speed="0.31") + row.format(2097152, speed="5.74")
    table += row.format(1073741824, speed="6.44")
    assert "worth a look: busbw is 6.44 GB/s at most" in verdict(table)
    assert "worth a look" not in verdict(table.replace("6.44", "150.0").replace("5.74", "90.0").replace("0.31", "80.0"))


def test_a_failure_of_a_program_stands_in_the_verdict_of_a_log_without_one_of_nccls() -> None:
    done = "beta:9:9 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1 commId 0x2 - Init COMPLETE\n"
    said = verdict("Last health check: ConnectError: refused\n" + done)
    assert "a program reports: Last health check: ConnectError" in said


def test_calls_of_a_traceback_are_not_those_of_the_one_before() -> None:
    cut = "".join(RAISED.splitlines(keepends=True)[:6]).replace("check", "forward")
    quotes = job.read([(cut + RAISED).encode()]).quotes.all
    assert next(one.calls for one in quotes if "AssertionError" in one.text) == ("main", "check_sizes")


def test_an_exit_code_that_a_launcher_tells_above_a_programs_last_lines_is_not_first() -> None:
    text = "[server] Server process exited with code 1.\nLog tail:\n" + RAISED
    said = verdict(text)
    assert "AssertionError: size 8 is no multiple of 3" in said
    assert "exited with code" not in said


def test_what_a_program_repeats_of_nccls_words_is_not_counted() -> None:
    warned = "beta:9:9 [0] net_ib.cc:1 NCCL WARN Cuda failure 'invalid argument'\n"
    have = findings(warned + "[rank0]: Last error:\n[rank0]: Cuda failure 'invalid argument'\n")[0].have or ""
    assert "times" not in have


def test_ranks_that_began_and_a_job_that_failed() -> None:
    start = "beta:9:9 [0] NCCL INFO comm 0x{0} rank {0} nranks 2 cudaDev {0} busId {0} commId 0x7 - Init START\n"
    text = start.format(0) + start.format(1) + CLOSED
    ranks = {one.check: one for one in findings(text + "beta: Test NCCL failure common.cu:1 'internal error'\n")}
    assert ranks["nccl_log.ranks"].fix == "repair the failures of this log first"
    assert "if it hangs" in {one.check: one for one in findings(text)}["nccl_log.ranks"].fix


def test_nodes_of_a_communicator_whose_begin_is_here_are_told_by_its_line() -> None:
    start = "beta:9:9 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1 commId 0x7 - Init START\n"
    shape = "beta:9:9 [0] NCCL INFO comm 0x2 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 0\n"
    assert split(job.read([(start + shape).encode()]))[0].nodes == 2
    alone = [one for one in findings(shape) if one.check == "nccl_log.level"]
    assert "nodes" not in " ".join(one.have or "" for one in alone)


def test_the_release_of_an_exception_that_speaks_of_errors_first() -> None:
    text = (
        "[rank4]:[E p.cpp:5] [Rank 4] found exception when checking for NCCL errors: NCCL error: remote process exited"
    )
    assert split(job.read([(CLOSED + text + ", NCCL version 2.22.3\n").encode()]))[0].versions == ("2.22.3",)


def test_ends_by_another_code_are_not_told_with_the_first() -> None:
    text = "srun: error: g15: task 1: Exited with exit code 1\nsrun: error: g13: task 0: Terminated\n"
    have = next(one for one in findings(CLOSED + text) if one.check == "nccl_log.exit").have or ""
    assert "rank 0" not in have.partition("others ended")[0]
    assert "others ended with Terminated" in have


@pytest.mark.parametrize("form", ["{:>4}  {}", "{}\t{}", "{:>3} | {}"])
def test_lines_that_were_copied_with_their_numbers(form: str) -> None:
    text = "".join(form.format(number, line) for number, line in enumerate((RAISED + CLOSED).splitlines(True), 98))
    assert "AssertionError: size 8" in verdict(text)
    assert verdict(text) == verdict(RAISED + CLOSED)
    # A launcher's labels are no such numbers.
    labelled = "".join(f"{rank}: {line}" for rank, line in enumerate([CLOSED] * 6))
    assert len(job.read([labelled.encode()]).failures) == 6


def test_ranks_of_a_group_that_all_wait_leave_none_that_did_not_come() -> None:
    line = (
        "[rank{0}]:[E p.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
        " OpType=ALLGATHER, NumelIn=1, NumelOut=2, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.\n"
    )
    assert "which all wait" in verdict_and_all(line.format(0) + line.format(1))
    alone = verdict_and_all(line.format(0))
    assert "which all wait" not in alone
    assert "the other is rank 1" in alone


def test_ranks_that_say_by_a_dump_signal_how_far_they_came() -> None:
    line = (
        "[rank{0}]:[E p.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective"
        " timeout from {1} and we will try our best to dump the debug info. Last enqueued NCCL work: {2}, last"
        " completed NCCL work: 7.This is most likely caused by incorrect usages of collectives\n"
    )
    have = verdict_and_all(WATCHDOG + line.format(1, "this local rank", 9) + line.format(7, " rank 1", 7))
    assert "rank 7 enqueued 7 collectives, others up to 9: look there first" in have
    assert "only rank 1 is shown waiting" not in have


def test_an_xid_whose_line_asks_for_a_reset() -> None:
    text = "kernel: NVRM: Xid (PCI:0000:55:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 ({})\n"
    assert "--gpu-reset" in findings(text.format("Drain and Reset"))[0].fix
    assert "--gpu-reset" not in findings(text.format("None"))[0].fix


LOST_ALPHA = CLOSED.replace("alpha<", "alpha.lab.example<")
ABORTED = "srun: error: beta: task 1: Exited with exit code 134\n"


@pytest.mark.parametrize(
    ("before", "behind"),
    [(LOST_ALPHA, "srun: error: alpha: task 0: Exited with exit code 1\n" + ABORTED)],
)
def test_the_host_that_lost_connections_name_went_first_though_its_end_is_told_last(before: str, behind: str) -> None:
    raised = "[rank1]: torch.distributed.DistBackendError: NCCL error in: f.cpp:1, remote process exited, NCCL version"
    first, *rest = findings(before + raised + " 2.21.5\n" + behind)
    assert first.check == "nccl_log.exit"
    assert "alpha: task 0" in (first.have or "")
    assert "it likely failed first" in (first.have or "")
    [lost] = [one for one in rest if one.check == "nccl_log.connection"]
    assert lost.because == first.id


@pytest.mark.parametrize(
    "end",
    [
        ABORTED,
        "srun: error: gamma: task 2: Exited with exit code 1\n",
        "srun: error: alpha: task 0: Exited with exit code 134\n",
        "srun: error: alpha: task 0: Terminated\n",
    ],
)
def test_ends_of_others_and_those_that_were_ordered_do_not_go_before_a_lost_connection(end: str) -> None:
    said = " ".join(one.have or "" for one in findings(LOST_ALPHA + end))
    assert "it likely failed first" not in said


def test_two_hosts_that_lost_each_other_leave_open_who_was_first() -> None:
    other = CLOSED.replace("beta:9:9", "alpha:8:8").replace("alpha<", "beta<")
    end = "srun: error: alpha: task 0: Exited with exit code 1\n"
    assert not any("it likely failed first" in (one.have or "") for one in findings(LOST_ALPHA + other + end))
