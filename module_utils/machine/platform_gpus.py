# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's GPUs, their driver, NVLinks and PCIe links by its profile.

Source: PCI Express Base Specification 7.5.3.8 (link status).
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from ..core.check import Check
from ..core.finding import Finding
from .gpu import GPUS, VERSION, Gpu, unlisted
from .pci import PciDevice
from .platform_checks import GPU_COUNT, GPU_DRIVER, GPU_MODEL, GPU_PCIE, GPU_TOOL, NVLINK_FABRIC, NVLINKS
from .profile import GpuProfile, PcieLink, Profile
from .topology import Topology

_NVLINK, _FABRIC = "nvidia-smi nvlink -s", "nvidia-smi --query-gpu=fabric.state,fabric.status"


def or_reason(topology: Topology, value: Optional[str], *needles: str) -> Optional[str]:
    """Return the value, or the reader's reason why there is none."""
    if value is not None:
        return value
    for problem in topology.problems:
        if any(needle and needle in str(problem) for needle in needles):
            return "unreadable: %s" % problem
    return None


def judge(
    check: Check,
    topology: Topology,
    subject: str,
    want: str,
    have: Optional[str],
    good: bool,
    source: str,
    needles: Sequence[str] = (),
    because: Union[Finding, str, None] = None,
    fix: Optional[str] = None,
) -> Finding:
    """Judge a value. One that could not be read is unknown, for the reason that names one of the needles or the source.

    needles: parts of a reader's problem.
    """
    state = "unknown" if have is None else "ok" if good else "drift"
    have = or_reason(topology, have, *(needles or [source]))
    return check.judge(subject, state, want, have, source, fix, because)


def if_bad(finding: Optional[Finding]) -> Optional[Finding]:
    return None if finding is None or finding.ok else finding


def judge_pcie(
    check: Check, topology: Topology, device: PciDevice, subject: str, want: PcieLink, idle_speed_varies: bool
) -> Finding:
    """Judge the current width, and a NIC's current speed; an idle GPU lowers its speed, so its maximum counts."""
    name = "max_link_speed" if idle_speed_varies else "current_link_speed"
    speed, width = device.max_speed_gts if idle_speed_varies else device.current_speed_gts, device.current_width
    have, good = None, False
    if speed is not None and width is not None:
        have = "%g GT/s x%d" % (speed, width)
        if not idle_speed_varies and device.max_speed_gts is not None and device.max_width is not None:
            have += " (slot and card allow %g GT/s x%d)" % (device.max_speed_gts, device.max_width)
        good = speed >= want.speed_gts and width >= want.width
    source = "%s/%s, current_link_width" % (device.source, name)
    return judge(check, topology, subject, str(want), have, good, source, [device.address])


def judge_gpus(topology: Topology, profile: Profile) -> List[Finding]:
    """Judge all GPUs of the host; [] if the profile wants none and there is none."""
    want = profile.gpus
    if want.count == 0 and not topology.gpus:
        return []
    findings = [_gpu_count(topology, profile)]
    if topology.gpus:
        driver = _driver_finding(topology)
        tool = _gpu_tool(topology, profile, driver)
        findings += [one for one in (driver, tool) if one is not None]
        for gpu in topology.gpus:
            findings += _judge_gpu(topology, want, gpu, driver, tool)
        findings += [_nvlink_fabric(topology, driver, tool)] if want.nvlink_fabric else []
    return findings


def _gpu_count(topology: Topology, profile: Profile) -> Finding:
    want, have = profile.gpus, [gpu.pci for gpu in topology.gpus]
    absent = [pci for pci in want.pci if pci not in have]
    text = "%d GPUs" % len(have) + (", none at %s" % ", ".join(absent) if absent else "")
    state = "ok" if len(have) == want.count and not absent else "drift"
    return GPU_COUNT.judge("gpus", state, "%d GPUs" % want.count, text, "/sys/bus/pci/devices")


def _driver_finding(topology: Topology) -> Optional[Finding]:
    """Judge the driver as a whole; None if it is loaded: then each GPU is judged."""
    if topology.driver is not None:
        return None
    have = or_reason(topology, None, VERSION) or "not loaded"
    # GPUs that it lists prove that it is loaded, though the version is unknown.
    state = "unknown" if any(gpu.in_driver for gpu in topology.gpus) else "drift"
    return GPU_DRIVER.judge("nvidia driver", state, "loaded", have, VERSION)


def _gpu_tool(topology: Topology, profile: Profile, driver: Optional[Finding]) -> Optional[Finding]:
    want = profile.gpus
    if want.nvlinks is None and not want.nvlink_fabric:
        return None
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    answered = any(gpu.nvlinks_active is not None or gpu.fabric_state is not None for gpu in asked)
    have = "answers" if answered else or_reason(topology, None, "nvidia-smi") or "no result for any GPU"
    return GPU_TOOL.judge("nvidia-smi", "ok" if answered else "unknown", "answers", have, "nvidia-smi", because=driver)


def _judge_gpu(
    topology: Topology, want: GpuProfile, gpu: Gpu, driver: Optional[Finding], tool: Optional[Finding]
) -> List[Finding]:
    findings: List[Finding] = []
    subject, directory = "%s GPU%d" % (gpu.pci, gpu.index), "%s/%s" % (GPUS, gpu.pci)
    lost = driver
    if driver is None:
        have = "in the driver" if gpu.in_driver else or_reason(topology, None, directory) or "not in the driver"
        own = GPU_DRIVER.judge(subject, "ok" if gpu.in_driver else "drift", "in the driver", have, directory)
        findings.append(own)
        lost = if_bad(own)
    source = directory + "/information"
    good = gpu.model in want.models
    models = " or ".join(want.models)
    findings.append(judge(GPU_MODEL, topology, subject, models, gpu.model, good, source, [directory], lost))
    if want.pcie is not None:
        findings.append(judge_pcie(GPU_PCIE, topology, gpu.device, subject, want.pcie, idle_speed_varies=True))
    if want.nvlinks is not None:
        active = None if gpu.nvlinks_active is None else "%d active" % gpu.nvlinks_active
        because, links = lost or if_bad(tool) or _unlisted(topology, [gpu]), "%d active" % want.nvlinks
        needles, good = [gpu.pci, "nvidia-smi"], gpu.nvlinks_active == want.nvlinks
        findings.append(judge(NVLINKS, topology, subject, links, active, good, _NVLINK, needles, because))
    return findings


def _nvlink_fabric(topology: Topology, driver: Optional[Finding], tool: Optional[Finding]) -> Finding:
    """Return one finding for the node: the fabric manager registers all GPUs or none."""
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    unread = [gpu for gpu in asked if gpu.fabric_state is None]
    states = sorted({"%s/%s" % (gpu.fabric_state, gpu.fabric_status or "-") for gpu in asked})
    have = None if unread or not asked else ", ".join(states)
    good = all(gpu.fabric_state == "Completed" and gpu.fabric_status in (None, "Success") for gpu in asked)
    because = driver or if_bad(tool) or _unlisted(topology, unread)
    want, needles = "Completed/Success on every GPU", ["fabric", "nvidia-smi"]
    return judge(NVLINK_FABRIC, topology, "nvlink fabric", want, have, good, _FABRIC, needles, because)


def _unlisted(topology: Topology, gpus: Sequence[Gpu]) -> Optional[str]:
    """Return the id of node_health's finding (its module imports this one) on the first GPU that nvidia-smi omits."""
    lost = [gpu.pci for gpu in gpus if any(one == unlisted(one.source, gpu.pci) for one in topology.problems)]
    return "node_health.gpu_count[live]@%s" % lost[0] if lost else None
