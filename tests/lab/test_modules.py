# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What single modules report of a whole simulated node beside the findings of its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import netdev, rdma
from ansible_collections.busbar.fabric.plugins.modules import reboot

from lab import store, tree
from lab.machine import SwitchPort
from tests.lab.conftest import ROOT

Run = Callable[..., dict[str, Any]]

# -- values that a site with RoCE has to decide ----------------------------------------------------------------------

# Module -> the value that is missing, and what the module gets where the inventory does not set it.
UNSET: dict[str, tuple[str, dict[str, Any]]] = {
    "netdev_mtu": ("busbar_mtu", {"mtu": None}),
    "multirail": ("multirail_policy", {"policy": ""}),
    "roce_qos": ("busbar_roce", {"roce": {}, "traffic_class": None}),
}


@pytest.mark.parametrize("module", UNSET)
def test_what_is_not_decided_on_roce_is_a_note_and_no_finding(on_node: Run, module: str) -> None:
    name, options = UNSET[module]
    found = on_node(module, "node02", check_mode=True, **options)
    assert [note.partition(" ")[0] for note in found["notes"]] == [name]
    assert "not judged" in found["notes"][0]
    assert (found["findings"], found["changed"]) == ([], False)
    assert on_node(module, "node01", check_mode=True, **options)["notes"] == []


@pytest.mark.parametrize(
    ("module", "decided"),
    [
        ("multirail", {"policy": "custom"}),
        ("roce_qos", {"roce": {}, "traffic_class": None, "pfc": []}),
        ("roce_qos", {"roce": {}, "traffic_class": None, "trust": "pcp"}),
        ("roce_qos", {"roce": {"dscp": 26}}),
    ],
)
def test_nothing_can_be_a_decision_too(on_node: Run, module: str, decided: dict[str, Any]) -> None:
    assert on_node(module, "node02", check_mode=True, **decided)["notes"] == []


def test_the_example_of_a_roce_site_leaves_nothing_undecided(on_node: Run) -> None:
    values = yaml.safe_load((ROOT / "inventories/example-roce/group_vars/gpu_nodes.yml").read_text())
    profile = yaml.safe_load((ROOT / f"profiles/{values['busbar_platform']}.yml").read_text())
    given = {
        "netdev_mtu": {"mtu": values.get("busbar_mtu")},
        "multirail": {"policy": values.get("multirail_policy", "")},
        "roce_qos": {"roce": values.get("busbar_roce", {}), "traffic_class": None},
    }
    for module in UNSET:
        options = {"profile": profile, "fabric": values["busbar_fabric"], **given[module]}
        assert on_node(module, "node02", check_mode=True, **options)["notes"] == [], module


# -- GUIDs for a sweep of the InfiniBand fabric ----------------------------------------------------------------------


def test_infiniband_rails_are_known_by_their_guids_and_one_that_cannot_be_read_has_none(
    lab: Path, on_node: Run
) -> None:
    devices = {(path / "device").resolve().name: path for path in (lab / "node01/hw/sys/class/infiniband").iterdir()}
    found = on_node("topology_info", "node01", guids=True)["fabric"]
    assert found["boot_id"] == (lab / "node01/hw/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [rail["rail"] for rail in found["rails"]] == [*range(8)]
    for rail in found["rails"]:
        device = devices[rail["pci"]]
        assert rail["device"] == device.name
        assert rail["node_guid"] == (device / "node_guid").read_text().strip().replace(":", "")
        assert rail["port_guid"] == (device / "ports/1/gids/0").read_text().strip().replace(":", "")[16:]
        assert (rail["port"], rail["rate_gbps"]) == (1, 400)
    # RoCE has no rail in such a fabric.
    assert on_node("topology_info", "node02", guids=True)["fabric"]["rails"] == []
    assert "fabric" not in on_node("topology_info", "node01")
    first = found["rails"][0]
    (devices[first["pci"]] / "node_guid").write_text("no guid\n")
    (devices[first["pci"]] / "ports/1/gids/0").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    again = on_node("topology_info", "node01", guids=True)["fabric"]["rails"][0]
    assert (again["pci"], again["node_guid"], again["port_guid"]) == (first["pci"], None, None)


# -- which ports are queried for their neighbour ---------------------------------------------------------------------


def test_of_a_rail_that_is_a_bond_both_members_are_asked(lab: Path, on_node: Run) -> None:
    machine = store.healthy(lab, "node02")
    members = [netdev for netdev in machine.netdevs if netdev.master]
    for number, member in enumerate(members):
        member.switch = [SwitchPort(f"44:38:39:ff:01:0{number}", f"tor-{number}", "swp4", dcbx=number == 0)]
    tree.write_hardware(machine, lab / "node02" / "hw")
    rail: dict[str, Any] = {"pci": members[0].address, "paths": {}, "rate_gbps": 200, "link_layers": ["Ethernet"]}
    profile = {"description": "a bond", "gpus": {"count": 8, "models": ["NVIDIA H200"]}, "rails": [rail]}
    found = on_node("lldp", "node02", profile=profile)
    assert [(one["rail"], one["netdev"], one["name"]) for one in found["neighbours"]] == [
        (0, member.name, f"tor-{number}") for number, member in enumerate(members)
    ]
    # The second one's switch port was forgotten.
    assert [(one["check"], one["state"], one["subject"].split()[0]) for one in found["findings"]] == [
        (f"lldp.{check}", "unknown", members[1].address) for check in ("pfc", "dscp", "ets")
    ]


def test_a_rail_that_is_down_or_infiniband_or_not_asked_for_is_not_asked(lab: Path, on_node: Run) -> None:
    store.break_(lab, "node02", "port-down")
    found = on_node("lldp", "node02")
    assert [one["rail"] for one in found["neighbours"]] == [0, 1, 3, 4, 5, 6, 7]
    assert (found["findings"], len(found["passed"])) == ([], 36)
    for node, more in (("node01", {}), ("node02", {"asked": "none"})):
        found = on_node("lldp", node, **more)
        assert (found["findings"], found["passed"], found["notes"], found["neighbours"]) == ([], [], [], [])


# -- the users of a node ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["node01", "node02"])
def test_rails_can_be_disturbed_and_the_way_to_the_node_cannot(
    lab: Path, run_module: Run, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_module.__globals__["MODULES"], "reboot", reboot)
    roots = {"hardware_root": str(lab / node / "hw"), "system_root": str(lab / node / "sys")}
    host = Host(roots["hardware_root"], roots["system_root"])
    devices, _ = rdma.read(host)
    netdevs, _ = netdev.read(host)
    routes, _ = netdev.default_routes(host)
    way = {routes[0].netdev, *next(n.lower for n in netdevs if n.name == routes[0].netdev)}
    management = {n.pci for n in netdevs if n.name in way or n.master in way} - {None}
    rails = sorted(device.pci for device in devices if device.pci is not None and device.pci not in management)
    free = run_module("reboot", devices=rails, **roots)
    assert (free["reasons"], len(rails) >= 8) == ([], True), free
    for address in management:
        found = run_module("reboot", devices=[str(address)], **roots)
        assert found["reasons"][0].startswith("the default route leaves by ")
        assert str(address) in found["reasons"][0]


# -- OFED ------------------------------------------------------------------------------------------------------------


def test_a_host_without_any_of_its_nics_needs_no_ofed(lab: Path, on_node: Run) -> None:
    machine = store.healthy(lab, "node01")
    for address in [machine.rail(number).address for number in range(8)]:
        machine.unplug(address)
    tree.write_hardware(machine, lab / "node01/hw")
    profile = {"description": "a VM", "gpus": {"count": 8, "models": ["NVIDIA H200"]}, "rails": []}
    note = "OFED was not requested: none of the NICs of profile hgx-h100 is there"
    for more, notes in (({"profile": profile, "fabric": ""}, []), ({}, [note])):
        result = on_node("ofed", "node01", check_mode=True, **more)
        assert result["notes"] == notes
        assert (result["changed"], result["findings"], result["passed"], result["commands"]) == (False, [], [], [])


@pytest.fixture
def tool(lab: Path) -> Iterator[Callable[[str, str], None]]:
    """Puts a script in the place of a tool, which is back after the test."""
    before: dict[Path, bytes] = {}

    def put(path: str, text: str) -> None:
        file = lab / "node01/sys" / path
        before[file] = file.read_bytes()
        file.write_text(text)

    yield put
    for file, content in before.items():
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("usr/sbin/dkms", "echo 'nvidia: what is this'"),
        ("usr/sbin/dkms", "exit 3"),
        ("usr/bin/dpkg-query", "head -c 300 /dev/urandom"),
        ("usr/bin/ofed_info", "echo OFED-of-mine"),
        ("usr/local/sbin/modinfo", "echo garbage"),
    ],
)
def test_a_tool_that_talks_nonsense_is_unknown_and_no_traceback(
    on_node: Run, tool: Callable[[str, str], None], path: str, text: str
) -> None:
    tool(path, f"#!/bin/sh\n{text}\n")
    result = on_node("ofed", "node01", check_mode=True)
    roots = {finding["check"]: finding["state"] for finding in result["findings"] if finding["because"] is None}
    assert roots["ofed.readable"] == "unknown"
    assert all(finding["fix"] for finding in result["findings"])
