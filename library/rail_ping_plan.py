#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: rail_ping_plan
short_description: (internal) Plan which rails of which hosts ping each other
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Makes one ring of the hosts of the play that have the same profile and fabric,
    from what M(busbar.fabric.rail_info) has read (variable C(rail_info_result)). Each host pings its two neighbours,
    each Ethernet rail the same rail there; so the number of pings of a host does not grow with the number of hosts.
  - A host whose rails could not be read is not a neighbour.
options: {}
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Plan whose rails ping each other
  busbar.fabric.rail_ping_plan:
  register: rail_ping_plan_result
"""

RETURN = r"""
hosts:
  description: Host to its C(pings), and to C(findings) of rails for which no other host can be pinged.
  type: dict
  returned: always
"""
