"""How each program's files say which interface they set up, and how an MTU is put into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core import ini
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import ifupdown, netplan, networkd, yaml_text
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.device import Device
from hypothesis import given
from hypothesis import strategies as st

# -- INI -------------------------------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab[]#;=\\ 09.\t"), max_size=12)
INI_LINES = st.lists(
    st.sampled_from(["[Link]", "[Match]", "[ethernet]", "", "# MTUBytes=1", "MTUBytes=1500", "mtu=1500", "a=b \\"])
    | WORDS,
    max_size=12,
).map("\n".join)


@given(INI_LINES, st.booleans())
def test_an_ini_edit_sets_its_key_keeps_every_other_line_and_is_done_once(text: str, continued: bool) -> None:
    after = ini.set_setting(text, "Link", "MTUBytes", "9000", continued)
    values = [s.value for s in ini.settings(after, continued) if (s.section, s.key) == ("Link", "MTUBytes")]
    assert values[-1] == "9000"
    assert ini.set_setting(after, "Link", "MTUBytes", "9000", continued) == after
    ours = {(s.section, s.key) for s in ini.settings(after, continued)} - {("Link", "MTUBytes")}
    theirs = {(s.section, s.key) for s in ini.settings(text, continued)} - {("Link", "MTUBytes")}
    assert ours == theirs


# -- netplan ---------------------------------------------------------------------------------------------------------


def mtus(text: str) -> dict[tuple[str, str], int | None]:
    return {key: netplan.mtu_of(value) for key, value in netplan.parse(text).items()}


SCALARS = st.sampled_from(["true", "10.0.0.1/24", "a b", "x:y", "it's", "#no", "mtu", "mtu: 3", "", "1500"])
DEEP = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SCALARS.filter(bool), inner, max_size=2)
)
DEFINITIONS = st.dictionaries(st.sampled_from(["addresses", "dhcp4", "match", "routes"]), DEEP, max_size=3)
FILES = st.dictionaries(
    st.sampled_from([*netplan.SECTIONS, "wifis"]),
    st.dictionaries(
        st.sampled_from(["ens1", "ens1.100", "bond0", "all-en"]),
        st.tuples(DEFINITIONS, st.none() | st.integers(0, 65535)),
        min_size=1,
        max_size=3,
    ),
    max_size=3,
)


@given(FILES, st.sampled_from([None, False, True]))
def test_whatever_a_yaml_writer_makes_is_read_alike(files: dict[str, Any], flow: bool | None) -> None:
    definitions = {
        section: {name: rest | ({} if mtu is None else {"mtu": mtu}) for name, (rest, mtu) in found.items()}
        for section, found in files.items()
    }
    text = yaml.safe_dump({"network": {"version": 2, **definitions}}, default_flow_style=flow, width=9999)
    assert yaml_text.parse(text) == yaml.load(text, yaml.BaseLoader)
    read = mtus(text)
    assert all(read[kind, name] == definitions[kind][name].get("mtu") for kind, name in read)


def test_a_netplan_file_of_ours_is_plain_yaml_and_read_by_our_own_reader() -> None:
    odd = 'a"b\\: #'
    assert yaml.safe_load(netplan.render("", {f"bonds/{odd}": ["mtu: 9"]}))["network"]["bonds"] == {odd: {"mtu": 9}}
    routes = ["routes:", "  - to: a"]
    definitions = {"vlans/v.100": ["mtu: 4200"], "ethernets/ens2": ["mtu: 9000"], "ethernets/ens1": routes}
    text = netplan.render("Written by a test.", definitions)
    assert text.startswith("# Written by a test.\n")
    ethernets = {"ens1": {"routes": [{"to": "a"}]}, "ens2": {"mtu": 9000}}
    vlans = {"v.100": {"mtu": 4200}}
    assert yaml.safe_load(text) == {"network": {"version": 2, "ethernets": ethernets, "vlans": vlans}}
    assert mtus(text) == {("ethernets", "ens1"): None, ("ethernets", "ens2"): 9000, ("vlans", "v.100"): 4200}


# -- networkd's [Match] ----------------------------------------------------------------------------------------------

MAC = "b8:3f:d2:00:00:01"
DEVICE = Device(
    "ens1", 1500, mac=MAC, permanent=MAC, driver="mlx5_core", path="pci-0000:1b:00.0", altnames=("enp27s0f0np0",)
)
# Answer -> sections. An excluded name does not exclude the interface's other one.
MATCHES: dict[bool | None, tuple[str, ...]] = {
    True: (
        *("Name=ens1", "Name=en*", "Name=eth* enp27*", "Name=!ens1", 'Name="ens1"', "Name=!eth* ens2", "Type=ether"),
        *("MACAddress=B8-3F-D2-00-00-01", "PermanentMACAddress=b8:3f:d2:00:00:02 b83f.d200.0001", "Kind=!vlan"),
        *("Path=pci-0000:1b:00.*", "Driver=mlx5*", "OriginalName=*"),
    ),
    False: (
        *("Name=!en*", "Name=en* !*s1\nName=\nName=eth0", "Name=eth0", "Name=!ens1 enp*", "Type=wlan", "Kind=vlan"),
        *("MACAddress=b8:3f:d2:00:00:02", "Path=pci-0000:1c:00.0", "Host=node01\nName=eth0"),
    ),
    None: ("", 'Name="ens1', "OriginalName=eth0", "Host=node01", "Name=ens1\nProperty=ID_X=1"),
}


@pytest.mark.parametrize(("match", "answer"), [(one, answer) for answer, all_of in MATCHES.items() for one in all_of])
def test_a_match_section_is_satisfied_not_or_nobody_knows(match: str, answer: bool | None) -> None:
    assert networkd.matches(ini.settings("[Match]\n%s\n[Network]\nName=no" % match), DEVICE) is answer


def test_an_unknown_address_is_no_mismatch() -> None:
    found = ini.settings("[Match]\nPermanentMACAddress=b8:3f:d2:00:00:02\n")
    assert networkd.matches(found, replace(DEVICE, permanent=None)) is None


# -- ifupdown --------------------------------------------------------------------------------------------------------

IFACE = (
    *("iface a inet static", "iface a inet dhcp", "iface b inet manual", "auto a", "  mtu 1500", "mapping a", ""),
    *("\tup /sbin/ip link set a mtu 1500 # x", "  address 10.0.0.1/24 \\", "# iface a inet static", "source x/*"),
)


@given(st.lists(st.sampled_from(IFACE), max_size=12).map("\n".join))
def test_a_stanza_edit_sets_the_mtu_keeps_foreign_lines_and_is_done_once(text: str) -> None:
    after = ifupdown.set_mtu(text, "a", 9000)
    mine = [one for one in ifupdown.parse(after)[0] if one.name == "a"]
    assert {value for one in mine for value in one.mtus} == ({"9000"} if mine else set())
    assert ifupdown.set_mtu(after, "a", 9000) == after
    kept = [line for line in after.split("\n") if line and "9000" not in line]
    rest = iter(text.split("\n"))
    assert all(line in rest for line in kept)  # in their order
    foreign = [line for line in text.split("\n") if line and "mtu" not in line]
    assert foreign == [line for line in kept if "mtu" not in line]
    others = [one.options for one in ifupdown.parse(text)[0] if one.name == "b"]
    found = [one.options for one in ifupdown.parse(after)[0] if one.name == "b"]
    assert [[o[:2] for o in options] for options in others] == [[o[:2] for o in options] for options in found]
