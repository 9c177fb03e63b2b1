# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cabling plan as a draft, of sweeps that were complete and healthy: how the fabric is becomes how it is intended.

So nothing is drafted of a fabric that a cable, a host or a switch may be missing in; a person compares the draft with
the design, and commits it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, strftime

from ansible_collections.busbar.fabric.plugins.module_utils.core import host as machine
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import dumps
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Node, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    cabling_plan,
    fabric_judge,
    fabric_members,
    fabric_rates,
    fabric_record,
    fabric_run,
    fabric_subnet,
    fabric_tree,
    nodeset,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_plan import Cable, Plan, UnfitError
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Asked, Fabric, Host, Plane, is_aggregation

# What is wrong with a link or a node, or odd by design, and not with where a cable is: told, and no reason to draft
# nothing. Whether a plane has one master is asked here again: MANAGER wants a standby, too.
BESIDE = {
    check.id
    for check in (
        *(fabric_rates.ERRORS, fabric_rates.SYMBOLS, fabric_rates.LINK_DOWNED, fabric_rates.SATURATED),
        *(fabric_subnet.MANAGER, fabric_subnet.FIRMWARE, fabric_subnet.PARTITION, fabric_subnet.ROUTING),
        *(fabric_tree.OVERSUBSCRIPTION, fabric_tree.SPINES, fabric_members.UNKNOWN),
        # The plan that the site names may be the one that is to be drafted.
        *(fabric_run.PLAN, fabric_run.RECORD),
    )
}
_ROOM = 300
AGAIN = "repair it and sweep again (ansible-playbook playbooks/fabric.yml -i INVENTORY)"


@dataclass(frozen=True)
class Draft:
    """doubts: what to look at before the plan is committed.   says: of what it was made, for its first lines."""

    plan: Plan
    doubts: tuple[str, ...]
    says: tuple[str, ...]


def read(path: Path) -> Draft:
    """The draft of a record of playbooks/fabric.yml, or of a directory of dumps.

    path: the record's file, its run's directory, or nccl_benchmark_results_path; a directory of dumps, or one with a
    directory for each plane. Raises OSError; ParseError; UnfitError.
    """
    try:
        record = fabric_record.read(path)
    except FileNotFoundError:
        if not path.is_dir():
            raise
        return _of_dumps(path)
    found = [(one.hosts, one.finding) for one in record.findings]
    made = draft(record.sweeps, record.hosts, found, str(path), record.taken)
    if not record.complete:
        raise UnfitError([f"{path}: not every host that had to sweep returned a whole plane: {AGAIN}"])
    return made


def _of_dumps(path: Path) -> Draft:
    try:
        sweeps = dumps.read(machine.Host(), str(path.resolve()))
    except (ReadError, ParseError) as error:
        raise ParseError(f"no record of playbooks/fabric.yml, and no dumps: {error}") from None
    # Nobody says who belongs there.
    judged = fabric_judge.judge(Asked(sweeps=sweeps))
    return draft(sweeps, {}, [one for one in judged if one[1].check != fabric_members.UNKNOWN.id], str(path))


def draft(
    sweeps: Sequence[Sweep],
    hosts: Mapping[str, Host],
    findings: Iterable[tuple[Sequence[str], Finding]],
    source: str,
    taken: Sequence[float] = (),
) -> Draft:
    """The plan of what was swept. hosts: of the inventory; empty: nobody knows.   findings: of the same run.

    taken: when, in seconds since 1970; empty: as the sweeps say.

    Raises UnfitError where the sweeps are not complete, or anything is found that has to do with where cables are.
    """
    fabric = Fabric(Asked(sweeps=sweeps, hosts=hosts))
    doubts = _unhealthy(fabric, findings)
    names = _Names(fabric)
    cables = [_cable(fabric, names, *ends) for plane in fabric.planes for ends in _links(fabric, plane)]
    plan = cabling_plan.checked(sorted(cables, key=_order), source)
    kinds = Counter(node.kind for node in fabric.nodes.values() if not is_aggregation(node))
    if not hosts:
        doubts.append("without an inventory: missing hosts, and which rail is which, are not declared")
    elif not any(cable.rail is not None for cable in plan.cables):
        doubts.append("no cable is a rail's: hosts of the inventory have reported no GUIDs")
    doubts += names.doubts()
    swept = sorted(taken or [sweep.at for plane in fabric.planes for sweep in plane.sweeps])
    days = dict.fromkeys(strftime("%Y-%m-%dT%H:%MZ", gmtime(at)) for at in (swept[0], swept[-1]))
    says = [
        f"Draft of {len(fabric.planes)} plane{'' if len(fabric.planes) == 1 else 's'} as swept {' to '.join(days)}:"
        f" {kinds[SWITCH]} switches, {kinds[CA]} HCAs, {len(plan.cables)} cables.",
        "Whatever was in the wrong place that day is wrong here: compare it with the design, then commit it.",
    ]
    return Draft(plan, tuple(doubts), tuple(says))


def _unhealthy(fabric: Fabric, findings: Iterable[tuple[Sequence[str], Finding]]) -> list[str]:
    """What is found beside the cables. Raises UnfitError for the rest."""
    doubts, reasons = [], []
    for hosts, finding in findings:
        if finding.ok:
            continue
        whose = f" ({nodeset.brief(hosts, 60)})" if any(hosts) else ""
        text = f"{finding.check} {finding.state}: {finding.subject}: {_cut(finding.have or 'nothing')}{whose}"
        if finding.check in BESIDE:
            doubts.append(text)
        else:
            reasons.append(f"{text}: {AGAIN}")
    # What was judged says all of that; who did not judge shall not get a draft of a part.
    for sweep in () if reasons else fabric.lost:
        said = "; ".join(str(problem) for problem in sweep.problems[:3]) or "it saw no node, or no subnet manager"
        reasons.append(f"a sweep by {sweep.host or 'no host'} returned no plane: {_cut(said)}: {AGAIN}")
    if not fabric.planes and not reasons:
        reasons.append(f"no plane was swept: {AGAIN}")
    for plane in () if reasons else fabric.planes:
        if not plane.complete:
            parts = [str(problem) for problem in plane.best.problems[:3]]
            parts += [f"{fabric.end(end)} {text}" for end, text in plane.holes[:3]]
            said = "; ".join(parts) or "its tools gave no reason"
            reasons.append(f"{plane.label} is incomplete: {_cut(said)}: {AGAIN}")
        masters = {one.guid for sweep in plane.sweeps for one in sweep.managers if one.state == "master"}
        if plane.joined or len(masters) > 1:
            reasons.append(f"{plane.label} is several, which a cable between them joins: {AGAIN}")
        elif not masters:
            reasons.append(f"{plane.label} has no master subnet manager that was seen: {AGAIN}")
    if reasons:
        raise UnfitError(reasons)
    return doubts


def _cut(text: str) -> str:
    return text if len(text) <= _ROOM else text[: _ROOM - 3] + "..."


class _Names:
    """What nodes call themselves, where a plan can have it and no other node has it, too."""

    def __init__(self, fabric: Fabric) -> None:
        self._shared = Counter(node.description for node in fabric.nodes.values())
        self._refused: list[str] = []
        self._same: list[str] = []

    def of(self, node: Node) -> str:
        text = node.description.strip()
        if not text:
            return ""
        if self._shared[node.description] > 1:
            self._same.append(text)
            return ""
        try:
            return cabling_plan.name(text, "", "name", needed=False)
        except ParseError:
            self._refused.append(text)
            return ""

    def doubts(self) -> list[str]:
        found = []
        for names, said in ((self._same, "of several nodes"), (self._refused, "that no plan can hold")):
            if names:
                shown = printable(nodeset.brief(names, 80))
                found.append(f"descriptions {said}, which are listed by GUID only: {shown}")
        return found


def _links(fabric: Fabric, plane: Plane) -> Iterable[tuple[tuple[str, int], tuple[str, int]]]:
    """Without those inside of a switch, to the part of it that adds up for SHARP."""
    inside = {guid for guid, node in plane.nodes.items() if is_aggregation(node)}
    return ((end, other) for end, other in fabric.links(plane) if not {end[0], other[0]} & inside)


def _cable(fabric: Fabric, names: _Names, end: tuple[str, int], other: tuple[str, int]) -> Cable:
    ends = [end, other]
    if fabric.is_switch(end[0]) and not fabric.is_switch(other[0]):
        ends.reverse()
    kinds, called = [], []
    for guid, port in ends:
        node = fabric.nodes[guid]
        kinds.append({CA: cabling_plan.HOST, SWITCH: cabling_plan.SWITCH}.get(node.kind, ""))
        if (guid, port) in fabric.rails:
            host, rail = fabric.rails[guid, port]
            called.append(f"{host} {rail.device}".strip())
        else:
            called.append(names.of(node))
    rail_of = fabric.rails.get(ends[0])
    (a, a_port), (z, z_port) = ends
    rail_number = None if rail_of is None else rail_of[1].rail
    return Cable(a, a_port, z, z_port, rail_number, 0, kinds[0], kinds[1], called[0], called[1])


def _order(cable: Cable) -> tuple[object, ...]:
    """Leaf by leaf the hosts' cables, then those between switches."""
    name = cable.z_name or cable.z_node
    return (cable.a_type != cabling_plan.HOST, nodeset.natural(name), cable.z_node, str(cable.z_port).zfill(5))
