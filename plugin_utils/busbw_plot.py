# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plot results of benchmarks as SVG and PNG: bus bandwidth over message size, with bar and prediction.

matplotlib is optional on the control node.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text

from . import nodeset
from .benchmark_results import Results, Run
from .campaign.cluster_table import program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Runs of a panel that have a line each; of more, the slowest have one, and all are a band around their median.
LINES, LOWEST = 8, 3
# Panels of a figure. A scope, a collective and an algorithm have one together.
PANELS = 16
Kind = tuple[str, str, str]


def plot_results(folder: Path, results: Results, title: str) -> tuple[list[Path], str]:
    """Write ``busbw.svg`` and ``busbw.png``. Return the files, and why there are none. Raises OSError."""
    try:
        import matplotlib
    except ImportError:
        return [], "no plot: matplotlib is not installed beside ansible-core (pip install matplotlib)"
    matplotlib.use("Agg")
    # Text stays text in the SVG, and the same results make the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "busbar", "font.size": 9})
    if not _kinds(results):
        return [], "no plot: nothing was measured"
    figure = draw(results, f"{title}, {_nodes({host for run in results.runs for host in run.hosts})}")
    paths = [folder / "busbw.svg", folder / "busbw.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=144)
    return paths, ""


def draw(results: Results, title: str) -> Figure:
    """Return a figure with a panel for each scope, collective and algorithm."""
    from matplotlib.figure import Figure

    kinds = _kinds(results)
    if len(kinds) > PANELS:
        title += f"; {len(kinds) - PANELS} panels left out"
    shown = [*kinds.items()][:PANELS]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(max(4.6 * columns, 6.4), 3.4 * rows + 0.8), layout="constrained")
    if results.simulated:
        title += "\n(simulated: no figure in it is a measurement)"
        figure.text(0.5, 0.5, "simulated", fontsize=60, color="0.5", alpha=0.15, ha="center", va="center", rotation=25)
    figure.suptitle(title)
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    scopes = len({scope for scope, _collective, _algorithm in kinds}) > 1
    for axis, ((scope, collective, algorithm), runs) in zip(axes, shown, strict=False):
        axis.set_title(_label(program(collective, algorithm)) + (f", {_label(scope)}" if scopes else ""))
        _panel(axis, runs)
    return figure


def _kinds(results: Results) -> dict[Kind, list[Run]]:
    """Return runs with figures, by scope, collective and algorithm; of a cluster those over most of its nodes."""
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


def _panel(axis: Axes, runs: Sequence[Run]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.grid(True, color="0.9")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: size_text(round(value))))
    axis.set_xlabel("message size, bytes")
    axis.set_ylabel("busbw, GB/s")
    order = sorted(runs, key=lambda run: _points(run)[max(_points(run))])
    if len(order) == 1 or len(order) > LINES:
        _band(axis, order)
    for run in order if 1 < len(order) <= LINES else order[: LOWEST * (len(order) > 1)]:
        _line(axis, _points(run), _label(nodeset.brief(run.hosts, 24)))
    _marks(axis, runs)
    axis.set_ylim(bottom=0)
    axis.legend(loc="best", fontsize=7, framealpha=0.7, edgecolor="none")


def _line(axis: Axes, points: Mapping[int, float], label: str, color: str | None = None) -> None:
    sizes = sorted(points)
    [line] = axis.plot(sizes, [points[size] for size in sizes], color=color, label=label)
    line.set(marker=".", markersize=4, linewidth=1)


def _band(axis: Axes, runs: Sequence[Run]) -> None:
    """Draw the median of runs, with the band from their lowest to their highest repeat."""
    values: dict[int, list[float]] = {}
    edges: dict[int, list[float]] = {}
    for run in runs:
        for size, value in _points(run).items():
            half = min(run.points[size].spread or 0.0, 2) / 2
            values.setdefault(size, []).append(value)
            edges.setdefault(size, []).extend((value * (1 - half), value * (1 + half)))
    sizes = sorted(edges)
    low, high = ([edge(edges[size]) for size in sizes] for edge in (min, max))
    axis.fill_between(sizes, low, high, color="black", alpha=0.2, linewidth=0)
    label = "measured" if len(runs) == 1 else f"median of {len(runs)}"
    _line(axis, {size: statistics.median(of) for size, of in values.items()}, label, "black")


def _marks(axis: Axes, runs: Sequence[Run]) -> None:
    """Draw bar and prediction. Both apply to the largest messages: small ones would seem to miss them."""
    for number, (label, style, color) in enumerate((("bar", "-", "crimson"), ("prediction", ":", "0.45"))):
        figures = {size: marks[number] for run in runs for size, marks in run.marks.items() if size > 0}
        for size, value in sorted(figures.items()):
            if value is not None:
                axis.hlines(value, size / 8, size * 2, linestyle=style, color=color, label=label)
                label = ""


def _nodes(hosts: set[str]) -> str:
    return f"{len(hosts)} node{'s' * (len(hosts) != 1)}, {_plain(nodeset.brief(hosts, 40))}"


def _label(name: str) -> str:
    """Return a name as a label, without the leading "_" of which matplotlib hides labels."""
    return _plain(name.lstrip("_")[:24]) or "?"


def _plain(text: str) -> str:
    """Escape a text for matplotlib, which reads $...$ as mathematics."""
    return printable(text).replace("$", r"\$")
