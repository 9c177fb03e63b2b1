# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose the health finding that explains a slow node, GPU or rail, or a program that does not run.

A benchmark reports a slow node; its health reports why: GPU 5 is throttled, its slot replays. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge, judge_gpu, judge_modules, nvlink
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_kernel_log import NIC_DRIVER, PCIE_ERROR, XID
from ansible_collections.busbar.fabric.plugins.module_utils.health.service import FABRIC_MANAGER

_LINKS = (nvlink.NVLINK_STATE.id, nvlink.NVLINK_ERRORS.id, judge.FABRIC_STATE.id)
_FAULTS = (judge_gpu.RECOVERY.id, XID.id, judge_gpu.ECC.id, judge_gpu.ROW_REMAP.id)
_LIMITS = (judge_gpu.THROTTLE.id, judge_gpu.POWER_LIMIT.id, judge_gpu.CLOCKS.id, judge_gpu.TEMPERATURE.id)
_MODULES = (judge.NIC_TEMPERATURE.id, judge_modules.MODULE_TEMPERATURE.id, judge_modules.BIT_ERRORS.id)
_PCIE = (judge_gpu.PCIE_REPLAY.id, judge.AER.id, PCIE_ERROR.id)
# The likeliest first: ids of checks, or their prefixes.
SLOWED = (*_LIMITS, *_LINKS, *_PCIE, *_FAULTS, "node_health.port_", *_MODULES)
# Faults that keep a program over the node's GPUs from running.
STOPPED = (
    *(judge.GPU_COUNT.id, judge_gpu.GPU_ANSWERS.id, FABRIC_MANAGER.id, judge.FABRIC_STATE.id),
    *(judge_gpu.MIG.id, judge_gpu.CONFIDENTIAL.id, *_FAULTS, nvlink.NVLINK_STATE.id),
)
RAIL = (*_PCIE, NIC_DRIVER.id, "node_health.port_", *_MODULES)


def of_node(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that explains that all of a node is slow."""
    return _first(SLOWED, findings)


def of_gpu(findings: Sequence[Finding], number: int) -> Finding | None:
    """Return the finding on a GPU. number: as nvidia-smi counts, in the order of PCI addresses."""
    return _first(SLOWED, [one for one in findings if one.subject.split(" ")[1:2] == ["GPU%d" % number]])


def of_rail(findings: Sequence[Finding], number: int, pci: str) -> Finding | None:
    """Return the finding on a rail. pci: address of its NIC, "" where unknown."""
    name = "rail %d" % number
    of_it = [one for one in findings if (pci and one.identity == pci) or one.subject.endswith(name)]
    return _first(RAIL, of_it)


def _first(prefixes: Sequence[str], findings: Sequence[Finding]) -> Finding | None:
    roots = [one for one in findings if one.state == "drift" and one.because is None]
    return next((one for prefix in prefixes for one in roots if one.check.startswith(prefix)), None)
