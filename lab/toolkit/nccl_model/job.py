# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who takes part in a run: processes, nodes, ranks; rings, and the device that each channel leaves a node by.

Every process works this out for itself from what all have shared, and comes to the same.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .fabric import Fabric
from .node import NEAR, Gpu, Hca, number

# Of NCCL's variables those that the model of the whole run reads, of every process.
_SHARED = ("NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE")
_CLIQUE = "NCCL_MNNVL_CLIQUE_ID"


@dataclass(frozen=True)
class Process:
    """What one process shares. ``first``: CUDA's number of the first of ``gpus``.   library: version of its NCCL.

    near: of each GPU, how far each device is.   interface: of its sockets: name, address, Gb/s.
    imex: what keeps it from the memory of other hosts, "" for nothing.
    """

    host: str
    pid: int
    library: int
    first: int
    gpus: list[Gpu]
    variables: Mapping[str, str]
    fabric: Fabric
    run: int
    hcas: tuple[Hca, ...] = ()
    near: tuple[list[int], ...] = ()
    interface: tuple[str, str, float] = ("", "", 0)
    imex: str = ""

    @property
    def network(self) -> str:
        return "IB" if self.hcas else "Socket"

    def pack(self) -> bytes:
        return zlib.compress(json.dumps(asdict(self)).encode())


def shared(found: Mapping[str, str]) -> dict[str, str]:
    return {name: found[name] for name in (*_SHARED, _CLIQUE) if name in found}


def unpack(data: bytes) -> Process:
    values = json.loads(zlib.decompress(data))
    values["gpus"] = [Gpu(**values_) for values_ in values["gpus"]]
    values["hcas"] = tuple(Hca(**values_) for values_ in values["hcas"])
    values["fabric"] = Fabric(**values["fabric"])
    return Process(**values)


@dataclass(frozen=True)
class Rank:
    """number: its own.   node, local: the node's number, and its own there.   gpu: its place in the process's ``gpus``.

    place: its own on the host, which is not the node where NVLink joins hosts.
    """

    number: int
    process: Process
    node: int
    local: int
    gpu: int
    place: int

    @property
    def device(self) -> int:
        """CUDA's number of the GPU."""
        return self.process.first + self.gpu

    @property
    def card(self) -> Gpu:
        return self.process.gpus[self.gpu]

    def distance(self, hca: Hca) -> int:
        return self.process.near[self.gpu][hca.index]

    def has(self, fault: Mapping[str, Any]) -> bool:
        """Return whether a fault of the fabric is this rank's."""
        return bool(fault) and (self.process.host, self.place) == (fault["host"], fault["local"])


@dataclass(frozen=True)
class Lane:
    """How a channel passes a node. ``ring``: ranks from the one that receives to the one that sends.

    hca: beside the GPU of the first, through which the last one sends, too (PXN); None over sockets.
    """

    ring: list[Rank]
    hca: Hca | None

    @property
    def direct(self) -> bool:
        """Whether GPUDirect RDMA is used."""
        return self.hca is not None and self.hca.direct and self.ring[0].distance(self.hca) == NEAR


@dataclass(frozen=True)
class Job:
    """A run. ``nodes``: the ranks of each.   lanes: of each node, one for each channel; empty on a single node.

    cliques: of each rank the domain over whose NVLinks it reaches other hosts; "" where that is off.
    """

    ranks: list[Rank]
    nodes: list[list[Rank]]
    lanes: list[list[Lane]]
    fabric: Fabric
    run: int
    cliques: list[str]

    @property
    def channels(self) -> int:
        return len(self.lanes[0])

    def clique(self, rank: Rank) -> list[int]:
        """Return the ranks that NVLink joins to this one, and itself; none where that is off."""
        own = self.cliques[rank.number]
        return [place for place, domain in enumerate(self.cliques) if domain == own] if own else []

    def of_process(self, place: int) -> list[Rank]:
        """Return the ranks of the process with this rank in MPI."""
        processes = list(dict.fromkeys(id(rank.process) for rank in self.ranks))
        return [rank for rank in self.ranks if id(rank.process) == processes[place]]

    def rings(self) -> list[list[Rank]]:
        """Return the ranks of each channel in the ring's order, from rank 0 on."""
        if len(self.nodes) == 1:
            return [self.ranks] * (12 if len(self.ranks) > 1 else 1)
        found = []
        for channel in range(self.channels):
            ring = [rank for lanes in self.lanes for rank in lanes[channel].ring]
            start = ring.index(self.ranks[0])
            found.append(ring[start:] + ring[:start])
        return found


def p2p_allowed(found: Mapping[str, str]) -> bool:
    return number(found, "NCCL_P2P_DISABLE", 0) != 1


def arrange(given: list[Process]) -> Job:
    """Work out the job of these processes, which are in the order of their ranks in MPI."""
    fabric = given[0].fabric
    processes = [_in(fabric, process) for process in given]
    # What NVLink joins is one node.
    domains = cliques(processes)
    places = [domain or process.host for process, domain in zip(processes, domains, strict=True)]
    names = list(dict.fromkeys(places))
    nodes: list[list[Rank]] = [[] for _ in names]
    ranks: list[Rank] = []
    for process, name in zip(processes, places, strict=True):
        node = names.index(name)
        for gpu in range(len(process.gpus)):
            before = sum(rank.process.host == process.host for rank in nodes[node])
            ranks.append(Rank(len(ranks), process, node, len(nodes[node]), gpu, before))
            nodes[node].append(ranks[-1])
    lanes: list[list[Lane]] = [[] for _ in nodes]
    if len(nodes) > 1:
        rails = [_rails(ranks_) for ranks_ in nodes]
        # All nodes use as many channels as the one with the fewest, two for each device.
        channels = 2 * max(1, min(map(len, rails)))
        lanes = [[_lane(ranks_, rails[n], channel) for channel in range(channels)] for n, ranks_ in enumerate(nodes)]
    of_rank = [domain for process, domain in zip(processes, domains, strict=True) for _gpu in process.gpus]
    return Job(ranks, nodes, lanes, fabric, given[0].run, of_rank)


def _in(fabric: Fabric, process: Process) -> Process:
    """Return the process as the network has it."""
    off = fabric.without_gdr.get(process.host, [])
    lossy = process.host in fabric.lossy
    hcas = tuple(replace(hca, direct=hca.direct and hca.name not in off, lossy=lossy) for hca in process.hcas)
    return replace(
        process,
        hcas=() if process.host in fabric.sockets else hcas,
        library=fabric.libraries.get(process.host, process.library),
    )


def cliques(processes: list[Process]) -> list[str]:
    """Return the domain that joins each process to others, "" where NVLink between hosts is off (2.21 to 2.30).

    A rank whose GPU is of no domain, or a variable, switches it off for all ranks without a word.
    """
    off = len({process.host for process in processes}) < 2 or not all(
        p2p_allowed(process.variables)
        and number(process.variables, "NCCL_MNNVL_ENABLE", 2) != 0
        and number(process.variables, "NCCL_CUMEM_ENABLE", 1) != 0
        and all(gpu.domain for gpu in process.gpus)
        for process in processes
    )
    names = ["" if off else domain(process) for process in processes]
    return [name if names.count(name) > 1 else "" for name in names]


def domain(process: Process) -> str:
    """Return UUID and clique of a process's GPUs, as a variable has the clique."""
    own, _, clique = process.gpus[0].domain.partition(" ")
    return f"{own} {number(process.variables, _CLIQUE, int(clique))}" if own else ""


def _rails(ranks: list[Rank]) -> list[Hca]:
    """Return the devices beside the ranks' GPUs, in the order of the GPUs; else the best that there is for all."""
    hcas, first = ranks[0].process.hcas, ranks[0]
    found = [hca for rank in ranks for hca in hcas if rank.distance(hca) == NEAR]
    best = sorted(hcas, key=lambda hca: (-hca.gbps, first.distance(hca), hca.index))[:1]
    return list(dict.fromkeys(found)) or best


def _lane(ranks: list[Rank], rails: list[Hca], channel: int) -> Lane:
    """The ring comes in beside the device and goes once round the node. Its last GPU sends by the same device."""
    hca = rails[channel % len(rails)] if rails else None
    place = min(range(len(ranks)), key=lambda n: ranks[n].distance(hca)) if hca else channel % len(ranks)
    return Lane([ranks[(place - step) % len(ranks)] for step in range(len(ranks))], hca)
