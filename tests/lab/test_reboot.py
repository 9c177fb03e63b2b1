# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The users of the node, which module reboot reports, on a whole simulated node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import netdev, rdma
from ansible_collections.busbar.fabric.plugins.modules import reboot


def ask(root: Path, capsys: pytest.CaptureFixture[str], devices: list[str]) -> dict[str, Any]:
    roots = {"hardware_root": str(root / "hw"), "system_root": str(root / "sys")}
    capsys.readouterr()
    with patch_module_args({**roots, "devices": devices}), pytest.raises(SystemExit):
        reboot.main()
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("node", ["node01", "node02"])
def test_rails_can_be_disturbed_and_the_way_to_the_node_cannot(
    lab: Path, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host = Host(str(lab / node / "hw"), str(lab / node / "sys"))
    devices, _ = rdma.read(host)
    netdevs, _ = netdev.read(host)
    routes, _ = netdev.default_routes(host)
    way = {routes[0].netdev, *next(n.lower for n in netdevs if n.name == routes[0].netdev)}
    management = {n.pci for n in netdevs if n.name in way or n.master in way} - {None}
    rails = sorted(device.pci for device in devices if device.pci is not None and device.pci not in management)
    free = ask(lab / node, capsys, rails)
    assert (free["reasons"], len(rails) >= 8) == ([], True), free
    for address in management:
        found = ask(lab / node, capsys, [str(address)])
        assert found["reasons"][0].startswith("the default route leaves by ")
        assert str(address) in found["reasons"][0]
