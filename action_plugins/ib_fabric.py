# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which hosts sweep the InfiniBand fabric, and judge it by their sweeps. Documented in library/ib_fabric.py."""

from __future__ import annotations

import time
from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, site_values, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run

display = Display()


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {
        "phase": {"type": "str", "choices": ["plan", "judge"], "required": True},
        "path": {"type": "path", "default": ""},
    }

    def act(self, variables: Values, given: Values) -> Values:
        return (self._plan if given["phase"] == "plan" else _judge)(variables, given["path"])

    def _plan(self, variables: Values, path: str) -> Values:
        try:
            read = variables.get("busbar_intent") or intent_action.of_host(variables, self._templar)
        except ParseError as error:
            return {"failed": True, "msg": str(error)}
        # The same for all hosts. Secrets are not among them.
        names = (*site_values.PARTS["ib_fabric"], "busbar_firmware")
        values = {name: read["values"][name] for name in names if name in read["values"]}
        asked = values["busbar_fabric_hosts"]
        by_hand = "fabric_hosts" not in variables
        last, _problem = fabric_run.last_record(path) if asked else (None, "")
        group, there = variables["groups"].get(fabric_run.GROUP, []), variables["ansible_play_hosts_all"]
        due = fabric_run.due(asked, group, there, last, values["ib_fabric_interval"], time.time())
        for line in due.messages:
            display.display(line)
        if not asked and by_hand:
            display.display("FABRIC: busbar_fabric_hosts is empty, so no host sweeps the fabric: name two nodes in it")
        # A run of the fabric by its name has a verdict in any case.
        by_name = by_hand or suite.FABRIC in (variables.get("ansible_run_tags") or [])
        judge = bool(due.hosts) or due.last or len(due.wrong) == len(set(asked)) or by_name
        result = {"asked": asked, "values": values, "hosts": list(due.hosts)}
        result.update(last=due.last, wrong=dict(due.wrong), judge=bool(asked) and judge)
        return {"changed": False, **result}


def _judge(variables: Values, path: str) -> Values:
    there, hostvars = variables["ansible_play_hosts_all"], variables["hostvars"]
    # As an option it would be a template.
    plan = hostvars.raw_get(variables["inventory_hostname"])["ib_fabric_plan_result"]
    registered = dict(due_roles.registered(hostvars, set(there)))
    answers = {host: fabric_run.read_result(host, hostvars.raw_get(host)) for host in plan["hosts"]}
    run = fabric_run.Run(plan, path, variables["groups"][fabric_run.GROUP], there)
    hosts = run.judged(answers, registered, time.time())
    for line in run.messages:
        display.display(line)
    return {"changed": False, "hosts": hosts, "path": run.folder}
