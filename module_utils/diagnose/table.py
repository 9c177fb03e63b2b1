# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the list of ranks, the table and the end of programs of nccl-tests, and judge what no healthy machine prints.

Sources: src/common.cu of NVIDIA/nccl-tests; doc/PERFORMANCE.md there for busbw and its formulas.

Columns: size (bytes), count, type, redop, root, then out of place and in place time (us), algbw, busbw (GB/s), wrong.
Releases before 2.11 have no root, and an error in the place of #wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.number import whole
from ..core.size import size_text
from .checks import WARNING
from .names import names, numbers

# Of a list of ranks, of rows, and of programs: more is not stored.
RANKS, ROWS, PROGRAMS = 100_000, 2_000, 64
_LABEL = r"\s{0,8}(?:\[[^\]\s]{1,60}\](?:<stdout>)?:? ?|[\w.-]{1,120}: ?|\([^)]{1,80}\):? ?){0,2}"
_FIGURE = r"\d{1,12}(?:\.\d{0,12})?(?:e[+-]?\d{1,2})?"
# Figures out of place, or in place: time, algbw, busbw, wrong values.
_HALF = r"\s{1,40}(%s)\s{1,40}(%s)\s{1,40}(%s)\s{1,40}([\w.+/-]{1,12})(?=\s|$)" % ((_FIGURE,) * 3)
_BEFORE = _LABEL + (
    r"\s{0,40}(\d{1,18})\s{1,40}\d{1,18}\s{1,40}"
    r"(?:u?int\d{0,2}|half|float|double|bfloat16|char|f(?:loat|p)?8\w{0,12})(?:\s{1,40}[a-z]\w{0,20})?"
)
# Without a root, and with one.
_ROW_FORMS = tuple(
    re.compile(_BEFORE + root + _HALF + "(?:" + _HALF + ")?", re.ASCII) for root in ("", r"\s{1,40}-?\d{1,8}")
)
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
_AVERAGE = re.compile(r"(?:#|^)\s{0,4}Avg bus bandwidth\s{0,8}: (?P<busbw>%s)(?: (?P<verdict>FAILED))?" % _FIGURE)
_LINES = (_RANK, _RANKS, _BEGIN, _WRONG, _AVERAGE, _VERSION)


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
    apart: they name several hosts for one rank.
    """

    ranks: Dict[int, Rank] = field(default_factory=dict)
    rows: List[Row] = field(default_factory=list)
    wrong: Optional[int] = None
    bounds: str = ""
    average: Optional[float] = None
    below: bool = False
    lists: int = 0
    apart: bool = False

    @property
    def done(self) -> bool:
        return bool(self.bounds) or self.average is not None


def read_row(line: str) -> Optional[Row]:
    """Return a row of the table; None of another line.

    A root is not told from a time by its form: the algbw, which is size by time, decides.
    """
    matches = [match for match in (pattern.match(line) for pattern in _ROW_FORMS) if match is not None]
    if not matches:
        return None
    match = max(matches, key=lambda match: (_fits(*map(float, match.groups()[:3])), not line[match.end() :].strip()))
    size, time, _algbw, out, wrong, _time, _algbw, inside, wrong_inside = match.groups()
    counts = [whole(text) for text in (wrong, wrong_inside) if text is not None]
    total = None if None in counts else sum(count or 0 for count in counts)
    return Row(int(size), float(out), float(inside) if inside is not None else None, float(time), total)


def _fits(size: float, time: float, algbw: float) -> bool:
    return time > 0 and abs(algbw - size / time / 1000) <= 0.006 + 0.06 * algbw


class Table:
    """Programs of nccl-tests in a log. ``line`` takes a line in and returns whether it was one of theirs."""

    def __init__(self) -> None:
        self.programs: List[Program] = []
        self.library = ""

    def line(self, text: str) -> bool:
        row = read_row(text) if text[:400].count(" ") > 5 else None
        if row is not None:
            program = self.current
            if len(program.rows) < ROWS:
                program.rows.append(row)
            if row.wrong is not None:
                program.wrong = (program.wrong or 0) + row.wrong
            return True
        if "#" not in text[:200] and "Avg bus" not in text and "Rank" not in text[:40]:
            return False
        match = next(filter(None, (pattern.search(text[:400]) for pattern in _LINES)), None)
        if match is not None:
            self._take(match.groupdict())
        return match is not None

    def _take(self, found: Dict[str, str]) -> None:
        """Take one of _LINES in."""
        program = self.programs[-1] if self.programs else Program()
        if "rank" in found:
            program, first = self.current, int(found["rank"])
            rank = Rank(found["host"], found["gpu"].strip(), found.get("bus") or "")
            program.lists += first == 0
            for number in range(first, min(int(found.get("last", first)), first + 1024) + 1):
                if len(program.ranks) < RANKS:
                    first_named = program.ranks.setdefault(number, rank)
                    program.apart = program.apart or first_named.host != rank.host
        elif "wrong" in found:
            self.current.bounds = "%s %s" % (found["wrong"], found["verdict"] or "")
        elif "busbw" in found:
            program = self.current
            program.average, program.below = float(found["busbw"]), found["verdict"] == "FAILED"
        elif "library" in found:
            code = found["library"]
            self.library = "%d.%d.%d" % (int(code[0]), int(code[1:3]), int(code[3:5]))
        # Several lines begin a program, and several processes may begin at once.
        elif not self.programs or ((program.rows or program.done) and len(self.programs) < PROGRAMS):
            self.programs.append(Program())

    @property
    def current(self) -> Program:
        if not self.programs:
            self.programs.append(Program())
        return self.programs[-1]

    @property
    def ranks(self) -> Dict[int, Rank]:
        return {rank: one for program in self.programs for rank, one in program.ranks.items()}

    @property
    def size(self) -> int:
        """Ranks of the job: whoever posts a log may leave some out between the first and the last."""
        return max(self.ranks, default=-1) + 1

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


# Latency rules below this size, in bytes.
_LEAST = 64 << 10
# Time of a size, as a share of that of a smaller one, from which the smaller one took a slow way.
_FASTER = 0.6
# busbw at the largest sizes, as a share of the highest.
_FALLEN = 0.6
# GB/s that any way within or between nodes reaches at a size of at least that many bytes.
_FLOOR, _FLOOR_SIZE = 2.0, 64 << 20
_ROWS = 3
BUSBW = Check(
    "nccl_log.busbw",
    why="the table of nccl-tests shows it, whatever the bar is",
    fix="run nccl-tests on each node alone, then on pairs (playbooks/localise.yml)",
)
"Does the bandwidth in the table of nccl-tests rise with the size, and stay there"


def failures(table: Table, launched: int) -> List[Finding]:
    """Return a finding on wrong values, or on programs that ran without MPI. launched: processes, 0: not known."""
    if any(_is_apart(program, launched) for program in table.programs):
        have = "several processes of nccl-tests each ran as a separate job: no GPU waits for one of another process"
        why = "nccl-tests built without MPI ignores the launcher: each process is rank 0 of a separate job"
        fix = "build nccl-tests with MPI=1 MPI_HOME=DIRECTORY, and start it with its mpirun, or srun --mpi=pmix"
        return [BUSBW.judge("nccl-tests", "drift", "one job", have, "", fix, why=why, severity="critical")]
    have = "nccl-tests counted %s wrong values" % (table.wrong or "some")
    why = "ranks received other data than was sent: no result of this job can be trusted"
    fix = "run nccl-tests on each node alone, then on pairs, and drain the node where it recurs (`nvidia-smi -q -d "
    fix += "ECC`); with an IOMMU or in a VM try NCCL_P2P_DISABLE=1 on one node to find the path"
    wrong = WARNING.judge("nccl-tests", "drift", "no wrong values", have, "", fix, why=why, severity="critical")
    return [wrong] if table.failed or table.wrong else []


def _is_apart(program: Program, launched: int) -> bool:
    """Return whether the output is that of several processes that each ran as a separate job (no MPI)."""
    sizes = [row.size for row in program.rows]
    several = program.lists > 1 or (len(sizes) > _ROWS and sizes != sorted(sizes))
    alone = several and not any(map(_busbw, program.rows)) and not set(program.ranks) - {0}
    return alone or (program.apart and launched > 1)


def judge(table: Table) -> List[Finding]:
    """Return a finding for each program of several ranks whose rows show a slow path."""
    found = []
    for number, program in enumerate(table.programs):
        subject = "nccl-tests" if len(table.programs) == 1 else "nccl-tests program %d" % (number + 1)
        ranks: Dict[str, List[int]] = {}
        for index, rank in sorted(program.ranks.items()) if program.lists < 2 else ():
            # Older releases print the bus alone, which GPUs of several PCI domains have in common.
            if ":" in rank.bus:
                ranks.setdefault("%s %s" % (rank.host, rank.bus), []).append(index)
        shared = ["%s: ranks %s" % (gpu, numbers(on)) for gpu, on in ranks.items() if len(on) > 1]
        if shared:
            have, why = "several ranks share a GPU: %s" % names(shared), "ranks on one GPU share its memory and engines"
            fix = "start as many ranks a node as it has GPUs, one for each (-g 1), and let each see all of them"
            found.append(BUSBW.judge("%s ranks" % subject, "drift", "one GPU a rank", have, "", fix, why=why))
        rows = [row for row in program.rows if row.size >= _LEAST and row.time > 0]
        sizes = [row.size for row in rows]
        if len(rows) >= _ROWS and sizes == sorted(sizes) and any(map(_busbw, rows)):
            for have, why, fix in (_fallen(rows) or _faster(rows) or _low(rows, program))[:1]:
                found.append(BUSBW.judge(subject, "drift", None, have, "the table's rows", fix, why=why))
    return found


def _busbw(row: Row) -> float:
    return max(row.out, row.inside or 0.0)


def _figure(row: Row) -> str:
    return "%.3g GB/s at %s" % (_busbw(row), size_text(row.size))


def _fallen(rows: Sequence[Row]) -> List[Tuple[str, str, str]]:
    """Return have, why and fix of a busbw that falls behind its highest, and does not come back."""
    best = max(range(len(rows)), key=lambda number: _busbw(rows[number]))
    after = rows[best + 1 :]
    if len(after) < 2 or any(_busbw(row) > _FALLEN * _busbw(rows[best]) for row in after):
        return []
    have = "busbw falls from %s to %s" % (_figure(rows[best]), _figure(after[-1]))
    why = "busbw stays at its highest with larger messages: a fall shows congestion, throttling, or memory that ran out"
    fix = (
        "run it again beside `nvidia-smi dmon -s pc` (clocks, power); playbooks/verify.yml compares the NICs' counters"
    )
    return [(have, why, fix)]


def _faster(rows: Sequence[Row]) -> List[Tuple[str, str, str]]:
    """Return have, why and fix of a size that takes much longer than a larger one, out of place and in place."""
    for row, larger in zip(rows, rows[1:]):
        # In place, too; the time there is the size by busbw.
        rises = row.inside is None or (larger.inside or 0.0) * row.size > row.inside * larger.size / _FASTER
        if larger.size > row.size and larger.time < _FASTER * row.time and rises:
            sizes = (size_text(row.size), row.time, size_text(larger.size), larger.time)
            why = "more data takes less time: NCCL chose a slow algorithm or protocol for the smaller sizes"
            fix = "take NCCL_ALGO, NCCL_PROTO and tuner plugins out of the job (NCCL_DEBUG_SUBSYS=INIT,TUNING shows the"
            fix += " choice), and try NCCL_PROTO=Simple for these sizes; then another release of NCCL"
            return [("%s takes %.4g us and %s only %.4g us" % sizes, why, fix)]
    return []


def _low(rows: Sequence[Row], program: Program) -> List[Tuple[str, str, str]]:
    best, last = max(rows, key=_busbw), rows[-1]
    hosts = Counter(rank.host for rank in program.ranks.values())
    most = max(hosts.values(), default=0)
    # All of a host may share one NIC where each rank sends to each, as in alltoall. There busbw is no more than the
    # algorithm's bandwidth; a reduction over more than two ranks shows more.
    shared = len(hosts) > 1 and last.out * last.time <= 1.01 * last.size / 1000
    if last.size < _FLOOR_SIZE or _busbw(best) * (most if shared else 1) >= _FLOOR:
        return []
    why = "that is less than two lanes of PCIe 3.0, or a port of 25 Gbit/s, carry"
    fix = "between the nodes NCCL's lines (NCCL_DEBUG=INFO) show the network: RDMA, or TCP and over which interface"
    fix += "" if most == 1 else "; in a node `nvidia-smi topo -m` and `nvidia-smi topo -p2p r` show the path"
    return [("the highest busbw is %s" % _figure(best), why, fix)]
