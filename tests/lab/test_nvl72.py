# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated compute trays of an NVL72 converge and have nothing to report; what only they can have is exactly its
finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import machines, nvl72, store, tree
from lab.machine import Machine

MODULES = tuple(role.module for role in suite.AUDITED.values() if role.module not in ("nccl_tests_build", "nccl_perf"))
TRAYS = ("tray01", "tray21")
Answer = Callable[..., dict[str, Any]]
LAB = {"tray01": machines.gb200, "tray21": machines.gb300}


def show(lab: Path, machine: Machine) -> None:
    tree.write_hardware(machine, lab / machine.hostname / "hw")
    tree.write_tools(machine, lab / machine.hostname / "sys")


@pytest.fixture
def lab(own_lab: Path) -> Iterator[Path]:
    yield own_lab
    show(own_lab, store.healthy(own_lab, "tray01"))


@pytest.fixture
def converged(lab: Path, on_node: Answer) -> Path:
    done = lab / "converged"
    if not done.exists():
        for tray in TRAYS:
            for module in MODULES[1:]:
                assert on_node(module, tray)["findings"] == []
        done.touch()
    return lab


def bad(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Roots."""
    return [(f["check"], f["state"]) for result in results for f in result["findings"] if f["because"] is None]


@pytest.mark.parametrize("tray", TRAYS)
def test_a_tray_converges_without_a_fabric_manager(converged: Path, on_node: Answer, tray: str) -> None:
    results = {module: on_node(module, tray, check_mode=True) for module in MODULES}
    assert bad(list(results.values())) == []
    assert [module for module, result in results.items() if result["changed"]] == []
    passed = {name.partition("[")[0] for result in results.values() for name in result["passed"]}
    asked = {"imex.service", "imex.nodes", "imex.state", "imex.channel", "imex.domain", "node_health.page_size"}
    assert asked | {"iommu.platform_args", "gpudirect.driver_options"} <= passed
    assert "node_health.fabric_manager" not in passed
    assert results["node_health"]["imex"]["nodes"] == nvl72.addresses()


def imex(state: str) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        machine.imex = state

    return change


def no_clique(machine: Machine) -> None:
    machine.gpus[2].domain = "00000000-0000-0000-0000-000000000000 0"


def small_pages(machine: Machine) -> None:
    machine.page_size = 4096


def no_channel(machine: Machine) -> None:
    machine.driver_options = {**machine.driver_options, "CreateImexChannel0": "0"}


def other_argument(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.replace("numa_balancing=disable", "numa_balancing=enable")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (imex("stopped"), [("imex.service", "drift")]),
        (imex("degraded"), [("imex.state", "drift")]),
        (no_clique, [("imex.domain", "drift")]),
        (small_pages, [("node_health.page_size", "drift")]),
        (no_channel, [("gpudirect.driver_options", "withheld")]),
        (other_argument, [("iommu.platform_args", "withheld")]),
    ],
)
def test_what_only_a_tray_can_have(
    converged: Path, on_node: Answer, change: Callable[[Machine], None], expected: list[tuple[str, str]]
) -> None:
    machine: Machine = store.healthy(converged, "tray01")
    change(machine)
    show(converged, machine)
    found = bad([on_node(module, "tray01", check_mode=True) for module in ("node_health", "iommu", "gpudirect")])
    assert found == expected
