# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a search for slow nodes finds and costs, over clusters that are simulated. Printed, never asserted.

make localise                                                                    1,000 searches of each kind
BUSBAR_BENCH_SEARCHES=100 BUSBAR_BENCH_NODES=64 pytest -s tests/bench/test_localise.py
"""

from __future__ import annotations

import os
import random

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import PAIR
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation

from tests.bench.conftest import Show
from tests.localising import Cluster, accused, any_faults, wanted

NODES = [int(word) for word in os.environ.get("BUSBAR_BENCH_NODES", "8,9,64,65,232,512,1024").split(",")]
SEARCHES = int(os.environ.get("BUSBAR_BENCH_SEARCHES", "20"))
FAULTS = (0, 1, 3, 5, 8)
LINE = "%6s %6s | %6s %6s %6s | %11s %6s %6s %10s | %11s %6s %6s %10s"


def test_searches(show: Show) -> None:
    show(f"\nsimulated: {SEARCHES} searches a line; noise 1.5 %, 0.2 % of figures spoiled by 15 to 50 %, a fault: 0.6")
    show("pairs: until every node is named good or slow; all: with rails, GPUs, leaves, uplinks and the cluster")
    costs = ("p50", "p99", "tests", "node-tests")
    show(LINE % ("nodes", "faults", "missed", "wrong", "bar", "pairs: " + costs[0], *costs[1:], "all: p50", *costs[1:]))
    for nodes in NODES:
        for count in FAULTS:
            if count < nodes:
                show(line(nodes, count))


def line(nodes: int, count: int) -> str:
    missed = wrong = bar = 0
    # Of pairs and of all: of each search rounds, tests, and nodes of all tests.
    costs: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    for number in range(SEARCHES):
        seed = (nodes * 10 + count) * 100_000 + number
        cluster = Cluster(nodes, any_faults(Cluster(nodes), count, random.Random(seed)), seed)
        search = Localisation(cluster.members(), cluster.bar)
        played = []
        while tests := search.next_round():
            played.append(tests)
            search.take([cluster.answer(test) for test in tests])
        found, want = accused(search), wanted(cluster)
        if any(check == "localise.bar" for _host, check in found):
            bar += 1
            wrong += len({each for each in found if each[1] != "localise.bar"})
        else:
            missed += len(want - found)
            wrong += len(found - want)
        for pairs, of_kind in costs.items():
            rounds = [[test for test in tests if not pairs or test.kind == PAIR] for tests in played]
            rounds = [tests for tests in rounds if tests]
            hosts = sum(len(test.hosts) for tests in rounds for test in tests)
            of_kind.append((len(rounds), sum(map(len, rounds)), hosts))
    cells = []
    for of_kind in costs.values():
        rounds_of, tests_of, hosts_of = (sorted(column) for column in zip(*of_kind, strict=True))
        half, most = (SEARCHES - 1) * 50 // 100, (SEARCHES - 1) * 99 // 100
        cells += [rounds_of[half], rounds_of[most], tests_of[half], hosts_of[half]]
    return LINE % (nodes, count, missed, wrong, bar, *cells)
