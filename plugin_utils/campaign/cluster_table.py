# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render benchmarks of and between nodes for a terminal: jobs against their bars, scaling, hosts left out. Pure."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import STATES, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import NVLINK

from .. import nodeset, terminal
from ..benchmark_results import node_job
from ..terminal import Line
from . import cluster_plugin, engine
from .cluster_judge import EFFICIENT
from .cluster_record import Job, Record, Scaling, rail_of
from .engine import Measured

# Lines of one kind; the rest is counted, and is in the record.
ROWS = 40
# Jobs of one kind, such as a fleet's pairs, that have a line each; of more, only those that are not ok.
EACH = 4
# Columns that move below their line on a narrow terminal, and more of them on a narrower one.
_LESSER = ("P99", "SPREAD", "PREDICTION")
_ASIDE = (_LESSER, ("ALGBW", *_LESSER))
SIMULATED = " (simulated: no figure in it is a measurement)"
# Characters of host names in a cell, in a sentence; of a finding's text; of host names in it; of a job's outcome.
CELL, SENTENCE, SAID, _NAMES, _WHY = 22, 180, 300, 60, 120


def render(record: Record, width: int = 120) -> str:
    """Return the table, of 40 columns at least; no line is longer than ``width``."""
    width = max(width, 40)
    lines = [*_printed(*jobs(record.jobs), width), *_printed(*scaling(record.scaling), width)]
    return "\n".join([*lines, *wrapped(sentences(record), width)])


def wrapped(texts: Iterable[str], width: int) -> list[str]:
    """Return the lines of sentences, those after the first of each set off."""
    return [
        line
        for text in texts
        for line in textwrap.wrap(printable(text), width, subsequent_indent="  ", break_on_hyphens=False)
    ]


def sentences(record: Record) -> list[str]:
    """Return the sentences below the tables: hosts, hosts left out and why, transport, verdict."""
    used = [transport(record), *cluster_plugin.sentence(record)]
    return [*_over_whom(record), *used, verdict(record)]


def _printed(heads: Sequence[str], lines: Sequence[Line], left_out: int, width: int) -> list[str]:
    if not lines:
        return []
    more = [f"... and {left_out} more; the record has all"] if left_out else []
    return [*terminal.table(heads, lines, width, _ASIDE), *more, ""]


# -- jobs --------------------------------------------------------------------------------------------------------------


def jobs(found: Sequence[Job]) -> tuple[list[str], list[Line], int]:
    """Return heads, a line for each job or for many equal ones, and how many lines are left out."""
    heads = ["HOSTS", "COLLECTIVE", "SIZE", "TIME", "ALGBW", "BUSBW", "P99", "SPREAD", "BAR", "PREDICTION", "OF BAR"]
    heads.append("RESULT")
    scopes = len({job.scope for job in found}) > 1
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in found:
        # One node, two and four differ, though the collective is the same.
        kind = (job.scope, len(job.hosts), job.program, job.algorithm, job.size, job.what)
        groups.setdefault(kind, []).append(job)
    told: list[Line] = []
    for of_group in groups.values():
        told += _group(of_group)
    shown = told[:ROWS]
    if scopes:
        heads[0] = "SCOPE AND HOSTS"
    else:
        shown = [((cells[0].partition(" ")[2], *cells[1:]), notes) for cells, notes in shown]
    return heads, shown, max(len(told) - ROWS, 0)


def _group(jobs: Sequence[Job]) -> list[Line]:
    """Return lines of jobs that differ in their hosts only: those not ok, worst first, and the others as one."""
    bad = sorted((job for job in jobs if not job.ok), key=lambda job: (_ratio(job), job.hosts))
    lines = [] if len(jobs) <= EACH or len(bad) == len(jobs) else [_line(jobs, jobs, _summary(jobs))]
    # Jobs with equal texts, such as those that did not run, are one line.
    alike: dict[Line, list[Job]] = {}
    for job in jobs if len(jobs) <= EACH else bad:
        _hosts, *cells = (line := _line([job], [job], _notes(job)))[0]
        alike.setdefault((tuple(cells), line[1]), []).append(job)
    for of_text in alike.values():
        lines.append(_line(of_text[:1], of_text, _notes(of_text[0])))
    return lines


def _line(jobs: Sequence[Job], over: Sequence[Job], notes: Sequence[str]) -> Line:
    """Return the line of a job, or of many: medians, and the worst of P99 and spread. over: with its hosts."""
    first, bad = jobs[0], sum(not job.ok for job in jobs)
    # The last row of an interrupted run is of another size.
    rows = [job.last for job in jobs if job.last is not None and job.last.size == job.size]
    middle = median_of(job.busbw for job in jobs)
    bar = first.bar if len({job.bar for job in jobs}) == 1 else None
    result = _result(first) if len(jobs) == 1 else "%d not ok" % bad if bad else "ok"
    hosts = nodeset.brief([printable(host) for job in over for host in job.hosts], CELL)
    cells = (
        f"{first.scope} {hosts}",
        program(first.program, first.algorithm),
        size_text(first.size) if first.size else "-",
        duration(median_of(row.time_us for row in rows)),
        number(median_of(row.algbw for row in rows)),
        number(middle),
        duration(_most(row.time_p99_us for row in rows)),
        percent(_most(job.spread for job in jobs)),
        number(bar),
        number(first.prediction if len({job.prediction for job in jobs}) == 1 else None),
        percent(middle / bar if middle is not None and bar else None),
        result,
    )
    message = [f"message: {first.what}"] if first.what else []
    return cells, (*message, *notes)


def _summary(jobs: Sequence[Job]) -> list[str]:
    measured = sorted((job.busbw, job.hosts) for job in jobs if job.busbw is not None)
    if not measured:
        return []
    (low, lowest), (high, _hosts) = measured[0], measured[-1]
    where = f"lowest {number(low)} on {nodeset.brief(lowest, SENTENCE)}, highest {number(high)}"
    return [f"{len(measured)} of {len(jobs)} jobs measured, figures are medians; {where}"]


def _notes(job: Job) -> list[str]:
    return [] if job.ok else [short(job.said or "no result and no reason: the record has the output of the job")]


def _result(job: Job) -> str:
    if job.ok:
        return "ok" if job.bar is not None or job.latency_bar_us is not None else "no bar"
    return min(job.states, key=STATES.index) if job.states else "unknown"


def _ratio(job: Job) -> float:
    return job.busbw / job.bar if job.busbw is not None and job.bar else -1.0


# -- within a node -----------------------------------------------------------------------------------------------------


def render_nodes(results: Mapping[str, Mapping[str, Any]], now: float, width: int = 120) -> str:
    """Return the table of the nodes' own benchmarks. now: seconds since 1970.

    results: host -> registered result of ``nccl_benchmark``.
    """
    runs = [(host, run) for host in sorted(results) for run in results[host].get("runs") or []]
    found = [node_job(host, run, results[host]["findings"]) for host, run in runs]
    if not found:
        return "BENCHMARK: nothing is configured (nccl_benchmark_collectives is empty)"
    ages = [now - run["finished"] for _host, run in runs if run.get("stored") and run.get("finished")]
    measured = sum(run.get("busbw") is not None and not run.get("stored") for _host, run in runs)
    stored = f", {len(ages)} stored results stand, the oldest of {_ago(max(ages))}" if ages else ""
    simulated = SIMULATED if any(run.get("simulated") for _host, run in runs) else ""
    over = terminal.counted(len({job.hosts for job in found}), "host")
    good = f"{sum(job.ok for job in found)} of {terminal.counted(len(found), 'run')} ok on {over}"
    verdict = f"BENCHMARK{simulated}: {good}, busbw in GB/s; {measured} measured now{stored}"
    heads, lines, left_out = jobs(found)
    # A node's report has no times.
    used = [number for number in range(len(heads)) if any(cells[number] not in ("", "-") for cells, _notes in lines)]
    lines = [(tuple(cells[number] for number in used), notes) for cells, notes in lines]
    table = _printed([heads[number] for number in used], lines, left_out, width)
    return "\n".join([*table, *wrapped([verdict], width)])


def _ago(seconds: float) -> str:
    """Format an age: ``3 days ago``; whole units, so that results of one run have equal texts."""
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            return f"{terminal.counted(int(seconds / length), unit)} ago"
    return "just now"


# -- the rest ----------------------------------------------------------------------------------------------------------


def scaling(found: Sequence[Scaling]) -> tuple[list[str], list[Line], int]:
    """Return heads, a line for each collective and number of nodes, and how many lines are left out."""
    heads = ["SCALING", "SIZE", "NODES", "BUSBW", "PREDICTION", "EFFICIENCY"]
    lines: list[Line] = []
    for one in found[:ROWS]:
        low = " (low)" if one.efficiency is not None and one.efficiency < EFFICIENT else ""
        size = size_text(one.size) if one.size else "-"
        figures = (number(one.busbw), number(one.prediction), percent(one.efficiency) + low)
        lines.append(((program(one.collective, one.algorithm), size, str(one.nodes), *figures), ()))
    return heads, lines, max(len(found) - ROWS, 0)


def _over_whom(record: Record) -> list[str]:
    """Return the hosts that were measured, and those left out, one line for each reason."""
    measured = record.hosts
    over = nodeset.brief(measured, SENTENCE) if measured else "no node"
    lines = ["measured over %d of %d requested hosts: %s" % (len(measured), len(record.asked), over)]
    known = {*measured, *(item.host for item in record.left_out)}
    if silent := [host for host in record.asked if host not in known]:
        lines.append(f"no figure, from no job: {nodeset.brief(silent, SENTENCE)}")
    alike = nodeset.grouped((item.reason, item.host) for item in record.left_out)
    reasons = sorted(alike.items(), key=lambda item: -len(item[1]))
    lines += [f"left out: {nodeset.brief(hosts, SENTENCE)}: {short(reason)}" for reason, hosts in reasons[:ROWS]]
    return lines + [f"... and {len(reasons) - ROWS} more reasons; the record has all"] * (len(reasons) > ROWS)


def transport(record: Record) -> str:
    """Return the transports of all jobs in one line, from NCCL's logs."""
    jobs = nodeset.grouped((_by(job.transport), job.name) for job in record.jobs if job.rows and len(job.hosts) > 1)
    ways = sorted(jobs.items(), key=lambda item: (item[0].startswith("proven"), len(item[1])))
    parts = [
        f"{text} ({terminal.counted(len(names), 'job')}, as {short(names[0], 60)})" if len(ways) > 1 else text
        for text, names in ways[:3]
    ]
    parts += [f"and {len(ways) - 3} other ways"] if len(ways) > 3 else []
    return "transport: " + ("; ".join(parts) or "nothing went between hosts")


def _by(of_job: Mapping[str, Any]) -> str:
    """Return ``proven: IB, 8 HCAs on each node, GDR on every connection``."""
    if not of_job:
        return "not proven: no log of NCCL's"
    if not of_job.get("proven"):
        return short("not proven: " + ("; ".join(of_job.get("missing", ())) or "no reason was reported"))
    networks = of_job.get("networks", ())
    if tuple(networks) == (NVLINK,):
        return "proven: NVLink between all nodes, nothing over the network"
    words = [" and ".join(networks) or "no network"]
    counts = sorted({len(one["devices"]) for one in of_job.get("hosts", {}).values()})
    if counts and "Socket" not in networks:
        each = " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
        words.append(f"{each} HCA{'s' * (each != '1')} on each node")
    words.append(
        {None: "GDR unknown", True: "GDR on every connection"}.get(of_job.get("gdr"), "GDR not on every connection")
    )
    return "proven: " + short(", ".join(words))


def verdict(record: Record) -> str:
    """Return how many jobs are ok, over how many hosts, the launcher, and whether anything is simulated."""
    head = f"CLUSTER BENCHMARK{SIMULATED * record.simulated}"
    good = sum(job.ok for job in record.jobs)
    launcher = f"{record.launcher.kind} {record.launcher.version}".strip()
    lasted = duration(1e6 * max(record.finished - record.begun, 0.0))
    over = f"{len(record.hosts)} of {terminal.counted(len(record.asked), 'host')}"
    return (
        f"{head}: {good} of {terminal.counted(len(record.jobs), 'job')} ok over {over}, busbw and algbw in GB/s,"
        f" in {lasted}{f' by {launcher}' * bool(launcher)}; {terminal.counted(len(record.findings), 'finding')}"
    )


# -- cells -------------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Format GB/s; ``-`` for None. Small figures keep their digits."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value >= 10 or value == 0 else f"{value:.3g}" if value >= 0.01 else "<0.01"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.1f} %"


def duration(us: float | None) -> str:
    """Format microseconds with a fitting unit: ``19.3 us``, ``5.80 ms``, ``1.24 s``, ``12 min``."""
    if us is None:
        return "-"
    for factor, unit in ((1.0, "us"), (1e3, "ms"), (1e6, "s")):
        if us < 999.5 * factor and not (unit == "s" and us >= 120e6):
            return f"{us / factor:.3g} {unit}"
    return f"{us / 60e6:.0f} min"


def program(name: str, algorithm: str) -> str:
    """Return ``all_reduce (Ring)``; without an algorithm the name."""
    return f"{name} ({algorithm})" if algorithm else name


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None without one."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def short(text: str, room: int = SAID) -> str:
    text = printable(text)
    return text if len(text) <= room else text[: room - 3] + "..."


# -- a round -----------------------------------------------------------------------------------------------------------


def round_lines(position: int, count: int, measured: Sequence[Measured]) -> list[str]:
    """Return the first figures of a round: a line for each job; of many, one, and one for each reason of no figure.

    position: of the round, from 1, of so many.
    """
    head = f"round {position} of {count}"
    if len(measured) <= EACH:
        lines = [
            f"{head}: {_what(one.job)} over {nodeset.brief(one.job.hosts, _NAMES)}: {_outcome(one)}" for one in measured
        ]
        return [printable(line) for line in lines]
    fast = sorted((one for one in measured if one.busbw is not None), key=lambda one: one.busbw or 0.0)
    lines = []
    if fast:
        low, middle = fast[0], number(median_of(one.busbw for one in fast))
        lines.append(
            f"{head}: {len(fast)} of {len(measured)} jobs, {_what(low.job)}: median {middle} GB/s, lowest"
            f" {number(low.busbw)} over {nodeset.brief(low.job.hosts, _NAMES)}, bar {number(low.job.bar)}"
        )
    silent = nodeset.grouped((_outcome(one), host) for one in measured if one.busbw is None for host in one.job.hosts)
    told = sorted(silent.items(), key=lambda item: -len(item[1]))
    lines += [f"{head}: {nodeset.brief(hosts, _NAMES)}: {why}" for why, hosts in told[:EACH]]
    lines += [f"{head}: and {len(told) - EACH} other reasons without a result"] if len(told) > EACH else []
    return [printable(line) for line in lines]


def _what(job: engine.Job) -> str:
    words = (program(job.collective, job.algorithm), size_text(job.max_bytes), rail_of(job.name))
    return " ".join(filter(None, words))


def _outcome(measured: Measured) -> str:
    bar, busbw = measured.job.bar, measured.busbw
    text = "no figure" + (f": {measured.failure}" if measured.failure else "")
    if busbw is not None:
        text = f"{number(busbw)} GB/s" + (f", {percent(busbw / bar)} of the bar" if bar else "")
    findings = measured.result.get("findings") or []
    bad = next((one for one in findings if one["state"] != "ok" and one["because"] is None), None)
    return short(text + (f"; {bad['state']}: {bad['have'] or 'wanted ' + str(bad['want'])}" if bad else ""), _WHY)
