#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: iommu
short_description: Bring the IOMMU into passthrough mode and prove that it is
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Sets C(intel_iommu=on iommu=pt) on Intel, C(iommu=pt) on AMD and C(iommu.passthrough=1) on Arm, like
    M(busbar.fabric.kernel_args), and reads the mode in effect from the IOMMU groups of GPUs and NICs.
  - In a virtual machine it judges the vIOMMU that the guest sees; a guest without one has nothing to set.
  - Also sets the kernel arguments in the profile's C(kernel_args), in a virtual machine, too.
  - Never reboots. What is not active yet is in RV(reboot_required).
options:
  passthrough:
    description: Require passthrough; without it nothing of the IOMMU is checked or written.
    type: bool
    default: true
  profile:
    description: Platform profile as in C(profiles/NAME.yml), for its C(kernel_args).
    type: dict
    required: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.backup
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Let GPUs and NICs reach each other without translation
  busbar.fabric.iommu:
  register: iommu_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md).
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
notes:
  description: Sentences for the verdict, such as that this is a virtual machine.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import iommu
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import plan as kernel_args
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile

SPEC = {
    "passthrough": {"type": "bool", "default": True},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    state = iommu.read(host)
    wanted = given["profile"]
    asked = profile.parse(wanted, given["profile_name"]).kernel_args if wanted is not None else ()

    def look() -> Plan:
        boot = kernel_args.read(host) if asked or (given["passthrough"] and state.decides) else None
        found = iommu.plan(state, boot, given["passthrough"], asked)
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    notes = [] if state.decides else ["the IOMMU is the hypervisor's (%s): there is nothing to set" % state.hypervisor]
    done = apply.converge(host, check_mode, look)
    return dict(done, notes=[*done["notes"], *notes])


if __name__ == "__main__":
    main()
