# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compares all hosts of the play. Documented in library/consistency.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.module_utils import rail_info
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import consistency, host_variables


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS: frozenset[str] = frozenset()
    # One comparison of all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars = variables["hostvars"]
        members = []
        for host in variables["ansible_play_hosts_all"]:
            members.append(member(host, hostvars[host]))
        found = consistency.judge(members)
        hosts = {
            host: {
                **Plan(tuple(one.finding for one in judged)).result(),
                "rails": {one.finding.id: list(one.rails) for one in judged if one.rails},
            }
            for host, judged in found.items()
        }
        result.update(changed=False, hosts=hosts)
        return result


def member(host: str, of_host: Mapping[str, Any]) -> consistency.Member:
    values = host_variables.values(of_host)
    wanted = host_variables.chain(values)
    qos = None
    if wanted.dscp is not None and wanted.trust and wanted.pfc is not None and wanted.priority is not None:
        qos = rail_info.summary(wanted.trust, wanted.pfc, wanted.dscp, wanted.priority)
    return consistency.Member(
        host=host,
        kind=host_variables.kind(of_host),
        info=host_variables.of_host(of_host),
        firmware=values.get("busbar_firmware") or {},
        mtu=values.get("busbar_mtu"),
        qos=qos,
    )


__all__ = ["ActionModule", "member"]
