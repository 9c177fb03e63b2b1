# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the status of a running job by NCCL's RAS: the JSON of 2.28.7 and later.

Any process of a job reports the whole job, each rank with all it has launched.
Counts are of collectives that were launched, by the host's side of NCCL, not of those that have ended; send and
receive (alltoall, pipeline stages) and CUDA graphs are not counted.
Sources: NCCL 2.28.7 to 2.30.7, src/ras/client_support.cc, docs/userguide troubleshooting/ras.rst.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Container, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

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
# As many as a module's result may hold. Counters have 64 bits.
MOST_RANKS, MOST_COMMUNICATORS, LARGEST = 20_000, 1 << 14, (1 << 64) - 1


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
    """Ranks of which the same is true."""

    value: Union[int, str]
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
class Progress:
    """Difference of a communicator from the response before. moved: a rank has launched something.

    back: ranks whose counts fell, which is impossible.   settled: its ranks' statuses are the same.
    """

    moved: bool
    back: Tuple[int, ...]
    settled: bool


@dataclass(frozen=True)
class Communicator:
    """name: its hash and, if reported, what makes it unique (``0xa98:0x90:0x11``). size: ranks it must have.

    counts: collective -> groups by the number launched, most ranks first.
    statuses, errors: groups by status and by kind of error.   progress: None if there was one response.
    """

    name: str
    size: int
    places: Mapping[int, Place] = field(default_factory=dict)
    counts: Mapping[str, Tuple[Group, ...]] = field(default_factory=dict)
    statuses: Tuple[Group, ...] = ()
    errors: Tuple[Group, ...] = ()
    missing: Tuple[Missing, ...] = ()
    progress: Optional[Progress] = None

    @property
    def launched(self) -> Dict[int, Dict[str, int]]:
        """Rank -> collective -> number."""
        found: Dict[int, Dict[str, int]] = {}
        for collective, groups in self.counts.items():
            for group in groups:
                for rank in group.ranks:
                    found.setdefault(rank, {})[collective] = int(group.value)
        return found

    def since(self, before: Communicator) -> Progress:
        """Return the difference from the response before."""
        old, new = before.launched, self.launched
        both = old.keys() & new.keys()
        back = [rank for rank in both if any(new[rank].get(name, count) < count for name, count in old[rank].items())]
        moved = any(old[rank] != new[rank] for rank in both)
        return Progress(moved, tuple(sorted(back)), before.statuses == self.statuses)


@dataclass(frozen=True)
class RasStatus:
    """version: of NCCL."""

    version: str
    communicators: Tuple[Communicator, ...]


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,7``."""
    parts: List[List[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else "%d-%d" % (low, high) for low, high in parts)


# -- JSON --------------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")
_HASH = re.compile(r"0x[0-9a-f]{1,16}")
_SECOND = re.compile(r"0x[0-9a-f]{1,16}:0x[0-9a-f]{1,16}")
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?[ -~]{0,40}")
# An IP address; what RAS does not find is "unknown".
_HOST = re.compile(r"[0-9A-Fa-f:.]{1,45}(%[\w.-]{1,15})?|unknown")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_ERRORS = {"init_state": "initialization", "async_error": "asynchronous"}
# 2.28.9 omits the comma before the status of a missing rank.
_FORGOTTEN = re.compile(r'("nvml_dev": -?[0-9]{1,9})(\s{1,200}"status": \{)')


def _get(data: object, key: str, kind: Type[_T]) -> _T:
    """Return a value of an object in the JSON. Raises ParseError where it has another type, as the functions below."""
    if not isinstance(data, dict):
        raise ParseError("%s is expected in an object, not in %s" % (key, type(data).__name__))
    value = data.get(key)
    # A flag is no number.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = type(value).__name__ if isinstance(value, (dict, list)) else "%.60r" % (value,)
        raise ParseError("%s is %s, expected %s" % (key, shown, kind.__name__))
    return value


def _whole(data: object, key: str, low: int = 0, high: int = 1 << 31) -> int:
    value = _get(data, key, int)
    if not low <= value <= high:
        # A number of thousands of digits refuses to be written.
        raise ParseError("%s is a number out of bounds, expected %d to %d" % (key, low, high))
    return value


def _text(data: object, key: str, pattern: re.Pattern[str]) -> str:
    value = _get(data, key, str)
    if pattern.fullmatch(value) is None:
        raise ParseError("%s is %.60r, which it cannot be" % (key, value))
    return value


def _items(data: object, key: str, most: int) -> List[object]:
    """Return the items of a list whose number stands beside it."""
    found: List[object] = _get(data, key, list)
    if len(found) > most or _whole(data, key + "_count") != len(found):
        raise ParseError("%s has %d items, which is not %s_count, or more than %d" % (key, len(found), key, most))
    return found


def parse_json(text: str) -> RasStatus:
    """Parse the JSON. Raises ParseError, which quotes what is wrong."""
    try:
        top = json.loads(_FORGOTTEN.sub(r"\1,\2", text), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ParseError("RAS's output is cut off or is not JSON: %s" % str(error)[:100]) from error
    communicators = tuple(map(_communicator, _items(top, "communicators", MOST_COMMUNICATORS)))
    if len({one.name for one in communicators}) != len(communicators):
        raise ParseError("two communicators have the same hash")
    return RasStatus(_text(top, "nccl_version", _VERSION), communicators)


def _communicator(given: object) -> Communicator:
    size, name = _whole(given, "size", 1, MOST_RANKS), _text(given, "hash", _HASH)
    if isinstance(given, dict) and given.get("secondary_hash") is not None:
        name += ":" + _text(given, "secondary_hash", _SECOND)
    places: Dict[int, Place] = {}
    counts: Dict[str, List[Tuple[int, int]]] = {}
    statuses: List[Tuple[str, int]] = []
    errors: List[Tuple[str, int]] = []
    for entry in _items(given, "ranks", MOST_RANKS):
        rank = _rank(entry, size, places)
        places[rank] = _place(entry)
        state = _get(entry, "status", dict)
        statuses.append((_status(state), rank))
        errors += [(kind, rank) for kind in _errors(state)]
        launched = _get(entry, "collective_counts", dict)
        if len(launched) > 64:
            raise ParseError("collective_counts has %d collectives" % len(launched))
        for collective in launched:
            if not isinstance(collective, str) or _NAME.fullmatch(collective) is None:
                raise ParseError("a collective is %.60r, which it cannot be" % (collective,))
            counts.setdefault(collective, []).append((_whole(launched, collective, 0, LARGEST), rank))
    missing: Dict[int, Missing] = {}
    for entry in _items(given, "missing_ranks", MOST_RANKS):
        rank = _rank(entry, size, missing)
        if rank in places:
            raise ParseError("rank is %d, which is there and missing" % rank)
        missing[rank] = _missing(entry, rank)
    return Communicator(
        name=name,
        size=size,
        places=places,
        counts={collective: _groups(pairs) for collective, pairs in counts.items()},
        statuses=_groups(statuses),
        errors=_groups(errors),
        missing=tuple(missing[rank] for rank in sorted(missing)),
    )


def _groups(pairs: Iterable[Tuple[Union[int, str], int]]) -> Tuple[Group, ...]:
    found: Dict[Union[int, str], List[int]] = {}
    for value, rank in pairs:
        found.setdefault(value, []).append(rank)
    groups = [Group(value, tuple(sorted(ranks))) for value, ranks in found.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), str(group.value))))


def _status(state: object) -> str:
    """Return the status as NCCL's text names it."""
    if _get(state, "abort_flag", bool):
        return ABORT
    if _get(state, "finalize_called", bool) or _get(state, "destroy_flag", bool):
        return FINALIZE
    return RUNNING if _whole(state, "init_state", 0, 1 << 16) == SUCCESS else INIT


def _errors(state: object) -> List[str]:
    codes = [(kind, _whole(state, key, 0, 1 << 16)) for key, kind in _ERRORS.items()]
    names = [
        (kind, RESULTS.get(code, "result %d" % code)) for kind, code in codes if code not in (SUCCESS, IN_PROGRESS)
    ]
    return ["%s: %s" % pair for pair in names]


def _missing(entry: object, rank: int) -> Missing:
    # Absent in the first releases with JSON.
    state: Dict[str, object] = {"considered_dead": False}
    if isinstance(entry, dict) and "status" in entry:
        state.update(_get(entry, "status", dict))
    reachable = not _get(state, "unresponsive", bool) if "unresponsive" in state else None
    place = _place(entry)
    return Missing(rank, place if place.host else None, reachable, _get(state, "considered_dead", bool))


def _rank(entry: object, size: int, others: Container[int]) -> int:
    rank = _whole(entry, "rank", 0, MOST_RANKS)
    if rank >= size:
        raise ParseError("rank is %d, in a communicator of %d ranks" % (rank, size))
    if rank in others:
        raise ParseError("rank is %d, which is there twice" % rank)
    return rank


def _place(entry: object) -> Place:
    host = _text(entry, "host", _HOST)
    gpu, nvml = (_whole(entry, key, -1, 1 << 10) for key in ("cuda_dev", "nvml_dev"))
    return Place("" if host == "unknown" else host, _whole(entry, "pid", -1, 1 << 31), gpu, nvml)


def _no_number(name: str) -> Any:
    raise ValueError("%s is not a number" % name)
