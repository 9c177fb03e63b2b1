# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Draft a cabling plan of complete and healthy sweeps, for review against the design.

Nothing is drafted of a fabric that may lack a cable, a host or a switch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, strftime

from ansible_collections.busbar.fabric.plugins.module_utils.core import host as machine
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import dumps
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Sweep

from .. import nodeset
from ..terminal import counted
from . import cabling_plan, judge, links, members, record, run, subnet, tree
from .cabling_plan import Cable, Plan, UnfitError
from .evidence import End, Evidence, Host, Line
from .map import Fabric, is_aggregation, several

# Findings that say nothing about where cables are. The plan that the site names may be the one to be drafted.
BESIDE = {
    check.id
    for check in (
        *(links.ERRORS, links.SYMBOLS, links.LINK_DOWNED, links.SATURATED, members.UNKNOWN),
        *(subnet.FIRMWARE, subnet.PARTITION, subnet.ROUTING, tree.OVERSUBSCRIPTION, tree.SPINES, run.PLAN, run.RECORD),
    )
}
_SEEN = (members.SWEEP.id, members.PLANE.id, subnet.MANAGER.id)
# Of the managers only a master is needed.
_STANDBY = re.compile(": (standby|strangers)$")
_ROOM = 300
AGAIN = "repair it and sweep again (ansible-playbook playbooks/fabric.yml -i INVENTORY)"


@dataclass(frozen=True)
class Draft:
    """doubts: to be reviewed before the plan is used.   says: its sources, for the first lines of the file."""

    plan: Plan
    doubts: tuple[str, ...]
    says: tuple[str, ...]


def read(path: Path) -> Draft:
    """Draft a plan of a record of playbooks/fabric.yml, or of a directory of dumps.

    path: the record's file, its run's directory, or nccl_benchmark_results_path; a directory of dumps, or one with a
    directory for each plane. Raises OSError; ParseError; UnfitError.
    """
    try:
        stored = record.read(path)
    except FileNotFoundError:
        if not path.is_dir():
            raise
        try:
            sweeps = dumps.read(machine.Host(), str(path.resolve()))
        except (ReadError, ParseError) as error:
            raise ParseError(f"no record of playbooks/fabric.yml, and no dumps: {error}") from None
        # Without an inventory every host is unknown.
        judged = judge.judge(Evidence(sweeps=sweeps))
        return draft(sweeps, {}, [line for line in judged if line[1].check != members.UNKNOWN.id], str(path))
    made = draft(stored.sweeps, stored.hosts, stored.findings, str(path), stored.taken)
    if not stored.complete:
        raise UnfitError([f"{path}: not every host that had to sweep returned a whole plane: {AGAIN}"])
    return made


def draft(
    sweeps: Sequence[Sweep],
    hosts: Mapping[str, Host],
    findings: Iterable[Line],
    source: str,
    taken: Sequence[float] = (),
) -> Draft:
    """Return the plan of sweeps. hosts: of the inventory; empty: there is none.   findings: of the same run.

    taken: times of the sweeps; empty: their own. Raises UnfitError where cables may be missing or wrong.
    """
    evidence = Evidence(sweeps=sweeps, hosts=hosts)
    # Whatever the findings are, all has to be seen.
    own = [line for line in judge.judge(evidence) if line[1].check in _SEEN and not _STANDBY.search(line[1].subject)]
    doubts = _doubts({line[1].id: line for line in (*findings, *own)}.values())
    fabric = Fabric(evidence)
    names, unusable = _names(fabric)
    # Without those inside of a switch, to the part of it that adds up for SHARP.
    inside = {guid for guid, node in fabric.nodes.items() if is_aggregation(node)}
    links = [ends for plane in fabric.planes for ends in fabric.links(plane) if not {end[0] for end in ends} & inside]
    cables = [_cable(fabric, names, *fabric.host_first(*ends)) for ends in links]
    plan = cabling_plan.checked(sorted(cables, key=_order), source)
    if not hosts:
        doubts.append("without an inventory: missing hosts, and which rail is which, are not declared")
    elif not any(cable.rail is not None for cable in plan.cables):
        doubts.append("no cable is a rail's: hosts of the inventory have reported no GUIDs")
    doubts += [f"descriptions that name no single node, listed by GUID only: {unusable}"] if unusable else []
    swept = sorted(taken or [sweep.at for plane in fabric.planes for sweep in plane.sweeps])
    days = dict.fromkeys(strftime("%Y-%m-%dT%H:%MZ", gmtime(at)) for at in (swept[0], swept[-1]))
    kinds = Counter(node.kind for guid, node in fabric.nodes.items() if guid not in inside)
    says = (
        f"Draft of {counted(len(fabric.planes), 'plane')} as swept {' to '.join(days)}:"
        f" {kinds[SWITCH]} switches, {kinds[CA]} HCAs, {len(plan.cables)} cables.",
        "Whatever was in the wrong place that day is wrong here: compare it with the design, then commit it.",
    )
    return Draft(plan, tuple(doubts), says)


def _doubts(found: Iterable[Line]) -> list[str]:
    """Return findings that are not about cables. Raises UnfitError for the others, and for what was not judged."""
    doubts: list[str] = []
    reasons: list[str] = []
    for hosts, finding in found:
        if finding.ok:
            continue
        of_hosts = f" ({nodeset.brief(hosts, 60)})" if any(hosts) else ""
        have = finding.have or "nothing"
        have = have if len(have) <= _ROOM else have[: _ROOM - 3] + "..."
        text = f"{finding.check} {finding.state}: {finding.subject}: {have}{of_hosts}"
        beside = finding.check in BESIDE or (finding.check == subnet.MANAGER.id and _STANDBY.search(finding.subject))
        beside = beside or (finding.check, finding.state) == (links.ACTIVE.id, "unknown")
        (doubts if beside else reasons).append(text)
    if reasons:
        raise UnfitError([f"{reason}: {AGAIN}" for reason in reasons])
    return doubts


def _names(fabric: Fabric) -> tuple[dict[str, str], str]:
    """Return GUID -> description, where it is unique and a plan can hold it, and the other descriptions."""
    shared = Counter(node.description.strip() for node in fabric.nodes.values())
    linked = {end[0] for end in fabric.cables if end not in fabric.rails}
    names: dict[str, str] = {}
    unusable: set[str] = set()
    for guid, node in fabric.nodes.items():
        text = node.description.strip()
        if guid in linked and text and not is_aggregation(node):
            try:
                names[guid] = cabling_plan.name(text, "", "name")
            except ParseError:
                unusable.add(text)
            if shared[text] > 1 and names.pop(guid, ""):
                unusable.add(text)
    return names, several([printable(text)[:64] for text in sorted(unusable)], separator=", ")


def _cable(fabric: Fabric, names: Mapping[str, str], a: End, z: End) -> Cable:
    kinds = {CA: cabling_plan.HOST, SWITCH: cabling_plan.SWITCH}
    types = [kinds.get(fabric.nodes[end[0]].kind, "") for end in (a, z)]
    rails = [fabric.rails.get(end) for end in (a, z)]
    named = [
        f"{known[0]} {known[1].device}".strip() if known else names.get(end[0], "")
        for end, known in zip((a, z), rails, strict=True)
    ]
    return Cable(*a, *z, rails[0][1].rail if rails[0] else None, 0, *types, *named)


def _order(cable: Cable) -> tuple[object, ...]:
    """Sort cables of hosts by leaf, then those between switches."""
    name = cable.z_name or cable.z_node
    return (cable.a_type != cabling_plan.HOST, nodeset.natural(name), cable.z_node, str(cable.z_port).zfill(5))
