# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file

from busbar import ROOT
from busbar.cli import main
from busbar.drift import ageing, command
from busbar.drift.history import SCHEMA, History, HistoryError
from busbar.drift.lock import held, lock_file
from busbar.drift.run import HostResult, Run
from tests import series

BAD = Finding("a.check", "x", "drift", "major", "1", "2", "s", "w", "f")


GPU5: dict[str, Any] = {"pci": "0000:9a:00.0", "name": "GPU5", "seconds": 43200.0, "product": "H100", "part": None}
GPU5 |= {"serial": "1654922006536", "firmware": "96.00", "slot": "12", "board": "S917AB123"}
GPU5["grown"] = {"replays": 2, "link 3 recoveries": 4, "link 11 recoveries": 1}


def begun(nights: History, day: int, inventory: str = "/i") -> Run:
    run = Run(0, f"2026-11-{day:02}T02:00:00Z", None, "running", inventory, None, "0", "u", None, False, "minor")
    return Run(**{**run.__dict__, "id": nights.begin(run)})


def night(nights: History, day: int, *hosts: HostResult, inventory: str = "/i") -> dict[str, Any]:
    return command.store(begun(nights, day, inventory), {host.host: host for host in hosts}, nights)


def host(*findings: Finding, passed: str = "b.check[live]@x", name: str = "n1", **more: Any) -> HostResult:
    figures = {"all_reduce-8G": {"busbw": 3.5, "bar": 3.0}}
    given = HostResult(name, "complete", findings, frozenset(passed.split()), "one", figures)
    return replace(given, **more)


def altered(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_a_night_comes_back_as_it_was_told(tmp_path: Path) -> None:
    with History.create(tmp_path / "sub" / "d.sqlite") as nights:
        told = night(nights, 1, host(BAD, notes=("a note",), health=(GPU5,)), host(name="n2"))
        run = nights.run(None)
        again = command.built(run, nights)
        assert nights.hosts(run.id)[0]["n1"] == host(BAD, notes=("a note",), health=(GPU5,))
    assert {**again, "run": {**again["run"], "ended": None}} == {**told, "run": {**told["run"], "ended": None}}
    assert (tmp_path / "sub" / "d.sqlite").stat().st_mode & 0o777 == 0o600


def test_the_last_complete_run_is_known_whatever_clock_and_limit(tmp_path: Path) -> None:
    with History.create(tmp_path / "d") as nights:
        for day in range(1, 5):
            night(nights, day, host(name="n2"), HostResult("n1", "unreachable") if day > 2 else host())
        # A clock in the future; one host, by hand.
        altered(tmp_path / "d", "UPDATE run SET ended = '2036-01-01T00:00:00Z' WHERE id = 1")
        altered(tmp_path / "d", "UPDATE run SET ended = '2026-11-02T02:01:00Z' WHERE id = 2")
        altered(tmp_path / "d", "UPDATE run SET scope = 'n2' WHERE id = 3", "DELETE FROM host WHERE run = 3")
        assert nights.complete(4) == "2026-11-02T02:01:00Z"


def test_the_age_survives_nights_without_an_answer(tmp_path: Path) -> None:
    gone = HostResult("n1", "unreachable")
    half = host(passed="b.check[live]@x", end="incomplete")
    with History.create(tmp_path / "d") as nights:
        night(nights, 1, host(BAD))
        # Longer than the nights that flapping looks at.
        for day in range(2, 12):
            assert night(nights, day, gone)["counts"]["unverified"] == 1
        night(nights, 12, half)
        night(nights, 13, half)
        data = night(nights, 14, host(BAD))
    (group,) = data["groups"]
    assert (group["first"]["started"], group["standing"], group["new"]) == ("2026-11-01T02:00:00Z", "n1", "")


def test_old_nights_are_forgotten_and_what_stands_since_then_keeps_its_age(tmp_path: Path) -> None:
    old = replace(BAD, check="c.old")
    with History.create(tmp_path / "d") as nights:
        night(nights, 1, host(BAD))
        night(nights, 2, host(BAD, old))
        nights.fail(begun(nights, 2).id, "failed", "2026-11-02T03:00:00Z", "no")
        night(nights, 2, host(old), inventory="/other")
        night(nights, 9, host(BAD))
        night(nights, 10, host(BAD))
        before = command.built(nights.run(None), nights)
        nights.prune(4)
        after = command.built(nights.run(None), nights)
        assert after["groups"] == before["groups"]
        assert after["groups"][0]["first"] == {"run": 1, "started": "2026-11-01T02:00:00Z"}
        # The last night of an inventory stays, whatever its age.
        states = {run.id: run.state for run, _ in nights.runs()}
        assert states == {6: "done", 5: "done", 4: "done", 1: "pruned"}
        with pytest.raises(HistoryError, match=r"run 1 is pruned: its results were deleted \(--keep-days\)"):
            nights.run(1)
        nights.prune(6)
        assert [run.id for run, _ in nights.runs()] == [6, 4, 1]
        nights.run(4)
        # Of both last nights a host and a finding, and no text of any other.
        connection = sqlite3.connect(tmp_path / "d")
        for table, left in (("host", 2), ("finding", 2), ("json", 4)):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (left,)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.parametrize("jump", ["2036-01-01", "2025-01-01"])
def test_a_wrong_clock_makes_nothing_old(jump: str) -> None:
    def moments(*days: str) -> list[tuple[int, datetime.datetime]]:
        dated = [(n, datetime.datetime.fromisoformat(day + "T02:00:00+00:00")) for n, day in enumerate(days, 1)]
        return dated[::-1]

    well = [f"2026-11-{day:02}" for day in range(1, 22)]
    assert ageing.odd(moments(*well)) == ""
    assert ageing.forgotten(moments(*well), 8) == 12
    assert ageing.odd(moments(well[0])) == ""
    # The night itself is told, and nothing is forgotten in it; those after it that have the clock again, too.
    assert re.search(r"began .*, \d+ days (after|before) the last one \(run 21\)", ageing.odd(moments(*well, jump)))
    assert ageing.odd(moments(*well, jump, "2026-11-22"))
    after = (datetime.date.fromisoformat(jump) + datetime.timedelta(days=1)).isoformat()
    assert ageing.odd(moments(*well, jump, after)) == ""
    assert ageing.forgotten(moments(*well, jump, after), 30) is None
    assert ageing.odd(moments(*well, jump, "2026-11-22", "2026-11-23")) == ""
    assert ageing.forgotten(moments(*well, jump, "2026-11-22", "2026-11-23"), 30) is None


def test_two_writers_do_not_disturb_each_other_and_another_inventory_is_another_story(tmp_path: Path) -> None:
    with History.create(tmp_path / "d") as one, History.create(tmp_path / "d") as other:
        night(one, 1, host(BAD))
        assert night(other, 2, host(BAD), inventory="/other")["run"]["previous"] is None
        assert [run.id for run, _ in one.runs()] == [2, 1]


def test_a_killed_run_is_told_and_compared_with_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with History.create(path) as nights:
        night(nights, 1, host(BAD))
    with held(lock_file(path), "x"), History.create(path) as nights:
        killed = begun(nights, 2)
        with History.open(path) as reader:
            assert [run.state for run, _ in reader.runs()] == ["running", "done"]
    with History.open(path) as reader:
        assert next((run.state, run.message) for run, _ in reader.runs()) == ("interrupted", "killed before its end")
    with History.create(path) as nights:
        assert night(nights, 3, host(BAD))["run"]["previous"]["id"] == 1
        assert [(run.id, run.state) for run, _ in nights.runs()] == [(3, "done"), (2, "interrupted"), (1, "done")]
        with pytest.raises(HistoryError, match="run 2 is interrupted: killed before its end"):
            nights.run(killed.id)


def test_a_night_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    with History.create(tmp_path / "d") as nights:
        run = begun(nights, 1)
        two = {"n1": host(BAD), "n2": host(BAD, name="n2")}
        with pytest.raises(KeyError):
            nights.finish(run.id, "2026-11-01T02:00:01Z", two, {}, {"n1": "drift"}, {})
        assert nights.hosts(run.id) == ({}, {})


def test_a_file_that_is_no_history_is_left_alone(tmp_path: Path) -> None:
    text, foreign, newer = tmp_path / "text", tmp_path / "foreign", tmp_path / "newer"
    text.write_text("not a database, and long enough to look at" * 100)
    with History.create(newer):
        pass
    altered(foreign, "CREATE TABLE mine (x)")
    altered(newer, f"PRAGMA user_version = {len(SCHEMA) + 1}")
    refused = {text: "not a database", foreign: "another program's", newer: "update", tmp_path: "directory"}
    for path, says in {**refused, tmp_path / "absent": "does not exist"}.items():
        before = path.read_bytes() if path.is_file() else b""
        for opened in (History.open, History.create) if path.exists() else (History.open,):
            with pytest.raises(HistoryError, match=str(path)) as raised, opened(path):
                pass
            assert says in str(raised.value)
        assert (path.read_bytes() if path.is_file() else b"") == before


def last_run(path: Path) -> int:
    """As a user reads it who owns nothing, where we may become one."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        with History.open(path) as nights:
            return nights.run(None).id
    finally:
        os.seteuid(before)


WRITER = """
import shutil, sys; sys.path[:0] = sys.argv[2:]
from pathlib import Path
from tests.unit.test_drift_history import BAD, History, host, night
path = Path(sys.argv[1])
with History.create(path / "d") as nights:
    night(nights, 1, host(BAD)); night(nights, 2, host(BAD))
    (path / "killed").mkdir()
    for file in ("d", "d-wal"): shutil.copy(path / file, path / "killed" / file)
    for file in (*path.iterdir(), *(path / "killed").iterdir()): file.chmod(0o755)
    print("ready", flush=True); sys.stdin.read()
"""


def test_a_history_is_read_where_nobody_may_write() -> None:
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        writer = [sys.executable, "-c", WRITER, name, str(ROOT), str(ROOT / "collections")]
        with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writing:
            assert writing.stdout is not None
            assert writing.stdout.readline() == "ready\n"
            top.chmod(0o555)
            assert last_run(top / "d") == 2
            # What a kill leaves has no index, which is in memory.
            (top / "killed").chmod(0o555)
            assert last_run(top / "killed" / "d") == 2
            assert {file.name for file in (top / "killed").iterdir()} == {"d", "d-wal"}
            writing.communicate("")
        assert not (top / "d-wal").exists()
        assert last_run(top / "d") == 2
        (top / "d").chmod(0o600)
        if os.geteuid() == 0:
            with pytest.raises(HistoryError, match=f"history {top / 'd'}: Permission denied"):
                last_run(top / "d")


def test_the_history_of_an_older_busbar_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with History.create(path) as nights:
        told = night(nights, 1, host(BAD))
    dropped = [f"ALTER TABLE host DROP COLUMN {column}" for column in ("notes", "health", "evidence")]
    altered(path, *dropped, "PRAGMA user_version = 1")
    before = path.read_bytes()
    with History.open(path) as nights:
        assert command.built(nights.run(None), nights)["groups"] == told["groups"]
    assert path.read_bytes() == before
    with History.create(path) as nights:
        assert night(nights, 2, host(BAD))["groups"][0]["standing"] == "n1"


COLUMNS = {
    "run": "id started ended state inventory scope version user revision simulated fail_on waivers message summary",
    "json": "id text",
    "host": "run host ended class intent passed busbw notes health evidence",
    "finding": "run host finding body first origin carried place",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "d"
    with History.create(path) as nights:
        for day in (1, 2):
            night(nights, day, host(BAD, notes=("a run works on it",), health=(GPU5,)), host(name="n2"))
    return path


GARBAGE = [None, "", "{", "[1]", "{}", '"x"', "x", b"\xff\x00", 10**18]


@pytest.mark.parametrize(
    ("table", "column"), series.some([(table, name) for table in COLUMNS for name in COLUMNS[table].split()], 8)
)
def test_garbage_gives_a_sentence(table: str, column: str, whole: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "d"
    reports = [f"--{name}={tmp_path}/out" for name in ("html", "prometheus", "junit")]
    for value in GARBAGE:
        shutil.copy(whole, path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA synchronous = OFF")
        # Not every value goes everywhere.
        with contextlib.suppress(sqlite3.IntegrityError), connection:
            connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
        connection.close()
        for what in (["--list"], reports):
            code = main(["report", "--history", str(path), *what])
            said = capsys.readouterr().err
            assert (code, said.count("\n")) in ((0, 0), (1, 1)), (value, what, said)


@pytest.mark.parametrize("broken", ["truncated", "garbage within", "no table"])
def test_a_broken_history_gives_a_sentence_with_the_way_out(broken: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "my d"
    with History.create(path) as nights:
        for day in range(1, 9):
            night(nights, day, *(host(replace(BAD, have=f"{day} {n}"), name=f"n{n}") for n in range(20)))
    data = path.read_bytes()
    if broken == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif broken == "garbage within":
        path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096))
    else:
        altered(path, "DROP TABLE finding")
    assert main(["report", "--history", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"mv '{path}' '{path}.broken'" in said


def test_what_passed_keeps_its_value_and_source(tmp_path: Path) -> None:
    evidence = {"a.b[live]@c": ["3", "/sys/c"], "a.b[live]@d": ["4", "/sys/d"], "x.y[live]@z": ["on", "a tool"]}
    told = replace(host(), passed=frozenset(evidence), evidence=findings_file.packed(evidence))
    with History.create(tmp_path / "d") as nights:
        for day in (1, 2, 3):
            night(nights, day, told)
        hosts, _marks = nights.hosts(3)
        assert findings_file.unpacked(hosts["n1"].evidence) == evidence
        # The same is stored once, and a night that goes takes only what no other night has.
        rows = nights._value("SELECT count(*) FROM json")
        nights.prune(2)
        assert nights._value("SELECT count(*) FROM json") == rows
        assert findings_file.unpacked(nights.hosts(3)[0]["n1"].evidence) == evidence
