# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import fleet_audit


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(fleet_audit.display, "display", lines.append)
    return lines


def test_every_host_is_asked_once_and_no_more_at_a_time_than_there_are_forks(said: list[str]) -> None:
    lock, now, most, asked = threading.Lock(), 0, 0, list[str]()

    def ask(host: str) -> dict[str, Any]:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
            asked.append(host)
        time.sleep(0.01)
        with lock:
            now -= 1
        return {"roles": host}

    hosts = [f"n{number}" for number in range(40)]
    assert dict(fleet_audit._ask_all(hosts, ask, 4, 60, threading.Event())) == {host: {"roles": host} for host in hosts}
    assert (sorted(asked), most) == (sorted(hosts), 4)
    assert said[0] == "2 of 40 hosts have answered"
    assert (said[-1], len(said)) == ("40 of 40 hosts have answered", 20)


def test_what_takes_too_long_is_left_behind_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_audit, "ALONE", 0.05)
    free = threading.Event()

    def ask(host: str) -> dict[str, Any]:
        if host in ("a", "c"):
            free.wait(30)
        return {"roles": host}

    begin = time.monotonic()
    found = dict(fleet_audit._ask_all("abcde", ask, 2, 1, threading.Event()))
    assert time.monotonic() - begin < 20
    free.set()
    late = {"failed": True, "timedout": True, "msg": "gave no answer within 1 s and was left behind"}
    assert found == {"a": late, "b": {"roles": "b"}, "c": late, "d": {"roles": "d"}, "e": {"roles": "e"}}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_question_that_breaks_off_is_an_answer() -> None:
    def ask(host: str) -> dict[str, Any]:
        raise RuntimeError(host)

    found = dict(fleet_audit._ask_all(["a"], ask, 2, 60, threading.Event()))
    assert found == {"a": {"failed": True, "msg": "the question ended without an answer, see above"}}
    # What a thread says at its end is this test's, and not the next one's.
    for thread in threading.enumerate():
        if thread.name.endswith("(work)"):
            thread.join(30)
    assert dict(fleet_audit._ask_all([], ask, 2, 60, threading.Event())) == {}


def test_what_the_play_says_comes_before_what_the_inventory_says() -> None:
    of_host = {"busbar_mtu": 9000, "ansible_host": "10.0.0.1"}
    of_task = {**of_host, "busbar_mtu": 4200, "playbook_dir": "/srv", "ansible_host": "n1", "ansible_port": 22}
    assert fleet_audit._of_play(of_task, of_host) == {"busbar_mtu": 4200, "playbook_dir": "/srv"}


def test_the_first_host_is_alone_until_it_has_made_what_all_need() -> None:
    made, free = threading.Event(), threading.Event()
    begun: list[tuple[str, bool]] = []

    def ask(host: str) -> dict[str, Any]:
        begun.append((host, made.is_set()))
        if host == "a":
            made.set()
            # Its answer is waited for by nobody.
            assert free.wait(30)
        if host == "c":
            free.set()
        return {"roles": host}

    assert len(dict(fleet_audit._ask_all("abc", ask, 2, 60, made))) == 3
    assert begun == [("a", False), ("b", True), ("c", True)]
