from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.action import intent as action
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, site_values
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import load
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hunter2-do-not-print"


@pytest.mark.golden
def test_a_wrong_inventory_names_the_variable() -> None:
    written = []
    for inventory in yaml.safe_load((Path(__file__).parent / "cases/wrong_inventories.yml").read_text()):
        for variables in inventory["wrong"]:
            with pytest.raises(ParseError) as caught:
                intent.read({**inventory["right"], **variables})
            written.append(f"{variables}\n    {caught.value}\n")
    goldens.text("intent", "".join(written))


def test_a_chain_that_agrees_a_lossy_fabric_and_batches_are_no_error() -> None:
    chain = {"busbar_platform": "hgx-h200", "busbar_roce": {"dscp": 26, "priority": 3}}
    good = [("roce_qos_traffic_class", 106), ("roce_qos_pfc", []), ("roce_qos_pfc", [3, 6])]
    for name, value in (*good, ("busbar_reboot_batches", [1, 5, "20%", "100%"])):
        values = intent.read({**chain, name: value})
        assert (values[name], values["roce_qos_tos"]) == (value, None)


@pytest.mark.parametrize(
    ("mine", "names"),
    [
        (True, "busbar_anything nccl_conf_pth platform_cros_checks busbar_platform roce_qos_pcf"),
        (False, "platform_team ansible_host __nccl_conf_x busbar_intent platform_result roce_qos_owner gate_contact"),
    ],
)
def test_our_names_and_near_misses_are_looked_at_and_others_left_alone(mine: bool, names: str) -> None:
    assert {name: intent.mine(name) for name in names.split()} == dict.fromkeys(names.split(), mine)


TEXTS = st.lists(st.text() | st.integers()) | st.dictionaries(st.text(), st.text())
GIVEN = st.none() | st.booleans() | st.integers() | st.text() | TEXTS


@given(st.dictionaries(st.sampled_from(sorted(site_values.VALUES)) | st.text(), GIVEN, max_size=5))
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
