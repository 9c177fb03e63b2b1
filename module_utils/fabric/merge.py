# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make one sweep of several outputs about one plane: a port is known by its node, its GUID or its LID.

Where outputs disagree, the fabric changed meanwhile, two nodes have one GUID, or two planes were mixed: the first value
stays, the sweep reports it and is incomplete.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.host import Problem
from . import tool_output
from .sweep import CA, COUNTERS, MOST_EVENTS, MOST_PORT_NUMBER, SWITCH, ManagerEvent, Node, Port, SubnetManager, Sweep
from .tool_output import NodeRow, PortRow, ToolOutput

# Doubts of one kind that are quoted; the rest is a number.
NAMED = 5
# PCI device ids whose links are XDR: ConnectX-8, ConnectX-9, Quantum-3.
_XDR_DEVICES = (0x1023, 0x1025, 0xD2F4)
_OLD = ("SDR", "DDR", "QDR")
_FIELDS = ("port_guid", "lid", "state", "physical", "width", "speed", "width_supported", "speed_supported")
_COMPARED = ("width", "speed", "state", "lid")
# Kinds of doubts. The last two leave a sweep complete.
DIFFERS = "the first and the last read differ: the fabric changed, or two nodes have one GUID"
GONE = "what is at the other end of a cable was not read"
LONELY = "nodes without a cable: their neighbours did not respond"
ONE_SIDED = "a cable is seen from one end only"
SHORT = "ports of a switch were not read"
NAMELESS = "LIDs name no node; without a subnet manager all are 0"
GUESSED = "known by the GUID of a port only; read ibnetdiscover too"
UNCOUNTED = "counters could not be read"
_REMARKS = (GUESSED, UNCOUNTED)
End = Tuple[str, int]


class Merged:
    """The known state of a plane. Outputs are added in the order of trust."""

    def __init__(self, decodes_xdr: bool = False) -> None:
        self.decodes_xdr = decodes_xdr
        self.nodes: Dict[str, Dict[str, Any]] = {}
        self.ports: Dict[str, Dict[int, Dict[str, Any]]] = {}
        self.of_port: Dict[str, End] = {}
        self.of_lid: Dict[int, Tuple[str, Optional[int]]] = {}
        self.managers: Dict[str, SubnetManager] = {}
        self.keys: Dict[str, Tuple[int, ...]] = {}
        self.routing: Optional[str] = None
        self.adaptive: Dict[str, bool] = {}
        self.events: List[ManagerEvent] = []
        self.unhealthy: Dict[End, str] = {}
        self.remarks: List[Problem] = []
        self.missing: List[Problem] = []
        self.both_ends = self.all_ports = False
        kinds = (DIFFERS, GONE, LONELY, ONE_SIDED, SHORT, NAMELESS, *_REMARKS)
        self.doubts: Dict[str, List[str]] = {kind: [] for kind in kinds}

    def _differs(self, text: str, *values: object) -> None:
        self.doubts[DIFFERS].append(text % values)

    # -- nodes, ports and cables -------------------------------------------------------------------------------------

    def add(self, output: ToolOutput) -> None:
        """Add nodes, ports, managers and keys of one output."""
        self.missing += output.missing()
        self.remarks += output.remarks()
        self.both_ends |= output.both_ends
        self.all_ports |= output.all_ports
        for node in output.nodes:
            self._add_node(node)
        numbers: Dict[str, Set[int]] = {}
        for port in output.ports:
            if port.port_guid and port.guid:
                # All ports of a switch have the GUID of its port 0.
                if port.number == 0 or (port.kind or self._kind(port.guid)) != SWITCH:
                    self._add_port_guid(port.port_guid, port.guid, port.number)
            elif port.port_guid:
                numbers.setdefault(port.port_guid, set()).add(port.number)
        placed = [(port, self._place_row(port, numbers)) for port in output.ports]
        placed = [(port, guid) for port, guid in placed if guid]
        for port, guid in placed:
            known = self.ports.setdefault(guid, {}).setdefault(port.number, {})
            for name in _FIELDS:
                value = getattr(port, name)
                if value is not None and known.setdefault(name, value) != value and name in _COMPARED:
                    self._differs("%s port %d %s: %s and %s", guid, port.number, name, known[name], value)
            if port.lid:
                self.of_lid.setdefault(port.lid, (guid, None if self._kind(guid) == SWITCH else port.number))
        for port, guid in placed:
            self._add_cable(port, (guid, port.number))
        for manager in output.managers:
            before = self.managers.setdefault(manager.guid, manager)
            if before.state in ("unknown", manager.state):
                self.managers[manager.guid] = manager
            else:
                self._differs("subnet manager %s: %s and %s", manager.guid, before.state, manager.state)
        self.keys = {**output.keys, **self.keys}
        self.routing = self.routing or output.routing
        self.adaptive.update(output.adaptive)
        self.events += output.events
        self.unhealthy.update(output.unhealthy)

    def _kind(self, guid: str) -> Optional[str]:
        return self.nodes[guid]["kind"] if guid in self.nodes else None

    def _add_node(self, node: NodeRow) -> None:
        if node.device_id is not None and not 0 <= node.device_id <= 0xFFFFFFFF:
            node = node._replace(device_id=None)
        if node.port_count is not None and not 0 <= node.port_count <= MOST_PORT_NUMBER:
            self._differs("node %s reports %d ports", node.guid, node.port_count)
            node = node._replace(port_count=None)
        known = self.nodes.setdefault(node.guid, dict(node._asdict()))
        self.ports.setdefault(node.guid, {})
        for name, value in node._asdict().items():
            if value is not None and known[name] in (None, ""):
                known[name] = value
            elif value is not None and known[name] != value and name != "description":
                self._differs("node %s %s: %s and %s", node.guid, name, known[name], value)

    def _add_port_guid(self, port_guid: str, node: str, number: int) -> None:
        known = self.of_port.setdefault(port_guid, (node, number))
        if known != (node, number):
            self._differs("port GUID %s is that of %s port %d and of %s port %d", port_guid, *known, node, number)

    def _place_row(self, port: PortRow, numbers: Mapping[str, Set[int]]) -> str:
        """Return the node of a port, which becomes known; "" where nothing names it.

        numbers: GUID of a port -> the numbers behind it; all ports of a switch have one GUID.
        """
        own, kind = port.port_guid or "", port.kind
        guid = port.guid or self._find_node(own, port.number)
        if not guid and port.first_port in self.of_port:
            guid = self.of_port[port.first_port][0]
            self._add_port_guid(own, guid, port.number)
        if not guid and not own:
            self.doubts[NAMELESS].append("port %d %s" % (port.number, port.description or ""))
            return ""
        if not guid:
            guid, same = own, numbers.get(own, set())
            kind = kind or (SWITCH if len(same) > 1 or max(same, default=0) > 2 else CA)
            if kind != SWITCH:
                self.doubts[GUESSED] += [guid] if guid not in self.doubts[GUESSED] else []
                self._add_port_guid(guid, guid, port.number)
            self._add_node(NodeRow(guid, kind, port.description))
        elif guid not in self.nodes:
            self._add_node(NodeRow(guid, kind, port.description))
        self.nodes[guid]["kind"] = self.nodes[guid]["kind"] or kind
        return guid

    def _find_node(self, port_guid: str, number: int) -> str:
        """Return the node of a port's GUID, or "". A switch's ports have the switch's."""
        own = self.of_port.get(port_guid)
        if own is not None and (own[1] == number or self._kind(own[0]) == SWITCH):
            return own[0]
        return port_guid if port_guid in self.nodes and (own is None or own[0] == port_guid) else ""

    def _add_cable(self, port: PortRow, end: End) -> None:
        known = self.ports[end[0]][end[1]]
        if port.peer is None:
            if port.linked is False and known.get("peer") is not None:
                self._differs("%s port %d: a cable to %s port %d, and none", *end, *known["peer"])
            elif port.linked and not known.get("peer"):
                self.doubts[NAMELESS].append("the other end of %s port %d" % end)
            return
        far, number = port.peer
        if isinstance(far, str):
            peer = (far if port.guid else self._find_node(far, number) or far, number)
        elif far in self.of_lid:
            peer = (self.of_lid[far][0], number)
        else:
            self.doubts[NAMELESS].append("LID %d at the other end of %s port %d" % (far, *end))
            return
        if known.get("peer") is None and known.get("state") == "down":
            self._differs("%s port %d: down, and a cable to %s port %d", *end, *peer)
        if known.setdefault("peer", peer) != peer:
            self._differs("%s port %d: a cable to %s port %d, and to %s port %d", *end, *known["peer"], *peer)

    # -- counters ----------------------------------------------------------------------------------------------------

    def count(self, outputs: Sequence[ToolOutput]) -> None:
        """Add counters. A port that one of errors leaves out has none, if another output shows that it responds."""
        failed: Dict[Tuple[str, Optional[int]], str] = {}
        read: Dict[End, Dict[str, int]] = {}
        responds: Set[End] = set()
        for output in outputs:
            self.missing += output.missing()
            for (lid, number), why in output.unread.items():
                if lid in self.of_lid:
                    failed[self.of_lid[lid][0], number] = why
                else:
                    self.missing.append(tool_output.problem(output.source, "LID %d: %s" % (lid, why)))
            for (guid, port_number), counters in output.counters.items():
                node = guid if guid in self.nodes else self._find_node(guid, port_number)
                if port_number in self.ports.get(node, {}):
                    read.setdefault((node, port_number), {}).update(counters)
                    responds |= {(node, port_number)} if output.every else set()
                else:
                    self.doubts[GONE].append("counters of %s port %d" % (guid, port_number))
        clean = any(output.clean for output in outputs)
        every = [
            ((guid, number), port) for guid, ports in self.ports.items() for number, port in ports.items() if number
        ]
        for end, port in every:
            counters = read.get(end, {})
            why = failed.get(end) or failed.get((end[0], None)) or ""
            if clean and end in responds and not why:
                counters = {**dict.fromkeys(COUNTERS, 0), **counters}
            if not why and not counters.keys() & COUNTERS.keys():
                why = "no output shows those of errors" if counters else "no output shows them"
            port.update(counters=counters, unread=why)
            if why and port.get("peer"):
                self.doubts[UNCOUNTED].append("%s port %d (%s)" % (*end, why))

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def sweep(self, problems: Sequence[Problem] = (), **about: Any) -> Sweep:
        """Return the sweep.

        problems: why more may be missing.   about: fields of the sweep; plane by default that of the only master.
        """
        for guid in self.nodes:
            self._check(guid)
        missing, remarks = [*problems, *self.missing], list(self.remarks)
        for kind, found in self.doubts.items():
            more = "; and %d more" % (len(found) - NAMED) if found[NAMED:] else ""
            doubt = tool_output.problem("fabric", "%s: %s%s" % (kind, "; ".join(found[:NAMED]), more))
            (remarks if kind in _REMARKS else missing).extend([doubt] if found else [])
        masters = [one.guid for one in self.managers.values() if one.state == "master"]
        about.setdefault("plane", masters[0] if len(masters) == 1 else "")
        # Of all switches, where they agree and none is missing.
        adaptive = {self.adaptive.get(guid) for guid in self.nodes if self._kind(guid) == SWITCH}
        return Sweep(
            managers=tuple(self._named(one) for one in self.managers.values()),
            nodes=tuple(map(self._node, self.nodes)),
            routing=self.routing,
            adaptive_routing=adaptive.pop() if len(adaptive) == 1 else None,
            pkeys=self.keys,
            events=tuple(self.events[:MOST_EVENTS]),
            unhealthy=self.unhealthy,
            problems=tuple(dict.fromkeys([*missing, *remarks]))[:1000],
            complete=bool(self.nodes) and not missing,
            **about,
        )

    def _named(self, manager: SubnetManager) -> SubnetManager:
        node = self.of_port.get(manager.guid, (manager.guid,))[0]
        name = self.nodes.get(node, {}).get("description") or ""
        return SubnetManager(manager.guid, manager.state, manager.priority, manager.lid, name)

    def _check(self, guid: str) -> None:
        """Note cables of a node that are not seen from both ends, and ports of a switch that are not printed."""
        node, ports = self.nodes[guid], self.ports[guid]
        if self.both_ends and not any(port.get("peer") for port in ports.values()):
            self.doubts[LONELY].append(guid)
        for number, port in ports.items() if self.both_ends else ():
            peer = port.get("peer")
            if not peer:
                continue
            back = self.ports.get(peer[0], {}).get(peer[1], {}).get("peer")
            if peer[0] not in self.nodes:
                self.doubts[GONE].append("%s port %d, where %s port %d is" % (guid, number, *peer))
            elif back is None:
                self.doubts[ONE_SIDED].append("%s port %d to %s port %d" % (guid, number, *peer))
            elif back != (guid, number):
                text = "%s port %d has a cable to %s port %d, which has its to %s port %d"
                self._differs(text, guid, number, *peer, *back)
        # Every port of a switch is printed, also one without a cable.
        count = node["port_count"] or max(ports, default=0) if self.all_ports and node["kind"] == SWITCH else 0
        missing = sorted(set(range(1, count + 1)) - set(ports))
        if missing:
            some = ", ".join(map(str, missing[:8])) + (" ..." if missing[8:] else "")
            self.doubts[SHORT].append("%s port %s" % (guid, some))

    def _node(self, guid: str) -> Node:
        about = dict(self.nodes[guid])
        del about["port_count"]
        about.update(kind=about["kind"] or CA, description=about["description"] or "")
        # Port 0 of a switch has no cable.
        return Node(ports=tuple(self._port(about, *one) for one in sorted(self.ports[guid].items()) if one[0]), **about)

    def _port(self, node: Mapping[str, Any], number: int, known: Mapping[str, Any]) -> Port:
        port = dict(known)
        guid = port.pop("port_guid", None)
        # The tools follow only links that are trained.
        port["physical"] = port.get("physical") or ("LinkUp" if port.get("peer") else None)
        if not self.decodes_xdr and node["device_id"] in _XDR_DEVICES and port.get("speed") in _OLD:
            port.update(speed=None, speed_supported=None)
        # All ports of a switch have the switch's GUID.
        return Port(number, guid=None if node["kind"] == SWITCH else guid, **port)
