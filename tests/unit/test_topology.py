# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology

from tests import golden_rows, goldens
from tests.trees import GEN5_X16, interface, line, lines, link, pci_function, rdma_device

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


def hgx(root: Path, rails: int = 8) -> Path:
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
    return root


def read(root: Path) -> Topology:
    return topology.read(Host(str(root), str(root)))


def nic(found: Topology, name: str) -> Nic:
    """The NIC with this RDMA device, interface or address."""
    (only,) = (nic for nic in found.nics if name in nic.label.split())
    return only


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


BELOW = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0"
STORAGE = "pci0000:a0/0000:a0:01.0/0000:a1:00.0"


def moved_to_another_slot(root: Path) -> None:
    hgx(root)
    old = root / "sys/devices" / pair(root, 0)[1]
    shutil.rmtree(old)
    (root / "sys/bus/pci/devices" / old.name).unlink()
    shutil.rmtree(root / "sys/class/infiniband/mlx5_7")
    rdma(root, "mlx5_7", function(root, STORAGE, IB_NIC, 1))


def storage(root: Path) -> None:
    hgx(root, rails=1)
    card = function(root, STORAGE, NIC, 0)
    rdma(root, "mlx5_8", card, "Ethernet")
    netdev(root, "ens9np0", card)


def virtual_function_beside_a_gpu(root: Path) -> None:
    hgx(root, rails=1)
    vf = function(root, pair(root, 0)[1][:-1] + "2", ("0x020700", "15b3:101e"))
    (vf / "physfn").symlink_to("../0000:14:00.0")
    rdma(root, "mlx5_20", vf)
    netdev(root, "eno9", vf)
    route(root, "eno9")


def virtual_function_in_a_guest(root: Path) -> None:
    line(root / "proc/cpuinfo", "flags\t: hypervisor")
    rdma(root, "mlx5_0", function(root, "pci0101:00/0101:00:02.0", ("0x020700", "15b3:101e"), -1))


def default_route_above_vlan_and_bond(root: Path) -> None:
    hgx(root, rails=1)
    netdev(root, "bond0")
    (root / "sys/class/net/bond0/bonding").mkdir()
    netdev(root, "bond0.7")
    link(root / "sys/class/net/bond0.7/lower_bond0", root / "sys/class/net/bond0")
    for number in (0, 1):
        member = function(root, STORAGE[:-1] + str(number), NIC)
        netdev(root, "ens9f%d" % number, member, master="bond0")
        if number == 0:
            rdma(root, "mlx5_bond_0", member, "Ethernet")
    route(root, "bond0.7", "eno1")


def bond_without_a_route(root: Path) -> None:
    default_route_above_vlan_and_bond(root)
    route(root, "eno1")


def bond_without_a_member(root: Path) -> None:
    bond_without_a_route(root)
    shutil.rmtree(root / "sys/class/net/ens9f0")


def interfaces_below_each_other(root: Path) -> None:
    hgx(root, rails=1)
    for name, lower in (("a", "b"), ("b", "a")):
        netdev(root, name)
        link(root / "sys/class/net" / name / ("lower_" + lower), root / "sys/class/net" / lower)
    route(root, "a")


def down(root: Path) -> None:
    hgx(root, rails=3)
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    lines(port, {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "2.5 Gb/sec (1X SDR)"})
    line(root / "sys/class/infiniband/mlx5_1/ports/1/state", "")
    shutil.rmtree(root / "sys/class/infiniband/mlx5_2/ports")
    line(root / "sys/class/net/eno1/operstate", "down")
    route(root)


def truncated_files(root: Path) -> None:
    hgx(root, rails=4)
    line(root / "sys/devices" / pair(root, 0)[0] / "numa_node", "")
    line(root / "sys/class/infiniband/mlx5_2/ports/1/rate", "")
    shutil.rmtree(root / "sys/class/infiniband/mlx5_0/ports")
    line(root / "sys/class/net/eno1/mtu", "")


def guest_with_everything_on_the_root_bus(root: Path) -> None:
    for slot in range(6, 14):
        function(root, "pci0000:00/0000:00:%02x.0" % slot, ("0x030200", "10de:2335"), -1)
    rdma(root, "mlx5_0", function(root, "pci0000:00/0000:00:0e.0", IB_NIC, -1))
    rdma(root, "mlx5_1", function(root, "pci0000:00/0000:00:0f.0", NIC, -1), "Ethernet")
    virtio = function(root, "pci0000:00/0000:00:03.0", ("0x020000", "1af4:1041"), -1) / "virtio2"
    virtio.mkdir()
    netdev(root, "eth0", virtio)
    line(root / "proc/cpuinfo", "flags\t: hypervisor")
    route(root, "eth0")


def no_driver_and_a_usb_controller(root: Path) -> None:
    """Neither is a NIC."""
    function(root, STORAGE, NIC)
    usb = function(root, "pci0000:00/0000:00:14.0", ("0x0c0330", "8086:1bcd"))
    (usb / "usb1/1-1").mkdir(parents=True)
    netdev(root, "usb0", usb / "usb1/1-1")
    netdev(root, "odd0", usb)


def software_rdma(root: Path) -> None:
    """It is kept apart even where it points at a NIC."""
    card = function(root, STORAGE, NIC)
    rdma(root, "mlx5_1", card, "Ethernet")
    rdma(root, "a_siw", card, "Ethernet")
    for name in ("hca_type", "board_id"):
        (root / "sys/class/infiniband/a_siw" / name).unlink()
    rdma(root, "rxe0", card, "Ethernet")
    line(root / "sys/class/infiniband/rxe0/parent", "eth0")


BUILDERS: tuple[Callable[[Path], None], ...] = (
    *(moved_to_another_slot, storage, virtual_function_beside_a_gpu, virtual_function_in_a_guest),
    *(default_route_above_vlan_and_bond, bond_without_a_route, bond_without_a_member, interfaces_below_each_other),
    *(down, truncated_files, guest_with_everything_on_the_root_bus, no_driver_and_a_usb_controller, software_rdma),
)
CASES: dict[str, Callable[[Path], object]] = {
    "eight pairs": hgx,
    "empty": lambda root: None,
    "function unread": lambda root: line(hgx(root, 1) / "sys/devices" / pair(root, 0)[1] / "vendor", ""),
    "behind a second switch": lambda root: rdma(hgx(root, 1), "mlx5_9", function(root, BELOW, NIC), "Ethernet"),
    "no gpu": lambda root: rdma(root, "mlx5_0", function(root, STORAGE, NIC), "Ethernet"),
    "rdma function of another class": lambda root: rdma(
        root, "mlx5_0", function(root, STORAGE, ("0x0b4000", "15b3:a2dc"))
    ),
    **{build.__name__.replace("_", " "): build for build in BUILDERS},
}


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_of_a_machine(tmp_path: Path, name: str) -> None:
    CASES[name](tmp_path)
    found = read(tmp_path)
    rows: list[Any] = [[nic.label, nic.role, golden_rows.values(nic.reason)] for nic in found.nics]
    rows += [[gpu.pci, " ".join(found.paths[gpu.pci, nic.pci] for nic in found.nics)] for gpu in found.gpus]
    rows += [["software", device.name] for device in found.software_rdma]
    rows += [["problem", problem.source, golden_rows.values(problem.message)] for problem in found.problems]
    goldens.check("topology", name, [*rows, ["guest", found.virtualization.is_vm]])


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"[Unknown Error]\n", b"\x1b[31m0\n"])
def test_no_single_damaged_file_stops_the_reading(tmp_path: Path, damage: bytes) -> None:
    hgx(tmp_path, rails=1)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files:
        good = path.read_bytes()
        path.write_bytes(damage)
        found = read(tmp_path)
        assert "\x1b" not in json.dumps([str(problem) for problem in found.problems], ensure_ascii=False)
        path.write_bytes(good)
    assert problems(read(tmp_path)) == []
