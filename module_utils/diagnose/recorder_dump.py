# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read dumps of PyTorch's NCCL flight recorder: pickles without a class, or JSON.

A pickle may call any function of the reader. This reader knows only the opcodes of plain data, none that names a class
or calls one, and refuses everything else. Sizes, nesting, numbers of objects and memory are limited.
Sources: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (dump format 2.10; a change of the
first number would change fields), Lib/pickletools.py of CPython (opcodes of protocols 2 to 5).
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Tuple

from ..core.finding import printable
from ..core.number import whole

# Of one dump. 20,000 entries with their stacks have some 10 MiB and 2,000,000 objects.
MOST_BYTES = 64 << 20
MOST_OBJECTS = 4_000_000
MOST_MEMORY = 512 << 20
MOST_DEPTH = 32
# Characters of a text: stacks have names of files, of generated functions, too.
LONGEST = 64 << 10
# Of a number: 64 bits and a sign.
LONGEST_NUMBER = 9
# Values that the typed entries are made of; a pickle may name one list a million times.
MOST_READ = 20_000_000
# Ranks of one group.
MOST_RANKS = 200_000
# Bytes of an object without its content.
_OBJECT = 64
_TEXT = 120

COMPLETED, STATES = "completed", ("scheduled", "started", "completed")
_P2P = re.compile(r"\w{1,10}:(?:send|recv) ")
_VERSION = re.compile(r"2\.[0-9]{1,3}")
_TORCH = re.compile(r"(?:^|/)torch/(?:distributed|_dynamo|_inductor|nn/modules)/")


class DumpError(ValueError):
    """The bytes are not a dump of the flight recorder; the message is a sentence about it."""


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
    """One operation of a rank.

    group: name of its process group.   group_id: the rank's number of the group, as in Dump.status.
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


# -- JSON --------------------------------------------------------------------------------------------------------------


def parse_json(data: bytes) -> object:
    """Raises DumpError."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_OBJECTS:
        raise DumpError("it has more than %d objects" % MOST_OBJECTS)
    try:
        text = data.decode("utf-8-sig")
        return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except RecursionError as error:
        raise DumpError("it is nested too deep") from error
    except UnicodeDecodeError as error:
        raise DumpError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise DumpError("it is not valid JSON: line %d" % error.lineno) from error


def _integer(text: str) -> int:
    number = whole(text.lstrip("-"))
    if number is None:
        raise DumpError("it has a number of %d digits" % len(text))
    return -number if text.startswith("-") else number


def _float(text: str) -> float:
    if len(text) > 40:
        raise DumpError("it has a number of %d digits" % len(text))
    return float(text)


def _constant(text: str) -> NoReturn:
    raise DumpError("it has %s in place of a number" % text)


# -- pickle ------------------------------------------------------------------------------------------------------------

_MARK = object()
_CONTAINERS = (list, tuple, dict)
# Opcodes of plain values -> the value.
_VALUES = {b"N": None, b"\x88": True, b"\x89": False}
# Opcodes of integers -> their form.
_INTEGERS = {b"K": struct.Struct("<B"), b"M": struct.Struct("<H"), b"J": struct.Struct("<i")}
_ONE, _FOUR, _EIGHT = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")
# Opcodes of texts and bytes -> the form of their length.
_STRINGS = {b"\x8c": _ONE, b"X": _FOUR, b"\x8d": _EIGHT}
_BYTES = {b"C": _ONE, b"B": _FOUR, b"\x8e": _EIGHT}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
# Opcodes of the memo -> the form of the place.
_PUTS, _GETS = {b"q": _ONE, b"r": _FOUR}, {b"h": _ONE, b"j": _FOUR}
_CLASSES = {
    **dict.fromkeys((b"c", b"i", b"o", b"\x93", b"\x82", b"\x83", b"\x84"), "names a class"),
    **dict.fromkeys((b"R", b"b", b"\x81", b"\x92"), "calls a class or function"),
    **dict.fromkeys((b"P", b"Q"), "names an object outside of it"),
}


class _Machine:
    """The pickle machine, for plain data. Each object costs one of MOST_OBJECTS, and what it holds, of MOST_MEMORY."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0
        self.stack: List[Any] = []
        self.marks: List[int] = []
        self.memo: Dict[int, Any] = {}
        self.objects = self.memory = 0
        # Identity of a container -> how deep it is, and itself, so that no other one gets its identity.
        self.depths: Dict[int, Tuple[int, Any]] = {}
        self.calls: Dict[bytes, Callable[[], None]] = {
            b"(": self.mark,
            b"]": lambda: self.container([]),
            b"}": lambda: self.container({}),
            b")": lambda: self.container(()),
            b"t": lambda: self.container(tuple(self.marked())),
            b"a": lambda: self.append(self.pop(1)),
            b"e": lambda: self.append(self.marked()),
            b"s": lambda: self.set_items(self.pop(2)),
            b"u": lambda: self.set_items(self.marked()),
            b"G": lambda: self.push(self.number(struct.Struct(">d"))),
            b"\x8a": self.long,
            b"\x94": lambda: self.put(len(self.memo)),
            b"\x80": self.protocol,
            # A frame only says how long it is.
            b"\x95": lambda: self.number(_EIGHT) and None,
        }

    def run(self) -> object:
        while True:
            opcode = self.take(1)
            # The most frequent ones first.
            if opcode in _GETS:
                self.get(self.number(_GETS[opcode]))
            elif opcode in _PUTS:
                self.put(self.number(_PUTS[opcode]))
            elif opcode in self.calls:
                self.calls[opcode]()
            elif opcode in _INTEGERS:
                self.push(self.number(_INTEGERS[opcode]))
            elif opcode in _VALUES:
                self.push(_VALUES[opcode])
            elif opcode in _STRINGS:
                self.push(self.text(self.string(_STRINGS[opcode])))
            elif opcode in _TUPLES:
                self.container(tuple(self.pop(_TUPLES[opcode])))
            elif opcode in _BYTES:
                self.push(self.string(_BYTES[opcode]))
            elif opcode == b".":
                return self.end()
            else:
                why = _CLASSES.get(opcode, "has opcode 0x%02x" % opcode[0])
                raise DumpError("the pickle %s at byte %d: it is not plain data" % (why, self.position - 1))

    def end(self) -> object:
        if len(self.stack) != 1 or self.marks:
            raise DumpError("the pickle ends with %d values" % len(self.stack))
        return self.stack[0]

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise DumpError("the pickle is cut off at byte %d" % len(self.data))
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, form: struct.Struct) -> Any:
        start = self.position
        self.position = end = start + form.size
        if end > len(self.data):
            raise DumpError("the pickle is cut off at byte %d" % len(self.data))
        return form.unpack_from(self.data, start)[0]

    def string(self, form: struct.Struct) -> bytes:
        size = self.number(form)
        if size > LONGEST:
            raise DumpError("the pickle has a text of %d bytes" % size)
        self.memory += size
        return self.take(size)

    def text(self, data: bytes) -> str:
        try:
            # Python writes a lone surrogate of a file name as it is.
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DumpError("the pickle has a text that is not UTF-8") from error

    def long(self) -> None:
        size = self.number(_ONE)
        if size > LONGEST_NUMBER:
            raise DumpError("the pickle has a number of %d bytes" % size)
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def protocol(self) -> None:
        number = self.number(_ONE)
        if self.position != 2 or not 2 <= number <= 5:
            raise DumpError("the pickle has protocol %d; 2 to 5 are known" % number)

    def push(self, value: Any) -> None:
        self.objects += 1
        self.memory += _OBJECT
        if self.objects > MOST_OBJECTS:
            raise DumpError("the pickle has more than %d objects" % MOST_OBJECTS)
        if self.memory > MOST_MEMORY:
            raise DumpError("the pickle needs more than %d MiB" % (MOST_MEMORY >> 20))
        self.stack.append(value)

    def container(self, value: Any) -> None:
        self.memory += 8 * len(value)
        self.push(value)
        if value:
            self.deepen(value, value)

    def deepen(self, outer: Any, added: Any) -> None:
        """Note how deep a container is, where that is more than one."""
        inner = [self.depths.get(id(item), (1,))[0] for item in added if type(item) in _CONTAINERS]
        if inner:
            depth = max(inner) + 1
            if depth > MOST_DEPTH:
                raise DumpError("the pickle is nested more than %d deep" % MOST_DEPTH)
            if depth > self.depths.get(id(outer), (1,))[0]:
                self.depths[id(outer)] = depth, outer

    def mark(self) -> None:
        if len(self.marks) >= MOST_DEPTH:
            raise DumpError("the pickle is nested more than %d deep" % MOST_DEPTH)
        self.marks.append(len(self.stack))

    def pop(self, number: int) -> List[Any]:
        if len(self.stack) - number < (self.marks[-1] if self.marks else 0):
            raise DumpError("the pickle takes more values than it has, at byte %d" % self.position)
        found = self.stack[len(self.stack) - number :]
        del self.stack[len(self.stack) - number :]
        return found

    def marked(self) -> List[Any]:
        if not self.marks:
            raise DumpError("the pickle takes more values than it has, at byte %d" % self.position)
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def top(self, kind: type) -> Any:
        [value] = self.pop(1)
        if type(value) is not kind:
            raise DumpError("the pickle takes a %s for a %s" % (type(value).__name__, kind.__name__))
        self.stack.append(value)
        return value

    def append(self, values: List[Any]) -> None:
        target = self.top(list)
        self.memory += 8 * len(values)
        target.extend(values)
        self.deepen(target, values)

    def set_items(self, values: List[Any]) -> None:
        target = self.top(dict)
        keys, items = values[::2], values[1::2]
        if len(keys) != len(items) or not all(type(key) in (str, int) for key in keys):
            raise DumpError("the pickle has a key that is not a text or a whole number")
        self.memory += 100 * len(keys)
        target.update(zip(keys, items))
        self.deepen(target, items)

    def put(self, place: int) -> None:
        if not self.stack or place > MOST_OBJECTS:
            raise DumpError("the pickle stores no value, at byte %d" % self.position)
        self.memory += 100 * (place not in self.memo)
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        if place not in self.memo:
            raise DumpError("the pickle takes a value that it has not stored, at byte %d" % self.position)
        self.push(self.memo[place])


def parse_pickle(data: bytes) -> object:
    """Return None, bool, int, float, str, bytes, lists, tuples and dicts of them. Raises DumpError."""
    if data[:1] != b"\x80":
        raise DumpError("it is neither JSON nor a pickle of protocol 2 to 5")
    return _Machine(data).run()


# -- typed data --------------------------------------------------------------------------------------------------------


class Reader:
    """Makes typed data of the dumps of a job; equal texts, groups and operations of all ranks are stored once."""

    def __init__(self) -> None:
        self.left = 0
        self.texts: Dict[str, str] = {}
        self.operations: Dict[Operation, Operation] = {}
        self.groups: Dict[Tuple[str, str, str], Group] = {}

    def read(self, data: bytes) -> Dump:
        """Return the dump that a file holds. Raises DumpError."""
        if len(data) > MOST_BYTES:
            raise DumpError("it has more than %d MiB" % (MOST_BYTES >> 20))
        if not data:
            raise DumpError("it is empty")
        is_json = data.lstrip(b" \t\r\n\xef\xbb\xbf")[:1] == b"{"
        self.left = MOST_READ
        return self.dump(parse_json(data) if is_json else parse_pickle(data))

    def dump(self, data: object) -> Dump:
        fields = self.mapping(data, "the dump")
        version = self.string(fields, "version")
        if not _VERSION.fullmatch(version):
            raise DumpError("its format is %r, and 2.x is known" % version[:20])
        if "pg_config" not in fields:
            raise DumpError("it has no pg_config, so its process groups are not known")
        groups = {}
        for name, value in self.mapping(fields["pg_config"], "pg_config").items():
            group = self.group(str(name), self.mapping(value, "a group of pg_config"))
            groups[group.name] = group
        entries = None
        if fields.get("entries") is not None:
            entries = tuple(self.entry(item) for item in self.sequence(fields["entries"], "entries"))
        nccl = fields.get("comm_lib_version", fields.get("nccl_version"))
        return Dump(
            version,
            self.short(nccl) if isinstance(nccl, str) else "",
            groups,
            self.statuses(fields["pg_status"]) if "pg_status" in fields else None,
            entries,
        )

    def group(self, name: str, fields: Dict[Any, Any]) -> Group:
        text, description = fields.get("ranks"), fields.get("desc", "")
        if not isinstance(text, str) or not isinstance(description, str) or len(text) > 8 * MOST_RANKS:
            raise DumpError("ranks or desc of a group are not texts, or too long")
        key = self.short(name), "" if description == "undefined" else self.short(description), text
        if key not in self.groups:
            numbers = [whole(part.strip()) for part in text.strip("[] ").split(",") if part.strip()]
            if len(numbers) > MOST_RANKS or any(number is None or number >= 1 << 31 for number in numbers):
                raise DumpError("the ranks of a group are not a list of numbers")
            self.groups[key] = Group(*key[:2], Ranks(sorted({number for number in numbers if number is not None})))
        return self.groups[key]

    def statuses(self, data: object) -> Dict[int, Status]:
        found = {}
        for key, value in self.mapping(data, "pg_status").items():
            number = whole(str(key)[:40])
            fields = self.mapping(value, "a group of pg_status")
            if number is not None:
                names = ("last_enqueued_collective", "last_completed_collective")
                found[number] = Status(*(self.signed(fields.get(name), name) for name in names))
        return found

    def entry(self, data: object) -> Entry:
        fields = self.mapping(data, "an entry")
        pair = self.sequence(fields.get("process_group"), "process_group", 2)
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise DumpError("process_group of an entry is not a name and a description")
        name = self.string(fields, "profiling_name")
        is_p2p = fields.get("is_p2p", _P2P.match(name) is not None)
        state = self.string(fields, "state")
        if state not in STATES or not isinstance(is_p2p, bool):
            raise DumpError("an entry has state %r; %s are known" % (state[:20], ", ".join(STATES)))
        return Entry(
            group=self.short(pair[0]),
            group_id=self.integer(fields, "pg_id"),
            number=self.integer(fields, "p2p_seq_id" if is_p2p else "collective_seq_id"),
            is_p2p=is_p2p,
            state=state,
            operation=self.operation(name, fields),
            record=self.integer(fields, "record_id"),
            created=self.integer(fields, "time_created_ns"),
            timeout=self.integer(fields, "timeout_ms") if "timeout_ms" in fields else 0,
            place=self.place(fields.get("frames")),
        )

    def operation(self, name: str, fields: Dict[Any, Any]) -> Operation:
        found = Operation(
            self.short(name),
            self.sizes(fields.get("input_sizes")),
            self.sizes(fields.get("output_sizes")),
            self.types(fields.get("input_dtypes", ())),
            self.types(fields.get("output_dtypes", ())),
        )
        return self.operations.setdefault(found, found)

    def sizes(self, data: object) -> Tuple[Tuple[int, ...], ...]:
        shapes = []
        for shape in self.sequence(data, "sizes"):
            numbers = self.sequence(shape, "a shape", 64)
            if not all(type(number) is int for number in numbers):
                raise DumpError("a shape of an entry is not a list of numbers")
            shapes.append(tuple(numbers))
        return tuple(shapes)

    def types(self, data: object) -> Tuple[str, ...]:
        found = self.sequence(data, "types")
        if not all(isinstance(text, str) for text in found):
            raise DumpError("a type of an entry is not a text")
        return tuple(self.short(text) for text in found)

    def place(self, frames: object) -> str:
        """Return the caller of PyTorch, innermost first; "" where no frame has the known form."""
        if not isinstance(frames, (list, tuple)):
            return ""
        self.spend(len(frames))
        for frame in frames:
            if not isinstance(frame, dict):
                return ""
            file, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            if isinstance(file, str) and isinstance(name, str) and type(line) is int and not _TORCH.search(file):
                return self.short("%s:%d %s" % (file[-_TEXT // 2 :], line, name[: _TEXT // 3]))
        return ""

    def mapping(self, data: object, what: str) -> Dict[Any, Any]:
        if not isinstance(data, dict):
            raise DumpError("%s is not a mapping" % what)
        self.spend(len(data))
        return data

    def sequence(self, data: object, what: str, most: int = MOST_OBJECTS) -> List[Any]:
        if not isinstance(data, (list, tuple)) or len(data) > most:
            raise DumpError("%s of the dump is not a list, or too long" % what)
        self.spend(len(data))
        return list(data)

    def string(self, fields: Dict[Any, Any], key: str) -> str:
        value = fields.get(key)
        if not isinstance(value, str):
            raise DumpError("%s is not a text, or missing" % key)
        return self.texts.setdefault(value, value)

    def short(self, text: str) -> str:
        """Return a text that may be printed, stored once."""
        text = printable(text[:_TEXT])
        return self.texts.setdefault(text, text)

    def integer(self, fields: Dict[Any, Any], key: str) -> int:
        return self.signed(fields.get(key), key)

    def signed(self, value: object, key: str) -> int:
        """Return a number; JSON has those of pg_status as texts."""
        if isinstance(value, str):
            number = whole(value[1:] if value.startswith("-") else value)
            value = number if number is None or not value.startswith("-") else -number
        if type(value) is not int or abs(value) >= 1 << 64:
            raise DumpError("%s is not a number, or missing" % key)
        return value

    def spend(self, number: int) -> None:
        """Raises DumpError where the parts of the dump, each as often as it is named, are too many."""
        self.left -= number + 1
        if self.left < 0:
            raise DumpError("its parts have more than %d values" % MOST_READ)
