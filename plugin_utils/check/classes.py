# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Classes of checks: what each needs to be judged on a machine without an inventory.

The longest entry of TABLE that a check's id begins with, in whole words, has its class. A test holds that every check
of the suite has one, and every entry a check.
"""

from __future__ import annotations

# Always wrong; unlike the assumed platform; unlike the other rails; unlike the other hosts.
FACT, PLATFORM, SIBLINGS, FLEET = "fact", "platform", "siblings", "fleet"
# A decision of the site, listed with the current value. What the inventory sets is intent.
UNDECIDED, INTENT = "undecided", "intent"
# A file or unit of Busbar, whose effect is judged instead; a check of another command.
OWN, OTHER = "own", "other"

_CLASSES = {
    FACT: "platform node_health ofed iommu pcie_path host_limits gpudirect nccl_conf lldp.agent run",
    PLATFORM: "platform.gpu_count platform.gpu_model platform.gpu_pcie platform.nvlinks platform.nvlink_fabric"
    " platform.rail_device platform.rail_state platform.rail_rate platform.rail_link_layer platform.rail_path"
    " platform.rail_numa platform.rail_pcie platform.rail_mtu node_health.page_size imex iommu.platform_args"
    " gpudirect.driver_options nic_firmware nccl_conf.rails",
    SIBLINGS: "platform.rail_firmware platform.rail_partition nccl_conf.gid_index lldp netdev_mtu multirail roce_qos",
    FLEET: "lldp.leaf lldp.swapped nccl_conf.socket_interface consistency",
    UNDECIDED: "ofed.packages lldp.plan roce_qos.prio2tc roce_qos.ets roce_qos.buffers"
    " nccl_conf.library nccl_conf.lint.library",
    OWN: "node_health.record ofed.repository ofed.hold pcie_path.unit roce_qos.unit nccl_conf.file"
    " nccl_conf.proof nccl_conf.containers",
    OTHER: "nccl_tests watch gate reboot drain drift_timer preflight remediate lock sharp rail_ping perftest counters"
    " ib_fabric nccl_perf nccl_benchmark nccl_cluster localise nccl_hang nccl_log recorder inspector kubernetes"
    " nccl_conf.container_view",
}
TABLE = {entry: kind for kind, entries in _CLASSES.items() for entry in entries.split()}
# Checks of a broken tool or file: that it gave no result is the fault.
_BROKEN = "platform.gpu_tool host_limits.docker host_limits.containerd host_limits.kubernetes"
BROKEN = frozenset(_BROKEN.split())


def entry_of(check: str) -> str:
    """Return the longest entry that the check's id begins with; "" for none."""
    words = check.split(".")
    return next((name for end in range(len(words), 0, -1) if (name := ".".join(words[:end])) in TABLE), "")


def class_of(check: str) -> str:
    """Return the class of a check; an unknown one belongs to another command."""
    return TABLE.get(entry_of(check), OTHER)
