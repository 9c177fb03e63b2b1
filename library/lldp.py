#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: lldp
short_description: Compare the LLDP data of the RoCE rails' switch ports with the site's values
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the neighbour of each RoCE rail that is up, or of each member of a bond, from lldpd. If lldpd is missing,
    reads it from systemd-networkd 256 and later.
  - Compares the largest frame that the switch port takes with the rail's MTU, and PFC, the DSCP map and ETS of the
    switch, from its DCBX (IEEE 802.1Qaz), with O(roce). C(docs/cabling.md) lists the requirements.
  - The control node compares the leaf of each rail over all hosts.
  - Changes nothing. InfiniBand rails have no findings here.
options:
  asked:
    description:
      - V(auto) judges what is received, and prints a note if nothing is; a single rail without LLDP is a finding.
      - V(required) requires an agent, and a neighbour for every rail. V(none) requires nothing.
    type: str
    choices: [auto, none, required]
    default: auto
  dcbx:
    description:
      - Whether a switch that sends no PFC and DSCP settings is a finding. By default only if other rails
        of the host receive them.
    type: bool
    default: false
  mtu:
    description: MTU of the rails in bytes; by default that of each interface.
    type: int
  roce:
    description: The value of C(busbar_roce), with dscp and priority of the lossless queue.
    type: dict
    default: {}
  trust:
    description: What the NIC takes the priority from; empty means dscp if O(roce) has one.
    type: str
    choices: ["", dscp, pcp]
    default: ""
  dscp2prio:
    description: Entries of the map beside those of O(roce), DSCP to priority.
    type: dict
    default: {}
  pfc:
    description: Priorities with PFC; without it that of O(roce).
    type: list
    elements: int
  prio2tc:
    description: Traffic class of each of the eight priorities on the host.
    type: list
    elements: int
  tsa:
    description: Algorithm of each of the eight traffic classes on the host, strict, ets or vendor.
    type: list
    elements: str
  tc_bandwidth:
    description: Per cent of each of the eight traffic classes on the host.
    type: list
    elements: int
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Compare the switch ports with the site's values
  busbar.fabric.lldp:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    mtu: 9000
    roce: {dscp: 26, priority: 3}
  register: lldp_result
"""

RETURN = r"""
neighbours:
  description: Each port of a rail, with chassis, name, port and description of its neighbour, empty without one.
  type: list
  elements: dict
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
