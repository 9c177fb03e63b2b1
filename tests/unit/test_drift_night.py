# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""However a night ends, the history says so, people are told, and one host's bad answer is that host's alone."""

from __future__ import annotations

import contextlib
import copy
import datetime
import errno
import json
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema, results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar import private_tempdir
from busbar.cli import main
from busbar.drift import command, compare, inventory, junit, lock, notify, output, report, runner
from busbar.drift.history import History
from busbar.drift.inventory import Manifest
from busbar.drift.run import HostResult, Run
from tests.nested import places

from .test_drift_history import GPU5

BAD = Finding("a.check", "x", "drift", "major", "1", "2", "s", "w", "f")
HOSTS = {name: HostResult(name, "complete", (), frozenset({"a.b[live]@c"}), "one") for name in ("n1", "n2")}
ONE_BAD = {**HOSTS, "n1": replace(HOSTS["n1"], findings=(BAD,))}


class Night:
    """`busbar drift` in this process, with what Ansible would have said; told: what people were told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = folder / "d.sqlite"
        self.told: list[tuple[str, int]] = []

    def run(self, *more: str) -> int:
        return main(["drift", "-i", str(self.folder), "--history", str(self.history), "--notify", "mail", *more])

    def state(self) -> tuple[str, str]:
        with History.open(self.history) as nights:
            run, _ = nights.runs()[0]
        # Nobody has the lock, so the row itself says it.
        row = sqlite3.connect(self.history).execute("SELECT state FROM run ORDER BY id DESC").fetchone()
        assert row == (run.state,)
        return run.state, run.message


def played(answer: Any) -> Callable[..., Any]:
    """Ansible has read the inventory, and then comes the answer or the error."""

    def run(_paths: object, _limit: object, expected: inventory.Expected, *_more: object) -> Any:
        expected.manifest = Manifest(tuple(HOSTS), ("hunter22",), False)
        return answer() if callable(answer) else answer

    return run


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    made = Night(tmp_path)
    monkeypatch.setattr(runner, "run", played(HOSTS))
    monkeypatch.setattr(notify, "run", lambda argv, said, code, new: made.told.append((said, code)))
    return made


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_arguments: object, **_more: object) -> Any:
        raise error

    return fail


# What is replaced, and where it is.
OWNERS: dict[str, Any] = {"run": runner, "build": report, "marks": compare, "finish": History}
OWNERS["require_protected"] = inventory
FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_DATABASE = sqlite3.OperationalError("database or disk is full")
FAULTS: list[BaseException] = [MemoryError(), KeyError("hosts"), RecursionError("too deep, says hunter22")]
FAULTS += [SystemExit(0), FULL, runner.RunnerError("no response"), FULL_DATABASE]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["run", "build", "marks", "finish"])
def test_a_night_that_fails(where: str, error: BaseException, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = raising(error)
    monkeypatch.setattr(OWNERS[where], where, played(fail) if where == "run" else fail)
    assert night.run() == 1
    state, message = night.state()
    assert state == "failed"
    assert str(error.args[0] if error.args else "MemoryError").split(",")[0].strip() in message.replace("'", "")
    assert "hunter22" not in message
    assert night.told == [("busbar drift failed; its log has the reason\n", 1)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("where", ["require_protected", "run", "build"])
def test_a_signal_at_any_time(where: str, number: int, night: Night, monkeypatch: Any, capsys: Any) -> None:
    # nohup, or a shell's &, may have had it ignored, which busbar leaves as it is.
    inherited = signal.signal(number, signal.SIG_DFL)
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]

    def told_to_end(*_arguments: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr(OWNERS[where], where, played(told_to_end) if where == "run" else told_to_end)
    assert night.run() == 1
    name = signal.Signals(number).name
    if where != "require_protected":
        assert night.state() == ("interrupted", f"ended by {name}")
    assert capsys.readouterr().err == f"busbar drift: ended by {name}\n"
    assert night.told == [("busbar drift failed; its log has the reason\n", 1)]
    assert before == [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    signal.signal(number, inherited)


@pytest.mark.parametrize("option", ["--html", "--json", "--junit", "--findings"])
@pytest.mark.parametrize("place", ["no/where", "."])
def test_a_missing_folder_is_found_first(option: str, place: str, night: Night, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(runner, "run", raising(AssertionError("a host was queried")))
    assert night.run(option, f"{night.folder}/{place}") == 1
    assert str(night.folder / Path(place).parent) in capsys.readouterr().err
    assert not night.history.exists()


@pytest.mark.parametrize(
    ("where", "full"),
    [((lock, "held"), FULL), ((History, "begin"), FULL), ((History, "finish"), FULL_DATABASE)],
)
def test_a_full_disk_costs_no_verdict(where: Any, full: Any, night: Night, monkeypatch: Any, capsys: Any) -> None:
    original = getattr(*where)
    faults = [full]

    def once(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return original(*arguments)

    monkeypatch.setattr(*where, once)
    monkeypatch.setattr(runner, "run", played(ONE_BAD))
    assert night.run() == 1
    assert BAD.check in capsys.readouterr().out


def test_a_report_that_cannot_be_written(night: Night, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    where = f"{night.folder}/no/where.html"
    monkeypatch.setattr(output, "write", raising(OSError(errno.ENOSPC, "No space left on device", where)))
    assert night.run("--html", f"{night.folder}/where.html") == 1
    assert night.state()[0] == "done"
    [(said, code)] = night.told
    assert code == 1
    assert said.startswith("2 of 2 hosts checked in full")
    assert said.endswith("a report could not be written; its log has the reason\n")
    printed = capsys.readouterr()
    assert "no/where.html" in printed.err
    assert "2 of 2 hosts" in printed.out


def test_an_output_that_breaks_is_told(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit, "render", raising(ValueError("bug")))
    assert night.run("--junit", f"{night.folder}/x.xml") == 1
    assert night.state()[0] == "done"
    assert night.told == [("busbar drift failed; its log has the reason\n", 1)]


@pytest.mark.parametrize("broken", ["truncated", "not ours within"])
def test_a_broken_history_costs_the_night_and_is_told(broken: str, night: Night, capsys: Any) -> None:
    assert night.run() == 0
    if broken == "truncated":
        night.history.write_bytes(night.history.read_bytes()[:9000])
    else:
        with sqlite3.connect(night.history) as connection:
            connection.execute("UPDATE json SET text = '{'")
    capsys.readouterr()
    assert night.run() == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"begin a new one: mv {night.history} {night.history}.broken" in said
    assert night.told == [("busbar drift failed; its log has the reason\n", 1)]


def test_a_findings_file_has_what_the_run_found(night: Night, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    until = Acceptance("nccl_conf.*", "", "reason", "owner", datetime.date(2999, 1, 1))
    accepted = replace(HOSTS["n2"], findings=(replace(BAD, check="nccl_conf.file"),), acceptances=(until,))
    hosts = {**ONE_BAD, "n2": accepted}
    monkeypatch.setattr(runner, "run", played(hosts))
    path = night.folder / "findings.json"
    assert night.run("--findings", str(path)) == 2
    assert runner.results(runner.read_findings(path, 2), Manifest(tuple(hosts), (), False), {}) == hosts
    assert [len(host["findings"]) for host in json.loads(path.read_text())["hosts"].values()] == [1, 0]
    assert main(["report", "--history", str(night.history), "-i", "/no/such"]) == 1
    assert "/no/such does not exist" in capsys.readouterr().err


NOTE = "run 20261122T010203Z-7 of anna works on the node"
FIGURES = {"all_reduce-8G": {"busbw": 3.5, "bar": 3.0, "finished": 1e9, "simulated": False}}
GOOD: dict[str, Any] = {"ok": False, "passed_ids": ["b.check[live]@x"], "repaired": [], "notes": [NOTE], "end": None}
GOOD |= {"findings": [BAD.to_dict()], "intent": "one", "busbw": FIGURES, "health": [GPU5]}
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.sampled_from([*GOOD])
JSON = st.recursive(
    VALUES | st.sampled_from(["complete", "\ud800", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=6 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*places(GOOD)]), JSON, st.sampled_from(["set", "drop", "add"]))
def test_any_answer_of_one_host_leaves_the_others_theirs(path: tuple[Any, ...], value: Any, how: str) -> None:
    host: Any = {"host": copy.deepcopy(GOOD)}
    at: Any = host
    for key in ("host", *path)[:-1]:
        at = at[key]
    last = ("host", *path)[-1]
    if how == "set":
        at[last] = value
    elif how == "drop":
        del at[last]
    elif isinstance(at[last], dict):
        at[last]["more"] = value
    elif isinstance(at[last], list):
        at[last].append(value)
    data = {"hosts": {"n1": copy.deepcopy(GOOD), **({"n2": host["host"]} if "host" in host else {})}}
    found = runner.results(data, Manifest(("n1", "n2"), (), False), {})
    assert found["n1"].findings == (BAD,)
    assert found["n1"].notes == tuple(GOOD["notes"])
    # All that is taken in can be kept and shown.
    begun = Run(0, "2026-11-01T02:00:00Z", None, "running", "/i", None, "0", "u", None, False, "minor")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        nights = History(Path("memory"), connection)
        nights._prepare()
        shown = command.store(replace(begun, id=nights.begin(begun)), found, nights)
        assert shown["hosts"]["n1"]["class"] == "drift"
        json.dumps(command.built(nights.run(None), nights))


def test_an_answer_that_is_none_says_so() -> None:
    data = {"hosts": {"n1": {**GOOD, "findings": [{"check": 7}]}}}
    host = runner.results(data, Manifest(("n1",), (), False), {})["n1"]
    assert host.end == "incomplete"
    assert [f.have for f in host.findings] == ["its result is not valid: findings[0].aspect: is missing"]


@pytest.mark.parametrize(
    "count", [0, (1 << 64) - 1, 1 << 64, 10**400, -1, True, 1.0, "1", None], ids=lambda c: repr(c)[:9]
)
def test_a_count_that_a_node_may_answer_is_one_that_the_night_keeps(count: Any) -> None:
    device = {**GPU5, "grown": {"replays": count}}
    data = {"hosts": {"n1": {**GOOD, "health": [device]}, "n2": GOOD}}
    found = runner.results(data, Manifest(("n1", "n2"), (), False), {})
    assert found["n2"].end == "complete"
    assert (found["n1"].health == (device,)) == codec.is_valid(result_schema.health_devices, [device])
    if found["n1"].end == "incomplete":
        [finding] = found["n1"].findings
        assert str(finding.have).startswith("its result is not valid: health[0].grown.'replays': is ")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"hosts": []}', "[" * 200_000, '"' + "x" * 5000])
def test_a_findings_file_that_is_none_is_an_error_of_the_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(runner.RunnerError, match="findings file"):
        runner.read_findings(tmp_path / "f", 1)


def test_a_findings_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEAST_BYTES", 100)
    with (tmp_path / "f").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(runner.RunnerError, match="have more than 262244 bytes"):
        runner.read_findings(tmp_path / "f", 1)


def test_notes_are_in_every_report(night: Night, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(runner, "run", lambda *_: {**HOSTS, "n2": replace(HOSTS["n2"], notes=(NOTE,))})
    files = [f"--{kind}={night.folder}/{kind}" for kind in ("json", "html")]
    assert night.run(*files) == 0
    assert f"note (n2): {NOTE}" in capsys.readouterr().out
    assert json.loads((night.folder / "json").read_text())["hosts"]["n2"]["notes"] == [NOTE]
    assert "n2" in (night.folder / "html").read_text()
    assert "of anna works on the node" in (night.folder / "html").read_text()
    assert main(["report", "--history", str(night.history)]) == 0
    assert f"note (n2): {NOTE}" in capsys.readouterr().out


def test_only_the_owner_reads_unless_asked_otherwise(night: Night) -> None:
    files = [f"--{kind}={night.folder}/{kind}" for kind in ("json", "html", "prometheus")]
    before = os.umask(0)
    try:
        assert night.run(*files) == 0
        modes = {path.name: path.stat().st_mode & 0o777 for path in night.folder.iterdir()}
        assert modes.pop("prometheus") == 0o644
        assert set(modes.values()) == {0o600}, modes
        assert night.run(*files, "--mode", "640") == 0
    finally:
        os.umask(before)
    assert (night.folder / "html").stat().st_mode & 0o777 == 0o640
    assert night.history.stat().st_mode & 0o777 == 0o600


def test_what_killed_runs_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = time.time() - 2 * results_folder.STALE
    names = ["busbar-drift-abcd_123", "busbar-run-abcdefgh", "busbar-other", "xbusbar-run-abcdefgh"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text("x")
    (tmp_path / "busbar-drift-abcd1234").symlink_to(tmp_path / "busbar-other" / "secret")
    with private_tempdir.directory() as mine:
        # None is old.
        assert {path.name for path in tmp_path.iterdir()} > {*names}
        for path in tmp_path.iterdir():
            os.utime(path, (old, old), follow_symlinks=False)
        with private_tempdir.directory():
            # Who is at work keeps what is its own, however long it takes.
            assert mine.exists()
    assert {path.name for path in tmp_path.iterdir()} == {*names[2:], "busbar-drift-abcd1234"}
    assert (tmp_path / "busbar-other" / "secret").exists()


def test_a_findings_file_half_written_is_swept_by_the_next_verdict(tmp_path: Path) -> None:
    old = time.time() - 2 * results_folder.STALE
    for name in (".busbar-abcd1234", ".busbar-x", ".busbar-efgh5678"):
        (tmp_path / name).write_text("{")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / ".busbar-efgh5678").touch()
    results_folder.replace_file(tmp_path / "findings.json", ["{}"])
    assert {path.name for path in tmp_path.iterdir()} == {"findings.json", ".busbar-x", ".busbar-efgh5678"}


def test_a_lock_is_one_and_looking_at_it_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "l"
    assert not lock.is_held(path)
    with lock.held(path, "run of anna"):
        assert lock.is_held(path)
        with pytest.raises(lock.LockedError, match="run of anna"), lock.held(path, "x"):
            pass
    assert not lock.is_held(path)
    with lock.held(path, "run of otto"):
        pass
