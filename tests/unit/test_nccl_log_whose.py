"""How many processes a log has, and which GPU is whose."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, lines
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def keys(text: str) -> list[tuple[str, int | None, int | None]]:
    return sorted(job.read([text.encode()]).processes)


def gpus(text: str) -> list[set[int]]:
    return [set(process.gpus) for process in job.read([text.encode()]).processes.values()]


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def line(head: str, text: str = "Using network IB") -> str:
    return f"{head} NCCL INFO {text}\n"


def begun(pid: int, rank: int, device: int, ranks: int = 4) -> str:
    text = (
        f"ncclCommInitRank comm 0xa{pid} rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId {rank}b000"
    )
    return line(f"n1:{pid}:{pid} [{device}]", f"{text} commId 0xabc - Init START")


FOUR = "".join(begun(10 + rank, rank, rank) for rank in range(4))
SOCKET = "misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer n2<43210>\n"


@pytest.mark.parametrize(
    "other",
    [
        # A thread.
        line("n1:13:999 [3]"),
        # Of the same host with its domain, first or last.
        line("n1.cluster.local:13:13 [3]"),
        # What is cut off: the host, all before the device, all.
        line(":13:999 [3]"),
        line("13:999 [3]"),
        line("[3]"),
        # A label without a blank.
        line("3|n1:13:13 [3]"),
        line("\x1b[36m(Worker pid=13)\x1b[0m n1:13:13 [3]"),
        line("(Worker pid=13)\x1b[0mn1:13:13 [3]"),
    ],
)
def test_a_process_is_counted_once(other: str) -> None:
    wanted = [("n1", 10 + rank, None) for rank in range(4)]
    assert keys(FOUR + other) == wanted
    assert keys(other + FOUR) in (wanted, [*wanted[:3], ("n1.cluster.local", 13, None)])
    assert "job: NCCL's lines of 4 processes, on n1, 4 of 4 ranks" in printed(FOUR + other)


def test_lines_without_a_name_are_of_the_only_process() -> None:
    text = "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" + line("n1:77:77 [0]") + line("[0]", "Connected all rings")
    [process] = job.read([text.encode()]).processes.values()
    assert process.key == ("n1", 77, None)
    assert process.bootstrap is not None
    assert (process.rings, set(process.networks)) == (1, {"IB"})
    assert "rings are connected (Connected all rings) on 1 of 1 process" in printed(text)
    # Of several it is not told whose they are, and they are none of their own.
    said = printed(FOUR + line("[0]", "Connected all trees"))
    assert "job: NCCL's lines of 4 processes, on n1" in said


def test_what_a_process_says_under_two_names_is_kept() -> None:
    net = "Channel 0{}/0 : 3[3] -> 0[0] [send] via NET/IB/0"
    warn = "[3] " + SOCKET
    text = (
        FOUR + line("n1:13:13 [3]", net.format(0)) + line("[3]", net.format(1)) + line("[3]", "init.cc:1 -> 3") + warn
    )
    log = job.read([text.encode()])
    [process] = [one for one in log.processes.values() if one.key[1] == 13]
    assert list(process.connections[3].values()) == [2]
    assert [call.place for call in process.calls] == ["init.cc:1"]
    assert [one.process for one in log.failures] == [process]
    assert "on rank 3 (n1:13), GPU 3" in printed(text)


def test_hosts_with_and_without_their_domain_are_one() -> None:
    assert keys(line("n1:1:1 [0]") + line("n1.a.b:2:2 [1]")) == [("n1", 1, None), ("n1", 2, None)]
    # Two domains: it is not told whose the short name is. Addresses have no domain.
    text = line("n1:1:1 [0]") + line("n1.a:2:2 [1]") + line("n1.b:3:3 [1]")
    assert {key[0] for key in keys(text)} == {"n1", "n1.a", "n1.b"}
    assert {key[0] for key in keys(line("10.0.0.1:1:1 [0]") + line("10.0.0.2:2:2 [0]"))} == {"10.0.0.1", "10.0.0.2"}


def test_processes_whose_pids_are_cut_off_are_not_counted() -> None:
    text = "".join(
        begun(10 + rank, rank, rank).replace(f"n1:{10 + rank}:{10 + rank}", "n1:<pid>:<tid>") for rank in range(4)
    )
    assert "job: processes that cannot be distinguished (no pid), on n1, 4 of 4 ranks" in printed(text)


@pytest.mark.parametrize(
    "text",
    [
        # The main thread before it has a device, and threads that serve others.
        line("n1:77:77 [0]") + begun(77, 3, 3) + line("n1:77:99 [0]", "[Proxy Service] Device 3 CPU core 4"),
        begun(77, 3, 3) + line("n1:77:99 [0]", "misc/socket.cc:47 -> 3"),
        begun(77, 3, 3) + "n1:77:99 [0] " + SOCKET,
        begun(77, 3, 3) + "n1:77:99 [32767] " + SOCKET,
        line("n1:77:78 [3]") + line("n1:77:99 [0]", "[Service thread] Connection closed by localRank 0"),
    ],
)
def test_a_service_threads_number_is_no_gpu(text: str) -> None:
    assert gpus(text) == [{3}]
    log = job.read([text.encode()])
    assert {one.device for one in log.failures} | {call.device for p in log.processes.values() for call in p.calls} <= {
        3
    }
    assert "GPU 0" not in printed(text)


def test_a_process_with_several_gpus_has_all_of_them() -> None:
    several = "".join(begun(77, rank, rank) for rank in range(4))
    assert gpus(several) == [{0, 1, 2, 3}]
    assert gpus(several + line("n1:77:99 [0]", "[Proxy Service] x")) == [{0, 1, 2, 3}]
    assert gpus("".join(line(f"n1:77:77 [{device}]") for device in range(3))) == [{0, 1, 2}]
    assert gpus(line("n1:77:99 [0]")) == [{0}]


def test_labels_that_stick_to_a_host_are_no_part_of_it() -> None:
    for label in ("0|", "user@", "pods/", "\x1b[36m(W pid=7)\x1b[0m", "stdout>"):
        assert lines.head(f"{label}n1:7:8 [2]").host == "n1", label
    assert lines.head("<host>:7:8 [2]").host == "<host>"
