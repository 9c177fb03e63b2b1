# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's interfaces: who sets them up, what a boot makes of it, ip, ping; the product's rail ping of two nodes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils import rail_info, rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.modules import perftest
from ansible_collections.busbar.fabric.plugins.plugin_utils import verification

from lab import qos, store, tree
from lab.faults import CATALOGUE
from lab.machine import Machine
from lab.machines import hgx_h200_roce
from tests.lab.conftest import few_slots

ROOT = Path(__file__).resolve().parent.parent.parent
NODES = ("node02", "node03")
RAIL0, RAIL5, RAIL6, RAIL7 = "enp26s0np0", "enp188s0np0", "enp204s0np0", "enp220s0np0"
BOND = "bond0"
RAILS = 8


@pytest.fixture(scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    store.create(directory, few_slots(dict.fromkeys(NODES, hgx_h200_roce)))
    return directory


@pytest.fixture
def two(_two: Path) -> Path:
    """Two RoCE nodes whose rails all have an MTU of 9000."""
    for node in NODES:
        tree.write_hardware(store.healthy(_two, node), _two / node / "hw")
        for netdev in names(_two, node):
            for file, value in (("mtu", "9000"), ("operstate", "up")):
                qos.replace(f"{_two}/{node}/hw/sys/class/net/{netdev}/{file}", f"{value}\n")
    return _two


def tool(lab: Path, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = lab / node / "sys/usr/local/sbin" / words[0]
    return subprocess.run([path, *words[1:]], capture_output=True, text=True, timeout=1800, check=False)


def says(lab: Path, node: str, *words: str) -> str:
    done = tool(lab, node, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def links(lab: Path, node: str) -> dict[str, dict[str, Any]]:
    return {one["ifname"]: one for one in json.loads(says(lab, node, "ip", "-j", "-d", "link", "show"))}


def names(lab: Path, node: str) -> list[str]:
    """The rails' interfaces, in the order of the rails."""
    machine = store.healthy(lab, node)
    return [n.name for rail in range(RAILS) for n in machine.netdevs if n.address == machine.rail(rail).address]


# -- who sets interfaces up, and ip ----------------------------------------------------------------------------------


def test_rails_come_up_with_1500_and_what_the_site_has_set_with_that(tmp_path: Path) -> None:
    store.create(tmp_path / "lab", few_slots({"node02": hgx_h200_roce}))
    found = links(tmp_path / "lab", "node02")
    assert [found[name]["mtu"] for name in names(tmp_path / "lab", "node02")] == [1500] * RAILS
    assert found[BOND]["mtu"] == found["enp225s0f0np0"]["mtu"] == 9000


def test_a_boot_gives_an_interface_what_the_file_that_counts_says(two: Path) -> None:
    system = two / "node02/sys"
    dropin = system / "etc/systemd/network/10-rail5.network.d/90-busbar-mtu.conf"
    dropin.parent.mkdir(exist_ok=True)
    dropin.write_text("[Link]\nMTUBytes=4200\n")
    try:
        store.reboot(two, "node02")
        found = links(two, "node02")
    finally:
        dropin.unlink()
    assert (found[RAIL5]["mtu"], found[RAIL6]["mtu"], found[BOND]["mtu"]) == (4200, 1500, 9000)
    state = (system / "run/systemd/netif/links" / str(found[RAIL5]["ifindex"])).read_text()
    assert "NETWORK_FILE=/etc/systemd/network/10-rail5.network\n" in state


def test_with_netplan_the_mtu_is_in_a_file_of_its_own_and_kept_by_a_boot(
    tmp_path: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    def with_netplan(hostname: str) -> Machine:
        machine = hgx_h200_roce(hostname)
        machine.netplan = True
        return machine

    lab = tmp_path / "lab"
    store.create(lab, few_slots({"node02": with_netplan}))
    arguments = {
        "profile": yaml.safe_load((ROOT / "profiles/hgx-h200.yml").read_text()),
        "fabric": "ethernet",
        "mtu": 9000,
        "max_disruption": "link",
        "hardware_root": str(lab / "node02/hw"),
        "system_root": str(lab / "node02/sys"),
    }
    done = run_module("netdev_mtu", **arguments)
    assert (done["findings"], done["commands"][0]) == ([], "netplan generate")
    assert (lab / "node02/sys/etc/netplan/90-busbar-mtu.yaml").stat().st_mode & 0o777 == 0o600
    store.reboot(lab, "node02")
    assert [links(lab, "node02")[name]["mtu"] for name in names(lab, "node02")] == [9000] * RAILS
    again = run_module("netdev_mtu", **arguments)
    assert (again["findings"], again["changed"]) == ([], False)


def test_ip_shows_a_members_own_address_and_a_bonds_mtu_is_that_of_its_members(two: Path) -> None:
    found = links(two, "node02")
    first, second = (found[f"enp225s0f{n}np{n}"] for n in range(2))
    assert (first["address"], second["address"]) == (found[BOND]["address"],) * 2
    assert "permaddr" not in first
    assert second["permaddr"] != second["address"]
    assert found[BOND]["linkinfo"] == {"info_kind": "bond"}
    says(two, "node02", "ip", "link", "set", BOND, "mtu", "4000")
    assert {links(two, "node02")[name]["mtu"] for name in (BOND, first["ifname"], second["ifname"])} == {4000}


# -- ping ------------------------------------------------------------------------------------------------------------

DF = ("-n", "-M", "do", "-c", "3", "-W", "1", "-I", "10.16.0.2", "10.16.0.3")


def test_a_ping_passes_when_both_ends_and_the_switch_take_it(two: Path) -> None:
    assert "3 packets transmitted, 3 received, 0% packet loss" in says(two, "node02", "ping", "-s", "8972", *DF)


def test_what_is_too_large_is_refused_at_home_and_lost_elsewhere(two: Path) -> None:
    says(two, "node03", "ip", "link", "set", RAIL0, "mtu", "1500")
    lost = tool(two, "node02", "ping", "-s", "8972", *DF)
    assert (lost.returncode, lost.stderr) == (1, "")
    assert "3 packets transmitted, 0 received, 100% packet loss" in lost.stdout
    says(two, "node02", "ip", "link", "set", RAIL0, "mtu", "1500")
    refused = tool(two, "node02", "ping", "-s", "8972", *DF)
    assert refused.stderr == "ping: local error: message too long, mtu=1500\n" * 3
    assert "0 received, +3 errors, 100% packet loss" in refused.stdout


# -- the product's rail ping -----------------------------------------------------------------------------------------

Ask = Callable[[Path], dict[str, list[dict[str, Any]]]]


def member(lab: Path, node: str) -> rail_ping.Member:
    host = Host(str(lab / node / "hw"), str(lab / node / "sys"))
    wanted = profile.parse(yaml.safe_load((ROOT / "profiles/hgx-h200.yml").read_text()), "hgx-h200")
    wanted = profile.for_fabric(wanted, "ethernet")
    machine = topology.read(host, ask_nvidia_smi=False)
    info = rail_info.read(host, machine, rails.match(machine, wanted), wanted, "ipv4", None)
    values = {"busbar_intent": {"values": {"busbar_mtu": 9000}, "profile_name": "hgx-h200"}}
    return verification.member(
        node, {**values, "rail_info_result": {"rail_info": json.loads(json.dumps(info.to_dict()))}}
    )


@pytest.fixture
def ask(run_module: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Plans over both nodes and runs the module on each; what is not ok, by node."""
    monkeypatch.setitem(run_module.__globals__["MODULES"], "perftest", perftest)

    def run(lab: Path) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for node, (asked, alone) in rail_ping.plan([member(lab, node) for node in NODES]).items():
            assert alone == ()
            pings = [one.to_dict() for one in asked]
            roots = {"hardware_root": str(lab / node / "hw"), "system_root": str(lab / node / "sys")}
            result = run_module("perftest", pings=json.loads(json.dumps(pings)), **roots)
            assert len(result["findings"]) + len(result["passed"]) == RAILS
            found[node] = result["findings"]
        return found

    return run


def test_full_packets_pass_between_healthy_nodes(two: Path, ask: Ask) -> None:
    assert ask(two) == {"node02": [], "node03": []}


def test_the_smaller_end_and_the_switch_are_named_on_both_nodes_and_silence_is_unknown(two: Path, ask: Ask) -> None:
    tree.write_hardware(CATALOGUE["path-mtu"].apply(store.healthy(two, "node03")), two / "node03/hw")
    says(two, "node03", "ip", "link", "set", RAIL5, "mtu", "1500")
    says(two, "node03", "ip", "link", "set", RAIL7, "down")
    found = ask(two)
    for node, peer in (NODES, reversed(NODES)):
        assert [(finding["check"], finding["subject"], finding["state"]) for finding in found[node]] == [
            ("rail_ping.path", f"rail 5 to {peer}", "drift"),
            ("rail_ping.path", f"rail 6 to {peer}", "drift"),
            ("rail_ping.path", f"rail 7 to {peer}", "unknown"),
        ]
        end, switch, silent = found[node]
        assert end["have"] == f"{RAIL5} of node03 has MTU 1500"
        assert end["because"] == (None if node == "node02" else "netdev_mtu.live[live]@0000:bc:00.0")
        assert "a switch between the two accepts less than 9000" in switch["have"]
        assert "raise the MTU of the switch ports" in switch["fix"]
        assert "does not respond" in silent["have"]
