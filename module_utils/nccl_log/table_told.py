# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests printed, in sentences, and what of its figures is odd."""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Optional, Sequence, Tuple

from . import table_shape
from .jobs import names, numbers
from .table import BANDWIDTH, Table, Test
from .table_rows import WIDTHS, Row, size
from .trace import Trace

# Tests that are reported one by one, and rows that are printed.
_TOLD, _ROWS = 4, 40
# What a bandwidth grows by that still rises, the size from which on one may be called little, and what is, in GB/s.
_RISES, _LARGE, _LITTLE = 1.1, 64 << 20, 10.0
# GB/s from which on one NIC of 100 Gbit/s may be what limits a test between hosts.
_OF_A_NIC = 5.0
# How many times faster one test is, for both to be told side by side.
_APART_TESTS = 3.0
# How far apart busbw by algbw are of two collectives, and the GB/s from which on rounding leaves that ratio.
_APART_FACTORS, _ROUNDS_WELL = 1.2, 0.2
# Of the best value, for an average to be pulled down by the small sizes.
_PULLED_DOWN = 0.6


def told(table: Table, trace: Optional[Trace] = None, networks: AbstractSet[str] = frozenset()) -> List[str]:
    """What nccl-tests printed, in sentences. trace: of collectives, of which the runs that came to no end are reported.

    networks: that NCCL's lines of the same log name.
    """
    said = ["a shortened list of nccl-tests names %s" % "; ".join(table.summed)] if table.summed else []
    if table.ranks:
        by: Dict[str, int] = {}
        for one in table.placed:
            by[one.host] = by.get(one.host, 0) + 1
        pids = {(one.host, one.pid) for one in table.placed}
        text = "nccl-tests' list has %d rank%s" % (len(table.ranks), "" if len(table.ranks) == 1 else "s")
        if table.twice:
            text = "nccl-tests' lists of several runs have %d entries, of rank%s %s" % (
                len(table.placed),
                "" if len(table.ranks) == 1 else "s",
                numbers(table.ranks),
            )
        if min(table.ranks):
            text += " (its beginning is not in the log; it goes to rank %d, so the run has at least %d ranks)" % (
                max(table.ranks), max(table.ranks) + 1,
            )  # fmt: skip
        elif max(table.ranks) + 1 > len(table.ranks):
            text += " (others are not in the log)"
        text += " in %d process%s on %d host%s: " % (
            len(pids), "" if len(pids) == 1 else "es", len(by), "" if len(by) == 1 else "s",
        )  # fmt: skip
        kinds = {host: {one.gpu for one in table.placed if one.host == host} for host in sorted(by)[:6]}
        mixed = len({tuple(sorted(gpus)) for gpus in kinds.values()}) > 1
        text += ", ".join(
            "%s (%d%s)" % (host, by[host], " of %s" % ", ".join(sorted(gpus)[:2]) if mixed else "")
            for host, gpus in kinds.items()
        )
        text += " and %d more" % (len(by) - 6) if len(by) > 6 else ""
        gpus = sorted({one.gpu for one in table.placed if one.gpu})
        text += "; %s" % ", ".join(gpus[:3]) if gpus and not mixed else ""
        text += "; GPUs of several kinds in one job: the slower ones set its pace" if mixed else ""
        text += _shared(table)
        text += "; pid%s %s" % ("" if len(pids) == 1 else "s", " and ".join(str(pid) for _host, pid in sorted(pids))
                                ) if len(pids) < 3 else ""  # fmt: skip
        if table.twice and set(table.ranks) == {0}:
            text += "; each has its own rank 0, so they are separate programs, as of nccl-tests"
            text += " built without MPI=1, or started by another MPI's mpirun; they measure no network"
        said.append(text)
        if len(table.ranks) == 1 and 0 in table.ranks:
            said.append(
                "one rank alone: nothing is communicated, so busbw is 0 by definition, and no fault; start it with two"
                " ranks or more (-g 2 on a node; over nodes mpirun or srun, and nccl-tests built with MPI=1)"
            )
    shown = _shown(table)
    several = len([test for test in shown if test.said or test.apart]) > 1
    for number, test in enumerate(shown[:_TOLD]):
        which = "test %d of %d, " % (number + 1, len(shown)) if several else ""
        said += _told(test, table, which, networks)
        if not test.said and (several or test.stopped):
            said.append("%snccl-tests: %s" % (which, _no_end(test, trace)))
    said += _differ([test for test in shown if test.rows])
    for number, test in list(enumerate(shown))[_TOLD:]:
        best = max((row.best for row in test.rows), default=0.0)
        text = "test %d of %d: %d rows, the best %g GB/s" % (number + 1, len(shown), len(test.rows), best)
        said.append(text + (", average %g GB/s" % test.averages[-1] if test.averages else ""))
    return said


def _shown(table: Table) -> List[Test]:
    return [test for test in table.tests if test.said or test.begin or test.version or test.name]


def _no_end(test: Test, trace: Optional[Trace]) -> str:
    """How far a test came that has neither a row nor an end."""
    text = "neither a row nor an end of it is here"
    if test.begun is not None:
        text += ": its row of %s was started" % size(test.begun)
    elif test.listed:
        text += ": the last that it printed is its list of ranks"
    pids = {"%s:%d" % one[:2] for one in test.listed.values()}
    own = [one for one in trace.streams.values() if one.who.partition(",")[0] in pids] if trace is not None else []
    if own:
        calls: Dict[str, int] = {}
        for one in own:
            for op, count in one.ops.items():
                calls[op] = calls.get(op, 0) + count
        each = ", ".join("%d %s" % (count, op) for op, count in sorted(calls.items()))
        text += "; its ranks called %s (NCCL's trace, %d of %d ranks), and no line shows whether these ended" % (
            each, len(own), len(test.listed),
        )  # fmt: skip
    elif trace is not None and trace.streams:
        text += "; no call of it is in NCCL's trace"
    if test.stopped:
        text += "; it was ended on request (line %d); whether it hung before that is unknown" % test.stopped
    return text


def stopped(table: Table) -> str:
    """Which of several tests were told to end."""
    tests = _shown(table)
    ended = [
        "%d%s (line %d)" % (number, " (%s)" % size(int(most)) if most else "", test.stopped)
        for number, test, most in ((n, test, (test.begin or {}).get("most")) for n, test in enumerate(tests, 1))
        if test.stopped
    ]
    if not ended:
        return ""
    text = "it stopped nccl-tests before a result" if len(tests) == 1 else "of %d tests it stopped number %s" % (
        len(tests), " and ".join(ended[:8]),
    )  # fmt: skip
    return text


def _shared(table: Table) -> str:
    """Ranks that the list puts on one GPU: its PCI address with the domain stands there in new releases."""
    on: Dict[Tuple[str, str], List[int]] = {}
    for rank, one in table.ranks.items():
        if ":" in one.bus and not table.twice:
            on.setdefault((one.host, one.bus), []).append(rank)
    both = [(where, ranks) for where, ranks in on.items() if len(ranks) > 1]
    if not both:
        return ""
    (host, bus), ranks = both[0]
    text = "; ranks %s are on one GPU (%s of %s, or on parts of it by MIG)" % (numbers(ranks), bus, host)
    text += " and %d more GPUs have several ranks" % (len(both) - 1) if len(both) > 1 else ""
    return text + ": they share what it can do"


def _differ(tests: Sequence[Test]) -> List[str]:
    """Of tests that have a size in common, that one is much slower there."""
    common = set.intersection(*({row.size for row in test.rows} for test in tests)) if len(tests) > 1 else set()
    if not common or max(common) < BANDWIDTH:
        return []
    best = [max(row.best for row in test.rows if row.size == max(common)) for test in tests]
    if min(best) * _APART_TESTS > max(best):
        return []
    text = "at %s the tests reach %s GB/s" % (size(max(common)), ", ".join("%g" % value for value in best[:_TOLD]))
    apart = []
    reductions = [_or_none(sorted({row.op for row in test.rows if row.op})) for test in tests]
    kinds = [_or_none(sorted({row.type for row in test.rows if row.type})) for test in tests]
    factors = [_factor(test) for test in tests]
    apart += ["the reduction (%s)" % " / ".join(reductions[:_TOLD])] if len(set(reductions)) > 1 else []
    apart += ["the type (%s)" % " / ".join(kinds[:_TOLD])] if len(set(kinds)) > 1 else []
    if min(factors) > 0 and max(factors) > _APART_FACTORS * min(factors):
        each = " / ".join("%.2f" % factor for factor in factors[:_TOLD])
        apart.append("busbw by algbw (%s), which is of the collective and of how many ranks there are" % each)
    if not apart:
        return [text + ": what is different between them (nodes, GPUs, network, collective) these tables do not show"]
    text += ": their rows differ in %s: they need not be of one collective, and figures of two are not to be compared"
    return [
        text % " and in ".join(apart) + " as they are; these tables do not show whether nodes, GPUs or network differ"
    ]


def _or_none(said: Sequence[str]) -> str:
    return ",".join(said) or "none"


def _factor(test: Test) -> float:
    """busbw by algbw of the row in which rounding weighs least; 0 where that is not told."""
    most = max(test.rows, key=lambda row: row.alg)
    return most.out / most.alg if most.alg >= _ROUNDS_WELL else 0.0


def _asked(test: Test) -> str:
    """What a test is to do, as its first lines say."""
    begin = test.begin or {}
    parts = []
    if "least" in begin:
        parts.append("sizes from %s to %s" % (size(int(begin["least"])), size(int(begin["most"]))))
        parts[0] += ", step %s" % begin["step"] if "step" in begin else ""
    if "iters" in begin:
        parts.append("%s iterations" % begin["iters"])
        parts[-1] += " after %s to warm up" % begin["warmup"] if "warmup" in begin else ""
    if begin:
        parts.append("%s thread%s with %s GPU%s each" % (
            begin["threads"], "" if begin["threads"] == "1" else "s",
            begin["gpus"], "" if begin["gpus"] == "1" else "s",
        ))  # fmt: skip
    if begin.get("checked") == "0":
        parts.append("validation 0: values are not checked")
    return "requested: %s" % ", ".join(parts) if parts else ""


def _little(test: Test, table: Table) -> bool:
    """Whether large sizes are slower than what joins GPUs should bring."""
    most = max((row.best for row in test.rows), default=0.0)
    return any(row.size >= _LARGE for row in test.rows) and len(table.ranks) != 1 and 0 < most < _LITTLE


def _one_nic(table: Table, most: float) -> bool:
    """Whether one NIC of 100 Gbit/s between hosts brings as much."""
    return len(table.hosts) != 1 and most >= _OF_A_NIC


def _why_little(test: Test, table: Table, networks: AbstractSet[str]) -> str:
    most = max(row.best for row in test.rows)
    text = "; that is little for GPUs that are joined by NVLink or by several RDMA NICs"
    if _one_nic(table, most):
        text += "; between hosts it is usual over one NIC of 100 Gbit/s (12.5 GB/s at most)"
    else:
        text += ", and what plain TCP or PCIe without P2P reach"
    if len(table.hosts) == 1:
        text += " (in one host, where P2P over PCIe 3.0 x16 brings some 10 GB/s)"
    if networks and len(table.hosts) > 1:
        text += ": the network of this log is %s" % names(networks)
        if networks == {"Socket"}:
            text += " (TCP), which is likely what limits it: these %.2g GB/s are some %.2g Gbit/s on a way between" % (
                most, most * 8,
            )  # fmt: skip
            text += " nodes, without RDMA (InfiniBand, RoCE or EFA)"
        return text
    return text + ": why is not in the table; NCCL_DEBUG=INFO shows network, HCAs, GPUDirect RDMA and nodes"


def doubts(table: Table) -> List[str]:
    """What of the figures is odd, worst first: they prove nothing to be wrong."""
    said = []
    for test in table.tests:
        most = max((row.best for row in test.rows), default=0.0)
        if _little(test, table) and not (len(table.hosts) > 1 and _one_nic(table, most)):
            text = "busbw is %g GB/s at most, little for GPUs joined by NVLink or several RDMA NICs" % most
            said.append(text + (", usual over one NIC of 100 Gbit/s" if _one_nic(table, most) else ""))
        said += test.leaps[:1]
    return said


def _told(test: Test, table: Table, which: str, networks: AbstractSet[str]) -> List[str]:
    """What one test printed, in sentences. which: of several."""
    said = []
    called = ("nccl-tests %s" % test.version).strip() + (" (%s)" % test.name if test.name else "")
    asked = _asked(test)
    if asked or test.version or test.name:
        said.append("%s%s%s" % (which, called, " was %s" % asked if asked else " was started"))
    if not test.said:
        return said
    text = "%s%s: " % (which, "nccl-tests" if said else called)
    text = "%sa table of busbw of unknown origin: " % which if test.other else text
    text += "" if test.rows else "no size is in this log"
    if test.rows:
        best, last = max(test.rows, key=lambda row: row.best), test.rows[-1]
        sizes = {row.size for row in test.rows}
        if len(sizes) < len(test.rows):
            text += "%d rows of " % len(test.rows)
        text += "%d size%s up to %s" % (len(sizes), "" if len(sizes) == 1 else "s", size(max(sizes)))
        ops = sorted({row.op for row in test.rows if row.op and row.op != "none"})
        text += "; reduction %s" % ", ".join(ops) if ops else ""
        kinds = sorted({row.type for row in test.rows if row.type})
        text += "; values of type %s" % ", ".join(kinds[:4]) if kinds else ""
        each = _share_of(test.rows)
        text += "; a size is %d times that of its count of values: likely a collective over %d ranks of which each" % (
            each, each,
        ) + " has a share (all_gather, reduce_scatter, alltoall)" if each > 1 else ""  # fmt: skip
        text += " (others, if the test has them, are not in these rows)" if len(ops) == 2 else ""
        inside = "in place is not in the row" if last.inside is None else "%g in place" % last.inside
        figures = "%g GB/s" % last.out if test.other else "%g GB/s out of place, %s" % (last.out, inside)
        text += "; at %s busbw %s" % (size(last.size), figures)
        text += ", algbw %g" % last.alg if last.alg else ""
        text += ", %g us" % last.time if last.time else ""
        text += "; the best is %g GB/s at %s" % (best.best, size(best.size)) if best.best > last.best else ""
        outliers = test.outliers
        if outliers:
            text += "; worth a look, measure it again: %s" % ", ".join(outliers[:3])
            text += " and %d more" % (len(outliers) - 3) if len(outliers) > 3 else ""
        text += (
            "; worth a look: %s: below that size it is slow for another reason" % test.leaps[0] if test.leaps else ""
        )
        flat = test.flat
        if flat:
            mean = "%.1f" % flat[1] if flat[1] >= 1 else "%.2g" % flat[1]
            text += "; flat at about %s GB/s from %s on: the table does not show what limits it" % (mean, size(flat[0]))
        if not flat and len(test.rows) > 1 and sorted(sizes) == [row.size for row in test.rows]:
            rising = last.best > _RISES * test.rows[-2].best and last.size >= BANDWIDTH
            text += "; it still rises with the size: larger messages are needed to see the most" if rising else ""
        if _little(test, table):
            text += _why_little(test, table, networks)
        if max(sizes) < BANDWIDTH:
            text += "; such small sizes show no bandwidth"
        unchecked = "not checked (N/A)" if test.error is None else "not counted, the largest error is %g" % test.error
        wrong = unchecked if test.wrong is None else "%d in these rows" % test.wrong
        wrong += ", which its own sum denies: the rows are torn" if test.wrong and test.none_wrong else ""
        text += "" if test.other else "; wrong values: %s" % wrong
    if test.other:
        text += "; average over all sizes %g GB/s" % test.averages[0] if test.averages else ""
    elif test.concluded or test.bounds:
        text += "; it ran to its end: out of bounds values %s" % (test.bounds.strip() or "not shown")
        nothing = bool(test.rows) and test.wrong is None and test.error is None
        if test.bounds.endswith("OK") and (nothing or (test.begin or {}).get("checked") == "0"):
            text += " (which proves nothing: no value was checked)"
        if test.averages:
            each = ", ".join("%g" % value for value in test.averages[:4])
            text += ", average over all sizes %s GB/s, in which the small ones count as much" % each
            best = max((row.best for row in test.rows), default=0.0)
            low = test.averages[0] < _PULLED_DOWN * best and test.rows[0].size < BANDWIDTH
            text += ": they pull it down, and the large sizes are what to judge by" if low else ""
            text += "; that is below NCCL_TESTS_MIN_BW" if test.missed else ""
    else:
        text += "; its end (Out of bounds values, Avg bus bandwidth) is not in this log: no verdict"
        text += _broken_off(test, table)
    said.append(text)
    said += ["%sby its figures: %s" % (which, one) for one in table_shape.shape(test, table)]
    if len(test.rows) > 1:
        listed = ", ".join(_of_row(row) for row in test.rows[:_ROWS])
        more = " and %d rows more" % (len(test.rows) - _ROWS) if len(test.rows) > _ROWS else ""
        said.append("%sbusbw of each size, out of place/in place, in GB/s: %s%s" % (which, listed, more))
    return said


def _broken_off(test: Test, table: Table) -> str:
    """In which row the log ends, and what it has of it; "" where it ends between rows."""
    begun = table.unfinished if test is table.last else None
    if begun is None:
        return ""
    text = "; the log breaks off in the row of %s" % size(begun.size)
    text += ", of which %g GB/s out of place is there" % begun.out if begun.time else ""
    most = int((test.begin or {}).get("most") or 0)
    text += (
        "; so the rest of it, the sizes up to %s and the average are missing" % size(most) if most > begun.size else ""
    )
    return text


def _share_of(rows: Sequence[Row]) -> int:
    """How many times the bytes of its count the size of each row is; 0 where they differ or it is not told."""
    found = {row.size / (row.count * WIDTHS[row.type]) if row.count and row.type in WIDTHS else 0.0 for row in rows}
    one = found.pop() if len(found) == 1 else 0.0
    return int(one) if one == int(one) else 0


def _of_row(row: Row) -> str:
    """``1 MiB 1.9/3.06``."""
    return "%s %g%s" % (size(row.size), row.out, "" if row.inside is None else "/%g" % row.inside)
