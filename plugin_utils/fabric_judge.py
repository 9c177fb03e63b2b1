# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sweeps of now and of the last time, the plan and the inventory: what is to be said of the fabric, and to whom.

A plane that was swept in part, or not at all, is ``unknown``: what was seen to be wrong there is still told, and
nothing of it is called well. Pure, the same for the same question whatever the order of sweeps and hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.node_checks import MANAGER_LOG
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    fabric_cabling,
    fabric_lines,
    fabric_links,
    fabric_members,
    fabric_rates,
    fabric_subnet,
    fabric_tree,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    Asked,
    End,
    Fabric,
    Host,
    Plane,
    Rail,
    Said,
    Wanted,
    count,
)

__all__ = ["Asked", "Host", "Judged", "Rail", "Wanted", "judge", "judged"]

_EVERY = (
    fabric_links.states,
    fabric_links.rates,
    fabric_rates.rates,
    fabric_subnet.managers,
    fabric_subnet.events,
    fabric_subnet.firmware,
    fabric_subnet.partitions,
    fabric_subnet.routing,
)


@dataclass(frozen=True)
class Judged:
    """lines: what is said, and the hosts that it is said of: those at a cable's ends, else those that swept the plane.

    marks: of each cable that something is wrong with its ends and its own finding, also where a line is of many.
    """

    lines: list[tuple[tuple[str, ...], Finding]]
    marks: tuple[tuple[tuple[End, ...], Finding], ...] = ()


def judge(asked: Asked) -> list[tuple[tuple[str, ...], Finding]]:
    """``Judged.lines``."""
    return judged(asked).lines


def judged(asked: Asked) -> Judged:
    if not asked.sweeps:
        return Judged([_nothing(asked)])
    fabric = Fabric(asked)
    known = fabric_cabling.resolve(fabric)
    found = fabric_members.members(fabric, known)
    said = _of_joined([*fabric_members.planes(fabric, known, found)])
    said += fabric_cabling.cabling(fabric, known)
    leaves, of_rails = fabric_cabling.rail_leaves(fabric, known)
    said += leaves
    said += fabric_members.missing(fabric, known, found)
    good: list[Said] = []
    for plane in fabric.planes:
        own: list[Said] = list(fabric_members.strangers(fabric, plane, known))
        asked_of = _cabled(fabric, plane, known, of_rails)
        for part in _EVERY:
            wrong, text = part(fabric, plane)
            own += wrong
            asked_of.update(text)
        if plane.complete and not plane.joined:
            wrong, text = fabric_tree.tree(fabric, plane, known)
            own += wrong
            asked_of.update(text)
        own = _of_part(plane, said, _of_exit(_of_links(own)))
        said += own
        good += _good(plane, asked_of, [*said, *own])
    good += _rails_seen(fabric, found, said)
    # Where ends of cables contradict each other, one may be met twice.
    said = list({one.finding.id: one for one in reversed(said)}.values())[::-1]
    lines = [*fabric_lines.fold(said, fabric.planes), *((one.hosts, one.finding) for one in good)]
    return Judged(lines, tuple((one.ends, one.finding) for one in said if one.ends))


def _nothing(asked: Asked) -> tuple[tuple[str, ...], Finding]:
    fix = (
        "find out why no host of busbar_fabric_hosts returned a sweep (their ib_fabric findings); then sweep again: "
        f"{SWEEP_AGAIN}"
    )
    check = fabric_members.SWEEP
    finding = check.judge("fabric", "unknown", "a sweep of each plane", "no sweep", "ib_fabric_info", fix)
    return tuple(sorted(asked.hosts)), finding


def _of_links(said: list[Said]) -> list[Said]:
    """Errors of a link that has lost lanes or speed follow from that: it is one cable."""
    slow = {
        (one.hosts, one.finding.subject): one.finding.id
        for one in said
        if one.finding.check in (fabric_links.SPEED.id, fabric_links.WIDTH.id) and one.finding.state == "drift"
    }
    checks = (fabric_rates.ERRORS.id, fabric_rates.SYMBOLS.id, fabric_rates.LINK_DOWNED.id)
    return [
        _because(one, slow.get((one.hosts, one.finding.subject)) if one.finding.check in checks else None)
        for one in said
    ]


def _of_exit(said: list[Said]) -> list[Said]:
    """Make a missing manager, and links that it has not set up, follow from the exit that its log reports."""
    events = (one.finding for one in said if one.finding.check == MANAGER_LOG.id)
    cause = next((one.id for one in events if one.severity == "critical"), None)
    checks = (fabric_subnet.MANAGER.id, fabric_links.ACTIVE.id)
    return [_because(one, cause if one.finding.check in checks else None) for one in said]


def _of_joined(said: list[Said]) -> list[Said]:
    """A cable that joins two planes leaves questions unanswered: both managers may give out the same LIDs."""
    joined: dict[int | None, str] = {
        one.plane: one.finding.id
        for one in said
        if (one.finding.check, one.finding.state) == (fabric_members.PLANE.id, "drift") and one.plane is not None
    }
    return [
        _because(one, joined.get(one.plane) if one.finding.check == fabric_members.SWEEP.id else None) for one in said
    ]


def _of_part(plane: Plane, said: Iterable[Said], own: list[Said]) -> list[Said]:
    """Managers and counters that were not read of a plane that was swept in part follow from that."""
    if plane.complete:
        return own
    sweep = fabric_members.SWEEP.id
    parts = (one.finding.id for one in said if one.plane == plane.index and one.finding.check == sweep)
    cause = next(parts, None)
    checks = (fabric_subnet.MANAGER.id, fabric_rates.ERRORS.id)
    unread = [one.finding.check in checks and one.finding.state == "unknown" for one in own]
    return [_because(one, cause if follows else None) for one, follows in zip(own, unread, strict=True)]


def _because(one: Said, cause: str | None) -> Said:
    if cause is None or one.finding.because is not None:
        return one
    return replace(one, finding=replace(one.finding, because=cause))


def _cabled(fabric: Fabric, plane: Plane, known: fabric_cabling.Cabling, of_rails: Iterable[int]) -> dict[Check, str]:
    """What was asked of a plane's cables and members."""
    text = f"{count(len(plane.switches), 'switch')}, {count(len(plane.nodes) - len(plane.switches), 'HCA')}"
    asked = dict.fromkeys((fabric_members.SWEEP, fabric_members.PLANE, fabric_members.UNKNOWN), text)
    planned = sum(end in fabric.plane_of and fabric.plane_of[end] is plane for end in known.planned) // 2
    if planned:
        text = f"{planned} cables of the plan"
        asked.update(dict.fromkeys((fabric_cabling.DOWN, fabric_cabling.SWAPPED, fabric_cabling.PLAN), text))
    if planned or plane.index in of_rails:
        asked[fabric_cabling.RAIL_LEAF] = "each rail on its leaves"
    if plane.before or planned:
        asked[fabric_cabling.SWITCH_GONE] = f"{len(plane.switches)} switches"
    return asked


def _good(plane: Plane, asked: dict[Check, str], said: Iterable[Said]) -> list[Said]:
    """An ``ok`` for each check that found nothing; of a plane that was not seen as a whole, none at all."""
    if not plane.complete or plane.joined:
        return []
    bad = {one.finding.check for one in said if one.plane in (plane.index, None)}
    return [
        Said(plane.hosts, check.judge(plane.label, "ok", "well", text, plane.best.source), plane.index)
        for check, text in asked.items()
        if check.id not in bad
    ]


def _rails_seen(fabric: Fabric, found: fabric_members.Members, said: Iterable[Said]) -> list[Said]:
    """Hosts all of whose rails are in planes that were swept completely."""
    whole = []
    for host, rails in sorted(found.seen.items()):
        ends = [fabric.home(host, rail) for rail in rails]
        planes = [fabric.plane_of.get(end) for end in ends if end is not None]
        if len(rails) == len(fabric.asked.hosts[host].rails) and all(
            one is not None and one.complete for one in planes
        ):
            whole.append(host)
    if not whole:
        return []
    check = fabric_members.MISSING
    return [Said(tuple(whole), check.judge("rails", "ok", "all rails in the fabric", "all of them", "sweeps"))]
