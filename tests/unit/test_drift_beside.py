# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The search for who is slow, what was repaired and nodes at the gate in the report of a night. Simulated."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import gate
from ansible_collections.busbar.fabric.plugins.plugin_utils import action_log, cluster_record, localise_record, manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import Node, Way
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Found, Measured, Record

from busbar.drift import actions, at_gate, beside_text, cluster, heat_map, html, localised, text
from busbar.drift.beside import Beside
from busbar.drift.run import HostResult
from tests.report import records
from tests.report.fleet import MARKUP, finding, write
from tests.report.records import FINISHED
from tests.unit.test_cluster_table import TWO

ENDED = "2026-11-21T02:00:00Z"
DAY = 86400.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", 2)


@pytest.fixture(scope="module")
def of_1024() -> Record:
    return records.searched(1024, 8)


def searched(folder: Path, record: Record, **more: Any) -> dict[str, Any]:
    localise_record.write(folder, record)
    found = localised.latest(Beside(folder, ENDED, **more))
    json.dumps(found, allow_nan=False)
    return found


def grid(found: dict[str, Any], kind: str, title: str = "") -> dict[str, Any]:
    return next(each for each in found["maps"] if each["kind"] == kind and title in each["title"])


# -- who is slow -------------------------------------------------------------------------------------------------------


def test_eight_hosts_are_all_drawn_with_the_figures_that_accuse(tmp_path: Path) -> None:
    found = searched(tmp_path, records.searched(8, 2))
    assert found["nodes"] == {"asked": 10, "measured": 8, "passed": 6, "accused": 2}
    told = [(each["check"], each["subject"], each["nodes"], each["follows"]) for each in found["causes"]]
    assert told[:2] == [("localise.rail", "rail 3", "n0001", 1), ("localise.rank", "gpu 3", "n0005", 1)]
    assert told[2] == ("localise.member", "host", "n[0008-0009]", 0)
    hosts = grid(found, "hosts")
    assert (len(hosts["rows"]), hosts["left_out"]) == (8, 0)
    failed = {(cell["row"], cell["column"]) for cell in hosts["cells"] if cell["outcome"] == "fail"}
    assert {row for row, _column in failed} & {1, 5} == {1, 5}
    assert all({row, column} & {1, 5} for row, column in failed)
    assert failed == {(column, row) for row, column in failed}
    rails = grid(found, "rails", "n0001")
    slow = {rails["columns"][cell["column"]] for cell in rails["cells"] if cell["outcome"] == "fail"}
    assert slow == {"rail 3"}
    # Four ways with the first partner on eight rails, and four of the slow rail with the second.
    assert (len(rails["rows"]), len(rails["cells"]), rails["breaks"]) == (8, 36, [4])
    gpus = grid(found, "gpus", "n0005")
    assert all(3 in (cell["row"], cell["column"]) for cell in gpus["cells"] if cell["outcome"] == "fail")
    assert not found["maps_left_out"]


def test_of_1024_hosts_those_are_drawn_that_failed_and_whom_they_met(tmp_path: Path, of_1024: Record) -> None:
    found = searched(tmp_path, of_1024)
    hosts = grid(found, "hosts")
    assert len(hosts["rows"]) <= localised.ITEMS
    assert hosts["left_out"] == 1023 - len(hosts["rows"])
    for cause in found["causes"]:
        # One is slow alone, and was measured with nobody.
        if cause["count"] == 1 and cause["state"] == "drift" and cause["nodes"] != "n0513":
            row = hosts["rows"].index(cause["nodes"])
            assert sum(cell["row"] == row and cell["outcome"] == "fail" for cell in hosts["cells"]) >= 2
    assert grid(found, "gpus", "n0513")
    [uplink] = [cause for cause in found["causes"] if cause["check"] == "localise.uplink"]
    assert (uplink["subject"], uplink["count"]) == ("leaf leaf01", 32)
    leaves = grid(found, "leaves")
    assert "leaf01" in leaves["rows"]
    assert len(leaves["rows"]) + leaves["left_out"] == 32


def test_a_fleet_that_is_fast_has_nothing_to_draw_but_says_so(tmp_path: Path, report: dict[str, Any]) -> None:
    found = searched(tmp_path, records.searched(64, 0, busy=0))
    assert (found["causes"], [each["kind"] for each in found["maps"]]) == ([], ["leaves"])
    page = html.render({**report, "localised": found})
    assert "No node was found slow" in page
    assert "64 nodes asked, 64 measured with others, 64 of them passed with one, 0 accused" in page


@pytest.mark.parametrize(
    ("days", "limit", "shown"),
    [
        (0.5, 30, ">0 days old<"),
        (29.9, 30, ">29 days old<"),
        (30.1, 30, ">30 days old: too old to show the current state of the cluster<"),
        (8, 7, ">8 days old: too old"),
        (-1.0, 30, ">measured after this run<"),
    ],
)
def test_its_age_is_told_by_the_sites_own_limit(
    days: float, limit: float, shown: str, tmp_path: Path, report: dict[str, Any]
) -> None:
    record = records.searched(8, 1, finished=Beside(tmp_path, ENDED).now - days * DAY)
    found = searched(tmp_path, record, max_age_days=limit)
    assert found["old"] == (days > limit)
    assert shown in html.render({**report, "localised": found})
    cluster_record.write(tmp_path, replace(TWO, finished=record.finished))
    assert cluster.latest(Beside(tmp_path, ENDED, max_age_days=limit))["old"] == (days > limit)


def test_a_search_that_was_killed_shows_what_it_had(tmp_path: Path, report: dict[str, Any]) -> None:
    record = records.searched(8, 2)
    early = [test for test in record.tests if test.number < 3]
    found = searched(tmp_path, replace(record, complete=False, findings=(), tests=tuple(early)))
    assert "has not come to its end: this is what it had measured after 2 rounds" in found["said"][1]
    page = html.render({**report, "localised": found})
    assert "not complete" in page
    assert [each["kind"] for each in found["maps"]] == ["hosts"]


def test_a_thousand_nodes_that_say_the_same_are_one_line(tmp_path: Path) -> None:
    hosts = [f"n{i:04}" for i in range(1000)]
    nodes = tuple(Node(host, unfit=("busy: a job", "wait")) for host in hosts)
    told = [
        Found(hosts=(host,), finding=finding("localise.member", "host", "free", f"{host} is busy", state="unknown"))
        for host in hosts
    ]
    other = [
        Found(hosts=(host,), finding=finding("localise.node", "host", "fast", f"slow with {hosts[i - 1]}: {i}"))
        for i, host in enumerate(hosts)
    ]
    record = Record(simulated=True, begun=FINISHED, finished=FINISHED, launcher="srun", nodes=nodes)
    found = searched(tmp_path, replace(record, findings=(*told, *other), complete=True))
    lines = [(each["check"], each["count"], each["have"]) for each in found["causes"]]
    assert lines == [
        ("localise.node", 1000, "n0000: slow with n0999: 0; and 999 others, which are in the record"),
        ("localise.member", 1000, "it is busy"),
    ]


def test_none_or_a_broken_one_is_one_line_and_no_error(tmp_path: Path, report: dict[str, Any]) -> None:
    known = Beside(tmp_path, ENDED)
    absent = {"localised": localised.latest(known), "actions": actions.latest(known)}
    assert {each["state"] for each in absent.values()} == {"absent"}
    page = html.render({**report, **absent})
    assert "playbooks/localise.yml, which finds slow nodes, has not run here" in page
    assert "no repair was started from here" in page
    shown = text.rendered({**report, **absent}, (), 10_000, True)
    assert "does not exist" not in shown
    assert "does not exist" not in text.markdown({**report, **absent}, ())
    made = localise_record.write(tmp_path, records.searched(8, 1))
    (made / "localise.json").write_text('{"format": 1, "tests": "\x1b' + MARKUP + '"}')
    action_log.file(tmp_path).write_text('{"at": "\x1b' + MARKUP + '"}\n')
    known = Beside(tmp_path, ENDED)
    broken = {"localised": localised.latest(known), "actions": actions.latest(known)}
    assert {each["state"] for each in broken.values()} == {"unreadable"}
    assert "localise.json" in broken["localised"]["why"]
    assert "actions.jsonl, line 1" in broken["actions"]["why"]
    page = html.render({**report, **broken})
    assert page.count("not readable") == 2
    assert "\x1b" not in page
    action_log.file(tmp_path).unlink()
    action_log.file(tmp_path).mkdir()
    assert actions.latest(Beside(tmp_path, ENDED))["state"] == "unreadable"


def test_who_tells_of_actions_tells_of_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remediation may write while the report is made; and the log may be large."""
    localise_record.write(tmp_path, records.searched(8, 1))
    known = Beside(tmp_path, ENDED)
    reads: list[object] = []
    read = action_log.read

    def counted(results: Path) -> action_log.Log:
        reads.append(results)
        return read(results)

    monkeypatch.setattr(action_log, "read", counted)
    assert (localised.latest(known)["state"], actions.latest(known)["state"]) == ("measured", "absent")
    assert reads == [tmp_path]


# -- hostile -----------------------------------------------------------------------------------------------------------


def worst(size: int) -> Record:
    """Everything that a record may hold at its longest, in markup."""
    dice = random.Random(1)
    hosts = [f"{MARKUP}{i:04}{'<&' * 300}" for i in range(size)]
    nodes = tuple(Node(host, f"<b>{i % 40}{'&' * 900}", tuple(range(100))) for i, host in enumerate(hosts))
    long = "</svg></script>" * 60
    tests = []
    for number in range(1, 4):
        for _each in range(size):
            pair = tuple(dice.sample(hosts, 2))
            rest: dict[str, Any] = {"number": number, "outcome": "fail", "figure": 123456.789, "bar": 999999.0}
            tests.append(Measured(kind="pair", hosts=pair, **rest, said=long))
            ways = tuple(Way(rail, pair[0], 0.001, bool(rail % 2)) for rail in range(100))
            about = {"about": pair[:1], "rails": tuple(range(100)), "ways": ways}
            tests.append(Measured(kind="rails", hosts=pair, **{**rest, **about, "figure": None}))
            pairs = {(gpu, (gpu * 7 + 1) % 100): None for gpu in range(100)}
            tests.append(Measured(kind="gpus", hosts=pair[:1], **{**rest, "pairs": pairs, "said": long}))
            leaves = (f"<b>{number}{'&' * 900}", f"<b>{dice.randrange(40)}{'&' * 900}")
            tests.append(Measured(kind="leaves", hosts=pair, about=leaves, **rest))
    said = [
        Found(hosts=(host,), finding=finding("localise.node", f"{i % 50}{long}", long, f"{i}{long * 9}", fix=long * 9))
        for i, host in enumerate(hosts)
    ]
    return Record(
        simulated=False,
        begun=0,
        finished=1e11,
        launcher=MARKUP,
        nodes=nodes,
        tests=tuple(tests),
        findings=tuple(said),
    )


def test_a_page_stays_small_and_text_whatever_the_record_holds(tmp_path: Path, report: dict[str, Any]) -> None:
    found = searched(tmp_path, worst(40))
    entries = []
    for i in range(400):
        name: dict[str, Any] = {"check": "<b>" + "&" * 900, "subject": "<&" * 400, "finding": f"{i % 60}{MARKUP * 9}"}
        why, run = f"{i}{'</td>' * 200}", f"{i % 3}{MARKUP}"
        action, end = [("verified", "failed"), ("refused", "held"), ("drained", "begun"), ("rma", "begun")][i % 4]
        host = f"{MARKUP}{i}"
        entries.append(
            Entry(at=FINISHED, run=run, host=host, action=action, outcome=end, why=why, role="x" * 900, **name)
        )
    action_log.append(tmp_path, entries)
    done = actions.latest(Beside(tmp_path, ENDED))
    json.dumps(done, allow_nan=False)
    whole = html.render({**report, "localised": found, "actions": done})
    added = len(whole) - len(html.render(report))
    assert 100_000 < added < 900_000, added
    section = whole.partition('id="localised"')[2].partition('id="fleet"')[0]
    for markup in ("<script", "<img", "<b>&", "</svg></script>"):
        assert markup not in section
    shown = text.rendered({**report, "localised": found, "actions": done}, (), 80, True)
    assert len(shown) < 60_000


def test_no_secret_of_the_inventory_is_told(tmp_path: Path, report: dict[str, Any]) -> None:
    secret = "hunter2-hunter2"
    record = records.searched(8, 2)
    said = [
        replace(one, finding=replace(one.finding, have=f"{secret} {one.finding.have}", fix=secret))
        for one in record.findings
    ]
    tests = [replace(test, outcome="silent", figure=None, said=f"password {secret}") for test in record.tests]
    localise_record.write(tmp_path, replace(record, findings=tuple(said), tests=tuple(tests), launcher=secret))
    action_log.append(
        tmp_path,
        [
            Entry(
                at=FINISHED, run=secret, host="n1", action="refused", outcome="held", why=f"said {secret}", finding="x"
            ),
            Entry(
                at=FINISHED,
                run=secret,
                host="n2",
                action="drained",
                outcome="begun",
                why=f"said {secret}",
                check=secret,
            ),
        ],
    )
    job = replace(TWO.jobs[0], said=f"said {secret}", what=secret, name=secret)
    cluster_record.write(tmp_path, replace(TWO, jobs=(job,), findings=()))
    for hidden, told in [((), True), ((secret,), False)]:
        known = Beside(tmp_path, ENDED, hidden)
        more = {
            "cluster": cluster.latest(known),
            "localised": localised.latest(known),
            "actions": actions.latest(known),
        }
        for name, section in more.items():
            assert (secret in json.dumps(section)) == told, name
        pages = (
            html.render({**report, **more}),
            text.rendered({**report, **more}),
            text.markdown({**report, **more}, ()),
        )
        assert any(secret in page for page in pages) == told


def test_the_inventory_says_from_when_on_a_result_is_too_old() -> None:
    assert [manifest._days(value) for value in (7, None, "{{ x }}", True, 0, -3)] == [7, *[manifest.MAX_AGE_DAYS] * 5]


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_a_cell_says_without_colour_whether_it_is_slow() -> None:
    def cell(figure: float | None, outcome: str) -> dict[str, Any]:
        return {"row": 0, "column": 0, "outcome": outcome, "figure": figure, "bar": 100.0, "tests": 1, "said": "x"}

    plain = {"kind": "hosts", "title": "t", "rows": ["a"], "columns": ["b"], "breaks": [], "left_out": 0}
    for figure, outcome, kind, shown in [
        (123.4, "pass", "pass", "123"),
        (95.26, "fail", "near", "95.3"),
        (89.0, "fail", "fail", "89.0"),
        (1.234, "fail", "fail", "1.23"),
        (None, "silent", "silent", "?"),
    ]:
        [drawn] = heat_map.drawn({**plain, "cells": [cell(figure, outcome)]})["cells"]
        assert (drawn["kind"], drawn["text"]) == (kind, shown)
    long = heat_map.drawn({**plain, "rows": ["gpu-r12-17.cluster.example.org"], "cells": []})["rows"][0]
    assert (long["text"], long["title"]) == ("gpu-r12-...mple.org", "gpu-r12-17.cluster.example.org")


def test_whom_remediation_has_given_back_since_the_search_is_told(tmp_path: Path, report: dict[str, Any]) -> None:
    record = records.searched(8, 2)
    turns = (
        ("n0001", "drained", 1.0),
        ("n0001", "resumed", 2.0),
        ("n0005", "resumed", -1.0),  # before the search
        ("n0008", "resumed", 1.0),
        ("n0008", "left_drained", 2.0),
    )
    entries = [
        Entry(at=record.finished + after, run="r", host=host, action=action, outcome="done")
        for host, action, after in turns
    ]
    action_log.append(tmp_path, entries)
    found = searched(tmp_path, record)
    assert [(one["nodes"], one["given_back"]) for one in found["causes"] if one["given_back"]] == [("n0001", "n0001")]
    told = str(beside_text.sections({**report, "localised": found}))
    assert told.count("repaired and given back since: n0001") == 1


# -- what was repaired -------------------------------------------------------------------------------------------------


def logged(folder: Path, entries: list[Entry]) -> dict[str, Any]:
    action_log.append(folder, entries)
    return actions.latest(Beside(folder, ENDED))


def test_what_was_done_and_gained_is_a_line_for_nodes_that_are_alike(tmp_path: Path) -> None:
    hosts = [f"n{i:02}" for i in range(40)]
    found = logged(tmp_path, records.entries(hosts))
    rows = {line["result"]: line for line in (*found["done"], *found["refused"])}
    mended = rows["mended"]
    assert (mended["nodes"], mended["count"], mended["did"], mended["node"]) == ("n[00-02]", 3, ["mtu"], "given back")
    assert (mended["before"], mended["after"]) == ([237.0, 255.0], [371.5, 371.5])
    missed = rows["not mended"]
    assert (missed["nodes"], missed["attempt"], missed["node"], missed["why"]) == (
        "n03",
        2,
        "left drained",
        "7 GPUs of 8",
    )
    assert missed["record"] == "busbar-results/rma/n03-1.json"
    assert (rows["not ended"]["nodes"], rows["not ended"]["node"]) == ("n04", "drained, and not ended")
    refused = rows["refused"]
    assert (refused["count"], refused["why"]) == (35, "more than busbar_remediate_max_share: it has to wait")
    assert [(out["nodes"], out["state"], out["reason"]) for out in found["out"]] == [
        ("n04", "not ended", "busbar: roce_qos.pfc"),
        ("n03", "left drained", "not mended: 7 GPUs of 8"),
    ]
    assert found["said"][1] == (
        "3 of 3 figures that were measured before and after are higher now: 237 to 255 GB/s, then 371.5 GB/s"
    )


def test_who_is_out_is_told_whenever_that_was_and_what_is_long_ago_is_not(
    tmp_path: Path, report: dict[str, Any]
) -> None:
    found = logged(tmp_path, records.entries([f"n{i}" for i in range(6)], FINISHED - 40 * DAY))
    assert (found["done"], found["refused"]) == ([], [])
    assert found["said"] == ["nothing was done in the last 30 days"]
    assert [out["nodes"] for out in found["out"]] == ["n4", "n3"]
    assert "40 days ago" in html.render({**report, "actions": found})
    back = [Entry(at=FINISHED, run="r", host=host, action="resumed", outcome="done") for host in ("n3", "n4")]
    assert logged(tmp_path, back)["out"] == []


def test_a_line_that_a_crash_cut_off_is_counted(tmp_path: Path) -> None:
    logged(tmp_path, records.entries([f"n{i}" for i in range(6)]))
    with action_log.file(tmp_path).open("a") as stream:
        stream.write('{"at": 3')
    found = actions.latest(Beside(tmp_path, ENDED))
    assert found["torn"] == 1
    assert "that a crash has cut off and that cannot be read: 1" in found["said"][-1]


# -- nodes at the gate -------------------------------------------------------------------------------------------------


def test_nodes_at_the_gate_are_few_lines(report: dict[str, Any]) -> None:
    passed = frozenset(f"{check}[live]@the node" for check in (at_gate.KEPT_OUT, at_gate.HELD, at_gate.VERDICT))
    hosts = {f"n{i:04}": HostResult(f"n{i:04}", "complete", (), passed) for i in range(900)}
    hosts["login1"] = HostResult("login1", "complete", (), frozenset({"a.b[live]@c"}))
    for i in range(100):
        reason = {"at": FINISHED + 60 * i, "reason": "busbar gate: platform.gpu_count of the node: 7 #4f1c"}
        state = {"at": FINISHED, "verdict": "fail", "stage": "health", "findings": [], "action": "drained"}
        have = gate.Have({gate.PROGRAM: ""}, {}, state={**state, "kept_out": reason}, now=FINISHED + 3600 * (50 + i))
        # Too old, and so unknown, and out of service.
        told = [each for each in gate._seen(have) if not each.ok]
        assert len(told) == 2
        hosts[f"m{i:03}"] = HostResult(f"m{i:03}", "complete", tuple(told), frozenset())
    held = finding(at_gate.HELD, "the node", "none", "held_by_breaker: " + MARKUP)
    hosts["x1"] = HostResult("x1", "complete", (held,), passed - {f"{at_gate.HELD}[live]@the node"})
    found = at_gate.build(hosts)
    assert found is not None
    assert (found["asked"], found["in_service"]) == (1001, 901)
    [kept_out] = found["kept_out"]
    assert (kept_out["nodes"], kept_out["count"], kept_out["since"]) == ("m[000-099]", 100, "2026-11-21 00:13:20Z")
    assert kept_out["said"] == "busbar gate: platform.gpu_count of the node: 7 #4f1c"
    [unknown] = found["unknown"]
    assert (unknown["count"], unknown["said"]) == (100, "fail, at stage health")
    page = html.render({**report, "gate": found})
    section = page.partition('<section id="gate"')[2].partition("</section>")[0]
    assert "901 of 1,001 nodes" in section
    assert "<script" not in section
    assert "gate: kept out since 2026-11-21 00:13:20Z: m[000-099] (100)" in text.rendered(
        {**report, "gate": found}, (), 200, True
    )
    assert at_gate.build({"login1": hosts["login1"]}) is None


# -- text --------------------------------------------------------------------------------------------------------------


def test_no_line_is_longer_than_the_terminal(tmp_path: Path, report: dict[str, Any], of_1024: Record) -> None:
    records.write(tmp_path, of_1024)
    known = Beside(tmp_path, ENDED)
    data = {**report, "localised": localised.latest(known), "actions": actions.latest(known)}
    for width in (60, 80, 200):
        told = text.rendered(data, (), width, True)
        assert max(len(line) for line in told.splitlines() if "$ " not in line and "    on: " not in line) <= width
        for words in ("simulated, no", "given back"):
            assert words in " ".join(told.split())
