# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Roles mtu and multirail and playbooks/verify.yml on two nodes with a real kernel, real RDMA ports and perftest.

Only that something is carried is judged, not how fast: the CPUs are emulated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import perftest_errors

from . import pair
from .conftest import ROOT, NewVm, node, played, stored, write_inventory
from .machine import Machine

MTU = 9000
WAIT = ("systemctl", "is-system-running", "--wait")
ROLES = ("platform", "mtu", "multirail")
PLAY = f"""\
- hosts: gpu_nodes
  gather_facts: false
  vars: {{busbar_role_verdict: false}}
  tasks:
    - ansible.builtin.import_role: {{name: busbar.fabric.platform}}
    - ansible.builtin.import_role: {{name: busbar.fabric.mtu}}
    - ansible.builtin.import_role: {{name: busbar.fabric.multirail}}
- ansible.builtin.import_playbook: {ROOT / "playbooks/verify.yml"}
  vars: {{verify_hosts: gpu_nodes}}
- hosts: gpu_nodes
  gather_facts: false
  tasks:
{stored("{'platform': platform_result, 'mtu': mtu_result, 'multirail': multirail_result, 'verify': verify_result}")}"""
CLIENT = """\
- hosts: node01
  gather_facts: false
  tasks:
    - busbar.fabric.perftest:
        sessions: [{session}]
        timeout: 20
        hardware_root: {root}
      register: result
"""
# A software device has no firmware, and where CPUs are emulated it sends some packets twice.
SOFT = {"consistency.firmware", "consistency.psid", "counters.loss"}
Nodes = Mapping[str, Machine]
# Node -> role -> what its module returned.
Results = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Step:
    """What a run returned, and what was on the nodes after it.

    mtus: node -> rail -> MTU of the interface and of RDMA.   ways: by which interface each rail of node01 sends.
    """

    results: Results
    mtus: dict[str, list[tuple[int, int]]]
    ways: list[str]

    def found(self, name: str, role: str) -> list[str]:
        return sorted(finding["id"] for finding in self.results[name][role]["findings"])


def run(nodes: Nodes, folder: Path, text: str, *options: str, **variables: object) -> dict[str, Any]:
    common = {
        "busbar_platform": "soft-roce",
        "busbar_fabric": "ethernet",
        "busbar_mtu": MTU,
        "busbar_max_disruption": "link",
        "busbar_hardware_root": pair.HARDWARE_ROOT,
        "multirail_policy": "nvidia",
        # There are no GPUs.
        "nccl_benchmark_collectives": [],
        "platform_cross_checks": [],
        # So that messages end within it.
        "perftest_seconds": 10,
        "perftest_share": 0,
        # Of emulated CPUs.
        "perftest_latency": 0,
        "perftest_timeout": 400,
        "perftest_results_path": str(folder / "verify"),
        **variables,
    }
    hosts = write_inventory({name: node(machine, **common) for name, machine in nodes.items()}, folder)
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles/soft-roce.yml").write_text(json.dumps(pair.profile()))
    return played(hosts, text, *options)


def step(nodes: Nodes, folder: Path, *options: str, **variables: object) -> Step:
    results = run(nodes, folder, PLAY, *options, **variables)
    return Step(results, {name: mtus(machine) for name, machine in nodes.items()}, ways(nodes["node01"]))


def mtus(machine: Machine) -> list[tuple[int, int]]:
    """As the kernel has them."""
    machine.ssh(*WAIT)
    script = "for n in $*; do cat /sys/class/net/$n/mtu; ibv_devinfo -d rxe_$n | grep active_mtu; done"
    lines = machine.ssh("sh", "-c", script, "sh", *pair.NETDEVS).stdout.splitlines()
    return [(int(live), int(active.split()[1])) for live, active in zip(lines[::2], lines[1::2], strict=True)]


def ways(machine: Machine) -> list[str]:
    """For each rail the interface that sends what comes from its address."""
    counts = "cat " + " ".join(f"/sys/class/net/{netdev}/statistics/tx_packets" for netdev in pair.NETDEVS)
    pings = [
        "ping -q -n -c 8 -i 0.2 -I {} {} > /dev/null".format(*(pair.address(name, rail) for name in pair.NAMES))
        for rail in range(len(pair.NETDEVS))
    ]
    words = machine.ssh("sh", "-c", "; ".join([counts, *(f"{ping}; {counts}" for ping in pings)])).stdout.split()
    sent = [int(after) - int(before) for before, after in zip(words[:-2], words[2:], strict=True)]
    return [pair.NETDEVS[0] if sent[at] > sent[at + 1] else pair.NETDEVS[1] for at in (0, 2)]


@pytest.fixture(scope="module")
def nodes(new_vm: NewVm, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    return pair.start(new_vm, tmp_path_factory.mktemp("links"))


@pytest.fixture(scope="module")
def steps(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    """The pair's way, each step on what the one before it has left."""
    folder = tmp_path_factory.mktemp("play")
    found = {"fresh": step(nodes, folder, "--check"), "applied": step(nodes, folder, busbar_verify=True)}
    nodes["node01"].reboot()
    nodes["node01"].ssh(*WAIT)
    found["rebooted"] = step(nodes, folder)
    nodes["node02"].ssh("ip", "link", "set", pair.NETDEVS[1], "mtu", "1500")
    more = {"busbar_verify": True, "busbar_max_disruption": "none", "perftest_share": 0.9}
    found["one end at 1500"] = step(nodes, folder, **more)
    return found


def test_the_gid_of_a_rail_is_the_one_of_its_type_and_address(nodes: Nodes, steps: dict[str, Step]) -> None:
    for name, machine in nodes.items():
        result = steps["fresh"].results[name]["platform"]
        assert result["findings"] == []
        ports = {nic["pci"]: nic["ports"][0] for nic in result["topology"]["nics"] if nic["rdma"]}
        for rail, function in enumerate(pair.FUNCTIONS):
            index = ports[function]["rocev2_ipv4_gid_index"]
            folder = f"/sys/class/infiniband/rxe_{pair.NETDEVS[rail]}/ports/1"
            words = machine.ssh("cat", f"{folder}/gid_attrs/types/{index}", f"{folder}/gids/{index}").stdout
            number = int(ip_address(pair.address(name, rail)))
            gid = f"0000:0000:0000:0000:0000:ffff:{number >> 16:04x}:{number & 0xFFFF:04x}"
            assert words.splitlines() == ["RoCE v2", gid]


def test_check_mode_finds_what_is_missing_and_writes_nothing(steps: dict[str, Step]) -> None:
    fresh = steps["fresh"]
    for name in pair.NAMES:
        kinds = [("active_mtu", "live"), ("live", "live"), ("persisted", "persisted")]
        expected = [f"netdev_mtu.{check}[{aspect}]@{nic}" for check, aspect in kinds for nic in pair.FUNCTIONS]
        assert fresh.found(name, "mtu") == expected
        # What RDMA makes of 1500.
        assert fresh.mtus[name] == [(1500, 1024)] * 2
    # Two rails in one subnet: the kernel takes the first route, whatever address it sends from.
    assert len(set(fresh.ways)) == 1


@pytest.mark.parametrize("when", ["applied", "rebooted"])
def test_mtu_and_source_routing_are_there_at_once_and_after_a_reboot(steps: dict[str, Step], when: str) -> None:
    after = steps[when]
    for name in pair.NAMES:
        assert [after.found(name, role) for role in ROLES] == [[], [], []]
        assert [after.results[name][role]["changed"] for role in ROLES[1:]] == [when == "applied"] * 2
        assert after.mtus[name] == [(MTU, 4096)] * 2
    assert after.ways == list(pair.NETDEVS)


def test_perftest_runs_on_both_rails_in_both_directions_and_no_figure_is_no_ok(steps: dict[str, Step]) -> None:
    for name in pair.NAMES:
        result = steps["applied"].results[name]["verify"]
        ran = [
            (one["session"]["role"], one["session"]["rail"], found)
            for one in result["sessions"]
            for found in one["results"]
        ]
        assert sorted((role, rail, found["test"]) for role, rail, found in ran) == [
            (role, rail, test) for role in ("client", "server") for rail in (0, 1) for test in ("bw", "lat")
        ]
        assert {found["rc"] for _role, _rail, found in ran} == {0}
        assert not result["simulated"]
        # perftest measures the CPU's clock first. Where an emulated one gives none it has no figure, and ends with 0.
        assert all(found["mtu"] == 4096 and found["figure"] > 0 for _role, _rail, found in ran if not found["reason"])
        lost = {f"rail {rail}" for _role, rail, found in ran if found["reason"]}
        for finding in result["findings"]:
            if finding["check"] not in SOFT:
                assert finding["check"].startswith("perftest.")
                assert (finding["state"], finding["subject"][:6] in lost) == ("unknown", True)


def test_an_end_at_1500_is_found_and_named(steps: dict[str, Step]) -> None:
    after = steps["one end at 1500"]
    live = f"netdev_mtu.live[live]@{pair.FUNCTIONS[1]}"
    assert after.mtus == {"node01": [(MTU, 4096)] * 2, "node02": [(MTU, 4096), (1500, 1024)]}
    assert after.found("node01", "mtu") == []
    assert after.found("node02", "mtu") == [f"netdev_mtu.active_mtu[live]@{pair.FUNCTIONS[1]}", live]
    (ping,) = (one for one in after.results["node02"]["verify"]["findings"] if one["check"] == "rail_ping.path")
    assert (ping["subject"], ping["have"], ping["because"]) == (
        "rail 1 to node01",
        f"{pair.NETDEVS[1]} of node02 has MTU 1500",
        live,
    )


def test_a_bar_that_emulated_cpus_cannot_reach_is_missed_on_every_rail(steps: dict[str, Step]) -> None:
    for name in pair.NAMES:
        findings = steps["one end at 1500"].results[name]["verify"]["findings"]
        missed = {one["subject"]: one for one in findings if one["check"] == "perftest.bandwidth"}
        other = pair.NAMES[name == "node01"]
        assert sorted(missed) == [f"rail {rail} to {other}" for rail in (0, 1)]
        # Both ends of a pair take the smaller MTU of the two, and perftest has nothing about it.
        for rail, size in enumerate((4096, 1024)):
            finding = missed[f"rail {rail} to {other}"]
            assert finding["state"] == "unknown" or finding["have"].endswith(f"in packets of {size} bytes")


def test_where_nobody_listens_the_reason_is_told(nodes: Nodes, tmp_path: Path) -> None:
    session = {
        "role": "client",
        "rail": 0,
        "pci": pair.FUNCTIONS[0],
        "device": f"rxe_{pair.NETDEVS[0]}",
        "peer": "node02",
        "address": pair.address("node02", 0),
        "rate_gbps": 2.5,
    }
    client = CLIENT.format(session=json.dumps(session), root=pair.HARDWARE_ROOT)
    findings = run(nodes, tmp_path, client + stored("result"))["node01"]["findings"]
    (finding,) = (one for one in findings if one["check"] == "perftest.bandwidth")
    assert finding["state"] == "unknown"
    assert finding["have"].startswith(perftest_errors.NOT_LISTENING)
