# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Match the profile's rails with the NICs that are there.

Guessing is worse than failing here: a storage NIC taken for a missing rail would be written into nccl.conf.
So a rail is matched by its PCI address where the profile names one, else by its path to its GPUs, else not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .gpu import Gpu
from .pci import PciDevice, path_class
from .profile import Profile, Rail
from .topology import Nic, Topology


@dataclass(frozen=True)
class Rails:
    """nics: rail number -> its NIC. missing: rail number -> why there is none.

    gpus: profile GPU index -> the GPU, None when GPUs are missing and nothing tells which.
    without_rdma: missing rail -> the NIC in its place that has no RDMA device.
    """

    nics: Mapping[int, Nic]
    missing: Mapping[int, str]
    gpus: Optional[Mapping[int, Gpu]]
    without_rdma: Mapping[int, PciDevice] = field(default_factory=dict)


def match(topology: Topology, profile: Profile) -> Rails:
    """Put every rail of the profile into either ``nics`` or ``missing``."""
    gpus = gpu_indices(topology, profile)
    groups: Dict[object, List[Rail]] = {}
    for rail in profile.rails:
        # Rails with equal paths (two NICs behind one switch) share their candidates; PCI order numbers them.
        key = rail.pci or (None if gpus is None else tuple(sorted(rail.paths.items())))
        groups.setdefault(key, []).append(rail)
    nics: Dict[int, Nic] = {}
    missing: Dict[int, str] = {}
    for rails in groups.values():
        if rails[0].pci:
            found, reason = _by_address(topology, rails[0].pci)
        else:
            found, reason = _by_order(topology, rails) if gpus is None else _by_path(topology, gpus, rails)
        placed = _placed(rails, found)
        nics.update(placed)
        missing.update({rail.number: reason for rail in rails if rail.number not in placed})
    return Rails(nics, missing, gpus, _without_rdma(topology, profile, gpus, missing))


def _placed(rails: Sequence[Rail], nics: Sequence[Nic]) -> Dict[int, Nic]:
    """Return rail number -> NIC, both in their order; with planes the function says which of them a rail has lost."""
    if len(nics) == len(rails) or rails[0].planes == 1:
        return {rail.number: nic for rail, nic in zip(rails, nics)}
    cards = zip(dict.fromkeys(rail.nic for rail in rails), dict.fromkeys(nic.pci[:-1] for nic in nics))
    numbers, functions = dict(cards), {nic.pci: nic for nic in nics}
    places = {rail.number: "%s%d" % (numbers.get(rail.nic, ""), rail.plane) for rail in rails}
    return {number: functions[place] for number, place in places.items() if place in functions}


def _without_rdma(
    topology: Topology, profile: Profile, gpus: Optional[Mapping[int, Gpu]], missing: Dict[int, str]
) -> Dict[int, PciDevice]:
    """Return for each missing rail the NIC without an RDMA device in its place, which ``missing`` then names."""
    found: Dict[int, PciDevice] = {}
    for rail in [rail for rail in profile.rails if rail.number in missing]:
        near = {gpus.get(index): path for index, path in rail.paths.items()} if gpus and not rail.pci else {}
        for device in topology.without_rdma:
            fits = all(gpu is not None and path_class(gpu.device, device) == path for gpu, path in near.items())
            is_plane = rail.planes == 1 or device.address.endswith(".%d" % rail.plane)
            if fits and is_plane and rail.pci in (None, device.address) and device not in found.values():
                found[rail.number] = device
                driver = "driver %s made no RDMA device" % device.driver if device.driver else "it has no driver"
                missing[rail.number] = "NIC %s is on the bus, but %s" % (device.address, driver)
                break
    return found


def ethernet(rails: Rails, profile: Profile) -> Dict[int, Nic]:
    """Rail number -> NIC, where the profile asks for Ethernet and the port is that. InfiniBand has no such MTU."""
    asked = {rail.number for rail in profile.rails if "Ethernet" in rail.link_layers}
    return {n: nic for n, nic in sorted(rails.nics.items()) if n in asked and nic.link_layer == "Ethernet"}


def guids(rails: Rails, profile: Profile) -> List[Dict[str, object]]:
    """Return GUIDs (16 hex digits, None if absent) by which a fabric sweep identifies each InfiniBand rail."""
    found = []
    for rail in profile.rails:
        nic = rails.nics.get(rail.number)
        port = nic.port if nic else None
        if nic is None or nic.rdma is None or port is None or "InfiniBand" not in rail.link_layers:
            continue
        # The first GID of a port is the subnet's prefix and the port's GUID.
        own = next((gid.gid[20:] for gid in port.gids if gid.index == 0), "")
        ids = {"rail": rail.number, "pci": nic.pci, "device": nic.rdma.name}
        digits = {"node_guid": nic.rdma.node_guid, "port_guid": own}
        texts = {name: (guid or "").replace(":", "") or None for name, guid in digits.items()}
        found.append({**ids, **texts, "port": port.number, "rate_gbps": rail.rate_gbps})
    return found


def gpu_indices(topology: Topology, profile: Profile) -> Optional[Dict[int, Gpu]]:
    """Profile GPU index -> GPU: by address where the profile names them, by PCI order if the count is right."""
    if profile.gpus.pci:
        by_address = {gpu.pci: gpu for gpu in topology.gpus}
        return {index: by_address[pci] for index, pci in enumerate(profile.gpus.pci) if pci in by_address}
    if len(topology.gpus) == profile.gpus.count:
        return dict(enumerate(topology.gpus))
    return None


def _by_address(topology: Topology, address: str) -> Tuple[List[Nic], str]:
    """Return the NICs of rails in their order, and why there is none for further ones."""
    nic = next((nic for nic in topology.nics if nic.pci == address), None)
    if nic is None:
        return [], "no NIC at %s" % address
    return ([nic], "") if nic.rdma else ([], "%s has no RDMA device (is its driver loaded?)" % nic.label)


def _by_path(topology: Topology, gpus: Mapping[int, Gpu], rails: Sequence[Rail]) -> Tuple[List[Nic], str]:
    paths = sorted(rails[0].paths.items())
    near = [
        nic
        for nic in _eligible(topology)
        if all(index in gpus and topology.paths.get((gpus[index].pci, nic.pci)) == path for index, path in paths)
    ]
    fitting = [nic for nic in near if _fits(nic, rails[0])]
    found = fitting if len(fitting) >= len(rails) else near
    what = " and ".join("%s of GPU %d" % (path, index) for index, path in paths)
    names = ", ".join(nic.label for nic in found)
    if len(found) > len(rails):
        cards = len({nic.pci[:-1] for nic in found})
        split = rails[0].planes == 1 and cards == len(rails)
        way = "set busbar_planes, if these are planes of one NIC" if split else "name its address in a site profile"
        return [], "%d NICs are at %s (%s): %s" % (len(found), what, names, way)
    return found, "no NIC at %s" % what + (" besides %s" % names if found else "")


def _by_order(topology: Topology, rails: Sequence[Rail]) -> Tuple[List[Nic], str]:
    """Match when GPUs are missing and it is unknown which: paths prove nothing, but all NICs keep their PCI order.

    The NICs of the remaining GPUs are near one, in whatever state; those of lost GPUs are identified by their port.
    """
    distances = {path for rail in rails for path in rail.paths.values()}
    found = [
        nic
        for nic in _eligible(topology)
        if any(topology.paths.get((gpu.pci, nic.pci)) in distances for gpu in topology.gpus)
        or (nic.role != "down" and _fits(nic, rails[0]))
    ]
    text = "GPUs are missing and %d NICs fit %d rails: which NIC is which rail is unknown" % (len(found), len(rails))
    return (found, "") if len(found) == len(rails) else ([], text)


def _eligible(topology: Topology) -> List[Nic]:
    """Return RDMA NICs that can be a rail. In a guest every NIC may be a virtual function; on bare metal none is."""
    out = ("efa", "nvswitch", "management", "bond", *(() if topology.virtualization.is_vm else ("vf",)))
    return [nic for nic in topology.nics if nic.rdma is not None and nic.role not in out]


def _fits(nic: Nic, rail: Rail) -> bool:
    port = nic.port
    if port is None or port.link_layer not in rail.link_layers:
        return False
    return port.state != "ACTIVE" or port.rate_gbps == rail.rate_gbps
