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
  - Never reboots. What is not active yet is in C(reboot_required).
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
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.module import SPEC, work


def main() -> None:
    module.main(SPEC, work)


if __name__ == "__main__":
    main()
