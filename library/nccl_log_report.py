#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_log_report
short_description: Report what happened to a job, from NCCL_DEBUG output on several hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the variable C(nccl_log_result) of every host of the play, which M(busbar.fabric.nccl_log_info) has returned,
    judges all logs together and prints what C(busbar diagnose) prints. Fails if there is a finding.
options: {}
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Report
  busbar.fabric.nccl_log_report:
"""

RETURN = r"""
report:
  description: Jobs, the proof of their transport, and findings; docs/diagnose.md.
  type: dict
  returned: success
"""
