#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: ib_fabric_judge
short_description: (internal) Judge the InfiniBand fabric by the sweeps of its nodes
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Joins the sweeps of M(busbar.fabric.ib_fabric_info) (C(ib_fabric_result) of the
    nodes that M(busbar.fabric.ib_fabric_plan) has named) with the cabling plan, the sweeps of the last record, and the
    GUIDs that each host has given with M(busbar.fabric.topology_info). Each host gets the findings of its rails; a
    finding that belongs to no host goes to those that swept.
  - Stores the sweeps and the findings on the control node, also in check mode - the next run computes rates from them.
options:
  path:
    description: Directory on the control node, of which C(fabric) takes the record; empty stores none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Judge what was swept
  busbar.fabric.ib_fabric_judge:
    path: busbar-results
  run_once: true
  register: ib_fabric_judged
"""

RETURN = r"""
hosts:
  description: Host to its C(findings) and C(passed), for the verdict.
  type: dict
  returned: success
path:
  description: Directory of the record; empty if none was stored.
  type: str
  returned: success
"""
