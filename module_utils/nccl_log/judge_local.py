# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about the ways of data within a node: P2P, shared memory, NVLink."""

from __future__ import annotations

from typing import Dict, List, Sequence, Set

from ..core.check import Check
from ..core.finding import Finding
from ..nccl.grammar import strtoll
from .jobs import Job, hosts_of, names, numbers
from .judge_network import nodes_of, one_host

LOCAL = Check(
    "nccl_log.intra_node",
    why="data between GPUs of a node goes through the host's memory or the network, and not directly",
    fix="take the variable out of the job and out of /etc/nccl.conf, then run it again",
)
"Do GPUs of a node reach each other directly"
NVLINK = Check(
    "nccl_log.nvlink",
    why="NVLinks that are down, or a limit of channels, may cost bandwidth within the node",
    fix="`nvidia-smi nvlink -s` on the node: every link has to be up, and as fast as on the other GPUs",
)
"Do all GPUs of a node have the same NVLink bandwidth, and channels enough to use it (GRAPH)"

_NOT_DIRECT = "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"


def judge(job: Job) -> List[Finding]:
    return [*_local(job), *_nvlink(job)]


def _local(job: Job) -> List[Finding]:
    """Connections within a node that are not direct."""
    said = {name: value for name in _NOT_DIRECT for value in job.set_to(name)}
    culprits = []
    if strtoll(said.get("NCCL_P2P_DISABLE", "0"))[0] == 1:
        culprits.append("NCCL_P2P_DISABLE=%s" % said["NCCL_P2P_DISABLE"])
    if said.get("NCCL_P2P_LEVEL") in ("LOC", "0"):
        culprits.append("NCCL_P2P_LEVEL=%s (or NCCL_P2P_DISABLE=1, which is logged as this)" % said["NCCL_P2P_LEVEL"])
    no_memory = strtoll(said.get("NCCL_SHM_DISABLE", "0"))[0] != 0
    shared = {process.node for process in job.processes for way, _count in process.ways if way[0] == "shm"}
    wired = _within_a_node(job)
    direct = {process.node for process in job.processes for way, _count in process.ways if way[0] == "p2p"}
    want = "directly (P2P)"
    linked = any(process.nvlinks for process in job.processes)
    if wired:
        causes = culprits + (["NCCL_SHM_DISABLE=%s" % said["NCCL_SHM_DISABLE"]] if no_memory else [])
        have = "GPUs of %s reach each other over the network; %s" % (hosts_of(wired), _cause(causes, _POSSIBLE_NET))
        fix = None if causes else _fix_p2p(job)
        return [LOCAL.judge(job.name, "drift", want, have, "Channel ... via NET", fix, severity="major")]
    gpus = {int(gpu) for one in job.processes for pair in one.peers_off for gpu in pair.split(" and ")}
    apart = [_apart(job, gpus)] if gpus else []
    kinds = {way[0] for process in job.processes for way, _count in process.ways}
    host = one_host(job)
    here = {rank for process in job.processes for rank in process.connections}
    pairs = [pair for process in job.processes for pair in process.crossed]
    if host and kinds == {"net"} and pairs and all(set(pair) <= here for pair in pairs):
        have = (
            "all lines are of one host (%s), and every connection shown goes over the network: neither P2P nor shared"
            % host
        )
        have += " memory; if these ranks reach each other by it, data within the host takes the long way"
        have += "; %s" % _cause(culprits, _POSSIBLE_NET)
        return [LOCAL.judge(job.name, "unknown", want, have, "Channel ... via NET", _fix_p2p(job), severity="major")]
    if shared:
        why = _cause(culprits, "%s: %s" % (apart[0], _possible_shm(job)) if apart else _possible_shm(job))
        where = hosts_of(shared)
        have = "GPUs of %s reach each other through shared memory; %s" % (where, why)
        if shared & direct:
            have = "some GPUs of %s reach each other through shared memory, others directly (P2P); %s" % (where, why)
        # Without NVLink GPUs of two sockets are meant to go this way.
        state = "drift" if culprits or linked else "unknown"
        return [
            LOCAL.judge(
                job.name, state, want, have, "Channel ... via SHM", None if culprits else _fix_p2p(job),
                severity="major" if state == "drift" else "minor",
            )
        ]  # fmt: skip
    alone = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    if culprits and not alone:
        have = "%s: switched off; the log shows no connection within a node" % names(culprits)
        return [LOCAL.judge(job.name, "unknown", want, have, "set by environment")]
    # A line on a connection says how it is to be made; P2P that fails has lines all the same.
    failed = any(one.failure.kind == "peer_access" or "/p2p.c" in one.place for one in job.failures)
    if direct and not failed:
        return [LOCAL.judge(job.name, "ok", want, "P2P", "Channel ... via P2P")]
    if apart:
        have = "%s: NCCL takes shared memory or the network, which is slower and not a failure" % apart[0]
        have += (
            "; possible causes: GPUs whose model has none (most GeForce), a virtual machine, IOMMU or ACS, containers"
        )
        have += "; the lines do not show it"
        return [LOCAL.judge(job.name, "unknown", want, have, "P2P is disabled", _fix_p2p(job), severity="minor")]
    return []


def _apart(job: Job, gpus: Set[int]) -> str:
    """Of a few GPUs by pair: others may reach each other."""
    pairs = {tuple(sorted(map(int, pair.split(" and ")))) for one in job.processes for pair in one.peers_off}
    if len(pairs) > _PAIRS or 2 * len(pairs) == len(gpus) * (len(gpus) - 1):
        return "CUDA allows no P2P among GPUs %s" % numbers(gpus)
    return "CUDA allows no P2P between GPUs %s" % ", ".join("%d and %d" % pair for pair in sorted(pairs))


# Pairs of GPUs that are reported one by one.
_PAIRS = 8
_POSSIBLE_SHM = "no peer access between these GPUs (PCIe across sockets without NVLink is so), IOMMU or ACS in the way"
_POSSIBLE_NET = (
    "P2P and shared memory both not usable: separate containers (no common /dev/shm or host id), or switched off"
)
_FIX_P2P = "`nvidia-smi topo -p2p r` and `nvidia-smi topo -m` on the node: OK and NV# between GPUs that NVLink joins;"
_FIX_IPC = " processes of one job on a node need a common IPC namespace (docker --ipc=host)"


def _possible_shm(job: Job) -> str:
    """Containers come between processes alone."""
    return _POSSIBLE_SHM + ("" if len(job.processes) == 1 else ", containers that do not share their GPUs")


def _fix_p2p(job: Job) -> str:
    return _FIX_P2P.rstrip(";") if len(job.processes) == 1 else _FIX_P2P + _FIX_IPC


def _cause(proven: Sequence[str], possible: str) -> str:
    return "cause: %s" % "; ".join(proven) if proven else "possible causes: %s" % possible


def _within_a_node(job: Job) -> Set[str]:
    """Nodes of whose ranks two are connected by the network; nothing where ranks of several communicators mix."""
    if len(job.communicators) > 1:
        return set()
    node_of = {rank: process.node for rank, process in job.world.began.items()} if job.world is not None else {}
    if job.world is None:
        # Who wrote a line of a connection is one of its two ranks.
        for process in job.processes:
            own = {
                rank
                for rank, ways in process.connections.items()
                if any(way[0] == "net" and way[5] is not None for way in ways)
            }
            node_of.update(dict.fromkeys(own, process.node) if len(own) == 1 else {})
    found = set()
    for process in job.processes:
        if any(way[0] == "net" and way[4] for way, _count in process.ways):
            continue  # over another GPU: the ranks of the line are not those of the wire
        for source, target in process.crossed:
            if source in node_of and node_of[source] == node_of.get(target):
                found.add(node_of[source])
    return found


def _nvlink(job: Job) -> List[Finding]:
    found = []
    of_file = _of_file(job)
    for node, processes in sorted(nodes_of(job.processes).items()):
        links: Dict[str, float] = {}
        for process in processes:
            links.update(process.nvlinks)
        if len(links) > 1:
            most = max(links.values())
            fewer = {gpu: speed for gpu, speed in links.items() if speed < 0.99 * most}
            subject = "%s %s" % (job.name, node)
            want = "%.1f GB/s of NVLink on each GPU" % most
            if fewer:
                have = ", ".join("NVLink of GPU %s: %.1f GB/s" % pair for pair in sorted(fewer.items())[:8])
                have += "; on others %.1f" % most
                have += _ONE_WAY if len(links) == 2 and not any(process.nvswitch for process in processes) else ""
                have += of_file
                state, fix = ("unknown", _FILE) if of_file else ("drift", None)
                found.append(NVLINK.judge(subject, state, want, have, "NVL[...] of the topology (GRAPH)", fix))
            else:
                have = "the same on %d GPUs" % len(links)
                found.append(NVLINK.judge(subject, "ok", want, have, "NVL[...] of the topology (GRAPH)"))
        if job.nodes != 1:
            continue
        for process in processes[:1]:
            rings = [graph for graph in process.graphs if graph.pattern == 4 and graph.intra == "NVL"]
            if rings and process.system:
                ring = max(rings, key=lambda graph: graph.channels)
                bandwidth = ring.channels * ring.bandwidth
                if bandwidth < 0.75 * process.system:
                    limits = ["%s=%s" % (n, v) for n in _LIMITS for v in job.set_to(n)]
                    possible = "NVLinks or NVSwitches that are down"
                    possible = (
                        "what the topology's file gives for NVLink, by which NCCL counts its channels; only"
                        " if NCCL finds the same without it: %s" % possible
                        if of_file
                        else possible
                    )
                    have = "rings over NVLink: %d channel%s of %.0f GB/s; %s" % (
                        ring.channels, "" if ring.channels == 1 else "s", ring.bandwidth, _cause(limits, possible),
                    )  # fmt: skip
                    want = "rings for %.0f GB/s" % process.system
                    fix = "take %s out of the job and out of /etc/nccl.conf" % names(limits) if limits else None
                    have += of_file
                    fix = fix or (_FILE if of_file else None)
                    found.append(
                        NVLINK.judge("%s %s channels" % (job.name, node), "drift", want, have, "Pattern 4", fix)
                    )
    return found


_ONE_WAY = ": of two GPUs that is one direction of the link between them, and rings get no more than it brings"
_FILE = "take NCCL_TOPO_FILE out, and compare; only if it reports the same: `nvidia-smi nvlink -s`"


def _of_file(job: Job) -> str:
    file = list(job.set_to("NCCL_TOPO_FILE"))[:1]
    return "; the topology is that of a file (NCCL_TOPO_FILE=%s), not what NCCL has found" % file[0] if file else ""


_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")
