# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of a log the lines that say something, each connection once: small enough to be sent from a node.

Files are read where the administrator says that they are, in directories that jobs may write to: what is there may be a
link to another user's file, a pipe or a device. Of these nothing is read.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import BinaryIO, List, Set

from ..core.host import Host, ReadError
from . import elsewhere, lines, ras, table_rows
from .job import INTERESTING

BLOCK = 1 << 20
# What a line holds, and how many lines behind it go with it: a warning may be broken, processes mix theirs.
_BEHIND = ((b" NCCL WARN ", 3), (b"Last error:", 6), *((begin, 200) for begin in ras.BEGIN))


@dataclass(frozen=True)
class Excerpt:
    """path: as it was asked for.   size, read: bytes of the file, and how many of them were looked at.

    text: the lines that were kept.   left_out: how many that say something had no room.
    """

    path: str
    size: int
    read: int
    text: str
    left_out: int


def read(host: Host, path: str, most: int, room: int) -> Excerpt:
    """At most ``most`` bytes of a file are looked at, at most ``room`` bytes are kept. Raises ReadError."""
    with _open(host, path) as stream:
        size = os.fstat(stream.fileno()).st_size
        keeper = _Keeper(room)
        seen = 0
        while seen < most:
            block = stream.read(min(BLOCK, most - seen))
            if not block:
                break
            seen += len(block)
            keeper.feed(block)
        keeper.end()
    return Excerpt(path, size, seen, b"".join(keeper.kept).decode("utf-8", "replace"), keeper.left_out)


def _open(host: Host, path: str) -> BinaryIO:
    """A regular file, by no link. Raises ReadError."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ReadError(path, "is not an absolute path without ..")
    descriptor = -1
    try:
        descriptor = os.open(host.system_root or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        parts = [part for part in path.split("/") if part]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            # A pipe would wait for a writer.
            kind = os.O_NONBLOCK if last else os.O_DIRECTORY
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ReadError(path, "is not a regular file")
        stream = os.fdopen(descriptor, "rb")
        descriptor = -1
        return stream
    except OSError as error:
        why = "cannot be read: %s; it is read by no link: give its real path (realpath %s)" % (error.strerror, path)
        raise ReadError(path, why) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class _Keeper:
    def __init__(self, room: int) -> None:
        self.kept: List[bytes] = []
        self.left_out = 0
        self._room = room
        self._rest = b""
        self._seen: Set[bytes] = set()
        # Lines behind one that says something which are kept, whatever they say.
        self._after = 0

    def feed(self, block: bytes) -> None:
        found = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
        self._rest = found.pop()[: lines.LONGEST]
        for line in found:
            if self._says(line):
                self._keep(line[: lines.LONGEST])

    def end(self) -> None:
        if self._says(self._rest):
            self._keep(self._rest)
        self._rest = b""

    def _says(self, line: bytes) -> bool:
        after = self._after
        self._after = max(after - 1, 0)
        at = line.find(b" NCCL ")
        if at >= 0 and line[at + 6 : at + 11] == b"INFO ":
            return line[at + 11 : at + 15] in INTERESTING
        behind = next((behind for mark, behind in _BEHIND if mark in line[: lines.LONGEST]), 0)
        self._after = max(self._after, behind)
        if at >= 0 or after or behind or b"# " in line[:24]:
            return True
        return table_rows.read(line) is not None or any(mark in line for mark in elsewhere.MARKS)

    def _keep(self, line: bytes) -> None:
        at = line.find(b"NCCL INFO Channel ")
        if at >= 0:
            # One of the channels between two ranks says what all do.
            begin = line.rfind(b" ", 0, max(line.rfind(b" [", 0, at - 1), 0)) + 1
            key = line[begin:at] + line[line.find(b" : ", at) :]
            if key in self._seen:
                return
            self._seen.add(key)
        if len(line) + 1 > self._room:
            self.left_out += 1
            return
        self._room -= len(line) + 1
        self.kept.append(line + b"\n")
