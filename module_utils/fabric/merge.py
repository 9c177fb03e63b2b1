# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes one sweep of what several tools said of one plane: a port is known by its node, its own GUID or its LID.

Where outputs disagree, the fabric changed while it was swept, two nodes have one GUID, or two planes were mixed: the
first that said it is kept, the sweep reports it and is not complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.host import Problem
from . import told
from .ibqueryerrors import ERRORS
from .sweep import CA, MOST_EVENTS, MOST_PORT_NUMBER, SWITCH, ManagerEvent, Node, Port, SubnetManager, Sweep
from .told import NodeTold, PortTold, Told

# Of disagreements of one kind so many are named; the rest is a number.
NAMED = 5
# PCI device ids whose links are XDR: ConnectX-8, ConnectX-9, Quantum-3.
_XDR_DEVICES = (0x1023, 0x1025, 0xD2F4)
_OLD = ("SDR", "DDR", "QDR")
_FIELDS = ("port_guid", "lid", "state", "physical", "width", "speed", "width_supported", "speed_supported", "peer")


class _Ends:
    """Complaints of one kind, of which a few are quoted."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.said: List[str] = []

    def add(self, one: str) -> None:
        self.said.append(one)

    def problems(self) -> List[Problem]:
        if not self.said:
            return []
        more = len(self.said) - NAMED
        said = "; ".join(self.said[:NAMED]) + ("; and %d more" % more if more > 0 else "")
        return [told.problem("fabric", "%s: %s" % (self.what, said))]


class Merged:
    """What is known of a plane by now. Outputs are added in the order of what they are believed for."""

    def __init__(self, decodes_xdr: bool = False) -> None:
        self.decodes_xdr = decodes_xdr
        self.nodes: Dict[str, Dict[str, Any]] = {}
        self.ports: Dict[str, Dict[int, Dict[str, Any]]] = {}
        self.of_port: Dict[str, Tuple[str, int]] = {}
        self.of_lid: Dict[int, Tuple[str, Optional[int]]] = {}
        self.managers: Dict[str, SubnetManager] = {}
        self.keys: Dict[str, Tuple[int, ...]] = {}
        self.routing: Optional[str] = None
        self.adaptive: Dict[str, bool] = {}
        self.events: List[ManagerEvent] = []
        self.unhealthy: Dict[Tuple[str, int], str] = {}
        self.problems: List[Problem] = []
        self.lacking: List[Problem] = []
        self.differs = _Ends("the first and the last read differ: the fabric changed, or two nodes have one GUID")
        self.one_sided = _Ends("a cable is seen from one end only")
        self.gone = _Ends("what is at the other end of a cable was not read")
        self.lonely = _Ends("nodes without a cable: their neighbours did not respond")
        self.short = _Ends("ports of a switch were not read")
        self.guessed = _Ends("known by the GUID of a port only; read ibnetdiscover too, without -p")
        self.nameless = _Ends("LIDs name no node; without a subnet manager all are 0")
        self.uncounted: List[str] = []

    # -- what is there -----------------------------------------------------------------------------------------------

    def add(self, said: Told) -> None:
        """Nodes, ports, managers and keys of one output."""
        self.lacking += said.lacks()
        self.problems += [told.problem(said.source, note) for note in said.notes]
        for node in said.nodes:
            self._node(node)
        numbers: Dict[str, Set[int]] = {}
        for port in said.ports:
            if port.port_guid and port.guid:
                # All ports of a switch have the one of its port 0.
                kind = port.kind or self.nodes.get(port.guid, {}).get("kind")
                if port.number == 0 or kind != SWITCH:
                    self._own(port.port_guid, port.guid, port.number)
            elif port.port_guid:
                numbers.setdefault(port.port_guid, set()).add(port.number)
        places = [self._place(port, numbers) for port in said.ports]
        for port, place in zip(said.ports, places):
            if place is not None:
                self._port(port, *place)
        for port, place in zip(said.ports, places):
            if place is not None:
                self._cable(port, *place)
        for manager in said.managers:
            self._manager(manager)
        for guid, keys in said.keys.items():
            self.keys.setdefault(guid, keys)
        self.routing = self.routing or said.routing
        self.adaptive.update(said.adaptive)
        self.events += said.events
        self.unhealthy.update(said.unhealthy)

    def _node(self, node: NodeTold) -> None:
        if node.device_id is not None and not 0 <= node.device_id <= 0xFFFFFFFF:
            node = replace(node, device_id=None)
        if node.port_count is not None and not 0 <= node.port_count <= MOST_PORT_NUMBER:
            self.differs.add("node %s reports %d ports" % (node.guid, node.port_count))
            node = replace(node, port_count=None)
        known = self.nodes.get(node.guid)
        if known is None:
            self.nodes[node.guid] = dict(vars(node))
            self.ports.setdefault(node.guid, {})
            return
        for name, value in vars(node).items():
            if value is None:
                continue
            if known[name] in (None, ""):
                known[name] = value
            elif known[name] != value and name != "description":
                self.differs.add("node %s %s: %s and %s" % (node.guid, name, known[name], value))

    def _own(self, port_guid: str, node: str, number: int) -> None:
        known = self.of_port.setdefault(port_guid, (node, number))
        if known != (node, number):
            self.differs.add("port GUID %s is that of %s port %d and of %s port %d" % (port_guid, *known, node, number))

    def _place(self, port: PortTold, numbers: Mapping[str, Set[int]]) -> Optional[Tuple[str, int]]:
        """Node and number of a port, which makes the node known; None where nothing names it.

        numbers: by the GUID of a port, under which numbers it stands; all ports of a switch have one GUID.
        """
        guid = port.guid or self._node_of(port.port_guid or "", port.number)
        if not guid and port.first_port in self.of_port:
            guid = self.of_port[port.first_port][0]
            self._own(port.port_guid or "", guid, port.number)
        if not guid:
            guid = port.port_guid or ""
            if not guid:
                self.nameless.add("port %d %s" % (port.number, port.description or ""))
                return None
            alike = numbers.get(guid, set())
            kind = port.kind or (SWITCH if len(alike) > 1 or max(alike, default=0) > 2 else CA)
            if kind != SWITCH:
                self.guessed.add(guid)
                self._own(guid, guid, port.number)
            self._node(NodeTold(guid, kind, port.description))
        elif guid not in self.nodes:
            self._node(NodeTold(guid, port.kind, port.description))
        elif not self.nodes[guid]["kind"] and port.kind:
            self.nodes[guid]["kind"] = port.kind
        return guid, port.number

    def _node_of(self, port_guid: str, number: int) -> str:
        """The node that has a port of that GUID; "" where none is known. A switch's ports have its own."""
        own = self.of_port.get(port_guid)
        if own is not None and (own[1] == number or self.nodes.get(own[0], {}).get("kind") == SWITCH):
            return own[0]
        known = self.nodes.get(port_guid)
        return port_guid if known is not None and (own is None or own[0] == port_guid) else ""

    def _port(self, port: PortTold, guid: str, number: int) -> None:
        known = self.ports.setdefault(guid, {}).setdefault(number, {})
        for name in _FIELDS:
            value = getattr(port, name)
            if value is None or name == "peer":
                continue
            if known.get(name) is None:
                known[name] = value
            elif known[name] != value and name in ("width", "speed", "state", "lid"):
                self.differs.add("%s port %d %s: %s and %s" % (guid, number, name, known[name], value))
        lid = port.lid
        if lid:
            is_switch = self.nodes[guid]["kind"] == SWITCH
            self.of_lid.setdefault(lid, (guid, None if is_switch else number))

    def _cable(self, port: PortTold, guid: str, number: int) -> None:
        peer: Optional[Tuple[str, int]] = port.peer
        if peer is None and port.peer_port is not None:
            far, far_number = port.peer_port
            peer = (self._node_of(far, far_number) or far, far_number)
        if peer is None and port.peer_lid is not None:
            found = self.of_lid.get(port.peer_lid[0])
            if found is None:
                self.nameless.add("LID %d at the other end of %s port %d" % (port.peer_lid[0], guid, number))
                return
            peer = (found[0], port.peer_lid[1])
        known = self.ports[guid][number]
        if peer is None:
            if port.linked is False and known.get("peer") is not None:
                self.differs.add("%s port %d: a cable to %s port %d, and none" % (guid, number, *known["peer"]))
            if port.linked and not known.get("peer"):
                self.nameless.add("the other end of %s port %d" % (guid, number))
            return
        if known.get("peer") is None:
            known["peer"] = peer
            if known.get("state") == "down":
                self.differs.add("%s port %d: down, and a cable to %s port %d" % (guid, number, *peer))
        elif known["peer"] != peer:
            self.differs.add(
                "%s port %d: a cable to %s port %d, and to %s port %d" % (guid, number, *known["peer"], *peer)
            )

    def _manager(self, manager: SubnetManager) -> None:
        known = self.managers.get(manager.guid)
        if known is None or known.state in ("unknown", manager.state):
            self.managers[manager.guid] = manager
        else:
            self.differs.add("subnet manager %s: %s and %s" % (manager.guid, known.state, manager.state))

    # -- counters ----------------------------------------------------------------------------------------------------

    def count(self, outputs: Sequence[Told]) -> None:
        """What tools said of counters. Who is left away by one of errors has none, if another shows that it answers."""
        for one in outputs:
            self.lacking += one.lacks()
        failed: Dict[Tuple[str, Optional[int]], str] = {}
        for one in outputs:
            for (lid, number), why in one.unread.items():
                node = self.of_lid.get(lid)
                if node is None:
                    self.lacking.append(told.problem(one.source, "LID %d: %s" % (lid, why)))
                else:
                    failed[node[0], number] = why
        shown = [self._counted(one) for one in outputs]
        clean = any(one.clean for one in outputs)
        for guid, ports in self.ports.items():
            for number, port in ports.items():
                if number == 0:
                    continue
                counters: Dict[str, int] = {}
                for one in shown:
                    counters.update(one.get((guid, number), {}))
                why = failed.get((guid, number)) or failed.get((guid, None)) or ""
                answers = any((guid, number) in ports for one, ports in zip(outputs, shown) if one.every)
                if clean and answers and not why:
                    counters = {**dict.fromkeys(ERRORS, 0), **counters}
                port["counters"] = counters
                if not why and not counters:
                    why = "no output shows them"
                elif not why and not any(name in counters for name in ERRORS):
                    why = "no output shows those of errors"
                if why:
                    port["unread"] = why
                    if port.get("peer"):
                        self.uncounted.append("%s port %d (%s)" % (guid, number, why))

    def _counted(self, said: Told) -> Dict[Tuple[str, int], Dict[str, int]]:
        found: Dict[Tuple[str, int], Dict[str, int]] = {}
        for (guid, number), counters in said.counters.items():
            node = guid if guid in self.nodes else self._node_of(guid, number)
            if node and number in self.ports.get(node, {}):
                found.setdefault((node, number), {}).update(counters)
            else:
                self.gone.add("counters of %s port %d" % (guid, number))
        return found

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def sweep(self, said: Sequence[Told], problems: Sequence[Problem] = (), **about: Any) -> Sweep:
        """said: the outputs that were added.   problems: why more may be missing.   about: fields of the sweep.

        plane, where it is not given, is the only master's.
        """
        if any(one.both_ends for one in said):
            self._look_from_both_ends()
        if any(one.all_ports for one in said):
            self._look_for_ports()
        uncounted = _Ends("counters could not be read")
        uncounted.said = self.uncounted
        nodes = tuple(self._finished(guid) for guid in self.nodes)
        # Names of both: a problem that says nothing against what was read, and one that does.
        lacking = [
            *problems,
            *self.lacking,
            *(
                one
                for kind in (self.differs, self.gone, self.lonely, self.one_sided, self.short, self.nameless)
                for one in kind.problems()
            ),
        ]
        notes = [*self.problems, *self.guessed.problems(), *uncounted.problems()]
        masters = [one for one in self.managers.values() if one.state == "master"]
        managers = [self._named(one) for one in self.managers.values()]
        about.setdefault("plane", masters[0].guid if len(masters) == 1 else "")
        return Sweep(
            managers=tuple(managers),
            nodes=nodes,
            routing=self.routing,
            adaptive_routing=self._adaptive_routing(),
            pkeys=self.keys,
            events=tuple(self.events[:MOST_EVENTS]),
            unhealthy=self.unhealthy,
            problems=tuple(dict.fromkeys([*lacking, *notes]))[:1000],
            complete=bool(nodes) and not lacking,
            **about,
        )

    def _adaptive_routing(self) -> Optional[bool]:
        """Of all switches alike; None where they differ, or not each of them has said it."""
        said = {self.adaptive.get(guid) for guid, node in self.nodes.items() if node["kind"] == SWITCH}
        return said.pop() if len(said) == 1 else None

    def _named(self, manager: SubnetManager) -> SubnetManager:
        node = self.of_port.get(manager.guid, (manager.guid,))[0]
        name = self.nodes.get(node, {}).get("description") or ""
        return SubnetManager(manager.guid, manager.state, manager.priority, manager.lid, name)

    def _look_from_both_ends(self) -> None:
        for guid, ports in self.ports.items():
            if not any(port.get("peer") for port in ports.values()):
                self.lonely.add(guid)
            for number, port in ports.items():
                peer = port.get("peer")
                if peer is None:
                    continue
                back = self.ports.get(peer[0], {}).get(peer[1], {})
                if peer[0] not in self.nodes:
                    self.gone.add("%s port %d, where %s port %d is" % (guid, number, *peer))
                elif back.get("peer") is None:
                    self.one_sided.add("%s port %d to %s port %d" % (guid, number, *peer))
                elif back["peer"] != (guid, number):
                    self.differs.add(
                        "%s port %d has a cable to %s port %d, which has its to %s port %d"
                        % (guid, number, *peer, *back["peer"])
                    )

    def _look_for_ports(self) -> None:
        """Of a switch every port is told of, also one without a cable."""
        for guid, node in self.nodes.items():
            if node["kind"] == SWITCH:
                known = set(self.ports[guid])
                missing = sorted(set(range(1, (node["port_count"] or max(known, default=0)) + 1)) - known)
                if missing:
                    some = ", ".join(map(str, missing[:8])) + (" ..." if missing[8:] else "")
                    self.short.add("%s port %s" % (guid, some))

    def _finished(self, guid: str) -> Node:
        node = self.nodes[guid]
        # Port 0 of a switch is where it is managed, and no cable's.
        ports = tuple(self._finished_port(node, *one) for one in sorted(self.ports.get(guid, {}).items()) if one[0])
        return Node(
            guid,
            node["kind"] or CA,
            node["description"] or "",
            node["system"],
            node["device_id"],
            node["firmware"],
            node["psid"],
            ports,
        )

    def _finished_port(self, node: Mapping[str, object], number: int, port: Mapping[str, object]) -> Port:
        peer, state = port.get("peer"), port.get("state")
        speed = port.get("speed")
        undecoded = not self.decodes_xdr and node["device_id"] in _XDR_DEVICES and speed in _OLD
        return Port(
            number,
            state or "unknown",
            # A link that is not trained is not followed.
            port.get("physical") or ("LinkUp" if peer else None),
            port.get("width"),
            None if undecoded else speed,
            port.get("width_supported"),
            None if undecoded else port.get("speed_supported"),
            peer,
            port.get("lid"),
            # All ports of a switch have the switch's.
            None if node["kind"] == SWITCH else port.get("port_guid"),
            port.get("counters", {}),
            port.get("unread", ""),
        )
