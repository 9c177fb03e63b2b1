"""The table of a benchmark between nodes: what an operator reads, at any width, whatever the record holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import LeftOut, Record, Row, Scaling

from tests.unit.test_cluster_record import GIB, JOB, RECORD

NODES = ("node01", "node02")
HOST = {"ranks": 8, "devices": [f"mlx5_{i}" for i in range(8)], "without_gdr": [], "found": []}
IB = {"networks": ["IB"], "nodes": 2, "expected": 16, "proven": True, "missing": [], "gdr": True}
IB["hosts"] = {"node01": HOST, "node02": HOST}
UNPROVEN = {**IB, "proven": False, "missing": ["the log shows 8 of 16 ranks", "no version"], "gdr": None}
SMALL = Row(size=8, time_us=40.2, algbw=0.0, busbw=0.0, time_p99_us=44.0, spread=0.05, repeats=3)
GOOD = replace(JOB, hosts=NODES, latency_bar_us=47.0, rows=(SMALL, *JOB.rows), transport=IB)
SLOW = replace(
    GOOD,
    name="alltoall-1G",
    collective="alltoall",
    what="expert exchange",
    latency_bar_us=None,
    bar=48.0,
    bar_source="published",
    busbw=30.0,
    states=("unknown", "drift"),
    said="30.0 GB/s; NCCL took sockets",
    transport=UNPROVEN,
)
TWO = replace(
    RECORD,
    asked=(*NODES, "node03", "node04", "node05"),
    left_out=(LeftOut(host="node03", reason="busy: a job"), LeftOut(host="node04", reason="busy: a job")),
    jobs=(GOOD, SLOW),
    scaling=tuple(
        Scaling(collective="all_reduce", nodes=nodes, size=GIB, busbw=busbw, prediction=370.8, efficiency=busbw / 360)
        for nodes, busbw in ((1, 360.0), (2, 310.0))
    ),
)
WIDE = """\
HOSTS        COLLECTIVE  SIZE  TIME     ALGBW  BUSBW  P99     SPREAD  BAR    PREDICTION  OF BAR  RESULT
node[01-02]  all_reduce  1G    5.8 ms   186.0  349.2  5.9 ms  2.0 %   340.0  370.8       103 %   ok
                         8     40.2 us  0.0    0.0    44 us   5.0 %   47 us  -           86 %    latency
node[01-02]  alltoall    1G    5.8 ms   186.0  30.0   5.9 ms  2.0 %   48.0   370.8       62 %    drift
    message: expert exchange
    30.0 GB/s; NCCL took sockets

SCALING     SIZE  NODES  BUSBW  PREDICTION  EFFICIENCY
all_reduce  1G    1      360.0  370.8       100 %
all_reduce  1G    2      310.0  370.8       86 % (low)

bar of 1 job: derived: 0.90 of the prediction
bar of 1 job: published
measured over 2 of 5 requested hosts: node[01-02]
no figure, from no job: node05
left out: node[03-04]: busy: a job
transport: not proven: the log shows 8 of 16 ranks; no version (1 job, as alltoall-1G); proven: IB, 8 HCAs on
  each node, GDR on every connection (1 job, as all_reduce-1G)
CLUSTER BENCHMARK (simulated: no figure in it is a measurement): 1 of 2 jobs ok over 2 of 5 hosts, busbw and
  algbw in GB/s, in 10 min by mpirun 4.1.4; 1 finding"""
NARROW = """\
node[01-02]  collective all_reduce
    size 1G  time 5.8 ms  algbw 186.0
    busbw 349.2  p99 5.9 ms
    spread 2.0 %  bar 340.0
    prediction 370.8  of bar 103 %
    result ok
"""

MIDDLE = """\
HOSTS        COLLECTIVE  SIZE  TIME     ALGBW  BUSBW  BAR    OF BAR  RESULT
node[01-02]  all_reduce  1G    5.8 ms   186.0  349.2  340.0  103 %   ok
    p99 5.9 ms, spread 2.0 %, prediction 370.8
                         8     40.2 us  0.0    0.0    47 us  86 %    latency
    p99 44 us, spread 5.0 %
node[01-02]  alltoall    1G    5.8 ms   186.0  30.0   48.0   62 %    drift
    p99 5.9 ms, spread 2.0 %, prediction 370.8
    message: expert exchange
"""


def test_the_table_says_what_was_measured_over_whom_and_by_what() -> None:
    assert cluster_table.render(TWO, 110) == WIDE
    assert cluster_table.render(TWO, 80).startswith(MIDDLE)
    assert cluster_table.render(TWO, 40).startswith(NARROW)


def pairs(count: int) -> Record:
    jobs = [
        replace(GOOD, scope="pair", name=f"pair{i}", hosts=(f"n{2 * i:04}", f"n{2 * i + 1:04}"), busbw=345.0 + i % 11)
        for i in range(count)
    ]
    jobs[3] = replace(jobs[3], busbw=200.0, states=("drift",), said="200 GB/s")
    silent: dict[str, Any] = {"busbw": None, "spread": None, "rows": (), "states": ("unknown",), "said": "no end"}
    jobs[5:7] = [replace(jobs[5], **silent), replace(jobs[6], **silent)]
    return replace(RECORD, jobs=tuple(jobs), asked=tuple(h for job in jobs for h in job.hosts), left_out=(), scaling=())


def test_a_run_that_was_cut_off_shows_no_other_sizes_figures() -> None:
    cut = replace(GOOD, busbw=None, max_bytes=8 * GIB, states=("drift",), said="no end within 30 s")
    line = cluster_table.render(replace(TWO, jobs=(cut,)), 160).splitlines()[1]
    assert line.split()[:11] == ["node[01-02]", "all_reduce", "8G", *["-"] * 4, "2.0", "%", "340.0", "370.8"]


def test_pairs_of_a_few_hosts_have_columns_on_a_terminal_of_80() -> None:
    names = ("node01", "node03", "node04")
    pair = replace(GOOD, algorithm="Ring", hosts=names, busbw=None, states=("unknown",), said="no log")
    head, line, note = cluster_table.render(replace(TWO, jobs=(pair,), asked=names), 80).splitlines()[:3]
    assert head.split() == ["HOSTS", "COLLECTIVE", "SIZE", "TIME", "BUSBW", "BAR", "OF", "BAR", "RESULT"]
    assert line.startswith("node[01,03-04]  all_reduce (Ring)  1G")
    assert note.startswith("    algbw 186.0, p99 5.9 ms")


def test_hosts_that_are_alike_are_one_line() -> None:
    text = cluster_table.render(pairs(500), 120)
    assert len(text.splitlines()) < 20
    whole, notes, *bad = text.splitlines()[1:]
    assert whole.split()[:4] == ["n[0000-0999]", "all_reduce", "1G", "5.8"]
    assert whole.endswith("3 not ok")
    assert "498 of 500 jobs measured, figures are medians; lowest 200.0 on n[0006-0007], highest 355.0" in notes
    assert [line.split()[0] for line in bad[:4]] == ["n[0010-0013]", "no", "n[0006-0007]", "200"]


def test_parts_of_a_cluster_are_not_alike() -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    jobs = tuple(
        replace(GOOD, name=f"over {n}", hosts=tuple(f"n{i}" for i in range(n)), busbw=400.0 / n, latency_bar_us=None)
        for n in sizes
    )
    text = cluster_table.render(replace(TWO, jobs=jobs, asked=jobs[-1].hosts, scaling=()), 120)
    assert [line.split()[6] for line in text.splitlines()[1:7]] == [cluster_table.number(400.0 / n) for n in sizes]


def test_a_record_of_many_kinds_of_trouble_is_not_all_told() -> None:
    jobs = tuple(
        replace(SLOW, name=f"job{i}", max_bytes=GIB + i, states=("drift",), said=f"slow {i}") for i in range(100)
    )
    out = tuple(LeftOut(host=f"h{i}", reason=f"reason {i}") for i in range(60))
    text = cluster_table.render(replace(TWO, jobs=jobs, left_out=out), 120)
    assert "... and 60 more; the record has all" in text
    assert "... and 20 more reasons; the record has all" in text


@pytest.mark.parametrize("width", [1, 40, 80, 120, 200])
@pytest.mark.parametrize("text", ["\x1b[2J\x07\n", "$x$ <b>{{ 1 }}</b>", "y" * 3000, "\0", "‮x", "", " "])
def test_no_text_of_a_node_commands_the_terminal_or_leaves_the_table(text: str, width: int) -> None:
    host = {"ranks": 9, "devices": [text], "without_gdr": [text], "found": [text, text + "x"]}
    transports: list[Any] = [{"missing": [text]}, {**IB, "networks": [text], "hosts": {text: host}}]
    jobs = tuple(
        replace(GOOD, name=text or "n", hosts=(text or "n",) * 2, what=text, said=text, states=("drift",), transport=t)
        for t in transports
    )
    out = (LeftOut(host=text, reason=text),)
    scaling = (Scaling(collective=text, nodes=1 << 24, size=1),)
    record = replace(TWO, jobs=jobs, asked=(text or "n", text), left_out=out, scaling=scaling)
    shown = cluster_table.render(record, width)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert max(map(len, shown.split("\n"))) <= max(width, 40)


def test_the_way_of_the_data_is_one_line() -> None:
    idle = {**HOST, "devices": HOST["devices"][1:], "found": HOST["devices"]}  # type: ignore[index]
    ways: dict[str, Any] = {
        "proven: IB, 7 to 8 HCAs on each node, idle on node02: mlx5_0, GDR unknown": {
            **IB,
            "gdr": None,
            "hosts": {"node01": HOST, "node02": idle},
        },
        "proven: Socket, GDR not on every connection": {
            **IB,
            "networks": ["Socket"],
            "gdr": False,
        },
        "not proven: no log of NCCL's": {},
        "not proven: no reason was reported": {"proven": False},
    }
    for said, way in ways.items():
        assert cluster_table.transport(replace(TWO, jobs=(replace(GOOD, transport=way),))) == f"transport: {said}"
    assert cluster_table.transport(replace(TWO, jobs=())) == "transport: nothing went between hosts"


def test_a_job_without_a_figure_or_a_bar_is_never_ok() -> None:
    silent = replace(GOOD, busbw=None, rows=(), latency_bar_us=None)
    [line] = [line for line in cluster_table.render(replace(TWO, jobs=(silent,)), 120).splitlines() if "1G" in line][:1]
    assert line.endswith("unknown")
    barless = replace(GOOD, bar=None, latency_bar_us=None)
    assert "no bar" in cluster_table.render(replace(TWO, jobs=(barless,)), 120)
    assert "over 0 of 0 hosts" in cluster_table.render(replace(RECORD, jobs=(), asked=(), scaling=()), 120)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.0"), (0.000106, "<0.01"), (0.019, "0.019"), (3.14159, "3.14"), (365.96, "366.0")],
)
def test_figures(value: float | None, text: str) -> None:
    assert cluster_table.number(value) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (19.26, "19.3 us"),
        (999.6, "1 ms"),
        (1.234e6, "1.23 s"),
        (110e6, "110 s"),
        (6e8, "10 min"),
    ],
)
def test_durations(us: float | None, text: str) -> None:
    assert cluster_table.duration(us) == text
