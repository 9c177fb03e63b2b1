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

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .compare import ORIGINS, Mark
from .run import CLASSES

_Kind = TypeVar("_Kind")
_SUMMARY = {"run": int, "started": str, "exit_code": int, "hosts": dict, "groups": int, "new": int, "fixed": int}


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
    found = require(json.loads(text or "[]"), list)
    for device in found:
        for name in ("pci", "name"):
            require(device[name], str)
        require(device["seconds"], int, float, type(None))
        for count in require(device["grown"], dict).values():
            require(count, int)
    return tuple(found)


def read_summary(text: str, whole: bool = True) -> Plain:
    """Return a run's summary. whole: of a complete run; a failed one has none."""
    found: Plain = require(json.loads(text), dict)
    for name, kind in (_SUMMARY if whole else {}).items():
        require(found[name], kind)
    if whole:
        for name in CLASSES:
            require(found["hosts"][name], int)
        for values in require(found.get("busbw", {}), dict).values():
            _low, _middle, _high = (require(value, int, float) for value in values)
    return found
