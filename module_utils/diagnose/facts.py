# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts in NCCL's INFO lines: a table of patterns and the typed fields that each gives.

Formats: NVIDIA/nccl, tags v2.18.1-1 to v2.30.7-1, and the plugins nccl-rdma-sharp-plugins and aws-ofi-nccl. A new
line is a row here and, where its fact is new, a function in ``state.py``.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Pattern, Tuple, Union

from ..core.number import signed

Value = Union[str, int, float, None]
# Groups that hold integers and decimal numbers.
_INTEGERS = frozenset((
    "rank", "ranks", "nodes", "local", "device", "index", "port", "source", "target", "distance", "level",
    "collective", "p2p", "per_peer", "nvls", "state", "pattern", "channels", "driver", "mbit", "old_mbit", "result",
    "tried", "most", "count", "datatype", "mnnvl",
))  # fmt: skip
_DECIMALS = frozenset(["bandwidth", "total"])


class Fact(NamedTuple):
    """A fact of a line: its name and the typed fields of its pattern."""

    name: str
    fields: Dict[str, Value]


class Row(NamedTuple):
    """keys: the first four characters of the texts that the row reads, separated by blanks."""

    keys: str
    name: str
    pattern: str


def decimal(text: Optional[str]) -> Optional[float]:
    """Return the value of an unsigned decimal number in ASCII digits; None for any other text."""
    if not text or len(text) > 24 or not text.isascii() or text.count(".") > 1:
        return None
    return float(text) if text.replace(".", "", 1).isdigit() else None


# Sources' folders and files, as they begin.
_PLACES = (
    "init boot tran prox enqu grou misc net. plug incl grap regi coll chan dev_ gin/ rma/ ras/ mem_ mnnv allo os/l sche"
    " src/"
)
# fmt: off
ROWS: Tuple[Row, ...] = (
    Row("Chan", "channel",
        r"Channel \d{1,4}(?:/\S{1,6})? ?:? ?(?P<source>\d{1,8})(?:\[[0-9a-f]{1,16}\])? -> (?P<target"
        r">\d{1,8})(?:\[[0-9a-f]{1,16}\])?(?: \[(?P<side>send|receive)\])? via (?P<path>[^\n]{1,120})"),
    Row("Coll", "collnet_channel", r"CollNet \d{1,4}/\d{1,4} ?: (?P<rank>\d{1,8}) \[(?P<side>send|"
        r"receive)\] via COLLNET/(?P<net>[^/]{1,40})/(?P<device>\d{1,5})(?P<gdr>/GDRDMA)?"),
    Row("CPU/", "cpu", r"CPU/[0-9a-f-]{1,12} \((?P<architecture>\d)/\d{1,3}/\d{1,3}\)"),
    Row("Usin", "network", r"Using (?:network|internal Network) (?P<name>\S[^\n]{0,39})"),
    Row("GPU ", "gdr_pair", "GPU Direct RDMA (?P<on>Enabled|"
        r"Disabled) for (?:GPU (?P<gpu>\w{1,20})(?:\[\d{1,4}\])? / HCA (?P<hca>\w{1,20})|"
        r"GPU/(?P<gpu29>\S{1,40}) \(rank \d{1,8}\) - NET/(?P<net29>\S{1,40})) \(distance (?P<distance>\d{1,3}) [<>]"
        r"=? (?P<level>\d{1,3})\)"),
    Row("NET/", "gdr_device",
        r"NET/(?P<net>(?!Socket\b)[^:]{1,40}?) ?: GPU Direct RDMA (?:\([\w -]{1,20}\) )?(?P<on>[Ee]nabled|"
        r"[Dd]isabled) for HCA \d{1,5} '(?P<hca>[^']{1,128})'(?: \((?P<why>no module))?"),
    Row("NET/", "gdr_plugin", r"NET/OFI (?P<why>[^\n]{0,200}(?:disabling GDR|GDR disabled|"
        r"does not support GPUDirect|GDR (?:is )?not supported)[^\n]{0,100})"),
    Row("NET/", "plugin_unfit", r"NET/Plugin ?: Failed to find (?P<name>ncclNet\w* symbol \([^)]{0,200}\))"),
    Row("TUNE PROF NET/ ENV/", "plugin_variable",
        r"(?P<kind>TUNER|PROFILER|NET|ENV)/Plugin ?: Plugin name set by env to (?P<name>\S{1,300})"),
    Row("Plug", "plugin_variable", r"Plugin name set by env to (?P<name>\S{1,300})"),
    Row("sock Call nccl", "retry", r"(?:\w{1,60}: connect|"
        r"Call to connect)(?: to (?P<peer>[^\s<]{1,100})(?:<\d+>)?)? returned (?P<why>[^,]{1,80}), retrying(?: \((?"
        r"P<tried>\d{1,5})/(?P<most>\d{1,5})\))?"),
    Row("Init", "timed",
        r"Init timings[^:]{0,60}: rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) total (?P<total>[\d.]{1,12})"),
    Row("NET/", "port",
        r"NET/IB ?: \[(?P<index>\d{1,4})\] (?P<name>[\w.-]{1,64}):(?:uverbs\d{1,4}:)?(?P<port>\d{1,3})/(?P<layer>"
        r"\w{1,8}) (?:[^\n]{0,80}?speed=(?P<mbit>\d{1,9})\b)?"),
    Row("NET/", "speed_change",
        r"NET/IB ?: (?P<name>[\w.-]{1,64}):(?P<port>\d{1,3}) speed change detected: (?P<old_mbit>\d{1,9}) -> (?P<"
        r"mbit>\d{1,9}) Mbps"),
    Row("NET/", "hcas", r"NET/IB\w{0,12} ?: Using\b(?P<devices>[^\n]*)"),
    Row("NET/", "no_device", r"NET/IB\w{0,12} ?: No (?P<why>device|IP interface) found"),
    Row("Fail", "no_device", "Failed to open (?P<why>libibverbs)"),
    Row("NET/", "interfaces", r"NET/Socket ?: Using(?P<devices>[^\n]*)"),
    Row("Coul", "interface", r"Could not get speed (?:from /sys/class/net/|for interface )(?P<name>[\w@-]{1,64})"),
    Row("NET/", "merged",
        r"NET/IB ?: Made virtual device \[(?P<index>\d{1,4})\] name=(?P<name>\S{1,128})(?: speed=(?P<mbit>\d{1,9}))?"),
    Row("NET/", "plugin_loaded", r"(?P<kind>NET)/Plugin ?: (?:[^\n]{0,80})?Loaded (?P<part>net|collnet|coll|"
        r"gin) plugin (?P<name>[^\n]{1,60}? \(v\d+\))"),
    Row("NET/ TUNE PROF ENV/ GIN/ RMA/", "plugin_missing",
        r"(?P<kind>NET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Could not find: ?(?P<name>[^\s]*)"),
    Row("NET/", "plugin_error", "NET/Plugin ?: (?:dlerror=|(?:Most recent p|"
        r"P)lugin load (?:\([^)]{0,200}\) )?returned \d{1,4} : )(?P<name>[^:\s]{1,160}): (?P<why>[^\n]{1,200})"),
    Row("NET/", "plugin_missing",
        r"(?P<kind>NET)/Plugin ?: [^\n]{0,300}?(?:No plugin found(?: \((?P<name>[^)]{0,120})\))?|"
        "cannot open shared object file)"),
    Row("NET/", "plugin_error", r"NET/Plugin ?: (?P<name>\S{1,120}\.so[\w.]{0,12}): (?P<why>[^\n]{1,300})"),
    Row("GIN/ RMA/ PROF", "plugin_loaded",
        r"(?P<kind>GIN|RMA|PROFILER)/Plugin ?: Loaded (?:\w+ plugin )?(?P<name>[^\n]{1,60}? \(v\d+\))"),
    Row("TUNE ENV/", "plugin_loaded",
        r"(?P<kind>TUNER|ENV)/Plugin ?: Using (?!internal)(?:tuner plugin )?(?P<name>[^\n]{1,60})"),
    Row("Succ", "plugin_loaded", r"Successfully loaded external (?:network|net) plugin (?P<name>[^\n]{1,120})"),
    Row("P2P ", "plugin_loaded", r"P2P plugin (?P<name>[^\n]{1,60})"),
    Row("Fail", "plugin_failed", r"Failed to initialize NET plugin (?P<name>[^\n]{1,60})"),
    Row("GIN/ Fail", "plugin_failed", "(?:GIN/Plugin ?: )?Failed to initialize any (?P<kind>GIN) plugin"),
    Row("NET/", "plugin_idle", r"NET/(?P<name>OFI)\b[^\n]{0,40}\bNo eligible providers"),
    Row("Coul peer", "peer_off",
        r"(?:Could not enable P2P|peer query failed) between dev (?P<a>\d{1,4})\(=\w+\) and dev (?P<b>\d{1,4})"),
    Row("P2P ", "peer_off", r"P2P is disabled between connected GPUs (?P<a>\d{1,4}) and (?P<b>\d{1,4})"),
    Row("P2P ", "peer_off", r"P2P not supported between GPU(?P<a>\d{1,4}) and GPU(?P<b>\d{1,4})"),
    Row(_PLACES, "returned",
        r"(?P<place>[\w/.-]{1,120}\.(?:cc|h|cpp|cu):\d{1,6})(?: \(\w{1,80}\))?"
        r" -> (?P<result>\d{1,2})\b(?P<more>[^\n]{0,60})"),
    Row("Boot NET ", "bootstrap", r"(?:Bootstrap ?: Using (?:\[0\])?|"
        r"NET : Using interface )(?P<interface>[^\s:]{1,64}):(?P<address>[^\s<]{1,100})"),
    Row("Rank", "own_rank", r"Rank (?P<rank>\d{1,8}): \d{1,4} Net devices"),
    Row("Boot", "met", r"Bootstrap timings\b"),
    Row("Boot boot", "root_waits", r"(?i:bootstrap root) ?: (?P<what>[^\n]{0,100}(?:checked in|[Ww]ait)[^\n]{0,80})"),
    Row("comm nccl [Ran", "init",
        r"(?:\[Rank \d{1,8}\] )?(?:(?P<call>\w{1,60}) )?comm (?P<comm>\S{1,24}) rank (?P<rank>\d{1,8}) n[rR]anks "
        r"(?P<ranks>\d{1,8})\b(?P<rest>[^\n]{0,300}?) ?- (?:Init )?(?P<phase>START|COMPLETE)"),
    Row("comm", "shape",
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) nRanks (?P<ranks>\d{1,8}) nNodes (?P<nodes>\d{1,"
        r"8}) localRanks (?P<local>\d{1,8})(?: localRank \d{1,8} MNNVL (?P<mnnvl>[01]))?"),
    Row("comm Comm nRan nran with", "shape",
        r"(?:[Cc]omm(?:unicator)? (?P<comm>0x[0-9a-f]{1,16})?\S{0,24} ?(?:rank (?P<rank>\d{1,8}) )?)?(?:with )?(?"
        r":n[rR]anks )?(?P<ranks>\d{1,8})(?: ranks)?[ ,](?: ?and | ?over | ?on |"
        r" ?)(?:n[nN]odes )?(?P<nodes>\d{1,8})(?: nodes?\b|\b)(?:,? local[rR]anks (?P<local>\d{1,8}))?"),
    Row("MNNV", "fabric",
        r"MNNVL busId 0x[0-9a-f]{1,16} fabric UUID (?P<a>[0-9a-f]{1,16})\.(?P<b>[0-9a-f]{1,16}) cliqueId (?P<cliq"
        r"ue>0x[0-9a-f]{1,8}) state (?P<state>\d{1,3})\b(?: healthMask (?P<health>0x[0-9a-f]{1,8}))?"),
    Row("comm", "ended",
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) n[rR]anks (?P<ranks>\d{1,8})\b[^\n]{0,200} - (?P"
        "<how>Destroy|Abort|Revoke) COMPLETE"),
    Row("comm nccl [Ran", "named",
        r"(?:\[Rank \d{1,8}\] )?(?:\w{1,60} )?comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) n[rR]anks (?"
        r"P<ranks>\d{1,8})"),
    Row("Conn", "rings", "Connected all rings"),
    Row("Conn", "met", "Connected all trees"),
    Row("Tree", "tree", r"Trees \[0\] (?:-?\d{1,8}/){2}-?\d{1,8}->(?P<rank>\d{1,8})->"),
    Row("rank", "collnet_connected", r"rank (?P<rank>\d{1,8}) Connected CollNet"),
    Row("SHAR", "sharp", r"SHARP rank (?P<rank>\d{1,8})/(?P<ranks>\d{1,8}) initialized on (?P<device>[\w.:-]{1,64})"),
    Row("Cann", "collnet_off", r"(?P<why>Cannot initialize CollNet[^\n]{0,180})"),
    Row("Comm", "collnet_off", r"(?P<why>Communicator has \d+ nodes which is less than CollNet[^\n]{0,120})"),
    Row("Comm", "variable", r"Comm config netName reset to (?P<name>NCCL_NET)=(?P<value>[^\n]{1,60})"),
    Row("NVLS", "nvls",
        r"NVLS multicast support is (?P<no>not )?available(?: on dev \d{1,4})?(?: \(NVLS_NCHANNELS (?P<channels>"
        r"\d{1,5})\))?"),
    Row("NVLS", "nvls_group", "NVLS comm 0x[0-9a-f]{1,16} headRank "),
    Row("DMA-", "dmabuf", r"DMA-BUF is available on GPU device \d{1,5}"),
    Row("NCCL", "version",
        r"NCCL version (?P<nccl>\d{1,4}\.\d{1,4}\.\d{1,4})[\w.:\-]{0,60}?(?:\+cuda(?P<cuda>\d{1,4}\.\d{1,4})|\+|$)"),
    Row("NCCL", "variable",
        r"(?P<name>NCCL_[A-Z0-9_]{1,80}|[A-Za-z_]\w{0,79}) set (?:by environment )?to (?P<value>[^\n]{0,1000})"),
    Row("nccl", "shared_limit",
        r"ncclMaxSharedMem (?P<needed>\d{1,9}) exceeds device/fn maxSharedMem (?P<most>\d{1,9})"),
    Row("cuda", "driver", r"cudaDriverVersion (?P<driver>\d{4,7})"),
    Row("Patt", "graph",
        r"Pattern (?P<pattern>\d{1,2}), crossNic \d, nChannels (?P<channels>\d{1,4}), bw (?P<bandwidth>[\d.]{1,16"
        r"})/[\d.]+, type (?P<path>\w{1,8})/"),
    Row("=== ", "system", r"=== System : maxBw (?P<bandwidth>[\d.]{1,16}) "),
    Row("+", "nvlink", r"\+ NVL\[(?P<bandwidth>[\d.]{1,12})\] - "),
    Row("+", "gpu", r"\+ \w{1,8}\[[\d.]{1,12}\] - GPU/(?P<gpu>[0-9A-Fa-f-]{1,40})"),
    Row("0", "channels",
        r"(?P<collective>\d{1,5}) coll channels,? ?(?:\d{1,5} collnet channels,? ?)?(?:(?P<nvls>\d{1,5}) nvls cha"
        r"nnels,? ?)?(?:(?P<p2p>\d{1,5}) p2p channels(?:, (?P<per_peer>\d{1,5}) p2p channels per peer)?)?"),
    Row("AllR AllG Redu Broa Send Recv AllT Gath Scat", "algorithm",
        r"(?P<function>[A-Za-z]{4,20}): \d{1,20} Bytes -> Algo (?P<algo>[A-Z_\d]{1,20}) proto (?P<proto"
        r">[A-Z0-9]{1,12})(?: channel\{Lo\.\.Hi\}=\{\d{1,4}\.\.\d{1,4}\})?"),
    Row("AllR AllG Redu Broa", "operation", "(?P<function>AllReduce|AllGather|ReduceScatter|Reduce|"
        r"Broadcast): opCount (?P<number>[0-9a-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} (?:acc \S{1,20} )?coun"
        r"t (?P<count>\d{1,20}) datatype (?P<datatype>\d{1,3}) op \d{1,12} root -?\d{1,8} comm (?"
        "P<comm>0x[0-9a-f]{1,16})"),
)
# fmt: on
_KEYED: Dict[str, List[Tuple[str, Pattern[str]]]] = {}
for _row in ROWS:
    for _key in re.findall(r"\S[^ ]{0,3}(?: (?= |$))?", _row.keys):
        _KEYED.setdefault(_key, []).append((_row.name, re.compile(_row.pattern)))
_INFO_KEYS = frozenset(key.encode() for key in _KEYED if len(key) == 4)
# Facts that NCCL prints only when all ranks of a communicator have met (behind the bootstrap of its initialisation).
BEHIND_BOOTSTRAP = frozenset(
    ["shape", "channel", "rings", "tree", "met", "channels", "collnet_channel", "nvls_group", "timed"]
)
# What a person has written behind a line.
_REMARK = re.compile(r" {1,20}#(?:[^\w\s][^\n]*| [^\n]*)?$")
_WHOLE_PATH = re.compile(r"/\S{1,300}/src/([\w/.+-]{1,120}\.(?:cc|h|cpp|cu):\d{1,6}(?: \(\w{1,80}\))? -> \d{1,2}\b)")


def read(text: str) -> Optional[Fact]:
    """Return the fact of an INFO line's text; None where no row reads it."""
    if " #" in text:
        text = _REMARK.sub("", text)
    first = text[:1]
    if first == "/":
        match = _WHOLE_PATH.match(text)
        return read(match.group(1)) if match else None
    if first == " ":
        text = text.lstrip(" ")
        first = text[:1]
    rows = _KEYED.get("+" if first == "+" else "0" if first.isdigit() else text[:4])
    for name, pattern in rows or ():
        match = pattern.match(text)
        if match is not None:
            return Fact(name, {key: typed(key, value) for key, value in match.groupdict().items()})
    return None


def may_read(key: bytes) -> bool:
    """Return whether a row may read an INFO line's text that begins with these four bytes."""
    return key in _INFO_KEYS or key[:1].isdigit() or key[:1] in (b" ", b"+", b"/")


def typed(name: str, value: Optional[str]) -> Value:
    """Return a group of a pattern as the type of its field."""
    if value is None:
        return None
    if name in _INTEGERS:
        return signed(value)
    if name in _DECIMALS:
        return decimal(value)
    return value.strip()
