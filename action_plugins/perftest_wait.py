# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks how far a perftest in the background is. Documented in library/perftest_wait.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import async_status
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, gated


class ActionModule(async_status.ActionModule):
    _supports_check_mode = True
    _supports_async = False

    def _execute_module(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        ask = super()._execute_module
        done = gated.valid(self, "perftest", lambda: ask(*arguments, **named), background=True)
        # Who answers nonsense is not asked again and again while all other hosts wait.
        return {**done, "finished": True} if str(done.get("msg")).startswith(answer.SAID) else done
