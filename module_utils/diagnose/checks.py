# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of `busbar diagnose`: what each asks, why it matters, and what to do where an event has no advice."""

from __future__ import annotations

from ..core.check import Check

CAPTURE = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
AGAIN = "run it again with %s, and give this command the files of all ranks" % CAPTURE
RETRIES = Check(
    "nccl_log.completion",
    severity="critical",
    why="an HCA reports that an operation of a connection failed: its status shows possible causes",
    fix="run `busbar diagnose` on the logs of all ranks, and playbooks/verify.yml between the nodes named here",
)
"Did every RDMA operation complete"
PORT = Check(
    "nccl_log.port",
    severity="critical",
    why="the HCA reported an event of its port or queues to the job while it ran",
    fix="`ibstat DEVICE`, `rdma link`, `dmesg -T | grep -i mlx`, the switch's log at that time; cable and optics first",
)
"Did every port and queue of the HCAs stay up"
NODE_EVENTS = Check(
    "nccl_log.node_events",
    why="a link that goes down, or a GPU with an Xid, ends or slows the job that uses it",
)
"Did `busbar watch` see no Xid and no link go down while the job ran (`busbar diagnose --watch`)"
QUEUE_PAIR = Check(
    "nccl_log.queue_pair",
    severity="critical",
    why="an RDMA connection was not established: on RoCE the peer's address usually did not resolve, or has no route",
    fix="remove NCCL_IB_GID_INDEX from the job; playbooks/verify.yml between the nodes pings every rail",
)
"Was every RDMA connection established"
MEMORY_LIMIT = Check(
    "nccl_log.memory_limit",
    severity="critical",
    why="RDMA pins memory, and the HCA's driver could not: usually the process may not lock that much",
    fix="`ulimit -l` in the job has to print unlimited: site.yml --tags host_limits; containers: --ulimit memlock=-1",
)
"May processes lock as much memory as RDMA needs"
VERBS = Check(
    "nccl_log.verbs",
    severity="critical",
    why="a call of the RDMA library failed: it may be the HCA, its driver, a limit, or the container's view of them",
    fix="`ibv_devinfo -v`, `dmesg -T | grep -i mlx`; container: /dev/infiniband; site.yml --tags mofed,nvidia_peermem",
)
"Do the calls of the RDMA library succeed"
DUPLICATE = Check(
    "nccl_log.duplicate_gpu",
    severity="critical",
    why="two ranks of a communicator have the same GPU",
    fix="one GPU a process: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); as many processes as GPUs",
)
"Has each rank a separate GPU"
VERSIONS = Check(
    "nccl_log.version",
    severity="critical",
    why="all ranks of a job need the same NCCL: others refuse each other, hang, or misread each other's messages",
    fix="use one image on all nodes; `python3 -c 'import torch; print(torch.cuda.nccl.version())'` on each",
)
"Do all ranks of a job run the same release of NCCL"
RELEASE = Check(
    "nccl_log.release",
    severity="minor",
    why="this release of NCCL has a defect that the job may have met",
    fix="use another release of NCCL",
)
"Has the job's release of NCCL a known defect that it meets, or that has the effect that the log shows"
BOOTSTRAP = Check(
    "nccl_log.bootstrap",
    severity="critical",
    why="ranks find each other over TCP, not the fast network: the line is about that or its address",
    fix="NCCL_SOCKET_IFNAME has to name an interface with an address on every node (`ip -br address`), or be left out",
)
"Did the ranks find each other"
CONNECTION = Check(
    "nccl_log.connection",
    severity="critical",
    why="a rank whose connection is closed is usually a victim: look at the rank that ended first",
    fix="look at the process that ended first: its last lines, `dmesg -T` for OOM and Xid, the scheduler's record",
)
"Did every rank stay connected until the end"
SHARED_MEMORY = Check(
    "nccl_log.shared_memory",
    severity="critical",
    why="a segment in /dev/shm, by which ranks of a node communicate, could not be made or used: usually no space",
    fix="`df -h /dev/shm` in the job: --shm-size=16g or --ipc=host; leftovers with no job there: rm /dev/shm/nccl-*",
)
"Has /dev/shm room for NCCL"
CUDA = Check(
    "nccl_log.cuda",
    severity="critical",
    why="a CUDA call failed: the cause may be the GPU, its driver, memory, a request, or a kernel's earlier fault",
    fix="`nvidia-smi -q` and `dmesg -T | grep -i xid` on the node; no Xid: CUDA_LAUNCH_BLOCKING=1 names the kernel",
)
"Do CUDA's calls succeed"
FABRIC_MANAGER = Check(
    "nccl_log.fabric_manager",
    severity="critical",
    why="a request to NVSwitch or NVLink failed: Fabric Manager or IMEX does not run, or is of another version",
    fix="`systemctl status nvidia-fabricmanager` (GB200: nvidia-imex); `nvidia-smi -q | grep -A 3 Fabric`: Completed",
)
"Are NVSwitches and NVLink across nodes ready"
NVLINK_P2P = Check(
    "nccl_log.nvlink_p2p",
    severity="critical",
    why="GPUs that NVLink joins may not reach each other: usually hardware, or a GPU that needs a reset",
    fix="drain the node, `nvidia-smi topo -p2p r` and `nvidia-smi nvlink -s` there; reset the GPUs or reboot",
)
"Do GPUs that NVLink joins reach each other"
MISMATCH = Check(
    "nccl_log.mismatch",
    severity="critical",
    why="usually ranks did not call the same collective with the same size, or have other settings or another NCCL",
    fix="compare NCCL's release and variables of all ranks, then their collectives: NCCL_DEBUG_SUBSYS=COLL shows them",
)
"Do all ranks call the same collectives with the same sizes and settings"
SETTING = Check(
    "nccl_log.setting",
    severity="critical",
    why="NCCL refuses the value of a variable",
    fix="take NCCL_ALGO, NCCL_PROTO, NCCL_NET and NCCL_NET_PLUGIN out of job and /etc/nccl.conf; see `busbar lint`",
)
"Can NCCL do what its variables require"
NO_WAY = Check(
    "nccl_log.no_transport",
    severity="critical",
    why="two ranks have no way to reach each other",
    fix="take NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_HCA out of the job; use HCAs of one link layer",
)
"Is there a transport between all ranks"
WATCHDOG = Check(
    "nccl_log.watchdog",
    severity="critical",
    why="a collective did not end in time: PyTorch reports which ranks waited, not the cause",
    fix="while it hangs run `busbar hang HOST` to find the rank that is behind; else set "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=20000 (PyTorch before 2.9: "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=20000), and compare the ranks' last collective",
)
"Did every collective end in time"
EXIT = Check(
    "nccl_log.exit",
    severity="critical",
    why="a process ended: later waits and lost connections of others are usually caused by that",
    fix="its own last lines show why; signal 9: `dmesg -T | grep -i oom` on its node, and its memory limit",
)
"Did every process end normally"
NET_PLUGIN = Check(
    "nccl_log.net_plugin",
    why="the network plugin reports a failure: NCCL may end, wait, or continue over TCP",
    fix="see in the job whether the plugin's devices are there; plugin, libraries and driver of one installation",
)
"Does the network's plugin work without a failure"
DEVICE = Check(
    "nccl_log.device",
    why="an RDMA device without a PCI device is usually RDMA in software (rxe, siw), no faster than TCP",
    fix="`rdma link` and `ls -l /sys/class/infiniband` show it; let NCCL_IB_HCA name the HCAs alone",
)
"Is every RDMA device a hardware device"
LIMITS = Check(
    "nccl_log.limits",
    severity="critical",
    why="the system gives the process no more files, sockets or threads, of which each connection of NCCL needs some",
    fix="`ulimit -n -u` in the job, and pids.max of its cgroup: raise them; then run site.yml --tags host_limits",
)
"May processes open as many files and threads as NCCL needs"
HOST_MEMORY = Check(
    "nccl_log.host_memory",
    severity="critical",
    why="NCCL could not allocate memory of the host: usually the memory, or the job's share of it, ran out",
    fix="`dmesg -T | grep -i oom` on the node, and the memory limit of the job's cgroup or pod",
)
"Has the host memory for NCCL"
USAGE = Check(
    "nccl_log.usage",
    severity="critical",
    why="NCCL refuses an invalid call: usually an error of the program or framework, which no setting repairs",
    fix="look in the program's own traceback for the call that was refused; try another release of the framework",
)
"Does the program call NCCL correctly"
TOPOLOGY = Check(
    "nccl_log.topology",
    why="NCCL warns about the node's PCI and NVLink topology as this process sees it",
    fix="`nvidia-smi topo -m` in the job and on the node have to agree; NCCL_TOPO_FILE only as the provider set it",
)
"Does NCCL understand the node's topology"
STORE = Check(
    "nccl_log.store",
    severity="critical",
    why="PyTorch's processes meet at rank 0 (MASTER_ADDR:MASTER_PORT): it was not reached, or one came too late",
    fix="find out how rank 0 ended; `nc -vz MASTER_ADDR MASTER_PORT` on every node; as many processes as WORLD_SIZE",
)
"Did PyTorch's processes find each other"
RANKS = Check(
    "nccl_log.ranks",
    severity="critical",
    why="a communicator needs all of its ranks: while one is missing the others wait",
    fix="see whether the missing ranks run, and reach rank 0's address; `busbar hang HOST` while it waits",
)
"Did all ranks of every communicator start and complete its initialisation"
WARNING = Check(
    "nccl_log.warning",
    why="NCCL warns of something that this command has no rule for",
    fix="read it with the lines above it; `NCCL_DEBUG=INFO` shows the calls that led there",
)
"Does NCCL print no other warning"
READABLE = Check("nccl_log.readable", why="what is not in the log, or was dropped from it, cannot be judged", fix=AGAIN)
"Is it NCCL_DEBUG output, complete and not too large"
LEVEL = Check(
    "nccl_log.level",
    why="at level WARN NCCL reports networks, HCAs and connections only in warnings: no verdict on them is possible",
    fix=AGAIN,
)
"Does the log have INFO lines, and those on the network and the connections"
NETWORK = Check(
    "nccl_log.network",
    severity="critical",
    why="over TCP a node reaches a fraction of the bandwidth of its HCAs, and the CPU copies every byte",
    fix="`ibv_devinfo` in the job's own container has to show HCAs as PORT_ACTIVE; then run site.yml for the node",
)
"Does NCCL use an RDMA network between nodes, and if not, why (`busbar diagnose`)"
INTERFACE = Check(
    "nccl_log.interface",
    severity="critical",
    why="ranks find each other by TCP over this interface: one that does not reach the other nodes may end in a hang",
    fix="set NCCL_SOCKET_IFNAME==NAME (`ip -br address`) to the interface of the network between the nodes",
)
"Is the interface by which ranks find each other one that reaches other nodes"
HCA_SPEED = Check(
    "nccl_log.hca_speed",
    why="the slowest port that carries connections sets the pace of every collective",
    fix="`ibstat DEVICE` shows the rate; check cable, transceiver and switch port; then site.yml --tags platform",
)
"Have all HCAs with connections the same speed"
HCAS = Check(
    "nccl_log.hcas",
    why="each idle HCA is bandwidth that was paid for and is not used",
    fix="see why: run site.yml --tags platform,nccl_conf; GRAPH in NCCL_DEBUG_SUBSYS shows the HCA of each GPU",
)
"Does every HCA that NCCL sees on a node carry data, and do all nodes see as many"
GDR = Check(
    "nccl_log.gdr",
    why="without GPUDirect RDMA every byte goes through the host's memory: up to half of the bandwidth; not a failure",
    fix="see why: run site.yml --tags nvidia_peermem,pcie_path,iommu for the node, then run the job again",
)
"Has every connection between nodes GPUDirect RDMA, and if not, why"
LOCAL = Check(
    "nccl_log.intra_node",
    why="data between GPUs of a node goes through the host's memory or the network, and not directly",
    fix="take the variable out of the job and out of /etc/nccl.conf, then run it again",
)
"Do GPUs of a node reach each other directly"
NVLINK = Check(
    "nccl_log.nvlink",
    why="NVLinks that are down, or a limit of channels, may cost bandwidth within the node",
    fix="`nvidia-smi nvlink -s` on the node: every link has to be up, and as fast as on the other GPUs",
)
"Do all GPUs of a node have the same NVLink bandwidth, and channels enough to use it (GRAPH)"
MNNVL = Check(
    "nccl_log.mnnvl",
    severity="major",
    why="NVLinks between trays have several times the bandwidth of the NICs, and the job waits for the NICs",
    fix="see why: run site.yml --tags node_health for these nodes: imex.* and node_health.fabric_state; "
    "in containers /dev/nvidia-caps-imex-channels has to be there; then run the job again",
)
"Do GPUs of one NVLink domain on several hosts reach each other by NVLink, and not by the network (`busbar diagnose`)"
EFFECT = Check(
    "nccl_log.variable_effect",
    severity="minor",
    why="a variable was set without effect: NCCL does not report that",
    fix="remove the variable, or provide what it needs",
)
"Did the variables take effect"
SAME = Check(
    "nccl_log.same_settings",
    why="ranks with different settings may choose different algorithms: the job then hangs, fails, or is slow",
    fix="set it for all ranks alike, or nowhere: /etc/nccl.conf by site.yml with --tags nccl_conf",
)
"Have all ranks the same settings"
PROGRAM = Check(
    "nccl_log.program",
    severity="critical",
    why="a program reports a failure, which the lines do not show to be NCCL's",
    fix="read it with the lines around it, of the rank that reports it first: a traceback names the call that failed",
)
"Do the programs of the job report no failure"
