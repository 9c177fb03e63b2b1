# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a node to kernel arguments: options and work of the module ``kernel_args``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ..change import apply, module
from ..core.host import Host
from ..core.plan import Plan
from . import line as kernel_line
from . import plan as kernel_args
from .read import read


def wanted(items: List[Dict[str, Any]]) -> List[kernel_line.Arg]:
    """Raises ParseError."""
    return [
        kernel_line.Arg(item["name"], item["value"], item["state"] == "present", item["exclusive"]) for item in items
    ]


SPEC: module.Spec = {
    "args": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "value": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "exclusive": {"type": "bool", "default": False},
        },
    },
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    args = wanted(given["args"])

    def look() -> Plan:
        found = kernel_args.plan(read(host), args, kernel_args.ARGS)
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    return apply.converge(host, check_mode, look)
