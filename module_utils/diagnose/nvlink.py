# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge how GPUs reach each other within a node, their NVLinks, and NVLink between hosts (MNNVL)."""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Set, Tuple

from ..core.finding import Finding, printable
from ..nccl_conf.grammar import strtoll
from .checks import LOCAL, MNNVL, NVLINK
from .jobs import Job
from .names import UNNAMED, causes_text, hosts_of, names, numbers
from .network import one_host
from .state import COMPLETED

_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")
_FIX = "`nvidia-smi topo -p2p r` and `nvidia-smi topo -m` on the node: OK and NV# between GPUs that NVLink joins;"
_FIX += " processes of one job on a node need a common IPC namespace (docker --ipc=host)"
_POSSIBLE = "no peer access between these GPUs (PCIe across sockets without NVLink), IOMMU, ACS, or containers"
_POSSIBLE_NET = "P2P and shared memory both not usable: containers (no common /dev/shm or host id), or switched off"
_ENABLE = "NCCL_MNNVL_ENABLE"
# Variables that make a clique of another number, or another domain; and those that switch it off, by value.
_RENAME = ("NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID")
_OFF: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (_ENABLE, ("0",)),
    ("NCCL_P2P_DISABLE", ("1",)),
    ("NCCL_P2P_LEVEL", ("LOC", "0")),
    ("NCCL_CUMEM_ENABLE", ("0",)),
)


def judge(job: Job, events: AbstractSet[str] = frozenset()) -> List[Finding]:
    """events: ids of what failed."""
    return [*_local(job, events), *_nvlink(job), *_fabric(job), *_between(job)]


def _local(job: Job, events: AbstractSet[str]) -> List[Finding]:
    set_off = ["NCCL_P2P_DISABLE=%s" % value for value in job.values("NCCL_P2P_DISABLE") if strtoll(value)[0] == 1]
    text = "NCCL_P2P_LEVEL=%s (or NCCL_P2P_DISABLE=1, which is logged as this)"
    set_off += [text % value for value in job.values("NCCL_P2P_LEVEL") if value in ("LOC", "0")]
    kinds: Dict[str, Set[str]] = {}
    writers: Set[int] = set()
    pairs: Set[Tuple[int, int]] = set()
    crossed: Set[Tuple[int, int]] = set()
    for process in job.processes:
        pairs |= process.peers_off
        crossed |= process.crossed
        writers |= {way.rank for way in process.ways}
        for way in process.ways:
            kinds.setdefault(way.kind, set()).add(process.node)
    wired, host = _within_a_node(job, crossed), one_host(job)
    alone = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    apart = "CUDA allows no P2P among GPUs %s" % numbers(gpu for pair in pairs for gpu in pair) if pairs else ""
    state, severity, fix, source = "unknown", "major", _FIX, "Channel ... via NET"
    if wired:
        set_off += ["NCCL_SHM_DISABLE=%s" % value for value in job.values("NCCL_SHM_DISABLE") if strtoll(value)[0] != 0]
        state, fix = "drift", "" if set_off else _FIX
        have = "GPUs of %s reach each other over the network; " % hosts_of(wired)
        have += causes_text(set_off or [_POSSIBLE_NET], bool(set_off))
    elif host and set(kinds) == {"net"} and crossed and all(set(pair) <= writers for pair in crossed):
        have = "every connection of %s goes over the network; " % host
        have += causes_text(set_off or [_POSSIBLE_NET], bool(set_off))
    elif "shm" in kinds:
        some = "some " if kinds["shm"] & kinds.get("p2p", set()) else ""
        possible = "%s: %s" % (apart, _POSSIBLE) if apart else _POSSIBLE
        have = "%sGPUs of %s reach each other through shared memory; " % (some, hosts_of(kinds["shm"]))
        have += causes_text(set_off or [possible], bool(set_off))
        # Without NVLink GPUs of two sockets are meant to go this way.
        meant = not set_off and not any(process.nvlinks for process in job.processes)
        state, severity = ("unknown", "major" if apart else "minor") if meant else ("drift", "major")
        fix, source = "" if set_off else _FIX, "Channel ... via SHM"
    elif set_off and not alone:
        have = "%s: switched off; the log shows no connection within a node" % names(set_off)
        fix, source = "", "set by environment"
    elif "p2p" in kinds and "peer_access" not in events and "nvlink_p2p" not in events:
        state, have, source = "ok", "P2P", "Channel ... via P2P"
    elif apart:
        have = "%s: NCCL takes shared memory or the network, which is slower" % apart
        source = "P2P is disabled"
    else:
        return []
    return [LOCAL.judge(job.name, state, "directly (P2P)", have, source, fix or None, severity=severity)]


def _within_a_node(job: Job, crossed: Set[Tuple[int, int]]) -> Set[str]:
    """Return nodes of whose ranks two are connected by the network."""
    if len(job.communicators) > 1 or any(way.pxn for process in job.processes for way in process.ways):
        return set()
    node_of: Dict[int, str] = {rank: one.node for rank, one in job.world.began.items()} if job.world is not None else {}
    for process in job.processes if job.world is None else ():
        own = {way.rank for way in process.ways if way.kind == "net" and way.sends is not None}
        node_of.update(dict.fromkeys(own, process.node) if len(own) == 1 else {})
    return {node_of[one] for one, other in crossed if one in node_of and node_of[one] == node_of.get(other)}


def _nvlink(job: Job) -> List[Finding]:
    found = []
    file = list(job.values("NCCL_TOPO_FILE"))[:1]
    of_file = "; the topology is that of a file (NCCL_TOPO_FILE=%s)" % file[0] if file else ""
    fix = "take NCCL_TOPO_FILE out, and compare; only if it reports the same: `nvidia-smi nvlink -s`" if file else None
    for node, processes in sorted(job.by_node.items()):
        links = {gpu: speed for process in processes for gpu, speed in process.nvlinks.items()}
        subject, most = "%s %s" % (job.name, node), max(links.values(), default=0.0)
        fewer = {gpu: speed for gpu, speed in links.items() if speed < 0.99 * most}
        if len(links) > 1:
            state, have = "ok", "the same on %d GPUs" % len(links)
            if fewer:
                state = "unknown" if file else "drift"
                have = ", ".join("NVLink of GPU %s: %.1f GB/s" % pair for pair in sorted(fewer.items())[:8])
                have += "; others have %.1f%s" % (most, of_file)
            want = "%.1f GB/s of NVLink on each GPU" % most
            found.append(NVLINK.judge(subject, state, want, have, "NVL[...] of the topology (GRAPH)", fix))
        for process in processes[:1] if job.nodes == 1 else ():
            rings = [graph[1:3] for graph in process.graphs if graph[0] == 4 and graph[3] == "NVL"]
            channels, speed = max(rings, default=(0, 0.0))
            if rings and channels * speed < 0.75 * process.system:
                limits = ["%s=%s" % (name, value) for name in _LIMITS for value in job.values(name)]
                have = "rings over NVLink: %d channels of %.0f GB/s; " % (channels, speed)
                have += causes_text(limits or ["NVLinks or NVSwitches that are down"], bool(limits)) + of_file
                remedy = "take %s out of the job and out of /etc/nccl.conf" % names(limits) if limits else fix
                want = "rings for %.0f GB/s" % process.system
                found.append(NVLINK.judge("%s channels" % subject, "drift", want, have, "Pattern 4", remedy))
    return found


def _fabric(job: Job) -> List[Finding]:
    each = []
    for fault in sorted({fault for process in job.processes for fault in process.fabric_faults}):
        each.append("%s on %s" % (fault, hosts_of(one.host for one in job.processes if fault in one.fabric_faults)))
    have, source = "GPUs report of their NVLink fabric: %s" % "; ".join(each), "MNNVL busId ... healthMask"
    fix = "`nvidia-smi -q | grep -A 12 Fabric` and `nvidia-smi nvlink -e` there; the log of Fabric Manager or of NMX-C"
    return [NVLINK.judge("%s fabric" % job.name, "drift", "a healthy fabric", have, source, fix)] if each else []


def _between(job: Job) -> List[Finding]:
    """Judge hosts of the domain that most of them are of, where there are two at least."""
    together = max((hosts for domain, hosts in _domains(job).items() if domain[2] == COMPLETED), key=len, default=set())
    shown = {process.mnnvl for process in job.processes if _short(process.host) in together}
    want, source = "NVLink between %s, of one NVLink domain" % names(together), "MNNVL in the line with nNodes"
    if len(together) > 1 and shown == {True}:
        return [MNNVL.judge(job.name, "ok", want, "NVLink", source)]
    if len(together) < 2 or False not in shown or "0" in job.values(_ENABLE):
        return []
    reasons, variables = causes(job)
    unknown = "the log does not show why: usually CUDA has no fabric handles in this container or driver"
    have = "NVLink between hosts is off; %s" % (causes_text(reasons, True) if reasons else unknown)
    fix = "take %s out of the job and out of /etc/nccl.conf, then run it again" % names(variables)
    return [MNNVL.judge(job.name, "drift", want, have, source, fix if variables else None)]


def causes(job: Job) -> Tuple[List[str], List[str]]:
    """Return why NVLink between hosts is off, or joins only some, as lines prove it; and variables that cause it."""
    variables = [
        name
        for name, off in _OFF
        if any(value in off or (value[:1].isdigit() and str(strtoll(value)[0]) in off) for value in job.values(name))
    ]
    reasons = [names("%s=%s" % (name, names(job.values(name), 2)) for name in variables)] if variables else []
    domains = sorted(_domains(job).items(), key=lambda one: sorted(one[1]))
    silent = {_short(process.host) for process in job.processes if not process.fabrics and process.networks}
    if silent:
        reasons.append("GPUs of %s are in no NVLink domain (no UUID of one)" % names(silent))
    for (_uuid, _clique, state), hosts in domains:
        if state != COMPLETED:
            text = "GPUs of %s are not registered with the fabric (state %d, not %d)"
            reasons.append(text % (names(hosts), state, COMPLETED))
    whole = [(domain, hosts) for domain, hosts in domains if domain[2] == COMPLETED]
    if len(whole) > 1:
        most, of_most = max(whole, key=lambda one: len(one[1]))
        for domain, hosts in whole[:4]:
            if domain != most:
                text = "clique %s of %s, not the clique %s of domain %s of %s"
                reasons.append(text % (domain[1], names(hosts), most[1], most[0], names(of_most)))
        renamed = [name for name in _RENAME if job.values(name)]
        variables += renamed
        reasons += ["%s=%s" % (name, names(job.values(name), 2)) for name in renamed]
    return [printable(reason)[:300] for reason in reasons], variables


def _domains(job: Job) -> Dict[Tuple[str, str, int], Set[str]]:
    """Return the hosts of each UUID, clique and state."""
    found: Dict[Tuple[str, str, int], Set[str]] = {}
    for process in job.processes:
        for uuid, clique, state, _health in process.fabrics:
            found.setdefault((uuid, clique, state), set()).add(_short(process.host))
    return found


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or UNNAMED
