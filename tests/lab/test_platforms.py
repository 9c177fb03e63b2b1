# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Clouds' nodes, trays, and boards with ConnectX-8 have nothing to report once converged; what only they can have is.

HGX B300 has planes, IPv6 and VRFs, a tray of GB300 Data Direct.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import Peer, Ping
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import nvl72, store, tree
from lab.blackwell import gb300, hgx_b300
from lab.machine import ETHERNET, NO_LINK, Function, HostBridge, Machine
from lab.machines import azure_nd_h100_v5, gb200, oci_bm_gpu_h100_8, topology_file
from lab.toolkit import iproute
from tests.trees import put_all

from .conftest import ROOT, read_yaml

MODULES = tuple(role.module for role in suite.AUDITED.values() if role.module not in ("nccl_tests_build", "nccl_perf"))
GUEST, METAL, TRAY, BOARD, PLAIN, DIRECT = "azure01", "oci01", "tray01", "board01", "board02", "tray21"
TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"
Answer = Callable[..., dict[str, Any]]
Change = Callable[[Machine], object]


def without_vrfs(hostname: str) -> Machine:
    return hgx_b300(hostname, in_vrfs=False)


LAB = {
    GUEST: azure_nd_h100_v5,
    METAL: oci_bm_gpu_h100_8,
    TRAY: gb200,
    BOARD: hgx_b300,
    PLAIN: without_vrfs,
    DIRECT: gb300,
}
OF_TRAYS = {
    *("imex.service", "imex.nodes", "imex.state", "imex.channel", "imex.domain", "node_health.page_size"),
    *("iommu.platform_args", "gpudirect.driver_options"),
}
# What of a node passes, and what is never asked there.
HEALTHY: dict[str, tuple[set[str], set[str]]] = {
    GUEST: ({"nccl_conf.topo_file"}, set()),
    # Of its paths nothing is published.
    METAL: ({"platform.rail_state", "platform.gpu_pcie"}, {"platform.rail_path"}),
    TRAY: (OF_TRAYS, {"node_health.fabric_manager"}),
    BOARD: ({"multirail.vrf", "platform.rail_gid", "pcie_path.acs"}, {"multirail.rules", "platform.rail_plane"}),
    PLAIN: ({"multirail.rules", "platform.rail_path"}, {"multirail.vrf", "platform.rail_data_direct"}),
    DIRECT: (OF_TRAYS | {"platform.rail_data_direct", "pcie_path.argument", "pcie_path.acs"}, {"platform.rail_plane"}),
}
# Words of notes, by module.
NOTES = {
    GUEST: dict.fromkeys(("topology_info", "iommu", "pcie_path"), "(Azure, hyper-v)"),
    METAL: {"topology_info": "bare metal of OCI: its agent"},
}


def show(lab: Path, machine: Machine) -> None:
    tree.write_hardware(machine, lab / machine.hostname / "hw")
    tree.write_tools(machine, lab / machine.hostname / "sys")


@pytest.fixture
def converged(own_lab: Path, on_node: Answer) -> Path:
    done = own_lab / "converged"
    if not done.exists():
        for node in LAB:
            reboots = ("iommu", "gpudirect", "pcie_path") if node in (BOARD, PLAIN, DIRECT) else ()
            more = {module: {"max_disruption": "reboot"} for module in reboots}
            assert bad([on_node(module, node, **more.get(module, {})) for module in MODULES[1:]]) == []
        done.touch()
    return own_lab


@pytest.fixture
def change(converged: Path) -> Iterator[Callable[[str, Change], None]]:
    """Changes the machine of a node, until the test ends."""
    changed: list[str] = []

    def one(node: str, what: Change) -> None:
        machine = store.healthy(converged, node)
        what(machine)
        show(converged, machine)
        changed.append(node)

    yield one
    for node in changed:
        show(converged, store.healthy(converged, node))


def system(lab: Path, path: str) -> Path:
    return lab / GUEST / "sys" / path.lstrip("/")


def bad(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Roots."""
    return [(f["check"], f["state"]) for result in results for f in result["findings"] if f["because"] is None]


@pytest.mark.parametrize("node", LAB)
def test_a_node_converges_and_has_nothing_to_report(converged: Path, on_node: Answer, node: str) -> None:
    asked, never = HEALTHY[node]
    results = {module: on_node(module, node, check_mode=True) for module in MODULES}
    assert bad(list(results.values())) == []
    assert [module for module, result in results.items() if result["changed"]] == []
    passed = {name.partition("[")[0] for result in results.values() for name in result["passed"]}
    assert (asked - passed, never & passed) == (set(), set())
    notes = {module: " ".join(results[module]["notes"]) for module in NOTES.get(node, {})}
    assert [module for module, text in notes.items() if NOTES[node][module] not in text] == []
    if node == TRAY:
        assert results["node_health"]["imex"]["nodes"] == nvl72.addresses()


def test_nccl_gets_each_rail_by_name_and_an_image_keeps_what_nobody_declares(converged: Path, on_node: Answer) -> None:
    lines = {node: (converged / node / "sys/etc/nccl.conf").read_text().splitlines() for node in LAB}
    kept = ("NCCL_IB_PCI_RELAXED_ORDERING=1", "NCCL_IGNORE_CPU_AFFINITY=1", f"NCCL_TOPO_FILE={TOPOLOGY}")
    assert {*kept, f"NCCL_IB_HCA=={','.join(f'mlx5_ib{rail}' for rail in range(8))}"} <= {*lines[GUEST]}
    # Both ports of a card, and both planes of a NIC.
    for node in (METAL, BOARD):
        assert f"NCCL_IB_HCA=={','.join(f'mlx5_{rail}' for rail in range(16))}" in lines[node]
    assert "NCCL_IB_ADDR_FAMILY=AF_INET6" in lines[BOARD]
    # No function for DMA.
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3" in lines[DIRECT]
    # Without joining them NCCL must not connect two planes.
    apart = on_node("nccl_conf", BOARD, True, extra={"NCCL_IB_MERGE_NICS": "0"}, nccl_version="2.30.7")["variables"]
    assert apart["NCCL_IB_HCA"].endswith(",mlx5_14:1:7:0,mlx5_15:1:7:1")


def test_somebody_elses_edit_is_no_part_of_the_image(converged: Path, on_node: Answer) -> None:
    path = system(converged, "/etc/nccl.conf")
    text = path.read_text()
    path.write_text(text + "NCCL_P2P_DISABLE=1\n")
    done = on_node("nccl_conf", GUEST)
    assert (done["findings"], done["repaired"]) == ([], ["nccl_conf.file[persisted]@/etc/nccl.conf"])
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("text", "state", "says"),
    [
        (None, "drift", "is not there"),
        ("another size", "drift", "it has no GPU 0001:00:00.0"),
        ("slow", "drift", "over 16 GT/s x16"),
        ("<system", "unknown", TOPOLOGY),
    ],
)
def test_a_topology_file_of_another_machine(
    converged: Path, on_node: Answer, text: str | None, state: str, says: str
) -> None:
    path = system(converged, TOPOLOGY)
    right = path.read_text()
    wrong = {"another size": right.replace("0001:00:00.0", "0004:00:00.0")}
    wrong["slow"] = topology_file(azure_nd_h100_v5(GUEST), "16.0 GT/s PCIe")
    if text is None:
        path.unlink()
    else:
        path.write_text(wrong.get(text, text))
    results = [on_node(module, GUEST, check_mode=True) for module in ("topology_info", "nccl_conf")]
    path.write_text(right)
    assert bad(results) == [("nccl_conf.topo_file", state)]
    assert says in results[1]["findings"][0]["have"]


def test_a_service_that_writes_nccl_conf_at_every_boot_is_said(converged: Path, on_node: Answer) -> None:
    unit = system(converged, "/etc/systemd/system/sku-customizations.service")
    wanted = system(converged, "/etc/systemd/system/multi-user.target.wants/sku-customizations.service")
    unit.write_text("[Service]\nType=oneshot\nExecStart=/usr/sbin/setup_sku_customizations.sh\n")
    assert bad([on_node("nccl_conf", GUEST, check_mode=True)]) == []
    wanted.symlink_to(unit)
    found = bad([on_node("nccl_conf", GUEST, check_mode=True)])
    wanted.unlink()
    assert found == [("nccl_conf.owner", "not_owned")]


def adapters_of_aws(machine: Machine) -> None:
    """An instance that somebody took for another cloud's: its adapters stand where the rails should."""
    for rail in range(8):
        machine.unplug(machine.rail(rail).address)
    machine.host_bridges.append(HostBridge("pci0000:00", -1))
    efa = ("0000:00:1e.0", "pci0000:00", ETHERNET, "0x1d0f", "0xefa2", "0x0000", "0x00", -1, None)
    machine.functions.append(Function(*efa, link=NO_LINK))


def other_argument(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.replace("numa_balancing=disable", "numa_balancing=enable")


def no_channel(machine: Machine) -> None:
    machine.driver_options["CreateImexChannel0"] = "0"


def plane(machine: Machine) -> str:
    """Return the address of the second plane of the fourth NIC."""
    return machine.rail(7).address


def vrf_is_down(machine: Machine) -> None:
    next(one for one in machine.netdevs if one.name == "vrf-rail3").operstate = "down"


def no_rule(machine: Machine) -> None:
    machine.rules[iproute.NO_VRF_RULE] = ""


def link_local_only(machine: Machine) -> None:
    machine.rail(7).gids = machine.rail(7).gids[:2]
    machine.netdev(7).ipv6 = None


def one_prefix(machine: Machine) -> None:
    """Two rails outside of VRFs: the kernel takes one way for both."""
    first, second = (ip_interface(machine.netdev(rail).ipv6 or "") for rail in (3, 4))
    address = first.network[int(second) % 2**64]
    machine.netdev(4).ipv6 = f"{address}/64"
    for gid in machine.rail(4).gids[2:]:
        gid.value = address.exploded


def function_of_another(machine: Machine) -> None:
    machine.function("0018:03:00.0").vpd = "another card"


def no_argument(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.partition(" pci=")[0]


def is_set(**values: Any) -> Change:
    """Return what sets fields of the machine."""
    return lambda machine: vars(machine).update(values)


NO_DOMAIN = f"{uuid.UUID(int=0)} 0"
# Node and change; the finding, and words of it.
FAULTS: list[tuple[str, Change, str, str, str]] = [
    (GUEST, adapters_of_aws, "platform.efa", "unsupported", ""),
    # One port of a card is a rail of its own.
    (METAL, lambda m: m.take_down(m.rail(5), "3: Disabled"), "platform.rail_state", "drift", ""),
    (TRAY, is_set(imex="stopped"), "imex.service", "drift", ""),
    (TRAY, is_set(imex="degraded"), "imex.state", "drift", ""),
    (TRAY, lambda m: setattr(m.gpus[2], "domain", NO_DOMAIN), "imex.domain", "drift", ""),
    (TRAY, is_set(page_size=4096), "node_health.page_size", "drift", ""),
    (TRAY, no_channel, "gpudirect.driver_options", "withheld", ""),
    (TRAY, other_argument, "iommu.platform_args", "withheld", ""),
    (BOARD, lambda m: m.unplug(plane(m)), "platform.rail_device", "drift", "(plane 1 of NIC 3)"),
    (BOARD, lambda m: m.take_down(m.rail(7), "2: Polling"), "platform.rail_state", "drift", "(plane 1 of NIC 3)"),
    (BOARD, vrf_is_down, "multirail.vrf", "drift", "ip link set dev vrf-rail3 up"),
    (BOARD, no_rule, "multirail.vrf", "drift", "ip -6 rule add l3mdev pref 1000"),
    (BOARD, link_local_only, "platform.rail_gid", "drift", "its interface has no address"),
    (PLAIN, one_prefix, "multirail.rules", "not_owned", "as rail 3"),
    (DIRECT, lambda m: m.unplug("0018:03:00.0"), "platform.rail_data_direct", "drift", "none of 3 such functions"),
    (DIRECT, function_of_another, "platform.rail_data_direct", "drift", "none of 4 such functions"),
    (DIRECT, no_argument, "pcie_path.argument", "withheld", "pending: the next boot will have it"),
    (DIRECT, is_set(kernel="6.8.0-60-generic"), "pcie_path.argument", "unsupported", "pcie_path_acs_owner: unit"),
]
ASKED = {
    TRAY: ("node_health", "iommu", "gpudirect"),
    **dict.fromkeys((BOARD, PLAIN, DIRECT), ("topology_info", "multirail", "pcie_path")),
}


@pytest.mark.parametrize(("node", "what", "check", "state", "says"), FAULTS)
def test_a_fault_has_one_root(
    change: Callable[[str, Change], None], on_node: Answer, node: str, what: Change, check: str, state: str, says: str
) -> None:
    change(node, what)
    results = [on_node(module, node, check_mode=True) for module in ASKED.get(node, ("topology_info",))]
    assert bad(results) == [(check, state)]
    [root] = [one for result in results for one in result["findings"] if one["because"] is None]
    assert says in " ".join(str(root[name]) for name in ("want", "have", "fix"))


def test_a_tray_whose_compute_domains_start_imex(
    converged: Path, change: Callable[[str, Change], None], on_node: Answer
) -> None:
    wanted = read_yaml((ROOT / "profiles/gb200-nvl72.yml").read_text())
    more = {"check_mode": True, "profile": {**wanted, "nvlink_domain": {"nodes": 18, "imex": "compute_domain"}}}
    assert bad([on_node("node_health", TRAY, **more)]) == [("imex.service", "drift"), ("imex.compute_domain", "drift")]
    change(TRAY, is_set(imex="stopped"))
    link = converged / TRAY / "sys/etc/systemd/system/multi-user.target.wants" / nvl72.UNIT
    target = link.readlink()
    link.unlink()
    put_all(converged / TRAY / "sys", {"/var/lib/kubelet/plugins_registry/compute-domain.nvidia.com-reg.sock": ""})
    found = bad([on_node("node_health", TRAY, **more)])
    link.symlink_to(target)
    assert found == []


def joined(machine: Machine, down: int) -> None:
    """The NIC itself joins its planes: one RDMA device of 800 Gbit/s, and an interface for each of the others."""
    machine.rdma = [one for one in machine.rdma if not one.address.endswith(".1")]
    for number, rdma in enumerate(one for one in machine.rdma if one.rail is not None):
        rdma.rail, rdma.rate = number, "800 Gb/sec (4X XDR)"
    for netdev in [one for one in machine.netdevs if (one.address or "").endswith(f"{down:x}3:00.1")]:
        netdev.operstate = "down"


@pytest.mark.parametrize(("down", "expected"), [(3, [("platform.rail_plane", "drift")]), (0xF, [])])
def test_a_plane_that_the_nic_joins_is_an_interface(
    change: Callable[[str, Change], None], on_node: Answer, down: int, expected: list[tuple[str, str]]
) -> None:
    change(PLAIN, lambda machine: joined(machine, down))
    profile = read_yaml((ROOT / "profiles/hgx-b300.yml").read_text())
    result = on_node("topology_info", PLAIN, check_mode=True, profile=profile)
    assert bad([result]) == expected
    assert sum("rail_plane" in name for name in result["passed"]) == 8 - len(expected)


def test_advice_names_the_value_that_is_not_set(converged: Path, on_node: Answer) -> None:
    ipv4 = on_node("topology_info", BOARD, address_family="ipv4")["findings"]
    assert {(one["check"], one["fix"].partition(",")[0]) for one in ipv4} == {
        ("platform.rail_gid", "set busbar_roce.address_family: ipv6")
    }
    profile = read_yaml((ROOT / "profiles/hgx-b300.yml").read_text())
    found = on_node("topology_info", BOARD, profile=profile)["findings"]
    assert len(found) == 8
    assert all("set busbar_planes" in one["have"] for one in found)
    small = on_node("pcie_path", BOARD, check_mode=True, profile={**profile, "max_read_request": 512})
    assert {one["want"] for one in small["findings"] if one["aspect"] == "live"} == {"512 bytes"}


def test_the_kernels_argument_has_one_owner(converged: Path, on_node: Answer) -> None:
    other = converged / DIRECT / "sys/etc/default/grub.d/config-acs.cfg"
    other.write_text('GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci=config_acs=\\"xx000x0@0008:02:00.0\\""\n')
    [found] = on_node("pcie_path", DIRECT)["findings"]
    other.unlink()
    assert (found["check"], found["state"]) == ("pcie_path.argument", "not_owned")
    assert "/etc/default/grub.d/config-acs.cfg" in found["fix"]
    # The unit does not touch the bridges of Data Direct, so that taking the argument back needs another boot.
    back = on_node("pcie_path", DIRECT, acs_owner="unit")
    assert (back["changed"], back["repaired"]) == (True, ["pcie_path.argument[persisted]@pci=config_acs"])
    assert "config_acs" not in (converged / DIRECT / "sys/boot/grub/grub.cfg").read_text()
    assert not on_node("pcie_path", DIRECT, acs_owner="unit", check_mode=True)["changed"]
    assert on_node("pcie_path", DIRECT, max_disruption="reboot")["changed"]
    assert on_node("pcie_path", DIRECT, check_mode=True)["findings"] == []
    store.reboot(converged, DIRECT)
    assert "config_acs=" in store.healthy(converged, DIRECT).cmdline
    assert bad([on_node("pcie_path", DIRECT, check_mode=True)]) == []


def test_a_ping_from_a_rail_in_a_vrf_is_sent_within_it(converged: Path) -> None:
    ends = []
    for node in (BOARD, PLAIN):
        netdev = store.healthy(converged, node).netdev(7)
        address = (netdev.ipv6 or "").partition("/")[0]
        ends.append(Peer(node, 7, "", netdev.name, address, 4200, netdev.master or ""))
    host = Host(str(converged / BOARD / "hw"), str(converged / BOARD / "sys"))
    inside, outside = (Ping(replace(ends[0], vrf=vrf), ends[1], 4200) for vrf in (ends[0].vrf, ""))
    found = rail_ping.ping_all(host, [inside, outside])
    assert (found[0].state, found[0].have) == ("ok", "3 of 3 came back")
    assert (found[1].state, "Network is unreachable" in (found[1].have or "")) == ("unknown", True)
