# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a run of nccl-tests and its repeats together."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import STATES, Finding
from ..core.plan import Plan
from ..core.size import size_text
from . import judge as perf
from . import judge_network as perf_network
from .output import Result
from .record import Run, Wanted
from .statistics import Statistics, by_size

_AGAIN = "then measure again"
SPREAD = Check(
    "nccl_perf.spread",
    why="repeats that differ this much indicate an intermittent cause: another job, a link that flaps, throttling",
    fix="repeat it on fewer nodes to find the cause; look for other traffic on the same leaf, symbol errors and link"
    " flaps, and for throttling in `nvidia-smi -q -d PERFORMANCE`; " + _AGAIN,
)
"Do repeats of the run reach the same bus bandwidth, within 10 %"

OUTLIER = Check(
    "nccl_perf.outlier",
    why="if one collective takes five times as long, every GPU of a job waits that long",
    fix="look at the network counters for pauses and retransmissions, and for other traffic; " + _AGAIN,
)
"Did no repeat take more than five times as long as the others"

SPREAD_LIMIT = 0.10
OUTLIER_LIMIT = 5.0


def judge(
    results: Sequence[Tuple[Optional[Result], str]], wanted: Wanted, run: Run, now: float, since: Sequence[str] = ()
) -> Plan:
    """Judge whether ``run`` and its repeats are as wanted, and good. results: of each, as perf.read returns it.

    now, since: as of perf.judge. With repeats the bandwidth is judged by its median, and all else by the worst of them.
    """
    runs = [run, *run.others]
    since = list(since)
    if len(runs) < wanted.repeats and all(one.rc == 0 for one in runs):
        since.append("measured %d times, not %d" % (len(runs), wanted.repeats))
    alone = wanted if wanted.repeats == 1 else replace(wanted, bar_busbw=None)
    plans: List[Sequence[Finding]] = []
    for one, (result, problem) in zip(runs, results):
        judged = perf.judge(result, alone, replace(one, command=run.command), now, problem, since).findings
        if one.network is not None or wanted.several:
            judged = tuple(perf_network.judge(one.network, result, wanted, judged))
        plans.append(judged)
    findings = plans[0] if len(plans) == 1 else _worst(plans)
    if wanted.repeats > 1:
        findings = (*findings, *_judge_repeats([result for result, _problem in results], wanted, findings))
    if wanted.several:
        findings = perf_network.bound(findings)
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
        if not finding.ok and not alike and finding.have is not None and finding.check != perf.FRESH.id:
            finding = replace(finding, have="run %d of %d: %s" % (number, len(plans), finding.have))
        worst.append(finding)
    return worst


def _judge_repeats(results: Sequence[Optional[Result]], wanted: Wanted, findings: Sequence[Finding]) -> List[Finding]:
    """Judge the median of the bandwidth at the largest size, and the spread."""
    ran = next(one for one in findings if one.check == perf.RAN.id)
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
