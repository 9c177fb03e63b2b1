# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HGX B300 with planes, IPv6 and VRFs, and a tray of GB300 with Data Direct: healthy, and each fault alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import Peer, Ping

from lab import store
from lab.blackwell import gb300, hgx_b300
from lab.machine import Machine, Netdev, Rdma
from lab.toolkit import iproute
from tests.lab.conftest import ROOT
from tests.lab.test_platforms import MODULES, OF_TRAYS, bad, healthy, show

BOARD, PLAIN, TRAY = "board01", "board02", "tray21"
Answer = Callable[..., dict[str, Any]]


def without_vrfs(hostname: str) -> Machine:
    return hgx_b300(hostname, in_vrfs=False)


LAB = {BOARD: hgx_b300, PLAIN: without_vrfs, TRAY: gb300}
# What of a node passes, and what is never asked there.
HEALTHY: dict[str, tuple[set[str], set[str]]] = {
    BOARD: ({"multirail.vrf", "platform.rail_gid", "pcie_path.acs"}, {"multirail.rules", "platform.rail_plane"}),
    PLAIN: ({"multirail.rules", "platform.rail_path"}, {"multirail.vrf", "platform.rail_data_direct"}),
    TRAY: (OF_TRAYS | {"platform.rail_data_direct", "pcie_path.argument", "pcie_path.acs"}, {"platform.rail_plane"}),
}


@pytest.fixture
def lab(own_lab: Path) -> Iterator[Path]:
    yield own_lab
    for node in LAB:
        show(own_lab, store.healthy(own_lab, node))


@pytest.fixture
def converged(lab: Path, on_node: Answer) -> Path:
    done = lab / "converged"
    if not done.exists():
        for node in LAB:
            reboots = {module: {"max_disruption": "reboot"} for module in ("iommu", "gpudirect", "pcie_path")}
            assert bad([on_node(module, node, **reboots.get(module, {})) for module in MODULES[1:]]) == []
        done.touch()
    return lab


@pytest.mark.parametrize("node", LAB)
def test_a_node_converges_and_has_nothing_to_report(converged: Path, on_node: Answer, node: str) -> None:
    healthy(on_node, node, *HEALTHY[node])


def plane(machine: Machine) -> Rdma:
    """The second plane of the fourth NIC."""
    return machine.rail(7)


def of_rail(machine: Machine, rail: int) -> Netdev:
    return next(one for one in machine.netdevs if one.address == machine.rail(rail).address)


def lost_plane(machine: Machine) -> None:
    machine.unplug(plane(machine).address)


def vrf_is_down(machine: Machine) -> None:
    next(one for one in machine.netdevs if one.name == "vrf-rail3").operstate = "down"


def no_rule(machine: Machine) -> None:
    machine.rules[iproute.NO_VRF_RULE] = ""


def link_local_only(machine: Machine) -> None:
    plane(machine).gids = plane(machine).gids[:2]
    of_rail(machine, 7).ipv6 = None


def one_prefix(machine: Machine) -> None:
    """Two rails outside of VRFs: the kernel takes one way for both."""
    first, second = (ip_interface(of_rail(machine, rail).ipv6 or "") for rail in (3, 4))
    address = first.network[int(second) % 2**64]
    of_rail(machine, 4).ipv6 = f"{address}/64"
    for gid in machine.rail(4).gids[2:]:
        gid.value = address.exploded


def no_function(machine: Machine) -> None:
    machine.unplug("0018:03:00.0")


def function_of_another(machine: Machine) -> None:
    machine.function("0018:03:00.0").vpd = "another card"


def no_argument(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.partition(" pci=")[0]


def old_kernel(machine: Machine) -> None:
    machine.kernel = "6.8.0-60-generic"


@pytest.mark.parametrize(
    ("node", "change", "expected", "says"),
    [
        (BOARD, lost_plane, ("platform.rail_device", "drift"), "(plane 1 of NIC 3)"),
        (BOARD, lambda m: m.take_down(plane(m), "2: Polling"), ("platform.rail_state", "drift"), "(plane 1 of NIC 3)"),
        (BOARD, vrf_is_down, ("multirail.vrf", "drift"), "ip link set dev vrf-rail3 up"),
        (BOARD, no_rule, ("multirail.vrf", "drift"), "ip -6 rule add l3mdev pref 1000"),
        (BOARD, link_local_only, ("platform.rail_gid", "drift"), "its interface has no address"),
        (PLAIN, one_prefix, ("multirail.rules", "not_owned"), "as rail 3"),
        (TRAY, no_function, ("platform.rail_data_direct", "drift"), "none of 3 such functions"),
        (TRAY, function_of_another, ("platform.rail_data_direct", "drift"), "none of 4 such functions"),
        (TRAY, no_argument, ("pcie_path.argument", "withheld"), "pending: the next boot will have it"),
        (TRAY, old_kernel, ("pcie_path.argument", "unsupported"), "pcie_path_acs_owner: unit"),
    ],
)
def test_a_fault_has_one_root(
    converged: Path, on_node: Answer, node: str, change: Callable[[Machine], None], expected: tuple[str, str], says: str
) -> None:
    machine: Machine = store.healthy(converged, node)
    change(machine)
    show(converged, machine)
    results = [on_node(module, node, check_mode=True) for module in ("topology_info", "multirail", "pcie_path")]
    assert bad(results) == [expected]
    [root] = [one for result in results for one in result["findings"] if one["because"] is None]
    assert says in " ".join(str(root[name]) for name in ("want", "have", "fix"))


def joined(machine: Machine, down: int) -> None:
    """The NIC itself joins its planes: one RDMA device of 800 Gbit/s, and an interface for each of the others."""
    machine.rdma = [one for one in machine.rdma if not one.address.endswith(".1")]
    for number, rdma in enumerate(one for one in machine.rdma if one.rail is not None):
        rdma.rail, rdma.rate = number, "800 Gb/sec (4X XDR)"
    for netdev in [one for one in machine.netdevs if (one.address or "").endswith(f"{down:x}3:00.1")]:
        netdev.operstate = "down"


@pytest.mark.parametrize(("down", "expected"), [(3, [("platform.rail_plane", "drift")]), (0xF, [])])
def test_a_plane_that_the_nic_joins_is_an_interface(
    converged: Path, on_node: Answer, down: int, expected: list[tuple[str, str]]
) -> None:
    machine: Machine = store.healthy(converged, PLAIN)
    joined(machine, down)
    show(converged, machine)
    profile = yaml.safe_load((ROOT / "profiles/hgx-b300.yml").read_text())
    result = on_node("topology_info", PLAIN, check_mode=True, profile=profile)
    assert bad([result]) == expected
    assert sum("rail_plane" in name for name in result["passed"]) == 8 - len(expected)


def test_advice_names_the_value_that_is_not_set(converged: Path, on_node: Answer) -> None:
    ipv4 = on_node("topology_info", BOARD, address_family="ipv4")["findings"]
    assert {(one["check"], one["fix"].partition(",")[0]) for one in ipv4} == {
        ("platform.rail_gid", "set busbar_roce.address_family: ipv6")
    }
    profile = yaml.safe_load((ROOT / "profiles/hgx-b300.yml").read_text())
    found = on_node("topology_info", BOARD, profile=profile)["findings"]
    assert len(found) == 8
    assert all("set busbar_planes" in one["have"] for one in found)
    small = on_node("pcie_path", BOARD, check_mode=True, profile={**profile, "max_read_request": 512})
    assert {one["want"] for one in small["findings"] if one["aspect"] == "live"} == {"512 bytes"}


def test_nccl_gets_each_plane_the_family_and_no_function_for_dma(converged: Path, on_node: Answer) -> None:
    lines = {node: (converged / node / "sys/etc/nccl.conf").read_text().splitlines() for node in (BOARD, TRAY)}
    assert f"NCCL_IB_HCA=={','.join(f'mlx5_{rail}' for rail in range(16))}" in lines[BOARD]
    assert "NCCL_IB_ADDR_FAMILY=AF_INET6" in lines[BOARD]
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3" in lines[TRAY]
    # Without joining them NCCL must not connect two planes.
    apart = on_node("nccl_conf", BOARD, True, extra={"NCCL_IB_MERGE_NICS": "0"}, nccl_version="2.30.7")["variables"]
    assert apart["NCCL_IB_HCA"].endswith(",mlx5_14:1:7:0,mlx5_15:1:7:1")


def test_the_kernels_argument_has_one_owner(converged: Path, on_node: Answer) -> None:
    other = converged / TRAY / "sys/etc/default/grub.d/config-acs.cfg"
    other.write_text('GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci=config_acs=\\"xx000x0@0008:02:00.0\\""\n')
    [found] = on_node("pcie_path", TRAY)["findings"]
    other.unlink()
    assert (found["check"], found["state"]) == ("pcie_path.argument", "not_owned")
    assert "/etc/default/grub.d/config-acs.cfg" in found["fix"]
    # The unit does not touch the bridges of Data Direct, so that taking the argument back needs another boot.
    back = on_node("pcie_path", TRAY, acs_owner="unit")
    assert (back["changed"], back["repaired"]) == (True, ["pcie_path.argument[persisted]@pci=config_acs"])
    assert "config_acs" not in (converged / TRAY / "sys/boot/grub/grub.cfg").read_text()
    assert not on_node("pcie_path", TRAY, acs_owner="unit", check_mode=True)["changed"]
    assert on_node("pcie_path", TRAY, max_disruption="reboot")["changed"]
    assert on_node("pcie_path", TRAY, check_mode=True)["findings"] == []
    store.reboot(converged, TRAY)
    assert "config_acs=" in store.healthy(converged, TRAY).cmdline
    assert bad([on_node("pcie_path", TRAY, check_mode=True)]) == []


def test_a_ping_from_a_rail_in_a_vrf_is_sent_within_it(converged: Path) -> None:
    ends = []
    for node in (BOARD, PLAIN):
        netdev = of_rail(store.healthy(converged, node), 7)
        address = (netdev.ipv6 or "").partition("/")[0]
        ends.append(Peer(node, 7, "", netdev.name, address, 4200, netdev.master or ""))
    host = Host(str(converged / BOARD / "hw"), str(converged / BOARD / "sys"))
    inside, outside = (Ping(replace(ends[0], vrf=vrf), ends[1], 4200) for vrf in (ends[0].vrf, ""))
    found = rail_ping.ping_all(host, [inside, outside])
    assert (found[0].state, found[0].have) == ("ok", "3 of 3 came back")
    assert (found[1].state, "Network is unreachable" in (found[1].have or "")) == ("unknown", True)
