# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests itself prints into a log: the list of its ranks with their GPUs, the table of sizes, and its end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

# Of a list of ranks, of rows, and of tests: more is not kept.
RANKS, ROWS, TESTS = 100_000, 2_000, 64
# Tests that are told one by one.
_TOLD = 4
# Rows that are printed.
ROWS_TOLD = 40
# Rows of hardly different bandwidth, how far apart their sizes are, and how alike they are, to be called flat.
_FLAT, _APART, _ALIKE = 3, 64, 0.85
# Bytes from which on a size shows bandwidth, and how much less than others an outlier has.
_BANDWIDTH, _OUTLIER = 1 << 20, 0.75
# What a bandwidth grows by that still rises, the size from which on one may be called little, and what is, in GB/s.
_RISES, _LARGE, _LITTLE = 1.1, 64 << 20, 10.0
# The size from which on a bandwidth may leap, and how many times more than the size it grows then.
_SLOW, _LEAP = 16 << 10, 3.0
# How many times faster one test is, for both to be told side by side.
_APART_TESTS = 3.0
# What a launcher puts before a line.
_LABEL = (
    rb"\s{0,8}(?:\[[^\]\s]{1,60}\](?:<stdout>)?:? ?|[\w.-]{1,120}: ?|\([^)]{1,80}\):? ?|"
    rb"\d[\w:.-]{18,40} std(?:out|err) F )?"
)
ROW = re.compile(
    _LABEL
    + rb"\s*(\d{1,18})\s+\d{1,18}\s+(?P<type>u?int\d{0,2}|half|float|double|bfloat16|char|f(?:loat|p)?8\w{0,12})\s+"
    rb"(?P<op>[a-z]\w{0,20}\s+)?(?:-?\d{1,8}\s+)?(?P<time>[\d.]{1,14})\s+(?P<alg>[\d.]{1,12})\s+(?P<out>[\d.]{1,12})\s+(?P<wrong>[\w.+/-]{1,12})"
    rb"(?:\s+[\d.]{1,14}\s+[\d.]{1,12}\s+(?P<inside>[\d.]{1,12})\s+(?P<wrong_in>[\w.+/-]{1,12}))?"
)
_BEGUN = re.compile(
    _LABEL + rb"\s*\d{1,18}\s+\d{1,18}\s+[a-z]\w{2,20}\s+[a-z]\w{2,20}\s+-?\d{1,8}(?=[^\s\d][\w.-]{0,255}:\d{1,10}:)"
)
_HALF = re.compile(rb"\s*[\d.]{1,14}\s+[\d.]{1,12}\s+[\d.]{1,12}\s+\d{1,12}(?=[^\s\d][\w.-]{0,255}:\d{1,10}:)")
_ENDED = re.compile(rb"\s*[\d.]{1,14}\s+[\d.]{1,12}\s+[\d.]{1,12}\s+\S{1,12}(?:\s|$)")
_RANK = re.compile(
    r"(?:#|^)\s+Rank\s+(?P<rank>\d{1,7})\s+(?:Group\s+\d{1,7}\s+)?Pid\s+(?P<pid>\d{1,10})\s+on\s+(?P<host>\S{1,255})\s+device\s+"
    r"(?P<device>\d{1,4})(?:\s+\[(?P<bus>[\w:.]{1,20})\])?\s*(?P<gpu>.{0,80})"
)
_NAME = re.compile(r"# Collective test (?P<how>starting|concluded): (?P<name>[\w.-]{1,60})")
_WRONG = re.compile(r"#\s*Out of bounds values\s*: (?P<wrong>\d{1,18}) ?(?P<verdict>OK|FAILED)?")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*: (?P<busbw>[\d.e+]{1,16})(?: (?P<verdict>FAILED))?")
_BEGIN = re.compile(
    r"# nThread (?P<threads>\d{1,5}) nGpus (?P<gpus>\d{1,5})(?: minBytes (?P<least>\d{1,18})"
    r" maxBytes (?P<most>\d{1,18})(?: step: (?P<step>\d{1,18}\(\w{1,10}\)))?"
    r"(?: warmup iters: (?P<warmup>\d{1,9}))?(?: iters: (?P<iters>\d{1,9}))?"
    r"(?: agg iters: \d{1,9})?(?: validat\w+: (?P<checked>\d{1,3}))?)?"
)
_VERSION = re.compile(r"# nccl-tests version (?P<version>\d[\w.]{0,20})")
# The heading of rows.
_HEADING = re.compile(r"\bsize +count +(?:\(elements\) +)?type\b")


class Row(NamedTuple):
    """size: bytes.   out, inside: busbw in GB/s out of place and in place; None where that column is not there.

    op: of a reduction, ``sum``.   time: us of one call, out of place.   type: of the values, ``float``.
    alg: algbw out of place.
    """

    size: int
    out: float
    inside: Optional[float]
    op: str
    time: float = 0.0
    type: str = ""
    alg: float = 0.0

    @property
    def best(self) -> float:
        return max(self.out, self.inside or 0.0)


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
    mixed: another program prints among its lines.
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

    @property
    def said(self) -> bool:
        """Whether a result of it is here."""
        return bool(self.rows or self.concluded or self.bounds)

    @property
    def flat(self) -> Optional[Tuple[int, float]]:
        """The least size from which on the busbw hardly grows, and it; None where it still grows or little is there."""
        sizes = [row.size for row in self.rows]
        if len(self.rows) < _FLAT + 1 or sizes != sorted(set(sizes)):
            return None
        last = self.rows[-1].best
        begin = len(self.rows)
        while begin and last > 0.5 and _ALIKE * last <= self.rows[begin - 1].best <= last / _ALIKE:
            begin -= 1
        wide = len(self.rows) - begin >= _FLAT and self.rows[-1].size >= _APART * self.rows[begin].size
        return (self.rows[begin].size, last) if wide else None

    @property
    def outliers(self) -> List[str]:
        """Rows of a bandwidth that their neighbours do not have, or in place far from out of place, in words."""
        found = []
        for before, row, after in zip([None, *self.rows], self.rows, [*self.rows[1:], None]):
            if row.size < _BANDWIDTH:
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
    """ranks: of the lists.   runs: how many programs began.   twice: several runs print here.   tests: one by one."""

    ranks: Dict[int, Placed] = field(default_factory=dict)
    runs: int = 0
    twice: bool = False
    tests: List[Test] = field(default_factory=lambda: [Test()])
    # A row whose end comes behind lines of NCCL's.
    _open: bytes = b""
    # The names of a row's columns, where somebody has left some of them out.
    _columns: Tuple[str, ...] = ()

    @property
    def hosts(self) -> Set[str]:
        return {one.host for one in self.ranks.values()}

    @property
    def rows(self) -> List[Row]:
        return [row for test in self.tests for row in test.rows]

    @property
    def wrong(self) -> int:
        return sum(test.wrong or 0 for test in self.tests)

    @property
    def failed(self) -> List[str]:
        """What ends say of wrong values, where there are some."""
        return [test.bounds for test in self.tests if test.bounds.endswith("FAILED")]

    @property
    def last(self) -> Test:
        return self.tests[-1]

    def _next(self) -> Test:
        """The test of a line that does not go on with the last one."""
        if len(self.tests) < TESTS:
            self.tests.append(Test())
        return self.last

    def begun(self, before: bytes) -> None:
        """Takes what stands before a line of NCCL's: it may be the begin of a row."""
        match = _BEGUN.match(before)
        if match is not None:
            self._open = match.group()
            return
        match = _HALF.match(before) if self._open else None
        if match is not None and len(self._open) < 200:
            self._open += b" " + match.group()

    def row(self, line: bytes) -> bool:
        """Takes a row of the table in; whether it was one."""
        match = ROW.match(line)
        if match is None and self._open and _ENDED.match(line):
            match = ROW.match(self._open + b" " + line)
        if match is None:
            return bool(self._columns) and self._short(line)
        self._open = b""
        try:
            inside = match.group("inside")
            op = (match.group("op") or b"").decode().strip()
            time, kind = float(match.group("time")), match.group("type").decode()
            out, alg = float(match.group("out")), float(match.group("alg"))
            row = Row(int(match.group(1)), out, float(inside) if inside else None, op, time, kind, alg)
        except ValueError:
            return False
        test = self._keep(row)
        counted = [
            said for said in (match.group("wrong"), match.group("wrong_in")) if said is not None and said.isdigit()
        ]
        for said in counted:
            test.wrong = (test.wrong or 0) + int(said)
        for error in (match.group("wrong"), match.group("wrong_in")):
            if error is not None and b"e" in error:
                test.error = max(test.error or 0.0, _number(error.decode()) or 0.0)
        test.unchecked += not counted
        return True

    def _keep(self, row: Row) -> Test:
        """The test of a row: sizes that begin again behind an end, or in one series, are another one's."""
        test = self.last
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
        begin, version, heading = _BEGIN.search(text), _VERSION.search(text), _HEADING.search(text)
        name = _NAME.search(text)
        starts = begin or version or heading or (name is not None and name.group("how") == "starting")
        test = self.last
        if starts and test.said and (test.averages or not test.mixed):
            test = self._next()
        if begin is not None:
            self.runs += 1
            test.begin = {key: said for key, said in begin.groupdict().items() if said is not None}
        columns = text.replace("#wrong", "wrong").lstrip("# ").split()
        if "size" in columns and "busbw" in columns and not {"type", "(B)"} & set(columns):
            self._columns = tuple(columns)
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

    def _listed(self, said: Dict[str, str]) -> None:
        number = int(said["rank"])
        one = Placed(said["host"], int(said["pid"]), int(said["device"]), said["bus"] or "", said["gpu"].strip())
        self.twice = self.twice or self.ranks.get(number, one) != one
        test = self.last
        # Two lists before the first end: they print at one time.
        test.mixed = test.mixed or (test.listed.get(number, one) != one and not test.averages)
        if len(self.ranks) < RANKS:
            self.ranks[number] = one
            test.listed[number] = one


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


def size(number: int) -> str:
    """``8 GiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return "%g %s" % (round(number / unit, 1), name)
    return "%d B" % number


def told(table: Table) -> List[str]:
    """What nccl-tests printed, in sentences."""
    said = []
    if table.ranks:
        by: Dict[str, int] = {}
        for one in table.ranks.values():
            by[one.host] = by.get(one.host, 0) + 1
        pids = {(one.host, one.pid) for one in table.ranks.values()}
        text = "nccl-tests' list has %d rank%s" % (len(table.ranks), "" if len(table.ranks) == 1 else "s")
        if min(table.ranks):
            text += " (its begin is not in the log; it goes to rank %d, so the run has at least %d ranks)" % (
                max(table.ranks), max(table.ranks) + 1,
            )  # fmt: skip
        elif max(table.ranks) + 1 > len(table.ranks):
            text += " (others are not in the log)"
        text += " in %d process%s on %d host%s: " % (
            len(pids), "" if len(pids) == 1 else "es", len(by), "" if len(by) == 1 else "s",
        )  # fmt: skip
        kinds = {host: {one.gpu for one in table.ranks.values() if one.host == host} for host in sorted(by)[:6]}
        mixed = len({tuple(sorted(gpus)) for gpus in kinds.values()}) > 1
        text += ", ".join(
            "%s (%d%s)" % (host, by[host], " of %s" % ", ".join(sorted(gpus)[:2]) if mixed else "")
            for host, gpus in kinds.items()
        )
        text += " and %d more" % (len(by) - 6) if len(by) > 6 else ""
        gpus = sorted({one.gpu for one in table.ranks.values() if one.gpu})
        text += "; %s" % ", ".join(gpus[:3]) if gpus and not mixed else ""
        text += "; GPUs of several kinds in one job: the slower ones set its pace" if mixed else ""
        text += "; pid%s %s" % ("" if len(pids) == 1 else "s", " and ".join(str(pid) for _host, pid in sorted(pids))
                                ) if len(pids) < 3 and not table.twice else ""  # fmt: skip
        text += "; several runs print here with other ranks" if table.twice else ""
        if table.twice and set(table.ranks) == {0}:
            text += ": each has a rank 0 of its own, so they are programs that do not know each other, as of nccl-tests"
            text += " built without MPI=1, or started by another MPI's mpirun; they measure no network"
        said.append(text)
        if len(table.ranks) == 1 and 0 in table.ranks:
            said.append(
                "one rank alone: nothing is communicated, so busbw is 0 by definition, and no fault; start it with two"
                " ranks or more (-g 2 on a node; over nodes mpirun or srun, and nccl-tests built with MPI=1)"
            )
    shown = [test for test in table.tests if test.said or test.begin or test.version or test.name]
    several = len([test for test in shown if test.said]) > 1
    for number, test in enumerate(shown[:_TOLD]):
        said += _told(test, table, "test %d of %d, " % (number + 1, len(shown)) if several else "")
    said += _differ([test for test in shown if test.rows])
    for number, test in list(enumerate(shown))[_TOLD:]:
        best = max((row.best for row in test.rows), default=0.0)
        text = "test %d of %d: %d rows, the best %g GB/s" % (number + 1, len(shown), len(test.rows), best)
        said.append(text + (", average %g GB/s" % test.averages[-1] if test.averages else ""))
    return said


def _differ(tests: Sequence[Test]) -> List[str]:
    """Of tests that have a size in common, that one is much slower there."""
    common = set.intersection(*({row.size for row in test.rows} for test in tests)) if len(tests) > 1 else set()
    if not common or max(common) < _BANDWIDTH:
        return []
    best = [max(row.best for row in test.rows if row.size == max(common)) for test in tests]
    if min(best) * _APART_TESTS > max(best):
        return []
    text = (
        "at %s the tests reach %s GB/s: what is different between them (nodes, GPUs, network, collective) these tables"
    )
    text += " do not tell"
    return [text % (size(max(common)), ", ".join("%g" % value for value in best[:_TOLD]))]


def _asked(test: Test) -> str:
    """What a test is to do, as its first lines say."""
    begin = test.begin or {}
    parts = []
    if "least" in begin:
        parts.append("sizes from %s to %s" % (size(int(begin["least"])), size(int(begin["most"]))))
        parts[0] += ", step %s" % begin["step"] if "step" in begin else ""
    if "iters" in begin:
        parts.append("%s iterations" % begin["iters"])
        parts[-1] += " after %s to warm up" % begin["warmup"] if "warmup" in begin else ""
    if begin:
        parts.append("%s thread%s with %s GPU%s each" % (
            begin["threads"], "" if begin["threads"] == "1" else "s",
            begin["gpus"], "" if begin["gpus"] == "1" else "s",
        ))  # fmt: skip
    if begin.get("checked") == "0":
        parts.append("validation 0: values are not checked")
    return "asked for: %s" % ", ".join(parts) if parts else ""


def _told(test: Test, table: Table, which: str) -> List[str]:
    """What one test printed, in sentences. which: of several."""
    said = []
    called = ("nccl-tests %s" % test.version).strip() + (" (%s)" % test.name if test.name else "")
    asked = _asked(test)
    if asked or test.version or test.name:
        said.append("%s%s%s" % (which, called, " was %s" % asked if asked else " was started"))
    if not test.said:
        return said
    text = "%s%s: " % (which, "nccl-tests" if said else called)
    text += "" if test.rows else "no size is in this log"
    if test.rows:
        best, last = max(test.rows, key=lambda row: row.best), test.rows[-1]
        sizes = {row.size for row in test.rows}
        if len(sizes) < len(test.rows):
            text += "%d rows of " % len(test.rows)
        text += "%d size%s up to %s" % (len(sizes), "" if len(sizes) == 1 else "s", size(max(sizes)))
        ops = sorted({row.op for row in test.rows if row.op and row.op != "none"})
        text += "; reduction %s" % ", ".join(ops) if ops else ""
        kinds = sorted({row.type for row in test.rows if row.type})
        text += "; values of type %s" % ", ".join(kinds[:4]) if kinds else ""
        text += " (others, if the test has them, are not in these rows)" if len(ops) == 2 else ""
        inside = "in place is not in the row" if last.inside is None else "%g in place" % last.inside
        text += "; at %s busbw %g GB/s out of place, %s" % (size(last.size), last.out, inside)
        text += ", algbw %g" % last.alg if last.alg else ""
        text += ", %g us" % last.time if last.time else ""
        text += "; the best is %g GB/s at %s" % (best.best, size(best.size)) if best.best > last.best else ""
        outliers = test.outliers
        if outliers:
            text += "; worth a look, measure it again: %s" % ", ".join(outliers[:3])
            text += " and %d more" % (len(outliers) - 3) if len(outliers) > 3 else ""
        text += (
            "; worth a look: %s: below that size it is slow for another reason" % test.leaps[0] if test.leaps else ""
        )
        flat = test.flat
        if flat:
            text += "; flat at about %.1f GB/s from %s on: the table does not tell what limits it" % (
                flat[1], size(flat[0])
            )  # fmt: skip
        if not flat and len(test.rows) > 1 and sorted(sizes) == [row.size for row in test.rows]:
            rising = last.best > _RISES * test.rows[-2].best and last.size >= _BANDWIDTH
            text += "; it still rises with the size: larger messages are needed to see the most" if rising else ""
        if max(sizes) >= _LARGE and len(table.ranks) != 1 and 0 < best.best < _LITTLE:
            text += (
                "; that is little for GPUs that are joined by NVLink or by RDMA, and what plain TCP or PCIe without P2P"
            )
            text += " reach: why is not in the table; NCCL_DEBUG=INFO shows network, HCAs, GPUDirect RDMA and nodes"
        if max(sizes) < _BANDWIDTH:
            text += "; such small sizes show no bandwidth"
        unchecked = "not checked (N/A)" if test.error is None else "not counted, the largest error is %g" % test.error
        text += "; wrong values: %s" % (unchecked if test.wrong is None else "%d in these rows" % test.wrong)
    if test.concluded or test.bounds:
        text += "; it ran to its end: out of bounds values %s" % (test.bounds.strip() or "not shown")
        nothing = bool(test.rows) and test.wrong is None and test.error is None
        if test.bounds.endswith("OK") and (nothing or (test.begin or {}).get("checked") == "0"):
            text += " (which proves nothing: no value was checked)"
        if test.averages:
            each = ", ".join("%g" % value for value in test.averages[:4])
            text += ", average over all sizes %s GB/s, in which the small ones count as much" % each
            text += "; that is below NCCL_TESTS_MIN_BW" if test.missed else ""
    else:
        text += "; its end (Out of bounds values, Avg bus bandwidth) is not in this log: no verdict"
    said.append(text)
    if len(test.rows) > 1:
        listed = ", ".join(_of_row(row) for row in test.rows[:ROWS_TOLD])
        more = " and %d rows more" % (len(test.rows) - ROWS_TOLD) if len(test.rows) > ROWS_TOLD else ""
        said.append("%sbusbw of each size, out of place/in place, in GB/s: %s%s" % (which, listed, more))
    return said


def _of_row(row: Row) -> str:
    """``1 MiB 1.9/3.06``."""
    return "%s %g%s" % (size(row.size), row.out, "" if row.inside is None else "/%g" % row.inside)
