#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_firmware
short_description: Write the configured settings into the flash of NICs, which load them at the next reboot
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Compares the active settings of the rails' NICs, and those after their next reset, with the configured ones, by
    C(mstconfig) or C(mlxconfig).
  - Writes what differs, and requests one reboot, at which the card loads it, and no second one. No card is reset.
  - A card none of whose ports is a rail is neither queried nor written. Firmware is never burned.
  - In a virtual machine nothing is written. Without O(settings), O(recommended) and C(nic_firmware) of O(profile) no
    tool is run.
options:
  settings:
    description:
      - Name of a setting, as C(mstconfig) prints it, to a number or one of its words. A setting per port is named
        without C(_P1) for all declared ports, or with it for one.
    type: dict
    default: {}
  recommended:
    description:
      - Also require what is right for any training node on bare metal, if the card has the setting. These are
        C(LINK_TYPE) of the profile, C(PCI_WR_ORDERING) and C(ATS_ENABLED) 0, and on Ethernet C(ROCE_CC_PRIO_MASK) 255
        and C(CNP_DSCP) and C(CNP_802P_PRIO) of O(roce).
    type: bool
    default: false
  roce:
    description: The site's C(busbar_roce), of which O(recommended) uses C(cnp_dscp) and C(cnp_priority).
    type: dict
    default: {}
  firmware:
    description: The site's C(busbar_firmware), PSID to version. A reboot may load it where it was burned.
    type: dict
    default: {}
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.changes
  - busbar.fabric.node.disruption
"""

EXAMPLES = r"""
- name: Have the rails come up as Ethernet from the next reboot on
  busbar.fabric.nic_firmware:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    settings: {LINK_TYPE: ETH, ROCE_CC_PRIO_MASK: 255}
  register: nic_firmware_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.firmware.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
