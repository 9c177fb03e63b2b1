# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rows of nccl-tests' table in the forms of its releases and behind launchers' labels, and what their figures show."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import table_rows


@pytest.mark.parametrize(
    ("line", "want"),
    [
        # Old releases: no root, an error in the place of counts; times of any width.
        (" 33554432 8 float sum 1234.5 27.18 27.18 1e-06 1200.0 27.96 27.96 1e-06", (27.18, 27.96, 1234.5, b"1e-06")),
        (" 33554432 8 float sum 41943 0.80 0.80 0e+00 40000 0.84 0.84 0e+00", (0.8, 0.84, 41943.0, b"0e+00")),
        (" 33554432 8 float sum 41943 0.80 0.80 0e+00", (0.8, None, 41943.0, b"0e+00")),
        (" 4294967296 10 float sum 1.2e+07 0.36 0.36 0e+00 12000000 0.36 0.36 0e+00", (0.36, 0.36, 1.2e7, b"0e+00")),
        (" 8 2 float sum 25 0.00 0.00 0e+00 26 0.00 0.00 0e+00", (0.0, 0.0, 25.0, b"0e+00")),
        # No reduction, with and without a root.
        (" 33554432 8 float 41943 0.80 0.75 0e+00 40000 0.84 0.79 0e+00", (0.75, 0.79, 41943.0, b"0e+00")),
        (" 33554432 8 float 3 41943 0.80 0.75 0e+00 40000 0.84 0.79 0e+00", (0.75, 0.79, 41943.0, b"0e+00")),
        (" 33554432 8 float 0 419.4 80.00 75.00 0e+00", (75.0, None, 419.4, b"0e+00")),
        # New ones: root, counts, N/A; a figure more behind them.
        (" 33554432 8 float sum -1 41943 0.80 1.50 0 40000 0.84 1.57 N/A", (1.5, 1.57, 41943.0, b"0")),
        (" 33554432 8 float sum 2 41943 0.80 1.50 7 40000 0.84 1.57 0 2031-01-01 10:00:00", (1.5, 1.57, 41943.0, b"7")),
        # Cut off behind the time of the second half.
        (" 33554432 8 float sum 41943 0.80 0.75 0e+00 40000", (0.75, None, 41943.0, b"0e+00")),
        # Behind labels of two launchers.
        ("(head, rank=0, pid=4) [1,0]<stdout>: 33554432 8 float none -1 41943 0.80 1.50 0", (1.5, None, 41943.0, b"0")),
    ],
)
def test_a_row_is_read_by_its_own_figures(line: str, want: tuple[float, float | None, float, bytes]) -> None:
    read = table_rows.read(line.encode())
    assert read is not None
    assert (read.row.out, read.row.inside, read.row.time, read.wrong[0]) == want


@pytest.mark.parametrize(
    "line", [b"1", b" ", b"(", b"[a]", b"a:", b"8 2 float ", b"8 2 float sum ", b"8 2 float sum 1 "]
)
def test_no_line_takes_long(line: bytes) -> None:
    began = time.process_time()
    table_rows.read(line + line[-1:] * 60_000)
    table_rows.read(line * (60_000 // len(line)))
    assert time.process_time() - began < 5
