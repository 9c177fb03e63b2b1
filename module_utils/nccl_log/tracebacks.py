# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Python's tracebacks of which a log does not hold the end: that a rank raised an exception, and out of which call.

The exception's text stands below the calls: an excerpt, or a log that was cut, may end before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List

BEGIN = b"Traceback (most recent call last)"
# Tracebacks that are open at one time, and calls of each.
_OPEN, _CALLS = 64, 12
FRAME = re.compile(r'File "(?P<path>[^"]{1,300})", line (?P<line>\d{1,8}), in (?P<name>\S{1,80})')
_CALLED = re.compile(
    r"^\s*(?:return |raise |await |yield |with |assert |[\w., \[\]]{1,80} = )*(?P<name>[A-Za-z_][\w.]{1,80})\(",
)


@dataclass
class Traceback:
    """text: its first line.   prefix: what stands before it on each line.   calls: the outermost first.

    count: how many with this prefix have begun.
    """

    text: str
    prefix: str
    order: int
    calls: List[str]
    count: int = 1
    last: int = 0


class Tracebacks:
    """``begin`` and ``line`` as they come; ``cut`` has those whose exception did not come."""

    def __init__(self) -> None:
        self._open: Dict[str, Traceback] = {}

    @property
    def waits(self) -> bool:
        return bool(self._open)

    def begin(self, text: str, order: int) -> str:
        """Takes a first line; what stands before it."""
        prefix = text[: text.find("Traceback (most")]
        known = self._open.get(prefix)
        if known is not None:
            known.count, known.last = known.count + 1, order
        elif len(self._open) < _OPEN:
            self._open[prefix] = Traceback(text.strip(), prefix, order, [], 1, order)
        return prefix

    def line(self, text: str) -> None:
        """Takes a line that may belong to one, or be its end."""
        for prefix, one in list(self._open.items()):
            if prefix and not one.calls and text.startswith('  File "') and "" not in self._open:
                # A logger's mark stands before the first line alone.
                del self._open[prefix]
                prefix = one.prefix = ""
                self._open[prefix] = one
            if not text.startswith(prefix.rstrip()):
                continue
            rest = text[len(prefix.rstrip()) :]
            own = rest.lstrip()
            frame = FRAME.search(rest)
            if frame is not None and own.startswith("File"):
                self._call(one, frame.group("name"))
                return
            called = _CALLED.match(own) if rest[:4] == "    " or (prefix.strip() and rest[:5] == "     ") else None
            if called is not None:
                self._call(one, called.group("name"))
            elif own[:1].isalpha() and rest[:2] != "  ":
                del self._open[prefix]
                return

    @staticmethod
    def _call(one: Traceback, name: str) -> None:
        if name not in ("<module>", "super") and one.calls[-1:] != [name]:
            one.calls.append(name)
            del one.calls[:-_CALLS]

    def cut(self) -> List[Traceback]:
        """Those that are open at the end of a source, which are closed by that."""
        found = list(self._open.values())
        self._open = {}
        return found


def called(text: str) -> str:
    """The name of what a line of a program's source calls; "" of what is none."""
    match = _CALLED.match(text) if text[:4] == "    " else None
    return match.group("name") if match is not None else ""
