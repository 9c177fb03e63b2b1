# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Exit codes of all ``busbar`` commands (docs/commands.md)."""

from __future__ import annotations

from collections.abc import Iterable

GOOD, ERROR, FINDINGS, UNKNOWN, LOCKED = range(5)
MEANINGS = {
    GOOD: "good",
    ERROR: "usage error or failure of the command",
    FINDINGS: "findings",
    UNKNOWN: "something could not be judged",
    LOCKED: "locked by another run",
}
# Verdict of what a command judged.
WORDS = {GOOD: "OK", FINDINGS: "NOT OK", UNKNOWN: "INCOMPLETE"}
_WORST_FIRST = (ERROR, FINDINGS, UNKNOWN, GOOD)


def worst(codes: Iterable[int]) -> int:
    """Return the code of several results; UNKNOWN for none."""
    return min(codes, key=_WORST_FIRST.index, default=UNKNOWN)


def of_states(states: Iterable[str]) -> int:
    """Return the code of findings by their states; GOOD for none."""
    return worst([GOOD, *(UNKNOWN if state == "unknown" else FINDINGS for state in states if state != "ok")])
