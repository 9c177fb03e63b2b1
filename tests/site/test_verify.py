"""The end-to-end proof between two simulated nodes, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import qos, store
from lab.machine import GpuProcess, Machine, to_dict
from lab.machines import hgx_h200_roce

ROOT = Path(__file__).resolve().parent.parent.parent
NODES = ("node01", "node02")
RAILS = 3
PROFILE = "three-rails"


def change(directory: Path, node: str, edit: Callable[[Machine], None]) -> None:
    """Something of the node's machine is otherwise."""
    machine = store.healthy(directory, node)
    edit(machine)
    store._save(directory / node / "machine.json", to_dict(machine))
    store._render(directory / node, machine)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Two RoCE nodes that are configured; of three rails each, for eight take twice as long."""
    directory = tmp_path / "lab"
    store.create(directory, dict.fromkeys(NODES, hgx_h200_roce))
    for node in NODES:
        root = str(directory / node / "hw")
        for rail in range(RAILS):
            rdma = store.healthy(directory, node).rail(rail)
            qos.replace(root + qos.state_path(rdma.address), qos.state(qos.configured()))
            [netdev] = (directory / node / f"hw/sys/class/infiniband/{rdma.name}/device/net").iterdir()
            qos.replace(str(netdev.resolve() / "mtu"), "9000\n")
    profile = yaml.safe_load((ROOT / "profiles" / "hgx-h200.yml").read_text())
    profile["rails"] = profile["rails"][:RAILS]
    inventory = directory / "inventory"
    (inventory / "profiles").mkdir()
    (inventory / "profiles" / f"{PROFILE}.yml").write_text(yaml.safe_dump(profile))
    hosts = yaml.safe_load((inventory / "hosts.yml").read_text())
    for values in hosts["gpu_nodes"]["hosts"].values():
        values["busbar_platform"] = PROFILE
    (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
    return directory


@pytest.fixture
def verify(pair: Path, play: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs verify.yml; the findings of each host as check and subject, without those that follow from another."""

    def run(*arguments: str) -> tuple[Any, dict[str, list[tuple[str, str]]]]:
        path = tmp_path / "findings.json"
        values = {
            "busbar_findings_path": str(path),
            "perftest_results_path": str(tmp_path / "results"),
            "perftest_seconds": 3,
            # The tests have another HOME than the user database says.
            "ansible_async_dir": str(tmp_path / "async"),
        }
        done = play("-i", pair / "inventory", "-e", json.dumps(values), *arguments, playbook="playbooks/verify.yml")
        found = json.loads(path.read_text())["hosts"]
        roots = {
            host: [(f["check"], f["subject"]) for f in one["findings"] if f["because"] is None]
            for host, one in found.items()
        }
        return done, roots

    return run


def test_every_fault_is_named_on_its_side_and_the_rail_without_one_is_proven(
    pair: Path, verify: Callable[..., Any], tmp_path: Path
) -> None:
    change(pair, "node01", lambda machine: setattr(machine.rail(2), "fw_ver", "28.39.1002"))
    names = [rdma.name for rdma in map(store.healthy(pair, "node02").rail, range(RAILS))]
    devices = pair / "node02/hw/sys/class/infiniband"
    [netdev] = (devices / names[0] / "device/net").iterdir()
    qos.replace(str(netdev.resolve() / "mtu"), "1500\n")
    (devices / names[1] / "tc/1/traffic_class").write_text("Global tclass=0\n")

    done, found = verify()
    assert done.rc == 2
    assert ("consistency.mtu", "rails") in found["node02"]
    assert ("counters.priority", "rail 1 to node01") in found["node02"]
    # The other end sees the data come in where it should not.
    assert ("counters.priority", "rail 1 from node02") in found["node01"]
    assert ("consistency.firmware", "rails") in found["node01"]
    assert ("perftest.bandwidth", "rail 0 to node02") in found["node01"]
    # What node02 itself is the cause of is one line there.
    assert not [one for one in found["node02"] if one[1].startswith("rail 0")]
    data = json.loads((tmp_path / "findings.json").read_text())["hosts"]
    for node, peer in (("node01", "node02"), ("node02", "node01")):
        assert not [one for one in data[node]["findings"] if one["subject"].startswith("rail 2")]
        proven = {name for name in data[node]["passed_ids"] if "@rail 2 " in name}
        tests = {f"perftest.{name}[live]@rail 2 to {peer}" for name in ("bandwidth", "latency")}
        counted = {f"counters.{name}[live]@rail 2 from {peer}" for name in ("priority", "pause", "ecn", "loss")}
        assert proven >= tests | counted
    assert "RAIL TESTS (simulated: no figure in it is a measurement)" in done.out
    kept = json.loads((tmp_path / "results" / "latest.json").read_text())
    assert kept["simulated"]
    assert len(kept["hosts"]["node01"]["sessions"]) == 2 * RAILS
    # Nothing is left of the tasks in the background.
    assert list((tmp_path / "async").iterdir()) == []

    # Check mode tests nobody, so that a node in use is judged, too.
    change(pair, "node02", lambda machine: machine.gpu_processes.append(GpuProcess(41873, "python", 0, 70 * 1024)))
    done, found = verify("--check")
    assert ("counters.priority", "rail 1 to node01") in found["node02"]
    assert "stored results" in done.out
