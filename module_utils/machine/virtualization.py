# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Virtual machine or bare metal: decides whether PCI topology, ACS and IOMMU are ours to judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

from ..core.host import Host, Problem
from .pci import parse_text, read_value

VENDOR = "/sys/class/dmi/id/sys_vendor"
PRODUCT = "/sys/class/dmi/id/product_name"
CPUINFO = "/proc/cpuinfo"
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


@dataclass(frozen=True)
class Virtualization:
    is_vm: bool
    # "kvm", "vmware", "xen", "hyper-v", "amazon", "google", "unknown"; "none" on bare metal
    hypervisor: str
    source: str  # the file that decided


def parse_hypervisor_flag(text: str) -> Optional[bool]:
    """Whether /proc/cpuinfo shows the ``hypervisor`` flag; None where the architecture has no such flags (Arm)."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "flags":
            return "hypervisor" in value.split()
    return None


def hypervisor_of(vendor: str, product: str) -> Optional[str]:
    """The hypervisor, or the cloud, that gives these DMI strings to its guests; None for real machines."""
    for vendor_start, product_start, hypervisor in _DMI:
        if vendor.startswith(vendor_start) and product.startswith(product_start):
            return hypervisor
    return None


def read(host: Host) -> Tuple[Virtualization, Tuple[Problem, ...]]:
    """The CPU flag decides, except where the DMI strings name a hypervisor that may hide it."""
    problems: List[Problem] = []
    flag = read_value(host, CPUINFO, parse_hypervisor_flag, problems)
    vendor = read_value(host, VENDOR, parse_text, problems)
    product = read_value(host, PRODUCT, parse_text, problems) or ""
    xen = read_value(host, HYPERVISOR, parse_text, problems) == "xen"
    named = hypervisor_of(vendor or "", product)
    if flag:
        return Virtualization(True, named or ("xen" if xen else "unknown"), CPUINFO), tuple(problems)
    if named in _CLOUDS_WITH_BARE_METAL and (flag is False or ".metal" in product):
        named = None
    if named is not None:
        return Virtualization(True, named, VENDOR if vendor else PRODUCT), tuple(problems)
    if flag is False:
        return Virtualization(False, "none", CPUINFO), tuple(problems)
    if xen:
        return Virtualization(True, "xen", HYPERVISOR), tuple(problems)
    if vendor is not None:
        return Virtualization(False, "none", VENDOR), tuple(problems)
    problems.append(
        Problem(VENDOR, "nothing there, in %s or in %s says whether this is a guest" % (CPUINFO, HYPERVISOR))
    )
    return Virtualization(False, "none", VENDOR), tuple(problems)
