# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find faults in a variable's value: NCCL reads it as another one, or ignores it, or it has unintended costs."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import lint_checks as checks
from .grammar import strtoll
from .lint_issue import Fault, Use, filled, show, weight
from .variables import VARIABLES
from .version import OLDEST, Version, format_version

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

# Variable, value in lower case, severity, why: real and accepted, but of no use or harmful on every machine.
_ADVICE = {
    ("NCCL_" + name, value): (severity, why)
    for name, value, severity, why in (
        row.split(None, 3)
        for row in """
DMABUF_ENABLE 0 major It takes DMA-BUF away: without nvidia_peermem, GPUDirect RDMA is off.
IB_DISABLE 0 minor 0 is the default: the line does nothing.
IB_DISABLE 1 critical It switches RDMA off: every job runs over TCP.
MAX_CTAS 1 major One channel fills neither NVLink nor several NICs.
MNNVL_ENABLE 0 major It stops traffic between the nodes of one NVLink domain from using NVLink.
NET socket critical It chooses TCP: RDMA is not used by any job.
NET_GDR_READ 0 major What is sent is copied from the GPU to the host's memory first.
NTHREADS 512 minor 512 is the maximum and usually the default: the line has no effect.
NVLS_ENABLE 0 major It gives up the reduction in the NVSwitches: 370 instead of 480 GB/s of all-reduce on 8 Hopper GPUs.
P2P_DISABLE 1 major It switches off all direct traffic between GPUs, NVLink included.
P2P_LEVEL sys minor It forces PCIe traffic between GPUs across sockets: slow, and it can hang.
PROTO ll major LL sends a flag with every 4 bytes: large messages get half of the bandwidth at most.
PROTO simple minor It takes away the protocols for small and middle sizes; NCCL chooses better.
PXN_DISABLE 1 minor It stops GPUs from reaching the rail's NIC through NVLink: rail fabrics need that.
SHM_DISABLE 1 major GPUs without a direct path exchange data over the network instead of through the host's memory.
""".strip().split("\n")
    )
}
_BUFFSIZE = 4194304
_LONGEST_USUAL_TIMEOUT = 20  # the default since 2.23

# Path types, in the order of their distance; NCCL's older releases lack some.
_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_FIRST_WITH_LEVEL: Dict[str, Version] = {"C2C": (2, 26, 2), "P2C": (2, 27, 3)}
_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_MERGE_LEVELS = ("LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_FAMILIES = ("AF_INET", "AF_INET6")

# Tokens in lower case: (first release, first release without it).
_ALGORITHMS: Dict[str, Tuple[Version, Optional[Version]]] = {
    **dict.fromkeys(("tree", "ring"), (OLDEST, None)),
    "collnet": (OLDEST, (2, 14, 3)),
    **dict.fromkeys(("collnetdirect", "collnetchain"), ((2, 14, 3), None)),
    "nvls": ((2, 17, 1), None),
    "nvlstree": ((2, 18, 1), None),
    "pat": ((2, 23, 4), None),
}
_PROTOCOLS: Dict[str, Tuple[Version, Optional[Version]]] = dict.fromkeys(("ll", "ll128", "simple"), (OLDEST, None))
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_PER_FUNCTION = (2, 24, 3)  # lists for single functions; an unknown word ends the job
_RAILS_IN_HCA = (2, 30, 5)
_DYNAMIC_GID = (2, 21, 5)

_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
_SUBSYSTEMS: Dict[str, Version] = {
    **dict.fromkeys(("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL"), OLDEST),
    **dict.fromkeys(("PROXY", "NVLS", "ALL"), OLDEST),
    "BOOTSTRAP": (2, 21, 5),
    "REG": (2, 21, 5),
    "PROFILE": (2, 22, 3),
    "RAS": (2, 24, 3),
    "ALLOC_HOST": (2, 30, 3),
    "DESTROY": (2, 30, 3),
}
_MAX_HCAS = 32
_DRIVERS = ("mlx4", "mlx5")  # end in a digit and are intended as prefixes


def faults(name: str, value: str, use: Use) -> Iterator[Fault]:
    """value: not empty, and free of blanks, quotes and comments."""
    wrong = list(_wrong(name, value, use))
    if wrong:
        yield from wrong
        return
    advice = _recommendation(name, value)
    if advice is not None:
        yield Fault(checks.ADVICE, "no line", advice[1], severity=advice[0])
    newest = use.since(_DYNAMIC_GID)
    if name == "NCCL_IB_GID_INDEX" and value != "-1" and newest:
        yield filled(checks.GID_INDEX, "no line", newest)


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
            yield _bad(name, "one of " + ", ".join(words), "Other words read as 0 or as the default.")
    elif name == "NCCL_DEBUG":
        yield from _debug(value, use)
    elif name == "NCCL_DEBUG_SUBSYS":
        yield from _subsystems(value, use)
    elif name == "NCCL_DEBUG_FILE":
        yield from _debug_file(value)
    elif name in ("NCCL_SOCKET_FAMILY", "NCCL_IB_ADDR_FAMILY"):
        if value not in _FAMILIES:
            yield _bad(name, "AF_INET or AF_INET6", "NCCL ignores any other spelling without a word.")
    elif name == "NCCL_IB_ADDR_RANGE":
        if "/" not in value:
            yield _bad(name, "ADDRESS/LENGTH", "NCCL ignores a range without its prefix length.")
    elif name == "NCCL_NET_MERGE_LEVEL" and value not in _MERGE_LEVELS:
        yield _bad(name, "one of " + ", ".join(_MERGE_LEVELS), "Any other word means LOC: nothing is merged.")


def _recommendation(name: str, value: str) -> Optional[Tuple[str, str]]:
    """Return severity and why for a value that NCCL accepts, but that should not be set."""
    if name == "NCCL_BUFFSIZE" and strtoll(value)[0] > _BUFFSIZE:
        return "minor", "Larger buffers cost GPU memory for every channel and peer and rarely gain anything."
    if name == "NCCL_IB_TIMEOUT" and strtoll(value)[0] > _LONGEST_USUAL_TIMEOUT:
        why = "The default is 20 since 2.23. A longer one repairs no loss: the job waits minutes before it reports it."
        return "minor", why
    if name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        why = "%s_CTAS has replaced it since 2.17, and NCCL finds the number for the topology itself." % name[:8]
        return "minor", why
    if name == "NCCL_DEBUG_SUBSYS" and "ALL" in value.upper().split(","):
        return "minor", "With NCCL_DEBUG=INFO each call of each rank writes a line: for the hunt of one fault only."
    if name == "NCCL_ALGO" and _excludes_sharp(value):
        why = "The list leaves out NVLS and CollNet: all_reduce gets no reduction in NVSwitches, and none by SHARP."
        return "major", why
    return _ADVICE.get((name, value.lower()))


def _bad(name: str, want: str, why: str, severity: str = "", fix: str = "") -> Fault:
    return Fault(checks.BAD_VALUE, want, why, fix or "Write %s." % want, severity or weight(name))


def _integer(name: str, value: str, use: Use) -> Iterator[Fault]:
    number, rest = strtoll(value)
    least, most = _RANGES.get(name, (-(2**63), 2**63 - 1))
    if name in ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS") and use.before((2, 25, 1)):
        most = 32
    lowest, highest = _THREADS.get(name, (0, 0))
    if rest:
        yield _bad(name, "an integer", "NCCL reads an integer here and takes this for %d." % number)
    elif not -(2**63) <= number < 2**63:
        yield _bad(name, "an integer of 64 bits", "NCCL takes its default for a number that does not fit.")
    elif re.fullmatch("[+-]?0[0-9]+", value):
        yield _bad(name, value.lstrip("0") or "0", "A number that starts with 0 is octal: NCCL reads %d." % number)
    elif highest and number > 0 and (number % 32 or not lowest <= number <= highest):
        yield _bad(name, "a multiple of 32, %d to %d" % (lowest, highest), "NCCL replaces any other number.")
    elif not least <= number <= most:
        why = "%d is outside what NCCL accepts here.%s" % (number, _RANGE_NOTES.get(name, ""))
        yield _bad(name, "%d to %d" % (least, most), why)


def socket_threads(values: Mapping[str, str]) -> Iterator[Fault]:
    """Yield faults of two variables together. values: all that one file sets."""
    threads = strtoll(values.get("NCCL_SOCKET_NTHREADS", ""))[0]
    sockets = strtoll(values.get("NCCL_NSOCKS_PERTHREAD", ""))[0]
    if threads * sockets > 64:
        why = "NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD is %d, and NCCL allows 64." % (threads * sockets)
        yield _bad("NCCL_SOCKET_NTHREADS", "a product of at most 64", why, fix="Lower one of the two.")


def _level(name: str, value: str, use: Use) -> Iterator[Fault]:
    legacy = "0" <= value[0] <= "9"
    level = _LEGACY_LEVELS[min(strtoll(value)[0], 4)] if legacy else value
    first = _FIRST_WITH_LEVEL.get(level)
    old = use.before(first) if first else None
    if level not in _LEVELS:
        why = "NCCL compares with exact names in capitals, and ignores anything else without a word."
        want = value.upper() if value.upper() in _LEVELS else "one of " + ", ".join(_LEVELS)
        if value.upper() == "NODE":
            want = "PHB"
            why += " NODE is nvidia-smi's word; NCCL calls that distance PHB."
        yield _bad(name, want, why)
    elif first and old:
        why = "NCCL knows %s since %s; %s ignores the line." % (level, format_version(first), old)
        yield _bad(name, "a level that %s knows" % old, why)
    elif name == "NCCL_NET_GDR_LEVEL" and level in ("LOC", "NVL", "NVB"):
        yield filled(checks.GDR_OFF, "no line, or PXB", level)
    elif name == "NCCL_P2P_LEVEL" and level == "LOC":
        yield Fault(checks.ADVICE, "no line", _ADVICE["NCCL_P2P_DISABLE", "1"][1])
    elif legacy:
        fix = checks.LEGACY_LEVEL.fix % level
        yield filled(checks.LEGACY_LEVEL, level, value, level)._replace(fix=fix)


def _device_list(name: str, value: str, use: Use) -> Iterator[Fault]:
    """``[^][=]name[:port],...``: ^ excludes, = makes the names exact; without = a name is a prefix."""
    exclude = value.startswith("^")
    body = value[1:] if exclude else value
    exact = body.startswith("=")
    body = body[1:] if exact else body
    entries = [entry for entry in body.split(",") if entry]
    malformed = _malformed_list(name, value, entries, exclude, exact and body.startswith("^"))
    malformed = malformed or (_hca_entries(entries, use) if name == "NCCL_IB_HCA" else None)
    if malformed is not None:
        yield malformed
        return
    names = [entry.split(":")[0] for entry in entries]
    listed = show(("^=" if exclude else "=") + body)
    if name == "NCCL_IB_HCA" and use.hcas:
        yield from _known_devices(names, exclude, exact, listed, use)
    # An excluded docker1 or virbr1 is intended to exclude its kind.
    elif not exact and not (exclude and name != "NCCL_IB_HCA"):
        # Names are numbered without leading zeros: mlx5_0 is the beginning of no other, mlx5_1 that of mlx5_10.
        single = sorted((d[-1], d) for d in names if re.fullmatch(r".*[^0-9][1-9]", d) and d not in _DRIVERS)
        for number, device in single[:1]:
            # Machines with more than ten devices are usual, with more than 20 rare.
            severity = "major" if name == "NCCL_IB_HCA" and number == "1" else "minor"
            others = "%s also matches %s0 to %s9" % ((show(device, 40),) * 3)
            yield filled(checks.PREFIX_MATCH, listed, others, severity=severity)


def _malformed_list(name: str, value: str, entries: Sequence[str], exclude: bool, reverse: bool) -> Optional[Fault]:
    """Return the fault of a list that is none. reverse: = stands before ^."""
    noun = "RDMA device" if name == "NCCL_IB_HCA" else "interface"
    form = "NAME,NAME with ^ (exclude), = (exact) or ^= before the list"
    if name != "NCCL_IB_HCA" and len(value) == 1:
        return _bad(name, form, "NCCL ignores a value of one character.", "major")
    if reverse:
        right = "^=" + value[3 if exclude else 2 :]
        return _bad(name, right, "^ has to stand before =; after it, it becomes a part of the first name.")
    if not entries:
        why = "The list is empty, so every %s is %s." % (noun, "excluded" if exclude else "taken")
        return _bad(name, form, why, "critical" if exclude else "minor")
    if any(c in entry for entry in entries for c in " \t=^"):
        why = "Blanks and operators inside the list become a part of a name, which then matches no %s." % noun
        return _bad(name, form, why)
    return None


def _hca_entries(entries: Sequence[str], use: Use) -> Optional[Fault]:
    """Return the fault of ports, or of a list that is too long."""
    name = "NCCL_IB_HCA"
    for numbers in (entry.split(":")[1:] for entry in entries):
        if not all(re.fullmatch("[0-9]*", number) for number in numbers):
            return _bad(name, "NAME:PORT", "What follows a colon is a port number; anything else reads as port 0.")
        old = use.before(_RAILS_IN_HCA)
        if len(numbers) > 1 and old:
            why = "Rail and plane behind the port are known since 2.30.5, not to %s." % old
            return _bad(name, "NAME:PORT", why, "major")
    if len(entries) > _MAX_HCAS:
        why = "NCCL reads %d names and drops the other %d." % (_MAX_HCAS, len(entries) - _MAX_HCAS)
        return _bad(name, "at most %d names" % _MAX_HCAS, why, "major")
    return None


def _known_devices(names: Sequence[str], exclude: bool, exact: bool, listed: str, use: Use) -> Iterator[Fault]:
    """The names in NCCL_IB_HCA against the devices of the host. listed: the list with exact names, as text."""
    hcas = use.hcas
    matched = {device: [h for h in hcas if h == device or (not exact and h.startswith(device))] for device in names}
    taken = {hca for found in matched.values() for hca in found}
    missing = [device for device, found in matched.items() if not found]
    here = ", ".join(hcas)
    if (exclude and taken == set(hcas)) or (not exclude and not taken):
        why = "The list leaves no RDMA device, so jobs run over TCP. The host has %s." % here
        yield Fault(checks.UNKNOWN_HCA, "devices of the host", why, severity="critical")
    elif missing and not exclude:
        yield filled(checks.UNKNOWN_HCA, "devices of the host", show(", ".join(missing)), here)
    # A prefix that is not a device, such as mlx5, is intended as a prefix.
    extra = {device: [h for h in found if h not in names] for device, found in matched.items() if device in hcas}
    surplus = ["%s also takes in %s" % (device, ", ".join(found)) for device, found in extra.items() if found]
    if surplus:
        yield filled(checks.PREFIX_MATCH, listed, "; ".join(surplus))


def _tuning(name: str, value: str, use: Use) -> Iterator[Fault]:
    """NCCL_ALGO and NCCL_PROTO: ``[^]a,b``, and from 2.24 on ``[^]a,b;function:[^]c``."""
    old = use.before(_PER_FUNCTION)
    if old and (":" in value or ";" in value):
        why = "Lists for single functions are known since 2.24; %s ignores them without a word." % old
        yield _bad(name, "a list without functions, or no line", why, "major", "Remove the line.")
        return
    lists: Dict[str, Tuple[bool, List[str]]] = {}
    for index, entry in enumerate(part for part in value.split(";") if part):
        function, colon, rest = entry.partition(":")
        if not colon:
            function, rest = "", entry
        if (index and not colon) or (colon and function.lower() not in _FUNCTIONS) or ":" in rest or not rest:
            why = "%s is not a list for one of %s; NCCL ends the job." % (show(entry, 80), ", ".join(_FUNCTIONS))
            yield _bad(name, "LIST;FUNCTION:LIST", why)
            return
        tokens = rest[1:] if rest.startswith("^") else rest
        lists[function.lower()] = (rest.startswith("^"), [token.lower() for token in tokens.split(",") if token])
        for token in lists[function.lower()][1]:
            fault = _token(name, token, use)
            if fault is not None:
                yield fault
                return
    if name == "NCCL_ALGO" and use.since(_PER_FUNCTION):
        # Ring is the only algorithm of these two, and no release from 2.24 on falls back to it.
        for function in ("broadcast", "reduce"):
            excluding, tokens_left = lists.get(function, lists.get("", (True, [])))
            if ("ring" in tokens_left) == excluding:
                why = "Ring is the only algorithm of %s, and NCCL %s does not fall back to it: the call fails.%s" % (
                    function,
                    use.since(_PER_FUNCTION),
                    " It leaves out CollNet, too, and so switches SHARP off." if _excludes_sharp(value) else "",
                )
                yield _bad(name, "no line, or a list with Ring", why, fix="Remove the line.")
                return
    if name == "NCCL_PROTO" and any("ll128" in tokens and not excluding for excluding, tokens in lists.values()):
        why = "Forced LL128 can corrupt data on machines without support; NCCL uses it automatically where it is safe."
        yield Fault(checks.ADVICE, "no line", why)


def _excludes_sharp(value: str) -> bool:
    """Return whether all-reduce has no algorithm left that reduces in a switch."""
    lists = dict(part.rpartition(":")[::2] for part in value.lower().split(";") if part)
    listed = lists.get("allreduce", lists.get("", "^"))
    in_switches = {"collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree"}
    return not listed.startswith("^") and not in_switches & {*listed.split(",")}


def _token(name: str, token: str, use: Use) -> Optional[Fault]:
    words = _ALGORITHMS if name == "NCCL_ALGO" else _PROTOCOLS
    known = words.get(token)
    unknown_to = [v for v in use.versions if known is None or v < known[0] or (known[1] is not None and v >= known[1])]
    gone = known is not None and known[1] is not None and not use.versions  # no release of the last years has it
    if known is not None and not unknown_to and not gone:
        return None
    where = "NCCL " + format_version(max(unknown_to)) if unknown_to else "NCCL"
    fatal = not unknown_to or max(unknown_to) >= _PER_FUNCTION
    why = "%s does not know %r and %s." % (
        where,
        show(token, 40),
        "ends the job" if fatal else "ignores it without a word, so that the line means something else",
    )
    want = "words out of " + ", ".join(words)
    return _bad(name, want, why, "critical" if fatal else "major", "Remove the line, or correct the word.")


def _debug(value: str, use: Use) -> Iterator[Fault]:
    word = value.upper()
    if word == "TRACE" and use.place != "job":
        why = "TRACE is for hunting one fault in one job; here it slows every job."
        yield Fault(checks.WRONG_PLACE, "WARN, or no line", why)
    elif word not in _DEBUG_LEVELS and (word != "ATTN" or use.before((2, 32, 3))):
        yield _bad("NCCL_DEBUG", "one of " + ", ".join(_DEBUG_LEVELS), "With any other word NCCL prints nothing.")


def _subsystems(value: str, use: Use) -> Iterator[Fault]:
    tokens = (value[1:] if value.startswith("^") else value).split(",")
    firsts = [(token, _SUBSYSTEMS.get(token.upper())) for token in tokens if token]
    unknown = [token for token, first in firsts if first is None or use.before(first)]
    if unknown:
        why = "NCCL ignores the words that it does not know: %s." % show(", ".join(unknown))
        yield _bad("NCCL_DEBUG_SUBSYS", "words out of " + ", ".join(_SUBSYSTEMS), why, "minor")


def _debug_file(value: str) -> Iterator[Fault]:
    tokens = re.findall("%.?", value, re.DOTALL)
    wrong = [token for token in tokens if token not in ("%h", "%p", "%%")]
    if wrong:
        why = "Only %%h (host) and %%p (process) are replaced; %s stays, and all processes write one file."
        yield _bad("NCCL_DEBUG_FILE", "a name with %h and %p", why % show(", ".join(wrong)))
    elif "%p" not in tokens:
        why = "Without %p all processes of a host write, and empty, the same file."
        yield _bad("NCCL_DEBUG_FILE", "a name with %h and %p", why, "minor")
