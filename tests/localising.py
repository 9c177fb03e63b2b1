"""A model of a cluster with faults, which answers the tests that the search for slow nodes asks for. Simulated.

Noise as published or assumed: figures vary by 1.5 % (standard deviation), 0.2 % of them are spoiled by 15 to 50 %, a
fault leaves 0.6. Leaves of 32 nodes, eight rails. Written for localise_search.py; shares no rule with it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    GPUS,
    RAILS,
    Bar,
    Node,
    Result,
    Test,
    Way,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation

HEALTHY, RAIL, LEFT, SHARE = 384.0, 48.0, 0.6, 0.90
CV, SPOILED, GPUS_OF_NODE, RAILS_OF_NODE, LEAF_SIZE = 0.015, 0.002, tuple(range(8)), tuple(range(8)), 32
ALONE = 480.0
# Of a node; an uplink is of a leaf.
KINDS = ("slow node", "slow rail", "bad cable", "sends slowly", "receives slowly", "slow rank")
# A slow rank whose node is slow alone, too: its GPU. Else what is between GPU and NICs.
SLOW_GPU = "slow gpu"
UPLINK = "slow uplink"


@dataclass(frozen=True)
class Fault:
    """where: host, or leaf for UPLINK.   number: of the rail or GPU."""

    kind: str
    where: str
    number: int = 0


@dataclass
class Cluster:
    """silent: share of tests that crash.   lost: host -> round in which it dies."""

    nodes: int
    faults: Sequence[Fault] = ()
    seed: int = 0
    leaf_size: int = LEAF_SIZE
    noise: bool = True
    silent: float = 0.0
    lost: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.hosts = ["n%04d" % number for number in range(self.nodes)]
        # The last leaf has the rest: of a leaf with one node nobody can tell the node from its uplink.
        last = max(1, self.nodes // self.leaf_size) - 1
        self.leaf = {host: "leaf%02d" % min(number // self.leaf_size, last) for number, host in enumerate(self.hosts)}
        self.of_host = {fault.where: fault for fault in self.faults if fault.kind != UPLINK}
        self.uplinks = {fault.where for fault in self.faults if fault.kind == UPLINK}

    def members(self) -> list[Node]:
        """In any order, as an inventory may have them."""
        slow = {fault.where for fault in self.faults if fault.kind == SLOW_GPU}
        found = [
            Node(host, self.leaf[host], RAILS_OF_NODE, ALONE * (LEFT if host in slow else 1.0), 440.0, GPUS_OF_NODE)
            for host in self.hosts
        ]
        self.random.shuffle(found)
        return found

    @staticmethod
    def bar(test: Test) -> Bar:
        whole = {RAILS: RAIL, GPUS: ALONE}.get(test.kind, HEALTHY)
        return Bar(whole * SHARE, "simulated")

    def measured(self, healthy: float, share: float) -> float:
        if not self.noise:
            return healthy * share
        draw = self.random.random
        spoiled = 1 - (0.15 + 0.35 * draw()) if draw() < SPOILED else 1.0
        return healthy * share * spoiled * self.random.gauss(1, CV)

    def answer(self, test: Test) -> Result:
        lost = {host: "not reached" for host in test.hosts if self.lost.get(host, test.number + 1) <= test.number}
        if lost or (self.silent and self.random.random() < self.silent):
            return Result(test, said="it crashed", lost=lost)
        if test.kind == RAILS:
            return Result(test, ways=tuple(self._ways(test)))
        if test.kind == GPUS:
            return Result(test, pairs={pair: self._of_gpus(test.hosts[0], pair) for pair in test.pairs})
        crosses = self.uplinks and len({self.leaf[host] for host in test.hosts}) > 1
        slow = [self.of_host[host] for host in test.hosts if host in self.of_host]
        uplink = crosses and any(self.leaf[host] in self.uplinks for host in test.hosts)
        return Result(test, self.measured(HEALTHY, LEFT if slow or uplink else 1.0))

    def _of_gpus(self, host: str, pair: tuple[int, int]) -> float:
        fault = self.of_host.get(host)
        slow = fault is not None and fault.kind in ("slow rank", SLOW_GPU) and fault.number in pair
        return self.measured(ALONE, LEFT if slow else 1.0)

    def _ways(self, test: Test) -> list[Way]:
        found = []
        for rail in test.rails:
            for both in (False, True):
                for source, target in (test.hosts, test.hosts[::-1]):
                    slow = self._slow(source, rail, True) or self._slow(target, rail, False)
                    found.append(Way(rail, source, self.measured(RAIL, LEFT if slow else 1.0), both))
        return found

    def _slow(self, host: str, rail: int, sends: bool) -> bool:
        fault = self.of_host.get(host)
        if fault is None or fault.kind in ("slow rank", SLOW_GPU):
            return False
        if fault.kind == "slow node":
            return True
        ways = {"sends slowly": (True,), "receives slowly": (False,)}.get(fault.kind, (True, False))
        return fault.number == rail and sends in ways


def any_faults(cluster: Cluster, count: int, dice: random.Random, uplinks: bool = True) -> list[Fault]:
    """Of all kinds, each on a node of its own; at most one in five is an uplink's, of at most one leaf in three."""
    leaves = sorted(set(cluster.leaf.values()))
    many = sum(dice.random() < 0.2 for _each in range(count)) if uplinks else 0
    slow_leaves = dice.sample(leaves, min(many, len(leaves) // 3 if len(leaves) > 1 else 0))
    hosts = dice.sample(cluster.hosts, count - len(slow_leaves))
    of_nodes = [Fault(dice.choice(KINDS), host, dice.choice(GPUS_OF_NODE)) for host in hosts]
    return [*of_nodes, *(Fault(UPLINK, leaf) for leaf in slow_leaves)]


def searched(cluster: Cluster) -> Localisation:
    """The search, played to its end."""
    search = Localisation(cluster.members(), cluster.bar)
    while tests := search.next_round():
        search.take([cluster.answer(test) for test in tests])
    return search


def said(search: Localisation) -> dict[str, list[Finding]]:
    return localise_judge.findings(localise_judge.verdicts(search))


def wanted(cluster: Cluster) -> set[tuple[str, str]]:
    """Root findings that the faults have to give: host or leaf, and check with its subject."""
    found = set()
    for fault in cluster.faults:
        if fault.kind == UPLINK:
            found.add((fault.where, "localise.uplink"))
        elif fault.kind == "slow node":
            found.add((fault.where, "localise.node"))
        elif fault.kind in ("slow rank", SLOW_GPU):
            found.add((fault.where, f"localise.rank gpu {fault.number}"))
        else:
            found.add((fault.where, f"localise.rail rail {fault.number}"))
    return found


def accused(search: Localisation) -> set[tuple[str, str]]:
    """The same, as they were found: states other than drift accuse nobody."""
    found = set()
    for verdict in localise_judge.verdicts(search):
        one = verdict.finding
        if one.state == "drift" and one.because is None:
            shared = one.subject.startswith("leaf ")
            where = one.subject.removeprefix("leaf ") if shared else verdict.hosts[0]
            name = one.check if one.subject in ("host", "cluster", "bar") or shared else f"{one.check} {one.subject}"
            found.add((where, name))
    return found
