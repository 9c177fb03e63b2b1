# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the fabric by its evidence: one line for each cause, and for many entries of one kind.

A plane that was swept in part, or not at all, is ``unknown``: what is wrong there is reported, and nothing of it is ok.
Pure; the order of sweeps and hosts changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.subnet_manager import MANAGER_LOG

from ..terminal import counted
from . import cabling, links, members, subnet, tree
from .evidence import Evidence, Line, Plane
from .map import AGAIN, Entry, Fabric, names

# More entries of one kind than this are one line.
SINGLE = 8
_OF_PLANE: tuple[Callable[[Fabric, Plane], Iterable[Entry]], ...] = (
    *(members.strangers, links.states, links.rates, links.counts),
    *(subnet.managers, subnet.events, subnet.firmware, subnet.partitions, subnet.routing, tree.tree),
)
# Checks, the state and severity of their findings ("" for any), and the checks that they cause in the same plane: a
# cable that joins planes leaves queries without a response; errors of a link that has lost lanes are of one cable; a
# manager that has exited sets up no links.
_CAUSES = (
    ({members.PLANE}, "drift", "", {members.SWEEP}),
    ({links.SPEED, links.WIDTH}, "drift", "", {links.ERRORS, links.SYMBOLS, links.LINK_DOWNED}),
    ({MANAGER_LOG}, "drift", "critical", {subnet.MANAGER, links.ACTIVE}),
    ({members.SWEEP}, "unknown", "major", {subnet.MANAGER, links.ERRORS}),
)


def judge(evidence: Evidence) -> list[Line]:
    """Return all findings with their hosts."""
    if not evidence.sweeps:
        fix = f"find out why no host of busbar_fabric_hosts returned a sweep (their ib_fabric findings); {AGAIN}"
        want = "a sweep of each plane"
        nothing = members.SWEEP.judge("fabric", "unknown", want, "no sweep", "ib_fabric_info", fix)
        return [Line(tuple(sorted(evidence.hosts)), nothing)]
    fabric = Fabric(evidence)
    cabling.resolve(fabric)
    found = members.members(fabric)
    entries = [*members.planes(fabric, found), *cabling.compare(fabric), *cabling.judge_rails(fabric)]
    entries += members.missing(fabric, found)
    for plane in fabric.planes:
        _count_cables(fabric, plane)
        entries += [entry for part in _OF_PLANE for entry in part(fabric, plane)]
    good: list[Entry] = []
    for plane in fabric.planes:
        bad = {one.finding.check for one in entries if one.plane in (plane.index, None)}
        if plane.complete and not plane.joined:
            good += [
                Entry(plane.hosts, check.judge(plane.label, "ok", "well", text, plane.best.source), plane.index)
                for check, text in plane.passed.items()
                if check.id not in bad
            ]
    good += members.all_seen(fabric)
    for roots, state, severity, caused in _CAUSES:
        entries = _tie(entries, roots, state, severity, caused)
    # Where ends of cables contradict each other, a finding may come twice.
    entries = list({one.finding.id: one for one in reversed(entries)}.values())[::-1]
    return [*_fold(entries, fabric.planes), *(Line(one.hosts, one.finding) for one in good)]


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


# -- causes and lines --------------------------------------------------------------------------------------------------


def _because(entry: Entry, cause: str | None) -> Entry:
    return replace(entry, finding=replace(entry.finding, because=cause))


def _tie(entries: list[Entry], roots: set[Check], state: str, severity: str, caused: set[Check]) -> list[Entry]:
    """Tie findings of some checks to those that cause them: in one plane, or where both are of cables, of one cable."""
    ids, checks = ({check.id for check in some} for some in (roots, caused))
    of_cable = links.SPEED in roots

    def key(entry: Entry) -> tuple[object, ...]:
        return (entry.hosts, entry.finding.subject) if of_cable else (entry.plane,)

    causes = {
        key(one): one.finding.id
        for one in reversed(entries)
        if one.finding.check in ids and one.finding.state == state and severity in ("", one.finding.severity)
    }
    # What was not seen explains only what is not known.
    found = (one for one in entries if one.finding.check in checks and one.finding.because is None)
    tied = {id(one): causes.get(key(one)) for one in found if state in ("drift", one.finding.state)}
    return [_because(one, tied[id(one)]) if id(one) in tied else one for one in entries]


def _fold(entries: Sequence[Entry], planes: Sequence[Plane]) -> list[Line]:
    """Return roots first, then what they cause; ``because`` names the line of the root."""
    because = {one.finding.id: one.finding.because for one in entries}

    def root(cause: str | None) -> str | None:
        """Return the end of a chain of causes; None where it is a circle, or leads to nothing."""
        passed: set[str] = set()
        while cause is not None and because.get(cause) is not None and cause not in passed:
            passed.add(cause)
            cause = because[cause]
        return cause if cause in because and cause not in passed else None

    entries = [_because(one, root(one.finding.because)) for one in entries]
    lines, ids = _merge([one for one in entries if one.finding.because is None], planes)
    rest = [_because(one, ids.get(cause, cause)) for one in entries if (cause := one.finding.because) is not None]
    return [*lines, *_merge(rest, planes)[0]]


def _merge(entries: Sequence[Entry], planes: Sequence[Plane]) -> tuple[list[Line], dict[str, str]]:
    """Return the lines, and id of a finding -> id of its line, where that is of many."""
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for number, one in enumerate(entries):
        own = one.finding
        groups[
            (own.check, one.plane, own.state, own.severity, own.because, one.kind) if one.kind else (number,)
        ].append(one)
    lines: list[Line] = []
    ids: dict[str, str] = {}
    for group in groups.values():
        if len(group) <= SINGLE:
            lines += [Line(one.hosts, one.finding) for one in group]
            continue
        first, kind = group[0].finding, group[0].kind
        label = planes[group[0].plane].label if group[0].plane is not None else "fabric"
        state = "" if first.state == "drift" else f", {first.state}"
        behind = "" if first.because is None else f", behind {first.because.partition('@')[2]}"
        have, fix = f"{len(group)} {kind}: {names([one.name for one in group])}", f"one of {len(group)}: {first.fix}"
        finding = replace(first, subject=f"{label}: {kind}{state}{behind}", have=have, fix=fix)
        ids.update({one.finding.id: finding.id for one in group})
        lines.append(Line(tuple(sorted({host for one in group for host in one.hosts})), finding))
    return lines, ids
