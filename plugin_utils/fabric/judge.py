# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the fabric by its evidence: one line for each cause, and for many entries of one kind.

A plane that was swept in part, or not at all, is ``unknown``: what is wrong there is reported, and nothing of it is ok.
Pure; the order of sweeps and hosts changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.subnet_manager import MANAGER_LOG

from ..terminal import counted
from . import cabling, counters, links, members, rail_leaves, subnet, tree
from .evidence import Evidence
from .map import AGAIN, Entry, Fabric, names
from .planes import End, Plane

Line = tuple[tuple[str, ...], Finding]
# More entries of one kind than this are one line.
SINGLE = 8
_OF_PLANE: tuple[Callable[[Fabric, Plane], Iterable[Entry]], ...] = (
    *(members.strangers, links.states, links.rates, counters.rates),
    *(subnet.managers, subnet.events, subnet.firmware, subnet.partitions, subnet.routing, tree.tree),
)


@dataclass(frozen=True)
class Judged:
    """lines: findings with their hosts.   marks: ends and own finding of each bad cable, also of many in one line."""

    lines: list[Line]
    marks: tuple[tuple[tuple[End, ...], Finding], ...] = ()


def judge(evidence: Evidence) -> list[Line]:
    """Return ``Judged.lines``."""
    return judged(evidence).lines


def judged(evidence: Evidence) -> Judged:
    if not evidence.sweeps:
        fix = f"find out why no host of busbar_fabric_hosts returned a sweep (their ib_fabric findings); {AGAIN}"
        want = "a sweep of each plane"
        nothing = members.SWEEP.judge("fabric", "unknown", want, "no sweep", "ib_fabric_info", fix)
        return Judged([(tuple(sorted(evidence.hosts)), nothing)])
    fabric = Fabric(evidence)
    cabling.resolve(fabric)
    found = members.members(fabric)
    entries = _caused(members.planes(fabric, found), members.PLANE.id, {members.SWEEP.id}, same_plane=True)
    entries += [*cabling.compare(fabric), *rail_leaves.judge_rails(fabric)]
    entries += members.missing(fabric, found)
    good: list[Entry] = []
    for plane in fabric.planes:
        _count_cables(fabric, plane)
        own = _caused_by_links([entry for part in _OF_PLANE for entry in part(fabric, plane)])
        own = _caused(own, MANAGER_LOG.id, {subnet.MANAGER.id, links.ACTIVE.id}, severity="critical")
        if not plane.complete:
            here = (one.finding for one in entries if one.plane == plane.index)
            partial = next((finding.id for finding in here if finding.check == members.SWEEP.id), None)
            unread = {(check.id, "unknown") for check in (subnet.MANAGER, counters.ERRORS)}
            own = [_because(one, partial if (one.finding.check, one.finding.state) in unread else None) for one in own]
        entries += own
        bad = {one.finding.check for one in entries if one.plane in (plane.index, None)}
        if plane.complete and not plane.joined:
            good += [
                Entry(plane.hosts, check.judge(plane.label, "ok", "well", text, plane.best.source), plane.index)
                for check, text in plane.passed.items()
                if check.id not in bad
            ]
    good += members.all_seen(fabric)
    # Where ends of cables contradict each other, a finding may come twice.
    entries = list({one.finding.id: one for one in reversed(entries)}.values())[::-1]
    lines = [*_fold(entries, fabric.planes), *((one.hosts, one.finding) for one in good)]
    return Judged(lines, tuple((one.ends, one.finding) for one in entries if one.ends))


def _count_cables(fabric: Fabric, plane: Plane) -> None:
    """Add what was checked of a plane's cables and members."""
    size = f"{counted(len(plane.switches), 'switch')}, {counted(len(plane.nodes) - len(plane.switches), 'HCA')}"
    plane.passed.update(dict.fromkeys((members.SWEEP, members.PLANE, members.UNKNOWN), size))
    planned = sum(fabric.plane_of.get(end) is plane for end in fabric.plan.planned) // 2
    if planned:
        checks = (cabling.DOWN, cabling.SWAPPED, cabling.PLAN, cabling.RAIL_LEAF)
        plane.passed.update(dict.fromkeys(checks, f"{planned} cables of the plan"))
    if plane.before or planned:
        plane.passed[cabling.SWITCH_GONE] = f"{len(plane.switches)} switches"


# -- causes ------------------------------------------------------------------------------------------------------------


def _because(entry: Entry, cause: str | None) -> Entry:
    if cause is None or entry.finding.because is not None:
        return entry
    return replace(entry, finding=replace(entry.finding, because=cause))


def _caused(
    entries: Iterable[Entry], root: str, checks: set[str], same_plane: bool = False, severity: str | None = None
) -> list[Entry]:
    """Tie findings of some checks to that of the check ``root``.

    A cable that joins planes leaves queries without a response; a manager that has exited sets up no links.
    """
    every = list(entries)
    causes = {
        one.plane if same_plane else None: one.finding.id
        for one in reversed(every)
        if one.finding.check == root and one.finding.state == "drift" and severity in (None, one.finding.severity)
    }
    return [
        _because(one, causes.get(one.plane if same_plane else None) if one.finding.check in checks else None)
        for one in every
    ]


def _caused_by_links(entries: list[Entry]) -> list[Entry]:
    """Tie errors of a link to its lost lanes or speed: it is one cable."""
    slow = {
        (one.hosts, one.finding.subject): one.finding.id
        for one in entries
        if one.finding.check in (links.SPEED.id, links.WIDTH.id) and one.finding.state == "drift"
    }
    checks = (counters.ERRORS.id, counters.SYMBOLS.id, counters.LINK_DOWNED.id)
    return [
        _because(one, slow.get((one.hosts, one.finding.subject)) if one.finding.check in checks else None)
        for one in entries
    ]


# -- lines -------------------------------------------------------------------------------------------------------------


def _fold(entries: Sequence[Entry], planes: Sequence[Plane]) -> list[Line]:
    """Return roots first, then what they cause; ``because`` names the line of the root."""
    because = {one.finding.id: one.finding.because for one in entries}

    def root(cause: str) -> str | None:
        """Return the end of a chain of causes; None where it is a circle, or leads to nothing."""
        seen = {cause}
        at = because[cause]
        while at is not None and because.get(at) is not None and at not in seen:
            seen.add(at)
            at = because[at]
        return at if at in because and at not in seen else None

    rooted = [
        replace(one, finding=replace(one.finding, because=root(one.finding.id))) if one.finding.because else one
        for one in entries
    ]
    lines, ids = _merge([one for one in rooted if one.finding.because is None], planes)
    rest = [
        replace(one, finding=replace(one.finding, because=ids.get(one.finding.because, one.finding.because)))
        for one in rooted
        if one.finding.because is not None
    ]
    return [*lines, *_merge(rest, planes)[0]]


def _merge(entries: Sequence[Entry], planes: Sequence[Plane]) -> tuple[list[Line], dict[str | None, str]]:
    """Return the lines, and id of a finding -> id of its line, where that is of many."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for number, one in enumerate(entries):
        own = one.finding
        key = (own.check, one.plane, own.state, own.severity, own.because, one.kind) if one.kind else (number,)
        groups.setdefault(key, []).append(one)
    lines: list[Line] = []
    ids: dict[str | None, str] = {}
    for group in groups.values():
        if len(group) <= SINGLE:
            lines += [(one.hosts, one.finding) for one in group]
            continue
        first, kind = group[0].finding, group[0].kind
        label = planes[group[0].plane].label if group[0].plane is not None else "fabric"
        behind = "" if first.because is None else f", behind {first.because.partition('@')[2]}"
        finding = replace(
            first,
            subject=f"{label}: {kind}{'' if first.state == 'drift' else f', {first.state}'}{behind}",
            have=f"{len(group)} {kind}: {names([one.name for one in group])}",
            fix=f"one of {len(group)}: {first.fix}",
        )
        ids.update({one.finding.id: finding.id for one in group})
        lines.append((tuple(sorted({host for one in group for host in one.hosts})), finding))
    return lines, ids
