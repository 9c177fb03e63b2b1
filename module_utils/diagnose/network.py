# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the networks, plugins, interfaces and HCAs of a job, and GPUDirect RDMA on its connections."""

from __future__ import annotations

import re
from typing import AbstractSet, Dict, List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from ..nccl_conf.grammar import strtoll
from .checks import AGAIN, GDR, HCA_SPEED, HCAS, INTERFACE, NET_PLUGIN, NETWORK
from .jobs import Job, nodes_of
from .names import UNNAMED, hosts_of, names
from .state import SOCKETS, Process

# Begins of names of interfaces that end on the node, and of tunnels, which may not reach all nodes.
_LOCAL_NAMES = ("lo", "docker", "virbr", "veth", "br-", "lxcbr", "lxdbr", "podman", "dummy", "vmnet", "nodelocaldns")
_TUNNELS = ("tun", "tap", "utun", "wg", "tailscale", "zt", "ppp", "nordlynx", "ipsec", "vxlan", "flannel", "gre", "sit")
# Failures of TCP after which no interface is called good.
_UNREACHED = frozenset(["connect", "no_interface", "address", "bootstrap", "handshake", "accept", "name", "unresolved"])
# What the loader says of a plugin, and what that means.
_LOADER = (
    ("GLIBC_", "it was built for a newer glibc than the one that the job runs in"),
    ("GLIBCXX_", "it was built with a newer C++ library than the one that the job runs with"),
    ("undefined symbol", "plugin and a library that it needs are of two builds"),
    ("cannot open shared object file", "a library that it needs is not found"),
    ("wrong ELF class", "it is of another architecture"),
)
# Devices that have no GPUDirect RDMA, by their usual names: Soft-RoCE and soft iWARP, Omni-Path.
_WITHOUT_GDR = re.compile(r"(?:rxe|siw)(?:_?\d|_\w)|(?:hfi1|opa)_?\d")
# GPUs that share the host's memory.
_SHARED_MEMORY = re.compile(r"\bGB10\b|DGX Spark")
# Path types by number: they moved when others were put between (src/include/graph.h of NVIDIA/nccl).
_PATHS = (
    ((2, 28, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")),
    ((2, 27, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS")),
    ((2, 26, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 18, 0), ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")),
)
_TAKE_OUT = "take %s out of the job and out of /etc/nccl.conf"
_REACHES, _VIA = "reaches other nodes", "Channel ... via NET"
# GPUs that a node usually has, at most.
_OF_A_NODE = 8


def judge(job: Job, events: AbstractSet[str] = frozenset(), gpus: AbstractSet[str] = frozenset()) -> List[Finding]:
    """events: ids of what failed.   gpus: models that the list of nccl-tests names."""
    return [*_network(job), *_plugins(job), *_interfaces(job, events), *_hcas(job), *_speeds(job), *_gdr(job, gpus)]


def one_host(job: Job) -> str:
    """Return the host that all lines are of, where all ranks that a communicator has may be on it; else ""."""
    hosts = {process.host for process in job.processes}
    if job.nodes is not None or len(hosts) != 1:
        return ""
    nodes, shaped = _shape(job)
    ranks = job.world.ranks if job.world is not None else shaped
    return next(iter(hosts)) if ranks <= _OF_A_NODE and nodes < 2 else ""


def _shape(job: Job) -> Tuple[int, int]:
    """Return the most nodes and ranks that a process reports."""
    shapes = [(0, 0), *(one.shapes for one in job.processes)]
    return max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)


# -- the network -------------------------------------------------------------------------------------------------------


def _network(job: Job) -> List[Finding]:
    want = "an RDMA network between nodes"
    nodes = job.nodes if job.nodes is not None else _shape(job)[0] or None
    if not job.networks:
        on = [one for one in job.processes if (one.absent and not one.hcas) or _disabled(one.variables)]
        if not on or nodes == 1:
            return []
        because, fix = causes(on)
        who = hosts_of(one.host for one in on)
        have = "no RDMA device is used by %s, and the log does not show which network is%s" % (who, because)
        return [NETWORK.judge(job.name, "unknown", want, have, "NET/IB", fix, severity="minor")]
    over = "%d nodes" % nodes if nodes is not None else "an unknown number of nodes"
    if SOCKETS not in job.networks:
        have = "%s, over %s" % (names(job.networks), over if nodes != 1 else "one node: hardly used")
        return [NETWORK.judge(job.name, "ok", want, have, "Using network")]
    crossing = any(way.kind == "net" for process in job.processes for way in process.ways)
    if nodes == 1:
        have = "Socket, one node: nothing goes over it"
        return [] if crossing else [NETWORK.judge(job.name, "ok", want, have, "Using network")]
    if _kept_apart(job):
        return []
    on = [process for process in job.processes if SOCKETS in (*process.networks, *(way.via for way in process.ways))]
    because, fix = causes(on or job.processes)
    have = "Socket (TCP), over %s" % over
    if job.values("NCCL_HOSTID") and len(job.hosts) < (nodes or 0):
        have += ", which NCCL_HOSTID makes of fewer hosts"
    others = job.networks - {SOCKETS}
    if others and on:
        alone = {one.host for one in job.processes if others & set(one.networks)} - {one.host for one in on}
        where = "elsewhere" if alone else "is named, too"
        have += ", on %s; %s %s" % (hosts_of(one.host for one in on), names(others), where)
    have += because
    hcas = any(one.hcas for one in job.processes) or others or job.values("NCCL_IB_HCA")
    none = not proven_setting(on or job.processes) and all("device" in one.absent for one in on)
    severity = "major" if not hcas or (nodes or 0) < 2 or none else None
    host = one_host(job)
    if host:
        severity, text = "minor", "; all lines are of one host (%s): it matters only with other nodes" % host
        have = have.replace(", over %s" % over, text, 1)
        fix = "nothing for a job of one node; over several: %s" % (fix or NETWORK.fix)
    state = "drift" if (nodes or 0) > 1 else "unknown"
    return [NETWORK.judge(job.name, state, want, have, "Using network", fix, severity=severity)]


def proven_setting(processes: Sequence[Process]) -> bool:
    """Return whether a variable that NCCL has read keeps it off RDMA."""
    return any(_disabled(one.variables) or one.variables.get("NCCL_NET", "").lower() == "socket" for one in processes)


def _kept_apart(job: Job) -> bool:
    """Return whether one host counts as several nodes, because its GPUs may use neither P2P nor shared memory."""
    off = all(job.values(name) for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
    return off and not job.values("NCCL_HOSTID") and len({one.host or UNNAMED for one in job.processes}) == 1


def _disabled(variables: Dict[str, str]) -> bool:
    return strtoll(variables.get("NCCL_IB_DISABLE", "0"))[0] != 0


def _because(proven: Sequence[str], possible: Sequence[str]) -> str:
    text = "; cause: %s" % "; ".join(proven) if proven else ""
    return text + ("; possible causes: %s" % "; ".join(possible) if possible else "")


def causes(processes: Sequence[Process]) -> Tuple[str, Optional[str]]:
    """Return why TCP is used, as lines prove or allow it, and what to do."""
    variables = {name: value for process in processes for name, value in process.variables.items()}
    absent = {why for process in processes for why in process.absent}
    plugins = {(state, name) for process in processes for kind, state, name in process.plugins if kind == "NET"}
    states, idle = {state for state, _name in plugins}, {name for state, name in plugins if state == "idle"}
    none = "device" in absent and not any(process.hcas for process in processes)
    off = "NCCL_IB_DISABLE=%s" % variables.get("NCCL_IB_DISABLE", "")
    off += "; without it there would be no RDMA either: NET/IB found no device" if none else ""
    unused = "the network plugin %s is not used: it found no device that it takes" % names(idle)
    socket = variables.get("NCCL_NET", "").lower() == "socket"
    rows = (
        (socket, "NCCL_NET=%s" % variables.get("NCCL_NET"), _TAKE_OUT % "NCCL_NET"),
        (bool(idle), unused, "`fi_info` in the job's own container shows what libfabric sees"),
        (_disabled(variables), off, _TAKE_OUT % "NCCL_IB_DISABLE"),
        ("interface" in absent, "NET/IB found no IP interface for its control messages", INTERFACE.fix),
    )
    proven = [text for holds, text, _fix in rows if holds]
    fixes = [fix for holds, _text, fix in rows if holds]
    possible: List[str] = []
    if "libibverbs" in absent and not proven:
        possible.append("libibverbs.so.1 cannot be opened, so NET/IB looked for no HCA")
        fixes.append("`ls /sys/class/infiniband` on the nodes: with HCAs there, install libibverbs1 where the job runs")
    if none and not proven:
        proven.append("NET/IB found no RDMA device with an active port")
    elif ("failed", "IB") in plugins and not absent and not proven:
        proven.append("NET/IB did not start (Failed to initialize NET plugin IB)")
    if fixes:
        return _because(proven, possible), "; ".join(fixes)
    wanted = variables.get("NCCL_NET_PLUGIN", "")
    if wanted.lower() not in ("", "none") and "missing" in states:
        possible.append("the network plugin that NCCL_NET_PLUGIN=%s names is not found" % wanted)
    if "unfit" in states:
        possible.append("a network plugin is there and has no symbol that this release takes")
    failed = {name for state, name in plugins if state == "failed" and name != "IB"}
    if failed:
        possible.append("a network plugin did not start: %s" % names(failed))
    if none:
        if "NCCL_IB_HCA" in variables:
            possible.append("NCCL_IB_HCA=%s fits no HCA with an active port" % variables["NCCL_IB_HCA"])
        possible.append("no HCA in the node, no driver, ports down, or /dev/infiniband not in the container")
        if "missing" in states:
            possible.append("a network that needs a plugin, such as EFA or Slingshot, and no libnccl-net.so")
    elif any(process.hcas for process in processes):
        possible.append("HCAs were found and not used: a setting of the communicator (netName), or NCCL_NET in a file")
    return _because(proven, possible or ["unknown: no line shows why"] * (not proven)), None


def _plugins(job: Job) -> List[Finding]:
    """Judge network plugins that the loader refuses, or that do not start."""
    failed: Dict[Tuple[str, str], Set[str]] = {}
    for process in job.processes:
        started = {name for kind, state, name in process.plugins if kind == "GIN" and state == "loaded"}
        for kind, state, name in process.plugins:
            if state == "failed" and kind == "NET" and name not in ("IB", SOCKETS):
                failed.setdefault((kind, name), set()).add(process.host)
            elif state == "failed" and kind == "GIN" and started:
                failed.setdefault((kind, names(started)), set()).add(process.host)
    found = []
    for (kind, name), hosts in sorted(failed.items())[:4]:
        on = "; on %s" % hosts_of(hosts) if hosts - {""} else ""
        if ": " in name:
            have = "the network plugin is there and is not loaded: %s%s" % (name, on)
            cause = next((text for words, text in _LOADER if words in name), "")
            have += "; cause: %s" % cause if cause else ""
            fix = "`ldd` of the plugin's file in the job's own container shows what is missing; use one built for it"
            found.append(NET_PLUGIN.judge("%s plugin" % job.name, "drift", "loaded", have, "NET/Plugin", fix))
            continue
        have = "the %s plugin %s did not start%s" % ("network" if kind == "NET" else kind, name, on)
        have += "; NCCL continues with %s" % names(job.networks) if job.networks else ""
        fix = "if the plugin is intended: NCCL_DEBUG_SUBSYS=INIT,NET shows why; otherwise nothing"
        severity, state = ("minor", "unknown") if kind == "NET" else ("major", "drift")
        subject = "%s plugin %s" % (job.name, name) if kind == "NET" else "%s %s" % (job.name, kind)
        found.append(NET_PLUGIN.judge(subject, state, "started", have, "NET/Plugin", fix, severity=severity))
    return found


# -- interfaces --------------------------------------------------------------------------------------------------------


def _interfaces(job: Job, events: AbstractSet[str]) -> List[Finding]:
    if job.nodes == 1 or not job.processes:
        return []
    bad: Dict[Tuple[bool, str, str], List[Process]] = {}
    good: Set[str] = set()
    leading: Set[str] = set()
    for process in job.processes:
        used = dict([process.bootstrap]) if process.bootstrap[0] else {}
        leading |= {process.bootstrap[0]} | set(list(process.interfaces)[:1])
        if SOCKETS in process.networks or (not process.networks and (process.absent or not process.host)):
            used.update(process.interfaces)
        if process.oob[0]:
            used.setdefault(process.oob[0], "")
        for name, address in used.items():
            why = _ends_here(name, address)
            if why or name.startswith(_TUNNELS):
                bad.setdefault((not why, name, why), []).append(process)
            else:
                good.add(name)
    if good and not bad and not events & _UNREACHED:
        return [INTERFACE.judge(job.name, "ok", _REACHES, names(good), "Bootstrap: Using")]
    return [_interface(job, name, why, on, name in leading) for (_tunnel, name, why), on in sorted(bad.items())]


def _interface(job: Job, name: str, why: str, processes: Sequence[Process], leads: bool) -> Finding:
    """Judge an interface that ends on the node, for that reason, or is a tunnel."""
    hosts, several = hosts_of(process.host for process in processes), job.nodes is not None and job.nodes > 1
    state, severity = "unknown", "major" if leads else "minor"
    if why:
        have = "%s, %s, on %s" % (name, why, hosts)
        chosen = {one.variables["NCCL_SOCKET_IFNAME"] for one in processes if "NCCL_SOCKET_IFNAME" in one.variables}
        have += "; NCCL_SOCKET_IFNAME=%s" % names(chosen) if chosen else ""
        have += "" if several else "; harmless on one node, and the log does not show how many there are"
        state, severity = ("drift", "critical") if several else (state, "minor" if one_host(job) else severity)
    else:
        have = "%s on %s, by its name a tunnel or VPN: it may not reach all nodes" % (name, hosts)
    return INTERFACE.judge("%s %s" % (job.name, name), state, _REACHES, have, "Bootstrap: Using", severity=severity)


def _ends_here(name: str, address: str) -> str:
    if name.startswith(_LOCAL_NAMES) and (name == "lo" or not name.startswith("lo")):
        return "which does not leave the node"
    if address.startswith("127.") or address == "::1":
        return "with the loopback address %s" % address
    if address.lower().startswith(("fe80", "[fe80", "169.254.")):
        return "with the link-local address %s" % address
    return ""


# -- HCAs --------------------------------------------------------------------------------------------------------------


def _rdma(process: Process) -> Dict[str, Set[int]]:
    """Return the HCAs that connections of a process go over, and the ranks that wrote them."""
    found: Dict[str, Set[int]] = {}
    for way, _count, device in process.rdma_connections():
        for part in device.split("+"):
            found.setdefault(part, set()).add(way.rank)
    return found


def used_hcas(processes: Sequence[Process]) -> Tuple[Set[str], Set[str]]:
    """Return the HCAs that processes of a node use, and those that NCCL sees there."""
    seen = {part for process in processes for part in process.hcas}
    return {name for process in processes for name in _rdma(process)}, seen


def _hcas(job: Job) -> List[Finding]:
    if job.nodes == 1 or SOCKETS in job.networks or not job.networks:
        return []
    found: List[Finding] = []
    seen_on: Dict[str, int] = {}
    local = max((one.local_ranks for one in job.communicators), default=0)
    began = job.world.began if job.world is not None and len(job.world.began) == job.world.ranks else {}
    for node, processes in sorted(nodes_of(job.processes).items()):
        used, seen = used_hcas(processes)
        if not seen or any(process.list_cut for process in processes):
            continue
        seen_on[node] = len(seen)
        if not used:
            continue
        idle, subject = seen - used, "%s %s" % (job.name, node)
        want = "all %d HCAs have connections" % len(seen)
        if not idle:
            have = "%d of %d HCAs have connections" % (len(used & seen), len(seen))
            found.append(HCAS.judge(subject, "ok", want, have, _VIA))
            continue
        ranks = {rank for process in processes for own in _rdma(process).values() for rank in own}
        have = "%d of %d HCAs idle on %s: %s" % (len(idle), len(seen), node or UNNAMED, names(idle, 8))
        own = local or sum(process.node == node for process in began.values())
        if not own or len(ranks) < own:
            have += "; only %d of the node's %s ranks show their connections" % (len(ranks), own or "unknown number of")
            found.append(HCAS.judge(subject, "unknown", want, have, _VIA, AGAIN, severity="minor"))
        elif own < len(seen):
            have += "; the job has %d ranks on this node, fewer than it has HCAs" % own
            found.append(HCAS.judge(subject, "ok", want, have, _VIA))
        else:
            found.append(HCAS.judge(subject, "drift", want, have, _VIA, severity=None if local else "minor"))
    most = max(seen_on.values(), default=0)
    for node, count in sorted(seen_on.items()):
        if count < most:
            have = "NCCL sees %d HCAs on %s, %d on other nodes" % (count, node or UNNAMED, most)
            fix = "`ibv_devinfo` on %s: every HCA of the profile has to show PORT_ACTIVE; then run site.yml for it"
            subject, want = "%s %s sees" % (job.name, node), "%d HCAs" % most
            found.append(HCAS.judge(subject, "drift", want, have, "NET/IB : Using", fix % (node or "it")))
    return found


def _speeds(job: Job) -> List[Finding]:
    """Judge the speed of HCAs with connections against the fastest one, and changes while the job ran."""
    speeds: Dict[Tuple[str, str], int] = {}
    changes: Dict[str, List[str]] = {}
    for node, processes in nodes_of(job.processes).items():
        used = {name for process in processes for name in _rdma(process)}
        for process in processes:
            speeds.update({(node, name): mbit for name, mbit in process.speeds.items() if name in used and mbit > 0})
            for name, old, new in process.speed_changes:
                if new < old:
                    changes.setdefault(node, []).append("%s %g to %g Gbit/s" % (name, old / 1000, new / 1000))
    most = max(speeds.values(), default=0)
    slow: Dict[str, List[str]] = {}
    for (node, name), mbit in sorted(speeds.items()):
        if mbit < most:
            slow.setdefault(node, []).append("%s %g Gbit/s" % (name, mbit / 1000))
    want = "%g Gbit/s as the others" % (most / 1000)
    found = []
    for node, own in sorted(slow.items()):
        have = "%s on %s, others have %g" % (names(own, 8), node or UNNAMED, most / 1000)
        found.append(HCA_SPEED.judge("%s %s" % (job.name, node), "drift", want, have, "NET/IB speed="))
    for node, own in sorted(changes.items()):
        have = "the speed of a port fell while the job ran: %s on %s" % (names(own, 8), node or UNNAMED)
        subject = "%s %s change" % (job.name, node)
        found.append(HCA_SPEED.judge(subject, "drift", "no change", have, "speed change detected"))
    return found


# -- GPUDirect RDMA ----------------------------------------------------------------------------------------------------


def _gdr(job: Job, gpus: AbstractSet[str]) -> List[Finding]:
    unable = any(process.gdr_off or False in process.gdr_devices.values() for process in job.processes)
    if job.nodes == 1 or job.networks == {SOCKETS} or not (job.networks - {SOCKETS} or unable):
        return []
    want = "GPUDirect RDMA on every connection"
    off: Dict[Tuple[str, str, str, bool], Set[str]] = {}
    on = 0
    for process in job.processes:
        for way, count, device in process.rdma_connections():
            on += count if way.gdr else 0
            if way.gdr is False:
                reason = (device, *gdr_cause(job, process, device, way.rank, way.sends))
                off.setdefault(reason, set()).add(process.node)
    if off:
        return [_off(job, nodes, *reason, gpus) for reason, nodes in sorted(off.items())]
    if on:
        return [GDR.judge(job.name, "ok", want, "on all %d connections that the log shows" % on, "via NET/.../GDRDMA")]
    unable_on: Dict[Tuple[str, str], Set[str]] = {}
    for process in job.processes:
        for device, able in process.gdr_devices.items():
            if not able:
                unable_on.setdefault((device, process.gdr_why or _NOT_ABLE), set()).add(process.node)
    if unable_on:
        return [_off(job, nodes, device, cause, "", True, gpus) for (device, cause), nodes in sorted(unable_on.items())]
    have = "the log shows no connection between nodes%s" % _decided(job)
    return [GDR.judge(job.name, "unknown", want, have, _VIA, AGAIN, severity="minor")]


_NOT_ABLE = "NCCL finds neither nvidia_peermem nor DMA-BUF usable for this HCA"


def _off(
    job: Job, nodes: AbstractSet[str], device: str, cause: str, fix: str, proven: bool, gpus: AbstractSet[str]
) -> Finding:
    have = "GPUDirect RDMA is off on %s of %s; " % (device, hosts_of(nodes))
    subject, want = "%s %s" % (job.name, device), "GPUDirect RDMA on every connection"
    without = all(_WITHOUT_GDR.match(part) for part in device.split("+"))
    if without or (gpus and all(_SHARED_MEMORY.search(gpu) for gpu in gpus)) or "the GPU does not support it" in cause:
        have += cause if "the GPU does not" in cause else "likely cause: this device or platform has none, by its name"
        fix = "nothing on this device or platform; if another HCA is intended, name it in NCCL_IB_HCA"
        return GDR.judge(subject, "drift", want, have, _VIA, fix, severity="minor")
    have += "%s: %s" % ("cause" if proven else "possible causes", cause)
    return GDR.judge(subject, "drift", want, have, _VIA, fix or None)


def gdr_cause(job: Job, process: Process, device: str, rank: int, sends: Optional[bool]) -> Tuple[str, str, bool]:
    """Return why a connection has no GPUDirect RDMA, what to do ("": the check's), and whether a line proves it."""
    unlisted = device.startswith("NET/IB/") and set(process.gdr_devices.values()) == {False}
    if unlisted or any(process.gdr_devices.get(part) is False for part in device.split("+")):
        return process.gdr_why or _NOT_ABLE, "", True
    if "fabric" in device.lower() and process.gdr_why:
        fix = "`fi_info -p efa -v` has to name FI_HMEM: plugin, libfabric and driver of one installation"
        return process.gdr_why, fix, True
    level, buses = process.variables.get("NCCL_NET_GDR_LEVEL", ""), set(process.buses.values())
    own = {str(rank), process.buses.get(rank, "")} | (buses if len(buses) == 1 else set())
    for gpu, hca, distance, limit in sorted(process.gdr_off):
        if gpu in own and _same_device(process, hca, device):
            far, near = (_path_type(number, job.version) for number in (distance, limit))
            cause = "path %s between GPU %s and HCA exceeds level %s" % (far, gpu, near)
            cause += " (NCCL_NET_GDR_LEVEL=%s)" % level if level else ""
            fix = "`nvidia-smi topo -m`: the HCA has to be on the GPU's own PCIe switch, and in NCCL_IB_HCA; or set"
            return cause, fix + " NCCL_NET_GDR_LEVEL=%s if the longer path is intended" % far, True
    if level in ("LOC", "0"):
        return "NCCL_NET_GDR_LEVEL=%s" % level, _TAKE_OUT % "NCCL_NET_GDR_LEVEL", True
    if sends is not False and process.variables.get("NCCL_NET_GDR_READ") == "0":
        return "NCCL_NET_GDR_READ=0", _TAKE_OUT % "NCCL_NET_GDR_READ", True
    if process.gdr_devices.get(device):
        return "the HCA could; the path to the GPU is longer than NCCL_NET_GDR_LEVEL allows", "", False
    if process.dmabuf:
        return "the path between GPU and HCA is longer than NCCL_NET_GDR_LEVEL allows; DMA-BUF is available", "", False
    cause = "neither nvidia_peermem nor DMA-BUF works; or the path to the GPU is longer than NCCL_NET_GDR_LEVEL allows"
    return cause, AGAIN, False


def _same_device(process: Process, hca: str, device: str) -> bool:
    """hca: number of a device as NCCL prints it, hexadecimal, with the node's number in its upper half."""
    number = hca.rpartition("-")[2]
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", number):
        return False
    index = int(number, 16) & 0xFFFFFF
    return process.device_name("IB", index) == device or device.endswith("/%d" % index)


def _path_type(number: int, release: Optional[Tuple[int, ...]]) -> str:
    for since, types in _PATHS:
        if release is not None and release >= since:
            return types[number] if number < len(types) else "NET"
    return "path type %d" % number


def _decided(job: Job) -> str:
    """Return pairs of GPU and HCA that NCCL decided against; most are far apart and never used."""
    pairs = {
        "GPU %s and HCA %s (%s exceeds %s)" % (gpu, hca, *(_path_type(number, job.version) for number in path))
        for process in job.processes for gpu, hca, *path in process.gdr_off
    }  # fmt: skip
    return "; NCCL decided against it for %s" % names(pairs) if pairs else ""
