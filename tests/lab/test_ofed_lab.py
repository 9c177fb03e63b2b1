# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernels, dkms and kmod on a simulated node keep state and fail as the real ones."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lab import ofed, store
from lab.machine import LabError
from lab.machines import hgx_h100
from lab.toolkit import kernel_node
from tests.lab.transcript import Transcript, scripts, texts
from tests.trees import put, put_all

LAB = {"node01": hgx_h100}
KERNEL = "6.8.0-60-generic"
BUILD = "25.10.OFED.25.10.1.7.1.1"
PROGRAMS = {
    "dkms": "/usr/sbin/dkms",
    "depmod": "/usr/local/sbin/depmod",
    "dmesg": "/usr/local/sbin/dmesg",
    "kernel": "/usr/local/sbin/busbar-lab-kernel",
    "modinfo": "/usr/local/sbin/modinfo",
    "modprobe": "/usr/local/sbin/modprobe",
    "ofed_info": "/usr/bin/ofed_info",
    "openibd": "/etc/init.d/openibd",
    "postinst": "/usr/lib/dkms/common.postinst",
    "update-grub": "/usr/sbin/update-grub",
}
NAMES = {
    "OFED": f"mlnx-ofed-kernel/{BUILD}",
    "NVIDIA": "nvidia/580.178.04",
    "BUILD": BUILD,
    "OLDER": ofed.RELEASES["3.1.0"].build,
    "KERNEL": KERNEL,
    "NEWER": "6.8.0-71-generic",
    "PEERMEM": f"/lib/modules/{KERNEL}/updates/dkms/nvidia-peermem.ko",
}


class Node:
    """A healthy node of its own: DOCA-OFED 3.2.1 installed, held, built and loaded. Devices: after the next render."""

    def __init__(self, lab: Path) -> None:
        self.lab, self.hw, self.sys = lab, lab / "node01/hw", lab / "node01/sys"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.sys) + PROGRAMS[program], *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)

    def state(self) -> dict[str, str]:
        """What is built and installed for which kernel, what would be loaded, and what is."""
        found = texts(self.sys, "var/lib/dkms/*/kernel-*", "var/log/busbar-lab-openibd")
        for file in self.sys.glob("var/lib/dkms/**/make.log"):
            found[str(file.relative_to(self.sys))] = " ".join(file.read_text().split())[-120:]
        modules = [*self.sys.glob("var/lib/dkms/**/*.ko"), *self.sys.glob("lib/modules/**/*.ko")]
        for folder, number in Counter(str(file.parent.relative_to(self.sys)) for file in modules).items():
            found[folder] = f"{number} modules"
        for file in self.sys.glob("lib/modules/*/modules.dep"):
            found[str(file.relative_to(self.sys))] = next(
                (line for line in file.read_text().splitlines() if "mlx5_core.ko:" in line), ""
            )
        for file in self.sys.glob("usr/src/ofa_kernel/x86_64/*/Module.symvers"):
            found[str(file.relative_to(self.sys))] = " ".join(file.read_text().split())
        for module in (*kernel_node.STACK, "nvidia_peermem"):
            if (self.hw / "sys/module" / module).is_dir():
                version = self.hw / "sys/module" / module / "version"
                found[f"loaded {module}"] = version.read_text().strip() if version.exists() else "without a version"
        packages = (self.sys / "var/lib/dpkg/status").read_text().strip().split("\n\n")
        for package in (dict(line.split(": ", 1) for line in text.splitlines() if line[0] != " ") for text in packages):
            found[f"package {package['Package']}"] = f"{package['Status']} {package['Version']}"
        return {**found, "boot": (self.hw / "proc/cmdline").read_text().split()[0]}

    def fault(self, name: str) -> None:
        """Of the node that has it alone; none: it is repaired."""
        store.repair(self.lab, "node01")
        if name != "none":
            store.break_(self.lab, "node01", name)

    def reboot(self) -> None:
        store.reboot(self.lab, "node01")

    def unpack(self, release: str, number: str) -> None:
        """Files of a package."""
        put_all(self.sys, ofed.packages(release)[int(number)].files)

    def empty(self, path: str) -> None:
        put(self.sys, path, "")


@pytest.fixture
def node(own_lab: Path, tmp_path: Path) -> Node:
    without = shutil.ignore_patterns("devices", "class", "bus")
    return Node(Path(shutil.copytree(own_lab, tmp_path / "lab", symlinks=True, ignore=without)))


SCRIPTS = scripts("ofed")


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_programs_print_and_change(node: Node, case: str) -> None:
    acts = {name: getattr(node, name) for name in ("fault", "reboot", "unpack", "empty")}
    Transcript(node.run, node.state, acts, NAMES).check("lab_ofed", case, SCRIPTS[case])


def test_what_was_not_provisioned_cannot_be_broken(node: Node) -> None:
    for name in ("ofed-repository-changed", "ofed-key-changed"):
        with pytest.raises(LabError, match="provision the node first"):
            store.break_(node.lab, "node01", name)
