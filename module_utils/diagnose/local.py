# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge how GPUs of a node reach each other, their NVLinks, and NVLink between hosts (MNNVL)."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Sequence, Set, Tuple

from ..core.finding import Finding, printable
from ..nccl.grammar import strtoll
from ..nccl.perf_transport import HOSTS, Nvlink
from .checks import LOCAL, MNNVL, NVLINK
from .names import UNNAMED, hosts_of, names, numbers
from .network import one_host
from .state import COMPLETED, Job, Process, nodes_of

_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")
_FIX = "`nvidia-smi topo -p2p r` and `nvidia-smi topo -m` on the node: OK and NV# between GPUs that NVLink joins; processes"
_FIX += " of one job on a node need a common IPC namespace (docker --ipc=host)"
_POSSIBLE = "no peer access between these GPUs (PCIe across sockets without NVLink), IOMMU or ACS in the way, or containers"
_POSSIBLE_NET = "P2P and shared memory both not usable: separate containers (no common /dev/shm or host id), or switched off"


def judge(job: Job, events: "Set[str] | frozenset[str]" = frozenset()) -> List[Finding]:
    """events: ids of what failed."""
    return [*_local(job, events), *_nvlink(job), *_mnnvl(job)]


def _culprits(job: Job) -> List[str]:
    found = ["NCCL_P2P_DISABLE=%s" % value for value in job.values("NCCL_P2P_DISABLE") if strtoll(value)[0] == 1]
    level = [value for value in job.values("NCCL_P2P_LEVEL") if value in ("LOC", "0")]
    return found + ["NCCL_P2P_LEVEL=%s (or NCCL_P2P_DISABLE=1, which is logged as this)" % value for value in level]


def _local(job: Job, events: "Set[str] | frozenset[str]") -> List[Finding]:
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
        have = "GPUs of %s reach each other over the network; %s" % (hosts_of(wired), _cause(culprits + off, _POSSIBLE_NET))
        return [LOCAL.judge(job.name, "drift", want, have, "Channel ... via NET", None if culprits or off else _FIX)]
    apart = "CUDA allows no P2P among GPUs %s" % numbers(gpu for pair in pairs for gpu in pair) if pairs else ""
    if "shm" in kinds:
        have = "%sGPUs of %s reach each other through shared memory" % (
            "some " if kinds["shm"] & kinds.get("p2p", set()) else "", hosts_of(kinds["shm"]))  # fmt: skip
        have += "; %s" % _cause(culprits, "%s: %s" % (apart, _POSSIBLE) if apart else _POSSIBLE)
        # Without NVLink GPUs of two sockets are meant to go this way.
        state, severity = ("drift", "major") if culprits or linked else ("unknown", "minor")
        return [LOCAL.judge(job.name, state, want, have, "Channel ... via SHM", None if culprits else _FIX, severity=severity)]
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
            rings = [(channels, speed) for pattern, channels, speed, path in process.graphs if pattern == 4 and path == "NVL"]
            channels, speed = max(rings, default=(0, 0.0))
            if rings and channels * speed < 0.75 * process.system:
                limits = ["%s=%s" % (name, value) for name in _LIMITS for value in job.values(name)]
                have = "rings over NVLink: %d channels of %.0f GB/s; %s%s" % (
                    channels, speed, _cause(limits, "NVLinks or NVSwitches that are down"), of_file)  # fmt: skip
                remedy = "take %s out of the job and out of /etc/nccl.conf" % names(limits) if limits else fix
                want = "rings for %.0f GB/s" % process.system
                found.append(NVLINK.judge("%s channels" % subject, "drift", want, have, "Pattern 4", remedy))
    return found


# -- NVLink between hosts ----------------------------------------------------------------------------------------------

_ENABLE = "NCCL_MNNVL_ENABLE"
# Variables that make a clique of another number, or another domain; and those that switch it off, by value.
_RENAME = ("NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID")
_OFF: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (_ENABLE, ("0",)), ("NCCL_P2P_DISABLE", ("1",)), ("NCCL_P2P_LEVEL", ("LOC", "0")), ("NCCL_CUMEM_ENABLE", ("0",)),
)  # fmt: skip


def _mnnvl(job: Job) -> List[Finding]:
    """Judge a job with two hosts or more of one NVLink domain."""
    together = _together(job)
    if not together:
        return []
    shown = {process.mnnvl for process in job.processes if _short(process.host) in together}
    want, source = "NVLink between %s, which are of one NVLink domain" % names(together), "MNNVL in the line with nNodes"
    if shown == {True}:
        return [MNNVL.judge(job.name, "ok", want, "NVLink", source)]
    if False not in shown or "0" in job.values(_ENABLE):
        return []
    reasons, variables = mnnvl_causes(job)
    have = "NVLink between hosts is off; %s" % (
        "cause: %s" % "; ".join(reasons) if reasons
        else "the log does not show why: usually CUDA has no fabric handles in this container or with this driver")  # fmt: skip
    fix = "take %s out of the job and out of /etc/nccl.conf, then run it again" % names(variables)
    return [MNNVL.judge(job.name, "drift", want, have, source, fix if variables else None)]


def read_mnnvl(job: Job) -> Nvlink:
    """Return what the log proves of a run that is to go over NVLink."""
    ranks: Dict[int, Process] = dict(job.world.began) if job.world is not None else {}
    shown = {process.mnnvl for process in ranks.values()}
    on = None if not shown or None in shown else shown == {True}
    joined: Set[str] = set()
    for process in job.processes:
        for pair in process.bridged:
            hosts = {_short(ranks[rank].host) for rank in pair if rank in ranks}
            joined |= hosts if len(hosts) > 1 else set()
        if process.nvls_group and on and job.nodes == 1:
            # The multicast group is of all that NCCL counts as one node.
            joined.add(_short(process.host))
    reasons, variables = ([], []) if on and job.nodes == 1 else mnnvl_causes(job)
    return Nvlink(on, tuple(sorted(joined))[:HOSTS], tuple(reasons), tuple(variables))


def mnnvl_causes(job: Job) -> Tuple[List[str], List[str]]:
    """Return why NVLink between hosts is off, or joins only some, as lines prove it; and variables that cause it."""
    variables = [name for name, off in _OFF if any(str(strtoll(value)[0]) in off or value in off for value in job.values(name)
                                                   if value[:1].isdigit() or value in off)]  # fmt: skip
    reasons = [names("%s=%s" % (name, names(job.values(name), 2)) for name in variables)] if variables else []
    domains: Dict[Tuple[str, str, int], Set[str]] = {}
    silent: Set[str] = set()
    for process in job.processes:
        for uuid, clique, state, _health in process.fabrics:
            domains.setdefault((uuid, clique, state), set()).add(_short(process.host))
        if not process.fabrics and process.networks:
            silent.add(_short(process.host))
    if silent:
        reasons.append("GPUs of %s are in no NVLink domain (no UUID of one)" % names(silent))
    for (_uuid, _clique, state), hosts in sorted(domains.items(), key=lambda one: sorted(one[1])):
        if state != COMPLETED:
            reasons.append("GPUs of %s are not registered with the fabric (state %d, not %d)" % (names(hosts), state, COMPLETED))
    whole = {domain: hosts for domain, hosts in domains.items() if domain[2] == COMPLETED}
    if len(whole) > 1:
        most = Counter({domain: len(hosts) for domain, hosts in whole.items()}).most_common(1)[0][0]
        for domain, hosts in sorted(whole.items(), key=lambda one: sorted(one[1]))[:4]:
            if domain != most:
                reasons.append("clique %s of domain %s on %s, not clique %s of domain %s of %s" % (
                    domain[1], domain[0], names(hosts), most[1], most[0], names(whole[most])))  # fmt: skip
        renamed = [name for name in _RENAME if job.values(name)]
        variables += renamed
        reasons += ["%s=%s" % (name, names(job.values(name), 2)) for name in renamed]
    return [printable(reason)[:300] for reason in reasons], variables


def _together(job: Job) -> Set[str]:
    """Return hosts of the domain that most of them are of, where there are two at least."""
    domains: Dict[Tuple[str, str], Set[str]] = {}
    for process in job.processes:
        for uuid, clique, state, _health in process.fabrics:
            if state == COMPLETED:
                domains.setdefault((uuid, clique), set()).add(_short(process.host))
    most = max(domains.values(), key=len, default=set())
    return most if len(most) > 1 else set()


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or UNNAMED
