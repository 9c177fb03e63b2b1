# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of a log: the types, and one row for each event of NCCL. Their patterns are rows of nccl_events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

from ..core.check import Check
from . import checks
from .state import Process

# How far upstream an event is, the most upstream first. OUTSIDE: of hardware, the kernel or the scheduler, which no
# program causes.   CAUSE: a call or a check that failed.   NETWORK: data or a connection that did not arrive.
# EFFECT: a wait that ran out, or a peer that was lost.   WEAK: need not be a failure.   REPORT: of another failure.
# NOTICE: no failure.   An ORDER to end is upstream of what comes after it, and of nothing before it.
OUTSIDE, CAUSE, NETWORK, EFFECT, ORDER, WEAK, REPORT, NOTICE = range(8)


class Event(NamedTuple):
    """id: of the event.   check: of its finding.   tier: see above.   why, fix: "": those of the check.

    causes: usual causes, where no line shows one.   plain: the line itself states what is wrong.
    by_code: each code is a finding of its own.
    """

    id: str
    check: Check
    tier: int
    why: str = ""
    fix: str = ""
    causes: str = ""
    severity: str = ""
    state: str = "drift"
    plain: bool = False
    by_code: bool = False


class Detail(NamedTuple):
    """Meaning of an event with a code, a text or a place of the sources. The first that fits counts.

    code, text, place: patterns; "" fits all.   proven: ``causes`` is what the line itself states.   tier: instead.
    """

    event: str
    code: str = ""
    text: str = ""
    place: str = ""
    why: str = ""
    fix: str = ""
    causes: str = ""
    proven: bool = False
    tier: Optional[int] = None


@dataclass
class Occurrence:
    """An event in one line. order: number of the line, counted through all files.   source: number of the file.

    fields: groups of the pattern.   rank: of the job.   place: FILE:LINE of NCCL's sources.
    """

    event: Event
    order: int
    source: int
    text: str
    fields: Dict[str, Any]
    process: Optional[Process] = None
    device: Optional[int] = None
    rank: Optional[int] = None
    host: str = ""
    place: str = ""
    time: str = ""

    @property
    def code(self) -> str:
        return self.fields.get("code") or ""


@dataclass
class Group:
    """Occurrences of one event and code. first: the earliest.   kept: at most LIMIT of them.   ranks, hosts: of all."""

    LIMIT = 64

    event: Event
    code: str
    tier: int
    first: Occurrence
    detail: Detail
    count: int = 0
    kept: list[Occurrence] = field(default_factory=list)
    ranks: Set[int] = field(default_factory=set)
    hosts: Set[str] = field(default_factory=set)
    last: int = 0
    because: Optional[Group] = None
    # Confidence of ``because``: proven or likely.
    link: str = ""

    @property
    def name(self) -> str:
        return "%s %s" % (self.event.id, self.code) if self.code else self.event.id

    def take(self, one: Occurrence) -> None:
        """Add an occurrence."""
        self.count += 1
        self.last = max(self.last, one.order)
        if len(self.kept) < self.LIMIT:
            self.kept.append(one)
        if one.rank is not None and len(self.ranks) < 100_000:
            self.ranks.add(one.rank)
        if one.host and len(self.hosts) < 10_000:
            self.hosts.add(one.host)


# Sentences of several rows.
OLD_DRIVER = "the GPU's driver is older than the CUDA that NCCL or the program was built for"
NEWER_DRIVER = "take a newer driver on the node (`nvidia-smi` shows its newest CUDA), or an image for that CUDA"
CUDA_NOT_READY = "CUDA is not ready: the Fabric Manager is not running, not ready, or not of the driver's version"
FREE_PORT = "end the process that has the port (`ss -ltnp` there), or use another one (MASTER_PORT, --rdzv_endpoint)"
_EVENTS: Tuple[Event, ...] = (
    *(
        Event(name, checks.WARNING, NOTICE)
        for name in (
            "event",
            "port_active",
            "harmless",
            "driver_functions",
            "fallback",
            "gdrcopy",
            "confidential",
            "ras",
            "launcher",
            "progress",
            "waits",
            "success",
            "step",
            "noise",
        )
    ),
    # -- of NCCL and its plugins ---------------------------------------------------------------------------------------
    Event("limits", checks.LIMITS, CAUSE, by_code=True),
    Event("completion", checks.RETRIES, NETWORK, by_code=True),
    Event("libfabric", checks.NET_PLUGIN, NOTICE),
    Event("port", checks.PORT, OUTSIDE, by_code=True),
    Event(
        "hca_lost",
        checks.PORT,
        NETWORK,
        why="NCCL gave up on an HCA or a connection of it, and continues only where there is another one",
    ),
    Event(
        "queue_pair",
        checks.QUEUE_PAIR,
        CAUSE,
        causes="a GID index that the port does not have, an interface outside the container's network, or another MTU",
    ),
    Event(
        "memory_limit",
        checks.MEMORY_LIMIT,
        CAUSE,
        causes="the limit of locked memory (`ulimit -l`) in the job or container; or the HCA has no more queues",
    ),
    Event("registration", checks.VERBS, CAUSE, by_code=True),
    Event("verbs", checks.VERBS, CAUSE, by_code=True),
    Event(
        "hca_skipped",
        checks.VERBS,
        WEAK,
        severity="major",
        why="NCCL skips an RDMA device that it cannot open: this node may use one HCA less than its peers",
        fix="`ls -l /dev/infiniband` and `ibv_devinfo` in the job: each device needs its uverbs file there",
    ),
    Event("duplicate_gpu", checks.DUPLICATE, CAUSE, plain=True),
    Event(
        "compiled",
        checks.VERSIONS,
        CAUSE,
        plain=True,
        why="the program was compiled for another NCCL than the one that is loaded",
        fix="load the libnccl.so.2 that the program was compiled for (`ldd`, LD_LIBRARY_PATH), or compile it again",
    ),
    Event("version", checks.VERSIONS, CAUSE, plain=True),
    Event("no_interface", checks.BOOTSTRAP, CAUSE, plain=True, why="this process found no interface that it may use"),
    Event(
        "address",
        checks.CONNECTION,
        CAUSE,
        why="the address that a peer handed over for a TCP connection is not an IP address",
        fix="check that all ranks load one libnccl.so.2, and that sends and receives are within a group",
    ),
    Event(
        "name",
        checks.BOOTSTRAP,
        CAUSE,
        why="a host name, usually in NCCL_COMM_ID, does not resolve here",
        fix="`getent hosts NAME` in the job itself; give NCCL_COMM_ID an address, or take it out",
    ),
    Event("bootstrap", checks.BOOTSTRAP, CAUSE),
    Event("consequence", checks.WARNING, REPORT),
    Event("shared_memory", checks.SHARED_MEMORY, CAUSE),
    Event(
        "uds",
        checks.NO_WAY,
        NETWORK,
        why="ranks of a node hand each other memory by Unix sockets, and one failed",
        fix="containers of one node have to share the network namespace; NCCL_CUMEM_ENABLE=0 avoids these sockets",
    ),
    Event(
        "connect",
        checks.CONNECTION,
        NETWORK,
        why="a TCP connection was not made: this usually causes the connections closed after it",
        fix="`ip route get ADDRESS` and `ping` from the node that reports it; the peer's log; NCCL_SOCKET_IFNAME",
    ),
    Event(
        "closed",
        checks.CONNECTION,
        EFFECT,
        causes="the peer's process ended; less often a firewall or an idle timeout that cuts TCP connections",
    ),
    Event(
        "accept",
        checks.BOOTSTRAP,
        NETWORK,
        why="a rank could not accept a TCP connection: usually its own listening socket was closed before",
        fix="see what its process did before: another thread that ended NCCL, or a limit of files (`ulimit -n`)",
    ),
    Event(
        "device_api",
        checks.USAGE,
        CAUSE,
        why="something that NCCL's symmetric memory or its network from within kernels (GIN, RMA) needs is not there",
        fix="check what the program (DeepEP, for example) requires of HCA, driver and NCCL for GIN or RMA",
    ),
    Event("host_memory", checks.HOST_MEMORY, CAUSE),
    Event("nvlink_p2p", checks.NVLINK_P2P, CAUSE),
    Event(
        "peer_access",
        checks.NO_WAY,
        CAUSE,
        why="memory that GPUs or processes were to share was refused by CUDA",
        fix="`nvidia-smi topo -p2p r`; containers of one job need a common IPC namespace (--ipc=host) and all GPUs",
    ),
    Event(
        "fabric_manager",
        checks.FABRIC_MANAGER,
        CAUSE,
        by_code=True,
        causes="Fabric Manager was not running, failed, or was started again without a reset of the GPUs",
    ),
    Event("driver_old", checks.CUDA, CAUSE, plain=True, why=OLD_DRIVER, fix=NEWER_DRIVER),
    Event("cuda", checks.CUDA, CAUSE, by_code=True),
    Event(
        "nvml",
        checks.WARNING,
        CAUSE,
        state="unknown",
        why="the NVIDIA management library (NVML) was missing, or NCCL could not use its response",
        fix="`nvidia-smi` in the job itself; a container needs libnvidia-ml.so.1 of the node's driver",
    ),
    Event("driver", checks.CUDA, CAUSE),
    Event("mismatch", checks.MISMATCH, CAUSE),
    Event(
        "algorithm",
        checks.SETTING,
        CAUSE,
        plain=True,
        why="NCCL has no algorithm and protocol left: a wrong NCCL_ALGO or NCCL_PROTO, a tuner plugin, a size or type",
        fix="remove NCCL_ALGO, NCCL_PROTO and NCCL_TUNER_PLUGIN from the job and from /etc/nccl.conf",
    ),
    Event(
        "no_network",
        checks.SETTING,
        CAUSE,
        why="the requested network is not there: its plugin is missing or did not start",
        fix="read the NET/ lines before it; check NCCL_NET, NCCL_NET_PLUGIN, NCCL_IB_HCA and NCCL_SOCKET_IFNAME",
    ),
    Event(
        "setting",
        checks.SETTING,
        CAUSE,
        why="NCCL or a device does not accept what a variable sets",
        fix="take the variable that the line is about out of the job and out of /etc/nccl.conf",
    ),
    Event(
        "plugin_build",
        checks.NET_PLUGIN,
        CAUSE,
        why="the network plugin was built for another NCCL than the one that is loaded",
        fix="use the plugin of this release of NCCL; NCCL_NET_PLUGIN=none does without it",
    ),
    Event("no_transport", checks.NO_WAY, CAUSE),
    Event(
        "no_pci_device",
        checks.DEVICE,
        WEAK,
        causes="a device in software, or a container that does not show the device in /sys",
    ),
    Event(
        "link_layer",
        checks.NO_WAY,
        CAUSE,
        why="HCAs of two link layers, or other numbers of HCAs on two nodes, do not go together",
        fix="`rdma link` on both nodes; let NCCL_IB_HCA name HCAs of one link layer, as many on every node",
    ),
    Event(
        "merge",
        checks.SETTING,
        WEAK,
        why="NCCL could not use several ports or HCAs as one",
        fix="take NCCL_NET_FORCE_MERGE and NCCL_IB_MERGE_NICS out of the job; NCCL_NET_MERGE_LEVEL=LOC merges none",
    ),
    Event("handshake", checks.BOOTSTRAP, CAUSE),
    Event(
        "topology_file",
        checks.TOPOLOGY,
        CAUSE,
        why="a file with a topology or graph (NCCL_TOPO_FILE, NCCL_GRAPH_FILE) is unreadable, or does not fit the node",
        fix="`ls -l` of the file in the job itself; take the variable out, or get the file again from its provider",
    ),
    Event(
        "sharp",
        checks.NET_PLUGIN,
        WEAK,
        why="SHARP could not be set up: usually NCCL continues without it",
        fix="`systemctl status sharp_am` on the subnet manager's host and its log: trees that are taken, limits",
    ),
    Event(
        "topology",
        checks.TOPOLOGY,
        WEAK,
        causes="a virtual machine or container that hides a part of PCI or NVLink, or a GPU or HCA that is gone",
    ),
    Event(
        "value",
        checks.SETTING,
        NOTICE,
        severity="minor",
        why="NCCL does not accept a value of a variable or of the program, and uses another one",
        fix="take the variable out, or give it a value that is allowed: `busbar lint` lists them",
    ),
    Event("usage", checks.USAGE, CAUSE),
    Event(
        "internal",
        checks.WARNING,
        WEAK,
        state="unknown",
        why="NCCL's state is inconsistent: a bug of NCCL or a plugin, overwritten memory, or an earlier failure",
        fix="repair other failures of this log first; if there are none, try another NCCL, and report it",
    ),
    Event(
        "port_in_use",
        checks.STORE,
        CAUSE,
        plain=True,
        by_code=True,
        why="a process could not open its port, because another one has it",
        fix=FREE_PORT,
    ),
    Event("system", checks.WARNING, WEAK, state="unknown"),
    Event(
        "plugin_waits",
        checks.NET_PLUGIN,
        EFFECT,
        state="unknown",
        why="GCP's plugin (GPUDirect-TCPX or FasTrak) waits for data from a peer: the waiting rank is not the cause",
        fix="read the logs of the peers that it names, and of the plugin's receive daemon (tcpgpudmarxd, rxdm)",
    ),
    Event("net_plugin", checks.NET_PLUGIN, NETWORK, by_code=True),
    Event(
        "plugin_warning",
        checks.NET_PLUGIN,
        WEAK,
        severity="minor",
        state="unknown",
        why="the network plugin warns of something that this command has no rule for",
        fix="read it with the plugin's lines above it, and the peers' logs of that time",
    ),
    Event("warning", checks.WARNING, WEAK, state="unknown"),
)
BY_ID: Dict[str, Event] = {event.id: event for event in _EVENTS}
