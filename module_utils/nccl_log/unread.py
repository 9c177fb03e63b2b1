# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines that no rule has made anything of, each kind once: what a tool has not understood it must not hide."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from . import unread_kinds
from .results import shorter

# Kinds that are kept, characters of each, and lines of one begin that are looked at.
KINDS, LONGEST, LOOKED_AT = 300, 300, 200
_BEGIN, _BEGINS = 6, 4000
_NUMBERS = re.compile(rb"0x[0-9a-fA-F]+|[0-9a-f]{12,}|-?\d+(?:\.\d+)?(?:e[+-]\d+)?|\(nil\)")
# A list of numbers, ranks or nodes is as one of them; columns are apart by as many blanks as there is room.
_LISTS = re.compile(rb"(?:[\w-]*#[\w-]*(?:[ ,:;/|.>()\[\]{}-]+|$)){3,}")
_BLANKS = re.compile(rb"\s+")
# A figure of a row of a table that has numbers alone.
_FIGURE = re.compile(rb"-?\d[\d.,e+%-]*$")
# Frames, ruled lines, brackets and progress bars tell nothing by themselves.
_EMPTY = re.compile(rb"(?:(?:\[[^\]]{1,60}\](?:<std(?:out|err)>)?|\([^)]{1,80}\)|\w{1,20}:):? *){0,2}[\W_\d]*$")
_DULL = re.compile(
    rb".{0,100}(?:Traceback \(most recent call|frame #\d|\d{1,3}%\|)|"
    # What stands around nccl-tests' table, which has its own reader.
    rb".{0,40}#.{0,200}(?:busbw|GB/s\)|out-of-place|Using devices|nccl-tests version)|out-of-place +in-place$|"
    rb"\(B\) +\(elements\)"
)
# Characters below which the shape of a line is no kind of its own: a word is.
_SHORT = 3


@dataclass
class Line:
    """text: of the first one.   source, order: where that stands, as in Reported.   count: how many are alike.

    nccl: NCCL wrote it.   last, end: of a program's lines the last one that is alike, and its number; "" of one alone.
    """

    text: str
    source: int
    order: int
    count: int = 1
    nccl: bool = False
    last: str = ""
    end: int = 0


class Unread:
    """``line`` for each line that nothing was read from; ``kept`` has one of each kind, in their order.

    left_out: lines of further kinds, and those behind so many that begin alike that they were not looked at.
    """

    def __init__(self) -> None:
        self._known: Dict[bytes, Line] = {}
        self._begins: Dict[bytes, int] = {}
        # The last line of a begin of which no more are looked at, and its number.
        self._latest: Dict[bytes, Tuple[bytes, int]] = {}
        self.left_out = 0

    @property
    def kept(self) -> List[Line]:
        for text, order in self._latest.values():
            own, key = _own(text)
            known = self._known.get(key) if own else None
            if known is not None and not known.nccl and order > known.end:
                known.last, known.end = _printed(own), order
        self._latest = {}
        return list(self._known.values())

    def line(self, text: bytes, source: int, order: int, nccl: bool = False) -> None:
        """text: without NCCL's head."""
        begin = text[:_BEGIN]
        seen = self._begins.get(begin, 0)
        if seen >= LOOKED_AT or (not seen and len(self._begins) >= _BEGINS):
            self.left_out += 1
            if seen:
                self._latest[begin] = text, order
            return
        self._begins[begin] = seen + 1
        own, key = _own(text)
        if not own:
            return
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            if not nccl:
                known.last, known.end = _printed(own), order
        elif len(self._known) < KINDS:
            self._known[key] = Line(_printed(own), source, order, nccl=nccl)
        else:
            self.left_out += 1


def _own(text: bytes) -> Tuple[bytes, bytes]:
    """What a line says, and what lines of its kind have in common; two times nothing of one that says nothing."""
    own = text[: LONGEST * 2].strip()
    if len(own) < _SHORT or (_EMPTY.match(own) and not _is_row(own)) or _DULL.match(own):
        return b"", b""
    return own, kind_of(own)


def kind_of(own: bytes) -> bytes:
    """What lines that are of one kind have in common."""
    return _LISTS.sub(b"#", _NUMBERS.sub(b"#", _BLANKS.sub(b" ", own[:LONGEST])))


def _is_row(own: bytes) -> bool:
    """Whether a line is figures alone, with bars between them or without."""
    words = own.replace(b"|", b" ").split()
    return len(words) > 1 and all(_FIGURE.match(word) for word in words)


def _printed(own: bytes) -> str:
    return shorter(own.decode("utf-8", "replace"), LONGEST)


def chosen(kept: Sequence[Line], places: Sequence[int], most: int) -> List[Line]:
    """Of the kinds the ``most`` that are printed, in their order.

    Two thirds are those that tell most by themselves, the others those that stand nearest to a line of ``places``.
    """

    def distance(one: Line) -> int:
        return min((abs(one.order - place) for place in places), default=0)

    weighed = [(unread_kinds.weight(one.text, one.nccl), -distance(one), one) for one in kept]
    telling = sorted((one for one in weighed if one[0] > 1), key=lambda one: one[:2], reverse=True)[: 2 * most // 3]
    found = [one for _weight, _near, one in telling]
    near = sorted(weighed, key=lambda one: (one[0] > 0 or not one[2].nccl, one[1]), reverse=True)
    found += [one for _weight, _near, one in near if not any(one is other for other in found)][: most - len(found)]
    return [one for one in kept if any(one is other for other in found)]
