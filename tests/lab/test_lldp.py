# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which ports of a node are asked for their neighbour: rails that are up, of a bond each member, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import store, tree
from lab.machine import SwitchPort

OnNode = Callable[..., dict[str, Any]]


def test_of_a_rail_that_is_a_bond_both_members_are_asked(lab: Path, on_node: OnNode) -> None:
    machine = store.healthy(lab, "node02")
    members = [netdev for netdev in machine.netdevs if netdev.master]
    for number, member in enumerate(members):
        member.switch = [SwitchPort(f"44:38:39:ff:01:0{number}", f"tor-{number}", "swp4", dcbx=number == 0)]
    tree.write_hardware(machine, lab / "node02" / "hw")
    rail: dict[str, Any] = {"pci": members[0].address, "paths": {}, "rate_gbps": 200, "link_layers": ["Ethernet"]}
    profile = {"description": "a bond", "gpus": {"count": 8, "models": ["NVIDIA H200"]}, "rails": [rail]}
    found = on_node("lldp", "node02", profile=profile)
    assert [(one["rail"], one["netdev"], one["name"]) for one in found["neighbours"]] == [
        (0, member.name, f"tor-{number}") for number, member in enumerate(members)
    ]
    # The second one's switch port was forgotten.
    assert [(one["check"], one["state"], one["subject"].split()[0]) for one in found["findings"]] == [
        (f"lldp.{check}", "unknown", members[1].address) for check in ("pfc", "dscp", "ets")
    ]


def test_a_rail_that_is_down_or_infiniband_or_not_asked_for_is_not_asked(lab: Path, on_node: OnNode) -> None:
    store.break_(lab, "node02", "port-down")
    found = on_node("lldp", "node02")
    assert [one["rail"] for one in found["neighbours"]] == [0, 1, 3, 4, 5, 6, 7]
    assert (found["findings"], len(found["passed"])) == ([], 36)
    for node, more in (("node01", {}), ("node02", {"asked": "none"})):
        found = on_node("lldp", node, **more)
        assert (found["findings"], found["passed"], found["notes"], found["neighbours"]) == ([], [], [], [])
