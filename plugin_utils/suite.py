# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The suite as one table: its roles in the order in which they are played, and when each is asked.

Whoever needs the order, or a part of it, reads it here: the nightly audit, the verdict, and what is asked again after a
reboot. Only the playbooks import the roles by name, which a test compares.

What a role asks of a node is in its own ``vars/main.yml``: ``__ROLE_arguments``, the options of the role's module. The
role's task has them by module_defaults, the audit reads them there. Where the node is asked once for each of several
things, ``__ROLE_each`` is their list.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """name: of the role and of its tag; what it registers is ``<name>_result``.

    module: what it runs on the node, with ``__<name>_arguments``.
    nouns: what the ids of its checks begin with.
    play: the playbook that plays it, without ``.yml``.
    audited: the nightly audit asks what it asks, in check mode.
    after_reboot: it is asked again once a node was rebooted, since a boot can take away or bring what it looks at.
    reboots: its result may ask for a reboot.
    each: the variable that holds one item of ``__<name>_each``; empty where the node is asked once.
    home: the role in whose folder its question is, where it has no folder of its own.
    after: roles that can change what this one looks at. Where one of them has changed something on a node, this one is
        played there, whatever the audit has heard before.
    on_demand: no run has to play it. Where one did, it is judged; where none did, it is not missing.
    joined: it is played on some hosts, and judged for all of them: ``<name>_judged`` has below ``hosts`` what counts.
    """

    name: str
    module: str
    nouns: tuple[str, ...]
    play: str = "provision"
    audited: bool = False
    after_reboot: bool = False
    reboots: bool = False
    each: str = ""
    home: str = ""
    after: tuple[str, ...] = ()
    on_demand: bool = False
    joined: bool = False

    @property
    def result(self) -> str:
        return f"{self.name}_result"


# A driver that is loaded anew brings ports, their names and their settings anew; so does a card that is reset.
_DRIVER = ("mofed", "nic_firmware")
_PROVISION = (
    Role("platform", "topology_info", ("platform",), audited=True, after_reboot=True),
    Role("node_health", "node_health", ("node_health", "imex"), audited=True, after_reboot=True),
    Role("mofed", "ofed", ("ofed",), audited=True, after_reboot=True, reboots=True),
    # What a card comes up as, before those that look at its ports.
    Role(
        *("nic_firmware", "nic_firmware", ("nic_firmware",)),
        audited=True,
        after_reboot=True,
        reboots=True,
        after=("mofed",),
    ),
    Role("iommu", "iommu", ("iommu", "kernel_args"), audited=True, after_reboot=True, reboots=True),
    Role("pcie_path", "pcie_path", ("pcie_path",), audited=True, after_reboot=True, after=_DRIVER),
    Role("host_limits", "host_limits", ("host_limits",), audited=True, after_reboot=True),
    # Before those that bounce links: what was heard by LLDP is forgotten then, for up to half a minute.
    Role("lldp", "lldp", ("lldp",), audited=True, after=_DRIVER),
    Role("mtu", "netdev_mtu", ("netdev_mtu",), audited=True, after_reboot=True, after=_DRIVER),
    Role("multirail", "multirail", ("multirail",), audited=True, after_reboot=True, after=(*_DRIVER, "mtu")),
    Role(
        *("roce_qos", "roce_qos", ("roce_qos",)),
        audited=True,
        after_reboot=True,
        after=(*_DRIVER, "mtu", "multirail"),
    ),
    Role(
        *("nvidia_peermem", "gpudirect", ("gpudirect",)),
        audited=True,
        after_reboot=True,
        after=(*_DRIVER, "iommu"),
    ),
    Role(
        *("nccl_conf", "nccl_conf", ("nccl_conf",)),
        audited=True,
        after_reboot=True,
        after=(*_DRIVER, "mtu", "multirail", "roce_qos", "nvidia_peermem"),
    ),
    Role("nccl_tests", "nccl_tests_build", ("nccl_tests",), audited=True, after=(*_DRIVER, "nccl_conf")),
    # Its first check is of what the others have done.
    Role("gate", "gate", ("gate",), audited=True),
)
SUITE = (
    *_PROVISION,
    Role("reboot", "busy_info", ("reboot",), play="reboot"),
    Role("drain", "slurm_node", ("drain",), play="reboot"),
    # In site.yml where busbar_sharp asks for it.
    Role("sharp", "sharp", ("sharp",), play="sharp", on_demand=True),
    # No folder in roles/: what it joins comes between nodes.
    Role("verify", "perftest", ("consistency", "rail_ping", "perftest", "counters"), play="verify"),
    # From the nodes that the inventory names for it.
    Role("ib_fabric", "ib_fabric_info", ("ib_fabric",), play="fabric", on_demand=True, joined=True),
    Role(
        *("nccl_benchmark", "nccl_perf", ("nccl_perf", "nccl_benchmark")),
        play="benchmark",
        audited=True,
        each="__nccl_benchmark_run",
        # Whatever was mended was mended for this figure.
        after=(*(role.name for role in _PROVISION), "reboot"),
    ),
    # Between nodes: benchmark.yml measures, the nightly audit reads what each node has kept of that.
    Role(
        *("nccl_cluster", "nccl_cluster_record", ("nccl_cluster",)),
        play="benchmark",
        audited=True,
        home="nccl_benchmark",
        after=(*(role.name for role in _PROVISION), "reboot"),
    ),
    # Where a bar between nodes is missed, and by playbooks/localise.yml.
    Role("localise", "nccl_perf", ("localise",), play="benchmark", home="nccl_benchmark", on_demand=True),
)
# Roles that end with their own verdict, see action_plugins/verdict.py.
ROLES = (*(role.name for role in SUITE), "drift_timer")
VERIFY, BENCHMARK, CLUSTER, GATE, FABRIC = "verify", "nccl_benchmark", "nccl_cluster", "gate", "ib_fabric"
PROVISIONED = {role.name: role for role in _PROVISION}
AUDITED = {role.name: role for role in SUITE if role.audited}
AFTER_REBOOT = tuple(role.name for role in SUITE if role.after_reboot)
REBOOTS = tuple(role.name for role in SUITE if role.reboots)
ON_DEMAND = tuple(role.name for role in SUITE if role.on_demand)


def judged(nightly: bool) -> list[str]:
    """Names of the roles that have to report.

    nightly: without those that only a run which changes something has a word of.
    """
    return [role.name for role in SUITE if (role.audited or role.name == VERIFY or not nightly) and not role.on_demand]
