# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import virtualization

from tests import goldens
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


MICROSOFT, AMAZON = "Microsoft Corporation", "Amazon EC2"
# /proc/cpuinfo, then vendor and product of DMI, type of /sys/hypervisor, and asset tag.
CASES: dict[str, tuple[str | None, *tuple[str, ...]]] = {
    "qemu": (GUEST, "QEMU", "Standard PC (Q35 + ICH9, 2009)"),
    "openstack": (GUEST, "OpenStack Foundation", "OpenStack Nova"),
    "vmware": (GUEST, "VMware, Inc.", "VMware7,1"),
    "azure": (GUEST, MICROSOFT, "Virtual Machine", "", AZURE_TAG),
    "azure without a tag": (GUEST, MICROSOFT, "Virtual Machine"),
    "hyper-v at home": (GUEST, MICROSOFT, "Virtual Machine", "", "1234"),
    "amazon": (GUEST, AMAZON, "p5.48xlarge"),
    "amazon with a tag": (GUEST, AMAZON, "p5.48xlarge", "", AMAZON),
    "google": (GUEST, "Google", "Google Compute Engine"),
    "oci": (GUEST, "QEMU", "Standard PC", "", "OracleCloud.com"),
    "xen": (GUEST, "Xen", "HVM domU", "xen"),
    "xen dom0 goes by its flag": (GUEST, "Dell Inc.", "PowerEdge XE9680", "xen"),
    "firecracker without dmi": (GUEST,),
    "flag hidden by the hypervisor": (METAL, "QEMU", "Standard PC"),
    "arm guest": (ARM, "QEMU", "KVM Virtual Machine"),
    "arm amazon": (ARM, AMAZON, "g5g.xlarge"),
    "arm xen": (ARM, "", "", "xen"),
    "no cpuinfo": (None, "QEMU"),
    "dgx": (METAL, "NVIDIA", "DGXH100"),
    "hardware of a hypervisor's maker": (METAL, MICROSOFT, "Surface"),
    "amazon metal": (METAL, AMAZON, "p5.metal"),
    "metal of oci": (METAL, "Supermicro", "SYS-821GE", "", "OracleCloud.com"),
    "one's own metal": (METAL, "Dell Inc.", "PowerEdge XE9680", "", "To be filled"),
    "metal without dmi": (METAL,),
    "grace": (ARM, "NVIDIA", "P3880"),
    "amazon arm metal": (ARM, AMAZON, "c7g.metal"),
    # Taken for bare metal, with a problem.
    "nothing": (None,),
    "arm and nothing that tells": (ARM,),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_a_machine_is(tmp_path: Path, case: str) -> None:
    found, problems = virtualization.read(machine(tmp_path, *CASES[case]))
    goldens.check("virtualization", case, [[*found, found.owner, len(problems)]])


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


def test_unreadable_dmi_is_a_problem_and_the_flag_decides(tmp_path: Path) -> None:
    host = machine(tmp_path, GUEST, "QEMU")
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_bytes(b"\xff\xff")
    found, problems = virtualization.read(host)
    assert (found.is_vm, found.hypervisor) == (True, "unknown")
    assert [problem.source for problem in problems] == ["/sys/class/dmi/id/sys_vendor"]
