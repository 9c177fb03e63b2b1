# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""By which words a line differs from another one that is alike."""

from __future__ import annotations

import re
from typing import List

# Words in which lines may differ to be distinguished by them.
_WORDS = 3
_TIME = re.compile(r"\W*(?:\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d)|0x[0-9a-f]")
_BARE = re.compile(r"^\W*\d+\W*$")


def own_words(first: str, other: str) -> str:
    """``device 5`` of two texts that have one form; "" where they differ in more than some words, or in none."""
    one, two = first.split(), other.split()
    if len(one) != len(two):
        return ""
    found: List[str] = []
    for at, (left, right) in enumerate(zip(one, two)):
        if left != right and not _TIME.match(right):
            word = right.strip(".,;:()")
            found.append("%s %s" % (two[at - 1].strip("(,"), word) if _BARE.match(right) and at else word)
    return " ".join(found) if len(found) <= _WORDS else ""
