# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rows of nccl-tests' table in the forms of its releases and behind launchers' labels, and what their figures show."""

from __future__ import annotations

import re
import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, table_rows
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose

HEADING = "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
ENDED = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 21.5\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(diagnose.render(log, jobs.split(log), judge.judge(log), 100).split())


def lists(hosts: int, gpus: int, gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    line = "#  Rank {0:2} Group  0 Pid {1} on  node{2} device  {3} [0x1b] {4}\n"
    return "".join(line.format(at, 700 + at // gpus, at // gpus, at % gpus, gpu) for at in range(hosts * gpus))


def rows(times: list[float], first: int = 1 << 10, factor: float = 1.0) -> str:
    """A row for each time, of sizes that double. factor: of algbw to busbw."""
    said = ""
    for at, one in enumerate(times):
        size = first << at
        alg = size / one / 1000
        half = f"{one:g} {alg:.2f} {alg * factor:.2f} 0"
        said += f" {size} {size // 4} float sum -1 {half} {half}\n"
    return said


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


def test_long_times_of_an_old_release_are_no_wrong_values() -> None:
    halves = [f"{(1 << at) / 900:.0f} 0.90 0.90 0e+00" for at in range(22, 29)]
    old = "".join(f" {1 << 22 + at} 8 float sum {half} {half}\n" for at, half in enumerate(halves))
    said = printed(HEADING + lists(1, 2, "GeForce GTX 1080") + old + ENDED)
    assert "wrong values: not counted, the largest error is 0" in said
    assert "verdict: it came to its end in order" in said
    assert "; no failure is in these lines; worth a look: busbw is 0.9 GB/s at most" in said
    assert "in one host, where P2P over PCIe 3.0 x16 brings some 10 GB/s" in said


def test_a_table_behind_two_labels_is_read_as_one() -> None:
    text = HEADING + "#\n" + lists(2, 2) + rows([20, 21, 22, 23]) + ENDED
    said = printed("".join(f"(head, rank=0, pid=3808) [1,0]<stdout>:{line}\n" for line in text.splitlines()))
    assert "job: 4 ranks of nccl-tests in its list, in 2 processes on node0, node1" in said
    assert "4 sizes up to 8 KiB" in said
    assert "lines that no rule has read" not in said


def test_the_figures_of_a_sound_table_show_its_plateau_and_no_more() -> None:
    # 20 us of latency and 200 GB/s.
    said = printed(
        HEADING + lists(2, 8) + rows([20 + (1 << 10 + at) / 200e3 for at in range(21)], factor=1.875) + ENDED
    )
    assert "by its figures: within 10 % of the best from 64 MiB on" in said
    assert "average over all sizes 21.5 GB/s, in which the small ones count as much: they pull it down" in said
    assert "the best value is good for 2 nodes with 8 such GPUs each: a GPU's share is 46.7 GB/s" in said
    assert not re.search("odd:|jumps|latency", said)


def test_middle_sizes_that_take_too_long_are_told_with_their_times() -> None:
    times = [20 + (1 << 10 + at) / 200e3 for at in range(21)]
    times[3:8] = [300, 900, 1100, 1000, 700]
    said = printed(HEADING + lists(2, 8, "NVIDIA A100-SXM4-80GB") + rows(times) + ENDED)
    assert "the time jumps from 20.0205 us at 4 KiB to 300 us at 8 KiB" in said
    assert "odd: what is between 8 KiB and 128 KiB takes longer than larger sizes do: 4 KiB 20.0205 us" in said
    assert "between 8 KiB and 128 KiB calls take 5 times and more what the latency of small sizes" in said
    # Of other GPUs nothing is known of their NICs.
    assert "the best value is good" not in said


def test_a_first_size_that_warms_up_is_not_odd() -> None:
    said = printed(HEADING + lists(1, 8) + rows([900, 20, 21, 22, 23, 24]) + ENDED)
    assert "by its figures" not in said


def test_ranks_on_one_gpu_and_a_fixed_delay_are_told() -> None:
    one = "#  Rank {0:2} Group  0 Pid {1} on  node0 device  0 [0000:{2}:00] NVIDIA A10\n"
    apart = HEADING + one.format(0, 70, "1b") + one.format(1, 71, "3c")
    times = [4000.0, 4010.0, 4020.0, 4100.0, 8000.0, 16000.0]
    shared = HEADING + one.format(0, 70, "1b") + one.format(1, 71, "1b") + rows(times, 1 << 20)
    assert "ranks 0-1 are on one GPU (0000:1b:00 of node0, or on parts of it by MIG)" in printed(shared)
    assert "are on one GPU" not in printed(apart)
    assert "up to 8 MiB a call takes about as long whatever the size, 4000 to 4100 us" in printed(shared)
    assert "whatever the size" not in printed(HEADING + rows([1000.0, 2000.0, 4000.0, 8000.0], 1 << 20))


def test_tables_of_two_collectives_are_not_compared_as_one() -> None:
    row = " 268435456 {0} float {1} {2} {3:.2f} {4:.2f} 0e+00 {2} {3:.2f} {4:.2f} 0e+00\n"
    end = "# Avg bus bandwidth    : 1\n"
    reduced = row.format(67108864, "sum", 122131, 2.2, 4.33) + end
    gathered = row.format(8388608, "", 520935, 0.52, 0.46) + end
    said = printed(reduced + gathered)
    assert "their rows differ in the reduction (sum / none) and in busbw by algbw (1.97 / 0.88)" in said
    assert "a size is 8 times that of its count of values: likely a collective over 8 ranks" in said
    assert "is 1 times" not in said
    slower = row.format(67108864, "sum", 520935, 0.52, 1.02) + end
    assert "what is different between them" in printed(reduced + slower)


@pytest.mark.parametrize(
    ("count", "host", "said"),
    [
        ("0", "41ab9", "0 in these rows"),
        ("0", "n1", "0 in these rows"),
        ("3", "n1", "3 in these rows"),
        ("12", "n1", "not checked (N/A)"),
        ("5", "41ab9", "not checked (N/A)"),
    ],
)
def test_a_count_that_sticks_to_a_hosts_name_is_read_where_it_is_sure(count: str, host: str, said: str) -> None:
    told = "{}:70:70 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}\n"
    text = " 1048576 262144 float sum -1" + told.format(host) + " 41.9 25.00 43.75 " + count + told.format(host)
    assert f"wrong values: {said}" in printed(HEADING + text + " 40.0 26.20 45.85 N/A\n")


def test_rows_do_not_override_the_sum_of_their_own_run() -> None:
    half = "41.9 25.00 43.75 "
    row = f" 1048576 262144 float sum -1 {half}{{}} {half}0\n"
    said = printed(HEADING + row.format("38") + ENDED)
    assert "nccl-tests counted" not in said
    assert "wrong values: 38 in these rows, which its own sum denies" in said
    assert "nccl-tests counted 38 wrong values" in printed(HEADING + row.format("38"))
    # What another process wrote sticks to a zero.
    assert "wrong values: 0 in these rows" in printed(HEADING + row.format("07500"))


def test_lines_of_builds_for_debugging_are_read_as_others() -> None:
    lead = "TimeTest(), common.cu:12, "
    half = "BenchTime(), common.cu:34,      {}    {}    {}      0"
    row = lead + "   {}   {}  float   none      -1" + half.format("41943", "25.60", "12.50")
    row += half.format("41943", "25.60", "13.25") + "TimeTest(), common.cu:15, \n"
    text = "".join(f"run(), common.cu:1, {line}\n" for line in (HEADING + lists(2, 2)).splitlines())
    text += "node0:700:710 [0] openPluginLib, 17 NCCL INFO Using network IB\n"
    text += "node1:701:711 [1] ncclIbInit(), 171 NCCL INFO Using network IB\n"
    text += row.format(1 << 30, 1 << 28)
    text += "".join(f"run(), common.cu:9, {line}\n" for line in ENDED.splitlines())
    said = printed(text)
    assert "NCCL's lines of 2 processes, on node0, node1" in said
    assert "list has 4 ranks in 2 processes on 2 hosts: node0 (2), node1 (2)" in said
    assert "at 1 GiB busbw 12.5 GB/s out of place, 13.25 in place" in said
    assert "out of bounds values 0 OK, average over all sizes 21.5 GB/s" in said


def test_the_row_in_which_a_log_ends_is_told() -> None:
    told = "node1:70:70 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
    text = HEADING + rows([100.0], 1 << 20) + " 2097152 524288 float sum -1" + told
    assert "the log breaks off in the row of 2 MiB; so the rest of it, the sizes up to 1 GiB and" in printed(text)
    text += "   83.8   25.03   43.80      0" + told
    assert "breaks off in the row of 2 MiB, of which 43.8 GB/s out of place is there; so the rest" in printed(text)
    assert "breaks off" not in printed(text + "   83.8   25.03   43.80      0\n")
    assert "breaks off" not in printed(text + ENDED)
