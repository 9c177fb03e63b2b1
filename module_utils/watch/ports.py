# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tell a link that flaps from one that stays down. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple

from .read import Port

FLAP, DOWN, BACK = "link flapped", "link down", "link back"


class PortEvent(NamedTuple):
    """port: device and port.   seconds: that the link was down, 0 where that was shorter than between two samples."""

    kind: str
    port: str
    since: float
    at: float
    seconds: float


class PortWatcher:
    """Judge ports as their states come. window: seconds in which a link that comes back has flapped."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._before: Dict[str, Port] = {}
        self._down: Dict[str, float] = {}
        self._reported: Dict[str, bool] = {}

    def take(self, at: float, ports: Mapping[str, Port]) -> List[PortEvent]:
        """Take the states of a moment. A port that is gone is down; one not read, or never active, is not judged."""
        found = []
        for name in sorted({*ports, *self._before}):
            before, now = self._before.get(name), ports.get(name)
            active = now is not None and "ACTIVE" in now.state
            if now is not None and not now.state:
                continue
            if before is None:
                if active and now is not None:
                    self._before[name] = now
                continue
            if not active:
                since = self._down.setdefault(name, at)
                if at - since >= self.window and not self._reported.get(name):
                    self._reported[name] = True
                    found.append(PortEvent(DOWN, name, since, at, at - since))
                continue
            if name in self._down:
                since = self._down.pop(name)
                kind = BACK if self._reported.pop(name, False) else FLAP
                found.append(PortEvent(kind, name, since, at, at - since))
            elif now is not None and (now.downed or 0) > (before.downed if before.downed is not None else 1 << 62):
                found.append(PortEvent(FLAP, name, at, at, 0.0))
            if now is not None:
                self._before[name] = now
        return found
