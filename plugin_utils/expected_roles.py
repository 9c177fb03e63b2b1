# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return which roles a host's values turn off; of every other one the verdict expects a full result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import plan as gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge as health
from ansible_collections.busbar.fabric.plugins.module_utils.limits import plan as host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform_checks, profile
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import checks as conf

from . import due_roles, suite
from .role_result import RoleResult

Data = due_roles.AuditResult
# Role -> the value that turns it off, as the verdict prints it, and whether it does on a host of this profile.
_OFF: Mapping[str, tuple[str, Callable[[Data, profile.Profile], bool]]] = {
    "mofed": ("the profile has no rails", lambda _, asked: not asked.rails),
    "nic_firmware": (
        "nic_firmware_settings",
        lambda of, asked: not (of["nic_firmware_settings"] or of["nic_firmware_recommended"] or asked.nic_firmware),
    ),
    "iommu": ("iommu_passthrough", lambda of, asked: not (of["iommu_passthrough"] or asked.kernel_args)),
    "pcie_path": (
        "pcie_path_clear_acs",
        lambda of, asked: not (of["pcie_path_clear_acs"] or (of["pcie_path_max_read_request"] != 0 and asked.rails)),
    ),
    "lldp": ("busbar_lldp", lambda of, _: of["busbar_lldp"] == "none"),
    "mtu": ("busbar_mtu", lambda of, _: of["busbar_mtu"] is None),
    "multirail": ("multirail_policy", lambda of, _: not of["multirail_policy"]),
    "nvidia_peermem": ("busbar_gpudirect", lambda of, asked: of["busbar_gpudirect"] == "off" or not asked.rails),
    "nccl_tests": ("nccl_tests_commit", lambda of, _: not of["nccl_tests_commit"]),
    "watch": ("watch_enabled", lambda of, _: not of["watch_enabled"]),
    suite.GATE: ("gate_stages", lambda of, _: not of["gate_stages"]),
    "drain": ("busbar_drain", lambda of, _: of["busbar_drain"] == "none"),
    suite.VERIFY: ("busbar_verify", lambda of, _: not of["busbar_verify"]),
    suite.BENCHMARK: ("nccl_benchmark_collectives", lambda of, _: not of["nccl_benchmark_collectives"]),
    suite.CLUSTER: ("nccl_benchmark_scope: node", lambda of, _: of["nccl_benchmark_scope"] == "node"),
}
# Keys of a role's full result on every host, if it is on.
_CHECKS = (platform_checks.GPU_COUNT, health.GPU_COUNT, host_limits.LOGIN, netdev_mtu.LIVE, gpudirect.PATH, conf.FILE)
_ALWAYS = tuple(check.id for check in _CHECKS)
_OF_ROCE = dict.fromkeys(("lldp", "mtu", "multirail", "roce_qos"), "no RoCE rails")


def off(wanted: Data) -> dict[str, str]:
    """Return role -> the site value that turns it off. wanted: what the module intent returns."""
    values = wanted["values"]
    given = {name: wanted[name] for name in ("profile", "profile_name")}
    asked = profile.from_options({**given, "fabric": values["busbar_fabric"]})
    found = {role: value for role, (value, is_off) in _OFF.items() if is_off(values, asked)}
    return found if profile.roce_rails(asked) else {**found, **_OF_ROCE}


def lacking(role: str, result: RoleResult) -> str:
    """Return what a valid result without findings of a role that is on lacks; empty where nothing is missing.

    A note explains why nothing was judged.
    """
    known = suite.PROVISIONED.get(role)
    if known is None:
        return ""
    good = {name.partition("[")[0] for name in result.passed}
    if not good:
        return "" if result.notes else "its result holds no check"
    missing = [check for check in _ALWAYS if check.partition(".")[0] in known.nouns and check not in good]
    return f"its result lacks {', '.join(missing)}" if missing else ""
