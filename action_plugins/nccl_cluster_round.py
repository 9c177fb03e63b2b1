# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Says what a round of jobs between nodes has measured. Documented in library/nccl_cluster_round.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import nccl_cluster
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_progress

display = Display()


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset({"round"})
    # One round of all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, arguments = self.validate_argument_spec(argument_spec={"round": {"type": "int", "required": True}})
        raw = {host: variables["hostvars"].raw_get(host) for host in variables["ansible_play_hosts_all"]}
        # As it is: to hand it over as an option would be to template every job for it.
        rounds = raw[variables["inventory_hostname"]]["nccl_cluster_plan_result"]["rounds"]
        jobs = [*rounds[arguments["round"]].values()]
        results, failures = nccl_cluster.answers(jobs, raw)
        lines = cluster_progress.lines(arguments["round"] + 1, len(rounds), jobs, results, failures)
        for line in lines:
            display.display(line)
        result.update(changed=False, lines=lines)
        return result
