# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of a host as they are rendered: what they are for is in the roles, and here are their lines."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect.plan import TEXTS as GPUDIRECT
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub_settings
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.line import Arg
from ansible_collections.busbar.fabric.plugins.module_utils.limits import container_limits, container_runtimes
from ansible_collections.busbar.fabric.plugins.module_utils.limits import plan as host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.limits import read as host_limits_read
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import checks as ofed
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import packages
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import read as ofed_state
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.packages import System
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import boot_unit, registers

from tests import golden_rows, goldens

LIMITS = host_limits.LimitsWanted(1048576, 8 << 30)
RUNTIMES = container_limits.Want(("docker", "containerd"), (), LIMITS)
BRIDGE = registers.Function("0000:12:00.0", "0000:12:00.0", "001030c0", registers.Register(0x14E, 0, ""))
NIC = registers.Function("0000:18:00.0", "rail 0", "b3152110", registers.Register(0x70, 0x2910, ""))
KERNEL_ARGS = [
    Arg("iommu", "pt"),
    Arg("intel_iommu", "off", present=False),
    Arg("hugepages", "8", exclusive=True),
    Arg("pci", "config_acs=xx111x0@0008:00:00.0;xx110x1@0008:02:00.0"),
    Arg("dyndbg", "file a +p"),
]
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ\n-----END PGP PUBLIC KEY BLOCK-----\n"
REPOSITORY = ("https://mirror/doca/", KEY, "doca-ofed", "3.2.1")
FILES = {
    grub_settings.DROPIN: grub_settings.render_dropin(KERNEL_ARGS),
    host_limits_read.LOGIN_FILE: host_limits.render_login(LIMITS),
    host_limits_read.SERVICE_FILE: host_limits.render_service(LIMITS),
    container_limits.DROPIN: container_limits.render(RUNTIMES),
    container_runtimes.DAEMON_JSON: container_limits.edit("", RUNTIMES)[0],
    ofed_state.UMAD_LIST: ofed.UMAD_TEXT,
    **packages.render(System("apt", "ubuntu24.04"), *REPOSITORY),
    **packages.render(System("dnf", "rhel9"), *REPOSITORY),
    **GPUDIRECT,
    **boot_unit.render("/sys/bus/pci/devices", [BRIDGE], [NIC], 4096),
}


@pytest.mark.golden
@pytest.mark.parametrize("path", FILES)
def test_lines_of_a_file(path: str) -> None:
    goldens.check("rendered_host", path, golden_rows.lines(FILES[path]))
