#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_node
short_description: Drain a node of Slurm for Busbar, resume it, or report its state
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs where C(scontrol) and C(squeue) work, as a user who may change nodes.
  - Busbar's reasons begin with C(busbar:). A node that others have drained or set down is never resumed, and its reason
    never changed; it counts as drained.
  - If Slurm does not respond, or does not know the node, nothing is done and the finding is C(unknown).
attributes:
  check_mode:
    support: full
    description: Reports what it would do.
  diff_mode:
    support: none
    description: C(commands) lists all changes.
options:
  scheduler:
    description: V(none) queries nothing and finds nothing.
    type: str
    choices: [none, slurm]
    default: slurm
  node:
    description: The node's name in Slurm.
    type: str
    required: true
  state:
    description:
      - V(drained) drains the node if no job is on it or O(wait) is set.
      - V(resumed) resumes a node that Busbar has drained; with a O(reason) it stays drained for that reason.
      - V(undone) resumes a node that was drained without further changes.
      - V(reported) changes nothing.
    type: str
    choices: [drained, resumed, undone, reported]
    default: reported
  reason:
    description: What it is drained for, or why it is not resumed.
    type: str
    default: ""
  run:
    description: The run that does it, for the reason; the action plugin of this name gives it.
    type: str
    default: ""
  wait:
    description: Drain also a node on which jobs run; they go on, and no new ones start.
    type: bool
    default: false
  timeout:
    description: Time limit of each of Slurm's commands in seconds.
    type: int
    default: 30
extends_documentation_fragment:
  - busbar.fabric.node
"""

EXAMPLES = r"""
- name: Drain the node
  busbar.fabric.slurm_node:
    node: node01
    state: drained
    reason: reboot for iommu=pt
"""

RETURN = r"""
drained:
  description: Whether the node is out of service with no job on it; in check mode, whether it would be.
  type: bool
  returned: success
jobs:
  description: Jobs on the node, a line each.
  type: list
  elements: str
  returned: success
ours:
  description: Whether it is drained by Busbar.
  type: bool
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.slurm import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
