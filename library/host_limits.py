#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_limits
short_description: Lift the limits on locked memory and open files, and check those that jobs get
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Writes a file for logins (pam_limits) and one for services (systemd's defaults), unless other files do so
    already. Checks the limits of the daemons that start jobs, and the size of C(/dev/shm).
  - If configured, edits Docker's C(daemon.json), writes a drop-in for containerd, and checks whether the kubelet has
    RDMA devices.
  - Restarts nothing.
options:
  nofile:
    description: Minimum limit on open files.
    type: int
    default: 1048576
  shm:
    description: Minimum size of C(/dev/shm), such as V(8G); empty requires none.
    type: str
    default: 8G
  container_runtimes:
    description: Container runtimes that this node has; by default none is checked.
    type: list
    elements: str
    choices: [docker, containerd, kubelet]
    default: []
  kubernetes_rdma_resources:
    description:
      - Resources that an RDMA device plugin has to have registered with the kubelet, such as
        V(rdma/hca_shared_devices_a). Only if O(container_runtimes) has V(kubelet).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.disruption
  - busbar.fabric.node.backup
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Let jobs lock as much memory as they register
  busbar.fabric.host_limits:
  register: host_limits_result

- name: Let containers, too
  busbar.fabric.host_limits:
    container_runtimes: [docker, containerd, kubelet]
    kubernetes_rdma_resources: [rdma/hca_shared_devices_a]
  register: host_limits_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.limits.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
