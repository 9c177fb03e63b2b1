# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Summarise what a log proves of a job's transport: network, HCAs of each rank, GPUDirect RDMA of each connection.

The benchmark gives no verdict on a bandwidth between nodes without ``proven``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Counter, Dict, List, Optional, Tuple

from ..core.finding import Finding
from . import network
from .checks import RANKS
from .events import NOTICE, REPORT, WEAK
from .jobs import Job
from .names import causes_text, hosts_of, missing, names, of_ranks
from .reader import StateLog
from .state import SOCKETS


@dataclass(frozen=True)
class Path:
    """Connections of a rank over one device. device: HCA or interface; ``NET/IB/3`` where no line lists it.

    gdr: GPUDirect RDMA; None where lines are cut.   pxn: over another GPU of the node.   sends: None: not stated.
    """

    network: str
    device: str
    gdr: Optional[bool]
    pxn: bool
    sends: Optional[bool]
    channels: int


@dataclass(frozen=True)
class RankTransport:
    """rank: of the world where the process has one there, else of a communicator of it."""

    host: str
    pid: Optional[int]
    rank: int
    networks: Tuple[str, ...]
    paths: Tuple[Path, ...]


@dataclass(frozen=True)
class Transport:
    """expected: ranks of the job; None where not shown.   missing: what the log does not prove, in sentences."""

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
        """Return whether it is proven, between nodes, and over no socket."""
        return self.proven and SOCKETS not in self.networks and self.nodes is not None and self.nodes > 1

    @property
    def gdr(self) -> Optional[bool]:
        """Return whether every connection between nodes has GPUDirect RDMA; None where none is proven."""
        if not self.proven or not any(one.paths for one in self.ranks):
            return None
        return all(path.gdr for one in self.ranks for path in one.paths)


def transport(job: Job) -> Transport:
    """Return what the lines of a job prove of its transport."""
    ranks: List[RankTransport] = []
    for process in job.processes:
        own: Dict[int, Counter[Tuple[str, str, Optional[bool], bool, Optional[bool]]]] = {}
        for way, count in process.ways.items():
            if way.kind in ("net", "collnet"):
                key = (way.via, process.device_name(way.via, way.device), way.gdr, way.pxn, way.sends)
                own.setdefault(way.rank, Counter())[key] += count
        for rank, paths in sorted(own.items()):
            ordered = sorted(paths.items(), key=lambda one: (one[0][0], one[0][1], not one[0][2], str(one[0][4])))
            found = tuple(Path(*key, channels=count) for key, count in ordered)
            ranks.append(RankTransport(process.host, process.key[1], rank, tuple(sorted(process.networks)), found))
    bare = [process.host for process in job.processes if not process.ways and not process.rings]
    used = {path.network for one in ranks for path in one.paths}
    cut = sum(path.channels for one in ranks for path in one.paths if path.gdr is None)
    world, several = job.world, job.nodes != 1
    absent = missing(world.began, world.ranks) if world is not None else ""
    lacking = (
        (not job.networks, "no rank reports which network it uses"),
        (job.nodes is None, "the number of nodes of the job is unknown"),
        (world is None, "no line here begins a communicator (Init START)"),
        (absent, "%s not in this log" % of_ranks(absent, " is", " are")),
        (several and not used, "no connection between nodes is shown (Channel ... via NET/...)"),
        (several and used and bare, "processes of %s show no connection" % hosts_of(bare)),
        (cut, "whether %d connections use GPUDirect RDMA: the ends of their lines are cut" % cut),
    )
    texts = tuple(text for holds, text in lacking if holds)
    expected = world.ranks if world is not None else None
    return Transport(tuple(sorted(job.networks)), job.nodes, expected, tuple(ranks), texts)


def quoted(log: StateLog, job: Job) -> List[Finding]:
    """Return what NCCL's log of a run says is wrong: its most upstream warning, and why the transport is slow."""
    failed = [group for group in log.groups.values() if group.tier not in (NOTICE, REPORT, WEAK)]
    failed.sort(key=lambda group: (group.tier, group.first.order))
    found = []
    for group in failed[:2]:
        detail = group.detail
        on = names({job.writer(one.process) for one in group.kept if one.process is not None} or group.hosts)
        parts = [group.first.text[:300], *(["on %s" % on] if on else [])]
        parts += [causes_text([detail.causes], detail.proven)] if detail.causes else []
        where = ("%s %s" % (job.name, group.name), "drift", None, "; ".join(parts), "NCCL_DEBUG", detail.fix or None)
        found.append(group.event.check.judge(*where, why=detail.why or None))
    world = job.world
    absent = missing(world.began, world.ranks) if world is not None and not world.done else ""
    if absent and world is not None:
        who = of_ranks(absent, " of %d is" % world.ranks, " of %d are" % world.ranks)
        have = "%s not in this log, and no rank completed in it" % who
        have += "; possible causes: not started, cannot reach rank 0, or their log is not among the files"
        found.append(RANKS.judge(job.name, "unknown", "%d ranks" % world.ranks, have, "Init START"))
    events = frozenset(group.event.id for group in failed)
    return found + [finding for finding in network.judge(job, events) if not finding.ok]


@dataclass(frozen=True)
class CollNet:
    """In-network reduction of the largest communicator. ranks: None where none is begun.   connected: ranks with it.

    plugin: ranks for which the plugin reported that it started.   why: what NCCL prints of a rank without it.
    """

    ranks: Optional[int]
    connected: Tuple[int, ...]
    plugin: int
    nvls: bool
    why: str

    @property
    def proven(self) -> bool:
        return self.ranks is not None and len(self.connected) == self.ranks

    @property
    def missing(self) -> str:
        """Return why it is not proven, a sentence; "" where it is."""
        if self.proven:
            return ""
        if self.ranks is None:
            return "no communicator is started in the log: which ranks connected to SHARP (CollNet) is not known"
        without = self.ranks - len(self.connected)
        text = "%d of %d ranks did not connect to SHARP (Connected CollNet)" % (without, self.ranks)
        text += ": ranks %s" % missing(self.connected, self.ranks) if self.connected else ""
        if self.why:
            return text + "; NCCL reports: %s" % self.why
        if self.plugin:
            return text + "; the plugin's own line of %d ranks is not a proof" % self.plugin
        nvls = "; NVLS is there, which reduces in the node's NVSwitch and not in the fabric"
        return text + (nvls if self.nvls else "")


def collnet(job: Job) -> CollNet:
    """Return what the log proves of in-network reduction."""
    world = job.world
    began = world.began.items() if world is not None else ()
    connected = sorted(rank for rank, one in began if world is not None and (world.key, rank) in one.collnet)
    why = next((one.collnet_why for one in job.processes if one.collnet_why), "")
    plugin = sum(len(one.sharp) for one in job.processes)
    nvls = any(one.nvls_channels for one in job.processes)
    return CollNet(None if world is None else world.ranks, tuple(connected), plugin, nvls, why)
