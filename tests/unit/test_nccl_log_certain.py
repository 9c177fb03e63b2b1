# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is said with certainty is proven by lines of the log; what lines leave open is said to be open."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, last_lines, results
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def shown(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


EXCEPTION = "DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.21.5\n"


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (f"{EXCEPTION.rstrip()} Last error: NET/IB : Got completion with error 12, opcode 0, len 0\n", "completion"),
        (
            f"(W pid=11) {EXCEPTION}(W pid=11) E 01:02:03 Last error:\n(W pid=12) E 01:02:03 return f(x)\n"
            "(W pid=11) E 01:02:03 Error while creating shared memory segment /dev/shm/nccl-x (size 99)\n",
            "shared_memory",
        ),
        (
            "n7: Test CUDA failure common.cu:1 'invalid device ordinal'\n .. n7 pid 4: Test failure common.cu:2\n",
            "cuda",
        ),
    ],
)
def test_a_cause_behind_its_exception_is_found(text: str, check: str) -> None:
    assert list(found(text)) == [f"nccl_log.{check}", "nccl_log.readable"]


def test_a_line_that_no_rule_knows_is_not_said_to_be_missing() -> None:
    have = found(EXCEPTION + "WidgetError: the frobnicator has failed: 17\n")["nccl_log.warning"].have or ""
    assert ("is not in this log" in have, "WidgetError: the frobnicator" in have) == (False, True)
    assert "is not in this log" in (found(EXCEPTION)["nccl_log.warning"].have or "")


@pytest.mark.parametrize(
    "text",
    [
        "[2030-01-01 00:00:01] n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion\nfrom peer 10.1.2.3<5> with"
        " status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0)\nreqSize=4 vendor_err=81\n"
        "remoteGids::ffff:10.9.9.9 hca mlx5_7\n",
        "n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.1.2.3 with"
        " status=IBV_WC_LOC_PROT_ERR(4)\n  localGid fe80::1  hca mlx5_7\n",
    ],
)
def test_a_warning_that_was_broken_into_lines(text: str) -> None:
    have = found(text)["nccl_log.completion"].have or ""
    assert ("status 4, local protection" in have, "HCA mlx5_7" in have, "10.1.2.3" in have) == (True, True, True)
    # Another process's line ends it.
    broken = found(text.replace("\n", "\nn2:9:9 [0] NCCL INFO x\n", 1))
    assert not any("mlx5_7" in (one.have or "") for one in broken.values())


def test_out_of_memory_where_shared_memory_is_made_is_of_the_host_as_a_rule() -> None:
    text = "n1:7:9 [1] include/alloc.h:65 NCCL WARN Cuda failure 2 'out of memory'\n"
    assert "possible causes: the GPU's memory is full" in (found(text)["nccl_log.cuda"].have or "")
    have = found(text + "n1:7:9 [1] NCCL INFO transport/shm.cc:5 -> 1\n")["nccl_log.cuda"].have or ""
    assert ("NCCL_CUMEM_HOST_ENABLE=0" in have, "; cause:" in have) == (True, False)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Could not find a path for pattern 4, falling back to simple order", "falling back"),
        ("Cannot initialize CollNet, using point-to-point network instead", "point to point"),
        ("Frobnication is off, ignoring it", "uses another one"),
    ],
)
def test_a_fallback_is_no_failure(said: str, kind: str) -> None:
    finding = found(f"n1:7:8 [0] x.cc:1 NCCL WARN {said}\n")["nccl_log.warning"]
    assert (finding.state, finding.severity) == ("unknown", "minor")
    assert kind in f"{finding.have} {finding.why}"


def test_a_connection_that_is_tried_again_has_not_failed_yet() -> None:
    warn = "[3/16][2030-01-01 00:00:01,1] [misc/socket.cc:6] [n9:pid=40] NCCL {}\n"
    text = warn.format(
        "WARN socketPollConnect poll() failed, ret 1, error Connection timed out, connect to 10.0.0.9:39"
    )
    again = warn.format("INFO socketPollConnect: connect returned Connection timed out, retrying (1/34) after sleep")
    have, first = found(text + again)["nccl_log.connection"], found(text)["nccl_log.connection"]
    assert (have.state, "tries again (1 of 34)" in (have.have or ""), first.state) == ("unknown", True, "drift")
    for one in (have, first):
        assert "task 3 (n9:40); not reached: 10.0.0.9 (1)" in (one.have or "")
    assert found(text + again.replace("(1/34)", "(34/34)"))["nccl_log.connection"].state == "drift"


def test_a_variable_is_the_cause_where_nothing_else_can_be() -> None:
    text = "n1:7:8 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\nn1:7:8 [0] NCCL INFO Using network Socket\n"
    assert "cause: NCCL_IB_DISABLE=1 [" in shown(text)
    assert "without the variable there would be no RDMA either" in shown(
        "n1:7:8 [0] NCCL INFO NET/IB : No device found.\n" + text
    )


def test_the_release_of_one_host_is_not_given_to_another() -> None:
    text = "n1:7:7 [0] NCCL INFO NCCL version 2.22.3+cuda12.4\nn2:8:8 [0] NCCL INFO cudaDriverVersion 12020\n"
    assert "NCCL 2.22.3 (reported by n1)" in shown(text)
    assert "ok: 2.22.3, according to n1; n2: no release" in shown(text)
    assert "said by" not in shown(text + text.replace("n1:7:7", "n2:8:8"))


def test_collnet_that_was_given_up_is_not_said_to_carry_data() -> None:
    channel = "n1:7:8 [0] NCCL INFO CollNet 00/0 : 4 [receive] via COLLNET/SHARP/0/GDRDMA\n"
    assert "connections: 1 by COLLNET/SHARP/GDRDMA" in shown(channel)
    text = shown(
        channel + "n1:7:8 [0] t.cc:1 NCCL WARN Cannot initialize CollNet, using point-to-point network instead\n"
    )
    assert ("by COLLNET" in text, "CollNet (SHARP) is not used" in text) == (False, True)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("SHARP group create: Streaming Tree lock failed (-18)", "the streaming tree (SAT)"),
        ("NET/IB : SHARP coll init error: Cannot create SHARP job(-11)", "sharp_am does not run or is not reached"),
    ],
)
def test_sharp_is_known_and_not_taken_for_nvlink_sharp(text: str, cause: str) -> None:
    finding = found(f"n1:7:8 [0] sharp_plugin.c:3 NCCL WARN {text}\n")["nccl_log.net_plugin"]
    assert (cause in (finding.have or ""), "sharp_am" in finding.fix, "mlx5" in finding.fix) == (True, True, False)
    assert "nccl_log.fabric_manager" in found(
        "n1:7:8 [0] nvls.cc:1 NCCL WARN Failed to bind NVLink SHARP (NVLS) memory\n"
    )


def test_ranks_that_are_not_shown_are_missing_where_something_failed() -> None:
    begin = "n{0}:7:8 [0] NCCL INFO comm 0x{0} rank {0} nranks 4 cudaDev 0 busId 1b000 commId 0xabc - Init START\n"
    text = begin.format(1) + begin.format(2)
    finding = found(text)["nccl_log.ranks"]
    assert (finding.state, "are not in this log, and no rank completed" in (finding.have or "")) == ("unknown", True)
    warn = "n1:7:8 [0] a.cc:1 NCCL WARN socketConnect: Connect to 10.0.0.9<4> failed : timeout\n"
    assert found(text + warn)["nccl_log.ranks"].state == "drift"


def test_what_aborts_outranks_what_is_retried() -> None:
    tried = "W0101 x.cc:1] Socket connect worker 10.0.0.1:7 failed, try again after 3 seconds.\n"
    gone = (
        "ERROR ABORT!!! Out of all 2 trainers, the trainer process with rank=[1] was aborted. Please check its log.\n"
    )
    ended = found(tried + gone)
    assert list(ended) == ["nccl_log.exit", "nccl_log.readable"]
    assert "rank=[1] was aborted. Please check its log." in (ended["nccl_log.exit"].have or "")
    assert "(tried again, so not a failure" in (ended["nccl_log.exit"].have or "")
    assert list(found(tried)) == ["nccl_log.program", "nccl_log.readable"]


def test_no_algorithm_left_is_no_proof_of_a_variable() -> None:
    one = found("n1:7:7 [3] enqueue.cc:9 NCCL WARN Error : no algorithm/protocol available\n")["nccl_log.setting"]
    assert "possibly NCCL_ALGO" in one.why
    assert "a size or type that no algorithm of this release supports" in one.why


SKIPPED = "n%d:7:7 [0] net_ib.cc:1 NCCL WARN NET/IB : Unable to open device mlx5_%d\n"


def test_devices_that_are_not_opened_are_told_with_their_ranks() -> None:
    two = found(SKIPPED % (1, 0) + SKIPPED % (1, 1) + SKIPPED % (2, 8))["nccl_log.verbs"].have or ""
    assert "device mlx5_0 and other devices; on" in two
    assert "HCA mlx5_0, mlx5_1 on n1:7; mlx5_8 on n2:7" in two
    assert "other devices" not in (found(SKIPPED % (1, 0) + SKIPPED % (2, 0))["nccl_log.verbs"].have or "")


def test_lines_that_end_in_other_words_are_told_with_who_says_them() -> None:
    line = "h:%d:7 [0] transport/p2p.cu:5 NCCL WARN failed to open CUDA IPC handle : %s\n"
    have = found(line % (1, "64 no peer access") + line % (2, "11 invalid argument given"))[
        "nccl_log.no_transport"
    ].have
    assert "alike: h:2, GPU 0: 11 invalid argument given" in (have or "")


LISTED = "#  Rank  %d Group  0 Pid  %d on  n%d device  0 [0x1b] NVIDIA A100\n"


@pytest.mark.parametrize(("hosts", "busbw", "doubt", "usual"), [(2, 9, 0, 1), (2, 2, 1, 0), (1, 9, 1, 0)])
def test_what_one_nic_carries_between_hosts_is_no_doubt(hosts: int, busbw: int, doubt: int, usual: int) -> None:
    table = "".join(LISTED % (at, 7 + at, at % hosts) for at in (0, 1))
    said = shown(table + f" 268435456 67108864 float sum -1 9 {busbw} {busbw} 0 9 {busbw} {busbw} 0\n")
    assert ("GB/s at most, little for GPUs" in said, "usual over one NIC of 100 Gbit/s" in said) == (doubt, usual)


def test_what_a_plugin_has_selected_stands_beside_what_no_rank_says() -> None:
    head = "n0:7:7 [0] NCCL INFO "
    said = shown(
        LISTED % (0, 7, 0) + LISTED % (1, 8, 1) + f"{head}NET/OFI Selected Provider is efa\n{head}Launch mode x\n"
    )
    assert "(Using network), but NCCL's plugin for libfabric (NET/OFI) reports that it has selected efa" in said
    assert "no rank reports which network it uses; NCCL's plugin for libfabric" in said


def test_who_nccl_tests_list_names_signs_its_lines() -> None:
    begun = "n1:8:8 [0] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"
    lines = LISTED % (0, 7, 0) + LISTED % (1, 8, 1) + begun + "n0:7:7 [0] NCCL INFO Launch mode x\n"
    log = job.read([lines.encode()])
    assert "rank 1 (line 3), rank 0 (line 4)" in last_lines.told(log, jobs.split(log)[0])[0]


@pytest.mark.parametrize(("pid", "container"), [(7, False), (8, True)])
def test_containers_come_between_processes_alone(pid: int, container: bool) -> None:
    way = "h:%d:9 [%d] NCCL INFO Channel 00 : %d[%d] -> %d[%d] via SHM/direct/direct\n"
    one = found(way % (7, 0, 0, 0, 1, 1) + way % (pid, 1, 1, 1, 0, 0))["nccl_log.intra_node"]
    assert ("ipc=host" in one.fix, "containers" in (one.have or "")) == (container, container)


def test_how_many_epochs_there_are_to_be_is_no_progress() -> None:
    assert (results.classify("INFO - epochs : 100"), results.classify("epoch: 3")) == ("", "progress")


def test_a_communicator_made_behind_a_watchdogs_word_excuses_nothing() -> None:
    dog = "[rank1]:[E1 08:00:00.1 ProcessGroupNCCL.cpp:2] [PG ID 2 PG GUID 3 Rank 1]  failure detected by watchdog at"
    done = "h:1:1 [1] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 1 busId 1b000 commId 0x5 - Init COMPLETE\n"
    one = found(f"{dog} work sequence id: 7 PG status: last enqueued work: 9, last completed work: 6\n{done}")
    assert one["nccl_log.program"].severity == "critical"
    assert "continues behind it" not in (one["nccl_log.program"].have or "")


def test_advice_fits_what_the_words_of_a_failure_prove() -> None:
    broke = found("[rank3]:[W1 TCPStore.cpp:1] [c10d] recvValue failed on SocketImpl(fd=9): Connection reset by peer\n")
    late = found("[rank3]:[E1 TCPStore.cpp:1] [c10d] The client socket has timed out after 9s\n")
    assert ["nc -vz" in one["nccl_log.store"].fix for one in (broke, late)] == [False, True]
    warn = "n1:7:8 [0] x.cc:1 NCCL WARN NET/OFI Unable to register memory (type = %d) for device 0. RC: 12, Error: %s\n"
    full, gpu = (found(warn % (kind, "Cannot allocate memory"))["nccl_log.net_plugin"].fix for kind in (1, 2))
    assert ("ulimit -l" in full, "security group" in full, "ulimit -l" in gpu) == (True, False, False)


def test_what_a_plugin_goes_on_after_is_no_failure() -> None:
    warn = "n1:7:8 [0] net_fastsocket.cc:7 NCCL WARN %s\n"
    assert found(warn % "Cannot get incoming CPU.")["nccl_log.net_plugin"].severity == "minor"
    assert found(warn % "Cannot get the moon.")["nccl_log.net_plugin"].severity == "major"


def test_an_error_of_the_gpus_memory_is_of_no_kernel_for_certain() -> None:
    error = "CUDA error: uncorrectable ECC error encountered\n"
    dog = f"[E ProcessGroupNCCL.cpp:9] [Rank 1] NCCL watchdog thread terminated with exception: {error}"
    assert "of the GPU's hardware, or of an earlier kernel" in shown(f"RuntimeError: {error}{dog}")


def test_a_graph_file_of_other_gpus_is_no_file_that_cannot_be_read() -> None:
    begin = "n1:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1b000 commId 0x5 - Init START\n"
    warn = "n1:7:8 [0] graph/search.cc:7 NCCL WARN XML Import Channel : dev 3 not found.\n"
    one = found(begin + warn + "n1:7:8 [0] NCCL INFO graph/search.cc:9 -> 2\n")
    assert "NCCL_GRAPH_FILE out" in one["nccl_log.topology"].fix
    assert "reading of the topology" not in (one["nccl_log.topology"].have or "")
    assert "busbar hang" not in one["nccl_log.ranks"].fix
