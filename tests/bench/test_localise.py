# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a search for slow nodes finds and costs, over clusters that are simulated. Printed, never asserted.

    make localise                                                                       1,000 searches of each kind
    BUSBAR_BENCH_SEARCHES=100 BUSBAR_BENCH_NODES=8,512 pytest -s tests/bench/test_localise.py

Beside it, by the same model: two passes as cluster-health-scanner has them (pairs within a rack, each failure again
with a node that passed, whose second failure decides), and rounds of all pairs and of halving by their formulas. A
search that has to name the bar (as many faults as nodes) may accuse no node. The model: tests/localising.py.
"""

from __future__ import annotations

import os
import random
import time

from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import PAIR, Test

from tests.bench.conftest import Show
from tests.localising import HEALTHY, SHARE, UPLINK, Cluster, Fault, accused, any_faults, searched, wanted

NODES = [int(word) for word in os.environ.get("BUSBAR_BENCH_NODES", "8,9,16,32,64,65,512,513,1024,1025").split(",")]
SEARCHES = int(os.environ.get("BUSBAR_BENCH_SEARCHES", "20"))
FAULTS = (0, 1, 3, 8)
HEAD = "%6s %6s | %6s %6s %6s | %11s %11s | %11s | %9s %9s %9s | %6s %7s | %6s"


def two_passes(cluster: Cluster) -> tuple[int, int, int]:
    """Rounds that they need where each node runs one test at a time, false accusations, and misses of slow nodes."""
    slow = {fault.where for fault in cluster.faults if fault.kind != UPLINK}
    leaves: dict[str, list[str]] = {}
    for host in (node.host for node in cluster.members()):
        leaves.setdefault(cluster.leaf[host], []).append(host)
    good: list[str] = []
    failed: list[str] = []
    for hosts in leaves.values():
        pairs = list(zip(hosts[::2], hosts[1::2], strict=False))
        # The odd node joins one that is busy.
        pairs += [(hosts[-1], hosts[0])] if len(hosts) % 2 and len(hosts) > 1 else []
        for pair in pairs:
            fast = _fast(cluster, pair)
            (good if fast else failed).extend(pair)
    suspects = [host for host in dict.fromkeys(failed) if host not in set(good)]
    partners = list(dict.fromkeys(good))
    if not partners:
        return 1, 0, len(slow)
    condemned = {
        host for turn, host in enumerate(suspects) if not _fast(cluster, (host, partners[turn % len(partners)]))
    }
    rounds = 1 + -(-len(suspects) // len(partners))
    return rounds, len(condemned - slow), len(slow - condemned)


def _fast(cluster: Cluster, pair: tuple[str, str]) -> bool:
    figure = cluster.answer(Test(PAIR, pair, 1)).figure
    return figure is not None and figure >= HEALTHY * SHARE


def test_searches(show: Show) -> None:
    show(f"\nsimulated: {SEARCHES} searches a line; noise 1.5 %, 0.2 % of figures spoiled by 15 to 50 %, a fault: 0.6")
    show("of pairs: rounds and tests until every node is named good or slow; all: with rails, leaves, uplinks, cluster")
    groups = ("nodes", "faults", "missed", "wrong", "bar", "pairs: p50", "p99 rounds", "tests p50", "all: p50", "p99")
    show(HEAD % (*groups, "tests p50", "CHS", "wrong", "ms"))
    for nodes in NODES:
        for count in FAULTS:
            show(line(nodes, count))
        show(f"{'':>15} all pairs {nodes - 1 + nodes % 2} rounds, halving {(nodes - 1).bit_length() + 1}")


def line(nodes: int, count: int) -> str:
    missed = wrong = bar = theirs = 0
    rounds: list[int] = []
    tests: list[int] = []
    all_rounds: list[int] = []
    all_tests: list[int] = []
    their_rounds: list[int] = []
    spent = 0.0
    for number in range(SEARCHES):
        seed = (nodes * 10 + count) * 100_000 + number
        plain = Cluster(nodes)
        faults: list[Fault] = any_faults(plain, count, random.Random(seed))
        cluster = Cluster(nodes, faults, seed)
        begun = time.process_time()
        search = searched(cluster)
        found, want = accused(search), wanted(cluster)
        spent += time.process_time() - begun
        if any(check == "localise.bar" for _host, check in found):
            bar += 1
            wrong += len({each for each in found if each[1] != "localise.bar"})
        else:
            missed += len(want - found)
            wrong += len(found - want)
        rounds.append(search.rounds.get(PAIR, 0))
        tests.append(search.tests.get(PAIR, 0))
        all_rounds.append(sum(search.rounds.values()))
        all_tests.append(sum(search.tests.values()))
        passes, false, _missed = two_passes(Cluster(nodes, faults, seed + 1))
        their_rounds.append(passes)
        theirs += false
    return HEAD % (
        *(nodes, count, missed, wrong, bar, of(rounds, 50), of(rounds, 99), of(tests, 50)),
        *(of(all_rounds, 50), of(all_rounds, 99), of(all_tests, 50), of(their_rounds, 99), theirs),
        "%.0f" % (1e3 * spent / SEARCHES),
    )


def of(figures: list[int], percent: int) -> int:
    return sorted(figures)[(len(figures) - 1) * percent // 100]
