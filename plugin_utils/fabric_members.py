# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is in the fabric: planes that nobody saw, hosts of the inventory that it lacks, and nodes that nobody knows.

Hosts are joined by the GUIDs that they tell themselves, never by what a node in the fabric calls itself. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_cabling import DOWN, Cabling, plane_of
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_lines import names
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    End,
    Fabric,
    Plane,
    Rail,
    Said,
    called,
    count,
    is_aggregation,
    several,
)

_THEN = f"then sweep again: {SWEEP_AGAIN}"

SWEEP = Check(
    "ib_fabric.sweep",
    why="the state of what was not seen is unknown: the tools also end with exit code 0 for a part of a fabric",
)
"Was each plane swept completely: every switch and host responded, and the tools reported nothing"

PLANE = Check(
    "ib_fabric.plane",
    why="planes are separate so that one can fail alone; a cable between two merges them, with two subnet managers",
    severity="critical",
)
"Was every plane of the inventory's rails and of the last sweep swept, and are their switches separate"

MISSING = Check(
    "ib_fabric.missing_host",
    why="every job on that host lacks a rail that is not in the fabric",
    severity="critical",
)
"Is every rail of every host of the inventory in the fabric, by its GUID"

UNKNOWN = Check(
    "ib_fabric.unknown_host",
    why="a port on the fabric that is in no list uses it without being monitored",
    severity="minor",
)
"Is every HCA in the fabric a rail of the inventory, a host of it, a subnet manager that is named, or in the plan"

GUID = Check(
    "ib_fabric.guid",
    why="the subnet manager cannot distinguish two ports with one GUID: traffic for one goes to the other at times",
    severity="critical",
)
"Has each rail of the inventory a unique GUID"


@dataclass
class Members:
    """Rails of the inventory by what is known of them.

    seen: host -> rails that are in the fabric.   missing: host -> those that it lacks, and where each was or ought to
    be.   covered: those of which a sweep that is partial or missing says nothing: plane -> rails; -1 for a plane that
    nobody saw.   unread: those that told no GUID.
    """

    seen: dict[str, list[Rail]] = field(default_factory=dict)
    missing: dict[str, list[tuple[Rail, End | None]]] = field(default_factory=dict)
    covered: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    unread: list[tuple[str, int]] = field(default_factory=list)
    total: Counter[int] = field(default_factory=Counter)


def members(fabric: Fabric, known: Cabling) -> Members:
    """Each rail of the inventory is in exactly one of the lists."""
    found = Members()
    homes = _homes(fabric)
    lost = {node.guid for sweep in _lost_planes(fabric) for node in sweep.nodes}
    for host, machine in sorted(fabric.asked.hosts.items()):
        for rail in machine.rails:
            if not rail.node_guid and not rail.port_guid:
                found.unread.append((host, rail.rail))
                continue
            home = fabric.home(host, rail)
            if home is not None:
                found.seen.setdefault(host, []).append(rail)
                found.total[fabric.plane_of[home].index if home in fabric.plane_of else -1] += 1
                continue
            place = _place(fabric, known, rail)
            where = _home_planes(fabric, rail, place, homes, lost)
            if where and all(plane.complete for plane in where):
                found.missing.setdefault(host, []).append((rail, place))
            else:
                partial = next((plane.index for plane in where if not plane.complete), -1)
                found.covered.setdefault(partial, []).append((host, rail.rail))
    return found


def _homes(fabric: Fabric) -> dict[int, set[int]]:
    """Rail -> planes in which another host has it, but for a stray one."""
    counts: Counter[tuple[int, int]] = Counter()
    for end, (_host, rail) in fabric.rails.items():
        if end in fabric.cables and end in fabric.plane_of:
            counts[rail.rail, fabric.plane_of[end].index] += 1
    homes: dict[int, set[int]] = {}
    for (number, plane), here in counts.items():
        most = max(many for (other, _plane), many in counts.items() if other == number)
        if here * 4 >= most:
            homes.setdefault(number, set()).add(plane)
    return homes


def _place(fabric: Fabric, known: Cabling, rail: Rail) -> End | None:
    """The switch's port at which a rail ought to be: by the plan, else by the last sweep."""
    for end in fabric.ends(rail):
        if end in known.planned:
            return known.planned[end]
    return fabric.was_home(rail)


def _home_planes(
    fabric: Fabric, rail: Rail, place: End | None, homes: Mapping[int, set[int]], lost: set[str]
) -> list[Plane]:
    """The planes that a rail may be in; none where nobody has seen such a plane."""
    if place is not None:
        plane = plane_of(fabric, place)
        if plane is not None:
            return [plane]
        if place[0] in lost:
            return []
    return [fabric.planes[index] for index in sorted(homes.get(rail.rail, ()))]


# -- planes ----------------------------------------------------------------------------------------------------------


def _lost_planes(fabric: Fabric) -> list[Sweep]:
    """Sweeps of the last record whose plane nobody has seen now, one of each."""
    used = {id(sweep) for plane in fabric.planes for sweep in plane.before}
    managers = {sweep.plane for plane in fabric.planes for sweep in plane.before}
    best: dict[str, Sweep] = {}
    for sweep in sorted(fabric.asked.before, key=lambda one: (one.complete, len(one.nodes), one.at)):
        shared = any(node.guid in fabric.nodes for node in sweep.nodes if node.kind != CA)
        if id(sweep) not in used and sweep.plane and sweep.plane not in managers and not shared:
            best[sweep.plane] = sweep
    return [best[name] for name in sorted(best)]


def planes(fabric: Fabric, known: Cabling, found: Members) -> Iterator[Said]:
    """What keeps planes from being judged, and planes that are not apart."""
    everybody = tuple(sorted({sweep.host for sweep in fabric.asked.sweeps} or set(fabric.asked.hosts)))
    for sweep in fabric.lost:
        yield Said((sweep.host,), _no_plane(sweep))
    missing = _lost_planes(fabric)
    rails = sorted({rail for _host, rail in found.covered.get(-1, ())})
    for sweep in missing:
        own = [rail.rail for node in sweep.nodes for _host, rail in _rails_of(fabric, node.guid)]
        rails = [rail for rail in rails if rail not in own]
        label = called(own) if own else f"plane of subnet manager 0x{sweep.plane}"
        way = sweep.device or "a file"
        have = f"no host swept it; at the last sweep {sweep.host} did by {way}, {len(sweep.nodes)} nodes"
        hosts = tuple(sorted({sweep.host, *everybody}))
        known.unswept = PLANE.judge(label, "unknown", "a sweep", have, "sweeps", _look(sweep.host, sweep.device))
        yield Said(hosts, known.unswept)
    if rails:
        who = [one for one in found.covered[-1] if one[1] in rails]
        have = f"no sweep shows any port of these rails: {names(who)}"
        where = "one of busbar_fabric_hosts"
        known.unswept = PLANE.judge(called(rails), "unknown", "a sweep", have, "sweeps", _look(where, ""))
        yield Said(everybody, known.unswept)
    if found.unread:
        hosts = tuple(sorted({host for host, _rail in found.unread}))
        have = f"{names(found.unread)}: their GUIDs are not known"
        fix = f"see platform.rail_device of these hosts, repair it, {_THEN}"
        finding = MISSING.judge("GUIDs of rails", "unknown", "a GUID of each rail", have, "sysfs of the hosts", fix)
        yield Said(hosts, finding)
    for plane in fabric.planes:
        if plane.joined:
            yield _joined(fabric, plane, known)
        yield from _partial(fabric, plane, found)
    yield from _twice(fabric)


def _rails_of(fabric: Fabric, guid: str) -> Iterator[tuple[str, Rail]]:
    yield from (fabric.rails[end] for end in fabric.ends_of.get(guid, ()))


def _look(host: str, device: str) -> str:
    return (
        f"see on {host} that its port {'of ' + device + ' ' if device else ''}to this plane is ACTIVE (ibstat), that"
        f" sminfo works there as root, and that busbar_fabric_hosts names a host with a port in it, {_THEN}"
    )


def _no_plane(sweep: Sweep) -> Finding:
    said = several([f"{problem.source}: {problem.message}" for problem in sweep.problems], 2) or "nothing was read"
    subject = f"{sweep.device} port {sweep.port}" if sweep.device else "sweep"
    fix = (
        f"run sminfo -C {sweep.device or 'DEVICE'} -P {sweep.port or 1} as root on {sweep.host or 'the fabric host'};"
        " if it does not respond, check that a subnet manager runs in this plane and that the port is ACTIVE (ibstat),"
        f" {_THEN}"
    )
    have = f"no subnet manager or no node was seen: {said}"
    return SWEEP.judge(subject, "unknown", "a complete sweep", have, sweep.source, fix)


def _partial(fabric: Fabric, plane: Plane, found: Members) -> Iterator[Said]:
    for sweep in plane.sweeps:
        if plane.complete and not sweep.complete:
            finding = SWEEP.judge(
                f"{plane.label} by {sweep.host} {sweep.device}",
                *("unknown", "a complete sweep", f"a part, which another host's sweep makes good: {_problems(sweep)}"),
                *(sweep.source, _by_hand(sweep)),
                severity="minor",
            )
            yield Said((sweep.host,), finding, plane.index)
    if plane.complete:
        return
    said = [_problems(sweep) for sweep in plane.sweeps if not sweep.complete][:2]
    holes = [f"{fabric.end(end)} {what}" for end, what in plane.holes]
    if holes:
        said.append(several(holes, 3))
    lacking = found.covered.get(plane.index, [])
    if lacking:
        total = found.total[plane.index] + len(lacking)
        said.append(f"{len(lacking)} of {total} rails were not seen: {names(lacking)}")
    have = f"a part, {len(plane.nodes)} nodes: {'; '.join(said)}"
    finding = SWEEP.judge(plane.label, "unknown", "a complete sweep", have, plane.best.source, _by_hand(plane.best))
    yield Said(plane.hosts, finding, plane.index)


def _problems(sweep: Sweep) -> str:
    return several([f"{problem.source}: {problem.message}" for problem in sweep.problems], 2) or "as it reports itself"


def _by_hand(sweep: Sweep) -> str:
    if not sweep.device:
        return f"write {sweep.source} again when the fabric is quiet, {_THEN}"
    if not sweep.plane:
        return (
            "check that a subnet manager runs in this plane (systemctl status opensm on its machine, or UFM), or start"
            f" it: sminfo -C {sweep.device} -P {sweep.port} as root on {sweep.host} names it once it does, {_THEN}"
        )
    return (
        f"run ibnetdiscover -C {sweep.device} -P {sweep.port} as root on {sweep.host}: its stderr names the path that"
        f" does not respond; reboot or replug that node, {_THEN}"
    )


def _joined(fabric: Fabric, plane: Plane, known: Cabling) -> Said:
    seen = sorted({f"0x{sweep.plane} by {sweep.host} {sweep.device}".strip() for sweep in plane.sweeps})
    pairs = _strays(fabric, plane, known)
    stray = sorted(fabric.cable(*pair) for pair in pairs)
    shared = f"{len(plane.switches)} switches are managed by {len(plane.managers)}: {several(seen)}"
    if len(plane.managers) == 1:
        shared = f"{len(plane.switches)} switches are one plane, which were {len(plane.apart)} at the last sweep"
    have = f"{shared}; joined by {several(stray)}" if stray else f"{shared}; which cable joins them is unknown"
    fix = (
        f"pull out the cable {several(stray, 4, ' and ')}, {_THEN}"
        if stray
        else "run sminfo at each of these ports: if both now name one manager, it has only moved, and a new sweep will"
        " find no fault; otherwise look for the cable between switches that belong to two planes, by the switches'"
        f" labels, pull it out, {_THEN}"
    )
    finding = PLANE.judge(
        f"{plane.label}: joined", "drift", "planes that share no switch", have, plane.best.source, fix
    )
    for pair in pairs:
        known.roots.update(dict.fromkeys(pair, finding))
    return Said(plane.hosts, finding, plane.index, ends=tuple(end for pair in pairs for end in pair))


def _strays(fabric: Fabric, plane: Plane, known: Cabling) -> list[tuple[End, End]]:
    """Cables between switches of planes that were apart: by the last sweep, else by the plan, else by the managers."""
    sides = {guid: number for number, switches in enumerate(plane.apart) for guid in switches}
    between = [(end, other) for end, other in fabric.links(plane) if end[0] in plane.switches]
    found = [
        (end, other)
        for end, other in between
        if -1 not in (sides.get(end[0], -1), sides.get(other[0], -1)) and sides[end[0]] != sides[other[0]]
    ]
    if not found and known.between:
        found = [pair for pair in between if not known.planned.keys() & set(pair)]
    return found or _bridges(plane, between)


def _bridges(plane: Plane, between: list[tuple[End, End]]) -> list[tuple[End, End]]:
    """The one cable between switches without which both managers would be apart, where there is exactly one."""
    homes = {
        node.guid
        for node in plane.nodes.values()
        for port in node.ports
        if node.guid in plane.managers or port.guid in plane.managers
    }
    anchors: set[str] = set()
    for guid in homes:
        node = plane.nodes[guid]
        anchors.add(guid if guid in plane.switches else next((p.peer[0] for p in node.ports if p.peer), guid))
    if len(anchors) != 2:
        return []
    near, far = sorted(anchors)
    beside: dict[str, list[tuple[str, int]]] = {}
    for number, (end, other) in enumerate(between):
        beside.setdefault(end[0], []).append((other[0], number))
        beside.setdefault(other[0], []).append((end[0], number))

    def path(without: int) -> list[int] | None:
        came: dict[str, tuple[str, int]] = {near: ("", -1)}
        queue = deque([near])
        while queue:
            guid = queue.popleft()
            for following, number in beside.get(guid, ()):
                if number != without and following not in came:
                    came[following] = (guid, number)
                    queue.append(following)
        if far not in came:
            return None
        numbers, at = [], far
        while at != near:
            at, number = came[at]
            numbers.append(number)
        return numbers

    return [between[number] for number in path(-1) or () if path(number) is None]


def _twice(fabric: Fabric) -> Iterator[Said]:
    holders: dict[str, list[tuple[str, int]]] = {}
    for host, machine in sorted(fabric.asked.hosts.items()):
        for rail in machine.rails:
            if rail.port_guid or rail.node_guid:
                guid = f"port 0x{rail.port_guid}" if rail.port_guid else f"node 0x{rail.node_guid} {rail.port}"
                holders.setdefault(guid, []).append((host, rail.rail))
    for guid, of in sorted(holders.items()):
        if len(of) > 1:
            fix = (
                "find the card that has this GUID on its label; set the GUID of the other card to that on its own"
                f" label, while its host is drained: flint -d DEVICE --guid GUID sg; reboot that host, {_THEN}"
            )
            hosts = tuple(sorted({host for host, _rail in of}))
            have = f"{len(of)} rails have it: {names(of)}"
            finding = GUID.judge(f"GUID of {guid}", "drift", "one rail with it", have, "sysfs of the hosts", fix)
            yield Said(hosts, finding)


# -- hosts -----------------------------------------------------------------------------------------------------------


def missing(fabric: Fabric, known: Cabling, found: Members) -> Iterator[Said]:
    """Of a host that lacks all its rails one finding, else one for each that nothing else explains."""
    for host, lacking in sorted(found.missing.items()):
        rails = fabric.asked.hosts[host].rails
        plane = _plane_for(fabric, lacking[0])
        causes = [_switch_at(known, place) for _rail_, place in lacking]
        # One leaf for all rails of a host explains it; several that are gone at once do as well, each its rail.
        if len(lacking) == len(rails) > 1 and not all(causes):
            finding = _host(fabric, host, lacking)
            for rail, place in lacking:
                _root(known, fabric, rail, place, finding)
            yield Said((host,), finding, plane, "hosts without a rail in the fabric", host)
            continue
        for rail, place in lacking:
            cause = _switch_at(known, place) or next(
                (known.roots[end] for end in fabric.ends(rail) if end in known.roots), None
            )
            if cause is not None and cause.check == DOWN.id:
                # That finding is on this rail already.
                continue
            finding = _rail(fabric, host, rail, place, cause)
            ends = (*fabric.ends(rail), *([place] if place is not None else []))
            own = _plane_for(fabric, (rail, place))
            yield Said((host,), finding, own, "rails that are not in the fabric", (host, rail.rail), ends)


def _switch_at(known: Cabling, place: End | None) -> Finding | None:
    """That the switch is gone at which a rail ought to be."""
    return known.switches.get(place[0]) if place is not None else None


def _root(known: Cabling, fabric: Fabric, rail: Rail, place: End | None, finding: Finding) -> None:
    for end in (*fabric.ends(rail), *([place] if place is not None else [])):
        known.roots.setdefault(end, finding)


def _plane_for(fabric: Fabric, one: tuple[Rail, End | None]) -> int | None:
    plane = plane_of(fabric, one[1]) if one[1] is not None else None
    return plane.index if plane is not None else None


def _was_at(fabric: Fabric, place: End | None) -> str:
    if place is None:
        return "no sweep or plan shows where it was"
    port = fabric.ports.get(place)
    other = fabric.cables.get(place)
    if other is not None:
        return f"{fabric.end(place)}, where it belongs, leads to {fabric.end(other)}"
    if port is None:
        return f"{fabric.end(place)}, where it belongs, was not seen"
    return f"{fabric.end(place)}, where it belongs, is {port.state}" + (f" ({port.physical})" if port.physical else "")


def _host(fabric: Fabric, host: str, lacking: list[tuple[Rail, End | None]]) -> Finding:
    at = several([_was_at(fabric, place) for _rail, place in lacking], 2)
    have = f"none of its {len(lacking)} rails is: {at}"
    fix = f"check that the host is up (its BMC's console) and that ibstat on it lists its HCAs, {_THEN}"
    return MISSING.judge(f"{host}: rails", "drift", "all rails in the fabric", have, "sweeps", fix)


def _rail(fabric: Fabric, host: str, rail: Rail, place: End | None, cause: Finding | None) -> Finding:
    device = rail.device or rail.pci or f"rail {rail.rail}"
    fix = (
        f"see on {host} with ibstat the state of {device}: Down or Polling is the cable, its transceivers or the"
        f" switch's port; Initialize is a subnet manager that does not see it, {_THEN}"
    )
    have = f"{host} rail {rail.rail} is not; {_was_at(fabric, place)}"
    return MISSING.judge(f"{host} rail {rail.rail}", "drift", "in the fabric", have, "sweeps", fix, because=cause)


def strangers(fabric: Fabric, plane: Plane, known: Cabling) -> Iterator[Said]:
    """HCAs with a cable that no list has."""
    hosts = {host.partition(".")[0] for host in fabric.asked.hosts} | set(fabric.asked.hosts)
    named = {one.lower().removeprefix("0x") for one in fabric.asked.wanted.managers}
    odd: list[tuple[str, str]] = []
    ends: list[End] = []
    for guid, node in plane.nodes.items():
        if node.kind == "switch" or is_aggregation(node) or guid in known.nodes or fabric.ends_of.get(guid):
            continue
        words = node.description.split()
        # A host's other HCAs (storage) are no rails: it says of itself whose they are.
        if words and (words[0] in hosts or words[0].partition(".")[0] in hosts):
            continue
        ports = {port.guid for port in node.ports}
        if named & {guid, *(port or "" for port in ports), node.description.lower(), *(words[:1])}:
            continue
        at = next((port.peer for port in node.ports if port.peer is not None), None)
        ends += [at] if at is not None else []
        odd.append((fabric.node(guid), f"{fabric.node(guid)} at {fabric.end(at)}" if at else fabric.node(guid)))
    if not odd:
        return
    odd.sort()
    have = f"{count(len(odd), 'HCA')}: " + (
        several([text for _name, text in odd]) if len(odd) <= 4 else nodeset.brief([name for name, _text in odd], 300)
    )
    fix = (
        "add them to the inventory, or as rows to the cabling plan (busbar_fabric_plan; docs/cabling.md), or take them"
        f" off this fabric, {_THEN}"
    )
    finding = UNKNOWN.judge(f"{plane.label}: strangers", "drift", "HCAs that a list has", have, plane.best.source, fix)
    for end in ends:
        known.roots.setdefault(end, finding)
    yield Said(plane.hosts, finding, plane.index)
