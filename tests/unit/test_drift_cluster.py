"""The last benchmark between nodes in the report of a night: how old it is, what it says, and that there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import LeftOut

from busbar.drift import cluster, html
from busbar.drift.beside import Beside
from tests.report.fleet import MARKUP, write
from tests.unit.test_cluster_table import TWO

DAY = 86400.0
ENDED = "2026-11-21T02:00:00Z"
NIGHT = 1795226400.0  # the same


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", 2)


@pytest.mark.parametrize(
    ("days", "old", "shown"),
    [
        (0.5, False, ">0 days old<"),
        (1.5, False, ">1 day old<"),
        (29.9, False, ">29 days old<"),
        (30.1, True, ">30 days old: too old to show the current state of the cluster<"),
        (-1.0, False, ">measured after this run<"),
    ],
)
def test_its_age_is_told(days: float, old: bool, shown: str, tmp_path: Path, report: dict[str, Any]) -> None:
    cluster_record.write(tmp_path, replace(TWO, finished=NIGHT - days * DAY))
    found = cluster.latest(Beside(tmp_path, ENDED))
    assert (found["state"], found["age_days"], found["old"], found["ok"]) == ("measured", days, old, False)
    assert [line["cells"][1] for line in found["jobs"]["lines"]] == ["all_reduce", "", "alltoall"]
    assert "left out: node[03-04]: busy: a job" in found["said"]
    page = html.render({**report, "cluster": found})
    for text in (shown, 'class="bad">drift<', "86 % (low)", "simulated: no figure in it is a measurement"):
        assert text in page
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(("jobs", "ok"), [(TWO.jobs[:1], True), ((), False)])
def test_a_good_one_is_ok_and_one_without_jobs_is_not(jobs: Any, ok: bool, tmp_path: Path) -> None:
    cluster_record.write(tmp_path, replace(TWO, jobs=jobs, findings=()))
    assert cluster.latest(Beside(tmp_path, ENDED))["ok"] is ok


def test_none_or_a_broken_one_is_said(tmp_path: Path, report: dict[str, Any]) -> None:
    absent = cluster.latest(Beside(tmp_path, ENDED))
    assert absent["state"] == "absent"
    assert "nccl_benchmark_scope: cluster measures it" in html.render({**report, "cluster": absent})
    made = cluster_record.write(tmp_path, TWO)
    (made / "cluster.json").write_text('{"format": 1, "jobs": "\x1b' + MARKUP + '"}')
    broken = cluster.latest(Beside(tmp_path, ENDED))
    assert broken["state"] == "unreadable"
    assert "cluster.json" in broken["why"]
    assert "not readable" in html.render({**report, "cluster": broken})
    (made / "cluster.json").unlink()
    (made / "cluster.json").symlink_to("cluster.json")
    assert cluster.latest(Beside(tmp_path, ENDED))["state"] == "unreadable"
    assert 'id="cluster"' not in html.render(report)


def test_what_a_node_said_stays_text(tmp_path: Path, report: dict[str, Any]) -> None:
    job = replace(TWO.jobs[1], name=MARKUP, hosts=(MARKUP,), collective=MARKUP, what=MARKUP, said=MARKUP + "\x1b[2J")
    out = (LeftOut(host=MARKUP, reason=MARKUP),)
    record = replace(TWO, scope=MARKUP, jobs=(job,), left_out=out, asked=(MARKUP,))
    cluster_record.write(tmp_path, record)
    page = html.render({**report, "cluster": cluster.latest(Beside(tmp_path, ENDED))})
    section = page.partition('id="cluster"')[2].partition("</section>")[0]
    assert "&lt;script&gt;" in section
    assert "<script" not in section
    assert "<img" not in section
    assert "\x1b" not in section


@pytest.mark.parametrize(
    ("values", "found"),
    [({"x"}, "x"), ({"x", None}, None), ({None}, None), ({"{{ y }}"}, None), ({7}, None), (set(), None)],
)
def test_the_inventory_says_where_it_lies(values: set[object], found: str | None) -> None:
    assert manifest._plain(values) == found
