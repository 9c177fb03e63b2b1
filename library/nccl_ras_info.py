#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_ras_info
short_description: Query the RAS of the NCCL jobs on a node for the rank that the others wait for
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Finds the processes that have libnccl mapped and the port of their RAS, and queries it twice for what each rank has
    launched (NCCL 2.24 and later; in JSON from 2.28.7 on). One node reports on the whole job.
  - If there is no RAS, it reports what the job has to set. Reads C(/proc) and the response of RAS, and changes nothing.
    A port of a process without libnccl is not contacted. Sees the processes of all users as root only.
options:
  interval:
    description: Seconds between the two queries; a job that makes progress launches a collective in that time. With 0
      there is one query.
    type: float
    default: 10
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: See what a job waits for
  busbar.fabric.nccl_ras_info:
    interval: 30
  register: ras
"""

RETURN = r"""
views:
  description:
    - Response of RAS, first and now, for each job. Equal ranks are groups of value, number and names.
  type: list
  elements: dict
  returned: success
processes:
  description: Processes that have libnccl mapped, with their state, user and variables for RAS.
  type: list
  elements: dict
  returned: success
addresses:
  description: IP addresses of the node, by which RAS names it.
  type: list
  elements: str
  returned: success
silent: {type: list, elements: dict, returned: success, description: Ports without a valid response.}
findings:
  description: What this node's view of its jobs shows; see docs/findings.md, C(nccl_hang).
  type: list
  elements: dict
  returned: success
passed: {type: list, elements: str, returned: success, description: Ids of the findings that are ok.}
commands: {type: list, elements: str, returned: success, description: Empty; nothing is changed.}
reboot_required: {type: list, elements: str, returned: success, description: Empty.}
withheld: {type: list, elements: str, returned: success, description: Empty.}
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.ras import read as nccl_ras
from ansible_collections.busbar.fabric.plugins.module_utils.ras import views as ras_views

SPEC = {"interval": {"type": "float", "default": 10}, **module.ROOTS}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    reading = nccl_ras.read(host, min(max(given["interval"], 0.0), 3600.0))
    return dict(
        Plan(tuple(nccl_ras.judge(host, reading))).result(),
        views=[ras_views.to_dict(view) for view in reading.views],
        processes=[nccl_ras.process_dict(process) for process in reading.node.processes],
        addresses=list(reading.addresses),
        silent=[nccl_ras.silence_dict(silence) for silence in reading.silent],
    )


if __name__ == "__main__":
    main()
