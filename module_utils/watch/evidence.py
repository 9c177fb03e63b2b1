# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ask RAS and Inspector which rank a stalled job waits for: both know what each rank has launched, or finished.

RAS is queried on this machine only, in the job's own processes, for seconds. Files of Inspector belong to the job's
user: of the newest ones the ends are read, and links are not followed.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import Collection, Container, List, NamedTuple, Sequence, Set, Tuple

from ..core.finding import Finding, worst_first
from ..core.host import Host, ReadError
from ..diagnose import inspector
from ..ras import client, judge, processes, views
from ..ras.answer import RasStatus
from .job_state import SLOW, Stall

# Seconds for RAS in all, for its greeting, for its status; between two queries, which show progress.
TOTAL, GREETING, STATUS, APART = 12.0, 1.0, 6.0, 2.0
_LOCAL = ("127.0.0.1", "::1")
# Files of Inspector, names in its directory, and bytes of each file: the last 400 collectives of a rank.
_FILES, _NAMES, _TAIL = 64, 16384, 256 << 10
# Seconds before a stall from which on records of Inspector count.
_BEFORE = 600.0
_TEXT, _RANKS = 300, 8


class Evidence(NamedTuple):
    """Report of one source on a stalled job.   check: the kind.   ranks: those that the others wait for, if known."""

    check: str
    ranks: Tuple[int, ...]
    text: str


def collect(host: Host, stall: Stall, pids: Collection[int], folder: str) -> List[Evidence]:
    """Return what RAS and Inspector report. pids: of the job.   folder: with Inspector's records, "" for none."""
    return of_ras(host, pids) + (of_inspector(host, stall, folder) if folder else [])


def of_ras(host: Host, pids: Collection[int]) -> List[Evidence]:
    """Return the worst finding on the job; [] where none of its processes has a RAS."""
    end = time.monotonic() + TOTAL

    def query(address: str, port: int) -> RasStatus:
        if time.monotonic() >= end or address not in _LOCAL:
            raise ReadError(client.name(address, port), "was not queried, or not within %g s" % TOTAL)
        return client.query(address, port, GREETING, STATUS)

    ranks, _problems = processes.read(host, pids)
    every, silent = views.read(ranks, APART, query)
    numbers = {number for one in ranks for number in (one.pid, one.inner)}
    of_job = [view for view in every if views.pids(view.now) & numbers]
    findings, suspects = judge.examine(of_job, judge.Known())
    roots = [one for one in worst_first(findings) if not one.ok and one.because is None]
    if roots and of_job:
        return [_evidence("RAS", roots[0], _ranks(of_job, suspects))]
    return [Evidence(judge.ANSWERED.id, (), str(one.problem)[:_TEXT]) for one in silent[:1]]


def _ranks(of_job: Sequence[views.View], suspects: Container[object]) -> Set[int]:
    """Return the suspects' ranks in the largest communicator of each view."""
    found: Set[int] = set()
    for view in of_job:
        largest = max(view.now.communicators, key=lambda one: one.size)
        places = [*largest.places.items(), *((one.rank, one.place) for one in largest.missing)]
        found.update(rank for rank, place in places if place in suspects)
    return found


def of_inspector(host: Host, stall: Stall, folder: str) -> List[Evidence]:
    """Return the worst finding on records since shortly before the stall; [] where there are none, or all is well."""
    collector = inspector.Collector(int((stall.since - _BEFORE) * 1e6))
    for path in _newest(host, folder):
        with suppress(ReadError):
            for line in (host.read_system(path, "replace", _TAIL, tail=True) or "").split("\n"):
                collector.add_line(line)
    # That a job stands still is known already; one that is slow has records on the way.
    judged = inspector.judge(collector, int(stall.at * 1e6) + (0 if stall.kind == SLOW else inspector.QUIET))
    ranks = [one.rank for one in judged.behind] or [one.rank for one in judged.late]
    return [_evidence("Inspector", inspector.findings(judged)[0], ranks)] if ranks else []


def _newest(host: Host, folder: str) -> List[str]:
    """Return the regular files that were written last."""
    found = []
    with suppress(ReadError):
        for name in host.listdir_system(folder)[:_NAMES]:
            path = "%s/%s" % (folder, name)
            with suppress(OSError):
                status = os.lstat(host.system(path))
                found += [(status.st_mtime, path)] if stat.S_ISREG(status.st_mode) else []
    return [path for _time, path in sorted(found)[-_FILES:]]


def _evidence(source: str, finding: Finding, ranks: Collection[int]) -> Evidence:
    named = tuple(sorted(ranks)[:_RANKS])
    who = "%s names rank %s" % (source, ", ".join(map(str, named))) if named else source
    return Evidence(finding.check, named, "%s: %s: %s" % (who, finding.subject, (finding.have or "")[:_TEXT]))
