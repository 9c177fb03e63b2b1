# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel of a simulated node, its modules and their tools (toolkit/kernel_tools.py), and what nvidia_peermem does.

The tools go by the files of the node. Where nvidia_peermem is to fail, the file that ``write`` makes says how; the
words are the kernel's, kmod's and nvidia-peermem.c's (NVIDIA/open-gpu-kernel-modules).
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from . import ofed, repository
from .machine import Machine
from .nccl_tests import TOOLKIT
from .toolkit import dkms, kernel_node, kernel_tools
from .toolkit.kernel_node import Node

# Where each tool is on a node -> its file in the toolkit.
TOOLS = {"/usr/local/sbin/dmesg": "dmesg", **dict.fromkeys(kernel_tools.TOOLS, "kernel")}
# Where `kernel` finds what it runs, and of which files that is made. The toolkit's Makefile installs the same.
LIBRARY, PROGRAM = "/usr/local/lib/busbar-lab/toolkit", ("kernel_tools.py", "kernel_node.py", "dkms.py")


_FATAL = "modprobe: ERROR: could not insert 'nvidia_peermem': "
# What modprobe prints as it fails, and what modinfo has of it, "" where there is no such module.
# Without either it loads, or fails, as its file and the ib_core that is loaded have it.
PEERMEM = {
    "ok": {},
    "without-ofed": {"stderr": _FATAL + "Invalid argument", "modinfo": "depends: nvidia\n"},
    "missing": {
        "stderr": "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules",
        "modinfo": "",
    },
}


def write(machine: Machine, data: Path) -> None:
    """What the tools of this node go by in place of its files; ``data`` is a directory."""
    data.mkdir(parents=True, exist_ok=True)
    for name in ("stderr", "modinfo"):
        if name in PEERMEM[machine.peermem]:
            kernel_node.write(data / name, PEERMEM[machine.peermem][name])
        else:
            (data / name).unlink(missing_ok=True)


def tools() -> dict[str, str]:
    """Path on the node -> text."""
    files = {**TOOLS, **{f"{LIBRARY}/{name}": name for name in PROGRAM}}
    return {place: (TOOLKIT / file).read_text() for place, file in files.items()}


def install(machine: Machine, system_root: Path) -> None:
    """Kernel, OFED where the machine has it, and the NVIDIA driver, on a system root that is a directory of the lab's.

    It has no dpkg: packages are unpacked here, and its status is written; the repository is as its apt-get reads it.
    """
    node = Node(str(system_root))
    with contextlib.redirect_stdout(io.StringIO()):
        kernel_tools.lab_kernel(node, ["install", machine.kernel])
        packages = ofed.standard(machine.ofed) if machine.ofed else []
        for package in packages:
            for path, text in package.files.items():
                mode = 0o755 if path in package.programs else 0o644
                kernel_node.write(system_root / path.lstrip("/"), text, mode)
            if package.dkms:
                dkms.common_postinst(node, [*package.dkms])
        kernel_tools.lab_kernel(node, ["nvidia", machine.driver_version])
    kernel_node.write(system_root / "var/lib/dpkg/status", ofed.status(packages))
    for version, release in ofed.RELEASES.items():
        folder = system_root / repository.TOP.lstrip("/") / release.folder
        # As apt-get of a tree reads it (toolkit/apt_tools.py).
        pool = {package.name: package.control() for package in ofed.packages(version)}
        kernel_node.write(folder / "packages.json", json.dumps(pool))
