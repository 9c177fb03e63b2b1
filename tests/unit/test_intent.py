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

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hunter2-do-not-print"


def test_defaults_fill_what_is_not_set() -> None:
    values = intent.read({"busbar_platform": "hgx-h100"})
    assert values["nccl_conf_path"] == "/etc/nccl.conf"
    assert set(values) == set(site_values.VALUES)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "busbar_platform is not set"),
        (
            {"busbar_platfrom": "hgx-h100"},
            "busbar_platfrom is not a variable of this suite; did you mean busbar_platform",
        ),
        ({"busbar_fabric": "roce"}, "busbar_fabric is 'roce', expected one of ethernet, infiniband"),
        ({"busbar_fabric": True}, "busbar_fabric is True .bool., expected str"),
        ({"busbar_mtu": "9000"}, "busbar_mtu is '9000' .str., expected int"),
        ({"busbar_mtu": 900}, "busbar_mtu is 900, expected 1280 to 65535"),
        ({"busbar_mtu": 9000, "busbar_fabric": "infiniband"}, "busbar_mtu is set, but busbar_fabric is infiniband"),
        ({"busbar_roce": {"dscp": "26"}}, "busbar_roce.dscp is '26' .str., expected int"),
        ({"busbar_roce": {"dscp": 64}}, "expected 0 to 63"),
        ({"roce_qos_pfc": ["3"]}, "roce_qos_pfc holds '3', expected int"),
        ({"roce_qos_pfc": [True]}, "roce_qos_pfc holds True, expected int"),
        ({"roce_qos_pfc": [8]}, r"roce_qos_pfc is \[8\], expected a list of priorities 0 to 7"),
        ({"roce_qos_tsa": ["ets"] * 8}, "roce_qos_tsa and tc_bandwidth go together: set both or none"),
        ({"roce_qos_trust": "l3"}, "roce_qos_trust is 'l3', expected one of dscp, pcp"),
        ({"busbar_model_parallelism": {"tensr": 8}}, "busbar_model_parallelism has unknown key 'tensr'; known: tensor"),
        ({"busbar_model_parallelism": {"tensor": "8"}}, "busbar_model_parallelism.tensor is '8' .str., expected int"),
        ({"busbar_model_parallelism": {"data": 0}}, "busbar_model_parallelism.data is 0, expected 1 to"),
        ({"busbar_roce": {"dcsp": 26}}, "busbar_roce has unknown key 'dcsp'; known: dscp"),
        ({"busbar_roce": {"dscp": 26}, "busbar_fabric": "infiniband"}, "busbar_roce is set, but busbar_fabric is inf"),
        ({"busbar_nccl_libraries": "/usr/lib/libnccl.so.2"}, "busbar_nccl_libraries is .* expected list"),
        ({"busbar_nccl_libraries": [2]}, "holds 2, expected text"),
        ({"nccl_conf_path": "nccl.conf"}, "expected an absolute path"),
        ({"nccl_conf_backup": "yes"}, "nccl_conf_backup is 'yes' .str., expected bool"),
        ({"nccl_conf_containers": ["podman"]}, "expected some of enroot, docker, kubernetes"),
        ({"nccl_conf_extra": {"NCCL_DEBUG": ["WARN"]}}, "expected text or a whole number"),
        ({"nccl_conf_extra": {"NCCL_IB_HCA": "mlx5_0"}}, "NCCL_IB_HCA is derived, not set: use the rails"),
        ({"busbar_max_disruption": "some"}, "expected one of none, link, driver, reboot"),
        ({"nccl_benchmark_scope": "rack"}, "is 'rack', expected one of node, pair, rail, leaf, nvlink_domain, "),
        (
            {
                "nccl_benchmark_scope": "nvlink_domain",
                "nccl_benchmark_environment": {"NCCL_MNNVL_ENABLE": 0},
            },
            "NCCL_MNNVL_ENABLE: 0, which switches these off: take it out",
        ),
        ({"nccl_benchmark_scope": "leaf"}, "set busbar_leaf for every node, or nccl_benchmark_scope: cluster"),
        ({"nccl_benchmark_scope": "pair", "nccl_tests_mpi": "off"}, "set nccl_tests_mpi: required"),
        ({"nccl_benchmark_scope": "pair", "nccl_benchmark_collectives": []}, "collectives is empty: name one"),
        (
            {"nccl_benchmark_scope": "rail", "nccl_tests_commit": "", "nccl_benchmark_collectives": []},
            "set the commit, or nccl_benchmark_scope: node",
        ),
        (
            {"nccl_benchmark_launcher_options": ["--hostfile", "/etc/hosts"]},
            "nccl_benchmark_launcher_options: take '--hostfile' out; hosts, ranks, time and variables are chosen by",
        ),
        ({"nccl_benchmark_repeats": 0}, "nccl_benchmark_repeats is 0, expected 1 to 100"),
        ({"nccl_benchmark_address": "--hostfile=/etc/x"}, "expected a host's name or address"),
        ({"nccl_benchmark_address": "a,b"}, "expected a host's name or address"),
        ({"busbar_fabric_partitions": [0x8001]}, "busbar_fabric_partitions holds 32769, expected text"),
        ({"busbar_fabric_partitions": ["8001"]}, "holds '8001', expected partition keys such as '0x8001'"),
        ({"busbar_fabric_oversubscription": 0.0}, "is 0, expected bandwidth to hosts for each of that to spines"),
        ({"busbar_fabric_routing_engine": "ftree,updn"}, "is 'ftree,updn', expected one engine such as 'ftree'"),
        ({"busbar_fabric_adaptive_routing": "maybe"}, "busbar_fabric_adaptive_routing is 'maybe'"),
        ({"ib_fabric_devices": ["mlx5_0"]}, "holds 'mlx5_0', expected ports such as 'mlx5_0:1'"),
        ({"ib_fabric_devices": ["-C:1"]}, "holds '-C:1', expected ports"),
        ({"ib_fabric_dumps": "/x", "ib_fabric_devices": ["mlx5_0:1"]}, "two ways to a sweep: set one of them"),
        ({"ib_fabric_seconds": 0}, "ib_fabric_seconds is 0, expected seconds from 1 to 3600"),
        ({"busbar_leaf": "leaf one"}, "busbar_leaf is 'leaf one', expected a name of"),
    ],
)
def test_a_wrong_inventory_names_the_variable(variables: dict[str, Any], message: str) -> None:
    base = {} if not variables else {"busbar_platform": "hgx-h100"}
    with pytest.raises(ParseError, match=message):
        intent.read({**base, **variables})


CHAIN = {"busbar_platform": "hgx-h200", "busbar_roce": {"dscp": 26, "priority": 3}}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"roce_qos_pfc": [4]}, "NCCL_IB_TC 104 is DSCP 26; DSCP 26 maps to priority 3; PFC is on for 4"),
        (
            {"roce_qos_dscp2prio": {26: 4}},
            "NCCL_IB_TC 104 is DSCP 26; DSCP 26 maps to priority 4; busbar_roce.priority is 3",
        ),
        ({"roce_qos_tos": 136}, "rdma_cm's ToS 136 is DSCP 34; busbar_roce.dscp is 26"),
        ({"roce_qos_traffic_class": 0}, "traffic_class 0 is DSCP 0; busbar_roce.dscp is 26"),
        (
            {"nccl_benchmark_environment": {"UCX_IB_TRAFFIC_CLASS": "136", "NCCL_IB_TC": "106"}},
            "nccl_benchmark_environment.UCX_IB_TRAFFIC_CLASS 136 is DSCP 34; busbar_roce.dscp is 26",
        ),
        ({"roce_qos_trust": "pcp"}, "trust is pcp, so that NICs do not look at DSCP 26 .busbar_roce.dscp.: trust dscp"),
    ],
)
def test_the_wrong_link_of_the_chain_is_named(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=f"^{message}$"):
        intent.read({**CHAIN, **variables})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"perftest_seconds": 2}, "perftest_seconds is 2, expected 3 or more"),
        ({"busbar_reboot_batches": [1, 0]}, "busbar_reboot_batches holds 0, expected numbers of nodes .*"),
        ({"busbar_reboot_batches": ["101%"]}, "busbar_reboot_batches holds '101%', expected .*"),
        ({"busbar_reboot_batches": [True]}, "busbar_reboot_batches holds True, expected numbers and text"),
        ({"busbar_reboot_batches": []}, "busbar_reboot_batches holds nothing, expected .*"),
        ({"perftest_timeout": 19}, "perftest_timeout is 19, expected four times perftest_seconds or more"),
        ({"perftest_rounds": 0}, "perftest_rounds is 0, expected 1 or more"),
        ({"perftest_share": 1.5}, "perftest_share is 1.5, expected 0 to 1"),
        ({"perftest_share": "0.9"}, "perftest_share is '0.9' .str., expected float: write .*"),
        ({"node_health_power_limit": -1}, "node_health_power_limit is -1, expected watts, or 0"),
        ({"perftest_latency": -1}, "perftest_latency is -1, expected microseconds, or 0 for no bar"),
        ({"busbar_firmware": {"MT_1": 28.43}}, "busbar_firmware.MT_1 is not a text such as '28.43.8002'"),
        (
            {"nic_firmware_settings": {"LINK_TYPE": "-y"}},
            "nic_firmware_settings.LINK_TYPE is '-y', expected a number from 0 to 4294967295 or a word such as ETH",
        ),
        (
            {"nic_firmware_settings": {"LINK_TYPE": "IB"}, "busbar_fabric": "ethernet"},
            "nic_firmware_settings.LINK_TYPE is IB, but busbar_fabric is ethernet",
        ),
        (
            {"nic_firmware_settings": {"CNP_DSCP": 4, "LINK_TYPE": "0x2", "ROCE_CC_PRIO_MASK": 8}},
            "nic_firmware_settings.CNP_DSCP is 4, but busbar_roce.cnp_dscp is 48",
        ),
        (
            {"nic_firmware_settings": {"ROCE_CC_PRIO_MASK": "0x30"}},
            "nic_firmware_settings.ROCE_CC_PRIO_MASK is 48, without the bit of busbar_roce.priority 3: .*",
        ),
        (
            {"nic_firmware_devices": ["ens1"]},
            "nic_firmware_devices: 'ens1' is not a PCI address like 0000:1b:00.0",
        ),
        ({"perftest_sconds": 5}, "perftest_sconds is not a variable of this suite; did you mean perftest_seconds.?"),
    ],
)
def test_a_test_that_cannot_be_is_named(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=f"^{message}$"):
        intent.read({**CHAIN, **variables})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"multirail_policy": "gcp"}, "multirail_policy is 'gcp', expected one of oci, nvidia, none, custom"),
        ({"multirail_values": {"rp_filter": 2}}, "multirail: no policy is set; values and source routing are .*custom"),
        ({"multirail_policy": "oci", "multirail_source_routing": True}, "multirail: policy oci has its own values; .*"),
        (
            {"multirail_policy": "custom", "multirail_values": {"rp_filter": 3}},
            "multirail: rp_filter is 3, expected a number from 0 to 2",
        ),
        (
            {"multirail_policy": "oci", "multirail_gateway": "first"},
            "multirail_gateway is first, but without source routing no rail has a table to put it in",
        ),
        ({"multirail_polcy": "oci"}, "multirail_polcy is not a variable .* did you mean multirail_policy.?"),
    ],
)
def test_a_policy_of_rails_that_makes_no_sense_is_named(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=f"^{message}$"):
        intent.read({**CHAIN, **variables})


def test_batches_are_numbers_and_shares() -> None:
    batches = [1, 5, "20%", "100%"]
    assert intent.read({**CHAIN, "busbar_reboot_batches": batches})["busbar_reboot_batches"] == batches


def test_a_chain_that_agrees_and_a_lossy_fabric_are_no_error() -> None:
    for name, value in (("roce_qos_traffic_class", 106), ("roce_qos_pfc", []), ("roce_qos_pfc", [3, 6])):
        assert intent.read({**CHAIN, name: value})["roce_qos_tos"] is None


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ParseError) as caught:
        intent.read({"busbar_fabric": "x", "busbar_gpudirect": "y", "busbar_zzz": 1})
    for name in ("busbar_fabric", "busbar_gpudirect", "busbar_zzz", "busbar_platform"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["busbar_anything", "nccl_conf_pth", "platform_cros_checks", "busbar_platform", "roce_qos_pcf"],
)
def test_our_names_and_near_misses_are_looked_at(name: str) -> None:
    assert intent.mine(name)


@pytest.mark.parametrize(
    "name",
    [
        "platform_team",
        "ansible_host",
        "__nccl_conf_x",
        "busbar_intent",
        "platform_result",
        "roce_qos_owner",
        "gate_contact",
    ],
)
def test_other_peoples_variables_are_left_alone(name: str) -> None:
    assert not intent.mine(name)


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
    site = tmp_path / "profiles"
    site.mkdir()
    (site / "hgx-h100.yml").write_text("description: mine\n")
    assert load("hgx-h100", [site, ROOT / "profiles"]) == (site / "hgx-h100.yml", {"description": "mine"})
    assert load("hgx-a100", [site, ROOT / "profiles"])[0] == ROOT / "profiles" / "hgx-a100.yml"


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


def test_custom_is_the_sites_own(tmp_path: Path) -> None:
    (tmp_path / "custom.yml").write_text("description: mine\n")
    assert load("custom", [tmp_path, ROOT / "profiles"])[0] == tmp_path / "custom.yml"


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


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"mofed_version": 24.1}, "mofed_version is 24.1 (float), expected str: write it in quotes"),
        ({"busbar_lldp": True}, "busbar_lldp is True (bool), expected str: one of auto, none, required"),
        ({"busbar_roce": {"dscp": "26"}}, "busbar_roce.dscp is '26' (str), expected int: write dscp: 26"),
        ({"mofed_manage": "maybe"}, "mofed_manage is 'maybe' (str), expected bool"),
        ({"busbar_mtu": "9k"}, "busbar_mtu is '9k' (str), expected int"),
        ({"busbar_mtu": True}, "busbar_mtu is True (bool), expected int"),
        ({"busbar_firmware": "{"}, "busbar_firmware is '{' (str), expected dict"),
        ({"roce_qos_pfc": "[3"}, "roce_qos_pfc is '[3' (str), expected list"),
        ({"roce_qos_pfc": [True]}, "roce_qos_pfc holds True, expected int"),
    ],
)
def test_what_could_mean_something_else_is_not_guessed(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError) as error:
        intent.read({"busbar_platform": "hgx-h100", **variables})
    assert str(error.value) == message


@given(st.sampled_from(sorted(site_values.VALUES)), st.text(max_size=20) | st.lists(st.text(max_size=5) | st.none()))
def test_any_value_gives_a_sentence(name: str, given_value: object) -> None:
    try:
        intent.read({"busbar_platform": "hgx-h100", name: given_value})
    except ParseError as error:
        assert name in str(error) or name == "busbar_platform"


def test_a_mistake_of_a_thousand_hosts_is_one_sentence() -> None:
    errors = {f"node{i:04}": ["busbar_x is not a variable of this suite"] for i in range(1, 1001)}
    errors["node0500"].append("busbar_mtu is '9' (str), expected int")
    assert intent.told(errors) == (
        "node[0001-1000]: busbar_x is not a variable of this suite; node0500: busbar_mtu is '9' (str), expected int"
    )
    each = intent.told({f"n{i}": [f"mistake {i}"] for i in range(1000)})
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
    assert [name for name in site_values.VALUES if redaction.named(name) and not site_values.VALUES[name].private] == []
