# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Places within data of JSON: each path of keys and indices, and copies with another value at one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]


def places(data: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy
