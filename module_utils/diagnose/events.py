# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of a log: the types, and one row for each event. Its patterns are rows of nccl_events and program_events."""

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
EVENTS: Tuple[Event, ...] = (
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
    # -- of programs, launchers, schedulers and the kernel -------------------------------------------------------------
    Event(
        "oom",
        checks.EXIT,
        OUTSIDE,
        plain=True,
        why="the kernel or the scheduler killed a process because memory of the host, or of its cgroup, ran out",
        fix="raise the job's memory limit (cgroup, pod, Slurm --mem), or let it need less",
    ),
    Event(
        "time_limit",
        checks.EXIT,
        OUTSIDE,
        plain=True,
        why="the scheduler ended the job at its time limit",
        fix="if it was still working, raise the limit; if it hung, run `busbar hang HOST` next time",
    ),
    Event(
        "node_failure",
        checks.EXIT,
        OUTSIDE,
        plain=True,
        why="the scheduler or launcher lost a node",
        fix="see whether the node named here is up: `sinfo -R`, its console, and BMC",
    ),
    Event(
        "xid",
        checks.CUDA,
        OUTSIDE,
        by_code=True,
        why="the driver reports an error on a GPU (Xid)",
        fix="see NVIDIA's list of Xid errors; 48, 63, 64, 74, 79, 94, 95, 119, 140: drain the node, reset the GPU",
    ),
    Event(
        "sxid",
        checks.FABRIC_MANAGER,
        OUTSIDE,
        by_code=True,
        why="an NVSwitch reports a fatal fault of itself or of a link",
        fix="drain the node; `nvidia-smi nvlink -e` names link and GPU; restart it, or reset all GPUs and NVSwitches",
    ),
    Event(
        "nvswitch",
        checks.PROGRAM,
        WEAK,
        severity="major",
        state="unknown",
        why="Fabric Manager reports an error of an NVSwitch or of a link of it",
        fix="`nvidia-smi nvlink -e` on the node; a non-fatal error that recurs on one link: plan a reset",
    ),
    Event(
        "gpu_lost",
        checks.PROGRAM,
        OUTSIDE,
        state="unknown",
        why="the driver does not reach this GPU: its slot, power, heat or the GPU",
        fix="drain and restart the node; `dmesg -T | grep -i -E 'xid|nvrm'` shows what came before",
    ),
    Event(
        "gpu_reset",
        checks.PROGRAM,
        OUTSIDE,
        state="unknown",
        why="the driver requires the GPU to be reset before its next use",
        fix="drain the node and reset the GPU (`nvidia-smi --gpu-reset`), or restart the node",
    ),
    Event(
        "link_down",
        checks.PORT,
        OUTSIDE,
        state="unknown",
        why="the driver of the NIC reports that its link went down, or that its firmware failed",
    ),
    Event(
        "kernel",
        checks.PROGRAM,
        OUTSIDE,
        state="unknown",
        why="the kernel reports that hardware failed, or that a CPU or a task hangs",
        fix="`dmesg -T` of that node around this time, `lspci -vv -s ADDRESS` of a device; drain it if it recurs",
    ),
    Event(
        "order",
        checks.EXIT,
        ORDER,
        state="unknown",
        why="the job was told to end: by a user, the scheduler, or a launcher after another process failed",
        fix="see what failed before this line, else who or what ended it (`sacct -j JOB`, the shell, a script)",
    ),
    Event(
        "cancelled",
        checks.EXIT,
        ORDER,
        state="unknown",
        why="the job was cancelled: by a user, the scheduler, or another task's end",
        fix="see `sacct -j JOB`",
    ),
    Event("exit", checks.EXIT, REPORT, by_code=True),
    Event("watchdog", checks.WATCHDOG, EFFECT),
    Event(
        "signalled",
        checks.WATCHDOG,
        EFFECT,
        why="a rank gave up the wait for a collective and had all others write their flight recorders",
        fix="read the log of the rank that signalled; then compare the dumps: `busbar diagnose --recorder DIR`",
    ),
    Event(
        "stuck",
        checks.WATCHDOG,
        EFFECT,
        why="PyTorch's heartbeat monitor got no heartbeat from the watchdog's thread",
        fix="py-spy dump of all ranks while it hangs, or their flight recorders (TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
        causes="another rank is gone, a GPU that hangs (Xid), or a deadlock in the program",
    ),
    Event(
        "store",
        checks.STORE,
        EFFECT,
        causes="rank 0 ended first, or was not started; another MASTER_ADDR or MASTER_PORT; a firewall; late ranks",
    ),
    Event(
        "store_port",
        checks.STORE,
        CAUSE,
        why="the process that is to open the port of PyTorch's store could not",
        fix=FREE_PORT,
        causes="another process on that host has the port, or MASTER_ADDR is not an address of that host",
    ),
    Event(
        "store_connect",
        checks.STORE,
        NETWORK,
        why="a process got no TCP connection to PyTorch's store, which rank 0 opens: NCCL has not started there",
        fix="`nc -vz MASTER_ADDR MASTER_PORT` there; refused: rank 0 does not listen; no answer: firewall or route",
    ),
    Event(
        "store_wait",
        checks.STORE,
        WEAK,
        severity="critical",
        why="PyTorch waits until all processes have come to make a process group: NCCL has not started",
        fix="see which processes have not come: their logs, and whether as many were started as in WORLD_SIZE",
    ),
    Event(
        "unresolved",
        checks.BOOTSTRAP,
        CAUSE,
        plain=True,
        by_code=True,
        why="a host's name does not resolve where the line was written",
        fix="`getent hosts NAME` there (Kubernetes: the headless service has to be there first); or give addresses",
    ),
    Event(
        "exception_nccl",
        checks.WARNING,
        REPORT,
        severity="critical",
        state="unknown",
        why="the program reports that a call of NCCL failed: the first warning of NCCL, of any rank, has the cause",
        fix="run it with NCCL_DEBUG=INFO on all ranks, and give this command all of their logs",
    ),
    Event(
        "test",
        checks.WARNING,
        REPORT,
        severity="critical",
        state="unknown",
        why="nccl-tests ends where a call fails: the first warning of NCCL, of any rank, has the cause",
        fix="run it with NCCL_DEBUG=INFO on all ranks, and give this command all of their logs",
    ),
    Event(
        "exception_remote",
        checks.PROGRAM,
        REPORT,
        state="unknown",
        why="an exception that reports another process's end: the process that raised it is not the cause",
    ),
    Event(
        "exception",
        checks.PROGRAM,
        CAUSE,
        plain=True,
        why="a program failed by its own exception, not by the network or a node",
        fix="read the traceback of the rank that is named: its last call of the program's own code",
    ),
    Event(
        "arguments",
        checks.PROGRAM,
        CAUSE,
        plain=True,
        why="a program did not accept its command line",
        fix="compare the command line with the program's --help",
    ),
    Event(
        "import",
        checks.PROGRAM,
        CAUSE,
        plain=True,
        why="a library or module is missing, or does not fit",
        fix="run the import that failed in the job's own environment; `ldd` shows what a library lacks",
    ),
    Event("assertion", checks.PROGRAM, CAUSE, why="a check in the program or in PyTorch failed"),
    Event(
        "kernel_assert",
        checks.CUDA,
        CAUSE,
        plain=True,
        why="a check in a kernel of the program failed: an index or label that is out of range",
        fix="look at the data of that step on that rank; CUDA_LAUNCH_BLOCKING=1 gives the call",
    ),
    Event(
        "triton",
        checks.PROGRAM,
        CAUSE,
        why="CUDA failed at the launch of a Triton kernel of the program",
        fix="CUDA_LAUNCH_BLOCKING=1 shows which kernel fails first",
    ),
    Event("cuda_not_ready", checks.PROGRAM, CAUSE, state="unknown", why=CUDA_NOT_READY, fix=checks.FABRIC_MANAGER.fix),
    Event(
        "imex",
        checks.PROGRAM,
        CAUSE,
        state="unknown",
        why="memory that is shared over NVLink between nodes (IMEX, MNNVL) was not available",
        fix="`systemctl status nvidia-imex` on every node; `ls /dev/nvidia-caps-imex-channels` in the container",
    ),
    Event(
        "library",
        checks.PROGRAM,
        CAUSE,
        state="unknown",
        why="an error of another library than NCCL: of UCX, EFA, verbs, NVSHMEM or CUDA",
        fix="read its line: device and call; `ibv_devinfo -v`, `fi_info`, `nvidia-smi` and `dmesg -T` on the node",
    ),
    Event(
        "expert_wait",
        checks.PROGRAM,
        EFFECT,
        state="unknown",
        why="expert parallelism waited for a peer in vain: the waiting rank is not the cause",
        fix="read the log of the peer that is named: what it did at that time, and whether its process runs",
    ),
    Event(
        "gloo",
        checks.PROGRAM,
        EFFECT,
        state="unknown",
        why="Gloo (TCP between CPUs, not NCCL) waited for another rank or lost it",
        fix="read the log of the rank that is named or that ended first",
    ),
    Event(
        "coordination",
        checks.PROGRAM,
        EFFECT,
        state="unknown",
        why="torchrun's rendezvous, JAX or TensorFlow (not NCCL): a process did not come, or its heartbeat stopped",
        fix="read the log of the process that it names, or that ended first",
    ),
    Event(
        "behind",
        checks.WATCHDOG,
        NETWORK,
        why="the ranks that wait name those that have not joined their collective: what these did instead is the cause",
        fix="read the logs of the ranks named here; while it hangs: `py-spy dump` of them, `busbar hang HOST`",
    ),
    Event(
        "stall",
        checks.PROGRAM,
        EFFECT,
        state="unknown",
        why="some ranks or threads wait for others that have not come",
        fix="look at the ranks that are missing: their stack, another branch of the program",
    ),
    Event(
        "worker_lost",
        checks.PROGRAM,
        REPORT,
        state="unknown",
        why="a launcher or serving engine lost a worker",
        fix="read the first exception above it, and the worker's own log (Ray: worker-*.err, raylet.out of that node)",
    ),
    Event(
        "evicted",
        checks.EXIT,
        OUTSIDE,
        why="Kubernetes or the container's runtime ended a container or pod",
        fix="kubectl describe pod, and its log with --previous",
    ),
    Event(
        "mpi_transport",
        checks.PROGRAM,
        CAUSE,
        why="MPI's own transport, by which the processes find each other, failed between the hosts: NCCL has not begun",
        fix="give all hosts one network for MPI, or TCP: mpirun --mca pml ob1 --mca btl tcp,self",
    ),
    Event(
        "remote_shell",
        checks.PROGRAM,
        CAUSE,
        plain=True,
        why="the launcher could not log in to a host to start its daemon there: no process of the job has started",
        fix="`ssh HOST true` from the launcher's host; refused: no sshd yet; permission: `ssh-copy-id`, known_hosts",
    ),
    Event(
        "mpi_start",
        checks.PROGRAM,
        CAUSE,
        plain=True,
        why="the launcher and the program's MPI do not fit each other: no process reached NCCL",
        fix="start it with the mpirun of that MPI, or with the srun --mpi=TYPE that it was built for",
    ),
    Event("mpi_abort", checks.EXIT, REPORT, state="unknown", why="a rank requested MPI to end all of the job"),
    Event(
        "permission",
        checks.PROGRAM,
        WEAK,
        state="unknown",
        why="the process may not do this: a device, file or right that it, or its container, does not have",
    ),
    Event(
        "file_system",
        checks.PROGRAM,
        WEAK,
        state="unknown",
        why="a file system is full; /dev/shm counts as one",
        fix="`df -h` of the path in the job itself",
    ),
    Event(
        "host_memory_program",
        checks.PROGRAM,
        CAUSE,
        state="unknown",
        why="the program was refused memory of the host",
        fix="`free -h`, the memory limit of the job's cgroup or pod, `ulimit -v`",
    ),
    Event(
        "tcp",
        checks.PROGRAM,
        NETWORK,
        state="unknown",
        why="a TCP connection failed or was lost: its reporter need not be the cause",
        fix="read the log of the other end",
    ),
    Event(
        "timeout",
        checks.PROGRAM,
        EFFECT,
        state="unknown",
        why="something did not come in time: the line names the process that waited, not the cause",
        fix="read the log of what it waited for",
    ),
    Event("error_line", checks.PROGRAM, REPORT, state="unknown"),
)
BY_ID: Dict[str, Event] = {event.id: event for event in EVENTS}
