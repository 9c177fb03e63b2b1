# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which runs are old, by a clock that may be wrong. Pure."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence

# Days that count between two runs at most: a clock that jumps, or a machine that was off, makes nothing old.
STEP = datetime.timedelta(days=7)
# A run further than this after the last one, or before it, is not trusted.
AFTER = datetime.timedelta(days=31)
BEFORE = datetime.timedelta(days=1)

Moments = Sequence[tuple[int, datetime.datetime]]


def odd(moments: Moments) -> str:
    """Return what is implausible in the last run's start; "" for none. moments: number and start, the newest first."""
    if len(moments) < 2:
        return ""
    (_, tonight), (number, last) = moments[:2]
    if -BEFORE <= tonight - last <= AFTER:
        return ""
    days = abs(tonight - last).days
    order = "after" if tonight > last else "before"
    return f"this run began {tonight:%Y-%m-%d}, {days} days {order} the last one (run {number})"


def forgotten(moments: Moments, days: int) -> int | None:
    """Return the number of the newest run older than ``days`` before the last; None where none is."""
    age = datetime.timedelta()
    for (_, later), (number, earlier) in itertools.pairwise(moments):
        age += min(max(later - earlier, datetime.timedelta()), STEP)
        if age > datetime.timedelta(days=days):
            return number
    return None
