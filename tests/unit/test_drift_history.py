# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.finding import Finding

from busbar.drift import command
from busbar.drift.history import SCHEMA, History, HistoryError
from busbar.drift.lock import Held, held
from busbar.drift.run import HostResult, Run

BAD = Finding("a.check", "x", "drift", "major", "1", "2", "s", "w", "f")


def begun(nights: History, day: int, inventory: str = "/i") -> Run:
    run = Run(0, f"2026-11-{day:02}T02:00:00Z", None, "running", inventory, None, "0", "u", None, False, "minor")
    return Run(**{**run.__dict__, "id": nights.begin(run)})


def night(nights: History, day: int, *hosts: HostResult, inventory: str = "/i") -> dict[str, Any]:
    return command.keep(begun(nights, day, inventory), {host.host: host for host in hosts}, nights)


def host(*findings: Finding, passed: str = "b.check[live]@x", end: str = "complete", name: str = "n1") -> HostResult:
    return HostResult(
        name, end, findings, frozenset(passed.split()), "one", {"all_reduce-8G": {"busbw": 3.5, "bar": 3.0}}
    )


def test_a_night_comes_back_as_it_was_told(tmp_path: Path) -> None:
    with History.open(tmp_path / "sub" / "d.sqlite", create=True) as nights:
        told = night(nights, 1, host(BAD), host(name="n2"))
        run = nights.run(None)
        again = command.built(run, None, nights)
        assert nights.hosts(run.id)[0]["n1"] == host(BAD)
    assert {**again, "run": {**again["run"], "ended": None}} == {**told, "run": {**told["run"], "ended": None}}
    assert (tmp_path / "sub" / "d.sqlite").stat().st_mode & 0o777 == 0o640


def test_what_is_said_every_night_is_kept_once(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as nights:
        for day in range(1, 6):
            night(nights, day, host(BAD), host(BAD, name="n2"))
        # The finding, the passed checks, the figures.
        assert sqlite3.connect(tmp_path / "d").execute("SELECT count(*) FROM json").fetchone() == (3,)


def test_the_age_survives_nights_without_an_answer(tmp_path: Path) -> None:
    gone = HostResult("n1", "unreachable")
    half = host(passed="b.check[live]@x", end="incomplete")
    with History.open(tmp_path / "d", create=True) as nights:
        night(nights, 1, host(BAD))
        # Longer than the nights that flapping looks at.
        for day in range(2, 12):
            assert night(nights, day, gone)["counts"]["unverified"] == 1
        night(nights, 12, half)
        night(nights, 13, half)
        data = night(nights, 14, host(BAD))
    (group,) = data["groups"]
    assert (group["first"]["started"], group["standing"], group["new"]) == ("2026-11-01T02:00:00Z", "n1", "")


def test_since_compares_with_an_earlier_night(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as nights:
        night(nights, 1, host(passed="a.check[live]@x"))
        night(nights, 3, host(BAD))
        night(nights, 4, host(BAD))
        run = nights.run(None)
        assert command.built(run, None, nights)["groups"][0]["new"] == ""
        data = command.built(run, "2026-11-02T23:59:59Z", nights)
        assert (data["groups"][0]["new"], data["run"]["since"]["id"]) == ("n1", 1)
        with pytest.raises(HistoryError, match="no earlier run"):
            command.built(run, "2026-10-02T23:59:59Z", nights)


def test_old_nights_are_forgotten_and_what_stands_since_then_keeps_its_age(tmp_path: Path) -> None:
    old = replace(BAD, check="c.old")
    with History.open(tmp_path / "d", create=True) as nights:
        night(nights, 1, host(BAD))
        night(nights, 2, host(BAD, old))
        nights.fail(begun(nights, 2).id, "failed", "2026-11-02T03:00:00Z", "no")
        night(nights, 2, host(old), inventory="/other")
        night(nights, 9, host(BAD))
        night(nights, 10, host(BAD))
        before = command.built(nights.run(None, "/i"), None, nights)
        nights.prune("2026-11-09T00:00:00Z")
        after = command.built(nights.run(None, "/i"), None, nights)
        assert after["groups"] == before["groups"]
        assert after["groups"][0]["first"] == {"run": 1, "started": "2026-11-01T02:00:00Z"}
        # The last night of an inventory stays, whatever its age.
        states = {run.id: run.state for run, _ in nights.runs()}
        assert states == {6: "done", 5: "done", 4: "done", 1: "pruned"}
        with pytest.raises(HistoryError, match="run 1 is pruned: what its hosts said is not kept any more"):
            nights.run(1)
        nights.prune("2026-12-09T00:00:00Z")
        assert [run.id for run, _ in nights.runs()] == [6, 4, 1]
        nights.run(4)
        # Of both last nights a host and a finding, and no text of any other.
        connection = sqlite3.connect(tmp_path / "d")
        for table, left in (("host", 2), ("finding", 2), ("json", 4)):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (left,)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_another_inventory_is_another_story(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as nights:
        night(nights, 1, host(BAD))
        assert night(nights, 2, host(BAD), inventory="/other")["run"]["previous"] is None


def test_a_killed_run_is_told_and_compared_with_nothing(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as nights:
        night(nights, 1, host(BAD))
        killed = begun(nights, 2)
    with History.open(tmp_path / "d", create=True) as nights:
        assert night(nights, 3, host(BAD))["run"]["previous"]["id"] == 1
        assert [(run.id, run.state) for run, _ in nights.runs()] == [(3, "done"), (2, "interrupted"), (1, "done")]
        with pytest.raises(HistoryError, match="run 2 is interrupted: killed before its end"):
            nights.run(killed.id)


def test_a_night_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as nights:
        run = begun(nights, 1)
        two = {"n1": host(BAD), "n2": host(BAD, name="n2")}
        with pytest.raises(KeyError):
            nights.finish(run.id, "2026-11-01T02:00:01Z", two, {}, {"n1": "drift"}, {})
        assert nights.hosts(run.id) == ({}, {})


def test_two_writers_and_a_reader_do_not_disturb_each_other(tmp_path: Path) -> None:
    with History.open(tmp_path / "d", create=True) as one, History.open(tmp_path / "d") as other:
        night(one, 1, host(BAD))
        night(other, 2, host(BAD))
        assert [run.id for run, _ in one.runs()] == [2, 1]


def test_a_file_that_is_no_history_is_left_alone(tmp_path: Path) -> None:
    text, foreign, newer = tmp_path / "text", tmp_path / "foreign", tmp_path / "newer"
    text.write_text("not a database, and long enough to look at" * 100)
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with History.open(newer, create=True):
        pass
    connection = sqlite3.connect(newer)
    connection.execute(f"PRAGMA user_version = {len(SCHEMA) + 1}")
    connection.close()
    for path, says in (
        (text, "not a database"),
        (foreign, "another program's"),
        (newer, "update"),
        (tmp_path, "cannot be opened"),
        (tmp_path / "absent", "does not exist"),
    ):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(HistoryError, match=str(path)) as raised, History.open(path, create=path.exists()):
            pass
        assert says in str(raised.value)
        assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_lock_is_one_and_says_who_has_it(tmp_path: Path) -> None:
    lock = tmp_path / "l"
    with held(lock, "run of anna"), pytest.raises(Held, match="run of anna"), held(lock, "run of otto"):
        pass
    with held(tmp_path / "l", "run of otto"):
        pass
