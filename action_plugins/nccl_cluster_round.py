# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the figures of a round of jobs between nodes. Documented in library/nccl_cluster_round.py."""

from __future__ import annotations

from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import nccl_cluster
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_progress
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values

display = Display()


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"round": {"type": "int", "required": True}}

    def act(self, variables: Values, given: Values) -> Values:
        raw = {host: variables["hostvars"].raw_get(host) for host in variables["ansible_play_hosts_all"]}
        # Read raw: as an option it would template every job.
        rounds = raw[variables["inventory_hostname"]]["nccl_cluster_plan_result"]["rounds"]
        jobs = [*rounds[given["round"]].values()]
        results, failures = nccl_cluster.answers(jobs, raw)
        lines = cluster_progress.lines(given["round"] + 1, len(rounds), jobs, results, failures)
        for line in lines:
            display.display(line)
        return {"changed": False, "lines": lines}
