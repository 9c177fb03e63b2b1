# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the hosts of tests without a figure. Documented in library/localise_silent.py."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.action import localise_round
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        try:
            results = localise_round.Search(variables).results(lost=False)
        except ParseError as error:
            return {"failed": True, "msg": f"the search for slow nodes: {error}"}
        silent = [one.test for _group, of_group in results for one in of_group if localise_round.is_silent(one)]
        return {"changed": False, "hosts": [host for test in silent for host in test.hosts]}
