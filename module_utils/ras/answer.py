# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the status of a running job by NCCL's RAS: the text of 2.24 and later, and the JSON of 2.28.7 and later.

Any process of a job reports the whole job. The JSON has each rank with all it has launched; the text counts equal ranks
and names only a few of them, so that a group may be larger than its names.
Counts are of collectives that were launched, by the host's side of NCCL, not of those that have ended; send and
receive (alltoall, pipeline stages) and CUDA graphs are not counted.
Sources: NCCL 2.24.3 to 2.30.7, src/ras/client_support.cc, docs/userguide troubleshooting/ras.rst.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.host import ParseError

# ncclResult_t of nccl.h. 7 is "in progress", and no error.
RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
SUCCESS, IN_PROGRESS = 0, 7
INIT, RUNNING, FINALIZE, ABORT, NOCOMM = "INIT", "RUNNING", "FINALIZE", "ABORT", "NOCOMM"
# More than any job has: what claims more is none. Counters have 64 bits.
MOST_RANKS, MOST_COMMUNICATORS, LARGEST = 1 << 17, 1 << 14, (1 << 64) - 1


@dataclass(frozen=True)
class Place:
    """Process and GPU of a rank. host: its IP address for NCCL.   pid: within its container, -1 unknown.

    gpu: its number in the process (CUDA_VISIBLE_DEVICES counts).   nvml: its number on the node, as nvidia-smi has it.
    """

    host: str
    pid: int
    gpu: int
    nvml: int


@dataclass(frozen=True)
class Group:
    """Ranks of which the same is true. number: how many.   ranks: those that are named; all of them in JSON."""

    value: Union[int, str]
    number: int
    ranks: Tuple[int, ...]


@dataclass(frozen=True)
class Missing:
    """A rank that gave RAS no data. place: None if RAS does not know it.

    reachable: its process responded, but is not a member of the communicator (not yet, or not any more); None: not
    reported.
    dead: RAS has had no sign of it for a minute, and has given up.
    """

    rank: int
    place: Optional[Place]
    reachable: Optional[bool] = None
    dead: bool = False


@dataclass(frozen=True)
class Communicator:
    """name: its hash and, if reported, what makes it unique (``0xa98:0x90:0x11``). size: ranks it must have.

    counts: collective -> groups by the number launched, most ranks first; in text only where ranks differ.
    statuses, errors: groups by status and by kind of error.   whole: every rank is reported with all it has (JSON).
    """

    name: str
    size: int
    places: Mapping[int, Place] = field(default_factory=dict)
    counts: Mapping[str, Tuple[Group, ...]] = field(default_factory=dict)
    statuses: Tuple[Group, ...] = ()
    errors: Tuple[Group, ...] = ()
    missing: Tuple[Missing, ...] = ()
    # Of which the text may name none.
    missing_number: int = 0
    whole: bool = True

    @property
    def launched(self) -> Dict[int, Dict[str, int]]:
        """Rank -> collective -> number, of the ranks that are named."""
        found: Dict[int, Dict[str, int]] = {}
        for collective, groups in self.counts.items():
            for group in groups:
                for rank in group.ranks:
                    found.setdefault(rank, {})[collective] = int(group.value)
        return found


@dataclass(frozen=True)
class Absent:
    """A process of the job that RAS cannot reach; the text does not always have its ranks."""

    host: str
    pid: int
    gpus: str
    dead: bool


@dataclass(frozen=True)
class Row:
    """Line of the text's table: ``number`` communicators of ``size`` ranks that are alike."""

    number: int
    size: int
    status: str
    errors: str


@dataclass(frozen=True)
class RasStatus:
    """form: json or text.   processes: of the whole job, None if not reported.   timeouts: of RAS's network."""

    form: str
    version: str
    communicators: Tuple[Communicator, ...]
    rows: Tuple[Row, ...] = ()
    absent: Tuple[Absent, ...] = ()
    processes: Optional[int] = None
    timeouts: int = 0


# -- JSON --------------------------------------------------------------------------------------------------------------

_HASH = re.compile(r"0x[0-9a-f]{1,16}")
_SECOND = re.compile(r"0x[0-9a-f]{1,16}:0x[0-9a-f]{1,16}")
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?[ -~]{0,40}")
# An IP address; what RAS does not find is "unknown".
_HOST = re.compile(r"[0-9A-Fa-f:.]{1,45}(%[\w.-]{1,15})?|unknown")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


# 2.28.9 omits the comma before the status of a missing rank.
_FORGOTTEN = re.compile(r'("nvml_dev": -?[0-9]{1,9})(\s{1,200}"status": \{)')


def parse_json(text: str) -> RasStatus:
    """Parse the JSON. Raises ParseError, which quotes what is wrong."""
    try:
        data = json.loads(_FORGOTTEN.sub(r"\1,\2", text), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ParseError("RAS's output is cut off or is not JSON: %s" % str(error)[:100]) from error
    top = _dict(data, "the response")
    found = _list(top.get("communicators"), "communicators", MOST_COMMUNICATORS)
    if _whole(top.get("communicators_count"), "communicators_count") != len(found):
        raise ParseError("communicators_count is %r, and there are %d" % (top["communicators_count"], len(found)))
    ras = _dict(top.get("ras", {}), "ras")
    communicators = tuple(_communicator(one, number) for number, one in enumerate(found))
    if len({one.name for one in communicators}) != len(communicators):
        raise ParseError("two communicators have the same hash")
    return RasStatus(
        form="json",
        version=_text(top.get("nccl_version"), "nccl_version", _VERSION),
        communicators=communicators,
        timeouts=_whole(ras.get("timeouts_count", 0), "timeouts_count"),
    )


def _communicator(data: object, number: int) -> Communicator:
    where = "communicators[%d]" % number
    one = _dict(data, where)
    size = _whole(one.get("size"), where + ".size", 1, MOST_RANKS)
    ranks = _list(one.get("ranks"), where + ".ranks", MOST_RANKS)
    absent = _list(one.get("missing_ranks"), where + ".missing_ranks", MOST_RANKS)
    for key, items in (("ranks_count", ranks), ("missing_ranks_count", absent)):
        if _whole(one.get(key), "%s.%s" % (where, key)) != len(items):
            raise ParseError("%s.%s is %r, and there are %d" % (where, key, one[key], len(items)))
    name = _text(one.get("hash"), where + ".hash", _HASH)
    if "secondary_hash" in one:
        name += ":" + _text(one["secondary_hash"], where + ".secondary_hash", _SECOND)
    places: Dict[int, Place] = {}
    statuses: Dict[str, List[int]] = {}
    errors: Dict[str, List[int]] = {}
    counts: Dict[str, Dict[int, List[int]]] = {}
    for item, each in enumerate(ranks):
        at = "%s.ranks[%d]" % (where, item)
        entry = _dict(each, at)
        rank = _rank(entry, at, size, places)
        places[rank] = _place(entry, at)
        state = _dict(entry.get("status"), at + ".status")
        statuses.setdefault(_status(state, at), []).append(rank)
        for key, kind in (("init_state", "initialization"), ("async_error", "asynchronous")):
            code = _whole(state.get(key), "%s.status.%s" % (at, key), 0, 1 << 16)
            if code not in (SUCCESS, IN_PROGRESS):
                errors.setdefault("%s: %s" % (kind, RESULTS.get(code, "result %d" % code)), []).append(rank)
        launched = _dict(entry.get("collective_counts"), at + ".collective_counts")
        if len(launched) > 64:
            raise ParseError("%s.collective_counts has %d collectives" % (at, len(launched)))
        for collective, count in launched.items():
            _text(collective, at + ".collective_counts", _NAME)
            value = _whole(count, "%s.collective_counts.%s" % (at, collective), 0, LARGEST)
            counts.setdefault(collective, {}).setdefault(value, []).append(rank)
    missing: Dict[int, Missing] = {}
    for item, each in enumerate(absent):
        at = "%s.missing_ranks[%d]" % (where, item)
        entry = _dict(each, at)
        rank = _rank(entry, at, size, missing)
        if rank in places:
            raise ParseError("%s.rank is %d, which is there and missing" % (at, rank))
        # Absent in the first releases with JSON.
        state = _dict(entry.get("status", {}), at + ".status")
        silent = _flag(state["unresponsive"], at + ".status.unresponsive") if "unresponsive" in state else None
        dead = _flag(state.get("considered_dead", False), at + ".status.considered_dead")
        place = _place(entry, at)
        missing[rank] = Missing(rank, place if place.host else None, None if silent is None else not silent, dead)
    return Communicator(
        name=name,
        size=size,
        places=places,
        counts={collective: _groups(of) for collective, of in counts.items()},
        statuses=_groups(statuses),
        errors=_groups(errors),
        missing=tuple(missing[rank] for rank in sorted(missing)),
        missing_number=len(missing),
    )


def _groups(of: Mapping[Any, List[int]]) -> Tuple[Group, ...]:
    found = [Group(value, len(ranks), tuple(sorted(ranks))) for value, ranks in of.items()]
    return tuple(sorted(found, key=lambda group: (-group.number, str(group.value))))


def _status(state: Mapping[str, object], at: str) -> str:
    """Return the status as the text names it."""
    if _flag(state.get("abort_flag"), at + ".status.abort_flag"):
        return ABORT
    ended = [_flag(state.get(key), "%s.status.%s" % (at, key)) for key in ("finalize_called", "destroy_flag")]
    if any(ended):
        return FINALIZE
    return RUNNING if state.get("init_state") == SUCCESS else INIT


def _rank(entry: Mapping[str, object], at: str, size: int, others: Mapping[int, object]) -> int:
    rank = _whole(entry.get("rank"), at + ".rank", 0, MOST_RANKS)
    if rank >= size:
        raise ParseError("%s.rank is %d, in a communicator of %d ranks" % (at, rank, size))
    if rank in others:
        raise ParseError("%s.rank is %d, which is there twice" % (at, rank))
    return rank


def _place(entry: Mapping[str, object], at: str) -> Place:
    host = _text(entry.get("host"), at + ".host", _HOST)
    return Place(
        host="" if host == "unknown" else host,
        pid=_whole(entry.get("pid"), at + ".pid", -1, 1 << 31),
        gpu=_whole(entry.get("cuda_dev"), at + ".cuda_dev", -1, 1 << 10),
        nvml=_whole(entry.get("nvml_dev"), at + ".nvml_dev", -1, 1 << 10),
    )


def _dict(value: object, where: str) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ParseError("%s is %s, expected an object" % (where, type(value).__name__))
    return value


def _list(value: object, where: str, most: int) -> List[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ParseError("%s is %s, expected a list of %d at most" % (where, type(value).__name__, most))
    return value


def _whole(value: object, where: str, low: int = 0, high: int = 1 << 31) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        # A number of thousands of digits refuses to be written.
        shown = "a number out of bounds" if isinstance(value, int) and value not in (0, 1) else "%.60r" % (value,)
        raise ParseError("%s is %s, expected a whole number from %d to %d" % (where, shown, low, high))
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ParseError("%s is %.60r, expected true or false" % (where, value))
    return value


def _text(value: object, where: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ParseError("%s is %.60r, which it cannot be" % (where, value))
    return value


def _no_number(name: str) -> Any:
    raise ValueError("%s is not a number" % name)


# -- text --------------------------------------------------------------------------------------------------------------

_LIBRARY = re.compile(r"NCCL version (\d[\w.+-]{0,40}) compiled with CUDA .*")
_ROW = re.compile(r"\s*\d{1,20}\s+(\d{1,20})\s+\d+\s+\d+(?:-\d+)?\s+(\d{1,20})\s+\d+\s+([A-Z]+)\s+([A-Z,]+)")
_TOTALS = re.compile(r"\s*\d+\s+\d+\s+\d+\s+(\d{1,20})\s+\d+|\s*\d{1,20}\s+(\d{1,20})\s+\d+")
_HEADING = re.compile(r"#(\d{1,20})-(\d{1,20}) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_GPU = r"GPU (\d{1,20})(?: \(NVML (\d{1,20})\))?"
_AT = _GPU + r" managed by process (\d{1,20}) on node (\S+)"
_PROCESS = re.compile(
    r"  Process (\d{1,20}) on node (\S+) managing GPUs? (\d{1,3}[\d,]{0,150}(?: \(NVML \d{1,3}[\d,]{0,150}\))?)"
)
_MEMBER = re.compile(r"  Rank (\d{1,20})(?: (has|reported) (.+?))? -- (?:%s|\[process information not found\])" % _AT)
_OF_TYPE = re.compile(r"  Communicator ranks have different (\w+) operation counts")
_MANY_LAUNCHED = re.compile(
    r"  (\d{1,20}) ranks have (?:launched up to operation (\d{1,20})|not launched any operations)"
)
_LAUNCHED = re.compile(r"launched up to operation (\d{1,20})|not launched any operations")
_MANY_STATUS = re.compile(r"  (\d{1,20}) ranks have status ([A-Z]+)")
_ONE_STATUS = re.compile(r"status ([A-Z]+)")
_MANY_REPORTED = re.compile(r"  (\d{1,20}) ranks reported (.+)")
_KIND = re.compile(r"  (Initialization|Asynchronous) errors? on (\d{1,20}) ranks?")
_NO_DATA = re.compile(r"  Missing communicator data from (\d{1,20}) ranks?")
# Before 2.26 without process or GPU.
_OLD_LIST = re.compile(
    r"  (?:The missing ranks?|The unknown ranks|Ranks?)?:? ?(\d{1,10}(?:,\d{1,10})*,?)(?: has status ([A-Z]+))?"
)
# What counts or names ranks must not be passed over: the rest would look as if all were alike.
_OF_RANKS = re.compile(r"  (Rank |\d)")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,20}) communication timeouts? while gathering communicator data")


@dataclass
class _Draft:
    """A communicator that lines are being read for."""

    name: str
    size: int = 0
    places: Dict[int, Place] = field(default_factory=dict)
    counts: Dict[str, List[Group]] = field(default_factory=dict)
    statuses: List[Group] = field(default_factory=list)
    errors: List[Group] = field(default_factory=list)
    missing: Dict[int, Missing] = field(default_factory=dict)
    missing_number: int = 0

    def finished(self) -> Communicator:
        return Communicator(
            name=self.name,
            size=self.size,
            places=self.places,
            counts={name: tuple(groups) for name, groups in self.counts.items() if groups},
            statuses=tuple(self.statuses),
            errors=tuple(self.errors),
            missing=tuple(self.missing[rank] for rank in sorted(self.missing)),
            missing_number=max(self.missing_number, len(self.missing)),
            whole=False,
        )


def parse_text(text: str) -> RasStatus:
    """Parse the output of ``verbose status``. Raises ParseError."""
    if not text.endswith("\n"):
        raise ParseError("RAS's text breaks off after %r" % text[-60:])
    lines = text.split("\n")
    parts = _parts(lines)
    version = next((match.group(1) for match in map(_LIBRARY.fullmatch, lines[:4]) if match), None)
    if version is None:
        raise ParseError("%r, expected 'NCCL version X.Y.Z compiled with CUDA ...'" % text[:60])
    rows = _rows(parts["Communicators"])
    drafts: Dict[str, _Draft] = {}
    absent: List[Absent] = []
    timeouts = 0
    for lines_of in (parts["Errors"], parts["Warnings"]):
        for block in _blocks(lines_of):
            heading = _HEADING.fullmatch(block[0])
            if heading:
                draft = drafts.setdefault(heading.group(3), _Draft("0x" + heading.group(3).lstrip("0")))
                group = int(heading.group(1))
                if group >= len(rows):
                    raise ParseError("%r, and the table has %d groups" % (block[0], len(rows)))
                draft.size = rows[group].size
                _block(draft, heading.group(4), block[1:])
            elif block[0] in ("INCOMPLETE", "DEAD"):
                found = [match for match in map(_PROCESS.fullmatch, block[1:]) if match]
                absent += [
                    Absent(_node(each.group(2), each.group(0)), int(each.group(1)), each.group(3), block[0] == "DEAD")
                    for each in found
                ]
            elif block[0] == "TIMEOUT":
                timeouts = next((int(match.group(1)) for match in map(_TIMEOUTS.fullmatch, block[1:]) if match), 1)
            else:
                raise ParseError("%r, which is not known of RAS" % block[0][:80])
    for draft in drafts.values():
        _check_bounds(draft)
    return RasStatus(
        form="text",
        version=version,
        communicators=tuple(draft.finished() for draft in drafts.values()),
        rows=tuple(rows),
        absent=tuple(absent),
        processes=_processes(parts["Job summary"]),
        timeouts=timeouts,
    )


def _parts(lines: Sequence[str]) -> Dict[str, List[str]]:
    """Return heading -> lines below it. Raises ParseError if one is missing: the output breaks off."""
    found: Dict[str, List[str]] = {}
    current: Optional[List[str]] = None
    for number, line in enumerate(lines):
        name = line.split("...")[0]
        if number + 1 < len(lines) and lines[number + 1].startswith("======") and name in _PARTS:
            current = found.setdefault(name, [])
        elif current is not None:
            current.append(line)
    for name in _PARTS:
        if name not in found:
            raise ParseError("RAS's text has no part %r: it breaks off, or is of a release that is not known" % name)
    return found


_PARTS = ("Job summary", "Communicators", "Errors", "Warnings")


def _rows(lines: Sequence[str]) -> List[Row]:
    found = []
    for match in filter(None, map(_ROW.fullmatch, lines)):
        number, size = int(match.group(1)), int(match.group(2))
        if not 0 < size <= MOST_RANKS or number > MOST_COMMUNICATORS:
            raise ParseError("%r, which no job has" % match.group(0)[:100])
        found.append(Row(number, size, match.group(3), match.group(4)))
    return found


def _processes(lines: Sequence[str]) -> Optional[int]:
    totals = [match.group(1) or match.group(2) for match in map(_TOTALS.fullmatch, lines) if match]
    return int(totals[-1]) if totals else None


def _blocks(lines: Sequence[str]) -> Iterator[List[str]]:
    """Each begins with a line that is not indented; empty lines may stand within."""
    block: List[str] = []
    for line in lines:
        if not line or line.startswith("==="):
            continue
        if not line.startswith(" "):
            if block:
                yield block
            block = []
        elif not block:
            raise ParseError("%r, expected what it is about before it" % line[:80])
        block.append(line)
    if block:
        yield block


def _block(draft: _Draft, kind: str, lines: Sequence[str]) -> None:
    """Lines below ``#0-0 (hash) KIND``. Others are passed over, unless they are about ranks."""
    collective, of_error, group = "", "", None
    groups: List[Group] = []
    for line in lines:
        different = _OF_TYPE.fullmatch(line)
        if different:
            # Before 2.26 they are counted together, which reads "collective".
            collective, group = different.group(1), None
            groups = draft.counts.setdefault(collective, [])
            continue
        if line == "  Communicator ranks have different status":
            collective, groups, group = "", draft.statuses, None
            continue
        error = _KIND.fullmatch(line)
        if error:
            of_error, groups, group = error.group(1).lower(), draft.errors, None
            continue
        number = _NO_DATA.fullmatch(line)
        if number:
            draft.missing_number = int(number.group(1))
            continue
        head = _many(line, of_error)
        if head is not None:
            groups.append(head)
            group = len(groups) - 1
            continue
        member = _MEMBER.fullmatch(line)
        if member is not None:
            rank, place = int(member.group(1)), _member_place(member)
            if place is not None:
                draft.places[rank] = place
            if kind == "INCOMPLETE":
                draft.missing[rank] = Missing(rank, place, reachable=False)
            elif member.group(2):
                groups.append(Group(_state_of(member.group(3), of_error), 1, (rank,)))
                group = None
            elif group is not None:
                groups[group] = Group(groups[group].value, groups[group].number, groups[group].ranks + (rank,))
            continue
        _old_lines(draft, kind, line, groups)


def _old_lines(draft: _Draft, kind: str, line: str, groups: List[Group]) -> None:
    old = _OLD_LIST.fullmatch(line)
    if old is None:
        if _OF_RANKS.match(line):
            raise ParseError("%r, which is not known of RAS" % line[:80])
        return
    ranks = [int(each) for each in old.group(1).split(",") if each]
    if kind == "INCOMPLETE":
        draft.missing.update({rank: Missing(rank, None) for rank in ranks})
    elif old.group(2):
        groups.append(Group(old.group(2), len(ranks), tuple(ranks)))
    elif groups:
        last = groups[-1]
        groups[-1] = Group(last.value, last.number, last.ranks + tuple(ranks))


def _many(line: str, of_error: str) -> Optional[Group]:
    """Parse a line on several ranks, which the lines below it may name; None for another line."""
    launched = _MANY_LAUNCHED.fullmatch(line)
    if launched:
        return Group(int(launched.group(2) or 0), int(launched.group(1)), ())
    status = _MANY_STATUS.fullmatch(line)
    if status:
        return Group(status.group(2), int(status.group(1)), ())
    reported = _MANY_REPORTED.fullmatch(line)
    if reported:
        return Group("%s: %s" % (of_error, reported.group(2).lower()), int(reported.group(1)), ())
    return None


def _state_of(text: str, of_error: str) -> Union[int, str]:
    """Return what one rank has launched, its status, or its error."""
    launched = _LAUNCHED.fullmatch(text)
    if launched:
        return int(launched.group(1) or 0)
    status = _ONE_STATUS.fullmatch(text)
    return status.group(1) if status else "%s: %s" % (of_error, text.lower())


def _member_place(member: re.Match[str]) -> Optional[Place]:
    if member.group(4) is None:
        return None
    gpu = int(member.group(4))
    nvml = gpu if member.group(5) is None else int(member.group(5))
    return Place(_node(member.group(7), member.group(0)), int(member.group(6)), gpu, nvml)


def _node(host: str, line: str) -> str:
    if _HOST.fullmatch(host) is None:
        raise ParseError("%r, expected an IP address in it" % line[:100])
    return host


def _check_bounds(draft: _Draft) -> None:
    """Raise ParseError for ranks and numbers that a communicator of this size cannot have."""
    named = [*draft.places, *draft.missing]
    for groups in (draft.statuses, draft.errors, *draft.counts.values()):
        named += [rank for group in groups for rank in group.ranks]
        for group in groups:
            if group.number < len(group.ranks) or group.number > draft.size:
                raise ParseError(
                    "communicator %s: %d ranks are alike, of which %d are named, in a communicator of %d"
                    % (draft.name, group.number, len(group.ranks), draft.size)
                )
            if isinstance(group.value, int) and group.value > LARGEST:
                raise ParseError("communicator %s: an operation count has more than 64 bits" % draft.name)
    if any(rank >= draft.size for rank in named):
        raise ParseError("communicator %s of %d ranks: there is no rank %d" % (draft.name, draft.size, max(named)))
    if draft.missing_number > draft.size:
        raise ParseError("communicator %s of %d ranks: %d are missing" % (draft.name, draft.size, draft.missing_number))
