"""Counters before and after, and what their movement means."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import nic_counters
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.nic_counters import Counters

from tests.trees import lines

# A healthy sender and receiver of 1 GB in priority 3.
QUIET = {f"{way}_prio{number}_bytes": 0 for way in ("rx", "tx") for number in range(8)} | dict.fromkeys(
    (
        *("rx_prio3_pause", "tx_prio3_pause", "rx_discards_phy", "packet_seq_err", "local_ack_timeout_err"),
        *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored"),
    ),
    0,
)
UNKNOWN = ("rx_new_discards_phy", "rx_dropped_somewhere")
SENDER, RECEIVER = QUIET | {"tx_prio3_bytes": 10**9}, QUIET | {"rx_prio3_bytes": 10**9}


def states(moved: dict[str, int], sends: bool = True, priority: int | None = 3) -> dict[str, str]:
    found = nic_counters.judge("rail 0 to node02", Counters(moved), sends, priority, "ethtool -S eth0")
    return {one.check.partition(".")[2]: one.state for one in found if not one.ok}


@pytest.mark.parametrize(
    ("sends", "more", "expected"),
    [
        (True, {}, {}),
        (False, {}, {}),
        (True, {"tx_prio3_bytes": 0, "tx_prio0_bytes": 10**9}, {"priority": "drift"}),
        (True, {"tx_prio0_bytes": 10**8}, {"priority": "drift"}),
        # Notifications and LLDP have queues of their own.
        (True, {"tx_prio6_bytes": 10**6}, {}),
        (True, {"tx_prio3_bytes": 0}, {"priority": "unknown"}),
        (False, {"rx_prio3_bytes": 0, "rx_prio0_bytes": 10**9}, {"priority": "drift"}),
        (False, {"tx_prio3_pause": 4}, {"pause": "drift"}),
        (True, {"rx_global_pause": 4}, {"pause": "drift"}),
        (True, {"rx_prio0_pause": 4}, {"pause": "drift"}),
        (True, {"rx_prio3_pause": 4, "rp_cnp_handled": 9}, {}),
        (True, {"rx_prio3_pause": 4}, {"ecn": "drift"}),
        (True, {"rp_cnp_ignored": 1}, {"ecn": "drift"}),
        (False, {"np_ecn_marked_roce_packets": 5}, {"ecn": "drift"}),
        (False, {"np_ecn_marked_roce_packets": 5, "np_cnp_sent": 2}, {}),
        (True, {"packet_seq_err": 1}, {"loss": "drift"}),
        *[(False, {name: 1}, {"loss": "drift"}) for name in ("rx_discards_phy", "rx_crc_errors_phy", "link_downed")],
        (False, {"rx_prio3_discards": 1}, {"loss": "drift"}),
        # Adaptive routing does that.
        (False, {"out_of_sequence": 5000}, {}),
        # What may be a loss and is not on our list is unknown.
        *[(True, {name: 1}, {"loss": "unknown"}) for name in UNKNOWN],
        *[(True, {name: 1, "rx_discards_phy": 1}, {"loss": "drift"}) for name in UNKNOWN],
        *[(True, {name: 0}, {}) for name in UNKNOWN],
        *[(True, {name: 9}, {}) for name in ("interrupts", "bytes_transferred", "rx_packets", "tx5_cqe_err")],
        (True, {"rx_err_lane_0_phy": 9}, {}),
    ],
)
def test_each_movement_has_its_meaning(sends: bool, more: dict[str, int], expected: dict[str, str]) -> None:
    assert states((SENDER if sends else RECEIVER) | more, sends) == expected


def test_no_loss_is_proven_where_counters_could_not_be_read() -> None:
    for more, state in (({}, "unknown"), ({"rx_discards_phy": 1}, "drift")):
        moved = Counters(SENDER | more, (Problem("ethtool -S eth0", "exited with 1"),))
        for one in (moved, Counters(moved.to_store)):
            assert nic_counters.judge("rail 0", one, True, 3, "ethtool")[-1].state == state


@pytest.mark.parametrize(
    ("name", "check"),
    [("tx_prio3_bytes", "priority"), ("rx_prio3_pause", "pause"), ("rp_cnp_handled", "ecn"), ("packet_seq_err", None)],
)
def test_a_counter_that_is_not_there_proves_nothing(name: str, check: str | None) -> None:
    without = {key: value for key, value in SENDER.items() if key != name}
    assert states(without) == ({check: "unknown"} if check else {})


def test_a_discard_of_a_lossy_priority_counts_only_where_none_is_lossless() -> None:
    assert states(RECEIVER | {"rx_prio5_cong_discard": 4}, sends=False) == {}
    assert states(RECEIVER | {"rx_prio5_cong_discard": 4}, sends=False, priority=None) == {"loss": "drift"}


def test_a_fabric_without_a_lossless_priority_is_asked_for_loss_alone() -> None:
    assert states({}, priority=None) == {"loss": "unknown"}
    found = nic_counters.judge("rail 0 to node02", Counters({"packet_seq_err": 0}), True, None, "hw_counters")
    assert [one.check for one in found] == ["counters.loss"]


def test_only_what_says_something_is_read_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    values = {"hw_counters/packet_seq_err": "7", "hw_counters/np_cnp_sent": "x", "counters/foo": "1"}
    lines(tmp_path / "sys/class/infiniband/mlx5_0/ports/1", values)
    found = nic_counters.read(Host(str(tmp_path), str(tmp_path)), "mlx5_0", 1, "eth0")
    assert found.values == {"packet_seq_err": 7}
    assert sorted(problem.source for problem in found.problems) == [
        "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent",
        "ethtool",
    ]
