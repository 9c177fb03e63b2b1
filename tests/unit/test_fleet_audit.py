# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import fleet_audit
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core, worker_threads
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

from tests import processes

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_host_is_asked_once_and_no_more_at_a_time_than_there_are_forks() -> None:
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
    assert dict(worker_threads.run_each(hosts, ask, print, 4, 60, threading.Event())) == {
        host: {"roles": host} for host in hosts
    }
    assert (sorted(asked), most) == (sorted(hosts), 4)


@pytest.mark.parametrize(("engine", "expected"), [("ssh", "by_task"), ("slurm", "failed")])
def test_slurm_audits_only_where_it_is_the_engine(engine: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise SlurmError("x")

    plugin: Any = object.__new__(fleet_audit.ActionModule)
    monkeypatch.setattr(plugin, "_audit_by_slurm", refuse)
    monkeypatch.setattr(ansible_core, "worker_runs_tasks", lambda: None)
    given = {"heard": "x", "manifest": "", "collect": False, "engine": engine, "host_timeout": 1.0}
    assert plugin.act({"ansible_play_hosts": ["a"], "hostvars": {}}, given)[expected]


def test_what_takes_too_long_is_left_behind_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "ALONE", 0.05)
    free = threading.Event()

    def ask(host: str) -> dict[str, Any]:
        if host in ("a", "c"):
            free.wait(600)
        return {"roles": host}

    left: list[str] = []
    begin = time.monotonic()
    found = dict(worker_threads.run_each("abcde", ask, left.append, 2, 1, threading.Event()))
    assert time.monotonic() - begin < 300
    free.set()
    late = {"failed": True, "timedout": True, "msg": "did not respond within 1 s and was left behind"}
    assert left == ["a", "c"]
    assert found == {"a": late, "b": {"roles": "b"}, "c": late, "d": {"roles": "d"}, "e": {"roles": "e"}}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_question_that_breaks_off_is_an_answer() -> None:
    def ask(host: str) -> dict[str, Any]:
        raise RuntimeError(host)

    found = dict(worker_threads.run_each(["a"], ask, print, 2, 60, threading.Event()))
    assert found == {"a": {"failed": True, "msg": "the query ended without a result, see above"}}
    # What a thread says at its end is this test's, and not the next one's.
    for thread in threading.enumerate():
        if thread.name.endswith("(work)"):
            thread.join(30)
    assert dict(worker_threads.run_each([], ask, print, 2, 60, threading.Event())) == {}


def test_what_the_play_says_comes_before_what_the_inventory_says() -> None:
    of_host = {"busbar_mtu": 9000, "ansible_host": "10.0.0.1"}
    of_task = {**of_host, "busbar_mtu": 4200, "playbook_dir": "/srv", "ansible_host": "n1", "ansible_port": 22}
    assert worker_threads.play_variables(of_task, of_host) == {"busbar_mtu": 4200, "playbook_dir": "/srv"}


def test_the_first_host_is_alone_until_it_has_made_what_all_need() -> None:
    made, free = threading.Event(), threading.Event()
    begun: list[tuple[str, bool]] = []

    def ask(host: str) -> dict[str, Any]:
        begun.append((host, made.is_set()))
        if host == "a":
            made.set()
            # Its answer is waited for by nobody.
            assert free.wait(600)
        if host == "c":
            free.set()
        return {"roles": host}

    assert len(dict(worker_threads.run_each("abc", ask, print, 2, 60, made))) == 3
    assert begun == [("a", False), ("b", True), ("c", True)]


def test_a_host_that_was_asked_by_a_task_of_its_own_answers_the_same() -> None:
    whole = {"roles": "{}", "intent": "1", "verify": False, "changed": False, "failed": False, "invocation": {}}
    assert fleet_audit._task_result(whole) == {"roles": "{}", "intent": "1", "verify": False, "failed": False}
    gone = {"unreachable": True, "msg": "no route", "failed": False, "changed": False}
    assert fleet_audit._task_result(gone) == {"unreachable": True, "msg": "no route", "failed": True}
    assert fleet_audit._task_result(None) == {"failed": True, "msg": "it was not queried"}


STARTS = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from ansible_collections.busbar.fabric.plugins.plugin_utils import worker_threads
worker = os.fork()
if worker == 0:
    os.setsid()
    worker_threads.bind_to_parent()
    subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait"])
    print(os.getpid(), flush=True)
    os._exit(0) if sys.argv[2] == "nobody" else time.sleep(600)
os.waitpid(worker, 0)
time.sleep(600)
"""


@pytest.mark.parametrize("who", ["the command", "the worker", "nobody"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_worker_has_started_ends_with_it_however_that_ends(
    who: str, how: signal.Signals, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", STARTS, str(ROOT / "collections"), who]
    environment = {**os.environ, "BUSBAR_TEST": str(tmp_path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as command:

        def started() -> set[int]:
            return {*processes.marked("BUSBAR_TEST", str(tmp_path))} - {command.pid}

        assert command.stdout
        worker = int(command.stdout.readline())
        end = time.monotonic() + 200
        if who != "nobody":
            # The shell may not have started its own yet.
            while len(started()) < 3 and time.monotonic() < end:
                time.sleep(0.05)
            os.kill(command.pid if who == "the command" else worker, how)
        # A process that begins while /proc is read may be missed: twice nothing is nothing.
        while (left := started() or started()) and time.monotonic() < end:
            time.sleep(0.05)
        command.kill()
    assert not left
