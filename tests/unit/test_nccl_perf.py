"""What is judged of a run of nccl-tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import perf, perf_output, perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_output import Placement, Result
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_run import Run, Wanted
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_nccl_perf_output import COLUMNS, FOOT, SIZES, VERSION, M, devices, output, report, row

COMMAND = ("/opt/all_reduce_perf", "-b", "1048576")
WANTED = Wanted("all_reduce", 4, ("node01", "node02"), SIZES, command=COMMAND)
NOW = 1_800_000_000.0


# -- any text --------------------------------------------------------------------------------------------------------


def survives(parse: Any, text: str) -> None:
    with contextlib.suppress(ParseError):
        parse(text)


@settings(max_examples=60, deadline=None)
@given(st.text() | st.lists(st.sampled_from(output().split(" ") + ["\n", "NCCL INFO", "[0]"])).map(" ".join))
def test_any_text_is_a_value_or_a_parse_error(text: str) -> None:
    for parse in (perf_output.parse_text, perf_output.parse_json, perf_run.parse_record):
        survives(parse, text)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutations_of_good_text_are_survived_and_judged(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([output(), json.dumps(report()), perf_run.record(run())]))
    start = data.draw(st.integers(0, len(source)))
    end = start + data.draw(st.integers(0, 20))
    text = source[:start] + data.draw(st.text(max_size=10)) + source[end:]
    survives(perf_output.parse_text, text)
    survives(perf_output.parse_json, text)
    survives(perf_run.parse_record, text)
    changed = run(stdout=text)
    result, problem = perf.read(changed)
    perf.judge(result, WANTED, changed, NOW, problem)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda x: st.lists(x)), st.data()
)
def test_any_value_in_any_place_of_the_json_is_survived(value: Any, data: st.DataObject) -> None:
    changed: Any = report()
    place = changed
    for _ in range(data.draw(st.integers(0, 3))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        nested = [key for key in keys if isinstance(place[key], (dict, list)) and place[key]]
        if not nested:
            break
        place = place[data.draw(st.sampled_from(nested))]
    key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
    place[key] = value
    survives(perf_output.parse_json, json.dumps(changed))


# -- judgement -------------------------------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    return replace(Run(COMMAND, 0, "", 60.0, NOW, stdout=output()), **changes)


def states(wanted: Wanted = WANTED, now: float = NOW, **changes: Any) -> dict[str, str]:
    """check -> state, without the ones that are ok."""
    done = run(**changes)
    result, problem = perf.read(done)
    plan = perf.judge(result, wanted, done, now, problem)
    assert not plan.changes
    return {f.check.partition(".")[2]: f.state for f in plan.findings if not f.ok}


def test_a_good_run_is_ok_in_everything_that_was_asked() -> None:
    done = run()
    plan = perf.judge(perf_output.parse_text(done.stdout), replace(WANTED, bar_busbw=6.0), done, NOW)
    asked = ["ran", "fresh", "sizes", "ranks", "correct", "nonzero", "busbw"]
    assert [f.check for f in plan.findings] == [f"nccl_perf.{name}" for name in asked]
    assert all(f.ok for f in plan.findings)
    assert plan.findings[0].subject == "all_reduce 4 ranks 4M node01,node02"


def test_json_and_text_together_give_figures_and_every_rank() -> None:
    done = run(json=perf_output.redact(json.dumps(report())))
    result, problem = perf.read(done)
    assert result is not None
    assert problem == ""
    assert len(result.ranks) == 4
    assert result.version == "2.19.6"
    assert result.rows[0].out_of_place == Placement(M / 4170, 4.17, 6.255, 0.0)
    assert states(json=done.json) == {}


def test_json_alone_counts_a_device_for_all_of_its_process() -> None:
    assert states(json=json.dumps(report()), stdout="") == {}


def test_damaged_json_leaves_the_text() -> None:
    assert states(json="{") == {}


UNKNOWN = {"sizes": "unknown", "ranks": "unknown", "correct": "unknown", "nonzero": "unknown"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rc": None}, {"ran": "unknown"}),
        ({"rc": None, "ending": "timeout"}, {"ran": "drift"}),
        ({"rc": None, "ending": "overflow"}, {"ran": "drift"}),
        ({"rc": 3}, {"ran": "drift"}),
        ({"left_behind": (4000,)}, {"ran": "drift"}),
        ({"stdout": ""}, {"ran": "unknown", **UNKNOWN}),
        ({"stdout": "garbage"}, {"ran": "unknown", **UNKNOWN}),
        ({"rc": None, "ending": "not started: no such file", "stdout": ""}, {"ran": "unknown", **UNKNOWN}),
        ({"stdout": "USAGE: all_reduce_perf \n"}, {"ran": "drift", **UNKNOWN}),
        # The table without its foot: it broke off.
        ({"stdout": output(foot="")}, {"ran": "unknown", "correct": "unknown"}),
        (
            {"stdout": output(rows="")},
            {"ran": "unknown", "sizes": "unknown", "correct": "unknown", "nonzero": "unknown"},
        ),
        ({"stdout": output(rows=row(SIZES[0]))}, {"sizes": "drift", "nonzero": "unknown"}),
        ({"stdout": output(rows=row(SIZES[0]) + row(SIZES[2]))}, {"sizes": "drift"}),
        ({"stdout": output(ranks="")}, {"ranks": "unknown"}),
        ({"stdout": output(ranks=devices(("node01", "node01", "node02")))}, {"ranks": "drift"}),
        ({"stdout": output(ranks=devices(("node01",) * 4))}, {"ranks": "drift"}),
        ({"stdout": output(ranks=devices(("node01", "node01", "node03", "node03")))}, {"ranks": "drift"}),
        ({"stdout": output(ranks=devices().replace("Rank  3 Group  0", "Rank  3 Group  1"))}, {"ranks": "drift"}),
        ({"stdout": output(head=VERSION.replace("all_reduce", "all_gather"))}, {"ran": "drift"}),
        ({"stdout": output() + "node01: Test CUDA failure common.cu:291 'x'\n"}, {"ran": "drift"}),
    ],
)
def test_whatever_is_missing_or_wrong_is_not_ok(changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert states(**changes) == expected


@pytest.mark.parametrize(
    ("stdout", "where"), [("", "before any size was measured"), (output(rows=row(SIZES[0]), foot=""), "after %s")]
)
def test_a_hang_says_how_far_it_came_and_not_that_the_launcher_was_ended(stdout: str, where: str) -> None:
    hung = run(stdout=stdout, rc=None, ending="timeout", stderr="Per user-direction, it has been aborted.\n")
    plan = perf.judge(perf_output.parse_text(stdout) if stdout else Result(), WANTED, hung, NOW)
    [ran] = [one for one in plan.findings if one.check == "nccl_perf.ran"]
    told = where % size_text(SIZES[0]) if "%" in where else where
    assert ran.have == f"no end within {hung.limit:g} s; it was ended {told}"


def rows_with(figures: str, in_place: str | None = None) -> str:
    return row(SIZES[0]) + row(SIZES[1]) + row(SIZES[2], figures, in_place)


FAILED = FOOT.replace("0 OK", "1 FAILED")


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        (output(rows_with("T 4.17 6.25 3"), foot=FAILED), {"correct": "drift"}),
        (output(rows_with("T 4.17 6.25 0", "T 4.17 6.25 2"), foot=FOOT), {"correct": "drift"}),
        (output(foot=FAILED), {"correct": "drift"}),
        (output(rows_with("T 4.17 6.25 N/A")), {"correct": "unknown"}),
        (output(rows_with("T 4.17 6.25 0", "T 4.17 6.25 N/A")), {"correct": "unknown"}),
        (output(rows_with("T 115.2 0.00 0")), {"nonzero": "drift"}),
        (output(rows_with("T nan nan 0")), {"nonzero": "unknown"}),
        (output(rows_with("0.00 inf inf 0")), {"nonzero": "unknown"}),
    ],
)
def test_figures_that_prove_nothing(stdout: str, expected: dict[str, str]) -> None:
    assert states(stdout=stdout) == expected


def test_what_was_not_asked_has_no_finding() -> None:
    one = devices(("node01",))
    wanted = replace(WANTED, ranks=1, hosts=("node01",), check=False)
    stdout = output("".join(row(size, "T 0.1 0.00 N/A") for size in SIZES), ranks=one)
    assert states(wanted, stdout=stdout) == {}


@pytest.mark.parametrize(("collective", "busbw"), [("alltoall", "3.13"), ("sendrecv", "4.17"), ("alltoallv", "9.99")])
def test_in_place_is_never_checked_for_what_has_no_in_place(collective: str, busbw: str) -> None:
    wanted = replace(WANTED, collective=collective)
    head = VERSION.replace("all_reduce", collective)
    unchecked = "".join(row(size, f"T 4.17 {busbw} 0", f"T 4.17 {busbw} N/A") for size in SIZES)
    assert states(wanted, stdout=output(unchecked, head=head)) == {}
    unchecked = "".join(row(size, f"T 4.17 {busbw} N/A") for size in SIZES)
    assert states(wanted, stdout=output(unchecked, head=head)) == {"correct": "unknown"}


def test_an_error_column_within_its_limit_is_correct() -> None:
    columns = COLUMNS.replace("#wrong", "error").replace(" root", "")
    rows = "".join(row(size, "T 4.17 6.25 5e-07", middle="float sum") for size in SIZES)
    assert states(stdout=output(rows, columns, head="")) == {}
    assert states(stdout=output(rows, columns, head="", foot=FAILED)) == {"correct": "drift"}


def test_programs_that_ran_alone_under_a_launcher_are_found_out() -> None:
    """The signature of a build without MPI: every process is rank 0 of 1 and ends with 0."""
    alone = output("".join(row(size, "T 115.2 0.00 0") for size in SIZES), ranks=devices(("node01",)))
    done = run(stdout=alone * 4)
    result, problem = perf.read(done)
    findings = {f.check: f for f in perf.judge(result, WANTED, done, NOW, problem).findings if not f.ok}
    assert set(findings) == {"nccl_perf.ranks", "nccl_perf.nonzero"}
    assert "rank 0 is there 4 times" in str(findings["nccl_perf.ranks"].have)
    assert findings["nccl_perf.nonzero"].because == findings["nccl_perf.ranks"].id


def test_jobs_that_ran_on_each_host_by_themselves_are_found_out() -> None:
    """With several GPUs per process there is a bandwidth, and the right number of ranks and hosts in sum."""
    both = output(ranks=devices(("node01", "node01"))) + output(ranks=devices(("node02", "node02")))
    assert states(stdout=both) == {"ranks": "drift"}


def test_a_reduced_maximum_is_drift_though_all_rows_are_good() -> None:
    ranks = devices() + "# Reducing maxBytes to 2097152 due to memory limitation\n"
    assert states(stdout=output(row(SIZES[0]) + row(SIZES[1]), ranks=ranks))["sizes"] == "drift"


of_size = row


def test_sizes_may_be_rounded_down_to_whole_shares_of_16_bytes() -> None:
    wanted = replace(WANTED, collective="all_gather", sizes=(8, 1000, 10_000_063))
    head = VERSION.replace("all_reduce", "all_gather")

    def row(size: int) -> str:
        return of_size(size, "T 4.00 3.00 0" if size else "9.1 0.00 0.00 0")

    rows = row(0) + row(960) + row(10_000_000)
    assert "sizes" not in states(wanted, stdout=output(rows, head=head))
    assert states(wanted, stdout=output(row(0) + row(900) + row(10_000_000), head=head))["sizes"] == "drift"
    assert states(wanted, stdout=output(row(0) + row(10_000_000), head=head))["sizes"] == "drift"


def test_every_table_must_be_whole() -> None:
    both = "".join(row(size) for size in SIZES) + "".join(row(size, middle="half sum -1") for size in SIZES[:2])
    assert states(stdout=output(both)) == {"sizes": "drift", "nonzero": "unknown"}


@pytest.mark.parametrize(("bar", "expected"), [(6.25, {}), (6.3, {"busbw": "drift"})])
def test_the_bar_is_held_against_the_largest_size_out_of_place(bar: float, expected: dict[str, str]) -> None:
    rows = row(SIZES[0], "T 60 90.0 0") + row(SIZES[1], "T 60 90.0 0") + row(SIZES[2], "T 4.17 6.25 0", "T 60 90.0 0")
    assert states(replace(WANTED, bar_busbw=bar), stdout=output(rows)) == expected


def test_of_several_tables_the_slowest_counts() -> None:
    rows = "".join(row(size) for size in SIZES) + "".join(
        row(size, "T 2.0 3.0 0", middle="half sum -1") for size in SIZES
    )
    assert states(replace(WANTED, bar_busbw=6), stdout=output(rows)) == {"busbw": "drift"}


# The columns of alltoall_perf up to 2.8: the header names an operation, the rows have none.
OLD_ALLTOALL = "size count type redop time algbw busbw error time algbw busbw error"


def test_the_old_layout_of_alltoall_is_read_and_a_cut_one_is_not() -> None:
    wanted = replace(WANTED, collective="alltoall", bar_busbw=3)
    rows = [row(size, "T 4.17 3.13 0e+00", "T 4.17 3.13 N/A", middle="float") for size in SIZES]
    result = perf_output.parse_text(output("".join(rows), OLD_ALLTOALL, head=""))
    assert [(r.size, r.op, r.root) for r in result.rows] == [(size, None, None) for size in SIZES]
    assert result.rows[0].out_of_place == Placement(251.46, 4.17, 3.13, None, 0.0)
    assert states(wanted, stdout=output("".join(rows), OLD_ALLTOALL, head="")) == {}
    words = rows[2].split()
    for cells in range(1, len(words)):
        cut = "".join(rows[:2]) + " ".join(words[:cells]) + "\n"
        assert states(wanted, stdout=output(cut, OLD_ALLTOALL, head=""))["busbw"] == "unknown"


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


def test_figures_that_do_not_agree_are_named() -> None:
    # Rows of two runs that were mixed up, each with all of its cells.
    rows = row(SIZES[0]) + row(SIZES[1]) + row(SIZES[2], "251.46 4.17 6.25 0")
    done = run(stdout=output(rows))
    result, problem = perf.read(done)
    found = {f.check: f for f in perf.judge(result, WANTED, done, NOW, problem).findings if not f.ok}
    assert set(found) == {"nccl_perf.sizes", "nccl_perf.nonzero"}
    assert str(found["nccl_perf.sizes"].have).startswith("missing: 4M; does not count: the row of 4M, whose time")


def test_without_the_largest_size_no_bandwidth_is_known() -> None:
    wanted = replace(WANTED, bar_busbw=1)
    expected = {"sizes": "drift", "nonzero": "unknown", "busbw": "unknown"}
    assert states(wanted, stdout=output(rows=row(SIZES[0]))) == expected


@pytest.mark.parametrize(
    ("age_days", "expected"), [(0, {}), (6.9, {}), (7.1, {"fresh": "unknown"}), (-1, {"fresh": "unknown"})]
)
def test_a_stored_result_ages(age_days: float, expected: dict[str, str]) -> None:
    assert states(replace(WANTED, max_age_days=7), now=NOW + age_days * 86400) == expected


def test_a_result_of_another_command_is_not_the_one_that_was_wanted() -> None:
    assert states(command=("/opt/all_reduce_perf", "-b", "8")) == {"fresh": "unknown"}


def test_wrong_values_are_the_cause_of_their_exit_code() -> None:
    done = run(rc=7, stdout=output(foot=FAILED))
    result, problem = perf.read(done)
    findings = {f.check: f for f in perf.judge(result, WANTED, done, NOW, problem).findings if not f.ok}
    assert findings["nccl_perf.ran"].because == findings["nccl_perf.correct"].id
    assert findings["nccl_perf.correct"].because is None


def test_what_is_unknown_for_want_of_a_run_has_one_cause() -> None:
    done = run(rc=3, stdout="node01: Test NCCL failure common.cu:1 'unhandled system error'\n")
    result, problem = perf.read(done)
    ran, *rest = [f for f in perf.judge(result, WANTED, done, NOW, problem).findings if not f.ok]
    assert "exit code 3 (NCCL error): node01: Test NCCL failure" in str(ran.have)
    assert {f.because for f in rest} == {ran.id}


@pytest.mark.parametrize(
    ("rc", "version", "meaning"),
    [
        (1, "2.17.2", "wrong values"),
        (1, "2.17.3", "internal error"),
        (1, None, "wrong values"),
        (2, "2.19.6", "CUDA"),
        (3, "2.19.6", "NCCL"),
        (4, "2.19.6", "timeout"),
        (5, "2.19.6", "fewer GPUs"),
        (6, "2.17.6", "wrong values"),
        (6, "2.17.7", "invalid usage"),
        (6, None, "invalid usage, or wrong"),
        (7, "2.20.0", "wrong values"),
        (-9, None, "signal 9"),
        (139, None, "signal 11"),
        (255, None, "invalid size"),
        (42, None, "not a code"),
    ],
)
def test_exit_codes_by_release(rc: int, version: str | None, meaning: str) -> None:
    assert meaning in perf.exit_meaning(rc, version)


def test_not_run_is_unknown() -> None:
    (finding,) = perf.not_run(WANTED, "not run in check mode").findings
    assert (finding.check, finding.state, finding.have) == ("nccl_perf.ran", "unknown", "not run in check mode")


# -- small things ----------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written() -> None:
    done = run(json=json.dumps({"version": 3}), left_behind=(1, 2), rc=None, ending="timeout", stderr="é\n")
    assert perf_run.parse_record(perf_run.record(done)) == done


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}', "[" * 100_000])
def test_other_files_are_no_record(text: str) -> None:
    with pytest.raises(ParseError):
        perf_run.parse_record(text)


def test_the_sizes_of_a_run() -> None:
    assert perf_run.sizes(8, 100, 2) == (8, 16, 32, 64)
    assert perf_run.sizes(8, 8, 2) == (8,)
    for bad in ((9, 8, 2), (8, 16, 1)):
        with pytest.raises(ParseError):
            perf_run.sizes(*bad)
