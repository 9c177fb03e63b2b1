# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the networks, plugins, interfaces and HCAs of a job, and GPUDirect RDMA on its connections."""

from __future__ import annotations

import re
from typing import AbstractSet, Dict, List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from ..nccl_conf import net_plugins
from ..nccl_conf.grammar import strtoll
from .checks import AGAIN, GDR, HCA_SPEED, HCAS, INTERFACE, NET_PLUGIN, NETWORK
from .jobs import Job
from .names import UNNAMED, causes_text, hosts_of, names
from .state import SOCKETS, Process

# Begins of names of interfaces that end on the node, and of tunnels, which may not reach all nodes.
_LOCAL_NAMES = ("lo", "docker", "virbr", "veth", "br-", "lxcbr", "lxdbr", "podman", "dummy", "vmnet", "nodelocaldns")
_TUNNELS = ("tun", "tap", "utun", "wg", "tailscale", "zt", "ppp", "nordlynx", "ipsec", "vxlan", "flannel", "gre", "sit")
# Failures of TCP after which no interface is called good.
_UNREACHED = frozenset(["connect", "no_interface", "address", "bootstrap", "handshake", "accept", "name", "unresolved"])
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
_RDMA, _REACHES, _GDR = "an RDMA network between nodes", "reaches other nodes", "GPUDirect RDMA on every connection"
_VIA = "Channel ... via NET"
_NOT_ABLE = "NCCL finds neither nvidia_peermem nor DMA-BUF usable for this HCA"
_LOADED = ("NET", "loaded")
_NOT_STARTED = "NET/IB did not start (Failed to initialize NET plugin IB)"
_LONG_PATH = "the path between GPU and HCA is longer than NCCL_NET_GDR_LEVEL allows"
# GPUs that a node usually has, at most.
_OF_A_NODE = 8


def judge(job: Job, events: AbstractSet[str] = frozenset(), gpus: AbstractSet[str] = frozenset()) -> List[Finding]:
    """events: ids of what failed.   gpus: models that the list of nccl-tests names."""
    return [*_network(job), *_plugins(job), *_interfaces(job, events), *_hcas(job), *_speeds(job), *_gdr(job, gpus)]


def one_host(job: Job) -> str:
    """Return the host that all lines are of, where all ranks that a communicator has may be on it; else ""."""
    hosts = {process.host for process in job.processes}
    nodes, shaped = _shape(job)
    ranks = job.world.ranks if job.world is not None else shaped
    alone = job.nodes is None and len(hosts) == 1 and ranks <= _OF_A_NODE and nodes < 2
    return next(iter(hosts)) if alone else ""


def _shape(job: Job) -> Tuple[int, int]:
    """Return the most nodes, with their ranks, that a process reports."""
    return max([(0, 0), *(one.shapes for one in job.processes)])


def _network(job: Job) -> List[Finding]:
    nodes = job.nodes if job.nodes is not None else _shape(job)[0] or None
    over = "%d nodes" % nodes if nodes is not None else "an unknown number of nodes"
    if not job.networks:
        on = [one for one in job.processes if (one.absent and not one.hcas) or _disabled(one)]
        because, fix = causes(on)
        have = "no RDMA device is used by %s, and the log does not show which network is; %s" % (_hosts(on), because)
        unknown = NETWORK.judge(job.name, "unknown", _RDMA, have, "NET/IB", fix, severity="minor")
        return [unknown] if on and nodes != 1 else []
    if SOCKETS not in job.networks:
        have = "%s, over %s" % (names(job.networks), over if nodes != 1 else "one node: hardly used")
        return [NETWORK.judge(job.name, "ok", _RDMA, have, "Using network")]
    if nodes == 1:
        have = "Socket, one node: nothing goes over it"
        crossing = any(way.kind == "net" for process in job.processes for way in process.ways)
        return [] if crossing else [NETWORK.judge(job.name, "ok", _RDMA, have, "Using network")]
    off = all(job.values(name) for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
    if off and not job.values("NCCL_HOSTID") and len({one.host or UNNAMED for one in job.processes}) == 1:
        # One host counts as several nodes, because its GPUs may use neither P2P nor shared memory.
        return []
    return [_sockets(job, nodes, "over %s" % over)]


def _sockets(job: Job, nodes: Optional[int], over: str) -> Finding:
    """Judge a job whose nodes, or some of them, use TCP."""
    on = [process for process in job.processes if SOCKETS in (*process.networks, *(way.via for way in process.ways))]
    because, fix = causes(on or job.processes)
    host, others = one_host(job), job.networks - {SOCKETS}
    if host:
        over = "; all lines are of one host (%s): it matters only with other nodes" % host
        fix = "nothing for a job of one node; over several: %s" % (fix or NETWORK.fix)
    have = "Socket (TCP)%s%s" % ("" if host else ", ", over)
    fewer = job.values("NCCL_HOSTID") and len(job.hosts) < (nodes or 0)
    have += ", which NCCL_HOSTID makes of fewer hosts" if fewer else ""
    have += ", on %s; %s is named, too" % (_hosts(on), names(others)) if others and on else ""
    networks = {one.variables.get("NCCL_NET", "").lower() for one in on or job.processes}
    set_off = "socket" in networks or any(map(_disabled, on or job.processes))
    hcas = any(one.hcas for one in job.processes) or others or job.values("NCCL_IB_HCA")
    none = not set_off and all("device" in one.absent for one in on)
    severity = "minor" if host else "major" if not hcas or (nodes or 0) < 2 or none else None
    state, have = "drift" if (nodes or 0) > 1 else "unknown", "%s; %s" % (have, because)
    return NETWORK.judge(job.name, state, _RDMA, have, "Using network", fix, severity=severity)


def _hosts(processes: Sequence[Process]) -> str:
    return hosts_of(process.host for process in processes)


def _disabled(process: Process) -> bool:
    return strtoll(process.variables.get("NCCL_IB_DISABLE", "0"))[0] != 0


def causes(processes: Sequence[Process]) -> Tuple[str, Optional[str]]:
    """Return why TCP is used, as lines prove or allow it, and what to do."""
    variables = {name: value for process in processes for name, value in process.variables.items()}
    absent = {why for process in processes for why in process.absent}
    plugins = {(state, name) for process in processes for kind, state, name in process.plugins if kind == "NET"}
    states, idle = {state for state, _name in plugins}, {name for state, name in plugins if state == "idle"}
    failed = {name for state, name in plugins if state == "failed" and name != "IB"}
    hcas, net = any(one.hcas for one in processes), variables.get("NCCL_NET", "")
    plugin = variables.get("NCCL_NET_PLUGIN") or "none"
    none, socket, disabled = "device" in absent and not hcas, net.lower() == "socket", any(map(_disabled, processes))
    off = "NCCL_IB_DISABLE=%s" % variables.get("NCCL_IB_DISABLE")
    off += "; without it there would be no RDMA either: NET/IB found no device" if none else ""
    unset = not (socket or idle or disabled or "interface" in absent)
    unknown = unset and "libibverbs" not in absent
    use = "the network plugin %s is not used: it found no device that it takes" % names(idle)
    libfabric = "`fi_info` in the job's own container shows what libfabric sees"
    install = "`ls /sys/class/infiniband` on the nodes: with HCAs there, install libibverbs1 where the job runs"
    not_found = "the network plugin that NCCL_NET_PLUGIN=%s names is not found" % plugin
    wanted = variables.get("NCCL_IB_HCA")
    proven = (
        (socket, "NCCL_NET=%s" % net, _TAKE_OUT % "NCCL_NET"),
        (idle, use, libfabric),
        (disabled, off, _TAKE_OUT % "NCCL_IB_DISABLE"),
        ("interface" in absent, "NET/IB found no IP interface for its control messages", INTERFACE.fix),
        (unset and none, "NET/IB found no RDMA device with an active port", ""),
        (unknown and not absent and ("failed", "IB") in plugins, _NOT_STARTED, ""),
    )
    possible = (
        (unset and "libibverbs" in absent, "libibverbs.so.1 cannot be opened, so NET/IB looked for no HCA", install),
        (unknown and plugin.lower() != "none" and "missing" in states, not_found, ""),
        (unknown and failed, "a network plugin did not start: %s" % names(failed), ""),
        (unknown and none and wanted is not None, "NCCL_IB_HCA=%s fits no HCA with an active port" % wanted, ""),
        (unknown and none, "no HCA in the node, no driver, ports down, or /dev/infiniband not in the container", ""),
        (unknown and hcas, "HCAs were found and not used: a setting of the communicator, or NCCL_NET in a file", ""),
    )
    texts = [[text for holds, text, _fix in rows if holds] for rows in (proven, possible)]
    parts = [causes_text(found, found is texts[0]) for found in texts if found]
    fixes = [fix for holds, _text, fix in (*proven, *possible) if holds and fix]
    return "; ".join(parts) or "possible causes: unknown: no line shows why", "; ".join(fixes) or None


def plugins(job: Job) -> Dict[str, str]:
    """Return the networks of plugins that a job uses -> release, else version of the plugin's interface to NCCL."""
    found = {}
    loaded = {name for process in job.processes for kind, state, name in process.plugins if (kind, state) == _LOADED}
    for network in sorted(job.networks):
        plugin = net_plugins.of_network(network)
        releases = {process.plugin_releases.get(plugin.name, "") for process in job.processes if plugin is not None}
        own = [name for name in loaded if name.startswith(network + " (")]
        found[network] = names(releases - {""} or ["interface %s" % name[len(network) + 2 : -1] for name in own])
    return {network: text for network, text in found.items() if text}


def fell_back(job: Job) -> str:
    """Return NCCL's own networks, where a job uses no others; else ""."""
    return names(job.networks) if all(name.lower() in net_plugins.OWN for name in job.networks) else ""


def _plugins(job: Job) -> List[Finding]:
    """Judge network plugins that the loader refuses, or that do not start."""
    failed: Dict[Tuple[str, str], Set[str]] = {}
    for process in job.processes:
        started = {name for kind, state, name in process.plugins if kind == "GIN" and state == "loaded"}
        for kind, state, name in process.plugins:
            if state == "failed" and (started if kind == "GIN" else kind == "NET" and name not in ("IB", SOCKETS)):
                failed.setdefault((kind, names(started) if kind == "GIN" else name), set()).add(process.host)
    found = []
    for (kind, name), hosts in sorted(failed.items())[:4]:
        on = "; on %s" % hosts_of(hosts) if hosts - {""} else ""
        subject, state, severity = "%s %s" % (job.name, kind), "drift", "major"
        have = "the %s plugin %s did not start%s" % ("network" if kind == "NET" else kind, name, on)
        fix = "if the plugin is intended: NCCL_DEBUG_SUBSYS=INIT,NET shows why; otherwise nothing"
        if ": " in name:
            subject, have = "%s plugin" % job.name, "the network plugin is there and is not loaded: %s%s" % (name, on)
            fix = "`ldd` of the plugin's file in the job's own container shows what is missing; use one built for it"
        elif kind == "NET":
            subject, state, severity = "%s plugin %s" % (job.name, name), "unknown", "minor"
        have += "; NCCL continues with %s" % names(job.networks) if job.networks else ""
        found.append(NET_PLUGIN.judge(subject, state, "started", have, "NET/Plugin", fix, severity=severity))
    return found


def _interfaces(job: Job, events: AbstractSet[str]) -> List[Finding]:
    bad: Dict[Tuple[bool, str, str], List[Process]] = {}
    good: Set[str] = set()
    leading: Set[str] = set()
    for process in job.processes if job.nodes != 1 else ():
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
    state, severity = "unknown", "major" if leads else "minor"
    have = "%s on %s, by its name a tunnel or VPN: it may not reach all nodes" % (name, _hosts(processes))
    if why:
        have = "%s, %s, on %s" % (name, why, _hosts(processes))
        chosen = {one.variables["NCCL_SOCKET_IFNAME"] for one in processes if "NCCL_SOCKET_IFNAME" in one.variables}
        have += "; NCCL_SOCKET_IFNAME=%s" % names(chosen) if chosen else ""
        if (job.nodes or 0) > 1:
            state, severity = "drift", "critical"
        else:
            have += "; harmless on one node, and the log does not show how many there are"
            severity = "minor" if one_host(job) else severity
    return INTERFACE.judge("%s %s" % (job.name, name), state, _REACHES, have, "Bootstrap: Using", severity=severity)


def _ends_here(name: str, address: str) -> str:
    if name.startswith(_LOCAL_NAMES) and (name == "lo" or not name.startswith("lo")):
        return "which does not leave the node"
    if address.startswith("127.") or address == "::1":
        return "with the loopback address %s" % address
    if address.lower().startswith(("fe80", "[fe80", "169.254.")):
        return "with the link-local address %s" % address
    return ""


def used_hcas(processes: Sequence[Process]) -> Tuple[Set[str], Set[str]]:
    """Return the HCAs that connections of a node's processes go over, and those that NCCL sees there."""
    used = {part for process in processes for _way, _count, device in process.rdma_connections()
            for part in device.split("+")}  # fmt: skip
    return used, {part for process in processes for part in process.hcas}


def _hcas(job: Job) -> List[Finding]:
    if job.nodes == 1 or SOCKETS in job.networks or not job.networks:
        return []
    found: List[Finding] = []
    local = max((one.local_ranks for one in job.communicators), default=0)
    began = job.world.began if job.world is not None and len(job.world.began) == job.world.ranks else {}
    whole = {node: own for node, own in job.by_node.items() if not any(process.list_cut for process in own)}
    seen_on = {node: len(used_hcas(own)[1]) for node, own in whole.items() if used_hcas(own)[1]}
    for node, count in sorted(seen_on.items()):
        used, seen = used_hcas(whole[node])
        if not used:
            continue
        idle = seen - used
        state, fix, severity = "ok", None, None
        have = "%d of %d HCAs have connections" % (len(used & seen), count)
        if idle:
            have = "%d of %d HCAs idle on %s: %s" % (len(idle), count, node or UNNAMED, names(idle, 8))
            own = local or sum(process.node == node for process in began.values())
            ranks = {way.rank for process in whole[node] for way, _count, _device in process.rdma_connections()}
            if not own or len(ranks) < own:
                state, fix, severity = "unknown", AGAIN, "minor"
                have += "; only %d of the node's %s ranks show their connections" % (len(ranks), own or "many")
            elif own < count:
                have += "; the job has %d ranks on this node, fewer than it has HCAs" % own
            else:
                state, severity = "drift", None if local else "minor"
        subject, want = "%s %s" % (job.name, node), "all %d HCAs have connections" % count
        found.append(HCAS.judge(subject, state, want, have, _VIA, fix, severity=severity))
    most = max(seen_on.values(), default=0)
    for node, count in sorted(seen_on.items()):
        if count < most:
            have = "NCCL sees %d HCAs on %s, %d on other nodes" % (count, node or UNNAMED, most)
            fix = "`ibv_devinfo` on %s: every HCA of the profile has to show PORT_ACTIVE; then run site.yml for it"
            subject, want = "%s %s sees" % (job.name, node), "%d HCAs" % most
            found.append(HCAS.judge(subject, "drift", want, have, "NET/IB : Using", fix % (node or "it")))
    return found


def _speeds(job: Job) -> List[Finding]:
    """Judge the speed of HCAs with connections against the fastest one, and changes while the job ran.

    Where no connection is shown, which HCAs have some is unknown: those of one name are compared.
    """
    speeds: Dict[str, Dict[str, int]] = {}
    shown = any(used_hcas(processes)[0] for processes in job.by_node.values())
    for node, processes in job.by_node.items():
        used, seen = used_hcas(processes)
        every = [item for one in processes for item in one.speeds.items()]
        speeds[node] = {name: mbit for name, mbit in every if name in (used if shown else seen) and mbit > 0}
    fastest: Dict[str, int] = {}
    for name, mbit in (item for own in speeds.values() for item in own.items()):
        fastest[name] = max(fastest.get(name, 0), mbit)
    if shown:
        fastest = dict.fromkeys(fastest, max(fastest.values(), default=0))
    found = []
    for node, own in sorted(speeds.items()):
        slow = {name: mbit for name, mbit in own.items() if mbit < fastest[name]}
        changes = sorted({change for process in job.by_node[node] for change in process.speed_changes})
        fell = ["%s %g to %g Gbit/s" % (name, old / 1000, new / 1000) for name, old, new in changes if new < old]
        subject, on = "%s %s" % (job.name, node), node or UNNAMED
        if slow:
            most = max(fastest[name] for name in slow) / 1000
            have = names(("%s %g Gbit/s" % (name, mbit / 1000) for name, mbit in slow.items()), 8)
            have = "%s on %s, others have %g" % (have, on, most) + ("" if shown else "; no connection is shown")
            state, want = "drift" if shown else "unknown", "%g Gbit/s as the others" % most
            found.append(HCA_SPEED.judge(subject, state, want, have, "NET/IB speed="))
        if fell:
            have, source = "the speed of a port fell while the job ran: %s on %s" % (names(fell, 8), on), "speed change"
            found.append(HCA_SPEED.judge("%s change" % subject, "drift", "no change", have, source))
    return found


def _gdr(job: Job, gpus: AbstractSet[str]) -> List[Finding]:
    unable = any(process.gdr_off or False in process.gdr_devices.values() for process in job.processes)
    if job.nodes == 1 or job.networks == {SOCKETS} or not (job.networks - {SOCKETS} or unable):
        return []
    # Device, cause, fix and whether a line proves it -> nodes.
    off: Dict[Tuple[str, str, str, bool], Set[str]] = {}
    able_off: Dict[Tuple[str, str, str, bool], Set[str]] = {}
    on = 0
    for process in job.processes:
        for way, count, device in process.rdma_connections():
            on += count if way.gdr else 0
            if way.gdr is False:
                reason = (device, *gdr_cause(job, process, device, way.rank, way.sends))
                off.setdefault(reason, set()).add(process.node)
        for device, able in process.gdr_devices.items():
            if not able:
                able_off.setdefault((device, process.gdr_why or _NOT_ABLE, "", True), set()).add(process.node)
    if on and not off:
        have = "on all %d connections that the log shows" % on
        return [GDR.judge(job.name, "ok", _GDR, have, "via NET/.../GDRDMA")]
    if off or able_off:
        return [_off(job, nodes, *reason, gpus) for reason, nodes in sorted((off or able_off).items())]
    have = "the log shows no connection between nodes"
    return [GDR.judge(job.name, "unknown", _GDR, have, _VIA, AGAIN, severity="minor")]


def _off(
    job: Job, nodes: AbstractSet[str], device: str, cause: str, fix: str, proven: bool, gpus: AbstractSet[str]
) -> Finding:
    have, subject = "GPUDirect RDMA is off on %s of %s; " % (device, hosts_of(nodes)), "%s %s" % (job.name, device)
    without = all(_WITHOUT_GDR.match(part) for part in device.split("+"))
    if without or (gpus and all(_SHARED_MEMORY.search(gpu) for gpu in gpus)) or "the GPU does not support it" in cause:
        have += cause if "the GPU does not" in cause else "likely cause: this device or platform has none, by its name"
        fix = "nothing on this device or platform; if another HCA is intended, name it in NCCL_IB_HCA"
        return GDR.judge(subject, "drift", _GDR, have, _VIA, fix, severity="minor")
    return GDR.judge(subject, "drift", _GDR, have + causes_text([cause], proven), _VIA, fix or None)


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
    if process.gdr_devices.get(device) or process.dmabuf:
        return _LONG_PATH + ("; DMA-BUF is available" if process.dmabuf else ""), "", False
    return "neither nvidia_peermem nor DMA-BUF works; or " + _LONG_PATH, AGAIN, False


def _same_device(process: Process, hca: str, device: str) -> bool:
    """hca: number of a device as NCCL prints it, hexadecimal, with the node's number in its upper half."""
    number = re.search(r"(?:^|-)([0-9a-fA-F]{1,16})$", hca)
    index = int(number.group(1), 16) & 0xFFFFFF if number else -1
    return process.device_name("IB", index) == device or device.endswith("/%d" % index)


def _path_type(number: int, release: Optional[Tuple[int, ...]]) -> str:
    types = next((types for since, types in _PATHS if release is not None and release >= since), None)
    if types is None:
        return "path type %d" % number
    return types[number] if number < len(types) else "NET"
