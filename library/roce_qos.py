#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_qos
short_description: Set trust, PFC, maps, queues, buffers, ECN and ToS of all rails' ports, in one call
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Sets the Ethernet port of every rail, or each member of a bond, to the site's RoCE values. Trust, the map of DSCPs,
    PFC, ECN and the ToS of rdma_cm are derived from O(roce); the other options override or extend that.
  - Uses C(mlnx_qos) of mlnx-tools. ECN can be set where the driver has a directory C(ecn), which is OFED's; else the
    finding names the firmware's variables.
  - Writes only what differs and reads each write back. A changed PFC mask bounces the link, so that it needs
    O(max_disruption=link) and an idle node. Other settings of the port stay as they are.
  - A reboot or a reload of the driver resets these settings. So a udev rule, a systemd unit for each port and a script
    set them again whenever a port's netdev appears. That may bounce an unused link, regardless of O(max_disruption).
attributes:
  check_mode:
    support: full
    description: Shows commands and writes, and does none of them.
  diff_mode:
    support: full
    description: By port, the settings that a run changes.
options:
  roce:
    description:
      - The site's C(busbar_roce), of which C(dscp), C(priority), C(cnp_dscp) and C(cnp_priority) are used.
      - With C(dscp) alone, C(priority) is the one that NICs have for it by default, DSCP / 8, and congestion
        notifications are DSCP 48 with priority 6.
      - Empty removes from the unit what no other option needs; without it the unit retains what it has.
    type: dict
  trust:
    description: What the NIC takes the priority from; empty is V(dscp) where O(roce) has a C(dscp), else it is not
      checked.
    type: str
    choices: ["", dscp, pcp]
    default: ""
  dscp2prio:
    description: Entries of the map beside those that follow from O(roce); entries that are not named stay.
    type: dict
    default: {}
  pfc:
    description: Priorities with PFC, all others without. By default the one of O(roce); V([]) for a lossy fabric.
    type: list
    elements: int
  prio2tc:
    description: Traffic class of each of the eight priorities.
    type: list
    elements: int
  tsa:
    description: Algorithm of each of the eight traffic classes, V(strict), V(ets) or V(vendor); with O(tc_bandwidth).
    type: list
    elements: str
  tc_bandwidth:
    description: Per cent for each of the eight traffic classes; 100 over those of C(ets), 0 for the others.
    type: list
    elements: int
  cable_length:
    description: Longest cable of the rails in metres, from which the driver sizes the buffers.
    type: int
  prio2buffer:
    description: Receive buffer of each of the eight priorities. From then on the driver sizes none automatically.
    type: list
    elements: int
  buffer_size:
    description: Bytes of each of the eight receive buffers.
    type: list
    elements: int
  ecn:
    description: Priorities with ECN, marking and reaction; others stay. By default the one of O(roce).
    type: list
    elements: int
  tos:
    description: Default ToS of rdma_cm. By default DSCP * 4 + 2.
    type: int
  traffic_class:
    description: Forced upon every queue pair of the device, V(-1) for none. By default it is not checked.
    type: int
  dcbx:
    description:
      - Who owns the port. Empty is the kernel, and a port that firmware owns is reported and left alone.
      - V(os) takes it over. V(firmware) leaves it to the switch; what is wrong then is reported and not written.
    type: str
    choices: ["", os, firmware]
    default: ""
  pause_off:
    description: Switch global pause off where PFC is configured.
    type: bool
    default: true
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.disruption
  - busbar.fabric.node.profile
"""

EXAMPLES = r"""
- name: One lossless priority for RoCE on all rails
  busbar.fabric.roce_qos:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    roce: {dscp: 26, priority: 3, cnp_dscp: 48, cnp_priority: 6}
    max_disruption: link
  register: roce_qos_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
