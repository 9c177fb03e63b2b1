# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compute statistics over repeats of a run, per size: median, 99th percentile and spread.

The input of each repeat is the figure that nccl-tests printed, a mean over its iterations and ranks, out of place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, median
from typing import Dict, List, Optional, Sequence

from . import judge as perf
from .output import Placement, Result
from .record import Wanted

_COARSE = 1 << 20


@dataclass(frozen=True)
class Statistics:
    """One size. time_us, algbw, busbw: medians; microseconds, GB/s.   time_p99_us: of the times, by nearest rank.

    spread: (highest - lowest) / median, of times below 1 MiB, where busbw has few digits, else of busbw.
    max_over_mean: longest time / mean of the others. Both are None of fewer than two repeats.
    repeats: that have figures of this size.   busbw_lowest: GB/s.
    """

    size: int
    time_us: Optional[float]
    algbw: Optional[float]
    busbw: Optional[float]
    busbw_lowest: Optional[float]
    time_p99_us: Optional[float]
    spread: Optional[float]
    max_over_mean: Optional[float]
    repeats: int


def by_size(results: Sequence[Result], wanted: Wanted) -> List[Statistics]:
    """Return one item for each requested size with a figure in one of the repeats."""
    found: Dict[int, List[Placement]] = {}
    for result in results:
        for size, placement in perf.placements(result, wanted).items():
            found.setdefault(size, []).append(placement)
    return [_of_size(size, found[size]) for size in sorted(found)]


def _of_size(size: int, placements: Sequence[Placement]) -> Statistics:
    times = sorted(one.time_us for one in placements if one.time_us is not None)
    busbws = [one.busbw for one in placements if one.busbw is not None]
    middle = median(busbws) if busbws else None
    figures = times if size < _COARSE and len(times) == len(placements) else busbws
    centre = median(figures) if len(figures) > 1 else 0
    others = mean(times[:-1]) if len(times) > 1 else 0
    return Statistics(
        size=size,
        time_us=median(times) if times else None,
        algbw=_median([one.algbw for one in placements]),
        busbw=middle,
        busbw_lowest=min(busbws, default=None),
        time_p99_us=times[math.ceil(0.99 * len(times)) - 1] if times else None,
        spread=(max(figures) - min(figures)) / centre if centre else None,
        max_over_mean=times[-1] / others if others > 0 else None,
        repeats=len(placements),
    )


def _median(figures: Sequence[Optional[float]]) -> Optional[float]:
    there = [figure for figure in figures if figure is not None]
    return median(there) if there else None
