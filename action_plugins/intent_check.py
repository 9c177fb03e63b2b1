# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fails once for all hosts whose inventory is wrong. Documented in library/intent_check.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS: frozenset[str] = frozenset()
    # One message for all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hosts = variables["ansible_play_hosts_all"]
        read = {host: variables["hostvars"].raw_get(host).get("busbar_intent") or {} for host in hosts}
        wrong = {
            host: found.get("errors") or ["it was not read"] for host, found in read.items() if "values" not in found
        }
        result.update(changed=False)
        if wrong:
            result.update(failed=True, msg=f"the inventory is wrong, and nothing was touched: {intent.told(wrong)}")
        return result


__all__ = ["ActionModule"]
