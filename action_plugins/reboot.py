# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide whether a host is rebooted now, and judge the outcome. Documented in library/reboot.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import from_dict
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    codec,
    due_roles,
    reboot,
    result_schema,
    suite,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import PhasedAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain


class ActionModule(PhasedAction):
    PHASES: ClassVar[dict[str, Spec]] = {
        "decide": {"busy": {"type": "dict"}, "drain": {"type": "dict"}},
        "judge": {"done": {"type": "dict", "required": True}},
    }

    def act(self, variables: Values, given: Values) -> Values:
        results = _results(variables, suite.REBOOTS)
        waiting = reboot.reasons(results)
        if given["phase"] == "judge":
            before = self._templar.template(variables["reboot_result"])
            # A role that could not be audited again does not prove that no reboot is pending.
            unasked = [role for role, found in zip(suite.REBOOTS, results, strict=True) if "passed" not in found]
            left = waiting or tuple(f"role {role} could not be checked again" for role in unasked)
            return _result(reboot.judge(before, given["done"], left), variables)
        values = self._templar.template(variables["busbar_intent"])["values"]
        hostvars, own = variables["hostvars"], variables["inventory_hostname"]
        earlier = {
            host: hostvars[host]["reboot_result"]
            for host in variables["ansible_play_hosts_all"]
            if host != own and "reboot_result" in hostvars[host]
        }
        found = given["busy"] or {}
        # A result without the reasons does not show that nobody uses the host.
        busy = [] if not found else None if found.get("failed") or found.get("unreachable") else found.get("reasons")
        busy = busy if codec.is_valid(result_schema.lines, busy) else None
        drain = result_schema.given(given["drain"], "slurm_node") or None
        decision = reboot.decide(waiting, values["busbar_max_disruption"], earlier, busy, drain)
        return _result(decision, variables)


def _result(decision: reboot.Decision, variables: Values) -> Values:
    again = list(suite.AFTER_REBOOT)
    roles = _results(variables, again)
    for role in roles:
        if "findings" in role:
            found = accepted.standing(map(from_dict, role["findings"]), variables)
            role["findings"] = [finding.to_dict() for finding in found]
    return {**decision.to_dict(), "again": again, "give_back": reboot.give_back(decision, roles)}


def _results(variables: Plain, roles: Sequence[str]) -> list[Plain]:
    """Return the roles' registered results, or those of the audit for roles with nothing to do."""
    found = due_roles.results(variables, roles, "", nightly=False)
    return [result_schema.given(found.get(role)) for role in roles]
