# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All findings on a log, and what it cannot tell."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ..core.check import Check
from ..core.finding import Finding, worst_first
from . import (
    failure_checks,
    judge_failures,
    judge_network,
    judge_program,
    judge_ras,
    judge_settings,
    mnnvl,
    signals,
    unread_kinds,
)
from .failure_checks import RANKS, WARNING
from .job import Log
from .jobs import Job, missing, names, numbers, split
from .judge_network import AGAIN, CAPTURE

READABLE = Check(
    "nccl_log.readable",
    why="what is not in the log, or not kept of it, cannot be judged",
    fix=AGAIN,
)
"Is it NCCL_DEBUG output, whole and of a size that was read to its end"
LEVEL = Check(
    "nccl_log.level",
    why="at level WARN NCCL says nothing about networks, HCAs and connections: no verdict on them is possible",
    fix=AGAIN,
)
"Does the log have INFO lines, and those that tell the network and the connections"


def judge(log: Log) -> List[Finding]:
    """Findings, those that are ok too, worst first."""
    found = _readable(log) + judge_ras.judge(log.ras)
    found += _tests(log)
    for number, job in enumerate(split(log)):
        failed = judge_failures.judge(job) or _same_gpu(job)
        network = [*judge_network.judge(job), *mnnvl.judge(job)]
        if number == 0:
            failed = judge_program.judge(log, job, failed, network)
        found += failed
        found += _versions(job) + _forms(job) + _driver(log, job) + _ranks(job)
        found += network
        found += judge_settings.judge(job)
        found += _level(log, job)
    return _first_first(worst_first(_once(found)))


def _first_first(found: List[Finding]) -> List[Finding]:
    """Of findings as severe as the first failure of a log that one first: others may follow from it."""
    marks = "(the first failure of this log", "(a connection was lost before it in the log"
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
        other = sum(one.count for one in log.quotes.all)
        if log.failures or other:
            have += "; %d of PyTorch's, a launcher's, the scheduler's or a program's report something" % max(
                len(log.failures), other
            )
        if log.binary:
            have += "; %d hold zero bytes: it is no text" % log.binary
        if log.tests or log.table.rows or log.table.ranks:
            have += "; it is the output of nccl-tests without NCCL's INFO lines: which network is used is not told"
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
        have = "not kept: %s" % ", ".join("%d %s" % (count, what) for what, count in sorted(log.beyond.items()))
        fix = "give the files of fewer ranks at once"
        found.append(READABLE.judge(source, "unknown", "all of it", have, fix=fix))
    if log.collapsed:
        have = "Ray left out %d lines that were like others: which processes wrote them is not told" % log.collapsed
        fix = "run it again with RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, which Ray does not touch"
        found.append(READABLE.judge("%s repeated" % source, "unknown", "all of it", have, fix=fix, severity="minor"))
    if log.rccl:
        have = "this is RCCL, AMD's build of NCCL"
        why = "what is said here of networks and connections is true of RCCL; what to do names NVIDIA's tools"
        fix = "take rocm-smi for nvidia-smi, and the amdgpu driver's peer memory for nvidia_peermem"
        found.append(READABLE.judge("%s RCCL" % source, "unknown", "NCCL", have, "", fix, why=why, severity="minor"))
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
        table.wrong if table.wrong else "some", "; its end says: out of bounds values %s" % table.failed[-1].strip()
        if table.failed else "",
    )  # fmt: skip
    why = "data that ranks received was not what was sent: no result of such a job is to be believed"
    fix = (
        "run nccl-tests on each node alone, then on pairs, and drain the node where it comes again; see `nvidia-smi -q"
    )
    fix += " -d ECC`; in a virtual machine or with an IOMMU try NCCL_P2P_DISABLE=1 on one node to tell the way apart"
    return [WARNING.judge("nccl-tests", "drift", "no wrong values", have, "", fix, why=why, severity="critical")]


def _level(log: Log, job: Job) -> List[Finding]:
    if not log.info:
        if not log.warnings:
            return []
        have = "warnings alone: network, HCAs, GPUDirect RDMA and channels are unknown"
        return [LEVEL.judge(job.name, "unknown", "INFO lines", have)]
    silent = []
    if not job.networks:
        silent.append("which network is used (Using network)")
    if job.world is None:
        silent.append("which ranks there are, and whether they got ready (Init START, Init COMPLETE)")
    if job.nodes != 1 and not any(process.connections for process in job.processes):
        silent.append("connections (Channel ... via)")
    if job.nodes is None:
        silent.append("over how many nodes it runs")
    if not silent:
        return []
    have = "the log does not tell: %s" % "; ".join(silent)
    why = "what NCCL did not print cannot be judged: there is no verdict on it"
    return [LEVEL.judge(job.name, "unknown", "lines of INIT, NET and GRAPH", have, why=why, severity="minor")]


def _versions(job: Job) -> List[Finding]:
    if not job.versions:
        return []
    if len(job.versions) == 1:
        said = {process.host for process in job.processes if process.versions}
        hosts = {process.host for process in job.processes}
        have = job.versions[0]
        if said and len(said) < len(hosts):
            have += ", as %s says; %s: no release" % (names(said, 3), names(hosts - said, 3))
        return [failure_checks.VERSIONS.judge(job.name, "ok", "one NCCL", have, "NCCL version")]
    on = []
    for version in job.versions:
        hosts = [process.host for process in job.processes if version in process.versions]
        on.append("%s on %s" % (version, names(hosts)) if hosts else version)
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
        return text + "; within one major release that works as a rule", False
    return text, True


def _driver(log: Log, job: Job) -> List[Finding]:
    text, too_old = older_driver(log, job)
    if not too_old:
        return []
    why = "a driver that is older than the CUDA of the library lacks functions that it may call"
    fix = (
        "`nvidia-smi` on the node says the newest CUDA that its driver runs: take a newer driver, or an image for that"
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
        if process.host and rank in process.buses:
            on.setdefault((process.host, process.buses[rank]), []).append(rank)
    found = []
    for (host, bus), ranks in sorted(on.items()):
        if len(ranks) > 1:
            have = "ranks %s have the same GPU (bus id %s) on %s, and did not complete" % (numbers(ranks), bus, host)
            have += "; or two nodes have this host name"
            subject = "%s %s %s" % (job.name, host, bus)
            found.append(failure_checks.DUPLICATE.judge(subject, "drift", "a GPU for each rank", have, "Init START"))
    return found[:3]


def _quiet(job: Job) -> bool:
    """Whether nothing in a log says that something failed, waits or was told to end."""
    if any(one.failure.kind not in ("fallback", "event", "value") for one in job.failures):
        return False
    if any(one.calls or one.retries or one.ended for one in job.processes):
        return False
    return not any(one.kind in (signals.DEATH, signals.ERROR, signals.ORDER, signals.WAITS) for one in job.quotes)


_REST = "give this command the rest of the log, and the files of all ranks; if the job hangs, ask `busbar hang HOST`"


def _ranks(job: Job) -> List[Finding]:
    found = []
    worst: List[Tuple[int, Finding]] = []
    complete = 0
    for one in job.communicators:
        if one.done:
            complete += 1
            continue
        if one.named:
            continue
        absent = missing(one.began, one.ranks)
        subject = "%s communicator %s" % (job.name, one.key)
        want = "%d ranks" % one.ranks
        if absent:
            have = "ranks %s of %d did not begin here, and no rank completed" % (absent, one.ranks)
            several = len({process.key for process in one.began.values()}) > 1
            have += "" if several else "; only one process shows ranks in this log"
            failed = any(said.failure.kind not in ("fallback", "event", "value") for said in job.failures)
            have += (
                "" if failed else "; no failure is in these lines, which end there: the log is cut, or the others wait"
            )
            have += "; possible causes: not started, cannot reach rank 0, or their log is not among the files"
            fix = None
            state, severity = ("drift", None) if several and failed else ("unknown", "major")
            if not several and not failed and len(job.processes) == 1:
                # The file of one rank never tells of the others.
                severity = "minor"
            if one.formed:
                have = "all %d ranks took part (nodes and channels are known only then); ranks %s have no lines" % (
                    one.ranks, absent,
                )  # fmt: skip
                have += " here, and no rank has its Init COMPLETE: these lines end before it"
                state, severity, fix = "unknown", "minor", _REST
            if one.one_process:
                have = (
                    "one process has all %d ranks (ncclCommInitAll), so none is missing: the lines end before"
                    % one.ranks
                )
                have += " ranks %s began" % absent
                state, severity = "unknown", "minor"
            finding = RANKS.judge(subject, state, want, have, "Init START", fix, severity=severity)
        else:
            have = "all %d ranks began, and none completed: it hung, failed, or the log ends before" % one.ranks
            quiet = _quiet(job)
            if quiet:
                have = "all %d ranks began, and these lines end before one completed" % one.ranks
                have += "; nothing fails in them: the log is cut there, or the job waits there"
            if one.ranks == 1:
                have = "a communicator of one rank, which needs no network, has not completed here"
            fix = "see whether the job is still at it; if it hangs, ask `busbar hang HOST` which rank is behind"
            severity = "major" if one.ranks > 1 and not quiet else "minor"
            finding = RANKS.judge(subject, "unknown", want, have, "Init COMPLETE", fix, severity=severity)
        worst.append((-one.ranks, finding))
    found = [finding for _ranks_of_it, finding in sorted(worst, key=lambda pair: pair[0])[:3]]
    if len(worst) > 3:
        have = "%d more communicators did not complete" % (len(worst) - 3)
        found.append(RANKS.judge("%s communicators" % job.name, "unknown", "all complete", have, "Init COMPLETE"))
    if complete and not worst and job.world is not None:
        world = job.world
        have = "%d communicator%s, the largest of %d ranks" % (complete, "" if complete == 1 else "s", world.ranks)
        if len(world.done) < world.ranks:
            have += "; ranks that say so: %s; the lines of the others are not in this log" % numbers(world.done)
        else:
            gone = sum(one.ended == "Destroy" for one in job.processes)
            have += ", all complete" + ("; %d processes ended in order (Destroy COMPLETE)" % gone if gone else "")
        found.append(RANKS.judge(job.name, "ok", "complete", have, "Init COMPLETE"))
    return found


__all__ = ["CAPTURE", "judge"]
