#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: busy_info
short_description: Say who uses a node's GPUs
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Processes on the GPUs, Slurm jobs on the node, GPUs that the kubelet has given to pods. Changes nothing.
attributes:
  check_mode:
    support: full
    description: Reads the same.
  diff_mode:
    support: none
    description: There is nothing to show.
options:
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/usr) and C(/var).
    type: path
    default: /
"""

EXAMPLES = r"""
- name: See who uses the node
  busbar.fabric.busy_info:
  register: busy
"""

RETURN = r"""
reasons:
  description: A line for each who uses the node; empty where nobody does.
  type: list
  elements: str
  returned: success
findings:
  description: Empty; who uses the node is for the caller to judge.
  type: list
  elements: dict
  returned: success
passed:
  description: Empty.
  type: list
  elements: str
  returned: success
commands:
  description: Empty; nothing is run but to read.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import busy
from ansible_collections.busbar.fabric.plugins.module_utils.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.plan import Plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["hardware_root"], module.params["system_root"])
    try:
        host.require_roots()
    except ReadError as error:
        module.fail_json(msg=str(error))
    found = busy.read(host)
    if found.problems:
        module.fail_json(msg=str(found.problems[0]), reasons=list(found.reasons))
    module.exit_json(**Plan().result(), reasons=list(found.reasons))


if __name__ == "__main__":
    main()
