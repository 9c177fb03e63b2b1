# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The nightly check compares what all hosts hear of their leaves, with the plan that the inventory names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import store, tree
from lab.machines import hgx_h200_roce
from tests.site.conftest import Play

NODES = ("node02", "node03", "node04")
RAILS = 8


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    directory = tmp_path / "lab"
    store.create(directory, dict.fromkeys(NODES, hgx_h200_roce))
    return directory


def test_swapped_cables_of_two_hosts_are_one_row_with_their_line_of_the_plan(lab: Path, play: Play) -> None:
    machines = {node: store.healthy(lab, node) for node in NODES}
    ports = [(node, netdev) for node in NODES[:2] for netdev in machines[node].netdevs if netdev.switch]
    rows = [f"{node},{netdev.name},{netdev.switch[0].name},{netdev.switch[0].port},\n" for node, netdev in ports]
    plan = lab / "plan.csv"
    plan.write_text("a_node,a_port,z_node,z_port,rail\n" + "".join(rows))
    one, other = ports[2][1], ports[RAILS + 5][1]
    one.switch, other.switch = other.switch, one.switch
    for node in NODES[:2]:
        tree.write_hardware(machines[node], lab / node / "hw")
    nightly = ("-i", lab / "inventory", "--check", "--tags", "lldp", "-e", f"busbar_fabric_plan={plan}")
    found = play(*nightly, playbook="playbooks/drift.yml")
    words = " ".join(found.verdict.split())
    assert (found.rc == 0, "1 of 3 hosts ok" in words) == (False, True)
    assert (words.count("lldp.swapped"), words.count("lldp.leaf"), "(plan, line 4)" in words) == (1, 0, True)
