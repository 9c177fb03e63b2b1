# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what a first verdict on a machine needs before its audit: facts on its platform, and values of its rails.

Values of rails are compared with each other; the caller decides the expected ones.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence

from .core.finding import printable
from .core.host import Host, attempt
from .limits import container_runtimes
from .lldp import dcbx, neighbour
from .machine import netdev_address, partition, pci, profile_doubts, topology
from .machine.netdev_routing import RULES, parse_rules
from .machine.rails import Rails
from .machine.rdma import rocev2
from .machine.topology import Nic, Topology
from .machine.virtualization import ARM, CPUINFO, PRODUCT, X86
from .multirail.policy import KEYS
from .multirail.read import CONF
from .roce_qos import read as qos
from .roce_qos import settings as qos_settings
from .roce_qos.chain import Chain, PortConfig
from .roce_qos.port import PortState, ports

_NVIDIA, _NVSWITCH, _AMD, _ACCELERATOR = 0x10DE, 0x0680, 0x1002, 0x1200
# Each setting of a port is read once; the values do not matter here.
_EVERY = PortConfig(chain=Chain(26, 3, 48, 6, "dscp", {26: 3}, (), tuple(range(8)), 0, 0))


Values = Dict[str, object]


def read(host: Host, machine: Topology) -> Values:
    """Return the facts as plain data; plugin_utils/result_schema.py has their types."""
    devices = attempt(lambda: pci.read(host)[0], pci.DEVICES, []) or {}
    kinds = Counter((one.vendor, one.class_code >> 8) for one in devices.values())
    draft = _draft(machine) if machine.gpus else None
    texts = {name: attempt(partial(host.read, path), path, []) for name, path in _FILES.items()}
    of_host, architecture = machine.virtualization, ARM if "CPU implementer" in (texts["cpu"] or "") else X86
    nics = {nic: _nic(machine, nic.device, nic) for nic in machine.nics if _may_be_rail(machine, nic)}
    near = [nic for nic, of_nic in nics.items() if of_nic["path"] in pci.NEAR]
    return {
        "bus": bool(devices),
        "root": os.geteuid() == 0,
        "gpus": [{"pci": one.pci, "model": one.model or "", "device": one.device.device} for one in machine.gpus],
        "nics": [*nics.values()] + [_nic(machine, device) for device in machine.without_rdma],
        "nvswitches": kinds[_NVIDIA, _NVSWITCH],
        "foreign": ["AMD GPU"] * kinds[_AMD, _ACCELERATOR] + ["EFA"] * len(machine.efa),
        "architecture": architecture,
        "fabric": architecture == ARM and any(gpu.fabric_state for gpu in topology.read(host).gpus),
        "guest": of_host.is_vm,
        "machine": "virtual machine (%s)" % of_host.hypervisor if of_host.is_vm else "bare metal",
        "cloud": of_host.cloud,
        "product": printable(texts["product"] or "")[:200],
        "draft": draft,
        "rails": _rails(host, machine, near or [*nics]),
        "runtimes": container_runtimes.configured(host),
        "resources": container_runtimes.resources(host),
    }


_FILES = {"cpu": CPUINFO, "product": PRODUCT}


def _may_be_rail(machine: Topology, nic: Nic) -> bool:
    """Tell whether the NIC has RDMA, is up or near a GPU, and serves nothing else."""
    if nic.rdma is None or (nic.role == "vf" and not machine.virtualization.is_vm):
        return False
    near = any(machine.paths.get((gpu.pci, nic.pci)) in pci.NEAR for gpu in machine.gpus)
    return nic.role in ("compute", "storage", "vf") or (nic.role == "down" and near)


def _nic(machine: Topology, device: pci.PciDevice, nic: Optional[Nic] = None) -> Values:
    """Return a NIC that may be a rail. nic: None for one without an RDMA device in its place."""
    paths = [pci.path_class(gpu.device, device) for gpu in machine.gpus]
    port = nic.port if nic else None
    return {
        "pci": device.address,
        "path": min(paths, key=pci.PATH_CLASSES.index, default=pci.PATH_CLASSES[-1]),
        "link_layer": (port.link_layer if port else None) or "",
        "rate_gbps": port.rate_gbps if port and port.state == "ACTIVE" else None,
    }


def _draft(machine: Topology) -> Values:
    """Return a profile of the machine as it is, with what most of its rails have. It is never what it should have."""
    data = profile_doubts.draft(machine)[0]
    data["rails"] = [rail for rail in data["rails"] if "rate_gbps" in rail]
    level = profile_doubts.level(machine, data)
    level["gpus"] = {**data["gpus"], "models": level["gpus"]["models"] or ["unknown"], "nvlinks": None}
    return level


def _rails(host: Host, machine: Topology, nics: Sequence[Nic]) -> List[Values]:
    """Return the values of each NIC that can be compared with those of the others."""
    on_ethernet = {n: nic for n, nic in enumerate(nics) if nic.port and nic.port.link_layer == "Ethernet"}
    states = qos.read(host, ports(machine, Rails(on_ethernet, {}, None)), _EVERY).ports if on_ethernet else ()
    values = {state.port.pci: _setting(state) for state in states}
    keys = partition.read(host, nics)
    rules = attempt(lambda: parse_rules(host.query(RULES)), "ip", []) if on_ethernet else None
    addresses = attempt(lambda: netdev_address.read(host), "ip", []) if on_ethernet else None
    heard = neighbour.read(host) if on_ethernet else neighbour.LldpState()
    for number, nic in enumerate(nics):
        own = values.setdefault(nic.pci, {})
        if nic.rdma is not None and nic.port is not None:
            table = keys.get((nic.rdma.name, nic.port.number))
            own["partitions"] = sorted(set(table.values()))[:64] if isinstance(table, Mapping) else None
            own.update(psid=nic.rdma.board_id, firmware=nic.rdma.firmware)
        for netdev in nic.netdevs[:1] if number in on_ethernet else ():
            paths = {key: "%s/%s/%s" % (CONF, netdev.name, key) for key in KEYS}
            own.update({key: pci.read_value(host, path, pci.parse_decimal, []) for key, path in paths.items()})
            sources = {one.address for one in (addresses or {}).get(netdev.name, ())}
            switches = heard.switches(netdev.name)
            own.update(_switch(switches[0]) if len(switches) == 1 else {})
            if nic.port and rocev2(nic.port, "ipv4") is None and rocev2(nic.port, "ipv6") is not None:
                own["family"] = "ipv6"
            own.update(mtu=netdev.mtu, routed=any(rule.source in sources for rule in rules or ()))
    return [{name: value for name, value in values[nic.pci].items() if value is not None} for nic in nics]


def _setting(state: PortState) -> Values:
    """Return the port's settings; None for one that could not be read."""
    dcb, port, numbers = state.dcb, state.port, state.numbers
    cnp = [numbers.get(path.format(port)) for path in qos_settings.CNP_PATHS]
    on = [priority for priority in range(8) if numbers.get(qos_settings.ECN_ENABLE.format(port, "np", priority))]
    return {
        "trust": dcb.trust if dcb.trust in ("dscp", "pcp") else None,
        "dscp2prio": {str(dscp): to for dscp, to in dcb.dscp2prio} if dcb.trust == "dscp" else None,
        "pfc": None if dcb.pfc is None else list(dcb.pfc),
        "owner": dcb.owner,
        "ecn": None if "ecn" in state.gaps else on,
        "cnp": None if None in cnp else cnp,
        "tos": numbers.get(qos_settings.TOS_PATH.format(port)),
        "traffic_class": numbers.get(qos_settings.CLASS_PATH.format(port)),
    }


def _switch(port: neighbour.Neighbour) -> Values:
    """Return PFC and the DSCP map of the switch port, as it sends them by DCBX; None for what it does not send."""
    pfc = attempt(lambda: dcbx.decode(port.dcbx, dcbx.PFC, dcbx.pfc), port.label, [])
    known = attempt(lambda: dcbx.decode(port.dcbx, dcbx.APPLICATION, dcbx.applications), port.label, [])
    dscp = {str(code): to[0] for code, to in known.dscp.items() if len(to) == 1} if known else None
    return {"switch_pfc": None if pfc is None else [*pfc], "switch_dscp": dscp}
