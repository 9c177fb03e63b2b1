#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_tests_fetch
short_description: (internal) Bring a packed build of nccl-tests from a node to the control node
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Like M(ansible.builtin.fetch), up to a size, and without any value from the node
    in its result. The control node computes the checksum that other hosts expect.
attributes:
  check_mode:
    support: full
    description: Fetches nothing.
options:
  src:
    description: File on the node.
    type: path
    required: true
  dest:
    description: File on the control node.
    type: path
    required: true
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Fetch the build
  busbar.fabric.nccl_tests_fetch:
    src: /var/lib/busbar/nccl-tests.pack
    dest: /tmp/nccl-tests/0
  register: fetched
"""

RETURN = r"""
sha256:
  description: Of the file that has arrived.
  type: str
  returned: success
"""
