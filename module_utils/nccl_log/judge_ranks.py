# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings on the ranks of communicators: did all come, and did they complete the initialisation."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from ..core.finding import Finding
from . import attendance, signals, unstarted
from .communicators import Communicator
from .failure_checks import RANKS
from .job import Log
from .jobs import Job, missing, numbers, of_ranks

_REST = "give this command the rest of the log, and the files of all ranks; if the job hangs, run `busbar hang HOST`"
_NOT_HERE = "a rank that is missing in the log may still have started"
_READY = "a communicator is ready once each of its ranks has Init COMPLETE"


def judge(log: Log, job: Job) -> List[Finding]:
    worst: List[Tuple[int, Finding]] = []
    complete = 0
    rivals = {one.key for one in job.rivals}
    for one in job.communicators:
        if one.key in rivals:
            continue
        if one.done:
            complete += 1
        elif not one.named and not _used(log, job, one):
            worst.append((-one.ranks, _incomplete(log, job, one)))
    found = [finding for _ranks_of_it, finding in sorted(worst, key=lambda pair: pair[0])[:3]]
    found = [_apart(job), *found] if job.rivals else found
    if len(worst) > 3:
        have = "%d more communicators show no Init COMPLETE" % (len(worst) - 3)
        subject = "%s communicators" % job.name
        found.append(RANKS.judge(subject, "unknown", "all complete", have, "Init COMPLETE", why=_READY))
    if complete and not worst and job.world is not None:
        found.append(_complete(log, job, complete))
    return found


def _apart(job: Job) -> Finding:
    """Ranks that wait for each other in their own communicators."""
    own = sorted(job.rivals, key=lambda one: min(one.began))
    each = ["%s with commId %s" % (of_ranks(numbers(one.began)), one.key) for one in own[:4]]
    have = "the ranks started with different commIds: %s%s" % (
        ", ".join(each), " and %d more" % (len(own) - 4) if len(own) > 4 else "",
    )  # fmt: skip
    have += "; they wait in separate communicators, and no rank completed"
    if all(process.ended == "Destroy" for one in own for process in one.began.values()):
        have += "; each of these processes has ended another communicator (Destroy COMPLETE)"
    have += "; possible causes: a rank took the unique id of an earlier start, or another rendezvous; or they are of"
    have += " several jobs or starts, of which the rest is not here"
    why = "ranks find each other by one unique id, which rank 0 makes: with another one they wait, or are refused"
    fix = "check that each start makes a new id that every rank reads: a new key of the store, or another port,"
    fix += " for each process group that is made again; the same MASTER_ADDR and MASTER_PORT on all ranks"
    subject, want = "%s commIds" % job.name, "one commId of %d ranks" % own[0].ranks
    return RANKS.judge(subject, "unknown", want, have, "Init START", fix, why=why, severity="major")


def _used(log: Log, job: Job, one: Communicator) -> bool:
    """Whether later lines prove that a communicator had been completed: it ended in order, or carried a test."""
    once = log.table.runs <= 1 and not log.table.twice
    return "Destroy" in one.gone or bool(log.table.rows and once and len(job.communicators) == 1)


def _incomplete(log: Log, job: Job, one: Communicator) -> Finding:
    absent = missing(one.began, one.ranks)
    subject = "%s communicator %s" % (job.name, one.key)
    want = "%d ranks" % one.ranks
    if not absent:
        return _began(job, one, subject, want)
    gone = set(range(one.ranks)) - set(one.began)
    own = unstarted.files(log, job) if one is job.world and not one.formed and not job.failures else {}
    if own and set(own) == gone:
        return _not_called(log, one, subject, want, own)
    away = gone - attendance.named(log, job) if one is job.world else gone
    proof = attendance.waits(log, job)
    if one.one_process:
        have = "one process has all %d ranks (ncclCommInitAll), so none is missing" % one.ranks
        have += "; %s no lines of %s own" % (of_ranks(absent, " has", " have"), "its" if absent.isdigit() else "their")
    elif one.formed:
        have = "all %d ranks took part (a line here comes only after the bootstrap, in which all meet)" % one.ranks
        have += "; %s no Init START here, and no rank has its Init COMPLETE" % of_ranks(absent, " has", " have")
    elif log.elided:
        have = "%s not in these lines, and no rank's Init COMPLETE is" % _of(absent, one, "is", "are")
        have += ": the quotation has gaps, so whether they came is unknown"
    elif not away:
        have = "%s no Init START here, and no rank has its Init COMPLETE" % _of(absent, one, "has", "have")
        have += "; other lines are theirs"
    elif proof:
        return _waited_for(one, subject, want, away, proof)
    else:
        have = "%s not in this log, and no rank completed in it" % _of(numbers(away), one, "is", "are")
        have += _others(gone - away)
        more = attendance.unnamed(job)
        if more:
            have = "%d of %d ranks are not in this log, and no rank completed in it" % (len(away) - more, one.ranks)
            have += "; which ones is unknown: %d more processes here do not report theirs" % more
        have += "; possible causes: their log is not among the files, lines are cut, or they were not started"
    ready = sum(bool(other.done) for other in job.communicators)
    if ready:
        have += "; that is communicator %s: of %d communicators %d %s an Init COMPLETE" % (
            one.key, len(job.communicators), ready, "has" if ready == 1 else "have",
        )  # fmt: skip
    return RANKS.judge(subject, "unknown", want, have, "Init START", _REST, why=_NOT_HERE, severity="minor")


def _others(there: Set[int]) -> str:
    return "; %s other lines here" % of_ranks(numbers(there), " has", " have") if there else ""


def _of(which: str, one: Communicator, verb: str, verbs: str) -> str:
    """``rank 3 of 4 is``."""
    return of_ranks(which, " of %d %s" % (one.ranks, verb), " of %d %s" % (one.ranks, verbs))


def _waited_for(one: Communicator, subject: str, want: str, away: Set[int], proof: str) -> Finding:
    have = "%s not begin here, and no rank completed; %s" % (_of(numbers(away), one, "did", "did"), proof)
    have += _others(set(range(one.ranks)) - set(one.began) - away)
    have += "; possible causes: not started, cannot reach rank 0, or their log is not among the files"
    return RANKS.judge(subject, "drift", want, have, "Init START")


def _not_called(log: Log, one: Communicator, subject: str, want: str, own: Dict[int, int]) -> Finding:
    """Ranks whose own files are here and have no line of NCCL's."""
    which = of_ranks(numbers(own))
    have = "%s in NCCL's bootstrap for %s" % (of_ranks(numbers(one.began), " waits", " wait"), which)
    have += ", which had not called NCCL; no rank has its Init COMPLETE, and no failure is in these lines"
    for rank, source in sorted(own.items())[:3]:
        last = unstarted.last_line(log, source)
        have += "; the file of rank %d (%s) has no line of NCCL's" % (rank, log.sources[source - 1].rpartition("/")[2])
        have += ", and its last one is: %s" % last if last else ""
    why = "a communicator is made when all its ranks have called NCCL: a late rank blocks all others silently"
    fix = "see what %s does, by its log and `py-spy dump --pid PID` on it: reading data, a download, another" % which
    fix += " branch of the program; no network is at fault as far as these lines show"
    return RANKS.judge(subject, "drift", want, have, "Init START", fix, why=why, severity="critical")


def _began(job: Job, one: Communicator, subject: str, want: str) -> Finding:
    quiet = _quiet(job)
    have = "all %d ranks started, and none has Init COMPLETE here: it hung, failed, or the log ends before" % one.ranks
    if quiet:
        have = "all %d ranks started, and none has Init COMPLETE here" % one.ranks
        have += "; nothing fails in these lines: the log is cut, or the job waits there"
    if one.ranks == 1:
        have = "a communicator of one rank, which needs no network, has not completed here"
    fix = "see whether the job still runs; if it hangs, run `busbar hang HOST` to find the rank that is behind"
    if one.ranks == 1:
        fix = "see this process's own lines behind these: it waits for no other rank"
    if any(failure.failure.kind in ("exit", "exception", "test") for failure in job.failures):
        have = (
            "all %d ranks started, and none has Init COMPLETE here: the job failed before, or their lines are cut"
            % one.ranks
        )
        fix = "repair the failures of this log first"
    severity = "major" if one.ranks > 1 and not quiet else "minor"
    return RANKS.judge(subject, "unknown", want, have, "Init COMPLETE", fix, why=_READY, severity=severity)


def _complete(log: Log, job: Job, complete: int) -> Finding:
    world = job.world
    ranks, done = (world.ranks, world.done) if world is not None else (0, set())
    have = "%d communicator%s, the largest of %d ranks" % (complete, "" if complete == 1 else "s", ranks)
    if len(done) < ranks:
        have += "; ranks that report it: %s" % numbers(done) + _others(attendance.named(log, job) - done)
        here, more = attendance.here(log, job), attendance.unnamed(job)
        if more and here < ranks:
            have += "; %d more processes have lines here without their rank" % more
        have += "; the lines of the others are not in this log" if here < ranks else ""
    else:
        gone = sum(one.ended == "Destroy" for one in job.processes)
        have += ", all complete" + ("; %d processes ended in order (Destroy COMPLETE)" % gone if gone else "")
    return RANKS.judge(job.name, "ok", "complete", have, "Init COMPLETE")


def _quiet(job: Job) -> bool:
    """Whether nothing in a log says that something failed, waits or was told to end."""
    if any(one.failure.kind not in ("fallback", "event", "value") for one in job.failures):
        return False
    if any(one.calls or one.retries or one.ended for one in job.processes):
        return False
    return not any(one.kind in (signals.DEATH, signals.ERROR, signals.ORDER, signals.WAITS) for one in job.quotes)
