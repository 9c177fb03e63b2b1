"""Which ranks a log shows, and that it says of no rank that it did not come where lines prove no such thing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    events,
    job,
    jobs,
    judge,
    shown,
    texts,
    unsigned,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.quotes import Quote
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

TIMES = "Bootstrap timings total 0.01 (create 0.00, send 0.00, recv 0.00, ring 0.00, delay 0.00)"
CLOSED = "n1:10:110 [0] misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer n2<43210>\n"
WATCHDOG = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:6] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}"
    ", OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


def line(pid: int, text: str, host: str = "n1", device: int = 0) -> str:
    return f"{host}:{pid}:{pid + 100} [{device}] NCCL INFO {text}\n"


def begun(pid: int, rank: int, host: str = "n1", ranks: int = 4, comm: str = "abc") -> str:
    text = f"ncclCommInitRank comm 0xa{pid} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId {rank}b000"
    return line(pid, f"{text} commId 0x{comm} - Init START", host)


# Ranks 0 and 2 of four.
TWO = begun(10, 0) + begun(12, 2, "n2")


def of_ranks(text: str) -> Finding:
    return next(one for one in judge.judge(job.read([text.encode()])) if one.check == "nccl_log.ranks")


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


@pytest.mark.parametrize(
    "proof",
    [
        line(10, TIMES),
        line(12, "Connected all rings", "n2"),
        line(12, "Connected all trees", "n2"),
        line(10, "Channel 00/02 :    0   1   2   3"),
        line(10, "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1"),
        line(10, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0"),
        line(10, "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer"),
        line(10, "comm 0xa10 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0"),
        line(10, "=== System : maxBw 48.0 totalBw 48.0 ==="),
        "n1:10:110 [0] init.cc:9 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000\n",
        # Of a rank whose begin is not among the lines.
        line(13, TIMES, "n2"),
    ],
)
def test_a_line_from_behind_the_bootstrap_proves_that_all_ranks_came(proof: str) -> None:
    # These ranks would wait, did nothing else tell of the others.
    text = TWO + proof + WATCHDOG.format(0, 1)
    finding = of_ranks(text)
    assert (finding.state, finding.severity) == ("unknown", "minor")
    assert (finding.have or "").startswith("all 4 ranks took part")
    assert "did not begin" not in printed(text)
    assert "the others wait" not in printed(text)


def test_what_comes_behind_the_bootstrap_is_of_the_communicator_that_is_set_up() -> None:
    # The first one is complete, the second one hangs.
    first = TWO + (TWO + line(10, "Connected all rings")).replace("START", "COMPLETE")
    second = TWO.replace("0xabc", "0xdef").replace("comm 0xa1", "comm 0xb1")
    log = job.read([(first + second).encode()])
    assert [one.met for one in log.communicators.values()] == [True, False]
    log = job.read([(first + second + line(12, TIMES, "n2")).encode()])
    assert [one.met for one in log.communicators.values()] == [True, True]
    # Of two at once it is not told whose it is.
    log = job.read([(TWO + second + line(12, TIMES, "n2")).encode()])
    assert [one.met for one in log.communicators.values()] == [False, False]


@pytest.mark.parametrize(
    "proof",
    [
        WATCHDOG.format(0, 1),
        line(10, "Bootstrap Root : 2 of 4 ranks have checked in"),
        "n1:10:110 [0] a.cc:1 NCCL WARN socketConnect: Connect to 10.0.0.9<4> failed : Connection timed out\n",
        line(12, "Call to connect returned Connection refused, retrying (3/34)", "n2"),
    ],
)
def test_ranks_did_not_begin_where_something_waits_for_them(proof: str) -> None:
    finding = of_ranks(TWO + proof)
    assert (finding.state, finding.severity) == ("drift", "critical")
    assert (finding.have or "").startswith("ranks 1,3 of 4 did not begin here")
    assert "the others wait" in (finding.why or "")
    # Whoever quotes a log may leave out their lines.
    for left_out in ("...", "[...]", "[snip]", "<omitted>", "(repeats for ranks 1-3)", "# ... same for other ranks"):
        finding = of_ranks(begun(10, 0) + left_out + "\n" + begun(12, 2, "n2") + proof)
        assert (finding.state, finding.severity) == ("unknown", "minor"), left_out
        assert "are not in these lines" in (finding.have or ""), left_out


@pytest.mark.parametrize(
    "other",
    [
        "",
        CLOSED,
        # A later collective: the communicator has worked before.
        WATCHDOG.format(0, 7),
        line(10, "Bootstrap Root : rank 1 of 4 ranks has already checked in"),
    ],
)
def test_ranks_that_nothing_waits_for_are_but_not_in_the_log(other: str) -> None:
    finding = of_ranks(TWO + other)
    assert (finding.state, finding.severity) == ("unknown", "minor")
    assert (finding.have or "").startswith("ranks 1,3 of 4 are not in this log")
    assert "did not begin" not in printed(TWO + other)


def test_ranks_that_any_line_names_as_its_own_are_in_the_log() -> None:
    said = printed(TWO + WATCHDOG.format(1, 1) + WATCHDOG.format(3, 1))
    assert "did not begin" not in said
    assert "are not in this log" not in said
    assert "4 of 4 ranks in this log" in said
    assert "ranks 1,3 of 4 have no Init START here, and no rank has its Init COMPLETE; other lines are theirs" in said
    # One of them is not.
    finding = of_ranks(TWO + WATCHDOG.format(1, 1))
    assert (finding.have or "").startswith("rank 3 of 4 did not begin here")
    assert "rank 1 has other lines here" in (finding.have or "")
    # The launcher's prefix of a process that has nothing about its rank.
    labelled = "".join(f"[rank{n}]:{line(10 + n, 'Using network IB')}" for n in range(4))
    assert "4 of 4 ranks in this log" in printed(labelled + "[rank0]:" + begun(10, 0))
    # Labels that number nodes are no ranks.
    assert "1 of 4 ranks in this log" in printed(labelled + "[rank0]:" + begun(10, 3))


@pytest.mark.parametrize(
    "own",
    [
        line(11, "Trees [0] 2/-1/-1->1->0 [1] 2/-1/-1->1->0"),
        line(11, "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0"),
        line(11, "Rank 1: 3 Net devices"),
        line(11, "comm 0xa11 rank 1 nRanks 4 nNodes 2 localRanks 2 localRank 1 MNNVL 0"),
    ],
)
def test_ranks_whose_begin_is_cut_off_are_placed_by_their_lines(own: str) -> None:
    log = job.read([(TWO + own).encode()])
    [one] = jobs.split(log)
    assert one.world is not None
    assert {rank: process.key[1] for rank, process in one.world.began.items()} == {0: 10, 1: 11, 2: 12}
    # Of two communicators it is not told whose they are.
    other = TWO.replace("0xabc", "0xdef").replace("comm 0xa1", "comm 0xb1").replace("nranks 4", "nranks 4")
    log = job.read([(TWO + other + own).encode()])
    assert all(1 not in each.began for each in (jobs.split(log)[0].communicators))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comm 0x7 rank 1 nranks 4 - COMPLETE", events.Init("0x7", "", "", "", 1, 4, -1, "", True)),
        (
            "ncclCommInitRank comm 0x... rank 3 nRanks 8 cudaDev 3 nvmlDev 3 busId ... commId 0xab - Init START",
            events.Init("0x...", "ab", "", "", 3, 8, 3, "", False),
        ),
        ("comm 0x5 rank 0 nranks 4 cudaDev 0 busId 10 - Destroy COMPLETE", events.Gone("0x5", 0, "Destroy", 4, 0)),
        ("comm 0x5 with 8 ranks and 1 nodes", events.Shape("0x5", -1, 8, 1, 0)),
        ("comm 0x5 rank 2 nranks 8 nnodes 2", events.Shape("0x5", 2, 8, 2, 0)),
        ("comm <ptr> rank 2 nRanks 8 nNodes 2 localRanks 4 ...", events.Shape("", 2, 8, 2, 4)),
        ("nRanks 8 nNodes 2 localRanks 4 localRank 1", events.Shape("", -1, 8, 2, 4)),
        ("Comm config Blocking set to 1", None),
    ],
)
def test_odd_forms_of_communicators_are_read(text: str, said: object) -> None:
    assert texts.event(text) == said


def test_the_nodes_of_an_odd_form_are_those_of_the_communicator() -> None:
    assert "of 4 ranks: started by 0,2, Init COMPLETE of none, over 2 nodes" in printed(
        TWO + line(10, "nRanks 4 nNodes 2 localRanks 2")
    )
    # A bus id that is left out makes no two ranks share a GPU.
    short = "comm 0x... rank {} nranks 2 cudaDev 0 busId ... - Init START"
    assert "have the same GPU" not in printed(line(1, short.format(0)) + line(2, short.format(1)))


def test_a_communicator_that_ended_in_order_or_carried_a_test_had_been_completed() -> None:
    gone = line(10, "comm 0xa10 rank 0 nranks 4 cudaDev 0 busId 0b000 - Destroy COMPLETE")
    assert "[nccl_log.ranks]" not in printed(TWO + gone)
    whole = "".join(begun(10 + n, n) for n in range(4))
    assert "none has Init COMPLETE here" in printed(whole)
    assert "the others wait" not in printed(whole)
    row = "  8388608  2097152  float  sum  -1  99.1  84.6  158.7  0  98.5  85.1  159.6  0\n"
    assert "none has Init COMPLETE here" not in printed(whole + row)


@pytest.mark.parametrize(
    "text",
    [
        "comm 0x5 rank 1 nranks 8" + " -" * 30000,
        "comm " + " " * 60000,
        "comm 0x5 rank 1 nranks " + "8" * 60000,
        "with " + "1 " * 30000,
        "Bootstrap Root : " + "a" * 60000,
    ],
)
def test_hostile_lines_take_no_time(text: str) -> None:
    begin = time.perf_counter()
    texts.event(text)
    unsigned._LEFT_OUT.match(("# " + text).encode())
    assert time.perf_counter() - begin < 5


def done(pid: int, rank: int, ranks: int) -> str:
    return begun(pid, rank, ranks=ranks).replace("Init START", "Init COMPLETE")


def quiet(pids: range, first: int) -> str:
    return "".join(line(pid, "threadThresholds 8/8/64 | 64/8/64 | 512 | 512", device=pid - first) for pid in pids)


def test_processes_that_do_not_say_their_rank_are_of_the_ranks() -> None:
    # As many processes as ranks: all are here.
    said = printed(done(10, 0, 4) + quiet(range(11, 14), 10))
    assert "4 of 4 ranks in this log" in said
    assert "ranks that report it: 0; ranks 1-3 have other lines here [" in said
    assert "not in this log" not in said
    # Half of the ranks, each with a GPU of its own.
    said = printed(done(10, 0, 8) + quiet(range(11, 14), 10))
    assert "4 of 8 ranks in this log" in said
    assert "3 more processes have lines here without their rank; the lines of the others are not in this" in said
    assert "4 of 8 ranks are not in this log; which ones is unknown: 3 processes here do not report theirs" in said
    said = of_ranks(begun(10, 0, ranks=8) + quiet(range(11, 14), 10)).have or ""
    assert said.startswith(
        "4 of 8 ranks are not in this log, and no rank completed in it; which ones is unknown: 3 more"
    )
    # Processes on one GPU may be of several starts, and more processes than ranks are.
    assert "1 of 8 ranks in this log" in printed(done(10, 0, 8) + quiet(range(11, 12), 11))
    assert "1 of 4 ranks in this log" in printed(done(10, 0, 4) + quiet(range(11, 18), 10))


def test_processes_of_lines_without_a_name_are_not_counted() -> None:
    rings = "Connected all rings"
    text = done(10, 0, 2) + done(11, 1, 2) + line(10, rings) + line(11, rings)
    torn = text + f"[0] NCCL INFO {rings}\n"
    for one in (text, torn):
        assert "rings are connected (Connected all rings) on 2 of 2 processes" in printed(one)


def test_what_came_after_the_communicators_ended_is_their_end() -> None:
    text = done(10, 0, 1)
    assert "after the initialisation: collectives, their speed, the result and end of the job" in printed(text)
    said = printed(text + line(10, "comm 0xa10 rank 0 nranks 1 cudaDev 0 busId b000 - Destroy COMPLETE"))
    assert "what came before the communicators ended: collectives, their speed, the result" in said
    assert "end of the job" not in said


def quotes(text: str) -> list[tuple[Quote, bool]]:
    [one] = jobs.split(job.read([(TWO + text).encode()]))
    return shown.quoted(one, "")


def test_the_earliest_report_is_one_before_every_failure() -> None:
    later = "./run.sh: line 14: 4711 Aborted (core dumped)\n"
    dead = "python: slurmstepd: error: something is gone\n"
    assert [first for _quote, first in quotes(CLOSED + later)] == [True, False]
    # Of a failure that no quote has.
    [one] = jobs.split(job.read([(TWO + dead + later).encode()]))
    assert [first for _quote, first in shown.quoted(one, "")] == [True, False]
    failed = job.read([(CLOSED + TWO).encode()]).failures
    one = replace(one, failures=tuple(failed))
    assert [first for _quote, first in shown.quoted(one, "")] == [False, False]


def test_ranks_that_began_with_different_ids_are_of_one_job() -> None:
    ids = begun(10, 0, ranks=2, comm="abc") + begun(11, 1, ranks=2, comm="def")
    said = printed(ids)
    assert "job: NCCL's lines of 2 processes, on n1, 2 of 2 ranks in this log, 2 communicators" in said
    assert "different commIds: rank 0 with commId abc, rank 1 with commId def; they wait in" in said
    assert "not in this log" not in said
    assert "has ended another communicator" not in said
    finding = of_ranks(ids)
    assert (finding.severity, finding.state) == ("major", "unknown")
    ends = "".join(line(10 + n, f"comm 0xb rank {n} nranks 2 cudaDev 0 busId b000 - Destroy COMPLETE") for n in (0, 1))
    assert "each of these processes has ended another communicator (Destroy COMPLETE)" in printed(ends + ids)


@pytest.mark.parametrize(
    "text",
    [
        # One of them completed, a rank is in both, a rank is in none, and one process is of both.
        done(10, 0, 2) + begun(11, 1, ranks=2, comm="def"),
        begun(10, 0, ranks=2) + begun(11, 0, ranks=2, comm="def"),
        begun(10, 0, ranks=3) + begun(11, 1, ranks=3, comm="def"),
        begun(10, 0, ranks=2) + begun(10, 1, ranks=2, comm="def"),
        # Lines that come only after all have met.
        begun(10, 0, ranks=2) + line(10, TIMES) + begun(11, 1, ranks=2, comm="def"),
    ],
)
def test_communicators_that_only_look_so_are_told_as_they_are(text: str) -> None:
    assert "different commIds" not in printed(text)


def test_a_process_under_names_of_two_hosts_is_one() -> None:
    ranks = done(10, 0, 2) + done(11, 1, 2).replace("n1:", "n2:")
    other = line(10, "Using network IB", "x7") + line(11, "Using network IB", "x8")
    said = printed(other + ranks)
    assert "2 processes, on n1, n2, 2 of 2 ranks" in said
    assert "network: IB on n1, n2" in said
    assert "lines of process 10 name it on x7 and on n1" in said
    # Another pid, two hosts in one's place, and the name of a host of the job's: they stay.
    for odd in (
        line(99, "Using network IB", "x7"),
        line(10, "Using network IB", "x7") + line(11, "Using network IB", "x7"),
        line(10, "Using network IB", "n2"),
    ):
        assert "name it on" not in printed(odd + ranks)


@pytest.mark.parametrize(
    ("places", "network"),
    [
        (("transport/net_socket.cc:474 -> 6", "transport/net.cc:1298 -> 6"), "network Socket"),
        (("transport/net_ib.cc:900 -> 6", "transport/net.cc:1298 -> 6"), "network IB"),
        # NET/IB that does not start gives way; the network transport alone has not told which it was.
        (("transport/net_ib.cc:900 -> 2", "init.cc:300 -> 2"), ""),
        (("transport/net.cc:1298 -> 6",), ""),
    ],
)
def test_a_call_of_the_network_transport_proves_its_network(places: tuple[str, ...], network: str) -> None:
    said = printed(begun(10, 0) + "".join(line(10, place) for place in places))
    assert (f", {network} verdict" in said) == bool(network)
    assert ("which network is used (Using network)" in said) != bool(network)
    # A warning's place, too.
    warned = "n1:10:110 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : something odd\n"
    assert ", network IB verdict" in printed(begun(10, 0) + warned + line(10, "transport/net.cc:1298 -> 6"))


def test_ranks_of_programs_are_told_of_a_log_without_nccls_lines() -> None:
    spans = "# nThread 1 nGpus 1\n#  Rank  0 .. Rank  3 on alpha  Some GPU\n#  Rank  4 .. Rank  7 on beta  Some GPU\n"
    assert "job: nccl-tests' list has ranks 0-3 on alpha (Some GPU), ranks 4-7 on beta (Some GPU)" in printed(spans)
    assert "ranks 1-2 in lines of programs" in printed(WATCHDOG.format(1, 1) + WATCHDOG.format(2, 1))
    assert "a program's world has 16 ranks" in printed("begin [rank=0, world_size=16]\n" + line(10, "Using network IB"))
    # NCCL's own number of ranks needs no other.
    assert "a program's world" not in printed("begin [rank=0, world_size=16]\n" + TWO)
