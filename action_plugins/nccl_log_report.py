# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Diagnose and print NCCL's logs of all hosts of the play. Documented in library/nccl_log_report.py."""

from __future__ import annotations

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values

display = Display()
REGISTERED = "nccl_log_result"


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        hostvars = variables["hostvars"]
        # Including hosts that were lost meanwhile.
        hosts = variables["ansible_play_hosts_all"]
        log, jobs, findings = diagnose.join({host: hostvars.raw_get(host).get(REGISTERED) for host in hosts})
        show = diagnose.render if display.verbosity else diagnose.screenful
        display.display("\n" + show(log, jobs, findings, terminal.WIDTH))
        bad = sum(not finding.ok for finding in findings)
        failure = {"failed": True, "msg": f"{bad} findings; see the text above"} if bad else {}
        return {"changed": False, "report": report(log, jobs, findings), **failure}
