# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge NCCL_TOPO_FILE: set if a guest's PCI tree is flat, present, and for this machine.

Where the hypervisor hides the switches, every NIC seems to lie behind the host bridge from every GPU. NCCL's default
ends before that (PXB), so it copies all data through the host. The cloud's topology file has the real tree, and NCCL
then uses GPUDirect RDMA, with virtual functions, too. What it costs to be without GPUDirect RDMA: two virtual
machines of 8 A100 at about 4 instead of 186 GB/s (Azure/AKS issue 3507).
Sources: NCCL src/graph/topo.cc (default path), paths.cc (level); Azure/aks-rdma-infiniband pull request 36; nccl#749
(a link that the file makes slower than it is slows all).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import List, Mapping, Optional, Sequence

from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError, attempt
from ..machine import pcie_link
from ..machine.pci import PciDevice, nccl_class
from ..machine.profile import PcieLink, Profile
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology, is_near
from . import topology as nccl_topology
from .checks import TOPO_FILE
from .environment import Environment

NAME = "NCCL_TOPO_FILE"
DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"
CONF = "/etc/nccl.conf"
ABSENT = "is not there"


@dataclass(frozen=True)
class Have:
    """path: None if no setting names a file and NCCL's default one is absent.   named: the setting, for people.

    picture, problem: the parsed file, or why it is not valid.
    dropped: the file that the present nccl.conf names, and the new one does not.
    """

    path: Optional[str] = None
    named: str = ""
    picture: Optional[nccl_topology.NcclTopology] = None
    problem: Optional[Problem] = None
    dropped: Optional[str] = None


def is_flat(topology: Topology, rails: Sequence[Nic]) -> bool:
    """Return whether this is a guest in which no rail's NIC shares a bridge with any GPU."""
    if not topology.virtualization.is_vm or not rails or not topology.gpus:
        return False
    return not any(is_near(topology, gpu, nic) for gpu in topology.gpus for nic in rails)


def read(host: Host, meant: Mapping[str, str], present: Mapping[str, str], environment: Environment) -> Have:
    """meant, present: the variables of nccl.conf as it should be and as it is."""
    dropped = present.get(NAME) if NAME not in meant else None
    # The first definition counts, and the environment comes before the file.
    named = [(one.value, "%s:%d" % (one.source, one.line)) for one in environment.settings if one.name == NAME]
    if NAME in meant:
        named.append((meant[NAME], "profile or nccl_conf_extra"))
    path, by = next(((path, by) for path, by in named if path), (None, ""))
    problems: List[Problem] = []
    if path is None and attempt(lambda: host.read_system(DEFAULT), DEFAULT, problems) is not None:
        path, by = DEFAULT, "NCCL's default"
    if path is None or problems:
        return Have(path, by, problem=problems[0] if problems else None, dropped=dropped)
    picture = attempt(partial(_picture, host, path), path, problems)
    return Have(path, by, picture, problems[0] if problems else None, dropped)


def _picture(host: Host, path: str) -> nccl_topology.NcclTopology:
    """Raises ReadError, ParseError."""
    text = host.read_system(path) if path.startswith("/") else None
    if text is None:
        raise ReadError(path, ABSENT if path.startswith("/") else "is not an absolute path")
    return nccl_topology.parse(text)


def judge(have: Have, topology: Topology, profile: Profile, rails: Rails) -> Finding:
    add = "name the cloud's file in nccl_conf_extra (%s; on Azure's images /opt/microsoft/*-topo.xml)" % NAME
    if have.dropped is not None:
        why = "nccl.conf names %s, which nccl_conf_extra does not; the file is left untouched" % have.dropped
        fix = "take %s=%s over into nccl_conf_extra, then run site.yml --tags nccl_conf" % (NAME, have.dropped)
        return _judged("drift", why, CONF, fix)
    if have.path is None:
        fix = "%s; where there is none, NCCL_NET_GDR_LEVEL: SYS; then run site.yml --tags nccl_conf" % add
        return _judged("drift", "no file is named", NAME, fix)
    if have.problem is not None:
        fix = "%s, as it is on the node (now named by %s), then run site.yml --tags nccl_conf" % (add, have.named)
        state = "drift" if have.problem.message == ABSENT else "unknown"
        return _judged(state, str(have.problem), have.path, fix)
    wrong = _differences(have.picture, topology, profile, rails) if have.picture is not None else []
    if wrong:
        of_type = "the one of this type of machine (now named by %s)" % have.named
        fix = "%s: %s; then run site.yml --tags nccl_conf" % (add, of_type)
        return _judged("drift", "; ".join(wrong), have.path, fix)
    return _judged("ok", "names every GPU and rail of this machine", have.path, "")


def _differences(picture: nccl_topology.NcclTopology, topology: Topology, profile: Profile, rails: Rails) -> List[str]:
    """Return a sentence per kind of difference between the file and machine or profile. Paths count only if the
    profile names the file: it exists to correct the guest's."""
    here = {gpu.pci: gpu for gpu in topology.gpus}
    listed = {gpu.busid for gpu in picture.gpus}
    nics = [nic for _number, nic in sorted(rails.nics.items())]
    slow = [
        "%s over %s where it can %s" % (pci, link, can)
        for pci, gpu in here.items()
        for can in [_most(gpu.device)]
        for link in picture.links.get(pci, ())
        if can is not None and pcie_link.gbps(link) < pcie_link.gbps(can)
    ]
    far = []
    for rail in profile.rails:
        nic = rails.nics.get(rail.number)
        net = nccl_topology.net_of(picture, nic) if nic is not None else None
        if nic is None or net is None:
            continue
        slow += [
            "%s over %s, and the rail carries %g Gbit/s" % (nic.label, link, rail.rate_gbps)
            for link in picture.links.get(net.busid or "", ())
            if pcie_link.gbps(link) < rail.rate_gbps
        ]
        for index, path in sorted(rail.paths.items()) if profile.topology_file else ():
            gpu = (rails.gpus or {}).get(index)
            seen = picture.paths.get((gpu.pci, net.label)) if gpu is not None else None
            if gpu is not None and seen is not None and seen != nccl_class(path):
                far.append("%s %s to GPU%d, which the profile has at %s" % (nic.label, seen, index, path))
    said = []
    for what, names in (
        ("has no GPU", sorted(set(here) - listed)),
        ("has a GPU that is not here:", sorted(listed - set(here))),
        ("has no rail", [nic.label for nic in nics if not nccl_topology.lists(picture, nic)]),
        ("has", slow),
        ("has", far),
    ):
        if names:
            said.append("it %s %s%s" % (what, names[0], " and %d more" % (len(names) - 1) if names[1:] else ""))
    return said


def _most(device: PciDevice) -> Optional[PcieLink]:
    """Return the most that the device and its slot can; None if the machine does not show it."""
    if device.max_speed_gts is None or not device.max_width:
        return None
    return PcieLink(device.max_speed_gts, device.max_width)


def _judged(state: str, have: str, source: str, fix: str) -> Finding:
    want = "the topology file of this type of machine"
    return TOPO_FILE.judge(NAME, state, want, have[:300], source, fix)
