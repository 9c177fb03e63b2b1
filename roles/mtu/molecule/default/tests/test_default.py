# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json

from testinfra.host import Host  # type: ignore[import-untyped]

from lab import store
from tests.molecule.scenario import LAB, NODE, Role

ROLE = Role(__file__)
RAILS = 8
FOLDER = "/etc/systemd/network"


def mtus(host: Host) -> dict[str, int]:
    return {link["ifname"]: link["mtu"] for link in json.loads(host.check_output("ip -j link show"))}


def test_each_rail_has_a_file_beside_that_of_the_site_and_no_other_interface_has(host: Host) -> None:
    found = host.check_output(f"ls -d {FOLDER}/*.network.d").split()
    assert found == [f"{FOLDER}/10-rail{rail}.network.d" for rail in range(RAILS)]
    assert host.file(f"{FOLDER}/10-rail0.network.d/90-busbar-mtu.conf").content_string.endswith(
        "[Link]\nMTUBytes=9000\n"
    )
    assert "MTU" not in host.file(f"{FOLDER}/10-rail0.network").content_string


def test_rdma_uses_4096_bytes(host: Host) -> None:
    said = host.check_output("ibv_devinfo -d mlx5_6")
    assert "active_mtu:\t\t4096 (5)" in said


def test_a_boot_keeps_the_mtu(host: Host) -> None:
    before = mtus(host)
    assert sorted(before.values()).count(1500) == 5
    host.check_output("ip link set dev enp26s0np0 mtu 1500")
    store.reboot(LAB, NODE)
    assert mtus(host) == before
    found = ROLE.play(check=True)
    assert (found["findings"], found["passed"]) == ([], 4 * RAILS)
