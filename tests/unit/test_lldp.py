# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lldpd and networkd say of neighbours, what DCBX means, and what is a finding where it is not said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import dcbx, neighbour, ports
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.neighbour import Heard, Neighbour
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.ports import Asked, Port
from ansible_collections.busbar.fabric.plugins.module_utils.roce.chain import resolve
from ansible_collections.busbar.fabric.plugins.module_utils.roce.want import Want
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import tool

ROCE = {"dscp": 26, "priority": 3}
WANT = Asked(mtu=9000, roce=Want(chain=resolve(ROCE, {})))
CLASSES, SHARES = bytes([0x00, 0x03, 0x00, 0x60]), bytes([50, 0, 0, 50, 0, 0, 0, 0])
SAID = {
    dcbx.PFC: (b"\x08\x08",),
    dcbx.APPLICATION: (b"\0\x65\0\x1a\xc5\0\x30",),
    dcbx.ETS: (b"\0" + CLASSES + SHARES + bytes(8),),
}
NETWORKCTL = {
    "Neighbors": [
        {
            "InterfaceIndex": 4,
            "InterfaceName": "ens1",
            "Neighbors": [
                {
                    "ChassisID": "44:38:39:ff:00:03",
                    "RawChassisID": [4, 68],
                    "PortID": "swp7",
                    "SystemName": "leaf-3",
                    "PortDescription": "to node07",
                    "EnabledCapabilities": 20,
                }
            ],
        }
    ]
}


def port(rail: int = 0) -> Port:
    return Port(
        rail, f"0000:1{rail}:00.0 mlx5_{rail} ens{rail}", f"0000:1{rail}:00.0", f"ens{rail}", f"mlx5_{rail}", 1500
    )


def switch(rail: int = 0, **more: Any) -> Neighbour:
    said = Neighbour(
        f"ens{rail}", f"44:38:39:ff:00:0{rail}", "swp1", f"leaf-{rail}", is_switch=True, mfs=9230, dcbx=SAID
    )
    return replace(said, **more)


def heard(*neighbours: Neighbour, **more: Any) -> Heard:
    return Heard(neighbours, "lldpcli", **more)


def wrong(found: Heard, want: Asked = WANT, rails: int = 1) -> list[tuple[str, str, str | None]]:
    plan = ports.plan(found, [port(rail) for rail in range(rails)], want)
    assert not plan.changed
    return [(one.check, one.state, one.have) for one in plan.findings if not one.ok]


# -- DCBX ------------------------------------------------------------------------------------------------------------


def test_what_the_tlvs_mean() -> None:
    """Bytes of the reference: fabric.md 2, and the layout of IEEE 802.1Q annex D."""
    assert dcbx.pfc(b"\x08\x08") == (3,)
    assert dcbx.pfc(b"\xc8\x81") == (0, 7)
    assert dcbx.applications(bytes.fromhex("0065001a")) == dcbx.Applications({26: (3,)}, ())
    udp = bytes.fromhex("00") + bytes([4 << 5 | 3, 4791 >> 8, 4791 & 255])
    assert dcbx.applications(udp) == dcbx.Applications({}, (4,))
    found = dcbx.ets(SAID[dcbx.ETS][0])
    assert found == dcbx.Ets((0, 0, 0, 3, 0, 0, 6, 0), tuple(SHARES), (0,) * 8)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (dcbx.pfc, ""),
        (dcbx.pfc, "08"),
        (dcbx.pfc, "080808"),
        (dcbx.ets, "00" * 20),
        (dcbx.ets, "00" * 22),
        (dcbx.ets, "00" + "f0" + "00" * 19),
        (dcbx.ets, "00" * 5 + "65" + "00" * 15),
        (dcbx.applications, ""),
        (dcbx.applications, "0065"),
        (dcbx.applications, "00650040"),
    ],
)
def test_a_tlv_that_cannot_be_is_refused(read: Any, data: str) -> None:
    with pytest.raises(ParseError, match=" TLV "):
        read(bytes.fromhex(data))


@given(st.binary(max_size=600))
def test_no_bytes_are_too_odd(data: bytes) -> None:
    for read in (dcbx.pfc, dcbx.ets, dcbx.applications):
        try:
            read(data)
        except ParseError:
            continue


# -- the tools -------------------------------------------------------------------------------------------------------


def node(tmp_path: Path, **scripts: str) -> Host:
    for name, script in scripts.items():
        tool(tmp_path, f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n")
    (tmp_path / "usr").mkdir(exist_ok=True)
    return Host("/", str(tmp_path), 5)


def test_without_lldpd_networkd_is_asked_who_tells_no_tlvs(tmp_path: Path) -> None:
    found = neighbour.read(node(tmp_path, networkctl=f"echo '{json.dumps(NETWORKCTL)}'"))
    assert found.neighbours == (Neighbour("ens1", "44:38:39:ff:00:03", "swp7", "leaf-3", "to node07", is_switch=True),)
    assert (found.source, found.tlvs) == ("networkctl lldp --json=short", False)
    assert ports.notes(replace(found, neighbours=(switch(),)), [port()], WANT)[0].startswith(
        "systemd-networkd does not report"
    )
    assert wrong(replace(found, neighbours=(switch(dcbx={}, mfs=None),)), replace(WANT, dcbx=True)) == []


@pytest.mark.parametrize(
    ("scripts", "says"),
    [
        ({}, "lldpcli is not installed; networkctl is not installed"),
        (
            {"lldpcli": "echo 'unable to connect to socket' >&2; exit 1"},
            "lldpcli exited with 1: unable to connect to socket; networkctl is not installed",
        ),
        ({"networkctl": "echo 'LINK CHASSIS-ID'"}, "networkctl prints neighbours as text only (systemd before 256)"),
    ],
)
def test_where_nobody_listens_it_is_said_how_to_get_it(tmp_path: Path, scripts: Mapping[str, str], says: str) -> None:
    found = neighbour.read(node(tmp_path, **scripts))
    assert says in found.silent
    assert wrong(found) == []
    assert says in ports.notes(found, [port()], WANT)[0]
    assert wrong(found, replace(WANT, asked="required")) == [("lldp.agent", "unknown", found.silent)]
    assert ports.notes(found, [port()], replace(WANT, asked="required")) == []
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/lldpd.service").symlink_to("/dev/null")
    (finding,) = ports.plan(neighbour.read(node(tmp_path)), [port()], replace(WANT, asked="required")).findings
    assert 0 < finding.fix.find("systemctl unmask lldpd.service") < finding.fix.find("enable --now")


@pytest.mark.parametrize(
    "script",
    [
        """echo '{"lldp": [{"interface": ['""",
        "echo '[]'",
        """echo '{"lldp": {}}'""",
        """echo '{"lldp": [{"interface": [{"name": 7}]}]}'""",
        """echo '{"lldp": [{"interface": [{"name": "a", "port": [{"mfs": [{"value": "-1"}]}]}]}]}'""",
        "head -c 100000 /dev/zero | tr '\\0' '['",
        "head -c 17000000 /dev/zero | tr '\\0' 'x'",
        "printf '\\377'",
        "exec sleep 100",
    ],
)
def test_an_agent_that_answers_nonsense_is_unknown_whatever_is_asked(tmp_path: Path, script: str) -> None:
    host = node(tmp_path, lldpcli=script)
    host.timeout = 1 if "sleep" in script else 30
    found = neighbour.read(host)
    assert found.problem is not None
    for asked in ("auto", "required"):
        assert [(check, state) for check, state, _have in wrong(found, replace(WANT, asked=asked))] == [
            ("lldp.agent", "unknown")
        ]
    assert wrong(found, replace(WANT, asked="none")) == []


def entry(**more: Any) -> str:
    one = {"name": "ens0", "via": "LLDP", "chassis": [{}], "port": [{}], **more}
    return json.dumps({"lldp": [{"interface": [one]}]})


def test_texts_are_cut_and_printable_and_other_protocols_are_left_out() -> None:
    chassis = [{"id": [{"type": "mac", "value": "x" * 999}], "name": [{"value": "\x1b[31m\n<b>{{ 7 }}"}]}]
    [found] = neighbour.parse_lldpcli(entry(chassis=chassis))
    assert (len(found.chassis), found.name) == (255, "\\x1b[31m\\n<b>{{ 7 }}")
    assert found.is_switch is None
    assert neighbour.parse_lldpcli(entry(via="CDPv2")) == []
    assert neighbour.parse_lldpcli('{"lldp": [{}]}') == []


@pytest.mark.parametrize(
    "tlv", [{"value": "0"}, {"value": "08,0"}, {"value": "0G"}, {"subtype": "x"}, {"value": "00," * 600}]
)
def test_bytes_that_are_none_are_refused(tlv: Mapping[str, str]) -> None:
    one = {"oui": "00,80,C2", "subtype": "11", "len": "2", "value": "08,08", **tlv}
    with pytest.raises(ParseError, match="expected bytes"):
        neighbour.parse_lldpcli(entry(**{"unknown-tlvs": [{"unknown-tlv": [one]}]}))


# -- the plan --------------------------------------------------------------------------------------------------------


def test_a_healthy_switch_is_nothing_to_report() -> None:
    plan = ports.plan(heard(switch(0), switch(1)), [port(0), port(1)], WANT)
    assert [one.ok for one in plan.findings] == [True] * 11
    assert ports.notes(heard(switch()), [port()], WANT) == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"mfs": 9013}, ("lldp.mtu", "drift")),
        ({"dcbx": {**SAID, dcbx.PFC: (b"\x08\x18",)}}, ("lldp.pfc", "drift")),
        ({"dcbx": {**SAID, dcbx.PFC: (b"\x08\x08", b"\x08\x00")}}, ("lldp.pfc", "unknown")),
        ({"dcbx": {**SAID, dcbx.APPLICATION: (b"\0\x05\0\x1a",)}}, ("lldp.dscp", "drift")),
        ({"dcbx": {**SAID, dcbx.APPLICATION: (b"\0\xc5\0\x30",)}}, ("lldp.dscp", "drift")),
        ({"dcbx": {**SAID, dcbx.APPLICATION: (b"\0\x65\0\x1a\x05\0\x30",)}}, ("lldp.dscp", "drift")),
        ({"dcbx": {**SAID, dcbx.APPLICATION: (b"\0\x65\0\x1a\x85\0\x1a",)}}, ("lldp.dscp", "drift")),
        ({"dcbx": {**SAID, dcbx.APPLICATION: (b"\0\x65\0\x1a\x83\x12\xb7",)}}, ("lldp.dscp", "drift")),
        ({"dcbx": {**SAID, dcbx.ETS: (b"\0" + bytes(4) + SHARES + bytes(8),)}}, ("lldp.ets", "drift")),
        ({"dcbx": {**SAID, dcbx.ETS: (b"\0" + CLASSES + bytes(8) + b"\2" * 8,)}}, ("lldp.ets", "drift")),
    ],
)
def test_what_differs_is_one_finding(said: dict[str, Any], expected: tuple[str, str]) -> None:
    assert [found[:2] for found in wrong(heard(switch(**said)))] == [expected]


def test_the_least_frame_is_the_mtu_and_its_header() -> None:
    """Switches count it with and without checksum and tag: the smallest of their ways of counting is enough."""
    assert wrong(heard(switch(mfs=9014))) == []
    assert wrong(heard(switch(mfs=1514)), replace(WANT, mtu=None)) == []
    assert wrong(heard(switch(mfs=None))) == []


def test_what_a_switch_does_not_name_is_its_default() -> None:
    """Another application than RDMA's says nothing; CNPs that are not named are the switch's default."""
    assert wrong(heard(switch(dcbx={**SAID, dcbx.APPLICATION: (b"\0\x65\0\x1a",)}))) == []
    assert wrong(heard(switch(dcbx={**SAID, dcbx.APPLICATION: (b"\0\x61\x89\x06",)}))) == []


def test_the_recommended_ets_counts_where_the_other_is_not_sent() -> None:
    said = {subtype: data for subtype, data in SAID.items() if subtype != dcbx.ETS}
    shared = b"\0" + bytes(4) + SHARES + bytes(8)
    assert [one[:2] for one in wrong(heard(switch(dcbx={**said, dcbx.RECOMMENDED_ETS: (shared,)})))] == [
        ("lldp.ets", "drift")
    ]
    assert wrong(heard(switch(dcbx={**SAID, dcbx.RECOMMENDED_ETS: (shared,)}))) == []


def test_the_bandwidth_that_the_site_declares_is_asked_of_the_switch() -> None:
    settings = {
        "prio2tc": [0, 0, 0, 3, 0, 0, 6, 0],
        "tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
        "tc_bandwidth": [40, 0, 0, 60, 0, 0, 0, 0],
    }
    want = replace(WANT, roce=Want.of(resolve(ROCE, {}), settings))
    shared = b"\0" + CLASSES + SHARES + b"\2" * 8
    [(check, state, have)] = wrong(heard(switch(dcbx={**SAID, dcbx.ETS: (shared,)})), want)
    assert (check, state, have) == ("lldp.ets", "drift", "leaf-0 swp1: class 3 of priority 3 has 50 %")


def test_without_dcbx_a_site_is_green_unless_it_asks_for_it_or_others_send_it() -> None:
    without = switch(dcbx={})
    assert wrong(heard(without)) == []
    assert ports.notes(heard(without), [port()], WANT) == [
        "the switches send no DCBX: their PFC, DSCP map and ETS are not judged"
    ]
    said = ("unknown", "the switch does not send it (DCBX)")
    found = wrong(heard(without), replace(WANT, dcbx=True))
    assert found == [("lldp.pfc", *said), ("lldp.dscp", *said)]
    found = wrong(heard(switch(0, dcbx={}), switch(1)), rails=2)
    assert found == [("lldp.pfc", *said), ("lldp.dscp", *said), ("lldp.ets", *said)]
    plan = ports.plan(heard(without), [port()], replace(WANT, dcbx=True))
    assert [one.because is None for one in plan.findings if not one.ok] == [True, False]


def test_what_the_site_does_not_ask_of_its_own_ports_is_not_asked_of_the_switch() -> None:
    odd = switch(dcbx={dcbx.PFC: (b"\x08\xff",), dcbx.APPLICATION: (b"\0\x05\0\x1a",)})
    assert wrong(heard(odd), replace(WANT, roce=Want())) == []
    assert ports.plan(heard(odd), [], WANT).findings == ()
    assert ports.plan(heard(odd), [port()], replace(WANT, asked="none")).findings == ()
    lossy = replace(WANT, roce=Want(chain=resolve(ROCE, {"pfc": []})))
    assert [one[:2] for one in wrong(heard(switch()), lossy)] == [("lldp.pfc", "drift")]


def test_a_rail_that_hears_nothing_is_unknown_where_others_hear_or_it_is_asked_for() -> None:
    assert wrong(heard()) == []
    assert wrong(heard(switch(1)), rails=2) == [("lldp.neighbour", "unknown", "has no LLDP neighbour")]
    required = replace(WANT, asked="required")
    plan = ports.plan(heard(), [port(0), port(1)], required)
    assert [one.because is None for one in plan.findings if not one.ok] == [True, False]


def test_of_several_neighbours_the_one_switch_counts() -> None:
    dpu = switch(chassis="x", name="dpu", is_switch=False)
    assert wrong(heard(dpu, switch())) == []
    [(check, state, have)] = wrong(heard(switch(), switch(name="leaf-9")))
    assert (check, state, have) == ("lldp.neighbour", "unknown", "has 2 LLDP neighbours: leaf-0 swp1, leaf-9 swp1")


def test_what_travels_to_the_control_node_passes_its_gate() -> None:
    given_names = [switch(0, name="<script>\\x1b"), switch(1)]
    sent = ports.to_dicts(heard(*given_names), [port(0), port(1), port(2)], WANT)
    plan = ports.plan(heard(*given_names), [port(0), port(1), port(2)], WANT)
    told = json.loads(json.dumps({**plan.result(), "notes": [], "neighbours": sent}))
    assert answer.check("lldp", told)["neighbours"] == sent
    assert [one["port"] for one in sent] == ["swp1", "swp1", ""]
    for key, value in (("name", "a\x1b[0m"), ("rail", -1), ("netdev", "../x"), ("pci", "x"), ("chassis", "x" * 256)):
        odd = {**told, "neighbours": [{**sent[0], key: value}]}
        with pytest.raises(answer.Invalid, match=rf"neighbours\[0\]\.{key}"):
            answer.check("lldp", odd)
