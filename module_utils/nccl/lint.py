# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nccl.conf as NCCL reads it, and what is wrong with a file that means something else than it does.

NCCL's reader trims nothing, knows no quotes and reports nothing: a blank beside ``=`` makes another variable, and the
only trace is a job that runs over TCP. ``parse`` is that reader; ``lint`` compares what it yields with what the line
was meant to say, and with the variables that the installed libraries read.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.finding import SEVERITIES, Finding
from .library import Library
from .variables import NCCL_TESTS, NEVER, NEWEST, OLDEST, VARIABLES, Version, format_version, known_names, reader

# Releases in which the reader changed.
_COMMENTS = (2, 26, 2)  # a line that starts with # is a comment
_STRIPS_CR = (2, 30, 3)  # and reads at most 4095 bytes as one line
_SAFE_NAMES = (2, 23, 4)  # a name beyond 1023 bytes no longer overruns a buffer
_LIMIT = 1023  # bytes of a name or value that NCCL keeps
_CANONICAL_LIMIT = 1000
_CHUNK = 4095

# A wrong value here ends in a job that does not start, hangs, or falls to TCP; elsewhere it costs speed or meaning.
_BREAKING = frozenset(
    (
        "NCCL_ALGO",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_IB_TIMEOUT",
        "NCCL_NET",
        "NCCL_OOB_NET_IFNAME",
        "NCCL_PROTO",
        "NCCL_SOCKET_FAMILY",
        "NCCL_SOCKET_IFNAME",
    )
)

# Accepted integers, both ends included. -1 or -2 is "automatic" where the library says so.
_RANGES = {
    "NCCL_COLLNET_ENABLE": (0, 1),
    "NCCL_CROSS_NIC": (0, 2),
    "NCCL_CUMEM_ENABLE": (-2, 1),
    "NCCL_CUMEM_HOST_ENABLE": (-1, 1),
    "NCCL_DMABUF_ENABLE": (0, 1),
    "NCCL_GDRCOPY_ENABLE": (0, 1),
    "NCCL_IB_ADAPTIVE_ROUTING": (-2, 1),
    "NCCL_IB_DATA_DIRECT": (0, 2),
    "NCCL_IB_DEVICE_PCI_ORDER": (0, 1),
    "NCCL_IB_DISABLE": (0, 1),
    "NCCL_IB_ECE_ENABLE": (0, 1),
    "NCCL_IB_FIFO_TC": (-1, 255),
    "NCCL_IB_GID_INDEX": (-1, 255),
    "NCCL_IB_MERGE_NICS": (0, 1),
    "NCCL_IB_MERGE_VFS": (0, 1),
    "NCCL_IB_OOO_RQ": (0, 1),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_IB_PKEY": (0, 255),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_RETURN_ASYNC_EVENTS": (0, 1),
    "NCCL_IB_ROCE_VERSION_NUM": (1, 2),
    "NCCL_IB_SL": (-1, 15),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (0, 1),
    "NCCL_IB_TC": (-1, 255),
    "NCCL_IB_TIMEOUT": (1, 31),
    "NCCL_IGNORE_DISABLED_P2P": (0, 2),
    "NCCL_MAX_CTAS": (1, 64),
    "NCCL_MIN_CTAS": (1, 64),
    "NCCL_MNNVL_ENABLE": (-2, 2),
    "NCCL_NET_GDR_C2C": (0, 1),
    "NCCL_NET_GDR_READ": (-2, 1),
    "NCCL_NVLS_ENABLE": (0, 2),
    "NCCL_P2P_DISABLE": (0, 1),
    "NCCL_P2P_PXN_LEVEL": (0, 2),
    "NCCL_PXN_C2C": (0, 1),
    "NCCL_PXN_DISABLE": (0, 1),
    "NCCL_SHM_LOCALITY": (1, 2),
    "NCCL_SOCKET_NTHREADS": (1, 16),
}

_RANGE_NOTES = {
    "NCCL_IB_PKEY": " It is the index into the port's P_Key table, not the key.",
    "NCCL_IB_TC": " On RoCE it is the DSCP times four.",
    "NCCL_IB_TIMEOUT": " 0 and 32 or more wait for ever, so a lost packet hangs the job.",
}

# Variables that are right in one job and wrong in a file that every job reads.
_WRONG_PLACE = {
    "NCCL_COMM_ID": ("critical", "It is the meeting point of one job; here every job of the cluster would share it."),
    "NCCL_CONF_FILE": ("major", "Which files are read is settled before any of them is opened: here it does nothing."),
    "NCCL_HOSTID": (
        "major",
        "Ranks with equal values are taken for one machine, and a copied file makes them equal.",
    ),
    "NCCL_GRAPH_DUMP_FILE": ("minor", "It is a debugging output that every job would overwrite."),
    "NCCL_GRAPH_DUMP_FILE_RANK": ("minor", "It belongs to a debugging output of one job."),
    "NCCL_TOPO_DUMP_FILE": ("minor", "It is a debugging output that every job would overwrite."),
    "NCCL_TOPO_DUMP_FILE_RANK": ("minor", "It belongs to a debugging output of one job."),
}

# (variable, value): real and accepted, but of no use or harmful on every machine.
_ADVICE = {
    ("NCCL_DMABUF_ENABLE", "0"): (
        "major",
        "It takes DMA-BUF away: without nvidia_peermem, GPUDirect RDMA is off.",
    ),
    ("NCCL_IB_DISABLE", "0"): ("minor", "0 is the default: the line does nothing."),
    ("NCCL_IB_DISABLE", "1"): ("critical", "It switches RDMA off: every job runs over TCP."),
    ("NCCL_MNNVL_ENABLE", "0"): ("major", "It keeps traffic between the nodes of one NVLink domain off NVLink."),
    ("NCCL_NET", "socket"): ("critical", "It chooses TCP: RDMA is not used by any job."),
    ("NCCL_NET_GDR_READ", "0"): ("major", "What is sent is copied from the GPU to the host's memory first."),
    ("NCCL_NTHREADS", "512"): (
        "minor",
        "512 is the maximum and mostly the default: the line gains nothing.",
    ),
    ("NCCL_NVLS_ENABLE", "0"): (
        "major",
        "It gives up the reduction in the NVSwitches: 370 instead of 480 GB/s of all-reduce on 8 Hopper GPUs.",
    ),
    ("NCCL_P2P_DISABLE", "1"): ("major", "It switches off all direct traffic between GPUs, NVLink included."),
    ("NCCL_P2P_LEVEL", "sys"): (
        "minor",
        "It forces PCIe traffic between GPUs across sockets: slow, and it can hang.",
    ),
    ("NCCL_PROTO", "simple"): ("minor", "It takes away the protocols for small and middle sizes; NCCL chooses better."),
    ("NCCL_PXN_DISABLE", "1"): (
        "minor",
        "It stops GPUs from reaching the rail's NIC through NVLink: rail fabrics need that.",
    ),
    ("NCCL_SHM_DISABLE", "1"): (
        "major",
        "GPUs without a direct path exchange data over the network instead of through the host's memory.",
    ),
}
_BUFFSIZE = 4194304
_LONGEST_USUAL_TIMEOUT = 20  # the default since 2.23

# Path types and the first release that knows them; None: every release.
_LEVELS: Dict[str, Optional[Version]] = {
    "LOC": None,
    "NVL": None,
    "NVB": None,
    "C2C": (2, 26, 2),
    "PIX": None,
    "PXB": None,
    "P2C": (2, 27, 3),
    "PXN": None,
    "PHB": None,
    "SYS": None,
}
_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_MERGE_LEVELS = ("LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_FAMILIES = ("AF_INET", "AF_INET6")

# Tokens in lower case: (first release, first release without it).
_ALGORITHMS: Dict[str, Tuple[Version, Optional[Version]]] = {
    "tree": (OLDEST, None),
    "ring": (OLDEST, None),
    "collnet": (OLDEST, (2, 14, 3)),
    "collnetdirect": ((2, 14, 3), None),
    "collnetchain": ((2, 14, 3), None),
    "nvls": ((2, 17, 1), None),
    "nvlstree": ((2, 18, 1), None),
    "pat": ((2, 23, 4), None),
}
_PROTOCOLS: Dict[str, Tuple[Version, Optional[Version]]] = {
    "ll": (OLDEST, None),
    "ll128": (OLDEST, None),
    "simple": (OLDEST, None),
}
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_PER_FUNCTION = (2, 24, 3)  # lists for single functions; an unknown word ends the job
_RAILS_IN_HCA = (2, 30, 5)
_DYNAMIC_GID = (2, 21, 5)

_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
_SUBSYSTEMS: Dict[str, Version] = dict.fromkeys(
    ("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "ALL"), OLDEST
)
_SUBSYSTEMS.update(
    {
        "BOOTSTRAP": (2, 21, 5),
        "REG": (2, 21, 5),
        "PROFILE": (2, 22, 3),
        "RAS": (2, 24, 3),
        "ALLOC_HOST": (2, 30, 3),
        "DESTROY": (2, 30, 3),
    }
)

_BLANKS = " \t\v\f"
_INTEGER = re.compile(r"[ \t\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_EXPORT = re.compile(r"[ \t]*(?:export|setenv|set|declare[ \t]+-x)[ \t]+(.*)", re.DOTALL)
_INLINE_COMMENT = re.compile(r"[ \t]+#")
_PLAIN = re.compile(r"[ -~\t]*")
_MAX_HCAS = 32
_DRIVERS = ("mlx4", "mlx5")  # end in a digit and are meant as prefixes


@dataclass(frozen=True)
class Line:
    """One line as NCCL takes it.

    number: counted from 1; pieces of an over-long line share it.   raw: the line without its line feed.
    kind: "comment", "assignment" or "ignored".   name, value: of an assignment, else None.
    """

    number: int
    raw: str
    kind: str
    name: Optional[str] = None
    value: Optional[str] = None


class _Fault(NamedTuple):
    rule: str
    severity: str
    want: Optional[str]
    why: str
    fix: str
    state: str = "drift"


class _Use(NamedTuple):
    """What will read the file."""

    libraries: Sequence[Library]
    versions: Sequence[Version]

    def before(self, version: Version) -> Optional[str]:
        """The oldest release in use that is older than ``version``, as text."""
        older = [v for v in self.versions if v < version]
        return format_version(min(older)) if older else None

    def since(self, version: Version) -> Optional[str]:
        """The newest release in use that is ``version`` or later, as text."""
        newer = [v for v in self.versions if v >= version]
        return format_version(max(newer)) if newer else None


# -- NCCL's reader -----------------------------------------------------------------------------------------------


def parse(text: str, version: Version = NEWEST) -> List[Line]:
    """The lines of a file as the library of this version takes them. Any text has a reading; nothing is raised."""
    lines = []
    for number, raw in enumerate(_rows(text), 1):
        data = raw.encode("utf-8", "surrogatepass")
        step = _CHUNK if version >= _STRIPS_CR else max(len(data), 1)
        for start in range(0, max(len(data), 1), step):
            lines.append(_read_line(number, raw, data[start : start + step], version))
    return lines


def settings(lines: Sequence[Line]) -> Dict[str, str]:
    """What the lines set: the first definition of a name wins."""
    values: Dict[str, str] = {}
    for line in lines:
        if line.name is not None and line.value is not None:
            values.setdefault(line.name, line.value)
    return values


def _rows(text: str) -> List[str]:
    rows = text.split("\n")
    return rows[:-1] if rows[-1] == "" else rows


def _read_line(number: int, raw: str, data: bytes, version: Version) -> Line:
    data = data.split(b"\0", 1)[0]
    if version >= _STRIPS_CR and data.endswith(b"\r"):
        data = data[:-1]
    if version >= _COMMENTS and data.startswith(b"#"):
        return Line(number, raw, "comment")
    name, equals, value = data.partition(b"=")
    if not equals or not name:
        return Line(number, raw, "ignored")
    return Line(number, raw, "assignment", _text(name[:_LIMIT]), _text(value[:_LIMIT]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _strtoll(text: str) -> Tuple[int, str]:
    """C's strtoll(text, &rest, 0): what is not a number is 0, what follows the number is left over."""
    match = _INTEGER.match(text)
    if match is None:
        return 0, text
    sign, digits = match.groups()
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    else:
        number = int(digits, 8) if digits[0] == "0" else int(digits)
    return -number if sign == "-" else number, text[match.end() :]


# -- findings ----------------------------------------------------------------------------------------------------


def lint(
    text: str,
    libraries: Sequence[Library],
    version: Optional[Version],
    path: str,
    hcas: Sequence[str] = (),
) -> List[Finding]:
    """What is wrong with a file; [] for a canonical file whose lines all do what they say.

    libraries: those that jobs on the host load; they decide which variables are read. version: the release in use
    where no library can be read, or one more that has to understand the file. hcas: RDMA devices of the host, to say
    exactly what a list of names takes in. path: the file's name, for the findings.
    """
    versions = {library.version for library in libraries} | ({version} if version else set())
    use = _Use(libraries, sorted(versions))
    findings = []
    if not use.versions:
        fault = _Fault(
            "library",
            "major",
            "a readable libnccl.so.2 or a version",
            "Which variables are read depends on the release; only the rules that hold for all were checked.",
            "Set busbar_nccl_libraries to the files that jobs load, or busbar_nccl_version.",
            "unknown",
        )
        findings.append(_finding(fault, path, path, "neither a library nor a version is known"))
    if text.startswith("\ufeff"):
        fault = _Fault(
            "bom",
            "major",
            "a file that starts with its first line",
            "The file starts with a byte order mark, which NCCL takes for a part of the first line's name.",
            "Save the file as plain ASCII.",
        )
        findings.append(_finding(fault, path, path, "byte order mark"))
        text = text[1:]

    seen: Dict[str, Line] = {}
    cleaned: Dict[str, str] = {}
    carriage_returns: List[Line] = []
    judged: List[Tuple[Line, List[_Fault]]] = []
    for number, raw in enumerate(_rows(text), 1):
        if raw.endswith("\r"):
            raw = raw[:-1]
            carriage_returns.append(_read_line(number, raw, raw.encode("utf-8", "surrogatepass"), NEWEST))
        line = _read_line(number, raw, raw.encode("utf-8", "surrogatepass"), NEWEST)
        faults = list(_line_faults(line, use))
        judged.append((line, faults))
        if line.name is None or line.value is None or _is_indented_comment(raw):
            continue
        if line.name in seen:
            faults.append(_duplicate(line, seen[line.name]))
            continue
        seen[line.name] = line
        name, value, spelling = _clean(line.name, line.value)
        faults.extend(spelling)
        cleaned.setdefault(name, value)
        faults.extend(_meaning_faults(name, value, use, hcas, "file"))
    if carriage_returns:
        findings.append(_carriage_return(carriage_returns, use, path))
    for line, faults in judged:
        where = "%s:%d" % (path, line.number)
        name = _clean(line.name, line.value or "")[0] if line.name is not None else ""
        if name == "NCCL_SOCKET_NTHREADS":
            faults.extend(_socket_threads(cleaned))
        subject = "%s %s" % (where, _show(name, 80)) if name else where
        findings += [_finding(fault, subject, where, _show(line.raw)) for fault in _first_of_rules(faults)]
    return findings


def lint_variable(
    name: str,
    value: str,
    where: str,
    libraries: Sequence[Library] = (),
    version: Optional[Version] = None,
    hcas: Sequence[str] = (),
    place: str = "environment",
) -> List[Finding]:
    """What is wrong with a variable that something else than nccl.conf sets; worst first.

    place: "environment" of every job, or "job" for one job's own. where: FILE:LINE. The rest as for ``lint``.
    """
    versions = {library.version for library in libraries} | ({version} if version else set())
    use = _Use(libraries, sorted(versions))
    bare = value.strip(_BLANKS).strip("\"'")
    faults = []
    if bare != value:
        why = "NCCL trims nothing and knows no quotes: what stands round the value is a part of it."
        want = _show("%s=%s" % (name, bare))
        faults.append(_Fault("quotes", _cost(name, value, bare), want, why, "Write %s." % want))
    faults += _meaning_faults(name, bare, use, hcas, place)
    subject = "%s %s" % (where, _show(name, 80))
    found = [_finding(fault, subject, where, _show("%s=%s" % (name, value))) for fault in _first_of_rules(faults)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _first_of_rules(faults: Sequence[_Fault]) -> List[_Fault]:
    first: Dict[str, _Fault] = {}
    for fault in faults:
        first.setdefault(fault.rule, fault)
    return list(first.values())


def _meaning_faults(name: str, value: str, use: _Use, hcas: Sequence[str], place: str) -> List[_Fault]:
    """Of a name and a value that are free of what does not belong to them. place: "file", "environment", "job"."""
    of_name = _name_fault(name, use, place)
    if of_name is not None:
        return [of_name]
    return list(_value_faults(name, value, use, hcas, place)) if value else []


def conflicts(meant: Mapping[str, str], other: Mapping[str, str], other_path: str) -> List[Finding]:
    """Variables that a file read before ours sets to something else: the first definition wins, ours does nothing.

    other: what that file sets: ``settings(parse(...))`` for ~/.nccl.conf, the pairs of /etc/environment.
    """
    findings = []
    for name in sorted(set(meant) & set(other)):
        if meant[name] == other[name]:
            continue
        findings.append(
            Finding(
                check="nccl_conf.conflict",
                subject="%s %s" % (other_path, _show(name, 80)),
                state="drift",
                severity="critical" if name in _BREAKING else "major",
                want=_show(meant[name]),
                have=_show(other[name]),
                source=other_path,
                why="NCCL keeps the first definition that it meets, and this one comes before /etc/nccl.conf: "
                "the value there has no effect.",
                fix="Remove the variable from %s." % other_path,
                aspect="persisted",
            )
        )
    return findings


def _finding(fault: _Fault, subject: str, source: str, have: str) -> Finding:
    return Finding(
        check="nccl_conf.lint." + fault.rule,
        subject=subject,
        state=fault.state,
        severity=fault.severity,
        want=fault.want,
        have=have,
        source=source,
        why=fault.why,
        fix=fault.fix,
        aspect="persisted",
    )


def _show(text: str, limit: int = 160) -> str:
    """Text that is safe on a terminal: what is not printable ASCII is escaped, what is long is cut."""
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text[:limit])
    return shown + "..." if len(text) > limit else shown


# -- grammar -----------------------------------------------------------------------------------------------------


def _is_indented_comment(raw: str) -> bool:
    return raw[:1] != "#" and raw.lstrip(_BLANKS).startswith("#")


def _line_faults(line: Line, use: _Use) -> Iterator[_Fault]:
    """What is wrong with a line before its name and value are looked at."""
    raw = line.raw
    if not _PLAIN.fullmatch(raw):
        yield _Fault(
            "character",
            "minor" if line.kind == "comment" else _weight(line.name or ""),
            "printable ASCII",
            "The line holds characters that are not printable ASCII; NCCL takes them into the name or value.",
            "Type the line again in plain ASCII.",
        )
    if line.kind == "comment":
        old = use.before(_COMMENTS)
        if old and "=" in raw:
            yield _Fault(
                "comment_assignment",
                "minor",
                "a comment without =",
                "NCCL before 2.26 knows no comments: %s sets a variable whose name starts with #." % old,
                "Reword the comment so that it holds no equals sign.",
            )
        return
    if _is_indented_comment(raw):
        yield _Fault(
            "indented_comment",
            "minor",
            _show(raw.lstrip(_BLANKS)),
            "A comment is one only when # is the first character of the line.",
            "Move # to the first column.",
        )
        return
    if line.kind == "ignored":
        if raw.strip(_BLANKS):
            yield _Fault(
                "no_assignment",
                "major",
                "NAME=VALUE",
                "The line is no NAME=VALUE, so NCCL ignores it.",
                "Write it as NAME=VALUE, or as a comment that starts with #.",
            )
        return
    name, _equals, value = raw.partition("=")
    sizes = len(name.encode("utf-8", "surrogatepass")), len(value.encode("utf-8", "surrogatepass"))
    if max(sizes) > _CANONICAL_LIMIT:
        crash = use.before(_SAFE_NAMES) if sizes[0] > _LIMIT else None
        severity = "critical" if crash else "major" if max(sizes) > _LIMIT else "minor"
        why = "NCCL cuts names and values after %d bytes." % _LIMIT
        if crash:
            why += " %s overruns its buffer and ends the job." % crash
        yield _Fault("too_long", severity, "at most %d bytes" % _CANONICAL_LIMIT, why, "Shorten the line.")
    if not value:
        yield _Fault(
            "empty_value",
            "minor",
            "a value, or no line",
            "The variable is set to nothing, which hides a value that another file would give it.",
            "Give it a value, or remove the line.",
        )


def _clean(name: str, value: str) -> Tuple[str, str, List[_Fault]]:
    """The name and value that were meant, and what stands between them and what NCCL reads."""
    faults = []
    export = _EXPORT.match(name)
    meant = (export.group(1) if export else name).strip(_BLANKS)
    if export:
        faults.append(
            _Fault(
                "export",
                "major",
                _show("%s=%s" % (meant, value)),
                "NCCL is no shell: it sets a variable called %r, and %s stays unset."
                % (_show(name, 80), _show(meant, 80)),
                "Remove the word before the name.",
            )
        )
    bare = value
    comment = _INLINE_COMMENT.search(value)
    if comment:
        bare = value[: comment.start()]
    elif value.startswith("#"):
        bare = ""
    stripped = bare.strip(_BLANKS)
    unquoted = stripped.strip("\"'")
    if bare != value:
        faults.append(
            _Fault(
                "inline_comment",
                _cost(meant, value, unquoted),
                _show("%s=%s" % (meant, unquoted)),
                "NCCL has no comments behind a value: the comment becomes a part of it.",
                "Put the comment on a line of its own.",
            )
        )
    if (not export and meant != name) or stripped != bare:
        lost = meant != name and not export
        part = "name, and the variable stays unset" if lost else "value"
        faults.append(
            _Fault(
                "blank",
                "major" if lost else _cost(meant, bare, stripped),
                _show("%s=%s" % (meant, unquoted)),
                "NCCL trims nothing: the blank becomes a part of the %s." % part,
                "Remove the blanks around the name and the value.",
            )
        )
    if unquoted != stripped:
        number = _reads_integer(meant)
        faults.append(
            _Fault(
                "quotes",
                _cost(meant, stripped, unquoted),
                _show("%s=%s" % (meant, unquoted)),
                "NCCL keeps the quotes: %s."
                % ("the value is no number any more and reads as 0" if number else "they become a part of the value"),
                "Remove the quotes.",
            )
        )
    return meant, unquoted, faults


def _reads_integer(name: str) -> bool:
    variable = VARIABLES.get(name)
    return variable is not None and variable.kind == "int"


def _weight(name: str) -> str:
    return "critical" if name in _BREAKING else "major"


def _cost(name: str, read: str, meant: str) -> str:
    """Severity of a value that NCCL reads as ``read``: none but looks if it yields the same number."""
    if _reads_integer(name) and _strtoll(read)[0] == _strtoll(meant)[0]:
        return "minor"
    return _weight(name)


def _duplicate(line: Line, first: Line) -> _Fault:
    return _Fault(
        "duplicate",
        "minor" if line.value == first.value else "major",
        "each name once",
        "NCCL keeps the first definition, in line %d; this one has no effect." % first.number,
        "Keep one of the two lines.",
    )


def _carriage_return(lines: Sequence[Line], use: _Use, path: str) -> Finding:
    severity = "minor"
    if not use.versions or use.before(_STRIPS_CR):
        pairs = [(line.name, line.value or "") for line in lines if line.name is not None]
        costs = [_cost(name, value + "\r", value) for name, value in pairs]
        severity = min(costs, key=SEVERITIES.index, default="minor")
    fault = _Fault(
        "carriage_return",
        severity,
        "lines that end in a line feed alone",
        "NCCL before 2.30.3 keeps the carriage return as the last character of each value.",
        "Save the file with Unix line ends.",
    )
    source = "%s:%d" % (path, lines[0].number)
    return _finding(fault, path, source, "%d lines end in a carriage return" % len(lines))


# -- names -------------------------------------------------------------------------------------------------------


def _name_fault(name: str, use: _Use, place: str) -> Optional[_Fault]:
    """Why nobody reads this variable, or why it should not stand here."""
    shown = _show(name, 80)
    if name in NEVER:
        why = "No release of NCCL has ever read %s: the line has no effect." % name
        return _Fault("never_existed", "major", None, why, NEVER[name])
    who = reader(name)
    if who == NCCL_TESTS and place != "file":
        return None
    if who == NCCL_TESTS:
        why = "%s is read by nccl-tests, before NCCL reads this file." % name
        return _Fault("wrong_place", "minor", None, why, "Set it where the test is started.")
    if who not in (None, "library"):
        return None
    if not name.startswith("NCCL_"):
        similar = difflib.get_close_matches(name.upper(), list(VARIABLES), 1, 0.85) if len(name) <= 100 else []
        if similar:
            why = "NCCL reads no variable %s; names are matched exactly." % shown
            return _Fault("unknown_variable", "major", similar[0], why, "Write %s." % similar[0])
        why = "%s is no variable of NCCL. The line sets it in every process that uses NCCL, from then on." % shown
        return _Fault("foreign_variable", "minor", None, why, "Set it where the program that reads it is started.")
    if name in _WRONG_PLACE and place != "job" and (name, place) != ("NCCL_CONF_FILE", "environment"):
        severity, why = _WRONG_PLACE[name]
        return _Fault("wrong_place", severity, None, why, "Set it in the job that needs it.")
    return _unread(name, use)


def _unread(name: str, use: _Use) -> Optional[_Fault]:
    variable = VARIABLES.get(name)
    if use.libraries:
        lacking = [library.version for library in use.libraries if name not in library.names]
        where = ", ".join(
            "%s (%s)" % (_show(library.path), format_version(library.version))
            for library in use.libraries
            if name not in library.names
        )
        everywhere = len(lacking) == len(use.libraries)
    elif use.versions:
        lacking = [version for version in use.versions if name not in known_names(version)]
        where = ", ".join("NCCL %s" % format_version(version) for version in lacking)
        everywhere = len(lacking) == len(use.versions)
    else:
        # Which release reads the file is not known: only what none of the last years reads is certain.
        if variable is not None and (variable.removed is None or variable.removed > (2, 18, 1)):
            return None
        lacking, where, everywhere = [NEWEST], "NCCL %s" % format_version(NEWEST), True
    if not lacking:
        return None
    severity = "major" if everywhere else "minor"
    if variable is not None and variable.removed is not None and min(lacking) >= variable.removed:
        why = "%s is not read any more since NCCL %s, so not by %s." % (name, format_version(variable.removed), where)
        return _Fault("dead_variable", severity, None, why, variable.remark or "Remove the line.")
    why = "%s is not read by %s: the line has no effect there." % (_show(name, 80), where)
    if variable is not None and variable.since is not None and max(lacking) < variable.since:
        why += " The first release that reads it is %s." % format_version(variable.since)
        return _Fault("unknown_variable", severity, None, why, "Remove the line until that release is installed.")
    if not use.libraries and use.versions and max(lacking) > NEWEST and variable is None:
        why = "Whether NCCL %s reads %s is not known: it is newer than the table, which ends with %s." % (
            format_version(max(lacking)),
            _show(name, 80),
            format_version(NEWEST),
        )
        return _Fault(
            "unknown_variable", severity, None, why, "Name the library (busbar_nccl_libraries; --library).", "unknown"
        )
    names = set().union(*(library.names for library in use.libraries)) if use.libraries else set(VARIABLES)
    similar = difflib.get_close_matches(name, sorted(names), 1, 0.8) if len(name) <= 100 else []
    fix = "Write %s, if that was meant." % similar[0] if similar else "Remove the line."
    return _Fault("unknown_variable", severity, similar[0] if similar else None, why, fix)


# -- values ------------------------------------------------------------------------------------------------------


def _value_faults(name: str, value: str, use: _Use, hcas: Sequence[str], place: str) -> Iterator[_Fault]:
    """What is wrong with a value that is already free of blanks, quotes and comments."""
    kind = VARIABLES[name].kind if name in VARIABLES else "unknown"
    wrong: Optional[_Fault] = None
    if name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        yield from _device_list(name, value, use, hcas if name == "NCCL_IB_HCA" else ())
    elif name in ("NCCL_ALGO", "NCCL_PROTO"):
        wrong = _tuning(name, value, use)
    elif kind == "level":
        wrong = _level(name, value, use)
    elif kind == "int":
        wrong = _integer(name, value, use)
    elif kind == "bool":
        old = use.before((2, 30, 3)) or not use.versions
        words = ("0", "1") if old else ("0", "1", "T", "F", "TRUE", "FALSE")
        if value.upper() not in words:
            wrong = _bad(name, "one of " + ", ".join(words), "Other words read as 0 or as the default.")
    elif name == "NCCL_DEBUG":
        wrong = _debug(value, use, place)
    elif name == "NCCL_DEBUG_SUBSYS":
        wrong = _subsystems(value, use)
    elif name == "NCCL_DEBUG_FILE":
        wrong = _debug_file(value)
    elif name in ("NCCL_SOCKET_FAMILY", "NCCL_IB_ADDR_FAMILY"):
        if value not in _FAMILIES:
            wrong = _bad(name, "AF_INET or AF_INET6", "NCCL ignores any other spelling without a word.")
    elif name == "NCCL_IB_ADDR_RANGE":
        if "/" not in value:
            wrong = _bad(name, "ADDRESS/LENGTH", "NCCL ignores a range without its prefix length.")
    elif name == "NCCL_NET_MERGE_LEVEL" and value not in _MERGE_LEVELS:
        wrong = _bad(name, "one of " + ", ".join(_MERGE_LEVELS), "Any other word means LOC: nothing is merged.")
    if wrong is not None:
        yield wrong
        return
    advice = _ADVICE.get((name, value.lower()))
    if name == "NCCL_BUFFSIZE" and _strtoll(value)[0] > _BUFFSIZE:
        advice = ("minor", "Larger buffers cost GPU memory for every channel and peer and rarely gain anything.")
    if name == "NCCL_IB_TIMEOUT" and _strtoll(value)[0] > _LONGEST_USUAL_TIMEOUT:
        advice = (
            "minor",
            "The default is 20 since 2.23. A longer one mends no loss: the job waits minutes before it says so.",
        )
    if name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        why = "%s_CTAS has replaced it since 2.17, and NCCL finds the number for the topology itself." % name[:8]
        advice = ("minor", why)
    if name == "NCCL_DEBUG_SUBSYS" and "ALL" in value.upper().split(","):
        advice = ("minor", "With NCCL_DEBUG=INFO each call of each rank writes a line: for the hunt of one fault only.")
    if name == "NCCL_ALGO" and _excludes_sharp(value):
        why = "The list leaves out CollNet and NVLS: it switches SHARP off, which NCCL_COLLNET_ENABLE=1 switches on."
        advice = ("major", why)
    if advice is not None:
        yield _Fault("advice", advice[0], "no line", advice[1], "Remove the line.")
    if name == "NCCL_IB_GID_INDEX" and value != "-1" and use.since(_DYNAMIC_GID):
        yield _Fault(
            "gid_index",
            "major",
            "no line",
            "NCCL %s finds the RoCE GID of each port itself; a fixed index is wrong where the table differs."
            % use.since(_DYNAMIC_GID),
            "Remove the line.",
        )


def _bad(name: str, want: str, why: str, severity: str = "", fix: str = "") -> _Fault:
    return _Fault("bad_value", severity or _weight(name), want, why, fix or "Write %s." % want)


def _integer(name: str, value: str, use: _Use) -> Optional[_Fault]:
    number, rest = _strtoll(value)
    if rest:
        why = "NCCL reads an integer here and takes this for %d." % number
        return _bad(name, "an integer", why)
    if not -(2**63) <= number < 2**63:
        return _bad(name, "an integer of 64 bits", "NCCL takes its default for a number that does not fit.")
    if re.fullmatch("[+-]?0[0-9]+", value):
        return _bad(name, value.lstrip("0") or "0", "A number that starts with 0 is octal: NCCL reads %d." % number)
    if name in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS"):
        least, most = (64, 512) if name == "NCCL_NTHREADS" else (160, 640)
        if number > 0 and (number % 32 or not least <= number <= most):
            return _bad(name, "a multiple of 32, %d to %d" % (least, most), "NCCL replaces any other number.")
    limits = _RANGES.get(name)
    if limits is None:
        return None
    least, most = limits
    old = use.before((2, 25, 1)) if name in ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS") else None
    if old:
        most = 32
    if least <= number <= most:
        return None
    why = "%d is outside what NCCL accepts here.%s" % (number, _RANGE_NOTES.get(name, ""))
    return _bad(name, "%d to %d" % (least, most), why)


def _socket_threads(values: Mapping[str, str]) -> Iterator[_Fault]:
    threads = _strtoll(values.get("NCCL_SOCKET_NTHREADS", ""))[0]
    sockets = _strtoll(values.get("NCCL_NSOCKS_PERTHREAD", ""))[0]
    if threads * sockets > 64:
        why = "NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD is %d, and NCCL allows 64." % (threads * sockets)
        yield _bad("NCCL_SOCKET_NTHREADS", "a product of at most 64", why, fix="Lower one of the two.")


def _level(name: str, value: str, use: _Use) -> Optional[_Fault]:
    legacy = "0" <= value[0] <= "9"
    level = _LEGACY_LEVELS[min(_strtoll(value)[0], 4)] if legacy else value
    if level not in _LEVELS:
        why = "NCCL compares with exact names in capitals, and ignores anything else without a word."
        want = value.upper() if value.upper() in _LEVELS else "one of " + ", ".join(_LEVELS)
        if value.upper() == "NODE":
            want = "PHB"
            why += " NODE is nvidia-smi's word; NCCL calls that distance PHB."
        return _bad(name, want, why)
    first = _LEVELS[level]
    old = use.before(first) if first else None
    if first and old:
        why = "NCCL knows %s since %s; %s ignores the line." % (level, format_version(first), old)
        return _bad(name, "a level that %s knows" % old, why)
    if name == "NCCL_NET_GDR_LEVEL" and level in ("LOC", "NVL", "NVB"):
        why = "No NIC is that near to a GPU: %s switches GPUDirect RDMA off." % level
        return _Fault("gdr_off", "major", "no line, or PXB", why, "Remove the line.")
    if name == "NCCL_P2P_LEVEL" and level == "LOC":
        why = "It switches off all direct traffic between GPUs, NVLink included."
        return _Fault("advice", "major", "no line", why, "Remove the line.")
    if legacy:
        why = "%s is a legacy number that means %s." % (value, level)
        return _Fault("legacy_level", "minor", level, why, "Remove the line, or write %s if that was meant." % level)
    return None


def _device_list(name: str, value: str, use: _Use, hcas: Sequence[str]) -> Iterator[_Fault]:
    """``[^][=]name[:port],...``: ^ excludes, = makes the names exact; without = a name is a prefix."""
    noun = "RDMA device" if name == "NCCL_IB_HCA" else "interface"
    form = "NAME,NAME with ^ (exclude), = (exact) or ^= before the list"
    exclude = value.startswith("^")
    body = value[1:] if exclude else value
    exact = body.startswith("=")
    body = body[1:] if exact else body
    entries = [entry for entry in body.split(",") if entry]
    if name != "NCCL_IB_HCA" and len(value) == 1:
        yield _bad(name, form, "NCCL ignores a value of one character.", "major")
        return
    if exact and body.startswith("^"):
        yield _bad(name, "^=" + body[1:], "^ has to stand before =; after it, it becomes a part of the first name.")
        return
    if not entries:
        why = "The list is empty, so every %s is %s." % (noun, "excluded" if exclude else "taken")
        yield _bad(name, form, why, "critical" if exclude else "minor")
        return
    if any(c in entry for entry in entries for c in " \t=^"):
        why = "Blanks and operators inside the list become a part of a name, which then matches no %s." % noun
        yield _bad(name, form, why)
        return
    if name == "NCCL_IB_HCA":
        for entry in entries:
            numbers = entry.split(":")[1:]
            if not all(re.fullmatch("[0-9]*", number) for number in numbers):
                yield _bad(name, "NAME:PORT", "What follows a colon is a port number; anything else reads as port 0.")
                return
            if len(numbers) > 1 and use.before(_RAILS_IN_HCA):
                why = "Rail and plane behind the port are known since 2.30.5, not to %s." % use.before(_RAILS_IN_HCA)
                yield _bad(name, "NAME:PORT", why, "major")
                return
        if len(entries) > _MAX_HCAS:
            why = "NCCL reads %d names and drops the other %d." % (_MAX_HCAS, len(entries) - _MAX_HCAS)
            yield _bad(name, "at most %d names" % _MAX_HCAS, why, "major")
            return
    names = [entry.split(":")[0] for entry in entries]
    if hcas:
        yield from _known_devices(body, exclude, exact, hcas)
    elif not exact:
        digits = [device for device in names if device[-1:].isdigit() and device not in _DRIVERS]
        # An excluded docker0 or virbr0 is meant to take its kind along.
        if digits and not (exclude and name != "NCCL_IB_HCA"):
            why = "Without = each name is a prefix: %s also matches %s0, %s1 and so on." % ((_show(digits[0], 40),) * 3)
            severity = "major" if name == "NCCL_IB_HCA" else "minor"
            yield _prefix_fault(exclude, body, why, severity)


def _known_devices(body: str, exclude: bool, exact: bool, hcas: Sequence[str]) -> Iterator[_Fault]:
    """The list of NCCL_IB_HCA against the devices of the host."""
    names = [entry.split(":")[0] for entry in body.split(",") if entry]
    matched = {device: [h for h in hcas if h == device or (not exact and h.startswith(device))] for device in names}
    taken = {hca for found in matched.values() for hca in found}
    missing = [device for device, found in matched.items() if not found]
    have = "The host has %s." % ", ".join(hcas)
    if (exclude and taken == set(hcas)) or (not exclude and not taken):
        why = "The list leaves no RDMA device at all, so jobs run over TCP. " + have
        yield _Fault("unknown_hca", "critical", "devices of the host", why, "Name the devices of the compute rails.")
    elif missing and not exclude:
        why = "%s matches no RDMA device: that rail is not used. %s" % (_show(", ".join(missing)), have)
        yield _Fault("unknown_hca", "major", "devices of the host", why, "Name the devices of the compute rails.")
    # A prefix that is no device itself, such as mlx5, is meant as a prefix.
    extra = {device: [h for h in found if h not in names] for device, found in matched.items() if device in hcas}
    surplus = ["%s also takes in %s" % (device, ", ".join(found)) for device, found in extra.items() if found]
    if surplus:
        why = "Without = each name is a prefix: %s." % "; ".join(surplus)
        yield _prefix_fault(exclude, body, why, "major")


def _prefix_fault(exclude: bool, body: str, why: str, severity: str) -> _Fault:
    return _Fault(
        "prefix_match",
        severity,
        _show(("^=" if exclude else "=") + body),
        why,
        "Put = before the list, so that the names are exact.",
    )


def _tuning(name: str, value: str, use: _Use) -> Optional[_Fault]:
    """NCCL_ALGO and NCCL_PROTO: ``[^]a,b``, and from 2.24 on ``[^]a,b;function:[^]c``."""
    words = _ALGORITHMS if name == "NCCL_ALGO" else _PROTOCOLS
    old = use.before(_PER_FUNCTION)
    if old and (":" in value or ";" in value):
        why = "Lists for single functions are known since 2.24; %s ignores them without a word." % old
        return _bad(name, "a list without functions, or no line", why, "major", "Remove the line.")
    lists: Dict[str, Tuple[bool, List[str]]] = {}
    for index, entry in enumerate(part for part in value.split(";") if part):
        function, colon, rest = entry.partition(":")
        if not colon:
            function, rest = "", entry
        if (index and not colon) or (colon and function.lower() not in _FUNCTIONS) or ":" in rest or not rest:
            why = "%s is no list for one of %s; NCCL ends the job." % (_show(entry, 80), ", ".join(_FUNCTIONS))
            return _bad(name, "LIST;FUNCTION:LIST", why)
        tokens = rest[1:] if rest.startswith("^") else rest
        lists[function.lower()] = (rest.startswith("^"), [token.lower() for token in tokens.split(",") if token])
        for token in lists[function.lower()][1]:
            fault = _token(name, token, words, use)
            if fault is not None:
                return fault
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
                return _bad(name, "no line, or a list with Ring", why, fix="Remove the line.")
    if name == "NCCL_PROTO" and any("ll128" in tokens and not excluding for excluding, tokens in lists.values()):
        why = "Forced LL128 can corrupt data on machines without support; NCCL uses it by itself where it is safe."
        return _Fault("advice", "major", "no line", why, "Remove the line.")
    return None


def _excludes_sharp(value: str) -> bool:
    """Whether no algorithm is left to all-reduce that reduces in a switch."""
    lists = dict(part.rpartition(":")[::2] for part in value.lower().split(";") if part)
    listed = lists.get("allreduce", lists.get("", "^"))
    return not listed.startswith("^") and not {"collnetdirect", "collnetchain", "nvls", "nvlstree"} & {
        *listed.split(",")
    }


def _token(
    name: str, token: str, words: Mapping[str, Tuple[Version, Optional[Version]]], use: _Use
) -> Optional[_Fault]:
    known = words.get(token)
    unknown_to = [v for v in use.versions if known is None or v < known[0] or (known[1] is not None and v >= known[1])]
    if known is not None and not unknown_to:
        return None
    where = "NCCL " + format_version(max(unknown_to)) if unknown_to else "NCCL"
    fatal = not unknown_to or max(unknown_to) >= _PER_FUNCTION
    why = "%s does not know %r and %s." % (
        where,
        _show(token, 40),
        "ends the job" if fatal else "ignores it without a word, so that the line means something else",
    )
    want = "words out of " + ", ".join(words)
    return _bad(name, want, why, "critical" if fatal else "major", "Remove the line, or correct the word.")


def _debug(value: str, use: _Use, place: str) -> Optional[_Fault]:
    word = value.upper()
    if word == "TRACE" and place != "job":
        why = "TRACE is for hunting one fault in one job; here it slows every job."
        return _Fault("wrong_place", "minor", "WARN, or no line", why, "Set it in the job that needs it.")
    if word in _DEBUG_LEVELS or (word == "ATTN" and not use.before((2, 32, 3))):
        return None
    return _bad("NCCL_DEBUG", "one of " + ", ".join(_DEBUG_LEVELS), "With any other word NCCL prints nothing at all.")


def _subsystems(value: str, use: _Use) -> Optional[_Fault]:
    tokens = (value[1:] if value.startswith("^") else value).split(",")
    unknown = []
    for token in tokens:
        first = _SUBSYSTEMS.get(token.upper())
        if token and (first is None or use.before(first)):
            unknown.append(token)
    if not unknown:
        return None
    why = "NCCL ignores the words that it does not know: %s." % _show(", ".join(unknown))
    return _bad("NCCL_DEBUG_SUBSYS", "words out of " + ", ".join(_SUBSYSTEMS), why, "minor")


def _debug_file(value: str) -> Optional[_Fault]:
    tokens = re.findall("%.?", value, re.DOTALL)
    wrong = [token for token in tokens if token not in ("%h", "%p", "%%")]
    if wrong:
        why = "Only %%h (host) and %%p (process) are replaced; %s stays, and all processes write one file."
        why %= _show(", ".join(wrong))
        return _bad("NCCL_DEBUG_FILE", "a name with %h and %p", why)
    if "%p" not in tokens:
        why = "Without %p all processes of a host write, and empty, the same file."
        return _bad("NCCL_DEBUG_FILE", "a name with %h and %p", why, "minor")
    return None
