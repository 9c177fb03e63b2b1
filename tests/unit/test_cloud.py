# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a machine of a cloud is told of itself, and a network that nobody here can judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import (
    pci,
    platform,
    platform_checks,
    rails,
    topology,
    virtualization,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization

from tests.trees import line, pci_function
from tests.unit.conftest import nic, pci_device

ROOT = Path(__file__).resolve().parent.parent.parent


def efa(address: str) -> pci.PciDevice:
    return pci_device(address, 0x020000, 0)._replace(vendor=0x1D0F, device=0xEFA1, driver=None)


def with_efas(machine: Topology, *functions: pci.PciDevice) -> Topology:
    """Read anew, as the reader joins it: the NICs are gone, and EFAs are there, one with an RDMA device."""
    rdma = nic(0, "Ethernet").rdma
    assert rdma is not None
    devices = {one.address: one for one in (*(gpu.device for gpu in machine.gpus), *functions)}
    found = (rdma._replace(name="rdmap0s6", pci=functions[0].address),)
    return topology.join(devices, found, (), machine.routes, machine.gpus, machine.driver, machine.virtualization, ())


def test_adapters_of_aws_are_no_rails_and_never_green(infiniband: Topology, hgx_h100: Profile) -> None:
    machine = with_efas(infiniband, efa("0000:11:00.0"), efa("0000:04:00.0"))
    assert machine.efa == ("0000:04:00.0", "0000:11:00.0")
    assert {one.role for one in machine.nics} == {"efa"}
    beside = {(gpu.pci, "0000:11:00.0"): "PIX" for gpu in machine.gpus}
    for is_vm in (False, True):
        near = replace(machine, paths=beside, virtualization=machine.virtualization._replace(is_vm=is_vm))
        assert rails.match(near, hgx_h100).nics == {}
    findings = platform.plan(machine, hgx_h100).findings
    bad = [finding for finding in findings if not finding.ok]
    [cause] = [f for f in bad if f.because is None]
    assert (cause.check, cause.state, cause.severity) == ("platform.efa", "unsupported", "critical")
    assert {f.check for f in bad if f.because} == {"platform.rail_device"}
    # What follows from another finding keeps its own cause.
    follows = platform_checks.RAIL_RATE.judge("rail 0", "unknown", because="x.y[live]@z")
    root, *_rails, last = platform._with_efa(machine, [*findings, follows])
    assert (root.check, last.because) == ("platform.efa", "x.y[live]@z")
    # Also where the profile asks for no rail, and no driver has made an RDMA device of them.
    bare = replace(machine, nics=())
    (found,) = [f for f in platform.plan(bare, replace(hgx_h100, rails=())).findings if not f.ok]
    assert (found.check, found.have) == ("platform.efa", "2 Elastic Fabric Adapters, the first at 0000:04:00.0")


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Virtualization(True, "hyper-v", "x", "Azure"), "a virtual machine (Azure, hyper-v)"),
        (Virtualization(True, "kvm", "x"), "a virtual machine (kvm)"),
        (Virtualization(False, "none", "x", "OCI"), "bare metal of OCI"),
        (Virtualization(False, "none", "x", "AWS"), None),
        (Virtualization(False, "none", "x"), None),
    ],
)
def test_what_others_have_to_say_is_noted(machine: Virtualization, says: str | None) -> None:
    said = virtualization.notes(machine)
    assert [str(says) in one for one in said] == ([True] if says else [])


def test_a_virtual_function_in_a_guest_shows_no_link_and_that_is_no_problem(tmp_path: Path) -> None:
    link = {"current_link_speed": "Unknown", "current_link_width": "0"}
    link |= {"max_link_speed": "Unknown", "max_link_width": "0", "numa_node": "-1"}
    tree = pci_function(tmp_path, "pci0101:00/0101:00:00.0", "0x020700", "15b3:101e", **link)
    found, problems = pci.read(Host(str(tmp_path)))
    assert problems == ()
    assert pci.is_mlx5_vf(found["0101:00:00.0"])
    assert found["0101:00:00.0"].current_speed_gts is None
    line(tree / "device", "0x1021")
    assert len(pci.read(Host(str(tmp_path)))[1]) == 4


def test_profiles_of_clouds_name_every_slot() -> None:
    azure, oci = (
        parse(yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text()), name)
        for name in ("azure-nd-h100-v5", "oci-bm-gpu-h100-8")
    )
    assert (len(azure.rails), len(oci.rails)) == (8, 16)
    assert {rail.rate_gbps * len(one.rails) for one in (azure, oci) for rail in one.rails} == {3200}
    assert azure.topology_file == "/opt/microsoft/ndv5-topo.xml"
    # The GPU that a NIC is beside is the next on its switch.
    assert [int(str(oci.rails[2 * n].pci)[5:7], 16) + 3 for n in range(8)] == [int(g[5:7], 16) for g in oci.gpus.pci]
