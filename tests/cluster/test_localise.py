"""The search for who is slow over four simulated nodes, by the real launchers, as a user starts it.

Rails one by one take half a minute: tests/repair has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record

from lab import cluster_faults, faults, nvidia_smi

from .playing import PROFILE, Run
from .simulated import Simulated


def test_a_healthy_cluster_is_cleared(simulated: Simulated, play: Callable[..., Run]) -> None:
    done = play("localise", "--limit", "node01,node02", nccl_benchmark_launcher="srun")
    assert done.rc == 0, done.out
    record = localise_record.read(done.results)
    assert (record.complete, record.simulated, record.launcher) == (True, True, "srun")
    assert [(one.kind, one.outcome) for one in record.tests] == [("pair", "pass")]
    assert "round 1, pairs: 1 of 1 pass" in done.out


@pytest.mark.long
def test_a_missed_bar_is_searched_for_and_what_slows_the_node_is_the_one_cause(
    simulated: Simulated, play: Callable[..., Run], site: Path
) -> None:
    path = site / "profiles" / f"{PROFILE}.yml"
    profile = yaml.safe_load(path.read_text())
    for rail in profile["rails"]:
        # Nothing tells then which NIC of the node is which rail.
        del rail["pci"]
    path.write_text(yaml.safe_dump(profile))
    # All four answer for their health, one of them that somebody has capped a GPU.
    for node in simulated.nodes:
        (simulated.root(node) / "usr/bin/nvidia-smi").write_text(nvidia_smi.SCRIPT)
    capped = faults.named("gpu-power-cap").change
    simulated.put({"node03": [replace(cluster_faults.named("slow-node"), machine=capped)]})
    done = play("benchmark", nccl_benchmark_scope="pair")
    simulated.put({})
    assert done.rc == 2, done.out
    told = {host: [one[:2] for one in found] for host, found in done.findings.items() if found}
    assert told == {"node03": [("node_health.power_limit", "drift")]}
    record = localise_record.read(done.results)
    [slow] = [one.finding for one in record.findings if one.finding.state == "drift"]
    assert slow.check == "localise.node"
    assert "its rails were not proven one by one; each GPU is fast with another one of the node" in str(slow.have)
    assert "because node_health.power_limit of" in str(slow.have)
    assert {one.outcome for one in record.tests if one.kind == "rails"} == {"silent"}
    assert all("rail 0 of node" in one.said for one in record.tests if one.kind == "rails")
    assert "good: node[01-02,04]" in done.out
    assert "leaves: 1 of 1 pass" in done.out
