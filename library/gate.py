#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
short_description: Install the gate that keeps a faulty node out of Slurm's jobs, and report its last verdict
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Writes the gate's program, its intent and the scripts by which Slurm starts it; runs it once after a change.
  - Edits no file of Slurm. Reads the running configuration, and reports the lines that slurm.conf lacks.
  - The action plugin of this name builds program and intent.
  - With O(report) nothing is installed and nothing changed in Slurm, and no file is written but the gate's own state.
options:
  stages:
    description: When Slurm runs it. An empty list removes the files; without it they are not judged.
    type: list
    elements: str
    choices: [health, prolog, epilog]
  fail:
    description: Whether a node that the gate cannot judge stays in service (V(open)) or not (V(closed)).
    type: str
    choices: [open, closed]
    default: open
  budget:
    description: Seconds for a check; a Prolog and an Epilog have half of them.
    type: float
    default: 10
  max_share:
    description: Largest share of a partition's nodes that the gate may take out of service at a time.
    type: float
    default: 0.1
  ignore:
    description: Ids of checks that keep no node out.
    type: list
    elements: str
    default: []
  scontrol:
    description: The tool's name, or its path.
    type: str
    default: scontrol
  nhc:
    description: Whether C(/usr/sbin/nhc) runs the gate's health check; another program's file of that name stays.
    type: bool
    default: false
  sums:
    description: Path to checksum of its file; given by the action plugin.
    type: dict
    default: {}
  texts:
    description: Path to text of the same files, packed; given by the action plugin.
    type: str
    default: ""
  report:
    description:
      - Only return RV(state), V(stored) by the gate's last check or after a V(new) check of the node as the stage
        C(command). Check mode makes no new one.
    type: str
    choices: [stored, new]
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Check the node every few minutes, and before each job
  busbar.fabric.gate:
    stages: [health, prolog]
  register: gate_result

- name: Check the node now
  busbar.fabric.gate:
    report: new
"""

RETURN = r"""
# What every module returns: see the notes.
state:
  description: State of the gate, as in C(docs/gate.md); null if it has not run yet.
  type: dict
  returned: with O(report)
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.gate.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
