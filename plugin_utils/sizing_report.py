# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the result of ``busbar size`` as text."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

from . import screen, terminal
from .campaign.cluster_table import duration, number
from .sizing import LOSS, Figure, Sized
from .training_traffic import Traffic, gigabytes


def render(title: str, sized: Sized, width: int) -> str:
    """Return the verdict, traffic, figures with their formulas, and notes; no line is longer than ``width``."""
    width = max(width, 40)
    rows = [(figure.name, value_text(figure), printable(figure.formula)) for figure in sized.figures]
    heads = ["TRAFFIC A STEP", "RANKS", "A GPU SENDS", "LEAVES A NODE", "TAKES", "HIDDEN IN"]
    cells = [_cells(one, sized) for one in sized.traffic]
    notes = [f"bottleneck: {sized.bottleneck}"] if sized.bottleneck else []
    notes += [f"note: {note}" for note in sized.notes]
    lines = [line for text in (title, verdict(sized)) for line in screen.wrapped(text, width)]
    lines += ["", *terminal.table(heads, cells, width)] if cells else []
    lines += ["", *terminal.aligned(rows, width)] if rows else []
    return "\n".join(
        [*lines, *([""] if notes else []), *(line for text in notes for line in screen.wrapped(text, width))]
    )


def _cells(one: Traffic, sized: Sized) -> terminal.Line:
    hidden = f"{100 * one.window:.3g} %" if one.window else "-"
    if one.window and sized.compute is not None:
        hidden = duration(1e6 * one.window * sized.compute)
    takes = "-" if one.seconds is None else duration(1e6 * one.seconds)
    sent = (gigabytes(one.gpu_bytes), gigabytes(one.node_bytes))
    cells = (f"{one.kind}: {one.collective}", str(one.ranks), *sent, takes, hidden)
    return cells, (f"{one.what}: {one.formula}", one.why_window)


def value_text(figure: Figure) -> str:
    """Format a figure: ``12.3 GB/s``, ``1.24 s``."""
    value = figure.value
    if figure.unit == "s":
        return duration(1e6 * value) if value else "0 s"
    if figure.unit == "%":
        return f"{value:.1f} %"
    if figure.unit == "":
        return f"{value:.0f}"
    return f"{number(value) if value < 1e4 else f'{value:.0f}'} {figure.unit}"


def verdict(sized: Sized) -> str:
    """Return in one sentence whether it is enough, and what it needs."""
    found = {figure.name: value_text(figure) for figure in sized.figures}
    needs = ""
    if "needed busbw" in found:
        needs = f"{found['needed busbw']} of busbw, {found['needed NICs a node']} NICs a node"
    if sized.unknown:
        return f"UNKNOWN whether that is enough: {sized.unknown}" + (f" (needed: {needs})" if needs else "")
    if sized.enough is None:
        allowed = found.get("step the network allows")
        if allowed is None:
            return "NOTHING crosses the network"
        return f"THE NETWORK ALLOWS a step of {allowed}; nothing shorter was requested (--mfu)"
    wait = 0.0 if not sized.step or sized.compute is None else 100 * (1 - sized.compute / sized.step)
    text = f"{wait:.1f} % of the step is waiting, {100 * LOSS:g} % may be" + (f"; needed: {needs}" if needs else "")
    return f"{'ENOUGH' if sized.enough else 'NOT ENOUGH'}: {text}"
