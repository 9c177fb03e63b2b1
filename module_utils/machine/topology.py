# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the readers into a topology: GPUs, NICs with their roles, and the path between every pair.

Facts only: the profile defines the expected state (profile.py, platform.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host, Problem, read_once
from . import gpu, netdev, pci, rdma, virtualization
from .gpu import Driver, Gpu
from .netdev import DefaultRoute, Netdev
from .pci import MELLANOX, PATH_CLASSES, PciDevice, address_key, is_efa, is_mlx5_vf, is_nic_class, path_class
from .rdma import Port, RdmaDevice, rocev2
from .virtualization import Virtualization

# Without the host bridge in between: GPUDirect RDMA is used by default.
_NEAR = ("X", "PIX", "PXB")
# Roles of a NIC, decided from facts in this order; the first that applies wins.
ROLES = ("efa", "nvswitch", "vf", "management", "bond", "down", "compute", "storage")


@dataclass(frozen=True)
class Nic:
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


@dataclass(frozen=True)
class Topology:
    gpus: Tuple[Gpu, ...]  # in PCI order
    nics: Tuple[Nic, ...]  # in PCI order
    paths: Dict[Tuple[str, str], str]  # (GPU address, NIC address) -> path class
    driver: Optional[Driver]
    routes: Tuple[DefaultRoute, ...]
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
    routes: Sequence[DefaultRoute],
    gpus: Sequence[Gpu],
    driver: Optional[Driver],
    virtualization: Virtualization,
    problems: Sequence[Problem],
) -> Topology:
    """Join what the readers returned.

    NICs are the network functions that have an RDMA device or an interface, and RDMA functions of any class.
    """
    rdma_of, without_pci = _rdma_by_pci(rdma)
    text = "is left out: its PCI function %s could not be read"
    left_out = [Problem(one.source, text % address) for address, one in rdma_of.items() if address not in devices]
    own: Dict[str, List[Netdev]] = {}
    for interface in netdevs:
        if interface.pci is not None:
            own.setdefault(interface.pci, []).append(interface)
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
        role, reason = _role(device, rdma_device, interfaces, gpus, paths, bonds, carried)
        nics.append(Nic(device.address, device, role, reason, rdma_device, interfaces))
    return Topology(
        gpus=tuple(gpus),
        nics=tuple(nics),
        paths=paths,
        driver=driver,
        routes=tuple(routes),
        virtualization=virtualization,
        software_rdma=without_pci,
        problems=(*problems, *left_out),
        bridges={address: device for address, device in devices.items() if address in above},
        efa=tuple(sorted((one.address for one in devices.values() if is_efa(one)), key=address_key)),
        without_rdma=_without_rdma(devices, rdma_of),
    )


def _without_rdma(devices: Mapping[str, PciDevice], rdma_of: Mapping[str, RdmaDevice]) -> Tuple[PciDevice, ...]:
    """Return the physical NICs of the makers of those with RDMA that have none."""
    vendors = {MELLANOX, *(devices[address].vendor for address in rdma_of if address in devices)}
    return tuple(
        device
        for device in devices.values()
        if device.vendor in vendors and device.address not in rdma_of
        if is_nic_class(device.class_code) and not (device.physfn or is_efa(device) or is_mlx5_vf(device))
    )


def _role(
    device: PciDevice,
    rdma: Optional[RdmaDevice],
    interfaces: Sequence[Netdev],
    gpus: Sequence[Gpu],
    paths: Mapping[Tuple[str, str], str],
    bonds: AbstractSet[str],
    carried: Mapping[str, str],
) -> Tuple[str, str]:
    """Return role and reason of a NIC.   carried: as _carried returns it."""
    # min takes the first of equals: the first GPU in PCI order.
    nearest = min(gpus, key=lambda gpu: PATH_CLASSES.index(paths[gpu.pci, device.address]), default=None)
    path = paths[nearest.pci, device.address] if nearest else None
    where = "nearest GPU %s (%s)" % (nearest.pci, path) if nearest else "no GPU on this machine"
    return (
        _foreign(device)
        or _bridge(rdma)
        or _vf(device)
        or _management(interfaces, carried)
        or _bond(rdma, interfaces, bonds)
        or _down(rdma, interfaces, where)
        or _compute_or_storage(rdma, path, where, any(path in _NEAR for path in paths.values()))
    )


def is_near(topology: Topology, gpu: Gpu, nic: Nic) -> bool:
    """Return whether no host bridge lies between them, as far as the machine shows."""
    return topology.paths.get((gpu.pci, nic.pci)) in _NEAR


def is_far_for_want_of_numa(topology: Topology, gpu: Gpu, nic: Nic) -> bool:
    """Return whether a pair is SYS only because a NUMA node is unknown: another source may report NODE."""
    unknown = gpu.device.numa_node is None or nic.device.numa_node is None
    return unknown and topology.paths.get((gpu.pci, nic.pci)) == "SYS"


def to_dict(topology: Topology) -> Dict[str, Any]:
    """Plain data for people and JSON. ``paths`` is GPU -> NIC -> path class."""
    paths: Dict[str, Dict[str, str]] = {}
    for (gpu_address, nic_address), path in topology.paths.items():
        paths.setdefault(gpu_address, {})[nic_address] = path
    return {
        "gpus": [_gpu_dict(gpu) for gpu in topology.gpus],
        "nics": [_nic_dict(nic) for nic in topology.nics],
        "paths": paths,
        "virtualization": asdict(topology.virtualization),
        "driver": asdict(topology.driver) if topology.driver else None,
        "software_rdma": [device.name for device in topology.software_rdma],
        "problems": [str(problem) for problem in topology.problems],
    }


def _rdma_by_pci(rdma: Sequence[RdmaDevice]) -> Tuple[Dict[str, RdmaDevice], Tuple[RdmaDevice, ...]]:
    """Return RDMA devices by PCI function, and those without one.

    A software device may point at the function of the NIC it runs over: the one with a board behind it wins.
    """
    by_pci: Dict[str, RdmaDevice] = {}
    others = []
    for device in sorted(rdma, key=lambda device: device.hca_type is None):
        if device.pci is None or device.pci in by_pci:
            others.append(device)
        else:
            by_pci[device.pci] = device
    return by_pci, tuple(others)


def _carried(routes: Sequence[DefaultRoute], netdevs: Sequence[Netdev]) -> Dict[str, str]:
    """Interfaces that carry the best default route, themselves or below a bond, bridge or VLAN: name -> how."""
    lower = {interface.name: interface.lower for interface in netdevs}
    carried: Dict[str, str] = {}
    for route in routes:
        if (route.metric, route.family) != (routes[0].metric, routes[0].family):
            break
        says = "carries the IPv%d default route of %s (metric %d)" % (route.family, route.netdev, route.metric)
        pending = [route.netdev]
        while pending:
            name = pending.pop()
            if name not in carried:
                carried[name] = says
                pending.extend(lower.get(name, ()))
    return carried


def _foreign(device: PciDevice) -> Optional[Tuple[str, str]]:
    return ("efa", "an Elastic Fabric Adapter, which is neither InfiniBand nor RoCE") if is_efa(device) else None


def _bridge(device: Optional[RdmaDevice]) -> Optional[Tuple[str, str]]:
    bridge = device is not None and device.manages_nvswitch
    return ("nvswitch", "manages the board's NVSwitches, and leads to no other node") if bridge else None


def _vf(device: PciDevice) -> Optional[Tuple[str, str]]:
    if device.physfn is not None:
        return "vf", "virtual function of %s" % device.physfn
    if is_mlx5_vf(device):
        ids = "%04x:%04x" % (device.vendor, device.device)
        return "vf", "%s is a ConnectX virtual function; its physical function is not in this guest" % ids
    return None


def _management(interfaces: Sequence[Netdev], carried: Mapping[str, str]) -> Optional[Tuple[str, str]]:
    for interface in interfaces:
        if interface.name in carried:
            return "management", "%s %s" % (interface.name, carried[interface.name])
    return None


def _bond(
    device: Optional[RdmaDevice], interfaces: Sequence[Netdev], bonds: AbstractSet[str]
) -> Optional[Tuple[str, str]]:
    for interface in interfaces:
        if interface.master in bonds:
            return "bond", "%s is a member of %s" % (interface.name, interface.master)
    if device is not None and device.name.startswith("mlx5_bond_"):
        return "bond", "RDMA device %s spans the ports of a bond" % device.name
    return None


def _down(device: Optional[RdmaDevice], interfaces: Sequence[Netdev], where: str) -> Optional[Tuple[str, str]]:
    if device is None:
        if any(interface.operstate != "down" for interface in interfaces):
            return None
        return "down", "%s is down; %s" % (", ".join(interface.name for interface in interfaces), where)
    if any(port.state == "ACTIVE" for port in device.ports):
        return None
    states = ["port %d is %s" % (port.number, _state_text(port)) for port in device.ports]
    return "down", "%s has no ACTIVE port: %s; %s" % (device.name, ", ".join(states) or "it shows none", where)


def _state_text(port: Port) -> str:
    state = port.state or "in an unreadable state"
    return "%s (%s)" % (state, port.phys_state) if port.phys_state else state


def _compute_or_storage(
    device: Optional[RdmaDevice], path: Optional[str], where: str, any_near: bool
) -> Tuple[str, str]:
    """Return role and reason of a NIC that is up. In guests without a PCI tree only the link layer decides."""
    if device is None:
        return "storage", "no RDMA device; %s" % where
    layer = _link_layer(device)
    if path in _NEAR:
        return "compute", "%s; %s" % (layer, where)
    if not any_near and layer == "InfiniBand":
        return "compute", "InfiniBand, on a machine that shows no NIC near a GPU; %s" % where
    return "storage", "%s; %s" % (layer, where)


def _link_layer(device: RdmaDevice) -> str:
    """Return the link layer of the ports that are up."""
    layers = {port.link_layer or "unknown link layer" for port in device.ports if port.state == "ACTIVE"}
    return " and ".join(sorted(layers))


def _values(thing: object, *names: str) -> Dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


_PCIE = ("current_speed_gts", "current_width", "max_speed_gts", "max_width")


def _gpu_dict(gpu: Gpu) -> Dict[str, Any]:
    of_tool = ("nvlinks_active", "nvlinks_total", "fabric_state", "fabric_status")
    found = _values(gpu, "pci", "index", "model", "uuid", "in_driver", *of_tool)
    return {**found, "numa_node": gpu.device.numa_node, "pcie": _values(gpu.device, *_PCIE)}


def _nic_dict(nic: Nic) -> Dict[str, Any]:
    return {
        **_values(nic, "pci", "role", "reason"),
        "rdma": nic.rdma.name if nic.rdma else None,
        "firmware": nic.rdma.firmware if nic.rdma else None,
        "ports": [_port_dict(port) for port in nic.rdma.ports] if nic.rdma else [],
        "netdevs": [_values(interface, "name", "mtu") for interface in nic.netdevs],
        "numa_node": nic.device.numa_node,
        "pcie": _values(nic.device, *_PCIE),
    }


def _port_dict(port: Port) -> Dict[str, Any]:
    ipv4 = rocev2(port, "ipv4")
    found = _values(port, "number", "state", "phys_state", "rate_gbps", "link_layer")
    return {**found, "gids": len(port.gids), "rocev2_ipv4_gid_index": ipv4.index if ipv4 else None}
