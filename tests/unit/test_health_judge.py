# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is a finding of a node's health, and what looks like one and is none (health.md 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    hwmon,
    judge,
    kernel_log,
    nvlink,
    record,
    smi,
    xid,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.fabric_manager import FabricManager
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge import Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import Have
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

from tests import smi_answers

NOW, NIGHT = 1_800_000_000.0, 86400.0
RUNNING = FabricManager(installed=True, active=True, enabled=True, state="active (running)")
DRIVER = {"nvidia": "56758272 0xffffffffc1200000"}


def addresses(topology: Topology) -> list[str]:
    return [gpu.pci for gpu in topology.gpus]


def gpus(
    topology: Topology, changes: dict[int, dict[str, str | None]] | None = None, driver: str = "580.159.04"
) -> dict[str, smi.Gpu]:
    return {gpu.pci: gpu for gpu in smi.parse(smi_answers.xml(addresses(topology), changes, driver))}


def healthy(topology: Topology, **more: Any) -> Have:
    assert topology.driver is not None
    many = len(topology.gpus)
    have = Have(
        now=NOW,
        boot_id="boot-1",
        driver_loaded=DRIVER,
        gpus=gpus(topology),
        speeds=nvlink.parse_status(smi_answers.status(many)),
        errors=nvlink.parse_errors(smi_answers.errors(many)),
        log=kernel_log.Log(uptime=200_000.0),
        aer={pci: dict.fromkeys(("correctable", "nonfatal", "fatal"), 0) for pci in addresses(topology)},
        fabric_manager=replace(RUNNING, version=topology.driver.version),
    )
    return replace(have, **more)


def after(have: Have, **before: Any) -> Have:
    """The same question a night after one with its counters, but for ``before``."""
    return replace(have, before=replace(judge.counters(have), at=NOW - NIGHT, **before))


def bad(have: Have, topology: Topology, profile: Profile, **wanted: Any) -> list[Finding]:
    return [one for one in judge.plan(have, topology, Wanted(profile, **wanted)).findings if not one.ok]


def one(have: Have, topology: Topology, profile: Profile, **wanted: Any) -> Finding:
    """The one that nothing else of the plan causes."""
    found = bad(have, topology, profile, **wanted)
    ids = {finding.id for finding in found}
    roots = [finding for finding in found if finding.because not in ids]
    assert len(roots) == 1, [finding.id for finding in roots]
    return roots[0]


def said(topology: Topology, number: int, age: float = 3600.0, gpu: int = 2, text: str = "pid=1") -> xid.Event:
    event = xid.parse(f"NVRM: Xid (PCI:{addresses(topology)[gpu][:-2]}): {number}, {text}", age)
    assert event is not None
    return event


def test_a_healthy_machine_has_only_good_findings(infiniband: Topology, hgx_h100: Profile) -> None:
    first = healthy(infiniband)
    assert bad(first, infiniband, hgx_h100) == []
    assert bad(after(first), infiniband, hgx_h100) == []
    assert len(judge.plan(first, infiniband, Wanted(hgx_h100)).findings) > 100
    assert "from the next run on" in " ".join(judge.notes(first))
    assert judge.notes(after(first)) == []


EVENTS = "clocks_event_reasons/clocks_event_reason_"


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"gpu_recovery_action": "Reset"}, "recovery_action", "drift"),
        ({"gpu_recovery_action": "Drain and Reset"}, "recovery_action", "drift"),
        ({"gpu_recovery_action": "Drain P2P"}, "recovery_action", "drift"),
        ({"gpu_recovery_action": "Reboot"}, "recovery_action", "drift"),
        # Of a driver that is newer than this suite.
        ({"gpu_recovery_action": "Recover IMEX Domain"}, "recovery_action", "unknown"),
        ({"gpu_recovery_action": None, "gpu_reset_status/reset_required": "Yes"}, "recovery_action", "drift"),
        ({"remapped_rows/remapped_row_pending": "Yes"}, "row_remap", "drift"),
        ({"remapped_rows/remapped_row_failure": "Yes"}, "row_remap", "drift"),
        ({"remapped_rows/remapped_row_unc": "512"}, "row_remap", "drift"),
        ({"ecc_errors/unrepairable_memory": "Yes"}, "memory_repair", "drift"),
        ({"ecc_errors/aggregate/sram_threshold_exceeded": "Yes"}, "memory_repair", "drift"),
        ({"ecc_errors/tpc_repair_pending": "Yes"}, "memory_repair", "drift"),
        ({"ecc_mode/current_ecc": "Disabled", "ecc_mode/pending_ecc": "Disabled"}, "ecc", "drift"),
        ({"ecc_mode/pending_ecc": "Disabled"}, "ecc", "drift"),
        ({"ecc_errors/volatile/sram_uncorrectable_parity": "1"}, "ecc", "drift"),
        ({EVENTS + "hw_power_brake_slowdown": "Active"}, "throttle", "drift"),
        ({EVENTS + "hw_thermal_slowdown": "Active", EVENTS + "hw_slowdown": "Active"}, "throttle", "drift"),
        ({"gpu_power_readings/current_power_limit": "500.00 W"}, "power_limit", "drift"),
        ({"applications_clocks/graphics_clock": "1200 MHz"}, "application_clocks", "drift"),
        ({"temperature/gpu_temp_tlimit": "-2 C"}, "temperature", "drift"),
        ({"mig_mode/current_mig": "Enabled", "mig_mode/pending_mig": "Enabled"}, "mig", "drift"),
        ({"mig_mode/pending_mig": "Enabled"}, "mig", "drift"),
        ({"cc_protected_memory_usage/total": "65536 MiB"}, "confidential_computing", "drift"),
        ({"fabric/health/bandwidth": "Degraded"}, "fabric_state", "drift"),
        ({"fabric/health/route_unhealthy": "True"}, "fabric_state", "drift"),
        ({"fabric/health/summary": "something new"}, "fabric_state", "unknown"),
        ({"remapped_rows/remapped_row_failure": "Unknown Error"}, "gpu_answers", "unknown"),
        ({"pci/replay_counter": "many"}, "gpu_answers", "unknown"),
    ],
)
def test_one_odd_value_of_one_gpu_is_one_finding(
    infiniband: Topology, hgx_h100: Profile, change: dict[str, str | None], check: str, state: str
) -> None:
    finding = one(healthy(infiniband, gpus=gpus(infiniband, {3: change})), infiniband, hgx_h100)
    assert (finding.check, finding.state) == (f"node_health.{check}", state)
    assert finding.subject == f"{addresses(infiniband)[3]} GPU3"
    assert finding.fix


@pytest.mark.parametrize(
    "change",
    [
        # Under load.
        {EVENTS + "gpu_idle": "Not Active", EVENTS + "sw_power_cap": "Active", "clocks/graphics_clock": "1400 MHz"},
        {EVENTS + "sync_boost": "Active"},
        {"persistence_mode": "Disabled"},
        # HGX B200: the GPUs are registered, and say so in more words.
        {
            "fabric/health/summary": "Healthy",
            "fabric/health/bandwidth": "Full",
            "fabric/health/route_unhealthy": "False",
        },
        {"fabric/health/partition_assigned": "True"},
        # Corrected errors of a long life, and replays of a boot.
        {"ecc_errors/aggregate/dram_correctable": "123456789", "pci/replay_counter": "4096"},
        {"ecc_errors/volatile/dram_correctable": "40000"},
        {"remapped_rows/remapped_row_unc": "12"},
    ],
)
def test_what_is_normal_is_no_finding(infiniband: Topology, hgx_h100: Profile, change: dict[str, str | None]) -> None:
    have = healthy(infiniband, gpus=gpus(infiniband, dict.fromkeys(range(8), change)))
    assert bad(have, infiniband, hgx_h100) == []
    assert bad(after(have), infiniband, hgx_h100) == []


@pytest.mark.parametrize("layout", smi_answers.LAYOUTS)
def test_no_check_is_ok_without_a_value_that_it_needs(infiniband: Topology, hgx_h100: Profile, layout: str) -> None:
    driver, changes = smi_answers.LAYOUTS[layout]
    alone = replace(infiniband, gpus=infiniband.gpus[:1])
    text = smi_answers.xml(addresses(alone), {0: changes}, driver)
    fabric = "<state>Completed" in text
    profile = replace(hgx_h100, gpus=replace(hgx_h100.gpus, nvlink_fabric=fabric))

    def judged(text: str) -> list[Finding]:
        have = healthy(alone, gpus={gpu.pci: gpu for gpu in smi.parse(text)})
        found = judge.plan(replace(have, fabric_manager=None, speeds=None, errors=None), alone, Wanted(profile))
        return [finding for finding in found.findings if finding.identity == alone.gpus[0].pci]

    found = judged(text)
    assert [finding for finding in found if not finding.ok and not finding.inapplicable] == []
    assert all(finding.have and finding.source for finding in found)
    elements, left = smi_answers.silent(text, lambda text: {one.check: one.state for one in judged(text)})
    assert elements >= (26 if "T4" in layout else 30)
    assert left == []


@pytest.mark.parametrize(
    ("layout", "checks"),
    [
        ("H200, 580", set()),
        ("A100, 535", {"confidential_computing", "memory_repair"}),
        ("T4, 595", {"application_clocks", "memory_repair", "mig"}),
        ("L40S, 595", {"application_clocks", "mig"}),
        ("GB200, 610", {"application_clocks"}),
        ("H200, 580, clocks deprecated", {"application_clocks"}),
    ],
)
def test_what_a_gpu_cannot_have_is_unsupported_and_harms_no_node(
    infiniband: Topology, hgx_h100: Profile, layout: str, checks: set[str]
) -> None:
    driver, changes = smi_answers.LAYOUTS[layout]
    (gpu,) = smi.parse(smi_answers.xml(addresses(infiniband)[:1], {0: changes}, driver))
    profile = replace(hgx_h100, gpus=replace(hgx_h100.gpus, nvlink_fabric=gpu.fabric.get("state") == "Completed"))
    plan = judge.plan(healthy(infiniband, gpus={gpu.pci: gpu}), infiniband, Wanted(profile))
    found = {one.check for one in plan.findings if one.state == "unsupported"}
    assert found == {f"node_health.{check}" for check in checks}
    assert not found & {one["check"] for one in plan.result()["findings"]}
    assert not found & {one.partition("[")[0] for one in plan.result()["passed"]}


def test_an_empty_gpu_has_one_cause_and_nothing_ok(infiniband: Topology, hgx_h100: Profile) -> None:
    have = healthy(infiniband)
    (empty,) = smi.parse(f'<nvidia_smi_log><gpu id="{addresses(infiniband)[3]}"></gpu></nvidia_smi_log>')
    have = replace(have, gpus={**(have.gpus or {}), empty.pci: empty})
    assert one(have, infiniband, hgx_h100).check == "node_health.gpu_answers"
    found = [f for f in judge.plan(have, infiniband, Wanted(hgx_h100)).findings if f.identity == empty.pci]
    # The kernel's log and AER are other sources.
    assert {f.check for f in found if f.ok} == {"node_health.xid", "node_health.aer"}
    assert {f.state for f in found if not f.ok} == {"unknown"}


def test_power_limits_of_driver_610_are_read(infiniband: Topology, hgx_h100: Profile) -> None:
    _driver, changes = smi_answers.LAYOUTS["GB200, 610"]
    nested = {path: text for path, text in changes.items() if path.startswith("gpu_power_readings/")}
    capped = {**nested, "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit": "700.00 W"}
    finding = one(healthy(infiniband, gpus=gpus(infiniband, {3: capped})), infiniband, hgx_h100)
    assert (finding.check, finding.want, finding.have) == ("node_health.power_limit", "1200 W", "700 W")


@pytest.mark.parametrize(
    ("single", "double", "before", "severity"),
    [
        ("2", "1", 3, ""),
        ("59", "1", 60, "critical"),
        ("12", "3", 15, "major"),
        ("0", "10", 10, "major"),
        ("2", "2", 3, "major"),
    ],
)
def test_retired_pages_are_judged(
    infiniband: Topology, hgx_h100: Profile, single: str, double: str, before: int, severity: str
) -> None:
    driver, changes = smi_answers.LAYOUTS["T4, 595"]
    counts = {
        "retired_pages/multiple_single_bit_retirement/retired_count": single,
        "retired_pages/double_bit_retirement/retired_count": double,
    }
    text = smi_answers.xml(addresses(infiniband), {n: {**changes, **counts} for n in range(8)}, driver)
    have = healthy(infiniband, gpus={gpu.pci: gpu for gpu in smi.parse(text)})
    now = judge.counters(have).gpus
    have = after(have, gpus={uuid: {**values, "retired pages": before} for uuid, values in now.items()})
    found = [f for f in judge.plan(have, infiniband, Wanted(hgx_h100)).findings if f.check == "node_health.row_remap"]
    assert {f.severity for f in found if not f.ok} == ({severity} if severity else set())


def test_advice_for_several_gpus_names_none_of_them(infiniband: Topology, hgx_h100: Profile) -> None:
    change: dict[str, str | None] = {
        "gpu_power_readings/current_power_limit": "500.00 W",
        "applications_clocks/graphics_clock": "1200 MHz",
        "mig_mode/current_mig": "Enabled",
        "ecc_mode/current_ecc": "Disabled",
        "remapped_rows/remapped_row_pending": "Yes",
        "ecc_errors/tpc_repair_pending": "Yes",
        "gpu_recovery_action": "Drain P2P",
    }
    slow = nvlink.parse_status(smi_answers.status(8, odd=dict.fromkeys(((n, 3) for n in range(8)), "20.000 GB/s")))
    have = healthy(infiniband, speeds=slow, gpus=gpus(infiniband, dict.fromkeys(range(8), change)))
    found = bad(have, infiniband, hgx_h100)
    assert len({f.check for f in found}) == 8
    assert len({(f.check, f.fix) for f in found}) == 8
    assert not [f.fix for f in found if f.identity in f.fix]


def test_a_cap_that_the_site_means_is_asked_for(infiniband: Topology, hgx_h100: Profile) -> None:
    capped: dict[int, dict[str, str | None]] = {
        n: {"gpu_power_readings/current_power_limit": "500.00 W"} for n in range(8)
    }
    have = healthy(infiniband, gpus=gpus(infiniband, capped))
    assert bad(have, infiniband, hgx_h100, power_limit=500) == []
    assert len(bad(healthy(infiniband), infiniband, hgx_h100, power_limit=500)) == 8


# -- Xid -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 92, 94, 154])
def test_what_a_program_did_is_no_fault_of_the_gpu(infiniband: Topology, hgx_h100: Profile, number: int) -> None:
    assert bad(healthy(infiniband, events=(said(infiniband, number),)), infiniband, hgx_h100) == []


def test_an_xid_explains_what_follows_from_it(infiniband: Topology, hgx_h100: Profile) -> None:
    change: dict[str, str | None] = {
        "gpu_recovery_action": "Drain and Reset",
        "ecc_errors/volatile/dram_uncorrectable": "1",
        "remapped_rows/remapped_row_pending": "Yes",
    }
    events = tuple(said(infiniband, number) for number in (48, 63, 95, 45, 45))
    have = healthy(infiniband, gpus=gpus(infiniband, {2: change}), events=events)
    root, *others = bad(have, infiniband, hgx_h100)
    assert (root.check, root.because) == ("node_health.xid", None)
    assert root.have is not None
    assert "Xid 48: uncorrectable ECC error, 60 min ago" in root.have
    assert "45 (2 times)" in root.have
    assert {finding.check.partition(".")[2] for finding in others} == {"recovery_action", "ecc", "row_remap"}
    assert {finding.because for finding in others} == {root.id}


def test_a_gpu_off_the_bus_is_one_root(infiniband: Topology, hgx_h100: Profile) -> None:
    there = {pci: gpu for pci, gpu in gpus(infiniband).items() if pci != addresses(infiniband)[2]}
    events = (
        said(infiniband, 79),
        said(infiniband, 154),
        said(infiniband, 74, age=3590.0, gpu=5, text="NVLink: fatal"),
    )
    found = bad(healthy(infiniband, gpus=there, events=events), infiniband, hgx_h100)
    roots = [finding for finding in found if finding.because is None]
    assert [(root.check, root.subject[:12]) for root in roots] == [("node_health.xid", addresses(infiniband)[2])]
    assert {finding.check for finding in found} == {"node_health.xid", "node_health.gpu_count"}
    assert {finding.because for finding in found} == {None, roots[0].id}


def test_a_gpu_that_only_nvidia_smi_lacks_is_told(infiniband: Topology, hgx_h100: Profile) -> None:
    there = {pci: gpu for pci, gpu in gpus(infiniband).items() if pci != addresses(infiniband)[6]}
    finding = one(healthy(infiniband, gpus=there), infiniband, hgx_h100)
    assert (finding.check, finding.have) == ("node_health.gpu_count", "7, without this one")
    assert finding.subject == f"{addresses(infiniband)[6]} GPU6"


@pytest.mark.parametrize("number", [48, 119])
def test_a_driver_that_says_nothing_of_recovery_ends_no_xid(
    infiniband: Topology, hgx_h100: Profile, number: int
) -> None:
    change: dict[str, str | None] = {"gpu_recovery_action": None, "gpu_reset_status/reset_required": "No"}
    old = gpus(infiniband, {2: {**change, "gpu_reset_status/drain_and_reset_recommended": "No"}}, "550.90.12")
    have = healthy(infiniband, gpus=old, events=(said(infiniband, number),))
    assert one(have, infiniband, hgx_h100).check == "node_health.xid"


CHANGED = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


@pytest.mark.parametrize(
    ("number", "beside", "counts"),
    [
        # What is left of a memory error the driver itself says.
        (48, None, False),
        (119, None, False),
        # Of a link it says nothing unless it has announced something.
        (74, None, True),
        (149, None, True),
        (74, (3595.0, CHANGED), False),
        (74, (3595.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), True),
        # Hours before it was something else.
        (74, (9000.0, CHANGED), True),
        # Off the bus it is until the node is booted.
        (79, (3595.0, CHANGED), True),
    ],
)
def test_an_xid_ends_where_the_driver_that_knew_of_it_asks_for_nothing_any_more(
    infiniband: Topology, hgx_h100: Profile, number: int, beside: tuple[float, str] | None, counts: bool
) -> None:
    events = [said(infiniband, number)]
    if beside is not None:
        events.append(said(infiniband, 154, age=beside[0], text=beside[1]))
    found = bad(healthy(infiniband, events=tuple(events)), infiniband, hgx_h100)
    assert {finding.check for finding in found} == ({"node_health.xid"} if counts else set())
    # As long as it asks for it the line counts in any case, and this follows from it.
    asking = gpus(infiniband, {2: {"gpu_recovery_action": "Reset"}})
    found = bad(healthy(infiniband, events=tuple(events), gpus=asking), infiniband, hgx_h100)
    assert [finding.check for finding in found if finding.because is None] == ["node_health.xid"]


def test_a_gpu_off_the_bus_has_the_driver_ask_all_others_for_a_reboot(infiniband: Topology, hgx_h100: Profile) -> None:
    others: dict[int, dict[str, str | None]] = {number: {"gpu_recovery_action": "Reboot"} for number in (0, 1, 3)}
    others[3]["remapped_rows/remapped_row_pending"] = "Yes"
    others[4] = {"gpu_recovery_action": "Reset"}
    have = healthy(infiniband, gpus=gpus(infiniband, others), events=(said(infiniband, 79),))
    found = bad(have, infiniband, hgx_h100)
    (root,) = (finding for finding in found if finding.check == "node_health.xid")
    asked = [finding for finding in found if finding.check == "node_health.recovery_action"]
    # What else a GPU has is its own.
    assert [finding.because for finding in asked] == [*[root.id] * 3, None]
    assert [finding.because for finding in found if finding.check == "node_health.row_remap"] == [None]
    # Without such a GPU each speaks for itself.
    alone = bad(replace(have, events=()), infiniband, hgx_h100)
    assert [finding.because for finding in alone if finding.check == "node_health.recovery_action"] == [None] * 4


def test_an_xid_of_no_table_is_unknown(infiniband: Topology, hgx_h100: Profile) -> None:
    finding = one(healthy(infiniband, events=(said(infiniband, 4711),)), infiniband, hgx_h100)
    assert (finding.check, finding.state) == ("node_health.xid", "unknown")


def test_trouble_in_three_boots_means_another_gpu(infiniband: Topology, hgx_h100: Profile) -> None:
    uuid = smi_answers.UUID % 2
    earlier = tuple(record.Event(NOW - days * NIGHT, f"boot-{days}", uuid, 79) for days in (9, 5))
    kept = record.Kept(record.Record("boot-1", NOW - NIGHT, history=earlier))
    have = healthy(infiniband, kept=kept, events=(said(infiniband, 74),))
    assert {finding.check for finding in bad(have, infiniband, hgx_h100)} == {"node_health.xid", "node_health.rma"}
    fewer = replace(have, kept=record.Kept(replace(kept.last, history=earlier[:1])))
    assert {finding.check for finding in bad(fewer, infiniband, hgx_h100)} == {"node_health.xid"}


def test_an_echo_and_a_switch_make_no_history_of_a_gpu(infiniband: Topology) -> None:
    switch = xid.parse("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46", 60.0)
    assert switch is not None
    events = (said(infiniband, 149), said(infiniband, 145, gpu=5), switch)
    history = judge.counters(healthy(infiniband, events=events)).history
    assert [(event.gpu, event.xid) for event in history] == [(smi_answers.UUID % 2, 149)]


# -- growth ----------------------------------------------------------------------------------------------------------


def grown(have: Have, counter: str, by: int, gpu: int = 4) -> Have:
    """As ``have``, a night after a question at which one counter of one GPU was so much lower, from a million on."""
    now = judge.counters(have).gpus
    uuid = smi_answers.UUID % gpu
    return after(have, gpus={**now, uuid: {**now[uuid], counter: now[uuid][counter] - by}})


@pytest.mark.parametrize(
    ("path", "counter", "most", "check"),
    [
        ("pci/replay_counter", "replays", 31 * 1440, "pcie_replay"),
        ("ecc_errors/aggregate/dram_correctable", "ecc dram_correctable", 20_000_000, "ecc"),
        ("ecc_errors/aggregate/sram_correctable", "ecc sram_correctable", 10_000, "ecc"),
        (
            "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake",
            "slowed hw_power_brake_slowdown",
            864_000_000,
            "throttle",
        ),
    ],
)
def test_growth_above_what_is_normal_is_a_finding_and_totals_are_none(
    infiniband: Topology, hgx_h100: Profile, path: str, counter: str, most: int, check: str
) -> None:
    have = healthy(infiniband, gpus=gpus(infiniband, {4: {path: str(10**12)}}))
    assert bad(after(have), infiniband, hgx_h100) == []
    assert bad(grown(have, counter, most), infiniband, hgx_h100) == []
    finding = one(grown(have, counter, most + 1), infiniband, hgx_h100)
    assert (finding.check, finding.subject) == (f"node_health.{check}", f"{addresses(infiniband)[4]} GPU4")


def test_what_grew_within_seconds_is_no_rate(infiniband: Topology, hgx_h100: Profile) -> None:
    have = grown(healthy(infiniband, gpus=gpus(infiniband, {4: {"pci/replay_counter": "9000"}})), "replays", 9000)
    assert have.before is not None
    soon = replace(have, before=replace(have.before, at=NOW - 30.0))
    assert bad(soon, infiniband, hgx_h100) == []
    assert one(replace(have, before=replace(have.before, at=NOW - 90.0)), infiniband, hgx_h100).have is not None


@pytest.mark.parametrize(
    ("counter", "count", "severity"),
    [
        ("Recovery Errors", 1, "minor"),
        ("Recovery Errors", 505, "major"),
        ("Replay Errors", 1, "major"),
        ("CRC Errors", 7, "minor"),
        ("CRC Errors", 100 * 86400, "major"),
    ],
)
def test_errors_of_an_nvlink_by_growth_alone(
    infiniband: Topology, hgx_h100: Profile, counter: str, count: int, severity: str
) -> None:
    odd = nvlink.parse_errors(smi_answers.errors(8, odd={(4, 11, counter): 10**9 + count}))
    have = healthy(infiniband, errors=odd)
    assert bad(after(have), infiniband, hgx_h100) == []
    finding = one(grown(have, f"link 11 {nvlink.COUNTERS[counter]}", count), infiniband, hgx_h100)
    assert (finding.check, finding.severity) == ("node_health.nvlink_errors", severity)
    assert f"link 11 {nvlink.COUNTERS[counter]} +{count} in 24.0 h" in str(finding.have)


def test_a_reboot_a_reload_and_a_clock_that_was_set_are_beginnings(infiniband: Topology, hgx_h100: Profile) -> None:
    odd = nvlink.parse_errors(smi_answers.errors(8, odd={(4, 11, "Replay Errors"): 900}))
    grew = grown(healthy(infiniband, errors=odd), "link 11 replays", 900)
    assert grew.before is not None
    assert bad(grew, infiniband, hgx_h100) != []
    reloaded = replace(grew.before, driver_loaded={"nvidia": "56758272 0xffffffffc0800000"})
    assert bad(replace(grew, before=reloaded), infiniband, hgx_h100) == []
    kept = record.Kept(grew.before)
    assert record.baseline(kept, NOW, "boot-1") == grew.before
    assert record.baseline(kept, NOW, "boot-2") is None
    assert record.baseline(kept, NOW - 2 * NIGHT, "boot-1") is None


@pytest.mark.parametrize(
    ("kind", "by", "severity"),
    [("fatal", 1, "critical"), ("nonfatal", 1, "major"), ("correctable", 46081, "minor"), ("correctable", 46080, "")],
)
def test_aer_by_growth(infiniband: Topology, hgx_h100: Profile, kind: str, by: int, severity: str) -> None:
    pci = infiniband.nics[1].pci
    have = healthy(infiniband, aer={pci: {"correctable": 10**9, "nonfatal": 5, "fatal": 5}})
    counts = dict(have.aer[pci])
    have = after(have, pci={pci: {**counts, kind: counts[kind] - by}})
    found = bad(have, infiniband, hgx_h100)
    assert [(one.check, one.severity) for one in found] == ([("node_health.aer", severity)] if severity else [])


# -- NVLink, Fabric Manager, the rest --------------------------------------------------------------------------------


def test_a_slow_nvlink_is_told_and_one_that_is_down_is_the_platforms(infiniband: Topology, hgx_h100: Profile) -> None:
    slow = nvlink.parse_status(smi_answers.status(8, odd={(1, 3): "20.000 GB/s", (2, 3): "<inactive>"}))
    finding = one(healthy(infiniband, speeds=slow), infiniband, hgx_h100)
    assert (finding.check, finding.have) == ("node_health.nvlink_state", "link 3 20 GB/s")


def test_boards_without_nvlink_are_not_asked_for_it(infiniband: Topology, hgx_h100: Profile) -> None:
    none = healthy(infiniband, speeds={}, errors={})
    assert bad(none, infiniband, hgx_h100) == []
    assert bad(replace(none, speeds=None, errors=None, fabric_manager=None), infiniband, hgx_h100) == []


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"installed": False}, "drift"),
        ({"active": False, "state": "failed (failed)"}, "drift"),
        ({"version": "580.1.2"}, "drift"),
        ({"version": "580.1.2", "active": False}, "drift"),
        ({"enabled": False}, "drift"),
        ({"version": None}, "unknown"),
        ({"installed": None, "problem": Problem("systemctl", "hung")}, "unknown"),
    ],
)
def test_the_fabric_manager_runs_in_the_drivers_version(
    infiniband: Topology, hgx_h100: Profile, change: dict[str, Any], state: str
) -> None:
    have = healthy(infiniband)
    assert have.fabric_manager is not None
    finding = one(replace(have, fabric_manager=replace(have.fabric_manager, **change)), infiniband, hgx_h100)
    assert (finding.check, finding.state) == ("node_health.fabric_manager", state)


def test_gpus_of_two_fabrics(infiniband: Topology, hgx_h100: Profile) -> None:
    have = healthy(infiniband, gpus=gpus(infiniband, {7: {"fabric/cliqueId": "1"}}))
    assert one(have, infiniband, hgx_h100).check == "node_health.fabric_state"


def test_what_did_not_answer_is_unknown(infiniband: Topology, hgx_h100: Profile) -> None:
    hung = healthy(infiniband, gpus=None, problems=(Problem("nvidia-smi -q -x", "did not respond within 20 s"),))
    finding = one(hung, infiniband, hgx_h100)
    assert (finding.check, finding.because) == ("node_health.gpu_answers", "platform.gpu_tool[live]@nvidia-smi")
    silent = healthy(infiniband, errors=None, problems=(Problem("nvidia-smi nvlink -e", "ended with 6"),))
    assert one(silent, infiniband, hgx_h100).check == "node_health.nvlink_errors"
    lost = kernel_log.Log(complete=False, problem=Problem("dmesg", "begins 7000 s after the boot"))
    found = bad(healthy(infiniband, log=lost), infiniband, hgx_h100)
    (root,) = (finding for finding in found if finding.because is None)
    assert root.check == "node_health.kernel_log"
    # Nothing that only the log tells is ok.
    assert {finding.because for finding in found if finding is not root} == {root.id}
    assert {"node_health.xid", "node_health.nic_driver", "node_health.kernel"} <= {finding.check for finding in found}
    assert (
        one(healthy(infiniband, unkept=Problem(record.FILE, "x")), infiniband, hgx_h100).check == "node_health.record"
    )
    assert one(healthy(infiniband, boot_id=""), infiniband, hgx_h100).check == "node_health.record"


def test_a_hot_module_is_told(infiniband: Topology, hgx_h100: Profile) -> None:
    hot = (hwmon.Sensor(infiniband.nics[0].pci, "Module0", 81.0, 80.0, "temp2_input"),)
    assert one(healthy(infiniband, hot=hot), infiniband, hgx_h100).check == "node_health.nic_temperature"
