# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

import functools
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import netdev, netdev_address

from tests import goldens
from tests.trees import interface, put_all, tool

HEADING = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTE = HEADING + (
    "bond0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t50\t00000000\t0\t0\t0\n"
    "eth1\t00000000\t0100000A\t0002\t0\t0\t1\t00000000\t0\t0\t0\n"
    "*\t00000000\t00000000\t0201\t0\t0\t2\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)
ZERO = "0" * 32
NEXT_HOP = "fe80000000000000000000fffe000001"
IPV6_ROUTE = (
    f"fd000000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001     eth0\n"
    f"{ZERO} 00 {ZERO} 00 {NEXT_HOP} 00000400 00000002 00000000 00000003     eth0\n"
    f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo\n"
)


def test_a_route_leads_to_what_is_in_its_network_and_family() -> None:
    local = netdev.parse_route(ROUTE)[-1]
    assert (local.netdev, local.length) == ("eth0", 24)
    addresses = [ip_address(text) for text in ("192.0.2.9", "192.0.3.9", "::c000:209")]
    assert [local.leads_to(address) for address in addresses] == [True, False, False]
    ours = netdev.parse_ipv6_route(IPV6_ROUTE)[0]
    assert ours.leads_to(ip_address("fd00::1"))


def test_routes_of_both_families_come_by_metric(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert [str(problem) for problem in netdev.read_routes(host)[1]] == ["/proc/net/route: is not there"]
    assert netdev.default_routes(host) == ((), ())
    put_all(tmp_path / "proc/net", {"route": ROUTE.replace("\t100\t", "\t1024\t"), "ipv6_route": IPV6_ROUTE})
    found = [("eth0", 4, 50), ("bond0", 4, 1024), ("eth0", 6, 1024)]
    routes, problems = netdev.default_routes(host)
    assert ([(one.netdev, one.family, one.metric) for one in routes], problems) == (found, ())


@pytest.mark.parametrize(("ipv6", "sources"), [("", ["route"]), ("garbage", ["route", "ipv6_route"])])
def test_empty_ipv6_table_is_no_problem_and_an_empty_ipv4_one_is(tmp_path: Path, ipv6: str, sources: list[str]) -> None:
    put_all(tmp_path / "proc/net", {"route": "", "ipv6_route": ipv6})
    routes, problems = netdev.default_routes(Host(str(tmp_path)))
    assert (routes, [problem.source for problem in problems]) == ((), [f"/proc/net/{name}" for name in sources])


def bond_and_vlan(root: Path) -> None:
    bond = interface(root, "bond0")
    (bond / "bonding").mkdir()
    (bond / "lower_eno1").symlink_to("../eno1")
    (interface(root, "eno1", "pci0000:00/0000:00:1c.0") / "master").symlink_to("../bond0")
    (interface(root, "bond0.7") / "lower_bond0").symlink_to("../bond0")
    (root / "sys/class/net/bonding_masters").write_text("bond0\n")


NIC = "pci0000:00/0000:00:03.0"
CASES: dict[str, Callable[[Path], object]] = {
    "whole": lambda root: interface(root, "ens1f0np0", "pci0000:15/0000:15:01.0/0000:16:00.0"),
    "a bond, its member and a VLAN above it": bond_and_vlan,
    # Of a tunnel.
    "an empty address": lambda root: interface(root, "tun0", address=""),
    "no interface": lambda root: None,
}
# The PCI function is that of the interface itself.
for device in (
    *(f"{NIC}/virtio2", "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0", "pci0000:15/0000:16:00.0/mlx5_core.sf.4"),
    "LNXSYSTM:00/VMBUS:00/47505500-0001",
):
    CASES[f"below {device}"] = functools.partial(interface, name="eth0", function=device)
for name, text in (
    *(("mtu", ""), ("mtu", "many"), ("operstate", "UPPISH"), ("address", "zz:00"), ("address", "")),
    ("type", "\x1b[1m"),
):
    files: dict[str, Any] = {name: text}
    CASES[f"{name} {text!r}"] = functools.partial(interface, name="eth0", function=NIC, **files)


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_read_of_interfaces(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    found, problems = netdev.read(Host(str(tmp_path)))
    rows = [list(one) for one in found]
    goldens.check("netdev", case, [*rows, *[[problem.source, str(problem)] for problem in problems]])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Object \"address\" is unknown' >&2; exit 255", 'exited with 255: Object "address" is unknown'),
        ("echo 1: lo", "is not what ip -j address show prints"),
    ],
)
def test_a_tool_that_does_not_answer_is_named(tmp_path: Path, script: str, says: str) -> None:
    tool(tmp_path, "usr/sbin/ip", script)
    with pytest.raises((ReadError, ParseError), match="ip -j address show") as caught:
        netdev_address.read(Host(str(tmp_path), str(tmp_path)))
    assert says in str(caught.value)
