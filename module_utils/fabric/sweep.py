# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A sweep: the state of one InfiniBand plane at one time, and its plain data.

The JSON of 600 switches and 4,096 HCA ports has to stay small: ports are rows, and counters that are 0 are left out.
``from_dict`` types and bounds what a node returned.
Sources: InfiniBand Architecture Specification 1, PortInfo (14.2.5.6) and the counters of 16.1.3; rates as the kernel
computes them in drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Pattern, Tuple

from ..core.host import ParseError, Problem

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
EXITED = "Exiting SM"
MANAGER_STATES = ("unknown", "not_active", "discovering", "standby", "master")
SOURCES = ("infiniband-diags", "dumps", "db_csv")
# A subnet has 48K unicast LIDs; a port number and a key's index are bytes, or little more.
MOST_NODES, MOST_PORTS, MOST_PORT_NUMBER, MOST_LID = 50000, 400000, 254, 0xFFFF
MOST_PROBLEMS, MOST_KEYS, MOST_COUNTERS, MOST_SETS, MOST_EVENTS = 1000, 1024, 128, 8192, 256
LINE, SAID = 256, 1024
Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Port:
    """A port of a node.

    number: 0 is a switch's management port.   state: one of STATES.   physical: ``LinkUp``, ``Polling``, ...
    width: lanes, one of WIDTHS.   speed: one of SPEEDS. Both None where the link is down or they were not read.
    width_supported, speed_supported: the most that both ends support, where a tool reports it.
    peer: node GUID and port number of the other end.   guid: of the port.
    counters: by the IBTA's names (``SymbolErrorCounter``); unread: why they were not read.
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

    def port(self, number: int) -> Optional[Port]:
        return next((port for port in self.ports if port.number == number), None)


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

    def by_guid(self) -> Dict[str, Node]:
        return {node.guid: node for node in self.nodes}

    def links(self) -> Iterator[Tuple[str, int, str, int]]:
        """Each cable once, the lesser end first: node GUID and port number of both ends."""
        seen = set()
        for node in self.nodes:
            for port in node.ports:
                if port.peer is not None:
                    ends = sorted(((node.guid, port.number), port.peer))
                    link = (*ends[0], *ends[1])
                    if link not in seen:
                        seen.add(link)
                        yield link


def rate_gbps(width: Optional[int], speed: Optional[str]) -> Optional[float]:
    """``400.0`` of 4 lanes of NDR, as the kernel has it; None where either is not known."""
    lane = LANE_GBPS.get(speed or "")
    return None if width is None or lane is None else width * lane


# -- plain data ------------------------------------------------------------------------------------------------------

_PLAIN = ("plane", "host", "device", "port", "at", "seconds", "source", "routing", "adaptive_routing", "complete")
_KEYS = (*_PLAIN, "managers", "nodes", "counter_sets", "pkeys", "events", "unhealthy", "problems")


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
        **{name: getattr(sweep, name) for name in _PLAIN},
        "managers": [list(astuple(one)) for one in sweep.managers],
        "nodes": nodes,
        "counter_sets": [list(names) for names in sets],
        "pkeys": {guid: list(keys) for guid, keys in sweep.pkeys.items()},
        "events": [list(astuple(one)) for one in sweep.events],
        "unhealthy": [[*end, conditions] for end, conditions in sweep.unhealthy.items()],
        "problems": [list(astuple(one)) for one in sweep.problems],
    }


def _port_row(port: Port, places: Mapping[str, int], sets: Dict[Tuple[str, ...], int]) -> List[Any]:
    counted: List[int] = []
    if port.counters:
        names = tuple(sorted(port.counters))
        counted.append(sets.setdefault(names, len(sets)))
        for place, name in enumerate(names):
            if port.counters[name]:
                counted += (place, port.counters[name])
    peer = port.peer and [places.get(port.peer[0], port.peer[0]), port.peer[1]]
    row = [*tuple(vars(port).values())[:-2], counted or None, port.unread or None]
    row[1], row[7] = STATES.index(port.state), peer
    while row[-1] is None:
        row.pop()
    return row


def from_dict(data: object) -> Sweep:
    """Return the Sweep of ``to_dict``. Raises ParseError on anything else, with the name of the key."""
    if not isinstance(data, dict):
        raise ParseError("sweep: %s" % _wrong(data, "a dictionary"))
    checks = dict(_CHECKS)
    for key in _KEYS:
        if key not in data:
            raise ParseError("sweep: %s is missing" % key)
    if len(data) > len(_KEYS):
        raise ParseError("sweep: %s is not a key of it" % ascii(next(key for key in data if key not in _KEYS))[:80])
    found = {}
    key = ""
    try:
        for key in ("counter_sets", "nodes"):
            found[key] = checks.pop(key)(data[key])
        found["nodes"] = _nodes(found["nodes"], found.pop("counter_sets"))
        for key, check in checks.items():
            found[key] = check(data[key])
    except ValueError as error:
        raise ParseError("sweep: %s: %s" % (key, error)) from None
    return Sweep(**found)


def _nodes(rows: List[List[Any]], sets: List[Tuple[str, ...]]) -> Tuple[Node, ...]:
    guids = [row[0] for row in rows]
    if len(set(guids)) != len(guids):
        raise ValueError("a GUID is that of two nodes")
    if sum(len(row[-1]) for row in rows) > MOST_PORTS:
        raise ValueError("more than %d ports" % MOST_PORTS)
    nodes = []
    for row in rows:
        ports = tuple(_port(port, guids, sets) for port in row[-1])
        if len({port.number for port in ports}) != len(ports):
            raise ValueError("node %s has a port twice" % row[0])
        nodes.append(Node(*row[:-1], ports=ports))
    return tuple(nodes)


def _port(row: object, guids: List[str], sets: List[Tuple[str, ...]]) -> Port:
    if not isinstance(row, list) or not 2 <= len(row) <= len(_PORT):
        raise _wrong(row, "a port as a row of 2 to %d" % len(_PORT))
    values = [check(value) for check, value in zip(_PORT, row)] + [None] * (len(_PORT) - len(row))
    values[1] = STATES[values[1]]
    if values[7] is not None:
        place, number = values[7]
        values[7] = (_guid(place) if isinstance(place, str) else guids[_whole(len(guids) - 1)(place)], number)
    values[10] = {} if values[10] is None else _counters(values[10], sets)
    return Port(*values[:-1], unread=values[-1] or "")


def _counters(counted: List[Any], sets: List[Tuple[str, ...]]) -> Dict[str, int]:
    if len(counted) % 2 == 0:
        raise _wrong(counted, "a list's number, then pairs of place and value")
    names = sets[_whole(len(sets) - 1)(counted[0])]
    found = dict.fromkeys(names, 0)
    for place, number in zip(counted[1::2], counted[2::2]):
        found[names[_whole(len(names) - 1)(place)]] = _COUNT(number)
    return found


# -- types: each is a function that returns the value, or raises ValueError ------------------------------------------


def _wrong(value: object, expected: str) -> ValueError:
    # A number of thousands of digits cannot be printed.
    shown = ascii(value[:60]) if isinstance(value, str) else type(value).__name__
    if value is None or (isinstance(value, int) and abs(value) < 1 << 65):
        shown = str(value)
    return ValueError("%s, expected %s" % (shown, expected))


def _text(limit: int = LINE, pattern: Optional[Pattern[str]] = None, name: str = "printable text") -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise _wrong(value, "%s of at most %d characters" % (name, limit))
        if pattern is not None and pattern.fullmatch(value) is None:
            raise _wrong(value, name)
        return value

    return check


def _whole(high: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not int or not 0 <= value <= high:
            raise _wrong(value, "a whole number from 0 to %d" % high)
        return value

    return check


def _seconds(value: Any) -> float:
    # NaN is neither above nor below anything.
    if type(value) not in (int, float) or not 0 <= value < 1 << 40:
        raise _wrong(value, "seconds")
    return float(value)


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _among(*allowed: Any) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise _wrong(value, "one of %s" % ", ".join(map(str, allowed)))
        return value

    return check


def _maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _many(inner: Check, limit: int, of: Check = tuple) -> Check:
    """Check a list of at most ``limit``.   of: makes the result of it."""

    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > limit:
            raise _wrong(value, "a list of at most %d" % limit)
        return of([inner(item) for item in value])

    return check


def _row(of: Callable[..., Any], *checks: Check) -> Check:
    """Check a list of one item for each check.   of: makes the result of them."""

    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(checks):
            raise _wrong(value, "a row of %d" % len(checks))
        return of(*[inner(item) for inner, item in zip(checks, value)])

    return check


def _pkeys(value: Any) -> Dict[str, Tuple[int, ...]]:
    if not isinstance(value, dict) or len(value) > MOST_NODES:
        raise _wrong(value, "a dictionary of at most %d nodes" % MOST_NODES)
    keys = _many(_whole(0xFFFF), MOST_KEYS)
    return {_guid(guid): keys(item) for guid, item in value.items()}


_guid = _text(16, re.compile(r"[0-9a-f]{16}"), "a GUID of 16 hex digits")
_LINE_OF, _NUMBER, _COUNT = _text(), _whole(MOST_PORT_NUMBER), _whole((1 << 64) - 1)
_PORT: Tuple[Check, ...] = (
    *(_NUMBER, _whole(len(STATES) - 1), _maybe(_text(64))),
    *(_maybe(_among(*WIDTHS)), _maybe(_among(*SPEEDS)), _maybe(_among(*WIDTHS)), _maybe(_among(*SPEEDS))),
    *(_maybe(_row(lambda *end: end, lambda place: place, _NUMBER)), _maybe(_whole(MOST_LID)), _maybe(_guid)),
    *(_maybe(_many(lambda number: number, 1 + 2 * MOST_COUNTERS)), _maybe(_text(SAID))),
)
_NODE = (
    *(_guid, _among(*KINDS), _LINE_OF, _maybe(_guid), _maybe(_whole(0xFFFFFFFF)), _maybe(_LINE_OF), _maybe(_LINE_OF)),
    _many(lambda port: port, MOST_PORT_NUMBER + 1),
)
_MANAGER = (_guid, _among(*MANAGER_STATES), _maybe(_whole(15)), _maybe(_whole(MOST_LID)), _LINE_OF)
_EVENT = (_LINE_OF, _whole(1 << 32), _LINE_OF, _LINE_OF)
_CHECKS: Dict[str, Check] = {
    "plane": lambda value: _guid(value) if value != "" else "",
    "host": _LINE_OF,
    "device": _LINE_OF,
    "port": _NUMBER,
    "at": _seconds,
    "seconds": _seconds,
    "source": _among(*SOURCES),
    "routing": _maybe(_LINE_OF),
    "adaptive_routing": _maybe(_flag),
    "complete": _flag,
    "managers": _many(_row(SubnetManager, *_MANAGER), MOST_NODES),
    "nodes": _many(_row(lambda *row: row, *_NODE), MOST_NODES),
    "counter_sets": _many(
        _many(_text(64, re.compile(r"[A-Za-z][A-Za-z0-9_]*"), "the name of a counter"), MOST_COUNTERS), MOST_SETS
    ),
    "pkeys": _pkeys,
    "events": _many(_row(ManagerEvent, *_EVENT), MOST_EVENTS),
    "unhealthy": _many(_row(lambda *row: ((row[0], row[1]), row[2]), _guid, _NUMBER, _LINE_OF), MOST_NODES, dict),
    "problems": _many(_row(Problem, _text(SAID), _text(SAID)), MOST_PROBLEMS),
}
