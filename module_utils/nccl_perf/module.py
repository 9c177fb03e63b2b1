# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run one program of nccl-tests, or judge its stored result: options and work of the module ``nccl_perf``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import module
from ..core.host import Host
from .checks import WHEN
from .judge import due as due_reason
from .run import NOTHING, PerfRun
from .transport import WAYS

SPEC: module.Spec = {
    "binary": {"type": "path", "required": True},
    "min_bytes": {"type": "str", "default": "8"},
    "max_bytes": {"type": "str", "default": "8G"},
    "step_factor": {"type": "int", "default": 2},
    "gpus": {"type": "int", "default": 1},
    "launch": {"type": "dict"},
    "repeats": {"type": "int", "default": 1},
    "algorithm": {"type": "str", "default": ""},
    "rails": {"type": "int"},
    "way": {"type": "str", "choices": [*WAYS], "default": "network"},
    "iterations": {"type": "int", "default": 20},
    "warmup": {"type": "int", "default": 5},
    "timeout": {"type": "float", "default": 900},
    "environment": {"type": "dict", "default": {}, "no_log": True},
    "result_directory": {"type": "path", "default": "/var/lib/busbar/nccl_perf"},
    "bar_busbw": {"type": "float"},
    "when": {"type": "str", "choices": [*WHEN], "default": "always"},
    "stored_result": {"type": "path", "default": ""},
    "max_age_days": {"type": "float", "default": 30},
    "require_idle": {"type": "bool", "default": True},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    asked = PerfRun(host, given, given["environment"])
    last = NOTHING
    if check_mode or given["when"] != "always":
        last = asked.last()
    due = due_reason(last.plan, given["when"])
    if check_mode or not due:
        return {**last.result(), "due": due, **asked.result(last.plan, "")}
    # The nightly check runs nothing, and is not sent what does.
    from . import measure

    plan, found, directory = measure.measure(asked)
    return {**NOTHING.result(), **found, "due": due, **asked.result(plan, directory)}
