# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's interfaces: who sets them up, what a boot makes of it, ip, ping; the product's rail ping of two nodes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils import rail_info
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.modules import perftest
from ansible_collections.busbar.fabric.plugins.plugin_utils import rail_pairs

from lab import qos, store, tree
from lab.faults import CATALOGUE
from lab.machines import hgx_h200_roce
from tests.lab.conftest import few_slots
from tests.lab.transcript import Transcript, scripts, texts
from tests.trees import put

ROOT = Path(__file__).resolve().parent.parent.parent
NODES = ("node02", "node03")
RAIL0, RAIL1, RAIL5, RAIL6, RAIL7 = "enp26s0np0", "enp60s0np0", "enp188s0np0", "enp204s0np0", "enp220s0np0"
BOND, MEMBERS, IDLE = "bond0", ("enp225s0f0np0", "enp225s0f1np1"), "eno8303"
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


def names(lab: Path, node: str) -> list[str]:
    """The rails' interfaces, in the order of the rails."""
    machine = store.healthy(lab, node)
    return [machine.netdev(rail).name for rail in range(RAILS)]


# -- who sets interfaces up, sysctl, ip and ping ---------------------------------------------------------------------

SCRIPTS = scripts("network")


def state(lab: Path) -> dict[str, str]:
    """What commands and boots may change: of node02, and of rail 0 of its partner."""
    found = texts(lab / "node03/hw", f"sys/class/net/{RAIL0}/mtu")
    keys = ("rp_filter", "arp_ignore", "arp_announce")
    settings = [f"proc/sys/net/ipv4/conf/{one}/{key}" for one in ("all", "default", IDLE, RAIL0, RAIL1) for key in keys]
    mtus = [f"sys/class/net/{one}/mtu" for one in (RAIL0, RAIL5, RAIL6, BOND, *MEMBERS)]
    found = {f"node03 {path}": text for path, text in found.items()} | texts(lab / "node02/hw", *settings, *mtus)
    links = texts(lab / "node02/sys", "run/systemd/netif/links/*")
    return found | {path: re.sub(r"(?s).*(NETWORK_FILE=[^\n]*).*", r"\1", text) for path, text in links.items()}


@pytest.fixture
def written(two: Path) -> Iterator[set[Path]]:
    """Files that a script writes, which are gone after it."""
    paths: set[Path] = set()
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)
    store.reboot(two, "node02")


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_tools_and_boots_make_of_interfaces(two: Path, written: set[Path], case: str) -> None:
    def line(path: str, *words: str) -> None:
        file = two / "node02/sys" / path
        written.add(file)
        put(two / "node02/sys", path, (file.read_text() if file.exists() else "") + f"{' '.join(words)}\n")

    acts: dict[str, Callable[..., object]] = {
        "line": line,
        "gone": lambda path: (two / "node02/sys" / path).unlink(),
        "boot": lambda: store.reboot(two, "node02"),
    }
    named = {"RAIL0": RAIL0, "RAIL1": RAIL1, "RAIL5": RAIL5, "RAIL6": RAIL6}
    run = partial(tool, two)
    Transcript(run, lambda: state(two), acts, named).check("lab_network", case, SCRIPTS[case])


def test_ip_shows_a_members_own_address(two: Path) -> None:
    found = {one["ifname"]: one for one in json.loads(says(two, "node02", "ip", "-j", "link", "show"))}
    first, second = (found[member] for member in MEMBERS)
    assert (first["address"], second["address"]) == (found[BOND]["address"],) * 2
    assert "permaddr" not in first
    assert second["permaddr"] != second["address"]


# -- the product's rail ping -----------------------------------------------------------------------------------------

Ask = Callable[[Path], dict[str, list[dict[str, Any]]]]


def candidate(lab: Path, node: str) -> rail_pairs.Candidate:
    host = Host(str(lab / node / "hw"), str(lab / node / "sys"))
    wanted = profile.parse(yaml.safe_load((ROOT / "profiles/hgx-h200.yml").read_text()), "hgx-h200")
    wanted = profile.for_fabric(wanted, "ethernet")
    machine = topology.read(host, ask_nvidia_smi=False)
    info = rail_info.read(host, machine, rails.match(machine, wanted), wanted, "ipv4", None)
    values = {"busbar_intent": {"values": {"busbar_mtu": 9000}, "profile_name": "hgx-h200"}}
    result = {**Plan().result(), "rail_info": json.loads(json.dumps(info.to_dict())), "busy": []}
    return rail_pairs.candidate(node, {**values, "rail_info_result": result}, True, False)


@pytest.fixture
def ask(run_module: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Plans over both nodes and runs the module on each; what is not ok, by node."""
    monkeypatch.setitem(run_module.__globals__["MODULES"], "perftest", perftest)

    def run(lab: Path) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for node, (asked, alone) in rail_pairs.plan_pings([candidate(lab, node) for node in NODES]).items():
            assert alone == []
            pings = [asdict(one) for one in asked]
            roots = {"hardware_root": str(lab / node / "hw"), "system_root": str(lab / node / "sys")}
            result = run_module("perftest", pings=json.loads(json.dumps(pings)), **roots)
            assert len(result["findings"]) + len(result["passed"]) == RAILS
            found[node] = result["findings"]
        return found

    return run


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
