# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read plain data out of JSON and of pickles, within limits of size, nesting, number of objects and memory.

A pickle may call any function of its reader. This reader knows only the opcodes of plain data, none that names a class
or calls a function, and refuses everything else. Source: Lib/pickletools.py of CPython (opcodes of protocols 2 to 5).
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from ..core.number import signed

# Of one dump. 20,000 entries with their stacks have some 10 MiB and 2,000,000 objects.
MOST_OBJECTS = 4_000_000
MOST_MEMORY = 512 << 20
MOST_DEPTH = 32
# Bytes of a text: stacks have names of files, of generated functions, too.
LONGEST = 64 << 10
# Bytes of a number: 64 bits and a sign.
LONGEST_NUMBER = 9
# Bytes of an object without its content.
_OBJECT = 64


class DumpError(ValueError):
    """The bytes are not a dump of the flight recorder; the message is a sentence about it."""


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
    number = signed(text)
    if number is None:
        raise DumpError("it has a number of %d digits" % len(text))
    return number


def _float(text: str) -> float:
    if len(text) > 40:
        raise DumpError("it has a number of %d digits" % len(text))
    return float(text)


def _constant(text: str) -> NoReturn:
    raise DumpError("it has %s in place of a number" % text)


# -- pickle ------------------------------------------------------------------------------------------------------------

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
        if not isinstance(value, kind):
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
