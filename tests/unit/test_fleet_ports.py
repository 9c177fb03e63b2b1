# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rail's port stands out of a fleet, and what of one cable is told once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_ports
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import links as fabric_rates
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import ports as port_fleet
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult, role_results

PACKETS = {"port_xmit_packets": 10**9, "port_rcv_packets": 10**9}


def fleet(hosts: int = 8, **odd: int) -> dict[str, dict[str, Any]]:
    """Answers of the role; rail 3 of node02 has counted ``odd``."""
    return {f"node{n:02}": {"node_health": of_host(odd if n == 2 else {})} for n in range(1, hosts + 1)}


def of_host(odd: dict[str, int], layer: str = "InfiniBand", seconds: float | None = 86400.0) -> dict[str, Any]:
    ports = [
        {
            "rail": rail,
            "pci": f"0000:{rail:02x}:00.0",
            "device": f"mlx5_{rail}",
            "link_layer": layer,
            "speed": "NDR",
            "seconds": seconds,
            "grown": {**PACKETS, **(odd if rail == 3 else {})},
        }
        for rail in range(4)
    ]
    return {**Plan().result(), "notes": [], "boot_id": "b", "devices": [], "ports": ports}


def joined(registered: dict[str, dict[str, Any]]) -> dict[str, dict[str, RoleResult]]:
    results = {host: role_results(of_host) for host, of_host in registered.items()}
    port_fleet.join(results)
    return results


def findings(registered: dict[str, dict[str, Any]]) -> list[tuple[str, Finding]]:
    results = joined(registered)
    return [(host, one) for host, of_role in results.items() for one in of_role["node_health"].findings]


@pytest.mark.parametrize(
    ("odd", "severity"),
    [
        *(({name: 11}, "major") for name in ("symbol_error", "port_rcv_errors")),
        *(({name: 1100}, "minor") for name in ("port_xmit_discards", "rx_prio_buf_discard")),
        *(({"packet_seq_err": 11_000}, "minor"), ({"np_ecn_marked_roce_packets": 11_000_000}, "minor")),
        *(({"rx_paused_us": 870 * 10**6}, "minor"), ({"tx_paused_us": 87 * 10**6}, "minor")),
    ],
)
def test_the_one_that_stands_out_is_named(odd: dict[str, int], severity: str) -> None:
    ((host, found),) = findings(fleet(**odd))
    assert (host, found.subject, found.severity) == ("node02", "0000:03:00.0 mlx5_3 rail 3", severity)
    assert "three quarters have 0 or less" in (found.have or "")
    # A tenth of that is nothing.
    results = fleet(**{name: n // 10 for name, n in odd.items()})
    assert findings(results) == []
    passed = [of["node_health"].passed for of in joined(results).values()]
    assert passed == [["node_health.port_outlier[live]@ports"]] * len(results)


def test_what_all_have_stands_out_nowhere() -> None:
    results = fleet(packet_seq_err=90_000)
    for of_role in results.values():
        for port in of_role["node_health"]["ports"]:
            port["grown"].setdefault("packet_seq_err", 20_000)
    assert findings(results) == []
    results["node02"]["node_health"]["ports"][3]["grown"]["packet_seq_err"] = 210_000
    assert [host for host, _found in findings(results)] == ["node02"]


def test_only_ports_that_are_alike_and_told_are_compared() -> None:
    """Of 32 ports on Ethernet another counter tells of symbols; of one host's four ports nobody knows what is usual."""
    assert findings({"node01": {"node_health": of_host({"symbol_error": 900})}}) == []
    ethernet = {
        f"node{n}": {"node_health": of_host({"symbol_error": 90_000} if n == 2 else {}, "Ethernet")} for n in range(8)
    }
    assert findings(ethernet) == []
    results = fleet(symbol_error=900)
    for seconds in (None, 600.0):
        results["node02"] = {"node_health": of_host({"symbol_error": 900}, seconds=seconds)}
        assert findings(results) == []
        assert "node_health.port_outlier" not in str(joined(results)["node02"])
    # An idle port has no share of its packets.
    idle = fleet(packet_seq_err=90_000)
    idle["node02"]["node_health"]["ports"][3]["grown"].update(port_xmit_packets=90_001)
    assert findings(idle) == []


def test_an_answer_that_is_none_costs_nobody_else_anything() -> None:
    results = fleet(symbol_error=900)
    results["node05"]["node_health"] = {"unreachable": True}
    results["node06"] = {}
    results["node07"]["node_health"]["ports"][0]["grown"] = {"x" * 100: -1}
    results["node08"]["node_health"] = {"failed": True, "msg": "x"}
    found = joined(results)
    assert len(found["node02"]["node_health"].findings) == 1
    assert found["node05"] == role_results(results["node05"])


def test_what_the_node_says_of_its_port_is_the_cause() -> None:
    own = judge_ports.PORT_ERRORS.judge("0000:03:00.0 mlx5_3 ib3", "drift", "few", "port_rcv_errors +900")
    results = fleet(port_rcv_errors=900)
    results["node02"]["node_health"]["findings"] = [own.to_dict()]
    (_host, first), (_same, second) = findings(results)
    assert (first.because, second.because) == (None, own.id)


@pytest.mark.parametrize(
    ("subject", "tells"), [("node02 rail 3", True), ("plane 0: links that went down", True), ("node02 rail 13", False)]
)
def test_a_cable_that_the_fabric_tells_of_is_told_once(subject: str, tells: bool) -> None:
    own = judge_ports.PORT_LINK_DOWNED.judge("0000:03:00.0 mlx5_3 ib3", "drift", "up", "went down once")
    told = fabric_rates.LINK_DOWNED.judge(subject, "drift", "up", "both ends went down", "counters")
    results = fleet()
    results["node02"]["node_health"]["findings"] = [own.to_dict()]
    results["node02"]["ib_fabric"] = {**Plan().result(), "findings": [told.to_dict()]}
    ((_host, found),) = findings(results)
    assert found.because == (told.id if tells else None)
