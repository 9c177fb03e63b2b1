# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A sweep: what one InfiniBand plane showed at one time, whatever it was read from, and how it travels.

Of a fabric of 600 switches and 4,096 HCA ports the JSON has to stay small, so ports travel as rows and counters as what
is not zero; a node's answer is read back by ``from_dict``, which types and bounds all of it.
Sources: InfiniBand Architecture Specification 1, PortInfo (14.2.5.6) and the counters of 16.1.3; rates as the kernel
computes them in drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

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
_GUID = re.compile(r"[0-9a-f]{16}")
_COUNTER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
T = TypeVar("T")


@dataclass(frozen=True)
class Port:
    """One port of a node, as it and its tool say.

    number: 0 is a switch's management port.   state: one of STATES.   physical: ``LinkUp``, ``Polling``, ...
    width: lanes, one of WIDTHS.   speed: one of SPEEDS. Both None where the link is down or they were not read.
    width_supported, speed_supported: the most that both ends say they can, where a tool reports it.
    peer: GUID of the node at the other end, and its port number.   guid: of the port.
    counters: by the names of the IBTA (``SymbolErrorCounter``); empty where they were not read, ``unread`` says why.
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
    """guid: 16 hex digits, lower case.   kind: one of KINDS.   description: printable, and no more to be trusted.

    system: GUID of the box it is in (system image).   firmware, psid: where the source says them.
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

    plane: GUID of the master SM's port; "" where it is not known.   host: who swept, which the control node sets.
    device, port: the local port it was swept through; "" and 0 for what no local port did.
    at: seconds since the epoch, when it ended; of dumps when they were written.   seconds: how long it took.
    events: of the subnet managers' logs.   unhealthy: (node GUID, port number) -> the conditions that opensm reports.
    source: one of SOURCES.   pkeys: node GUID -> its partition keys, bit 15 for full members.
    complete: False where anything may be missing; ``problems`` say what, and a tool's exit code proves nothing.
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


# -- as data ---------------------------------------------------------------------------------------------------------


def to_dict(sweep: Sweep) -> Dict[str, Any]:
    """Plain data, small as JSON. A row of ``nodes`` is as ``_NODE`` says, a row of its ports as ``_PORT``.

    ``counter_sets`` are the lists of counters' names that ports have; a port names its list, and what is not zero.
    """
    places = {node.guid: place for place, node in enumerate(sweep.nodes)}
    sets: Dict[Tuple[str, ...], int] = {}
    return {
        "plane": sweep.plane,
        "host": sweep.host,
        "device": sweep.device,
        "port": sweep.port,
        "at": sweep.at,
        "seconds": sweep.seconds,
        "source": sweep.source,
        "managers": [[one.guid, one.state, one.priority, one.lid, one.description] for one in sweep.managers],
        "nodes": [
            [
                node.guid,
                node.kind,
                node.description,
                node.system,
                node.device_id,
                node.firmware,
                node.psid,
                [_port_row(port, places, sets) for port in node.ports],
            ]
            for node in sweep.nodes
        ],
        "counter_sets": [list(names) for names in sets],
        "routing": sweep.routing,
        "adaptive_routing": sweep.adaptive_routing,
        "pkeys": {guid: list(keys) for guid, keys in sweep.pkeys.items()},
        "events": [[one.code, one.count, one.when, one.text] for one in sweep.events],
        "unhealthy": [[guid, number, said] for (guid, number), said in sweep.unhealthy.items()],
        "problems": [[problem.source, problem.message] for problem in sweep.problems],
        "complete": sweep.complete,
    }


def _port_row(port: Port, places: Mapping[str, int], sets: Dict[Tuple[str, ...], int]) -> List[Any]:
    """The fields in their order; the peer as [place in nodes, or GUID, port]. What is None at the end is left away."""
    counted: Optional[List[int]] = None
    if port.counters:
        names = tuple(sorted(port.counters))
        counted = [sets.setdefault(names, len(sets))]
        for place, name in enumerate(names):
            if port.counters[name]:
                counted += (place, port.counters[name])
    row: List[Any] = [
        port.number,
        STATES.index(port.state),
        port.physical,
        port.width,
        port.speed,
        port.width_supported,
        port.speed_supported,
        None if port.peer is None else [places.get(port.peer[0], port.peer[0]), port.peer[1]],
        port.lid,
        port.guid,
        counted,
        port.unread or None,
    ]
    while row[-1] is None:
        row.pop()
    return row


_KEYS = (
    *("plane", "host", "device", "port", "at", "seconds", "source", "managers", "nodes", "counter_sets", "routing"),
    *("adaptive_routing", "pkeys", "events", "unhealthy", "problems", "complete"),
)
_MANAGER, _NODE, _PORT = 5, 8, 12


def from_dict(data: object) -> Sweep:
    """The Sweep that ``to_dict`` was called on. Raises ParseError on anything else, naming what is wrong."""
    if not isinstance(data, dict):
        raise _wrong("sweep", data, "a dictionary")
    for key in _KEYS:
        if key not in data:
            raise ParseError("sweep: %s is missing" % key)
    if len(data) > len(_KEYS):
        raise ParseError("sweep: %s is not a key of it" % ascii(next(key for key in data if key not in _KEYS))[:80])
    nodes = _rows("nodes", data["nodes"], MOST_NODES, _NODE)
    guids = [_guid("nodes", row[0]) for row in nodes]
    if len(set(guids)) != len(guids):
        raise ParseError("sweep: a GUID is that of two nodes")
    sets = [tuple(_names("counter_sets", one)) for one in _list("counter_sets", data["counter_sets"], MOST_SETS)]
    if sum(len(_list("ports", row[7], MOST_PORT_NUMBER + 1)) for row in nodes) > MOST_PORTS:
        raise ParseError("sweep: more than %d ports" % MOST_PORTS)
    pkeys = data["pkeys"]
    if not isinstance(pkeys, dict) or len(pkeys) > MOST_NODES:
        raise _wrong("pkeys", pkeys, "a dictionary of at most %d nodes" % MOST_NODES)
    return Sweep(
        plane="" if data["plane"] == "" else _guid("plane", data["plane"]),
        host=_text("host", data["host"]),
        device=_text("device", data["device"]),
        port=_whole("port", data["port"], MOST_PORT_NUMBER),
        at=_seconds("at", data["at"]),
        seconds=_seconds("seconds", data["seconds"]),
        source=_among("source", data["source"], SOURCES),
        managers=tuple(_manager(row) for row in _rows("managers", data["managers"], MOST_NODES, _MANAGER)),
        nodes=tuple(_node(guid, row, guids, sets) for guid, row in zip(guids, nodes)),
        routing=_maybe(_text, "routing", data["routing"]),
        adaptive_routing=_maybe(_flag, "adaptive_routing", data["adaptive_routing"]),
        pkeys={
            _guid("pkeys", guid): tuple(_whole("pkeys", key, 0xFFFF) for key in _list("pkeys", keys, MOST_KEYS))
            for guid, keys in pkeys.items()
        },
        events=tuple(
            ManagerEvent(_text("code", code), _whole("count", count, 1 << 32), _text("when", when), _text("text", text))
            for code, count, when, text in _rows("events", data["events"], MOST_EVENTS, 4)
        ),
        unhealthy={
            (_guid("unhealthy", guid), _whole("unhealthy", number, MOST_PORT_NUMBER)): _text("unhealthy", text)
            for guid, number, text in _rows("unhealthy", data["unhealthy"], MOST_NODES, 3)
        },
        problems=tuple(
            Problem(_text("problems", source, SAID), _text("problems", said, SAID))
            for source, said in _rows("problems", data["problems"], MOST_PROBLEMS, 2)
        ),
        complete=_flag("complete", data["complete"]),
    )


def _manager(row: List[Any]) -> SubnetManager:
    guid, state, priority, lid, description = row
    return SubnetManager(
        _guid("managers", guid),
        _among("managers", state, MANAGER_STATES),
        None if priority is None else _whole("managers", priority, 15),
        None if lid is None else _whole("managers", lid, MOST_LID),
        _text("managers", description),
    )


def _node(guid: str, row: List[Any], guids: List[str], sets: List[Tuple[str, ...]]) -> Node:
    _guid_again, kind, description, system, device_id, firmware, psid, ports = row
    found = tuple(_port(port, guids, sets) for port in ports)
    if len({port.number for port in found}) != len(found):
        raise ParseError("sweep: node %s has a port twice" % guid)
    return Node(
        guid,
        _among("kind", kind, KINDS),
        _text("description", description),
        _maybe(_guid, "system", system),
        None if device_id is None else _whole("device_id", device_id, 0xFFFFFFFF),
        _maybe(_text, "firmware", firmware),
        _maybe(_text, "psid", psid),
        found,
    )


def _port(row: object, guids: List[str], sets: List[Tuple[str, ...]]) -> Port:
    if not isinstance(row, list) or not 2 <= len(row) <= _PORT:
        raise _wrong("ports", row, "a row of 2 to %d" % _PORT)
    (number, state, physical, width, speed, most_width, most_speed, peer, lid, guid, counted, unread) = row + [None] * (
        _PORT - len(row)
    )
    return Port(
        _whole("number", number, MOST_PORT_NUMBER),
        STATES[_whole("state", state, len(STATES) - 1)],
        None if physical is None else _text("physical", physical, 64),
        None if width is None else _width(width),
        None if speed is None else _among("speed", speed, SPEEDS),
        None if most_width is None else _width(most_width),
        None if most_speed is None else _among("speed_supported", most_speed, SPEEDS),
        None if peer is None else _peer(peer, guids),
        None if lid is None else _whole("lid", lid, MOST_LID),
        None if guid is None else _guid("guid", guid),
        {} if counted is None else _counters(counted, sets),
        "" if unread is None else _text("unread", unread, SAID),
    )


def _peer(value: object, guids: List[str]) -> Tuple[str, int]:
    place, number = _row("peer", value, 2)
    guid = _guid("peer", place) if isinstance(place, str) else guids[_whole("peer", place, len(guids) - 1)]
    return guid, _whole("peer", number, MOST_PORT_NUMBER)


def _counters(value: object, sets: List[Tuple[str, ...]]) -> Dict[str, int]:
    counted = _list("counters", value, 1 + 2 * MOST_COUNTERS)
    if len(counted) % 2 == 0:
        raise _wrong("counters", value, "a list's number, then pairs of place and value")
    names = sets[_whole("counters", counted[0], len(sets) - 1)]
    found = dict.fromkeys(names, 0)
    for place, number in zip(counted[1::2], counted[2::2]):
        found[names[_whole("counters", place, len(names) - 1)]] = _whole("counters", number, (1 << 64) - 1)
    return found


def _names(what: str, value: object) -> List[str]:
    names = _list(what, value, MOST_COUNTERS)
    for name in names:
        if not isinstance(name, str) or _COUNTER.fullmatch(name) is None:
            raise _wrong(what, name, "the name of a counter")
    return names


# -- types -----------------------------------------------------------------------------------------------------------


def _wrong(what: str, value: object, expected: str) -> ParseError:
    # A number of thousands of digits refuses to be written.
    shown = ascii(value[:60]) if isinstance(value, str) else type(value).__name__
    if isinstance(value, (bool, type(None))) or (isinstance(value, int) and abs(value) < 1 << 65):
        shown = str(value)
    return ParseError("sweep: %s is %s, expected %s" % (what, shown, expected))


def _list(what: str, value: object, limit: int) -> List[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise _wrong(what, value, "a list of at most %d" % limit)
    return value


def _row(what: str, value: object, length: int) -> List[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise _wrong(what, value, "a row of %d" % length)
    return value


def _rows(what: str, value: object, limit: int, length: int) -> List[List[Any]]:
    return [_row(what, row, length) for row in _list(what, value, limit)]


def _guid(what: str, value: object) -> str:
    if not isinstance(value, str) or _GUID.fullmatch(value) is None:
        raise _wrong(what, value, "a GUID of 16 hex digits")
    return value


def _text(what: str, value: object, limit: int = LINE) -> str:
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise _wrong(what, value, "printable text of at most %d characters" % limit)
    return value


def _whole(what: str, value: object, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise _wrong(what, value, "a whole number from 0 to %d" % high)
    return value


def _width(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in WIDTHS:
        raise _wrong("width", value, "one of %s lanes" % ", ".join(map(str, WIDTHS)))
    return value


def _seconds(what: str, value: object) -> float:
    # NaN is neither above nor below anything.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 40:
        raise _wrong(what, value, "seconds")
    return float(value)


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(what, value, "true or false")
    return value


def _among(what: str, value: object, allowed: Tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _wrong(what, value, "one of %s" % ", ".join(allowed))
    return value


def _maybe(check: Callable[[str, object], T], what: str, value: object) -> Optional[T]:
    return None if value is None else check(what, value)
