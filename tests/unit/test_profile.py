from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile_doubts import checked_draft, draft
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.plugin_utils import profile_files
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent.parent
PROFILES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yml"))

GOOD: dict[str, Any] = {
    "description": "two GPUs",
    "gpus": {"count": 2, "models": ["NVIDIA H200"], "nvlinks": 18, "pcie": {"speed_gts": 32, "width": 16}},
    "rail_defaults": {"rate_gbps": 400, "link_layers": ["InfiniBand", "Ethernet"]},
    "rails": [{"paths": {0: "PIX"}}, {"paths": {1: "PIX"}}],
}


def edited(path: str, value: object) -> dict[str, Any]:
    data: Any = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    at = data
    for key in parents:
        at = at[int(key) if key.isdigit() else key]
    at[int(last) if isinstance(at, list) else last] = value
    return dict(data)


def test_the_shipped_platforms_are_there() -> None:
    hgx = ["hgx-a100", "hgx-b200", "hgx-b300", "hgx-h100", "hgx-h200"]
    clouds, trays = ["azure-nd-h100-v5", "oci-bm-gpu-h100-8"], ["gb200-nvl72", "gb300-nvl72"]
    assert sorted([*clouds, "custom", *hgx, *trays]) == PROFILES


@pytest.mark.parametrize("name", PROFILES)
def test_every_shipped_profile_is_valid(name: str) -> None:
    profile = parse(yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text()), name)
    assert profile.name == name
    if name.startswith("hgx-"):
        assert (profile.gpus.count, len(profile.rails)) == (8, 8)
        assert {rail.link_layers for rail in for_fabric(profile, "ethernet").rails} == {("Ethernet",)}


@pytest.mark.parametrize(
    ("layers", "fabric", "message"),
    [
        (["InfiniBand", "Ethernet"], None, "must be set to infiniband or ethernet"),
        (["InfiniBand", "Ethernet"], "token-ring", "expected one of ethernet, infiniband"),
        (["InfiniBand"], "ethernet", "busbar_fabric is ethernet, but rail 0 of profile test is InfiniBand"),
    ],
)
def test_the_fabric_decides_where_the_profile_does_not(layers: list[str], fabric: str | None, message: str) -> None:
    profile = parse(edited("rail_defaults.link_layers", layers), "test")
    with pytest.raises(ParseError, match=message):
        for_fabric(profile, fabric)
    decided = for_fabric(profile, "infiniband" if len(layers) > 1 else None)
    assert decided.rails[0].link_layers == ("InfiniBand",)


@pytest.mark.parametrize("pci", [None, "0000:1b:00.0"])
def test_each_plane_of_a_nic_is_a_rail(pci: str | None) -> None:
    data = profile_files.with_planes({**GOOD, "rails": [{"paths": {0: "PXB"}, "pci": pci}]}, 2)
    first, second = parse(data, "test").rails
    assert (first.label, second.label, second.place) == ("rail 0", "rail 1", " (plane 1 of NIC 0)")
    assert [rail.rate_gbps for rail in (first, second)] == [200, 200]
    assert [rail.pci for rail in (first, second)] == ([None, None] if pci is None else [pci, "0000:1b:00.1"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(list(GOOD)), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from(["gpus", "gpus.count", "gpus.pci", "rails", "rails.0", "rails.0.paths", "rail_defaults"]), JSON)
def test_any_value_anywhere_is_a_profile_or_a_parse_error(path: str, value: object) -> None:
    try:
        parse(edited(path, value), "test")
    except ParseError as error:
        assert str(error)


def test_a_draft_of_a_healthy_machine_is_a_profile_that_names_every_slot(infiniband: Topology) -> None:
    data, doubts = draft(infiniband)
    profile = for_fabric(parse(yaml.safe_load(yaml.safe_dump(data)), "site"), None)
    assert doubts == []
    assert [rail.pci for rail in profile.rails] == [nic.pci for nic in infiniband.nics]
    assert profile.gpus.pci == tuple(gpu.pci for gpu in infiniband.gpus)
    assert profile.gpus.nvlinks == 18
    assert profile.rails[5].paths == {5: "PIX"}


def test_a_draft_of_a_sick_machine_says_what_to_look_at(infiniband: Topology, edit: Any) -> None:
    sick = edit.nic(infiniband, 1, device_current_width=8)
    sick = edit.gpu(sick, 2, nvlinks_active=17)
    _, doubts = checked_draft(sick)
    assert any("0000:21:00.0" in doubt and "x8" in doubt for doubt in doubts)
    assert any("GPU 2" in doubt and "17 of 18" in doubt for doubt in doubts)
