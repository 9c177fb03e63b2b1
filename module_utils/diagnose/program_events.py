# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events in lines of others than NCCL: PyTorch, launchers, schedulers, the kernel, libraries, the program.

A new message is a row of SPECIFIC or GENERAL and, where it means something new, one of event_table.py or
outside_events.py. The first row decides of which a mark is in the line, and whose pattern fits.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

from ..core.number import whole
from .events import BY_ID, Event
from .outside_events import OUTSIDE_NCCL

_BY_ID = {**BY_ID, **OUTSIDE_NCCL}

# Characters of a line that are matched.
_LONGEST = 2048
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
    # Of Paddle's launcher.
    ("LAUNCH INFO|LAUNCH ERROR|LAUNCH WARNING", "launcher", ""),
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
    # PyTorch's program that compares flight recorders.
    ("Culprit rank", "mismatch", r"Culprit rank (?P<rank>\d{1,8}); Error type: \w{1,60}"),
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
    ("remote rails", "net_plugin", r"NET/(?P<code>OFI) Unexpected number of remote rails"),
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
    ("but didn't join|but didn't finish|lagging ranks", "behind", r"\[(?P<behind>\d[\d, ]{0,1900})\] (?:finished "
        r"collective #\d{1,9}, but didn't join|joined but didn't finish|are the lagging ranks)"),
    ("missing ranks: ", "behind", r"\[missing ranks: (?P<behind>\d[\d, ]{0,1900})\]"),
    ("Horovod", "behind", r"^(?P<behind>\d{1,8}): \[[^\]]{0,400}Horovod"),
    ("endezvous|This thread has been waiting|Termination timeout", "stall", "rendezvous.{0,120}(?:may be stuck|"
        "waiting for all participants)|This thread has been waiting for|threads to join the rendezvous|"
        "Termination timeout for"),
    ("other ranks that didn't finish", "stall", ""),
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
    ("signal|Signal", "exit", r"(?:Caught signal |Signal: [A-Za-z ]{3,40} \((?=\d{1,2}\))|[Rr]eceived signal "
        r"(?:SIG\w{3,6} ?)?\(?|(?:exited on|killed by|terminated by) signal:? ?\(?|[Ss]ignal (?=\d{1,2} \(SIG[A-Z]{3,5}"
        r"\)))(?P<signal>\d{1,2})\b|(?:exited on|killed by|received|terminated (?:by|with)) signal (?P<name>SIG"
        r"(?!TRAP|INT|TERM)[A-Z]{3,5})\b"),
    ("Fatal Python error", "exit",
        "Fatal Python error: (?P<word>Segmentation fault|Bus error|Aborted|Illegal instruction)"),
    ("egmentation fault|us error|borted|illed|nstruction", "exit", r"\b(?P<word>Segmentation fault|Bus error|"
        r"Aborted|Killed|Illegal instruction|Floating point exception)(?:\s{1,8}\(core dumped\)|\s{0,40}$|"
        r"(?<=\d Killed)\s{3,40}\S|(?<=\d Aborted)\s{3,40}\S)"),
    ("Inferior", "exit", r"\[Inferior \d{1,6} \(process \d{1,10}\) exited with code (?P<octal>0[0-7]{1,3})\]"),
    ("slurmstepd", "exit", r"slurmstepd: error: \*\*\* .{0,80}(?P<word>[Kk]illed)"),
    ("exitcode|xit code|xit Code|return code|exitCode|xited with|xit status", "exit", r"(?:exitcode *: ?|(?:[Ee]xit ?"
        r"[Cc]ode:? {0,8}|exit(?:ed with)?(?: exit)?(?: status| code) |return code = |exitCode\"?: )(?=-?[1-9]))"
        r"(?P<code>-?\d{1,3})\b"),
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
_TRACEBACK = "Traceback (most recent call last)"
_SPECIFIC, _GENERAL = (
    tuple((tuple(marks.split("|")), name, re.compile(pattern)) for marks, name, pattern in table)
    for table in (SPECIFIC, GENERAL)
)
_PROGRESS = tuple(row for row in _GENERAL if row[1] in ("success", "step"))
# Marks of lines that report something: an excerpt of a log keeps them.
_REPORTS = (row[0] for row in (*_SPECIFIC, *_GENERAL) if row[1] not in ("noise", "step", "waits"))
MARKS = tuple({_TRACEBACK, "CCL version", "Last error:"}.union(*_REPORTS))
# Labels of launchers and loggers before the text of a line. pdsh writes a host: lower case, with a digit, as no
# exception is named.
_LABEL = re.compile(
    r"(?:\[(?:rank|default)? ?\d{1,8}\]:? ?|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:? ?|\([^()]{1,80}\) ?|\d{1,7}: |"
    r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\[\]]{1,80}\] |"
    r"\[?[EFWI]\d{3,4} [\d:.]{8,18} (?:\d{1,10} )?[\w/.-]{1,200}:\d{1,6}\] ?|"
    r"[a-z][\w-]{0,60}\d(?:\.[\w.-]{1,80})?: |\d{1,8}\.\ds\s\d{1,8}\s|> ){0,4}"
)
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Timeout|Exit|Failure|Died)"
    r"(?:\([\w-]{0,20}\))?(?::|$)"
)
_IN_TRACEBACK = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}: \S")
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

# Numbers of Linux, which need not be those of the machine that reads the log.
_SIGNAL_WORDS = {
    1: "HUP",
    2: "INT|Interrupt",
    3: "QUIT",
    4: "ILL|Illegal instruction",
    6: "ABRT|Aborted|terminate called",
    7: "BUS|Bus error",
    8: "FPE|Floating point exception",
    9: "KILL|Killed|killed",
    11: "SEGV|Segmentation fault|Segfault",
    13: "PIPE",
    15: "TERM|Terminated",
}
_SIGNALS = {word: number for number, words in _SIGNAL_WORDS.items() for word in words.split("|")}
_SIGNAL_NAME = re.compile(r"(?:SIG|\b)(%s)\b" % "|".join(_SIGNALS))
_NUMBER = re.compile(r"-?\d{1,5}")
# Codes of events whose lines have none.
_CODES = {"xid": "79", "mismatch": "PyTorch"}


def classify(line: str, in_traceback: bool = False) -> Optional[Tuple[Event, Dict[str, Any]]]:
    """Return the event of a line and its fields; None where the line reports nothing.

    in_traceback: the line may end a traceback of Python.
    """
    line = line[:_LONGEST]
    found = _match(_SPECIFIC, line)
    if found is not None:
        return found
    _label, text = split_label(line)
    # Python reports an exception that nothing caught.
    if _EXCEPTION.match(text) or (in_traceback and _IN_TRACEBACK.match(text)):
        return _BY_ID["exception_remote" if _REMOTE.search(text) else "exception"], {"code": ""}
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
        code = next((fields[key] for key in ("code", "code2", "code3") if key in fields), "").strip()
        code = exit_code(fields) if name == "exit" else code or _CODES.get(name, "")
        if name == "exit" and not code:
            return None
        if name == "cuda" and not code and "emory" in line:
            code = "out of memory"
        if name == "cuda" and ("NVLink SHARP" in line or "ulticast" in line):
            name, code = "fabric_manager", "NVLS"
        return _BY_ID[name], {**fields, "code": code}
    return None


def split_label(line: str) -> Tuple[str, str]:
    """Return the label of a line, and its text."""
    label = _LABEL.match(line)
    return (label.group(), line[label.end() :]) if label else ("", line)


def exit_code(fields: Dict[str, Any]) -> str:
    """Return ``signal 9`` or ``exit code 1`` of the groups of a launcher's line; "" of exit code 0."""
    words = str(fields.get("code") or fields.get("word") or fields.get("name") or "")
    digits = str(int(fields["octal"], 8)) if "octal" in fields else fields.get("signal", words)
    match, named = _NUMBER.search(digits), _SIGNAL_NAME.search(words)
    if match is not None:
        number = int(match.group())
        is_signal = "ignal" in words or "signal" in fields
        signal = number if is_signal else -number if number < 0 else number - 128
        return "signal %d" % signal if 0 < signal < 32 else "exit code %d" % number if number else ""
    return "signal %d" % _SIGNALS[named.group(1)] if named is not None else words[:40]


def rank_of(line: str) -> Optional[int]:
    """Return the rank of the job that a line names as its writer's."""
    match = _JOB_RANK.search(line[:400]) or (None if _PART.search(line[:600]) else _RANK.search(line[:600]))
    match = match or _LOCAL_RANK.search(line[:400])
    return whole(next(group for group in match.groups() if group is not None)) if match else None
