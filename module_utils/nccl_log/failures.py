# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What went wrong, as the warnings of NCCL and of its plugins say it: 2.18 to 2.32.

A failure names what was reported, not its cause: the judgement says which causes fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Failure:
    """kind: one of the kinds of the rules below.   text: what was printed, cut.

    code: number or name that tells kinds of it apart: ``12`` of a completion, ``out of memory`` of CUDA.
    peer: address of the other side; "" where not said.   device: HCA; "" where not said.
    rank: that an exception, a watchdog or a launcher names; None else.
    """

    kind: str
    text: str
    code: str = ""
    peer: str = ""
    device: str = ""
    rank: Optional[int] = None


# Completion statuses of ibverbs (enum ibv_wc_status) that NCCL meets.
STATUSES = {
    1: "local length error",
    2: "local QP operation error",
    4: "local protection error",
    5: "flushed: the connection had failed before",
    6: "memory window bind error",
    7: "bad response",
    8: "local access error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "RNR retry counter exceeded",
    22: "general error",
}

# Of SHARP, reduction in the switches of InfiniBand; NVLink SHARP is another thing.
SHARP = (
    r"(?<!NVLink )\bSHARP (?:coll|group|job|init|reg|mr|alloc|comm|rank|iallreduce|req)\w*\b.*?(?:rror|fail|annot)|"
    r"SHArP .*(?:rror|fail)|\bsharp_\w+ (?:failed|error)|(?:SAT|LLT|Streaming) [Tt]ree.*fail|"
    r"[Ff]ailed to lock (?:SAT|LLT)|Begin job id: ?\d+ failed|Job error in sharp"
)
# Only what has to be distinguished. The first rule that fits decides.
_RULES: Tuple[Tuple[str, str], ...] = (
    # What the system refuses says more than the call that was refused.
    ("limits", r"(?P<code>Too many open files)"),
    ("limits", r"(?P<code>[Pp]oll(?:\(\))? failed: Invalid argument)"),
    ("limits", r"(?:Thread creation|pthread_create).*?(?P<code>Resource temporarily unavailable)?$"),
    (
        "completion",
        r"Got completion (?:from peer (?P<peer>\S{1,100}?)(?:<\d+>)? )?with (?:error|status=?)"
        r" ?(?:\w{1,40}\()?(?P<code>\d{1,3})\)?(?:.*\bhca (?P<device>\S{1,64}))?",
    ),
    (
        # No failures by themselves.
        "event",
        r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:\w+ )?event[^:]*: (?P<code>client"
        r" reregistration|(?:LID|SM|P_?[Kk][Ee][Yy](?: table)?|GID(?: table)?) change|port active|communication"
        r" established|send queue drained|last WQE reached|SRQ limit reached)",
    ),
    (
        # Of a queue: it goes with a failed completion.
        "completion",
        r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:fatal )?event(?: on QP \([^)]*\))?[^:]*: "
        r"(?P<code>[\w -]{0,40}(?:work queue error|QP\b|access|request error))",
    ),
    (
        "port",
        r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:fatal |error )?event"
        r"(?: on \w+(?:, unused for now)? \([^)]*\))?[^:]*: (?P<code>.{1,60})",
    ),
    ("port", r"NET/IB\w* ?: (?P<device>[\w.-]{1,64}):\d+ (?P<code>GID table changed)"),
    # 2.28.7 and later go on, until the retries of what is under way are spent.
    ("port", r"NET/IB\w* ?: (?P<device>[\w.-]{1,64}):\d+ Got non-fatal async event: (?P<code>port error)"),
    (
        # 2.29 and later go on without an HCA, where there is another one.
        "hca_lost",
        r"NET/IB.*(?:Got CQE with error|marked as (?:permanently )?failed|failed devices out of|functional device|"
        r"probing attempts|The error is fatal|permanently failed|Unsupported completion status)",
    ),
    (
        "queue_pair",
        r"Call to ibv_modify_qp failed with (?:error )?(?P<code>[^,]{1,100}), on dev (?P<device>[\w.-]{1,64})",
    ),
    ("queue_pair", r"Call to ibv_modify_qp failed(?: with (?:error )?(?P<code>.{1,200}))?"),
    ("memory_limit", r"Call to ibv_(?:reg_mr\w*|create_cq|create_qp|alloc_pd)\w* failed.*Cannot allocate memory"),
    ("registration", r"Call to (?P<code>ibv_reg_\w{1,40}) failed"),
    ("verbs", r"Call to (?P<code>(?:ibv|mlx5dv)_\w{1,60})(?:\(\))? (?:failed|returned)"),
    ("verbs", r"(?P<code>(?:ibv_post_\w{1,20}|mlx5dv_\w{1,60})(?:\(\))?) failed"),
    ("hca_skipped", r"NET/IB ?: Unable to (?:open|query) (?:device|port\w*) (?P<device>[\w.-]{1,64})"),
    ("verbs", r"NET/IB ?: (?P<code>\w{1,8} failed in ncclIbRoceGetVersionNum)"),
    (
        "duplicate_gpu",
        r"Duplicate GPU detected ?: rank \d{1,8} and rank \d{1,8} both on CUDA device (?P<code>\w{1,20})",
    ),
    ("duplicate_gpu", r"Multiple Ranks are using the same GPU"),
    (
        "compiled",
        r"compiled with (?:too old version of )?NCCL|NCCL library (?:version )?is too old|"
        r"not initialized via NCCL_|must be initialized via NCCL_",
    ),
    ("version", r"Mismatched NCCL version detected|NCCL version mismatch with remote peer"),
    ("no_interface", r"No interface found in the same subnet as remote address (?P<peer>\S{1,100})"),
    (
        "no_interface",
        r"(?:Bootstrap|NET/Socket) ?: no (?:socket )?interface found|NET/IB\w* ?: No IP interface found|No "
        r"usable listening|no device found (?:after excluding|matching)|verify NCCL_OOB_NET_IFNAME",
    ),
    ("address", r"connecting to address .{0,60}with family \d+ is neither"),
    ("name", r"Net ?: error encountered when getting address info ?: (?P<code>.{1,60})"),
    ("bootstrap", r"Bootstrap Root ?: (?:rank \d+ of \d+ ranks has (?P<code>already)|(?P<error>mismatch) in|localId)"),
    (
        "bootstrap",
        r"Invalid NCCL_COMM_ID|Net ?: No valid .* pair found|Net ?: (?:unsupported IP family|string is null)",
    ),
    (
        "consequence",
        r"unlink shared memory|munmap of shared memory|proxy ops shm unlink|shm close failed|deregister \w+ buffer|"
        r"Legacy IPC cleanup",
    ),
    ("shared_memory", r"Error while (?P<code>attaching) to shared memory segment"),
    (
        "shared_memory",
        r"shared memory segment|failed to extend \S+ to \d+|posix_fallocate failed|Error: failed to (?:create|"
        r"extend) shared mem|Could not map \S+ size|Unexpected bus error|insufficient shared memory",
    ),
    ("uds", r"\bUDS: (?P<code>[A-Z][a-z]+ (?:data over socket|to socket|creation error)?).*"),
    (
        "connect",
        r"ollConnect.*(?:failed|error|returned|POLLOUT).* connect(?:ing)? to (?P<peer>[\w.:%\[\]-]{1,100}?)"
        r"(?::\d+|<\d+>)?\s*$",
    ),
    (
        "connect",
        r"(?:[Cc]onnect|PollConnect)(?:ing)?:? to (?P<peer>\S{1,100}?)(?:<\d+>)? .*?(?:failed|returned|error|exceeded)",
    ),
    (
        "connect",
        r"Call to connect (?:to (?P<peer>\S{1,100}?)(?:<\d+>)? )?(?:failed|timeout)|"
        r"exceeded (?:error )?retr(?:ies|y)|socket\w*Connect: exceeded|[cC]onnect poll\(\)",
    ),
    ("closed", r"Connection closed by remote peer ?(?P<peer>(?!\[rank\d)\S{0,100}?)(?:<\d+>)?(?:\s|$)"),
    (
        "closed",
        r"Call to (?:sendmsg|recvmsg|send|recv)\b.*?(?:to|from)? ?(?P<peer>[\w.:\[\]-]{1,100}?)?(?:<\d+>)? ?failed ?:",
    ),
    ("accept", r"^(?!\[).*Accept failed"),
    ("device_api", r"^Allocation failed\. No suitable (?P<code>space) found"),
    ("host_memory", r"Failed to (?:m|re|c)alloc \d+ bytes|(?:m|c|re)alloc\([^)]*\) returned null|^Allocation failed"),
    (
        "consequence",
        r"Failed to CUDA |Proxy Call to rank|Socket recv failed while polling|Failed to execute operation|"
        r"\[Service thread\]|\[Proxy (?:[Ss]ervice|Progress)|socket progress error|ncclSocketInit: connecting|"
        r"Accept/connect failed|ncclAsyncJobComplete|commReclaim|commDestroySync|async(?:Job)? failed|"
        r"communicator encountered a fatal error|is in abort state|communicator was revoked|ncclProxyStop|"
        r"ncclProxy\w{1,40} call to|hostStreamPlanCallback|Unexpected connections are not empty|"
        r"ncclCommSetAsyncError|socket state|file descriptor is -1|MemManager: .*(?:failed|Failed)|"
        r"called when comm\S* ?== 0|comm->(?:base\.)?ready == 0|Accept failed",
    ),
    ("nvlink_p2p", r"P2P is disabled between NVLINK connected GPUs"),
    ("peer_access", r"failed to peer with device|(?:cuda|hip)Ipc\w+ failed|CUDA IPC handle ?:"),
    ("fabric_manager", r"(?P<code>MNNVL) .*not (?:working|supported)|(?P<error>IMEX)"),
    ("fabric_manager", r"Failed to bind NVLink SHARP|Cuda failure (?:802|'system not yet init)|[Mm]ulticast.* fail"),
    ("driver_old", r"CUDA driver version is insufficient"),
    (
        "cuda",
        r"[Cc]uda failure (?:\w{1,40}:\d+ )?(?:\d{1,4} )?'(?P<code>[^']{1,100})(?:'|$)|CUDA error(?: ?: |"
        r"\s)(?P<error>[^\n]{1,80})",
    ),
    ("cuda", r"(?P<code>CUDA out of memory)"),
    ("nvml", r"Failed to open libnvidia-ml"),
    ("driver", r"CUDA Driver version found is|[Rr]equires CUDA driver|CUDA driver <"),
    (
        "driver_functions",
        r"CUDA some PFN functions not found|Failed to (?:find CUDA library|load CUDA missing)|old driver|"
        r"Retrieve \S+ (?:version \d+ )?failed|cuDriverGetVersion failed",
    ),
    ("driver", r"(?:Cuda|CUDA) driver|ROC[rm]\w* (?:Driver|failure|SMI init)|Failed to (?:find|load) ROC"),
    (
        "mismatch",
        r"[Mm]essage truncated|collective mismatch|may be hanging|Mismatched collective|posted incorrect receive info|"
        r"receiving \d+ bytes instead|symmetric registration check failed|Detected mismatch between collectives",
    ),
    (
        "algorithm",
        r"Unrecognized (?:element|prefix) token|[nN]o algorithm/protocol (?:nor \w+ )?available|must have a prefix|"
        r"no symmetric kernel available",
    ),
    ("no_network", r"Error: network (?P<code>\S.{0,63}?) not found|Failed to initialize any NET plugin"),
    ("no_transport", r"No transport found for rank|has no transport for"),
    ("no_pci_device", r"Could not find real path of (?P<device>[\w.-]{1,64}) \("),
    ("nvml", r"nvml\w{1,60}(?:\([^)]*\))? failed|nvmlDeviceGetCount\(\) reported"),
    (
        "link_layer",
        r"incompatible (?:with the local|devices)|Detected mixed local (?:Net|CollNet) device counts|"
        r"different link_layer|different number of devices=",
    ),
    ("merge", r"(?:TOPO/NET|NET/IB) ?: .*(?:[Mm]erg|virtual (?:device|NIC)|vNic)|fused NIC|Fusing NET"),
    ("handshake", r"socketFinalizeAccept.*: wrong (?:type|magic)|wrong type \d+ != \d+|magic mismatch"),
    (
        "topology_file",
        r"XML (?:Parse|Mismatch|Import|Export|Topology|Graph)|XML (?:topology|graph|parser)\b|XML \w*nodes",
    ),
    ("sharp", SHARP),
    ("fallback", r"(?P<code>cuMem) (?:support requires|is not supported|not supported|host allocations)"),
    ("fallback", r"(?P<code>Cannot initialize CollNet|falling back to simple order)"),
    ("topology", r"Attribute \w{1,40} of node \w{1,40} not found"),
    (
        "topology",
        r"Could not find (?:a path|any local path|NIC|net|gpu|local GPU|rev link|intermediate|node of|id |real path|"
        r"CPU|NET with)|could not find (?:CPU|GPU|PCI SW|DEV|parent)|Set CPU affinity|No path computed|Error : ring \d|"
        r"too many (?:Topo links|nodes of type|DEV)|reverse path|Skipping nvlink detection|tree already has|"
        r"requires NIC \d+ but|ran out of room to store",
    ),
    (
        "value",
        r"^(?:NCCL_\w+ value|NCCL_\w+=\S+ is being|'NCCL_\w+=\d+' is too)|Limiting value|^Invalid \S+ \d+ \(m(?:ax|"
        r"in|ust)|"
        r"User asked for a (?:max|min)imum|(?:min|max)CTAs \d+ is larger|is not a valid value|Ignoring SHM locality|"
        r"is out of range \[|ignoring NCCL_|set by environment is ignored|too big|disabling CollNet",
    ),
    ("gdrcopy", r"GDRCOPY|\bgdr_\w+(?:\(.*\))? ?(?:failed|not available)|GDRCopy|Failed to open libgdrapi"),
    (
        "usage",
        r"argument is NULL|is not a valid pointer|invalid (?:root|type|reduction operation|device"
        r" count|communicator)|reduction operation \d+ unknown|mismatchs with NCCL device|Invalid (?:device count|rank"
        r" requested|config|device \d)|Invalig config|[Bb]locking and nonblocking|not in a group call|already been"
        r" destroyed|corrupted comm object|Attempt to use communicator before|to self without a"
        r" matching|ncclRedOp|Streams given to a communicator|ncclGroup\(\) can be CUDA graph"
        r" captured|ncclCommGrow|improper usage of|exceeds ndev|cannot be captured in a graph|[nN]etName .* (?:does not"
        r" match|different from)|not being captured by|ncclCommGetUniqueId|FP8 reduction support|fails to share parent"
        r" comms",
    ),
    (
        "device_api",
        r"\bGIN\b|\bRMA\b|\bgin[ :]|Gin[ :A-Z]|[Ss]ymmetric (?:memory|register)|[Ww]indow (?:address|registration|has)|"
        r"\bwindow %?\S+ |ncclDev\w+|multimem|[Mm]ulticast support requested|ncclPutSignal|ncclWaitSignal|ncclSignal|"
        r"DOCA (?:Error|failure)|[Oo]ne[- ]sided RMA|GDAKI|cuMem segments",
    ),
    ("confidential", r"Multi-GPU CC Off"),
    (
        "internal",
        r"Proxy append|List loop|Unknown pattern|Inactive op|schedule creation has bugs|opId=|Internal error|"
        r"lib wrapper not initialized|unable to allocate (?:requests|subtasks)|test called with NULL|pass NULL socket|"
        r"Could not find pool|dequeu\w+ (?:null|nonexistent)|reqSize is|respSize is|CollNet sizes|Invalid regBufType|"
        r"Failed to determine (?:intra|local)|diviser of|ran out of channel space|no inflight credit|Invalid request"
        r" index",
    ),
    ("port_in_use", r"Address already in use"),
    ("system", r"Call to (?P<code>\w{1,40}) failed|Socket creation failed"),
    (
        # GPUDirectTCPX and FasTrak of GCP.
        "plugin_waits",
        r"(?P<device>[\w.-]{2,32}), \S{1,60}<-(?P<peer>[\w.:\[\]-]{2,60}?)<\d+> .{0,60}timeout cnt \d+, "
        r"nanos (?P<code>\d{1,20})",
    ),
    # Of a network that a plugin brings: NET/OFI. Last: what NCCL's own rules know says more.
    ("net_plugin", r"^NET/(?!IB|Socket\b|Plugin\b|TOPO\b|MLX5\b)(?P<code>\w{2,40})\b"),
)
# What a warning that no rule knows says all the same: NCCL did not stop at it.
_GOES_ON = re.compile(
    r"\bfall(?:s|ing)? ?back\b|\binstead\b|\bignor(?:ed|ing)\b|[Cc]ontinu(?:e|es|ing) (?:with|without|anyway)|retrying|"
    r"\b(?:is|are) deprecated|[Rr]everting to|[Dd]efaulting to"
)
# Of older libraries, and of what a setting forces: nothing follows from either.
_SETTLED = re.compile(r"Could not find nccl\w{1,60} symbol|DMA_?BUF [Ss]upport is force enabled")
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)
# Warnings that change nothing where a network is found all the same.
_HARMLESS = re.compile(
    r"dlvsym failed|Failed to open libibverbs|NET/IB ?: No device found|NCCL_SOCKET_NTHREADS is greater|total number of"
    r" sockets is greater|NCCL_WORK_FIFO_\w+=|Missing \S* ?symbol|not able to (?:find|load)|Failed to open"
    r" libnccl|NCCL_NET_MERGE_POLICY|has been set to \"1\" and communicator|non-fatal async event|Continue without"
    r" profiler|not dumping topology|Duplicate (?:option|registration)|RAS thread terminating|^RAS received"
    r" unknown|unknown event type|Profiler|Inspector|remote FLID|Unable to create thread context due to old"
)


# What stands in the place of a warning of a plugin, and the plugin.
_PLUGIN_PLACES = (
    ("tcpxresult", "GPUDirectTCPX"), ("tcpx", "GPUDirectTCPX"), ("fastrak", "FasTrak"), ("nccl_ofi", "OFI"),
    ("nccl_net_ofi", "OFI"), ("nccl_ucx", "UCX"), ("ucx_plugin", "UCX"), ("gib_", "gIB"), ("fastsocket", "FastSocket"),
)  # fmt: skip


_PEER = re.compile(
    r"\b[Pp]eer(?: EFA)?(?: addr(?:ess)?)?:? (?=\S{0,90}[\d.:])\S{4,90}(?: Peer host id: \S{1,60}(?<![.,;)]))?"
)


def cut(text: str, most: int = 400) -> str:
    """A text of about so many characters: its begin, and the peer that it names, or else its end."""
    if len(text) <= most:
        return text
    peer = next((match for match in _PEER.finditer(text) if match.end() > most), None)
    behind = text[peer.start() : peer.end()] if peer is not None else text[-most // 3 :]
    return "%s ... %s%s" % (text[: max(most - len(behind) - 5, 40)], behind, " ..." if peer is not None else "")


def failure(text: str, place: str = "") -> Optional[Failure]:
    """What a warning says; a Failure of kind "warning" where no rule knows it; None of what is harmless.

    place: where in NCCL's sources it stands, which tells what the same call was made for.
    """
    if place.startswith("ras/"):
        return Failure("ras", cut(text))
    if _SETTLED.search(text):
        return None
    for kind, pattern in _COMPILED:
        match = pattern.search(text)
        if match is not None:
            said = match.groupdict()
            code = (said.get("code") or said.get("error") or "").strip()
            if kind in ("cuda", "fabric_manager") and ("nvls" in place or "NVLink SHARP" in text):
                kind, code = "fabric_manager", "NVLS"
            rank = int(said["rank"]) if said.get("rank") else None
            return Failure(kind, cut(text), code, said.get("peer") or "", said.get("device") or "", rank)
    if _HARMLESS.search(text):
        return None
    plugin = next((name for word, name in _PLUGIN_PLACES if word in place.lower()), "")
    if plugin and not _GOES_ON.search(text):
        return Failure("plugin_warning", cut(text), plugin)
    return Failure("fallback" if _GOES_ON.search(text) else "warning", cut(text))


def completed(said: Failure, text: str, place: str) -> Optional[Failure]:
    """What a warning says together with the line behind it, which somebody has broken; None where that adds nothing."""
    now = failure(text, place)
    if now is None or now.kind in ("warning", "fallback"):
        return None
    if said.kind == "warning":
        return now
    more = (now.peer and not said.peer) or (now.device and not said.device) or (now.code and not said.code)
    return now if now.kind == said.kind and more else None
