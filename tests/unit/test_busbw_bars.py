from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_bars, prediction
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw_bars import (
    Bar,
    find_bar,
    find_latency_bar,
    parse_bars,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import shipped
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent.parent
BARS = parse_bars(yaml.safe_load((ROOT / "roles/nccl_benchmark/files/bars.yml").read_text()), "bars.yml")
PROFILES = {name: profile.parse(data, name) for name, data in shipped().items()}
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
LATENCY: dict[str, Any] = {key: ENTRY[key] for key in ("platform", "collective", "source")}
LATENCY |= {"scope": "pair", "size": 8, "latency_us": 40}
PAIR = {**ENTRY, "scope": "pair"}


def test_a_bar_is_read_as_it_is_written() -> None:
    assert parse_bars([ENTRY], "bars.yml") == (Bar("mine", False, "node", "all_reduce", 8 * G, 348.0, 366.7, "me"),)
    assert parse_bars([], "bars.yml") == ()
    both = parse_bars([{**ENTRY, "platform": ["mine", "yours"]}], "bars.yml")
    assert [bar.platform for bar in both] == ["mine", "yours"]
    assert replace(both[1], platform="mine") == both[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"busbw": 0}, "busbw: is .*, expected a number from 0.001"),
        ({"busbw": 400}, "the bar 400 is above what a healthy node reaches, 366.7"),
        ({"size": "8 GB"}, "size '8 GB', expected bytes such as 8, 64K, 1M or 8G"),
        ({"scope": "rack"}, "scope: is 'rack', expected node or pair or rail or leaf or nvlink_domain or cluster"),
        ({"source": " "}, "source: is ' ', which it cannot be"),
        ({"provenance": "me"}, "provenance.* is not a key"),
        ({"platform": []}, "platform is an empty list"),
        ({"platform": ["mine", 4]}, "platform: is 4, expected text"),
        ({"platform": ["mine", "mine"]}, "there is a bar for the same run above"),
        ({"algorithm": "SHARP"}, "SHARP is for all_reduce between nodes"),
        ({"scope": "pair", "algorithm": "SHARP", "collective": "all_gather"}, "SHARP is for all_reduce between nodes"),
        ({"scope": "pair", "latency_us": 40}, "latency_us.* is not a key"),
        ({**LATENCY, "nvls": False}, "nvls.* is not a key"),
        ({**LATENCY, "latency_us": 0}, "latency_us: is .*expected a number from 0.001"),
        ({**LATENCY, "healthy": 41}, "the bar 40 is below what a healthy node reaches, 41"),
    ],
)
def test_a_wrong_bar_is_named_with_its_entry_and_key(change: dict[str, Any], message: str) -> None:
    wrong = change if change.keys() >= LATENCY.keys() else {**ENTRY, **change}
    with pytest.raises(ParseError, match=f"bars.yml, entry 2.*{message}"):
        parse_bars([{**ENTRY, "size": "1G"}, wrong], "bars.yml")


@pytest.mark.parametrize("data", [None, {}, "x", [1], [ENTRY, ENTRY], [{}]])
def test_what_is_no_list_of_bars_is_refused(data: object) -> None:
    with pytest.raises(ParseError, match=r"bars\.yml"):
        parse_bars(data, "bars.yml")


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
    others = (("yours", *ask[1:]), ("mine", True, *ask[2:]), (*ask[:3], "reduce"))
    for other in (*others, *(("mine", False, scope, "all_reduce") for scope in busbw_bars.SCOPES if scope != "node")):
        assert find_bar([[small, large]], *other, 8 * G) is None


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("collective", busbw_bars.COLLECTIVES)
def test_every_platform_of_the_suite_has_a_bar_below_what_can_be_reached(name: str, collective: str) -> None:
    for nvls in {False, prediction.nvls_expected(PROFILES[name], {})}:
        bar = find_bar([BARS], name, nvls, "node", collective, 8 * G)
        predicted = prediction.predict(PROFILES[name], collective, nvls).busbw
        assert bar is not None, (name, nvls, collective)
        assert bar.busbw is not None
        assert predicted is not None
        assert 0.8 * predicted < bar.busbw < predicted
        assert bar.healthy or bar.source.startswith("derived:")


def test_larger_messages_have_no_lower_bar() -> None:
    for bar in BARS:
        for other in BARS:
            if replace(other, size=bar.size, busbw=bar.busbw, healthy=bar.healthy, source=bar.source) == bar:
                assert (other.size <= bar.size) == ((other.busbw or 0) <= (bar.busbw or 0))


def test_a_bar_of_latency_holds_up_to_its_size_and_never_stands_in_for_a_bandwidth() -> None:
    bars = parse_bars([{**LATENCY, "healthy": 30}, {**LATENCY, "size": "64K", "latency_us": 90}], "bars.yml")
    ask = ("mine", "pair", "all_reduce")
    found = [find_latency_bar([bars], *ask, size) for size in (4, 8, 9, 65536, 65537)]
    assert found == [bars[0], bars[0], bars[1], bars[1], None]
    assert find_latency_bar([[bars[1]], [bars[0]]], *ask, 8) == bars[1]
    assert find_latency_bar([bars], "mine", "cluster", "all_reduce", 8) is None
    assert find_bar([bars], "mine", False, "pair", "all_reduce", G) is None
    assert find_latency_bar([parse_bars([{**ENTRY, "scope": "pair"}], "b")], *ask, 8) is None


def test_a_bar_of_an_algorithm_is_of_no_other() -> None:
    (ring,) = parse_bars([{**PAIR, "algorithm": "Ring"}], "bars.yml")
    ask = ("mine", False, "pair", "all_reduce", 8 * G)
    assert find_bar([[ring]], *ask) is None
    assert find_bar([[ring]], *ask, "Ring") == ring
    # Three bars of one size, and none for the same run.
    (both, own, latency) = parse_bars([PAIR, {**PAIR, "algorithm": "Ring"}, {**LATENCY, "size": "8G"}], "bars.yml")
    assert (both.algorithm, own, latency.latency_us) == ("", ring, 40.0)
    assert find_bar([parse_bars([PAIR], "b")], *ask, "Ring") is None
