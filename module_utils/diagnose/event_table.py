# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of NCCL and what they mean, as a table that ``events`` reads. Their patterns are rows of nccl_events.

A line at the margin: id, check, tier, then ``plain`` (the line itself states what is wrong), ``by_code`` (each code is
a finding of its own), a severity, and ``unknown`` as its state. Below it ``why``, ``fix`` (else those of the check),
and ``causes`` where no line shows one.

``code``, ``text`` or ``place`` begin a refinement: patterns, and indented below them its own texts, ``tier``, and
``proven`` for a cause that the line states. The first refinement that fits gives each text. ``+`` continues a line.
"""

TABLE = r"""
event WARNING NOTICE
port_active WARNING NOTICE
harmless WARNING NOTICE
driver_functions WARNING NOTICE
fallback WARNING NOTICE
gdrcopy WARNING NOTICE
confidential WARNING NOTICE
ras WARNING NOTICE
launcher WARNING NOTICE
progress WARNING NOTICE
waits WARNING NOTICE
success WARNING NOTICE
step WARNING NOTICE
noise WARNING NOTICE
limits LIMITS CAUSE by_code
  text Invalid argument
    causes poll() refuses a list that is longer than the limit of open files (`ulimit -n`)
completion RETRIES NETWORK by_code
  code 5$
    tier REPORT
  text \(Flush\)
    causes GPU, HCA, the PCIe path between them (ACS, IOMMU) or nvidia_peermem of this node, not the network
  code 12$
    causes at the start: cabling, VLAN, route, GID, MTU, PFC; later: loss, a link that went down, a dead peer
  code 13$
    causes the peer did not post a receive in time: it hung, or died
  code 4$|local access violation work queue error
    causes memory that the HCA may not reach: ACS or IOMMU in the way of GPUDirect RDMA, peermem unloaded
  code 10$
    causes the peer failed before, or GPUDirect RDMA broke there
  code (?:1|9)$
    causes the peer failed before, or runs another NCCL or other settings
  code 11$
    causes the HCA at the other end failed the operation: see its own log and dmesg
libfabric NET_PLUGIN NOTICE
port PORT OUTSIDE by_code
  code port error
    why the link of this port went down: data on it is lost until it is back
    fix on the node: `ibstat DEVICE`, `rdma link`, `dmesg -T | grep -i mlx`, the switch's log; cable and transceiver
    + first; where NCCL joins two ports: NCCL_IB_RESILIENCY_PORT_FAILOVER=1 (NCCL 2.29.7 and later) moves its data to
    + the other, and NCCL_IB_RESILIENCY_PORT_RECOVERY=1 (2.30.3) takes the port back (docs/plugins.md#port-failover)
  code local catastrophic error
    why the HCA itself has failed: firmware, PCIe slot, or the driver that reset it
    fix `dmesg -T | grep -i mlx` and `lspci -vv -s ADDRESS` on the node; drain it, reset the HCA or the node
  code GID table changed
    causes an address of the HCA's interface was added or removed: DHCP, NetworkManager, a bond
hca_lost PORT NETWORK
  why NCCL gave up on an HCA or a connection of it, and continues only where there is another one
  text failed devices out of
    why NCCL's port failover is for one failed port of a connection, and here no other one was left
queue_pair QUEUE_PAIR CAUSE
  causes a GID index that the port does not have, an interface outside the container's network, or another MTU
  text timed out|nreachable|No route|Host is down
    why the peer's address did not respond: on RoCE an address of the rail, which needs ARP and a route
    fix between the GIDs of the line: `ping -I OWN_ADDRESS PEER_ADDRESS`, `ip route get PEER_ADDRESS`; rails that are
    + not connected: NCCL_CROSS_NIC=0; take NCCL_IB_GID_INDEX out; playbooks/verify.yml pings every rail
memory_limit MEMORY_LIMIT CAUSE
  causes the limit of locked memory (`ulimit -l`) in the job or container; or the HCA has no more queues
registration VERBS CAUSE by_code
  code ibv_reg_mr
    causes the limit of locked memory (`ulimit -l`), or memory that the HCA may not reach (ACS, no peermem)
verbs VERBS CAUSE by_code
  code ibv_open_device
    tier WEAK
  code ibv_(?:create_[cq][qp]|alloc_pd)
    causes the limit of locked memory (`ulimit -l`) in the job or container, or the HCA has no more queues
hca_skipped VERBS WEAK major
  why NCCL skips an RDMA device that it cannot open: this node may use one HCA less than its peers
  fix `ls -l /dev/infiniband` and `ibv_devinfo` in the job: each device needs its uverbs file there
duplicate_gpu DUPLICATE CAUSE plain
compiled VERSIONS CAUSE plain
  why the program was compiled for another NCCL than the one that is loaded
  fix load the libnccl.so.2 that the program was compiled for (`ldd`, LD_LIBRARY_PATH), or compile it again
version VERSIONS CAUSE plain
no_interface BOOTSTRAP CAUSE plain
  why this process found no interface that it may use
address CONNECTION CAUSE
  why the address that a peer handed over for a TCP connection is not an IP address
  fix check that all ranks load one libnccl.so.2, and that sends and receives are within a group
name BOOTSTRAP CAUSE
  why a host name, usually in NCCL_COMM_ID, does not resolve here
  fix `getent hosts NAME` in the job itself; give NCCL_COMM_ID an address, or take it out
bootstrap BOOTSTRAP CAUSE
  code already
    why two processes have the same rank number
    fix check what sets RANK (SLURM_PROCID, OMPI_COMM_WORLD_RANK), and that no earlier process is left over
  code mismatch
    why a process sent rank 0 other data than the rest: another release of NCCL, or a process of an earlier start
    fix compare libnccl.so.2 of the ranks (`grep libnccl /proc/PID/maps`), and end what is left over
consequence WARNING REPORT
shared_memory SHARED_MEMORY CAUSE
  text No space left on device
    proven /dev/shm is full, or too small for the job
  text \(size 0\)
    why another process named no segment of /dev/shm: the data on the connection arrived empty or damaged
    fix set NCCL_CUMEM_HOST_ENABLE=0 on all ranks, and check that they load one libnccl.so.2
    causes ranks of one node that take different kinds of host memory: another NCCL_CUMEM_HOST_ENABLE or libnccl
  text No such file or directory
    fix see how the process that made it ended; ranks of a node need a common /dev/shm (docker --ipc=host)
    causes the process that made the segment has ended, or the two do not share /dev/shm (containers)
  code attaching
    why a segment of /dev/shm that another process makes could not be attached to
    fix see how the process that made it ended; ranks of a node need a common /dev/shm (docker --ipc=host)
uds NO_WAY NETWORK
  why ranks of a node hand each other memory by Unix sockets, and one failed
  fix containers of one node have to share the network namespace; NCCL_CUMEM_ENABLE=0 avoids these sockets
connect CONNECTION NETWORK
  why a TCP connection was not made: this usually causes the connections closed after it
  fix `ip route get ADDRESS` and `ping` from the node that reports it; the peer's log; NCCL_SOCKET_IFNAME
  text No route to host|Network is unreachable
    causes the peer's host or an interface is down, no route (NCCL_SOCKET_IFNAME), or a firewall rejects
  text refused
    causes the peer had ended, or the address is not its own (NCCL_SOCKET_IFNAME)
closed CONNECTION EFFECT
  causes the peer's process ended; less often a firewall or an idle timeout that cuts TCP connections
accept BOOTSTRAP NETWORK
  why a rank could not accept a TCP connection: usually its own listening socket was closed before
  fix see what its process did before: another thread that ended NCCL, or a limit of files (`ulimit -n`)
device_api USAGE CAUSE
  why something that NCCL's symmetric memory or its network from within kernels (GIN, RMA) needs is not there
  fix check what the program (DeepEP, for example) requires of HCA, driver and NCCL for GIN or RMA
host_memory HOST_MEMORY CAUSE
nvlink_p2p NVLINK_P2P CAUSE
peer_access NO_WAY CAUSE
  why memory that GPUs or processes were to share was refused by CUDA
  fix `nvidia-smi topo -p2p r`; containers of one job need a common IPC namespace (--ipc=host) and all GPUs
fabric_manager FABRIC_MANAGER CAUSE by_code
  causes Fabric Manager was not running, failed, or was started again without a reset of the GPUs
  code NVLS
    why NVLink SHARP (NVLS) could not be set up
    fix `systemctl status nvidia-fabricmanager` (GB200: nvidia-imex); `nvidia-smi -q | grep -A 3 Fabric`: Completed;
    + NCCL_NVLS_ENABLE=0 does without NVLink SHARP
    causes Fabric Manager (GB200: IMEX) failed, or started again without a reset of the GPUs; or rights
  code MNNVL
    why memory that GPUs share over NVLink between nodes (MNNVL) was not available
    fix `systemctl status nvidia-imex` and `nvidia-imex-ctl -N` on every node of the domain; the container needs an IMEX
    + channel (`ls /dev/nvidia-caps-imex-channels`); NCCL_MNNVL_ENABLE=0 goes on without
    causes no IMEX channel in the container, or nvidia-imex does not run on all nodes of the domain
driver_old CUDA CAUSE plain
  why the GPU's driver is older than the CUDA that NCCL or the program was built for
  fix take a newer driver on the node (`nvidia-smi` shows its newest CUDA), or an image for that CUDA
cuda CUDA CAUSE by_code
  code out of memory
    place transport/shm|shmutils|shm\.h
    causes memory of the host that driver, WSL or container does not provide: NCCL_CUMEM_HOST_ENABLE=0 avoids it
  code operation not supported
    place transport/p2p
    causes no IMEX channel in the container, nvidia-imex not on all nodes, or a vGPU, MIG or WSL that has none
  code invalid device pointer
    place transport/p2p
    causes a driver, VM, IOMMU or containers that let these GPUs share no memory: NCCL_P2P_DISABLE=1 tests it
  text Tried to allocate
    proven the GPU has no memory left
  code an illegal (?:memory access|instruction)|unspecified launch failure|misaligned address
    why usually a kernel of the program or of NCCL made an invalid access, and NCCL is the first to meet it
    fix CUDA_LAUNCH_BLOCKING=1 or `compute-sanitizer` shows the kernel; on one GPU: `dmesg -T | grep -i xid`
  code device\-side assert
    why a check in a kernel of the program failed: an index or label that is out of range
    fix read the line with `Assertion` and `block: [..]` above it; CUDA_LAUNCH_BLOCKING=1 gives the call
  code invalid device ordinal|no CUDA\-capable device
    why this process does not see the GPU, or any
    fix compare the processes of a node with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES in the job (--gpus all)
  code named symbol not found|invalid device function|no kernel image|device kernel image is invalid
    why NCCL, or the program, was not built for this model of GPU, or for the CUDA that is loaded
    fix take NCCL and framework built for it (`nvidia-smi --query-gpu=compute_cap --format=csv`; NVCC_GENCODE)
  code CUDA driver version is insufficient|the provided PTX was|forward compatibility was
    why the GPU's driver is older than the CUDA that NCCL or the program was built for
    fix take a newer driver on the node (`nvidia-smi` shows its newest CUDA), or an image for that CUDA
  code (?:all )?CUDA-capable device\S{1,4} (?:is/)?are busy|unspecified driver error
    why CUDA gives this process no GPU: another process has it exclusively, or the driver wants it reset
    fix on the node: `nvidia-smi -q | grep -i 'compute mode'` (Default), left-over processes, `dmesg -T`
  code uncorrectable ECC
    why the GPU's memory lost data: inspect the GPU or the node, not the network
    fix drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg -T | grep -i xid` there; reset the GPU
  code initialization error
    why CUDA could not start in this process: usually it was used before a fork, or the driver is not ready
    fix start workers by spawn and not fork, or touch CUDA only in the children; `nvidia-smi` in the job itself
  code operation not permitted
    why usually memory that GPUs share, for which a container needs rights
    fix `systemctl status nvidia-imex` and `nvidia-imex-ctl -N` on every node of the domain; the container needs an IMEX
    + channel (`ls /dev/nvidia-caps-imex-channels`); NCCL_MNNVL_ENABLE=0 goes on without; as a test NCCL_CUMEM_ENABLE=0
  code system not yet initialized
    why CUDA is not ready: the Fabric Manager is not running, not ready, or not of the driver's version
    fix `systemctl status nvidia-fabricmanager` (GB200: nvidia-imex); `nvidia-smi -q | grep -A 3 Fabric`: Completed
  code invalid argument
    causes a driver that does not fit this NCCL, or an earlier fault
  code out of memory
    fix `nvidia-smi` there shows who has the memory; leave NCCL some (vLLM: --gpu-memory-utilization)
    causes the GPU's memory is full: the program's own tensors, another process, or too many communicators
  code unknown error|the operation cannot be performed in the present state
    causes the GPU, its driver, or the NVLink fabric between GPUs (Fabric Manager, IMEX): see Xid in dmesg
nvml WARNING CAUSE unknown
  why the NVIDIA management library (NVML) was missing, or NCCL could not use its response
  fix `nvidia-smi` in the job itself; a container needs libnvidia-ml.so.1 of the node's driver
  text Not Found
    why NVML shows this process no GPU with that PCI address
    fix let each process see all GPUs (`nvidia-smi -L`): Slurm --gpus-per-node, in containers all of /dev/nvidia*
    causes a task or container that sees one GPU of several, or a part of a GPU (MIG)
  text Failed to open
    causes libnvidia-ml.so.1 of the node's driver is not in this process's library path or container
driver CUDA CAUSE
mismatch MISMATCH CAUSE
  text message truncated
    causes the two ranks disagree on the size: type, count, a call more on one side, NCCL_PROTO or release
  code PyTorch
    why PyTorch compared the ranks' calls before they reached NCCL, and they differ
    fix look in the program for what only some ranks call: the traceback of each rank names its call
    proven a branch, another number of steps, or a collective that not all ranks call
algorithm SETTING CAUSE plain
  why NCCL has no algorithm and protocol left: a wrong NCCL_ALGO or NCCL_PROTO, a tuner plugin, a size or type
  fix remove NCCL_ALGO, NCCL_PROTO and NCCL_TUNER_PLUGIN from the job and from /etc/nccl.conf
no_network SETTING CAUSE
  why the requested network is not there: its plugin is missing or did not start
  fix read the NET/ lines before it; check NCCL_NET, NCCL_NET_PLUGIN, NCCL_IB_HCA and NCCL_SOCKET_IFNAME
setting SETTING CAUSE
  why NCCL or a device does not accept what a variable sets
  fix take the variable that the line is about out of the job and out of /etc/nccl.conf
plugin_build NET_PLUGIN CAUSE
  why the network plugin was built for another NCCL than the one that is loaded
  fix use the plugin of this release of NCCL; NCCL_NET_PLUGIN=none does without it
no_transport NO_WAY CAUSE
no_pci_device DEVICE WEAK
  causes a device in software, or a container that does not show the device in /sys
link_layer NO_WAY CAUSE
  why HCAs of two link layers, or other numbers of HCAs on two nodes, do not go together
  fix `rdma link` on both nodes; let NCCL_IB_HCA name HCAs of one link layer, as many on every node
merge SETTING WEAK
  why NCCL could not use several ports or HCAs as one
  fix take NCCL_NET_FORCE_MERGE and NCCL_IB_MERGE_NICS out of the job; NCCL_NET_MERGE_LEVEL=LOC merges none
handshake BOOTSTRAP CAUSE
  text wrong type
    why the two ends use different kinds of connection: ranks chose different networks, or run different releases
    fix compare `Using network`, NET/Plugin and NCCL version of the ranks; give all nodes one NCCL and plugin
topology_file TOPOLOGY CAUSE
  why a file with a topology or graph (NCCL_TOPO_FILE, NCCL_GRAPH_FILE) is unreadable, or does not fit the node
  fix `ls -l` of the file in the job itself; take the variable out, or get the file again from its provider
  text XML Import Channel
    why the graph file (NCCL_GRAPH_FILE) names a device that this communicator does not have
    fix take NCCL_GRAPH_FILE out (/etc/nccl.conf and an image may set it, too)
sharp NET_PLUGIN WEAK
  why SHARP could not be set up: usually NCCL continues without it
  fix `systemctl status sharp_am` on the subnet manager's host and its log: trees that are taken, limits
  text reaming Tree lock|SAT tree
    causes the streaming tree (SAT) of one job at a time is taken by another job, or not allowed to this one
  text No resource|annot create SHARP job
    causes sharp_am does not run, has no resources left for this job, or a limit or reservation forbids it
topology TOPOLOGY WEAK
  causes a virtual machine or container that hides a part of PCI or NVLink, or a GPU or HCA that is gone
  text Error : ring \d
    why a ring that NCCL built does not go through every rank
    fix compare NCCL_*, /etc/nccl.conf, `grep libnccl /proc/PID/maps` and `nvidia-smi topo -m` of the ranks
value SETTING NOTICE minor
  why NCCL does not accept a value of a variable or of the program, and uses another one
  fix take the variable out, or give it a value that is allowed: `busbar lint` lists them
usage USAGE CAUSE
  text before the previous operation returned
    causes an earlier call on this communicator, usually its initialisation, failed or was not waited for
  text Invalid rank requested
    causes ranks are numbered from 0: RANK or WORLD_SIZE is off by one, or a process too many was started
internal WARNING WEAK unknown
  why NCCL's state is inconsistent: a bug of NCCL or a plugin, overwritten memory, or an earlier failure
  fix repair other failures of this log first; if there are none, try another NCCL, and report it
  text lib wrapper not initialized
    place ibvwrap
    tier NOTICE
    why libibverbs is not loaded: NCCL goes on without InfiniBand and RoCE
    fix within one node nothing; between nodes install libibverbs1 and its providers in the image
port_in_use STORE CAUSE plain by_code
  why a process could not open its port, because another one has it
  fix end the process that has the port (`ss -ltnp` there), or use another one (MASTER_PORT, --rdzv_endpoint)
system WARNING WEAK unknown
plugin_waits NET_PLUGIN EFFECT unknown
  why GCP's plugin (GPUDirect-TCPX or FasTrak) waits for data from a peer: the waiting rank is not the cause
  fix read the logs of the peers that it names, and of the plugin's receive daemon (tcpgpudmarxd, rxdm)
net_plugin NET_PLUGIN NETWORK by_code
  text nresponsive receiver|UNDELIVERABLE|Undeliverable
    why a peer did not respond to data or a handshake: usually the peer's log has the cause
    fix check the peer's process and its log, then the network (AWS: the security group allows itself)
  text remote rails
    why the plugin found another number of network devices at the peer than here: its connection cannot be made
    fix compare `fi_info -p efa`, the release of the plugin and NCCL_TOPO_FILE of both nodes: equal devices for each GPU
  text UNREACHABLE
    causes no way to a peer: security group, subnet or route, or the peer is gone
  text rovider is supported
    causes no EFA device in this container or instance, or libfabric without the provider
  text annot allocate memory|RC: -?12\b
    causes the job's limit of locked memory (`ulimit -l`), or of memory that the NIC can register
  code FasTrak
    why GCP's plugin for GPUDirect-TCPXO (FasTrak) reports a failure
    fix take plugin, receive daemon (rxdm) and NCCL of one GCP installer; the daemon has to run on both nodes
  code OFI
    why the plugin for libfabric (AWS EFA or another provider) reports a failure
    fix `fi_info -p efa` in the job; plugin, libfabric and driver of one installation; AWS: the security group
plugin_warning NET_PLUGIN WEAK minor unknown
  why the network plugin warns of something that this command has no rule for
  fix read it with the plugin's lines above it, and the peers' logs of that time
warning WARNING WEAK unknown
"""
