"""What is read of the output of nccl-tests, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.output import Placement, Rank

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
    with_hash = perf_output.parse_text(output(head=VERSION.replace("2.19.6", "2.20.0 a1b2c3d")))
    assert (with_hash.version, with_hash.nccl_library) == ("2.20.0", "2.28.9")
    reduced = devices() + "#\n# Reducing maxBytes to 2097152 due to memory limitation\n"
    assert perf_output.parse_text(output(ranks=reduced)).reduced_to == 2097152


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
LABELS = ("[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-node01-7@1,0]<stdout>: ", "0: ", "12: ")


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


TORN = "     2097152        524288     float     sum      -1   251.59    4.17\n"
TABLES = [f"{kind} {op}" for kind in ("half", "float") for op in ("sum", "max")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A log line of an unknown host inside a row.
        (output("".join(row(size).replace("-1", f"-1{LOGS[3]}\n", 1) for size in SIZES)), ["float sum"] * 3),
        # A torn row is left out, not guessed.
        (output(row(SIZES[0]) + TORN + row(SIZES[2])), ["float sum"] * 2),
        (
            output("".join(row(size, middle=f"{table} -1") for table in TABLES for size in SIZES)),
            [table for table in TABLES for _size in SIZES],
        ),
        # A row without a header is no row.
        (devices() + row(M), []),
    ],
)
def test_rows_are_kept_apart_by_type_and_operation(text: str, expected: list[str]) -> None:
    result = perf_output.parse_text(text)
    assert [f"{r.type} {r.op}" for r in result.rows] == expected
    assert {r.size for r in result.rows} <= set(SIZES)
    assert TORN not in text or [r.size for r in result.rows] == [SIZES[0], SIZES[2]]


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
    assert (result.usage, result.rows) == (True, ())


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


OTHER_SHAPES: list[dict[str, Any]] = [
    *({"version": 4}, {"version": None}, {"results": {}}, {"results": [1]}, {"config": []}, {"args": [1]}),
    {"results": [{"size": "8", "type": "float", "redop": "sum"}]},
    {"config": {"devices": [{"rank": 0}]}},
    {"out_of_bounds": {"count": "0"}},
]


@pytest.mark.parametrize(
    "text",
    [
        '{"version": ' + "9" * 5000 + "}",
        *(json.dumps(report(**change)) for change in OTHER_SHAPES),
    ],
)
def test_json_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        perf_output.parse_json(text)
