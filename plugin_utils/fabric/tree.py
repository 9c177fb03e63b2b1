# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the shape of a plane: what each leaf has for its hosts, and what it has to the spines.

A leaf is a switch that rails are cabled to. Its uplinks are those of the plan; without one, those of the last sweep,
and as many as other leaves on the same spines have. Cables count at the rate of the fastest: a slow one has a
separate finding. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH

from .evidence import End, Plane, join_groups
from .map import Entry, Fabric, is_aggregation, several

UPLINKS = Check("ib_fabric.uplinks", why="each lost uplink takes its share of the leaf's bandwidth to all other leaves")
"Has each leaf all its uplinks: those of the plan, else as many as at the last sweep and as most leaves on its spines"

OVERSUBSCRIPTION = Check("ib_fabric.oversubscription", why="what a leaf's hosts send to others has to fit into uplinks")
"Is the ratio of each leaf's bandwidth to hosts to that to spines at most `busbar_fabric_oversubscription`"

SPINES = Check("ib_fabric.spines", why="flows are spread evenly: the spine with fewer cables is full first")
"Does each leaf have equally many cables to each spine, up to one; checked without a plan"
# Ratios are of floats.
_SLACK = 1.001


@dataclass
class Leaf:
    """A switch with HCAs.

    down, up: own ports -> the ports of HCAs, and of switches, at the other ends.
    down_gbps, up_gbps: of the fastest of them, 0.0 where nothing was read.   wanted: number of uplinks.
    """

    guid: str
    down: dict[End, End] = field(default_factory=dict)
    up: dict[End, End] = field(default_factory=dict)
    down_gbps: float = 0.0
    up_gbps: float = 0.0
    wanted: int = 0

    @property
    def spines(self) -> Counter[str]:
        """Number of cables to each switch."""
        return Counter(other[0] for other in self.up.values())

    def ratio(self, down: int, up: int) -> float:
        """Return bandwidth to hosts for each to spines, of so many cables; an unread rate is taken for the other's."""
        faster = self.down_gbps / self.up_gbps if self.down_gbps and self.up_gbps else 1.0
        return down * faster / up if up else float("inf")

    @property
    def oversubscription(self) -> float:
        return self.ratio(len(self.down), len(self.up))


def build_leaf(fabric: Fabric, plane: Plane, guid: str) -> Leaf:
    """Return what is cabled to a switch."""
    leaf = Leaf(guid)
    for end, port in plane.switches[guid].ports_by_end():
        other = fabric.cables.get(end)
        if other is None or other[0] not in plane.nodes or other[0] == guid:
            continue
        far, rate = plane.nodes[other[0]], port.rate or 0.0
        if far.kind == SWITCH:
            leaf.up[end] = other
            leaf.up_gbps = max(leaf.up_gbps, rate)
        elif far.kind == CA and not is_aggregation(far):
            leaf.down[end] = other
            leaf.down_gbps = max(leaf.down_gbps, rate)
    return leaf


def _leaves(fabric: Fabric, plane: Plane) -> dict[str, Leaf]:
    """Return the switches of a plane that rails are cabled to, or were at the last sweep."""
    rails: Counter[str] = Counter()
    for end in fabric.rails:
        for guid in {cables[end][0] for cables in (fabric.cables, fabric.was_cables) if end in cables}:
            rails[guid] += guid in plane.switches
    # A rail on a spine makes no leaf of it.
    few = max(rails.values(), default=0) / 8
    guids = sorted(guid for guid, number in rails.items() if number > few and guid not in fabric.spines)
    return {guid: build_leaf(fabric, plane, guid) for guid in guids}


def tree(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge the shape of a plane that was swept completely."""
    leaves = _leaves(fabric, plane) if plane.complete and not plane.joined else {}
    # Switches that this plane has by the plan, or had at the last sweep.
    planned = {other[0] for end, other in fabric.plan.planned.items() if end[0] in plane.switches}
    switches = {*plane.switches, *plane.was_switches, *(planned & fabric.plan.switches)}
    if not leaves or len(switches) < 2:
        return
    meshed = any(other[0] in leaves for leaf in leaves.values() for other in leaf.up.values())
    usual = {} if meshed else _usual(leaves)
    evenly = not fabric.plan.between and not meshed
    for leaf in leaves.values():
        lost = _uplinks(fabric, plane, leaf, usual.get(leaf.guid))
        cause = None if lost is None else lost.finding
        uneven = _uneven(fabric, plane, leaf, cause) if evenly else None
        yield from filter(None, (lost, _oversubscribed(fabric, plane, leaf, cause), uneven))
    plane.passed[UPLINKS] = f"{sum(len(leaf.up) for leaf in leaves.values())} uplinks of {len(leaves)} leaves"
    most = max(leaf.oversubscription for leaf in leaves.values())
    plane.passed[OVERSUBSCRIPTION] = f"{len(leaves)} leaves, at most {most:.3g}:1"
    if evenly:
        spines = {spine for leaf in leaves.values() for spine in leaf.spines}
        plane.passed[SPINES] = f"{len(leaves)} leaves, evenly cabled to {len(spines)}"


def _entry(fabric: Fabric, plane: Plane, leaf: Leaf, check: Check, *texts: str, cause: Finding | None) -> Entry:
    """Return the entry of a leaf, of the hosts with rails on it. texts: want, have, fix and kind."""
    want, have, fix, kind = texts
    hosts = sorted({fabric.rails[end][0] for end in fabric.rails if fabric.cables.get(end, ("", 0))[0] == leaf.guid})
    about = (check, "drift", plane, (), want, have, fix)
    name, subject = fabric.node(leaf.guid), f"switch 0x{leaf.guid}"
    return fabric.entry(*about, subject=subject, hosts=hosts, kind=kind, name=name, because=cause)


def _usual(leaves: dict[str, Leaf]) -> dict[str, tuple[int, int]]:
    """Return leaf -> (uplinks, leaves): the number of most leaves on the same spines, of three or more leaves."""
    found: dict[str, tuple[int, int]] = {}
    for members, _spines in join_groups((guid, set(leaf.spines)) for guid, leaf in leaves.items()):
        [most] = Counter(len(leaves[guid].up) for guid in members).most_common(1)
        if len(members) >= 3 and most[1] * 2 > len(members):
            found.update(dict.fromkeys(members, most))
    return found


def _uplinks(fabric: Fabric, plane: Plane, leaf: Leaf, usual: tuple[int, int] | None) -> Entry | None:
    plan, name = fabric.plan, fabric.node(leaf.guid)
    source, cables = ("the plan", plan.planned) if plan.between else ("the last sweep", fabric.was_cables)
    # What is cabled otherwise than planned has its own finding.
    is_switch = plan.switches.__contains__ if plan.between else fabric.is_switch
    ends = {end for end, other in cables.items() if end[0] == leaf.guid and is_switch(other[0])}
    want = len(ends)
    if not plan.between and usual is not None and usual[0] > want:
        want, source, ends = usual[0], f"{usual[1]} leaves on the same spines", set()
    if len(leaf.up) >= want:
        return None
    leaf.wanted = want
    missing = sorted(ends - set(leaf.up))
    shown = several([fabric.end(end) for end in missing])
    have = f"{len(leaf.up)} uplinks, {want} by {source}: {name}" + (f"; without a link: {shown}" if shown else "")
    where = shown or f"those ports of {name} to spines that are down"
    fix = f"plug in and reseat the cables at {where} (iblinkinfo -S 0x{leaf.guid} lists its ports)"
    cause = next((fabric.roots[end] for end in missing if end in fabric.roots), None)
    kind = "leaves that have lost uplinks"
    return _entry(fabric, plane, leaf, UPLINKS, f"{want} uplinks", have, fix, kind, cause=cause)


def _oversubscribed(fabric: Fabric, plane: Plane, leaf: Leaf, lost: Finding | None) -> Entry | None:
    limit, ratio = fabric.evidence.wanted.oversubscription, leaf.oversubscription
    if ratio <= limit * _SLACK or not leaf.down:
        return None
    hosts = f"{len(leaf.down)} links to hosts"
    have = f"{fabric.node(leaf.guid)}: {hosts} at {leaf.down_gbps:g} Gb/s, {len(leaf.up)} uplinks"
    fix = f"find out why none of its uplinks is up: iblinkinfo -S 0x{leaf.guid}"
    if leaf.up:
        have += f" at {leaf.up_gbps:g} Gb/s, {ratio:.3g}:1"
        fix = f"cable more to the spines, or move hosts; if built so, set busbar_fabric_oversubscription: {ratio:.3g}"
    # The cause is what the leaf has too many hosts by, or too few uplinks, if without that it would be well.
    extra = [fabric.roots[end] for end in leaf.down if end in fabric.roots]
    cause = lost or next(iter(extra), None)
    if leaf.ratio(len(leaf.down) - len(extra), max(leaf.wanted, len(leaf.up))) > limit * _SLACK:
        cause = None
    kind = f"leaves with {hosts} and {len(leaf.up)} uplinks"
    return _entry(fabric, plane, leaf, OVERSUBSCRIPTION, f"at most {limit:g}:1", have, fix, kind, cause=cause)


def _uneven(fabric: Fabric, plane: Plane, leaf: Leaf, cause: Finding | None) -> Entry | None:
    ranked = sorted(leaf.spines.items(), key=lambda one: (one[1], one[0]))
    if not ranked or ranked[-1][1] - ranked[0][1] <= 1:
        return None
    name, shown = fabric.node(leaf.guid), [f"{number} to {fabric.node(spine)}" for spine, number in ranked]
    have = f"{name}: {shown[0]}, and {shown[-1]} ({len(shown)} spines)"
    spare, crowded = (fabric.node(ranked[place][0]) for place in (0, -1))
    fix = (
        f"move cables of {name} from spines such as {crowded} to spines such as {spare} until all have as many; or"
        " declare the cabling as a plan (busbar_fabric_plan)"
    )
    want, kind = "as many cables to each spine", "leaves with uneven spines"
    return _entry(fabric, plane, leaf, SPINES, want, have, fix, kind, cause=cause)
