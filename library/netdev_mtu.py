#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: netdev_mtu
short_description: Set the MTU of the compute rails' interfaces, now and in their network manager's configuration
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Brings the interface of every Ethernet rail, its bond, and the VLANs and bridges above it that RDMA uses, to one
    MTU.
  - Detects which network manager sets an interface up at boot, by its own rules (netplan, NetworkManager,
    systemd-networkd, ifupdown) and writes the MTU there; all other lines stay as they are. Netplan and networkd
    get a file from Busbar. If none, or more than one, sets the interface up, or a file also applies to an interface
    which is not a rail, nothing is written and a finding reports it.
  - Reports the resulting RDMA MTU (C(active_mtu) of C(ibv_devinfo)) as a separate finding.
  - A changed MTU stops traffic for a moment, so it needs O(max_disruption=link) and an idle node. The file is
    written in any case.
options:
  mtu:
    description: MTU in bytes, 1280 to 65535; without it none is required. RDMA sends 4096 bytes at once from 4192 on.
    type: int
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Jumbo frames on the rails
  busbar.fabric.netdev_mtu:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    mtu: 9000
  register: mtu_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
