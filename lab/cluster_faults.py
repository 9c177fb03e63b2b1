# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of a cluster that show only in a job over several nodes; each is one thing that is wrong, and what finds it.

Sources: field.md 4, cluster.md 1 to 5, nccl.md 5 and 7, host.md 7.4. What is between the nodes is in FABRIC, the same
on all of them, which toolkit/nccl_model reads (fabric.py there says what may be in it): the lab's nccl-tests and its
ib_write_bw go by it, and the counters of a port that has to send again move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from .machine import ACS_REDIRECT, Link, Machine, first
from .toolkit.nccl_model import fabric as between

FABRIC = between.PLACE
NCCL_CONF = "/etc/nccl.conf"
# Every shell of root on the node reads it, also the one that ssh starts mpirun's daemon by.
PROFILE = "/etc/bash.bashrc"
# The rail that the faults of one rail are of.
RAIL = 1
LARGE = 1 << 30


@dataclass(frozen=True)
class ClusterFault:
    """One thing that is wrong in a cluster. ``check``: of nccl_perf, that is the root.   state: its finding's.

    machine: what is changed of one node.   fabric: all nodes, in the order of their ranks, and the one that has the
    fault -> what is in FABRIC.   localised: check and subject of what a search for who is slow has to find.
    mends: the role that takes it away, "" where a person has to.
    conf: variables of NCCL_CONF of that one node, in the place of those of the same name.
    profile: lines of PROFILE of that one node.   alone: the programs are not built with MPI.
    ends: whether the run ends by itself.   launcher: of one alone it can be seen.   collective: that shows it.
    """

    name: str
    description: str
    check: str
    state: str = "drift"
    machine: Callable[[Machine], None] | None = None
    fabric: Callable[[Sequence[Machine], Machine], dict[str, Any]] | None = None
    conf: Callable[[Machine], Mapping[str, str]] | None = None
    profile: str = ""
    alone: bool = False
    ends: bool = True
    launcher: str = ""
    collective: str = "all_reduce"
    localised: str = ""
    mends: str = ""


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
            if fault.machine is not None:
                fault.machine(machine)
            if fault.fabric is not None:
                fabric = _joined(fabric, fault.fabric(machines, machine))
    return changed, fabric


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both. Of a single value, the other's."""
    found = dict(one)
    for name, value in other.items():
        there = found.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            found[name] = _joined(there, value)
        else:
            found[name] = [*there, *value] if isinstance(there, list) and isinstance(value, list) else value
    return found


def _rank(node: Machine) -> dict[str, Any]:
    """The second one of that node."""
    return {"host": node.hostname, "local": 1}


def _names(machines: Sequence[Machine]) -> list[str]:
    return [machine.hostname for machine in machines]


def _oversubscribed(machines: Sequence[Machine], node: Machine) -> dict[str, Any]:
    return {"oversubscription": 2.5}


def _of_rail(key: str, share: float) -> Callable[[Sequence[Machine], Machine], dict[str, Any]]:
    """What is left of one rail of the node, by a key of FABRIC."""
    return lambda machines, node: {key: {node.hostname: {node.rail(RAIL).name: share}}}


def _slow_uplink(machines: Sequence[Machine], node: Machine) -> dict[str, Any]:
    """Of the node's leaf."""
    mine = next(leaf for leaf, names in leaves(machines).items() if node.hostname in names)
    return {"uplinks": {mine: 0.4}}


def _bad_cable(machine: Machine) -> None:
    """Half of its lanes, and what is broken on them is counted where it arrives."""
    rdma = machine.rail(RAIL)
    rdma.rate = "200 Gb/sec (2X NDR)"
    rdma.counters = {"symbol_error": 48211, "link_error_recovery": 7, "port_rcv_errors": 913}
    for netdev in machine.netdevs:
        if netdev.address == rdma.address:
            netdev.speed = 200000


def _narrow_slots(machine: Machine) -> None:
    for rdma in machine.rdma:
        link = machine.function(rdma.address).link
        if rdma.rail is not None and link is not None:
            machine.set_link(rdma.address, Link(link.speed, link.width // 2))


def _small_reads(machine: Machine) -> None:
    machine.function(machine.rail(RAIL).address).read_request = 512


def _redirected(machine: Machine) -> None:
    machine.function(machine.function(machine.rail(RAIL).address).parent).acs = ACS_REDIRECT


def _imex_stopped(machine: Machine) -> None:
    machine.imex = "stopped"


def _no_channel(machine: Machine) -> None:
    machine.driver_options = {**machine.driver_options, "CreateImexChannel0": "0"}


def _other_rack(machine: Machine) -> None:
    machine.nvlink_domain = "7d4c9a52-5e1b-4f60-9c3e-2a9b6f0d1e84 32766"


def _no_domain(machine: Machine) -> None:
    machine.gpus[1].domain = "00000000-0000-0000-0000-000000000000 0"


def _no_peermem(machine: Machine) -> None:
    machine.modules.pop("nvidia_peermem", None)


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
        fabric=_of_rail("rails", 0.4),
        localised=f"localise.rail rail {RAIL}",
    ),
    ClusterFault(
        "gdr-off",
        "one HCA of one node cannot reach the memory of GPUs",
        "nccl_perf.gdr",
        fabric=lambda machines, node: {"without_gdr": {node.hostname: [node.rail(RAIL).name]}},
    ),
    ClusterFault(
        "socket-fallback",
        "no RDMA device can be opened on any node, and NCCL goes over TCP",
        "nccl_perf.network",
        fabric=lambda machines, node: {"sockets": _names(machines)},
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
        fabric=lambda machines, node: {"lossy": [node.hostname]},
        localised="localise.node host",
    ),
    ClusterFault(
        "oversubscribed",
        "the uplinks between two leaves carry 40 % of what the nodes below can send",
        "nccl_perf.busbw",
        fabric=_oversubscribed,
    ),
    ClusterFault(
        "slow-rank",
        "one GPU is at a fifth of its clock, as after a power brake",
        "nccl_perf.busbw",
        fabric=lambda machines, node: {"gpus": {node.hostname: {"1": 0.2}}},
        localised="localise.rank gpu 1",
    ),
    ClusterFault(
        "unsteady",
        "something else uses the network now and then: no run is as fast as the one before",
        "nccl_perf.spread",
        fabric=lambda machines, node: {"noise": {"cv": 0.2, "seed": 4}},
    ),
    ClusterFault(
        "hung-rank",
        "one rank does not come back from a collective",
        "nccl_perf.ran",
        fabric=lambda machines, node: {"hang": {**_rank(node), "bytes": LARGE}},
        ends=False,
    ),
    ClusterFault(
        "missing-rank",
        "one rank never joins the others",
        "nccl_perf.ran",
        fabric=lambda machines, node: {"hang": {**_rank(node), "bytes": 0}},
        ends=False,
    ),
    ClusterFault(
        "crash",
        "one rank loses its peer and ends with NCCL's error in the middle of the run",
        "nccl_perf.ran",
        fabric=lambda machines, node: {"crash": {**_rank(node), "bytes": LARGE, "how": "error"}},
    ),
    ClusterFault(
        "killed-rank",
        "one rank is killed in the middle of the run, as by the kernel for want of memory",
        "nccl_perf.ran",
        fabric=lambda machines, node: {"crash": {**_rank(node), "bytes": LARGE, "how": "kill"}},
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
        fabric=lambda machines, node: {"libraries": {node.hostname: 21803}},
    ),
    ClusterFault(
        "unequal-variable",
        "the shell's profile of one node sets a variable of NCCL that nobody asked for",
        "nccl_perf.variables",
        profile="export NCCL_IB_TIMEOUT=14\n",
        launcher="mpirun",
    ),
)

# What a search for who is slow has to tell apart.
LOCALISED = (
    ClusterFault(
        "slow-node",
        "all that one node moves over its rails is at 60 %, and nothing on the node says why",
        "nccl_perf.busbw",
        fabric=lambda machines, node: {"nodes": {node.hostname: 0.6}},
        localised="localise.node host",
    ),
    ClusterFault(
        "narrow-slots",
        "the NICs of all rails of one node have trained to half of their lanes",
        "nccl_perf.busbw",
        machine=_narrow_slots,
        localised="localise.node host",
    ),
    ClusterFault(
        "bad-cable",
        "the cable of one rail has half of its lanes and errors on the rest",
        "nccl_perf.busbw",
        machine=_bad_cable,
        fabric=lambda machines, node: _joined(
            _of_rail("receives", 0.95)(machines, node), _of_rail("sends", 0.95)(machines, node)
        ),
        localised=f"localise.rail rail {RAIL}",
    ),
    ClusterFault(
        "sends-slowly",
        "what one rail of one node sends is lost on its way to the switch, now and then",
        "nccl_perf.busbw",
        fabric=_of_rail("sends", 0.5),
        localised=f"localise.rail rail {RAIL}",
    ),
    ClusterFault(
        "receives-slowly",
        "what one rail of one node receives arrives broken, now and then",
        "nccl_perf.busbw",
        fabric=_of_rail("receives", 0.5),
        localised=f"localise.rail rail {RAIL}",
    ),
    ClusterFault(
        "both-slow",
        "one rail of one node is fast in either direction, and slow in both at once, as without relaxed ordering",
        "nccl_perf.busbw",
        fabric=_of_rail("both", 0.6),
        localised=f"localise.rail rail {RAIL}",
    ),
    ClusterFault(
        "slow-uplink",
        "the uplinks of one leaf carry 40 % of what the nodes below can send",
        "nccl_perf.busbw",
        fabric=_slow_uplink,
        localised="localise.uplink leaf leaf2",
    ),
    ClusterFault(
        "dead-partner",
        "one node dies in the middle of whatever is measured with it",
        "nccl_perf.ran",
        fabric=lambda machines, node: {"crash": {"host": node.hostname, "local": 0, "bytes": 1, "how": "kill"}},
        localised="localise.node host",
        state="unknown",
    ),
    ClusterFault(
        "small-reads",
        "the NIC of one rail of one node reads what it sends in requests of 512 bytes",
        "nccl_perf.busbw",
        machine=_small_reads,
        localised=f"localise.rail rail {RAIL}",
        mends="pcie_path",
    ),
    ClusterFault(
        "acs-redirect",
        "the switch port above one NIC of one node sends what is for its GPU up to the CPU",
        "nccl_perf.busbw",
        machine=_redirected,
        localised="localise.node host",
        mends="pcie_path",
    ),
    ClusterFault(
        "peermem-gone",
        "nvidia_peermem is not loaded on one node, and no HCA reaches the memory of GPUs",
        "nccl_perf.gdr",
        machine=_no_peermem,
        localised="localise.node host",
        mends="gpudirect",
    ),
)


# What keeps trays of one NVLink domain from reaching each other over NVLink: health.md 6, nccl.md 5.
TRAYS = (
    ClusterFault(
        "other-rack",
        "one tray is of another rack's domain, though its clique has the same number",
        "nccl_cluster.member",
        state="unknown",
        machine=_other_rack,
    ),
    ClusterFault(
        "imex-stopped",
        "IMEX does not run on one tray: NCCL ends there",
        "nccl_perf.ran",
        machine=_imex_stopped,
    ),
    ClusterFault(
        "imex-channel",
        "the driver of one tray has made no IMEX channel",
        "nccl_perf.ran",
        machine=_no_channel,
    ),
    ClusterFault(
        "no-domain",
        "a GPU of one tray has no UUID of a domain: NCCL takes the network for all, without a word",
        "nccl_perf.nvlink",
        machine=_no_domain,
    ),
    ClusterFault(
        "cumem-off",
        "nccl.conf of one tray switches off what NVLink between hosts needs: the network is taken for all",
        "nccl_perf.nvlink",
        conf=lambda machine: {"NCCL_CUMEM_ENABLE": "0"},
    ),
    ClusterFault(
        "other-clique",
        "nccl.conf of one tray gives it a clique of its own, which the network joins to the others",
        "nccl_perf.nvlink",
        conf=lambda machine: {"NCCL_MNNVL_CLIQUE_ID": "1"},
    ),
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
        lines |= fault.conf(machine) if fault.conf else {}
    return "".join(f"{name}={value}\n" for name, value in lines.items())
