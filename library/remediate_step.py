#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: remediate_step
short_description: (internal) Record one step of the remediation of a host before it is done, and judge its result
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Runs on the control node, between the steps of C(playbooks/tasks/remediate.yml),
    each of which registers C(remediate_state) by it. Every action on a host is in the action log before it starts, so
    that a run that was killed has left nothing unknown to the next one.
attributes:
  check_mode:
    support: full
    description: Nothing is written, since nothing is done.
options:
  phase:
    description:
      - V(begin) decides whether the host's turn has come; V(drain), V(measure), V(role), V(reboot) and V(verify) write
        down what begins, V(drained), V(measured), V(role_done), V(rebooted) and V(judge) its result.
      - V(wait) is for a host that is proven with others, once all of its turn are mended. V(failed) is for a task that
        failed. V(close) records why the host stays out of service, V(closed) that it does, or has been given back;
        V(report) has the findings.
    type: str
    required: true
    choices:
      - begin
      - drain
      - drained
      - measure
      - measured
      - role
      - role_done
      - reboot
      - rebooted
      - verify
      - wait
      - judge
      - failed
      - close
      - closed
      - report
  results:
    description: Directory on the control node with the action log and the records of hosts that stay out of service.
    type: path
    required: true
  role:
    description: The role that is played.
    type: str
    default: ""
  said:
    description: Why a task failed.
    type: str
    default: ""
  drain:
    description: What M(busbar.fabric.slurm_node) returned.
    type: dict
    default: {}
  busy:
    description: What M(busbar.fabric.busy_info) returned.
    type: dict
    default: {}
  asked:
    description: What M(busbar.fabric.host_audit) returned.
    type: dict
    default: {}
  measured:
    description: What M(busbar.fabric.nccl_benchmark) returned.
    type: dict
    default: {}
  searched:
    description: What C(playbooks/localise.yml) would register of the host as C(localise_result).
    type: dict
    default: {}
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Write down that the node is drained
  busbar.fabric.remediate_step:
    phase: drain
    results: busbar-results
  register: remediate_state
"""

RETURN = r"""
state:
  description: What is known of the host so far, for the next step; its keys are returned beside it.
  type: dict
  returned: success
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: when reported
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: when reported
"""
