# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import run_cache as kept_module
from ansible_collections.busbar.fabric.plugins.plugin_utils.run_cache import cached, cached_for

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("made", [{"a": [1, None, "ä"]}, [], ""])
def test_what_one_worker_made_the_next_one_reads(tmp_path: Path, made: Any) -> None:
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        return made

    for _worker in range(3):
        assert [cached(str(tmp_path), ["a", {"b": 1, "c": 2}], make) for _host in range(2)] == [made] * 2
        kept_module._READ.clear()
    assert cached(str(tmp_path), ["a", {"c": 2, "b": 1}], make) == made
    assert len(calls) == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_what_was_read_is_not_read_again_and_does_not_fill_the_memory(tmp_path: Path) -> None:
    first = cached(str(tmp_path), 0, lambda: {"a": 1})
    assert cached(str(tmp_path), 0, dict) is first
    for number in range(200):
        cached(str(tmp_path), number, lambda: {"a": 2})
    assert len(kept_module._READ) <= kept_module._MOST
    assert cached(str(tmp_path), 0, dict) == {"a": 1}


def test_what_is_made_of_one_object_is_made_once_and_of_its_equal_anew() -> None:
    calls: list[int] = []

    def make() -> int:
        calls.append(1)
        return len(calls)

    shared, equal = {"a": 1}, {"a": 1}
    assert [cached_for(shared, "x", make), cached_for(shared, "x", make), cached_for(equal, "x", make)] == [1, 1, 2]
    assert cached_for(shared, "y", make) == 3
    # An object whose memory another one has by now is not taken for it, and the table stays small.
    assert [cached_for([number], "x", lambda number=number: number) for number in range(200)] == [*range(200)]  # type: ignore[misc]
    assert len(kept_module._MADE) <= kept_module._MOST


def test_the_first_and_the_others_get_the_same(tmp_path: Path) -> None:
    found: list[object] = [cached(str(tmp_path), "basis", lambda: {0: (1, 2)}) for _worker in range(2)]
    assert found == [{"0": [1, 2]}] * 2


def test_what_json_cannot_hold_is_made_each_time(tmp_path: Path) -> None:
    assert [cached(str(tmp_path), "basis", lambda: {1, 2}) for _worker in range(2)] == [{1, 2}] * 2
    assert list(tmp_path.glob("*.json")) == []


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    for _worker in range(2):
        with pytest.raises(ValueError, match="no"):
            cached(str(tmp_path), "basis", fail)
    assert list(tmp_path.glob("*.json")) == []


def test_who_asks_while_it_is_made_waits_for_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from ansible_collections.busbar.fabric.plugins.plugin_utils.run_cache import cached\n"
        "print(cached(sys.argv[1], 'basis', lambda: time.sleep(1) or time.time()))\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT / "collections")}
    workers = [subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) for _worker in range(3)]
    assert len({worker.communicate(timeout=1800)[0] for worker in workers}) == 1
