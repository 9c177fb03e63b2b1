from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw import Bar, find_bar, parse_bars, predict
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent.parent
BARS = parse_bars(yaml.safe_load((ROOT / "roles/nccl_benchmark/files/bars.yml").read_text()), "bars.yml")
PLATFORMS = ("hgx-a100", "hgx-b200", "hgx-h100", "hgx-h200")
G = 1 << 30
ENTRY: dict[str, Any] = {
    "platform": "mine",
    "nvls": False,
    "scope": "node",
    "collective": "all_reduce",
    "size": "8G",
    "busbw": 348,
    "healthy": 366.7,
    "source": "me",
}


def platform(name: str) -> profile.Profile:
    return profile.parse(yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text()), name)


def test_a_bar_is_read_as_it_is_written() -> None:
    assert parse_bars([ENTRY], "bars.yml") == (Bar("mine", False, "node", "all_reduce", 8 * G, 348.0, 366.7, "me"),)
    assert parse_bars([], "bars.yml") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"busbw": 0}, "busbw is .*, expected GB/s above 0"),
        ({"busbw": -1.0}, "expected GB/s above 0"),
        ({"busbw": float("nan")}, "expected GB/s above 0"),
        ({"busbw": "348"}, "expected GB/s above 0"),
        ({"busbw": True}, "expected GB/s above 0"),
        ({"busbw": 400}, "the bar 400 is above what a healthy node reaches, 366.7"),
        ({"nvls": "no"}, "nvls is 'no', expected true or false"),
        ({"size": "8 GB"}, "size '8 GB', expected bytes such as 8, 64K, 1M or 8G"),
        ({"size": 0}, "size '0'"),
        ({"size": True}, "size 'True'"),
        ({"scope": "rack"}, "scope is 'rack', expected one of node"),
        ({"collective": "allreduce"}, "collective is 'allreduce', expected one of all_reduce"),
        ({"source": " "}, "source is ' ', expected text"),
        ({"provenance": "me"}, "unknown key 'provenance'"),
    ],
)
def test_a_wrong_bar_is_named_with_its_entry_and_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=f"bars.yml, entry 2.*{message}"):
        parse_bars([{**ENTRY, "size": "1G"}, {**ENTRY, **change}], "bars.yml")


@pytest.mark.parametrize("data", [None, {}, "x", [1], [ENTRY, ENTRY], [{}]])
def test_what_is_no_list_of_bars_is_refused(data: object) -> None:
    with pytest.raises(ParseError, match=r"bars\.yml"):
        parse_bars(data, "bars.yml")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional={key: st.none() | st.integers() | st.text() for key in ENTRY})))
def test_any_data_is_bars_or_a_parse_error(data: object) -> None:
    try:
        parse_bars(data, "bars.yml")
    except ParseError as error:
        assert str(error)


def test_the_bar_is_that_of_the_largest_size_that_fits_and_the_sites_goes_first() -> None:
    (small,) = parse_bars([{**ENTRY, "size": "64M", "busbw": 300}], "a")
    (large,) = parse_bars([ENTRY], "b")
    ask = ("mine", False, "node", "all_reduce")
    assert find_bar([[small, large]], *ask, 8 * G) == large
    assert find_bar([[small, large]], *ask, 14_000_000_000) == large
    assert find_bar([[small, large]], *ask, 8 * G - 1) == small
    assert find_bar([[small, large]], *ask, 1 << 20) is None
    assert find_bar([[small], [large]], *ask, 8 * G) == small
    for other in (("yours", *ask[1:]), ("mine", True, *ask[2:]), (*ask[:3], "reduce")):
        assert find_bar([[small, large]], *other, 8 * G) is None


@pytest.mark.parametrize("name", PLATFORMS)
@pytest.mark.parametrize("collective", busbw.COLLECTIVES)
def test_every_platform_of_the_suite_has_a_bar_below_what_can_be_reached(name: str, collective: str) -> None:
    of = platform(name)
    for nvls in {False, busbw.nvls_expected(of, {})}:
        bar = find_bar([BARS], name, nvls, "node", collective, 8 * G)
        prediction = predict(of, collective, nvls).busbw
        assert bar is not None, (name, nvls, collective)
        assert prediction is not None
        assert 0.8 * prediction < bar.busbw < prediction
        assert bar.healthy or bar.source.startswith("derived:")


def test_larger_messages_have_no_lower_bar() -> None:
    for bar in BARS:
        for other in BARS:
            if replace(other, size=bar.size, busbw=bar.busbw, healthy=bar.healthy, source=bar.source) == bar:
                assert (other.size <= bar.size) == (other.busbw <= bar.busbw)


@pytest.mark.parametrize(
    ("name", "collective", "nvls", "gpus", "measured"),
    [
        # Published, nccl.md 7.2.
        ("hgx-a100", "all_reduce", False, 8, 231.6),
        ("hgx-h100", "all_reduce", True, 8, 478.9),
        ("hgx-h100", "all_reduce", True, 5, 420.0),
        # Measured on H200, docs/evidence/h200x4.md and the captures of eight.
        ("hgx-h200", "all_reduce", False, 8, 366.7),
        ("hgx-h200", "all_reduce", False, 4, 365.0),
        ("hgx-h200", "all_reduce", False, 2, 350.1),
        ("hgx-h200", "all_reduce", True, 4, 365.0),
        ("hgx-h200", "all_gather", False, 4, 348.0),
        ("hgx-h200", "all_gather", False, 2, 311.4),
        ("hgx-h200", "reduce_scatter", False, 2, 294.2),
        ("hgx-h200", "sendrecv", False, 4, 365.9),
    ],
)
def test_the_prediction_is_within_five_percent(
    name: str, collective: str, nvls: bool, gpus: int, measured: float
) -> None:
    prediction = predict(platform(name), collective, nvls, gpus)
    assert prediction.busbw is not None
    assert abs(prediction.busbw / measured - 1) < 0.05, prediction


def test_a_prediction_tells_its_rule_and_a_missing_one_its_reason() -> None:
    of = platform("hgx-h200")
    assert predict(of, "all_reduce", False).rule == "18 NVLinks x 20.6 GB/s x 0.97"
    assert predict(of, "all_reduce", True).rule == "18 NVLinks x 20.6 GB/s x 1.29 with NVLS"
    none = replace(of, gpus=replace(of.gpus, nvlinks=None))
    assert predict(none, "all_reduce", False) == busbw.Prediction(None, "no NVLinks in the profile")
    strange = replace(of, gpus=replace(of.gpus, models=("NVIDIA X999",)))
    assert predict(strange, "all_reduce", False).busbw is None
    assert "X999" in predict(strange, "all_reduce", False).rule


def test_nvls_is_expected_from_hopper_on_unless_the_site_turns_it_off() -> None:
    assert busbw.nvls_expected(platform("hgx-h100"), {})
    assert busbw.nvls_expected(platform("hgx-h100"), {"NCCL_NVLS_ENABLE": "2"})
    assert not busbw.nvls_expected(platform("hgx-h100"), {"NCCL_NVLS_ENABLE": "0"})
    assert not busbw.nvls_expected(platform("hgx-a100"), {})


@pytest.mark.parametrize(
    ("text", "size"),
    [("7B", 14_000_000_000), ("7e9", 14_000_000_000), ("350M", 700_000_000), ("1.3T", 2_600_000_000_000)],
)
def test_a_model_is_two_bytes_a_parameter(text: str, size: int) -> None:
    assert busbw.model_bytes(text, 8) == size


@pytest.mark.parametrize("text", ["", "seven", "-7B", "7 B", "7GB", "0", "1e99", "nan", "7b\x00"])
def test_what_is_no_size_of_a_model_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="expected a form like 350M, 7B"):
        busbw.model_bytes(text, 8)


@settings(max_examples=100, deadline=None)
@given(st.integers(1_000_000, 10**13), st.integers(1, 72))
def test_the_bytes_are_whole_shares_and_not_less_than_the_model(parameters: int, gpus: int) -> None:
    size = busbw.model_bytes(str(parameters), gpus)
    assert size % (16 * gpus) == 0
    assert 0 <= size - 2 * parameters < 16 * gpus
