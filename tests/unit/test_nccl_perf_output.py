"""What is read of the output of nccl-tests."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output

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
