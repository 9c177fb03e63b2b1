# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which nights are old, by a clock that may be wrong. Pure."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence

# From one run to the next nights age by no more than this: a clock that jumps, or a machine that was off, makes
# nothing old.
STEP = datetime.timedelta(days=7)
# Further than this after the last run, or before it, a run is not believed.
AFTER = datetime.timedelta(days=31)
BEFORE = datetime.timedelta(days=1)

Moments = Sequence[tuple[int, datetime.datetime]]


def odd(moments: Moments) -> str:
    """What is strange in the last run's start; empty where nothing is. moments: number and start, the newest first."""
    if len(moments) < 2:
        return ""
    (_, tonight), (number, last) = moments[:2]
    if -BEFORE <= tonight - last <= AFTER:
        return ""
    days = abs(tonight - last).days
    order = "after" if tonight > last else "before"
    return f"this run began {tonight:%Y-%m-%d}, {days} days {order} the last one (run {number})"


def forgotten(moments: Moments, days: int) -> int | None:
    """Number of the newest run that is older than so many days before the last; None where none is."""
    age = datetime.timedelta()
    for (_, later), (number, earlier) in itertools.pairwise(moments):
        age += min(max(later - earlier, datetime.timedelta()), STEP)
        if age > datetime.timedelta(days=days):
            return number
    return None
