# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lab import qos, store
from tests.molecule.scenario import LAB, NODE, Role, checks

ROLE = Role(__file__)
HARDWARE = str(LAB / NODE / "hw")
MACHINE = store.healthy(LAB, NODE)
RAILS = [rdma for rdma in MACHINE.rdma if rdma.rail is not None]
NETDEVS = {rdma.address: next(n.name for n in MACHINE.netdevs if n.address == rdma.address) for rdma in RAILS}
OUT_OF_THE_BOX = ("dscp2prio", "pause", "pfc", "tos", "traffic_class", "trust")


def test_the_fresh_node_was_told_what_would_be_done_on_each_of_eight_rails() -> None:
    found = ROLE.verdict("check")
    of_ports = [finding for finding in found["findings"] if finding["check"] != "roce_qos.unit"]
    assert {finding["state"] for finding in of_ports} == {"drift"}
    assert sorted(finding["id"] for finding in of_ports) == sorted(
        f"roce_qos.{noun}[live]@{rdma.address}" for rdma in RAILS for noun in OUT_OF_THE_BOX
    )
    assert len(RAILS) == 8
    assert set(found["repaired"]) == {finding["id"] for finding in found["findings"]}


def test_the_converged_node_has_no_finding() -> None:
    found = ROLE.verdict("run")
    assert (found["findings"], found["repaired"]) == ([], [])
    assert found["passed"] >= 8 * 9


def test_every_port_is_as_the_chain_says_and_its_link_bounced_once() -> None:
    for netdev in NETDEVS.values():
        port = qos.load(HARDWARE, qos.find(HARDWARE, netdev))
        assert (port.trust, port.table[26], port.table[48], port.pfc) == ("dscp", 3, 6, 1 << 3)
        assert (port.rx_pause, port.tx_pause, port.bounces) == (False, False, 1)


def test_ports_of_no_rail_are_left_alone() -> None:
    others = {n.name for n in MACHINE.netdevs if n.qos} - set(NETDEVS.values())
    assert len(others) == 4
    assert {qos.load(HARDWARE, qos.find(HARDWARE, netdev)).pfc for netdev in others} == {0}


def test_what_is_right_is_not_written_again() -> None:
    before = qos.writes(HARDWARE)
    assert len(before) >= 3 * 8
    assert checks(ROLE.play(check=False)) == []
    assert qos.writes(HARDWARE) == before


def test_the_tools_of_the_node_say_the_same(host: Host) -> None:
    netdev = NETDEVS[RAILS[0].address]
    assert "Priority trust state: dscp" in host.check_output(f"mlnx_qos -i {netdev}")
    assert host.check_output(f"cma_roce_tos -d {RAILS[0].name}") == "106"


def state(netdev: str) -> qos.Port:
    return qos.load(HARDWARE, qos.find(HARDWARE, netdev))


def tos(address: str) -> int:
    rdma = next(rdma.name for rdma in RAILS if rdma.address == address)
    return int(Path(HARDWARE + qos.tos_path(rdma)).read_text())


def runs(host: Host, unit: str) -> int:
    return host.check_output(f"journalctl --quiet --output=cat --unit={unit}").count("Finished ")


def test_what_a_reload_of_the_driver_takes_the_unit_gives_back_and_nothing_loops(host: Host) -> None:
    address, netdev = next(iter(NETDEVS.items()))
    unit, before = f"busbar-roce-qos@{address}.service", qos.writes(HARDWARE)
    boots = runs(host, unit)
    for number in (1, 2):
        host.check_output(f"busbar-lab-roce driver-load {netdev}")
        assert runs(host, unit) == boots + number
        # The firmware has kept trust and PFC, so that the link stays up.
        assert (tos(address), state(netdev).pfc, state(netdev).bounces) == (106, 1 << 3, 1)
    assert not [line for line in qos.writes(HARDWARE)[len(before) :] if "pfc" in line]
    # With all of it lost PFC bounces the link, and that starts nothing.
    host.check_output(f"busbar-lab-roce factory {netdev} && busbar-lab-roce add {netdev}")
    assert (state(netdev).trust, state(netdev).pfc, state(netdev).bounces) == ("dscp", 1 << 3, 3)
    assert runs(host, unit) == boots + 3
    assert host.service(unit).is_running


@pytest.mark.long
def test_a_run_of_the_unit_that_fails_is_told_and_the_role_has_it_run_again(host: Host) -> None:
    address, netdev = next(iter(NETDEVS.items()))
    tool = host.check_output("command -v mlnx_qos")
    host.check_output(f"mv {tool} /root/ && printf '#!/bin/sh\\nexit 1\\n' > {tool} && chmod 755 {tool}")
    host.check_output(f"busbar-lab-roce add {netdev}")
    host.check_output(f"mv /root/mlnx_qos {tool}")
    assert not host.service(f"busbar-roce-qos@{address}.service").is_running
    found = ROLE.play(check=False)
    assert (found["findings"], found["repaired"]) == ([], [f"roce_qos.unit[live]@{address}"])
    assert host.service(f"busbar-roce-qos@{address}.service").is_running


def test_after_a_reboot_every_port_is_as_before(host: Host) -> None:
    store.reboot(LAB, NODE)
    assert {(state(netdev).trust, state(netdev).pfc, tos(address)) for address, netdev in NETDEVS.items()} == {
        ("dscp", 1 << 3, 106)
    }
    assert all(host.service(f"busbar-roce-qos@{address}.service").is_running for address in NETDEVS)
