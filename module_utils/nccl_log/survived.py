# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Calls within NCCL that returned an error which it took without failing, and connections that were never made."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from . import lines
from .job import Log, Process
from .jobs import Job, names
from .process import Call

# Files whose calls return to the program: after an error there it did not go on.
_TO_PROGRAM = re.compile(r"(?:^|/)(?:init|group|enqueue|collectives)\.(?:cc|cpp|cu):")
# Calls that connect; those of the transports themselves move data, too.
_CONNECTS = re.compile(r"(?:^|/)transport(?:/|\.)")
_CONNECTS_ALONE = re.compile(r"(?:^|/)transport(?:/generic)?\.(?:cc|cpp|cu):")
_LEVEL = re.compile(rb" NCCL (?:INFO|WARN) ")
# Lines on either side that are looked through for the thread's own, and characters that are told of one.
_NEAR, _SHOWN = 64, 120


def calls(job: Job, process: Process) -> Tuple[Call, ...]:
    """Calls after which each of its communicators got ready all the same (Init COMPLETE)."""
    own = set(process.pointers.values())
    ready = bool(own) and all(len(one.done) == one.ranks for one in job.communicators if one.key in own)
    if not process.calls or not ready or process.ended == "Abort":
        return ()
    before = tuple(call for call in process.calls if call.early)
    return () if any(_TO_PROGRAM.search(call.place) for call in before) else before


def unmade(job: Job) -> bool:
    """Whether calls failed that connect ranks, so that connections which lines announce were not all made."""
    # An HCA's word on an operation is of data that moves.
    if any(one.failure.kind == "completion" for one in job.failures):
        return False
    if not any(one.done for one in job.communicators):
        return any(_CONNECTS.search(call.place) for one in job.processes for call in one.calls)
    # Since 2.22 ranks are connected when they are first needed.
    return any(call.late and _CONNECTS_ALONE.search(call.place) for one in job.processes for call in one.calls)


def told(log: Log, job: Job) -> List[str]:
    """Of each place a sentence: how often, by whom, and between which lines of the same thread."""
    of: Dict[str, List[Tuple[Call, Process]]] = {}
    for process in job.processes:
        for call in calls(job, process):
            of.setdefault("%s -> %d" % (call.place, call.result), []).append((call, process))
    said = []
    for what, found in list(of.items())[:4]:
        text = "a call of NCCL returned an error, and NCCL continued (Init COMPLETE comes after it): no failure: %s, %d"
        text = text % (what, len(found)) + " time%s, on %s" % (
            "" if len(found) == 1 else "s", names({job.who(process) for _call, process in found}, 4),
        )  # fmt: skip
        before, after = _around(log.small.kept, found[0][0])
        text += '; it belongs to the line before it, "%s"' % before if before else ""
        text += '; after it the same thread prints "%s"' % after if after else ""
        said.append(text)
    return said


def _around(kept: Sequence[Tuple[int, int, bytes]], call: Call) -> Tuple[str, str]:
    """What the thread of a call says in the lines right before and behind it."""
    at = next((number for number, (_source, order, _line) in enumerate(kept) if order == call.order), -1)
    if at < 0:
        return "", ""
    thread, _text = _parted(kept[at][2])
    found = []
    for near in (kept[max(at - _NEAR, 0) : at][::-1], kept[at + 1 : at + 1 + _NEAR]):
        own = (text for who, text in (_parted(line) for _source, _order, line in near) if who == thread)
        found.append(next((text for text in own if " -> " not in text or ":" not in text), "") if thread[1:] else "")
    return found[0], found[1]


def _parted(line: bytes) -> Tuple[Tuple[object, ...], str]:
    """Host, process and thread of a line of NCCL's, and its text."""
    level = _LEVEL.search(line[: lines.LONGEST])
    if level is None:
        return (), ""
    head = lines.head(line[: level.start()].decode("utf-8", "replace"))
    text = " ".join(line[level.end() :].decode("utf-8", "replace").split())
    return (head.host, head.pid, head.tid), text[:_SHOWN]
