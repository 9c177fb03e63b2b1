# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the run in the reason of a drain. Documented in library/slurm_node.py."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import validated_action


class ActionModule(ActionBase):
    def run(self, tmp: str | None = None, task_vars: dict[str, object] | None = None) -> dict[str, object]:
        result: dict[str, object] = super().run(tmp, task_vars)
        if self._task.args.get("scheduler") == "none":
            # That needs no connection.
            return {**result, **Plan().result(), "drained": False, "jobs": [], "ours": False, "repaired": []}
        arguments = {**self._task.args, "run": node_lock.this_run().id}
        return {**result, **validated_action.run_module(self, "slurm_node", arguments, task_vars)}
