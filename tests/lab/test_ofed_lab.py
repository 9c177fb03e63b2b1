# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernels, dkms and kmod on a simulated node keep state and fail as the real ones; faults are in lab_faults.json."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lab import ofed, store
from lab.machine import LabError
from lab.machines import h200_vm, hgx_h100, hgx_h200_roce
from lab.toolkit import kernel_node
from tests.lab.transcript import Transcript, texts
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
    "NVIDIA": "nvidia/580.95.05",
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


SCRIPTS = {
    "a node starts with OFED and the driver built for its kernel, and refuses as dkms does": """
        state
        dkms status
        ofed_info -s
        ofed_info -n
        dkms add OFED
        dkms add knem/1.0
        dkms remove knem/1.0 --all
        modinfo mlx5_core
        modinfo nv_peer_mem
        modprobe -r ib_core
        openibd restart
        modprobe -r nvidia_peermem
        openibd stop
        openibd start
        empty lib/modules/KERNEL/updates/dkms/mlx5_ib.ko
        dkms status
        """,
    "a module goes from source to installed and back": """
        kernel install NEWER headers
        modinfo -k NEWER -n mlx5_core
        modinfo -k NEWER -F version mlx5_core
        dkms build OFED -k NEWER
        dkms status OFED
        dkms status -m mlnx-ofed-kernel -k NEWER
        dkms install OFED -k NEWER
        dkms status
        dkms install OFED -k NEWER
        dkms uninstall OFED -k NEWER
        dkms remove OFED --all
        dkms status
        dkms add OFED
        dkms status
        """,
    "missing and broken headers end a build with codes of their own": """
        kernel install NEWER no-headers
        dkms install OFED -k NEWER
        kernel remove NEWER
        kernel install NEWER headers
        dkms autoinstall -k NEWER
        dkms status -k NEWER
        kernel remove NEWER
        dkms status
        kernel install NEWER broken-headers
        dkms install OFED -k NEWER
        dkms autoinstall -k NEWER
        dkms status
        """,
    "another OFED has other CRCs until the driver is built, and not only installed, again": """
        modprobe --dump-modversions PEERMEM
        dkms remove OFED --all
        unpack 3.1.0 0
        postinst mlnx-ofed-kernel OLDER
        modprobe --dump-modversions PEERMEM
        dkms install --force NVIDIA
        modprobe --dump-modversions PEERMEM
        dkms build --force NVIDIA
        dkms install --force NVIDIA
        modprobe --dump-modversions PEERMEM
        """,
    "a driver that is built without OFED needs no ib_core and does not load": """
        modprobe -r nvidia_peermem
        dkms remove OFED --all
        dkms build --force NVIDIA
        dkms install --force NVIDIA
        modinfo -F depends nvidia-peermem
        modprobe nvidia_peermem
        dmesg
        """,
    "storage modules are built after OFED only": """
        unpack 3.2.1 5
        postinst mlnx-nfsrdma BUILD
        modinfo -F version rpcrdma
        kernel install NEWER headers
        dkms install mlnx-nfsrdma/BUILD -k NEWER
        dkms autoinstall -k NEWER
        """,
    "what openibd has loaded stays through faults and reboots": """
        fault none
        kernel install NEWER headers
        update-grub
        reboot
        dkms autoinstall
        openibd restart
        fault gpu-missing
        fault none
        reboot
        """,
    "faults are what dkms, modinfo, dpkg and a reboot would show": """
        fault kernel-without-ofed
        dkms status
        dkms build OFED -k NEWER
        fault headers-missing
        dkms build OFED -k NEWER
        fault dkms-build-failed
        dkms build OFED -k NEWER
        fault inbox-shadows
        modinfo -n mlx5_core
        dkms status
        depmod -a
        modinfo -n mlx5_core
        fault ofed-missing
        fault ofed-not-held
        fault mlnx-ofed-left
        fault nvidia-built-before-ofed
        modprobe -r nvidia_peermem
        modprobe nvidia_peermem
        dmesg
        fault ofed-old-loaded
        modinfo -F version mlx5_core
        reboot
        fault none
        """,
}


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_programs_print_and_change(node: Node, case: str) -> None:
    acts = {name: getattr(node, name) for name in ("fault", "reboot", "unpack", "empty")}
    Transcript(node.run, node.state, acts, NAMES).check("lab_ofed", case, SCRIPTS[case])


def test_what_was_not_provisioned_cannot_be_broken(node: Node) -> None:
    for name in ("ofed-repository-changed", "ofed-key-changed"):
        with pytest.raises(LabError, match="provision the node first"):
            store.break_(node.lab, "node01", name)


def test_nodes_show_what_is_loaded_by_version_and_srcversion() -> None:
    for builder in (hgx_h100, hgx_h200_roce):
        machine = builder("node01")
        assert machine.modules["mlx5_core"] == "25.10-1.7.1"
        machine.load_ofed(None)
        assert machine.modules["mlx5_core"] is None
        assert machine.srcversion("ib_core") == kernel_node.inbox_srcversion(KERNEL, "ib_core")
    assert h200_vm("vm01").ofed is None
