# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run one of Ansible's actions on a node, without the orders in its result. Documented in library/on_node.py."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit

# Keys of such a result that a task of the suite, or a user, reads.
KEPT = ("changed", "failed", "msg", "rc", "skipped", "diff", "stat")


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset({"action", "arguments"})

    def run(self, tmp: str | None = None, task_vars: dict[str, object] | None = None) -> dict[str, object]:
        result: dict[str, object] = super().run(tmp, task_vars)
        task = self._task.copy()
        task.action, task.args = self._task.args["action"], dict(self._task.args["arguments"])
        load = self._shared_loader_obj.action_loader
        names = ("connection", "play_context", "loader", "templar", "shared_loader_obj")
        of_worker = {name: getattr(self, f"_{name}") for name in names}
        plugin = task.action if load.has_plugin(task.action) else "ansible.legacy.normal"
        action = load.get(plugin, task=task, **of_worker)
        try:
            with output_limit.limit_output():
                done = action.run(task_vars=task_vars)
        except output_limit.TooMuchError as error:
            done = {"failed": True, "msg": str(error)}
        finally:
            action.cleanup()
        result.update({key: done[key] for key in KEPT if key in done})
        return result
