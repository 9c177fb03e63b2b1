"""Who sets an interface up, where its MTU belongs, and in which order it is set."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils import netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev import Netdev
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.netdev_mtu import Have, Want
from ansible_collections.busbar.fabric.plugins.module_utils.owner import networkmanager
from ansible_collections.busbar.fabric.plugins.module_utils.owner.claim import Claim
from ansible_collections.busbar.fabric.plugins.module_utils.owner.device import Device
from ansible_collections.busbar.fabric.plugins.module_utils.owner.ifcfg import Ifcfg
from ansible_collections.busbar.fabric.plugins.module_utils.owner.ifupdown import Ifupdown
from ansible_collections.busbar.fabric.plugins.module_utils.owner.netplan import Netplan
from ansible_collections.busbar.fabric.plugins.module_utils.owner.networkd import Link, Networkd
from ansible_collections.busbar.fabric.plugins.module_utils.owner.networkmanager import NetworkManager
from ansible_collections.busbar.fabric.plugins.module_utils.owner.owner import Owner
from ansible_collections.busbar.fabric.plugins.modules import netdev_mtu as module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.lab import store
from tests.trees import contents, put, tool

ROOT = Path(__file__).resolve().parent.parent.parent
WANT = Want(9000)
OUR_NETPLAN = "network:\n  version: 2\n  ethernets:\n    ens1:\n      mtu: 9000\n"
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

# -- tools -----------------------------------------------------------------------------------------------------------


def test_ibv_devinfo_is_read_by_device_and_port() -> None:
    found = rdma.parse_devinfo(DEVINFO % "1024 (3)" + (DEVINFO % "4096 (5)").replace("mlx5_3", "mlx5_4"))
    assert {key: (port.active, port.largest) for key, port in found.items()} == {
        ("mlx5_3", 1): (1024, 4096),
        ("mlx5_4", 1): (4096, 4096),
    }
    for text in ("", DEVINFO % "invalid MTU (0)", "active_mtu: 4096 (5)\n", "hca_id: a\n port: x\n"):
        with pytest.raises(ParseError):
            rdma.parse_devinfo(text)


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


def nics(roce: Topology, count: int = 2) -> tuple[Nic, ...]:
    """Rail n has ens<n+1>, at the PCI address and MAC that ends with n+1."""
    found = []
    for n, nic in enumerate(roce.nics[:count]):
        name, mac = f"ens{n + 1}", f"b8:3f:d2:00:00:0{n + 1}"
        netdev = Netdev(name, nic.pci, mac, 1500, "up", 1, None, (), False, f"/sys/class/net/{name}")
        assert nic.rdma is not None
        port = nic.rdma.ports[0]
        gids = tuple(replace(gid, netdev=name) for gid in port.gids)
        rdma = replace(nic.rdma, ports=(replace(port, gids=gids),))
        found.append(replace(nic, netdevs=(netdev,), rdma=rdma))
    return tuple(found)


def netdev(root: Path, name: str, index: int, pci: str = "", mtu: int = 1500, lower: str = "", kind: str = "") -> None:
    base = f"/sys/class/net/{name}"
    values: dict[str, Any] = {"mtu": mtu, "operstate": "up", "type": 1, "ifindex": index}
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
    tool(system, "/usr/sbin/ip", f'[ "$1" = -j ] && echo "[]" && exit; echo "$6" > {hw}/sys/class/net/$4/mtu')
    answer = "".join((DEVINFO % "4096 (5)").replace("mlx5_3", name) for name in ("mlx5_3", "mlx5_4"))
    tool(system, "/usr/sbin/ibv_devinfo", f"cat <<'X'\n{answer}\nX")
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
    apply.execute(host, netdev_mtu.plan(look(), want))
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


@pytest.mark.parametrize("link", ["10-rail.link", "99-rail.link"])
def test_a_link_file_never_counts_more_than_a_network_file(roots: tuple[Path, Path], look: Look, link: str) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    put(system, f"/etc/systemd/network/{link}", "[Match]\nMACAddress=b8:3f:d2:00:00:01\n[Link]\nMTUBytes=1500\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "persisted") == ("drift", f"MTU 1500 in /etc/systemd/network/{link} (networkd)")
    dropin = "/etc/systemd/network/10.network.d/90-busbar-mtu.conf"
    assert [change.path for change in plan.changes] == [dropin]
    assert found(applied(roots, look), "persisted") == ("ok", f"MTU 9000 in {dropin} (networkd)")


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
    assert found(plan, "owner") == ("not_owned", "/etc/systemd/network/20-all.network (networkd) also configures eno9")
    assert [f for f in plan.findings if f.check == "netdev_mtu.persisted"] == []


def test_netplan_gets_a_file_of_ours_for_every_id_that_needs_it(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    tool(system, "/usr/sbin/netplan", ":")
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
    put(system, "/etc/netplan/50-site.yaml", "network: {ethernets: {ens1: }}\n")
    put(system, "/etc/netplan/90-busbar-mtu.yaml", OUR_NETPLAN)
    put(system, "/run/systemd/network/10-netplan-ens1.network", "[Match]\nName=ens1\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    state, have = found(plan, "owner")
    assert (state, (have or "").partition(": ")[0]) == ("unknown", "/etc/netplan/50-site.yaml")


def test_an_id_that_only_our_file_defines_is_refused(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    put(system, "/etc/netplan/90-busbar-mtu.yaml", OUR_NETPLAN)
    put(system, "/etc/netplan/90-busbar-multirail.yaml", "network:\n  ethernets:\n    ens1:\n      routes: []\n")
    put(system, "/run/systemd/network/10-netplan-ens1.network", "[Match]\nName=ens1\n")
    assert found(netdev_mtu.plan(look(), Want(4200)), "owner")[0] == "not_owned"


KEYFILE = "[connection]\nid=rail 0\nuuid=u-1\ntype=ethernet\ninterface-name=ens1\n\n[ipv4]\nmethod=auto\n"


def test_networkmanager_profiles_are_edited_in_place_with_their_mode(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    put(system, "/run/NetworkManager/devices/1", "[device]\nmanaged=true\nconnection-uuid=u-1\n")
    tool(system, "/usr/sbin/nmcli", ":")
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


@pytest.mark.parametrize(
    ("kind", "text", "mtu", "after"),
    [
        # NetworkManager refuses an infiniband section without a mode; without a section it takes datagram.
        ("infiniband", "", None, "\n[infiniband]\nmtu=9000\ntransport-mode=datagram\n"),
        (
            "infiniband",
            "[infiniband]\ntransport-mode=connected\n",
            None,
            "[infiniband]\nmtu=9000\ntransport-mode=connected\n",
        ),
        # The long name counts, and the other section then does not, even where the long one is empty.
        (
            "ethernet",
            "[ethernet]\nmtu=9000\n[802-3-ethernet]\n",
            None,
            "[ethernet]\nmtu=9000\n[802-3-ethernet]\nmtu=9000\n",
        ),
        # Not of this kind of link.
        (
            "infiniband",
            "[ethernet]\nmtu=1500\n",
            None,
            "[ethernet]\nmtu=1500\n\n[infiniband]\nmtu=9000\ntransport-mode=datagram\n",
        ),
    ],
)
def test_the_section_that_networkmanager_takes_is_read_and_written(
    tmp_path: Path, kind: str, text: str, mtu: int | None, after: str
) -> None:
    head = f"[connection]\ntype={kind}\ninterface-name=ens1\n"
    put(tmp_path, "/etc/NetworkManager/system-connections/a.nmconnection", head + text, 0o600)
    put(tmp_path, "/run/NetworkManager/state", "")
    claims: dict[str, list[Claim]] = {"ens1": []}
    ether = kind != "infiniband"
    devices = {"ens1": Device("ens1", 1500, ether=ether)}
    networkmanager.read(Host("/nowhere", str(tmp_path)), devices, claims, {"ens1": []})
    assert (claims["ens1"][0].mtu, claims["ens1"][0].with_mtu(head + text, 9000)) == (mtu, head + after)


def test_a_diff_of_a_file_that_can_hold_secrets_shows_what_changes_and_no_more(
    roots: tuple[Path, Path], look: Look
) -> None:
    put(roots[1], "/run/NetworkManager/devices/1", "[device]\nmanaged=true\nconnection-uuid=u-1\n")
    secret = KEYFILE + "\n[ethernet]\nmtu=1500\n\n[802-1x]\npassword=hunter2-hunter2\n"
    put(roots[1], "/etc/NetworkManager/system-connections/a.nmconnection", secret, 0o600)
    [change] = netdev_mtu.plan(look(), WANT).changes
    assert "hunter2-hunter2" in (change.after or "")
    diff = change.diff()
    rest = "(other lines are not shown)\n"
    assert (diff["before"], diff["after"]) == (f"{rest}mtu=1500\n", f"{rest}mtu=9000\n")


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
    tool(system, "/usr/sbin/ifup", ":")
    put(system, "/etc/network/interfaces", "source /etc/network/interfaces.d/*\niface ens2 inet manual\n  mtu 9000\n")
    put(system, "/etc/network/interfaces.d/rails", "auto ens1\niface ens1 inet static\n  address 10.0.0.1/24\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert [change.path for change in plan.changes] == ["/etc/network/interfaces.d/rails"]
    assert found(plan, "persisted", "ens2")[0] == "ok"
    after = applied(roots, look)
    assert found(after, "persisted") == ("ok", "MTU 9000 in /etc/network/interfaces.d/rails (ifupdown)")
    assert not plan.changes[0].backup  # ifupdown would read the copy


def test_two_stanzas_of_one_file_are_edited_in_one_change(roots: tuple[Path, Path], look: Look) -> None:
    tool(roots[1], "/usr/sbin/ifup", ":")
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
    tool(system, "/usr/sbin/ifup", ":")
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
        "no file of netplan, NetworkManager, networkd, ifupdown or ifcfg configures it",
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
    tool(system, "/usr/sbin/ifup", ":")
    put(system, "/etc/network/interfaces", "iface eno9 inet manual\n")
    put(system, "/etc/systemd/network/10-all.link", "[Match]\nType=ether\n[Link]\nMTUBytes=1500\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert plan.changes == ()
    assert found(plan, "owner") == ("not_owned", "/etc/systemd/network/10-all.link (link) also configures eno9")


def test_two_programs_that_set_up_one_interface_are_named(roots: tuple[Path, Path], look: Look) -> None:
    system = roots[1]
    networkd(system)
    tool(system, "/usr/sbin/ifup", ":")
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
    tool(system, "/usr/sbin/ibv_devinfo", "cat <<'X'\n%s\nX" % (DEVINFO % "1024 (3)"))
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
    tool(system, "/usr/sbin/ibv_devinfo", f"cat <<'X'\n{text}\nX")
    assert found(netdev_mtu.plan(look(), WANT), "active_mtu") == (
        "unsupported",
        "2048 bytes, and the port has at most 2048",
    )
    (system / "usr/sbin/ibv_devinfo").unlink()
    state, have = found(netdev_mtu.plan(look(), WANT), "active_mtu")
    assert (state, (have or "").partition(";")[0]) == ("unknown", "ibv_devinfo: is not installed")


def test_a_small_mtu_of_the_inventory_is_a_note_and_no_finding(roots: tuple[Path, Path], look: Look) -> None:
    have = look()
    assert netdev_mtu.notes(have.nics, WANT) == []
    assert netdev_mtu.notes(have.nics, Want(1500)) == ["with an MTU of 1500 RDMA sends 1024 bytes; 4096 need 4192"]
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
    tool(system, "/usr/sbin/ip", "echo nonsense")
    put(system, "/etc/systemd/network/10.network", "[Match]\nName=ens1\n")
    plan = netdev_mtu.plan(look(), WANT)
    assert found(plan, "owner")[0] == "ok"
    assert "ip -j link show does not list its other names" in str(found(plan, "owner", "ens2")[1])


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
            lambda kind, **fields: kind(**fields),
            kind=st.sampled_from([Networkd, NetworkManager, Ifupdown, Ifcfg, Netplan, Link]),
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
RAILS = [f"enp{slot}s0np0" for slot in (156, 188, 204, 220, 26, 60, 77, 94)]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A simulated hgx-h200 with RoCE, fresh: networkd sets its rails up, one file each that names no MTU."""
    store.create(tmp_path / "lab", {"node02": store.STANDARD["node02"]})
    return tmp_path / "lab/node02"


@pytest.fixture
def call(lab: Path, call_module: Callable[..., Run]) -> Run:
    return call_module(module.main, lab, "hgx-h200", "ethernet", mtu=9000)


def test_check_mode_foretells_the_run_and_touches_nothing_and_a_second_run_has_nothing_to_do(
    call: Run, lab: Path
) -> None:
    before = contents(lab)
    predicted = call(check_mode=True, max_disruption="link")
    assert contents(lab) == before
    done = call(max_disruption="link")
    for key in ("changed", "diff", "commands"):
        assert predicted[key] == done[key], key
    assert done["commands"] == [f"ip link set dev {name} mtu 9000" for name in RAILS]
    assert done["repaired"] == predicted["repaired"] == [finding["id"] for finding in predicted["findings"]]
    assert (len(done["repaired"]), done["findings"]) == (3 * len(RAILS), [])
    after = contents(lab)
    again = call(max_disruption="link")
    assert (again["changed"], again["commands"], contents(lab)) == (False, [], after)


def test_what_would_stop_traffic_is_withheld_and_the_file_is_written_all_the_same(call: Run, lab: Path) -> None:
    done = call()
    assert (done["changed"], done["commands"]) == (True, [])
    withheld = [f"netdev_mtu.{check}" for check in ("active_mtu", "live") for _rail in RAILS]
    assert sorted(name.partition("[")[0] for name in done["withheld"]) == withheld
    assert [f["check"] for f in done["findings"] if f["aspect"] == "persisted"] == []
    assert (lab / "sys/etc/systemd/network/10-rail0.network.d/90-busbar-mtu.conf").is_file()


def test_what_rdma_has_kept_is_found_and_no_run_says_that_it_mends_it(call: Run, lab: Path) -> None:
    call(max_disruption="link")
    subprocess.run([lab / "sys/usr/local/sbin/busbar-lab-roce", "stale", RAILS[0], "1024"], check=True)
    for check_mode in (True, False):
        done = call(check_mode=check_mode, max_disruption="link")
        assert [(f["check"], f["state"]) for f in done["findings"]] == [("netdev_mtu.active_mtu", "drift")]
        assert "ip link set enp156s0np0 down" in done["findings"][0]["fix"]
        assert (done["repaired"], done["changed"]) == ([], False)


def test_on_infiniband_nothing_is_asked_and_a_senseless_mtu_is_refused(call: Run) -> None:
    none = call(profile=yaml.safe_load((ROOT / "profiles/hgx-h100.yml").read_text()), fabric="infiniband")
    assert (none["changed"], none["findings"], none["passed"], none["notes"]) == (False, [], [], [])
    nothing = call(mtu=None)
    assert (nothing["changed"], nothing["findings"], nothing["passed"]) == (False, [], [])
    assert call(mtu=90)["msg"] == "mtu is 90, expected 1280 to 65535"
