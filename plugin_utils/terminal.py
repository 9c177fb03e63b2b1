# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How wide what is printed may be, and tables of that width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

# Asked when a plugin is loaded, before the fork: a worker has no terminal. 120 where nobody has one.
WIDTH = max(60, shutil.get_terminal_size((120, 40)).columns)
# Characters of the last column beside the others.
LEAST = 20


def aligned(lines: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """The cells in columns. A long last cell is wrapped in its column, or, where that is narrow, below its line."""
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
            found.append(text.rstrip())
            indent = " " * 4
            found += textwrap.wrap(
                line[-1], width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
    return found
