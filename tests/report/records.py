# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lies beside the history of a simulated fleet: a search for who is slow, and a log of what was repaired."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import Node, Unfit
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.trials import measured_test
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from tests.localising import SLOW_GPU, UPLINK, Cluster, Fault

# The end of the previous run of tests/report/fleet.py is when it is made; this is before it.
FINISHED = 1_795_220_000.0
KINDS = ("slow rail", "slow rank", "sends slowly", "slow node", SLOW_GPU, "bad cable", "receives slowly")


def faults(cluster: Cluster, count: int) -> list[Fault]:
    """Of each kind, spread over the nodes; the last of eight is a leaf's uplink."""
    step = max(1, cluster.nodes // max(1, count))
    found = [Fault(kind, cluster.hosts[(i * step + 1) % cluster.nodes], 3) for i, kind in enumerate(KINDS)]
    return [*found[: min(count, 7)], *([Fault(UPLINK, "leaf01")] if count > 7 and cluster.nodes > 32 else [])]


def searched(nodes: int, count: int, busy: int = 2, finished: float = FINISHED) -> localise_record.Record:
    """The record of a search over so many simulated nodes, of which some more are busy."""
    plain = Cluster(nodes)
    cluster = Cluster(nodes, faults(plain, count), seed=5)
    out = [
        Node(f"n{nodes + i:04}", "leaf00", unfit=Unfit("busy: a job", "search when it is idle")) for i in range(busy)
    ]
    search = Localisation([*cluster.members(), *out], cluster.bar)
    tests: list[localise_record.MeasuredTest] = []
    while asked := search.next_round():
        results = [cluster.answer(test) for test in asked]
        tests += [measured_test(result, cluster.bar(result.test)) for result in results]
        search.take(results)
    found = localise_judge.verdicts(search)
    said = [localise_record.HostFinding(hosts=one.hosts, finding=one.finding) for one in found]
    members = tuple(sorted(search.nodes.values(), key=lambda node: node.host))
    times: dict[str, Any] = {"begun": finished - 3600, "finished": finished}
    results_of: dict[str, Any] = {"nodes": members, "tests": tuple(tests), "findings": tuple(said)}
    return localise_record.Record(simulated=True, launcher="mpirun", complete=True, **times, **results_of)


def entries(hosts: Sequence[str], at: float = FINISHED) -> list[Entry]:
    """What a log has after three nodes were mended, one was kept out, one was left by a kill, and many were refused."""
    found: list[Entry] = []

    def add(host: str, step: str, check: str = "netdev_mtu.live", **more: Any) -> None:
        action, outcome = step.split()
        name = {"check": check, "subject": "0000:1b:00.0 ens1", "finding": f"{check}[live]@0000:1b:00.0"}
        known = {"run": "run-2", "host": host, "attempt": 1, **(name if check else {}), **more}
        found.append(Entry(at=at + len(found), action=action, outcome=outcome, **known))

    mended, kept, left, refused = hosts[:3], hosts[3], hosts[4], hosts[5:]
    for host in mended:
        for step in ("asked done", "drained begun", "drained done", "role begun", "role done", "verified begun"):
            add(host, step, role="mtu" if step.startswith("role") else "")
        add(host, "verified done", before=231.0 + len(found), after=371.5, why="ok")
        add(host, "resumed begun")
        add(host, "resumed done")
    steps = {"drained begun": "busbar: 7 GPUs", "drained done": "", "role begun": "", "role done": ""}
    steps |= {"verified begun": "", "verified failed": "7 GPUs of 8"}
    steps |= {"left_drained begun": "not mended: 7 GPUs of 8", "left_drained done": ""}
    for step, why in steps.items():
        role = "nvidia_peermem" if step.startswith("role") else ""
        add(kept, step, "platform.gpu_count", why=why, attempt=2, role=role)
    add(left, "drained begun", "roce_qos.pfc", why="busbar: roce_qos.pfc", run="run-1")
    for host in refused:
        add(host, "refused held", "ofed.loaded", why=f"more than busbar_remediate_max_share: {host} has to wait")
    return found


def write(results: Path, record: localise_record.Record) -> None:
    localise_record.write(results, record)
    hosts = [node.host for node in record.nodes]
    action_log.append(results, entries(random.Random(2).sample(hosts, min(len(hosts), 40))))
