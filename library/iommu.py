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
  - Sets C(intel_iommu=on iommu=pt) on Intel, C(iommu=pt) on AMD and C(iommu.passthrough=1) on Arm for all kernels at
    the next boot, and reads the mode in effect from the IOMMU groups of GPUs and NICs.
  - On Debian and Ubuntu the arguments are stored in C(/etc/default/grub.d/99-busbar.cfg), which is read after the other
    files, on EL in the boot entries by C(grubby). All other arguments stay as they are, byte for byte. A node whose
    boot loader stores none is reported as C(not_owned).
  - In a virtual machine it judges the vIOMMU that the guest sees; a guest without one has nothing to set.
  - Also sets the kernel arguments in the profile's C(kernel_args), in a virtual machine, too.
  - Never reboots. What is not active yet is in C(reboot_required).
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
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.iommu import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
