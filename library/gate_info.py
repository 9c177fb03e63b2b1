#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: gate_info
short_description: Report the gate's last verdict on a node, or a new one
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the state that the gate stores on the node; with O(run) the gate checks the node first.
  - Changes nothing in Slurm, and no file but the gate's own state.
attributes:
  check_mode:
    support: full
    description: Runs nothing.
options:
  run:
    description: Check the node first, as the stage C(command).
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Check the node now
  busbar.fabric.gate_info:
    run: true
"""

RETURN = r"""
state:
  description: State of the gate, as in C(docs/gate.md); null if it has not run yet.
  type: dict
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.gate.info_module import SPEC, work


def main() -> None:
    module.main(SPEC, work)


if __name__ == "__main__":
    main()
