# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Short lists of names and numbers in findings."""

from __future__ import annotations

from typing import Iterable, List, Sequence, Tuple

from ..core.finding import printable

UNNAMED = "a host that is not named"


def names(values: Iterable[str], most: int = 4) -> str:
    """Return ``a, b, c and 3 more``, each once and in order."""
    found = sorted({printable(value)[:120] for value in values})
    more = len(found) - most
    return ", ".join(found[:most]) + (" and %d more" % more if more > 0 else "")


def hosts_of(hosts: Iterable[str], most: int = 4) -> str:
    """Return the names of hosts; UNNAMED for one without a name."""
    return names((host or UNNAMED for host in hosts), most)


def numbers(values: Iterable[int], most: int = 8) -> str:
    """Return ``0-3,7``: runs of consecutive numbers."""
    runs: List[Tuple[int, int]] = []
    for number in sorted(set(values)):
        begin = runs.pop()[0] if runs and runs[-1][1] == number - 1 else number
        runs.append((begin, number))
    return _listed(runs, most)


def missing(present: Iterable[int], total: int, most: int = 8) -> str:
    """Return the numbers of 0 to total - 1 that are not present, as ``numbers``; work is in what is present."""
    inside = [-1, *sorted({number for number in present if 0 <= number < total}), total]
    return _listed([(one + 1, other - 1) for one, other in zip(inside, inside[1:]) if other > one + 1], most)


def _listed(runs: Sequence[Tuple[int, int]], most: int) -> str:
    texts = ["%d" % first if first == last else "%d-%d" % (first, last) for first, last in runs[:most]]
    more = " and more, %d in all" % sum(last - first + 1 for first, last in runs)
    return ",".join(texts) + (more if len(runs) > most else "")


def causes_text(causes: Sequence[str], proven: bool) -> str:
    """Return ``cause: a; b``, or the same of possible ones."""
    return "%s: %s" % ("cause" if proven else "possible causes", "; ".join(causes))


def of_ranks(which: str, one: str = "", many: str = "") -> str:
    """Return ``rank 3`` or ``ranks 0-2``, and the verb that fits."""
    return "rank %s%s" % (which, one) if which.isdigit() else "ranks %s%s" % (which, many or one)
