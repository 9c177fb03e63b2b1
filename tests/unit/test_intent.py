from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.action import intent as action
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, site_values
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import load
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import goldens

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hunter2-do-not-print"


def test_defaults_fill_what_is_not_set() -> None:
    values = intent.read({"busbar_platform": "hgx-h100"})
    assert values["nccl_conf_path"] == "/etc/nccl.conf"
    assert set(values) == set(site_values.VALUES)


PLATFORM = {"busbar_platform": "hgx-h100"}
CHAIN = {"busbar_platform": "hgx-h200", "busbar_roce": {"dscp": 26, "priority": 3}}
NO_MNNVL = {"NCCL_MNNVL_ENABLE": 0}
OTHER_CLASS = {"UCX_IB_TRAFFIC_CLASS": "136", "NCCL_IB_TC": "106"}
OTHER_MASKS = {"CNP_DSCP": 4, "LINK_TYPE": "0x2", "ROCE_CC_PRIO_MASK": 8}
WRONG: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({}, [{}, {"busbar_fabric": "x", "busbar_gpudirect": "y", "busbar_zzz": 1}]),
    (
        PLATFORM,
        [
            {"busbar_platfrom": "hgx-h100"},
            {"busbar_fabric": "roce"},
            {"busbar_fabric": True},
            {"busbar_mtu": "9000"},
            {"busbar_mtu": "9k"},
            {"busbar_mtu": True},
            {"busbar_mtu": 900},
            {"busbar_mtu": 9000, "busbar_fabric": "infiniband"},
            {"busbar_roce": {"dscp": "26"}},
            {"busbar_roce": {"dscp": 64}},
            {"busbar_roce": {"dcsp": 26}},
            {"busbar_roce": {"dscp": 26}, "busbar_fabric": "infiniband"},
            {"roce_qos_pfc": ["3"]},
            {"roce_qos_pfc": "[3"},
            {"roce_qos_pfc": [True]},
            {"roce_qos_pfc": [8]},
            {"roce_qos_tsa": ["ets"] * 8},
            {"roce_qos_trust": "l3"},
            {"busbar_model_parallelism": {"tensr": 8}},
            {"busbar_model_parallelism": {"tensor": "8"}},
            {"busbar_model_parallelism": {"data": 0}},
            {"busbar_nccl_libraries": "/usr/lib/libnccl.so.2"},
            {"busbar_nccl_libraries": [2]},
            {"nccl_conf_path": "nccl.conf"},
            {"nccl_conf_backup": "yes"},
            {"nccl_conf_containers": ["podman"]},
            {"nccl_conf_extra": {"NCCL_DEBUG": ["WARN"]}},
            {"nccl_conf_extra": {"NCCL_IB_HCA": "mlx5_0"}},
            {"busbar_max_disruption": "some"},
            {"nccl_benchmark_scope": "rack"},
            {"nccl_benchmark_scope": "nvlink_domain", "nccl_benchmark_environment": NO_MNNVL},
            {"nccl_benchmark_scope": "leaf"},
            {"nccl_benchmark_scope": "pair", "nccl_tests_mpi": "off"},
            {"nccl_benchmark_scope": "pair", "nccl_benchmark_collectives": []},
            {"nccl_benchmark_scope": "rail", "nccl_tests_commit": "", "nccl_benchmark_collectives": []},
            {"nccl_benchmark_launcher_options": ["--hostfile", "/etc/hosts"]},
            {"nccl_benchmark_repeats": 0},
            {"nccl_benchmark_address": "--hostfile=/etc/x"},
            {"nccl_benchmark_address": "a,b"},
            {"busbar_fabric_partitions": [0x8001]},
            {"busbar_fabric_partitions": ["8001"]},
            {"busbar_fabric_oversubscription": 0.0},
            {"busbar_fabric_routing_engine": "ftree,updn"},
            {"busbar_fabric_adaptive_routing": "maybe"},
            {"ib_fabric_devices": ["mlx5_0"]},
            {"ib_fabric_devices": ["-C:1"]},
            {"ib_fabric_dumps": "/x", "ib_fabric_devices": ["mlx5_0:1"]},
            {"ib_fabric_seconds": 0},
            {"busbar_leaf": "leaf one"},
            {"mofed_version": 24.1},
            {"mofed_manage": "maybe"},
            {"busbar_lldp": True},
            {"busbar_firmware": "{"},
        ],
    ),
    (
        CHAIN,
        [
            {"roce_qos_pfc": [4]},
            {"roce_qos_dscp2prio": {26: 4}},
            {"roce_qos_tos": 136},
            {"roce_qos_traffic_class": 0},
            {"nccl_benchmark_environment": OTHER_CLASS},
            {"roce_qos_trust": "pcp"},
            {"perftest_seconds": 2},
            {"busbar_reboot_batches": [1, 0]},
            {"busbar_reboot_batches": ["101%"]},
            {"busbar_reboot_batches": [True]},
            {"busbar_reboot_batches": []},
            {"perftest_timeout": 19},
            {"perftest_rounds": 0},
            {"perftest_share": 1.5},
            {"perftest_share": "0.9"},
            {"node_health_power_limit": -1},
            {"perftest_latency": -1},
            {"busbar_firmware": {"MT_1": 28.43}},
            {"nic_firmware_settings": {"LINK_TYPE": "-y"}},
            {"nic_firmware_settings": {"LINK_TYPE": "IB"}, "busbar_fabric": "ethernet"},
            {"nic_firmware_settings": OTHER_MASKS},
            {"nic_firmware_settings": {"ROCE_CC_PRIO_MASK": "0x30"}},
            {"nic_firmware_devices": ["ens1"]},
            {"perftest_sconds": 5},
            {"multirail_policy": "gcp"},
            {"multirail_values": {"rp_filter": 2}},
            {"multirail_policy": "oci", "multirail_source_routing": True},
            {"multirail_policy": "custom", "multirail_values": {"rp_filter": 3}},
            {"multirail_policy": "oci", "multirail_gateway": "first"},
            {"multirail_polcy": "oci"},
        ],
    ),
]


@pytest.mark.golden
def test_a_wrong_inventory_names_the_variable() -> None:
    written = []
    for base, cases in WRONG:
        for variables in cases:
            with pytest.raises(ParseError) as caught:
                intent.read({**base, **variables})
            written.append(f"{variables}\n    {caught.value}\n")
    goldens.text("intent", "".join(written))


def test_batches_are_numbers_and_shares() -> None:
    batches = [1, 5, "20%", "100%"]
    assert intent.read({**CHAIN, "busbar_reboot_batches": batches})["busbar_reboot_batches"] == batches


def test_a_chain_that_agrees_and_a_lossy_fabric_are_no_error() -> None:
    for name, value in (("roce_qos_traffic_class", 106), ("roce_qos_pfc", []), ("roce_qos_pfc", [3, 6])):
        assert intent.read({**CHAIN, name: value})["roce_qos_tos"] is None


@pytest.mark.parametrize(
    ("mine", "names"),
    [
        (True, "busbar_anything nccl_conf_pth platform_cros_checks busbar_platform roce_qos_pcf"),
        (False, "platform_team ansible_host __nccl_conf_x busbar_intent platform_result roce_qos_owner gate_contact"),
    ],
)
def test_our_names_and_near_misses_are_looked_at_and_others_left_alone(mine: bool, names: str) -> None:
    assert {name: intent.mine(name) for name in names.split()} == dict.fromkeys(names.split(), mine)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(site_values.VALUES)) | st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.lists(st.text() | st.integers())
        | st.dictionaries(st.text(), st.text()),
        max_size=5,
    )
)
def test_any_inventory_is_values_or_a_parse_error(variables: dict[str, Any]) -> None:
    try:
        assert set(intent.read(variables)) == set(site_values.VALUES)
    except ParseError as error:
        assert str(error)


def test_the_sites_profile_comes_before_the_suites(tmp_path: Path) -> None:
    for name in ("hgx-h100", "custom"):
        (tmp_path / f"{name}.yml").write_text("description: mine\n")
        assert load(name, [tmp_path, ROOT / "profiles"]) == (tmp_path / f"{name}.yml", {"description": "mine"})
    assert load("hgx-a100", [tmp_path, ROOT / "profiles"])[0] == ROOT / "profiles" / "hgx-a100.yml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hgx-h10", "no profile of that name; did you mean hgx-h100[?]"),
        ("custom", "busbar check .* --platform custom --write DIR"),
        ("../../etc/passwd", "no profile of that name"),
    ],
)
def test_an_unknown_platform_is_an_error_that_says_what_is_known(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        load(name, [tmp_path / "profiles", ROOT / "profiles"])


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "", "\x00", "description: 2020-13-45\n", "[" * 3000])
def test_a_broken_profile_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.yml").write_text(text)
    with pytest.raises(ParseError, match=r"site\.yml (cannot be read|is not a mapping)"):
        load("site", [tmp_path])


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("mofed_manage", "false", False),
        ("mofed_manage", "Yes", True),
        ("busbar_mtu", "9000", 9000),
        ("perftest_share", "0.8", 0.8),
        ("roce_qos_pfc", "3", [3]),
        ("roce_qos_pfc", ["3", 4], [3, 4]),
        ("nccl_conf_containers", "docker, enroot", ["docker", "enroot"]),
        ("nccl_conf_containers", "['docker']", ["docker"]),
        ("busbar_firmware", '{"MT_0000000838": "28.43.8002"}', {"MT_0000000838": "28.43.8002"}),
    ],
)
def test_text_where_another_type_is_meant_says_how_to_write_it(name: str, given: object, meant: object) -> None:
    with pytest.raises(ParseError) as error:
        intent.read({"busbar_platform": "hgx-h100", name: given})
    found = re.search(r": write (\w+: .*) in YAML \(group_vars\), or -e '(\{.*\})'", str(error.value))
    assert found
    assert yaml.safe_load(found.group(1)) == json.loads(found.group(2)) == {name: meant}
    assert intent.read({"busbar_platform": "hgx-h100", **json.loads(found.group(2))})[name] == meant


@given(st.sampled_from(sorted(site_values.VALUES)), st.text(max_size=20) | st.lists(st.text(max_size=5) | st.none()))
def test_any_value_gives_a_sentence(name: str, given_value: object) -> None:
    try:
        intent.read({"busbar_platform": "hgx-h100", name: given_value})
    except ParseError as error:
        assert name in str(error) or name == "busbar_platform"


def test_a_mistake_of_a_thousand_hosts_is_one_sentence() -> None:
    errors = {f"node{i:04}": ["busbar_x is not a variable of this suite"] for i in range(1, 1001)}
    errors["node0500"].append("busbar_mtu is '9' (str), expected int")
    assert intent.summarise_errors(errors) == (
        "node[0001-1000]: busbar_x is not a variable of this suite; node0500: busbar_mtu is '9' (str), expected int"
    )
    each = intent.summarise_errors({f"n{i}": [f"mistake {i}"] for i in range(1000)})
    assert each.endswith("; and 970 more mistakes; repair these first")


def test_what_a_run_prints_of_an_inventory_has_no_secret(tmp_path: Path) -> None:
    """Ansible prints with -v what an action returns, and writes it to its log."""
    given: dict[str, Any] = {
        "busbar_platform": "hgx-h100",
        "busbar_fabric": "infiniband",
        "nccl_benchmark_environment": {"NCCL_NVLS_ENABLE": "0", "SITE_KEYS": SECRET, "NCCL_AUTH_TOKEN": SECRET},
        "mofed_repository_url": f"https://anna:{SECRET}@mirror/repo",
    }
    wanted = action._read(given, tmp_path)
    values = wanted["values"]
    assert values["nccl_benchmark_environment"]["NCCL_NVLS_ENABLE"] == "0"
    assert list(values["nccl_benchmark_environment"]) == list(given["nccl_benchmark_environment"])
    assert SECRET not in json.dumps(wanted)
    # A new token is no other intent.
    other = {**given, "nccl_benchmark_environment": {**given["nccl_benchmark_environment"], "SITE_KEYS": "new"}}
    assert intent.digest(action._read(other, tmp_path)) == intent.digest(wanted)


@pytest.mark.parametrize("name", [name for name in site_values.VALUES if site_values.VALUES[name].private])
def test_a_mistake_in_what_may_be_secret_is_named_and_not_quoted(name: str) -> None:
    with pytest.raises(ParseError, match=f"{name} is of type list, expected ") as caught:
        intent.read({"busbar_platform": "hgx-h100", name: [SECRET]})
    assert SECRET not in str(caught.value)


def test_whose_name_says_that_it_is_secret_is_declared_so() -> None:
    assert [
        name for name in site_values.VALUES if redaction.is_secret_name(name) and not site_values.VALUES[name].private
    ] == []
