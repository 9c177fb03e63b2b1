# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about how a job failed: what came first, and who merely lost a connection to it.

A rank that reports a closed connection is a victim. What came first is told by times of one clock, or by the order of
the lines of one file; where neither is there, it is not told.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from .failures import STATUSES
from .job import Reported
from .jobs import Job, missing, names, numbers

SEE_FIRST = "mend what the first failure says; this one goes with it"
RETRIES = Check(
    "nccl_log.completion",
    why="an HCA gave up on a connection: the data did not arrive, or the other side was gone",
    fix="see `busbar diagnose` on the logs of all ranks, and playbooks/verify.yml between the nodes named here",
    severity="critical",
)
"Did every RDMA operation complete"
PORT = Check(
    "nccl_log.port",
    why="the HCA reported an event of its port or queues to the job while it ran",
    fix="look at the port on the node named here: `ibstat DEVICE`, `rdma link`, `dmesg -T | grep mlx5`, the switch's"
    " log at that time; cable and transceiver first",
    severity="critical",
)
"Did every port and queue of the HCAs stay up"
QUEUE_PAIR = Check(
    "nccl_log.queue_pair",
    why="an RDMA connection was not established: on RoCE as a rule the peer's address did not resolve, or has no route",
    fix="take NCCL_IB_GID_INDEX out of the job (2.21 and later find the RoCE v2 GID themselves); run"
    " playbooks/verify.yml"
    " between the nodes: it pings every rail",
    severity="critical",
)
"Was every RDMA connection established"
MEMORY_LIMIT = Check(
    "nccl_log.memory_limit",
    why="RDMA pins memory, and the process may not lock as much",
    fix="`ulimit -l` in the job itself has to say unlimited; run site.yml for the node with --tags"
    " host_limits, and start"
    " containers with --ulimit memlock=-1",
    severity="critical",
)
"May processes lock as much memory as RDMA needs"
VERBS = Check(
    "nccl_log.verbs",
    why="a call of the RDMA library failed: the HCA, its driver or the container's view of it is not in order",
    fix="`ibv_devinfo -v` and `dmesg -T | grep mlx5` on the node; in a container /dev/infiniband has to be"
    " there; then run"
    " site.yml with --tags mofed,nvidia_peermem",
    severity="critical",
)
"Do the calls of the RDMA library succeed"
DUPLICATE = Check(
    "nccl_log.duplicate_gpu",
    why="two ranks of a communicator have the same GPU",
    fix="one GPU a process: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the process group is made;"
    " as many processes as GPUs; with Slurm --gpus-per-task=1 only where the program then uses device 0",
    severity="critical",
)
"Has each rank a GPU of its own"
VERSIONS = Check(
    "nccl_log.version",
    why="all ranks of a job need the same NCCL: others refuse each other, or hang, or read each other's messages wrong",
    fix="use one image or environment on all nodes; `python3 -c 'import torch;"
    " print(torch.cuda.nccl.version())'` on each",
    severity="critical",
)
"Do all ranks of a job run the same release of NCCL"
BOOTSTRAP = Check(
    "nccl_log.bootstrap",
    why="ranks did not find each other by TCP, before any fast network is used",
    fix="NCCL_SOCKET_IFNAME has to name an interface that is up and has an address on every node (`ip -br address`), or"
    " be left out; each rank number may be started once",
    severity="critical",
)
"Did the ranks find each other"
CONNECTION = Check(
    "nccl_log.connection",
    why="a rank whose connection is closed is a victim: look at the rank that went away first",
    fix="look at what went away first: its last lines, `dmesg -T` on its node for OOM and Xid, the scheduler's record",
    severity="critical",
)
"Did every rank stay until the end"
# Why and fix of kinds that have their own, under a check of several kinds.
_OWN = {
    "connect": (
        "a TCP connection between two ranks was never made: nothing is known to have been closed",
        "try the address from the node that reports it (`ip route get ADDRESS`, `ping`), see what the peer's log says"
        " after Bootstrap, and set NCCL_SOCKET_IFNAME to the interface between the nodes where it is another one",
    ),
    "driver_old": (
        "the GPU's driver is older than the CUDA that NCCL or the program was built for",
        "`nvidia-smi` on the node says the driver and the newest CUDA that it runs: install a newer driver on the node"
        " (a container has the node's), or an image or wheel for that CUDA",
    ),
}
SHARED_MEMORY = Check(
    "nccl_log.shared_memory",
    why="ranks of a node talk through /dev/shm, and there was no room or the segment was not there",
    fix="`df -h /dev/shm` in the job: start the container with --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of"
    " medium Memory on /dev/shm), and remove what is left there: rm /dev/shm/nccl-*",
    severity="critical",
)
"Has /dev/shm room for NCCL"
CUDA = Check(
    "nccl_log.cuda",
    why="a CUDA call failed in NCCL: the GPU, its driver, its memory, or an earlier fault of the program's own kernels",
    fix="`nvidia-smi -q` and `dmesg -T | grep -i xid` on the node named here; no Xid there: run the program with"
    " CUDA_LAUNCH_BLOCKING=1 to see which kernel fails first",
    severity="critical",
)
"Do CUDA's calls succeed"
FABRIC_MANAGER = Check(
    "nccl_log.fabric_manager",
    why="NVSwitch or NVLink across nodes refused what NCCL asked for: as a rule Fabric Manager (or IMEX) is not"
    " running, or not of the driver's version",
    fix="`systemctl status nvidia-fabricmanager` on the node (GB200: nvidia-imex), its version has to be the driver's;"
    " `nvidia-smi -q | grep -A 3 Fabric` has to say Completed and Success",
    severity="critical",
)
"Are NVSwitches and NVLink across nodes ready"
NVLINK_P2P = Check(
    "nccl_log.nvlink_p2p",
    why="GPUs that NVLink joins may not reach each other: as a rule hardware, or a GPU that needs a reset",
    fix="drain the node, `nvidia-smi topo -p2p r` and `nvidia-smi nvlink -s` there; reset the GPUs or reboot",
    severity="critical",
)
"Do GPUs that NVLink joins reach each other"
MISMATCH = Check(
    "nccl_log.mismatch",
    why="ranks did not call the same collective with the same size, or have other settings or another NCCL",
    fix="compare NCCL's release and NCCL_ variables of all ranks (this command shows both), then the order and sizes of"
    " the program's collectives: NCCL_DEBUG_SUBSYS=COLL shows them",
    severity="critical",
)
"Do all ranks call the same collectives with the same sizes and settings"
SETTING = Check(
    "nccl_log.setting",
    why="NCCL refuses what a variable asks for",
    fix="take NCCL_ALGO, NCCL_PROTO, NCCL_NET and NCCL_NET_PLUGIN out of the job and out of"
    " /etc/nccl.conf, then put back"
    " what is needed one by one: `busbar lint` says what each means",
    severity="critical",
)
"Can NCCL do what its variables ask for"
NO_WAY = Check(
    "nccl_log.no_transport",
    why="two ranks have no way to reach each other",
    fix="take NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_HCA out of the job; all nodes have to use"
    " HCAs of the same link"
    " layer",
    severity="critical",
)
"Is there a way between all ranks"
WATCHDOG = Check(
    "nccl_log.watchdog",
    why="a collective did not end in time: PyTorch tells who waited, not who is to blame",
    fix="while it hangs ask `busbar hang HOST` which rank is behind; else set TORCH_NCCL_DUMP_ON_TIMEOUT=1 and"
    " TORCH_FR_BUFFER_SIZE=20000, and compare the ranks' last collective",
    severity="critical",
)
"Did every collective end in time"
EXIT = Check(
    "nccl_log.exit",
    why="a process ended; the others lost their connection to it",
    fix="its own last lines say why; signal 9: `dmesg -T | grep -i oom` on its node, and the limit of its"
    " cgroup or pod",
    severity="critical",
)
"Did every process end by itself"
NET_PLUGIN = Check(
    "nccl_log.net_plugin",
    why="the plugin that brings the network reports a failure: NCCL ends, or goes on over TCP",
    fix="see in the job itself whether the plugin's devices are there (EFA: `fi_info -p efa`, and /dev/infiniband in"
    " the container), and that plugin, libfabric and driver are of one installation; NCCL_DEBUG=INFO says which network"
    " is used in the end",
)
"Does the network's plugin work without a failure"
DEVICE = Check(
    "nccl_log.device",
    why="an RDMA device without a PCI device is as a rule RDMA in software (rxe, siw): no GPUDirect, and no faster than"
    " TCP",
    fix="`rdma link` and `ls -l /sys/class/infiniband` in the job and on the node: a device in software has no PCI"
    " address there; let NCCL_IB_HCA name the HCAs alone",
)
"Is every RDMA device one of hardware"
WARNING = Check(
    "nccl_log.warning",
    why="NCCL warns of something that this command has no rule for",
    fix="read it with the lines above it; `NCCL_DEBUG=INFO` shows the calls that led there",
)
"Does NCCL warn of nothing else"

_CHECKS = {
    "completion": RETRIES,
    "port": PORT,
    "queue_pair": QUEUE_PAIR,
    "memory_limit": MEMORY_LIMIT,
    "registration": VERBS,
    "verbs": VERBS,
    "duplicate_gpu": DUPLICATE,
    "version": VERSIONS,
    "no_interface": BOOTSTRAP,
    "bootstrap": BOOTSTRAP,
    "handshake": BOOTSTRAP,
    "connect": CONNECTION,
    "closed": CONNECTION,
    "shared_memory": SHARED_MEMORY,
    "nvlink_p2p": NVLINK_P2P,
    "fabric_manager": FABRIC_MANAGER,
    "cuda": CUDA,
    "driver": CUDA,
    "driver_old": CUDA,
    "mismatch": MISMATCH,
    "algorithm": SETTING,
    "no_network": SETTING,
    "no_transport": NO_WAY,
    "link_layer": NO_WAY,
    "watchdog": WATCHDOG,
    "exit": EXIT,
    "net_plugin": NET_PLUGIN,
    "no_pci_device": DEVICE,
    "driver_functions": WARNING,
    "nvml": WARNING,
    "warning": WARNING,
}
_UNREACHABLE = ("timed out", "nreachable", "No route", "Host is down")
_LINK_LOCAL = ("169.254.", "fe80:")
# What is no failure by itself: the first failure is another one, where there is one.
_MERELY = ("warning", "no_pci_device", "driver_functions", "nvml")
# What is not told to be wrong.
_OPEN = ("warning", "driver_functions", "nvml")
# What follows from something else: never the first failure while there is another one.
_FOLLOWS = ("closed", "connect", "consequence", "exception", "test", "watchdog", "progress", "exit")
# What a warning leaves open, by kind and code; the causes are in the order of how often they are it.
_POSSIBLE = {
    (
        "completion",
        "12",
    ): "right after the start: the HCAs cannot reach each other (cabling, VLAN, route, GID, MTU, PFC);"
    " later: loss, a link that went down, or the peer's process died",
    ("completion", "13"): "the peer did not post a receive in time: it hung, was overloaded, or died",
    (
        "completion",
        "4",
    ): "memory that the HCA may not reach: ACS or IOMMU in the way of GPUDirect RDMA, peermem unloaded",
    (
        "completion",
        "10",
    ): "the peer's memory is not registered any more: it failed before, or GPUDirect RDMA broke there",
    ("completion", "9"): "the peer refused the operation: it failed before, or runs another NCCL or other settings",
    ("completion", "11"): "the peer's HCA failed the operation: see its own log and dmesg",
    ("completion", "1"): "sender and receiver do not agree on a length: another NCCL or other settings on a rank",
    (
        "queue_pair",
        "",
    ): "the address (GID) that NCCL uses is not there for this process: an index (NCCL_IB_GID_INDEX) that the port does"
    " not have, or an interface outside of the container's network; or the HCA refuses what the peer asks for, such as"
    " its MTU",
    (
        "queue_pair",
        "unreachable",
    ): "a GID index that is not the RoCE v2 address on every port; no route or ARP answer between the two"
    " addresses; HCAs of different rails that are not connected (then NCCL_CROSS_NIC=0)",
    ("fabric_manager", ""): "Fabric Manager was not running, failed, or was started again without a reset of the GPUs",
    ("handshake", ""): "another program speaks to the port, or connections of two interfaces in one subnet mix",
    ("cuda", "out of memory"): "the GPU's memory is full: the program's own tensors, another process on it, or too many"
    " communicators",
    ("cuda", "an illegal memory access was encountered"): "a kernel of the program, before NCCL met it",
    ("cuda", "unspecified launch failure"): "a kernel of the program, or the GPU (Xid)",
    ("cuda", "uncorrectable ECC error encountered"): "the GPU's memory: drain the node",
    ("cuda", "invalid device ordinal"): "a process has more ranks than GPUs that it can see (CUDA_VISIBLE_DEVICES)",
    ("cuda", "initialization error"): "CUDA was used before a fork, or the driver is not ready in this process",
    (
        "fabric_manager",
        "MNNVL",
    ): "the container or cgroup does not show an IMEX channel (/dev/nvidia-caps-imex-channels), or nvidia-imex does not"
    " run on all nodes of the NVLink domain",
    ("cuda", "operation not permitted"): "the container may not share memory between GPUs or nodes: no IMEX channel, or"
    " too few privileges",
    ("cuda", "named symbol not found"): "this NCCL has no kernels for this GPU, or for the CUDA that is loaded",
    ("cuda", "no kernel image is available for execution on the device"): "this NCCL has no kernels for this GPU",
    (
        "connect",
        "",
    ): "an interface that does not reach this node (NCCL_SOCKET_IFNAME on the peer), a firewall or no route"
    " between the nodes, or the peer had ended",
    (
        "connect",
        "refused",
    ): "the peer had ended, or the address is not its own on the network between the nodes (NCCL_SOCKET_IFNAME)",
    ("nvml", ""): "the container or cgroup shows the process fewer GPUs than NCCL looks for",
    (
        "driver_functions",
        "",
    ): "the driver's libcuda is older than the CUDA that this NCCL was built for, or a stub of it was loaded; NCCL may"
    " go on without what needs the functions",
    ("no_pci_device", ""): "a device in software, or a container that does not show the device in /sys",
    ("net_plugin", "OFI"): "no EFA device in this container or instance, libfabric and plugin of different releases, or"
    " nodes that may not reach each other (security group)",
    ("cuda", "no CUDA-capable device is detected"): "the container or cgroup shows no GPU",
}


def judge(job: Job) -> List[Finding]:
    """Findings of all failures; the first one is the cause of those that only follow from it."""
    if not job.failures:
        return []
    groups: Dict[Tuple[str, str], List[Reported]] = {}
    for one in job.failures:
        groups.setdefault((_kind(one), _code(one)), []).append(one)
    first = _first(job)
    cause: Optional[Finding] = None
    if first is not None:
        cause = _finding(job, groups[_kind(first), _code(first)], None, first)
    found = [cause] if cause is not None else []
    for (kind, code), reported in groups.items():
        if kind not in _CHECKS or (first is not None and (kind, code) == (_kind(first), _code(first))):
            continue
        down = first is not None and _kind(first) == "port" and kind == "completion"
        follows = cause if down or kind in _FOLLOWS or (kind, code) == ("completion", "5") else None
        found.append(_finding(job, reported, follows, None))
    if not found and groups:
        # Only exceptions and what NCCL says after another warning that is not here.
        reported = [one for group in groups.values() for one in group]
        have = "%s; the warning before it, which names the cause, is not in this log" % reported[0].failure.text
        fix = "run it again with NCCL_DEBUG=WARN at least, and give this command the logs of all ranks"
        found.append(WARNING.judge(job.name, "unknown", "no failure", have, "", fix, severity="critical"))
    return found


def _kind(one: Reported) -> str:
    return one.failure.kind


def _code(one: Reported) -> str:
    """Failures with the same are one finding."""
    if one.failure.kind in ("completion", "cuda", "port", "net_plugin", "fabric_manager"):
        return one.failure.code
    if one.failure.kind == "queue_pair":
        return "unreachable" if any(word in one.failure.code for word in _UNREACHABLE) else ""
    if one.failure.kind == "connect":
        return "refused" if "refused" in one.failure.text else ""
    return one.failure.text[:60] if one.failure.kind == "warning" else ""


def in_order(reported: Sequence[Reported]) -> Optional[List[Reported]]:
    """The failures as they came; None where no clock and no file tells."""
    if len({one.source for one in reported}) <= 1:
        return sorted(reported, key=lambda one: one.order)
    if len({one.clock for one in reported}) == 1 and all(one.time for one in reported):
        return sorted(reported, key=lambda one: (one.time, one.order))
    return None


def _first(job: Job) -> Optional[Reported]:
    """What came before what merely follows; None where it is not told."""
    roots = [
        one
        for one in job.failures
        if _kind(one) not in _FOLLOWS and not (_kind(one) == "completion" and _code(one) == "5")
    ]
    known = [one for one in roots if _kind(one) not in _MERELY]
    for reported in (known, [one for one in job.failures if _kind(one) == "exit"], roots):
        ordered = in_order(reported)
        if ordered:
            return ordered[0]
    return None


def _finding(job: Job, reported: List[Reported], cause: Optional[Finding], first: Optional[Reported]) -> Finding:
    kind, code = _kind(reported[0]), _code(reported[0])
    check = _CHECKS[kind]
    ordered = in_order(reported) or reported
    one = ordered[0]
    parts = [_what(one, code) if kind != "watchdog" else _gave_up(reported)]
    if first is not None and len(job.failures) > len(reported):
        parts[0] += " (the first failure of this log)"
    who = _who(job, ordered)
    if who:
        parts.append(who)
    where = _where(reported)
    if where:
        parts.append(where)
    if kind == "closed":
        parts.append(_went_away(job, reported))
    if kind == "connect":
        parts.append(_unreached(job, reported))
    if kind == "watchdog":
        parts.append(_behind(job))
    if kind == "no_interface":
        parts += ["NCCL_SOCKET_IFNAME=%s" % value for value in list(job.set_to("NCCL_SOCKET_IFNAME"))[:3]]
    if kind == "exit":
        parts.append("the first of %d to end" % len(reported) if len(reported) > 1 else "")
    possible = _POSSIBLE.get((kind, code)) or _POSSIBLE.get((kind, ""))
    if possible:
        parts.append("possible causes: %s" % possible)
    subject = "%s %s" % (job.name, kind) + (" %s" % code[:60] if code else "")
    have = "; ".join(part for part in parts if part)
    state = "unknown" if kind in _OPEN else "drift"
    severity = "minor" if kind in _OPEN and first is None else None
    why, fix = _OWN.get(kind, (None, None))
    return check.judge(subject, state, "none", have, _source(one), fix, because=cause, severity=severity, why=why)


def _what(one: Reported, code: str) -> str:
    if one.failure.kind == "completion":
        if not code.isdigit():
            return "the HCA reports of a queue: %s" % code
        return "completion with status %s, %s" % (code, STATUSES.get(int(code), "unknown status"))
    if one.failure.kind == "exit":
        return "a process ended with %s" % one.failure.code
    text = one.failure.text.partition("\n")[0]
    return text if len(text) <= 220 else text[:220] + "..."


def _gave_up(reported: Sequence[Reported]) -> str:
    """What the ranks wait for: of each its earliest collective, for those after it wait for that."""
    earliest: Dict[Optional[int], Tuple[int, str]] = {}
    for one in reported:
        number = int((one.failure.code.rpartition(" ")[2]) if " number " in one.failure.code else 0)
        rank = one.failure.rank
        earliest[rank] = min(earliest.get(rank, (number, one.failure.code)), (number, one.failure.code))
    waits: Dict[Tuple[int, str], List[int]] = {}
    for rank, wait in earliest.items():
        waits.setdefault(wait, []).extend([] if rank is None else [rank])
    text = "PyTorch's watchdog gave up on "
    if len(waits) == 1:
        return text + next(iter(waits))[1]
    said = [
        "%s (rank %s)" % (code, numbers(ranks)) if ranks else code for (_number, code), ranks in sorted(waits.items())
    ]
    text += "different collectives: %s" % "; ".join(said[:4])
    text += "; and %d more" % (len(said) - 4) if len(said) > 4 else ""
    return text + "; in one process group the lowest number is who is behind, and the log does not tell the groups"


def _who(job: Job, reported: Sequence[Reported]) -> str:
    said = []
    for one in reported:
        if one.process is not None:
            who = job.who(one.process)
        elif one.failure.rank is not None:
            who = "rank %d" % one.failure.rank + (" (%s)" % one.failure.peer if one.failure.kind == "exit" else "")
        elif one.failure.kind == "exit":
            who = one.failure.peer
        else:
            continue
        if who not in said:
            said.append(who)
    if not said:
        return "seen %d times" % len(reported) if len(reported) > 1 else ""
    if reported[0].failure.kind == "watchdog" and len(said) > 1:
        ranks = [one.failure.rank for one in reported if one.failure.rank is not None]
        text = "waiting: ranks %s" % numbers(ranks)
        if job.world is not None:
            rest = missing(ranks, job.world.ranks)
            text += "; not reported by %s" % rest if rest else ""
        return text
    if len(said) == 1:
        return "on %s" % said[0] + (", %d times" % len(reported) if len(reported) > 1 else "")
    return "first on %s, %d times on %d processes" % (said[0], len(reported), len(said))


def _behind(job: Job) -> str:
    """Who has enqueued least, in the group where that differs most: it never reached what the others wait for."""
    groups: Dict[str, Dict[int, int]] = {}
    for one in job.failures:
        if one.failure.kind == "progress" and one.failure.rank is not None:
            number, _of, group = one.failure.code.partition(" of ")
            groups.setdefault(group, {})[one.failure.rank] = int(number)
    apart = {group: said for group, said in groups.items() if len(set(said.values())) > 1}
    if not apart:
        return ""
    group, said = max(apart.items(), key=lambda pair: max(pair[1].values()) - min(pair[1].values()))
    least, most = min(said.values()), max(said.values())
    ranks = numbers(rank for rank, number in said.items() if number == least)
    return "in group %s rank %s enqueued %d collectives, others up to %d: look there first" % (
        group,
        ranks,
        least,
        most,
    )


def _where(reported: Sequence[Reported]) -> str:
    """The HCAs and peers that are in most of the reports: who reports is not who is to blame."""
    parts = []
    for what, values in (
        ("HCA", [one.failure.device for one in reported if one.failure.device]),
        ("peer", [one.failure.peer for one in reported if one.failure.peer and one.failure.kind == "completion"]),
    ):
        counted = Counter(values).most_common(3)
        if counted:
            parts.append(
                "%s %s" % (what, ", ".join("%s (%d)" % pair if len(values) > 1 else pair[0] for pair in counted))
            )
    return "; ".join(parts)


def _unreached(job: Job, reported: Sequence[Reported]) -> str:
    """Which addresses did not answer, and those among them that no other node can reach."""
    peers = _named(job, reported)
    text = "not reached: %s" % ", ".join(peers) if peers else "the address is not named"
    local = {peer for peer in (one.failure.peer for one in reported) if peer.lower().startswith(_LINK_LOCAL)}
    if local:
        text += "; %s is a link-local address, as a rule of an interface that is not meant for this" % names(local, 2)
    return text


def _named(job: Job, reported: Sequence[Reported]) -> List[str]:
    """The three peers that most reports name, with their hosts and how often."""
    addresses: Dict[str, str] = {}
    for process in job.processes:
        if process.bootstrap is not None:
            addresses.setdefault(process.bootstrap.address, process.host)
    peers = Counter(one.failure.peer for one in reported if one.failure.peer)
    named = []
    for peer, count in peers.most_common(3):
        host = addresses.get(peer, "")
        named.append("%s%s (%d)" % (peer, " = %s" % host if host and host != peer else "", count))
    return named


def _went_away(job: Job, reported: Sequence[Reported]) -> str:
    """Whom the victims name, and who says nothing."""
    named = _named(job, reported)
    victims = {one.process.key for one in job.failures if one.process is not None}
    silent = [one for one in job.processes if one.key not in victims and one.ended != "Destroy"]
    text = "the lost peers are %s" % ", ".join(named) if named else "the lost peer is not named"
    if silent and len(silent) < len(job.processes):
        text += "; no failure is reported by %s" % names([job.who(process) for process in silent], 4)
    return text


def _source(one: Reported) -> str:
    place = "line %d" % one.order
    if one.process is None:
        return place
    return "%s, %s" % (place, one.failure.text[:60])
