"""The pictures of a benchmark: they hold what was measured, say what is simulated, and take any name as a text."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_plot
from ansible_collections.busbar.fabric.plugins.plugin_utils.benchmark_results import of_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import Record, Row

from tests.campaigns import RUN
from tests.unit.sample_cluster_record import JOB, RECORD

NODES = tuple(f"n{number}" for number in range(40))
PAIRS = tuple(
    replace(JOB, name=f"pair{i}", scope="pair", hosts=NODES[2 * i : 2 * i + 2], busbw=340.0 - i) for i in range(20)
)


def texts(path: Path) -> list[str]:
    """Every text of an SVG."""
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]


def plot(folder: Path, record: Record) -> tuple[list[Path], str]:
    return busbw_plot.plot_results(folder, of_record(record, ""), "title")


def test_a_record_has_the_same_plot_each_time(tmp_path: Path) -> None:
    paths, problem = plot(tmp_path, RECORD)
    assert ([path.name for path in paths], problem) == (["busbw.svg", "busbw.png"], "")
    found = texts(paths[0])
    assert {"measured", "bar", "prediction", "simulated"} <= set(found)
    assert any("2 nodes, n[1-2]" in text for text in found)
    again = tmp_path / "again"
    again.mkdir()
    plot(again, RECORD)
    assert (again / "busbw.svg").read_bytes() == paths[0].read_bytes()


def test_of_many_pairs_the_slowest_are_named(tmp_path: Path) -> None:
    rows = [replace(RECORD, simulated=False, scope="pair", jobs=PAIRS, asked=NODES, scaling=())]
    jobs = tuple(replace(job, rows=(replace(job.rows[1], busbw=job.busbw),)) for job in PAIRS)
    paths, _problem = plot(tmp_path, replace(rows[0], jobs=jobs))
    found = texts(paths[0])
    assert "simulated" not in found
    assert {"median of 20", "n[38-39]", "n[36-37]", "n[34-35]", "bar"} <= set(found)
    assert "n[32-33]" not in found


def test_any_name_is_drawn_as_a_text(tmp_path: Path) -> None:
    names = ("$x^$", "_hidden", "<script>&\x1b[2J", "\\frac{%s{}")
    rows = (Row(size=0, busbw=1.0), Row(size=1, busbw=None), Row(size=1 << 53, busbw=1e6, spread=1e12, repeats=1 << 24))
    jobs = tuple(
        replace(JOB, scope=name, collective=name, max_bytes=1 << 53, bar=1e6, hosts=(name,), rows=rows)
        for name in names
    )
    busbw_plot.draw(of_record(replace(RECORD, jobs=jobs), ""), "x").savefig(tmp_path / "x.svg")
    shown = "".join(texts(tmp_path / "x.svg")).replace("\\$", "$")
    for name in names:
        assert name.lstrip("_").replace("\x1b", r"\x1b")[:10] in shown


def test_parts_of_a_cluster_are_not_in_its_panel() -> None:
    part = replace(JOB, hosts=("n1",), rows=(replace(JOB.rows[1], busbw=900.0),), bar=None, prediction=None)
    results = of_record(replace(RECORD, jobs=(JOB, part)), "")
    [[run]] = busbw_plot._kinds(results).values()
    assert run.hosts == JOB.hosts
    pairs = of_record(replace(RECORD, jobs=(replace(JOB, scope="leaf"), replace(part, scope="leaf"))), "")
    assert [len(runs) for runs in busbw_plot._kinds(pairs).values()] == [2]


def test_what_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plot(tmp_path, replace(RECORD, jobs=(replace(JOB, rows=()),))) == ([], "no plot: nothing was measured")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plot(tmp_path, RECORD)[1].startswith("no plot: matplotlib is not installed")


def test_the_nodes_own_plot_has_a_panel_for_each_collective(tmp_path: Path) -> None:
    row: dict[str, Any] = {"size": 1 << 30, "out_of_place": 360.0, "in_place": None}
    run = {**RUN, "max_bytes": 1 << 30, "bar": 340.0, "prediction": None, "finished": None}
    runs = [{**run, "rows": [row]}, {**run, "collective": "reduce", "rows": [{**row, "out_of_place": None}]}]
    results = {f"n{number}": {"runs": runs} for number in range(busbw_plot.LINES + 1)}
    paths, problem = nccl_benchmark.plot(tmp_path, results)
    assert ([path.name for path in paths], problem) == (["busbw.svg", "busbw.png"], "")
    found = texts(paths[0])
    assert {"all_reduce", "median of 9", "bar", "simulated"} <= set(found)
