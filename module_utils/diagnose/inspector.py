# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the records of NCCL's Inspector plugin: which rank the others wait for, and the busbw of each host.

A collective ends on all ranks at nearly the same time. The rank that enters last spends the least time in it, the
others wait for it inside theirs. Formats v4.0 to v4.2 (NVIDIA/nccl, plugins/profiler/inspector/README.md).
"""

from __future__ import annotations

import json
import math
from array import array
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding, worst_first
from ..core.size import size_text

# Of a line with the event trace of 64 channels, in characters; of a name.
MOST_LINE, _MOST_NAME = 1 << 16, 255
# Collectives of a rank that are compared with those of others: the last ones.
WINDOW = 512
# Ranks of all communicators, kinds of collectives, and these of all hosts, that are counted.
_MOST_MEMBERS, _MOST_OPERATIONS, _MOST_FIGURES = 32768, 32768, 32768
# GB/s; less is not a bandwidth.
_LEAST_BUSBW = 0.001
# A rank is late if the others lose at least this share of their time in collectives, most of it for this one rank,
# and this many microseconds a collective on average where they wait. Below it are imbalance and kernel start.
LOST, OF_ALL, LEAST_WAIT = 0.5, 0.8, 1000
# Microseconds without a record after which a job with ranks behind is called stopped.
QUIET = 300 * 1000000

LATE = Check(
    "inspector.late_rank",
    why="its peers enter the collective and wait for it: their GPUs are busy and do nothing",
    fix="on its host: `nvidia-smi -q -d PERFORMANCE,POWER`, `py-spy dump --pid PID`; data loader, storage, CPU load",
)
"Do all ranks enter their collectives together"
BEHIND = Check(
    "inspector.behind",
    severity="critical",
    why="its peers have finished a collective that this rank has not, and no rank has finished one since",
    fix="on its host: `ps` (T stopped, Z dead, D in the kernel), `dmesg`, `py-spy dump --pid PID`",
)
"Has every rank finished the collectives that its peers have finished"
READABLE = Check(
    "inspector.readable",
    why="a rank without records may be the one that the others wait for",
    fix="name the directory of one job with the files of all its hosts (NCCL_INSPECTOR_DUMP_DIR)",
)
"Are there records of every rank, and could each line be read"


class Operation(NamedTuple):
    """A collective.   name: NCCL's, ``AllReduce``.   size: of the message, in bytes."""

    name: str
    size: int

    def __str__(self) -> str:
        return "%s of %s" % (self.name, size_text(self.size))


class Process(NamedTuple):
    """Host and process id of a rank."""

    host: str
    pid: int


class Record(NamedTuple):
    """One collective on one rank.

    number: counts the communicator's collectives.   duration, time: microseconds; time since 1970, when it was written.
    busbw: GB/s, by the time on this rank.
    """

    communicator: str
    rank: int
    ranks: int
    process: Process
    operation: Operation
    number: int
    duration: int
    busbw: float
    time: int


class LateRank(NamedTuple):
    """waits: collectives in which the others waited.   lost: share of their time.   wait: mean, microseconds."""

    communicator: str
    rank: int
    process: Process
    operation: Operation
    compared: int
    waits: int
    lost: float
    wait: float


class BehindRank(NamedTuple):
    """number: its last collective.   most: the last one of its peers.   quiet: seconds without a record."""

    communicator: str
    rank: int
    process: Process
    number: int
    most: int
    quiet: int


class Figure(NamedTuple):
    """busbw: median, GB/s, within 1 %."""

    host: str
    operation: Operation
    records: int
    busbw: float


class Judgement(NamedTuple):
    """late: one for each process, the longest wait first.   refused: lines not read.   compared: collectives.

    missing: of a communicator, how many ranks have no records, and the first.   future: ranks whose records are dated
    in the future.   uncompared: communicators without a collective that all ranks have recorded.
    """

    late: Sequence[LateRank]
    behind: Sequence[BehindRank]
    figures: Sequence[Figure]
    missing: Mapping[str, Tuple[int, int]]
    ranks: int
    communicators: int
    records: int
    refused: int
    compared: int
    uncompared: int
    future: int


def parse_record(line: str) -> Optional[Record]:
    """Return the record of a line; None for a send, a receive, a proxy step or statistics. Raises ValueError."""
    if len(line) > MOST_LINE:
        raise ValueError("the line has more than %d characters" % MOST_LINE)
    try:
        data = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(data, dict) or not isinstance(data.get("coll_perf"), dict):
        if isinstance(data, dict) and "coll_perf" not in data and "header" in data and "metadata" in data:
            return None
        raise ValueError("it is not a record of NCCL's Inspector")
    header, metadata, values = data.get("header"), data.get("metadata"), data["coll_perf"]
    ranks, busbw = _integer(header, "n_ranks", 1 << 20), values.get("coll_busbw_gbs")
    if isinstance(busbw, bool) or not isinstance(busbw, (int, float)) or not 0 <= busbw < 1e6:
        raise ValueError("coll_busbw_gbs is not a number of 0 to 1000000")
    return Record(
        communicator=_name(header, "id"),
        rank=_integer(header, "rank", ranks - 1),
        ranks=ranks,
        process=Process(_name(metadata, "hostname"), _integer(metadata, "pid", 1 << 32)),
        operation=Operation(_name(values, "coll"), _integer(values, "coll_msg_size_bytes", 1 << 50)),
        number=_integer(values, "coll_sn", 1 << 62),
        duration=_integer(values, "coll_exec_time_us", 1 << 50),
        busbw=float(busbw),
        time=_integer(metadata, "dump_timestamp_us", 1 << 62),
    )


def _name(data: object, key: str) -> str:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_NAME:
        raise ValueError("%s is not a name" % key)
    return value


def _integer(data: object, key: str, most: int) -> int:
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("%s is not a number of 0 to %d" % (key, most))
    return value


class _Member:
    """A rank of a communicator: its last collectives, by number modulo WINDOW."""

    def __init__(self, record: Record) -> None:
        self.process, self.ranks, self.last, self.time = record.process, record.ranks, -1, 0
        self.numbers, self.durations = array("q", [-1]) * WINDOW, array("q", [0]) * WINDOW
        self.operations = array("l", [0]) * WINDOW

    def add(self, record: Record, operation: int) -> None:
        self.time = max(self.time, record.time)
        self.last = max(self.last, record.number)
        place = record.number % WINDOW
        if record.number >= self.numbers[place]:
            self.numbers[place], self.durations[place] = record.number, record.duration
            self.operations[place] = operation


class Collector:
    """Take in the lines of a job's files, in any order, with memory that does not grow with their number."""

    def __init__(self, since: int = 0) -> None:
        """since: microseconds since 1970; records that were written before are left out."""
        self.since = since
        self.members: Dict[str, Dict[int, _Member]] = {}
        # Host and collective -> busbw in steps of 2 % -> records.
        self.figures: Dict[Tuple[str, Operation], Dict[int, int]] = {}
        self.operations: Dict[Operation, int] = {}
        self.records = self.refused = self.count = 0

    def add_line(self, line: str) -> None:
        """Count a line; one that is not a record, or that has no room, is counted as refused."""
        try:
            record = parse_record(line)
        except ValueError:
            self.refused += 1
            return
        if record is None or record.time < self.since:
            return
        member = self.members.get(record.communicator, {}).get(record.rank)
        has_room = member is not None or self.count < _MOST_MEMBERS
        if not has_room or (record.operation not in self.operations and len(self.operations) >= _MOST_OPERATIONS):
            self.refused += 1
            return
        if member is None:
            self.count += 1
            member = self.members.setdefault(record.communicator, {})[record.rank] = _Member(record)
        self.records += 1
        member.add(record, self.operations.setdefault(record.operation, len(self.operations)))
        key = (record.process.host, record.operation)
        if record.busbw >= _LEAST_BUSBW and (key in self.figures or len(self.figures) < _MOST_FIGURES):
            steps = self.figures.setdefault(key, {})
            step = round(math.log(record.busbw, 1.02))
            steps[step] = steps.get(step, 0) + 1


def judge(collector: Collector, now: int) -> Judgement:
    """Return what the records show.   now: microseconds since 1970."""
    times = [member.time for members in collector.members.values() for member in members.values()]
    # A date in the future, of a clock that is wrong, would hide a stop.
    newest = max((time for time in times if time <= now + QUIET), default=0)
    compared = uncompared = most = 0
    late: List[LateRank] = []
    behind: List[BehindRank] = []
    missing: Dict[str, Tuple[int, int]] = {}
    for communicator, members in sorted(collector.members.items()):
        ranks = max(member.ranks for member in members.values())
        most = max(most, ranks)
        if len(members) < ranks:
            first = next(rank for rank in range(ranks) if rank not in members)
            missing[communicator] = (ranks - len(members), first)
        found, count = _late(communicator, members, list(collector.operations))
        compared += count
        uncompared += ranks > 1 and not count
        late += found
        last = max(member.last for member in members.values())
        for rank, member in sorted(members.items()):
            if now - newest >= QUIET and member.last < last:
                quiet = (now - newest) // 1000000
                behind.append(BehindRank(communicator, rank, member.process, member.last, last, quiet))
    return Judgement(
        late=list({one.process: one for one in sorted(late, key=lambda one: one.lost)}.values())[::-1],
        behind=behind,
        figures=figures(collector),
        missing=missing,
        ranks=most,
        communicators=len(collector.members),
        records=collector.records,
        refused=collector.refused,
        compared=compared,
        uncompared=uncompared,
        future=sum(time > now + QUIET for time in times),
    )


def figures(collector: Collector) -> List[Figure]:
    """Return the busbw of each host and collective."""
    return [
        Figure(host, operation, sum(steps.values()), 1.02 ** _median(steps))
        for (host, operation), steps in sorted(collector.figures.items())
    ]


def _median(steps: Mapping[int, int]) -> int:
    rest = sum(steps.values()) / 2
    for step in sorted(steps):
        rest -= steps[step]
        if rest <= 0:
            return step
    raise ValueError("no record")


def _late(communicator: str, members: Mapping[int, _Member], names: Sequence[Operation]) -> Tuple[List[LateRank], int]:
    """Return the rank that the others wait for, where there is one, and how many collectives were compared."""
    compared, total = 0, 0
    waits: Dict[int, List[Tuple[float, int]]] = {}
    for place in range(WINDOW) if len(members) > 1 else ():
        numbers = {member.numbers[place] for member in members.values()}
        operations = {member.operations[place] for member in members.values()}
        if len(numbers) > 1 or len(operations) > 1 or min(numbers) < 0:
            continue
        durations = sorted((member.durations[place], rank) for rank, member in members.items())
        others = durations[1:]
        half = others[len(others) // 2][0]
        compared += 1
        total += half
        waits.setdefault(durations[0][1], []).append((half - durations[0][0], operations.pop()))
    lost = {rank: sum(wait for wait, _operation in found) for rank, found in waits.items()}
    if not total or sum(lost.values()) <= 0:
        return [], compared
    rank = max(sorted(lost), key=lost.__getitem__)
    long = [(wait, operation) for wait, operation in waits[rank] if wait >= LEAST_WAIT]
    share = sum(wait for wait, _operation in long) / total
    if share < LOST or lost[rank] < OF_ALL * sum(lost.values()):
        return [], compared
    mean = sum(wait for wait, _operation in long) / len(long)
    process, longest = members[rank].process, names[max(long)[1]]
    return [LateRank(communicator, rank, process, longest, compared, len(long), share, mean)], compared


def findings(judgement: Judgement) -> List[Finding]:
    """Return what is wrong and what is unknown, worst first."""
    source, records = "NCCL Inspector", "records of all ranks"
    found = []
    for late in judgement.late:
        have = "the others wait %.1f ms for it in %d of %d collectives" % (late.wait / 1000, late.waits, late.compared)
        have += " (%s): %.0f %% of their time in them" % (late.operation, 100 * late.lost)
        found.append(LATE.judge(_subject(late), "drift", "all ranks enter together", have, source))
    for behind in judgement.behind:
        have = "its last collective is %d; no rank has finished another for %d s" % (behind.number, behind.quiet)
        found.append(BEHIND.judge(_subject(behind), "drift", "collective %d" % behind.most, have, source))
    for communicator, missing in judgement.missing.items():
        have = "%d of its ranks have no record, the first is rank %d" % missing
        found.append(READABLE.judge("communicator %s" % communicator, "unknown", records, have, source))
    rows = (
        (judgement.refused, "lines or files that were not read: %d" % judgement.refused),
        (judgement.uncompared, "communicators without a collective of all ranks: %d" % judgement.uncompared),
        (judgement.future, "ranks with records of the future, whose clock is wrong: %d" % judgement.future),
        (not judgement.compared and not judgement.uncompared, "no collective of several ranks"),
    )
    found += [READABLE.judge("the job", "unknown", records, have, source) for holds, have in rows if holds]
    return worst_first(found)


def _subject(rank: Union[LateRank, BehindRank]) -> str:
    return "rank %d (%s, pid %d)" % (rank.rank, *rank.process)
