#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: remediate
short_description: (internal) Plan the remediation of accused nodes, and decide on each of its steps
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric, for C(playbooks/remediate.yml). Runs on the control node. Every action on a host
    is in the action log before it starts, so that a run that was killed has left nothing unknown to the next one.
attributes:
  check_mode:
    support: full
    description: Plans the same; nothing is written, since nothing is done.
options:
  phase:
    description:
      - V(read) reads the files and the action log. V(plan) plans over all their hosts once these were audited, and
        prints that. Both are for all hosts of the play.
      - V(step) records how a host's last step ended, and returns the next one. V(failed) records that it failed.
      - V(report) returns the findings of a host.
    type: str
    choices: [read, plan, step, failed, report]
    required: true
  findings:
    description: Files of findings.
    type: list
    elements: path
    default: []
  results:
    description: Directory on the control node with the action log.
    type: path
    required: true
  batches:
    description: How many hosts are acted on at once, batch by batch, as numbers or as a share such as V(10%).
    type: list
    elements: raw
    default: [1, "10%"]
  message:
    description: Why a step failed.
    type: str
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Read who is accused
  busbar.fabric.remediate:
    phase: read
    findings: [/srv/busbar/findings.json]
    results: busbar-results
  register: remediate_read_result
"""

RETURN = r"""
order:
  description: Hosts that are acted on, in their order.
  type: list
  elements: str
  returned: when planned
step:
  description: The next step of the host, empty for none.
  type: str
  returned: when a step was taken
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: when reported
"""
