#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot_plan
short_description: (internal) Decide whether a host is rebooted now, and judge whether it came back
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Collects C(reboot_required) of the roles' results. A host is rebooted only where
    C(busbar_max_disruption) is V(reboot), it is idle, and every host before it came back as it should.
  - Runs on the control node.
attributes:
  check_mode:
    support: full
    description: Decides the same; the role does not reboot then.
options:
  busy:
    description: What M(busbar.fabric.busy_info) returned for the host; nothing is rebooted without it.
    type: dict
  drain:
    description: What M(busbar.fabric.slurm_node) returned for a node that has to be drained first; empty for others.
    type: dict
  done:
    description: What M(ansible.builtin.reboot) returned; then it is judged, and not decided.
    type: dict
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Decide
  busbar.fabric.reboot_plan:
    busy: "{{ busy }}"
  register: reboot_result
"""

RETURN = r"""
reboot:
  description: Whether to reboot now, or whether it was done.
  type: bool
  returned: success
give_back:
  description: State and reason for M(busbar.fabric.slurm_node), with which a node that Busbar has drained goes back.
  type: dict
  returned: success
again:
  description: Roles to check again after the reboot, in their order.
  type: list
  elements: str
  returned: success
reasons:
  description: What waits for a reboot.
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
"""
