# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Four simulated nodes by the real mpirun and srun: healthy is ok, and each of the lab's faults gets its verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.cluster_faults import CATALOGUE, ClusterFault
from tests import debian, series
from tests.trees import tool

from .jobs import asked
from .simulated import HARDWARE, Simulated

# Two GPUs a node: two rails of 48 GB/s, of which published runs reach 99 %; a bar for clusters is 0.85 of that.
BAR = 0.85 * 2 * 48
PER_NODE = 2
CODE = """\
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.modules import nccl_perf
with patch_module_args(json.loads(sys.argv[1])): nccl_perf.main()
"""


def start(simulated: Simulated, tmp_path: Path, kind: str, alone: bool = False, **more: Any) -> subprocess.Popen[str]:
    """The module nccl_perf on the first node, of a run over all of them."""
    # Tools are looked for below the system root. By a link mpirun would look for its daemon beside the link.
    tool(tmp_path, f"usr/bin/{kind}", f'exec {shutil.which(kind, path=debian.PLACES)} "$@"')
    given = {
        "binary": simulated.program("all_reduce", alone=alone),
        "launch": asked(simulated.nodes, kind, PER_NODE),
        "min_bytes": "512M",
        "max_bytes": "8G",
        "step_factor": 16,
        "algorithm": "Ring",
        "bar_busbw": BAR,
        "timeout": 60,
        "result_directory": str(tmp_path / "results"),
        "require_idle": False,
        "system_root": str(tmp_path),
        "hardware_root": HARDWARE,
        **more,
    }
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", CODE, json.dumps(given)]
    module: subprocess.Popen[str] = simulated.nodes[0].start(
        argv, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return module


def ended(module: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says."""
    text, problem = module.communicate(timeout=300)
    found: dict[str, Any] = json.loads(text or json.dumps({"failed": True, "msg": problem}))
    assert not found.get("failed"), found["msg"]
    return found


def measure(simulated: Simulated, tmp_path: Path, kind: str, alone: bool = False, **more: Any) -> dict[str, Any]:
    return ended(start(simulated, tmp_path, kind, alone, **more))


def roots(result: dict[str, Any]) -> dict[str, str]:
    """Check -> state, of every finding that does not follow from another."""
    print(*("{check} {state} because {because}: {have}".format(**one) for one in result["findings"]), sep="\n")
    return {one["check"]: one["state"] for one in result["findings"] if not one["because"]}


@pytest.mark.parametrize("kind", series.first("srun", "mpirun"))
def test_a_healthy_cluster_is_ok(simulated: Simulated, tmp_path: Path, kind: str) -> None:
    result = measure(simulated, tmp_path, kind, repeats=2, environment={"NCCL_IB_TC": 106})
    assert roots(result) == {}
    assert result["simulated"]
    assert result["busbw"] == pytest.approx(95, rel=0.02)
    assert [run["rc"] for run in result["repeats"]] == [0, 0]
    assert (result["transport"]["networks"], result["transport"]["proven"]) == (["IB"], True)
    ranks = {host: one["ranks"] for host, one in result["transport"]["hosts"].items()}
    assert ranks == dict.fromkeys((node.name for node in simulated.nodes), PER_NODE)
    for machine, rails in zip(simulated.machines, result["rails"].values(), strict=True):
        busy = {name for name, moved in rails.items() if moved["sent"]}
        assert busy == {machine.rail(0).name, machine.rail(1).name}


# Of which make test has one of each launcher.
BRIEF = ("slow-rail", "gdr-off")


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        pytest.param(number, fault, id=fault.name, marks=[] if fault.name in BRIEF else pytest.mark.long)
        for number, fault in enumerate(CATALOGUE)
    ],
)
def test_each_fault_gets_its_verdict(simulated: Simulated, tmp_path: Path, number: int, fault: ClusterFault) -> None:
    more: dict[str, Any] = {} if fault.ends else {"timeout": 8}
    if fault.check == "nccl_perf.spread":
        more["repeats"] = 3
    with simulated.broken(fault.name):
        kind = fault.launcher or ("mpirun", "srun")[number % 2]
        result = measure(simulated, tmp_path, kind, fault.alone, **more)
    assert roots(result) == {fault.check: fault.state}
