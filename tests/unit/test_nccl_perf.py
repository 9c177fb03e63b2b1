from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import perf, perf_output, perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_output import Placement, Rank, Result
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_run import Run, Wanted
from hypothesis import given, settings
from hypothesis import strategies as st

M = 1024**2
SIZES = (1 * M, 2 * M, 4 * M)
COMMAND = ("/opt/all_reduce_perf", "-b", "1048576")
WANTED = Wanted("all_reduce", 4, ("node01", "node02"), SIZES, command=COMMAND)
NOW = 1_800_000_000.0

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


def report(**changes: Any) -> dict[str, Any]:
    """What -J writes, as data."""

    def place(size: int) -> dict[str, float]:
        return {"time": size / 4170, "alg_bw": 4.17, "bus_bw": 6.255, "nwrong": 0.0}

    rows = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": place(size),
            "in_place": place(size),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size in SIZES
    ]
    device = {"group": 0, "pid": 1, "device": 0, "device_hex": "0000:10:00", "device_info": "NVIDIA H100"}
    return {
        "version": 3,
        "start_time": "2026-11-21 00:21:52",
        "args": ["/opt/all_reduce_perf_mpi", "-J", "x"],
        "env": ["TOKEN=s3cret-s3cret"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1,
            "ngpus": 2,
            "devices": [{"rank": 0, "hostname": "node01", **device}, {"rank": 2, "hostname": "node02", **device}],
        },
        "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 6.255, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-21 00:22:01",
        **changes,
    }


# -- text ------------------------------------------------------------------------------------------------------------


def test_text_of_today() -> None:
    result = perf_output.parse_text(output())
    assert (result.collective, result.version) == ("all_reduce", "2.19.6")
    assert (result.nccl_headers, result.nccl_library) == ("2.28.9", "2.28.9")
    assert result.rank_count == 4
    assert result.ranks[3] == Rank(3, "node02", 1, "0000:11:00.0", 0)
    assert [r.size for r in result.rows] == list(SIZES)
    assert result.rows[0].out_of_place == Placement(251.46, 4.17, 6.25, 0.0)
    assert (result.rows[0].type, result.rows[0].op, result.rows[0].root) == ("float", "sum", -1)
    assert (result.out_of_bounds, result.out_of_bounds_ok, result.average_busbw) == (0, True, 129.791)
    assert (result.reduced_to, result.errors, result.usage) == (None, (), False)


def test_text_with_a_git_hash_in_the_version() -> None:
    head = VERSION.replace("2.19.6", "2.20.0 a1b2c3d")
    result = perf_output.parse_text(output(head=head))
    assert (result.version, result.nccl_library) == ("2.20.0", "2.28.9")


@pytest.mark.parametrize(
    ("columns", "middle", "op", "root"),
    [
        ("size count type time algbw busbw error time algbw busbw error", "float", None, None),
        ("size count type redop time algbw busbw error time algbw busbw error", "float sum", "sum", None),
        ("size count type root time algbw busbw error time algbw busbw error", "float 3", None, 3),
    ],
)
def test_layouts_up_to_2_11_have_an_error_and_each_their_own_columns(
    columns: str, middle: str, op: str | None, root: int | None
) -> None:
    ranks = "# Using devices\n#   Rank  0 Pid 112424 on localhost device  0 [0x0a] A100-SXM4-40GB\n"
    rows = "".join(row(size, "34.27 0.10 0.05 5e-07", "33.57 0.10 0.05 N/A", middle) for size in SIZES)
    result = perf_output.parse_text(output(rows, columns, head="", ranks=ranks))
    assert (result.version, result.collective) == (None, None)
    assert result.ranks == (Rank(0, "localhost", 0, None, None),)
    assert len(result.rows) == 3
    assert (result.rows[0].op, result.rows[0].root) == (op, root)
    assert result.rows[0].out_of_place == Placement(34.27, 0.1, 0.05, None, 5e-07)
    assert result.rows[0].in_place == Placement(33.57, 0.1, 0.05, None, None)


PER_ITERATION = " ".join(["size count type redop root"] + ["time algbw busbw #wrong i_min i_max i_p99 i_cv%"] * 2)


@pytest.mark.parametrize(
    ("columns", "figures", "end"),
    [
        (COLUMNS.replace("time", "cputime"), "T 4.17 6.25 0", ""),
        (COLUMNS + " timestamp", "T 4.17 6.25 0", "  2026-11-21 00:21:52"),
        (PER_ITERATION, "T 4.17 6.25 0 250.1 260.2 260.1 1.52", ""),
        (PER_ITERATION + " timestamp", "T 4.17 6.25 0 250.1 260.2 260.1 1.52", "  2026-11-21 00:21:52"),
    ],
)
def test_columns_are_found_by_their_header(columns: str, figures: str, end: str) -> None:
    rows = "".join(row(size, figures).rstrip("\n") + end + "\n" for size in SIZES)
    result = perf_output.parse_text(output(rows, columns))
    assert [r.size for r in result.rows] == list(SIZES)
    assert {r.out_of_place for r in result.rows} == {r.in_place for r in result.rows}
    assert result.rows[0].in_place == Placement(251.46, 4.17, 6.25, 0.0, of_cpu="cputime" in columns)


def test_every_form_of_a_figure() -> None:
    rows = row(M, "1.6e+05 6e-03 1e-02 1.2e+07", "nan inf -nan N/A")
    result = perf_output.parse_text(output(rows))
    assert result.rows[0].out_of_place == Placement(160000.0, 0.006, 0.01, 1.2e7)
    assert result.rows[0].in_place == Placement(None, None, None, None)


LOGS = [
    "node02:4012:4020 [1] NCCL INFO Channel 00/0 : 3[1] -> 0[0] via P2P/CUMEM",
    "node01:4000:4000 [0] transport/net_ib.cc:123 NCCL WARN Call to ibv_modify_qp failed",
    "[2026-11-21 00:21:52] node01:4000:4001 [-1] misc/socket.cc:12 NCCL WARN Connection refused",
    "elsewhere.example:1:2 [0] NCCL INFO Launch mode Parallel",
]


@pytest.mark.parametrize("log", LOGS)
def test_lines_of_nccl_between_rows_are_passed_over(log: str) -> None:
    rows = "".join(f"{row(size)}{log}\n" for size in SIZES)
    assert perf_output.parse_text(output(rows)) == perf_output.parse_text(output())


@pytest.mark.parametrize("root", ["-1", "0"])
@pytest.mark.parametrize("log", LOGS[:3])
@pytest.mark.parametrize("cells", range(5, 13))
def test_lines_of_nccl_inside_a_row_do_not_tear_it(log: str, cells: int, root: str) -> None:
    """The program prints a row in pieces, the log line comes between them, and the row goes on in the next line."""
    rows = ""
    for size in SIZES:
        words = row(size, middle=f"float sum {root}").split()
        rows += " ".join(words[:cells]) + log + "\n  " + " ".join(words[cells:]) + "\n"
    untouched = output("".join(row(size, middle=f"float sum {root}") for size in SIZES))
    assert perf_output.parse_text(output(rows)) == perf_output.parse_text(untouched)


def test_a_log_line_of_an_unknown_host_inside_a_row() -> None:
    rows = "".join(row(size).replace("-1", "-1" + LOGS[3] + "\n", 1) for size in SIZES)
    assert len(perf_output.parse_text(output(rows)).rows) == 3


def test_a_torn_row_is_left_out_not_guessed() -> None:
    torn = "     2097152        524288     float     sum      -1   251.59    4.17\n"
    result = perf_output.parse_text(output(row(SIZES[0]) + torn + row(SIZES[2])))
    assert [r.size for r in result.rows] == [SIZES[0], SIZES[2]]


@pytest.mark.parametrize(
    "label", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-node01-7@1,0]<stdout>: ", "0: ", "12: "]
)
def test_labels_of_a_launcher_are_taken_off(label: str) -> None:
    labelled = "".join(label + line + "\n" for line in output().splitlines())
    assert perf_output.parse_text(labelled) == perf_output.parse_text(output())


def test_several_tables_are_kept_apart_by_type_and_operation() -> None:
    rows = "".join(
        row(size, middle=f"{kind} {op} -1") for kind in ("half", "float") for op in ("sum", "max") for size in SIZES
    )
    result = perf_output.parse_text(output(rows))
    assert len(result.rows) == 12
    assert {(r.type, r.op) for r in result.rows} == {
        ("half", "sum"),
        ("half", "max"),
        ("float", "sum"),
        ("float", "max"),
    }


def test_a_reduced_maximum_is_seen() -> None:
    ranks = devices() + "#\n# Reducing maxBytes to 2097152 due to memory limitation\n"
    assert perf_output.parse_text(output(ranks=ranks)).reduced_to == 2097152


@pytest.mark.parametrize(
    "line",
    [
        "node01: Test NCCL failure common.cu:1234 'unhandled system error / Call to connect failed'",
        "node01: Test CUDA failure common.cu:291 'out of memory'",
        "node01: Test timeout (30s) common.cu:523",
        " .. node01 pid 4000: Test failure common.cu:1454",
        "# error: socket closed",
        "Invalid number of GPUs: 8 requested but only 7 were found.",
        "invalid size specified for 'minbytes'",
    ],
)
def test_failures_are_kept_as_errors(line: str) -> None:
    assert perf_output.parse_text(VERSION + line + "\n").errors == (line.strip(),)


def test_errors_are_printable_and_bounded() -> None:
    text = "".join(f"node01: Test CUDA failure {i} '\x1b[31m{'x' * 1000}'\n" for i in range(100))
    errors = perf_output.parse_text(text).errors
    assert len(errors) == 20
    assert all(len(error) <= 300 and error.isprintable() for error in errors)


def test_a_usage_text_is_no_result() -> None:
    result = perf_output.parse_text("invalid option '?'\nUSAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n")
    assert result.usage
    assert result.rows == ()


@pytest.mark.parametrize("text", ["", "\n", "hello", "# comment", "1 2 float sum -1 1 1 1 0 1 1 1 0", "\x00\x01"])
def test_text_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"no output of nccl-tests"):
        perf_output.parse_text(text)


def test_a_row_without_a_header_is_no_row() -> None:
    assert perf_output.parse_text(devices() + row(M)).rows == ()


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_json(version: int) -> None:
    result = perf_output.parse_json(json.dumps(report(version=version)))
    assert (result.collective, result.nccl_library, result.version) == ("all_reduce", "2.28.9", None)
    assert result.ranks == (Rank(0, "node01", 0, "0000:10:00.0", 0), Rank(2, "node02", 0, "0000:10:00.0", 0))
    assert result.rank_count == 4
    assert [r.size for r in result.rows] == list(SIZES)
    assert result.rows[0].root == -1
    assert result.rows[0].in_place == Placement(M / 4170, 4.17, 6.255, 0.0)
    assert (result.out_of_bounds, result.out_of_bounds_ok, result.average_busbw) == (0, True, 6.255)
    assert result.errors == ()


def test_json_oddities() -> None:
    data = report(out_of_bounds={"count": 3, "okay": "false"}, errors=["socket closed", ""])
    place = {"cpu_time": 9.5, "alg_bw": "nan", "bus_bw": 1.5, "nwrong": None}
    data["results"][0].update(out_of_place=place, in_place=None)
    data["average_bus_bandwidth"]["bandwidth"] = "nan"
    result = perf_output.parse_json(json.dumps(data))
    assert result.rows[0].out_of_place == Placement(9.5, None, 1.5, None, of_cpu=True)
    assert result.rows[0].in_place is None
    assert (result.out_of_bounds, result.out_of_bounds_ok, result.average_busbw) == (3, False, None)
    assert result.errors == ("socket closed",)


def test_a_bare_inf_is_survived() -> None:
    text = json.dumps(report()).replace("6.255", "inf").replace("4.17", "-inf").replace(", ", ",").replace(": ", ":")
    result = perf_output.parse_json(text)
    assert result.rows[0].out_of_place == Placement(M / 4170, None, None, 0.0)


def test_a_failed_run_that_was_closed_has_no_footer() -> None:
    data = report()
    for key in ("results", "out_of_bounds", "average_bus_bandwidth", "errors"):
        del data[key]
    result = perf_output.parse_json(json.dumps(data))
    assert (result.rows, result.out_of_bounds, result.out_of_bounds_ok) == ((), None, None)


def test_the_environment_is_nowhere_in_redacted_json_or_messages() -> None:
    text = json.dumps(report())
    assert "s3cret" in text
    assert "s3cret" not in perf_output.redact(text)
    assert perf_output.parse_json(perf_output.redact(text)) == perf_output.parse_json(text)
    for end in range(0, len(text), 7):
        with pytest.raises(ParseError) as caught:
            perf_output.parse_json(text[:end])
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"version": None},
        {"results": {}},
        {"results": [1]},
        {"results": [{"size": "8", "type": "float", "redop": "sum"}]},
        {"config": []},
        {"config": {"devices": [{"rank": 0}]}},
        {"out_of_bounds": {"count": "0"}},
        {"args": [1]},
    ],
)
def test_json_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ParseError):
        perf_output.parse_json(json.dumps(report(**change)))


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "[" * 100_000, '{"version": ' + "9" * 5000 + "}"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        perf_output.parse_json(text)


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


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        ("/opt/build/all_reduce_perf", "all_reduce"),
        ("alltoall_perf_mpi", "alltoall"),
        ("/x_perf/mine", None),
        ("my_perf", None),
        ("", None),
    ],
)
def test_the_collective_of_a_program(program: str, collective: str | None) -> None:
    assert perf_output.collective_of(program) == collective


def test_a_result_is_plain_data() -> None:
    data = asdict(perf_output.parse_text(output()))
    assert json.loads(json.dumps(data))["rows"][0]["out_of_place"]["busbw"] == 6.25
    assert set(data) == set(Result.__dataclass_fields__)
