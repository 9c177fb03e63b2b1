# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The comparison over hosts joined with what each has registered, the plan and the switches' own table."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as ports
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.neighbour import LldpState
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import LldpIntent
from ansible_collections.busbar.fabric.plugins.plugin_utils import verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import lldp
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

from tests.unit.test_lldp import port, switch

HOSTS, RAILS = 4, 4
Results = dict[str, dict[str, Any]]


def heard(swapped: bool = False) -> Results:
    """What the role registers on four hosts. swapped: rails 0 and 1 of the first host."""
    results: Results = {}
    for host in range(HOSTS):
        own = [port(rail)._replace(mtu=9000, mac=f"b8:ce:f6:00:00:0{rail}") for rail in range(RAILS)]
        said = []
        for rail in range(RAILS):
            leaf = {0: 1, 1: 0}.get(rail, rail) if swapped and host == 0 else rail
            there = {"chassis": f"44:38:39:00:00:0{leaf}", "port": f"swp{host}", "name": f"leaf-{leaf}"}
            said.append(switch(rail, **there, mfs=None, dcbx={}))
        found, want = LldpState(tuple(said), "lldpcli"), LldpIntent("auto")
        neighbours = [one._asdict() for one in ports.port_neighbours(found, own, want)]
        results[f"node{host}"] = {"lldp": {**ports.plan(found, own, want).result(), "neighbours": neighbours}}
    return results


def joined(results: Results, plan: str = "") -> list[tuple[str, str, str]]:
    """Host, check and subject of what is not ok, as the verdict has it."""
    before = deepcopy(results)
    kept = {host: role_results(of_host) for host, of_host in results.items()}
    lldp.join(kept, dict.fromkeys(results, plan))
    assert results == before, "what Ansible has registered is not ours to change"
    judged = verdict.judge(kept, ["lldp"], partial=False)
    for host in judged.hosts:
        assert {one.because for one in host.findings} <= {None, *(one.id for one in host.findings)}
    return [(host.host, one.check, one.subject) for host in judged.hosts for one in host.findings]


def test_a_swapped_pair_is_one_row_of_the_verdict() -> None:
    assert joined(heard()) == []
    results = heard(swapped=True)
    assert joined(results) == [("node0", "lldp.swapped", "node0 rail 0, node0 rail 1")]
    assert {check for _host, check, _subject in joined(results, "no/such.csv")} == {"lldp.plan"}


def test_the_plan_that_the_inventory_names_decides(tmp_path: Path) -> None:
    rows = [f"node{h},mlx5_{r},leaf-{r},swp{h},{r}\n" for h in range(HOSTS) for r in range(RAILS)]
    path = tmp_path / "plan.csv"
    path.write_text("a_node,a_port,z_node,z_port,rail\n" + "".join(rows))
    assert joined(heard(), str(path)) == []
    path.write_text(path.read_text().replace("node2,mlx5_3,leaf-3,swp2", "node2,mlx5_3,leaf-3,swp9"))
    assert joined(heard(), str(path)) == [("node2", "lldp.leaf", "rail 3")]
    path.write_text("a_node,a_port\nx,y\n")
    found = joined(heard(), str(path))
    assert found == [(f"node{host}", "lldp.plan", str(path)) for host in range(HOSTS)]


@pytest.mark.parametrize(
    "odd",
    [
        *(None, {}, "text", {"failed": True, "msg": "no response"}, {"unreachable": True, "msg": "no route"}),
        {"findings": [], "passed": [], "neighbours": [{"rail": 0}]},
        {"findings": "x", "passed": [], "neighbours": []},
    ],
)
def test_an_answer_that_is_none_costs_its_host_alone(odd: Any) -> None:
    results = heard(swapped=True)
    results["node3"] = {"lldp": odd}
    found = joined(results)
    assert ("node0", "lldp.swapped", "node0 rail 0, node0 rail 1") in found
    assert {host for host, _check, _subject in found} == {"node0", "node3"}
    results["node3"] = {}
    assert {check for host, check, _subject in joined(results) if host == "node3"} == {"run.lldp"}
