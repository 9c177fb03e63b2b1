# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a job demonstrably went on after its warnings: then what no rule knows of them is no failure of it.

Lines behind the last warning prove it: an initialisation that completed, a communicator that ended in order, or a
program's own speed, results, progress and success. Where more than a warning is reported, nothing proves it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

from ..core.finding import Finding
from . import results, signals, survived
from .failure_checks import OPEN, WARNING
from .job import Log
from .jobs import Job

_PROVES = (results.SPEED, results.RESULT, results.PROGRESS, results.SUCCESS)
# Warnings that are no failures, and those that no rule knows.
_MERE = (*OPEN, "value", "merge")
_ENDED = "Destroy"
_SAYS = "; the job went on after it (line %d)"


def line(log: Log, job: Job) -> int:
    """The last line that proves it; 0 where none does."""
    if len(log.sources) > 1 or not job.failures or any(one.failure.kind not in _MERE for one in job.failures):
        return 0
    if any(one.kind in (signals.DEATH, signals.ORDER, signals.WAITS) for one in job.quotes):
        return 0
    if any(len(one.calls) > len(survived.calls(job, one)) or one.ended == "Abort" for one in job.processes):
        return 0
    last = max(one.order for one in job.failures)
    reported = [one.last_order for one in log.results.kept if one.kind in _PROVES]
    proof = max([log.last_done, *reported, *(one.last for one in job.quotes if one.kind == signals.SUCCESS)])
    errors = [one.last for one in job.quotes if one.kind == signals.ERROR and not one.nccl]
    return proof if proof > last and all(proof > order for order in errors) else 0


def in_order(log: Log, jobs: Sequence[Job]) -> str:
    """By which lines all that this log shows came to its end in order; "" where not all of it did."""
    tests = [one for one in log.table.tests if one.said or one.begin is not None]
    if log.failures:
        return ""
    if tests:
        ends = all(one.bounds.endswith("OK") and not one.missed for one in tests)
        return "nccl-tests: out of bounds values %s" % tests[-1].bounds if ends else ""
    known = [one for job in jobs for one in job.communicators]
    ends = all(set(one.gone) == {_ENDED} and len(one.gone[_ENDED]) >= one.ranks for one in known)
    return "%s COMPLETE of all ranks" % _ENDED if known and ends else ""


def milder(found: Sequence[Finding], proof: int) -> List[Finding]:
    """The findings; those on warnings that no rule knows are minor where the job went on. proof: as of ``line``."""
    if not proof:
        return list(found)
    return [
        replace(one, severity="minor", have="%s%s" % (one.have, _SAYS % proof))
        if one.check == WARNING.id and one.state == "unknown"
        else one
        for one in found
    ]
