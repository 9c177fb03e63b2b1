# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/remediate.yml on a simulated node that a real Slurm has, and what is left of runs that are killed.

BUSBAR_REMEDIATE_KILLS=50 kills as many runs; BUSBAR_REMEDIATE_SEED says when.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import slurm as slurm_node
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from lab import store
from tests import processes
from tests.slurm_daemons import ROOT, Slurm, ansibles_environment, wait

KILLS = int(os.environ.get("BUSBAR_REMEDIATE_KILLS", "3"))
SEED = int(os.environ.get("BUSBAR_REMEDIATE_SEED", "18"))
# Of a run that comes to its end, at the least.
LINES = 20
NODE = "node02"
MARK = "BUSBAR_REMEDIATE_TEST"
QUARANTINE = ("-e", '{"busbar_remediate_quarantine": true}')
ACCUSED = (
    Finding("platform.nvlinks", "0000:bb:00.0 GPU5", "drift", "critical", "18", "17", "nvidia-smi", "why", "do"),
    Finding("roce_qos.pfc", "0000:1a:00.0 mlx5_0", "drift", "major", "3", "none", "mlnx_qos", "why", "do"),
    Finding("nccl_conf.file", "/etc/nccl.conf", "drift", "critical", "x", "y", "z", "why", "do", "persisted"),
)


class Site:
    """One node, its inventory and where the control node keeps what it has done."""

    def __init__(self, slurm: Slurm, top: Path) -> None:
        self.slurm, self.top, self.lab = slurm, top, top / "lab"
        self.results = top / "results"
        self.findings = top / "accused.json"
        self.findings.write_text(json.dumps({"hosts": {NODE: {"findings": [one.to_dict() for one in ACCUSED]}}}))

    def break_(self) -> None:
        """A node that nobody has provisioned: what is accused above is so, and its repair disturbs links."""
        shutil.rmtree(self.lab, ignore_errors=True)
        store.create(self.lab, {NODE: store.STANDARD[NODE]})
        self.slurm.put_tools(self.lab / NODE / "sys")

    def start(self, *more: str, findings: bool = True) -> subprocess.Popen[bytes]:
        given = {
            "remediate_findings": [str(self.findings)] if findings else [],
            "nccl_benchmark_results_path": str(self.results),
            "busbar_findings_path": str(self.top / "left.json"),
            "busbar_drain": "slurm",
        }
        argv = [str(Path(sys.executable).with_name("ansible-playbook")), str(ROOT / "playbooks/remediate.yml")]
        environment = {**ansibles_environment(self.top), MARK: str(self.top)}
        (self.top / "left.json").unlink(missing_ok=True)
        argv += ["-i", str(self.lab / "inventory"), "-e", json.dumps(given), *more]
        with (self.top / "out").open("ab") as out, open(os.devnull) as nothing:
            return subprocess.Popen(argv, cwd=ROOT, env=environment, stdin=nothing, stdout=out, stderr=out)

    def run(self, *more: str, findings: bool = True) -> dict[str, Any]:
        """To its end; the findings of the node and their state."""
        self.start(*more, findings=findings).wait(1800)
        path = self.top / "left.json"
        if not path.exists():
            return {}
        return {one["check"]: one["state"] for one in json.loads(path.read_text())["hosts"][NODE]["findings"]}

    def lines(self) -> int:
        path = action_log.file(self.results)
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def is_at(self, line: int, run: subprocess.Popen[bytes]) -> bool:
        """Whether the log has so many lines, or the run is over."""
        return self.lines() >= line or run.poll() is not None

    def kill(self) -> None:
        """All at once, as when the control node loses its power: none of them cleans up."""
        while found := processes.marked(MARK, str(self.top)):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def recorded(self) -> str:
        """What Slurm has; one that is drained by Busbar is known, and one that is kept out has a reason in the log."""
        state = self.slurm.node(NODE)
        log = action_log.read(self.results).entries
        if "DRAIN" in state:
            assert slurm_node.PREFIX in state
            assert {NODE} & ({*action_log.open_drains(log)} | action_log.held(log)), state
        if slurm_node.KEPT in state:
            assert any((one.action, one.outcome) == ("left_drained", "begun") and one.why for one in log), state
        return state


@pytest.fixture
def site(slurm: Slurm, tmp_path: Path) -> Iterator[Site]:
    made = Site(slurm, tmp_path)
    made.break_()
    yield made
    made.kill()


def test_what_a_killed_run_has_drained_the_next_one_gives_back(site: Site) -> None:
    """Without being told of a finding, once it has finished what was begun."""
    run = site.start()
    wait("a drain", lambda: run.poll() is not None or "DRAIN" in site.slurm.node(NODE), 1200)
    site.kill()
    run.wait(600)
    assert site.recorded().startswith("IDLE+DRAIN ")
    assert NODE in action_log.open_drains(action_log.read(site.results).entries)
    site.run(findings=False)
    assert site.recorded() == "IDLE", (site.top / "out").read_text()[-3000:]
    assert not action_log.open_drains(action_log.read(site.results).entries)


@pytest.mark.long
def test_a_run_that_is_killed_at_any_moment_leaves_no_node_drained_without_a_record(site: Site) -> None:
    """Nor does the run after it, which is killed, too, where there is something left; the last one gives the node back.

    Those after the first are told of no finding where they have to finish what was begun.
    """
    chance = random.Random(SEED)
    seen: dict[str, int] = {}
    left: Mapping[str, Entry] = {}
    for number in range(KILLS):
        if not left:
            site.break_()
            site.results = site.top / f"results-{number}"
        begun = site.lines()
        run = site.start(findings=not left)
        line, delay = begun + chance.randrange(1, LINES), chance.uniform(0, 0.6)
        wait("its turn", partial(site.is_at, line, run), 1200)
        time.sleep(delay)
        site.kill()
        run.wait(600)
        left = action_log.open_drains(action_log.read(site.results).entries)
        how = ("left drained, " if left else "") + site.recorded().split(" ")[0]
        seen[how] = seen.get(how, 0) + 1
        print(f"{number}: killed after line {line - begun} and {delay:.2f} s: {how}", flush=True)
    site.run(findings=False)
    assert site.recorded() == "IDLE", (site.top / "out").read_text()[-3000:]
    assert not action_log.open_drains(action_log.read(site.results).entries)
    # A node that was never drained proves nothing.
    assert any("DRAIN" in how for how in seen), seen
    print(f"{KILLS} runs killed: {seen}")


@pytest.mark.long
def test_a_job_is_not_disturbed_and_check_mode_changes_nothing(site: Site) -> None:
    job = site.slurm.submit(600, NODE)
    assert site.run() == {"remediate.rollout": "withheld"}
    assert site.slurm.node(NODE) == "ALLOCATED"
    site.slurm.run("scancel", job)
    wait("the job to end", lambda: site.slurm.node(NODE) == "IDLE")
    before = site.lines()
    assert "remediate.mended" in site.run("--check", *QUARANTINE)
    assert (site.lines(), site.slurm.node(NODE)) == (before, "IDLE")


def test_what_no_role_mends_is_kept_out_of_jobs_with_a_record_where_all_else_is_mended(site: Site) -> None:
    quarantine(site)


def quarantine(site: Site) -> None:
    store.break_(site.lab, NODE, "nvlink-down")
    before = site.lines()
    assert site.run(*QUARANTINE) == {"remediate.role": "drift", "remediate.left": "drift"}
    assert site.recorded().startswith("IDLE+DRAIN busbar: not resumed, platform.nvlinks 0000:bb:00.0 GPU5: 17 active (")
    actions = [f"{one.action} {one.outcome}" for one in action_log.read(site.results).entries[before:]]
    order = ["drained begun", "role begun", "verified done", "left_drained begun", "left_drained done"]
    assert sorted(order, key=actions.index) == order


@pytest.mark.long
def test_once_the_part_is_replaced_the_same_file_gives_the_node_back(site: Site) -> None:
    """The check that failed is ok."""
    quarantine(site)
    store.repair(site.lab, NODE, "nvlink-down")
    assert site.run(*QUARANTINE) == {}
    assert site.slurm.node(NODE) == "IDLE"
