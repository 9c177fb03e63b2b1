# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts in NCCL's INFO lines: a table of patterns, the typed fields of each, and what takes them into the state.

Formats: NVIDIA/nccl, tags v2.18.1-1 to v2.30.7-1, and the plugins nccl-rdma-sharp-plugins, aws-ofi-nccl, MRC and gIB.
"""

from __future__ import annotations

import re
from operator import itemgetter as get
from sys import intern
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Pattern, Tuple, Union

from ..core.number import signed
from .state import COMPLETED, KINDS, Call, Found, Process, State, Way

Value = Union[str, int, float, None]
Take = Callable[[State, Process, Found], None]
# Groups of a pattern that hold integers, and decimal numbers.
_INTEGER = re.compile(r"\(\?P<(\w+)>(?:\\d\{[\d,]+\}|\[01\])\)")
_DECIMAL = re.compile(r"\(\?P<(\w+)>\[\\d\.\]")
# Conditions of a GPU's fabric: shift, width and bad values of their bits (NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h).
_FABRIC = (
    (0, 3, (1,), "degraded bandwidth"),
    (2, 3, (1,), "route recovery"),
    (4, 3, (1,), "an unhealthy route"),
    (6, 3, (1,), "access timeout recovery"),
    (8, 15, range(2, 16), "a wrong configuration"),
)
_HCA = re.compile(r"\[(\d{1,4})\]\s?([^\s:/{}]{1,128}):(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)")
_MERGED = re.compile(r"\[(\d{1,4})\]=\{([^}]*)\}")
_OOB = re.compile(r" ?OOB ([^\s:]{1,64}):([^\s<]{1,100})")
_INTERFACE = re.compile(r"\[(\d{1,4})\]([^\s:]{1,64}):([^\s<]{1,100})")


class Fact(NamedTuple):
    """A fact of a line: its name, the typed fields of its pattern, and what takes it into the state."""

    name: str
    fields: Found
    take: Optional[Take] = None


class Row(NamedTuple):
    """keys: the first four characters of the texts that the row reads, separated by blanks."""

    keys: str
    name: str
    take: Optional[Take]
    pattern: str


def _set(name: str, value: Callable[[Found], Any] = lambda _found: True) -> Take:
    """Return what sets an attribute of the process."""
    return lambda _state, process, found: setattr(process, name, value(found))


def _add(name: str, *fields: str) -> Take:
    """Return what adds a field, or several as a tuple, to an attribute of the process."""
    return lambda _state, process, found: process.add(name, get(*fields)(found))


def _count(process: Process, name: str, key: object) -> None:
    process.put(name, key, getattr(process, name).get(key, 0) + 1)


def _network(_state: State, process: Process, found: Found) -> None:
    process.add("networks", intern(found["name"]))
    process.networked = found["_where"][1]


def _hcas(_state: State, process: Process, found: Found) -> None:
    listed, _semicolon, rest = found["devices"].partition(";")
    for match in _MERGED.finditer(listed):
        ports = _HCA.findall(match.group(2))
        if ports:
            process.put("devices", int(match.group(1)), "+".join(name for _index, name in ports))
    for index, name in _HCA.findall(_MERGED.sub("", listed)):
        process.put("devices", int(index), intern(name))
    process.list_cut = process.list_cut or "..." in listed or "\u2026" in listed
    oob = _OOB.match(rest)
    if oob:
        process.oob = (oob.group(1), oob.group(2))


def _port(_state: State, process: Process, found: Found) -> None:
    if "layer" in found:
        process.put("ports", intern(found["name"]), None)
    else:
        process.put("devices", found["index"], found["name"])
    if found["mbit"]:
        process.put("speeds", found["name"], found["mbit"])


def _interfaces(_state: State, process: Process, found: Found) -> None:
    for _index, name, address in _INTERFACE.findall(found.get("devices") or ""):
        process.put("interfaces", name, address)
    if found.get("name"):
        process.put("interfaces", found["name"], process.interfaces.get(found["name"], ""))


def _gdr_pair(_state: State, process: Process, found: Found) -> None:
    gpu, hca = found["gpu"] or found["gpu29"], found["hca"] or found["net29"]
    if found["on"] != "Enabled":
        process.add("gdr_off", (gpu, hca, found["distance"], found["level"]))


def _gdr_device(_state: State, process: Process, found: Found) -> None:
    able = found["on"].lower() == "enabled"
    if found["net"] != "IB" and process.gdr_devices.get(found["hca"]) and not able:
        process.gdr_why = "the plugin %s has GPUDirect RDMA off, though NET/IB reports it as enabled" % found["net"]
    process.put("gdr_devices", found["hca"], able)
    if found["why"] and not process.gdr_why:
        process.gdr_why = "no module for it (nvidia_peermem, nv_peer_mem) is loaded"


def _gdr_plugin(_state: State, process: Process, found: Found) -> None:
    process.put("gdr_devices", "NET/OFI", False)
    process.gdr_why = "the plugin reports: %s" % found["why"]


def _plugin(state_of: str) -> Take:
    def take(_state: State, process: Process, found: Found) -> None:
        kind, name = found.get("kind") or "NET", found.get("name") or ""
        collnet = str(found.get("part")).startswith("coll") or (state_of == "unfit" and "CollNet" in name)
        name = name.split(" ")[0] if state_of == "missing" else name
        process.add("plugins", ("COLLNET" if collnet else kind, state_of, intern(name.rstrip(". ")[:120])))

    return take


def _plugin_release(plugin: str) -> Take:
    """Return what stores the release of a network plugin. plugin: its name in net_plugins.PLUGINS."""
    return lambda _state, process, found: process.put("plugin_releases", plugin, intern(found["release"]))


def _plugin_error(_state: State, process: Process, found: Found) -> None:
    name, why = found["name"], found["why"]
    missing = why.startswith("cannot open shared object file") and "ccl" in name
    process.add("plugins", ("NET", "missing", name) if missing else ("NET", "failed", "%s: %s" % (name, why[:160])))


def _plugin_variable(_state: State, process: Process, found: Found) -> None:
    value = found["name"].rstrip(".")
    if value.startswith("libnccl-net-") and value.endswith(".so"):
        value = value[len("libnccl-net-") : -3]
    process.put("variables", "NCCL_%s_PLUGIN" % (found.get("kind") or "NET"), value)


def _variable(_state: State, process: Process, found: Found) -> None:
    value = found["value"]
    process.put("variables", intern(found["name"]), intern(value[:-1] if value.endswith(".") else value))


def _returned(_state: State, process: Process, found: Found) -> None:
    if found["result"] not in (0, 7) and len(process.calls) < KINDS:
        progress = "Progress" in (found["more"] or "")
        source, order, device = found["_where"]
        process.calls += (Call(found["place"], found["result"], source, order, device, progress),)


def _fabric(_state: State, process: Process, found: Found) -> None:
    uuid, mask, state = found["uuid"], int(found["health"] or "0", 16), found["state"]
    for shift, width, bad, what in _FABRIC:
        if mask >> shift & width in bad:
            process.add("fabric_faults", what)
    if state in (1, 2):
        process.add("fabric_faults", "a registration with the fabric that is not complete (state %d)" % state)
    if uuid != "0.0" or state != COMPLETED:
        process.add("fabrics", (uuid, found["clique"], found["state"], found["health"] or ""))


def _collnet(state: State, process: Process, found: Found) -> None:
    keys = [
        key
        for key in dict.fromkeys(process.pointers.values())
        if key in state.communicators and state.communicators[key].began.get(found["rank"]) is process
    ]
    open_ones = [key for key in keys if found["rank"] not in state.communicators[key].done] or keys
    if len(open_ones) == 1:
        process.add("collnet", (open_ones[0], found["rank"]))


def _collnet_channel(_state: State, process: Process, found: Found) -> None:
    gdr, sends = found["gdr"] is not None, found["side"] == "send"
    _count(process, "ways", Way(found["rank"], "collnet", found["net"], found["device"], gdr, False, sends))


def _channels(_state: State, process: Process, found: Found) -> None:
    process.channels = found["collective"]
    if found["nvls"] is not None:
        process.nvls_channels = max(process.nvls_channels or 0, found["nvls"])


def _nvlink(_state: State, process: Process, found: Found) -> None:
    if found["bandwidth"] and process.last_gpu:
        process.put("nvlinks", process.last_gpu, process.nvlinks.get(process.last_gpu, 0.0) + found["bandwidth"])


def _system(_state: State, process: Process, found: Found) -> None:
    process.system = max(process.system, found["bandwidth"])
    process.nvlinks, process.last_gpu = {}, ""


def _version(_state: State, process: Process, found: Found) -> None:
    process.add("versions", intern(found["nccl"]))
    process.cuda = found["cuda"] or process.cuda


def _algorithm(_state: State, process: Process, found: Found) -> None:
    _count(process, "algorithms", (found["function"], found["algo"], found["proto"]))


# Sources' folders and files, as they begin.
_PLACES = (
    "init boot tran prox enqu grou misc net. plug incl grap regi coll chan dev_ gin/ rma/ ras/ mem_ mnnv allo os/l sche"
    " src/"
)
# fmt: off
_ROWS: Tuple[Row, ...] = (
    Row("Chan", "channel", State.channel, r"Channel \d{1,4}(?:/\S{1,6})? ?:? ?<source:8>(?:\[[0-9a-f]{1,16}\])? -> "
        r"<target:8>(?:\[[0-9a-f]{1,16}\])?(?: \[(?P<side>send|receive)\])? via (?P<path>[^\n]{1,120})"),
    Row("Coll", "collnet_channel", _collnet_channel, r"CollNet \d{1,4}/\d{1,4} ?: <rank:8> \[(?P<side>send|receive)\] "
        "via COLLNET/(?P<net>[^/]{1,40})/<device:5>(?P<gdr>/GDRDMA)?"),
    Row("CPU/", "cpu", _set("cpu", get("arch")), r"CPU/[0-9a-f-]{1,12} \((?P<arch>\d)/\d{1,3}/\d{1,3}\)"),
    Row("Usin", "network", _network, r"Using (?:network|internal Network) (?P<name>\S[^\n]{0,39})"),
    Row("GPU ", "gdr_pair", _gdr_pair, r"GPU Direct RDMA (?P<on>Enabled|Disabled) for (?:GPU (?P<gpu>\w{1,20})"
        r"(?:\[\d{1,4}\])? / HCA (?P<hca>\w{1,20})|GPU/(?P<gpu29>\S{1,40}) \(rank \d{1,8}\) - NET/(?P<net29>\S{1,40})) "
        r"\(distance <distance:3> [<>]=? <level:3>\)"),
    Row("NET/", "gdr_device", _gdr_device, r"NET/(?P<net>(?!Socket\b)[^:]{1,40}?) ?: GPU Direct RDMA (?:\([\w "
        r"-]{1,20}\) )?(?P<on>[Ee]nabled|[Dd]isabled) for HCA \d{1,5} '(?P<hca>[^']{1,128})'?(?: \((?P<why>no module))"
        "?"),
    Row("NET/", "gdr_plugin", _gdr_plugin, r"NET/OFI (?P<why>[^\n]{0,200}(?:disabling GDR|GDR disabled|does not "
        r"support GPUDirect|GDR (?:is )?not supported)[^\n]{0,100})"),
    Row("NET/", "plugin_release", _plugin_release("ofi"), r"NET/OFI Initializing (?P<release>aws-ofi-nccl \S{1,60})"),
    Row("NET/", "plugin_release", _plugin_release("gib"), r"NET/gIB ?: Initializing (?P<release>gIB \S{1,60})"),
    Row("Init", "plugin_release", _plugin_release("mrc"), r"Initializing (?P<release>MRC plugin version \S{1,60})"),
    Row("NET/", "plugin_unfit", _plugin("unfit"), r"NET/Plugin ?: Failed to find (?P<name>ncclNet\w* symbol \([^)"
        r"]{0,200}\))"),
    Row("TUNE PROF NET/ ENV/", "plugin_variable", _plugin_variable, "(?P<kind>TUNER|PROFILER|NET|ENV)/Plugin ?: "
        r"Plugin name set by env to (?P<name>\S{1,300})"),
    Row("Plug", "plugin_variable", _plugin_variable, r"Plugin name set by env to (?P<name>\S{1,300})"),
    Row("sock Call nccl", "retry", _set("retry", dict), r"(?:\w{1,60}: connect|Call to connect)(?: to (?P<peer>[^\s"
        r"<]{1,100})(?:<\d+>)?)? returned (?P<why>[^,]{1,80}), retrying(?: \(<tried:5>/<most:5>\))?"),
    Row("Init", "timed", State.timed, "Init timings[^:]{0,60}: rank <rank:8> nranks <ranks:8> total "
        r"(?P<total>[\d.]{1,12})"),
    Row("NET/", "port", _port, r"NET/IB ?: \[<index:4>\] (?P<name>[\w.-]{1,64}):(?:uverbs\d{1,4}:)?<port:3>/"
        r"(?P<layer>\w{1,8}) (?:[^\n]{0,80}?speed=<mbit:9>\b)?"),
    Row("NET/", "speed_change", _add("speed_changes", "name", "old_mbit", "mbit"),
        r"NET/IB ?: (?P<name>[\w.-]{1,64}):<port:3> speed change detected: <old_mbit:9> -> <mbit:9> Mbps"),
    Row("NET/", "hcas", _hcas, r"NET/IB\w{0,12} ?: Using\b(?P<devices>[^\n]*)"),
    Row("NET/", "no_device", _add("absent", "why"), r"NET/IB\w{0,12} ?: No (?:IP )?(?P<why>device|interface) found"),
    Row("Fail", "no_device", _add("absent", "why"), "Failed to open (?P<why>libibverbs)"),
    Row("NET/", "interfaces", _interfaces, r"NET/Socket ?: Using(?P<devices>[^\n]*)"),
    Row("Coul", "interface", _interfaces, "Could not get speed (?:from /sys/class/net/|for interface )"
        r"(?P<name>[\w@-]{1,64})"),
    Row("NET/", "merged", _port, r"NET/IB ?: Made virtual device \[<index:4>\] name=(?P<name>\S{1,128})(?: speed="
        "<mbit:9>)?"),
    Row("NET/", "plugin_loaded", _plugin("loaded"), r"(?P<kind>NET)/Plugin ?: (?:[^\n]{0,80})?Loaded (?P<part>net|"
        r"collnet|coll|gin) plugin (?P<name>[^\n]{1,60}? \(v\d+\))"),
    Row("NET/ TUNE PROF ENV/ GIN/ RMA/", "plugin_missing", _plugin("missing"), "(?P<kind>NET|TUNER|PROFILER|ENV|GIN|"
        r"RMA)/Plugin ?: Could not find: ?(?P<name>[^\s]*)"),
    Row("NET/", "plugin_error", _plugin_error, r"NET/Plugin ?: (?:dlerror=|(?:Most recent p|P)lugin load (?:\([^)"
        r"]{0,200}\) )?returned \d{1,4} : )(?P<name>[^:\s]{1,160}): (?P<why>[^\n]{1,200})"),
    Row("NET/", "plugin_missing", _plugin("missing"), r"(?P<kind>NET)/Plugin ?: [^\n]{0,300}?(?:No plugin found(?: \("
        r"(?P<name>[^)]{0,120})\))?|cannot open shared object file)"),
    Row("NET/", "plugin_error", _plugin_error, r"NET/Plugin ?: (?P<name>\S{1,120}\.so[\w.]{0,12}): "
        r"(?P<why>[^\n]{1,300})"),
    Row("GIN/ RMA/ PROF", "plugin_loaded", _plugin("loaded"), r"(?P<kind>GIN|RMA|PROFILER)/Plugin ?: Loaded (?:\w+ "
        r"plugin )?(?P<name>[^\n]{1,60}? \(v\d+\))"),
    Row("TUNE ENV/", "plugin_loaded", _plugin("loaded"), "(?P<kind>TUNER|ENV)/Plugin ?: Using (?!internal)(?:tuner "
        r"plugin )?(?P<name>[^\n]{1,60})"),
    Row("Succ", "plugin_loaded", _plugin("loaded"), "Successfully loaded external (?:network|net) plugin "
        r"(?P<name>[^\n]{1,120})"),
    Row("P2P ", "plugin_loaded", _plugin("loaded"), r"P2P plugin (?P<name>[^\n]{1,60})"),
    Row("Fail", "plugin_failed", _plugin("failed"), r"Failed to initialize NET plugin (?P<name>[^\n]{1,60})"),
    Row("GIN/ Fail", "plugin_failed", _plugin("failed"), "(?:GIN/Plugin ?: )?Failed to initialize any (?P<kind>GIN) "
        "plugin"),
    Row("NET/", "plugin_idle", _plugin("idle"), r"NET/(?P<name>OFI)\b[^\n]{0,40}\bNo eligible providers"),
    Row("Coul peer", "peer_off", _add("peers_off", "a", "b"), "(?:Could not enable P2P|peer query failed) between dev "
        r"<a:4>\(=\w+\) and dev <b:4>"),
    Row("P2P ", "peer_off", _add("peers_off", "a", "b"), "P2P is disabled between connected GPUs <a:4> and <b:4>"),
    Row("P2P ", "peer_off", _add("peers_off", "a", "b"), "P2P not supported between GPU<a:4> and GPU<b:4>"),
    Row(_PLACES, "returned", _returned, r"(?P<place>[\w/.-]{1,120}\.(?:cc|h|cpp|cu):\d{1,6})(?: \(\w{1,80}\))? -> "
        r"<result:2>\b(?P<more>[^\n]{0,60})"),
    Row("Boot NET ", "bootstrap", _set("bootstrap", get("interface", "address")),
        r"(?:Bootstrap ?: Using (?:\[0\])?|NET : Using interface )(?P<interface>[^\s:]{1,64}):(?P<address>[^\s"
        "<]{1,100})"),
    Row("Rank", "own_rank", _add("named_ranks", "rank"), r"Rank <rank:8>: \d{1,4} Net devices"),
    Row("Boot", "met", None, r"Bootstrap timings\b"),
    Row("Boot boot", "root_waits", _set("root_waits", get("what")), r"(?i:bootstrap root) ?: (?P<what>[^\n]{0,100}"
        r"(?:checked in|[Ww]ait)[^\n]{0,80})"),
    Row("comm nccl [Ran", "init", State.init, r"(?:\[Rank \d{1,8}\] )?(?:(?P<call>\w{1,60}) )?comm (?P<comm>\S{1,24}) "
        r"rank <rank:8> n[rR]anks <ranks:8>\b(?P<rest>[^\n]{0,300}?) ?- (?:Init )?(?P<phase>START|COMPLETE)"),
    Row("comm", "shape", State.shape, "comm <comm:x> rank <rank:8> nRanks <ranks:8> nNodes <nodes:8> localRanks "
        r"<local:8>(?: localRank \d{1,8} MNNVL (?P<mnnvl>[01]))?"),
    Row("comm Comm nRan nran with", "shape", State.shape, r"(?:[Cc]omm(?:unicator)? <comm:x>?\S{0,24} ?(?:rank "
        "<rank:8> )?)?(?:with )?(?:n[rR]anks )?<ranks:8>(?: ranks)?[ ,](?: ?and | ?over | ?on | ?)(?:n[nN]odes )?"
        r"<nodes:8>(?: nodes?\b|\b)(?:,? local[rR]anks <local:8>)?"),
    Row("MNNV", "fabric", _fabric, r"MNNVL busId 0x[0-9a-f]{1,16} fabric UUID (?P<uuid>[0-9a-f]{1,16}\.[0-9a-f]{1,16}) "
        r"cliqueId (?P<clique>0x[0-9a-f]{1,8}) state <state:3>\b(?: healthMask (?P<health>0x[0-9a-f]{1,8}))?"),
    Row("comm", "ended", State.end, r"comm <comm:x> rank <rank:8> n[rR]anks <ranks:8>\b[^\n]{0,200} - (?P<how>Destroy|"
        "Abort|Revoke) COMPLETE"),
    Row("comm nccl [Ran", "named", State.named, r"(?:\[Rank \d{1,8}\] )?(?:\w{1,60} )?comm <comm:x> rank <rank:8> "
        "n[rR]anks <ranks:8>"),
    Row("Conn", "rings", _set("rings"), "Connected all rings"),
    Row("Conn", "met", None, "Connected all trees"),
    Row("Tree", "tree", _add("named_ranks", "rank"), r"Trees \[0\] (?:-?\d{1,8}/){2}-?\d{1,8}-><rank:8>->"),
    Row("rank", "collnet_connected", _collnet, "rank <rank:8> Connected CollNet"),
    Row("SHAR", "sharp", _add("sharp", "rank"), "SHARP rank <rank:8>/<ranks:8> initialized on "
        r"(?P<device>[\w.:-]{1,64})"),
    Row("Cann", "collnet_off", _set("collnet_why", get("why")), r"(?P<why>Cannot initialize CollNet[^\n]{0,180})"),
    Row("Comm", "collnet_off", _set("collnet_why", get("why")), r"(?P<why>Communicator has \d+ nodes which is less "
        r"than CollNet[^\n]{0,120})"),
    Row("Comm", "variable", _variable, r"Comm config netName reset to (?P<name>NCCL_NET)=(?P<value>[^\n]{1,60})"),
    Row("NVLS", "nvls", _set("nvls", lambda found: found["no"] is None), "NVLS multicast support is (?P<no>not )"
        r"?available(?: on dev \d{1,4})?(?: \(NVLS_NCHANNELS <channels:5>\))?"),
    Row("NVLS", "nvls_group", _set("nvls_group"), "NVLS comm 0x[0-9a-f]{1,16} headRank "),
    Row("DMA-", "dmabuf", _set("dmabuf"), r"DMA-BUF is available on GPU device \d{1,5}"),
    Row("NCCL", "version", _version, r"NCCL version (?P<nccl>\d{1,4}\.\d{1,4}\.\d{1,4})[\w.:\-]{0,60}?(?:\+cuda"
        r"(?P<cuda>\d{1,4}\.\d{1,4})|\+|$)"),
    Row("NCCL", "variable", _variable, r"(?P<name>NCCL_[A-Z0-9_]{1,80}|[A-Za-z_]\w{0,79}) set (?:by environment )?to "
        r"(?P<value>[^\n]{0,1000})"),
    Row("nccl", "shared_limit", _set("shared_limit", get("needed", "most")), "ncclMaxSharedMem <needed:9> exceeds "
        "device/fn maxSharedMem <most:9>"),
    Row("cuda", "driver", _set("driver", get("driver")), r"cudaDriverVersion (?P<driver>\d{4,7})"),
    Row("Patt", "graph", _add("graphs", "pattern", "channels", "bandwidth", "path"),
        r"Pattern <pattern:2>, crossNic \d, nChannels <channels:4>, bw (?P<bandwidth>[\d.]{1,16})/[\d.]+, type "
        r"(?P<path>\w{1,8})/"),
    Row("=== ", "system", _system, r"=== System : maxBw (?P<bandwidth>[\d.]{1,16}) "),
    Row("+", "nvlink", _nvlink, r"\+ NVL\[(?P<bandwidth>[\d.]{1,12})\] - "),
    Row("+", "gpu", _set("last_gpu", get("gpu")), r"\+ \w{1,8}\[[\d.]{1,12}\] - GPU/(?P<gpu>[0-9A-Fa-f-]{1,40})"),
    Row("0", "channels", _channels, r"<collective:5> coll channels,? ?(?:\d{1,5} collnet channels,? ?)?(?:<nvls:5> "
        "nvls channels,? ?)?(?:<p2p:5> p2p channels(?:, <per_peer:5> p2p channels per peer)?)?"),
    Row("AllR AllG Redu Broa Send Recv AllT Gath Scat", "algorithm", _algorithm,
        r"(?P<function>[A-Za-z]{4,20}): \d{1,20} Bytes -> Algo (?P<algo>[A-Z_\d]{1,20}) proto (?P<proto>[A-Z0-9]{1,12})"
        r"(?: channel\{Lo\.\.Hi\}=\{\d{1,4}\.\.\d{1,4}\})?"),
    Row("AllR AllG Redu Broa", "operation", State.operation, "(?P<function>AllReduce|AllGather|ReduceScatter|Reduce|"
        r"Broadcast): opCount (?P<number>[0-9a-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} (?:acc \S{1,20} )?count "
        r"<count:20> datatype <datatype:3> op \d{1,12} root -?\d{1,8} comm <comm:x>(?: \[nranks=<ranks:8>\])?"),
)
# fmt: on
# What a row writes for a group of up to so many digits (``<rank:8>``), and of a pointer (``<comm:x>``).
_GROUPS = ((r"<(\w+):(\d+)>", r"(?P<\1>\\d{1,\2})"), (r"<(\w+):x>", r"(?P<\1>0x[0-9a-f]{1,16})"))


def _with_groups(row: Row) -> Row:
    pattern = row.pattern
    for short, group in _GROUPS:
        pattern = re.sub(short, group, pattern)
    return row._replace(pattern=pattern)


ROWS = tuple(map(_with_groups, _ROWS))
_KEYED: Dict[str, List[Tuple[Row, Pattern[str], Dict[str, Callable[[str], Value]]]]] = {}
for _row in ROWS:
    _types: Dict[str, Callable[[str], Value]] = {
        **dict.fromkeys(_INTEGER.findall(_row.pattern), signed),
        **dict.fromkeys(_DECIMAL.findall(_row.pattern), lambda text: decimal(text) or 0.0),
    }
    for _key in re.findall(r"\S[^ ]{0,3}(?: (?= |$))?", _row.keys):
        _KEYED.setdefault(_key, []).append((_row, re.compile(_row.pattern), _types))
_INFO_KEYS = frozenset(key.encode() for key in _KEYED if len(key) == 4)
# Facts that NCCL prints only when all ranks of a communicator have met (behind the bootstrap of its initialisation).
_BEHIND_BOOTSTRAP = frozenset(
    ["shape", "channel", "rings", "tree", "met", "channels", "collnet_channel", "nvls_group", "timed"]
)
# What a person has written behind a line.
_REMARK = re.compile(r" {1,20}#(?:[^\w\s][^\n]*| [^\n]*)?$")
_WHOLE_PATH = re.compile(r"/\S{1,300}/src/([\w/.+-]{1,120}\.(?:cc|h|cpp|cu):\d{1,6}(?: \(\w{1,80}\))? -> \d{1,2}\b)")


def read(text: str) -> Optional[Fact]:
    """Return the fact of an INFO line's text; None where no row reads it."""
    if " #" in text:
        text = _REMARK.sub("", text)
    if text[:1] == "/":
        match = _WHOLE_PATH.match(text)
        return read(match.group(1)) if match else None
    text = text.lstrip(" ")
    first = text[:1]
    for row, pattern, types in _KEYED.get("+" if first == "+" else "0" if first.isdigit() else text[:4], ()):
        match = pattern.match(text)
        if match is not None:
            groups = match.groupdict().items()
            return Fact(row.name, {key: value and types.get(key, str.strip)(value) for key, value in groups}, row.take)
    return None


def may_read(key: bytes) -> bool:
    """Return whether a row may read an INFO line's text that begins with these four bytes."""
    return key in _INFO_KEYS or key[:1].isdigit() or key[:1] in (b" ", b"+", b"/")


def decimal(text: Optional[str]) -> Optional[float]:
    """Return the value of an unsigned decimal number in ASCII digits; None for any other text."""
    if not text or len(text) > 24 or not text.isascii() or text.count(".") > 1:
        return None
    return float(text) if text.replace(".", "", 1).isdigit() else None


def fold(state: State, process: Process, fact: Fact) -> None:
    """Take a fact in; what only comes behind a bootstrap proves that the ranks have met."""
    if fact.name in _BEHIND_BOOTSTRAP and process.pointers:
        state.communicators[list(process.pointers.values())[-1]].met = True
    if fact.take is not None:
        fact.take(state, process, fact.fields)
