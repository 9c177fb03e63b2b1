# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan over all hosts of the play which rails test each other. Documented in library/rail_pairs.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as nccl_conf
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, host_variables, rail_pairs
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values

LARGEST = 4096


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"rounds": {"type": "int", "default": 1}}

    def act(self, variables: Values, given: Values) -> Values:
        hostvars = variables["hostvars"]
        # A host that was lost meanwhile is not in ansible_play_hosts, and no partner.
        there = set(variables["ansible_play_hosts"])
        candidates = []
        more = {}
        for host in variables["ansible_play_hosts_all"]:
            of_host = hostvars[host]
            candidates.append(candidate(host, of_host, host in there, bool(self._task.check_mode)))
            more[host] = classes(of_host)
        planned = rail_pairs.plan(candidates, given["rounds"])
        hosts = {
            host: {**Plan(findings).result(), "passes": planned.sessions_of(host), **more[host]}
            for host, findings in planned.findings.items()
        }
        return {"changed": False, "passes": len(planned.passes), "hosts": hosts}


def candidate(host: str, of_host: Mapping[str, Any], there: bool, check_mode: bool) -> rail_pairs.Candidate:
    values = host_variables.values(of_host)
    read = answer.given(of_host.get("rail_info_result"), "rail_info")
    ping = answer.given(of_host.get("rail_ping_result"), "rail_ping")
    # A host that was lost meanwhile starts nothing more.
    read = ping if ping.get("unreachable") or ping.get("failed") else read
    mtu = values.get("busbar_mtu")
    absent = "unreachable" if read.get("unreachable") else str(read.get("msg") or "nothing was read of its rails")
    return rail_pairs.Candidate(
        host=host,
        kind=host_variables.kind(of_host),
        info=host_variables.of_host({"rail_info_result": read}) if there else None,
        name=str(of_host.get("ansible_host") or host),
        # Stored results of a node in use are valid.
        busy=() if check_mode else tuple(read.get("busy") or ()),
        mtu=netdev_mtu.rdma_mtu(mtu) if mtu else LARGEST,
        absent=absent,
    )


def classes(of_host: Mapping[str, Any]) -> dict[str, int]:
    """Return the traffic class of a host's tests, and its DSCP and priority; -1 for none."""
    values = host_variables.values(of_host)
    wanted = host_variables.chain(values)
    return {
        "traffic_class": -1 if wanted.dscp is None else nccl_conf.traffic_class(wanted.dscp),
        "priority": -1 if wanted.priority is None or not wanted.pfc else wanted.priority,
        "dscp": -1 if wanted.dscp is None else wanted.dscp,
    }
