# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Draft a profile of a host, with doubts to review before it becomes intent: the captured host may be faulty.

The platform's planner judges the host by what most of its GPUs and rails have. Each finding is a doubt. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar

from ..core.finding import Finding
from . import platform, rail_address
from .pci import NEAR, PciDevice
from .platform import CrossCheck
from .platform_checks import RAIL_MTU
from .profile import Profile, parse
from .topology import Nic, Topology

_T = TypeVar("_T")
Data = Dict[str, Any]
# Text of a doubt about a part that differs from its siblings.
OWN_PARTS = "most of this host's own parts have"
# The site assigns addresses, not the platform.
_NOT_HARDWARE = tuple(check.id for check in (rail_address.RAIL_GID, rail_address.RAIL_ADDRESS, RAIL_MTU))


def checked_draft(topology: Topology, cross_checks: Sequence[CrossCheck] = ()) -> Tuple[Data, List[str]]:
    """Return the draft of a profile, and doubts about the host that it is taken from, a sentence each."""
    data, doubts = draft(topology)
    doubts += _counts(topology)
    if data["gpus"]["models"] and all("rate_gbps" in rail for rail in data["rails"]):
        doubts += _sentences(_bad(topology, parse(level(topology, data), "draft"), cross_checks))
    return data, list(dict.fromkeys(doubts))


def draft(topology: Topology) -> Tuple[Data, List[str]]:
    """Return a profile that this topology meets, and what of it could not be read or is not as it could be."""
    doubts = [str(problem) for problem in topology.problems]
    gpus = topology.gpus
    for gpu in gpus:
        if gpu.nvlinks_total != gpu.nvlinks_active:
            numbers = (gpu.index, gpu.pci, gpu.nvlinks_active, gpu.nvlinks_total)
            doubts.append("GPU %d %s has %s of %s NVLinks active" % numbers)
    links, slots = {gpu.nvlinks_active for gpu in gpus}, {_slot(gpu.device) for gpu in gpus}
    of_gpus: Data = {
        "count": len(gpus),
        "models": sorted({gpu.model for gpu in gpus if gpu.model}),
        "pci": [gpu.pci for gpu in gpus],
        "nvlinks": links.pop() if len(links) == 1 else None,
        "nvlink_fabric": bool(gpus) and all(gpu.fabric_state == "Completed" for gpu in gpus),
        "pcie": _link(*slots.pop()) if len(slots) == 1 else None,
    }
    rails = []
    for nic in topology.nics:
        # In a guest every passed-through NIC may be a virtual function.
        if nic.rdma is not None and (nic.role == "compute" or (nic.role == "vf" and topology.virtualization.is_vm)):
            rails.append(_rail(topology, nic, doubts))
        elif nic.role == "down" and nic.rdma is not None and not _unused(topology, nic):
            doubts.append("%s is left out: %s" % (nic.label, nic.reason))
    given = {name: value for name, value in of_gpus.items() if value is not None}
    return {"description": "captured from a host; review before use", "gpus": given, "rails": rails}, doubts


def _unused(topology: Topology, nic: Nic) -> bool:
    """Return whether a port of a NIC that is not near a GPU was disabled, as the second one of a storage NIC."""
    return not _near(topology, nic) and nic.rdma is not None and all(p.phys_state == "Disabled" for p in nic.rdma.ports)


def _near(topology: Topology, nic: Nic) -> Dict[int, str]:
    """Return GPU index -> path class of the GPUs below the NIC's switch."""
    paths = {gpu.index: topology.paths.get((gpu.pci, nic.pci)) for gpu in topology.gpus}
    return {index: path for index, path in paths.items() if path in NEAR}


def _rail(topology: Topology, nic: Nic, doubts: List[str]) -> Data:
    device, port = nic.device, nic.port
    rail: Data = {"pci": nic.pci, "paths": _near(topology, nic)}
    if port is not None and port.rate_gbps and port.link_layer:
        rail.update(rate_gbps=port.rate_gbps, link_layers=[port.link_layer])
    else:
        doubts.append("%s: its rate or link layer could not be read" % nic.label)
    slot = _link(*_slot(device))
    if slot:
        rail["pcie"] = slot
    if device.numa_node is None:
        rail["numa"] = "any"
    return rail


def _slot(device: PciDevice) -> Tuple[Optional[float], Optional[int]]:
    return device.max_speed_gts, device.max_width


def _link(speed: Optional[float], width: Optional[int]) -> Optional[Data]:
    return {"speed_gts": speed, "width": width} if speed and width else None


def _counts(topology: Topology) -> List[str]:
    """Return doubts about absent parts, which no comparison of parts shows."""
    found = []
    count = len(topology.gpus)
    if count & (count - 1):
        found.append("there are %d GPUs, and nodes have 1, 2, 4, 8 or 16: is one missing?" % count)
    rails = [nic.pci for nic in topology.nics if nic.role == "compute"]
    near = {gpu: sum(topology.paths.get((gpu.pci, nic)) in NEAR for nic in rails) for gpu in topology.gpus}
    usual = _most(list(near.values()))
    if usual:
        found += [
            "GPU %d %s has %d NICs behind its switch, most have %d" % (gpu.index, gpu.pci, number, usual)
            for gpu, number in near.items()
            if number != usual
        ]
    return found


def level(topology: Topology, data: Data) -> Data:
    """Return the draft with what most of the GPUs and of the rails have for all of them."""
    gpus = topology.gpus
    model = _most([gpu.model for gpu in gpus])
    slot = _most([_link(*_slot(gpu.device)) for gpu in gpus])
    level = {
        "models": [model] if model else data["gpus"]["models"],
        "nvlinks": _most([gpu.nvlinks_active if gpu.nvlinks_total is None else gpu.nvlinks_total for gpu in gpus]),
        "nvlink_fabric": any(gpu.fabric_state for gpu in gpus),
        "pcie": slot,
    }
    same = {key: _most([rail.get(key) for rail in data["rails"]]) for key in ("rate_gbps", "link_layers", "pcie")}
    same["numa"] = _most([rail.get("numa", "same") for rail in data["rails"]])
    return {**data, "gpus": {**data["gpus"], **level}, "rails": [{**rail, **same} for rail in data["rails"]]}


def _bad(topology: Topology, profile: Profile, cross_checks: Sequence[CrossCheck]) -> List[Finding]:
    """Return root findings of the host by that profile."""
    findings = platform.plan(topology, profile, cross_checks).findings
    return [f for f in findings if not f.ok and f.because is None and f.check not in _NOT_HARDWARE]


def _sentences(findings: Sequence[Finding]) -> List[str]:
    """Return one sentence per group of equal differences."""
    subjects: Dict[Tuple[str, Optional[str], Optional[str]], List[str]] = {}
    for finding in findings:
        subjects.setdefault((finding.check, finding.want, finding.have), []).append(finding.subject)
    return [
        "%s: %s %s, here it is %s (%s)" % (", ".join(named), OWN_PARTS, want or "nothing", have or "nothing", check)
        for (check, want, have), named in subjects.items()
    ]


def _most(values: Sequence[Optional[_T]]) -> Optional[_T]:
    """Return the most frequent of those that are there, of equally frequent ones the first."""
    there = {str(value): value for value in values if value is not None}
    common = Counter(str(value) for value in values if value is not None).most_common(1)
    return there[common[0][0]] if common else None
