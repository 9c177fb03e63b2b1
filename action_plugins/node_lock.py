# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name this run, and whether the run that holds the node is dead. Documented in library/node_lock.py."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.plugin_utils import validated_action
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset({"state"})

    def run(self, tmp: str | None = None, task_vars: Plain | None = None) -> Plain:
        result: Plain = super().run(tmp, task_vars)
        variables = task_vars or {}
        values = self._templar.template(variables["busbar_intent"])["values"]
        here = node_lock.this_run()
        limits = {"minutes": values["busbar_lock_minutes"], "over": values["busbar_lock_break"]}
        arguments = {"state": self._task.args.get("state"), "run": here.to_dict(), **limits}
        arguments["system_root"] = values["busbar_system_root"]
        answer = validated_action.run_module(self, "node_lock", arguments, variables)
        holder = answer.get("holder")
        if holder and node_lock.has_ended(node_lock.from_dict(holder), here):
            answer = validated_action.run_module(self, "node_lock", {**arguments, "dead": holder["id"]}, variables)
        # The next play of the run takes it anew, and has to tell what the one before it had to say.
        before = (variables.get("node_lock_result") or {}).get("notes") or []
        result.update(answer)
        result["notes"] = list(dict.fromkeys([*before, *(answer.get("notes") or [])]))
        return result
