# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every fault of the catalogue shows on a node and can be taken back, alone and in company."""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lab import store
from lab.fault import ALL
from lab.faults import FAULTS, compatible, draw
from lab.machine import LabError, Machine
from lab.machines import h200_vm, hgx_b200, hgx_h100, hgx_h200_roce
from lab.roce import LLDPAD_PID
from tests import series
from tests.lab.conftest import few_slots
from tests.lab.transcript import snapshot
from tests.trees import put_all

BUILDERS = {"node01": hgx_h100, "node02": hgx_h200_roce, "node03": hgx_b200, "vm01": h200_vm}
# The others need a node that can run a benchmark.
SHOWN = [name for name, fault in FAULTS.items() if not fault.measured]
CONF = "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME==eno1\n"


@pytest.fixture(scope="module")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab") / "lab"
    store.create(directory, few_slots(BUILDERS))
    for node in BUILDERS:
        # Faults change what a run has written, and here none has run.
        put_all(directory / node / "sys", {"/etc/nccl.conf": CONF, **PROVISIONED})
    return directory


@pytest.fixture
def lab(four_nodes: Path) -> Iterator[Path]:
    """Four healthy, provisioned nodes; repaired after the test."""
    yield four_nodes
    store.repair_broken(four_nodes)


@cache
def machine_of(node: str) -> Machine:
    return BUILDERS[node](node)


def nodes_of(name: str) -> list[str]:
    return [node for node in BUILDERS if machine_of(node).platform in FAULTS[name].platforms]


PROVISIONED = {
    "/etc/modules-load.d/busbar-nvidia-peermem.conf": "nvidia_peermem\n",
    "/etc/systemd/system/multi-user.target.d/busbar-pcie-path.conf": "[Unit]\nWants=busbar-pcie-path.service\n",
    "/etc/modules-load.d/busbar-ib-umad.conf": "ib_umad\n",
    "/etc/systemd/system/busbar-roce-qos@.service": "[Service]\nExecStart=/usr/bin/python3\n",
    "/etc/udev/rules.d/90-busbar-roce-qos.rules": 'SUBSYSTEM=="net"\n',
    "/etc/sysctl.d/98-busbar-multirail.conf": "net/ipv4/conf/enp26s0np0/arp_ignore = 1\n",
    "/etc/systemd/network/10-rail5.network.d/90-busbar-mtu.conf": "[Link]\nMTUBytes=9000\n",
    "/etc/systemd/network/10-rail6.network.d/90-busbar-multirail.conf": "[RoutingPolicyRule]\n",
    "/run/busbar-roce-qos/0000:1a:00.0.json": '{"state": "ok"}\n',
    "/etc/apt/keyrings/busbar-mofed.asc": store.NO_KEY,
    "/etc/apt/sources.list.d/busbar-mofed.sources": (
        "Types: deb\nURIs: file:/top/doca/3.2.1/ubuntu24.04/x86_64/\nSuites: ./\n"
    ),
}


@pytest.mark.parametrize("name", series.some(SHOWN, 6))
def test_a_fault_changes_the_node_and_repair_restores_every_byte(lab: Path, name: str) -> None:
    node = nodes_of(name)[-1]
    before = snapshot(lab / node)
    store.break_(lab, node, name)
    assert store.status(lab)[node] == [name]
    after = snapshot(lab / node)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    changed = {path for path in changed if path.split("/")[0] in ("hw", "sys")}
    assert changed
    change, file = FAULTS[name].change, FAULTS[name].file
    own = {f"sys{file}"} if file else set()
    if own and not change.keys() & {"set", "call"}:
        assert changed == own
    elif "run" not in change:
        assert own <= changed
        # lldpad's process id is a file below /run.
        assert all(path.startswith(("hw/", "sys/usr/", f"sys/{LLDPAD_PID}")) for path in changed - own)
    assert store.repair(lab, node, name) == [name]
    restored = snapshot(lab / node)
    restored.pop("backup", None)
    before.pop("backup", None)
    assert restored == before


@pytest.mark.parametrize("platform", ALL)
def test_draws_are_compatible_apply_and_differ_from_seed_to_seed(platform: str) -> None:
    draws = [draw(random.Random(seed), 5, platform) for seed in range(200)]
    for names in draws:
        assert len(set(names)) == 5
        assert compatible(names)
        assert all(platform in FAULTS[name].platforms for name in names)
    assert draw(random.Random(3), 5, platform) == draws[3]
    assert {name for names in draws for name in names} == {n for n in SHOWN if platform in FAULTS[n].platforms}


def test_the_catalogue_excludes_faults_that_it_has() -> None:
    assert [fault.name for fault in FAULTS.values() if not set(fault.excludes) <= set(FAULTS)] == []


# -- the store -------------------------------------------------------------------------------------------------------


def test_a_fault_that_cannot_show_is_refused_and_leaves_no_trace(lab: Path) -> None:
    store.break_(lab, "node01", "rail-missing")
    before = snapshot(lab / "node01")
    for name, reason in (("nic-moved", "does not show beside rail-missing"), ("gid-missing", "only to hgx-h200")):
        with pytest.raises(LabError, match=reason):
            store.break_(lab, "node01", name)
    assert snapshot(lab / "node01") == before


def test_repair_does_not_undo_what_somebody_mended(lab: Path) -> None:
    conf = lab / "node02/sys/etc/nccl.conf"
    store.break_(lab, "node02", "conf-edited")
    assert "NCCL_IB_HCA=mlx5_0," in conf.read_text()
    conf.write_text("# mended\n")
    assert store.repair(lab, "node02", "conf-edited") == ["conf-edited"]
    assert conf.read_text() == "# mended\n"
    conf.write_text(CONF)
