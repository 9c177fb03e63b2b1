# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ranks whose own file is given and has no line of NCCL's, while others wait for them in NCCL's bootstrap."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Dict, List

from .job import Log
from .jobs import Job

_OF_FILE = re.compile(r"rank[-_. ]?0{0,6}(\d{1,6})(?!\d)", re.IGNORECASE)
_IN_LINE = re.compile(rb"\brank[-_:= ]{0,2}(\d{1,6})\b", re.IGNORECASE)


def files(log: Log, job: Job) -> Dict[int, int]:
    """Rank of the job's largest communicator that has not begun it -> number of the source that is its own."""
    if job.world is None or len(log.sources) < 2:
        return {}
    spoke = {bisect_left(log.begins, process.order) for process in log.processes.values()}
    found: Dict[int, List[int]] = {}
    for source in range(1, len(log.sources) + 1):
        rank = _rank(log, source) if source not in spoke else -1
        if 0 <= rank < job.world.ranks and rank not in job.world.began:
            found.setdefault(rank, []).append(source)
    return {rank: sources[0] for rank, sources in found.items() if len(sources) == 1}


def last_line(log: Log, source: int) -> str:
    """What a source says last, of a small log."""
    said = [line for of, _order, line in log.small.kept if of == source and line.strip()]
    return said[-1].decode("utf-8", "replace").strip()[:200] if said else ""


def _rank(log: Log, source: int) -> int:
    """The rank whose file it is: by its name, else by its lines where they name one alone; -1 where it is not told."""
    named = set(_OF_FILE.findall(log.sources[source - 1].rpartition("/")[2]))
    if not named:
        lines = [line for of, _order, line in log.small.kept if of == source]
        named = {rank.decode() for line in lines for rank in _IN_LINE.findall(line[:200])}
    return int(named.pop()) if len(named) == 1 else -1
