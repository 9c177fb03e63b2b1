# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Query the RAS of a node's jobs: options and work of the module ``nccl_ras_info``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import module
from ..core.host import Host
from ..core.plan import Plan
from . import read as nccl_ras

SPEC: module.Spec = {
    "phase": {"type": "str", "choices": ["query", "report"], "default": "query"},
    "interval": {"type": "float", "default": 10},
    "path": {"type": "path", "default": ""},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, object]:
    reading = nccl_ras.read(host, min(max(given["interval"], 0.0), 3600.0))
    return {**Plan(tuple(nccl_ras.judge(host, reading))).result(), **nccl_ras.result(reading)}
