"""The links between root ports and switches, above GPUs and NICs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pcie_link import gbps
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform import plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import PcieLink, Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology, join


def bridge(address: str, *ancestors: str, **changes: Any) -> PciDevice:
    source = f"/sys/devices/{'/'.join(ancestors)}/{address}"
    made = PciDevice(address, 0x060400, 0x1000, 0xC030, 0, ancestors, 32.0, 16, 32.0, 16, None, "pcieport", source)
    return replace(made, **changes)


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
        gpus[index] = replace(gpus[index], device=replace(gpus[index].device, ancestors=above))
        nics[index] = replace(nics[index], device=replace(nics[index].device, ancestors=(host, root, up, down[1])))
    return replace(topology, gpus=tuple(gpus), nics=tuple(nics), bridges=bridges)


def found(topology: Topology, profile: Profile) -> list[Finding]:
    return [one for one in plan(topology, profile).findings if not one.ok]


def changed(topology: Topology, address: str, **changes: Any) -> Topology:
    return replace(topology, bridges={**topology.bridges, address: replace(topology.bridges[address], **changes)})


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_tree_has_a_good_finding_for_each_link(infiniband: Topology, hgx_h100: Profile, deep: bool) -> None:
    findings = plan(tree(infiniband, deep), hgx_h100).findings
    links = [one for one in findings if one.check == "platform.pcie_link"]
    assert len(links) == (16 if deep else 8)
    assert all(one.ok for one in links)


@pytest.mark.parametrize("change", [{"current_speed_gts": 8.0}, {"current_width": 4}, {"current_width": 8}])
@pytest.mark.parametrize("deep", [False, True])
def test_a_link_below_what_both_ends_can_is_one_finding_for_all_behind_it(
    infiniband: Topology, hgx_h100: Profile, change: dict[str, Any], deep: bool
) -> None:
    [finding] = found(changed(tree(infiniband, deep), "0000:b3:00.0", **change), hgx_h100)
    assert (finding.check, finding.state, finding.because) == ("platform.pcie_link", "drift", None)
    assert finding.identity == "0000:b3:00.0"
    assert finding.want == "32 GT/s x16, as both ends can"
    assert str(finding.have).endswith("it slows what goes from GPU 3, rail 3 to the host")


def test_a_switch_on_the_way_names_the_pair_that_it_slows(infiniband: Topology, hgx_h100: Profile) -> None:
    [finding] = found(changed(tree(infiniband, True), "0000:d5:00.0", current_width=4), hgx_h100)
    assert finding.subject == "0000:d5:00.0 below 0000:c5:00.0"
    assert finding.have == "32 GT/s x4; it slows what goes between GPU 5 and rail 5"


def test_a_link_that_cannot_carry_its_rail_is_a_finding_on_the_way_to_the_gpu_and_to_the_host(
    infiniband: Topology, hgx_h100: Profile
) -> None:
    slow = {"current_speed_gts": 16.0, "max_speed_gts": 16.0}
    machine = tree(infiniband, True)
    [finding] = found(changed(machine, "0000:b5:00.0", **slow), hgx_h100)
    assert (finding.state, finding.severity, finding.identity) == ("drift", "major", "0000:b5:00.0")
    [finding] = found(changed(machine, "0000:d5:00.0", **slow), hgx_h100)
    assert (finding.want, finding.state) == ("400 Gbit/s for one rail", "drift")
    assert str(finding.have).startswith("16 GT/s x16, all that both ends can: 252 Gbit/s; it slows")
    assert "0000:c5:00.0" in finding.fix


@pytest.mark.parametrize("change", ["shared", "slower NIC", "more than a CPU has"])
def test_what_is_the_platform_s_design_is_no_finding(infiniband: Topology, hgx_h100: Profile, change: str) -> None:
    machine, rails = tree(infiniband), hgx_h100.rails
    if change == "shared":  # two rails below one uplink, which carries each of them
        nics, gpus = list(machine.nics), list(machine.gpus)
        nics[1] = replace(nics[1], device=replace(nics[1].device, ancestors=nics[0].device.ancestors))
        gpus[1] = replace(gpus[1], device=replace(gpus[1].device, ancestors=gpus[0].device.ancestors))
        machine = replace(machine, nics=tuple(nics), gpus=tuple(gpus))
    elif change == "slower NIC":  # its own finding says so
        nics = [replace(nic, device=replace(nic.device, max_speed_gts=16.0)) for nic in machine.nics]
        machine = changed(machine, "0000:b5:00.0", current_speed_gts=16.0, max_speed_gts=16.0)
        machine = replace(machine, nics=tuple(nics))
    else:  # 800 Gbit/s, and the GPU below the NIC's own switch
        rails = tuple(replace(rail, rate_gbps=800) for rail in rails)
        nics = [replace(nic, device=replace(nic.device, max_speed_gts=64.0)) for nic in machine.nics]
        machine = replace(machine, nics=tuple(nics))
    findings = plan(machine, replace(hgx_h100, rails=rails)).findings
    assert [one for one in findings if one.check == "platform.pcie_link" and not one.ok] == []


def test_a_gpu_asleep_says_nothing_of_the_links_above_it(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    machine = tree(infiniband)
    idle = replace(machine.gpus[2].device, current_speed_gts=2.5)
    machine = edit.gpu(changed(machine, "0000:c2:00.0", current_speed_gts=2.5), 2, device=idle)
    assert found(machine, hgx_h100) == []


@pytest.mark.parametrize("driver", [None, "vfio-pci", "mlx5_core"])
def test_a_nic_on_the_bus_without_a_driver_is_reported_as_that(
    infiniband: Topology, hgx_h100: Profile, driver: str | None
) -> None:
    machine = tree(infiniband)
    device = replace(machine.nics[3].device, driver=driver)
    functions = {nic.pci: nic.device for nic in machine.nics[:3]} | {
        device.address: device,
        "vf": machine.nics[4].device,
    }
    functions["vf"] = replace(functions["vf"], physfn="0000:01:00.0")
    others = [nic.rdma for nic in machine.nics[:3] if nic.rdma]
    read = join(functions, others, (), (), machine.gpus, machine.driver, machine.virtualization, ())
    assert read.without_rdma == (device,)
    machine = replace(machine, nics=(*machine.nics[:3], *machine.nics[4:]), without_rdma=(device,))
    [finding] = found(machine, hgx_h100)
    assert (finding.check, finding.subject, finding.severity) == ("platform.rail_device", "rail 3", "critical")
    assert f"{device.address} is on the bus" in str(finding.have)
    assert (driver or "no driver") in str(finding.have)
    assert device.address in finding.fix
    # A NIC in another place is not the missing one.
    elsewhere = replace(device, ancestors=machine.nics[0].device.ancestors)
    [finding] = found(replace(machine, without_rdma=(elsewhere,)), hgx_h100)
    assert finding.have == "no NIC at PIX of GPU 3"


@pytest.mark.parametrize("name", ["current_speed_gts", "current_width", "max_speed_gts"])
def test_what_the_kernel_does_not_say_is_unknown(infiniband: Topology, hgx_h100: Profile, name: str) -> None:
    machine = changed(tree(infiniband), "0000:b1:00.0", **{name: None})
    machine = replace(machine, problems=(Problem("/sys/bus/pci/devices/0000:b1:00.0/x", "is empty"),))
    [finding] = found(machine, hgx_h100)
    assert (finding.check, finding.state) == ("platform.pcie_link", "unknown")
    assert "is empty" in str(finding.have)


def test_a_bridge_that_could_not_be_read_at_all_is_unknown(infiniband: Topology, hgx_h100: Profile) -> None:
    machine = tree(infiniband)
    bridges = {address: one for address, one in machine.bridges.items() if address != "0000:b1:00.0"}
    [finding] = found(replace(machine, bridges=bridges), hgx_h100)
    assert (finding.identity, finding.state) == ("0000:b1:00.0", "unknown")


def test_nothing_is_said_in_a_virtual_machine_nor_where_there_is_no_switch(
    infiniband: Topology, hgx_h100: Profile
) -> None:
    assert [one for one in plan(infiniband, hgx_h100).findings if one.check == "platform.pcie_link"] == []
    machine = changed(tree(infiniband), "0000:b3:00.0", current_width=1)
    guest = replace(machine, virtualization=replace(machine.virtualization, is_vm=True))
    assert found(guest, hgx_h100) == []


def test_a_conventional_bridge_has_no_link(infiniband: Topology, hgx_h100: Profile) -> None:
    none = dict.fromkeys(("current_speed_gts", "current_width", "max_speed_gts", "max_width"))
    assert found(changed(tree(infiniband), "0000:b3:00.0", **none), hgx_h100) == []


@pytest.mark.parametrize(
    ("speed", "width", "carried"), [(2.5, 16, 32), (8, 4, 31.5), (16, 16, 252.1), (32, 16, 504.1), (64, 16, 968)]
)
def test_what_a_link_carries_is_less_than_its_symbols(speed: float, width: int, carried: float) -> None:
    assert gbps(PcieLink(speed, width)) == pytest.approx(carried, rel=0.001)
