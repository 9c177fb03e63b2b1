#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: remediate
short_description: (internal) Read which nodes have which faults, and plan their remediation
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads files of findings and the action log (V(read)), then makes a plan from what
    every such host of the play has reported since (V(plan)), and prints it. A fault that has gone is dropped, what was
    tried too often is refused, and no more than a share of all hosts is acted on.
  - Does nothing to any host.
attributes:
  check_mode:
    support: full
    description: Plans the same, and writes nothing into the action log.
options:
  phase:
    description: V(read) the files, or V(plan) once their hosts were audited.
    type: str
    choices: [read, plan]
    required: true
  findings:
    description: Files of findings and records of localisation.
    type: list
    elements: path
    default: []
  results:
    description: Directory on the control node with the action log, and with the records of nodes that stay out of
      service.
    type: path
    required: true
  batches:
    description: How many hosts are acted on at once, batch by batch, as numbers or as a share such as V(10%).
    type: list
    elements: raw
    default: [1, "10%"]
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
accused:
  description: Hosts of the play that a file names, or that an earlier run has left drained.
  type: list
  elements: str
  returned: when read
pairs:
  description: Hosts that are accused by tests with others, and the good ones with which they are measured again.
  type: dict
  returned: when read
paired:
  description: All of these, the good ones first; none in check mode.
  type: list
  elements: str
  returned: when read
drained:
  description: Hosts that remediation has drained in an earlier run.
  type: list
  elements: str
  returned: when read
accusations:
  description: What each of them is accused of.
  type: list
  elements: dict
  returned: when read
hosts:
  description: The plan of each accused host.
  type: dict
  returned: when planned
order:
  description: Those that are acted on, in their order.
  type: list
  elements: str
  returned: when planned
batches:
  description: How many of them at once.
  type: list
  elements: int
  returned: when planned
provision:
  description: Roles that are checked again before a host is given back.
  type: list
  elements: str
  returned: when planned
"""
