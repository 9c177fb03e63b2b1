# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which ranks of a job a log shows, and whether anything in it waits for one that it does not show.

That a rank is not in a log proves nothing of the rank: logs are cut, and files are left out.
"""

from __future__ import annotations

import re
from typing import Set

from . import signals, unstarted
from .failure_order import waited
from .job import Log
from .jobs import Job

_TIME = re.compile(r"[Tt]im(?:ed|e)[ -]?out|\b[Ww]aiting for\b")
# Of PyTorch's watchdog: the first collective of a process group is the one within which NCCL begins.
_LATER = re.compile(r" number (?!1$)\d+$")


def named(log: Log, job: Job) -> Set[int]:
    """Ranks of the job's largest communicator that lines name as their own, or that are all there are."""
    if job.world is None:
        return set()
    if job.rivals or len(job.world.began) + unnamed(job) == job.world.ranks:
        return set(range(job.world.ranks))
    labels = {one.launcher_rank for one in job.processes}
    own = {process: job.ranks_of(process) for process in job.processes if process.launcher_rank is not None}
    if any(ranks and ranks != [process.launcher_rank] for process, ranks in own.items()):
        # The launcher numbers nodes or tasks, and not ranks.
        labels = set()
    said = labels | log.programs.ranks | {one.failure.rank for one in job.failures}
    own = set(job.world.began) | set(unstarted.files(log, job))
    return {rank for rank in said if rank is not None and rank < job.world.ranks} | own


def unnamed(job: Job) -> int:
    """How many processes of the only communicator do not say which rank they are; 0 where that is not certain."""
    world = job.world
    if world is None or len(job.communicators) > 1:
        return 0
    own = {process.key for process in world.began.values()}
    signed = [one for one in job.processes if one.host and one.key[1] is not None]
    others = [one for one in signed if one.key not in own and one.launcher_rank is None]
    here = len(world.began) + len(others)
    if len(own) < len(world.began) or here > world.ranks:
        # Processes of several ranks, or of several starts.
        return 0
    places = {(one.host, gpu) for one in signed for gpu in one.gpus}
    apart = len(places) == len(signed) and all(len(one.gpus) == 1 for one in signed)
    return len(others) if apart or here == world.ranks else 0


def here(log: Log, job: Job) -> int:
    """How many ranks of the job's largest communicator have lines in this log."""
    began = len(job.world.began) if job.world is not None else 0
    return max(len(named(log, job)), began + unnamed(job))


def waits(log: Log, job: Job) -> str:
    """What proves that ranks wait for one that has not come; "" where nothing does."""
    root = sorted(note.text for process in job.processes for note in process.notes if note.kind == "root")
    if root:
        return "the root of its bootstrap reports: %s" % root[-1]
    if len({process.key for one in job.communicators for process in one.began.values()}) < 2:
        # The log of one rank never tells of the others.
        return ""
    if any(one.failure.kind == "watchdog" and _LATER.search(one.failure.code) for one in job.failures):
        return ""
    for one in job.failures:
        if waited(one) or _TIME.search(one.failure.text):
            return "others waited for it until a timeout"
    if any(process.retries for process in job.processes):
        return "others still try to connect"
    if any(one.kind == signals.WAITS and _TIME.search(one.text) for one in job.quotes):
        return "others wait"
    return ""
