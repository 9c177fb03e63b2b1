#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: verify
short_description: (internal) Join what the end-to-end proof found on a host
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Joins the host's part of M(busbar.fabric.consistency),
    M(busbar.fabric.rail_pairs), the rail ping and its runs of M(busbar.fabric.perftest). A planned test without a
    result is a finding. What an earlier role of the run found on the same NIC is named as the cause.
options:
  measured:
    description: What M(busbar.fabric.perftest) returned in each pass.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Join
  busbar.fabric.verify:
    measured: "{{ runs }}"
  register: verify_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: always
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: always
sessions:
  description: Every test of this host with its figures and counters.
  type: list
  elements: dict
  returned: always
"""
