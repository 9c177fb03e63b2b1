# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Ethernet ports of the rails, and RoCE's settings of each as mlnx_qos and sysfs report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

from ..machine import netdev, rdma
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology
from .chain import Queues

# Settings of the RDMA device; all others belong to the port.
OF_RDMA = ("tos", "traffic_class")


class Gap(NamedTuple):
    """Why a setting is not known. state: of the finding, unknown or, where the port cannot have it, unsupported."""

    state: str
    have: str
    source: str
    fix: str


class Port(NamedTuple):
    """One Ethernet port of a rail, of a bond each member.

    of_rdma, of_port: whether the settings of the RDMA device (OF_RDMA) and those of the port are asked of it.
    gap: why nothing is known of the port's settings and, where ``silent``, of the RDMA device's.
    rdma: None for a member of a bond whose RDMA device is with another member.
    """

    label: str
    pci: str
    netdev: str
    rdma: Optional[str]
    rdma_port: int = 1
    of_rdma: bool = True
    of_port: bool = True
    gap: Optional[Gap] = None
    silent: bool = False

    @property
    def number(self) -> int:
        """Return the port's number in names of firmware variables: each port of a card is a function."""
        return int(self.pci[-1]) + 1

    def has(self, name: str) -> bool:
        """Return whether the setting applies to this port."""
        return self.of_rdma if name in OF_RDMA else self.of_port


@dataclass(frozen=True)
class Dcb(Queues):
    """Settings of a port that mlnx_qos reports; None: not reported.

    owner: of DCBX, os or firmware.   lldpad: mlnx_qos has seen it run.   trust: pcp, dscp, both, none.
    dscp2prio: (DSCP, priority) in the order of the kernel's list, which means nothing. A DSCP that is not in it has
        priority 0; without trust in the DSCP the map is not in force.
    pfc: priorities with PFC.
    """

    owner: Optional[str] = None
    lldpad: bool = False
    trust: Optional[str] = None
    dscp2prio: Tuple[Tuple[int, int], ...] = ()
    pfc: Optional[Tuple[int, ...]] = None


class Pause(NamedTuple):
    """Global pause as configured, which may differ from what was negotiated."""

    autonegotiate: bool
    rx: bool
    tx: bool


@dataclass(frozen=True)
class PortState:
    """A port as it is. gaps: setting -> why it is not known; its value means nothing then.

    numbers: path of an attribute in sysfs or configfs -> its value. A forced traffic class is -1 for none.
    """

    port: Port
    dcb: Dcb = field(default_factory=Dcb)
    numbers: Mapping[str, int] = field(default_factory=dict)
    pause: Optional[Pause] = None
    gaps: Mapping[str, Gap] = field(default_factory=dict)


def ports(topology: Topology, rails: Rails) -> Tuple[Port, ...]:
    """The ports of all rails in rail order, those of a bond after the member that has the RDMA device."""
    found: Dict[str, Port] = {}
    for _number, nic in sorted(rails.nics.items()):
        masters = {one.master for one in nic.netdevs if nic.role == "bond" and one.master}
        others = [one for one in topology.nics if one is not nic and any(d.master in masters for d in one.netdevs)]
        for member in (nic, *others):
            port = _port(member, topology.virtualization.is_vm)
            found.setdefault(port.label, port)
    return tuple(found.values())


def _port(nic: Nic, in_guest: bool) -> Port:
    active = nic.port
    port = Port(
        label=nic.label,
        pci=nic.pci,
        netdev=nic.netdevs[0].name if nic.netdevs else "",
        rdma=nic.rdma.name if nic.rdma is not None else None,
        rdma_port=active.number if active is not None else 1,
        of_rdma=nic.rdma is not None,
    )
    if nic.role == "vf" and in_guest:
        # The port, and with it everything else, is the hypervisor's.
        return port._replace(of_rdma=True, of_port=False)
    if nic.role == "vf":
        return port._replace(gap=of_physical_function("a virtual function", nic.device.source))
    if active is not None and active.link_layer == "InfiniBand":
        change = "set the port to Ethernet (mlxconfig -d %s set LINK_TYPE_P%d=2, then reboot), or correct busbar_fabric"
        gap = Gap("unsupported", "an InfiniBand port", rdma.DEVICES, change % (nic.pci, port.number))
        return port._replace(gap=gap, silent=True)
    if not nic.netdevs:
        fix = "look for %s in dmesg; reload its driver" % nic.pci
        return port._replace(gap=Gap("unknown", "no netdev: the port cannot be queried", netdev.INTERFACES, fix))
    return port


def of_physical_function(kind: str, source: str) -> Gap:
    """Return the gap of a function whose port another one has."""
    text = "%s: its port is set at the physical function" % kind
    return Gap("unsupported", text, source, "name the physical functions in the profile")
