#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_tests_share
short_description: (internal) Choose which hosts build nccl-tests and which get a copy, and fetch a build
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads the variable C(nccl_tests_result) of every host of the batch, as
    M(busbar.fabric.nccl_tests_build) returns it with O(busbar.fabric.nccl_tests_build#module:build=false). Of the hosts
    with the same C(class_id), one that has the build, else the first that can build, is the source for those that need
    it. For a task with C(run_once).
  - With O(src), like M(ansible.builtin.fetch), up to a size, and without any value from the node in its result. The
    control node computes the checksum that other hosts expect.
attributes:
  check_mode:
    support: full
    description: Chooses, and fetches nothing.
options:
  src:
    description: Packed build on the node, to be fetched.
    type: path
  dest:
    description: File on the control node; needed with O(src).
    type: path
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Choose who builds for hosts that are equal
  busbar.fabric.nccl_tests_share:
  register: shared
  run_once: true
"""

RETURN = r"""
steps:
  description:
    - Without O(src), host to what it has to do; hosts with nothing to do are absent. C(source) is the host to copy
      from, or empty for a host that builds where it has no build; C(pack) is whether others copy from it; C(file) is
      the build's name in RV(directory), which is this module's and no node's choice.
  type: dict
  returned: success
directory:
  description: Without O(src), directory on the control node for builds on their way; it goes when the run ends.
  type: str
  returned: success
sha256:
  description: With O(src), of the file that has arrived.
  type: str
  returned: success
"""
