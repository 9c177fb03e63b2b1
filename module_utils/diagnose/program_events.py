# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events in lines of others than NCCL: PyTorch, launchers, schedulers, the kernel, libraries, the program.

A new message is a row of SPECIFIC or GENERAL and, where it means something new, one of EVENTS. The first row of which a
mark is in the line, and whose pattern fits, decides.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

from ..core.number import whole
from . import nccl_events
from .checks import BOOTSTRAP, CUDA, EXIT, FABRIC_MANAGER, PORT, PROGRAM, STORE, WARNING, WATCHDOG
from .event import CAUSE, EFFECT, NETWORK, NOTICE, ORDER, OUTSIDE, REPORT, WEAK, Event
from .exit_codes import exit_code
from .nccl_events import CUDA_NOT_READY, FREE_PORT

# Characters of a line that are matched.
_LONGEST = 2048
_FIRST_WARNING = ": the first warning of NCCL, of any rank, has the cause"
EVENTS: Tuple[Event, ...] = (
    Event(
        "oom",
        EXIT,
        OUTSIDE,
        plain=True,
        why="the kernel or the scheduler killed a process because memory of the host, or of its cgroup, ran out",
        fix="raise the job's memory limit (cgroup, pod, Slurm --mem), or let it need less",
    ),
    Event(
        "time_limit",
        EXIT,
        OUTSIDE,
        why="the scheduler ended the job at its time limit",
        plain=True,
        fix="if it was still working, raise the limit (`scontrol show job`); if it hung, run `busbar hang HOST` next "
        "time",
    ),
    Event(
        "node_failure",
        EXIT,
        OUTSIDE,
        why="the scheduler or launcher lost a node",
        plain=True,
        fix="see whether the node named here is up: `sinfo -R`, its console, and BMC",
    ),
    Event(
        "xid",
        CUDA,
        OUTSIDE,
        by_code=True,
        why="the driver reports an error on a GPU (Xid)",
        fix="look the number up in NVIDIA's list of Xid errors; 48, 63, 64, 74, 79, 94, 95, 119 or 140: drain the "
        "node, and reset the GPU or replace it",
    ),
    Event(
        "sxid",
        FABRIC_MANAGER,
        OUTSIDE,
        by_code=True,
        why="an NVSwitch reports a fatal fault of itself or of a link",
        fix="drain the node; /var/log/fabricmanager.log and `nvidia-smi nvlink -e` name link and GPU; restart the "
        "node, or reset all GPUs and NVSwitches with the Fabric Manager stopped",
    ),
    Event(
        "nvswitch",
        PROGRAM,
        WEAK,
        severity="major",
        state="unknown",
        why="Fabric Manager reports an error of an NVSwitch or of a link of it",
        fix="`nvidia-smi nvlink -e` on the node; a non-fatal error that recurs on one link: plan a reset",
    ),
    Event(
        "gpu_lost",
        PROGRAM,
        OUTSIDE,
        why="the driver does not reach this GPU: its slot, power, heat or the GPU",
        fix="drain and restart the node; `dmesg -T | grep -i -E 'xid|nvrm'` shows what came before",
        state="unknown",
    ),
    Event(
        "gpu_reset",
        PROGRAM,
        OUTSIDE,
        why="the driver requires the GPU to be reset before its next use",
        fix="drain the node and reset the GPU (`nvidia-smi --gpu-reset`), or restart the node",
        state="unknown",
    ),
    Event(
        "link_down",
        PORT,
        OUTSIDE,
        state="unknown",
        why="the driver of the NIC reports that its link went down, or that its firmware failed",
    ),
    Event(
        "kernel",
        PROGRAM,
        OUTSIDE,
        why="the kernel reports that hardware failed, or that a CPU or a task hangs",
        fix="`dmesg -T` of that node around this time, `lspci -vv -s ADDRESS` of a device; drain it if it recurs",
        state="unknown",
    ),
    Event(
        "order",
        EXIT,
        ORDER,
        state="unknown",
        why="the job was told to end: by a user, the scheduler, or a launcher after another process failed",
        fix="see what failed before this line, else who or what ended it (`sacct -j JOB`, the shell, a script's limit)",
    ),
    Event("launcher", EXIT, NOTICE),
    Event(
        "cancelled",
        EXIT,
        ORDER,
        why="the job was cancelled: by a user, the scheduler, or another task's end",
        fix="see `sacct -j JOB`",
        state="unknown",
    ),
    Event("exit", EXIT, REPORT, by_code=True),
    Event("watchdog", WATCHDOG, EFFECT),
    Event(
        "signalled",
        WATCHDOG,
        EFFECT,
        why="a rank gave up the wait for a collective and had all others write their flight recorders",
        fix="read the log of the rank that signalled; then compare the dumps: `busbar diagnose --recorder DIR`",
    ),
    Event(
        "stuck",
        WATCHDOG,
        EFFECT,
        why="PyTorch's heartbeat monitor got no heartbeat from the watchdog's thread",
        fix="py-spy dump of all ranks while it hangs, and the flight recorder's dumps of all ranks "
        "(TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
        causes="another rank is gone, a GPU that hangs (Xid), or a deadlock in the program",
    ),
    Event("progress", WATCHDOG, NOTICE),
    Event(
        "store",
        STORE,
        EFFECT,
        causes="rank 0 ended first, or was not started; MASTER_ADDR or MASTER_PORT is "
        "another one on some nodes; a firewall; ranks that came too late",
    ),
    Event(
        "store_port",
        STORE,
        CAUSE,
        why="the process that is to open the port of PyTorch's store could not",
        fix=FREE_PORT,
        causes="another process on that host has the port, or MASTER_ADDR is not an address of that host",
    ),
    Event(
        "store_connect",
        STORE,
        NETWORK,
        why="a process got no TCP connection to PyTorch's store, which rank 0 opens: NCCL has not started there",
        fix="from the host that reports it: `nc -vz MASTER_ADDR MASTER_PORT`; refused: nothing listens (rank 0 has not "
        "started, or has ended); no answer: a firewall, a route, or the address of another network",
    ),
    Event(
        "store_wait",
        STORE,
        WEAK,
        severity="critical",
        why="PyTorch waits until all processes have come to make a process group: NCCL has not started",
        fix="see which processes have not come: their logs, and whether as many were started as in WORLD_SIZE",
    ),
    Event(
        "unresolved",
        BOOTSTRAP,
        CAUSE,
        by_code=True,
        plain=True,
        why="a host's name does not resolve where the line was written",
        fix="`getent hosts NAME` on that node, or in that pod (Kubernetes: its headless service has to "
        "be there before the launcher starts); give addresses, or add the name to DNS or /etc/hosts",
    ),
    *(
        Event(
            name,
            WARNING,
            REPORT,
            severity="critical",
            state="unknown",
            why=why + _FIRST_WARNING,
            fix="run it with NCCL_DEBUG=INFO on all ranks, and give this command all of their logs",
        )
        for name, why in (
            ("exception_nccl", "the program reports that a call of NCCL failed"),
            ("test", "nccl-tests ends where a call fails"),
        )
    ),
    Event(
        "exception_remote",
        PROGRAM,
        REPORT,
        why="an exception that reports another process's end, or a wait for "
        "one: the process that raised it is not the cause",
        state="unknown",
    ),
    Event(
        "exception",
        PROGRAM,
        CAUSE,
        why="a program failed by its own exception, not by the network or a node",
        fix="read the traceback of the rank that is named: its last call of the program's own code",
        plain=True,
    ),
    Event(
        "arguments",
        PROGRAM,
        CAUSE,
        why="a program did not accept its command line",
        fix="compare the command line with the program's --help",
        plain=True,
    ),
    Event(
        "import",
        PROGRAM,
        CAUSE,
        why="a library or module is missing, or does not fit",
        fix="run the import that failed in the job's own environment; `ldd` shows what a library lacks",
        plain=True,
    ),
    Event("assertion", PROGRAM, CAUSE, why="a check in the program or in PyTorch failed"),
    Event(
        "kernel_assert",
        CUDA,
        CAUSE,
        why="a check in a kernel of the program failed: an index or label that is out of range",
        fix="look at the data of that step on that rank; CUDA_LAUNCH_BLOCKING=1 gives the call",
        plain=True,
    ),
    Event(
        "triton",
        PROGRAM,
        CAUSE,
        why="CUDA failed at the launch of a Triton kernel of the program",
        fix="CUDA_LAUNCH_BLOCKING=1 shows which kernel fails first",
    ),
    Event("cuda_not_ready", PROGRAM, CAUSE, why=CUDA_NOT_READY, fix=FABRIC_MANAGER.fix, state="unknown"),
    Event(
        "imex",
        PROGRAM,
        CAUSE,
        state="unknown",
        why="memory that is shared over NVLink between nodes (IMEX, MNNVL) was not available",
        fix="`systemctl status nvidia-imex` and `nvidia-imex-ctl -N` on every node; `ls "
        "/dev/nvidia-caps-imex-channels` in the container; NCCL_MNNVL_ENABLE=0 continues without",
    ),
    Event(
        "library",
        PROGRAM,
        CAUSE,
        state="unknown",
        why="an error of another library than NCCL: of UCX, EFA, verbs, NVSHMEM or CUDA",
        fix="read its line: device and call; `ibv_devinfo -v`, `fi_info`, `nvidia-smi` and `dmesg -T` on the node",
    ),
    Event(
        "expert_wait",
        PROGRAM,
        EFFECT,
        state="unknown",
        why="expert parallelism waited for a peer in vain: the waiting rank is not the cause",
        fix="read the log of the peer that is named: what it did at that time, and whether its process runs",
    ),
    Event(
        "gloo",
        PROGRAM,
        EFFECT,
        why="Gloo (TCP between CPUs, not NCCL) waited for another rank or lost it",
        fix="read the log of the rank that is named or that ended first",
        state="unknown",
    ),
    Event(
        "coordination",
        PROGRAM,
        EFFECT,
        state="unknown",
        why="a coordination service (torchrun's rendezvous, JAX, TensorFlow; not NCCL): a process did not come, or its "
        "heartbeat stopped",
        fix="read the log of the process that it names, or that ended first",
    ),
    Event(
        "behind",
        WATCHDOG,
        NETWORK,
        why="the ranks that wait name those that have not joined their collective: what these did instead is the cause",
        fix="read the logs of the ranks named here at that time; while it hangs: `py-spy dump` of them, `busbar hang "
        "HOST`",
    ),
    Event(
        "stall",
        PROGRAM,
        EFFECT,
        why="some ranks or threads wait for others that have not come",
        fix="look at the ranks that are missing: their stack, another branch of the program",
        state="unknown",
    ),
    Event(
        "worker_lost",
        PROGRAM,
        REPORT,
        why="a launcher or serving engine lost a worker",
        state="unknown",
        fix="read the first exception above it, and the worker's own log (Ray: worker-*.err, raylet.out of that node)",
    ),
    Event(
        "evicted",
        EXIT,
        OUTSIDE,
        why="Kubernetes or the container's runtime ended a container or pod",
        fix="kubectl describe pod, and its log with --previous",
    ),
    Event(
        "mpi_transport",
        PROGRAM,
        CAUSE,
        why="MPI's own transport, by which the processes find each other, failed between the hosts: NCCL has not begun",
        fix="give all hosts the same network for MPI, or let it use TCP: mpirun --mca pml ob1 --mca btl tcp,self "
        "--mca btl_tcp_if_include INTERFACE (NCCL's own network is not changed by that)",
    ),
    Event(
        "remote_shell",
        PROGRAM,
        CAUSE,
        plain=True,
        why="the launcher could not log in to a host to start its daemon there: no process of the job has started",
        fix="from the launcher's host: `ssh HOST true`; refused: no sshd on that port yet (a pod that is not ready); "
        "permission or host key: `ssh-copy-id`, known_hosts",
    ),
    Event(
        "mpi_start",
        PROGRAM,
        CAUSE,
        why="the launcher and the program's MPI do not fit each other: no process reached NCCL",
        fix="start it with the mpirun of that MPI, or with srun --mpi=TYPE (`srun --mpi=list`) where Open MPI was "
        "built --with-pmix or --with-pmi",
        plain=True,
    ),
    Event("mpi_abort", EXIT, REPORT, why="a rank requested MPI to end all of the job", state="unknown"),
    Event(
        "permission",
        PROGRAM,
        WEAK,
        state="unknown",
        why="the process may not do this: a device, file or right that it, or its container, does not have",
    ),
    Event(
        "file_system",
        PROGRAM,
        WEAK,
        why="a file system is full; /dev/shm counts as one",
        fix="`df -h` of the path in the job itself",
        state="unknown",
    ),
    Event(
        "host_memory_program",
        PROGRAM,
        CAUSE,
        why="the program was refused memory of the host",
        fix="`free -h`, the memory limit of the job's cgroup or pod, `ulimit -v`",
        state="unknown",
    ),
    Event(
        "tcp",
        PROGRAM,
        NETWORK,
        why="a TCP connection failed or was lost: its reporter need not be the cause",
        fix="read the log of the other end",
        state="unknown",
    ),
    Event(
        "timeout",
        PROGRAM,
        EFFECT,
        why="something did not come in time: the line names the process that waited, not the cause",
        fix="read the log of what it waited for",
        state="unknown",
    ),
    *(Event(name, PROGRAM, NOTICE) for name in ("waits", "success", "step", "noise")),
    Event("error_line", PROGRAM, REPORT, state="unknown"),
)
# Marks, one of which a line has to contain, the event and the pattern; "": a mark is enough.
# fmt: off
SPECIFIC: Tuple[Tuple[str, str, str], ...] = (
    ("Exception ignored in|cannot be retrieved. err=|unused environment variable|No transition in |"
        "has NOT been destroyed before|destroy_process_group() was not called|corrupted/incomplete data|"
        "entire process down|abort timed out after|unbatched P2P op|OMP_NUM_THREADS|is deprecated|"
        "Stack trace of the failed|light recorder|light Recorder|lightRecorder|preparing to dump debug info|"
        "sent help message|Lmod has detected|module spider|module(s) are unknown|setlocale: |ttyname failed|"
        "Inappropriate ioctl|mca_base_component_repository|Observed flight", "noise", ""),
    ("oom|OOMKilled|emory: Killed process|Out Of Memory|NODE_OUT_OF_MEMORY|low on memory|memory pressure|memory limit",
        "oom", "oom[-_]kill|OOMKilled|[Oo]ut [Oo]f [Mm]emory: Killed process|Memory cgroup out of memory|"
        r"error: (?P<host>[\w.-]{1,120}): tasks? [\d,-]{1,200}: Out Of Memory|exit type: NODE_OUT_OF_MEMORY|"
        "(?:killed|terminated) .{0,60}(?:low on memory|memory pressure|memory limit)|[Ee]xceeded (?:job|"
        "step) memory limit"),
    ("DUE TO TIME LIMIT", "time_limit", "CANCELLED AT .{0,80}DUE TO TIME LIMIT"),
    ("ode failure on|NODE FAILURE|lost communication", "node_failure",
        r"[Nn]ode failure on(?: (?P<host>[\w.-]{1,120}))?|DUE TO NODE FAILURE|"
        "lost communication with a remote daemon"),
    ("NVRM: Xid", "xid",
        r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]{1,40})\): (?P<code>\d{1,4})(?:, pid=(?:(?P<pid>\d{1,10})|"
        "[^,]{0,30}))?(?:, name=(?P<name>[^,]{1,60}))?"),
    ("has fallen off", "xid", "NVRM: GPU (?P<device>[0-9a-fA-F:.]{7,20}): GPU has fallen off the bus"),
    ("SXid (", "sxid",
        r"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]{7,20})\): (?P<code>\d{1,6}), Fatal"),
    ("SXid (|NVSwitch", "nvswitch", r"nvidia-nvswitch\d{1,3}: SXid|NVSwitch (?:non-)?fatal error (?P<code>\d{1,6})"),
    ("fallen off the bus|GPU lost|GPU is lost|GPU_IS_LOST|device handle for GPU|NVRM: The NVIDIA GPU", "gpu_lost",
        r"fallen off the bus|\bGPU (?:is )?lost\b|GPU_IS_LOST|Unable to determine the device handle for GPU|"
        "NVRM: The NVIDIA GPU (?P<device>[0-9a-f:.]{7,20})"),
    ("NV_ERR_RESET_REQUIRED|GPU requires reset|GPU Reset Required|NV_ERR_GPU_IN_FULLCHIP_RESET", "gpu_reset", ""),
    ("nvidia-peermem nv_get_p2p_free_callback|NVRM: loading|NVRM: (PCI ID|NVRM: installed", "noise", ""),
    ("AER:|severity=|PCIe Bus Error", "noise", "AER: .{0,20}[Cc]orrected error|severity=Corrected"),
    ("AER:|severity=|PCIe Bus Error", "kernel",
        "AER: .{0,40}(?:[Uu]ncorrect|[Ff]atal)|severity=(?:Uncorrected|Fatal)|PCIe Bus Error"),
    ("Link |mlx5_core", "link_down", r"Link is Down|\bmlx\w{1,12}\b.{0,60}Link (?i:down)|"
        r"mlx5_core (?P<device>\S{4,20}) ?.{0,120}(?:[Ff]atal|[Ee]rror|[Ff]ail|timed? ?out|assert|"
        "health compromised)"),
    ("soft lockup|blocked for more than|hung_task|rcu_sched detected stalls|[Hardware Error]", "kernel", ""),
    ("CrashLoopBackOff|Evicted|Pod |ontainer ", "evicted", r"CrashLoopBackOff|\bEvicted\b|\bPod .{0,80}(?:[Ff]ailed|"
        "deleted|evicted)|[Cc]ontainer .{0,60}(?:died|killed)"),
    ("STEP|JOB", "cancelled", r"(?:STEP|JOB) \S{1,40} ON \S{1,200} CANCELLED AT"),
    ("closing signal|via signal|srun: |processes killed|job has been aborted|sigquit|forcefully|Killing subprocess",
        "launcher", r"[Pp]rocess \d{1,10} (?:closing|via) signal SIG\w{3,5}|via \S{1,20}, forcefully|"
        r"Killing subprocess \d|srun: (?:Job step aborted|Terminating|Force Terminat)|"
        r"processes killed \(some possibly|the job has been aborted|[Rr]eceived sigquit from"),
    ("death signal|got signal|eceived SIG|KeyboardInterrupt|srun: |Ctrl-C|CANCELLED AT", "order",
        r"Received \d{1,2} death signal|SignalException: Process \d{1,10} got signal: \d|[Rr]eceived SIG(?:TERM|INT|"
        r"HUP)\b|\bKeyboardInterrupt\b|srun: .{0,60}(?:sending Ctrl-C|forcing job termination)|"
        "[Ss]ending Ctrl-C to processes|Ctrl-C caught|CANCELLED AT"),
    ("Watchdog caught", "watchdog",
        r"Watchdog caught collective operation timeout: ?WorkNCCL\((?:SeqNum=(?P<seq>\d{1,20}), )?OpType=(?P<op>"
        r"\w{1,60})(?:, NumelIn=(?P<numel>\d{1,20}))?.{0,120}?(?:Timeout\(ms\)=(?P<limit>\d{1,12}))?(?=\)| ran|$)"),
    ("Timeout at NCCL work", "watchdog", r"Timeout at NCCL work: (?P<seq>\d{1,20})"),
    ("ast enqueued", "signalled", r"dump signal due to a collective timeout from +(?:rank (?P<by>\d{1,8})|"
        r"this local rank).{0,200}?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCC"
        r"L )?work: (?P<completed>-?\d{1,18})"),
    ("detected by watchdog", "signalled",
        r"detected by watchdog at work.{0,200}?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last co"
        r"mpleted (?:NCCL )?work: (?P<completed>-?\d{1,18})"),
    ("detected by watchdog", "signalled", "detected by watchdog at work"),
    ("ast enqueued", "progress",
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: (?P<completed"
        r">-?\d{1,18})"),
    ("watchdog got stuck for|Heartbeat monitor timed out|due to ProcessGroupNCCL watchdog hang", "stuck", ""),
    ("mismatch between collectives", "mismatch", r"Detected mismatch between collectives on ranks?\. .{0,600}"),
    ("socket has failed to|socket has timed out|connection to the C10d|DistStoreError|store->get|waiting for clients|"
        "on SocketImpl|RendezvousConnection|RendezvousTimeout|DistNetworkError", "store_port",
        "server socket has failed to (?:listen|bind) on any"),
    ("ddress already in use|ddress is already|EADDRINUSE|ddress in use", "port_in_use", r"(?:(?:\[::\]|"
        r"\d{1,3}(?:\.\d{1,3}){3}|localhost|\*|\bport|"
        '\\btcp)[:=, \'\\"]{1,3}(?P<code>\\d{2,5})\\b.{0,120})?(?:ddress (?:is )?already in use|EADDRINUSE|'
        "ddress in use)"),
    ("client socket has|TCP client failed", "store_connect",
        "client socket has (?:timed out|failed to connect)|TCP client failed to connect"),
    ("store->get|socket has|DistStoreError|waiting for clients|on SocketImpl|RendezvousConnection|RendezvousTimeout|"
        "DistNetworkError|connection to the C10d|wait timeout after|TCPStore", "store",
        r"store->get\('(?P<key>[^']{1,80})'\) got error|"
        r"DistStoreError|Timed out after \d{1,9} seconds waiting for clients|(?:recvValue|sendBytes|"
        "recvVector) failed on SocketImpl|RendezvousConnectionError|RendezvousTimeoutError|DistNetworkError|"
        r"connection to the C10d store has failed|wait timeout after \d{1,9}"),
    ("waitForInput|store based barrier", "store_wait",
        r"store based barrier.{0,200}?rank: (?P<rank>\d{1,8}).{0,80}?world_size=(?P<world>\d{1,8}), (?:worker_count|"
        r"num_workers_joined)=(?P<count>\d{1,8})"),
    ("waitForInput", "noise", ""),
    ("resolve hostname|getaddrinfo|ame resolution|not known", "unresolved",
        r"[Cc]ould not resolve hostname (?P<code>[\w.-]{1,200})|getaddrinfo.{0,20}\(?(?:host|name|"
        'for)?[:= ]{1,3}[\'\\"]?(?P<code2>[A-Za-z][\\w.-]{2,200}\\.[\\w.-]{1,80})|'
        r"(?P<code3>[\w.-]{1,120}): Name or service not known|[Tt]emporary failure in name resolution"),
    (" QP|ibv_modify_qp|ibv_create_ah", "queue_pair", r"(?:(?:modify|transition\w{0,5}|moving|change) (?:the )?QP\b|"
        "ibv_modify_qp|ibv_create_ah).{0,200}(?:[Ff]ail|[Ee]rror)|[Ee]rror.{0,80}(?:modify|"
        r"transition\w{0,5}) (?:the )?QP\b|non-zero status: \d{1,4} ibv_modify_qp"),
    ("UCX", "noise", "UCX +WARN +|UCX +(?:INFO|DEBUG|TRACE)"),
    ("UCX|ucp_|ucx_", "library", r"UCX +(?:ERROR|FATAL|DIAG)|\buc[px]_\w{1,60}.{0,60}failed"),
    ("libfabric:", "libfabric", r"libfabric:\d+:.{1,200}<(?:warn|critical|alert)> ?(?P<text>.{0,200})"),
    ("SHArP|SAT tree|Begin job id|sharp_", "sharp", "SHArP .{0,200}(?:rror|fail)|SAT tree.{0,100}fail|"
        r"Begin job id: ?\d{1,9} failed|\bsharp_\w{1,60} (?:failed|error)"),
    ("OutOfMemoryError|CUDA out of memory|RESOURCE_EXHAUSTED", "cuda",
        r"(?<!RayTaskError\()OutOfMemoryError|CUDA (?P<code>out of memory)|RESOURCE_EXHAUSTED"),
    ("Unexpected bus error encountered", "shared_memory", ""),
    ("CUDA error|uda failure|CUDA_ERROR_", "cuda", "(?:CUDA error|[Cc]uda failure)(?:: |"
        r" (?:\S{1,200} )?')(?P<code>CUDA driver version is insufficient for CUDA runtime version|"
        "(?!unhandled cuda)[a-z][a-z ,-]{5,100}(?:ECC|CUDA)?[a-z -]{0,60})|"
        "CUDA_ERROR_[A-Z_]{3,40}: (?P<code2>[a-z][a-z ,-]{5,100})"),
    ("Test CUDA failure", "cuda",
        r"(?:(?P<host>[\w.-]{1,120}): )?Test CUDA failure \S{1,120}(?: '(?P<code>[^']{1,200})')?"),
    ("Test NCCL failure", "test", r"(?:(?P<host>[\w.-]{1,120}): )?Test NCCL failure"),
    ("Test failure", "noise", ""),
    ("Assertion `", "kernel_assert",
        r"block: \[\d{1,9},\d{1,9},\d{1,9}\], thread: \[\d{1,4},\d{1,4},\d{1,4}\] Assertion"),
    ("algorithm/protocol", "algorithm", r"[nN]o algorithm/protocol (?:nor \w{1,20} )?available"),
    ("Duplicate GPU", "duplicate_gpu",
        r"Duplicate GPU detected ?: rank \d{1,8} and rank \d{1,8} both on CUDA device (?P<code>\w{1,20})"),
    ("NCCL error|NCCL Error|NCCL operation|NCCL_ERROR_|ncclResult=|ncclUnhandledCuda|ncclSystem|ncclInternal|"
        "ncclRemote|ncclInvalid|communicator was aborted", "exception_nccl", r"NCCL [eE]rror\b|ncclResult=\d|"
        r"nccl(?:UnhandledCuda|System|Internal|Remote)Error\b|ncclInvalid(?:Usage|Argument)\b|"
        r"NCCL operation \w{1,60}.{0,200} failed|NCCL_ERROR_[A-Z_]{3,40}|NCCL communicator was aborted"),
    ("fabric manager|Fabric Manager|fabricmanager|not yet initialized", "cuda_not_ready",
        "system not yet initialized|[Ff]abric ?[Mm]anager.{0,80}(?:not|never|fail|error|inactive|stopped)"),
    ("IMEX|xport ref|mport re|memory reference", "imex", r"\bIMEX\b.{0,80}(?:fail|error|not)|(?:[Ee]xport ref|"
        "[Ii]mport re(?:sponse|quest)).{0,80}(?:fail|error|timed)|[Ff]ailed.{0,40}(?:export ref|(?:new|"
        "allocate) memory reference|import re(?:sponse|quest))"),
    ("efa", "library", r"\befa_\d{1,3}\b.{0,120}(?:[Ff]ail|err)|\befa\b.{0,60}(?:error|fail)"),
    ("nvshmem|NVSHMEM|non-zero status|transport/ib", "library", "(?:NVSHMEM|nvshmem).{0,120}(?:[Ee]rror|ERROR|"
        r"[Ff]ail|abort|[Uu]nable|non-zero)|\bnon-zero status: \d{1,4}|transport/(?:ibrc|ibgda|ibdevx|libfabric|"
        "ucx)/"),
    ("EP timeout|DeepEP|deep_ep", "expert_wait",
        "DeepEP.{0,40}(?:timeout|error)|NCCL EP timeout|deep_ep.{0,120}(?:timeout|error|fail)"),
    ("gloo|Gloo", "gloo", r"gloo/\S{1,120}\.cc:\d{1,6}\]|\bGloo\b.{0,80}(?:fail|error|timeout)"),
    ("arrier|oordination|heartbeat|unexpectedly disconnected", "coordination", "[Bb]arrier timed out|"
        "Barrier.{0,80}(?:failed|timed out)|coordination service|CoordinationService|"
        r"coordination_service\w{0,20}\.cc|task heartbeat|unexpectedly disconnected"),
    ("but didn't join|but didn't finish", "behind",
        r"\[(?P<behind>\d[\d, ]{0,1900})\] (?:finished collective #\d{1,9}, but didn't join|joined but didn't finish)"),
    ("lagging ranks", "behind", r"ranks \[(?P<behind>\d[\d, ]{0,1900})\] are the lagging ranks"),
    ("missing ranks: ", "behind", r"\[missing ranks: (?P<behind>\d[\d, ]{0,1900})\]"),
    ("Horovod", "behind", r"^(?P<behind>\d{1,8}): \[[^\]]{0,400}Horovod"),
    ("endezvous|This thread has been waiting|Termination timeout", "stall", "rendezvous.{0,120}(?:may be stuck|"
        "waiting for all participants)|This thread has been waiting for|threads to join the rendezvous|"
        "Termination timeout for"),
    ("tall|issing ranks", "stall", "stall_inspector|[Ss]talled (?:ops|ranks)|[Mm]issing ranks"),
    ("atchdog timeout|Scheduler", "stall",
        r"Watchdog timeout \(self\.watchdog|Scheduler (?:hit|or detokenizer).{0,40}watchdog"),
    ("Triton Error", "triton", r"Triton Error \[CUDA\]: .{1,120}"),
    ("CUBLAS|CUDNN|cuBLAS|cuDNN", "library", r"CUBLAS_STATUS_(?!SUCCESS)\w+|CUDNN_STATUS_(?!SUCCESS)\w+|cuDNN error"),
    ("INTERNAL ASSERT", "assertion", "INTERNAL ASSERT FAILED at .{0,160}(?:c10d|distributed)/"),
    ("error: ", "exit", r"error: (?P<host>[\w.-]{1,120}): (?P<tasks>tasks? [\d,\-]{1,200}): (?P<code>.{1,80})$"),
    ("exited on|process rank", "exit",
        r"process rank (?P<rank>\d{1,8}) with PID \d{1,10} on node (?P<host>[\w.-]{1,120}) exited on (?P<code>sig"
        "nal .{1,40})"),
    ("Worker exit type", "exit",
        r"Worker IP address: (?P<host>[\w.:-]{1,120}) .{0,80}?Worker PID: (?P<pid>\d{1,10}) Worker exit type: (?P"
        "<code>SYSTEM_ERROR|USER_ERROR)"),
    ("exits with return code", "exit",
        r"(?:--local[-_]rank[= ](?P<local>\d{1,5})\b.{0,1500})?exits with return code = (?P<code>-?[1-9]\d{0,4})"),
    ("exitcode:", "exit",
        r"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"),
    ("received by PID", "exit", r"(?P<code>[Ss]ignal \d{1,2} \(SIG[A-Z]{2,6}\)) received by PID (?P<pid>\d{1,10})"),
    ("terminated with", "exit",
        r"[Pp]rocess \d{1,10} terminated with (?P<code>signal SIG[A-Z]{2,6}|exit code -?\d{1,5})"),
    ("TERMINATION OF ONE|EXIT CODE:", "exit",
        r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES|=\s{1,8}EXIT CODE: (?P<code>\d{1,3})"),
    ("MPI_ABORT was invoked|MPI_Abort", "mpi_abort", ""),
    ("worker died|ActorDied|ActorUnavailable|actor |RayActorError|WorkerCrashed|RayletDied|NodeDied|owner has died|"
        "ngine core|EngineDead|EngineCore|orker proc|WorkerProc|ackground loop|ChildFailedError|"
        "first observed failure|ABORT!!!|has noticed|has detected", "worker_lost", "A worker died or was killed|"
        "ActorDied|ActorUnavailable|actor (?:is )?(?:died|dead)|RayActorError|WorkerCrashed|LocalRayletDied|"
        "NodeDied|owner has died|[Ee]ngine core .{0,40}(?:failed|died)|EngineDead|EngineCore (?:encountered|failed)|"
        r"[Ww]orker proc \S{0,60} ?died|WorkerProc (?:initialization )?failed|[Bb]ackground loop has errored|"
        r"ChildFailedError|Root Cause \(first observed|ABORT!!! Out of all|(?:mpirun|mpiexec|prterun|"
        "orterun) (?:has )?(?:detected|noticed)"),
    ("signal|Signal", "exit", r"Caught signal (?P<signal>\d{1,2})\b|"
        r"Signal: [A-Za-z ]{3,40} \((?P<signal2>\d{1,2})\)|"
        r"[Rr]eceived signal (?:SIG\w{3,6} ?)?\(?(?P<signal3>\d{1,2})\b|(?:exited on|killed by|"
        r"terminated by) signal:? ?\(?(?P<signal4>\d{1,2})\b|(?:exited on|killed by|received|terminated (?:by|"
        r"with)) signal (?P<name>SIG(?!TRAP|INT|TERM)[A-Z]{3,5})\b|[Ss]ignal (?P<signal5>\d{1,2}) \(SIG[A-Z]{3,5}\)"),
    ("Fatal Python error", "exit",
        "Fatal Python error: (?P<word>Segmentation fault|Bus error|Aborted|Illegal instruction)"),
    ("egmentation fault|us error|borted|illed|nstruction", "exit", r"\b(?P<word>Segmentation fault|Bus error|"
        r"Aborted|Killed|Illegal instruction|Floating point exception)(?:\s{1,8}\(core dumped\)|\s{0,40}$|"
        r"(?<=\d Killed)\s{3,40}\S|(?<=\d Aborted)\s{3,40}\S)"),
    ("Inferior", "exit", r"\[Inferior \d{1,6} \(process \d{1,10}\) exited with code (?P<octal>0[0-7]{1,3})\]"),
    ("slurmstepd", "exit", r"slurmstepd: error: \*\*\* .{0,80}(?P<word>[Kk]illed)"),
    ("exitcode|xit code|xit Code|return code|exitCode|xited with|xit status", "exit",
        r"exitcode *: ?(?P<code>-?\d{1,3})\b|[Ee]xit ?[Cc]ode:? {0,8}(?P<code2>-?[1-9]\d{0,2})\b|"
        r"(?:exit(?:ed with)?(?: exit)?(?: status| code) |return code = )(?P<code3>-?[1-9]\d{0,2})\b|"
        'exitCode\\"?: (?P<code4>-?[1-9]\\d{0,2})\\b'),
    ("error: unrecognized arguments|error: the following arguments|error: argument |error: ambiguous option",
        "arguments", ""),
    ("shared object file|undefined symbol|not found|ImportError|ModuleNotFoundError", "import",
        "^(?!.{0,400}(?:[Ww]arn|WARN|optional)).{0,400}(?:cannot open shared object file|undefined symbol: |"
        r"version `\S{1,60}' not found|ImportError: |ModuleNotFoundError: )"),
    ("what():|terminate called", "exception_remote", "terminate called after throwing an instance of '?c10::Dist|"
        r"\bwhat\(\):.{0,200}(?:watchdog|NCCL|imed out|imeout|closed by)"),
    ("is aborting the MPI job|ismatched address format", "mpi_transport",
        "(?:MTL|BTL|PML) is aborting the MPI job|[Mm]ismatched address format"),
    ("ssh: connect to host|ermission denied (publickey|Host key verification failed", "remote_shell",
        r"ssh: connect to host(?: (?P<host>[\w.:-]{1,120}))?|[Pp]ermission denied \(publickey|"
        "Host key verification failed"),
    ("OMPI was not built|PMI2_Init|PMIX ERROR|Invalid MPI plugin|MPI_INIT has failed|MPI_Init", "mpi_start",
        "OMPI was not built with SLURM|PMI2_Init failed|PMIX ERROR: (?:UNREACHABLE|NOT-FOUND|ERROR|OUT-OF-RESOURCE)|"
        r"Invalid MPI plugin name|MPI_INIT has failed|\*\*\* An error occurred in MPI_Init"),
    ("ast health check: ", "noise", r"\b[Ll]ast health check: "),
    ("did not become ready", "worker_lost", r"did not become ready (?:within|in|after) [\d.]{1,9}"),
    ("RayTaskError(", "exception_remote", r"RayTaskError\(\w"),
    ("Keep-alive key", "coordination", "Keep-alive key .{1,200} is not renewed"),
    ("died from signal", "exit", r"rank (?P<rank>\d{1,8}) died from (?P<code>signal \d{1,2})"),
    ("Segfault encountered", "exit", "(?P<word>Segfault) encountered"),
    ("terminate called", "exit", "(?P<word>terminate called) after throwing"),
    ("what():", "exception", r"\bwhat\(\):\s{0,8}\S"),
    ("Check failed|ssertion|panicked at|CHECK failed", "assertion",
        r"\bCheck failed: |Assertion .{1,200} failed|assertion failed|panicked at|CHECK failed"),
    ("ibv_|rdma_|mlx5_", "library", r"\b(?:ibv|rdma|mlx5)_\w{1,60}.{0,60}(?:failed|error|denied)"),
)
# Rows for lines that are no exception of Python either.
GENERAL: Tuple[Tuple[str, str, str], ...] = (
    ("ermission denied|not permitted", "permission", "[Pp]ermission denied|[Oo]peration not permitted"),
    ("No space left", "file_system", "No space left on device"),
    ("oo many open files", "limits", "(?P<code>[Tt]oo many open files)"),
    ("bad_alloc|allocate memory", "host_memory_program", "[Cc]annot allocate memory|std::bad_alloc"),
    ("raining|uccess|PASSED|SUCCESS", "success", r"\b(?:completed|finished|done|initiali[sz]ed) successfully\b|"
        r"\b[Ss]uccessfully (?:completed|finished|trained)\b|\b[Tt]raining (?:is )?(?:complete|finished|done)"),
    ("step|Step|iter|epoch|Epoch", "step",
        r"\b(?:global_?)?(?:[Ss]tep|[Ii]ter(?:ation)?|[Ee]poch)s?[ :=/#\[]{1,3}\d{1,9}\b"),
    ("aiting for|waiting", "waits",
        "[Ww]aiting for .{0,60}(?:rank|worker|process|node|replica|actor|GPU|engine|peer)|still waiting"),
    ("onnection |roken pipe|route to host|is unreachable|Host is down", "tcp", "[Cc]onnection (?:refused|reset|"
        "closed|timed out|aborted)|[Bb]roken pipe|[Nn]o route to host|[Nn]etwork is unreachable|[Hh]ost is down"),
    ("imed out|imeout|DEADLINE_EXCEEDED", "timeout", r"\b[Tt]imed out\b|\bTimeout(?:Error|Exception|"
        r"Expired)?\b.{0,3}[:(]|\b[Tt]imeout (?:after|waiting|exceeded)|DEADLINE_EXCEEDED"),
    ("ERROR|FATAL|CRITICAL|rror:", "error_line", r"\b(?:ERROR|FATAL|CRITICAL)\b|\b[Ee]rror: "),
)
# fmt: on
BY_ID: Dict[str, Event] = {**nccl_events.BY_ID, **{event.id: event for event in EVENTS}}
_TRACEBACK = "Traceback (most recent call last)"
_SPECIFIC, _GENERAL = (
    tuple((tuple(marks.split("|")), name, re.compile(pattern)) for marks, name, pattern in table)
    for table in (SPECIFIC, GENERAL)
)
_PROGRESS = tuple(row for row in _GENERAL if row[1] in ("success", "step"))
# Marks of lines that report something: an excerpt of a log keeps them.
MARKS = tuple(
    {
        mark
        for marks, name, _pattern in (*_SPECIFIC, *_GENERAL)
        if name not in ("noise", "step", "waits")
        for mark in marks
    }
    | {_TRACEBACK, "CCL version", "Last error:"}
)
# What stands before the text of a line: labels of launchers, loggers and collectors.
LABEL = re.compile(
    r"(?:\[(?:rank|default)? ?\d{1,8}\]:? ?|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:? ?|\([^()]{1,80}\) ?|\d{1,7}: |"
    r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\[\]]{1,80}\] |\S{20,40} std(?:out|err) F |"
    r"\d{1,8}\.\ds\s\d{1,8}\s|> ){0,4}"
)
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Timeout|Exit|Failure|Died))"
    r"(?:\([\w-]{0,20}\))?(?::|$) ?(?P<text>\S.{0,600})?"
)
_IN_TRACEBACK = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}): (?P<text>\S.{0,600})")
# An exception that only reports another process's end, or a wait for one.
_REMOTE = re.compile(
    r"closed by (?:remote )?peer|reset by peer|[Bb]roken ?[Pp]ipe|recvValue failed|sendBytes failed|EOFError|"
    r"IncompleteRead|ChildFailedError|SignalException|CalledProcessError|returned non-zero exit|ActorDied|"
    r"ActorUnavailable|RayActor|WorkerCrashed|RayTaskError|EngineDead|[Ee]ngine ?[Cc]ore|WorkerProc|"
    r"communicator was aborted|NCCL [Ee]rror|\bnccl[A-Z]|DistBackendError|DistNetworkError|DistStoreError|"
    r"[Tt]imed ?out|Timeout|Cancelled|SystemExit|[Tt]erminated|\bdied\b|Rendezvous|[Ss]tore\b|"
    r"[Cc]onnection (?:refused|reset|closed|aborted|error)|Connection\w{0,20}Error|ProcessRaisedException|"
    r"ProcessExited|[Gg]loo|[Pp]rocess group watchdog|MPI_ERRORS_ARE_FATAL|TerminatedWorkerError|raylet|[Hh]eartbeat|"
    r"has been shut down"
)
_INFO = re.compile(
    r"(?:^|[\s\[(:|])(?:INFO|DEBUG|NOTICE|WARN(?:ING)?|[Ww]arning)\b|\[W\d{0,4}[ .]|[Rr]etry|[Tt]rying again"
)
_RANK = re.compile(r"\[(?:[^\]]{0,80} )?Rank (\d{1,8})\]|^\s{0,8}\[(\d{1,8})\] is setting up")
_JOB_RANK = re.compile(r"\[rank(\d{1,8})\]|\[\d{1,7},(\d{1,7})\]<std|^(\d{1,7}): ")
# torchrun labels by the rank within the node, which is the job's where there is one node.
_LOCAL_RANK = re.compile(r"\[default(\d{1,4})\]:")
# A process group that is not of all ranks: its rank 0 is any rank of the job.
_PART = re.compile(r"\[PG [^\]]{0,60}\((?!default_pg)[^)\]]{1,80}\) ?Rank \d")


def classify(line: str, in_traceback: bool = False) -> Optional[Tuple[Event, Dict[str, Any]]]:
    """Return the event of a line and its fields; None where the line reports nothing.

    in_traceback: the line may end a traceback of Python.
    """
    line = line[:_LONGEST]
    found = _match(_SPECIFIC, line)
    if found is not None:
        return found
    raised = exception(line, in_traceback)
    if raised is not None:
        return raised
    return _match(_PROGRESS if _INFO.search(line[:200]) else _GENERAL, line)


def _match(table: Any, line: str) -> Optional[Tuple[Event, Dict[str, Any]]]:
    for marks, name, pattern in table:
        for mark in marks:
            if mark in line:
                break
        else:
            continue
        match = pattern.search(line)
        if match is None:
            continue
        fields = {key: value for key, value in match.groupdict().items() if value is not None}
        if name == "exit":
            fields["code"] = exit_code(fields)
            if not fields["code"]:
                return None
        else:
            fields["code"] = next((fields[key] for key in ("code", "code2", "code3") if key in fields), "").strip()
        if name == "xid" and not fields["code"]:
            fields["code"] = "79"
        if name == "mismatch":
            fields["code"] = "PyTorch"
        if name == "cuda" and not fields["code"] and "emory" in line:
            fields["code"] = "out of memory"
        if name == "cuda" and ("NVLink SHARP" in line or "ulticast" in line):
            return BY_ID["fabric_manager"], {**fields, "code": "NVLS"}
        return BY_ID[name], fields
    return None


def exception(line: str, in_traceback: bool) -> Optional[Tuple[Event, Dict[str, Any]]]:
    """Return the event of the line with which Python reports an exception that nothing caught."""
    label = LABEL.match(line)
    text = line[label.end() :] if label else line
    match = _EXCEPTION.match(text) or (_IN_TRACEBACK.match(text) if in_traceback else None)
    if match is None:
        return None
    fields = {"type": match.group("type"), "code": "", "label": line[: len(line) - len(text)]}
    return BY_ID["exception_remote" if _REMOTE.search(text) else "exception"], fields


def rank_of(line: str) -> Optional[int]:
    """Return the rank of the job that a line names as its writer's."""
    match = _JOB_RANK.search(line[:400]) or (None if _PART.search(line[:600]) else _RANK.search(line[:600]))
    match = match or _LOCAL_RANK.search(line[:400])
    return whole(next(group for group in match.groups() if group is not None)) if match else None
