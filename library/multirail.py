#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: multirail
short_description: Set ARP, reverse path filter and source routing of the rails, by a named policy
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Sets the kernel's ARP and reverse path settings for the interface of every Ethernet rail, now and in a sysctl
    drop-in. A line of another sysctl file that contradicts them is reported, and left as it is.
  - If the policy requires it, sets a routing table and a rule for the address of every rail, now by C(ip) and at boot
    by a file for systemd-networkd or netplan. With other network managers a finding lists what to add.
  - This module assigns no addresses.
options:
  policy:
    description:
      - V(oci) is arp_ignore 2, arp_announce 1, rp_filter 2. V(nvidia) is arp_ignore 1, arp_announce 2, rp_filter 0 and
        source routing. V(custom) takes O(values) and O(source_routing). V(none) removes Busbar's own files; what is set
        now stays until a reboot. Empty judges nothing, and leaves them.
    type: str
    choices: ["", oci, nvidia, none, custom]
    default: ""
  values:
    description: Kernel settings for V(custom), from arp_ignore, arp_announce, rp_filter and accept_local to a number.
    type: dict
  source_routing:
    description: For V(custom), whether each rail gets its own routing table.
    type: bool
  gateway:
    description:
      - Default gateway in each rail's table, the first or last address of the rail's subnet. With V(none) the table
        reaches the subnet only; empty leaves what is there.
    type: str
    choices: ["", none, first, last]
    default: ""
  mtu_judged:
    description:
      - Whether M(busbar.fabric.netdev_mtu) judges the same rails. An unclear owner is then its finding.
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Rails in one subnet
  busbar.fabric.multirail:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    policy: nvidia
  register: multirail_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.multirail.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
