# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology

from tests.trees import GEN5_X16, interface, line, link, pci_function, rdma_device

GPU = ("0x030200", "10de:2330")
NIC = ("0x020000", "15b3:1021")
IB_NIC = ("0x020700", "15b3:1021")
BRIDGE = ("0x060400", "1000:c030")
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
ROUTE = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def function(root: Path, chain: str, kind: tuple[str, str], numa: int = 0) -> Path:
    """A PCI function with a Gen5 x16 link; ``chain`` is its path below /sys/devices."""
    return pci_function(root, chain, *kind, numa_node=str(numa), **GEN5_X16)


def rdma(root: Path, name: str, nic: Path, layer: str = "InfiniBand", gids: int = 8, **port: str) -> None:
    path = rdma_device(root, name, nic, link_layer=layer, **port) / "ports/1"
    for index in range(gids):
        line(path / "gids" / str(index), MAPPED if index == 3 else ":".join(["0000"] * 8))
    line(path / "gid_attrs/types/3", "RoCE v2")


def netdev(root: Path, name: str, nic: Path | None = None, master: str | None = None, **files: str) -> None:
    path = interface(root, name, nic, **files)
    if master is not None:
        link(path / "master", root / "sys/class/net" / master)
        link(root / "sys/class/net" / master / ("lower_" + name), path)


def route(root: Path, *netdevs: str) -> None:
    lines = ("%s\t00000000\t010200C0\t0003\t0\t0\t%d\t00000000\t0\t0\t0" % pair[::-1] for pair in enumerate(netdevs))
    line(root / "proc/net/route", ROUTE + "\n".join(lines))


def pair(root: Path, number: int) -> tuple[str, str]:
    """Where GPU and NIC of a rail hang: on two downstream ports of one switch. Rails 0 to 3 are on NUMA node 0."""
    bus = 0x10 + 0x10 * number
    up = "pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0" % (bus, bus, bus + 1)
    for part in (up.rsplit("/", 1)[0], up, up + "/0000:%02x:00.0" % (bus + 2), up + "/0000:%02x:01.0" % (bus + 2)):
        if not (root / "sys/devices" / part / "class").exists():
            function(root, part, BRIDGE, number // 4)
    return (
        up + "/0000:%02x:00.0/0000:%02x:00.0" % (bus + 2, bus + 3),
        up + "/0000:%02x:01.0/0000:%02x:00.0" % (bus + 2, bus + 4),
    )


def hgx(root: Path, rails: int = 8) -> None:
    """GPUs and InfiniBand NICs by pairs, mlx5 numbers against the PCI order, and a management port on eno1."""
    for number in range(rails):
        gpu, nic = pair(root, number)
        function(root, gpu, GPU, number // 4)
        rdma(root, "mlx5_%d" % (rails - 1 - number), function(root, nic, IB_NIC, number // 4))
    netdev(root, "eno1", function(root, "pci0000:00/0000:00:1c.0/0000:01:00.0", ("0x020000", "8086:1533")))
    netdev(root, "lo", address="00:00:00:00:00:00")
    function(root, "pci0000:00/0000:00:1c.0", BRIDGE)
    line(root / "proc/cpuinfo", "flags\t: fpu")
    route(root, "eno1")


def read(root: Path) -> Topology:
    return topology.read(Host(str(root), str(root)))


def nic(found: Topology, name: str) -> Nic:
    """The NIC with this RDMA device, interface or address."""
    (only,) = (nic for nic in found.nics if name in nic.label.split())
    return only


def role(found: Topology, name: str) -> tuple[str, str]:
    return nic(found, name).role, nic(found, name).reason


def problems(found: Topology) -> list[str]:
    """Without the one that every tree here has: there is no NVIDIA driver."""
    return [str(problem) for problem in found.problems if "nvidia" not in problem.source]


@pytest.mark.parametrize(
    ("rails", "vpd", "nvswitches", "expected"),
    [
        # HGX B200: rails are of the same type, and the VPD decides.
        ("MT4129", "\x82\0\x90SMDL=SW_MNG\xff", False, True),
        ("MT4129", "\x82\0\x90PN MCX75310AAS-NEAT", False, False),
        ("MT4129", None, False, False),
        # HGX B300: rails are ConnectX-8.
        ("MT4131", None, False, True),
        ("MT4131", "SMDL=SW_MNG", False, True),
        ("MT4131", "PN MCX75310AAS-NEAT", False, False),
        # HGX H100 shows its NVSwitches.
        ("MT4129", "SMDL=SW_MNG", True, False),
    ],
)
def test_a_nic_that_manages_nvswitches_is_no_rail(
    tmp_path: Path, hgx_h100: Profile, rails: str, vpd: str | None, nvswitches: bool, expected: bool
) -> None:
    hgx(tmp_path)
    for number in range(8):
        line(tmp_path / f"sys/class/infiniband/mlx5_{number}/hca_type", rails)
    # Behind the switch of GPU 3 and its rail.
    where = pair(tmp_path, 3)[1].replace("0000:44:00.0", "0000:44:00.1")
    rdma(tmp_path, "mlx5_8", function(tmp_path, where, IB_NIC, 0))
    line(tmp_path / "sys/class/infiniband/mlx5_8/hca_type", "MT4129")
    if vpd is not None:
        (tmp_path / "sys/devices" / where / "vpd").write_bytes(vpd.encode("latin-1"))
    if nvswitches:
        line(tmp_path / "proc/driver/nvidia-nvswitch/devices/0000:c1:00.0", "x")
    found = read(tmp_path)
    assert nic(found, "mlx5_8").role == ("nvswitch" if expected else "compute")
    assert len(match(found, hgx_h100).nics) == (8 if expected else 7)


STORAGE = "pci0000:a0/0000:a0:01.0/0000:a1:00.0"


def test_eight_pairs_are_all_pix_and_compute(tmp_path: Path) -> None:
    hgx(tmp_path)
    found = read(tmp_path)
    assert problems(found) == []
    assert len(found.gpus) == 8
    compute = [nic for nic in found.nics if nic.role == "compute"]
    assert [nic.label for nic in compute] == ["0000:%02x:00.0 mlx5_%d" % (0x14 + 16 * n, 7 - n) for n in range(8)]
    for number, gpu in enumerate(found.gpus):
        seen = [found.paths[gpu.pci, nic.pci] for nic in compute]
        near_numa = range(4) if number < 4 else range(4, 8)
        assert seen == ["PIX" if n == number else "NODE" if n in near_numa else "SYS" for n in range(8)]
    assert role(found, "mlx5_7") == ("compute", "InfiniBand; nearest GPU 0000:13:00.0 (PIX)")
    assert role(found, "eno1") == ("management", "eno1 carries the IPv4 default route of eno1 (metric 0)")


def test_nic_moved_to_another_slot_is_no_compute_nic(tmp_path: Path) -> None:
    hgx(tmp_path)
    old = tmp_path / "sys/devices" / pair(tmp_path, 0)[1]
    shutil.rmtree(old)
    (tmp_path / "sys/bus/pci/devices" / old.name).unlink()
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_7")
    rdma(tmp_path, "mlx5_7", function(tmp_path, STORAGE, IB_NIC, 1))
    found = read(tmp_path)
    assert found.paths["0000:13:00.0", "0000:a1:00.0"] == "SYS"
    assert role(found, "mlx5_7") == ("storage", "InfiniBand; nearest GPU 0000:53:00.0 (NODE)")


def test_nic_behind_a_second_switch_is_compute_by_pxb(tmp_path: Path) -> None:
    hgx(tmp_path, rails=1)
    below = pair(tmp_path, 0)[1].rsplit("/", 1)[0] + "/0000:18:00.0/0000:19:00.0/0000:1a:00.0"
    rdma(tmp_path, "mlx5_9", function(tmp_path, below, NIC), "Ethernet")
    assert role(read(tmp_path), "mlx5_9") == ("compute", "Ethernet; nearest GPU 0000:13:00.0 (PXB)")


def test_storage_nic_says_its_link_layer_and_path(tmp_path: Path) -> None:
    hgx(tmp_path)
    storage = function(tmp_path, STORAGE, NIC, 0)
    rdma(tmp_path, "mlx5_8", storage, "Ethernet")
    netdev(tmp_path, "ens9np0", storage)
    found = read(tmp_path)
    assert role(found, "mlx5_8") == ("storage", "Ethernet; nearest GPU 0000:13:00.0 (NODE)")
    assert nic(found, "mlx5_8").label == "0000:a1:00.0 mlx5_8 ens9np0"


def test_virtual_function_is_vf_even_beside_a_gpu(tmp_path: Path) -> None:
    hgx(tmp_path)
    chain = pair(tmp_path, 0)[1]
    vf = function(tmp_path, chain[:-1] + "2", ("0x020700", "15b3:101e"))
    (vf / "physfn").symlink_to("../0000:14:00.0")
    rdma(tmp_path, "mlx5_20", vf)
    netdev(tmp_path, "eno9", vf)
    route(tmp_path, "eno9")
    assert role(read(tmp_path), "mlx5_20") == ("vf", "virtual function of 0000:14:00.0")


def test_virtual_function_in_a_guest_is_known_by_its_device_id(tmp_path: Path) -> None:
    line(tmp_path / "proc/cpuinfo", "flags\t: hypervisor")
    rdma(tmp_path, "mlx5_0", function(tmp_path, "pci0101:00/0101:00:02.0", ("0x020700", "15b3:101e"), -1))
    what, reason = role(read(tmp_path), "mlx5_0")
    assert what == "vf"
    assert reason.startswith("15b3:101e is a ConnectX virtual function")


def test_default_route_above_vlan_and_bond_makes_both_members_management(tmp_path: Path) -> None:
    hgx(tmp_path, rails=1)
    netdev(tmp_path, "bond0")
    (tmp_path / "sys/class/net/bond0/bonding").mkdir()
    netdev(tmp_path, "bond0.7")
    link(tmp_path / "sys/class/net/bond0.7/lower_bond0", tmp_path / "sys/class/net/bond0")
    for number in (0, 1):
        member = function(tmp_path, STORAGE[:-1] + str(number), NIC)
        netdev(tmp_path, "ens9f%d" % number, member, master="bond0")
        if number == 0:
            rdma(tmp_path, "mlx5_bond_0", member, "Ethernet")
    route(tmp_path, "bond0.7", "eno1")
    found = read(tmp_path)
    assert role(found, "mlx5_bond_0") == ("management", "ens9f0 carries the IPv4 default route of bond0.7 (metric 0)")
    assert role(found, "ens9f1")[0] == "management"
    assert role(found, "eno1") == ("storage", "no RDMA device; nearest GPU 0000:13:00.0 (NODE)")
    route(tmp_path, "eno1")
    found = read(tmp_path)
    assert role(found, "mlx5_bond_0") == ("bond", "ens9f0 is a member of bond0")
    assert role(found, "ens9f1") == ("bond", "ens9f1 is a member of bond0")
    shutil.rmtree(tmp_path / "sys/class/net/ens9f0")
    assert role(read(tmp_path), "mlx5_bond_0") == ("bond", "RDMA device mlx5_bond_0 spans the ports of a bond")


def test_interfaces_that_lie_below_each_other_end_the_search(tmp_path: Path) -> None:
    hgx(tmp_path, rails=1)
    for name, lower in (("a", "b"), ("b", "a")):
        netdev(tmp_path, name)
        link(tmp_path / "sys/class/net" / name / ("lower_" + lower), tmp_path / "sys/class/net" / lower)
    route(tmp_path, "a")
    assert role(read(tmp_path), "eno1")[0] == "storage"


def test_down_port_is_down_and_names_the_nearest_gpu(tmp_path: Path) -> None:
    hgx(tmp_path)
    port = tmp_path / "sys/class/infiniband/mlx5_5/ports/1"
    line(port / "state", "1: DOWN")
    line(port / "phys_state", "3: Disabled")
    line(port / "rate", "2.5 Gb/sec (1X SDR)")
    found = read(tmp_path)
    assert role(found, "mlx5_5") == (
        "down",
        "mlx5_5 has no ACTIVE port: port 1 is DOWN (Disabled); nearest GPU 0000:33:00.0 (PIX)",
    )
    line(port / "state", "")
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_6/ports")
    line(tmp_path / "sys/class/net/eno1/operstate", "down")
    route(tmp_path)
    found = read(tmp_path)
    assert "port 1 is in an unreadable state (Disabled)" in role(found, "mlx5_5")[1]
    assert "mlx5_6 has no ACTIVE port: it shows none" in role(found, "mlx5_6")[1]
    assert role(found, "eno1") == ("down", "eno1 is down; nearest GPU 0000:13:00.0 (NODE)")
    assert len(problems(found)) == 2


def test_truncated_files_cost_their_value_and_no_more(tmp_path: Path) -> None:
    hgx(tmp_path)
    gpu = tmp_path / "sys/devices" / pair(tmp_path, 0)[0]
    line(gpu / "numa_node", "")
    line(tmp_path / "sys/class/infiniband/mlx5_6/ports/1/rate", "")
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_0/ports")
    line(tmp_path / "sys/class/net/eno1/mtu", "")
    found = read(tmp_path)
    assert len(found.gpus) == 8
    assert len(found.nics) == 9
    assert found.paths["0000:13:00.0", "0000:14:00.0"] == "PIX"
    assert found.paths["0000:13:00.0", "0000:24:00.0"] == "SYS"  # no NUMA node to say NODE
    assert nic(found, "mlx5_6").role == "compute"
    assert sorted(problem.split(": ")[0] for problem in problems(found)) == [
        "/sys/bus/pci/devices/0000:13:00.0/numa_node",
        "/sys/class/infiniband/mlx5_0/ports",
        "/sys/class/infiniband/mlx5_6/ports/1/rate",
        "/sys/class/net/eno1/mtu",
    ]


def test_guest_with_everything_on_the_root_bus_goes_by_link_layer(tmp_path: Path) -> None:
    for slot in range(6, 14):
        function(tmp_path, "pci0000:00/0000:00:%02x.0" % slot, ("0x030200", "10de:2335"), -1)
    rdma(tmp_path, "mlx5_0", function(tmp_path, "pci0000:00/0000:00:0e.0", IB_NIC, -1))
    rdma(tmp_path, "mlx5_1", function(tmp_path, "pci0000:00/0000:00:0f.0", NIC, -1), "Ethernet")
    virtio = function(tmp_path, "pci0000:00/0000:00:03.0", ("0x020000", "1af4:1041"), -1) / "virtio2"
    virtio.mkdir()
    netdev(tmp_path, "eth0", virtio)
    line(tmp_path / "proc/cpuinfo", "flags\t: hypervisor")
    route(tmp_path, "eth0")
    found = read(tmp_path)
    assert problems(found) == []
    assert found.virtualization.is_vm
    assert set(found.paths.values()) == {"PHB"}
    assert [(nic.pci, nic.role) for nic in found.nics] == [
        ("0000:00:03.0", "management"),
        ("0000:00:0e.0", "compute"),
        ("0000:00:0f.0", "storage"),
    ]
    assert "shows no NIC near a GPU" in nic(found, "mlx5_0").reason


def test_machine_without_gpus_says_so_in_the_reasons(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", function(tmp_path, STORAGE, NIC), "Ethernet")
    assert role(read(tmp_path), "mlx5_0") == ("storage", "Ethernet; no GPU on this machine")


def test_network_function_without_driver_and_usb_controller_with_a_netdev_are_no_nics(tmp_path: Path) -> None:
    function(tmp_path, STORAGE, NIC)
    usb = function(tmp_path, "pci0000:00/0000:00:14.0", ("0x0c0330", "8086:1bcd"))
    (usb / "usb1/1-1").mkdir(parents=True)
    netdev(tmp_path, "usb0", usb / "usb1/1-1")
    netdev(tmp_path, "odd0", usb)
    assert read(tmp_path).nics == ()


def test_rdma_function_of_any_class_is_a_nic(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", function(tmp_path, STORAGE, ("0x0b4000", "15b3:a2dc")))
    assert [nic.label for nic in read(tmp_path).nics] == ["0000:a1:00.0 mlx5_0"]


def test_software_rdma_is_kept_apart_even_where_it_points_at_a_nic(tmp_path: Path) -> None:
    card = function(tmp_path, STORAGE, NIC)
    rdma(tmp_path, "mlx5_1", card, "Ethernet")
    rdma(tmp_path, "a_siw", card, "Ethernet")
    for name in ("hca_type", "board_id"):
        (tmp_path / "sys/class/infiniband/a_siw" / name).unlink()
    rdma(tmp_path, "rxe0", card, "Ethernet")
    line(tmp_path / "sys/class/infiniband/rxe0/parent", "eth0")
    found = read(tmp_path)
    assert [nic.label for nic in found.nics] == ["0000:a1:00.0 mlx5_1"]
    assert [device.name for device in found.software_rdma] == ["rxe0", "a_siw"]


def test_rdma_device_whose_function_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    hgx(tmp_path, rails=1)
    line(tmp_path / "sys/devices" / pair(tmp_path, 0)[1] / "vendor", "")
    found = read(tmp_path)
    assert [nic.label for nic in found.nics] == ["0000:01:00.0 eno1"]
    assert problems(found)[-1] == (
        "/sys/class/infiniband/mlx5_0: is left out: its PCI function 0000:14:00.0 could not be read"
    )


def test_empty_tree_gives_an_empty_topology_with_problems(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.gpus, found.nics, found.paths) == ((), (), {})
    assert len(found.problems) >= 3


def test_dict_is_small_json_with_what_a_person_wants(tmp_path: Path) -> None:
    hgx(tmp_path)
    rail = tmp_path / "sys/devices" / pair(tmp_path, 0)[1]
    netdev(tmp_path, "ibp20s0", rail, type="32", mtu="4092")
    line(rail / "current_link_width", "8")
    data = json.loads(json.dumps(topology.to_dict(read(tmp_path))))
    assert sorted(data) == ["driver", "gpus", "nics", "paths", "problems", "software_rdma", "virtualization"]
    assert data["paths"]["0000:13:00.0"]["0000:14:00.0"] == "PIX"
    assert data["virtualization"]["is_vm"] is False
    assert data["nics"][1] == {
        "pci": "0000:14:00.0",
        "role": "compute",
        "reason": "InfiniBand; nearest GPU 0000:13:00.0 (PIX)",
        "rdma": "mlx5_7",
        "firmware": "28.41.1000",
        "ports": [
            {
                "number": 1,
                "state": "ACTIVE",
                "phys_state": "LinkUp",
                "rate_gbps": 400.0,
                "link_layer": "InfiniBand",
                "gids": 1,
                "rocev2_ipv4_gid_index": 3,
            }
        ],
        "netdevs": [{"name": "ibp20s0", "mtu": 4092}],
        "numa_node": 0,
        "pcie": {"current_speed_gts": 32.0, "current_width": 8, "max_speed_gts": 32.0, "max_width": 16},
    }


def test_a_big_node_is_read_whole_and_its_cpu_time_is_printed(tmp_path: Path) -> None:
    hgx(tmp_path)
    for number in range(8):
        path = tmp_path / "sys/class/infiniband" / ("mlx5_%d" % number)
        shutil.rmtree(path)
        rdma(tmp_path, path.name, tmp_path / "sys/devices" / pair(tmp_path, 7 - number)[1], gids=256)
    for number in range(4):
        card = function(tmp_path, STORAGE[:-1] + str(number), NIC)
        rdma(tmp_path, "mlx5_%d" % (8 + number), card, "Ethernet", gids=256)
    for number in range(100):
        function(tmp_path, "pci0000:f0/0000:f0:%02x.%d" % divmod(number, 8), ("0x088000", "8086:3456"))
    start = time.process_time()
    found = read(tmp_path)
    spent = time.process_time() - start
    assert (len(found.gpus), len(found.nics)) == (8, 13)
    print("8 GPUs, 13 NICs, 12 tables of 256 GIDs, 100 other functions: %.3f s CPU" % spent)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"[Unknown Error]\n", b"\x1b[31m0\n"])
def test_no_single_damaged_file_stops_the_reading(tmp_path: Path, damage: bytes) -> None:
    hgx(tmp_path, rails=1)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files:
        good = path.read_bytes()
        path.write_bytes(damage)
        found = read(tmp_path)
        assert "\x1b" not in json.dumps(topology.to_dict(found), ensure_ascii=False)
        path.write_bytes(good)
    assert problems(read(tmp_path)) == []
