# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes as their own nodes show them, and the names of hosts, beside what RAS reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Tuple

from .answer import Place


@dataclass(frozen=True)
class Seen:
    """A process as its node shows it. state: letter of proc(5)."""

    pid: int
    state: str
    user: str
    name: str
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """names: IP address -> name of the host.   asked: hosts whose processes are all known.

    processes: host and pid, as NCCL reports them -> the process on its node.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    asked: FrozenSet[str] = frozenset()
    processes: Mapping[Tuple[str, int], Seen] = field(default_factory=dict)

    def host(self, address: str) -> str:
        return self.names.get(address, address) or "an unknown host"

    def seen(self, place: Place) -> Optional[Seen]:
        return self.processes.get((self.host(place.host), place.pid))

    def pid(self, place: Place) -> int:
        """Return the pid on its node if known, else the one in its container."""
        seen = self.seen(place)
        return place.pid if seen is None else seen.pid

    def where(self, place: Place) -> str:
        gpu = "%d" % place.nvml if place.nvml == place.gpu else "%d (CUDA %d)" % (place.nvml, place.gpu)
        return "%s process %d GPU %s" % (self.host(place.host), self.pid(place), gpu)

    def state(self, place: Place) -> str:
        """Return what is wrong with a process on its node; "" for nothing, or if the node was not queried."""
        seen = self.seen(place)
        if seen is None:
            gone = self.host(place.host) in self.asked and place.pid > 0
            return "it is not there any more" if gone else ""
        return STATES.get(seen.state, "")


def seen(host: str, of_node: Iterable[Mapping[str, Any]]) -> Dict[Tuple[str, int], Seen]:
    """Return the processes of a host by (host, inner pid). of_node: as nccl_ras.process_dict returns them."""
    found: Dict[Tuple[str, int], Seen] = {}
    for one in of_node:
        key = (host, one["inner"])
        state = one["state"]
        if key in found:
            # Two containers have a process of that number: NCCL does not report which.
            state = ""
        found[key] = Seen(one["pid"] if state else one["inner"], state, one["user"], one["name"], one["told"])
    return found


STATES = {
    "T": "it is stopped (a signal)",
    "t": "it is stopped by a debugger",
    "Z": "it is dead, and its parent has not noticed",
    "X": "it is dead",
    "D": "it waits within the kernel",
}
