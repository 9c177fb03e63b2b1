"""The table of a benchmark between nodes: what an operator reads, at any width, whatever the record holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record, cluster_table

from tests import goldens
from tests.unit.sample_cluster_record import GIB, JOB, RECORD

NODES = ("node01", "node02")
HOST = {"ranks": 8, "devices": [f"mlx5_{i}" for i in range(8)], "without_gdr": [], "found": []}
IB = {"networks": ["IB"], "nodes": 2, "expected": 16, "proven": True, "missing": [], "gdr": True}
IB["hosts"] = {"node01": HOST, "node02": HOST}
UNPROVEN = {**IB, "proven": False, "missing": ["the log shows 8 of 16 ranks", "no version"], "gdr": None}
SMALL = cluster_record.Row(size=8, time_us=40.2, algbw=0.0, busbw=0.0, time_p99_us=44.0, spread=0.05, repeats=3)
GOOD = replace(JOB, hosts=NODES, latency_bar_us=47.0, rows=(SMALL, *JOB.rows), transport=IB)
EXCHANGE = replace(GOOD, name="alltoall-1G", collective="alltoall", what="expert exchange", latency_bar_us=None)
MISSED: dict[str, Any] = {"busbw": 30.0, "states": ("unknown", "drift"), "said": "30.0 GB/s; NCCL took sockets"}
SLOW = replace(EXCHANGE, bar=48.0, bar_source="published", transport=UNPROVEN, **MISSED)
BUSY = tuple(cluster_record.LeftOut(host=host, reason="busy: a job") for host in ("node03", "node04"))
SCALING = tuple(
    replace(RECORD.scaling[0], nodes=nodes, busbw=busbw, efficiency=busbw / 360)
    for nodes, busbw in ((1, 360.0), (2, 310.0))
)
TWO = replace(RECORD, asked=(*NODES, "node03", "node04", "node05"), left_out=BUSY, jobs=(GOOD, SLOW), scaling=SCALING)


@pytest.mark.golden
def test_a_narrower_terminal_has_fewer_columns_and_then_none() -> None:
    """At 60 and 120: test_records_golden.py."""
    silent = replace(GOOD, busbw=None, rows=(), latency_bar_us=None)
    names = ("node01", "node03", "node04")
    shown = {
        "two jobs": (TWO, 80),
        "two jobs, narrow": (TWO, 40),
        "cut off before its last size": (of(replace(GOOD, busbw=None, max_bytes=8 * GIB, states=("drift",))), 160),
        "a ring of three": (of(replace(GOOD, algorithm="Ring", hosts=names, busbw=None, states=("unknown",))), 80),
        "no figure": (of(silent), 120),
        "only its smallest size": (of(replace(GOOD, rows=(SMALL,), min_bytes=8, max_bytes=8)), 120),
        "no bar": (of(replace(GOOD, bar=None, latency_bar_us=None)), 120),
        "nothing": (replace(RECORD, jobs=(), asked=(), scaling=()), 120),
        "500 pairs": (pairs(500), 120),
        "parts of a cluster": (parts(), 120),
    }
    texts = [f"== {name}\n{cluster_table.render(record, width)}\n" for name, (record, width) in shown.items()]
    goldens.text("cluster_table", "".join(texts))


def of(job: cluster_record.Job) -> cluster_record.Record:
    """A record without scaling, of one job."""
    return replace(TWO, jobs=(job,), asked=job.hosts, left_out=(), scaling=())


def pairs(count: int) -> cluster_record.Record:
    jobs = [
        replace(GOOD, scope="pair", name=f"pair{i}", hosts=(f"n{2 * i:04}", f"n{2 * i + 1:04}"), busbw=345.0 + i % 11)
        for i in range(count)
    ]
    jobs[3] = replace(jobs[3], busbw=200.0, states=("drift",), said="200 GB/s")
    silent: dict[str, Any] = {"busbw": None, "spread": None, "rows": (), "states": ("unknown",), "said": "no end"}
    jobs[5:7] = [replace(jobs[5], **silent), replace(jobs[6], **silent)]
    return replace(RECORD, jobs=tuple(jobs), asked=tuple(h for job in jobs for h in job.hosts), left_out=(), scaling=())


def parts() -> cluster_record.Record:
    """They are not alike, so each is a line."""
    jobs = [
        replace(GOOD, name=f"over {n}", hosts=tuple(f"n{i}" for i in range(n)), busbw=400.0 / n, latency_bar_us=None)
        for n in (1, 2, 4, 8, 16, 32)
    ]
    return replace(TWO, jobs=tuple(jobs), asked=jobs[-1].hosts, left_out=(), scaling=())


def test_a_record_of_many_kinds_of_trouble_is_not_all_told() -> None:
    jobs = tuple(
        replace(SLOW, name=f"job{i}", max_bytes=GIB + i, states=("drift",), said=f"slow {i}") for i in range(100)
    )
    out = tuple(cluster_record.LeftOut(host=f"h{i}", reason=f"reason {i}") for i in range(60))
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
    out = (cluster_record.LeftOut(host=text, reason=text),)
    scaling = (cluster_record.Scaling(collective=text, nodes=1 << 24, size=1),)
    record = replace(TWO, jobs=jobs, asked=(text or "n", text), left_out=out, scaling=scaling)
    shown = cluster_table.render(record, width)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert max(map(len, shown.split("\n"))) <= max(width, 40)


IDLE = {**HOST, "devices": HOST["devices"][1:], "found": HOST["devices"]}  # type: ignore[index]
OF_TWO_HOSTS = {**IB, "gdr": None, "hosts": {"node01": HOST, "node02": IDLE}}
NO_LOG: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (OF_TWO_HOSTS, "proven: IB, 7 to 8 HCAs on each node, GDR unknown"),
        ({**IB, "networks": ["Socket"], "gdr": False}, "proven: Socket, GDR not on every connection"),
        (NO_LOG, "not proven: no log of NCCL's"),
        ({"proven": False}, "not proven: no reason was reported"),
        (None, "nothing went between hosts"),
    ],
)
def test_the_way_of_the_data_is_one_line(way: dict[str, Any] | None, said: str) -> None:
    jobs = () if way is None else (replace(GOOD, transport=way),)
    assert cluster_table.transport(replace(TWO, jobs=jobs)) == f"transport: {said}"


FIGURES = {None: "-", 0.0: "0.0", 0.000106: "<0.01", 0.019: "0.019", 3.14159: "3.14", 365.96: "366.0"}
SECONDS = {None: "-", 0.0: "0 us", 19.26: "19.3 us", 999.6: "1 ms", 1.234e6: "1.23 s", 110e6: "110 s", 6e8: "10 min"}


def test_figures_and_durations() -> None:
    assert {value: cluster_table.number(value) for value in FIGURES} == FIGURES
    assert {us: cluster_table.duration(us) for us in SECONDS} == SECONDS
