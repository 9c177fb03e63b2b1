# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long a collective takes: microseconds, bytes, GB/s. Sources: nccl.md 7, cluster.md 1."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass

from .job import Job, Lane, Rank
from .options import GIB, MIB
from .stop import USAGE_ERROR, nccl_failure
from .variables import ALGORITHMS, FUNCTIONS, PROTOCOLS, PXB, allowed, number, p2p_allowed
from .ways import LOSSY, between, ways, wire

# What published runs reach of what NCCL's own model says of NVLinks, and of the network.
REACHED, REACHED_OUTSIDE = 0.985, 0.99
# NVLink SHARP on 5 to 8 Hopper GPUs against a ring, from published all_reduce runs. With fewer GPUs it gains nothing.
NVLS_GAIN = {5: 1.135, 6: 1.19, 7: 1.245, 8: 1.30}
# The same of eight Blackwell GPUs: 811 GB/s are published over two trays.
NVLS_GAIN_BLACKWELL = {8: 1.15}
SHARED_MEMORY, SOCKETS = 10.0, 1.8
# What each reaches of all_reduce's ring; gather, scatter and hypercube are assumed.
SHARE = {"all_gather": 0.97, "reduce_scatter": 0.97, "alltoall": 0.96, "broadcast": 0.99, "gather": 0.96}
SHARE |= {"scatter": 0.96, "hypercube": 0.9}
PROTOCOL_SHARE = {"simple": 1.0, "ll128": 0.93, "ll": 0.25}
SLOW_GPU, SHARED_GPU = 0.6, 0.7
# A bounce through the host's memory; the way up to the CPU and down again (nccl.md 7); TCP, and the most that it gets.
BOUNCE, REDIRECTED, TCP, TCP_MOST = 0.5, 0.5, 0.92, 6.1
# GB/s that the copies of one GPU of Hopper keep up with.
COPIES = 365.0
# Published all_reduce busbw by size, on 8 GPUs with NVLS. The time above that of the last figure's bandwidth is what a
# size costs, whatever the path.
_RAMP = ((MIB, 43.0), (16 * MIB, 234.0), (64 * MIB, 362.0), (512 * MIB, 438.0), (GIB, 466.0), (8 * GIB, 480.0))
_OVERHEAD = [(math.log2(size), 1.75 * size * (1 / bandwidth - 1 / 480.0) / 1e3) for size, bandwidth in _RAMP]
MEMORY = 1500.0  # one GPU copies to itself
# Published all_reduce of 8 B over two nodes: 19 us with one GPU each, 47 with eight. A tree up and down two levels.
_HOP, _WITHIN, _WITHOUT = 7.0, 33.0, 5.0
_TCP_HOP, _BOUNCE_HOP = 40.0, 9.0


@dataclass(frozen=True)
class Rate:
    """busbw at any size that is large enough, and which of NCCL's algorithms it is."""

    busbw: float
    algorithm: str


def overhead(size: int) -> float:
    """Microseconds, between the points of the ramp by the logarithm of the size."""
    if size <= MIB:
        return _OVERHEAD[0][1]
    place = math.log2(size)
    for n, (high, after) in enumerate(_OVERHEAD):
        if place <= high:
            low, before = _OVERHEAD[n - 1]
            return before + (after - before) * (place - low) / (high - low)
    return _OVERHEAD[-1][1]


def factor(collective: str, ranks: int) -> float:
    """busbw / algbw."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "sendrecv", "hypercube") else (ranks - 1) / ranks


# -- within a node ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inside:
    """What the GPUs of one node reach among themselves: by a ring, and by NVLS (0: there is none)."""

    ring: float
    nvls: float


def _inside(job: Job, ranks: list[Rank]) -> _Inside:
    found, gpus = ranks[0].process.variables, [rank.card for rank in ranks]
    bandwidth, nvlink = SOCKETS, False
    if p2p_allowed(found) and all(gpu.nvlinks for gpu in gpus):
        bandwidth, nvlink = min(gpu.nvlink * gpu.nvlinks for gpu in gpus) * REACHED, True
    elif number(found, "NCCL_SHM_DISABLE", 0) != 1:
        bandwidth = SHARED_MEMORY * min(gpu.lanes for gpu in gpus) / 16
    if any(gpu.held_mib for gpu in gpus):
        bandwidth *= SHARED_GPU
    bandwidth *= min((_clock(job, rank) for rank in ranks), default=1.0)
    nvls = nvlink and number(found, "NCCL_NVLS_ENABLE", 2) != 0 and len(ranks) > 1
    gains = NVLS_GAIN_BLACKWELL if gpus[0].nvlink > 30 else NVLS_GAIN
    # Published over the 72 GPUs of a rack, too: 835 to 847 GB/s of 722.
    most = max((count for count in gains if count <= len(ranks)), default=0)
    gain = gains[most] if len(ranks) in gains or len(ranks) > max(gains) else 1.0
    return _Inside(bandwidth, bandwidth * gain if nvls else 0.0)


# -- between nodes ---------------------------------------------------------------------------------------------------


def _device(job: Job, node: int, lane: Lane, direct: bool) -> float:
    """One device of a node, with all that is wrong with it: a collective sends and receives at once."""
    host, hca = job.nodes[node][0].process.host, lane.hca
    if hca is None:
        return min(TCP_MOST, job.nodes[node][0].process.interface.gbps / 8 * TCP)
    port = min(wire(hca.gbps, hca.mtu, hca.layer), hca.slot)
    port *= (REDIRECTED if hca.redirected else 1) if direct else BOUNCE
    port *= 1 if hca.lossless else LOSSY
    found = ways(job.fabric, host, hca.name, port, hca.read_request)
    return min(found.sends, found.receives) * found.both


def _uplink(job: Job, one: int, other: int) -> float:
    hosts = job.hosts()
    return between(job.fabric, hosts[one], hosts[other])


def outside(job: Job) -> float:
    """What the rings get between nodes: data are spread evenly, so the slowest channel counts for all of them."""
    count, worst = len(job.nodes), math.inf
    for node, lanes in enumerate(job.lanes):
        shared = [lane.hca.name if lane.hca else "" for lane in lanes]
        uplink = min(_uplink(job, node, (node + 1) % count), _uplink(job, (node - 1) % count, node))
        for lane, name in zip(lanes, shared):  # noqa: B905 Python 3.9
            device = _device(job, node, lane, lane.sends_direct and lane.receives_direct)
            worst = min(worst, device * uplink / shared.count(name))
    return worst * job.channels * REACHED_OUTSIDE


def _point_to_point(job: Job) -> float:
    """GB/s that each rank gets to and from other nodes while all use theirs."""
    worst = math.inf
    for node, ranks in enumerate(job.nodes):
        lanes = {lane.hca.name if lane.hca else "": lane for lane in job.lanes[node]}
        if "" in lanes:
            worst = min(worst, _device(job, node, lanes[""], False) / len(ranks))
            continue
        used = list(lanes)
        beside = [next((n for n in used if _near(rank, lanes[n])), used[rank.local % len(used)]) for rank in ranks]
        uplink = min(_uplink(job, node, other) for other in range(len(job.nodes)))
        for name in set(beside):
            device = _device(job, node, lanes[name], lanes[name].receives_direct)
            worst = min(worst, device * uplink / beside.count(name))
    return worst * REACHED_OUTSIDE


def _near(rank: Rank, lane: Lane) -> bool:
    return lane.hca is not None and rank.distance(lane.hca) <= PXB


# -- both ------------------------------------------------------------------------------------------------------------


def peak(collective: str, job: Job) -> Rate:
    """Raises Stop where NCCL finds no way to do it."""
    found, function = job.ranks[0].process.variables, FUNCTIONS.get(collective, "")
    several = len(job.nodes) > 1
    algorithms = allowed(found.get("NCCL_ALGO", ""), ALGORITHMS, function)
    protocols = allowed(found.get("NCCL_PROTO", ""), PROTOCOLS, function)
    insides = [_inside(job, ranks) for ranks in job.nodes if len(ranks) > 1 or len(job.nodes) == 1]
    ring = min((inside.ring for inside in insides), default=math.inf)
    # One that is alone on its node copies nothing over NVLink, and is no faster for it.
    ring = min([ring, *(COPIES * _clock(job, ranks[0]) for ranks in job.nodes if several and len(ranks) == 1)])
    nvls = min((inside.nvls for inside in insides), default=0.0) if "simple" in protocols else 0.0
    best = max(PROTOCOL_SHARE[protocol] for protocol in protocols) if function else 1.0
    rates: dict[str, float] = {}
    if not function:
        rates["p2p"] = _between_pairs(collective, job, ring) if several else ring * SHARE.get(collective, 1.0)
    elif not several:
        rates = _alone(collective, ring, nvls if best == 1 else 0.0, best)
    else:
        rates = _together(collective, job, ring, nvls if best == 1 else 0.0, best)
    usable = {name: rate for name, rate in rates.items() if name in algorithms or name == "p2p"}
    if not usable:
        said = f"No algorithm/protocol available for function {function}"
        raise nccl_failure(USAGE_ERROR, 445, said)
    algorithm = max(usable, key=lambda name: usable[name])
    return Rate(usable[algorithm], algorithm)


def _clock(job: Job, rank: Rank) -> float:
    """Share of its speed that a GPU has left."""
    slowed = job.fabric.gpus.get(rank.process.host, {})
    return slowed.get(str(rank.card.number), 1.0) * (SLOW_GPU if rank.card.slow else 1.0)


def _alone(collective: str, ring: float, nvls: float, best: float) -> dict[str, float]:
    """On one node. NCCL prefers NVLS to a ring that is as fast."""
    share = SHARE.get(collective, 1.0)
    rates = {}
    if nvls and collective in ("all_reduce", "all_gather", "reduce_scatter"):
        rates["nvls"] = (nvls if collective == "all_reduce" else ring) * share
    rates["ring"] = ring * best * share
    if collective == "all_reduce":
        rates["tree"] = ring * best
    return rates


def _together(collective: str, job: Job, ring: float, nvls: float, best: float) -> dict[str, float]:
    """Over nodes. With two of them a tree has data cross the network once where a ring has them cross twice."""
    network, share = outside(job), SHARE.get(collective, 1.0)
    rates = {"ring": min(ring, network) * best * share}
    if collective == "all_reduce":
        tree = network * factor(collective, len(job.ranks)) if len(job.nodes) == 2 else network
        rates["tree"] = min(ring, tree) * best * 0.92
        if nvls:
            rates["nvlstree"] = min(nvls, tree)
    return rates


def _between_pairs(collective: str, job: Job, ring: float) -> float:
    """What ranks send to each other: the part that leaves the node takes the longest."""
    ranks, largest = len(job.ranks), max(map(len, job.nodes))
    each = _point_to_point(job)
    if collective == "sendrecv":
        # One rank of each node sends to the next node.
        return min(ring, each * _sharing(job))
    bound = each * (ranks - 1) / (ranks - largest)
    return min(ring, bound) * SHARE.get(collective, 1.0)


def _sharing(job: Job) -> int:
    """How many ranks share the devices of a node with the fewest: one that sends alone has that much more."""
    return max(len(ranks) // max(1, len(job.rails(node)) or 1) for node, ranks in enumerate(job.nodes))


# -- time ------------------------------------------------------------------------------------------------------------


def duration(collective: str, size: int, job: Job, rate: Rate) -> float:
    """Microseconds, without noise."""
    ranks = len(job.ranks)
    if ranks == 1:
        return 5 + size / MEMORY / 1e3
    moved = size * factor(collective, ranks) / rate.busbw / 1e3
    if len(job.nodes) == 1:
        return overhead(size) + moved
    return latency(collective, job, rate) + max(0.0, overhead(size) - overhead(0)) + moved


def latency(collective: str, job: Job, rate: Rate) -> float:
    """Of the smallest sizes, over nodes."""
    nodes, largest = len(job.nodes), max(map(len, job.nodes))
    hop = _HOP
    lanes = [lane for lanes in job.lanes for lane in lanes]
    if job.network != "IB":
        hop = _TCP_HOP
    elif not all(lane.sends_direct and lane.receives_direct for lane in lanes):
        hop = _BOUNCE_HOP
    within = _WITHIN if largest > 1 else _WITHOUT
    if rate.algorithm in ("tree", "nvlstree"):
        return within + 2 * math.ceil(math.log2(nodes)) * hop
    if collective == "all_reduce":
        return within + 2 * (nodes - 1) * hop
    return within + (nodes - 1) * hop


def jitter(*parts: object) -> float:
    """0.9975 to 1.0025, always the same for the same parts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return 1 + (int.from_bytes(digest[:4], "big") / 0xFFFFFFFF - 0.5) * 0.005


def noise(job: Job, *parts: object) -> float:
    """Of one figure of this run, by the fabric's noise; without any, always the same."""
    cv = job.fabric.noise.get("cv", 0.0)
    if not cv:
        return jitter(*parts)
    source = random.Random("/".join(map(str, (job.fabric.noise.get("seed", 0), job.run, *parts))))  # noqa: S311
    # One run differs from another as a whole more than its rows differ among themselves.
    whole = random.Random(f"{job.fabric.noise.get('seed', 0)}/{job.run}").gauss(0, 1)  # noqa: S311
    return max(0.2, 1 + cv * (0.9 * whole + 0.4 * source.gauss(0, 1)))


# -- what it moves ---------------------------------------------------------------------------------------------------


def sent(collective: str, size: int, job: Job, rate: Rate) -> float:
    """Bytes that leave each node; as many come in."""
    ranks, nodes = len(job.ranks), len(job.nodes)
    largest = max(map(len, job.nodes))
    if nodes == 1:
        return 0.0
    if collective == "all_reduce" and rate.algorithm in ("tree", "nvlstree"):
        return 2 * size * (nodes - 1) / nodes
    if collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "sendrecv"):
        return size * factor(collective, ranks)
    if collective in ("gather", "scatter", "hypercube"):
        return size * largest / ranks
    return size * largest * (ranks - largest) / ranks
