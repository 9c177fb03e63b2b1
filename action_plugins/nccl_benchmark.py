# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge all benchmark runs of a host together. Documented in library/nccl_benchmark.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, nccl_benchmark, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {
        "platform": {"type": "str", "required": True},
        "runs": {"type": "list", "elements": "dict", "required": True},
        "measured": {"type": "list", "elements": "dict", "required": True},
    }

    def act(self, variables: Values, given: Values) -> Values:
        earlier = due_roles.results(variables, nccl_benchmark.EARLIER, "", nightly=False)
        return judged(given["platform"], given["runs"], given["measured"], earlier)


def judged(
    platform: str,
    runs: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    earlier: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what the role registers; a failure, where a run has failed.

    runs: ``Run.to_dict`` of each.   measured: what nccl_perf returned for each.
    earlier: role -> its registered result.
    """
    others = [finding for role in nccl_benchmark.EARLIER for finding in result_schema.findings_of(earlier.get(role))]
    valid = [result_schema.given(one, "nccl_perf") for one in measured]
    failed = next((one for one in valid if one.get("failed") or "findings" not in one), None)
    if failed is not None:
        return failed or {"failed": True, "msg": f"{result_schema.SAID}it is empty"}
    result = nccl_benchmark.judge(platform, runs, valid, others).result()
    for item in valid:
        result["passed"] += item["passed"]
        result["evidence"].update(item.get("evidence", {}))
    result["runs"] = [summary(run, item) for run, item in zip(runs, valid, strict=True)]
    result["due"] = nccl_benchmark.due(runs, valid)
    result["notes"] = list(dict.fromkeys(note for item in valid for note in item.get("notes") or []))
    return result


def summary(run: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the report needs of a run: the bar, the figures of every size, and their origin."""
    found = result.get("measured") or {}
    repeated = {row["size"]: row for row in result.get("statistics") or [] if row["repeats"] > 1}
    return {
        **run,
        "busbw": result.get("busbw"),
        "finished": result.get("finished_at"),
        "simulated": result["simulated"],
        "stored": result["stored"],
        "due": result["due"],
        "commands": result.get("commands") or [],
        "nccl_library": found.get("nccl_library"),
        "nccl_tests": found.get("version"),
        "rows": [
            {
                "size": row["size"],
                "out_of_place": (row["out_of_place"] or {}).get("busbw"),
                "in_place": (row["in_place"] or {}).get("busbw"),
                **(
                    {"out_of_place": of["busbw"], "spread": of["spread"], "repeats": of["repeats"]}
                    if (of := repeated.get(row["size"]))
                    else {}
                ),
            }
            for row in found.get("rows") or []
        ],
    }
