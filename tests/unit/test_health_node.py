# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The question of a node's health as a whole: every tool once, the record kept, and nothing else written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.health import device_report, judge, node, record
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.health.service import FABRIC_MANAGER_UNIT as UNIT
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rails
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema

from tests import smi_answers
from tests.trees import contents, line, pci_function, put, tool
from tests.unit import conftest as topologies

NIGHT = 86400.0
NODE, PROFILE = topologies.machine(), topologies.built_in("hgx-h100", "infiniband")
EVENTS = "clocks_event_reasons"
SLOWED: dict[int, dict[str, str | None]] = {2: {f"{EVENTS}/clocks_event_reason_hw_power_brake_slowdown": "Active"}}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A healthy node of eight GPUs; nvidia-smi writes down each of its calls."""
    assert NODE.driver is not None
    answers(tmp_path)
    script = f'case "$1 $2" in "nvlink "*) cat {tmp_path}/data$2;; *) cat {tmp_path}/data-x;; esac'
    tool(tmp_path, "usr/bin/nvidia-smi", f'echo "$*" >> {tmp_path}/calls; {script}')
    put(tmp_path, f"usr/lib/systemd/system/{UNIT}", "[Service]\n")
    put(tmp_path, f"etc/systemd/system/multi-user.target.wants/{UNIT}", "")
    line(tmp_path / "sys/fs/cgroup/system.slice" / UNIT / "cgroup.procs", "4242")
    tool(tmp_path, "usr/bin/nv-fabricmanager", f"echo Fabric Manager version is : {NODE.driver.version}")
    tool(tmp_path, "usr/bin/dmesg", "echo '[    0.000000] Linux version'")
    line(tmp_path / "proc/uptime", "200000.00 1.0")
    line(tmp_path / "proc/sys/kernel/random/boot_id", "boot-1")
    put(tmp_path, "proc/modules", "nvidia 56758272 9 nvidia_uvm, Live 0xffffffffc1200000 (OE)\nmlx5_core 2 3 -\n")
    return tmp_path


def answers(root: Path, changes: dict[int, dict[str, str | None]] | None = None) -> None:
    pcis = [gpu.pci for gpu in NODE.gpus]
    put(root, "data-x", smi_answers.xml(pcis, changes))
    put(root, "data-s", smi_answers.status(len(pcis)))
    put(root, "data-e", smi_answers.errors(len(pcis)))


def question(root: Path, now: float = 1000.0, topology: Topology = NODE) -> tuple[NodeState, Plan, list[float]]:
    """What was read, what is said of it, and the pauses between two looks."""
    pauses: list[float] = []
    host = Host(str(root), str(root))
    have = node.read(host, topology, PROFILE, clock=lambda: now, pause=pauses.append)
    return have, judge.store_counters(host, have, judge.plan(have, topology, judge.Wanted(PROFILE))), pauses


def asked(root: Path, now: float = 1000.0, topology: Topology = NODE) -> list[str]:
    """Checks that are not ok but for want of the kernel's log."""
    found = [one for one in question(root, now, topology)[1].findings if not one.ok]
    return [one.check for one in found if not (one.because or "").startswith("node_health.kernel_log[")]


def test_each_tool_is_asked_once_and_only_the_record_is_written(machine: Path) -> None:
    before = contents(machine)
    assert asked(machine) == []
    assert (machine / "calls").read_text().splitlines() == ["-q -x", "nvlink -s", "nvlink -e"]
    new = set(contents(machine)) - set(before)
    assert new == {str(machine / "calls"), str(machine / record.FILE.lstrip("/"))}
    kept = record.read(Host(str(machine), str(machine)))
    assert kept is not None
    assert (kept.last.boot_id, len(kept.last.gpus)) == ("boot-1", 8)
    assert kept.last.driver_loaded == {"nvidia": "56758272 0xffffffffc1200000"}


def test_a_record_that_cannot_be_written_names_the_directory(machine: Path) -> None:
    folder = machine / record.FOLDERS[-1].lstrip("/")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")
    assert [one.fix for one in question(machine)[1].findings if one.check == judge.RECORD.id] == [
        f"make {record.FOLDERS[-1]} a directory that root owns and can write, and run this again"
    ]
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.symlink_to("/tmp")
    assert asked(machine) == ["node_health.record"]


def test_the_report_is_told_of_devices_that_grew_or_are_wrong_and_of_no_others(machine: Path) -> None:
    def told_of(now: float) -> list[dict[str, Any]]:
        have, plan, _pauses = question(machine, now)
        return device_report.devices(Host(str(machine), str(machine)), have, NODE, PROFILE, plan.findings)

    assert told_of(1000.0) == []
    slot = NODE.gpus[3].pci.rpartition(".")[0]
    line(machine / "sys/bus/pci/slots/12/address", slot)
    line(machine / "sys/class/dmi/id/product_serial", "S917AB123")
    rail = rails.match(NODE, PROFILE).nics[2].pci
    order = [NODE.gpus[3].pci, rail, NODE.gpus[5].pci]
    vpd = machine / f"sys/bus/pci/devices/{rail}/vpd"
    vpd.parent.mkdir(parents=True)
    vpd.write_bytes(b"\x90\x0d\0PN\x02X7SN\x05MT231\x78")
    line(machine / f"sys/bus/pci/devices/{rail}/aer_dev_fatal", "TOTAL_ERR_FATAL 0")
    assert told_of(1000.0) == []
    line(machine / f"sys/bus/pci/devices/{rail}/aer_dev_fatal", "TOTAL_ERR_FATAL 2")
    busy: dict[str, str | None] = {f"{EVENTS}_counters/clocks_event_reasons_counters_sw_power_cap": "9000000 us"}
    replays = {**busy, "pci/replay_counter": "5", "serial": "1654", "vbios_version": "96.00"}
    answers(machine, {2: busy, 3: replays, 5: {"gpu_power_readings/current_power_limit": "400.00 W"}})
    third, nic, fifth = sorted(told_of(1000.0 + NIGHT), key=lambda one: order.index(one["pci"]))
    known = ("name", "grown", "serial", "part", "board")
    assert [nic[key] for key in known] == ["rail 2", {"PCIe fatal": 2}, "MT231", "X7", "S917AB123"]
    hardware = {"serial": "1654", "part": None, "firmware": "96.00", "slot": "12", "board": "S917AB123"}
    grown = {"pci": NODE.gpus[3].pci, "name": "GPU3", "seconds": NIGHT, "grown": {"replays": 2}}
    assert third == {**grown, "product": "NVIDIA H200", **hardware}
    assert (fifth["name"], fifth["grown"], fifth["slot"]) == ("GPU5", {}, None)
    for junk in ("To be filled by O.E.M.", "Default string"):
        line(machine / "sys/class/dmi/id/product_serial", junk)
        assert {one["board"] for one in told_of(1000.0 + NIGHT)} == {None}
    assert codec.is_valid(result_schema.health_devices, [third, fifth])
    assert not codec.is_valid(result_schema.health_devices, [{**third, "pci": "../../etc"}])


def test_growth_from_night_to_night(machine: Path) -> None:
    assert asked(machine) == []
    answers(machine, {3: {"pci/replay_counter": str(10**7)}})
    # The next night, and whoever looks again an hour later; the night after that it has not grown.
    assert asked(machine, 1000.0 + NIGHT) == ["node_health.pcie_replay"]
    kept = (machine / record.FILE.lstrip("/")).stat().st_ino
    assert asked(machine, 4600.0 + NIGHT) == ["node_health.pcie_replay"]
    assert (machine / record.FILE.lstrip("/")).stat().st_ino == kept  # Not written anew.
    assert asked(machine, 1000.0 + 2 * NIGHT) == []


def test_an_xid_counts_from_the_last_night_that_there_was(machine: Path) -> None:
    """After a weekend without a question, one of Saturday."""
    asked(machine)
    said = f"NVRM: Xid (PCI:{NODE.gpus[1].pci[:-2]}): 74, NVLink"
    line(machine / "proc/uptime", f"{200_000 + 3 * NIGHT:.2f} 1.0")
    tool(machine, "usr/bin/dmesg", f"echo '[    0.000000] Linux version'; echo '[ {200_000 + NIGHT:.6f}] {said}'")
    assert asked(machine, 1000.0 + 3 * NIGHT) == ["node_health.xid"]
    # The night after it is two nights old, and was told.
    assert asked(machine, 1000.0 + 4 * NIGHT) == []


def test_a_gpu_that_is_slowed_is_looked_at_three_times(machine: Path) -> None:
    answers(machine, SLOWED)
    _have, plan, pauses = question(machine)
    assert ([one.check for one in plan.findings if not one.ok], len(pauses)) == (["node_health.throttle"], 2)

    def recovers(_seconds: float) -> None:
        answers(machine)

    answers(machine, SLOWED)
    have = node.read(Host(str(machine), str(machine)), NODE, PROFILE, clock=lambda: 1000.0, pause=recovers)
    assert have.gpus is not None
    assert not any(gpu.reasons for gpu in have.gpus.values())


def test_the_gate_asks_for_states_alone(machine: Path) -> None:
    asked(machine)
    (machine / "calls").unlink()
    answers(machine, {2: {**SLOWED[2], "gpu_recovery_action": "Reset", "pci/replay_counter": str(10**7)}})
    host, pauses = Host(str(machine), str(machine)), list[float]()
    have = node.read(host, NODE, PROFILE, None, True, lambda: 1000.0 + NIGHT, pauses.append)
    assert ((machine / "calls").read_text().splitlines(), pauses) == (["-q -x"], [])
    found = judge.plan(have, NODE, judge.Wanted(PROFILE)).findings
    assert [finding.check for finding in found if not finding.ok] == ["node_health.recovery_action"]


def hangs(root: Path) -> None:
    tool(root, "usr/bin/nvidia-smi", "echo Unable to determine the device handle; exit 15")


NO_LOG = "echo dmesg: read kernel buffer failed: Operation not permitted >&2; exit 1"


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (hangs, "gpu_answers"),
        (lambda root: put(root, "data-x", (root / "data-x").read_text()[:-200]), "gpu_answers"),
        (lambda root: tool(root, "usr/bin/dmesg", NO_LOG), "kernel_log"),
        (lambda root: put(root, record.FILE.lstrip("/"), "not ours"), "record"),
    ],
)
def test_what_cannot_be_read_is_told_and_costs_nothing_else(
    machine: Path, damage: Callable[[Path], None], check: str
) -> None:
    damage(machine)
    assert asked(machine) == [f"node_health.{check}"]


def test_no_answer_of_nvidia_smi_takes_the_place_of_a_nights_counters(machine: Path) -> None:
    asked(machine)
    kept = (machine / record.FILE.lstrip("/")).read_bytes()
    hangs(machine)
    asked(machine, 1000.0 + NIGHT)
    assert (machine / record.FILE.lstrip("/")).read_bytes() == kept


@pytest.mark.parametrize(
    "said",
    ["echo Device does not have or support NVLink >&2; exit 6", "echo NVML: Unable to ask: Not Supported; exit 3"],
)
def test_boards_without_nvlink_may_end_with_any_code(machine: Path, said: str) -> None:
    tool(machine, "usr/bin/nvidia-smi", f"case $1 in nvlink) {said};; *) cat {machine}/data-x;; esac")
    assert asked(machine) == []
    tool(machine, "usr/bin/nvidia-smi", f"case $1 in nvlink) echo Killed; exit 9;; *) cat {machine}/data-x;; esac")
    assert asked(machine) == ["node_health.nvlink_state", "node_health.nvlink_errors"]


def test_a_guest_has_its_fabric_from_the_host(machine: Path) -> None:
    guest = replace(NODE, virtualization=Virtualization(True, "kvm", "x"))
    (machine / "usr/lib/systemd/system" / UNIT).unlink()
    assert asked(machine, 1000.0, guest) == []
    pci_function(machine, "pci0000:00/0000:00:06.0", "0x030200", "10de:2335")
    assert asked(machine, 1000.0, guest) == []
    # One that was given the switches, too, has to run it itself.
    pci_function(machine, "pci0000:00/0000:00:1e.0", "0x068000", "10de:22a3")
    assert asked(machine, 1000.0, guest) == ["node_health.fabric_manager"]
    assert asked(machine, 2000.0) == ["node_health.fabric_manager"]


def test_without_gpus_nothing_is_asked_of_them(machine: Path) -> None:
    assert asked(machine, 1000.0, replace(NODE, gpus=())) == []
    assert not (machine / "calls").exists()


def test_without_a_driver_the_platforms_finding_is_the_cause(machine: Path) -> None:
    have = node.read(Host(str(machine), str(machine)), replace(NODE, driver=None), PROFILE, clock=lambda: 1.0)
    plan = judge.plan(have, replace(NODE, driver=None), judge.Wanted(PROFILE))
    bad = [(finding.check, finding.because) for finding in plan.findings if not finding.ok]
    assert ("node_health.gpu_answers", "platform.gpu_driver[live]@nvidia driver") in bad
