# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the health of a node's GPUs and their links, as node.py reads it. Changes nothing.

Each finding is a state that no load explains, or growth since an earlier run, never a total.
judge_gpu.py judges single GPUs.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError
from ..core.plan import Plan
from ..machine import platform_checks
from ..machine.profile import Profile
from ..machine.topology import Topology
from . import imex, judge_gpu, judge_kernel_log, nvlink, record, service, smi, xid
from .judge_gpu import GPU_ANSWERS, Fault, Growth, assess, counts, within
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
    fix="read /var/log/fabricmanager.log and dmesg (SXid); drain the node, reset all GPUs or reboot; " + RECHECK,
)
"Does no GPU report a degraded NVLink fabric, and are all GPUs in one fabric"
AER = Check(
    "node_health.aer",
    why="PCIe errors between GPU, NIC and CPU slow the network path long before a device is lost",
    fix="read the AER lines in dmesg for the type of error; reseat the device, its riser or cable; " + RECHECK,
)
"Have GPUs, rails' NICs and the bridges above had no uncorrected PCIe errors since the previous run, and few corrected"
RECORD = Check(
    "node_health.record",
    why="growth since the previous run is known only from that run's record",
    severity="minor",
)
"Can the counters of the previous run be read, and those of this run be stored"

_SMI = " ".join(smi.COMMAND)
# Values of fabric/health that mean nothing is wrong. The good value of one element is True.
_WELL = ("full", "false", "no", "none", "healthy", "normal")
_ILL = ("degraded", "true", "yes", "unhealthy", "limited capacity")
_ASSIGNED = "partition_assigned"
# Corrected AER errors a second, at which DCGM's diagnosis fails: 480 in 15 minutes.
_AER_CORRECTABLE = 480 / 900.0


class Wanted(NamedTuple):
    """power_limit: watts that the site caps its GPUs to; None: their default."""

    profile: Profile
    power_limit: Optional[float] = None


def plan(have: NodeState, topology: Topology, wanted: Wanted) -> Plan:
    """Judge all that the node reports, GPUs only where there are some."""
    path = judge_kernel_log.places(topology, wanted.profile)
    logged, troubles = judge_kernel_log.plan(have, topology, path)
    texts = (*notes(have), *judge_kernel_log.notes(have))
    now, domain = counters(have), wanted.profile.nvlink_domain
    if not topology.gpus:
        return Plan((*logged, *_aer(have, now, path.names, logged)), notes=texts)
    names, driver = path.names, topology.driver.version if topology.driver else None
    fallen = next((one.pci for one in judge_kernel_log.troubles(have) if one.action == xid.REBOOT), "")
    found = [*troubles.values(), *logged, *_listed(have, topology, names, troubles)]
    for pci, gpu in (have.gpus or {}).items():
        name, growth = names.get(pci, pci), grown(have, now, gpu.uuid)
        of_gpu = judge_gpu.judge(gpu, name, growth, wanted.power_limit, troubles.get(pci), troubles.get(fallen))
        of_gpu += nvlink.judge(gpu, name, have.speeds, have.errors, growth)
        found += judge_gpu.explained([*of_gpu, *_fabric_of(gpu, name, wanted.profile.gpus.nvlink_fabric)])
    # If nvidia-smi failed altogether, that is reported already.
    found += nvlink.judge_calls(have.problems) if have.gpus is not None else []
    if have.fabric_manager is not None:
        found.append(service.judge_fabric_manager(have.fabric_manager, driver))
    if domain is None:
        found += _one_fabric(have)
    else:
        found += imex.judge_membership(have.gpus or {}, names)
        options = [option.name for option in wanted.profile.driver_options]
        found += imex.judge(have.imex, domain, driver, options) if have.imex is not None else []
    found += _aer(have, now, names, logged)
    for one in have.hot:
        want, text = "below %g C" % one.limit, "%s: %g C" % (one.label, one.degrees)
        found.append(NIC_TEMPERATURE.judge(one.pci, "drift", want, text, one.source))
    return Plan((*found, _record(have)), notes=texts)


def notes(have: NodeState) -> List[str]:
    """Return facts for the reader that are not findings."""
    found = []
    off = [pci for pci, gpu in (have.gpus or {}).items() if gpu.flags.get("persistence") is False]
    if off:
        how = "nvidia-smi -pm 1, or nvidia-persistenced, spares each job the start of the driver"
        found.append("persistence mode is off on %d GPUs: %s" % (len(off), how))
    young = have.before is None or have.now - have.before.at < record.SHORTEST
    if young and have.unkept is None:
        found.append("no counters of this boot are stored yet: growth is judged from the next run on")
    return found


def counters(have: NodeState) -> record.Record:
    """Return this run's counters."""
    gpus: Dict[str, Dict[str, int]] = {}
    for gpu in (have.gpus or {}).values():
        if gpu.uuid is not None:
            of_gpu = gpu.counts
            gpus[gpu.uuid] = {key: n for key, n in of_gpu.items() if key.startswith(("ecc ", "slowed ", "replays"))}
            for link, values in (have.errors or {}).get(gpu.uuid, {}).items():
                gpus[gpu.uuid].update({"link %d %s" % (link, name): n for name, n in values.items()})
    return record.Record(
        boot_id=have.boot_id,
        at=have.now,
        driver_loaded=have.driver_loaded,
        gpus=gpus,
        pci=have.aer,
        ports={port.key: port.record_entry for port in have.ports},
    )


def _listed(
    have: NodeState, topology: Topology, names: Mapping[str, str], troubles: Mapping[str, Finding]
) -> List[Finding]:
    if have.gpus is None:
        problem = next((one for one in have.problems if _SMI in one.source), Problem(_SMI, "did not respond"))
        root = platform_checks.GPU_TOOL.finding_id("nvidia-smi")
        if topology.driver is None:
            problem = Problem(_SMI, "was not queried: the NVIDIA driver is not loaded")
            root = platform_checks.GPU_DRIVER.finding_id("nvidia driver")
        return [GPU_ANSWERS.judge("nvidia-smi", "unknown", "a response", str(problem), _SMI, because=root)]
    want, text = "%d, as on the bus" % len(topology.gpus), "%d" % len(have.gpus)
    found = []
    for gpu in topology.gpus:
        if gpu.pci not in have.gpus:
            name, cause = names[gpu.pci], troubles.get(gpu.pci)
            because = None if gpu.in_driver else platform_checks.GPU_DRIVER.finding_id(name)
            because = cause.id if cause is not None and not cause.ok else because
            found.append(GPU_COUNT.judge(name, "drift", want, text + ", without this one", _SMI, because=because))
    return found or [GPU_COUNT.judge("gpus", "ok", want, text, _SMI)]


def grown(have: NodeState, now: record.Record, key: Optional[str]) -> Growth:
    """Return growth of a device's counters since the baseline, and seconds since then; ({}, 0) without a baseline.

    key: UUID of a GPU, or the PCI address of a device with AER counters.
    """
    before = have.before
    gpus = before.gpus if before is not None and before.same_driver(now, "nvidia") else {}
    then = {**gpus, **(before.pci if before is not None else {})}.get(key or "")
    if before is None or then is None:
        return {}, 0.0
    return record.grown(then, {**now.gpus, **now.pci}.get(key or "", {})), have.now - before.at


def _aer(have: NodeState, now: record.Record, names: Mapping[str, str], logged: Sequence[Finding]) -> List[Finding]:
    """Judge PCIe errors of each device. names: address -> subject."""
    errors = {one.identity: one for one in logged if one.check == judge_kernel_log.PCIE_ERROR.id}
    unread = {problem.source.split("/")[5]: problem for problem in have.problems if "/aer_dev_" in problem.source}
    found = []
    for pci in sorted({*have.aer, *unread}):
        source, totals = "/sys/bus/pci/devices/%s/aer_dev_*" % pci, have.aer.get(pci, {})
        name = names.get(pci, "%s bridge" % pci)
        growth, seconds = grown(have, now, pci)
        grave = {kind: n for kind, n in growth.items() if kind != "correctable" and n}
        corrected = growth.get("correctable", 0) if seconds >= record.SHORTEST else 0
        if grave:
            text, severity = counts(grave) + within(seconds), "critical" if grave.get("fatal") else "major"
            want, cause = "no uncorrected errors", errors.get(pci)
            found.append(AER.judge(name, "drift", want, text, source, because=cause, severity=severity))
        elif corrected > _AER_CORRECTABLE * seconds:
            text = "%d corrected errors%s" % (corrected, within(seconds))
            most = "%.0f a minute at most" % (_AER_CORRECTABLE * 60)
            found.append(AER.judge(name, "drift", most, text, source, severity="minor"))
        elif pci in unread:
            fix = "run head %s on the node; drain and reboot it if that fails, too" % source
            found.append(AER.judge(name, "unknown", "no growth", str(unread[pci]), source, fix))
        else:
            found.append(AER.judge(name, "ok", "no growth", counts(totals) + " in all", source))
    return found


# -- the fabric ------------------------------------------------------------------------------------------------------


def _one_fabric(have: NodeState) -> List[Finding]:
    """Judge whether all GPUs are in one NVLink fabric; across nodes imex.domain does."""
    fabrics = [gpu.fabric for gpu in (have.gpus or {}).values() if gpu.fabric.get("state", "").lower() == "completed"]
    ids = {(fabric.get("clusterUuid"), fabric.get("cliqueId")) for fabric in fabrics}
    text = "; ".join(sorted("cluster %s, clique %s" % one for one in ids))
    return [FABRIC_STATE.judge("nvlink fabric", "drift", "all GPUs in one", text, _SMI)] if len(ids) > 1 else []


def _fabric_of(gpu: smi.Gpu, name: str, wanted: bool) -> List[Finding]:
    """wanted: the profile has an NVLink fabric. Without one only what the GPU reports as wrong is a finding."""
    ill = {}
    for element, value in gpu.fabric_health.items():
        well = _WELL if element != _ASSIGNED else ("true", "yes", "false", "no")
        if value.lower() not in well:
            ill[element] = value
    if ill:
        text = ", ".join("%s: %s" % pair for pair in sorted(ill.items()))
        known = any(value.lower() in _ILL for value in ill.values())
        return [FABRIC_STATE.judge(name, "drift" if known else "unknown", "healthy", text, _SMI)]
    if not wanted:
        return []
    text = ", ".join("%s: %s" % pair for pair in (*gpu.fabric.items(), *gpu.fabric_health.items()))
    state = (gpu.fabric.get("state", "completed").lower(), gpu.fabric.get("status", "success").lower())
    because = platform_checks.NVLINK_FABRIC.finding_id("nvlink fabric")
    fault = Fault(state != ("completed", "success"), text, cause=because)
    return [assess(FABRIC_STATE, gpu, name, "fabric", [fault], "Completed, Success, healthy", text or None)]


# -- the record ------------------------------------------------------------------------------------------------------


def _record(have: NodeState) -> Finding:
    if have.unkept is not None:
        fix = "run rm -r %s on the node: the next run begins a new record" % record.FILE
        return RECORD.judge(record.FILE, "unknown", "a record", have.unkept.message, record.FILE, fix)
    if not have.boot_id:
        fix = "read /proc/sys/kernel/random/boot_id on the node and repair what prevents reading it"
        return RECORD.judge(record.FILE, "unknown", "the boot's id", "not read", "boot_id", fix)
    return RECORD.judge(record.FILE, "ok", "the boot's id", have.boot_id, record.FILE)


def store_counters(host: Host, have: NodeState, found: Plan) -> Plan:
    """Store this run's counters for the next. Return the plan, with a finding if they could not be stored.

    If nvidia-smi failed, the counters of the previous run stay.
    """
    if not have.boot_id or (have.gpus is None and any(one.source.startswith("nvidia-smi") for one in have.problems)):
        return found
    try:
        records = record.update_records(have.kept, counters(have))
        if records != have.kept:
            record.write(host, records)
    except ReadError as error:
        fix = "make %s a directory that root owns and can write, and run this again" % record.FOLDERS[-1]
        failed = RECORD.judge(record.FILE, "unknown", "stored", error.problem.message, error.problem.source, fix)
        return found._replace(findings=(*(one for one in found.findings if one.check != RECORD.id), failed))
    return found
