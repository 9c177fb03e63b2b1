"""What is read of the output of nccl-tests, and judged of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import judge as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.output import Placement, Result
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import Run, Wanted
from hypothesis import given
from hypothesis import strategies as st

M = 1024**2
SIZES = (1 * M, 2 * M, 4 * M)

VERSION = (
    "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n# Collective test starting: all_reduce_perf\n"
)
PARAMETERS = (
    "# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 validation: 1\n"
)
COLUMNS = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 129.791 \n#\n"


def devices(hosts: tuple[str, ...] = ("node01", "node01", "node02", "node02")) -> str:
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on {host:>10s} device {rank % 2:2d}"
        f" [0000:{0x10 + rank % 2:02x}:00] NVIDIA H100 80GB HBM3"
        for rank, host in enumerate(hosts)
    ]
    return "# Using devices\n" + "\n".join(lines) + "\n#\n"


def row(size: int, figures: str = "T 4.17 6.25 0", in_place: str | None = None, middle: str = "float sum -1") -> str:
    """T for the time stands for what it is with that algbw."""
    halves = [words.split() for words in (figures, in_place or figures)]
    for words in halves:
        if words[0] == "T":
            words[0] = f"{size / float(words[1].replace('nan', '1')) / 1e3:.2f}"
    cells = f"{size} {size // 4} {middle} {' '.join(halves[0] + halves[1])}".split()
    return "".join(f"{cell:>12s}" for cell in cells) + "\n"


def output(
    rows: str | None = None, columns: str = COLUMNS, head: str = VERSION, ranks: str | None = None, foot: str = FOOT
) -> str:
    if rows is None:
        rows = "".join(map(row, SIZES))
    head += PARAMETERS + (devices() if ranks is None else ranks)
    return f"{head}#   out-of-place    in-place\n# {columns}\n#  (B) (elements) (us) (GB/s)\n{rows}{foot}"


# -- text ------------------------------------------------------------------------------------------------------------


LOGS = [
    "node02:4012:4020 [1] NCCL INFO Channel 00/0 : 3[1] -> 0[0] via P2P/CUMEM",
    "node01:4000:4000 [0] transport/net_ib.cc:123 NCCL WARN Call to ibv_modify_qp failed",
    "[2026-11-21 00:21:52] node01:4000:4001 [-1] misc/socket.cc:12 NCCL WARN Connection refused",
    "elsewhere.example:1:2 [0] NCCL INFO Launch mode Parallel",
]
LABELS = ("[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-node01-7@1,0]<stdout>: ", "0: ", " 12: ")


def inside_rows(log: str, cells: int, middle: str) -> str:
    """The program prints a row in pieces, the log line comes between them, and the row goes on in the next line."""
    words = [row(size, middle=middle).split() for size in SIZES]
    return "".join(f"{' '.join(one[:cells])}{log}\n  {' '.join(one[cells:])}\n" for one in words)


@pytest.mark.parametrize(
    ("text", "middle"),
    [
        *((output("".join(f"{row(size)}{log}\n" for size in SIZES)), "float sum -1") for log in LOGS),
        *(
            (output(inside_rows(log, cells, f"float sum {root}")), f"float sum {root}")
            for root in ("-1", "0")
            for log in LOGS[:3]
            for cells in range(5, 13)
        ),
        *(("".join(label + line + "\n" for line in output().splitlines()), "float sum -1") for label in LABELS),
    ],
)
def test_lines_of_nccl_between_and_inside_rows_and_labels_of_launchers_are_left_out(text: str, middle: str) -> None:
    untouched = output("".join(row(size, middle=middle) for size in SIZES))
    assert perf_output.parse_text(text) == perf_output.parse_text(untouched)


def test_errors_are_printable_and_bounded() -> None:
    text = "".join(f"node01: Test CUDA failure {i} '\x1b[31m{'x' * 1000}'\n" for i in range(100))
    errors = perf_output.parse_text(text).errors
    assert len(errors) == 20
    assert all(len(error) <= 300 and error.isprintable() for error in errors)


COMMAND = ("/opt/all_reduce_perf", "-b", "1048576")
WANTED = Wanted("all_reduce", 4, ("node01", "node02"), SIZES, command=COMMAND)
NOW = 1_800_000_000.0


# -- any text --------------------------------------------------------------------------------------------------------


def survives(parse: Any, text: str) -> None:
    with contextlib.suppress(ParseError):
        parse(text)


@given(st.data())
def test_mutations_of_good_text_are_survived_and_judged(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([output(), perf_run.record(run())]))
    start = data.draw(st.integers(0, len(source)))
    end = start + data.draw(st.integers(0, 20))
    text = source[:start] + data.draw(st.text(max_size=10)) + source[end:]
    survives(perf_output.parse_text, text)
    survives(perf_run.parse_record, text)
    changed = run(stdout=text)
    result, problem = perf.read(changed)
    perf.judge(result, WANTED, changed, NOW, problem)


# -- judgement: see the goldens, too -----------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    return replace(Run(COMMAND, 0, "", 60.0, NOW, stdout=output()), **changes)


FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("all_gather", "reduce_scatter", "alltoall", "scatter", "gather"), lambda n: (n - 1) / n),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), lambda n: 1.0),
}


def float_text(value: float) -> str:
    """As nccl-tests prints a figure: two decimals, one, none, then an exponent."""
    texts = (f"{value:.2f}", f"{value:.1f}", f"{value:.0f}")
    return next((text for text in texts if len(text) <= 7), f"{value:.1e}")


@given(
    st.sampled_from(sorted(FACTORS)),
    st.integers(2, 2048),
    st.integers(1, 1 << 36),
    st.floats(0.05, 1e8),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0.1, 0.8, 1.25, 10]),
)
def test_a_row_counts_whose_figures_are_of_one_measurement(
    collective: str, ranks: int, size: int, time: float, spoilt: int, times: float
) -> None:
    figures = [time, size / time / 1e3, size / time / 1e3 * FACTORS[collective](ranks)]
    wanted = Wanted(collective, ranks, ("node01",), (size,))

    def counts() -> bool:
        shown = [float(float_text(figure)) for figure in figures]
        place = Placement(shown[0], shown[1], shown[2], 0.0)
        one = perf_output.Row(size, "float", None, None, place, place)
        return perf.reached(Result(rows=(one,)), wanted) is not None

    assert counts()
    figures[spoilt] *= times
    # What is lost in rounding cannot be seen.
    if min(time, *figures) > 0.1:
        assert not counts()


# -- small things ----------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written() -> None:
    done = run(left_behind=(1, 2), rc=None, ending="timeout", stderr="é\n")
    assert perf_run.parse_record(perf_run.record(done)) == done
    # Up to format 3 the program's result was there as JSON, too.
    older = {**json.loads(perf_run.record(done)), "format": 3, "json": '{"version": 3}'}
    assert perf_run.parse_record(json.dumps(older)) == done
