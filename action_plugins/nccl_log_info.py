# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NCCL's logs on a node; diagnose and print those of all hosts. Documented in library/nccl_log_info.py."""

from __future__ import annotations

from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import PhasedAction, Spec, Values

display = Display()
REGISTERED = "nccl_log_result"


class ActionModule(PhasedAction):
    PHASES: ClassVar[dict[str, Spec]] = {"report": {}}

    def act(self, variables: Values, _given: Values) -> Values:
        hostvars = variables["hostvars"]
        # Including hosts that were lost meanwhile.
        hosts = variables["ansible_play_hosts_all"]
        result, missing = diagnose.join({host: hostvars.raw_get(host).get(REGISTERED) for host in hosts})
        show = diagnose.render if display.verbosity else diagnose.screenful
        display.display("\n" + show(result, terminal.WIDTH, missing))
        findings = diagnose.ordered(result, missing)
        bad = sum(not finding.ok for finding in findings)
        failure = {"failed": True, "msg": f"{bad} findings; see the text above"} if bad else {}
        whole = {**report(result), "findings": [finding.to_dict() for finding in findings]}
        return {"changed": False, "report": whole, **failure}
