# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check data from elsewhere, and build dataclasses of it: type, length, range and depth of every value.

A node, or who wrote a file, may be broken or hostile. A check is a function that raises Invalid. ``of_class`` makes one
of a dataclass: the fields' types say what a value is, and checks given by a field's name limit it further.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from re import Pattern
from typing import Any, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .plain_data import Plain, PlainView

# Characters of a whole result. That of a node with eight rails and every fault of the lab has less than a tenth.
LIMIT = 4 << 20
# Characters of one line, and of a text that may hold a tool's whole output.
LINE, TEXT = 1 << 10, 1 << 16
# Items of a list, and levels of values without a schema.
MANY, DEPTH = 20000, 16
# A float represents every integer up to here.
LARGEST = 1 << 53
Check = Callable[[object], None]
T = TypeVar("T")


class Invalid(ValueError):
    """A value does not fit its schema: ``findings[3].subject: is 12, expected text``."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = ""

    def within(self, name: str) -> Invalid:
        """Add the container's name to the place of the error."""
        self.where = name + (self.where if self.where[:1] in ("", "[") else "." + self.where)
        return self

    def __str__(self) -> str:
        return f"{printable(self.where)}: {self.what}" if self.where else self.what


def quoted(value: object) -> str:
    """Return a value as an error quotes it."""
    if isinstance(value, str):
        return ascii(value if len(value) <= 60 else value[:57] + "...")
    # Python refuses to print a number of thousands of digits.
    small = value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)
    return ascii(value) if small else type(value).__name__


# -- values ------------------------------------------------------------------------------------------------------------


def as_text(value: object, limit: int = TEXT) -> str:
    """Return a text. Raises Invalid."""
    if not isinstance(value, str):
        raise Invalid(f"is {quoted(value)}, expected text")
    if len(value) > limit:
        raise Invalid("has %d characters, expected %d at most" % (len(value), limit))
    return value


def text(limit: int = TEXT, pattern: Pattern[str] | None = None, empty: bool = True, line: bool = False) -> Check:
    """Return a check of text. pattern: of all of it.   line: printable, without an end of line."""

    def check(value: object) -> None:
        word = as_text(value, limit)
        if not (word or empty):
            raise Invalid("is empty")
        if (line and not word.isprintable()) or (pattern is not None and pattern.fullmatch(word) is None):
            raise Invalid(f"is {quoted(word)}, which it cannot be")

    return check


def one_of(*allowed: str) -> Check:
    def check(value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise Invalid("is {}, expected {}".format(quoted(value), " or ".join(allowed)))

    return check


def whole(low: int = 0, high: int = LARGEST) -> Check:
    def check(value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid("is %s, expected a whole number from %d to %d" % (quoted(value), low, high))

    return check


def number(low: float = 0.0, high: float = float(LARGEST)) -> Check:
    def check(value: object) -> None:
        # NaN is neither above nor below anything.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise Invalid(f"is {quoted(value)}, expected a number from {low:g} to {high:g}")

    return check


def flag(value: object) -> None:
    if not isinstance(value, bool):
        raise Invalid(f"is {quoted(value)}, expected true or false")


def maybe(inner: Check) -> Check:
    """Return a check that accepts null as well."""

    def check(value: object) -> None:
        if value is not None:
            inner(value)

    return check


def read_by(reader: Callable[[Any], object]) -> Check:
    """Return a check that accepts what the reader does: it types and bounds the value, or raises ParseError."""

    def check(value: object) -> None:
        try:
            reader(value)
        except ParseError as error:
            raise Invalid(str(error)) from None

    return check


def anything(value: object) -> None:
    """Check depth and numbers of a value that is only stored and shown."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEPTH:
            raise Invalid("is nested more than %d deep" % DEPTH)
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise Invalid("has a key that is not a text")
            waiting += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += [(inner, depth + 1) for inner in item]
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            number(-LARGEST, LARGEST)(item)


# -- containers --------------------------------------------------------------------------------------------------------


def _within(name: str, check: Check, value: object) -> None:
    try:
        check(value)
    except Invalid as error:
        raise error.within(name) from None


def _require_size(count: int, items: str, limit: int, least: int = 0) -> None:
    if not least <= count <= limit:
        bound = f"{least} at least" if count < least else f"{limit} at most"
        raise Invalid(f"has {count} {items}, expected {bound}")


def as_list(value: object, limit: int = MANY, least: int = 0) -> list[object]:
    """Return a list. Raises Invalid."""
    if not isinstance(value, list):
        raise Invalid(f"is {quoted(value)}, expected a list")
    _require_size(len(value), "items", limit, least)
    return value


def as_dict(value: object, limit: int = MANY) -> Plain:
    """Return a dictionary. Raises Invalid."""
    if not isinstance(value, dict):
        raise Invalid(f"is {quoted(value)}, expected a dictionary")
    _require_size(len(value), "keys", limit)
    return value


def many(inner: Check, limit: int = MANY, least: int = 0) -> Check:
    """Return a check of a list."""

    def check(value: object) -> None:
        for place, item in enumerate(as_list(value, limit, least)):
            _within(f"[{place}]", inner, item)

    return check


def row_of(*of: Check) -> Check:
    """Return a check of a list with one item for each check."""

    def check(value: object) -> None:
        if not isinstance(value, list) or len(value) != len(of):
            raise Invalid(f"is {quoted(value)}, expected a list of {len(of)}")
        for place, (inner, item) in enumerate(zip(of, value, strict=True)):
            _within(f"[{place}]", inner, item)

    return check


_key = text(LINE)


def table(inner: Check, name: Check = _key, limit: int = MANY) -> Check:
    """Return a check of a dictionary whose keys are data."""

    def check(value: object) -> None:
        for key, item in as_dict(value, limit).items():
            _within(quoted(key), name, key)
            _within(quoted(key), inner, item)

    return check


class Record:
    """A check of a dictionary with these keys and, unless others are allowed, no more."""

    def __init__(self, keys: Mapping[str, Check], optional: Collection[str] = (), others: bool = False) -> None:
        self.keys = keys
        self._needed = set(keys).difference(optional)
        self._others = others

    def __call__(self, value: object) -> None:
        found = as_dict(value)
        if missing := self._needed - found.keys():
            raise Invalid("is missing").within(min(missing))
        for key, item in found.items():
            if key in self.keys:
                _within(key, self.keys[key], item)
            elif not self._others:
                raise Invalid("is not a key of it").within(quoted(key))


def record(optional: Collection[str] = (), others: bool = False, **of: Any) -> Record:
    """Return a check of a dictionary. optional: keys that may be missing. others: it may have further keys."""
    return Record(of, optional, others)


def is_valid(of: Check, value: object) -> bool:
    try:
        of(value)
    except Invalid:
        return False
    return True


def each(names: Collection[str], check: Check) -> Plain:
    """Return name -> the check, for ``record`` and ``of_class``."""
    return dict.fromkeys(names, check)


# -- dataclasses -------------------------------------------------------------------------------------------------------

# What a field of this type holds, unless its name has a limit.
_PLAIN: Mapping[object, Check] = {
    str: text(LINE, line=True),
    bool: flag,
    int: whole(),
    float: number(),
    Any: anything,
    object: anything,
}


def _number_key(value: object) -> None:
    if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) < 10):
        raise Invalid(f"is {quoted(value)}, expected a number")


def of_class(
    kind: type, limits: Mapping[str, Check] | None = None, optional: Collection[str] = (), **own: Any
) -> Record:
    """Return a check of the plain data of a dataclass: its fields are the keys.

    limits: field -> check of each of its values; for other dataclasses within it, too.   own: field -> check of it.
    optional: fields that may be missing, since they have a default.
    """
    known = limits or {}
    of = {name: own.get(name) or _check_of(hint, known.get(name), known) for name, hint in _hints(kind).items()}
    unknown = set(own) - set(of)
    if unknown:
        raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    return Record(of, optional)


@functools.cache
def _hints(kind: type) -> Plain:
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else [*getattr(kind, "_fields", ())]
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in names}


def _is_class(hint: object) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_fields")


def _check_of(hint: Any, limit: Check | None, limits: Mapping[str, Check]) -> Check:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return maybe(_check_of(next(one for one in of if one is not type(None)), limit, limits))
    if origin is tuple and of[-1] is not ...:
        return row_of(*(_check_of(one, limit, limits) for one in of))
    if origin in (tuple, list, Sequence):
        return many(_check_of(of[0], limit, limits))
    if origin in (dict, Mapping):
        return table(_check_of(of[1], limit, limits), _number_key if of[0] is int else _key)
    return limit or (of_class(hint, limits) if _is_class(hint) else _PLAIN[hint])


def build(kind: type[T], data: PlainView) -> T:
    """Return the dataclass of plain data that a check of it has accepted. Raises what the class itself does."""
    hints = _hints(kind)  # type: ignore[arg-type]
    return kind(**{name: _built(hints[name], value) for name, value in data.items()})


def _built(hint: Any, value: Any) -> Any:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _built(next(one for one in of if one is not type(None)), value)
    if origin is tuple and of[-1] is not ...:
        return tuple(map(_built, of, value))
    if origin in (tuple, list, Sequence):
        items = [_built(of[0], item) for item in value]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping):
        return {int(key) if of[0] is int else key: _built(of[1], item) for key, item in value.items()}
    if hint is Finding:
        return from_dict(value)
    return build(hint, value) if _is_class(hint) else value


# -- JSON --------------------------------------------------------------------------------------------------------------


def read(text_of: str, limit: int = LIMIT) -> Any:
    """Parse JSON. Raises Invalid for other text and for values that no program prints. limit: characters."""
    if len(text_of) > limit:
        raise Invalid("it has %d characters, expected %d at most" % (len(text_of), limit))
    try:
        return json.loads(text_of, parse_constant=_no_number, object_pairs_hook=_unique_object)
    except Invalid:
        raise
    except RecursionError:
        raise Invalid("it is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"it is not JSON: {str(error)[:100]}") from None


def _no_number(name: str) -> None:
    raise Invalid(f"it holds {name}, which is not a number")


def _unique_object(pairs: list[tuple[str, object]]) -> Plain:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Invalid("it holds a key twice in one dictionary")
    return found
