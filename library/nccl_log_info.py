#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_log_info
short_description: Read NCCL_DEBUG output on nodes, and report what happened to a job
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - V(read) reads files with NCCL_DEBUG output, and returns the lines about networks, devices, connections, ranks and
    failures, each connection once.
  - Only regular files, without a symbolic link in any part of the path. Nothing in them is loaded or executed.
  - V(report) reads the variable C(nccl_log_result) of every host of the play, which V(read) has returned, judges all
    logs together and prints what C(busbar diagnose) prints. Fails if there is a finding.
options:
  phase:
    description: V(read) on each node, V(report) once on the control node.
    type: str
    choices: [read, report]
    default: read
  logs: {type: list, elements: str, default: [], description: 'Of V(read), absolute paths of the files, 1 to 64.'}
  most: {type: int, default: 1024, description: 'MiB of each file that are read, from its beginning.'}
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Get what NCCL has written
  busbar.fabric.nccl_log_info:
    logs: [/tmp/nccl.node01.4711]
  register: nccl_log_result

- name: Report
  busbar.fabric.nccl_log_info:
    phase: report
  run_once: true
"""

RETURN = r"""
# What every module returns: see the notes.
logs:
  description: Of each file its path, size, how much was read, the lines that were returned, and how many were left out.
  type: list
  elements: dict
  returned: success
report:
  description: Jobs, the proof of their transport, and findings; docs/diagnose.md.
  type: dict
  returned: in phase V(report)
"""

from dataclasses import asdict
from functools import partial
from typing import Any, Dict, List, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, attempt
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import excerpt
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.checks import READABLE
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.log_reader import interest

# Bytes of all answers; the gate takes four times as much, escaped.
ROOM = 1 << 20
SPEC: module.Spec = {
    "phase": {"type": "str", "choices": ["read", "report"], "default": "read"},
    "logs": {"type": "list", "elements": "str", "default": []},
    "most": {"type": "int", "default": 1024},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    if not 0 < len(given["logs"]) <= 64 or not 0 < given["most"] <= 1 << 20:
        raise ParseError("logs has to have 1 to 64 paths, and most has to be 1 to %d" % (1 << 20))
    problems: List[Problem] = []
    found = []
    room = ROOM
    for path in given["logs"]:
        one = attempt(partial(excerpt.read, host, path, given["most"] << 20, room, interest), path, problems)
        if one is not None:
            found.append(asdict(one))
            room -= len(one.text.encode())
    findings = tuple(READABLE.unreadable(problem) for problem in problems)
    return dict(Plan(findings).result(), logs=found)


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
