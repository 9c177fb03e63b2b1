# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/reboot.yml on a simulated node that a real Slurm has.

Ansible refuses to reboot the machine that it runs on, and such a node is one: a reboot that is begun is one that fails.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import store
from tests.slurm_daemons import ROOT, Slurm, ansibles_environment, ended
from tests.trees import put, tool

# Played beside these two: who waits for a reboot, and who says that a node is not in order; long: all who have a say.
BOTH = ["reboot", "drain"]
FEW = ["platform", "iommu"]
ALL = [*suite.AFTER_REBOOT]
NODES = {"hosts": "gpu_nodes", "gather_facts": False, "vars": {"busbar_role_verdict": False}}


def roles(*names: str) -> list[dict[str, Any]]:
    return [{"ansible.builtin.import_role": {"name": f"busbar.fabric.{name}"}} for name in names]


def book(judged: Sequence[str], reboot: dict[str, Any]) -> str:
    """judged: roles that have to answer.   reboot: the play that does it."""
    verdict = {"roles": [*judged, *BOTH], "path": "{{ busbar_findings_path }}"}
    plays = [
        {"ansible.builtin.import_playbook": str(ROOT / "playbooks/provision.yml")},
        reboot,
        {**NODES, "tags": "always", "tasks": [{"busbar.fabric.verdict": verdict}]},
    ]
    return yaml.safe_dump(plays)


REBOOT_PLAY = {"ansible.builtin.import_playbook": str(ROOT / "playbooks/reboot.yml")}
# Like local, which Ansible would not reboot.
CONNECTION = """\
DOCUMENTATION = "{name: simulated, short_description: local by another name, options: {}}"
from ansible.plugins.connection import local


class Connection(local.Connection):
    transport = "simulated"
"""
REBOOT = """\
#!{python}
import subprocess, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from lab import store
lab = Path({lab!r})
argv = [lab / "node01/sys/usr/bin/scontrol", "--oneliner", "show", "node", "node01"]
with open({boot!r}, "w") as boot:
    subprocess.run(argv, stdout=boot, check=True)
store.reboot(lab, "node01")
"""
Play = Callable[..., dict[str, str]]


class Lab(NamedTuple):
    """A lab whose node01 is provisioned by some roles but for a reboot, with Slurm's tools on it, and a copy of it."""

    top: Path
    copy: Path
    roles: list[str]

    def ansible(self, home: Path, playbook: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = ["ansible-playbook", "-i", str(self.top / "inventory"), "--limit", "node01", str(playbook)]
        chosen = ["--skip-tags", "nccl_tests,nccl_benchmark"]
        if self.roles != ALL:
            chosen = ["--tags", ",".join([*self.roles, *BOTH])]
        return ended([*argv, *chosen, *arguments], ansibles_environment(home))


@pytest.fixture(scope="session", params=[FEW, pytest.param(ALL, marks=pytest.mark.long)], ids=["few", "all"])
def provisioned(request: pytest.FixtureRequest, _slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    top = tmp_path_factory.mktemp("drain")
    made = Lab(top / "lab", top / "copy", request.param)
    store.create(made.top)
    _slurm.put_tools(made.top / "node01/sys")
    done = made.ansible(top, ROOT / "playbooks/provision.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    store.break_(made.top, "node01", "iommu-translated")
    shutil.copytree(made.top, made.copy, symlinks=True)
    return made


@pytest.fixture
def node(provisioned: Lab) -> Path:
    """The lab, whose node01 waits for a reboot, as it was first."""
    shutil.rmtree(provisioned.top)
    shutil.copytree(provisioned.copy, provisioned.top, symlinks=True)
    return provisioned.top


@pytest.fixture
def play(node: Path, provisioned: Lab, tmp_path: Path) -> Play:
    """Plays it on node01; check -> have of all findings of drain and reboot."""
    (tmp_path / "book.yml").write_text(book(provisioned.roles, REBOOT_PLAY))

    def run(*arguments: str, **variables: Any) -> dict[str, str]:
        path = tmp_path / "findings.json"
        given = {"busbar_drain": "slurm", "busbar_max_disruption": "reboot", "busbar_findings_path": str(path)}
        done = provisioned.ansible(
            tmp_path, tmp_path / "book.yml", "-e", json.dumps({**given, **variables}), *arguments
        )
        assert path.exists(), done.stdout + done.stderr
        found = json.loads(path.read_text())["hosts"]["node01"]
        path.unlink()
        print(done.stdout)
        return {
            f["check"]: f["have"]
            for f in found["findings"]
            if f["check"].split(".")[0] in ("drain", "reboot", "run", "lock")
        }

    return run


def test_a_node_that_waits_is_drained_first_and_stays_drained_where_the_reboot_fails(play: Play, slurm: Slurm) -> None:
    found = play()
    assert set(found) == {"reboot.returned", "drain.left_over"}
    assert slurm.node().startswith("IDLE+DRAIN busbar: not resumed, reboot.returned: ")


@pytest.mark.long
def test_check_mode_drains_nothing_and_what_stayed_drained_stays_in_the_next_run(play: Play, slurm: Slurm) -> None:
    assert play("--check") == {}
    assert slurm.node() == "IDLE"
    assert set(play()) == {"reboot.returned", "drain.left_over"}
    # Nor does it go back for nothing having been done to it in the next run, in which it may not be rebooted.
    assert set(play(busbar_max_disruption="none")) == {"drain.left_over"}
    assert slurm.node().startswith("IDLE+DRAIN busbar: not resumed, ")


def test_a_node_that_comes_back_in_order_goes_back_into_service(
    play: Play, slurm: Slurm, node: Path, provisioned: Lab, tmp_path: Path
) -> None:
    """Only the reboot is a stand-in: the simulated node takes what its boot loader has now, and notes Slurm's word."""
    put(tmp_path, "connection_plugins/simulated.py", CONNECTION)
    put(tmp_path, "boot_id", "none yet")
    boot = tmp_path / "boot_id"
    tool(tmp_path, "reboot", REBOOT.format(python=sys.executable, root=str(ROOT), lab=str(node), boot=str(boot)))
    arguments = {"reboot_command": str(tmp_path / "reboot"), "boot_time_command": f"cat {boot}", "test_command": "true"}
    defaults = {"module_defaults": {"ansible.builtin.reboot": arguments}, "tags": "always"}
    reboot = {**NODES, **defaults, "tasks": roles(*BOTH)}
    (tmp_path / "book.yml").write_text(book(provisioned.roles, reboot))
    assert play(ansible_connection="simulated") == {}
    assert "State=IDLE+DRAIN " in boot.read_text()
    assert store.status(node)["node01"] == []
    assert slurm.node() == "IDLE"


def test_a_job_is_not_disturbed_and_once_the_time_is_over_the_node_is_given_back(play: Play, slurm: Slurm) -> None:
    job = slurm.submit(120)
    assert f"Slurm job {job} of root" in play(drain_timeout=3)["reboot.idle"]
    assert slurm.node() == "ALLOCATED"


@pytest.mark.long
def test_given_time_a_job_ends_and_the_node_is_drained(play: Play, slurm: Slurm) -> None:
    job = slurm.submit(120)
    assert f"Slurm job {job} of root" in play()["reboot.idle"]
    assert slurm.node() == "ALLOCATED"
    slurm.run("scancel", job)
    slurm.submit(8)
    assert set(play(drain_timeout=60)) == {"reboot.returned", "drain.left_over"}


@pytest.mark.long
def test_a_node_that_is_busy_without_slurm_is_given_back(play: Play, slurm: Slurm, node: Path) -> None:
    kubelet = node / "node01/sys/var/lib/kubelet"
    (kubelet / "pods/0b6f").mkdir(parents=True, exist_ok=True)
    pod = {"PodUID": "0b6f", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ["GPU-1"]}
    checkpoint = json.dumps({"Data": {"PodDeviceEntries": [pod]}})
    put(kubelet, "device-plugins/kubelet_internal_checkpoint", checkpoint)
    assert set(play()) == {"reboot.idle"}
    assert slurm.node() == "IDLE"


@pytest.mark.long
def test_what_a_killed_run_left_drained_is_reported_and_given_back_when_in_order(
    play: Play, slurm: Slurm, node: Path, provisioned: Lab
) -> None:
    store.repair(node, "node01")
    slurm.run("scontrol", "update", "NodeName=node01", "State=DRAIN", "Reason=busbar: iommu=pt (run-1)")
    if provisioned.roles != ALL:
        # Who has a say and was not asked may have something to say.
        assert list(play()) == ["drain.left_over"]
        assert slurm.node().startswith("IDLE+DRAIN busbar: not resumed, not verified: a role gave no result")
        return
    assert list(play("--check")) == ["drain.left_over"]
    assert slurm.node() == "IDLE+DRAIN busbar: iommu=pt (run-1)"
    # Something critical is wrong with it: it stays, and says so.
    store.break_(node, "node01", "gpu-missing")
    assert list(play()) == ["drain.left_over"]
    assert slurm.node().startswith("IDLE+DRAIN busbar: not resumed, platform.")
    store.repair(node, "node01")
    assert play() == {}
    assert slurm.node() == "IDLE"


@pytest.mark.long
def test_a_run_goes_on_with_what_a_killed_one_has_drained(play: Play, slurm: Slurm) -> None:
    slurm.run("scontrol", "update", "NodeName=node01", "State=DRAIN", "Reason=busbar: iommu=pt (run-1)")
    assert set(play()) == {"reboot.returned", "drain.left_over"}


@pytest.mark.long
def test_without_drain_slurm_is_not_asked(play: Play, node: Path) -> None:
    for name in ("scontrol", "squeue"):
        tool(node / "node01/sys", f"usr/bin/{name}", f"echo >> {node}/asked\nexit 1")
    assert set(play(busbar_drain="none")) == {"reboot.returned"}
    assert not (node / "asked").exists()
