# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locks that nobody but root (or the user who runs us) can take: whoever may open a file can hold its lock for ever.

They are files of mode 0600, in /run/busbar, which is root's alone and which a reboot empties. The kernel takes a lock
back from a process that ends.
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
def alone(host: Host, name: str, patience: float = 0.0) -> Iterator[None]:
    """Holds the lock ``name`` of this node. Raises BlockingIOError after ``patience`` seconds, and ReadError."""
    descriptor = opened(host, name)
    try:
        take(descriptor, patience)
        yield
    finally:
        os.close(descriptor)


def opened(host: Host, name: str) -> int:
    """A descriptor of the lock ``name`` of this node, which nobody holds yet. Raises ReadError."""
    try:
        folder = _folder(host)
        try:
            return open_file(name, folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ReadError("%s/%s" % (FOLDER, name), "cannot be written: %s" % error.strerror) from error


def open_file(path: str, folder: Optional[int] = None) -> int:
    """A descriptor of a lock's file, which is made where there is none. Raises ReadError and OSError.

    folder: descriptor of the directory that ``path`` begins in.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return _ours(os.open(path, flags, 0o600, dir_fd=folder), path, 0o600)


def take(descriptor: int, patience: float = 0.0) -> None:
    """Raises BlockingIOError where somebody else has it for all that time."""
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
    """Ours, and of that mode: earlier releases left it open to others. Closes it where it raises ReadError, OSError."""
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ReadError(path, "belongs to %s: find out what made it, then remove it" % trusted.user(found.st_uid))
        if found.st_mode & 0o7777 != mode:
            os.fchmod(descriptor, mode)
    except (ReadError, OSError):
        os.close(descriptor)
        raise
    return descriptor
