# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Captured machines that are well are judged without a finding."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    judge,
    judge_ports,
    kernel_log,
    nvlink,
    port_counters,
    service,
    smi,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge import Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Driver, Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import GpuProfile, Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization

from tests import smi_answers

NIGHT = 86400.0


def machine(gpus: Mapping[str, smi.Gpu], driver: str, guest: bool) -> Topology:
    """With the GPUs that nvidia-smi lists, on the bus."""
    device = PciDevice("", 0x030200, 0x10DE, 0x2330, None, (), None, None, None, None, None, "nvidia", "/sys")
    there = tuple(
        Gpu(pci, n, device._replace(address=pci), one.texts.get("product"), one.uuid, True, 18, 18, None, None)
        for n, (pci, one) in enumerate(sorted(gpus.items()))
    )
    return Topology(there, (), {}, Driver(driver, True, "x"), (), Virtualization(guest, "kvm", "x"), (), ())


def bad(have: NodeState, topology: Topology, links: int) -> list[Finding]:
    """Now, and the night after, with the same counters."""
    profile = Profile("captured", "", GpuProfile(len(topology.gpus), (), links, links > 0, None, ()), ())
    after = replace(have, before=replace(judge.counters(have), at=have.now - NIGHT))
    plans = [judge.plan(one, topology, Wanted(profile)) for one in (have, after)]
    return [finding for plan in plans for finding in plan.findings if not finding.ok]


@pytest.mark.parametrize(
    ("name", "many"), [("h200x1/nvidia-smi-q.xml", 42), ("misc/*.xml.gz", 39), ("h200x2-phases/nvidia-smi-q.xml", 46)]
)
def test_no_check_is_ok_without_a_value_that_it_needs(samples: Path, name: str, many: int) -> None:
    (path,) = samples.glob(name)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    # The clocks that it can have, and all GPUs but the first.
    text = re.sub(r"(?s)<(supported_clocks|processes)>.*?</\1>", "", text)
    text = re.sub(r"(?s)(</gpu>).*</gpu>", r"\1", text)
    fabric = "<state>Completed" in text

    def judged(text: str) -> list[Finding]:
        gpus = listed(text)
        profile = Profile("captured", "", GpuProfile(1, (), 0, fabric, None, ()), ())
        have = NodeState(now=1e9, boot_id="b", gpus=gpus, log=kernel_log.Log(uptime=1e5))
        found = judge.plan(have, machine(gpus, "x", True), Wanted(profile)).findings
        return [one for one in found if one.identity in gpus]

    assert all(one.ok and one.have and one.source for one in judged(text))
    elements, left = smi_answers.silent(text, lambda text: {one.check: one.state for one in judged(text)})
    assert (elements, left) == (many, [])


def listed(text: str) -> dict[str, smi.Gpu]:
    return {gpu.pci: gpu for gpu in smi.parse(text)}


def test_one_h200_that_was_passed_through(samples: Path) -> None:
    gpus = listed((samples / "h200x1/nvidia-smi-q.xml").read_text())
    have = NodeState(now=1e9, boot_id="b", gpus=gpus, log=kernel_log.Log(uptime=1e5))
    assert bad(have, machine(gpus, "580.159.04", guest=True), links=0) == []
    (gpu,) = gpus.values()
    margin = (gpu.numbers["margin"], gpu.numbers["margin_limit"])
    assert (gpu.lost, gpu.texts["recovery"], margin, gpu.numbers["power_limit"]) == ((), "None", (50.0, -2.0), 700.0)
    assert {name.partition(" ")[2] for name in gpu.counts if name.startswith("slowed ")} == {
        *("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    }


def test_eight_h100_whose_replays_and_persistence_mode_are_no_findings(samples: Path) -> None:
    (path,) = (samples / "misc").glob("nvidia-smi-q-x-*.xml.gz")
    gpus = listed(gzip.decompress(path.read_bytes()).decode())
    manager = service.Service(True, True, True, "active (running)", version="570.86.15")
    have = NodeState(now=1e9, boot_id="b", gpus=gpus, log=kernel_log.Log(uptime=1e5), fabric_manager=manager)
    assert bad(have, machine(gpus, "570.86.15", guest=False), links=18) == []
    assert [gpu.counts["replays"] for gpu in gpus.values()] == [3, 0, 0, 0, 0, 0, 0, 3]
    assert "persistence mode is off on 8 GPUs" in " ".join(judge.notes(have))
    assert {gpu.lost for gpu in gpus.values()} == {()}


def test_nvlinks_of_eight_h200_and_of_a100s(samples: Path) -> None:
    for name, architecture, links, speed in (
        ("h200x8/nvidia-smi-nvlink-s.txt", "Hopper", 18, 26.562),
        ("gpud/nvidia-smi.nvlink.status.a100", "Ampere", 12, 25.0),
    ):
        speeds = nvlink.parse_status((samples / name).read_text())
        assert [set(of.values()) for of in speeds.values()] == [{speed}] * 8
        assert {len(of) for of in speeds.values()} == {links}
        gpus = {
            f"0000:{n:02x}:00.0": smi.Gpu(f"0000:{n:02x}:00.0", uuid, texts={"architecture": architecture})
            for n, uuid in enumerate(speeds)
        }
        have = NodeState(now=1e9, boot_id="b", gpus=gpus, speeds=speeds, log=kernel_log.Log(uptime=1e5))
        profile = Profile("captured", "", GpuProfile(8, (), links, False, None, ()), ())
        plan = judge.plan(have, machine(gpus, "580.159.04", guest=True), Wanted(profile))
        states = [one for one in plan.findings if one.check == nvlink.NVLINK_STATE.id]
        assert {(one.state, one.have) for one in states} == {("ok", f"{links} links of {speed:g} GB/s or more")}


def test_no_line_of_a_kernel_log_that_is_well_is_a_finding(samples: Path) -> None:
    for name in ("gpud/kmsg.2.peermem.log", "misc/dmesg-mlx5-pcie-limited.txt"):
        log, _first = kernel_log.parse((samples / name).read_text(errors="replace"))
        gpus = listed((samples / "h200x1/nvidia-smi-q.xml").read_text())
        have = NodeState(now=1e9, boot_id="b", gpus=gpus, log=log, events=kernel_log.events(log))
        assert bad(have, machine(gpus, "580.159.04", guest=True), links=0) == []


def test_ports_of_eight_h100_have_nothing_but_a_counter_that_has_come_to_its_end(samples: Path, tmp_path: Path) -> None:
    """Fifteen overruns are all that four bits hold: nobody knows of more."""
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(samples / "gpud/sys-class-infiniband-h100.0")
    host = Host(str(tmp_path), str(tmp_path))
    devices = [device for device in rdma.read(host)[0] if "bond" not in device.name]
    own = PciDevice("", 0x020700, 0x15B3, 0x1021, None, (), None, None, None, None, None, "mlx5_core", "/sys")
    nics = {
        rail: Nic(f"0000:{rail:02x}:00.0", own._replace(address=f"0000:{rail:02x}:00.0"), "compute", "x", device, ())
        for rail, device in enumerate(devices)
    }
    have = NodeState(now=1e9, boot_id="b", ports=port_counters.read(host, nics, 1e9))
    then = NodeState(now=1e9 - NIGHT, boot_id="b", ports=port_counters.read(host, nics, 1e9 - NIGHT))
    assert [port.speed for port in have.ports] == ["NDR"] * 8
    ended = [port.label for port in have.ports if port.values["excessive_buffer_overrun_errors"] == 15]
    assert ended
    for one in (have, replace(have, before=judge.counters(then))):
        found = [finding for finding in judge_ports.plan(one).findings if not finding.ok]
        assert {(finding.check, finding.state) for finding in found} == {("node_health.port_saturated", "unknown")}
        assert [finding.subject for finding in found] == ended
