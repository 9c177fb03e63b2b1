# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/fabric.yml as a user starts it, over planes of ibsim: healthy, with a fault, twice, and with a bad node.

And killed: BUSBAR_FABRIC_KILLS says at how many random moments (20 take some ten minutes).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record

from busbar.cli import main
from tests.conftest import ANSIBLES_OUTPUT, COMPILED

from .description import names, rail_optimised
from .planes import Machine, Plane, planes, wait
from .site import read

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTS = names(4)
KILLS = int(os.environ.get("BUSBAR_FABRIC_KILLS", "1"))
# Seconds of a run, and of a sweep, where nothing else runs: kills are spread over a little more.
RUN, SWEEP = 14.0, 2.0
# The module as Ansible runs it.
MODULE = """\
import sys
sys.path[:0] = {paths!r}
from ansible_collections.busbar.fabric.plugins.modules import ib_fabric_info
ib_fabric_info.main()
"""


@dataclass
class Site:
    """An inventory of simulated hosts, and the planes that they hang on."""

    top: Path
    planes: list[Plane]
    machines: dict[str, Machine]

    def command(self, *arguments: str, playbook: str = "playbooks/fabric.yml") -> dict[str, Any]:
        """Of subprocess: a run of ansible-playbook, which writes its findings to ``findings``."""
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.top),
            # ibsim's tools leave folders where they are started.
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.top / "ansible"),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": COMPILED,
            **ANSIBLES_OUTPUT,
        }
        argv = ["ansible-playbook", str(ROOT / playbook), "-i", str(self.top / "inventory/hosts.yml"), *arguments]
        argv += ["-e", f"busbar_findings_path={self.findings}"]
        return {"args": argv, "cwd": self.top, "env": environment}

    @property
    def findings(self) -> Path:
        return self.top / "findings.json"

    def play(self, *arguments: str, playbook: str = "playbooks/fabric.yml") -> tuple[int, str, dict[str, Any]]:
        """Exit code, what was printed, and host -> its part of the findings file."""
        self.findings.unlink(missing_ok=True)
        command = self.command(*arguments, playbook=playbook)
        done = subprocess.run(**command, capture_output=True, text=True, timeout=1800, check=False)
        said = json.loads(self.findings.read_text())["hosts"] if self.findings.exists() else {}
        return done.returncode, done.stdout + done.stderr, said

    def kill(self, trial: int) -> None:
        """A run that is killed at some moment: all of it, or ansible-playbook alone, whose children go on.

        Every other one while it sweeps.
        """
        dice = random.Random(trial)
        lock = Path(self.machines[HOSTS[0]].top, "run/busbar/lock.json")
        # One that was killed before may have left its own.
        left = lock.read_text() if lock.exists() else ""
        with (self.top / "killed.log").open("w") as out:
            run = subprocess.Popen(**self.command(), stdout=out, stderr=out, start_new_session=True)
        if trial % 2 == 0:
            wait("a run that has the node", lambda: lock.exists() and lock.read_text() not in ("", left), 300)
            time.sleep(dice.uniform(0, 2 * SWEEP))
        else:
            time.sleep(dice.uniform(0, 1.2 * RUN))
        if dice.random() < 0.5:
            os.killpg(run.pid, signal.SIGKILL)
        run.kill()
        run.wait(600)

    def records(self) -> list[Path]:
        return sorted((self.top / "results" / "fabric").glob("2*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    top = tmp_path_factory.mktemp("site")
    red = rail_optimised("red", 1, HOSTS, [0, 1], cables_per_spine=2)
    blue = rail_optimised("blue", 2, HOSTS, [2, 3], cables_per_spine=2)
    with planes(red, blue, top=top) as made:
        for plane in made:
            plane.manage(plane.fabric.hca(HOSTS[1], min(rail for _host, rail in plane.fabric.rails)))
            plane.settle_managers()
        machines = {host: Machine(host, made, top / host) for host in HOSTS}
        folder = top / "inventory"
        (folder / "profiles").mkdir(parents=True)
        (folder / "group_vars").mkdir()
        pci = [f"0000:{0x10 + rail:02x}:00.0" for rail in range(4)]
        profile = {
            "description": "simulated hosts with an HDR rail in each of four places",
            "gpus": {"count": 1, "models": ["simulated"]},
            "rail_defaults": {"rate_gbps": 200, "link_layers": ["InfiniBand"]},
            "rails": [{"pci": address, "paths": {0: "SYS"}} for address in pci],
        }
        (folder / "profiles" / "simulated.yml").write_text(yaml.safe_dump(profile))
        hosts = {
            host: {"busbar_hardware_root": str(machine.top), "busbar_system_root": str(machine.top)}
            for host, machine in machines.items()
        }
        values = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "busbar_platform": "simulated",
            "busbar_fabric_hosts": HOSTS[:2],
            "ib_fabric_interval": 0,
            "nccl_benchmark_collectives": [],
            "nccl_benchmark_results_path": str(top / "results"),
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}))
        (folder / "group_vars" / "gpu_nodes.yml").write_text(yaml.safe_dump(values))
        yield Site(top, made, machines)


def wrong(said: dict[str, Any]) -> dict[str, list[str]]:
    """Host -> checks that are not ok."""
    found = {host: sorted(one["check"] for one in of_host["findings"]) for host, of_host in said.items()}
    return {host: checks for host, checks in found.items() if checks}


def test_a_module_that_is_killed_hinders_nobody(site: Site, tmp_path: Path) -> None:
    machine = site.machines[HOSTS[0]]
    roots = {"hardware_root": str(machine.top), "system_root": str(machine.top)}
    script, given = tmp_path / "module.py", tmp_path / "arguments.json"
    paths = [str(ROOT / "collections"), *(path for path in sys.path if path.endswith("site-packages"))]
    script.write_text(MODULE.format(paths=paths))
    given.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**roots, "_ansible_remote_tmp": str(tmp_path)}}))
    argv = [sys.executable, str(script), str(given)]
    dice = random.Random(7)
    for trial in range(max(KILLS, 3)):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as module:
            time.sleep(dice.uniform(0.2, SWEEP))
            module.kill()
        found = read(machine.top)
        assert [str(finding) for finding in found.findings if not finding.ok] == [], trial
        assert [(len(one.nodes), one.complete) for one in found.sweeps] == [(12, True)] * 2, trial


def test_a_fabric_is_swept_judged_and_kept(site: Site) -> None:
    results = site.top / "results"
    for trial in range(KILLS):
        # Where one was killed, the next is as if it had not been.
        site.kill(trial)
        if (results / "fabric/latest").exists():
            fabric_record.read(results)
        last = site.records()
        rc, out, said = site.play()
        assert (rc, wrong(said)) == (0, {}), out
        assert site.records()[-1] not in last
        assert fabric_record.read(results).complete
    assert "FABRIC: plane 0x" in out
    assert all(of_host["passed"] for of_host in said.values())
    # The second node saw no plane that the first had not swept.
    assert out.count("FABRIC: plane") == 2
    assert out.count(f"from {HOSTS[0]}") == 2

    # Such a run can be drafted as a plan: every cable, each rail's with its host.
    last = site.records()
    plan = site.top / "plan.csv"
    assert main(["fabric", "plan", str(site.top / "results"), "-o", str(plan)]) == 0
    drafted = cabling_plan.load(plan).cables
    assert len(drafted) == sum(len(list(plane.fabric.links())) for plane in site.planes)
    assert {(one.a_name, one.rail) for one in drafted if one.rail is not None} == {
        (f"{host} mlx5_{rail}", rail) for host in HOSTS for rail in range(4)
    }

    # In the nightly check the same, and within the interval nobody asks the fabric.
    more = ("--check", "--tags", "ib_fabric", "-e", '{"ib_fabric_interval": 3600}')
    rc, out, said = site.play(*more, playbook="playbooks/drift.yml")
    # These hosts have no GPUs, which platform says: it is asked by what the fabric knows them.
    assert {check.partition(".")[0] for checks in wrong(said).values() for check in checks} == {"platform"}, out
    assert all(any(one.startswith("ib_fabric.") for one in of_host["passed_ids"]) for of_host in said.values())
    assert "FABRIC: not swept again: that was" in out
    assert site.records()[-1] not in last

    # Two cables in each other's place, and a second node whose tool gives garbage.
    red = site.planes[0]
    red.swap(red.fabric.leaf_port(HOSTS[2], 0), red.fabric.leaf_port(HOSTS[3], 1))
    wait("its links", lambda: red.active() == len(red.fabric.cables))
    broken = site.machines[HOSTS[1]]
    shutil.rmtree(broken.top / "usr/sbin")
    try:
        rc, out, said = site.play("--check", "--tags", "ib_fabric", playbook="site.yml")
    finally:
        red.swap(red.fabric.leaf_port(HOSTS[2], 0), red.fabric.leaf_port(HOSTS[3], 1))
    assert rc == 2, out
    assert main(["fabric", "plan", str(site.top / "results")]) == 1
    found = {host: [one for one in checks if one.startswith("ib_fabric")] for host, checks in wrong(said).items()}
    found = {host: checks for host, checks in found.items() if checks}
    assert found.pop(HOSTS[1])[0].startswith("ib_fabric."), out
    assert found == {HOSTS[2]: ["ib_fabric.swapped"], HOSTS[3]: ["ib_fabric.swapped"]}, out
