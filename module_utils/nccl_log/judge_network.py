# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about the ways that data takes: network, interfaces, HCAs, GPUDirect RDMA.

A cause is named where a line proves it; everything else is "possible causes". Lines that mislead are not believed: a
plugin that is missing, a NET/Socket that starts beside another network, GPUDirect decisions on pairs that nobody uses.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..nccl.grammar import strtoll
from . import gdr_less, judge_watchdog, net_plugins, survived
from .events import Plugin
from .job import Process
from .jobs import UNNAMED, Job, hosts_of, names
from .transport import SOCKETS, device_name

CAPTURE = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
AGAIN = "run it again with %s, and give this command the files of all ranks" % CAPTURE

NETWORK = Check(
    "nccl_log.network",
    why="over TCP a node reaches a fraction of the bandwidth of its HCAs, and the CPU copies every byte",
    fix="run `ibv_devinfo` on one of the hosts, in the job's own container: it has to show the HCAs with state"
    " PORT_ACTIVE; then run site.yml for the node",
    severity="critical",
)
"Does NCCL use an RDMA network between nodes, and if not, why (`busbar diagnose`)"
INTERFACE = Check(
    "nccl_log.interface",
    why="ranks find each other by TCP over this interface: one that does not reach the other nodes may end in a hang",
    fix="set NCCL_SOCKET_IFNAME in the job to the interface of the network between the nodes (`ip -br address`), with"
    " = before the name: NCCL_SOCKET_IFNAME==NAME",
    severity="critical",
)
"Is the interface by which ranks find each other one that reaches other nodes"
HCA_SPEED = Check(
    "nccl_log.hca_speed",
    why="the slowest port that carries connections sets the pace of every collective",
    fix="on the node named here: `ibstat DEVICE` or `ethtool INTERFACE` shows the rate of the port; check cable,"
    " transceiver and the speed set on the switch port, then run site.yml --tags platform for it",
)
"Have all HCAs with connections the same speed"
HCAS = Check(
    "nccl_log.hcas",
    why="each idle HCA is bandwidth that was paid for and is not used",
    fix="run site.yml for the node with --tags platform,nccl_conf: it holds the rails to the profile; GRAPH in"
    " NCCL_DEBUG_SUBSYS shows which HCA NCCL gives to which GPU",
)
"Does every HCA that NCCL sees on a node carry data, and do all nodes see as many"
GDR = Check(
    "nccl_log.gdr",
    why="without GPUDirect RDMA every byte goes through the host's memory: that may cost up to half of the bandwidth,"
    " and CPU time; not a failure",
    fix="run site.yml for the node with --tags nvidia_peermem,pcie_path,iommu, then run the job again",
)
"Has every connection between nodes GPUDirect RDMA, and if not, why"
# Names of interfaces of which it is known that they end on the node, as they begin.
_ENDS_HERE = ("lo", "docker", "virbr", "veth", "br-", "lxcbr", "lxdbr", "podman", "dummy", "vmnet", "nodelocaldns")
# Names of tunnels, as they begin: they reach some nodes, by a detour.
_TUNNELS = ("tun", "tap", "utun", "wg", "tailscale", "zt", "ppp", "nordlynx", "ipsec", "vxlan", "flannel", "gre", "sit")

# Failures of TCP after which it is not said that the interface reaches others.
_UNREACHED = ("connect", "no_interface", "address", "bootstrap", "handshake", "accept", "name", "unresolved")


def judge(job: Job, gpus: AbstractSet[str] = frozenset()) -> List[Finding]:
    """gpus: models that nccl-tests' list names."""
    return [
        *_network(job),
        *net_plugins.judge(job),
        *_interfaces(job),
        *_hcas(job),
        *_hca_speeds(job),
        *_gdr(job, gpus),
    ]


def _network(job: Job) -> List[Finding]:
    if not job.networks:
        on = [one for one in job.processes if _without_rdma(one)]
        if not on or job.nodes == 1:
            return []
        proven, possible, fix = _why_sockets(on, job)
        have = "no RDMA device is used by %s, and the log does not show which network is"
        have %= hosts_of(one.host for one in on)
        have += _because(proven, possible)
        want = "an RDMA network between nodes"
        have += "; it matters only between nodes"
        return [NETWORK.judge(job.name, "unknown", want, have, "NET/IB", fix, severity="minor")]
    over = "%s nodes" % job.nodes if job.nodes is not None else "an unknown number of nodes"
    used = names(job.networks)
    want = "an RDMA network between nodes"
    if SOCKETS not in job.networks:
        have = "%s, over %s" % (used, over) if job.nodes != 1 else "%s (one node: hardly used)" % used
        return [NETWORK.judge(job.name, "ok", want, have, "Using network")]
    crossing = any(way[0] == "net" for process in job.processes for way, _count in process.ways)
    if job.nodes == 1 and not crossing:
        return [NETWORK.judge(job.name, "ok", want, "Socket, and nothing goes over it: one node", "Using network")]
    if job.nodes == 1 or _apart(job):
        return []  # the network within a node: LOCAL
    on = [process for process in job.processes if SOCKETS in _networks(process)]
    proven, possible, fix = _why_sockets(on or job.processes, job)
    have = "Socket (TCP), over %s" % over
    shaped = max((process.shaped for process in job.processes), default=0)
    if job.world is None and shaped > len(_hosts(job.processes)) == 1 and all(one.host for one in job.processes):
        have += (
            "; NCCL counts %d nodes, and all lines are of one host: the others' are not in this log, or it has" % shaped
        )
        have += " several host ids (containers)"
    if job.set_to("NCCL_HOSTID") and job.nodes and len(_hosts(job.processes)) < job.nodes:
        have += ", which NCCL_HOSTID makes of fewer hosts"
    others = job.networks - {SOCKETS}
    if others and on:
        have += ", on %s" % hosts_of(process.host for process in on)
        # A host with both is not elsewhere.
        alone = {one.host for one in job.processes if _networks(one) & others} - {one.host for one in on}
        have += "; %s %s" % (names(others), "elsewhere" if alone else "is named, too")
    have += _because(proven, possible)
    useless = sorted(
        {name for process in on for name in process.variables if name.startswith("NCCL_IB_")} - {"NCCL_IB_DISABLE"}
    )
    if useless:
        have += "; without effect: %s" % names(useless)
    state = "drift" if job.several else "unknown"
    severity, why = None if job.several else "major", None
    if _shows_no_device(on or job.processes, job):
        severity, why = "major", _TCP_ALONE
    elif not _names_hcas(job):
        severity, why = "major", _NO_HCA
    host = one_host(job) or ("" if crossing else _one_node(job))
    if host:
        severity = "minor"
        have = have.replace(
            ", over %s" % over,
            "; all lines are of one host (%s), and between its GPUs the network has no weight: it matters only if the"
            " job has other nodes" % host,
            1,
        )
        fix = "nothing for a job of one node; over several: %s" % (fix or NETWORK.fix)
    said = not on or any(SOCKETS in process.networks for process in on)
    source = "Using network Socket" if said else "Channel ... via NET/Socket"
    return [NETWORK.judge(job.name, state, want, have, source, fix, severity=severity, why=why)]


def _networks(process: Process) -> Set[str]:
    """What a process says that it uses, and what its connections go by."""
    return {*process.networks, *(way[1] for way, _count in process.ways if way[0] == "net")}


_TCP_ALONE = (
    "NET/IB sees no RDMA device on these nodes, so TCP may be the only way there is; if they should have HCAs, or"
)
_TCP_ALONE += " a network that needs a plugin, most of its bandwidth is lost, and the CPU copies every byte"
_NO_HCA = (
    "no HCA is in these lines: where the nodes have some, most of their bandwidth is lost over TCP; where they have"
)
_NO_HCA += " none, TCP may be the only way there is, and is not a failure"


def _names_hcas(job: Job) -> bool:
    """Whether lines name an HCA or another network, or a setting asks for one."""
    shown = any(process.hcas or process.devices for process in job.processes)
    return shown or bool(job.networks - {SOCKETS}) or bool(job.set_to("NCCL_IB_HCA"))


def _shows_no_device(processes: Sequence[Process], job: Job) -> bool:
    """Whether NET/IB finds no device on each of these, and no plugin was there that might have used one."""
    plugins = {plugin for process in processes for plugin in process.plugins if plugin.kind == "NET"}
    tried = any(plugin.state in ("failed", "idle", "speaks", "unfit") and plugin.name != "IB" for plugin in plugins)
    tried = tried or bool(net_plugins.not_started(processes, job)) or bool(job.set_to("NCCL_NET_PLUGIN"))
    tried = tried or bool(job.networks - {SOCKETS}) or any(process.hcas for process in job.processes)
    return not tried and all("device" in process.absent for process in processes)


# GPUs that a node has, usually, at most.
_OF_A_NODE = 8


def one_host(job: Job) -> str:
    """The one host that all lines are of, with several GPUs and all ranks that a communicator has; else ""."""
    hosts = {process.host for process in job.processes}
    gpus = {(process.key, gpu) for process in job.processes for gpu in process.gpus}
    if job.nodes is not None or len(hosts) != 1 or len({gpu for _key, gpu in gpus}) < 2:
        return ""
    if job.world is not None and job.world.ranks > len(gpus):
        return ""
    return next(iter(hosts))


def _one_node(job: Job) -> str:
    """The one host that all lines are of, where the ranks that are named may all be on it; else ""."""
    hosts = {process.host for process in job.processes}
    shaped = max((process.shaped_ranks for process in job.processes), default=0)
    ranks = job.world.ranks if job.world is not None else shaped
    return next(iter(hosts)) if job.nodes is None and len(hosts) == 1 and ranks <= _OF_A_NODE else ""


def _apart(job: Job) -> bool:
    """Whether NCCL counts one host as several nodes, as it does where GPUs may use neither P2P nor shared memory."""
    off = all(job.set_to(name) for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
    return off and not job.set_to("NCCL_HOSTID") and len(_hosts(job.processes)) == 1


def _without_rdma(one: Process) -> bool:
    """Whether a process says that NCCL's own NET/IB brings it nothing."""
    refused = bool(one.absent) or "IB" in net_plugins.failed_to_start(one.plugins)
    return (refused and not one.hcas) or _disabled(one.variables)


def _because(proven: Sequence[str], possible: Sequence[str]) -> str:
    text = "; cause: %s" % "; ".join(proven) if proven else ""
    if possible:
        text += "; %s: %s" % ("behind that, possible causes" if proven else "possible causes", "; ".join(possible))
    return text


def _why_sockets(processes: Sequence[Process], job: Job) -> Tuple[List[str], List[str], Optional[str]]:
    """Causes that lines prove, causes that they allow (of those, where there are any), and what to do."""
    proven: List[str] = []
    fixes: List[str] = []
    variables: Dict[str, str] = {}
    for process in processes:
        variables.update(process.variables)
    absent = {why for process in processes for why in process.absent}
    plugins = {plugin for process in processes for plugin in process.plugins if plugin.kind == "NET"}
    if variables.get("NCCL_NET", "").lower() == "socket":
        proven.append("NCCL_NET=%s" % variables["NCCL_NET"])
        fixes.append("take NCCL_NET out of the job and out of /etc/nccl.conf")
    for plugin, line in net_plugins.not_started(processes, job):
        proven.append("the network plugin %s did not start (line %d)" % (plugin, line))
        fixes.append("see the finding on %s first" % plugin)
    idle = net_plugins.without_device(processes)
    if idle:
        proven.append("the network plugin %s is not used: it found no device that it takes" % names(idle))
        fixes.append(net_plugins.look_after_idle(processes))
    if _disabled(variables):
        proven.append("NCCL_IB_DISABLE=%s" % variables["NCCL_IB_DISABLE"])
        proven[-1] += ", so that NET/IB is switched off as well" if len(proven) > 1 else ""
        if "device" in absent:
            proven[-1] += ", and NET/IB found no device: without the variable there would be no RDMA either"
            fixes.append("see first why no device is found: `ibv_devinfo` in the job's own container")
        fixes.append("take NCCL_IB_DISABLE out of the job and out of /etc/nccl.conf")
    hedged: List[str] = []
    if "libibverbs" in absent:
        fixes.append("install libibverbs1 (Debian) or libibverbs (Red Hat) where the job runs, in its container image")
        if proven:
            proven.append("libibverbs.so.1 cannot be opened")
        else:
            hedged = _unlooked(plugins)
            fixes[-1] = "see on the nodes whether they have HCAs (`ls /sys/class/infiniband`): if so, " + fixes[-1]
            fixes[-1] += "; on a cloud whose RDMA is a plugin's (EFA: aws-ofi-nccl) install that"
    if "interface" in absent:
        proven.append("NET/IB found no IP interface for its control messages")
        fixes.append(INTERFACE.fix)
    found_none = "device" in absent and not any(process.hcas for process in processes)
    if not _disabled(variables) and variables.get("NCCL_NET", "").lower() != "socket":
        if found_none:
            proven.append("NET/IB found no RDMA device with an active port")
        elif "IB" in net_plugins.failed_to_start(plugins) and not absent:
            proven.append("NET/IB did not start (Failed to initialize NET plugin IB)")
    if fixes:
        return proven, hedged, "; ".join(fixes)
    missing = any(plugin.state == "missing" for plugin in plugins)
    fix = _LOAD_OFI if found_none and missing and net_plugins.slingshot(processes) else None
    return proven, _possible(processes, variables, plugins, found_none), fix


_LOAD_OFI = "over Slingshot give the job the plugin aws-ofi-nccl (libnccl-net.so, in its LD_LIBRARY_PATH); with HCAs:"
_LOAD_OFI += " `ibv_devinfo` in the job's own container has to show them with state PORT_ACTIVE"


def _unlooked(plugins: Set[Plugin]) -> List[str]:
    """What may be why where NET/IB could not look for HCAs: that it could not does not say that there are any."""
    said = ["libibverbs.so.1 cannot be opened, so that NET/IB looked for no HCA: no line shows that the nodes have any"]
    if any(plugin.state == "missing" for plugin in plugins):
        said.append("a network that needs a plugin, such as EFA, and no libnccl-net.so")
    return [*said, "or nodes that have nothing but TCP"]


def _possible(
    processes: Sequence[Process], variables: Dict[str, str], plugins: Set[Plugin], found_none: bool
) -> List[str]:
    """What may be why. found_none: NET/IB found no device."""
    wanted = variables.get("NCCL_NET_PLUGIN", "")
    missing = any(plugin.state == "missing" for plugin in plugins)
    failed = sorted(plugin.name for plugin in plugins if plugin.state == "failed" and plugin.name != "IB")
    possible = []
    if wanted and missing and wanted.lower() != "none":
        possible.append("the network plugin that NCCL_NET_PLUGIN=%s names is not found" % wanted)
    if any(plugin.state == "unfit" for plugin in plugins):
        possible.append(
            "a network plugin is there and does not fit this NCCL: it has no symbol that this release takes"
        )
    if failed:
        possible.append("a network plugin did not start: %s" % names(failed))
    if found_none:
        if "NCCL_IB_HCA" in variables:
            possible.append("NCCL_IB_HCA=%s fits no HCA with an active port" % variables["NCCL_IB_HCA"])
        possible.append(
            "no HCA in the node, its driver not loaded, ports down, or /dev/infiniband not in the container"
        )
        if missing and net_plugins.slingshot(processes):
            possible.append("interfaces named as Slingshot's (hsn...), which needs a plugin, and no libnccl-net.so")
        elif missing:
            possible.append("a network that needs a plugin, such as EFA or Slingshot, and no libnccl-net.so")
    elif any(process.hcas for process in processes):
        possible.append("HCAs were found and not used: a setting of the communicator (netName), or NCCL_NET in a file")
    return possible or ["unknown: no line shows why; %s" % AGAIN]


def _disabled(variables: Dict[str, str]) -> bool:
    return strtoll(variables.get("NCCL_IB_DISABLE", "0"))[0] != 0


def _merged(bad: Dict[Tuple[str, str], List[Process]]) -> Dict[Tuple[str, str], List[Process]]:
    """Interfaces of one kind and the same processes told as one, where there are many: bridges of a container host."""
    alike: Dict[Tuple[str, Tuple[int, ...]], List[str]] = {}
    for (name, why), processes in bad.items():
        alike.setdefault((why, tuple(sorted(map(id, processes)))), []).append(name)
    merged = dict(bad)
    for (why, _processes), own in alike.items():
        if len(own) > _MANY:
            processes = bad[own[0], why]
            for name in own:
                del merged[name, why]
            merged["%d interfaces (%s)" % (len(own), names(sorted(own), 4)), why] = processes
    return merged


_LISTED = "NET/Socket lists this interface: data may go over it, and may not come through"
# Interfaces of a process that are reported one by one.
_MANY = 3


def _interfaces(job: Job) -> List[Finding]:
    if job.nodes == 1 or not job.processes:
        return []
    bad: Dict[Tuple[str, str], List[Process]] = {}
    good: Set[str] = set()
    tunnels: Dict[str, List[Process]] = {}
    leads = False
    for process in job.processes:
        used = {}
        if process.bootstrap is not None:
            used[process.bootstrap.interface] = process.bootstrap.address
        if SOCKETS in process.networks or (not process.networks and (process.absent or not process.host)):
            used.update(process.interfaces)
        if process.oob:
            used.setdefault(process.oob, "")
        for name, address in used.items():
            why = _ends_here(name, address)
            if why:
                bad.setdefault((name, why), []).append(process)
            elif name.startswith(_TUNNELS):
                tunnels.setdefault(name, []).append(process)
                first = next(iter(process.interfaces), name)
                leads = (
                    leads or name == first or (process.bootstrap is not None and process.bootstrap.interface == name)
                )
            else:
                good.add(name)
    found = []
    for (name, why), processes in sorted(_merged(bad).items()):
        have = "%s, %s, on %s" % (name, why, hosts_of(process.host for process in processes))
        chosen = {
            process.variables["NCCL_SOCKET_IFNAME"]
            for process in processes
            if "NCCL_SOCKET_IFNAME" in process.variables
        }
        if chosen:
            have += "; NCCL_SOCKET_IFNAME=%s" % names(chosen)
        state = "drift" if job.several else "unknown"
        if not job.several:
            have += "; harmless on one node, and the log does not show how many there are"
        have += "; the one beside them is %s" % next(iter(good)) if len(good) == 1 and " interfaces (" in name else ""
        started = any(one.bootstrap is not None and one.bootstrap.interface in name for one in processes)
        # An interface beside the one by which ranks find each other.
        severity = None if job.several else ("major" if started else "minor")
        if not started and judge_watchdog.carried(job):
            severity = "minor"
            have += "; collectives of this log came through all the same"
        if chosen and state == "unknown" and "link-local" in why:
            # Two nodes that are cabled to each other have no other address.
            severity = "minor"
        subject = "%s %s" % (job.name, name)
        source = "Bootstrap: Using" if started else "NET/Socket: Using"
        why = None if started else _LISTED
        found.append(INTERFACE.judge(subject, state, "reaches other nodes", have, source, severity=severity, why=why))
    for name, processes in sorted(tunnels.items()):
        have = "%s on %s, by its name a tunnel or VPN" % (name, hosts_of(process.host for process in processes))
        have += ": it may not reach all nodes, and all data of the job goes through it"
        if not leads:
            have = have.replace("all data of the job goes", "it is listed behind another one, so data may go")
        elif SOCKETS not in job.networks:
            have = have.replace("and all data of the job goes", "and what ranks exchange goes")
        subject = "%s %s" % (job.name, name)
        severity = "minor" if one_host(job) or not leads else "major"
        started = any(one.bootstrap is not None and one.bootstrap.interface == name for one in processes)
        source, why = ("Bootstrap: Using", None) if started else ("NET/Socket: Using", _LISTED)
        found.append(
            INTERFACE.judge(subject, "unknown", "reaches other nodes", have, source, severity=severity, why=why)
        )
    unreached = any(one.failure.kind in _UNREACHED for one in job.failures)
    if good and not found and not unreached:
        found.append(INTERFACE.judge(job.name, "ok", "reaches other nodes", names(good), "Bootstrap: Using"))
    return found


def _ends_here(name: str, address: str) -> str:
    if name.startswith(_ENDS_HERE) and (name == "lo" or not name.startswith("lo")):
        return "which does not leave the node"
    if address.startswith("127.") or address == "::1":
        return "with the loopback address %s" % address
    if address.lower().startswith(("fe80", "[fe80", "169.254.")):
        return "with the link-local address %s" % address
    return ""


def _hosts(processes: Iterable[Process]) -> Set[str]:
    return {process.host or UNNAMED for process in processes}


def nodes_of(processes: Iterable[Process]) -> Dict[str, List[Process]]:
    found: Dict[str, List[Process]] = {}
    for process in processes:
        found.setdefault(process.node, []).append(process)
    return found


def _rdma_ways(process: Process) -> List[Tuple[str, Optional[bool], bool, int, Optional[bool], int]]:
    """HCA, gdr (None: cut), pxn, rank, sends and channels of each kind of connection over an RDMA network."""
    return [
        (device_name(process, via, index), gdr, pxn, rank, sends, count)
        for rank, ways in process.connections.items()
        for (kind, via, index, gdr, pxn, sends), count in ways.items()
        if kind in ("net", "collnet") and via != SOCKETS
    ]


def _hcas(job: Job) -> List[Finding]:
    if job.nodes == 1 or SOCKETS in job.networks or not job.networks:
        return []
    found = []
    seen_on: Dict[str, Set[str]] = {}
    local = max((one.local_ranks for one in job.communicators), default=0)
    several = len(nodes_of(job.processes)) > 1
    for node, processes in sorted(nodes_of(job.processes).items()):
        seen = {part for process in processes for device in process.hcas for part in device.name.split("+")}
        if not seen or any(process.more_devices for process in processes):
            continue
        seen_on[node] = seen
        ways = [way for process in processes for way in _rdma_ways(process)]
        used = {part for way in ways for part in way[0].split("+")} & seen
        ranks = {way[3] for way in ways}
        idle = seen - used
        subject = "%s %s" % (job.name, node)
        want = "all %d HCAs have connections" % len(seen)
        have = "%d of %d HCAs have connections" % (len(used), len(seen))
        if not ways:
            continue
        if not idle:
            found.append(HCAS.judge(subject, "ok", want, have, "Channel ... via NET"))
            continue
        have = "%d of %d HCAs idle%s: %s" % (len(idle), len(seen), " on %s" % node if several else "", names(idle, 8))
        own = local or _began_on(job, node)
        if not own or len(ranks) < own:
            have += "; only %d of the node's %s ranks show their connections" % (
                len(ranks),
                own or "unknown number of",
            )
            found.append(HCAS.judge(subject, "unknown", want, have, "Channel ... via NET", AGAIN, severity="minor"))
        elif own < len(seen):
            have += "; the job has %d ranks on this node, fewer than it has HCAs" % own
            found.append(HCAS.judge(subject, "ok", want, have, "Channel ... via NET"))
        else:
            severity = None if local else "minor"  # NCCL itself does not say how many ranks the node has
            found.append(HCAS.judge(subject, "drift", want, have, "Channel ... via NET", severity=severity))
    most = max((len(seen) for seen in seen_on.values()), default=0)
    fewer = {node: seen for node, seen in seen_on.items() if len(seen) < most}
    for node, seen in sorted(fewer.items()):
        have = "NCCL sees %d HCAs, %d on other nodes" % (len(seen), most)
        fix = (
            "`ibv_devinfo` on %s: every HCA of the profile has to be there with PORT_ACTIVE; then run site.yml for it"
            % node
        )
        found.append(
            HCAS.judge("%s %s sees" % (job.name, node), "drift", "%d HCAs" % most, have, "NET/IB : Using", fix)
        )
    return found


def _hca_speeds(job: Job) -> List[Finding]:
    """Name the HCAs that have connections and are slower than others that have."""
    speeds: Dict[Tuple[str, str], int] = {}
    for node, processes in nodes_of(job.processes).items():
        used = {part for process in processes for way in _rdma_ways(process) for part in way[0].split("+")}
        known = {name: mbit for process in processes for name, mbit in process.speeds.items()}
        speeds.update({(node, name): mbit for name, mbit in known.items() if name in used and mbit > 0})
    most = max(speeds.values(), default=0)
    slow: Dict[str, List[str]] = {}
    for (node, name), mbit in sorted(speeds.items()):
        if mbit < most:
            slow.setdefault(node, []).append("%s %g Gbit/s" % (name, mbit / 1000))
    want = "%g Gbit/s as the others" % (most / 1000)
    have = {node: "%s has %s" % (node, names(found, 8)) for node, found in slow.items()}
    return [HCA_SPEED.judge("%s %s" % (job.name, node), "drift", want, have[node], "NET/IB speed=") for node in slow]


def _began_on(job: Job, node: str) -> int:
    """How many ranks a node has, where all that there are began in this log; else 0."""
    if job.world is None or len(job.world.began) < job.world.ranks:
        return 0
    return sum(process.node == node for process in job.world.began.values())


def _gdr(job: Job, gpus: AbstractSet[str]) -> List[Finding]:
    unable = any(process.gdr_off or False in process.gdr_devices.values() for process in job.processes)
    rdma = job.networks - {SOCKETS} or unable
    if job.nodes == 1 or job.networks == {SOCKETS} or not rdma:
        return []
    found: List[Finding] = []
    want = _EVERY
    off: Dict[Tuple[str, str, str, bool], Set[str]] = {}
    channels = on = cut = 0
    for process in job.processes:
        for device, gdr, _pxn, rank, sends, count in _rdma_ways(process):
            if gdr is None:
                cut += count
                continue
            channels += count
            if gdr:
                on += count
                continue
            cause, fix, certain = _why_off(job, process, device, rank, sends)
            off.setdefault((device, cause, fix, certain), set()).add(process.node)
    for (device, cause, fix, certain), nodes in sorted(off.items()):
        said = "%s: %s" % ("cause" if certain else "possible causes", cause)
        found.append(_off(job, device, hosts_of(nodes), said, fix or None, "Channel ... via NET", gpus))
    if channels and not off and survived.unmade(job):
        return []
    if channels and not off:
        over = sum(way[5] for process in job.processes for way in _rdma_ways(process) if way[2])
        have = "on all %d connections that the log shows" % on
        have += ", %d of them over another GPU (PXN)" % over if over else ""
        return [GDR.judge(job.name, "ok", want, have, "via NET/.../GDRDMA")]
    if found:
        return found
    not_able: Dict[Tuple[str, str], Set[str]] = {}
    for process in job.processes:
        for device, able in process.gdr_devices.items():
            if not able:
                why = process.gdr_why or _NOT_ABLE
                not_able.setdefault((device, why), set()).add(process.node or UNNAMED)
    for (device, cause), nodes in sorted(not_able.items()):
        fix = net_plugins.look_after_gdr(job.processes) if device == "NET/OFI" else None
        source = "GPU Direct RDMA Disabled"
        found.append(_off(job, device, names(nodes), "cause: %s" % cause, fix, source, gpus))
    in_rings = {process.rings_gdr for process in job.processes if process.rings_gdr is not None}
    if not found and in_rings:
        state = "ok" if in_rings == {True} else "drift"
        have = (
            "on, according to the line on the rings"
            if in_rings == {True}
            else "off in the rings of some ranks; cause unknown"
        )
        fix = None if in_rings == {True} else AGAIN
        found.append(GDR.judge(job.name, state, want, have, "Connected all rings, use ring ... GDR", fix))
    pairs = _decided(job)
    if not found and (job.networks or pairs):
        have = "the log shows no connection between nodes" + pairs
        if cut:
            have = "the lines of %d connections are cut before that%s" % (cut, pairs)
        found.append(GDR.judge(job.name, "unknown", want, have, "Channel ... via NET", AGAIN, severity="minor"))
    return found


_EVERY = "GPUDirect RDMA on every connection"


def _off(
    job: Job, device: str, on: str, cause: str, fix: Optional[str], source: str, gpus: AbstractSet[str]
) -> Finding:
    """That a device has no GPUDirect RDMA; of one that can have none, without advice to load anything."""
    have = "GPUDirect RDMA is off on %s of %s; " % (device, on)
    likely = gdr_less.likely(device, gpus)
    if "the GPU does not support it" in cause:
        have += cause
    elif not likely:
        return GDR.judge("%s %s" % (job.name, device), "drift", _EVERY, have + cause, source, fix)
    else:
        have += "likely cause: %s" % likely
    subject = "%s %s" % (job.name, device)
    return GDR.judge(subject, "drift", _EVERY, have, source, gdr_less.FIX, why=gdr_less.WHY, severity="minor")


def _decided(job: Job) -> str:
    """Pairs that NCCL decided against; most of them are far apart and never used."""
    said = set()
    for process in job.processes:
        for gpu, hca, distance, level in process.gdr_off:
            far, near = (_path_type(number, job.version) for number in (distance, level))
            said.add("GPU %s and HCA %s (%s exceeds %s)" % (gpu, hca, far, near))
    on = {"GPU %s and HCA %s" % pair for process in job.processes for pair in process.gdr_on}
    if said and on:
        return "; NCCL decided against it for %s, and for it with %s" % (names(said, 4), names(on, 4))
    return (
        "; NCCL decided against it for %s, which matters where they are used together: the distance, and no module, is"
        " why; NCCL_NET_GDR_LEVEL=SYS would force it, which is usually not faster" % names(said, 4)
        if said
        else ""
    )


_NOT_ABLE = "NCCL finds neither nvidia_peermem nor DMA-BUF usable for this HCA"


def _why_off(job: Job, process: Process, device: str, rank: int, sends: Optional[bool]) -> Tuple[str, str, bool]:
    """Cause, what to do (empty: the check's), and whether a line proves it."""
    unnamed = device.startswith("NET/IB/") and set(process.gdr_devices.values()) == {False}
    if unnamed or any(process.gdr_devices.get(part) is False for part in device.split("+")):
        return process.gdr_why or _NOT_ABLE, "", True
    if "fabric" in device.lower():
        # Of several lines the one that tells most: "not supported" follows from another one.
        said = {one.gdr_why for one in job.processes if one.gdr_why and one.gdr_devices.get("NET/OFI") is False}
        if said:
            why = min(said, key=lambda why: ("not supported" in why, why))
            return why, net_plugins.look_after_gdr(job.processes), True
    level = process.variables.get("NCCL_NET_GDR_LEVEL", "")
    # Its GPU by rank (2.26 and later) or bus id; the rank may be of another communicator than the bus was.
    buses = set(process.buses.values())
    own = {str(rank), process.buses.get(rank, "")} | (buses if len(buses) == 1 else set())
    for gpu, hca, distance, limit in sorted(process.gdr_off):
        if gpu in own and _same_device(process, hca, device):
            far, near = (_path_type(number, job.version) for number in (distance, limit))
            cause = "path %s between GPU %s and HCA exceeds level %s" % (far, gpu, near)
            cause += " (NCCL_NET_GDR_LEVEL=%s)" % level if level else ""
            fix = "`nvidia-smi topo -m`: the HCA has to be on the GPU's own PCIe switch, and in NCCL_IB_HCA; or set"
            return cause, fix + " NCCL_NET_GDR_LEVEL=%s if the longer path is intended" % far, True
    if level and level in ("LOC", "0"):
        return "NCCL_NET_GDR_LEVEL=%s" % level, "take NCCL_NET_GDR_LEVEL out of the job and out of /etc/nccl.conf", True
    if sends is not False and process.variables.get("NCCL_NET_GDR_READ") == "0":
        return "NCCL_NET_GDR_READ=0", "take NCCL_NET_GDR_READ out of the job and out of /etc/nccl.conf", True
    if process.gdr_devices.get(device):
        return "the HCA could; the path to the GPU is longer than NCCL_NET_GDR_LEVEL allows", "", False
    if process.dmabuf:
        cause = "the path between GPU and HCA is longer than NCCL_NET_GDR_LEVEL allows, usually over a host bridge"
        return cause + " (`nvidia-smi topo -m`); DMA-BUF is available, so a module is hardly missing", "", False
    cause = "neither nvidia_peermem nor DMA-BUF works; the path to the GPU is longer than NCCL_NET_GDR_LEVEL allows"
    return cause + "; a device without support; the log has no NET lines that show it", AGAIN, False


def _same_device(process: Process, hca: str, device: str) -> bool:
    """hca: number of a device as NCCL prints it, hexadecimal, with the node's number in its upper half."""
    number = hca.rpartition("-")[2]
    try:
        index = int(number, 16) & 0xFFFFFF
    except ValueError:
        return False
    return device_name(process, "IB", index) == device or device.endswith("/%d" % index)


# Path types by number, as GdrPair has them: they moved when others were put between.
_PATHS = (
    ((2, 28, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")),
    ((2, 27, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS")),
    ((2, 26, 0), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 18, 0), ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")),
)


def _path_type(number: int, nccl: Optional[Tuple[int, int, int]]) -> str:
    """The name of a path type in a release; its number, where the release is not known."""
    for since, types in _PATHS:
        if nccl is not None and nccl >= since:
            return types[number] if number < len(types) else "NET"
    return "path type %d" % number
