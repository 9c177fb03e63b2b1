# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse nccl.conf as the reader of any NCCL release: it trims nothing, ignores quotes and reports nothing.

Source: NCCL src/misc/param.cc.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .version import NEWEST, Version

# In the home directory; read before /etc/nccl.conf.
USER_FILE = ".nccl.conf"
# Releases in which the reader changed.
COMMENTS = (2, 26, 2)  # a line that starts with # is a comment
STRIPS_CR = (2, 30, 3)  # and reads at most 4095 bytes as one line
SAFE_NAMES = (2, 23, 4)  # a name beyond 1023 bytes no longer overruns a buffer
LIMIT = 1023  # bytes of a name or value that NCCL stores
# NCCL's variables, and those of its plugins' libraries and of NVSHMEM (variables).
NAME = r"(?:OFI_NCCL|NCCL|UCX|FI|SHARP_COLL|NVSHMEM)_[A-Z0-9_]+"
MENTION = re.compile(r"(?<![A-Za-z0-9_])%s" % NAME)
_CHUNK = 4095
_INTEGER = re.compile(r"[ \t\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class Line(NamedTuple):
    """One line as NCCL takes it.

    number: counted from 1; pieces of an over-long line share it.   raw: the line without its line feed.
    kind: "comment", "assignment" or "ignored".   name, value: of an assignment, else None.
    """

    number: int
    raw: str
    kind: str
    name: Optional[str] = None
    value: Optional[str] = None


class Assignment(NamedTuple):
    """A variable that a text sets.

    value: None if it depends on running the text.   line: of the text, from 1.
    scope: "environment" of all programs that follow, "argument" given to one program, "shell" not exported and so seen
    by no program, "printed" to stdout, "cut" at a blank or comma, "unclear" if it depends on running the text,
    "unread" behind a quote that does not end.
    conditional: within if, case, a function or behind &&.
    """

    name: str
    value: Optional[str]
    line: int
    scope: str = "environment"
    conditional: bool = False


def parse(text: str, version: Version = NEWEST) -> List[Line]:
    """The lines of a file as the library of this version takes them. Any text has a reading; nothing is raised."""
    lines = []
    for number, raw in enumerate(rows(text), 1):
        data = encoded(raw)
        step = _CHUNK if version >= STRIPS_CR else max(len(data), 1)
        for start in range(0, max(len(data), 1), step):
            lines.append(_line(number, raw, data[start : start + step], version))
    return lines


def settings(lines: Sequence[Line]) -> Dict[str, str]:
    """Name -> value of what the lines set: the first definition of a name wins."""
    values: Dict[str, str] = {}
    for line in lines:
        if line.name is not None and line.value is not None:
            values.setdefault(line.name, line.value)
    return values


def assignments(text: str) -> List[Assignment]:
    """Return the variables of NCCL's that a nccl.conf sets, with odd names such as ``export NCCL_DEBUG``."""
    found: Dict[str, Assignment] = {}
    for line in parse(text):
        if line.name is not None and MENTION.search(line.name) and line.name[0] != "#":
            found.setdefault(line.name, Assignment(line.name, line.value, line.number))
    return list(found.values())


def rows(text: str) -> List[str]:
    """Return the lines of a text without their line feeds, with carriage returns."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def whole(number: int, raw: str) -> Line:
    """A line as the newest release takes it, if it did not cut what is too long."""
    return _line(number, raw, encoded(raw), NEWEST)


def encoded(text: str) -> bytes:
    """The bytes that NCCL counts. Any text has some."""
    return text.encode("utf-8", "surrogatepass")


def _line(number: int, raw: str, data: bytes, version: Version) -> Line:
    data = data.split(b"\0", 1)[0]
    if version >= STRIPS_CR and data.endswith(b"\r"):
        data = data[:-1]
    if version >= COMMENTS and data.startswith(b"#"):
        return Line(number, raw, "comment")
    name, equals, value = data.partition(b"=")
    if not equals or not name:
        return Line(number, raw, "ignored")
    kept, rest = (part[:LIMIT].decode("utf-8", "surrogateescape") for part in (name, value))
    return Line(number, raw, "assignment", kept, rest)


def strtoll(text: str) -> Tuple[int, str]:
    """C's strtoll(text, &rest, 0): (number, rest). What is not a number is 0, with all of the text left over."""
    match = _INTEGER.match(text)
    if match is None:
        return 0, text
    sign, digits = match.groups()
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    else:
        number = int(digits, 8) if digits[0] == "0" else int(digits)
    return -number if sign == "-" else number, text[match.end() :]
