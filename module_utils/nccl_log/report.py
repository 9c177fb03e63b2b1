# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A log's jobs, the proof of their transport and the findings, as plain data for other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Sequence

from ..core.finding import Finding
from .job import Log, read
from .jobs import Job, split
from .judge import judge
from .quotes import Quote
from .shown import not_shown, shown
from .transport import transport


def parse(text: str) -> Dict[str, Any]:
    """The report on a log of one source."""
    log = read([text.encode("utf-8", "replace")])
    return report(log, split(log), judge(log))


def report(log: Log, jobs: Sequence[Job], findings: Sequence[Finding]) -> Dict[str, Any]:
    """lines: of all sources.   info, warnings: records of NCCL's.   findings: keys of docs/finding.schema.json."""
    return {
        "sources": log.sources,
        "lines": log.lines,
        "info": log.info,
        "warnings": log.warnings,
        "jobs": [_job(log, job, number == 0) for number, job in enumerate(jobs)],
        "quotes": [_quote(one) for one in log.quotes.all],
        "results": [asdict(one) for one in log.results.kept],
        "unread": [asdict(one) for one in log.unread.kept],
        "findings": [finding.to_dict() for finding in findings],
    }


def _quote(one: Quote) -> Dict[str, Any]:
    """A line that reports a failure, a death, a wait or a success, or what several have in common."""
    return {
        "source": one.source,
        "line": one.order,
        "last_line": one.last,
        "count": one.count,
        "kind": one.kind,
        "nccl": one.nccl,
        "text": one.text,
        "behind": one.behind,
        "calls": list(one.calls),
        "about": one.about,
        "ranks": sorted(one.ranks),
        "processes": sorted(one.pids),
        "hosts": sorted(one.hosts),
    }


def _job(log: Log, job: Job, first: bool) -> Dict[str, Any]:
    """first: of the log; what no process signed is reported with it."""
    proof = transport(job)
    variables = sorted({name for process in job.processes for name in process.variables})
    return {
        "name": job.name,
        "processes": job.counted or len(job.processes),
        "hosts": sorted({process.host for process in job.processes}),
        "nccl": list(job.versions),
        "communicators": len(job.communicators),
        "shown": shown(log, job, first),
        "not_shown": not_shown(log, job, first),
        "variables": {name: sorted(job.set_to(name)) for name in variables},
        "transport": dict(asdict(proof), proven=proof.proven, rdma=proof.rdma, gdr=proof.gdr),
    }
