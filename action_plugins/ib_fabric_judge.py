# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what nodes have swept of the InfiniBand fabric. Documented in library/ib_fabric_judge.py."""

from __future__ import annotations

import time
from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run

display = Display()


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"path": {"type": "path", "default": ""}}

    def act(self, variables: Values, given: Values) -> Values:
        there, hostvars = variables["ansible_play_hosts_all"], variables["hostvars"]
        # As an option it would be a template.
        plan = hostvars.raw_get(variables["inventory_hostname"])["ib_fabric_plan_result"]
        registered = dict(due_roles.registered(hostvars, set(there)))
        answers = {host: fabric_run.read_result(host, hostvars.raw_get(host)) for host in plan["hosts"]}
        run = fabric_run.Run(plan, given["path"], variables["groups"][fabric_run.GROUP], there)
        hosts = run.judged(answers, registered, time.time())
        for line in run.messages:
            display.display(line)
        return {"changed": False, "hosts": hosts, "path": run.folder}
