"""Values that a site with RoCE has to decide: one that is missing is told in a note, and costs no host its ok."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.lab.conftest import ROOT

Run = Callable[..., dict[str, Any]]
MODULES = ("netdev_mtu", "multirail", "roce_qos")
# What the modules get where the inventory says nothing.
UNSET: dict[str, dict[str, Any]] = {
    "netdev_mtu": {"mtu": None},
    "multirail": {"policy": ""},
    "roce_qos": {"roce": {}, "traffic_class": None},
}
NAMES = {"netdev_mtu": "busbar_mtu", "multirail": "multirail_policy", "roce_qos": "busbar_roce"}


@pytest.mark.parametrize("module", MODULES)
def test_what_is_not_decided_on_roce_is_a_note_and_no_finding(on_node: Run, module: str) -> None:
    said = on_node(module, "node02", check_mode=True, **UNSET[module])
    assert [note.partition(" ")[0] for note in said["notes"]] == [NAMES[module]]
    assert "not judged" in said["notes"][0]
    assert (said["findings"], said["changed"]) == ([], False)


@pytest.mark.parametrize("module", MODULES)
def test_on_infiniband_there_is_nothing_to_decide(on_node: Run, module: str) -> None:
    assert on_node(module, "node01", check_mode=True, **UNSET[module])["notes"] == []


@pytest.mark.parametrize(
    ("module", "decided"),
    [
        ("multirail", {"policy": "custom"}),
        ("roce_qos", {"roce": {}, "traffic_class": None, "pfc": []}),
        ("roce_qos", {"roce": {}, "traffic_class": None, "trust": "pcp"}),
        ("roce_qos", {"roce": {"dscp": 26}}),
    ],
)
def test_nothing_can_be_a_decision_too(on_node: Run, module: str, decided: dict[str, Any]) -> None:
    assert on_node(module, "node02", check_mode=True, **decided)["notes"] == []


def test_the_example_of_a_roce_site_leaves_nothing_undecided(on_node: Run) -> None:
    values = yaml.safe_load((ROOT / "inventories/example-roce/group_vars/gpu_nodes.yml").read_text())
    profile = yaml.safe_load((ROOT / f"profiles/{values['busbar_platform']}.yml").read_text())
    given = {
        "netdev_mtu": {"mtu": values.get("busbar_mtu")},
        "multirail": {"policy": values.get("multirail_policy", "")},
        "roce_qos": {"roce": values.get("busbar_roce", {}), "traffic_class": None},
    }
    for module in MODULES:
        asked = {"profile": profile, "fabric": values["busbar_fabric"], **given[module]}
        assert on_node(module, "node02", check_mode=True, **asked)["notes"] == [], module
