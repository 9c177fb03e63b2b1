#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: busy_info
short_description: Report what uses a node, or depends on a device of it
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Lists processes on the GPUs, Slurm jobs on the node and GPUs allocated to pods. Changes nothing.
  - With O(devices), also lists what a change of these devices would interrupt, each with its device. These are the
    default route and Ansible's own ssh connection, also over bonds, VLANs and bridges; processes with RDMA resources;
    NFS, Lustre, NVMe over fabrics and iSCSI; kernel modules that use the RDMA drivers.
options:
  devices:
    description: PCI addresses that a change would disturb.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: See what uses the node
  busbar.fabric.busy_info:
  register: busy

- name: See what the reset of a NIC would interrupt
  busbar.fabric.busy_info:
    devices: ["0000:1b:00.0"]
"""

RETURN = r"""
reasons:
  description: One line for each user of the node; empty if it is idle.
  type: list
  elements: str
  returned: success
unload_first:
  description: With O(devices), unused kernel modules that prevent unloading the drivers.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import busy, guard, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

SPEC: module.Spec = {"devices": {"type": "list", "elements": "str", "default": []}, **module.ROOTS}


def main() -> None:
    module.main(SPEC, work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    peer = guard.connection() if given["devices"] else ()
    found = busy.read(host, given["devices"], peer)
    if found.problems:
        raise module.Failed(str(found.problems[0]), reasons=list(found.reasons))
    return {**Plan().result(), "reasons": list(found.reasons), "unload_first": list(found.unload_first)}


if __name__ == "__main__":
    main()
