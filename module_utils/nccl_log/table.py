# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests itself prints into a log: the list of its ranks with their GPUs, the table of sizes, and its end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from . import table_rows
from .table_rows import LABEL, Row, size

# Of a list of ranks, of rows, and of tests: more is not kept.
RANKS, ROWS, TESTS = 100_000, 2_000, 64
# Lines of a shortened list that are kept.
_SUMMED = 16
# Rows of hardly different bandwidth, how far apart their sizes are, and how near they are to their mean, to be flat.
_FLAT, _APART, _ALIKE = 3, 64, 0.95
# Bytes from which on a size shows bandwidth, and how much less than others an outlier has.
BANDWIDTH, _OUTLIER = 1 << 20, 0.75
# The size from which on a bandwidth may leap, and how many times more than the size it grows then.
_SLOW, _LEAP = 16 << 10, 3.0
# The begin of a row, as far as a line of NCCL's that sticks to it. Old releases print no root.
_BEGUN = re.compile(
    LABEL + rb"\s*(?P<size>\d{1,18})\s+\d{1,18}\s+[a-z]\w{2,20}\s+"
    rb"(?:[a-z]\w{2,20}\s+-?\d{1,8}(?=[^\s\d][\w.-]{0,255}:\d{1,10}:)|"
    rb"(?:sum|prod|min|max|avg|all|none|mulsum)(?=[\w.-]{1,255}:\d{1,10}:\d{1,10} ))"
)
# The digits behind the figures are a count of wrong values with the begin of the host's name.
_HALF = re.compile(
    rb"(?P<figures>\s*[\d.]{1,14}\s+[\d.]{1,12}\s+[\d.]{1,12}\s+)(?P<wrong>\d{1,12})(?=[^\s\d][\w.-]{0,255}:\d{1,10}:)"
)
_ENDED = re.compile(rb"\s*[\d.]{1,14}\s+[\d.]{1,12}\s+[\d.]{1,12}\s+\S{1,12}(?:\s|$)")
_RANK = re.compile(
    r"(?:#|^)\s+Rank\s+(?P<rank>\d{1,7})\s+(?:Group\s+\d{1,7}\s+)?Pid\s+(?P<pid>\d{1,10})\s+on\s+(?P<host>\S{1,255})\s+device\s+"
    r"(?P<device>\d{1,4})(?:\s+\[(?P<bus>[\w:.]{1,20})\])?\s*(?P<gpu>.{0,80})"
)
# Somebody's summary of that list.
_RANKS = re.compile(
    r"#\s+Rank\s+(?P<first>\d{1,7}) \.\. Rank\s+(?P<last>\d{1,7})\s+on\s+(?P<host>[\w.-]{1,255})\s*(?P<gpu>.{0,80})"
)
_NAME = re.compile(r"# Collective test (?P<how>starting|concluded): (?P<name>[\w.-]{1,60})")
_WRONG = re.compile(r"#\s*Out of bounds values\s*: (?P<wrong>\d{1,18}) ?(?P<verdict>OK|FAILED)?")
_AVERAGE = re.compile(r"(?:#|^)\s*Avg bus bandwidth\s*: (?P<busbw>[\d.e+]{1,16})(?: (?P<verdict>FAILED))?")
_BEGIN = re.compile(
    r"# nThread (?P<threads>\d{1,5}) nGpus (?P<gpus>\d{1,5})(?: minBytes (?P<least>\d{1,18}) maxBytes"
    r" (?P<most>\d{1,18})(?: step: (?P<step>\d{1,18}\(\w{1,10}\)))?(?: warmup iters: (?P<warmup>\d{1,9}))?(?: iters:"
    r" (?P<iters>\d{1,9}))?(?: agg iters: \d{1,9})?(?: validat\w+: (?P<checked>\d{1,3}))?)?"
)
_VERSION = re.compile(r"# nccl-tests version (?P<version>\d[\w.]{0,20})")
# The heading of a table that others make of it.
_WITH_UNITS = re.compile(r"\s{0,40}size \(B\)\s{1,40}time \(us\)\s{1,40}busbw \(GB/s\)\s*$")
# The heading of rows.
_HEADING = re.compile(r"\bsize +count +(?:\(elements\) +)?type\b")


class Placed(NamedTuple):
    """A rank of the list. bus: of its GPU, as it is written there.   gpu: its name."""

    host: str
    pid: int
    device: int
    bus: str
    gpu: str


@dataclass
class Test:
    """What one program of nccl-tests printed from its begin to its end.

    begin: what it is to do; None where that line is not here.   version: of nccl-tests.   listed: ranks of its list.
    wrong: values of all rows that were wrong; None where nothing was checked.   unchecked: rows of which nothing was.
    bounds: what the end says of wrong values.   averages: GB/s over all sizes; several of programs that print mixed.
    error: the largest difference to the right values, of old releases, which count no wrong ones.
    missed: it is below the bandwidth that the environment asks for (NCCL_TESTS_MIN_BW).
    mixed: another program prints among its lines.   other: a table of three columns, whoever printed it.
    begun: bytes of a row that was begun and not ended.   stopped: the line of an order to end it.
    """

    begin: Optional[Dict[str, str]] = None
    version: str = ""
    name: str = ""
    listed: Dict[int, Placed] = field(default_factory=dict)
    rows: List[Row] = field(default_factory=list)
    wrong: Optional[int] = None
    unchecked: int = 0
    bounds: str = ""
    averages: List[float] = field(default_factory=list)
    concluded: bool = False
    missed: bool = False
    error: Optional[float] = None
    mixed: bool = False
    other: bool = False
    begun: Optional[int] = None
    stopped: int = 0

    @property
    def apart(self) -> bool:
        """Whether what begins behind it is another one: it was stopped, or is one program over several processes."""
        return bool(self.stopped) or (not self.mixed and len({one[:2] for one in self.listed.values()}) > 1)

    @property
    def said(self) -> bool:
        """Whether a result of it is here."""
        return bool(self.rows or self.concluded or self.bounds)

    @property
    def none_wrong(self) -> bool:
        """Whether its own sum says that no value was wrong, of these rows alone."""
        return self.bounds == "0 OK" and not self.mixed

    @property
    def flat(self) -> Optional[Tuple[int, float]]:
        """The least size from which on the busbw hardly grows, and it; None where it still grows or little is there."""
        sizes = [row.size for row in self.rows]
        if len(self.rows) < _FLAT + 1 or sizes != sorted(set(sizes)):
            return None
        begin, mean = len(self.rows), self.rows[-1].best
        low = high = whole = mean
        while begin > 1 and mean > 0.5:
            one = self.rows[begin - 2].best
            low, high, whole = min(low, one), max(high, one), whole + one
            count = len(self.rows) - begin + 2
            if low * count < _ALIKE * whole or high * count > (2 - _ALIKE) * whole:
                break
            begin, mean = begin - 1, whole / count
        apart = _APART if begin > 1 else _APART // 4  # rows that are all alike
        wide = len(self.rows) - begin >= _FLAT - 1 and self.rows[-1].size >= apart * self.rows[begin - 1].size
        return (self.rows[begin - 1].size, mean) if wide else None

    @property
    def outliers(self) -> List[str]:
        """Rows of a bandwidth that their neighbours do not have, or in place far from out of place, in words."""
        found = []
        for before, row, after in zip([None, *self.rows], self.rows, [*self.rows[1:], None]):
            if row.size < BANDWIDTH:
                continue
            if row.inside is not None and min(row.out, row.inside) < _OUTLIER * max(row.out, row.inside):
                found.append("%s: %g GB/s out of place, %g in place" % (size(row.size), row.out, row.inside))
            elif _below(before, row, after):
                found.append("%s: %g GB/s, the sizes beside it %g and %g" % (
                    size(row.size), row.best, before.best, after.best,
                ))  # fmt: skip
        return found

    @property
    def leaps(self) -> List[str]:
        """Sizes from which to the next one the bandwidth grows far more than the size, in words."""
        found = []
        for before, row in zip(self.rows, self.rows[1:]):
            if before.size < _SLOW or not before.size < row.size <= 4 * before.size or before.best <= 0:
                continue
            if row.best >= _LEAP * row.size / before.size * before.best:
                found.append("%g GB/s at %s and %g at %s" % (before.best, size(before.size), row.best, size(row.size)))
        return found


@dataclass
class Table:
    """ranks: of the lists.   placed: all of them, of several runs, too.   runs: how many programs began.
    twice: several runs print here.   tests: one by one.
    """

    ranks: Dict[int, Placed] = field(default_factory=dict)
    placed: Set[Placed] = field(default_factory=set)
    runs: int = 0
    twice: bool = False
    tests: List[Test] = field(default_factory=lambda: [Test()])
    summed: List[str] = field(default_factory=list)
    # A row whose end comes behind lines of NCCL's.
    _open: bytes = b""
    # The names of a row's columns, where somebody has left some of them out.
    _columns: Tuple[str, ...] = ()
    _other: bool = False

    @property
    def hosts(self) -> Set[str]:
        return {one.host for one in self.placed}

    @property
    def rows(self) -> List[Row]:
        return [row for test in self.tests for row in test.rows]

    @property
    def wrong(self) -> int:
        """Values that rows count as wrong, of tests whose own sum does not say that there are none."""
        return sum(test.wrong or 0 for test in self.tests if not test.none_wrong)

    @property
    def failed(self) -> List[str]:
        """What ends say of wrong values, where there are some."""
        return [test.bounds for test in self.tests if test.bounds.endswith("FAILED")]

    @property
    def unfinished(self) -> Optional[Row]:
        """A row whose end did not come, with time 0 where none of its figures did."""
        return table_rows.begun(self._open) if self._open else None

    @property
    def last(self) -> Test:
        return self.tests[-1]

    def _next(self) -> Test:
        """The test of a line that does not go on with the last one."""
        if len(self.tests) < TESTS:
            self.tests.append(Test())
        return self.last

    def stops(self, order: int) -> None:
        """Takes the line of an order to end what runs."""
        test = self.last
        if (test.begin or test.listed) and not test.concluded and not test.bounds:
            test.stopped = test.stopped or order

    def begun(self, before: bytes) -> int:
        """Takes what stands before a line of NCCL's: it may be the begin of a row; how long that is."""
        match = _BEGUN.match(before)
        if match is not None:
            self._open = match.group()
            self.last.begun = int(match.group("size"))
            return match.end()
        match = _HALF.match(before) if self._open else None
        if match is not None and len(self._open) < 200:
            self._open += b" " + match.group("figures") + _glued(match.group("wrong"))
        return 0

    def row(self, line: bytes) -> bool:
        """Takes a row of the table in; whether it was one."""
        read = table_rows.read(line)
        if read is None and self._open and _ENDED.match(line):
            read = table_rows.read(self._open + b" " + line)
        if read is None:
            return bool(self._columns) and self._short(line)
        self._open = b""
        test = self._keep(read.row)
        # A zero in front of other digits is the count, and they are what another process wrote.
        counted = [b"0" if said[:1] == b"0" else said for said in read.wrong if said.isdigit()]
        for said in counted:
            test.wrong = (test.wrong or 0) + int(said)
        for error in read.wrong:
            if b"e" in error:
                test.error = max(test.error or 0.0, _number(error.decode()) or 0.0)
        test.unchecked += not counted
        return True

    def _keep(self, row: Row) -> Test:
        """The test of a row: sizes that begin again behind an end, or in one series, are another one's."""
        test = self.last
        test.begun = None
        rows = test.rows
        again = bool(rows) and row.size < rows[-1].size and row.size <= rows[0].size
        alike = bool(rows) and (row.op, row.type) == (rows[-1].op, rows[-1].type)
        if not test.mixed and (test.averages or (again and alike)):
            test = self._next()
        if len(test.rows) < ROWS // max(len(self.tests) // 8, 1):
            test.rows.append(row)
        return test

    def _short(self, line: bytes) -> bool:
        """Takes a row of which some columns were left out, as its heading says."""
        values = [_number(word.decode("ascii", "replace")) for word in line[:400].split()]
        said = dict(zip(self._columns, values))
        size, busbw, wrong = said.get("size"), said.get("busbw"), said.get("wrong")
        if len(values) != len(self._columns) or size is None or busbw is None or size != int(size):
            return False
        test = self._keep(Row(int(size), busbw, None, "", said.get("time") or 0.0))
        test.other = self._other
        if wrong is None:
            test.unchecked += 1
        else:
            test.wrong = (test.wrong or 0) + int(wrong)
        return True

    def comment(self, text: str) -> bool:
        """Takes a line that begins with # in; whether it said something."""
        match = _RANK.search(text)
        if match is not None:
            self._listed(match.groupdict())
            return True
        match = _RANKS.search(text)
        if match is not None and len(self.summed) < _SUMMED:
            said = match.groupdict()
            gpu = " (%s)" % said["gpu"].strip() if said["gpu"].strip() else ""
            self.summed.append("ranks %s-%s on %s%s" % (said["first"], said["last"], said["host"], gpu))
            return True
        begin, version, heading = _BEGIN.search(text), _VERSION.search(text), _HEADING.search(text)
        name = _NAME.search(text)
        starts = begin or version or heading or (name is not None and name.group("how") == "starting")
        test = self.last
        again = heading is None and test.begin is not None and test.apart
        if starts and (again or test.said) and (test.averages or not test.mixed):
            test = self._next()
        if begin is not None:
            self.runs += 1
            test.begin = {key: said for key, said in begin.groupdict().items() if said is not None}
        if _WITH_UNITS.match(text):
            self._columns, self._other = tuple(text.split()[::2]), True
            return True
        columns = text.replace("#wrong", "wrong").lstrip("# ").split()
        if "size" in columns and "busbw" in columns and not {"type", "(B)"} & set(columns):
            self._columns, self._other = tuple(columns), False
            return True
        wrong, average = _WRONG.search(text), _AVERAGE.search(text)
        if version is not None:
            test.version = version.group("version")
        elif name is not None:
            test.name, test.concluded = name.group("name"), name.group("how") == "concluded"
        elif wrong is not None:
            test = self._next() if test.averages and not test.mixed else test
            test.bounds = "%s %s" % (wrong.group("wrong"), wrong.group("verdict") or "")
        elif average is not None:
            test = self._next() if test.averages and not test.mixed else test
            value = _number(average.group("busbw"))
            test.averages += [value] if value is not None and len(test.averages) < TESTS else []
            test.concluded = True
            test.missed = average.group("verdict") is not None
        return bool(begin or version or name or wrong or average)

    def ended(self, line: bytes) -> bool:
        """Takes the average below a table of three columns; whether it is one."""
        return self._other and bool(self.last.rows) and self.comment(line[:200].decode("utf-8", "replace"))

    def _listed(self, said: Dict[str, str]) -> None:
        number = int(said["rank"])
        one = Placed(said["host"], int(said["pid"]), int(said["device"]), said["bus"] or "", said["gpu"].strip())
        self.twice = self.twice or self.ranks.get(number, one) != one
        test = self.last
        # Two lists before the first end: they print at one time.
        test.mixed = test.mixed or (test.listed.get(number, one) != one and not test.averages)
        if len(self.ranks) < RANKS:
            self.ranks[number] = one
            self.placed.add(one)
            test.listed[number] = one


def _glued(digits: bytes) -> bytes:
    """The count of wrong values that a host's name sticks to, which may begin with a digit; N/A where that is open."""
    return digits[:1] if len(digits) == 1 or digits[:1] == b"0" else b"N/A"


def _below(before: Optional[Row], row: Row, after: Optional[Row]) -> bool:
    """Whether a row has much less bandwidth than those of the sizes beside it."""
    if before is None or after is None or not before.size < row.size < after.size:
        return False
    return row.best < _OUTLIER * min(before.best, after.best)


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None
