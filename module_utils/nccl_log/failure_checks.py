# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each kind of failure means, which causes fit it, and what to do: tables of our own sentences."""

from __future__ import annotations

from typing import Dict, Tuple

from ..core.check import Check

RETRIES = Check(
    "nccl_log.completion",
    why="an HCA reports that an operation of a connection failed: its status shows possible causes",
    fix="run `busbar diagnose` on the logs of all ranks, and playbooks/verify.yml between the nodes named here",
    severity="critical",
)
"Did every RDMA operation complete"
PORT = Check(
    "nccl_log.port",
    why="the HCA reported an event of its port or queues to the job while it ran",
    fix="look at the port on the node named here: `ibstat DEVICE`, `rdma link`, `dmesg -T | grep -i mlx`, the switch's"
    " log at that time; cable and transceiver first",
    severity="critical",
)
"Did every port and queue of the HCAs stay up"
QUEUE_PAIR = Check(
    "nccl_log.queue_pair",
    why="an RDMA connection was not established: on RoCE the peer's address usually did not resolve, or has no route",
    fix="remove NCCL_IB_GID_INDEX from the job (NCCL 2.21 and later find the RoCE v2 GID automatically); run"
    " playbooks/verify.yml between the nodes: it pings every rail",
    severity="critical",
)
"Was every RDMA connection established"
MEMORY_LIMIT = Check(
    "nccl_log.memory_limit",
    why="RDMA pins memory, and the HCA's driver could not: usually the process may not lock that much",
    fix="`ulimit -l` in the job itself has to print unlimited; run site.yml for the node with --tags host_limits, and"
    " start containers with --ulimit memlock=-1",
    severity="critical",
)
"May processes lock as much memory as RDMA needs"
VERBS = Check(
    "nccl_log.verbs",
    why="a call of the RDMA library failed: it may be the HCA, its driver, a limit, or the container's view of them",
    fix="`ibv_devinfo -v` and `dmesg -T | grep -i mlx` on the node; in a container /dev/infiniband has to be there;"
    " then run site.yml with --tags mofed,nvidia_peermem",
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
"Has each rank a separate GPU"
VERSIONS = Check(
    "nccl_log.version",
    why="all ranks of a job need the same NCCL: others refuse each other, hang, or misread each other's messages",
    fix="use one image or environment on all nodes; `python3 -c 'import torch;"
    " print(torch.cuda.nccl.version())'` on each",
    severity="critical",
)
"Do all ranks of a job run the same release of NCCL"
BOOTSTRAP = Check(
    "nccl_log.bootstrap",
    why="ranks find each other over TCP, not the fast network: the line is about that or its address",
    fix="NCCL_SOCKET_IFNAME has to name an interface that is up and has an address on every node (`ip -br address`), or"
    " be left out; each rank number may be started once",
    severity="critical",
)
"Did the ranks find each other"
CONNECTION = Check(
    "nccl_log.connection",
    why="a rank whose connection is closed is usually a victim: look at the rank that ended first",
    fix="look at the process that ended first: its last lines, `dmesg -T` on its node for OOM and Xid, the scheduler's"
    " record",
    severity="critical",
)
"Did every rank stay connected until the end"
SHARED_MEMORY = Check(
    "nccl_log.shared_memory",
    why="ranks of a node communicate through /dev/shm, and a segment there could not be made or used: usually no"
    " space, or CUDA refused the memory",
    fix="`df -h /dev/shm` in the job: start the container with --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of"
    " medium Memory on /dev/shm), and, while no job runs on the node, remove leftover segments: rm /dev/shm/nccl-*",
    severity="critical",
)
"Has /dev/shm room for NCCL"
CUDA = Check(
    "nccl_log.cuda",
    why="a CUDA call failed, in NCCL or in the program: the cause may be the GPU, its driver, its memory, an invalid"
    " request, or an earlier fault of a kernel",
    fix="`nvidia-smi -q` and `dmesg -T | grep -i xid` on the node named here; no Xid there: run the program with"
    " CUDA_LAUNCH_BLOCKING=1 to see which kernel fails first",
    severity="critical",
)
"Do CUDA's calls succeed"
FABRIC_MANAGER = Check(
    "nccl_log.fabric_manager",
    why="a request to NVSwitch, or to NVLink across nodes, failed: usually Fabric Manager (or IMEX) is not"
    " running, not ready, or not of the driver's version",
    fix="`systemctl status nvidia-fabricmanager` on the node (GB200: nvidia-imex), its version has to be the driver's;"
    " `nvidia-smi -q | grep -A 3 Fabric` has to print Completed and Success",
    severity="critical",
)
"Are NVSwitches and NVLink across nodes ready"
NVLINK_P2P = Check(
    "nccl_log.nvlink_p2p",
    why="GPUs that NVLink joins may not reach each other: usually hardware, or a GPU that needs a reset",
    fix="drain the node, `nvidia-smi topo -p2p r` and `nvidia-smi nvlink -s` there; reset the GPUs or reboot",
    severity="critical",
)
"Do GPUs that NVLink joins reach each other"
MISMATCH = Check(
    "nccl_log.mismatch",
    why="usually ranks did not call the same collective with the same size, or have other settings or another NCCL",
    fix="compare NCCL's release and NCCL_ variables of all ranks (this command shows both), then the order and sizes of"
    " the program's collectives: NCCL_DEBUG_SUBSYS=COLL shows them",
    severity="critical",
)
"Do all ranks call the same collectives with the same sizes and settings"
SETTING = Check(
    "nccl_log.setting",
    why="NCCL refuses the value of a variable",
    fix="take NCCL_ALGO, NCCL_PROTO, NCCL_NET and NCCL_NET_PLUGIN out of the job and out of /etc/nccl.conf, then put"
    " back what is needed one by one: `busbar lint` explains each",
    severity="critical",
)
"Can NCCL do what its variables require"
NO_WAY = Check(
    "nccl_log.no_transport",
    why="two ranks have no way to reach each other",
    fix="take NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_HCA out of the job; all nodes have to use HCAs of the same"
    " link layer",
    severity="critical",
)
"Is there a transport between all ranks"
WATCHDOG = Check(
    "nccl_log.watchdog",
    why="a collective did not end in time: PyTorch reports which ranks waited, not the cause",
    fix="while it hangs run `busbar hang HOST` to find the rank that is behind; else set TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    " and TORCH_FR_BUFFER_SIZE=20000 (PyTorch before 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE=20000), and compare the ranks'"
    " last collective",
    severity="critical",
)
"Did every collective end in time"
EXIT = Check(
    "nccl_log.exit",
    why="a process ended: later waits and lost connections of others are usually caused by that",
    fix="its own last lines show why; signal 9: `dmesg -T | grep -i oom` on its node, and the limit of its"
    " cgroup or pod",
    severity="critical",
)
"Did every process end normally"
NET_PLUGIN = Check(
    "nccl_log.net_plugin",
    why="the network plugin reports a failure: NCCL may end, wait, or continue over TCP",
    fix="see in the job itself whether the plugin's devices are there, and that plugin, its libraries and the driver"
    " are of one installation; NCCL_DEBUG=INFO shows which network is used",
)
"Does the network's plugin work without a failure"
DEVICE = Check(
    "nccl_log.device",
    why="an RDMA device without a PCI device is usually RDMA in software (rxe, siw): no GPUDirect, and no faster than"
    " TCP",
    fix="`rdma link` and `ls -l /sys/class/infiniband` in the job and on the node: a device in software has no PCI"
    " address there; let NCCL_IB_HCA name the HCAs alone",
)
"Is every RDMA device a hardware device"
LIMITS = Check(
    "nccl_log.limits",
    why="the system gives the process no more files, sockets or threads, usually because of a limit: each connection"
    " of NCCL needs some",
    fix="`ulimit -n -u` in the job itself, and pids.max of its cgroup: raise them (LimitNOFILE, docker --ulimit,"
    " Slurm's PropagateResourceLimits); run site.yml for the node with --tags host_limits",
    severity="critical",
)
"May processes open as many files and threads as NCCL needs"
HOST_MEMORY = Check(
    "nccl_log.host_memory",
    why="NCCL could not allocate memory of the host: usually the memory, or the job's share of it, ran out",
    fix="`dmesg -T | grep -i oom` on the node, and the memory limit of the job's cgroup or pod",
    severity="critical",
)
"Has the host memory for NCCL"
USAGE = Check(
    "nccl_log.usage",
    why="NCCL refuses an invalid call: usually an error of the program or framework, which no setting of the node"
    " repairs",
    fix="look in the program's own traceback for the call of NCCL that was refused; try another release of the"
    " framework",
    severity="critical",
)
"Does the program call NCCL correctly"
TOPOLOGY = Check(
    "nccl_log.topology",
    why="NCCL warns about the node's PCI and NVLink topology as this process sees it",
    fix="`nvidia-smi topo -m` in the job and on the node: they have to agree; in a virtual machine NCCL needs the"
    " provider's file (NCCL_TOPO_FILE), in a container the whole of /sys; take NCCL_TOPO_FILE and NCCL_GRAPH_FILE out"
    " of the job where the provider did not set them",
)
"Does NCCL understand the node's topology"
STORE = Check(
    "nccl_log.store",
    why="PyTorch's processes meet at a store in rank 0's process (MASTER_ADDR:MASTER_PORT), by TCP and before NCCL:"
    " usually it was not reached, ended, or a process came too late",
    fix="find out first how the process of rank 0 ended, and read its own log; then check whether every node reaches"
    " MASTER_ADDR and MASTER_PORT (`nc -vz ADDRESS PORT`), and whether as many processes were started as in WORLD_SIZE",
    severity="critical",
)
"Did PyTorch's processes find each other"
RANKS = Check(
    "nccl_log.ranks",
    why="a communicator needs all of its ranks: while one is missing the others wait",
    fix="see on the nodes of the missing ranks whether their processes run, and can reach rank 0's address; run"
    " `busbar hang HOST` while it waits",
    severity="critical",
)
"Did all ranks of every communicator start and complete its initialisation"
WARNING = Check(
    "nccl_log.warning",
    why="NCCL warns of something that this command has no rule for",
    fix="read it with the lines above it; `NCCL_DEBUG=INFO` shows the calls that led there",
)
"Does NCCL print no other warning"

_OOM = (
    "the kernel or the scheduler killed a process because memory of the host ran out",
    "raise the job's memory limit (cgroup, pod, Slurm --mem), or let it need less: data loaders, pinned memory,"
    " checkpoints",
)
# Why and fix of kinds (and codes) that have their own, under a check of several kinds.
OWN: Dict[Tuple[str, str], Tuple[str, str]] = {
    ("plugin_waits", ""): (
        "GCP's plugin (GPUDirect-TCPX or FasTrak) waits for data from a peer: this is not a crash and not a refused"
        " connection, and the waiting rank is not the cause",
        "find out what the peers that it names did at that time: their own logs, whether their process runs, and the"
        " receive daemon of the plugin (tcpgpudmarxd, rxdm) on both nodes",
    ),
    ("net_plugin", "FasTrak"): (
        "GCP's plugin for GPUDirect-TCPXO (FasTrak) reports a failure: it usually causes later broken pipes and"
        " timeouts",
        "take plugin, its receive daemon (rxdm) and NCCL of one release of GCP's installer; see whether the daemon runs"
        " on both nodes, has its GPUs and NICs, and shares its socket and /dev with the job's container",
    ),
    ("plugin_warning", ""): (
        "a warning of the network plugin that this command has no rule for: it need not be a failure",
        "read it with the plugin's lines above it; see whether NCCL continues, and read the peers' logs of that time",
    ),
    ("fallback", "cuMem"): (
        "NCCL's memory by cuMem is not available here: NCCL uses the older method, which is not a failure",
        "nothing for the job; NCCL_CUMEM_ENABLE=0 switches it off",
    ),
    ("mismatch", "PyTorch"): (
        "PyTorch itself compared the ranks' calls before they reached NCCL, and they differ: the program's ranks are"
        " out of step (a branch, another number of steps, a collective that not all ranks call), and no network makes"
        " that",
        "look in the program for what only some ranks call: the traceback of each rank names its call; the first"
        " difference is the place to look",
    ),
    ("no_interface", ""): (
        "this process found no interface that it may use: usually the interface in NCCL_SOCKET_IFNAME is missing or"
        " not up in the job or container",
        "`ip -br address` in the job itself; NCCL_SOCKET_IFNAME has to name an interface that is up and has an address"
        " on every node, or be left out",
    ),
    ("connect", ""): (
        "a TCP connection was not made: this usually causes the connections closed after it",
        "try the address from the node that reports it (`ip route get ADDRESS`, `ping`); read the peer's log after"
        " Bootstrap; set NCCL_SOCKET_IFNAME to the interface between the nodes if NCCL has chosen another one",
    ),
    ("hca_skipped", ""): (
        "NCCL skips an RDMA device that it cannot open and continues with the others: this node may use one HCA less"
        " than its peers",
        "`ls -l /dev/infiniband` and `ibv_devinfo` in the job: each device of the node needs its uverbs file there"
        " (device plugin, docker --device); then compare the lines `NET/IB : Using` of all nodes",
    ),
    ("port", "local catastrophic error"): (
        "the HCA itself has failed, as it reports: it may be its firmware, its PCIe slot, or the driver that reset it;"
        " no cable and no peer does that",
        "`dmesg -T | grep -i mlx` and `lspci -vv -s ADDRESS` on the node; drain it, reset the HCA or the node, and see"
        " its firmware",
    ),
    ("fallback", ""): (
        "NCCL could not use its first method and uses another one: not a failure",
        "nothing if the job continued and is fast enough; otherwise read the lines before it",
    ),
    ("fallback", "Cannot initialize CollNet"): (
        "in-network reduction (SHARP) was requested and could not be set up: NCCL continues point to point, which is"
        " at most slower; calls that returned an error before it belong to it",
        "see the lines of SHARP before it and sharp_am on the subnet manager's host; a job that does not request"
        " CollNet does not need it",
    ),
    ("fallback", "falling back to simple order"): (
        "NCCL found no way through the GPUs that fits its search, as is usual where P2P is off, and takes them in"
        " their simple order: no failure",
        "nothing for the job; `nvidia-smi topo -m` shows how the GPUs are connected",
    ),
    ("sharp", ""): (
        "SHARP, reduction in InfiniBand's switches, could not be set up for this job: usually NCCL continues without"
        " it (Cannot initialize CollNet), at most slower",
        "`systemctl status sharp_am` on the subnet manager's host and its log: jobs and trees that are taken, limits,"
        " reservations; a job that does not request CollNet does not need SHARP",
    ),
    ("no_network", ""): (
        "this process does not have the requested network, or has none: its plugin is missing or did not start",
        "read the plugin's and NET/ lines before it; check NCCL_NET, NCCL_NET_PLUGIN, NCCL_IB_HCA and"
        " NCCL_SOCKET_IFNAME in the job and in /etc/nccl.conf; the interface that they name has to be up in the job"
        " (`ip -br address`)",
    ),
    ("algorithm", ""): (
        "NCCL has no algorithm and protocol left for a call, or does not accept the variables that name them: possibly"
        " NCCL_ALGO or NCCL_PROTO (an unknown name, or none that fits the call); or a tuner plugin, or a size or type"
        " that no algorithm of this release supports; the message does not show which",
        "remove NCCL_ALGO, NCCL_PROTO and NCCL_TUNER_PLUGIN from the job and from /etc/nccl.conf (names are Ring,"
        " Tree, CollnetDirect, CollnetChain, NVLS, NVLSTree, PAT; and LL, LL128, Simple); if none is set,"
        " NCCL_DEBUG_SUBSYS=COLL shows the call with its count and type: try a smaller one, or another release",
    ),
    ("merely_tried", ""): (
        "a TCP connection was not made at this try, and NCCL tries it again: no failure yet",
        "if it recurs: try the address from the node that reports it (`ip route get ADDRESS`, `ping`), and read the"
        " peer's log after Bootstrap",
    ),
    ("bootstrap", "already"): (
        "two processes have the same rank number: usually the launcher assigned it twice, or a process of an earlier"
        " start is left over; the network is not at fault",
        "see what sets RANK (Slurm: SLURM_PROCID, mpirun: OMPI_COMM_WORLD_RANK) in each process, and that no process of"
        " an earlier start is left over",
    ),
    ("bootstrap", "mismatch"): (
        "a process sent rank 0 of the job other data than the rest: usually it has another release or build of NCCL,"
        " or is of an earlier start; TCP itself works",
        "compare the libnccl.so.2 that each rank loads (`grep libnccl /proc/PID/maps`), and check that no process of"
        " an earlier start is left over; numbers in the line that make no sense point to two releases",
    ),
    ("accept", ""): (
        "a rank could not accept a TCP connection: usually its own listening socket was closed before",
        "see what its process did before: another thread that ended NCCL, or a limit of files (`ulimit -n`)",
    ),
    ("shared_memory", "attaching"): (
        "ranks of a node communicate through /dev/shm, and a segment that another process makes could not be attached"
        " to: usually that process has ended, or the two do not share /dev/shm",
        "see first whether and how the process that made it ended; ranks of a node in several containers need a common"
        " /dev/shm (docker --ipc=host, Kubernetes: one pod), and nothing may clean /dev/shm while the job runs",
    ),
    ("ras", ""): (
        "it is from RAS, which reports on running jobs: no collective needs it, and a job continues without it",
        "nothing for the job; NCCL_RAS_ADDR=HOST:PORT gives a second job on the node its own port",
    ),
    ("event", ""): (
        "the HCA reports a change and no failure: usually the subnet manager was started again or has changed"
        " something, or a port has come back that was down before",
        "nothing where the job continued; often: see the port's own errors before it, and the subnet manager's log",
    ),
    ("libfabric", ""): (
        "it is a line of libfabric's own, below the network plugin",
        "see the plugin's own lines (NET/OFI) and whether NCCL continued",
    ),
    ("fabric_manager", "NVLS"): (
        "NVLink SHARP (NVLS) could not be set up: usually Fabric Manager is not running or not of the driver's"
        " version; other causes are the driver, the container's rights, or the request of NCCL",
        "`systemctl status nvidia-fabricmanager` on the node, its version has to be the driver's; `nvidia-smi -q | grep"
        " -A 3 Fabric` has to print Completed and Success; NCCL_NVLS_ENABLE=0 does without NVLink SHARP",
    ),
    ("driver_old", ""): (
        "the GPU's driver is older than the CUDA that NCCL or the program was built for",
        "`nvidia-smi` on the node shows the driver and the newest CUDA that it runs: install a newer driver on the node"
        " (a container has the node's), or an image or wheel for that CUDA",
    ),
    ("name", ""): (
        "a host name, usually in NCCL_COMM_ID, does not resolve here",
        "`getent hosts NAME` in the job itself; give NCCL_COMM_ID an address, or take it out",
    ),
    ("compiled", ""): (
        "the program was compiled for another NCCL than the one that is loaded",
        "`ldd` of the program and LD_LIBRARY_PATH show which libnccl.so.2 is loaded: use the release that the program"
        " was compiled for, or compile it again",
    ),
    ("hca_lost", ""): (
        "NCCL gave up on an HCA or on a connection of it, and continues without it only where there is another one",
        "look at the port on the node named here: `ibstat`, `rdma link`, `dmesg -T | grep -i mlx`, the switch's log at"
        " that time; cable and transceiver first",
    ),
    ("fabric_manager", "MNNVL"): (
        "memory that GPUs share over NVLink between nodes (MNNVL) was not available: usually IMEX is not ready, or"
        " this process has no access to it",
        "`systemctl status nvidia-imex` and `nvidia-imex-ctl -N` on every node of the domain; the job needs an IMEX"
        " channel (`ls /dev/nvidia-caps-imex-channels` in its container); NCCL_MNNVL_ENABLE=0 continues without NVLink"
        " between nodes",
    ),
    ("peer_access", ""): (
        "memory that GPUs or processes were to share was refused by CUDA",
        "`nvidia-smi topo -p2p r` on the node; several processes of a job on a node need a common IPC and PID"
        " namespace (docker --ipc=host), and each has to see all of the job's GPUs there",
    ),
    ("net_plugin", "OFI"): (
        "the plugin for libfabric (AWS EFA or another provider) reports a failure: NCCL may end, wait, or continue over"
        " TCP",
        "in the job itself: `fi_info` shows the providers (AWS: `-p efa`); plugin, libfabric and the NIC's driver have"
        " to be of one installation; the security group has to allow all traffic within itself",
    ),
    ("uds", ""): (
        "ranks of a node hand each other memory by Unix sockets, and one was not reached or broke",
        "see first whether the peer's process had ended; ranks of a node in several containers need a common network"
        " namespace (host network); NCCL_CUMEM_ENABLE=0 avoids these sockets",
    ),
    ("merge", ""): (
        "NCCL could not use several ports or HCAs as one",
        "take NCCL_NET_FORCE_MERGE and NCCL_IB_MERGE_NICS out of the job; NCCL_NET_MERGE_LEVEL=LOC merges none",
    ),
    ("link_layer", ""): (
        "HCAs of two link layers (InfiniBand and Ethernet), or other numbers of HCAs on two nodes, do not go together",
        "`rdma link` on both nodes; let NCCL_IB_HCA name HCAs of one link layer, as many on every node",
    ),
    ("value", ""): (
        "NCCL does not accept the value of a variable or of the program, and uses another one",
        "take the variable out, or give it a value that is allowed: `busbar lint` lists them",
    ),
    ("topology_file", ""): (
        "a file with a topology or a graph (NCCL_TOPO_FILE, NCCL_GRAPH_FILE) cannot be read, is not in order, or does"
        " not fit this node and job",
        "`ls -l` of the file in the job itself; take the variable out, or get the file again from its provider",
    ),
    ("gdrcopy", ""): (
        "GDRCopy, which NCCL_GDRCOPY_ENABLE or a plugin requires, does not work: it affects latency only, not the"
        " data path",
        "`lsmod | grep gdrdrv` and `ls -l /dev/gdrdrv` in the job; library and module have to be of one release; or"
        " take NCCL_GDRCOPY_ENABLE out",
    ),
    ("device_api", ""): (
        "the program requests NCCL's symmetric memory or its network from within kernels (GIN, RMA), and something"
        " that these need is not there",
        "check the program's own options for GIN, RMA or symmetric memory (DeepEP and NVSHMEM-like libraries use"
        " them); check what its documentation requires of HCA, driver and NCCL",
    ),
    ("device_api", "space"): (
        "NCCL found no room for a window in the address range that it reserves for symmetric memory: the memory"
        " of host or GPU need not have run out",
        "see how much the program registers as windows in all (ncclCommWindowRegister, symmetric memory of PyTorch) and"
        " gives back; where that is little, try another release of NCCL",
    ),
    ("confidential", ""): (
        "confidential computing is on, but not in its multi-GPU mode: traffic between GPUs is not protected",
        "the provider or `nvidia-smi conf-compute -q` shows the mode of the machine",
    ),
    ("internal", ""): (
        "NCCL's state is inconsistent: a bug of NCCL or a plugin, overwritten memory, or an effect of another failure",
        "repair other failures of this log first; if there are none, try another NCCL, and report it with the whole"
        " log",
    ),
    ("nvml", ""): (
        "the NVIDIA management library (NVML) was missing, or its response was not usable for NCCL",
        "`nvidia-smi` in the job itself; in a container all GPUs of the job and libnvidia-ml.so.1 of the node's driver",
    ),
    ("xid", ""): (
        "the driver reports an error on a GPU (Xid): its number shows whether the GPU, a link or a program is the"
        " cause",
        "look the number up in NVIDIA's list of Xid errors; 48, 63, 64, 74, 79, 94, 95, 119 or 140: drain the node, and"
        " reset the GPU or replace it",
    ),
    ("oom", ""): _OOM,
    ("exit", "Out Of Memory"): _OOM,
    ("exit", "NODE_OUT_OF_MEMORY"): _OOM,
    ("time_limit", ""): (
        "the scheduler ended the job at its time limit",
        "read in the last lines whether it was still working: then raise the limit (`scontrol show job`); if it hung,"
        " or was done and did not end, run `busbar hang HOST` next time",
    ),
    ("cancelled", ""): ("the job was cancelled: by a user, the scheduler, or another task's end", "see `sacct -j JOB`"),
    ("node_failure", ""): (
        "the scheduler or launcher lost a node",
        "see whether the node named there is up: `sinfo -R`, its console, and BMC",
    ),
    ("queue_pair", "unreachable"): (
        "an RDMA connection was not established: usually the peer's address did not respond, on RoCE an address of"
        " the rail, which needs ARP and a route",
        "from the node that reports it, from the address of its HCA to the peer's (the GIDs of the line, where it has"
        " some; else `rdma link`, `show_gids` or `ip -br address` on both nodes): `ping -I OWN_ADDRESS PEER_ADDRESS`,"
        " `ip route get PEER_ADDRESS`, `ip neigh`; rails that are not connected with each other: NCCL_CROSS_NIC=0; and"
        " take NCCL_IB_GID_INDEX out of the job; playbooks/verify.yml pings every rail",
    ),
    ("sxid", ""): (
        "an NVSwitch reports a fatal fault of itself or of a link: GPUs of the node that use it fail after it",
        "drain the node; /var/log/fabricmanager.log and `nvidia-smi nvlink -e` name link and GPU; restart the node (or"
        " reset all GPUs and NVSwitches with the Fabric Manager stopped), and have it looked at where it comes back",
    ),
    ("unresolved", ""): (
        "a host's name does not resolve where the line was written: nothing could be started or reached there",
        "`getent hosts NAME` on that node, or in that pod; Kubernetes: the pod and its headless service have to be"
        " there before the launcher starts; else give addresses, or take the name into DNS or /etc/hosts",
    ),
    ("port_in_use", ""): (
        "a process could not open its port, because another one has it: no network is involved, and nothing was sent",
        "`ss -ltnp` on that node shows the process that has the port: end what is left of an earlier job, or use"
        " another port (MASTER_PORT, --master_port, --rdzv_endpoint; --standalone or port 0 let torchrun choose), and"
        " let only one process open it: two jobs, or two launchers on one node, need two ports",
    ),
    ("store", "port"): (
        "the process that is to open the port of PyTorch's store could not: nothing was sent, and no network is"
        " involved; usually another process on that host has the port, or MASTER_ADDR is not an address of that host",
        "`ss -ltnp` on that host shows the process that has the port: end what is left of an earlier job, or use"
        " another port (MASTER_PORT, --master_port, --rdzv_endpoint), and let only one process open it",
    ),
    ("signalled", ""): (
        "a rank gave up the wait for a collective and had all others write their flight recorders: a rank that only"
        " got the signal, or ended after it, has not failed first",
        "see the own log of the rank that signalled, at and before that time: it names the collective and how long it"
        " waited; then what the other ranks did then, by their flight recorders' dumps",
    ),
    ("stuck", ""): (
        "PyTorch's heartbeat monitor got no heartbeat from the watchdog's thread: usually a call of CUDA or NCCL"
        " hangs, or a lock, or an abort; the reporting rank is not the cause",
        "py-spy dump of all ranks while it hangs, and the flight recorder's dumps of all ranks"
        " (TORCH_NCCL_DUMP_ON_TIMEOUT=1); `nvidia-smi` and `dmesg -T | grep -i xid` on its node",
    ),
}
# The same where words of the line tell more than its kind: kind, pattern, why, fix.
BY_WORDS: Tuple[Tuple[str, str, str, str], ...] = (
    (
        "topology",
        r"Error : ring \d",
        "NCCL checks the rings that it built from the data of all ranks: this one does not go through every rank, so"
        " the rings do not fit together; the line does not show why",
        "compare the ranks: NCCL_* in their environments and /etc/nccl.conf, which libnccl.so.2 each loads (`grep"
        " libnccl /proc/PID/maps`), `nvidia-smi topo -m` on each node; then run it with NCCL_DEBUG=INFO on all ranks,"
        " which shows the rings of each; where all are alike try another release of NCCL",
    ),
    (
        "shared_memory",
        r"\(size 0\)",
        "ranks of a node communicate through /dev/shm, and the data of another process names no segment there: the"
        " connection data between ranks arrived empty or damaged, and space is not the problem",
        "set NCCL_CUMEM_HOST_ENABLE=0 on all ranks and see that they load one libnccl.so.2; then whether the process"
        " that should have made the segment ended before",
    ),
    (
        "store",
        "failed on SocketImpl",
        "a connection to PyTorch's store, which is usually in the process of rank 0, broke after it was made: the"
        " store had been reached, and usually the process that holds it ended",
        "see first how the process of rank 0 ended, and its own log: what came before this line there is the cause",
    ),
    (
        "net_plugin",
        r"nresponsive receiver|UNDELIVERABLE|Undeliverable",
        "a peer did not respond to data or a handshake: usually the peer's log has the cause",
        "look at the peer: whether its process was alive at that time, and the last lines of its log; if it was"
        " alive and logged nothing, check the network between the nodes (AWS: the security group has to allow all"
        " traffic within itself)",
    ),
    (
        "net_plugin",
        r"\(type = 2\)",
        "the plugin runs and has its device; memory of a GPU was not registered with it, without which there is no"
        " GPUDirect RDMA",
        "see whether libfabric's provider, the NIC's driver and CUDA of this job fit each other (`fi_info -v`"
        " has to name FI_HMEM); as a test run without GPUDirect RDMA: NCCL_NET_GDR_LEVEL=LOC",
    ),
    (
        "net_plugin",
        r"^(?!.*\(type = 2\)).*Cannot allocate memory",
        "the plugin runs and has its device, and was refused memory",
        "`ulimit -l` in the job itself has to print unlimited (containers: --ulimit memlock=-1); `free -h` and the"
        " job's memory limit (cgroup, pod) on that node; fewer communicators and buffers need fewer registrations",
    ),
    (
        "topology_file",
        "XML Import Channel",
        "the graph file (NCCL_GRAPH_FILE) was read, and names a device that this communicator does not have: usually"
        " it was made for other or more GPUs than this job has",
        "take NCCL_GRAPH_FILE out (/etc/nccl.conf and an image may set it, too): NCCL then searches for itself",
    ),
    (
        "plugin_warning",
        "Cannot get incoming CPU|Maximum retry reached for (?:accept|connect)",
        "FastSocket did not get the CPU or queue that it wants for a connection: it affects the placement of flows and"
        " may cost speed; it is not a failure",
        "if `NET/FastSocket : Connected` follows, NCCL continues; act only if the job is too slow",
    ),
)
CHECKS = {
    "completion": RETRIES,
    "port": PORT,
    "queue_pair": QUEUE_PAIR,
    "memory_limit": MEMORY_LIMIT,
    "registration": VERBS,
    "verbs": VERBS,
    "hca_skipped": VERBS,
    "duplicate_gpu": DUPLICATE,
    "version": VERSIONS,
    "no_interface": BOOTSTRAP,
    "address": BOOTSTRAP,
    "sharp": NET_PLUGIN,
    "fallback": WARNING,
    "merely_tried": CONNECTION,
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
    "plugin_waits": NET_PLUGIN,
    "plugin_warning": NET_PLUGIN,
    "no_pci_device": DEVICE,
    "driver_functions": WARNING,
    "nvml": WARNING,
    "limits": LIMITS,
    "compiled": VERSIONS,
    "name": BOOTSTRAP,
    "hca_lost": PORT,
    "uds": NO_WAY,
    "peer_access": NO_WAY,
    "host_memory": HOST_MEMORY,
    "merge": SETTING,
    "value": SETTING,
    "topology": TOPOLOGY,
    "topology_file": TOPOLOGY,
    "gdrcopy": WARNING,
    "usage": USAGE,
    "device_api": USAGE,
    "confidential": WARNING,
    "internal": WARNING,
    "system": WARNING,
    "xid": CUDA,
    "sxid": FABRIC_MANAGER,
    "oom": EXIT,
    "time_limit": EXIT,
    "cancelled": EXIT,
    "node_failure": EXIT,
    "store": STORE,
    "port_in_use": STORE,
    "unresolved": BOOTSTRAP,
    "stuck": WATCHDOG,
    "signalled": WATCHDOG,
    "ras": WARNING,
    "event": PORT,
    "accept": BOOTSTRAP,
    "libfabric": NET_PLUGIN,
    "warning": WARNING,
}
# What is no failure by itself: the first failure is another one, where there is one.
MERELY = (
    *("plugin_warning", "plugin_waits"),
    *("warning", "no_pci_device", "driver_functions", "nvml", "value", "gdrcopy", "confidential"),
    *(
        "internal",
        "topology",
        "system",
        "merge",
        "ras",
        "event",
        "libfabric",
        "sharp",
        "fallback",
        "merely_tried",
        "hca_skipped",
    ),
)
# What is minor, whatever else is there.
MINOR = ("event", "ras", "libfabric", "value", "gdrcopy", "fallback")
# What is not told to be wrong.
OPEN = (
    "plugin_warning",
    "plugin_waits",
    "warning",
    "driver_functions",
    "nvml",
    "internal",
    "system",
    "gdrcopy",
    "confidential",
    "ras",
    "event",
    "libfabric",
    "fallback",
    "merely_tried",
)
# What follows from something else: never the first failure while there is another one.
FOLLOWS = (
    *("closed", "connect", "consequence", "exception", "test", "watchdog", "progress", "exit", "uds", "store", "stuck"),
    *("cancelled", "left", "signalled"),
)
