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
  - Reads the machine from sysfs, procfs and nvidia-smi.
  - With O(profile) it returns a finding for every difference from the profile.
  - With O(subset=rails) it only returns RV(rail_info) and RV(busy), which M(busbar.fabric.verify) compares over all
    hosts and makes pairs of.
  - Changes nothing. A tool that hangs is abandoned after O(tool_timeout) seconds.
options:
  subset:
    description: What is read, V(machine) or only V(rails); these need O(profile).
    type: str
    choices: [machine, rails]
    default: machine
  profile:
    description: Platform profile as in C(profiles/NAME.yml). Without it there are no findings.
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
  dscp:
    description: With O(subset=rails), DSCP of the lossless queue; -1 if there is none, and then the ports' QoS is not
      read.
    type: int
    default: -1
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
  tool_timeout: {type: float, default: 20, description: Time limit of each tool in seconds.}
  recognition:
    description: Also return RV(recognition). Without O(draft), nvidia-smi is not run then.
    type: bool
    default: false
  draft:
    description: Also return a profile that this host meets, for a person to review.
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Compare the host with its profile
  busbar.fabric.topology_info:
    profile: "{{ busbar_intent.profile }}"
    fabric: infiniband
  register: platform_result

- name: Read the rails
  busbar.fabric.topology_info:
    subset: rails
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
  register: rail_info_result
"""

RETURN = r"""
fabric:
  description: What a sweep of the InfiniBand fabric shows of this host, C(boot_id) and C(rails) with their GUIDs.
  type: dict
  returned: when O(guids) and O(profile) are set
rail_info:
  description:
    - The rails, and the host as far as the rails of other hosts are compared with it, C(product), C(driver), C(gpus),
      C(missing), and C(rails) with their places, addresses, firmware and QoS; null for what could not be read.
  type: dict
  returned: when O(subset=rails), or O(compare) and O(profile) are set
busy: {type: list, elements: str, returned: when O(subset=rails), description: "Users of the node, or why unknown."}
facts:
  description:
    - C(hostname), C(machine_id), C(kernel), C(gpu_driver) and C(gpu_model); null for what could not be read.
  type: dict
  returned: when O(compare) and O(profile) are set
recognition:
  description: What a first verdict needs to recognise the platform and to compare the rails with each other.
  type: dict
  returned: when O(recognition=true)
draft: {type: dict, returned: when O(draft) is set, description: A profile that this host meets.}
doubts: {type: list, elements: str, returned: when O(draft) is set, description: What to check before a draft is used.}
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.topology_info import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
