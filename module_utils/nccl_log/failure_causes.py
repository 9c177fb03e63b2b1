# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which causes fit a failure, by its kind, its words and the place in NCCL's sources: tables of our own sentences."""

from __future__ import annotations

from typing import Dict, Tuple

# What a warning leaves open, by kind and code; the causes are in the order of how often they are it.
POSSIBLE = {
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
    ("completion", "11"): "the HCA at the other end failed the operation: see its own log and dmesg",
    ("completion", "1"): "sender and receiver do not agree on a length: another NCCL or other settings on a rank",
    (
        "queue_pair",
        "",
    ): "the address (GID) that NCCL uses is not there for this process: an index (NCCL_IB_GID_INDEX) that the port does"
    " not have, or an interface outside of the container's network; or the HCA refuses a request of the peer, such as"
    " its MTU",
    (
        "queue_pair",
        "unreachable",
    ): "a GID index that is not the RoCE v2 address on every port; no route or ARP response between the two"
    " addresses; HCAs of different rails that are not connected (then NCCL_CROSS_NIC=0)",
    (
        "completion",
        "local access violation work queue error",
    ): "memory of this node that the HCA may not reach: a registration that is gone, GPUDirect RDMA (peermem, ACS,"
    " IOMMU), or the HCA's firmware; no cable",
    (
        "completion",
        "invalid request local work queue error",
    ): "the HCA refuses a request of NCCL (a size, a key or an operation): memory that is registered otherwise"
    " (GPUDirect RDMA, DMA-BUF), or driver, firmware and library of releases that do not fit; no cable",
    ("memory_limit", ""): "the limit of locked memory (`ulimit -l`) in the job or container; or the HCA has no more"
    " queues or registrations",
    ("cuda", "operation not supported"): "driver or virtual machine (vGPU, MIG, WSL) that cannot do what this NCCL"
    " requires",
    ("cuda", "invalid argument"): "a driver that does not fit this NCCL, or an earlier fault of the program's own",
    ("cuda", "invalid resource handle"): "a stream or handle of another GPU, or an earlier failure of CUDA",
    ("cuda", "device-side assert triggered"): "a check within a kernel of the program, such as an index out of range",
    ("cuda", "the launch timed out and was terminated"): "a GPU that drives a display, or a kernel that hangs",
    (
        "cuda",
        "driver shutting down",
    ): "the process was already ending while NCCL was still in use: find what ended it, or whether the program does"
    " not wait for its threads and communicators",
    ("cuda", "unknown error"): "the GPU or its driver: see Xid in dmesg",
    ("cuda", "all CUDA-capable devices are busy or unavailable"): "a GPU in exclusive mode that another process"
    " has, or one that the driver wants reset (NV_ERR_RESET_REQUIRED in dmesg)",
    ("cuda", "misaligned address"): "a kernel of the program or of NCCL, before this call",
    ("cuda", "an illegal instruction was encountered"): "a kernel, of the program or of NCCL, or the GPU",
    ("cuda", "peer access is not supported between these two devices"): "GPUs, driver or virtual machine without P2P",
    ("fabric_manager", ""): "Fabric Manager was not running, failed, or was started again without a reset of the GPUs",
    ("cuda", "out of memory"): "the GPU's memory is full: the program's own tensors, another process on it, or too many"
    " communicators",
    ("cuda", "an illegal memory access was encountered"): "a kernel of the program or of NCCL, before this call",
    ("cuda", "unspecified launch failure"): "a kernel, of the program or of NCCL, or the GPU (Xid)",
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
    (
        "cuda",
        "no kernel image is available for execution on the device",
    ): "this NCCL, or the program, has no kernels for this GPU: a build for it is needed (nccl-tests: NVCC_GENCODE)",
    ("cuda", "device kernel image is invalid"): "this NCCL, or the program, has no kernels for this GPU, or its file is"
    " broken",
    (
        "plugin_waits",
        "",
    ): "the peer is late, stuck or gone, or data is lost on the way; the lines do not show which",
    (
        "connect",
        "",
    ): "an interface that does not reach this node (NCCL_SOCKET_IFNAME on the peer), a firewall or no route"
    " between the nodes, or the peer had ended",
    (
        "connect",
        "refused",
    ): "the peer had ended, or the address is not its own on the network between the nodes (NCCL_SOCKET_IFNAME)",
    (
        "nvml",
        "",
    ): "the container or cgroup shows the process fewer GPUs than NCCL looks for, or library and kernel module"
    " of the driver are of two releases",
    ("closed", ""): "the peer's process ended; less often a firewall or an idle timeout that cuts TCP connections",
    (
        "port",
        "GID table changed",
    ): "an address of the HCA's interface was added or removed: DHCP, NetworkManager, a bond",
    ("hca_lost", ""): "a link that went down, loss on the way, or the peer's process died",
    ("uds", ""): "the peer's process had ended, or the ranks are in containers that do not share a network namespace",
    (
        "peer_access",
        "",
    ): "containers that do not share their GPUs and IPC namespace, IOMMU or ACS in the way, or GPUs that"
    " are not meant to reach each other directly",
    ("topology", ""): "a virtual machine or container that hides a part of PCI or NVLink, or a GPU or HCA that is gone",
    ("store", ""): "rank 0 ended first, or was not started; MASTER_ADDR or MASTER_PORT is another one on some nodes; a"
    " firewall; ranks that came too late",
    ("stuck", ""): "another rank is gone, a GPU that hangs (Xid), or a deadlock in the program",
    ("link_layer", ""): "HCAs and Ethernet ports that NCCL_IB_HCA does not separate, or a node with fewer HCAs",
    ("exit", "-7"): "signal 7 (SIGBUS): /dev/shm is full",
    ("exit", "-9"): "signal 9 (SIGKILL): out of memory of the host, or the scheduler ended it",
    ("exit", "-11"): "signal 11 (SIGSEGV): a crash in native code",
    (
        "driver_functions",
        "",
    ): "the driver's libcuda is older than the CUDA that this NCCL was built for, or a stub library was loaded; NCCL"
    " may continue without what needs the functions",
    ("no_pci_device", ""): "a device in software, or a container that does not show the device in /sys",
    ("net_plugin", "OFI"): "no EFA device in this container or instance, libfabric and plugin of different releases, or"
    " nodes that may not reach each other (security group)",
    (
        "cuda",
        "peer mapping resources exhausted",
    ): "a process or GPU with more than 8 peers, such as 10 GPUs in one process:"
    " one process for each GPU, or fewer peers",
    (
        "cuda",
        "mapping of buffer object failed",
    ): "memory of another GPU or of the host that could not be mapped: driver, P2P, IOMMU or ACS, or a virtual machine",
    (
        "cuda",
        "invalid device function",
    ): "a library or program that was not built for this GPU (nccl-tests: NVCC_GENCODE)",
    (
        "cuda",
        "CUDA driver version is insufficient for CUDA runtime version",
    ): "the driver is older than the CUDA that the program or NCCL was built with: a newer driver, or a build for the"
    " older CUDA; it is CUDA that fails, before NCCL communicates",
    (
        "cuda",
        "the operation cannot be performed in the present state",
    ): "the GPU, or the NVLink fabric between GPUs (Fabric Manager, IMEX), is not in order: Xid in dmesg; or an earlier"
    " failure of CUDA",
    ("cuda", "no CUDA-capable device is detected"): "the container or cgroup shows no GPU",
}

_QUEUES = (
    "the limit of locked memory (`ulimit -l`) in the job or container, or the HCA has no more queues; the line shows no"
)
_QUEUES += " error"
# Words in a failure of a kind that prove a cause, and the cause.
PROVEN: Tuple[Tuple[str, str, str], ...] = (
    ("shared_memory", "No space left on device", "/dev/shm is full, or too small for the job"),
    ("cuda", "Tried to allocate", "the GPU has no memory left"),
)
_STREAMING = (
    "SHARP's job is made; the streaming tree (SAT), which one job at a time has, is taken by another job, or not"
)
_STREAMING += " allowed to this one"
# Words in a failure of a kind, and what they allow.
WORDS: Tuple[Tuple[str, str, str], ...] = (
    (
        "completion",
        "(Flush)",
        "a flush is a read of this node's own GPU memory by its own HCA (GPUDirect RDMA): this node's GPU, HCA, the"
        " PCIe path between them (ACS, IOMMU) or nvidia_peermem, rather than the network or the peer",
    ),
    (
        "nvml",
        "Failed to open",
        "libnvidia-ml.so.1 of the node's driver is not in this process's library path or container: install or mount"
        " it",
    ),
    (
        "shared_memory",
        "(size 0)",
        "the peer's data names no segment (size 0): the two ranks share memory in different ways, for example one by"
        " cuMem host memory (NCCL_CUMEM_HOST_ENABLE=0 on all ranks avoids that), or the process that made the segment"
        " has ended; /dev/shm is not full",
    ),
    (
        "shared_memory",
        "No such file or directory",
        "the process that made the segment has ended, or the two do not share /dev/shm (containers); /dev/shm is not"
        " full",
    ),
    ("shared_memory", "ermission denied", "another user's segment, or a container that may not write /dev/shm"),
    ("sharp", "reaming Tree lock", _STREAMING),
    ("sharp", "SAT tree", _STREAMING),
    (
        "sharp",
        "No resource",
        "sharp_am has no resources left for this job: other jobs have them, or a limit or reservation",
    ),
    (
        "sharp",
        "annot create SHARP job",
        "sharp_am does not run or is not reached, has no resources left, or does not allow it to this job or tenant",
    ),
    (
        "topology",
        "Error : ring ",
        "ranks with different settings (NCCL_*, /etc/nccl.conf), releases of NCCL, or views of GPUs and links, so that"
        " their rings do not fit together; or a GPU or link that one rank does not see",
    ),
    (
        "topology",
        "Attribute ",
        "a topology file (NCCL_TOPO_FILE, or one that the provider puts into the container) that lacks it, or a CPU or"
        " virtual machine that this NCCL does not know; that a file is used is not proven",
    ),
    (
        "net_plugin",
        "(type = 2)",
        "memory of a GPU (type 2) that libfabric or the device's driver does not register: plugin, libfabric, the NIC's"
        " driver and NCCL of releases that do not fit, or no GPUDirect RDMA here",
    ),
    (
        "net_plugin",
        "UNDELIVERABLE",
        "the path to a peer, or the peer itself, is gone: the line names neither; see which process ended first",
    ),
    (
        "net_plugin",
        "nresponsive receiver",
        "the peer's process has ended, hangs or is not at it yet; or a security group or subnet lets no data through:"
        " its EFA device itself responds",
    ),
    (
        "net_plugin",
        "UNREACHABLE",
        "no way to a peer: security group, subnet or route, or the peer is gone",
    ),
    (
        "net_plugin",
        "rovider is supported",
        "no EFA device in this container or instance, or libfabric without the provider: EFA is not usable here",
    ),
    (
        "usage",
        "before the previous operation returned",
        "an earlier call on this communicator, usually its initialisation, failed or was not waited for: its error is"
        " before this one, or in the logs of the other ranks",
    ),
    (
        "usage",
        "Invalid rank requested",
        "ranks are numbered from 0: RANK or WORLD_SIZE is off by one, or a process too many was started",
    ),
    (
        "net_plugin",
        "open AV",
        "EFA's driver, libfabric and the plugin of releases that do not fit, or a limit of the device's resources",
    ),
    (
        "net_plugin",
        "ALLOC_PD",
        "EFA's driver, libfabric and the plugin of releases that do not fit, or a limit of the device or of memory",
    ),
    (
        "queue_pair",
        "Network is unreachable",
        "this node has no route from the HCA's address (RoCE) to the peer's: an interface without its address, a GID"
        " index (NCCL_IB_GID_INDEX) of another subnet, no gateway, or rails that are not connected with each other"
        " (NCCL_CROSS_NIC=0); nothing was sent yet, so no cable or switch is at fault",
    ),
    (
        "connect",
        "Network is unreachable",
        "the node that reports it has no route to that address: its interface is down or lost its address, or the"
        " interface that NCCL_SOCKET_IFNAME names there is in another network than the peer's; no firewall, and nothing"
        " was sent",
    ),
    (
        "limits",
        "Invalid argument",
        "poll() refuses a list that is longer than the limit of open files allows (`ulimit -n`): each connection and"
        " file of the process counts",
    ),
    (
        "store",
        "failed on SocketImpl",
        "usually the process that holds the store (rank 0) ended first; less often the connection to it was cut",
    ),
    (
        "store",
        "clients joined",
        "a process was not started, ended before it came, came too late, or has another MASTER_ADDR, MASTER_PORT or"
        " WORLD_SIZE",
    ),
    (
        "connect",
        "No route to host",
        "the peer's interface does not reach this node (NCCL_SOCKET_IFNAME on the peer); its host is down or in"
        " another network (no ARP response); there is no route; or a firewall rejects; a process that had ended gives"
        " another error (Connection refused)",
    ),
    (
        "mismatch",
        "message truncated",
        "the two ranks of a message disagree on its size: another element type or count, a call more or less on one"
        " side, or other values of NCCL_PROTO, NCCL_ALGO or NCCL's release; the message did arrive, so the link is"
        " not at fault",
    ),
    ("libfabric", "FI_HMEM", "this device has no RDMA: no GPUDirect RDMA on it"),
)
# The same where another part of NCCL met it: kind, code, words of the stage.
POSSIBLE_AT: Tuple[Tuple[str, str, str, str], ...] = (
    (
        "cuda",
        "out of memory",
        "shared memory",
        "memory of the host that was requested from CUDA (cuMem): the driver, WSL or the container does not provide"
        " it, and the GPU's own memory may be free; NCCL_CUMEM_HOST_ENABLE=0 avoids it; less often the GPU's memory is"
        " full",
    ),
    (
        "cuda",
        "operation not supported",
        "by P2P",
        "memory that GPUs share over NVLink by fabric handles (MNNVL, IMEX): no IMEX channel in the container, or"
        " nvidia-imex does not run on all nodes; or a driver or virtual machine (vGPU, MIG, WSL) that cannot share it",
    ),
    (
        "cuda",
        "invalid device pointer",
        "by P2P",
        "memory of another GPU of the node that could not be opened: a driver, virtual machine or IOMMU that does not"
        " let these GPUs share memory, or separate containers; NCCL_P2P_DISABLE=1 avoids it by shared memory and shows"
        " whether that is the cause; the network is not involved",
    ),
    (
        "fabric_manager",
        "NVLS",
        "NVLS",
        "Fabric Manager (on GB200: IMEX, too) was not running, failed, or was started again without a reset of the"
        " GPUs; a container without its rights; NCCL_NVLS_ENABLE=0 continues without NVLink SHARP",
    ),
)
# Where no word of the system's tells more: kind, code.
LAST: Dict[Tuple[str, str], str] = {
    ("verbs", "ibv_create_cq"): _QUEUES,
    ("verbs", "ibv_create_qp"): _QUEUES,
    ("verbs", "ibv_alloc_pd"): _QUEUES,
    ("registration", "ibv_reg_mr"): "the limit of locked memory (`ulimit -l`) in the job, memory that the HCA may not"
    " reach (ACS, IOMMU, no nvidia_peermem), or too many registrations; the line shows no error",
}
# By file of NCCL's sources: what went on. The innermost call that names one decides.
STAGES: Tuple[Tuple[str, str], ...] = (
    ("bootstrap", "in bootstrap, by TCP"),
    ("net_socket", "over NET/Socket (TCP)"),
    ("net_ib|ib_plugin|ibvwrap", "over NET/IB (RDMA)"),
    ("transport/p2p", "on a connection by P2P between GPUs of a node"),
    (r"transport/shm|shmutils|shm\.h", "on a connection through shared memory"),
    ("nvls", "while NVLink SHARP (NVLS) was set up"),
    ("coll_net", "while SHARP (CollNet) was set up"),
    ("mnnvl", "while NVLink between nodes (MNNVL) was set up"),
    ("ras/", "in RAS"),
    (r"graph/(?:xml|topo|paths)", "while the node's topology was read"),
    ("strongstream", "while a collective was started or NCCL's kernels were looked up"),
    (r"transport/net\.(?:cc|cpp|cu)", "over the network transport"),
    (r"transport\.(?:cc|cpp|cu)|transport/generic", "while ranks were connected"),
    (r"(?:^|/)channel\.", "while memory for a communicator's channels was set up, before ranks are connected"),
    ("enqueue", "while a collective was started or NCCL's kernels were looked up"),
    (r"init\.", "at the initialisation of a communicator"),
)
# The system's own words in a failure, and what they allow: for kinds of which nothing better is known.
SYSTEM: Tuple[Tuple[str, str], ...] = (
    ("Permission denied", "the process may not: device or file not given to the container, SELinux or AppArmor"),
    ("Operation not permitted", "the process may not: a capability or device that the container does not have"),
    ("No such file or directory", "a file, device or library that is not in this container or image"),
    ("No such device", "the driver is not loaded, or the device is not given to the container"),
    (
        "Cannot allocate memory",
        "memory that may be locked (`ulimit -l`), too many registrations of the device, or memory of the host",
    ),
    ("No space left on device", "/dev/shm or another file system is full, or the HCA has no more of a resource"),
    ("Resource temporarily unavailable", "a limit of processes and threads (`ulimit -u`, pids.max)"),
    ("Bad address", "memory of the GPU that the HCA's driver cannot pin: nvidia_peermem not loaded and no DMA-BUF"),
    ("Remote I/O error", "the HCA's firmware refused the command: see dmesg on the node"),
    ("Connection refused", "no process listens there: the peer had ended, or the address is another host's"),
    ("Connection reset", "the peer's process ended"),
    ("Broken pipe", "the peer's process ended"),
    ("timed out", "no response: a firewall, no route, or a peer that hangs"),
    ("No route to host", "no route, or a firewall that refuses"),
    ("Network is unreachable", "no route from this interface"),
    ("Address already in use", "another process has the port, such as one left over from an earlier job"),
    ("Cannot assign requested address", "an address that this host does not have"),
    ("Name or service not known", "a host's name that does not resolve here"),
    ("Function not implemented", "a driver or kernel that is older than the library"),
    ("not supported", "a driver, firmware or HCA that cannot do it, or is older than the library"),
    ("Invalid argument", "driver and library of two releases, or a value that the device does not take"),
)
# Kinds whose cause the system's words tell.
SYSTEM_OF = ("warning", "system", "verbs", "registration", "net_plugin", "shared_memory", "name", "uds")
# What NCCL's functions return: number, PyTorch's words, and what it means.
RESULTS: Tuple[Tuple[str, Tuple[str, ...], str], ...] = (
    ("1", ("unhandled cuda error", "UnhandledCudaError"), "a call of CUDA failed"),
    ("2", ("unhandled system error", "SystemError"), "a call of the system or of a library failed, or a device"),
    ("3", ("internal error", "InternalError"), "a check within NCCL failed, or a plugin did"),
    ("4", ("invalid argument", "InvalidArgument"), "the program gave NCCL a wrong argument"),
    ("5", ("invalid usage", "InvalidUsage"), "the program uses NCCL wrongly, such as two ranks on one GPU"),
    (
        "6",
        ("remote process exited", "RemoteError", "remote error"),
        "another rank went away first, or the network failed: that rank's log names the cause",
    ),
)
# Where in NCCL's sources an unknown warning stands, and what to look at next.
AREAS: Tuple[Tuple[str, str, str], ...] = (
    ("net_ib|ibv|mlx5|gin|rma", "its RDMA code", "`ibv_devinfo -v` and `dmesg -T | grep mlx5` on the node"),
    (
        "net_socket|socket|bootstrap|fastsocket",
        "its TCP code",
        "`ip -br address` on both nodes, and the peer's own log",
    ),
    (
        "nvls|mnnvl|multicast",
        "its NVLink SHARP code",
        "`nvidia-smi -q | grep -A 3 Fabric`, `systemctl status nvidia-fabricmanager`",
    ),
    ("shm|shmutils", "its shared memory code", "`df -h /dev/shm` and `ls -l /dev/shm` in the job"),
    (
        "p2p|alloc|cudawrap|strongstream|enqueue|mem_manager|allocator",
        "its CUDA code",
        "`nvidia-smi -q` and `dmesg -T | grep -i xid` on the node",
    ),
    ("graph/|topo|xml|nvml", "its topology code", "`nvidia-smi topo -m` in the job and on the node"),
    ("plugin|ofi|net\\.cc|sharp|ucx", "a plugin or its interface", "the plugin's own lines above it, and its release"),
    ("proxy", "its proxy thread", "the lines of the peer's log at that time"),
    ("argcheck|group|init", "its start or the call's arguments", "the program's own traceback"),
)
