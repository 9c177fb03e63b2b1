# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether the output of an nccl-tests program proves the wanted run.

nccl-tests ends with 0 when it printed its usage, when each MPI process ran alone, and when it tested a smaller size
than requested: exit code and average prove nothing. Source: nccl-tests src/common.cu, 2.9 to 2.19.6.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.finding import Finding, printable
from ..core.host import ParseError
from ..core.plan import Plan
from ..core.size import size_text
from .checks import AGAIN, BUSBW, CORRECT, FRESH, IDLE, NONZERO, RAN, RANKS, SIZES
from .fingerprint import Depends, changes
from .output import FAILURE, Placement, Result, Row, combine, last_words, parse_json, parse_text
from .record import Run, Wanted, short_names

# These have no in-place form to verify: its #wrong is N/A, always.
_UNVERIFIED_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")
# busbw / algbw = times * (n - 1) / n, or 1 for None. The size of alltoallv and hypercube is not what their algbw is of.
_FACTORS = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "alltoall": 1,
    "scatter": 1,
    "gather": 1,
    "broadcast": None,
    "reduce": None,
    "sendrecv": None,
}
# Sizes are rounded down so that each rank's share is a multiple of 16 bytes.
_SHARE_ALIGNMENT = 16
# Hosts that a sentence names.
_NAMED = 16
_WANT_RAN = "exit code 0 and a complete result"
_HUNG = (
    "run it by hand with NCCL_DEBUG=INFO: before any size the hosts cannot reach each other (NCCL_SOCKET_IFNAME,"
    " firewall), after some a rank or a link hangs; " + AGAIN
)
# On one node, and on several.
_NOT_STARTED = (
    "build nccl-tests (role nccl_tests) and check the path and the launcher; " + AGAIN,
    "follow that on the first node; docs/benchmark.md#launchers lists what launchers need; " + AGAIN,
)
_LEFT_BEHIND = (
    "a process that hangs in the driver blocks its GPU: look for Xid errors in dmesg, drain and reboot the node"
)


def read(run: Run) -> Tuple[Optional[Result], str]:
    """Return the parsed output of the run; None, and why, if it has no result."""
    text: Optional[Result] = None
    problem = ""
    try:
        text = parse_text(run.stdout + "\n" + run.stderr)
    except ParseError as error:
        problem = str(error)
    if run.json is None:
        return text, problem
    try:
        figures = parse_json(run.json)
    except ParseError as error:
        # The text has the same figures, in fewer digits.
        return text, problem or str(error)
    return combine(figures, text or Result()), ""


def not_run(wanted: Wanted, reason: str) -> Plan:
    """The judgement where nothing was run. reason: why, a sentence."""
    source = " ".join(wanted.command) or wanted.collective
    return Plan((RAN.judge(wanted.subject, "unknown", _WANT_RAN, reason, source, fix=FRESH.fix),))


def idle(wanted: Wanted, reasons: Sequence[str], problems: Sequence[object] = ()) -> Plan:
    """Judge whether the node is idle: only then may a run begin.

    reasons: its users.   problems: what could not be read; an unknown node is not idle.
    """
    said = list(reasons) or ["not known to be idle: %s" % problem for problem in problems]
    have = "; ".join(said[:3]) + (" and %d more" % (len(said) - 3) if len(said) > 3 else "")
    state = "unknown" if said else "ok"
    have = ("busy: " + have if reasons else have) if said else "idle"
    return Plan((IDLE.judge(wanted.subject, state, "no process on the GPUs", have, "nvidia-smi"),))


def judge(
    result: Optional[Result], wanted: Wanted, run: Run, now: float, problem: str = "", since: Sequence[str] = ()
) -> Plan:
    """Judge whether ``run``, parsed as ``result``, is the wanted run, and good. The plan has no changes.

    now: seconds since 1970.   problem: why there is no result. What is missing is unknown, never ok.
    since: changes since a stored result, see ``outdated``.
    """
    have = result or Result()
    source = ("simulated: " if have.simulated else "") + (" ".join(run.command) or wanted.collective)
    ran = _ran(have, wanted, run, source, problem)
    ranks = _ranks(have, wanted, source, ran)
    findings = [ran, _fresh(wanted, run, now, source, since), _sizes(have, wanted, source, ran), ranks]
    if wanted.check:
        correct = _correct(have, wanted, source, ran)
        findings.append(correct)
        if correct.state == "drift" and run.rc in (1, 6, 7) and not run.left_behind:
            # Wrong values are what this exit code reports.
            findings[0] = replace(ran, because=correct.id)
    if wanted.ranks > 1:
        findings.append(_nonzero(have, wanted, source, ranks if ran.ok else ran))
    if wanted.bar_busbw is not None:
        findings.append(judge_busbw(reached(have, wanted), have.simulated, wanted, source, wanted.bar_busbw, ran))
    return Plan(tuple(findings))


def outdated(run: Run, now: Depends, cut_off: str) -> List[str]:
    """Return changes since a stored result, a text each; [] if the node is as it was when it was measured.

    now: what the result depends on, as it is now.   cut_off: begin of a later run without a result.
    """
    said = ["a later run, begun %s, is under way or was cut off" % cut_off] if cut_off else []
    if run.depends is None:
        return [
            *said,
            "recorded by a release that did not store what a result depends on (driver, NCCL, nccl.conf, firmware)",
        ]
    found = changes(run.depends, now)
    return said + (["measured with %s" % "; ".join(change.text for change in found)] if found else [])


def due(plan: Plan, when: str) -> str:
    """Return why the run must be measured, "" if the stored result counts.

    plan: the judgement of the stored result, or of ``not_run``.   when: one of WHEN.
    A result that is not good is always due: after the repair site.yml shows whether it helped. So minutes of all GPUs
    are spent only on nodes with a fault.
    """
    if when == "always":
        return "nccl_benchmark_when is always"
    bad = [finding for finding in plan.findings if not finding.ok]
    if when == "never" or not bad:
        return ""
    # The result's age and origin first: they make the others outdated.
    first = next((one for one in bad if one.check == FRESH.id), next((one for one in bad if not one.because), bad[0]))
    if first.check == FRESH.id or len(plan.findings) == 1:
        return printable(first.have or "")
    return printable("the last result is not good: %s" % (first.have or "no " + (first.want or "figure")))


def exit_meaning(rc: int, version: Optional[str]) -> str:
    """Return the meaning of an nccl-tests exit code; the codes changed with 2.17.3 and 2.17.7."""
    release = tuple(int(part) for part in re.findall(r"\d{1,4}", version or "")[:3])
    if rc < 0 or 128 < rc <= 128 + 64:
        return "ended by signal %d" % (-rc if rc < 0 else rc - 128)
    if rc == 1 and release and release >= (2, 17, 3):
        return "internal error"
    if rc == 6 and release:
        return "invalid usage" if release >= (2, 17, 7) else "wrong values, or below NCCL_TESTS_MIN_BW"
    return {
        1: "wrong values, below NCCL_TESTS_MIN_BW, or an internal error",
        2: "CUDA error",
        3: "NCCL error",
        4: "timeout of -T",
        5: "not implemented, or fewer GPUs than requested",
        6: "invalid usage, or wrong values",
        7: "wrong values, or below NCCL_TESTS_MIN_BW",
        126: "could not be executed",
        127: "program or shared library not found",
        255: "invalid size, or the launcher failed",
    }.get(rc, "not a code of nccl-tests")


def _ran(have: Result, wanted: Wanted, run: Run, source: str, problem: str) -> Finding:
    state, text = "drift", ""
    fix: Optional[str] = None
    failures = [error for error in have.errors if FAILURE.search(error)]
    # The lines of the stack come last and name only the place.
    said = [error for error in have.errors if not error.startswith("..")] or failures
    said = said or list(last_words(run.stderr))
    if run.ending == "timeout":
        where = "after %s" % size_text(have.rows[-1].size) if have.rows else "before any size was measured"
        text = "no end within %g s; it was ended %s" % (run.limit, where)
        # Otherwise a launcher prints only that it was ended.
        said, fix = failures, _HUNG
    elif run.ending == "overflow":
        text = "it printed without end and was ended"
    elif run.ending:
        state, text, said, fix = "unknown", run.ending, [], _NOT_STARTED[wanted.several]
    elif have.usage:
        text = "it printed its usage (exit code %s): this release does not know one of the options" % run.rc
        said, fix = [], "build a newer nccl-tests, or leave the option out; " + AGAIN
    elif run.rc is None:
        state, text = "unknown", "no exit code is known"
    elif run.rc != 0:
        text = "exit code %d (%s)" % (run.rc, exit_meaning(run.rc, have.version))
    elif failures:
        text = "exit code 0 in spite of a failure"
    elif have.collective is not None and have.collective != wanted.collective:
        text = "it ran %s, not %s" % (have.collective, wanted.collective)
    elif have.out_of_bounds is None or not have.rows:
        state, text = "unknown", "exit code 0, but no complete result" + (": " + problem if problem else "")
    else:
        state, text, said = "ok", "exit code 0", []
    text += ": " + said[0] if said else ""
    if run.left_behind:
        state, fix = "drift", _LEFT_BEHIND
        text += "; processes %s could not be killed" % ", ".join(map(str, run.left_behind))
    return RAN.judge(wanted.subject, state, _WANT_RAN, text, source, fix=fix)


def _fresh(wanted: Wanted, run: Run, now: float, source: str, since: Sequence[str]) -> Finding:
    want = "a result of this command" if wanted.max_age_days is None else "at most %g days old" % wanted.max_age_days
    days = (now - run.finished) / 86400
    state = "ok"
    have = "measured now" if wanted.max_age_days is None else "%.1f days old" % days
    if wanted.command and run.command != wanted.command:
        state, have = "unknown", "a result of another command: %s" % " ".join(run.command)
    # An hour for a clock difference between the node and the one that stored the result.
    elif days < -1 / 24:
        state, have = "unknown", "a result of %.1f days in the future" % -days
    elif wanted.max_age_days is not None and days > wanted.max_age_days:
        state = "unknown"
    elif since:
        state, have = "unknown", "; ".join(since)
    return FRESH.judge(wanted.subject, state, want, have, source)


def _sizes(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    want = "%d sizes from %s to %s" % (len(wanted.sizes), size_text(wanted.sizes[0]), size_text(wanted.sizes[-1]))
    if have.reduced_to is not None and have.reduced_to < wanted.sizes[-1]:
        text = "the largest size was reduced to %d bytes for lack of GPU memory" % have.reduced_to
        return SIZES.judge(wanted.subject, "drift", want, text, source)
    if not have.rows:
        return SIZES.judge(wanted.subject, "unknown", want, None, source, because=ran)
    good = [row for row in have.rows if _agrees(row, have, wanted)]
    missing = sorted(
        {size for table in _tables(have.rows) for size in _missing([r for r in table if r in good], wanted)}
    )
    text = "missing: %s" % ", ".join(map(size_text, missing)) if missing else "all %d" % len(wanted.sizes)
    bad = [row for row in have.rows if row not in good]
    if bad:
        text += "; does not count: the row of %s, whose time, algbw and busbw do not agree" % size_text(bad[0].size)
    return SIZES.judge(wanted.subject, "drift" if missing else "ok", want, text, source, because=ran)


def _tables(rows: Sequence[Row]) -> List[List[Row]]:
    """One table per type, operation and root."""
    found: Dict[Tuple[str, Optional[str], Optional[int]], List[Row]] = {}
    for row in rows:
        found.setdefault((row.type, row.op, row.root), []).append(row)
    return list(found.values())


def _by_size(table: Sequence[Row], wanted: Wanted) -> Dict[int, Row]:
    """Return requested size -> its row, in the order of the run; a size without one is left out."""
    if wanted.collective == "alltoallv":
        return dict(zip(wanted.sizes, table))
    rows = iter(table)
    found = {}
    for size in wanted.sizes:
        own = next((row for row in rows if _is_size(row, size, wanted.ranks)), None)
        if own is not None:
            found[size] = own
        else:
            rows = iter([row for row in table if row.size > size])
    return found


def _missing(table: Sequence[Row], wanted: Wanted) -> List[int]:
    """Return the requested sizes without a row."""
    found = _by_size(table, wanted)
    return [size for size in wanted.sizes if size not in found]


def placements(have: Result, wanted: Wanted) -> Dict[int, Placement]:
    """Return requested size -> its figures out of place, of the slowest table."""
    found: Dict[int, Placement] = {}
    for whole in _tables(have.rows):
        for size, row in _by_size([row for row in whole if _agrees(row, have, wanted)], wanted).items():
            place = row.out_of_place
            if place is not None and place.busbw is not None:
                slowest = found.setdefault(size, place)
                found[size] = min(slowest, place, key=lambda one: one.busbw or 0.0)
    return found


def _is_size(row: Row, size: int, ranks: int) -> bool:
    return size - _SHARE_ALIGNMENT * ranks < row.size <= size


def _agrees(row: Row, have: Result, wanted: Wanted) -> bool:
    """Return whether a row's figures agree within their rounding: a mixed up row proves nothing."""
    if wanted.collective not in _FACTORS:
        return True
    times = _FACTORS[wanted.collective]
    # Processes that ran alone, or in groups, had fewer ranks than the launcher started.
    groups = [rank.group for rank in have.ranks]
    counts = {
        1,
        wanted.ranks,
        have.rank_count or 1,
        *(rank.index + 1 for rank in have.ranks[-1:]),
        *map(groups.count, groups),
    }
    factors = [1.0 if times is None else times * (n - 1) / n for n in counts]
    return all(_is_one_measurement(place, row.size, factors) for place in _places(row))


def _is_one_measurement(place: Placement, size: int, factors: Sequence[float]) -> bool:
    if place.algbw is None:
        return True
    algbw = _rounded(place.algbw)
    if place.time_us is not None and not place.of_cpu:
        shortest, longest = _rounded(place.time_us)
        most = size / shortest / 1e3 if shortest > 0 else math.inf
        if most < algbw[0] or size / longest / 1e3 > algbw[1]:
            return False
    if place.busbw is None:
        return True
    busbw = _rounded(place.busbw)
    return any(algbw[0] * factor <= busbw[1] and busbw[0] <= algbw[1] * factor for factor in factors)


def _rounded(figure: float) -> Tuple[float, float]:
    """(least, most) that a printed figure may stand for: it has two decimals to none, or is of the form 1.2e+07."""
    steps = ((100.0, 0.005), (1000.0, 0.05), (1e6, 0.5))
    half = next((half for limit, half in steps if figure < limit), figure * 0.05)
    # And a little for what was computed in single steps.
    return figure * 0.9999 - half, figure * 1.0001 + half


def _ranks(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    hosts = short_names(wanted.hosts)
    want = "%d ranks on %s" % (wanted.ranks, _host_list(hosts))
    if have.rank_count is None:
        return RANKS.judge(wanted.subject, "unknown", want, None, source, because=ran)
    there = short_names(rank.host for rank in have.ranks)
    text = "%d ranks on %s" % (have.rank_count, _host_list(there))
    differ = sorted(set(there) ^ set(hosts))
    if differ and max(len(there), len(hosts)) > _NAMED:
        text += "; not the same: %s" % _host_list(differ)
    indices = [rank.index for rank in have.ranks]
    good = have.rank_count == wanted.ranks and there == hosts
    if len(set(indices)) < len(indices):
        good = False
        text += ", but rank %d is there %d times: processes ran alone" % (indices[0], indices.count(indices[0]))
    groups = {rank.group for rank in have.ranks}
    if len(groups) > 1:
        good = False
        text += ", split into %d groups (NCCL_TESTS_SPLIT)" % len(groups)
    return RANKS.judge(wanted.subject, "ok" if good else "drift", want, text, source)


def _host_list(hosts: Sequence[str]) -> str:
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + (" and %d more" % more if more > 0 else "")


def _correct(have: Result, wanted: Wanted, source: str, ran: Finding) -> Finding:
    want = "0 wrong values in every row"
    wrong = [row for row in have.rows for place in _places(row) if place.wrong]
    if wrong or have.out_of_bounds_ok is False:
        text = "%d failed checks" % (have.out_of_bounds or 0)
        if wrong:
            text += ", first at %s" % size_text(wrong[0].size)
        return CORRECT.judge(wanted.subject, "drift", want, text, source)
    if not have.rows or have.out_of_bounds_ok is None:
        return CORRECT.judge(wanted.subject, "unknown", want, None, source, because=ran)
    unchecked = [row for row in have.rows if not _is_checked(row, wanted.collective)]
    if unchecked:
        text = "not checked: %d of %d rows" % (len(unchecked), len(have.rows))
        return CORRECT.judge(wanted.subject, "unknown", want, text, source, because=ran)
    return CORRECT.judge(wanted.subject, "ok", want, "0 wrong values", source)


def _places(row: Row) -> List[Placement]:
    return [place for place in (row.out_of_place, row.in_place) if place is not None]


def _is_checked(row: Row, collective: str) -> bool:
    places = [row.out_of_place] if collective in _UNVERIFIED_IN_PLACE else [row.out_of_place, row.in_place]
    return all(place is not None and (place.wrong is not None or place.error is not None) for place in places)


def _nonzero(have: Result, wanted: Wanted, source: str, cause: Finding) -> Finding:
    lowest = reached(have, wanted)
    state = "unknown" if lowest is None else "ok" if lowest > 0 else "drift"
    text = None if lowest is None else f"{lowest:g} GB/s"
    return NONZERO.judge(wanted.subject, state, "a bus bandwidth above 0", text, source, because=cause)


def judge_busbw(
    lowest: Optional[float], simulated: bool, wanted: Wanted, source: str, bar: float, ran: Finding, of: str = ""
) -> Finding:
    """lowest: GB/s, None where it is not known.   of: what it is of more than one."""
    want = "at least %g GB/s at %s, out of place" % (bar, size_text(wanted.sizes[-1]))
    if lowest is None:
        return BUSBW.judge(wanted.subject, "unknown", want, None, source, because=ran)
    text = "{:.2f} GB/s{}{}".format(lowest, of, " (simulated)" if simulated else "")
    return BUSBW.judge(wanted.subject, "ok" if lowest >= bar else "drift", want, text, source)


def reached(have: Result, wanted: Wanted) -> Optional[float]:
    """Return busbw in GB/s, out of place, at the largest requested size, of the slowest table.

    None if a table has no figure for that size.
    """
    found: List[float] = []
    for whole in _tables(have.rows):
        table = [row for row in whole if _agrees(row, have, wanted)]
        # The traffic of alltoallv, and so its sizes, depend on a matrix: its rows are known by their order alone.
        in_order = wanted.collective == "alltoallv"
        rows = table[-1:] if in_order else [row for row in table if _is_size(row, wanted.sizes[-1], wanted.ranks)]
        values = [row.out_of_place.busbw if row.out_of_place is not None else None for row in rows]
        if not values or None in values:
            return None
        found += [value for value in values if value is not None]
    return min(found) if found else None
