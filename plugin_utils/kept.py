# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the workers of one run need alike: the first that needs it makes it, the others read it from a file.

Ansible forks a worker for each task of each host, and what a worker knows ends with it. One that asks for many hosts
reads the file once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Path -> what this process has read there. So many at most: hosts of which each is given something else fill no memory.
_READ: dict[str, Any] = {}
_MOST = 50


def kept(folder: str, basis: object, make: Callable[[], Any]) -> Any:
    """What JSON makes of make() for this basis; in this folder it is made once, and who asks meanwhile waits.

    basis: all that make() goes by, as JSON or as text. Who asks changes nothing in what is given, which others have,
    too. What JSON cannot hold is made each time.
    """
    text = json.dumps(basis, sort_keys=True, default=str)
    path = os.path.join(folder, f"busbar-{hashlib.sha256(text.encode()).hexdigest()}.json")
    value = _READ.get(path)
    if value is not None:
        return value
    with open(path + ".lock", "a") as lock:
        # Ends with the file, so also with a worker that is killed. Where a home directory knows no locks, all make it.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(path, encoding="utf-8") as stream:
                return _remember(path, json.load(stream))
        except FileNotFoundError:
            pass
        made = make()
        try:
            text = json.dumps(made)
        except TypeError:
            return made
        descriptor, new = tempfile.mkstemp(dir=folder)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(new, path)
        return _remember(path, json.loads(text))


def _remember(path: str, value: Any) -> Any:
    if len(_READ) >= _MOST:
        _READ.clear()
    _READ[path] = value
    return value
