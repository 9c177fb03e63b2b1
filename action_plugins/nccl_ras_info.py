# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Query the RAS of a node's jobs; print what those of all hosts wait for. Documented in library/nccl_ras_info.py."""

from __future__ import annotations

import json
from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import hang, results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import PhasedAction, Spec, Values

display = Display()
REGISTERED = "nccl_ras_result"


class ActionModule(PhasedAction):
    PHASES: ClassVar[dict[str, Spec]] = {"report": {"path": {"type": "path", "default": ""}}}

    def act(self, variables: Values, given: Values) -> Values:
        hostvars = variables["hostvars"]
        # Including hosts that were lost meanwhile.
        hosts = variables["ansible_play_hosts_all"]
        raw = {host: hostvars.raw_get(host) for host in hosts}
        registered = {host: of_host.get(REGISTERED) for host, of_host in raw.items()}
        simulated = any(of_host.get("busbar_hardware_root", "/") != "/" for of_host in raw.values())
        sources = [str(source) for source in variables.get("ansible_inventory_sources") or []]
        report = hang.build(registered, sources, simulated)
        display.display("\n" + hang.text(report, verbose=display.verbosity > 0))
        if given["path"]:
            try:
                # For its owner only: it names users, processes and hosts.
                results_folder.replace_file(given["path"], [json.dumps(report)])
            except OSError as error:
                return {"failed": True, "msg": f"hang_report_path: {error_text(error)}"}
        failure = {"failed": True, "msg": hang.headline(report)} if report["exit_code"] else {}
        return {"changed": False, "verdict": report["verdict"], **failure}
