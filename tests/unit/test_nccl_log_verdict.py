"""The verdict is the cause, or what is nearest to it: no victim, no end that was ordered, no slow network."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

TIMEOUT = (
    "[rank{0}]:[E101 10:10:{2:02}.5 p.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
    "{1}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=9000) ran for 9026 milliseconds before timing out.\n"
)
STATUS = (
    "[rank{0}]:[E101 10:10:01.5 p.cpp:2] [PG ID 0 PG GUID 0(default_pg) Rank {0}] failure detected by watchdog at work"
    " sequence id: {1} PG status: last enqueued work: {1}, last completed work: {2}\n"
)
CLOSED = "[2025-01-01 10:10:{0:02}] n{1}:7{1}:8{1} [0] misc/socket.cc:7 NCCL WARN socketProgress: Connection closed by"
CLOSED += " remote peer \n"
LOST = (
    "[rank{0}]:[E101 10:10:05.1 p.cpp:6] [Rank {0}] Collective WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4,"
    " NumelOut=4, Timeout(ms)=9000) raised the following async exception: NCCL error: remote process exited or there"
    " was a network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer \n"
)
SIGNAL = (
    "[rank{0}]:[E101 10:10:06.2 p.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a"
    " collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work:"
    " 44, last completed NCCL work: 8.This is most likely caused by incorrect usages\n"
)
ROOT = (
    "E0101 10:10:08.7 66 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode: {1}) local_rank: {0}"
    " (pid: 93) of binary: ./run.sh\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-01-01_10:10:08\n"
    "  host      : localhost\n  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 93)\n"
)
INTERFACES = "NET/Socket : Using [0]eth0:10.0.0.{0}<0> [1]q0:fe80::1%q0<0>"


def info(number: int, text: str) -> str:
    return f"n{number}:7{number}:8{number} [0] NCCL INFO {text}\n"


def begun(number: int, ranks: int = 3) -> str:
    return (
        info(number, "NET/IB : No device found.")
        + info(number, INTERFACES.format(number))
        + info(number, "Using network Socket")
        + info(
            number,
            f"ncclCommInitRankConfig comm 0xa{number} rank {number} nranks {ranks} cudaDev 0 nvmlDev 0 busId 60 commId"
            " 0xabc - Init START",
        )
    )


def ready(number: int, ranks: int) -> str:
    return begun(number, ranks) + info(
        number,
        f"ncclCommInitRankConfig comm 0xa{number} rank {number} nranks {ranks} cudaDev 0 nvmlDev 0 busId 60 commId"
        " 0xabc - Init COMPLETE",
    )


def of(*texts: str, names: tuple[str, ...] = ()) -> tuple[str, list[Finding]]:
    """The verdict, and the findings that are not ok."""
    reader = job.Reader()
    for number, text in enumerate(texts):
        reader.source(names[number] if names else "a.log")
        reader.feed(text.encode())
    reader.end()
    found = judge.judge(reader.log)
    said = render(reader.log, split(reader.log), found, 4000)
    return said.partition("verdict: ")[2].partition("\n")[0], [one for one in found if not one.ok]


def test_a_wait_that_was_given_up_comes_before_the_connections_that_its_end_closes() -> None:
    waits = TIMEOUT.format(0, 43, 0) + TIMEOUT.format(2, 43, 1)
    verdict, found = of(waits + CLOSED.format(40, 2))
    assert verdict.startswith("PyTorch's watchdog gave up after 9 s on ALLREDUCE number 43 (4 elements), and rank 1")
    assert next(one for one in found if one.check == "nccl_log.connection").because == found[0].id
    # Other files, other order: the times tell.
    verdict, _found = of(CLOSED.format(40, 2), waits)
    assert verdict.startswith("PyTorch's watchdog gave up")
    # A connection that was lost before is what ranks then wait for.
    verdict, _found = of(waits, "[2025-01-01 10:09:50]" + CLOSED.format(40, 2)[21:])
    assert "closed by remote peer" in verdict


def test_lines_are_counted_through_all_files_and_each_file_says_where_it_begins() -> None:
    reader = job.Reader()
    for number in range(14):
        reader.source(f"{number}.log")
        reader.feed(DUPLICATE.encode() * 2)
    reader.end()
    said = " ".join(render(reader.log, split(reader.log), judge.judge(reader.log)).split())
    assert "lines are counted through all files, which begin: 0.log at 1, 1.log at 3, 2.log at 5" in said
    assert "11.log at 23 and 2 more files" in said


PLUGIN = "n1:71:81 [0] x.c:7 NCCL WARN NET/OFI Only EFA provider is supported\n"


@pytest.mark.parametrize(("nodes", "severity"), [(1, "minor"), (2, "major")])
def test_a_plugin_that_gave_way_to_a_network_by_which_the_job_went_on_is_no_failure(nodes: int, severity: str) -> None:
    shape = info(1, f"comm 0xa1 rank 0 nRanks {nodes} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0")
    went_on = PLUGIN + ready(1, nodes).replace(f"rank 1 nranks {nodes}", f"rank 0 nranks {nodes}") + shape
    went_on = went_on.replace(" [1]q0:fe80::1%q0<0>", "")
    verdict, found = of(went_on)
    assert verdict.startswith("no failure is in these lines")
    assert [one.severity for one in found if one.check == "nccl_log.net_plugin"] == [severity]
    # Without the line that proves it, it is what was reported; calls that returned an error prove the contrary.
    stopped = went_on.replace("Init COMPLETE", "Init STOPS")
    for text in (stopped, went_on + info(1, "net.cc:9 -> 2") + info(1, "init.cc:9 -> 2")):
        assert not of(text)[0].startswith("no failure")


def test_whose_initialisation_is_not_complete_is_said_beside_one_that_is() -> None:
    other = begun(1).replace("0xabc", "0xdef").replace("0xa1", "0xb1")
    _verdict, found = of(ready(1, 1) + other)
    have = next(one.have for one in found if one.check == "nccl_log.ranks")
    assert have is not None
    assert "that is communicator def: of 2 communicators 1 has an Init COMPLETE" in have


def test_what_libfabric_reports_before_its_plugin_came_first() -> None:
    below = "libfabric:71:1700000000::efa:cq:efa_cq_open():92<warn> Unable to create CQ: Cannot allocate memory\n"
    failed = PLUGIN.replace("Only EFA provider is supported", "Couldn't open CQ. RC: -22, ERROR: Invalid argument")
    network = info(1, "NET/Socket : Using [0]eth0:10.0.0.1<0>") + info(1, "Using network Socket")
    said = "libfabric reports before it, in line 1: Unable to create CQ: Cannot allocate memory"
    assert said in of(below + failed + network)[0]
    assert "libfabric reports" not in of(failed + below + network)[0]


def test_an_interface_that_does_not_leave_the_node_is_no_failure_where_nodes_are_not_told() -> None:
    verdict, found = of(info(1, "Bootstrap: Using lo:127.0.0.1<0>"))
    assert verdict.startswith("no failure is in these lines; worth a look: lo, which does not leave the node")
    assert [one.severity for one in found if one.check == "nccl_log.interface"] == ["major"]


def test_what_is_no_text_has_no_failure() -> None:
    hole = "\0\0\n"
    assert of("RuntimeError: x\n" + 2 * hole)[0] == "this is not a text: 2 of 3 lines hold zero bytes"
    # A hole in a log is none.
    assert "RuntimeError: x" in of("RuntimeError: x\n" + hole)[0]
    assert "no text" not in of(DUPLICATE + 3 * hole)[0]


ABORTED = "srun: error: n2: tasks 4-7: Aborted (core dumped)\n"


def test_who_aborts_itself_has_met_something_whoever_tells_it_first() -> None:
    for text in (ABORTED + TIMEOUT.format(3, 43, 0), TIMEOUT.format(3, 43, 0) + ABORTED):
        verdict, found = of(text)
        assert verdict.startswith("PyTorch's watchdog gave up")
        assert [one.because is None for one in found if one.check == "nccl_log.exit"] == [False]
    assert of(ABORTED)[0] == "a process ended with Aborted (core dumped)"


DUPLICATE = "n1:71:81 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10\n"


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        (DUPLICATE, "a line shows what is wrong"),
        (DUPLICATE + CLOSED.format(40, 2), "a line shows what is wrong"),
        (CLOSED.format(40, 2), "reported; the root cause is not in this log"),
        (
            TIMEOUT.format(0, 43, 0) + CLOSED.format(40, 2),
            "it is what likely came first; 1 other kind of failure is below, and no line proves which caused which",
        ),
        (ready(1, 1), ""),
    ],
)
def test_it_is_said_how_sure_a_verdict_is(text: str, sure: str) -> None:
    log = job.read([text.encode()])
    said = render(log, split(log), judge.judge(log), 4000).partition("verdict: ")[2]
    assert said.split("\n")[1] == (f"    how sure: {sure}" if sure else "")


def test_who_did_not_come_is_in_the_verdict() -> None:
    waits = TIMEOUT.format(0, 119, 0) + TIMEOUT.format(2, 119, 0)
    waits += STATUS.format(0, 119, 118) + STATUS.format(2, 119, 118)
    verdict, found = of(waits + STATUS.format(1, 118, 118))
    assert verdict.endswith("ALLREDUCE number 119 (4 elements), to which rank 1 had not come")
    assert "waiting: ranks 0,2;" in (found[0].have or "")
    # Of many ranks that have no line nothing is said: a part of the log is not here.
    verdict, _found = of(TIMEOUT.format(6, 119, 0) + TIMEOUT.format(7, 119, 0))
    assert verdict.endswith("(4 elements)")


def test_a_rank_of_a_process_group_of_some_ranks_is_no_rank_of_the_job() -> None:
    own = TIMEOUT.format(1, 36, 0) + TIMEOUT.format(0, 37, 0)
    again = "  what():  [PG ID 2 PG GUID 4({0}) Rank 0] Process group watchdog thread terminated with exception: "
    again += TIMEOUT.format(1, 36, 0).partition("] ")[2].replace("[Rank 1]", "[Rank 0]")
    assert "number 36 (rank 1)" in of(own + again.format("data_parallel_1"))[0]


def test_an_end_by_a_kill_is_what_others_lost() -> None:
    text = LOST.format(0) + LOST.format(1) + ROOT.format(2, -9)
    verdict, found = of(text)
    assert "the first failure that torchrun observed was of rank 2 on localhost, with exit code -9: signal 9" in verdict
    assert next(one for one in found if one.check == "nccl_log.connection").because == found[0].id
    # Who was ended by the launcher, or failed like the others, is not first.
    for other in (ROOT.format(2, -15), ROOT.format(1, -9), ROOT.format(2, 1)):
        assert "closed by remote peer" in of(LOST.format(0) + LOST.format(1) + other)[0]


def test_of_torchruns_list_the_title_is_no_cause_and_one_time_no_order() -> None:
    entry = "[1]:\n  time      : 2025-01-01_{1}\n  host      : localhost\n  rank      : {0} (local_rank: {0})\n"
    entry += "  exitcode  : 1 (pid: 9{0})\n"
    own = ROOT.partition("\n")[2].format(0, 1)
    for time, alike in (("10:10:08", True), ("10:10:09", False)):
        text = "x.errors.ChildFailedError:\n======\ntrain.py FAILED\n------\n" + entry.format(1, time) + own
        verdict, found = of(text)
        assert verdict.startswith(
            "the first failure that torchrun observed was of rank 0 on localhost, with exit code 1"
        )
        assert ("all 2 in its list have one time" in (found[0].have or "")) == alike
        assert found[0].because is None


def test_a_signal_after_a_lost_connection_is_no_wait() -> None:
    _verdict, found = of(LOST.format(0) + SIGNAL.format(0))
    assert not [one for one in found if one.check == "nccl_log.watchdog"]
    _verdict, found = of(SIGNAL.format(0))
    assert found[0].check == "nccl_log.watchdog"
    raised = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/x/t.py", line 4, in main\n'
    raised += "[rank1]: KeyError: 'labels'\n"
    verdict, _found = of(raised + LOST.format(0) + SIGNAL.format(0))
    assert verdict == "a program failed (the first failure of this log): [rank1]: KeyError: 'labels'"


def test_programs_last_words_come_before_the_launchers_list_of_codes() -> None:
    words = "2025-01-01 10:10:07,444 - rank0 - ERROR - Loss is nan at step 37, stopping training\n"
    verdict, found = of(words + ROOT.format(0, 1))
    assert "Loss is nan at step 37" in verdict
    assert next(one for one in found if one.check == "nccl_log.exit").because == found[0].id
    assert "Loss is nan" not in of(words + ROOT.format(0, -11))[0]


def test_processes_that_did_not_come_to_the_store() -> None:
    text = "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 3/4 clients joined.\n"
    gone = "[rank{0}]:[W101 10:10:06.4 TCPStore.cpp:1] [c10d] recvValue failed on SocketImpl(fd=4): Failed to recv\n"
    verdict, found = of(text + gone.format(1) + gone.format(2))
    assert "3/4 clients joined" in verdict
    assert "rank 0 ended first" not in (found[0].have or "")
    assert "not started" in (found[0].have or "")
    assert found[-1].because == found[0].id


@pytest.mark.parametrize("name", ["rank2.log", "out"])
def test_ranks_that_wait_for_one_whose_own_file_has_no_line_of_nccls(name: str) -> None:
    own = "10:10:01 - rank2 - INFO - cache miss: reading /x\n"
    files = (begun(0), begun(1), own)
    verdict, found = of(*files, names=("rank0.log", "rank1.log", name))
    assert verdict == "ranks 0-1 wait in NCCL's bootstrap for rank 2, which had not called NCCL"
    assert "cache miss: reading /x" in (found[0].have or "")
    # Without that file it is not told.
    assert "bootstrap for rank 2" not in of(*files[:2], names=("rank0.log", "rank1.log"))[0]
    # Nor of a file that is nobody's, nor of a rank that has begun, nor behind a failure.
    assert "bootstrap for" not in of(*files[:2], "hello\n", names=("rank0.log", "rank1.log", "out"))[0]
    assert "bootstrap for" not in of(*files[:2], own.replace("rank2", "rank1"), names=("a", "b", "c"))[0]
    assert "bootstrap for" not in of(files[0] + CLOSED.format(3, 0), *files[1:], names=("a", "b", "rank2.log"))[0]


def test_an_interface_beside_the_one_in_use_is_no_cause_once_collectives_came_through() -> None:
    start = ready(0, 2) + ready(1, 2)
    waits = TIMEOUT.format(0, 119, 0) + STATUS.format(0, 119, 118) + STATUS.format(1, 118, 118)
    verdict, found = of(start + waits)
    assert verdict.startswith("PyTorch's watchdog gave up")
    assert next(one for one in found if one.check == "nccl_log.interface").severity == "minor"
    early = waits.replace("119", "3").replace("118", "2")
    assert next(one for one in of(start + early)[1] if one.check == "nccl_log.interface").severity == "critical"


def test_a_slow_network_alone_is_no_failure() -> None:
    start = (ready(0, 2) + ready(1, 2)).replace(" [1]q0:fe80::1%q0<0>", "")
    assert of(start)[0] == "no failure is in these lines; worth a look: Socket (TCP), over 2 nodes"
    raised = "Traceback (most recent call last):\n  File \"/x/t.py\", line 4, in main\nKeyError: 'labels'\n"
    assert "no failure" not in of(start + raised)[0]
    # Names of HCAs that fit none, where there is none.
    named = info(0, "NCCL_IB_HCA set by environment to mlx5_0,mlx5_1")
    assert of(named + start)[0].endswith("worth a look: Socket (TCP), over 2 nodes")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("proxy.cc:16 NCCL WARN [Proxy Service] Poll failed: Invalid argument", "`ulimit -n`"),
        (
            "socket.cc:5 NCCL WARN socketStartConnect: connect to 10.9.0.1<4> failed : Network is unreachable",
            "no route",
        ),
    ],
)
def test_words_of_the_system_and_their_usual_causes(text: str, cause: str) -> None:
    _verdict, found = of(f"n1:7:8 [0] {text}\n")
    assert cause in (found[0].have or "")
    assert "had ended" not in (found[0].have or "")


def test_no_gpu_to_see() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/t.py", line 4, in main\n    f()\n'
    text += "RuntimeError: No CUDA GPUs are available\n"
    assert "CUDA_VISIBLE_DEVICES" in of(text)[1][0].fix


def test_a_line_that_another_program_breaks_names_no_peer() -> None:
    text = "n1:7:8 [0] misc/socket.cc:7 NCCL WARN socketProgress: Connection closed by remote peer [rank0]:[E101 x\n"
    assert "the lost peer is not named" in (of(text)[1][0].have or "")


def test_advice_that_does_not_fit_the_run_is_not_given() -> None:
    named = info(0, "NCCL_NVLS_ENABLE set by environment to 0.")
    assert not [one for one in of(named + ready(0, 2) + ready(1, 2))[1] if "NVLS" in (one.have or "")]
    both = ready(0, 2) + ready(1, 2).replace("n1:", "n0:")
    assert [one for one in of(named + both)[1] if "NVLS" in (one.have or "")]


def test_all_ranks_that_wait_have_no_other_behind() -> None:
    waits = "".join(TIMEOUT.format(rank, 119, 0) + STATUS.format(rank, 119, 118) for rank in (0, 1))
    said = of(ready(0, 2) + ready(1, 2) + waits)[1][0].have or ""
    assert "these are all ranks, and none is behind" in said
    assert "another rank may be" in (of(ready(0, 3) + ready(1, 3) + waits)[1][0].have or "")


def test_a_warning_of_pytorchs_is_not_the_earliest_failure() -> None:
    text = "[W101 10:10:00.9 socket.cpp:2] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    log = job.read([(text + ready(0, 2) + ready(1, 2)).encode()])
    said = render(log, split(log), judge.judge(log), 4000)
    assert "hostname of the client socket" in said
    assert "earliest report of a failure" not in said


def test_names_of_algorithms_that_are_none() -> None:
    one = of('n1:7:8 [0] x.cc:9 NCCL WARN Unrecognized element token "Rings" when parsing "Rings"\n')[1][0]
    assert "an unknown name" in one.why
    assert "Ring, Tree" in one.fix


def test_of_two_ranks_the_lost_one_is_known() -> None:
    start = ready(0, 2) + ready(1, 2)
    assert "of two ranks in all the other is rank 1" in (of(start + CLOSED.format(40, 0))[1][0].have or "")
    both = CLOSED.format(40, 0) + CLOSED.format(40, 1)
    assert "of two ranks" not in (of(start + both)[1][0].have or "")
    assert "of two ranks" not in (of(ready(0, 3) + ready(1, 3) + CLOSED.format(40, 0))[1][0].have or "")


def test_a_failure_of_the_network_plugin_is_before_what_makes_a_job_slow() -> None:
    ring = "n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0\n"
    failed = (
        "n1:7:8 [0] create_nccl_ofi_component:9 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n"
    )

    def said(text: str) -> str:
        log = job.read([text.encode()])
        return " ".join(render(log, split(log), judge.judge(log)).split())

    assert "verdict: NET/OFI Couldn't open AV" in said(ring + failed)
    assert "started to connect (whether all of these were made is unknown" in said(ring + failed)
    assert "verdict: no failure is in these lines; worth a look: GPUDirect RDMA is off" in said(ring)
    assert "GPUDirect RDMA is off on NET/AWS Libfabric/0" in said(ring + failed)
    joined = "n1:7:8 [0] NCCL INFO Connected all rings\n"
    assert "started to connect" not in said(ring + joined + failed)


def test_what_came_to_its_end_is_said_to_have_before_what_makes_it_slow() -> None:
    slow = "n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
    slow += info(0, "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0")
    ended = "# nThread 1 nGpus 1 minBytes 8 maxBytes 16\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.5\n"
    said = "no failure is in these lines; worth a look: GPUDirect RDMA is off"
    assert of(slow)[0].startswith(said)
    in_order = "it came to its end in order (nccl-tests: out of bounds values 0 OK); "
    assert of(slow + ended)[0].startswith(in_order + said)
    # Of two programs one has no end, or one has wrong values.
    assert of(slow + ended + ended.partition("\n")[0] + "\n")[0].startswith(said)
    assert "in order" not in of(slow + ended.replace("0 OK", "4 FAILED"))[0]
    raised = "Traceback (most recent call last):\n  File \"/x/t.py\", line 4, in main\nKeyError: 'labels'\n"
    assert "in order" not in of(slow + ended + raised)[0]


def test_omni_path_has_no_gpudirect_over_verbs_and_that_is_minor() -> None:
    text = info(0, "NET/IB : Using [0]hfi1_0:1/IB ; OOB ib0:10.0.0.1<0>") + info(0, "Using network IB")
    text += info(0, "Channel 00 : 0[1b000] -> 1[1b000] [send] via NET/IB/0")
    own = next(one for one in of(text)[1] if one.check == "nccl_log.gdr")
    assert (own.severity, "Omni-Path" in (own.have or "")) == ("minor", True)
    own = next(one for one in of(text.replace("hfi1_0", "mlx5_0"))[1] if one.check == "nccl_log.gdr")
    assert own.severity == "major"
