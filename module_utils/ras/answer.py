# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the status of a running job by NCCL's RAS: the JSON of 2.28.7 and later; answer_text has the text before it.

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
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

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

    @property
    def place(self) -> Place:
        """Return its first GPU: in the process, and on the node where that is another number."""
        words = self.gpus.replace("(NVML ", "").replace(")", "").split()
        numbers = [int(word.split(",")[0]) for word in words]
        return Place(self.host, self.pid, numbers[0], numbers[-1])


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
HOST = re.compile(r"[0-9A-Fa-f:.]{1,45}(%[\w.-]{1,15})?|unknown")
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
    reported = _reported(ranks, where, size)
    missing = _absent(absent, where, size, reported.places)
    return Communicator(
        name=name,
        size=size,
        places=reported.places,
        counts={collective: _groups(of) for collective, of in reported.counts.items()},
        statuses=_groups(reported.statuses),
        errors=_groups(reported.errors),
        missing=tuple(missing[rank] for rank in sorted(missing)),
        missing_number=len(missing),
    )


class _Reported(NamedTuple):
    """Ranks of a communicator: their places, and by what they report."""

    places: Dict[int, Place]
    statuses: Dict[str, List[int]]
    errors: Dict[str, List[int]]
    counts: Dict[str, Dict[int, List[int]]]


def _reported(ranks: Sequence[object], where: str, size: int) -> _Reported:
    found = _Reported({}, {}, {}, {})
    for item, each in enumerate(ranks):
        at = "%s.ranks[%d]" % (where, item)
        entry = _dict(each, at)
        rank = _rank(entry, at, size, found.places)
        found.places[rank] = _place(entry, at)
        state = _dict(entry.get("status"), at + ".status")
        found.statuses.setdefault(_status(state, at), []).append(rank)
        for key, kind in (("init_state", "initialization"), ("async_error", "asynchronous")):
            code = _whole(state.get(key), "%s.status.%s" % (at, key), 0, 1 << 16)
            if code not in (SUCCESS, IN_PROGRESS):
                what = "%s: %s" % (kind, RESULTS.get(code, "result %d" % code))
                found.errors.setdefault(what, []).append(rank)
        launched = _dict(entry.get("collective_counts"), at + ".collective_counts")
        if len(launched) > 64:
            raise ParseError("%s.collective_counts has %d collectives" % (at, len(launched)))
        for collective, count in launched.items():
            _text(collective, at + ".collective_counts", _NAME)
            value = _whole(count, "%s.collective_counts.%s" % (at, collective), 0, LARGEST)
            found.counts.setdefault(collective, {}).setdefault(value, []).append(rank)
    return found


def _absent(absent: Sequence[object], where: str, size: int, there: Mapping[int, Place]) -> Dict[int, Missing]:
    missing: Dict[int, Missing] = {}
    for item, each in enumerate(absent):
        at = "%s.missing_ranks[%d]" % (where, item)
        entry = _dict(each, at)
        rank = _rank(entry, at, size, missing)
        if rank in there:
            raise ParseError("%s.rank is %d, which is there and missing" % (at, rank))
        # Absent in the first releases with JSON.
        state = _dict(entry.get("status", {}), at + ".status")
        silent = _flag(state["unresponsive"], at + ".status.unresponsive") if "unresponsive" in state else None
        dead = _flag(state.get("considered_dead", False), at + ".status.considered_dead")
        place = _place(entry, at)
        missing[rank] = Missing(rank, place if place.host else None, None if silent is None else not silent, dead)
    return missing


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
    host = _text(entry.get("host"), at + ".host", HOST)
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
