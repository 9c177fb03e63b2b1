# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare every variable that an inventory may set for the suite; ``intent.py`` checks an inventory against it.

``make docs`` writes from here the roles' defaults, the options of their argument specs, the tables of variables in
their README.md, and those of docs/variables.md.
"""

from __future__ import annotations

import ast
import inspect

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import DISRUPTIONS
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import FABRICS, PLANES

from . import network_values, node_values
from .site_value import Decision, Value, declared

_HEALTHY = Decision("they define a healthy node", "the run stops")


class Site:
    busbar_platform = Value("str", required=True, decision=_HEALTHY)
    "Profile of a healthy node: a file in `profiles/` beside the inventory, else one of the suite's."
    busbar_fabric = Value("str", "", choices=("", *sorted(FABRICS)), decision=_HEALTHY)
    "Link layer of the compute fabric; needed if the profile exists with both."
    busbar_planes = Value("int", choices=PLANES)
    """Planes of each NIC of the compute fabric, each a PCI function with its part of the rate: `NUM_OF_PF` of a
    ConnectX-8 (`docs/profiles.md#planes`). Unset: those of the profile."""
    busbar_max_disruption = Value(
        "str",
        "none",
        choices=DISRUPTIONS,
        decision=Decision("the site decides what may disturb its jobs", "nothing that stops traffic is done"),
    )
    "Highest disruption of a node that a run may cause."
    busbar_accepted = Value("list", [], elements="dict")
    """Deviations that are accepted: `check` (an id or a pattern such as `platform.*`), `reason`, `owner` and `until`
    (the last day, YYYY-MM-DD) of each, and optionally a `subject`. They are shown and counted, and fail no run
    (`docs/drift.md#accepted-deviations`)."""
    busbar_minimum_versions = Value("list", [])
    """Minimum versions to check, for security: `bulletins` for those of NVIDIA's security bulletins that this release
    knows, and the site's own, such as `driver 580.178.04`, each for its branch (`docs/certify.md#minimum-versions`).
    Empty: none, except for firmware that `busbar_firmware` declares."""
    busbar_findings_path = Value("path", "")
    "File on the control node to which all findings are written as JSON, with mode 0600."
    busbar_role_verdict = Value("bool", True)
    """Whether a role prints its findings at its end and fails on what is not ok. The suite's playbooks set it to
    `false` and print one verdict on all roles; such a playbook ends with `busbar.fabric.verdict`."""
    busbar_engine = Value("str", "ssh", choices=("ssh", "slurm"))
    """How `busbar drift` queries the nodes: `ssh`, or Slurm by one step over all of them (`docs/scale.md`); the same
    for all nodes."""
    busbar_hardware_root = Value("path", "/")
    "Where `/sys` and `/proc` are; another directory is a simulated node."
    busbar_system_root = Value("path", "/")
    "Where `/etc`, `/usr`, `/home` and `/root` are."
    busbar_task_timeout = Value("int", 7200)
    """Seconds for one task on one node in `site.yml` and `verify.yml`. A task that takes longer fails on that node
    alone. The value has to be higher than the time limits of builds and benchmarks."""
    busbar_audit_first = Value("bool", True)
    """Whether `site.yml` audits every host in one query first, and runs a role only on hosts where the audit found
    work. With `false` it runs all roles on all hosts, which finds the same, but takes a hundred times as long on a
    healthy fleet."""
    busbar_lock_minutes = Value("int", 240)
    "Age in minutes from which the lock of another control node's run is ignored."
    busbar_lock_break = Value("str", "")
    "Id of a run whose locks are ignored, as the finding `lock.held` names it; for the command line (`-e`)."


class Reboot:
    reboot_timeout = Value("int", 1200)
    "Seconds that a node has to come back from a reboot (only with `busbar_max_disruption: reboot`)."
    busbar_reboot_batches = Value("list", [1, "10%"], elements="raw")
    "How many nodes are rebooted at once, batch by batch; only from the command line (`-e`)."


class Drain:
    busbar_drain = Value("str", "none", choices=("none", "slurm"))
    "With `slurm`, a node is drained before a reboot, and resumed after its checks have passed."
    drain_timeout = Value("int", 0)
    "Seconds to wait for the jobs on a node; 0: a node with jobs is not drained."
    drain_slurm_host = Value("str", "")
    "Host on which `scontrol` works; empty: the node itself."
    drain_slurm_node = Value("str", "")
    "The node's name in Slurm; empty: its short name in the inventory."


class Remediate:
    busbar_remediate_max_share = Value("float", 0.05)
    "Maximum share of `gpu_nodes` that remediation repairs or keeps out of service at once, 0 to 1; at least one node."
    busbar_remediate_batches = Value("list", [1, "10%"], elements="raw")
    "How many nodes are repaired at once, batch by batch; only from the command line (`-e`)."
    busbar_remediate_max_attempts = Value("int", 2)
    "Repair attempts for the same finding of the same node within the window."
    busbar_remediate_window_days = Value("int", 14)
    "Days of the window. A finding that returns within it is left to a person."
    busbar_remediate_quarantine = Value("bool", False)
    "Drain a node whose fault no role can repair; needs `busbar_drain`."


class DriftTimer:
    drift_timer_state = Value("str", "present", choices=("present", "absent"))
    "`absent` stops the timer and removes both units; the user and the history stay."
    drift_timer_schedule = Value("str", "02:00")
    "When `busbar drift` runs, as in systemd.time(7)."
    drift_timer_delay = Value("str", "10m")
    "Maximum random delay that is added to that time."
    drift_timer_user = Value("str", "busbar")
    "User that audits the nodes; created if missing, with the home `/var/lib/busbar-drift`."
    drift_timer_directory = Value("path", "")
    """Working directory of the service: the checkout, or the directory with the site's inventory. An `ansible.cfg`
    there is used. Has to be set."""
    drift_timer_command = Value("list", [])
    """Command of busbar, with an absolute path, such as `[/usr/bin/python3, -m, busbar]` in a clone; empty: `busbar`
    beside the Ansible that runs the role."""
    drift_timer_inventory = Value("list", [])
    "Inventories, relative to the directory unless absolute. Has to be set."
    drift_timer_options = Value("list", ["--html", "/var/lib/busbar-drift/drift.html"])
    "More options of `busbar drift` (`docs/drift.md`)."
    drift_timer_keep_days = Value("int", 400)
    "Days that runs are stored, 8 or more."
    drift_timer_notify = Value("list", [])
    """Program and arguments, such as mail; it gets a run that differs from the previous one, or that failed, on
    standard input."""
    drift_timer_webhook_file = Value("path", "")
    "File with the https address to which such a run is posted."
    drift_timer_environment = Value("dict", {})
    "Variables of the service, such as `ANSIBLE_VAULT_PASSWORD_FILE`. No passwords: everybody can read a unit."
    drift_timer_measure_schedule = Value("str")
    """When `busbar measure` runs (`docs/benchmark.md`), such as `*-*-* 03..05:00`; empty removes its timer; unset: one
    that is there stays."""
    drift_timer_measure_options = Value("list", [])
    "More options of `busbar measure`."


# Role -> the class of the variables in its README.md; values that begin with the role's name are its defaults.
# "site" is of the whole run, "perftest" of what is proven between nodes, "drift_timer" of the control node.
CLASSES: dict[str, type] = {
    "site": Site,
    "platform": node_values.Platform,
    "mofed": node_values.Mofed,
    "iommu": node_values.Iommu,
    "nic_firmware": node_values.NicFirmware,
    "pcie_path": node_values.PciePath,
    "host_limits": node_values.HostLimits,
    "lldp": network_values.Lldp,
    "node_health": node_values.NodeHealth,
    "mtu": network_values.Mtu,
    "multirail": network_values.Multirail,
    "roce_qos": network_values.RoceQos,
    "nvidia_peermem": node_values.NvidiaPeermem,
    "nccl_conf": node_values.NcclConf,
    "nccl_tests": node_values.NcclTests,
    "watch": node_values.Watch,
    "gate": node_values.Gate,
    "reboot": Reboot,
    "drain": Drain,
    "remediate": Remediate,
    "perftest": network_values.Perftest,
    "ib_fabric": network_values.IbFabric,
    "sharp": network_values.Sharp,
    "nccl_benchmark": network_values.NcclBenchmark,
    "drift_timer": DriftTimer,
}
PARTS = {role: declared(part) for role, part in CLASSES.items()}
# They configure the run, and nothing of a node: no file, digest or comparison depends on them.
OF_RUN = frozenset(
    ("busbar_max_disruption", "busbar_findings_path", "busbar_engine", "busbar_task_timeout")
    + ("busbar_accepted", "busbar_role_verdict")
    + ("busbar_audit_first", "busbar_lock_minutes", "busbar_lock_break", "busbar_measure_budget")
    + tuple(name for name in PARTS["remediate"])
    + ("busbar_reboot_batches", "reboot_timeout", "drain_timeout")
    + ("perftest_results_path", "nccl_benchmark_results_path", "nccl_conf_backup")
)
VALUES: dict[str, Value] = {name: value for part in PARTS.values() for name, value in part.items()}


def of_role(role: str) -> dict[str, Value]:
    """Return the values that are defaults and arguments of a role: those that begin with its name."""
    return {name: value for name, value in PARTS.get(role, {}).items() if name.startswith(f"{role}_")}


def meanings() -> dict[str, str]:
    """Return the text below the declaration of each variable; "" where it has none."""
    found: dict[str, str] = {}
    for part in CLASSES.values():
        [tree] = ast.parse(inspect.getsource(part)).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(statement, ast.Assign):
                text = (
                    below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
                )
                found[ast.unparse(statement.targets[0])] = " ".join(str(text).split())
    return found
