# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every command ends with."""

from __future__ import annotations

from collections.abc import Iterable

# ERROR: a wrong command line, or the command failed. LOCKED: another run works on the same.
GOOD, ERROR, FINDINGS, UNKNOWN, LOCKED = range(5)
_WORST_FIRST = (ERROR, FINDINGS, UNKNOWN, GOOD)


def worst(codes: Iterable[int]) -> int:
    """Return the code of several results; UNKNOWN for none."""
    return min(codes, key=_WORST_FIRST.index, default=UNKNOWN)


def of_states(states: Iterable[str]) -> int:
    """Return the code of findings by their states."""
    return worst([GOOD, *(UNKNOWN if state == "unknown" else FINDINGS for state in states if state != "ok")])
