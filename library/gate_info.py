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
findings:
  description: Empty; those of the gate are in RV(state).
  type: list
  elements: dict
  returned: success
passed:
  description: Empty.
  type: list
  elements: str
  returned: success
commands:
  description: What was run.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.gate import plan as gate

SPEC = {"run": {"type": "bool", "default": False}, **module.ROOTS}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, object], check_mode: bool) -> Dict[str, Any]:
    if host.mode_system(gate.PROGRAM) is None:
        raise ReadError(gate.PROGRAM, "is not there: set gate_stages, then run site.yml --tags gate for this host")
    commands = [gate.run(host)] if given["run"] and not check_mode else []
    return dict(Plan().result(), commands=commands, state=gate.state(host))


if __name__ == "__main__":
    main()
