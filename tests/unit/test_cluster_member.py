"""What a node keeps of a benchmark with others, and when it counts no more."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member
from ansible_collections.busbar.fabric.plugins.modules import nccl_cluster

DAY = 86400.0
NOW = 1.8e9
GOOD = {"finished": NOW - 2 * DAY, "over": "16 nodes", "state": "ok", "said": ""}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    kernel = tmp_path / "proc/sys/kernel"
    kernel.mkdir(parents=True)
    (kernel / "osrelease").write_text("5.15.0\n")
    return Host(str(tmp_path), str(tmp_path))


def keep(host: Host, measured: dict[str, Any], **options: Any) -> Any:
    given = {"phase": "record", "scope": "cluster", "max_age_days": 30, "measured": measured, **options}
    return nccl_cluster.work(host, given, False)


def judged(host: Host, scope: str = "cluster") -> tuple[str, str]:
    [finding] = cluster_member.judge(host, scope, 30, NOW).findings
    assert finding.ok or f"-e nccl_benchmark_scope={scope}," in finding.fix
    return finding.state, str(finding.have)


def test_what_was_measured_well_stands_until_it_is_old_or_the_node_another(host: Host, tmp_path: Path) -> None:
    assert judged(host) == ("unknown", "never measured")
    keep(host, GOOD)
    assert judged(host) == ("ok", "over 16 nodes")
    path = Path(host.system("/var/lib/busbar/nccl_cluster/cluster.json"))
    assert path.stat().st_mode & 0o777 == 0o600
    # Another scope has nothing about this one.
    assert judged(host, "pair") == ("unknown", "never measured")
    keep(host, {**GOOD, "finished": NOW - 31 * DAY})
    assert judged(host) == ("unknown", "over 16 nodes, 31 days ago")
    keep(host, {**GOOD, "finished": NOW + DAY})
    assert judged(host) == ("unknown", "over 16 nodes, 1 days in the future")
    keep(host, {**GOOD, "state": "drift", "said": "180 GB/s"})
    assert judged(host) == ("drift", "over 16 nodes: 180 GB/s")
    keep(host, GOOD)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0\n")
    assert judged(host) == ("unknown", "over 16 nodes, with kernel 5.15.0, now 6.8.0")


def test_check_mode_keeps_nothing_and_a_node_that_is_measured_alone_is_not_asked(host: Host) -> None:
    given = {"phase": "record", "scope": "cluster", "max_age_days": 30, "measured": GOOD}
    assert nccl_cluster.work(host, given, True)["due"] == "scope cluster: never measured"
    asked = nccl_cluster.work(host, {**given, "scope": "node"}, False)
    assert (asked["findings"], asked["passed"], asked["due"]) == ([], [], "")
    assert not os.path.exists(host.system("/var"))


TEXTS = ("", "{", "[]", '{"format": 1}', "\0", '{"format": 2}')


@pytest.mark.parametrize("broken", [*TEXTS, {"state": "good"}, {"depends": {"a": 1}}, {"finished": "now"}])
def test_what_is_no_record_is_unknown_and_says_where_it_lies(host: Host, broken: Any) -> None:
    keep(host, GOOD)
    path = Path(host.system("/var/lib/busbar/nccl_cluster/cluster.json"))
    path.write_text(broken if isinstance(broken, str) else json.dumps({**json.loads(path.read_text()), **broken}))
    state, have = judged(host)
    assert state == "unknown"
    assert "/var/lib/busbar/nccl_cluster/cluster.json" in have
