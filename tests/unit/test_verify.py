# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the verification comes to on one host, over several, and the lines about all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import Session
from ansible_collections.busbar.fabric.plugins.plugin_utils import rail_results, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call, Result
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Site
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.compare import Judged
from ansible_collections.busbar.fabric.plugins.plugin_utils.verification import Proof, Verification, failure

from tests.unit.test_result_schema import NIC, RAIL

SESSION = Session("client", 3, NIC, "mlx5_9", "node02", "10.19.0.2", 400.0)


def finding(check: str, subject: str, because: str | None = None) -> Finding:
    return Finding(check, subject, "drift", "major", "a", "b", "c", "d", fix="e", because=because)


INFO = {"rail_info": {"product": "X", "driver": "Y", "rails": [RAIL], "missing": {}}}


def measured(*findings: Finding, peer: str = "node02", figure: float | None = 390.0) -> dict[str, Any]:
    results = [{"test": "bw", "figure": figure}, {"test": "lat", "figure": 2.1}]
    sessions = [{"session": {**SESSION.__dict__, "peer": peer}, "results": results}]
    done = {"sessions": sessions, "finished_at": 1.0, "simulated": False, "commands": [], "notes": []}
    return {**Plan(findings).result(), "passed": ["perftest.latency[live]@rail 3 to node02"], **done}


def proof(*tested: Result, **more: Any) -> Proof:
    """All parts of node01, which tests its rail 3 with node02."""
    given = {"compared": (), "untested": (), "planned": (SESSION,), "ping": {}, "failures": {}, **more}
    return Proof(tested=tested, **given)


def joined(of_host: Proof, **registered: Any) -> list[Finding]:
    return of_host.findings("node01", {"rail_info_result": INFO, **registered})


def test_a_planned_test_without_a_result_is_unknown_and_several_are_one_cause() -> None:
    other = Session("server", 3, NIC, "mlx5_9", "node02", "", 400.0)
    found = joined(proof(planned=(SESSION, other)))
    unknown = [("perftest.bandwidth", "unknown", None), ("perftest.served", "unknown", found[0].id)]
    assert [(one.check, one.state, one.because) for one in found] == unknown


LOST = replace(finding("perftest.latency", "rail 3 to node02"), state="unknown")
MOVED = finding("counters.loss", "rail 3 to node02")
SLOW = finding("perftest.bandwidth", "rail 3 to node02")


def test_what_all_parts_found_is_joined() -> None:
    mtu = finding("consistency.mtu", "rails")
    found = proof(measured(SLOW), compared=[Judged(replace(mtu, state="ok", fix=""))]).result("node01", {})
    assert [one["id"] for one in found["findings"]] == [SLOW.id]
    assert found["passed"] == [mtu.id, "perftest.latency[live]@rail 3 to node02"]


@pytest.mark.parametrize(
    ("of_partner", "reason"),
    [
        ([{"unreachable": True, "msg": "no route"}], "node02: unreachable"),
        ([measured(), {"failed": True, "msg": "Timed out\nafter 30"}], "node02: Timed out after 30"),
        ([measured()], ""),
    ],
)
def test_what_is_lost_with_a_partner_that_broke_off_follows_from_that(of_partner: list[Result], reason: str) -> None:
    """A figure that was measured stands by itself, and what the partner left behind accuses nobody."""
    found = joined(proof(measured(SLOW, MOVED, LOST), failures={"node02": failure(of_partner)}))
    roots = {one.check: (one.state, one.have) for one in found if one.because is None}
    assert roots.pop("perftest.bandwidth")[0] == "drift"
    if reason:
        assert roots == {"perftest.pair": ("unknown", reason)}
    else:
        assert set(roots) == {"counters.loss", "perftest.latency"}


def test_a_partner_that_broke_off_later_takes_nothing_from_what_was_measured() -> None:
    assert joined(proof(measured(SLOW, MOVED), failures={"node02": "unreachable"})) == [SLOW, MOVED]


def test_in_check_mode_a_result_with_another_partner_counts() -> None:
    assert joined(proof(measured(peer="node09"), check_mode=True)) == []
    assert joined(proof(measured(peer="node09"))) != []


def test_a_result_that_is_not_valid_is_named() -> None:
    said = result_schema.SAID + "sessions is 12"
    [lost, one] = joined(proof({"failed": True, "msg": said}, failures={"node01": said}))
    assert (lost.check, one.check, one.state, one.have) == ("perftest.bandwidth", "perftest.pair", "unknown", said)


LOST_HERE = finding("counters.loss", "rail 3 from node02")
LOST_THERE = finding("counters.loss", "rail 4 from node02")
PATH = finding("rail_ping.path", "rail 3 to node02", because=f"netdev_mtu.live[live]@{NIC}")


@pytest.mark.parametrize(
    ("check", "state", "explains"),
    [
        ("roce_qos.pfc", "drift", True),
        ("lldp.pfc", "drift", True),
        ("lldp.mtu", "drift", True),
        ("lldp.pfc", "unknown", False),
        ("lldp.neighbour", "drift", False),
        ("node_health.aer", "drift", True),
        ("node_health.port_symbol_errors", "drift", True),
        ("node_health.port_counters", "unknown", False),
    ],
)
def test_a_slow_rail_follows_from_what_is_found_on_its_nic_switch_or_port(
    check: str, state: str, explains: bool
) -> None:
    cause = replace(finding(check, f"{NIC} mlx5_9 eth3"), state=state)
    registered = {f"{check.partition('.')[0]}_result": {"findings": [cause.to_dict()]}}
    found = joined(proof(measured(SLOW, LOST_HERE, LOST_THERE)), **registered)
    because = cause.id if explains else None
    assert [one.because for one in found] == [because, because, None]


@pytest.mark.parametrize(("check", "found"), [("consistency.qos", LOST_HERE), ("consistency.mtu", PATH)])
def test_else_from_what_the_comparison_of_all_hosts_found(check: str, found: Finding) -> None:
    """A cause that no role has found is none."""
    odd = finding(check, "rails")
    assert joined(proof(measured(found), compared=[Judged(odd, (3,))]))[1].because == odd.id


# -- several hosts -----------------------------------------------------------------------------------------------------

VALUES = {
    "busbar_fabric": "roce",
    "busbar_roce": {"dscp": 26},
    "busbar_mtu": 9000,
    **dict.fromkeys(("busbar_hardware_root", "busbar_system_root"), "/"),
    "busbar_baseline_max_age_days": 30,
    "perftest_rounds": 1,
    "perftest_timeout": 60,
    **dict.fromkeys(("perftest_seconds", "perftest_share", "perftest_latency", "perftest_memory")),
}


class Network:
    """Nodes that respond as they should, or with what is given. calls: all that they were asked."""

    def __init__(self, **results: Mapping[str, Result]) -> None:
        """results: module, or "pings" -> host -> its result."""
        self.results = results
        self.calls: list[list[Call]] = []

    def __call__(self, calls: Sequence[Call]) -> list[Result]:
        self.calls.append([*calls])
        kinds = ["pings" if "pings" in call.arguments else call.module for call in calls]
        given = [self.results.get(kind, {}).get(call.host) for kind, call in zip(kinds, calls, strict=True)]
        return [one or self.usual(call) for one, call in zip(given, calls, strict=True)]

    def usual(self, call: Call) -> Result:
        if call.module == "topology_info":
            rails = [{**RAIL, "address": f"10.19.0.{int(call.host[4:])}"}]
            return {**Plan().result(), "rail_info": {**INFO["rail_info"], "rails": rails}, "busy": []}
        sessions = [{"session": one, "results": []} for one in call.arguments.get("sessions", ())]
        return {**measured(), "passed": [], "sessions": sessions}

    def verify(
        self, count: int, there: int | None = None, check_mode: bool = False
    ) -> dict[str, list[tuple[str, str]]]:
        """Return host -> check and reason of its root findings. there: how many of the hosts are still in the play."""
        hosts = [f"node{number:02d}" for number in range(1, count + 1)]
        intent = {"profile": {}, "profile_name": "hgx-h200", "values": VALUES}
        variables = {host: {"ansible_host": host, "busbar_intent": intent} for host in hosts}
        results = Verification(Site(variables, set(hosts[:there]), self, print), check_mode).run()
        return {
            host: [
                (one["check"], one["have"])
                for one in result["findings"]
                if one["because"] is None and not one["check"].startswith("consistency.")
            ]
            for host, result in results.items()
        }


def test_every_host_sends_once_and_receives_once_in_the_background() -> None:
    network = Network()
    assert network.verify(4) == {f"node0{number}": [] for number in range(1, 5)}
    [_rails, _pings, *passes] = network.calls
    assert [sorted(one.host for one in each) for each in passes] == [[f"node0{number}" for number in range(1, 5)]] * 2
    assert {one.seconds for each in passes for one in each} == {120}
    roles = [{one.host: one.arguments["sessions"][0]["role"] for one in each} for each in passes]
    assert all({first, roles[1][host]} == {"client", "server"} for host, first in roles[0].items())


def test_check_mode_starts_no_test_and_judges_those_of_all_passes() -> None:
    network = Network()
    network.verify(2, check_mode=True)
    [calls] = network.calls[2:]
    started = {one.host: (one.seconds, len(one.arguments["sessions"])) for one in calls}
    assert started == {"node01": (0, 2), "node02": (0, 2)}


def test_a_host_that_is_lost_or_in_use_costs_no_other_its_proof() -> None:
    unreachable = {"unreachable": True, "msg": "no route"}
    busy = {**Network().usual(Call("node02", "topology_info", {})), "busy": ["pid 7"]}
    network = Network(
        topology_info={"node01": unreachable, "node02": busy},
        pings={"node03": unreachable, "node05": {"failed": True, "msg": "Timed out"}},
        perftest={"node04": unreachable},
    )
    assert network.verify(8, there=7) == {
        "node01": [("perftest.pair", "unreachable")],
        "node02": [("perftest.pair", "busy: pid 7")],
        "node03": [("perftest.pair", "unreachable")],
        "node04": [("perftest.bandwidth", "the test gave no result on this host: unreachable")],
        "node05": [("perftest.pair", "Timed out")],
        "node06": [],
        "node07": [],
        "node08": [("perftest.pair", "nothing was read of its rails")],
    }


# -- the lines and the file --------------------------------------------------------------------------------------------


def results(**more: Any) -> dict[str, Any]:
    done = {"stored": False, **more}
    return {"node01": {**measured(), **done}, "node03": {**measured(figure=100.0), **done}}


def test_each_rail_has_a_line_with_its_worst_direction() -> None:
    text = rail_results.render(results())
    assert text.splitlines() == [
        "RAIL TESTS",
        "rail 3: 2 of 2 directions measured; 100 Gb/s at worst (node03 to node02), median 245;"
        " 2.1 us at worst (node03 to node02), median 2.1",
    ]


def test_simulated_and_stored_figures_say_so() -> None:
    head = rail_results.render(results(simulated=True, stored=True)).splitlines()[0]
    assert head == "RAIL TESTS (simulated: no figure in it is a measurement), stored results"


def test_what_was_not_measured_is_counted() -> None:
    assert "rail 3: 0 of 1 directions measured" in rail_results.render(
        {"n1": {**measured(figure=None), "stored": False}}
    )


def test_the_file_is_whole_and_latest_leads_to_it(tmp_path: Path) -> None:
    for _run in range(2):
        path = rail_results.write(tmp_path / "results", results())
        assert (tmp_path / "results" / "latest.json").resolve() == path
        assert set(json.loads(path.read_text())["hosts"]) == {"node01", "node03"}
    assert len([one for one in (tmp_path / "results").iterdir() if not one.is_symlink()]) == 2
