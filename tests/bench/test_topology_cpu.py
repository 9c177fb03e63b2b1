"""CPU seconds of what runs on every node every night, and of the linter. Printed beside the target, never asserted."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.lab import store
from tests.bench.conftest import Show
from tests.bench.cpu import of_children

ROOT = Path(__file__).resolve().parent.parent.parent
NODE_TARGET = 0.5
LINT_TARGET = 1.0
RUNS = 5


def figure(what: str, seconds: float, target: float) -> str:
    return f"\n{what:60} {seconds:6.3f} s CPU (target < {target:g} s)"


def cpu(argv: list[str], stdin: str = "") -> tuple[float, str]:
    """Median CPU seconds of a command with all its children, nvidia-smi's stand-in among them, and what it printed."""
    spent = []
    for _ in range(RUNS):
        before = of_children()
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=1800, cwd=ROOT, check=False)
        spent.append(of_children() - before)
        assert done.stdout, done.stderr
    return statistics.median(spent), done.stdout


def site(lab: Path, node: str) -> dict[str, Any]:
    """The module's arguments for a node."""
    values = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())["gpu_nodes"]["hosts"][node]
    return {
        "profile": yaml.safe_load((ROOT / "profiles" / f"{values['busbar_platform']}.yml").read_text()),
        "profile_name": values["busbar_platform"],
        "fabric": values["busbar_fabric"],
        "hardware_root": values["busbar_hardware_root"],
        "system_root": values["busbar_system_root"],
    }


@pytest.mark.parametrize("node", store.STANDARD)
def test_the_module_as_ansible_runs_it(lab: Path, show: Show, node: str, tmp_path: Path) -> None:
    """Without the unpacking of the module's archive, which is Ansible's and the same for every module."""
    arguments = tmp_path / "arguments.json"
    given = {**site(lab, node), "cross_checks": ["nvidia_smi_topo"], "_ansible_remote_tmp": str(tmp_path)}
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": given}))
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'collections')!r}); sys.argv[1:] = [{str(arguments)!r}];"
        " runpy.run_module('ansible_collections.busbar.fabric.plugins.modules.topology_info', run_name='__main__')"
    )
    seconds, printed = cpu([sys.executable, "-c", start])
    assert json.loads(printed)["findings"] == []
    show(figure(f"module topology_info, {node}", seconds, NODE_TARGET))


def test_lint_of_three_hundred_lines(show: Show, tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("".join(f"NCCL_IB_HCA{number} = mlx5_{number} # comment\n" for number in range(300)))
    seconds, printed = cpu([sys.executable, "-m", "busbar", "lint", "--nccl-version", "2.27.7", str(conf)])
    assert "in 1 file" in printed
    show(figure("busbar lint, 300 lines, all of them wrong", seconds, LINT_TARGET))
