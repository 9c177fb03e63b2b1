# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take values out of JSON by type: plain ones, and dataclasses that ``asdict`` was called on."""

from __future__ import annotations

import collections.abc
import dataclasses
import math
from functools import lru_cache
from typing import Any, Dict, Optional, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from ..core.finding import Finding, from_dict
from ..core.host import ParseError

# Keys of a table: a run has 10,000 hosts at most.
MOST_KEYS = 10_000
_KINDS: Dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}

T = TypeVar("T")


def expect(kind: Type[T], value: object, what: str) -> T:
    """Return the value, which came out of JSON, if it is of that kind. what: its name there. Raises ParseError."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ParseError("%s is %s, expected %s" % (what, quoted(value), _KINDS[kind]))
    return value


def quoted(value: object) -> str:
    """For a message: at most 60 characters of what Python would write for the value."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def real(value: object) -> Optional[float]:
    """A finite number as it is; None for everything else, null and "nan" among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def decode(kind: Any, value: object, what: str) -> Any:
    """Return the value as the kind of a dataclass's field: a dataclass, a collection of them, or a plain type.

    An optional field may be absent, any other may not; further keys are passed over. Raises ParseError.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Union:
        return None if value is None else decode(inner[0], value, what)
    if origin is tuple:
        return tuple(decode(inner[0], one, what) for one in expect(list, value, what))
    if origin is collections.abc.Mapping:
        table = expect(dict, value, what)
        if len(table) > MOST_KEYS:
            raise ParseError("%s has %d keys, expected at most %d" % (what, len(table), MOST_KEYS))
        return {name: decode(inner[1], one, what) for name, one in table.items()}
    if kind is Finding:
        try:
            return from_dict(expect(dict, value, what))
        except ValueError as error:
            raise ParseError("%s: %s" % (what, error)) from None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        data = expect(dict, value, what)
        return kind(**{name: decode(hint, data.get(name), name) for name, hint in _hints(kind).items()})
    return expect(kind, real(value) if kind is float else value, what)


@lru_cache(maxsize=None)
def _hints(kind: Any) -> Dict[str, Any]:
    return get_type_hints(kind)
