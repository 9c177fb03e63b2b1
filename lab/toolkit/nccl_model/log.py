# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL 2.28 logs of the run that is being simulated, in the words of captures.

Not all that NCCL prints, but all that shows how the ranks are connected. A line that says that it is simulated comes
first.
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
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .job import Job, Process, Rank, domain, p2p_allowed
from .node import NEAR, number

_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
# Those that the model of a run knows: name -> whether NCCL reads it as a number.
_SHOWN = {
    **dict.fromkeys(("NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX"), True),
    **dict.fromkeys(("NCCL_IB_QPS_PER_CONNECTION", "NCCL_NVLS_ENABLE", "NCCL_PXN_DISABLE", "NCCL_P2P_DISABLE"), True),
    **dict.fromkeys(("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_HOSTID"), False),
    **dict.fromkeys(("NCCL_MNNVL_ENABLE", "NCCL_MNNVL_CLIQUE_ID", "NCCL_CUMEM_ENABLE"), True),
}
# What a pipe, or the terminal that mpirun gives a process, takes and hands on whole.
_BLOCK = 1500

Line = tuple[Rank, str]


@dataclass
class Log:
    """Of one process. ``file``: where NCCL_DEBUG_FILE has it, "": standard output."""

    found: Mapping[str, str]
    library: int
    file: str = ""

    def __post_init__(self) -> None:
        self.level = self.found.get("NCCL_DEBUG", "").upper()
        if self.level in _LEVELS[2:]:
            name = self.found.get("NCCL_DEBUG_FILE", "")
            self.file = name.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))

    @property
    def version(self) -> str:
        return f"NCCL version {self.library // 10000}.{self.library // 100 % 100}.{self.library % 100}+cuda13.0"

    def write(self, lines: Sequence[Line]) -> None:
        block = ""
        for rank, text in lines if self.level in _LEVELS[2:] else ():
            line = f"{_prefix(rank)} NCCL INFO {text}\n"
            if len(block) + len(line) > _BLOCK:
                self._put(block)
                block = ""
            block += line
        self._put(block)

    def warn(self, rank: Rank, where: str, text: str) -> None:
        if self.level in _LEVELS[1:]:
            self._put(f"\n{_prefix(rank)} {where} NCCL WARN {text}\n")

    def _put(self, text: str) -> None:
        """Write whole lines, as far as a launcher lets them be: it reads blocks, and mixes those of several ranks.

        The real one takes a second for what is printed here at once, so the block before has been read by then.
        """
        if self.file and text:
            with open(self.file, "a", encoding="utf-8") as stream:
                stream.write(text)
        elif text:
            _wait_until_read()
            sys.stdout.write(text)
            sys.stdout.flush()


def _wait_until_read() -> None:
    """Wait, but not for long, until what is in the pipe has been read. A terminal does not show it."""
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


def _comm(rank: Rank) -> str:
    parts = f"comm/{rank.process.host}/{rank.process.pid}/{rank.number}"
    return f"comm 0x55{hashlib.sha256(parts.encode()).hexdigest()[:10]}"


# -- initialisation --------------------------------------------------------------------------------------------------


def start(log: Log, process: Process, first: bool) -> None:
    """Write what is known before any process knows of others. first: of all processes; only that shows the version."""
    rank = Rank(0, process, 0, 0, 0, 0)
    if log.level in _LEVELS[:2] and first:
        print(log.version, flush=True)
    name = log.found.get("NCCL_SOCKET_IFNAME")
    texts = ["simulated by the Busbar lab: nothing here is of a real job"]
    texts += [f"NCCL_SOCKET_IFNAME set by environment to {name}"] if name else []
    texts += [f"Bootstrap: Using {_bootstrap(process)}", "cudaDriverVersion 13000", log.version]
    log.write([(rank, text) for text in texts])


def _bootstrap(process: Process) -> str:
    return f"{process.interface[0]}:{process.interface[1]}<0>"


def initialise(log: Log, job: Job, place: int, complete: bool = True) -> None:
    """place: of the process.   complete: without, only up to the point where each rank waits for the others."""
    lines: list[Line] = []
    for rank in job.of_process(place):
        lines += [(rank, text) for text in _network(log, job, rank)]
        lines += [(rank, text) for text in list(communicator(log, job, rank))[: None if complete else 1]]
    log.write(lines)


def _network(log: Log, job: Job, rank: Rank) -> Iterator[str]:
    process, network = rank.process, rank.process.network
    yield "NET/Plugin: Could not find: libnccl-net.so"
    for name, is_number in _SHOWN.items():
        if log.found.get(name):
            yield f"{name} set by environment to " + (
                f"{number(log.found, name, 0)}." if is_number else log.found[name]
            )
    if log.found.get("NCCL_IB_HCA"):
        yield f"NCCL_IB_HCA set to {log.found['NCCL_IB_HCA']}"
    if not process.hcas:
        yield "NET/IB : No device found."
    devices = "".join(f" [{hca.index}]{hca.name}:1/{hca.layer}" for hca in process.hcas)
    yield f"NET/IB : Using{devices} [RO]; OOB {_bootstrap(process)}"
    if network != "IB":
        yield "Failed to initialize NET plugin IB"
        yield f"NET/Socket : Using [0]{_bootstrap(process)}"
    yield f"Initialized NET plugin {network}"
    yield f"Assigned NET plugin {network} to comm"
    yield f"Using network {network}"
    for hca in process.hcas:
        yield f"NET/IB : GPU Direct RDMA {'Enabled' if hca.direct else 'Disabled'} for HCA {hca.index} '{hca.name}'"
    for hca in dict.fromkeys(lane.hca for lane in job.lanes[rank.node] if lane.hca):
        if hca.direct:
            far, limit = rank.distance(hca), NEAR + 1
            state, sign, more = ("Enabled", "<=", ", read 1") if far <= limit else ("Disabled", ">", "")
            where = f"GPU {rank.card.bus_id} / HCA {hca.index:x}"
            yield f"GPU Direct RDMA {state} for {where} (distance {far} {sign} {limit}){more}"


def communicator(log: Log, job: Job, rank: Rank) -> Iterator[str]:
    """Yield what a rank logs of its communicator."""
    count, own = len(job.ranks), job.clique(rank)
    ids = hashlib.sha256(f"id/{job.ranks[0].process.pid}/{job.run}".encode()).hexdigest()[:16]
    named = f"{_comm(rank)} rank {rank.number} nranks {count} cudaDev {rank.device} nvmlDev {rank.device} "
    named = f"ncclCommInitRankConfig {named}busId {rank.card.bus_id} commId 0x{ids} - "
    yield named + "Init START"
    if rank.card.domain:
        of, _, clique = domain(rank.process).partition(" ")
        # Two numbers in the order of the CPU's bytes.
        halves = [int.from_bytes(uuid.UUID(of).bytes[at : at + 8], "little") for at in (0, 8)]
        where = f"fabric UUID {halves[0]:x}.{halves[1]:x} cliqueId 0x{int(clique):x} state 3 healthMask 0x1aa"
        yield f"MNNVL busId 0x{rank.card.bus_id} {where}"
        if own:
            yield f"MNNVL 1 cliqueId {int(clique):x} cliqueSize {len(own)} cliqueRank {own.index(rank.number)}"
    if rank.card.nvlink and number(log.found, "NCCL_NVLS_ENABLE", 2) != 0:
        yield f"NVLS multicast support is available on dev {rank.device} (NVLS_NCHANNELS 24)"
    shape = f"nRanks {count} nNodes {len(job.nodes)} localRanks {len(job.nodes[rank.node])} localRank {rank.local}"
    yield f"{_comm(rank)} rank {rank.number} {shape} MNNVL {int(bool(own))}"
    yield named + "Init COMPLETE"


# -- connections -----------------------------------------------------------------------------------------------------


def connect(log: Log, job: Job, place: int) -> None:
    """NCCL connects when a collective needs it."""
    log.write([*connections(job, job.of_process(place))])


def connections(job: Job, ranks: list[Rank]) -> Iterator[Line]:
    """Yield the lines of rings, whatever NCCL's algorithm is."""
    lanes = [lane for lanes in job.lanes for lane in lanes]
    used = (
        f"use ring PXN {int(any(len(lane.ring) > 1 for lane in lanes))} GDR {int(all(lane.direct for lane in lanes))}"
    )
    for rank in ranks:
        for channel, ring in enumerate(job.rings() if len(job.ranks) > 1 else ()):
            place = ring.index(rank)
            before, after = ring[place - 1], ring[(place + 1) % len(ring)]
            if before.node != rank.node:
                yield rank, _over_network(job, channel, before, rank, rank)
            over = _over_network(job, channel, rank, after, rank) if after.node != rank.node else ""
            yield (
                rank,
                over or f"Channel {channel:02d}/0 : {_end(rank)} -> {_end(after)} via {_within(job, rank, after)}",
            )
        yield rank, f"Connected all rings, {used}"


def _end(rank: Rank) -> str:
    return f"{rank.number}[{rank.device}]"


def _within(job: Job, rank: Rank, other: Rank) -> str:
    if not p2p_allowed(rank.process.variables) or not rank.card.nvlink:
        return "SHM/direct/direct"
    if rank.process is other.process:
        return "P2P/direct pointer"
    # Of a neighbour on the same tray, too.
    return "P2P/MNNVL" if job.clique(rank) else "P2P/CUMEM"


def _over_network(job: Job, channel: int, sender: Rank, receiver: Rank, logs: Rank) -> str:
    """Return the line of that end which logs it."""
    lane = job.lanes[logs.node][channel]
    way = "receive" if logs is receiver else "send"
    # The rank whose GPU is beside the lane's device, where the sender's own is not.
    proxy = f"({lane.ring[0].number})" if way == "send" and lane.hca and len(lane.ring) > 1 else ""
    where = f"NET/{logs.process.network}/{lane.hca.index if lane.hca else 0}{proxy}{'/GDRDMA' if lane.direct else ''}"
    return f"Channel {channel:02d}/0 : {_end(sender)} -> {_end(receiver)} [{way}] via {where}"


def finish(log: Log, job: Job, place: int) -> None:
    lines: list[Line] = []
    for rank in job.of_process(place):
        text = f"{_comm(rank)} rank {rank.number} nranks {len(job.ranks)} cudaDev {rank.device}"
        lines.append((rank, f"{text} busId {rank.card.bus_id} - Destroy COMPLETE"))
    log.write(lines)
