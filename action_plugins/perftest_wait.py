# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Poll a module in the background, whose name comes before ``_wait``. Documented in library/NAME_wait.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import async_status
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema, validated_action


class ActionModule(async_status.ActionModule):
    _supports_check_mode = True
    _supports_async = False

    def _execute_module(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        ask = super()._execute_module
        module = self._task.action.rpartition(".")[2].removesuffix("_wait")
        done = validated_action.validate(self, module, lambda: ask(*arguments, **named), background=True)
        # A node with an invalid result is not polled again and again while all other hosts wait.
        return {**done, "finished": True} if str(done.get("msg")).startswith(result_schema.SAID) else done
