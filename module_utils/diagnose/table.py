# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the list of ranks, the table and the end of programs of nccl-tests (src/common.cu of NVIDIA/nccl-tests).

Columns: size (bytes), count, type, redop, root, then out of place and in place time (us), algbw, busbw (GB/s), wrong.
Releases before 2.11 have no root, and an error in the place of #wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Pattern, Sequence, Tuple

from ..core.number import whole
from .facts import decimal
from .lines import LONGEST

# Of a list of ranks, of rows, and of programs: more is not stored.
RANKS, ROWS, PROGRAMS = 100_000, 2_000, 64
LABEL = (
    rb"\s{0,8}(?:\[[^\]\s]{1,60}\](?:<stdout>)?:? ?|[\w.-]{1,120}: ?|\([^)]{1,80}\):? ?|"
    rb"\d[\w:.-]{18,40} std(?:out|err) F ){0,2}"
)
_ROW = re.compile(
    LABEL + rb"\s{0,40}(?P<size>\d{1,18})\s{1,40}(?P<count>\d{1,18})\s{1,40}"
    rb"(?P<type>u?int\d{0,2}|half|float|double|bfloat16|char|f(?:loat|p)?8\w{0,12})\s{1,40}"
    rb"(?:(?P<op>[a-z]\w{0,20})\s{1,40})?(?=[-\d])"
)
_FIGURE = re.compile(rb"\d[\d.]{0,13}(?:e[+-]?\d{1,2})?$")
_ROOT = re.compile(rb"-?\d{1,8}$")
_WRONG_VALUE = re.compile(rb"[\w.+/-]{1,12}$")
_HALF, _REST = 4, 240
_RANK = re.compile(
    r"(?:#|^)\s{1,16}Rank\s{1,16}(?P<rank>\d{1,7})\s{1,16}(?:Group\s{1,16}\d{1,7}\s{1,16})?Pid\s{1,16}\d{1,10}\s{1,16}on"
    r"\s{1,16}(?P<host>\S{1,255})\s{1,16}device\s{1,16}\d{1,4}(?:\s{1,16}\[(?P<bus>[\w:.]{1,20})\])?\s{0,8}(?P<gpu>.{0,80})"
)
_RANKS = re.compile(
    r"#\s{1,16}Rank\s{1,16}(?P<rank>\d{1,7}) \.\. Rank\s{1,16}(?P<last>\d{1,7})\s{1,16}on\s{1,16}"
    r"(?P<host>[\w.-]{1,255})\s{0,8}(?P<gpu>.{0,80})"
)
_BEGIN = re.compile(r"# nThread \d{1,5} nGpus \d{1,5}|# Collective test starting: \S")
_VERSION = re.compile(r"# nccl-tests version \S{1,20} .{0,80}?nccl-library=(?P<library>\d{5})")
_WRONG = re.compile(r"#\s{0,4}Out of bounds values\s{0,8}: (?P<wrong>\d{1,18}) ?(?P<verdict>OK|FAILED)?")
_AVERAGE = re.compile(r"(?:#|^)\s{0,4}Avg bus bandwidth\s{0,8}: (?P<busbw>[\d.e+]{1,16})(?: (?P<verdict>FAILED))?")


class Row(NamedTuple):
    """size: bytes.   out, inside: busbw in GB/s out of place and in place; None where there is no such column.

    time: microseconds, out of place.   wrong: values; None where they were not counted (N/A).
    """

    size: int
    out: float
    inside: Optional[float]
    time: float
    wrong: Optional[int]


class Rank(NamedTuple):
    """A rank of the list. gpu: name of its GPU.   bus: its PCI address, "" where the list has none."""

    host: str
    gpu: str
    bus: str = ""


@dataclass
class Program:
    """Output of one program of nccl-tests. wrong: values; None where none were checked.

    bounds: what its end reports of them.   below: it is below NCCL_TESTS_MIN_BW.   lists: of ranks that it began with.
    """

    ranks: Dict[int, Rank] = field(default_factory=dict)
    rows: List[Row] = field(default_factory=list)
    wrong: Optional[int] = None
    bounds: str = ""
    average: Optional[float] = None
    below: bool = False
    lists: int = 0

    @property
    def done(self) -> bool:
        return bool(self.bounds) or self.average is not None


def read_row(line: bytes) -> Optional[Row]:
    """Return a row of the table; None of another line.

    A root is not told from a time by its form: the algbw, which is size by time, decides.
    """
    begin = _ROW.match(line)
    if begin is None:
        return None
    words = line[begin.end() : begin.end() + _REST].split()
    size = int(begin.group("size"))
    halves = [half for half in (_halves(words), _halves(words[1:]) if words and _ROOT.match(words[0]) else ()) if half]
    fitting = [half for half in halves if _fits(size, half[0])]
    if len(fitting) != 1:
        fitting = halves[::-1] if len(words) in (5, 9) else halves
    if not fitting:
        return None
    first, *more = fitting[0]
    counts = [whole(half[3].decode("ascii", "replace")) for half in fitting[0]]
    wrong = None if None in counts else sum(count or 0 for count in counts)
    return Row(size, _number(first[2]), _number(more[0][2]) if more else None, _number(first[0]), wrong)


def _number(word: bytes) -> float:
    text = word.decode("ascii", "replace")
    mantissa, _e, exponent = text.partition("e")
    value = decimal(mantissa) or 0.0
    return value * 10.0 ** int(exponent or 0) if _e else value


def _halves(words: Sequence[bytes]) -> List[Sequence[bytes]]:
    """Return the figures out of place and in place that are whole: time, algbw, busbw, wrong values."""
    found = []
    for half in (words[:_HALF], words[_HALF : 2 * _HALF]):
        figures = len(half) == _HALF and all(_FIGURE.match(word) and word.count(b".") < 2 for word in half[:3])
        if not figures or not _WRONG_VALUE.match(half[3]):
            break
        found.append(half)
    return found


def _fits(size: int, half: Sequence[bytes]) -> bool:
    time, algbw = _number(half[0]), _number(half[1])
    return time > 0 and abs(algbw - size / time / 1000) <= 0.006 + 0.06 * algbw


class Table:
    """Programs of nccl-tests in a log. ``line`` takes a line in and returns whether it was one of theirs."""

    def __init__(self) -> None:
        self.programs: List[Program] = []
        self.library = ""

    def line(self, raw: bytes, text: str) -> bool:
        """raw: the line.   text: decoded."""
        row = read_row(raw[:LONGEST]) if raw[:400].count(b" ") > 5 else None
        if row is not None:
            program = self.current
            if len(program.rows) < ROWS:
                program.rows.append(row)
            if row.wrong is not None:
                program.wrong = (program.wrong or 0) + row.wrong
            return True
        if "#" not in text[:200] and "Avg bus" not in text and "Rank" not in text[:40]:
            return False
        for pattern, take in _LINES:
            match = pattern.search(text[:400])
            if match is not None:
                take(self, match.groupdict())
                return True
        return False

    @property
    def current(self) -> Program:
        if not self.programs:
            self.programs.append(Program())
        return self.programs[-1]

    @property
    def ranks(self) -> Dict[int, Rank]:
        return {rank: one for program in self.programs for rank, one in program.ranks.items()}

    @property
    def hosts(self) -> List[str]:
        return sorted({one.host for program in self.programs for one in program.ranks.values()})

    @property
    def wrong(self) -> int:
        return sum(program.wrong or 0 for program in self.programs)

    @property
    def failed(self) -> bool:
        return any(program.bounds.endswith("FAILED") and program.bounds[:2] != "0 " for program in self.programs)

    @property
    def finished(self) -> bool:
        """Return whether the last program printed its end without wrong values."""
        return bool(self.programs) and self.programs[-1].done and not self.failed and not self.wrong


def _start(table: Table, _found: Dict[str, str]) -> None:
    # Several lines begin a program, and several processes may begin at once.
    begun = table.programs and not table.current.rows and not table.current.done
    if not begun and len(table.programs) < PROGRAMS:
        table.programs.append(Program())


def _rank(table: Table, found: Dict[str, str]) -> None:
    program, first = table.current, int(found["rank"])
    rank = Rank(found["host"], found["gpu"].strip(), found.get("bus") or "")
    program.lists += first == 0
    for number in range(first, min(int(found.get("last", first)), first + 1024) + 1):
        if len(program.ranks) < RANKS:
            program.ranks.setdefault(number, rank)


def _end(table: Table, found: Dict[str, str]) -> None:
    table.current.bounds = "%s %s" % (found["wrong"], found["verdict"] or "")


def _average(table: Table, found: Dict[str, str]) -> None:
    program = table.current
    program.average, program.below = _number(found["busbw"].encode()), found["verdict"] == "FAILED"


def _version(table: Table, found: Dict[str, str]) -> None:
    code = found["library"]
    table.library = "%d.%d.%d" % (int(code[0]), int(code[1:3]), int(code[3:5]))


_LINES: Tuple[Tuple[Pattern[str], Callable[[Table, Dict[str, str]], None]], ...] = (
    (_RANK, _rank), (_RANKS, _rank), (_BEGIN, _start), (_WRONG, _end), (_AVERAGE, _average), (_VERSION, _version),
)  # fmt: skip
