from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub_settings, iommu
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import line as kernel_line
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.iommu import State
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.read import Boot, Entry

from tests import golden_rows, goldens, readings
from tests.trees import pci_function, put_all

GPU, NIC = "0000:1b:00.0", "0000:1c:00.0"


def state(cpu: str = "intel", **changes: Any) -> State:
    return State(cpu, False, "none", dict.fromkeys((GPU, NIC), "identity"))._replace(**changes)


def boot(line: str, active: str | None = None) -> Boot:
    settings = (("/etc/default/grub", f'GRUB_CMDLINE_LINUX="{line}"'),)
    return Boot("grub", line if active is None else active, (Entry("vmlinuz-6", line),), None, settings)


def not_ok(of: State, line: str, active: str | None = None) -> dict[str, str]:
    plan = iommu.plan(of, boot(line, active)).limit("none")
    return {f.id.partition(".")[2]: f.state for f in plan.findings if not f.ok}


@pytest.mark.parametrize(
    ("cpu", "line"),
    [("intel", "ro intel_iommu=on iommu=pt"), ("amd", "ro iommu=pt"), ("arm", "ro iommu.passthrough=1")],
)
def test_each_cpu_has_its_own_arguments(cpu: str, line: str) -> None:
    assert not_ok(state(cpu), line) == {}
    plan = iommu.plan(state(cpu), boot("ro"))
    (change,) = plan.changes
    assert [arg.token for arg in grub_settings.parse_dropin(change.after or "") if arg.present] == line.split()[1:]
    assert len(plan.reboot) == len(line.split()) - 1


# State, the line of the next boot, and the active one.
CASES: dict[str, tuple[State, str, str]] = dict(readings.cases("iommu_plan"))


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    of, line, active = CASES[case]
    made = iommu.plan(of, boot(line, active)).limit("none")
    found = [golden_rows.values(one.have) for one in made.findings if one.check == "iommu.domains"]
    goldens.check("iommu", case, [*golden_rows.plan(made), *found])
    if of.is_vm and not of.decides:
        assert iommu.plan(of, None).findings == made.findings


@pytest.mark.parametrize(("cpu", "line", "bad"), readings.cases("iommu_last_word"))
def test_the_kernel_s_last_word_counts_and_one_run_brings_it_about(cpu: str, line: str, bad: list[str]) -> None:
    plan = iommu.plan(state(cpu), boot(f"ro {line}"))
    assert sorted(f.subject for f in plan.findings if not f.ok and f.aspect == "live") == sorted(bad)
    assert all(f.have != "not on the command line" for f in plan.findings if not f.ok)
    if bad:
        settings = (*boot(f"ro {line}").elsewhere, (grub_settings.DROPIN, plan.changes[0].after or ""))
        line = grub_settings.arguments(settings) or ""
        assert not_ok(state(cpu), line) == {}


def test_arguments_of_a_platform_are_asked_for_in_guests_and_without_an_iommu_to_judge() -> None:
    asked = ("init_on_alloc=0", "nosmt")
    guest = state("arm", is_vm=True, hypervisor="kvm", types={GPU: None, NIC: None})
    for of, passthrough in ((guest, True), (state("arm"), False)):
        plan = iommu.plan(of, boot("ro init_on_alloc=1 nosmt"), passthrough, asked)
        assert {f.id: f.state for f in plan.findings if not f.ok} == {
            "iommu.platform_args[persisted]@init_on_alloc=0": "drift",
            "iommu.platform_args[live]@init_on_alloc=0": "drift",
        }
        assert {f.check for f in plan.findings} - {"iommu.domains"} == {"iommu.platform_args"}
        (change,) = plan.changes
        assert grub_settings.parse_dropin(change.after or "") == (
            kernel_line.Arg("init_on_alloc", "0", exclusive=True),
        )
    both = iommu.plan(state("arm"), boot("ro"), True, asked)
    assert {f.check for f in both.findings if not f.ok} == {"iommu.args", "iommu.platform_args"}
    (change,) = both.changes
    tokens = [arg.token for arg in grub_settings.parse_dropin(change.after or "")]
    assert tokens == ["iommu.passthrough=1", "init_on_alloc=0", "nosmt"]
    # Translation follows from the IOMMU's own argument, not from the platform's.
    translated = state("arm", types={GPU: "DMA", NIC: "identity"})
    found = iommu.plan(translated, boot("ro iommu.passthrough=1"), True, asked).findings
    assert next(f for f in found if f.check == "iommu.domains").because is None


GRACE = {"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "sys/class/iommu/smmu3.0x0/x": ""}


@pytest.mark.parametrize(
    ("vendor", "files", "queue"),
    [
        ("QEMU", GRACE, "drift"),
        ("QEMU", {**GRACE, "sys/bus/acpi/devices/NVDA200C:00/x": ""}, "ok"),
        # Without an SMMU, of another chip, or on metal there is no such queue to have.
        ("QEMU", {"proc/cpuinfo": GRACE["proc/cpuinfo"]}, None),
        ("QEMU", {**GRACE, "proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"}, None),
        ("NVIDIA", GRACE, None),
    ],
)
def test_a_guest_on_grace_with_an_smmu_has_the_chips_command_queues(
    tmp_path: Path, vendor: str, files: dict[str, str], queue: str | None
) -> None:
    put_all(tmp_path, {**files, "sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": "x"})
    pci_function(tmp_path, "pci0000:00/0000:01:00.0")
    found = iommu.plan(iommu.read(Host(str(tmp_path), str(tmp_path))), None)
    states = {one.check: (one.state, one.severity) for one in found.findings}
    assert states.get("iommu.command_queue") == (queue and (queue, "minor"))
