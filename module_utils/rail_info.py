# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host's rails are, as other hosts have to know it: to be compared with them (consistency) and to be tested
against them (rail_pairs). Only what is read once a run; which of two values is right is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .core.host import Host, attempt
from .machine import rdma
from .machine.profile import Profile
from .machine.rails import Rails
from .machine.topology import Nic, Topology
from .machine.virtualization import PRODUCT
from .roce import qos as roce_qos
from .roce.chain import Chain
from .roce.port import ports
from .roce.want import Want

DRIVER = "/sys/module/%s/version"
RELEASE = "/proc/sys/kernel/osrelease"


@dataclass(frozen=True)
class RailInfo:
    """None: not known; "" for a rail that has none of it.

    address: of the GID that RDMA takes.   rate_gbps, link_layer: of the profile.   mtu: of the netdev.
    qos: ``trust dscp, PFC 3, DSCP 26 to 3``.   gpu: address of the rail's GPU, with its index in PCI order.
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


@dataclass(frozen=True)
class HostInfo:
    """product: of the machine.   driver: of its NICs, with its version.   missing: rail -> why there is none."""

    product: Optional[str]
    driver: Optional[str]
    rails: Tuple[RailInfo, ...]
    missing: Mapping[int, str]

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def from_dict(data: Mapping[str, Any]) -> HostInfo:
    """What ``to_dict`` gave, after its way through JSON."""
    return HostInfo(
        data["product"],
        data["driver"],
        tuple(RailInfo(**one) for one in data["rails"]),
        {int(number): why for number, why in data["missing"].items()},
    )


def read(host: Host, machine: Topology, found: Rails, profile: Profile, family: str, dscp: Optional[int]) -> HostInfo:
    """found: NICs of the profile's rails. family: "ipv4" or "ipv6", of the rails' addresses.

    dscp: of the lossless queue; None where there is none, and then the ports' QoS is not asked for.
    """
    gpus = found.gpus or {}
    infos = []
    qos = _qos(host, machine, found, dscp)
    for rail in profile.rails:
        nic = found.nics.get(rail.number)
        if nic is None or nic.rdma is None:
            continue
        near = [gpus[index] for index in sorted(rail.paths) if index in gpus]
        infos.append(
            RailInfo(
                number=rail.number,
                pci=nic.pci,
                device=nic.rdma.name,
                netdev=nic.netdevs[0].name if nic.netdevs else "",
                link_layer=rail.link_layers[0],
                rate_gbps=rail.rate_gbps,
                address=_address(nic, family),
                mtu=nic.netdevs[0].mtu if nic.netdevs else None,
                firmware=nic.rdma.firmware,
                psid=nic.rdma.board_id,
                qos=qos.get(nic.pci) if rail.link_layers[0] == "Ethernet" and dscp is not None else "",
                gpu=near[0].pci if near else "",
                gpu_index=near[0].index if near else 0,
            )
        )
    drivers = {nic.device.driver or "no driver" for nic in found.nics.values()}
    return HostInfo(_line(host, PRODUCT), _driver(host, sorted(drivers)), tuple(infos), found.missing)


def _address(nic: Nic, family: str) -> Optional[str]:
    """The rail's own address: that of its RoCE v2 GID. InfiniBand has none here."""
    port = nic.port
    if port is None or port.link_layer != "Ethernet":
        return None
    gid = rdma.rocev2(port, family)
    return None if gid is None else gid.ipv4 or gid.gid


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
    # Values do not matter here: it is what the reader is to ask for.
    asked = Want(chain=Chain(trust="dscp", dscp2prio={dscp: 0}, pfc=()))
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
    """``trust dscp, PFC 3, DSCP 26 to 3``; what a port of the intent would say is made by the same function."""
    on = ",".join(map(str, pfc)) or "off"
    if trust != "dscp":
        return "trust %s, PFC %s" % (trust, on)
    return "trust dscp, PFC %s, DSCP %d to %d" % (on, dscp, priority)
