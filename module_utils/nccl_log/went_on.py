# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a job demonstrably went on after its warnings: then what no rule knows of them is not a failure of it.

Lines behind the last warning prove it: an initialisation that completed, a communicator that ended in order, or a
program's own speed, results, progress and success. Where more than a warning is reported, nothing proves it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

from ..core.finding import Finding
from . import results, signals, survived
from .failure_checks import NET_PLUGIN, OPEN, WARNING
from .job import Log, Reported
from .jobs import Job

_PROVES = (results.SPEED, results.RESULT, results.PROGRESS, results.SUCCESS)
# Warnings that are no failures, and those that no rule knows.
_MERE = (*OPEN, "value", "merge")
_ENDED = "Destroy"
_SAYS = "; the job continued after it (line %d)"


def line(log: Log, job: Job) -> int:
    """The last line that proves it; 0 where none does."""
    if len(log.sources) > 1 or not job.failures or not all(map(_mere, job.failures)):
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


def _mere(one: Reported) -> bool:
    """Whether it is not a failure as long as the job goes on: a plugin that gave way to NCCL's own networks, too."""
    gave_way = one.failure.kind == "net_plugin" and one.process is not None and bool(one.process.networks)
    return one.failure.kind in _MERE or (gave_way and one.process.networks <= {"Socket", "IB"})


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


def milder(found: Sequence[Finding], proof: int, one_node: bool = False) -> List[Finding]:
    """The findings where the job went on: those on warnings that no rule knows are minor. proof: as of ``line``."""
    if not proof:
        return list(found)
    found = [
        replace(one, severity="minor" if one_node else one.severity, have="%s%s" % (one.have, _SAYS % proof))
        if one.check == NET_PLUGIN.id and not one.ok
        else one
        for one in found
    ]
    return [
        replace(one, severity="minor", have="%s%s" % (one.have, _SAYS % proof))
        if one.check == WARNING.id and one.state == "unknown"
        else one
        for one in found
    ]
