# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether the output of an nccl-tests program proves the wanted run.

nccl-tests ends with 0 when it printed its usage, when each MPI process ran alone, and when it tested a smaller size
than requested: exit code and average prove nothing. Source: nccl-tests src/common.cu, 2.12 to 2.19.6.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import ParseError
from ..core.plan import Plan
from ..core.size import size_text
from .checks import AGAIN, BUSBW, CORRECT, FRESH, IDLE, NONZERO, RAN, RANKS, SIZES
from .fingerprint import Depends, changes
from .output import FAILURE, Placement, Result, Row, last_words, parse_text
from .record import Run, Wanted, short_names

# These have no in-place form to verify: its #wrong is N/A, always.
_UNVERIFIED_IN_PLACE = ("alltoall", "sendrecv")
# busbw / algbw = times * (n - 1) / n, or 1 for 0.
_FACTORS = {
    "all_reduce": 2,
    **dict.fromkeys(("all_gather", "reduce_scatter", "alltoall", "scatter", "gather"), 1),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), 0),
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
# The codes changed with 2.17.3 and 2.17.7.
_EXIT_CODES = {
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
}
# Those that report wrong values.
_WRONG_VALUES = (1, 6, 7)


def read(run: Run) -> Tuple[Optional[Result], str]:
    """Return the parsed output of the run; None, and why, if it has no result."""
    try:
        return parse_text(run.stdout + "\n" + run.stderr), ""
    except ParseError as error:
        return None, str(error)


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
    return Plan(_Judge(result or Result(), wanted, run).findings(now, problem, since))


def outdated(run: Run, now: Depends, cut_off: str) -> List[str]:
    """Return changes since a stored result, a text each; [] if the node is as it was when it was measured.

    now: what the result depends on, as it is now.   cut_off: begin of a later run without a result.
    """
    said = ["a later run, begun %s, is under way or was cut off" % cut_off] if cut_off else []
    found = changes(run.depends or {}, now)
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


def exit_meaning(rc: int) -> str:
    """Return the meaning of an nccl-tests exit code."""
    if rc < 0 or 128 < rc <= 128 + 64:
        return "ended by signal %d" % (-rc if rc < 0 else rc - 128)
    return _EXIT_CODES.get(rc, "not a code of nccl-tests")


@dataclass(frozen=True)
class _Judge:
    """Judge one run. have: its output."""

    have: Result
    wanted: Wanted
    run: Run

    def findings(self, now: float, problem: str, since: Sequence[str]) -> Tuple[Finding, ...]:
        ran = self.ran(problem)
        ranks = self.ranks(ran)
        correct = self.correct(ran)
        if correct.state == "drift" and self.run.rc in _WRONG_VALUES and not self.run.left_behind:
            ran = replace(ran, because=correct.id)
        found = [ran, self.fresh(now, since), self.sizes(ran), ranks, correct]
        lowest = reached(self.have, self.wanted)
        if self.wanted.ranks > 1:
            state = "unknown" if lowest is None else "ok" if lowest > 0 else "drift"
            text = None if lowest is None else f"{lowest:g} GB/s"
            cause = ranks if ran.ok else ran
            found.append(self.finding(NONZERO, state, "a bus bandwidth above 0", text, because=cause))
        if self.wanted.bar_busbw is not None:
            simulated = self.have.simulated
            found.append(judge_busbw(lowest, simulated, self.wanted, self.source, self.wanted.bar_busbw, ran))
        return tuple(found)

    @property
    def source(self) -> str:
        simulated = "simulated: " if self.have.simulated else ""
        return simulated + (" ".join(self.run.command) or self.wanted.collective)

    def finding(
        self,
        check: Check,
        state: str,
        want: str,
        have: Optional[str],
        fix: Optional[str] = None,
        because: Optional[Finding] = None,
    ) -> Finding:
        return check.judge(self.wanted.subject, state, want, have, self.source, fix, because)

    def ran(self, problem: str) -> Finding:
        have, run = self.have, self.run
        failures = [error for error in have.errors if FAILURE.search(error)]
        # The lines of the stack come last and name only the place.
        said = [error for error in have.errors if not error.startswith("..")] or failures
        said = said or list(last_words(run.stderr))
        state, fix = "drift", None
        if run.ending == "timeout":
            where = "after %s" % size_text(have.rows[-1].size) if have.rows else "before any size was measured"
            # Otherwise a launcher prints only that it was ended.
            text, said, fix = "no end within %g s; it was ended %s" % (run.limit, where), failures, _HUNG
        elif run.ending == "overflow":
            text = "it printed without end and was ended"
        elif run.ending:
            state, text, said, fix = "unknown", run.ending, [], _NOT_STARTED[self.wanted.several]
        elif have.usage:
            text = "it printed its usage (exit code %s): this release does not know one of the options" % run.rc
            said, fix = [], "build a newer nccl-tests, or leave the option out; " + AGAIN
        elif run.rc is None:
            state, text = "unknown", "no exit code is known"
        elif run.rc != 0:
            text = "exit code %d (%s)" % (run.rc, exit_meaning(run.rc))
        elif failures:
            text = "exit code 0 in spite of a failure"
        elif have.collective is not None and have.collective != self.wanted.collective:
            text = "it ran %s, not %s" % (have.collective, self.wanted.collective)
        elif have.out_of_bounds is None or not have.rows:
            state, text = "unknown", "exit code 0, but no complete result" + (": " + problem if problem else "")
        else:
            state, text, said = "ok", "exit code 0", []
        text += ": " + said[0] if said else ""
        if run.left_behind:
            state, fix = "drift", _LEFT_BEHIND
            text += "; processes %s could not be killed" % ", ".join(map(str, run.left_behind))
        return self.finding(RAN, state, _WANT_RAN, text, fix)

    def fresh(self, now: float, since: Sequence[str]) -> Finding:
        most, run = self.wanted.max_age_days, self.run
        days = (now - run.finished) / 86400
        state, have = "unknown", "measured now" if most is None else "%.1f days old" % days
        if self.wanted.command and run.command != self.wanted.command:
            have = "a result of another command: %s" % " ".join(run.command)
        # An hour for a clock difference between the node and the one that stored the result.
        elif days < -1 / 24:
            have = "a result of %.1f days in the future" % -days
        elif since and (most is None or days <= most):
            have = "; ".join(since)
        elif most is None or days <= most:
            state = "ok"
        want = "a result of this command" if most is None else "at most %g days old" % most
        return self.finding(FRESH, state, want, have)

    def sizes(self, ran: Finding) -> Finding:
        have, sizes = self.have, self.wanted.sizes
        want = "%d sizes from %s to %s" % (len(sizes), size_text(sizes[0]), size_text(sizes[-1]))
        if have.reduced_to is not None and have.reduced_to < sizes[-1]:
            text = "the largest size was reduced to %d bytes for lack of GPU memory" % have.reduced_to
            return self.finding(SIZES, "drift", want, text)
        if not have.rows:
            return self.finding(SIZES, "unknown", want, None, because=ran)
        bad = [row for row in have.rows if not _agrees(row, have, self.wanted)]
        tables = [_by_size([row for row in table if row not in bad], self.wanted) for table in _tables(have.rows)]
        missing = [size for size in sizes if any(size not in table for table in tables)]
        text = "missing: %s" % ", ".join(map(size_text, missing)) if missing else "all %d" % len(sizes)
        if bad:
            text += "; does not count: the row of %s, whose time, algbw and busbw do not agree" % size_text(bad[0].size)
        return self.finding(SIZES, "drift" if missing else "ok", want, text, because=ran)

    def ranks(self, ran: Finding) -> Finding:
        hosts, ranks = short_names(self.wanted.hosts), self.have.ranks
        want = "%d ranks on %s" % (self.wanted.ranks, _host_list(hosts))
        if not ranks:
            return self.finding(RANKS, "unknown", want, None, because=ran)
        there = short_names(rank.host for rank in ranks)
        text = "%d ranks on %s" % (len(ranks), _host_list(there))
        differ = sorted(set(there) ^ set(hosts))
        if differ and max(len(there), len(hosts)) > _NAMED:
            text += "; not the same: %s" % _host_list(differ)
        indices, groups = [rank.index for rank in ranks], {rank.group for rank in ranks}
        alone = len(set(indices)) < len(indices)
        if alone:
            text += ", but rank %d is there %d times: processes ran alone" % (indices[0], indices.count(indices[0]))
        if len(groups) > 1:
            text += ", split into %d groups (NCCL_TESTS_SPLIT)" % len(groups)
        counts = set(Counter(short_names([rank.host])[0] for rank in ranks).values())
        if len(counts) > 1:
            text += ", from %d to %d on a host" % (min(counts), max(counts))
        good = len(ranks) == self.wanted.ranks and there == hosts and not alone and len(counts) == len(groups) == 1
        return self.finding(RANKS, "ok" if good else "drift", want, text)

    def correct(self, ran: Finding) -> Finding:
        have, want = self.have, "0 wrong values in every row"
        wrong = [row for row in have.rows for place in _places(row) if place.wrong]
        if wrong or have.out_of_bounds_ok is False:
            text = "%d failed checks" % (have.out_of_bounds or 0)
            text += ", first at %s" % size_text(wrong[0].size) if wrong else ""
            return self.finding(CORRECT, "drift", want, text)
        if not have.rows or have.out_of_bounds_ok is None:
            return self.finding(CORRECT, "unknown", want, None, because=ran)
        unchecked = [row for row in have.rows if not _is_checked(row, self.wanted.collective)]
        if unchecked:
            text = "not checked: %d of %d rows" % (len(unchecked), len(have.rows))
            return self.finding(CORRECT, "unknown", want, text, because=ran)
        return self.finding(CORRECT, "ok", want, "0 wrong values")


def judge_busbw(
    lowest: Optional[float], simulated: bool, wanted: Wanted, source: str, bar: float, ran: Finding, of: str = ""
) -> Finding:
    """lowest: GB/s, None where it is not known.   of: what it is of more than one."""
    want = "at least %g GB/s at %s, out of place" % (bar, size_text(wanted.sizes[-1]))
    if lowest is None:
        return BUSBW.judge(wanted.subject, "unknown", want, None, source, because=ran)
    text = "{:.2f} GB/s{}{}".format(lowest, of, " (simulated)" if simulated else "")
    return BUSBW.judge(wanted.subject, "ok" if lowest >= bar else "drift", want, text, source)


# -- rows --------------------------------------------------------------------------------------------------------------


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


def reached(have: Result, wanted: Wanted) -> Optional[float]:
    """Return busbw in GB/s, out of place, at the largest requested size, of the slowest table.

    None if a table has no figure for that size.
    """
    found: List[float] = []
    for table in _tables(have.rows):
        rows = [row for row in table if _is_size(row, wanted.sizes[-1], wanted.ranks) and _agrees(row, have, wanted)]
        values = [row.out_of_place.busbw if row.out_of_place is not None else None for row in rows]
        if not values or None in values:
            return None
        found += [value for value in values if value is not None]
    return min(found) if found else None


def _host_list(hosts: Sequence[str]) -> str:
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + (" and %d more" % more if more > 0 else "")


def _tables(rows: Sequence[Row]) -> List[List[Row]]:
    """One table per type, operation and root."""
    found: Dict[Tuple[str, Optional[str], Optional[int]], List[Row]] = {}
    for row in rows:
        found.setdefault((row.type, row.op, row.root), []).append(row)
    return list(found.values())


def _by_size(table: Sequence[Row], wanted: Wanted) -> Dict[int, Row]:
    """Return requested size -> its row, in the order of the run; a size without one is left out."""
    rows = iter(table)
    found = {}
    for size in wanted.sizes:
        own = next((row for row in rows if _is_size(row, size, wanted.ranks)), None)
        if own is not None:
            found[size] = own
        else:
            rows = iter([row for row in table if row.size > size])
    return found


def _is_size(row: Row, size: int, ranks: int) -> bool:
    return size - _SHARE_ALIGNMENT * ranks < row.size <= size


def _places(row: Row) -> List[Placement]:
    return [place for place in (row.out_of_place, row.in_place) if place is not None]


def _is_checked(row: Row, collective: str) -> bool:
    places = [row.out_of_place] if collective in _UNVERIFIED_IN_PLACE else [row.out_of_place, row.in_place]
    return all(place is not None and place.wrong is not None for place in places)


def _agrees(row: Row, have: Result, wanted: Wanted) -> bool:
    """Return whether a row's figures agree within their rounding: a mixed up row proves nothing."""
    times = _FACTORS[wanted.collective]
    # Processes that ran alone, or in groups, had fewer ranks than the launcher started.
    groups = [rank.group for rank in have.ranks]
    counts = {1, wanted.ranks, len(groups) or 1, *(rank.index + 1 for rank in have.ranks[-1:])}
    counts.update(map(groups.count, groups))
    factors = [times * (n - 1) / n if times else 1.0 for n in counts]
    return all(_is_one_measurement(place, row.size, factors) for place in _places(row))


def _is_one_measurement(place: Placement, size: int, factors: Sequence[float]) -> bool:
    if place.algbw is None:
        return True
    algbw = _rounded(place.algbw)
    if place.time_us is not None:
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
