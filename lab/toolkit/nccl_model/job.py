# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who takes part in a run: processes, nodes, ranks; rings, trees, and the device that each channel leaves a node by.

Every process works this out for itself from what all have shared, and comes to the same.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import mnnvl
from .fabric import Fabric
from .node import Gpu, Hca, Interface
from .stop import USAGE_ERROR, nccl_failure
from .variables import PXB, level, number

# Of NCCL's variables those that the model of the whole run asks for, from every process.
_ASKED = (
    *("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_PXN_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_HOSTID"),
    *("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_MNNVL_ENABLE", "NCCL_MNNVL_CLIQUE_ID", "NCCL_CUMEM_ENABLE"),
)


@dataclass(frozen=True)
class Process:
    """What one process has to say. ``first``: CUDA's number of the first of ``gpus``.   library: version of its NCCL.

    near: of each GPU, how far each device is.   imex: what keeps it from the memory of other hosts, "" for nothing.
    """

    host: str
    pid: int
    library: int
    first: int
    gpus: list[Gpu]
    hcas: list[Hca]
    near: list[list[int]]
    interface: Interface
    variables: dict[str, str]
    fabric: Fabric
    run: int
    imex: str = ""

    @property
    def node(self) -> str:
        """What NCCL tells nodes apart by."""
        return self.variables.get("NCCL_HOSTID") or self.host

    @property
    def network(self) -> str:
        """Raises Stop where the one that NCCL_NET asks for is not there."""
        wanted = self.variables.get("NCCL_NET", "")
        usable = bool(self.hcas) and number(self.variables, "NCCL_IB_DISABLE", 0) != 1
        if wanted.lower() not in ("", "ib", "socket") or (wanted.lower() == "ib" and not usable):
            raise nccl_failure(USAGE_ERROR, 1550, f"Failed to initialize any NET plugin, NCCL_NET={wanted}")
        return "IB" if usable and wanted.lower() != "socket" else "Socket"

    def pack(self) -> bytes:
        return zlib.compress(json.dumps(asdict(self)).encode())


def shortened(found: Mapping[str, str]) -> dict[str, str]:
    return {name: found[name] for name in _ASKED if name in found}


def unpack(data: bytes) -> Process:
    values = json.loads(zlib.decompress(data))
    values["gpus"] = [Gpu(**one) for one in values["gpus"]]
    values["hcas"] = [Hca(**one) for one in values["hcas"]]
    values["interface"], values["fabric"] = Interface(**values["interface"]), Fabric(**values["fabric"])
    return Process(**values)


@dataclass(frozen=True)
class Rank:
    """number: its own.   node, local: the node's number, and its own there.   gpu: its place in the process's ``gpus``.

    device: CUDA's number of the GPU.   place: its own on the host, which is not the node where NVLink joins hosts.
    """

    number: int
    process: Process
    node: int
    local: int
    gpu: int
    place: int = 0

    @property
    def device(self) -> int:
        return self.process.first + self.gpu

    @property
    def card(self) -> Gpu:
        return self.process.gpus[self.gpu]

    def distance(self, hca: Hca) -> int:
        return self.process.near[self.gpu][hca.index]

    def direct(self, hca: Hca) -> bool:
        """GPUDirect RDMA between this GPU and the device."""
        return hca.direct and self.distance(hca) <= level(self.process.variables, "NCCL_NET_GDR_LEVEL", PXB)

    def named(self, fault: Mapping[str, Any]) -> bool:
        """Whether a fault of the fabric is this rank's."""
        return bool(fault) and (self.process.host, self.place) == (fault["host"], fault["local"])


@dataclass(frozen=True)
class Lane:
    """How a channel passes a node. ``ring``: ranks from the one that receives to the one that sends.

    hca: None over sockets.   proxy: rank on the node whose GPU the sender's data go through, None: no other.
    """

    ring: list[Rank]
    hca: Hca | None
    proxy: Rank | None
    receives_direct: bool
    sends_direct: bool


@dataclass(frozen=True)
class Job:
    """A run. ``nodes``: the ranks of each.   lanes: of each node, one for each channel; empty on a single node.

    cliques: of each rank the domain over whose NVLinks it reaches other hosts; "" where that is off.
    """

    ranks: list[Rank]
    nodes: list[list[Rank]]
    networks: list[str]
    lanes: list[list[Lane]]
    fabric: Fabric
    library: int
    run: int
    cliques: list[str]

    @property
    def network(self) -> str:
        return self.networks[0]

    def clique(self, rank: Rank) -> list[int]:
        """The ranks that NVLink joins to this one, and itself; none where that is off."""
        own = self.cliques[rank.number]
        return [number_ for number_, domain in enumerate(self.cliques) if domain == own] if own else []

    @property
    def channels(self) -> int:
        return len(self.lanes[0])

    def hosts(self) -> list[str]:
        return [ranks[0].process.host for ranks in self.nodes]

    def rails(self, node: int) -> list[Hca]:
        """The devices of a node that its channels use, each once."""
        found = {lane.hca.name: lane.hca for lane in self.lanes[node] if lane.hca}
        return list(found.values())


def local_rank(hosts: list[str], mine: int) -> int:
    """nccl-tests': how many processes before this one are on the same host."""
    return hosts[:mine].count(hosts[mine])


def arrange(said: list[Process]) -> Job:
    """Raises Stop for what NCCL refuses."""
    fabric = said[0].fabric
    processes = [_in(fabric, one) for one in said]
    # What NVLink joins is one node.
    domains = mnnvl.cliques(processes)
    places = [domain or one.node for one, domain in zip(processes, domains)]  # noqa: B905 Python 3.9
    names = list(dict.fromkeys(places))
    nodes: list[list[Rank]] = [[] for _ in names]
    ranks: list[Rank] = []
    for process, name in zip(processes, places):  # noqa: B905 Python 3.9
        node = names.index(name)
        for gpu in range(len(process.gpus)):
            before = sum(rank.process.host == process.host for rank in nodes[node])
            ranks.append(Rank(len(ranks), process, node, len(nodes[node]), gpu, before))
            nodes[node].append(ranks[-1])
    cliques = [domain for one, domain in zip(processes, domains) for _gpu in one.gpus]  # noqa: B905 Python 3.9
    networks = [one[0].process.network for one in nodes]
    lanes: list[list[Lane]] = [[] for _ in nodes]
    if len(nodes) > 1:
        rails = [_rails(ranks_) if network == "IB" else [] for ranks_, network in zip(nodes, networks)]  # noqa: B905
        # All nodes use as many channels as the one with the fewest, two for each device.
        channels = 2 * max(1, min(map(len, rails)))
        for node, ranks_ in enumerate(nodes):
            lanes[node] = [_lane(ranks_, rails[node], channel) for channel in range(channels)]
    return Job(ranks, nodes, networks, lanes, fabric, processes[0].library, said[0].run, cliques)


def _in(fabric: Fabric, process: Process) -> Process:
    """As the network has it."""
    off = fabric.without_gdr.get(process.host, [])
    hcas = [replace(hca, direct=hca.direct and hca.name not in off) for hca in process.hcas]
    if process.host in fabric.sockets:
        hcas = []
    if process.host in fabric.lossy:
        hcas = [replace(hca, lossless=False) for hca in hcas]
    return replace(process, hcas=hcas, library=fabric.libraries.get(process.host, process.library))


def _rails(ranks: list[Rank]) -> list[Hca]:
    """The devices beside the ranks' GPUs, in the order of the GPUs; else the best that there is for all."""
    found: list[Hca] = []
    for rank in ranks:
        beside = [hca for hca in rank.process.hcas if rank.distance(hca) <= PXB]
        nearest = min((rank.distance(hca) for hca in beside), default=0)
        found += [hca for hca in beside if rank.distance(hca) == nearest and hca not in found]
    first = ranks[0]
    return found or [min(first.process.hcas, key=lambda hca: (-hca.gbps, first.distance(hca), hca.index))]


def _lane(ranks: list[Rank], rails: list[Hca], channel: int) -> Lane:
    """The ring comes in beside the device and goes once round the node. Its last GPU sends by the same device."""
    hca = rails[channel % len(rails)] if rails else None
    place = min(range(len(ranks)), key=lambda n: ranks[n].distance(hca)) if hca else channel % len(ranks)
    ring = [ranks[(place - step) % len(ranks)] for step in range(len(ranks))]
    if hca is None:
        return Lane(ring, None, None, False, False)
    receiver, sender = ring[0], ring[-1]
    # PXN: the data go over NVLink to the GPU beside the device.
    through = (
        sender.distance(hca) > PXB
        and sender is not receiver
        and receiver.card.nvlinks > 0
        and number(sender.process.variables, "NCCL_PXN_DISABLE", 0) != 1
    )
    proxy = receiver if through else None
    return Lane(ring, hca, proxy, receiver.direct(hca), (proxy or sender).direct(hca))


def parent(channel: int, node: int, nodes: int) -> int:
    """Of a node in the tree of a channel, -1 of its root: every other tree is the mirror image."""
    place = node if channel % 2 == 0 else nodes - 1 - node
    above = (place - 1) // 2 if place else -1
    return above if above < 0 or channel % 2 == 0 else nodes - 1 - above


def children(channel: int, node: int, nodes: int) -> list[int]:
    return [one for one in range(nodes) if one != node and parent(channel, one, nodes) == node]
