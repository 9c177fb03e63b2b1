# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated GPU nodes to start from: HGX machines with InfiniBand and with RoCE, and virtual machines.

What differs from host to host (MAC addresses, GUIDs, serial numbers) is made from the host's name.
Sources: host.md 1, 2 and 7; the captured outputs that the models' fields name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import ofed
from .machine import (
    ACS_CLEAR,
    ACS_REDIRECT,
    BRIDGE,
    EMPTY_SLOT,
    ETHERNET,
    GEN1,
    GEN3,
    GEN4,
    GEN5,
    GID_V1,
    GID_V2,
    GPU,
    INFINIBAND,
    INTEL,
    MELLANOX,
    NO_LINK,
    NVIDIA,
    NVLINK_4,
    NVLINK_5,
    VIRTIO,
    Function,
    Gid,
    Gpu,
    HostBridge,
    Link,
    Machine,
    Netdev,
    Node,
    Rdma,
    Route,
    SwitchPort,
    first,
    netdev_name,
)
from .nccl_tests import DATA
from .qos import configured

# -- what differs from host to host ----------------------------------------------------------------------------------


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def _host_number(hostname: str) -> int:
    """1-254, for addresses: the number at the end of the name, or one made from it."""
    match = re.search(r"(\d+)$", hostname)
    number = int(match.group(1)) if match else int(_digest(hostname)[:8], 16)
    return (number - 1) % 254 + 1


def _mac(hostname: str, card: int, function: int, oui: str = "b8:ce:f6") -> str:
    host = _digest("mac", hostname)
    return f"{oui}:{host[:2]}:{host[2:4]}:{card:x}{function:x}"


def _guid(mac: str) -> str:
    """Mellanox makes a GUID from a MAC address by putting 0300 in its middle."""
    digits = mac.replace(":", "")
    return _grouped(f"{digits[:6]}0300{digits[6:]}")


def _grouped(digits: str, size: int = 4) -> str:
    return ":".join(digits[i : i + size] for i in range(0, len(digits), size))


def _link_local(mac: str) -> str:
    digits = mac.replace(":", "")
    return "fe80:0000:0000:0000:" + _grouped(f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}fffe{digits[6:]}")


def _mapped(ipv4: str) -> str:
    return "0000:0000:0000:0000:0000:ffff:" + _grouped("".join(f"{int(part):02x}" for part in ipv4.split(".")))


def _roce_gids(mac: str, netdev: str, ipv4: str | None) -> list[Gid]:
    """The kernel's usual order: link-local v1, v2, then IPv4 v1, v2."""
    values = [_link_local(mac)] + ([_mapped(ipv4)] if ipv4 else [])
    pairs = [(value, kind) for value in values for kind in (GID_V1, GID_V2)]
    return [Gid(index, value, kind, netdev) for index, (value, kind) in enumerate(pairs)]


# -- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Card:
    """A kind of mlx5 card: PCI device and subsystem id, hca_type, PSID, firmware, link."""

    device: str
    subsystem: str
    hca_type: str
    board_id: str
    fw_ver: str
    link: Link


_CX7 = _Card("0x1021", "0x0041", "MT4129", "MT_0000000838", "28.43.8002", GEN5)
_CX8 = _Card("0x1023", "0x0059", "MT4131", "MT_0000001180", "40.46.3008", GEN5)
_CX6 = _Card("0x101b", "0x0007", "MT4123", "MT_0000000225", "20.43.8002", GEN4)
_CX6_DX = _Card("0x101d", "0x0016", "MT4125", "MT_0000000359", "22.43.8002", GEN4)
_BLUEFIELD3 = _Card("0xa2dc", "0x0009", "MT41692", "MT_0000000884", "32.43.8002", GEN5)
_VIRTUAL = _Card("0x101e", "0x0041", "MT4126", "MT_0000000838", "28.43.8002", NO_LINK)
_RATES = {
    100: "100 Gb/sec (4X EDR)",
    200: "200 Gb/sec (4X HDR)",
    400: "400 Gb/sec (4X NDR)",
    800: "800 Gb/sec (4X XDR)",
}


def _add(
    machine: Machine,
    address: str,
    parent: str,
    class_code: str,
    ids: tuple[str, str],
    driver: str | None,
    link: Link | None,
    subsystem: str = "0x0000",
    revision: str = "0x00",
) -> Function:
    """A function below a bridge or host bridge, on the same NUMA node."""
    above: Function | HostBridge
    if parent.startswith("pci"):
        above = first(parent, (h for h in machine.host_bridges if h.name == parent))
    else:
        above = machine.function(parent)
        above.bus = address[:7]
    function = Function(
        address, parent, class_code, *ids, subsystem, revision, above.numa_node, driver, link=link, max_link=link
    )
    machine.functions.append(function)
    return function


def _root_port(machine: Machine, host_bridge: str, device: str = "01.0", node: int | None = None) -> str:
    """A root port; with ``node``, of a new host bridge on that NUMA node."""
    if node is not None:
        machine.host_bridges.append(HostBridge(host_bridge, node))
    address = f"{host_bridge[3:]}:{device}"
    _add(machine, address, host_bridge, BRIDGE, (INTEL, "0x352a"), "pcieport", GEN5, revision="0x04").acs = ACS_CLEAR
    return address


def _switch(machine: Machine, root_port: str, bus: int, ports: int) -> list[str]:
    """A PCIe switch below a root port: the upstream port on ``bus``, the downstream ports on the next one.

    Returns the downstream ports, each with an empty slot.
    """
    upstream = f"0000:{bus:02x}:00.0"
    downstream = [f"0000:{bus + 1:02x}:{port:02x}.0" for port in range(ports)]
    for address in [upstream, *downstream]:
        parent = root_port if address == upstream else upstream
        ids = ("0x1000", "0xc030")
        port = _add(machine, address, parent, BRIDGE, ids, "pcieport", GEN5, "0x0144", "0xb0")
        if address != upstream:
            port.link, port.acs = EMPTY_SLOT, ACS_CLEAR
    return downstream


def _plug(
    machine: Machine,
    address: str,
    parent: str,
    class_code: str,
    ids: tuple[str, str],
    driver: str | None,
    link: Link,
    subsystem: str = "0x0000",
    revision: str = "0x00",
) -> Function:
    """A card in a slot: as ``_add``, and the port above it trains to the card's link."""
    function = _add(machine, address, parent, class_code, ids, driver, link, subsystem, revision)
    machine.set_link(address, link)
    return function


def _mlx5(
    machine: Machine, card: _Card, slot: int, address: str, parent: str, class_code: str, vfs: int = 0
) -> tuple[Function, str]:
    """A port of an mlx5 card. ``slot`` tells cards apart; returns the function and the port's MAC address."""
    ids = (MELLANOX, card.device)
    function = _plug(machine, address, parent, class_code, ids, "mlx5_core", card.link, card.subsystem)
    function.total_vfs, function.read_request = vfs, 4096
    return function, _mac(machine.hostname, slot, int(address[-1]))


def _rdma(machine: Machine, card: _Card, name: str, address: str, mac: str, rail: int | None, gbps: int) -> Rdma:
    ib = machine.function(address).class_code == INFINIBAND
    rdma = Rdma(
        name=name,
        address=address,
        rail=rail,
        node_guid=_guid(mac),
        sys_image_guid=_guid(f"{mac[:-1]}0"),  # one for the whole card
        hca_type=card.hca_type,
        board_id=card.board_id,
        fw_ver=card.fw_ver,
        link_layer="InfiniBand" if ib else "Ethernet",
        rate=_RATES[gbps],
        gid_slots=8 if ib else 256,
        gids=[Gid(0, f"fe80:0000:0000:0000:{_guid(mac)}", GID_V1, None)] if ib else [],
        lid=int(_digest("lid", mac)[:3], 16) + 2 if ib else 0,
        sm_lid=1 if ib else 0,
    )
    machine.rdma.append(rdma)
    return rdma


def _port(
    machine: Machine,
    card: _Card,
    name: str,
    slot: int,
    address: str,
    parent: str,
    gbps: int,
    rail: int | None = None,
    dual: bool = False,
    ipv4: str = "",
) -> Rdma:
    """A port with its netdev: RoCE with an IPv4 address; without, on an InfiniBand fabric, and the netdev is IPoIB."""
    _, mac = _mlx5(machine, card, slot, address, parent, ETHERNET if ipv4 else INFINIBAND, vfs=16)
    rdma = _rdma(machine, card, name, address, mac, rail, gbps)
    if not ipv4:
        hardware = "00:00:10:29:fe:80:00:00:00:00:00:00:" + _grouped(rdma.node_guid.replace(":", ""), 2)
        ipoib = Netdev(netdev_name(address, 32, None, dual), address, hardware, 4092, gbps * 1000, kind=32)
        machine.netdevs.append(ipoib)
        return rdma
    port_name = f"p{address[-1]}"
    netdev = netdev_name(address, 1, port_name, dual)
    port = Netdev(netdev, address, mac, 9000, gbps * 1000, port_name=port_name, qos=configured(), ipv4=f"{ipv4}/24")
    machine.netdevs.append(port)
    rdma.gids = _roce_gids(mac, netdev, ipv4)
    machine.routes.append(Route(netdev, _network(ipv4)))
    return rdma


def _network(ipv4: str) -> str:
    return ipv4.rsplit(".", 1)[0] + ".0/24"


def _virtual_functions(machine: Machine, owner: Rdma, slot: int, names: Sequence[str]) -> None:
    """SR-IOV functions of a PF, each with an RDMA device and a netdev of its own."""
    above = machine.function(owner.address)
    for index, name in enumerate(names):
        address = f"{owner.address[:-1]}{index + 2}"
        function = _add(
            machine, address, above.parent, ETHERNET, (MELLANOX, _VIRTUAL.device), "mlx5_core", NO_LINK, above.subsystem
        )
        function.max_link, function.physfn = above.max_link, above.address
        mac = _mac(machine.hostname, slot, index + 2)
        netdev = f"{netdev_name(above.address, 1, None, True)}v{index}"
        machine.netdevs.append(Netdev(netdev, address, mac, 1500, 200000))
        _rdma(machine, _VIRTUAL, name, address, mac, None, 200).gids = _roce_gids(mac, netdev, None)


def _bond(machine: Machine, card: _Card, slot: int, base: str, parent: str, gbps: int, ipv4: str) -> None:
    """Both ports of a card in one LAG: one RDMA device, mlx5_bond_0, on the first function, and bond0 above both."""
    shared = _mac(machine.hostname, slot, 0)
    for index in range(2):
        address = f"{base}.{index}"
        _, mac = _mlx5(machine, card, slot, address, parent, ETHERNET)
        name = netdev_name(address, 1, f"p{index}", True)
        # A slave shows the bond's MAC address.
        slave = Netdev(name, address, shared, 9000, gbps * 1000, port_name=f"p{index}", master="bond0")
        slave.qos, slave.permanent = configured(), mac
        machine.netdevs.append(slave)
    rdma = _rdma(machine, card, "mlx5_bond_0", f"{base}.0", shared, None, gbps)
    rdma.gids = _roce_gids(shared, "bond0", ipv4)
    bond = Netdev("bond0", None, shared, 9000, 2 * gbps * 1000, bond_mode="802.3ad 4", ipv4=f"{ipv4}/24")
    machine.netdevs.append(bond)
    machine.routes.append(Route("bond0", _network(ipv4)))


def _management(machine: Machine, base: str, ids: tuple[str, str], driver: str, names: Sequence[str]) -> None:
    """A two-port Ethernet card without RDMA: the default route on the first port, nothing plugged into the second."""
    port = _root_port(machine, "pci0000:00", "1d.0")
    for index, name in enumerate(names):
        address = f"{base}.{index}"
        _plug(machine, address, port, ETHERNET, ids, driver, Link(GEN3.speed, 4), revision="0x01")
        mac = _mac(machine.hostname, 0, index, oui="3c:ec:ef")
        speed, state = (10000, "up") if index == 0 else (None, "down")
        ipv4 = f"10.0.0.{_host_number(machine.hostname)}/24" if index == 0 else None
        machine.netdevs.append(Netdev(name, address, mac, 1500, speed, operstate=state, ipv4=ipv4))
    machine.routes += [
        Route(names[0], "0.0.0.0/0", "10.0.0.254", metric=100),
        Route(names[0], "10.0.0.0/24", metric=100),
    ]


@dataclass(frozen=True)
class _GpuModel:
    device: str
    subsystem: str
    name: str
    memory_mib: int
    vbios: str
    nvlink_gbps: str = NVLINK_4


_H100 = _GpuModel("0x2330", "0x16c1", "NVIDIA H100 80GB HBM3", 81559, "96.00.89.00.01")
_H200 = _GpuModel("0x2335", "0x18be", "NVIDIA H200", 143771, "96.00.A5.00.1A")
_B200 = _GpuModel("0x2901", "0x1999", "NVIDIA B200", 183359, "97.00.82.00.0F", NVLINK_5)


def _gpu(machine: Machine, model: _GpuModel, number: int, address: str, parent: str) -> None:
    ids = (NVIDIA, model.device)
    _plug(machine, address, parent, GPU, ids, "nvidia", GEN5, model.subsystem, "0xa1")
    digits = _digest("gpu", machine.hostname, number)
    machine.gpus.append(
        Gpu(
            number=number,
            address=address,
            uuid="GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])),
            name=model.name,
            memory_mib=model.memory_mib,
            vbios=model.vbios,
            serial=str(1650000000000 + int(digits[:8], 16)),
            nvlinks=[True] * 18,
            nvlink_gbps=model.nvlink_gbps,
        )
    )


@dataclass(frozen=True)
class _Board:
    """An eight-GPU server: buses of the host bridges above the rail switches, bus offsets of what each switch holds."""

    buses: tuple[int, ...]
    nvme: int
    nic: int
    gpu: int


def _hgx(
    machine: Machine,
    board: _Board,
    model: _GpuModel,
    rails: Sequence[object],
    rail_nic: Callable[[int, str, str], object],
    nvswitches: int = 4,
) -> None:
    """BMC graphics, NVSwitches, and eight switches that each hold an NVMe disk, a rail's NIC and a GPU.

    rail_nic(rail, address, port) plugs in the NIC of a rail.
    """
    machine.host_bridges.append(HostBridge("pci0000:00", 0))
    _add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    ports = _switch(machine, _root_port(machine, "pci0000:00"), 3, nvswitches) if nvswitches else []
    for index, port in enumerate(ports):
        address, link = f"0000:{5 + index:02x}:00.0", Link(GEN5.speed, 2)
        _plug(machine, address, port, "0x068000", (NVIDIA, "0x22a3"), "nvidia-nvswitch", link, "0x1796", "0xa1")
        # So on a real DGX H100 that is healthy: no GPU and no NIC is near.
        machine.function(port).acs = ACS_REDIRECT
    bmc = _root_port(machine, "pci0000:00", "1c.0")
    _plug(machine, "0000:01:00.0", bmc, BRIDGE, ("0x1a03", "0x1150"), None, Link(GEN1.speed, 1), revision="0x06")
    _add(machine, "0000:02:00.0", "0000:01:00.0", "0x030000", ("0x1a03", "0x2000"), "ast", None, revision="0x52")
    for number, bus in enumerate(board.buses):
        ports = _switch(machine, _root_port(machine, f"pci0000:{bus:02x}", node=number // 4), bus + 1, 3)
        # Downstream ports are numbered as the buses below them are.
        offsets = sorted((board.nvme, board.nic, board.gpu))
        slots = {offset: (f"0000:{bus + offset:02x}:00.0", port) for offset, port in zip(offsets, ports, strict=True)}
        _plug(machine, *slots[board.nvme], "0x010802", ("0x144d", "0xa824"), "nvme", Link(GEN4.speed, 4), "0xa801")
        if number < len(rails):
            rail_nic(number, *slots[board.nic])
        _gpu(machine, model, number, *slots[board.gpu])
    # An idle GPU may lower the speed of its link, never the width. This one is asleep.
    machine.set_link(machine.gpu(4).address, GEN1)


_LOOPBACK = "lo", None, "00:00:00:00:00:00", 65536, None, 772, "unknown"
_DOCKER = "docker0", None, "02:42:5f:1c:9a:07", 1500, None, 1, "down"


def _machine(hostname: str, platform: str) -> Machine:
    """A machine with the facts that data/machines.json has of its platform, and no device but the loopback."""
    row = json.loads((DATA / "machines.json").read_text())[platform]
    modules, nodes = row.pop("modules"), [Node(*node) for node in row.pop("nodes")]
    release = ofed.INSTALLED if row.pop("ofed", False) else None
    machine = Machine(hostname, platform, nodes=nodes, netdevs=[Netdev(*_LOOPBACK)], ofed=release, **row)
    for name in modules:
        machine.modules[name] = machine.driver_version if name in ("nvidia", "nvidia_peermem") else None
    if release:
        machine.load_ofed(release)
    return machine


def hgx_h100(
    hostname: str = "node01",
    rails: Sequence[str] = ("mlx5_4", "mlx5_5", "mlx5_0", "mlx5_1", "mlx5_8", "mlx5_9", "mlx5_6", "mlx5_7"),
) -> Machine:
    """Eight H100 with eight InfiniBand NDR rails, wired as a DGX H100.

    rails: RDMA names in rail order, which is PCI order and not the order of the names. Storage is mlx5_10 and
    mlx5_11, which a list that names mlx5_1 by prefix would take in; mlx5_2 and mlx5_3 are in mlx5_bond_0.
    """
    host = _host_number(hostname)
    machine = _machine(hostname, "hgx-h100")
    board = _Board((0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9), nvme=4, nic=3, gpu=6)

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, _CX7, rails[rail], rail, address, port, 400, rail)

    _hgx(machine, board, _H100, rails, rail_nic)
    _management(machine, "0000:0b:00", (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    storage, machine.spare_slot = _switch(machine, _root_port(machine, "pci0000:26", node=0), 0x27, 2)
    for index, name in enumerate(("mlx5_10", "mlx5_11")):
        _port(machine, _CX6, name, 8, f"0000:29:00.{index}", storage, 200, dual=True)
    machine.function(machine.spare_slot).bus = "0000:2a"
    _bond(machine, _BLUEFIELD3, 9, "0000:aa:00", _root_port(machine, "pci0000:a9", node=1), 200, f"10.40.0.{host}")
    machine.netdevs.append(Netdev(*_DOCKER, bridge=True))
    return machine


def hgx_h200_roce(
    hostname: str = "node02",
    rails: Sequence[str] = ("mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9", "mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"),
) -> Machine:
    """Eight H200 with eight 400 Gb/s RoCE rails, wired as a Dell XE9680.

    rails: as for hgx_h100. Storage is one port of mlx5_10/mlx5_11, the other port is down, and the first has two
    virtual functions, mlx5_12 and mlx5_13; mlx5_2 and mlx5_3 are in mlx5_bond_0.
    """
    host = _host_number(hostname)
    machine = _machine(hostname, "hgx-h200")
    board = _Board((0x15, 0x37, 0x48, 0x59, 0x97, 0xB7, 0xC7, 0xD7), nvme=3, nic=5, gpu=4)

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, _CX7, rails[rail], rail, address, port, 400, rail, ipv4=f"10.{16 + rail}.0.{host}")
        name = machine.netdevs[-1].name
        # Leaf N has rail N of every host.
        machine.netdevs[-1].switch = [SwitchPort(f"44:38:39:ff:00:{rail:02x}", f"leaf-{rail}", f"swp{host}")]
        machine.sysctls |= {f"{name}/arp_ignore": "1", f"{name}/arp_announce": "2", f"{name}/rp_filter": "0"}

    _hgx(machine, board, _H200, rails, rail_nic)
    _management(machine, "0000:0b:00", ("0x14e4", "0x16d8"), "bnxt_en", ("eno8303", "eno8403"))
    storage, machine.spare_slot = _switch(machine, _root_port(machine, "pci0000:80", node=1), 0x81, 2)
    address = f"10.32.0.{host}"
    used = _port(machine, _CX7, "mlx5_10", 8, "0000:83:00.0", storage, 200, dual=True, ipv4=address)
    spare = _port(machine, _CX7, "mlx5_11", 8, "0000:83:00.1", storage, 200, dual=True, ipv4=address)
    machine.netdevs[-1].ipv4 = None
    machine.take_down(spare, "3: Disabled")
    _virtual_functions(machine, used, 8, ("mlx5_12", "mlx5_13"))
    machine.function(machine.spare_slot).bus = "0000:84"
    _bond(machine, _CX6_DX, 9, "0000:e1:00", _root_port(machine, "pci0000:e0", node=1), 100, f"10.40.0.{host}")
    machine.netdevs.append(Netdev(*_DOCKER, bridge=True))
    return machine


def hgx_b200(hostname: str = "node03") -> Machine:
    """Eight B200 with eight InfiniBand NDR rails, and nothing else that an HGX B200 has.

    Its NVSwitches are no PCI devices of the host: the fabric manager reaches them by way of ib_umad.
    """
    machine = _machine(hostname, "hgx-b200")
    board = _Board((0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9), nvme=4, nic=3, gpu=6)

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, _CX7, f"mlx5_{rail}", rail, address, port, 400, rail)

    _hgx(machine, board, _B200, range(8), rail_nic, nvswitches=0)
    _management(machine, "0000:0b:00", (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    _storage, machine.spare_slot = _switch(machine, _root_port(machine, "pci0000:26", node=0), 0x27, 2)
    machine.function(machine.spare_slot).bus = "0000:2a"
    return machine


def h200_vm(hostname: str = "vm01") -> Machine:
    """Eight H200 given to a virtual machine: everything on one bus, no NUMA, no DMI, no RDMA, no NVSwitch to see."""
    machine = _machine(hostname, "h200-vm")
    bus = "pci0000:00"
    machine.host_bridges.append(HostBridge(bus, -1))
    _add(machine, "0000:00:00.0", bus, "0x060000", (INTEL, "0x0d57"), None, None)
    virtio = (("0x018000", "0x1042"), ("0x018000", "0x1042"), (ETHERNET, "0x1041"), ("0xffff00", "0x1053"))
    for index, (class_code, device) in enumerate(virtio, start=1):
        _add(machine, f"0000:00:{index:02x}.0", bus, class_code, (VIRTIO, device), "virtio-pci", None, device, "0x01")
    for number in range(8):
        _gpu(machine, _H200, number, f"0000:00:{6 + number:02x}.0", bus)
    mac = _mac(hostname, 0, 0, oui="06:00:ac")
    machine.netdevs.append(Netdev("eth0", "0000:00:03.0", mac, 1500, -1, bus_device="virtio2"))
    machine.routes = [Route("eth0", "0.0.0.0/0", "192.0.2.1"), Route("eth0", "192.0.2.0/24")]
    return machine


_AZURE_TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"


def azure_nd_h100_v5(hostname: str = "azure01") -> Machine:
    """Azure's ND H100 v5: GPUs, NVSwitches and virtual functions of InfiniBand, each in a PCI domain of its own.

    The image brings a topology file and an nccl.conf. Virtual functions show no link; how far a NIC is from a GPU,
    nothing shows.
    """
    machine = _machine(hostname, "azure-nd-h100-v5")

    def passed(domain: str, node: int) -> str:
        machine.host_bridges.append(HostBridge(f"pci{domain}:00", node))
        return f"pci{domain}:00"

    for number, domain in enumerate(("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")):
        _gpu(machine, _H100, number, f"{domain}:00:00.0", passed(domain, number // 4))
    for number in range(4):
        domain = f"00{0xD + number:02x}"
        ids = (NVIDIA, "0x22a3")
        _add(machine, f"{domain}:00:00.0", passed(domain, number // 2), "0x068000", ids, "nvidia-nvswitch", None)
    for rail in range(8):
        domain = f"010{rail + 1}"
        address = f"{domain}:00:00.0"
        _add(machine, address, passed(domain, rail // 4), INFINIBAND, (MELLANOX, "0x101e"), "mlx5_core", NO_LINK)
        mac = _mac(hostname, rail, 0, oui="00:15:5d")
        rdma = _rdma(machine, _VIRTUAL, f"mlx5_ib{rail}", address, mac, rail, 400)
        hardware = "00:00:01:49:fe:80:00:00:00:00:00:00:" + _grouped(rdma.node_guid.replace(":", ""), 2)
        machine.netdevs.append(Netdev(f"ib{rail}", address, hardware, 4092, 400000, kind=32))
    machine.netdevs.append(Netdev("eth0", None, _mac(hostname, 9, 0, oui="00:22:48"), 1500, 100000))
    machine.routes = [Route("eth0", "0.0.0.0/0", "10.0.0.1"), Route("eth0", "10.0.0.0/24")]
    settings = {"IB_PCI_RELAXED_ORDERING": "1", "TOPO_FILE": _AZURE_TOPOLOGY, "IGNORE_CPU_AFFINITY": "1"}
    machine.image = {
        _AZURE_TOPOLOGY: topology_file(machine),
        "/etc/nccl.conf": "".join(f"NCCL_{name}={value}\n" for name, value in settings.items()),
    }
    return machine


def topology_file(machine: Machine, speed: str = "32.0 GT/s PCIe") -> str:
    """What a cloud tells NCCL of such a guest: GPU and NIC of each rail below a made-up switch. speed: of all links."""
    link = f'link_speed="{speed}" link_width="16"'
    lines = ['<system version="1">']
    for node in machine.nodes:
        lines.append(f'  <cpu numaid="{node.number}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">')
        for gpu in [gpu for gpu in machine.gpus if machine.function(gpu.address).numa_node == node.number]:
            lines += [
                f'    <pci busid="ffff:ff:{gpu.number + 1:02x}.0" class="0x060400" {link}>',
                f'      <pci busid="{gpu.address}" class="0x030200" {link}/>',
                f'      <pci busid="{machine.rail(gpu.number).address}" class="0x020700" {link}/>',
                "    </pci>",
            ]
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])
