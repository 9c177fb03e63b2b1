# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plot results of benchmarks as SVG and PNG: bandwidth over size, before and after, scaling over nodes.

matplotlib is optional on the control node.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text

from . import nodeset
from .benchmark_results import Results, Run, of_record
from .campaign.cluster_judge import EFFICIENT
from .campaign.cluster_record import Record
from .campaign.cluster_table import program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lines in a panel; of more, the lowest have a line, and all are a band.
LINES, LOWEST = 8, 3
# Panels of a figure. A collective and an algorithm each have one.
PANELS = 16
# Characters of host names in a title, as in "over SCOPE, 16 nodes".
_NAMES = 40
Kind = tuple[str, str, str]


def ready() -> str:
    """Set up matplotlib to write reproducible files. Return why it cannot, "" where it can."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed beside ansible-core (pip install matplotlib)"
    matplotlib.use("Agg")
    # Text stays text in the SVG.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "busbar", "font.size": 9})
    return ""


def plot_record(folder: Path, record: Record, before: Results | None = None) -> tuple[list[Path], str]:
    """Write ``busbw``, ``scaling`` and, with earlier results, ``before-after``, each as SVG and PNG.

    Returns the files, and why there are none. Raises OSError.
    """
    after = of_record(record, "")
    paths, problem = plot_results(folder, after, f"NCCL bus bandwidth, {_over(record)}")
    if paths and record.scaling:
        paths += save(scaling(record), folder, "scaling")
    if paths and before is not None and _kinds(before).keys() & _kinds(after).keys():
        paths += save(before_after(before, after), folder, "before-after")
    return paths, problem


def plot_results(folder: Path, results: Results, title: str) -> tuple[list[Path], str]:
    """Write ``busbw`` as SVG and PNG. Return the files, and why there are none. Raises OSError."""
    problem = ready()
    if problem or not any(run.points for run in results.runs):
        return [], problem or "no plot: nothing was measured"
    return save(over_size(results, title), folder, "busbw"), ""


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.svg`` and ``NAME.png``. Raises OSError."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=144)
    return paths


def over_size(results: Results, title: str) -> Figure:
    """Return a panel for each scope, collective and algorithm: its runs, bar and prediction over message size."""
    kinds = _kinds(results)
    panels = []
    for kind, runs in kinds.items():
        order = sorted(runs, key=lambda run: _points(run)[max(_points(run))])
        lines = [Series(label_of(nodeset.brief(run.hosts, 24)), _points(run)) for run in order]
        if len(runs) == 1:
            lines = [band("measured", runs, "black")]
        elif len(runs) > LINES:
            lines = [band(f"median of {len(runs)}", runs, "black"), *lines[:LOWEST]]
        panels.append(Panel(_title(kind, kinds), lines, _marks(runs)))
    return draw(panels, title, results.simulated)


def before_after(before: Results, after: Results) -> Figure:
    """Return a panel for each kind that both measured: before is dashed, after is solid, bands are their noise."""
    earlier, later = _kinds(before), _kinds(after)
    panels = []
    for kind, runs in later.items():
        if kind in earlier:
            lines = [band("before", earlier[kind], "darkorange", "--"), band("after", runs, "steelblue")]
            panels.append(Panel(_title(kind, later), lines, _marks(runs)))
    hosts = {host for runs in later.values() for run in runs for host in run.hosts}
    title = f"NCCL bus bandwidth before and after, {_nodes(hosts)}"
    return draw(panels, title, before.simulated or after.simulated)


def scaling(record: Record) -> Figure:
    """Return bandwidth and efficiency over the number of nodes, a line for each collective and algorithm."""
    largest: dict[tuple[str, str], int] = {}
    for one in record.scaling:
        key = (one.collective, one.algorithm)
        largest[key] = max(largest.get(key, 0), one.size)
    busbw: list[Series] = []
    efficiency: list[Series] = []
    for number, (key, size) in enumerate([*largest.items()][:LINES]):
        mine = [one for one in record.scaling if (one.collective, one.algorithm) == key and one.size == size]
        color, label = f"C{number}", label_of(program(*key))
        for into, name, style in ((busbw, "busbw", "-"), (busbw, "prediction", ":"), (efficiency, "efficiency", "-")):
            found = [(one.nodes, getattr(one, name)) for one in mine if one.nodes and getattr(one, name) is not None]
            shown = label if style == "-" else "prediction" if number == 0 else ""
            factor = 100 if name == "efficiency" else 1
            points = {nodes: factor * value for nodes, value in found}
            into.append(Series(shown, points, color=color, style=style))
    least = {one.nodes: 100 * EFFICIENT for one in record.scaling if one.nodes}
    efficiency.append(Series(f"expected: {EFFICIENT:.0%} or more", least, color="crimson"))
    panels = [
        Panel("", busbw, {}, "nodes"),
        Panel("", efficiency, {}, "nodes", "efficiency against the fewest nodes, %"),
    ]
    return draw(panels, f"NCCL bus bandwidth over nodes, {_over(record)}", record.simulated)


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


def band(label: str, runs: Sequence[Run], color: str, style: str = "-") -> Series:
    """Return the median of runs, with the band from their lowest to their highest repeat."""
    values: dict[int, list[float]] = {}
    edges: dict[int, list[float]] = {}
    for run in runs:
        for size, value in _points(run).items():
            half = min(run.points[size].spread or 0.0, 2) / 2
            values.setdefault(size, []).append(value)
            edges.setdefault(size, []).extend((value * (1 - half), value * (1 + half)))
    low, high = ({size: edge(found) for size, found in edges.items()} for edge in (min, max))
    return Series(label, {size: statistics.median(of) for size, of in values.items()}, low, high, color, style)


def _marks(runs: Iterable[Run]) -> Mapping[int, tuple[float | None, float | None]]:
    return {
        size: (point.bar, point.prediction)
        for run in runs
        for size, point in run.points.items()
        if size > 0 and (point.bar, point.prediction) != (None, None)
    }


def _title(kind: Kind, kinds: Iterable[Kind]) -> str:
    scope, collective, algorithm = kind
    scopes = len({scope for scope, _collective, _algorithm in kinds}) > 1
    return label_of(program(collective, algorithm)) + (f", {label_of(scope)}" if scopes else "")


def _over(record: Record) -> str:
    return f"{label_of(record.scope)} over {_nodes(record.hosts)}"


def _nodes(hosts: Collection[str]) -> str:
    return f"{len(hosts)} node{'s' * (len(hosts) != 1)}, {plain(nodeset.brief(hosts, _NAMES))}"


# -- drawing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A line of a panel. points, low, high: x -> y of the panel; low and high are the edges of a band."""

    label: str
    points: Mapping[int, float]
    low: Mapping[int, float] | None = None
    high: Mapping[int, float] | None = None
    color: str | None = None
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """marks: message size -> bar and prediction there in GB/s, None for a missing one.   x, y: labels of the axes."""

    title: str
    series: Sequence[Series]
    marks: Mapping[int, tuple[float | None, float | None]]
    x: str = "message size, bytes"
    y: str = "busbw, GB/s"


def draw(panels: Sequence[Panel], title: str, simulated: bool) -> Figure:
    """Return a figure with a panel for each, in a grid. simulated: printed over all of them."""
    from matplotlib.figure import Figure

    if len(panels) > PANELS:
        title += f"; {len(panels) - PANELS} panels left out"
        panels = panels[:PANELS]
    columns = min(4, len(panels)) or 1
    rows = -(-len(panels) // columns) or 1
    figure = Figure(figsize=(max(4.6 * columns, 6.4), 3.4 * rows + 0.8), layout="constrained")
    if simulated:
        title += "\n(simulated: no figure in it is a measurement)"
        figure.text(0.5, 0.5, "simulated", fontsize=60, color="0.5", alpha=0.15, ha="center", va="center", rotation=25)
    figure.suptitle(title)
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, panel)
    return figure


def _panel(axis: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.grid(True, color="0.9")
    axis.set_title(panel.title)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    text = "{:g}".format if panel.x == "nodes" else lambda size: size_text(round(size))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: text(value)))
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    for series in panel.series:
        sizes = sorted(series.points)
        if series.low and series.high:
            low, high = ([edge[size] for size in sizes] for edge in (series.low, series.high))
            axis.fill_between(sizes, low, high, color=series.color or "steelblue", alpha=0.2, linewidth=0)
        values = [series.points[size] for size in sizes]
        [line] = axis.plot(sizes, values, color=series.color, linestyle=series.style, label=series.label)
        line.set(marker=".", markersize=4, linewidth=1)
    for number, (size, marks) in enumerate(sorted(panel.marks.items())):
        # Both apply to the largest messages: across the whole panel small ones would seem to miss them.
        looks = (("bar", "-", "crimson"), ("prediction", ":", "0.45"))
        for value, (what, style, color) in zip(marks, looks, strict=True):
            if value is not None:
                label = what if number == 0 else ""
                axis.hlines(value, size / 8, size * 2, linestyle=style, color=color, label=label)
    axis.set_ylim(bottom=0)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="best", fontsize=7, framealpha=0.7, edgecolor="none")


def label_of(name: str) -> str:
    """Return a name as a label, without the leading "_" of which matplotlib hides labels."""
    return plain(name.lstrip("_")[:24]) or "?"


def plain(text: str) -> str:
    """Escape a text for matplotlib, which reads $...$ as mathematics."""
    return printable(text).replace("$", r"\$")
