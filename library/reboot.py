#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot
short_description: (internal) Report what uses a node, decide whether it is rebooted, and judge whether it came back
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reboots nothing itself.
  - V(users) lists processes on the GPUs, Slurm jobs on the node and GPUs allocated to pods. With O(devices), it also
    lists what a change of these devices would interrupt, each with its device. These are the default route and
    Ansible's own ssh connection, also over bonds, VLANs and bridges; processes with RDMA resources; NFS, Lustre, NVMe
    over fabrics and iSCSI; kernel modules that use the RDMA drivers.
  - V(decide) and V(judge) run on the control node and collect C(reboot_required) of the roles' results. A host is
    rebooted only where C(busbar_max_disruption) is V(reboot), it is idle, and every host before it came back as it
    should.
options:
  phase:
    description: V(users) and V(decide) before a reboot, V(judge) after it.
    type: str
    choices: [users, decide, judge]
    default: users
  devices:
    description: Of V(users), PCI addresses that a change would disturb.
    type: list
    elements: str
    default: []
  busy:
    description: Of V(decide), what V(users) returned for the host; nothing is rebooted without it.
    type: dict
    required: false
  drain:
    description: Of V(decide), what M(busbar.fabric.slurm_node) returned for a node that has to be drained first; empty
      for others.
    type: dict
    required: false
  done:
    description: Of V(judge), what M(ansible.builtin.reboot) returned.
    type: dict
    required: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: See what the reset of a NIC would interrupt
  busbar.fabric.reboot:
    devices: ["0000:1b:00.0"]
"""

RETURN = r"""
reasons:
  description: Of V(users), one line for each user of the node, empty if it is idle; else what waits for a reboot.
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

SPEC: module.Spec = {
    "phase": {"type": "str", "choices": ["users", "decide", "judge"], "default": "users"},
    "devices": {"type": "list", "elements": "str", "default": []},
    "busy": {"type": "dict", "required": False},
    "drain": {"type": "dict", "required": False},
    "done": {"type": "dict", "required": False},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    peer = guard.connection() if given["devices"] else ()
    found = busy.read(host, given["devices"], peer)
    if found.problems:
        raise module.Failed(str(found.problems[0]), reasons=list(found.reasons))
    return {**Plan().result(), "reasons": list(found.reasons), "unload_first": list(found.unload_first)}


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
