# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse NCCL's topology of the machine: the XML of NCCL_TOPO_DUMP_FILE and NCCL_TOPO_FILE.

A dump is what NCCL found, a topology file what a cloud declares; the second has no <gpu> and <net>, and
its switches have made-up bus ids (ffff:ff:01.0). In both, a <pci> inside a <pci> is a device behind a switch.
Source: NCCL src/graph/{xml,topo,paths}.cc (2.30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple
from xml.etree.ElementTree import Element

from ..core import number
from ..core.host import ParseError
from ..machine.gpu import parse_markup
from ..machine.pci import nccl_class, parse_address
from ..machine.profile import PcieLink
from ..machine.topology import Nic, Topology, is_far_for_want_of_numa

_SPEED = re.compile(r"^([0-9]{1,3}(?:\.[0-9])?) GT/s")
# Deeper than any PCI hierarchy: a bus number has eight bits.
_MAX_DEPTH = 256


class NcclGpu(NamedTuple):
    busid: str
    nvlinks: Optional[int]  # None in a topology file


class NcclNet(NamedTuple):
    """name: mlx5_0, eth0, or mlx5_0+mlx5_1 for ports used as one; None in a topology file.

    busid: of the PCI device above it, usually with function 0 for all ports of a card; None for virtual ones.
    """

    name: Optional[str]
    busid: Optional[str]

    @property
    def label(self) -> str:
        return self.name or self.busid or ""


@dataclass(frozen=True)
class NcclTopology:
    gpus: Tuple[NcclGpu, ...]
    nets: Tuple[NcclNet, ...]
    # (GPU bus id, label of the net) -> PIX, PXB, PHB or SYS as the file nests them. NCCL makes one switch of a
    # two-level Broadcom switch only after it wrote the file: its log can have PIX where this has PXB.
    paths: Dict[Tuple[str, str], str]
    # Bus id of each GPU and NIC -> links from itself up to the CPU, as in the file; NCCL reads absent ones from sysfs.
    links: Dict[str, Tuple[PcieLink, ...]] = field(default_factory=dict)


def parse(text: str) -> NcclTopology:
    """The picture of one machine. Raises ParseError, also for a dump that spans several (one NVLink domain)."""
    system = parse_markup(text, "system")
    hosts = {cpu.get("host_hash") for cpu in system.findall("cpu")}
    if not hosts or len(hosts) > 1:
        raise ParseError("<system> has the <cpu> of %d machines, expected those of one" % len(hosts))
    gpus: List[Tuple[NcclGpu, Tuple[int, ...]]] = []
    nets: List[Tuple[NcclNet, Tuple[int, ...]]] = []
    links: Dict[str, Tuple[PcieLink, ...]] = {}
    for place, cpu in enumerate(system.findall("cpu")):
        nets.extend((net, (place,)) for net in _nets(cpu, None))
        for pci, above, up in _devices(cpu, (place,), ()):
            kind = pci.get("class", "")
            if pci.find("gpu") is not None or kind.startswith("0x03"):
                gpus.extend((gpu, above) for gpu in _gpus(pci))
            elif pci.find("nic") is not None or kind.startswith("0x02"):
                nets.extend((net, above) for net in _nets(pci, _busid(pci)) or [NcclNet(None, _busid(pci))])
            else:
                continue
            links[_busid(pci)] = up
    return NcclTopology(
        gpus=tuple(gpu for gpu, _above in gpus),
        nets=tuple(net for net, _above in nets),
        paths={(gpu.busid, net.label): _path(a, b) for gpu, a in gpus for net, b in nets},
        links=links,
    )


def _devices(
    parent: Element, above: Tuple[int, ...], up: Tuple[PcieLink, ...]
) -> Iterator[Tuple[Element, Tuple[int, ...], Tuple[PcieLink, ...]]]:
    """Yield every <pci> below, with what is above it: the number of its CPU, then of each switch within the one before.

    Then the links from it up to the CPU, the nearest first; up: those of the parent.
    """
    if len(above) > _MAX_DEPTH:
        raise ParseError("<pci> are nested more than %d deep" % _MAX_DEPTH)
    for place, pci in enumerate(parent.findall("pci")):
        link = _link(pci)
        links = (link, *up) if link is not None else up
        yield pci, above, links
        yield from _devices(pci, (*above, place), links)


def _link(pci: Element) -> Optional[PcieLink]:
    """None where the file has nothing about it, or nothing that is a link."""
    speed, width = _SPEED.match(pci.get("link_speed", "")), pci.get("link_width", "")
    if speed is None or re.match(r"^[0-9]{1,3}$", width) is None or not int(width):
        return None
    return PcieLink(float(speed.group(1)), int(width))


def _path(a: Tuple[int, ...], b: Tuple[int, ...]) -> str:
    """Path class of two devices from what is above them."""
    if a[0] != b[0]:
        return "SYS"
    if len(a) == 1 or len(b) == 1 or a[1] != b[1]:
        return "PHB"
    return "PIX" if a == b else "PXB"


def _gpus(pci: Element) -> List[NcclGpu]:
    gpus = []
    for gpu in pci.findall("gpu"):
        counts = [link.get("count", "0") for link in gpu.findall("nvlink")]
        numbers = [number.whole(count) for count in counts]
        if None in numbers:
            wrong = counts[numbers.index(None)]
            raise ParseError('<nvlink count="%.40s">, expected a number' % wrong)
        gpus.append(NcclGpu(_busid(pci), sum(count or 0 for count in numbers)))
    return gpus or [NcclGpu(_busid(pci), None)]


def _nets(parent: Element, busid: Optional[str]) -> List[NcclNet]:
    nets = [NcclNet(net.get("name") or None, busid) for net in parent.findall("nic/net")]
    if any(net.name is None and busid is None for net in nets):
        raise ParseError("a <net> has neither a name nor a PCI device above it")
    return nets


def _busid(pci: Element) -> str:
    return parse_address(pci.get("busid", ""))


def disagreements(nccl: NcclTopology, topology: Topology) -> List[str]:
    """One sentence for each thing that NCCL and sysfs see differently; [] where they agree."""
    said: List[str] = []
    gpus = {gpu.pci: gpu for gpu in topology.gpus}
    if len(nccl.gpus) != len(gpus):
        said.append("NCCL lists %d GPUs, sysfs has %d" % (len(nccl.gpus), len(gpus)))
    for listed in nccl.gpus:
        gpu = gpus.get(listed.busid)
        if gpu is None:
            said.append("%s: NCCL lists a GPU there, sysfs has none" % listed.busid)
        elif listed.nvlinks is not None and gpu.nvlinks_active not in (None, listed.nvlinks):
            said.append(
                "GPU%d %s: NCCL reports %d NVLinks, nvidia-smi nvlink -s reports %s"
                % (gpu.index, gpu.pci, listed.nvlinks, gpu.nvlinks_active)
            )
    for nic in topology.nics:
        if nic.role == "compute" and not lists(nccl, nic):
            said.append("%s: is a compute NIC (%s) that NCCL does not list" % (nic.label, nic.reason))
    for net in nccl.nets:
        own = next((nic for nic in topology.nics if _is_of(net, nic)), None)
        if own is not None and own.role == "nvswitch":
            said.append("%s: NCCL uses it, and it %s" % (own.label, own.reason))
        for listed in nccl.gpus:
            have = topology.paths.get((listed.busid, own.pci)) if own else None
            path = nccl.paths[listed.busid, net.label]
            gpu = gpus.get(listed.busid)
            if path == "PHB" and gpu and own and is_far_for_want_of_numa(topology, gpu, own):
                continue
            if have is not None and nccl_class(have) != path:
                subject = "GPU%d %s - %s" % (gpus[listed.busid].index, listed.busid, net.label)
                said.append("%s: NCCL reports %s, sysfs reports %s" % (subject, path, have))
    return said


def lists(nccl: NcclTopology, nic: Nic) -> bool:
    names = {part for net in nccl.nets for part in (net.name or "").split("+")}
    name = nic.rdma.name if nic.rdma else None
    # With Data Direct NCCL calls the device mlx5_0_dma.
    return name in names or "%s_dma" % name in names or net_of(nccl, nic) is not None


def net_of(nccl: NcclTopology, nic: Nic) -> Optional[NcclNet]:
    """The entry that is this NIC's and no other's; None where there is none."""
    return next((net for net in nccl.nets if _is_of(net, nic)), None)


def _is_of(net: NcclNet, nic: Nic) -> bool:
    """Return whether the net is this NIC's alone: not a fused one, which sits where its parts meet, and not one of Data
    Direct, which has a separate path. NCCL writes function 0 for every port of a card."""
    if net.name is None:
        return net.busid is not None and net.busid[:-1] == nic.pci[:-1]
    return nic.rdma is not None and nic.rdma.name == net.name
