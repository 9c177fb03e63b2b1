"""The links between root ports and switches, above GPUs and NICs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pcie_link import gbps
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform import plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import PcieLink, Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology, join

from tests import golden_rows, goldens

from .conftest import Edit, built_in, machine


def bridge(address: str, *ancestors: str, **changes: Any) -> PciDevice:
    source = f"/sys/devices/{'/'.join(ancestors)}/{address}"
    made = PciDevice(address, 0x060400, 0x1000, 0xC030, 0, ancestors, 32.0, 16, 32.0, 16, None, "pcieport", source)
    return made._replace(**changes)


def tree(topology: Topology, deep: bool = False) -> Topology:
    """Each pair of GPU and NIC below a switch of its own; deep: the GPU below a second one."""
    bridges: dict[str, PciDevice] = {}
    gpus, nics = list(topology.gpus), list(topology.nics)
    for index in range(8):
        root, up = f"0000:a{index}:01.0", f"0000:b{index}:00.0"
        down = [f"0000:c{index}:0{number}.0" for number in range(2)]
        host = f"pci0000:a{index}"
        bridges[root], bridges[up] = bridge(root, host), bridge(up, host, root)
        for one in down:
            bridges[one] = bridge(one, host, root, up)
        above: tuple[str, ...] = (host, root, up, down[0])
        if deep:
            second, port = f"0000:d{index}:00.0", f"0000:e{index}:00.0"
            bridges[second], bridges[port] = bridge(second, *above), bridge(port, *above, second)
            above = (*above, second, port)
        gpus[index] = replace(gpus[index], device=gpus[index].device._replace(ancestors=above))
        nics[index] = nics[index]._replace(device=nics[index].device._replace(ancestors=(host, root, up, down[1])))
    return replace(topology, gpus=tuple(gpus), nics=tuple(nics), bridges=bridges)


def changed(topology: Topology, address: str, **changes: Any) -> Topology:
    return replace(topology, bridges={**topology.bridges, address: topology.bridges[address]._replace(**changes)})


H100 = built_in("hgx-h100", "infiniband")
TREE, DEEP = tree(machine()), tree(machine(), True)
SLOW = {"current_speed_gts": 16.0, "max_speed_gts": 16.0}
NONE = dict.fromkeys(("current_speed_gts", "current_width", "max_speed_gts", "max_width"))
EMPTY = (Problem("/sys/bus/pci/devices/0000:b1:00.0/x", "is empty"),)
WITHOUT_B1 = {address: one for address, one in TREE.bridges.items() if address != "0000:b1:00.0"}


def nics_at(topology: Topology, speed: float) -> Topology:
    nics = tuple(nic._replace(device=nic.device._replace(max_speed_gts=speed)) for nic in topology.nics)
    return replace(topology, nics=nics)


def two_rails_below_one_uplink() -> Topology:
    """It carries each of them."""
    moved = TREE.gpus[1].device._replace(ancestors=TREE.gpus[0].device.ancestors)
    return Edit.gpu(Edit.nic(TREE, 1, device_ancestors=TREE.nics[0].device.ancestors), 1, device=moved)


def asleep() -> Topology:
    idle = TREE.gpus[2].device._replace(current_speed_gts=2.5)
    return Edit.gpu(changed(TREE, "0000:c2:00.0", current_speed_gts=2.5), 2, device=idle)


def in_a_guest() -> Topology:
    narrow = changed(TREE, "0000:b3:00.0", current_width=1)
    return replace(narrow, virtualization=narrow.virtualization._replace(is_vm=True))


CASES: dict[str, tuple[Topology, Profile]] = {
    "a switch for each pair": (TREE, H100),
    "two switches for each pair": (DEEP, H100),
    "no switch": (machine(), H100),
    # What is the platform's design is no finding.
    "two rails below one uplink": (two_rails_below_one_uplink(), H100),
    "slower NIC": (nics_at(changed(TREE, "0000:b5:00.0", **SLOW), 16.0), H100),
    # 800 Gbit/s, and the GPU below the NIC's own switch.
    "more than a CPU has": (
        nics_at(TREE, 64.0),
        replace(H100, rails=tuple(replace(rail, rate_gbps=800) for rail in H100.rails)),
    ),
    "GPU asleep": (asleep(), H100),
    "in a virtual machine": (in_a_guest(), H100),
    "a conventional bridge": (changed(TREE, "0000:b3:00.0", **NONE), H100),
    "second switch at x4": (changed(DEEP, "0000:d5:00.0", current_width=4), H100),
    "too little for its rail": (changed(DEEP, "0000:b5:00.0", **SLOW), H100),
    "too little for its rail, second switch": (changed(DEEP, "0000:d5:00.0", **SLOW), H100),
    "a bridge unread": (replace(TREE, bridges=WITHOUT_B1), H100),
}
SLOWER = (("8 GT/s", "current_speed_gts", 8.0), ("x4", "current_width", 4), ("x8", "current_width", 8))
for name, field, value in SLOWER:
    CASES[f"uplink at {name}"] = (changed(TREE, "0000:b3:00.0", **{field: value}), H100)
    CASES[f"uplink at {name}, two switches"] = (changed(DEEP, "0000:b3:00.0", **{field: value}), H100)
for name in ("current_speed_gts", "current_width", "max_speed_gts"):
    CASES[f"no {name}"] = (replace(changed(TREE, "0000:b1:00.0", **{name: None}), problems=EMPTY), H100)


@pytest.mark.golden
def test_links_of_a_machine() -> None:
    said = []
    for case, (topology, profile) in CASES.items():
        made = plan(topology, profile)
        links = tuple(one for one in made.findings if one.check == "platform.pcie_link")
        assert [one for one in made.findings if not one.ok and one not in links and case != "more than a CPU has"] == []
        goldens.check("pcie_link", case, [*golden_rows.measured(links), *[one.subject for one in links if not one.ok]])
        said += golden_rows.sentences(case, made._replace(findings=links))
    goldens.text("pcie_link", "\n".join(said) + "\n")


@pytest.mark.golden
@pytest.mark.parametrize("driver", [None, "vfio-pci", "mlx5_core"])
def test_a_nic_on_the_bus_without_a_driver_is_reported_as_that(driver: str | None) -> None:
    device = TREE.nics[3].device._replace(driver=driver)
    functions = {nic.pci: nic.device for nic in TREE.nics[:3]} | {device.address: device}
    functions["vf"] = TREE.nics[4].device._replace(physfn="0000:01:00.0")
    others = [nic.rdma for nic in TREE.nics[:3] if nic.rdma]
    read = join(functions, others, (), (), TREE.gpus, TREE.driver, TREE.virtualization, ())
    assert read.without_rdma == (device,)
    left = replace(TREE, nics=(*TREE.nics[:3], *TREE.nics[4:]), without_rdma=(device,))
    made = plan(left, H100)
    goldens.check("pcie_link", f"NIC without RDMA, {driver}", golden_rows.measured(made.findings))
    [finding] = [one for one in made.findings if not one.ok]
    assert (driver or "no driver") in str(finding.have)
    assert device.address in finding.fix
    # A NIC in another place is not the missing one.
    elsewhere = device._replace(ancestors=TREE.nics[0].device.ancestors)
    goldens.check(
        "pcie_link",
        "NIC without RDMA elsewhere",
        golden_rows.measured(plan(replace(left, without_rdma=(elsewhere,)), H100).findings),
    )


@pytest.mark.parametrize(
    ("speed", "width", "carried"), [(2.5, 16, 32), (8, 4, 31.5), (16, 16, 252.1), (32, 16, 504.1), (64, 16, 968)]
)
def test_what_a_link_carries_is_less_than_its_symbols(speed: float, width: int, carried: float) -> None:
    assert gbps(PcieLink(speed, width)) == pytest.approx(carried, rel=0.001)
