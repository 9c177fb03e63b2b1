# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's benchmark runs, report those of all hosts, measure between them. See library/nccl_benchmark.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    benchmark_results,
    busbw_plot,
    codec,
    due_roles,
    nccl_benchmark,
    result_schema,
    results_compare,
    results_folder,
    screen,
    suite,
    terminal,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars, Plain, PlainView

display = Display()

FORMAT = 1
# Host names that can be file names.
_PLAIN = r"(?!\.)[\w.:@+-]{1,100}"


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {
        "phase": {"type": "str", "choices": ["judge", "report", "cluster", "localise"], "required": True},
        "measured": {"type": "list", "elements": "dict", "default": []},
        "path": {"type": "path", "default": ""},
        "judged": {"type": "dict", "default": {}},
        "drained": {"type": "list", "elements": "str", "default": []},
    }

    def act(self, variables: Values, given: Values) -> Values:
        if given["phase"] == "report":
            return self._report(variables, given["path"])
        if given["phase"] != "judge":
            # The audit, which calls ``judged``, plays none.
            from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import play

            return play.play(self, variables, given)
        intent = variables["busbar_intent"]
        earlier = due_roles.results(variables, nccl_benchmark.EARLIER, "", nightly=False)
        return judged(intent["profile_name"], intent["benchmark_runs"], given["measured"], earlier)

    def _report(self, variables: Values, path: str) -> Values:
        each = registered(variables["hostvars"], variables["ansible_play_hosts_all"])
        results = {host: of_host for host, said in each if (of_host := reported(said))}
        nothing: Values = {"changed": False, "path": "", "plots": []}
        if not results:
            return nothing
        now = time.time()
        table = cluster_table.render_nodes(results, now, terminal.WIDTH)
        more = f"-v, or {path or 'nccl_benchmark_results_path'}"
        display.display("\n" + screen.cut(table, terminal.WIDTH, more, display.verbosity > 0) + "\n")
        if self._task.check_mode or not path:
            return nothing
        parent = Path(path)
        if nothing_new(parent, results):
            display.display(f"results: nothing was measured now, those of earlier runs stay in {path}")
            return nothing
        try:
            folder, plots = results_compare.publish(
                parent,
                measured_now(results),
                lambda: write(parent, results, now),
                lambda folder: plot(folder, results),
                display.display,
            )
        except OSError as error:
            return {**nothing, "failed": True, "msg": f"nccl_benchmark_results_path: {error_text(error)}"}
        return {"changed": False, "path": str(folder), "plots": [str(path) for path in plots]}


def judged(
    platform: str, runs: Sequence[PlainView], measured: Sequence[PlainView], earlier: Mapping[str, PlainView]
) -> Plain:
    """Return what the role registers; a failure, where a run has failed.

    runs: of the intent.   measured: what nccl_perf returned for each.
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


def summary(run: PlainView, result: PlainView) -> Plain:
    """Return what the report needs of a run: the bar, the figures of every size, and their origin."""
    found = result.get("measured") or {}
    repeated = {row["size"]: row for row in result.get("statistics") or [] if row["repeats"] > 1}
    rows = []
    for row in found.get("rows") or []:
        figures = {side: (row[side] or {}).get("busbw") for side in ("out_of_place", "in_place")}
        if of := repeated.get(row["size"]):
            figures |= {"out_of_place": of["busbw"], "spread": of["spread"], "repeats": of["repeats"]}
        rows.append({"size": row["size"], **figures})
    return {
        **run,
        **{name: result[name] for name in ("simulated", "stored", "due")},
        "busbw": result.get("busbw"),
        "finished": result.get("finished_at"),
        "commands": result.get("commands") or [],
        "nccl_library": found.get("nccl_library"),
        "nccl_tests": found.get("version"),
        "rows": rows,
    }


def registered(hostvars: HostVars, hosts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield host and result of the role, or that of the audit: a role with nothing to do is not played."""
    for host, of_host in due_roles.registered(hostvars, set(hosts)):
        yield host, due_roles.results(of_host, [suite.BENCHMARK], "", nightly=False).get(suite.BENCHMARK)


def nothing_new(parent: Path, results: Mapping[str, PlainView]) -> bool:
    """Return whether all figures are of earlier runs and a directory below parent has them: plots cost seconds."""
    runs = [run for of_host in results.values() for run in of_host["runs"]]
    return all(run.get("stored") and run.get("finished") for run in runs) and (parent / "latest").exists()


def reported(said: object) -> Plain:
    """Return a host's registered result; {} where there is none or it is not valid."""
    if not isinstance(said, dict) or not said.get("runs"):
        return {}
    found = result_schema.given(said)
    runs = said["runs"] if found.get("findings") is not None else []
    return {**found, "runs": runs} if runs and codec.is_valid(codec.many(result_schema.a_run), runs) else {}


def write(parent: Path, results: Mapping[str, PlainView], now: float) -> Path:
    """Write a new directory with a file for each host; then move the link ``latest`` to it."""
    with results_folder.new(parent, now) as folder:
        for host, of_host in results.items():
            data = {name: of_host[name] for name in ("runs", "findings", "passed")}
            data |= {"format": FORMAT, "host": host, "simulated": any(run["simulated"] for run in of_host["runs"])}
            name = results_folder.file_name(host, _PLAIN)
            results_folder.put(folder / f"{name}.json", json.dumps(data, indent=1, sort_keys=True))
    return folder


def measured_now(results: Mapping[str, PlainView]) -> benchmark_results.Results:
    """Return the figures that are of this run."""
    new = {
        host: [run for run in of_host["runs"] if not run["stored"] and run["rows"]] for host, of_host in results.items()
    }
    return benchmark_results.of_nodes(new, "this run")


def plot(folder: Path, results: Mapping[str, PlainView]) -> tuple[list[Path], str]:
    """Plot bus bandwidth over message size. Return the SVG and PNG files, and why there are none."""
    measured = benchmark_results.of_nodes({host: of_host["runs"] for host, of_host in results.items()}, "")
    return busbw_plot.plot_results(folder, measured, "NCCL bus bandwidth within a node, out of place")
