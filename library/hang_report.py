#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: hang_report
short_description: Join NCCL's RAS reports of several hosts, and report which rank holds up which
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the variable C(nccl_ras_result) of every host of the play, which M(busbar.fabric.nccl_ras_info) has returned,
    and prints a table for each job, the findings with their causes first, and the commands to run before a process is
    killed. Fails unless every job launches collectives and every host has responded.
options:
  path:
    description: File on the control node for the report as JSON; empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Report
  busbar.fabric.hang_report:
    path: /root/hang.json
"""

RETURN = r"""
verdict:
  description: C(MOVES), C(HUNG), or C(UNKNOWN).
  type: str
  returned: success
"""
