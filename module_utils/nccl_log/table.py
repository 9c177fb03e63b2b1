# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests itself prints into a log: the list of its ranks with their GPUs, the table of sizes, and its end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

# Of a list of ranks, and of rows: more is not kept.
RANKS, ROWS = 100_000, 2_000
# Rows that are printed.
ROWS_TOLD = 40
# Rows of hardly different bandwidth, how far apart their sizes are, and how alike they are, to be called flat.
_FLAT, _APART, _ALIKE = 3, 64, 0.85
# Bytes from which on a size shows bandwidth, and how much less than others an outlier has.
_BANDWIDTH, _OUTLIER = 1 << 20, 0.75
# What a bandwidth grows by that still rises, the size from which on one may be called little, and what is, in GB/s.
_RISES, _LARGE, _LITTLE = 1.1, 64 << 20, 10.0
# What a launcher puts before a line.
_LABEL = (
    rb"(?:\[\d{1,7}(?:,\d{1,7})?\](?:<stdout>)?:? ?|[\w.-]{1,120}: ?|\([^)]{1,80}\):? ?|"
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
_BEGIN = re.compile(r"# nThread (?P<threads>\d{1,5}) nGpus (?P<gpus>\d{1,5})")


class Row(NamedTuple):
    """size: bytes.   out, inside: busbw in GB/s out of place and in place; None where that column is not there.

    op: of a reduction, ``sum``.   time: us of one call, out of place.   type: of the values, ``float``.
    """

    size: int
    out: float
    inside: Optional[float]
    op: str
    time: float = 0.0
    type: str = ""

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
class Table:
    """ranks: of the list.   runs: how many lists began.   twice: several runs print here.

    wrong: values of all rows that were wrong; None where nothing was checked.   unchecked: rows of which nothing was.
    bounds: what the end says of wrong values.   average: GB/s over all sizes.
    error: the largest difference to the right values, of old releases, which count no wrong ones.
    missed: it is below the bandwidth that the environment asks for (NCCL_TESTS_MIN_BW).
    """

    ranks: Dict[int, Placed] = field(default_factory=dict)
    runs: int = 0
    twice: bool = False
    name: str = ""
    rows: List[Row] = field(default_factory=list)
    wrong: Optional[int] = None
    unchecked: int = 0
    bounds: str = ""
    average: Optional[float] = None
    concluded: bool = False
    missed: bool = False
    error: Optional[float] = None
    # A row whose end comes behind lines of NCCL's.
    _open: bytes = b""
    # The names of a row's columns, where somebody has left some of them out.
    _columns: Tuple[str, ...] = ()

    @property
    def hosts(self) -> Set[str]:
        return {one.host for one in self.ranks.values()}

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
            row = Row(int(match.group(1)), float(match.group("out")), float(inside) if inside else None, op, time, kind)
        except ValueError:
            return False
        if len(self.rows) < ROWS:
            self.rows.append(row)
        counted = [
            said for said in (match.group("wrong"), match.group("wrong_in")) if said is not None and said.isdigit()
        ]
        for said in counted:
            self.wrong = (self.wrong or 0) + int(said)
        for error in (match.group("wrong"), match.group("wrong_in")):
            if error is not None and b"e" in error:
                self.error = max(self.error or 0.0, _number(error.decode()) or 0.0)
        self.unchecked += not counted
        return True

    def _short(self, line: bytes) -> bool:
        """Takes a row of which some columns were left out, as its heading says."""
        values = [_number(word.decode("ascii", "replace")) for word in line[:400].split()]
        said = dict(zip(self._columns, values))
        size, busbw, wrong = said.get("size"), said.get("busbw"), said.get("wrong")
        if len(values) != len(self._columns) or size is None or busbw is None or size != int(size):
            return False
        if len(self.rows) < ROWS:
            self.rows.append(Row(int(size), busbw, None, "", said.get("time") or 0.0))
        if wrong is None:
            self.unchecked += 1
        else:
            self.wrong = (self.wrong or 0) + int(wrong)
        return True

    def comment(self, text: str) -> bool:
        """Takes a line that begins with # in; whether it said something."""
        match = _RANK.search(text)
        if match is not None:
            said = match.groupdict()
            one = Placed(said["host"], int(said["pid"]), int(said["device"]), said["bus"] or "", said["gpu"].strip())
            self.twice = self.twice or self.ranks.get(int(said["rank"]), one) != one
            if len(self.ranks) < RANKS:
                self.ranks[int(said["rank"])] = one
            return True
        if _BEGIN.search(text):
            self.runs += 1
        columns = text.replace("#wrong", "wrong").lstrip("# ").split()
        if "size" in columns and "busbw" in columns and not {"type", "(B)"} & set(columns):
            self._columns = tuple(columns)
            return True
        name = _NAME.search(text)
        wrong, average = _WRONG.search(text), _AVERAGE.search(text)
        if name is not None:
            self.name, self.concluded = name.group("name"), name.group("how") == "concluded"
        elif wrong is not None:
            self.bounds = "%s %s" % (wrong.group("wrong"), wrong.group("verdict") or "")
        elif average is not None:
            self.average, self.concluded = _number(average.group("busbw")), True
            self.missed = average.group("verdict") is not None
        return bool(name or wrong or average)

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
    if not table.rows and not table.concluded:
        return said
    text = "nccl-tests%s: " % (" (%s)" % table.name if table.name else "")
    text += "" if table.rows else "no size is in this log"
    if table.rows:
        best, last = max(table.rows, key=lambda row: row.best), table.rows[-1]
        sizes = {row.size for row in table.rows}
        if len(sizes) < len(table.rows):
            text += "%d rows of " % len(table.rows)
        text += "%d size%s up to %s" % (len(sizes), "" if len(sizes) == 1 else "s", size(max(sizes)))
        ops = sorted({row.op for row in table.rows if row.op and row.op != "none"})
        text += "; reduction %s" % ", ".join(ops) if ops else ""
        kinds = sorted({row.type for row in table.rows if row.type})
        text += "; values of type %s" % ", ".join(kinds[:4]) if kinds else ""
        text += " (others, if the test has them, are not in these rows)" if len(ops) == 2 else ""
        inside = "in place is not in the row" if last.inside is None else "%g in place" % last.inside
        text += "; at %s busbw %g GB/s out of place, %s" % (size(last.size), last.out, inside)
        text += ", %g us" % last.time if last.time else ""
        text += "; the best is %g GB/s at %s" % (best.best, size(best.size)) if best.best > last.best else ""
        outliers = table.outliers
        if outliers:
            text += "; worth a look, measure it again: %s" % ", ".join(outliers[:3])
            text += " and %d more" % (len(outliers) - 3) if len(outliers) > 3 else ""
        flat = table.flat
        if flat:
            text += "; flat at about %.1f GB/s from %s on: the table does not tell what limits it" % (
                flat[1], size(flat[0])
            )  # fmt: skip
        if not flat and len(table.rows) > 1 and sorted(sizes) == [row.size for row in table.rows]:
            rising = last.best > _RISES * table.rows[-2].best and last.size >= _BANDWIDTH
            text += "; it still rises with the size: larger messages are needed to see the most" if rising else ""
        if max(sizes) >= _LARGE and len(table.ranks) != 1 and 0 < best.best < _LITTLE:
            text += (
                "; that is little for GPUs that are joined by NVLink or by RDMA, and what plain TCP or PCIe without P2P"
            )
            text += " reach: why is not in the table; NCCL_DEBUG=INFO shows network, HCAs, GPUDirect RDMA and nodes"
        if max(sizes) < _BANDWIDTH:
            text += "; such small sizes show no bandwidth"
        unchecked = "not checked (N/A)" if table.error is None else "not counted, the largest error is %g" % table.error
        text += "; wrong values: %s" % (unchecked if table.wrong is None else "%d in these rows" % table.wrong)
    if table.concluded or table.bounds:
        text += "; it ran to its end: out of bounds values %s" % (table.bounds.strip() or "not shown")
        if table.average is not None:
            text += ", average over all sizes %g GB/s, in which the small ones count as much" % table.average
            text += "; that is below NCCL_TESTS_MIN_BW" if table.missed else ""
    else:
        text += "; its end (Out of bounds values, Avg bus bandwidth) is not in this log: no verdict"
    said.append(text)
    if len(table.rows) > 1:
        listed = ", ".join(_of_row(row) for row in table.rows[:ROWS_TOLD])
        more = " and %d rows more" % (len(table.rows) - ROWS_TOLD) if len(table.rows) > ROWS_TOLD else ""
        said.append("busbw of each size, out of place/in place, in GB/s: %s%s" % (listed, more))
    return said


def _of_row(row: Row) -> str:
    """``1 MiB 1.9/3.06``."""
    return "%s %g%s" % (size(row.size), row.out, "" if row.inside is None else "/%g" % row.inside)
