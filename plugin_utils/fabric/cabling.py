# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether every cable is where the plan has it, or without a plan on a leaf of its rail.

A wrong cable is one finding: two that are in each other's place are one that names both, and so is a longer cycle. An
unplugged cable, and one to a switch that is gone, is reported once. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH

from ..terminal import counted
from . import cabling_plan
from .cabling_plan import Cable
from .evidence import End
from .map import Entry, Fabric, Pair, folded, hosts_by_name, names, node_name, several, short_name

DOWN = Check("ib_fabric.link_down", why="its rail is gone, or its leaf has fewer uplinks", severity="critical")
"Is every link of the cabling plan between existing nodes up"

SWAPPED = Check("ib_fabric.swapped", why="the rails go over the spines, or end in another plane", severity="critical")
"Is no cable swapped: the finding names the pair, or the whole cycle"

RAIL_LEAF = Check("ib_fabric.rail_leaf", why="on another rail's leaf the traffic between nodes goes through the spines")
"Does each rail end at a leaf of that rail: by the plan, else where the leaves are otherwise of one rail each"

PLAN = Check("ib_fabric.plan", why="one of both is wrong; checks that use the plan cannot be trusted", severity="minor")
"Does the cabling match the plan, and do the plan's nodes, ports and names exist"

# The share of rails on other rails' leaves above which leaves are not of one rail by design.
_STRANGE = 0.25

SWITCH_GONE = Check("ib_fabric.switch", why="rails of hosts, or uplinks of leaves, go with it", severity="critical")
"Does every switch of the plan, and of the last sweep, exist"


# -- the plan in terms of the fabric -----------------------------------------------------------------------------------


def resolve(fabric: Fabric) -> None:
    """Fill ``fabric.plan`` with the ports that the plan's names mean."""
    found, names_of = fabric.plan, _Names(fabric)
    cables = fabric.evidence.plan.cables if fabric.evidence.plan is not None else ()
    counts = Counter(node for cable in cables for node, _port in cable.ends)
    for cable in cables:
        ends: list[End] = []
        try:
            for place, (node, port) in enumerate(cable.ends):
                end = names_of.end(node, port, cable.rail if place == 0 else None)
                if end is None:
                    # A port with a name, of a node that no sweep has, gets a number that no port has.
                    end = (node, port if isinstance(port, int) else -1 - len(fabric.labels))
                    fabric.labels[end] = cabling_plan.end(node, port)
                ends.append(end)
            if found.planned.keys() & set(ends):
                raise ParseError("two cables of the plan end at one port, which it names in two ways")
        except ParseError as error:
            found.odd[str(error)].append(cable.line)
            continue
        found.planned.update(zip(ends, reversed(ends), strict=True))
        found.rows.update(dict.fromkeys(ends, cable))
        switches = [_is_switch(fabric, cable, place, end, counts) for place, end in enumerate(ends)]
        found.switches.update(end[0] for end, is_one in zip(ends, switches, strict=True) if is_one)
        found.between = found.between or all(switches)
        found.hosts = found.hosts or not all(switches)


def _is_switch(fabric: Fabric, cable: Cable, place: int, end: End, counts: Counter[str]) -> bool:
    kind = (cable.a_type, cable.z_type)[place]
    if kind or end[0] in fabric.every:
        return kind == cabling_plan.SWITCH if kind else fabric.is_switch(end[0])
    # Of a node that no sweep has: an HCA has at most two cables.
    return place == 1 if cable.rail is not None else end not in fabric.rails and counts[cable.ends[place][0]] > 2


class _Names:
    """Find the ports that the plan's names mean, in any case, with a domain or without."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._described: dict[str, list[str]] = defaultdict(list)
        for guid, node in fabric.every.items():
            texts = (folded(node.description), folded(node_name(node)))
            for text in {*texts, *map(short_name, texts)}:
                self._described[text].append(guid)
        self._hosts = hosts_by_name(fabric.evidence.hosts)
        # Switch -> its last port, None where a port may be missing.
        self._last: dict[str, int | None] = {}

    def end(self, name: str, port: int | str, rail: int | None) -> End | None:
        """Return the port; None where the node is not in the fabric. Raises ParseError where it is not clear."""
        fabric = self.fabric
        if cabling_plan.is_guid(name) and name in fabric.nodes:
            return self._port(name, port)
        if cabling_plan.is_guid(name):
            # A rail's host reports its GUID also while its cable is out.
            known = [end for end in fabric.ends_of.get(name, ()) if port in (end[1], str(port))]
            if isinstance(port, str):
                return known[0] if len(known) == 1 else None
            return (name, port) if known or name in fabric.was_nodes else None
        host = self._hosts.get(folded(name)) or self._hosts.get(short_name(name))
        end = None if host is None else self._host_end(host, port, rail)
        if end is not None:
            return end
        guids, number = self._find(name), port
        if not guids and isinstance(port, str):
            # The description of an HCA is its host and device: "node001 mlx5_0".
            device, _slash, of_device = port.partition("/")
            guids = self._find(name, f" {device}")
            decimal = whole(of_device or "1")
            number = port if decimal is None else decimal
        shown = printable(name)[:64]
        if len(guids) > 1:
            raise ParseError(f"{len(guids)} nodes are called {shown}: name them by GUID")
        if guids and guids[0] in fabric.nodes:
            return self._port(guids[0], number)
        if guids:
            return guids[0], number if isinstance(number, int) else 0
        if host is not None and fabric.evidence.hosts[host].rails:
            raise ParseError(f"{shown} has no rail at port {printable(str(port))[:32]}: set the column rail")
        return None

    def _find(self, name: str, device: str = "") -> list[str]:
        """Return GUIDs of nodes with a name, with its domain or without."""
        texts = (folded(name + device), short_name(name + device))
        return next((self._described[text] for text in texts if text in self._described), [])

    def _host_end(self, host: str, port: int | str, number: int | None) -> End | None:
        rails = [rail for rail in self.fabric.evidence.hosts[host].rails if rail.node_guid]
        found = [rail for rail in rails if rail.rail == number]
        if number is None:
            known = [(one, one.device.lower()) for one in rails if one.device]
            found = [one for one, device in known if str(port).lower() in (device, f"{device}/{one.port}")]
        return (found[0].node_guid or "", found[0].port) if len(found) == 1 else None

    def _port(self, guid: str, port: int | str) -> End:
        node = self.fabric.nodes[guid]
        numbers = [one.number for one in node.ports if one.number]
        if isinstance(port, str):
            if node.kind == CA and len(numbers) == 1 and "/" not in port:
                return guid, numbers[0]
            number = re.fullmatch(r"[Pp]?(?:ort ?)?0*([0-9]{1,3})", port)
            if number is None:
                shown = printable(port)[:32]
                raise ParseError(f"{self.fabric.node(guid)} has no port {shown}: number it as iblinkinfo does")
            port = int(number.group(1))
        if guid not in self._last:
            # In a plane that was swept in part a port may be missing.
            plane = self.fabric.find_plane((guid, port))
            free = any(one.peer is None and one.number for one in node.ports)
            listed = node.kind == SWITCH and free and plane is not None and plane.complete
            self._last[guid] = max(numbers) if listed else None
        last = self._last[guid]
        if last is not None and not 0 < port <= last:
            raise ParseError(f"{self.fabric.node(guid)} has no port {port}: it ends at {last}")
        return guid, port


# -- the cables --------------------------------------------------------------------------------------------------------


def compare(fabric: Fabric) -> list[Entry]:
    """Compare cables and switches with the plan, and switches with the last sweep."""
    found = [*_odd(fabric), *_missing_switches(fabric)]
    wrong = {
        end: other
        for end, other in fabric.plan.planned.items()
        if fabric.cables.get(end) != other and end < other and _is_swept(fabric, end, other)
    }
    cycles, left = _cycles(fabric, wrong)
    found += [_swapped(fabric, cycle) for cycle in cycles]
    found += [entry for pair in sorted(left) for entry in _wrong(fabric, *pair)]
    return [*found, *_unplanned(fabric)]


def _is_swept(fabric: Fabric, *ends: End) -> bool:
    """Return whether sweeps show a cable: in a plane that was swept in part, only if both ends were seen."""
    for end, far in (ends, ends[::-1]):
        plane = None if end in fabric.ports else fabric.find_plane(end) or fabric.find_plane(far)
        if end not in fabric.ports and (plane is None or not plane.complete):
            return False
    return True


def _cycles(fabric: Fabric, wrong: dict[End, End]) -> tuple[list[list[Pair]], set[Pair]]:
    """Return cycles of planned cables that are in each other's place, and the other wrong cables.

    Each end of a wrong cable leads to at most one end of another one, so there are only chains and cycles.
    """
    of_end = {end: pair for pair in wrong.items() for end in pair}
    cycles: list[list[Pair]] = []
    left = set(wrong.items())
    for start in sorted(wrong.items()):
        cycle, end = [start], start[1]
        while start in left:
            reached = fabric.cables.get(end)
            following = of_end.get(reached) if reached is not None else None
            if reached is None or following is None:
                break
            if following in cycle:
                if reached == start[0]:
                    cycles.append(cycle)
                    left -= set(cycle)
                break
            cycle.append(following)
            end = following[1] if reached == following[0] else following[0]
    return cycles, left


def _swapped(fabric: Fabric, cycle: Sequence[Pair]) -> Entry:
    ends = [end for pair in cycle for end in pair]
    plane = next(filter(None, map(fabric.find_plane, ends)))
    now = sorted({tuple(fabric.host_first(end, fabric.cables[end])) for end in ends})
    far = [fabric.end(end) for end in sorted({fabric.host_first(*pair)[1] for pair in cycle})]
    fix = f"unplug the {len(cycle)} cables at {several(far, 6, ', ')}; plug each where WANT has it"
    if len(cycle) == 2:
        fix = f"exchange the two plugs at {' and '.join(far)}"
    want = several([fabric.cable(*fabric.host_first(*pair)) for pair in cycle], 6)
    subject = f"cables of {several(sorted(fabric.subject(*pair) for pair in cycle), 6, ' and ')}"
    about = (SWAPPED, "drift", plane, ends, want, several([fabric.cable(*pair) for pair in now], 6), fix)
    severity, source = _severity(fabric, ends), fabric.plan_source
    return fabric.entry(*about, subject=subject, source=source, severity=severity, roots=ends)


def _severity(fabric: Fabric, ends: Sequence[End]) -> str:
    """Return minor for other ports of the same switches, critical for another rail's leaf or another plane."""
    cables, planned = fabric.cables, fabric.plan.planned
    if any(_other_rail(fabric, end, cables[end]) for end in ends):
        return "critical"
    hosts = [cables[end][0] == planned[end][0] for end in ends if not fabric.is_switch(end[0])]
    switches = [end for end in ends if fabric.is_switch(end[0])]
    same = Counter((end[0], cables[end][0]) for end in switches) == Counter(
        (end[0], planned[end][0]) for end in switches
    )
    return "minor" if all(hosts) and (hosts or same) else "major"


def _wrong(fabric: Fabric, end: End, other: End) -> Iterator[Entry]:
    """Report a cable that is not where the plan has it, and in no cycle."""
    end, other = fabric.host_first(end, other)
    plane = fabric.find_plane(other) or fabric.find_plane(end)
    switch = next((guid for guid in (end[0], other[0]) if guid not in fabric.nodes and guid in fabric.gone), None)
    if switch is not None:
        fabric.roots.update(dict.fromkeys((end, other), fabric.gone[switch]))
    if plane is None or switch is not None:
        return
    row, is_rail = fabric.plan.rows[end], end in fabric.rails
    line = f"line {row.line} of {fabric.plan_source}" if row.line else fabric.plan_source
    at, back = fabric.cables.get(end), fabric.cables.get(other)
    check, severity, cause, kind = PLAN, None, None, "cables elsewhere than in the plan"
    if at is not None:
        rails = _other_rail(fabric, end, at)
        have = fabric.cable(end, at) + (f"; that leaf is of rail {rails}" if rails else "")
        fix = f"move the cable from {fabric.end(at)} to {fabric.end(other)}, or correct {line} if that is intended"
        if rails:
            check, kind = RAIL_LEAF, f"cables on a leaf of rail {rails}"
        elif at[0] != other[0]:
            severity = "major"
        else:
            # Another port of the same switch costs nothing.
            kind = "cables at another port of their switch"
    elif back is None:
        if is_rail and end[0] not in fabric.nodes:
            host = fabric.rails[end][0]
            rails_of = fabric.evidence.hosts[host].rails
            if len(rails_of) > 1 and all(fabric.home(host, rail) is None for rail in rails_of):
                # ``members`` reports the host.
                return
        check, have, kind = (
            DOWN,
            _states(fabric, end, other),
            "links down" if is_rail else "links between switches down",
        )
        fix = "reseat the cable at both ends, then exchange it and its transceivers"
        for off in (one for one in (end, other) if one in fabric.ports and fabric.ports[one].physical == "Disabled"):
            command = f"ibportstate {plane.options}-G 0x{off[0]} {off[1]} enable"
            fix = f"{fabric.end(off)} is switched off: {command}, as root on {plane.hosts[0]}"
        # A rail of the inventory has to be in the fabric, whatever the plan says.
        fix += "" if is_rail or other in fabric.rails else f"; or take {line} out of the plan"
    else:
        have = f"{fabric.end(other)} leads to {fabric.end(back)}; {_states(fabric, end)}"
        fix = f"plug {fabric.end(end)} in at {fabric.end(other)}, or correct {line}"
        cause = fabric.roots.get(back)
        if is_rail:
            check, kind = DOWN, "links down"
    about, source = (check, "drift", plane, (end, other), fabric.cable(end, other), have, fix), fabric.plan_source
    roots = list(filter(None, (end, other, at)))
    yield fabric.entry(*about, source=source, severity=severity, because=cause, kind=kind, roots=roots)


def _other_rail(fabric: Fabric, end: End, at: End) -> str:
    """Return the rails of the plan on the switch where a rail is; "" where its own is among them."""
    rails, planned = fabric.rails, fabric.plan.planned.items()
    if end not in rails:
        return ""
    there = {rails[one][1].rail for one, other in planned if other[0] == at[0] and one in rails}
    return "" if rails[end][1].rail in there else ", ".join(map(str, sorted(there)))


def _states(fabric: Fabric, *ends: End) -> str:
    return "; ".join(f"{fabric.end(end)} is {fabric.state(end) or 'not in the fabric'}" for end in ends)


def _odd(fabric: Fabric) -> Iterator[Entry]:
    """Report rows of the plan that could not be compared."""
    if fabric.plan.odd:
        parts = [f"{why} (line {several([*map(str, n)], 5, ', ')})" for why, n in sorted(fabric.plan.odd.items())]
        rows = counted(sum(map(len, fabric.plan.odd.values())), "cable")
        have = f"{rows} could not be checked: {several(parts, 6)}"
        fix, source = f"correct these lines of {fabric.plan_source}", fabric.plan_source
        about = (PLAN, "unknown", None, (), "rows that name nodes and ports", have, fix)
        yield fabric.entry(*about, subject="rows of the plan", source=source)


def _missing_switches(fabric: Fabric) -> Iterator[Entry]:
    """Report switches that the plan, or the last sweep, has, and no sweep."""
    by_plan = fabric.plan.switches - set(fabric.nodes)
    was = {guid: plane for plane in fabric.planes if plane.complete for guid in plane.was_switches - set(fabric.nodes)}
    unseen: list[str] = []
    for guid in (*sorted(by_plan), *sorted(set(was) - by_plan)):
        cables = fabric.plan.planned if guid in by_plan else fabric.was_cables
        others = [other for end, other in sorted(cables.items()) if end[0] == guid]
        planes = [plane for plane in fabric.planes if plane in map(fabric.find_plane, others)]
        planes = planes if guid in by_plan else [was[guid]]
        unseen += [] if planes else [guid]
        if not any(plane.complete for plane in planes):
            continue
        rails = [fabric.rails[end][0] for end in others if end in fabric.rails]
        at = [fabric.end(end) for end in others if end not in fabric.rails]
        name = fabric.node(guid)
        have = f"{name}: in no sweep, and {'the plan' if guid in by_plan else 'the last sweep'} has it"
        have += f"; {counted(len(rails), 'rail')} hang on it" if rails else ""
        have += f"; {counted(len(at), 'link')} to {several(at)}" if at else ""
        removed = f"take its lines out of {fabric.plan_source}, and sweep twice" if guid in by_plan else "sweep again"
        fix = f"check power and console of {name}; if you removed it, {removed}"
        about, kind = (SWITCH_GONE, "drift", planes[0], others, "in the fabric", have, fix), "switches that are gone"
        subject = f"switch 0x{guid}" if cabling_plan.is_guid(guid) else f"switch {name}"
        hosts, source = sorted({*rails, *(host for plane in planes for host in plane.hosts)}), fabric.plan_source
        entry = fabric.entry(*about, subject=subject, source=source, hosts=hosts, kind=kind, name=name, roots=others)
        fabric.gone[guid] = entry.finding
        yield entry
    if unseen:
        shown = names([fabric.node(guid) for guid in unseen])
        have = f"{counted(len(unseen), 'switch')} of the plan in no plane that was swept: {shown}"
        fix = "name a host with a port in their plane in busbar_fabric_hosts, or spell them as iblinkinfo does"
        missed, source = (PLAN, "unknown", None, (), "every plane swept", have, fix), fabric.plan_source
        yield fabric.entry(*missed, subject="planes of the plan", source=source, because=fabric.unswept)


def _unplanned(fabric: Fabric) -> Iterator[Entry]:
    """Report cables of which the plan has no end, of the kinds that it has at all."""
    plan = fabric.plan
    for plane in fabric.planes if plan.planned else ():
        for ends in fabric.links(plane):
            judged = plan.between if fabric.between(*ends) else plan.hosts and ends[0] in fabric.rails
            if judged and not plan.planned.keys() & set(ends):
                fix = f"add the cable to {fabric.plan_source}, or remove it if it is not intended"
                about = (PLAN, "drift", plane, ends, "a cable of the plan", fabric.cable(*ends), fix)
                cause, kind = fabric.roots.get(ends[0]), "cables that the plan does not have"
                yield fabric.entry(*about, source="sweep", because=cause, kind=kind)


# -- rails that no plan has ------------------------------------------------------------------------------------------


def judge_rails(fabric: Fabric) -> list[Entry]:
    """Report rails on leaves of other rails, where most leaves have one rail each."""
    # Leaf -> rails on it that no plan has, and those on spines.
    leaves: dict[str, list[End]] = defaultdict(list)
    high: list[End] = []
    number = {end: rail.rail for end, (_host, rail) in fabric.rails.items()}
    for end in fabric.rails:
        at = fabric.cables.get(end, ("", 0))[0]
        if end in fabric.plane_of and end not in fabric.plan.planned and fabric.is_switch(at):
            (high if at in fabric.spines else leaves[at]).append(end)
    own: dict[str, int] = {}
    odd: list[End] = []
    tied: list[str] = []
    for guid, ends in sorted(leaves.items()):
        (rail, most), *others = Counter(number[end] for end in ends).most_common()
        if others and others[0][1] == most:
            tied.append(guid)
            continue
        own[guid] = rail
        odd += [end for end in ends if number[end] != rail]
    rails = [number[end] for ends in leaves.values() for end in ends]
    if len(set(rails)) < 2 or not own or len(odd) + sum(len(leaves[guid]) for guid in tied) > _STRANGE * len(rails):
        return [_misplaced(fabric, end, {}) for end in high]
    for ends in leaves.values():
        fabric.plane_of[ends[0]].passed.setdefault(RAIL_LEAF, "each rail on its leaves")
    found = [*(_misplaced(fabric, end, own) for end in high), *_pairs(fabric, odd, own)]
    for guid in tied:
        ends, plane = leaves[guid], fabric.plane_of[leaves[guid][0]]
        numbers = sorted({number[end] for end in ends})
        have = f"{fabric.node(guid)} has as many of rails {', '.join(map(str, numbers))}"
        fix = "name a cabling plan (busbar_fabric_plan, docs/cabling.md), which declares the owner of the leaf"
        about = (RAIL_LEAF, "unknown", plane, (), "a leaf of one rail", have, fix)
        hosts, source = fabric.concerned(plane, *ends), fabric.plan_source
        found.append(fabric.entry(*about, subject=f"switch 0x{guid}", hosts=hosts, source=source))
    return found


def _pairs(fabric: Fabric, odd: Sequence[End], own: dict[str, int]) -> Iterator[Entry]:
    """Report two rails on each other's leaves as one, preferably of one host."""
    rails, cables = fabric.rails, fabric.cables
    left = sorted(odd, key=lambda end: (rails[end][0], rails[end][1].rail))
    while left:
        end = left.pop(0)
        host, rail = rails[end]
        there, was = own[cables[end][0]], fabric.was_cables.get(end)
        partners = [one for one in left if (rails[one][1].rail, own[cables[one][0]]) == (there, rail.rail)]
        if not partners:
            yield _misplaced(fabric, end, own)
            continue
        # Of several: the one that took this one's place, then another rail of the same host.
        partner = min(partners, key=lambda one: (cables[one] != was, rails[one][0] != host, rails[one][0]))
        left.remove(partner)
        ends, at = [end, partner], [cables[end], cables[partner]]
        have, want = ("; ".join(map(fabric.cable, ends, others)) for others in (at, at[::-1]))
        fix = f"exchange the two plugs at {' and '.join(map(fabric.end, at))}"
        about = (SWAPPED, "drift", fabric.plane_of[end], (*ends, *at), want, have, fix)
        subject = f"cables of {' and '.join(sorted(map(fabric.end, ends)))}"
        yield fabric.entry(*about, subject=subject, source=fabric.plan_source, roots=(*ends, *at))


def _misplaced(fabric: Fabric, end: End, own: dict[str, int]) -> Entry:
    """Report a rail on a spine, or on another rail's leaf. own: leaf -> its rail, where leaves have one."""
    at, rail = fabric.cables[end], fabric.rails[end][1].rail
    where = f"a leaf of rail {own[at[0]]}" if at[0] in own else "a spine"
    leaves = sorted(fabric.node(guid) for guid, number in own.items() if number == rail)
    want = f"a leaf of rail {rail}: {several(leaves, 3, ', ')}" if leaves else "a leaf of its rail"
    fix = f"move the cable from {fabric.end(at)} to a free port of {several(leaves, 3, ' or ') or 'its leaf'}"
    about = (RAIL_LEAF, "drift", fabric.plane_of[end], (end, at), want, f"{fabric.cable(end, at)}, {where}", fix)
    return fabric.entry(*about, source=fabric.plan_source, kind=f"cables on {where}", roots=(end, at))
