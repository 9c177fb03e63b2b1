# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fail once for all hosts whose inventory is wrong. Documented in library/intent_check.py."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        hosts = variables["ansible_play_hosts_all"]
        read = {host: variables["hostvars"].raw_get(host).get("busbar_intent") or {} for host in hosts}
        wrong = {
            host: found.get("errors") or ["it was not read"] for host, found in read.items() if "values" not in found
        }
        if not wrong:
            return {"changed": False}
        msg = f"the inventory is wrong, nothing was changed: {intent.summarise_errors(wrong)}"
        return {"changed": False, "failed": True, "msg": msg}
