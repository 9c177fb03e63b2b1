# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's GPUs, their driver, NVLinks and PCIe links by its profile.

Source: PCI Express Base Specification 7.5.3.8 (link status).
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from .gpu import GPUS, VERSION, Gpu, unlisted
from .pci import PciDevice
from .platform_checks import GPU_COUNT, GPU_DRIVER, GPU_MODEL, GPU_PCIE, GPU_TOOL, NVLINK_FABRIC, NVLINKS
from .profile import GpuProfile, PcieLink, Profile
from .topology import Topology


def state_of(have: object, good: bool) -> str:
    """Return the state; an unreadable value is unknown, never ok."""
    if have is None:
        return "unknown"
    return "ok" if good else "drift"


def or_reason(topology: Topology, value: Optional[str], *needles: str) -> Optional[str]:
    """Return the value, or the reader's reason why there is none."""
    if value is not None:
        return value
    for problem in topology.problems:
        if any(needle and needle in str(problem) for needle in needles):
            return "unreadable: %s" % problem
    return None


def if_bad(finding: Optional[Finding]) -> Optional[Finding]:
    return None if finding is None or finding.ok else finding


def judge_pcie(
    check: Check, topology: Topology, device: PciDevice, subject: str, want: PcieLink, idle_speed_varies: bool
) -> Finding:
    """Judge the current width, and a NIC's current speed; an idle GPU lowers its speed, so its maximum counts."""
    speed = device.max_speed_gts if idle_speed_varies else device.current_speed_gts
    width = device.current_width
    have = None
    good = False
    if speed is not None and width is not None:
        have = "%g GT/s x%d" % (speed, width)
        if not idle_speed_varies and device.max_speed_gts is not None and device.max_width is not None:
            have += " (slot and card allow %g GT/s x%d)" % (device.max_speed_gts, device.max_width)
        good = speed >= want.speed_gts and width >= want.width
    return check.judge(
        subject,
        state_of(have, good),
        str(want),
        or_reason(topology, have, device.address),
        "%s/%s, current_link_width" % (device.source, "max_link_speed" if idle_speed_varies else "current_link_speed"),
    )


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
    state, models = state_of(gpu.model, gpu.model in want.models), " or ".join(want.models)
    model = or_reason(topology, gpu.model, directory)
    findings.append(GPU_MODEL.judge(subject, state, models, model, directory + "/information", because=lost))
    if want.pcie is not None:
        findings.append(judge_pcie(GPU_PCIE, topology, gpu.device, subject, want.pcie, idle_speed_varies=True))
    if want.nvlinks is not None:
        active = gpu.nvlinks_active
        text = or_reason(topology, None if active is None else "%d active" % active, gpu.pci, "nvidia-smi")
        state, links = state_of(active, active == want.nvlinks), "%d active" % want.nvlinks
        because = lost or if_bad(tool) or _unlisted(topology, [gpu])
        findings.append(NVLINKS.judge(subject, state, links, text, "nvidia-smi nvlink -s", because=because))
    return findings


def _nvlink_fabric(topology: Topology, driver: Optional[Finding], tool: Optional[Finding]) -> Finding:
    """Return one finding for the node: the fabric manager registers all GPUs or none."""
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    unread = [gpu for gpu in asked if gpu.fabric_state is None]
    if unread or not asked:
        state, have = "unknown", or_reason(topology, None, "fabric", "nvidia-smi")
    else:
        good = all(gpu.fabric_state == "Completed" and gpu.fabric_status in (None, "Success") for gpu in asked)
        states = sorted({"%s/%s" % (gpu.fabric_state, gpu.fabric_status or "-") for gpu in asked})
        state, have = "ok" if good else "drift", ", ".join(states)
    return NVLINK_FABRIC.judge(
        *("nvlink fabric", state, "Completed/Success on every GPU", have),
        source="nvidia-smi --query-gpu=fabric.state,fabric.status",
        because=driver or if_bad(tool) or _unlisted(topology, unread),
    )


def _unlisted(topology: Topology, gpus: Sequence[Gpu]) -> Optional[str]:
    """Return the id of node_health's finding (its module imports this one) on the first GPU that nvidia-smi omits."""
    lost = [gpu.pci for gpu in gpus if any(one == unlisted(one.source, gpu.pci) for one in topology.problems)]
    return "node_health.gpu_count[live]@%s" % lost[0] if lost else None
