# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node that runs containers has: Docker, containerd, and a kubelet with an RDMA device plugin.

Its Docker is started when it is used: there is no dockerd, unless a fault has started one long ago. Of the others the
processes show in /proc of every node whose site asks for them, the files are the same everywhere (toolkit/containers).
"""

from __future__ import annotations

from .machine import Machine
from .nccl_tests import TOOLKIT

RUNTIMES = "host_limits_container_runtimes"
DAEMON_JSON = "/etc/docker/daemon.json"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
PROGRAMS = ("/usr/bin/dockerd", "/usr/bin/containerd", "/usr/bin/kubelet")
DROPINS = "/etc/systemd/system/containerd.service.d"
# 2025-01-01: earlier than any file of a node.
BOOTED = 1735689600


def files() -> dict[str, str]:
    """Below the system root. The Makefile of the toolkit installs the same in the containers' image."""
    folder = TOOLKIT / "containers"
    places = {DAEMON_JSON: "daemon.json", CHECKPOINT: "kubelet_internal_checkpoint"}
    places |= {f"/usr/lib/systemd/system/{name}": name for name in ("docker.service", "containerd.service")}
    places |= dict.fromkeys(PROGRAMS, "runtime")
    return {path: (folder / name).read_text() for path, name in places.items()}


def processes(machine: Machine) -> dict[str, str]:
    """Files of /proc."""
    found = {"/proc/stat": f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {BOOTED}\nprocesses 3210\n"}
    if RUNTIMES in machine.site:
        found |= _process(2790, "containerd", machine.containerd_memlock, 1200)
        found |= _process(2805, "kubelet", "unlimited", 1300)
    if machine.dockerd_started is not None:
        found |= _process(2820, "dockerd", "unlimited", machine.dockerd_started)
    return found


def _process(pid: int, name: str, memlock: str, started: int) -> dict[str, str]:
    """started: hundredths of a second after the boot."""
    limits = (
        f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} Units\n"
        f"{'Max open files':<25} {1048576:<20} {1048576:<20} files\n"
        f"{'Max locked memory':<25} {memlock:<20} {memlock:<20} bytes\n"
    )
    # State, parent, group, session, then fourteen numbers before the number of threads and what follows it.
    stat = f"{pid} ({name}) S 1 {pid} {pid} 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 12 0 {started} 1994145792 13107\n"
    folder = f"/proc/{pid}"
    return {f"{folder}/comm": f"{name}\n", f"{folder}/limits": limits, f"{folder}/stat": stat}
