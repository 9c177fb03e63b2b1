#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lock
short_description: (internal) Keep other runs of the suite off a node
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Takes or gives back C(/run/busbar/lock.json) on the node, which names the run that
    works on it. A reboot frees it.
  - The action plugin of this name identifies the run, and takes the lock over if the run that has it was
    started on the same control node and its process is gone.
  - In check mode nothing is taken; C(notes) names the run that has the node.
attributes:
  check_mode:
    support: full
    description: Reads the lock and takes nothing.
options:
  state:
    description: V(held) takes it, V(released) gives it back if this run has it.
    type: str
    choices: [held, released]
    required: true
  run:
    description: The run; the action plugin gives it.
    type: dict
    default: {}
  minutes:
    description: Age from which on a lock does not count; the action plugin gives C(busbar_lock_minutes).
    type: int
    default: 240
  over:
    description: Id of a run whose lock does not count; the action plugin gives C(busbar_lock_break).
    type: str
    default: ""
  dead:
    description: Id of a run that has ended without giving it back; the action plugin gives it.
    type: str
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Keep other runs off the node
  busbar.fabric.node_lock:
    state: held
  register: node_lock_result
"""

RETURN = r"""
held:
  description: Whether the node is this run's.
  type: bool
  returned: success
holder:
  description: The run that has it instead.
  type: dict
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module, node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

SPEC: module.Spec = {
    "state": {"type": "str", "choices": ["held", "released"], "required": True},
    "run": {"type": "dict", "default": {}},
    "minutes": {"type": "int", "default": 240},
    "over": {"type": "str", "default": ""},
    "dead": {"type": "str", "default": ""},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    run = node_lock.from_dict(given["run"])
    if given["state"] == "released":
        if not check_mode:
            node_lock.release(host, run)
        return {**Plan().result(), "held": False, "holder": None}
    answer = node_lock.acquire(host, run, given["minutes"], given["over"], given["dead"], check_mode)
    notes = []
    if answer.holder is not None and answer.held:
        notes.append("took the node over from %s: %s" % (answer.holder, answer.why))
    if check_mode:
        # It writes nothing, and blocks no other run; but it may see a half-finished change.
        notes = [] if answer.holder is None else ["%s works on the node" % answer.holder]
        answer = node_lock.LockResult(True)
    holder = answer.holder.run if answer.holder is not None and not answer.held else None
    result = Plan((node_lock.judge(answer),), notes=tuple(notes)).result()
    return {**result, "held": answer.held, "holder": holder.to_dict() if holder else None}


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
