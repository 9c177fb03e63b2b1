# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rows of nccl-tests' table, as each release prints them."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

# What launchers put before a line, up to two of them: SkyPilot's ``(head, rank=0, pid=1) `` before ``[1,0]<stdout>:``.
LABEL = (
    rb"\s{0,8}(?:\[[^\]\s]{1,60}\](?:<stdout>)?:? ?|[\w.-]{1,120}: ?|\([^)]{1,80}\):? ?|"
    rb"\d[\w:.-]{18,40} std(?:out|err) F ){0,2}"
)
_BEGIN = re.compile(
    LABEL
    + rb"\s*(?P<size>\d{1,18})\s+(?P<count>\d{1,18})\s+"
    + rb"(?P<type>u?int\d{0,2}|half|float|double|bfloat16|char|f(?:loat|p)?8\w{0,12})\s+"
    + rb"(?:(?P<op>[a-z]\w{0,20})\s+)?(?=[-\d])"
)
_FIGURE = re.compile(rb"\d[\d.]{0,13}(?:e[+-]?\d{1,2})?$")
_ROOT = re.compile(rb"-?\d{1,8}$")
_WRONG = re.compile(rb"[\w.+/-]{1,12}$")
# Of a row's rest: characters that are looked at, figures of each half, and how many a whole row has with a root.
_REST, _HALF, _ROOTED = 200, 4, (5, 9)
# What a printed bandwidth and the one of size and time may differ by: each of them is rounded.
_ROUNDED, _NEAR = 0.006, 0.06

# Bytes of a value.
WIDTHS = {"half": 2, "float": 4, "double": 8, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4, "uint32": 4}


class Row(NamedTuple):
    """size: bytes.   out, inside: busbw in GB/s out of place and in place; None where that column is not there.

    op: of a reduction, ``sum``.   time: us of one call, out of place.   type: of the values, ``float``.
    alg: algbw out of place.   count: of values, which is one rank's share in some collectives.
    """

    size: int
    out: float
    inside: Optional[float]
    op: str
    time: float = 0.0
    type: str = ""
    alg: float = 0.0
    count: int = 0

    @property
    def best(self) -> float:
        return max(self.out, self.inside or 0.0)


class Read(NamedTuple):
    """A row, and what its columns say of wrong values: a count, an error (``0e+00``), or ``N/A``."""

    row: Row
    wrong: Tuple[bytes, ...]


def read(line: bytes) -> Optional[Read]:
    """A row of the table; None of another line.

    Old releases have no column for the root but where there is one, and a long time is a whole number as the root is:
    what the columns are is reported by the bandwidth, which is size by time, else by their number.
    """
    begin = _BEGIN.match(line)
    if begin is None:
        return None
    words = line[begin.end() : begin.end() + _REST].split()
    number = int(begin.group("size"))
    halves = [half for half in (_halves(words), _halves(words[1:]) if _ROOT.match(words[0]) else ()) if half]
    if not halves:
        return None
    fitting = [half for half in halves if _fits(number, half[0])]
    if len(fitting) != 1:
        fitting = halves[::-1] if len(words) in _ROOTED else halves
    first, *more = fitting[0]
    inside = float(more[0][2]) if more else None
    op, kind = (begin.group("op") or b"").decode(), begin.group("type").decode()
    time, alg, out = (float(word) for word in first[:3])
    return Read(
        Row(number, out, inside, op, time, kind, alg, int(begin.group("count"))), tuple(half[3] for half in fitting[0])
    )


def begun(line: bytes) -> Optional[Row]:
    """A row as far as it is there."""
    whole = read(line)
    # Behind its begin stands the root.
    begin = _BEGIN.match(line + b" 0")
    if whole is not None or begin is None:
        return whole.row if whole is not None else None
    return Row(int(begin.group("size")), 0.0, None, (begin.group("op") or b"").decode())


def _halves(words: Sequence[bytes]) -> List[Sequence[bytes]]:
    """Out of place and in place, as far as they are there whole: time, algbw, busbw, wrong values."""
    found = []
    for half in (words[:_HALF], words[_HALF : 2 * _HALF]):
        figures = len(half) == _HALF and all(_FIGURE.match(word) and word.count(b".") < 2 for word in half[:3])
        if not figures or not _WRONG.match(half[3]):
            break
        found.append(half)
    return found


def _fits(number: int, half: Sequence[bytes]) -> bool:
    """Whether an algbw is that of a size and a time."""
    time, alg = float(half[0]), float(half[1])
    return time > 0 and abs(alg - number / time / 1000) <= _ROUNDED + _NEAR * alg


def size(number: int) -> str:
    """``8 GiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return "%g %s" % (round(number / unit, 1), name)
    return "%d B" % number
