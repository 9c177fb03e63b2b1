# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare two results of a benchmark, before and after. Pure.

A difference counts if it is larger than the noise of both sides, which only repeats measure. Docs: docs/compare.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text

from . import findings_file, nodeset, screen, terminal
from .benchmark_results import Results, Run, load
from .campaign.cluster_record import Row
from .campaign.cluster_table import duration, median_of, number, program, wrapped
from .exit_code import FINDINGS, GOOD, UNKNOWN
from .plain_data import Plain

FORMAT = 1
WORSE, BETTER, WITHIN, UNJUDGED, NOT = "worse", "better", "within noise", "not judged", "not comparable"
VERDICTS = (WORSE, BETTER, WITHIN, UNJUDGED, NOT)
# Part of busbw by which days differ, however small the spread of repeats.
LEAST = 0.03
# Bytes below which busbw is printed with few digits and the time is compared.
COARSE = 1 << 20
# Repeats that measure noise; with fewer than FULL the range is often too small by chance, and counts twice.
REPEATS, FULL = 3, 4
ROWS, REASONS = 8, 4
_CELL, _SENTENCE = 22, 120


@dataclass(frozen=True)
class Difference:
    """One size of one run, or a run as a whole where size is None. verdict: one of VERDICTS.

    change: part of busbw won since before, negative for lost.   noise: what it has to exceed, None where it is not
    known.   measured: noise is from repeats; else declared.   why: there is no verdict.
    """

    scope: str
    collective: str
    algorithm: str
    hosts: tuple[str, ...]
    size: int | None = None
    before: Row | None = None
    after: Row | None = None
    change: float | None = None
    noise: float | None = None
    measured: bool = False
    verdict: str = NOT
    why: str = ""
    largest: bool = False


def compare(before: Results, after: Results, declared: float | None = None, versions: bool = False) -> list[Difference]:
    """Compare every size of every run of either. versions: also runs of different versions."""
    earlier = {(run.kind, run.hosts): run for run in before.runs}
    found: list[Difference] = []
    for run in after.runs:
        old = earlier.pop((run.kind, run.hosts), None)
        if old is None:
            found.append(_whole(run, _other_hosts(run, before.runs, "before")))
            continue
        why = _apart(old, run, versions)
        found += [_whole(run, why)] if why else _sizes(old, run, declared)
    found += [_whole(run, _other_hosts(run, after.runs, "after")) for run in earlier.values()]
    return found


def _whole(run: Run, why: str) -> Difference:
    return Difference(*run.kind, run.hosts, why=why)


def _other_hosts(run: Run, others: Iterable[Run], when: str) -> str:
    """Return why a run has no counterpart in the others, which are those of ``when``."""
    alike = [other for other in others if other.kind == run.kind]
    if not alike:
        return f"not measured {when}"
    hosts = {host for other in alike for host in other.hosts}
    return f"other hosts {when}: {_names(hosts)}"


def _apart(old: Run, new: Run, versions: bool) -> str:
    """Return why two runs over the same hosts cannot be compared, "" where they can."""
    if old.simulated != new.simulated:
        return "simulated {}, measured {}".format(*(("before", "after") if old.simulated else ("after", "before")))
    if old.ranks != new.ranks:
        return f"{old.ranks} ranks before, {new.ranks} after"
    if not versions:
        for name in sorted({*old.versions} & {*new.versions}):
            if old.versions[name] != new.versions[name]:
                return "{} {:.60} before, {:.60} after".format(
                    name.replace("_", "-"), old.versions[name], new.versions[name]
                )
    return ""


def _sizes(old: Run, new: Run, declared: float | None) -> list[Difference]:
    common = sorted({*old.points} & {*new.points})
    found = [_judged(new, size, old.points[size], new.points[size], declared, size == common[-1]) for size in common]
    for points, others, when in ((old.points, new.points, "before"), (new.points, old.points, "after")):
        alone = sorted({*points} - {*others})
        if alone:
            what = size_text(alone[-1]) if len(alone) == 1 else f"{len(alone)} sizes up to {size_text(alone[-1])}"
            found.append(_whole(new, f"{what} only {when}"))
    if not (common or old.points or new.points):
        found.append(_whole(new, "no figures, neither before nor after"))
    return found


def _judged(run: Run, size: int, old: Row, new: Row, declared: float | None, largest: bool) -> Difference:
    one = Difference(*run.kind, run.hosts, size, old, new, _change(size, old, new), largest=largest)
    if one.change is None:
        return replace(one, why="no figure on both sides of which a change can be computed")
    noise, measured = noise_of(old, new, declared)
    if noise is None:
        repeats = "nccl_benchmark_node_repeats" if run.scope == "node" else "nccl_benchmark_repeats"
        why = f"fewer than {REPEATS} repeats on a side, so its noise is not known: repeat with {repeats}: {FULL + 1}"
        return replace(one, verdict=UNJUDGED, why=why)
    verdict = WITHIN if abs(one.change) <= noise else BETTER if one.change > 0 else WORSE
    return replace(one, noise=noise, measured=measured, verdict=verdict)


def _change(size: int, old: Row, new: Row) -> float | None:
    change = math.inf
    if size < COARSE and old.time_us and new.time_us:
        change = old.time_us / new.time_us - 1
    elif old.busbw and new.busbw:
        change = new.busbw / old.busbw - 1
    return change if math.isfinite(change) else None


def noise_of(old: Row, new: Row, declared: float | None = None) -> tuple[float | None, bool]:
    """Return the limit of a difference, as a part of busbw, and whether it is from repeats on both sides.

    The spreads of both are added: then a range that lies within the other, or beside it by chance, is no change.
    declared: used without repeats; None: not known.
    """
    spread = sum(point.spread or 0.0 for point in (old, new))
    repeats = min(point.repeats if point.spread is not None else 1 for point in (old, new))
    known = spread * (1 if repeats >= FULL else 2)
    if repeats >= REPEATS:
        return max(known, LEAST), True
    return None if declared is None else max(known, declared), False


# -- text --------------------------------------------------------------------------------------------------------------


def exit_code(found: Sequence[Difference]) -> int:
    """Return FINDINGS where something is worse, else UNKNOWN where something could not be judged."""
    verdicts = {one.verdict for one in found}
    return FINDINGS if WORSE in verdicts else UNKNOWN if {NOT, UNJUDGED} & verdicts or not found else GOOD


def to_dict(before: Results, after: Results, found: Sequence[Difference]) -> Plain:
    """Return plain data. Keys: docs/compare.md."""
    counts = Counter(one.verdict for one in found)
    return {
        "format": FORMAT,
        "simulated": before.simulated or after.simulated,
        "exit_code": exit_code(found),
        **{
            when: {"name": results.name, "finished": results.finished, "simulated": results.simulated}
            for when, results in (("before", before), ("after", after))
        },
        "counts": {verdict.replace(" ", "_"): counts[verdict] for verdict in VERDICTS},
        "runs": [{**asdict(one), "hosts": list(one.hosts)} for one in found],
    }


def render(before: Results, after: Results, found: Sequence[Difference], width: int = 120) -> str:
    """Return one screen: what got worse or better, the largest size of each run, and what could not be compared."""
    width = max(width, 40)
    texts = [wrapped([text], width) for text in (*_reasons(found), *_noise(before, after, found))]
    blocks = [*([line] for line in _table(found, width)), *texts]
    tail = wrapped([_verdict(before, after, found)], width)
    return "\n".join(screen.page((), blocks, tail, width, "--json", "line"))


def _table(found: Sequence[Difference], width: int) -> list[str]:
    """Return a line for the runs over as many hosts that differ alike."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for one in found:
        if one.verdict in (WORSE, BETTER) or (one.verdict in (WITHIN, UNJUDGED) and one.largest):
            key = (one.scope, one.collective, one.algorithm, len(one.hosts), one.verdict)
            groups.setdefault(key, []).append(one)
    order = sorted(groups.values(), key=lambda of: (VERDICTS.index(of[0].verdict), -max(map(_amount, of))))
    if not order:
        return []
    scopes = len({one.scope for one in found}) > 1
    heads = ["HOSTS", "COLLECTIVE", "SIZE", "BEFORE", "AFTER", "CHANGE", "NOISE", "RESULT"]
    lines = terminal.table(heads, [_line(of, scopes) for of in order[:ROWS]], width, (("NOISE",),))
    more = [f"... and {len(order) - ROWS} more; --json has all"] if len(order) > ROWS else []
    return [*lines, *more, ""]


def _amount(one: Difference) -> float:
    return abs(one.change or 0.0)


def _line(of: Sequence[Difference], scopes: bool) -> terminal.Line:
    """Return the medians at the largest size, else at that of the largest change, and how many sizes differ alike."""
    first = min(of, key=lambda one: (not one.largest, -_amount(one)))
    same = [one for one in of if one.size == first.size]
    small = bool(first.size and first.size < COARSE and all(p and p.time_us for p in (first.before, first.after)))
    figures = [
        median_of((point.time_us if small else point.busbw) for point in points if point is not None)
        for points in ([one.before for one in same], [one.after for one in same])
    ]
    change = median_of(one.change for one in same)
    noise = max((one.noise for one in same if one.noise is not None), default=None)
    hosts = nodeset.brief([printable(host) for one in same for host in one.hosts], _CELL)
    cells = (
        f"{first.scope} {hosts}" if scopes else hosts,
        program(first.collective, first.algorithm),
        size_text(first.size) if first.size else "-",
        *(duration(figure) if small else number(figure) for figure in figures),
        "-" if change is None else f"{100 * change:+.1f} %",
        "-" if noise is None else f"{100 * noise:.1f} %" + ("" if all(one.measured for one in same) else " (set)"),
        first.verdict,
    )
    notes = []
    if len(same) > 1 and first.verdict in (WORSE, BETTER):
        most = max(same, key=_amount)
        notes = [f"median of {len(same)} runs; most on {_names(most.hosts)}: {100 * (most.change or 0.0):+.1f} %"]
    if others := {one.size for one in of if one.size != first.size}:
        notes.append(f"{first.verdict} also at {terminal.counted(len(others), 'other size')}")
    return cells, notes


def _reasons(found: Sequence[Difference]) -> list[str]:
    scopes = len({one.scope for one in found}) > 1
    reasons: dict[tuple[str, str], list[Difference]] = {}
    for one in found:
        if one.verdict in (NOT, UNJUDGED):
            reasons.setdefault((one.verdict, one.why), []).append(one)
    lines = []
    for (verdict, why), of in sorted(reasons.items(), key=lambda item: -len(item[1])):
        programs = [*dict.fromkeys(f"{one.scope} " * scopes + program(one.collective, one.algorithm) for one in of)]
        what = ", ".join(programs[:3]) + (f" and {len(programs) - 3} more" if len(programs) > 3 else "")
        lines.append(f"{verdict}: {what} on {_names(host for one in of for host in one.hosts)}: {why}")
    more = [f"... and {len(lines) - REASONS} more reasons; --json has all"] if len(lines) > REASONS else []
    return [*lines[:REASONS], *more]


def _noise(before: Results, after: Results, found: Sequence[Difference]) -> list[str]:
    lines = []
    judged = [one for one in found if one.change is not None]
    declared = sum(one.noise is not None and not one.measured for one in judged)
    if declared:
        lines.append(f"noise of {declared} of {len(judged)} figures is set by --noise and not measured")
    sides = (("before", before), ("after", after))
    silent = [when for when, results in sides if not all("nccl" in run.versions for run in results.runs)]
    if silent and judged:
        lines.append(f"whether NCCL was the same is not known: no version is recorded {' and '.join(silent)}")
    return lines


def _verdict(before: Results, after: Results, found: Sequence[Difference]) -> str:
    counts = Counter(one.verdict for one in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    simulated = " (simulated: no figure in it is a measurement)" if before.simulated or after.simulated else ""
    return f"COMPARED{simulated}: {said}; before: {_source(before)}, after: {_source(after)}; busbw in GB/s"


def _source(results: Results) -> str:
    if results.finished is None:
        return results.name
    return f"{results.name} of {findings_file.utc(results.finished)}"


def _names(hosts: Iterable[str]) -> str:
    return nodeset.brief([printable(host) for host in hosts], _SENTENCE)


def with_last(parent: Path, after: Results, width: int) -> str:
    """Compare the last results below parent with ``after``. Return the text; "" without them.

    parent: a directory whose link ``latest`` leads to them.
    """
    path = parent / "latest"
    try:
        if not after.runs or not path.exists():
            return ""
        before = load(path)
    except (OSError, ParseError) as error:
        return f"not compared with the last results: {error_text(error)}"
    # New results may be of one node of a fleet; and the last ones may be of pairs, and these of the cluster.
    hosts, scopes = {host for run in after.runs for host in run.hosts}, {run.scope for run in after.runs}
    kept = tuple(run for run in before.runs if run.scope in scopes and hosts & {*run.hosts})
    before = replace(before, runs=kept)
    return render(before, after, compare(before, after), width) if kept else ""


def publish(
    parent: Path,
    new: Results,
    write: Callable[[], Path],
    plot: Callable[[Path], tuple[list[Path], str]],
    say: Callable[[str], object],
) -> tuple[Path, list[Path]]:
    """Print the comparison with the last results below parent, write and plot the new ones, print where they are.

    write: returns the new directory.   plot: draws into it. Return directory and plots.
    Raises OSError; ParseError where ``write`` does.
    """
    if compared := with_last(parent, new, terminal.COLUMNS):
        say(compared + "\n")
    folder = write()
    plots, problem = plot(folder)
    say(f"results: {folder}" + "".join(f" {path.name}" for path in plots))
    if problem:
        say(problem)
    return folder, plots
