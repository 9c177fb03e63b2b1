# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose a line is: the process that its head names, and the GPU of that process; one process under two names is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

from . import lines
from .hostnames import Hostnames
from .lines import Head
from .process import Key, Process
from .shared import Shared, remember

BEYOND = "lines of further processes"
# Numbers of CUDA devices; threads that have none print any.
_GPUS = 64
# Threads that serve others: what they print as their device is usually 0.
_SERVICE = (b"[Proxy", b"[Service", b"proxy.cc")
# Processes without a name of which is looked whose they are.
_NAMELESS = 64


class Whose:
    """processes: those of the log, which are added to.   most: how many of them are kept."""

    def __init__(self, processes: Dict[Key, Process], shared: Shared, count: Callable[[str], None], most: int) -> None:
        self._processes, self._shared, self._count, self._most = processes, shared, count, most
        self._heads: Dict[bytes, Optional[Process]] = {}
        self._hosts = Hostnames(most)
        self._nameless: List[Key] = []

    def by(self, line: bytes, at: int, order: int) -> Optional[Process]:
        """The process that wrote a line; at: where its text's level begins."""
        # From HOST:PID:TID [DEVICE on: a time before it makes each line another one.
        begin = line.rfind(b" ", 0, max(line.rfind(b" [", 0, at), 0)) + 1
        head = line[begin:at]
        if head in self._heads:
            process = self._heads[head]
            if process is None:
                self._count(BEYOND)
            return process
        parsed = lines.head(line[:at].decode("utf-8", "replace"))
        process = self.of(parsed, order)
        self.uses(process, parsed, line[at:])
        if parsed.pid is not None:
            remember(self._heads, head, process)
        return process

    def of(self, head: Head, order: int, glued: bool = False) -> Optional[Process]:
        """glued: what another process wrote stands before the head."""
        key = (self._hosts.of(head.host, head.pid, glued), head.pid, head.rank if head.pid is None else None)
        process = self._processes.get(key)
        if process is None:
            if len(self._processes) >= self._most:
                self._count(BEYOND)
                return None
            process = self._processes[key] = Process(key, order, head.rank)
            if (not key[0] or key[1] is None) and len(self._nameless) < _NAMELESS:
                self._nameless.append(key)
        elif process.launcher_rank is None:
            process.launcher_rank = head.rank
        return process

    def uses(self, process: Optional[Process], head: Head, text: bytes) -> None:
        """Notes the CUDA device of a head, where that tells the GPU of its process."""
        device = head.device
        if process is None or device is None or not 0 <= device < _GPUS or device in process.gpus:
            return
        if device == 0 and process.gpus:
            other = head.tid != head.pid and len(process.gpus) == 1
            if process.buses or other or any(mark in text for mark in _SERVICE):
                return  # other lines of the process name another one
        self._shared.add(process, "gpus", device)

    def owns(self, process: Process, device: int) -> None:
        """Takes the CUDA device that a line on a communicator names."""
        if not 0 <= device < _GPUS:
            return
        if device and not process.buses and process.gpus <= {0, device}:
            # What a thread printed before it had a device.
            process.gpus = frozenset()
        self._shared.add(process, "gpus", device)

    def settle(self, since: int) -> List[Process]:
        """Gives hosts whose name was torn or cut the name that is known by now, and lines without a name their process.

        since: the line behind which this source began. Returns each process that is another one, and that one.
        """
        gone: List[Process] = []
        whole = self._hosts.settled()
        for key in list(self._processes) if whole else ():
            if key[0] in whole:
                gone += self._becomes(key, (whole[key[0]], *key[1:]))
        named = []
        if self._nameless:
            named = [
                one for one in self._processes.values() if one.key[1] is not None and one.order > since and one.host
            ]
        for key in self._nameless:
            own = self._meant(self._processes[key], named) if key in self._processes else None
            if own is not None:
                gone += self._becomes(key, own)
        self._nameless = []
        if gone or whole:
            self._heads.clear()
        return gone

    def _becomes(self, key: Key, named: Key) -> List[Process]:
        process = self._processes.pop(key)
        there = self._processes.get(named)
        if there is None:
            process.key = named
            self._processes[named] = process
            return []
        absorb(there, process)
        return [process, there]

    def _meant(self, process: Process, named: List[Process]) -> Optional[Key]:
        """The one process of the same source that lines without a host or a pid can be of."""
        host, pid, label = process.key
        if pid is not None:
            known = self._hosts.of("", pid)
            return (known, pid, None) if known else None
        found = [
            one
            for one in named
            if (not host or one.host == host) and (label is None or one.launcher_rank in (None, label))
        ]
        if label is not None and len(found) > 1:
            found = [one for one in found if one.launcher_rank == label]
        if len(found) > 1 and len(process.gpus) == 1 and len({one.host for one in found}) == 1:
            [device] = process.gpus
            found = [one for one in found if device and device in one.gpus]
        return found[0].key if len(found) == 1 else None


def absorb(into: Process, other: Process) -> None:
    """Adds what a process said under another name."""
    for name, value in vars(other).items():
        if name == "launcher_rank":
            into.launcher_rank = value if into.launcher_rank is None else into.launcher_rank
        elif name == "order":
            into.order = min(into.order, value)
        elif name == "calls":
            into.calls = tuple(sorted((*into.calls, *value), key=lambda call: (call.source, call.order)))
        elif name == "connections":
            own = into.connections
            into.connections = {
                rank: _added(own.get(rank, {}), value.get(rank, {})) for rank in (*own, *(set(value) - set(own)))
            }
        elif name != "key":
            setattr(into, name, _both(getattr(into, name), value))


def _added(ways: Dict[Any, int], others: Dict[Any, int]) -> Dict[Any, int]:
    return {way: ways.get(way, 0) + others.get(way, 0) for way in (*ways, *(set(others) - set(ways)))}


def _both(own: Any, other: Any) -> Any:
    if isinstance(own, (set, frozenset)):
        return {*own, *other}
    if isinstance(own, dict):
        return {**other, **own}
    if own is None or isinstance(own, (str, bool)):
        return own or other
    return max(own, other) if isinstance(own, (int, float, tuple)) else own


def reported(said: List[Any], gone: Dict[Process, Process]) -> List[Any]:
    """Failures with the processes that took others' place."""
    return [replace(one, process=gone[one.process]) if one.process in gone else one for one in said]
