# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated nodes with ConnectX-8 on the board of their GPUs: HGX B300, and a tray of GB300 NVL72.

Trees are those that rdma-core's rdma_topo describes: a port of the root, the switch of the ConnectX-8, and below it the
NIC (B300) or its function for Data Direct (GB300), and a second switch with the GPU. Neither machine was at hand.
"""

from __future__ import annotations

import uuid

from . import parts
from .machine import ACS_CLEAR, ACS_REDIRECT, BRIDGE, GEN5, MELLANOX, Machine, Netdev
from .machines import nics_of_tray

_SWITCH, _DATA_DIRECT, _DMA = (MELLANOX, "0x197c"), (MELLANOX, "0x2100"), "0x080100"
_BASES = (0x10, 0x20, 0x30, 0x40, 0x90, 0xA0, 0xB0, 0xC0)
_PLANES = 2


def _switch(machine: Machine, root_port: str, acs: int) -> tuple[str, str]:
    """Add the switch of a ConnectX-8; returns the ports above its own function and above the GPU."""
    domain, base = root_port[:5], int(root_port[5:7], 16)
    upstream, own, way, second, last = (
        f"{domain}{base + bus:02x}:{device:02x}.0" for bus, device in ((1, 0), (2, 0), (2, 1), (4, 0), (5, 0))
    )
    for address, parent in ((upstream, root_port), (own, upstream), (way, upstream), (second, way), (last, second)):
        port = parts.add(machine, address, parent, BRIDGE, _SWITCH, "pcieport", GEN5)
        port.acs = acs if address in (own, way, last) else None
    return own, last


def hgx_b300(hostname: str = "b300", in_vrfs: bool = True) -> Machine:
    """Eight B300 with eight ConnectX-8, each in two RoCE planes with an IPv6 prefix; one VRF a rail.

    Two ConnectX-7 manage the NVSwitches.
    """
    machine = parts.bare_machine(hostname, "hgx-b300")
    for number, base in enumerate(_BASES):
        root_port = parts.add_root_port(machine, f"pci0000:{base:02x}", node=number // 4)
        own, last = _switch(machine, root_port, ACS_CLEAR)
        for plane in range(_PLANES):
            rail, address = _PLANES * number + plane, f"0000:{base + 3:02x}:00.{plane}"
            prefix = f"fd02:0:{rail:x}:{parts.host_number(hostname):x}"
            parts.add_port(machine, "cx8", f"mlx5_{rail}", number, address, own, 400, rail, dual=True, ipv6=prefix)
            name = machine.netdevs[-1].name
            machine.sysctls |= {f"{name}/arp_ignore": "1", f"{name}/arp_announce": "2", f"{name}/rp_filter": "0"}
            if in_vrfs:
                machine.netdevs[-1].master = f"vrf-rail{rail}"
        parts.add_gpu(machine, "b300", number, f"0000:{base + 6:02x}:00.0", last)
    for rail in range(_PLANES * len(_BASES)) if in_vrfs else ():
        mac = parts.mac_address(hostname, rail, 7, oui="02:00:00")
        machine.netdevs.append(Netdev(f"vrf-rail{rail}", None, mac, 65575, None, vrf=1001 + rail))
    parts.add_uplink(machine, "3c:ec:ef", "10.0.0.254")
    for index in range(2):
        address, root_port = (
            f"0000:e{index + 1}:00.0",
            parts.add_root_port(machine, f"pci0000:e{index}", "02.0", node=1),
        )
        rdma = parts.add_port(machine, "cx7", f"mlx5_{16 + index}", 12 + index, address, root_port, 400)
        machine.function(rdma.address).vpd = "SW_MNG"
    return machine


def gb300(hostname: str = "tray21") -> Machine:
    """A tray with four ConnectX-8, each with a Data Direct function beside a GPU; hostname as for gb200."""
    machine = parts.bare_machine(hostname, "gb300-nvl72")
    slots = []
    for number, domain in enumerate(("0008", "0009", "0018", "0019")):
        root_port = parts.add_root_port(machine, f"pci{domain}:00", "00.0", node=number // 2)
        machine.function(root_port).acs = ACS_REDIRECT
        own, last = _switch(machine, root_port, ACS_REDIRECT)
        slots.append((f"{domain}:03:00.0", own))
        parts.add_gpu(machine, "gb300", number, f"{domain}:06:00.0", last)
    nics_of_tray(machine, "cx8", 800)
    # The second NIC of a CPU belongs to its first GPU.
    for rail, slot in zip((1, 0, 3, 2), slots, strict=True):
        function = parts.add(machine, slot[0], slot[1], _DMA, _DATA_DIRECT, "mlx5_core", GEN5)
        nic = machine.function(machine.rail(rail).address)
        function.vpd = nic.vpd = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{hostname}/{rail}"))
    flags = {"00:00.0": "111x0", "02:00.0": "110x1", "02:01.0": "101x1"}
    items = [f"{word}@{slot[0][:5]}{place}" for slot in slots for place, word in flags.items()]
    machine.cmdline += f' pci="config_acs={";".join(items)}"'
    parts.add_uplink(machine, "3c:6d:66", "10.0.0.254")
    return machine
