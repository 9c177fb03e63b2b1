from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import grub_settings, iommu, kernel_line
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.iommu import State
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import Boot, Entry

GPU, NIC = "0000:1b:00.0", "0000:1c:00.0"


def state(cpu: str = "intel", **changes: Any) -> State:
    return replace(State(cpu, False, "none", dict.fromkeys((GPU, NIC), "identity")), **changes)


def boot(line: str, active: str | None = None) -> Boot:
    settings = (("/etc/default/grub", f'GRUB_CMDLINE_LINUX="{line}"'),)
    return Boot("grub", line if active is None else active, (Entry("vmlinuz-6", line),), None, settings)


def not_ok(of: State, line: str, active: str | None = None) -> dict[str, str]:
    plan = iommu.plan(of, boot(line, active)).limit("none")
    return {f.id.partition(".")[2]: f.state for f in plan.findings if not f.ok}


@pytest.mark.parametrize(
    ("cpu", "line"),
    [
        ("intel", "ro intel_iommu=on iommu=pt"),
        ("amd", "ro iommu=pt"),
        ("arm", "ro iommu.passthrough=1"),
    ],
)
def test_each_cpu_has_its_own_arguments(cpu: str, line: str) -> None:
    assert not_ok(state(cpu), line) == {}
    plan = iommu.plan(state(cpu), boot("ro"))
    (change,) = plan.changes
    assert [arg.token for arg in grub_settings.parse_dropin(change.after or "") if arg.present] == line.split()[1:]
    assert len(plan.reboot) == len(line.split()) - 1


def test_translation_follows_from_the_missing_argument() -> None:
    translated = state(types={GPU: "DMA-FQ", NIC: "identity"})
    plan = iommu.plan(translated, boot("ro intel_iommu=on iommu=pt", "ro intel_iommu=on")).limit("none")
    bad = {f.check: f for f in plan.findings if not f.ok}
    assert set(bad) == {"iommu.args", "iommu.domains"}
    assert bad["iommu.domains"].because == bad["iommu.args"].id
    assert (bad["iommu.args"].state, bad["iommu.domains"].have) == ("withheld", f"DMA-FQ for {GPU}")
    # With the arguments active it is a finding of its own.
    assert not_ok(translated, "ro intel_iommu=on iommu=pt") == {"domains[live]@GPUs and NICs": "withheld"}


def test_no_iommu_at_all_translates_nothing() -> None:
    assert not_ok(state(types={GPU: None, NIC: None}), "ro intel_iommu=on iommu=pt") == {}


def test_not_to_know_is_not_ok() -> None:
    unread = state(problems=(Problem("/sys/kernel/iommu_groups/3/type", "is not there"),))
    assert not_ok(unread, "ro intel_iommu=on iommu=pt") == {"domains[live]@GPUs and NICs": "unknown"}


def test_off_is_taken_out_and_amd_on_is_called_invalid() -> None:
    found = not_ok(state("amd"), "ro amd_iommu=off iommu=pt")
    assert set(found) == {"args[persisted]@no amd_iommu=off", "args[live]@no amd_iommu=off"}
    assert not_ok(state("amd"), "ro amd_iommu=on iommu=pt") == {"amd_iommu[live]@amd_iommu=on": "withheld"}


@pytest.mark.parametrize(
    ("kind", "active", "bad"),
    [
        # No IOMMU of its own, and one that its kernel passes through by default: nothing to set.
        (None, "ro", {}),
        ("identity", "ro", {}),
        ("identity", "ro iommu=pt", {}),
        (
            "DMA-FQ",
            "ro",
            {
                "args[persisted]@iommu=pt": "drift",
                "args[live]@iommu=pt": "withheld",
                "domains[live]@GPUs and NICs": "withheld",
            },
        ),
        ("DMA", "ro iommu=pt", {"domains[live]@GPUs and NICs": "withheld"}),
    ],
)
def test_a_guest_s_own_viommu_is_judged(kind: str | None, active: str, bad: dict[str, str]) -> None:
    guest = state("amd", is_vm=True, hypervisor="kvm", types={GPU: kind, NIC: "identity" if kind else None})
    assert not_ok(guest, active) == bad
    plan = iommu.plan(guest, boot(active) if guest.decides else None)
    assert any(f.check == "iommu.domains" for f in plan.findings)


def test_devices_handed_to_guests_are_not_translated_by_this_kernel() -> None:
    assert not_ok(state(types={GPU: "unmanaged", NIC: "identity"}), "ro intel_iommu=on iommu=pt") == {}


@pytest.mark.parametrize(
    ("cpu", "line", "bad"),
    [
        # Equal forms.
        ("intel", "intel_iommu=on,sm_on iommu=pt", []),
        ("intel", "intel_iommu=off intel_iommu=sm_on,on iommu.passthrough=y", []),
        ("intel", "intel_iommu=on iommu=nopt,force iommu=soft,pt", []),
        ("amd", "iommu.passthrough=1", []),
        ("arm", "iommu.passthrough=0 iommu.passthrough=on", []),
        # What comes later counts.
        ("intel", "intel_iommu=on iommu=pt iommu.passthrough=0", ["iommu=pt"]),
        ("intel", "intel_iommu=on iommu=pt intel_iommu=sm_on,off", ["intel_iommu=on", "no intel_iommu=off"]),
        ("amd", "iommu=pt iommu=force,nopt", ["iommu=pt"]),
        ("amd", "iommu=pt amd_iommu=off", ["no amd_iommu=off"]),
        ("intel", "intel_iommu=on iommu=pt,off", ["no iommu=off"]),
        ("arm", "iommu.passthrough=1 iommu=pt iommu.passthrough=n", ["iommu.passthrough=1"]),
        # What follows two dashes is for init.
        ("amd", "iommu=pt -- iommu=nopt", []),
    ],
)
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


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", "intel"),
        ("vendor_id\t: AuthenticAMD\n", "amd"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "arm"),
    ],
)
def test_the_cpu_is_known_by_its_vendor(text: str, cpu: str) -> None:
    assert iommu.parse_cpu(text) == cpu


def test_an_unknown_cpu_is_refused_by_the_file_s_name() -> None:
    with pytest.raises(ParseError, match="/proc/cpuinfo: no vendor_id"):
        iommu.parse_cpu("vendor_id : CentaurHauls\n")
