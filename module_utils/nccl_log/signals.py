# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Classes of lines by which programs of any kind report a failure, a death, a wait or a success: tables of our words.

A class says what such a line is, and what it may come from. It concludes nothing: a line of a program is quoted, and
what it means for the job is told with "may" and "commonly" where the line does not prove it.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Pattern, Tuple

from .signal_marks import MARKS
from .signal_noise import command, noise
from .signal_numbers import NUMBERS, SIGNALS, meaning

# Kinds, worst first. Who is told to end, or ends others, has not failed by that: an order is never a cause.
DEATH, ERROR, ORDER, WAITS, WARNING, SUCCESS = "death", "error", "order", "waits", "warning", "success"
KINDS = (DEATH, ERROR, ORDER, WAITS, WARNING, SUCCESS)

# A line that PyTorch itself calls a warning: it is quoted, and no failure by itself.
MERELY = re.compile(r"\[W(?:\d{3,4} \d\d:\d\d:\d\d\S* \d*)? ?[\w/.-]{1,80}\.(?:cpp|h|cc):\d{1,6}\]")
# What is tried again is no end of anything.
AGAIN = re.compile(
    r"\b(?:(?:[Tt]ry(?:ing)? again|[Rr]etry(?:ing)?) (?:after|in) \d|will (?:be retried|retry|try again))"
)
# A name of an exception in Python, at the begin of what it says.
EXCEPTION = re.compile(
    r"(?:^|[\s:\])|])(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Timeout|Exit|Failure)|"
    r"Fatal Python error)(?:\([\w-]{0,20}\))?: ?(?P<text>\S.*)?$"
)


class Class(NamedTuple):
    """kind: one of KINDS.   about: what such a line is, and what it may come from; "" where the line says it."""

    kind: str
    about: str


# What a line has, its class. The first that fits decides. SIGNAL and CODE are numbers of the tables above. What is
# changed here changes signal_marks.MARKS: tests/unit/test_nccl_log_marks.py prints them.
ROWS: Tuple[Tuple[str, str, str], ...] = (
    # Tools around the job.
    (
        WARNING,
        r"\bLmod has detected|cannot be loaded as requested|\bmodule spider\b|ModuleCmd_\w+|"
        r"Unable to locate (?:a modulefile|the variable file)|following module\(s\) are unknown|"
        r"module: (?:command )?not found|setlocale: |[Cc]annot (?:change|set) (?:LC_|locale)|ttyname failed|"
        r"Inappropriate ioctl for device|mca_base_component_repository_open",
        "a word of a tool around the job (modules, the shell, the launcher's own files): no cause of what fails in"
        " another process",
    ),
    # Orders.
    (
        ORDER,
        r"Received (?P<signal>\d{1,2}) death signal",
        "torchrun itself was ended from outside, and ends its workers: it did not fail itself",
    ),
    (
        ORDER,
        r"SignalException: Process \d+ got signal: (?P<signal>\d{1,2})",
        "torchrun itself was ended from outside: it did not fail itself",
    ),
    (
        ORDER,
        r"(?:Sending|Closing) process \d+ (?:closing|via) signal (?P<name>SIG\w{3,5})|"
        r"shutdown process \d+ via \S{1,20}, forcefully|Killing subprocess \d+",
        "the launcher ends this process after another one failed, or on request: it did not fail itself",
    ),
    (ORDER, r"(?:main process )?[Rr]eceived (?P<name>SIG(?:TERM|INT|HUP))\b", "ended from outside"),
    (ORDER, r"\bKeyboardInterrupt\b", "a user, or a program for one, has ended it (SIGINT, as by Ctrl-C)"),
    (
        ORDER,
        r"srun: (?:Job step aborted|Terminating|Force Terminat)|srun: (?:launch/\S{1,40}: |error: )?.{0,60}"
        r"(?:sending Ctrl-C|forcing job termination)",
        "Slurm ends the tasks that are left after the first one ended, or on request",
    ),
    (
        ORDER,
        r"[Ss]ending Ctrl-C to processes|Ctrl-C caught\b",
        "MPICH's mpiexec got Ctrl-C (SIGINT), from a user or a script's limit of time, and passes it on",
    ),
    (
        ORDER,
        r"(?:STEP|JOB|TASK) .{1,200} CANCELLED AT (?!.{0,60}DUE TO)",
        "Slurm's record that a job or step is ended: by a user, or after a task failed; what failed stands before it,"
        " if anything did",
    ),
    (ORDER, r"total processes killed \(some possibly", "mpirun has ended the others"),
    (
        ORDER,
        r"Per user-direction, the job has been aborted|Primary job +terminated normally",
        "mpirun ends the others after the first one ended",
    ),
    (WARNING, r"Exception ignored in", "an exception that Python ignores, as of a clean-up: no failure"),
    (
        ORDER,
        r"[Rr]eceived sigquit from a child proces",
        "SGLang's parent process: a child has failed, and ended it; the child's own lines before show why",
    ),
    (
        DEATH,
        r"ABORT!!! Out of all \d+ trainers",
        "Paddle's launcher found these trainers ended and ends the others: their own logs (log/workerlog.N) show why",
    ),
    # Deaths by a signal.
    (DEATH, r"Caught signal (?P<signal>\d{1,2})\b", "a crash handler (UCX, Open MPI) reports the end of a process"),
    (
        DEATH,
        r"Signal: [A-Za-z ]{3,40} \((?P<signal>\d{1,2})\)",
        "Open MPI's crash handler reports the end of a process",
    ),
    (DEATH, r"[Rr]eceived signal (?:SIG\w{3,6} ?)?\(?(?P<signal>\d{1,2})\b", "the end of a process by a signal"),
    (DEATH, r"(?:exited on|killed by|terminated by|got|by) signal:? ?\(?(?P<signal>\d{1,2})\b", "the end of a process"),
    (DEATH, r"(?:exited on|killed by|terminated (?:by|with)) signal (?P<name>SIG[A-Z]{3,5})\b", "the end of a process"),
    (DEATH, r"[Ss]ignal (?P<signal>\d{1,2}) \(SIG[A-Z]{3,5}\)", "the end of a process"),
    (
        DEATH,
        r"Fatal Python error: (?P<word>Segmentation fault|Bus error|Aborted|Illegal instruction)",
        "Python's crash handler reports the end of a process",
    ),
    (
        DEATH,
        r"\b(?P<word>Segmentation fault|Bus error|Aborted|Killed|Illegal instruction|Floating point exception)"
        r"(?:\s+\(core dumped\)|\s*$|(?<=\d Killed)\s{3,}\S|(?<=\d Aborted)\s{3,}\S)",
        "a shell or launcher reports the end of a process",
    ),
    (
        DEATH,
        r"\*\*\* (?:Aborted|SIG[A-Z]{3,5}) .{0,60}(?:at \d+|received by PID)",
        "glog's crash handler reports the end of a process; the stack below it shows where",
    ),
    # Memory of the host.
    (
        DEATH,
        r"OOMKilled|oom[-_]kill|[Oo]ut of memory: Killed process|Memory cgroup out of memory",
        "the kernel ended a process for memory of the host or of its cgroup, pod or job",
    ),
    (
        DEATH,
        r"(?:killed|kills?|terminated) .{0,60}(?:low on memory|memory pressure|memory limit|out of memory)",
        "a process was ended for memory of the host: the node, pod or job had none left",
    ),
    (DEATH, r"[Ee]xceeded (?:job|step) memory limit", "the scheduler ended it at the job's memory limit"),
    # Ray.
    (
        DEATH,
        r"A worker died or was killed",
        "Ray lost a worker process and does not know why: its own log (worker-*.err, worker-*.out and raylet.out of"
        " that node) shows why; commonly a crash, out of memory of the host, or ended from outside",
    ),
    (
        DEATH,
        r"ActorDied|ActorUnavailable|actor (?:is )?(?:died|dead)|RayActorError|WorkerCrashed|LocalRayletDied|NodeDied|"
        r"owner has died|worker (?:has )?died|node .{0,60}(?:marked dead|has died)",
        "Ray reports that an actor, worker or node is gone: its own log shows how it ended; others that wait for it"
        " fail later",
    ),
    # Kubernetes and containers.
    (
        DEATH,
        r"CrashLoopBackOff|\bEvicted\b|\bPod .{0,80}(?:[Ff]ailed|deleted|evicted)|[Cc]ontainer .{0,60}(?:died|killed)|"
        r"[Tt]erminated.{0,40}[Rr]eason: ?\w+",
        "Kubernetes or the container's runtime reports the end of a container or pod:"
        " kubectl describe pod, and its log with --previous",
    ),
    # Slurm.
    (DEATH, r"CANCELLED AT .{0,60}DUE TO (?:TIME LIMIT|NODE FAILURE|PREEMPTION)", ""),
    (
        DEATH,
        r"(?:srun|slurmstepd|slurmd): error: .{0,200}(?:\*\*\* |task|[Ee]xit|[Kk]ill|abort|[Nn]ode|oom)",
        "Slurm reports the end of a task or step; whether it ends the others then is the job's setting"
        " (srun --kill-on-bad-exit)",
    ),
    # MPI launchers.
    (
        DEATH,
        r"MPI_ABORT was invoked|MPI_Abort",
        "a rank requested MPI to end all of the job: its own lines before show why",
    ),
    (
        DEATH,
        r"(?:mpirun|mpiexec|prterun|prte|orterun) (?:has )?(?:detected|noticed|has exited)",
        "Open MPI ends the job because a process ended: the block below names the first one to do so",
    ),
    (
        DEATH,
        r"(?:ORTE|PRTE|PMIx?|daemon).{0,60}(?:lost communication|unexpectedly failed|has lost|died)",
        "the launcher lost a node or its daemon there",
    ),
    (
        DEATH,
        r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES|=\s+EXIT CODE: (?P<code>\d{1,3})",
        "MPICH's launcher reports the end of a process",
    ),
    # torchrun and others that start processes.
    (
        DEATH,
        r"\[Inferior \d+ \(process \d+\) exited with code (?P<octal>0[0-7]{1,3})\]",
        "a debugger reports the end of a process: gdb and cuda-gdb print exit codes in octal",
    ),
    (
        DEATH,
        r"exitcode *: ?(?P<code>-?\d{1,3})\b|[Ee]xit ?[Cc]ode:? {0,8}(?P<other>-?[1-9]\d{0,2})\b|"
        r"(?:exit(?:ed with)?(?: exit)?(?: status| code) |return code = )(?P<third>-?[1-9]\d{0,2})\b|"
        r"exitCode\"?: (?P<fourth>-?[1-9]\d{0,2})\b",
        "a process ended with this exit code",
    ),
    (
        DEATH,
        r"ChildFailedError|Root Cause \(first observed failure\)",
        "torchrun ends the others after the first failure that it observes, which need not be the first: its block"
        " names rank, host and time of that one",
    ),
    (
        DEATH,
        r"^\s{0,20}[\w./-]{1,200} FAILED\s{0,20}$",
        "usually the title of torchrun's list of observed failures: not a cause",
    ),
    (
        DEATH,
        r"[Ee]ngine core .{0,40}(?:failed|died)|EngineDead|EngineCore (?:encountered|failed)|[Ww]orker proc \S* ?died|"
        r"WorkerProc (?:initialization )?failed|[Bb]ackground loop has errored",
        "the serving engine ends because one of its workers did: usually the first exception above it is that worker's",
    ),
    # C++.
    (
        DEATH,
        r"terminate called (?:after throwing an instance of|without an active|recursively)",
        "C++ ends the process for an uncaught exception",
    ),
    (
        ERROR,
        r"INTERNAL ASSERT FAILED at .{0,160}(?:c10d|distributed)/",
        "a check of PyTorch itself failed, before it called NCCL: usually how the program makes and uses process"
        " groups (device_id of init_process_group, eager initialisation), or a bug of that release; no network",
    ),
    (ERROR, r"\bwhat\(\):\s*\S", "the text of the exception by which a C++ program ends"),
    (DEATH, r"Unhandled exception", "the process ends for an uncaught exception"),
    (
        ERROR,
        r"\bCheck failed: |Assertion .{1,200} failed|assertion failed|panicked at|CHECK failed",
        "a check in the program failed, and usually its process ends there",
    ),
    # Gloo, c10d, stores.
    (
        WAITS,
        r"store based barrier.{0,200}worker_count",
        "PyTorch waits until all processes have come to make a process"
        " group: NCCL has not started; worker_count below world_size: some have not come yet",
    ),
    (
        ERROR,
        r"gloo/\S{1,120}\.cc:\d+\].{0,40}[Tt]imed out",
        "Gloo (TCP between CPUs, no NCCL) waited for another rank, which"
        " did not come: it may be late, stuck or gone; the waiting rank is not the cause",
    ),
    (
        ERROR,
        r"gloo/\S{1,120}\.cc:\d+\].{0,80}(?:closed by peer|reset by peer|refused)",
        "Gloo (TCP between CPUs, no NCCL) lost another rank: that one's log shows why",
    ),
    (
        ERROR,
        r"gloo/\S{1,120}\.cc:\d+\]|\bGloo\b.{0,80}(?:fail|error|timeout)",
        "an error of Gloo: TCP between CPUs, no NCCL",
    ),
    (
        ERROR,
        r"server socket has failed to (?:bind|listen)",
        "the port of PyTorch's TCP store could not be opened on its own host: usually another process has it",
    ),
    (
        ERROR,
        r"(?:client|server) socket has (?:timed out|failed)|connection to the C10d store has failed|DistNetworkError|"
        r"DistStoreError|Rendezvous\w{0,30}Error|RendezvousTimeout|wait timeout after|Broken pipe.{0,40}TCPStore|"
        r"TCPStore.{0,80}(?:fail|error|time)",
        "PyTorch's processes meet at a TCP store (MASTER_ADDR, or the rendezvous'"
        " endpoint) before NCCL, and query it later, too: usually it was not reached, ended, or some came too late",
    ),
    (
        ERROR,
        r"recvValue failed|sendBytes failed|recvVector failed|SocketImpl\(",
        "the TCP store of PyTorch was lost: commonly rank 0's process ended first",
    ),
    (
        ERROR,
        r"stall_inspector|[Ss]talled (?:ops|ranks)|[Mm]issing ranks",
        "Horovod's stall inspector: some ranks submitted tensors that others have not: look at the ranks that are"
        " missing (their stack, another code path); no error of a network so far",
    ),
    (
        ERROR,
        r"system not yet initialized|[Ff]abric ?[Mm]anager.{0,80}(?:not|never|fail|error|inactive|stopped)",
        "CUDA is not ready, before NCCL begins: on machines with NVSwitch commonly because the Fabric Manager does not"
        " run, has not completed, or is of another version than the driver",
    ),
    (
        ERROR,
        r"\bIMEX\b.{0,80}(?:fail|error|not)|(?:[Ee]xport ref|[Ii]mport re(?:sponse|quest)).{0,80}(?:fail|error|timed)|"
        r"[Ff]ailed.{0,40}(?:export ref|(?:new|allocate) memory reference|import re(?:sponse|quest))",
        "memory that is shared over NVLink between nodes (IMEX, MNNVL): commonly nvidia-imex does not run on all nodes"
        " of the domain, its versions or lists of nodes differ, or the container has no IMEX channel;"
        " NCCL_MNNVL_ENABLE=0 continues without",
    ),
    (
        ERROR,
        r"\befa_\d+\b.{0,120}(?:[Ff]ail|err)|"
        r"NET/OFI.{0,80}(?:[Cc]ouldn't|[Cc]ould not|[Cc]annot|[Ff]ail|[Uu]nable|No NIC)",
        "the set-up of EFA fails, in its driver or in the plugin over libfabric: its driver, libfabric and the plugin"
        " have to be of one installation (`fi_info -p efa`, `modinfo efa`); err -12: the device or the host has no"
        " memory or no more resources for it (`ulimit -l`)",
    ),
    # JAX and XLA.
    (
        ERROR,
        r"[Bb]arrier timed out|Barrier.{0,80}(?:failed|timed out)|coordination service|CoordinationService|"
        r"coordination_service\w*\.cc|task heartbeat|unexpectedly disconnected",
        "JAX's or TensorFlow's coordination service (gRPC, no NCCL): a process did not come, or its heartbeat stopped:"
        " the one that it names, or that ended first, has the reason in its own log",
    ),
    (
        ERROR,
        r"rendezvous.{0,120}(?:may be stuck|waiting for all participants)|This thread has been waiting for|"
        r"threads to join the rendezvous|Termination timeout for",
        "XLA's threads of one process wait for each other before a collective: a thread or GPU is late, stuck or gone;"
        " no network is in use yet",
    ),
    # Serving engines and frameworks.
    (
        ERROR,
        r"Watchdog timeout \(self\.watchdog|Scheduler (?:hit|or detokenizer).{0,40}watchdog",
        "SGLang's own watchdog ends it: a forward pass may hang in this process, or in a rank that it waits for; a"
        " stack behind it, if it prints one, and those of the other ranks show where",
    ),
    (
        ERROR,
        r"Scheduler (?:hit|or detokenizer).{0,40}exception",
        "SGLang's scheduler ends by an exception: the calls below it show where",
    ),
    (
        ERROR,
        r"NCCL communicator was aborted",
        "PyTorch has aborted the communicator after an earlier failure or timeout: the first one of any rank is the one"
        " to look at",
    ),
    (
        WAITS,
        r"[Ss]traggler.{0,40}(?:[Dd]etected|GPU|rank)",
        "a rank is slower than the others: its GPU's clocks and temperature, its CPU, its input; no failure",
    ),
    # AMD.
    (
        ERROR,
        r"Memory access fault by GPU|HSA_STATUS_ERROR\w*",
        "AMD's runtime: a kernel touched memory that is not mapped, or the GPU failed: commonly the program or a"
        " library of it; see `dmesg -T | grep -i amdgpu` on the node",
    ),
    # NVSHMEM.
    (
        ERROR,
        r"(?:NVSHMEM|nvshmem).{0,120}(?:[Ee]rror|ERROR|[Ff]ail|abort|[Uu]nable|non-zero)|"
        r"\bnon-zero status: \d+.{0,120}(?:nvshmem|transport|bootstrap|heap|symmetric)|"
        r"transport/(?:ibrc|ibgda|ibdevx|libfabric|ucx)/|"
        r"(?:ibgda|ibrc|ibdevx|libfabric) ?transport.{0,80}(?:fail|error|not)",
        "an error of NVSHMEM, which a program such as DeepEP uses beside NCCL with its own connections"
        " (NVSHMEM_DEBUG=INFO; IBGDA needs the driver's PeerMappingOverride and nvidia_peermem)",
    ),
    (
        ERROR,
        r"DeepEP.{0,40}(?:timeout|error)|NCCL EP timeout|deep_ep.{0,120}(?:timeout|error|fail)",
        "expert parallelism (DeepEP over NVSHMEM, or NCCL EP): usually a peer did not send in time, or the set-up"
        " failed; the waiting rank is not the cause",
    ),
    # PyTorch's watchdog.
    (
        ERROR,
        r"Watchdog caught collective|Timeout at NCCL work|detected by watchdog at work",
        "PyTorch's watchdog gave up: it reports which rank waited, not the cause",
    ),
    (
        ERROR,
        r"[Ww]atchdog.{0,60}got stuck|Heartbeat monitor timed out",
        "PyTorch's watchdog thread made no progress: a call of CUDA or NCCL hangs, or a lock (Python's GIL)",
    ),
    (
        WARNING,
        r"might run on corrupted/incomplete data|taking the entire process down",
        "PyTorch's standard message after a failure, no proof of corrupted data; PyTorch then ends the process",
    ),
    (
        WARNING,
        r"[Ff]light ?[Rr]ecorder is (?:disabled|not enabled)",
        "PyTorch has no record of the last collectives; TORCH_NCCL_TRACE_BUFFER_SIZE=20000 (now:"
        " TORCH_FR_BUFFER_SIZE) keeps it",
    ),
    (
        DEATH,
        r"due to ProcessGroupNCCL watchdog hang",
        "PyTorch's heartbeat monitor ends the process (SIGABRT), because its watchdog thread made no progress: this"
        " is the cause of its end as launchers report it",
    ),
    (
        WAITS,
        r"Received a dump signal due to a collective timeout",
        "ranks signal a timeout to each other: the rank that is named gave up a wait; a rank that only got the signal"
        " has not failed",
    ),
    (
        WARNING,
        r"waiting for future [Ff]light ?[Rr]ecorder|timed out after waiting.{0,40}[Ff]light ?[Rr]ecorder",
        "the dump of PyTorch's flight recorder failed, or did not come in time: no cause of a failure",
    ),
    (
        WAITS,
        r"[Ff]light ?[Rr]ecorder dump signal from another",
        "another rank requested all flight recorders: it failed or timed out before",
    ),
    (
        WAITS,
        r"[Ff]light ?[Rr]ecorder|preparing to dump debug info|dump(?:ing|ed)? (?:debug|NCCL|flight)",
        "PyTorch writes its flight recorder, which holds the last collectives of each rank where it is on",
    ),
    (
        WARNING,
        r"abort timed out after \d{1,9} ms",
        "PyTorch aborted its communicators, as it does after a failure or at a process's end, and that did not"
        " complete: it had started by as much earlier",
    ),
    (
        WARNING,
        r"unbatched P2P op",
        "a warning of speed alone: sends and receives outside of a batch wait for each other; no failure",
    ),
    (
        WARNING,
        r"has NOT been destroyed before|destroy_process_group\(\) was not called",
        "a standard message at the end of a process: not the cause of a failure",
    ),
    (
        ERROR,
        r"watchdog thread terminated with exception: CUDA error",
        "PyTorch's watchdog queried the state of collectives and met an error of CUDA on the reporting rank: by its"
        " text of the GPU's hardware, or of an earlier kernel, of the program or of NCCL",
    ),
    # NVIDIA.
    (
        ERROR,
        r"Triton Error \[CUDA\]: .{1,120}",
        "CUDA failed at the launch of a Triton kernel of the program: such errors come"
        " late, the kernel that made it may be an earlier one (CUDA_LAUNCH_BLOCKING=1)",
    ),
    (ERROR, r"NVRM: Xid", "the GPU's driver reports a fault"),
    (ERROR, r"nvidia-nvswitch\d{1,3}: SXid", "an NVSwitch reports a fault: it concerns all GPUs that use the link"),
    (
        ERROR,
        r"fallen off the bus|\bGPU (?:is )?lost\b|GPU_IS_LOST|"
        r"Unable to determine the device handle for GPU|NVRM: The NVIDIA GPU \S{1,20}",
        "the driver does not reach this GPU any more: its slot, power, heat or the GPU; the node has to be restarted"
        " before it comes back",
    ),
    (
        WARNING,
        r"NVRM: .{0,120}(?:[Ff]ail|[Ee]rror|not responding|[Tt]imeout)",
        "a message of the GPU's driver: some of them are not faults",
    ),
    (
        WARNING,
        r"AER: .{0,20}[Cc]orrected error|severity=Corrected",
        "PCIe has repaired an error itself: single ones are harmless, many in a minute are a bad link",
    ),
    (
        ERROR,
        r"AER: .{0,40}(?:[Uu]ncorrect|[Ff]atal)|severity=(?:Uncorrected|Fatal)|PCIe Bus Error",
        "PCIe lost data on the way to the device that is named: slot, riser, or the device",
    ),
    (
        ERROR,
        r"mlx5_core \S{4,20}: .{0,120}(?:[Ff]atal|[Ee]rror|[Ff]ail|timeout|timed out|assert|Link (?i:down))|"
        r"\bmlx\w{1,12}\b.{0,40}Link (?i:down)|Link is Down",
        "the HCA's driver: a link that went down, or firmware that failed",
    ),
    (
        ERROR,
        r"soft lockup|blocked for more than \d+ seconds|hung_task|rcu_sched detected stalls|\[Hardware Error\]",
        "the kernel: a CPU or a task hangs, or hardware failed",
    ),
    (
        ERROR,
        r"NV_ERR_RESET_REQUIRED|GPU requires reset|GPU Reset Required|NV_ERR_GPU_IN_FULLCHIP_RESET",
        "the driver requires the GPU to be reset before its next use: until then CUDA reports that it is busy or"
        " unavailable",
    ),
    (
        ERROR,
        r"OutOfMemoryError|CUDA out of memory|RESOURCE_EXHAUSTED|No available memory",
        "the program requests more memory than is free on the GPU",
    ),
    (
        ERROR,
        r"(?:CUDA|cuda) ?(?:[Ee]rror|failure)\b|cudaError\w+|CUDA_ERROR_\w+",
        "a call of CUDA failed; errors of kernels come late, at a later call",
    ),
    (WARNING, r"pid \d+: Test failure", "nccl-tests' own stack of the failure above it"),
    (
        ERROR,
        r"CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|cuBLAS|cuDNN error",
        "a CUDA library failed: it may follow from an earlier failure, or from memory that is full",
    ),
    (
        ERROR,
        r"Test (?:NCCL|CUDA) failure",
        "nccl-tests ends here: the first warning of NCCL, of any rank, has the cause",
    ),
    (
        ERROR,
        r"nccl(?:Unhandled\w{0,20}|System|Internal|Remote|Invalid)(?:Error|Usage|Argument)|"
        r"NCCL error|NCCL operation \S+ failed",
        "the program's report of a failed call of NCCL: the first warning of NCCL, of any rank, has the cause",
    ),
    # Networks below NCCL.
    (
        WARNING,
        r"UCX +WARN +(?:unused environment variable|\(set UCX_WARN_UNUSED_ENV_VARS)",
        "UCX, usually MPI's, does not know a variable of the environment: harmless",
    ),
    (
        WARNING,
        r"No transition in \w{1,80}Agent\w{0,200}Profiler",
        "the profiler (Nsight Systems) was interrupted while it shut down: an effect of that, and not a cause",
    ),
    (
        ERROR,
        r"UCX +(?:ERROR|FATAL|DIAG)|ucx_\w+.{0,40}(?:failed|error)|\bucp_\w+.{0,60}failed",
        "an error of UCX, which MPI or a plugin uses: it need not be NCCL's network",
    ),
    (WARNING, r"libfabric:.{1,200}<(?:warn|info|trace|debug)>", "a message of libfabric, below AWS's plugin or MPI"),
    (
        ERROR,
        r"libfabric:|fi_\w+(?:\(\))?.{0,40}(?:failed|error)|\befa\b.{0,60}(?:error|fail)",
        "a message of libfabric, below AWS's plugin or MPI",
    ),
    (ERROR, r"(?:ibv|rdma|mlx5|hfi|qib)_?\w*.{0,60}(?:failed|error|denied)", "an error of an RDMA library or driver"),
    (ERROR, r"GASNet.{0,80}(?:error|fail|abort)", "an error of GASNet, which a program uses beside NCCL"),
    (ERROR, r"\[deepspeed\].{0,80}(?:error|fail)|DeepSpeed.{0,40}(?:error|fail)", ""),
    # In general.
    (
        ERROR,
        r"[Pp]ermission denied|[Oo]peration not permitted",
        "the process may not do this: a device, file or right that it, or its container, does not have",
    ),
    (ERROR, r"No space left on device", "a file system is full; /dev/shm counts as one"),
    (
        ERROR,
        r"[Tt]oo many open files|[Rr]esource temporarily unavailable",
        "a limit of the process (`ulimit -n`, `ulimit -u`)",
    ),
    (ERROR, r"[Cc]annot allocate memory|std::bad_alloc|MemoryError", "memory of the host, or a limit of it"),
    (
        ERROR,
        r"cannot open shared object file|undefined symbol|version `\S+' not found|ImportError|ModuleNotFoundError",
        "a library or module that is not there or does not fit",
    ),
    (
        ERROR,
        r"[Cc]onnection (?:refused|reset|closed|timed out|aborted)|[Bb]roken pipe|[Nn]o route to host|"
        r"[Nn]etwork is unreachable|[Hh]ost is down",
        "a TCP connection failed or was lost: the process that reports it need not be the cause",
    ),
    (
        WARNING,
        r"\[W.{0,80}cannot be retrieved\. err=",
        "PyTorch found no name for an address that came to its store: harmless, the addresses are used",
    ),
    (
        ERROR,
        r"Name or service not known|[Nn]ame resolution|getaddrinfo|cannot be retrieved\. err=",
        "a host's name that does not resolve here",
    ),
    (
        ERROR,
        r"[Tt]imed ?out|\bTimeout(?:Error|Exception|Expired)?\b.{0,3}[:(]|\b[Tt]imeout (?:after|of|waiting|exceeded)|"
        r"DEADLINE_EXCEEDED",
        "something did not come in time: the line names the process that waited, not the cause",
    ),
    (
        WAITS,
        r"[Ww]aiting for .{0,60}(?:rank|worker|process|node|replica|actor|GPU|engine|peer)|still waiting|"
        r"No available node types|not ready yet",
        "a program waits for others",
    ),
)
_COMPILED: Tuple[Tuple[Tuple[str, ...], str, Pattern[str], str], ...] = tuple(
    (marks, kind, re.compile(text), about) for marks, (kind, text, about) in zip(MARKS, ROWS)
)
# What an error is called where no class knows it, at most this far into the line.
_ERROR = re.compile(
    r"\b(?:[A-Za-z]{0,40}(?:Error|ERROR|error|Exception)|[Ff]ailed|FAILED|[Ff]ailure|FATAL|[Ff]atal|CRITICAL|"
    r"[Uu]nable to|[Cc]annot|[Cc]ould not|not supported|aborted|ABORT)\b"
)
_WARN = re.compile(
    r"\b(?:WARN(?:ING)?|[Ww]arning)\b.{0,400}?\b(?:n?ccl|NCCL|rank|[Tt]ime|socket|device|GPU|distributed|process.group|"
    r"CUDA|cuda|RDMA|rdma|network|memory|peer|P2P|[Cc]ustom allreduce|shm|[Rr]endezvous)",
)
# A program's own word for how bad it is.
_LEVEL = re.compile(r"(?:^|[\s:\[|])(?:WARN(?:ING)?|[Ww]arning)\b")
# A program's own word that it is no failure.
_INFO = re.compile(r"(?:^|[\s\[(:|])(?:INFO|DEBUG|NOTICE)\b")
_SUCCESS = re.compile(
    r"\b(?:is|are|was|were) (?:successful|OK)\b|\b[Ss]ucceeded\b|"
    r"\b(?:completed|finished|done|initiali[sz]ed) successfully\b|"
    r"\b[Ss]uccessfully (?:completed|finished|initiali[sz]ed|trained)\b|\bPASSED\b|\bsuccess(?:ful)?[!.]|\bSUCCESS\b|"
    r"\b[Tt]raining (?:is )?(?:complete|finished|done)"
)


def classify(text: str) -> Optional[Class]:
    """The class of a line that is none of NCCL's; None of what is not a report of a failure, a wait or a success."""
    if noise(text) or command(text):
        return None
    for marks, kind, pattern, about in _COMPILED:
        for mark in marks:
            if mark in text:
                break
        else:
            continue
        match = pattern.search(text)
        if match is not None:
            number = _number(match.groupdict())
            if number is None:
                return Class(kind, about)
            if number == 0:
                return None
            # Who is ended by SIGTERM was told to.
            kind = ORDER if kind == DEATH and number in (15, -15, 143) else kind
            return Class(kind, "; ".join(part for part in (about, _meant(match.groupdict(), number)) if part))
    if _INFO.search(text) and not _SUCCESS.search(text):
        return Class(WARNING, "") if _ERROR.search(text) or _WARN.search(text) else None
    if EXCEPTION.search(text):
        return Class(ERROR, "an exception in Python, with its type")
    if _SUCCESS.search(text):
        return Class(SUCCESS, "")
    if _LEVEL.search(text):
        return Class(WARNING, "")
    if _ERROR.search(text):
        return Class(ERROR, "")
    if _WARN.search(text):
        return Class(WARNING, "")
    return None


def _number(said: Dict[str, Optional[str]]) -> Optional[int]:
    name = said.get("name") or said.get("word")
    if name:
        return NUMBERS.get(name, 0) or None
    if said.get("octal"):
        return int(said["octal"] or "0", 8)
    digits = [said[key] for key in ("signal", "code", "other", "third", "fourth") if said.get(key)]
    return int(digits[0] or 0) if digits else None


def _meant(said: Dict[str, Optional[str]], number: int) -> str:
    if said.get("octal"):
        return "exit code %d" % number + (", that is: %s" % meaning(number) if meaning(number) else "")
    if said.get("signal") or said.get("name") or said.get("word"):
        return "signal %d, %s" % (number, SIGNALS[number]) if number in SIGNALS else ""
    return meaning(number)
