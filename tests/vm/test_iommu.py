# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Role iommu through a real GRUB, a real reboot and power cuts, on an emulated Intel IOMMU."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import NewVm, inventory, played, playing, stored
from .machine import Machine

DROPIN = "/etc/default/grub.d/99-busbar.cfg"
GRUB_CFG = "/boot/grub/grub.cfg"
ARGS = "intel_iommu=on iommu=pt"
PERSISTED = ["iommu.args[persisted]@intel_iommu=on", "iommu.args[persisted]@iommu=pt"]
LIVE = ["iommu.args[live]@intel_iommu=on", "iommu.args[live]@iommu=pt", "iommu.domains[live]@GPUs and NICs"]
REBOOT = [f"kernel argument {arg} is not active before a reboot" for arg in ARGS.split()]
PLAY = """\
- hosts: gpu_nodes
  gather_facts: false
  vars: {busbar_role_verdict: false}
  tasks:
    - ansible.builtin.import_role:
        name: busbar.fabric.iommu
""" + stored("iommu_result")


@dataclass(frozen=True)
class Step:
    """What the module returned, and what was on the machine after it."""

    result: dict[str, Any]
    dropin: str
    linux: list[str]

    @property
    def found(self) -> list[str]:
        return sorted(finding["id"] for finding in self.result["findings"])


def hosts(machine: Machine, folder: Path) -> Path:
    return inventory(machine, folder, busbar_platform="hgx-h200", busbar_fabric="ethernet")


def play(machine: Machine, folder: Path, *options: str) -> Step:
    result = played(hosts(machine, folder), PLAY, *options)["vm"]
    linux = [line for line in machine.read(GRUB_CFG).splitlines() if line.split()[:1] == ["linux"]]
    return Step(result, machine.ssh("cat", DROPIN, check=False).stdout, linux)


def cut_when(machine: Machine, folder: Path, ready: Callable[[], bool]) -> None:
    """Plays, and takes the power away meanwhile."""
    # It ends by itself: the node cannot be reached any more.
    with subprocess.Popen(**playing(hosts(machine, folder), PLAY), stdout=subprocess.DEVNULL) as run:
        while not ready():
            assert run.poll() is None
            time.sleep(0.05)
        machine.cut()


def types(machine: Machine) -> set[str]:
    return set(machine.ssh("sh", "-c", "cat /sys/kernel/iommu_groups/*/type").stdout.split())


@pytest.fixture(scope="module")
def steps(new_vm: NewVm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    """One machine's way, each step on what the one before it has left."""
    machine, folder = new_vm(iommu=True), tmp_path_factory.mktemp("iommu")
    done = {
        "fresh, --check": play(machine, folder, "--check"),
        "applied": play(machine, folder),
        "applied again": play(machine, folder),
    }
    machine.reboot()
    done["rebooted"] = play(machine, folder)
    assert types(machine) == {"identity"}
    dropin = machine.read(DROPIN)
    machine.ssh("sh", "-c", f"rm {DROPIN} && update-grub")
    done["taken away, --check"] = play(machine, folder, "--check")
    # What a run leaves that was killed between its two changes.
    machine.ssh("sh", "-c", f"printf %s {shlex.quote(dropin)} > {DROPIN}")
    done["half, --check"] = play(machine, folder, "--check")
    done["half, mended"] = play(machine, folder)
    return done


def test_check_tells_what_a_fresh_node_lacks_and_writes_nothing(steps: dict[str, Step]) -> None:
    step = steps["fresh, --check"]
    assert step.result["changed"] is True
    assert step.found == sorted([*PERSISTED, *LIVE])
    assert (step.dropin, [line for line in step.linux if "iommu" in line]) == ("", [])


def test_what_is_applied_waits_for_a_reboot(steps: dict[str, Step]) -> None:
    step = steps["applied"]
    assert step.result["changed"] is True
    assert step.result["commands"][0] == "update-grub"
    assert step.found == LIVE
    assert step.result["reboot_required"] == REBOOT
    assert step.dropin.splitlines()[-2:] == [f"busbar_argument add {arg}" for arg in ARGS.split()]
    # The kernel, the kernel in the submenu, and its recovery mode.
    assert len(step.linux) == 3
    assert all(f"mitigations=off {ARGS}" in line for line in step.linux)


def test_a_second_run_changes_nothing_and_still_waits(steps: dict[str, Step]) -> None:
    step = steps["applied again"]
    assert step.result["changed"] is False
    assert (step.found, step.result["reboot_required"]) == (LIVE, REBOOT)


def test_after_the_reboot_all_is_in_effect(steps: dict[str, Step]) -> None:
    step = steps["rebooted"]
    assert step.result["changed"] is False
    assert (step.found, step.result["reboot_required"]) == ([], [])


def test_what_was_taken_away_behind_its_back_is_missed_before_the_next_boot(steps: dict[str, Step]) -> None:
    step = steps["taken away, --check"]
    assert step.result["changed"] is True
    assert step.found == PERSISTED
    assert step.dropin == ""


def test_what_a_killed_run_has_left_is_finished(steps: dict[str, Step]) -> None:
    before, after = steps["half, --check"], steps["half, mended"]
    assert before.found == PERSISTED
    # The drop-in is right already.
    assert after.result["diff"] == []
    assert after.result["commands"][0] == "update-grub"
    assert after.found == []
    assert all(ARGS in line for line in after.linux)


def test_a_power_cut_at_any_time_leaves_a_node_that_boots(new_vm: NewVm, tmp_path: Path) -> None:
    machine = new_vm(iommu=True)
    # While update-grub writes.
    cut_when(machine, tmp_path, lambda: machine.ssh("test", "-e", f"{GRUB_CFG}.new", check=False).returncode == 0)
    machine.start()
    assert types(machine) == {"DMA-FQ"}
    assert play(machine, tmp_path, "--check").found == sorted([*PERSISTED, *LIVE])
    # As soon as the module has told what it did.
    result = tmp_path / "vm.json"
    result.unlink()
    cut_when(machine, tmp_path, result.exists)
    machine.start()
    assert types(machine) == {"identity"}
    assert play(machine, tmp_path, "--check").result["changed"] is False


def test_of_a_virtual_machine_nothing_is_asked(vm: Machine, tmp_path: Path) -> None:
    step = play(vm, tmp_path)
    assert (step.result["changed"], step.found, step.dropin) == (False, [], "")
    assert step.result["notes"] == ["the IOMMU is the hypervisor's (kvm): nothing was required"]
