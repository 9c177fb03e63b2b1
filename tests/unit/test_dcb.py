"""The JSON of dcb, written here as iproute2 prints it, and the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import dcb
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb
from hypothesis import given, settings
from hypothesis import strategies as st

EIGHT = [0] * 8
PFC = {"pfc_cap": 8, "macsec_bypass": False, "delay": 7, "prio_pfc": [False] * 3 + [True] + [False] * 4}
ETS: dict[str, Any] = json.loads((Path(__file__).parent / "cases/dcb/ets.json").read_text())


def test_other_parts_of_the_app_table_make_no_trust_in_the_dscp() -> None:
    table = {"ethtype_prio": [[35078, 3]], "default_prio": [0, 1], "dgram_port_prio": [[4791, 3]]}
    assert dcb.parse("app", json.dumps({**table, "pcp_prio": [["3de", 3]]}), Dcb()) == Dcb(trust="pcp")


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("pfc", {**PFC, "watchdog": True}, "unknown key 'watchdog'"),
        ("pfc", {name: PFC[name] for name in ("pfc_cap", "delay", "prio_pfc")}, "no key 'macsec_bypass'"),
        ("pfc", {**PFC, "prio_pfc": [True] * 7}, "expected eight values"),
        ("pfc", {**PFC, "prio_pfc": [1] * 8}, "prio_pfc holds 1, expected one of False, True"),
        ("pfc", {**PFC, "delay": True}, "delay holds True, expected a number"),
        ("app", {"dscp_prio": [[64, 3]]}, "dscp_prio holds 64, expected a number from 0 to 63"),
        ("app", {"dscp_prio": [["AF31", 3]]}, "dscp_prio holds 'AF31'"),
        ("app", {"dscp_prio": [[26, 8]]}, "dscp_prio holds 8"),
        ("app", {"dscp_prio": [26]}, "expected a pair"),
        ("app", {"dscp_prio": [[26]]}, "expected a pair"),
        ("app", {"dscp_prio": [[26, 3, 4]]}, "expected a pair"),
        ("app", {"dscp_prio": {"26": 3}}, "expected a list of pairs"),
        ("app", {"dscp_prio": [], "vlan_prio": []}, "unknown key 'vlan_prio'"),
        ("ets", {**ETS, "tc_tsa": ["ats"] * 8}, "tc_tsa holds 'ats'"),
        ("ets", {**ETS, "tc_bw": [101] * 8}, "tc_bw holds 101"),
        ("buffer", {"prio_buffer": [8] * 8, "buffer_size": EIGHT, "total_size": 1}, "prio_buffer holds 8"),
        ("buffer", {"prio_buffer": EIGHT, "buffer_size": [-1] * 8, "total_size": 1}, "buffer_size holds -1"),
        ("ets", {**ETS, "prio_tc": [8] * 8}, "prio_tc holds 8"),
        ("dcbx", {"host": 1}, "host holds 1"),
        ("dcbx", [], "is not a JSON object"),
    ],
)
def test_what_is_not_known_is_refused(kind: str, data: Any, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        dcb.parse(kind, json.dumps(data), Dcb())


@pytest.mark.parametrize("output", ["", "Attribute read: No such device", "pfc-cap 8 macsec-bypass off", "[" * 100000])
def test_what_is_not_json_is_refused(output: str) -> None:
    with pytest.raises(ParseError, match="is not JSON"):
        dcb.parse("pfc", output, Dcb())


def eight(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=8, max_size=8)


@given(
    eight(st.booleans()),
    eight(st.integers(0, 7)),
    eight(st.integers(0, 100)),
    st.dictionaries(st.integers(0, 63), st.integers(0, 7)),
)
@settings(max_examples=100)
def test_each_object_adds_its_values_and_leaves_the_others(
    on: list[bool], priorities: list[int], numbers: list[int], table: dict[int, int]
) -> None:
    tsa = [("strict", "ets", "vendor", "cbs", "???")[number % 5] for number in numbers]
    # With and without statistics, and as iproute2 prints an entry since 6.15.
    counted = {"requests": EIGHT, "indications": numbers} if on[1] else {}
    entries = [[*entry, *[" "] * on[2]] for entry in table.items()]
    objects = {
        "pfc": {**PFC, "prio_pfc": on, **counted},
        "ets": {**ETS, "prio_tc": priorities, "tc_bw": numbers, "tc_tsa": tsa},
        "buffer": {"prio_buffer": priorities, "buffer_size": numbers, "total_size": 0},
        "app": {"dscp_prio": entries} if table else {},
        # A flag that is off is left out.
        "dcbx": {**({"host": True} if on[0] else {}), "cee": True, "ieee": True},
    }
    found = Dcb()
    for kind, indent in zip(objects, (None, 2, None, 2, None), strict=True):
        found = dcb.PARSERS[kind](json.dumps(objects[kind], indent=indent), found)
    assert found == Dcb(
        owner="os" if on[0] else "firmware",
        trust="dscp" if table else "pcp",
        dscp2prio=tuple(table.items()),
        pfc=tuple(priority for priority in range(8) if on[priority]),
        prio2tc=tuple(priorities),
        tsa=tuple(tsa),
        bandwidth=tuple(numbers),
        cable_length=7,
        prio2buffer=tuple(priorities),
        buffer_size=tuple(numbers),
    )
