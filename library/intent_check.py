#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: intent_check
short_description: (internal) Fail once where the inventory is wrong, whatever the number of hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads what M(busbar.fabric.intent) has registered as C(busbar_intent) for every
    host of the play, and fails if it is wrong for any. The message names each mistake once, with the hosts that have
    it.
  - Runs once, on the control node, and touches no host.
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Check the intent of every host before any host is touched
  busbar.fabric.intent:
    fail: false
  register: busbar_intent

- name: Stop before any host is touched where the inventory is wrong
  busbar.fabric.intent_check:
"""

RETURN = r"""
msg:
  description: What is wrong with the inventory, and for which hosts.
  type: str
  returned: failure
"""
