# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

ID = "netdev_mtu.live[live]@0000:1b:00.0"


OTHERS: list[dict[str, Any]] = [{"run": "r2"}, {"run": "r3", "host": "b"}, {"run": "r4", "finding": "other"}]
OTHERS.append({"run": "r0", "at": 2})


def entry(action: str, outcome: str, at: float = 1.0, host: str = "a", **more: Any) -> Entry:
    return Entry(at=at, **{"run": "r1", "host": host, "action": action, "outcome": outcome, "finding": ID, **more})


def test_what_is_appended_is_read_again_and_nothing_is_lost(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert action_log.read(results) == action_log.Log()
    first = entry("drained", "begun", check="netdev_mtu.live", subject="0000:1b:00.0 ens1", attempt=1, boot_id="b")
    second = entry("measured", "done", before=1.5, after=None, why="two\nlines \x1b[31m")
    action_log.append(results, [first])
    action_log.append(results, [second])
    found = action_log.read(results)
    assert found.entries[0] == first
    assert found.entries[1].why == r"two\nlines \x1b[31m"
    path = action_log.file(results)
    assert (path.name, path.stat().st_mode & 0o777, found.torn) == ("actions.jsonl", 0o600, 0)


def test_it_is_on_the_disk_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[os.stat_result] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd)))
    action_log.append(tmp_path, [entry("drained", "begun")])
    assert synced[0].st_size == action_log.file(tmp_path).stat().st_size
    assert [stat.S_ISDIR(one.st_mode) for one in synced] == [False, True]


def test_runs_that_write_at_the_same_time_write_whole_lines(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for _count in range(20):
            action_log.append(tmp_path, [entry("asked", "done", host=name, why="x" * 900)] * 5)

    with ThreadPoolExecutor(3) as threads:
        [*threads.map(write, "abc")]
    assert len(action_log.read(tmp_path).entries) == 300


def test_a_line_that_a_crash_cut_off_is_counted_and_spoils_no_other(tmp_path: Path) -> None:
    action_log.append(tmp_path, [entry("drained", "begun")])
    path = action_log.file(tmp_path)
    with path.open("ab") as stream:
        stream.write(b'{"at": 12, "run": "r')
    action_log.append(tmp_path, [entry("resumed", "done")])
    found = action_log.read(tmp_path)
    assert ([one.action for one in found.entries], found.torn) == (["drained", "resumed"], 1)


WRONG = {"at": "now", "action": "erased", "outcome": "maybe", "attempt": -1, "host": "", "before": "much", "more": 1}


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), ("host", "a\nb")])
def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, name: str, value: object) -> None:
    action_log.append(tmp_path, [entry("drained", "begun")])
    path = action_log.file(tmp_path)
    path.write_text(path.read_text() + json.dumps({**json.loads(path.read_text()), name: value}) + "\n")
    with pytest.raises(ParseError, match=r"actions\.jsonl, line 2: "):
        action_log.read(tmp_path)


def test_it_is_not_written_through_a_link_and_a_pipe_in_its_place_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x\n")
    action_log.file(tmp_path).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        action_log.append(tmp_path, [entry("asked", "done")])
    assert (tmp_path / "other").read_text() == "x\n"
    action_log.file(tmp_path).unlink()
    os.mkfifo(action_log.file(tmp_path))
    with pytest.raises(ParseError, match="not a regular file"):
        action_log.read(tmp_path)


def test_what_was_left_is_a_drain_that_nobody_ended() -> None:
    drains = [entry("drained", "begun", host=host) for host in "abcd"]
    steps = ("a drained done", "b resumed begun", "b resumed done", "c left_drained done", "d drained held")
    ends = [entry(action, outcome, host=host) for host, action, outcome in map(str.split, steps)]
    assert set(action_log.open_drains(drains)) == set("abcd")
    assert set(action_log.open_drains([*drains, *ends])) == {"a"}
    assert action_log.held([*drains, *ends]) == {"c"}
    assert action_log.held([*drains, *ends, entry("resumed", "done", host="c")]) == frozenset()


def test_attempts_are_counted_by_run_for_one_finding_of_one_host_in_the_window() -> None:
    entries = [
        *[entry("role", "begun", at=10, role=role) for role in ("mtu", "roce_qos")],
        *[entry("role", "begun", **{"at": 20, **more}) for more in OTHERS],
    ]
    assert action_log.attempts(entries, "a", ID, since=5) == 2
    assert action_log.mended(entries, "a", ID, since=5) is None
    proven = [entry("verified", "done", at=at) for at in (3, 30)]
    assert action_log.mended([*entries, *proven], "a", ID, since=5) == 30
    assert action_log.mended(proven, "a", ID, since=31) is None
