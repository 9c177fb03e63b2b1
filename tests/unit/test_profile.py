from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import draft, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from hypothesis import given, settings
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
    hgx = ["hgx-a100", "hgx-b200", "hgx-h100", "hgx-h200"]
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
    ("path", "value", "message"),
    [
        ("gpus", [], "gpus is list, expected a mapping"),
        ("gpus.count", "eight", "gpus.count is 'eight', expected a whole number"),
        ("gpus.count", True, "gpus.count is True"),
        ("gpus.count", 1, "names GPU 1, but gpus.count is 1"),
        ("gpus.models", "NVIDIA H200", "gpus.models is str, expected a list"),
        ("gpus.modles", ["x"], "unknown key modles"),
        ("nvlink_domain", {"nodes": 18}, "nvlink_domain lacks imex"),
        ("nvlink_domain", {"nodes": 18, "imex": "daily"}, "nvlink_domain.imex is 'daily', expected rack, job or none"),
        ("nvlink_domain", {"nodes": 1, "imex": "rack"}, "nvlink_domain.nodes is 1"),
        ("page_size", "64K", "page_size is '64K', expected a whole number"),
        ("kernel_args", ["quiet splash"], "kernel_args has 'quiet splash', expected NAME or NAME=VALUE"),
        ("kernel_args", "quiet", "kernel_args is str, expected a list"),
        ("driver_options", [{"name": "NVreg_A", "value": 1}], "without NVreg_"),
        ("driver_options", [{"name": "A", "value": "1 x"}], r"driver_options\[0\].value is '1 x'"),
        ("topology_file", "topo.xml", "topology_file is 'topo.xml', expected an absolute path"),
        ("topology_file", "/topo.xml\nNCCL_P2P_DISABLE=1", "expected an absolute path"),
        ("gpus.nvlink_fabric", "yes", "expected true or false"),
        ("nic_firmware", ["x"], "nic_firmware is list, expected a mapping"),
        ("nic_firmware", {"ATS_ENABLED": 0}, "nic_firmware.ATS_ENABLED is int, expected a mapping"),
        ("nic_firmware", {"ATS_ENABLED": {"value": 0}}, "nic_firmware.ATS_ENABLED lacks why"),
        ("nic_firmware", {"ATS_ENABLED": {"value": 0.5, "why": "x"}}, "ATS_ENABLED.value is 0.5, expected a number"),
        ("gpus.pcie", {"speed_gts": 32}, "gpus.pcie lacks width"),
        ("gpus.pcie", {"speed_gts": "fast", "width": 16}, "expected GT/s"),
        ("gpus.pci", ["0000:1b:00.0"], "must name 2 different addresses"),
        ("gpus.pci", ["zz", "0000:1b:00.0"], "gpus.pci"),
        ("rails", {"a": 1}, "rails is dict, expected a list"),
        ("rails.0", {}, r"rails\[0\] lacks paths"),
        ("rails.0.paths", {0: "NEAR"}, "expected one of X, PIX"),
        ("rails.0.paths", {"x": "PIX"}, "expected a whole number"),
        ("rails.0.paths", {}, "so its NIC is undefined"),
        ("rails.0.link_layers", ["Infiniband"], "expected some of InfiniBand, Ethernet"),
        ("rails.0.rate_gbps", -1, "positive number"),
        ("rails.0.numa", "near", "expected same or any"),
        ("rails.0.pci", "0000:1b:00.0", "name all or none"),
        ("rail_defaults", {"link_layers": ["Ethernet"]}, "has no rate_gbps"),
        ("rail_defaults.colour", "red", "unknown key colour"),
        ("description", "", "description is '', expected text"),
    ],
)
def test_a_wrong_profile_names_the_key_and_what_was_expected(path: str, value: object, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(edited(path, value), "test")


def test_two_rails_in_one_slot_are_refused() -> None:
    data = copy.deepcopy(GOOD)
    for rail in data["rails"]:
        rail["pci"] = "0000:1b:00.0"
    with pytest.raises(ParseError, match="same pci address"):
        parse(data, "test")


def test_gpu_indices_survive_a_trip_through_json() -> None:
    data = edited("rails.0.paths", {"0": "PIX"})
    assert parse(data, "test").rails[0].paths == {0: "PIX"}


@pytest.mark.parametrize(
    ("fabric", "message"),
    [(None, "must be set to infiniband or ethernet"), ("token-ring", "expected one of ethernet, infiniband")],
)
def test_the_fabric_must_decide_where_the_profile_does_not(fabric: str | None, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        for_fabric(parse(GOOD, "test"), fabric)


def test_a_fabric_that_the_profile_does_not_have_is_refused() -> None:
    data = edited("rail_defaults.link_layers", ["InfiniBand"])
    with pytest.raises(ParseError, match="busbar_fabric is ethernet, but rail 0 of profile test is InfiniBand"):
        for_fabric(parse(data, "test"), "ethernet")
    assert for_fabric(parse(data, "test"), None).rails[0].link_layers == ("InfiniBand",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(list(GOOD)), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
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
    _, doubts = draft(sick)
    assert any("0000:21:00.0" in doubt and "x8" in doubt for doubt in doubts)
    assert any("GPU 2" in doubt and "17 of 18" in doubt for doubt in doubts)
