# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""OCI's bare metal BM.GPU.H100.8: both ports of a ConnectX-7 for each of eight H100.

What OCI publishes is from there: addresses of GPUs and ports (its node check), how the kernel treats several rails
(host.md 2.5), the asset tag (cloud-init's data source for Oracle). Which switches lie between them nobody says: here
each card is below a root port of its own, which says nothing of the real machine. NVSwitches are where other HGX boards
of the lab have them. No such machine was at hand.
"""

from __future__ import annotations

from .machine import GEN5, INTEL, NVIDIA, HostBridge, Link, Machine, Netdev, Route
from .machines import (
    _CX7,
    _H100,
    _add,
    _gpu,
    _host_number,
    _mac,
    _machine,
    _plug,
    _port,
    _root_port,
    _switch,
)

TAG = "OracleCloud.com"
_GPUS = (0x0F, 0x2D, 0x44, 0x5B, 0x89, 0xA8, 0xC0, 0xD8)
_CARDS = (0x0C, 0x2A, 0x41, 0x58, 0x86, 0xA5, 0xBD, 0xD5)


def bm_gpu_h100_8(hostname: str = "oci01") -> Machine:
    host = _host_number(hostname)
    machine = _machine(hostname, "oci-bm-gpu-h100-8")
    machine.host_bridges.append(HostBridge("pci0000:00", 0))
    _add(machine, "0000:00:00.0", "pci0000:00", "0x060000", (INTEL, "0x09a2"), None, None)
    for index, port in enumerate(_switch(machine, _root_port(machine, "pci0000:00"), 3, 4)):
        ids, link = (NVIDIA, "0x22a3"), Link(GEN5.speed, 2)
        _plug(machine, f"0000:{5 + index:02x}:00.0", port, "0x068000", ids, "nvidia-nvswitch", link, "0x1796", "0xa1")
    for number, (gpu, card) in enumerate(zip(_GPUS, _CARDS, strict=True)):
        below = _root_port(machine, f"pci0000:{card - 1:02x}", node=number // 4)
        for function in range(2):
            rail = 2 * number + function
            address, ipv4 = f"0000:{card:02x}:00.{function}", f"10.{16 + rail}.0.{host}"
            _port(machine, _CX7, f"mlx5_{rail}", number, address, below, 200, rail, dual=True, ipv4=ipv4)
            name = machine.netdevs[-1].name
            machine.sysctls |= {f"{name}/arp_ignore": "2", f"{name}/arp_announce": "1", f"{name}/rp_filter": "2"}
        below = _root_port(machine, f"pci0000:{gpu - 1:02x}", node=number // 4)
        _gpu(machine, _H100, number, f"0000:{gpu:02x}:00.0", below)
    machine.netdevs.append(Netdev("eth0", None, _mac(hostname, 9, 0, oui="02:00:17"), 9000, 100000))
    machine.routes += [Route("eth0", "0.0.0.0/0", "10.0.0.1"), Route("eth0", "10.0.0.0/24")]
    return machine
