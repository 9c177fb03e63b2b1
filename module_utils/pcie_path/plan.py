# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge ACS of the PCIe bridges between GPUs and NICs, and the NICs' maximum read request.

They are set immediately and, by a unit of systemd, at every boot.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Host, ReadError
from ..core.plan import FileChange, Plan, merge
from ..driver.kernels import RELEASE
from ..machine import pci, virtualization
from ..machine.pci import PciDevice
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology
from . import boot_argument
from .boot_unit import OWN, SCRIPT, UNIT, render
from .registers import (
    CLEARED,
    READ_REQUEST,
    REDIRECT,
    Function,
    Write,
    acs_text,
    config_path,
    encode_size,
    parse_acs,
    parse_device_control,
    read_function,
)

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
# Where the kernel is locked down, registers cannot be written. Beside a Data Direct function they must not be: the
# kernel has grouped devices by them.
_ACS_BY_KERNEL = "set pcie_path_acs_owner: kernel (Linux 6.11 and later); then " + fix_command.allow(_RUN, "reboot")
_ACS_PENDING = "reboot the node; if the kernel (Linux 6.11 and later) still does not set it, install a later one"
_READ_REQUEST_IF_LOCKED = "set it in the firmware's setup for %s, or boot without Secure Boot"


class PathConfig(NamedTuple):
    """Wanted state by the inventory.

    clear_acs: ACS redirects and validates nothing on the bridges.
    max_read_request: of each NIC, in bytes; 0 for none.
    persist: set it at every boot, too.
    by_kernel: the kernel sets ACS at boot, by its argument, and not the unit.
    """

    clear_acs: bool
    max_read_request: int
    persist: bool
    by_kernel: bool = False


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


def beside_data_direct(gpus: Sequence[PciDevice], devices: Iterable[PciDevice]) -> Dict[str, int]:
    """Return address -> bits of CLEARED that bridges have where a Data Direct function is below a switch with a GPU.

    Requests of the function and completions of the GPU take the short way, all else goes up; the port of the root has
    no SrcValid, so that the kernel makes one group of all (linux-rdma/rdma-core rdma_topo).
    """
    found: Dict[str, int] = {}
    for one in filter(pci.is_data_direct, devices):
        for gpu in gpus:
            if pci.path_class(gpu, one) in pci.NEAR:
                shared = [*(a == b for a, b in zip(gpu.ancestors, one.ancestors)), False].index(False)
                found.update({gpu.ancestors[1]: 0x1C, one.ancestors[shared]: 0x19, gpu.ancestors[shared]: 0x15})
    return found


class PathState:
    """State of a node; of a virtual machine only that it is one. Other nics than compute_nics do not count.

    is_vm, hypervisor: by machine.virtualization, the second with its cloud.
    bridges: those on the paths between two GPUs or a GPU and a NIC, where the two share a switch. nics: compute NICs.
    direct: as beside_data_direct returns it; these are bridges, too.   release: of the kernel.
    files: path of each file of OWN -> its text, None where it is absent.
    devices: the directory in which sysfs has the PCI devices of this machine.
    locked: the kernel's lockdown, integrity or confidentiality; "" for none.
    passed_on: address of a GPU that is handed to virtual machines (vfio-pci), "" where there is no such GPU.
    """

    def __init__(self, host: Host, topology: Topology, nics: Sequence[Nic]) -> None:
        """Read it. A register that cannot be read is a Function with a problem.

        Raises ReadError if it is unknown whether this is a virtual machine, and if a file of OWN cannot be read.
        """
        machine = topology.virtualization
        for problem in topology.problems:
            if problem.source == machine.source == virtualization.VENDOR:
                raise ReadError(problem.source, problem.message)
        self.is_vm, self.hypervisor = machine.is_vm, machine.owner
        if self.is_vm:
            return
        gpus = [gpu.device for gpu in topology.gpus]
        peers = [nic.device for nic in nics]
        self.direct = beside_data_direct(gpus, pci.read(host)[0].values())
        self.release = host.read(RELEASE) or ""
        paths = dict.fromkeys((*bridges_between(gpus, peers), *self.direct))
        self.bridges = [read_function(host, one, one, parse_acs) for one in paths]
        lost = [one.address for one in (*gpus, *peers) if not one.ancestors]
        self.bridges += [Function(address, address, problem=_LOST) for address in lost]
        self.nics = [read_function(host, nic.pci, nic.label, parse_device_control) for nic in nics]
        self.files = {path: host.read_system(path) for path in OWN}
        self.devices = host.hardware(pci.DEVICES)
        self.locked = pci.read_lockdown(host)
        self.passed_on = next((gpu.address for gpu in gpus if gpu.driver == "vfio-pci"), "")


def argument(have: PathState, want: PathConfig) -> str:
    """Return the value of the kernel's argument for these bridges, "" where it is not wanted."""
    bridges = _judged_bridges(have, want) if want.by_kernel and want.persist else []
    masks = [(one.address, CLEARED, have.direct.get(one.address, 0)) for one in bridges if one.register]
    return boot_argument.value(masks) if masks else ""


def _judged_bridges(have: PathState, want: PathConfig) -> Sequence[Function]:
    return have.bridges if want.clear_acs and not have.passed_on else []


def plan(have: PathState, want: PathConfig, missing: Optional[Finding] = None, pending: Optional[str] = None) -> Plan:
    """Plan registers, as commands of type Write, and files, and judge both.

    missing: finding of a missing GPU or NIC; the settings at boot then stay as they are.
    pending: id of the finding that the kernel's argument is not active.
    The plan is empty in a virtual machine, where these registers are the hypervisor's.
    """
    if have.is_vm:
        return Plan()
    bridges = _judged_bridges(have, want)
    nics = have.nics if want.max_read_request else []
    by_kernel = want.by_kernel and want.persist and boot_argument.is_known(have.release)
    findings, writes = _plan_acs(have, bridges, by_kernel, pending)
    size = encode_size(want.max_read_request)
    for one in nics:
        control = one.register if one.register and one.register.word & READ_REQUEST != size else None
        text, fix = "%d bytes" % want.max_read_request, _READ_REQUEST_IF_LOCKED % one.address
        findings.append(_judged(MAX_READ_REQUEST, one, text, bool(control), have.locked, fix))
        if control:
            writes.append(Write.to_register(one.address, "CAP_EXP+8.w", control.offset, READ_REQUEST, size))
    cause = missing or next((finding for finding in findings if finding.state == "unknown"), None)
    # If config space cannot be read for one reason, the first function has the cause for all.
    # A kernel that is locked down is one cause, too.
    locked = [finding for finding in findings if finding.state == "unsupported" and finding.check == ACS.id]
    findings = [replace(f, because=locked[0].id) if f in locked[1:] else f for f in findings]
    live = Plan(one_cause(findings, ("unknown",)), commands=() if have.locked else tuple(writes))
    of_unit = [one for one in bridges if not by_kernel and one.address not in have.direct]
    return merge(live, _persisted(have, of_unit, nics, want, cause))


def _plan_acs(
    have: PathState, bridges: Sequence[Function], by_kernel: bool, pending: Optional[str]
) -> Tuple[List[Finding], List[Write]]:
    # Where it cannot be written, SrcValid alone is not worth another boot.
    unwanted = REDIRECT if have.locked else CLEARED
    findings: List[Finding] = []
    writes: List[Write] = []
    for one in bridges:
        bits = have.direct.get(one.address, 0)
        acs = one.register if one.register and (one.register.word ^ bits) & unwanted else None
        severity = "minor" if acs and not (acs.word ^ bits) & REDIRECT else None
        fix = _ACS_PENDING if by_kernel else _ACS_BY_KERNEL + (", or boot without Secure Boot" if have.locked else "")
        judged = _judged(ACS, one, acs_text(bits, CLEARED), bool(acs), have.locked, fix, severity)
        if one.address in have.direct and judged.state == "drift":
            judged = replace(judged, fix=fix, disruption="reboot" if by_kernel else "none", because=pending)
        elif acs:
            writes.append(Write.to_register(one.address, "ECAP_ACS+6.w", acs.offset, CLEARED, 0))
        findings.append(judged)
    return findings, writes


def notes(have: PathState, want: PathConfig) -> List[str]:
    """Return sentences for the verdict: why ACS or read requests were not judged."""
    if have.is_vm:
        return ["ACS and read requests are the hypervisor's (%s): nothing was required" % have.hypervisor]
    if want.clear_acs and have.passed_on:
        return ["ACS was left alone: GPU %s is handed to virtual machines (vfio-pci)" % have.passed_on]
    if want.clear_acs and not have.bridges:
        return ["ACS does not matter here: no GPU shares a PCIe switch with another one or with a compute NIC"]
    return []


def _judged(
    check: Check, function: Function, want: str, wrong: bool, locked: str, by_boot: str, severity: Optional[str] = None
) -> Finding:
    """Judge one function. wrong: its register is not as wanted. locked: as in PathState. by_boot: the fix then."""
    state, have, fix = (
        "drift" if wrong else "ok",
        function.register.text if function.register else "no such capability",
        None,
    )
    if function.problem:
        state, have = "unknown", function.problem
        fix = "run as root; if it already ran as root, look at lspci -vvv -s %s and at dmesg" % function.address
    elif wrong and locked:
        state, fix = "unsupported", by_boot
        have += "; the kernel is locked down (%s) and does not allow writing it" % locked
    return check.judge(function.label, state, want, have, config_path(function.address), fix, severity=severity)


def _persisted(
    have: PathState, bridges: Sequence[Function], nics: Sequence[Function], want: PathConfig, cause: Optional[Finding]
) -> Plan:
    """Plan the files of OWN: as rendered if registers are set at boot, else absent.

    cause: the finding by which the wanted registers are unknown; None if everything is known.
    """
    asked = want.persist and not have.locked and bool(want.clear_acs or want.max_read_request)
    if asked and cause is not None:
        text = "not judged while a GPU, a NIC or a register of one is not there"
        return Plan((_unit("unknown", have=text, because=cause),))
    texts = render(have.devices, bridges, nics, want.max_read_request) if asked else {}
    candidates = [
        FileChange(path, have.files[path], texts.get(path), mode=0o755 if path == SCRIPT else 0o644) for path in OWN
    ]
    files = written.compare(candidates)
    if not texts and not files.changes:
        return Plan()
    found = _unit(files.state, have=files.wrong or "set at boot", severity=files.severity)
    return Plan((found,), files.changes, notes=files.notes)
