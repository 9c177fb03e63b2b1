# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the readers into a topology: GPUs, NICs with their roles, and the path between every pair.

Facts only: the profile defines the expected state (profile.py, platform.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, Problem, read_once
from . import gpu, netdev, pci, rdma, virtualization
from .gpu import Driver, Gpu
from .netdev import Netdev, Route
from .pci import (
    MELLANOX,
    PATH_CLASSES,
    PciDevice,
    address_key,
    is_data_direct,
    is_efa,
    is_mlx5_vf,
    is_nic_class,
    path_class,
)
from .rdma import Port, RdmaDevice
from .virtualization import Virtualization

# Without the host bridge in between: GPUDirect RDMA is used by default.
_NEAR = ("X", "PIX", "PXB")
# Roles of a NIC, decided from facts in this order; the first that applies wins.
ROLES = ("efa", "nvswitch", "vf", "management", "bond", "down", "compute", "storage")


class Nic(NamedTuple):
    """One PCI network function with all that is known of it."""

    pci: str
    device: PciDevice
    role: str  # one of ROLES
    reason: str  # the fact that decided, with its value
    rdma: Optional[RdmaDevice]
    netdevs: Tuple[Netdev, ...]

    @property
    def label(self) -> str:
        """``0000:1b:00.0 mlx5_0 ens1f0np0``: the subject of findings about this NIC."""
        names = [self.pci] + ([self.rdma.name] if self.rdma else []) + [netdev.name for netdev in self.netdevs]
        return " ".join(names)

    @property
    def port(self) -> Optional[Port]:
        """The RDMA port that carries a rail: the first that is ACTIVE, else the first; None without one."""
        ports = self.rdma.ports if self.rdma else ()
        return next((port for port in ports if port.state == "ACTIVE"), ports[0] if ports else None)

    @property
    def link_layer(self) -> Optional[str]:
        return self.port.link_layer if self.port else None


@dataclass(frozen=True)
class Topology:
    gpus: Tuple[Gpu, ...]  # in PCI order
    nics: Tuple[Nic, ...]  # in PCI order
    paths: Dict[Tuple[str, str], str]  # (GPU address, NIC address) -> path class
    driver: Optional[Driver]
    routes: Tuple[Route, ...]
    virtualization: Virtualization
    # RDMA devices without a PCI device (rxe, siw; a bond's mlx5_bond_0 is with its PCI function)
    software_rdma: Tuple[RdmaDevice, ...]
    problems: Tuple[Problem, ...]
    # Above GPUs and NICs, by address.
    bridges: Mapping[str, PciDevice] = field(default_factory=dict)
    # Addresses of Elastic Fabric Adapters, with a driver or without.
    efa: Tuple[str, ...] = ()
    # Physical NICs that could have an RDMA device, and have none: no driver, or another one than theirs.
    without_rdma: Tuple[PciDevice, ...] = ()


@read_once
def read(host: Host, ask_nvidia_smi: bool = True) -> Topology:
    """Run every reader and join the results. What could not be read is in ``problems``.

    ask_nvidia_smi: it takes seconds on some machines and is the one source of NVLinks and fabric state only.
    """
    devices, pci_problems = pci.read(host)
    rdma_devices, rdma_problems = rdma.read(host)
    netdevs, netdev_problems = netdev.read(host)
    routes, route_problems = netdev.default_routes(host)
    machine, machine_problems = virtualization.read(host)
    gpus, driver, gpu_problems = gpu.read(host, devices, ask_nvidia_smi)
    problems = pci_problems + rdma_problems + netdev_problems + route_problems + machine_problems + gpu_problems
    return join(devices, rdma_devices, netdevs, routes, gpus, driver, machine, problems)


def join(
    devices: Mapping[str, PciDevice],
    rdma: Sequence[RdmaDevice],
    netdevs: Sequence[Netdev],
    routes: Sequence[Route],
    gpus: Sequence[Gpu],
    driver: Optional[Driver],
    virtualization: Virtualization,
    problems: Sequence[Problem],
) -> Topology:
    """Join what the readers returned.

    NICs are the network functions that have an RDMA device or an interface, and RDMA functions of any class.
    """
    rdma_of, software = _rdma_by_pci(rdma)
    text = "is left out: its PCI function %s could not be read"
    left_out = [Problem(one.source, text % address) for address, one in rdma_of.items() if address not in devices]
    own: Dict[str, List[Netdev]] = {}
    for interface in netdevs:
        own.setdefault(interface.pci or "", []).append(interface)
    network = (one for one in devices.values() if one.address in own and is_nic_class(one.class_code))
    found = {one.address: one for one in (*network, *(devices[address] for address in rdma_of if address in devices))}
    functions = sorted(found.values(), key=lambda device: address_key(device.address))
    paths = {(gpu.pci, device.address): path_class(gpu.device, device) for gpu in gpus for device in functions}
    bonds = {interface.name for interface in netdevs if interface.is_bond}
    carried = _carried(routes, netdevs)
    above = {address for one in (*functions, *(gpu.device for gpu in gpus)) for address in one.ancestors}
    nics = []
    for device in functions:
        rdma_device, interfaces = rdma_of.get(device.address), tuple(own.get(device.address, ()))
        role, reason = _fixed_role(device, rdma_device, interfaces, bonds, carried) or _role(
            device, rdma_device, interfaces, gpus, paths
        )
        nics.append(Nic(device.address, device, role, reason, rdma_device, interfaces))
    bridges = {address: device for address, device in devices.items() if address in above}
    efa = tuple(sorted((one.address for one in devices.values() if is_efa(one)), key=address_key))
    bare = _without_rdma(devices, rdma_of)
    facts = tuple(gpus), tuple(nics), paths, driver, tuple(routes), virtualization
    return Topology(*facts, tuple(software), (*problems, *left_out), bridges, efa, bare)


def _rdma_by_pci(rdma: Sequence[RdmaDevice]) -> Tuple[Dict[str, RdmaDevice], List[RdmaDevice]]:
    """Return RDMA devices by PCI function, and those without one.

    A software device may point at the function of the NIC it runs over: the one with a board behind it wins.
    """
    found: Dict[str, RdmaDevice] = {}
    others = []
    for one in sorted(rdma, key=lambda device: device.hca_type is None):
        if one.pci is None or found.setdefault(one.pci, one) is not one:
            others.append(one)
    return found, others


def _without_rdma(devices: Mapping[str, PciDevice], rdma_of: Mapping[str, RdmaDevice]) -> Tuple[PciDevice, ...]:
    """Return the physical NICs of the makers of those with RDMA that have none."""
    vendors = {MELLANOX, *(devices[address].vendor for address in rdma_of if address in devices)}
    bare = [one for one in devices.values() if one.vendor in vendors and one.address not in rdma_of]
    bare = [one for one in bare if is_nic_class(one.class_code) and not is_data_direct(one)]
    return tuple(one for one in bare if not (one.physfn or is_efa(one) or is_mlx5_vf(one)))


def is_near(topology: Topology, gpu: Gpu, nic: Nic) -> bool:
    """Return whether no host bridge lies between them, as far as the machine shows."""
    return topology.paths.get((gpu.pci, nic.pci)) in _NEAR


def is_far_for_want_of_numa(topology: Topology, gpu: Gpu, nic: Nic) -> bool:
    """Return whether a pair is SYS only because a NUMA node is unknown: another source may report NODE."""
    unknown = gpu.device.numa_node is None or nic.device.numa_node is None
    return unknown and topology.paths.get((gpu.pci, nic.pci)) == "SYS"


def _carried(routes: Sequence[Route], netdevs: Sequence[Netdev]) -> Dict[str, str]:
    """Interfaces that carry the best default route, themselves or below a bond, bridge or VLAN: name -> how."""
    lower = {interface.name: interface.lower for interface in netdevs}
    carried: Dict[str, str] = {}
    for route in [one for one in routes if (one.metric, one.family) == (routes[0].metric, routes[0].family)]:
        pending = [route.netdev]
        while pending:
            name = pending.pop()
            if name not in carried:
                how = "carries the IPv%d default route of %s (metric %d)" % (route.family, route.netdev, route.metric)
                carried[name] = "%s %s" % (name, how)
                pending.extend(lower.get(name, ()))
    return carried


def _fixed_role(
    device: PciDevice,
    rdma: Optional[RdmaDevice],
    interfaces: Sequence[Netdev],
    bonds: AbstractSet[str],
    carried: Mapping[str, str],
) -> Optional[Tuple[str, str]]:
    """Return role and reason of a NIC that cannot be a rail, whatever its state and place."""
    if is_efa(device):
        return "efa", "an Elastic Fabric Adapter, which is neither InfiniBand nor RoCE"
    if rdma is not None and rdma.manages_nvswitch:
        return "nvswitch", "manages the board's NVSwitches, and leads to no other node"
    if device.physfn is not None:
        return "vf", "virtual function of %s" % device.physfn
    if is_mlx5_vf(device):
        text = "%04x:%04x is a ConnectX virtual function; its physical function is not in this guest"
        return "vf", text % (device.vendor, device.device)
    for interface in interfaces:
        if interface.name in carried:
            return "management", carried[interface.name]
    for interface in interfaces:
        if interface.master in bonds:
            return "bond", "%s is a member of %s" % (interface.name, interface.master)
    if rdma is not None and rdma.name.startswith("mlx5_bond_"):
        return "bond", "RDMA device %s spans the ports of a bond" % rdma.name
    return None


def _role(
    device: PciDevice,
    rdma: Optional[RdmaDevice],
    interfaces: Sequence[Netdev],
    gpus: Sequence[Gpu],
    paths: Mapping[Tuple[str, str], str],
) -> Tuple[str, str]:
    """Return role and reason by state and place. In guests without a PCI tree only the link layer decides."""
    # min takes the first of equals: the first GPU in PCI order.
    nearest = min(gpus, key=lambda gpu: PATH_CLASSES.index(paths[gpu.pci, device.address]), default=None)
    path = paths[nearest.pci, device.address] if nearest else None
    where = "nearest GPU %s (%s)" % (nearest.pci, path) if nearest else "no GPU on this machine"
    if rdma is None:
        if any(interface.operstate != "down" for interface in interfaces):
            return "storage", "no RDMA device; %s" % where
        return "down", "%s is down; %s" % (", ".join(interface.name for interface in interfaces), where)
    layers = {port.link_layer or "unknown link layer" for port in rdma.ports if port.state == "ACTIVE"}
    if not layers:
        states = [
            "port %d is %s" % (port.number, port.state or "in an unreadable state")
            + (" (%s)" % port.phys_state if port.phys_state else "")
            for port in rdma.ports
        ]
        return "down", "%s has no ACTIVE port: %s; %s" % (rdma.name, ", ".join(states) or "it shows none", where)
    layer = " and ".join(sorted(layers))
    if path not in _NEAR and layer == "InfiniBand" and not any(near in _NEAR for near in paths.values()):
        return "compute", "InfiniBand, on a machine that shows no NIC near a GPU; %s" % where
    return "compute" if path in _NEAR else "storage", "%s; %s" % (layer, where)
