# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of a node's counters: what a question is held to, what is kept for the next, and where it is written."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.health import record
from ansible_collections.busbar.fabric.plugins.module_utils.health.record import Record, StoredRecords
from hypothesis import given
from hypothesis import strategies as st

HOUR, NIGHT = 3600.0, 24 * 3600.0
FIRST = Record(
    boot_id="boot-1",
    at=1000.0,
    driver_loaded={"nvidia": "1 0xff"},
    gpus={"GPU-1": {"replays": 3}},
    pci={"0000:1b:00.0": {"fatal": 0}},
    ports={"0000:1b:00.0/1": {"link_downed": 2, "guid": "a"}},
)


def later(by: float, replays: int = 3) -> Record:
    return replace(FIRST, at=FIRST.at + by, gpus={"GPU-1": {"replays": replays}})


KEYS = ("format", "boot_id", "at", "gpus", "pci", "ports", "driver_loaded", "before")
LEAVES = st.none() | st.integers() | st.floats() | st.text(max_size=3)
VALUES = LEAVES | st.lists(LEAVES, max_size=4) | st.dictionaries(st.text(max_size=3), LEAVES, max_size=2)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES | st.lists(VALUES, max_size=2), max_size=3))
def test_nothing_in_the_file_breaks_the_reader(data: dict[str, object]) -> None:
    whole = {**json.loads(record.render(StoredRecords(FIRST))), **data, "format": record.FORMAT}
    try:
        assert isinstance(record.parse(json.dumps(whole)), StoredRecords)
    except ParseError:
        assert data


def test_another_boot_begins_anew() -> None:
    kept = StoredRecords(later(NIGHT), FIRST)
    reboot = replace(FIRST, boot_id="boot-2", at=FIRST.at + NIGHT + HOUR)
    assert record.baseline(kept, reboot.at, "boot-2") is None
    # Nor is one of the future a beginning: somebody has set the clock.
    assert record.baseline(kept, FIRST.at - NIGHT, "boot-1") is None
    assert record.update_records(kept, later(-NIGHT)) == StoredRecords(later(-NIGHT))
    assert record.update_records(kept, reboot) == StoredRecords(reboot)


def test_a_driver_that_was_loaded_anew_takes_the_place_of_what_was() -> None:
    reloaded = replace(later(HOUR), driver_loaded={"nvidia": "1 0xaa"})
    assert record.update_records(StoredRecords(FIRST), reloaded).last == reloaded
    assert not FIRST.same_driver(reloaded, "nvidia")
    # That mlx5 was loaded anew is nothing to the GPUs.
    other = replace(FIRST, driver_loaded={"nvidia": "1 0xff", "mlx5_core": "2 0xbb"})
    assert FIRST.same_driver(other, "nvidia")


def test_a_device_that_comes_later_need_not_wait() -> None:
    more = replace(later(HOUR), gpus={"GPU-1": {"replays": 9}, "GPU-2": {"replays": 1}})
    kept = record.update_records(StoredRecords(FIRST), more)
    assert kept.last.gpus == {"GPU-1": {"replays": 3}, "GPU-2": {"replays": 1}}


def test_a_thousand_histories_of_a_counter() -> None:
    """No growth is told that was none, and none is missed but what a reset has hidden."""
    for seed in range(1000):
        rng = random.Random(seed)
        kept: StoredRecords | None = None
        now, boot, driver, value = 1000.0, 0, 0, rng.randrange(100)
        # All that the counter has ever counted, and of each question: what it had by then, and resets by then.
        total, resets = 0, 0
        asked: dict[float, tuple[int, int]] = {}
        for _question in range(12):
            happened = rng.choice(("nothing", "grew", "grew", "reset", "reboot", "reload"))
            more = rng.randrange(1, 1000) if happened == "grew" else 0
            if happened in ("reset", "reboot", "reload"):
                value, resets = 0, resets + 1
                boot, driver = boot + (happened == "reboot"), driver + (happened == "reload")
                more = rng.randrange(3)
            value, total = value + more, total + more
            now += rng.choice((60.0, HOUR, NIGHT, NIGHT))
            asked[now] = (total, resets)
            found = Record(f"boot-{boot}", now, {"nvidia": str(driver)}, {"GPU-1": {"replays": value}})
            before = record.baseline(kept, now, found.boot_id)
            if before is not None and before.same_driver(found, "nvidia"):
                then, resets_then = asked[before.at]
                told = record.grown(before.gpus["GPU-1"], found.gpus["GPU-1"])["replays"]
                assert told <= total - then, seed
                assert told == total - then or resets > resets_then, seed
            kept = record.parse(record.render(record.update_records(kept, found)))


@pytest.mark.parametrize("folder", record.FOLDERS)
def test_it_is_written_through_no_link(tmp_path: Path, folder: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    elsewhere.mkdir()
    at = root / folder.lstrip("/")
    at.parent.mkdir(parents=True)
    at.symlink_to(elsewhere)
    with pytest.raises(ReadError, match="is a link"):
        record.write(Host(str(root), str(root)), StoredRecords(FIRST))
    assert list(elsewhere.iterdir()) == []


def test_it_is_roots_own_and_takes_the_place_of_a_link(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    assert record.read(host) is None
    record.write(host, StoredRecords(FIRST))
    path = tmp_path / record.FILE.lstrip("/")
    assert (path.stat().st_mode & 0o777, record.read(host)) == (0o644, StoredRecords(FIRST))
    (tmp_path / "victim").write_text("mine")
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    record.write(host, StoredRecords(FIRST))
    assert not path.is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
    assert os.listdir(path.parent) == [path.name]
