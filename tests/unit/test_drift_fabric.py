# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The last sweep of the InfiniBand fabric in the report of a night: planes, leaves, bad links, pictures. Simulated."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_record import Mark, Record

from busbar.drift import beside_text, fabric, fabric_picture, html, text
from busbar.drift.beside import Beside
from tests import goldens
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


SMALL = fabrics.swept(64, 4, 2)
[SWEEP] = SMALL.sweeps
SWITCHES = tuple(node for node in SWEEP.nodes if node.kind == "switch")
# Two HCAs back to back.
PAIR = tuple(
    replace(node, ports=tuple(replace(port, peer=(other.guid, 1)) for port in node.ports))
    for node, other in (SWEEP.nodes[:2], SWEEP.nodes[1::-1])
)
ALIKE = tuple(replace(node, description="Mellanox") for node in SWEEP.nodes)
FAR_MARK = Mark(((fabrics.guid(0, 4, 98), 64),), "ib_fabric.errors", "drift", "12 errors")
SWEPT: dict[str, Record] = {
    "a fabric": fabrics.swept(name="n{:04}"),
    "swept long ago": replace(SMALL, finished=FINISHED - 40 * 86400),
    "nothing swept": replace(SMALL, sweeps=(), taken=(), marks=(), complete=False),
    "switches alone": replace(SMALL, sweeps=(replace(SWEEP, nodes=SWITCHES),), before=""),
    "two HCAs": replace(SMALL, sweeps=(replace(SWEEP, nodes=PAIR),), marks=()),
    "switches of one name": replace(SMALL, sweeps=(replace(SWEEP, nodes=ALIKE),)),
    "more leaves than fit": replace(fabrics.swept(200, 100, 4), marks=(FAR_MARK,)),
}


@pytest.mark.golden
def test_planes_leaves_and_bad_links(tmp_path: Path, report: dict[str, Any]) -> None:
    written = []
    for case, record in SWEPT.items():
        found = told(tmp_path, record)
        rows: list[Any] = []
        for plane in found["planes"]:
            picture = plane["picture"]
            drawn = picture and [[switch["name"] for switch in row] for row in picture["rows"]]
            counts = picture and [picture["left_out"], len(fabric_picture.drawn(picture, "x")["hcas"])]
            plain = {key: value for key, value in plane.items() if key not in ("picture", "leaves")}
            rows += [plain, *plane["leaves"], {"switches": drawn, "left out, HCAs drawn": counts}]
        goldens.check("fabric_report", case, [*rows, *([bad["where"], bad["check"]] for bad in found["bad"])])
        [lines] = beside_text.sections({**report, "fabric": found})
        written += [f"== {case}", *lines, ""]
    goldens.text("fabric_report", "\n".join(written))
    assert beside_text.sections({**report, "fabric": None}) == []


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
