# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prints what the jobs on all hosts of the play wait for. Documented in library/hang_report.py."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.plugin_utils import hang, results_folder

display = Display()
REGISTERED = "nccl_ras_result"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset({"path"})
    # One report for all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, arguments = self.validate_argument_spec(argument_spec={"path": {"type": "path", "default": ""}})
        hostvars = variables["hostvars"]
        # Also those that are lost meanwhile.
        hosts = variables["ansible_play_hosts_all"]
        raw = {host: hostvars.raw_get(host) for host in hosts}
        registered = {host: of_host.get(REGISTERED) for host, of_host in raw.items()}
        simulated = any(of_host.get("busbar_hardware_root", "/") != "/" for of_host in raw.values())
        sources = [str(source) for source in variables.get("ansible_inventory_sources") or []]
        report = hang.build(registered, sources, simulated)
        display.display("\n" + hang.text(report))
        if arguments["path"]:
            try:
                # For its owner only: it names users, processes and hosts.
                results_folder.replace_file(arguments["path"], [json.dumps(report)])
            except OSError as error:
                result.update(failed=True, msg=f"hang_report_path {arguments['path']}: {error.strerror}")
                return result
        result.update(changed=False, verdict=report["verdict"])
        if report["exit_code"]:
            result.update(failed=True, msg=hang.headline(report))
        return result


__all__ = ["ActionModule"]
