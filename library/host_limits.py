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
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import container_limits, container_runtimes, host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size

SPEC = {
    "nofile": {"type": "int", "default": 1048576},
    "shm": {"type": "str", "default": "8G"},
    "container_runtimes": {
        "type": "list",
        "elements": "str",
        "choices": ["docker", "containerd", "kubelet"],
        "default": [],
    },
    "kubernetes_rdma_resources": {"type": "list", "elements": "str", "default": []},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    if not 1024 <= given["nofile"] <= 1 << 30:
        raise ParseError("nofile is %d, expected 1024 to %d" % (given["nofile"], 1 << 30))
    limits = host_limits.Want(given["nofile"], parse_size(given["shm"]) if given["shm"] else 0)
    runtimes, resources = tuple(given["container_runtimes"]), tuple(given["kubernetes_rdma_resources"])
    want = container_limits.Want(runtimes, resources, limits)

    def look() -> Plan:
        found = merge(
            host_limits.plan(host_limits.read(host), want.limits),
            container_limits.plan(container_runtimes.read(host, want.runtimes), want),
        )
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    return apply.converge(host, check_mode, look)


if __name__ == "__main__":
    main()
