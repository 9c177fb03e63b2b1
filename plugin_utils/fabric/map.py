# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The InfiniBand fabric as a map: planes of several hosts' sweeps, cables, and the rails of the inventory. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Node, Port

from .. import nodeset
from .cabling_plan import Cable, is_guid
from .evidence import End, Evidence, Plane, Rail, group_planes, rails_text

Pair = tuple[End, End]
# A host and its rail, or a node or port.
Name = tuple[str, int] | str
Source = TypeVar("Source")
# Characters of a node's description, which has 64, and of names in a line of many.
_SHOWN, _ROOM = 64, 300
_MANAGED = re.compile(r"MF0;([^:;]+):[^:;]*")
# Without the option the last sweep would be judged again within ib_fabric_interval.
AGAIN = "then sweep again: ansible-playbook playbooks/fabric.yml -i INVENTORY -e '{\"ib_fabric_interval\": 0}'"


@dataclass(frozen=True)
class Entry:
    """A finding and its hosts: those of a cable's rails, else those that swept the plane.

    plane: its index, None for the fabric.   kind: entries of one kind are one line, in words that can be counted
    ("links at 4x EDR"); "" for a separate line.   name: in that line.
    """

    hosts: tuple[str, ...]
    finding: Finding
    plane: int | None = None
    kind: str = ""
    name: Name = ""


@dataclass
class Cabling:
    """A plan on this fabric. A node that no sweep has stands by its name in the plan.

    planned: end -> the other end, both ways.   rows: of each end.   switches: nodes that the plan has as switches.
    odd: why rows could not be compared with the fabric -> their lines.
    hosts, between: the plan has cables of hosts, and between switches.
    """

    planned: dict[End, End] = field(default_factory=dict)
    rows: dict[End, Cable] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    odd: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    hosts: bool = False
    between: bool = False


def _read(
    sources: Iterable[tuple[Source, Iterable[Node]]],
) -> tuple[dict[str, Node], dict[End, tuple[Port, Source]], dict[End, End]]:
    """Return nodes, ports with their source, and cables, both ways. sources: the most important first."""
    nodes: dict[str, Node] = {}
    ports: dict[End, tuple[Port, Source]] = {}
    for source, of_source in sources:
        for node in of_source:
            nodes.setdefault(node.guid, node)
            for end, port in node.ports_by_end():
                # An HCA with two ports is in two planes, and each of them sees one of its cables.
                if end not in ports or ports[end][0].peer is None:
                    ports[end] = port, source
    cables: dict[End, End] = {}
    for end, (port, _source) in ports.items():
        if port.peer is not None and port.state != "down":
            cables[end] = port.peer
            cables.setdefault(port.peer, end)
    return nodes, ports, cables


class Fabric:
    """Nodes, ports and cables of all sweeps, and what was found about them so far.

    was, was_nodes, was_cables: by the last sweeps; was: with its time.   labels: names of ports that only the plan has.
    rails: port -> host and rail.   ends_of: node GUID -> ports of it that are rails.
    roots: findings that explain what is missing at an end.   gone: those of missing switches, by GUID or name.
    unswept: that a plane was not swept.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.plan = Cabling()
        self.roots: dict[End, Finding] = {}
        self.gone: dict[str, Finding] = {}
        self.unswept: Finding | None = None
        self.labels: dict[End, str] = {}
        self.lost = tuple(sweep for sweep in evidence.sweeps if not sweep.nodes)
        self.planes = group_planes([sweep for sweep in evidence.sweeps if sweep.nodes], evidence.before)
        self.nodes, ports, self.cables = _read((plane, plane.nodes.values()) for plane in self.planes)
        self.ports = {end: port for end, (port, _plane) in ports.items()}
        self.plane_of = {end: plane for end, (_port, plane) in ports.items()}
        # Of the last sweeps complete and later ones count.
        before = sorted(evidence.before, key=lambda one: (one.complete, one.at))[::-1]
        self.was_nodes, self.was, self.was_cables = _read((sweep.at, sweep.nodes) for sweep in before)
        self.every = {**self.was_nodes, **self.nodes}
        self.rails = self._rails()
        self.ends_of: dict[str, list[End]] = defaultdict(list)
        for end in self.rails:
            self.ends_of[end[0]].append(end)
        self._shared = Counter(node_name(node) for node in self.every.values())
        for plane in self.planes:
            plane.label = self._label(plane)
        labels = Counter(plane.label for plane in self.planes)
        for plane in self.planes:
            if labels[plane.label] > 1:
                plane.label += f" with 0x{min(plane.switches or plane.nodes)}"

    def _rails(self) -> dict[End, tuple[str, Rail]]:
        every = [(host, rail) for host, known in sorted(self.evidence.hosts.items()) for rail in known.rails]
        # The first host of a GUID, by its name, has it.
        by_port = {one[1].port_guid: one for one in reversed(every) if one[1].port_guid}
        found = {(one[1].node_guid, one[1].port): one for one in reversed(every) if one[1].node_guid}
        # Of some rails only the GUID of the port is known.
        ports = [*((end, port) for end, (port, _at) in self.was.items()), *self.ports.items()]
        return {**{end: by_port[port.guid] for end, port in ports if port.guid in by_port}, **found}

    def _label(self, plane: Plane) -> str:
        """Return a label by rails, which last longer than the GUID of the present manager."""
        seen = {end for end in self.rails if end in self.cables and self.plane_of.get(end) is plane}
        for sweep in plane.before:
            seen |= {end for node in sweep.nodes for end, port in node.ports_by_end() if port.peer is not None}
        # One cable in the wrong plane does not change it.
        counted = Counter(rail.rail for end, (_host, rail) in self.rails.items() if end in seen)
        if counted:
            most = max(counted.values())
            return f"plane of {rails_text(rail for rail, number in counted.items() if number * 4 >= most)}"
        what = "switch" if plane.switches else "node"
        return f"plane of {what} 0x{min(plane.switches or plane.nodes)}"

    # -- findings --------------------------------------------------------------------------------------------------

    @property
    def plan_source(self) -> str:
        return self.evidence.plan.source if self.evidence.plan is not None else "sweeps of the fabric"

    def entry(
        self,
        check: Check,
        state: str,
        plane: Plane | None,
        ends: Sequence[End],
        want: str,
        have: str,
        fix: str,
        *,
        subject: str = "",
        hosts: Sequence[str] = (),
        source: str = "",
        kind: str = "",
        name: Name = "",
        roots: Sequence[End] = (),
        severity: str | None = None,
        because: Finding | str | None = None,
        why: str | None = None,
    ) -> Entry:
        """Return the entry of a cable, or without ends of a plane or node.

        subject, hosts, name: instead of those of the ends.   roots: ends that the finding explains.
        Others: as in Check.judge; ``fix`` gets the advice to sweep again.
        """
        source = source or (plane.best.source if plane is not None else "sweeps")
        fix = f"{fix}; {AGAIN}"
        finding = check.judge(subject or self.subject(*ends), state, want, have, source, fix, because, why, severity)
        self.roots.update(dict.fromkeys(roots, finding))
        name = name or (self.name(*ends) if kind and ends else "")
        index = None if plane is None else plane.index
        return Entry(tuple(hosts) or self.concerned(plane, *ends), finding, index, kind, name)

    # -- names -----------------------------------------------------------------------------------------------------

    def node(self, guid: str) -> str:
        """Return a node's name, where it is unique, else with its GUID; of a plan's name that name."""
        if not is_guid(guid):
            return printable(guid)[:_SHOWN]
        text = node_name(self.every[guid]) if guid in self.every else ""
        return text if text and self._shared[text] == 1 else f"{text} 0x{guid}".strip()

    def end(self, end: End) -> str:
        """Return ``node006 rail 3``, ``leaf03 port 7``."""
        if end in self.rails:
            host, rail = self.rails[end]
            return f"{host} rail {rail.rail}"
        return self.labels.get(end) or f"{self.node(end[0])} port {end[1]}"

    def cable(self, *ends: End) -> str:
        return " - ".join(map(self.end, ends))

    def subject(self, *ends: End) -> str:
        """Return the host's name and rail, else the GUID and port of one end: the id is unique in the fabric."""
        end = self._first_end(ends)
        kind = "switch" if self.is_switch(end[0]) else "node"
        return self.end(end) if end in self.rails else f"{kind} 0x{end[0]} port {end[1]}"

    def name(self, *ends: End) -> Name:
        """Return the name of ``Entry.name``."""
        end = self._first_end(ends)
        return (self.rails[end][0], self.rails[end][1].rail) if end in self.rails else self.end(end)

    def _first_end(self, ends: Sequence[End]) -> End:
        rails = (end for end in ends if end in self.rails)
        return next(rails, None) or min(ends, key=lambda end: (not self.is_switch(end[0]), end))

    def concerned(self, plane: Plane | None, *ends: End) -> tuple[str, ...]:
        """Return the hosts of the rails at these ends, else those that swept the plane."""
        hosts = {self.rails[end][0] for end in ends if end in self.rails}
        swept = plane.hosts if plane is not None else {sweep.host for sweep in self.evidence.sweeps}
        return tuple(sorted(hosts or swept))

    def is_switch(self, guid: str) -> bool:
        return guid in self.every and self.every[guid].kind == SWITCH

    def state(self, end: End) -> str:
        """Return ``down (Polling)`` of a port; "" where no sweep has it."""
        port = self.ports.get(end)
        return f"{port.state} ({port.physical})".removesuffix(" (None)") if port else ""

    # -- cables ----------------------------------------------------------------------------------------------------

    def host_first(self, *ends: End) -> list[End]:
        """Return ends in the order rail, HCA, switch."""
        return sorted(ends, key=lambda end: (end not in self.rails, self.is_switch(end[0]), end))

    def links(self, plane: Plane) -> Iterator[Pair]:
        """Yield each cable of a plane once, the host's end first."""
        for end in (end for node in plane.nodes.values() for end, _port in node.ports_by_end()):
            other = self.cables.get(end)
            if other is None or self.plane_of[end] is not plane:
                continue
            if other not in self.ports or self.host_first(end, other)[0] == end:
                yield end, other

    def between(self, *ends: End) -> bool:
        """Return whether all ends are of switches."""
        return all(self.is_switch(end[0]) for end in ends)

    def find_plane(self, end: End | None) -> Plane | None:
        """Return the plane of a port, of its node, or of its node at the last sweep."""
        return None if end is None else self.plane_of.get(end) or self._plane_of_node.get(end[0])

    @cached_property
    def _plane_of_node(self) -> dict[str, Plane]:
        found: dict[str, Plane] = {}
        for plane in self.planes[::-1]:
            was = {node.guid for sweep in plane.before for node in sweep.nodes}
            found.update(dict.fromkeys((*was, *plane.nodes), plane))
        return {**found, **{guid: plane for plane in self.planes[::-1] for guid in plane.switches}}

    @cached_property
    def spines(self) -> frozenset[str]:
        """Switches with a few rails that are cabled to leaves only.

        Each neighbour has at least twice as many rails, and its other neighbours have none. In a mesh of leaves, where
        that is not so, there is no way to tell.
        """
        rails = Counter(self.cables[end][0] for end in self.rails if end in self.cables)
        beside: dict[str, set[str]] = defaultdict(set)
        for end, other in self.cables.items():
            if end[0] != other[0] and self.between(end, other):
                beside[end[0]].add(other[0])
        return frozenset(
            guid
            for guid, near in beside.items()
            if rails[guid]
            and all(rails[leaf] >= 2 * rails[guid] for leaf in near)
            and not any(rails[other] for leaf in near for other in beside[leaf] if other != guid)
        )

    def home(self, host: str, rail: Rail) -> End | None:
        """Return a rail's port in the fabric; None where it has no cable there."""
        ends = (end for end in self.ends(rail) if end in self.ports and end in self.cables)
        return next((end for end in ends if self.rails.get(end, (host,))[0] == host), None)

    def ends(self, rail: Rail) -> list[End]:
        """Return the ports that a rail may have, by its GUIDs."""
        if rail.node_guid:
            return [(rail.node_guid, rail.port)]
        return [end for end, (_host, known) in self.rails.items() if known is rail] if rail.port_guid else []


def node_name(node: Node) -> str:
    """Return a node's name, the host name of ``MF0;leaf01:MQM9700/U1``."""
    text = " ".join(printable(node.description).split())[:_SHOWN]
    managed = _MANAGED.fullmatch(text)
    return managed.group(1) if managed else text


def folded(name: str) -> str:
    """Return a name as names are compared: in lower case, with single blanks."""
    return " ".join(name.lower().split())


def short_name(name: str) -> str:
    """Return a name in lower case, of whose first word the domain is cut off; an IPv4 address as it is."""
    host, blank, device = folded(name).partition(" ")
    return (host if host.replace(".", "").isdecimal() else host.partition(".")[0]) + blank + device


def hosts_by_name(hosts: Collection[str]) -> dict[str, str]:
    """Return name in lower case -> host, also for names without their domain where that is unique."""
    short = Counter(map(short_name, hosts))
    unique = {short_name(host): host for host in hosts if short[short_name(host)] == 1}
    return unique | {folded(host): host for host in hosts}


def manager_names(given: Iterable[str]) -> set[str]:
    """Return names in lower case, and GUIDs as sweeps have them; sminfo prints no zeros in front."""
    texts = {one.lower().removeprefix("0x") for one in given}
    return texts | {one.replace(":", "").zfill(16) for one in texts}


def is_aggregation(node: Node) -> bool:
    """Return whether an HCA is the part of a switch that adds up for SHARP."""
    return node.kind == CA and "aggregation node" in node.description.lower()


def several(texts: Sequence[str], most: int = 4, separator: str = "; ") -> str:
    """Return the first texts, and the number of others."""
    more = len(texts) - most
    return separator.join([*texts[:most], *([f"and {more} more"] if more > 0 else [])])


def names(given: Iterable[Name]) -> str:
    """Return ``rails 0-7 of node[001-064]; leaf03 port 7``; what there is no room for is counted."""
    of_rail: dict[int, set[str]] = defaultdict(set)
    others: set[str] = set()
    for name in given:
        if isinstance(name, tuple):
            of_rail[name[1]].add(name[0])
        else:
            others.add(name)
    of_hosts: dict[frozenset[str], list[int]] = defaultdict(list)
    for rail, hosts in sorted(of_rail.items()):
        of_hosts[frozenset(hosts)].append(rail)
    room = max(_ROOM // max(len(of_hosts) + bool(others), 1), 40)
    parts = [f"{rails_text(rails)} of {nodeset.brief(group, room)}" for group, rails in of_hosts.items()]
    # Digits of GUIDs are no range of nodes.
    guids = sorted(name for name in others if name.startswith("0x"))
    rest = others.difference(guids)
    parts += [several(guids, 6, ", ")] if guids else []
    parts += [nodeset.brief(rest, room)] if rest else []
    return several(parts, 9)
