# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a sweep of 512 hosts x 8 rails costs: by the real tools over two simulated planes, read, sent and judged.

Simulated questions are answered at once: what a real fabric adds is waiting, not processor time.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import to_dict
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import judge as fabric_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import read_sweep as from_dict

from tests import debian
from tests.fabric.description import names, rail_optimised
from tests.fabric.planes import PROGRAMS, Machine, Plane
from tests.fabric.site import inventory, plan_text, read, seen_from

HOSTS = int(os.environ.get("BUSBAR_BENCH_FABRIC_HOSTS", "512"))
LEAF = 32


def spent() -> tuple[float, float]:
    """Processor seconds of this process, and of the tools that it has started and that have ended."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def test_a_fabric_of_512_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking
    hosts = names(HOSTS)
    leaves = max(HOSTS // LEAF, 1)
    fabrics = [
        rail_optimised(name, number, hosts, rails, leaves_per_rail=leaves, spines=LEAF, radix=2 * LEAF)
        for number, (name, rails) in enumerate((("red", range(4)), ("blue", range(4, 8))), 1)
    ]
    limits = ("-N", "8192", "-S", "512", "-P", "65536")
    planes = [Plane(fabric, tmp_path / fabric.name, limits=limits) for fabric in fabrics]
    try:
        for plane in planes:
            plane.manage(plane.eye, priority=3)
            plane.settle()
            plane.manage(plane.fabric.hca(hosts[1], min(rail for _, rail in plane.fabric.rails)))
            plane.settle_managers()
        machine = Machine(hosts[0], planes, tmp_path / hosts[0])
        before = seen_from(hosts[0], read(machine.top).sweeps)
        own, tools = spent()
        began = time.monotonic()
        sweeps = read(machine.top).sweeps
        wall = time.monotonic() - began
        reading, tools = spent()[0] - own, spent()[1] - tools
        assert all(sweep.complete for sweep in sweeps), [sweep.problems for sweep in sweeps]
    finally:
        for plane in planes:
            plane.stop()
    texts = [json.dumps(to_dict(sweep), separators=(",", ":")) for sweep in sweeps]
    own, _ = spent()
    received = seen_from(hosts[0], [from_dict(json.loads(text)) for text in texts])
    gate = spent()[0] - own
    asked = Evidence(received, before, cabling_plan.read(plan_text(fabrics), "site.csv"), inventory(fabrics))
    own, _ = spent()
    findings = fabric_judge.judge(asked)
    judging = spent()[0] - own
    assert [str(finding) for _, finding in findings if not finding.ok] == []
    nodes = sum(len(sweep.nodes) for sweep in sweeps)
    cables = sum(len(fabric.cables) for fabric in fabrics) // 2
    with capsys.disabled():
        print(
            f"\n{HOSTS} hosts x 8 rails, two planes: {nodes} nodes, {cables} cables, {len(texts[0] + texts[1])} bytes"
        )
        print(
            f"the real tools          {tools:6.2f} s CPU, with all else that the sweep took: {wall:.1f} s on the clock"
        )
        print(f"reading what they say   {reading:6.2f} s CPU")
        print(f"typing it at the gate   {gate:6.2f} s CPU")
        print(f"judging, with a plan    {judging:6.2f} s CPU")
        print(f"swept and judged        {tools + reading + gate + judging:6.2f} s CPU")
