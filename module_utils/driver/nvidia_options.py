# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the NVIDIA driver that a platform needs (NVreg_...): as it runs, and as it will be loaded.

They are read when the module is loaded, and nothing here unloads it: what is not in effect waits for a reboot.
Sources: /proc/driver/nvidia/params; modprobe.d(5); kmod (libkmod-config.c); NVIDIA IMEX guide (channels);
NVIDIA/aicr#2607; DeepEP 1.2.1 third-party/README.md and NVIDIA/nvshmem issue 23 (IBGDA).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, attempt
from ..core.number import whole
from ..core.plan import FileChange, Plan
from ..machine.gpu import VERSION, parse_driver_version
from ..machine.pci import read_value
from ..machine.profile import DriverOption
from . import module_lists

PARAMS = "/proc/driver/nvidia/params"
FILE = "/etc/modprobe.d/busbar-nvidia.conf"
COMMAND_LINE = "the kernel command line of the next boot"
OPTIONS = Check(
    "gpudirect.driver_options",
    why="the platform (driver_options of the profile) or GPU-initiated traffic needs this option of the NVIDIA driver",
    fix=fix_command.run_tag("nvidia_peermem"),
    disruption="reboot",
)
"""For a profile with `driver_options`, and for DeepEP (`busbar_gpu_initiated`): was the NVIDIA driver loaded with the
option (live), and will it be (persisted)"""
# Traffic that GPUs start: NCCL's GIN (and DeepEP 2), NVSHMEM, DeepEP 1, whose GPUs ring the NICs by IBGDA.
INITIATED = ("gin", "nvshmem", "deepep")
# Options with which a GPU may ring a NIC itself. NVSHMEM from 3.4.5 on falls back to the CPU without them.
IBGDA = (DriverOption("EnableStreamMemOPs", "1"), DriverOption("RegistryDwords", '"PeerMappingOverride=1;"'))
_WHY = dict.fromkeys(
    (option.name for option in IBGDA),
    "DeepEP's IBGDA lets GPUs ring the NIC; without this option the CPU does, and NVSHMEM before 3.4.5 ends the job",
)
_HEAD = "# Written by Busbar (role nvidia_peermem): the NVIDIA driver options in the profile's driver_options.\n"
_LINE = re.compile(r"\s*options\s+nvidia\s+(.*)")
_OPTION = re.compile(r'NVreg_([A-Za-z0-9]+)=("[^"]*"|[^\s"]*)')
_ARGUMENT = re.compile(r"(?<!\S)nvidia\." + _OPTION.pattern)


@dataclass(frozen=True)
class OptionsState:
    """branch: of the driver that is loaded, 580; None: not known.   params: of it; None where they were not read.

    files: of modprobe.d, path -> text, in the order in which they count.   own: that of FILE.
    next_boot: the kernel's command line then.
    """

    branch: Optional[int] = None
    params: Optional[Mapping[str, str]] = None
    files: Mapping[str, str] = field(default_factory=dict)
    own: Optional[str] = None
    problems: Tuple[Problem, ...] = ()
    next_boot: str = ""


def parse_params(text: str) -> Dict[str, str]:
    """{"CreateImexChannel0": "1", ...}. Raises ParseError."""
    pairs = [line.partition(":") for line in text.splitlines() if ":" in line]
    if not pairs:
        raise ParseError("has no line like EnableMSI: 1")
    return {name.strip(): value.strip() for name, _colon, value in pairs}


def parse_options(text: str) -> Dict[str, str]:
    """Return the driver's options in one file of modprobe.d; the last value of a name counts."""
    found: Dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        match = _LINE.match(line)
        if match is not None:
            found.update(_OPTION.findall(match.group(1)))
    return found


def read(host: Host, next_boot: str = "") -> OptionsState:
    """next_boot: the kernel's command line then."""
    problems: List[Problem] = []
    driver = read_value(host, VERSION, parse_driver_version, problems)
    text = attempt(lambda: host.read(PARAMS), PARAMS, problems)
    params = attempt(lambda: parse_params(text or ""), PARAMS, problems) if text is not None else None
    files = module_lists.read(host, module_lists.MODPROBE, problems)
    own = attempt(lambda: host.read_system(FILE), FILE, problems)
    branch = whole(driver.version.partition(".")[0]) if driver is not None else None
    return OptionsState(branch, params, files, own, tuple(problems), next_boot)


def wanted_options(
    have: OptionsState, of_profile: Sequence[DriverOption], initiated: Optional[Sequence[str]]
) -> List[DriverOption]:
    """Return the options of the profile, and those of IBGDA where jobs use DeepEP.

    initiated: of busbar_gpu_initiated; None: what FILE has of them stays.
    """
    there = parse_options(have.own or "")
    stay = [one for one in IBGDA if one.name in there] if initiated is None else []
    return [*of_profile, *(IBGDA if "deepep" in (initiated or ()) else stay)]


def _holds(option: DriverOption, value: str) -> bool:
    """Return whether a value is the option's; of RegistryDwords, whether it has the option's keys among others."""
    if option.name != "RegistryDwords":
        return value == option.value
    keys, wanted = ({*text.strip('"').split(";")} - {""} for text in (value, option.value))
    return wanted <= keys


def plan(have: OptionsState, asked: Sequence[DriverOption]) -> Plan:
    """Plan the file of options; if none is needed, FILE is removed."""
    wanted = [one for one in asked if one.before is None or have.branch is None or have.branch < one.before]
    elsewhere: Dict[str, Tuple[str, str]] = {}
    for path, other in have.files.items():
        if path != FILE:
            elsewhere.update({name: (value, path) for name, value in parse_options(other).items()})
    # modprobe reads it after the files.
    elsewhere.update({name: (value, COMMAND_LINE) for name, value in _ARGUMENT.findall(have.next_boot)})
    ours = [one for one in wanted if one.name not in elsewhere]
    lines = ["options nvidia NVreg_%s=%s\n" % (one.name, one.value) for one in ours]
    text = written.seal(FILE, _HEAD + "".join(lines)) if ours else None
    unread = [one for one in have.problems if one.source in (FILE, *have.files)]
    files = written.compare([] if unread else [FileChange(FILE, have.own, text)])
    findings: List[Finding] = list(files.edited(OPTIONS))
    reboot: List[str] = []
    for one in wanted:
        persisted = _persisted(have, one, elsewhere.get(one.name), not files.wrong or files.severity is not None)
        findings += [persisted, _live(have, one, persisted)]
        if not findings[-1].ok and findings[-1].state != "unknown":
            reboot.append("NVreg_%s of the NVIDIA driver is in effect after a reboot" % one.name)
    return Plan(tuple(findings), files.changes, reboot=tuple(reboot), notes=files.notes)


def _persisted(have: OptionsState, one: DriverOption, other: Optional[Tuple[str, str]], same: bool) -> Finding:
    name, want = "NVreg_%s" % one.name, one.value
    if have.problems and any(problem.source != PARAMS for problem in have.problems):
        said = str(have.problems[0])
        return OPTIONS.judge(name, "unknown", want, said, FILE, "look at that file", aspect="persisted")
    if other is None:
        said, state = want if same else "not in %s" % FILE, "ok" if same else "drift"
        return OPTIONS.judge(
            name, state, want, said, FILE, why=_WHY.get(one.name), aspect="persisted", disruption="none"
        )
    fix = "correct it in %s, or remove it there, then run site.yml --tags nvidia_peermem" % other[1]
    state, why = "ok" if _holds(one, other[0]) else "not_owned", _WHY.get(one.name)
    return OPTIONS.judge(name, state, want, other[0], other[1], fix, why=why, aspect="persisted", disruption="none")


def _live(have: OptionsState, one: DriverOption, persisted: Finding) -> Finding:
    name = "NVreg_%s" % one.name
    if have.params is None:
        fix = "load the NVIDIA driver, and run this again"
        return OPTIONS.judge(name, "unknown", one.value, "%s cannot be read" % PARAMS, PARAMS, fix)
    value = have.params.get(one.name)
    if value is None:
        fix = "see whether this release of the driver still has the option; if not, leave it out in a site profile"
        return OPTIONS.judge(name, "unsupported", one.value, "the driver shows no such option", PARAMS, fix)
    fix = "reboot the node; if the initramfs holds the driver, rebuild it first (update-initramfs -u, dracut -f)"
    state, why = "ok" if _holds(one, value) else "drift", _WHY.get(one.name)
    return OPTIONS.judge(name, state, one.value, value, PARAMS, fix, because=persisted, why=why)
