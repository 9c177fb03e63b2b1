#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ofed
short_description: Keep a node at one release of OFED, for every kernel that it could boot
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Compares repository, packages, hold, the modules of every installed kernel and the ones that are loaded with the
    configured release, and brings the node there with the system's own package manager and DKMS.
  - Reloads no driver below O(max_disruption=driver). While packages are installed, openibd is masked, so that their
    scripts do not restart it.
  - Does nothing on a host that has none of its profile's NICs.
options:
  flavour:
    description: Whose drivers. V(inbox) are the distribution's.
    type: str
    choices: [doca-ofed, mlnx-ofed, inbox]
    default: doca-ofed
  version:
    description: Release of DOCA or MLNX_OFED, such as V(3.2.1). Without it O(manage=false) takes any.
    type: str
    default: ""
  package:
    description: The metapackage that is installed; without it that of the flavour.
    type: str
    default: ""
  manage:
    description: With V(false) everything is judged and nothing is changed.
    type: bool
    default: true
  repository_top:
    description: Top of the vendor's repositories or of a mirror of them.
    type: str
    default: https://linux.mellanox.com/public/repo
  repository:
    description: URL of the very repository, where it is not below O(repository_top).
    type: str
    default: ""
  repository_key:
    description: The repository's public key, armoured; without it nothing is installed.
    type: str
    default: ""
  gpudirect:
    description: The site's path of GPUDirect RDMA. It decides whether NVIDIA's module has to fit.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  third_party:
    description: File systems whose RDMA modules the site builds itself.
    type: list
    elements: str
    choices: [lustre]
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: See whether the node has what the fleet has
  busbar.fabric.ofed:
    profile: "{{ busbar_intent.profile }}"
    version: "3.2.1"
    manage: false
  register: mofed_result
"""

RETURN = r"""
facts:
  description: Release of OFED, or C(inbox), which the control node compares between hosts.
  type: dict
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
