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
  - Adds and removes arguments for all kernels at the next boot, and says which of them this boot has. All other
    arguments stay as they are, byte for byte.
  - On Debian and Ubuntu the arguments are kept in C(/etc/default/grub.d/99-busbar.cfg), which puts right what
    other files of GRUB's settings come to, on EL in the boot entries by
    C(grubby), with systemd-boot in C(/etc/kernel/cmdline). A node whose boot loader keeps none is told as C(not_owned).
  - Never reboots. What is not active yet is in RV(reboot_required).
attributes:
  check_mode:
    support: full
    description: Shows files and commands and touches nothing.
  diff_mode:
    support: full
    description: Shows the files; what the boot loader's own tools write is not part of it.
options:
  args:
    description: What is asked for.
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
        description: No other value of this name may be there; not for names that are repeated, like C(console).
        type: bool
        default: false
  backup:
    description: Keep a dated copy beside every file that is replaced.
    type: bool
    default: true
  max_disruption:
    description: Most that the run may cost; the reboot itself is never done here.
    type: str
    choices: [none, link, driver, reboot]
    default: none
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc), C(/usr) and C(/boot).
    type: path
    default: /
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
  description: Ids of the findings that this run has mended, or would in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Why a reboot is needed; empty where none is.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair costs more than O(max_disruption).
  type: list
  elements: str
  returned: success
backup_files:
  description: Copies that were kept.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import kernel_args
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

WHY = "asked for by the site"


def wanted(items: List[Dict[str, Any]]) -> List[kernel_args.Arg]:
    """Raises ParseError."""
    return [
        kernel_args.Arg(item["name"], item["value"], item["state"] == "present", item["exclusive"]) for item in items
    ]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
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
            "backup": {"type": "bool", "default": True},
            "max_disruption": {"type": "str", "choices": ["none", "link", "driver", "reboot"], "default": "none"},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    host = Host(given["hardware_root"], given["system_root"])

    def plan() -> Plan:
        boot = kernel_args.read(host)
        return kernel_args.plan(boot, args, "kernel_args", WHY).limit(given["max_disruption"])

    try:
        host.require_roots()
        args = wanted(given["args"])
        planned = after = plan()
        backups: List[str] = []
        if planned.changed and not module.check_mode:
            backups = apply.execute(host, planned.kept(given["backup"]))
            # What counts is what is there now, not what was meant to be.
            after = plan()
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**apply.result(planned, after), backup_files=backups)


if __name__ == "__main__":
    main()
