# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read of a host what the control node compares between hosts (fleet), and tests between them (rail_pairs).

Which of two values is right is decided there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .change import busy
from .core.host import Host, attempt
from .core.plan import Plan
from .machine import netdev_address, netdev_routing, rdma, topology
from .machine.netdev_address import Address
from .machine.profile import Profile, Rail, from_options
from .machine.rail_address import interfaces
from .machine.rails import Rails, match
from .machine.rdma import RdmaDevice
from .machine.topology import Nic, Topology
from .machine.virtualization import PRODUCT
from .roce_qos import read as roce_qos
from .roce_qos.chain import Chain, PortConfig
from .roce_qos.port import ports
from .roce_qos.settings import parse_traffic_class

DRIVER = "/sys/module/%s/version"
RELEASE = "/proc/sys/kernel/osrelease"
HOSTNAME = "/proc/sys/kernel/hostname"
# systemd, machine-id(5).
MACHINE_ID = "/etc/machine-id"
# Addresses of a rail that are compared.
_ADDRESSES = 16


@dataclass(frozen=True)
class RailInfo:
    """None: not known; "" for a rail that has none of it.

    address: of the GID that RDMA takes.   rate_gbps, link_layer: of the profile.   mtu: of the netdev.
    qos: ``trust dscp, PFC 3, DSCP 26 to 3``.   gpu: address of the rail's GPU, with its index in PCI order.
    addresses: ``10.16.0.1/24``, of its interface.   guids: kind (node, port, system) -> 16 hex digits.
    vrf: that its interface is in.
    """

    number: int
    pci: str
    device: str
    netdev: str
    link_layer: str
    rate_gbps: float
    address: Optional[str]
    mtu: Optional[int]
    firmware: Optional[str]
    psid: Optional[str]
    qos: Optional[str]
    gpu: str = ""
    gpu_index: int = 0
    addresses: Sequence[str] = ()
    guids: Mapping[str, str] = field(default_factory=dict)
    vrf: str = ""


@dataclass(frozen=True)
class HostInfo:
    """product: of the machine.   driver: of its NICs, with its version.   missing: rail -> why there is none.

    gpus: UUIDs.
    """

    product: Optional[str]
    driver: Optional[str]
    rails: Tuple[RailInfo, ...]
    missing: Mapping[int, str]
    gpus: Sequence[str] = ()

    def to_dict(self) -> Dict[str, object]:
        return asdict(self)


def read_rails(host: Host, given: Mapping[str, Any]) -> Dict[str, object]:
    """Return what topology_info returns of the subset ``rails``. Raises ParseError."""
    want = from_options(given)
    machine = topology.read(host, ask_nvidia_smi=False)
    dscp = given["dscp"] if given["dscp"] >= 0 else None
    info = read(host, machine, match(machine, want), want, given["address_family"], dscp)
    users = busy.read(host)
    reasons = [*users.reasons, *("not known to be idle: %s" % problem for problem in users.problems)]
    return dict(Plan().result(), rail_info=info.to_dict(), busy=reasons)


def read(
    host: Host,
    machine: Topology,
    found: Rails,
    profile: Profile,
    family: str,
    dscp: Optional[int],
) -> HostInfo:
    """Read the rails. found: NICs of the profile's rails. family: "ipv4" or "ipv6", of the rails' addresses.

    dscp: of the lossless queue; without, only the traffic class that the driver forces is read of the ports' QoS.
    """
    on_wire = attempt(lambda: netdev_address.read(host), " ".join(netdev_address.ADDRESSES), []) or {}
    netdevs = [one for nic in found.nics.values() for one in nic.netdevs]
    vrfs = attempt(lambda: netdev_routing.vrf_names(host, netdevs), " ".join(netdev_routing.VRFS), []) or {}
    qos = _qos(host, machine, found, dscp)
    infos = []
    for rail in profile.rails:
        nic = found.nics.get(rail.number)
        if nic is not None and nic.rdma is not None:
            on_ethernet = rail.link_layers[0] == "Ethernet"
            summary = qos.get(nic.pci) if dscp is not None and on_ethernet else _forced_class(host, nic)
            addresses = _addresses(nic, on_wire) if on_ethernet else []
            is_vm = machine.virtualization.is_vm
            info = _rail(rail, nic, nic.rdma, found, family, qos=summary, addresses=addresses, is_vm=is_vm)
            infos.append(replace(info, vrf=vrfs[info.netdev].name) if info.netdev in vrfs else info)
    drivers = {nic.device.driver or "no driver" for nic in found.nics.values()}
    uuids = [gpu.uuid for gpu in machine.gpus if gpu.uuid]
    return HostInfo(_line(host, PRODUCT), _driver(host, sorted(drivers)), tuple(infos), found.missing, tuple(uuids))


def _rail(
    rail: Rail,
    nic: Nic,
    device: RdmaDevice,
    found: Rails,
    family: str,
    qos: Optional[str],
    addresses: Sequence[str],
    is_vm: bool,
) -> RailInfo:
    gpus, netdev = found.gpus or {}, nic.netdevs[0] if nic.netdevs else None
    near = [gpus[index] for index in sorted(rail.paths) if index in gpus]
    return RailInfo(
        number=rail.number,
        pci=nic.pci,
        device=device.name,
        netdev=netdev.name if netdev else "",
        link_layer=rail.link_layers[0],
        rate_gbps=rail.rate_gbps,
        address=_address(nic, family),
        mtu=netdev.mtu if netdev else None,
        firmware=device.firmware,
        psid=device.board_id,
        qos=qos,
        gpu=near[0].pci if near else "",
        gpu_index=near[0].index if near else 0,
        addresses=addresses,
        guids=_guids(nic, is_vm),
    )


def facts(host: Host, machine: Topology) -> Dict[str, Optional[str]]:
    """Read what identifies the host, and what it runs. None: could not be read; "": it has none."""
    identity = attempt(lambda: host.read_system(MACHINE_ID), MACHINE_ID, [])
    models = sorted({gpu.model for gpu in machine.gpus if gpu.model})
    return {
        "hostname": _line(host, HOSTNAME),
        "machine_id": "" if identity is None else identity.strip(),
        "kernel": _line(host, RELEASE),
        "gpu_driver": machine.driver.version if machine.driver else "",
        "gpu_model": ", ".join(models),
    }


def _addresses(nic: Nic, addresses: Mapping[str, Sequence[Address]]) -> List[str]:
    """Return the addresses of the interface, and of a bond or VLAN above it that its GIDs name."""
    names = interfaces(nic, nic.port) if nic.port else []
    found = ["%s/%d" % (one.address, one.length) for name in names for one in addresses.get(name, ())]
    return found[:_ADDRESSES]


def _guids(nic: Nic, is_vm: bool) -> Dict[str, str]:
    """Return kind -> digits. Virtual functions share the system's with their card; a RoCE port's is made of its MAC."""
    port, device = nic.port, nic.rdma
    if device is None:
        return {}
    first = next((gid.gid for gid in (port.gids if port else ()) if gid.index == 0), "")
    own = first[20:] if first.startswith("fe80:") or (port and port.link_layer == "InfiniBand") else ""
    given = {"node": device.node_guid, "port": own, "system": None if is_vm else device.sys_image_guid}
    digits = {kind: (guid or "").replace(":", "") for kind, guid in given.items()}
    return {kind: guid for kind, guid in digits.items() if guid.strip("0")}


def _forced_class(host: Host, nic: Nic) -> str:
    """Return the traffic class that OFED's driver forces upon every queue pair; other drivers have none."""
    port = nic.port
    if nic.rdma is None or port is None or port.link_layer != "Ethernet":
        return ""
    path = "%s/%s/tc/%d/traffic_class" % (rdma.DEVICES, nic.rdma.name, port.number)
    forced = attempt(lambda: parse_traffic_class(host.read(path) or ""), path, [])
    return "no forced traffic class" if forced in (None, -1) else "forced traffic class %d" % forced


def _address(nic: Nic, family: str) -> Optional[str]:
    """Return the address of the rail's RoCE v2 GID; None on InfiniBand."""
    port = nic.port
    if port is None or port.link_layer != "Ethernet":
        return None
    gid = rdma.rocev2(port, family)
    return None if gid is None else gid.address


def _driver(host: Host, names: List[str]) -> Optional[str]:
    """``mlx5_core 25.10-1.7.1``; a driver of the kernel has the kernel's version."""
    said = []
    for name in names:
        version = _line(host, DRIVER % name) or _line(host, RELEASE)
        if version is None:
            return None
        said.append("%s %s" % (name, version))
    return ", ".join(said) or None


def _line(host: Host, path: str) -> Optional[str]:
    """Text of a file; None where it is not there or cannot be read."""
    return attempt(lambda: host.read(path), path, [])


def _qos(host: Host, machine: Topology, found: Rails, dscp: Optional[int]) -> Dict[str, Optional[str]]:
    """PCI address -> summary, of the rails' Ethernet ports."""
    if dscp is None:
        return {}
    # Values do not matter here: they only select what is read.
    asked = PortConfig(chain=Chain(trust="dscp", dscp2prio={dscp: 0}, pfc=()))
    said: Dict[str, Optional[str]] = {}
    for state in roce_qos.read(host, ports(machine, found), asked).ports:
        known = not any(noun in state.gaps for noun in ("trust", "dscp2prio", "pfc"))
        dcb = state.dcb
        if known and dcb.trust is not None and dcb.pfc is not None:
            said[state.port.pci] = summary(dcb.trust, dcb.pfc, dscp, dict(dcb.dscp2prio).get(dscp, 0))
        else:
            said.setdefault(state.port.pci, None)
    return said


def summary(trust: str, pfc: Tuple[int, ...], dscp: int, priority: int) -> str:
    """Return ``trust dscp, PFC 3, DSCP 26 to 3``, for a port and for the intent alike."""
    on = ",".join(map(str, pfc)) or "off"
    if trust != "dscp":
        return "trust %s, PFC %s" % (trust, on)
    return "trust dscp, PFC %s, DSCP %d to %d" % (on, dscp, priority)
