# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of the limits on memory: of logins, services, daemons that start jobs, and containers."""

from __future__ import annotations

import json
from collections.abc import Callable

from .container_hosts import CHECKPOINT, DAEMON_JSON
from .fault import Fault, FileFault, appended, said
from .machine import Machine


def _limit_slurmd(machine: Machine) -> None:
    machine.slurmd_memlock = "8388608"


def _shrink_shm(machine: Machine) -> None:
    machine.shm_bytes = 64 << 20


def _limit_containerd(machine: Machine) -> None:
    machine.containerd_memlock = "8388608"


def _start_dockerd(machine: Machine) -> None:
    machine.dockerd_started = 1500


def _limit_docker(machine: Machine, text: str | None) -> str:
    data = json.loads(text or "{}")
    data.setdefault("default-ulimits", {})["memlock"] = {"Name": "memlock", "Hard": 65536, "Soft": 65536}
    return json.dumps(data, indent=4) + "\n"


def _shrink_docker_shm(machine: Machine, text: str | None) -> str:
    return json.dumps({**json.loads(text or "{}"), "default-shm-size": "64M"}, indent=4) + "\n"


def _lose_plugin(machine: Machine, text: str | None) -> str:
    """What the kubelet keeps for the first minutes; then it forgets the name, too."""
    data = json.loads(text or "{}")
    data["Data"]["RegisteredDevices"]["rdma/hca_shared_devices_a"] = []
    return json.dumps(data)


_DOCKER_FAULTS = ("docker-memlock", "docker-shm-small", "docker-comma", "docker-flag")
_CHECKPOINT_FAULTS = ("rdma-plugin-gone", "checkpoint-cut")


def _container_fault(
    name: str,
    description: str,
    check: str,
    subject: str,
    change: Callable[[Machine], None] | FileFault,
    state: str = "drift",
    excludes: tuple[str, ...] = (),
) -> Fault:
    """On the platform whose site asks for container runtimes."""
    check = f"host_limits.{check}"
    return Fault(name, description, check, said(subject), change, state, platforms=("hgx-h100",), excludes=excludes)


CATALOGUE = (
    Fault(
        "slurmd-memlock",
        "slurmd was started with 8 MiB of lockable memory",
        "host_limits.daemon",
        said("slurmd"),
        _limit_slurmd,
        state="withheld",
    ),
    Fault(
        "slurmd-dropin",
        "a drop-in will start slurmd with 8 MiB of lockable memory",
        "host_limits.unit",
        said("slurmd.service"),
        appended("/etc/systemd/system/slurmd.service.d/10-site.conf", "[Service]\nLimitMEMLOCK=8M\n"),
        state="not_owned",
        excludes=("slurmd-memlock",),
    ),
    Fault(
        "user-manager-memlock",
        "services of users will have 64 MiB of lockable memory",
        "host_limits.unit",
        said("user.conf"),
        appended("/etc/systemd/user.conf", "[Manager]\nDefaultLimitMEMLOCK=64M\n"),
        state="not_owned",
    ),
    Fault(
        "group-memlock",
        "a line of limits.d gives one group 64 MiB of lockable memory",
        "host_limits.group",
        said("/etc/security/limits.d/20-site.conf @students"),
        appended("/etc/security/limits.d/20-site.conf", "@students hard memlock 65536\n"),
        state="not_owned",
    ),
    Fault("shm-small", "/dev/shm has 64 MiB", "host_limits.shm", said("/dev/shm"), _shrink_shm),
    _container_fault(
        "docker-memlock",
        f"{DAEMON_JSON} gives containers 64 KiB of lockable memory",
        "docker",
        DAEMON_JSON,
        FileFault(DAEMON_JSON, _limit_docker),
        excludes=_DOCKER_FAULTS,
    ),
    _container_fault(
        "docker-shm-small",
        f"{DAEMON_JSON} gives containers 64 MiB of /dev/shm",
        "docker",
        DAEMON_JSON,
        FileFault(DAEMON_JSON, _shrink_docker_shm),
        excludes=_DOCKER_FAULTS,
    ),
    _container_fault(
        "docker-comma",
        f"somebody has added a line to {DAEMON_JSON}, after its end",
        "docker",
        "docker",
        appended(DAEMON_JSON, ',"debug": true}\n'),
        state="unknown",
        excludes=(*_DOCKER_FAULTS, "docker-not-restarted"),
    ),
    _container_fault(
        "docker-flag",
        "dockerd has a flag --default-ulimit, beside which it takes none from daemon.json",
        "docker",
        DAEMON_JSON,
        appended("/etc/default/docker", 'DOCKER_OPTS="--default-ulimit memlock=-1"\n'),
        state="not_owned",
        excludes=(*_DOCKER_FAULTS, "docker-not-restarted"),
    ),
    _container_fault(
        "docker-not-restarted",
        f"dockerd was started before {DAEMON_JSON} was changed",
        "docker_loaded",
        "dockerd",
        _start_dockerd,
        state="withheld",
    ),
    _container_fault(
        "containerd-memlock",
        "containerd was started with 8 MiB of lockable memory",
        "daemon",
        "containerd",
        _limit_containerd,
        state="withheld",
    ),
    _container_fault(
        "containerd-overridden",
        "a later drop-in gives containerd 64 KiB of lockable memory",
        "containerd",
        "/etc/systemd/system/containerd.service.d/99-busbar.conf",
        FileFault(
            "/etc/systemd/system/containerd.service.d/99-site.conf",
            lambda machine, text: "[Service]\nLimitMEMLOCK=65536\n",
        ),
        state="not_owned",
    ),
    _container_fault(
        "rdma-plugin-gone",
        "the RDMA device plugin has stopped: the kubelet has none of its devices",
        "kubernetes",
        "rdma/hca_shared_devices_a",
        FileFault(CHECKPOINT, _lose_plugin),
        excludes=_CHECKPOINT_FAULTS,
    ),
    _container_fault(
        "checkpoint-cut",
        "the kubelet's checkpoint was cut short",
        "kubernetes",
        "kubelet",
        FileFault(CHECKPOINT, lambda machine, text: (text or "")[:100]),
        state="unknown",
        excludes=_CHECKPOINT_FAULTS,
    ),
)
