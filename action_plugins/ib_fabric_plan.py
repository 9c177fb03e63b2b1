# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which nodes sweep the InfiniBand fabric. Documented in library/ib_fabric_plan.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_record, fabric_run, site_values, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values

display = Display()


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"path": {"type": "path", "default": ""}}

    def act(self, variables: Values, given: Values) -> Values:
        try:
            values = self._values(variables)
        except ParseError as error:
            return {"failed": True, "msg": str(error)}
        asked = values["busbar_fabric_hosts"]
        result: Values = {"changed": False, "asked": asked, "values": values}
        result.update(hosts=[], known=[], last=False, judge=False, wrong={})
        by_hand = "fabric_hosts" not in variables
        if not asked:
            if by_hand:
                # The user waits for a result.
                display.display(
                    "FABRIC: busbar_fabric_hosts is empty, so no host sweeps the fabric: name two nodes in it"
                )
            return result
        record, problem = last_record(given["path"])
        group = variables["groups"][fabric_run.GROUP]
        due = fabric_run.due(
            asked, group, variables["ansible_play_hosts_all"], record, values["ib_fabric_interval"], time.time()
        )
        for line in due.said:
            display.display(line)
        # Requested by tag it always has a verdict: an unswept fabric is not ok.
        by_name = by_hand or suite.FABRIC in (variables.get("ansible_run_tags") or [])
        judge = bool(due.hosts) or due.last or len(due.wrong) == len(set(asked)) or by_name
        result.update(hosts=list(due.hosts), known=list(due.known), last=due.last, judge=judge, wrong=dict(due.wrong))
        result["problem"] = problem
        return result

    def _values(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inventory's values for the fabric, which are the same for all hosts. Raises ParseError."""
        read = variables.get("busbar_intent") or intent_action.of_host(variables, self._templar)
        names = (*site_values.PARTS["ib_fabric"], "busbar_firmware")
        # Secrets are not among them.
        return {name: read["values"][name] for name in names if name in read["values"]}


def last_record(path: str) -> tuple[fabric_record.Record | None, str]:
    """Return the last record below nccl_benchmark_results_path; and why it cannot be read."""
    if not path:
        return None, "nccl_benchmark_results_path is empty: no sweep is stored"
    try:
        return fabric_record.read(fabric_record.folder(path)), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ParseError) as error:
        return None, f"the last record cannot be read: {error_text(error)}"
