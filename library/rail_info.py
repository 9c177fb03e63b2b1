#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: rail_info
short_description: Read the values of a host's rails that are compared with other hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads for each rail of the profile its PCI address, RDMA device, interface, address, MTU, firmware, PSID and QoS,
    the driver's version, and what uses the node. M(busbar.fabric.verify) compares this over all hosts, and
    makes pairs of it.
  - Changes nothing.
options:
  address_family:
    description: Kind of RoCE v2 address that an Ethernet rail has.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  dscp:
    description: DSCP of the lossless queue; -1 if there is none, and then the ports' QoS is not read.
    type: int
    default: -1
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Read the rails
  busbar.fabric.rail_info:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
  register: rail_info_result
"""

RETURN = r"""
info:
  description: The rails, and the host as far as the rails of other hosts are compared with it.
  type: dict
  returned: success
  contains:
    product: {type: str, description: Product name of the chassis.}
    driver: {type: str, description: Driver of the NICs with its version.}
    rails:
      description:
        - For each rail C(number), C(pci), RDMA device C(device), interface C(netdev), its C(mtu) and C(addresses),
          C(link_layer) and C(rate_gbps) of the profile, RDMA's C(address), C(firmware), C(psid), C(qos) in words, its
          GPU as C(gpu) and C(gpu_index), and C(guids) (node, port, system). What could not be read is null.
      type: list
      elements: dict
    missing: {type: dict, description: Number of a rail that was not found to the reason.}
    gpus: {type: list, elements: str, description: UUIDs of the GPUs.}
busy:
  description: What uses the node, or why that is not known; empty if it is idle.
  type: list
  elements: str
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import SPEC, work


def main() -> None:
    module.main(SPEC, work)


if __name__ == "__main__":
    main()
