# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nights over an InfiniBand fabric as ib_fabric judges them: what is compared, kept, told, and said again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import site_values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.run import Run

from .built_fabric import NIGHT, Built, build
from .test_fabric_run import audit

NOW = 1_790_000_000.0
NAMES = (*site_values.PARTS["ib_fabric"], "busbar_firmware")


class Nights:
    """A control node and a fabric of eight hosts, night after night."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.fabric = build()
        self.now = NOW
        self.values = {name: site_values.VALUES[name].default for name in NAMES}
        self.said: list[str] = []

    def audit(self, host: str) -> dict[str, Any]:
        known = self.fabric.inventory()[host]
        rails = [
            {**rail._asdict(), "pci": f"0000:{16 + rail.rail:02x}:00.0", "device": "mlx5_0"} for rail in known.rails
        ]
        return audit(fabric={"boot_id": None, "rails": rails})

    def play(self, seen: Built | None = None, **more: Any) -> dict[str, list[str]]:
        """Host -> checks that are not ok. seen: what node000 sweeps.   more: keys of the plan, and answers."""
        hosts = list(self.fabric.hosts)
        fabric = seen or self.fabric
        swept = tuple(fabric.sweeps(self.now, (0,)))
        answers = {"node000": fabric_run.NodeResult(sweeps=swept), **more.pop("answers", {})}
        plan = {"asked": list(answers), "last": False, "wrong": {}, "values": self.values, **more}
        audit = {host: self.audit(host) for host in hosts}
        run = Run(plan, str(self.results), hosts, hosts)
        of_hosts = {host: {"inventory_hostname": host, "fleet_audit_result": {"hosts": audit}} for host in hosts}
        told = run.judged({} if plan["last"] else answers, of_hosts, self.now)
        self.said, self.told = run.messages, told
        self.now += NIGHT
        assert all(one["passed"] or one["findings"] for one in told.values())
        found = {host: [one["check"] for one in of_host["findings"]] for host, of_host in told.items()}
        return {host: sorted(checks) for host, checks in found.items() if checks}

    @property
    def record(self) -> fabric_record.Record:
        return fabric_record.read(self.results)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path / "results")


def test_a_healthy_fabric_says_nothing_night_after_night(nights: Nights) -> None:
    assert nights.play() == {}
    first = fabric_record.latest_name(nights.results)
    assert (nights.record.before, nights.record.complete) == ("", True)
    assert nights.play() == {}
    assert nights.record.before == first
    assert nights.record.finished == nights.record.taken[0] == NOW + NIGHT
    assert nights.said[0].endswith("10 switches, 32 HCAs, 64 cables")


def test_what_is_lost_is_missed_against_the_last_night_that_saw_all(nights: Nights) -> None:
    nights.play()
    whole = fabric_record.latest_name(nights.results)
    cut = copy.deepcopy(nights.fabric)
    cut.cut(cut.nic("node003", 2))
    lost = nights.play(cut)
    assert set(lost) == {"node003"}
    # A night that saw only a part is compared with, and is not what the next one is compared with.
    answers = {"node000": fabric_run.NodeResult(why="no route to host", because=fabric_run.SILENT)}
    found = nights.play(answers=answers)
    assert found["node000"] == ["ib_fabric.host", "ib_fabric.sweep"]
    # Nothing was swept: what was known stays.
    assert nights.record.before == whole


def test_what_was_swept_just_now_is_judged_again_as_it_was(nights: Nights) -> None:
    nights.play()
    cut = copy.deepcopy(nights.fabric)
    cut.cut(cut.nic("node003", 2))
    lost = nights.play(cut)
    record = nights.record
    nights.now = record.finished + 60
    assert nights.play(last=True) == lost
    assert (nights.record.before, nights.record.taken) == (record.before, record.taken)
    # With a threshold that another inventory sets, it is judged by that.
    nights.now = record.finished + 70
    nights.values["busbar_fabric_oversubscription"] = 0.5
    assert "ib_fabric.oversubscription" in nights.play(last=True)["node003"]


def test_one_bad_answer_costs_its_host_and_no_other(nights: Nights) -> None:
    bad = fabric_run.read_result(
        "node001", {"ib_fabric_result": {"findings": [], "passed": [], "sweeps": [{"plane": 1}]}}
    )
    found = nights.play(answers={"node001": bad})
    assert found == {"node001": ["ib_fabric.host"]}
    assert nights.told["node001"]["findings"][0]["have"].startswith("its result is not valid: sweep")
    assert nights.record.complete is False


def test_a_plan_is_held_to_and_one_that_cannot_be_read_is_a_finding(nights: Nights, tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(cabling_plan.write(nights.fabric.plan()))
    nights.values["busbar_fabric_plan"] = str(path)
    swapped = copy.deepcopy(nights.fabric)
    swapped.swap(swapped.leaf_port("node002", 1), swapped.leaf_port("node003", 2))
    assert nights.play(swapped) == {"node002": ["ib_fabric.swapped"], "node003": ["ib_fabric.swapped"]}
    path.write_text("a_node,a_port\n")
    assert nights.play() == {"node000": ["ib_fabric.plan_file"]}
    path.unlink()
    assert nights.play() == {"node000": ["ib_fabric.plan_file"]}
    assert "No such file" in str(nights.told["node000"]["findings"][0]["have"])


def test_a_name_that_is_no_node_and_a_folder_that_cannot_be_written_are_told(nights: Nights) -> None:
    found = nights.play(wrong={"login1": "it is not a node of the group gpu_nodes"})
    assert found == {"node000": ["ib_fabric.host"]}
    fix = nights.told["node000"]["findings"][0]["fix"]
    assert fix.startswith("correct busbar_fabric_hosts")
    (nights.results / "fabric" / "latest").unlink()
    (nights.results / "fabric" / "latest").mkdir()
    (nights.results / "fabric" / "latest" / "fabric.json").write_text("{")
    assert nights.play() == {"node000": ["ib_fabric.record"]}
