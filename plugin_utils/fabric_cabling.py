# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Is every cable where the plan has it, and where there is no plan, on a leaf of its rail.

A cable is wrong as a whole: two that are in each other's place are one finding that names both, more that went round
are one that names all. What is unplugged, and what ends at a switch that is gone, is reported once. Pure.
Sources: fabric.md 1, 2 (a swap is two ends in each other's place) and 3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH
from ansible_collections.busbar.fabric.plugins.plugin_utils import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_plan import Cable
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_lines import names
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    End,
    Fabric,
    Plane,
    Rail,
    Said,
    count,
    name_of,
    several,
)

_THEN = f"then sweep again: {SWEEP_AGAIN}"
# Of the rails on a leaf, the part that may be strange before nobody says that leaves are of one rail.
_STRANGE = 0.25
_BY_PLAN = "the plan has it"

DOWN = Check(
    "ib_fabric.link_down",
    why="a cable that the plan has and the fabric lacks: its rail is gone, or its leaf has fewer uplinks",
    severity="critical",
)
"Is every link of the cabling plan between existing nodes up"

SWAPPED = Check(
    "ib_fabric.swapped",
    why="swapped cables lead their rails over the spines, or into another plane, where nothing responds",
    severity="critical",
)
"Is no cable swapped: the finding names the pair, or the whole cycle"

RAIL_LEAF = Check(
    "ib_fabric.rail_leaf",
    why="rail N of one node talks to rail N of all: on another rail's leaf it goes through the spines",
)
"""Does each rail end at a leaf of that rail: by the plan, and without one where the leaves are otherwise of one rail
each"""

PLAN = Check(
    "ib_fabric.plan",
    why="where the plan and the fabric differ, one of them is wrong, and checks that use the plan cannot be trusted",
    severity="minor",
)
"Does the cabling match the plan, and do the plan's nodes, ports and names exist"

SWITCH_GONE = Check(
    "ib_fabric.switch",
    why="a switch that is gone takes its hosts' rails, or its share of all leaves' uplinks, with it",
    severity="critical",
)
"Does every switch of the plan, and of the last sweep, exist"


@dataclass
class Cabling:
    """What a plan comes to on this fabric.

    A node that no sweep has stands by the name that the plan has for it.

    planned: end -> the other end, both ways.   cables: of each end.   racked: nodes that the plan has as switches.
    odd: why rows could not be held against the fabric -> their lines.
    hosts, between: the plan says how hosts are cabled to switches, and switches to each other.
    """

    planned: dict[End, End] = field(default_factory=dict)
    cables: dict[End, Cable] = field(default_factory=dict)
    racked: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    odd: dict[str, list[int]] = field(default_factory=dict)
    hosts: bool = False
    between: bool = False
    # Findings that explain what is missing at an end, and those of switches that are gone, by GUID or name.
    roots: dict[End, Finding] = field(default_factory=dict)
    switches: dict[str, Finding] = field(default_factory=dict)
    # That a plane was not swept.
    unswept: Finding | None = None


# -- the plan against the names of the fabric ------------------------------------------------------------------------


def resolve(fabric: Fabric) -> Cabling:
    """Which ports the plan means."""
    found = Cabling()
    plan = fabric.asked.plan
    if plan is None:
        return found
    named = _Names(fabric)
    counts = Counter(of for cable in plan.cables for of, _at in cable.ends)
    for cable in plan.cables:
        ends: list[End] = []
        missing = False
        for place, (of, at) in enumerate(cable.ends):
            end, why = named.end(of, at, cable.rail if place == 0 else None)
            if end is not None:
                ends.append(end)
            elif why:
                found.odd.setdefault(why, []).append(cable.line)
                missing = True
                break
            else:
                # A port with a name, of a node that nobody has seen, has a number that no port has.
                ends.append((of, at if isinstance(at, int) else -1 - len(fabric.labels)))
                fabric.labels[ends[-1]] = cabling_plan.end(of, at)
        if missing:
            continue
        first, second = ends
        found.nodes.update((first[0], second[0]))
        if first in found.planned or second in found.planned:
            found.odd.setdefault("two cables of the plan end at one port, which it names in two ways", []).append(
                cable.line
            )
            continue
        found.planned[first], found.planned[second] = second, first
        found.cables[first] = found.cables[second] = cable
        switches = [_is_switch(fabric, cable, place, end, counts) for place, end in enumerate(ends)]
        found.racked.update(end[0] for end, is_one in zip(ends, switches, strict=True) if is_one)
        found.between = found.between or all(switches)
        found.hosts = found.hosts or not all(switches)
    return found


def _is_switch(fabric: Fabric, cable: Cable, place: int, end: End, counts: Counter[str]) -> bool:
    kind = (cable.a_type, cable.z_type)[place]
    if kind:
        return kind == cabling_plan.SWITCH
    if end[0] in fabric.nodes or end[0] in fabric.was_nodes:
        return fabric.is_switch(end[0])
    if cable.rail is not None:
        return place == 1
    # Of a node that nobody has seen: more cables than an HCA has ports.
    return end not in fabric.rails and counts[cable.ends[place][0]] > 2


class _Names:
    """Who is meant by a name in the plan."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._described: dict[str, list[str]] = {}
        for guid, node in {**fabric.was_nodes, **fabric.nodes}.items():
            for text in dict.fromkeys((" ".join(node.description.split()), name_of(node))):
                self._described.setdefault(text, []).append(guid)
        self._hosts: dict[str, str] = {host: host for host in fabric.asked.hosts}
        short = Counter(host.partition(".")[0] for host in fabric.asked.hosts)
        for host in fabric.asked.hosts:
            if short[host.partition(".")[0]] == 1:
                self._hosts.setdefault(host.partition(".")[0], host)
        self._numbers: dict[str, tuple[set[int], bool]] = {}

    def end(self, of: str, at: int | str, rail: int | None) -> tuple[End | None, str]:
        """The port, or why it cannot be told; neither where the node is not in the fabric."""
        if cabling_plan.is_guid(of):
            if of not in self.fabric.nodes:
                return self._known_rail(of, at)
            return self._port(of, at)
        host = self._hosts.get(of) or self._hosts.get(of.partition(".")[0])
        if host is not None:
            end = self._of_host(host, at, rail)
            if end is not None:
                return end, ""
        named = self._described.get(" ".join(of.split()), [])
        number = at
        if not named and isinstance(at, str):
            # An HCA is called after its host and device: "node001 mlx5_0".
            device, _slash, port = at.partition("/")
            named = self._described.get(f"{of} {device}", [])
            decimal = whole(port or "1")
            number = at if decimal is None else decimal
        if len(named) > 1:
            return None, f"{len(named)} nodes are called {printable(of)[:64]}: name them by GUID"
        if not named:
            if host is not None and self.fabric.asked.hosts[host].rails:
                return None, f"{printable(of)[:64]} has no rail at port {printable(str(at))[:32]}: set the column rail"
            return None, ""
        if named[0] not in self.fabric.nodes:
            return (named[0], number if isinstance(number, int) else 0), ""
        return self._port(named[0], number)

    def _known_rail(self, guid: str, at: int | str) -> tuple[End | None, str]:
        """Of a node that no sweep has: a rail's host tells its GUID also while its cable is out."""
        if isinstance(at, str):
            ports = [end for end in self.fabric.rails if end[0] == guid]
            return (ports[0], "") if len(ports) == 1 else (None, "")
        return ((guid, at), "") if (guid, at) in self.fabric.rails or guid in self.fabric.was_nodes else (None, "")

    def _of_host(self, host: str, at: int | str, number: int | None) -> End | None:
        rails = self.fabric.asked.hosts[host].rails
        if number is not None:
            fitting = [rail for rail in rails if rail.rail == number]
        else:
            device, _slash, port = str(at).partition("/")
            fitting = [rail for rail in rails if rail.device and rail.device == device]
            fitting = [rail for rail in fitting if not port or str(rail.port) == port] if port else fitting
        ends = [(rail.node_guid, rail.port) for rail in fitting if rail.node_guid]
        return ends[0] if len(ends) == 1 else None

    def _port(self, guid: str, at: int | str) -> tuple[End | None, str]:
        if isinstance(at, str):
            ports = [port.number for port in self.fabric.nodes[guid].ports if port.number]
            if self.fabric.nodes[guid].kind == CA and len(ports) == 1 and not at.partition("/")[2]:
                return (guid, ports[0]), ""
            number = re.fullmatch(r"[Pp]?(?:ort ?)?0*([0-9]{1,3})", at)
            if number is None:
                return None, f"{self.fabric.node(guid)} has no port {printable(at)[:32]}: number it as iblinkinfo does"
            at = int(number.group(1))
        if guid not in self._numbers:
            listed = self.fabric.nodes[guid].ports
            # Of a plane that was swept in part a port may be missing that is there.
            plane = plane_of(self.fabric, (guid, at))
            free = any(port.peer is None and port.number for port in listed)
            self._numbers[guid] = {port.number for port in listed}, free and plane is not None and plane.complete
        numbers, all_listed = self._numbers[guid]
        if at not in numbers and all_listed and self.fabric.nodes[guid].kind == SWITCH:
            return None, f"{self.fabric.node(guid)} has no port {at}: it ends at {max(numbers)}"
        return (guid, at), ""


# -- the cables ------------------------------------------------------------------------------------------------------


def cabling(fabric: Fabric, known: Cabling) -> list[Said]:
    """What is wrong with the cables; ``known.roots`` and ``known.switches`` then say what explains what is missing."""
    found = [*_odd(fabric, known), *_gone(fabric, known)]
    wrong: dict[End, End] = {}
    for end, other in known.planned.items():
        if fabric.cables.get(end) == other or end > other:
            continue
        if not _is_known(fabric, end, other):
            continue
        wrong[end] = other
    rounds, left = _rounds(fabric, known, wrong)
    for ends in rounds:
        found.append(_swapped(fabric, known, ends))
    for end, other in sorted(left):
        found += _one(fabric, known, end, other)
    found += _unplanned(fabric, known)
    return found


def _is_known(fabric: Fabric, end: End, other: End) -> bool:
    """Whether the sweeps say how a cable is: of a plane that was swept in part, only where both ends were seen."""
    for one, far in ((end, other), (other, end)):
        if one in fabric.ports:
            continue
        plane = plane_of(fabric, one) or plane_of(fabric, far)
        if plane is None or not plane.complete:
            return False
    return True


def plane_of(fabric: Fabric, end: End) -> Plane | None:
    """Of a port, of its node, or where its node was at the last sweep."""
    if end in fabric.plane_of:
        return fabric.plane_of[end]
    for plane in fabric.planes:
        if end[0] in plane.switches:
            return plane
    for plane in fabric.planes:
        if end[0] in plane.nodes or any(end[0] == node.guid for sweep in plane.before for node in sweep.nodes):
            return plane
    return None


def _rounds(
    fabric: Fabric, known: Cabling, wrong: dict[End, End]
) -> tuple[list[list[tuple[End, End]]], set[tuple[End, End]]]:
    """Planned cables that are in each other's place, and those that are not.

    Each wrong cable has two ends, and each end leads at most to one end of another wrong cable: chains and rings. A
    ring is cables that were exchanged among themselves.
    """
    of_end = {end: pair for pair in wrong.items() for end in pair}
    rounds: list[list[tuple[End, End]]] = []
    left = set(wrong.items())
    for start in sorted(wrong.items()):
        if start not in left:
            continue
        ring, at, end = [start], start, start[1]
        while True:
            reached = fabric.cables.get(end)
            following = of_end.get(reached) if reached is not None else None
            if reached is None or following is None:
                break
            if following == start:
                if reached == start[0]:
                    rounds.append(ring)
                    left -= set(ring)
                break
            if following in ring:
                break
            ring.append(following)
            at = following
            end = at[1] if reached == at[0] else at[0]
    return rounds, left


def _swapped(fabric: Fabric, known: Cabling, ring: Sequence[tuple[End, End]]) -> Said:
    ends = [end for pair in ring for end in pair]
    plane = next(plane for plane in (plane_of(fabric, end) for end in ends) if plane is not None)
    subjects = sorted(fabric.subject(*pair) for pair in ring)
    now = sorted({tuple(sorted((end, fabric.cables[end]), key=lambda one: _order(fabric, one))) for end in ends})
    have = several([fabric.cable(*pair) + _port_of(fabric, *pair) for pair in now], 6)
    want = several([fabric.cable(*_host_first(fabric, *pair)) + _port_of(fabric, *pair) for pair in ring], 6)
    far = sorted({_host_first(fabric, *pair)[1] for pair in ring})
    shown = several([fabric.end(end) for end in far], 6, ", ")
    if len(ring) == 2:
        fix = f"exchange the two plugs at {' and '.join(fabric.end(end) for end in far)}, {_THEN}"
    else:
        fix = f"unplug the {len(ring)} cables at {shown}; plug each where WANT has it, {_THEN}"
    finding = SWAPPED.judge(
        f"cables of {several(subjects, 6, ' and ')}",
        *("drift", want, have, _source(fabric), fix),
        severity=_severity(fabric, known, ring),
    )
    for end in ends:
        known.roots[end] = finding
    return Said(fabric.concerned(plane, *ends), finding, plane.index, ends=tuple(ends))


def _severity(fabric: Fabric, known: Cabling, ring: Sequence[tuple[End, End]]) -> str:
    """Other ports of the same switches cost nothing; another rail's leaf, or another plane, costs a job."""
    ends = [end for pair in ring for end in pair]
    if any(end in fabric.rails and _other_rail(fabric, known, end, fabric.cables[end]) for end in ends):
        return "critical"
    nodes = [fabric.cables[end][0] == known.planned[end][0] for end in ends if not fabric.is_switch(end[0])]
    switches = [
        sorted(fabric.cables[end][0] for end in ends if end[0] == guid)
        == sorted(known.planned[end][0] for end in ends if end[0] == guid)
        for guid in {end[0] for end in ends if fabric.is_switch(end[0])}
    ]
    return "minor" if all(nodes) and (nodes or all(switches)) else "major"


def _order(fabric: Fabric, end: End) -> tuple[bool, bool, End]:
    return end not in fabric.rails, fabric.is_switch(end[0]), end


def _host_first(fabric: Fabric, end: End, other: End) -> tuple[End, End]:
    first, second = sorted((end, other), key=lambda one: _order(fabric, one))
    return first, second


def _port_of(fabric: Fabric, *ends: End) -> str:
    """A rail has nothing about its HCA's port, where that is not the first."""
    odd = [f" (port {end[1]} of the HCA)" for end in ends if end in fabric.rails and end[1] != 1]
    return "".join(odd)


def _source(fabric: Fabric) -> str:
    return fabric.asked.plan.source if fabric.asked.plan is not None else "sweeps of the fabric"


def _one(fabric: Fabric, known: Cabling, end: End, other: End) -> Iterator[Said]:
    """A planned cable that is not there, and is not a part of a swap."""
    end, other = _host_first(fabric, end, other)
    plane = plane_of(fabric, other) or plane_of(fabric, end)
    if plane is None:
        return
    cable = known.cables[end]
    line = f"line {cable.line} of {_source(fabric)}" if cable.line else _source(fabric)
    subject, hosts = fabric.subject(end, other), fabric.concerned(plane, end, other)
    want, name = fabric.cable(end, other), fabric.name(end, other)
    at, back = fabric.cables.get(end), fabric.cables.get(other)
    gone = [known.switches[one[0]] for one in (end, other) if one[0] not in fabric.nodes and one[0] in known.switches]
    if gone:
        known.roots[end] = known.roots[other] = gone[0]
        return
    if at is None and back is None:
        if end in fabric.rails and end[0] not in fabric.nodes and _is_off(fabric, fabric.rails[end][0]):
            # No rail of its host is there: fabric_members tells of the host.
            return
        # A rail of the inventory has to be in the fabric, whatever the plan says.
        is_rail = end in fabric.rails or other in fabric.rails
        fix = f"{_plug(fabric, end, other)}{'' if is_rail else f'; or take {line} out of the plan'}, {_THEN}"
        have = _states(fabric, end, other)
        finding = DOWN.judge(subject, "drift", want, have, _source(fabric), fix)
        kind = "links down" if end in fabric.rails else "links between switches down"
    elif at is not None:
        other_rail = _other_rail(fabric, known, end, at)
        check = RAIL_LEAF if other_rail else PLAN
        there = f"; that leaf is of rail {other_rail}" if other_rail else ""
        have = f"{fabric.cable(end, at)}{there}"
        fix = (
            f"move the cable from {fabric.end(at)} to {fabric.end(other)}, or correct {line} if that is intended, "
            f" {_THEN}"
        )
        # Another port of the same switch costs nothing.
        severity = None if check is RAIL_LEAF or at[0] == other[0] else "major"
        finding = check.judge(subject, "drift", want, have, _source(fabric), fix, severity=severity)
        kind = "cables at another port of their switch" if severity is None else "cables elsewhere than in the plan"
        kind = f"cables on a leaf of rail {other_rail}" if other_rail else kind
    else:
        leads = "nowhere" if back is None else fabric.end(back)
        cause = None if back is None else known.roots.get(back)
        have = f"{fabric.end(other)} leads to {leads}; {_states(fabric, end)}"
        fix = f"plug {fabric.end(end)} in at {fabric.end(other)}, or correct {line}, {_THEN}"
        if end in fabric.rails:
            finding = DOWN.judge(subject, "drift", want, have, _source(fabric), fix, because=cause)
            kind = "links down"
        else:
            finding = PLAN.judge(subject, "drift", want, have, _source(fabric), fix, because=cause)
            kind = "cables elsewhere than in the plan"
    known.roots[end] = known.roots[other] = finding
    if at is not None:
        known.roots[at] = finding
    yield Said(hosts, finding, plane.index, kind, name, (end, other))


def _is_off(fabric: Fabric, host: str) -> bool:
    """Whether no rail of a host has a cable, of several."""
    rails = fabric.asked.hosts[host].rails
    return len(rails) > 1 and all(fabric.home(host, rail) is None for rail in rails)


def _other_rail(fabric: Fabric, known: Cabling, end: End, at: End) -> str:
    """The rails that the plan has on the switch where a rail has landed; "" where its own is among them."""
    if end not in fabric.rails:
        return ""
    planned = {
        fabric.rails[one][1].rail for one, other in known.planned.items() if other[0] == at[0] and one in fabric.rails
    }
    own = fabric.rails[end][1].rail
    return "" if not planned or own in planned else ", ".join(map(str, sorted(planned)))


def _states(fabric: Fabric, *ends: End) -> str:
    said = []
    for end in ends:
        port = fabric.ports.get(end)
        if port is None:
            said.append(f"{fabric.end(end)} is not in the fabric")
        else:
            physical = f" ({port.physical})" if port.physical else ""
            said.append(f"{fabric.end(end)} is {port.state}{physical}")
    return "; ".join(said)


def _plug(fabric: Fabric, end: End, other: End) -> str:
    off = [one for one in (end, other) if one in fabric.ports and (fabric.ports[one].physical or "") == "Disabled"]
    if off:
        plane = fabric.plane_of[off[0]]
        where = f" -C {plane.best.device} -P {plane.best.port}" if plane.best.device else ""
        return (
            f"{fabric.end(off[0])} is switched off: ibportstate{where} -G 0x{off[0][0]} {off[0][1]} enable, as root on"
            f" {plane.hosts[0]}"
        )
    return (
        f"check that the cable {fabric.cable(end, other)} is plugged in at both ends, reseat it, then exchange it and"
        " its transceivers"
    )


def _odd(fabric: Fabric, known: Cabling) -> Iterator[Said]:
    if not known.odd or fabric.asked.plan is None:
        return
    parts = [
        f"{why} (line {several([str(line) for line in lines], 5, ', ')})" for why, lines in sorted(known.odd.items())
    ]
    rows = sum(len(lines) for lines in known.odd.values())
    hosts = _sweepers(fabric)
    fix = f"correct these lines of {_source(fabric)}, {_THEN}"
    have = f"{count(rows, 'cable')} could not be checked: {several(parts, 6)}"
    finding = PLAN.judge("rows of the plan", "unknown", "rows that name nodes and ports", have, _source(fabric), fix)
    yield Said(hosts, finding)


def _sweepers(fabric: Fabric) -> tuple[str, ...]:
    return tuple(sorted({sweep.host for sweep in fabric.asked.sweeps}))


def _gone(fabric: Fabric, known: Cabling) -> Iterator[Said]:
    """Switches that the plan, or the last sweep, has, and no sweep shows."""
    by_plan = {guid for guid in known.racked if guid not in fabric.nodes}
    unseen: list[str] = []
    for guid in sorted(by_plan):
        ends = [(end, other) for end, other in known.planned.items() if end[0] == guid]
        planes = {plane.index: plane for _end, other in ends if (plane := plane_of(fabric, other)) is not None}
        if all(not plane.complete for plane in planes.values()):
            if not planes:
                unseen.append(guid)
            continue
        yield _switch(fabric, known, guid, [other for _end, other in ends], list(planes.values()), _BY_PLAN)
    if unseen:
        shown = names([fabric.node(guid) for guid in unseen])
        have = f"{count(len(unseen), 'switch')} of the plan in no plane that was swept: {shown}"
        fix = f"name a host with a port in their plane in busbar_fabric_hosts, {_THEN}"
        finding = PLAN.judge(
            *("planes of the plan", "unknown", "every plane swept", have, _source(fabric), fix), because=known.unswept
        )
        yield Said(_sweepers(fabric), finding)
    for plane in fabric.planes:
        if not plane.complete:
            continue
        was = {node.guid for sweep in plane.before for node in sweep.nodes if node.kind == SWITCH}
        for guid in sorted(was - set(fabric.nodes) - by_plan):
            others = [other for end, other in sorted(fabric.was_cables.items()) if end[0] == guid]
            yield _switch(fabric, known, guid, others, [plane], "the last sweep had it")


def _switch(
    fabric: Fabric, known: Cabling, guid: str, others: Sequence[End], planes: Sequence[Plane], who: str
) -> Said:
    rails = sorted(fabric.rails[end] for end in others if end in fabric.rails)
    hosts = tuple(sorted({host for host, _rail in rails}))
    sweepers = tuple(sorted({host for plane in planes for host in plane.hosts}))
    name = fabric.node(guid) if cabling_plan.is_guid(guid) else printable(guid)[:64]
    at = [fabric.end(end) for end in others if end not in fabric.rails]
    have = f"in no sweep, and {who}"
    have += f"; {count(len(rails), 'rail')} hang on it" if rails else ""
    have += f"; {count(len(at), 'link')} to {several(at)}" if at else ""
    gone = f"take its lines out of {_source(fabric)}, and sweep twice: the first" if who == _BY_PLAN else "this sweep"
    gone += " is the last that misses it"
    gone += "; its rails need another leaf" if rails else ""
    fix = f"check that {name} has power, and read its console for faults; if it was removed on purpose, {gone}; {_THEN}"
    subject = f"switch 0x{guid}" if cabling_plan.is_guid(guid) else f"switch {name}"
    finding = SWITCH_GONE.judge(subject, "drift", "in the fabric", f"{name}: {have}", _source(fabric), fix)
    known.switches[guid] = finding
    for end in others:
        known.roots[end] = finding
    index = planes[0].index if planes else None
    return Said(tuple(sorted({*hosts, *sweepers})), finding, index, "switches that are gone", name, tuple(others))


def _unplanned(fabric: Fabric, known: Cabling) -> Iterator[Said]:
    """Cables neither of whose ends the plan has; of the kinds of cables that it has at all."""
    if not known.planned:
        return
    for plane in fabric.planes:
        for end, other in fabric.links(plane):
            if end in known.planned or other in known.planned:
                continue
            between = fabric.is_switch(end[0]) and fabric.is_switch(other[0])
            if not (known.between if between else known.hosts) or (not between and end not in fabric.rails):
                continue
            fix = f"add the cable to {_source(fabric)}, or remove it if it is not intended, {_THEN}"
            finding = PLAN.judge(
                fabric.subject(end, other),
                *("drift", "a cable of the plan", fabric.cable(end, other), "sweep", fix),
                because=known.roots.get(end),
            )
            hosts = fabric.concerned(plane, end, other)
            kind, name = "cables that the plan does not have", fabric.name(end, other)
            yield Said(hosts, finding, plane.index, kind, name, (end, other))


# -- without a plan --------------------------------------------------------------------------------------------------


def rail_leaves(fabric: Fabric, known: Cabling) -> tuple[list[Said], set[int]]:
    """Rails on leaves of other rails, where the leaves themselves say whose they are; and planes that this was asked
    of."""
    leaves: dict[str, list[tuple[str, Rail, End]]] = {}
    high: list[tuple[str, Rail, End]] = []
    for end, (host, rail) in fabric.rails.items():
        other = fabric.cables.get(end)
        if other is not None and end in fabric.plane_of and end not in known.planned and fabric.is_switch(other[0]):
            (high if other[0] in fabric.spines else leaves.setdefault(other[0], [])).append((host, rail, end))
    own: dict[str, int] = {}
    odd: list[tuple[str, Rail, End]] = []
    tied: list[str] = []
    total = 0
    for guid, on in sorted(leaves.items()):
        counts = Counter(rail.rail for _host, rail, _end in on).most_common()
        total += len(on)
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            tied.append(guid)
            continue
        own[guid] = counts[0][0]
        odd += [one for one in on if one[1].rail != counts[0][0]]
    many = {rail.rail for on in leaves.values() for _host, rail, _end in on}
    if len(many) < 2 or not own or len(odd) + sum(len(leaves[guid]) for guid in tied) > _STRANGE * total:
        return [_on_spine(fabric, known, one, {}) for one in high], set()
    found = [_on_spine(fabric, known, one, own) for one in high]
    found += _pairs(fabric, known, odd, own)
    for guid in tied:
        plane = fabric.plane_of[leaves[guid][0][2]]
        rails = sorted({rail.rail for _host, rail, _end in leaves[guid]})
        have = f"{fabric.node(guid)} has as many of rails {', '.join(map(str, rails))}"
        fix = "name a cabling plan (busbar_fabric_plan, docs/cabling.md), which declares the owner of the leaf"
        hosts = tuple(sorted({host for host, _rail, _end in leaves[guid]}))
        finding = RAIL_LEAF.judge(f"switch 0x{guid}", "unknown", "a leaf of one rail", have, _source(fabric), fix)
        found.append(Said(hosts, finding, plane.index))
    return found, {fabric.plane_of[on[0][2]].index for on in leaves.values()}


def _pairs(fabric: Fabric, known: Cabling, odd: Iterable[tuple[str, Rail, End]], own: dict[str, int]) -> Iterator[Said]:
    """Two rails that are on each other's leaves, of one host where there is one."""
    left = sorted(odd, key=lambda one: (one[0], one[1].rail))
    while left:
        host, rail, end = left.pop(0)
        at = fabric.cables[end]
        there = own[at[0]]
        was = fabric.was_cables.get(end)
        partners = [one for one in left if one[1].rail == there and own[fabric.cables[one[2]][0]] == rail.rail]
        # Of several that fit: the one that took this one's place, then another rail of the same host.
        partners.sort(key=lambda one: (fabric.cables[one[2]] != was, one[0] != host, one[0]))
        if partners:
            left.remove(partners[0])
            yield _pair(fabric, known, (host, rail, end), partners[0])
            continue
        yield _elsewhere(fabric, known, (host, rail, end), own, f"a leaf of rail {there}")


def _on_spine(fabric: Fabric, known: Cabling, one: tuple[str, Rail, End], own: dict[str, int]) -> Said:
    return _elsewhere(fabric, known, one, own, "a spine: what else is cabled to it is leaves")


def _elsewhere(fabric: Fabric, known: Cabling, one: tuple[str, Rail, End], own: dict[str, int], where: str) -> Said:
    """A rail that is on no leaf of its own. own: leaf -> its rail, where leaves have one.   where: it is now."""
    host, rail, end = one
    at = fabric.cables[end]
    leaves = sorted(fabric.node(guid) for guid, number in own.items() if number == rail.rail)
    to = several(leaves, 3, " or ") if leaves else "its leaf"
    fix = f"move the cable from {fabric.end(at)} to a free port of {to}, {_THEN}"
    want = (f"a leaf of rail {rail.rail}" if own else "a leaf") + (f": {several(leaves, 3, ', ')}" if leaves else "")
    have = f"{fabric.cable(end, at)}, {where}"
    finding = RAIL_LEAF.judge(fabric.subject(end), "drift", want, have, _source(fabric), fix)
    known.roots[end] = known.roots[at] = finding
    kind = f"cables on {where.partition(':')[0]}"
    return Said((host,), finding, fabric.plane_of[end].index, kind, (host, rail.rail), (end, at))


def _pair(fabric: Fabric, known: Cabling, one: tuple[str, Rail, End], two: tuple[str, Rail, End]) -> Said:
    ends = [one[2], two[2]]
    at = [fabric.cables[end] for end in ends]
    subjects = sorted(f"{host} rail {rail.rail}" for host, rail, _end in (one, two))
    have = "; ".join(f"{fabric.end(end)} - {fabric.end(other)}" for end, other in zip(ends, at, strict=True))
    want = "; ".join(f"{fabric.end(end)} - {fabric.end(other)}" for end, other in zip(ends, reversed(at), strict=True))
    fix = f"exchange the two plugs at {' and '.join(fabric.end(end) for end in at)}, {_THEN}"
    finding = SWAPPED.judge(f"cables of {' and '.join(subjects)}", "drift", want, have, _source(fabric), fix)
    for end in (*ends, *at):
        known.roots[end] = finding
    plane = fabric.plane_of[ends[0]]
    return Said(tuple(sorted({one[0], two[0]})), finding, plane.index, ends=(*ends, *at))
