# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a line of NCCL 2.18 to 2.32 says, as an event; nothing is concluded here.

Texts are those of the sources of 2.18.3 to 2.30.7 and of captured logs. ``STARTS`` lets a reader of a large log pass
over what says nothing: first four characters of texts that may be an event.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Match, Optional, Pattern, Set, Tuple

from ..core.number import whole
from . import connection, notes
from .events import (
    COMPLETED,
    Bootstrap,
    Channel,
    Channels,
    CollNet,
    Device,
    Devices,
    DmaBuf,
    Driver,
    Event,
    Fabric,
    Form,
    GdrDevice,
    GdrPair,
    Gone,
    Graph,
    GraphNode,
    Init,
    Met,
    Named,
    Network,
    NoDevice,
    Note,
    Nvls,
    NvlsGroup,
    Own,
    PeerOff,
    Plugin,
    Port,
    Retry,
    Returned,
    Rings,
    RoceGid,
    Shape,
    Sharp,
    System,
    Timed,
    Trees,
    Variable,
    Version,
)

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,79}"
VERSION = re.compile(
    r"NCCL version (?P<nccl>\d{1,4}\.\d{1,4}\.\d{1,4})[\w.:\-]{0,60}?"
    r"(?:\+cuda(?P<cuda>\d{1,4}\.\d{1,4})|\+cudaCUDA_MAJOR|\+[cuda]{0,4}[\d.]{0,4}\s*$)"
)
# The first line of nccl-tests from 2.17.4 on: the library that it runs with.
TESTS_VERSION = re.compile(r"# nccl-tests version .{0,80}? nccl-library=(?P<x>\d{1,2})(?P<y>\d\d)(?P<z>\d\d)$")
LIBRARY_MARKS = b"libnccl.so.2.", b"nccl_version_code="
_LIBRARY = re.compile(r"\blibnccl\.so\.(2\.\d{1,3}\.\d{1,3})\b(?!\.\d)")
_CODE = re.compile(r"\bnccl_version_code=(2\d{3,4})\b")
_HCA = re.compile(
    r"\[(\d{1,4})\]\s?([^\s:/{}]{1,128}):(?:uverbs\d{1,4}:)?(\d{1,4})(?::-?\d{1,9}){0,4}/(IB|RoCE)(/SHARP\b)?"
)
# The rest of a list that somebody has broken into lines.
MORE_HCAS = re.compile(
    rb"\s{0,200}\[\d{1,4}\]\s?[\w.-]{1,128}:(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)\b"
)
_MERGED = re.compile(r"\[(\d{1,4})\]=\{([^}]*)\}")
_OOB = re.compile(r" ?OOB ([^\s:]{1,64}):(\S{1,100}?)<")
_INTERFACE = re.compile(r"\[(\d{1,4})\]([^\s:]{1,64}):(\S{1,100})<\d+>")
_BOOTSTRAP = re.compile(r"bootstrap ([\d.]{1,12})")
_CUDA_DEV, _BUS = re.compile(r"\bcudaDev (\d{1,4})\b"), re.compile(r"\bbusId ([0-9a-f]{1,16})\b(?!\.)")
_COMM_ID = re.compile(r"\bcommId 0x([0-9a-f]{1,16})\b(?!\.)")
_PARENT = re.compile(r"\bparent (0x[0-9a-f]{1,16})\b.{0,40}? color (-?\d{1,20})\b")
_NVLINK = re.compile(r"\s*\+ NVL\[(?P<bw>[\d.]{1,12})\] - ")
_NIC = re.compile(r"\s*\+ NET\[(?P<bw>[\d.]{1,12})\] - NET/(?P<nic>[0-9A-Fa-f-]{1,40})")
_GPU = re.compile(r"\s*\+ \w{1,8}\[[\d.]{1,12}\] - GPU/(?P<gpu>[0-9A-Fa-f-]{1,40})")


def libraries(text: str) -> Set[str]:
    """Releases in the names of libraries and in numbers that programs print."""
    if not any(mark.decode() in text for mark in LIBRARY_MARKS):
        return set()
    found = set(_LIBRARY.findall(text))
    for code in map(int, _CODE.findall(text)):
        # 2708 is 2.7.8; from 2.9 on 21205 is 2.12.5.
        base = 10000 if code >= 10000 else 1000
        found.add("%d.%d.%d" % (code // base, code % base // 100, code % 100))
    return found


def _version(m: Match[str]) -> Event:
    return Version(m.group("nccl"), m.group("cuda") or "")


def _timed(m: Match[str]) -> Event:
    parts = m.group("parts") or ""
    bootstrap = _BOOTSTRAP.search(parts)
    return Timed(
        int(m.group("rank")),
        int(m.group("ranks")),
        _decimal(m.group("total")),
        _decimal(bootstrap.group(1)) if bootstrap else 0.0,
        parts,
    )


def _init(m: Match[str]) -> Event:
    return Init(
        m.group("comm"),
        m.group("id") or "",
        m.group("parent") or "",
        m.group("color") or "",
        int(m.group("rank")),
        int(m.group("ranks")),
        int(m.group("device")),
        m.group("bus"),
        m.group("phase") == "COMPLETE",
        m.string.startswith("ncclCommInitAll "),
        int(m.group("nvml")) if m.group("nvml") else None,
    )


def _init_short(m: Match[str]) -> Event:
    """A begin or completion that lacks parts of its line."""
    rest = m.group("rest")
    device, bus, own, of = (pattern.search(rest) for pattern in (_CUDA_DEV, _BUS, _COMM_ID, _PARENT))
    return Init(
        m.group("comm"),
        own.group(1) if own else "",
        of.group(1) if of else "",
        of.group(2) if of else "",
        int(m.group("rank")),
        int(m.group("ranks")),
        int(device.group(1)) if device else -1,
        bus.group(1) if bus else "",
        m.group("phase") == "COMPLETE",
        m.string.startswith("ncclCommInitAll "),
    )


def _shape_said(m: Match[str]) -> Event:
    rank = int(m.group("rank")) if m.group("rank") else -1
    return Shape(m.group("comm") or "", rank, *(int(m.group(key) or 0) for key in ("ranks", "nodes", "local")))


def _fabric(m: Match[str]) -> Optional[Event]:
    """A GPU on its own board says a UUID of zeros, and is of no domain."""
    uuid = "%s.%s" % (m.group("a"), m.group("b"))
    state = int(m.group("state"))
    return None if uuid == "0.0" and state == COMPLETED else Fabric(uuid, m.group("clique"), state)


def _devices(m: Match[str]) -> Event:
    said, _semicolon, rest = m.group("devices").partition(";")
    found = []
    for one in _MERGED.finditer(said):
        ports = _HCA.findall(one.group(2))
        if ports:
            name, joined = "+".join(port[1] for port in ports), tuple(int(port[2]) for port in ports)
            found.append(Device(int(one.group(1)), name, joined[0], ports[0][3], joined=joined))
    plain = _HCA.findall(_MERGED.sub("", said))
    found += [Device(int(n), name, int(port), layer, sharp=bool(sharp)) for n, name, port, layer, sharp in plain]
    oob = _OOB.match(rest)
    cut = "..." in said or "\u2026" in said
    return Devices("IB", tuple(found), oob.group(1) if oob else "", oob.group(2) if oob else "", cut)


def _interfaces(m: Match[str]) -> Event:
    found = _INTERFACE.findall(m.group("devices"))
    return Devices("Socket", tuple(Device(int(i), name, address=address) for i, name, address in found))


# The form of a line tells of which releases it can be: begin of the text, and which.
_FORMS: Tuple[Tuple[str, Form], ...] = (
    ("NET/Plugin : dlerror=", ((2, 19), (2, 21))),
    ("NET/Plugin : ", (None, (2, 21))),
    ("NET/Plugin: No plugin found (", ((2, 21), (2, 22))),
    ("NET/Plugin: Plugin load returned", ((2, 21), (2, 22))),
    ("NET/Plugin: Could not find", ((2, 22), None)),
    ("Bootstrap : Using", (None, (2, 24))),
    ("Bootstrap: Using", ((2, 24), None)),
)


def form_of(place: str, text: str) -> Optional[Form]:
    """Of which releases a warning is, by the place in the sources and the function that it names."""
    if place.startswith("os/linux.cc") and text.startswith("ncclOsSocketPollConnect"):
        return _OS, None
    if place.startswith("misc/socket.cc") and text.startswith("socketPollConnect"):
        return None, _OS
    return None


# The first release with files of its own for what differs between operating systems.
_OS = 2, 29


def _form(text: str) -> Optional[Form]:
    return next((form for begin, form in _FORMS if text.startswith(begin)), None)


def _plugin_missing(m: Match[str]) -> Event:
    name = (m.group("name") or "").split()[0] if m.group("name") else ""
    return Plugin(m.group("kind"), "missing", name, _form(m.string))


def _plugin_error(m: Match[str]) -> Event:
    """What the loader says: the plugin is not there, or something that it needs is not."""
    name, why = m.group("name"), m.group("why").strip()
    absent = why.startswith("cannot open shared object file") and "ccl" in name
    return Plugin("NET", "missing" if absent else "failed", name if absent else "%s: %s" % (name, why), _form(m.string))


def _collnet_kind(m: Match[str]) -> str:
    return "COLLNET" if m.group("kind").startswith("coll") else m.group("kind").upper()


def _decimal(text: Optional[str]) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def returned(place: str, text: str) -> Optional[Event]:
    """text: ``-> 2 [Async thread]``. 0 is success, 7 "in progress"."""
    result = whole(text[3:5].strip())
    return None if result in (None, 0, 7) else Returned(place, result)


def absent(text: str) -> Optional[Event]:
    """What a harmless warning says all the same, in releases that print it as one."""
    if "libibverbs" in text:
        return NoDevice("libibverbs")
    return NoDevice("device") if "No device found" in text else None


_Make = Callable[[Match[str]], Optional[Event]]
_RULES: Tuple[Tuple[str, str, _Make], ...] = (
    # Keys are the first four characters of the text, in the order of how often a log has them.
    ("Chan", connection.WHOLE, connection.whole),
    ("Chan Ring", connection.LINE, connection.said),
    ("Chan Ring ... ", connection.NETWORK, lambda m: Network(m.group("name"))),
    (
        "Coll",
        r"CollNet \d{1,4}/\d{1,4} ?: (?P<rank>\d{1,8}) \[(?P<side>send|receive)\] via COLLNET/(?P<net>.{1,40}?)/"
        r"(?P<device>\d{1,5})(?P<gdr>/GDRDMA)?",
        lambda m: Channel(
            "collnet",
            m.group("net"),
            int(m.group("rank")),
            -1,
            m.group("side") == "send",
            int(m.group("device")),
            None,
            bool(m.group("gdr")),
        ),
    ),
    ("Usin", r"Using (?:network|internal Network) (?P<name>.{1,40}?)\s*$", lambda m: Network(m.group("name"))),
    (
        "GPU ",
        r"GPU Direct RDMA (?P<on>Enabled|Disabled) for (?:GPU (?P<gpu>\w{1,20})(?:\[\d{1,4}\])? / HCA (?P<hca>\w{1,20})"
        r"|GPU/(?P<gpu29>\S{1,40}) \(rank \d+\) - NET/(?P<net29>\S{1,40})) "
        r"\(distance (?P<a>\d{1,3}) [<>]=? (?P<b>\d{1,3})\)",
        lambda m: GdrPair(
            m.group("on").lower() == "enabled",
            m.group("gpu") or m.group("gpu29"),
            m.group("hca") or m.group("net29"),
            int(m.group("a")),
            int(m.group("b")),
        ),
    ),
    (
        "NET/",
        r"NET/(?P<net>(?!Socket\b)[^:]{1,40}?) ?: GPU Direct RDMA (?:\((?P<way>[\w -]{1,20})\) )?"
        r"(?P<on>Enabled|Disabled|enabled|disabled) for HCA \d{1,5} '(?P<hca>[^']{1,128})'"
        r"(?: \((?P<why>no module))?",
        lambda m: GdrDevice(
            m.group("net"),
            m.group("hca"),
            m.group("on").lower() == "enabled",
            "no module for it (nvidia_peermem, nv_peer_mem) is loaded" if m.group("why") else "",
        ),
    ),
    (
        # The plugin for libfabric.
        "NET/",
        r"NET/OFI (?P<why>.{0,200}(?:disabling GDR|GDR disabled|does not support GPUDirect|"
        r"GDR (?:is )?not supported).{0,100})",
        lambda m: GdrDevice("OFI", "NET/OFI", False, "the plugin reports: %s" % m.group("why").strip()),
    ),
    (
        "NET/",
        r"NET/Plugin ?: Failed to find ncclCollNet\w* symbol \(",
        lambda m: Plugin("COLLNET", "missing", ""),
    ),
    (
        "NET/",
        r"NET/Plugin ?: Failed to find (?P<name>ncclNet\w* symbol \([^)]*\))",
        lambda m: Plugin("NET", "unfit", m.group("name")),
    ),
    (
        "TUNE PROF NET/ ENV/",
        r"(?P<kind>TUNER|PROFILER|NET|ENV)/Plugin ?: Plugin name set by env to (?P<name>\S{1,300}?)\.?\s*$",
        lambda m: Variable("NCCL_%s_PLUGIN" % m.group("kind"), m.group("name")),
    ),
    (
        "Plug",
        r"Plugin name set by env to (?:libnccl-net-(?P<short>[\w-]{1,80})\.so|(?P<name>\S{1,300}?))\.?\s*$",
        lambda m: Variable("NCCL_NET_PLUGIN", m.group("short") or m.group("name")),
    ),
    ("TUNE", r"TUNER/Plugin ?: (?:Failed to find|Plugin load returned)", lambda m: Plugin("TUNER", "missing", "")),
    (
        "PROF",
        r"PROFILER/Plugin ?: (?:[Ff]ailed to find|Plugin load returned)",
        lambda m: Plugin("PROFILER", "missing", ""),
    ),
    (
        "sock Call nccl",
        r"(?:\w{1,60}: connect|Call to connect)(?: to (?P<peer>\S{1,100}?)(?:<\d+>)?)? returned (?P<why>[^,]{1,80}),"
        r" retrying(?: \((?P<n>\d{1,5})/(?P<m>\d{1,5})\))?(?: after sleep for (?P<wait>\d{1,7}) ?ms)?",
        lambda m: Retry(m.group("peer") or "", m.group("why"), *(int(m.group(key) or 0) for key in ("n", "m", "wait"))),
    ),
    (
        "Init",
        r"Init timings[^:]{0,60}: rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) total (?P<total>[\d.]{1,12})"
        r"(?: \((?P<parts>[a-z]{1,20} [\d.]{1,12}(?:, [a-z]{1,20} [\d.]{1,12}){0,20}))?",
        _timed,
    ),
    (
        "NET/",
        r"NET/IB ?: \[(?P<index>\d{1,4})\] (?P<name>[\w.-]{1,64}):(?:uverbs\d{1,4}:)?"
        r"(?P<port>\d{1,3})/(?P<layer>\w{1,8}) .{0,80}?speed=(?P<speed>\d{1,9})\b",
        lambda m: Port(
            Device(
                int(m.group("index")),
                m.group("name"),
                int(m.group("port")),
                m.group("layer"),
                mbit=int(m.group("speed")),
            )
        ),
    ),
    ("NET/", r"NET/IB\w{0,12} ?: Using\b(?P<devices>.*)", _devices),
    ("NET/", r"NET/IB\w{0,12} ?: No device found", lambda m: NoDevice("device")),
    ("NET/", r"NET/IB\w{0,12} ?: No IP interface found", lambda m: NoDevice("interface")),
    ("NET/", r"NET/Socket ?: Using(?P<devices>(?: \[\d+\]\S+)+)", _interfaces),
    (
        "NET/",
        r"NET/IB ?: Made virtual device \[(?P<index>\d{1,4})\] name=(?P<name>\S{1,128})(?: speed=(?P<mbit>\d{1,9}))?",
        lambda m: Devices("IB", (Device(int(m.group("index")), m.group("name"), 1, mbit=int(m.group("mbit") or 0)),)),
    ),
    (
        "NET/",
        r"NET/Plugin ?: (?:.*?)Loaded (?P<kind>net|collnet|coll|gin) plugin (?P<name>.{1,60}? \(v\d+\))",
        lambda m: Plugin(_collnet_kind(m), "loaded", m.group("name")),
    ),
    ("NET/", r"(?P<kind>NET)/Plugin ?: Could not find: ?(?P<name>\S*?)[. ]?(?: .*)?$", _plugin_missing),
    (
        "NET/",
        r"NET/Plugin ?: (?:dlerror=|(?:Most recent p|P)lugin load (?:\([^)]*\) )?returned \d{1,4} :"
        r" )(?P<name>[^:\s]{1,160}): (?P<why>.{1,200}?)(?: No plugin found.*|\. All attempts.*| :? ?when loading.*)?$",
        _plugin_error,
    ),
    (
        "NET/",
        r"(?P<kind>NET)/Plugin ?: .*(?:No plugin found(?: \((?P<name>[^)]*)\))?|cannot open shared object file)",
        lambda m: Plugin("NET", "missing", m.group("name") or "", _form(m.string)),
    ),
    (
        "NET/",
        r"NET/Plugin ?: (?P<name>\S{1,120}\.so[\w.]*): (?P<why>.{1,300})$",
        lambda m: Plugin("NET", "failed", "%s: %s" % (m.group("name"), m.group("why"))),
    ),
    (
        "TUNE PROF ENV/ GIN/ RMA/",
        r"(?P<kind>TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Could not find: ?(?P<name>\S*?)[. ]?(?: .*)?$",
        _plugin_missing,
    ),
    (
        "GIN/ RMA/ PROF",
        r"(?P<kind>GIN|RMA|PROFILER)/Plugin ?: Loaded (?:gin plugin |rma plugin )?(?P<name>.{1,60}? \(v\d+\))",
        lambda m: Plugin(m.group("kind"), "loaded", m.group("name")),
    ),
    ("RMA/", r"RMA/Plugin ?: Failed to initialize any", lambda m: Plugin("RMA", "failed", "")),
    (
        "Exte",
        r"External (?:(?P<kind>env|profiler|tuner|network) )?plugin (?P<name>\S{1,120}) is unsupported",
        lambda m: Plugin((m.group("kind") or "net").upper().replace("WORK", ""), "refused", m.group("name")),
    ),
    ("GIN/ Fail", r"(?:GIN/Plugin ?: )?Failed to initialize any GIN plugin", lambda m: Plugin("GIN", "failed", "")),
    (
        "TUNE ENV/",
        r"(?P<kind>TUNER|ENV)/Plugin ?: Using (?!internal)(?:tuner plugin )?(?P<name>.{1,60})$",
        lambda m: Plugin(m.group("kind"), "loaded", m.group("name")),
    ),
    (
        "Fail",
        r"Failed to initialize NET plugin (?P<name>.{1,60}?)\s*$",
        lambda m: Plugin("NET", "failed", m.group("name")),
    ),
    (
        # INFO in some releases of the plugin, a warning in others.
        "NET/",
        r"NET/(?P<name>OFI)\b.{0,40}\bNo eligible providers",
        lambda m: Plugin("NET", "idle", m.group("name")),
    ),
    (
        # A plugin has its own line.
        "NET/",
        r"NET/(?P<name>(?!\d|IB|Socket\b|Plugin\b|TOPO\b|MLX5\b)\w{2,30})\b"
        r"(?:.*[Pp]rovider is (?P<provider>[\w;]{1,30}))?",
        lambda m: Plugin("NET", "speaks", m.group("provider") or m.group("name")),
    ),
    ("Fail", r"Failed to open libibverbs", lambda m: NoDevice("libibverbs")),
    ("Assi", r"Assigned NET plugin (?P<name>.{1,60}?) to comm", lambda m: Plugin("NET", "assigned", m.group("name"))),
    (
        "Coul peer",
        r"(?:Could not enable P2P|peer query failed) between dev (?P<a>\d{1,4})\(=\w+\) and dev (?P<b>\d{1,4})",
        lambda m: PeerOff("%s and %s" % (m.group("a"), m.group("b"))),
    ),
    (
        # Sources' folders and files, whatever release.
        "init boot tran prox enqu grou misc net. plug incl grap regi coll chan dev_ gin/ rma/ ras/ mem_ mnnv allo os/l "
        "sche src/",
        r"(?P<place>[\w/.-]{1,120}\.(?:cc|h|cpp|cu):\d{1,6}) (?P<arrow>-> \d{1,2}\b.*)",
        lambda m: returned(m.group("place"), m.group("arrow")),
    ),
    (
        "P2P ",
        r"P2P is disabled between connected GPUs (?P<pair>\d{1,4} and \d{1,4})",
        lambda m: PeerOff(m.group("pair")),
    ),
    ("P2P ", r"P2P plugin (?P<name>.{1,60}?)\s*$", lambda m: Plugin("NET", "loaded", m.group("name"))),
    (
        "Succ",
        r"Successfully loaded external (?:network|net) plugin (?P<name>.{1,120}?)\s*$",
        lambda m: Plugin("NET", "loaded", m.group("name")),
    ),
    (
        "Boot",
        r"Bootstrap ?: Using \[0\](?P<if>[^\s:]{1,64}):(?P<address>\S{1,100}?)<\d+>",
        lambda m: Bootstrap(m.group("if"), m.group("address"), _form(m.string)),
    ),
    (
        "Boot NET ",
        r"(?:Bootstrap ?: Using|NET : Using interface) (?P<if>[^\s:]{1,64}):(?P<address>\S{1,100}?)(?:<\d+>|\s*$)",
        lambda m: Bootstrap(m.group("if"), m.group("address"), _form(m.string)),
    ),
    ("Rank", r"Rank (?P<rank>\d{1,8}): \d{1,4} Net devices", lambda m: Own(int(m.group("rank")))),
    ("Boot", r"Bootstrap timings\b", lambda m: Met()),
    (
        "Boot boot",
        r"(?i:bootstrap root) ?: (?P<what>(?!.{0,120}already).{0,100}(?:checked in|[Ww]ait).{0,80})",
        lambda m: Note("root", m.group("what").strip()),
    ),
    (
        "comm nccl [Ran",
        r"(?:\[Rank \d+\] )?(?:\w{1,60} )?comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) "
        r"nranks (?P<ranks>\d{1,8}) cudaDev (?P<device>-?\d{1,9})(?: nvmlDev (?P<nvml>-?\d{1,9}))? "
        r"busId (?P<bus>[0-9a-f]{1,16})(?: used \d{1,12} bytes)?"
        r"(?: parent (?P<parent>0x[0-9a-f]{1,16})(?: \w+Count \d+)? color (?P<color>-?\d{1,20}) key -?\d+)?"
        r"(?: commId 0x(?P<id>[0-9a-f]{1,16}))? ?- Init (?P<phase>START|COMPLETE)",
        _init,
    ),
    (
        # What whoever quotes a line has shortened.
        "comm nccl [Ran",
        r"(?:\[Rank \d+\] )?(?:\w{1,60} )?comm (?P<comm>\S{1,24}) rank (?P<rank>\d{1,8}) "
        r"n[rR]anks (?P<ranks>\d{1,8})\b(?P<rest>.{0,300}?) ?- (?:Init )?(?P<phase>START|COMPLETE)",
        _init_short,
    ),
    (
        "comm",
        r"comm (?P<comm>0x[0-9a-f.]{1,16}) rank (?P<rank>\d{1,8}) nRanks (?P<ranks>\d{1,8}) nNodes (?P<nodes>\d{1,8}) "
        r"localRanks (?P<local>\d{1,8})(?: localRank \d{1,8} MNNVL (?P<mnnvl>[01]))?",
        lambda m: Shape(
            m.group("comm"),
            *(int(m.group(k)) for k in ("rank", "ranks", "nodes", "local")),
            None if m.group("mnnvl") is None else m.group("mnnvl") == "1",
        ),
    ),
    (
        # The same in other words, or without its begin.
        "comm Comm nRan nran with",
        r"(?:[Cc]omm(?:unicator)? (?P<comm>0x[0-9a-f]{1,16})?\S{0,24} ?(?:rank (?P<rank>\d{1,8}) )?)?"
        r"(?:with )?(?:n[rR]anks |(?=\d))(?P<ranks>\d{1,8})(?: ranks)?[ ,](?: ?and | ?over | ?on | ?)"
        r"(?:n[nN]odes |(?=\d))(?P<nodes>\d{1,8})(?: nodes?\b|\b)(?:,? local[rR]anks (?P<local>\d{1,8}))?",
        _shape_said,
    ),
    (
        "MNNV",
        r"MNNVL busId 0x[0-9a-f]{1,16} fabric UUID (?P<a>[0-9a-f]{1,16})\.(?P<b>[0-9a-f]{1,16}) "
        r"cliqueId (?P<clique>0x[0-9a-f]{1,8}) state (?P<state>\d{1,3})\b",
        _fabric,
    ),
    (
        "comm",
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) n[rR]anks (?P<ranks>\d{1,8})"
        r"(?: cudaDev (?P<device>\d{1,4}))?.* - (?P<how>Destroy|Abort|Revoke) COMPLETE",
        lambda m: Gone(
            m.group("comm"), int(m.group("rank")), m.group("how"), int(m.group("ranks")), int(m.group("device") or -1)
        ),
    ),
    (
        # Torn, or of a form that no rule knows.
        "comm nccl [Ran",
        r"(?:\[Rank \d+\] )?(?:\w{1,60} )?comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) "
        r"n[rR]anks (?P<ranks>\d{1,8})(?: cudaDev (?P<device>\d{1,4})\b|\s*$)",
        lambda m: Named(m.group("comm"), int(m.group("rank")), int(m.group("ranks")), int(m.group("device") or -1)),
    ),
    (
        "Conn",
        r"Connected all rings(?:, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d))?",
        lambda m: Rings(*(None if m.group(k) is None else m.group(k) != "0" for k in ("pxn", "gdr"))),
    ),
    ("Conn", r"Connected all trees", lambda m: Trees()),
    (
        # NET/Socket asks this of each interface that it takes.
        "Coul",
        r"Could not get speed (?:from /sys/class/net/|for interface )(?P<name>[\w@-]{1,64})",
        lambda m: Devices("Socket", (Device(0, m.group("name")),)),
    ),
    (
        # RoCE has GIDs of IPv4 addresses; the numbers are printed in the order of the CPU's bytes.
        "NET/",
        r"NET/IB ?: .{0,80}\bGID \d{1,4} \([0-9A-F]{1,16}/[0-9A-F]{1,8}FFFF0000\)",
        lambda m: RoceGid(),
    ),
    (
        "rank",
        r"rank (?P<rank>\d{1,8}) Connected CollNet",
        lambda m: CollNet(True, "", int(m.group("rank"))),
    ),
    (
        # Of the plugin.
        "SHAR",
        r"SHARP rank (?P<rank>\d{1,8})/(?P<ranks>\d{1,8}) initialized on (?P<device>[\w.:-]{1,64})",
        lambda m: Sharp(int(m.group("rank")), int(m.group("ranks")), m.group("device")),
    ),
    ("Cann", r"Cannot initialize CollNet", lambda m: CollNet(False, m.string[:200])),
    ("Comm", r"Communicator has \d+ nodes which is less than CollNet", lambda m: CollNet(False, m.string[:200])),
    (
        "Comm",
        r"Comm config netName reset to (?P<name>NCCL_NET)=(?P<value>.{1,60}?)\s*$",
        lambda m: Variable(m.group("name"), m.group("value")),
    ),
    (
        "NVLS",
        r"NVLS multicast support is (?P<no>not )?available(?: on dev \d{1,4})?(?: \(NVLS_NCHANNELS (?P<n>\d{1,5})\))?",
        lambda m: Nvls(m.group("no") is None, int(m.group("n") or 0)),
    ),
    ("NVLS", r"NVLS comm 0x[0-9a-f]{1,16} headRank ", lambda m: NvlsGroup()),
    ("DMA-", r"DMA-BUF is available on GPU device (?P<device>\d{1,5})", lambda m: DmaBuf(int(m.group("device")))),
    ("NCCL", VERSION.pattern, _version),
    (
        "NCCL",
        r"(?P<name>NCCL_[A-Z0-9_]{1,80}|" + _NAME + r") set (?:by environment )?to (?P<value>.{0,1000}?)\.?\s*$",
        lambda m: Variable(m.group("name"), m.group("value")),
    ),
    ("cuda", r"cudaDriverVersion (?P<version>\d{4,7})", lambda m: Driver(int(m.group("version")))),
    (
        "Patt",
        r"Pattern (?P<pattern>\d{1,2}), crossNic \d, nChannels (?P<n>\d{1,4}), bw (?P<bw>[\d.]{1,16})/[\d.]+, "
        r"type (?P<intra>\w{1,8})/",
        lambda m: Graph(int(m.group("pattern")), int(m.group("n")), float(m.group("bw")), m.group("intra")),
    ),
    ("=== ", r"=== System : maxBw (?P<bw>[\d.]{1,16}) ", lambda m: System(float(m.group("bw")))),
)
_KEYED: Dict[str, List[Tuple[Pattern[str], _Make]]] = {}
for _keys, _text, _make in (*notes.RULES, *_RULES):
    for _at in range(0, len(_keys), 5):
        _KEYED.setdefault(_keys[_at : _at + 4], []).append((re.compile(_text), _make))
# 0 to 9: "64 coll channels".   "+ ": the printed topology, which is indented.
_CHANNELS = re.compile(
    r"(?P<coll>\d{1,5}) coll channels,? ?(?:\d{1,5} collnet channels,? ?)?(?:(?P<nvls>\d{1,5}) nvls channels,? ?)?"
    # The end may be cut off.
    r"(?:(?P<p2p>\d{1,5}) p2p channels(?:, (?P<peer>\d{1,5}) p2p channels per peer)?)?"
)
STARTS = tuple(_KEYED)


# What somebody has written behind a line: it is no part of a value.
_REMARK = re.compile(r"\s+#(?:[^\w\s].*|\s.*)?$")

# Builds of others print whole paths of sources.
_WHOLE_PATH = re.compile(r"/\S{1,300}/src/(?P<place>[\w/.+-]{1,120}:\d{1,6}) (?P<arrow>-> \d{1,2}\b.*)")


def event(text: str) -> Optional[Event]:
    """What the text of an INFO line says; None of what is not looked at."""
    text = text.rstrip()
    if " #" in text:
        text = _REMARK.sub("", text)
    if text[:1] == "/":
        match = _WHOLE_PATH.match(text)
        return returned(match.group("place"), match.group("arrow")) if match is not None else None
    rules = _KEYED.get(text[:4])
    if rules is not None:
        for pattern, make in rules:
            match = pattern.match(text)
            if match is not None:
                return make(match)
        return None
    if text[:1].isdigit():
        match = _CHANNELS.match(text)
        if match is None:
            return None
        nvls = match.group("nvls")
        own = (int(match.group("coll")), None if nvls is None else int(nvls), int(match.group("p2p") or 0))
        return Channels(*own, int(match.group("peer") or 0))
    if text.lstrip(" ")[:1] == "+":
        match = _NVLINK.match(text)
        if match is not None:
            return GraphNode("", _decimal(match.group("bw")), text.startswith("NVS", match.end()))
        match = _GPU.match(text)
        if match is not None:
            return GraphNode(match.group("gpu"), None)
        match = _NIC.match(text)
        return GraphNode("", _decimal(match.group("bw")), nic=match.group("nic")) if match is not None else None
    return None
