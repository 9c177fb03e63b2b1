# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of a cluster that show only in a job over several nodes; each is one thing that is wrong, and what finds it.

Sources: field.md 4, cluster.md 1 to 5, nccl.md 5 and 7. What is between the nodes is in FABRIC, the same on all of
them, which toolkit/nccl_model reads (fabric.py there says what may be in it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from .machine import Machine, first

FABRIC = "/srv/busbar-lab/fabric.json"
NCCL_CONF = "/etc/nccl.conf"
# Every shell of root on the node reads it, also the one that ssh starts mpirun's daemon by.
PROFILE = "/etc/bash.bashrc"
# The rail that the faults of one rail are of.
RAIL = 1
LARGE = 1 << 30


@dataclass(frozen=True)
class ClusterFault:
    """One thing that is wrong in a cluster. ``check``: of nccl_perf, that is the root.   state: its finding's.

    machine: what is changed of one node.   fabric: nodes, in the order of their ranks -> what is in FABRIC.
    conf: variables of NCCL_CONF of that one node, in the place of those of the same name.
    profile: lines of PROFILE of that one node.   alone: the programs are not built with MPI.
    ends: whether the run ends by itself.   launcher: of one alone it can be seen.   collective: that shows it.
    """

    name: str
    description: str
    check: str
    state: str = "drift"
    machine: Callable[[Machine], None] | None = None
    fabric: Callable[[Sequence[Machine]], dict[str, Any]] | None = None
    conf: Callable[[Machine], Mapping[str, str]] | None = None
    profile: str = ""
    alone: bool = False
    ends: bool = True
    launcher: str = ""
    collective: str = "all_reduce"

    def apply(self, machines: Sequence[Machine]) -> list[Machine]:
        """The cluster with this fault: of one node, the last but one, so that it neither prints nor starts the job."""
        broken = [deepcopy(machine) for machine in machines]
        if self.machine is not None:
            self.machine(broken[self.place(machines)])
        return broken

    @staticmethod
    def place(machines: Sequence[Machine]) -> int:
        """Which of the nodes has the fault, where one of them has."""
        return max(1, len(machines) - 2)


def _node(machines: Sequence[Machine]) -> Machine:
    return machines[ClusterFault.place(machines)]


def _rank(machines: Sequence[Machine]) -> dict[str, Any]:
    """The second one of that node."""
    return {"host": _node(machines).hostname, "local": 1}


def _names(machines: Sequence[Machine]) -> list[str]:
    return [machine.hostname for machine in machines]


def _leaves(machines: Sequence[Machine]) -> dict[str, Any]:
    names = _names(machines)
    half = len(names) // 2
    return {"leaves": {"leaf1": names[:half], "leaf2": names[half:]}, "oversubscription": 2.5}


CATALOGUE = (
    ClusterFault(
        "dead-rail",
        "the port of one rail has no link on one node",
        "nccl_perf.hcas",
        machine=lambda machine: machine.take_down(machine.rail(RAIL), "2: Polling"),
    ),
    ClusterFault(
        "slow-rail",
        "one rail of one node moves 40 % of what its link says",
        "nccl_perf.busbw",
        fabric=lambda machines: {"rails": {_node(machines).hostname: {_node(machines).rail(RAIL).name: 0.4}}},
    ),
    ClusterFault(
        "gdr-off",
        "one HCA of one node cannot reach the memory of GPUs",
        "nccl_perf.gdr",
        fabric=lambda machines: {"without_gdr": {_node(machines).hostname: [_node(machines).rail(RAIL).name]}},
    ),
    ClusterFault(
        "socket-fallback",
        "no RDMA device can be opened on any node, and NCCL goes over TCP",
        "nccl_perf.network",
        fabric=lambda machines: {"sockets": _names(machines)},
    ),
    ClusterFault(
        "one-hca",
        "nccl.conf of one node leaves NCCL one HCA of eight, and all nodes use as many channels as that one",
        "nccl_perf.hcas",
        conf=lambda machine: {"NCCL_IB_HCA": f"={machine.rail(0).name}"},
    ),
    ClusterFault(
        "lossy",
        "what one node sends is lost now and then, as without PFC: every loss is sent again",
        "nccl_perf.busbw",
        fabric=lambda machines: {"lossy": [_node(machines).hostname]},
    ),
    ClusterFault(
        "oversubscribed",
        "the uplinks between two leaves carry 40 % of what the nodes below can send",
        "nccl_perf.busbw",
        fabric=_leaves,
    ),
    ClusterFault(
        "slow-rank",
        "one GPU is at a fifth of its clock, as after a power brake",
        "nccl_perf.busbw",
        fabric=lambda machines: {"gpus": {_node(machines).hostname: {"1": 0.2}}},
    ),
    ClusterFault(
        "unsteady",
        "something else uses the network now and then: no run is as fast as the one before",
        "nccl_perf.spread",
        fabric=lambda machines: {"noise": {"cv": 0.2, "seed": 4}},
    ),
    ClusterFault(
        "hung-rank",
        "one rank does not come back from a collective",
        "nccl_perf.ran",
        fabric=lambda machines: {"hang": {**_rank(machines), "bytes": LARGE}},
        ends=False,
    ),
    ClusterFault(
        "missing-rank",
        "one rank never joins the others",
        "nccl_perf.ran",
        fabric=lambda machines: {"hang": {**_rank(machines), "bytes": 0}},
        ends=False,
    ),
    ClusterFault(
        "crash",
        "one rank loses its peer and ends with NCCL's error in the middle of the run",
        "nccl_perf.ran",
        fabric=lambda machines: {"crash": {**_rank(machines), "bytes": LARGE, "how": "error"}},
    ),
    ClusterFault(
        "killed-rank",
        "one rank is killed in the middle of the run, as by the kernel for want of memory",
        "nccl_perf.ran",
        fabric=lambda machines: {"crash": {**_rank(machines), "bytes": LARGE, "how": "kill"}},
    ),
    ClusterFault(
        "singletons",
        "the programs are not built with MPI: each process is a run of its own and prints what NVLink moves",
        "nccl_perf.ranks",
        alone=True,
    ),
    ClusterFault(
        "mixed-versions",
        "one node has another release of NCCL",
        "nccl_perf.ran",
        fabric=lambda machines: {"libraries": {_node(machines).hostname: 21803}},
    ),
    ClusterFault(
        "unequal-variable",
        "the shell's profile of one node sets a variable of NCCL that nobody asked for",
        "nccl_perf.variables",
        profile="export NCCL_IB_TIMEOUT=14\n",
        launcher="mpirun",
    ),
)


def named(name: str) -> ClusterFault:
    """Raises LabError where there is no such fault."""
    return first(f"cluster fault {name!r}", (fault for fault in CATALOGUE if fault.name == name))


def conf(machine: Machine, fault: ClusterFault | None = None) -> str:
    """NCCL_CONF of a node that is provisioned: the rails by name, and what the fault, if it has it, makes of that."""
    rails = sorted(rdma.rail for rdma in machine.rdma if rdma.rail is not None)
    lines = {"NCCL_IB_HCA": "=" + ",".join(machine.rail(rail).name for rail in rails)}
    if fault is not None and fault.conf is not None:
        lines |= fault.conf(machine)
    return "".join(f"{name}={value}\n" for name, value in lines.items())
