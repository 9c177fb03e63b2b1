#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: localise_silent
short_description: Name the hosts of tests that gave no figure
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Of the round that M(busbar.fabric.localise_round) has asked for. Those hosts are asked once more whether they can
    take part - one of them may be busy by now, or gone.
options: {}
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: See which tests gave no figure
  busbar.fabric.localise_silent:
  run_once: true
  register: localise_silent_result
"""

RETURN = r"""
hosts:
  description: Names of the hosts.
  type: list
  elements: str
  returned: success
"""
