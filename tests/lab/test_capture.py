# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A profile captured from a node that lacks a part, or has a slow one, is doubted; one from a healthy node is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.modules import topology_info

from lab import faults, store
from lab.machines import h200_vm, hgx_b200
from tests import series

PLATFORMS = {"node01": "hgx-h100", "node02": "hgx-h200", "node03": "hgx-b200", "vm01": "h200-vm"}
# An address, an MTU, a partition and a minimum version are given, and no part of the machine.
GIVEN = (
    *("platform.rail_gid", "platform.rail_address", "platform.rail_mtu", "platform.rail_partition"),
    *("platform.rail_firmware", "platform.rail_address_persisted"),
)
# Each on the first node that can have it, and on the guest, which is near to no shipped profile.
HARDWARE = [
    (node, fault.name)
    for fault in faults.FAULTS.values()
    for node in dict.fromkeys([next((n for n, p in PLATFORMS.items() if p in fault.platforms), "vm01"), "vm01"])
    for platform in [PLATFORMS[node]]
    if fault.check.startswith("platform.") and fault.check not in GIVEN and platform in fault.platforms
    if not fault.check.endswith("_minimum")
]
Capture = Callable[[str], list[str]]
LAB = {**store.STANDARD, "node03": hgx_b200, "vm01": h200_vm}


@pytest.fixture
def capture(lab: Path, run_module: Callable[..., dict[str, Any]]) -> Capture:
    def ask(node: str) -> list[str]:
        roots = {"hardware_root": str(lab / node / "hw"), "system_root": str(lab / node / "sys")}
        doubts: list[str] = run_module("topology_info", draft=True, tool_timeout=10, **roots)["doubts"]
        return doubts

    return ask


@pytest.mark.parametrize("node", PLATFORMS)
def test_a_healthy_node_is_captured_without_a_doubt(node: str, capture: Capture) -> None:
    assert capture(node) == []


@pytest.mark.parametrize(("node", "fault"), series.some(HARDWARE, 10))
def test_whatever_is_wrong_with_a_part_is_doubted(node: str, fault: str, lab: Path, capture: Capture) -> None:
    store.break_(lab, node, fault)
    doubts = capture(node)
    # At least one, and few: one fault is not told of every part.
    assert 1 <= len(doubts) <= 6, doubts


def test_every_key_that_topology_info_returns_is_documented(on_node: Callable[..., dict[str, Any]]) -> None:
    result = on_node("topology_info", "node01", guids=True, compare=True, draft=True, recognition=True)
    documented = yaml.safe_load(topology_info.RETURN)
    # What every module returns is in the notes that they share.
    common = Plan().result().keys() | {"invocation"}
    rails = on_node("topology_info", "node01", subset="rails")
    assert (set(result) | set(rails)) - common == set(documented)
