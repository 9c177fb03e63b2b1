# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Several runs of nccl-tests in one log, and rows that stick to lines of NCCL's."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def run(size: int, pid: int, *more: str) -> str:
    """The begin of a program over two hosts, and what follows it."""
    text = (
        f"# nThread 1 nGpus 1 minBytes {size} maxBytes {size} step: 2(factor) warmup iters: 0 iters: 1 validation: 1\n"
    )
    text += "# Using devices\n"
    for rank in (0, 1):
        text += f"#   Rank {rank} Pid {pid + rank} on  odd-{rank} device  0 [0x10] NVIDIA Odd\n"
    return text + "".join(more)


HEADING = "#\n#       size         count    type   redop     time   algbw   busbw  error\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.5\n#\n"
ROW = "     2048           512   float     sum    12.5    0.16    0.16  1e-07    12.5    0.16    0.16  1e-07\n"
STOP = "[mpiexec@odd-0] Sending Ctrl-C to processes as requested\n[mpiexec@odd-0] Press Ctrl-C again to force abort\n"


def call(pid: int, rank: int, begin: str = "") -> str:
    text = f"odd-{rank}:{pid + rank}:99 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f00 recvbuff 0x7f10 count 512"
    return f"{begin}{text} datatype 7 op 0 root 0 comm 0x5{rank} [nranks=2] stream 0x6\n"


def test_each_run_is_told_by_itself_and_how_it_ended() -> None:
    begun = HEADING + call(70, 0, "     8192          2048   float     sum") + call(70, 1)
    said = printed(run(2048, 50, HEADING, ROW, END) + run(4096, 60, STOP) + run(8192, 70, begun, STOP))
    assert "test 1 of 3, nccl-tests: 1 size up to 2 KiB" in said
    assert (
        "test 2 of 3, nccl-tests: neither a row nor an end of it is here: the last that it printed is its list of"
        " ranks; no call of it is in NCCL's trace; it was ended on request (line 15)"
    ) in said
    assert (
        "test 3 of 3, nccl-tests: neither a row nor an end of it is here: its row of 8 KiB was started; its ranks"
        " called 2 AllReduce (NCCL's trace, 2 of 2 ranks), and no line shows whether these ended; it was ended on"
        " request (line 25); whether it hung before that is unknown"
    ) in said
    assert "verdict: the job was ended on request: [mpiexec@odd-0] Sending Ctrl-C to processes as requested" in said
    assert "of 3 tests it stopped number 2 (4 KiB) (line 15) and 3 (8 KiB) (line 25)" in said


def test_a_run_that_ended_is_not_stopped_by_what_comes_after_it() -> None:
    said = printed(run(2048, 50, HEADING, ROW, END) + STOP)
    assert "it stopped nccl-tests" not in said
    assert "it ran to its end" in said


def test_programs_that_print_at_one_time_are_not_told_as_runs_one_after_the_other() -> None:
    each = [run(2048, pid).splitlines(True) for pid in (50, 60)]
    alone = [[line for line in lines if "Rank 1" not in line] for lines in each]
    mixed = "".join(line for pair in zip(*alone, strict=True) for line in pair)
    assert "test 1 of 2" not in printed(mixed)


@pytest.mark.parametrize(
    ("begin", "halves"),
    [
        ("     2048           512   float     sum", ["    12.5    0.16    0.16  1e-07\n"]),
        ("[odd]:   2048           512   float     sum      -1", ["    12.5    0.16    0.16      0\n"]),
        (
            "[odd]:   2048           512   float    none      -1",
            ["    12.5    0.16    0.16      0", "    9    0.2    0.2  N/A\n"],
        ),
    ],
)
def test_a_row_that_sticks_to_lines_of_nccls_is_read_and_names_no_host(begin: str, halves: list[str]) -> None:
    text = HEADING + call(50, 0, begin) + call(50, 1)
    text += "".join(half if half.endswith("\n") else call(50, 1, half) for half in halves)
    said = printed(run(2048, 50, text))
    assert "1 size up to 2 KiB" in said
    assert (
        "at 2 KiB busbw 0.16 GB/s out of place, %s" % ("0.2 in place" if len(halves) > 1 else "in place is not") in said
    )
    assert "on odd-0, odd-1," in said


@pytest.mark.parametrize("piece", ["1 ", "[a] ", "sum", "0.1 ", "a.", " float sum -1"])
def test_no_begin_of_a_row_takes_long(piece: str) -> None:
    began = time.process_time()
    text = " " + piece * (12000 // len(piece)) + "odd:1:2 [0] NCCL INFO AllReduce: opCount 0\n"
    job.read([text.encode() * 40])
    assert time.process_time() - began < 5
