# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a node's health: nvidia-smi, NVLinks, the kernel's log, AER, hwmon, Fabric Manager, the rails' ports and
modules, and the record.

Each tool runs once, with a time limit. NICs that the profile does not name are not read: the ConnectX-7 in
an HGX B200 belong to the NVLink fabric, and reading their counters fills the kernel's log with errors.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ..core.host import BOOT_ID, Host, ParseError, Problem, ReadError, ToolHung, attempt, noted, problem_of
from ..machine import pci
from ..machine.profile import Profile
from ..machine.rails import match
from ..machine.topology import Topology
from . import imex, kernel_log, mlxlink, nvlink, port_counters, record, service, smi, system, xid

MODULES = "/proc/modules"
# A reason that slows a GPU counts where it is active so many times in a row, so many seconds apart.
_POLLS, _APART = 3, 1.0
_NVIDIA, _NVSWITCH = 0x10DE, 0x0680
T = TypeVar("T")


@dataclass(frozen=True)
class NodeState:
    """gpus: by address, as nvidia-smi lists them; None if it failed, and problems have the reason.

    speeds, errors: of NVLinks by UUID; None likewise.   events: Xid errors that count.
    hot: sensors of the rails' NICs at or above their limit.   ports, modules: of the rails; modules by mlxlink, None if
        it is not installed.
    fabric_manager, imex: None if not wanted.   boot_id: "" if it could not be read: nothing is compared.
    driver_loaded: as in Record.   now: seconds of the epoch.   kept: the record; None: none yet.
    before: what counters are held to.   unkept: why the record could not be read.
    uptime: seconds since boot; None if not wanted.
    """

    now: float
    boot_id: str = ""
    driver_loaded: Mapping[str, str] = field(default_factory=dict)
    gpus: Optional[Mapping[str, smi.Gpu]] = None
    speeds: Optional[nvlink.Speeds] = None
    errors: Optional[nvlink.Errors] = None
    log: kernel_log.Log = field(default_factory=kernel_log.Log)
    events: Tuple[xid.Event, ...] = ()
    aer: record.Counters = field(default_factory=dict)
    hot: Tuple[system.Sensor, ...] = ()
    ports: Tuple[port_counters.Port, ...] = ()
    modules: Optional[Tuple[mlxlink.Module, ...]] = ()
    fabric_manager: Optional[service.Service] = None
    imex: Optional[imex.ImexState] = None
    kept: Optional[record.StoredRecords] = None
    before: Optional[record.Record] = None
    uptime: Optional[float] = None
    unkept: Optional[Problem] = None
    problems: Tuple[Problem, ...] = ()


def read(
    host: Host,
    topology: Topology,
    profile: Profile,
    timeout: Optional[float] = None,
    states_only: bool = False,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
    since_boot: bool = False,
) -> NodeState:
    """Read all. timeout: seconds for each call of nvidia-smi; None for the host's own.   clock: seconds of the epoch.

    pause: waits between two looks at what slows a GPU.   states_only, since_boot: as the module's options.
    """
    problems: List[Problem] = []
    now = clock()
    boot_id = attempt(partial(host.read, BOOT_ID), BOOT_ID, problems) or ""
    unread_record: List[Problem] = []
    kept = attempt(partial(record.read, host), record.FILE, unread_record)
    before = record.baseline(kept, now, boot_id) if boot_id else None
    uptime = kernel_log.read_uptime(host) if since_boot else None
    # A line of the kernel counts from the last record on, and for a day at least.
    log = kernel_log.read(host, now - max(record.DAY, now - before.at if before else uptime or 0.0), now)
    has_driver = bool(topology.gpus) and topology.driver is not None
    nvidia = _nvidia(host, profile, timeout, None if states_only else pause, problems) if has_driver else {}
    rails = {} if states_only else match(topology, profile).nics
    nics = [nic.pci for nic in rails.values()]
    modules, domain = mlxlink.read(host, rails), profile.nvlink_domain
    has_imex = domain is not None and domain.imex != "none" and bool(topology.gpus)
    return NodeState(
        now=now,
        boot_id=boot_id,
        driver_loaded=_drivers(host, problems),
        **nvidia,
        log=log,
        events=kernel_log.events(log),
        aer=system.read_errors(host, [] if states_only else _functions(topology, nics), problems),
        hot=system.read_hot(host, nics, problems),
        ports=mlxlink.with_errors(port_counters.read(host, rails, now), modules),
        modules=modules,
        fabric_manager=service.read_fabric_manager(host) if needs_fabric_manager(host, topology, profile) else None,
        imex=imex.read(host, domain, not states_only) if has_imex and domain is not None else None,
        kept=kept,
        before=None if states_only else before,
        uptime=uptime,
        unkept=next(iter(unread_record), None),
        problems=tuple(problems),
    )


def _nvidia(
    host: Host,
    profile: Profile,
    timeout: Optional[float],
    pause: Optional[Callable[[float], None]],
    problems: List[Problem],
) -> Dict[str, Any]:
    """Return gpus, speeds and errors as in NodeState. pause: None: only states are judged."""
    found: Dict[str, Any] = {}
    with noted(" ".join(smi.COMMAND), problems):
        found["gpus"] = _gpus(host, timeout, pause)
        # Not of boards without NVLinks, nor of one passed-through GPU with links to nowhere.
        if pause is not None and len(found["gpus"]) > 1 and profile.gpus.nvlinks != 0:
            found["speeds"] = _nvlinks(host, nvlink.STATUS, timeout, nvlink.parse_status, problems)
            found["errors"] = _nvlinks(host, nvlink.ERRORS, timeout, nvlink.parse_errors, problems)
    return found


def needs_fabric_manager(host: Host, topology: Topology, profile: Profile) -> bool:
    """Return whether the machine is one board with NVSwitches: bare metal, or a guest that was given them.

    A guest without them has its fabric from the host. Where NVLinks lead to other nodes it runs on the switch trays.
    """
    if profile.nvlink_domain is not None or not profile.gpus.nvlink_fabric or not topology.gpus:
        return False
    devices = pci.read(host)[0].values() if topology.virtualization.is_vm else ()
    switches = [one for one in devices if one.vendor == _NVIDIA and one.class_code >> 8 == _NVSWITCH]
    return bool(switches) or not topology.virtualization.is_vm


def _gpus(host: Host, timeout: Optional[float], pause: Optional[Callable[[float], None]]) -> Dict[str, smi.Gpu]:
    """Query again if a GPU is slowed: for a moment any GPU may be. Raises ReadError, ParseError.

    pause: None: what slows a GPU is not judged.
    """
    looks = [_listed(host, timeout)]
    if pause is None:
        return {pci: replace(gpu, reasons=None) for pci, gpu in looks[0].items()}
    while len(looks) < _POLLS and any(gpu.reasons for gpu in looks[-1].values()):
        pause(_APART)
        looks.append(_listed(host, timeout))
    found = {}
    for address, gpu in looks[-1].items():
        reasons = [look[address].reasons or frozenset() for look in looks if address in look]
        if len(reasons) == len(looks):
            found[address] = replace(gpu, reasons=frozenset.intersection(*reasons))
    return found


def _listed(host: Host, timeout: Optional[float]) -> Dict[str, smi.Gpu]:
    done = host.run(smi.COMMAND, timeout)
    if not done.stdout.lstrip().startswith("<"):
        raise ReadError(done.command, "exited with %d: %.160s" % (done.rc, done.last_words))
    return {gpu.pci: gpu for gpu in smi.parse(done.stdout)}


def _nvlinks(
    host: Host, argv: Sequence[str], timeout: Optional[float], parse: Callable[[str], T], problems: List[Problem]
) -> Optional[T]:
    """Run and parse a tool; None plus a Problem on failure. Raises ToolHung, after which no call is worth making."""
    try:
        done = host.run(argv, timeout)
        text = done.stdout if done.stdout.strip() else done.stderr
        return parse(text if nvlink.has_no_nvlink(text) else done.answer())
    except ToolHung:
        raise
    except (ReadError, ParseError) as error:
        problems.append(problem_of(error, " ".join(argv)))
    return None


def _functions(topology: Topology, nics: Sequence[str]) -> List[str]:
    """Return GPUs, the rails' NICs, and the bridges above them, whose PCIe errors slow the network path."""
    devices = [gpu.device for gpu in topology.gpus] + [nic.device for nic in topology.nics if nic.pci in nics]
    above = {address for device in devices for address in device.ancestors if re.match(r"[0-9a-f]{4,8}:", address)}
    return sorted(above.union(device.address for device in devices))


def _drivers(host: Host, problems: List[Problem]) -> Dict[str, str]:
    """Return size and address of the drivers whose counters restart when they are loaded; both differ after that."""
    text = attempt(partial(host.read, MODULES), MODULES, problems) or ""
    lines = [line.split() for line in text.splitlines() if line.startswith(("nvidia ", "mlx5_core "))]
    return {words[0]: "%s %s" % (words[1][:20], words[5][:20]) for words in lines if len(words) > 5}
