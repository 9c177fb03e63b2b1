# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated GPU nodes to start from: HGX machines with InfiniBand and with RoCE, clouds' machines, trays of an NVL72.

What OCI publishes of BM.GPU.H100.8 is from there: addresses of GPUs and ports (its node check), the asset tag
(cloud-init's data source for Oracle). Which switches lie between them is not known: here each card is below a root port
of its own. Trays are from published addresses of GB200. Neither machine was at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import parts
from .machine import (
    ACS_REDIRECT,
    BRIDGE,
    ETHERNET,
    GEN1,
    GEN4,
    INFINIBAND,
    INTEL,
    MELLANOX,
    NO_LINK,
    VIRTIO,
    HostBridge,
    Link,
    Machine,
    Netdev,
    Route,
    SwitchPort,
)

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
    parts.add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    parts.add_nvswitches(machine, nvswitches)
    for switch in [function for function in machine.functions if function.driver == "nvidia-nvswitch"]:
        # So on a real DGX H100 that is healthy.
        machine.function(switch.parent).acs = ACS_REDIRECT
    bmc = parts.add_root_port(machine, "pci0000:00", "1c.0")
    parts.add(machine, "0000:01:00.0", bmc, BRIDGE, ("0x1a03", "0x1150"), None, Link(GEN1.speed, 1), revision="0x06")
    parts.add(machine, "0000:02:00.0", "0000:01:00.0", "0x030000", ("0x1a03", "0x2000"), "ast", None, revision="0x52")
    for number, bus in enumerate(buses):
        root_port = parts.add_root_port(machine, f"pci0000:{bus:02x}", node=number // 4)
        ports = parts.add_switch(machine, root_port, bus + 1, 3)
        # Downstream ports are numbered as the buses below them are.
        placed = dict(zip(sorted(offsets), ports, strict=True))
        disk, nic, card = ((f"0000:{bus + offset:02x}:00.0", placed[offset]) for offset in offsets)
        parts.add(machine, *disk, "0x010802", ("0x144d", "0xa824"), "nvme", Link(GEN4.speed, 4), "0xa801")
        if number < rails:
            rail_nic(number, *nic)
        parts.add_gpu(machine, gpu, number, *card)
    # An idle GPU may lower the speed of its link, never the width. This one is asleep.
    machine.set_link(machine.gpu(4).address, GEN1)


def _spare_switch(machine: Machine, bus: int, node: int) -> str:
    """Add a switch with a port for storage, which it returns, and one that is free."""
    port = parts.add_root_port(machine, f"pci0000:{bus:02x}", node=node)
    storage, machine.spare_slot = parts.add_switch(machine, port, bus + 1, 2)
    machine.function(machine.spare_slot).bus = f"0000:{bus + 4:02x}"
    return storage


def hgx_h100(
    hostname: str = "node01",
    rails: Sequence[str] = ("mlx5_4", "mlx5_5", "mlx5_0", "mlx5_1", "mlx5_8", "mlx5_9", "mlx5_6", "mlx5_7"),
) -> Machine:
    """Eight H100 with eight InfiniBand NDR rails, wired as a DGX H100.

    rails: RDMA names in rail order, which is PCI order and not the order of the names. Storage is mlx5_10 and
    mlx5_11, which a list that names mlx5_1 by prefix would take in; mlx5_2 and mlx5_3 are in mlx5_bond_0.
    """
    machine = parts.bare_machine(hostname, "hgx-h100")

    def rail_nic(rail: int, address: str, port: str) -> None:
        parts.add_port(machine, "cx7", rails[rail], rail, address, port, 400, rail)

    _hgx(machine, "h100", len(rails), rail_nic)
    parts.add_management(machine, (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    storage = _spare_switch(machine, 0x26, node=0)
    for index, name in enumerate(("mlx5_10", "mlx5_11")):
        parts.add_port(machine, "cx6", name, 8, f"0000:29:00.{index}", storage, 200, dual=True)
    parts.add_bond(machine, "bluefield3", 9, "0000:aa:00", 1, 200)
    return machine


def hgx_h200_roce(
    hostname: str = "node02",
    rails: Sequence[str] = ("mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9", "mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"),
) -> Machine:
    """Eight H200 with eight 400 Gb/s RoCE rails, wired as a Dell XE9680.

    rails: as for hgx_h100. Storage is one port of mlx5_10/mlx5_11, the other port is down, and the first has two
    virtual functions, mlx5_12 and mlx5_13; mlx5_2 and mlx5_3 are in mlx5_bond_0.
    """
    host = parts.host_number(hostname)
    machine = parts.bare_machine(hostname, "hgx-h200")

    def rail_nic(rail: int, address: str, port: str) -> None:
        parts.add_port(machine, "cx7", rails[rail], rail, address, port, 400, rail, ipv4=f"10.{16 + rail}.0.{host}")
        name = machine.netdevs[-1].name
        # Leaf N has rail N of every host.
        machine.netdevs[-1].switch = [SwitchPort(f"44:38:39:ff:00:{rail:02x}", f"leaf-{rail}", f"swp{host}")]
        machine.sysctls |= {f"{name}/arp_ignore": "1", f"{name}/arp_announce": "2", f"{name}/rp_filter": "0"}

    buses = (0x15, 0x37, 0x48, 0x59, 0x97, 0xB7, 0xC7, 0xD7)
    _hgx(machine, "h200", len(rails), rail_nic, buses, (3, 5, 4))
    parts.add_management(machine, ("0x14e4", "0x16d8"), "bnxt_en", ("eno8303", "eno8403"))
    storage = _spare_switch(machine, 0x80, node=1)
    used, spare = (
        parts.add_port(
            machine, "cx7", f"mlx5_{10 + n}", 8, f"0000:83:00.{n}", storage, 200, dual=True, ipv4=f"10.32.0.{host}"
        )
        for n in range(2)
    )
    machine.netdevs[-1].ipv4 = None
    machine.take_down(spare, "3: Disabled")
    parts.add_virtual_functions(machine, used, 8, ("mlx5_12", "mlx5_13"))
    parts.add_bond(machine, "cx6-dx", 9, "0000:e1:00", 1, 100)
    return machine


def hgx_b200(hostname: str = "node03") -> Machine:
    """Eight B200 with eight InfiniBand NDR rails, and nothing else that an HGX B200 has.

    Its NVSwitches are no PCI devices of the host: the fabric manager reaches them by way of ib_umad.
    """
    machine = parts.bare_machine(hostname, "hgx-b200")

    def rail_nic(rail: int, address: str, port: str) -> None:
        parts.add_port(machine, "cx7", f"mlx5_{rail}", rail, address, port, 400, rail)

    _hgx(machine, "b200", 8, rail_nic, nvswitches=0)
    parts.add_management(machine, (INTEL, "0x1563"), "ixgbe", ("eno1", "eno2"))
    _spare_switch(machine, 0x26, node=0)
    return machine


# -- clouds, and trays -----------------------------------------------------------------------------------------------


def h200_vm(hostname: str = "vm01") -> Machine:
    """Eight H200 given to a virtual machine: everything on one bus, no NUMA, no DMI, no RDMA, no NVSwitch to see."""
    machine = parts.bare_machine(hostname, "h200-vm")
    bus = "pci0000:00"
    machine.host_bridges.append(HostBridge(bus, -1))
    parts.add(machine, "0000:00:00.0", bus, "0x060000", (INTEL, "0x0d57"), None, None)
    virtio = (("0x018000", "0x1042"), ("0x018000", "0x1042"), (ETHERNET, "0x1041"), ("0xffff00", "0x1053"))
    for index, (class_code, device) in enumerate(virtio, start=1):
        address, ids = f"0000:00:{index:02x}.0", (VIRTIO, device)
        parts.add(machine, address, bus, class_code, ids, "virtio-pci", None, device, "0x01")
    for number in range(8):
        parts.add_gpu(machine, "h200", number, f"0000:00:{6 + number:02x}.0", bus)
    mac = parts.mac_address(hostname, 0, 0, oui="06:00:ac")
    machine.netdevs.append(Netdev("eth0", "0000:00:03.0", mac, 1500, -1, bus_device="virtio2"))
    machine.routes = [Route("eth0", "0.0.0.0/0", "192.0.2.1"), Route("eth0", "192.0.2.0/24")]
    return machine


_AZURE_TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"


def azure_nd_h100_v5(hostname: str = "azure01") -> Machine:
    """Azure's ND H100 v5: GPUs, NVSwitches and virtual functions of InfiniBand, each in a PCI domain of its own.

    The image brings a topology file and an nccl.conf. Virtual functions show no link; how far a NIC is from a GPU,
    nothing shows.
    """
    machine = parts.bare_machine(hostname, "azure-nd-h100-v5")

    def passed(domain: str, node: int) -> tuple[str, str]:
        machine.host_bridges.append(HostBridge(f"pci{domain}:00", node))
        return f"{domain}:00:00.0", f"pci{domain}:00"

    for number, domain in enumerate(("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")):
        parts.add_gpu(machine, "h100", number, *passed(domain, number // 4))
    for number in range(4):
        where = passed(f"00{0xD + number:02x}", number // 2)
        parts.add(machine, *where, "0x068000", parts.NVSWITCH, "nvidia-nvswitch", None)
    for rail in range(8):
        where = passed(f"010{rail + 1}", rail // 4)
        parts.add(machine, *where, INFINIBAND, (MELLANOX, "0x101e"), "mlx5_core", NO_LINK)
        mac = parts.mac_address(hostname, rail, 0, oui="00:15:5d")
        rdma = parts.add_rdma(machine, parts.CARDS["virtual"], f"mlx5_ib{rail}", where[0], mac, rail, 400)
        machine.netdevs.append(parts.ipoib(rdma, f"ib{rail}", 400, "01:49"))
    parts.add_uplink(machine, "00:22:48", "10.0.0.1")
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
    machine = parts.bare_machine(hostname, "oci-bm-gpu-h100-8")
    machine.host_bridges.append(HostBridge("pci0000:00", 0))
    parts.add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    parts.add_nvswitches(machine, 4)
    gpus = (0x0F, 0x2D, 0x44, 0x5B, 0x89, 0xA8, 0xC0, 0xD8)
    for number, (gpu, card) in enumerate(zip(gpus, (gpu - 3 for gpu in gpus), strict=True)):
        below = parts.add_root_port(machine, f"pci0000:{card - 1:02x}", node=number // 4)
        for function in range(2):
            rail = 2 * number + function
            address, ipv4 = f"0000:{card:02x}:00.{function}", f"10.{16 + rail}.0.{parts.host_number(hostname)}"
            parts.add_port(machine, "cx7", f"mlx5_{rail}", number, address, below, 200, rail, dual=True, ipv4=ipv4)
            name = machine.netdevs[-1].name
            machine.sysctls |= {f"{name}/arp_ignore": "2", f"{name}/arp_announce": "1", f"{name}/rp_filter": "2"}
        below = parts.add_root_port(machine, f"pci0000:{gpu - 1:02x}", node=number // 4)
        parts.add_gpu(machine, "h100", number, f"0000:{gpu:02x}:00.0", below)
    parts.add_uplink(machine, "02:00:17", "10.0.0.1", 9000)
    return machine


def nics_of_tray(machine: Machine, card: str, gbps: int) -> None:
    """Add two NICs to each Grace."""
    for rail, domain in enumerate(("0000", "0002", "0010", "0012")):
        port = parts.add_root_port(machine, f"pci{domain}:00", "00.0", node=rail // 2)
        parts.add_port(machine, card, f"mlx5_{rail}", rail, f"{domain}:03:00.0", port, gbps, rail)


def gb200(hostname: str = "tray01") -> Machine:
    """Two Grace with two GPUs and two NICs each; hostname: trays of one rack differ in the number at its end."""
    machine = parts.bare_machine(hostname, "gb200-nvl72")
    for number, domain in enumerate(("0008", "0009", "0018", "0019")):
        port = parts.add_root_port(machine, f"pci{domain}:00", "00.0", node=number // 2)
        parts.add_gpu(machine, "gb200", number, f"{domain}:01:00.0", port)
    nics_of_tray(machine, "cx7", 400)
    parts.add_uplink(machine, "3c:6d:66", "10.0.0.254")
    return machine
