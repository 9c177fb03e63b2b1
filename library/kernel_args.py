#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_args
short_description: Manage single arguments of the kernel's command line
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Adds and removes arguments for all kernels at the next boot, and reports which of them this boot has. All other
    arguments stay as they are, byte for byte.
  - On Debian and Ubuntu the arguments are stored in C(/etc/default/grub.d/99-busbar.cfg), which is read after the other
    files, on EL in the boot entries by C(grubby), with systemd-boot in C(/etc/kernel/cmdline). A node whose boot loader
    stores none is reported as C(not_owned).
  - Never reboots. What is not active yet is in RV(reboot_required).
options:
  args:
    description: The wanted arguments.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The argument's name, such as C(iommu).
        type: str
        required: true
      value:
        description: Its value; without one it is a flag, or with O(args[].state=absent) any value.
        type: str
      state:
        description: Whether it has to be there.
        type: str
        choices: [present, absent]
        default: present
      exclusive:
        description:
          - The last token of this name must be this one, else all others of the name are removed. Not for names that
            are repeated, like C(console).
        type: bool
        default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.disruption
  - busbar.fabric.node.backup
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Huge pages at boot, whatever size was set before
  busbar.fabric.kernel_args:
    args:
      - {name: hugepagesz, value: 1G, exclusive: true}
      - {name: hugepages, value: "64", exclusive: true}
      - {name: nomodeset, state: absent}
  register: kernel_args_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md); two for each argument, persisted and live.
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
repaired:
  description: Ids of the findings that this run repaired, or would repair in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Why a reboot is needed; empty if none is.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair needs more than O(max_disruption) allows.
  type: list
  elements: str
  returned: success
backup_files:
  description: Backup copies that were made.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, List, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import line as kernel_line
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import plan as kernel_args


def wanted(items: List[Dict[str, Any]]) -> List[kernel_line.Arg]:
    """Raises ParseError."""
    return [
        kernel_line.Arg(item["name"], item["value"], item["state"] == "present", item["exclusive"]) for item in items
    ]


SPEC = {
    "args": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "value": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "exclusive": {"type": "bool", "default": False},
        },
    },
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    args = wanted(given["args"])

    def look() -> Plan:
        found = kernel_args.plan(kernel_args.read(host), args, kernel_args.ARGS)
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    return apply.converge(host, check_mode, look)


if __name__ == "__main__":
    main()
