# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a program of the job failed by itself, before anything else: then that is the cause, and the rest follows.

What ends a job is not what it ended for: exit codes, orders to end, lost connections and timeouts come after it.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from ..core.number import whole
from . import results, signals
from .ends import by_itself
from .failure_checks import FOLLOWS
from .failure_order import settled, waited
from .job import Log, Reported
from .jobs import Job
from .quotes import Quote

# Kinds of failures beside FOLLOWS that are none.
_HARMLESS = ("event", "fallback", "value", "ras", "gdrcopy", "libfabric", "merely_tried", "hca_skipped")
# Of these it does not matter whether they stand before the program's own words.
_ANYWHERE = ("exception", "test", "consequence", "left", "progress", *_HARMLESS)
# What an exception says that only reports another process's end, or a wait for one.
_OF_OTHERS = re.compile(
    r"closed by (?:remote )?peer|reset by peer|[Bb]roken ?[Pp]ipe|recvValue failed|sendBytes"
    r" failed|EOFError|IncompleteRead|ChildFailedError|SignalException|CalledProcessError|returned non-zero"
    r" exit|ActorDied|ActorUnavailable|RayActor|WorkerCrashed|RayTaskError|EngineDead|[Ee]ngine"
    r" ?[Cc]ore|WorkerProc|communicator was aborted|NCCL"
    r" [Ee]rror|\bnccl[A-Z]|DistBackendError|DistNetworkError|DistStoreError|[Tt]imed"
    r" ?out|Timeout|Cancelled|SystemExit|[Tt]erminated|\bdied\b|Rendezvous|[Ss]tore\b|[Cc]onnection"
    r" (?:refused|reset|closed|aborted|error)|ConnectionError|ProcessRaisedException|ProcessExited|Test NCCL"
    r" failure|[Gg]loo|[Pp]rocess group watchdog|MPI_ERRORS_ARE_FATAL|TerminatedWorkerError|already in"
    r" use|EADDRINUSE|raylet|[Hh]eartbeat"
)
# What was caught and told, and went on.
CAUGHT = re.compile(
    r"Exception ignored|\bWARN(?:ING)?\b|\b[Ww]arning\b|\[W\d{0,4}[ .]|[Rr]etry|fall(?:s|ing)? ?back|deprecat|optional|"
    r"NOT INSTALLED|not installed|\bINFO\b|git\b"
)
_LOCAL = re.compile(r"local rank (\d{1,6})\b")
ARGUMENTS = re.compile(
    r"error: (?:unrecognized arguments|the following arguments|argument |ambiguous option|expected )"
)
# Classes of lines that a program ends with.
_GRAVE = re.compile(
    r"UCX|C\+\+|check in the program|call of CUDA|CUDA library|GPU's memory|memory of the host|library or module|"
    r"may not do this|file system is full|limit of the process|Triton|NVSHMEM|AMD's runtime|EFA|CUDA is not ready|"
    r"driver does not reach|JAX|Horovod|DeepEP"
)


# How sure it is that a program's failure was the first one; BESIDE_WAIT: a wait was given up after it.
FIRST, BESIDE_WAIT, OPEN_ORDER, LAST_WORDS = "first", "wait", "open", "last"


def went_on(log: Log, one: Quote) -> int:
    """The line by which a program goes on behind a report of a failure; 0 where none does.

    Steps of other ranks prove nothing: an initialisation that all ranks complete does, or what ends in success.
    """
    if len(log.sources) > 1:
        return 0
    later = [log.last_done, *(line.last_order for line in log.results.kept if line.kind == results.SUCCESS)]
    later += [said.last for said in log.quotes.all if said.kind == signals.SUCCESS]
    return max([order for order in later if order > one.last], default=0)


def own_failure(log: Log, job: Job) -> Optional[Tuple[Quote, str]]:
    """The line by which a program says that it failed by itself, and how sure its order is; None where none does."""
    failures = [one for one in settled(job.failures) if one.failure.kind not in _ANYWHERE]
    if any(one.failure.kind not in FOLLOWS for one in failures):
        return None
    said = [one for one in job.quotes if (one.kind == signals.ERROR or _uncaught(one)) and not one.nccl]
    said = [one for one in said if not _OF_OTHERS.search(_all(one)) and not CAUGHT.search(one.text)]
    known = {" ".join(one.failure.text[:150].split()) for one in job.failures}
    said = [one for one in said if " ".join(one.text[:150].split()) not in known]
    ends = _ends(job)
    first = BESIDE_WAIT if any(waited(one) for one in failures) else FIRST
    early = [one for one in said if _before_all(one, failures)]
    for proves in (_raised, _argued, _grave):
        found = [
            one for one in early if proves(one) and ((one.calls and not went_on(log, one)) or _ended_after(one, ends))
        ]
        if found:
            return found[0], first
    uncaught = [one for one in early if _uncaught(one)]
    if uncaught:
        return uncaught[0], first
    found = [one for one in said if _raised(one) and _of_who_ended(one, failures)]
    if found:
        return found[0], first
    found = [one for one in said if _raised(one) and _lost_by_others(one, failures)]
    if found:
        return found[0], OPEN_ORDER
    if any(by_itself(one.failure) for one in failures):
        return None
    found = [one for one in early if _ended_after(one, ends)]
    return (found[-1], LAST_WORDS) if found and failures else None


def _of_who_ended(one: Quote, failures: Sequence[Reported]) -> bool:
    """Whether all that stands before an exception is a launcher's word that its own process ended by a code."""
    return bool(failures) and all(
        (one.source == said.source and one.order < said.order)
        or (said.failure.kind == "exit" and merely_code(said.failure.code) and _may_be(one, said))
        for said in failures
    )


def _may_be(one: Quote, ended: Reported) -> bool:
    """Whether a launcher's word may be of the process that wrote a line: no number of a rank says that it is not."""
    ranks = {ended.failure.rank} - {None}
    local = _LOCAL.search(ended.failure.peer)
    ranks |= {int(local.group(1))} if local else set()
    return not ranks or not one.ranks or bool(ranks & one.ranks)


def _lost_by_others(one: Quote, failures: Sequence[Reported]) -> bool:
    """Whether what stands before an exception are reports of other ranks that they lost a connection."""
    before = [said for said in failures if said.source == one.source and said.order < one.order]
    lost = [said for said in before if said.failure.kind in ("store", "closed")]
    others = {said.failure.rank for said in lost}
    return bool(lost) and bool(one.ranks) and None not in others and not others & one.ranks and all(
        said in lost or said.failure.kind == "exit" for said in before
    )  # fmt: skip


def merely_code(code: str) -> bool:
    """Whether a process ended by itself with a code of its own: a signal says more than words before it."""
    return 0 < (whole(code.rpartition(" ")[2]) or 0) < 126


def _all(one: Quote) -> str:
    return " ".join([one.text, *one.behind]) if _uncaught(one) else one.text


def _uncaught(one: Quote) -> bool:
    """C++'s word for an exception that nobody caught, with what it says."""
    return one.text.startswith("terminate called") and any("what():" in line for line in one.behind)


def _raised(one: Quote) -> bool:
    return _uncaught(one) or signals.EXCEPTION.search(one.text) is not None


def _argued(one: Quote) -> bool:
    return ARGUMENTS.search(one.text) is not None


def _grave(one: Quote) -> bool:
    return _GRAVE.search(one.about) is not None


def _before_all(one: Quote, failures: Sequence[Reported]) -> bool:
    """Whether a line stands before all failures; of another file that is told of launchers' words alone."""
    return all(
        one.order < said.order if one.source == said.source else said.failure.kind in ("exit", "cancelled")
        for said in failures
    )


def _ends(job: Job) -> List[Tuple[int, int]]:
    """Source and line of each word that a process ended, or was told to."""
    said = [(one.source, one.last) for one in job.quotes if one.kind in (signals.DEATH, signals.ORDER)]
    return said + [(one.source, one.order) for one in job.failures if one.failure.kind in ("exit", "cancelled")]


def _ended_after(one: Quote, ends: Sequence[Tuple[int, int]]) -> bool:
    return any(source != one.source or order > one.order for source, order in ends)
