# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of a small log of which a report leaves something out: what a rule has read it may have told in part."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import AbstractSet, Dict, List, Tuple

from .lines import LONGEST
from .unread import Line, kind_of
from .words import own_words

# Of a larger log nothing is kept. Characters of a line that is printed, and lines of a kind that are distinguished.
LINES, BYTES = 2000, 400_000
_SHOWN, _OTHERS = 420, 8
# Words of a line that have to stand together somewhere to count as printed.
_FEW = 4
# Words of a program's line of which each has to stand somewhere; of a longer one half of them.
_SHORT = 9
# Kinds beyond which rows of tables are one.
_ROWS = 200
# Words that tell something by themselves: with a digit or an underscore, or names in capitals.
_WORD = re.compile(r"[A-Za-z0-9_%](?:[.+-]?[A-Za-z0-9_%])*")
_VALUE = re.compile(r"[0-9_]|[A-Z]{2}|[a-z][A-Z]")
# Times, addresses of memory, and words that textwrap may break.
_NONE = re.compile(r"0x[0-9a-f]+$|\d{4}-\d\d-\d\d|\d+[.]\d{4,}$|\d\dT\d\d|.{60}")
_HEAD = re.compile(rb".{0,400}? NCCL (?:INFO |(?=WARN ))")
_NUMBER = re.compile(r"[-+]?\d[\d.,e+%|-]*$|N/A$")
_CLOCK = re.compile(r"<0>|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d{4}[-/]\d\d[-/]\d\d[T ]?")


@dataclass
class Small:
    """The lines of a log as long as that is small. kept: source, order as in Reported, and the line."""

    kept: List[Tuple[int, int, bytes]] = field(default_factory=list)
    room: int = BYTES

    def take(self, found: List[bytes], source: int, order: int) -> None:
        """order: number of the line before the first one."""
        size = sum(map(len, found))
        if size > self.room or len(self.kept) + len(found) > LINES:
            self.kept, self.room = [], -1
            return
        self.room -= size
        self.kept += [(source, order + number, line) for number, line in enumerate(found, 1)]


def left(small: Small, printed: str) -> List[Line]:
    """A line of each kind, with words or values that are not printed; ``last``: how others of its kind differ."""
    all_words = _WORD.findall(printed)
    words, together = set(all_words), " %s " % " ".join(all_words)
    found: Dict[bytes, Line] = {}
    others: Dict[bytes, List[str]] = {}
    for source, order, line in small.kept:
        nccl, text = _text(line)
        if not _misses(text, nccl, words, together):
            continue
        key = kind_of(text.encode("utf-8", "replace"))
        if len(found) < _ROWS and _row(text):
            # Each row of a table says something.
            key = text.encode("utf-8", "replace")
        one = found.get(key)
        if one is None:
            found[key] = Line(text[:_SHOWN], source, order, nccl=nccl)
            others[key] = []
            continue
        one.count += 1
        one.end = order
        differs = own_words(one.text, text[:_SHOWN])
        if differs and differs not in others[key] and len(others[key]) < _OTHERS:
            others[key].append(differs)
    for key, one in found.items():
        one.last = "; ".join(others[key])
    return list(found.values())


def _text(line: bytes) -> Tuple[bool, str]:
    """Whether NCCL wrote it, and what it says."""
    head = _HEAD.match(line)
    said = line[head.end() :] if head is not None else line
    return head is not None, " ".join(said[:LONGEST].decode("utf-8", "replace").split())


def _row(text: str) -> bool:
    """Whether it is the row of a table, which has hardly a word."""
    cells = [cell for cell in text.split(" ", 200) if cell != "|"]
    return sum(_NUMBER.match(cell) is not None for cell in cells) >= max(3, len(cells) * 2 // 3)


def _misses(text: str, nccl: bool, words: AbstractSet[str], together: str) -> bool:
    own = [word for word in _WORD.findall(_CLOCK.sub(" ", text)) if not _NONE.match(word)]
    if len(own) < _FEW:
        # Words of so few stand somewhere, each for itself.
        return bool(own) and " %s " % " ".join(own) not in together
    values = [word for word in own if _VALUE.search(word)]
    if any(word not in words for word in values):
        return True
    said = [word for word in own if len(word) > 3]
    missed = sum(word not in words for word in said)
    return missed > 0 if len(own) < _SHORT and not nccl else missed * 2 > len(said)
