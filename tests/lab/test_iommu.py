"""Module iommu on a simulated node: GRUB's settings, its generator, and reboots."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import store
from lab.machines import hgx_h100

Answer = Callable[..., dict[str, Any]]
DROPIN = "etc/default/grub.d/99-busbar.cfg"
ARGS = ("intel_iommu=on", "iommu=pt")
COMMANDS = ["update-grub", "sync --file-system /boot/grub"]


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A lab of its own, whose node01 was never asked for passthrough, and was booted so."""
    store.create(tmp_path / "lab", {"node01": hgx_h100})
    settings = tmp_path / "lab/node01/sys/etc/default/grub"
    settings.write_text(settings.read_text().replace("intel_iommu=on iommu=pt", "console=tty0"))
    subprocess.run([tmp_path / "lab/node01/sys/usr/sbin/update-grub"], check=True, capture_output=True)
    assert store.reboot(tmp_path / "lab", "node01").split()[-2:] == ["ro", "console=tty0"]
    return tmp_path / "lab"


@pytest.fixture
def call(fresh: Path, run_module: Answer) -> Answer:
    roots = {"hardware_root": str(fresh / "node01/hw"), "system_root": str(fresh / "node01/sys")}
    return lambda name="iommu", **more: run_module(name, **(roots | more))


def states(result: dict[str, Any]) -> dict[str, str]:
    return {finding["id"].partition(".")[2]: finding["state"] for finding in result["findings"]}


PERSISTED = {f"args[persisted]@{arg}": "drift" for arg in ARGS}
PENDING = {**{f"args[live]@{arg}": "withheld" for arg in ARGS}, "domains[live]@GPUs and NICs": "withheld"}


def test_from_fresh_to_pending_to_active_and_back(call: Answer, fresh: Path) -> None:
    system = fresh / "node01/sys"
    predicted = call(check_mode=True)
    assert states(predicted) == PERSISTED | PENDING
    assert not (system / DROPIN).exists()

    done = call()
    for key in ("changed", "diff", "commands", "repaired", "reboot_required", "withheld"):
        assert predicted[key] == done[key], key
    assert done["changed"]
    assert done["commands"] == COMMANDS
    assert sorted(done["repaired"]) == sorted(f"iommu.{name}" for name in PERSISTED)
    assert states(done) == PENDING
    assert done["reboot_required"] == [f"kernel argument {arg} is not active before a reboot" for arg in ARGS]
    again = call()
    assert (again["changed"], states(again), again["commands"]) == (False, PENDING, [])

    line = store.reboot(fresh, "node01")
    assert "console=tty0 intel_iommu=on iommu=pt" in line
    active = call(check_mode=True)
    assert (states(active), active["reboot_required"], active["changed"]) == ({}, [], False)

    # Behind Busbar's back: the next boot would translate again, this one does not.
    (system / DROPIN).unlink()
    subprocess.run([system / "usr/sbin/update-grub"], check=True, capture_output=True)
    assert states(call(check_mode=True)) == PERSISTED


def test_a_run_killed_between_file_and_generator_is_completed(call: Answer, fresh: Path) -> None:
    tool = fresh / "node01/sys/usr/sbin/update-grub"
    script = tool.read_text()
    tool.write_text("#!/bin/sh\necho 'grub-probe: error: cannot find a device' >&2\nexit 1\n")
    failed = call()
    assert failed["failed"]
    assert failed["msg"] == "update-grub: exited with 1: grub-probe: error: cannot find a device"
    assert (fresh / "node01/sys" / DROPIN).is_file()
    tool.write_text(script)
    done = call()
    assert (done["changed"], done["diff"], done["commands"]) == (True, [], COMMANDS)
    assert states(done) == PENDING


def test_a_node_that_cannot_be_read_is_not_ok(call: Answer, fresh: Path) -> None:
    (fresh / "node01/sys/boot/grub/grub.cfg").unlink()
    assert "/boot/grub/grub.cfg: is not there" in call()["msg"]
    (fresh / "node01/hw/proc/cmdline").unlink()
    assert "/proc/cmdline: is not there" in call()["msg"]
