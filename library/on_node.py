#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: on_node
short_description: Run one of Ansible's own actions on a node, and take no orders from there
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - What a module answers may hold C(ansible_facts), which stand above the inventory's variables, or C(add_host).
    Ansible obeys them, whatever module it was. Of the answer to this task only what is named below is kept.
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
      path: /var/lib/busbar/nccl-tests.pack
      state: absent
"""

RETURN = r"""
stat:
  description: What M(ansible.builtin.stat) says of a file.
  type: dict
  returned: with that action
"""
