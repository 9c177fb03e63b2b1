# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests and NCCL's RAS print for people is read, too, and no more is said than it proves."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import excerpt, job, jobs, judge, table, table_told
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def found(text: str) -> list[Finding]:
    return [one for one in judge.judge(job.read([text.encode()])) if not one.ok and one.check != "nccl_log.readable"]


def shown(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def listed(rank: int, pid: int, host: str) -> str:
    return f"#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {rank % 2:2} [0000:0{rank}:00] NVIDIA X1\n"


def row(size: int, busbw: float, wrong: int | str = 0) -> str:
    return f"{size:12} {size // 4:12}     float     sum      -1   100.0  {busbw:6.2f}  {busbw:6.2f}  {wrong:>5}" + (
        f"    99.0  {busbw:6.2f}  {busbw:6.2f}  {wrong:>5}\n"
    )


END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.5\n"


@pytest.mark.parametrize("label", ["", "0: ", " 3: ", "[1,0]<stdout>:", "[1,mpirank:0,algo-1]<stdout>:", "n7: "])
def test_the_list_and_the_table_of_nccl_tests(label: str) -> None:
    text = "".join(listed(rank, 40 + rank, f"n{rank // 2}") for rank in range(4))
    text += row(8, 0) + row(1 << 21, 6.0) + row(1 << 27, 6.4) + row(1 << 30, 6.4)
    whole = "".join(label + line + "\n" for line in (text + END).splitlines())
    said = shown(whole)
    assert "4 ranks in 4 processes on 2 hosts: n0 (2), n1 (2); NVIDIA X1" in said
    assert (
        "4 sizes up to 1 GiB; reduction sum; values of type float; at 1 GiB busbw 6.4 GB/s out of place, 6.4 in place"
        in said
    )
    assert "flat at about 6.3 GB/s from 2 MiB on" in said
    assert (
        "wrong values: 0 in these rows; it ran to its end: out of bounds values 0 OK, average over all sizes 12.5 GB/s"
        in said
    )
    assert found(whole) == []
    assert "its end (Out of bounds values, Avg bus bandwidth) is not in this log: no verdict" in shown(text)


HEADING = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
SECOND = row(1 << 20, 0.5) + row(1 << 30, 4.0) + END.replace("12.5", "2.25")


@pytest.mark.parametrize(
    "text",
    [
        row(1 << 30, 90.0) + END + HEADING + SECOND,
        row(1 << 30, 90.0) + END + SECOND,
        # The first one was ended.
        row(1 << 20, 9.0) + row(1 << 30, 90.0) + SECOND,
        row(1 << 20, 9.0) + row(1 << 30, 90.0) + "# Collective test starting: b_perf\n" + SECOND,
        row(1 << 20, 9.0) + row(1 << 30, 90.0) + "# nThread 1 nGpus 2\n" + SECOND,
    ],
)
def test_two_tests_in_one_log_are_two_tables(text: str) -> None:
    said = shown(text)
    first, second = said.split("test 2 of 2, ", 1)
    assert "busbw 90 GB/s out of place" in first.partition("test 1 of 2")[2]
    assert ("average over all sizes 12.5 GB/s" in first) == (END in text)
    assert "2 sizes up to 1 GiB" in second
    assert "busbw 4 GB/s out of place" in second
    assert "average over all sizes 2.25 GB/s" in second
    assert "at 1 GiB the tests reach 90, 4 GB/s" in second


def test_an_end_without_its_rows_is_another_test() -> None:
    said = shown(row(1 << 30, 90.0) + END + "# Out of bounds values : 0 OK\n# Avg bus bandwidth : 7.5\n")
    assert "test 2 of 2, nccl-tests: no size is in this log; it ran to its end" in said


def test_sizes_of_several_types_and_programs_that_print_mixed_are_one_table() -> None:
    types = row(1 << 20, 1.0) + row(1 << 30, 9.0)
    assert "test 1 of" not in shown(types + types.replace("float", " half") + END)
    mixed = listed(0, 40, "n1") + listed(0, 50, "n2") + types + types + END + END.replace("12.5", "7.5")
    assert "average over all sizes 12.5, 7.5 GB/s" in shown(mixed)


def test_what_a_test_was_asked_for_and_that_nothing_was_checked() -> None:
    begin = "# nThread 2 nGpus 4 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 30"
    head = "# nccl-tests version 2.99.1 nccl-headers=22605 nccl-library=22605\n# Collective test starting: a_perf\n"
    said = shown(head + begin + " validation: 0 graph: 0\n" + row(1 << 20, 1.0, "N/A") + END)
    assert "nccl-tests 2.99.1 (a_perf) was requested: sizes from 1 MiB to 1 GiB, step 2(factor), 30 iterations" in said
    assert "2 threads with 4 GPUs each, validation 0: values are not checked" in said
    assert "0 OK (which proves nothing: no value was checked)" in said
    assert "proves nothing" not in shown(row(1 << 20, 1.0) + END)


def test_a_leap_of_the_bandwidth_and_the_job_of_a_list_are_told() -> None:
    said = shown(listed(0, 41, "n3") + listed(1, 41, "n3") + row(1 << 19, 0.4) + row(1 << 20, 0.3) + row(1 << 21, 6.0))
    assert "worth a look: 0.3 GB/s at 1 MiB and 6 at 2 MiB" in said
    assert "job: 2 ranks of nccl-tests in its list, in 1 process on n3," in said
    assert "worth a look" not in shown(row(1 << 20, 1.0) + row(1 << 21, 2.0))


def test_a_table_that_still_grows_is_not_flat_and_unchecked_values_are_not_right() -> None:
    grows = row(8, 0) + row(1 << 21, 6.0) + row(1 << 27, 60) + row(1 << 30, 100)
    assert "flat" not in shown(grows)
    assert "wrong values: not checked" in shown(row(8, 1, "N/A"))
    assert "such small sizes show no bandwidth" in shown(row(8, 0))
    # A line that begins with numbers is no row.
    assert not table.Table().row(b"  12 34 files  sum -1 100.0 1.0 1.0 0")


def test_wrong_values_are_critical() -> None:
    [finding] = found(row(8, 1.0, 3) + "# Out of bounds values : 6 FAILED\n")
    assert (finding.severity, "counted 6 wrong values" in (finding.have or "")) == ("critical", True)


HEAD = """NCCL version 2.27.9 compiled with CUDA 12.9
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
GROUP = "    0         1         2         4         8         8   RUNNING  {}\n"
MISMATCH = "#0-0 (00aa00aa00aa00aa) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
WHO = "  Rank {} -- GPU 1 managed by process 4{} on node 10.0.0.{}\n"


def test_ras_tells_who_is_behind_and_who_is_ahead() -> None:
    ahead = "  6 ranks have launched up to operation 70\n  2 ranks have launched up to operation 71\n"
    [finding] = found(HEAD + GROUP.format("MISMATCH") + MISMATCH + ahead + WHO.format(2, 2, 1) + WHO.format(5, 5, 2))
    have = finding.have or ""
    assert (finding.state, finding.check) == ("unknown", "nccl_log.watchdog")
    assert "behind are the 6 ranks at 70, which RAS does not name" in have
    assert (
        "ahead, and so not shown to be at fault: rank 2 (process 42 on 10.0.0.1), rank 5 (process 45 on 10.0.0.2)"
        in have
    )
    behind = "  7 ranks have launched up to operation 71\n"
    behind += "  Rank 3 has launched up to operation 70 -- GPU 1 managed by process 43 on node 10.0.0.1\n"
    [finding] = found(HEAD + GROUP.format("MISMATCH") + MISMATCH + behind)
    assert "behind, so look there first: rank 3 (process 43 on 10.0.0.1)" in (finding.have or "")


def test_ras_tells_who_did_not_answer_and_not_that_it_is_dead() -> None:
    block = "#{} (00aa00aa00aa00aa) INCOMPLETE\n  Missing communicator data from {} rank\n"
    text = HEAD + GROUP.format("INCOMPLETE") + block.format("0-0", 1) + WHO.format(1, 7, 9) + block.format("2-0", 255)
    first, second = found(text)
    assert (
        first.state,
        "rank 1 (process 47 on 10.0.0.9); RAS does not report that they are dead" in (first.have or ""),
    ) == (
        "unknown",
        True,
    )
    assert "not plausible: the job has 8 GPUs" in (second.have or "")
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    [finding] = found(
        HEAD + GROUP.format("OK") + "\nErrors\n======\n\n" + dead + "  Process 7 on node n9 managing GPU 0\n"
    )
    assert (finding.state, "process 7 on n9" in (finding.have or "")) == ("drift", True)


def test_ras_that_says_ok_excludes_no_hang() -> None:
    assert shown(HEAD + GROUP.format("OK")).startswith("job: no line of NCCL's own log; a report of its RAS")
    assert found(HEAD + GROUP.format("OK")) == []
    assert "RAS reports OK for 8 ranks" in shown(HEAD + GROUP.format("OK"))
    assert "which excludes no hang" in shown(HEAD + GROUP.format("OK"))
    assert "NCCL 2.27.9" in shown(HEAD + GROUP.format("OK"))


def test_uppercase_words_of_other_programs_are_no_report() -> None:
    log = job.read([b"ERROR\n  something else\n# MISMATCH\n"])
    assert (log.ras.blocks, log.ras.groups) == ([], [])


def test_what_a_node_sends_of_a_log_has_the_reports_and_broken_warnings(tmp_path: Path) -> None:
    noise = "training step 17 of 100\n" * 300
    warning = "n1:7:8 [0] t.cc:1 NCCL WARN NET/IB: Got completion\nfrom peer 10.0.0.9<1> with status=IBV_WC_X(4)\n"
    mismatch = MISMATCH + "  6 ranks have launched up to operation 70\n  2 ranks have launched up to operation 71\n"
    text = noise + listed(0, 40, "n0") + row(8, 1.0) + END + noise + warning + noise + HEAD + GROUP.format("MISMATCH")
    (tmp_path / "log").write_text(text + mismatch + noise)
    kept = excerpt.read(Host("/", str(tmp_path)), "/log", 1 << 20, 1 << 20).text
    assert len(kept) < len(text) / 2
    for finding, of_kept in zip(found(text + mismatch), found(kept), strict=True):
        assert (finding.id, finding.have) == (of_kept.id, of_kept.have)
    assert table_told.told(job.read([kept.encode()]).table) == table_told.told(job.read([text.encode()]).table) != []


def test_warnings_that_follow_from_another_failure_are_told_as_such() -> None:
    text = "n1:7:8 [0] proxy.cc:15 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1\n"
    said = "= caused by a failure before it, or part of the end: not a cause"
    cause = "n1:7:8 [0] x.cc:15 NCCL WARN Cuda failure 'invalid argument'\n"
    assert said in shown(cause + text)
    assert said not in shown(cause + text.replace("[Proxy Service 1] Failed to execute operation", "odd"))


def test_programs_are_known_by_the_files_of_their_tracebacks() -> None:
    frame = '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker.py", line 3, in run\n    go()\n'
    text = "Traceback (most recent call last):\n" + frame + "RuntimeError: x\n"
    assert "files of vLLM in tracebacks" in shown(text)
    assert "in tracebacks" not in shown(text.replace("/vllm/", "/mine/"))
    # A user may be called as a program is.
    assert "in tracebacks" not in shown(text.replace("/opt/venv/lib/python3.12/site-packages/vllm/", "/home/ray/"))


def test_empty_lists_of_ras_are_told() -> None:
    table = "Job summary\n\nGroup     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    table += "    0         1        2         8       16       16   RUNNING      OK\n"
    lists = "\nErrors\n======\n\nWarnings\n========\n"
    assert "lists no error and no warning" in shown(table + lists)
    assert "lists no error and no warning" not in shown(table)
    assert "lists no error and no warning" not in shown(table + lists + "#0-0 (ab12) MISMATCH\n")
