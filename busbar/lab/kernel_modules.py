# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia_peermem on a simulated node: modprobe, modinfo and dmesg as they behave when it loads, and when it does not.

The tools find the node's hardware root beside the system root they are installed in, or where a container has it. What
a load leads to is in the file that ``write`` makes; the words are the kernel's and kmod's (host.md 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .machine import LabError, Machine

TOOLS = ("modprobe", "modinfo", "dmesg", "ofed_info")


@dataclass(frozen=True)
class Peermem:
    """rc, stderr: of modprobe. log: lines of the kernel. depends: of modinfo; None where there is no such module."""

    rc: int = 0
    stderr: str = ""
    log: str = ""
    depends: str | None = "nvidia,ib_core"


_FATAL = "modprobe: ERROR: could not insert 'nvidia_peermem': "
PEERMEM = {
    "ok": Peermem(),
    "without-ofed": Peermem(1, _FATAL + "Invalid argument", "", "nvidia"),
    "refused": Peermem(1, _FATAL + "Invalid argument", "nvidia-peermem: error -22 at registration"),
    "no-api": Peermem(
        1,
        _FATAL + "Unknown symbol in module, or unknown parameter (see dmesg)",
        "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)",
    ),
    "other-ofed": Peermem(
        1,
        _FATAL + "Invalid argument",
        "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
    ),
    "missing": Peermem(1, "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules", "", None),
}


def write(machine: Machine, data: Path) -> None:
    """What the tools of this node go by; ``data`` is a directory."""
    if machine.peermem not in PEERMEM:
        raise LabError(f"nvidia_peermem cannot be {machine.peermem!r}; there are {', '.join(PEERMEM)}")
    answer = PEERMEM[machine.peermem]
    data.mkdir(parents=True, exist_ok=True)
    info = ""
    if answer.depends is not None:
        path = f"/lib/modules/{machine.kernel}/updates/dkms/nvidia-peermem.ko"
        info = f"filename:       {path}\nversion:        {machine.driver_version}\ndepends:        {answer.depends}\n"
    for name, text in {
        "rc": f"{answer.rc}\n",
        "stderr": answer.stderr,
        "log": answer.log,
        "modinfo": info,
        "version": f"{machine.driver_version}\n",
    }.items():
        new = data / f".{name}.new"
        new.write_text(text)
        new.replace(data / name)
