# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge IOMMU passthrough: arguments that this CPU needs, and the domain types that devices really have.

With translation, every transfer between a GPU and a NIC goes up to the root complex. The domain type of a device's
group shows what is in effect; the kernel log does not (it names a default even where there is no IOMMU).
A guest on Grace that has an SMMUv3 needs that chip's command queues for guests, too: without them its hypervisor
handles each invalidation.
Sources: kernel-parameters.txt, drivers/iommu (6.12; TEGRA241_CMDQV in arm/Kconfig) and arch/arm64's cputype.h.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..change import apply, module
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError
from ..core.plan import Plan, merge
from ..machine import pci, profile, virtualization
from . import plan as kernel_args
from .line import Arg, satisfied
from .read import ACTIVE, Boot
from .read import read as read_boot

GROUPS = "/sys/kernel/iommu_groups"
SMMUS, ACPI = "/sys/class/iommu", "/sys/bus/acpi/devices"
# ACPI device of Grace's command queues; number of its CPU's cores, Neoverse V2.
_QUEUES, _GRACE = "NVDA200C", re.compile(r"^CPU part\s*: 0xd4f$", re.MULTILINE)
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}
_WANTED = {
    "intel": (
        Arg("intel_iommu", "off", present=False),
        Arg("iommu", "off", present=False),
        Arg("intel_iommu", "on"),
        Arg("iommu", "pt"),
    ),
    "amd": (Arg("amd_iommu", "off", present=False), Arg("iommu", "off", present=False), Arg("iommu", "pt")),
    "arm": (Arg("iommu.passthrough", "1", exclusive=True),),
}
_WHY = "if the IOMMU translates addresses, GPUDirect goes through the root complex at a fraction of its speed, or fails"
ARGS = Check("iommu.args", why=_WHY, fix=fix_command.run_tag("iommu"))
"""Will the next boot have the kernel argument (persisted), and has this boot (live); if only persisted, a reboot is
pending"""
PLATFORM_ARGS = Check(
    "iommu.platform_args",
    why="the platform's vendor requires it (kernel_args of the profile): without it the node is slower or unstable",
    fix=fix_command.run_tag("iommu"),
)
"""For a profile with `kernel_args`: will the next boot have the argument (persisted), and has this boot (live); in a
virtual machine, too"""
DOMAINS = Check(
    "iommu.domains",
    why=_WHY,
    fix="repair iommu.args first, then reboot; if the arguments are active, dmesg shows what forces translation: switch"
    " memory encryption (SME, TDX) or DMA protection off in the firmware's setup, and reboot",
    disruption="reboot",
)
"Are the IOMMU groups of GPUs and NICs in passthrough mode, by their type; in a virtual machine, those of its vIOMMU"
QUEUE = Check(
    "iommu.command_queue",
    why="without a command queue, each invalidation of the guest's SMMU waits for the hypervisor's only one",
    fix="have the owner of the hypervisor give the guest Grace's command queues (CMDQV, ACPI device NVDA200C), and boot"
    " a kernel with CONFIG_TEGRA241_CMDQV",
    severity="minor",
)
"Has a guest on Grace with an SMMUv3 the chip's command queues (CMDQV); not on other machines"
AMD_IOMMU = Check(
    "iommu.amd_iommu",
    why="the kernel ignores this value; AMD's IOMMU is on if the firmware enables it",
    fix="remove it from the files that set it, run update-grub (GRUB) or grubby --update-kernel=ALL"
    " --remove-args=amd_iommu=on (EL), and reboot",
    severity="minor",
    disruption="reboot",
)
"Is there no `amd_iommu=on`, which the kernel ignores"


class State(NamedTuple):
    """cpu: "intel", "amd", "arm". types: PCI address of each GPU and NIC -> its domain type, None without a group.

    smmus: SMMUv3 of a guest on Grace.   has_queues: it has the chip's command queues.
    """

    cpu: str
    is_vm: bool
    hypervisor: str
    types: Mapping[str, Optional[str]]
    problems: Tuple[Problem, ...] = ()
    smmus: Tuple[str, ...] = ()
    has_queues: bool = False

    @property
    def decides(self) -> bool:
        """Return whether this kernel decides on passthrough: a guest's does for a vIOMMU that it sees."""
        return not self.is_vm or any(self.types.values())


def parse_cpu(text: str) -> str:
    """Return the vendor in /proc/cpuinfo. Raises ParseError."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "vendor_id" and value.strip() in _VENDORS:
            return _VENDORS[value.strip()]
        if colon and name.strip() == "CPU implementer":
            return "arm"
    raise ParseError("%s: no vendor_id of Intel or AMD and no CPU implementer of Arm in it" % virtualization.CPUINFO)


def read(host: Host) -> State:
    """Raises ReadError and ParseError where not even the CPU is known."""
    text = host.require(virtualization.CPUINFO)
    machine, problems = virtualization.read(host)
    # Other checks report unreadable attributes of PCI devices.
    devices, _unread = pci.read(host)
    found = list(problems)
    types = {}
    for address, device in devices.items():
        if pci.is_gpu_class(device.class_code) or pci.is_nic_class(device.class_code):
            try:
                types[address] = _type(host, address)
            except ReadError as error:
                found.append(error.problem)
    if not types:
        found.append(Problem(pci.DEVICES, "has neither a GPU nor a NIC in it"))
    smmus: List[str] = []
    if machine.is_vm and _GRACE.search(text):
        smmus = [name for name in host.listdir(SMMUS) if name.startswith("smmu3")]
    has_queues = bool(smmus) and any(name.startswith(_QUEUES) for name in host.listdir(ACPI))
    return State(parse_cpu(text), machine.is_vm, machine.owner, types, tuple(found), tuple(smmus), has_queues)


def _type(host: Host, address: str) -> Optional[str]:
    group = host.realpath("%s/%s/iommu_group" % (pci.DEVICES, address))
    if group is None:
        return None
    path = "%s/%s/type" % (GROUPS, group.rpartition("/")[2])
    found = host.read(path)
    if found is None:
        raise ReadError(path, "is not there: kernels before 5.11 do not show what an IOMMU group does")
    return found


def platform_args(wanted: Sequence[str]) -> Tuple[Arg, ...]:
    """Return a profile's arguments: ``init_on_alloc=0`` and the like, which exclude other values."""
    pairs = [text.partition("=") for text in wanted]
    return tuple(Arg(name, value if equals else None, exclusive=bool(equals)) for name, equals, value in pairs)


def plan(state: State, boot: Optional[Boot], passthrough: bool = True, wanted: Sequence[str] = ()) -> Plan:
    """passthrough: judge the IOMMU.   wanted: the profile's arguments.

    boot: None where no argument is judged: in a virtual machine without a vIOMMU and without a profile's arguments.
    """
    more = platform_args(wanted)
    ours = _WANTED[state.cpu] if passthrough and state.decides else ()
    if state.is_vm and ours and boot is not None and not _translated(state) and not satisfied(boot.active, ours[-1]):
        # Its kernel passes through by default.
        ours = ()
    args = kernel_args.plan(boot, (*ours, *more), ARGS, dict.fromkeys(more, PLATFORM_ARGS)) if boot else Plan()
    if not passthrough:
        return args
    pending = next((f for f in args.findings if not f.ok and f.aspect == "live" and f.check == ARGS.id), None)
    cause = (pending.because or pending.id) if pending is not None else None
    findings = [_domains(state, cause)]
    if state.smmus:
        have = "%s, %s %s" % (", ".join(state.smmus[:3]), "with" if state.has_queues else "without", _QUEUES)
        known = "ok" if state.has_queues else "drift"
        findings.append(QUEUE.judge("SMMUv3", known, "an SMMUv3 with %s" % _QUEUES, have, "%s, %s" % (SMMUS, ACPI)))
    line = boot.active if boot else ""
    if state.cpu != "arm" and not state.is_vm and not satisfied(line, Arg("amd_iommu", "on", present=False)):
        source = ACTIVE + (kernel_args.origin(boot, ["amd_iommu=on"]) if boot else "")
        findings.append(AMD_IOMMU.judge("amd_iommu=on", "drift", "no amd_iommu=on", "amd_iommu=on", source))
    return merge(args, Plan(tuple(findings)))


def _translated(state: State) -> Mapping[str, str]:
    # A device that is handed to a guest (vfio) has a domain for that.
    own = ("identity", "unmanaged", "blocked")
    return {address: kind for address, kind in state.types.items() if kind and kind not in own}


def _domains(state: State, cause: Optional[str]) -> Finding:
    translated = _translated(state)
    known, have = "ok", "identity" if any(state.types.values()) else "no IOMMU in effect"
    if state.problems:
        known, have = "unknown", str(state.problems[0])
    elif translated:
        names: List[str] = sorted(translated)
        more = " and %d more" % (len(names) - 3) if len(names) > 3 else ""
        known, have = "drift", "%s for %s%s" % (translated[names[0]], ", ".join(names[:3]), more)
    return DOMAINS.judge(
        "GPUs and NICs",
        known,
        want="identity, or no IOMMU in effect",
        have=have,
        source="%s/*/type" % GROUPS,
        because=cause if known == "drift" else None,
    )


SPEC: module.Spec = {
    "passthrough": {"type": "bool", "default": True},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    state = read(host)
    wanted = given["profile"]
    asked = profile.parse(wanted, given["profile_name"]).kernel_args if wanted is not None else ()

    def look() -> Plan:
        boot = read_boot(host) if asked or (given["passthrough"] and state.decides) else None
        found = plan(state, boot, given["passthrough"], asked)
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    notes = [] if state.decides else ["the IOMMU is the hypervisor's (%s): there is nothing to set" % state.hypervisor]
    done = apply.converge(host, check_mode, look)
    return dict(done, notes=[*done["notes"], *notes])
