# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a program of nccl-tests printed (text, or JSON by -J), and whether that proves the run that was wanted.

nccl-tests ends with 0 when it printed its usage, when each MPI process ran alone, and when it tested a smaller size
than asked for: exit code and average prove nothing. Source: nccl-tests src/common.cu and src/util.cu, 2.9 to 2.19.6;
nccl.md 6; field stories F32 to F36. The JSON holds the whole environment, which nothing here keeps or quotes.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import Finding
from ..core.host import ParseError
from ..core.plan import Plan

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "alltoallv",
    "scatter",
    "gather",
    "sendrecv",
    "hypercube",
)
# These have no in-place form to verify: its #wrong is N/A, always.
_UNVERIFIED_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")
# busbw / algbw = times * (n - 1) / n, or 1 for None. The size of alltoallv and hypercube is not what their algbw is of.
_FACTORS = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "alltoall": 1,
    "scatter": 1,
    "gather": 1,
    "broadcast": None,
    "reduce": None,
    "sendrecv": None,
}
# Sizes are rounded down so that each rank's share is a multiple of 16 bytes.
_SHARE_ALIGNMENT = 16
_ERRORS_KEPT = 20
_RECORD_FORMAT = 1


@dataclass(frozen=True)
class Rank:
    """One line of the device list. bdf: None where only the bus number is printed. group: None before 2.13.4."""

    index: int
    host: str
    device: int
    bdf: Optional[str] = None
    group: Optional[int] = None


@dataclass(frozen=True)
class Placement:
    """Figures of one row, out of place or in place. None: not a finite number, or not there.

    wrong: wrong elements; None where nothing was checked.
    error: largest deviation, which releases up to 2.11 print in place of wrong; the limit is in the footer's count.
    of_cpu: the time is the CPU's (-C), and not that which the bandwidths are of.
    """

    time_us: Optional[float]
    algbw: Optional[float]  # GB/s
    busbw: Optional[float]  # GB/s
    wrong: Optional[float]
    error: Optional[float] = None
    of_cpu: bool = False


@dataclass(frozen=True)
class Row:
    """size in bytes. op and root are None where the release has no such column."""

    size: int
    type: str
    op: Optional[str]
    root: Optional[int]
    out_of_place: Optional[Placement]
    in_place: Optional[Placement]


@dataclass(frozen=True)
class Result:
    """rank_count: None where it is unknown; ranks may hold fewer (JSON names one device per process).

    out_of_bounds: failed checks, None while the run has not come to its end. usage: it printed its usage instead.
    reduced_to: bytes, where the GPUs have too little memory for the maximum asked for. simulated: it said so itself.
    """

    collective: Optional[str] = None
    version: Optional[str] = None
    nccl_headers: Optional[str] = None
    nccl_library: Optional[str] = None
    ranks: Tuple[Rank, ...] = ()
    rank_count: Optional[int] = None
    rows: Tuple[Row, ...] = ()
    out_of_bounds: Optional[int] = None
    out_of_bounds_ok: Optional[bool] = None
    average_busbw: Optional[float] = None
    reduced_to: Optional[int] = None
    errors: Tuple[str, ...] = ()
    usage: bool = False
    simulated: bool = False


def to_dict(result: Result) -> Dict[str, Any]:
    """Plain data with the names of the dataclasses."""
    return asdict(result)


def collective_of(program: str) -> Optional[str]:
    """``all_reduce`` for ``/opt/nccl-tests/all_reduce_perf_mpi``; None for a name that is no program of nccl-tests."""
    name = program.rpartition("/")[2].partition("_perf")
    return name[0] if name[1] and name[0] in COLLECTIVES else None


# -- JSON ------------------------------------------------------------------------------------------------------------

_BARE_INF = re.compile(r"(?<=[:,\[])(-?)inf(?=[,\]}])")


def _load(text: str) -> Dict[str, Any]:
    """The JSON object without ``env``. No message quotes the text: it may be the environment."""
    try:
        try:
            data = json.loads(text, strict=False)
        except ValueError:
            data = json.loads(_BARE_INF.sub(r"\1Infinity", text), strict=False)
    except (ValueError, RecursionError) as error:
        place = " (at character %d of %d)" % (error.pos, len(text)) if isinstance(error, json.JSONDecodeError) else ""
        raise ParseError("the JSON of nccl-tests is cut off or damaged%s" % place) from None
    if not isinstance(data, dict):
        raise ParseError("the JSON of nccl-tests is no object")
    data.pop("env", None)
    version = data.get("version")
    if version not in (1, 2, 3):
        raise ParseError("the JSON of nccl-tests has version %s, expected 1, 2 or 3" % _quoted(version))
    return data


def redact(text: str) -> str:
    """The JSON file without the environment. Raises ParseError."""
    return json.dumps(_load(text))


def parse_json(text: str) -> Result:
    """A file that -J wrote. Raises ParseError, also for a file that is cut off."""
    data = _load(text)
    config = _mapping(data.get("config", {}), "config")
    devices = [_mapping(device, "devices") for device in _list(config.get("devices", []), "devices")]
    ranks = tuple(
        Rank(
            _integer(device.get("rank"), "rank"),
            _text(device.get("hostname"), "hostname"),
            _integer(device.get("device"), "device"),
            _bdf(_text(device.get("device_hex", ""), "device_hex")),
            _integer(device.get("group", 0), "group"),
        )
        for device in devices
    )
    # One device per process stands for all of that process.
    count = len(ranks) * _integer(config.get("nthreads", 1), "nthreads") * _integer(config.get("ngpus", 1), "ngpus")
    bounds = _mapping(data.get("out_of_bounds", {}), "out_of_bounds")
    average = _mapping(data.get("average_bus_bandwidth", {}), "average_bus_bandwidth")
    arguments = _list(data.get("args", []), "args")
    return Result(
        collective=collective_of(_text(arguments[0], "args")) if arguments else None,
        nccl_library=_nccl_version(data.get("nccl_version")),
        ranks=ranks,
        rank_count=count or None,
        rows=tuple(_json_row(row) for row in _list(data.get("results", []), "results")),
        out_of_bounds=_integer(bounds["count"], "out_of_bounds count") if "count" in bounds else None,
        out_of_bounds_ok={"true": True, "false": False}.get(str(bounds.get("okay")).lower()),
        average_busbw=_real(average.get("bandwidth")),
        errors=_tidy(str(error) for error in _list(data.get("errors", []), "errors") if error),
        simulated=data.get("simulated") == "true",
    )


def _json_row(value: Any) -> Row:
    row = _mapping(value, "results")
    return Row(
        size=_integer(row.get("size"), "size"),
        type=_text(row.get("type"), "type"),
        op=_text(row.get("redop"), "redop"),
        root=_whole(str(row.get("root", "")).strip()),
        out_of_place=_json_placement(row.get("out_of_place")),
        in_place=_json_placement(row.get("in_place")),
    )


def _json_placement(value: Any) -> Optional[Placement]:
    if value is None:
        return None
    place = _mapping(value, "out_of_place, in_place")
    time = place.get("time", place.get("cpu_time"))
    algbw, busbw, wrong = (_real(place.get(name)) for name in ("alg_bw", "bus_bw", "nwrong"))
    return Placement(_real(time), algbw, busbw, wrong, of_cpu="time" not in place)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ParseError("%s is %s, expected an object" % (what, _quoted(value)))
    return value


def _list(value: Any, what: str) -> List[Any]:
    if not isinstance(value, list):
        raise ParseError("%s is %s, expected a list" % (what, _quoted(value)))
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ParseError("%s is %s, expected text" % (what, _quoted(value)))
    return value


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParseError("%s is %s, expected a whole number" % (what, _quoted(value)))
    return value


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _real(value: Any) -> Optional[float]:
    """None for null, for "nan" and for everything that is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


# -- text ------------------------------------------------------------------------------------------------------------

_TAG = re.compile(r"^[^#\n]*?<std(?:out|err|diag)>: ?|^\d+: ")
_HOST = r"[\w.-]{1,255}"
_LOG_TAIL = r":\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL (?:INFO|WARN|TRACE|ABORT|ERROR|CALL)\b.*"
_LOG_TIME = r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.]+\] ?)?"
_RANK = re.compile(
    r"^#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d{1,9})\s+\[([^\]]*)\]"
)
_VERSION = re.compile(r"^# nccl-tests version (\d[\w.+-]*)(?:.* nccl-headers=(\d{1,9}) nccl-library=(\d{1,9}))?")
_STARTING = re.compile(r"^# Collective test (?:starting|concluded): (\S+)")
_REDUCED = re.compile(r"^# Reducing maxBytes to (\d{1,20}) ")
_BOUNDS = re.compile(r"^# Out of bounds values\s*: (\d{1,9}) (OK|FAILED)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*: (\S+)")
_FAILURE = re.compile(r"Test (?:NCCL failure|CUDA failure|failure|timeout)\b")
_ERROR = re.compile(
    _FAILURE.pattern + r"|^# error: .|^Invalid number of GPUs|^invalid |^maxBytes \(-e\) must|^# skipping json output"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d{1,4})?")
_WHOLE = re.compile(r"-?\d{1,20}")
# What the cells of a row hold beside numbers: what was not checked, what is none, and the two words of a timestamp.
_CELL = re.compile(_NUMBER.pattern + r"|N/A|-?nan|-?inf|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d")
_FIGURES = ("time", "cputime", "algbw", "busbw", "error", "#wrong")


def parse_text(text: str) -> Result:
    """What a program of nccl-tests printed, with whatever a launcher and NCCL printed between. Raises ParseError.

    A row that got mixed up with another one is left out: then a size is missing.
    """
    lines = without_log(text).split("\n")
    ranks = tuple(rank for rank in map(_rank, lines) if rank is not None)
    result = Result(ranks=ranks, rank_count=len(ranks) or None)
    table = _Table()
    errors: List[str] = []
    known = bool(ranks)
    for line in lines:
        if not line.startswith("#"):
            table.take(line.split())
            if line.startswith("USAGE: "):
                result = replace(result, usage=True)
        else:
            known |= table.header(line[1:].split())
            result = _comment(line, result)
        if _ERROR.search(line):
            errors.append(line)
    if not known and not errors and result == Result():
        raise ParseError("no output of nccl-tests: %s" % _quoted(text[:60]))
    return replace(result, rows=tuple(table.rows), errors=_tidy(errors))


def without_log(text: str) -> str:
    """The text without what NCCL itself and a launcher's labels put into it.

    NCCL's lines break into a row after any of its columns, and without a blank. The hosts of the device list tell
    where the row ends and the line begins; for other hosts, at least after the usual root, -1.
    """
    lines = [_TAG.sub("", line, count=1) for line in text.splitlines()]
    hosts = sorted({rank.host for rank in map(_rank, lines) if rank is not None}, key=len, reverse=True)
    patterns = [r"(?:(?<![\w.-])(?!-)|(?<=-1))" + _HOST]
    if hosts:
        patterns.insert(0, "(?:%s)" % "|".join(map(re.escape, hosts)))
    logs = [re.compile(_LOG_TIME + pattern + _LOG_TAIL) for pattern in patterns]
    left = []
    for line in lines:
        if "NCCL " in line:
            for log in logs:
                line = log.sub("", line)
        if line.strip():
            left.append(line)
    return "\n".join(left)


def _rank(line: str) -> Optional[Rank]:
    match = _RANK.match(line)
    if match is None:
        return None
    index, group, host, device, place = match.groups()
    return Rank(int(index), host, int(device), _bdf(place), int(group) if group else None)


def _bdf(text: str) -> Optional[str]:
    """nccl-tests prints domain, bus and device; a GPU is function 0 of its device."""
    match = re.match(r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})$", text.lower())
    return "%s:%s:%s.0" % match.groups() if match else None


def _comment(line: str, result: Result) -> Result:
    """The result with what one line of the head or foot says."""
    match = _VERSION.match(line)
    if match:
        return replace(
            result,
            version=match.group(1),
            nccl_headers=_nccl_version(_whole(match.group(2))),
            nccl_library=_nccl_version(_whole(match.group(3))),
        )
    if line.startswith("# simulated"):
        return replace(result, simulated=True)
    match = _STARTING.match(line)
    if match:
        return replace(result, collective=collective_of(match.group(1)) or result.collective)
    match = _REDUCED.match(line)
    if match:
        return replace(result, reduced_to=int(match.group(1)))
    match = _BOUNDS.match(line)
    if match:
        # More than one foot: programs that ran side by side. One failure is enough.
        count = int(match.group(1)) + (result.out_of_bounds or 0)
        good = match.group(2) == "OK" and result.out_of_bounds_ok is not False
        return replace(result, out_of_bounds=count, out_of_bounds_ok=good)
    match = _AVERAGE.match(line)
    if match:
        return replace(result, average_busbw=_figure(match.group(1)))
    return result


class _Table:
    """Rows, put together from the pieces that other output left of them. Columns are known by the header alone."""

    def __init__(self) -> None:
        self.columns: List[str] = []
        self.trailing = 0
        self.pending: List[str] = []
        self.rows: List[Row] = []

    def header(self, words: List[str]) -> bool:
        """True for a line that names the columns."""
        if words[:3] != ["size", "count", "type"]:
            return False
        # A timestamp is two words, a date and a time of day.
        self.trailing = 2 * (words[-1] == "timestamp")
        self.columns = words[:-1] if self.trailing else words
        self.pending = []
        return True

    def take(self, words: List[str]) -> None:
        if len(words) >= 3 and all(map(_WHOLE.fullmatch, words[:2])) and not _CELL.fullmatch(words[2]):
            self.pending = []
        elif not self.pending or not all(map(_CELL.fullmatch, words)):
            return
        self.pending += words
        columns = self._columns_of_row()
        if len(self.pending) >= len(columns) + self.trailing:
            row = self._row(columns)
            if row is not None:
                self.rows.append(row)
            self.pending = []

    def _columns_of_row(self) -> List[str]:
        """alltoall up to 2.8 names an operation in the header, and has none in its rows: a number stands there."""
        at = self.columns.index("redop") if "redop" in self.columns else len(self.pending)
        if at < len(self.pending) and _CELL.fullmatch(self.pending[at]):
            return [name for name in self.columns if name != "redop"]
        return self.columns

    def _row(self, columns: List[str]) -> Optional[Row]:
        if not columns or len(self.pending) != len(columns) + self.trailing:
            return None
        first: Dict[str, str] = {}
        second: Dict[str, str] = {}
        for name, word in zip(columns, self.pending):
            (second if name in first else first)[name] = word
        size = _whole(first["size"])
        if size is None or size < 0:
            return None
        return Row(
            size=size,
            type=first["type"],
            op=first.get("redop"),
            root=_whole(first.get("root")),
            out_of_place=_placement(first),
            in_place=_placement(second),
        )


def _placement(words: Mapping[str, str]) -> Optional[Placement]:
    if not any(name in words for name in _FIGURES):
        return None
    return Placement(
        time_us=_figure(words.get("time", words.get("cputime", ""))),
        algbw=_figure(words.get("algbw", "")),
        busbw=_figure(words.get("busbw", "")),
        wrong=_figure(words.get("#wrong", "")),
        error=_figure(words.get("error", "")),
        of_cpu="time" not in words,
    )


def _figure(word: str) -> Optional[float]:
    return _real(float(word)) if _NUMBER.fullmatch(word) else None


def _whole(word: Optional[str]) -> Optional[int]:
    return int(word) if word is not None and _WHOLE.fullmatch(word) else None


def _nccl_version(code: Optional[int]) -> Optional[str]:
    """2.28.9 for 22809, 2.8.4 for 2804: the code got a digit with 2.9."""
    if not isinstance(code, int) or isinstance(code, bool) or code < 1000:
        return None
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)


def _tidy(lines: Iterable[str]) -> Tuple[str, ...]:
    """Each message once, printable, and not without end."""
    tidied = ("".join(c if c.isprintable() else "?" for c in line.strip())[:300] for line in lines)
    return tuple(dict.fromkeys(line for line in tidied if line))[:_ERRORS_KEPT]


def combine(figures: Result, text: Result) -> Result:
    """JSON for the figures, text for what JSON leaves out: every rank, the release, a maximum that was reduced."""
    return replace(
        figures,
        collective=figures.collective or text.collective,
        version=text.version,
        nccl_headers=text.nccl_headers,
        nccl_library=figures.nccl_library or text.nccl_library,
        ranks=text.ranks or figures.ranks,
        rank_count=text.rank_count or figures.rank_count,
        reduced_to=text.reduced_to,
        errors=_tidy(text.errors + figures.errors),
        usage=text.usage,
        simulated=figures.simulated or text.simulated,
    )


# -- one run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run of a program, all that is kept of it.

    ending: "" it ended by itself, "timeout", "overflow", or "not started: REASON".   finished: seconds since 1970.
    json: the redacted file, None where there is none.   stdout: without NCCL's own lines.
    """

    command: Tuple[str, ...]
    rc: Optional[int]
    ending: str
    limit: float
    finished: float
    left_behind: Tuple[int, ...] = ()
    json: Optional[str] = None
    stdout: str = ""
    stderr: str = ""


def record(run: Run) -> str:
    """The run as a file, for a later judgement."""
    return json.dumps({"format": _RECORD_FORMAT, **asdict(run)}, indent=1) + "\n"


def parse_record(text: str) -> Run:
    """The run that ``record`` wrote. Raises ParseError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("no record of a run: %s" % error) from None
    data = _mapping(data, "the record")
    if data.get("format") != _RECORD_FORMAT:
        raise ParseError("the record has format %s, expected %d" % (_quoted(data.get("format")), _RECORD_FORMAT))
    names = {field.name for field in fields(Run)}
    if set(data) - {"format"} != names:
        raise ParseError("the record has other keys than expected: %s" % _quoted(sorted(set(data) ^ names)))
    limit, finished = _real(data["limit"]), _real(data["finished"])
    if limit is None or finished is None:
        raise ParseError("the record has no limit or no time")
    return Run(
        command=tuple(_text(word, "command") for word in _list(data["command"], "command")),
        rc=None if data["rc"] is None else _integer(data["rc"], "rc"),
        ending=_text(data["ending"], "ending"),
        limit=limit,
        finished=finished,
        left_behind=tuple(_integer(pid, "left_behind") for pid in _list(data["left_behind"], "left_behind")),
        json=None if data["json"] is None else _text(data["json"], "json"),
        stdout=_text(data["stdout"], "stdout"),
        stderr=_text(data["stderr"], "stderr"),
    )


def read(run: Run) -> Tuple[Optional[Result], str]:
    """What the run measured; None, and why, where its output says nothing."""
    text: Optional[Result] = None
    problem = ""
    try:
        text = parse_text(run.stdout + "\n" + run.stderr)
    except ParseError as error:
        problem = str(error)
    if run.json is None:
        return text, problem
    try:
        figures = parse_json(run.json)
    except ParseError as error:
        # The text says the same, in fewer digits.
        return text, problem or str(error)
    return combine(figures, text or Result()), ""


# -- judgement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """sizes: bytes, ascending. hosts: names, of which all before the first dot counts. bar_busbw: GB/s, at the largest
    size. max_age_days: for a stored result. command: what a stored result must come from."""

    collective: str
    ranks: int
    hosts: Tuple[str, ...]
    sizes: Tuple[int, ...]
    check: bool = True
    bar_busbw: Optional[float] = None
    max_age_days: Optional[float] = None
    command: Tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What is judged, under the same name every night: on one host, its name is none of it."""
        subject = "%s %d ranks %s" % (self.collective, self.ranks, size_text(self.sizes[-1]))
        if len(self.hosts) == 1:
            return subject
        names = ",".join(_short_names(self.hosts)) if len(self.hosts) <= 4 else "%d hosts" % len(self.hosts)
        return "%s %s" % (subject, names)


def size_text(size: int) -> str:
    """Exact and short: ``8G`` and ``512K`` in powers of 1024, ``14GB`` and ``1.2MB`` in powers of 1000, else bytes."""
    texts = [str(size)]
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size % factor == 0:
            texts.append("%d%s" % (size // factor, unit))
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if size >= factor and size % (factor // 100) == 0:
            texts.append(("%.2f" % (size / factor)).rstrip("0").rstrip(".") + unit)
    return min(texts, key=len)


def parse_size(text: str) -> int:
    """``8G`` in bytes, as nccl-tests reads it: K, M and G are powers of 1024. Raises ParseError."""
    match = re.match(r"^(\d{1,15})([KMG]?)$", text.strip().upper())
    size = int(match.group(1)) * 1024 ** " KMG".index(match.group(2) or " ") if match else 0
    if not 0 < size < 2**63:
        raise ParseError("size %s, expected bytes such as 8, 64K, 1M or 8G" % _quoted(text))
    return size


def sizes(minimum: int, maximum: int, factor: int) -> Tuple[int, ...]:
    """The sizes that -b, -e and -f make nccl-tests run. Raises ParseError."""
    if minimum > maximum:
        raise ParseError("the smallest size, %d, is larger than the largest, %d" % (minimum, maximum))
    if factor < 2:
        raise ParseError("the step factor is %d, expected 2 or more" % factor)
    found = []
    while minimum <= maximum:
        found.append(minimum)
        minimum *= factor
    return tuple(found)


@dataclass(frozen=True)
class _Rule:
    severity: str
    why: str
    fix: str


_AGAIN = "then run the benchmark again"
_RULES = {
    "nccl_perf.idle": _Rule(
        "minor",
        "a benchmark beside a job slows both, and its figure says nothing",
        "drain the node or wait for the job, then run the benchmark again",
    ),
    "nccl_perf.ran": _Rule(
        "critical",
        "a benchmark that hangs or fails is a job that hangs or fails",
        "read stdout and stderr in the run's directory, run the command by hand with NCCL_DEBUG=INFO; " + _AGAIN,
    ),
    "nccl_perf.fresh": _Rule(
        "major",
        "an old result says nothing about the cluster as it is now",
        "run the benchmark (not in check mode)",
    ),
    "nccl_perf.sizes": _Rule(
        "major",
        "nccl-tests silently reduces the largest size where GPU memory is short; small sizes prove no bandwidth",
        "free the GPUs' memory or ask for a smaller largest size; " + _AGAIN,
    ),
    "nccl_perf.ranks": _Rule(
        "critical",
        "without MPI each process runs alone, ends with 0, and the fabric was never used",
        "build nccl-tests with MPI=1, check the launcher's host list and processes per host; " + _AGAIN,
    ),
    "nccl_perf.correct": _Rule(
        "critical",
        "wrong or unchecked sums spoil a training run without a word",
        "find the node by halving the host list, check its GPUs (Xid, ECC) and NVLinks; " + _AGAIN,
    ),
    "nccl_perf.nonzero": _Rule(
        "critical",
        "a bus bandwidth of 0 is what a single rank prints: nothing was exchanged",
        "build nccl-tests with MPI=1 and start it through the launcher; " + _AGAIN,
    ),
    "nccl_perf.busbw": _Rule(
        "major",
        "below the bar something on the path is slow: a link, a NIC, GPUDirect, or a transport that fell back",
        "run all of site.yml for the host, read in NCCL_DEBUG=INFO what NCCL goes via (P2P, SHM or NET) and which "
        "variables it took, look for slowed clocks in nvidia-smi -q -d PERFORMANCE, between nodes compare pairs; "
        + _AGAIN,
    ),
}


def _finding(
    check: str,
    wanted: Wanted,
    source: str,
    state: str,
    want: str,
    have: Optional[str],
    because: Optional[Finding] = None,
    fix: str = "",
) -> Finding:
    rule = _RULES[check]
    return Finding(
        check=check,
        subject=wanted.subject,
        state=state,
        severity=rule.severity,
        want=want,
        have=have,
        source=source,
        why=rule.why,
        fix="" if state == "ok" else fix or rule.fix,
        because=because.id if because is not None and not because.ok and state != "ok" else None,
    )


def not_run(wanted: Wanted, reason: str) -> Plan:
    """The judgement of no run at all."""
    source = " ".join(wanted.command) or wanted.collective
    fix = _RULES["nccl_perf.fresh"].fix
    return Plan((_finding("nccl_perf.ran", wanted, source, "unknown", _WANT_RAN, reason, fix=fix),))


_WANT_RAN = "exit code 0 and a complete result"


def idle(wanted: Wanted, reasons: Sequence[str], problems: Sequence[object] = ()) -> Plan:
    """Whether nobody uses the node: only then may a run begin, and what cannot be told is no idle node."""
    said = list(reasons) or ["not known to be idle: %s" % problem for problem in problems]
    have = "; ".join(said[:3]) + (" and %d more" % (len(said) - 3) if len(said) > 3 else "")
    state = "unknown" if said else "ok"
    have = ("busy: " + have if reasons else have) if said else "idle"
    return Plan((_finding("nccl_perf.idle", wanted, "nvidia-smi", state, "nobody uses the GPUs", have),))


def judge(result: Optional[Result], wanted: Wanted, run: Run, now: float, problem: str = "") -> Plan:
    """Whether ``run``, whose output reads as ``result``, is the run that was wanted, and good. It changes nothing.

    now: seconds since 1970.   problem: why there is no result. What is missing is unknown, never ok.
    """
    have = result or Result()
    source = ("simulated: " if have.simulated else "") + (" ".join(run.command) or wanted.collective)
    ran = _ran(have, wanted, run, source, problem)
    ranks = _ranks(have, wanted, source, ran)
    findings = [ran, _fresh(wanted, run, now, source), _sizes(have, wanted, source, ran), ranks]
    if wanted.check:
        correct = _correct(have, wanted, source, ran)
        findings.append(correct)
        if correct.state == "drift" and run.rc in (1, 6, 7) and not run.left_behind:
            # Wrong values are what this exit code reports.
            findings[0] = replace(ran, because=correct.id)
    if wanted.ranks > 1:
        findings.append(_nonzero(have, wanted, source, ranks if ran.ok else ran))
    if wanted.bar_busbw is not None:
        findings.append(_busbw(have, wanted, source, wanted.bar_busbw, ran))
    return Plan(tuple(findings))


def exit_meaning(rc: int, version: Optional[str]) -> str:
    """What nccl-tests means by an exit code; the codes moved with 2.17.3 and 2.17.7."""
    release = tuple(int(part) for part in re.findall(r"\d{1,4}", version or "")[:3])
    if rc < 0 or 128 < rc < 255:
        return "ended by signal %d" % (-rc if rc < 0 else rc - 128)
    if rc == 1 and release and release >= (2, 17, 3):
        return "internal error"
    if rc == 6 and release:
        return "invalid usage" if release >= (2, 17, 7) else "wrong values, or below NCCL_TESTS_MIN_BW"
    return {
        1: "wrong values, below NCCL_TESTS_MIN_BW, or an internal error",
        2: "CUDA error",
        3: "NCCL error",
        4: "timeout of -T",
        5: "not implemented, or fewer GPUs than asked for",
        6: "invalid usage, or wrong values",
        7: "wrong values, or below NCCL_TESTS_MIN_BW",
        126: "could not be executed",
        127: "program or shared library not found",
        255: "invalid size, or the launcher failed",
    }.get(rc, "not a code of nccl-tests")


def _ran(have: Result, wanted: Wanted, run: Run, source: str, problem: str) -> Finding:
    state, text, fix = "drift", "", ""
    failures = [error for error in have.errors if _FAILURE.search(error)]
    # The lines of the stack come last and say only where.
    said = [error for error in have.errors if not error.startswith("..")] or failures
    said = said or list(_tidy(run.stderr.splitlines()[-1:]))
    if run.ending == "timeout":
        text = "no end within %g s; it was ended" % run.limit
        fix = (
            "run it by hand with NCCL_DEBUG=INFO: before the table the hosts cannot reach each other"
            " (NCCL_SOCKET_IFNAME, firewall), within it a rank or a link hangs; " + _AGAIN
        )
    elif run.ending == "overflow":
        text = "it printed without end and was ended"
    elif run.ending:
        state, text = "unknown", run.ending
        fix = "build nccl-tests (role nccl_tests) and check the path and the launcher; " + _AGAIN
    elif have.usage:
        text = "it printed its usage (exit code %s): this release does not know one of the options" % run.rc
        fix = "build a newer nccl-tests, or leave the option out; " + _AGAIN
    elif run.rc is None:
        state, text = "unknown", "no exit code is known"
    elif run.rc != 0:
        text = "exit code %d (%s)" % (run.rc, exit_meaning(run.rc, have.version))
    elif failures:
        text = "exit code 0 in spite of a failure"
    elif have.collective is not None and have.collective != wanted.collective:
        text = "it ran %s, not %s" % (have.collective, wanted.collective)
    elif have.out_of_bounds is None or not have.rows:
        state, text = "unknown", "exit code 0, but no complete result" + (": " + problem if problem else "")
    else:
        state, text, said = "ok", "exit code 0", []
    if said and not have.usage:
        text += ": " + said[0]
    if run.left_behind:
        state = "drift"
        text += "; processes %s do not die" % ", ".join(map(str, run.left_behind))
        fix = "a process in the driver's hands keeps its GPU: look for Xid errors in dmesg, drain and reboot the node"
    return _finding("nccl_perf.ran", wanted, source, state, _WANT_RAN, text, fix=fix)


def _fresh(wanted: Wanted, run: Run, now: float, source: str) -> Finding:
    want = "a result of this command" if wanted.max_age_days is None else "at most %g days old" % wanted.max_age_days
    days = (now - run.finished) / 86400
    state = "ok"
    have = "measured now" if wanted.max_age_days is None else "%.1f days old" % days
    if wanted.command and run.command != wanted.command:
        state, have = "unknown", "a result of another command: %s" % " ".join(run.command)
    # An hour for clocks that differ between the node and whoever stored the result.
    elif days < -1 / 24:
        state, have = "unknown", "a result of %.1f days in the future" % -days
    elif wanted.max_age_days is not None and days > wanted.max_age_days:
        state = "unknown"
    return _finding("nccl_perf.fresh", wanted, source, state, want, have)


def _sizes(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    want = "%d sizes from %s to %s" % (len(wanted.sizes), size_text(wanted.sizes[0]), size_text(wanted.sizes[-1]))
    if have.reduced_to is not None and have.reduced_to < wanted.sizes[-1]:
        text = "the largest size was reduced to %d bytes for want of GPU memory" % have.reduced_to
        return _finding("nccl_perf.sizes", wanted, source, "drift", want, text)
    if not have.rows:
        return _finding("nccl_perf.sizes", wanted, source, "unknown", want, None, because=ran)
    good = [row for row in have.rows if _agrees(row, have, wanted)]
    missing = sorted(
        {size for table in _tables(have.rows) for size in _missing([r for r in table if r in good], wanted)}
    )
    text = "missing: %s" % ", ".join(map(size_text, missing)) if missing else "all %d" % len(wanted.sizes)
    bad = [row for row in have.rows if row not in good]
    if bad:
        text += "; does not count: the row of %s, whose time, algbw and busbw do not agree" % size_text(bad[0].size)
    return _finding("nccl_perf.sizes", wanted, source, "drift" if missing else "ok", want, text, because=ran)


def _tables(rows: Sequence[Row]) -> List[List[Row]]:
    """One table per type, operation and root."""
    found: Dict[Tuple[str, Optional[str], Optional[int]], List[Row]] = {}
    for row in rows:
        found.setdefault((row.type, row.op, row.root), []).append(row)
    return list(found.values())


def _missing(table: Sequence[Row], wanted: Wanted) -> List[int]:
    """The sizes that have no row of their own, in the order of the run."""
    if wanted.collective == "alltoallv":
        return list(wanted.sizes[len(table) :])
    rows = iter(table)
    missing = []
    for size in wanted.sizes:
        if not any(_is_size(row, size, wanted.ranks) for row in rows):
            missing.append(size)
            rows = iter([row for row in table if row.size > size])
    return missing


def _is_size(row: Row, size: int, ranks: int) -> bool:
    return size - _SHARE_ALIGNMENT * ranks < row.size <= size


def _agrees(row: Row, have: Result, wanted: Wanted) -> bool:
    """Whether the figures of a row are of one measurement, within their rounding: a mixed up row proves nothing."""
    if wanted.collective not in _FACTORS:
        return True
    times = _FACTORS[wanted.collective]
    # Processes that ran alone, or in groups, had fewer ranks than the launcher started.
    groups = [rank.group for rank in have.ranks]
    counts = {
        1,
        wanted.ranks,
        have.rank_count or 1,
        *(rank.index + 1 for rank in have.ranks[-1:]),
        *map(groups.count, groups),
    }
    factors = [1.0 if times is None else times * (n - 1) / n for n in counts]
    return all(_is_one_measurement(place, row.size, factors) for place in _places(row))


def _is_one_measurement(place: Placement, size: int, factors: Sequence[float]) -> bool:
    if place.algbw is None:
        return True
    algbw = _rounded(place.algbw)
    if place.time_us is not None and not place.of_cpu:
        shortest, longest = _rounded(place.time_us)
        most = size / shortest / 1e3 if shortest > 0 else math.inf
        if most < algbw[0] or size / longest / 1e3 > algbw[1]:
            return False
    if place.busbw is None:
        return True
    busbw = _rounded(place.busbw)
    return any(algbw[0] * factor <= busbw[1] and busbw[0] <= algbw[1] * factor for factor in factors)


def _rounded(figure: float) -> Tuple[float, float]:
    """Between what and what lies a figure that was printed so: with two decimals to none, or as 1.2e+07."""
    steps = ((100.0, 0.005), (1000.0, 0.05), (1e6, 0.5))
    half = next((half for limit, half in steps if figure < limit), figure * 0.05)
    # And a little for what was computed in single steps.
    return figure * 0.9999 - half, figure * 1.0001 + half


def _ranks(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    hosts = _short_names(wanted.hosts)
    want = "%d ranks on %s" % (wanted.ranks, ", ".join(hosts))
    if have.rank_count is None:
        return _finding("nccl_perf.ranks", wanted, source, "unknown", want, None, because=ran)
    there = _short_names(rank.host for rank in have.ranks)
    text = "%d ranks on %s" % (have.rank_count, ", ".join(there))
    indices = [rank.index for rank in have.ranks]
    good = have.rank_count == wanted.ranks and there == hosts
    if len(set(indices)) < len(indices):
        good = False
        text += ", but rank %d is there %d times: processes ran alone" % (indices[0], indices.count(indices[0]))
    groups = {rank.group for rank in have.ranks}
    if len(groups) > 1:
        good = False
        text += ", split into %d groups (NCCL_TESTS_SPLIT)" % len(groups)
    return _finding("nccl_perf.ranks", wanted, source, "ok" if good else "drift", want, text)


def _short_names(hosts: Iterable[str]) -> List[str]:
    """nccl-tests cuts a host's name at its first dot."""
    return sorted({host.partition(".")[0].lower() for host in hosts})


def _correct(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    want = "0 wrong values in every row"
    wrong = [row for row in have.rows for place in _places(row) if place.wrong]
    if wrong or have.out_of_bounds_ok is False:
        text = "%d failed checks" % (have.out_of_bounds or 0)
        if wrong:
            text += ", first at %s" % size_text(wrong[0].size)
        return _finding("nccl_perf.correct", wanted, source, "drift", want, text)
    if not have.rows or have.out_of_bounds_ok is None:
        return _finding("nccl_perf.correct", wanted, source, "unknown", want, None, because=ran)
    unchecked = [row for row in have.rows if not _is_checked(row, wanted.collective)]
    if unchecked:
        text = "not checked: %d of %d rows" % (len(unchecked), len(have.rows))
        return _finding("nccl_perf.correct", wanted, source, "unknown", want, text, because=ran)
    return _finding("nccl_perf.correct", wanted, source, "ok", want, "0 wrong values")


def _places(row: Row) -> List[Placement]:
    return [place for place in (row.out_of_place, row.in_place) if place is not None]


def _is_checked(row: Row, collective: str) -> bool:
    places = [row.out_of_place] if collective in _UNVERIFIED_IN_PLACE else [row.out_of_place, row.in_place]
    return all(place is not None and (place.wrong is not None or place.error is not None) for place in places)


def _nonzero(have: Result, wanted: Wanted, source: str, cause: Finding) -> Finding:
    want = "a bus bandwidth above 0"
    lowest = reached(have, wanted)
    if lowest is None:
        return _finding("nccl_perf.nonzero", wanted, source, "unknown", want, None, because=cause)
    state = "ok" if lowest > 0 else "drift"
    return _finding("nccl_perf.nonzero", wanted, source, state, want, "%g GB/s" % float(lowest), because=cause)


def _busbw(have: Result, wanted: Wanted, source: str, bar: float, ran: Finding) -> Finding:
    want = "at least %g GB/s at %s, out of place" % (bar, size_text(wanted.sizes[-1]))
    lowest = reached(have, wanted)
    if lowest is None:
        return _finding("nccl_perf.busbw", wanted, source, "unknown", want, None, because=ran)
    text = "%.2f GB/s%s" % (float(lowest), " (simulated)" if have.simulated else "")
    return _finding("nccl_perf.busbw", wanted, source, "ok" if lowest >= bar else "drift", want, text)


def reached(have: Result, wanted: Wanted) -> Optional[float]:
    """Out of place, at the largest size that was asked for; of several tables the slowest. None: not there."""
    found: List[float] = []
    for whole in _tables(have.rows):
        table = [row for row in whole if _agrees(row, have, wanted)]
        # The traffic of alltoallv, and so its sizes, depend on a matrix: its rows are known by their order alone.
        in_order = wanted.collective == "alltoallv"
        rows = table[-1:] if in_order else [row for row in table if _is_size(row, wanted.sizes[-1], wanted.ranks)]
        values = [row.out_of_place.busbw if row.out_of_place is not None else None for row in rows]
        if not values or None in values:
            return None
        found += [value for value in values if value is not None]
    return min(found) if found else None
