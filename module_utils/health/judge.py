# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the health of a node's GPUs and their links, as node.py reads it. Changes nothing.

Each finding is a state that no load explains, or growth since an earlier run, never a total.
judge_gpu.py judges single GPUs. Sources: limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError
from ..core.plan import Plan
from ..machine import platform_checks
from ..machine.profile import Profile
from ..machine.topology import Topology
from . import fabric_manager, imex, judge_gpu, judge_kernel_log, limits, nvlink, record, smi, xid
from .judge_gpu import GPU_ANSWERS, NVLINK_ERRORS, NVLINK_STATE, REPLACE, Growth, counts, within
from .node import NodeState
from .service import RECHECK

GPU_COUNT = Check(
    "node_health.gpu_count",
    why="a GPU on the bus that nvidia-smi does not list has failed, though the driver may report 'not supported'",
    fix="look for Xid lines in dmesg; drain and reboot the node; if it is still missing, power-cycle, then replace it",
    severity="critical",
)
"Does nvidia-smi list every GPU that is on the bus"
NIC_TEMPERATURE = Check(
    "node_health.nic_temperature",
    why="a NIC or module at its own temperature limit soon drops its link",
    fix="check the node's fans and the airflow of the NIC, reseat the module; " + RECHECK,
)
"Is each rail's NIC, and its module, below its own temperature limit"
FABRIC_STATE = Check(
    "node_health.fabric_state",
    why="a GPU whose NVLink fabric is degraded is slower than the others, though it is registered",
    fix="read /var/log/fabricmanager.log, look for Xid and SXid in dmesg; drain the node, reset all GPUs or reboot; "
    + RECHECK,
)
"Does no GPU report a degraded NVLink fabric, and are all GPUs in one fabric"
AER = Check(
    "node_health.aer",
    why="PCIe errors between GPU, NIC and CPU slow the network path long before a device is lost",
    fix="read the AER lines in dmesg for the type of error; reseat the device, its riser or cable; " + RECHECK,
)
"Have GPUs, rails' NICs and the bridges above had no uncorrected PCIe errors since the previous run, and few corrected"
RMA = Check(
    "node_health.rma",
    why="a GPU that fails again after reboots is defective, whatever the remedy of each single fault",
    fix=REPLACE,
    severity="critical",
)
"Was no GPU in trouble in three or more boots of the last 30 days"
RECORD = Check(
    "node_health.record",
    why="growth since the previous run is known only from that run's record",
    severity="minor",
)
"Can the counters of the previous run be read, and those of this run be stored"

_FABRIC = "%s, fabric" % " ".join(smi.COMMAND)
# Values of fabric/health that mean nothing is wrong.
_WELL = ("full", "false", "no", "none", "healthy", "normal")
_ILL = ("degraded", "true", "yes", "unhealthy", "limited capacity")
# The element whose good value is True.
_ASSIGNED = "partition_assigned"


@dataclass(frozen=True)
class Wanted:
    """power_limit: watts that the site caps its GPUs to; None: their default."""

    profile: Profile
    power_limit: Optional[float] = None


def plan(have: NodeState, topology: Topology, wanted: Wanted) -> Plan:
    """Judge all that the node reports, GPUs only where there are some; the notes are of the kernel's log."""
    path = judge_kernel_log.places(topology, wanted.profile)
    logged, troubles = judge_kernel_log.plan(have, topology, path)
    notes = tuple(judge_kernel_log.notes(have, path))
    if not topology.gpus:
        return Plan((*logged, *_aer(have, path.names, logged)), notes=notes)
    names, driver = path.names, topology.driver.version if topology.driver else None
    fallen = next((one.pci for one in judge_kernel_log.troubles(have) if one.action == xid.REBOOT), "")
    found = [*troubles.values(), *logged]
    found += _listed(have, topology, names, troubles)
    now = counters(have)
    fastest = max((speed or 0 for links in (have.speeds or {}).values() for speed in links.values()), default=0)
    for pci, gpu in (have.gpus or {}).items():
        name, growth = names.get(pci, pci), grown(have, now, gpu.uuid)
        own = judge_gpu.judge(gpu, name, growth, wanted.power_limit, troubles.get(pci), troubles.get(fallen))
        own += _links(have, gpu, name, growth, fastest)
        found += judge_gpu.explained([*own, *_fabric_of(gpu, name, wanted.profile.gpus.nvlink_fabric)])
    found += _nvlinks(have)
    if have.fabric_manager is not None:
        found.append(fabric_manager.judge(have.fabric_manager, driver))
    domain = wanted.profile.nvlink_domain
    if domain is None:
        found += _one_fabric(have)
    else:
        found += imex.judge_membership(have.gpus or {}, names)
        options = [option.name for option in wanted.profile.driver_options]
        found += imex.judge(have.imex, domain, driver, options) if have.imex is not None else []
    found += _aer(have, names, logged)
    for one in have.hot:
        want, text = "below %g C" % one.limit, "%s: %g C" % (one.label, one.degrees)
        found.append(NIC_TEMPERATURE.judge(one.pci, "drift", want, text, one.source))
    return Plan((*found, *_again(have, names), *_record(have)), notes=notes)


def notes(have: NodeState) -> List[str]:
    """Return facts for the reader that are not findings."""
    said = []
    off = [pci for pci, gpu in (have.gpus or {}).items() if gpu.persistence is False]
    if off:
        said.append(
            "persistence mode is off on %d GPUs: nvidia-smi -pm 1, or nvidia-persistenced, spares each job the"
            " start of the driver" % len(off)
        )
    young = have.before is None or have.now - have.before.at < record.SHORTEST
    if young and have.unkept is None:
        said.append("no counters of this boot are stored yet: growth is judged from the next run on")
    return said


def counters(have: NodeState) -> record.Record:
    """Return this run's counters, with the events for the history."""
    gpus: Dict[str, Dict[str, int]] = {}
    for gpu in (have.gpus or {}).values():
        if gpu.uuid is not None:
            counts = {"ecc " + name: n for name, n in gpu.aggregate.items()}
            counts.update({"slowed " + name: n for name, n in gpu.slowed_us.items()})
            if gpu.replays is not None:
                counts["replays"] = gpu.replays
            if None not in gpu.retired:
                counts[judge_gpu.PAGES] = sum(count or 0 for count in gpu.retired)
            for link, values in (have.errors or {}).get(gpu.uuid, {}).items():
                counts.update({"link %d %s" % (link, name): n for name, n in values.items()})
            gpus[gpu.uuid] = counts
    return record.Record(
        boot_id=have.boot_id,
        at=have.now,
        driver_loaded=have.driver_loaded,
        gpus=gpus,
        pci=have.aer,
        ports={port.key: port.record_entry for port in have.ports},
        history=record.history(have.kept, _events(have), have.now),
    )


# -- state --------------------------------------------------------------------------------------------------


def _listed(
    have: NodeState, topology: Topology, names: Mapping[str, str], troubles: Mapping[str, Finding]
) -> List[Finding]:
    command = " ".join(smi.COMMAND)
    if have.gpus is None:
        problem = next((one for one in have.problems if command in one.source), None)
        because = platform_checks.GPU_TOOL.finding_id("nvidia-smi")
        if topology.driver is None:
            because = platform_checks.GPU_DRIVER.finding_id("nvidia driver")
            problem = problem or Problem(command, "was not queried: the NVIDIA driver is not loaded")
        text = str(problem or Problem(command, "did not respond"))
        return [GPU_ANSWERS.judge("nvidia-smi", "unknown", "a response", text, command, because=because)]
    want, found = "%d, as on the bus" % len(topology.gpus), []
    for gpu in topology.gpus:
        if gpu.pci not in have.gpus:
            name, cause = names[gpu.pci], troubles.get(gpu.pci)
            own = cause.id if cause is not None and not cause.ok else None
            own = own or (None if gpu.in_driver else platform_checks.GPU_DRIVER.finding_id(name))
            text = "%d, without this one" % len(have.gpus)
            found.append(GPU_COUNT.judge(name, "drift", want, text, command, because=own))
    return found or [GPU_COUNT.judge("gpus", "ok", want, "%d" % len(have.gpus), command)]


def grown(have: NodeState, now: record.Record, uuid: Optional[str]) -> Growth:
    """Return growth of a GPU's counters since the baseline, and seconds since then; ({}, 0) without a baseline."""
    before = have.before
    if before is None or uuid is None or not before.same_driver(now, "nvidia"):
        return {}, 0.0
    return record.grown(before.gpus.get(uuid, {}), now.gpus.get(uuid, {})), have.now - before.at


def _links(have: NodeState, gpu: smi.Gpu, name: str, growth: Growth, fastest: float) -> List[Finding]:
    """Judge the NVLinks of a GPU; nothing if nvidia-smi nvlink lists no links at all, which platform.nvlinks judges."""
    found, active = [], 0
    if any((have.speeds or {}).values()):
        links = (have.speeds or {}).get(gpu.uuid or "")
        active = sum(speed is not None for speed in (links or {}).values())
        found.append(judge_gpu.speeds(gpu, name, links, fastest, platform_checks.NVLINKS.finding_id(name)))
    if have.errors is not None and (active or any(have.errors.values())):
        counted = have.errors.get(gpu.uuid or "")
        found.append(judge_gpu.link_errors(gpu, name, counted, growth, active))
    return found


def _nvlinks(have: NodeState) -> List[Finding]:
    """Judge calls of nvidia-smi nvlink that failed. If nvidia-smi failed altogether, that is reported already."""
    found = []
    for check, argv in ((NVLINK_STATE, nvlink.STATUS), (NVLINK_ERRORS, nvlink.ERRORS)):
        command = " ".join(argv)
        for problem in have.problems if have.gpus is not None else ():
            if problem.source.endswith(command):
                fix = "run %s on the node" % command
                found.append(check.judge("nvlinks", "unknown", "a response", problem.message, command, fix))
    return found


def grown_errors(have: NodeState, pci: str) -> Growth:
    """Return growth of a device's AER counters, and seconds since the baseline; ({}, 0) without one."""
    before = have.before
    if before is None or pci not in before.pci:
        return {}, 0.0
    return record.grown(before.pci[pci], have.aer.get(pci, {})), have.now - before.at


def _aer(have: NodeState, names: Mapping[str, str], logged: Sequence[Finding]) -> List[Finding]:
    """Judge PCIe errors of each device. names: address -> subject."""
    errors = {one.identity: one for one in logged if one.check == judge_kernel_log.PCIE_ERROR.id}
    found = []
    for pci, totals in sorted(have.aer.items()):
        source = "/sys/bus/pci/devices/%s/aer_dev_*" % pci
        name = names.get(pci, "%s bridge" % pci)
        grown, seconds = grown_errors(have, pci)
        grave = {kind: n for kind, n in grown.items() if kind != "correctable" and n}
        few = seconds < record.SHORTEST or grown.get("correctable", 0) <= limits.AER_CORRECTABLE * seconds
        if grave:
            text = counts(grave) + within(seconds)
            severity = "critical" if grave.get("fatal") else "major"
            want, cause = "no uncorrected errors", errors.get(pci)
            found.append(AER.judge(name, "drift", want, text, source, because=cause, severity=severity))
        elif not few:
            text = "%d corrected errors%s" % (grown["correctable"], within(seconds))
            most = "%.0f a minute at most" % (limits.AER_CORRECTABLE * 60)
            found.append(AER.judge(name, "drift", most, text, source, severity="minor"))
        else:
            text = counts(totals) + " in all" + ("; %s%s" % (counts(grown), within(seconds)) if grown else "")
            found.append(AER.judge(name, "ok", "no growth", text, source))
    return found


# -- the fabric ------------------------------------------------------------------------------------------------------


def _one_fabric(have: NodeState) -> List[Finding]:
    """Judge whether all GPUs are in one NVLink fabric; across nodes imex.domain does."""
    fabrics = [gpu.fabric for gpu in (have.gpus or {}).values() if gpu.fabric.get("state", "").lower() == "completed"]
    ids = {(fabric.get("clusterUuid"), fabric.get("cliqueId")) for fabric in fabrics}
    text = "; ".join(sorted("cluster %s, clique %s" % one for one in ids))
    return [FABRIC_STATE.judge("nvlink fabric", "drift", "all GPUs in one", text, _FABRIC)] if len(ids) > 1 else []


def _fabric_of(gpu: smi.Gpu, name: str, wanted: bool) -> List[Finding]:
    """wanted: the profile has an NVLink fabric. Without one only what the GPU reports as wrong is a finding."""
    ill = {}
    for element, value in gpu.fabric_health.items():
        word = value.lower()
        if not (word in _WELL if element != _ASSIGNED else word in ("true", "yes", "false", "no")):
            ill[element] = value
    state, status = gpu.fabric.get("state"), gpu.fabric.get("status")
    if ill:
        text = ", ".join("%s: %s" % pair for pair in sorted(ill.items()))
        known = any(value.lower() in _ILL for value in ill.values())
        return [FABRIC_STATE.judge(name, "drift" if known else "unknown", "healthy", text, _FABRIC)]
    if not wanted:
        return []
    have = ", ".join("%s: %s" % pair for pair in (*gpu.fabric.items(), *gpu.fabric_health.items())) or None
    if state is not None and (state.lower(), (status or "success").lower()) != ("completed", "success"):
        because = platform_checks.NVLINK_FABRIC.finding_id("nvlink fabric")
        return [FABRIC_STATE.judge(name, "drift", "Completed, Success", have, _FABRIC, because=because)]
    return [judge_gpu.assess(FABRIC_STATE, gpu, name, "Completed, Success, healthy", have, _FABRIC)]


# -- the record ------------------------------------------------------------------------------------------------------


def _events(have: NodeState) -> List[record.Event]:
    """Return GPUs in trouble for the history, without those caused by another's. A program's fault is not trouble."""
    uuids = {gpu.pci: gpu.uuid for gpu in (have.gpus or {}).values()}
    return [
        record.Event(have.now - (one.root.age or 0.0), have.boot_id, uuids.get(one.pci) or one.pci, one.root.number)
        for one in xid.troubles(have.events)
        if one.because is None and not one.root.switch and one.root.action is not None and have.boot_id
    ]


def _again(have: NodeState, names: Mapping[str, str]) -> List[Finding]:
    boots: Dict[str, Dict[str, int]] = {}
    for event in record.history(have.kept, _events(have), have.now):
        boots.setdefault(event.gpu, {}).setdefault(event.boot_id, event.xid)
    uuids = {gpu.uuid: pci for pci, gpu in (have.gpus or {}).items()}
    found = []
    for gpu, xids in sorted(boots.items()):
        if len(xids) >= limits.BOOTS:
            subject = names.get(uuids.get(gpu, gpu), gpu)
            text = "Xid %s in %d boots" % (", ".join(map(str, sorted(set(xids.values())))), len(xids))
            found.append(RMA.judge(subject, "drift", "fewer than %d" % limits.BOOTS, text, record.FILE))
    return found


def _record(have: NodeState) -> List[Finding]:
    if have.unkept is not None:
        fix = "run rm -r %s on the node: the next run begins a new record" % record.FILE
        return [RECORD.judge(record.FILE, "unknown", "a record", have.unkept.message, record.FILE, fix)]
    if not have.boot_id:
        fix = "read /proc/sys/kernel/random/boot_id on the node and repair what prevents reading it"
        return [RECORD.judge(record.FILE, "unknown", "the boot's id", "not read", "boot_id", fix)]
    return [RECORD.judge(record.FILE, "ok", "the boot's id", have.boot_id, record.FILE)]


def store_counters(host: Host, have: NodeState, found: Plan) -> Plan:
    """Store this run's counters for the next. Return the plan, with a finding if they could not be stored.

    If nvidia-smi failed, the counters of the previous run stay.
    """
    if not have.boot_id or (have.gpus is None and any(one.source.startswith("nvidia-smi") for one in have.problems)):
        return found
    try:
        to_keep = record.update_records(have.kept, counters(have))
        if to_keep != have.kept:
            record.write(host, to_keep)
    except ReadError as error:
        fix = "make %s a directory that root owns and can write, and run this again" % record.FOLDERS[-1]
        said = RECORD.judge(record.FILE, "unknown", "kept", error.problem.message, error.problem.source, fix)
        return replace(found, findings=(*(one for one in found.findings if one.check != RECORD.id), said))
    return found
