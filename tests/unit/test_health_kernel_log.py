# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the kernel's log means: each planted line is one finding about the right device, and no harmless one is any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_kernel_log, kernel_log, smi, xid
from ansible_collections.busbar.fabric.plugins.module_utils.health.kernel_log_rules import BY_NAME
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

from tests import readings, smi_answers
from tests.unit.conftest import Edit, built_in, machine

GPU, NIC, BRIDGE, OTHER = "0000:30:00.0", "0000:31:00.0", "0000:2e:01.0", "0000:c5:00.0"
UPTIME = 400_000.0
MLX, TX = f"mlx5_core {NIC}: ", f"mlx5_core {NIC} ib2: TX timeout detected"
NVLINK = f"NVRM: Xid (PCI:{GPU[:-2]}): "


def node() -> Topology:
    """GPU 2 and rail 2 below one bridge, and a NIC of the storage network."""
    below = ("pci0000:2e", BRIDGE)
    made = Edit.nic(machine(), 2, device_ancestors=below)
    device, first = made.gpus[2].device, made.nics[0]
    assert device is not None
    assert first.rdma is not None
    netdevs = (first.netdevs[0]._replace(name="eno9", pci=OTHER),)
    rdma, own = first.rdma._replace(name="mlx5_9"), first.device._replace(address=OTHER)
    storage = first._replace(pci=OTHER, role="storage", rdma=rdma, netdevs=netdevs, device=own)
    made = Edit.gpu(made, 2, device=device._replace(ancestors=below))
    paths = {**made.paths, **{(gpu.pci, OTHER): "SYS" for gpu in made.gpus}}
    return replace(made, nics=(*made.nics, storage), paths=paths)


NODE, PROFILE = node(), built_in("hgx-h100", "infiniband")


def read(text: str, at: float = UPTIME - 3600.0) -> kernel_log.Log:
    """A log of lines with ``at`` seconds, a tenth later each; lines that begin with a time keep it."""
    lines = ["[    0.000000] Linux version 6.8.0-60-generic"]
    for number, line in enumerate(text.splitlines()):
        own, _sign, rest = line.partition("| ")
        lines.append(f"[{float(own):.6f}] {rest}" if rest else f"[{at + number / 10:.6f}] {line}")
    log, _first = kernel_log.parse("\n".join(lines), UPTIME - 86400.0)
    return log._replace(uptime=UPTIME)


def have(text: str) -> NodeState:
    log = read(text)
    gpus = {gpu.pci: gpu for gpu in smi.parse(smi_answers.xml([gpu.pci for gpu in NODE.gpus]))}
    return NodeState(now=1e9, boot_id="b", gpus=gpus, log=log, events=kernel_log.events(log))


def judged(text: str, topology: Topology = NODE) -> list[Finding]:
    others, xids = judge_kernel_log.plan(have(text), topology, judge_kernel_log.places(topology, PROFILE))
    return [finding for finding in (*xids.values(), *others) if not finding.ok]


def corpus(name: str) -> list[tuple[str, ...]]:
    """Messages of tests/unit/kernel_logs, each with the words of the heading that it stands below."""
    found, heading = [], ""
    for line in (Path(__file__).parent / "kernel_logs" / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            heading = line.removeprefix("#== ")
        else:
            found.append((line.replace("\\n", "\n"), *heading.split(", ")))
    return found


@pytest.mark.parametrize(("text", "check", "severity", "subject"), corpus("findings"))
def test_a_planted_line_is_one_finding_about_its_device(text: str, check: str, severity: str, subject: str) -> None:
    (finding,) = judged(text)
    assert (finding.check, finding.severity, finding.identity) == (f"node_health.{check}", severity, subject)


@pytest.mark.parametrize("text", [text for text, *_heading in corpus("harmless")])
def test_a_harmless_line_is_no_finding(text: str) -> None:
    assert [finding.id for finding in judged(text)] == []


@pytest.mark.parametrize(("text", "severities"), readings.cases("kernel_log_order"))
def test_what_comes_after_a_line_or_before_it_counts(text: str, severities: list[str]) -> None:
    assert {finding.severity for finding in judged(text)} == set(severities)


def test_causes_stand_before_what_follows_from_them() -> None:
    text = f"pcieport {BRIDGE}: DPC: containment event, status:0x1\n{MLX}PCI slot is unavailable"
    roots = [finding.check for finding in judged(text) if finding.because is None]
    assert roots == ["node_health.pcie_error"]
    found = judged(f"{NVLINK}119, Timeout\nNVRM: x Reset required [NV_ERR_RESET_REQUIRED]")
    # nvidia-smi needs no reset any more, so that the text alone stands; a GPU off the bus explains it.
    assert [(finding.check, finding.because) for finding in found] == [("node_health.gpu_driver", None)]
    found = judged(f"{NVLINK}79, off\nNVRM: x Reset required [NV_ERR_RESET_REQUIRED]")
    assert [finding.because for finding in found] == [None, found[0].id]
    down = Edit.nic(NODE, 2, port_state="DOWN")
    (finding,) = judged(f"{MLX}Port module event: module 0, Cable unplugged", down)
    assert finding.because == f"platform.rail_state[live]@{NIC}"


def test_a_storm_hides_no_other_device_and_what_is_left_out_is_told() -> None:
    other = "NVRM: Xid (PCI:0000:60:00): 74, pid=7, NVLink: fatal error detected on link 14(0x1)"
    storm = "\n".join(f"{NVLINK}31, pid={n}, name=python3, MMU Fault" for n in range(3000))
    (finding,) = judged(f"{other}\n{storm}")
    assert (finding.check, finding.identity) == ("node_health.xid", "0000:60:00.0")
    assert [(event.number, event.count) for event in have(f"{other}\n{storm}").events] == [(74, 1), (31, 1), (31, 2999)]
    many = "\n".join(f"nfs: server nas{n} not responding, still trying" for n in range(500))
    log = read(many)
    assert (len(log.series), log.dropped) == (400, 100)
    states = {finding.check: finding.state for finding in judged(many) if finding.because is None}
    assert states["node_health.kernel_log"] == "unknown"


@pytest.mark.parametrize("text", [text for text, *_heading in corpus("times")])
def test_every_form_of_a_time_is_read(text: str) -> None:
    log, first = kernel_log.parse(f"{text}\n")
    assert [round(one.first.at or 0.0) for one in log.series] == [9000]
    assert first is not None


def test_every_rule_is_whole() -> None:
    for rule in BY_NAME.values():
        assert all(name in BY_NAME for name in rule.ended_by.split())
        assert bool(rule.meaning and rule.fix) == (rule.severity in ("critical", "major", "minor")), rule.name
    assert {*range(1, 155)} <= set(xid.TABLE)


def test_an_xid_of_a_program_is_a_note() -> None:
    (note,) = judge_kernel_log.notes(have(f"{NVLINK}94, Contained"))
    assert "Xid 94 (" in note
    # What another Xid has caused is no fault of a program.
    assert judge_kernel_log.notes(have(f"{NVLINK}45, pid=9, name=p, Ch 1 caused by previous Xid 80")) == []
