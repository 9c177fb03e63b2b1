# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module slurm_node against a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.modules import slurm_node

from tests.slurm_daemons import Slurm, wait

Ask = Callable[..., dict[str, Any]]
FOR = "kernel argument iommu=pt is not active before a reboot"


@pytest.fixture
def ask(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the module's main() for node01, and gives what it returned."""

    def run(state: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
        given = {"node": "node01", "state": state, "run": "run-1", "system_root": str(slurm.top / "sys"), **more}
        capsys.readouterr()
        with patch_module_args(given | {"_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
            slurm_node.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


@pytest.fixture
def controller(slurm: Slurm) -> Iterator[Slurm]:
    """A Slurm whose slurmctld may be stopped."""
    yield slurm
    if "slurmctld -D" not in slurm.daemons:
        slurm.start_controller()


def states(found: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in found["findings"]}


def test_an_idle_node_is_drained_once_and_resumed_once(ask: Ask, slurm: Slurm) -> None:
    predicted = ask("drained", check_mode=True, reason=FOR)
    assert slurm.node() == "IDLE"
    done = ask("drained", reason=FOR)
    assert slurm.node() == f"IDLE+DRAIN busbar: {FOR} (run-1)"
    for key in ("changed", "commands", "findings", "passed", "drained", "jobs"):
        assert predicted[key] == done[key], key
    assert (done["changed"], done["drained"], done["findings"]) == (True, True, [])
    again = ask("drained", reason=FOR, run="run-2")
    assert (again["changed"], again["drained"], again["ours"]) == (False, True, True)
    assert states(ask("reported")) == {"drain.left_over": "drift"}
    assert ask("resumed", check_mode=True)["changed"]
    assert slurm.node().startswith("IDLE+DRAIN")
    back = ask("resumed")
    assert (back["changed"], back["findings"], slurm.node()) == (True, [], "IDLE")
    assert ask("resumed")["changed"] is False
    assert ask("reported")["passed"] == ["drain.left_over[live]@the node"]


@pytest.mark.parametrize("state", ["DRAIN", "DOWN"])
def test_what_somebody_else_has_drained_or_set_down_is_theirs(ask: Ask, slurm: Slurm, state: str) -> None:
    slurm.run("scontrol", "update", "NodeName=node01", f"State={state}", "Reason=disk [bad], see busbar: x")
    before = slurm.node()
    for wanted, reason in (("drained", FOR), ("resumed", ""), ("resumed", "wrong"), ("undone", ""), ("reported", "")):
        found = ask(wanted, reason=reason)
        assert (found["changed"], found["drained"], found["ours"], found["findings"]) == (False, True, False, [])
        assert "disk [bad]" in found["notes"][0]
        assert slurm.node() == before


def test_a_node_with_a_job_is_not_drained_and_it_is_said_who_runs_there(ask: Ask, slurm: Slurm) -> None:
    job = slurm.submit(60)
    found = ask("drained", reason=FOR)
    assert (found["changed"], found["drained"], states(found)) == (False, False, {"drain.idle": "withheld"})
    assert f"Slurm job {job} of root (running, wrap)" in found["findings"][0]["have"]
    assert slurm.node() == "ALLOCATED"


def test_with_time_to_wait_no_new_job_starts_and_the_one_that_is_there_ends(ask: Ask, slurm: Slurm) -> None:
    slurm.submit(4)
    found = ask("drained", reason=FOR, wait=True)
    assert (found["changed"], found["drained"], states(found)) == (True, False, {"drain.idle": "withheld"})
    wait("the job to end", lambda: not ask("drained", reason=FOR, wait=True)["jobs"])
    assert ask("drained", reason=FOR)["drained"]


def test_somebody_elses_drain_with_a_job_is_not_free(ask: Ask, slurm: Slurm) -> None:
    slurm.submit(60)
    slurm.run("scontrol", "update", "NodeName=node01", "State=DRAIN", "Reason=disk")
    found = ask("drained", reason=FOR, wait=True)
    assert (found["changed"], found["drained"], states(found)) == (False, False, {"drain.idle": "withheld"})


def test_a_node_that_is_not_in_order_stays_drained_for_that(ask: Ask, slurm: Slurm) -> None:
    ask("drained", reason=FOR)
    kept = ask("resumed", reason="platform.gpu_count: 7 GPUs")
    assert slurm.node() == "IDLE+DRAIN busbar: not resumed, platform.gpu_count: 7 GPUs (run-1)"
    assert (kept["changed"], states(kept)) == (True, {"drain.left_over": "drift"})
    assert ask("resumed", reason="platform.gpu_count: 7 GPUs", run="run-2")["changed"] is False
    # What was not in order is not given back for having been left alone, only for being in order.
    assert ask("undone")["changed"] is False
    assert ask("resumed")["changed"]
    assert slurm.node() == "IDLE"


def test_a_reason_from_outside_stays_one_line_of_plain_text(ask: Ask, slurm: Slurm) -> None:
    ask("drained", reason="a\n\"b\" State=IDLE \x1b[31m'c' [root@2026-01-01T00:00:00] x")
    # The forged signature hides what follows it, and nothing else.
    assert slurm.node().startswith("IDLE+DRAIN busbar: a  b  State=IDLE")
    assert ask("reported")["ours"]
    assert ask("resumed")["findings"] == []


@pytest.mark.parametrize("name", ["nope", "node[01-03]", "ALL", "--all", ""])
def test_a_node_that_slurm_does_not_know_is_unknown_and_nothing_is_drained(ask: Ask, slurm: Slurm, name: str) -> None:
    for state in ("drained", "resumed", "reported"):
        found = ask(state, node=name)
        assert (found["changed"], found["drained"], states(found)) == (False, False, {"drain.state": "unknown"})
    assert [slurm.node(name) for name in ("node01", "node02", "node03")] == ["IDLE"] * 3


def test_without_a_controller_nothing_is_known_and_nothing_done(ask: Ask, controller: Slurm) -> None:
    ask("drained", reason=FOR)
    controller.stop_controller()
    # How long Slurm's tools look for it.
    with controller.configured("MessageTimeout=1\n"):
        for state in ("drained", "resumed", "undone", "reported"):
            found = ask(state)
            assert (found["changed"], found["drained"], states(found)) == (False, False, {"drain.state": "unknown"})
    controller.start_controller()
    assert ask("drained", reason=FOR)["ours"]


def test_a_user_who_may_not_change_nodes_is_told_so(ask: Ask, slurm: Slurm) -> None:
    shim = slurm.top / "sys/usr/bin/scontrol"
    text = shim.read_text()
    shim.write_text(text.replace("exec ", "exec setpriv --reuid=65534 --regid=65534 --clear-groups "))
    slurm.top.chmod(0o755)
    try:
        found = ask("drained", reason=FOR)
    finally:
        shim.write_text(text)
    assert (found["drained"], states(found), slurm.node()) == (False, {"drain.state": "unknown"}, "IDLE")
    assert "Invalid user id" in found["findings"][0]["have"]
