"""Who sets an interface up, where its MTU belongs, and in which order it is set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import apply, netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.netdev import Netdev
from ansible_collections.busbar.fabric.plugins.module_utils.netdev_mtu import Claim, Device, Have, Owner, Want
from ansible_collections.busbar.fabric.plugins.module_utils.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.modules import netdev_mtu as module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
WANT = Want(9000)
DEVINFO = """\
hca_id:\tmlx5_3
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t%s
\t\t\tlink_layer:\t\tEthernet

"""

# -- INI -------------------------------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab[]#;=\\ 09.\t"), max_size=12)
INI_LINES = st.lists(
    st.sampled_from(["[Link]", "[Match]", "[ethernet]", "", "# MTUBytes=1", "MTUBytes=1500", "mtu=1500", "a=b \\"])
    | WORDS,
    max_size=12,
).map("\n".join)


@given(INI_LINES, st.booleans())
@settings(max_examples=100)
def test_an_ini_edit_sets_its_key_keeps_every_other_line_and_is_done_once(text: str, continued: bool) -> None:
    after = netdev_mtu.set_setting(text, "Link", "MTUBytes", "9000", continued)
    values = [s.value for s in netdev_mtu.settings(after, continued) if (s.section, s.key) == ("Link", "MTUBytes")]
    assert values[-1] == "9000"
    assert netdev_mtu.set_setting(after, "Link", "MTUBytes", "9000", continued) == after
    ours = {(s.section, s.key) for s in netdev_mtu.settings(after, continued)} - {("Link", "MTUBytes")}
    theirs = {(s.section, s.key) for s in netdev_mtu.settings(text, continued)} - {("Link", "MTUBytes")}
    assert ours == theirs


def test_an_ini_edit_changes_the_line_that_counts_and_no_other() -> None:
    text = "# mine\n[Link]\nMTUBytes=1500\n; MTUBytes=1\n[Network]\nDHCP=yes\n[Link]\n MTUBytes = 4200 \nX=\\\n 1\n"
    after = netdev_mtu.set_setting(text, "Link", "MTUBytes", "9000")
    assert after == text.replace(" MTUBytes = 4200 ", "MTUBytes=9000")
    assert netdev_mtu.set_setting("[Link]\nName=a\n\n[Match]\n", "Link", "MTUBytes", "9") == (
        "[Link]\nMTUBytes=9\nName=a\n\n[Match]\n"
    )
    assert netdev_mtu.set_setting("[a]\nb=c", "ethernet", "mtu", "9", continued=False) == (
        "[a]\nb=c\n\n[ethernet]\nmtu=9\n"
    )


# -- netplan ---------------------------------------------------------------------------------------------------------

NETPLAN = """\
# This file is generated.
network:
    version: 2
    renderer: networkd
    ethernets:
        ens1:   # rail 0
            match:
                macaddress: "b8:3f:d2:00:00:01"
                mtu: 1
            addresses:
            - 10.0.0.1/24
            - {label: "x: #y"}
            nameservers: {addresses: [1.1.1.1,
              8.8.8.8]}
            mtu: 1500
        'ens 2': {dhcp4: true}
        "ens3": {}
        ens4:
            dhcp4: true
    wifis:
        wlan0:
            mtu: 7
    vlans:
        rail.100: {id: 100, link: ens1}
"""


def test_netplan_is_read_as_far_as_it_matters() -> None:
    assert netdev_mtu.parse_netplan(NETPLAN) == {
        ("ethernets", "ens1"): 1500,
        ("ethernets", "ens 2"): None,
        ("ethernets", "ens3"): None,
        ("ethernets", "ens4"): None,
        ("vlans", "rail.100"): None,
    }
    assert netdev_mtu.parse_netplan("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "network: {ethernets: {ens1: {mtu: 1500}}}\n",
        "network:\n  ethernets: {ens1: {}}\n",
        "network:\n  ethernets:\n    ens1: {dhcp4: true, mtu: 1500}\n",
        "network:\n  ethernets:\n    ens1: {dhcp4: true,\n      mtu: 1500}\n",
        "network:\n  ethernets:\n    ens1: &x\n      mtu: 1\n    ens2: *x\n",
        "network:\n  ethernets:\n    ens1:\n      <<: *x\n",
        "network:\n  ethernets:\n    ens1:\n      mtu: [1500]\n",
        "network:\n  ethernets:\n    ens1:\n      mtu: !!int 1500\n",
        "network:\n  ethernets:\n    ens1:\n      mtu: 0x5dc\n",
        "network:\n  ethernets:\n    ens1:\n\tmtu: 1500\n",
        "network:\n  ethernets:\n    ens1:\n      mtu: 1500\n    ens1:\n      dhcp4: true\n",
        "network:\n  ethernets:\n    ens1:\n      mtu: 1500\n   ens2:\n      mtu: 1500\n",
        'network:\n  ethernets:\n    ens1:\n      "m\\x74u": 1500\n',
        "network:\n  ethernets:\n    - ens1\n",
        "ethernets:\n  ens1:\n    mtu: 1500\n",
        "%YAML 1.1\n---\nnetwork:\n",
    ],
)
def test_netplan_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"line [0-9]+: "):
        netdev_mtu.parse_netplan(text)


SCALARS = st.sampled_from(["true", "10.0.0.1/24", "a b", "x:y", "it's", "#no", "mtu", "mtu: 3", "", "1500"])
DEEP = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SCALARS, inner, max_size=2))
DEFINITIONS = st.dictionaries(st.sampled_from(["addresses", "dhcp4", "match", "routes"]), DEEP, max_size=3)
FILES = st.dictionaries(
    st.sampled_from([*netdev_mtu.NETPLAN_SECTIONS, "wifis"]),
    st.dictionaries(
        st.sampled_from(["ens1", "ens1.100", "bond0", "all-en"]),
        st.tuples(DEFINITIONS, st.none() | st.integers(0, 65535)),
        min_size=1,
        max_size=3,
    ),
    max_size=3,
)


@given(FILES, st.sampled_from([None, False]))
@settings(max_examples=100)
def test_whatever_a_yaml_writer_makes_is_read_alike_or_refused(files: dict[str, Any], flow: bool | None) -> None:
    data: dict[str, Any] = {"version": 2}
    for section, definitions in files.items():
        data[section] = {
            name: rest | ({} if mtu is None else {"mtu": mtu}) for name, (rest, mtu) in definitions.items()
        }
    text = yaml.safe_dump({"network": data}, default_flow_style=flow)
    expected = {
        (section, name): data[section][name].get("mtu")
        for section, definitions in files.items()
        if section in netdev_mtu.NETPLAN_SECTIONS
        for name in definitions
    }
    try:
        assert netdev_mtu.parse_netplan(text) == expected
    except ParseError:
        assert flow is None or any(mark in text for mark in ("? ", "'", "\\", '"', "&", "!", "|"))


@given(st.text(st.sampled_from("abmtu:-{}[]'\"# \n0123&|\\"), max_size=80))
@settings(max_examples=100)
def test_no_text_breaks_the_netplan_reader(text: str) -> None:
    try:
        netdev_mtu.parse_netplan("network:\n  ethernets:\n    a:\n" + text)
    except ParseError as error:
        assert str(error).startswith("line ")


def test_our_netplan_file_is_plain_yaml_and_read_by_our_own_reader() -> None:
    text = netdev_mtu.render_netplan({"vlans/v.100": 4200, "ethernets/ens2": 9000, "ethernets/ens1": 9000})
    odd = 'a"b\\: #'
    assert yaml.safe_load(netdev_mtu.render_netplan({f"bonds/{odd}": 9}))["network"]["bonds"] == {odd: {"mtu": 9}}
    assert yaml.safe_load(text) == {
        "network": {
            "version": 2,
            "ethernets": {"ens1": {"mtu": 9000}, "ens2": {"mtu": 9000}},
            "vlans": {"v.100": {"mtu": 4200}},
        }
    }
    assert netdev_mtu.parse_netplan(text) == {
        ("ethernets", "ens1"): 9000,
        ("ethernets", "ens2"): 9000,
        ("vlans", "v.100"): 4200,
    }


# -- networkd's [Match] ----------------------------------------------------------------------------------------------

DEVICE = Device(
    "ens1",
    1500,
    mac="b8:3f:d2:00:00:01",
    permanent="b8:3f:d2:00:00:01",
    driver="mlx5_core",
    path="pci-0000:1b:00.0",
    altnames=("enp27s0f0np0",),
)


@pytest.mark.parametrize(
    ("match", "answer"),
    [
        ("", True),
        ("Name=ens1", True),
        ("Name=en*", True),
        ("Name=eth* enp27*", True),
        ("Name=!ens1", True),  # its other name is not excluded
        ("Name=!en*", False),
        ("Name=en* !*s1\nName=\nName=eth0", False),
        ("Name=eth0", False),
        ('Name="ens1"', None),
        ("MACAddress=B8-3F-D2-00-00-01", True),
        ("PermanentMACAddress=b8:3f:d2:00:00:02 b83f.d200.0001", True),
        ("MACAddress=b8:3f:d2:00:00:02", False),
        ("Path=pci-0000:1b:00.*", True),
        ("Path=pci-0000:1c:00.0", False),
        ("Driver=mlx5*", True),
        ("Type=ether", True),
        ("Type=wlan", False),
        ("Kind=vlan", False),
        ("Kind=!vlan", True),
        ("OriginalName=*", True),
        ("OriginalName=eth0", None),
        ("Host=node01", None),
        ("Host=node01\nName=eth0", False),
        ("Name=ens1\nProperty=ID_X=1", None),
    ],
)
def test_a_match_section_is_satisfied_not_or_nobody_knows(match: str, answer: bool | None) -> None:
    assert netdev_mtu.matches(netdev_mtu.settings("[Match]\n%s\n[Network]\nName=no" % match), DEVICE) is answer


def test_an_unknown_address_is_no_mismatch() -> None:
    found = netdev_mtu.settings("[Match]\nPermanentMACAddress=b8:3f:d2:00:00:02\n")
    assert netdev_mtu.matches(found, replace(DEVICE, permanent=None)) is None


# -- ifupdown --------------------------------------------------------------------------------------------------------

IFACES = """\
# The loopback
auto lo
iface lo inet loopback
source-directory interfaces.d

auto ens1
iface ens1 inet static
\taddress 10.0.0.1/24
\t# mtu 1
\tup ip route add \\
\t  10.1.0.0/16 via 10.0.0.254

iface ens1 inet6 auto
iface ens2 inet dhcp
"""


def test_an_mtu_goes_into_the_stanza_and_everything_else_stays() -> None:
    after = netdev_mtu.set_iface_mtu(IFACES, "ens1", 9000)
    assert after == IFACES.replace("via 10.0.0.254\n", "via 10.0.0.254\n\tmtu 9000\n")
    after = netdev_mtu.set_iface_mtu(after, "ens2", 9000)
    assert after.endswith("iface ens2 inet dhcp\n    pre-up ip link set dev ens2 mtu 9000\n")
    assert [one.mtus for one in netdev_mtu.parse_interfaces(after)[0]] == [[], ["9000"], [], ["9000"]]
    assert netdev_mtu.set_iface_mtu(after, "ens3", 9000) == after


def test_an_mtu_of_a_method_that_does_not_know_it_counts_for_nothing() -> None:
    text = "iface ens1 inet dhcp\n mtu 9000\n"
    assert netdev_mtu.parse_interfaces(text)[0][0].mtus == []
    assert netdev_mtu.set_iface_mtu(text, "ens1", 9000) == text + " pre-up ip link set dev ens1 mtu 9000\n"


IFACE_LINES = st.lists(
    st.sampled_from(
        [
            "iface a inet static",
            "iface a inet dhcp",
            "iface b inet manual",
            "auto a",
            "  mtu 1500",
            "\tup /sbin/ip link set a mtu 1500 # x",
            "  address 10.0.0.1/24 \\",
            "# iface a inet static",
            "mapping a",
            "",
            "source x/*",
        ]
    ),
    max_size=12,
).map("\n".join)


@given(IFACE_LINES)
@settings(max_examples=100)
def test_a_stanza_edit_sets_the_mtu_keeps_foreign_lines_and_is_done_once(text: str) -> None:
    after = netdev_mtu.set_iface_mtu(text, "a", 9000)
    mine = [one for one in netdev_mtu.parse_interfaces(after)[0] if one.name == "a"]
    assert {value for one in mine for value in one.mtus} == ({"9000"} if mine else set())
    assert netdev_mtu.set_iface_mtu(after, "a", 9000) == after
    kept = [line for line in after.split("\n") if line and "9000" not in line]
    rest = iter(text.split("\n"))
    assert all(line in rest for line in kept)  # in their order
    foreign = [line for line in text.split("\n") if line and "mtu" not in line]
    assert foreign == [line for line in kept if "mtu" not in line]
    others = [one.options for one in netdev_mtu.parse_interfaces(text)[0] if one.name == "b"]
    found = [one.options for one in netdev_mtu.parse_interfaces(after)[0] if one.name == "b"]
    assert [[o[:2] for o in options] for options in others] == [[o[:2] for o in options] for options in found]


# -- ifcfg -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["DEVICE=ens1", "MTU=1500", "MTU='1500' # x", "# MTU=1", "", 'A="b c"'])))
@settings(max_examples=50)
def test_an_ifcfg_edit_keeps_foreign_lines_and_is_done_once(lines: list[str]) -> None:
    text = "\n".join(lines)
    after = netdev_mtu.set_ifcfg(text, "MTU", "9000")
    assert netdev_mtu.parse_ifcfg(after)["MTU"] == "9000"
    assert netdev_mtu.set_ifcfg(after, "MTU", "9000") == after
    foreign = [line for line in lines if not line.startswith("MTU") and line]
    assert [line for line in after.split("\n") if not line.startswith("MTU") and line] == foreign


def test_an_ifcfg_value_is_read_without_its_quotes_and_comment() -> None:
    assert netdev_mtu.parse_ifcfg("MTU='9000' # jumbo\nA=1 # b\nB=\nC") == {"MTU": "9000", "A": "1", "B": ""}


# -- tools -----------------------------------------------------------------------------------------------------------


def test_ibv_devinfo_is_read_by_device_and_port() -> None:
    found = netdev_mtu.parse_devinfo(DEVINFO % "1024 (3)" + (DEVINFO % "4096 (5)").replace("mlx5_3", "mlx5_4"))
    assert {key: (port.active, port.largest) for key, port in found.items()} == {
        ("mlx5_3", 1): (1024, 4096),
        ("mlx5_4", 1): (4096, 4096),
    }
    for text in ("", DEVINFO % "invalid MTU (0)", "active_mtu: 4096 (5)\n", "hca_id: a\n port: x\n"):
        with pytest.raises(ParseError):
            netdev_mtu.parse_devinfo(text)


def test_other_names_and_addresses_come_from_ip() -> None:
    text = '[{"ifname":"ens1","altnames":["enp27s0"],"permaddr":"b8:3f:d2:00:00:01"},{},{"ifname":"lo"}]'
    found = netdev_mtu.parse_links(text)
    assert (found["ens1"].altnames, found["ens1"].permanent) == (("enp27s0",), "b8:3f:d2:00:00:01")
    for bad in ("", "{}x", "[1]", '[{"a": 1}]'):
        with pytest.raises(ParseError):
            netdev_mtu.parse_links(bad)


@pytest.mark.parametrize(
    ("mtu", "rdma"), [(9000, 4096), (4192, 4096), (4191, 2048), (2144, 2048), (1500, 1024), (351, 0), (352, 256)]
)
def test_rdma_gets_what_is_left_beside_its_headers(mtu: int, rdma: int) -> None:
    assert netdev_mtu.rdma_mtu(mtu) == rdma


# -- order -----------------------------------------------------------------------------------------------------------


def stack(*, nic: int, bond: int, vlan: int) -> dict[str, Device]:
    """Two NICs below a bond, a VLAN on it."""
    return {
        "ens1": Device("ens1", nic, master="bond0", upper=("bond0",)),
        "ens2": Device("ens2", nic, master="bond0", upper=("bond0",)),
        "bond0": Device("bond0", bond, kind="bond", lower=("ens1", "ens2"), upper=("v100",)),
        "v100": Device("v100", vlan, kind="vlan", lower=("bond0",)),
    }


def test_what_grows_is_set_from_below_and_what_shrinks_from_the_top() -> None:
    grow, shrink = stack(nic=1500, bond=1500, vlan=1500), stack(nic=9000, bond=9000, vlan=9000)
    assert netdev_mtu.in_order(grow, grow, 9000) == ("bond0", "v100")  # the bond takes its members along
    assert netdev_mtu.in_order(shrink, shrink, 1500) == ("v100", "bond0")
    alone = stack(nic=1500, bond=9000, vlan=9000)
    assert netdev_mtu.in_order(alone, alone, 9000) == ("ens1", "ens2")
    parent = {"a": Device("a", 1500, upper=("b",)), "b": Device("b", 1500, kind="vlan", lower=("a",))}
    assert netdev_mtu.in_order(("b", "a"), parent, 9000) == ("a", "b")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.sampled_from([1500, 4200, 9000]), min_size=7))
@settings(max_examples=60)
def test_at_no_time_is_a_vlan_larger_than_what_is_below(steps: list[int], mtus: list[int]) -> None:
    """As the kernel has it: a VLAN above its parent's MTU is refused, a parent that shrinks takes its VLANs along."""
    names = [f"d{n}" for n in range(len(steps) + 1)]
    parents = {names[n + 1]: names[max(0, n + 1 - step)] for n, step in enumerate(steps)}
    live: dict[str, int] = {}
    for name in names:
        live[name] = min(mtus[names.index(name)], live.get(parents.get(name, ""), 9000))
    devices = {
        name: Device(
            name,
            live[name],
            kind="vlan" if name in parents else "",
            lower=(parents[name],) if name in parents else (),
            upper=tuple(upper for upper, below in parents.items() if below == name),
        )
        for name in names
    }
    for name in netdev_mtu.in_order(names, devices, 4200):
        assert name not in parents or live[parents[name]] >= 4200
        live[name] = 4200
        for upper in names:
            if upper in parents:
                live[upper] = min(live[upper], live[parents[upper]])
    assert set(live.values()) == {4200}


# -- a host ----------------------------------------------------------------------------------------------------------


def put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def tool(root: Path, name: str, script: str) -> None:
    put(root, f"/usr/sbin/{name}", f"#!/bin/sh\n{script}\n", 0o755)


def nics(roce: Topology, count: int = 2) -> tuple[Nic, ...]:
    """Rail n has ens<n+1>, at the PCI address and MAC that ends with n+1."""
    found = []
    for n, nic in enumerate(roce.nics[:count]):
        name, mac = f"ens{n + 1}", f"b8:3f:d2:00:00:0{n + 1}"
        netdev = Netdev(name, nic.pci, mac, 1500, "up", None, 0, 1, None, (), False, False, f"/sys/class/net/{name}")
        assert nic.rdma is not None
        port = nic.rdma.ports[0]
        gids = tuple(replace(gid, netdev=name) for gid in port.gids)
        rdma = replace(nic.rdma, ports=(replace(port, gids=gids),))
        found.append(replace(nic, netdevs=(netdev,), rdma=rdma))
    return tuple(found)


def netdev(root: Path, name: str, index: int, pci: str = "", mtu: int = 1500, lower: str = "", kind: str = "") -> None:
    base = f"/sys/class/net/{name}"
    values: dict[str, Any] = {"mtu": mtu, "operstate": "up", "dev_port": 0, "type": 1, "ifindex": index}
    values |= {"address": f"b8:3f:d2:00:00:0{index}", "addr_assign_type": 0}
    values |= {"uevent": (f"DEVTYPE={kind}\n" if kind else "") + f"INTERFACE={name}"}
    for file, value in values.items():
        put(root, f"{base}/{file}", f"{value}\n")
    if pci:
        (root / f"sys/devices/{pci}").mkdir(parents=True, exist_ok=True)
        (root / base[1:] / "device").symlink_to(root / f"sys/devices/{pci}")
    if lower:
        (root / base[1:] / f"lower_{lower}").symlink_to(root / f"sys/class/net/{lower}")


Look = Callable[[], Have]


@pytest.fixture
def roots(tmp_path: Path, roce: Topology) -> tuple[Path, Path]:
    """Hardware and system root of a node with two rails, ens1 and ens2, and eno9 for management."""
    hw, system = tmp_path / "hw", tmp_path / "sys"
    for n, nic in enumerate(nics(roce)):
        netdev(hw, f"ens{n + 1}", n + 1, nic.pci)
    netdev(hw, "eno9", 9, "0000:09:00.0")
    tool(system, "ip", f'[ "$1" = -j ] && echo "[]" && exit; echo "$6" > {hw}/sys/class/net/$4/mtu')
    answer = "".join((DEVINFO % "4096 (5)").replace("mlx5_3", name) for name in ("mlx5_3", "mlx5_4"))
    tool(system, "ibv_devinfo", f"cat <<'X'\n{answer}\nX")
    return hw, system


@pytest.fixture
def look(roots: tuple[Path, Path], roce: Topology) -> Look:
    return lambda: netdev_mtu.read(Host(str(roots[0]), str(roots[1])), nics(roce))


def networkd(system: Path) -> None:
    put(system, "/run/systemd/netif/state", "OPER_STATE=routable\n")


def found(plan: Plan, check: str, name: str = "ens1") -> tuple[str, str | None]:
    one = [f for f in plan.findings if f.check == f"netdev_mtu.{check}" and f.subject.endswith(name)]
    assert len(one) == 1, (check, plan.findings)
    return one[0].state, one[0].have


def applied(roots: tuple[Path, Path], look: Look, want: Want = WANT) -> Plan:
    """Executes the plan and asserts that the next one has no file to change."""
    host = Host(str(roots[0]), str(roots[1]))
    apply.execute(host, netdev_mtu.plan(look(), want), backup=False)
    after = netdev_mtu.plan(look(), want)
    assert (after.changes, after.commands) == ((), ())
    return after


def test_networkd_gets_a_drop_in_beside_the_file_that_matches_first(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/usr/lib/systemd/network/10-rail.network", "[Match]\nName=ens1\n[Link]\nMTUBytes=1500\n")
    put(system, "/etc/systemd/network/20-ens.network", "[Match]\nName=ens*\n[Link]\nMTUBytes=9000\n")
    put(system, "/run/systemd/network/10-rail.network.d/50-x.conf", "[Link]\nMTUBytes=2000\n")
    plan = netdev_mtu.plan(look(), WANT)
    dropin = "/etc/systemd/network/10-rail.network.d/90-busbar-mtu.conf"
    assert [(change.path, change.before) for change in plan.changes] == [(dropin, None)]
    assert found(plan, "persisted")[1] == ("MTU 2000 in /run/systemd/network/10-rail.network.d/50-x.conf (networkd)")
    assert found(plan, "persisted", "ens2") == ("ok", "MTU 9000 in /etc/systemd/network/20-ens.network (networkd)")
    after = applied(roots, look)
    assert [finding.check for finding in after.findings if not finding.ok] == []
    assert found(after, "persisted") == ("ok", f"MTU 9000 in {dropin} (networkd)")


def test_a_drop_in_after_ours_is_somebody_elses_and_named(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    late = "/etc/systemd/network/10.network.d/99-z.conf"
    put(system, late, "[Link]\nMTUBytes=1500\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "persisted")[0] == "not_owned"
    assert [f.fix for f in plan.findings if f.check == "netdev_mtu.persisted"] == [
        f"correct {late}, which counts more than /etc/systemd/network/10.network.d/90-busbar-mtu.conf"
    ]


def test_a_masked_file_does_not_count_and_what_is_not_known_is_asked_of_networkd(
    roots: tuple[Path, Path], look: Look
) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/usr/lib/systemd/network/10.network", "[Match]\nName=ens1\n")
    put(system, "/etc/systemd/network/10.network", "")
    put(system, "/etc/systemd/network/15.network", "[Match]\nHost=gpu*\nName=ens*\n")
    put(system, "/etc/systemd/network/20.network", "[Match]\nName=ens1\n")
    put(system, "/run/systemd/netif/links/1", "NETWORK_FILE=/etc/systemd/network/20.network\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "owner") == ("ok", "/etc/systemd/network/20.network (networkd)")
    state, have = found(plan, "owner", "ens2")
    assert state == "unknown"
    assert have == "whether /etc/systemd/network/15.network matches ens2 is not known (its [Match] section)"


def test_a_file_that_also_sets_up_another_interface_is_left_alone(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/systemd/network/20-all.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "owner") == ("not_owned", "/etc/systemd/network/20-all.network (networkd) sets up eno9, too")
    assert [f for f in plan.findings if f.check == "netdev_mtu.persisted"] == []


def test_netplan_gets_a_file_of_ours_for_every_id_that_needs_it(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    tool(system, "netplan", ":")
    theirs = "network:\n  ethernets:\n    rail0:\n      set-name: ens1\n    ens2:\n      mtu: 9000\n"
    put(system, "/etc/netplan/50-site.yaml", theirs, 0o600)
    for ident, name in (("rail0", "ens1"), ("ens2", "ens2")):
        put(system, f"/run/systemd/network/10-netplan-{ident}.network", f"[Match]\nName={name}\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert [(change.path, change.mode) for change in plan.changes] == [("/etc/netplan/90-busbar-mtu.yaml", 0o600)]
    assert yaml.safe_load(plan.changes[0].after or "") == {
        "network": {"version": 2, "ethernets": {"rail0": {"mtu": 9000}}}
    }
    assert plan.commands[0].argv == ("netplan", "generate")
    after = applied(roots, look)
    assert [finding.check for finding in after.findings if not finding.ok] == []
    assert (system / "etc/netplan/50-site.yaml").read_text() == theirs
    # What they say themselves needs no file of ours any more.
    put(system, "/etc/netplan/50-site.yaml", theirs.replace("set-name: ens1", "mtu: 9000"), 0o600)
    assert [(change.path, change.after) for change in netdev_mtu.plan(look(), WANT).changes] == [
        ("/etc/netplan/90-busbar-mtu.yaml", None)
    ]


def test_a_netplan_file_after_ours_is_named(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/netplan/99-z.yaml", "network:\n  ethernets:\n    ens1:\n      mtu: 1500\n")
    put(system, "/run/systemd/network/10-netplan-ens1.network", "[Match]\nName=ens1\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "persisted") == ("not_owned", "MTU 1500 in /etc/netplan/99-z.yaml (netplan)")


def test_netplan_that_cannot_be_read_is_unknown_and_ours_stays(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/netplan/50-site.yaml", "network: {ethernets: {ens1: {}}}\n")
    put(system, "/etc/netplan/90-busbar-mtu.yaml", netdev_mtu.render_netplan({"ethernets/ens1": 9000}))
    put(system, "/run/systemd/network/10-netplan-ens1.network", "[Match]\nName=ens1\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    state, have = found(plan, "owner")
    assert (state, (have or "").partition(": ")[0]) == ("unknown", "/etc/netplan/50-site.yaml")


def test_an_id_that_only_our_file_defines_is_refused(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/netplan/90-busbar-mtu.yaml", netdev_mtu.render_netplan({"ethernets/ens1": 9000}))
    put(system, "/etc/netplan/90-busbar-multirail.yaml", "network:\n  ethernets:\n    ens1:\n      routes: []\n")
    put(system, "/run/systemd/network/10-netplan-ens1.network", "[Match]\nName=ens1\n")
    assert found(netdev_mtu.plan(look(), Want(4200)), "owner")[0] == "not_owned"


KEYFILE = "[connection]\nid=rail 0\nuuid=u-1\ntype=ethernet\ninterface-name=ens1\n\n[ipv4]\nmethod=auto\n"


def test_networkmanager_profiles_are_edited_in_place_with_their_mode(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    put(system, "/run/NetworkManager/devices/1", "[device]\nmanaged=true\nconnection-uuid=u-1\n")
    tool(system, "nmcli", ":")
    path = "/etc/NetworkManager/system-connections/rail 0.nmconnection"
    put(system, path, KEYFILE, 0o600)
    other = KEYFILE.replace("interface-name=ens1", "autoconnect=false")
    put(system, "/etc/NetworkManager/system-connections/a.nmconnection", other, 0o600)
    plan = netdev_mtu.plan(look(), WANT)
    assert [(change.path, change.mode, change.after) for change in plan.changes] == [
        (path, 0o600, KEYFILE + "\n[ethernet]\nmtu=9000\n")
    ]
    assert plan.commands[0].argv == ("nmcli", "connection", "reload")
    assert found(plan, "persisted")[0] == "drift"
    assert found(applied(roots, look), "persisted")[0] == "ok"


def test_of_two_equal_profiles_the_one_in_use_is_taken_and_without_one_in_use_none(
    roots: tuple[Path, Path], look: Look
) -> None:
    system = roots[1]
    folder = "/etc/NetworkManager/system-connections"
    put(system, f"{folder}/a.nmconnection", KEYFILE, 0o600)
    second = KEYFILE.replace("u-1", "u-2").replace("interface-name=ens1", "autoconnect-priority=0")
    second += "[ethernet]\nmac-address=B8:3F:D2:00:00:01\nmtu=4200\n"
    put(system, f"{folder}/b.nmconnection", second, 0o600)
    put(system, "/run/NetworkManager/devices/1", "[device]\nmanaged=true\nconnection-uuid=u-2\n")
    assert found(netdev_mtu.plan(look(), Want(4200)), "persisted")[0] == "ok"
    put(system, "/run/NetworkManager/devices/1", "[device]\nmanaged=true\n")
    assert found(netdev_mtu.plan(look(), Want(4200)), "owner") == (
        "unknown",
        f"{folder}/a.nmconnection (NetworkManager) and {folder}/b.nmconnection (NetworkManager) both set it up",
    )
    put(system, f"{folder}/b.nmconnection", second.replace("priority=0", "priority=5"), 0o600)
    assert found(netdev_mtu.plan(look(), Want(4200)), "owner")[0] == "ok"


def test_a_profile_that_is_in_no_file_cannot_be_written(roots: tuple[Path, Path], look: Look) -> None:
    put(roots[1], "/run/NetworkManager/devices/1", "[device]\nmanaged=true\nconnection-uuid=u-9\n")
    assert found(netdev_mtu.plan(look(), WANT), "owner")[0] == "not_owned"


def test_ifupdown_follows_its_sources(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    tool(system, "ifup", ":")
    put(system, "/etc/network/interfaces", "source /etc/network/interfaces.d/*\niface ens2 inet manual\n  mtu 9000\n")
    put(system, "/etc/network/interfaces.d/rails", "auto ens1\niface ens1 inet static\n  address 10.0.0.1/24\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert [change.path for change in plan.changes] == ["/etc/network/interfaces.d/rails"]
    assert found(plan, "persisted", "ens2")[0] == "ok"
    after = applied(roots, look)
    assert found(after, "persisted") == ("ok", "MTU 9000 in /etc/network/interfaces.d/rails (ifupdown)")
    assert not netdev_mtu.keeps_backup("/etc/network/interfaces.d/rails")  # ifupdown would read the copy


def test_two_stanzas_of_one_file_are_edited_in_one_change(roots: tuple[Path, Path], look: Look) -> None:
    tool(roots[1], "ifup", ":")
    put(roots[1], "/etc/network/interfaces", "iface ens1 inet manual\niface ens2 inet manual\n")
    after = applied(roots, look)
    assert [found(after, "persisted", name)[0] for name in ("ens1", "ens2")] == ["ok", "ok"]


def test_ifcfg_files_are_found_by_device_or_address(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    put(system, "/run/NetworkManager/resolv.conf", "")
    folder = "/etc/sysconfig/network-scripts"
    put(system, f"{folder}/ifcfg-rail0", "HWADDR=B8:3F:D2:00:00:01\nBOOTPROTO=none\n")
    put(system, f"{folder}/ifcfg-ens2", "MTU=9000\n")
    put(system, f"{folder}/ifcfg-ens2.bak", "DEVICE=ens2\nMTU=1500\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert [(change.path, change.after) for change in plan.changes] == [
        (f"{folder}/ifcfg-rail0", "HWADDR=B8:3F:D2:00:00:01\nBOOTPROTO=none\nMTU=9000\n")
    ]
    assert found(plan, "persisted", "ens2")[0] == "ok"


def test_a_link_file_brings_the_mtu_that_the_owner_does_not_name(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    tool(system, "ifup", ":")
    put(system, "/etc/network/interfaces", "iface ens1 inet manual\n")
    link = "[Match]\nMACAddress=b8:3f:d2:00:00:01 b8:3f:d2:00:00:02\n[Link]\nMTUBytes=9000\n"
    put(system, "/etc/systemd/network/10-rails.link", link)
    put(system, "/usr/lib/systemd/network/99-default.link", "[Match]\nOriginalName=*\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "persisted") == ("ok", "MTU 9000 in /etc/systemd/network/10-rails.link (ifupdown)")
    # Where nobody sets the interface up, the .link file is all there is, and edited.
    changed = netdev_mtu.plan(look(), Want(4200)).changes
    assert {change.path: change.after for change in changed}["/etc/systemd/network/10-rails.link"] == link.replace(
        "9000", "4200"
    )


def test_an_interface_that_nobody_sets_up_is_set_now_and_said_to_be_unknown_for_the_boot(
    roots: tuple[Path, Path], look: Look
) -> None:
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "owner") == (
        "unknown",
        "no file of netplan, NetworkManager, networkd, ifupdown or ifcfg sets it up",
    )
    assert [command.argv for command in plan.commands] == [
        ("ip", "link", "set", "dev", name, "mtu", "9000") for name in ("ens1", "ens2")
    ]
    assert {command.disruption for command in plan.commands} == {"link"}
    limited = plan.limit("none")
    assert limited.commands == ()
    assert {f.state for f in limited.findings if f.check == "netdev_mtu.live"} == {"withheld"}


def test_a_link_file_of_other_interfaces_is_left_alone(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    tool(system, "ifup", ":")
    put(system, "/etc/network/interfaces", "iface eno9 inet manual\n")
    put(system, "/etc/systemd/network/10-all.link", "[Match]\nType=ether\n[Link]\nMTUBytes=1500\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "owner") == ("not_owned", "/etc/systemd/network/10-all.link (link) sets up eno9, too")


def test_two_programs_that_set_up_one_interface_are_named(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    tool(system, "ifup", ":")
    put(system, "/etc/network/interfaces", "iface ens1 inet manual\n")
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    assert found(netdev_mtu.plan(look(), WANT), "owner") == (
        "unknown",
        "/etc/systemd/network/10.network (networkd) and /etc/network/interfaces (ifupdown) both set it up",
    )


def test_programs_that_are_not_started_own_nothing(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    put(system, "/etc/network/interfaces", "iface ens1 inet manual\n")
    put(system, "/etc/NetworkManager/system-connections/a.nmconnection", KEYFILE)
    put(system, "/etc/sysconfig/network/ifcfg-ens1", "MTU=9000\n")
    assert found(netdev_mtu.plan(look(), WANT), "owner")[0] == "unknown"
    put(system, "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service", "")
    assert found(netdev_mtu.plan(look(), WANT), "persisted")[0] == "drift"


def test_a_vlan_that_rdma_uses_is_part_of_the_rail_and_one_that_it_does_not_use_is_not(
    roots: tuple[Path, Path], roce: Topology
) -> None:
    hw, system = roots
    netdev(hw, "ens1.100", 5, lower="ens1", kind="vlan")
    netdev(hw, "ens1.200", 6, lower="ens1", kind="vlan")
    nic = nics(roce, 1)[0]
    assert nic.rdma is not None
    port = nic.rdma.ports[0]
    gids = (*port.gids, replace(port.gids[0], index=4, netdev="ens1.100"))
    nic = replace(nic, rdma=replace(nic.rdma, ports=(replace(port, gids=gids),)))
    have = netdev_mtu.read(Host(str(hw), str(system)), [nic])
    assert netdev_mtu.wanted(nic, have.devices) == ("ens1", "ens1.100")
    commands = [command.argv[4] for command in netdev_mtu.plan(have, WANT).commands]
    assert commands == ["ens1", "ens1.100"]


# -- what RDMA makes of it -------------------------------------------------------------------------------------------


def test_a_small_active_mtu_follows_from_the_interface_or_stands_alone(roots: tuple[Path, Path], look: Look) -> None:
    hw, system = roots
    tool(system, "ibv_devinfo", "cat <<'X'\n%s\nX" % (DEVINFO % "1024 (3)"))
    small = [f for f in netdev_mtu.plan(look(), WANT).findings if f.check == "netdev_mtu.active_mtu"]
    assert [(f.state, f.have) for f in small] == [
        ("drift", "1024 bytes"),
        ("unknown", "ibv_devinfo does not show mlx5_4"),
    ]
    assert small[0].because == f"netdev_mtu.live[live]@{small[0].identity}"
    (hw / "sys/class/net/ens1/mtu").write_text("9000\n")
    alone = next(f for f in netdev_mtu.plan(look(), WANT).findings if f.check == "netdev_mtu.active_mtu")
    assert (alone.state, alone.because) == ("drift", None)
    assert "ip link set ens1 down" in alone.fix


def test_a_port_that_cannot_send_4096_is_unsupported_and_a_missing_tool_unknown(
    roots: tuple[Path, Path], look: Look
) -> None:
    system = roots[1]
    text = (DEVINFO % "2048 (4)").replace("4096 (5)", "2048 (4)")
    tool(system, "ibv_devinfo", f"cat <<'X'\n{text}\nX")
    assert found(netdev_mtu.plan(look(), WANT), "active_mtu") == (
        "unsupported",
        "2048 bytes, and the port has at most 2048",
    )
    (system / "usr/sbin/ibv_devinfo").unlink()
    state, have = found(netdev_mtu.plan(look(), WANT), "active_mtu")
    assert (state, (have or "").partition(";")[0]) == ("unknown", "ibv_devinfo: is not installed")


def test_a_small_mtu_of_the_inventory_is_a_note_and_no_finding(roots: tuple[Path, Path], look: Look) -> None:
    have = look()
    assert netdev_mtu.notes(have, WANT) == []
    assert netdev_mtu.notes(have, Want(1500)) == ["with an MTU of 1500 RDMA sends 1024 bytes; 4096 need 4192"]
    states = {f.state for f in netdev_mtu.plan(have, Want(1500)).findings if f.check == "netdev_mtu.active_mtu"}
    assert states == {"ok"}


def test_what_cannot_be_read_is_unknown(roots: tuple[Path, Path], look: Look) -> None:
    hw = roots[0]
    (hw / "sys/class/net/ens1/mtu").write_text("many\n")
    (hw / "sys/class/net/eno9/mtu").write_text("many\n")  # which is nobody's rail
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "live")[0] == "unknown"
    assert [f.subject for f in plan.findings if f.check == "netdev_mtu.readable"] == ["/sys/class/net/ens1/mtu"]


def test_without_ip_a_name_that_does_not_match_may_be_another_name_of_it(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    tool(system, "ip", "echo nonsense")
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "owner")[0] == "ok"
    assert "ip -j link show does not tell its other names" in str(found(plan, "owner", "ens2")[1])


def test_a_rail_without_an_interface_is_unknown_and_one_of_infiniband_is_not_asked(
    roots: tuple[Path, Path], roce: Topology
) -> None:
    nic = replace(roce.nics[0], netdevs=())
    plan = netdev_mtu.plan(netdev_mtu.read(Host(str(roots[0]), str(roots[1])), [nic]), WANT)
    assert [(f.check, f.state) for f in plan.findings] == [("netdev_mtu.live", "unknown")]
    assert netdev_mtu.plan(netdev_mtu.read(Host("/nowhere", "/nowhere"), []), WANT) == Plan()


@given(
    st.lists(
        st.builds(
            Claim,
            stack=st.sampled_from(["networkd", "NetworkManager", "ifupdown", "ifcfg", "netplan", "link"]),
            path=st.sampled_from(["/a", "/etc/b"]),
            target=st.sampled_from(["/etc/b", "/etc/c"]),
            mtu=st.sampled_from([None, 1500, 9000]),
            source=st.sampled_from(["/a", "/etc/z"]),
            ident=st.sampled_from(["ethernets/x", "Link"]),
            before=st.sampled_from([None, "iface ens1 inet manual\n", "[x]\n"]),
        ),
        max_size=2,
    ),
    st.sampled_from(["", "not clear"]),
    st.sampled_from([None, 1500, 9000]),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_is_written_only_for_the_one_clear_owner(
    roce: Topology, claims: list[Claim], doubt: str, mtu: int | None
) -> None:
    nic = nics(roce, 1)[0]
    have = Have((nic,), {"ens1": Device("ens1", mtu)}, {"ens1": Owner(tuple(claims), doubt)}, {})
    plan = netdev_mtu.plan(have, WANT)
    if doubt or len(claims) != 1:
        assert plan.changes == ()
        assert [f.state for f in plan.findings if f.check == "netdev_mtu.owner"] == ["unknown"]
    assert len([f for f in plan.findings if f.check == "netdev_mtu.live"]) == 1
    assert bool([c for c in plan.commands if c.argv[0] == "ip"]) == (mtu == 1500)


# -- the module ------------------------------------------------------------------------------------------------------

Run = Callable[..., dict[str, Any]]
RAIL = "enp26s0np0"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A simulated hgx-h200 with RoCE. networkd sets its interfaces up, one file each, and one rail has MTU 1500."""
    store.create(tmp_path / "lab", {"node02": store.STANDARD["node02"]})
    node = tmp_path / "lab/node02"
    networkd(node / "sys")
    names = [path.name for path in (node / "hw/sys/class/net").iterdir() if path.name.startswith("en")]
    for name in names:
        text = f"[Match]\nName={name}\n\n[Link]\nMTUBytes={1500 if name == RAIL else 9000}\n"
        put(node / "sys", f"/etc/systemd/network/{name}.network", text)
    (node / f"hw/sys/class/net/{RAIL}/mtu").write_text("1500\n")
    (node / "sys/usr/local/sbin/ip").unlink(missing_ok=True)  # the simulated one knows no other names
    tool(node / "sys", "ip", f'[ "$1" = -j ] && echo "[]" && exit; echo "$6" > {node}/hw/sys/class/net/$4/mtu')
    return node


@pytest.fixture
def call(lab: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def run(check_mode: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {
            "profile": yaml.safe_load((ROOT / "profiles/hgx-h200.yml").read_text()),
            "fabric": "ethernet",
            "mtu": 9000,
            "hardware_root": str(lab / "hw"),
            "system_root": str(lab / "sys"),
            "_ansible_check_mode": check_mode,
            "_ansible_remote_tmp": str(tmp_path),
        }
        capsys.readouterr()
        with patch_module_args(arguments | more), pytest.raises(SystemExit):
            module.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_check_mode_foretells_the_run_and_touches_nothing_and_a_second_run_has_nothing_to_do(
    call: Run, lab: Path
) -> None:
    before = contents(lab)
    predicted = call(check_mode=True, max_disruption="link")
    assert contents(lab) == before
    done = call(max_disruption="link")
    for key in ("changed", "diff", "commands"):
        assert predicted[key] == done[key], key
    assert done["commands"] == [f"ip link set dev {RAIL} mtu 9000"]
    assert {name.partition("[")[0] for name in done["repaired"]} >= {"netdev_mtu.live", "netdev_mtu.persisted"}
    assert [f for f in done["findings"] if f["check"] != "netdev_mtu.active_mtu"] == []
    after = contents(lab)
    again = call(max_disruption="link")
    assert (again["changed"], again["commands"], contents(lab)) == (False, [], after)


def test_what_would_stop_traffic_is_withheld_and_the_file_is_written_all_the_same(call: Run, lab: Path) -> None:
    done = call()
    assert (done["changed"], done["commands"]) == (True, [])
    assert [name.partition("[")[0] for name in done["withheld"] if "active_mtu" not in name] == ["netdev_mtu.live"]
    assert [f["check"] for f in done["findings"] if f["aspect"] == "persisted"] == []
    assert (lab / f"sys/etc/systemd/network/{RAIL}.network.d/90-busbar-mtu.conf").is_file()


def test_on_infiniband_nothing_is_asked_and_a_senseless_mtu_is_refused(call: Run) -> None:
    none = call(profile=yaml.safe_load((ROOT / "profiles/hgx-h100.yml").read_text()), fabric="infiniband")
    assert (none["changed"], none["findings"], none["passed"], none["notes"]) == (False, [], [], [])
    assert call(mtu=90)["msg"] == "mtu is 90, expected 1280 to 65535"
