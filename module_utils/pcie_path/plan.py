# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge ACS of the PCIe bridges between GPUs and NICs, and the NICs' maximum read request.

Both are words in config space, each found by its capability. Only these bits are changed, immediately and, by a unit of
systemd, at every boot.
Sources: PCI Express Base Specification 7.5.3.4 (Device Control), 7.7.11 (ACS); sysfs-bus-pci.
"""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass, replace
from typing import Callable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..change import apply, written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from ..core.plan import Command, FileChange, Plan, merge
from ..machine import lockdown, pci, virtualization
from ..machine.pci import PciDevice
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology

UNIT = "/etc/systemd/system/busbar-pcie-path.service"
# multi-user.target wants the unit by this drop-in, not by a link: a plan knows plain files only.
DROPIN = "/etc/systemd/system/multi-user.target.d/busbar-pcie-path.conf"
SCRIPT = "/usr/local/libexec/busbar/pcie-path"
OWN = (SCRIPT, UNIT, DROPIN)

CONFIG_SIZE = 4096
# Bits of the ACS control word, by the names that lspci gives them.
ACS_BITS = (
    ("SrcValid", 0x01),
    ("TransBlk", 0x02),
    ("ReqRedir", 0x04),
    ("CmpltRedir", 0x08),
    ("UpstreamFwd", 0x10),
    ("EgressCtrl", 0x20),
    ("DirectTrans", 0x40),
)
REDIRECT = 0x1C  # ReqRedir, CmpltRedir, UpstreamFwd
# SrcValid redirects nothing, but nothing needs it where no ACS is wanted, and tests of others take it for ACS.
CLEARED = REDIRECT | 0x01
READ_REQUEST = 0x7000  # bits of the device control word that hold n of a largest read request of 128 bytes << n
SIZES = (128, 256, 512, 1024, 2048, 4096)
_ACS_ID, _EXPRESS_ID = 0x000D, 0x10
_SILENT = "reads as all ones: the device does not respond"
_LOST = "is not below a PCI host bridge: the bridges above it are not known"

_RUN = fix_command.run_tag("pcie_path")


ACS = Check(
    "pcie_path.acs",
    why="a bridge with ACS redirection sends data between GPUs and NICs through the CPU: GPUDirect is slow or fails."
    " Firmware or an active IOMMU sets it at every boot; it has to stay on hosts that pass devices to virtual machines",
    fix=_RUN,
)
"""Does no bridge between GPUs and NICs that share a switch redirect their traffic to the CPU; SrcValid alone, which
slows nothing, is minor"""
MAX_READ_REQUEST = Check(
    "pcie_path.max_read_request",
    why="a NIC that reads in small requests cannot keep a wide PCIe link busy",
    fix=_RUN,
    severity="minor",
)
"Does each compute NIC read in requests of the configured size"
AT_BOOT = Check(
    "pcie_path.unit",
    why="firmware and kernel set ACS and read requests again at every boot",
    fix=_RUN,
    aspect="persisted",
)
"""Are ACS and read requests set again at every boot; not judged while a GPU or NIC is missing (the boot then sets
the others and names it in the journal)"""
_unit = functools.partial(AT_BOOT.judge, UNIT, want="exactly the configured values are set at boot")
# Where the kernel is locked down, registers cannot be written. Of several arguments the kernel takes the last alone;
# its flags are bits 4 to 0 of the control word, x leaves one (kernel-parameters.txt 6.12, pci=config_acs).
_ACS_IF_LOCKED = (
    'boot with pci="config_acs=%s" (Linux 6.11 and later; in a file of GRUB\'s settings write \\" for each quote, then'
    " run update-grub), or without Secure Boot"
)
_READ_REQUEST_IF_LOCKED = "set it in the firmware's setup for %s, or boot without Secure Boot"

_UNIT_TEXT = """\
# Written by Busbar (role pcie_path).
[Unit]
Description=PCIe registers on the paths between GPUs and NICs
After=systemd-modules-load.service
Before=nvidia-fabricmanager.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I -S /usr/local/libexec/busbar/pcie-path
"""
_DROPIN_TEXT = """\
# Written by Busbar (role pcie_path): sets the registers at boot.
[Unit]
Wants=busbar-pcie-path.service
"""
_SCRIPT_TEXT = '''\
#!/usr/bin/python3 -IS
# Written by Busbar (role pcie_path). Sets PCIe registers as they should be; other bits of them stay.
import os
import sys

DEVICES = %(devices)r
# Address -> vendor and device, as config space begins: what is plugged in there later is left alone.
BRIDGES = {%(bridges)s}
NICS = {%(nics)s}
READ_REQUEST = 0x%(read_request)04x


def number(config, offset, size=2):
    return int.from_bytes(config[offset : offset + size], "little")


def acs_control(config):
    at, seen = 0x100, set()
    while at >= 0x100 and at not in seen:
        seen.add(at)
        header = number(config, at, 4)
        if header & 0xFFFF == 0x000D and at <= 0xFF8:
            return at + 6
        at = header >> 20 & 0xFFC
    return None


def device_control(config):
    at, seen = config[0x34] & 0xFC if config[6] & 0x10 else 0, set()
    while at >= 0x40 and at not in seen:
        seen.add(at)
        if config[at] == 0x10:
            return at + 8
        at = config[at + 1] & 0xFC
    return None


def bring(address, identity, find, mask, value):
    """What went wrong, "" where nothing did."""
    try:
        with open("%%s/%%s/config" %% (DEVICES, address), "r+b", buffering=0) as stream:
            config = stream.read(4096)
            if config[:4].hex() != identity:
                return "another device is there now"
            at = find(config) if len(config) >= 256 else None
            if at is None:
                return "the capability is not found in %%d bytes" %% len(config)
            new = number(config, at) & ~mask | value
            if new != number(config, at):
                stream.seek(at)
                stream.write(new.to_bytes(2, "little"))
                stream.seek(at)
                if number(stream.read(2), 0) != new:
                    return "does not take the value"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def main():
    failed = 0
    work = [(address, BRIDGES, acs_control, 0x1D, 0) for address in BRIDGES]
    work += [(address, NICS, device_control, 0x7000, READ_REQUEST) for address in NICS]
    for address, devices, find, mask, value in work:
        # A card that was taken out is no fault of this unit: the suite's checks of the hardware name it.
        if os.path.isdir(DEVICES) and not os.path.isdir("%%s/%%s" %% (DEVICES, address)):
            print("%%s: is not there any more, the others are set" %% address, file=sys.stderr)
            continue
        said = bring(address, devices[address], find, mask, value)
        if said:
            failed = 1
            print("%%s: %%s (run Busbar's role pcie_path again)" %% (address, said), file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
'''


@dataclass(frozen=True)
class Acs:
    """The ACS control word of a bridge: its value, and its offset in config space in bytes."""

    offset: int
    control: int

    def __str__(self) -> str:
        return " ".join(name + ("+" if self.control & bit else "-") for name, bit in ACS_BITS)


@dataclass(frozen=True)
class DeviceControl:
    """The device control word of a function: its offset in config space, and the sizes that it sets, all in bytes."""

    offset: int
    max_read_request: int
    max_payload: int

    def __str__(self) -> str:
        return "%d bytes (max payload %d)" % (self.max_read_request, self.max_payload)


@dataclass(frozen=True)
class Function:
    """A bridge or a NIC.

    address: its PCI address. label: subject of its findings. identity: vendor and device, the first four bytes of its
    config space in hexadecimal, "" where these could not be read.
    register: of a bridge its ACS, None where it has none; of a NIC its device control.
    problem: why the register is not known; "" where it is.
    """

    address: str
    label: str
    identity: str = ""
    register: Union[Acs, DeviceControl, None] = None
    problem: str = ""


@dataclass(frozen=True)
class Want:
    """Wanted state by the inventory.

    clear_acs: ACS redirects and validates nothing on the bridges.
    max_read_request: of each NIC, in bytes; 0 for none.
    persist: set it at every boot, too.
    """

    clear_acs: bool
    max_read_request: int
    persist: bool


@dataclass(frozen=True)
class Have:
    """State of a node.

    is_vm, hypervisor: by machine.virtualization, the second with its cloud.
    bridges: those on the paths between two GPUs or a GPU and a NIC, where the two share a switch. nics: compute NICs.
    files: path of each file of OWN -> its text, None where it is absent.
    devices: the directory in which sysfs has the PCI devices of this machine.
    locked: the kernel's lockdown, integrity or confidentiality; "" for none.
    passed_on: address of a GPU that is handed to virtual machines (vfio-pci), "" where there is no such GPU.
    """

    is_vm: bool
    hypervisor: str
    bridges: Tuple[Function, ...]
    nics: Tuple[Function, ...]
    files: Mapping[str, Optional[str]]
    devices: str = pci.DEVICES
    locked: str = ""
    passed_on: str = ""


@dataclass(frozen=True)
class Write(Command):
    """A write of some bits of a 16-bit word in the config space of a function: ``write`` below does it.

    argv: the setpci command that would do the same, for people to read; it is never run.
    address: of the function. offset: of the word, in bytes.
    mask: the bits that change.   value: what these bits shall be, in their places in the word.
    """

    address: str = ""
    offset: int = 0
    mask: int = 0
    value: int = 0

    @classmethod
    def to_register(cls, address: str, register: str, offset: int, mask: int, value: int) -> Write:
        """Return the write. register: setpci's name of the word. The rest is as in Write."""
        argv = ("setpci", "-s", address, "%s=%04x:%04x" % (register, value, mask))
        return cls(argv, "set a PCIe register", address=address, offset=offset, mask=mask, value=value)

    def apply(self, word: int) -> int:
        """The word with its bits changed."""
        return word & ~self.mask | self.value


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_acs(config: bytes) -> Optional[Acs]:
    """Return the ACS of a function from its config space, None without ACS.

    Raises ParseError if these are not all of its 4096 bytes, as for users who are not root, or if they are invalid.
    """
    _check_length(config, CONFIG_SIZE)
    at, seen = 0x100, set()
    while at:
        if at < 0x100 or at in seen:
            raise ParseError("the list of extended capabilities leads to 0x%03x, where none can be" % at)
        seen.add(at)
        header = _number(config, at, 4)
        if header == 0xFFFFFFFF:
            raise ParseError("0x%03x reads as all ones: the device does not respond" % at)
        if header & 0xFFFF == _ACS_ID:
            if at + 8 > CONFIG_SIZE:
                raise ParseError("the ACS capability at 0x%03x leaves config space" % at)
            return Acs(at + 6, _number(config, at + 6))
        at = header >> 20 & 0xFFC
    return None


def parse_device_control(config: bytes) -> DeviceControl:
    """The device control of the function whose config space this is, of which 256 bytes suffice.

    Raises ParseError where fewer bytes are given, where these make no sense, and where it is not PCI Express.
    """
    _check_length(config, 256)
    has_list = _number(config, 0x06) & 0x10
    at, seen = config[0x34] & 0xFC if has_list else 0, set()
    while at:
        if at < 0x40 or at in seen:
            raise ParseError("the list of capabilities leads to 0x%02x, where none can be" % at)
        seen.add(at)
        if config[at] == _EXPRESS_ID:
            control = _number(config, at + 8)
            read_request, payload = control >> 12 & 7, control >> 5 & 7
            if max(read_request, payload) >= len(SIZES):
                raise ParseError("device control 0x%04x names a size that PCI Express does not have" % control)
            return DeviceControl(at + 8, SIZES[read_request], SIZES[payload])
        at = config[at + 1] & 0xFC
    raise ParseError("has no PCI Express capability")


def _check_length(config: bytes, needed: int) -> None:
    """Raises ParseError where fewer bytes than needed are there, or where the device does not respond.

    The kernel shows 64 bytes to users who are not root; a device without extended config space has only 256 bytes.
    """
    if len(config) < needed:
        way_out = "it needs root" if len(config) < 256 else "look for MMCONFIG in dmesg"
        raise ParseError("only %d of %d bytes can be read: %s" % (len(config), needed, way_out))
    if config[:4] == b"\xff" * 4:
        raise ParseError(_SILENT)


def _number(config: bytes, offset: int, size: int = 2) -> int:
    return int.from_bytes(config[offset : offset + size], "little")


# -- what is there ---------------------------------------------------------------------------------------------------


def compute_nics(topology: Topology, rails: Rails) -> Tuple[Nic, ...]:
    """Return NICs whose read requests count: those of the rails, and all others for compute traffic.

    A rail counts also while its port is down: its registers are set at boot, when no port is up.
    """
    of_rails = {nic.pci for nic in rails.nics.values()}
    return tuple(nic for nic in topology.nics if nic.role == "compute" or nic.pci in of_rails)


def bridges_between(gpus: Sequence[PciDevice], nics: Sequence[PciDevice]) -> Tuple[str, ...]:
    """PCI addresses, sorted, of the bridges on the paths between two GPUs, and between a GPU and a NIC.

    Traffic turns round at the nearest bridge above both devices; neither that bridge nor any above it is among them.
    Two devices that share no bridge meet in the CPU, and nothing that a bridge does makes their path shorter.
    """
    found: Set[str] = set()
    for gpu in gpus:
        for peer in (*gpus, *nics):
            if pci.path_class(gpu, peer) in ("PIX", "PXB"):
                found.update(set(gpu.ancestors) ^ set(peer.ancestors))
    return tuple(sorted(found))


def read(host: Host, topology: Topology, nics: Sequence[Nic]) -> Have:
    """Return the node's state; in a virtual machine only that it is one.

    nics: as compute_nics returns them. A register that cannot be read is a Function with a problem.
    Raises ReadError if it is unknown whether this is a virtual machine, and if a file of OWN cannot be read.
    """
    machine = topology.virtualization
    for problem in topology.problems:
        if problem.source == machine.source == virtualization.VENDOR:
            raise ReadError(problem.source, problem.message)
    if machine.is_vm:
        return Have(True, machine.owner, (), (), {})
    gpus = [gpu.device for gpu in topology.gpus]
    peers = [nic.device for nic in nics]
    bridges = [_function(host, address, address, parse_acs) for address in bridges_between(gpus, peers)]
    bridges += [Function(one.address, one.address, problem=_LOST) for one in (*gpus, *peers) if not one.ancestors]
    return Have(
        is_vm=False,
        hypervisor=machine.owner,
        bridges=tuple(bridges),
        nics=tuple(_function(host, nic.pci, nic.label, parse_device_control) for nic in nics),
        files={path: host.read_system(path) for path in OWN},
        devices=host.hardware(pci.DEVICES),
        locked=lockdown.read(host),
        passed_on=next((gpu.address for gpu in gpus if gpu.driver == "vfio-pci"), ""),
    )


def read_config(host: Host, address: str) -> bytes:
    """Return the config space of one function: 4096 bytes, less for users who are not root. Raises ReadError."""
    path = config_path(address)
    try:
        # Opening a pipe in its place would wait for ever without O_NONBLOCK.
        with open(os.open(host.hardware(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ReadError(path, "is not a regular file")
            return stream.read(CONFIG_SIZE)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def config_path(address: str) -> str:
    """The file in which sysfs has the config space of the function with this PCI address."""
    return "%s/%s/config" % (pci.DEVICES, address)


def _function(
    host: Host, address: str, label: str, parse: Callable[[bytes], Union[Acs, DeviceControl, None]]
) -> Function:
    """The function with its register, or with the problem that kept it from being read. parse: of its config space."""

    def step() -> Function:
        config = read_config(host, address)
        return Function(address, label, config[:4].hex(), parse(config))

    problems: List[Problem] = []
    return attempt(step, address, problems) or Function(address, label, problem=problems[0].message)


# -- what is written -------------------------------------------------------------------------------------------------


def execute(host: Host, planned: Plan) -> List[str]:
    """Make the changes of a plan: registers, then files. Raises ReadError at the first that fails.

    Return the paths of backups: none, for the files are Busbar's.
    """
    for command in planned.commands:
        if isinstance(command, Write):
            write(host, command)
    for change in planned.changes:
        apply.write(host, change)
    return []


def write(host: Host, change: Write) -> None:
    """Reads the word of ``change``, changes its bits and writes it back. Raises ReadError, which names the file."""
    path = config_path(change.address)
    try:
        with open(host.hardware(path), "r+b", buffering=0) as stream:
            stream.seek(change.offset)
            word = _number(stream.read(2), 0)
            if word == 0xFFFF:
                raise ReadError(path, _SILENT)
            stream.seek(change.offset)
            stream.write(change.apply(word).to_bytes(2, "little"))
    except OSError as error:
        raise ReadError(path, "cannot be written: %s" % error.strerror) from error


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want, missing: Optional[Finding] = None) -> Plan:
    """Plan registers, as commands of type Write, and files, and judge both.

    missing: finding of a missing GPU or NIC; the settings at boot then stay as they are.
    The plan is empty in a virtual machine, where these registers are the hypervisor's.
    """
    if have.is_vm:
        return Plan()
    bridges = have.bridges if want.clear_acs and not have.passed_on else ()
    nics = have.nics if want.max_read_request else ()
    findings: List[Finding] = []
    writes: List[Write] = []
    # Where it cannot be written, SrcValid alone is not worth another boot.
    unwanted = REDIRECT if have.locked else CLEARED
    wrong = {f.address: f.register for f in bridges if isinstance(f.register, Acs) and f.register.control & unwanted}
    by_boot = _ACS_IF_LOCKED % ";".join("000x0@%s" % address for address in wrong)
    for function in bridges:
        acs = wrong.get(function.address)
        severity = None if acs is None or acs.control & REDIRECT else "minor"
        want_bits = "SrcValid- ReqRedir- CmpltRedir- UpstreamFwd-"
        findings.append(_judged(ACS, function, want_bits, bool(acs), have.locked, by_boot, severity))
        writes += [Write.to_register(function.address, "ECAP_ACS+6.w", acs.offset, CLEARED, 0)] if acs else []
    size = want.max_read_request
    for function in nics:
        control, todo = function.register, []
        if isinstance(control, DeviceControl) and control.max_read_request != size:
            todo = [Write.to_register(function.address, "CAP_EXP+8.w", control.offset, READ_REQUEST, _encoded(size))]
        by_boot = _READ_REQUEST_IF_LOCKED % function.address
        findings.append(_judged(MAX_READ_REQUEST, function, "%d bytes" % size, bool(todo), have.locked, by_boot))
        writes += todo
    cause = missing or next((finding for finding in findings if finding.state == "unknown"), None)
    # If config space cannot be read for one reason, the first function has the cause for all.
    # A kernel that is locked down is one cause, too.
    locked = [finding for finding in findings if finding.state == "unsupported" and finding.check == ACS.id]
    findings = [replace(f, because=locked[0].id) if f in locked[1:] else f for f in findings]
    live = Plan(one_cause(findings, ("unknown",)), commands=() if have.locked else tuple(writes))
    return merge(live, _persisted(have, bridges, nics, want, cause))


def render(have: Have, bridges: Sequence[Function], nics: Sequence[Function], size: int) -> Mapping[str, str]:
    """The text of each file of OWN by its path; empty where nothing is to be set at boot.

    bridges, nics: those whose registers are set. size: of the NICs' read requests, in bytes; 0 leaves them.
    """
    bridges = [function for function in bridges if function.register is not None]
    if not bridges and not nics:
        return {}
    values = {
        "devices": have.devices,
        "bridges": _entries(bridges),
        "nics": _entries(nics),
        "read_request": _encoded(size) if size else 0,
    }
    texts = {UNIT: _UNIT_TEXT, DROPIN: _DROPIN_TEXT}
    sealed = {path: written.seal(path, text, "") for path, text in texts.items()}
    return {SCRIPT: written.seal(SCRIPT, _SCRIPT_TEXT % values, values), **sealed}


def notes(have: Have, want: Want) -> List[str]:
    """Return sentences for the verdict: why ACS or read requests were not judged."""
    if have.is_vm:
        return ["ACS and read requests are the hypervisor's (%s): nothing was required" % have.hypervisor]
    if not want.clear_acs:
        return []
    if have.passed_on:
        return ["ACS was left alone: GPU %s is handed to virtual machines (vfio-pci)" % have.passed_on]
    if not have.bridges:
        return [
            "ACS does not matter here: sysfs shows no GPU that shares a PCIe switch with another one or with a"
            " compute NIC"
        ]
    return []


def _encoded(size: int) -> int:
    """A size of SIZES as the bits of READ_REQUEST have it."""
    return SIZES.index(size) << 12


def _entries(functions: Sequence[Function]) -> str:
    """The inside of the script's mapping of addresses to identities, a line for each function."""
    lines = ["    %r: %r,\n" % (function.address, function.identity) for function in functions]
    return "\n" + "".join(lines) if lines else ""


def _judged(
    check: Check, function: Function, want: str, wrong: bool, locked: str, by_boot: str, severity: Optional[str] = None
) -> Finding:
    """Judge one function. wrong: its register is not as wanted. locked: as in Have. by_boot: what to do where it is."""
    state, have, fix = "drift" if wrong else "ok", str(function.register or "no such capability"), None
    if function.problem:
        state, have = "unknown", function.problem
        fix = "run as root; if it already ran as root, look at lspci -vvv -s %s and at dmesg" % function.address
    elif wrong and locked:
        state, fix = "unsupported", by_boot
        have += "; the kernel is locked down (%s) and does not allow writing it" % locked
    return check.judge(function.label, state, want, have, config_path(function.address), fix, severity=severity)


def _persisted(
    have: Have, bridges: Sequence[Function], nics: Sequence[Function], want: Want, cause: Optional[Finding]
) -> Plan:
    """Plan the files of OWN: as rendered if registers are set at boot, else absent.

    cause: the finding by which the wanted registers are unknown; None if everything is known.
    """
    asked = want.persist and not have.locked and bool(want.clear_acs or want.max_read_request)
    if asked and cause is not None:
        text = "not judged while a GPU, a NIC or a register of one is not there"
        return Plan((_unit("unknown", have=text, because=cause),))
    texts = render(have, bridges, nics, want.max_read_request) if asked else {}
    candidates = [
        FileChange(path, have.files[path], texts.get(path), mode=0o755 if path == SCRIPT else 0o644) for path in OWN
    ]
    files = written.compare(candidates)
    if not texts and not files.changes:
        return Plan()
    # Earlier releases left SrcValid, which slows nothing.
    former = written.compare(candidates, lambda path, text: written.effect(path, text.replace("0x1C, 0)", "0x1D, 0)")))
    severity = former.severity if former.wrong else "minor"
    found = _unit(files.state, have=files.wrong or "set at boot", severity=severity)
    return Plan((found,), files.changes, notes=files.notes)
