# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of programs, launchers, schedulers and the kernel, in the form of event_table.

Their patterns are rows of program_events.
"""

from __future__ import annotations

from .events import read_table

OUTSIDE_NCCL = read_table(r"""
oom EXIT OUTSIDE plain
  why the kernel or the scheduler killed a process because memory of the host, or of its cgroup, ran out
  fix raise the job's memory limit (cgroup, pod, Slurm --mem), or let it need less
time_limit EXIT OUTSIDE plain
  why the scheduler ended the job at its time limit
  fix if it was still working, raise the limit; if it hung, run `busbar hang HOST` next time
node_failure EXIT OUTSIDE plain
  why the scheduler or launcher lost a node
  fix see whether the node named here is up: `sinfo -R`, its console, and BMC
xid CUDA OUTSIDE by_code
  why the driver reports an error on a GPU (Xid)
  fix see NVIDIA's list of Xid errors; 48, 63, 64, 74, 79, 94, 95, 119, 140: drain the node, reset the GPU
  code 45$
    tier REPORT
    why a program's channel was torn down: usually after another error of the GPU, or the end of its process
  code (?:13|31|43|68|69)$
    tier CAUSE
    why an error of a kernel or request of a program on this GPU, less often of the GPU
    fix CUDA_LAUNCH_BLOCKING=1, or `compute-sanitizer`, shows the kernel; on one GPU only: drain the node
  code 79$
    why the GPU has fallen off the bus: slot, power, heat or the GPU
    fix drain and restart the node; have the GPU replaced if it recurs
  code (?:74|149)$
    why an error of NVLink
    fix drain the node; `nvidia-smi nvlink -e` and -s name the link and the GPU at its end; reset the GPUs
  code (?:48|94|95|63|64)$
    why an error of the GPU's memory (ECC, row remapping)
    fix drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU, or replace it where rows stay bad
  code (?:62|119|120|140|109|110)$
    why the GPU or its firmware (GSP) halted
    fix drain the node and reset the GPU; `nvidia-bug-report.sh` for the vendor if it recurs
  code 154$
    why the driver's recovery action for this GPU changed
    fix drain the node, and do what the line names (reset or reboot)
sxid FABRIC_MANAGER OUTSIDE by_code
  why an NVSwitch reports a fatal fault of itself or of a link
  fix drain the node; `nvidia-smi nvlink -e` names link and GPU; restart it, or reset all GPUs and NVSwitches
nvswitch PROGRAM WEAK major unknown
  why Fabric Manager reports an error of an NVSwitch or of a link of it
  fix `nvidia-smi nvlink -e` on the node; a non-fatal error that recurs on one link: plan a reset
gpu_lost PROGRAM OUTSIDE unknown
  why the driver does not reach this GPU: its slot, power, heat or the GPU
  fix drain and restart the node; `dmesg -T | grep -i -E 'xid|nvrm'` shows what came before
gpu_reset PROGRAM OUTSIDE unknown
  why the driver requires the GPU to be reset before its next use
  fix drain the node and reset the GPU (`nvidia-smi --gpu-reset`), or restart the node
link_down PORT OUTSIDE unknown
  why the driver of the NIC reports that its link went down, or that its firmware failed
kernel PROGRAM OUTSIDE unknown
  why the kernel reports that hardware failed, or that a CPU or a task hangs
  fix `dmesg -T` of that node around this time, `lspci -vv -s ADDRESS` of a device; drain it if it recurs
order EXIT ORDER unknown
  why the job was told to end: by a user, the scheduler, or a launcher after another process failed
  fix see what failed before this line, else who or what ended it (`sacct -j JOB`, the shell, a script)
  text KeyboardInterrupt|Ctrl-C|SIGINT|signal: 2$|Received 2 death
    why a user or a script interrupted the job (SIGINT, as by Ctrl-C)
    fix nothing, if that was meant; otherwise see which shell, script or limit of time sends SIGINT
cancelled EXIT ORDER unknown
  why the job was cancelled: by a user, the scheduler, or another task's end
  fix see `sacct -j JOB`
exit EXIT REPORT by_code
  code signal 11$
    tier CAUSE
    causes a crash in native code (SIGSEGV), which may follow from an earlier failure
  code signal 7$
    tier CAUSE
    causes SIGBUS: /dev/shm is full or too small (--shm-size, --ipc=host), less often a file that was cut off
  code signal 9$
    tier EFFECT
    fix `dmesg -T | grep -i oom` on its node, and the memory limit of its cgroup or pod
    causes SIGKILL: out of memory of the host or of the cgroup, or the scheduler or a user ended it
  code signal [48]$
    tier CAUSE
    causes an instruction or arithmetic error in native code: usually a build for another CPU
  code signal (?:1|2|3|15)$
    causes it was told to end
  code signal 6$
    causes the process ended itself (abort, a failed check, an exception in C++): its lines before show why
  code exit code 127$
    tier CAUSE
    proven the program, or a library, was not found
  code exit code 126$
    tier CAUSE
    proven the program may not be executed
watchdog WATCHDOG EFFECT
signalled WATCHDOG EFFECT
  why a rank gave up the wait for a collective and had all others write their flight recorders
  fix read the log of the rank that signalled; then compare the dumps: `busbar diagnose --recorder DIR`
stuck WATCHDOG EFFECT
  why PyTorch's heartbeat monitor got no heartbeat from the watchdog's thread
  fix py-spy dump of all ranks while it hangs, or their flight recorders (TORCH_NCCL_DUMP_ON_TIMEOUT=1)
  causes another rank is gone, a GPU that hangs (Xid), or a deadlock in the program
store STORE EFFECT
  causes rank 0 ended first, or was not started; another MASTER_ADDR or MASTER_PORT; a firewall; late ranks
  text waiting for clients
    causes a process was not started, ended before, came too late, or has another MASTER_ADDR or WORLD_SIZE
  text failed on SocketImpl
    why a connection to PyTorch's store, which is usually in the process of rank 0, broke after it was made
    fix see how the process of rank 0 ended, and its own log
    causes the process that holds the store ended first; less often the connection was cut
store_port STORE CAUSE
  why the process that is to open the port of PyTorch's store could not
  fix end the process that has the port (`ss -ltnp` there), or use another one (MASTER_PORT, --rdzv_endpoint)
  causes another process on that host has the port, or MASTER_ADDR is not an address of that host
store_connect STORE NETWORK
  why a process got no TCP connection to PyTorch's store, which rank 0 opens: NCCL has not started there
  fix `nc -vz MASTER_ADDR MASTER_PORT` there; refused: rank 0 does not listen; no answer: firewall or route
store_wait STORE WEAK critical
  why PyTorch waits until all processes have come to make a process group: NCCL has not started
  fix see which processes have not come: their logs, and whether as many were started as in WORLD_SIZE
unresolved BOOTSTRAP CAUSE plain by_code
  why a host's name does not resolve where the line was written
  fix `getent hosts NAME` there (Kubernetes: the headless service has to be there first); or give addresses
exception_nccl WARNING REPORT critical unknown
  why the program reports that a call of NCCL failed: the first warning of NCCL, of any rank, has the cause
  fix run it with NCCL_DEBUG=INFO on all ranks, and give this command all of their logs
test WARNING REPORT critical unknown
  why nccl-tests ends where a call fails: the first warning of NCCL, of any rank, has the cause
  fix run it with NCCL_DEBUG=INFO on all ranks, and give this command all of their logs
exception_remote PROGRAM REPORT unknown
  why an exception that reports another process's end: the process that raised it is not the cause
exception PROGRAM CAUSE plain
  why a program failed by its own exception, not by the network or a node
  fix read the traceback of the rank that is named: its last call of the program's own code
  text inline_container\.cc|PytorchStreamWriter
    why PyTorch could not write a checkpoint to its end: usually the file system or a quota is full
    fix `df -h` and `df -i` of the checkpoint's directory, and the quota of its owner
arguments PROGRAM CAUSE plain
  why a program did not accept its command line
  fix compare the command line with the program's --help
import PROGRAM CAUSE plain
  why a library or module is missing, or does not fit
  fix run the import that failed in the job's own environment; `ldd` shows what a library lacks
assertion PROGRAM CAUSE
  why a check in the program or in PyTorch failed
kernel_assert CUDA CAUSE plain
  why a check in a kernel of the program failed: an index or label that is out of range
  fix look at the data of that step on that rank; CUDA_LAUNCH_BLOCKING=1 gives the call
triton PROGRAM CAUSE
  why CUDA failed at the launch of a Triton kernel of the program
  fix CUDA_LAUNCH_BLOCKING=1 shows which kernel fails first
cuda_not_ready PROGRAM CAUSE unknown
  why CUDA is not ready: the Fabric Manager is not running, not ready, or not of the driver's version
  fix `systemctl status nvidia-fabricmanager` (GB200: nvidia-imex); `nvidia-smi -q | grep -A 3 Fabric`: Completed
imex PROGRAM CAUSE unknown
  why memory that is shared over NVLink between nodes (IMEX, MNNVL) was not available
  fix `systemctl status nvidia-imex` on every node; `ls /dev/nvidia-caps-imex-channels` in the container
library PROGRAM CAUSE unknown
  why an error of another library than NCCL: of UCX, EFA, verbs, NVSHMEM or CUDA
  fix read its line: device and call; `ibv_devinfo -v`, `fi_info`, `nvidia-smi` and `dmesg -T` on the node
expert_wait PROGRAM EFFECT unknown
  why expert parallelism waited for a peer in vain: the waiting rank is not the cause
  fix read the log of the peer that is named: what it did at that time, and whether its process runs
gloo PROGRAM EFFECT unknown
  why Gloo (TCP between CPUs, not NCCL) waited for another rank or lost it
  fix read the log of the rank that is named or that ended first
coordination PROGRAM EFFECT unknown
  why torchrun's rendezvous, JAX or TensorFlow (not NCCL): a process did not come, or its heartbeat stopped
  fix read the log of the process that it names, or that ended first
behind WATCHDOG NETWORK
  why the ranks that wait name those that have not joined their collective: what these did instead is the cause
  fix read the logs of the ranks named here; while it hangs: `py-spy dump` of them, `busbar hang HOST`
stall PROGRAM EFFECT unknown
  why some ranks or threads wait for others that have not come
  fix look at the ranks that are missing: their stack, another branch of the program
worker_lost PROGRAM REPORT unknown
  why a launcher or serving engine lost a worker
  fix read the first exception above it, and the worker's own log (Ray: worker-*.err, raylet.out of that node)
evicted EXIT OUTSIDE
  why Kubernetes or the container's runtime ended a container or pod
  fix kubectl describe pod, and its log with --previous
mpi_transport PROGRAM CAUSE
  why MPI's own transport, by which the processes find each other, failed between the hosts: NCCL has not begun
  fix give all hosts one network for MPI, or TCP: mpirun --mca pml ob1 --mca btl tcp,self
remote_shell PROGRAM CAUSE plain
  why the launcher could not log in to a host to start its daemon there: no process of the job has started
  fix `ssh HOST true` from the launcher's host; refused: no sshd yet; permission: `ssh-copy-id`, known_hosts
mpi_start PROGRAM CAUSE plain
  why the launcher and the program's MPI do not fit each other: no process reached NCCL
  fix start it with the mpirun of that MPI, or with the srun --mpi=TYPE that it was built for
mpi_abort EXIT REPORT unknown
  why a rank requested MPI to end all of the job
permission PROGRAM WEAK unknown
  why the process may not do this: a device, file or right that it, or its container, does not have
file_system PROGRAM WEAK unknown
  why a file system is full; /dev/shm counts as one
  fix `df -h` of the path in the job itself
host_memory_program PROGRAM CAUSE unknown
  why the program was refused memory of the host
  fix `free -h`, the memory limit of the job's cgroup or pod, `ulimit -v`
tcp PROGRAM NETWORK unknown
  why a TCP connection failed or was lost: its reporter need not be the cause
  fix read the log of the other end
timeout PROGRAM EFFECT unknown
  why something did not come in time: the line names the process that waited, not the cause
  fix read the log of what it waited for
error_line PROGRAM REPORT unknown
""")
