# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Detect virtual machine or bare metal, and the cloud: it decides whether PCI topology, ACS and IOMMU are judged.

Sources: systemd's detect-virt; cloud-init's ds-identify (asset tags of chassis); PCI ids of the clouds' own devices in
the kernel's drivers ena, efa, gve and mana.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from ..core.host import Host, Problem, attempt
from .pci import DEVICES, parse_hex, parse_text, read_value

VENDOR = "/sys/class/dmi/id/sys_vendor"
PRODUCT = "/sys/class/dmi/id/product_name"
ASSET_TAG = "/sys/class/dmi/id/chassis_asset_tag"
CPUINFO = "/proc/cpuinfo"
X86, ARM = "x86_64", "aarch64"
HYPERVISOR = "/sys/hypervisor/type"
# Start of sys_vendor, start of product_name, hypervisor. Bare-metal machines of the two clouds say the same.
_DMI = (
    ("QEMU", "", "kvm"),
    ("", "KVM", "kvm"),
    ("", "OpenStack", "kvm"),
    ("VMware", "", "vmware"),
    ("Xen", "", "xen"),
    ("Microsoft Corporation", "Virtual Machine", "hyper-v"),
    ("Amazon EC2", "", "amazon"),
    ("Google", "Google Compute Engine", "google"),
)
_CLOUDS_WITH_BARE_METAL = ("amazon", "google")
AZURE, OCI, AWS, GCP = "Azure", "OCI", "AWS", "Google Cloud"
# A cloud's machines of metal say the same as its virtual ones.
_ASSET_TAGS = {"7783-7084-3265-9085-8269-3286-77": AZURE, "OracleCloud.com": OCI, "Amazon EC2": AWS}
_CLOUD_OF = {"amazon": AWS, "google": GCP}
# Vendors of devices that exist in one cloud only: MANA, ENA and EFA, gVNIC. A container may hide the DMI.
_DEVICES: Dict[Tuple[Optional[int], ...], str] = {(0x1414, 0x00BA): AZURE, (0x1AE0, 0x0042): GCP}
_AMAZON = 0x1D0F


class Virtualization(NamedTuple):
    is_vm: bool
    # "kvm", "vmware", "xen", "hyper-v", "amazon", "google", "unknown"; "none" on bare metal
    hypervisor: str
    source: str  # the file that decided
    # AZURE, OCI, AWS or GCP; "" where nothing shows one of them
    cloud: str = ""

    @property
    def owner(self) -> str:
        """Return a name of the owner of the host below a guest: ``Azure, hyper-v`` or ``kvm``."""
        return "%s, %s" % (self.cloud, self.hypervisor) if self.cloud else self.hypervisor


def parse_hypervisor_flag(text: str) -> Optional[bool]:
    """Return the ``hypervisor`` flag of /proc/cpuinfo; None if the architecture has no such flags (Arm)."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "flags":
            return "hypervisor" in value.split()
    return None


def read(host: Host) -> Tuple[Virtualization, Tuple[Problem, ...]]:
    """The CPU flag decides, except where the DMI strings name a hypervisor that may hide it."""
    problems: List[Problem] = []
    vendor = read_value(host, VENDOR, parse_text, problems)
    product = read_value(host, PRODUCT, parse_text, problems) or ""
    tag = read_value(host, ASSET_TAG, parse_text, []) or ""
    fits = (name for by, model, name in _DMI if (vendor or "").startswith(by) and product.startswith(model))
    named = next(fits, None)
    found = _detect(host, vendor, product, named, problems)
    cloud = _ASSET_TAGS.get(tag) or _CLOUD_OF.get(named or "", "")
    # Machines of metal have ten times the devices, and their DMI is not hidden.
    return found._replace(cloud=cloud or (_by_devices(host) if found.is_vm else "")), tuple(problems)


def _by_devices(host: Host) -> str:
    """Return the cloud of one of the guest's PCI devices. Other checks report unreadable devices."""
    unread: List[Problem] = []
    for name in attempt(lambda: host.listdir(DEVICES), DEVICES, unread) or []:
        path = "%s/%s/" % (DEVICES, name)
        ids = tuple(read_value(host, path + file, parse_hex, unread) for file in ("vendor", "device"))
        if ids[0] == _AMAZON or ids in _DEVICES:
            return _DEVICES.get(ids, AWS)
    return ""


def _detect(
    host: Host, vendor: Optional[str], product: str, named: Optional[str], problems: List[Problem]
) -> Virtualization:
    flag = read_value(host, CPUINFO, parse_hypervisor_flag, problems)
    xen = read_value(host, HYPERVISOR, parse_text, problems) == "xen"
    if flag:
        return Virtualization(True, named or ("xen" if xen else "unknown"), CPUINFO)
    metal = named in _CLOUDS_WITH_BARE_METAL and (flag is False or ".metal" in product)
    if named is not None and not metal:
        return Virtualization(True, named, VENDOR if vendor else PRODUCT)
    if xen and flag is None:
        return Virtualization(True, "xen", HYPERVISOR)
    if flag is None and vendor is None:
        problems.append(
            Problem(VENDOR, "neither that, %s nor %s shows whether this is a guest" % (CPUINFO, HYPERVISOR))
        )
    return Virtualization(False, "none", VENDOR if flag is None else CPUINFO)


def notes(machine: Virtualization) -> List[str]:
    """Return sentences for the verdict on what is not judged on this machine, because its host's owner has to."""
    if machine.is_vm:
        return [
            "a virtual machine (%s): PFC, ETS and ECN of its ports, NIC firmware settings, PHY counters, ACS, IOMMU"
            " and ATS belong to its hypervisor, as does the Fabric Manager if it sees no NVSwitch: neither required"
            " here nor proven" % machine.owner
        ]
    if machine.cloud == OCI:
        return [
            "bare metal of OCI: its agent (Compute RDMA GPU plugins) sets the rails' addresses and may overwrite their"
            " QoS; let only one of the two set QoS"
        ]
    return []
