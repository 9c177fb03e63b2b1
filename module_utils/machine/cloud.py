# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Handle what a cloud's machine cannot report, and networks that this suite does not support (EFA).

Sources: Azure/azhpc-images, oracle-quickstart/oci-hpc; the kernel's driver efa.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from .topology import Topology
from .virtualization import OCI

EFA = Check(
    "platform.efa",
    why="an Elastic Fabric Adapter uses AWS's own protocol (SRD) through libfabric, so no InfiniBand or RoCE check of"
    " this suite applies to it: other checks that are ok here do not prove the node's network",
    fix="take the node out of gpu_nodes, and check it with AWS's own tools (fi_info -p efa, aws-ofi-nccl)",
    severity="critical",
)
"Has the node no Elastic Fabric Adapter of AWS, whose network cannot be checked; only if there is one"


def with_efa(topology: Topology, findings: Sequence[Finding]) -> Tuple[Finding, ...]:
    """Return the platform's findings; if there are EFAs, that comes first, and causes missing rails."""
    if not topology.efa:
        return tuple(findings)
    found = "%d Elastic Fabric Adapters, the first at %s" % (len(topology.efa), topology.efa[0])
    root = EFA.judge("efa", "unsupported", "ConnectX or BlueField", found, "/sys/bus/pci/devices")
    rails = (
        replace(one, because=root.id)
        if one.check.startswith("platform.rail_") and not one.ok and one.because is None
        else one
        for one in findings
    )
    return (root, *rails)


def notes(topology: Topology) -> List[str]:
    """Return sentences for the verdict on what is not judged on this machine, because its host's owner has to."""
    machine = topology.virtualization
    if machine.is_vm:
        return [
            "a virtual machine (%s): PFC, ETS and ECN of its ports, NIC firmware settings, PHY counters, ACS, IOMMU"
            " and ATS belong to its hypervisor, as does the Fabric Manager if it sees no NVSwitch: neither required"
            " here nor proven" % machine.owner
        ]
    if machine.cloud == OCI:
        return [
            "bare metal of OCI: its agent (Compute RDMA GPU plugins) sets the rails' addresses and may overwrite their"
            " QoS; let only one of the two set QoS"
        ]
    return []
