# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plot bus bandwidth: panels of GB/s over message size, as SVG and PNG, where matplotlib is installed."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text

# Lines in a panel; of more, the lowest have a line, and all are a band.
LINES, LOWEST = 8, 3
# Panels of a figure. A collective and an algorithm each have one.
PANELS = 16


@dataclass(frozen=True)
class Series:
    """A line of a panel. points, low, high: message size in bytes -> GB/s; low and high are the edges of a band."""

    label: str
    points: Mapping[int, float]
    low: Mapping[int, float] | None = None
    high: Mapping[int, float] | None = None
    color: str | None = None
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """marks: message size -> bar and prediction there in GB/s, None for a missing one."""

    title: str
    series: Sequence[Series]
    marks: Mapping[int, tuple[float | None, float | None]]


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


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.svg`` and ``NAME.png``. Raises OSError."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=144)
    return paths


def fleet(members: Mapping[str, Mapping[int, float]]) -> list[Series]:
    """Return a line for each member; of many, their band and median, and a line for each of the slowest.

    members: name -> size -> GB/s.
    """
    named = {name: points for name, points in members.items() if points}
    order = sorted(named, key=lambda name: named[name][max(named[name])])
    if len(order) <= LINES:
        return [Series(label_of(name), named[name]) for name in order]
    return [
        band(f"median of {len(order)}", named.values(), "black", "-"),
        *(Series(label_of(name), named[name]) for name in order[:LOWEST]),
    ]


def band(label: str, members: Iterable[Mapping[int, float]], color: str, style: str) -> Series:
    """Return the median of many, with the band from the lowest to the highest."""
    each: dict[int, list[float]] = {}
    for points in members:
        for size, value in points.items():
            each.setdefault(size, []).append(value)
    return Series(
        label,
        {size: statistics.median(values) for size, values in each.items()},
        {size: min(values) for size, values in each.items()},
        {size: max(values) for size, values in each.items()},
        color,
        style,
    )


def over_size(panels: Sequence[Panel], title: str, simulated: bool) -> Any:
    """Return a figure with a panel for each, in a grid: bandwidth, bar and prediction over the message size."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    left_out = len(panels) - PANELS
    panels = panels[:PANELS]
    columns = min(4, len(panels)) or 1
    rows = -(-len(panels) // columns) or 1
    figure, axes = canvas(rows, columns, title + (f"; {left_out} panels left out" if left_out > 0 else ""), simulated)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel.title)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _position: size_text(round(size))))
        axis.set_xlabel("message size, bytes")
        axis.set_ylabel("busbw, GB/s")
        for series in panel.series:
            _line(axis, series)
        for number, (size, marks) in enumerate(sorted(panel.marks.items())):
            # Both apply to the largest messages: across the whole panel small ones would seem to miss them.
            for value, (style, color), what in zip(
                marks, (("-", "crimson"), (":", "0.45")), ("bar", "prediction"), strict=True
            ):
                if value is not None:
                    label = what if number == 0 else None
                    axis.hlines(value, size / 8, size * 2, linestyle=style, color=color, label=label)
        axis.set_ylim(bottom=0)
        legend(axis)
    return figure


def _line(axis: Any, series: Series) -> None:
    sizes = sorted(series.points)
    if not sizes:
        return
    if series.low and series.high:
        edges = [[edge[size] for size in sizes] for edge in (series.low, series.high)]
        axis.fill_between(sizes, *edges, color=series.color or "steelblue", alpha=0.2, linewidth=0)
    values = [series.points[size] for size in sizes]
    axis.plot(
        sizes,
        values,
        marker=".",
        markersize=4,
        linewidth=1,
        label=series.label,
        color=series.color,
        linestyle=series.style,
    )


def canvas(rows: int, columns: int, title: str, simulated: bool) -> tuple[Any, list[Any]]:
    """Return a figure with its title, and its panels. simulated: printed over all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(4.6 * columns, 6.4), 3.4 * rows + 0.8), layout="constrained")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis in axes:
        axis.grid(True, color="0.9")
    if simulated:
        title += "\n(simulated: no figure in it is a measurement)"
        figure.text(0.5, 0.5, "simulated", fontsize=60, color="0.5", alpha=0.15, ha="center", va="center", rotation=25)
    figure.suptitle(title)
    return figure, axes


def legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="best", fontsize=7, framealpha=0.7, edgecolor="none")


def label_of(name: str) -> str:
    """Return a name as a label, without the leading "_" of which matplotlib hides labels."""
    return plain(name.lstrip("_")[:24]) or "?"


def plain(text: str) -> str:
    """Escape a text for matplotlib, which reads $...$ as mathematics."""
    return printable(text).replace("$", r"\$")
