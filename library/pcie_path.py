#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie_path
short_description: Stop ACS from redirecting traffic between GPUs and NICs, and set the NICs' read requests
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Clears SrcValid and the redirecting bits of ACS on the bridges between GPUs, and between GPUs and compute NICs, that
    share a PCIe switch; sets the maximum read request of the compute NICs. All other bits and devices stay as they are.
  - A systemd unit sets both again at every boot.
  - In a virtual machine nothing is checked or written. ACS is left alone, too, where a GPU is handed to
    virtual machines.
options:
  clear_acs:
    description: Clear SrcValid, ReqRedir, CmpltRedir and UpstreamFwd; V(false) requires nothing.
    type: bool
    default: true
  acs_owner:
    description:
      - What sets ACS at every boot, V(unit) or V(kernel), by C(pci=config_acs=) (Linux 6.11 and later).
      - Beside Data Direct functions of ConnectX-8 only the kernel sets it.
    type: str
    choices: [unit, kernel]
    default: unit
  max_read_request:
    description: Maximum read request of each compute NIC in bytes; V(0) requires nothing, V(-1) that of the profile.
    type: int
    choices: [-1, 0, 128, 256, 512, 1024, 2048, 4096]
    default: -1
  persist:
    description: Set both at every boot; with V(false) the files for that are removed.
    type: bool
    default: true
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Let GPUs and NICs exchange data below their own switch
  busbar.fabric.pcie_path:
    profile: "{{ busbar_intent.profile }}"
    fabric: infiniband
  register: pcie_path_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
