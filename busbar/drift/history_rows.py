# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Type the values of a history's rows: another program may have written them.

Raises ValueError, KeyError and TypeError (``history_file.sound_rows``).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .compare import ORIGINS, Mark
from .run import CLASSES

_Kind = TypeVar("_Kind")
_NUMBER = codec.whole()
_SPREAD = codec.row_of(*3 * [codec.number()])
_SUMMARY = codec.record(
    ("busbw",),
    others=True,
    hosts=codec.record(others=True, **codec.each(CLASSES, _NUMBER)),
    started=codec.text(),
    busbw=codec.table(_SPREAD),
    **codec.each(("run", "exit_code", "groups", "new", "fixed"), _NUMBER),
)


def require(value: object, *kinds: type[_Kind]) -> _Kind:
    if not isinstance(value, kinds):
        raise TypeError(f"{value!r:.80} is no {kinds[0].__name__}")
    return value


def require_one(value: object, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{value!r:.80} is not one of {', '.join(known)}")
    return str(value)


def read_moment(value: object) -> datetime.datetime:
    return datetime.datetime.strptime(require(value, str), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)


def read_mark(first: object, origin: object, carried: object) -> Mark:
    return Mark(require(first, int), require_one(origin, ORIGINS), bool(carried))


def read_busbw(text: str) -> dict[str, Plain]:
    found: dict[str, Plain] = require(json.loads(text), dict)
    for values in found.values():
        require(values["busbw"], int, float)
        require(values["bar"], int, float, type(None))
    return found


def read_health(text: str | None) -> tuple[Plain, ...]:
    found = json.loads(text or "[]")
    result_schema.told_devices(found)
    return tuple(found)


def read_summary(text: str) -> Plain:
    """Return the summary of a complete run."""
    found: Plain = json.loads(text)
    _SUMMARY(found)
    return found
