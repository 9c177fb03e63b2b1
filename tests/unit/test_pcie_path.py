"""Config space made by hand, the bridges that matter, and the module on a simulated node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub
from ansible_collections.busbar.fabric.plugins.module_utils.machine import pci, rails
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import READ_REQUESTS, Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import VENDOR, Virtualization
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import boot_argument, boot_unit, registers
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import plan as pcie_path
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path.plan import PathConfig, PathState
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path.registers import Write
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens

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


@pytest.mark.parametrize(
    ("parse", "space", "register"),
    [
        # As lspci words it.
        (registers.parse_acs, config(acs=REDIRECTING), (0x14E, REDIRECTING,
         "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-")),
        (registers.parse_acs, config(), None),
        (registers.parse_acs, changed(config(), 0x100, bytes(4)), None),
        (registers.parse_device_control, config(control=0x5937), (0x70, 0x5937, "4096 bytes (max payload 256)")),
        (registers.parse_device_control, config(control=0x5937)[:256], (0x70, 0x5937, "4096 bytes (max payload 256)")),
    ],
)  # fmt: skip
def test_a_register_is_found_behind_other_capabilities(
    parse: Callable[[bytes], registers.Register | None], space: bytes, register: tuple[int, int, str] | None
) -> None:
    assert parse(space) == (register and registers.Register(*register))


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
        (registers.parse_acs, changed(config(acs=CLEAR), 0x100, b"\x01\x00\x01\x04"), "leads to 0x40"),
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


# -- bits ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 0xFFFE), st.none() | st.sampled_from(READ_REQUESTS))
def test_a_write_changes_its_bits_in_the_file_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, word: int, size: int | None
) -> None:
    """size: of a NIC's read requests; None for ACS of a bridge."""
    root = tmp_path_factory.mktemp("hw")
    before = config(acs=word) if size is None else config(control=word)
    put(root, "0000:17:00.0", before)
    offset, mask, value = (0x14E, 0x1D, 0) if size is None else (0x70, 0x7000, READ_REQUESTS.index(size) << 12)
    assert size is None or 128 << (value >> 12) == size
    wanted = registers.CLEARED if size is None else registers.READ_REQUEST
    registers.write(Host(str(root)), Write.to_register("0000:17:00.0", "x", offset, wanted, value))
    assert got(root, "0000:17:00.0") == changed(before, offset, (word & ~mask | value).to_bytes(2, "little"))


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
        replace(gpu, device=gpu.device._replace(ancestors=(*switch(gpu.index), port(gpu.index, 0))))
        for gpu in machine.gpus
    ]
    nics = [
        nic._replace(device=nic.device._replace(ancestors=(*switch(number), port(number, 1))))
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


def test_two_gpus_behind_cascaded_switches_need_every_bridge_between_them(infiniband: Topology) -> None:
    top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    below = [(*top, f"0000:12:0{n}.0", f"0000:2{n}:00.0", f"0000:3{n}:00.0") for n in range(2)]
    gpus = [infiniband.gpus[n].device._replace(ancestors=below[n]) for n in range(2)]
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
    return build(tmp_path, infiniband)


def build(root: Path, machine: Topology) -> Node:
    """Ports of switches with ACS clear, as on a healthy HGX board; its NICs read 4096 bytes."""
    machine = behind_switches(machine)
    for address in bridges(machine):
        put(root, address, config(acs=CLEAR))
    for nic in machine.nics:
        put(root, nic.pci, config(control=0x5937, identity="b315 2110"))
    # Above the NVSwitches ACS redirects, and that is nobody's business.
    put(root, "0000:82:00.0", config(acs=REDIRECTING))
    return Host(str(root), str(root)), machine


def have(node: Node) -> PathState:
    host, machine = node
    return PathState(host, machine, machine.nics)


def root_of(node: Node) -> Path:
    return Path(node[0].hardware_root)


def config_of(node: Node, address: str) -> Path:
    return root_of(node) / "sys/bus/pci/devices" / address / "config"


Make = Callable[[Node], Node]


def spaces(configs: Mapping[str, bytes | None]) -> Make:
    """Bytes of config space of other devices, None for none."""

    def make(node: Node) -> Node:
        for address, data in configs.items():
            if data is None:
                config_of(node, address).unlink()
            else:
                put(root_of(node), address, data)
        return node

    return make


def with_gpu(**changes: Any) -> Make:
    """The first GPU is another device, below a bridge that redirects."""

    def make(node: Node) -> Node:
        host, machine = node
        put(root_of(node), port(0, 0), config(acs=REDIRECTING))
        gpu = replace(machine.gpus[0], device=machine.gpus[0].device._replace(**changes))
        return host, replace(machine, gpus=(gpu, *machine.gpus[1:]))

    return make


def no_files(node: Node) -> Node:
    for which, make in ((0, Path.mkdir), (1, os.mkfifo)):
        config_of(node, port(0, which)).unlink()
        make(config_of(node, port(0, which)))
    return node


def locked(node: Node) -> Node:
    spaces({port(0, 0): config(acs=REDIRECTING), port(1, 0): config(acs=REDIRECTING), port(3, 1): config(acs=0x43)})(
        node
    )
    write_file(node, pci.LOCKDOWN, "none [integrity] confidentiality\n")
    return node


def write_file(node: Node, path: str, text: str) -> None:
    file = root_of(node) / path[1:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def earlier_release(node: Node) -> Node:
    """Release 0.1.0 had no seals, left SrcValid, and printed the number of an error, too."""
    for change in pcie_path.plan(have(node), WANT).changes:
        text = re.sub(r"(Written by Busbar) 0\S+, intent \S+, sha256 \S+", r"\1", change.after or "")
        write_file(node, change.path, text.replace("0x1D, 0)", "0x1C, 0)").replace("error.strerror or str", "str"))
    return node


def old_unit(node: Node) -> Node:
    write_file(node, boot_unit.UNIT, "an old one")
    return with_gpu(driver="vfio-pci")(node)


def in_a_guest(node: Node) -> Node:
    host, machine = spaces({port(0, 0): config(acs=REDIRECTING)})(node)
    return host, replace(machine, virtualization=Virtualization(True, "kvm", "/proc/cpuinfo"))


def without_switches(node: Node) -> Node:
    bare = replace(node[1], gpus=tuple(replace(g, device=g.device._replace(ancestors=("pci",))) for g in node[1].gpus))
    return node[0], bare


ALL = tuple(port(number, which) for number in range(7) for which in (0, 1))
SMALL = spaces({"0000:11:00.0": config(control=0x2937)})
# What is made of a healthy node, and what is wanted. Cases of one name come to the same.
CASES: list[tuple[str, Make, PathConfig]] = [
    ("healthy", spaces({}), WANT),
    ("healthy", spaces({port(3, 1): config(acs=0x42)}), WANT),
    # The other bits of ACS do not redirect.
    ("healthy", spaces({port(3, 1): config(acs=0x62)}), WANT),
    ("healthy", spaces({port(3, 1): config()}), WANT),  # no ACS
    *[
        ("ACS redirects", spaces({port(3, 1): config(acs=bits)}), WANT)
        for bits in (0x04, 0x08, 0x10, REDIRECTING, ISOLATING)
    ],
    *[("source validation alone", spaces({port(3, 1): config(acs=bits)}), WANT) for bits in (0x01, 0x43)],
    ("small read requests", SMALL, WANT),
    ("read requests not wanted", SMALL, WANT._replace(max_read_request=0)),
    ("small read requests wanted", SMALL, WANT._replace(max_read_request=512)),
    # It is told once, and leaves the files alone.
    ("not read whole", spaces({address: config(acs=CLEAR)[:64] for address in ALL}), WANT),
    ("no config", spaces({port(0, 0): None}), WANT),
    ("no file", no_files, WANT),
    ("a GPU without a place", with_gpu(ancestors=()), WANT),
    ("a locked kernel", locked, WANT),
    ("the script of an earlier release", earlier_release, WANT),
    ("a GPU is handed to virtual machines", old_unit, WANT._replace(max_read_request=0)),
    ("a virtual machine", in_a_guest, WANT),
    ("no shared switch", without_switches, WANT._replace(max_read_request=0)),
]


@pytest.mark.golden
def test_what_is_planned(tmp_path: Path, infiniband: Topology) -> None:
    said = []
    for number, (case, make, want) in enumerate(CASES):
        found = have(make(build(tmp_path / str(number), infiniband)))
        plan = pcie_path.plan(found, want)
        goldens.check("pcie_path", case, golden_rows.plan(plan))
        said += golden_rows.sentences(case, plan._replace(notes=tuple(pcie_path.notes(found, want))))
    goldens.text("pcie_path", "\n".join(dict.fromkeys(said)) + "\n")


def test_a_bridge_without_acs_is_not_in_the_script(node: Node) -> None:
    put(root_of(node), port(3, 1), config())
    texts = {change.path: change.after or "" for change in pcie_path.plan(have(node), WANT).changes}
    assert port(3, 1) not in texts[boot_unit.SCRIPT]
    assert port(3, 0) in texts[boot_unit.SCRIPT]


def test_where_nothing_tells_a_guest_from_a_machine_nothing_is_planned(node: Node) -> None:
    host, machine = node
    problems = (Problem(VENDOR, "nothing shows whether this is a guest"),)
    unsure = replace(machine, virtualization=Virtualization(False, "none", VENDOR), problems=problems)
    with pytest.raises(ReadError, match="nothing shows"):
        have((host, unsure))


def booted(node: Node, value: str) -> None:
    """Flags from bit 0 on the right, x leaves one (drivers/pci/pci.c, 6.12)."""
    for flags, _at, address in (item.partition("@") for item in value.partition("config_acs=")[2].split(";")):
        zeros = sum(1 << bit for bit, flag in enumerate(reversed(flags)) if flag == "0")
        put(root_of(node), address, config(acs=REDIRECTING & ~zeros))


def test_the_kernels_argument_makes_a_locked_kernel_boot_without_redirection(node: Node) -> None:
    write_file(locked(node), "/proc/sys/kernel/osrelease", "6.11.0-1-generic\n")
    want = WANT._replace(by_kernel=True)
    bad = [one for one in pcie_path.plan(have(node), WANT).findings if not one.ok]
    assert ["pcie_path_acs_owner: kernel" in one.fix for one in bad] == [True, True]
    value = pcie_path.argument(have(node), want)
    # One names all bridges with ACS: the kernel takes the last of several alone.
    assert len(value.split(";")) == len(bridges(node[1]))
    assert grub.passed(grub.quote("pci", value), {}) == [f"pci={value}"]
    booted(node, value)
    plan = pcie_path.plan(have(node), want)
    assert all(finding.ok for finding in plan.findings)


KNOWN = {"6.11.0-1-generic": True, "7.0.0": True, "6.8.0-60-generic": False, "5.14.0-503.el9": False, "?": False}


@pytest.mark.parametrize("release", KNOWN)
def test_the_unit_stays_where_the_kernel_does_not_know_the_argument(node: Node, release: str) -> None:
    write_file(node, "/proc/cmdline", "ro\n")
    write_file(node, "/proc/sys/kernel/osrelease", f"{release}\n")
    plan = pcie_path.plan(have(node), WANT._replace(by_kernel=True))
    script = next(one.after or "" for one in plan.changes if one.path == boot_unit.SCRIPT)
    assert (port(0, 0) in script) is not KNOWN[release]
    assert "0000:11:00.0" in script
    found = boot_argument.plan(node[0], release, boot_argument.value([(port(0, 0), 0x1D, 0)]), None)
    # This node has no boot loader.
    assert found.findings[0].state == ("not_owned" if KNOWN[release] else "unsupported")
    assert boot_argument.plan(node[0], release, "", None) == Plan()


# Addresses of GB300: the port of the root, the switch of the NIC with its function, and the way to the GPU.
ROOT, OWN, WAY = "0008:00:00.0", "0008:02:00.0", "0008:02:01.0"
ABOVE = ("pci0008:00", ROOT, "0008:01:00.0")


@pytest.mark.parametrize(
    ("vendor", "ancestors", "bits"),
    [
        (0x15B3, (*ABOVE, OWN), {ROOT: 0x1C, OWN: 0x19, WAY: 0x15}),
        (0x10DE, (*ABOVE, OWN), {}),
        (0x15B3, ("pci0009:00", "0009:00:00.0", "0009:01:00.0", "0009:02:00.0"), {}),
    ],
)
def test_bridges_beside_a_data_direct_function(vendor: int, ancestors: tuple[str, ...], bits: dict[str, int]) -> None:
    gpu = pci.PciDevice("0008:06:00.0", 0x030200, 0x10DE, 0x31C2, 0, (*ABOVE, WAY, "0008:04:00.0", "0008:05:00.0"))
    function = pci.PciDevice("0008:03:00.0", 0x080100, vendor, 0x2100, 0, ancestors)
    assert pcie_path.beside_data_direct([gpu], [function]) == bits


# -- at boot ---------------------------------------------------------------------------------------------------------


def rendered(devices: str = "/sys/bus/pci/devices", bridge: str = port(0, 0), nic: str = "0000:18:00.0") -> str:
    acs, control = registers.Register(0x14E, 0, ""), registers.Register(0x70, 0x2910, "")
    files = boot_unit.render(
        devices,
        [registers.Function(bridge, bridge, SWITCH_ID.replace(" ", ""), acs)],
        [registers.Function(nic, nic, "b3152110", control)],
        4096,
    )
    return files[boot_unit.SCRIPT]


def boot(root: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    script = root / "pcie-path"
    script.write_text(rendered(str(root / "sys/bus/pci/devices")))
    return subprocess.run([python, "-I", "-S", script], capture_output=True, text=True, check=False)


NIC_BEFORE, NIC_AFTER = (config(control=control, identity="b315 2110") for control in (0x2937, 0x5937))
STRANGER = config(acs=ISOLATING, identity="8680 5f9c")
ACS, CLEARED = config(acs=ISOLATING), config(acs=ISOLATING & ~0x1D)
LOST = "%s: the capability is not found in %d bytes"


@pytest.mark.parametrize(
    ("bridge", "nic", "after", "code", "says"),
    [
        (ACS, NIC_BEFORE, (CLEARED, NIC_AFTER), 0, ""),
        # Another device is left alone, and one that was taken out is named; the others are set.
        (STRANGER, NIC_BEFORE, (STRANGER, NIC_AFTER), 1, f"{port(0, 0)}: another device is there now"),
        (ACS, None, (CLEARED,), 0, "0000:18:00.0: is not there any more, the others are set\n"),
        *[(ACS[:size], NIC_BEFORE, (ACS[:size], NIC_AFTER), 1, LOST % (port(0, 0), size)) for size in (4, 64, 256)],
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


def test_the_script_runs_on_the_oldest_python(oldest_python: str, tmp_path: Path) -> None:
    done = boot(tmp_path, oldest_python)
    assert (done.returncode, done.stderr.count("No such file")) == (1, 2)
