# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The last sweep of the InfiniBand fabric in the report of a night: planes, leaves, bad links, pictures. Simulated."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_record import Mark, Record

from busbar.drift import beside_text, fabric, fabric_picture, html, text
from busbar.drift.beside import Beside
from tests.report import fabrics
from tests.report.fleet import MARKUP, write
from tests.report.records import FINISHED

ENDED = "2026-11-21T02:00:00Z"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", 2)


def told(folder: Path, record: Record, **more: Any) -> dict[str, Any]:
    fabric_record.write(folder, record)
    found = fabric.latest(Beside(folder, ENDED, **more))
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def test_leaves_that_are_alike_are_one_line_and_those_with_bad_links_stand_first(tmp_path: Path) -> None:
    found = told(tmp_path, fabrics.swept(name="n{:04}"))
    assert found["said"] == ["1 plane, 40 switches, 599 HCAs; 4 bad links"]
    [plane] = found["planes"]
    assert (plane["switches"], plane["hcas"], plane["cables"], plane["bad"]) == (40, 599, 599 + 599, 4)
    rows = plane["leaves"]
    assert [(row["names"], row["count"], row["bad"]) for row in rows] == [
        ("leaf02", 1, 1),
        ("leaf04", 1, 1),
        ("leaf08", 1, 1),
        ("leaf13", 1, 1),
        ("leaf[01,03,05-07,09-12,14-30]", 26, 0),
    ]
    assert {name: rows[-1][name] for name in ("rails", "down", "up", "spines", "ratio")} == {
        "rails": "0", "down": "20 x 400", "up": "20 x 400", "spines": "10, 2 to each", "ratio": 1.0,
    }  # fmt: skip
    assert (rows[1]["up"], rows[1]["spines"], rows[1]["ratio"]) == ("19 x 400", "10, 1-2 to each", 1.05)
    assert rows[2]["down"] == "19 x 400"
    assert [(bad["where"], bad["check"]) for bad in found["bad"]] == [
        ("n0042 rail 0 - p0-leaf13 port 2", "ib_fabric.link_width"),
        ("n0007 rail 0 - p0-leaf08 port 1", "ib_fabric.link_down"),
        ("p0-leaf02 port 64 - p0-spine01 port 3", "ib_fabric.symbol_errors"),
        ("p0-leaf04 port 67 - p0-spine02 port 8", "ib_fabric.uplinks"),
    ]


def test_a_picture_has_every_switch_bundle_and_hca_and_marks_the_bad_ones(tmp_path: Path) -> None:
    [plane] = told(tmp_path, fabrics.swept())["planes"]
    picture = plane["picture"]
    assert [len(row) for row in picture["rows"]] == [10, 30]
    assert [switch["name"] for switch in picture["rows"][0]][:2] == ["spine01", "spine02"]
    assert len(picture["bundles"]) == 300
    bad = [(one["upper"][1], one["lower"][1], one["bad"], one["lost"], one["count"]) for one in picture["bundles"]]
    assert [one for one in bad if one[2] or one[3]] == [(0, 1, 1, 0, 2), (1, 3, 0, 1, 1)]
    below = {leaf["at"]: [hca["state"] for hca in leaf["hcas"]] for leaf in picture["below"]}
    assert sum(map(len, below.values())) == 600
    odd = {at: [state for state in states if state != "ok"] for at, states in below.items()}
    assert {at: states for at, states in odd.items() if states} == {7: ["lost"], 12: ["bad"]}
    drawn = fabric_picture.drawn(picture, plane["label"])
    assert (len(drawn["switches"]), len(drawn["bad"]), len(drawn["hcas"])) == (40, 2, 2)
    assert drawn["good"].count("M") == 298
    assert drawn["well"].count("M") == 598
    assert drawn["said"].startswith("plane of rail 0: 40 switches, 600 HCAs, of these 2 with a bad link; 2 bad bundles")
    boxes = sorted((switch["y"], switch["x"], switch["width"]) for switch in drawn["switches"])
    for (y, x, width), (next_y, next_x, _width) in itertools.pairwise(boxes):
        assert next_y > y or next_x >= x + width + 2
    assert max(x + width for _y, x, width in boxes) <= drawn["width"]
    assert drawn["width"] < 1400


def test_a_fabric_of_4096_ports_fits_the_page(tmp_path: Path, report: dict[str, Any]) -> None:
    found = told(tmp_path, fabrics.swept(512, 32, 16, 9))
    assert found["planes"][0]["label"] == "plane of rail 0"
    pictures = [plane["picture"] is not None for plane in found["planes"]]
    assert pictures == [True] * fabric.PICTURES + [False]
    page = html.render({**report, "fabric": found})
    assert len(page) - len(html.render(report)) < 400_000


def test_of_more_leaves_than_fit_those_are_drawn_that_have_a_bad_link(tmp_path: Path) -> None:
    record = fabrics.swept(200, 100, 4)
    record = replace(record, marks=(Mark(((fabrics.guid(0, 4, 98), 64),), "ib_fabric.errors", "drift", "12 errors"),))
    [plane] = told(tmp_path, record)["planes"]
    drawn = [switch["title"] for switch in plane["picture"]["rows"][1]]
    assert len(drawn) == fabric.IN_ROW
    assert "p0-leaf99" in drawn
    assert plane["picture"]["left_out"] == 100 - fabric.IN_ROW
    assert sum(row["count"] for row in plane["leaves"]) + plane["leaves_left_out"] == 100


def test_odd_fabrics_are_told_of_as_far_as_they_go(tmp_path: Path) -> None:
    whole = fabrics.swept(64, 4, 2)
    [sweep] = whole.sweeps
    nothing = told(tmp_path, replace(whole, sweeps=(), taken=(), marks=(), complete=False))
    assert nothing["planes"] == []
    assert nothing["said"][1] == "the sweep is incomplete: what is not drawn may be missing, or was not seen"
    switches = tuple(node for node in sweep.nodes if node.kind == "switch")
    [plane] = told(tmp_path, replace(whole, sweeps=(replace(sweep, nodes=switches),), before=""))["planes"]
    assert (plane["leaves"], [len(row) for row in plane["picture"]["rows"]]) == ([], [6])
    assert fabric_picture.drawn(plane["picture"], "x")["hcas"] == []
    # Two HCAs back to back.
    pair = tuple(
        replace(node, ports=tuple(replace(port, peer=(other.guid, 1)) for port in node.ports))
        for node, other in (whole.sweeps[0].nodes[:2], whole.sweeps[0].nodes[1::-1])
    )
    [plane] = told(tmp_path, replace(whole, sweeps=(replace(sweep, nodes=pair),), marks=()))["planes"]
    assert (plane["switches"], plane["hcas"], plane["picture"]) == (0, 2, None)
    alike = tuple(replace(node, description="Mellanox") for node in sweep.nodes)
    [plane] = told(tmp_path, replace(whole, sweeps=(replace(sweep, nodes=alike),)))["planes"]
    assert len({switch["name"] for row in plane["picture"]["rows"] for switch in row}) == 6


def test_what_the_fabric_calls_itself_stays_text(tmp_path: Path, report: dict[str, Any]) -> None:
    record = fabrics.swept(64, 4, 2)
    named = tuple(replace(node, description=f"{MARKUP[:30]}{node.guid[-4:]}") for node in record.sweeps[0].nodes)
    marks = (Mark(record.marks[0].ends, "ib_fabric.errors", "drift", f"s3cret {MARKUP}"),)
    found = told(
        tmp_path, replace(record, sweeps=(replace(record.sweeps[0], nodes=named),), marks=marks), hidden=("s3cret",)
    )
    page = html.render({**report, "fabric": found})
    section = page.partition('<section id="fabric"')[2].partition("</section>")[0]
    assert "<script" not in section
    assert "<img" not in section
    assert "s3cret" not in json.dumps(found)
    assert "\x1b" not in text.rendered({**report, "fabric": found})


def test_where_no_fabric_was_swept_nothing_is_said(tmp_path: Path, report: dict[str, Any]) -> None:
    assert fabric.latest(Beside(tmp_path, ENDED)) is None
    assert 'id="fabric"' not in html.render({**report, "fabric": None})
    (tmp_path / "fabric" / "latest").mkdir(parents=True)
    (tmp_path / "fabric" / "latest" / "fabric.json").write_text("{")
    found = fabric.latest(Beside(tmp_path, ENDED))
    assert found is not None
    assert (found["state"], "fabric.json: it is not JSON" in found["why"]) == ("unreadable", True)
    assert "not readable" in html.render({**report, "fabric": found})


def test_a_terminal_and_a_chat_are_told_of_bad_links(tmp_path: Path, report: dict[str, Any]) -> None:
    found = told(tmp_path, fabrics.swept())
    said = str(beside_text.sections({**report, "fabric": found}))
    assert (
        "fabric, swept 2026-11-21T00:13:20Z, less than a day old: 1 plane, 40 switches, 599 HCAs; 4 bad links" in said
    )
    assert "n0042 rail 0 - p0-leaf13 port 2: 1x NDR" in said
    assert "4 bad links" in str(beside_text.sections({**report, "fabric": found}))
    old = told(tmp_path, replace(fabrics.swept(), finished=FINISHED - 40 * 86400))
    assert re.search(r"40 days old, too old", str(beside_text.sections({**report, "fabric": old})))
    assert "fabric" not in str(beside_text.sections({**report, "fabric": None}))
