# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locks that only root (or the user who runs us) can take: a process that may open a file can hold its lock for ever.

They are files of mode 0600 in /run/busbar, which belongs to root and which a reboot empties. The kernel releases the
lock of a process that ends.
Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Iterator, Optional

from . import trusted
from .host import Host, ReadError

FOLDER = "/run/busbar"


@contextlib.contextmanager
def hold(host: Host, name: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock ``name`` of this node. Raises BlockingIOError after ``patience`` seconds, and ReadError."""
    descriptor = open_lock(host, name)
    try:
        take(descriptor, patience)
        yield
    finally:
        os.close(descriptor)


def open_lock(host: Host, name: str) -> int:
    """Return a descriptor of the lock ``name`` of this node, not locked yet. Raises ReadError."""
    try:
        folder = _folder(host)
        try:
            return open_file(name, folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ReadError("%s/%s" % (FOLDER, name), "cannot be written: %s" % error.strerror) from error


def open_file(path: str, folder: Optional[int] = None) -> int:
    """Return a descriptor of a lock's file, which is created if absent. Raises ReadError and OSError.

    folder: descriptor of the directory that ``path`` begins in.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return _ours(os.open(path, flags, 0o600, dir_fd=folder), path, 0o600)


def take(descriptor: int, patience: float = 0.0) -> None:
    """Lock a descriptor. Raises BlockingIOError if another process has it for ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.05)


def _folder(host: Host) -> int:
    path = host.system(FOLDER)
    above = os.path.dirname(path)
    os.makedirs(above, exist_ok=True)
    doubt = trusted.doubt(above, host.system_root)
    if doubt:
        raise ReadError(FOLDER, "is not a place for a lock: %s" % doubt)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    return _ours(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), FOLDER, 0o700)


def _ours(descriptor: int, path: str, mode: int) -> int:
    """Take ownership and set the mode: earlier releases let others open it. Closes it on ReadError and OSError."""
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ReadError(
                path, "belongs to %s: find out what made it, then remove it" % trusted.user_name(found.st_uid)
            )
        if found.st_mode & 0o7777 != mode:
            os.fchmod(descriptor, mode)
    except (ReadError, OSError):
        os.close(descriptor)
        raise
    return descriptor
