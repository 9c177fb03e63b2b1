# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compares all hosts of the play. Documented in library/consistency.py."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.compare import compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.stage import Fleet


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        fleet = Fleet()
        for host in variables["ansible_play_hosts_all"]:
            fleet.add(host, variables["hostvars"][host], {})
        found = compare([fleet.member(host, {}, True) for host in fleet.declared])
        hosts = {
            host: {
                **Plan(tuple(one.finding for one in judged)).result(),
                "rails": {one.finding.id: list(one.rails) for one in judged if one.rails},
            }
            for host, judged in found.judged.items()
        }
        for host in fleet.declared:
            hosts.setdefault(host, {**Plan().result(), "rails": {}})
        return {"changed": False, "hosts": hosts}
