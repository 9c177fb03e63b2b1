# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time: two would ask every node twice and mix up the nights."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Held(RuntimeError):
    """Another run has the lock; the message says which."""


@contextlib.contextmanager
def held(path: Path, note: str) -> Iterator[None]:
    """Holds the lock. The kernel takes it back from a process that was killed, so that none is ever stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            other = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            raise Held(f"another run has {path}: {other or 'it has just begun'}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
        yield
    finally:
        os.close(descriptor)
