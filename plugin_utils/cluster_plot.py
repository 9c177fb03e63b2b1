# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plot a benchmark between nodes: bandwidth over size, scaling over nodes, before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_plot, nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.benchmark_results import Results, Run, of_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw_plot import Panel, Series, band, label_of, plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_judge import EFFICIENT
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import Record

# Characters of host names in a title, as in "over SCOPE, 16 nodes".
_NAMES = 40
Kind = tuple[str, str, str]


def plot(folder: Path, record: Record, before: Results | None = None) -> tuple[list[Path], str]:
    """Write ``busbw``, ``scaling`` and, with earlier results, ``before-after``, each as SVG and PNG.

    Returns the files, and why there are none. Raises OSError.
    """
    problem = busbw_plot.ready()
    if problem or not any(job.rows for job in record.jobs):
        return [], problem or "no plot: nothing was measured"
    paths = busbw_plot.save(over_size(record), folder, "busbw")
    if record.scaling:
        paths += busbw_plot.save(scaling(record), folder, "scaling")
    after = of_record(record, "")
    if before is not None and _kinds(before).keys() & _kinds(after).keys():
        paths += busbw_plot.save(before_after(before, after), folder, "before-after")
    return paths, ""


def over_size(record: Record) -> Any:
    """Return a panel for each scope, collective and algorithm: its jobs, bar and prediction over message size."""
    kinds = _kinds(of_record(record, ""))
    panels = []
    for kind, runs in kinds.items():
        lines = [_spread(runs, "measured", "black", "-")]
        if len(runs) > 1:
            lines = busbw_plot.fleet({nodeset.brief(run.hosts, 24): _points(run) for run in runs})
        panels.append(Panel(_title(kind, kinds), lines, _marks(runs)))
    return busbw_plot.over_size(panels, f"NCCL bus bandwidth, {_over(record)}", record.simulated)


def before_after(before: Results, after: Results) -> Any:
    """Return a panel for each kind that both measured: before is dashed, after is solid, bands are their noise."""
    earlier, later = _kinds(before), _kinds(after)
    panels = []
    for kind, runs in later.items():
        if kind in earlier:
            lines = [
                _spread(earlier[kind], "before", "darkorange", "--"),
                _spread(runs, "after", "steelblue", "-"),
            ]
            panels.append(Panel(_title(kind, later), lines, _marks(runs)))
    hosts = {host for runs in later.values() for run in runs for host in run.hosts}
    title = f"NCCL bus bandwidth before and after, {_nodes(hosts)}"
    return busbw_plot.over_size(panels, title, before.simulated or after.simulated)


def scaling(record: Record) -> Any:
    """Return bandwidth and efficiency over the number of nodes, a line for each collective and algorithm."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure, (left, right) = busbw_plot.canvas(1, 2, f"NCCL bus bandwidth over nodes, {_over(record)}", record.simulated)
    largest: dict[tuple[str, str], int] = {}
    for one in record.scaling:
        key = (one.collective, one.algorithm)
        largest[key] = max(largest.get(key, 0), one.size)
    for number, (key, size) in enumerate([*largest.items()][: busbw_plot.LINES]):
        mine = [one for one in record.scaling if (one.collective, one.algorithm) == key and one.size == size]
        mine.sort(key=lambda one: one.nodes)
        color, label = f"C{number}", label_of(_named(*key))
        for axis, name, style in ((left, "busbw", "-"), (left, "prediction", ":"), (right, "efficiency", "-")):
            found = [(one.nodes, getattr(one, name)) for one in mine if one.nodes and getattr(one, name) is not None]
            if found:
                shown = label if style == "-" else "prediction" if number == 0 else None
                axis.plot(
                    [nodes for nodes, _value in found],
                    [100 * value if name == "efficiency" else value for _nodes, value in found],
                    linestyle=style,
                    marker="o" if style == "-" else "",
                    markersize=3,
                    linewidth=1,
                    color=color,
                    label=shown,
                )
    right.axhline(100 * EFFICIENT, color="crimson", linewidth=1, label=f"expected: {EFFICIENT:.0%} or more")
    left.set_ylabel("busbw, GB/s")
    right.set_ylabel("efficiency against the fewest nodes, %")
    nodes = sorted({one.nodes for one in record.scaling if one.nodes})
    for axis in (left, right):
        axis.set_xlabel("nodes")
        axis.set_xscale("log", base=2)
        # Few enough labels to be read.
        axis.xaxis.set_major_locator(FixedLocator(nodes[:: -(-len(nodes) // 12) or 1]))
        axis.xaxis.set_minor_locator(NullLocator())
        if nodes:
            axis.set_xlim(nodes[0] / 1.1, nodes[-1] * 1.1)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axis.set_ylim(bottom=0)
        busbw_plot.legend(axis)
    return figure


def _kinds(results: Results) -> dict[Kind, list[Run]]:
    """Return runs with figures, by scope, collective and algorithm; of a cluster those over most of its nodes.

    ``scaling`` shows its parts, down to one node: in one panel they would look like noise.
    """
    found: dict[Kind, list[Run]] = {}
    for run in results.runs:
        if _points(run):
            found.setdefault(run.kind, []).append(run)
    for kind, runs in found.items():
        if kind[0] == "cluster":
            most = max(len(run.hosts) for run in runs)
            found[kind] = [run for run in runs if len(run.hosts) == most]
    return found


def _points(run: Run) -> dict[int, float]:
    # Size 0 has no place on a logarithmic axis.
    return {size: point.busbw for size, point in run.points.items() if point.busbw is not None and size > 0}


def _spread(runs: Iterable[Run], label: str, color: str, style: str) -> Series:
    each = list(runs)
    found = band(label, [_points(run) for run in each], color, style)
    low, high = dict(found.low or {}), dict(found.high or {})
    for run in each:
        for size, point in run.points.items():
            if point.busbw is not None and point.spread is not None and size in low:
                half = min(point.spread, 2) / 2
                low[size] = min(low[size], point.busbw * (1 - half))
                high[size] = max(high[size], point.busbw * (1 + half))
    return Series(label, found.points, low, high, color, style)


def _marks(runs: Iterable[Run]) -> Mapping[int, tuple[float | None, float | None]]:
    return {
        size: (point.bar, point.prediction)
        for run in runs
        for size, point in run.points.items()
        if size > 0 and (point.bar, point.prediction) != (None, None)
    }


def _named(collective: str, algorithm: str) -> str:
    return f"{collective} ({algorithm})" if algorithm else collective


def _title(kind: Kind, kinds: Iterable[Kind]) -> str:
    scope, collective, algorithm = kind
    scopes = len({scope for scope, _collective, _algorithm in kinds}) > 1
    return label_of(_named(collective, algorithm)) + (f", {label_of(scope)}" if scopes else "")


def _over(record: Record) -> str:
    return f"{label_of(record.scope)} over {_nodes(record.hosts)}"


def _nodes(hosts: Collection[str]) -> str:
    return f"{len(hosts)} node{'s' * (len(hosts) != 1)}, {plain(nodeset.brief(hosts, _NAMES))}"
