# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `make demo` shows, and runs that begin with what it leaves: nodes that a run of site.yml has converged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import store
from tests import trees
from tests.site.conftest import ROOT, SECRET, Demo, changed, recap
from tests.site.test_host_audit import found, timeless

Play = Callable[..., Any]
FAULTS = {
    "node01": ("nvlink-down", "iommu-translated", "user-conf", "gpu-lost", "acs-on", "conf-mode"),
    "node02": ("pfc-off", "mtu-1500", "arp-flux", "gpu-slot-degraded", "slurmd-memlock"),
}


def test_the_demo_is_simulated_and_finds_what_it_has_broken(demo: Demo) -> None:
    # Of a make that runs these tests nothing is taken over: its flags print more.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    argv = ["make", "--dry-run", "--no-print-directory", "demo"]
    done = subprocess.run(argv, cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" sh tests/demo.sh\n")
    assert [run.rc for run in demo.runs] == [0, 2, 0]
    assert "simulated" in demo.runs[-1].out
    broken = demo.runs[1].verdict
    assert all(check in broken for check in ("platform.rail_device", "platform.nvlinks", "nccl_conf.file"))


def test_the_nodes_oldest_python_runs_it(demo: Demo, oldest_python: str) -> None:
    assert demo.python == oldest_python


def test_what_is_printed_has_no_secret(demo: Demo) -> None:
    assert "SITE_KEYS" in demo.runs[0].out
    assert not any(SECRET in run.out for run in demo.runs)


def test_fresh_nodes_are_changed_by_the_tasks_that_check_mode_names_and_once(demo: Demo) -> None:
    first, _broken, repaired = demo.runs
    said = json.loads((ROOT / "tests/golden/site_check.json").read_text())["node01"][1:]
    done = {task for task, nodes in changed(first.out) if "node01" in nodes}
    assert done == {next((task for task in done if row.startswith(f"{task}: ")), row) for row in said}
    # OFED's repository, registers at boot, limits, nccl.conf, and what loads nvidia_peermem where there is no DMA-BUF.
    assert (first.rc, recap(first.out, "node01")["changed"]) == (0, 5)
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


def test_the_nightly_question_finds_what_site_yml_finds_in_check_mode(converged: Path, play: Play) -> None:
    lab = converged
    for node, names in FAULTS.items():
        for name in names:
            store.break_(lab, node, name)

    def run(playbook: str) -> dict[str, Any]:
        path = lab / "findings.json"
        values = {"nccl_tests_commit": "a" * 40, "nccl_benchmark_collectives": ["all_reduce"]}
        settings = json.dumps({**values, "busbar_verify": True, "busbar_findings_path": str(path)})
        done = play("-i", lab / "inventory", "--check", "-e", settings, playbook=playbook)
        assert (done.rc, "NOT OK: 0 of 2 hosts ok" in done.verdict) == (2, True)
        return found(path)

    site = run("site.yml")
    assert run("playbooks/drift.yml") == site
    # Nothing was repaired.
    assert (lab / "node01/sys/etc/nccl.conf").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_the_roles_that_have_something_to_do_are_played_and_give_the_verdict_of_all(
    converged: Path, play: Play
) -> None:
    """As where every role is played, on one node that has all faults. tests/lab/test_faults has each fault's roles."""
    for name in (name for names in FAULTS.values() for name in names):
        store.break_(converged, "node02", name)
    broken = shutil.copytree(converged / "node02", converged.with_name("broken"), symlinks=True)
    path = converged / "findings.json"
    verdicts: dict[bool, dict[str, Any]] = {}
    played: dict[bool, set[str]] = {}
    for first in (True, False):
        if not first:
            trees.restore(broken, converged / "node02")
        settings = json.dumps({"busbar_audit_first": first, "busbar_findings_path": str(path)})
        run = play("-i", converged / "inventory", "--limit", "node02", "-e", settings)
        assert run.rc == 2
        [host] = json.loads(path.read_text())["hosts"].values()
        # The intent of a host is another one where it is asked in another way.
        del host["intent"]
        timeless(host)
        verdicts[first] = host
        played[first] = set(re.findall(r"TASK \[busbar\.fabric\.(\w+) : Configure", run.out))
    assert verdicts[True] == verdicts[False]
    assert verdicts[True]["repaired"]
    assert played[True] == {"pcie_path", "host_limits", "iommu", "mtu", "multirail", "roce_qos", "nccl_conf"}
    assert played[False] > played[True]
