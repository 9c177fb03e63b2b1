# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Determine the width of the terminal, and format tables of that width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

# Read when a plugin is loaded, before the fork: a worker has no terminal. 120 without one.
COLUMNS = shutil.get_terminal_size((120, 40)).columns
# Width of tables, which need at least 60 columns.
WIDTH = max(60, COLUMNS)

# Cells of a line, and the notes below it.
Line = tuple[tuple[str, ...], Sequence[str]]
# Least characters of the last column.
LEAST = 20


def counted(number: int, noun: str) -> str:
    """Return ``1 job``, ``2 jobs``, ``2 switches``."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("ch") else "s")


def aligned(lines: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """The cells in columns. A long last cell is wrapped in its column, or, where that is narrow, below its line."""
    lines = [tuple(map(printable, line)) for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    offset = sum(widths) + 2 * len(widths)
    beside = width - offset >= min(LEAST, max(len(line[-1]) for line in lines))
    found = []
    for line in lines:
        text = "".join(cell.ljust(size) + "  " for cell, size in zip(line, widths, strict=False))
        if beside:
            first, *more = textwrap.wrap(line[-1], width - offset, break_on_hyphens=False) or [""]
            found += [(text + first).rstrip(), *(" " * offset + part for part in more)]
        else:
            found += [text.rstrip(), *_note(line[-1], width)]
    return found


def _note(text: str, width: int) -> list[str]:
    indent = " " * 4
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def table(heads: Sequence[str], lines: Sequence[Line], width: int, asides: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return cells in columns with notes below their line; no line is longer than ``width``.

    If the columns do not fit, those of the first of ``asides`` become a note, or else those of the next; if that
    is not enough, each line is words with the names of their columns.
    """
    lines = [(tuple(map(printable, cells)), notes) for cells, notes in lines]
    rows = _rows(heads, lines)
    for aside in asides if max(map(len, rows)) > width else ():
        shorter = [head for head in heads if head not in aside]
        less = []
        for cells, notes in lines:
            pairs = [*zip(heads, cells, strict=True)]
            lesser = [f"{head.lower()} {cell}" for head, cell in pairs if head in aside and cell not in ("", "-")]
            less.append((tuple(cell for head, cell in pairs if head not in aside), [", ".join(lesser), *notes]))
        if max(map(len, _rows(shorter, less))) <= width:
            heads, lines, rows = shorter, less, _rows(shorter, less)
            break
    fits = max(map(len, rows)) <= width
    found = rows[:1] if fits else []
    for row, (cells, notes) in zip(rows[1:], lines, strict=True):
        if fits:
            found.append(row)
        else:
            # A figure stays on the line of its name: no break at a non-breaking space.
            words = [
                f"{head.lower()} {cell}".replace(" ", "\0")
                for head, cell in zip(heads, cells, strict=True)
                if cell not in ("", "-")
            ]
            text = "  ".join([*(cell for cell in cells[:1] if cell), *words[1 if cells[0] else 0 :]])
            wrapped = textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)
            found += [part.replace("\0", " ") for part in wrapped]
        found += [line for note in filter(None, notes) for line in _note(printable(note), width)]
    return found


def _rows(heads: Sequence[str], lines: Sequence[Line]) -> list[str]:
    return aligned([tuple(heads), *(cells for cells, _notes in lines)], 1 << 20)
