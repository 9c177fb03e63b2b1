# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read plain data out of JSON and of pickles, with a limit of what they make.

A pickle may call any function of its reader. This reader knows only the opcodes of plain data, none that names a class
or calls a function, and refuses everything else. Source: Lib/pickletools.py of CPython (opcodes of protocols 2 to 5).
"""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from struct import error as StructError
from typing import Any, Callable, Dict, NoReturn

from ..core.number import signed

# Values and steps of one dump, of some 100 bytes each. 20,000 entries with their stacks have 2,000,000.
MOST_OBJECTS = 4_000_000
_PLAIN = "".join((
    "\x80\x95(.",  # protocol, frame, mark, stop
    "N\x88\x89KMJ\x8aGX\x8c\x8dCB\x8e",  # None, booleans, numbers, texts, bytes
    "])}t\x85\x86\x87aesu",  # lists, tuples, dictionaries
    "qrhj\x94",  # the memo
))  # fmt: skip
_SET_ITEM, _SET_ITEMS = ord("s"), ord("u")
_DAMAGED = (
    pickle.UnpicklingError, AttributeError, EOFError, IndexError, KeyError, OverflowError, StructError, TypeError,
    ValueError,
)  # fmt: skip


class DumpError(ValueError):
    """The bytes are not a dump of the flight recorder; the message is a sentence about it."""


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


def to_plain(value: object) -> Any:
    """Return named tuples, and what holds them, as dictionaries and lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


class _Opcodes(Dict[int, Callable[[Any], None]]):
    """Steps of the pickle machine, by opcode."""

    def __missing__(self, opcode: int) -> NoReturn:
        raise DumpError("the pickle has opcode 0x%02x: it is not plain data" % opcode)


class _PlainUnpickler(pickle._Unpickler):
    """Python's own machine with the opcodes of plain data alone; ``find_class`` and calls cannot be reached."""

    steps = 0
    dispatch = _Opcodes()


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


_PlainUnpickler.dispatch.update((ord(opcode), _counted(ord(opcode))) for opcode in _PLAIN)


def parse_pickle(data: bytes) -> object:
    """Return None, bool, int, float, str, bytes, lists, tuples and dicts of them. Raises DumpError."""
    if data[:1] != b"\x80":
        raise DumpError("it is neither JSON nor a pickle of protocol 2 to 5")
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except DumpError:
        raise
    except _DAMAGED as error:
        raise DumpError("the pickle is damaged or cut off (%s)" % type(error).__name__) from error
