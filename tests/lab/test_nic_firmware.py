# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module nic_firmware as Ansible runs it, killed at random moments: settings are old or new.

tests/unit/test_nic_firmware.py has every moment between two steps; these fall into the tools as well.
BUSBAR_KILLS: how many moments, where more are wanted than there is time for in every run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans
from ansible_collections.busbar.fabric.plugins.modules import nic_firmware

from lab.machines import hgx_b200
from lab.toolkit import firmware_tools
from tests.lab.child import Child

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = int(os.environ.get("BUSBAR_KILLS", "5"))
WANTED = {"LINK_TYPE": "IB", "ATS_ENABLED": 0, "ROCE_CC_PRIO_MASK": 255}
NAMES = {"LINK_TYPE_P1": (1, 2), "ATS_ENABLED": (0, 1), "ROCE_CC_PRIO_MASK_P1": (255, 0)}
Start = Callable[..., Child]
LAB = {"node01": hgx_b200}


@pytest.fixture
def start(lab: Path, tmp_path: Path) -> Start:
    profile = yaml.safe_load((ROOT / "profiles" / "hgx-b200.yml").read_text())
    # Two cards are enough.
    del profile["rails"][2:]
    arguments = {
        "profile": profile,
        "fabric": "infiniband",
        "settings": WANTED,
        "hardware_root": str(lab / "node01" / "hw"),
        "system_root": str(lab / "node01" / "sys"),
        "_ansible_remote_tmp": str(tmp_path),
    }
    return lambda: Child(nic_firmware.main, {**arguments, "max_disruption": "reboot"})


@pytest.fixture(autouse=True)
def _orphans_are_ours() -> Iterator[None]:
    """Of a run that is killed: as its tools' parent the kernel tells when they end, also of one that has just begun."""
    orphans.prctl()(orphans.PR_SET_CHILD_SUBREAPER, 1)
    yield
    orphans.prctl()(orphans.PR_SET_CHILD_SUBREAPER, 0)


def tools_end() -> None:
    """A tool that a killed run has started goes on by itself."""
    deadline = time.monotonic() + 1800
    while orphans.has_children():
        assert time.monotonic() < deadline, "a tool of the lab does not end"
        if os.waitpid(-1, os.WNOHANG)[0] == 0:
            time.sleep(0.05)


def cards(lab: Path) -> list[firmware_tools.Card]:
    return list(firmware_tools.load(str(lab / "node01/hw")).values())[:2]


def break_all(lab: Path) -> None:
    state = firmware_tools.load(str(lab / "node01/hw"))
    for card in list(state.values())[:2]:
        for name, (_good, bad) in NAMES.items():
            card["settings"][name].update({"current": bad, "next": bad, "needs": "reboot"})
    firmware_tools.save(str(lab / "node01/hw"), state)


def reboot(lab: Path, boot: int) -> None:
    firmware_tools.spend(str(lab / "node01/hw"), "reboot")
    (lab / "node01/hw/proc/sys/kernel/random/boot_id").write_text(f"00000000-0000-4000-8000-{boot:012d}\n")


def test_killed_at_random_moments_settings_are_old_or_new(lab: Path, start: Start) -> None:
    """The moments are spread from shortly before the first write to the end, as a run had them that nobody killed."""
    record = lab / "node01/sys/var/lib/busbar/nic_firmware/pending.json"
    rng = random.Random(20)
    first, longest, within = 0.0, 0.0, 0
    for number in range(KILLS + 1):
        reboot(lab, 2 * number)
        break_all(lab)
        begun = time.monotonic()
        child = start()
        if number:
            time.sleep(rng.uniform(0.9 * first, longest))
            within += child.process.is_alive()
            child.process.kill()
            child.wait()
            tools_end()
        else:
            while child.process.is_alive() and all(card["settings"]["ATS_ENABLED"]["next"] for card in cards(lab)):
                time.sleep(0.01)
            first = time.monotonic() - begun
            assert child.answer()["repaired"]
            longest = time.monotonic() - begun
        for card in cards(lab):
            for name, values in NAMES.items():
                assert card["settings"][name]["next"] in values
        again = start().answer()
        assert again["changed"] is bool(again["commands"])
        reboot(lab, 2 * number + 1)
        assert start().answer()["findings"] == []
        assert not record.exists()
    print(f"{KILLS} runs of {longest:.2f} s killed, {within} of them before their end")
