# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Recognise NCCL's messages by their format strings, and infer the release from them.

``formats.tsv`` beside this file holds the printf formats of NCCL's WARN, INFO and VERSION calls, one row per format and
unbroken run of releases. Source: ``src/`` of the release tags v2.18.1-1 to v2.30.7-1 of NVIDIA/nccl, without what only
files of Windows print. Columns:

first, last: oldest and newest release that has it.
level: WARN, INFO or VERSION. NCCL prints some warnings as INFO where it expects them.
class: ``event:ID``, ``fact:FIELD``, ``harmless`` or ``unjudged``.
format: as in the source, adjacent literals joined; a macro's argument is ``%s``, a line end ``\\n``.

Rows of level PLACE are source files, as NCCL prints them before a warning, that only some of these releases have.
"""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from functools import lru_cache
from typing import Dict, Iterable, List, NamedTuple, Pattern, Set, Tuple

# In the order in which they were published.
RELEASES = (
    *("2.18.1", "2.18.3", "2.18.5", "2.18.6", "2.19.1", "2.19.3", "2.19.4", "2.20.3", "2.20.5", "2.21.5", "2.22.3"),
    *("2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.26.3", "2.26.5", "2.26.6", "2.27.3", "2.27.5", "2.27.6", "2.27.7"),
    *("2.28.3", "2.28.7", "2.28.9", "2.29.2", "2.29.3", "2.29.7", "2.30.3", "2.30.4", "2.30.7"),
)
# Bit i stands for RELEASES[i].
ALL = (1 << len(RELEASES)) - 1
# The first release that prints the function behind the place of a warning (debug.cc).
_FUNCTION_SINCE = "2.30.7"

# Longer messages and words further behind are not looked at; more kinds of messages add nothing to a range.
_LONGEST, _WORDS, _KINDS = 4096, 200, 20_000
# Releases before the first of these end an init with it.
_OLDER = re.compile(
    r"comm \S{1,18} rank \d{1,8} nranks \d{1,8} cudaDev \d{1,4} busId \w{1,16} - Init COMPLETE\Z", re.ASCII
)
# Letters that a format must have in words of its own: messages of plugins fit shorter ones, too.
_LETTERS = 6

_CONVERSION = re.compile(r"%(?P<flags>[-+ #0]*)(?:\d*|\*)(?:\.(?:\d+|\*))?[hlzjt]{0,2}(?P<kind>[a-zA-Z%])")
# \x00: a conversion.
_WORD = re.compile(r"[\w\x00]+", re.ASCII)
_NUMBERS = {
    **dict.fromkeys("di", r"-?[0-9]{1,20}"),
    "u": r"[0-9]{1,20}",
    "x": r"[0-9a-f]{1,16}",
    "X": r"[0-9A-F]{1,16}",
    "p": r"(?:0x[0-9a-f]{1,16}|\(nil\))",
    "c": r".",
    **dict.fromkeys("feg", r"(?:-?[0-9.]{1,40}(?:e[-+][0-9]{1,3})?|-?nan|-?inf)"),
    "%": r"%",
}
_VALUE = re.compile(r"(?:0x)?[0-9][0-9a-f]*")


class Format(NamedTuple):
    """One row of formats.tsv. kind: the column ``class``."""

    first: str
    last: str
    level: str
    kind: str
    text: str


class _Table(NamedTuple):
    """by_word: a word -> formats that have it, and their releases as bits.   places: file -> releases as bits."""

    formats: Tuple[Format, ...]
    places: Dict[str, int]
    by_word: Dict[str, List[Tuple[Format, int]]]


@lru_cache(maxsize=None)
def _table() -> _Table:
    data = pkgutil.get_data(__package__, "formats.tsv")
    if data is None:
        raise OSError("formats.tsv cannot be read from this package")
    rows = [Format(*line.split("\t")) for line in data.decode("ascii").splitlines()[1:]]
    table = _Table(tuple(row for row in rows if row.level != "PLACE"), {}, {})
    for row in rows:
        if row.level == "PLACE":
            table.places[row.text] = table.places.get(row.text, 0) | _bits(row.first, row.last)
    words = [_words(row.text) for row in table.formats]
    common = Counter(word for found in words for word in found)
    for row, found in zip(table.formats, words):
        if sum(character.isalpha() for word in found for character in word) >= _LETTERS:
            rarest = min(found, key=lambda word: (common[word], -len(word), word))
            table.by_word.setdefault(rarest, []).append((row, _bits(row.first, row.last)))
    return table


def formats() -> Tuple[Format, ...]:
    """Return all rows but those of places."""
    return _table().formats


def lookup(text: str) -> List[Format]:
    """Return the formats of which a message, without NCCL's head, can be; several where their texts are alike."""
    return [row for row, _releases in _matching_formats(text)]


class ReleaseEvidence:
    """Releases that print all messages of one log. Later messages of a kind that is known cost a lookup.

    recognised: kinds of messages, and places, that only some releases print. 0: nothing is known.
    """

    def __init__(self) -> None:
        self._bits, self.recognised = ALL, 0
        self._kinds: Set[str] = set()

    def add(self, place: str, text: str) -> None:
        """Take a message in.

        place: as NCCL prints it before a warning (``misc/socket.cc:58``, ``init.cc:9 (func)``; else "").
        """
        name, _colon, behind = place[:_LONGEST].partition(":")
        function = _bits(_FUNCTION_SINCE, RELEASES[-1]) if behind.endswith(")") else ALL
        for kind, bits in ((name, _table().places.get(name, ALL)), ("(", function)):
            if bits != ALL and kind not in self._kinds:
                self._kinds.add(kind)
                self._narrow(bits)
        kind = _VALUE.sub("", text[:_LONGEST])
        if kind in self._kinds or len(self._kinds) >= _KINDS:
            return
        self._kinds.add(kind)
        bits = 0
        for _row, of_row in _matching_formats(text):
            bits |= of_row
        if _OLDER.match(text.strip()):
            self._narrow(0)
        elif bits not in (0, ALL):
            self._narrow(bits)

    def _narrow(self, releases: int) -> None:
        self._bits &= releases
        self.recognised += 1

    @property
    def releases(self) -> Tuple[str, ...]:
        """Return those of RELEASES that print all messages so far; none where no single release does."""
        return tuple(release for i, release in enumerate(RELEASES) if self._bits >> i & 1)


def _matching_formats(text: str) -> Iterable[Tuple[Format, int]]:
    """Yield the formats that fit a message, and their releases as bits."""
    text = text.strip()
    for word in sorted(set(_WORD.findall(text)[:_WORDS])) if len(text) <= _LONGEST else ():
        for row, releases in _table().by_word.get(word, ()):
            first, *others = _segments(row.text)
            match = first.match(text)
            for segment in others:
                match = match and segment.search(text, match.end())
            if match:
                yield row, releases


@lru_cache(maxsize=None)
def _segments(text: str) -> Tuple[Pattern[str], ...]:
    """Compile a format as segments between its strings: each is searched once, from the end of the one before."""
    text = text.partition("\\n")[0].strip()
    segments, at = [""], 0
    for conversion in _CONVERSION.finditer(text):
        segments[-1] += re.escape(text[at : conversion.start()])
        at = conversion.end()
        if conversion.group("kind") in "sm":
            segments.append("")
        else:
            prefix = "(?:0x)?" if "#" in conversion.group("flags") else ""
            segments[-1] += prefix + _NUMBERS[conversion.group("kind")]
    segments[-1] += re.escape(text[at:])
    segments[-1] += r"\Z" if segments[-1] else ""
    return tuple(re.compile(segment, re.ASCII) for number, segment in enumerate(segments) if segment or not number)


def _words(text: str) -> Set[str]:
    """Words of a format that stand in each of its messages as they are."""
    gap = "\x00"
    return {word for word in _WORD.findall(_CONVERSION.sub(gap, text.partition("\\n")[0])) if gap not in word}


def _bits(first: str, last: str) -> int:
    """Return the releases from the first to the last one as bits."""
    return ALL >> (len(RELEASES) - 1 - RELEASES.index(last)) & ALL << RELEASES.index(first)
