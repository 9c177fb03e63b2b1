# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Extract the lines of a log that report something, each connection once: small enough to be sent from a node.

Files lie where the administrator says that they are, in directories that jobs may write to: a file there may be a link
to another user's file, a pipe or a device. Of these nothing is read.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Callable, List, Set

from ..core.host import Host, ReadError
from . import facts, lines

BLOCK = 1 << 20
# Lines behind a warning that belong to it: it may be broken, and processes mix theirs.
_BEHIND = 3
# A line that is none of NCCL's -> how many lines from it on are extracted.
Interest = Callable[[bytes], int]


@dataclass(frozen=True)
class Excerpt:
    """path: as requested.   size, read: bytes of the file, and how many of them were read.

    text: the extracted lines.   left_out: lines that report something and had no room.
    """

    path: str
    size: int
    read: int
    text: str
    left_out: int


def read(host: Host, path: str, most: int, room: int, interest: Interest) -> Excerpt:
    """Read at most ``most`` bytes of a file and return at most ``room`` bytes of it. Raises ReadError."""
    with _open(host, path) as stream:
        size = os.fstat(stream.fileno()).st_size
        keeper = _Keeper(room, interest)
        seen = 0
        while seen < most:
            block = stream.read(min(BLOCK, most - seen))
            if not block:
                break
            seen += len(block)
            keeper.feed(block)
        keeper.feed(b"")
    return Excerpt(path, size, seen, b"".join(keeper.kept).decode("utf-8", "replace"), keeper.left_out)


def _open(host: Host, path: str) -> BinaryIO:
    """Open a regular file through no link. Raises ReadError."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ReadError(path, "is not an absolute path without ..")
    parts = [part for part in path.split("/") if part]
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        with ExitStack() as opened:
            descriptor = os.open(host.system_root or "/", flags | os.O_DIRECTORY)
            opened.callback(os.close, descriptor)
            for number, part in enumerate(parts):
                # A pipe would wait for a writer.
                kind = os.O_NONBLOCK if number == len(parts) - 1 else os.O_DIRECTORY
                descriptor = os.open(part, flags | os.O_NOFOLLOW | kind, dir_fd=descriptor)
                opened.callback(os.close, descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ReadError(path, "is not a regular file")
            return os.fdopen(os.dup(descriptor), "rb")
    except OSError as error:
        why = "cannot be read: %s; it is read by no link: give its real path (realpath %s)" % (error.strerror, path)
        raise ReadError(path, why) from error


class _Keeper:
    def __init__(self, room: int, interest: Interest) -> None:
        self._interest = interest
        self.kept: List[bytes] = []
        self.left_out = 0
        self._room = room
        self._rest = b""
        self._seen: Set[bytes] = set()
        # Lines behind one that reports something which are extracted in any case.
        self._after = 0

    def feed(self, block: bytes) -> None:
        """Take a block in; an empty one ends the last line."""
        found = (self._rest + (block or b"\n")).replace(b"\r", b"\n").split(b"\n")
        self._rest = found.pop()[: lines.LONGEST]
        for line in found:
            if self._reports(line):
                self._keep(line[: lines.LONGEST])

    def _reports(self, line: bytes) -> bool:
        after = self._after
        self._after = max(after - 1, 0)
        at = line.find(b" NCCL ")
        level = line[at + 6 : at + 11] if at >= 0 else b""
        if level == b"INFO ":
            return facts.may_read(line[at + 11 : at + 15])
        behind = self._interest(line[: lines.LONGEST]) - 1 if at < 0 else _BEHIND if level == b"WARN " else 0
        self._after = max(self._after, behind)
        return behind >= 0 or after > 0

    def _keep(self, line: bytes) -> None:
        at = line.find(b"NCCL INFO Channel ")
        if at >= 0:
            # One of the channels between two ranks stands for all.
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
