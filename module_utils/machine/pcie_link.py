# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the PCIe links above GPUs and NICs: between a root port or switch and the switch below it.

The profile declares the last link, of the GPU or NIC (platform.gpu_pcie, platform.rail_pcie). A link above it should
run at the most that both its ends can, and carry at least what its rail needs. An idle GPU
lowers the speed of its link; switches keep theirs, and power management (ASPM) changes neither speed nor width.
Sources: kernel Documentation/ABI/testing/sysfs-bus-pci; PCI Express Base Specification 6.0, 4.2 (encodings), 7.5.3.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .pci import ADDRESS, PciDevice
from .profile import PcieLink, Rail
from .rails import Rails
from .topology import Topology

# The fastest link of today's CPUs: a NIC with more, such as ConnectX-8, has its GPU below a switch of the NIC.
_TO_CPU = PcieLink(32, 16)


class InnerLink(NamedTuple):
    """A link whose lower end is a switch. lower, upper: PCI addresses of its ends.

    now, possible: what the link runs at, and the most that both ends can; None where the kernel does not say.
    pairs: each GPU and rail whose data go over the link, with that rail's need in Gbit/s.
    behind: names of the GPUs and rails below it, which reach the CPU and its memory over it.
    needs: Gbit/s of the most demanding rail that uses the link: that several share it is the platform's design.
    """

    lower: str
    upper: str
    source: str
    now: Optional[PcieLink]
    possible: Optional[PcieLink]
    pairs: Tuple[Tuple[str, float], ...]
    behind: Tuple[str, ...]
    needs: float


def gbps(link: PcieLink) -> float:
    """Return Gbit/s of a link less its encoding: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits of 242/256 from 64."""
    share = 0.8 if link.speed_gts <= 5 else 128 / 130 if link.speed_gts <= 32 else 242 / 256
    return link.speed_gts * link.width * share


def inner_links(topology: Topology, rails: Rails, asked: Sequence[Rail]) -> Tuple[InnerLink, ...]:
    """Return the links above the GPUs and the rails' NICs, by address; () in a virtual machine.

    The bridges that a hypervisor shows are not real.
    """
    if topology.virtualization.is_vm:
        return ()
    devices = {gpu.pci: ("GPU %d" % gpu.index, gpu.device, 0.0) for gpu in topology.gpus}
    rates = {rail.number: rail.rate_gbps for rail in asked}
    for number, nic in sorted(rails.nics.items()):
        devices[nic.pci] = "rail %d" % number, nic.device, rates.get(number, 0.0)
    below: Dict[Tuple[str, str], List[Tuple[str, float]]] = {}
    for name, device, wanted in devices.values():
        for ends in _links(device):
            below.setdefault(ends, []).append((name, min(_rate(wanted, device), gbps(_TO_CPU))))
    pairs = _pairs(rails, asked)
    found = []
    for (upper, lower), behind in sorted(below.items()):
        own, port = topology.bridges.get(lower), topology.bridges.get(upper)
        if own is not None and port is not None and _is_conventional(topology, own):
            continue
        source = own.source if own else "/sys/bus/pci/devices/%s" % lower
        now = _link(own.current_speed_gts, own.current_width) if own else None
        possible = _link(own.max_speed_gts, own.max_width) if own and port else None
        over, names = tuple(pairs.get(lower, ())), tuple(name for name, _rate in behind)
        needs = max(rate for _name, rate in (*behind, *over))
        found.append(InnerLink(lower, upper, source, now, possible, over, names, needs))
    return tuple(found)


def _links(device: PciDevice) -> List[Tuple[str, str]]:
    """Return (upper end, lower end) of each link above the device's.

    Below a host bridge comes a root port, below that by turns a switch's upstream and downstream port. There is no link
    between those two. A chain that does not end so is of another kind and is left out.
    """
    chain = device.ancestors[1:]
    if len(chain) % 2 == 0 or not all(ADDRESS.fullmatch(address) for address in chain):
        return []
    return [(chain[at - 1], chain[at]) for at in range(1, len(chain), 2)]


def _pairs(rails: Rails, asked: Sequence[Rail]) -> Mapping[str, List[Tuple[str, float]]]:
    """Return address of a bridge -> the rails that use it between their GPU and their NIC."""
    found: Dict[str, List[Tuple[str, float]]] = {}
    for rail, index in [(wanted, index) for wanted in asked for index in sorted(wanted.paths)]:
        gpu, nic = (rails.gpus or {}).get(index), rails.nics.get(rail.number)
        if gpu is not None and nic is not None:
            rate = _rate(rail.rate_gbps, gpu.device, nic.device)
            for address in set(gpu.device.ancestors) ^ set(nic.device.ancestors):
                found.setdefault(address, []).append(("GPU %d and rail %d" % (index, rail.number), rate))
    return found


def _rate(wanted: float, *ends: PciDevice) -> float:
    """Return Gbit/s over a link for the wanted rate: a slower end is that end's finding."""
    links = [_link(end.max_speed_gts, end.max_width) for end in ends]
    return min([wanted, *(gbps(link) for link in links if link is not None)])


def _is_conventional(topology: Topology, bridge: PciDevice) -> bool:
    """Return whether a bridge has no link: neither width is shown, and none is unreadable."""
    unread = any(bridge.address in problem.source for problem in topology.problems)
    return bridge.max_width is None is bridge.current_width and not unread


def _link(speed: Optional[float], width: Optional[int]) -> Optional[PcieLink]:
    return None if speed is None or width is None else PcieLink(speed, width)
