# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One process of a program of nccl-tests. All of them compute the same run; the first prints it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from typing import NoReturn

from . import bandwidth, fabric, log, node, output
from .job import Job, Process, Rank, arrange, shared, unpack
from .mpi import Alone, Mpi
from .output import GIB, MIB, Options, parse
from .pcie import read
from .stop import CUDA_ERROR, REMOTE_ERROR, SYSTEM_ERROR, USAGE_ERROR, Stop, cuda_failure, host_name, nccl_failure

_RUNS = f"{node.ROOT}/var/lib/busbar-lab/nccl-runs"
# How long the others wait for a rank that is about to end, so that what was printed before is read before.
_MOMENT = 0.3


@dataclass
class Program:
    """collective: all_reduce.   name: what it was called.   headers, library: versions as NCCL's codes."""

    collective: str
    name: str
    headers: int
    library: int
    options: Options
    mpi: Alone
    out: output.Out
    found: dict[str, str] = field(default_factory=node.settings)


def run(program: Program) -> None:
    """Raises Stop unless all is well."""
    options, mpi, found = program.options, program.mpi, program.found
    output.say_head(program.out, options, program.name, program.headers, program.library)
    hosts = [data.decode() for data in mpi.share(host_name().encode())]
    first, gpus = _gpus(options, hosts[: mpi.rank].count(hosts[mpi.rank]))
    between = fabric.read(f"{node.ROOT}{fabric.PLACE}")
    library = between.libraries.get(host_name(), program.library)
    runs = _count_run() if mpi.rank == 0 and between.noise else 0
    mine = Process(host_name(), os.getpid(), library, first, gpus, shared(found), between, runs)
    everyone = [unpack(data) for data in mpi.share(mine.pack())]
    ranks = [(process, gpu) for process in everyone for gpu in range(len(process.gpus))]
    output.say_devices(program.out, [Rank(n, process, 0, 0, gpu, 0) for n, (process, gpu) in enumerate(ranks)])
    _limit_sizes(program, [gpu for process in everyone for gpu in process.gpus])
    hcas = node.read_hcas(found)
    mine = replace(
        mine,
        interface=node.read_interface(found),
        hcas=tuple(hcas),
        near=tuple(node.distances(gpu, hcas) for gpu in gpus),
        imex=node.imex() if gpus[0].domain else "",
    )
    logged = log.Log(found, library)
    log.start(logged, mine, mpi.rank == 0)
    if json.loads(read(f"{node.ANSWERS}/.driver.json"))["hang"]:
        _wait()
    job = arrange([unpack(data) for data in mpi.share(mine.pack())])
    _initialise(program, logged, job)
    rate = bandwidth.peak(program.collective, job)
    output.say_header(program.out)
    log.connect(logged, job, mpi.rank)
    _table(program, job, rate)
    log.finish(logged, job, mpi.rank)


def _gpus(options: Options, place: int) -> tuple[int, list[node.Gpu]]:
    """Return CUDA's number of the first GPU, and the GPUs of this process. Raises Stop where there are fewer."""
    gpus = node.read_gpus()
    if any(gpu.fabric not in ("Completed", "N/A") for gpu in gpus):
        raise cuda_failure("system not yet initialized")
    first = place * options.gpus
    wanted = first + options.gpus
    if wanted > len(gpus):
        found = f"{wanted} requested but only {len(gpus)} were found."
        raise Stop(
            5, err=f"Invalid number of GPUs: {found}\nPlease check the number of processes and GPUs per process."
        )
    return first, gpus[first:wanted]


def _count_run() -> int:
    """Return how many runs began on this node before: what the fabric's noise goes by."""
    os.makedirs(os.path.dirname(_RUNS), exist_ok=True)
    with open(_RUNS, "a+", encoding="utf-8") as stream:
        stream.write(".")
        return stream.tell() - 1


def _wait() -> NoReturn:
    """Wait for ever, as a rank that waits for one that does not come."""
    while True:
        signal.pause()


def _limit_sizes(program: Program, gpus: list[node.Gpu]) -> None:
    """nccl-tests lowers sizes for which a GPU is too small, and fails where another process has the memory."""
    options = program.options
    smallest = min(gpu.memory for gpu in gpus)
    reserved = min(math.ceil(smallest / (16 * GIB)) * GIB, 4 * GIB) + GIB
    buffers = 3 if options.check else 2
    most = (smallest - reserved) // buffers
    if options.max_bytes > most:
        options.max_bytes, options.min_bytes = most, min(options.min_bytes, most)
        program.out.say(f"#\n# Reducing maxBytes to {most} due to memory limitation")
    if any(buffers * options.max_bytes + GIB > gpu.memory - gpu.held_mib * MIB for gpu in gpus):
        raise nccl_failure(CUDA_ERROR, 1630, "Cuda failure 2 'out of memory'")


# -- NCCL ------------------------------------------------------------------------------------------------------------


def _initialise(program: Program, logged: log.Log, job: Job) -> None:
    """Raises Stop for what NCCL refuses."""
    mine, hang = program.mpi.rank, job.fabric.hang
    own = job.of_process(mine)
    library = own[0].process.library
    other = next((rank for rank in job.ranks if rank.process.library != library), None)
    if other is not None:
        text = f"Mismatched NCCL version detected : rank {other.number} version {other.process.library} "
        text += f"rank {own[0].number} version {library}"
        logged.warn(own[0], "init.cc:1043", text)
        raise nccl_failure(USAGE_ERROR, 1550, text)
    # IMEX that does not work on a tray ends the job there: each rank tries a handle of its own first.
    broken = [rank for rank in job.ranks if job.cliques[rank.number] and rank.process.imex]
    waits = bool(hang) and hang["bytes"] == 0
    if not waits or not any(rank.has(hang) for rank in own):
        log.initialise(logged, job, mine, complete=not waits and not broken)
    if waits or (broken and own[0] not in broken):
        # For those that have ended, until the launcher ends this one.
        _wait()
    if broken:
        what = "channel configuration (/dev/nvidia-caps-imex-channels)"
        what = what if own[0].process.imex == "channel" else "configuration (nvidia-imex-ctl -N)"
        text = f"MNNVL (cliqueSize {len(job.clique(own[0]))}) is available but not working on this system. "
        text += f"Check the IMEX {what}. Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
        logged.warn(own[0], "mnnvl.cc:67", text)
        time.sleep(_MOMENT)
        raise nccl_failure(SYSTEM_ERROR, 1550, text)


# -- the table -------------------------------------------------------------------------------------------------------


def _table(program: Program, job: Job, rate: bandwidth.Rate) -> None:
    options, out, collective = program.options, program.out, program.collective
    wrong = options.check > 0 and any(rank.card.wrong for rank in job.ranks)
    operation = "sum" if collective in output.REDUCE else "none"
    root = 0 if collective in ("broadcast", "reduce") else -1
    busbw: list[float] = []
    failed, moved = 0, 0.0
    for size in options.sizes():
        elements, shown = output.counts(collective, size, len(job.ranks))
        _interrupt(program, job, size, moved)
        out.say(f"{shown:12d}  {elements:12d}  {'float':>8}  {operation:>6}  {root:>6}", end="")
        for place in ("out_of_place", "in_place"):
            checked = options.check > 0 and (place == "out_of_place" or collective not in ("alltoall", "sendrecv"))
            seconds = bandwidth.duration(collective, shown, job, rate)
            seconds *= bandwidth.noise(job, f"{collective}_perf", shown, place)
            algbw = shown / seconds / 1e3
            busbw.append(algbw * bandwidth.factor(collective, len(job.ranks)))
            bad = elements // 1000 + 1 if wrong and checked else 0
            failed += bad > 0
            figures = (output.fitted(seconds, 7), output.fitted(algbw, 6), output.fitted(busbw[-1], 6))
            out.say("  " + "  ".join([*figures, f"{bad:>6g}" if checked else "  N/A"]), end="")
        out.say("")
        moved += bandwidth.sent(collective, shown, job, rate) * (options.iterations * 2 + options.warmup)
    _count_moved(program, job, moved)
    output.conclude(out, program.name, busbw, failed)


def _interrupt(program: Program, job: Job, size: int, moved: float) -> None:
    """Hang or crash where the fabric has a rank do so at this size. Raises Stop in the process that crashes."""
    hang, crash = job.fabric.hang, job.fabric.crash
    if not any(fault and fault["bytes"] <= size for fault in (hang, crash)):
        return
    _count_moved(program, job, moved)
    own = job.of_process(program.mpi.rank)
    rank = next((rank for rank in own if rank.has(crash)), None)
    if hang or rank is None:
        _wait()
    time.sleep(_MOMENT)
    if crash["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    peer = next((other for other in job.ranks if other.node != rank.node), rank).process.interface[1]
    hca = job.lanes[rank.node][0].hca if job.lanes[rank.node] else None
    text = f"NET/IB: Got completion from peer {peer}<41237> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)"
    text += f" len=0 vendor err 129 (Send) hca {hca.name if hca else 'mlx5_0'}"
    log.Log(program.found, program.library).warn(rank, "transport/net_ib/p2p.cc:602", text)
    raise nccl_failure(REMOTE_ERROR, 560, "")


def _count_moved(program: Program, job: Job, moved: float) -> None:
    """The node's first process moves the counters of its devices."""
    own = job.of_process(program.mpi.rank)[0]
    lanes = job.lanes[own.node]
    each: dict[str, int] = {}
    for lane in lanes if moved and not own.local else ():
        if lane.hca:
            each[lane.hca.name] = each.get(lane.hca.name, 0) + int(moved / len(lanes))
    node.count(each, any(lane.hca and lane.hca.lossy for lane in lanes), job.fabric)


def main(words: list[str]) -> int:
    """Run a program. words: its kind, versions of NCCL's headers and library, the build, and argv."""
    (kind, headers, library, build), arguments = words[:4], words[4:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    mpi, stop = Alone(), Stop(0)
    name = os.path.basename(arguments[0])
    try:
        if build != "single":
            mpi = Mpi(build.partition(":")[2])
        out = output.Out(mpi.rank == 0)
        out.say(output.SIMULATED)
        options = parse(arguments[1:])
        run(Program(kind.removesuffix("_perf"), name, int(headers), int(library), options, mpi, out))
    except Stop as reason:
        stop = reason
    for text, stream in ((stop.out, sys.stdout), (stop.err, sys.stderr)):
        if text:
            print(text, file=stream)
    # Every level of the real program shows where it was.
    for line in [stop.trace, 1454] if stop.trace else [1454] if stop.code in (2, 5, 7) else []:
        print(f" .. {host_name()} pid {os.getpid()}: Test failure common.cu:{line}")
    # The real program, too, leaves MPI as it is where something has failed before the end.
    if stop.code in (0, 7):
        mpi.close()
    return stop.code
