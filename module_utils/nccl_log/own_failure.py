# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a program of the job failed by itself, before anything else: then that is the cause, and the rest follows.

What ends a job is not what it ended for: exit codes, orders to end, lost connections and timeouts come after it.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from . import signals
from .failure_checks import FOLLOWS
from .job import Reported
from .jobs import Job
from .quotes import Quote

# Kinds of failures beside FOLLOWS that are none.
_HARMLESS = ("event", "fallback", "value", "ras", "gdrcopy", "rccl_host", "libfabric", "merely_tried", "hca_skipped")
# Of these it does not matter whether they stand before the program's own words.
_ANYWHERE = ("exception", "test", "consequence", "left", "progress", *_HARMLESS)
# What an exception says that only reports another process's end, or a wait for one.
_OF_OTHERS = re.compile(
    r"closed by (?:remote )?peer|reset by peer|[Bb]roken ?[Pp]ipe|recvValue failed|sendBytes failed|EOFError|"
    r"IncompleteRead|"
    r"ChildFailedError|SignalException|CalledProcessError|returned non-zero exit|ActorDied|ActorUnavailable|RayActor|"
    r"WorkerCrashed|RayTaskError|EngineDead|[Ee]ngine ?[Cc]ore|WorkerProc|communicator was aborted|NCCL [Ee]rror|"
    r"\bnccl[A-Z]|"
    r"DistBackendError|DistNetworkError|DistStoreError|[Tt]imed ?out|Timeout|Cancelled|SystemExit|[Tt]erminated|"
    r"\bdied\b|"
    r"Rendezvous|[Ss]tore\b|[Cc]onnection (?:refused|reset|closed|aborted|error)|ConnectionError|"
    r"ProcessRaisedException|"
    r"ProcessExited|Test NCCL failure|[Gg]loo|process group watchdog|MPI_ERRORS_ARE_FATAL|TerminatedWorkerError|"
    r"already in use|EADDRINUSE|raylet|[Hh]eartbeat"
)
# What was caught and told, and went on.
_CAUGHT = re.compile(
    r"Exception ignored|\bWARN(?:ING)?\b|\b[Ww]arning\b|\[W\d{0,4}[ .]|[Rr]etry|fall(?:s|ing)? ?back|deprecat|optional|"
    r"NOT INSTALLED|not installed|\bINFO\b|git\b"
)
_ARGUMENTS = re.compile(
    r"error: (?:unrecognized arguments|the following arguments|argument |ambiguous option|expected )"
)
# Classes of lines that a program ends with.
_GRAVE = re.compile(
    r"UCX|C\+\+|check in the program|call of CUDA|CUDA library|GPU's memory|memory of the host|library or module|"
    r"may not do this|file system is full|limit of the process|Triton|NVSHMEM|AMD's runtime|EFA|CUDA is not ready|"
    r"driver does not reach|JAX|Horovod|DeepEP"
)


def own_failure(job: Job) -> Optional[Tuple[Quote, bool]]:
    """The line by which a program says that it failed by itself, and whether that is proven; None where none does."""
    failures = [one for one in job.failures if one.failure.kind not in _ANYWHERE]
    if any(one.failure.kind not in FOLLOWS for one in failures):
        return None
    said = [one for one in job.quotes if one.kind == signals.ERROR and not one.nccl]
    said = [one for one in said if not _OF_OTHERS.search(one.text) and not _CAUGHT.search(one.text)]
    known = {" ".join(one.failure.text[:150].split()) for one in job.failures}
    said = [one for one in said if " ".join(one.text[:150].split()) not in known and _before_all(one, failures)]
    ends = _ends(job)
    for proves in (_raised, _argued, _grave):
        found = [one for one in said if proves(one) and (one.calls or _ended_after(one, ends))]
        if found:
            return found[0], True
    found = [one for one in said if _ended_after(one, ends)]
    return (found[-1], False) if found and failures else None


def _raised(one: Quote) -> bool:
    return signals.EXCEPTION.search(one.text) is not None


def _argued(one: Quote) -> bool:
    return _ARGUMENTS.search(one.text) is not None


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
