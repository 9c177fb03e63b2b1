# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is a finding of a node's health, and what looks like one and is none (health.md 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    judge,
    kernel_log,
    nvlink,
    record,
    smi,
    system,
    xid,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge import Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.health.service import Service

from tests import goldens, readings, smi_answers
from tests.unit import finding_rows
from tests.unit.conftest import built_in, machine

NOW, NIGHT = 1_800_000_000.0, 86400.0
NODE, PROFILE = machine(), built_in("hgx-h100", "infiniband")
GPUS = [gpu.pci for gpu in NODE.gpus]
RUNNING = Service(installed=True, active=True, enabled=True, state="active (running)")
DRIVER_580 = "580.159.04"
DRIVER = {"nvidia": "56758272 0xffffffffc1200000"}


def gpus(changes: Mapping[int, smi_answers.Changes] | None = None, driver: str = DRIVER_580) -> dict[str, smi.Gpu]:
    return {gpu.pci: gpu for gpu in smi.parse(smi_answers.xml(GPUS, changes, driver))}


def speeds(odd: dict[tuple[int, int], str] | None = None) -> nvlink.Speeds:
    return nvlink.parse_status(smi_answers.status(len(GPUS), odd=odd))


HEALTHY = NodeState(
    now=NOW,
    boot_id="boot-1",
    driver_loaded=DRIVER,
    gpus=gpus(),
    speeds=speeds(),
    errors=nvlink.parse_errors(smi_answers.errors(len(GPUS))),
    log=kernel_log.Log(uptime=200_000.0),
    aer={pci: dict.fromkeys(("correctable", "nonfatal", "fatal"), 0) for pci in GPUS},
    fabric_manager=replace(RUNNING, version=NODE.driver.version if NODE.driver else None),
)


def healthy(**more: Any) -> NodeState:
    return replace(HEALTHY, **more)


def odd(gpu: int, **more: Any) -> NodeState:
    """One GPU with other values."""
    return healthy(gpus=gpus({gpu: more}))


def after(have: NodeState, **before: Any) -> NodeState:
    """The same question a night after one with its counters, but for ``before``."""
    return replace(have, before=replace(judge.counters(have), at=NOW - NIGHT, **before))


def bad(have: NodeState, **wanted: Any) -> list[Finding]:
    return [one for one in judge.plan(have, NODE, Wanted(PROFILE, **wanted)).findings if not one.ok]


def one(have: NodeState, **wanted: Any) -> Finding:
    """The one that nothing else of the plan causes."""
    found = bad(have, **wanted)
    ids = {finding.id for finding in found}
    [root] = [finding for finding in found if finding.because not in ids]
    return root


def said(number: int, age: float = 3600.0, gpu: int = 2, text: str = "pid=1") -> xid.Event:
    event = xid.parse(f"NVRM: Xid (PCI:{GPUS[gpu][:-2]}): {number}, {text}", age)
    assert event is not None
    return event


def test_a_healthy_machine_has_only_good_findings() -> None:
    first = healthy()
    assert bad(first) == bad(after(first)) == []
    plans = [judge.plan(have, NODE, Wanted(PROFILE)) for have in (first, after(first))]
    assert len(plans[0].findings) > 100
    assert [len(plan.notes) for plan in plans] == [1, 0]


@pytest.mark.parametrize(("change", "check", "state"), readings.cases("health_gpu_odd"))
def test_one_odd_value_of_one_gpu_is_one_finding(change: dict[str, str | None], check: str, state: str) -> None:
    finding = one(healthy(gpus=gpus({3: change})))
    assert (finding.check, finding.state) == (f"node_health.{check}", state)
    assert finding.subject == f"{GPUS[3]} GPU3"


@pytest.mark.parametrize("change", readings.cases("health_gpu_normal"))
def test_what_is_normal_is_no_finding(change: dict[str, str | None]) -> None:
    have = healthy(gpus=gpus(dict.fromkeys(range(8), change)))
    assert bad(have) == []
    assert bad(after(have)) == []


@pytest.mark.parametrize("layout", smi_answers.LAYOUTS)
def test_no_check_is_ok_without_a_value_that_it_needs(layout: str) -> None:
    driver, changes = smi_answers.LAYOUTS[layout]
    alone = replace(NODE, gpus=NODE.gpus[:1])
    text = smi_answers.xml(GPUS[:1], {0: changes}, driver)
    fabric = "<state>Completed" in text
    profile = replace(PROFILE, gpus=replace(PROFILE.gpus, nvlink_fabric=fabric))

    def judged(text: str) -> list[Finding]:
        have = healthy(gpus={gpu.pci: gpu for gpu in smi.parse(text)})
        found = judge.plan(replace(have, fabric_manager=None, speeds=None, errors=None), alone, Wanted(profile))
        return [finding for finding in found.findings if finding.identity == alone.gpus[0].pci]

    found = judged(text)
    assert [finding for finding in found if not finding.ok and not finding.inapplicable] == []
    assert all(finding.have and finding.source for finding in found)
    elements, left = smi_answers.silent(text, lambda text: {one.check: one.state for one in judged(text)})
    assert elements >= (26 if "T4" in layout else 30)
    assert left == []


@pytest.mark.parametrize(("layout", "checks"), readings.cases("health_gpu_unsupported"))
def test_what_a_gpu_cannot_have_is_unsupported_and_harms_no_node(layout: str, checks: list[str]) -> None:
    driver, changes = smi_answers.LAYOUTS[layout]
    (gpu,) = smi.parse(smi_answers.xml(GPUS[:1], {0: changes}, driver))
    profile = replace(PROFILE, gpus=replace(PROFILE.gpus, nvlink_fabric=gpu.fabric.get("state") == "Completed"))
    plan = judge.plan(healthy(gpus={gpu.pci: gpu}), NODE, Wanted(profile))
    found = {one.check for one in plan.findings if one.state == "unsupported"}
    assert found == {f"node_health.{check}" for check in checks}
    assert not found & {one["check"] for one in plan.result()["findings"]}
    assert not found & {one.partition("[")[0] for one in plan.result()["passed"]}


def test_advice_for_several_gpus_names_none_of_them() -> None:
    change: dict[str, str | None] = {CAP: "500.00 W", "applications_clocks/graphics_clock": "1200 MHz"}
    change |= {
        "mig_mode/current_mig": "Enabled",
        "ecc_mode/current_ecc": "Disabled",
        "gpu_recovery_action": "Drain P2P",
    }
    change |= dict.fromkeys(("remapped_rows/remapped_row_pending", "ecc_errors/tpc_repair_pending"), "Yes")
    slow = speeds({(number, 3): "20.000 GB/s" for number in range(8)})
    have = healthy(speeds=slow, gpus=gpus(dict.fromkeys(range(8), change)))
    found = bad(have)
    assert len({f.check for f in found}) == 8
    assert len({(f.check, f.fix) for f in found}) == 8
    assert not [f.fix for f in found if f.identity in f.fix]


@pytest.mark.parametrize(("product", "speed", "state"), [("A40", 14.062, "ok"), ("A100-SXM4-80GB", 14.062, "drift")])
def test_boards_of_ampere_without_hbm_have_slower_links(product: str, speed: float, state: str) -> None:
    gpu = replace(gpus()[GPUS[0]], texts={"product": f"NVIDIA {product}", "architecture": "Ampere"})
    (finding,) = nvlink.judge(gpu, "GPU0", {gpu.uuid or "": dict.fromkeys(range(4), speed)}, None, ({}, 0.0))
    assert finding.state == state


def lacking(lost: int, **more: Any) -> NodeState:
    """nvidia-smi does not list this GPU."""
    return healthy(gpus={pci: gpu for pci, gpu in gpus().items() if pci != GPUS[lost]}, **more)


def grown(have: NodeState, counter: str, by: int, gpu: int = 4) -> NodeState:
    """As ``have``, a night after a question at which one counter of one GPU was so much lower."""
    now = judge.counters(have).gpus
    uuid = smi_answers.UUID % gpu
    return after(have, gpus={**now, uuid: {**now[uuid], counter: now[uuid][counter] - by}})


def grew(path: str, counter: str, by: int) -> NodeState:
    """A counter of a GPU that has grown, from a million millions on."""
    return grown(odd(4, **{path: str(10**12)}), counter, by)


def links(counter: str, by: int) -> NodeState:
    """Errors of a link, from a thousand millions on."""
    errors = nvlink.parse_errors(smi_answers.errors(8, odd={(4, 11, counter): 10**9 + by}))
    return grown(healthy(errors=errors), f"link 11 {nvlink.COUNTERS[counter]}", by)


def aer(kind: str, by: int) -> NodeState:
    pci = NODE.nics[1].pci
    have = healthy(aer={pci: {"correctable": 10**9, "nonfatal": 5, "fatal": 5}})
    return after(have, pci={pci: {**have.aer[pci], kind: have.aer[pci][kind] - by}})


def since(have: NodeState, seconds: float) -> NodeState:
    assert have.before is not None
    return replace(have, before=replace(have.before, at=NOW - seconds))


def reloaded(have: NodeState) -> NodeState:
    assert have.before is not None
    return replace(have, before=replace(have.before, driver_loaded={"nvidia": "56758272 0xffffffffc0800000"}))


def program(**more: Any) -> NodeState:
    """The Fabric Manager with other values."""
    return healthy(fabric_manager=replace(healthy().fabric_manager or RUNNING, **more))


RESET: smi_answers.Changes = {"gpu_recovery_action": "Reset"}
# Of a driver that says nothing of recovery, no Xid is over.
OLD: smi_answers.Changes = {
    "gpu_recovery_action": None,
    **{f"gpu_reset_status/{name}": "No" for name in ("reset_required", "drain_and_reset_recommended")},
}
MEMORY: smi_answers.Changes = {
    "gpu_recovery_action": "Drain and Reset",
    "ecc_errors/volatile/dram_uncorrectable": "1",
    "remapped_rows/remapped_row_pending": "Yes",
}
REBOOT: smi_answers.Changes = {"gpu_recovery_action": "Reboot"}
ASKED = {0: REBOOT, 1: REBOOT, 3: {**REBOOT, "remapped_rows/remapped_row_pending": "Yes"}, 4: RESET}
NESTED = {key: text for key, text in smi_answers.LAYOUTS["GB200, 610"][1].items() if key.startswith("gpu_power")}
CAP = "gpu_power_readings/current_power_limit"
CEILING = "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit"
CHANGED = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
CHANGED_BACK = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
AER = "/sys/bus/pci/devices/%s"
BRAKE = "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake"
# Xids, each with the action beside it: (age, text).
ENDED: dict[str, tuple[int, tuple[float, str] | None]] = {
    # What is left of a memory error the driver itself says.
    "48": (48, None),
    "119": (119, None),
    # Of a link it says nothing unless it has announced something.
    "74": (74, None),
    "149": (149, None),
    "74 that is to be reset": (74, (3595.0, CHANGED)),
    "74 that is over": (74, (3595.0, CHANGED_BACK)),
    # Hours before it was something else.
    "74, and a reset before": (74, (9000.0, CHANGED)),
    # Off the bus it is until the node is booted.
    "79 that is to be reset": (79, (3595.0, CHANGED)),
}


def ended(name: str, changes: Mapping[int, smi_answers.Changes] | None = None) -> NodeState:
    number, beside = ENDED[name]
    others = [] if beside is None else [said(154, age=beside[0], text=beside[1])]
    return healthy(events=(said(number), *others), gpus=gpus(changes))


def reported(number: int, changes: dict[int, smi_answers.Changes] | None = None, driver: str = DRIVER_580) -> NodeState:
    return healthy(events=(said(number),), gpus=gpus(changes, driver))


SITUATIONS: dict[str, Callable[[], NodeState]] = {
    "ceiling of power, driver 610": lambda: odd(3, **{**NESTED, CEILING: "700.00 W"}),
    # -- Xid
    **{f"program's Xid {number}": partial(reported, number) for number in (13, 31, 43, 45, 63, 92, 94, 154)},
    "Xid of no table": partial(reported, 4711),
    **{f"Xid {name}": partial(ended, name) for name in ENDED},
    # As long as it asks for it the line counts in any case, and this follows from it.
    **{f"Xid {name}, asking": partial(ended, name, {2: RESET}) for name in ENDED},
    **{f"Xid {number} of an old driver": partial(reported, number, {2: OLD}, "550.90.12") for number in (48, 119)},
    "memory error": lambda: healthy(gpus=gpus({2: MEMORY}), events=tuple(map(said, (48, 63, 95, 45, 45)))),
    "GPU off the bus": lambda: lacking(2, events=(said(79), said(154), said(74, 3590.0, 5, "NVLink: fatal"))),
    "GPU that nvidia-smi lacks": lambda: lacking(6),
    # What else a GPU has is its own.
    "others ask for a reboot": lambda: healthy(gpus=gpus(ASKED), events=(said(79),)),
    "GPUs ask, and no Xid": lambda: healthy(gpus=gpus(ASKED)),
    # -- growth: of a total nothing is said
    "replays": lambda: grew("pci/replay_counter", "replays", 31 * 1440),
    "too many replays": lambda: grew("pci/replay_counter", "replays", 31 * 1440 + 1),
    "replays within 30 s": lambda: since(grew("pci/replay_counter", "replays", 9000), 30.0),
    "replays within 90 s": lambda: since(grew("pci/replay_counter", "replays", 9000), 90.0),
    "dram": lambda: grew("ecc_errors/aggregate/dram_correctable", "ecc dram_correctable", 20_000_000),
    "too much of dram": lambda: grew("ecc_errors/aggregate/dram_correctable", "ecc dram_correctable", 20_000_001),
    "sram": lambda: grew("ecc_errors/aggregate/sram_correctable", "ecc sram_correctable", 10_000),
    "too much of sram": lambda: grew("ecc_errors/aggregate/sram_correctable", "ecc sram_correctable", 10_001),
    "slowed": lambda: grew(BRAKE, "slowed hw_power_brake_slowdown", 864_000_000),
    "slowed too long": lambda: grew(BRAKE, "slowed hw_power_brake_slowdown", 864_000_001),
    "total": lambda: after(odd(4, **{"pci/replay_counter": str(10**12)})),
    "link recovered": lambda: links("Recovery Errors", 1),
    "link recovered 505 times": lambda: links("Recovery Errors", 505),
    "link replayed": lambda: links("Replay Errors", 1),
    "link with CRC errors": lambda: links("CRC Errors", 7),
    "link with many CRC errors": lambda: links("CRC Errors", 100 * 86400),
    "link replayed before a reload": lambda: reloaded(links("Replay Errors", 900)),
    "total of a link": lambda: links("CRC Errors", 0),
    "PCIe error, fatal": lambda: aer("fatal", 1),
    "PCIe error, nonfatal": lambda: aer("nonfatal", 1),
    "PCIe errors that were corrected": lambda: aer("correctable", 46080),
    "too many of them": lambda: aer("correctable", 46081),
    "PCIe errors not read": lambda: healthy(problems=(Problem(f"{AER % GPUS[1]}/aer_dev_fatal", "No such device"),)),
    # -- NVLink, Fabric Manager, the rest; of a link that is down the platform tells
    "slow link": lambda: healthy(speeds=speeds({(1, 3): "20.000 GB/s", (2, 3): "<inactive>"})),
    "boards without NVLink": lambda: healthy(speeds={}, errors={}),
    "boards that are not asked for it": lambda: healthy(speeds=None, errors=None, fabric_manager=None),
    "no Fabric Manager": lambda: program(installed=False),
    "Fabric Manager failed": lambda: program(active=False, state="failed (failed)"),
    "Fabric Manager of another version": lambda: program(version="580.1.2"),
    "Fabric Manager of another version, not active": lambda: program(version="580.1.2", active=False),
    "Fabric Manager not enabled": lambda: program(enabled=False),
    "Fabric Manager without a version": lambda: program(version=None),
    "Fabric Manager not known": lambda: program(installed=None, problem=Problem("systemctl", "hung")),
    "GPUs of two fabrics": lambda: odd(7, **{"fabric/cliqueId": "1"}),
    "nvidia-smi hangs": lambda: healthy(gpus=None, problems=(Problem("nvidia-smi -q -x", "no response in 20 s"),)),
    "no errors of links": lambda: healthy(errors=None, problems=(Problem("nvidia-smi nvlink -e", "ended with 6"),)),
    # Nothing that only the log tells is ok.
    "part of the log": lambda: healthy(log=kernel_log.Log(problem=Problem("dmesg", "7000 s late"))),
    "record not read": lambda: healthy(unkept=Problem(record.FILE, "x")),
    "boot not known": lambda: healthy(boot_id=""),
    "hot module": lambda: healthy(hot=(system.Sensor(NODE.nics[0].pci, "Module0", 81.0, 80.0, "temp2_input"),)),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_of_a_node(name: str) -> None:
    found = [one for one in bad(SITUATIONS[name]()) if not one.inapplicable]
    goldens.check("health_judge", name, finding_rows.rows(found, "node_health."))


def test_a_cap_that_the_site_means_is_asked_for() -> None:
    capped = healthy(gpus=gpus({number: {CAP: "500.00 W"} for number in range(8)}))
    assert (len(bad(capped)), bad(capped, power_limit=500), len(bad(healthy(), power_limit=500))) == (8, [], 8)


def test_an_empty_gpu_has_one_cause_and_nothing_ok() -> None:
    (empty,) = smi.parse(f'<nvidia_smi_log><gpu id="{GPUS[3]}"></gpu></nvidia_smi_log>')
    have = healthy(gpus={**gpus(), empty.pci: empty})
    assert one(have).check == "node_health.gpu_answers"
    found = [f for f in judge.plan(have, NODE, Wanted(PROFILE)).findings if f.identity == empty.pci]
    # The kernel's log and AER are other sources.
    assert {f.check for f in found if f.ok} == {"node_health.xid", "node_health.aer"}
    assert {f.state for f in found if not f.ok} == {"unknown"}
