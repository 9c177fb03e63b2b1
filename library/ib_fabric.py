#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: ib_fabric
short_description: (internal) Decide which hosts sweep the InfiniBand fabric, and judge it by their sweeps
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. V(plan) chooses the nodes of C(busbar_fabric_hosts) that are in the play. A plane
    that was swept within C(ib_fabric_interval) seconds is not swept again, with a note. If C(busbar_fabric_hosts) is
    empty, no host sweeps and nothing is reported.
  - V(judge) joins the sweeps of M(busbar.fabric.ib_fabric_info) (C(ib_fabric_result) of the nodes that V(plan) has
    named in C(ib_fabric_plan_result)) with the cabling plan, the sweeps of the last record, and the GUIDs that each
    host has given with M(busbar.fabric.topology_info). Each host gets the findings of its rails; a finding that belongs
    to no host goes to those that swept.
  - V(judge) stores the sweeps and the findings on the control node, also in check mode - the next run computes rates
    from them.
options:
  phase:
    description: V(plan) before the sweeps, V(judge) after them.
    type: str
    choices: [plan, judge]
    required: true
  path:
    description: Directory on the control node, of which C(fabric) has the records; empty stores none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Decide who sweeps
  busbar.fabric.ib_fabric:
    phase: plan
    path: busbar-results
  run_once: true
  register: ib_fabric_plan_result
"""

RETURN = r"""
hosts:
  description:
    - Of V(plan), the nodes that are to sweep, in turn; its other keys are for V(judge). Of V(judge), host to its
      C(findings) and C(passed), for the verdict.
  type: raw
  returned: success
path:
  description: Of V(judge), the directory of the record; empty if none was stored.
  type: str
  returned: success
"""
