"""What nccl_log reads of long, hostile and repeated lines takes little time and memory."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    aftermath,
    job,
    jobs,
    judge,
    last_lines,
    quotes,
    results,
    signals,
    stacks,
    table_rows,
    texts,
    unread,
    unsigned,
    untold,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.matrix import Matrix
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.pairs import PAIRS
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

CONNECT = "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2"


CLOSED = "socketProgress: Connection closed by remote peer {}<40000>"


def warn(text: str, place: str = "misc/socket.cc:1", who: str = "n1:7:9 [0]") -> str:
    return f"{who} {place} NCCL WARN {text}\n"


def test_many_lost_connections_take_no_long_time() -> None:
    begun = time.monotonic()
    log = job.read([(warn(CONNECT) + warn(CLOSED.format("n1")) * 1500).encode()])
    [one] = jobs.split(log)
    assert aftermath.follows(one, one.failures[-1])
    judge.judge(log)
    assert time.monotonic() - begun < 60


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


@pytest.mark.parametrize("rest", ["1" * 60000, " " * 60000 + "x", "." * 60000, "a/" * 30000, "-> 1 via " * 8000])
def test_a_hostile_line_is_read_once(rest: str) -> None:
    begin = time.process_time()
    for head in (
        "Channel 00/0 : ",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/",
        "Channel 00 : 0 -> 1 via P2P",
        "... ",
    ):
        texts.event(head + rest)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("piece", [" ", "0 ", "Tree ", "1", "x", " |"])
def test_lines_like_a_matrix_are_read_at_once(piece: str) -> None:
    began = time.monotonic()
    for before in ("Function |", "Reduce |", ""):
        assert not Matrix().line((before + piece * 60000).encode())
        assert not Matrix().line((before + piece * 900)[:999].encode() + b"!")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("piece", ["1 ", "[a] ", "sum", "0.1 ", "a.", " float sum -1"])
def test_no_begin_of_a_row_takes_long(piece: str) -> None:
    began = time.process_time()
    text = " " + piece * (12000 // len(piece)) + "odd:1:2 [0] NCCL INFO AllReduce: opCount 0\n"
    job.read([text.encode() * 40])
    assert time.process_time() - began < 5


def test_stacks_are_bounded() -> None:
    many = stacks.Stacks()
    for number in range(1000):
        many.line(f"[{number}] frame #0: f{number}::g{'x' * 400}() + 0x1", number)
        many.line("frame #" + "1" * 60_000, number)
    assert len(many.told()) == 8
    assert max(map(len, many.told())) < 200


@pytest.mark.parametrize(
    "line", [b"1", b" ", b"(", b"[a]", b"a:", b"8 2 float ", b"8 2 float sum ", b"8 2 float sum 1 "]
)
def test_no_line_takes_long(line: bytes) -> None:
    began = time.process_time()
    table_rows.read(line + line[-1:] * 60_000)
    table_rows.read(line * (60_000 // len(line)))
    assert time.process_time() - began < 5


def test_what_is_met_again_is_counted_where_no_further_quote_is_kept() -> None:
    lines = ["ERROR: %s went wrong" % ("x" * n) for n in range(1, quotes.QUOTES + 20)]
    log = job.read(["\n".join([*lines, "ERROR: x went wrong", "w: killed by signal 9", ""]).encode()])
    assert log.quotes.left_out == 19
    assert log.quotes.all[0].count == 2
    assert log.quotes.all[-1].kind == signals.DEATH


def test_of_very_many_lines_the_last_ones_are_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOKED_AT", 3)
    read = job.read([b"a\nb\nc\n" + b"".join(b"filler %d\n" % number for number in range(600)) + b"sum = 7\n"])
    assert [(one.kind, one.text, one.order) for one in read.results.kept] == [("result", "sum = 7", 604)]


def told(*lines: str) -> list[str]:
    log = job.read(["".join(f"{line}\n" for line in lines).encode()])
    return last_lines.told(log, split(log)[0])


def test_of_one_rank_or_of_a_thousand_nothing_is_told() -> None:
    assert told("[rank0]: one", "[rank0]: two") == []
    assert told(*[f"[rank{rank}]: one" for rank in range(1000)]) == []


HEAD = "node1:300:310 [0] NCCL INFO"


def kept(*lines: str) -> list[tuple[str, int, int, bool]]:
    log = job.read(["\n".join([*lines, ""]).encode()])
    return [(one.text, one.order, one.count, one.nccl) for one in log.unread.kept]


def test_a_log_of_nothing_but_such_lines_is_counted_beyond_the_limits() -> None:
    text = unread.Unread()
    for number in range(unread.LOOKED_AT + 5):
        text.line(b"alike %d" % number, 0, number)
    assert ([one.count for one in text.kept], text.left_out) == ([unread.LOOKED_AT], 5)
    for number in range(unread.KINDS + 50):
        text.line(b"%s word" % bytes([97 + number // 26 % 26, 97 + number % 26]), 0, number)
    assert len(text.kept) == unread.KINDS


def test_hostile_lines_are_cut_and_printed_as_text() -> None:
    [(text, *_rest)] = kept("\x1b[31mred " + "x" * 5000)
    assert len(text) == unread.LONGEST
    log = job.read([b"\x1b[31mred\n" + f"{HEAD} Using network Socket\n".encode()])
    assert "\x1b" not in diagnose.render(log, split(log), judge.judge(log), 100)


def test_of_a_long_table_the_last_line_is_told() -> None:
    rows = [f"row {number} of {number / 7:.2f}" for number in range(1, 3 * unread.LOOKED_AT)]
    [table] = job.read(["\n".join([*rows, ""]).encode()]).unread.kept
    assert (table.text, table.last, table.end) == (rows[0], rows[-1], len(rows))


TITLE = "the rest of the log"


LINES = [
    "n1:10:11 [0] NCCL INFO Bootstrap : Using eth7:10.1.2.3<0>",
    "n1:10:11 [0] NCCL INFO Kernel quirk 77 taken",
    "n1:10:12 [1] NCCL INFO Kernel quirk 78 taken",
    *[
        f"[rank{rank}]:[E703 21:51:54.11{rank} ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        f" Received a dump signal due to a collective timeout from rank 7 and we will try our best to dump the debug"
        f" info. Last enqueued NCCL work: {600 + rank}, last completed NCCL work: 598."
        for rank in range(3)
    ],
    "| 512 | 128 | 4 | 0.151 | 850.01 |",
    "| 512 | 128 | 8 | 0.302 | 861.44 |",
    "all went well",
    "   [12] Timeout",
    "link 12 has no Timeout of its own in this long line",
    "[  +0.000004] pcieport 0000:00:03.0:    [13] Replayed",
    "[  +0.000009] pcieport 0000:00:03.0:   device status 00001000 of link 13",
]


def printed(lines: list[str]) -> str:
    log = job.read(["".join(f"{line}\n" for line in lines).encode()])
    return " ".join(render(log, split(log), judge.judge(log), 120).split())


def test_a_kind_stands_there_once_and_what_is_printed_not_again() -> None:
    said = printed([*LINES, *[f"n1:10:11 [0] NCCL INFO Kernel quirk {number} taken" for number in range(100, 300)]])
    rest = said.partition(TITLE)[2]
    assert (rest.count("Kernel quirk"), rest.count("Bootstrap : Using")) == (1, 0)
    assert "202 such up to line 213" in rest


def test_of_a_large_log_no_line_is_kept() -> None:
    many = [f"step {number} of something else entirely" for number in range(untold.LINES)]
    log = job.read(["".join(f"{line}\n" for line in [*LINES, *many]).encode()])
    assert log.small.kept == []
    assert TITLE not in printed([*LINES, *many])


RANKS, CHANNELS = 2 * PAIRS, 6


def lines(prefix: str) -> list[str]:
    found = []
    for rank in range(RANKS):
        head = f"{prefix}node{rank // 8}:{1000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO "
        for channel in range(CHANNELS):
            after = (rank + 1) % RANKS
            net = rank % 8 == 7
            way = "[send] via NET/IB/0/GDRDMA" if net else "via P2P/CUMEM"
            found.append(f"{head}Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {after}[{after % 8}] {way}\n")
            found.append(f"{head}Ring {channel:02d} : {(rank - 1) % RANKS} -> {rank} -> {after}\n")
    return found


@pytest.mark.parametrize("prefix", ["", "2026-11-23T04:05:06.789Z ", "[1,7]<stdout>: "])
@pytest.mark.parametrize("size", [1 << 20, 999])
def test_each_channel_counts_once_whether_it_was_parsed_or_not(
    prefix: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    take = job.Reader._info

    def noted(reader: job.Reader, line: bytes, at: int, order: int) -> None:
        parsed.append(line)
        take(reader, line, at, order)

    monkeypatch.setattr(job.Reader, "_info", noted)
    text = "".join(lines(prefix)).encode()
    log = job.read([text[at : at + size] for at in range(0, len(text), size)])
    assert log.pairs.many
    assert len(log.processes) == RANKS
    for process in log.processes.values():
        [rank] = process.connections
        [(way, channels)] = process.connections[rank].items()
        assert (way[0], channels) == ("net" if rank % 8 == 7 else "p2p", CHANNELS)
    assert log.info == len(lines(prefix))
    assert len(parsed) < len(lines(prefix)) * 0.75


def test_what_is_torn_or_has_another_line_within_is_read_as_ever() -> None:
    whole = lines("")
    torn = "node31:1255:5255 [7] NCCL INFO Channel 05/0 : 255[7] -> node0:1000:5000 [0] NCCL INFO Connected all rings\n"
    log = job.read(["".join([*whole, torn, whole[-2]]).encode()])
    last = next(process for process in log.processes.values() if process.key[1] == 1255)
    first = next(process for process in log.processes.values() if process.key[1] == 1000)
    assert list(last.connections[255].values()) == [CHANNELS + 1]
    assert first.rings == 1
