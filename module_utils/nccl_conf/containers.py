# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render per container runtime the file that makes the host's /etc/nccl.conf visible.

Sources: enroot's mounts.d (fstab(5) with x-create), docker run --volume, Kubernetes hostPath of type File.
"""

from __future__ import annotations

from typing import Dict, Tuple

from ..change import written
from ..core.host import Host
from ..core.plan import FileChange, Plan
from .checks import CONTAINERS

_HEADER = "# Written by Busbar (role nccl_conf): containers do not see the host's %s by default.\n"

# runtime -> file on the node, text with the path of nccl.conf as {path}
_FILES: Dict[str, Tuple[str, str]] = {
    "enroot": (
        "/etc/enroot/mounts.d/50-busbar-nccl-conf.fstab",
        "{path} /etc/nccl.conf none x-create=file,bind,ro,nosuid,nodev,noexec\n",
    ),
    "docker": (
        "/etc/busbar/containers/docker-run.args",
        "# Pass this to docker run. A running container retains the file it was started with.\n"
        "--volume={path}:/etc/nccl.conf:ro\n",
    ),
    "kubernetes": (
        "/etc/busbar/containers/kubernetes-pod.yml",
        "# Merge this into the pod's spec. A running pod retains the file it was started with.\n"
        "spec:\n"
        "  volumes:\n"
        "    - name: nccl-conf\n"
        "      hostPath: {{path: {path}, type: File}}\n"
        "  containers:\n"
        "    - name: CONTAINER\n"
        "      volumeMounts:\n"
        "        - {{name: nccl-conf, mountPath: /etc/nccl.conf, readOnly: true}}\n",
    ),
}


def plan(host: Host, runtime: str, path: str) -> Plan:
    """Plan the file of a runtime. path: nccl.conf on the node. Raises ReadError; KeyError for another runtime."""
    target, template = _FILES[runtime]
    text = written.seal(target, _HEADER % path + template.format(path=path))
    files = written.compare([FileChange(target, host.read_system(target), text, mode=0o644)])
    have = files.wrong or "as rendered"
    finding = CONTAINERS.judge(target, files.state, want="as rendered", have=have, severity=files.severity)
    return Plan((finding,), files.changes, notes=files.notes)
