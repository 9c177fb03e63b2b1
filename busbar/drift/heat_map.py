# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lay out a map of a search for slow nodes: positions of cells, lines and labels. Pure.

A slow cell differs by background and weight, not by colour alone; its figure is in it.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

# Pixels: a cell of four digits, a character of a label, and the margin.
WIDTH, HEIGHT, CHAR, PAD = 36, 20, 6.7, 6
# Characters of a label, and of a label of a direction; the title has all of it.
LABEL, WAY = 20, 40
# Share of the bar from which a cell is drawn as nearly fast enough.
NEAR = 0.9
# Lines that describe a failed cell in words.
TOLD = 20


def drawn(grid: Plain) -> Plain:
    """Return the drawing. grid: one of ``maps`` of the report."""
    of_part = grid["kind"] in ("rails", "gpus")
    rows = [shorten(name, WAY if of_part else LABEL) for name in grid["rows"]]
    # The title names what is numbered.
    columns = [name.rpartition(" ")[2] if of_part else shorten(name, LABEL) for name in grid["columns"]]
    flat = all(len(label) * CHAR <= WIDTH - PAD for label in columns)
    left = round(max(map(len, rows), default=0) * CHAR) + 2 * PAD
    top = 18 if flat else round(max(map(len, columns), default=0) * CHAR) + 2 * PAD
    width, height = len(columns) * WIDTH, len(rows) * HEIGHT
    cells = []
    for cell in grid["cells"]:
        kind = _kind(cell)
        x, y = left + cell["column"] * WIDTH, top + cell["row"] * HEIGHT
        again = cell["tests"] > 1
        cells.append({"kind": kind, "x": x, "y": y, "text": _text(cell), "title": cell["said"], "again": again})
    lines = [f"M{left + i * WIDTH},{top}v{height}" for i in range(len(columns) + 1)]
    lines += [f"M{left},{top + i * HEIGHT}h{width}" for i in range(len(rows) + 1)]
    breaks = [f"M{PAD},{top + i * HEIGHT}H{left + width}" for i in grid["breaks"]]
    if grid["kind"] != "rails":
        breaks += [f"M{left + i * WIDTH},{PAD}V{top + height}" for i in grid["breaks"]]
    known = {(cell["row"], cell["column"]) for cell in grid["cells"]}
    # No item is measured with itself.
    own = [i for i in range(len(rows)) if grid["rows"] == grid["columns"] and (i, i) not in known]
    bad = list(dict.fromkeys(cell["said"] for cell in grid["cells"] if cell["outcome"] != "pass"))
    counts = {kind: sum(cell["outcome"] == kind for cell in grid["cells"]) for kind in ("fail", "silent", "pass")}
    return {
        **{name: grid[name] for name in ("kind", "title", "left_out")},
        "width": left + width + 1,
        "height": top + height + 1,
        "cells": cells,
        "lines": " ".join(lines),
        "breaks": " ".join(breaks),
        "own": [{"x": left + i * WIDTH, "y": top + i * HEIGHT} for i in own],
        "rows": [
            {"x": left - PAD, "y": top + i * HEIGHT + 14, "text": label, "title": name}
            for i, (label, name) in enumerate(zip(rows, grid["rows"], strict=True))
        ],
        "columns": [
            {"x": left + i * WIDTH + WIDTH // 2, "y": top - PAD, "text": label, "title": name, "flat": flat}
            for i, (label, name) in enumerate(zip(columns, grid["columns"], strict=True))
        ],
        "said": "%s: %s" % (grid["title"], ", ".join(f"{number} {kind}" for kind, number in counts.items())),
        "bad": bad[:TOLD],
        "more_bad": len(bad[TOLD:]),
        "bars": _bars([cell["bar"] for cell in grid["cells"] if cell["bar"] is not None]),
    }


def shorten(name: str, room: int) -> str:
    """Return the name, or both its ends."""
    half = (room - 3) // 2
    return name if len(name) <= room else f"{name[:half]}...{name[-half:]}"


def _kind(cell: Plain) -> str:
    if cell["outcome"] == "fail" and cell["bar"] and cell["figure"] and cell["figure"] >= NEAR * cell["bar"]:
        return "near"
    return str(cell["outcome"])


def _text(cell: Plain) -> str:
    figure = cell["figure"]
    if figure is None:
        return "?"
    return "%.0f" % figure if figure >= 100 else "%.1f" % figure if figure >= 10 else "%.2f" % figure


def _bars(bars: Sequence[float]) -> str:
    if not bars:
        return ""
    low, high = "%.4g" % min(bars), "%.4g" % max(bars)
    return low if low == high else f"{low} to {high}"
