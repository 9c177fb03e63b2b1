# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read dumps of PyTorch's NCCL flight recorder, pickles or JSON, as typed data.

A pickle may call any function of its reader. This reader knows only the opcodes of plain data, none that names a class
or calls a function, and refuses everything else (opcodes of protocols 2 to 5: Lib/pickletools.py of CPython).
Source: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (dump format 2.10; another first
number would change fields).
"""

from __future__ import annotations

import json
import pickle
import re
from io import BytesIO
from struct import error as StructError
from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Optional, Tuple

from ..core.finding import printable
from ..core.number import signed, whole

# Values and steps of one dump, of some 100 bytes each. 20,000 entries with their stacks have 2,000,000.
MOST_OBJECTS = 4_000_000
_PLAIN = "".join(
    (
        "\x80\x95(.",  # protocol, frame, mark, stop
        "N\x88\x89KMJ\x8aGX\x8c\x8dCB\x8e",  # None, booleans, numbers, texts, bytes
        "])}t\x85\x86\x87aesu",  # lists, tuples, dictionaries
        "qrhj\x94",  # the memo
    )
)
_SET_ITEM, _SET_ITEMS = ord("s"), ord("u")
_DAMAGED = (pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, StructError, TypeError)


class DumpError(ValueError):
    """The bytes are not a dump of the flight recorder; the message is a sentence about it."""


def parse_json(data: bytes) -> object:
    """Raises DumpError. Python itself limits digits and depth."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_OBJECTS:
        raise DumpError("it has more than %d objects" % MOST_OBJECTS)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (RecursionError, ValueError) as error:
        raise DumpError("it is not valid JSON: %.120s" % error) from error


def to_plain(value: object) -> Any:
    """Return named tuples, and what holds them, as dictionaries and lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _counted(opcode: int) -> Callable[[Any], None]:
    """Return a step that counts, and that takes texts and whole numbers alone as keys: the hash of others recurses."""
    step: Callable[[Any], None] = pickle._Unpickler.dispatch[opcode]

    def take(machine: Any) -> None:
        machine.steps += 1
        if machine.steps > MOST_OBJECTS:
            raise DumpError("the pickle has more than %d objects" % MOST_OBJECTS)
        keys = machine.stack[-2:-1] if opcode == _SET_ITEM else machine.stack[::2] if opcode == _SET_ITEMS else ()
        if not all(type(key) in (str, int) for key in keys):
            raise DumpError("the pickle has a key that is not a text or a whole number")
        step(machine)

    return take


class _PlainUnpickler(pickle._Unpickler):
    """Python's own machine with the opcodes of plain data alone; ``find_class`` and calls cannot be reached."""

    steps = 0
    dispatch: ClassVar[Dict[int, Callable[[Any], None]]] = {ord(opcode): _counted(ord(opcode)) for opcode in _PLAIN}


def parse_pickle(data: bytes) -> object:
    """Return None, bool, int, float, str, bytes, lists, tuples and dicts of them. Raises DumpError."""
    if data[:1] != b"\x80":
        raise DumpError("it is neither JSON nor a pickle of protocol 2 to 5")
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except DumpError:
        raise
    except KeyError as error:
        raise DumpError("the pickle has opcode %s: it is not plain data" % error) from error
    except (*_DAMAGED, ValueError) as error:
        raise DumpError("the pickle is damaged or cut off (%s)" % type(error).__name__) from error


MOST_BYTES = 64 << 20
# Values that the typed entries are made of; a pickle may name one list a million times.
MOST_READ = 20_000_000
# Ranks of one group.
MOST_RANKS = 200_000
_TEXT = 120

COMPLETED, STATES = "completed", ("scheduled", "started", "completed")
_P2P = re.compile(r"\w{1,10}:(?:send|recv) ")
_VERSION = re.compile(r"2\.[0-9]{1,3}")
_TORCH = re.compile(r"(?:^|/)torch/(?:distributed|_dynamo|_inductor|nn/modules)/")


class Ranks(Tuple[int, ...]):
    """Global ranks, sorted. Ten thousand dumps have a group of ten thousand: the hash is computed once."""

    def __hash__(self) -> int:
        found: int = self.__dict__.get("hash") or super().__hash__()
        self.__dict__["hash"] = found
        return found


class Group(NamedTuple):
    """A process group.   description: "" where the program has given none."""

    name: str
    description: str
    ranks: Ranks


class Operation(NamedTuple):
    """What ranks have to agree on.   name: ``nccl:all_reduce``.   sizes: shapes of the tensors.   types: ``Float``."""

    name: str
    input_sizes: Tuple[Tuple[int, ...], ...]
    output_sizes: Tuple[Tuple[int, ...], ...]
    input_types: Tuple[str, ...]
    output_types: Tuple[str, ...]


class Entry(NamedTuple):
    """One operation of a rank.   group_id: the rank's number of its process group, as in Dump.status.

    number: sequence number, of the collectives of the group or of the rank's own sends and receives.
    created: Unix time in ns.   timeout: ms.   place: ``FILE:LINE FUNCTION`` of the caller, "" where it is not there.
    """

    group: str
    group_id: int
    number: int
    is_p2p: bool
    state: str
    operation: Operation
    record: int
    created: int
    timeout: int
    place: str


class Status(NamedTuple):
    """Numbers of the last operation of a group; -1 for none."""

    enqueued: int
    completed: int


class Dump(NamedTuple):
    """nccl: ``2.28.9``, "" where it is not there.   groups: name -> group.

    status: number of a group -> its status.   entries: in the order of their records; JSON has no empty list.
    None: the dump does not have it.
    """

    version: str
    nccl: str
    groups: Dict[str, Group]
    status: Optional[Dict[int, Status]]
    entries: Optional[Tuple[Entry, ...]]


class Reader:
    """Makes typed data of the dumps of a job; equal texts, groups and operations of all ranks are stored once."""

    def __init__(self) -> None:
        self.left = 0
        self.texts: Dict[str, str] = {}
        self.operations: Dict[Operation, Operation] = {}
        self.groups: Dict[Tuple[str, str, str], Group] = {}

    def read(self, data: bytes) -> Dump:
        """Return the dump that a file holds. Raises DumpError."""
        if not 0 < len(data) <= MOST_BYTES:
            raise DumpError("it has more than %d MiB" % (MOST_BYTES >> 20) if data else "it is empty")
        self.left = MOST_READ
        is_json = data.lstrip(b" \t\r\n\xef\xbb\xbf")[:1] == b"{"
        fields = self._mapping(parse_json(data) if is_json else parse_pickle(data), "the dump")
        version, nccl = fields.get("version"), fields.get("comm_lib_version", fields.get("nccl_version"))
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise DumpError("its format is %s, and 2.x is known" % _quoted(version))
        config = self._mapping(fields.get("pg_config"), "pg_config").items()
        groups = [self._group(str(name), value) for name, value in config]
        entries = None
        if fields.get("entries") is not None:
            entries = tuple(self._entry(item) for item in self._sequence(fields["entries"], "entries"))
        return Dump(
            version,
            self._short(nccl) if isinstance(nccl, str) else "",
            {group.name: group for group in groups},
            self._statuses(fields["pg_status"]) if "pg_status" in fields else None,
            entries,
        )

    def _group(self, name: str, data: object) -> Group:
        fields = self._mapping(data, "a group of pg_config")
        text, description = fields.get("ranks"), fields.get("desc", "")
        if not isinstance(text, str) or not isinstance(description, str) or len(text) > 8 * MOST_RANKS:
            raise DumpError("ranks or desc of a group are not texts, or too long")
        key = self._short(name), "" if description == "undefined" else self._short(description), text
        if key not in self.groups:
            numbers = [whole(part.strip()) for part in text.strip("[] ").split(",") if part.strip()]
            ranks = sorted({number for number in numbers if number is not None and number < 1 << 31})
            if len(numbers) > MOST_RANKS or len(ranks) < len(set(numbers)):
                raise DumpError("the ranks of a group are not a list of numbers")
            self.groups[key] = Group(*key[:2], Ranks(ranks))
        return self.groups[key]

    def _statuses(self, data: object) -> Dict[int, Status]:
        found = {}
        for key, value in self._mapping(data, "pg_status").items():
            number, fields = whole(str(key)[:40]), self._mapping(value, "a group of pg_status")
            if number is not None:
                names = ("last_enqueued_collective", "last_completed_collective")
                found[number] = Status(*(_integer(fields, name) for name in names))
        return found

    def _entry(self, data: object) -> Entry:
        fields = self._mapping(data, "an entry")
        pair, name, state = fields.get("process_group"), fields.get("profiling_name"), fields.get("state")
        texts = [*self._sequence(pair, "process_group", 2), name]
        if len(texts) != 3 or not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
            raise DumpError("process_group or profiling_name of an entry are not texts")
        is_p2p = fields.get("is_p2p", _P2P.match(name) is not None)
        if not isinstance(state, str) or state not in STATES or not isinstance(is_p2p, bool):
            raise DumpError("an entry has state %s; %s are known" % (_quoted(state), ", ".join(STATES)))
        operation = Operation(
            self._short(name),
            self._sizes(fields.get("input_sizes")),
            self._sizes(fields.get("output_sizes")),
            self._types(fields.get("input_dtypes", ())),
            self._types(fields.get("output_dtypes", ())),
        )
        return Entry(
            group=self._short(texts[0]),
            group_id=_integer(fields, "pg_id"),
            number=_integer(fields, "p2p_seq_id" if is_p2p else "collective_seq_id"),
            is_p2p=is_p2p,
            state=self._short(state),
            operation=self.operations.setdefault(operation, operation),
            record=_integer(fields, "record_id"),
            created=_integer(fields, "time_created_ns"),
            timeout=_integer(fields, "timeout_ms") if "timeout_ms" in fields else 0,
            place=self._place(fields.get("frames")),
        )

    def _sizes(self, data: object) -> Tuple[Tuple[int, ...], ...]:
        shapes = [tuple(self._sequence(shape, "a shape", 64)) for shape in self._sequence(data, "sizes")]
        if not all(_is_integer(number) for shape in shapes for number in shape):
            raise DumpError("a shape of an entry is not a list of numbers")
        return tuple(shapes)

    def _types(self, data: object) -> Tuple[str, ...]:
        found = self._sequence(data, "types")
        if not all(isinstance(text, str) for text in found):
            raise DumpError("a type of an entry is not a text")
        return tuple(map(self._short, found))

    def _place(self, frames: object) -> str:
        """Return the caller of PyTorch, innermost first; "" where no frame has the known form."""
        for frame in self._sequence(frames, "frames") if isinstance(frames, (list, tuple)) else ():
            if not isinstance(frame, dict):
                return ""
            file, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            if isinstance(file, str) and isinstance(name, str) and _is_integer(line) and not _TORCH.search(file):
                return self._short("%s:%s %s" % (file[-_TEXT // 2 :], line, name[: _TEXT // 3]))
        return ""

    def _mapping(self, data: object, what: str) -> Dict[Any, Any]:
        if not isinstance(data, dict):
            raise DumpError("%s is not a mapping, or missing" % what)
        self._spend(len(data))
        return data

    def _sequence(self, data: object, what: str, most: int = MOST_OBJECTS) -> List[Any]:
        if not isinstance(data, (list, tuple)) or len(data) > most:
            raise DumpError("%s of the dump is not a list, or too long" % what)
        self._spend(len(data))
        return list(data)

    def _short(self, text: str) -> str:
        """Return a text that may be printed, stored once."""
        text = printable(text[:_TEXT])
        return self.texts.setdefault(text, text)

    def _spend(self, number: int) -> None:
        """Raises DumpError where the parts of the dump, each as often as it is named, are too many."""
        self.left -= number + 1
        if self.left < 0:
            raise DumpError("its parts have more than %d values" % MOST_READ)


def _integer(fields: Dict[Any, Any], key: str) -> int:
    """Return a number; JSON has those of pg_status as texts."""
    value = fields.get(key)
    number = signed(value) if isinstance(value, str) else value
    if not isinstance(number, int) or not _is_integer(number):
        raise DumpError("%s is not a number, or missing" % key)
    return number


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _quoted(value: object) -> str:
    """Return at most 20 characters of a value. Of what holds others only its type: it may be nested without end."""
    if isinstance(value, (str, bytes)):
        value = value[:20]
    return "%.20r" % (value,) if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__
