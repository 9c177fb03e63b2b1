# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import pci
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice

from tests import golden_rows, goldens
from tests.trees import GEN5_X16, pci_function


def at(chain: str, numa: int | None = 0) -> PciDevice:
    *ancestors, address = chain.split("/")
    return PciDevice(address, 0x020000, 0x15B3, 0x1021, numa, tuple(ancestors), None, None, None, None, None, None, "x")


def test_addresses_sort_by_number_and_names_by_number_too() -> None:
    addresses = ["10000:01:00.0", "2000:01:00.0", "0000:1b:00.1", "0000:1b:00.0"]
    assert sorted(addresses, key=pci.address_key) == list(reversed(addresses))
    names = ["mlx5_10", "mlx5_bond_0", "mlx5_2", "²", "mlx5_1"]
    assert sorted(names, key=pci.natural_key) == ["mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0", "²"]


PORT = "pci0000:15/0000:15:01.0"
SWITCH = f"{PORT}/0000:16:00.0"
FAR = "pci0000:98/0000:99:00.0"
VMD = "pci0000:5d/0000:5d:05.5/pci10000:00"
BELOW, PLAIN = at(f"{SWITCH}/0000:17:00.0/0000:18:00.0"), at(f"{SWITCH}/0000:18:00.0")
PATHS: dict[str, tuple[PciDevice, PciDevice, str]] = {
    "itself": (PLAIN, PLAIN, "X"),
    "two functions of a card": (BELOW, at(f"{SWITCH}/0000:17:00.0/0000:18:00.1"), "PIX"),
    "card in a root port": (at(f"{PORT}/0000:16:00.0"), at(f"{PORT}/0000:16:00.1"), "PIX"),
    "two downstream ports of one switch": (BELOW, at(f"{SWITCH}/0000:17:01.0/0000:19:00.0"), "PIX"),
    "a second switch": (BELOW, at(f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"), "PXB"),
    "two root ports": (BELOW, at("pci0000:15/0000:15:03.0/0000:20:00.0/0000:21:00.0/0000:22:00.0"), "PHB"),
    "root bus of a guest": (at("pci0000:00/0000:00:06.0"), at("pci0000:00/0000:00:07.0"), "PHB"),
    "one NUMA node": (at(f"{SWITCH}/0000:18:00.0", 1), at("pci0000:3f/0000:40:00.0", 1), "NODE"),
    "two NUMA nodes": (PLAIN, at(FAR, 1), "SYS"),
    "unknown NUMA nodes are not the same": (at(f"{SWITCH}/0000:18:00.0", None), at(FAR, None), "SYS"),
    "one unknown": (PLAIN, at(FAR, None), "SYS"),
    "in a VMD controller": (at(f"{VMD}/10000:00:02.0/10000:01:00.0"), at(f"{VMD}/10000:00:03.0/10000:02:00.0"), "PHB"),
    "place in the tree unknown": (at("0000:18:00.0", None), at("0000:19:00.0", None), "SYS"),
}


@pytest.mark.parametrize(("a", "b", "path"), PATHS.values(), ids=PATHS)
def test_path_class_both_ways(a: PciDevice, b: PciDevice, path: str) -> None:
    assert pci.path_class(a, b) == path
    assert pci.path_class(b, a) == path


def read_whole(root: Path) -> None:
    pci_function(root, PORT, "0x060400", "8086:352a", **GEN5_X16)
    nic = pci_function(root, f"{PORT}/0000:16:00.0", "0x020700", "15b3:1021", numa_node="1", **GEN5_X16)
    driver = root / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (nic / "driver").symlink_to(os.path.relpath(driver, nic))


def slower_slot(root: Path) -> None:
    slot = {**GEN5_X16, "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"}
    pci_function(root, PORT, "0x060400", "8086:352a", **slot)
    pci_function(root, f"{PORT}/0000:16:00.0", **GEN5_X16)


def virtual_function(root: Path) -> None:
    """It has no link of its own."""
    pci_function(root, f"{PORT}/0000:16:00.0", **GEN5_X16)
    unknown = {"current_link_speed": "Unknown", "current_link_width": "0"}
    vf = pci_function(root, f"{PORT}/0000:16:00.2", "0x020000", "15b3:101e", **{**GEN5_X16, **unknown})
    (vf / "physfn").symlink_to("../0000:16:00.0")


def functions_whose_links_do_not_matter(root: Path) -> None:
    pci_function(root, "pci0000:00/0000:00:1f.0", "0x010601", "8086:1bd2", current_link_speed="Unknown")
    pci_function(root, "pci0000:00/0000:00:1c.0", "0x060400", "8086:1bbe", current_link_speed="Unknown")


def link_that_leaves_the_tree(root: Path) -> None:
    (pci_function(root, "pci0000:00/0000:00:06.0") / "driver").symlink_to("/usr")


BELOW_VMBUS = "LNXSYSTM:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0101:00/0101:00:00.0"
CASES: dict[str, Callable[[Path], object]] = {
    "read whole": read_whole,
    "slower slot": slower_slot,
    "virtual function": virtual_function,
    "NUMA node -1": lambda root: pci_function(root, "pci0000:00/0000:00:06.0", "0x030200", "10de:2335", numa_node="-1"),
    "links that do not matter": functions_whose_links_do_not_matter,
    "host bridge below other buses": lambda root: pci_function(root, BELOW_VMBUS, "0x030200", "10de:2330"),
    "outside the tree": lambda root: pci_function(root, "platform/0000:00:06.0"),
    "no PCI": lambda root: None,
    "odd name": lambda root: (root / "sys/bus/pci/devices/oops").mkdir(parents=True),
    "link that leaves the tree": link_that_leaves_the_tree,
}
for name, text in (
    *(("numa_node", ""), ("numa_node", "garbage"), ("current_link_speed", "Unknown"), ("max_link_speed", "[N/A]")),
    *(("current_link_width", "0"), ("current_link_width", "63"), ("max_link_width", "255")),
):
    changes: dict[str, Any] = {**GEN5_X16, "kind": "0x030200", "ids": "10de:2330", name: text}
    CASES[f"{name} {text}"] = functools.partial(pci_function, chain=PORT, **changes)


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_read_of_a_tree(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    devices, problems = pci.read(Host(str(tmp_path)))
    rows = [list(device) for device in devices.values()]
    said = [[problem.source, golden_rows.values(problem.message.replace(str(tmp_path), ""))] for problem in problems]
    goldens.check("pci", case, rows + said)


@pytest.mark.parametrize("name", ["class", "vendor", "device"])
@pytest.mark.parametrize("damage", ["empty", "missing", "garbage", "binary"])
def test_function_that_cannot_be_identified_is_left_out_with_a_problem(tmp_path: Path, name: str, damage: str) -> None:
    bad = pci_function(tmp_path, "pci0000:00/0000:00:06.0")
    pci_function(tmp_path, "pci0000:00/0000:00:07.0")
    if damage == "missing":
        (bad / name).unlink()
    else:
        (bad / name).write_bytes({"empty": b"", "garbage": b"[Unknown Error]\n", "binary": b"\xff\x00\xfe"}[damage])
    devices, (problem,) = pci.read(Host(str(tmp_path)))
    assert list(devices) == ["0000:00:07.0"]
    assert str(problem).startswith("/sys/bus/pci/devices/0000:00:06.0/" + name)
