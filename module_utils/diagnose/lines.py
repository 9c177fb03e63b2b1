# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Normalise lines of a log: find NCCL's records, their process and their time behind what others have put before them.

NCCL writes ``HOST:PID:TID [DEVICE] NCCL INFO TEXT`` and, before WARN, ``[DATE TIME]`` (2.26 and later) and FILE:LINE
(src/debug.cc of NVIDIA/nccl). Launchers (mpirun --tag-output, srun --label, torchrun, pdsh, Ray), collectors (Docker's
JSON, Kubernetes) and people (Markdown quotes, line numbers) put their marks before a line. Processes that share a pipe
tear each other's lines.
"""

from __future__ import annotations

import json
import re
from typing import List, Match, NamedTuple, Optional, Sequence

# NCCL's buffer has 1,024 to 4,096 bytes; the rest of a longer line is not read.
LONGEST = 16384
# Characters before " NCCL LEVEL" that are read, from the begin and from the end.
_BEGIN, _END = 400, 800

MARK = re.compile(r" NCCL (VERSION|WARN|ATTN|INFO|ABORT|TRACE|CALL) ?")
_HEAD = re.compile(
    r"(?:(?P<host>[^\s:]{0,255})(?::(?:(?P<pid>\d{1,10})(?::(?P<tid>\d{1,10}))?|"
    r"[A-Za-z<*][^\s:]{0,19}:[A-Za-z<*][^\s:]{0,19}))? )?\[(?P<device>-?\d{1,10})\](?: [\d.]{1,24})?"
    r"(?: (?P<place>[\w/.+-]{1,300}:\d{1,7})(?: \([^)]{0,120}\))?| [A-Za-z_][\w:~]{1,120}(?:\(\))?, \d{1,7})?$"
)
# Heads of which a part is missing: the device, or all but the place; plugins in C++ print a function as place.
_NO_DEVICE = re.compile(
    r"(?P<host>[^\s:]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})"
    r"(?: (?P<place>[\w/.+-]{1,120}\.(?:cc|h|cpp|c|cu):\d{1,7})(?: \([^)]{0,120}\))?)?$"
)
_PLACE = re.compile(r"(?:^|\s)(?P<place>[\w/.+-]{1,120}\.(?:cc|h|cpp|c|cu):\d{1,7})$")
_FUNCTION = re.compile(
    r"(?:^|\s)(?:(?:int|void|bool|size_t|\w{0,20}[rR]esult_t) )?(?P<place>[\w:~]{2,120}(?:\([^()]{0,160}\))?:\d{1,7})$"
)
# Builds of sites: ``[RANK/RANKS][TIME] [FILE:LINE] [HOST:pid=PID]``.
_SITE = re.compile(
    r"(?:\[(?P<place>[\w/.+-]{1,120}:\d{1,7})\] ?)?\[(?P<host>[\w.-]{1,255}):(?:pid=)?(?P<pid>\d{1,10})\]$"
)
_SITE_RANK = re.compile(r"(?:^|[\s:])\[(\d{1,7})/\d{1,7}\]")
_STUCK_RANK = re.compile(r"\[(?P<rank>\d{1,7})\](?P<host>[\w.-]{1,255})$")
_NAME = re.compile(r"[\w.-]{1,255}$")
_ODD = re.compile(r"[|@/\x1b)>\]]")
# Rank of the job, or task of the step, in a launcher's prefix.
RANK = re.compile(
    r"\[rank ?(\d{1,7})\]|\[\d{1,7},(\d{1,7})\]<std(?:out|err)>:|\[[\w.-]{1,120}@\d{1,10},(\d{1,7})\]<std|"
    r"(?:^|F )(\d{1,7}): |(?:^|F )\[(\d{1,7})\] ?$|\[default(\d{1,4})\]:"
)
CLOCK = re.compile(
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[ T_](?P<time>\d\d:\d\d:\d\d)|"
    r"[\[ ]?[EFWI](?P<day>\d{3,4}) (?P<glog>\d\d:\d\d:\d\d)"
)
# Time of a collector or of syslog, with the host and program of that.
_STAMP = re.compile(
    r"^(?:(?:\d{4}[-/]\d\d[-/]\d\d[ T][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)? (?:- |(?:std(?:out|err) )?[FP] )?|"
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} )(?:[\w.-]{1,120} [\w./-]{1,60}\[\d{1,10}\]: )?){1,2}"
)
# Ray appends this to one of several similar lines.
_REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\](?: \(Ray deduplicates logs [^\n]*)?")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,12}[A-Za-z]")
_QUOTE = re.compile(r"^(?:> ?){1,4}|^\s{0,4}`{1,3}|`{1,3}\s*$")
_LINK = re.compile(r"\[([^\]\[]{1,80})\]\(https?://[^)\s]{1,300}\)")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'"), ("&amp;", "&"))
# Keys of a JSON object that hold the line of a log.
_WRAPPED = ("log", "message", "msg", "textPayload", "text")
_NUMBERED = re.compile(rb"\s{0,6}(\d{1,7})(?: \| ?|\t|  )")
_CONSECUTIVE = 4


class Head(NamedTuple):
    """Writer of a record. pid, tid, device: None where the line has none.   place: FILE:LINE of a warning.

    rank: of the job, from a launcher's prefix.   time: ``2026-11-28 04:06:17``; "" where the line has none.
    """

    host: str = ""
    pid: Optional[int] = None
    tid: Optional[int] = None
    device: Optional[int] = None
    place: str = ""
    rank: Optional[int] = None
    time: str = ""


class Record(NamedTuple):
    """A record of NCCL. level: INFO, WARN, ...; text: without head and trailing blanks."""

    head: Head
    level: str
    text: str


def decode(line: bytes) -> str:
    """Return the text of a line without colours, quote marks, links, entities and Ray's counts. Reads LONGEST bytes."""
    if line[:1] == b"{":
        line = _unwrap(line)
    text = line[:LONGEST].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if "x across cluster]" in text:
        text = _REPEATED.sub("", text)
    if text[:1] == ">" or "`" in text[:7] or text[-1:] == "`":
        text = _QUOTE.sub("", text)
    if "](http" in text:
        text = _LINK.sub(r"\1", text)
    if "&" in text:
        for entity, char in _ENTITIES:
            text = text.replace(entity, char)
    return text


def _unwrap(line: bytes) -> bytes:
    """Return the line that a collector of logs has put into a JSON object; other lines unchanged."""
    try:
        wrapped = json.loads(line[:LONGEST])
    except (ValueError, RecursionError):
        return line
    text = next((wrapped[key] for key in _WRAPPED if isinstance(wrapped.get(key), str)), None)
    time = "%s F " % wrapped["time"] if isinstance(wrapped.get("time"), str) else ""
    plain = time + str(text).rstrip().replace("\n", " ")
    return line if text is None else plain.encode("utf-8", "replace")


def numbered(lines: Sequence[bytes]) -> bool:
    """Return whether the first lines of a file carry consecutive line numbers of an editor."""
    found = [int(match.group(1)) for match in map(_NUMBERED.match, lines[:_CONSECUTIVE]) if match is not None]
    return len(found) == _CONSECUTIVE and found == list(range(found[0], found[0] + _CONSECUTIVE))


def without_number(line: bytes) -> bytes:
    """Return the line without an editor's line number."""
    return _NUMBERED.sub(b"", line, count=1) if _NUMBERED.match(line) else line


def records(line: str) -> List[Record]:
    """Return NCCL's records of a line: usually one, several where processes tore each other's lines."""
    found: List[Record] = []
    marks = list(MARK.finditer(line))
    begin = 0
    for mark, after in zip(marks, [*marks[1:], None]):
        end = len(line) if after is None else _head_before(line, mark.end(), after.start())
        found.append(Record(head(line[begin : mark.start()]), mark.group(1), line[mark.end() : end].rstrip()))
        begin = end
    return found


def _head_before(line: str, begin: int, end: int) -> int:
    """Return where the head of the next record begins that ends a part of a line; its end where it has none."""
    start = max(end - _END, begin)
    match = _HEAD.search(line[:end], start) or _NO_DEVICE.search(line[:end], start)
    name = _NAME.search(match.group("host") or "") if match is not None else None
    return end if match is None else match.start() + (name.start() if name else 0)


def head(before: str) -> Head:
    """Parse what stands before `` NCCL LEVEL`` on a line."""
    before = before.rstrip()
    if len(before) > _BEGIN + _END:
        before = "%s %s" % (before[:_BEGIN], before[-_END:])
    site = _SITE.search(before)
    if site is not None:
        rank = _SITE_RANK.search(before)
        number = int(rank.group(1)) if rank else launcher_rank(before)
        place = site.group("place") or ""
        return Head(site.group("host"), int(site.group("pid")), place=place, rank=number, time=clock(before))
    match = _HEAD.search(before) or _NO_DEVICE.search(before)
    if match is not None:
        return _head_of(match, before[: match.start()])
    bare = _PLACE.search(before) or _FUNCTION.search(before)
    prefix = before[: bare.start()].rstrip() if bare else before
    rest = head(prefix) if bare and prefix.endswith("]") else Head(rank=launcher_rank(before), time=clock(before))
    return rest._replace(place=bare.group("place") if bare else "")


def _head_of(match: Match[str], prefix: str) -> Head:
    found = match.groupdict()
    host, pid, tid = (found.get(name) or "" for name in ("host", "pid", "tid"))
    stuck, name = _STUCK_RANK.match(host), _NAME.search(host)
    if stuck:
        host = stuck.group("host")
    elif name and _ODD.search(host):
        host = name.group()
    if host.isdigit() and not tid:
        # A host name of digits alone is the rest of PID:TID.
        host, pid, tid = ("", host, pid) if pid else ("", "", "")
    pid_, tid_, device = (int(text) if text else None for text in (pid, tid, found.get("device")))
    rank = int(stuck.group("rank")) if stuck else launcher_rank(prefix)
    return Head(host.lstrip("\u2026"), pid_, tid_, device, found.get("place") or "", rank, clock(prefix))


def launcher_rank(prefix: str) -> Optional[int]:
    """Return the rank in a launcher's prefix."""
    match = RANK.search(prefix[:_BEGIN]) if prefix else None
    return int(next(group for group in match.groups() if group is not None)) if match else None


def clock(text: str) -> str:
    """Return the time stamp at the begin of a text, as ``2026-11-28 04:06:17`` or ``1128 04:06:17``; "" without one."""
    match = CLOCK.search(text[:200]) if len(text) >= 13 else None
    if match is None:
        return ""
    if match.group("day"):
        return "%s %s" % (match.group("day").zfill(4), match.group("glog"))
    return "%s %s" % (match.group("date").replace("/", "-"), match.group("time"))


def without_stamp(text: str) -> str:
    """Return a line without the time that a collector or syslog has put before it."""
    return _STAMP.sub("", text, count=1) if text[:1].isdigit() or text[3:4] == " " else text


def same_day(time: str) -> str:
    """Return ``MMDD HH:MM:SS`` of a time stamp of either form, which are compared by that."""
    return time if len(time) == 13 else "%s%s %s" % (time[5:7], time[8:10], time[11:])
