# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find faults in a variable's value: NCCL reads it as another one, or ignores it, or it has unintended costs."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from . import checks, net_plugins
from .grammar import strtoll
from .library import Library
from .net_plugins import NetPlugin
from .variables import VARIABLES
from .version import OLDEST, Version, format_version

# A wrong value here ends in a job that does not start, hangs, or falls to TCP; elsewhere it costs speed or meaning.
_BREAKING = frozenset(
    (
        *("NCCL_ALGO", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_NET", "NCCL_OOB_NET_IFNAME"),
        *("NCCL_PROTO", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME"),
    )
)
# Accepted integers, both ends included. -1 or -2 is "automatic" where the library reports it.
_RANGES = {
    "NCCL_" + name: (int(least), int(most))
    for least, most, *names in (
        row.split()
        for row in """
0 1 COLLNET_ENABLE DMABUF_ENABLE GDRCOPY_ENABLE IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_MERGE_NICS IB_MERGE_VFS
0 1 IB_OOO_RQ IB_RETURN_ASYNC_EVENTS IB_SPLIT_DATA_ON_QPS NET_GDR_C2C P2P_DISABLE PXN_C2C PXN_DISABLE
0 2 CROSS_NIC IB_DATA_DIRECT IB_PCI_RELAXED_ORDERING IGNORE_DISABLED_P2P NVLS_ENABLE P2P_PXN_LEVEL
-1 255 GIN_IB_TC IB_FIFO_TC IB_GID_INDEX IB_TC
-2 1 CUMEM_ENABLE IB_ADAPTIVE_ROUTING NET_GDR_READ
1 2 IB_ROCE_VERSION_NUM SHM_LOCALITY
1 64 MAX_CTAS MIN_CTAS
-2 2 MNNVL_ENABLE
-1 1 CUMEM_HOST_ENABLE
-1 15 IB_SL
0 7 IB_RETRY_CNT
0 255 IB_PKEY
1 16 SOCKET_NTHREADS
1 31 IB_TIMEOUT
1 128 IB_QPS_PER_CONNECTION
""".strip().split("\n")
    )
    for name in names
}
# A positive number of these has to be a multiple of 32 in this range.
_THREADS = {"NCCL_NTHREADS": (64, 512), "NCCL_LL128_NTHREADS": (160, 640)}
_RANGE_NOTES = {
    "NCCL_IB_PKEY": " It is the index into the port's P_Key table, not the key.",
    "NCCL_IB_TC": " On RoCE it is the DSCP times four.",
    "NCCL_IB_TIMEOUT": " 0 and 32 or more wait for ever, so a lost packet hangs the job.",
}
# Variable, value in lower case (> above a number, * any), severity, why: accepted, but of no use or harmful everywhere.
_ADVICE = [
    ("NCCL_" + name, value, severity, why)
    for name, value, severity, why in (
        row.split(None, 3)
        for row in """
BUFFSIZE >4194304 minor Larger buffers cost GPU memory for every channel and peer and rarely gain anything.
DMABUF_ENABLE 0 major It takes DMA-BUF away: without nvidia_peermem, GPUDirect RDMA is off.
IB_DISABLE 0 minor 0 is the default: the line does nothing.
IB_DISABLE 1 critical It switches RDMA off: every job runs over TCP.
IB_TIMEOUT >20 minor The default is 20 since 2.23. A longer one repairs no loss: the job waits minutes to report it.
MAX_CTAS 1 major One channel fills neither NVLink nor several NICs.
MAX_NCHANNELS * minor NCCL_MAX_CTAS has replaced it since 2.17, and NCCL finds the number for the topology itself.
MIN_NCHANNELS * minor NCCL_MIN_CTAS has replaced it since 2.17, and NCCL finds the number for the topology itself.
MNNVL_ENABLE 0 major It stops traffic between the nodes of one NVLink domain from using NVLink.
NET socket critical It chooses TCP: RDMA is not used by any job.
NET_GDR_READ 0 major What is sent is copied from the GPU to the host's memory first.
NTHREADS 512 minor 512 is the maximum and usually the default: the line has no effect.
NVLS_ENABLE 0 major It gives up the reduction in the NVSwitches: 370 instead of 480 GB/s of all-reduce on 8 Hopper GPUs.
P2P_DISABLE 1 major It switches off all direct traffic between GPUs, NVLink included.
P2P_LEVEL loc major It switches off all direct traffic between GPUs, NVLink included.
P2P_LEVEL sys minor It forces PCIe traffic between GPUs across sockets: slow, and it can hang.
PROTO ll major LL sends a flag with every 4 bytes: large messages get half of the bandwidth at most.
PROTO simple minor It takes away the protocols for small and middle sizes; NCCL chooses better.
PXN_DISABLE 1 minor It stops GPUs from reaching the rail's NIC through NVLink: rail fabrics need that.
SHM_DISABLE 1 major GPUs without a direct path exchange data over the network instead of through the host's memory.
""".strip().split("\n")
    )
]
# Path types, in the order of their distance; NCCL's older releases lack some.
_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_FIRST_WITH_LEVEL: Dict[str, Version] = {"C2C": (2, 26, 2), "P2C": (2, 27, 3)}
_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
# Variable -> the words that it takes, and what becomes of another.
_FAMILY = ("AF_INET AF_INET6", "NCCL ignores any other spelling without a word.")
_WORDS = {
    "NCCL_SOCKET_FAMILY": _FAMILY,
    "NCCL_IB_ADDR_FAMILY": _FAMILY,
    "NCCL_NET_MERGE_LEVEL": ("LOC PORT PIX PXB P2C PXN PHB SYS", "Any other word means LOC: nothing is merged."),
}
# Tokens in lower case: (first release, first release without it).
_Releases = Tuple[Version, Optional[Version]]
_ALGORITHMS: Dict[str, _Releases] = {
    **dict.fromkeys(("tree", "ring"), (OLDEST, None)),
    "collnet": (OLDEST, (2, 14, 3)),
    **dict.fromkeys(("collnetdirect", "collnetchain"), ((2, 14, 3), None)),
    "nvls": ((2, 17, 1), None),
    "nvlstree": ((2, 18, 1), None),
    "pat": ((2, 23, 4), None),
}
_IN_SWITCHES = {"collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree"}
_PROTOCOLS: Dict[str, _Releases] = dict.fromkeys(("ll", "ll128", "simple"), (OLDEST, None))
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_PER_FUNCTION = (2, 24, 3)  # lists for single functions; an unknown word ends the job
_DYNAMIC_GID = (2, 21, 5)
_MAX_HCAS = 32
# Beginnings of names of network interfaces, and of RDMA devices.
_INTERFACE = re.compile(r"(eth|bond|ib|en[opsx])[0-9]")
_DEVICE = re.compile(r"mlx[45]_|roce[A-Z]?[0-9]*p[0-9]|rdmap[0-9]|bnxt_re[0-9]|hfi1_")
_LOCAL = re.compile(r"lo|docker[0-9]*|virbr[0-9]*")


class Use(NamedTuple):
    """libraries: those that jobs load, which will read the variable.   version: of one more, or where none can be read.

    hcas: names of the host's RDMA devices, to expand lists; empty where they are not known.
    place: "file" (nccl.conf), "environment" of every job, or "job" for a single one.
    without_gdrcopy: what this machine lacks of GDRCopy's driver; "" for nothing, or if it is not a GPU node.
    plugin: the network plugin that jobs use; None for none, or one that is not known.
    plugin_files: network plugins where jobs load their libraries; None where that is not known.
    """

    libraries: Sequence[Library] = ()
    version: Optional[Version] = None
    hcas: Sequence[str] = ()
    place: str = "file"
    without_gdrcopy: str = ""
    plugin: Optional[NetPlugin] = None
    plugin_files: Optional[Sequence[str]] = None

    @property
    def versions(self) -> List[Version]:
        return sorted({*(library.version for library in self.libraries), *([self.version] if self.version else [])})

    def before(self, version: Version) -> Optional[str]:
        """The oldest release in use that is older than ``version``, as text."""
        older = [v for v in self.versions if v < version]
        return format_version(min(older)) if older else None

    def since(self, version: Version) -> Optional[str]:
        """The newest release in use that is ``version`` or later, as text."""
        newer = [v for v in self.versions if v >= version]
        return format_version(max(newer)) if newer else None


class Fault(NamedTuple):
    """A check that is not ok. why, fix, severity: instead of the check's, whose texts may hold ``%s``."""

    check: Check
    want: Optional[str]
    why: Optional[str] = None
    fix: Optional[str] = None
    severity: Optional[str] = None
    state: str = "drift"


def filled(check: Check, want: Optional[str], *words: object, severity: Optional[str] = None) -> Fault:
    """Return a fault whose reason is the check's, with these words in it."""
    return Fault(check, want, check.why % words, severity=severity)


def show(text: str, limit: int = 160) -> str:
    """Text that is safe on a terminal: what is not printable ASCII is escaped, what is long is cut."""
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text[:limit])
    return shown + "..." if len(text) > limit else shown


def bad_value(name: str, want: str, why: str, severity: str = "") -> Fault:
    """Return a fault of a value that NCCL takes for another. severity: that of the variable by default."""
    fix = "Set it to %s, or remove the line." % want
    return Fault(checks.BAD_VALUE, want, why, fix, severity or weight(name))


def weight(name: str) -> str:
    """Severity of a wrong value of this variable."""
    return "critical" if name in _BREAKING else "major"


def faults(name: str, value: str, use: Use) -> Iterator[Fault]:
    """value: not empty, and free of blanks, quotes and comments."""
    if use.plugin is not None and net_plugins.ignores(use.plugin, name):
        switch = (name, use.plugin.owner) == ("NCCL_IB_DISABLE", net_plugins.SHARP)
        fix = "Set NCCL_IBEXT_DISABLE=1 if the plugin is to be switched off." if switch else None
        yield filled(checks.PLUGIN_VARIABLE, "no line", use.plugin.owner, name)._replace(fix=fix)
        return
    wrong = list(_wrong(name, value, use))
    if wrong:
        yield from wrong
        return
    for variable, pattern, severity, why in _ADVICE:
        above = pattern[0] == ">" and strtoll(value)[0] > int(pattern[1:])
        if variable == name and (above or pattern in ("*", value.lower())):
            yield Fault(checks.ADVICE, "no line", why, severity=severity)
    newest = use.since(_DYNAMIC_GID)
    if name == "NCCL_IB_GID_INDEX" and value != "-1" and newest:
        yield filled(checks.LINT_GID_INDEX, "no line", newest)
    if name == "NCCL_GDRCOPY_ENABLE" and strtoll(value)[0] == 1 and use.without_gdrcopy:
        yield filled(checks.LINT_GDRCOPY, "GDRCopy's driver", use.without_gdrcopy)


def _wrong(name: str, value: str, use: Use) -> Iterator[Fault]:
    """Yield values that NCCL reads otherwise than intended, and paths switched off."""
    kind = VARIABLES[name].kind if name in VARIABLES else "unknown"
    if name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        yield from _device_list(name, value, use)
    elif name in ("NCCL_ALGO", "NCCL_PROTO"):
        yield from _tuning(name, value, use)
    elif kind == "level":
        yield from _level(name, value, use)
    elif kind == "int":
        yield from _integer(name, value, use)
    elif kind == "bool":
        old = use.before((2, 30, 3)) or not use.versions
        words = ("0", "1") if old else ("0", "1", "T", "F", "TRUE", "FALSE")
        if value.upper() not in words:
            yield bad_value(name, ", ".join(words), "Other words read as 0 or as the default.")
    elif name in _WORDS:
        accepted, why = _WORDS[name]
        if value not in accepted.split():
            yield bad_value(name, "one of " + accepted.replace(" ", ", "), why)
    elif name == "NCCL_DEBUG":
        yield from _debug(value.upper(), use)
    elif name == net_plugins.NAME:
        for entry in net_plugins.entries(value):
            yield from _net_plugin(entry, use)
    elif name == net_plugins.NETWORK:
        if value.lower() == "ibext":
            why = "NCCL compares the whole name, which ends in a version such as IBext_v11, and ends the job."
            yield bad_value(name, "NCCL_NET_PLUGIN=ibext", why)
        elif value.lower() in ("tcp", "sockets", "ethernet", "infiniband", "rdma", "roce", "verbs", "none"):
            yield bad_value(name, "IB", "No network has this name, and NCCL ends the job.")


def _net_plugin(entry: str, use: Use) -> Iterator[Fault]:
    """Yield what is wrong with one entry of NCCL_NET_PLUGIN."""
    if entry.lower() in net_plugins.OWN:
        why = "%s is a network of NCCL itself, which NCCL_NET chooses: no library of that name is found." % show(entry)
        yield bad_value(net_plugins.NAME, net_plugins.NONE, why, "minor")
    elif use.plugin_files is not None and "/" not in entry and not net_plugins.among(entry, use.plugin_files):
        file = show(net_plugins.library(entry), 80)
        yield Fault(checks.PLUGIN_LIBRARY, file, checks.PLUGIN_LIBRARY.why % file, state="unknown")


def _integer(name: str, value: str, use: Use) -> Iterator[Fault]:
    number, rest = strtoll(value)
    least, most = _RANGES.get(name, (-(2**63), 2**63 - 1))
    if name in ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS") and use.before((2, 25, 1)):
        most = 32
    low, high = _THREADS.get(name, (0, 0))
    threads = high and number > 0 and (number % 32 or not low <= number <= high)
    octal = re.fullmatch("[+-]?0[0-9]+", value)
    want = "a multiple of 32, %d to %d" % (low, high) if threads else "an integer"
    want = "%d to %d" % (least, most) if name in _RANGES else want
    reads = " (what starts with 0 is octal)" * bool(octal)
    why = "NCCL reads %d here%s, and replaces what it does not accept.%s" % (number, reads, _RANGE_NOTES.get(name, ""))
    if rest or octal or threads or not least <= number <= most:
        yield bad_value(name, want, why)


def _level(name: str, value: str, use: Use) -> Iterator[Fault]:
    legacy = "0" <= value[0] <= "9"
    level = _LEGACY_LEVELS[min(strtoll(value)[0], 4)] if legacy else value
    old = use.before(_FIRST_WITH_LEVEL.get(level, OLDEST))
    if level not in _LEVELS:
        why = "NCCL compares with exact names in capitals, and ignores anything else without a word."
        want = value.upper() if value.upper() in _LEVELS else "one of " + ", ".join(_LEVELS)
        if value.upper() == "NODE":
            want, why = "PHB", why + " NODE is nvidia-smi's word; NCCL calls that distance PHB."
        yield bad_value(name, want, why)
    elif old and level in _FIRST_WITH_LEVEL:
        why = "NCCL knows %s since %s; %s ignores the line." % (level, format_version(_FIRST_WITH_LEVEL[level]), old)
        yield bad_value(name, "a level that %s knows" % old, why)
    elif name == "NCCL_NET_GDR_LEVEL" and level in ("LOC", "NVL", "NVB"):
        yield filled(checks.GDR_OFF, "no line, or PXB", level)
    elif legacy and (name, level) == ("NCCL_P2P_LEVEL", "LOC"):
        yield from faults(name, level, use)
    elif legacy:
        yield filled(checks.LEGACY_LEVEL, level, value, level)._replace(fix=checks.LEGACY_LEVEL.fix % level)


def _device_list(name: str, value: str, use: Use) -> Iterator[Fault]:
    """``[^][=]name[:port],...``: ^ excludes, = makes the names exact; without = a name is a prefix."""
    of_hcas = name == "NCCL_IB_HCA"
    exclude = value.startswith("^")
    exact = value[exclude:].startswith("=")
    body = value[exclude + exact :]
    entries = [entry for entry in body.split(",") if entry]
    ports = [entry.split(":")[1:] for entry in entries if of_hcas]
    old = use.before((2, 30, 5))
    form = "NAME,NAME with ^ (exclude), = (exact) or ^= before the list"
    empty = "The list is empty, so every device is %s." % ("excluded" if exclude else "taken")
    kind = "RDMA devices, such as mlx5_0" if of_hcas else "network interfaces, such as eth0"
    strange = not (exclude or (of_hcas and use.hcas)) and any(map((_INTERFACE if of_hcas else _DEVICE).match, entries))
    alone = not of_hcas and not exclude and any(map(_LOCAL.fullmatch, entries))
    not_numbers = not all(re.fullmatch("[0-9]*", number) for numbers in ports for number in numbers)
    planes = old and any(len(numbers) > 1 for numbers in ports)
    # Whether it is wrong, want, why, severity.
    rules: Sequence[Tuple[object, str, str, str]] = (
        (not of_hcas and len(value) == 1, form, "NCCL ignores a value of one character.", "major"),
        (exact and body[:1] == "^", "^=" + body[1:], "Behind = the ^ is a part of the first name.", ""),
        (not entries, form, empty, "critical" if exclude else "minor"),
        (any(c in body for c in " \t=^*?![]/"), form, "Blanks, operators and patterns are parts of a name.", ""),
        (strange, kind, "No device of this kind has such a name.", ""),
        (alone, "an interface of all nodes", "It reaches no other node.", "minor" if use.place == "job" else "major"),
        (not_numbers, "NAME:PORT", "What is not a port number reads as port 0.", ""),
        (planes, "NAME:PORT", "Rail and plane behind the port are known since 2.30.5, not to %s." % old, "major"),
        (len(ports) > _MAX_HCAS, "at most %d names" % _MAX_HCAS, "NCCL drops all names beyond these.", "major"),
    )
    broken = [bad_value(name, *rule) for wrong, *rule in rules if wrong]
    names = [entry.split(":")[0] for entry in entries]
    yield from broken[:1] or _names(name, names, exclude, exact, show(("^=" if exclude else "=") + body), use)


def _names(name: str, names: Sequence[str], exclude: bool, exact: bool, listed: str, use: Use) -> Iterator[Fault]:
    """listed: the list with exact names, as text."""
    of_hcas = name == "NCCL_IB_HCA"
    if of_hcas and use.hcas:
        yield from _known_devices(names, exclude, exact, listed, use.hcas)
    # An excluded docker1 or virbr1 is intended to exclude its kind; mlx4 and mlx5 are the beginnings of all names.
    elif not exact and (of_hcas or not exclude):
        # Names are numbered without leading zeros: mlx5_0 is the beginning of no other, mlx5_1 that of mlx5_10.
        single = sorted((d[-1], d) for d in names if re.fullmatch(r".*[^0-9][1-9]", d) and d not in ("mlx4", "mlx5"))
        for number, device in single[:1]:
            # Machines with more than ten devices are usual, with more than 20 rare.
            severity = "major" if of_hcas and number == "1" else "minor"
            others = "%s also matches %s0 to %s9" % ((show(device, 40),) * 3)
            yield filled(checks.PREFIX_MATCH, listed, others, severity=severity)


def _known_devices(
    names: Sequence[str], exclude: bool, exact: bool, listed: str, hcas: Sequence[str]
) -> Iterator[Fault]:
    """The names in NCCL_IB_HCA against the devices of the host. listed: the list with exact names, as text."""
    matched = {device: [h for h in hcas if h == device or (not exact and h.startswith(device))] for device in names}
    taken = {hca for found in matched.values() for hca in found}
    missing = [device for device, found in matched.items() if not found]
    if (exclude and taken == set(hcas)) or (not exclude and not taken):
        why = "The list leaves no RDMA device, so jobs run over TCP. The host has %s." % ", ".join(hcas)
        yield Fault(checks.UNKNOWN_HCA, "devices of the host", why, severity="critical")
    elif missing and not exclude:
        yield filled(checks.UNKNOWN_HCA, "devices of the host", show(", ".join(missing)), ", ".join(hcas))
    # A prefix that is not a device, such as mlx5, is intended as a prefix.
    extra = {device: [h for h in found if h not in names] for device, found in matched.items() if device in hcas}
    surplus = ["%s also takes in %s" % (device, ", ".join(found)) for device, found in extra.items() if found]
    if surplus:
        yield filled(checks.PREFIX_MATCH, listed, "; ".join(surplus))


def _tuning(name: str, value: str, use: Use) -> Iterator[Fault]:
    """NCCL_ALGO and NCCL_PROTO: ``[^]a,b``, and from 2.24 on ``[^]a,b;function:[^]c``."""
    old, new = use.before(_PER_FUNCTION), use.since(_PER_FUNCTION)
    if old and (":" in value or ";" in value):
        why = "Lists for single functions are known since 2.24; %s ignores them without a word." % old
        yield bad_value(name, "a list without functions", why, "major")
        return
    lists: Dict[str, Tuple[bool, List[str]]] = {}
    for index, entry in enumerate(part for part in value.lower().split(";") if part):
        function, colon, rest = entry.rpartition(":")
        if not rest or (function not in _FUNCTIONS if colon else index):
            why = "%s is not a list for one of %s; NCCL ends the job." % (show(entry, 80), ", ".join(_FUNCTIONS))
            yield bad_value(name, "LIST;FUNCTION:LIST", why)
            return
        excluding = rest.startswith("^")
        lists[function] = (excluding, [token for token in rest[excluding:].split(",") if token])
    unknown = [fault for _ex, tokens in lists.values() for token in tokens for fault in _token(name, token, use)]
    if unknown:
        yield unknown[0]
        return
    for function in ("broadcast", "reduce") if name == "NCCL_ALGO" and new else ():
        # Ring is the only algorithm of these two, and no release from 2.24 on falls back to it.
        excluding, tokens = lists.get(function, lists.get("", (True, [])))
        if ("ring" in tokens) == excluding:
            why = "Ring is the only algorithm of %s, and NCCL %s does not fall back to it: the call fails."
            yield bad_value(name, "a list with Ring", why % (function, new))
            return
    excluding, tokens = lists.get("allreduce", lists.get("", (True, [])))
    if name == "NCCL_ALGO" and not excluding and not _IN_SWITCHES & {*tokens}:
        why = "The list leaves out NVLS and CollNet: all_reduce gets no reduction in NVSwitches, and none by SHARP."
        yield Fault(checks.ADVICE, "no line", why)
    if any("ll128" in tokens and not excluding for excluding, tokens in lists.values()):
        why = "Forced LL128 can corrupt data on machines without support; NCCL uses it automatically where it is safe."
        yield Fault(checks.ADVICE, "no line", why)


def _token(name: str, token: str, use: Use) -> Iterator[Fault]:
    words = _ALGORITHMS if name == "NCCL_ALGO" else _PROTOCOLS
    first, end = words.get(token, (None, None))
    without = [v for v in use.versions if first is None or v < first or (end is not None and v >= end)]
    # Without a release in use: no release of the last years has it.
    if without or (not use.versions and (first is None or end is not None)):
        fatal = not without or max(without) >= _PER_FUNCTION
        why = "%s does not know %r and %s." % (
            "NCCL " + format_version(max(without)) if without else "NCCL",
            show(token, 40),
            "ends the job" if fatal else "ignores it without a word, so that the line means something else",
        )
        yield bad_value(name, "words out of " + ", ".join(words), why, "critical" if fatal else "major")


def _debug(word: str, use: Use) -> Iterator[Fault]:
    levels = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
    if word == "TRACE" and use.place != "job":
        why = "TRACE is for hunting one fault in one job; here it slows every job."
        yield Fault(checks.WRONG_PLACE, "WARN, or no line", why)
    elif word not in levels and (word != "ATTN" or use.before((2, 32, 3))):
        why = "With any other word NCCL prints nothing."
        yield bad_value("NCCL_DEBUG", "one of " + ", ".join(levels), why)
