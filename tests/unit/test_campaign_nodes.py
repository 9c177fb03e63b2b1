"""Calls of a campaign as tasks of Ansible: polled in the background, cleared up, and checked whatever a node says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from ansible import context
from ansible.errors import AnsibleError
from ansible_collections.busbar.fabric.plugins.plugin_utils import worker_threads
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import engine, nodes
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call, measure

from tests.campaigns import ANSWER, FACTS, PERF

READ = Call("n1", "nccl_cluster", {})
JOB = Call("n1", "nccl_perf", {}, seconds=60)
STARTED = {"ansible_job_id": "j1", "started": 1, "finished": 0}
Task = Callable[[Call, str, Mapping[str, Any]], Any]


class Ansible(nodes.Nodes):
    """Nodes whose tasks are played by a function. ran: action and arguments of each."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self._made = threading.Event()
        self._late = False

    def _run_task(self, call: Call, action: str, arguments: Mapping[str, Any]) -> Any:
        self.ran.append((action, dict(arguments)))
        given = self.task(call, action, arguments)
        if isinstance(given, Exception):
            raise given
        return given


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "PAUSE", 0.0)
    monkeypatch.setattr(context, "CLIARGS", {"forks": 4})


def in_background(*polls: Any) -> Ansible:
    """Of a job that starts, and of which the polls give this."""
    left = iter(polls)

    def task(_call: Call, action: str, arguments: Mapping[str, Any]) -> Any:
        if action != nodes.STATUS:
            return dict(STARTED)
        return {} if arguments.get("mode") == "cleanup" else next(left)

    return Ansible(task)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # An order to the control node is dropped.
        ({**FACTS, "ansible_facts": {"x": 1}, "add_host": {}}, FACTS),
        ({"unreachable": True, "msg": "no route"}, {"unreachable": True, "msg": "no route"}),
        ({"failed": True, "msg": "no GPU"}, {"failed": True, "msg": "no GPU"}),
        ({}, {"failed": True, "msg": "its result is not valid: findings: is missing"}),
        ({**FACTS, "unfit": "x"}, {"failed": True, "msg": "its result is not valid: unfit: is 'x', expected a list"}),
        (AnsibleError("the vault is shut"), {"failed": True, "msg": "the vault is shut"}),
    ],
)
def test_a_result_is_checked_and_a_failure_is_one(given: Any, wanted: dict[str, Any]) -> None:
    assert Ansible(lambda *_task: given)([READ]) == [wanted]


def test_results_are_in_the_order_of_the_calls_and_calls_run_together() -> None:
    met = threading.Barrier(3, timeout=600)

    def task(call: Call, _action: str, _arguments: Mapping[str, Any]) -> Any:
        if call.host != "n0":
            met.wait()
        return {**ANSWER, "member": {**FACTS["member"], "name": call.host}, "unfit": [], "due": ""}

    calls = [Call(f"n{number}", "nccl_cluster", {}) for number in range(4)]
    assert [one["member"]["name"] for one in Ansible(task)(calls)] == ["n0", "n1", "n2", "n3"]


def test_a_job_in_the_background_is_polled_to_its_end_and_cleared_up() -> None:
    run = in_background({"finished": 0}, {"finished": 0}, {**PERF, "busbw": 380.0, "finished": 1})
    [result] = run([JOB])
    assert result["busbw"] == 380.0
    polls = [(nodes.STATUS, {"jid": "j1"})] * 3
    assert run.ran == [("busbar.fabric.nccl_perf", {}), *polls, (nodes.STATUS, {"jid": "j1", "mode": "cleanup"})]


@pytest.mark.parametrize(
    ("poll", "said"),
    [
        ({"unreachable": True, "msg": "no route"}, {"unreachable": True, "msg": "no route"}),
        ({"failed": True, "msg": "x" * 9999}, {"failed": True, "msg": "x" * 1024}),
        ({"finished": 1, "findings": "x"}, {"failed": True}),
    ],
)
def test_a_job_that_is_lost_or_invalid_is_not_polled_again(poll: dict[str, Any], said: dict[str, Any]) -> None:
    [result] = in_background(poll)([JOB])
    assert said.items() <= result.items()


def test_a_job_without_an_end_is_given_up_at_its_limit() -> None:
    run = Ansible(lambda _call, action, _given: {"finished": 0} if action == nodes.STATUS else dict(STARTED))
    [result] = run([Call("n1", "nccl_perf", {}, seconds=0.05)])
    assert result == {"failed": True, "msg": "no end within 0.05 s"}


def test_a_node_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "STEP", 0.2)
    monkeypatch.setattr(worker_threads, "ALONE", 0.05)
    free, ended = threading.Event(), list[bool]()
    monkeypatch.setattr(worker_threads, "end_connections", lambda: ended.append(True))

    def task(call: Call, _action: str, _arguments: Mapping[str, Any]) -> Any:
        return free.wait(600) if call.host == "n1" else FACTS

    run = Ansible(task)
    begin = time.monotonic()
    late, good = run([READ, Call("n2", "nccl_cluster", {})])
    run.close()
    free.set()
    assert time.monotonic() - begin < 300
    assert (late["failed"], good["unfit"], ended) == (True, [], [True])


def test_passes_follow_one_another_and_trials_run_side_by_side() -> None:
    one, two, three = (Call(f"n{number}", "perftest", {}) for number in (1, 2, 3))
    batches: list[list[Call]] = []

    def run(calls: Sequence[Call]) -> list[engine.Result]:
        batches.append([*calls])
        return [{"host": call.host} for call in calls]

    results = [[[{"host": "n1"}, {"host": "n2"}], [{"host": "n2"}]], [[{"host": "n3"}]], []]
    assert measure([[[one, two], [two]], [[three]], []], run) == results
    assert batches == [[one, two, three], [two]]
