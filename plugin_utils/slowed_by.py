# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which findings of a node's health explain that it, a GPU or a rail of it, is slow, or that a program does not run.

A benchmark says that a node is slow; its health says why: GPU 5 is throttled, its slot replays. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge, judge_gpu, judge_modules
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_kernel_log import NIC_DRIVER, PCIE_ERROR, XID

_LINKS = (judge_gpu.NVLINK_STATE.id, judge_gpu.NVLINK_ERRORS.id, judge.FABRIC_STATE.id)
_FAULTS = (judge_gpu.RECOVERY.id, XID.id, judge_gpu.ECC.id, judge_gpu.ROW_REMAP.id)
_LIMITS = (judge_gpu.THROTTLE.id, judge_gpu.POWER_LIMIT.id, judge_gpu.CLOCKS.id, judge_gpu.TEMPERATURE.id)
_MODULES = (judge.NIC_TEMPERATURE.id, judge_modules.MODULE_TEMPERATURE.id, judge_modules.BIT_ERRORS.id)
_PCIE = (judge_gpu.PCIE_REPLAY.id, judge.AER.id, PCIE_ERROR.id)
# The likeliest first: ids of checks, or what they begin with.
SLOWED = (*_LIMITS, *_LINKS, *_PCIE, *_FAULTS, "node_health.port_", *_MODULES)
# What keeps a program over the node's GPUs from running at all.
STOPPED = (
    *(judge.GPU_COUNT.id, judge_gpu.GPU_ANSWERS.id, judge.FABRIC_MANAGER.id, judge.FABRIC_STATE.id),
    *(judge_gpu.MIG.id, judge_gpu.CONFIDENTIAL.id, *_FAULTS, judge_gpu.NVLINK_STATE.id),
)
RAIL = (*_PCIE, NIC_DRIVER.id, "node_health.port_", *_MODULES)


def of_node(findings: Sequence[Finding]) -> Finding | None:
    """Of the findings of a node what explains that all of it is slow."""
    return _first(SLOWED, findings)


def of_gpu(findings: Sequence[Finding], number: int) -> Finding | None:
    """number: of the GPU, as nvidia-smi counts, in the order of PCI addresses."""
    return _first(SLOWED, [one for one in findings if one.subject.split(" ")[1:2] == ["GPU%d" % number]])


def of_rail(findings: Sequence[Finding], number: int, pci: str) -> Finding | None:
    """pci: address of the rail's NIC, "" where nobody knows it."""
    name = "rail %d" % number
    of_it = [one for one in findings if (pci and one.identity == pci) or one.subject.endswith(name)]
    return _first(RAIL, of_it)


def _first(prefixes: Sequence[str], findings: Sequence[Finding]) -> Finding | None:
    roots = [one for one in findings if one.state == "drift" and one.because is None]
    return next((one for prefix in prefixes for one in roots if one.check.startswith(prefix)), None)
