# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `make demo` shows, and runs that begin with what it leaves: nodes that a run of site.yml has converged."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import store
from tests.site.conftest import ROOT, SECRET, Demo, recap

Play = Callable[..., Any]


def test_the_demo_is_simulated_and_finds_what_it_has_broken(demo: Demo) -> None:
    # Of a make that runs these tests nothing is taken over: its flags print more.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    argv = ["make", "--dry-run", "--no-print-directory", "demo"]
    done = subprocess.run(argv, cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" sh tests/demo.sh\n")
    assert [run.rc for run in demo.runs] == [2, 0, 2, 0]
    assert "simulated" in demo.runs[-1].out
    broken = demo.runs[2].verdict
    assert all(check in broken for check in ("platform.rail_device", "platform.nvlinks", "nccl_conf.file"))


def test_the_nodes_oldest_python_runs_it(demo: Demo, oldest_python: str) -> None:
    assert demo.python == oldest_python


def test_what_is_printed_has_no_secret(demo: Demo) -> None:
    assert "SITE_KEYS" in demo.runs[1].out
    assert not any(SECRET in run.out for run in demo.runs)


def test_fresh_converge_and_check(demo: Demo) -> None:
    fresh, first, _broken, repaired = demo.runs
    assert fresh.rc == 2  # drift is not ok, in check mode either
    assert recap(fresh.out, "node02")["failed"] == 0
    # OFED's repository, registers at boot, limits, nccl.conf, and what loads nvidia_peermem where there is no DMA-BUF,
    # each by the task of its role: a run in check mode has written none of what it said it would.
    said = " ".join(fresh.verdict.split()).partition(" checked: ")[0]
    repairs = re.findall(r"a run would repair on (\S+): (.*)", said.replace("a run", "\na run"))
    roles = {
        noun
        for nodes, items in repairs
        if nodes in ("node01", "node[01-02]")
        for noun in re.findall(r"(\w+)\.\w+\[", items)
    }
    assert roles >= {"ofed", "pcie_path", "host_limits", "nccl_conf", "gpudirect"}
    assert (first.rc, recap(first.out, "node01")["changed"]) == (0, len(roles))
    assert "VERDICT OK: 2 of 2 hosts ok" in first.verdict
    assert re.search(r"repaired on node\[01-02\]: (?s:.*?)nccl_conf.file", " ".join(first.verdict.split()))
    # Nothing may reboot, so nobody takes part in what would, and nothing is missing because of that.
    reboot = first.out[
        first.out.index("PLAY [Reboot what waits for it]") : first.out.index("PLAY [Look what SHARP needs]")
    ]
    assert (reboot.count("skipping: no hosts matched"), reboot.count("TASK")) == (2, 0)
    assert "not proven" in " ".join(first.verdict.split())  # a simulated node has no library, and the verdict says so
    assert repaired.rc == 0, repaired.out
    assert [recap(repaired.out, node)["changed"] for node in ("node01", "node02")] == [0, 0]


def test_one_broken_node_fails_the_run_and_is_the_only_row(converged: Path, play: Play) -> None:
    store.break_(converged, "node02", "rail-missing")
    before = (converged / "node02/sys/etc/nccl.conf").read_text()
    run = play("-i", converged / "inventory", "-e", f"busbar_findings_path={converged}/findings.json")
    assert run.rc == 2
    (row,) = run.rows
    assert row[:7] == ["critical", "drift", "platform.rail_device", "on", "node02", "rail", "3"]
    assert (converged / "node02/sys/etc/nccl.conf").read_text() == before
    # The other node is converged: nothing is done there.
    assert recap(run.out, "node01")["changed"] == 0
    data = json.loads((converged / "findings.json").read_text())
    assert {"reboot", "drain"} <= set(data["expected"])
    assert data["off"]["verify"] == "busbar_verify"
    assert "reboot.pending[live]@the node" in data["hosts"]["node01"]["passed_ids"]
    assert data["hosts"]["node01"]["ok"] is True
    assert {f["check"] for f in data["hosts"]["node02"]["findings"]} == {
        *("platform.rail_device", "nccl_conf.rails", "pcie_path.unit", "roce_qos.unit")
    }
