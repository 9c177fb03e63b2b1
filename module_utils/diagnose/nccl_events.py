# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Events of NCCL's warnings: what each means, how it is recognised, and what its code or words add.

Formats: NVIDIA/nccl, tags v2.18.1-1 to v2.30.7-1 (src/**/*.cc). A new warning is a row of PATTERNS and, where it means
something new, one of EVENTS. The order of rows matters: the first pattern that fits decides.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

from . import checks
from .event import CAUSE, EFFECT, NETWORK, NOTICE, OUTSIDE, REPORT, WEAK, Event

# Characters of a warning that are matched.
_LONGEST = 2048
# Sentences of several rows.
OLD_DRIVER = "the GPU's driver is older than the CUDA that NCCL or the program was built for"
NEWER_DRIVER = "take a newer driver on the node (`nvidia-smi` shows its newest CUDA), or an image for that CUDA"
CUDA_NOT_READY = "CUDA is not ready: the Fabric Manager is not running, not ready, or not of the driver's version"
FREE_PORT = "end the process that has the port (`ss -ltnp` there), or use another one (MASTER_PORT, --rdzv_endpoint)"
EVENTS: Tuple[Event, ...] = (
    Event("limits", checks.LIMITS, CAUSE, by_code=True),
    Event("completion", checks.RETRIES, NETWORK, by_code=True),
    *(Event(name, checks.PORT, NOTICE) for name in ("event", "port_active")),
    *(
        Event(name, checks.WARNING, NOTICE)
        for name in ("harmless", "driver_functions", "fallback", "gdrcopy", "confidential", "ras")
    ),
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
        causes="a GID index (NCCL_IB_GID_INDEX) that the port does not have, "
        "an interface outside of the container's network, or a request that the HCA refuses, such as another MTU",
    ),
    Event(
        "memory_limit",
        checks.MEMORY_LIMIT,
        CAUSE,
        causes="the limit of locked memory (`ulimit -l`) in the job or "
        "container; or the HCA has no more queues or registrations",
    ),
    Event("registration", checks.VERBS, CAUSE, by_code=True),
    Event("verbs", checks.VERBS, CAUSE, by_code=True),
    Event(
        "hca_skipped",
        checks.VERBS,
        WEAK,
        severity="major",
        why="NCCL skips an RDMA device that it cannot open: this node may use one HCA less than its peers",
        fix="`ls -l /dev/infiniband` and `ibv_devinfo` in the job: "
        "each device of the node needs its uverbs file there (device plugin, docker --device)",
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
    Event("no_interface", checks.BOOTSTRAP, CAUSE, why="this process found no interface that it may use", plain=True),
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
        fix="check that the peer's process runs, and that containers of one node share the network namespace; "
        "NCCL_CUMEM_ENABLE=0 avoids these sockets",
    ),
    Event(
        "connect",
        checks.CONNECTION,
        NETWORK,
        why="a TCP connection was not made: this usually causes the connections closed after it",
        fix="try the address from the node that reports it (`ip route get ADDRESS`, "
        "`ping`), and read the peer's log; NCCL_SOCKET_IFNAME names the interface between the nodes",
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
        fix="check what the program (DeepEP, for example) requires of HCA, "
        "driver and NCCL for GIN, RMA or symmetric memory",
    ),
    Event("host_memory", checks.HOST_MEMORY, CAUSE),
    Event("nvlink_p2p", checks.NVLINK_P2P, CAUSE),
    Event(
        "peer_access",
        checks.NO_WAY,
        CAUSE,
        why="memory that GPUs or processes were to share was refused by CUDA",
        fix="`nvidia-smi topo -p2p r` on the node; containers of one job on a node need a common IPC and PID namespace "
        "(docker --ipc=host), and all of its GPUs",
    ),
    Event(
        "fabric_manager",
        checks.FABRIC_MANAGER,
        CAUSE,
        by_code=True,
        causes="Fabric Manager was not running, failed, or was started again without a reset of the GPUs",
    ),
    Event("driver_old", checks.CUDA, CAUSE, why=OLD_DRIVER, fix=NEWER_DRIVER, plain=True),
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
        why="NCCL has no algorithm and protocol left for a call: an "
        "unknown name in NCCL_ALGO or NCCL_PROTO, a tuner plugin, or a size or type that this release does not support",
        fix="remove NCCL_ALGO, NCCL_PROTO and NCCL_TUNER_PLUGIN from the job and from /etc/nccl.conf; if none is set, "
        "NCCL_DEBUG_SUBSYS=COLL shows the call: try another release",
    ),
    Event(
        "no_network",
        checks.SETTING,
        CAUSE,
        why="the requested network is not there: its plugin is missing or did not start",
        fix="read the NET/ lines before it; check NCCL_NET, NCCL_NET_PLUGIN, NCCL_IB_HCA and "
        "NCCL_SOCKET_IFNAME in the job and in /etc/nccl.conf",
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
        why="a file with a topology or a graph (NCCL_TOPO_FILE, "
        "NCCL_GRAPH_FILE) is unreadable, or does not fit this node and job",
        fix="`ls -l` of the file in the job itself; take the variable out, or get the file again from its provider",
    ),
    Event(
        "sharp",
        checks.NET_PLUGIN,
        WEAK,
        why="SHARP could not be set up: usually NCCL continues without it",
        fix="`systemctl status sharp_am` on the subnet manager's host and its log: jobs and trees that are taken, "
        "limits, reservations",
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
        why="NCCL's state is inconsistent: a bug of NCCL or a "
        "plugin, overwritten memory, or an effect of another failure",
        fix="repair other failures of this log first; "
        "if there are none, try another NCCL, and report it with the whole log",
    ),
    Event(
        "port_in_use",
        checks.STORE,
        CAUSE,
        why="a process could not open its port, because another one has it",
        fix=FREE_PORT,
        by_code=True,
        plain=True,
    ),
    Event("system", checks.WARNING, WEAK, state="unknown"),
    Event(
        "plugin_waits",
        checks.NET_PLUGIN,
        EFFECT,
        state="unknown",
        why="GCP's plugin (GPUDirect-TCPX or FasTrak) waits for data from a peer: the waiting rank is not the cause",
        fix="read the logs of the peers that it "
        "names, and of the plugin's receive daemon (tcpgpudmarxd, rxdm) on both nodes",
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
)
# An event of an HCA, up to its name.
_ASYNC = r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?(?:non-fatal )?async (?:\w+ )?event[^:]{0,80}: "
# fmt: off
PATTERNS: Tuple[Tuple[str, str], ...] = (
    ("setting", "OOO RQ is force|[0-9] plane IDs?|a plane ID that|has been set to .{0,2}1.{0,2} and communicator|GDR "
        "Flush only supported|Cannot use physical device|TOPO/NET : Only matched"),
    ("plugin_build", "plugin returned invalid value for max|NCCL_DEVICE_UNPACK plugin has incompatible"),
    ("verbs", "Error in (?P<code>mlx5dv_get_data_direct_sysfs_path)"),
    ("usage", "host threads racing to launch|does not satisfy symmetric registration"),
    ("driver", "exceeds device/fn maxSharedMem"),
    ("system", "sched_[gs]etaffinity failed|ncclSocketMultiOp: invalid|Failed to (?:create|set) CUDA context"),
    ("fallback", "failed to (?:NET|NVLS|IPC) register userbuff|COLLNET failed to register|recovery operations"),
    ("harmless", r"Could not find nccl\w{1,60} symbol"),
    ("port_active", _ASYNC + "(?P<code>port active)"),
    ("port", _ASYNC + "(?P<code>port error)"),
    ("event", _ASYNC + "(?P<code>client reregistration|(?:LID|SM|P_?[Kk][Ee][Yy](?: table)?|GID(?: table)?) change|"
        r"communication established|send queue drained|last WQE reached|SRQ limit reached|path migrat\w{1,10}(?! "
        "error))"),
    ("limits", "(?P<code>Too many open files)"),
    ("limits", r"(?P<code>[Pp]oll(?:\(\))? failed: Invalid argument)"),
    ("limits", "(?:Thread creation|pthread_create).*?(?P<code>Resource temporarily unavailable)?$"),
    ("completion", r"Got completion (?:from peer (?P<peer>\S{1,100}?)(?:<\d+>)? )?with (?:error|status=?) "
        r"?(?:\w{1,40}\()?(?P<code>\d{1,3})\)?(?:.*\bhca (?P<device>\S{1,64}))?"),
    ("completion", r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:fatal )?event(?: on QP "
        r"\([^)]*\))?[^:]*: (?P<code>[\w -]{0,40}(?:work queue error|QP\b|access|request error))"),
    ("port", r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?(?:non-fatal )?async (?:fatal |error )?event(?: "
        r"on \w{1,20}(?:, unused for now)? \([^)]{0,80}\))?[^:]{0,80}: (?P<code>[^\n(]{1,60})"),
    ("port", r"NET/IB\w* ?: (?P<device>[\w.-]{1,64}):\d+ (?P<code>GID table changed)"),
    ("hca_lost", "NET/IB.*(?:Got CQE with error|marked as (?:permanently )?failed|failed devices out of|functional "
        "device|probing attempts|The error is fatal|permanently failed|Unsupported completion status)"),
    ("queue_pair", "Call to ibv_modify_qp failed with (?:error )?(?P<code>[^,]{1,100}), on dev "
        r"(?P<device>[\w.-]{1,64})"),
    ("queue_pair", "Call to ibv_modify_qp failed(?: with (?:error )?(?P<code>.{1,200}))?"),
    ("memory_limit", r"Call to ibv_(?:reg_mr\w*|create_cq|create_qp|alloc_pd)\w* failed.*Cannot allocate memory"),
    ("registration", r"Call to (?P<code>ibv_reg_\w{1,40}) failed"),
    ("verbs", r"Call to (?P<code>(?:ibv|mlx5dv)_\w{1,60})(?:\(\))? (?:failed|returned)"),
    ("verbs", r"(?P<code>(?:ibv_post_\w{1,20}|mlx5dv_\w{1,60})(?:\(\))?) failed"),
    ("hca_skipped", r"NET/IB ?: Unable to (?:open|query) (?:device|port\w*) (?P<device>[\w.-]{1,64})"),
    ("verbs", r"NET/IB ?: (?P<code>\w{1,8} failed in ncclIbRoceGetVersionNum)"),
    ("duplicate_gpu", r"Duplicate GPU detected ?: rank \d{1,8} and rank \d{1,8} both on CUDA device "
        r"(?P<code>\w{1,20})"),
    ("duplicate_gpu", "Multiple Ranks are using the same GPU|Multiple ranks detected using the same GPU"),
    ("compiled", "compiled with (?:too old version of )?NCCL|NCCL library (?:version )?is too old|not initialized via "
        "NCCL_|must be initialized via NCCL_"),
    ("version", "Mismatched NCCL version detected|NCCL version mismatch with remote peer"),
    ("no_interface", r"No interface found in the same subnet as remote address (?P<peer>\S{1,100})"),
    ("no_interface", r"(?:Bootstrap|NET/Socket) ?: no (?:socket )?interface found|NET/IB\w* ?: No IP interface found|"
        "No usable listening|no device found (?:after excluding|matching)|verify NCCL_OOB_NET_IFNAME"),
    ("address", r"connecting to address .{0,60}with family \d+ is neither"),
    ("name", "Net ?: error encountered when getting address info ?: (?P<code>.{1,60})"),
    ("bootstrap", r"Bootstrap Root ?: (?:rank \d+ of \d+ ranks has (?P<code>already)|(?P<error>mismatch) in|localId)"),
    ("bootstrap", "Invalid NCCL_COMM_ID|Net ?: No valid .* pair found|Net ?: (?:unsupported IP family|string is null)"),
    ("consequence", r"unlink shared memory|munmap of shared memory|deregister \w+ buffer|Legacy IPC cleanup"),
    ("shared_memory", "Error while (?P<code>attaching) to shared memory segment"),
    ("shared_memory", r"shared memory segment|failed to extend \S+ to \d+|posix_fallocate failed|Error: failed to "
        r"(?:create|extend) shared mem|Could not map \S+ size"),
    ("uds", r"\bUDS: (?P<code>[A-Z][a-z]+ (?:data over socket|to socket|creation error)?).*"),
    ("connect", "ollConnect.{0,100}(?:failed|error|returned|POLLOUT).{0,100} connect(?:ing)? to "
        r"(?P<peer>[\w.:%\[\]-]{1,100}?)(?::\d+|<\d+>)?\s*$"),
    ("connect", r"(?:[Cc]onnect|PollConnect)(?:ing)?:? to (?P<peer>\S{1,100}?)(?:<\d+>)? .{0,200}?(?:failed|returned|"
        "error|exceeded)"),
    ("connect", r"Call to connect (?:to (?P<peer>\S{1,100}?)(?:<\d+>)? )?(?:failed|timeout)|exceeded (?:error "
        r")?retr(?:ies|y)|socket\w*Connect: exceeded|[cC]onnect poll\(\)"),
    ("closed", r"Connection closed by remote peer ?(?P<peer>(?!\[rank\d)\S{0,100}?)(?:<\d+>)?(?:\s|$)"),
    ("closed", r"Call to (?:sendmsg|recvmsg|send|recv)\b.{0,200}?(?:to|from)? "
        r"?(?P<peer>[\w.:\[\]-]{1,100}?)?(?:<\d+>)? ?failed ?:"),
    ("accept", r"^(?!\[).*Accept failed"),
    ("device_api", r"^Allocation failed\. No suitable (?P<code>space) found"),
    ("host_memory", r"Failed to (?:m|re|c)alloc \d+ bytes|(?:m|c|re)alloc\([^)]*\) returned null|^Allocation failed"),
    ("consequence", r"Failed to CUDA |Proxy Call to rank|Socket recv failed while polling|\[Service thread\]|\[Proxy "
        "(?:[Ss]ervice|Progress)|socket progress error|ncclSocketInit: connecting|ncclAsyncJobComplete|commReclaim|"
        "commDestroySync|communicator encountered a fatal error|is in abort state|communicator was revoked|"
        r"ncclProxyStop|ncclProxy\w{1,40} call to|hostStreamPlanCallback|Unexpected connections are not empty|"
        r"ncclCommSetAsyncError|socket state|file descriptor is -1|MemManager: .*(?:failed|Failed)|called when comm\S* "
        "?== 0"),
    ("nvlink_p2p", "P2P is disabled between NVLINK connected GPUs"),
    ("peer_access", r"failed to peer with device|(?:cuda|hip)Ipc\w+ failed|CUDA IPC handle ?:"),
    ("fabric_manager", "(?P<code>MNNVL) .*not (?:working|supported)|(?P<error>IMEX)"),
    ("fabric_manager", "Failed to bind NVLink SHARP|Cuda failure (?:802|'system not yet init)|[Mm]ulticast.* fail"),
    ("driver_old", "CUDA driver version is insufficient"),
    ("cuda", r"[Cc]uda failure (?:\w{1,40}:\d+ )?(?:\d{1,4} )?'(?P<code>[^']{1,100})(?:'|$)|CUDA error(?: ?: |"
        r"\s)(?P<error>[^\n]{1,80})"),
    ("cuda", "(?P<code>CUDA out of memory)"),
    ("nvml", "Failed to open libnvidia-ml"),
    ("driver", "CUDA Driver version found is|[Rr]equires CUDA driver|CUDA driver <|CUMEM (?:Host is )?not supported "
        "prior"),
    ("driver_functions", "CUDA some PFN functions not found|Failed to (?:find CUDA library|load CUDA missing)|old "
        r"driver|Retrieve \S+ (?:version \d+ )?failed|cuDriverGetVersion failed"),
    ("driver", "(?:Cuda|CUDA) driver"),
    ("mismatch", "[Mm]essage truncated|collective mismatch|posted incorrect receive info|symmetric registration check "
        "failed"),
    ("algorithm", r"Unrecognized (?:element|prefix) token|[nN]o algorithm/protocol (?:nor \w+ )?available|must have a "
        "prefix|no symmetric kernel available"),
    ("no_network", r"Error: network (?P<code>\S.{0,63}?) not found|Failed to initialize any NET plugin"),
    ("no_transport", "No transport found for rank|has no transport for"),
    ("no_pci_device", r"Could not find real path of (?P<device>[\w.-]{1,64}) \("),
    ("nvml", r"nvml\w{1,60}(?:\([^)]*\))? failed|nvmlDeviceGetCount\(\) reported"),
    ("link_layer", "incompatible (?:with the local|devices)|Detected mixed local (?:Net|CollNet) device counts|"
        "different link_layer|different number of devices="),
    ("merge", "(?:TOPO/NET|NET/IB) ?: .*(?:[Mm]erg|virtual (?:device|NIC)|vNic)|fused NIC|Fusing NET|(?:NET/TOPO|"
        "TOPO/NET) : (?:Only matched|Can.t find|Couldn.t)"),
    ("handshake", "socketFinalizeAccept.*: wrong (?:type|magic)|magic mismatch"),
    ("topology_file", r"XML (?:Parse|Mismatch|Import|Export|Topology|Graph)|XML (?:topology|graph|parser)\b|XML "
        r"\w*nodes|node not found in XML|Error : (?:name|value) \S{1,200} too long"),
    ("sharp", r"(?<!NVLink )\bSHARP (?:coll|group|job|init|reg|mr|alloc|comm|rank|iallreduce|req)\w*\b.*?(?:rror|fail|"
        r"annot)|SHArP .*(?:rror|fail)|\bsharp_\w+ (?:failed|error)|(?:SAT|LLT|Streaming) [Tt]ree.*fail|[Ff]ailed to "
        r"lock (?:SAT|LLT)|Begin job id: ?\d+ failed|Job error in sharp"),
    ("fallback", "(?P<code>cuMem) (?:support requires|is not supported|not supported|host allocations)"),
    ("fallback", "(?P<code>Cannot initialize CollNet|falling back to simple order)"),
    ("topology", r"Attribute \w{1,40} of node \w{1,40} not found"),
    ("topology", "Could not find (?:a path|any local path|NIC|net|gpu|local GPU|rev link|intermediate|node of|id |real "
        "path|CPU|NET with)|could not find (?:CPU|GPU|PCI SW|DEV|parent)|Set CPU affinity|No path computed|Error : "
        r"ring \d|too many (?:Topo links|nodes of type|DEV)|reverse path|Skipping nvlink detection|tree already has|"
        r"requires NIC \d+ but|ran out of room to store"),
    ("value", r"^(?:NCCL_\w+ value|NCCL_\w+=\S+ is being|'NCCL_\w+=\d+' is too)|^Invalid \S+ \d+ \(m(?:ax|in|ust)|User "
        r"asked for a (?:max|min)imum|(?:min|max)CTAs \d+ is larger|is not a valid value|Ignoring SHM locality|is out "
        r"of range \[|ignoring NCCL_|disabling CollNet"),
    ("gdrcopy", r"GDRCOPY|\bgdr_\w+(?:\(.*\))? ?(?:failed|not available)"),
    ("usage", "argument is NULL|is not a valid pointer|invalid (?:root|type|reduction operation|device count|"
        r"communicator)|reduction operation \d+ unknown|mismatchs with NCCL device|Invalid (?:device count|rank "
        r"requested|config|device \d)|Invalig config|[Bb]locking and nonblocking|not in a group call|already been "
        "destroyed|corrupted comm object|Attempt to use communicator before|to self without a matching|ncclRedOp|"
        r"Streams given to a communicator|ncclGroup\(\) can be CUDA graph captured|ncclCommGrow|improper usage of|"
        "exceeds ndev|[nN]etName .* (?:does not match|different from)|not being captured by|ncclCommGetUniqueId|FP8 "
        "reduction support|fails to share parent comms|Invalid (?:arguments comm|handle)|is not power of 2|invalid "
        "pointer|not within valid range|Both NCCL_CTA_POLICY"),
    ("device_api", r"\bGIN\b|\bRMA\b|Gin[ :A-Z]|[Ss]ymmetric (?:memory|register)|[Ww]indow (?:address|registration|"
        r"has)|\bwindow %?\S+ |ncclDev\w+|multimem|[Mm]ulticast support requested|ncclPutSignal|ncclWaitSignal|"
        "ncclSignal|DOCA (?:Error|failure)|GDAKI|shadow pool|extends beyond allocation|No allocation found at|lsaRank|"
        r"GFD test|CPU-backed|\(must be 0\)|Dev comm not|needs to be valid|shared contexts"),
    ("confidential", "Multi-GPU CC Off"),
    ("internal", "Proxy append|List loop|Unknown pattern|Inactive op|schedule creation has bugs|opId=|lib wrapper not "
        "initialized|unable to allocate (?:requests|subtasks)|test called with NULL|pass NULL socket|Could not find "
        r"pool|dequeu\w+ (?:null|nonexistent)|reqSize is|respSize is|CollNet sizes|Invalid regBufType|diviser of|ran "
        "out of channel space|Invalid request index|MLOPart|netMasks|Unknown netDevs|hostHash|ncclCheckMultiRank|"
        "ncclTopo(?:DevToRank|RankToIndex)|Unknown CPU arch|Unknown collnet|aligned for self|Net registration invalid|"
        "are NULL|must be provided|buffer is NULL|Group creation failed"),
    ("value", "alive message batch|with a single device|Resiliency requires pre-posted"),
    ("hca_lost", "replacement QP for the failed|initialize a resiliency send"),
    ("closed", r"ocketProgressOpt: Call to \S{1,20} (?P<peer>[^\s<]{1,100})(?:<\d+>)? failed"),
    ("registration", "register (?:userbuff|sendbuff)|^register fails"),
    ("internal", "^MemManager: |[Rr]esiliency context|failed request|repost|stale CQE|Unrecognized request|completion "
        r"\((?:req|comm)=|No format specified|sendReq\(|socket is invalid|invalid socket|Plugin\[\d|out of bounds \[|"
        "Unknown device code|desc type|descriptor is not|expected a '(?:recv|send)'|strong stream|incomplete proxy op|"
        "invalid IPC|failure queue node|GoToPrevState|IBV_WC_RECV_RDMA|Invalid wr_id|[Pp]ointer is NULL|Invalid "
        "argument (?:comm|desc)|not find (?:handle|mr)|already connected sendComm|unknown state"),
    ("port_in_use", "Address already in use"),
    ("system", r"Call to (?P<code>\w{1,40}) failed|Socket creation failed|pthread_join|Thread join failed|failed to "
        "join thread|random_device"),
    ("plugin_waits", r"(?P<device>[\w.-]{2,32}), \S{1,60}<-(?P<peer>[\w.:\[\]-]{2,60}?)<\d+> .{0,60}timeout cnt \d+, "
        r"nanos (?P<code>\d{1,20})"),
    ("net_plugin", r"^NET/(?!IB|Socket\b|Plugin\b|TOPO\b|MLX5\b)(?P<code>\w{2,40})\b"),
    ("harmless", "dlvsym failed|Failed to open libibverbs|NCCL_SOCKET_NTHREADS is greater|total number of sockets is "
        r"greater|NCCL_WORK_FIFO_\w+=|NCCL_NET_MERGE_POLICY|not dumping topology|Duplicate (?:option|registration)|RAS "
        "thread terminating|^RAS received unknown|unknown event type|Profiler|remote FLID"),
    ("fallback", r"\bfall(?:s|ing)? ?back\b|\binstead\b|\bignor(?:ed|ing)\b|[Cc]ontinu(?:e|es|ing) (?:with|without|"
        r"anyway)|retrying|\b(?:is|are) deprecated|[Rr]everting to|[Dd]efaulting to"),
)
# fmt: on
BY_ID: Dict[str, Event] = {event.id: event for event in EVENTS}
_COMPILED = tuple((BY_ID[name], re.compile(pattern)) for name, pattern in PATTERNS)
# Words of the place of a warning of a network plugin, and the plugin.
_PLUGINS = (
    ("tcpxresult", "GPUDirectTCPX"), ("tcpx", "GPUDirectTCPX"), ("fastrak", "FasTrak"), ("nccl_ofi", "OFI"),
    ("nccl_net_ofi", "OFI"), ("nccl_ucx", "UCX"), ("ucx_plugin", "UCX"), ("gib_", "gIB"), ("fastsocket", "FastSocket"),
)  # fmt: skip


def classify(text: str, place: str = "") -> Tuple[Event, Dict[str, Any]]:
    """Return the event of a warning and its fields. place: FILE:LINE of NCCL's sources, or a plugin's function."""
    text = text[:_LONGEST]
    if place.startswith("ras/"):
        return BY_ID["ras"], {}
    for event, pattern in _COMPILED:
        match = pattern.search(text)
        if match is None:
            continue
        fields = match.groupdict()
        fields["code"] = (fields.get("code") or fields.pop("error", None) or "").strip()
        if event.id in ("cuda", "fabric_manager") and ("nvls" in place or "NVLink SHARP" in text):
            return BY_ID["fabric_manager"], {**fields, "code": "NVLS"}
        return event, fields
    plugin = next((name for word, name in _PLUGINS if word in place.lower()), "")
    if plugin:
        return BY_ID["plugin_warning"], {"code": plugin}
    return BY_ID["warning"], {}
