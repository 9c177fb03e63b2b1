"""The health of the fleet in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import verdict
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_gpu
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema

from busbar.cli import main
from busbar.drift import health
from busbar.drift.history import History
from busbar.drift.run import HostResult

from .test_drift_history import GPU5, night

PCI, EVIL = "0000:9a:00.0", "<script>alert(1)</script>"
HOT = judge_gpu.THROTTLE.judge(f"{PCI} GPU5", "drift", "not slowed", f"slowed 340 s {EVIL}", "nvidia-smi")


def device(**more: Any) -> dict[str, Any]:
    return {**GPU5, **more}


def told(name: str, *devices: dict[str, Any], findings: tuple[Finding, ...] = ()) -> HostResult:
    return HostResult(name, "complete", findings, frozenset({"a.b[live]@c"}), "one", {}, (), devices)


def test_growth_is_of_a_day_and_all_links_are_one_counter() -> None:
    assert health.per_day(GPU5) == {"replays": 4.0, "NVLink recoveries": 10.0}
    assert health.per_day(device(seconds=None)) == {}
    assert health.growth_text("slowed hw_thermal_slowdown", 340e6) == "340 s"
    assert health.growth_text("replays", 0.5) == "0.5"


def test_counters_of_the_fleet_have_a_trend_and_the_worst_device_is_first() -> None:
    before = [{"n1": (device(grown={"replays": 1}),)}, {}]
    often = device(pci="0000:1b:00.0", name="GPU0", grown={"replays": 900})
    data = health.build(before, {"n1": told("n1", GPU5, findings=(HOT,)), "n2": told("n2", often), "n3": told("n3")})
    assert data is not None
    of_counter = {row["counter"]: row for row in data["counters"]}
    assert of_counter["replays"]["trend"] == [2.0, 0.0, 1804.0]
    assert (of_counter["replays"]["devices"], of_counter["replays"]["total"]) == (2, "1,804")
    assert [(one["host"], one["grown"]) for one in of_counter["replays"]["worst"]] == [("n2", "1,800"), ("n1", "4")]
    # What is wrong weighs more than what has grown most.
    worst = [(one["host"], one["nights"], one["wrong"]) for one in data["worst"]]
    assert worst == [("n1", 2, ["node_health.throttle"]), ("n2", 1, [])]


def test_where_nothing_grew_there_is_no_section() -> None:
    assert health.build([{}], {"n1": told("n1")}) is None


def test_what_is_left_out_of_a_table_is_counted() -> None:
    devices = [device(pci=f"0000:{number:02x}:00.0", grown={f"counter {number}": 1}) for number in range(20)]
    data = health.build([], {"n1": told("n1", *devices)})
    assert data is not None
    assert (len(data["worst"]), data["worst_left_out"], data["counters_left_out"]) == (15, 5, 5)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Three nights of which the last two say that GPU5 is hot."""
    with History.create(tmp_path / "d.sqlite") as nights:
        night(nights, 1, told("n1", device(grown={"replays": 1})))
        night(nights, 2, told("n1", GPU5, findings=(HOT,)))
        night(nights, 3, told("n1", GPU5, findings=(HOT, replace(HOT, subject="0000:1b:00.0 GPU0"))), told("n2"))
    return tmp_path


def test_the_report_has_the_section_with_serial_numbers_and_what_nodes_said_stays_text(site: Path) -> None:
    outputs = ["--html", str(site / "r.html"), "--json", str(site / "r.json")]
    assert main(["report", "--history", str(site / "d.sqlite"), *outputs]) == 0
    [worst, *_others] = json.loads((site / "r.json").read_text())["health"]["worst"]
    assert (worst["serial"], worst["board"]) == ("1654922006536", "S917AB123")
    text = (site / "r.html").read_text()
    assert 'id="health"' in text
    assert ("1654922006536" in text, "S917AB123" in text) == (True, True)
    assert EVIL not in text
    assert "&lt;script&gt;" in text


def test_a_rails_port_is_told_with_its_nic_and_traffic_is_no_growth() -> None:
    day = {"pci": "0000:1b:00.0", "seconds": 86400.0}
    aer = {**dict.fromkeys(GPU5), **day, "name": "rail 0", "grown": {"PCIe correctable": 7}}
    usual = {"port_rcv_packets": 10**9, "np_cnp_sent": 4, "rx_prio3_pause": 9, "symbol_error": 0}
    port: dict[str, Any] = {**day, "rail": 0, "device": "mlx5_0", "link_layer": "Ethernet", "speed": "NDR"}
    port["grown"] = {**usual, "link_downed": 2}
    other = {**port, "rail": 1, "pci": "0000:1c:00.0", "grown": usual}
    third = {**other, "rail": 2, "pci": "0000:1d:00.0", "grown": {**usual, "out_of_sequence": 5}}
    found = verdict._health({"devices": [aer], "ports": [port, other, third]})
    assert [(one["name"], one["grown"]) for one in found] == [
        ("rail 0", {"PCIe correctable": 7, "link_downed": 2}),
        ("rail 2", {"out_of_sequence": 5}),
    ]
    assert codec.is_valid(result_schema.health_devices, found)
    assert verdict._health({"devices": [aer], "ports": [{**port, "pci": "../x"}]}) == []
