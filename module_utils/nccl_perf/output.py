# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the output of an nccl-tests program. Source: nccl-tests src/common.cu and src/util.cu, 2.12 to 2.19.6."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.host import ParseError
from ..nccl_tests.codec import quoted

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "scatter", "gather", "sendrecv"),
)
_ERRORS_KEPT = 20


@dataclass(frozen=True)
class Rank:
    """One line of the device list. group: None before 2.13.4."""

    index: int
    host: str
    group: Optional[int] = None


@dataclass(frozen=True)
class Placement:
    """Figures of one row, out of place or in place. A figure is None where it is absent or no finite number.

    wrong: wrong elements; None where nothing was checked, as by releases before 2.12.
    """

    time_us: Optional[float]
    algbw: Optional[float]  # GB/s
    busbw: Optional[float]  # GB/s
    wrong: Optional[float]


@dataclass(frozen=True)
class Row:
    """The figures of one size, in bytes. op and root are None where the release has no such column."""

    size: int
    type: str
    op: Optional[str]
    root: Optional[int]
    out_of_place: Optional[Placement]
    in_place: Optional[Placement]


@dataclass(frozen=True)
class Result:
    """Output of a program; what it did not print is None or empty.

    version: of nccl-tests.   nccl_library: the NCCL that it ran with.
    out_of_bounds: failed checks, None if the program did not reach its end.
    reduced_to: bytes, if the GPUs have too little memory for the requested maximum.
    usage: the program printed its usage instead of a result.   simulated: the program reports that it simulates.
    """

    collective: Optional[str] = None
    version: Optional[str] = None
    nccl_library: Optional[str] = None
    ranks: Tuple[Rank, ...] = ()
    rows: Tuple[Row, ...] = ()
    out_of_bounds: Optional[int] = None
    out_of_bounds_ok: Optional[bool] = None
    reduced_to: Optional[int] = None
    errors: Tuple[str, ...] = ()
    usage: bool = False
    simulated: bool = False


def collective_of(program: str) -> Optional[str]:
    """Return ``all_reduce`` for ``/opt/nccl-tests/all_reduce_perf_mpi``; None for other programs."""
    name = program.rpartition("/")[2].partition("_perf")
    return name[0] if name[1] and name[0] in COLLECTIVES else None


_TAG = re.compile(r"^[^#\n]*?<std(?:out|err|diag)>: ?|^ *\d+: ")
_HOST = r"[\w.-]{1,255}"
_LOG_TAIL = r":\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL (?:INFO|WARN|TRACE|ABORT|ERROR|CALL)\b.*"
_LOG_TIME = r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.]+\] ?)?"
_RANK = re.compile(r"^#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d{1,9}\s+\[")
_VERSION = re.compile(r"^# nccl-tests version (\d[\w.+-]*)(?:.* nccl-library=(\d{1,9}))?")
_STARTING = re.compile(r"^# Collective test (?:starting|concluded): (\S+)")
_REDUCED = re.compile(r"^# Reducing maxBytes to (\d{1,20}) ")
_BOUNDS = re.compile(r"^# Out of bounds values\s*: (\d{1,9}) (OK|FAILED)")
FAILURE = re.compile(r"Test (?:NCCL failure|CUDA failure|failure|timeout)\b")
_ERROR = re.compile(FAILURE.pattern + r"|^# error: .|^Invalid number of GPUs|^invalid |^maxBytes \(-e\) must")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d{1,4})?")
_WHOLE = re.compile(r"-?\d{1,20}")
# What the cells of a row hold beside numbers: what was not checked, and what is none.
_CELL = re.compile(_NUMBER.pattern + r"|N/A|-?nan|-?inf")


def parse_text(text: str) -> Result:
    """Parse the text of a program, with lines of a launcher and NCCL in between. Raises ParseError.

    A row that is mixed up with another one is left out: then a size is missing.
    """
    lines = without_log(text).split("\n")
    ranks = tuple(rank for rank in map(_rank, lines) if rank is not None)
    result = Result(ranks=ranks)
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
        raise ParseError("no output of nccl-tests: %s" % quoted(text[:60]))
    return replace(result, rows=tuple(table.rows), errors=tidy(errors))


def without_log(text: str) -> str:
    """Remove NCCL's lines and a launcher's labels from the text.

    NCCL's lines break into a row after any of its columns, and without a blank. The hosts of the device list show
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


def programs(text: str) -> int:
    """Return how many programs printed a table into a text of ``without_log``; 0 for none."""
    lines = text.split("\n")
    marks = ("# Collective test starting: ", "# nThread ", "# nccl-tests version ", "# Out of bounds values")
    table = _Table()
    counted = [sum(line.startswith(mark) for line in lines) for mark in marks]
    counted.append(sum(line.startswith("#") and table.header(line[1:].split()) for line in lines))
    for line in lines:
        if not line.startswith("#"):
            table.take(line.split())
    # A row that is there twice is of two tables, whatever is left of their heads.
    keys = [(row.size, row.type, row.op, row.root) for row in table.rows]
    return max([*counted, *map(keys.count, set(keys))])


def _rank(line: str) -> Optional[Rank]:
    match = _RANK.match(line)
    if match is None:
        return None
    index, group, host = match.groups()
    return Rank(int(index), host, int(group) if group else None)


def _comment(line: str, result: Result) -> Result:
    """Return the result with one line of the head or foot added."""
    match = _VERSION.match(line)
    if match:
        return replace(
            result,
            version=match.group(1),
            nccl_library=_nccl_version(_whole(match.group(2))),
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
    return result


class _Table:
    """Rows, put together from the pieces that other output left of them. Columns are known by the header alone."""

    def __init__(self) -> None:
        self.columns: List[str] = []
        self.pending: List[str] = []
        self.rows: List[Row] = []

    def header(self, words: List[str]) -> bool:
        """True for a line that names the columns."""
        if words[:3] != ["size", "count", "type"]:
            return False
        self.columns, self.pending = words, []
        return True

    def take(self, words: List[str]) -> None:
        if len(words) >= 3 and all(map(_WHOLE.fullmatch, words[:2])) and not _CELL.fullmatch(words[2]):
            self.pending = []
        elif not self.pending or not all(map(_CELL.fullmatch, words)):
            return
        self.pending += words
        if len(self.pending) >= len(self.columns):
            row = self._row()
            if row is not None:
                self.rows.append(row)
            self.pending = []

    def _row(self) -> Optional[Row]:
        if not self.columns or len(self.pending) != len(self.columns):
            return None
        first: Dict[str, str] = {}
        second: Dict[str, str] = {}
        for name, word in zip(self.columns, self.pending):
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
    figures = [_figure(words.get(name, "")) for name in ("time", "algbw", "busbw", "#wrong")]
    return Placement(*figures) if words.keys() & {"time", "algbw", "busbw"} else None


def _figure(word: str) -> Optional[float]:
    figure = float(word) if _NUMBER.fullmatch(word) else math.nan
    return figure if math.isfinite(figure) else None


def _whole(word: Optional[str]) -> Optional[int]:
    return int(word) if word is not None and _WHOLE.fullmatch(word) else None


def _nccl_version(code: Optional[int]) -> Optional[str]:
    """2.28.9 for 22809, 2.8.4 for 2804: the code got a digit with 2.9."""
    if code is None or code < 1000:
        return None
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)


def tidy(lines: Iterable[str]) -> Tuple[str, ...]:
    """Each line once, printable, without blanks at its ends; 20 lines of 300 characters at most."""
    tidied = ("".join(c if c.isprintable() else "?" for c in line.strip())[:300] for line in lines)
    return tuple(dict.fromkeys(line for line in tidied if line))[:_ERRORS_KEPT]


def last_words(text: str) -> Tuple[str, ...]:
    """Return a program's last message on stderr, as one line; () for none.

    Open MPI frames its messages with two lines of dashes, the first cause first: the first paragraph counts, after the
    line before it, which may be the shell's or ssh's reason. Else it is the last line.
    """
    before: List[str] = []
    paragraph: List[str] = []
    framed = False
    for line in map(str.strip, text.splitlines()):
        dashes = len(line) > 20 and not line.strip("-")
        if paragraph and (dashes or not line):
            break
        if framed and line:
            paragraph.append(line)
        elif any(map(str.isalpha, line)):
            before = [line]
        framed = framed or dashes
    return tidy(["; ".join([*before, *([" ".join(paragraph)] if paragraph else [])])])
