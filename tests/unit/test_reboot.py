from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.filter.play_nodes import play_nodes
from ansible_collections.busbar.fabric.plugins.plugin_utils import reboot

WAITING = ("kernel argument iommu=pt is not active before a reboot",)
BACK: dict[str, Any] = {"rebooted": True, "changed": True, "elapsed": 41}


class HostVars(dict[str, Any]):
    """As Ansible's: hosts in the order of the inventory, and what a run has registered for each."""

    raw_get = dict.__getitem__


def decide(**changes: Any) -> reboot.Decision:
    given: dict[str, Any] = {"waiting": WAITING, "max_disruption": "reboot", "earlier": {}, "busy": []}
    return reboot.decide(**{**given, **changes})


def found(decision: reboot.Decision) -> dict[str, str]:
    return {finding.check: finding.state for finding in decision.findings if not finding.ok}


DRAINED: dict[str, Any] = {"drained": True, "findings": []}
HELD = {"id": "drain.idle[live]@the node", "state": "withheld", "have": "busy: a job", "fix": "wait"}
HOLDS = "process python (pid 1) holds 9 MiB on 1 GPU"
NO_ROUTE = {"unreachable": True, "msg": "no route to host"}
STOPPED = decide(earlier={"node01": reboot.judge(decide().to_dict(), {}, ()).to_dict()})


@pytest.mark.parametrize(
    ("changes", "reboots", "expected"),
    [
        ({}, True, {}),
        # Without leave nothing is rebooted, and nothing is said twice.
        *[({"max_disruption": most}, False, {}) for most in ("none", "link", "driver")],
        ({"waiting": ()}, False, {}),
        ({"busy": [HOLDS]}, False, {"reboot.idle": "withheld"}),
        ({"busy": None}, False, {"reboot.idle": "unknown"}),
        # One that has to be drained is rebooted only when it is.
        ({"drain": DRAINED}, True, {}),
        ({"drain": DRAINED, "busy": ["a process"]}, False, {"reboot.idle": "withheld"}),
        ({"drain": {"drained": False, "findings": [HELD]}}, False, {"reboot.idle": "withheld"}),
        ({"drain": {"drained": False, "findings": [{**HELD, "state": "unknown"}]}}, False, {"reboot.idle": "unknown"}),
        ({"drain": NO_ROUTE}, False, {"reboot.idle": "unknown"}),
        ({"drain": {"drained": False, "findings": []}}, False, {"reboot.idle": "unknown"}),
        # A node in use, or one that could not be drained, does not stop the others; a stop is passed on.
        ({"earlier": {"node01": decide(busy=["a job"]).to_dict()}}, True, {}),
        ({"earlier": {"node01": decide(drain={"msg": "no response"}).to_dict()}}, True, {}),
        ({"earlier": {"node02": STOPPED.to_dict()}}, False, {"reboot.rollout": "withheld"}),
    ],
)
def test_a_node_is_rebooted_that_waits_and_is_idle(
    changes: dict[str, Any], reboots: bool, expected: dict[str, str]
) -> None:
    decision = decide(**changes)
    assert (decision.reboot, found(decision)) == (reboots, expected)


def test_what_is_passed_and_what_it_follows_from() -> None:
    assert decide(waiting=()).to_dict()["passed"] == ["reboot.pending[live]@the node"]
    assert decide(drain={"drained": False, "findings": [HELD]}).findings[0].because == HELD["id"]


@pytest.mark.parametrize(
    ("done", "left", "expected"),
    [
        (BACK, (), {}),
        (BACK, WAITING, {"reboot.verified": "drift"}),
        ({"unreachable": True, "msg": "Data could not be sent to the remote host"}, (), {"reboot.returned": "drift"}),
        ({"failed": True, "rebooted": True, "msg": "Timed out waiting"}, (), {"reboot.returned": "drift"}),
        # What failed_when has hidden.
        ({"rebooted": False, "msg": "Timed out waiting for last boot time check"}, (), {"reboot.returned": "drift"}),
        ({}, (), {"reboot.returned": "drift"}),
    ],
)
def test_a_node_that_is_not_back_as_it_should_be_stops_those_after_it(
    done: dict[str, Any], left: tuple[str, ...], expected: dict[str, str]
) -> None:
    judged = reboot.judge(decide().to_dict(), done, left)
    assert found(judged) == expected
    after = decide(earlier={"node01": judged.to_dict()})
    assert after.reboot is (not expected)
    if expected:
        assert found(after) == {"reboot.rollout": "withheld"}
        assert "node01" in (after.findings[0].have or "")


def test_reasons_are_collected_once() -> None:
    results: list[dict[str, Any]] = [{"reboot_required": ["a", "b"]}, {}, {"reboot_required": ["b"]}]
    assert reboot.reasons(results) == ("a", "b")


GOOD: list[dict[str, Any]] = [{"findings": []}, {"findings": [{"check": "a.b", "severity": "minor", "have": "x"}]}]
BAD = [*GOOD, {"findings": [{"check": "platform.gpu_count", "severity": "critical", "have": "7"}]}]


@pytest.mark.parametrize(
    ("decision", "roles", "state", "reason"),
    [
        # It was rebooted.
        (reboot.judge(decide().to_dict(), BACK, ()), GOOD, "resumed", ""),
        (reboot.judge(decide().to_dict(), BACK, ()), BAD, "resumed", "platform.gpu_count: 7"),
        (reboot.judge(decide().to_dict(), BACK, ()), [*GOOD, {}], "resumed", "not verified: a role gave no result"),
        (reboot.judge(decide().to_dict(), {}, ()), GOOD, "resumed", "reboot.returned: no response"),
        # It was not, and waits as before.
        (decide(busy=["a process"]), BAD, "undone", ""),
        (decide(max_disruption="none"), GOOD, "undone", ""),
        # Nothing waits: what an earlier run has left.
        (decide(waiting=()), GOOD, "resumed", ""),
        (decide(waiting=()), BAD, "resumed", "platform.gpu_count: 7"),
        (decide(waiting=()), [{}], "resumed", "not verified: a role gave no result"),
    ],
)
def test_what_busbar_drained_goes_back_when_it_is_in_order_or_was_left_alone(
    decision: reboot.Decision, roles: list[dict[str, Any]], state: str, reason: str
) -> None:
    assert reboot.give_back(decision, roles) == {"state": state, "reason": reason}


def of_host(most: str = "none", drain: str = "none", **registered: Any) -> dict[str, Any]:
    values = {"busbar_max_disruption": most, "busbar_drain": drain}
    return {"busbar_intent": {"values": values}, "iommu_result": {"reboot_required": list(WAITING)}, **registered}


@pytest.mark.parametrize(
    ("registered", "turn"),
    [
        (of_host("reboot"), "reboot"),
        (of_host("reboot", "slurm"), "reboot"),
        (of_host("reboot", iommu_result={"reboot_required": []}), ""),
        (of_host("driver"), ""),
        (of_host("driver", "slurm"), "give_back"),
        (of_host("reboot", "slurm", iommu_result={}), "give_back"),
        # One that was rebooted has been given back.
        (of_host("reboot", "slurm", iommu_result={}, reboot_result={"findings": []}), ""),
        # Those that an earlier play has left.
        (of_host("reboot", platform_result={"unreachable": True}), ""),
        (of_host("reboot", node_lock_result={"unreachable": True}), ""),
        (of_host("reboot", node_lock_released={"unreachable": True}), ""),
        (of_host("reboot", node_lock_result={"held": False}), ""),
        ({"fleet_audit_result": {"hosts": {}}}, ""),
        ({}, ""),
    ],
)
def test_whose_turn_it_is_is_known_before_the_play(registered: dict[str, Any], turn: str) -> None:
    hostvars = HostVars(a=registered)
    assert play_nodes(["a"], hostvars, "reboot") == (["a"] if turn == "reboot" else ["!all"])
    assert play_nodes(["a"], hostvars, "give_back") == (["a"] if turn == "give_back" else ["!all"])


def test_nodes_are_rebooted_in_the_order_of_the_inventory() -> None:
    hostvars = HostVars(b=of_host("reboot"), a=of_host("reboot"), d=of_host("reboot"), c=of_host("reboot"))
    assert play_nodes(["a", "b", "c"], hostvars, "reboot") == ["b", "a", "c"]


def test_who_has_no_turn_says_what_the_role_would_have_said() -> None:
    waits, ready = of_host("driver"), of_host("reboot", mofed_result={}, iommu_result={"reboot_required": []})
    assert reboot.untouched(waits)["reboot"] == decide(max_disruption="driver").to_dict()
    assert reboot.untouched(ready)["reboot"] == decide(waiting=()).to_dict()
    assert reboot.untouched(ready)["drain"]["findings"] == []
    # Of these somebody has to tell, or they are unknown.
    for host in (of_host("reboot"), of_host("none", "slurm"), of_host(platform_result={"unreachable": True}), {}):
        assert reboot.untouched(host) == {}
