# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan which nodes are measured together: the jobs of the configured scope, in rounds of disjoint hosts.

A job is one program over a team of hosts. Pairs lie within a leaf: at an oversubscribed uplink healthy pairs of two
leaves are slow. A host that is busy, or cannot take part, is left out by name, and its team is measured without it.
Pure, and linear in the hosts except for the sorting.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import rounds as paired

from .engine import STEP_FACTOR, Job
from .members import Member, Settings, sort_out

# Bytes of the smallest message of all_reduce, by which latency is judged.
SMALLEST = 8
# All data of a two-node Tree crosses a NIC once each way, so that three of eight rails may be missing below its bar.
PAIR_ALGORITHM = {"all_reduce": "Ring"}
# Collectives that are also measured over fewer nodes, for scaling.
SCALED = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
RAIL_COLLECTIVE = "sendrecv"
QUEUE_PAIRS = "NCCL_IB_QPS_PER_CONNECTION"

MEMBER = Check(
    "nccl_cluster.member",
    severity="minor",
    why="a node that was left out was not measured together with the others",
    fix="run it again when the node is idle",
)
"Could the node be measured together with others: idle, reachable, built with MPI, and with another such node"


@dataclass(frozen=True)
class Measure:
    """One measurement. what: the message's purpose, "" for a range.   rail: the only one used; -1 for all.

    all_nodes: not measured over a part of the nodes.   queue_pairs: per connection, 0 for those that jobs use, which
    are ``used_queue_pairs``.
    """

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str = ""
    what: str = ""
    rail: int = -1
    all_nodes: bool = False
    queue_pairs: int = 0
    used_queue_pairs: int = 0


@dataclass(frozen=True)
class Expected:
    """The bar of a job, as busbw_bars.py has it. None: unknown.   nvls: NCCL reduces in the NVSwitch."""

    bar: float | None = None
    bar_source: str = ""
    latency_bar_us: float | None = None
    prediction: float | None = None
    rule: str = ""
    nvls: bool = False


@dataclass(frozen=True)
class Plan:
    """rounds: jobs on disjoint hosts, which run at the same time.   left_out: host -> why, and what to do.

    untested: host -> rail -> why it could not be tested.   one_leaf: some hosts are taken for one leaf, because
    theirs is unknown.
    """

    rounds: tuple[tuple[Job, ...], ...] = ()
    left_out: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    untested: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    one_leaf: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that are measured."""
        return tuple(dict.fromkeys(host for jobs in self.rounds for job in jobs for host in job.hosts))

    def findings(self) -> dict[str, list[Finding]]:
        """Return host -> whether it takes part."""
        found = {host: [MEMBER.judge("host", "ok", _WANT, "takes part", _SOURCE)] for host in self.hosts}
        for host, (have, fix) in self.left_out.items():
            found[host] = [MEMBER.judge("host", "unknown", _WANT, f"left out: {have}", _SOURCE, fix)]
        for host, rails in self.untested.items():
            fix = "run site.yml --tags platform for this host and its partner: device names and slots have to be alike"
            found.setdefault(host, []).extend(
                MEMBER.judge(f"rail {rail}", "unknown", "tested with another node", why, _SOURCE, fix)
                for rail, why in rails.items()
            )
        return found


# Advice for a host that is alone, even if the user named no other.
_OTHERS = "free another such node and run it again over both of them (--limit has to name both)"
_WANT, _SOURCE = "measured together with other nodes", "inventory and member facts of all hosts"
# Advice for a tray whose NVLinks lead to unknown trays.
_DOMAIN = "see why: run site.yml --tags node_health for it: imex.domain and node_health.fabric_state; then run it again"
# A team is some hosts that are measured together.
Team = tuple[Member, ...]
T = TypeVar("T")
Wanted = Callable[[Settings, int], Sequence[Measure]]
Judge = Callable[[Settings, Measure, int], Expected]


def plan(members: Sequence[Member], wanted_of: Wanted, expected: Judge) -> Plan:
    """Plan the jobs. wanted_of: settings, number of nodes -> measurements.

    expected: settings, measure, number of nodes -> bar of a job.
    """
    groups, left = sort_out(members, lambda one: one.settings)
    rounds: list[list[list[Job]]] = []
    untested: dict[str, dict[int, str]] = {}
    one_leaf = False
    for settings, there in groups.items():
        leaves, alone = _leaves(there, settings.scope)
        left.update(alone)
        one_leaf |= bool(there) and settings.scope != NVLINK_DOMAIN and not any(one.leaf for one in there)
        jobs, missing = _jobs(settings, leaves, wanted_of, expected, len(groups) > 1)
        untested.update(missing)
        rounds.append(jobs)
    return Plan(tuple(map(tuple, _side_by_side(rounds))), left, untested, one_leaf)


def _leaves(group: Sequence[Member], scope: str) -> tuple[list[list[Member]], dict[str, tuple[str, str]]]:
    """Return the hosts of each leaf, the most first, and hosts without a partner. Hosts keep their order.

    In scope nvlink_domain of each domain, which a clique's switches join; in scope cluster all of them, leaf by leaf.
    """
    left: dict[str, tuple[str, str]] = {}
    places: dict[str, list[Member]] = {}
    some = any(one.leaf for one in group)
    for one in group:
        place = one.domain if scope == NVLINK_DOMAIN else one.leaf
        if scope == NVLINK_DOMAIN and not place:
            left[one.host] = (f"it is in no NVLink domain: {one.no_domain or 'it reports none'}", _DOMAIN)
        elif some and not place and scope not in ("cluster", NVLINK_DOMAIN):
            left[one.host] = ("busbar_leaf is set for other nodes, not for this one", "set busbar_leaf for every node")
        else:
            places.setdefault(place, []).append(one)
    found = sorted(places.values(), key=lambda members: -len(members))
    if scope == "cluster":
        found = [[*chain.from_iterable(found)]]
    for [one] in (members for members in found if len(members) == 1):
        why, fix = f"fewer than two nodes of {one.settings.kind} can take part", _OTHERS
        if scope == NVLINK_DOMAIN:
            why = f"no other tray of its NVLink domain {one.domain} can take part"
            fix += "; where there are others in this rack, see imex.domain of all of them"
        elif one.leaf and scope != "cluster":
            why, fix = f"{why} on leaf {one.leaf}", f"{fix}, or measure nccl_benchmark_scope: cluster"
        left[one.host] = (why, fix)
    return [members for members in found if len(members) > 1], left


def teams(scope: str, leaves: Sequence[Sequence[Member]]) -> list[list[Team]]:
    """Return rounds of disjoint teams, each of two hosts or more except for the one node that scaling begins with."""
    if scope in ("leaf", NVLINK_DOMAIN):
        return [[tuple(leaf) for leaf in leaves]] if leaves else []
    if scope == "cluster":
        # The nodes of a leaf come one after the other: the first counts stay within it.
        return [[tuple(leaf[:count])] for leaf in leaves for count in counts(len(leaf))]
    return _side_by_side(map(_pairs, leaves))


def _pairs(leaf: Sequence[Member]) -> list[list[Team]]:
    by_host = {one.host: one for one in leaf}
    rounds: list[list[Team]] = []
    met: set[str] = set()
    for pairs in paired(list(by_host), 1):
        # In a second round only hosts without a partner in the first.
        wanted = [pair for pair in pairs if not met.issuperset(pair)]
        rounds.append([(by_host[one], by_host[other]) for one, other in wanted])
        met.update(host for pair in wanted for host in pair)
    return rounds


def _side_by_side(groups: Iterable[Sequence[Sequence[T]]]) -> list[list[T]]:
    """Join the rounds of groups with disjoint hosts, which run at the same time."""
    return [[*chain.from_iterable(of_round)] for of_round in zip_longest(*groups, fillvalue=())]


def counts(nodes: int) -> list[int]:
    """Return all nodes, then 1, 2, 4, 8 ... of them: the requested figure is measured first."""
    return [nodes, *(1 << power for power in range(nodes.bit_length()) if 1 << power < nodes)]


def measures(
    settings: Settings, model: Sequence[tuple[str, int, str]], algorithms: Mapping[str, str] = PAIR_ALGORITHM
) -> list[Measure]:
    """Return the measurements of a scope. model: collective, bytes and name of each message of the user's model.

    algorithms: of pairs, by collective.
    """
    least, most = settings.sizes
    if settings.scope == "rail":
        return [Measure(RAIL_COLLECTIVE, least, most, rail=rail) for rail in settings.rails]
    found = []
    for collective in settings.collectives:
        smallest = least
        while collective == "all_reduce" and smallest % STEP_FACTOR == 0 and smallest // STEP_FACTOR >= SMALLEST:
            smallest //= STEP_FACTOR
        algorithm = algorithms.get(collective, "") if settings.scope == "pair" else ""
        found.append(Measure(collective, smallest, most, algorithm))
    if settings.scope in ("leaf", NVLINK_DOMAIN, "cluster"):
        sizes = {(test.collective, test.max_bytes) for test in found}
        for collective, size, what in model:
            if (collective, size) not in sizes:
                sizes.add((collective, size))
                found.append(Measure(collective, size, size, what=what, all_nodes=True))
    return found


def _jobs(
    settings: Settings, leaves: Sequence[Sequence[Member]], wanted_of: Wanted, expected: Judge, several: bool
) -> tuple[list[list[Job]], dict[str, dict[int, str]]]:
    """Return rounds of jobs, and host -> rail -> why it cannot be measured.

    several: there are other kinds of hosts beside these.
    """
    rounds: list[list[Job]] = []
    missing: dict[str, dict[int, str]] = {}
    most = sum(map(len, leaves))
    for round_of in teams(settings.scope, leaves):
        # Teams of other sizes have other messages: a message is whole shares of its ranks.
        for wanted in zip_longest(*(wanted_of(settings, len(team)) for team in round_of)):
            jobs = []
            for team, measure in zip(round_of, wanted, strict=True):
                if measure is None:
                    continue
                part = settings.scope == "cluster" and len(team) < most
                if part and (measure.all_nodes or measure.collective not in SCALED):
                    continue
                asked = replace(measure, min_bytes=measure.max_bytes) if part else measure
                why, environment = _rail_of(team, measure.rail)
                if measure.queue_pairs:
                    environment[QUEUE_PAIRS] = str(measure.queue_pairs)
                if why:
                    for one in team:
                        missing.setdefault(one.host, {})[measure.rail] = why
                    continue
                jobs.append(
                    job_of(
                        *(team, asked, expected(settings, asked, len(team))),
                        name=" ".join(_words(settings, team, asked, several)),
                        scope=settings.scope,
                        environment={**settings.environment, **environment},
                        scaling=part,
                    )
                )
            if jobs:
                rounds.append(jobs)
    return rounds, missing


def _rail_of(team: Team, rail: int) -> tuple[str, dict[str, str]]:
    """Return why a rail of both hosts cannot be tested, and the variables that restrict NCCL to it and its GPU."""
    if rail < 0:
        return "", {}
    there = [one.rails.get(rail) for one in team]
    absent = [one.host for one, found in zip(team, there, strict=True) if found is None]
    if absent:
        return f"not tested: {absent[0]} has no such rail", {}
    known = sorted({found for found in there if found is not None})
    if len(known) > 1:
        said = " and ".join(f"{device} beside GPU {gpu}" for device, gpu in known)
        return f"not tested: it is {said} on {team[0].host} and {team[1].host}", {}
    device, gpu = known[0]
    return "", {"NCCL_IB_HCA": f"={device}", "CUDA_VISIBLE_DEVICES": str(gpu)}


def job_of(team: Team, test: Measure, wanted: Expected, **more: Any) -> Job:
    """Return the job of a team. more: its name, scope, environment, and what else is not the default."""
    settings = team[0].settings
    return Job(
        kind=settings.kind,
        hosts=tuple(one.host for one in team),
        names=tuple(one.name for one in team),
        addresses=tuple(one.address for one in team),
        per_node=1 if test.rail >= 0 else settings.gpus,
        collective=test.collective,
        min_bytes=test.min_bytes,
        max_bytes=test.max_bytes,
        algorithm=test.algorithm,
        what=test.what,
        queue_pairs=test.queue_pairs,
        used_queue_pairs=test.used_queue_pairs,
        # One GPU of a node to one of the next uses one rail, however many others are idle.
        rails=1 if test.collective == RAIL_COLLECTIVE or more["scope"] == NVLINK_DOMAIN else len(settings.rails),
        **wanted.__dict__,
        **more,
    )


def _words(settings: Settings, team: Team, test: Measure, several: bool) -> Iterator[str]:
    """Yield the words of a job's name, which is the same in every run over the same hosts."""
    yield settings.scope
    yield from [test.collective, size_text(test.max_bytes)]
    if test.algorithm:
        yield test.algorithm
    if test.rail >= 0:
        yield f"rail {test.rail}"
    if test.queue_pairs:
        yield test.what
    if settings.scope in ("pair", "rail"):
        yield "+".join(one.host for one in team)
    else:
        if settings.scope == "leaf" and team[0].leaf:
            yield f"on {team[0].leaf}"
        if settings.scope == NVLINK_DOMAIN:
            yield f"in {_brief(team[0].domain)}"
        yield "%d nodes" % len(team) if len(team) != 1 else "1 node"
        if several:
            yield f"of {settings.kind}, from {team[0].host}"


def _brief(domain: str) -> str:
    """Return ``1f2e3d4c.32766``: other racks repeat a clique's number, but hardly the begin of a UUID."""
    uuid, _dot, clique = domain.partition(".")
    return f"{uuid[:8]}.{clique}"
