"""Config space made by hand, the bridges that matter, and the module on a simulated node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub
from ansible_collections.busbar.fabric.plugins.module_utils.machine import lockdown, platform, rails
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import VENDOR, Virtualization
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import boot_unit, registers
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import plan as pcie_path
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path.plan import PathConfig, PathState
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path.registers import Write
from ansible_collections.busbar.fabric.plugins.modules import pcie_path as module
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import store
from tests import golden_rows, goldens
from tests.trees import contents

ROOT = Path(__file__).resolve().parent.parent.parent
WANT = PathConfig(clear_acs=True, max_read_request=4096, persist=True)
REDIRECTING, ISOLATING, CLEAR = 0x1D, 0x5F, 0x00
SWITCH_ID = "0010 30c0"
READ_REQUEST = "pcie_path.max_read_request"


def config(acs: int | None = None, control: int = 0x2910, identity: str = SWITCH_ID) -> bytes:
    """PCI Express at 0x68 behind power management at 0x40; ACS, if any, at 0x148 behind AER at 0x100."""
    space = bytearray(4096)
    space[:4] = bytes.fromhex(identity)
    space[0x06], space[0x34] = 0x10, 0x40
    space[0x40:0x42] = 0x01, 0x68
    space[0x68:0x6A] = 0x10, 0x00
    space[0x70:0x72] = control.to_bytes(2, "little")
    following = 0x148 if acs is not None else 0
    space[0x100:0x104] = (following << 20 | 0x10001).to_bytes(4, "little")
    if acs is not None:
        space[0x148:0x14C] = (0x1000D).to_bytes(4, "little")
        space[0x14C:0x14E] = b"\x5f\x00"
        space[0x14E:0x150] = acs.to_bytes(2, "little")
    return bytes(space)


def changed(space: bytes, offset: int, new: bytes) -> bytes:
    return space[:offset] + new + space[offset + len(new) :]


# -- parsers ---------------------------------------------------------------------------------------------------------


def test_acs_is_found_behind_other_capabilities_and_worded_as_lspci_does() -> None:
    acs = registers.parse_acs(config(acs=REDIRECTING))
    assert acs is not None
    assert (acs.offset, acs.control) == (0x14E, REDIRECTING)
    assert str(acs) == "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"


def test_a_function_without_acs_has_none() -> None:
    assert registers.parse_acs(config()) is None
    assert registers.parse_acs(changed(config(), 0x100, bytes(4))) is None


def test_device_control_has_both_sizes_within_the_first_256_bytes() -> None:
    control = registers.parse_device_control(config(control=0x5937)[:256])
    assert (control.offset, control.max_read_request, control.max_payload) == (0x70, 4096, 256)
    assert str(control) == "4096 bytes (max payload 256)"
    assert control == registers.parse_device_control(config(control=0x5937))


AT_THE_END = changed(changed(config(), 0x100, b"\x01\x00\xc1\xff"), 0xFFC, b"\x0d\x00\x01\x00")


@pytest.mark.parametrize(
    ("parse", "space", "says"),
    [
        # What was not read whole is not taken for off.
        (registers.parse_acs, b"", "only 0 of 4096 bytes can be read: .*needs root"),
        (registers.parse_acs, config(acs=CLEAR)[:64], "only 64 of 4096 bytes can be read: .*needs root"),
        (registers.parse_acs, config(acs=CLEAR)[:256], "only 256 of 4096 bytes can be read: .*look for MMCONFIG"),
        (registers.parse_acs, config(acs=CLEAR)[:4095], "only 4095 of 4096 bytes can be read: .*look for MMCONFIG"),
        (registers.parse_device_control, config()[:64], "only 64 of 256 bytes can be read: it needs root"),
        # A list that leads nowhere, or to itself.
        (registers.parse_acs, changed(config(acs=CLEAR), 0x100, b"\x01\x00\x01\x10"), "leads to 0x100"),
        (registers.parse_acs, changed(config(acs=CLEAR), 0x100, b"\x01\x00\x01\x04"), "leads to 0x040"),
        (registers.parse_acs, changed(config(acs=CLEAR), 0x100, b"\xff" * 4), "0x100 reads as all ones"),
        (registers.parse_acs, changed(config(acs=CLEAR), 0x000, b"\xff" * 4), "the device does not respond"),
        (registers.parse_acs, AT_THE_END, "0xffc leaves config space"),
        (registers.parse_device_control, changed(config(), 0x06, b"\x00"), "no PCI Express capability"),
        (registers.parse_device_control, changed(config(), 0x34, b"\x00"), "no PCI Express capability"),
        (registers.parse_device_control, changed(config(), 0x41, b"\x40"), "leads to 0x40"),
        (registers.parse_device_control, changed(config(), 0x41, b"\x08"), "leads to 0x08"),
        (registers.parse_device_control, changed(config(), 0x70, b"\x00\x60"), "0x6000 names a size"),
    ],
)
def test_a_register_that_is_not_found_is_an_error(parse: Callable[[bytes], object], space: bytes, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        parse(space)


def edited(edits: list[tuple[int, bytes]]) -> bytes:
    space = config(acs=REDIRECTING)
    for offset, new in edits:
        space = changed(space, offset, new)
    return space


# Most edits hit nothing; those of the pointers below lead the walk anywhere.
SPACES = st.binary(max_size=300) | st.lists(
    st.tuples(st.integers(0, 4092), st.binary(min_size=1, max_size=4)), max_size=12
).map(edited)


@given(SPACES, st.sampled_from([0x100, 0x34, 0x40, 0x148]), st.binary(min_size=4, max_size=4))
@settings(max_examples=100)
def test_any_bytes_are_a_register_or_an_error_and_the_boot_script_agrees(space: bytes, at: int, new: bytes) -> None:
    space = changed(space, at, new) if len(space) == 4096 else space
    names: dict[str, Any] = {"__name__": "pcie_path_script"}
    exec(rendered(), names)
    for parse, find in ((registers.parse_acs, "acs_control"), (registers.parse_device_control, "device_control")):
        try:
            register = parse(space)
        except ParseError:
            continue
        assert names[find](space) == (register.offset if register else None)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("[none] integrity confidentiality", ""), ("none [integrity] confidentiality", "integrity")],
)
def test_lockdown(text: str, mode: str) -> None:
    assert lockdown.parse(text) == mode
    with pytest.raises(ParseError, match="no lockdown"):
        lockdown.parse("none integrity")


# -- bits ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 0xFFFF))
def test_clearing_acs_keeps_all_other_bits(word: int) -> None:
    after = Write.to_register("0000:17:00.0", "ECAP_ACS+6.w", 0x14E, registers.CLEARED, 0).apply(word)
    assert after & 0x1D == 0
    assert after & ~0x1D == word & ~0x1D


@given(st.integers(0, 0xFFFF), st.sampled_from(registers.SIZES))
def test_setting_the_read_request_keeps_all_other_bits(word: int, size: int) -> None:
    value = registers.SIZES.index(size) << 12
    after = Write.to_register("0000:18:00.0", "CAP_EXP+8.w", 0x70, registers.READ_REQUEST, value).apply(word)
    assert 128 << (after >> 12 & 7) == size
    assert after & ~0x7000 == word & ~0x7000


@given(st.integers(0, 0xFFFE))
@settings(max_examples=30)
def test_a_write_changes_its_bits_in_the_file_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, word: int
) -> None:
    root = tmp_path_factory.mktemp("hw")
    before = config(acs=word)
    put(root, "0000:17:00.0", before)
    registers.write(Host(str(root)), Write.to_register("0000:17:00.0", "ECAP_ACS+6.w", 0x14E, registers.CLEARED, 0))
    assert got(root, "0000:17:00.0") == changed(before, 0x14E, (word & ~0x1D).to_bytes(2, "little"))


def test_a_device_that_does_not_answer_is_not_written(tmp_path: Path) -> None:
    put(tmp_path, "0000:17:00.0", b"\xff" * 4096)
    change = Write.to_register("0000:17:00.0", "ECAP_ACS+6.w", 0x14E, registers.CLEARED, 0)
    with pytest.raises(ReadError, match="does not respond"):
        registers.write(Host(str(tmp_path)), change)
    with pytest.raises(ReadError, match=r"0000:18:00.0/config: cannot be written: No such file"):
        registers.write(Host(str(tmp_path)), replace(change, address="0000:18:00.0"))


# -- which bridges ---------------------------------------------------------------------------------------------------


def behind_switches(machine: Topology) -> Topology:
    """GPU and NIC n behind ports 0 and 1 of switch n, each below a root port of its own. Rail 7's NIC is elsewhere."""
    gpus = [
        replace(gpu, device=replace(gpu.device, ancestors=(*switch(gpu.index), port(gpu.index, 0))))
        for gpu in machine.gpus
    ]
    nics = [
        replace(nic, device=replace(nic.device, ancestors=(*switch(number), port(number, 1))))
        for number, nic in enumerate(machine.nics[:7])
    ]
    return replace(machine, gpus=tuple(gpus), nics=(*nics, machine.nics[7]))


def switch(number: int) -> tuple[str, ...]:
    """Host bridge, root port, upstream port."""
    return f"pci0000:{number:x}0", f"0000:{number:x}0:01.0", f"0000:{number:x}1:00.0"


def port(number: int, which: int) -> str:
    return f"0000:{number:x}2:0{which}.0"


def bridges(machine: Topology) -> tuple[str, ...]:
    return pcie_path.bridges_between([gpu.device for gpu in machine.gpus], [nic.device for nic in machine.nics])


def test_bridges_below_the_shared_switch_matter_and_none_above_it(infiniband: Topology) -> None:
    assert bridges(behind_switches(infiniband)) == tuple(port(n, which) for n in range(7) for which in (0, 1))


def test_a_machine_whose_devices_meet_in_the_cpu_has_no_bridge_to_judge(infiniband: Topology) -> None:
    assert bridges(infiniband) == ()


def test_two_gpus_behind_cascaded_switches_need_every_bridge_between_them(infiniband: Topology) -> None:
    top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    below = [(*top, f"0000:12:0{n}.0", f"0000:2{n}:00.0", f"0000:3{n}:00.0") for n in range(2)]
    gpus = [replace(infiniband.gpus[n].device, ancestors=below[n]) for n in range(2)]
    assert pcie_path.bridges_between(gpus, []) == tuple(sorted(below[0][3:] + below[1][3:]))


def test_a_rail_counts_while_its_port_is_down_and_a_storage_nic_never_does(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    machine = edit.nic(edit.nic(infiniband, 2, role="down", port_state="DOWN"), 5, role="storage")
    nics = pcie_path.compute_nics(machine, rails.Rails({2: machine.nics[2]}, {}, None))
    assert [nic.pci for nic in nics] == [nic.pci for n, nic in enumerate(machine.nics) if n != 5]


# -- the plan --------------------------------------------------------------------------------------------------------


def put(root: Path, address: str, data: bytes) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config").write_bytes(data)


def got(root: Path, address: str) -> bytes:
    return (root / "sys/bus/pci/devices" / address / "config").read_bytes()


Node = tuple[Host, Topology]


@pytest.fixture
def node(tmp_path: Path, infiniband: Topology) -> Node:
    """Ports of switches with ACS clear, as on a healthy HGX board; its NICs read 4096 bytes."""
    machine = behind_switches(infiniband)
    for address in bridges(machine):
        put(tmp_path, address, config(acs=CLEAR))
    for nic in machine.nics:
        put(tmp_path, nic.pci, config(control=0x5937, identity="b315 2110"))
    # Above the NVSwitches ACS redirects, and that is nobody's business.
    put(tmp_path, "0000:82:00.0", config(acs=REDIRECTING))
    return Host(str(tmp_path), str(tmp_path)), machine


def have(node: Node) -> PathState:
    host, machine = node
    return pcie_path.read(host, machine, machine.nics)


def planned(*given: Any) -> tuple[Plan, list[Write]]:
    plan = pcie_path.plan(*given)
    return plan, [command for command in plan.commands if isinstance(command, Write)]


def missing_device(machine: Topology, asked: Profile) -> Finding | None:
    """As the module asks."""
    return platform.missing(machine, asked, platform.GPU_COUNT, platform.RAIL_DEVICE)


def root_of(node: Node) -> Path:
    return Path(node[0].hardware_root)


ALL = tuple(port(number, which) for number in range(7) for which in (0, 1))
# Bytes of config space of other devices, None for none, and what is wanted. Cases of one name come to the same.
CASES: list[tuple[str, Mapping[str, bytes | None], PathConfig]] = [
    ("healthy", {}, WANT),
    ("healthy", {port(3, 1): config()}, WANT),  # no ACS
    # The other bits of ACS do not redirect.
    *[("healthy", {port(3, 1): config(acs=control)}, WANT) for control in (0x00, 0x42, 0x62)],
    *[("ACS redirects", {port(3, 1): config(acs=bits)}, WANT) for bits in (0x04, 0x08, 0x10, REDIRECTING, ISOLATING)],
    *[("source validation alone", {port(3, 1): config(acs=bits)}, WANT) for bits in (0x01, 0x43)],
    ("small read requests", {"0000:11:00.0": config(control=0x2937)}, WANT),
    ("read requests not wanted", {"0000:11:00.0": config(control=0x2937)}, replace(WANT, max_read_request=0)),
    ("small read requests wanted", {"0000:11:00.0": config(control=0x2937)}, replace(WANT, max_read_request=512)),
    # It is told once, and leaves the files alone.
    ("not read whole", {address: config(acs=CLEAR)[:64] for address in ALL}, WANT),
    ("no config", {port(0, 0): None}, WANT),
]


@pytest.mark.golden
@pytest.mark.parametrize(("case", "configs", "want"), CASES)
def test_what_is_planned(node: Node, case: str, configs: Mapping[str, bytes | None], want: PathConfig) -> None:
    for address, data in configs.items():
        if data is None:
            config_of(node, address).unlink()
        else:
            put(root_of(node), address, data)
    goldens.check("pcie_path", case, golden_rows.plan(pcie_path.plan(have(node), want)))


def config_of(node: Node, address: str) -> Path:
    return root_of(node) / "sys/bus/pci/devices" / address / "config"


def test_what_was_not_read_whole_needs_root(node: Node) -> None:
    put(root_of(node), port(0, 0), config(acs=CLEAR)[:64])
    bad = [finding for finding in pcie_path.plan(have(node), WANT).findings if not finding.ok]
    assert "only 64 of 4096 bytes can be read: it needs root" in (bad[0].have or "")


def test_source_validation_is_no_matter_where_nobody_can_write(node: Node) -> None:
    put(root_of(node), port(3, 1), config(acs=0x43))
    assert pcie_path.plan(replace(have(node), locked="integrity"), WANT).findings[7].ok


def test_sizes_of_read_requests_are_shown(node: Node) -> None:
    put(root_of(node), "0000:11:00.0", config(control=0x2937))
    [found] = [one for one in pcie_path.plan(have(node), WANT).findings if one.check == READ_REQUEST and not one.ok]
    assert (found.subject, found.want, found.have) == (
        node[1].nics[0].label,
        "4096 bytes",
        "512 bytes (max payload 256)",
    )


def test_the_script_of_an_earlier_release_is_minor(node: Node) -> None:
    for change in pcie_path.plan(have(node), WANT).changes:
        path = Path(node[0].system_root) / change.path[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((change.after or "").replace("0x1D, 0)", "0x1C, 0)"))
    (unit,) = [f for f in pcie_path.plan(have(node), WANT).findings if not f.ok]
    assert (unit.check, unit.severity) == ("pcie_path.unit", "minor")


def test_a_bridge_without_acs_is_not_in_the_script(node: Node) -> None:
    put(root_of(node), port(3, 1), config())
    texts = {change.path: change.after or "" for change in pcie_path.plan(have(node), WANT).changes}
    assert port(3, 1) not in texts[boot_unit.SCRIPT]
    assert port(3, 0) in texts[boot_unit.SCRIPT]


@pytest.mark.golden
def test_what_is_no_file_is_unknown_and_holds_nobody(node: Node) -> None:
    for which, make in ((0, Path.mkdir), (1, os.mkfifo)):
        config_of(node, port(0, which)).unlink()
        make(config_of(node, port(0, which)))
    goldens.check("pcie_path", "no file", golden_rows.plan(pcie_path.plan(have(node), WANT)))


def test_what_is_set_at_boot_does_not_shrink_to_the_devices_that_are_left(node: Node, hgx_h100: Profile) -> None:
    host, machine = node
    assert missing_device(machine, hgx_h100) is None
    for left, cause in (
        (replace(machine, gpus=machine.gpus[:7]), "platform.gpu_count"),
        (replace(machine, nics=machine.nics[1:]), "platform.rail_device"),
    ):
        missing = missing_device(left, hgx_h100)
        assert missing is not None
        put(root_of(node), port(1, 0), config(acs=REDIRECTING))
        plan, writes = planned(pcie_path.read(host, left, left.nics), WANT, missing)
        (unit,) = [finding for finding in plan.findings if finding.check == "pcie_path.unit"]
        assert (unit.state, (unit.because or "").partition("[")[0], plan.changes) == ("unknown", cause, ())
        # What is there is judged and set all the same.
        assert [write.address for write in writes] == [port(1, 0)]
        off = PathConfig(clear_acs=False, max_read_request=0, persist=True)
        assert pcie_path.plan(pcie_path.read(host, left, left.nics), off, missing).findings == ()


@pytest.mark.golden
def test_a_gpu_whose_bridges_are_not_known_is_unknown(node: Node) -> None:
    host, machine = node
    lost = replace(machine.gpus[0], device=replace(machine.gpus[0].device, ancestors=()))
    plan = pcie_path.plan(have((host, replace(machine, gpus=(lost, *machine.gpus[1:])))), WANT)
    goldens.check("pcie_path", "a GPU without a place", golden_rows.plan(plan))


def test_a_virtual_machine_is_asked_for_nothing(node: Node) -> None:
    host, machine = node
    put(root_of(node), port(0, 0), config(acs=REDIRECTING))
    guest = have((host, replace(machine, virtualization=Virtualization(True, "kvm", "/proc/cpuinfo"))))
    assert pcie_path.plan(guest, WANT) == Plan()
    assert pcie_path.notes(guest, WANT) == ["ACS and read requests are the hypervisor's (kvm): nothing was required"]


def test_where_nothing_tells_a_guest_from_a_machine_nothing_is_planned(node: Node) -> None:
    host, machine = node
    unsure = replace(
        machine,
        virtualization=Virtualization(False, "none", VENDOR),
        problems=(Problem(VENDOR, "nothing shows whether this is a guest"),),
    )
    with pytest.raises(ReadError, match="nothing shows"):
        have((host, unsure))


def test_acs_stays_where_a_gpu_is_handed_to_virtual_machines(node: Node) -> None:
    host, machine = node
    put(root_of(node), port(0, 0), config(acs=REDIRECTING))
    (root_of(node) / boot_unit.UNIT[1:]).parent.mkdir(parents=True)
    (root_of(node) / boot_unit.UNIT[1:]).write_text("an old one")
    passed = replace(machine.gpus[0], device=replace(machine.gpus[0].device, driver="vfio-pci"))
    found = have((host, replace(machine, gpus=(passed, *machine.gpus[1:]))))
    plan, writes = planned(found, replace(WANT, max_read_request=0))
    assert ([f.check for f in plan.findings], writes) == (["pcie_path.unit"], [])
    assert [(change.path, change.after) for change in plan.changes] == [(boot_unit.UNIT, None)]
    assert "vfio-pci" in pcie_path.notes(found, WANT)[0]


def test_a_locked_kernel_is_told_apart_and_gets_no_unit(node: Node) -> None:
    for number in range(2):
        put(root_of(node), port(number, 0), config(acs=REDIRECTING))
    path = root_of(node) / lockdown.LOCKDOWN[1:]
    path.parent.mkdir(parents=True)
    path.write_text("none [integrity] confidentiality\n")
    plan, writes = planned(have(node), WANT)
    first, second = [finding for finding in plan.findings if not finding.ok]
    assert (first.state, plan.changed, writes) == ("unsupported", False, [])
    assert (first.because, second.because) == (None, first.id)
    # The kernel takes the last of several such arguments alone: one names all bridges, in quotes for GRUB.
    (line,) = grub.passed(first.fix.split()[2], {})
    assert (first.fix, line) == (second.fix, f"pci=config_acs=000x0@{port(0, 0)};000x0@{port(1, 0)}")
    # The kernel boots with it: flags from bit 0 on the right, x leaves one (drivers/pci/pci.c, 6.12).
    for flags, _at, address in (item.partition("@") for item in line.partition("config_acs=")[2].split(";")):
        zeros = sum(1 << bit for bit, flag in enumerate(reversed(flags)) if flag == "0")
        put(root_of(node), address, config(acs=REDIRECTING & ~zeros))
    assert all(finding.ok for finding in pcie_path.plan(have(node), WANT).findings)


def test_a_machine_without_a_shared_switch_is_told_so(tmp_path: Path, infiniband: Topology) -> None:
    found = pcie_path.read(Host(str(tmp_path), str(tmp_path)), infiniband, [])
    plan, writes = planned(found, WANT)
    assert (plan, writes) == (Plan(), [])
    assert "ACS does not matter here" in pcie_path.notes(found, WANT)[0]


# -- at boot ---------------------------------------------------------------------------------------------------------


def rendered(devices: str = "/sys/bus/pci/devices", bridge: str = port(0, 0), nic: str = "0000:18:00.0") -> str:
    acs, control = registers.Acs(0x14E, 0), registers.DeviceControl(0x70, 512, 256)
    files = boot_unit.render(
        devices,
        [registers.Function(bridge, bridge, SWITCH_ID.replace(" ", ""), acs)],
        [registers.Function(nic, nic, "b3152110", control)],
        4096,
    )
    return files[boot_unit.SCRIPT]


def boot(root: Path) -> subprocess.CompletedProcess[str]:
    script = root / "pcie-path"
    script.write_text(rendered(str(root / "sys/bus/pci/devices")))
    return subprocess.run([sys.executable, "-I", "-S", script], capture_output=True, text=True, check=False)


NIC_BEFORE, NIC_AFTER = (config(control=control, identity="b315 2110") for control in (0x2937, 0x5937))
STRANGER = config(acs=ISOLATING, identity="8680 5f9c")
CLEARED = config(acs=ISOLATING & ~0x1D)


@pytest.mark.parametrize(
    ("bridge", "nic", "after", "code", "says"),
    [
        (config(acs=ISOLATING), NIC_BEFORE, (CLEARED, NIC_AFTER), 0, ""),
        # Another device is left alone, and one that was taken out is named; the others are set.
        (STRANGER, NIC_BEFORE, (STRANGER, NIC_AFTER), 1, f"{port(0, 0)}: another device is there now"),
        (config(acs=ISOLATING), None, (CLEARED,), 0, "0000:18:00.0: is not there any more, the others are set\n"),
        *[
            (
                config(acs=ISOLATING)[:size],
                NIC_BEFORE,
                (config(acs=ISOLATING)[:size], NIC_AFTER),
                1,
                f"{port(0, 0)}: the capability is not found in {size} bytes",
            )
            for size in (4, 64, 256)
        ],
    ],
)
def test_the_script_sets_at_boot_what_the_module_sets(
    tmp_path: Path, bridge: bytes, nic: bytes | None, after: tuple[bytes, ...], code: int, says: str
) -> None:
    put(tmp_path, port(0, 0), bridge)
    if nic is not None:
        put(tmp_path, "0000:18:00.0", nic)
    for _boot in range(2):
        done = boot(tmp_path)
        assert (done.returncode, done.stderr == "") == (code, says == "")
        assert says in done.stderr
        assert tuple(got(tmp_path, address) for address in (port(0, 0), "0000:18:00.0")[: len(after)]) == after


def test_the_script_fails_where_there_is_no_sysfs(tmp_path: Path) -> None:
    done = boot(tmp_path)
    assert (done.returncode, done.stderr.count(": No such file or directory (")) == (1, 2)


def test_the_script_runs_on_the_oldest_python(oldest_python: str, tmp_path: Path) -> None:
    script = tmp_path / "pcie-path"
    script.write_text(rendered(str(tmp_path / "nothing")))
    done = subprocess.run([oldest_python, "-I", "-S", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("No such file")) == (1, 2)


# -- the module ------------------------------------------------------------------------------------------------------

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A simulated hgx-h100: every bridge redirects, every NIC reads 512 bytes."""
    store.create(tmp_path / "lab")
    node = tmp_path / "lab/node01"
    for folder in (node / "hw/sys/bus/pci/devices").iterdir():
        kind = (folder / "class").read_text()
        (folder / "config").write_bytes(config(acs=REDIRECTING if kind.startswith("0x0604") else None))
    return node


@pytest.fixture
def call(lab: Path, call_module: Callable[..., Run]) -> Run:
    return call_module(module.main, lab, "hgx-h100", "infiniband")


def test_check_mode_foretells_the_run_and_touches_nothing_and_a_second_run_has_nothing_to_do(
    call: Run, lab: Path
) -> None:
    before = contents(lab)
    predicted = call(check_mode=True)
    assert contents(lab) == before
    done = call()
    for key in ("changed", "diff", "commands", "repaired"):
        assert predicted[key] == done[key], key
    assert (done["changed"], done["findings"], done["notes"]) == (True, [], [])
    assert {name.partition("[")[0] for name in done["repaired"]} == {
        "pcie_path.acs",
        "pcie_path.max_read_request",
        "pcie_path.unit",
    }
    after = contents(lab)
    again = call()
    assert (again["changed"], again["findings"], again["repaired"], contents(lab)) == (False, [], [], after)


def test_only_bridges_between_gpus_and_rails_are_written(call: Run, lab: Path) -> None:
    done = call(max_read_request=0)
    written = {command.split()[2] for command in done["commands"]}
    devices = lab / "hw/sys/bus/pci/devices"
    still = {
        folder.name
        for folder in devices.iterdir()
        if (folder / "class").read_text().startswith("0x0604")
        and (folder / "config").read_bytes() == config(acs=REDIRECTING)
    }
    # A root port and an upstream port above each of eight switches, and what is not near a GPU, stay.
    assert len(written) == 16
    assert len(still) >= 16
    assert not written & still


def test_the_script_sets_what_a_boot_has_reset(call: Run, lab: Path) -> None:
    call()
    script = lab / "sys" / boot_unit.SCRIPT[1:]
    assert script.stat().st_mode & 0o777 == 0o755
    for folder in (lab / "hw/sys/bus/pci/devices").iterdir():
        if (folder / "class").read_text().startswith("0x0604"):
            (folder / "config").write_bytes(config(acs=REDIRECTING))  # as after a boot
    assert len(call(check_mode=True)["findings"]) == 16
    subprocess.run([sys.executable, "-I", "-S", script], check=True)
    assert call(check_mode=True)["findings"] == []


def test_what_is_not_asked_for_any_more_is_removed(call: Run, lab: Path) -> None:
    call()
    done = call(persist=False)
    assert (done["changed"], done["findings"]) == (True, [])
    assert [path for path in boot_unit.OWN if (lab / "sys" / path[1:]).exists()] == []
    assert not call(persist=False)["changed"]


def test_a_profile_that_is_wrong_fails_with_its_name(call: Run) -> None:
    assert "profile unnamed" in call(profile={"rails": 3})["msg"]
