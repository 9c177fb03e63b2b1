# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make temporary files and directories, and remove those of runs that were killed.

One that is being written is locked, and the lock ends with its process: an unlocked one was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from typing import Callable, Iterator, Tuple


def new_file(folder: str, prefix: str) -> Tuple[int, str]:
    """Return descriptor and path of a new file, locked as long as the descriptor is open. Remove files left behind.

    prefix: unique to this program.
    """
    sweep(folder, prefix)
    return _locked(lambda: tempfile.mkstemp(prefix=prefix, dir=folder))


@contextlib.contextmanager
def new_directory(prefix: str) -> Iterator[str]:
    """Yield a temporary directory that is removed with its content. Remove directories left behind."""

    def make() -> Tuple[int, str]:
        path = tempfile.mkdtemp(prefix=prefix)
        return os.open(path, os.O_RDONLY), path

    sweep(tempfile.gettempdir(), prefix)
    descriptor, path = _locked(make)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _locked(make: Callable[[], Tuple[int, str]]) -> Tuple[int, str]:
    """Make and lock a file; again if a cleanup was quicker and it is gone."""
    while True:
        descriptor, path = make()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(path):
            return descriptor, path
        os.close(descriptor)


def sweep(folder: str, prefix: str) -> None:
    """Remove our files and directories with this prefix that no living process locks, as far as possible."""
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with contextlib.suppress(OSError):
                remove(os.path.join(folder, name))


def remove(path: str, age: float = 0.0) -> None:
    """Remove our file or directory. Raises OSError if a process locks it or it changed within ``age`` seconds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < age:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            os.unlink(path)
    finally:
        os.close(descriptor)
