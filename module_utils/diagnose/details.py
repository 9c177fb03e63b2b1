# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What code, text or place of a line add to the meaning of its event. The first row that fits gives each text."""

from __future__ import annotations

from typing import Tuple

from . import checks
from .events import CAUSE, CUDA_NOT_READY, EFFECT, NEWER_DRIVER, NOTICE, OLD_DRIVER, REPORT, WEAK, Detail

_IMEX = "`systemctl status nvidia-imex` and `nvidia-imex-ctl -N` on every node of the domain; the container needs an "
_IMEX += "IMEX channel (`ls /dev/nvidia-caps-imex-channels`); NCCL_MNNVL_ENABLE=0 goes on without"
_NVLS = checks.FABRIC_MANAGER.fix + "; NCCL_NVLS_ENABLE=0 does without NVLink SHARP"
_SENDER = "see how the process that made it ended; ranks of a node need a common /dev/shm (docker --ipc=host)"
DETAILS: Tuple[Detail, ...] = (
    # -- HCAs and verbs
    Detail(
        "port",
        code="port error",
        why="the link of this port went down: data on it is lost until it is back",
        fix="on the node: `ibstat DEVICE`, `rdma link`, `dmesg -T | grep -i mlx`, the switch's log; cable and "
        "transceiver first; a node with a second port: NCCL_IB_RESILIENCY_PORT_FAILOVER=1 (NCCL 2.29.7 and later)",
    ),
    Detail(
        "port",
        code="local catastrophic error",
        why="the HCA itself has failed: firmware, PCIe slot, or the driver that reset it",
        fix="`dmesg -T | grep -i mlx` and `lspci -vv -s ADDRESS` on the node; drain it, reset the HCA or the node",
    ),
    Detail(
        "port",
        code="GID table changed",
        causes="an address of the HCA's interface was added or removed: DHCP, NetworkManager, a bond",
    ),
    Detail("completion", code="5$", tier=REPORT),
    Detail(
        "completion",
        text=r"\(Flush\)",
        causes="GPU, HCA, the PCIe path between them (ACS, IOMMU) or nvidia_peermem of this node, not the network",
    ),
    Detail(
        "completion",
        code="12$",
        causes="at the start: cabling, VLAN, route, GID, MTU, PFC; later: loss, a link that went down, a dead peer",
    ),
    Detail("completion", code="13$", causes="the peer did not post a receive in time: it hung, or died"),
    Detail(
        "completion",
        code="4$|local access violation work queue error",
        causes="memory that the HCA may not reach: ACS or IOMMU in the way of GPUDirect RDMA, peermem unloaded",
    ),
    Detail("completion", code="10$", causes="the peer failed before, or GPUDirect RDMA broke there"),
    Detail("completion", code="(?:1|9)$", causes="the peer failed before, or runs another NCCL or other settings"),
    Detail("completion", code="11$", causes="the HCA at the other end failed the operation: see its own log and dmesg"),
    Detail("verbs", code="ibv_open_device", tier=WEAK),
    Detail(
        "verbs",
        code="ibv_(?:create_[cq][qp]|alloc_pd)",
        causes="the limit of locked memory (`ulimit -l`) in the job or container, or the HCA has no more queues",
    ),
    Detail(
        "registration",
        code="ibv_reg_mr",
        causes="the limit of locked memory (`ulimit -l`), or memory that the HCA may not reach (ACS, no peermem)",
    ),
    Detail(
        "queue_pair",
        text="timed out|nreachable|No route|Host is down",
        why="the peer's address did not respond: on RoCE an address of the rail, which needs ARP and a route",
        fix="between the GIDs of the line: `ping -I OWN_ADDRESS PEER_ADDRESS`, `ip route get PEER_ADDRESS`; rails that "
        "are not connected: NCCL_CROSS_NIC=0; take NCCL_IB_GID_INDEX out; playbooks/verify.yml pings every rail",
    ),
    # -- CUDA, GPUs, NVLink
    Detail(
        "cuda",
        code="out of memory",
        place=r"transport/shm|shmutils|shm\.h",
        causes="memory of the host that driver, WSL or container does not provide: NCCL_CUMEM_HOST_ENABLE=0 avoids it",
    ),
    Detail(
        "cuda",
        code="operation not supported",
        place="transport/p2p",
        causes="no IMEX channel in the container, nvidia-imex not on all nodes, or a vGPU, MIG or WSL that has none",
    ),
    Detail(
        "cuda",
        code="invalid device pointer",
        place="transport/p2p",
        causes="a driver, VM, IOMMU or containers that let these GPUs share no memory: NCCL_P2P_DISABLE=1 tests it",
    ),
    Detail("cuda", text="Tried to allocate", proven=True, causes="the GPU has no memory left"),
    Detail(
        "cuda",
        code="an illegal (?:memory access|instruction)|unspecified launch failure|misaligned address",
        why="usually a kernel of the program or of NCCL made an invalid access, and NCCL is the first to meet it",
        fix="CUDA_LAUNCH_BLOCKING=1 or `compute-sanitizer` shows the kernel; on one GPU: `dmesg -T | grep -i xid`",
    ),
    Detail(
        "cuda",
        code=r"device\-side assert",
        why="a check in a kernel of the program failed: an index or label that is out of range",
        fix="read the line with `Assertion` and `block: [..]` above it; CUDA_LAUNCH_BLOCKING=1 gives the call",
    ),
    Detail(
        "cuda",
        code=r"invalid device ordinal|no CUDA\-capable device",
        why="this process does not see the GPU, or any",
        fix="compare the processes of a node with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES in the job (--gpus all)",
    ),
    Detail(
        "cuda",
        code="named symbol not found|invalid device function|no kernel image|device kernel image is invalid",
        why="NCCL, or the program, was not built for this model of GPU, or for the CUDA that is loaded",
        fix="take NCCL and framework built for it (`nvidia-smi --query-gpu=compute_cap --format=csv`; NVCC_GENCODE)",
    ),
    Detail(
        "cuda",
        code="CUDA driver version is insufficient|the provided PTX was|forward compatibility was",
        why=OLD_DRIVER,
        fix=NEWER_DRIVER,
    ),
    Detail(
        "cuda",
        code=r"(?:all )?CUDA-capable device\S{1,4} (?:is/)?are busy|unspecified driver error",
        why="CUDA gives this process no GPU: another process has it exclusively, or the driver wants it reset",
        fix="on the node: `nvidia-smi -q | grep -i 'compute mode'` (Default), left-over processes, `dmesg -T`",
    ),
    Detail(
        "cuda",
        code="uncorrectable ECC",
        why="the GPU's memory lost data: inspect the GPU or the node, not the network",
        fix="drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg -T | grep -i xid` there; reset the GPU",
    ),
    Detail(
        "cuda",
        code="initialization error",
        why="CUDA could not start in this process: usually it was used before a fork, or the driver is not ready",
        fix="start workers by spawn and not fork, or touch CUDA only in the children; `nvidia-smi` in the job itself",
    ),
    Detail(
        "cuda",
        code="operation not permitted",
        why="usually memory that GPUs share, for which a container needs rights",
        fix=_IMEX + "; as a test NCCL_CUMEM_ENABLE=0",
    ),
    Detail("cuda", code="system not yet initialized", why=CUDA_NOT_READY, fix=checks.FABRIC_MANAGER.fix),
    Detail("cuda", code="invalid argument", causes="a driver that does not fit this NCCL, or an earlier fault"),
    Detail(
        "cuda",
        code="out of memory",
        causes="the GPU's memory is full: the program's own tensors, another process, or too many communicators",
        fix="`nvidia-smi` there shows who has the memory; leave NCCL some (vLLM: --gpu-memory-utilization)",
    ),
    Detail(
        "cuda",
        code="unknown error|the operation cannot be performed in the present state",
        causes="the GPU, its driver, or the NVLink fabric between GPUs (Fabric Manager, IMEX): see Xid in dmesg",
    ),
    Detail(
        "fabric_manager",
        code="NVLS",
        why="NVLink SHARP (NVLS) could not be set up",
        fix=_NVLS,
        causes="Fabric Manager (GB200: IMEX) failed, or started again without a reset of the GPUs; or rights",
    ),
    Detail(
        "fabric_manager",
        code="MNNVL",
        fix=_IMEX,
        why="memory that GPUs share over NVLink between nodes (MNNVL) was not available",
        causes="no IMEX channel in the container, or nvidia-imex does not run on all nodes of the domain",
    ),
    Detail(
        "xid",
        code="45$",
        tier=REPORT,
        why="a program's channel was torn down: usually after another error of the GPU, or the end of its process",
    ),
    Detail(
        "xid",
        code="(?:13|31|43|68|69)$",
        tier=CAUSE,
        why="an error of a kernel or request of a program on this GPU, less often of the GPU",
        fix="CUDA_LAUNCH_BLOCKING=1, or `compute-sanitizer`, shows the kernel; on one GPU only: drain the node",
    ),
    Detail(
        "xid",
        code="79$",
        why="the GPU has fallen off the bus: slot, power, heat or the GPU",
        fix="drain and restart the node; have the GPU replaced if it recurs",
    ),
    Detail(
        "xid",
        code="(?:74|149)$",
        why="an error of NVLink",
        fix="drain the node; `nvidia-smi nvlink -e` and -s name the link and the GPU at its end; reset the GPUs",
    ),
    Detail(
        "xid",
        code="(?:48|94|95|63|64)$",
        why="an error of the GPU's memory (ECC, row remapping)",
        fix="drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU, or replace it where rows stay bad",
    ),
    Detail(
        "xid",
        code="(?:62|119|120|140|109|110)$",
        why="the GPU or its firmware (GSP) halted",
        fix="drain the node and reset the GPU; `nvidia-bug-report.sh` for the vendor if it recurs",
    ),
    Detail(
        "xid",
        code="154$",
        why="the driver's recovery action for this GPU changed",
        fix="drain the node, and do what the line names (reset or reboot)",
    ),
    # -- the node
    Detail(
        "shared_memory",
        text="No space left on device",
        proven=True,
        causes="/dev/shm is full, or too small for the job",
    ),
    Detail(
        "shared_memory",
        text=r"\(size 0\)",
        why="another process named no segment of /dev/shm: the data on the connection arrived empty or damaged",
        fix="set NCCL_CUMEM_HOST_ENABLE=0 on all ranks, and check that they load one libnccl.so.2",
        causes="ranks of one node that take different kinds of host memory: another NCCL_CUMEM_HOST_ENABLE or libnccl",
    ),
    Detail(
        "shared_memory",
        text="No such file or directory",
        fix=_SENDER,
        causes="the process that made the segment has ended, or the two do not share /dev/shm (containers)",
    ),
    Detail(
        "shared_memory",
        code="attaching",
        fix=_SENDER,
        why="a segment of /dev/shm that another process makes could not be attached to",
    ),
    Detail(
        "limits",
        text="Invalid argument",
        causes="poll() refuses a list that is longer than the limit of open files (`ulimit -n`)",
    ),
    Detail(
        "nvml",
        text="Not Found",
        why="NVML shows this process no GPU with that PCI address",
        fix="let each process see all GPUs (`nvidia-smi -L`): Slurm --gpus-per-node, in containers all of /dev/nvidia*",
        causes="a task or container that sees one GPU of several, or a part of a GPU (MIG)",
    ),
    Detail(
        "nvml",
        text="Failed to open",
        causes="libnvidia-ml.so.1 of the node's driver is not in this process's library path or container",
    ),
    Detail(
        "topology",
        text=r"Error : ring \d",
        why="a ring that NCCL built does not go through every rank",
        fix="compare NCCL_*, /etc/nccl.conf, `grep libnccl /proc/PID/maps` and `nvidia-smi topo -m` of the ranks",
    ),
    Detail(
        "topology_file",
        text="XML Import Channel",
        why="the graph file (NCCL_GRAPH_FILE) names a device that this communicator does not have",
        fix="take NCCL_GRAPH_FILE out (/etc/nccl.conf and an image may set it, too)",
    ),
    Detail(
        "internal",
        text="lib wrapper not initialized",
        place="ibvwrap",
        tier=NOTICE,
        why="libibverbs is not loaded: NCCL goes on without InfiniBand and RoCE",
        fix="within one node nothing; between nodes install libibverbs1 and its providers in the image",
    ),
    # -- connections and ranks
    Detail(
        "connect",
        text="No route to host|Network is unreachable",
        causes="the peer's host or an interface is down, no route (NCCL_SOCKET_IFNAME), or a firewall rejects",
    ),
    Detail("connect", text="refused", causes="the peer had ended, or the address is not its own (NCCL_SOCKET_IFNAME)"),
    Detail(
        "handshake",
        text="wrong type",
        why="the two ends use different kinds of connection: ranks chose different networks, or run different releases",
        fix="compare `Using network`, NET/Plugin and NCCL version of the ranks; give all nodes one NCCL and plugin",
    ),
    Detail(
        "bootstrap",
        code="already",
        why="two processes have the same rank number",
        fix="check what sets RANK (SLURM_PROCID, OMPI_COMM_WORLD_RANK), and that no earlier process is left over",
    ),
    Detail(
        "bootstrap",
        code="mismatch",
        why="a process sent rank 0 other data than the rest: another release of NCCL, or a process of an earlier start",
        fix="compare libnccl.so.2 of the ranks (`grep libnccl /proc/PID/maps`), and end what is left over",
    ),
    Detail(
        "mismatch",
        text="message truncated",
        causes="the two ranks disagree on the size: type, count, a call more on one side, NCCL_PROTO or release",
    ),
    Detail(
        "mismatch",
        code="PyTorch",
        proven=True,
        why="PyTorch compared the ranks' calls before they reached NCCL, and they differ",
        fix="look in the program for what only some ranks call: the traceback of each rank names its call",
        causes="a branch, another number of steps, or a collective that not all ranks call",
    ),
    Detail(
        "usage",
        text="before the previous operation returned",
        causes="an earlier call on this communicator, usually its initialisation, failed or was not waited for",
    ),
    Detail(
        "usage",
        text="Invalid rank requested",
        causes="ranks are numbered from 0: RANK or WORLD_SIZE is off by one, or a process too many was started",
    ),
    # -- plugins and SHARP
    Detail(
        "net_plugin",
        text="nresponsive receiver|UNDELIVERABLE|Undeliverable",
        why="a peer did not respond to data or a handshake: usually the peer's log has the cause",
        fix="check the peer's process and its log, then the network (AWS: the security group allows itself)",
    ),
    Detail(
        "net_plugin",
        text="UNREACHABLE",
        causes="no way to a peer: security group, subnet or route, or the peer is gone",
    ),
    Detail(
        "net_plugin",
        text="rovider is supported",
        causes="no EFA device in this container or instance, or libfabric without the provider",
    ),
    Detail(
        "net_plugin",
        text="annot allocate memory|RC: -?12\\b",
        causes="the job's limit of locked memory (`ulimit -l`), or of memory that the NIC can register",
    ),
    Detail(
        "net_plugin",
        code="FasTrak",
        why="GCP's plugin for GPUDirect-TCPXO (FasTrak) reports a failure",
        fix="take plugin, receive daemon (rxdm) and NCCL of one GCP installer; the daemon has to run on both nodes",
    ),
    Detail(
        "net_plugin",
        code="OFI",
        why="the plugin for libfabric (AWS EFA or another provider) reports a failure",
        fix="`fi_info -p efa` in the job; plugin, libfabric and driver of one installation; AWS: the security group",
    ),
    Detail(
        "sharp",
        text="reaming Tree lock|SAT tree",
        causes="the streaming tree (SAT) of one job at a time is taken by another job, or not allowed to this one",
    ),
    Detail(
        "sharp",
        text="No resource|annot create SHARP job",
        causes="sharp_am does not run, has no resources left for this job, or a limit or reservation forbids it",
    ),
    # -- programs and launchers
    Detail(
        "order",
        text="KeyboardInterrupt|Ctrl-C|SIGINT|signal: 2$|Received 2 death",
        why="a user or a script interrupted the job (SIGINT, as by Ctrl-C)",
        fix="nothing, if that was meant; otherwise see which shell, script or limit of time sends SIGINT",
    ),
    Detail(
        "exit",
        code="signal 11$",
        tier=CAUSE,
        causes="a crash in native code (SIGSEGV), which may follow from an earlier failure",
    ),
    Detail(
        "exit",
        code="signal 7$",
        tier=CAUSE,
        causes="SIGBUS: /dev/shm is full or too small (--shm-size, --ipc=host), less often a file that was cut off",
    ),
    Detail(
        "exit",
        code="signal 9$",
        tier=EFFECT,
        causes="SIGKILL: out of memory of the host or of the cgroup, or the scheduler or a user ended it",
        fix="`dmesg -T | grep -i oom` on its node, and the memory limit of its cgroup or pod",
    ),
    Detail(
        "exit",
        code="signal [48]$",
        tier=CAUSE,
        causes="an instruction or arithmetic error in native code: usually a build for another CPU",
    ),
    Detail("exit", code="signal (?:1|2|3|15)$", causes="it was told to end"),
    Detail(
        "exit",
        code="signal 6$",
        causes="the process ended itself (abort, a failed check, an exception in C++): its lines before show why",
    ),
    Detail("exit", code="exit code 127$", tier=CAUSE, proven=True, causes="the program, or a library, was not found"),
    Detail("exit", code="exit code 126$", tier=CAUSE, proven=True, causes="the program may not be executed"),
    Detail(
        "exception",
        text=r"inline_container\.cc|PytorchStreamWriter",
        why="PyTorch could not write a checkpoint to its end: usually the file system or a quota is full",
        fix="`df -h` and `df -i` of the checkpoint's directory, and the quota of its owner",
    ),
    Detail(
        "store",
        text="waiting for clients",
        causes="a process was not started, ended before, came too late, or has another MASTER_ADDR or WORLD_SIZE",
    ),
    Detail(
        "store",
        text="failed on SocketImpl",
        why="a connection to PyTorch's store, which is usually in the process of rank 0, broke after it was made",
        fix="see how the process of rank 0 ended, and its own log",
        causes="the process that holds the store ended first; less often the connection was cut",
    ),
)
