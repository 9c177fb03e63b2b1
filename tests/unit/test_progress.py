# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.callback import default
from ansible_collections.busbar.fabric.plugins.callback import progress as callback
from ansible_collections.busbar.fabric.plugins.plugin_utils import progress
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import expand
from ansible_collections.busbar.fabric.plugins.plugin_utils.progress import Run

from tests import goldens

THOUSAND = [f"n{number:04}" for number in range(1, 1001)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# Calls of Run, one after another. at: seconds of the clock. begun: a play, hosts, its first task in a role.
SCRIPTS = {
    "a role is a line, a task outside of roles is not": "begun 2; ended n1 changed mofed; ended n2 ok mofed; at 65;"
    "task Lock ''; ended n1 ok ''; task Pass iommu; ended n[1-2] skipped iommu; finished n[1-2]",
    "a play without roles is a line, and a long one beside roles": "begun 2 ''; ended n[1-2] ok ''; play Next 2;"
    "task Lock ''; ended n1 ok ''; at 6; task Install mofed; ended n1 ok mofed; finished",
    "a play that all hosts skip": "begun 2 ''; ended n1 skipped ''; at 60; play Next 2",
    "batches": "begun 1 reboot; ended n1 changed reboot; play Provision 1 batch=1; task Reboot reboot;"
    "ended n2 changed reboot; play '' 1; play Provision 1; play Provision 1; task Reboot reboot;"
    "ended n2 changed reboot; play '' 1",
    "a thousand hosts that fail alike": "begun 1000;"
    "message unreachable n[0001-0999] mofed Install 'connect to host n[0001-0999] port 22: timed out' tasks/main.yml:3;"
    "ended n[0001-0999] unreachable mofed; message unreachable n1000 mofed Install 'another reason' x:1;"
    "ended n1000 unreachable mofed; finished n[0001-1000]",
    # A host may be called as a word that the message of all has.
    "alike but for name or address": "begun 4; message failed n1 '' T 'port of 10.0.0.1' address=10.0.0.1;"
    "message failed n2 '' T 'port of 10.0.0.2' address=10.0.0.2;"
    "message failed n3 '' T 'port of 10.0.0.22' address=10.0.0.2;"
    "message failed n4 '' T2 'port of 10.0.0.2' address=10.0.0.2; message failed a '' T 'not a file';"
    "message failed b '' T 'not a file'; finished",
    "rescued, and a verdict that is not ok": "begun 1 mofed judged=1; message rescued n1 mofed Install why;"
    "ended n1 rescued mofed; ended n1 ok ''; task Print ''; ended n1 failed '' counts=; not_ok 'not ok on n1';"
    "finished n1",
    "the next task does not wait for lost hosts": "begun 5; ended n1 unreachable mofed; ended n2 failed mofed;"
    "ended n3 ok mofed; ended n4 skipped mofed; ended n5 rescued mofed; task Next mofed;"
    "ended n1 ok mofed; at 40; tick; play Another 4; task Next mofed; at 80; tick",
    "check mode": "begun 1 mofed check=1; ended n1 changed mofed; finished",
    "no escape of a node reaches the terminal": "begun 1;"
    "message failed n\x1b[1 mofed T\x07 'a\x1b]0\x07\r\nb\u202ec' x;"
    "finished n\x1b[1",
    "interrupted": "begun 3; ended n1 changed mofed; started n2; ended_early INTERRUPTED",
    "ended before a play": "ended_early 'ENDED EARLY'",
    "interrupted when it is judged": "begun 2 ''; verdict_printed; task Print '' once=1; started n1;"
    "ended_early INTERRUPTED;"
    "ended n1 ok '' counts=; verdict_printed; ended_early INTERRUPTED",
    "hosts that the question to all does not reach": "begun 3 ''; task Ask '' once=1;"
    "message unreachable n[2-3] '' Ask 'no route to n[2-3]'; unreached n[2-3]; ended n1 ok ''; finished n1",
    "a role within a role, and handlers": "begun 1; ended n1 ok mofed; task Inner inner; ended n1 ok inner;"
    "task Again mofed; ended n1 ok mofed; task Inner inner; task Handler mofed; ended n1 changed mofed; finished",
    "a free strategy": "play Free 2 ordered=; task T mofed; ended n1 ok mofed; task T iommu; ended n1 ok iommu;"
    "task T mofed; ended n1 ok mofed; task T iommu; ended n1 ok iommu; finished",
    "a role that lasts": "begun 1000; ended n[0001-0412] ok mofed; at 29.9; tick; at 30; tick;"
    "at 59; tick; ended n[0413-1000] ok mofed; started n0007; at 119.5; tick",
}


def begun(clock: Clock, hosts: int, role: str = "mofed", **more: Any) -> Run:
    run = Run(clock, **more)
    assert run.play("Provision", hosts) == []
    assert run.task("Install", role) == []
    return run


def printed(script: str) -> list[str]:
    """Return what the calls of a script print, each below its own line."""
    clock, found = Clock(), []
    run = Run(clock)
    for event in script.split(";"):
        hosts = re.search(r"n\[\d+-\d+\]", event)
        each = expand(hosts[0]) if hosts else [""]
        verb, *given = shlex.split(event)
        for host in each if verb != "finished" else [""]:
            words = [word.replace(hosts[0], host) if hosts else word for word in given]
            plain: list[Any] = [int(word) if word.isdigit() else word for word in words if "=" not in word]
            named: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
            lines: Any = None
            if verb == "at":
                clock.now = float(given[0])
            elif verb == "begun":
                run = begun(clock, *plain, **named)
            elif verb == "finished":
                lines = run.finished(each if hosts else given)
            else:
                called = getattr(run, verb)
                lines = called(*plain, **named) if callable(called) else called
            if isinstance(lines, list):
                assert all(line.text.isprintable() for line in lines)
                lines = "\n".join(f"{line.kind + ':':<12} {line.text}" for line in lines)
            if lines not in (None, ""):
                found += [f"> {verb}", str(lines)]
    return found


@pytest.mark.golden
def test_what_a_run_prints() -> None:
    parts = [part for name, script in SCRIPTS.items() for part in (f"== {name}", *printed(script), "")]
    goldens.text("progress", "\n".join(parts))


def test_a_failure_is_told_in_full_and_alike_for_all_who_failed_alike() -> None:
    said = {"msg": "non-zero return code", "rc": 3, "stderr": "one\ntwo\n", "cmd": ["sh", "-c", "x"], "changed": True}
    first = progress.failure({**said, "start": "10:00", "delta": "1", "findings": [{}], "_ansible_no_log": False})
    assert first.splitlines() == ["non-zero return code", "cmd: [sh, -c, x]", "rc: 3", "stderr:", "  one", "  two"]
    assert first == progress.failure({**said, "start": "10:01", "delta": "2"})
    assert progress.failure({"censored": "hidden", "changed": True}) == "hidden"
    assert "deep" in progress.failure({"msg": 7, "more": {("odd",): 1, "deep": [object()]}})
    assert progress.failure({"failed_when_result": True, "msg": ""}) == "its failed_when is true"
    assert progress.failure({}) == "it failed without a message"


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


class Watched:
    """A callback that is fed as Ansible does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.made = callback.CallbackModule()
        self._capsys = capsys

    def begin(self, *hosts: str) -> None:
        manager = SimpleNamespace(get_vars=lambda play: {"ansible_play_batch": hosts})
        more = {"strategy": "linear", "serial": [], "get_variable_manager": lambda: manager, "get_loader": list}
        self.made.v2_playbook_on_start(SimpleNamespace(get_plays=list))
        self.made.v2_playbook_on_play_start(SimpleNamespace(get_name=lambda: "Provision", **more))

    def task(self, of: Any, event: str = "", *hosts: str, **said: Any) -> None:
        self.made.v2_playbook_on_task_start(of, False)
        for host in hosts:
            self.made.v2_runner_on_start(SimpleNamespace(get_name=lambda host=host: host), of)
            self.heard(event, result(host, of, **said))

    def heard(self, event: str, of: Any) -> None:
        getattr(self.made, f"v2_{event}")(of)

    def lines(self, *hosts: str) -> list[str]:
        """hosts: of the run that is at its end."""
        if hosts:
            self.made.v2_playbook_on_stats(SimpleNamespace(processed=dict.fromkeys(hosts, 1), custom={}))
        return [" ".join(line.split()) for line in self._capsys.readouterr().out.splitlines()]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Watched]:
    """A run is begun in the test: pytest has another sys.stdout for each of a test's phases."""
    monkeypatch.delenv("CI", raising=False)
    watched = Watched(capsys)
    monkeypatch.setattr(watched.made._display, "verbosity", 0)
    yield watched
    watched.made._stop()


def test_a_run_over_a_thousand_hosts_is_short(watched: Watched) -> None:
    watched.begin(*THOUSAND)
    for role in (f"role{number}" for number in range(12)):
        for name in ("read", "write", "restart"):
            each = task(name, role)
            watched.task(each, "runner_on_ok", *THOUSAND, changed=False)
            watched.heard("runner_on_ok", result("n0500", each, changed=True))
    out = watched.lines(*THOUSAND)
    assert len(out) == 13
    assert re.fullmatch(r"role0 1000 hosts 0:\d\d 1 changed \(n0500\)", out[0])
    assert out[12].startswith("1000 hosts in ")


def test_a_failure_that_a_block_rescues_is_none(watched: Watched) -> None:
    failing, cleaning = task("failing"), task("cleaning")
    block = SimpleNamespace(block=[failing], rescue=[cleaning], always=[], _parent=None, _uuid="block")
    failing._parent = cleaning._parent = block
    watched.begin("n1")
    for each in (failing, cleaning):
        watched.task(each, "runner_on_failed", "n1", msg="why")
    told = ["RESCUED failing n1", "/x/failing.yml:7", "why", "FAILED cleaning n1", "/x/cleaning.yml:7", "why"]
    assert watched.lines() == told


def test_items_say_each_why_and_their_task_not_again(watched: Watched) -> None:
    looped = task("looped", loop=[1, 2])
    watched.begin("n1")
    watched.task(looped)
    for host in ("n1", "n2"):
        watched.heard("runner_item_on_failed", result(host, looped, msg="why", item=2))
        watched.heard("runner_on_failed", result(host, looped, msg="One or more items failed", results=[]))
    assert watched.lines("n1", "n2")[:4] == [
        *("FAILED looped (item 2) n1", "/x/looped.yml:7", "why"),
        "FAILED looped (item 2) the same on 1 host: n2",
    ]
    # Played again, as in a loop over its file, and before it has come to any item.
    watched.heard("runner_on_failed", result("n1", looped, msg="no list to go through"))
    assert watched.lines()[-1] == "no list to go through"


def test_events_of_tasks_that_never_began_and_of_no_play_do_no_harm(watched: Watched) -> None:
    watched.made.v2_playbook_on_start(SimpleNamespace(get_plays=list))
    ends = ("on_ok", "on_skipped", "on_failed")
    events = [f"runner_{item}{end}" for item in ("", "item_") for end in (*ends, "on_unreachable")[: 4 - bool(item)]]
    others = ("runner_retry", "runner_on_async_poll", "runner_on_async_ok", "runner_on_async_failed", "on_file_diff")
    for name in (*events, *others):
        watched.heard(name, result("n1", task("stray", "mofed"), diff=[], changed=True))
    watched.made.v2_playbook_on_no_hosts_matched()
    watched.made.v2_playbook_on_no_hosts_remaining()


def test_hosts_with_the_same_diff_are_folded_and_their_text_escaped(watched: Watched) -> None:
    writing = task("writing")
    watched.begin("n1", "n2")
    watched.task(writing)
    for host in ("n1", "n2"):
        diff = {"before": "", "after": "a\x1b[2J\n", "after_header": "/etc/x\x1b"}
        watched.heard("on_file_diff", result(host, writing, diff=[diff], changed=True))
        watched.heard("runner_on_ok", result(host, writing, diff=[diff], changed=True))
    out = watched.lines("n1", "n2")
    assert "+a\\x1b[2J" in out
    assert sum("+++" in line for line in out) == 1
    assert "DIFF writing the same on 1 host: n2" in out


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


def test_the_verdict_is_no_hosts_failure(watched: Watched) -> None:
    verdict = task("Print", action="busbar.fabric.verdict")
    watched.begin("n1", "n2")
    watched.task(verdict)
    watched.heard("runner_on_failed", result("n1", verdict, msg="not ok on n2"))
    assert watched.lines("n1") == [
        "not ok on n2",
        "2 hosts in 0:00: nothing changed; the verdict is not ok",
    ]


def test_a_playbook_is_judged_where_a_block_of_it_has_the_verdict() -> None:
    inner = SimpleNamespace(block=[task("a"), task("b", action="busbar.fabric.verdict")], action=None)
    for found, tasks in (({}, [[task("c")], [SimpleNamespace(block=[inner], action=None)]]), (None, [[task("c")]])):
        of = SimpleNamespace(get_tasks=lambda tasks=tasks: tasks)
        assert callback._judged(SimpleNamespace(get_plays=lambda of=of: [of])) == found
