#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_cluster_plan
short_description: (internal) Plan which nodes are measured together
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Makes jobs of the hosts of the play, from their intent (C(busbar_intent)), what
    M(busbar.fabric.nccl_cluster_member) has read (C(nccl_cluster_member_result)) and what they have stored
    (C(nccl_cluster_stored)). Hosts that are busy, not reached or cannot take part are left out by name.
  - Jobs of one round are on disjoint hosts, and can run at the same time.
attributes:
  check_mode:
    support: full
    description: Plans only, and prints what would be run.
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Plan who is measured with whom
  busbar.fabric.nccl_cluster_plan:
  register: nccl_cluster_plan_result
"""

RETURN = r"""
rounds:
  description: Of each round its jobs, by the host that starts them; empty where nothing is to be measured.
  type: list
  elements: dict
  returned: success
measured:
  description: Hosts of all jobs.
  type: list
  elements: str
  returned: success
left_out:
  description: Hosts that take no part, each with C(host) and C(reason).
  type: list
  elements: dict
  returned: success
member_findings:
  description: Of each host, whether it takes part.
  type: dict
  returned: success
one_leaf:
  description: Hosts that are taken for one leaf, for want of C(busbar_leaf).
  type: list
  elements: str
  returned: success
due:
  description: Of hosts that are measured, why.
  type: dict
  returned: success
"""
