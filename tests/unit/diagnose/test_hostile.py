# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Long, hostile and repeated lines take little time and memory."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import (
    facts,
    lines,
    log_reader,
    nccl_events,
    program_events,
)
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import screenful
from hypothesis import given
from hypothesis import strategies as st

from busbar import diagnose as command

HEAD = "n1:7:9 [0] NCCL INFO "
# Of one line, in seconds of a slow machine.
LIMIT = 1.0


def pieces(pattern: str) -> list[str]:
    """Return the literals of a pattern, without what only the pattern means."""
    plain = re.sub(r"\(\?P<\w+>|\(\?[:!=<]*|\[[^\]]*\]|\{[^}]*\}|\\.", "\0", pattern)
    return sorted({text for text in re.split(r"[\0|()*+?.^$]", plain) if len(text) > 2}, key=len)[-2:]


def rows() -> list[str]:
    found = [row.pattern for row in facts.ROWS] + [
        pattern for _name, pattern in (*nccl_events.PATTERNS, *nccl_events.OTHERS)
    ]
    return found + [pattern for _marks, _name, pattern in (*program_events.SPECIFIC, *program_events.GENERAL)]


@pytest.mark.parametrize("filling", [" ", "1", "x 1 "])
def test_no_pattern_takes_long_on_a_long_line(filling: str) -> None:
    """Each literal of each pattern, repeated, and followed by what its gaps match."""
    slow = []
    for literal in {piece for pattern in rows() for piece in pieces(pattern)}:
        for text in (literal * (lines.LONGEST // len(literal)), literal + filling * (lines.LONGEST // len(filling))):
            begin = time.process_time()
            facts.read(text)
            nccl_events.classify(text)
            program_events.classify(text, True)
            if time.process_time() - begin > LIMIT:
                slow.append(literal)
    assert slow == []


@pytest.mark.parametrize(
    "piece", ["a:", "[0] ", "1 ", "[1,0]<stdout>:", " NCCL INFO ", "(a) ", "n1:1:1 [0] NCCL WARN ", "{", "\x1b[1m"]
)
def test_no_line_takes_long(piece: str) -> None:
    begin = time.process_time()
    log = log_reader.read((piece * (60_000 // len(piece)) + "\n").encode() * 3)
    judge(log)
    assert time.process_time() - begin < 10 * LIMIT


@pytest.mark.parametrize(
    "line",
    [
        "ncclCommInitRank comm 0x1 rank 0 nranks 99999999 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5 - Init START",
        "comm 0x1 rank 99999999 nRanks 99999999 nNodes 99999999 localRanks 99999999",
        "99999 coll channels, 99999 collnet channels, 99999 nvls channels, 99999 p2p channels",
        "NET/IB : Using [9999]mlx5_0:1/IB",
    ],
)
def test_work_does_not_grow_with_a_number_in_the_log(line: str) -> None:
    tracemalloc.start()
    begin = time.process_time()
    result = judge(log_reader.read(f"{HEAD}{line}\n#  Rank  0 .. Rank  9999999 on alpha  Some GPU\n".encode()))
    report(result)
    screenful(result)
    assert time.process_time() - begin < LIMIT
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


INIT = "n%d:%d:1 [0] NCCL INFO ncclCommInitRank comm 0x%x rank %d nranks %d cudaDev 0 busId 1 commId 0x%x - Init START"
MANY = 3000


@pytest.mark.parametrize(
    "line",
    [
        lambda n: INIT % (n, n, n, n, MANY, 5),
        lambda n: INIT % (n, n, n, n, MANY, n),
        lambda n: INIT % (n, n, n, 0, 2, n),
        lambda n: INIT % (n, n, n, 0, 2, n) if n % 2 else f"n{n}:{n}:1 [0] NCCL INFO Using network IB",
        lambda n: f"n{n}:{n}:1 [0] net.cc:1 NCCL WARN NET/IB : mlx5_{n}:1 Got async event : port error",
        lambda n: f"n{n}:{n}:1 [0] net.cc:1 NCCL WARN Connection closed by remote peer n{n + 1}<40000>",
        lambda n: f"n1:1:1 [0] NCCL INFO NCCL_A{n} set by environment to {n}.",
        lambda n: f"[rank{n}]: failed (exitcode: -9) local_rank: 1 (pid: {n}) of binary: python",
    ],
)
def test_work_is_linear_in_processes_and_events(line: Callable[[int], str]) -> None:
    """Work that grows with the square of a number of processes is sixteen times as much for four times as many."""

    def cost(many: int) -> float:
        log = log_reader.read("".join(f"{line(number)}\n" for number in range(many)).encode())
        begin = time.process_time()
        result = judge(log)
        report(result)
        screenful(result)
        return time.process_time() - begin

    # Of two, since others use this machine.
    few, *costs = (cost(many) for many in (MANY // 4, MANY, MANY))
    assert min(costs) < 10 * few + 0.1


def test_what_is_stored_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.busbar.fabric.plugins.module_utils.diagnose.state.PROCESSES", 5)
    text = "".join(f"n{number}:{number}:1 [0] NCCL INFO Using network IB\n" for number in range(9))
    log = log_reader.read(text.encode())
    assert (len(log.state.processes), log.state.left_out) == (5, {"processes": 4})
    assert "nccl_log.readable" in {finding.check for finding in judge(log).bad}


def test_a_line_costs_once_for_each_form_of_it() -> None:
    text = "".join(f"step {number} ERROR of {number * 7}\n" for number in range(200))
    log = log_reader.read(("plain line 7\n" * 1000 + text).encode())
    assert log.lines == 1200
    assert log.unmatched == 1000


PIECES = [
    "n1:7:9 [0] NCCL ", "INFO ", "WARN ", "Channel 00/0 : 0[0] -> 1[0] ", "via NET/IB/0", "\n", "[rank1]: ",
    "Traceback (most recent call last):", "ValueError: x", "Last error:", " rank 1 nranks 2 ", "comm 0x1",
    "Job summary", "#0-0 (ab) MISMATCH\n", "\x00", "\u0663", "exitcode: -9", "Xid (1): 79",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_mixture_of_pieces_is_read(parts: list[str]) -> None:
    result = judge(log_reader.read("".join(parts).encode()))
    report(result)
    assert screenful(result).count("\n") < 12


def test_a_file_is_read_block_by_block(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = []

    def blocks(path: str, name: str) -> Iterator[bytes]:
        for number in range(3):
            steps.append(f"read {path} {name} {number}")
            yield b"[rank0]: step 1\n"

    monkeypatch.setattr(command, "_blocks", blocks)
    monkeypatch.setattr(log_reader.Reader, "feed", lambda _reader, block: steps.append(f"feed {len(block)}"))
    assert command.run(["a.log"], as_json=False) == 3
    assert steps == [step for number in range(3) for step in (f"read a.log a.log {number}", "feed 16")]
    assert "VERDICT" in capsys.readouterr().out
