#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: on_node
short_description: (internal) Run one of Ansible's own actions on a node, and filter its result
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. A module's result may hold C(ansible_facts), which override the inventory's
    variables, or C(add_host). Ansible obeys them, whatever module it was. Of this task's result only what is named
    below is returned.
attributes:
  check_mode:
    support: full
    description: That of the action.
  diff_mode:
    support: full
    description: That of the action.
options:
  action:
    description: Its full name.
    type: str
    required: true
  arguments:
    description: Its arguments.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Remove a file
  busbar.fabric.on_node:
    action: ansible.builtin.file
    arguments:
      path: /var/lib/busbar/mofed
      state: absent
"""

RETURN = r"""
# What the action returns, without the orders in it.
"""
