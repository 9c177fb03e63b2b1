# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a process's small sets and mappings are written: what many hold alike is kept once, within limits."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from .process import Process, Way

# Lines of each kind that are not parsed a second time. A full cache is emptied: ranks that have ended write no more.
KNOWN = 20_000
# Of a process.
KINDS = 512
# Elements of a set or mapping that processes share.
ALIKE = 16


class Own(Dict[Any, Any]):
    """A mapping that one process alone holds."""


class Shared:
    """Small sets and mappings that many processes hold alike are kept once: 50,000 processes name the same HCAs."""

    def __init__(self) -> None:
        # What was there (by identity, so it is kept, too) and what came -> what is there now.
        self._grown: Dict[Tuple[Any, ...], Tuple[Any, Any]] = {}
        self._counted: Dict[Tuple[int, Way, int], Tuple[Dict[Way, int], Dict[Way, int]]] = {}

    def add(self, process: Process, name: str, value: object) -> None:
        """Into one of the process's sets."""
        there = getattr(process, name)
        if value in there or len(there) >= KINDS:
            return
        if isinstance(there, set):
            there.add(value)
        elif len(there) >= ALIKE:
            setattr(process, name, {*there, value})
        else:
            setattr(process, name, self._grow(there, (value,), lambda: there | {value}))

    def put(self, process: Process, name: str, key: Any, value: object) -> None:
        """Into one of the process's mappings."""
        there = getattr(process, name)
        if there.get(key) == value or (key not in there and len(there) >= KINDS):
            return
        if isinstance(there, Own):
            there[key] = value
        elif len(there) >= ALIKE:
            setattr(process, name, Own({**there, key: value}))
        else:
            setattr(process, name, self._grow(there, (key, value), lambda: {**there, key: value}))

    def count(self, ways: Dict[Way, int], way: Way, more: int = 1) -> Dict[Way, int]:
        """The mapping with so many channels more: ranks of one number in their nodes connect in the same ways."""
        # By hand what _grow does: it is called often.
        known = self._counted.get((id(ways), way, more))
        if known is None:
            known = ways, {**ways, way: ways.get(way, 0) + more}
            remember(self._counted, (id(ways), way, more), known)
        return known[1]

    def _grow(self, there: Any, came: Tuple[object, ...], now: Callable[[], Any]) -> Any:
        known = self._grown.get((id(there), *came))
        if known is None:
            known = there, now()
            if len(self._grown) >= KNOWN:
                self._grown.clear()
            self._grown[(id(there), *came)] = known
        return known[1]


def add(process: Process, name: str, value: object) -> None:
    """Into one of the sets that no other process holds alike."""
    there = getattr(process, name)
    if not there:
        setattr(process, name, {value})
    elif len(there) < KINDS:
        there.add(value)


def remember(cache: Dict[Any, Any], key: object, value: object) -> None:
    if len(cache) >= KNOWN:
        cache.clear()
    cache[key] = value


def put(process: Process, name: str, key: object, value: object) -> None:
    """Into one of the mappings that no other process holds alike."""
    there = getattr(process, name)
    if not there:
        setattr(process, name, {key: value})
    elif key in there or len(there) < KINDS:
        there[key] = value
