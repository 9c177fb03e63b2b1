# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lldpd and networkd say of neighbours, what DCBX means, and what is a finding where it is not said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import dcbx, neighbour
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as ports
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.neighbour import LldpState, Neighbour
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import LldpIntent, RailPort
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig, resolve
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens, readings
from tests.trees import tool

ROCE = {"dscp": 26, "priority": 3}
WANT = LldpIntent(mtu=9000, roce=PortConfig(chain=resolve(ROCE, {})))
CLASSES, SHARES = bytes([0x00, 0x03, 0x00, 0x60]), bytes([50, 0, 0, 50, 0, 0, 0, 0])
SAID = {
    dcbx.PFC: (b"\x08\x08",),
    dcbx.APPLICATION: (b"\0\x65\0\x1a\xc5\0\x30",),
    dcbx.ETS: (b"\0" + CLASSES + SHARES + bytes(8),),
}


def port(rail: int = 0) -> RailPort:
    pci = f"0000:1{rail}:00.0"
    return RailPort(rail, f"{pci} mlx5_{rail} ens{rail}", pci, f"ens{rail}", f"mlx5_{rail}", 1500)


def switch(rail: int = 0, **more: Any) -> Neighbour:
    leaf = Neighbour(f"ens{rail}", f"44:38:39:ff:00:0{rail}", "swp1", f"leaf-{rail}")
    return replace(leaf, **{"is_switch": True, "mfs": 9230, "dcbx": SAID, **more})


def heard(*neighbours: Neighbour, **more: Any) -> LldpState:
    return LldpState(neighbours, "lldpcli", **more)


def wrong(found: LldpState, want: LldpIntent = WANT, rails: int = 1) -> list[tuple[str, str, str | None]]:
    plan = ports.plan(found, [port(rail) for rail in range(rails)], want)
    assert not plan.changed
    return [(one.check, one.state, one.have) for one in plan.findings if not one.ok]


def test_each_bit_is_a_priority() -> None:
    assert dcbx.pfc(b"\xc8\x81") == (0, 7)


REFUSED: dict[Any, list[str]] = {
    dcbx.pfc: ["", "08", "080808"],
    dcbx.ets: ["00" * 20, "00" * 22, "00" + "f0" + "00" * 19, "00" * 5 + "65" + "00" * 15],
    dcbx.applications: ["", "0065", "00650040"],
}


@pytest.mark.parametrize(("read", "data"), [(read, data) for read, every in REFUSED.items() for data in every])
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


def node(tmp_path: Path, **scripts: str) -> Host:
    for name, script in scripts.items():
        tool(tmp_path, f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n")
    (tmp_path / "usr").mkdir(exist_ok=True)
    return Host("/", str(tmp_path), 5)


def test_without_lldpd_networkd_is_asked_who_tells_no_tlvs(tmp_path: Path) -> None:
    [output] = [texts[0] for name, texts, _value in readings.rows() if name == "lldp.neighbour.parse_networkctl"]
    found = neighbour.read(node(tmp_path, networkctl=f"echo '{output}'"))
    assert found.neighbours == (Neighbour("ens1", "44:38:39:ff:00:03", "swp7", "leaf-3", "to node07", is_switch=True),)
    assert (found.source, found.tlvs) == ("networkctl lldp --json=short", False)
    note = ports.plan(found._replace(neighbours=(switch(),)), [port()], WANT).notes[0]
    assert note.startswith("systemd-networkd does not report")
    assert wrong(found._replace(neighbours=(switch(dcbx={}, mfs=None),)), replace(WANT, dcbx=True)) == []


SILENT = [
    ({}, "lldpcli is not installed; networkctl is not installed"),
    ({"lldpcli": "echo no socket >&2; exit 1"}, "lldpcli exited with 1: no socket; networkctl is not installed"),
    ({"networkctl": "echo 'LINK CHASSIS-ID'"}, "networkctl prints neighbours as text only (systemd before 256)"),
]


@pytest.mark.parametrize(("scripts", "says"), SILENT)
def test_where_nobody_listens_it_is_said_how_to_get_it(tmp_path: Path, scripts: Mapping[str, str], says: str) -> None:
    found = neighbour.read(node(tmp_path, **scripts))
    assert says in found.silent
    assert wrong(found) == []
    assert says in ports.plan(found, [port()], WANT).notes[0]
    assert wrong(found, replace(WANT, asked="required")) == [("lldp.agent", "unknown", found.silent)]
    assert ports.plan(found, [port()], replace(WANT, asked="required")).notes == ()
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/lldpd.service").symlink_to("/dev/null")
    (finding,) = ports.plan(neighbour.read(node(tmp_path)), [port()], replace(WANT, asked="required")).findings
    assert 0 < finding.fix.find("systemctl unmask lldpd.service") < finding.fix.find("enable --now")


LONG = ("head -c 100000 /dev/zero | tr '\\0' '['", "head -c 17000000 /dev/zero | tr '\\0' 'x'")


@pytest.mark.parametrize(
    "script", ["""echo '{"lldp": [{"interface": ['""", "echo '[]'", *LONG, "printf '\\377'", "exec sleep 100"]
)
def test_an_agent_that_answers_nonsense_is_unknown_whatever_is_asked(tmp_path: Path, script: str) -> None:
    host = node(tmp_path, lldpcli=script)
    host.timeout = 1 if "sleep" in script else 30
    found = neighbour.read(host)
    assert found.problem is not None
    for asked in ("auto", "required"):
        assert [row[:2] for row in wrong(found, replace(WANT, asked=asked))] == [("lldp.agent", "unknown")]
    assert wrong(found, replace(WANT, asked="none")) == []


def sends(**tlvs: tuple[bytes, ...]) -> LldpState:
    """The switch, with other TLVs than SAID: pfc, application, ets, recommended; an empty one is not sent."""
    subtypes = {name: getattr(dcbx, {"recommended": "recommended_ets"}.get(name, name).upper()) for name in tlvs}
    sent = {**SAID, **{subtypes[name]: data for name, data in tlvs.items()}}
    return heard(switch(dcbx={subtype: data for subtype, data in sent.items() if data}))


def roce(settings: Mapping[str, Any] = MappingProxyType({}), **chain: Any) -> LldpIntent:
    return replace(WANT, roce=PortConfig.from_values(resolve(ROCE, chain), settings))


# Switches count the frame with and without checksum and tag: the smallest of their ways of counting is enough.
SHARED = b"\0" + bytes(4) + SHARES + bytes(8)
NO_DCBX, DPU = switch(dcbx={}), switch(chassis="x", name="dpu", is_switch=False)
ODD = sends(pfc=(b"\x08\xff",), application=(b"\0\x05\0\x1a",), ets=())
DCBX, REQUIRED = replace(WANT, dcbx=True), replace(WANT, asked="required")
BANDWIDTH = {
    "prio2tc": [0, 0, 0, 3, 0, 0, 6, 0],
    "tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
    "tc_bandwidth": [40, 0, 0, 60, 0, 0, 0, 0],
}
# What is heard, and what is asked for; of two rails where the name ends with that.
HEARD: dict[str, tuple[LldpState, LldpIntent]] = {
    "healthy, two rails": (heard(switch(0), switch(1)), WANT),
    "mtu, a byte too small": (heard(switch(mfs=9013)), WANT),
    "mtu, the least frame": (heard(switch(mfs=9014)), WANT),
    "mtu, of the interface": (heard(switch(mfs=1514)), replace(WANT, mtu=None)),
    "mtu, not sent": (heard(switch(mfs=None)), WANT),
    "pfc, of another priority, too": (sends(pfc=(b"\x08\x18",)), WANT),
    "pfc, twice and not alike": (sends(pfc=(b"\x08\x08", b"\x08\x00")), WANT),
    "pfc, a lossy fabric": (heard(switch()), roce(pfc=[])),
    "dscp, another priority": (sends(application=(b"\0\x05\0\x1a",)), WANT),
    "dscp, of notifications alone": (sends(application=(b"\0\xc5\0\x30",)), WANT),
    "dscp, another priority of notifications": (sends(application=(b"\0\x65\0\x1a\x05\0\x30",)), WANT),
    "dscp, two priorities": (sends(application=(b"\0\x65\0\x1a\x85\0\x1a",)), WANT),
    "dscp, another priority of the port of RoCE": (sends(application=(b"\0\x65\0\x1a\x83\x12\xb7",)), WANT),
    # What a switch does not name is its default, and another application than RDMA's says nothing.
    "dscp, notifications are not named": (sends(application=(b"\0\x65\0\x1a",)), WANT),
    "dscp, of another application": (sends(application=(b"\0\x61\x89\x06",)), WANT),
    "ets, one class": (sends(ets=(SHARED,)), WANT),
    "ets, no bandwidth": (sends(ets=(b"\0" + CLASSES + bytes(8) + b"\2" * 8,)), WANT),
    "ets, strict": (sends(ets=(b"\0" + CLASSES + bytes(16),)), WANT),
    "ets, recommended": (sends(ets=(), recommended=(SHARED,)), WANT),
    "ets, recommended beside the other": (sends(recommended=(SHARED,)), WANT),
    "ets, another bandwidth": (sends(ets=(b"\0" + CLASSES + SHARES + b"\2" * 8,)), roce(BANDWIDTH)),
    "no DCBX": (heard(NO_DCBX), WANT),
    "no DCBX, required": (heard(NO_DCBX), DCBX),
    "no DCBX of one, two rails": (heard(switch(0, dcbx={}), switch(1)), WANT),
    "nothing is asked of RoCE": (ODD, replace(WANT, roce=PortConfig())),
    "nothing is asked of LLDP": (ODD, replace(WANT, asked="none")),
    "nothing is heard": (heard(), WANT),
    "nothing is heard on one, two rails": (heard(switch(1)), WANT),
    "nothing is heard, required, two rails": (heard(), REQUIRED),
    "a switch and a DPU": (heard(DPU, switch()), WANT),
    "a DPU alone, or a cable to another host": (heard(DPU), WANT),
    "a DPU alone, required": (heard(DPU), REQUIRED),
    "a DPU on one, two rails": (heard(DPU, switch(1)), WANT),
    "two switches": (heard(switch(), switch(name="leaf-9")), WANT),
}


@pytest.mark.golden
def test_what_a_switch_sends_is_judged() -> None:
    for case, (found, want) in HEARD.items():
        own = [port(rail) for rail in range(2 if case.endswith("two rails") else 1)]
        plan = ports.plan(found, own, want)
        goldens.check("lldp", case, golden_rows.plan(plan, texts=True))
    assert ports.plan(ODD, [], WANT).findings == ()


def test_what_travels_to_the_control_node_passes_its_gate() -> None:
    given_names = [switch(0, name="<script>\\x1b"), switch(1)]
    sent = [one._asdict() for one in ports.port_neighbours(heard(*given_names), [port(0), port(1), port(2)], WANT)]
    plan = ports.plan(heard(*given_names), [port(0), port(1), port(2)], WANT)
    told = json.loads(json.dumps({**plan.result(), "neighbours": sent}))
    assert result_schema.check("lldp", told)["neighbours"] == sent
    assert [one["port"] for one in sent] == ["swp1", "swp1", ""]
    for key, value in (("name", "a\x1b[0m"), ("rail", -1), ("netdev", "../x"), ("pci", "x"), ("chassis", "x" * 256)):
        odd = {**told, "neighbours": [{**sent[0], key: value}]}
        with pytest.raises(codec.Invalid, match=rf"neighbours\[0\]\.{key}"):
            result_schema.check("lldp", odd)
