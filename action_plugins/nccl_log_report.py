# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prints what NCCL's logs on all hosts of the play say. Documented in library/nccl_log_report.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose, terminal

display = Display()
REGISTERED = "nccl_log_result"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS: frozenset[str] = frozenset()
    # One report for all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars = variables["hostvars"]
        # Also those that are lost meanwhile.
        hosts = variables["ansible_play_hosts_all"]
        log, jobs, findings = diagnose.join({host: hostvars.raw_get(host).get(REGISTERED) for host in hosts})
        display.display("\n" + diagnose.render(log, jobs, findings, terminal.WIDTH))
        result.update(changed=False, report=report(log, jobs, findings))
        bad = sum(not finding.ok for finding in findings)
        if bad:
            result.update(failed=True, msg=f"{bad} findings; the text above says what to do")
        return result


__all__ = ["ActionModule"]
