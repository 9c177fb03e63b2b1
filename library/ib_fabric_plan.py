#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: ib_fabric_plan
short_description: (internal) Decide which hosts sweep the InfiniBand fabric
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Of the nodes in C(busbar_fabric_hosts) those sweep that are in the play. A plane
    that was swept within C(ib_fabric_interval) seconds is not swept again, with a note.
  - If C(busbar_fabric_hosts) is empty, no host sweeps and nothing is reported.
options:
  path:
    description: Directory on the control node, of which C(fabric) has the records; empty stores none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Decide who sweeps
  busbar.fabric.ib_fabric_plan:
    path: busbar-results
  run_once: true
  register: ib_fabric_plan_result
"""

RETURN = r"""
asked:
  description: C(busbar_fabric_hosts).
  type: list
  elements: str
  returned: success
hosts:
  description: Nodes that are to sweep, in turn.
  type: list
  elements: str
  returned: success
known:
  description: Planes that are not swept again, by the GUIDs of the ports of their subnet managers.
  type: list
  elements: str
  returned: success
last:
  description: Whether the last record is judged, and no host sweeps.
  type: bool
  returned: success
judge:
  description: Whether there is anything to judge.
  type: bool
  returned: success
wrong:
  description: Names in C(busbar_fabric_hosts) that are not nodes of the group, and what is wrong with each.
  type: dict
  returned: success
values:
  description: What the inventory declares about the fabric.
  type: dict
  returned: success
"""
