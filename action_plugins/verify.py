# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verify the network between all hosts of the play. Documented in library/verify.py."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import rail_results, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Site
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.nodes import Nodes
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.verification import Verification

display = Display()


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"path": {"type": "path", "default": ""}}

    def act(self, variables: Values, given: Values) -> Values:
        hostvars, check_mode = variables["hostvars"], bool(self._task.check_mode)
        # Read raw: what is registered for all hosts is large, and must not be walked for each.
        hosts = {
            str(host): {**hostvars.raw_get(host), "ansible_host": hostvars[host].get("ansible_host")}
            for host in variables["ansible_play_hosts_all"]
        }
        with contextlib.closing(Nodes(self, variables)) as nodes:
            verification = Verification(
                Site(hosts, variables["ansible_play_hosts"], nodes, display.display), check_mode
            )
            results = verification.run()
        tested = {host: result for host, result in results.items() if result["sessions"]}
        if tested:
            more = f"-v, or {given['path'] or 'perftest_results_path'}"
            table = screen.cut(rail_results.render(tested), terminal.WIDTH, more, display.verbosity > 0)
            display.display(f"\n{table}\n")
        not_stored = ""
        if tested and given["path"] and not check_mode:
            try:
                display.display(f"results: {rail_results.write(Path(given['path']), tested)}")
            except OSError as error:
                not_stored = f"perftest_results_path: {error_text(error)}"
        return {"changed": False, "hosts": results, "rails": verification.rails, "not_stored": not_stored}
