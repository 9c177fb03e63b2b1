# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is measured now and who is left, what a night has spent, and who waits for the nodes: pure, or on a directory."""

from __future__ import annotations

import datetime
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, measure
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.measure import DAY, Node

from busbar import ansible_process
from busbar import measure as command
from busbar.cli import main
from busbar.drift import inventory
from busbar.drift.inventory import Manifest
from busbar.drift.run import HostResult
from tests import goldens
from tests.campaigns import RUN
from tests.trees import put
from tests.unit.sample_cluster_record import RECORD

NOW = 1_795_000_000.0
BEGUN = NOW - 3600


def old(host: str, days: float | None, **more: Any) -> Node:
    last = None if days is None else NOW - days * DAY
    return Node(host, last=last, **{"minutes": 5.0, **more})


# -- the plan --------------------------------------------------------------------------------------------------------

INTENT = intent.read({"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "busbar_measure_budget": 100})
FAILED = old("a", None, tried=NOW - 60)
PLACES = [
    ("a", 9, "leaf1"),
    ("b", 8, "leaf2"),
    ("c", 7, "leaf1"),
    ("d", 6, "leaf1"),
    ("e", 5, "leaf2"),
    ("f", 9, "leaf3"),
]
LEAF = [old(name, 9, scope="leaf", group="leaf1") for name in "abc"]
# Case -> nodes, and node-minutes that are left.
PLANS: dict[str, tuple[list[Node], float]] = {
    "never measured, then the oldest": ([old("a", 3), old("b", None), old("c", 40), old("d", 10)], 1000),
    "busy, measured tonight, or too expensive": (
        [
            *(old("a", 50), old("b", 40), old("c", 45, why="allocated in Slurm"), old("d", 0)),
            *(old("e", 41, minutes=20.0), old("f", 9)),
        ],
        11,
    ),
    "tried tonight": ([FAILED], 1000),
    "tried last night, behind the others": ([replace(FAILED, tried=NOW - DAY), old("b", 2)], 1000),
    "pairs of one leaf": ([old(host, days, scope="pair", group=leaf) for host, days, leaf in PLACES], 1000),
    "a leaf": (LEAF, 1000),
    "a leaf that is too expensive": (LEAF, 14),
    "one of a leaf": (LEAF[:1], 1000),
    "never timed": ([measure.node_of("a", INTENT, measure.Known())], 100),
}


@pytest.mark.golden
def test_who_is_measured_and_who_is_left_with_the_reason() -> None:
    lines = []
    for name, (nodes, budget) in PLANS.items():
        found = measure.plan(nodes, budget, BEGUN)
        lines += [f"== {name}: {' '.join('+'.join(unit.hosts) for unit in found.units)}"]
        lines += measure.plan_lines(found, check_mode=budget < 1000)
    goldens.text("measure_plan", "\n".join(lines) + "\n")


def test_a_batch_is_of_one_partition_and_of_no_more_nodes_than_are_taken_at_a_time() -> None:
    nodes = [old(f"n{number:02}", 50 - number, group="main" if number % 2 else "other") for number in range(40)]
    batch = measure.plan(nodes, 1000, BEGUN).batch()
    assert len(batch) == measure.MOST
    assert {unit.group for unit in batch} == {"other"}


def test_a_night_is_from_noon_to_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        evening = time.mktime((2026, 11, 30, 23, 50, 0, 0, 0, -1))
        name, begun = measure.night(evening)
        assert (name, begun) == ("2026-11-30", evening - 11 * 3600 - 50 * 60)
        assert measure.night(evening + 12 * 3600) == (name, begun)
        assert measure.night(evening + 13 * 3600)[0] == "2026-12-01"
    finally:
        monkeypatch.undo()
        time.tzset()


# -- the ledger ------------------------------------------------------------------------------------------------------


def node_results(results: Path, stamp: str, host: str, *finished: float | None) -> None:
    rows = [{"size": 8, "out_of_place": 1.0, "in_place": 1.0}]
    runs = [{**RUN, "stored": False, "finished": moment, "rows": rows} for moment in finished]
    data = {"format": 1, "host": host, "simulated": True, "runs": runs, "findings": [], "passed": []}
    put(results, f"{stamp}/{host}.json", json.dumps(data))


def scanned(results: Path, now: float) -> measure.Ledger:
    ledger = measure.Ledger()
    ledger.scan(results, now)
    return ledger


def test_ages_are_those_of_the_results_whoever_had_them_measured(tmp_path: Path) -> None:
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now - 5 * DAY))
    node_results(tmp_path, f"{stamp}-aaaa", "node01", now - 5 * DAY, now - 6 * DAY)
    node_results(tmp_path, f"{stamp}-aaaa", "node02", now - 5 * DAY, None)
    hosts = ("node01", "node02")
    rows = (cluster_record.Row(size=8),)
    job = cluster_record.Job(name="pair", scope="pair", hosts=hosts, ranks=2, collective="x", rows=rows)
    record = replace(RECORD, begun=now - DAY - 120, finished=now - DAY, scope="pair", asked=(*hosts, "node03"))
    cluster_record.write(tmp_path, replace(record, left_out=(), jobs=(job,)))
    ledger = scanned(tmp_path, now)
    assert ledger.hosts["node01"].finished == {"node": pytest.approx(now - 6 * DAY), "pair": pytest.approx(now - DAY)}
    # Not all of its runs were measured.
    assert ledger.hosts["node02"].finished == {"pair": pytest.approx(now - DAY)}
    assert ledger.hosts["node02"].minutes == {"pair": 2.0}
    assert "node03" not in ledger.hosts
    measure.save(tmp_path, ledger)
    again = measure.load(tmp_path)
    assert again == ledger
    (tmp_path / f"{stamp}-aaaa/node01.json").write_text("{")
    again.scan(tmp_path, now)
    assert again == ledger


def test_a_directory_that_cannot_be_read_has_measured_nobody_and_costs_no_other_its_age(tmp_path: Path) -> None:
    now = time.time()
    for days in (3, 2):
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now - days * DAY))
        node_results(tmp_path, f"{stamp}-aaaa", f"node{days:02}", now - days * DAY)
    next(tmp_path.glob("*/node03.json")).write_text('{"format": 1, "host": [')
    assert set(scanned(tmp_path, now).hosts) == {"node02"}


def test_a_clock_of_a_node_that_is_ahead_makes_it_no_younger_than_now(tmp_path: Path) -> None:
    now = time.time()
    node_results(tmp_path, time.strftime("%Y%m%dT%H%M%SZ-a", time.gmtime(now)), "node01", now + 400 * DAY)
    assert scanned(tmp_path, now).hosts["node01"].finished["node"] == now


def test_a_clock_that_was_ahead_hides_no_later_result(tmp_path: Path) -> None:
    now = time.time()
    ledger = scanned(tmp_path, now)
    for at, host in ((now + 400 * DAY, "node01"), (now - DAY, "node02")):
        node_results(tmp_path, time.strftime("%Y%m%dT%H%M%SZ-a", time.gmtime(at)), host, at)
        ledger.grant("", 1.0, ["node01"], at)
        ledger.scan(tmp_path, max(at, now))
    assert [known.finished for known in ledger.hosts.values()] == [{}, {"node": now - DAY}]
    assert ledger.hosts["node01"].tried == now - DAY


def test_what_a_killed_run_was_granted_is_spent(tmp_path: Path) -> None:
    ledger = measure.Ledger(nights={"2026-11-22": 5.0})
    ledger.grant("2026-11-22", 20.0, ["node01"], NOW)
    measure.save(tmp_path, ledger)
    after = measure.load(tmp_path)
    was = after.book()
    assert was is not None
    assert (was.hosts, after.nights, after.hosts["node01"].tried) == (["node01"], {"2026-11-22": 25.0}, NOW)
    assert after.book() is None
    after.grant("2026-11-22", 20.0, ["node01"], NOW)
    after.book(1.5)
    assert after.nights == {"2026-11-22": 26.5}


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "nights": {"x": -1}}', "[" * 100_000])
def test_a_ledger_that_is_none_is_an_error_and_no_empty_one(tmp_path: Path, text: str) -> None:
    measure.path_of(tmp_path).write_text(text)
    with pytest.raises(ParseError, match=r"measure\.json: .*remove it"):
        measure.load(tmp_path)


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"node01": {"msg": "node01: busbar_mtuu is not a variable of this suite"}}, "node01: busbar_mtuu is not"),
        ({"node01": {"values": {}}}, "no result of node02: "),
        ({}, "no result of node01, node02: "),
    ],
)
def test_a_wrong_inventory_is_told_in_its_own_words(
    answers: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(event_handler: Any, **_more: Any) -> SimpleNamespace:
        for host, res in answers.items():
            event_handler({"event": "runner_on_failed", "event_data": {"host": host, "res": res}})
        return SimpleNamespace(stdout=io.StringIO("[ERROR]: no hosts"))

    monkeypatch.setattr(ansible_process, "run", play)
    with pytest.raises(command.MeasureError, match=says):
        command._intents([Path("inventory")], None, Manifest(("node01", "node02"), (), False))


def test_an_accepted_finding_is_none_of_a_run() -> None:
    slow = Finding("nccl_perf.busbw", "x", "drift", "major", "1", "2", "s", "w", "f")
    entry = Acceptance("nccl_perf.*", "", "RMA", "anna", datetime.date.max)
    assert command._standing(HostResult("n1", "complete", (slow,), acceptances=(entry,))) == ()


BY_SLURM = {"busbar_engine": "slurm"}


@pytest.mark.parametrize(
    ("node01", "node02", "code", "lines"),
    [
        ({}, {}, 0, ["would be measured: node[01-02], each alone"]),
        ({}, {"busbar_drain": "slurm"}, 0, ["be measured: node01,", "left for another run: node02: Slurm gives it"]),
        (BY_SLURM, BY_SLURM, 1, []),
    ],
)
def test_nodes_that_slurm_gives_to_jobs_are_left(
    node01: Any, node02: Any, code: int, lines: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    values = {**INTENT, "nccl_benchmark_results_path": str(tmp_path)}
    both = {"node01": {**values, **node01}, "node02": {**values, **node02}}
    monkeypatch.setattr(inventory, "read", lambda *_paths: Manifest(tuple(both), (), False))
    monkeypatch.setattr(command, "_intents", lambda *_: both)
    assert main(["measure", "-i", "inventory", "--check"]) == code
    said = capsys.readouterr()
    assert [line for line in lines if line not in said.out] == []
    assert ("nothing can be measured: Slurm gives it to jobs" in said.err) == (code == 1)
