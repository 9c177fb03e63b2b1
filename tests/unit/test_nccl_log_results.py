# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What programs report of their own work: speed, results, progress and success, each kind of line once."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, results
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

HEAD = "n1:7:8 [0] NCCL INFO"
DONE = f"{HEAD} comm 0xa rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("halo exchange: 12.5 GB/s", results.SPEED),
        ("rank 3: measured 98.1 Gb/s each way", results.SPEED),
        ("{'eval_samples_per_second': 17.5, 'epoch': 1.0}", results.SPEED),
        ("throughput (both ways): 81", results.SPEED),
        ("trained at 5.1k tokens/s", results.SPEED),
        ("sum = 42.0", results.RESULT),
        ("all ranks: result: tensor([1., 2.])", results.RESULT),
        ("gathered=[0, 1, 2]", results.RESULT),
        ("iter 17 grad norm 0.5", results.PROGRESS),
        ("epoch: 3, loss: nan", results.PROGRESS),
        ("***** Running training *****", results.PROGRESS),
        ("the model has 1,200,000 parameters", results.PROGRESS),
        ("[2] barrier OK", results.SUCCESS),
        ("all 8 checks passed", results.SUCCESS),
        ("weights saved to /data/x", results.SUCCESS),
        ("elapsed: 12.5 s", results.TIME),
        ("each round took 31 ms", results.TIME),
        ("selftest: PASS", results.SUCCESS),
        # What reports nothing.
        ("a scheduler was passed to the trainer", ""),
        ("backward pass", ""),
        ("as you have completed no step, nothing is written", ""),
        ("when finished, press return", ""),
        ("2 of 8 checks not passed", ""),
        ("$ python bench.py --loss=1 --steps 4", ""),
        ("# about 12.5 GB/s on this link", ""),
        ("time: 2030-01-01 10:00:00", ""),
        ("loading libraries", ""),
        ("[rank0]: last completed work 4, timeout 600000", ""),
        ("last enqueued NCCL work: 5, last completed NCCL work: 4.", ""),
        ("rank 2: barrier finished with timeout", ""),
        ("completed with errors", ""),
        ("12 requests completed, 3 ValueErrors", ""),
        ("Finished: job crashed", ""),
        ("exit status ok: killed", ""),
        ("completed with 0 errors", results.SUCCESS),
        # No counts of anything.
        ("completed work: 18446744073709551615", ""),
        ("step 99999999999999999999 done", ""),
        ("epoch 3, loss: 0.1234567890123456789", results.PROGRESS),
    ],
)
def test_kinds(line: str, kind: str) -> None:
    assert results.classify(line) == kind
    assert (f"the program reports ({kind}, line 2): {line}" in printed(f"{DONE}{line}\n")) is bool(kind)


def test_what_came_after_the_start_is_missed_only_where_nothing_came() -> None:
    missing = "what came after the initialisation"
    assert missing in printed(DONE)
    assert missing in printed(f"{DONE}loading libraries\n")
    assert missing not in printed(f"{DONE}step 3 loss 2.0\n")


def test_a_kind_is_told_once_with_its_last_line() -> None:
    text = "".join(f"step {number} loss {9 - number}.5\n" for number in range(1, 6))
    assert "step 1 loss 8.5; 5 lines are alike, the last (line 5): step 5 loss 4.5" in printed(text + DONE)


def test_of_very_many_lines_the_last_ones_are_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOKED_AT", 3)
    read = job.read([b"a\nb\nc\n" + b"".join(b"filler %d\n" % number for number in range(600)) + b"sum = 7\n"])
    assert [(one.kind, one.text, one.order) for one in read.results.kept] == [("result", "sum = 7", 604)]


def test_a_table_of_which_columns_were_left_out_is_read_by_its_heading() -> None:
    text = "#   size   time  algbw  busbw  #wrong\n  1048576  50.0  20.97  39.32  0\n 2097152  90.0 23.30 43.69 4\n"
    table = job.read([text.encode()]).table
    assert [(row.size, row.out, row.inside, row.time) for row in table.rows] == [
        (1048576, 39.32, None, 50.0),
        (2097152, 43.69, None, 90.0),
    ]
    assert (table.wrong, table.last.unchecked) == (4, 0)
    assert job.read([text.partition("\n")[2].encode()]).table.rows == []


def test_the_first_error_is_missed_only_where_nothing_may_be_it() -> None:
    wait = (
        "[rank1]:[E1 00:00:00 x.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds before timing out.\n"
    )
    assert "which rank or transfer did not come, and what stopped it" in printed(wait)
    full = printed("writer: [Errno 28] No space left on device\n" + wait)
    assert "what stopped it" not in full
    assert "the first error itself" not in full


def test_a_log_of_nothing_but_a_programs_work_is_no_major_finding() -> None:
    assert [one.severity for one in judge.judge(job.read([b"sum = 7\n"]))] == ["minor"]


def test_the_torn_end_of_an_initialisation_is_of_another_communicator_and_no_result_of_a_programs() -> None:
    head = "n1:7:8 [0] NCCL INFO "
    begun = head + "ncclCommInitRank comm 0xa1 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0xb2 - Init START\n"
    said = printed("(worker) dev 3 busId 9000 commId 0xc3 - Init COMPLETE\n" + begun)
    assert "whose beginning is here was completed: lines with a cut beginning report it of others, c3 (line 1)" in said
    assert "the program reports" not in said
    assert "that a communicator was completed (Init COMPLETE)" in printed(begun)


def test_a_long_line_is_not_told_as_if_it_were_whole() -> None:
    said = printed(f"{DONE}all checks passed {'x' * 400}\n")
    assert "xxx ... " in said
    kept = job.read([f"{DONE}{HEAD} some words of {'y' * 400}\n".encode()]).unread.kept
    assert [one.text.endswith("yyy ...") and len(one.text) == 300 for one in kept] == [True]
    note = f"{HEAD} NET/IB: mlx5_0: {'z ' * 20}permanently failed\n{HEAD} HINT: {'w' * 400}\n"
    assert "NCCL's own hint" in printed(note)
    assert "www" in printed(note)


def test_a_time_before_what_a_line_says_is_no_part_of_the_verdict() -> None:
    said = "RuntimeError: NCCL error in: x.cpp:1, unhandled system error"
    for before in (
        "2025-01-02T10:00:00.123Z ",
        "2025-01-02T10:00:00.123456Z stdout F ",
        "[2025-01-02 10:00:00] ",
        "2025-01-02 10:00:00,123 - ",
        "Jan 02 10:00:00 ",
    ):
        assert f"verdict: {said}" in printed(f"{before}{said}\n")


WARN = "n1:7:8 [2] misc/x.cc:50 NCCL WARN something odd happened here\n"
START = f"{HEAD} comm 0xa rank 0 nranks 2 cudaDev 0 busId 1b000 - Init START\n"


@pytest.mark.parametrize("behind", [START + DONE, "step 5 loss 0.5\n", "all 8 checks passed\n"])
def test_a_warning_that_no_rule_knows_is_minor_where_the_job_went_on(behind: str) -> None:
    for text, severity in ((WARN + behind, "minor"), (behind + WARN, "major"), (WARN + behind + WARN, "major")):
        found = {one.check: one for one in judge.judge(job.read([text.encode()]))}
        assert found["nccl_log.warning"].severity == severity
        if "nccl_log.level" in found and "warnings only" in (found["nccl_log.level"].have or ""):
            assert found["nccl_log.level"].severity == severity
    # A process that was killed later proves the other.
    killed = {one.check: one for one in judge.judge(job.read([f"{WARN}{behind}Segmentation fault\n".encode()]))}
    assert killed["nccl_log.warning"].severity == "major"


def test_a_warning_of_a_thread_is_of_its_rank_alone() -> None:
    comm = "comm 0x{0} rank {0} nranks 4 cudaDev {0} busId {0}000 commId 0x1 - Init START"
    text = "".join(f"n1:7:1{rank} [{rank}] NCCL INFO {comm.format(rank)}\n" for rank in range(4))
    for rank in range(4):
        have = {one.check: one for one in judge.judge(job.read([(text + WARN.replace("[2]", f"[{rank}]")).encode()]))}
        assert f"on rank {rank} (n1:7), GPU {rank}" in (have["nccl_log.warning"].have or "")
    # Of two communicators with ranks of their own it is not told.
    other = text + text.replace("0x1 -", "0x2 -").replace("comm 0x", "comm 0xb")
    have = {one.check: one for one in judge.judge(job.read([(other + WARN).encode()]))}
    assert "ranks 0-3 (n1:7)" in (have["nccl_log.warning"].have or "")


def test_a_row_with_a_figure_in_powers_of_ten_is_whole() -> None:
    text = " 134217728  33554432  float  sum  -1  176.33  761.18  1.50  0  0.10  1e+06  2.5e+01  0\n"
    row = job.read([text.encode()]).table.rows[0]
    assert (row.out, row.inside) == (1.5, 25.0)
    # No figure is without an end.
    assert not job.read([text.replace("1.50", "1e+999").encode()]).table.rows


def test_channels_of_a_choice_are_those_of_all_its_calls() -> None:
    line = "n1:7:7 [0] NCCL INFO Broadcast: {} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{}}}\n"
    said = job.read([(line.format(1024, 0) + line.format(16384, 1) + line.format(2048, 0)).encode()]).trace
    assert "channels 0 to 1" in " ".join(said.choices())


def test_the_range_of_what_lines_measure_is_told_and_rounds_that_warm_up() -> None:
    line = "rate: {} images/s, batch 16\n"
    said = printed("".join(map(line.format, ("1,950.5", "1915", "2053", "1996"))) + DONE)
    assert "(line 4): rate: 1996 images/s, batch 16; between 1915 and 2053" in said
    said = printed("".join(line.format(one) for one in (31.5, 54.25, *(84 + at % 3 / 10 for at in range(12)))) + DONE)
    assert "; the first 2 are between 31.5 and 54.25, all behind them between 84 and 84.2: as where the first" in said
    # Neither where one value comes again and again, nor of the number of a step.
    assert "; between" not in printed(line.format(7) * 9 + DONE)
    assert "; between" not in printed("".join(f"step {at} loss 2.5\n" for at in range(9)) + DONE)
