# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan over all hosts of the play whose rails ping each other. Documented in library/rail_ping_plan.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import rail_info, rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.plugin_utils import host_variables
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Values


class ActionModule(FleetAction):
    def act(self, variables: Values, _given: Values) -> Values:
        hostvars = variables["hostvars"]
        members = []
        for host in variables["ansible_play_hosts"]:
            of_host = hostvars[host]
            info = host_variables.of_host(of_host)
            if info is not None:
                members.append(member(host, of_host, info))
        hosts = {
            host: {
                "pings": [one.to_dict() for one in asked],
                "findings": [finding.to_dict() for finding in findings],
            }
            for host, (asked, findings) in rail_ping.plan(members).items()
        }
        return {"changed": False, "hosts": hosts}


def member(host: str, of_host: Mapping[str, Any], info: rail_info.HostInfo) -> rail_ping.Member:
    values = host_variables.values(of_host)
    peers = (
        rail_ping.Peer(
            host=host,
            rail=rail.number,
            live=netdev_mtu.LIVE.finding_id(rail.pci),
            netdev=rail.netdev,
            address=rail.address or "",
            mtu=rail.mtu,
        )
        for rail in info.rails
        if rail.link_layer == "Ethernet"
    )
    return rail_ping.Member(host, host_variables.kind(of_host), tuple(peers), values.get("busbar_mtu"))
