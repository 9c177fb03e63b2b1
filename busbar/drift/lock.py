# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Allow one run at a time: two would audit every node twice and mix up their results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder

# Seconds. A look whether a run lives holds the lock for a moment.
PATIENCE = 0.5


class LockedError(RuntimeError):
    """Another run has the lock; the message names it."""


def lock_file(history: Path) -> Path:
    return history.with_name(history.name + ".lock")


def opened(path: Path) -> int:
    """Open a file for writing; makes it if there is none. Raises OSError, also for another user's link."""
    results_folder.refuse_planted(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | (0 if path.is_symlink() else os.O_NOFOLLOW), 0o600)


@contextlib.contextmanager
def held(path: Path, note: str) -> Iterator[None]:
    """Hold the lock. The kernel releases it when a process is killed, so that none is ever stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = opened(path)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                other = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
                raise LockedError(f"another run holds {path}: {other or 'it has just begun'}")
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, note.encode(), 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a run lives, as far as the lock can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
