"""A hand-made healthy machine: eight GPUs, each with a NIC behind its own switch, as plain dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Driver, Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev import Netdev, Route
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, Port, RdmaDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization

from tests.trees import contents

ROOT = Path(__file__).resolve().parent.parent.parent


def pci_device(address: str, class_code: int, numa: int | None) -> PciDevice:
    return PciDevice(
        address=address,
        class_code=class_code,
        vendor=0x10DE if class_code == 0x030200 else 0x15B3,
        device=0x2330,
        numa_node=numa,
        ancestors=(f"pci{address[:7]}",),
        current_speed_gts=32.0,
        current_width=16,
        max_speed_gts=32.0,
        max_width=16,
        physfn=None,
        driver="nvidia",
        source=f"/sys/devices/pci{address[:7]}/{address}",
    )


def gpu(index: int) -> Gpu:
    address = f"0000:{0x10 + 0x10 * index:02x}:00.0"
    return Gpu(
        pci=address,
        index=index,
        device=pci_device(address, 0x030200, index // 4),
        model="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}",
        in_driver=True,
        nvlinks_active=18,
        nvlinks_total=18,
        fabric_state="Completed",
        fabric_status="Success",
    )


def port(link_layer: str) -> Port:
    gids: tuple[Gid, ...] = ()
    if link_layer == "Ethernet":
        gids = tuple(
            Gid(index, gid, kind, "ens1")
            for index, (gid, kind) in enumerate(
                [
                    ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
                    ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
                    ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
                    ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
                ]
            )
        )
    return Port(1, "ACTIVE", "LinkUp", 400.0, "4X NDR", link_layer, gids)


def nic(index: int, link_layer: str) -> Nic:
    address = f"0000:{0x11 + 0x10 * index:02x}:00.0"
    # Verbs order deliberately differs from PCI order.
    name = f"mlx5_{(3, 4, 5, 1, 7, 0, 10, 11)[index]}"
    return Nic(
        pci=address,
        device=pci_device(address, 0x020700, index // 4),
        role="compute",
        reason=f"PIX to GPU {index}",
        rdma=RdmaDevice(
            name,
            address,
            "guid",
            "guid",
            "28.39",
            "MT4129",
            "MT_1",
            (port(link_layer),),
            f"/sys/class/infiniband/{name}",
        ),
        netdevs=(Netdev(f"ib{index}", address, None, 4092, "up", 32, None, (), False, "/sys/class/net"),),
    )


def machine(link_layer: str = "InfiniBand") -> Topology:
    gpus = tuple(gpu(index) for index in range(8))
    nics = tuple(nic(index, link_layer) for index in range(8))
    paths = {
        (g.pci, n.pci): "PIX" if i == j else "NODE" if i // 4 == j // 4 else "SYS"
        for i, g in enumerate(gpus)
        for j, n in enumerate(nics)
    }
    return Topology(
        gpus=gpus,
        nics=nics,
        paths=paths,
        driver=Driver("570.86.15", True, "/proc/driver/nvidia/version"),
        routes=(Route("eno1", 4, 0, 0, 100),),
        virtualization=Virtualization(False, "none", "/proc/cpuinfo"),
        software_rdma=(),
        problems=(),
    )


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def call_module(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Run]:
    """Makes a function that calls a module's main on a simulated node with a built-in profile."""

    def of(main: Callable[[], None], node: Path, profile: str, fabric: str, **others: Any) -> Run:
        def run(check_mode: bool = False, **more: Any) -> dict[str, Any]:
            arguments = {
                "profile": yaml.safe_load((ROOT / "profiles" / f"{profile}.yml").read_text()),
                "fabric": fabric,
                "hardware_root": str(node / "hw"),
                "system_root": str(node / "sys"),
                "_ansible_check_mode": check_mode,
                "_ansible_remote_tmp": str(tmp_path),
            }
            capsys.readouterr()
            with patch_module_args(arguments | others | more), pytest.raises(SystemExit):
                main()
            return dict(json.loads(capsys.readouterr().out))

        return run

    return of


def converge(call: Run, node: Path, **options: Any) -> dict[str, Any]:
    """Run a module; check mode foretells it and touches nothing, and a second run has nothing to do."""
    before = contents(node)
    predicted = call(check_mode=True, **options)
    assert contents(node) == before
    done = call(**options)
    for key in ("changed", "diff", "commands", "repaired"):
        assert predicted[key] == done[key], key
    after = contents(node)
    again = call(**options)
    assert (again["changed"], again["commands"], again["repaired"], contents(node)) == (False, [], [], after)
    return done


@pytest.fixture
def infiniband() -> Topology:
    return machine("InfiniBand")


@pytest.fixture
def roce() -> Topology:
    return machine("Ethernet")


def built_in(name: str, fabric: str) -> Profile:
    return for_fabric(parse(yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text()), name), fabric)


@pytest.fixture
def hgx_h100() -> Profile:
    return built_in("hgx-h100", "infiniband")


@pytest.fixture
def hgx_h100_roce() -> Profile:
    return built_in("hgx-h100", "ethernet")


class Edit:
    """Returns copies of a topology with one thing changed."""

    @staticmethod
    def gpu(topology: Topology, index: int, **changes: Any) -> Topology:
        gpus = [replace(g, **changes) if g.index == index else g for g in topology.gpus]
        return replace(topology, gpus=tuple(gpus))

    @staticmethod
    def nic(topology: Topology, index: int, **changes: Any) -> Topology:
        """changes: fields of the Nic, of its PciDevice (device_X) or of its port (port_X)."""
        nics = list(topology.nics)
        one = nics[index]
        device = {key[7:]: value for key, value in changes.items() if key.startswith("device_")}
        of_port = {key[5:]: value for key, value in changes.items() if key.startswith("port_")}
        own = {key: value for key, value in changes.items() if not key.startswith(("device_", "port_"))}
        one = one._replace(device=one.device._replace(**device), **own)
        if of_port and one.rdma is not None:
            one = one._replace(rdma=one.rdma._replace(ports=(one.rdma.ports[0]._replace(**of_port),)))
        nics[index] = one
        return replace(topology, nics=tuple(nics))

    @staticmethod
    def without_nic(topology: Topology, index: int) -> Topology:
        gone = topology.nics[index].pci
        paths = {pair: path for pair, path in topology.paths.items() if pair[1] != gone}
        return replace(topology, nics=tuple(n for n in topology.nics if n.pci != gone), paths=paths)


@pytest.fixture
def edit() -> type[Edit]:
    return Edit
