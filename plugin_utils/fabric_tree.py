# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shape of a plane: what each leaf has for its hosts, and what it has to the spines.

A leaf is a switch that rails hang on. What its uplinks ought to be the plan says; without one, the last sweep, and the
other leaves on the same spines. Counted are cables, at the rate of the fastest of them: one that runs too slow has a
finding of its own. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_cabling import Cabling
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    End,
    Fabric,
    Plane,
    Said,
    is_aggregation,
    several,
)

_THEN = f"then sweep again: {SWEEP_AGAIN}"

UPLINKS = Check(
    "ib_fabric.uplinks",
    why="each lost uplink takes its share of the leaf's bandwidth to all other leaves",
)
"""Does each leaf have all its uplinks: those of the plan, else as many as at the last sweep and as most leaves on
its spines"""

OVERSUBSCRIPTION = Check(
    "ib_fabric.oversubscription",
    why="what all hosts of a leaf send to other leaves at once has to fit into its uplinks",
)
"Is the ratio of each leaf's bandwidth to hosts to that to spines at most `busbar_fabric_oversubscription`"

SPINES = Check(
    "ib_fabric.spines",
    why="routing shares flows evenly over spines: the one with fewer cables from this leaf is full first",
)
"Does each leaf have equally many cables to each spine, up to one; checked without a plan"


@dataclass
class Leaf:
    """A switch that rails hang on.

    down: own ports with cables to hosts.   up: own port -> the port of the switch at the other end.
    down_gbps, up_gbps: of the fastest of them, 0.0 where nothing was read.   wanted: uplinks that it ought to have.
    """

    guid: str
    down: list[End] = field(default_factory=list)
    up: dict[End, End] = field(default_factory=dict)
    down_gbps: float = 0.0
    up_gbps: float = 0.0
    wanted: int = 0

    @property
    def spines(self) -> Counter[str]:
        return Counter(other[0] for other in self.up.values())

    @property
    def oversubscription(self) -> float:
        """Bandwidth to hosts for each to spines."""
        return self.ratio(len(self.down), len(self.up))

    def ratio(self, down: int, up: int) -> float:
        """Of so many cables of this leaf."""
        return down * (self.down_gbps or 1.0) / (up * (self.up_gbps or 1.0)) if up else float("inf")


def leaves(fabric: Fabric, plane: Plane) -> dict[str, Leaf]:
    """GUID -> what hangs on it, of each switch of a plane that rails hang on, or did at the last sweep."""
    on: Counter[str] = Counter()
    for end in fabric.rails:
        for guid in sorted({cables[end][0] for cables in (fabric.cables, fabric.was_cables) if end in cables}):
            on[guid] += guid in plane.switches
    # A rail that somebody has plugged into a spine makes no leaf of it.
    few = max(on.values(), default=0) / 8
    found = {guid: Leaf(guid) for guid, count in on.items() if count > few and guid not in fabric.spines}
    for guid, leaf in found.items():
        for port in plane.switches[guid].ports:
            other = fabric.cables.get((guid, port.number))
            if other is None or other[0] not in plane.nodes:
                continue
            rate = port.rate or 0.0
            if other[0] in plane.switches:
                leaf.up[guid, port.number] = other
                leaf.up_gbps = max(leaf.up_gbps, rate)
            elif not is_aggregation(plane.nodes[other[0]]):
                leaf.down.append((guid, port.number))
                leaf.down_gbps = max(leaf.down_gbps, rate)
    return dict(sorted(found.items()))


def tree(fabric: Fabric, plane: Plane, known: Cabling) -> tuple[list[Said], dict[Check, str]]:
    """What is wrong with the shape of a plane that was swept completely."""
    of_plane = leaves(fabric, plane)
    if not of_plane or len(plane.switches) + len(_gone(fabric, plane, known)) < 2:
        return [], {}
    found: list[Said] = []
    roots: dict[str, Finding] = {}
    meshed = any(other[0] in of_plane for leaf in of_plane.values() for other in leaf.up.values())
    usual = {} if meshed else _usual(of_plane)
    for guid, leaf in of_plane.items():
        said = _uplinks(fabric, plane, known, leaf, usual.get(guid))
        if said is not None:
            roots[guid] = said.finding
            found.append(said)
        limit = fabric.asked.wanted.oversubscription
        ratio = leaf.oversubscription
        if ratio > limit * 1.001 and leaf.down:
            found.append(
                _oversubscribed(fabric, plane, leaf, ratio, limit, _cause(known, leaf, limit, roots.get(guid)))
            )
    asked = {UPLINKS: f"{sum(len(leaf.up) for leaf in of_plane.values())} uplinks of {len(of_plane)} leaves"}
    asked[OVERSUBSCRIPTION] = (
        f"{len(of_plane)} leaves, at most {max(leaf.oversubscription for leaf in of_plane.values()):.3g}:1"
    )
    if not known.between and not meshed:
        for leaf in of_plane.values():
            counts = leaf.spines
            if counts and max(counts.values()) - min(counts.values()) > 1:
                found.append(_uneven(fabric, plane, leaf, counts, roots.get(leaf.guid)))
        asked[SPINES] = (
            f"{len(of_plane)} leaves, evenly cabled to {len({s for leaf in of_plane.values() for s in leaf.spines})}"
        )
    return found, asked


def _cause(known: Cabling, leaf: Leaf, limit: float, lost: Finding | None) -> Finding | None:
    """What a leaf has too many hosts by, or too few uplinks, where without that it would be well."""
    extra = [known.roots[end] for end in leaf.down if end in known.roots]
    if leaf.ratio(len(leaf.down) - len(extra), max(leaf.wanted, len(leaf.up))) > limit * 1.001:
        return None
    return lost or next(iter(extra), None)


def _gone(fabric: Fabric, plane: Plane, known: Cabling) -> set[str]:
    """Switches that this plane had, by the plan or the last sweep."""
    of_plan = {
        other[0]
        for end, other in known.planned.items()
        if end[0] in plane.switches and other[0] in known.racked and other[0] not in fabric.nodes
    }
    was = {node.guid for sweep in plane.before for node in sweep.nodes if node.kind == "switch"}
    return of_plan | (was - set(plane.switches))


def _usual(of_plane: dict[str, Leaf]) -> dict[str, tuple[int, int]]:
    """How many uplinks most of the leaves on the same spines have, where more than half of three or more agree, and how
    many they are: leaf -> (uplinks, leaves)."""
    group: dict[str, set[str]] = {}
    for guid, leaf in of_plane.items():
        joined = {guid}
        for spine in leaf.spines:
            joined |= group.get(spine, set())
        spines = {spine for one in joined for spine in of_plane[one].spines}
        for spine in spines:
            group[spine] = joined
    found: dict[str, tuple[int, int]] = {}
    for members in {id(members): members for members in group.values()}.values():
        counts = Counter(len(of_plane[guid].up) for guid in members).most_common(1)
        if len(members) >= 3 and counts[0][1] * 2 > len(members):
            found.update(dict.fromkeys(members, counts[0]))
    return found


def _uplinks(fabric: Fabric, plane: Plane, known: Cabling, leaf: Leaf, usual: tuple[int, int] | None) -> Said | None:
    now = set(leaf.up)
    if known.between:
        planned = {
            end for end, other in known.planned.items() if end[0] == leaf.guid and other[0] in _switches(fabric, known)
        }
        missing, want, source = planned - now, len(planned), "the plan"
        if len(now) >= want:
            # What is cabled otherwise than planned has its own finding; there are as many as there have to be.
            return None
    else:
        was = {end for end, other in fabric.was_cables.items() if end[0] == leaf.guid and fabric.is_switch(other[0])}
        missing, want, source = was - now, len(was), "the last sweep"
        if usual is not None and usual[0] > max(want, 0):
            want, source = usual[0], f"{usual[1]} leaves on the same spines"
            missing = set()
        if len(now) >= want:
            return None
    leaf.wanted = want
    shown = [fabric.end(end) for end in sorted(missing)]
    have = f"{len(now)} uplinks, {want} by {source}: {fabric.node(leaf.guid)}"
    if shown:
        have += f"; without a link: {several(shown)}"
    cause = next((known.roots[end] for end in sorted(missing) if end in known.roots), None)
    where = several(shown) if shown else f"those ports of {fabric.node(leaf.guid)} to spines that are down"
    fix = f"plug in and reseat the cables at {where} (iblinkinfo -S 0x{leaf.guid} lists its ports), {_THEN}"
    finding = UPLINKS.judge(
        f"switch 0x{leaf.guid}", "drift", f"{want} uplinks", have, plane.best.source, fix, because=cause
    )
    return Said(
        _hosts(fabric, plane, leaf), finding, plane.index, "leaves that have lost uplinks", fabric.node(leaf.guid)
    )


def _switches(fabric: Fabric, known: Cabling) -> set[str]:
    return known.racked


def _hosts(fabric: Fabric, plane: Plane, leaf: Leaf) -> tuple[str, ...]:
    """Whose way to others it is."""
    own = {host for end, (host, _rail) in fabric.rails.items() if fabric.cables.get(end, ("", 0))[0] == leaf.guid}
    return tuple(sorted(own)) or plane.hosts


def _oversubscribed(
    fabric: Fabric, plane: Plane, leaf: Leaf, ratio: float, limit: float, cause: Finding | None
) -> Said:
    have = (
        f"{fabric.node(leaf.guid)}: {len(leaf.down)} links to hosts at {leaf.down_gbps:g} Gb/s, {len(leaf.up)} uplinks"
    )
    have += f" at {leaf.up_gbps:g} Gb/s, {ratio:.3g}:1" if leaf.up else ""
    fix = (
        f"cable more of its ports to the spines, evenly, or hang some hosts on another leaf; where it was built so, set"
        f" busbar_fabric_oversubscription: {ratio:.3g}"
        if leaf.up
        else f"find out why none of its uplinks is up: iblinkinfo -S 0x{leaf.guid}, {_THEN}"
    )
    finding = OVERSUBSCRIPTION.judge(
        f"switch 0x{leaf.guid}", "drift", f"at most {limit:g}:1", have, plane.best.source, fix, because=cause
    )
    kind = f"leaves with {len(leaf.down)} links to hosts and {len(leaf.up)} uplinks"
    return Said(_hosts(fabric, plane, leaf), finding, plane.index, kind, fabric.node(leaf.guid))


def _uneven(fabric: Fabric, plane: Plane, leaf: Leaf, counts: Counter[str], cause: Finding | None) -> Said:
    shown = [
        f"{count} to {fabric.node(spine)}" for spine, count in sorted(counts.items(), key=lambda one: (one[1], one[0]))
    ]
    have = f"{fabric.node(leaf.guid)}: {several(shown, 3, ', ')}"
    if len(shown) > 3:
        have = f"{fabric.node(leaf.guid)}: {', '.join([*shown[:2], '...', shown[-1]])} ({len(shown)} spines)"
    most, least = max(counts.values()), min(counts.values())
    crowded, spare = (
        several([fabric.node(spine) for spine, count in sorted(counts.items()) if count == number], 3, " or ")
        for number in (most, least)
    )
    each, left = divmod(sum(counts.values()), len(counts))
    fix = (
        f"move cables of {fabric.node(leaf.guid)} from {crowded} to {spare} until each spine has {each}"
        f"{f' or {each + 1}' if left else ''}; where that has no free port, another leaf has too many there: exchange"
        f" the two plugs; or declare the intended cabling as a plan (busbar_fabric_plan), {_THEN}"
    )
    finding = SPINES.judge(
        f"switch 0x{leaf.guid}", "drift", "as many cables to each spine", have, plane.best.source, fix, because=cause
    )
    return Said(_hosts(fabric, plane, leaf), finding, plane.index, "leaves with uneven spines", fabric.node(leaf.guid))
