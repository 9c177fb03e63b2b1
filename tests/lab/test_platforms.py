# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of clouds and trays of an NVL72 converge and have nothing to report; what only they can have is its finding."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import nvl72, store, tree
from lab.machine import ETHERNET, NO_LINK, Function, HostBridge, Machine
from lab.machines import azure_nd_h100_v5, gb200, oci_bm_gpu_h100_8, topology_file
from tests.trees import put_all

from .conftest import ROOT, read_yaml

MODULES = tuple(role.module for role in suite.AUDITED.values() if role.module not in ("nccl_tests_build", "nccl_perf"))
GUEST, METAL, TRAY = "azure01", "oci01", "tray01"
TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"
Answer = Callable[..., dict[str, Any]]
LAB = {GUEST: azure_nd_h100_v5, METAL: oci_bm_gpu_h100_8, TRAY: gb200}
OF_TRAYS = {
    *("imex.service", "imex.nodes", "imex.state", "imex.channel", "imex.domain", "node_health.page_size"),
    *("iommu.platform_args", "gpudirect.driver_options"),
}
# What of a node passes, what is never asked there, and words of notes by module.
HEALTHY: dict[str, tuple[set[str], set[str], dict[str, str]]] = {
    GUEST: ({"nccl_conf.topo_file"}, set(), dict.fromkeys(("topology_info", "iommu", "pcie_path"), "(Azure, hyper-v)")),
    # Of its paths nothing is published.
    METAL: (
        {"platform.rail_state", "platform.gpu_pcie"},
        {"platform.rail_path"},
        {"topology_info": "bare metal of OCI: its agent"},
    ),
    TRAY: (OF_TRAYS, {"node_health.fabric_manager"}, {}),
}


@pytest.fixture
def lab(own_lab: Path) -> Iterator[Path]:
    yield own_lab
    for node in (GUEST, METAL, TRAY):
        show(own_lab, store.healthy(own_lab, node))


def show(lab: Path, machine: Machine) -> None:
    tree.write_hardware(machine, lab / machine.hostname / "hw")
    tree.write_tools(machine, lab / machine.hostname / "sys")


@pytest.fixture
def converged(lab: Path, on_node: Answer) -> Path:
    done = lab / "converged"
    if not done.exists():
        for node in LAB:
            assert bad([on_node(module, node) for module in MODULES[1:]]) == []
        done.touch()
    return lab


def system(lab: Path, path: str) -> Path:
    return lab / GUEST / "sys" / path.lstrip("/")


def bad(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Roots."""
    return [(f["check"], f["state"]) for result in results for f in result["findings"] if f["because"] is None]


def healthy(on_node: Answer, node: str, asked: set[str], never: set[str]) -> dict[str, dict[str, Any]]:
    """Return the results of a node that has nothing to report: what of it passes, and what is never asked there."""
    results = {module: on_node(module, node, check_mode=True) for module in MODULES}
    assert bad(list(results.values())) == []
    assert [module for module, result in results.items() if result["changed"]] == []
    passed = {name.partition("[")[0] for result in results.values() for name in result["passed"]}
    assert (asked - passed, never & passed) == (set(), set())
    return results


@pytest.mark.parametrize("node", LAB)
def test_a_node_converges_and_has_nothing_to_report(converged: Path, on_node: Answer, node: str) -> None:
    asked, never, notes = HEALTHY[node]
    results = healthy(on_node, node, asked, never)
    assert [module for module, words in notes.items() if words not in " ".join(results[module]["notes"])] == []


def test_rails_of_clouds_are_named_and_an_image_keeps_what_nobody_declares(converged: Path) -> None:
    lines = {node: (converged / node / "sys/etc/nccl.conf").read_text().splitlines() for node in (GUEST, METAL)}
    kept = ("NCCL_IB_PCI_RELAXED_ORDERING=1", "NCCL_IGNORE_CPU_AFFINITY=1", f"NCCL_TOPO_FILE={TOPOLOGY}")
    assert {*kept, f"NCCL_IB_HCA=={','.join(f'mlx5_ib{rail}' for rail in range(8))}"} <= {*lines[GUEST]}
    assert f"NCCL_IB_HCA=={','.join(f'mlx5_{rail}' for rail in range(16))}" in lines[METAL]


def test_somebody_elses_edit_is_no_part_of_the_image(converged: Path, on_node: Answer) -> None:
    path = system(converged, "/etc/nccl.conf")
    text = path.read_text()
    path.write_text(text + "NCCL_P2P_DISABLE=1\n")
    done = on_node("nccl_conf", GUEST)
    assert (done["findings"], done["repaired"]) == ([], ["nccl_conf.file[persisted]@/etc/nccl.conf"])
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("text", "state", "says"),
    [
        (None, "drift", "is not there"),
        ("another size", "drift", "it has no GPU 0001:00:00.0"),
        ("slow", "drift", "over 16 GT/s x16"),
        ("<system", "unknown", TOPOLOGY),
    ],
)
def test_a_topology_file_of_another_machine(
    converged: Path, on_node: Answer, text: str | None, state: str, says: str
) -> None:
    path = system(converged, TOPOLOGY)
    right = path.read_text()
    wrong = {"another size": right.replace("0001:00:00.0", "0004:00:00.0")}
    wrong["slow"] = topology_file(azure_nd_h100_v5(GUEST), "16.0 GT/s PCIe")
    if text is None:
        path.unlink()
    else:
        path.write_text(wrong.get(text, text))
    results = [on_node(module, GUEST, check_mode=True) for module in ("topology_info", "nccl_conf")]
    path.write_text(right)
    assert bad(results) == [("nccl_conf.topo_file", state)]
    assert says in results[1]["findings"][0]["have"]


def test_a_service_that_writes_nccl_conf_at_every_boot_is_said(converged: Path, on_node: Answer) -> None:
    unit = system(converged, "/etc/systemd/system/sku-customizations.service")
    wanted = system(converged, "/etc/systemd/system/multi-user.target.wants/sku-customizations.service")
    unit.write_text("[Service]\nType=oneshot\nExecStart=/usr/sbin/setup_sku_customizations.sh\n")
    assert bad([on_node("nccl_conf", GUEST, check_mode=True)]) == []
    wanted.symlink_to(unit)
    found = bad([on_node("nccl_conf", GUEST, check_mode=True)])
    wanted.unlink()
    assert found == [("nccl_conf.owner", "not_owned")]


def adapters_of_aws(machine: Machine) -> None:
    """An instance that somebody took for another cloud's: its adapters stand where the rails should."""
    for rail in range(8):
        machine.unplug(machine.rail(rail).address)
    machine.host_bridges.append(HostBridge("pci0000:00", -1))
    efa = ("0000:00:1e.0", "pci0000:00", ETHERNET, "0x1d0f", "0xefa2", "0x0000", "0x00", -1, None)
    machine.functions.append(Function(*efa, link=NO_LINK))


def other_argument(machine: Machine) -> None:
    machine.cmdline = machine.cmdline.replace("numa_balancing=disable", "numa_balancing=enable")


def no_channel(machine: Machine) -> None:
    machine.driver_options["CreateImexChannel0"] = "0"


@pytest.mark.parametrize(
    ("node", "change", "expected"),
    [
        (GUEST, adapters_of_aws, ("platform.efa", "unsupported")),
        # One port of a card is a rail of its own.
        (METAL, lambda machine: machine.take_down(machine.rail(5), "3: Disabled"), ("platform.rail_state", "drift")),
        (TRAY, lambda machine: setattr(machine, "imex", "stopped"), ("imex.service", "drift")),
        (TRAY, lambda machine: setattr(machine, "imex", "degraded"), ("imex.state", "drift")),
        (TRAY, lambda machine: setattr(machine.gpus[2], "domain", f"{uuid.UUID(int=0)} 0"), ("imex.domain", "drift")),
        (TRAY, lambda machine: setattr(machine, "page_size", 4096), ("node_health.page_size", "drift")),
        (TRAY, no_channel, ("gpudirect.driver_options", "withheld")),
        (TRAY, other_argument, ("iommu.platform_args", "withheld")),
    ],
)
def test_what_only_such_a_node_can_have(
    converged: Path, on_node: Answer, node: str, change: Callable[[Machine], None], expected: tuple[str, str]
) -> None:
    machine: Machine = store.healthy(converged, node)
    change(machine)
    show(converged, machine)
    modules = ("node_health", "iommu", "gpudirect") if node == TRAY else ("topology_info",)
    assert bad([on_node(module, node, check_mode=True) for module in modules]) == [expected]


def test_a_tray_reports_the_nodes_of_its_rack(converged: Path, on_node: Answer) -> None:
    assert on_node("node_health", TRAY, check_mode=True)["imex"]["nodes"] == nvl72.addresses()


def test_a_tray_whose_compute_domains_start_imex(converged: Path, on_node: Answer) -> None:
    wanted = read_yaml((ROOT / "profiles/gb200-nvl72.yml").read_text())
    more = {"check_mode": True, "profile": {**wanted, "nvlink_domain": {"nodes": 18, "imex": "compute_domain"}}}
    assert bad([on_node("node_health", TRAY, **more)]) == [("imex.service", "drift"), ("imex.compute_domain", "drift")]
    machine = store.healthy(converged, TRAY)
    machine.imex = "stopped"
    show(converged, machine)
    link = converged / TRAY / "sys/etc/systemd/system/multi-user.target.wants" / nvl72.UNIT
    target = link.readlink()
    link.unlink()
    put_all(converged / TRAY / "sys", {"/var/lib/kubelet/plugins_registry/compute-domain.nvidia.com-reg.sock": ""})
    found = bad([on_node("node_health", TRAY, **more)])
    link.symlink_to(target)
    assert found == []
