# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lab import qos, store
from tests.molecule.scenario import LAB, NODE, Role

ROLE = Role(__file__)
RAILS = 8
SYSCTLS, FOLDER = "/etc/sysctl.d/98-busbar-multirail.conf", "/etc/systemd/network"
RAIL3, ADDRESS3 = "enp94s0np0", "10.19.0.2"
RULE3 = {"priority": 1003, "src": ADDRESS3, "table": "1003"}
VALUES = {"arp_ignore": "1", "arp_announce": "2", "rp_filter": "0"}


def live(host: Host, interface: str) -> dict[str, str]:
    keys = [f"net.ipv4.conf.{interface}.{key}" for key in VALUES]
    return dict(zip(VALUES, host.check_output(f"sysctl -n {' '.join(keys)}").split(), strict=True))


def routing(host: Host) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rules, and routes of rail 3's table."""
    rules, routes = (json.loads(host.check_output(f"ip -j {what}")) for what in ("rule", "route show table 1003"))
    return rules, routes


def test_every_rail_answers_for_its_own_address_alone(host: Host) -> None:
    assert live(host, RAIL3) == VALUES
    assert live(host, "eno8303")["rp_filter"] == "2"
    assert host.check_output(f"grep -c {RAIL3} {SYSCTLS}") == "3"
    # What the node's own systemd makes of the file: interfaces that a container has not are passed over.
    assert host.run(f"/usr/lib/systemd/systemd-sysctl {SYSCTLS}").rc == 0


def test_what_comes_from_a_rails_address_goes_by_its_table(host: Host) -> None:
    rules, routes = routing(host)
    assert RULE3 in rules
    # systemd-networkd adds a protocol, where another role's test has rebooted the node.
    route = {"dst": "10.19.0.0/24", "dev": RAIL3, "scope": "link", "prefsrc": ADDRESS3}
    assert any(route.items() <= found.items() for found in routes)
    found = host.check_output(f"ls -d {FOLDER}/*.network.d").split()
    assert found == [f"{FOLDER}/10-rail{rail}.network.d" for rail in range(RAILS)]


@pytest.mark.long
def test_a_run_that_has_nothing_to_do_calls_no_tool_that_changes_something() -> None:
    before = qos.writes(str(LAB / NODE / "hw"))
    assert ROLE.play(check=False)["findings"] == []
    assert qos.writes(str(LAB / NODE / "hw")) == before


def test_a_boot_keeps_values_and_rules(host: Host) -> None:
    host.check_output(f"sysctl -w net.ipv4.conf.{RAIL3}.arp_ignore=0")
    host.check_output("ip rule del priority 1003")
    store.reboot(LAB, NODE)
    assert live(host, RAIL3) == VALUES
    assert RULE3 in routing(host)[0]
    found = ROLE.play(check=True)
    assert (found["findings"], found["passed"]) == ([], 4 * RAILS + 1)
