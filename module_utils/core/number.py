# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse numbers of any source: ``str.isdigit`` accepts characters, and lengths, that ``int`` refuses."""

from __future__ import annotations

from typing import Optional

# Digits of the largest 64-bit counter.
LONGEST = 20


def whole(text: Optional[str]) -> Optional[int]:
    """Return the value of 1 to 20 ASCII digits; None for any other text."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= LONGEST):
        return None
    return int(text)


def signed(text: Optional[str]) -> Optional[int]:
    """Return the value of ``whole`` digits, perhaps behind one minus sign; None for any other text."""
    if text is None or not text.startswith("-"):
        return whole(text)
    number = whole(text[1:])
    return None if number is None else -number
