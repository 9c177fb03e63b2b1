# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node of a cloud converges and has nothing to report, and what can be wrong with it only is exactly its finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import store, tree
from lab.machine import ETHERNET, NO_LINK, Function, HostBridge, Machine
from lab.machines import azure_nd_h100_v5, oci_bm_gpu_h100_8, topology_file

MODULES = tuple(role.module for role in suite.AUDITED.values() if role.module not in ("nccl_tests_build", "nccl_perf"))
NODE, TOPOLOGY = "azure01", "/opt/microsoft/ndv5-topo.xml"
METAL = "oci01"
Answer = Callable[..., dict[str, Any]]
LAB = {NODE: azure_nd_h100_v5, METAL: oci_bm_gpu_h100_8}


@pytest.fixture
def lab(own_lab: Path) -> Iterator[Path]:
    machine = store.healthy(own_lab, NODE)
    yield own_lab
    tree.write_hardware(machine, own_lab / NODE / "hw")
    tree.write_tools(machine, own_lab / NODE / "sys")


@pytest.fixture
def converged(lab: Path, on_node: Answer) -> Path:
    done = lab / "converged"
    if not done.exists():
        for module in MODULES[1:]:
            assert on_node(module, NODE)["findings"] == []
        done.touch()
    return lab


def system(lab: Path, path: str) -> Path:
    return lab / NODE / "sys" / path.lstrip("/")


def bad(results: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(f["check"], f["state"], f["because"]) for result in results for f in result["findings"]]


def test_a_guest_converges_and_its_image_keeps_what_nobody_declares(converged: Path, on_node: Answer) -> None:
    results = {module: on_node(module, NODE, check_mode=True) for module in MODULES}
    assert bad(list(results.values())) == []
    assert [module for module, result in results.items() if result["changed"]] == []
    text = system(converged, "/etc/nccl.conf").read_text()
    kept = ("NCCL_IB_PCI_RELAXED_ORDERING=1", "NCCL_IGNORE_CPU_AFFINITY=1", f"NCCL_TOPO_FILE={TOPOLOGY}")
    assert {*kept, "NCCL_IB_HCA==mlx5_ib0,mlx5_ib1,mlx5_ib2,mlx5_ib3,mlx5_ib4,mlx5_ib5,mlx5_ib6,mlx5_ib7"} <= {
        *text.splitlines()
    }
    said = {module: " ".join(result.get("notes", ())) for module, result in results.items()}
    for module in ("topology_info", "iommu", "pcie_path"):
        assert "(Azure, hyper-v)" in said[module]
    # The topology file is the profile's, and no more kept of the image.
    assert "NCCL_IB_PCI_RELAXED_ORDERING=1, NCCL_IGNORE_CPU_AFFINITY=1;" in said["nccl_conf"]
    assert "nccl_conf.topo_file[persisted]@NCCL_TOPO_FILE" in results["nccl_conf"]["passed"]


def test_somebody_elses_edit_is_no_part_of_the_image(converged: Path, on_node: Answer) -> None:
    path = system(converged, "/etc/nccl.conf")
    text = path.read_text()
    path.write_text(text + "NCCL_P2P_DISABLE=1\n")
    done = on_node("nccl_conf", NODE)
    assert [f["check"] for f in on_node("nccl_conf", NODE, check_mode=True)["findings"]] == []
    assert done["repaired"] == ["nccl_conf.file[persisted]@/etc/nccl.conf"]
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
    wrong["slow"] = topology_file(azure_nd_h100_v5(NODE), "16.0 GT/s PCIe")
    if text is None:
        path.unlink()
    else:
        path.write_text(wrong.get(text, text))
    results = [on_node(module, NODE, check_mode=True) for module in ("topology_info", "nccl_conf")]
    path.write_text(right)
    assert bad(results) == [("nccl_conf.topo_file", state, None)]
    assert says in results[1]["findings"][0]["have"]


def test_a_service_that_writes_nccl_conf_at_every_boot_is_said(converged: Path, on_node: Answer) -> None:
    unit = system(converged, "/etc/systemd/system/sku-customizations.service")
    wanted = system(converged, "/etc/systemd/system/multi-user.target.wants/sku-customizations.service")
    unit.write_text("[Service]\nType=oneshot\nExecStart=/usr/sbin/setup_sku_customizations.sh\n")
    assert bad([on_node("nccl_conf", NODE, check_mode=True)]) == []
    wanted.symlink_to(unit)
    found = bad([on_node("nccl_conf", NODE, check_mode=True)])
    wanted.unlink()
    assert found == [("nccl_conf.owner", "not_owned", None)]


def test_elastic_fabric_adapters_are_never_green(converged: Path, on_node: Answer) -> None:
    """An instance of AWS that somebody took for another cloud's: its adapters stand where the rails should."""
    machine: Machine = store.healthy(converged, NODE)
    for rail in range(8):
        machine.unplug(machine.rail(rail).address)
    machine.host_bridges.append(HostBridge("pci0000:00", -1))
    efa = Function(
        *("0000:00:1e.0", "pci0000:00", ETHERNET, "0x1d0f", "0xefa2", "0x0000", "0x00", -1, None), link=NO_LINK
    )
    machine.functions.append(efa)
    tree.write_hardware(machine, converged / NODE / "hw")
    tree.write_tools(machine, converged / NODE / "sys")
    found = on_node("topology_info", NODE, check_mode=True)
    roots = [(f["check"], f["state"], f["severity"]) for f in found["findings"] if f["because"] is None]
    assert roots == [("platform.efa", "unsupported", "critical")]


def test_bare_metal_of_oci_converges_and_nothing_is_said_of_its_paths(lab: Path, on_node: Answer) -> None:
    for module in MODULES[1:]:
        assert bad([on_node(module, METAL)]) == []
    results = {module: on_node(module, METAL, check_mode=True) for module in MODULES}
    assert bad(list(results.values())) == []
    assert [module for module, result in results.items() if result["changed"]] == []
    passed = {name.partition("[")[0] for result in results.values() for name in result["passed"]}
    assert {"platform.rail_state", "platform.gpu_pcie"} <= passed
    assert "platform.rail_path" not in passed
    hcas = ",".join(f"mlx5_{rail}" for rail in range(16))
    assert f"NCCL_IB_HCA=={hcas}" in (lab / METAL / "sys/etc/nccl.conf").read_text().splitlines()
    assert "bare metal of OCI: its agent" in " ".join(results["topology_info"]["notes"])


def test_one_port_of_a_card_of_oci_is_a_rail_of_its_own(lab: Path, on_node: Answer) -> None:
    machine: Machine = store.healthy(lab, METAL)
    machine.take_down(machine.rail(5), "3: Disabled")
    tree.write_hardware(machine, lab / METAL / "hw")
    found = on_node("topology_info", METAL, check_mode=True)["findings"]
    tree.write_hardware(store.healthy(lab, METAL), lab / METAL / "hw")
    roots = [(one["check"], one["subject"].split()[0]) for one in found if one["because"] is None]
    assert roots == [("platform.rail_state", "0000:41:00.1")]
