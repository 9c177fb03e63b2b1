# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan over all hosts of the play which rails test each other. Documented in library/rail_pairs.py."""

from __future__ import annotations

from typing import ClassVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import host_variables, rail_pairs
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"rounds": {"type": "int", "default": 1}}

    def act(self, variables: Values, given: Values) -> Values:
        hostvars = variables["hostvars"]
        # A host that was lost meanwhile is not in ansible_play_hosts, and no partner.
        there = set(variables["ansible_play_hosts"])
        candidates = []
        more = {}
        for host in variables["ansible_play_hosts_all"]:
            of_host = hostvars[host]
            candidates.append(rail_pairs.candidate(host, of_host, host in there, bool(self._task.check_mode)))
            more[host] = rail_pairs.classes(host_variables.values(of_host))
        planned = rail_pairs.plan(candidates, given["rounds"])
        hosts = {
            host: {**Plan(findings).result(), "passes": planned.sessions_of(host), **more[host]}
            for host, findings in planned.findings.items()
        }
        return {"changed": False, "passes": len(planned.passes), "hosts": hosts}
