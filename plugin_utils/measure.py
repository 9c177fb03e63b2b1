# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose which idle nodes are measured: the oldest results first, within a budget of node-minutes a night.

Pure: ages, budget and idle nodes in; units, and the remaining nodes with a reason, out. Times are seconds since 1970,
costs node-minutes: minutes of a unit times its nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import nodeset
from .plain_data import PlainView

DAY = 86400.0
# Minutes of a benchmark that was never timed, by scope: seven collectives from 1 MiB to 8 GiB on the node alone, and
# three repeats of the same between nodes. The first run replaces them by its duration.
ESTIMATE = {"node": 10.0, "pair": 30.0, "rail": 30.0, "leaf": 40.0, "nvlink_domain": 40.0, "cluster": 60.0}
SLURM = "Slurm gives it to jobs: drain it, and run playbooks/benchmark.yml with nccl_benchmark_when: always"
# Nodes at a time; a leaf, or all nodes, may be more.
MOST = 16
# Characters of host names in a line.
ROOM = 100


@dataclass
class Known:
    """The measurements of a host by earlier runs.

    finished, minutes: scope -> when it was last measured, and how long a run of that scope took.   tried: when it was
    last chosen.
    """

    finished: dict[str, float] = field(default_factory=dict)
    tried: float | None = None
    minutes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A node that the inventory requests to be measured.

    scope: nccl_benchmark_scope.   group: whose members may be measured together.
    last: when the oldest of its results was measured, None where one lacks.   tried: when it was last chosen.
    minutes: its duration, None where unknown.   why: why it cannot be measured now, "" where it is idle.
    """

    host: str
    scope: str = "node"
    group: str = ""
    last: float | None = None
    tried: float | None = None
    minutes: float | None = None
    why: str = ""

    @property
    def age_key(self) -> float:
        """Return the sort key, the first due the smallest. Failed tries come after nodes that were never tried."""
        return max(self.last or 0.0, self.tried or 0.0)


@dataclass(frozen=True)
class Unit:
    """Nodes that are measured together: one, a pair, a leaf. minutes: its duration, as it last was or estimated."""

    nodes: tuple[Node, ...]
    minutes: float

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def group(self) -> str:
        return self.nodes[0].group

    @property
    def cost(self) -> float:
        return self.minutes * len(self.nodes)

    @property
    def age_key(self) -> float:
        return min(node.age_key for node in self.nodes)


@dataclass(frozen=True)
class Plan:
    """units: in the order in which they are measured.   left: nodes that are not measured now, and ``why``."""

    units: tuple[Unit, ...]
    left: tuple[Node, ...]

    def batch(self) -> tuple[Unit, ...]:
        """Return the units that are measured first, at the same time: of one group, of MOST nodes together."""
        found: list[Unit] = []
        for unit in self.units:
            if unit.group == self.units[0].group and (
                not found or sum(len(one.nodes) for one in (*found, unit)) <= MOST
            ):
                found.append(unit)
        return tuple(found)


def night(now: float) -> tuple[str, float]:
    """Return the night's name (date of its evening) and start: nights last from noon to noon of the local clock."""
    here = time.localtime(now)
    day = here.tm_mday if here.tm_hour >= 12 else here.tm_mday - 1
    begun = time.mktime((here.tm_year, here.tm_mon, day, 12, 0, 0, 0, 0, -1))
    return time.strftime("%Y-%m-%d", time.localtime(begun)), begun


def plan(nodes: Sequence[Node], budget: float, begun: float) -> Plan:
    """Return the plan. budget: node-minutes left of the night.   begun: start of the night."""
    left: list[Node] = []
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in sorted(nodes, key=lambda one: one.age_key):
        if node.age_key >= begun:
            what = "measured" if node.last is not None and node.last >= begun else "tried"
            left.append(replace(node, why=f"{what} in this budget period"))
        elif node.why:
            left.append(node)
        else:
            groups.setdefault((node.scope, node.group), []).append(node)
    units: list[Unit] = []
    for members in groups.values():
        teams = _teams(members[0].scope, members)
        together = {node.host for team in teams for node in team}
        units += map(_unit, teams)
        others = "no other idle node that it could be measured with"
        left += [replace(node, why=others) for node in members if node.host not in together]
    chosen: list[Unit] = []
    for unit in sorted(units, key=lambda one: one.age_key):
        room = budget - sum(one.cost for one in chosen)
        if unit.cost <= room:
            chosen.append(unit)
        else:
            why = f"costs {unit.cost:g} node-minutes, {room:g} are left"
            left += [replace(node, why=why) for node in unit.nodes]
    return Plan(tuple(chosen), tuple(left))


def _teams(scope: str, members: Sequence[Node]) -> list[Sequence[Node]]:
    """Return the teams. members: of one scope and group, the oldest first."""
    if scope == "node":
        return [[node] for node in members]
    if scope in ("pair", "rail"):
        return [members[at : at + 2] for at in range(0, len(members) - 1, 2)]
    return [members] if len(members) > 1 else []


def _unit(team: Sequence[Node]) -> Unit:
    known = (node.minutes for node in team if node.minutes is not None)
    return Unit(tuple(team), max(known, default=ESTIMATE[team[0].scope]))


def plan_lines(found: Plan, now: float, max_age_days: float, check_mode: bool) -> list[str]:
    """Return lines for people: nodes to be measured, their cost, and the remaining nodes, why and since when."""
    lines = []
    verb = "would be measured" if check_mode else "to be measured"
    kinds: dict[str, list[Unit]] = {}
    for unit in found.units:
        what = "each alone" if len(unit.nodes) == 1 else f"scope {unit.nodes[0].scope}"
        kinds.setdefault(what, []).append(unit)
    for what, units in kinds.items():
        those = [node for unit in units for node in unit.nodes]
        hosts, cost = nodeset.brief([node.host for node in those], ROOM), sum(unit.cost for unit in units)
        lines.append(f"{verb}: {hosts}, {what}; {_ages(those, now, max_age_days)}; about {cost:g} node-minutes")
    for why, names in nodeset.grouped((one.why, one.host) for one in found.left).items():
        waiting = [one for one in found.left if one.why == why]
        hosts = nodeset.brief(names, ROOM)
        lines.append(f"left for another run: {hosts}: {why}; {_ages(waiting, now, max_age_days)}")
    return lines


def _ages(those: Sequence[Node], now: float, max_age_days: float) -> str:
    known = [one.last for one in those if one.last is not None]
    if len(known) < len(those):
        return f"{len(those) - len(known)} of {len(those)} never measured" if known else "never measured"
    last = min(known)
    old = f", more than {max_age_days:g} days ago" if (now - last) / DAY > max_age_days else ""
    oldest = "last" if len(those) == 1 else "the oldest"
    return f"{oldest} measured {time.strftime('%Y-%m-%d', time.localtime(last))}{old}"


def uses_slurm(values: Mapping[str, object]) -> bool:
    """Return whether Slurm gives a node to jobs, according to the inventory."""
    steps = values["nccl_benchmark_scope"] != "node" and values["nccl_benchmark_launcher"] == "srun"
    return steps or "slurm" in (values["busbar_drain"], values["busbar_engine"])


def node_of(host: str, values: PlainView, known: Known) -> Node:
    """Return the node. values: of its inventory."""
    scope, alone = values["nccl_benchmark_scope"], bool(values["nccl_benchmark_collectives"])
    scopes = [scope, *(["node"] if alone or scope == "node" else [])]
    why = SLURM if uses_slurm(values) else "" if alone or scope != "node" else "nccl_benchmark_collectives is empty"
    return Node(
        host=host,
        scope=scope,
        group=values["busbar_leaf"] if scope in ("pair", "rail", "leaf") else "",
        last=min(known.finished[each] for each in scopes) if known.finished.keys() >= set(scopes) else None,
        tried=known.tried,
        minutes=known.minutes.get(scope),
        why=why,
    )
