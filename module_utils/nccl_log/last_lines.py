# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where in a small log each rank said its last: who fell silent first, where all lines name their rank."""

from __future__ import annotations

import re
from collections import Counter
from typing import Dict, List, Optional, Tuple

from . import lines
from .job import Log
from .jobs import Job, numbers, of_ranks

# More ranks are no list that somebody reads.
_RANKS = 32
_LEVEL = re.compile(rb" NCCL (?:INFO|WARN) ")
# Whose a program's line is, by what stands before its words alone: what it says of other ranks stands behind.
_RANK = re.compile(
    r"^.{0,80}?(?:\[rank ?(\d{1,6})\]|\[\d{1,7},(\d{1,6})\]<| - rank ?(\d{1,6}) - )|"
    r"^ {0,6}(?:rank ?(\d{1,6})|(\d{1,6})): "
)
# Host, process, and its CUDA device where it has several ranks -> rank.
_Ranks = Dict[Tuple[str, Optional[int], Optional[int]], Optional[int]]
_TIME = re.compile(r"^.{0,80}?\b(\d\d:\d\d:\d\d)\b")


def told(log: Log, job: Job) -> List[str]:
    """A sentence; none where fewer than two ranks sign their lines, or where the job came to its end."""
    if not log.small.kept:
        return []
    last: Dict[int, Tuple[int, int, str]] = {}
    known = {process.key[:2]: process for process in job.processes}
    # The begin of a rank may be cut out of a log that has nccl-tests' list of them.
    ranks: _Ranks = {}
    if not log.table.twice:
        listed = Counter((one.host, one.pid) for one in log.table.ranks.values())
        for rank, one in log.table.ranks.items():
            # A process with a thread for each GPU signs with the GPU.
            ranks[one.host, one.pid, one.device if listed[one.host, one.pid] > 1 else None] = rank
    for (host, pid), process in known.items():
        rank_of = job.rank_of(process)
        if rank_of is not None or (host, pid, None) not in ranks:
            ranks[host, pid, None] = rank_of
        for device in process.gpus if len(process.buses) > 1 else ():
            at = process.rank_at(device)
            if at is not None:
                ranks[host, pid, device] = at
    unsigned = (-1, 0)
    for source, order, line in log.small.kept:
        rank = _rank(line[: lines.LONGEST], ranks)
        if rank is None and line.strip() and _LEVEL.search(line) is None:
            unsigned = source, order
        if rank is not None:
            time = _TIME.match(line[:200].decode("utf-8", "replace"))
            last[rank] = source, order, time.group(1) if time is not None else ""
    many = len(log.sources) > 1
    worlds = {job.world.ranks} if job.world is not None else set(log.programs.worlds)
    # Who prints a number of ranks may print any.
    world = min(max(worlds), _RANKS + 1) if len(worlds) == 1 else 0
    silent = sorted(set(range(world)) - set(last))
    if not 1 < len(last) + len(silent) <= _RANKS or not last:
        return []
    said = []
    for rank, (source, order, clock) in sorted(last.items(), key=lambda one: one[1]):
        place = "line %d" % order + (" of file %d" % source if many else "") + (", %s" % clock if clock else "")
        said.append("%s (%s)" % (of_ranks(numbers([rank])), place))
    # A line without a mark may be of any of them.
    signed = unsigned < min(last.values())[:2]
    front = ", in the order in which they fell silent" if signed else ", the earliest first"
    front += "" if signed else " (lines that name no rank follow it, and may be its own)"
    text = "the last line of each rank%s: %s" % ("" if many else front, ", ".join(said))
    text += "; no line is signed by %s" % of_ranks(numbers(silent)) if silent else ""
    return [text + ("" if many else "; the log ends with line %d" % log.lines)]


def _rank(line: bytes, ranks: _Ranks) -> Optional[int]:
    level = _LEVEL.search(line)
    if level is not None:
        head = lines.head(line[: level.start()].decode("utf-8", "replace"))
        own = ranks.get((head.host or "", head.pid, head.device))
        return own if own is not None else ranks.get((head.host or "", head.pid, None), head.rank)
    match = _RANK.match(line[:200].decode("utf-8", "replace"))
    return int(next(group for group in match.groups() if group is not None)) if match is not None else None
