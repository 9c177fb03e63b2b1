# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the machine, and judge it by its profile: the module topology_info."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from .change import module
from .core.host import BOOT_ID, Host, ParseError, Problem, ReadError, attempt, problem_of
from .core.plan import Plan, merge
from .machine import (
    installed_versions,
    netdev_address,
    nic_functions,
    nvidia_smi_topo,
    partition,
    platform,
    profile,
    rails,
    rdma,
    topology,
    virtualization,
)
from .machine.profile import Profile
from .machine.rail_address import Addresses
from .machine.topology import Topology
from .mtu import plan as netdev_mtu
from .nccl_conf import topology as nccl_topology

SPEC: module.Spec = {
    **module.PROFILE,
    "subset": {"type": "str", "choices": ["machine", "rails"], "default": "machine"},
    "profile": {"type": "dict", "required": False},
    "site": {"type": "dict", "default": {}},
    "address_family": {"type": "str", "choices": ["ipv4", "ipv6"], "default": "ipv4"},
    "dscp": {"type": "int", "default": -1},
    "cross_checks": {"type": "list", "elements": "str", "choices": ["nvidia_smi_topo"], "default": []},
    "nccl_topo_file": {"type": "path", "default": ""},
    "guids": {"type": "bool", "default": False},
    "compare": {"type": "bool", "default": False},
    "tool_timeout": {"type": "float", "default": 20},
    "recognition": {"type": "bool", "default": False},
    "draft": {"type": "bool", "default": False},
    **module.ROOTS,
}
Result = Dict[str, object]


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Result:
    """Return the module's result. Raises ParseError."""
    host.timeout = module.seconds(given)
    if given["subset"] == "rails":
        # The gate, which has no other hosts, is not sent it.
        from . import rail_info

        return rail_info.read_rails(host, given)
    machine = topology.read(host, ask_nvidia_smi=given["draft"] or not given["recognition"])
    result: Result = {}
    if given["recognition"]:
        from . import platform_facts

        result["recognition"] = platform_facts.read(host, machine)
    plan = Plan()
    if given["profile"] is not None:
        try:
            want, partitions = profile.from_options(given), partition.wanted(given["site"])
        except ParseError as error:
            raise ParseError("profile %s: %s" % (given["profile_name"], error)) from error
        plan = _judge(host, machine, want, given, bool(partitions))
        result.update(_compared(host, machine, want, given))
    result.update(plan.result(), notes=virtualization.notes(machine.virtualization))
    if given["draft"]:
        # Wanted of one node at a time, and never by the audit, which is not sent it.
        from .machine import profile_doubts

        second = [_smi_cross_check(host, machine)] if machine.gpus else []
        result["draft"], result["doubts"] = profile_doubts.checked_draft(machine, second)
    return result


def _judge(host: Host, machine: Topology, want: Profile, given: Mapping[str, Any], partitions: bool) -> Plan:
    crossed: List[Optional[platform.CrossCheck]] = [
        _smi_cross_check(host, machine) if "nvidia_smi_topo" in given["cross_checks"] and machine.gpus else None,
        _nccl_cross_check(host, machine, given["nccl_topo_file"]) if given["nccl_topo_file"] else None,
    ]
    mtus = rdma.read_mtus(host) if any("InfiniBand" in rail.link_layers for rail in want.rails) else None
    # A table has some hundred files.
    keys = partition.read(host, machine.nics) if partitions else None
    known, checks = _addresses(host, want), [check for check in crossed if check is not None]
    site, matched = given["site"], rails.match(machine, want)
    plan = platform.plan(machine, want, checks, given["address_family"], known, mtus, site, keys)
    words, firmware = site.get("busbar_minimum_versions") or (), site.get("busbar_firmware") or {}
    versions = installed_versions.judge(host, machine, words, firmware, plan.findings)
    every = [nic for _number, nic in sorted(matched.nics.items())]
    functions = nic_functions.judge(machine, every, nic_functions.read(host, every), want.data_direct)
    plan = merge(plan, Plan((*versions, *functions)))
    if not isinstance(known, Mapping):
        return plan
    nics = rails.ethernet(matched, want)
    return merge(plan, Plan(tuple(netdev_mtu.judge_addresses(host, nics, known, plan.findings))))


def _compared(host: Host, machine: Topology, want: Profile, given: Mapping[str, Any]) -> Result:
    """Return what the control node compares over hosts and with a sweep of the fabric."""
    found = rails.match(machine, want)
    result: Result = {}
    if given["guids"]:
        boot_id = attempt(lambda: host.read(BOOT_ID), BOOT_ID, [])
        result["fabric"] = {"boot_id": boot_id, "rails": rails.guids(found, want)}
    if given["compare"]:
        from . import rail_info

        result["rail_info"] = rail_info.read(host, machine, found, want, given["address_family"], None).to_dict()
        result["facts"] = rail_info.facts(host, machine)
    return result


def _smi_cross_check(host: Host, machine: Topology) -> platform.CrossCheck:
    source = "nvidia-smi topo -m"
    try:
        matrix = nvidia_smi_topo.read(host)
    except (ReadError, ParseError) as error:
        return platform.CrossCheck(source, problem=problem_of(error, source))
    lost = len(nvidia_smi_topo.lost(matrix, machine))
    return platform.CrossCheck(source, tuple(nvidia_smi_topo.disagreements(matrix, machine)), lost=lost)


def _nccl_cross_check(host: Host, machine: Topology, path: str) -> platform.CrossCheck:
    try:
        text = host.read_system(path)
        if text is None:
            return platform.CrossCheck(path, problem=Problem(path, "does not exist"))
        return platform.CrossCheck(path, tuple(nccl_topology.disagreements(nccl_topology.parse(text), machine)))
    except (ReadError, ParseError) as error:
        return platform.CrossCheck(path, problem=problem_of(error, path))


def _addresses(host: Host, want: Profile) -> Addresses:
    """Only RoCE has GIDs that are made of them."""
    if all("Ethernet" not in rail.link_layers for rail in want.rails):
        return None
    try:
        return netdev_address.read(host)
    except (ReadError, ParseError) as error:
        return problem_of(error, " ".join(netdev_address.ADDRESSES))
