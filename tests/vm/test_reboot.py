# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/reboot.yml on a machine that really reboots, and on one that does not come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import store

from .conftest import ROOT, NewVm, inventory, played, stored
from .machine import Machine

# Nobody uses GPUs that are not there, but the node has to be asked.
SMI = "#!/bin/sh\necho 'pid, process_name, used_gpu_memory [MiB]'\n"
PLAY = f"""\
- hosts: gpu_nodes
  gather_facts: false
  vars: {{busbar_role_verdict: false}}
  tasks:
    - ansible.builtin.import_role:
        name: busbar.fabric.iommu
- ansible.builtin.import_playbook: {ROOT / "playbooks/reboot.yml"}
- hosts: gpu_nodes
  gather_facts: false
  tasks:
{stored("{'iommu': iommu_result, 'reboot': reboot_result | default({'findings': []})}")}"""


@pytest.fixture(scope="module")
def machine(new_vm: NewVm) -> Machine:
    machine = new_vm(iommu=True)
    machine.ssh("sh", "-c", 'printf %s "$0" > /usr/bin/nvidia-smi && chmod +x /usr/bin/nvidia-smi', SMI)
    return machine


def play(machine: Machine, folder: Path, beside: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    """Host -> results of iommu and reboot. beside: more hosts."""
    common = {"busbar_platform": "hgx-h200", "busbar_fabric": "ethernet", "busbar_max_disruption": "reboot", **more}
    hosts = inventory(machine, folder, **common)
    if beside:
        data = json.loads(hosts.read_text())
        data["gpu_nodes"]["hosts"].update({name: {**beside[name], **common} for name in beside})
        hosts.write_text(json.dumps(data))
    return played(hosts, PLAY, check=False)


def checks(result: dict[str, Any]) -> list[str]:
    return sorted(finding["check"] for finding in result["findings"])


def test_a_node_that_waits_is_rebooted_and_held_to_its_intent_again(machine: Machine, tmp_path: Path) -> None:
    before = machine.boot_id()
    found = play(machine, tmp_path)["vm"]
    assert machine.boot_id() != before
    assert (checks(found["reboot"]), checks(found["iommu"])) == ([], [])
    assert found["reboot"]["passed"] == ["reboot.returned[live]@the node"]
    assert "iommu=pt" in machine.read("/proc/cmdline")
    # There is nothing to reboot for any more.
    again = machine.boot_id()
    assert checks(play(machine, tmp_path)["vm"]["reboot"]) == []
    assert machine.boot_id() == again


def test_a_node_that_is_lost_stops_those_after_it(machine: Machine, tmp_path: Path) -> None:
    store.create(tmp_path / "lab")
    store.break_(tmp_path / "lab", "node02", "iommu-translated")
    tree = tmp_path / "lab/node02"
    spared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        "busbar_hardware_root": str(tree / "hw"),
        "busbar_system_root": str(tree / "sys"),
    }
    # Its next boot has the arguments, this one has not; and nobody will be able to reach it.
    machine.ssh("sh", "-c", "rm /etc/default/grub.d/99-busbar.cfg && update-grub")
    machine.reboot()
    machine.ssh("systemctl", "--quiet", "disable", "ssh.service")
    found = play(machine, tmp_path, {"vm2": spared}, reboot_timeout=60)
    assert checks(found["vm2"]["reboot"]) == ["reboot.rollout"]
    assert "vm did not come back" in found["vm2"]["reboot"]["findings"][0]["have"]
