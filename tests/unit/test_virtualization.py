# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import virtualization
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import line

GUEST = "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\nbugs\t\t: x\n\n"
METAL = "processor\t: 0\nmodel name\t: hypervisor 9000\nflags\t\t: fpu vme lahf_lm\nvmx flags\t: vnmi hypervisor\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


def machine(root: Path, cpuinfo: str | None, vendor: str = "", product: str = "", xen: str = "", tag: str = "") -> Host:
    for path, text in (
        ("sys/class/dmi/id/chassis_asset_tag", tag),
        ("proc/cpuinfo", cpuinfo),
        ("sys/class/dmi/id/sys_vendor", vendor),
        ("sys/class/dmi/id/product_name", product),
        ("sys/hypervisor/type", xen),
    ):
        if text:
            line(root / path, text)
    return Host(str(root))


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "xen", "hypervisor"),
    [
        pytest.param(GUEST, "QEMU", "Standard PC (Q35 + ICH9, 2009)", "", "kvm", id="qemu"),
        pytest.param(GUEST, "OpenStack Foundation", "OpenStack Nova", "", "kvm", id="openstack"),
        pytest.param(GUEST, "VMware, Inc.", "VMware7,1", "", "vmware", id="vmware"),
        pytest.param(GUEST, "Microsoft Corporation", "Virtual Machine", "", "hyper-v", id="azure"),
        pytest.param(GUEST, "Amazon EC2", "p5.48xlarge", "", "amazon", id="amazon"),
        pytest.param(GUEST, "Google", "Google Compute Engine", "", "google", id="google"),
        pytest.param(GUEST, "Xen", "HVM domU", "xen", "xen", id="xen"),
        pytest.param(GUEST, "Dell Inc.", "PowerEdge XE9680", "xen", "xen", id="xen dom0 goes by its flag"),
        pytest.param(GUEST, "", "", "", "unknown", id="firecracker without dmi"),
        pytest.param(METAL, "QEMU", "Standard PC", "", "kvm", id="flag hidden by the hypervisor"),
        pytest.param(ARM, "QEMU", "KVM Virtual Machine", "", "kvm", id="arm guest"),
        pytest.param(ARM, "Amazon EC2", "g5g.xlarge", "", "amazon", id="arm amazon"),
        pytest.param(ARM, "", "", "xen", "xen", id="arm xen"),
        pytest.param(None, "QEMU", "", "", "kvm", id="no cpuinfo"),
    ],
)
def test_guest(tmp_path: Path, cpuinfo: str | None, vendor: str, product: str, xen: str, hypervisor: str) -> None:
    found, problems = virtualization.read(machine(tmp_path, cpuinfo, vendor, product, xen))
    assert (found.is_vm, found.hypervisor) == (True, hypervisor)
    assert problems == ()


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "source"),
    [
        pytest.param(METAL, "NVIDIA", "DGXH100", "/proc/cpuinfo", id="dgx"),
        pytest.param(METAL, "Microsoft Corporation", "Surface", "/proc/cpuinfo", id="hardware of a hypervisor's maker"),
        pytest.param(METAL, "Amazon EC2", "p5.metal", "/proc/cpuinfo", id="amazon metal"),
        pytest.param(METAL, "", "", "/proc/cpuinfo", id="no dmi"),
        pytest.param(ARM, "NVIDIA", "P3880", "/sys/class/dmi/id/sys_vendor", id="grace"),
        pytest.param(ARM, "Amazon EC2", "c7g.metal", "/sys/class/dmi/id/sys_vendor", id="amazon arm metal"),
    ],
)
def test_bare_metal(tmp_path: Path, cpuinfo: str, vendor: str, product: str, source: str) -> None:
    found, problems = virtualization.read(machine(tmp_path, cpuinfo, vendor, product))
    cloud = "AWS" if vendor.startswith("Amazon") else ""
    assert found == virtualization.Virtualization(False, "none", source, cloud)
    assert problems == ()


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "tag", "owner"),
    [
        pytest.param(GUEST, "Microsoft Corporation", "Virtual Machine", AZURE_TAG, "Azure, hyper-v", id="azure"),
        pytest.param(GUEST, "Microsoft Corporation", "Virtual Machine", "1234", "hyper-v", id="hyper-v at home"),
        pytest.param(GUEST, "QEMU", "Standard PC", "OracleCloud.com", "OCI, kvm", id="oci"),
        pytest.param(METAL, "Supermicro", "SYS-821GE", "OracleCloud.com", "OCI, none", id="metal of oci"),
        pytest.param(GUEST, "Amazon EC2", "p5.48xlarge", "Amazon EC2", "AWS, amazon", id="aws"),
        pytest.param(GUEST, "Google", "Google Compute Engine", "", "Google Cloud, google", id="google"),
        pytest.param(METAL, "Dell Inc.", "PowerEdge XE9680", "To be filled", "none", id="one's own"),
    ],
)
def test_a_cloud_by_its_dmi(tmp_path: Path, cpuinfo: str, vendor: str, product: str, tag: str, owner: str) -> None:
    found, problems = virtualization.read(machine(tmp_path, cpuinfo, vendor, product, tag=tag))
    assert (found.owner, problems) == (owner, ())


@pytest.mark.parametrize(
    ("vendor", "device", "cloud"),
    [
        ("0x1d0f", "0xec20", "AWS"),
        ("0x1d0f", "0xefa2", "AWS"),
        ("0x1414", "0x00ba", "Azure"),
        ("0x1ae0", "0x0042", "Google Cloud"),
        ("0x1414", "0x008e", ""),
        ("what", "0x0042", ""),
    ],
)
def test_a_cloud_by_its_devices_where_a_container_hides_the_dmi(
    tmp_path: Path, vendor: str, device: str, cloud: str
) -> None:
    for root, cpuinfo in ((tmp_path / "guest", GUEST), (tmp_path / "metal", METAL)):
        for address, ids in (("0000:00:01.0", ("0x8086", "0x1237")), ("0000:00:05.0", (vendor, device))):
            for name, text in zip(("vendor", "device"), ids, strict=True):
                line(root / "sys/bus/pci/devices" / address / name, text)
        found, problems = virtualization.read(machine(root, cpuinfo))
        assert (found.cloud, problems) == (cloud if cpuinfo == GUEST else "", ())


@pytest.mark.parametrize("cpuinfo", [None, ARM])
def test_nothing_that_tells_is_taken_for_bare_metal_with_a_problem(tmp_path: Path, cpuinfo: str | None) -> None:
    found, problems = virtualization.read(machine(tmp_path, cpuinfo))
    assert (found.is_vm, found.hypervisor) == (False, "none")
    assert len(problems) == 1


def test_unreadable_dmi_is_a_problem_and_the_flag_decides(tmp_path: Path) -> None:
    host = machine(tmp_path, GUEST, "QEMU")
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_bytes(b"\xff\xff")
    found, problems = virtualization.read(host)
    assert (found.is_vm, found.hypervisor) == (True, "unknown")
    assert [problem.source for problem in problems] == ["/sys/class/dmi/id/sys_vendor"]


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(max_size=80), st.text(alphabet="flags: \t\nhypervisor", max_size=80)))
def test_any_cpuinfo_gives_an_answer(text: str) -> None:
    assert virtualization.parse_hypervisor_flag(text) in (True, False, None)
