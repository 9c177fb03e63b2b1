# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.change.node_lock import Lock, LockResult, Run
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from hypothesis import given
from hypothesis import strategies as st

ANN = Run("20261121T130306Z-4242", "ann", "ctl1", "ctl1 boot ns", 4242, 17)
BOB = replace(ANN, id="20261121T140000Z-99", user="bob", pid=99, start=18)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path), str(tmp_path))


def file(host: Host) -> Path:
    return Path(host.system(node_lock.PATH))


def take(host: Host, run: Run, minutes: int = 240, over: str = "", dead: str = "", dry: bool = False) -> LockResult:
    return node_lock.acquire(host, run, minutes, over, dead, dry)


def age(host: Host, minutes: float) -> None:
    data = json.loads(file(host).read_text())
    file(host).write_text(json.dumps({**data, "since": time.time() - 60 * minutes}))


def test_one_run_has_the_node_until_it_gives_it_back(host: Host) -> None:
    assert take(host, ANN) == LockResult(True)
    age(host, 300)
    # Whoever takes it again has it from now on.
    assert take(host, ANN) == LockResult(True)
    refused = take(host, BOB)
    assert (refused.held, refused.holder and refused.holder.run) == (False, ANN)
    assert not node_lock.release(host, BOB)
    assert node_lock.release(host, ANN)
    assert not node_lock.release(host, ANN)
    # To ask takes nothing.
    assert take(host, BOB, dry=True) == LockResult(True)
    assert not file(host).exists()
    assert take(host, BOB) == LockResult(True)
    assert take(host, ANN, dry=True).held is False


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, False),
        ({"over": ANN.id}, True),
        ({"over": BOB.id}, False),
        ({"dead": ANN.id}, True),
        ({"dead": BOB.id}, False),
        ({"minutes": 31}, False),
        ({"minutes": 30}, True),
    ],
)
def test_a_lock_ends_by_its_age_by_name_and_with_its_run(host: Host, given: dict[str, str], held: bool) -> None:
    take(host, ANN)
    age(host, 30)
    answer = take(host, BOB, **given)  # type: ignore[arg-type]
    assert answer.held is held
    assert answer.holder is not None
    assert bool(answer.why) is held
    left = node_lock.look(host)
    assert left is not None
    assert left.run == (BOB if held else ANN)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run": {}, "since": 1}', '{"since": "x"}'])
def test_a_file_that_cannot_be_understood_is_somebodys_until_it_is_old(host: Host, text: str) -> None:
    file(host).parent.mkdir(parents=True)
    file(host).write_text(text)
    answer = take(host, ANN)
    assert (answer.held, answer.holder and answer.holder.run) == (False, None)
    assert "remove /run/busbar/lock.json" in node_lock.judge(answer).fix
    os.utime(file(host), (1, 1))
    assert take(host, ANN).held


def test_what_cannot_be_written_is_an_error_with_the_file_in_it(host: Host) -> None:
    (Path(host.system_root) / "run").write_text("")
    with pytest.raises(ReadError, match=r"/run/busbar/lock\.json\S*: (cannot be written|is not a place)|/run/busbar: "):
        take(host, ANN)


def test_no_link_is_followed(host: Host, tmp_path: Path) -> None:
    file(host).parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    Path(f"{file(host)}.new").symlink_to(tmp_path / "precious")
    with pytest.raises(ReadError, match="cannot be written"):
        take(host, ANN)
    assert (tmp_path / "precious").read_text() == "precious"


def race(root: str, number: int, results: str) -> None:
    run = replace(ANN, id="run-%d" % number, pid=number)
    answer = node_lock.acquire(Host(root, root), run, 240, "", ANN.id)
    Path(results, str(number)).write_text(str(answer.held))


def test_of_many_that_take_over_at_once_one_succeeds(host: Host, tmp_path: Path) -> None:
    take(host, ANN)
    results = tmp_path / "results"
    results.mkdir()
    context = get_context("fork")
    runs = [context.Process(target=race, args=(host.system_root, number, str(results))) for number in range(8)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(path.read_text() for path in results.iterdir()) == ["False"] * 7 + ["True"]


def test_this_run_is_the_same_in_its_children() -> None:
    here = node_lock.this_run()
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(node_lock.this_run) == here
    assert here.pid == os.getpid()
    assert here.id.endswith(f"-{os.getpid()}")
    assert not node_lock.has_ended(here, here)
    assert node_lock.from_dict(json.loads(json.dumps(here.to_dict()))) == here


def test_a_run_has_ended_when_its_process_has_or_the_number_is_anothers() -> None:
    here = node_lock.this_run()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    found = node_lock.process(ended.pid)
    assert found is not None  # nobody has asked for its exit code yet
    assert node_lock.has_ended(replace(here, pid=ended.pid, start=found[1]), here)
    ended.wait()
    assert node_lock.has_ended(replace(here, pid=ended.pid, start=found[1]), here)
    assert node_lock.has_ended(replace(here, start=here.start + 1), here)
    # What another machine does cannot be seen from here.
    assert not node_lock.has_ended(replace(here, pid=ended.pid, machine="elsewhere"), here)
    # Nor what a kernel without /proc would tell.
    assert not node_lock.has_ended(replace(here, pid=ended.pid, start=0), replace(here, start=0))


def test_a_task_that_outlived_its_run_does_not_keep_the_node() -> None:
    # ansible-playbook is killed, and the child that is about to take the lock goes on.
    script = f"""
import json, multiprocessing, os, signal, sys, time
sys.path[:0] = {[path for path in sys.path if path]!r}
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
run = os.getpid()
def task():
    while node_lock.process(run) is not None:
        time.sleep(0.01)
    print(json.dumps(node_lock.this_run().to_dict()))
multiprocessing.get_context("fork").Process(target=task).start()
os.kill(run, signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as ansible:
        ansible.wait(300)
        assert ansible.stdout is not None
        left = node_lock.from_dict(json.loads(ansible.stdout.read()))
    assert (left.pid, left.start) == (ansible.pid, 0)
    assert node_lock.has_ended(left, node_lock.this_run())


def test_a_process_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = node_lock.this_run()
    monkeypatch.setattr(node_lock, "process", lambda pid: None)
    assert not node_lock.has_ended(replace(here, pid=os.getpid()), here)
    assert node_lock.has_ended(replace(here, pid=2**80), here)


def test_a_finding_says_who_since_when_from_where_and_what_to_do() -> None:
    finding = node_lock.judge(LockResult(False, Lock(ANN, 0.0)))
    assert (finding.check, finding.state) == ("lock.held", "withheld")
    assert finding.have == "run 20261121T130306Z-4242 of ann on ctl1 (pid 4242) since 1970-01-01 00:00 UTC"
    assert finding.fix.endswith("-e busbar_lock_break=20261121T130306Z-4242")
    assert node_lock.judge(LockResult(True)).ok


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_lock_or_a_parse_error(text: str) -> None:
    try:
        node_lock.parse(text)
    except ParseError as error:
        assert str(error)
