# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The InfiniBand fabric as a map: planes out of several hosts' sweeps, which cable ends where, whose port is whose.

A plane is what one subnet manager manages. Several hosts may have swept it, and the best of their sweeps counts; where
two managers share switches, the planes are joined, and are one plane here. Pure. Sources: fabric.md 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Node, Port, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_plan import Plan, is_guid

# Node GUID and port number.
End = tuple[str, int]
# Characters of a node's description that are shown: a NodeDescription has 64.
_SHOWN = 64
_MANAGED = re.compile(r"MF0;([^:;]+):[^:;]*")
UP = ("active", "armed", "init")
# At once: within ib_fabric_interval the last sweep would be judged again.
SWEEP_AGAIN = "ansible-playbook playbooks/fabric.yml -i INVENTORY -e '{\"ib_fabric_interval\": 0}'"


class Rail(NamedTuple):
    """One rail of a host, as the inventory's profile and the host's own sysfs have it.

    pci: address of its NIC.   node_guid, port_guid: 16 hex digits, None where the host did not tell.
    port: of the NIC.   rate_gbps: of the profile.   device: ``mlx5_3``, "" where that is not known.
    """

    rail: int
    pci: str
    node_guid: str | None
    port_guid: str | None
    port: int
    rate_gbps: float | None
    device: str = ""


@dataclass(frozen=True)
class Host:
    """A host of the inventory.   boot_id: of the kernel that runs, None where it is not known."""

    rails: tuple[Rail, ...] = ()
    boot_id: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What the site says (``plugin_utils/site_values.py``).

    oversubscription: most bandwidth down for each up.   partitions: keys, bit 15 for full member; empty: not judged.
    managers: port GUIDs or descriptions of nodes that may run a subnet manager; empty: any.
    firmware: PSID -> version; what is not declared has to be alike.   routing: name of the engine; "": any.
    adaptive_routing: None for not asked.
    """

    oversubscription: float = 1.0
    partitions: tuple[int, ...] = ()
    managers: tuple[str, ...] = ()
    firmware: Mapping[str, str] = field(default_factory=dict)
    routing: str = ""
    adaptive_routing: bool | None = None


@dataclass(frozen=True)
class Asked:
    """All that a judgement rests on.

    sweeps: of this run.   before: those of the last record.   boots: host -> boot_id when that was made.
    plan: None where the site has none.   hosts: name in the inventory -> its rails.
    """

    sweeps: Sequence[Sweep]
    before: Sequence[Sweep] = ()
    plan: Plan | None = None
    hosts: Mapping[str, Host] = field(default_factory=dict)
    boots: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)


@dataclass(frozen=True)
class Said:
    """A finding, and whom it is told of.

    plane: index of the plane that it is of, None for what is of none.   kind: what has to be equal for many of them to
    be one line, in words that can be counted ("links at 4x EDR"); "" for what is its own line.
    name: of the subject in such a line: a host's name and its rail, or the name of a port or a node.
    ends: of the cable that it is of, or of all that it is of; for a picture.
    """

    hosts: tuple[str, ...]
    finding: Finding
    plane: int | None = None
    kind: str = ""
    name: tuple[str, int] | str = ""
    ends: tuple[End, ...] = ()


@dataclass
class Plane:
    """index: in the fabric.   sweeps: all of it, for each subnet manager the best one first.

    managers: their GUIDs; more than one where planes are joined, none where nobody was seen to be one.
    nodes: GUID -> node, of the best sweeps.
    before: the best earlier sweeps of the same plane.   label: how findings call it, the same from run to run.
    """

    index: int
    sweeps: tuple[Sweep, ...]
    managers: tuple[str, ...]
    nodes: Mapping[str, Node]
    before: tuple[Sweep, ...] = ()
    label: str = ""

    @property
    def best(self) -> Sweep:
        return self.sweeps[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Who swept it."""
        return tuple(sorted({sweep.host for sweep in self.sweeps}))

    @cached_property
    def joined(self) -> bool:
        """Whether it is several planes that share switches: by its managers, or by what was apart at the last sweep."""
        return len(self.managers) > 1 or len(self.apart) > 1

    @cached_property
    def apart(self) -> tuple[frozenset[str], ...]:
        """Of each plane that was apart at the last sweep its switches, as far as they are in this one."""
        groups: list[frozenset[str]] = []
        for sweep in self.before:
            own = frozenset(node.guid for node in sweep.nodes if node.guid in self.switches)
            beside = [group for group in groups if not group & own]
            groups = [*beside, own.union(*(group for group in groups if group & own))]
        return tuple(group for group in groups if group)

    @cached_property
    def switches(self) -> dict[str, Node]:
        return {guid: node for guid, node in self.nodes.items() if node.kind == SWITCH}

    @cached_property
    def holes(self) -> tuple[tuple[End, str], ...]:
        """Ends at which somebody must be, and nobody was seen: what makes a sweep partial whatever its tool said."""
        found: list[tuple[End, str]] = []
        peers = {(guid, port.number): port.peer for guid, node in self.nodes.items() for port in node.ports}
        for guid, node in self.nodes.items():
            for port in node.ports:
                end = (guid, port.number)
                if port.peer is None:
                    if node.kind == SWITCH and port.number and port.state in UP:
                        found.append((end, f"is {port.state}, and nothing responded there"))
                    continue
                if port.peer[0] not in self.nodes:
                    found.append((end, f"leads to 0x{port.peer[0]}, which did not respond"))
                elif (peers.get(port.peer) or end) != end:
                    found.append((end, "and its peer report different data of their cable"))
        return tuple(sorted(found))

    @cached_property
    def complete(self) -> bool:
        best = [next(sweep for sweep in self.sweeps if sweep.plane == one) for one in self.managers] or [self.best]
        return bool(self.nodes) and not self.holes and all(sweep.complete for sweep in best)


class Fabric:
    """Everything that was seen, by node, by port and by cable."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.rails: dict[End, tuple[str, Rail]] = {}
        # What the plan calls ports of nodes that nobody has seen.
        self.labels: dict[End, str] = {}
        self._rail_ports: dict[str, tuple[str, Rail]] = {}
        for host, known in sorted(asked.hosts.items()):
            for rail in known.rails:
                if rail.node_guid:
                    self.rails.setdefault((rail.node_guid, rail.port), (host, rail))
                if rail.port_guid:
                    self._rail_ports.setdefault(rail.port_guid, (host, rail))
        self.lost = tuple(sweep for sweep in asked.sweeps if not sweep.nodes)
        self.planes = _planes([sweep for sweep in asked.sweeps if sweep.nodes], asked.before)
        self.nodes: dict[str, Node] = {}
        self.ports: dict[End, Port] = {}
        self.plane_of: dict[End, Plane] = {}
        for plane in self.planes:
            for guid, node in plane.nodes.items():
                self.nodes.setdefault(guid, node)
                for port in node.ports:
                    end = (guid, port.number)
                    # An HCA with two ports is in two planes, and each of them sees one of its cables.
                    if end not in self.ports or self.ports[end].peer is None:
                        self.ports[end], self.plane_of[end] = port, plane
        self.cables: dict[End, End] = {}
        for end, port in self.ports.items():
            if port.peer is not None and port.state != "down":
                self.cables[end] = port.peer
                self.cables.setdefault(port.peer, end)
        self.was: dict[End, tuple[Port, float]] = {}
        self.was_nodes: dict[str, Node] = {}
        self.was_cables: dict[End, End] = {}
        for sweep in sorted(asked.before, key=lambda one: (one.complete, one.at)):
            for node in sweep.nodes:
                self.was_nodes[node.guid] = node
                for port in node.ports:
                    end = (node.guid, port.number)
                    if port.peer is not None or end not in self.was:
                        self.was[end] = (port, sweep.at)
                    if port.peer is not None:
                        self.was_cables[end] = port.peer
                        self.was_cables.setdefault(port.peer, end)
        self._find_rails()
        # Node GUID -> ports of it that are rails.
        self.ends_of: dict[str, list[End]] = {}
        for end in self.rails:
            self.ends_of.setdefault(end[0], []).append(end)
        self._shared = Counter(name_of(node) for node in {**self.was_nodes, **self.nodes}.values())
        self._shared[""] = 0
        _label(self)

    def _find_rails(self) -> None:
        """Rails whose host told its port's GUID and not its node's."""
        for ports in (self.ports.items(), ((end, port) for end, (port, _at) in self.was.items())):
            for end, port in ports:
                if port.guid in self._rail_ports:
                    self.rails.setdefault(end, self._rail_ports[port.guid or ""])

    # -- names -----------------------------------------------------------------------------------------------------

    def node(self, guid: str) -> str:
        """For people: what a node calls itself where no other does, else its GUID; of a plan's name that name."""
        if not is_guid(guid):
            return printable(guid)[:_SHOWN]
        known = self.nodes.get(guid) or self.was_nodes.get(guid)
        text = name_of(known) if known is not None else ""
        return text if self._shared[text] == 1 else f"{text} 0x{guid}".strip()

    def end(self, end: End) -> str:
        """``node006 rail 3``, ``leaf03 port 7``."""
        if end in self.rails:
            host, rail = self.rails[end]
            return f"{host} rail {rail.rail}"
        if end in self.labels:
            return self.labels[end]
        return f"{self.node(end[0])} port {end[1]}"

    def cable(self, end: End, other: End) -> str:
        return f"{self.end(end)} - {self.end(other)}"

    def module(self, *ends: End) -> str:
        """How to see what a cable's transceiver says."""
        for end in ends:
            if end in self.rails:
                host, rail = self.rails[end]
                device = rail.device or rail.pci or "DEVICE"
                return f"mlxlink -d {device} -m -c -e on {host} shows the module's power and errors"
        return "the switches' consoles show the modules' power and errors"

    def subject(self, *ends: End) -> str:
        """What lasts of a cable: the host's name and its rail, else the GUID and port of one end.

        With the host's name, so that an id is that of one finding in the whole fabric, and another can follow from it.
        """
        rails = [end for end in ends if end in self.rails]
        if rails:
            return self.end(rails[0])
        guid, port = min(ends, key=lambda end: (not self.is_switch(end[0]), end))
        return f"{'switch' if self.is_switch(guid) else 'node'} 0x{guid} port {port}"

    def name(self, *ends: End) -> tuple[str, int] | str:
        """As ``Said.name`` has it."""
        rails = [end for end in ends if end in self.rails]
        if rails:
            host, rail = self.rails[rails[0]]
            return host, rail.rail
        return self.end(min(ends, key=lambda end: (not self.is_switch(end[0]), end)))

    def concerned(self, plane: Plane, *ends: End) -> tuple[str, ...]:
        """Hosts of the rails at these ends; where there is none, who swept the plane."""
        return tuple(sorted({self.rails[end][0] for end in ends if end in self.rails})) or plane.hosts

    def is_switch(self, guid: str) -> bool:
        known = self.nodes.get(guid) or self.was_nodes.get(guid)
        return known is not None and known.kind == SWITCH

    # -- cables ----------------------------------------------------------------------------------------------------

    def links(self, plane: Plane) -> Iterator[tuple[End, End]]:
        """Each cable of a plane once; where it is a rail's, the host's end first, else the lesser one."""
        for guid, node in plane.nodes.items():
            for port in node.ports:
                end = (guid, port.number)
                other = self.cables.get(end)
                if other is None or self.plane_of[end] is not plane:
                    continue
                if other not in self.ports or self._first(end, other):
                    yield end, other

    @cached_property
    def spines(self) -> frozenset[str]:
        """Switches that a rail or a few are plugged into, though they are cabled to leaves alone.

        Each of their neighbours has at least twice as many rails, and its other neighbours have none: in a mesh of
        leaves, where it is not so, nobody knows.
        """
        rails = Counter(self.cables[end][0] for end in self.rails if end in self.cables)
        beside: dict[str, set[str]] = {}
        for end, other in self.cables.items():
            if end[0] != other[0] and self.is_switch(end[0]) and self.is_switch(other[0]):
                beside.setdefault(end[0], set()).add(other[0])
        return frozenset(
            guid
            for guid, near in beside.items()
            if rails[guid]
            and all(rails[leaf] >= 2 * rails[guid] for leaf in near)
            and all(not rails[other] for leaf in near for other in beside[leaf] if other != guid)
        )

    def _first(self, end: End, other: End) -> bool:
        return (end not in self.rails, self.is_switch(end[0]), end) < (
            other not in self.rails,
            self.is_switch(other[0]),
            other,
        )

    def home(self, host: str, rail: Rail) -> End | None:
        """Where a rail is in the fabric; None where it has no cable there."""
        for end in self.ends(rail):
            if end in self.ports and end in self.cables and self.rails.get(end, (host,))[0] == host:
                return end
        return None

    def ends(self, rail: Rail) -> Iterable[End]:
        """Where a rail may be met: its port, as far as its host told its GUIDs."""
        if rail.node_guid:
            yield rail.node_guid, rail.port
        elif rail.port_guid:
            yield from (end for end, (_host, known) in self.rails.items() if known is rail)

    def was_home(self, rail: Rail) -> End | None:
        """The switch's port that the last sweep had the rail at."""
        return next((self.was_cables[end] for end in self.ends(rail) if end in self.was_cables), None)


def name_of(node: Node) -> str:
    """What a node calls itself, for people: of ``MF0;leaf01:MQM9700/U1``, a managed switch, its host name."""
    text = " ".join(printable(node.description).split())[:_SHOWN]
    managed = _MANAGED.fullmatch(text)
    return managed.group(1) if managed else text


def count(number: int, what: str) -> str:
    """``1 HCA``, ``2 HCAs``; of ``switch``, ``switches``."""
    return f"{number} {what}" + ("" if number == 1 else "es" if what.endswith("ch") else "s")


def is_aggregation(node: Node) -> bool:
    """Whether it is a part of a switch that shows itself as an HCA: where SHARP adds up."""
    return node.kind == CA and "aggregation node" in node.description.lower()


def _worth(sweep: Sweep) -> tuple[object, ...]:
    """The best first: of whole ones the newest, of others the one that shows most."""
    size = -len(sweep.nodes)
    return not sweep.complete, *((-sweep.at, size) if sweep.complete else (size, -sweep.at)), sweep.host, sweep.device


def _planes(sweeps: Sequence[Sweep], before: Sequence[Sweep]) -> list[Plane]:
    # Where no manager was seen, each sweep may be a plane of its own.
    of_manager: dict[str, list[Sweep]] = {}
    for sweep in sorted(sweeps, key=_worth):
        of_manager.setdefault(sweep.plane or f"~{len(of_manager)}", []).append(sweep)
    groups: list[tuple[list[str], set[str]]] = []
    for manager in sorted(of_manager):
        switches = {node.guid for node in of_manager[manager][0].nodes if node.kind == SWITCH}
        names = [manager]
        apart = []
        for group in groups:
            if group[1] & switches:
                names, switches = group[0] + names, switches | group[1]
            else:
                apart.append(group)
        groups = [*apart, (names, switches)]
    planes = []
    for index, (names, switches) in enumerate(sorted(groups, key=lambda group: group[0])):
        managers = [name for name in names if name[0] != "~"]
        nodes: dict[str, Node] = {}
        for name in managers or names:
            for node in of_manager[name][0].nodes:
                nodes.setdefault(node.guid, node)
        known = _before(before, set(managers), switches)
        every = [sweep for name in (*managers, *names) for sweep in of_manager[name]]
        planes.append(Plane(index, tuple({id(one): one for one in every}.values()), tuple(managers), nodes, known))
    return planes


def _before(before: Sequence[Sweep], managers: set[str], switches: set[str]) -> tuple[Sweep, ...]:
    """Of each earlier plane that is the same: a manager may have changed, so its switches tell, too."""
    best: dict[str, Sweep] = {}
    for sweep in sorted(before, key=lambda one: (one.complete, len(one.nodes), one.at)):
        own = {node.guid for node in sweep.nodes if node.kind == SWITCH}
        if (own & switches) or (sweep.plane in managers and not (own and switches)):
            best[sweep.plane] = sweep
    return tuple(best[name] for name in sorted(best))


def _label(fabric: Fabric) -> None:
    """By the rails in it, which last longer than the GUID of whoever manages it at the time."""
    for plane in fabric.planes:
        seen = {end for end in fabric.rails if end in fabric.cables and fabric.plane_of.get(end) is plane}
        for sweep in plane.before:
            seen |= {(node.guid, port.number) for node in sweep.nodes for port in node.ports if port.peer is not None}
        own = (rail for end, (_host, rail) in fabric.rails.items() if end in seen)
        # One cable in the wrong plane makes no other name of it.
        counted = Counter(rail.rail for rail in own)
        most = max(counted.values(), default=0)
        plane.label = called(rail for rail, count in counted.items() if count * 4 >= most)
        if not counted:
            what = "switch" if plane.switches else "node"
            plane.label = f"plane of {what} 0x{min(plane.switches or plane.nodes)}"
    names = Counter(plane.label for plane in fabric.planes)
    for plane in fabric.planes:
        if names[plane.label] > 1:
            plane.label += f" with 0x{min(plane.switches or plane.nodes)}"


def called(rails: Iterable[int]) -> str:
    """``plane of rails 0-3,6``."""
    numbers = sorted(set(rails))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"plane of rail{'s' if len(numbers) > 1 else ''} {text}"


def several(texts: Sequence[str], most: int = 4, separator: str = "; ") -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - most
    return separator.join(texts[:most]) + (f"{separator}and {more} more" if more > 0 else "")
