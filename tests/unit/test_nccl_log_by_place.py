# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose says of a warning goes with the place where it stands, and no further than the log shows."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge

WARN = "node1:7:8 [0] {} NCCL WARN {}\n"
INFO = "node1:7:8 [0] NCCL INFO {}\n"
KIND = "socketFinalizeAccept: wrong type {} != {}"
NO_ADDRESS = "ncclSocketInit: connecting to address  with family 1 is neither AF_INET(2) nor AF_INET6(10)"


def worst(text: str) -> Finding:
    return next(one for one in judge.judge(job.read([text.encode()])) if not one.ok)


def calls(*places: str) -> str:
    return "".join(INFO.format(f"{place} -> 3") for place in places)


@pytest.mark.parametrize(
    ("place", "returned", "of", "met"),
    [
        ("misc/socket.cc:1", ["misc/socket.cc:2", "bootstrap.cc:3", "init.cc:4"], "in bootstrap", False),
        ("misc/socket.cc:1", ["transport/net_socket.cc:3", "transport/net.cc:4"], "of NET/Socket", True),
        ("misc/socket.cc:1", ["transport/net_ib/connect.cc:3", "transport/net.cc:4"], "of NET/IB", True),
        ("misc/socket.cc:1", ["proxy.cc:3"], "of a proxy thread", True),
        ("misc/socket.cc:1", ["ras/ras.cc:3"], "by RAS", False),
        ("socket.c:1", [], "of the network's plugin", True),
        ("misc/socket.cc:1", [], "what the connection was for", False),
    ],
)
def test_a_socket_is_of_the_stage_that_the_calls_name(place: str, returned: list[str], of: str, met: bool) -> None:
    finding = worst(WARN.format(place, KIND.format(4, 3)) + calls(*returned))
    assert (of in finding.why, "had found each other" in finding.why) == (True, met), finding.why
    assert ("NCCL_SOCKET_IFNAME" in finding.fix) == (of == "in bootstrap")
    assert "4 is NET/IB by NCCL's numbers, and 3 is NET/Socket" in (finding.have or "")


def test_where_no_call_tells_connections_before_it_do() -> None:
    channel = INFO.format("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0")
    assert "it had found ranks before" in worst(channel + WARN.format("misc/socket.cc:1", KIND.format(9, 1))).why


@pytest.mark.parametrize(
    ("returned", "unique"), [(["bootstrap.cc:3"], True), (["transport/net_socket.cc:3"], False), ([], False)]
)
def test_the_unique_id_is_named_for_bootstrap_alone(returned: list[str], unique: bool) -> None:
    finding = worst(WARN.format("misc/socket.cc:1", NO_ADDRESS) + calls(*returned))
    said = f"{finding.have} {finding.why} {finding.fix}"
    assert ("unique id" in said, "two builds" in said) == (unique, True)


def test_a_library_that_is_not_there_is_no_call_of_cuda() -> None:
    opened = WARN.format("misc/nvmlwrap.cc:1", "Failed to open libnvidia-ml.so.1")
    finding = worst(opened + calls("misc/nvmlwrap.cc:2", "init.cc:3") + "n: Test NCCL failure a.cu:1 'system error'\n")
    assert (finding.check, finding.state, finding.severity) == ("nccl_log.warning", "drift", "critical")
    assert ("mount it" in (finding.have or ""), "CUDA_LAUNCH" in finding.fix) == (True, False)
    # Where no call fails with it NCCL went on.
    assert worst(opened).severity != "critical"


def test_calls_behind_another_failure_are_that_ones() -> None:
    order = WARN.format("graph/search.cc:1", "Could not find a path for pattern 4, falling back to simple order")
    text = order + WARN.format("enqueue.cc:2", "Cuda failure 1 'invalid argument'") + calls("group.cc:3")
    said = {one.check: one.have or "" for one in judge.judge(job.read([text.encode()])) if not one.ok}
    assert ("group.cc" in said["nccl_log.warning"], "group.cc" in said["nccl_log.cuda"]) == (False, True)


def test_memory_that_nvswitches_do_not_give_is_not_that_of_the_gpu() -> None:
    finding = worst("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2 : CUDA error 2 'out of memory'.\n")
    assert (finding.check, "batch" in finding.fix) == ("nccl_log.fabric_manager", False)
    assert "fabricmanager" in worst("n: Test CUDA failure a.cu:1 'system not yet initialized'\n").fix


def test_an_illegal_access_may_be_of_any_kernel() -> None:
    finding = worst(WARN.format("enqueue.cc:1", "Cuda failure 700 'an illegal memory access was encountered'"))
    assert all("of the program or of NCCL" in said for said in (finding.have or "", finding.why))


LMOD = 'Lmod has detected the following error: These module(s) exist\nbut cannot be loaded as requested: "cuda"\n'
CLOSED = WARN.format("misc/socket.cc:1", "socketProgress: Connection closed by remote peer node0<5>")


@pytest.mark.parametrize(
    "tool",
    [
        LMOD,
        "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'cuda/12'\n",
        'Process 7 Unable to locate the variable file "/x/tune.txt" in the following search path:\n   /x:/y\n',
        "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)\n",
    ],
)
def test_tools_around_the_job_are_no_cause(tool: str) -> None:
    ended = (
        "srun: error: node0: task 0: Exited with exit code 1\nsrun: error: node1: task 1: Exited with exit code 134\n"
    )
    log = judge.judge(job.read([(tool + ended + CLOSED).encode()]))
    assert not [one for one in log if one.check == "nccl_log.program"]
    cause = next(one for one in log if one.check == "nccl_log.exit")
    assert (cause.because, "others ended with exit code 134" in (cause.have or "")) == (None, True)
    # Alone it is a remark.
    assert not [one for one in judge.judge(job.read([tool.encode()])) if one.severity != "minor" and not one.ok]


def test_nothing_follows_from_words_that_are_merely_the_last() -> None:
    text = "Failed to read the list of shards\nsrun: error: node0: task 0: Exited with exit code 1\n" + CLOSED
    log = judge.judge(job.read([text.encode()]))
    program = [one for one in log if one.check == "nccl_log.program"]
    assert [one.state for one in program] == ["unknown"]
    assert not [one for one in log if one.because == program[0].id]


def test_lines_that_end_in_the_initialisation_are_no_hang() -> None:
    start = (
        "node{0}:7:8 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {0} nranks 2 cudaDev 0 busId 100 commId 0xab - Init"
    )
    start += " START\n"
    begun = start.format(0) + start.format(1)

    def severity(text: str) -> str:
        return next(one.severity for one in judge.judge(job.read([text.encode()])) if one.check == "nccl_log.ranks")

    assert severity(begun) == "minor"
    for more in ("KeyboardInterrupt\n", "RuntimeError: it hangs\n", CLOSED, "slurmstepd: error: *** task 0 killed\n"):
        assert severity(begun + more) == "major", more


def test_kernels_that_want_more_than_a_gpu_has_may_be_why_it_refuses_them() -> None:
    want = INFO.format("ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856")
    failed = WARN.format("enqueue.cc:2", "Cuda failure 1 'invalid argument'")
    assert "causes: NCCL's kernels want 82240 bytes" in (worst(want + failed).have or "")
    assert "82240" not in (worst(want + failed.replace("argument", "resource handle")).have or "")


def test_a_wait_before_a_failure_is_told_with_it() -> None:
    wait = "Warning: NCCL EP timeout for dispatch receive, rank 2, local_expert_idx {}, src_rank 3\n"
    error = "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    have = worst(wait.format(7) + wait.format(5) + error + WARN.format("a.cc:1", "Proxy Call to rank 1 failed")).have
    assert "a wait for a peer ran out before CUDA failed, line 1: Warning: NCCL EP timeout" in (have or "")
    assert ("local_expert_idx 5" in (have or ""), "the first failure of this log" in (have or "")) == (True, False)


def test_a_scheduler_that_hit_an_exception_is_told_once_and_as_no_forward_pass() -> None:
    text = (
        '[12:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n  File "/x/s.py", line 2, in run\n'
    )
    quotes = job.read([(text + "    scheduler = Scheduler(\n").encode()]).quotes.all
    assert [("forward pass" in one.about, "cut off here" in one.about) for one in quotes] == [(False, True)]


def test_a_program_that_failed_after_connections_were_lost_is_not_said_to_be_first() -> None:
    lost = "[rank1]:[W TCPStore.cpp:1] recvValue failed on SocketImpl(fd=3): Connection reset by peer\n"
    own = '[rank0]: File "/x/train.py", line 3, in load\n[rank0]: ValueError: no shard 7\n'
    for text, first in ((own + lost, True), (lost + own, False)):
        finding = next(one for one in judge.judge(job.read([text.encode()])) if one.check == "nccl_log.program")
        assert ("before anything else failed" in finding.why) == first, finding.why
