# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose makes of failures that few logs have, and of records that stick to each other."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, job, jobs, judge, lines, texts


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def watchdog(rank: int, number: int) -> str:
    return (
        f"[E ProcessGroupNCCL.cpp:458] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600123 milliseconds"
        " before timing out.\n"
    )


def test_ranks_that_wait_for_different_collectives_are_not_said_to_wait_for_one() -> None:
    # What a rank has enqueued behind the collective that it waits for has nothing about who is behind.
    have = found(watchdog(0, 912) + watchdog(1, 910) + watchdog(0, 910) + watchdog(5, 640))["nccl_log.watchdog"].have
    assert (have or "").startswith(
        "PyTorch's watchdog gave up after 600 s on different collectives: ALLGATHER number 640 (rank 5); ALLGATHER"
        " number 910 (rank 0-1); in one process group the lowest number is the rank that is behind"
    )
    alike = found(watchdog(0, 912) + watchdog(1, 910) + watchdog(0, 910))["nccl_log.watchdog"].have or ""
    assert alike.startswith("PyTorch's watchdog gave up after 600 s on ALLGATHER number 910; waiting: ranks 0-1")


@pytest.mark.parametrize("end", ["Bootstrap : Using eth0:10.0.0.1<0>", "NET/Plugin: No plugin found (libnccl-net.so)"])
def test_a_record_that_sticks_to_the_next_ones_host(end: str) -> None:
    first, second = lines.records(f"pod-a:30:31 [6] NCCL INFO {end}pod-a:40:41 [3] NCCL INFO Using network IB")
    assert (first.text, second.head.host, second.head.pid) == (end, "pod-a", 40)
    # Whoever publishes a log may put a mark into the host's place.
    first, second = lines.records("<a>:1:2 [0] NCCL INFO Using network IB <b>:3:4 [1] NCCL INFO Using network IB")
    assert (first.head.host, second.head.host) == ("<a>", "<b>")


def test_connections_with_their_communicator_behind_them() -> None:
    tail = " comm 0x20a0 nRanks 02"
    assert texts.event(f"Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0{tail}") == events.Channel(
        "net", "IB", 0, 1, True, 0
    )
    assert texts.event(f"Channel 01/0 : 0[c000] -> 1[f000] via P2P/IPC{tail}") == events.Channel("p2p", "IPC", 0, 1)


def test_a_network_plugin_that_fails() -> None:
    warn = "node1:7:8 [0] plugin_init:120 NCCL WARN NET/OFI cannot start: -61\n"
    finding = found(warn)["nccl_log.net_plugin"]
    assert (finding.state, "possible causes: no EFA device" in (finding.have or "")) == ("drift", True)
    assert "possible causes" not in (found(warn.replace("OFI", "Fabulous"))["nccl_log.net_plugin"].have or "")
    # NCCL's own networks are no plugins.
    for own in ("IB", "IBext_v8", "Socket"):
        assert found(warn.replace("OFI", own))["nccl_log.warning"].state == "unknown"


def test_rdma_in_software_and_a_driver_without_functions_are_no_first_failure() -> None:
    path = "node1:7:8 [0] transport/net_ib.cc:115 NCCL WARN Could not find real path of rxe0 (/sys/class/x)\n"
    driver = "node1:7:8 [0] misc/cudawrap.cc:195 NCCL WARN CUDA some PFN functions not found in the library\n"
    memory = "node1:7:8 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    log = found(path + driver + memory)
    assert "the first failure of this log" in (log["nccl_log.cuda"].have or "")
    assert (log["nccl_log.device"].state, log["nccl_log.device"].because) == ("drift", None)
    assert (log["nccl_log.warning"].state, "libcuda is older" in (log["nccl_log.warning"].have or "")) == (
        "unknown",
        True,
    )


def test_a_connection_that_was_never_made_is_not_said_to_be_lost() -> None:
    line = "node1:7:8 [0] misc/socket.cc:1 NCCL WARN socketStartConnect: Connect to {}<4471> failed : {}\n"
    finding = found(line.format("10.0.0.9", "No route to host"))["nccl_log.connection"]
    assert "not reached: 10.0.0.9 (1); possible causes: the peer's interface" in (finding.have or "")
    assert ("lost" in (finding.have or ""), finding.why.startswith("a TCP connection")) == (False, True)
    assert "the peer had ended, or" in (
        found(line.format("10.0.0.9", "Connection refused"))["nccl_log.connection"].have or ""
    )
    for local in ("169.254.7.9", "fe80::1:2%ib1"):
        assert f"{local} is a link-local address" in (
            found(line.format(local, "timeout"))["nccl_log.connection"].have or ""
        )
    # It follows from what is known to have failed.
    log = found(line.format("10.0.0.9", "timeout") + "node1:7:8 [0] a.cc:1 NCCL WARN Cuda failure 'out of memory'\n")
    assert log["nccl_log.connection"].because == log["nccl_log.cuda"].id


@pytest.mark.parametrize(
    ("warning", "check", "cause"),
    [
        (
            "MNNVL (cliqueSize 4) is available but not working on this system.",
            "fabric_manager",
            "does not show an IMEX channel",
        ),
        ("Cuda failure 800 'operation not permitted'", "cuda", "no IMEX channel, or too few privileges"),
        ("Cuda failure 'named symbol not found'", "cuda", "no kernels for this GPU"),
        ("nvmlDeviceGetHandleByPciBusId() failed: Not Found", "warning", "fewer GPUs than NCCL looks for"),
    ],
)
def test_what_a_warning_leaves_open(warning: str, check: str, cause: str) -> None:
    have = found(f"node1:7:8 [0] init.cc:1 NCCL WARN {warning}\n")[f"nccl_log.{check}"].have or ""
    assert (cause in have, "Fabric Manager" in have) == (True, False)


def test_calls_on_sockets_that_an_abort_ends_are_no_cause() -> None:
    calls = "".join(f"n1:{pid}:9 [0] NCCL INFO misc/socket.cc:8 -> 3\n" for pid in (7, 8))
    abort = "n1:6:9 [2] NCCL INFO comm 0x1 rank 6 nranks 8 cudaDev 2 busId b000 - Abort COMPLETE\n"
    have = found(calls + abort)["nccl_log.warning"].have or ""
    assert have.startswith("a communicator was aborted (Abort COMPLETE), by rank 6 (n1:6); calls on sockets")
    # Without it, or beside another call, they are what there is.
    other = calls + "n1:9:9 [0] NCCL INFO transport/p2p.cc:8 -> 3\n"
    for text in (calls, other + abort):
        assert (found(text)["nccl_log.warning"].have or "").startswith("calls of NCCL returned an error")


def test_a_time_limit_behind_a_word_of_the_end_may_be_of_a_job_that_was_done() -> None:
    limit = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
    done = "[after training is done] datetime: 2025-01-01 09:50:00\n"
    assert "it may have finished without exiting" in (found(done + limit)["nccl_log.exit"].have or "")
    assert "it may have finished" not in (found(limit + done)["nccl_log.exit"].have or "")


def test_a_flush_is_of_the_nodes_own_gpu_and_hca() -> None:
    line = "n1:7:8 [3] transport/net_ib.cc:1696 NCCL WARN NET/IB : Got completion from peer 192.0.2.6<37760> with"
    line += " status=11 opcode=129 len=0 vendor err 137 ({})\n"
    for kind, cause in (("Flush", "this node's own GPU memory"), ("Send", "the HCA at the other end")):
        assert cause in (found(line.format(kind))["nccl_log.completion"].have or "")


def test_an_error_that_came_later_than_the_call() -> None:
    text = (
        "Collective WorkNCCL(SeqNum=9) raised the following async exception: NCCL error: unhandled system error (run"
        " with NCCL_DEBUG=INFO for details), NCCL version 2.25.1\nLast error:\n\nException raised from here\n"
    )
    finding = found(text)["nccl_log.warning"]
    assert (finding.state, "which names the cause, is not in this log" in (finding.have or "")) == ("unknown", True)
    for said in (text, "NCCL error in: x/NCCLUtils.hpp:268, NCCL version 2.25.1\n"):
        [one] = jobs.split(job.read([said.encode()]))
        assert one.versions == ("2.25.1",)


def test_what_multicast_refuses_is_a_possible_cause_whatever_the_error() -> None:
    for error in ("1 'invalid argument'", "401 'the operation cannot be performed in the present state'"):
        warn = f"node1:7:8 [0] transport/nvls.cc:254 NCCL WARN Cuda failure {error}\n"
        finding = found(warn)["nccl_log.fabric_manager"]
        assert ("possible causes: Fabric Manager" in (finding.have or ""), "usually" in finding.why.lower()) == (
            True,
            True,
        )


def test_a_queue_pair_that_is_refused_has_other_causes_than_one_that_nobody_answers() -> None:
    line = "node1:7:8 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with {}\n"
    for error, cause in (("110 Connection timed out", "no route or ARP"), ("error No such device", "container's")):
        have = found(line.format(error))["nccl_log.queue_pair"].have or ""
        assert (cause in have, "no route or ARP" in have) == (True, "timed out" in error)


def test_a_driver_that_is_too_old_is_to_be_replaced() -> None:
    error = "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"
    finding = found(f"node1:7:8 [0] init.cc:1 NCCL WARN {error}\n")["nccl_log.cuda"]
    assert (finding.have or "").startswith(error)
    assert ("install a newer driver" in finding.fix, "Xid" in finding.fix) == (True, False)


def test_nodes_of_a_communicator_whose_begin_is_not_in_the_log() -> None:
    line = "node1:7:8 [0] NCCL INFO comm 0xab rank 1 nRanks 8 nNodes {} localRanks 4 localRank 0 MNNVL 0\n"
    assert jobs.split(job.read([line.format(2).encode()]))[0].nodes == 2
    # That of a communicator within a node does not say it of the job.
    assert jobs.split(job.read([line.format(1).encode()]))[0].nodes is None


@pytest.mark.parametrize(
    "tail", [" [repeated 12x across cluster]", "\x1b[32m [repeated 12x across cluster] (Ray)\x1b[0m"]
)
def test_lines_that_ray_left_out_are_said_to_be_missing(tail: str) -> None:
    head = "(Worker pid=7, ip=10.0.0.7) node1:7:8 [0] NCCL INFO "
    text = f"{head}Channel 10/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA{tail}\n{head}Using network IB\n"
    [one] = jobs.split(job.read([text.encode()]))
    assert [way[0] for process in one.processes for way, _count in process.ways] == ["net"]
    finding = found(text)["nccl_log.readable"]
    assert (finding.have or "").startswith("Ray left out 12 lines")
    assert "RAY_DEDUP_LOGS=0" in finding.fix


def test_a_worker_that_ray_lost_is_what_the_others_lost() -> None:
    died = (
        "(raylet) A worker died: Worker IP address: 10.0.0.7 Worker port: 10 Worker PID: 90 Worker exit type: {} Worker"
        " exit detail: Worker unexpectedly exits with a connection error code 2.\n"
    )
    closed = "node1:7:8 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<5>\n"
    log = found(closed + died.format("SYSTEM_ERROR"))
    assert "a process ended with SYSTEM_ERROR" in (log["nccl_log.exit"].have or "")
    assert "10.0.0.7 pid 90" in (log["nccl_log.exit"].have or "")
    assert log["nccl_log.connection"].because == log["nccl_log.exit"].id
    assert "nccl_log.exit" not in found(closed + died.format("INTENDED_USER_EXIT"))
