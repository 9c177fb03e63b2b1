# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The suite as one table: its roles in the order in which they are played, and when each is audited.

The nightly audit, the verdict, and the audit after a reboot read the order here. Only the playbooks import the roles by
name, which a test compares.

A role's query of a node is in its ``vars/main.yml``: ``__ROLE_arguments``, the options of the role's module. The role's
task has them by module_defaults, the audit reads them there. Where the node is queried once for each of several items,
``__ROLE_each`` is their list.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """name: of the role and of its tag; it registers ``<name>_result``.

    module: its module on the node, with ``__<name>_arguments``.
    nouns: prefixes of the ids of its checks.
    play: the playbook that plays it, without ``.yml``.
    audited: the nightly audit calls its module, in check mode.
    after_reboot: it is audited again after a reboot, which can change what it checks.
    reboots: its result may require a reboot.
    each: the variable that holds one item of ``__<name>_each``; empty where the node is queried once.
    home: the role in whose folder its query is, where it has no folder.
    after: roles that can change what this one checks. Where one of them has changed something on a node, this one is
        played there, whatever the audit found before.
    on_demand: no run has to play it. If it was played, it is judged; else it is not missing.
    joined: it is played on some hosts, and judged for all of them: in ``hosts`` of ``<name>_judged``.
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


def _audited(
    name: str,
    module: str = "",
    nouns: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    reboots: bool = False,
    after_reboot: bool = True,
) -> Role:
    """Return a role of the first playbook. module: by default of its name.   nouns: by default that of its module."""
    module = module or name
    return Role(name, module, nouns or (module,), "provision", True, after_reboot, reboots, after=after)


# A reloaded driver, or a card that was reset, has new ports, names and settings.
_DRIVER = ("mofed", "nic_firmware")
_LINKS = (*_DRIVER, "mtu", "multirail")
_PROVISION = (
    _audited("platform", "topology_info", ("platform",)),
    _audited("node_health", nouns=("node_health", "imex")),
    _audited("mofed", "ofed", reboots=True),
    # The state of a card after a reset, before roles that check its ports.
    _audited("nic_firmware", after=("mofed",), reboots=True),
    _audited("iommu", reboots=True),
    _audited("pcie_path", after=_DRIVER),
    _audited("host_limits"),
    # Before roles that bounce links: LLDP's neighbours are lost then, for up to half a minute.
    _audited("lldp", after=_DRIVER, after_reboot=False),
    _audited("mtu", "netdev_mtu", after=_DRIVER),
    _audited("multirail", after=(*_DRIVER, "mtu")),
    _audited("roce_qos", after=_LINKS),
    _audited("nvidia_peermem", "gpudirect", after=(*_DRIVER, "iommu")),
    _audited("nccl_conf", after=(*_LINKS, "roce_qos", "nvidia_peermem")),
    _audited("nccl_tests", "nccl_tests_build", ("nccl_tests",), after=(*_DRIVER, "nccl_conf"), after_reboot=False),
    _audited("watch", after_reboot=False),
    # Its first check is of the other roles' results.
    _audited("gate", after_reboot=False),
)
# The variable of a run of the benchmark.
_RUN = "__nccl_benchmark_run"
# Every repair is made for the figures of a benchmark.
_REPAIRS = (*(role.name for role in _PROVISION), "reboot")
SUITE = (
    *_PROVISION,
    Role("reboot", "reboot", ("reboot",), play="reboot"),
    Role("drain", "slurm_node", ("drain",), play="reboot"),
    # In site.yml where busbar_sharp requests it.
    Role("sharp", "sharp", ("sharp",), play="sharp", on_demand=True),
    # No folder in roles/: it joins results between nodes.
    Role("verify", "perftest", ("consistency", "rail_ping", "perftest", "counters"), play="verify"),
    # On the nodes that the inventory names for it.
    Role("ib_fabric", "ib_fabric_info", ("ib_fabric",), play="fabric", on_demand=True, joined=True),
    Role("nccl_benchmark", "nccl_perf", ("nccl_perf", "nccl_benchmark"), "benchmark", True, after=_REPAIRS, each=_RUN),
    # Between nodes: benchmark.yml measures, the nightly audit reads each node's stored result.
    Role("nccl_cluster", "nccl_cluster", ("nccl_cluster",), "benchmark", True, after=_REPAIRS, home="nccl_benchmark"),
    # After a missed bar between nodes, and by playbooks/localise.yml.
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
    """Return the names of the roles that have to report.

    nightly: without roles that only a run with changes reports.
    """
    return [role.name for role in SUITE if (role.audited or role.name == VERIFY or not nightly) and not role.on_demand]
