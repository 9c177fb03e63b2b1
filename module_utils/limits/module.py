# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a node to the wanted limits: options and work of the module ``host_limits``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core.host import Host, ParseError
from ..core.plan import Plan, merge
from ..core.size import parse_size
from . import container_limits, container_runtimes
from . import plan as host_limits
from . import read as host_limits_read

SPEC: module.Spec = {
    "nofile": {"type": "int", "default": 1048576},
    "shm": {"type": "str", "default": "8G"},
    "container_runtimes": {
        "type": "list",
        "elements": "str",
        "choices": ["docker", "containerd", "kubelet"],
        "default": [],
    },
    "kubernetes_rdma_resources": {"type": "list", "elements": "str", "default": []},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    if not 1024 <= given["nofile"] <= 1 << 30:
        raise ParseError("nofile is %d, expected 1024 to %d" % (given["nofile"], 1 << 30))
    limits = host_limits.LimitsWanted(given["nofile"], parse_size(given["shm"]) if given["shm"] else 0)
    runtimes, resources = tuple(given["container_runtimes"]), tuple(given["kubernetes_rdma_resources"])
    want = container_limits.Want(runtimes, resources, limits)

    def look() -> Plan:
        found = merge(
            host_limits.plan(host_limits_read.read(host), want.limits),
            container_limits.plan(container_runtimes.read(host, want.runtimes), want),
        )
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    return apply.converge(host, check_mode, look)
