#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: consistency
short_description: (internal) Name the hosts whose rails differ from the fleet's
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Compares what M(busbar.fabric.rail_info) has read of all hosts of the play
    (variable C(rail_info_result)), firmware, PSID, driver, rail order, MTU and QoS, with what the inventory declares
    or, where it declares nothing, with what most hosts of the same profile, fabric and product have. A tie is reported
    and not decided.
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Compare all hosts
  busbar.fabric.consistency:
  register: consistency_result
"""

RETURN = r"""
hosts:
  description: Host to C(findings), what is not ok, C(passed), and the C(rails) that a finding is about.
  type: dict
  returned: always
"""
