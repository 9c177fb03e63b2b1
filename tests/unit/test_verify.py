"""What the proof comes to on one host, and the lines about all."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import verify, verify_report
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import Session

NIC = "0000:1a:00.0"
SESSION = Session("client", 3, NIC, "mlx5_9", "node02", "10.19.0.2", 400.0)
RAIL = {
    "number": 3,
    "pci": NIC,
    "device": "mlx5_9",
    "netdev": "eth3",
    "link_layer": "Ethernet",
    "rate_gbps": 400.0,
    "address": "10.19.0.1",
    "mtu": 9000,
    "firmware": "28.43.8002",
    "psid": "MT_0000000838",
    "qos": "",
}


def finding(check: str, subject: str, because: str | None = None) -> Finding:
    return Finding(check, subject, "drift", "major", "a", "b", "c", "d", fix="e", because=because)


def host(*sessions: Session, **more: Any) -> dict[str, Any]:
    """What is registered of node01."""
    passes = [[dict(session.__dict__) for session in sessions]]
    return {
        "rail_info_result": {"info": {"product": "X", "driver": "Y", "rails": [RAIL], "missing": {}}},
        "consistency_result": {"hosts": {"node01": {"findings": [], "passed": ["consistency.mtu[live]@rails"]}}},
        "rail_pairs_result": {"hosts": {"node01": {"findings": [], "passed": [], "passes": passes}}},
        **more,
    }


def measured(*findings: Finding, peer: str = "node02", figure: float | None = 390.0) -> dict[str, Any]:
    session = {**SESSION.__dict__, "peer": peer}
    results = [{"test": "bw", "figure": figure}, {"test": "lat", "figure": 2.1}]
    return {
        "findings": [one.to_dict() for one in findings],
        "passed": ["perftest.latency[live]@rail 3 to node02"],
        "sessions": [{"session": session, "results": results}],
    }


def test_what_all_parts_found_is_joined() -> None:
    slow = finding("perftest.bandwidth", "rail 3 to node02")
    found, good = verify.join("node01", host(SESSION), [measured(slow)], False)
    assert found == [slow]
    assert good["passed"] == ["consistency.mtu[live]@rails", "perftest.latency[live]@rail 3 to node02"]


def test_a_planned_test_without_a_result_is_unknown_and_several_are_one_cause() -> None:
    other = Session("server", 3, NIC, "mlx5_9", "node02", "", 400.0)
    found, _passed = verify.join("node01", host(SESSION, other), [], False)
    assert [(one.check, one.state) for one in found] == [
        ("perftest.bandwidth", "unknown"),
        ("perftest.served", "unknown"),
    ]
    assert [one.because for one in found] == [None, found[0].id]


LOST = replace(finding("perftest.latency", "rail 3 to node02"), state="unknown")
MOVED = finding("counters.loss", "rail 3 to node02")
SLOW = finding("perftest.bandwidth", "rail 3 to node02")


@pytest.mark.parametrize(
    ("of_partner", "reason"),
    [
        ({"verify_server": {"unreachable": True, "msg": "no route"}}, "node02: unreachable"),
        ({"verify_server": {"failed": True, "msg": "Timed out\nafter 30"}}, "node02: Timed out after 30"),
        ({"verify_server": {"skipped": True}, "verify_done": {"unreachable": True}}, "node02: unreachable"),
        ({"verify_server": {"skipped": True}, "verify_done": {"finished": True, "findings": []}}, ""),
    ],
)
def test_what_is_lost_with_a_partner_that_broke_off_follows_from_that(of_partner: dict[str, Any], reason: str) -> None:
    """A figure that was measured stands by itself, and what the partner left behind accuses nobody."""
    given = [measured(SLOW, MOVED, LOST)]
    found, _good = verify.join("node01", host(SESSION, hostvars={"node02": of_partner}), given, False)
    roots = {one.check: (one.state, one.have) for one in found if one.because is None}
    assert roots.pop("perftest.bandwidth")[0] == "drift"
    if reason:
        assert roots == {"perftest.pair": ("unknown", reason)}
    else:
        assert set(roots) == {"counters.loss", "perftest.latency"}


def test_a_partner_that_broke_off_later_takes_nothing_from_what_was_measured() -> None:
    of_host = host(SESSION, hostvars={"node02": {"verify_client": {"unreachable": True}}})
    assert verify.join("node01", of_host, [measured(SLOW, MOVED)], False)[0] == [SLOW, MOVED]


@pytest.mark.parametrize(
    ("path", "starts"),
    [
        ("playbooks/tasks/verify.yml", "file: verify_pass.yml"),
        ("roles/nccl_benchmark/tasks/localise_rails.yml", "poll: 0"),
    ],
)
def test_a_host_that_hangs_while_it_starts_its_end_does_not_use_up_the_others_time(path: str, starts: str) -> None:
    text = (Path(verify.__file__).resolve().parent.parent / path).read_text()
    assert starts in text
    assert re.search(r"^ +timeout: .*perftest_timeout.* // 4", text, re.MULTILINE)


def test_in_check_mode_a_result_with_another_partner_counts() -> None:
    assert verify.join("node01", host(SESSION), [measured(peer="node09")], True)[0] == []
    assert verify.join("node01", host(SESSION), [measured(peer="node09")], False)[0] != []


def test_a_host_that_nobody_compared_is_unknown_with_what_its_module_said() -> None:
    of_host = {"rail_info_result": {"failed": True, "msg": "profile x: no rails"}}
    [one] = verify.join("node01", of_host, [], False)[0]
    assert (one.check, one.state, one.have) == ("perftest.pair", "unknown", "profile x: no rails")


SLOW_HERE = finding("perftest.bandwidth", "rail 3 to node02")
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
    of_host = host(SESSION, **{f"{check.partition('.')[0]}_result": {"findings": [cause.to_dict()]}})
    found = verify.join("node01", of_host, [measured(SLOW_HERE, LOST_HERE, LOST_THERE)], False)[0]
    because = cause.id if explains else None
    assert [one.because for one in found] == [because, because, None]


@pytest.mark.parametrize(("check", "found"), [("consistency.qos", LOST_HERE), ("consistency.mtu", PATH)])
def test_else_from_what_the_comparison_of_all_hosts_found(check: str, found: Finding) -> None:
    """A cause that no role has found is none."""
    odd = finding(check, "rails")
    of_host = host(SESSION)
    of_host["consistency_result"]["hosts"]["node01"].update(findings=[odd.to_dict()], rails={odd.id: [3]})
    assert verify.join("node01", of_host, [measured(found)], False)[0][1].because == odd.id


def results(**more: Any) -> dict[str, Any]:
    return {
        "node01": {**measured(), "finished_at": 1.0, "simulated": False, "stored": False, **more},
        "node03": {**measured(figure=100.0), "finished_at": 1.0, "simulated": False, "stored": False, **more},
    }


def test_each_rail_has_a_line_with_its_worst_direction() -> None:
    text = verify_report.render(results())
    assert text.splitlines() == [
        "RAIL TESTS",
        "rail 3: 2 of 2 directions measured; 100 Gb/s at worst (node03 to node02), median 245;"
        " 2.1 us at worst (node03 to node02), median 2.1",
    ]


def test_simulated_and_stored_figures_say_so() -> None:
    head = verify_report.render(results(simulated=True, stored=True)).splitlines()[0]
    assert head == "RAIL TESTS (simulated: no figure in it is a measurement), stored results"


def test_what_was_not_measured_is_counted() -> None:
    found = {"node01": {**measured(figure=None), "simulated": False, "stored": False}}
    assert "rail 3: 0 of 1 directions measured" in verify_report.render(found)


def test_the_file_is_whole_and_latest_leads_to_it(tmp_path: Path) -> None:
    for _run in range(2):
        path = verify_report.write(tmp_path / "results", results())
        assert (tmp_path / "results" / "latest.json").resolve() == path
        assert set(json.loads(path.read_text())["hosts"]) == {"node01", "node03"}
    assert len([one for one in (tmp_path / "results").iterdir() if not one.is_symlink()]) == 2
