# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar gate``: what it prints of what nodes answer, and its exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema

from busbar import ansible_process, cli
from tests import goldens

COUNT = Check("platform.gpu_count", why="w", fix="reseat it", severity="critical")
SICK = COUNT.judge("the node", "drift", "8 GPUs", "7 GPUs", "s").to_dict()
NOW = 1_795_000_000.0
INVENTORY = "gpu_nodes:\n  hosts:\n    node01:\n    node02:\n"


def state(**more: Any) -> dict[str, Any]:
    run = {"at": NOW - 180, "boot_id": "b", "stage": "health", "seconds": 1.5}
    found: Any = {"verdict": "pass", "action": "none", "said": "", "findings": [], "kept_out": None, "history": []}
    return {**run, **found, **more}


OUT = state(verdict="fail", action="drained", findings=[SICK], kept_out={"reason": "busbar gate: 7", "at": 1.0})


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return path


def answered(monkeypatch: pytest.MonkeyPatch, **of: Any) -> dict[str, Any]:
    """What Ansible is asked, when these hosts answer this."""
    given: dict[str, Any] = {}

    def run(event_handler: Any, **arguments: Any) -> None:
        given.update(arguments)
        for host, result in of.items():
            name = "runner_on_ok" if "state" in result else "runner_on_unreachable"
            event_handler({"event": name, "event_data": {"host": host, "res": result}})

    monkeypatch.setattr(ansible_process, "run", run)
    return given


NODES: dict[str, dict[str, Any]] = {
    "both pass": {"state": state()},
    "drained": {"state": OUT},
    "held": {"state": state(verdict="fail", action="held_by_breaker", said="5 of 9")},
    "kept out": {"state": state(kept_out={"reason": "busbar gate: 7", "at": 1.0})},
    "unknown": {"state": state(verdict="unknown")},
    "not run yet": {"state": None},
    "unreachable": {"msg": "no\x1b[31m route"},
    "no response": {},
}


@pytest.mark.golden
def test_what_nodes_answer_is_said_and_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inventory: Path
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    written = []
    for name, node02 in NODES.items():
        asked = answered(monkeypatch, node01={"state": state()}, node02=node02)
        code = cli.main(["gate", "-i", str(inventory), "--run"])
        written.append(f"== {name}: exit code {code}\n{capsys.readouterr().out}\n")
        assert (asked["host_pattern"], asked["extravars"]) == ("gpu_nodes", {"busbar_gate_run": True})
    goldens.text("gate", "".join(written))


def test_one_host_as_json_and_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inventory: Path
) -> None:
    asked = answered(monkeypatch, node02={"state": OUT})
    assert cli.main(["gate", "node02", "-i", str(inventory), "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {"node02": OUT}
    assert (asked["limit"], asked["extravars"]) == ("node02", {"busbar_gate_run": False})
    assert cli.main(["gate", "node99", "-i", str(inventory)]) == 1
    assert "busbar gate: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [{"at": "x"}, {"verdict": "good"}, {"kept_out": {"reason": "a\nb", "at": 1}}, {"findings": [{}]}, {"more": 1}],
)
def test_a_state_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"findings": [], "passed": []}
    result_schema.check("gate", {**whole, "state": OUT})
    with pytest.raises(codec.Invalid):
        result_schema.check("gate", {**whole, "state": {**OUT, **wrong}})
