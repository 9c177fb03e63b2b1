# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Table, files and plots of the benchmark of all hosts. Documented in library/nccl_benchmark_report.py."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    answer,
    nccl_benchmark,
    results_folder,
    suite,
    terminal,
    work,
)

display = Display()

# Hosts with a line of their own in a plot; of more, the slowest have one, and all are a band.
LINES = 8
FORMAT = 1


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset({"path"})
    # One report for all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, arguments = self.validate_argument_spec(argument_spec={"path": {"type": "path", "default": ""}})
        each = registered(variables["hostvars"], variables["ansible_play_hosts_all"])
        results = {host: of_host for host, said in each if (of_host := reported(said))}
        now = time.time()
        rows = nccl_benchmark.rows(results, now)
        display.display("\n" + nccl_benchmark.render(rows, terminal.WIDTH) + "\n")
        result.update(changed=False, path="", plots=[])
        if self._task.check_mode or not arguments["path"] or not rows:
            return result
        if nothing_new(Path(arguments["path"]), rows):
            display.display(f"results: nothing was measured now, those of earlier runs stay in {arguments['path']}")
            return result
        try:
            folder = write(Path(arguments["path"]), results, now)
            plots, problem = plot(folder, results)
        except OSError as error:
            result.update(
                failed=True, msg=f"nccl_benchmark_results_path {arguments['path']}: {error.filename}: {error.strerror}"
            )
            return result
        display.display(f"results: {folder}" + "".join(f" {path.name}" for path in plots))
        if problem:
            display.display(problem)
        result.update(path=str(folder), plots=[str(path) for path in plots])
        return result


def registered(hostvars: Any, hosts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Host and what the role has registered for it, or the audit has heard: what stands is not in the role's play."""
    for host, of_host in work.registered(hostvars, set(hosts)):
        yield host, work.results(of_host, [suite.BENCHMARK], "", nightly=False).get(suite.BENCHMARK)


def nothing_new(parent: Path, rows: Sequence[nccl_benchmark.Row]) -> bool:
    """Whether all figures are of earlier runs, and a directory below parent has them: plots cost seconds."""
    return all(row.age_days is not None for row in rows) and (parent / "latest").exists()


def reported(said: Any) -> dict[str, Any]:
    """What the role has registered for a host; {} where that is nothing, or not valid."""
    if not isinstance(said, dict) or not said.get("runs"):
        return {}
    found = answer.given(said)
    runs = said["runs"] if found.get("findings") is not None else []
    return {**found, "runs": runs} if runs and answer.is_valid(answer.many(answer.a_run), runs) else {}


def write(parent: Path, results: Mapping[str, Mapping[str, Any]], now: float) -> Path:
    """A new directory with a file for each host; the link ``latest`` is moved to it when it is whole."""
    with results_folder.new(parent, now) as folder:
        for host, of_host in results.items():
            data = {
                "format": FORMAT,
                "host": host,
                "simulated": any(run["simulated"] for run in of_host["runs"]),
                "runs": of_host["runs"],
                "findings": of_host["findings"],
                "passed": of_host["passed"],
            }
            # A host's name may hold a slash in an inventory, never in a file name.
            name = host.replace("/", "_").replace("\0", "_").lstrip(".") or "_"
            (folder / f"{name}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return folder


def plot(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> tuple[list[Path], str]:
    """Plots bus bandwidth over size. Returns the files, SVG and PNG, and why there are none."""
    try:
        import matplotlib
    except ImportError:
        return [], "no plot: matplotlib is not installed beside ansible-core (pip install matplotlib)"
    matplotlib.use("Agg")
    # Text stays text in the SVG; the same figures give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "busbar", "font.size": 9})
    figure = draw(results)
    paths = [folder / "busbw.svg", folder / "busbw.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=144)
    return paths, ""


def draw(results: Mapping[str, Mapping[str, Any]]) -> Any:
    """A panel for each collective: hosts, bar and prediction over the message size."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    collectives: dict[str, dict[str, dict[int, float]]] = {}
    bars: dict[str, dict[int, tuple[float | None, float | None]]] = {}
    simulated = False
    for host, of_host in results.items():
        for run in of_host["runs"]:
            simulated |= run["simulated"]
            points = collectives.setdefault(run["collective"], {}).setdefault(host, {})
            points.update({row["size"]: row["out_of_place"] for row in run["rows"] if row["out_of_place"] is not None})
            bars.setdefault(run["collective"], {})[run["max_bytes"]] = (run["bar"], run["prediction"])
    columns = min(4, len(collectives))
    lines = -(-len(collectives) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * lines + 0.8), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for panel in axes.flat[len(collectives) :]:
        panel.set_visible(False)
    for panel, (collective, hosts) in zip(axes.flat, collectives.items(), strict=False):
        panel.set_title(collective)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _position: short(size)))
        panel.set_xlabel("message size, bytes")
        panel.set_ylabel("busbw, GB/s")
        panel.grid(True, color="0.9")
        lines_of_hosts(panel, hosts)
        for number, (size, (bar, prediction)) in enumerate(sorted(bars[collective].items())):
            # Both hold for the largest messages: across the whole panel they would seem to be missed by the small ones.
            for figure_at, style, what in ((prediction, (":", "0.45"), "prediction"), (bar, ("-", "crimson"), "bar")):
                if figure_at is not None:
                    label = what if number == 0 else None
                    panel.hlines(figure_at, size / 8, size * 2, linestyle=style[0], color=style[1], label=label)
        panel.set_ylim(bottom=0)
        panel.legend(loc="lower right", fontsize=7, frameon=False)
    title = "NCCL bus bandwidth within a node, out of place"
    if simulated:
        title += " (simulated: no figure in it is a measurement)"
        figure.text(0.5, 0.5, "simulated", fontsize=60, color="0.5", alpha=0.15, ha="center", va="center", rotation=25)
    figure.suptitle(title)
    return figure


def lines_of_hosts(panel: Any, hosts: Mapping[str, Mapping[int, float]]) -> None:
    named = {host: points for host, points in hosts.items() if points}
    order = sorted(named, key=lambda host: named[host][max(named[host])])
    if len(order) > LINES:
        sizes = sorted({size for points in named.values() for size in points})
        columns = [[points[size] for points in named.values() if size in points] for size in sizes]
        panel.fill_between(sizes, list(map(min, columns)), list(map(max, columns)), color="steelblue", alpha=0.2)
        panel.plot(
            sizes, list(map(statistics.median, columns)), color="black", linewidth=1, label=f"median of {len(order)}"
        )
        order = order[:3]
    for host in order:
        sizes = sorted(named[host])
        panel.plot(
            sizes, [named[host][size] for size in sizes], marker=".", markersize=4, linewidth=1, label=label_of(host)
        )


def label_of(host: str) -> str:
    """A host's name as a label: matplotlib hides labels that begin with "_" and reads $...$ as mathematics."""
    return printable(host).lstrip("_").replace("$", r"\$")[:24]


def short(size: float) -> str:
    """``1M`` for 1048576."""
    return size_text(round(size))


__all__: Sequence[str] = ["ActionModule", "draw", "nothing_new", "plot", "registered", "reported", "write"]
