# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read all lines of a log: those of NCCL, of nccl-tests, of RAS, and reports of programs, launchers and the kernel.

Lines that differ in digits alone, and that no row reads, are matched once and counted.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ..core.number import whole
from . import nccl_events, program_events, ras
from .events import Event, Group
from .facts import fold
from .facts import read as read_fact
from .formats import ReleaseEvidence
from .lines import LONGEST, Head, Record, clock, decode, launcher_rank, without_stamp
from .program_events import split_label
from .reader import StateLog, StateReader
from .state import Key
from .table import Table, read_row

# Forms of lines that are matched, those without a report that are remembered, and variables of command lines.
_FORMS, _QUIET, _TYPED = 100_000, 20_000, 256
# Processes up to which a pid of a launcher's line is looked up.
_LOOKED_UP = 4_096
# Lines behind ``Last error:`` of which one quotes NCCL: others may come between.
_ERROR_LINES = 4
_DIGITS = b"0123456789"
_HEADLESS = ("NCCL INFO ", "NCCL WARN ")
# Before NCCL's last error, as PyTorch and XLA quote it.
_QUOTING = ("Last error:", "log entry (may be unrelated) '")
_LAST_ERROR = re.compile(r"(?:^|[\s:\])])Last error: *$")
_CUDA = re.compile(r"NCCL version 2\.[\d.]{3,8}\+cuda(\d{1,2}\.\d{1,2})")
_VERSION = re.compile(r"(?:^|[^R])NCCL version (\d{1,2}\.\d{1,3}\.\d{1,3})(?!\.\d)")
_LIBRARY = re.compile(r"\b(?:libnccl\.so\.|nccl(?:-cu\d\d)?==)(2\.\d{1,3}\.\d{1,3})\b(?!\.\d)")
_RELEASES = ("CCL version", "libnccl", "nccl==", "nccl-cu", "nccl_version", "ROCm version", "HIP version")
_CODE = re.compile(r"\bnccl_version_code=(2\d{3,4})\b")
_RCCL = re.compile(r"\bRCCL version |\bHIP version ?:|\bROCm version ?:")
# NCCL's lines that have lost their head.
_BARE = re.compile(
    r"^(?:\S{1,60}:? )?(Using network \S{1,40}|NET/(?:IB|Socket|[A-Z]\w{2,20}) ?\S{0,4} ?: |"
    r"Channel \d{1,4}(?:/\d{1,4})? : )"
)
_MORE_HCAS = re.compile(
    r"\s{0,200}\[\d{1,4}\]\s?[\w.-]{1,128}:(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)\b"
)
# Advice to set a variable, and a comment, set none.
_TYPED_VARIABLE = re.compile(
    r"(?:^|(?<!with)(?<![Ss]et)(?<!use)(?<!using)(?<!setting)(?<!try)[\s$>+,=])"
    r"(?:export |-x |--env[= ]|-e )?(NCCL_[A-Z0-9_]{2,60})=((?:(?!,[A-Z_]{3,60}=)[^\s;'\"]){1,200})"
)
_FAILED = re.compile(
    r"\s{1,8}(?P<key>host|rank) {1,8}: (?:(?P<value>[\w.-]{1,120}))(?: \(local_rank: \d{1,5}\))?\s{0,8}$"
)
_TRACEBACK = "Traceback (most recent call last)"
_MARKS = tuple(mark.encode() for mark in program_events.MARKS)
# Events that only tell how far the job is.
_SILENT = frozenset(["noise", "step", "success", "waits", "launcher"])


class Log(StateLog):
    """Everything that is known of a log. table: of nccl-tests.   ras: reports of RAS.   binary: lines with zero bytes.

    last_step, last_success: lines by which a program shows progress.   typed: variables on command lines.
    rccl: it has lines of AMD's RCCL.   cut: warnings whose text is missing.
    evidence: of the release, by the forms of its messages, up to a line that names it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.ras = ras.Report()
        self.evidence = ReleaseEvidence()
        self.binary = self.last_step = self.last_success = self.cut = 0
        self.typed: Dict[str, str] = {}
        self.rccl = False


class Reader(StateReader):
    """Reads a whole log."""

    log: Log

    def __init__(self) -> None:
        super().__init__(Log())
        # Form of a line without a report -> its silent event, or "".
        self._quiet: Dict[bytes, str] = {}
        self._forms = 0
        self._named = False
        self._begin()

    def _begin(self) -> None:
        self._ras_left = self._error_lines = 0
        # The line that is read, with its time.
        self._stamped = ""
        # Label of a rank's lines -> whether its traceback counts.
        self._tracebacks: Dict[str, bool] = {}
        # Rank of an exception whose last error follows; -1 for one without a rank.
        self._last_error: Optional[int] = None
        self._last_rank: Optional[int] = None
        # A warning whose text stands in the next line.
        self._unfinished: Optional[Record] = None
        # Host and rank in torchrun's list of failures, whose lines precede the exit code.
        self._failed: Dict[str, str] = {}

    def source(self, name: str) -> None:
        super().source(name)
        self._begin()

    def _info(self, record: Record, line: bytes) -> None:
        self._unfinished = None
        super()._info(record, line)
        self._compare(record)

    def _warning(self, record: Record) -> None:
        super()._warning(record)
        self._unfinished = None if record.text else record
        self.log.cut += not record.text
        self._compare(record)

    def _with_host(self, key: Key) -> Key:
        """Return the key of a process, without the rest of another line that is glued to its host."""
        host, pid, _rank = key
        first = self._pids.get(pid, host)
        name, longer = sorted((first, host), key=len)
        if first == host or not name or not longer.endswith(name):
            return super()._with_host(key)
        self._pids[pid] = name
        self.log.state.rename((first, pid, None), (name, pid, None))
        return name, pid, None

    def _compare(self, record: Record) -> None:
        """Compare a record with NCCL's formats until a line names the release."""
        self._named = self._named or bool(self._last_process and self._last_process.versions)
        if not self._named:
            self.log.evidence.add(record.head.place, record.text)

    def _other(self, line: bytes) -> None:
        log = self.log
        form = line.translate(None, _DIGITS)[:LONGEST]
        known = self._quiet.get(form) if self._unfinished is None else None
        if known is not None and self._last_error is None and self._open is None and not self._ras_left:
            self._silent(known)
            return
        log.binary += b"\0" in line
        self._stamped = decode(line)
        text = without_stamp(self._stamped)
        if text.startswith(_HEADLESS):
            # Somebody has cut off all of NCCL's head.
            self._records(b" " + text.encode("utf-8", "replace"))
            return
        if self._unfinished is not None:
            record, self._unfinished = self._unfinished._replace(text=text.strip()), None
            log.cut -= 1
            self._warning(record)
            return
        in_ras, self._ras_left = self._ras_left > 0, max(self._ras_left - 1, 0)
        if any(mark in line for mark in ras.BEGIN):
            in_ras, self._ras_left = True, ras.LINES
        if self._continued(text) or (in_ras and log.ras.line(text)) or log.table.line(text):
            return
        if self._last_error is not None and split_label(text)[1].strip():
            rank, self._error_lines = self._last_error, self._error_lines - 1
            quoted = self._quoted(text, rank)
            self._last_error = None if quoted or self._error_lines <= 0 else rank
            if quoted:
                return
        silent = self._report(text)
        if silent is not None:
            self._silent(silent)
            if len(self._quiet) < _QUIET:
                self._quiet[form] = silent

    def _silent(self, event: str) -> None:
        """Count a line without a report. event: step, success or another silent one; "" where no row fits."""
        self.log.unmatched += not event
        if event == "step":
            self.log.last_step = self.log.lines
        elif event == "success":
            self.log.last_success = self.log.lines

    def _continued(self, text: str) -> bool:
        """Complete a warning that somebody has broken into two lines."""
        opened, self._open = self._open, None
        if opened is None or len(text) > 600:
            return False
        record, one = opened
        joined = "%s %s" % (record.text, text.strip())
        event, fields = nccl_events.classify(joined, record.head.place)
        better = one.event.id == "warning" and event.id not in ("warning", "fallback", "harmless")
        if not better or program_events.classify(text) is not None:
            return False
        self.log.forget(one)
        self._occurrence(event, fields, joined, one.process, record.head)
        return True

    def _quoted(self, text: str, rank: int) -> bool:
        """Read NCCL's last error as PyTorch quotes it. rank: of the exception; -1: not known."""
        event, fields = nccl_events.classify(split_label(text)[1])
        named = program_events.rank_of(text)
        number = named if named is not None else rank if rank >= 0 else None
        if event.id != "warning":
            self._occurrence(event, fields, text.strip(), None, Head(rank=number, time=clock(self._stamped)))
        return event.id != "warning"

    def _report(self, text: str) -> Optional[str]:
        """Read a line of a program, launcher, scheduler or kernel.

        Return None where it reports something; else its silent event, "" where no row fits.
        """
        name, body = split_label(text)
        if _TRACEBACK in text:
            self._tracebacks[name] = self._tracebacks.get(name, True)
            return None
        if "^^^" in body and not body.strip(" ^~"):
            return None
        launched = self._mentions(text)
        listed = _FAILED.match(body)
        if listed:
            self._failed[listed.group("key")] = listed.group("value")
        if listed or self._bare(text) or self._last_error_begins(text):
            return None
        if self._forms >= _FORMS:
            self.log.beyond += 1
            return ""
        self._forms += 1
        inside = self._tracebacks.get(name)
        if inside is not None and body[:1] in (" ", "\t"):
            return ""
        found = program_events.classify(text, in_traceback=inside is not None and bool(body))
        if body and self._tracebacks.pop(name, None) is False and found and found[0].id.startswith("exception"):
            return None
        event, fields = found or (None, {})
        if event is None or event.id in _SILENT:
            if "Exception ignored" in text:
                self._tracebacks[name] = False
                return None
            return event.id if event is not None else None if launched else ""
        self._take(event, fields, text)
        return None

    def _mentions(self, text: str) -> bool:
        """Note releases and variables that a line mentions; return whether it states what was launched."""
        log = self.log
        if any(mark in text for mark in _RELEASES):
            of_rccl = _RCCL.search(text) is not None
            log.rccl = log.rccl or of_rccl
            found = (*_VERSION.findall(text), *_LIBRARY.findall(text), *map(_release, _CODE.findall(text)))
            room = 64 - len(log.state.versions)
            log.state.versions.update(found[: 0 if of_rccl else min(room, 8)])
            log.state.cudas.update(_CUDA.findall(text)[: 64 - len(log.state.cudas)])
        if "NCCL_" in text and "=" in text and text.lstrip()[:1] != "#":
            pairs = _TYPED_VARIABLE.findall(text[:2000])[:16]
            log.typed.update(pairs[: _TYPED - len(log.typed)])
        return log.state.launch.line(text)

    def _bare(self, text: str) -> bool:
        """Read a line of NCCL's that has lost its head, or a list of HCAs that goes on."""
        process = self._last_process
        if process is not None and "/" in text and _MORE_HCAS.match(text):
            fact = read_fact("NET/IB : Using %s" % text.strip())
        else:
            match = _BARE.match(text) if "NET/" in text or "Using network" in text or "Channel" in text else None
            fact = read_fact(text[match.start(1) :].rstrip()) if match else None
            process = self._process(Head(rank=launcher_rank(text))) if fact is not None else None
        if fact is None or process is None:
            return False
        fact.fields["_where"] = (len(self.log.sources), self.log.lines, None)
        fold(self.log.state, process, fact)
        return True

    def _last_error_begins(self, text: str) -> bool:
        """Note that the next line, or the rest of this one, is NCCL's last error."""
        mark = next((mark for mark in _QUOTING if mark in text), None)
        if mark is None:
            return False
        named = program_events.rank_of(text)
        rank = named if named is not None else self._last_rank if self._last_rank is not None else -1
        if _LAST_ERROR.search(text):
            self._last_error, self._error_lines = rank, _ERROR_LINES
            return True
        before, _mark, quoted = text.rstrip("'. ").partition(mark)
        if nccl_events.classify(quoted.strip())[0].id == "warning":
            return False
        if before.strip():
            self._report(before)
        return self._quoted(quoted, rank)

    def _take(self, event: Event, fields: Dict[str, Any], text: str) -> None:
        """Add an occurrence of an event in a line of others."""
        rank = self._last_rank = program_events.rank_of(text)
        processes, pid = self.log.state.processes, whole(fields.get("pid"))
        few = len(processes) <= _LOOKED_UP and pid is not None
        of_pid = [one for key, one in processes.items() if key[1] == pid] if few else []
        process = of_pid[0] if len(of_pid) == 1 else None
        if event.id == "exit" and "exitcode" in text:
            fields, self._failed = {**self._failed, **fields}, {}
        if fields.get("rank"):
            rank = int(fields["rank"])
        elif rank is None:
            rank = process.rank_at(None) if process is not None else whole(fields.get("local"))
        ranks = [whole(word) for word in str(fields.get("behind") or "").split(",")[: Group.LIMIT]]
        known: List[Optional[int]] = [one for one in ranks if one is not None]
        for number in known or [rank]:
            head = Head(host=str(fields.get("host") or ""), rank=number, time=clock(self._stamped))
            self._occurrence(event, fields, text.strip(), process, head)


def _release(code: str) -> str:
    """Return the release of NCCL's number: 2708 is 2.7.8, from 2.9 on 21205 is 2.12.5."""
    number = int(code)
    base = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // base, number % base // 100, number % 100)


def interest(line: bytes) -> int:
    """Return how many lines from this one on, which is none of NCCL's, an excerpt of a log needs; 0: not this line."""
    if any(mark in line for mark in ras.BEGIN):
        return 200
    if b"Last error:" in line:
        return 6
    text = without_stamp(decode(line))
    return int("# " in text[:24] or read_row(text) is not None or any(mark in line for mark in _MARKS))


def read(text: bytes, name: str = "log") -> Log:
    """Read one source."""
    reader = Reader()
    reader.source(name)
    reader.feed(text)
    reader.end()
    return reader.log
