# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long a collective takes: microseconds, bytes, GB/s. What published runs reach, and what is wrong on top of it."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass

from .fabric import LOSSY, between, ways, wire
from .job import Job, Lane, Rank, p2p_allowed
from .node import number
from .output import GIB, MIB
from .stop import USAGE_ERROR, nccl_failure

# What published runs reach of what NCCL's own model says of NVLinks, and of the network.
REACHED, REACHED_OUTSIDE = 0.985, 0.99
# NVLink SHARP on 5 to 8 Hopper GPUs against a ring, from published all_reduce runs. With fewer GPUs it gains nothing.
NVLS_GAIN = {5: 1.135, 6: 1.19, 7: 1.245, 8: 1.30}
# The same of eight Blackwell GPUs: 811 GB/s are published over two trays.
NVLS_GAIN_BLACKWELL = {8: 1.15}
SHARED_MEMORY = 10.0
# What each reaches of all_reduce's ring.
SHARE = {"all_gather": 0.97, "reduce_scatter": 0.97, "alltoall": 0.96, "broadcast": 0.99}
SLOW_GPU, SHARED_GPU = 0.6, 0.7
# A bounce through the host's memory; the way up to the CPU and down again; TCP, and the most that it gets.
BOUNCE, REDIRECTED, TCP, TCP_MOST = 0.5, 0.5, 0.92, 6.1
# Published all_reduce busbw by size, on 8 GPUs with NVLS. The time above that of the last figure's bandwidth is what a
# size costs, whatever the path.
_RAMP = ((MIB, 43.0), (16 * MIB, 234.0), (64 * MIB, 362.0), (512 * MIB, 438.0), (GIB, 466.0), (8 * GIB, 480.0))
_OVERHEAD = [(math.log2(size), 1.75 * size * (1 / bandwidth - 1 / 480.0) / 1e3) for size, bandwidth in _RAMP]
MEMORY = 1500.0  # one GPU copies to itself
# Published all_reduce of 8 B over two nodes of eight GPUs: 47 us. A tree up and down two levels.
_HOP, _WITHIN = 7.0, 33.0


@dataclass(frozen=True)
class Rate:
    """busbw at any size that is large enough, and which of NCCL's algorithms it is."""

    busbw: float
    algorithm: str


def overhead(size: int) -> float:
    """Return microseconds, between the points of the ramp by the logarithm of the size."""
    place, (low, before) = math.log2(max(size, MIB)), _OVERHEAD[0]
    for high, after in _OVERHEAD:
        if place <= high:
            return after if high == low else before + (after - before) * (place - low) / (high - low)
        low, before = high, after
    return before


def factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "sendrecv") else (ranks - 1) / ranks


def peak(collective: str, job: Job) -> Rate:
    """Return what the job reaches. Raises Stop where NCCL_ALGO leaves NCCL no way to do it."""
    insides = [_inside(job, ranks) for ranks in job.nodes]
    ring, nvls = (min(values) for values in zip(*insides, strict=True))
    share, all_reduce = SHARE.get(collective, 1.0), collective == "all_reduce"
    if len(job.nodes) == 1:
        # NCCL prefers NVLS to a ring that is as fast.
        rates = {"nvls": nvls if all_reduce else ring * share} if nvls else {}
        rates["ring"] = ring * share
    else:
        network = outside(job)
        rates = {"ring": min(ring, network) * share}
        if all_reduce and nvls:
            # With two nodes a tree has data cross the network once where a ring has them cross twice.
            crossed = factor(collective, len(job.ranks)) if len(job.nodes) == 2 else 1.0
            rates["nvlstree"] = min(nvls, network * crossed)
    wanted = job.ranks[0].process.variables.get("NCCL_ALGO", "").lower()
    usable = {name: rate for name, rate in rates.items() if not wanted or name in wanted.split(",")}
    if not usable:
        raise nccl_failure(USAGE_ERROR, 445, f"No algorithm/protocol available for function {collective}")
    best = max(usable, key=lambda name: usable[name])
    return Rate(usable[best], best)


def _inside(job: Job, ranks: list[Rank]) -> tuple[float, float]:
    """Return what the GPUs of one node reach among themselves: by a ring, and by NVLS (0: there is none)."""
    found, gpus = ranks[0].process.variables, [rank.card for rank in ranks]
    nvlink = min(gpu.nvlink for gpu in gpus) if p2p_allowed(found) else 0.0
    ring = (nvlink * REACHED or SHARED_MEMORY) * min(_clock(job, rank) for rank in ranks)
    ring *= SHARED_GPU if any(gpu.held_mib for gpu in gpus) else 1
    gains = NVLS_GAIN_BLACKWELL if gpus[0].blackwell else NVLS_GAIN
    # Published over the 72 GPUs of a rack, too: 835 to 847 GB/s of 722.
    gain = gains.get(min(len(ranks), max(gains)), 1.0)
    nvls = nvlink and len(ranks) > 1 and number(found, "NCCL_NVLS_ENABLE", 2) != 0
    return ring, ring * gain if nvls else 0.0


def _clock(job: Job, rank: Rank) -> float:
    """Return the share of its speed that a GPU has left."""
    slowed = job.fabric.gpus.get(rank.process.host, {})
    return slowed.get(str(rank.card.number), 1.0) * (SLOW_GPU if rank.card.slow else 1.0)


def outside(job: Job) -> float:
    """Return what rings get between nodes: data are spread evenly, so the slowest channel counts for all of them."""
    hosts, worst = [ranks[0].process.host for ranks in job.nodes], math.inf
    for node, lanes in enumerate(job.lanes):
        before, after = hosts[node - 1], hosts[(node + 1) % len(hosts)]
        uplink = min(between(job.fabric, hosts[node], after), between(job.fabric, before, hosts[node]))
        used = [lane.hca for lane in lanes]
        worst = min(worst, *(_device(job, node, lane) * uplink / used.count(lane.hca) for lane in lanes))
    return worst * job.channels * REACHED_OUTSIDE


def _device(job: Job, node: int, lane: Lane) -> float:
    """Return what one device of a node moves: a collective sends and receives at once."""
    process, hca = job.nodes[node][0].process, lane.hca
    if hca is None:
        return min(TCP_MOST, process.interface[2] / 8 * TCP)
    port = min(wire(hca.gbps, hca.mtu, hca.layer), hca.slot) * (LOSSY if hca.lossy else 1)
    port *= BOUNCE if not lane.direct else REDIRECTED if hca.redirected else 1
    found = ways(job.fabric, process.host, hca.name, port, hca.read_request)
    return min(found.sends, found.receives) * found.both


def duration(collective: str, size: int, job: Job, rate: Rate) -> float:
    """Return microseconds, without noise."""
    ranks, nodes = len(job.ranks), len(job.nodes)
    if ranks == 1:
        return 5 + size / MEMORY / 1e3
    moved = size * factor(collective, ranks) / rate.busbw / 1e3
    if nodes == 1:
        return overhead(size) + moved
    return _WITHIN + 2 * math.ceil(math.log2(nodes)) * _HOP + overhead(size) - overhead(0) + moved


def noise(job: Job, *parts: object) -> float:
    """Return the factor of one figure of this run: without noise of the fabric 0.9975 to 1.0025, always the same."""
    cv, seed = job.fabric.noise.get("cv", 0.0), job.fabric.noise.get("seed", 0)
    if not cv:
        digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
        return 1 + (int.from_bytes(digest[:4], "big") / 0xFFFFFFFF - 0.5) * 0.005
    # One run differs from another as a whole more than its rows differ among themselves.
    whole, row = (
        random.Random("/".join(map(str, (seed, job.run, *more)))).gauss(0, 1)  # noqa: S311
        for more in ((), parts)
    )
    return max(0.2, 1 + cv * (0.9 * whole + 0.4 * row))


def sent(collective: str, size: int, job: Job, rate: Rate) -> float:
    """Return the bytes that leave each node; as many come in."""
    nodes = len(job.nodes)
    if nodes == 1:
        return 0.0
    return 2 * size * (nodes - 1) / nodes if rate.algorithm == "nvlstree" else size * factor(collective, len(job.ranks))
