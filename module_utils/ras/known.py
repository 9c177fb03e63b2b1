# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes as their own nodes show them, and the names of hosts, beside what RAS reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Iterable, Mapping, Optional, Tuple

from .answer import Place
from .processes import Process


@dataclass(frozen=True)
class Known:
    """names: IP address -> name of the host.   queried: hosts whose processes are all known.

    processes: host and pid, as NCCL reports them -> the process on its node.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    queried: FrozenSet[str] = frozenset()
    processes: Mapping[Tuple[str, int], Process] = field(default_factory=dict)

    def host(self, address: str) -> str:
        return self.names.get(address, address) or "an unknown host"

    def process(self, place: Place) -> Optional[Process]:
        return self.processes.get((self.host(place.host), place.pid))

    def pid(self, place: Place) -> int:
        """Return the pid on its node if known, else the one in its container."""
        process = self.process(place)
        return place.pid if process is None else process.pid

    def where(self, place: Place) -> str:
        gpu = "%d" % place.nvml if place.nvml == place.gpu else "%d (CUDA %d)" % (place.nvml, place.gpu)
        return "%s process %d GPU %s" % (self.host(place.host), self.pid(place), gpu)

    def state(self, place: Place) -> str:
        """Return what is wrong with a process on its node; "" for nothing, or if the node was not queried."""
        process = self.process(place)
        if process is None:
            gone = self.host(place.host) in self.queried and place.pid > 0
            return "it is not there any more" if gone else ""
        return STATES.get(process.state, "")


def by_inner(host: str, processes: Iterable[Process]) -> Dict[Tuple[str, int], Process]:
    """Return the processes of a host by (host, pid in the container)."""
    found: Dict[Tuple[str, int], Process] = {}
    for process in processes:
        key = (host, process.inner)
        # Two containers have a process of that number: NCCL does not report which.
        found[key] = replace(process, pid=process.inner, state="") if key in found else process
    return found


STATES = {
    "T": "it is stopped (a signal)",
    "t": "it is stopped by a debugger",
    "Z": "it is dead, and its parent has not noticed",
    "X": "it is dead",
    "D": "it waits within the kernel",
}
