# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One process of a program of nccl-tests. All of them compute the same run; the first prints it."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from . import bandwidth, fabric, log, mnnvl, node, output
from .job import Job, Process, Rank, arrange, local_rank, shortened, unpack
from .mpi import Alone, Mpi
from .options import GIB, MIB, TYPES, Options, integer, parse
from .stop import CUDA_ERROR, REMOTE_ERROR, USAGE_ERROR, Stop, cuda_failure, host_name, nccl_failure, not_simulated
from .variables import ROOT, number, settings

_RUNS = f"{ROOT}/var/lib/busbar-lab/nccl-runs"
# How long the others wait for a rank that is about to end, so that what was printed before is read before.
_MOMENT = 0.3


@dataclass
class Program:
    """kind: all_reduce_perf.   name: what it was called.   headers, library: versions as NCCL's codes."""

    kind: str
    name: str
    headers: int
    library: int
    options: Options
    mpi: Alone
    out: output.Out
    report: output.Report

    @property
    def collective(self) -> str:
        return self.kind[: -len("_perf")]


def run(program: Program) -> None:
    """Raises Stop unless all is well."""
    options, mpi = program.options, program.mpi
    output.say_head(program.out, options, program.report, program.name, program.headers, program.library)
    hosts = [data.decode() for data in mpi.share(host_name().encode())]
    place = local_rank(hosts, mpi.rank)
    first, gpus = _gpus(options, place)
    found, ideal = settings(), _between()
    library = ideal.libraries.get(host_name(), program.library)
    mine = _process(program, first, gpus, found, library)
    everyone = [unpack(data) for data in mpi.share(mine.pack())]
    ranks = [
        Rank(n, one, 0, 0, gpu) for n, (one, gpu) in enumerate((p, g) for p in everyone for g in range(len(p.gpus)))
    ]
    output.say_devices(program.out, program.report, ranks)
    _limit_sizes(program, [gpu for one in everyone for gpu in one.gpus])
    logged = log.Log(found, library)
    mine = _found(mine, found, library)
    log.start(logged, mine, mpi.rank == 0)
    if node.hangs():
        _wait()
    job = arrange([unpack(data) for data in mpi.share(mine.pack())])
    _initialise(program, logged, job)
    rate = bandwidth.peak(program.collective, job)
    output.say_header(program.out, bool(options.per_iteration))
    if options.warmup:
        log.connect(logged, job, mpi.rank, program.collective, rate)
    _table(program, logged, job, rate)


def _gpus(options: Options, place: int) -> tuple[int, list[node.Gpu]]:
    """CUDA's number of the first GPU, and the GPUs of this process. Raises Stop where there are not so many."""
    gpus = node.read_gpus()
    if any(gpu.fabric not in ("Completed", "N/A") for gpu in gpus):
        raise cuda_failure("system not yet initialized")
    named = os.environ.get("NCCL_TESTS_DEVICE")
    first = max(0, integer(named)) if named else place * options.ranks
    wanted = first + options.ranks
    if wanted > len(gpus):
        found = f"{wanted} requested but only {len(gpus)} were found."
        raise Stop(
            5, err=f"Invalid number of GPUs: {found}\nPlease check the number of processes and GPUs per process."
        )
    return first, gpus[first:wanted]


def _process(program: Program, first: int, gpus: list[node.Gpu], found: dict[str, str], library: int) -> Process:
    """As far as nccl-tests shows it, without NCCL."""
    between = _between()
    number = _count_run() if program.mpi.rank == 0 and between.noise else 0
    nowhere = node.Interface("", "", 0)
    return Process(host_name(), os.getpid(), library, first, gpus, [], [], nowhere, shortened(found), between, number)


def _between() -> fabric.Fabric:
    """Raises Stop."""
    try:
        return fabric.read(f"{ROOT}{fabric.PLACE}")
    except ValueError as error:
        raise not_simulated(str(error)) from error


def _found(mine: Process, found: dict[str, str], library: int) -> Process:
    """The same, with what NCCL finds. Raises Stop."""
    interface = node.read_interface(found)
    hcas = node.read_hcas(found)
    near = [node.distances(gpu, hcas) for gpu in mine.gpus]
    imex = mnnvl.imex(node.HARDWARE) if any(gpu.domain for gpu in mine.gpus) else ""
    found_ = {"interface": interface, "hcas": hcas, "near": near, "library": library, "imex": imex}
    return Process(**{**mine.__dict__, **found_})


def _count_run() -> int:
    """How many runs began on this node before: what the fabric's noise goes by. 0 where that cannot be kept."""
    try:
        os.makedirs(os.path.dirname(_RUNS), exist_ok=True)
        before = integer(node.read(_RUNS)) if os.path.exists(_RUNS) else 0
        new = f"{_RUNS}.{os.getpid()}"
        with open(new, "w", encoding="utf-8") as stream:
            stream.write(f"{before + 1}\n")
        os.replace(new, _RUNS)
    except OSError:
        return 0
    return before


def _wait() -> NoReturn:
    """For ever, as a rank that waits for one that does not come."""
    while True:
        signal.pause()


def _limit_sizes(program: Program, gpus: list[node.Gpu]) -> None:
    """nccl-tests lowers sizes for which a GPU is too small, and fails where somebody else has the memory."""
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
    own = [rank for rank in job.ranks if rank.process is _own(job, mine)]
    versions = {rank.process.library: rank for rank in job.ranks}
    if len(versions) > 1:
        (one, other), peer = sorted(versions), own[0].number
        theirs = versions[other if own[0].process.library == one else one]
        said = f"Mismatched NCCL version detected : rank {theirs.number} version {theirs.process.library} "
        said += f"rank {peer} version {own[0].process.library}"
        logged.warn(own[0], "init.cc:1043", said)
        raise nccl_failure(USAGE_ERROR, 1550, said)
    for rank in own:
        for other_ in job.nodes[rank.node]:
            same = other_.process.host == rank.process.host and other_.card.address == rank.card.address
            if other_.number != rank.number and same:
                said = f"Duplicate GPU detected : rank {rank.number} and rank {other_.number} both on CUDA device "
                said += rank.card.bus_id
                logged.warn(rank, "init.cc:1083", said)
                raise nccl_failure(USAGE_ERROR, 1550, said)
    _join(program, logged, job, own)
    if hang and hang["bytes"] == 0:
        if not any(rank.named(hang) for rank in own):
            log.initialise(logged, job, mine, complete=False)
        _wait()
    log.initialise(logged, job, mine)
    if len(set(job.networks)) > 1:
        # One waits for a connection that the other never makes.
        _wait()


def _join(program: Program, logged: log.Log, job: Job, own: list[Rank]) -> None:
    """NVLink between hosts, where it has to be and cannot. Raises Stop."""
    process = own[0].process
    if program.library < mnnvl.TRIES:
        asked = number(process.variables, "NCCL_MNNVL_ENABLE", 2) == 1
        if asked and len({rank.process.host for rank in job.ranks}) > 1 and not job.cliques[own[0].number]:
            logged.warn(own[0], "init.cc:953", "MNNVL is not supported on this system")
            raise nccl_failure(mnnvl.SYSTEM_ERROR, 1550, "MNNVL is not supported on this system")
    broken = [rank for rank in job.ranks if job.cliques[rank.number] and rank.process.imex]
    if not broken:
        return
    if program.library < mnnvl.TRIES:
        raise not_simulated("IMEX that does not work is simulated from NCCL 2.25 on")
    log.initialise(logged, job, program.mpi.rank, complete=False)
    if own[0] not in broken:
        # For those that have ended, until the launcher ends this one.
        _wait()
    place, said = mnnvl.refusal(process.library, len(job.clique(own[0])), process.imex)
    logged.warn(own[0], place, said)
    time.sleep(_MOMENT)
    raise nccl_failure(mnnvl.SYSTEM_ERROR, 1550, said)


def _own(job: Job, number: int) -> Process:
    return list({id(rank.process): rank.process for rank in job.ranks}.values())[number]


# -- the table -------------------------------------------------------------------------------------------------------


def _table(program: Program, logged: log.Log, job: Job, rate: bandwidth.Rate) -> None:
    options, out, collective = program.options, program.out, program.collective
    results: list[dict[str, Any]] = []
    program.report.rest["results"] = results
    wrong = options.check > 0 and any(rank.card.wrong for rank in job.ranks)
    busbw: list[float] = []
    failed, count, moved = 0, len(job.ranks), 0.0
    if collective == "hypercube" and count & (count - 1):
        out.say(f"nRanks {count} is not a power of 2, skipping")
    else:
        for datatype, operation, root in output.tables(collective, options, count):
            for size in output.sizes(options):
                elements, shown = output.counts(collective, size, TYPES[datatype], count)
                _interrupted(program, logged, job, size, moved)
                out.say(f"{shown:12d}  {elements:12d}  {datatype:>8}  {operation:>6}  {root:>6}", end="")
                if not options.warmup and not results:
                    log.connect(logged, job, program.mpi.rank, collective, rate)
                row = {"size": shown, "count": elements, "type": datatype, "redop": operation, "root": f"{root:6d}"}
                for place in ("out_of_place", "in_place"):
                    checked = options.check > 0 and (
                        place == "out_of_place" or collective not in ("alltoall", "sendrecv")
                    )
                    seconds = bandwidth.duration(collective, shown, job, rate)
                    seconds *= bandwidth.noise(job, program.kind, shown, place)
                    algbw = (shown * (count - 1) // count if collective == "hypercube" else shown) / seconds / 1e3
                    busbw.append(algbw * bandwidth.factor(collective, count))
                    bad = elements // 1000 + 1 if wrong and checked else 0
                    failed += bad > 0
                    shown_bad = f"{bad:>6g}" if checked else "  N/A"
                    figures = (output.fitted(seconds, 7), output.fitted(algbw, 6), output.fitted(busbw[-1], 6))
                    out.say("  " + "  ".join([*figures, shown_bad]), end="")
                    row[place] = {
                        "time": round(seconds, 6),
                        "alg_bw": round(algbw, 6),
                        "bus_bw": round(busbw[-1], 6),
                        "nwrong": float(bad) if checked else None,
                    }
                    if options.per_iteration and program.mpi.rank == 0:
                        rows = _iterations(program, job, seconds, shown, place)
                        said, row[f"{place}_per_iter"] = output.per_iteration(rows, options.skipped)
                        out.say(said, end="")
                out.say("")
                moved += bandwidth.sent(collective, shown, job, rate) * (options.iterations * 2 + options.warmup)
                results.append({**row, "actual_iterations": options.iterations, "experiment_name": ""})
    _count_moved(program, job, moved)
    log.finish(logged, job, program.mpi.rank)
    output.conclude(out, program.name, program.report, busbw, failed)


def _iterations(program: Program, job: Job, seconds: float, size: int, place: str) -> list[list[float]]:
    """Of each process, microseconds of each iteration.

    A collective takes all of its ranks as long as the slowest needs, whoever that is (docs/evidence/h200x2-ranks.md).
    """
    count = range(program.options.iterations)
    processes = dict.fromkeys(id(rank.process) for rank in job.ranks)
    return [
        [round(seconds * bandwidth.jitter(size, place, number, turn), 6) for turn in count]
        for number in range(len(processes))
    ]


def _interrupted(program: Program, logged: log.Log, job: Job, size: int, moved: float) -> None:
    """Where the fabric has a rank hang or crash at this size. Raises Stop in the process that crashes."""
    hang, crash = job.fabric.hang, job.fabric.crash
    process = _own(job, program.mpi.rank)
    if hang and hang["bytes"] <= size:
        _count_moved(program, job, moved)
        _wait()
    if crash and crash["bytes"] <= size:
        _count_moved(program, job, moved)
        rank = next((rank for rank in job.ranks if rank.process is process and rank.named(crash)), None)
        if rank is None:
            _wait()
        time.sleep(_MOMENT)
        if crash["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        peer = next((one for one in job.ranks if one.node != rank.node), rank).process.interface
        lanes = job.lanes[rank.node]
        device = lanes[0].hca.name if lanes and lanes[0].hca else "mlx5_0"
        status = "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)"
        said = f"Got completion from peer {peer.address}<41237> {status} "
        logged.warn(rank, "transport/net_ib/p2p.cc:602", f"NET/IB: {said}len=0 vendor err 129 (Send) hca {device}")
        raise nccl_failure(REMOTE_ERROR, 560, "")


def _count_moved(program: Program, job: Job, moved: float) -> None:
    """The node's first process moves the counters of its devices."""
    number = next(n for n, rank in enumerate(job.ranks) if rank.process is _own(job, program.mpi.rank))
    own = job.ranks[number]
    lanes = job.lanes[own.node]
    if own.local or not moved or not lanes:
        return
    each: dict[str, int] = {}
    for lane in lanes:
        if lane.hca:
            each[lane.hca.name] = each.get(lane.hca.name, 0) + int(moved / len(lanes))
    lossy = any(lane.hca and not lane.hca.lossless for lane in lanes)
    node.count({name: (sent, sent) for name, sent in each.items()}, lossy, job.fabric)


# -- the process -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    (kind, headers, library, build), arguments = words[:4], words[4:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    report, mpi = None, Alone()
    name = os.path.basename(arguments[0])
    try:
        if build != "single":
            mpi = Mpi(build.partition(":")[2] or "libmpi.so.40")
        if mpi.rank == 0:
            print(output.SIMULATED)
        options = parse(name, arguments[1:])
        report = output.Report(options.output if mpi.rank == 0 else None, int(library), arguments)
        run(Program(kind, name, int(headers), int(library), options, mpi, output.Out(mpi.rank == 0), report))
        stop = Stop(0)
    except Stop as reason:
        stop = reason
    for text, stream in ((stop.out, sys.stdout), (stop.err, sys.stderr)):
        if text:
            print(text, file=stream)
    if report is not None:
        if "devices" in report.rest.get("config", {}):
            report.rest["end_time"] = output.now()
        report.finish()
        # From here on every level of the real program says where it was.
        for line in [stop.trace, 1454] if stop.trace else [1454] if stop.code in (2, 5, 7) else []:
            print(f" .. {host_name()} pid {os.getpid()}: Test failure common.cu:{line}")
    # The real program, too, leaves MPI as it is where something has failed before the end.
    if stop.code in (0, 7):
        mpi.close()
    return stop.code
