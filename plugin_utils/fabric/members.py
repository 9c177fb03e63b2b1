# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge who is in the fabric: planes without a sweep, hosts that it lacks, and nodes in no list.

Hosts are joined by the GUIDs that they report themselves, never by names of nodes. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Sweep

from .. import nodeset
from ..terminal import counted
from .cabling import DOWN
from .evidence import End, Plane, Rail, rails_text
from .map import Entry, Fabric, Pair, is_aggregation, manager_names, names, several

SWEEP = Check("ib_fabric.sweep", why="what was not seen is unknown: the tools end with 0 for a part of a fabric, too")
"Was each plane swept completely: every switch and host responded, and the tools reported nothing"

PLANE = Check("ib_fabric.plane", why="planes are separate so that one can fail alone", severity="critical")
"Was every plane of the inventory's rails and of the last sweep swept, and are their switches separate"

MISSING = Check("ib_fabric.missing_host", why="every job on that host lacks the rail", severity="critical")
"Is every rail of every host of the inventory in the fabric, by its GUID"

UNKNOWN = Check("ib_fabric.unknown_host", why="it uses the fabric without being monitored", severity="minor")
"Is every HCA in the fabric a rail of the inventory, a host of it, a subnet manager that is named, or in the plan"

GUID = Check("ib_fabric.guid", why="traffic for one of the ports goes to the other at times", severity="critical")
"Has each rail of the inventory a unique GUID"
_WHOLE = "a complete sweep"


@dataclass
class Members:
    """Rails of the inventory that are not in the fabric.

    missing: host -> rails, and the switch's port of each, if known.   unread: without a GUID.
    covered: plane, -1 for one without a sweep -> rails that an incomplete sweep may hide.
    """

    missing: dict[str, list[tuple[Rail, End | None]]] = field(default_factory=lambda: defaultdict(list))
    covered: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    unread: list[tuple[str, int]] = field(default_factory=list)


def members(fabric: Fabric) -> Members:
    found = Members()
    # Rail -> planes in which other hosts have it, without a stray one.
    usual: dict[int, Counter[int]] = defaultdict(Counter)
    for end, (_host, rail) in fabric.rails.items():
        if end in fabric.cables and end in fabric.plane_of:
            usual[rail.rail][fabric.plane_of[end].index] += 1
    lost = {node.guid for sweep in _lost_planes(fabric) for node in sweep.nodes}
    for host, machine in sorted(fabric.evidence.hosts.items()):
        for rail in machine.rails:
            if not rail.node_guid and not rail.port_guid:
                found.unread.append((host, rail.rail))
                continue
            if fabric.home(host, rail) is not None:
                continue
            known = (fabric.plan.planned, fabric.was_cables)
            place = next((cables[end] for cables in known for end in fabric.ends(rail) if end in cables), None)
            at = fabric.find_plane(place)
            where = [] if at is None else [at]
            if at is None and (place is None or place[0] not in lost):
                counts = usual[rail.rail]
                where = [fabric.planes[one] for one in sorted(counts) if counts[one] * 4 >= max(counts.values())]
            partial = [plane.index for plane in where if not plane.complete] or ([] if where else [-1])
            if partial:
                found.covered[partial[0]].append((host, rail.rail))
            else:
                found.missing[host].append((rail, place))
    return found


def all_seen(fabric: Fabric) -> list[Entry]:
    """Return that all rails of some hosts are in planes that were swept completely."""
    whole = []
    for host, machine in sorted(fabric.evidence.hosts.items()):
        planes = [fabric.plane_of.get(fabric.home(host, rail) or ("", 0)) for rail in machine.rails]
        if planes and all(plane is not None and plane.complete for plane in planes):
            whole.append(host)
    finding = MISSING.judge("rails", "ok", "all rails in the fabric", "all of them", "sweeps")
    return [Entry(tuple(whole), finding)] if whole else []


# -- planes ------------------------------------------------------------------------------------------------------------


def _lost_planes(fabric: Fabric) -> list[Sweep]:
    """Return one sweep of each plane of the last record that no host has swept now."""
    used = [sweep for plane in fabric.planes for sweep in plane.before]
    managers = {"", *(sweep.plane for sweep in used)}
    best: dict[str, Sweep] = {}
    for sweep in sorted(fabric.evidence.before, key=lambda one: (one.complete, len(one.nodes), one.at)):
        shared = any(node.guid in fabric.nodes for node in sweep.nodes if node.kind != CA)
        if sweep.plane not in managers and not shared:
            best[sweep.plane] = sweep
    return [best[name] for name in sorted(best)]


def planes(fabric: Fabric, found: Members) -> Iterator[Entry]:
    """Judge whether planes were swept, completely, and are separate."""
    for sweep in fabric.lost:
        have = f"no subnet manager or no node was seen: {_problems(sweep)}"
        subject = f"{sweep.device} port {sweep.port}" if sweep.device else "sweep"
        about = (SWEEP, "unknown", None, (), _WHOLE, have, _by_hand(sweep))
        yield fabric.entry(*about, subject=subject, hosts=[sweep.host], source=sweep.source)
    rails = {rail for _host, rail in found.covered[-1]}
    fix = "check a port to this plane (ibstat: ACTIVE), run sminfo there as root; name its host in busbar_fabric_hosts"
    unswept: list[tuple[str, str, str]] = []
    for sweep in _lost_planes(fabric):
        own = {fabric.rails[end][1].rail for node in sweep.nodes for end in fabric.ends_of.get(node.guid, ())}
        rails -= own
        label = f"plane of {rails_text(own)}" if own else f"plane of subnet manager 0x{sweep.plane}"
        have = f"not swept; last by {sweep.host} and {sweep.device or 'a file'}, {len(sweep.nodes)} nodes"
        unswept.append((label, have, sweep.host))
    if rails:
        have = f"no sweep shows any port of these rails: {names(one for one in found.covered[-1] if one[1] in rails)}"
        unswept.append((f"plane of {rails_text(rails)}", have, ""))
    for label, have, host in unswept:
        hosts = sorted({*fabric.concerned(None), *filter(None, [host])})
        entry = fabric.entry(PLANE, "unknown", None, (), "a sweep", have, fix, subject=label, hosts=hosts)
        fabric.unswept = entry.finding
        yield entry
    if found.unread:
        have = f"{names(found.unread)}: their GUIDs are not known"
        hosts = sorted({host for host, _rail in found.unread})
        about = (MISSING, "unknown", None, (), "a GUID of each rail", have, "see platform.rail_device of these hosts")
        yield fabric.entry(*about, subject="GUIDs of rails", hosts=hosts, source="sysfs of the hosts")
    for plane in fabric.planes:
        if plane.joined:
            yield _joined(fabric, plane)
        yield from _partial(fabric, plane, found)
    yield from _twice(fabric)


def _problems(sweep: Sweep) -> str:
    return several(list(map(str, sweep.problems)), 2) or "it names no problem"


def _by_hand(sweep: Sweep) -> str:
    where = f"-C {sweep.device} -P {sweep.port} as root on {sweep.host}"
    if not sweep.device:
        return f"write {sweep.source} again when the fabric is quiet"
    if not sweep.plane:
        return f"start this plane's subnet manager (systemctl start opensm there, or UFM) until sminfo {where} names it"
    return f"run ibnetdiscover {where}: its stderr names the path that does not respond; reboot or replug that node"


def _partial(fabric: Fabric, plane: Plane, found: Members) -> Iterator[Entry]:
    partial = [sweep for sweep in plane.sweeps if not sweep.complete]
    for sweep in partial if plane.complete else ():
        have = f"a part, which another host's sweep makes good: {_problems(sweep)}"
        about = (SWEEP, "unknown", plane, (), _WHOLE, have, _by_hand(sweep))
        subject, hosts = f"{plane.label} by {sweep.host} {sweep.device}", [sweep.host]
        yield fabric.entry(*about, subject=subject, hosts=hosts, severity="minor", source=sweep.source)
    if not plane.complete:
        parts = [_problems(sweep) for sweep in partial[:2]]
        parts += [several([f"{fabric.end(end)} {what}" for end, what in plane.holes], 3)] if plane.holes else []
        lacking = found.covered.get(plane.index, [])
        parts += [f"{len(lacking)} rails were not seen: {names(lacking)}"] if lacking else []
        have = f"a part, {len(plane.nodes)} nodes: {'; '.join(parts)}"
        yield fabric.entry(SWEEP, "unknown", plane, (), _WHOLE, have, _by_hand(plane.best), subject=plane.label)


def _joined(fabric: Fabric, plane: Plane) -> Entry:
    pairs = _strays(fabric, plane)
    stray = several(sorted(fabric.cable(*pair) for pair in pairs))
    seen = sorted({f"0x{sweep.plane} by {sweep.host} {sweep.device}".strip() for sweep in plane.sweeps})
    have = f"{len(plane.switches)} switches are managed by {len(plane.managers)}: {several(seen)}"
    if len(plane.managers) == 1:
        have = f"{len(plane.switches)} switches are one plane, which were {len(plane.apart)} at the last sweep"
    have += f"; joined by {stray}" if stray else "; which cable joins them is unknown"
    fix = (
        f"pull out {stray}" if stray else "pull out the cable between switches of two planes, unless the manager moved"
    )
    ends = tuple(end for pair in pairs for end in pair)
    about = (PLANE, "drift", plane, ends, "planes that share no switch", have, fix)
    return fabric.entry(*about, subject=f"{plane.label}: joined", hosts=plane.hosts, roots=ends)


def _strays(fabric: Fabric, plane: Plane) -> list[Pair]:
    """Return cables that join planes: by the last sweep, else by the plan."""
    sides = {guid: number for number, switches in enumerate(plane.apart) for guid in switches}
    between = [(end, other) for end, other in fabric.links(plane) if end[0] in plane.switches]
    known = [(end, other) for end, other in between if end[0] in sides and other[0] in sides]
    found = [(end, other) for end, other in known if sides[end[0]] != sides[other[0]]]
    if not found and fabric.plan.between:
        found = [pair for pair in between if not fabric.plan.planned.keys() & set(pair)]
    return found


def _twice(fabric: Fabric) -> Iterator[Entry]:
    holders: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for host, machine in sorted(fabric.evidence.hosts.items()):
        for rail in machine.rails:
            if rail.port_guid or rail.node_guid:
                guid = f"port 0x{rail.port_guid}" if rail.port_guid else f"node 0x{rail.node_guid} {rail.port}"
                holders[guid].append((host, rail.rail))
    fix = "drain the host whose card's label has another GUID, set that GUID: flint -d DEVICE --guid GUID sg; reboot"
    for guid, rails in sorted(holders.items()):
        if len(rails) > 1:
            hosts, have = sorted({host for host, _rail in rails}), f"{len(rails)} rails have it: {names(rails)}"
            about = (GUID, "drift", None, (), "one rail with it", have, fix)
            yield fabric.entry(*about, subject=f"GUID of {guid}", hosts=hosts, source="sysfs of the hosts")


# -- hosts -------------------------------------------------------------------------------------------------------------


def missing(fabric: Fabric, found: Members) -> Iterator[Entry]:
    """Report a host without a rail once, else each rail that no other finding explains."""
    for host, lacking in sorted(found.missing.items()):
        causes = [fabric.gone.get(place[0]) if place else None for _rail, place in lacking]
        plane = fabric.find_plane(lacking[0][1])
        # Several switches that are gone at once explain it, too, each its rail.
        if len(lacking) == len(fabric.evidence.hosts[host].rails) > 1 and not all(causes):
            places = several([_describe_place(fabric, place) for _rail, place in lacking], 2)
            have = f"none of its {len(lacking)} rails is: {places}"
            fix = "check that the host is up (its BMC's console) and that ibstat on it lists its HCAs"
            about = (MISSING, "drift", plane, (), "all rails in the fabric", have, fix)
            kind = "hosts without a rail in the fabric"
            entry = fabric.entry(*about, subject=f"{host}: rails", hosts=[host], name=host, source="sweeps", kind=kind)
            for rail, place in lacking:
                for end in filter(None, (*fabric.ends(rail), place)):
                    fabric.roots.setdefault(end, entry.finding)
            yield entry
            continue
        for (rail, place), switch in zip(lacking, causes, strict=True):
            own = fabric.ends(rail)
            cause = switch or next((fabric.roots[end] for end in own if end in fabric.roots), None)
            if cause is not None and cause.check == DOWN.id:
                continue
            name, device = f"{host} rail {rail.rail}", rail.device or rail.pci or f"rail {rail.rail}"
            have = f"{name} is not; {_describe_place(fabric, place)}"
            fix = f"run ibstat on {host} for {device}: Down or Polling is the cable or its ends, Initialize the manager"
            at, ends = fabric.find_plane(place), [*own, *filter(None, [place])]
            yield fabric.entry(
                *(MISSING, "drift", at, ends, "in the fabric", have, fix),
                subject=name,
                hosts=[host],
                source="sweeps",
                kind="rails that are not in the fabric",
                name=(host, rail.rail),
                because=cause,
            )


def _describe_place(fabric: Fabric, place: End | None) -> str:
    if place is None:
        return "no sweep or plan shows where it was"
    state, other = fabric.state(place), fabric.cables.get(place)
    text = f"leads to {fabric.end(other)}" if other else f"is {state}" if state else "was not seen"
    return f"{fabric.end(place)}, where it belongs, {text}"


def strangers(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Report HCAs with a cable that no list has."""
    hosts = {name for host in fabric.evidence.hosts for name in (host.lower(), host.lower().partition(".")[0])}
    named = manager_names(fabric.evidence.wanted.managers)
    planned = {end[0] for end in fabric.plan.planned}
    odd: list[tuple[str, End | None]] = []
    for guid, node in plane.nodes.items():
        if node.kind == SWITCH or is_aggregation(node) or guid in planned or guid in fabric.ends_of:
            continue
        # A host's other HCAs (storage) have its name.
        words = node.description.lower().split()[:1]
        short = {word.partition(".")[0] for word in words}
        guids = {guid, *(port.guid or "" for port in node.ports)}
        if not hosts & {*words, *short} and not named & {*guids, node.description.lower(), *words}:
            odd.append((fabric.node(guid), next((port.peer for port in node.ports if port.peer), None)))
    if not odd:
        return
    odd.sort(key=lambda one: one[0])
    few = several([f"{name} at {fabric.end(at)}" if at else name for name, at in odd])
    have = f"{counted(len(odd), 'HCA')}: {few if len(odd) <= 4 else nodeset.brief([name for name, _at in odd], 300)}"
    fix = "add them to the inventory or the cabling plan (busbar_fabric_plan), or take them off this fabric"
    about = (UNKNOWN, "drift", plane, (), "HCAs that a list has", have, fix)
    entry = fabric.entry(*about, subject=f"{plane.label}: strangers")
    for at in filter(None, (at for _name, at in odd)):
        fabric.roots.setdefault(at, entry.finding)
    yield entry
