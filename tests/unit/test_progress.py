# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.callback import default
from ansible_collections.busbar.fabric.plugins.callback import progress as callback
from ansible_collections.busbar.fabric.plugins.plugin_utils import progress, progress_bar
from ansible_collections.busbar.fabric.plugins.plugin_utils.progress import Line, Run

THOUSAND = [f"n{number:04}" for number in range(1, 1001)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def texts(lines: list[Line] | None) -> list[str]:
    return [" ".join(line.text.split()) for line in lines or ()]


def begun(clock: Clock, hosts: int, role: str = "mofed", **more: bool) -> Run:
    run = Run(clock, **more)
    assert run.play("Provision", hosts) == []
    assert run.task("Install", role) == []
    return run


def test_a_role_is_a_line_and_a_task_outside_of_roles_is_none(clock: Clock) -> None:
    run = begun(clock, 2)
    run.ended("n1", "changed", "mofed")
    run.ended("n2", "ok", "mofed")
    clock.now = 65
    assert texts(run.task("Keep other runs off", "")) == ["mofed 2 hosts 1:05 1 changed (n1)"]
    run.ended("n1", "ok", "")
    assert run.task("Pass through", "iommu") == []
    for host in ("n1", "n2"):
        run.ended(host, "skipped", "iommu")
    assert texts(run.finished(["n1", "n2"])) == [
        "iommu nothing to do on 2 hosts 0:00",
        "2 hosts in 1:05: 1 changed",
    ]


def test_a_play_without_roles_is_a_line_and_a_long_one_beside_roles_is_one_too(clock: Clock) -> None:
    run = begun(clock, 2, role="")
    run.ended("n1", "ok", "")
    run.ended("n2", "ok", "")
    assert texts(run.play("Next", 2)) == ["Provision 2 hosts 0:00"]
    run.task("Lock", "")
    run.ended("n1", "ok", "")
    clock.now = 6
    run.task("Install", "mofed")
    run.ended("n1", "ok", "mofed")
    assert texts(run.finished([])) == [
        "mofed 1 host 0:00",
        "Next 0:06",
        "2 hosts in 0:06: nothing changed, nothing failed",
    ]


def test_a_play_that_all_hosts_skip_is_not_told_however_long_it_takes(clock: Clock) -> None:
    run = begun(clock, 2, role="")
    run.ended("n1", "skipped", "")
    clock.now = 60
    assert run.play("Next", 2) == []


def test_batches_of_a_play_are_told_apart(clock: Clock) -> None:
    run = begun(clock, 1, role="reboot")
    run.ended("n1", "changed", "reboot")
    for batch, name in ((True, "reboot batch 2"), (False, "reboot")):
        run.play("Provision", 1, batch=batch)
        run.task("Reboot", "reboot")
        run.ended("n2", "changed", "reboot")
        assert texts(run.play("", 1))[0] == f"{name} 1 host 0:00 1 changed"
        run.play("Provision", 1)


def test_a_thousand_hosts_that_fail_alike_are_one_block_and_one_list(clock: Clock) -> None:
    run = begun(clock, 1000)
    printed = []
    for host in THOUSAND[:-1]:
        text = f"Failed to connect to the host via ssh: connect to host {host} port 22: timed out"
        printed += texts(run.said("unreachable", host, "mofed", "Install", text, "roles/mofed/tasks/main.yml:3"))
        run.ended(host, "unreachable", "mofed")
    assert printed == [
        "UNREACHABLE mofed : Install n0001",
        "roles/mofed/tasks/main.yml:3",
        "Failed to connect to the host via ssh: connect to host n0001 port 22: timed out",
    ]
    assert len(texts(run.said("unreachable", "n1000", "mofed", "Install", "another reason", "x:1"))) == 3
    run.ended("n1000", "unreachable", "mofed")
    assert texts(run.finished(THOUSAND)) == [
        "UNREACHABLE mofed : Install the same on 998 hosts: n[0002-0999]",
        "mofed 1000 hosts 0:00 1000 unreachable",
        "1000 hosts in 0:00: 1000 unreachable",
        "unreachable n[0001-1000]",
    ]


def test_messages_are_alike_by_the_name_or_the_address_of_their_host_only(clock: Clock) -> None:
    run = begun(clock, 4)
    assert run.said("failed", "n1", "", "T", "port of 10.0.0.1", address="10.0.0.1")
    assert run.said("failed", "n2", "", "T", "port of 10.0.0.2", address="10.0.0.2") is None
    assert run.said("failed", "n3", "", "T", "port of 10.0.0.22", address="10.0.0.2")
    assert run.said("failed", "n4", "", "T2", "port of 10.0.0.2", address="10.0.0.2")
    # A host may be called as a word that the message of all has.
    assert run.said("failed", "a", "", "T", "not a file")
    assert run.said("failed", "b", "", "T", "not a file") is None


def test_what_a_rescue_or_the_verdict_sees_to_says_so_and_is_no_failure(clock: Clock) -> None:
    run = begun(clock, 1, judged=True)
    assert texts(run.said("rescued", "n1", "mofed", "Install", "why"))[0] == (
        "RESCUED mofed : Install n1 (counted by the verdict)"
    )
    run.ended("n1", "rescued", "mofed")
    run.ended("n1", "ok", "")
    run.task("Print", "")
    run.ended("n1", "failed", "", counts=False)
    assert texts(run.not_ok("not ok on n1")) == ["not ok on n1"]
    assert texts(run.finished(["n1"])) == [
        "1 host in 0:00: 1 rescued; the verdict is not ok",
        "rescued n1",
    ]


def test_hosts_that_are_lost_are_not_waited_for_by_the_next_task(clock: Clock) -> None:
    run = begun(clock, 5)
    for host, end in (("n1", "unreachable"), ("n2", "failed"), ("n3", "ok"), ("n4", "skipped"), ("n5", "rescued")):
        run.ended(host, end, "mofed")
    run.task("Next", "mofed")
    assert "0 of 2 hosts" in run.moving_line(80)
    run.ended("n1", "ok", "mofed")
    run.task("Next", "mofed")
    assert "0 of 3 hosts" in run.moving_line(80)
    run.play("Another", 4)
    run.task("Next", "mofed")
    assert "0 of 4 hosts" in run.moving_line(80)


def test_nothing_is_drawn_over_a_question(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(clock, 2)
    run.ended("n1", "ok", "mofed")
    assert texts(run.pause()) == ["mofed 1 host 0:00"]
    assert run.moving_line(80) == ""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    line = progress_bar.MovingLine(threading.RLock(), lambda width: "bar", lambda text: None)
    line.start()
    with pytest.raises(io.UnsupportedOperation):  # by which input() would know a terminal, and print past us
        sys.stdout.fileno()
    assert input("sure? ") == "yes"
    line.step()
    line.stop()
    assert screen.getvalue() == "sure? "


def test_check_mode_changes_nothing(clock: Clock) -> None:
    run = begun(clock, 1, check=True)
    run.ended("n1", "changed", "mofed")
    assert "1 would change" in run.moving_line(100)
    assert "1 host in 0:00: 1 would change" in texts(run.finished([]))


def test_what_nodes_say_commands_no_terminal(clock: Clock) -> None:
    run = begun(clock, 1)
    lines = run.said("failed", "n\x1b[1", "mofed", "T\x07", "a\x1b]0;title\x07\r\nb\u202ec", "x")
    assert lines is not None
    for line in [*lines, *run.finished(["n\x1b[1"])]:
        assert line.text.isprintable(), line.text
    assert "a\\x1b]0;title\\x07" in texts(lines)[2]


def test_a_failure_is_told_in_full_and_alike_for_all_who_failed_alike() -> None:
    said = {"msg": "non-zero return code", "rc": 3, "stderr": "one\ntwo\n", "cmd": ["sh", "-c", "x"], "changed": True}
    first = progress.failure({**said, "start": "10:00", "delta": "1", "findings": [{}], "_ansible_no_log": False})
    assert first.splitlines() == ["non-zero return code", "cmd: [sh, -c, x]", "rc: 3", "stderr:", "  one", "  two"]
    assert first == progress.failure({**said, "start": "10:01", "delta": "2"})
    assert progress.failure({"censored": "hidden", "changed": True}) == "hidden"
    assert "deep" in progress.failure({"msg": 7, "more": {("odd",): 1, "deep": [object()]}})
    assert progress.failure({"failed_when_result": True, "msg": ""}) == "its failed_when is true"
    assert progress.failure({}) == "it failed without a message"


@pytest.mark.parametrize("width", [1, 9, 10, 25, 40, 60, 120])
def test_the_bar_fits_whatever_the_width(clock: Clock, width: int) -> None:
    run = begun(clock, 1000)
    assert len(run.moving_line(width, progress_bar.plain)) <= width
    for host in THOUSAND[:412]:
        run.ended(host, "changed", "mofed")
    run.started("n0500")
    clock.now = 42
    bar = run.moving_line(width, progress_bar.plain)
    assert len(bar) <= width
    if width >= 40:
        assert bar.startswith("mofed  ")
        assert "412 of 1000 hosts" in bar
    if width == 120:
        assert bar == (
            "mofed  [###########-----------------]  412 of 1000 hosts  412 changed  0:42  waits for n0500 since 0:42"
        )


def test_where_no_line_can_move_a_role_is_told_at_a_slow_pace(clock: Clock) -> None:
    run = begun(clock, 1000)
    said = []
    for host in THOUSAND:
        clock.now += 0.1
        run.ended(host, "ok", "mofed")
        said += texts(run.tick())
    assert [line.split()[0] for line in said] == ["mofed"] * 3
    assert re.fullmatch(r"mofed \d+ of 1000 hosts 0:30 Install", said[0])
    run.started("n0007")
    clock.now += 60.5
    assert texts(run.tick()) == ["mofed 1000 of 1000 hosts 2:40 waits for n0007 since 1:00"]


def test_who_interrupts_hears_what_was_done_and_how_to_have_it_judged(clock: Clock) -> None:
    run = begun(clock, 3)
    run.ended("n1", "changed", "mofed")
    run.started("n2")
    assert texts(run.ended_early("INTERRUPTED") + run.question("ansible-playbook x")) == [
        "INTERRUPTED in mofed : Install (1 of 3 hosts had done it)",
        "no response yet from: n2",
        "mofed 1 host 0:00 1 changed",
        "3 hosts until 0:00: 1 changed",
        "The run has not come to its end. What is there now is judged, and nothing written, by:",
        "ansible-playbook x",
    ]
    assert texts(Run(clock).ended_early("ENDED EARLY"))[:2] == ["ENDED EARLY", "No host took part; until 0:00"]


def test_who_interrupts_a_run_that_is_judged_already_is_sent_nowhere(clock: Clock) -> None:
    run = begun(clock, 2, role="")
    assert not run.told
    run.task("Print", "", once=True)
    run.started("n1")
    assert texts(run.ended_early("INTERRUPTED"))[0:2] == [
        "INTERRUPTED in Provision : Print",
        "2 hosts until 0:00: nothing changed, nothing failed",
    ]
    run.ended("n1", "ok", "", counts=False)
    assert run.told
    assert texts(run.ended_early("INTERRUPTED"))[-1].startswith("2 hosts until")


def test_hosts_that_the_question_to_all_could_not_reach_are_in_the_recap(clock: Clock) -> None:
    run = begun(clock, 3, role="")
    run.task("Ask", "", once=True)
    for host in ("n2", "n3"):
        run.said("unreachable", host, "", "Ask", f"no route to {host}", "")
        run.unreached(host)
    run.ended("n1", "ok", "")
    assert texts(run.finished(["n1"])) == [
        "UNREACHABLE Ask the same on 1 host: n3",
        "Provision 3 hosts 0:00 2 unreachable (n[2-3])",
        "3 hosts in 0:00: 2 unreachable",
        "unreachable n[2-3]",
    ]


def test_hosts_that_one_task_has_asked_are_counted(clock: Clock) -> None:
    run = begun(clock, 1000, role="")
    run.task("Ask", "", once=True)
    assert "of" not in run.moving_line(100).split()
    run.heard(600, 1000)
    assert "600 of 1000 hosts" in run.moving_line(100)
    run.ended("n0001", "ok", "")
    assert texts(run.finished(["n0001"])) == [
        "Provision 600 hosts 0:00",
        "1000 hosts in 0:00: nothing changed, nothing failed",
    ]


def test_a_role_within_a_role_and_handlers_tell_the_outer_one_again_only_for_news(clock: Clock) -> None:
    run = begun(clock, 1)
    run.ended("n1", "ok", "mofed")
    assert texts(run.task("Inner", "inner")) == ["mofed 1 host 0:00"]
    run.ended("n1", "ok", "inner")
    assert texts(run.task("Outer again", "mofed")) == ["inner 1 host 0:00"]
    run.ended("n1", "ok", "mofed")
    run.task("Inner", "inner")
    assert run.task("Handler", "mofed") == []
    run.ended("n1", "changed", "mofed")
    assert texts(run.finished([]))[0] == "mofed 1 host 0:00 1 changed"


def test_a_free_strategy_tells_all_roles_at_the_end(clock: Clock) -> None:
    run = Run(clock)
    run.play("Free", 2, ordered=False)
    said = []
    for _again in range(3):
        for role in ("mofed", "iommu"):
            said += run.task("T", role)
            run.ended("n1", "ok", role)
    assert said == []
    assert texts(run.finished([]))[:2] == ["mofed 1 host 0:00", "iommu 1 host 0:00"]


# The line that moves.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def test_what_is_printed_stands_above_the_line_undamaged(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((40, 24)))
    heard: list[str] = []
    line = progress_bar.MovingLine(threading.RLock(), lambda width: f"bar of {width}", heard.append)
    line.start()
    line.step()
    sys.stdout.write("a table\nof two lines\n")
    line.step()
    sys.stdout.write("a question: ")
    line.step()
    sys.stdout.write("\n")
    line.step()
    line.stop()
    assert sys.stdout is screen
    drawn, gone = "\r\x1b[Kbar of 39", "\r\x1b[K"
    table = f"{drawn}{gone}a table\nof two lines\n"
    assert screen.getvalue() == f"{table}{drawn}{gone}a question: \n{drawn}{gone}"
    assert heard[0] == "a table\nof two lines\n"


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False), ("", False)])
def test_a_line_moves_on_a_terminal_that_can(monkeypatch: pytest.MonkeyPatch, term: str, moves: bool) -> None:
    monkeypatch.setenv("TERM", term)
    assert progress_bar.terminal(Terminal()) is moves
    assert not progress_bar.terminal(io.StringIO())


def test_a_bar_is_as_wide_as_asked_with_rich_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in (progress_bar.drawing(True), progress_bar.drawing(False), progress_bar.plain):
        for done in (0, 1, 999, 1000):
            assert len(re.sub(r"\x1b\[[0-9;]*m", "", draw(30, done, 1000))) == 30
    monkeypatch.setitem(sys.modules, "rich.progress_bar", None)
    assert progress_bar.drawing(True) is progress_bar.plain
    assert progress_bar.plain(12, 1, 2) == "[#####-----]"


# The callback, fed as Ansible does.


def task(name: str, role: str = "", action: str = "command", **more: Any) -> Any:
    given = {"loop": None, "ignore_errors": None, "run_once": False, "_parent": None, "_uuid": name, "args": {}, **more}
    made = SimpleNamespace(get_name=lambda: f"busbar.fabric.{role}")
    return SimpleNamespace(
        name=name, action=action, get_path=lambda: f"/x/{name}.yml:7", _role=made if role else None, **given
    )


def result(host: str, of: Any, **said: Any) -> Any:
    made = SimpleNamespace(get_name=lambda: host, vars={})
    return SimpleNamespace(host=made, task=of, result=said, task_fields={})


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], Any]]:
    """Begins a run. Called in the test: pytest has another sys.stdout for each of a test's phases."""
    monkeypatch.delenv("CI", raising=False)
    made = callback.CallbackModule()
    monkeypatch.setattr(made._display, "verbosity", 0)

    def begin() -> Any:
        monkeypatch.setattr(sys, "stdout", sys.stdout)
        made.v2_playbook_on_start(SimpleNamespace(get_plays=list))
        return made

    yield begin
    made._still()


def play(name: str, hosts: list[str]) -> Any:
    manager = SimpleNamespace(get_vars=lambda play: {"ansible_play_batch": hosts})
    more = {"strategy": "linear", "serial": [], "get_variable_manager": lambda: manager, "get_loader": lambda: None}
    return SimpleNamespace(get_name=lambda: name, **more)


def test_a_run_over_a_thousand_hosts_is_short(watch: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    watched = watch()
    watched.v2_playbook_on_play_start(play("Provision", THOUSAND))
    for role in (f"role{number}" for number in range(12)):
        for name in ("read", "write", "restart"):
            each = task(name, role)
            watched.v2_playbook_on_task_start(each, False)
            for host in THOUSAND:
                watched.v2_runner_on_start(SimpleNamespace(get_name=lambda host=host: host), each)
                watched.v2_runner_on_ok(result(host, each, changed=host == "n0500"))
    watched.v2_playbook_on_stats(SimpleNamespace(processed=dict.fromkeys(THOUSAND, 1), custom={}))
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 13
    assert out[0].split() == ["role0", "1000", "hosts", "0:00", "1", "changed", "(n0500)"]
    assert out[12].startswith("1000 hosts in ")


def test_a_failure_that_a_block_rescues_is_none(watch: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    watched = watch()
    failing, cleaning = task("failing"), task("cleaning")
    block = SimpleNamespace(block=[failing], rescue=[cleaning], always=[], _parent=None, _uuid="block")
    failing._parent = cleaning._parent = block
    watched.v2_playbook_on_play_start(play("Provision", ["n1"]))
    for each in (failing, cleaning):
        watched.v2_playbook_on_task_start(each, False)
        watched.v2_runner_on_failed(result("n1", each, msg="why"))
    out = capsys.readouterr().out
    assert "RESCUED  failing  n1\n  /x/failing.yml:7\n  why\n" in out
    assert "FAILED  cleaning  n1\n" in out


def test_items_say_each_why_and_their_task_not_again(
    watch: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    watched = watch()
    looped = task("looped", loop=[1, 2])
    watched.v2_playbook_on_play_start(play("Provision", ["n1"]))
    watched.v2_playbook_on_task_start(looped, False)
    for host in ("n1", "n2"):
        watched.v2_runner_item_on_failed(result(host, looped, msg="why", item=2))
        watched.v2_runner_on_failed(result(host, looped, msg="One or more items failed", results=[]))
    watched.v2_playbook_on_stats(SimpleNamespace(processed={"n1": 1, "n2": 1}, custom={}))
    out = capsys.readouterr().out
    assert out.count("why") == 1
    assert "FAILED  looped (item 2)  the same on 1 host: n2\n" in out
    assert "One or more" not in out
    # Played again, as in a loop over its file, and before it has come to any item.
    watched.v2_runner_on_failed(result("n1", looped, msg="no list to go through"))
    assert "no list to go through" in capsys.readouterr().out


def test_events_of_tasks_that_never_began_and_of_no_play_do_no_harm(watch: Callable[[], Any]) -> None:
    watched = watch()
    stray = task("stray", "mofed")
    for name in ("v2_runner_on_ok", "v2_runner_on_skipped", "v2_runner_on_failed", "v2_runner_on_unreachable"):
        getattr(watched, name)(result("n1", stray))
    for name in ("v2_runner_retry", "v2_runner_on_async_poll", "v2_runner_on_async_ok", "v2_runner_on_async_failed"):
        getattr(watched, name)(result("n1", stray))
    for name in ("v2_runner_item_on_ok", "v2_runner_item_on_skipped", "v2_runner_item_on_failed", "v2_on_file_diff"):
        getattr(watched, name)(result("n1", stray, diff=[], changed=True))
    watched.v2_playbook_on_no_hosts_matched()
    watched.v2_playbook_on_no_hosts_remaining()


def test_hosts_with_the_same_diff_are_folded_and_their_text_escaped(
    watch: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    watched = watch()
    writing = task("writing")
    watched.v2_playbook_on_play_start(play("Provision", ["n1", "n2"]))
    watched.v2_playbook_on_task_start(writing, False)
    for host in ("n1", "n2"):
        diff = {"before": "", "after": "a\x1b[2J\n", "after_header": "/etc/x\x1b"}
        watched.v2_on_file_diff(result(host, writing, diff=[diff], changed=True))
        watched.v2_runner_on_ok(result(host, writing, diff=[diff], changed=True))
    watched.v2_playbook_on_stats(SimpleNamespace(processed={"n1": 1, "n2": 1}, custom={}))
    out = capsys.readouterr().out
    assert "+a\\x1b[2J" in out
    assert out.count("+++") == 1
    assert "DIFF  writing  the same on 1 host: n2\n" in out


class Derived(callback.CallbackModule):
    """As ansible-runner makes its own of the one that is asked for."""


@pytest.mark.parametrize(
    ("variable", "verbosity", "of"),
    [("true", 0, callback.CallbackModule), ("", 1, callback.CallbackModule), ("", 0, Derived)],
)
def test_ansibles_own_output_in_ci_for_who_asks_for_more_and_for_ansible_runner(
    monkeypatch: pytest.MonkeyPatch, variable: str, verbosity: int, of: Any
) -> None:
    monkeypatch.setenv("CI", variable)
    made = of()
    monkeypatch.setattr(made._display, "verbosity", verbosity)
    asked: list[Any] = []
    monkeypatch.setattr(default.CallbackModule, "v2_playbook_on_start", lambda self, playbook: asked.append(playbook))
    made.v2_playbook_on_start("a playbook")
    assert asked == ["a playbook"]
    assert made._run is None


def test_the_verdict_is_no_hosts_failure(watch: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    watched = watch()
    verdict = task("Print", action="busbar.fabric.verdict")
    watched.v2_playbook_on_play_start(play("Verdict", ["n1", "n2"]))
    watched.v2_playbook_on_task_start(verdict, False)
    sys.stdout.write("2 of 2 hosts have responded\n")
    assert "2 of 2 hosts" in watched._bar(None, 80)
    watched.v2_runner_on_failed(result("n1", verdict, msg="not ok on n2"))
    watched.v2_playbook_on_stats(SimpleNamespace(processed={"n1": 1}, custom={}))
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "2 of 2 hosts have responded",
        "not ok on n2",
        "Verdict 2 hosts 0:00",
        "2 hosts in 0:00: nothing changed; the verdict is not ok",
    ]


def test_a_playbook_is_judged_where_a_block_of_it_has_the_verdict() -> None:
    inner = SimpleNamespace(block=[task("a"), task("b", action="busbar.fabric.verdict")], action=None)
    for found, tasks in (({}, [[task("c")], [SimpleNamespace(block=[inner], action=None)]]), (None, [[task("c")]])):
        of = SimpleNamespace(get_tasks=lambda tasks=tasks: tasks)
        assert callback._judged(SimpleNamespace(get_plays=lambda of=of: [of])) == found
