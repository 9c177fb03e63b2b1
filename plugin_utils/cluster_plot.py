# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pictures of a benchmark between nodes: bandwidth over size, scaling over nodes, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_plot, nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw_plot import Panel, Series, band, label_of, plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import Job, Record, Row
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_table import EXPECTED

# Of "over SCOPE, 16 nodes" in a title.
_NAMES = 40
Kind = tuple[str, str, str]


def plot(folder: Path, record: Record, before: Record | None = None) -> tuple[list[Path], str]:
    """Writes ``busbw``, ``scaling`` and, with an earlier record, ``before-after``, each as SVG and PNG.

    Returns the files, and why there are none. Raises OSError.
    """
    problem = busbw_plot.ready()
    if problem or not any(job.rows for job in record.jobs):
        return [], problem or "no plot: nothing was measured"
    paths = busbw_plot.save(over_size(record), folder, "busbw")
    if record.scaling:
        paths += busbw_plot.save(scaling(record), folder, "scaling")
    if before is not None and _kinds(before).keys() & _kinds(record).keys():
        paths += busbw_plot.save(before_after(before, record), folder, "before-after")
    return paths, ""


def over_size(record: Record) -> Any:
    """A panel for each scope, collective and algorithm: its jobs, bar and prediction over the message size."""
    panels = []
    for kind, jobs in _kinds(record).items():
        several = len({job.hosts for job in jobs}) > 1
        members: dict[str, dict[int, float]] = {}
        for job in jobs:
            name = nodeset.brief(job.hosts, 24) if several else "measured"
            members.setdefault(name, {}).update(_points(job.rows))
        lines = busbw_plot.fleet(members)
        if not several:
            lines = [_spread(jobs, "measured", "black", "-")]
        panels.append(Panel(_title(kind, record), lines, _marks(jobs)))
    return busbw_plot.over_size(panels, f"NCCL bus bandwidth, {_over(record)}", record.simulated)


def before_after(before: Record, after: Record) -> Any:
    """A panel for what both have measured: before is dashed, after is a line, and the bands are their noise."""
    earlier, later = _kinds(before), _kinds(after)
    panels = []
    for kind, jobs in later.items():
        if kind not in earlier:
            continue
        lines = [
            _spread(earlier[kind], "before", "darkorange", "--"),
            _spread(jobs, "after", "steelblue", "-"),
        ]
        panels.append(Panel(_title(kind, after), lines, _marks(jobs)))
    title = f"NCCL bus bandwidth before and after, {_over(after)}"
    return busbw_plot.over_size(panels, title, before.simulated or after.simulated)


def scaling(record: Record) -> Any:
    """Bandwidth and efficiency over the number of nodes, a line for each collective and algorithm."""
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
    right.axhline(100 * EXPECTED, color="crimson", linewidth=1, label=f"expected: {EXPECTED:.0%} or more")
    left.set_ylabel("busbw, GB/s")
    right.set_ylabel("efficiency, % of the fewest nodes' busbw")
    nodes = sorted({one.nodes for one in record.scaling if one.nodes})
    for axis in (left, right):
        axis.set_xlabel("nodes")
        axis.set_xscale("log", base=2)
        # Few enough to be read.
        axis.xaxis.set_major_locator(FixedLocator(nodes[:: -(-len(nodes) // 12) or 1]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axis.set_ylim(bottom=0)
        busbw_plot.legend(axis)
    return figure


def _kinds(record: Record) -> dict[Kind, list[Job]]:
    """Jobs that measured something, by scope, collective and algorithm."""
    found: dict[Kind, list[Job]] = {}
    for job in record.jobs:
        if _points(job.rows):
            found.setdefault((job.scope, job.collective, job.algorithm), []).append(job)
    return found


def _points(rows: Iterable[Row]) -> dict[int, float]:
    # A size of nothing has no place on a logarithmic axis.
    return {row.size: row.busbw for row in rows if row.busbw is not None and row.size > 0}


def _spread(jobs: Iterable[Job], label: str, color: str, style: str) -> Series:
    """The median of jobs with the band of all of them; of one, with that of its repeats."""
    each = list(jobs)
    found = band(label, [_points(job.rows) for job in each], color, style)
    low, high = dict(found.low or {}), dict(found.high or {})
    for job in each:
        for row in job.rows:
            if row.busbw is not None and row.spread is not None and row.size in low:
                low[row.size] = min(low[row.size], row.busbw * (1 - min(row.spread, 2) / 2))
                high[row.size] = max(high[row.size], row.busbw * (1 + min(row.spread, 2) / 2))
    return Series(label, found.points, low, high, color, style)


def _marks(jobs: Iterable[Job]) -> Mapping[int, tuple[float | None, float | None]]:
    return {job.size: (job.bar, job.prediction) for job in jobs if job.size > 0}


def _named(collective: str, algorithm: str) -> str:
    return f"{collective} ({algorithm})" if algorithm else collective


def _title(kind: Kind, record: Record) -> str:
    scope, collective, algorithm = kind
    scopes = len({job.scope for job in record.jobs}) > 1
    return label_of(_named(collective, algorithm)) + (f", {label_of(scope)}" if scopes else "")


def _over(record: Record) -> str:
    count = len(record.hosts)
    names = plain(nodeset.brief(record.hosts, _NAMES))
    return f"{label_of(record.scope)} over {count} node{'s' * (count != 1)}, {names}"
