#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: topology_info
short_description: Read GPUs, NICs, PCIe paths and NVLinks, and compare them with a platform profile
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the machine from sysfs, procfs and nvidia-smi, classifies every NIC with the reason, and returns the path
    class of every pair of GPU and NIC.
  - With O(profile) it returns a finding for every difference from the profile.
  - Changes nothing. A tool that hangs is abandoned after O(tool_timeout) seconds.
options:
  profile:
    description: Platform profile as in C(profiles/NAME.yml). Without it the module only reads.
    type: dict
    required: false
  site:
    description: The site's values by their names, such as C(busbar_firmware), as M(busbar.fabric.intent) returns them.
    type: dict
    default: {}
  address_family:
    description: Kind of RoCE v2 address that an Ethernet rail must have.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  cross_checks:
    description: Second sources to compare with sysfs.
    type: list
    elements: str
    choices: [nvidia_smi_topo]
    default: []
  nccl_topo_file:
    description: A file that NCCL wrote through NCCL_TOPO_DUMP_FILE, or a cloud's NCCL_TOPO_FILE, to compare with sysfs.
    type: path
    default: ""
  guids:
    description: Also return RV(fabric), by which a sweep of the InfiniBand fabric recognises this host.
    type: bool
    default: false
  compare:
    description: Also return RV(rail_info) and RV(facts), which the control node compares between hosts.
    type: bool
    default: false
  tool_timeout:
    description: Time limit of each tool in seconds.
    type: float
    default: 20
  recognition:
    description: Also return RV(recognition). Without O(draft), nvidia-smi is not run then.
    type: bool
    default: false
  draft:
    description: Also return a profile that this host meets, for a person to review.
    type: bool
    default: false
  known_profiles:
    description: Profiles by their names; with O(draft) the host is compared with the nearest of them.
    type: dict
    default: {}
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Read the topology
  busbar.fabric.topology_info:
  register: machine

- name: Compare the host with its profile
  busbar.fabric.topology_info:
    profile: "{{ busbar_intent.profile }}"
    fabric: infiniband
  register: platform_result
"""

RETURN = r"""
topology:
  description: The machine as it was read; null for a value that it does not have or that could not be read.
  type: dict
  returned: success
  contains:
    gpus:
      description:
        - GPUs in PCI order, each with C(pci), C(index) in nvidia-smi, C(model), C(uuid), C(in_driver), C(numa_node),
          C(nvlinks_active), C(nvlinks_total), C(fabric_state), C(fabric_status) and the link C(pcie) with
          C(current_speed_gts), C(current_width), C(max_speed_gts) and C(max_width).
      type: list
      elements: dict
    nics:
      description:
        - NICs, each with C(pci), C(role) and its C(reason), the RDMA device C(rdma), C(firmware), C(numa_node), C(pcie)
          as for a GPU, C(netdevs) with C(name) and C(mtu), and C(ports) with C(number), C(state), C(phys_state),
          C(rate_gbps), C(link_layer), the number of C(gids) and C(rocev2_ipv4_gid_index).
      type: list
      elements: dict
    paths: {type: dict, description: "PCI address of a GPU to that of a NIC to their path class, such as V(PIX)."}
    virtualization: {type: dict, description: "C(is_vm), C(hypervisor), C(cloud) and the C(source) of these."}
    driver: {type: dict, description: "NVIDIA driver, C(version), C(open_kernel_module) and C(source)."}
    software_rdma: {type: list, elements: str, description: RDMA devices without a PCI device.}
    problems: {type: list, elements: str, description: "What could not be read, and why."}
fabric:
  description: What a sweep of the InfiniBand fabric shows of this host.
  type: dict
  returned: when O(guids) and O(profile) are set
  contains:
    boot_id: {type: str, description: Id of this boot; null if unreadable. A boot resets the counters of the HCAs.}
    rails:
      description:
        - InfiniBand rails of the profile, each with its number C(rail), C(pci), C(device), C(node_guid), C(port_guid),
          C(port) and C(rate_gbps).
      type: list
      elements: dict
rail_info:
  description: The rails, as RV(busbar.fabric.rail_info#module:info).
  type: dict
  returned: when O(compare) and O(profile) are set
facts:
  description:
    - C(hostname), C(machine_id), C(kernel), C(gpu_driver) and C(gpu_model); null for what could not be read.
  type: dict
  returned: when O(compare) and O(profile) are set
recognition:
  description: What a first verdict needs to recognise the platform and to compare the rails with each other.
  type: dict
  returned: when O(recognition=true)
  contains:
    bus: {type: bool, description: Whether the PCI bus can be read.}
    root: {type: bool, description: Whether the module ran as root.}
    gpus: {type: list, elements: dict, description: "NVIDIA GPUs, each with C(pci), C(model) and PCI id C(device)."}
    nics:
      description: NICs that may be rails, each with C(pci), C(path) to the nearest GPU, C(link_layer) and C(rate_gbps).
      type: list
      elements: dict
    nvswitches: {type: int, description: NVSwitches on the PCI bus.}
    foreign: {type: list, elements: str, description: "V(AMD GPU) and V(EFA), once for each such device."}
    architecture: {type: str, description: Architecture of the processor.}
    fabric: {type: bool, description: Whether the GPUs of an Arm host report an NVLink fabric.}
    guest: {type: bool, description: Whether this is a virtual machine.}
    machine: {type: str, description: "V(bare metal), or the virtual machine with its hypervisor."}
    cloud: {type: str, description: "The cloud, such as V(Azure), or empty."}
    product: {type: str, description: Product name of the chassis by DMI.}
    draft: {type: dict, description: A profile of the machine as it is; null without a GPU.}
    rails:
      description:
        - Of each rail the values that could be read. C(partitions), C(psid), C(firmware), C(mtu), C(routed),
          C(trust), C(dscp2prio), C(pfc), C(owner) of DCBX, C(ecn), C(cnp), C(tos), C(traffic_class), C(arp_ignore),
          C(arp_announce), C(rp_filter), C(accept_local).
      type: list
      elements: dict
    runtimes: {type: dict, description: "Installed container runtimes, to whether limits of containers are set there."}
    resources: {type: list, elements: str, description: RDMA resources of the kubelet; null if they cannot be read.}
draft: {type: dict, returned: when O(draft) is set, description: A profile that this host meets.}
doubts:
  description: What a person must check before the draft becomes intent.
  type: list
  elements: str
  returned: when O(draft) is set
notes:
  description: Sentences for the verdict, such as what only the hypervisor of a virtual machine knows.
  type: list
  elements: str
  returned: success
findings: {type: list, elements: dict, returned: success, description: "What is not ok, as in C(docs/findings.md)."}
passed: {type: list, elements: str, returned: success, description: Ids of the checks that are ok.}
evidence:
  description: Id of each check that is ok or unsupported to its value and source.
  type: dict
  returned: success
diff: {type: list, elements: dict, returned: success, description: Empty; nothing is changed.}
commands: {type: list, elements: str, returned: success, description: Empty; nothing is changed.}
reboot_required: {type: list, elements: str, returned: success, description: Empty; nothing is changed.}
withheld: {type: list, elements: str, returned: success, description: Empty; nothing is changed.}
"""

from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    ParseError,
    Problem,
    ReadError,
    attempt,
    problem_of,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.machine import (
    cloud,
    netdev_address,
    nvidia_smi_topo,
    partition,
    platform,
    profile,
    rail_address,
    rails,
    rdma,
    topology,
)
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import persisted_address
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import topology as nccl_topology

# Another one after each boot, which sets the counters of the HCAs back.
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def smi_cross_check(host: Host, machine: topology.Topology) -> platform.CrossCheck:
    source = "nvidia-smi topo -m"
    try:
        matrix = nvidia_smi_topo.read(host)
        lost = len(nvidia_smi_topo.lost(matrix, machine))
        return platform.CrossCheck(source, tuple(nvidia_smi_topo.disagreements(matrix, machine)), lost=lost)
    except (ReadError, ParseError) as error:
        return platform.CrossCheck(source, problem=problem_of(error, source))


def nccl_cross_check(host: Host, machine: topology.Topology, path: str) -> platform.CrossCheck:
    try:
        text = host.read_system(path)
        if text is None:
            return platform.CrossCheck(path, problem=Problem(path, "does not exist"))
        return platform.CrossCheck(path, tuple(nccl_topology.disagreements(nccl_topology.parse(text), machine)))
    except (ReadError, ParseError) as error:
        return platform.CrossCheck(path, problem=problem_of(error, path))


def addresses(host: Host, want: profile.Profile) -> rail_address.Addresses:
    """Only RoCE has GIDs that are made of them."""
    if all("Ethernet" not in rail.link_layers for rail in want.rails):
        return None
    try:
        return netdev_address.read(host)
    except (ReadError, ParseError) as error:
        return problem_of(error, " ".join(netdev_address.ADDRESSES))


SPEC: module.Spec = {
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    "site": {"type": "dict", "default": {}},
    "address_family": {"type": "str", "choices": ["ipv4", "ipv6"], "default": "ipv4"},
    "cross_checks": {"type": "list", "elements": "str", "choices": ["nvidia_smi_topo"], "default": []},
    "nccl_topo_file": {"type": "path", "default": ""},
    "guids": {"type": "bool", "default": False},
    "compare": {"type": "bool", "default": False},
    "tool_timeout": {"type": "float", "default": 20},
    "recognition": {"type": "bool", "default": False},
    "draft": {"type": "bool", "default": False},
    "known_profiles": {"type": "dict", "default": {}},
    **module.ROOTS,
}


def main() -> None:
    module.main(SPEC, work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    host.timeout = module.seconds(given)
    machine = topology.read(host, ask_nvidia_smi=given["draft"] or not given["recognition"])
    plan = Plan()
    more: Dict[str, Any] = {}
    if given["recognition"]:
        from ansible_collections.busbar.fabric.plugins.module_utils import platform_facts

        more["recognition"] = platform_facts.read(host, machine)
    if given["profile"] is not None:
        try:
            want = profile.from_options(given)
            partitions = partition.wanted(given["site"])
        except ParseError as error:
            raise ParseError("profile %s: %s" % (given["profile_name"], error)) from error
        cross_checks = []
        if "nvidia_smi_topo" in given["cross_checks"] and machine.gpus:
            cross_checks.append(smi_cross_check(host, machine))
        if given["nccl_topo_file"]:
            cross_checks.append(nccl_cross_check(host, machine, given["nccl_topo_file"]))
        mtus = rdma.read_mtus(host) if any("InfiniBand" in rail.link_layers for rail in want.rails) else None
        # A table has some hundred files.
        keys = partition.read(host, machine.nics) if partitions else None
        found = rails.match(machine, want)
        known = addresses(host, want)
        plan = platform.plan(machine, want, cross_checks, given["address_family"], known, mtus, given["site"], keys)
        if isinstance(known, Mapping):
            given_at_boot = persisted_address.findings(host, rails.ethernet(found, want), known, plan.findings)
            plan = merge(plan, Plan(tuple(given_at_boot)))
        if given["guids"]:
            boot_id = attempt(lambda: host.read(BOOT_ID), BOOT_ID, [])
            more["fabric"] = {"boot_id": boot_id, "rails": rails.guids(found, want)}
        if given["compare"]:
            # The gate, which has no other hosts, is not sent it.
            from ansible_collections.busbar.fabric.plugins.module_utils import rail_info

            more["rail_info"] = rail_info.read(host, machine, found, want, given["address_family"], None).to_dict()
            more["facts"] = rail_info.facts(host, machine)
    result = dict(plan.result(), notes=cloud.notes(machine), **more)
    if given["draft"]:
        # Wanted of one node at a time, and never by the audit, which is not sent it.
        from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile_doubts

        second = [smi_cross_check(host, machine)] if machine.gpus else []
        try:
            result["draft"], result["doubts"] = profile_doubts.checked_draft(machine, given["known_profiles"], second)
        except ParseError as error:
            raise ParseError("known_profiles: %s" % error) from error
    return {"topology": topology.to_dict(machine), **result}


if __name__ == "__main__":
    main()
