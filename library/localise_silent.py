#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: localise_silent
short_description: (internal) Name the hosts of tests without a result
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Hosts of the round that M(busbar.fabric.localise_round) has planned. They are
    queried again whether they can take part - one of them may now be busy or unreachable.
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
