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

from typing import List, Mapping, Optional, Sequence

from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..machine import pcie_link
from ..machine.pci import PciDevice, nccl_class
from ..machine.profile import PcieLink, Profile
from ..machine.rails import Rails, match
from ..machine.topology import Nic, Topology, is_near
from . import topology as nccl_topology
from .checks import TOPO_FILE
from .environment import Environment

NAME = "NCCL_TOPO_FILE"
DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"
CONF = "/etc/nccl.conf"


def is_flat(topology: Topology, rails: Sequence[Nic]) -> bool:
    """Return whether this is a guest in which no rail's NIC shares a bridge with any GPU."""
    if not topology.virtualization.is_vm or not rails or not topology.gpus:
        return False
    return not any(is_near(topology, gpu, nic) for gpu in topology.gpus for nic in rails)


def judge(
    host: Host,
    meant: Mapping[str, str],
    present: Mapping[str, str],
    environment: Environment,
    topology: Topology,
    profile: Profile,
) -> Finding:
    """Judge the file that NCCL will read.   meant, present: variables of nccl.conf as it should be and as it is."""
    add = "name the cloud's file in nccl_conf_extra (%s; on Azure's images /opt/microsoft/*-topo.xml)" % NAME
    again = "then run site.yml --tags nccl_conf"
    if NAME in present and NAME not in meant:
        why = "nccl.conf names %s, which nccl_conf_extra does not; the file is left untouched" % present[NAME]
        return _judged("drift", why, CONF, "take %s=%s over into nccl_conf_extra, %s" % (NAME, present[NAME], again))
    # The first definition counts, and the environment comes before the file.
    named = [(one.value, one.place) for one in environment.settings if one.name == NAME]
    for path, by in named:
        if path is None:
            return _judged("unknown", "%s sets it in a form that Busbar cannot read" % by, by, "look at %s" % by)
    named += [(meant[NAME], "profile or nccl_conf_extra")] if NAME in meant else []
    path, by = next(((path, by) for path, by in named if path), (DEFAULT, "NCCL's default"))
    problems: List[Problem] = []
    text = attempt(lambda: host.read_system(path) if path.startswith("/") else None, path, problems)
    if text is None and not problems:
        if by == "NCCL's default":
            fix = "%s; where there is none, NCCL_NET_GDR_LEVEL: SYS; %s" % (add, again)
            return _judged("drift", "no file is named", NAME, fix)
        state, why = ("drift", "is not there") if path.startswith("/") else ("unknown", "is not an absolute path")
        return _judged(state, "%s: %s" % (path, why), path, "%s (now named by %s), %s" % (add, by, again))
    picture = attempt(lambda: nccl_topology.parse(text or ""), path, problems)
    if picture is None:
        return _judged("unknown", str(problems[0]), path, "%s (now named by %s), %s" % (add, by, again))
    wrong = differences(picture, topology, profile, match(topology, profile))
    if wrong:
        fix = "%s: the one of this type of machine (now named by %s); %s" % (add, by, again)
        return _judged("drift", "; ".join(wrong), path, fix)
    return _judged("ok", "names every GPU and rail of this machine", path, "")


def differences(picture: nccl_topology.NcclTopology, topology: Topology, profile: Profile, rails: Rails) -> List[str]:
    """Return a sentence per kind of difference between the file and machine or profile. Paths count only if the
    profile names the file: it exists to correct the guest's."""
    here = {gpu.pci: gpu for gpu in topology.gpus}
    listed = {gpu.busid for gpu in picture.gpus}
    slow = [
        "%s over %s where it can %s" % (pci, link, can)
        for pci, gpu in here.items()
        for can in [_most(gpu.device)]
        for link in picture.links.get(pci, ())
        if can is not None and pcie_link.gbps(link) < pcie_link.gbps(can)
    ]
    absent, far = [], []
    for rail in profile.rails:
        nic = rails.nics.get(rail.number)
        if nic is None:
            continue
        absent += [] if nccl_topology.lists(picture, nic) else [nic.label]
        net = nccl_topology.net_of(picture, nic)
        slow += [
            "%s over %s, and the rail carries %g Gbit/s" % (nic.label, link, rail.rate_gbps)
            for link in (picture.links.get(net.busid or "", ()) if net is not None else ())
            if pcie_link.gbps(link) < rail.rate_gbps
        ]
        for index, path in sorted(rail.paths.items()) if net is not None and profile.topology_file else ():
            gpu = (rails.gpus or {}).get(index)
            found = picture.paths.get((gpu.pci, net.label)) if gpu is not None and net is not None else None
            if found is not None and found != nccl_class(path):
                far.append("%s %s to GPU%d, which the profile has at %s" % (nic.label, found, index, path))
    kinds = (
        ("has no GPU", sorted(set(here) - listed)),
        ("has a GPU that is not here:", sorted(listed - set(here))),
        *(("has no rail", absent), ("has", slow), ("has", far)),
    )
    more = " and %d more"
    return [
        "it %s %s%s" % (what, names[0], more % (len(names) - 1) if names[1:] else "") for what, names in kinds if names
    ]


def _most(device: PciDevice) -> Optional[PcieLink]:
    """Return the most that the device and its slot can; None if the machine does not show it."""
    if device.max_speed_gts is None or not device.max_width:
        return None
    return PcieLink(device.max_speed_gts, device.max_width)


def _judged(state: str, have: str, source: str, fix: str) -> Finding:
    return TOPO_FILE.judge(NAME, state, "the topology file of this type of machine", have[:300], source, fix)
