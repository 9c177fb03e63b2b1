# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Config space of simulated nodes, and what role pcie_path makes of it over reboots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import boot_unit, registers

from lab import store, tree
from lab.machine import Machine
from lab.machines import hgx_h100, hgx_h200_roce

Answer = Callable[..., dict[str, Any]]
# What on_node takes the site's values of.
LAB = {"node01": hgx_h100}
UNIT = f"pcie_path.unit[persisted]@{boot_unit.UNIT}"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A lab of its own: what is written to registers and below the system root stays."""
    store.create(tmp_path / "lab", LAB)
    return tmp_path / "lab"


@pytest.fixture
def call(own: Path, on_node: Answer) -> Answer:
    roots = {"hardware_root": str(own / "node01/hw"), "system_root": str(own / "node01/sys")}
    return lambda **more: on_node("pcie_path", "node01", **(roots | more))


def spaces(machine: Machine) -> dict[str, bytes]:
    return {path.split("/")[-2]: content for path, content in tree.hardware(machine).binaries.items()}


def ids(result: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in result["findings"]}


@pytest.mark.parametrize("builder", [hgx_h100, hgx_h200_roce])
def test_a_healthy_board_redirects_above_its_nvswitches_and_nowhere_else(builder: Callable[[str], Machine]) -> None:
    machine = builder("node01")
    redirecting = set()
    for address, space in spaces(machine).items():
        if len(space) == 4096 and (acs := registers.parse_acs(space)) and acs.word & registers.REDIRECT:
            redirecting.add(address)
    assert redirecting == {f.parent for f in machine.functions if f.driver == "nvidia-nvswitch"}


def test_firmware_sets_acs_at_every_boot_and_the_unit_clears_it_while_something_wants_it(
    own: Path, call: Answer
) -> None:
    assert call()["changed"]
    store.break_(own, "node01", "acs-on")
    store.break_(own, "node01", "mrrs-512")
    faulty = ids(call(check_mode=True))
    assert {name.partition("[")[0] for name in faulty} == {"pcie_path.acs", "pcie_path.max_read_request"}
    # The unit does at boot what a run does now.
    store.reboot(own, "node01")
    assert ids(call(check_mode=True)) == set()
    store.break_(own, "node01", "acs-back-at-boot")
    store.reboot(own, "node01")
    assert ids(call(check_mode=True)) == faulty | {UNIT}
    done = call()
    assert (done["findings"], set(done["repaired"])) == ([], faulty | {UNIT})
    store.reboot(own, "node01")
    assert ids(call(check_mode=True)) == set()
    # What is not wanted any more is removed.
    assert (call(persist=False)["changed"], call(persist=False)["changed"]) == (True, False)
    assert [path for path in boot_unit.OWN if (own / "node01/sys" / path[1:]).exists()] == []


def test_a_boot_runs_nothing_that_is_not_the_nodes(own: Path, call: Answer, tmp_path: Path) -> None:
    call()
    unit = own / "node01/sys" / boot_unit.UNIT[1:]
    unit.write_text(f"[Service]\nExecStart=/usr/bin/touch {tmp_path}/touched\n")
    store.reboot(own, "node01")
    assert not (tmp_path / "touched").exists()
