# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a run of nccl-tests and its repeats together, with statistics of each size, and build the module's result."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from statistics import mean, median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import STATES, Finding
from ..core.plan import Plan
from ..core.size import size_text
from . import judge as perf
from .checks import FRESH, OUTLIER, RAN, SPREAD
from .output import Placement, Result
from .record import Run, Wanted
from .transport import Network

# Below it busbw has few digits.
_COARSE = 1 << 20
SPREAD_LIMIT = 0.10
OUTLIER_LIMIT = 5.0


def judge_repeats(
    results: Sequence[Tuple[Optional[Result], str]], wanted: Wanted, run: Run, now: float, since: Sequence[str] = ()
) -> Plan:
    """Judge whether ``run`` and its repeats are as wanted, and good. results: of each, as perf.read returns it.

    now, since: as of perf.judge. With repeats the bandwidth is judged by its median, and all else by the worst of them.
    """
    runs = [run, *run.others]
    since = list(since)
    if len(runs) < wanted.repeats and all(one.rc == 0 for one in runs):
        since.append("measured %d times, not %d" % (len(runs), wanted.repeats))
    if wanted.several or any(one.network is not None for one in runs):
        # The nightly check looks at single nodes, and is not sent what starts a run on several.
        from . import judge_network
    alone = wanted if wanted.repeats == 1 else replace(wanted, bar_busbw=None)
    plans: List[Sequence[Finding]] = []
    for one, (result, problem) in zip(runs, results):
        judged = perf.judge(result, alone, replace(one, command=run.command), now, problem, since).findings
        if one.network is not None or wanted.several:
            judged = tuple(judge_network.judge(one.network, result, wanted, judged))
        plans.append(judged)
    findings = plans[0] if len(plans) == 1 else _worst(plans)
    if wanted.repeats > 1:
        findings = (*findings, *_judge_repeats([result for result, _problem in results], wanted, findings))
    if wanted.several:
        findings = judge_network.bound(findings)
    return Plan(tuple(findings))


def _worst(plans: Sequence[Sequence[Finding]]) -> List[Finding]:
    """Return the worst finding per check and subject, in the first plan's order, naming its run if they differ."""
    found: Dict[str, List[Tuple[int, Finding]]] = {}
    for number, plan in enumerate(plans, 1):
        for finding in plan:
            found.setdefault(finding.id, []).append((number, finding))
    worst = []
    for answers in found.values():
        number, finding = min(answers, key=lambda answer: STATES.index(answer[1].state))
        alike = len({one.have for _number, one in answers}) == 1 and len(answers) == len(plans)
        if not finding.ok and not alike and finding.have is not None and finding.check != FRESH.id:
            finding = replace(finding, have="run %d of %d: %s" % (number, len(plans), finding.have))
        worst.append(finding)
    return worst


def _judge_repeats(results: Sequence[Optional[Result]], wanted: Wanted, findings: Sequence[Finding]) -> List[Finding]:
    """Judge the median of the bandwidth at the largest size, and the spread."""
    ran = next(one for one in findings if one.check == RAN.id)
    there = [result for result in results if result is not None]
    reached = [perf.reached(result, wanted) for result in there]
    figures = [figure for figure in reached if figure is not None]
    complete = len(figures) == len(results) >= wanted.repeats
    simulated = any(result.simulated for result in there)
    source = ran.source
    found = []
    if wanted.bar_busbw is not None:
        figure = median(figures) if complete else None
        of = ", median of %d runs" % len(figures)
        found.append(perf.judge_busbw(figure, simulated, wanted, source, wanted.bar_busbw, ran, of))
    sizes = {one.size: one for one in by_size(there, wanted)} if complete else {}
    cause = next((one for one in findings if not one.ok and one.because is None), ran)
    return [*found, _spread(sizes, wanted, source, cause), _outlier(sizes, wanted, source, cause)]


def _spread(sizes: Mapping[int, Statistics], wanted: Wanted, source: str, cause: Finding) -> Finding:
    want = "at most %.0f %% of busbw apart at %s" % (100 * SPREAD_LIMIT, size_text(wanted.sizes[-1]))
    largest = sizes.get(wanted.sizes[-1])
    if largest is None or largest.spread is None:
        return SPREAD.judge(wanted.subject, "unknown", want, None, source, because=cause)
    have = "%.1f %% over %d runs" % (100 * largest.spread, largest.repeats)
    return SPREAD.judge(wanted.subject, "drift" if largest.spread > SPREAD_LIMIT else "ok", want, have, source)


def _outlier(sizes: Mapping[int, Statistics], wanted: Wanted, source: str, cause: Finding) -> Finding:
    want = "no run takes more than %g times as long as the others" % OUTLIER_LIMIT
    known = [one for one in sizes.values() if one.max_over_mean is not None]
    if not known or len(known) < len(wanted.sizes):
        return OUTLIER.judge(wanted.subject, "unknown", want, None, source, because=cause)
    worst = max(known, key=lambda one: one.max_over_mean or 0.0)
    have = "%.1f times at %s" % (worst.max_over_mean or 0.0, size_text(worst.size))
    state = "drift" if (worst.max_over_mean or 0.0) > OUTLIER_LIMIT else "ok"
    return OUTLIER.judge(wanted.subject, state, want, have, source)


# -- statistics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    """One size. time_us, algbw, busbw: medians; microseconds, GB/s.   time_p99_us: of the times, by nearest rank.

    spread: (highest - lowest) / median, of times below 1 MiB, where busbw has few digits, else of busbw.
    max_over_mean: longest time / mean of the others. Both are None of fewer than two repeats.
    repeats: that have figures of this size.
    """

    size: int
    time_us: Optional[float]
    algbw: Optional[float]
    busbw: Optional[float]
    time_p99_us: Optional[float]
    spread: Optional[float]
    max_over_mean: Optional[float]
    repeats: int


def by_size(results: Sequence[Result], wanted: Wanted) -> List[Statistics]:
    """Return statistics of each requested size with a figure in one of the repeats."""
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
        time_p99_us=times[math.ceil(0.99 * len(times)) - 1] if times else None,
        spread=(max(figures) - min(figures)) / centre if centre else None,
        max_over_mean=times[-1] / others if others > 0 else None,
        repeats=len(placements),
    )


def _median(figures: Sequence[Optional[float]]) -> Optional[float]:
    there = [figure for figure in figures if figure is not None]
    return median(there) if there else None


# -- the module's result -----------------------------------------------------------------------------------------------

# Where nothing was run and no stored result can be read.
NOTHING: Dict[str, Any] = {
    "measured": {},
    "busbw": None,
    "finished_at": None,
    "simulated": False,
    "repeats": [],
    "statistics": [],
    "transport": {},
    "rails": {},
    "nccl_version": "",
}


def judge(run: Run, wanted: Wanted, now: float, since: Sequence[str] = ()) -> Tuple[Plan, Dict[str, Any]]:
    """The findings on a run, and what the module returns of it beside them. now, since: as of perf.judge."""
    runs = (run, *run.others)
    read = [perf.read(one) for one in runs]
    plan = judge_repeats(read, wanted, run, now, since)
    results = [result for result, _problem in read]
    there = [result for result in results if result is not None]
    sizes = by_size(there, wanted) if len(runs) > 1 or wanted.repeats > 1 or wanted.several else []
    reached = [None if result is None else perf.reached(result, wanted) for result in results]
    network = _transport(runs)
    found: Dict[str, Any] = {
        "finished_at": runs[-1].finished,
        "repeats": [
            {"rc": one.rc, "busbw": figure, "finished": one.finished, "ending": one.ending[:300]}
            for one, figure in zip(runs, reached)
        ],
        **_of_network(network, wanted.several),
    }
    if not there:
        return plan, found
    figures = [figure for figure in reached if figure is not None]
    figure = median(figures) if len(figures) == len(runs) else None
    shown = _nearest_run(results, reached, figure)
    return plan, {
        **found,
        # Of a whole cluster the ranks of a host are one number.
        "measured": asdict(replace(shown, ranks=()) if network is not None else shown),
        "busbw": figure,
        "simulated": any(result.simulated for result in there),
        "statistics": [asdict(one) for one in sizes],
        "nccl_version": found.get("nccl_version") or shown.nccl_library or "",
    }


def _transport(runs: Sequence[Run]) -> Optional[Network]:
    """Return the transport that proves least of a run and its repeats; None if one has none stored."""
    networks = [one.network for one in runs if one.network is not None]
    if len(networks) < len(runs):
        return None
    return min(reversed(networks), key=lambda one: (one.proven, not one.sockets))


def _nearest_run(
    results: Sequence[Optional[Result]], reached: Sequence[Optional[float]], figure: Optional[float]
) -> Result:
    """Return the run that is nearest to the median; if one has no figure, the last with a result."""
    there = [(result, own) for result, own in zip(results, reached) if result is not None]
    if figure is None:
        return there[-1][0]
    return min(there, key=lambda one: abs((one[1] or 0.0) - figure))[0]


def _of_network(network: Optional[Network], several: bool) -> Dict[str, Any]:
    if network is None or not several:
        return {}
    data = asdict(network)
    names = ("networks", "nodes", "expected", "missing", "gdr", "hosts")
    transport = {"proven": network.proven, **{name: data[name] for name in names}}
    versions = ", ".join(network.versions)
    return {"transport": transport, "rails": data["rails"], "nccl_version": versions}
