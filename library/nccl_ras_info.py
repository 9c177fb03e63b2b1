#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_ras_info
short_description: Query the RAS of NCCL jobs on nodes, and report which rank holds up which
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - V(query) finds the processes that have libnccl mapped and the port of their RAS, and queries it twice for what each
    rank has launched (NCCL 2.28.7 and later). One node reports on the whole job.
  - If there is no RAS, it reports what the job has to set. Reads C(/proc) and the response of RAS, and changes nothing.
    A port of a process without libnccl is not contacted. Sees the processes of all users as root only.
  - V(report) reads the variable C(nccl_ras_result) of every host of the play, which V(query) has returned. It prints
    the findings with their causes first, the commands to run before a process is killed, and a line for each job. Fails
    unless every job launches collectives and every host has responded.
options:
  phase:
    description: V(query) on each node, V(report) once on the control node.
    type: str
    choices: [query, report]
    default: query
  interval:
    description: Seconds between the two queries; a job that makes progress launches a collective in that time. With 0
      there is one query.
    type: float
    default: 10
  path:
    description: Of V(report), file on the control node for the report as JSON; empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: See what a job waits for
  busbar.fabric.nccl_ras_info:
    interval: 30
  register: nccl_ras_result

- name: Report
  busbar.fabric.nccl_ras_info:
    phase: report
    path: /root/hang.json
  run_once: true
"""

RETURN = r"""
# What every module returns: see the notes.
views:
  description: Response of RAS for each job, with its progress since the first; V(report) reads it.
  type: list
  elements: dict
  returned: success
verdict:
  description: C(MOVES), C(HUNG), or C(UNKNOWN).
  type: str
  returned: in phase V(report)
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.ras.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
