# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, Port

from tests import golden_rows, goldens
from tests.trees import line, lines, rdma_device

LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe40:8df2"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
UNIQUE_LOCAL = "fd02:0000:0000:0058:0000:0000:0000:0001"


def gid(path: Path, index: int, text: str, kind: str | None = None, netdev: str | None = None) -> None:
    line(path / "ports/1/gids" / str(index), text)
    if kind is not None:
        line(path / "ports/1/gid_attrs/types" / str(index), kind)
    if netdev is not None:
        line(path / "ports/1/gid_attrs/ndevs" / str(index), netdev)


def refused(path: Path) -> None:
    """A file that cannot be read: a directory, where the kernel would say EINVAL."""
    path.mkdir(parents=True)


def test_first_rocev2_gid_of_each_family_is_found_wherever_it_is() -> None:
    def port(*gids: tuple[int, str, str | None]) -> Port:
        made = tuple(Gid(index, text, kind, None) for index, text, kind in gids)
        return Port(1, "ACTIVE", "LinkUp", 400.0, "4X NDR", "Ethernet", made)

    usual = [(0, LINK_LOCAL, "IB/RoCE v1"), (1, LINK_LOCAL, "RoCE v2"), (2, MAPPED, "IB/RoCE v1")]
    shifted = port(*usual, (4, UNIQUE_LOCAL, "RoCE v2"), (7, MAPPED, "RoCE v2"), (9, MAPPED, "RoCE v2"))
    ipv4, ipv6 = rdma.rocev2(shifted, "ipv4"), rdma.rocev2(shifted, "ipv6")
    assert ipv4 is not None
    assert ipv6 is not None
    assert (ipv4.index, ipv6.index) == (7, 4)
    assert rdma.rocev2(port(*usual), "ipv4") is None
    assert rdma.rocev2(port(*usual), "ipv6") is None
    assert rdma.rocev2(port((3, MAPPED, None)), "ipv4") is None


def used_gid_slots(root: Path) -> None:
    path = rdma_device(root, "mlx5_0", link_layer="Ethernet")
    gid(path, 10, MAPPED, "RoCE v2", "ens1f0np0")
    gid(path, 3, LINK_LOCAL, "RoCE v2", "ens1f0np0")
    gid(path, 4, "0000:0000:0000:0000:0000:0000:0000:0000")
    gid(path, 5, "fe80::1")  # emptied between the two reads
    refused(path / "ports/1/gid_attrs/types/5")


def without_netdev(root: Path) -> None:
    path = rdma_device(root, "mlx5_0")
    gid(path, 0, LINK_LOCAL, "IB/RoCE v1")
    refused(path / "ports/1/gid_attrs/ndevs/0")


def escapes_and_binary(root: Path) -> None:
    path = rdma_device(root, "mlx5_0")
    line(path / "fw_ver", "\x1b[2J28.41")
    (path / "board_id").write_bytes(b"\xff\xfe")


def no_pci_function(root: Path) -> None:
    nic = "pci0000:15/0000:15:01.0/0000:16:00.0"
    lines(rdma_device(root, "rxe0", nic), {"parent": "eth0", "fw_ver": ""})
    rdma_device(root, "siw0", None)
    rdma_device(root, "mlx5_4", nic + "/mlx5_core.sf.4")


CASES: dict[str, Callable[[Path], object]] = {
    "read whole": lambda root: gid(rdma_device(root, "mlx5_0"), 0, LINK_LOCAL, "IB/RoCE v1"),
    "no driver": lambda root: None,
    "used GID slots": used_gid_slots,
    "InfiniBand GID without netdev": without_netdev,
    "no ports": lambda root: line(root / "sys/class/infiniband/mlx5_0/node_guid", "9c63:c003:00aa:bb00"),
    "escapes and binary": escapes_and_binary,
    "no port number": lambda root: line(rdma_device(root, "mlx5_0") / "ports/one/state", "4: ACTIVE"),
    "no PCI function": no_pci_function,
    "empty GID type": lambda root: gid(rdma_device(root, "mlx5_0"), 3, MAPPED, ""),
    "RoCE v3": lambda root: gid(rdma_device(root, "mlx5_0"), 3, MAPPED, "RoCE v3"),
}
ODD = {
    "rate": ("", "400 Gb/sec (4X"),
    "state": ("", "4: ACT"),
    "phys_state": ("5: <unknown>",),
    "link_layer": ("Infini",),
}
for name, texts in ODD.items():
    for text in texts:
        changes: dict[str, Any] = {name: text}
        CASES[f"{name} {text}"] = functools.partial(rdma_device, name="mlx5_0", **changes)


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_read_of_a_tree(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    devices, problems = rdma.read(Host(str(tmp_path)))
    rows: list[Any] = []
    for device in devices:
        rows.append([value for name, value in device._asdict().items() if name != "ports"])
        for port in device.ports:
            rows.append([value for name, value in port._asdict().items() if name != "gids"])
            rows += [list(asdict(one).values()) for one in port.gids]
    assert not [problem for problem in problems if "\x1b" in str(problem)]
    goldens.check(
        "rdma", case, [*rows, *[[problem.source, golden_rows.values(problem.message)] for problem in problems]]
    )


def test_devices_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_1"):
        rdma_device(tmp_path, name)
    found = rdma.read(Host(str(tmp_path)))[0]
    assert [one.name for one in found] == ["mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"]
