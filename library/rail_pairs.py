#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: rail_pairs
short_description: (internal) Plan RDMA tests between disjoint pairs of hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Makes pairs of the idle hosts of the play that have the same profile and fabric,
    from what M(busbar.fabric.rail_info) has read (variable C(rail_info_result)). In a pass every host is in one pair at
    most, and server or client. Each pair has two passes with the roles exchanged.
attributes:
  check_mode:
    support: full
    description: Plans only. Nodes in use are paired, too, because check mode judges last results and tests none.
options:
  rounds:
    description: Partners of each host; in an odd number of hosts one round more, so that all have one.
    type: int
    default: 1
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Plan who tests with whom
  busbar.fabric.rail_pairs:
  register: rail_pairs_result
"""

RETURN = r"""
passes:
  description: How many passes there are.
  type: int
  returned: always
hosts:
  description: Host to its sessions in each pass (C(passes)), the traffic class and priority of its fabric (-1 for
    none), and C(findings) for what cannot be tested.
  type: dict
  returned: always
"""
