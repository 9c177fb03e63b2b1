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
    description: RV(commands) lists all changes.
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
notes:
  description: That an administrator has drained it, and why.
  type: list
  elements: str
  returned: success
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
commands:
  description: What was run, or would be, to change something.
  type: list
  elements: str
  returned: success
repaired:
  description: Empty; draining a node repairs nothing.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings that wait for a job.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.change.module import ROOTS
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "scheduler": {"type": "str", "choices": ["none", "slurm"], "default": "slurm"},
            "node": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["drained", "resumed", "undone", "reported"],
                "default": "reported",
            },
            "reason": {"type": "str", "default": ""},
            "run": {"type": "str", "default": ""},
            "wait": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 30},
            **ROOTS,
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["scheduler"] == "none":
        module.exit_json(**Plan().result(), drained=False, jobs=[], ours=False, repaired=[])
    host = Host(given["hardware_root"], given["system_root"], timeout=float(given["timeout"]))
    wanted = (given["node"], given["state"], given["reason"], given["run"], given["wait"])
    have = slurm.read(host, given["node"])
    planned = after = slurm.plan(have, *wanted)
    if planned.commands and not module.check_mode:
        try:
            apply.execute(host, planned)
            have = slurm.read(host, given["node"])
        except ReadError as error:
            have = slurm.Have(None, problem=error.problem)
        after = slurm.plan(have, *wanted)
        if after.commands:
            have = slurm.Have(None, problem=Problem(str(after.commands[0]), "ended with 0 and is not done"))
            after = slurm.plan(have, *wanted)
    result = apply.result(planned, after)
    node = have.node
    result.update(
        # What a command did not do is not done; what it would do in check mode is foreseen.
        drained=node is not None and not have.jobs and (node.drained or bool(module.check_mode and planned.commands)),
        jobs=list(have.jobs),
        ours=node is not None and node.ours,
        notes=[],
        repaired=[],
    )
    if node is not None and node.drained and not node.ours:
        result["notes"] = ["Slurm has %s %s; Busbar leaves that as it is" % (node.name, node)]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
