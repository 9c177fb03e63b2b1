# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof of a run's transport: which network, which HCAs each rank uses, and GPUDirect RDMA of each connection.

``transport(job)`` is for whoever judges a bandwidth between nodes: without ``proven`` there is no verdict on one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Set, Tuple

from . import attendance, jobs
from .job import Process
from .jobs import Job

SOCKETS = "Socket"


@dataclass(frozen=True)
class Path:
    """Connections of a rank over one device. device: HCA's or interface's name; ``NET/IB/3`` where it was not listed.

    gdr: GPUDirect RDMA on all of these connections; None where lines are cut.   pxn: over another GPU of the node.
    sends: True, False, None where the line does not say.   channels: how many.
    """

    network: str
    device: str
    gdr: Optional[bool]
    pxn: bool
    sends: Optional[bool]
    channels: int


@dataclass(frozen=True)
class RankTransport:
    """rank: of a communicator of the process; that of the world, where the process has one alone."""

    host: str
    pid: Optional[int]
    rank: int
    networks: Tuple[str, ...]
    paths: Tuple[Path, ...]

    @property
    def devices(self) -> Tuple[str, ...]:
        return tuple(sorted({part for path in self.paths for part in path.device.split("+")}))


@dataclass(frozen=True)
class Transport:
    """networks: that ranks said they use.   expected: ranks of the job; None where not said.

    missing: what the log does not prove, in sentences. proven: nothing is missing, whatever network it is.
    """

    networks: Tuple[str, ...]
    nodes: Optional[int]
    expected: Optional[int]
    ranks: Tuple[RankTransport, ...]
    missing: Tuple[str, ...]

    @property
    def proven(self) -> bool:
        return not self.missing

    @property
    def rdma(self) -> bool:
        """Proven, and over no socket."""
        return self.proven and SOCKETS not in self.networks and self.nodes is not None and self.nodes > 1

    @property
    def gdr(self) -> Optional[bool]:
        """GPUDirect RDMA on every connection between nodes; None where none is proven."""
        if not self.proven or not any(one.paths for one in self.ranks):
            return None
        return all(path.gdr for one in self.ranks for path in one.paths)


# Of libfabric.
_PROVIDERS = ("efa", "verbs", "tcp", "sockets", "cxi", "psm2", "psm3", "opx", "shm", "gni")


def selected(job: Job) -> str:
    """What a network plugin has selected, where no line of NCCL's says that it is used."""
    said = {plugin.name for process in job.processes for plugin in process.plugins if plugin.state == "speaks"}
    chosen = sorted(name for name in said if name.partition(";")[0] in _PROVIDERS)
    return (
        "; NCCL's plugin for libfabric (NET/OFI) reports that it has selected %s" % jobs.names(chosen) if chosen else ""
    )


def device_name(process: Process, network: str, index: Optional[int]) -> str:
    """The HCA or interface that ``via NET/NETWORK/INDEX`` means to this process."""
    if network == SOCKETS:
        cards = list(process.interfaces)
        return cards[index] if index is not None and index < len(cards) else "NET/Socket/%s" % index
    listed = process.devices or {one.index: one for one in process.ports.values()}
    device = listed.get(-1 if index is None else index)
    return device.name if device is not None else "NET/%s/%s" % (network, index)


def unseen(job: Job) -> str:
    """Which ranks have no line here that says that they began; "" where all have one."""
    world = job.world
    which = "" if world is None else jobs.missing(world.began, world.ranks)
    if world is None or not which:
        return ""
    if job.rivals:
        return "ranks of one communicator: they started with different commIds"
    more = attendance.unnamed(job)
    here = len(world.began) + more
    if here == world.ranks:
        return jobs.of_ranks(which, *[" of %d %s not report here that %s started" % (world.ranks, *words)
                                      for words in (("does", "it"), ("do", "they"))])  # fmt: skip
    if more:
        text = "%d of %d ranks are not in this log; which ones is unknown: %d process%s not report theirs"
        return text % (world.ranks - here, world.ranks, more, " here does" if more == 1 else "es here do")
    which = jobs.of_ranks(which, " of %d is", " of %d are")
    return "%s not in this log" % (which % world.ranks)


def transport(job: Job) -> Transport:
    ranks = []
    bare: List[Process] = []
    for process in job.processes:
        own: Dict[int, List[Path]] = {}
        for rank, ways in process.connections.items():
            for (kind, via, index, gdr, pxn, sends), channels in ways.items():
                if kind in ("net", "collnet"):
                    path = Path(via, device_name(process, via, index), gdr, pxn, sends, channels)
                    own.setdefault(rank, []).append(path)
        named = tuple(sorted(process.networks))
        for rank, paths in sorted(own.items()):
            paths.sort(key=lambda path: (path.network, path.device, not path.gdr, str(path.sends)))
            ranks.append(RankTransport(process.host, process.key[1], rank, named, tuple(paths)))
        if not process.connections and not process.rings:
            bare.append(process)
    used: Set[str] = {path.network for one in ranks for path in one.paths}
    networks = job.networks | used | job.called
    cut = sum(path.channels for one in ranks for path in one.paths if path.gdr is None)
    expected = job.world.ranks if job.world is not None else None
    missing = []
    if not networks:
        missing.append("no rank reports which network it uses" + selected(job))
    if job.nodes is None:
        missing.append("the number of nodes of the job is unknown")
    if job.world is None:
        missing.append("no line here begins a communicator (Init START)")
    elif len(job.world.began) < job.world.ranks:
        missing.append(unseen(job))
    if job.nodes != 1 and not used:
        missing.append("no connection between nodes is shown (Channel ... via NET/...)")
    elif bare and job.nodes != 1:
        missing.append("%s show no connection" % job.among(bare))
    if cut:
        missing.append("whether %d connections use GPUDirect RDMA: the ends of their lines are cut" % cut)
    return Transport(tuple(sorted(networks)), job.nodes, expected, tuple(ranks), tuple(missing))
