# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cache shared by Ansible's forked workers during one run.

Ansible forks a worker for each task of each host, and a worker's memory ends with it. The first one that needs a value
computes it; the others read it from a file, each process once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from . import results_folder
from .plain_data import Plain

# Path -> value read by this process. Limited: many hosts with different values must not fill the memory.
_READ: Plain = {}
# (purpose, id of an object that hosts share) -> the object, which keeps its id in use, and the value made of it.
_MADE: dict[tuple[str, int], tuple[object, object]] = {}
_MOST = 50
T = TypeVar("T")


def cached(folder: str, basis: object, make: Callable[[], T]) -> T:
    """Return make() through JSON, computed once per folder and basis; concurrent callers wait.

    basis: all inputs of make(), as JSON or as text. The value is shared: callers must not change it.
    A value that JSON cannot hold is computed each time.
    """
    text = json.dumps(basis, sort_keys=True, default=str)
    path = os.path.join(folder, f"busbar-{hashlib.sha256(text.encode()).hexdigest()}.json")
    value = _READ.get(path)
    if value is not None:
        return cast(T, value)
    with open(path + ".lock", "a") as lock:
        # Released with the file, also by a kill. In a home directory without locks all compute it.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            made = make()
            try:
                results_folder.replace_file(path, [json.dumps(made)])
            except TypeError:
                return made
        if len(_READ) >= _MOST:
            _READ.clear()
        with open(path, encoding="utf-8") as stream:
            _READ[path] = json.load(stream)
        return cast(T, _READ[path])


def cached_for(shared: object, what: str, make: Callable[[], T]) -> T:
    """Return make(), computed once for this very object, which hosts share as a value of cached().

    what: purpose of the value. Neither object nor value may be changed.
    """
    known = _MADE.get((what, id(shared)))
    if known is None:
        if len(_MADE) >= _MOST:
            _MADE.clear()
        known = _MADE[what, id(shared)] = (shared, make())
    return cast(T, known[1])
