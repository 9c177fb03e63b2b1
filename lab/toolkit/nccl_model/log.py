# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL logs of the run that is being simulated: in the formats of 2.18 before 2.22, of 2.28 from there on.

The lines are those of nccl.md 5 and of captures; not all that NCCL prints, but all that says how the ranks are
connected. A line that says that it is simulated comes first.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import os
import socket
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import mnnvl
from .bandwidth import Rate
from .job import Job, Lane, Process, Rank, children, parent
from .node import dmabuf
from .variables import PXB, level, number

NEW = 22200
_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
# INFO lines of these subsystems are printed where NCCL_DEBUG_SUBSYS says nothing.
_USUAL = {False: "INIT,ENV", True: "INIT,BOOTSTRAP,ENV"}
_ALL = ("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "BOOTSTRAP", "NVLS", "REG", "PROXY")
# Those that the model of a run knows: name -> whether NCCL reads it as a number.
_SAID = {
    "NCCL_IB_DISABLE": True, "NCCL_IB_TC": True, "NCCL_IB_SL": True, "NCCL_IB_TIMEOUT": True,
    "NCCL_IB_GID_INDEX": True, "NCCL_IB_QPS_PER_CONNECTION": True, "NCCL_NVLS_ENABLE": True, "NCCL_PXN_DISABLE": True,
    "NCCL_P2P_DISABLE": True, "NCCL_SHM_DISABLE": True, "NCCL_DMABUF_ENABLE": True, "NCCL_CROSS_NIC": True,
    "NCCL_BUFFSIZE": True, "NCCL_ALGO": False, "NCCL_PROTO": False, "NCCL_NET_GDR_LEVEL": False,
    "NCCL_P2P_LEVEL": False, "NCCL_NET": False, "NCCL_HOSTID": False, "NCCL_MNNVL_ENABLE": True,
    "NCCL_MNNVL_CLIQUE_ID": True, "NCCL_CUMEM_ENABLE": True,
}  # fmt: skip

# What a pipe, or the terminal that mpirun gives a process, takes and hands on whole.
_BLOCK = 1500

Line = tuple[Rank, str, str]


@dataclass
class Log:
    """Of one process. ``file``: where NCCL_DEBUG_FILE has it, None: standard output."""

    found: Mapping[str, str]
    library: int
    file: str | None = None
    _subsystems: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        name = self.found.get("NCCL_DEBUG_FILE", "")
        if name and self.info:
            for token, value in (("%%", "\0"), ("%h", socket.gethostname()), ("%p", str(os.getpid())), ("\0", "%")):
                name = name.replace(token, value)
            self.file = name
            with open(name, "w", encoding="utf-8"):
                pass
        words = self.found.get("NCCL_DEBUG_SUBSYS") or _USUAL[self.library >= NEW]
        listed = {word.lstrip("^").upper() for word in words.split(",")}
        every = set(_ALL)
        chosen = every - listed if words.startswith("^") else (every if "ALL" in listed else listed)
        self._subsystems = frozenset(chosen)

    @property
    def level(self) -> str:
        word = self.found.get("NCCL_DEBUG", "").upper()
        return word if word in _LEVELS else ""

    @property
    def info(self) -> bool:
        return self.level in ("INFO", "TRACE")

    def version(self) -> str:
        cuda = "13.0" if self.library >= NEW else "12.2"
        return f"NCCL version {self.library // 10000}.{self.library // 100 % 100}.{self.library % 100}+cuda{cuda}"

    def write(self, lines: Sequence[Line]) -> None:
        """Those that are asked for: (rank, subsystems with | between them, text)."""
        if not self.info:
            return
        asked = [line for line in lines if self._subsystems.intersection(line[1].split("|"))]
        block = ""
        for rank, _, text in asked:
            line = f"{_prefix(rank)} NCCL INFO {text}\n"
            if len(block) + len(line) > _BLOCK:
                self._put(block)
                block = ""
            block += line
        self._put(block)

    def warn(self, rank: Rank, where: str, text: str) -> None:
        if self.level in _LEVELS[1:]:
            self._put(f"\n{_prefix(rank)} {where} NCCL WARN {text}\n")

    def bare(self, text: str) -> None:
        self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        """Whole lines, as far as a launcher lets them be: it reads blocks, and mixes those of several ranks.

        The real one takes a second for what is printed here at once, so the block before has been read by then.
        """
        if self.file:
            with open(self.file, "a", encoding="utf-8") as stream:
                stream.write(text)
            return
        _drained()
        sys.stdout.write(text)
        sys.stdout.flush()


def _drained() -> None:
    """Waits, but not for long, until what is in the pipe has been read. A terminal does not tell."""
    if sys.stdout.isatty():
        time.sleep(0.02)
        return
    for _attempt in range(100):
        waiting = array.array("i", [0])
        try:
            fcntl.ioctl(sys.stdout.fileno(), termios.FIONREAD, waiting)
        except OSError:
            return
        if not waiting[0]:
            return
        time.sleep(0.01)


def _prefix(rank: Rank) -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{os.getpid() + rank.gpu} [{rank.device}]"


def _digits(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def _mine(job: Job, number_: int) -> list[Rank]:
    """The ranks of one process, which is the number_th."""
    processes = list(dict.fromkeys(id(rank.process) for rank in job.ranks))
    return [rank for rank in job.ranks if id(rank.process) == processes[number_]]


# -- before anybody knows of others ----------------------------------------------------------------------------------


def start(log: Log, process: Process, first: bool) -> None:
    """first: of all processes; only that one shows the version to people."""
    rank = Rank(0, process, 0, 0, 0)
    new = log.library >= NEW
    if log.level in ("VERSION", "WARN") and first:
        log.bare(log.version())
    out = f"{process.interface.name}:{process.interface.address}<0>"
    lines: list[Line] = [(rank, "INIT|ENV|NET|BOOTSTRAP", "simulated by the Busbar lab: nothing here is of a real job")]
    if log.found.get("NCCL_SOCKET_IFNAME"):
        lines.append((rank, "ENV", f"NCCL_SOCKET_IFNAME set by environment to {log.found['NCCL_SOCKET_IFNAME']}"))
    if new:
        lines += [
            (rank, "INIT|ENV", "ENV/Plugin: Could not find: libnccl-env.so"),
            (rank, "BOOTSTRAP", f"Bootstrap: Using {out}"),
            (rank, "INIT", "cudaDriverVersion 13000"),
            (rank, "INIT", log.version()),
        ]
    else:
        lines += [(rank, "INIT", f"Bootstrap : Using {out}"), (rank, "INIT", "cudaDriverVersion 12020")]
    log.write(lines)
    if not new and first and log.info:
        log.bare(log.version())


# -- initialisation --------------------------------------------------------------------------------------------------


def initialise(log: Log, job: Job, number_: int, complete: bool = True) -> None:
    """complete: without, only up to the point where each rank waits for the others."""
    lines: list[Line] = []
    for rank in _mine(job, number_):
        lines += _network(log, job, rank)
        lines += list(_communicator(log, job, rank))[: None if complete else 1]
    log.write(lines)


def _named(job: Job, rank: Rank, new: bool, step: str) -> str:
    comm = f"comm 0x55{_digits('comm', rank.process.host, rank.process.pid, rank.number)[:10]}"
    function = "ncclCommInitRankConfig " if new else ""
    return (
        f"{function}{comm} rank {rank.number} nranks {len(job.ranks)} cudaDev {rank.device} nvmlDev {rank.device} "
        f"busId {rank.card.bus_id} commId 0x{_digits('id', job.ranks[0].process.pid, job.run)[:16]} - {step}"
    )


def _network(log: Log, job: Job, rank: Rank) -> Iterator[Line]:
    new, process = log.library >= NEW, rank.process
    where = process.interface
    oob = f"{where.name}:{where.address}<0>"
    if new:
        yield rank, "INIT|NET", "NET/Plugin: Could not find: libnccl-net.so"
    else:
        missing = "libnccl-net.so: cannot open shared object file: No such file or directory"
        yield rank, "INIT|NET", f"NET/Plugin : Plugin load (libnccl-net.so) returned 2 : {missing}"
        yield rank, "INIT|NET", "NET/Plugin : No plugin found, using internal implementation"
    for name, is_number in _SAID.items():
        value = log.found.get(name, "")
        if value:
            yield (
                rank,
                "ENV",
                f"{name} set by environment to {number(log.found, name, 0)}."
                if is_number
                else (f"{name} set by environment to {value}"),
            )
    network, disabled = job.networks[rank.node], number(log.found, "NCCL_IB_DISABLE", 0) == 1
    if not disabled:
        if log.found.get("NCCL_IB_HCA"):
            yield rank, "ENV|NET", f"NCCL_IB_HCA set to {log.found['NCCL_IB_HCA']}"
        devices = "".join(f" [{hca.index}]{hca.name}:1/{hca.layer}" for hca in process.hcas)
        if not devices:
            yield rank, "INIT|NET", "NET/IB : No device found."
        if devices or new:
            yield rank, "INIT|NET", f"NET/IB : Using{devices} [RO]; OOB {oob}"
    if new and network != "IB":
        yield rank, "INIT|NET", "Failed to initialize NET plugin IB"
    if network == "Socket":
        yield rank, "INIT|NET", f"NET/Socket : Using [0]{oob}"
    if new:
        yield rank, "INIT|NET", f"Initialized NET plugin {network}"
        yield rank, "INIT|NET", f"Assigned NET plugin {network} to comm"
    yield rank, "INIT|NET", f"Using network {network}"
    if new and network == "IB" and any(hca.direct for hca in process.hcas) and dmabuf(log.found):
        yield rank, "INIT", f"DMA-BUF is available on GPU device {rank.device}"
    for hca in process.hcas if network == "IB" else []:
        state = "Enabled" if hca.direct else "Disabled"
        yield rank, "NET", f"NET/IB : GPU Direct RDMA {state} for HCA {hca.index} '{hca.name}'"
    limit = level(process.variables, "NCCL_NET_GDR_LEVEL", PXB)
    for hca in job.rails(rank.node):
        if hca.direct:
            far = rank.distance(hca)
            state, compared = (
                ("Enabled", f"{far} <= {limit}), read 1") if far <= limit else ("Disabled", f"{far} > {limit})")
            )
            yield (
                rank,
                "NET",
                f"GPU Direct RDMA {state} for GPU {rank.card.bus_id} / HCA {hca.index:x} (distance {compared}",
            )


def _communicator(log: Log, job: Job, rank: Rank) -> Iterator[Line]:
    new, nodes = log.library >= NEW, len(job.nodes)
    yield rank, "INIT", _named(job, rank, new, "Init START")
    if new:
        yield rank, "INIT", "RAS client listening socket at 127.0.0.1<28028>"
        parts = "create 0.000040, send 0.000100, recv 0.030000, ring 0.015000, delay 0.000001"
        yield rank, "INIT|BOOTSTRAP", f"Bootstrap timings total 0.046000 ({parts})"
    own = job.clique(rank)
    if rank.card.domain and log.library >= mnnvl.SINCE:
        domain = mnnvl.renamed(rank.card.domain, log.found)
        yield rank, "INIT", mnnvl.fabric(domain, rank.card.bus_id)
        if own:
            yield rank, "INIT", mnnvl.joined(log.library, domain, len(own), own.index(rank.number))
    multicast = rank.card.nvlinks and number(log.found, "NCCL_NVLS_ENABLE", 2) != 0
    if multicast:
        count = " (NVLS_NCHANNELS 24)" if new else ""
        yield rank, "INIT|NVLS", f"NVLS multicast support is available on dev {rank.device}{count}"
    if log.library >= mnnvl.SINCE:
        shape = f"nRanks {len(job.ranks)} nNodes {nodes} localRanks {len(job.nodes[rank.node])} localRank {rank.local}"
        comm = f"comm 0x55{_digits('comm', rank.process.host, rank.process.pid, rank.number)[:10]}"
        yield rank, "INIT", f"{comm} rank {rank.number} {shape} MNNVL {int(bool(own))}"
    channels = rings(job)
    if rank.number == 0:
        for channel, ring in enumerate(channels):
            order = " ".join(str(one.number) for one in ring) if new else "".join(f"{one.number:5d}" for one in ring)
            yield rank, "INIT", f"Channel {channel:02d}/{len(channels):02d} :{' ' * new}{order}"
    yield rank, "INIT", "Trees " + " ".join(f"[{c}] {_tree(job, rank, c)}" for c in range(len(channels)))
    yield rank, "INIT", "P2P Chunksize set to 131072"
    if new:
        yield rank, "INIT", "Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1"
    else:
        yield from connections(log, job, [rank], Rate(0, "ring"))
    yield rank, "INIT", "threadThresholds 8/8/64 | 64/8/64 | 512 | 512"
    total, nvls = len(channels), len(channels) if multicast and len(job.nodes[rank.node]) > 1 else 0
    shown = f"{total} coll channels, " + (f"{total} collnet channels, " if new else "") + f"{nvls} nvls channels, "
    yield rank, "INIT", f"{shown}{total} p2p channels, {1 if nodes > 1 else 2} p2p channels per peer"
    yield rank, "INIT", _named(job, rank, new, "Init COMPLETE")
    if new:
        parts = "kernels 0.30, alloc 0.70, bootstrap 0.05, allgathers 0.00, topo 0.05, graphs 0.00, connections 0.01"
        shown = f"rank {rank.number} nranks {len(job.ranks)} total 1.11 ({parts}, rest 0.00)"
        yield rank, "INIT", f"Init timings - ncclCommInitRankConfig: {shown}"


# -- connections -----------------------------------------------------------------------------------------------------


def rings(job: Job) -> list[list[Rank]]:
    """Of each channel the ranks in the ring's order, from rank 0 on."""
    if len(job.nodes) == 1:
        return [job.ranks] * (12 if len(job.ranks) > 1 else 1)
    found = []
    for channel in range(job.channels):
        ring = [rank for lanes in job.lanes for rank in lanes[channel].ring]
        place = ring.index(job.ranks[0])
        found.append(ring[place:] + ring[:place])
    return found


def _tree(job: Job, rank: Rank, channel: int) -> str:
    """Down, down, down -> rank -> up, in a channel: a chain on the node, a tree over the heads of the nodes."""
    chain = _chain(job, rank.node, channel)
    place = chain.index(rank)
    down = [chain[place + 1].number] if place + 1 < len(chain) else []
    up = chain[place - 1].number if place else -1
    if place == 0 and len(job.nodes) > 1:
        above = parent(channel, rank.node, len(job.nodes))
        up = _chain(job, above, channel)[0].number if above >= 0 else -1
        down += [_chain(job, one, channel)[0].number for one in children(channel, rank.node, len(job.nodes))]
    down += [-1] * (3 - len(down))
    return f"{down[0]}/{down[1]}/{down[2]}->{rank.number}->{up}"


def _chain(job: Job, node: int, channel: int) -> list[Rank]:
    """From the head of the node on."""
    ranks = job.nodes[node]
    head = job.lanes[node][channel].ring[0].local if job.lanes[node] else 0
    return [ranks[(head + step) % len(ranks)] for step in range(len(ranks))]


def connect(log: Log, job: Job, number_: int, collective: str, rate: Rate) -> None:
    """From 2.22 on NCCL connects when a collective needs it."""
    if log.library >= NEW or not _collective(rate):
        log.write([*connections(log, job, _mine(job, number_), rate, collective)])


def _collective(rate: Rate) -> bool:
    return rate.algorithm != "p2p"


def connections(log: Log, job: Job, mine: list[Rank], rate: Rate, collective: str = "") -> Iterator[Line]:
    new = log.library >= NEW
    if not _collective(rate):
        for rank in mine:
            yield from _pairs(job, rank, new, collective)
        return
    order = rings(job)
    if rate.algorithm in ("ring", "nvls") or not new:
        for rank in mine:
            for channel, ring in enumerate(order):
                yield from _ring(job, rank, channel, ring, new)
            if rate.algorithm == "nvls" and job.clique(rank):
                yield rank, "INIT|NVLS", _multicast(log, job, rank)
            yield rank, "INIT", "Connected all rings" + (f", use ring PXN {_pxn(job)} GDR {_gdr(job)}" if new else "")
    if rate.algorithm in ("tree", "nvlstree") or not new:
        for rank in mine:
            for channel in range(len(order)):
                yield from _branches(job, rank, channel, new)
            nvls = rate.algorithm == "nvlstree"
            yield rank, "INIT", "Connected NVLS tree" if nvls else "Connected all trees"


def _multicast(log: Log, job: Job, rank: Rank) -> str:
    """Of the group that the switches have for a node; 2.28 says of how many ranks."""
    comm = f"comm 0x55{_digits('comm', rank.process.host, rank.process.pid, rank.number)[:10]}"
    count = len(job.nodes[rank.node])
    ranks = f"nvlsRanks {count} " if log.library >= 22800 else ""
    size = 1 << 20
    return (
        f"NVLS {comm} headRank {rank.local} nHeads {count} {ranks}buffSize {size} nvlsPerRankSize {24 * size} "
        f"nvlsTotalSize {24 * size * count}"
    )


def _pxn(job: Job) -> int:
    return int(any(lane.proxy for lanes in job.lanes for lane in lanes))


def _gdr(job: Job) -> int:
    lanes = [lane for lanes in job.lanes for lane in lanes]
    return int(bool(lanes) and all(lane.sends_direct and lane.receives_direct for lane in lanes))


def _ring(job: Job, rank: Rank, channel: int, ring: list[Rank], new: bool) -> Iterator[Line]:
    if len(ring) == 1:
        return
    place = ring.index(rank)
    before, after = ring[place - 1], ring[(place + 1) % len(ring)]
    if before.node != rank.node:
        yield _over_network(job, channel, 0, before, rank, rank)
    if after.node != rank.node:
        yield _over_network(job, channel, 0, rank, after, rank)
    else:
        yield _within(job, rank, after, channel, new)


def _branches(job: Job, rank: Rank, channel: int, new: bool) -> Iterator[Line]:
    chain, nodes = _chain(job, rank.node, channel), len(job.nodes)
    place = chain.index(rank)
    for beside in chain[max(0, place - 1) : place] + chain[place + 1 : place + 2]:
        yield _within(job, rank, beside, channel, new)
    if place or nodes == 1:
        return
    above = parent(channel, rank.node, nodes)
    for node in [*([above] if above >= 0 else []), *children(channel, rank.node, nodes)]:
        other = _chain(job, node, channel)[0]
        yield _over_network(job, channel, 0, other, rank, rank)
        yield _over_network(job, channel, 0, rank, other, rank)


def _pairs(job: Job, rank: Rank, new: bool, collective: str) -> Iterator[Line]:
    """Of alltoall and the like: every rank with every other, of sendrecv with its neighbours."""
    count = len(job.ranks)
    if collective == "sendrecv":
        numbers = [(rank.number + 1) % count, (rank.number - 1) % count]
    else:
        numbers = [number_ for number_ in range(count) if number_ != rank.number]
    for number_ in dict.fromkeys(numbers):
        other = job.ranks[number_]
        if other.node == rank.node:
            yield _within(job, rank, other, 0, new, 1)
            continue
        # The receiver's rail is the one of the sender, too: that is what PXN is for.
        yield _over_network(job, _rail(job, rank) % job.channels, 1, other, rank, rank)
        yield _over_network(job, _rail(job, other) % job.channels, 1, rank, other, rank)


def _rail(job: Job, rank: Rank) -> int:
    """A channel whose device is beside the rank's GPU."""
    lanes = job.lanes[rank.node]
    near = [n for n, lane in enumerate(lanes) if lane.hca and rank.distance(lane.hca) <= PXB]
    return near[0] if near else rank.local % len(lanes)


def _within(job: Job, one: Rank, other: Rank, channel: int, new: bool, connection: int = 0) -> Line:
    way = "P2P/direct pointer" if one.process is other.process else "P2P/CUMEM" if new else "P2P/IPC/read"
    if job.clique(one) and one.process is not other.process:
        # Of a neighbour on the same tray, too.
        way = "P2P/MNNVL"
    found = one.process.variables
    if level(found, "NCCL_P2P_LEVEL", PXB) == 0 or number(found, "NCCL_P2P_DISABLE", 0) == 1 or not one.card.nvlinks:
        way = "SHM/direct/direct"
    return one, "INIT|P2P", f"Channel {channel:02d}/{connection} : {_end(one)} -> {_end(other)} via {way}"


def _end(rank: Rank) -> str:
    return f"{rank.number}[{rank.device}]"


def _over_network(job: Job, channel: int, connection: int, sender: Rank, receiver: Rank, said: Rank) -> Line:
    """By the one of both that says it."""
    lane = job.lanes[said.node][channel]
    head = f"Channel {channel:02d}/{connection} : {_end(sender)} -> {_end(receiver)}"
    network, shared = job.networks[said.node], "/Shared" if connection else ""
    device = lane.hca.index if lane.hca else 0
    if said is receiver:
        direct = "/GDRDMA" if lane.hca and receiver.direct(lane.hca) else ""
        return said, "INIT|NET", f"{head} [receive] via NET/{network}/{device}{direct}{shared}"
    proxy = _proxy(lane, sender)
    direct = "/GDRDMA" if lane.hca and (proxy or sender).direct(lane.hca) else ""
    by = f"({proxy.number})" if proxy else ""
    return said, "INIT|NET", f"{head} [send] via NET/{network}/{device}{by}{direct}{shared}"


def _proxy(lane: Lane, sender: Rank) -> Rank | None:
    """The rank whose GPU is beside the lane's device, where the sender's own is not."""
    if lane.hca is None or sender.distance(lane.hca) <= PXB or lane.proxy is None:
        return None
    return lane.proxy


# -- the end ---------------------------------------------------------------------------------------------------------


def finish(log: Log, job: Job, number_: int) -> None:
    lines: list[Line] = []
    for rank in _mine(job, number_):
        comm = f"comm 0x55{_digits('comm', rank.process.host, rank.process.pid, rank.number)[:10]}"
        text = f"{comm} rank {rank.number} nranks {len(job.ranks)} cudaDev {rank.device} busId {rank.card.bus_id}"
        lines.append((rank, "INIT", f"{text} - Destroy COMPLETE"))
        if log.library >= NEW:
            lines.append((rank, "INIT|ENV", "ENV/Plugin: Closing env plugin ncclEnvDefault"))
    log.write(lines)
