"""Real processes that flee: whatever they do, none of them is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.process_group import Ended

from tests.processes import marked
from tests.slurm_daemons import wait

from .conftest import ROOT

Run = Callable[..., Ended]

# Every process of a test carries its mark in the environment, so that a survivor is found wherever it is.
FORK = "import os, signal, sys, time\nhere = os.path.abspath('started')\n"
FLEE = {
    "in another session": "if os.fork() == 0:\n    os.setsid(); open(here, 'w'); time.sleep(60)\ntime.sleep(60)\n",
    "by double fork": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        open(here, 'w'); time.sleep(60)\n"
        "    os._exit(0)\ntime.sleep(60)\n"
    ),
    "deaf to SIGTERM": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "for _ in range(3):\n    os.fork(); os.setsid() if os.getpid() != os.getsid(0) else None\n"
        "open(here, 'w'); time.sleep(60)\n"
    ),
    "spawning on and on": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "open(here, 'w')\nwhile True:\n    if os.fork() == 0:\n        os.setsid(); time.sleep(0.3); os._exit(0)\n"
        "    time.sleep(0.01)\n"
    ),
    "as a chain": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(here, 'w')\n"
        "while True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"
    ),
    "stopped": "open(here, 'w'); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)\n",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(process_group, "TERM_GRACE", 0.3)
    # What earlier tests of this process have left.
    process_group.end_all()

    def start(argv: list[str], limit: float = 10, **more: Any) -> Ended:
        out, err = str(tmp_path / "stdout"), str(tmp_path / "stderr")
        return process_group.run(argv, str(tmp_path), marks(tmp_path), limit, out, err, **more)

    return start


def run_all(folder: Path, limit: float, *commands: tuple[str, ...]) -> list[Ended]:
    """Several programs at once, whose output is in NUMBER.out and NUMBER.err."""
    programs = [
        process_group.Program(argv, str(folder / f"{number}.out"), str(folder / f"{number}.err"))
        for number, argv in enumerate(commands)
    ]
    return [*process_group.run_all(programs, str(folder), marks(folder), limit)]


def marks(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "MARK": str(folder)}


def survivors(mark: Path) -> list[int]:
    return [*marked("MARK", str(mark))]


def test_what_ends_by_itself_is_spared_beside_others(tmp_path: Path) -> None:
    environments = (marks(tmp_path) | {process_group.ENDS_ITSELF: value} for value in "10")
    own, other = (subprocess.Popen(["sleep", "60"], env=environment).pid for environment in environments)
    assert process_group.end_all(0.3, process_group.ENDS_ITSELF) == ()
    assert survivors(tmp_path) == [own] != [other]
    assert process_group.end_all(0.3) == ()
    assert survivors(tmp_path) == []


def test_output_exit_code_and_environment(run: Run, tmp_path: Path) -> None:
    ended = run(["sh", "-c", "echo out; echo err >&2; env; pwd; exit 7"])
    assert (ended.rc, ended.ending, ended.left_behind) == (7, "", ())
    lines = (tmp_path / "stdout").read_text().splitlines()
    assert lines[0] == "out"
    assert lines[-1] == str(tmp_path)
    assert {line.split("=")[0] for line in lines[1:-1]} <= {"PATH", "MARK", "PWD", "SHLVL", "_", "OLDPWD"}
    assert (tmp_path / "stderr").read_text() == "err\n"


def test_a_signal_is_a_negative_exit_code(run: Run) -> None:
    assert run(["sh", "-c", "kill -SEGV $$"]).rc == -signal.SIGSEGV


@pytest.mark.parametrize("how", FLEE)
def test_after_the_limit_nothing_is_left(run: Run, tmp_path: Path, how: str) -> None:
    # The chain's first process ends at once; it counts as an end of its own, and the rest is ended all the same.
    ended = run([sys.executable, "-c", FORK + FLEE[how]], limit=2)
    assert (tmp_path / "started").exists()
    assert (ended.rc, ended.ending) == ((0, "") if how == "as a chain" else (None, "timeout"))
    assert ended.left_behind == ()
    assert survivors(tmp_path) == []


def test_what_a_program_leaves_behind_is_ended_too(run: Run, tmp_path: Path) -> None:
    ended = run(["sh", "-c", "setsid sleep 60 & (setsid sh -c 'trap \"\" TERM; sleep 60 & wait' &) ; exit 0"])
    assert (ended.rc, ended.ending, ended.left_behind) == (0, "", ())
    assert ended.seconds < 50
    assert survivors(tmp_path) == []


def test_sigterm_comes_first_so_that_a_launcher_can_clean_up(run: Run, tmp_path: Path) -> None:
    run(["sh", "-c", "trap 'echo cleaned; exit' TERM; while :; do sleep 0.05; done"], limit=2)
    assert (tmp_path / "stdout").read_text() == "cleaned\n"


def test_a_runaway_is_ended_and_its_output_cut(run: Run, tmp_path: Path) -> None:
    ended = run(["sh", "-c", "yes"], output_limit=10_000)
    assert (ended.rc, ended.ending) == (None, "overflow")
    assert (tmp_path / "stdout").stat().st_size == 10_000


@pytest.mark.parametrize("argv", [["/no/such"], ["/etc/passwd"], ["/"], ["a\0b"]])
def test_a_program_that_cannot_be_started_is_named(run: Run, argv: list[str]) -> None:
    with pytest.raises(ReadError, match="could not be started"):
        run(argv)


def test_several_programs_run_at_once_and_each_has_its_own_end(run: Run, tmp_path: Path) -> None:
    scripts = ["touch a; while [ ! -e b ]; do sleep 0.02; done; echo one", "touch b; exit 3", "sleep 60"]
    ended = run_all(tmp_path, 1.5, *(("sh", "-c", script) for script in scripts))
    assert [(one.rc, one.ending) for one in ended] == [(0, ""), (3, ""), (None, "timeout")]
    assert (tmp_path / "0.out").read_text() == "one\n"
    assert survivors(tmp_path) == []


def test_none_of_several_is_left_where_one_cannot_be_started(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="/no/such: could not be started"):
        run_all(tmp_path, 10, ("sleep", "60"), ("/no/such",))
    assert survivors(tmp_path) == []


def test_a_callers_own_children_are_not_put_at_risk(run: Run) -> None:
    with subprocess.Popen(["sleep", "60"]) as own:
        try:
            with pytest.raises(ReadError, match="other children"):
                run(["true"])
            assert own.poll() is None
        finally:
            own.kill()


def test_old_output_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("of an earlier run")
    with pytest.raises(ReadError, match="File exists"):
        run(["true"])


def test_an_exception_ends_the_program_too(run: Run, tmp_path: Path) -> None:
    def interrupt(_number: int, frame: Any) -> None:
        # Python drops an exception that it meets while it forks.
        if frame.f_code is process_group._wait.__code__:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(["sh", "-c", "setsid sleep 60 & sleep 60"])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert survivors(tmp_path) == []


def test_a_process_that_does_not_die_is_reported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No uninterruptible sleep can be had at will: a process whose signals get lost stands for it."""
    monkeypatch.setattr(process_group, "KILL_WAIT", 0.2)
    monkeypatch.setattr(process_group, "send", lambda _pid, _number: None)
    ended = run(["sleep", "60"], limit=0.1)
    assert ended.left_behind == tuple(survivors(tmp_path)) != ()
    for pid in ended.left_behind:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_program_goes_when_its_runner_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group\n"
        "process_group.run(['sleep', '60'], '.', {'MARK': sys.argv[2]}, 60, sys.argv[2] + '/o', sys.argv[2] + '/e')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(ROOT / "collections"), str(tmp_path)]) as runner:
        wait("the program", lambda: survivors(tmp_path), 45)
        time.sleep(0.2)
        runner.kill()
    wait("its end", lambda: not survivors(tmp_path), 45)
