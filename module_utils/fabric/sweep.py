# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A sweep: the state of one InfiniBand plane at one time, and its plain data.

The JSON of 600 switches and 4,096 HCA ports has to stay small: ports are rows, and counters that are 0 are left out.
The control node types and bounds what a node returned: plugin_utils/fabric/record.py.
Sources: InfiniBand Architecture Specification 1, PortInfo (14.2.5.6) and the counters of 16.1.3; rates as the kernel
computes them in drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ..core.host import Problem

CA, SWITCH, ROUTER = KINDS = ("ca", "switch", "router")
STATES = ("unknown", "down", "init", "armed", "active")
WIDTHS = (1, 2, 4, 8, 12)
# Gbit/s of a lane, the slowest first.
LANE_GBPS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
SPEEDS = tuple(LANE_GBPS)
# Counters that are judged, by the IBTA's names -> the maximum of one that has not been extended to 64 bits.
COUNTERS = {
    "SymbolErrorCounter": 0xFFFF,
    "LinkDownedCounter": 0xFF,
    "LinkErrorRecoveryCounter": 0xFF,
    "PortRcvErrors": 0xFFFF,
    "PortXmitDiscards": 0xFFFF,
    "LocalLinkIntegrityErrors": 0xF,
    "ExcessiveBufferOverrunErrors": 0xF,
}
# With those of traffic, which also fall when a port is reset.
READ_COUNTERS = (*COUNTERS, "PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts")
EXITED = "Exiting SM"
MANAGER_STATES = ("unknown", "not_active", "discovering", "standby", "master")
SOURCES = ("infiniband-diags", "dumps", "db_csv")
# A subnet has 48K unicast LIDs; a port number and a key's index are bytes, or little more.
MOST_NODES, MOST_PORTS, MOST_PORT_NUMBER, MOST_LID = 50000, 400000, 254, 0xFFFF
MOST_PROBLEMS, MOST_KEYS, MOST_COUNTERS, MOST_SETS, MOST_EVENTS = 1000, 1024, 128, 8192, 256
LINE, SAID = 256, 1024


@dataclass(frozen=True)
class Port:
    """A port of a node.

    number: 0 is a switch's management port.   state: one of STATES.   physical: ``LinkUp``, ``Polling``, ...
    width: lanes, one of WIDTHS.   speed: one of SPEEDS. Both None where the link is down or they were not read.
    width_supported, speed_supported: the most that both ends support, where a tool reports it.
    peer: node GUID and port number of the other end.   guid: of the port.
    counters: of READ_COUNTERS; unread: why they were not read.
    """

    number: int
    state: str = "unknown"
    physical: Optional[str] = None
    width: Optional[int] = None
    speed: Optional[str] = None
    width_supported: Optional[int] = None
    speed_supported: Optional[str] = None
    peer: Optional[Tuple[str, int]] = None
    lid: Optional[int] = None
    guid: Optional[str] = None
    counters: Mapping[str, int] = field(default_factory=dict)
    unread: str = ""

    @property
    def rate(self) -> Optional[float]:
        """Gbit/s, None where width or speed is not known."""
        return rate_gbps(self.width, self.speed)


@dataclass(frozen=True)
class Node:
    """guid: 16 hex digits, lower case.   kind: one of KINDS.   description: printable text of the node's choice.

    system: system image GUID.   firmware, psid: None where the source lacks them.
    """

    guid: str
    kind: str
    description: str = ""
    system: Optional[str] = None
    device_id: Optional[int] = None
    firmware: Optional[str] = None
    psid: Optional[str] = None
    ports: Tuple[Port, ...] = ()

    def ports_by_end(self) -> Iterator[Tuple[Tuple[str, int], Port]]:
        """Yield node GUID and port number of each port, and the port."""
        return (((self.guid, port.number), port) for port in self.ports)


@dataclass(frozen=True)
class SubnetManager:
    """guid: of the port that it is bound to.   state: one of MANAGER_STATES."""

    guid: str
    state: str
    priority: Optional[int] = None
    lid: Optional[int] = None
    description: str = ""


@dataclass(frozen=True)
class ManagerEvent:
    """Errors of one number in a subnet manager's log, or its exit, in the last 24 hours of that log.

    code: ``ERR 3113``, or EXITED.   text: of the newest such line.   when: as the log prints it.
    """

    code: str
    count: int
    when: str
    text: str


@dataclass(frozen=True)
class Sweep:
    """One plane.

    plane: GUID of the master SM's port, or "".   host: that swept it, set by the control node.
    device, port: the local port of the sweep; "" and 0 for dumps.
    at: seconds since the epoch when it ended, of dumps when they were written.   seconds: duration.
    source: one of SOURCES.   pkeys: node GUID -> partition keys, bit 15 for full members.
    events: of the subnet managers' logs.   unhealthy: (node GUID, port number) -> conditions that opensm reports.
    complete: False where anything may be missing, as listed in ``problems``.
    """

    plane: str = ""
    host: str = ""
    device: str = ""
    port: int = 0
    at: float = 0.0
    seconds: float = 0.0
    source: str = "infiniband-diags"
    managers: Tuple[SubnetManager, ...] = ()
    nodes: Tuple[Node, ...] = ()
    routing: Optional[str] = None
    adaptive_routing: Optional[bool] = None
    pkeys: Mapping[str, Tuple[int, ...]] = field(default_factory=dict)
    events: Tuple[ManagerEvent, ...] = ()
    unhealthy: Mapping[Tuple[str, int], str] = field(default_factory=dict)
    problems: Tuple[Problem, ...] = ()
    complete: bool = False

    def links(self) -> Set[Tuple[Tuple[str, int], ...]]:
        """Return both ends of each cable, node GUID and port number, in order."""
        ends = (pair for node in self.nodes for pair in node.ports_by_end())
        return {tuple(sorted((end, port.peer))) for end, port in ends if port.peer is not None}


def rate_gbps(width: Optional[int], speed: Optional[str]) -> Optional[float]:
    """``400.0`` of 4 lanes of NDR, as the kernel has it; None where either is not known."""
    lane = LANE_GBPS.get(speed or "")
    return None if width is None or lane is None else width * lane


# -- plain data ------------------------------------------------------------------------------------------------------

PLAIN = ("plane", "host", "device", "port", "at", "seconds", "source", "routing", "adaptive_routing", "complete")


def to_dict(sweep: Sweep) -> Dict[str, Any]:
    """Return plain data: a row for each node and port, with the fields in their order.

    ``counter_sets``: lists of counter names; a port has the place of its list and what is not 0.
    """
    places = {node.guid: place for place, node in enumerate(sweep.nodes)}
    sets: Dict[Tuple[str, ...], int] = {}
    nodes = [
        [*tuple(vars(node).values())[:-1], [_port_row(port, places, sets) for port in node.ports]]
        for node in sweep.nodes
    ]
    return {
        **{name: getattr(sweep, name) for name in PLAIN},
        **{name: [list(astuple(one)) for one in getattr(sweep, name)] for name in ("managers", "events", "problems")},
        "nodes": nodes,
        "counter_sets": [list(names) for names in sets],
        "pkeys": {guid: list(keys) for guid, keys in sweep.pkeys.items()},
        "unhealthy": [[*end, conditions] for end, conditions in sweep.unhealthy.items()],
    }


def _port_row(port: Port, places: Mapping[str, int], sets: Dict[Tuple[str, ...], int]) -> List[Any]:
    names = tuple(sorted(port.counters))
    counted = [sets.setdefault(names, len(sets))] if names else []
    for place, name in enumerate(names):
        counted += (place, port.counters[name]) if port.counters[name] else ()
    row = [*tuple(vars(port).values())[:-2], counted or None, port.unread or None]
    row[1], row[7] = STATES.index(port.state), port.peer and [places.get(port.peer[0], port.peer[0]), port.peer[1]]
    while row[-1] is None:
        row.pop()
    return row
