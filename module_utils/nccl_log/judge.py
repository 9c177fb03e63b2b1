# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All findings on a log, and what it cannot tell."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from ..core.check import Check
from ..core.finding import SEVERITIES, Finding, worst_first
from . import (
    failure_checks,
    judge_failures,
    judge_local,
    judge_network,
    judge_program,
    judge_ranks,
    judge_ras,
    judge_settings,
    mnnvl,
    releases,
    transport,
    unread_kinds,
    went_on,
)
from .failure_checks import WARNING
from .job import NO_FAILURES, Log
from .jobs import Job, hosts_of, names, numbers, split
from .judge_network import AGAIN, CAPTURE

READABLE = Check(
    "nccl_log.readable",
    why="what is not in the log, or was dropped from it, cannot be judged",
    fix=AGAIN,
)
"Is it NCCL_DEBUG output, complete and not too large"
LEVEL = Check(
    "nccl_log.level",
    why="at level WARN NCCL reports networks, HCAs and connections only in warnings: no verdict on them is possible",
    fix=AGAIN,
)
"Does the log have INFO lines, and those on the network and the connections"


# Checks of what makes a job slow, and ends none.
_SLOW = (judge_network.GDR.id, judge_network.NETWORK.id, judge_local.LOCAL.id, judge_local.NVLINK.id)

# The first release whose logs are judged.
OLDEST = 2, 18
_FORMS = "the lines of RCCL and of older releases have other forms and other meanings"
# Kinds of failures after which NCCL goes on.
_GOES_ON = (*NO_FAILURES, "hca_skipped")


def judge(log: Log) -> List[Finding]:
    """Findings, those that are ok too, worst first."""
    jobs = split(log)
    unsupported = not_judged(log, jobs)
    if unsupported:
        return [_unsupported(names(log.sources, 3) or "the log", unsupported)]
    found = _readable(log) + judge_ras.judge(log.ras)
    found += _tests(log)
    for number, job in enumerate(jobs):
        if _is_old(job):
            found.append(_unsupported(job.name, "NCCL %s" % ", ".join(job.versions)))
            continue
        proof = went_on.line(log, job) if len(jobs) == 1 else 0
        failed = judge_failures.judge(job) or _same_gpu(job)
        gpus = frozenset(one.gpu for one in log.table.ranks.values())
        network = [*judge_network.judge(job, gpus), *judge_local.judge(job), *mnnvl.judge(job)]
        if number == 0:
            failed = judge_program.judge(log, job, failed, network)
        found += went_on.milder(failed, proof, job.nodes == 1)
        found += releases.judge(job)
        found += _versions(job) + _forms(job) + _driver(log, job) + judge_ranks.judge(log, job)
        found += network
        found += judge_settings.judge(job)
        found += _level(log, job, proof)
    found = worst_first(_once(found))
    return _first_first(_slow_last(found) if fails(log) else found)


def not_judged(log: Log, jobs: Sequence[Job]) -> str:
    """Return what wrote a log that is not supported; "" where there is something to judge."""
    # A release of NVIDIA's stands in no log of RCCL.
    if log.rccl and not log.bare_versions and not any(job.versions for job in jobs):
        return "RCCL, AMD's build of NCCL"
    if jobs and all(map(_is_old, jobs)):
        return "NCCL %s" % ", ".join(sorted({version for job in jobs for version in job.versions}))
    return ""


def _is_old(job: Job) -> bool:
    releases = [tuple(int(part) for part in version.split(".")[:2]) for version in job.versions]
    return bool(releases) and max(releases) < OLDEST


def _unsupported(subject: str, release: str) -> Finding:
    have = "this is a log of %s: it is not judged" % release
    fix = "read it with the documentation of that release, or run the job with a newer NCCL"
    return READABLE.judge("%s release" % subject, "unknown", "NCCL %d.%d or later" % OLDEST, have, "", fix, why=_FORMS)


def fails(log: Log) -> bool:
    """Whether a failure is there after which NCCL does not go on as it does where an HCA cannot be opened."""
    return any(
        one.failure.kind not in _GOES_ON and "nable to open device" not in one.failure.text for one in log.failures
    )


def _slow_last(found: List[Finding]) -> List[Finding]:
    """Beside failures what only makes a job slow comes last of those that are as severe, and not minor."""

    def key(one: Finding) -> Tuple[bool, bool, int, bool]:
        slow = one.check in _SLOW or "nable to open device" in (one.have or "")[:60]
        slow = slow and not one.ok and one.severity != "minor"
        return one.ok, one.because is not None, SEVERITIES.index(one.severity), slow

    return sorted(found, key=key)


def _first_first(found: List[Finding]) -> List[Finding]:
    """Of findings as severe as the first failure of a log that one first: others may follow from it."""
    marks = (
        "(the first failure of this log",
        "(a connection was lost before it in the log",
        "(an NVSwitch reports SXid",
        "calls of NCCL returned an",
        "which had not called NCCL",
    )
    cause = next((one for one in found if any(mark in (one.have or "") for mark in marks)), None)
    if cause is None:
        return found
    at = next(number for number, one in enumerate(found) if one.severity == cause.severity and one.state == cause.state)
    rest = [one for one in found if one is not cause]
    return [*rest[:at], cause, *rest[at:]]


def _once(found: List[Finding]) -> List[Finding]:
    """Of findings with one id the first."""
    first: Dict[str, Finding] = {}
    for finding in found:
        first.setdefault(finding.id, finding)
    return list(first.values())


def _readable(log: Log) -> List[Finding]:
    source = names(log.sources, 3) or "the log"
    if not log.info and not log.warnings:
        have = "%d lines, none with NCCL's own head (HOST:PID:TID [GPU] NCCL INFO)" % log.lines
        if log.failures or log.quotes.all:
            have += "; lines of others (PyTorch, a launcher, the scheduler, a program, the kernel) report something"
        if log.binary:
            have += "; %d hold zero bytes: it is not a text" % log.binary
        if log.tests or log.table.ranks or any(test.rows and not test.other for test in log.table.tests):
            have += "; it is the output of nccl-tests without NCCL's INFO lines: which network is used is unknown"
        if log.ras.groups or log.ras.blocks:
            have += "; it is a report of NCCL's RAS"
        known = (
            log.failures
            or log.quotes.all
            or log.programs.waiting
            or log.table.rows
            or log.table.ranks
            or log.ras.groups
            or log.ras.blocks
            or log.results.kept
            or any(unread_kinds.weight(one.text, one.nccl) > 1 for one in log.unread.kept)
        )
        severity = "minor" if known else None
        return [READABLE.judge(source, "unknown", "lines of NCCL_DEBUG", have, severity=severity)]
    found = []
    if log.beyond:
        have = "not stored: %s" % ", ".join("%d %s" % (count, what) for what, count in sorted(log.beyond.items()))
        fix = "give the files of fewer ranks at once"
        found.append(READABLE.judge(source, "unknown", "all of it", have, fix=fix))
    if log.collapsed:
        have = "Ray left out %d lines that were equal to others: which processes wrote them is unknown" % log.collapsed
        fix = "run it again with RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, which Ray does not touch"
        found.append(READABLE.judge("%s repeated" % source, "unknown", "all of it", have, fix=fix, severity="minor"))
    if log.binary:
        have = "%d lines hold zero bytes" % log.binary
        found.append(READABLE.judge("%s text" % source, "unknown", "text", have, severity="minor"))
    return found


def _tests(log: Log) -> List[Finding]:
    """What nccl-tests found to be wrong."""
    table = log.table
    if not table.failed and not table.wrong:
        return []
    have = "nccl-tests counted %s wrong values%s" % (
        table.wrong if table.wrong else "some", "; its end reports: out of bounds values %s" % table.failed[-1].strip()
        if table.failed else "",
    )  # fmt: skip
    why = "ranks received other data than was sent: no result of this job can be trusted"
    fix = "run nccl-tests on each node alone, then on pairs, and drain the node where it recurs; see `nvidia-smi -q"
    fix += " -d ECC`; in a virtual machine or with an IOMMU try NCCL_P2P_DISABLE=1 on one node to find the path"
    return [WARNING.judge("nccl-tests", "drift", "no wrong values", have, "", fix, why=why, severity="critical")]


def _level(log: Log, job: Job, proof: int) -> List[Finding]:
    """proof: the line by which the job went on after its warnings, 0 where none shows it."""
    if not log.info:
        if not log.warnings:
            return []
        have = "warnings only: the INFO lines on network, HCAs, GPUDirect RDMA and channels are missing"
        return [LEVEL.judge(job.name, "unknown", "INFO lines", have, severity="minor" if proof else "major")]
    silent = []
    if not job.networks and not job.called:
        silent.append("which network is used (Using network)" + transport.selected(job).replace("; ", ", but ", 1))
    shaped = any(process.shaped for process in job.processes)
    if job.world is None and not shaped and not log.table.ranks:
        silent.append(_ranks_untold(log, job))
    if job.nodes != 1 and not any(process.connections for process in job.processes):
        silent.append("connections (Channel ... via)")
    if job.nodes is None and not shaped:
        silent.append("over how many nodes it runs")
    if not silent:
        return []
    have = "the log does not show: %s" % "; ".join(silent)
    why = "what NCCL did not print cannot be judged: there is no verdict on it"
    return [LEVEL.judge(job.name, "unknown", "lines of INIT, NET and GRAPH", have, why=why, severity="minor")]


def _ranks_untold(log: Log, job: Job) -> str:
    """What of its ranks a log does not tell that begins no communicator."""
    failed = any(re.search(r"(?:^|/)init\.", call.place) for one in job.processes for call in one.calls)
    named = bool(log.pairs.orders or log.pairs.trees) and len(job.processes) > 1
    which = "all the ranks there are (Init START)" if named else "which ranks there are (Init START)"
    return which + ("" if failed else ", and whether they got ready (Init COMPLETE)")


def _versions(job: Job) -> List[Finding]:
    if not job.versions:
        return []
    if len(job.versions) == 1:
        said = {process.host for process in job.processes if process.versions}
        hosts = {process.host for process in job.processes}
        have = job.versions[0]
        if said and len(said) < len(hosts):
            have += ", according to %s; %s: no release" % (hosts_of(said, 3), hosts_of(hosts - said, 3))
        return [failure_checks.VERSIONS.judge(job.name, "ok", "one NCCL", have, "NCCL version")]
    on = []
    for version in job.versions:
        hosts = [process.host for process in job.processes if version in process.versions]
        on.append("%s on %s" % (version, hosts_of(hosts)) if hosts else version)
    return [failure_checks.VERSIONS.judge(job.name, "drift", "one NCCL", "; ".join(on), "NCCL version")]


def _forms(job: Job) -> List[Finding]:
    """Lines of one job whose forms no release has all of."""
    last, first = (0, 0), (1 << 30, 0)
    late = early = None
    for process in job.processes:
        said = set(process.forms)
        for version in process.versions:
            number = _release(version)
            said.add((number, (number[0], number[1] + 1)))
        for since, before in said:
            if since is not None and since > last:
                last, late = since, process
            if before is not None and before < first:
                first, early = before, process
    if last < first or late is None or early is None or len(job.versions) > 1 or late is early:
        return []
    have = "lines of %s have the form of NCCL before %d.%d, those of %s that of %d.%d or later" % (
        job.who(early), *first, job.who(late), *last,
    )  # fmt: skip
    have += "; %s" % ("only %s is named" % job.versions[0] if job.versions else "no line names a release")
    have += "; possible causes: two releases of NCCL in one job, or lines of two jobs"
    subject = "%s forms" % job.name
    return [failure_checks.VERSIONS.judge(subject, "unknown", "one NCCL", have, "forms of lines", severity="major")]


def _release(version: str) -> Tuple[int, int]:
    first, second = version.split(".")[:2]
    return int(first), int(second)


def older_driver(log: Log, job: Job) -> Tuple[str, bool]:
    """What a driver older than the CUDA that NCCL was built for means, and whether it is a major release too old."""
    built = {process.cuda for process in job.processes if process.cuda} or log.built_for
    drivers = sorted({process.driver for process in job.processes if process.driver})
    if len(built) != 1 or not drivers:
        return "", False
    want = _release(next(iter(built)))
    have = drivers[0] // 1000, drivers[0] % 1000 // 10
    if have >= want:
        return "", False
    text = "the driver is of CUDA %d.%d and this NCCL was built for %d.%d, which is newer" % (*have, *want)
    if have[0] == want[0]:
        return text + "; within one major release that usually works", False
    return text, True


def _driver(log: Log, job: Job) -> List[Finding]:
    text, too_old = older_driver(log, job)
    if not too_old:
        return []
    why = "a driver that is older than the CUDA of the library lacks functions that it may call"
    fix = (
        "`nvidia-smi` on the node shows the newest CUDA that its driver runs: take a newer driver, or an image for that"
    )
    fix += " CUDA"
    subject = "%s driver" % job.name
    return [
        failure_checks.CUDA.judge(
            subject, "unknown", "as new as NCCL", text, "cudaDriverVersion", fix, why=why, severity="major"
        )
    ]


def _same_gpu(job: Job) -> List[Finding]:
    """Two ranks of a communicator that nobody completed on one GPU: NCCL ends them, and may not come to say why."""
    if job.world is None or job.world.done:
        return []
    on: Dict[Tuple[str, str], List[int]] = {}
    for rank, process in job.world.began.items():
        if process.host and process.buses.get(rank):
            on.setdefault((process.host, process.buses[rank]), []).append(rank)
    found = []
    for (host, bus), ranks in sorted(on.items()):
        if len(ranks) > 1:
            have = "ranks %s have the same GPU (bus id %s) on %s, and did not complete" % (numbers(ranks), bus, host)
            have += "; or two nodes have this host name"
            subject = "%s %s %s" % (job.name, host, bus)
            found.append(failure_checks.DUPLICATE.judge(subject, "drift", "a GPU for each rank", have, "Init START"))
    return found[:3]


__all__ = ["CAPTURE", "judge"]
