# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Recognise events in NCCL's warnings.

Formats: NVIDIA/nccl, tags v2.18.1-1 to v2.30.7-1 (src/**/*.cc). The class of a row of formats.tsv is the event of a
warning that no pattern fits. The order of rows matters: the first pattern that fits decides.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, Optional, Pattern, Tuple

from . import formats
from .events import BY_ID, Event

# Characters of a warning that are matched.
_LONGEST = 2048
# An event of an HCA, up to its name.
_ASYNC = r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?(?:non-fatal )?async (?:\w+ )?event[^:]{0,80}: "
# fmt: off
PATTERNS: Tuple[Tuple[str, str], ...] = (
    ("verbs", "Error in (?P<code>mlx5dv_get_data_direct_sysfs_path)"),
    ("port_active", _ASYNC + "(?P<code>port active)"),
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
    ("version", "Mismatched NCCL version detected|NCCL version mismatch with remote peer"),
    ("no_interface", r"No interface found in the same subnet as remote address (?P<peer>\S{1,100})"),
    ("name", "Net ?: error encountered when getting address info ?: (?P<code>.{1,60})"),
    ("bootstrap", r"Bootstrap Root ?: (?:rank \d+ of \d+ ranks has (?P<code>already)|(?P<error>mismatch) in|localId)"),
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
    ("device_api", r"^Allocation failed\. No suitable (?P<code>space) found"),
    ("peer_access", r"failed to peer with device|(?:cuda|hip)Ipc\w+ failed|CUDA IPC handle ?:"),
    ("fabric_manager", "(?P<code>MNNVL) .*not (?:working|supported)|(?P<error>IMEX)"),
    ("fabric_manager", "Failed to bind NVLink SHARP|Cuda failure (?:802|'system not yet init)|[Mm]ulticast.* fail"),
    ("driver_old", "CUDA driver version is insufficient"),
    ("cuda", r"[Cc]uda failure (?:\w{1,40}:\d+ )?(?:\d{1,4} )?'(?P<code>[^']{1,100})(?:'|$)|CUDA error(?: ?: |"
        r"\s)(?P<error>[^\n]{1,80})"),
    ("cuda", "(?P<code>CUDA out of memory)"),
    ("mismatch", "[Mm]essage truncated|collective mismatch|posted incorrect receive info|symmetric registration check "
        "failed"),
    ("algorithm", r"Unrecognized (?:element|prefix) token|[nN]o algorithm/protocol (?:nor \w+ )?available|must have a "
        "prefix|no symmetric kernel available"),
    ("no_network", r"Error: network (?P<code>\S.{0,63}?) not found|Failed to initialize any NET plugin"),
    ("no_pci_device", r"Could not find real path of (?P<device>[\w.-]{1,64}) \("),
    ("topology_file", r"XML (?:Parse|Mismatch|Import|Export|Topology|Graph)|XML (?:topology|graph|parser)\b|XML "
        r"\w*nodes|node not found in XML|Error : (?:name|value) \S{1,200} too long"),
    ("sharp", r"(?<!NVLink )\bSHARP (?:coll|group|job|init|reg|mr|alloc|comm|rank|iallreduce|req)\w*\b.*?(?:rror|fail|"
        r"annot)|SHArP .*(?:rror|fail)|\bsharp_\w+ (?:failed|error)|(?:SAT|LLT|Streaming) [Tt]ree.*fail|[Ff]ailed to "
        r"lock (?:SAT|LLT)|Begin job id: ?\d+ failed|Job error in sharp"),
    ("fallback", "(?P<code>cuMem) (?:support requires|is not supported|not supported|host allocations)"),
    ("fallback", "(?P<code>Cannot initialize CollNet|falling back to simple order)"),
    ("closed", r"ocketProgressOpt: Call to \S{1,20} (?P<peer>[^\s<]{1,100})(?:<\d+>)? failed"),
    ("port_in_use", "Address already in use"),
    ("system", r"Call to (?P<code>\w{1,40}) failed|Socket creation failed|pthread_join|Thread join failed|failed to "
        "join thread|random_device"),
    ("plugin_waits", r"(?P<device>[\w.-]{2,32}), \S{1,60}<-(?P<peer>[\w.:\[\]-]{2,60}?)<\d+> .{0,60}timeout cnt \d+, "
        r"nanos (?P<code>\d{1,20})"),
    ("consequence", r"Proxy Call to rank|\[Proxy (?:[Ss]ervice|Progress)|\[Service thread\]"),
    ("hca_lost", "Got CQE with error"),
    ("harmless", r"Failed to open libibverbs|Could not find nccl\w{1,60} symbol"),
    ("nvml", "Failed to open libnvidia-ml"),
)
# Of warnings that are in no known release of NCCL, or read on a node, which has no formats.tsv.
OTHERS: Tuple[Tuple[str, str], ...] = (
    ("fallback", "failed to (?:NET|NVLS|IPC) register userbuff|COLLNET failed to register"),
    ("setting", "OOO RQ is force|[0-9] plane IDs?|a plane ID that|has been set to .{0,2}1.{0,2} and communicator|GDR "
        "Flush only supported|Cannot use physical device|TOPO/NET : Only matched"),
    ("plugin_build", "plugin returned invalid value for max|NCCL_DEVICE_UNPACK plugin has incompatible"),
    ("usage", "host threads racing to launch|does not satisfy symmetric registration"),
    ("driver", "exceeds device/fn maxSharedMem"),
    ("hca_lost", "NET/IB.*(?:Got CQE with error|marked as (?:permanently )?failed|failed devices out of|functional "
        "device|probing attempts|The error is fatal|permanently failed|Unsupported completion status)"),
    ("compiled", "compiled with (?:too old version of )?NCCL|NCCL library (?:version )?is too old|not initialized via "
        "NCCL_|must be initialized via NCCL_"),
    ("no_interface", r"(?:Bootstrap|NET/Socket) ?: no (?:socket )?interface found|NET/IB\w* ?: No IP interface found|"
        "No usable listening|no device found (?:after excluding|matching)|verify NCCL_OOB_NET_IFNAME"),
    ("address", r"connecting to address .{0,60}with family \d+ is neither"),
    ("bootstrap", "Invalid NCCL_COMM_ID|Net ?: No valid .* pair found|Net ?: (?:unsupported IP family|string is null)"),
    ("accept", r"^(?!\[).*Accept failed"),
    ("host_memory", r"Failed to (?:m|re|c)alloc \d+ bytes|(?:m|c|re)alloc\([^)]*\) returned null|^Allocation failed"),
    ("nvlink_p2p", "P2P is disabled between NVLINK connected GPUs"),
    ("driver", "CUDA Driver version found is|[Rr]equires CUDA driver|CUDA driver <|CUMEM (?:Host is )?not supported "
        "prior"),
    ("no_transport", "No transport found for rank|has no transport for"),
    ("nvml", r"nvml\w{1,60}(?:\([^)]*\))? failed|nvmlDeviceGetCount\(\) reported"),
    ("link_layer", "incompatible (?:with the local|devices)|Detected mixed local (?:Net|CollNet) device counts|"
        "different link_layer|different number of devices="),
    ("handshake", "socketFinalizeAccept.*: wrong (?:type|magic)|magic mismatch"),
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
    ("hca_lost", "replacement QP for the failed|initialize a resiliency send"),
    ("registration", "register (?:userbuff|sendbuff)|^register fails"),
    ("net_plugin", r"^NET/(?!IB|Socket\b|Plugin\b|TOPO\b|MLX5\b)(?P<code>\w{2,40})\b"),
    ("fallback", r"\bfall(?:s|ing)? ?back\b|\binstead\b|\bignor(?:ed|ing)\b|[Cc]ontinu(?:e|es|ing) (?:with|without|"
        r"anyway)|retrying|\b(?:is|are) deprecated|[Rr]everting to|[Dd]efaulting to"),
)
# fmt: on
_PATTERNS, _OTHERS = (tuple((name, re.compile(pattern)) for name, pattern in rows) for rows in (PATTERNS, OTHERS))
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
    name, fields = _match(_PATTERNS, text) or _of_format(text) or _match(_OTHERS, text) or ("", {})
    if name in ("cuda", "fabric_manager") and ("nvls" in place or "NVLink SHARP" in text):
        return BY_ID["fabric_manager"], {**fields, "code": "NVLS"}
    plugin = next((plugin for word, plugin in _PLUGINS if word in place.lower()), "")
    if not name and plugin:
        return BY_ID["plugin_warning"], {"code": plugin}
    return BY_ID[name or "warning"], fields


def _match(rows: Iterable[Tuple[str, Pattern[str]]], text: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    for name, pattern in rows:
        match = pattern.search(text)
        if match is not None:
            fields = match.groupdict()
            fields["code"] = (fields.get("code") or fields.pop("error", None) or "").strip()
            return name, fields
    return None


def _of_format(text: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    """Return the event of the formats that a warning can be of, where they have one."""
    try:
        kinds = {row.kind for row in formats.lookup(text) if row.level == "WARN"}
    except OSError:
        # Ansible sends no data files to a node.
        return None
    kind = kinds.pop().partition(":") if len(kinds) == 1 else ("", "", "")
    name = kind[2] if kind[0] == "event" else kind[0]
    return (name, {"code": ""}) if name in BY_ID else None
