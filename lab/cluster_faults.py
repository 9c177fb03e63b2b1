# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of a cluster that show only in a job over several nodes; each is one thing that is wrong, and what finds it.

Sources: NCCL's user guide (troubleshooting) and issues, nccl-tests' README, the kernel's mlx5/counters.rst. What is
between the nodes is in FABRIC, the same on all of them, which toolkit/nccl_model reads (fabric.py there says what may
be in it): the lab's nccl-tests and its ib_write_bw go by it, and counters of a port that has to send again move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .fault import apply, fill, merge
from .machine import Machine, first
from .toolkit.nccl_model import fabric as between

FABRIC = between.PLACE
NCCL_CONF = "/etc/nccl.conf"
# Every shell of root on the node reads it, also the one that ssh starts mpirun's daemon by.
PROFILE = "/etc/bash.bashrc"
# The rail that the faults of one rail are of.
RAIL = 1


@dataclass(frozen=True)
class ClusterFault:
    """One thing that is wrong in a cluster. ``check``: of nccl_perf, that is the root.   state: its finding's.

    machine: change of one node (fault.apply).   fabric: what is in FABRIC; "{hosts}" are all nodes, "{leaf}" is the
    one's.   localised: check and subject of what a search for who is slow has to find.
    conf: variables of NCCL_CONF of that one node, in the place of those of the same name.
    Texts of fabric and conf name parts of the node as in fault.py.
    profile: lines of PROFILE of that one node.   alone: the programs are not built with MPI.
    ends: whether the run ends by itself.   launcher: of one alone it can be seen.
    """

    name: str
    description: str
    check: str
    state: str = "drift"
    machine: Mapping[str, Any] = field(default_factory=dict)
    fabric: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    profile: str = ""
    alone: bool = False
    ends: bool = True
    launcher: str = ""
    localised: str = ""

    def between(self, machines: Sequence[Machine], node: Machine) -> dict[str, Any]:
        """Return what is in FABRIC; machines: all nodes, in the order of their ranks."""
        mine = next(leaf for leaf, names in leaves(machines).items() if node.hostname in names)
        text = json.dumps(self.fabric).replace('"{hosts}"', json.dumps(_names(machines))).replace("{leaf}", mine)
        return dict(fill(node, json.loads(text)))


def usual(machines: Sequence[Machine]) -> str:
    """The node that has a fault where nobody says which: the last but one neither prints nor starts the job."""
    return machines[max(1, len(machines) - 2)].hostname


def leaves(machines: Sequence[Machine], count: int = 2) -> dict[str, list[str]]:
    """Leaf -> its nodes, in their order; the last has the rest."""
    names = _names(machines)
    size = max(1, len(names) // count)
    last = max(0, count - 1)
    found: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        found.setdefault(f"leaf{min(number // size, last) + 1}", []).append(name)
    return found


def broken(
    machines: Sequence[Machine], faults: Mapping[str, Sequence[ClusterFault]]
) -> tuple[list[Machine], dict[str, Any]]:
    """The nodes, and what is in FABRIC, with these faults. faults: node -> those that it has."""
    changed = [deepcopy(machine) for machine in machines]
    fabric: dict[str, Any] = {"leaves": leaves(machines)}
    for machine in changed:
        for fault in faults.get(machine.hostname, ()):
            apply(machine, fault.machine)
            merge(fabric, fault.between(machines, machine))
    return changed, fabric


def _names(machines: Sequence[Machine]) -> list[str]:
    return [machine.hostname for machine in machines]


_ROWS = json.loads((Path(__file__).parent / "data/cluster_faults.json").read_text(encoding="utf-8"))
# The second: what a search for who is slow has to tell apart. The third: what keeps trays of one NVLink domain from
# reaching each other over NVLink.
CATALOGUE, LOCALISED, TRAYS = (
    tuple(ClusterFault(**row) for row in _ROWS[group]) for group in ("catalogue", "localised", "trays")
)


def named(name: str) -> ClusterFault:
    """Raises LabError where there is no such fault."""
    known = (*CATALOGUE, *LOCALISED, *TRAYS)
    return first(f"cluster fault {name!r}", (fault for fault in known if fault.name == name))


def conf(machine: Machine, faults: Sequence[ClusterFault] = ()) -> str:
    """NCCL_CONF of a node that is provisioned: the rails by name, and what its faults make of that."""
    rails = sorted(rdma.rail for rdma in machine.rdma if rdma.rail is not None)
    lines = {"NCCL_IB_HCA": "=" + ",".join(machine.rail(rail).name for rail in rails)}
    for fault in faults:
        lines |= fill(machine, fault.conf)
    return "".join(f"{name}={value}\n" for name, value in lines.items())
