# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parts to build simulated nodes of: PCIe trees, cards of mlx5 with their RDMA devices and netdevs, GPUs.

What differs from host to host (MAC addresses, GUIDs, serial numbers) is made from the host's name. The facts of
platforms, cards and GPUs are in data/machines.json.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from . import ofed
from .machine import (
    ACS_CLEAR,
    BRIDGE,
    EMPTY_SLOT,
    ETHERNET,
    GEN3,
    GEN5,
    GID_V1,
    GID_V2,
    GPU,
    INFINIBAND,
    INTEL,
    MELLANOX,
    NO_LINK,
    NVIDIA,
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
_ROOT_PORT, _SWITCH_PORT, NVSWITCH = (INTEL, "0x352a"), ("0x1000", "0xc030"), (NVIDIA, "0x22a3")

# -- what differs from host to host ----------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def host_number(hostname: str) -> int:
    """Return 1-254, for addresses: the number at the end of the name, or one made from it."""
    match = re.search(r"(\d+)$", hostname)
    number = int(match.group(1)) if match else int(digest(hostname)[:8], 16)
    return (number - 1) % 254 + 1


def mac_address(hostname: str, card: int, function: int, oui: str = "b8:ce:f6") -> str:
    host = digest("mac", hostname)
    return f"{oui}:{host[:2]}:{host[2:4]}:{card:x}{function:x}"


def grouped(digits: str, size: int = 4) -> str:
    return ":".join(digits[i : i + size] for i in range(0, len(digits), size))


def guid(mac: str) -> str:
    """Mellanox makes a GUID from a MAC address by putting 0300 in its middle."""
    digits = mac.replace(":", "")
    return grouped(f"{digits[:6]}0300{digits[6:]}")


def autoconfigured(prefix: str, mac: str) -> str:
    """Return the address that an interface makes of a prefix of four groups."""
    digits = mac.replace(":", "")
    return f"{prefix}:" + grouped(f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}fffe{digits[6:]}")


def roce_gids(mac: str, netdev: str, ipv4: str | None, ipv6: str = "") -> list[Gid]:
    """Return GIDs in the kernel's usual order: link-local v1, v2, then those of an address, v1, v2."""
    values = [autoconfigured("fe80:0000:0000:0000", mac)] + ([IPv6Address(ipv6).exploded] if ipv6 else [])
    if ipv4:
        mapped = grouped("".join(f"{int(part):02x}" for part in ipv4.split(".")))
        values.append(f"0000:0000:0000:0000:0000:ffff:{mapped}")
    pairs = [(value, kind) for value in values for kind in (GID_V1, GID_V2)]
    return [Gid(index, value, kind, netdev) for index, (value, kind) in enumerate(pairs)]


# -- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
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


CARDS = {name: Card(*row) for name, row in _DATA["cards"].items()}


def add(
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


def add_root_port(machine: Machine, host_bridge: str, device: str = "01.0", node: int | None = None) -> str:
    """Add a root port; with ``node``, of a new host bridge on that NUMA node."""
    if node is not None:
        machine.host_bridges.append(HostBridge(host_bridge, node))
    address = f"{host_bridge[3:]}:{device}"
    add(machine, address, host_bridge, BRIDGE, _ROOT_PORT, "pcieport", GEN5, revision="0x04").acs = ACS_CLEAR
    return address


def add_switch(machine: Machine, root_port: str, bus: int, ports: int) -> list[str]:
    """Add a PCIe switch below a root port: the upstream port on ``bus``, the downstream ports on the next one.

    Returns the downstream ports, each with an empty slot.
    """
    upstream = f"0000:{bus:02x}:00.0"
    downstream = [f"0000:{bus + 1:02x}:{port:02x}.0" for port in range(ports)]
    for address in [upstream, *downstream]:
        parent = root_port if address == upstream else upstream
        port = add(machine, address, parent, BRIDGE, _SWITCH_PORT, "pcieport", GEN5, "0x0144", "0xb0")
        if address != upstream:
            port.link, port.acs = EMPTY_SLOT, ACS_CLEAR
    return downstream


def add_nvswitches(machine: Machine, count: int) -> None:
    """Add NVSwitches below a switch of their own, as on a DGX H100; there no GPU and no NIC is near."""
    for index, port in enumerate(add_switch(machine, add_root_port(machine, "pci0000:00"), 3, count) if count else ()):
        address, link = f"0000:{5 + index:02x}:00.0", Link(GEN5.speed, 2)
        add(machine, address, port, "0x068000", NVSWITCH, "nvidia-nvswitch", link, "0x1796", "0xa1")


def add_mlx5(machine: Machine, card: Card, slot: int, address: str, parent: str, code: str) -> str:
    """Add a port of an mlx5 card. ``slot`` tells cards apart; returns the port's MAC address."""
    ids = (MELLANOX, card.device)
    function = add(machine, address, parent, code, ids, "mlx5_core", card.link, card.subsystem)
    function.read_request = 4096
    return mac_address(machine.hostname, slot, int(address[-1]))


def add_rdma(machine: Machine, card: Card, name: str, address: str, mac: str, rail: int | None, gbps: int) -> Rdma:
    ib = machine.function(address).class_code == INFINIBAND
    rdma = Rdma(
        name=name,
        address=address,
        rail=rail,
        node_guid=guid(mac),
        sys_image_guid=guid(f"{mac[:-1]}0"),  # one for the whole card
        hca_type=card.hca_type,
        board_id=card.board_id,
        fw_ver=card.fw_ver,
        link_layer="InfiniBand" if ib else "Ethernet",
        rate=_RATES[gbps],
        gid_slots=8 if ib else 256,
        gids=[Gid(0, f"fe80:0000:0000:0000:{guid(mac)}", GID_V1, None)] if ib else [],
        lid=int(digest("lid", mac)[:3], 16) + 2 if ib else 0,
        sm_lid=1 if ib else 0,
    )
    machine.rdma.append(rdma)
    return rdma


def ipoib(rdma: Rdma, name: str, gbps: int, head: str) -> Netdev:
    hardware = f"00:00:{head}:fe:80:00:00:00:00:00:00:" + grouped(rdma.node_guid.replace(":", ""), 2)
    return Netdev(name, rdma.address, hardware, 4092, gbps * 1000, kind=32)


def add_port(
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
    ipv6: str = "",
) -> Rdma:
    """Add a port with its netdev: RoCE with an address; without, on an InfiniBand fabric, and of IPoIB.

    ipv6: a prefix of four groups, which a router advertises.
    """
    mac = add_mlx5(machine, CARDS[card], slot, address, parent, ETHERNET if ipv4 or ipv6 else INFINIBAND)
    rdma = add_rdma(machine, CARDS[card], name, address, mac, rail, gbps)
    if not (ipv4 or ipv6):
        machine.netdevs.append(ipoib(rdma, netdev_name(address, 32, None, dual), gbps, "10:29"))
        return rdma
    port_name = f"p{address[-1]}"
    netdev = netdev_name(address, 1, port_name, dual)
    port = Netdev(netdev, address, mac, 9000, gbps * 1000, port_name=port_name, qos=configured())
    machine.netdevs.append(port)
    if ipv6:
        port.ipv6, port.mtu = f"{IPv6Address(autoconfigured(ipv6, mac))}/64", 4200
        rdma.gids = roce_gids(mac, netdev, None, port.ipv6.partition("/")[0])
    else:
        port.ipv4, rdma.gids = f"{ipv4}/24", roce_gids(mac, netdev, ipv4)
        machine.routes.append(Route(netdev, network_of(ipv4)))
    return rdma


def network_of(ipv4: str) -> str:
    return ipv4.rsplit(".", 1)[0] + ".0/24"


def add_virtual_functions(machine: Machine, owner: Rdma, slot: int, names: Sequence[str]) -> None:
    """Add SR-IOV functions of a PF, each with an RDMA device and a netdev of its own."""
    above, card = machine.function(owner.address), CARDS["virtual"]
    for index, name in enumerate(names):
        address, ids = f"{owner.address[:-1]}{index + 2}", (MELLANOX, card.device)
        function = add(machine, address, above.parent, ETHERNET, ids, "mlx5_core", None, above.subsystem)
        function.link, function.max_link, function.physfn = NO_LINK, above.max_link, above.address
        mac = mac_address(machine.hostname, slot, index + 2)
        netdev = f"{netdev_name(above.address, 1, None, True)}v{index}"
        machine.netdevs.append(Netdev(netdev, address, mac, 1500, 200000))
        add_rdma(machine, card, name, address, mac, None, 200).gids = roce_gids(mac, netdev, None)


def add_bond(machine: Machine, card: str, slot: int, base: str, node: int, gbps: int) -> None:
    """Add both ports of a card in one LAG: one RDMA device, mlx5_bond_0, on the first, and bond0 above both."""
    parent = add_root_port(machine, f"pci{base[:5]}{int(base[5:7], 16) - 1:02x}", node=node)
    shared, ipv4 = mac_address(machine.hostname, slot, 0), f"10.40.0.{host_number(machine.hostname)}"
    for index in range(2):
        address = f"{base}.{index}"
        mac = add_mlx5(machine, CARDS[card], slot, address, parent, ETHERNET)
        name = netdev_name(address, 1, f"p{index}", True)
        # A slave shows the bond's MAC address.
        slave = Netdev(name, address, shared, 9000, gbps * 1000, port_name=f"p{index}", master="bond0")
        slave.qos, slave.permanent = configured(), mac
        machine.netdevs.append(slave)
    add_rdma(machine, CARDS[card], "mlx5_bond_0", f"{base}.0", shared, None, gbps).gids = roce_gids(
        shared, "bond0", ipv4
    )
    bond = Netdev("bond0", None, shared, 9000, 2 * gbps * 1000, bond_mode="802.3ad 4", ipv4=f"{ipv4}/24")
    machine.netdevs += [bond, Netdev("docker0", None, "02:42:5f:1c:9a:07", 1500, None, 1, "down", bridge=True)]
    machine.routes.append(Route("bond0", network_of(ipv4)))


def add_management(machine: Machine, ids: tuple[str, str], driver: str, names: Sequence[str]) -> None:
    """Add a two-port Ethernet card without RDMA: the default route on the first port, the second without a link."""
    port = add_root_port(machine, "pci0000:00", "1d.0")
    for index, name in enumerate(names):
        address = f"0000:0b:00.{index}"
        add(machine, address, port, ETHERNET, ids, driver, Link(GEN3.speed, 4), revision="0x01")
        mac = mac_address(machine.hostname, 0, index, oui="3c:ec:ef")
        speed, state = (10000, "up") if index == 0 else (None, "down")
        ipv4 = f"10.0.0.{host_number(machine.hostname)}/24" if index == 0 else None
        machine.netdevs.append(Netdev(name, address, mac, 1500, speed, operstate=state, ipv4=ipv4))
    machine.routes += [
        Route(names[0], "0.0.0.0/0", "10.0.0.254", metric=100),
        Route(names[0], "10.0.0.0/24", metric=100),
    ]


def add_uplink(machine: Machine, oui: str, gateway: str, mtu: int = 1500) -> None:
    """Add eth0, of which nothing shows a PCI function, with the default route."""
    machine.netdevs.append(Netdev("eth0", None, mac_address(machine.hostname, 9, 0, oui=oui), mtu, 100000))
    machine.routes += [Route("eth0", "0.0.0.0/0", gateway), Route("eth0", "10.0.0.0/24")]


def add_gpu(machine: Machine, model: str, number: int, address: str, parent: str) -> None:
    device, subsystem, name, memory, vbios, nvlink = _DATA["gpus"][model]
    add(machine, address, parent, GPU, (NVIDIA, device), "nvidia", GEN5, subsystem, "0xa1")
    digits = digest("gpu", machine.hostname, number)
    uuid = "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
    serial = str(1650000000000 + int(digits[:8], 16))
    machine.gpus.append(
        Gpu(number, address, uuid, name, memory, vbios, serial, nvlinks=[True] * 18, nvlink_gbps=nvlink)
    )


def bare_machine(hostname: str, platform: str) -> Machine:
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
