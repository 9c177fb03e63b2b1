# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose which idle nodes are measured, the oldest results first, within a budget of a night; store what it has spent.

The plan is pure: ages, budget and idle nodes in; units, and the remaining nodes with a reason, out. Times are seconds
since 1970, costs node-minutes: minutes of a unit times its nodes. A host's age is that of its results below
``nccl_benchmark_results_path``, from any run; the ledger beside them reads each of their directories once. A grant is
written down before it is used: a run that was killed has spent its grant.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import benchmark_results, codec, nodeset, result_schema, results_folder
from .campaign import cluster_record
from .plain_data import PlainView

FORMAT = 1
NAME = "measure.json"
LIMIT = 16 << 20
NIGHTS = 60
# Days after which results are not read, and only the ledger has them.
OLDEST_DAYS = 90.0
# Seconds. A later time was written while a clock was wrong.
AHEAD = 3600.0

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
    minutes: its duration, as it last was or estimated.   why: why it cannot be measured now, "" where it is idle.
    """

    host: str
    scope: str = "node"
    group: str = ""
    last: float | None = None
    tried: float | None = None
    minutes: float = 0.0
    why: str = ""

    @property
    def age_key(self) -> float:
        """Return the sort key, the first due the smallest. Failed tries come after nodes that were never tried."""
        return max(self.last or 0.0, self.tried or 0.0)


@dataclass(frozen=True)
class Unit:
    """Nodes that are measured together: one, a pair, a leaf."""

    nodes: tuple[Node, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def group(self) -> str:
        return self.nodes[0].group

    @property
    def cost(self) -> float:
        return max(node.minutes for node in self.nodes) * len(self.nodes)

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
        units += [Unit(tuple(team)) for team in teams]
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


def plan_lines(found: Plan, check_mode: bool) -> list[str]:
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
        lines.append(f"{verb}: {hosts}, {what}; {_ages(those)}; about {cost:g} node-minutes")
    for why, names in nodeset.grouped((one.why, one.host) for one in found.left).items():
        waiting = [one for one in found.left if one.why == why]
        hosts = nodeset.brief(names, ROOM)
        lines.append(f"left for another run: {hosts}: {why}; {_ages(waiting)}")
    return lines


def _ages(those: Sequence[Node]) -> str:
    """Return when the one that was measured longest ago was."""
    known = [one.last for one in those if one.last is not None]
    if len(known) < len(those):
        return f"{len(those) - len(known)} of {len(those)} never measured" if known else "never measured"
    oldest = "last" if len(those) == 1 else "the oldest"
    return f"{oldest} measured {time.strftime('%Y-%m-%d', time.localtime(min(known)))}"


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
        minutes=known.minutes.get(scope, ESTIMATE[scope]),
        why=why,
    )


# -- the ledger --------------------------------------------------------------------------------------------------------


@dataclass
class Grant:
    """The grant of a run that is not yet accounted for."""

    night: str
    cost: float
    hosts: list[str]


@dataclass
class Ledger:
    """nights: name -> node-minutes spent.   read: kind of results -> the newest of their directories that was read."""

    nights: dict[str, float] = field(default_factory=dict)
    hosts: dict[str, Known] = field(default_factory=dict)
    granted: Grant | None = None
    read: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def host(self, host: str) -> Known:
        return self.hosts.setdefault(host, Known())

    def grant(self, night: str, cost: float, hosts: list[str], now: float) -> None:
        self.granted = Grant(night, cost, hosts)
        for host in hosts:
            self.host(host).tried = now

    def book(self, cost: float | None = None) -> Grant | None:
        """Book the grant at its cost; None: all of it, since the cost is unknown. Return the grant."""
        was, self.granted = self.granted, None
        if was is not None:
            spent = self.nights.get(was.night, 0.0) + (was.cost if cost is None else cost)
            self.nights[was.night] = round(spent, 2)
            for name in sorted(self.nights)[:-NIGHTS]:
                del self.nights[name]
        return was

    def scan(self, results: Path, now: float) -> None:
        """Read results newer than those already read. Unreadable ones count for no host, and no time after now does."""
        ahead = now + AHEAD
        oldest, newest = (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at)) for at in (now - OLDEST_DAYS * DAY, ahead))
        for known in self.hosts.values():
            known.finished = {scope: at for scope, at in known.finished.items() if at <= ahead}
            known.tried = None if (known.tried or 0.0) > ahead else known.tried
        for kind, parent, take in (("node", results, self._node), ("cluster", results / "cluster", self._cluster)):
            read = self.read.get(kind, "")
            after = max(read if read <= newest else "", oldest)
            for path in sorted(path for path in parent.glob("20*") if path.is_dir()):
                if after < path.name <= newest:
                    try:
                        take(path, now)
                    except (OSError, ValueError):
                        continue
                    self.read[kind] = path.name

    def _node(self, path: Path, now: float) -> None:
        for host, finished in benchmark_results.finished(path).items():
            self._seen(host, "node", min(finished, now))

    def _cluster(self, path: Path, _now: float) -> None:
        record = cluster_record.read(path)
        for host in record.hosts:
            self._seen(host, record.scope, record.finished)
            self.host(host).minutes.setdefault(record.scope, round((record.finished - record.begun) / 60, 2))

    def _seen(self, host: str, scope: str, finished: float) -> None:
        known = self.host(host).finished
        known[scope] = max(finished, known.get(scope, 0.0))


_ledger = codec.of_class(
    Ledger,
    {"finished": result_schema.seconds, "tried": result_schema.seconds, "hosts": codec.text(codec.LINE, empty=False)},
    format=codec.whole(FORMAT, FORMAT),
    hosts=codec.table(codec.of_class(Known, {"finished": result_schema.seconds, "tried": result_schema.seconds})),
)


def path_of(results: Path) -> Path:
    return results / NAME


def load(results: Path) -> Ledger:
    """Return the ledger. Raises OSError; ParseError with the file's name: the budget must not be forgotten."""
    path = path_of(results)
    try:
        data = codec.read(results_folder.content(path, LIMIT).decode(), LIMIT)
        _ledger(data)
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise ParseError(f"{path}: {str(error)[:300]}; remove it to start again with an unspent budget") from None
    return codec.build(Ledger, data)


def save(results: Path, ledger: Ledger) -> None:
    """Write the ledger whole. Raises OSError."""
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(ledger), sort_keys=True, allow_nan=False)
    results_folder.replace_file(path_of(results), [text, "\n"])
