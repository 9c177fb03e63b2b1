# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of NCCL_DEBUG output, out of whatever a launcher has put before them.

A line is ``PREFIX HOST:PID:TID [DEVICE] PLACE NCCL LEVEL TEXT``. NCCL prints no subsystem; who publishes a log leaves
out the TID, the device, or the begin of the host's name. The prefix is of torchrun
(``[default0]:``, ``[rank3]:``), of srun --label (``3: ``), of a container's log (``2025-11-24T03:20:21.0Z stdout F ``),
of mpirun (``[1,3]<stdout>:``), of pdsh (``node1: ``), of Ray, or several of them, and since 2.26 NCCL puts a time
before a warning; a build for debugging puts ``FUNCTION, LINE`` in the place of PLACE. Processes that share a pipe tear
each other's lines: the record is what stands behind the last head, and what stands before it is no part of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence

# No line of NCCL's is longer (its buffer has 1,024 to 4,096 bytes, and prefixes are short); the rest is not kept.
LONGEST = 16384
# Characters before " NCCL LEVEL" that are looked at, from the begin and from the end of what is there.
_BEGIN, _END = 500, 1000
LEVELS = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE", "CALL")

_MARK = re.compile(r" NCCL (%s) ?" % "|".join(LEVELS))
# What stands between the prefix and " NCCL LEVEL". Host and process are left out by who publishes a log.
_HEAD = re.compile(
    r"(?:(?P<host>[^\s:]{0,255})(?::(?:(?P<pid>\d{1,10})(?::(?P<tid>\d{1,10}))?"
    r"|[A-Za-z<*][^\s:]{0,19}:[A-Za-z<*][^\s:]{0,19}))? )?"
    r"\[(?P<device>-?\d{1,10})\]"
    r"(?: [\d.]{1,24})?(?: (?P<place>[\w/.+-]{1,300}:\d{1,7}(?: \([^)]{0,120}\))?)"
    # Builds for debugging print function and line.
    r"| [A-Za-z_][\w:~]{1,120}(?:\(\))?, \d{1,7})?$"
)
# A bare head of a warning that was torn apart, or of NCCL CALL.
_PROCESS = re.compile(r"(?P<host>[^\s:]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})$")
# A head of a warning without the device.
_NO_DEVICE = re.compile(
    r"(?P<host>[^\s:]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?P<place>[\w/.+-]{1,120}\.(?:cc|h|cpp|c|cu):\d{1,7}(?: \([^)]{0,120}\))?)$"
)
# A head of which all but the place was cut off.
_PLACE = re.compile(r"(?:^|\s)(?P<place>[\w/.+-]{1,120}\.(?:cc|h|cpp|c|cu):\d{1,7})$")
# Plugins in C++ print the function in the place of a file.
_FUNCTION = re.compile(r"(?:^|\s)(?P<place>(?:[\w:]{1,60} )?(?P<name>[\w:~]{2,120})(?:\([^()]{0,160}\))?:\d{1,7})$")
# Sites that build NCCL themselves write ``[RANK/RANKS][TIME] [FILE:LINE] [HOST:pid=PID]`` and the like.
_SITE = re.compile(
    r"(?:\[(?P<place>[\w/.+-]{1,120}\.(?:cc|h|cpp|c|cu):\d{1,7})\] ?)?"
    r"\[(?P<host>[\w.-]{1,255}):(?:pid=)?(?P<pid>\d{1,10})\]$"
)
_RANK_OF = re.compile(r"(?:^|[\s:])\[(\d{1,7})/\d{1,7}\]")
# A host's name, behind another record that no line end parted from it.
_NAME = re.compile(r"[\w.-]+$")
_ODD = re.compile(r"[|@/\x1b)>\]]")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,12}m")
_RANK = re.compile(
    r"\[rank ?(\d{1,7})\]|\[\d{1,7},(\d{1,7})\]<std(?:out|err)>:|(?:^|F )(\d{1,7}): |(?:^|F )\[(\d{1,7})\] $"
)
_STUCK_RANK = re.compile(r"\[(?P<rank>\d{1,7})\](?P<host>[\w.-]{1,255})$")
_CONTAINER_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?= )")
_NCCL_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d{1,9})?)\]?")


# Keys of a JSON object that hold a line of a log.
_WRAPPED = ("log", "message", "msg", "textPayload", "text")


@dataclass(frozen=True)
class Head:
    """Who wrote a line.

    host, pid, tid: as NCCL printed them; "" and None where the line does not say.
    device: the CUDA device of the thread; -1 and arbitrary numbers where the thread had none.
    place: of a warning, ``transport/net_ib.cc:1297``; else "".
    rank: what the launcher's prefix numbers: rank of the job (torchrun, mpirun) or task of the step (srun).
    time: as it stands in the line, ``2025-11-24 03:20:21``; "" where there is none.
    clock: whose time it is: "container", "nccl" or "". Times of two clocks are not compared.
    """

    host: str = ""
    pid: Optional[int] = None
    tid: Optional[int] = None
    device: Optional[int] = None
    place: str = ""
    rank: Optional[int] = None
    time: str = ""
    clock: str = ""


@dataclass(frozen=True)
class Record:
    """One line of NCCL's. level: one of LEVELS. text: what it says."""

    head: Head
    level: str
    text: str


def unwrapped(line: bytes) -> bytes:
    """The line that a collector of logs has put into a JSON object, as Docker does; the line as it is of others."""
    try:
        wrapped = json.loads(line)
    except ValueError:
        return line
    text = next((wrapped[key] for key in _WRAPPED if isinstance(wrapped.get(key), str)), None)
    if text is None:
        return line
    time = wrapped.get("time")
    stamp = "%s F " % time if isinstance(time, str) else ""
    plain = stamp + str(text).strip().replace("\n", " ")
    return plain.encode("utf-8", "replace")


def records(line: str) -> List[Record]:
    """What NCCL wrote on a line, usually one record; several where processes tore each other's lines; none."""
    marks = list(_MARK.finditer(line))
    found = []
    begin = 0
    for mark, after in zip(marks, marks[1:] + [None]):
        before = line[begin : mark.start()]
        end = len(line)
        if after is not None:
            # The next record's head is no part of this one's text.
            inner = line[mark.end() : after.start()]
            end = mark.end() + len(inner) - len(_own(inner))
        found.append(Record(head(before), mark.group(1), line[mark.end() : end].rstrip()))
        begin = end
    return found


def _own(before: str) -> str:
    """The head at the end of a text, without the blank before it, or the record's end that sticks to its host."""
    match = _HEAD.search(before) or _PROCESS.search(before)
    if match is None:
        return ""
    name = _NAME.search(match.group("host") or "")
    return before[match.start() + (name.start() if name else 0) :]


def head(before: str) -> Head:
    """What stands before `` NCCL LEVEL`` on a line."""
    before = before.rstrip()
    if "\x1b" in before:
        before = _COLOUR.sub("", before)
    if len(before) > _BEGIN + _END:
        # What a launcher puts there is at the begin, and what NCCL does at the end.
        before = "%s %s" % (before[:_BEGIN], before[-_END:])
    site = _SITE.search(before)
    if site is not None:
        rank = _RANK_OF.search(before)
        return Head(
            site.group("host"),
            int(site.group("pid")),
            place=site.group("place") or "",
            rank=int(rank.group(1)) if rank else _rank(before),
            **_time(before),
        )
    match = _HEAD.search(before) or _PROCESS.search(before) or _NO_DEVICE.search(before)
    if match is None:
        bare = _PLACE.search(before) or _FUNCTION.search(before)
        prefix = before[: bare.start("place")].rstrip() if bare else ""
        own = _HEAD.search(prefix) if prefix.endswith("]") else None
        if bare is not None and own is not None:
            return replace(head(prefix), place=bare.group("place"))
        return Head(place=bare.group("place") if bare else "", rank=_rank(before), **_time(before))
    said = match.groupdict()
    stuck = _STUCK_RANK.match(said["host"] or "")
    if stuck:
        # The launcher's number of the rank stands before the host without a blank.
        said["host"] = stuck.group("host")
    elif said["host"] and _ODD.search(said["host"]):
        # A launcher's label without a blank behind it.
        name = _NAME.search(said["host"])
        said["host"] = name.group() if name else said["host"]
    prefix = before[: match.start()]
    device = said.get("device")
    host, pid, tid = (said.get(name) or "" for name in ("host", "pid", "tid"))
    if host.isdigit() and not tid:
        # No host has a name of numbers alone: it was cut off, and what is left is PID:TID.
        host, pid, tid = ("", host, pid) if pid else ("", "", "")
    return Head(
        host.lstrip("\u2026"),
        int(pid) if pid else None,
        int(tid) if tid else None,
        int(device) if device else None,
        said.get("place") or "",
        int(stuck.group("rank")) if stuck else _rank(prefix),
        **_time(prefix),
    )


def _rank(prefix: str) -> Optional[int]:
    match = _RANK.search(prefix) if prefix else None
    return int(next(group for group in match.groups() if group is not None)) if match else None


def _time(prefix: str) -> Dict[str, str]:
    if len(prefix) < 19:
        return {}
    match = _CONTAINER_TIME.search(prefix)
    if match:
        return {"time": match.group(), "clock": "container"}
    match = _NCCL_TIME.search(prefix)
    return {"time": "%s %s" % match.groups(), "clock": "nccl"} if match else {}


# The number of a line, as editors and viewers print it: what stands behind it is the line.
_NUMBERED = re.compile(rb"\s{0,6}(\d{1,7})(?: \| ?|\t|  )")
# Lines at a source's begin whose numbers follow on each other.
_IN_ORDER = 4


def numbered(found: Sequence[bytes]) -> bool:
    """Whether lines have been copied with their numbers."""
    said = [_NUMBERED.match(line) for line in found[:_IN_ORDER]]
    first = [int(match.group(1)) for match in said if match is not None]
    return len(first) == _IN_ORDER and first == list(range(first[0], first[0] + _IN_ORDER))


def without_number(line: bytes) -> bytes:
    """A line without its number, where it has one."""
    match = _NUMBERED.match(line)
    return line if match is None else line[match.end() :]
