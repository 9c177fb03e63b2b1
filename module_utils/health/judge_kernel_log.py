# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what the kernel has logged of GPUs, NICs, PCIe, the kernel itself and storage since the last record.

Lines are joined to the GPU, the rail or the bridge above that they are about. The rules are in kernel_log_rules.py.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import SEVERITIES, Finding
from ..machine import platform_checks
from ..machine.profile import Profile
from ..machine.rails import match
from ..machine.topology import Nic, Topology
from . import xid
from .judge_gpu import RESET
from .kernel_log import Log, Series, counts
from .kernel_log_rules import BY_NAME, LOADED, NONE, Rule
from .node import NodeState
from .service import RECHECK

XID = Check(
    "node_health.xid",
    why="the driver has logged a GPU fault that remains after the program has ended",
    severity="critical",
)
"Has the kernel logged no Xid, or fatal SXid of an NVSwitch, that needs a reset or more since the previous run"
KERNEL_LOG = Check(
    "node_health.kernel_log",
    why="only the kernel's log reports Xid errors and driver failures; faults in its missing part stay unknown",
    fix="check that root can run dmesg; boot with log_buf_len=4M and without printk.time=0, or set Storage=persistent"
    " for systemd-journald",
    severity="minor",
)
"Can the kernel's log since the previous run be read"
GPU_DRIVER = Check("node_health.gpu_driver", why="the NVIDIA driver reports some failures of a GPU without an Xid")
"Has the NVIDIA driver logged no failure of a GPU without an Xid since the previous run"
NIC_DRIVER = Check("node_health.nic_driver", why="a NIC whose firmware, queue or module fails stops or slows jobs")
"Has the driver of each rail's NIC logged no failure of firmware, module, queue or power since the previous run"
PCIE_ERROR = Check("node_health.pcie_error", why="a PCIe error or refused access cuts a GPU or NIC off, or loses data")
"Has the kernel logged no PCIe or IOMMU error of GPUs, rails' NICs and the bridges above since the previous run"
KERNEL = Check("node_health.kernel", why="a CPU or process that hangs holds up every rank of a job")
"Has the kernel logged no machine check, crash, lock-up, hung process, hot CPU or lack of memory since the previous run"
STORAGE = Check("node_health.storage", why="a file server or drive that does not respond looks like a network hang")
"Has the kernel logged no unresponsive file server or drive since the previous run"
_CHECKS = {"gpu": GPU_DRIVER, "nic": NIC_DRIVER, "pcie": PCIE_ERROR, "kernel": KERNEL, "storage": STORAGE}
# Subject of a line that names no device.
_DRIVERS = {"gpu": "NVIDIA driver", "nic": "mlx5_core"}
# A reset leaves no line in the log.
_COUNTS = (
    "; the line counts for a day, or until the node is rebooted, the driver reloaded, or the recovery that Xid 154"
    " requests is done"
)
_SUPPORT = "save the archive of nvidia-bug-report.sh for the vendor's support; "
_ACTIONS = {
    None: "look the number up in NVIDIA's Xid catalog or Fabric Manager User Guide and follow it, or drain the node and"
    " reboot it;",
    xid.SUPPORT: _SUPPORT + "drain the node and reboot it;",
    xid.RESET: RESET,
    xid.WORKFLOW: _SUPPORT + RESET,
    xid.REBOOT: "drain the node and reboot it; if the GPU is still missing, power-cycle the node, then reseat or"
    " replace the GPU;",
    xid.VM: "restart the virtual machine;",
    xid.POWER: "power the node off and check that the power cables of each GPU of this finding are connected;",
}
_SWITCH = (
    "drain the node and run nvidia-smi --gpu-reset without -i, which resets all GPUs and NVSwitches, or reboot; if the"
    " error returns, have the NVSwitch or its board replaced;"
)


class Fault(NamedTuple):
    """A series that counts.   ended: it is over."""

    series: Series
    rule: Rule
    severity: str
    ended: bool


class Places(NamedTuple):
    """names: subject of each device of the network path, by address.   rails: NIC of each rail, by address.

    aliases: names of interfaces and RDMA devices -> address.   missing: some rail has no NIC.
    """

    names: Mapping[str, str]
    rails: Mapping[str, Nic]
    aliases: Mapping[str, str]
    missing: bool

    def find(self, kind: str, device: str) -> str:
        """Return the address of what a line names: by a name, without its segment or function, PCIe errors by slot."""
        device = self.aliases.get(device, device)
        device = "0000:" + device if len(device) == 7 and device[2:3] == ":" else device
        slot = device.partition(".")[0]
        same = [address for address in self.names if address.partition(".")[0] == slot]
        by_slot = same and device not in self.names and (kind == "pcie" or slot == device)
        return same[0] if by_slot else device


def places(topology: Topology, profile: Profile) -> Places:
    """Name GPUs, rails' NICs and the bridges above them."""
    rails = match(topology, profile)
    names = {gpu.pci: "GPU%d" % gpu.index for gpu in topology.gpus}
    names.update({nic.pci: "rail %d" % number for number, nic in rails.nics.items()})
    below: Dict[str, List[str]] = {}
    for device in (*(gpu.device for gpu in topology.gpus), *(nic.device for nic in rails.nics.values())):
        for bridge in device.ancestors[1:]:
            below.setdefault(bridge, []).append(names[device.address])
    for bridge, devices in below.items():
        names[bridge] = "bridge above %s%s" % (", ".join(devices[:4]), " ..." if devices[4:] else "")
    aliases = {netdev.name.lower(): nic.pci for nic in topology.nics for netdev in nic.netdevs}
    aliases.update({nic.rdma.name.lower(): nic.pci for nic in topology.nics if nic.rdma})
    subjects = {address: "%s %s" % (address, name) for address, name in names.items()}
    return Places(subjects, {nic.pci: nic for nic in rails.nics.values()}, aliases, bool(rails.missing))


def faults(have: NodeState, path: Places) -> Dict[Tuple[str, str], List[Fault]]:
    """Return what counts, by the part of the rule's name before the dot, and subject; the worst first."""
    healthy = settled(have)
    # For a line without a device: an Xid has named it, and no GPU needs anything any more.
    if healthy and len(healthy) == len(have.gpus or {}) and any(not event.is_quiet for event in have.events):
        healthy.append("")
    last = {(one.rule, path.find(one.rule.partition(".")[0], one.device)): one.last for one in have.log.series}
    found: Dict[Tuple[str, str], List[Fault]] = {}
    for one in have.log.series:
        rule, (kind, _dot, name) = BY_NAME[one.rule], one.rule.partition(".")
        device = path.find(kind, one.device)
        if kind not in _CHECKS or not rule.severity:
            continue
        started, at = last.get(("nic.started", device)), one.last.at
        begin = started.at or 0.0 if started is not None and started.order < one.last.order else 0.0
        is_normal = rule.boot and at is not None and at - begin < rule.boot
        if is_normal or (kind == "gpu" and not counts(one.last, last.get((LOADED, "")), True)):
            continue
        ends = [last[end, device] for end in rule.ended_by.split() if (end, device) in last]
        ended = any(line.order > one.last.order for line in ends) or (kind == "gpu" and device in healthy)
        often = one.bursts > 1 and one.bursts - 1 >= ((at or 0.0) - (one.first.at or 0.0)) / 3600.0
        severity = rule.ended if ended else rule.repeats if often and rule.repeats else rule.severity
        severity = _weighed(kind, device, severity, path)
        if severity:
            subject = path.names.get(device) or device or _DRIVERS.get(kind, name.replace("_", " "))
            found.setdefault((kind, subject), []).append(Fault(one, rule, severity, ended))
    for several in found.values():
        several.sort(key=lambda fault: SEVERITIES.index(fault.severity))
    return found


def _weighed(kind: str, device: str, severity: str, path: Places) -> str:
    """Return the severity by device: of NICs that are no rail the gravest counts less, of other devices nothing."""
    if not device or device in path.names or kind not in ("nic", "pcie") or severity == NONE:
        return severity
    if kind == "pcie":
        return NONE
    # An unknown NIC or interface may be the one that a rail lacks.
    if device not in path.aliases.values() and (path.missing or ":" not in device):
        return severity
    return "major" if severity == "critical" else NONE


def plan(have: NodeState, topology: Topology, path: Places) -> Tuple[List[Finding], Dict[str, Finding]]:
    """Return the findings of the kernel's log but those of Xid, which are by the address of their GPU or switch."""
    log, complete = have.log, _complete(have.log)
    xids = {gpu.pci: _good(XID, path.names[gpu.pci], complete, log) for gpu in topology.gpus}
    # Causes come first.
    for trouble in sorted(troubles(have), key=lambda trouble: trouble.because is not None):
        xids[trouble.pci] = _xid(trouble, path.names, log, xids.get(trouble.because or ""))
    found = {("xid", pci): finding for pci, finding in xids.items()}
    good = dict(_CHECKS)
    for (kind, subject), several in sorted(faults(have, path).items(), key=lambda item: item[0][0] != "pcie"):
        found[kind, subject] = _finding(kind, subject, several, log, _cause(kind, subject, several, found, path))
        good.pop(kind, None)
    others = [finding for (kind, _subject), finding in found.items() if kind != "xid"]
    return [complete, *others, *(_good(check, "kernel log", complete, log) for check in good.values())], xids


def _complete(log: Log) -> Finding:
    if log.problem is not None:
        return KERNEL_LOG.judge(log.problem.source, "unknown", "complete", log.problem.message, log.problem.source)
    if log.dropped:
        text = "%d lines were left out: they are about more devices than Busbar stores" % log.dropped
        fix = "read %s on the node; repair what it reports; %s" % (log.source, RECHECK)
        return KERNEL_LOG.judge("kernel log", "unknown", "complete", text, log.source, fix)
    return KERNEL_LOG.judge("kernel log", "ok", "complete", "complete, %d lines" % log.total, log.source)


def _good(check: Check, subject: str, complete: Finding, log: Log) -> Finding:
    """Return what is proven of a subject without a line: nothing, where lines are missing."""
    if complete.ok:
        return check.judge(subject, "ok", "no such line", "none in %d lines" % log.total, log.source)
    text = "none in what could be read"
    return check.judge(subject, "unknown", "no such line", text, log.source, complete.fix, complete, severity="minor")


def _finding(kind: str, subject: str, several: Sequence[Fault], log: Log, cause: Optional[str]) -> Finding:
    texts = []
    for fault in several[:4]:
        times = ", %d times" % fault.series.count if fault.series.count > 1 else ""
        ended = ", recovered since" if fault.ended else ""
        texts.append("%s%s%s%s" % (fault.rule.meaning, times, _ago(log.age(fault.series.last)), ended))
    text = "%s: %.200s" % ("; ".join(texts), several[0].series.last.text)
    fix = "%s; %s; the line counts for a day, or until the node is booted" % (several[0].rule.fix, RECHECK)
    severity = several[0].severity
    return _CHECKS[kind].judge(subject, "drift", "no such line", text, log.source, fix, cause, severity=severity)


def _cause(
    kind: str, subject: str, several: Sequence[Fault], found: Mapping[Tuple[str, str], Finding], path: Places
) -> Optional[str]:
    """Return what explains lines: an Xid those of the NVIDIA driver, a PCIe error or a port that is down a NIC's."""
    nic = path.rails.get(subject.partition(" ")[0]) if kind == "nic" else None
    above = [] if nic is None else [("pcie", path.names.get(one)) for one in (nic.pci, *nic.device.ancestors)]
    for (other, name), finding in found.items():
        explains = (kind, other) == ("gpu", "xid") or ((other, name) in above and finding.severity == "critical")
        if explains and finding.state == "drift" and finding.because is None:
            return finding.id
    down = nic is not None and nic.port is not None and nic.port.state != "ACTIVE"
    of_module = all(fault.rule.name in ("nic.unplugged", "nic.module") for fault in several)
    return platform_checks.RAIL_STATE.finding_id(nic.label) if nic is not None and down and of_module else None


def notes(have: NodeState) -> List[str]:
    """Return sentences about Xid errors that are no finding: of programs, and of a GPU that is well again."""
    sums: Dict[str, int] = {}
    in_trouble = {one.pci for one in troubles(have)}
    for event in have.events:
        ignored = event.cause is not None or (event.number == 154 and event.is_quiet)
        if not ignored and (event.is_quiet or event.pci not in in_trouble):
            end = "the driver requests no recovery" + (" any more" if not event.is_quiet else "")
            text = "the kernel has logged %s (%s), %%d lines: %s" % (event.name, _meaning(event), end)
            sums[text] = sums.get(text, 0) + event.count
    return [text % n for text, n in sorted(sums.items())]


def troubles(have: NodeState) -> Sequence[xid.Trouble]:
    """Return GPUs in trouble. A driver that reports that a GPU needs nothing ends an Xid that asks for a reset."""
    return xid.troubles(have.events, settled(have))


def settled(have: NodeState) -> List[str]:
    """Return the addresses of GPUs for which the driver asks for nothing."""
    return [
        pci
        for pci, gpu in (have.gpus or {}).items()
        if gpu.texts.get("recovery", "").lower() == "none" and not gpu.lost and not gpu.flags.get("reset_required")
    ]


def _meaning(event: xid.Event) -> str:
    if event.switch:
        return {None: "of unknown severity", xid.RESET: "fatal"}.get(event.action, "not fatal")
    return xid.TABLE.get(event.number, ("in no catalog", ""))[0]


def _xid(one: xid.Trouble, names: Mapping[str, str], log: Log, cause: Optional[Finding]) -> Finding:
    root = one.root
    text = "%s: %s%s" % (root.name, _meaning(root), _ago(root.age))
    more = ["%d (%d times)" % pair if pair[1] > 1 else "%d" % pair[0] for pair in sorted(one.numbers.items())]
    if len(one.numbers) > 1 or one.numbers.get(root.number, 1) > 1:
        text += "; in all %s" % ", ".join(more)
    text += ": %.160s" % root.text
    fix = _SWITCH if root.switch and one.action else _ACTIONS[one.action]
    state, severity = "drift" if one.action else "unknown", "critical"
    if one.action in (None, xid.SUPPORT):
        severity = "major"
    subject = names.get(one.pci, "%s NVSwitch" % one.pci if root.switch else one.pci)
    want, fix = "no Xid that outlasts its program", "%s %s%s" % (fix, RECHECK, _COUNTS)
    return XID.judge(subject, state, want, text, log.source, fix, cause, severity=severity)


def _ago(age: Optional[float]) -> str:
    if age is None:
        return ", without a time"
    return ", %d min ago" % (age // 60) if age < 2 * 3600 else ", %d h ago" % (age // 3600)
