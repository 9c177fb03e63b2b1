# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated GPU nodes to start from: HGX machines with InfiniBand and with RoCE, clouds' machines, trays of an NVL72.

What differs from host to host (MAC addresses, GUIDs, serial numbers) is made from the host's name. The facts of
platforms, cards and GPUs are in data/machines.json.

What OCI publishes of BM.GPU.H100.8 is from there: addresses of GPUs and ports (its node check), the asset tag
(cloud-init's data source for Oracle). Which switches lie between them is not known: here each card is below a root port
of its own. Trays are from published addresses of GB200. Neither machine was at hand.
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

_DATA = json.loads((DATA / "machines.json").read_text())
_RATES = {
    100: "100 Gb/sec (4X EDR)",
    200: "200 Gb/sec (4X HDR)",
    400: "400 Gb/sec (4X NDR)",
    800: "800 Gb/sec (4X XDR)",
}
_ROOT_PORT, _SWITCH_PORT, _NVSWITCH = (INTEL, "0x352a"), ("0x1000", "0xc030"), (NVIDIA, "0x22a3")

# -- what differs from host to host ----------------------------------------------------------------------------------


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def _host_number(hostname: str) -> int:
    """Return 1-254, for addresses: the number at the end of the name, or one made from it."""
    match = re.search(r"(\d+)$", hostname)
    number = int(match.group(1)) if match else int(_digest(hostname)[:8], 16)
    return (number - 1) % 254 + 1


def _mac(hostname: str, card: int, function: int, oui: str = "b8:ce:f6") -> str:
    host = _digest("mac", hostname)
    return f"{oui}:{host[:2]}:{host[2:4]}:{card:x}{function:x}"


def _grouped(digits: str, size: int = 4) -> str:
    return ":".join(digits[i : i + size] for i in range(0, len(digits), size))


def _guid(mac: str) -> str:
    """Mellanox makes a GUID from a MAC address by putting 0300 in its middle."""
    digits = mac.replace(":", "")
    return _grouped(f"{digits[:6]}0300{digits[6:]}")


def _roce_gids(mac: str, netdev: str, ipv4: str | None) -> list[Gid]:
    """Return GIDs in the kernel's usual order: link-local v1, v2, then IPv4 v1, v2."""
    digits = mac.replace(":", "")
    values = ["fe80:0000:0000:0000:" + _grouped(f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}fffe{digits[6:]}")]
    if ipv4:
        mapped = _grouped("".join(f"{int(part):02x}" for part in ipv4.split(".")))
        values.append(f"0000:0000:0000:0000:0000:ffff:{mapped}")
    pairs = [(value, kind) for value in values for kind in (GID_V1, GID_V2)]
    return [Gid(index, value, kind, netdev) for index, (value, kind) in enumerate(pairs)]


# -- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Card:
    """A kind of mlx5 card: PCI device and subsystem id, hca_type, PSID, firmware, GT/s of its link."""

    device: str
    subsystem: str
    hca_type: str
    board_id: str
    fw_ver: str
    speed: str

    @property
    def link(self) -> Link:
        return Link(f"{self.speed} GT/s PCIe", 16) if self.speed else NO_LINK


_CARDS = {name: _Card(*row) for name, row in _DATA["cards"].items()}


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
    """Add a function below a bridge or host bridge, on the same NUMA node; the port above trains to its link."""
    above: Function | HostBridge
    if parent.startswith("pci"):
        above = first(parent, (bridge for bridge in machine.host_bridges if bridge.name == parent))
    else:
        above = machine.function(parent)
        above.bus = address[:7]
    function = Function(address, parent, class_code, *ids, subsystem, revision, above.numa_node, driver, link, link)
    machine.functions.append(function)
    if link:
        machine.set_link(address, link)
    return function


def _root_port(machine: Machine, host_bridge: str, device: str = "01.0", node: int | None = None) -> str:
    """Add a root port; with ``node``, of a new host bridge on that NUMA node."""
    if node is not None:
        machine.host_bridges.append(HostBridge(host_bridge, node))
    address = f"{host_bridge[3:]}:{device}"
    _add(machine, address, host_bridge, BRIDGE, _ROOT_PORT, "pcieport", GEN5, revision="0x04").acs = ACS_CLEAR
    return address


def _switch(machine: Machine, root_port: str, bus: int, ports: int) -> list[str]:
    """Add a PCIe switch below a root port: the upstream port on ``bus``, the downstream ports on the next one.

    Returns the downstream ports, each with an empty slot.
    """
    upstream = f"0000:{bus:02x}:00.0"
    downstream = [f"0000:{bus + 1:02x}:{port:02x}.0" for port in range(ports)]
    for address in [upstream, *downstream]:
        parent = root_port if address == upstream else upstream
        port = _add(machine, address, parent, BRIDGE, _SWITCH_PORT, "pcieport", GEN5, "0x0144", "0xb0")
        if address != upstream:
            port.link, port.acs = EMPTY_SLOT, ACS_CLEAR
    return downstream


def _nvswitches(machine: Machine, count: int) -> None:
    """Add NVSwitches below a switch of their own, as on a DGX H100; there no GPU and no NIC is near."""
    for index, port in enumerate(_switch(machine, _root_port(machine, "pci0000:00"), 3, count) if count else ()):
        address, link = f"0000:{5 + index:02x}:00.0", Link(GEN5.speed, 2)
        _add(machine, address, port, "0x068000", _NVSWITCH, "nvidia-nvswitch", link, "0x1796", "0xa1")


def _mlx5(machine: Machine, card: _Card, slot: int, address: str, parent: str, code: str) -> str:
    """Add a port of an mlx5 card. ``slot`` tells cards apart; returns the port's MAC address."""
    ids = (MELLANOX, card.device)
    function = _add(machine, address, parent, code, ids, "mlx5_core", card.link, card.subsystem)
    function.read_request = 4096
    return _mac(machine.hostname, slot, int(address[-1]))


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


def _ipoib(rdma: Rdma, name: str, gbps: int, head: str) -> Netdev:
    hardware = f"00:00:{head}:fe:80:00:00:00:00:00:00:" + _grouped(rdma.node_guid.replace(":", ""), 2)
    return Netdev(name, rdma.address, hardware, 4092, gbps * 1000, kind=32)


def _port(
    machine: Machine,
    card: str,
    name: str,
    slot: int,
    address: str,
    parent: str,
    gbps: int,
    rail: int | None = None,
    dual: bool = False,
    ipv4: str = "",
) -> Rdma:
    """Add a port with its netdev: RoCE with an IPv4 address; without, on an InfiniBand fabric, and of IPoIB."""
    mac = _mlx5(machine, _CARDS[card], slot, address, parent, ETHERNET if ipv4 else INFINIBAND)
    rdma = _rdma(machine, _CARDS[card], name, address, mac, rail, gbps)
    if not ipv4:
        machine.netdevs.append(_ipoib(rdma, netdev_name(address, 32, None, dual), gbps, "10:29"))
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
    """Add SR-IOV functions of a PF, each with an RDMA device and a netdev of its own."""
    above, card = machine.function(owner.address), _CARDS["virtual"]
    for index, name in enumerate(names):
        address, ids = f"{owner.address[:-1]}{index + 2}", (MELLANOX, card.device)
        function = _add(machine, address, above.parent, ETHERNET, ids, "mlx5_core", None, above.subsystem)
        function.link, function.max_link, function.physfn = NO_LINK, above.max_link, above.address
        mac = _mac(machine.hostname, slot, index + 2)
        netdev = f"{netdev_name(above.address, 1, None, True)}v{index}"
        machine.netdevs.append(Netdev(netdev, address, mac, 1500, 200000))
        _rdma(machine, card, name, address, mac, None, 200).gids = _roce_gids(mac, netdev, None)


def _bond(machine: Machine, card: str, slot: int, base: str, node: int, gbps: int) -> None:
    """Add both ports of a card in one LAG: one RDMA device, mlx5_bond_0, on the first, and bond0 above both."""
    parent = _root_port(machine, f"pci{base[:5]}{int(base[5:7], 16) - 1:02x}", node=node)
    shared, ipv4 = _mac(machine.hostname, slot, 0), f"10.40.0.{_host_number(machine.hostname)}"
    for index in range(2):
        address = f"{base}.{index}"
        mac = _mlx5(machine, _CARDS[card], slot, address, parent, ETHERNET)
        name = netdev_name(address, 1, f"p{index}", True)
        # A slave shows the bond's MAC address.
        slave = Netdev(name, address, shared, 9000, gbps * 1000, port_name=f"p{index}", master="bond0")
        slave.qos, slave.permanent = configured(), mac
        machine.netdevs.append(slave)
    _rdma(machine, _CARDS[card], "mlx5_bond_0", f"{base}.0", shared, None, gbps).gids = _roce_gids(
        shared, "bond0", ipv4
    )
    bond = Netdev("bond0", None, shared, 9000, 2 * gbps * 1000, bond_mode="802.3ad 4", ipv4=f"{ipv4}/24")
    machine.netdevs += [bond, Netdev("docker0", None, "02:42:5f:1c:9a:07", 1500, None, 1, "down", bridge=True)]
    machine.routes.append(Route("bond0", _network(ipv4)))


def _management(machine: Machine, ids: tuple[str, str], driver: str, names: Sequence[str]) -> None:
    """Add a two-port Ethernet card without RDMA: the default route on the first port, the second without a link."""
    port = _root_port(machine, "pci0000:00", "1d.0")
    for index, name in enumerate(names):
        address = f"0000:0b:00.{index}"
        _add(machine, address, port, ETHERNET, ids, driver, Link(GEN3.speed, 4), revision="0x01")
        mac = _mac(machine.hostname, 0, index, oui="3c:ec:ef")
        speed, state = (10000, "up") if index == 0 else (None, "down")
        ipv4 = f"10.0.0.{_host_number(machine.hostname)}/24" if index == 0 else None
        machine.netdevs.append(Netdev(name, address, mac, 1500, speed, operstate=state, ipv4=ipv4))
    machine.routes += [
        Route(names[0], "0.0.0.0/0", "10.0.0.254", metric=100),
        Route(names[0], "10.0.0.0/24", metric=100),
    ]


def _uplink(machine: Machine, oui: str, gateway: str, mtu: int = 1500) -> None:
    """Add eth0, of which nothing shows a PCI function, with the default route."""
    machine.netdevs.append(Netdev("eth0", None, _mac(machine.hostname, 9, 0, oui=oui), mtu, 100000))
    machine.routes += [Route("eth0", "0.0.0.0/0", gateway), Route("eth0", "10.0.0.0/24")]


def _gpu(machine: Machine, model: str, number: int, address: str, parent: str) -> None:
    device, subsystem, name, memory, vbios, nvlink = _DATA["gpus"][model]
    _add(machine, address, parent, GPU, (NVIDIA, device), "nvidia", GEN5, subsystem, "0xa1")
    digits = _digest("gpu", machine.hostname, number)
    uuid = "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
    serial = str(1650000000000 + int(digits[:8], 16))
    machine.gpus.append(
        Gpu(number, address, uuid, name, memory, vbios, serial, nvlinks=[True] * 18, nvlink_gbps=nvlink)
    )


def _machine(hostname: str, platform: str) -> Machine:
    """Return a machine with the facts of its platform, and no device but the loopback."""
    row = dict(_DATA["platforms"][platform])
    modules, nodes = row.pop("modules"), [Node(*node) for node in row.pop("nodes")]
    release = ofed.INSTALLED if row.pop("ofed", False) else None
    loopback = Netdev("lo", None, "00:00:00:00:00:00", 65536, None, 772, "unknown")
    row = json.loads(json.dumps(row))
    machine = Machine(hostname, platform, nodes=nodes, netdevs=[loopback], ofed=release, **row)
    for name in modules:
        machine.modules[name] = machine.driver_version if name in ("nvidia", "nvidia_peermem") else None
    if release:
        machine.load_ofed(release)
    return machine


# -- HGX -------------------------------------------------------------------------------------------------------------

_BUSES = (0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9)


def _hgx(
    machine: Machine,
    gpu: str,
    rails: int,
    rail_nic: Callable[[int, str, str], object],
    buses: Sequence[int] = _BUSES,
    offsets: tuple[int, int, int] = (4, 3, 6),
    nvswitches: int = 4,
) -> None:
    """Add BMC graphics, NVSwitches, and eight switches that each hold an NVMe disk, a rail's NIC and a GPU.

    rail_nic(rail, address, port): plugs in the NIC of a rail.   buses: of the host bridges above the rail switches.
    offsets: from there to the buses of disk, NIC and GPU.
    """
    machine.host_bridges.append(HostBridge("pci0000:00", 0))
    _add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    _nvswitches(machine, nvswitches)
    for switch in [function for function in machine.functions if function.driver == "nvidia-nvswitch"]:
        # So on a real DGX H100 that is healthy.
        machine.function(switch.parent).acs = ACS_REDIRECT
    bmc = _root_port(machine, "pci0000:00", "1c.0")
    _add(machine, "0000:01:00.0", bmc, BRIDGE, ("0x1a03", "0x1150"), None, Link(GEN1.speed, 1), revision="0x06")
    _add(machine, "0000:02:00.0", "0000:01:00.0", "0x030000", ("0x1a03", "0x2000"), "ast", None, revision="0x52")
    for number, bus in enumerate(buses):
        ports = _switch(machine, _root_port(machine, f"pci0000:{bus:02x}", node=number // 4), bus + 1, 3)
        # Downstream ports are numbered as the buses below them are.
        placed = dict(zip(sorted(offsets), ports, strict=True))
        disk, nic, card = ((f"0000:{bus + offset:02x}:00.0", placed[offset]) for offset in offsets)
        _add(machine, *disk, "0x010802", ("0x144d", "0xa824"), "nvme", Link(GEN4.speed, 4), "0xa801")
        if number < rails:
            rail_nic(number, *nic)
        _gpu(machine, gpu, number, *card)
    # An idle GPU may lower the speed of its link, never the width. This one is asleep.
    machine.set_link(machine.gpu(4).address, GEN1)


def _spare_switch(machine: Machine, bus: int, node: int) -> str:
    """Add a switch with a port for storage, which it returns, and one that is free."""
    port = _root_port(machine, f"pci0000:{bus:02x}", node=node)
    storage, machine.spare_slot = _switch(machine, port, bus + 1, 2)
    return storage


def hgx_h100(
    hostname: str = "node01",
    rails: Sequence[str] = ("mlx5_4", "mlx5_5", "mlx5_0", "mlx5_1", "mlx5_8", "mlx5_9", "mlx5_6", "mlx5_7"),
) -> Machine:
    """Eight H100 with eight InfiniBand NDR rails, wired as a DGX H100.

    rails: RDMA names in rail order, which is PCI order and not the order of the names. Storage is mlx5_10 and
    mlx5_11, which a list that names mlx5_1 by prefix would take in; mlx5_2 and mlx5_3 are in mlx5_bond_0.
    """
    machine = _machine(hostname, "hgx-h100")

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, "cx7", rails[rail], rail, address, port, 400, rail)

    _hgx(machine, "h100", len(rails), rail_nic)
    _management(machine, (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    storage = _spare_switch(machine, 0x26, node=0)
    for index, name in enumerate(("mlx5_10", "mlx5_11")):
        _port(machine, "cx6", name, 8, f"0000:29:00.{index}", storage, 200, dual=True)
    machine.function(str(machine.spare_slot)).bus = "0000:2a"
    _bond(machine, "bluefield3", 9, "0000:aa:00", 1, 200)
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

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, "cx7", rails[rail], rail, address, port, 400, rail, ipv4=f"10.{16 + rail}.0.{host}")
        name = machine.netdevs[-1].name
        # Leaf N has rail N of every host.
        machine.netdevs[-1].switch = [SwitchPort(f"44:38:39:ff:00:{rail:02x}", f"leaf-{rail}", f"swp{host}")]
        machine.sysctls |= {f"{name}/arp_ignore": "1", f"{name}/arp_announce": "2", f"{name}/rp_filter": "0"}

    buses = (0x15, 0x37, 0x48, 0x59, 0x97, 0xB7, 0xC7, 0xD7)
    _hgx(machine, "h200", len(rails), rail_nic, buses, (3, 5, 4))
    _management(machine, ("0x14e4", "0x16d8"), "bnxt_en", ("eno8303", "eno8403"))
    storage = _spare_switch(machine, 0x80, node=1)
    used, spare = (
        _port(machine, "cx7", f"mlx5_{10 + n}", 8, f"0000:83:00.{n}", storage, 200, dual=True, ipv4=f"10.32.0.{host}")
        for n in range(2)
    )
    machine.netdevs[-1].ipv4 = None
    machine.take_down(spare, "3: Disabled")
    _virtual_functions(machine, used, 8, ("mlx5_12", "mlx5_13"))
    machine.function(str(machine.spare_slot)).bus = "0000:84"
    _bond(machine, "cx6-dx", 9, "0000:e1:00", 1, 100)
    return machine


def hgx_b200(hostname: str = "node03") -> Machine:
    """Eight B200 with eight InfiniBand NDR rails, and nothing else that an HGX B200 has.

    Its NVSwitches are no PCI devices of the host: the fabric manager reaches them by way of ib_umad.
    """
    machine = _machine(hostname, "hgx-b200")

    def rail_nic(rail: int, address: str, port: str) -> None:
        _port(machine, "cx7", f"mlx5_{rail}", rail, address, port, 400, rail)

    _hgx(machine, "b200", 8, rail_nic, nvswitches=0)
    _management(machine, (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    _spare_switch(machine, 0x26, node=0)
    machine.function(str(machine.spare_slot)).bus = "0000:2a"
    return machine


# -- clouds, and trays -----------------------------------------------------------------------------------------------


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
        _gpu(machine, "h200", number, f"0000:00:{6 + number:02x}.0", bus)
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

    def passed(domain: str, node: int) -> tuple[str, str]:
        machine.host_bridges.append(HostBridge(f"pci{domain}:00", node))
        return f"{domain}:00:00.0", f"pci{domain}:00"

    for number, domain in enumerate(("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")):
        _gpu(machine, "h100", number, *passed(domain, number // 4))
    for number in range(4):
        where = passed(f"00{0xD + number:02x}", number // 2)
        _add(machine, *where, "0x068000", _NVSWITCH, "nvidia-nvswitch", None)
    for rail in range(8):
        where = passed(f"010{rail + 1}", rail // 4)
        _add(machine, *where, INFINIBAND, (MELLANOX, "0x101e"), "mlx5_core", NO_LINK)
        mac = _mac(hostname, rail, 0, oui="00:15:5d")
        rdma = _rdma(machine, _CARDS["virtual"], f"mlx5_ib{rail}", where[0], mac, rail, 400)
        machine.netdevs.append(_ipoib(rdma, f"ib{rail}", 400, "01:49"))
    _uplink(machine, "00:22:48", "10.0.0.1")
    settings = {"IB_PCI_RELAXED_ORDERING": "1", "TOPO_FILE": _AZURE_TOPOLOGY, "IGNORE_CPU_AFFINITY": "1"}
    machine.image = {
        _AZURE_TOPOLOGY: topology_file(machine),
        "/etc/nccl.conf": "".join(f"NCCL_{name}={value}\n" for name, value in settings.items()),
    }
    return machine


def topology_file(machine: Machine, speed: str = "32.0 GT/s PCIe") -> str:
    """Return what a cloud gives NCCL: GPU and NIC of each rail below a made-up switch. speed: of all links."""
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


def oci_bm_gpu_h100_8(hostname: str = "oci01") -> Machine:
    """OCI's bare metal BM.GPU.H100.8: both ports of a ConnectX-7 for each of eight H100."""
    machine = _machine(hostname, "oci-bm-gpu-h100-8")
    machine.host_bridges.append(HostBridge("pci0000:00", 0))
    _add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    _nvswitches(machine, 4)
    gpus = (0x0F, 0x2D, 0x44, 0x5B, 0x89, 0xA8, 0xC0, 0xD8)
    for number, (gpu, card) in enumerate(zip(gpus, (gpu - 3 for gpu in gpus), strict=True)):
        below = _root_port(machine, f"pci0000:{card - 1:02x}", node=number // 4)
        for function in range(2):
            rail = 2 * number + function
            address, ipv4 = f"0000:{card:02x}:00.{function}", f"10.{16 + rail}.0.{_host_number(hostname)}"
            _port(machine, "cx7", f"mlx5_{rail}", number, address, below, 200, rail, dual=True, ipv4=ipv4)
            name = machine.netdevs[-1].name
            machine.sysctls |= {f"{name}/arp_ignore": "2", f"{name}/arp_announce": "1", f"{name}/rp_filter": "2"}
        below = _root_port(machine, f"pci0000:{gpu - 1:02x}", node=number // 4)
        _gpu(machine, "h100", number, f"0000:{gpu:02x}:00.0", below)
    _uplink(machine, "02:00:17", "10.0.0.1", 9000)
    return machine


def _tray(hostname: str, platform: str, gpu: str, card: str, gbps: int) -> Machine:
    """Two Grace with two GPUs and two NICs each; hostname: trays of one rack differ in the number at its end."""
    machine = _machine(hostname, platform)
    for number, domain in enumerate(("0008", "0009", "0018", "0019")):
        port = _root_port(machine, f"pci{domain}:00", "00.0", node=number // 2)
        _gpu(machine, gpu, number, f"{domain}:01:00.0", port)
    for rail, domain in enumerate(("0000", "0002", "0010", "0012")):
        port = _root_port(machine, f"pci{domain}:00", "00.0", node=rail // 2)
        _port(machine, card, f"mlx5_{rail}", rail, f"{domain}:03:00.0", port, gbps, rail)
    _uplink(machine, "3c:6d:66", "10.0.0.254")
    return machine


def gb200(hostname: str = "tray01") -> Machine:
    return _tray(hostname, "gb200-nvl72", "gb200", "cx7", 400)


def gb300(hostname: str = "tray21") -> Machine:
    return _tray(hostname, "gb300-nvl72", "gb300", "cx8", 800)
