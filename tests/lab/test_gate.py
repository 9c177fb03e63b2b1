# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate's program as the role writes it, on simulated nodes of eight GPUs: sick ones are kept out, healthy ones not.

``make gate`` sets BUSBAR_GATE_RUNS to 1,000 checks of a healthy node, and BUSBAR_GATE_FAULTS to all critical faults.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.plugin_utils import gate_files, suite

from lab import faults, store
from tests.documents import declared
from tests.lab.audited import ARGV

RUNS = int(os.environ.get("BUSBAR_GATE_RUNS", "2"))
SEVERITIES = {each.check.id: each.check.severity for each in declared()}
NODES = {"node01": "hgx-h100", "node02": "hgx-h200"}
CRITICAL = [
    (next(node for node, platform in NODES.items() if platform in fault.platforms), name)
    for name, fault in faults.FAULTS.items()
    if SEVERITIES[fault.check] == "critical" and not fault.measured
]
# One for each role that the gate asks, one that nobody can tell, and one of which only what cannot be told is minor.
FEW = {"gpu-missing", "ofed-other-version", "rdma-plugin-gone", "peermem-unloaded", "conf-removed"}
FEW |= {"peermem-nameless", "checkpoint-cut", "gpu-gsp-timeout"}
Check = Callable[..., dict[str, Any]]
Answer = Callable[..., dict[str, Any]]
LAB = store.STANDARD


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "gate.py"
    path.write_text(gate_files.program())
    return path


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def run_module(run_module: Answer, asked: list[dict[str, Any]]) -> Answer:
    """The same, and keeps what was asked."""

    def run(name: str, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
        asked.append({"module": name, "arguments": arguments})
        return {} if check_mode else run_module(name, **arguments)

    return run


@pytest.fixture
def check(lab: Path, on_node: Answer, asked: list[dict[str, Any]], program: Path, tmp_path: Path) -> Check:
    """Runs the program for a node that its roles have brought to its intent; gives its state, with its exit code."""

    def run(node: str, fault: str = "", stage: str = "command", **more: Any) -> dict[str, Any]:
        modules = {role: suite.AUDITED[role].module for role in gate_files.ROLES}
        done = lab / f"converged-{node}"
        if not done.exists():
            for module in modules.values():
                on_node(module, node)
            done.touch()
        if fault:
            store.break_(lab, node, fault)
        asked.clear()
        for module in modules.values():
            on_node(module, node, check_mode=True)
        steps = [{"role": role, **step} for role, step in zip(modules, asked, strict=True)]
        roots = {root: str(lab / node / part) for root, part in (("hardware_root", "hw"), ("system_root", "sys"))}
        given = {"scontrol": "scontrol", "budget": 60, "fail": "open", "max_share": 0.1, "ignore": [], **roots, **more}
        path = tmp_path / "intent.json"
        path.write_text(gate_files.intent(given, steps, node))
        state = Path(given["system_root"] + gate.STATE)
        state.unlink(missing_ok=True)
        done_ = subprocess.run(
            [*ARGV, str(program), stage, str(path)], capture_output=True, text=True, timeout=600, check=False
        )
        return {**gate.parse_state(state.read_text()), "rc": done_.returncode, "out": done_.stdout + done_.stderr}

    return run


def test_a_healthy_node_is_never_kept_out(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    for node in NODES:
        states = [check(node) for _run in range(RUNS // 2)]
        for state in states:
            assert (state["verdict"], state["rc"], state["findings"]) == ("pass", 0, []), state["out"]
        with capsys.disabled():
            every = sorted(state["seconds"] for state in states)
            p99 = every[min(len(every) - 1, int(len(every) * 0.99))]
            print(f"\ngate, {node}, {len(every)} checks: median {statistics.median(every)} s, p99 {p99}")


@pytest.mark.parametrize(
    ("node", "name"), [one for one in CRITICAL if "BUSBAR_GATE_FAULTS" in os.environ or one[1] in FEW]
)
def test_a_node_with_a_critical_fault_is_kept_out(check: Check, node: str, name: str) -> None:
    """What nobody can tell is not a verdict of fail: gate_fail says what follows from it."""
    state = check(node, name)
    found = [finding for finding in state["findings"] if finding["check"] == faults.named(name).check]
    assert {finding["state"] for finding in found} == {faults.named(name).state}
    if found[0]["severity"] != "critical":
        # Of this check not every answer is.
        assert (name, state["verdict"], state["rc"]) == ("checkpoint-cut", "warn", 0)
        return
    unknown = found[0]["state"] == "unknown"
    assert (state["verdict"], state["rc"]) == (("unknown", gate.UNKNOWN) if unknown else ("fail", gate.KEEP_OUT))
    assert (state["findings"][0]["severity"], state["stage"]) == ("critical", "command")
    assert state["findings"][0]["check"] in state["out"]


def test_of_a_tool_that_hangs_all_else_is_known_and_nobody_waits_for_it(check: Check) -> None:
    state = check("node01", "smi-hang", budget=12)
    assert (state["verdict"], state["rc"]) == ("unknown", gate.UNKNOWN)
    assert "platform.gpu_tool" in [finding["check"] for finding in state["findings"]]
    # Of the same node what is wrong beside it is found.
    state = check("node01", "rail-missing", budget=12)
    assert (state["verdict"], state["rc"]) == ("fail", gate.KEEP_OUT)


def test_a_job_waits_for_what_is_quick_and_a_check_that_is_ignored_keeps_no_node_out(check: Check) -> None:
    state = check("node01", "conf-removed")
    assert state["verdict"] == "fail"
    state = check("node01", ignore=["nccl_conf.file"])
    assert (state["verdict"], state["rc"]) == ("warn", 0)
    # The Prolog does not ask for it, so that nobody is asked in Slurm's name, either.
    state = check("node01", stage="prolog")
    assert (state["verdict"], state["action"], state["rc"]) == ("pass", "none", 0)


def test_where_slurm_does_not_answer_a_sick_node_stays_since_nobody_knows_how_many_are_out(check: Check) -> None:
    for stage in ("health", "prolog", "epilog"):
        fault = "gpu-missing" if stage == "health" else ""
        state = check("node01", fault, stage=stage, scontrol="no-scontrol")
        assert (state["verdict"], state["action"], state["rc"], state["kept_out"]) == ("fail", "none", 0, None)
        assert "no-scontrol" in state["said"]


def test_a_broken_intent_is_no_verdict_and_keeps_nobody_out(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "intent.json"
    for text in ("", "{}", "[1]", json.dumps({"node": "n", "steps": []})):
        path.write_text(text)
        argv = [*ARGV, str(program), "prolog", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stdout) == (gate.UNKNOWN, "")
        assert str(path) in done.stderr
