# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge how GPUs of a node reach each other, and their NVLinks."""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Sequence, Set

from ..core.finding import Finding
from ..nccl_conf.grammar import strtoll
from .checks import LOCAL, NVLINK
from .jobs import Job, nodes_of
from .names import UNNAMED, hosts_of, names, numbers
from .network import one_host

_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")
_FIX = "`nvidia-smi topo -p2p r` and `nvidia-smi topo -m` on the node: OK and NV# between GPUs that NVLink joins;"
_FIX += " processes of one job on a node need a common IPC namespace (docker --ipc=host)"
_POSSIBLE = "no peer access between these GPUs (PCIe across sockets without NVLink), IOMMU, ACS, or containers"
_POSSIBLE_NET = "P2P and shared memory both not usable: containers (no common /dev/shm or host id), or switched off"


def judge(job: Job, events: AbstractSet[str] = frozenset()) -> List[Finding]:
    """events: ids of what failed."""
    return [*_local(job, events), *_nvlink(job)]


def _culprits(job: Job) -> List[str]:
    found = ["NCCL_P2P_DISABLE=%s" % value for value in job.values("NCCL_P2P_DISABLE") if strtoll(value)[0] == 1]
    level = [value for value in job.values("NCCL_P2P_LEVEL") if value in ("LOC", "0")]
    return found + ["NCCL_P2P_LEVEL=%s (or NCCL_P2P_DISABLE=1, which is logged as this)" % value for value in level]


def _local(job: Job, events: AbstractSet[str]) -> List[Finding]:
    culprits, want = _culprits(job), "directly (P2P)"
    kinds: Dict[str, Set[str]] = {}
    for process in job.processes:
        for way in process.ways:
            kinds.setdefault(way.kind, set()).add(process.node)
    linked = any(process.nvlinks for process in job.processes)
    pairs = {pair for process in job.processes for pair in process.peers_off}
    wired = _within_a_node(job)
    host = one_host(job)
    crossed = {pair for process in job.processes for pair in process.crossed}
    writers = {way.rank for process in job.processes for way in process.ways}
    if not wired and host and set(kinds) == {"net"} and crossed and all(set(pair) <= writers for pair in crossed):
        have = "every connection of %s goes over the network; %s" % (host or UNNAMED, _cause(culprits, _POSSIBLE_NET))
        return [LOCAL.judge(job.name, "unknown", want, have, "Channel ... via NET", _FIX, severity="major")]
    if wired:
        off = ["NCCL_SHM_DISABLE=%s" % value for value in job.values("NCCL_SHM_DISABLE") if strtoll(value)[0] != 0]
        have = "GPUs of %s reach each other over the network; " % hosts_of(wired)
        have += _cause(culprits + off, _POSSIBLE_NET)
        return [LOCAL.judge(job.name, "drift", want, have, "Channel ... via NET", None if culprits or off else _FIX)]
    apart = "CUDA allows no P2P among GPUs %s" % numbers(gpu for pair in pairs for gpu in pair) if pairs else ""
    if "shm" in kinds:
        some = "some " if kinds["shm"] & kinds.get("p2p", set()) else ""
        have = "%sGPUs of %s reach each other through shared memory" % (some, hosts_of(kinds["shm"]))
        have += "; %s" % _cause(culprits, "%s: %s" % (apart, _POSSIBLE) if apart else _POSSIBLE)
        # Without NVLink GPUs of two sockets are meant to go this way.
        state, severity = ("drift", "major") if culprits or linked else ("unknown", "minor")
        fix = None if culprits else _FIX
        return [LOCAL.judge(job.name, state, want, have, "Channel ... via SHM", fix, severity=severity)]
    alone = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    if culprits and not alone:
        have = "%s: switched off; the log shows no connection within a node" % names(culprits)
        return [LOCAL.judge(job.name, "unknown", want, have, "set by environment")]
    if "p2p" in kinds and "peer_access" not in events and "nvlink_p2p" not in events:
        return [LOCAL.judge(job.name, "ok", want, "P2P", "Channel ... via P2P")]
    if apart:
        have = "%s: NCCL takes shared memory or the network, which is slower and not a failure" % apart
        return [LOCAL.judge(job.name, "unknown", want, have, "P2P is disabled", _FIX, severity="minor")]
    return []


def _cause(proven: Sequence[str], possible: str) -> str:
    return "cause: %s" % "; ".join(proven) if proven else "possible causes: %s" % possible


def _within_a_node(job: Job) -> Set[str]:
    """Return nodes of whose ranks two are connected by the network."""
    if len(job.communicators) > 1 or any(way.pxn for process in job.processes for way in process.ways):
        return set()
    node_of: Dict[int, str] = {rank: one.node for rank, one in job.world.began.items()} if job.world is not None else {}
    if job.world is None:
        for process in job.processes:
            own = {way.rank for way in process.ways if way.kind == "net" and way.sends is not None}
            node_of.update(dict.fromkeys(own, process.node) if len(own) == 1 else {})
    pairs = {pair for process in job.processes for pair in process.crossed}
    return {node_of[source] for source, target in pairs if source in node_of and node_of[source] == node_of.get(target)}


def _nvlink(job: Job) -> List[Finding]:
    found = []
    file = list(job.values("NCCL_TOPO_FILE"))[:1]
    of_file = "; the topology is that of a file (NCCL_TOPO_FILE=%s)" % file[0] if file else ""
    fix = "take NCCL_TOPO_FILE out, and compare; only if it reports the same: `nvidia-smi nvlink -s`" if file else None
    for node, processes in sorted(nodes_of(job.processes).items()):
        links: Dict[str, float] = {}
        for process in processes:
            links.update(process.nvlinks)
        subject, source = "%s %s" % (job.name, node), "NVL[...] of the topology (GRAPH)"
        if len(links) > 1:
            most = max(links.values())
            fewer = {gpu: speed for gpu, speed in links.items() if speed < 0.99 * most}
            want = "%.1f GB/s of NVLink on each GPU" % most
            if fewer:
                have = ", ".join("NVLink of GPU %s: %.1f GB/s" % pair for pair in sorted(fewer.items())[:8])
                have += "; others have %.1f%s" % (most, of_file)
                found.append(NVLINK.judge(subject, "unknown" if file else "drift", want, have, source, fix))
            else:
                found.append(NVLINK.judge(subject, "ok", want, "the same on %d GPUs" % len(links), source))
        for process in processes[:1] if job.nodes == 1 else ():
            rings = [graph[1:3] for graph in process.graphs if graph[0] == 4 and graph[3] == "NVL"]
            channels, speed = max(rings, default=(0, 0.0))
            if rings and channels * speed < 0.75 * process.system:
                limits = ["%s=%s" % (name, value) for name in _LIMITS for value in job.values(name)]
                have = "rings over NVLink: %d channels of %.0f GB/s; " % (channels, speed)
                have += _cause(limits, "NVLinks or NVSwitches that are down") + of_file
                remedy = "take %s out of the job and out of /etc/nccl.conf" % names(limits) if limits else fix
                want = "rings for %.0f GB/s" % process.system
                found.append(NVLINK.judge("%s channels" % subject, "drift", want, have, "Pattern 4", remedy))
    return found
