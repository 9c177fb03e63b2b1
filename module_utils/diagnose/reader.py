# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a log of any size in blocks: facts go into the state, reports of failures become occurrences of events.

A line costs work once for each form of it: lines that differ in digits alone, and that no row reads, are counted. All
that is stored has a limit, and what is beyond it is counted.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import nccl_events, program_events, ras
from .event import Event, Group, Occurrence
from .facts import KEYS, Fact, read as read_fact
from .lines import LONGEST, MARK, Head, Record, clock, decode, launcher_rank, numbered, records, without_number
from .state import Key, Process, State
from .table import Table

# Forms of lines that are matched, of those that report nothing and are remembered, and heads and connections cached.
_FORMS, _QUIET, _CACHED = 100_000, 20_000, 20_000
_GROUPS = 4_096
_INFO_KEYS = frozenset(key.encode() for key in KEYS if len(key) == 4)
_DIGITS = b"0123456789"
_LAST_ERROR = re.compile(r"(?:^|[\s:\])])Last error: *$")
_VERSION = re.compile(r"(?:^|[^R])NCCL version (\d{1,2}\.\d{1,3}\.\d{1,3})(?!\.\d)")
_LIBRARY = re.compile(r"\blibnccl\.so\.(2\.\d{1,3}\.\d{1,3})\b(?!\.\d)")
_CODE = re.compile(r"\bnccl_version_code=(2\d{3,4})\b")
_RCCL = re.compile(r"\bRCCL version |\bHIP version ?:|\bROCm version ?:")
_BARE = re.compile(r"^(?:\S{1,60}:? )?(Using network \S{1,40}|NET/(?:IB|Socket) : |Channel \d{1,4}(?:/\d{1,4})? : )")
_MORE_HCAS = re.compile(r"\s{0,200}\[\d{1,4}\]\s?[\w.-]{1,128}:(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)\b")
_COMMAND_VARIABLE = re.compile(r"(?:^|[\s$>+])(?:export |-x |--env[= ]|-e )?(NCCL_[A-Z0-9_]{2,60})=([^\s;'\"]{1,200})")
_TRACEBACK = "Traceback (most recent call last)"


class Log:
    """Everything that is known of a log. lines: of all sources.   groups: event and code -> occurrences.

    unmatched: lines that no row reads.   info, warnings: records of NCCL.   rccl: lines of AMD's RCCL are in it.
    ended: order of the last line that shows progress of the job.   typed: variables on command lines of the log.
    """

    def __init__(self) -> None:
        self.sources: List[str] = []
        self.begins: List[int] = []
        self.lines = self.info = self.warnings = self.unmatched = self.binary = self.beyond = 0
        self.rccl = self.library_versions = False
        self.state = State()
        self.table = Table()
        self.ras = ras.Report()
        self.groups: Dict[Tuple[str, str], Group] = {}
        self.last_step = self.last_success = 0
        self.typed: Dict[str, str] = {}
        self.cut_end = False
        self.collapsed = 0

    def occurrences(self) -> Iterable[Occurrence]:
        return (one for group in self.groups.values() for one in group.kept)


class Reader:
    """``source`` begins a file, ``feed`` takes blocks of it, ``end`` closes the last one."""

    def __init__(self) -> None:
        self.log = Log()
        self._rest = b""
        self._first: Optional[List[bytes]] = None
        self._numbered = False
        self._quiet: Set[bytes] = set()
        self._forms = 0
        self._heads: Dict[bytes, Head] = {}
        self._channels: Dict[Tuple[bytes, bytes], List[Any]] = {}
        self._ras_left = 0
        self._tracebacks: Dict[str, bool] = {}
        self._last_error: Optional[int] = None
        self._open: Optional[Tuple[Record, Occurrence]] = None
        self._last_process: Optional[Process] = None
        self._pids: Dict[Optional[int], str] = {}

    def source(self, name: str) -> None:
        """Begin a file."""
        self.end()
        self.log.sources.append(name)
        self.log.begins.append(self.log.lines)
        self._first, self._numbered = [], False
        self._tracebacks, self._last_error, self._open, self._last_process = {}, None, None, None

    def feed(self, block: bytes) -> None:
        """Take a block of the file in."""
        if not self.log.sources:
            self.source("log")
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()[:LONGEST]
        if self._first is not None:
            self._first += lines
            if len(self._first) < 4:
                return
            lines, self._first = self._first, None
            self._numbered = numbered(lines)
        for line in lines:
            self._line(line)

    def end(self) -> None:
        """Take the last line of the file in, which has no end."""
        if self._first is not None:
            lines, self._first = self._first, None
            for line in lines:
                self._line(line)
        if self._rest:
            self.log.cut_end = True
            line, self._rest = self._rest, b""
            self._line(line)
            self.log.cut_end = False
        self._flush_channels()

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        log = self.log
        log.lines += 1
        if self._numbered:
            line = without_number(line)
        at = line.find(b" NCCL ")
        if at >= 0:
            if line.startswith(b"INFO ", at + 6):
                log.info += 1
                key = line[at + 11 : at + 15]
                single = line.find(b" NCCL ", at + 6) < 0
                if single and key == b"Chan" and self._channel(line, at):
                    return
                if single and key not in _INFO_KEYS and not key[:1].isdigit() and key[:1] not in b" +/" and line[:1] != b"{":
                    self._open = None
                    log.unmatched += 1
                    return
                log.info -= 1
            self._records(line)
        elif line.strip():
            self._other(line)

    def _channel(self, line: bytes, at: int) -> bool:
        """Count a connection whose writer and ends have been read before."""
        begin = line.find(b" : ", at + 11, at + 40)
        if begin < 0 or log_is_cut(line):
            return False
        key = (line[:at], line[begin:])
        found = self._channels.get(key)
        if found is None:
            return False
        found[0] += 1
        self._open = None
        return True

    def _flush_channels(self) -> None:
        for count, process, fields in self._channels.values():
            if count:
                self.log.state.channel(process, fields, count)
        self._channels = {}

    def _records(self, line: bytes) -> None:
        text = decode(line)
        head: Optional[Head] = None
        found = records(text)
        if len(found) == 1 and not found[0].head.host and self._heads.get(b""):
            head = None
        for record in found:
            if record.level == "WARN" or record.level == "ATTN":
                self.log.warnings += 1
                self._warning(record)
            elif record.level in ("INFO", "VERSION"):
                self.log.info += record.level == "INFO"
                self._info(record, line if len(found) == 1 else b"")
            else:
                self._open = None
                self.log.unmatched += 1
        if not found:
            self._other(line)
        self._torn_start(text, found)
        del head

    def _torn_start(self, text: str, found: List[Record]) -> None:
        """Read what stands before the first record of a line: another process's line that has no end."""
        mark = MARK.search(text)
        before = text[: mark.start()] if mark else ""
        if found and len(before) > 120 and "Watchdog" in before:
            self._report(before, before.encode("utf-8", "replace"))

    def _process(self, head: Head) -> Optional[Process]:
        key: Key = (head.host, head.pid, None if head.pid is not None else head.rank if head.rank is not None else head.device)
        if head.pid is not None:
            key = self._with_host(key)
        process = self.log.state.process(key, self.log.lines, len(self.log.sources), head.rank)
        if process is not None and head.rank is not None and process.launcher_rank is None:
            process.launcher_rank = head.rank
        return process

    def _with_host(self, key: Key) -> Key:
        """Return the key of a process of which some lines have lost the host."""
        host, pid, _rank = key
        processes = self.log.state.processes
        if host:
            hosts = self._pids.setdefault(pid, host) if len(self._pids) < 100_000 or pid in self._pids else host
            nameless = processes.get(("", pid, None))
            if nameless is not None and key not in processes and hosts == host:
                processes[key] = processes.pop(("", pid, None))
                nameless.key = key
            return key
        return (self._pids[pid], pid, None) if pid in self._pids else key

    def _info(self, record: Record, line: bytes) -> None:
        self._open = None
        process = self._process(record.head)
        text = record.text
        if record.head.place and text.startswith("->"):
            text = "%s %s" % (record.head.place.partition(" ")[0], text)
        fact = read_fact(text)
        if fact is None or process is None:
            self.log.unmatched += fact is None
            return
        if record.head.device is not None and 0 <= record.head.device < 1024:
            process.add("gpus", record.head.device)
        self._last_process = process
        if fact.name == "channel":
            fact.fields["cut"] = self.log.cut_end or log_is_cut(line)
            at, begin = line.find(b" NCCL "), line.find(b" : ")
            if line and 0 <= at < begin and not fact.fields["cut"]:
                if len(self._channels) >= _CACHED:
                    self._flush_channels()
                self._channels[(line[:at], line[begin:])] = [0, process, fact.fields]
        elif fact.name == "returned":
            head = record.head
            fact.fields["_where"] = (len(self.log.sources), self.log.lines, head.device, head.tid)
        elif fact.name == "init" and fact.fields["phase"] == "COMPLETE":
            process.completed = self.log.lines
        elif fact.name == "retry":
            process.retry = fact
        self.log.state.fold(process, fact)

    def _warning(self, record: Record) -> None:
        process = self._process(record.head)
        self._last_process = process
        if not record.text:
            return
        event, fields = nccl_events.classify(record.text, record.head.place)
        one = self._occurrence(event, fields, record.text, process, record.head)
        if process is not None and record.head.device is not None and 0 <= record.head.device < 1024:
            process.add("gpus", record.head.device)
        if "libibverbs" in record.text and process is not None:
            process.add("absent", "libibverbs")
        elif "No device found" in record.text and process is not None:
            process.add("absent", "device")
        elif "No IP interface found" in record.text and process is not None:
            process.add("absent", "interface")
        self._open = (record, one) if event.id in ("warning", "mismatch") or not fields.get("code") else None

    def _other(self, line: bytes) -> None:
        """Read a line that is none of NCCL's."""
        log = self.log
        form = line.translate(None, _DIGITS)[:LONGEST]
        if form in self._quiet and self._last_error is None and self._open is None and not self._ras_left:
            log.unmatched += 1
            return
        if b"\0" in line:
            log.binary += 1
        if any(mark in line for mark in ras.BEGIN):
            self._ras_left = ras.LINES
        text = decode(line)
        if self._continued(text):
            return
        if self._ras_left:
            self._ras_left -= 1
            if log.ras.line(text):
                return
        if log.table.line(line, text, log.lines):
            return
        if self._last_error is not None:
            self._quoted(text)
            return
        if self._report(text, form):
            return
        log.unmatched += 1

    def _continued(self, text: str) -> bool:
        """Complete a warning that somebody has broken into two lines."""
        opened, self._open = self._open, None
        if opened is None or not text.strip() or len(text) > 600:
            return False
        record, one = opened
        joined = "%s %s" % (record.text, text.strip())
        event, fields = nccl_events.classify(joined, record.head.place)
        better = one.event.id == "warning" and event.id not in ("warning", "fallback", "harmless")
        if not better or program_events.classify(text) is not None:
            return False
        self._forget(one)
        self._occurrence(event, fields, joined, one.process, record.head)
        return True

    def _quoted(self, text: str) -> None:
        """Read the line behind ``Last error:``, which PyTorch quotes from NCCL."""
        rank, self._last_error = self._last_error, None
        label = program_events.LABEL.match(text)
        words = text[label.end() :] if label else text
        event = nccl_events.known(words)
        if event is None or not words.strip():
            self._report(text, text.encode("utf-8", "replace"))
            return
        found, fields = nccl_events.classify(words)
        named = program_events.rank_of(text)
        one = self._occurrence(found, fields, text.strip(), None, Head(time=clock(text)))
        one.rank = named if named is not None else rank if rank is not None and rank >= 0 else None
        self._regroup(one)

    def _report(self, text: str, form: bytes) -> bool:
        """Read a line of a program, launcher, scheduler or kernel; return whether it means something."""
        log = self.log
        if _TRACEBACK in text:
            label = self._label(text)
            self._tracebacks[label] = self._tracebacks.get(label, True)
            return True
        if "CCL version" in text or "libnccl" in text or "nccl_version" in text:
            self._version(text)
        if "NCCL_" in text and "=" in text:
            for name, value in _COMMAND_VARIABLE.findall(text[:2000])[:16]:
                if len(log.typed) < 256:
                    log.typed[name] = value
        bare = _BARE.match(text) if "NET/" in text or "Using network" in text else None
        if bare is not None and self._bare(text[bare.start(1) :]):
            return True
        if _MORE_HCAS.match(text) and self._last_process is not None:
            self.log.state.fold(self._last_process, Fact("hcas", {"devices": text}))
            return True
        if "[repeated " in text:
            log.collapsed += 1
        glued = text.find("Last error: ") + 12
        if 12 < glued < len(text.rstrip()) and nccl_events.known(text[glued:]) is not None:
            self._last_error = -1 if program_events.rank_of(text) is None else program_events.rank_of(text)
            self._report(text[: glued - 12], form)
            self._quoted(text[glued:])
            return True
        if _LAST_ERROR.search(text):
            rank = program_events.rank_of(text)
            last = self._last_rank if rank is None else rank
            self._last_error = -1 if last is None else last
            return True
        if self._forms >= _FORMS:
            log.beyond += 1
            return False
        self._forms += 1
        label = self._label(text)
        inside = self._tracebacks.get(label)
        body = text[len(label) :]
        if "^^^" in body and not body.strip(" ^~"):
            return True
        ends = inside is not None and body[:1] not in (" ", "\t", "")
        found = program_events.classify(text, in_traceback=bool(ends))
        if ends and inside is not None:
            del self._tracebacks[label]
            if not inside and found is not None and found[0].id.startswith("exception"):
                found = None
        elif inside is not None and body[:1] in (" ", "\t"):
            found = None
        if found is None:
            if len(self._quiet) < _QUIET:
                self._quiet.add(form)
            return False
        event, fields = found
        self._take(event, fields, text)
        return True

    _last_rank: Optional[int] = None

    def _take(self, event: Event, fields: Dict[str, Any], text: str) -> None:
        log = self.log
        rank = program_events.rank_of(text)
        self._last_rank = rank
        if event.id == "step":
            log.last_step = log.lines
        elif event.id == "success":
            log.last_success = log.lines
        elif event.id == "noise" and "Exception ignored" in text:
            self._tracebacks[self._label(text)] = False
        if event.id in ("noise", "step", "success", "waits", "launcher"):
            return
        process = None
        pid = fields.get("pid")
        if pid and str(pid).isdigit():
            found = [one for key, one in log.state.processes.items() if key[1] == int(pid)][:2] if len(log.state.processes) < 4096 else []
            process = found[0] if len(found) == 1 else None
        one = self._occurrence(event, fields, text.strip(), process, Head(host=str(fields.get("host") or ""), time=clock(text)))
        if fields.get("rank"):
            rank = int(fields["rank"])
        elif fields.get("local") and rank is None and process is None:
            rank = int(fields["local"])
        one.rank = rank if rank is not None else one.rank
        self._regroup(one)

    def _label(self, text: str) -> str:
        label = program_events.LABEL.match(text)
        return text[: label.end()] if label else ""

    def _version(self, text: str) -> None:
        if _RCCL.search(text):
            self.log.rccl = True
            return
        versions = self.log.state.versions
        for release in (*_VERSION.findall(text), *_LIBRARY.findall(text), *map(_release, _CODE.findall(text)))[:8]:
            if len(versions) < 64:
                versions[release] = versions.get(release, 0) + 1

    def _bare(self, text: str) -> bool:
        """Read a line of NCCL's that lost its head."""
        fact = read_fact(text)
        process = self._process(Head(rank=launcher_rank(text))) if fact is not None else None
        if fact is None or process is None:
            return False
        self.log.state.fold(process, fact)
        return True

    # -- occurrences ---------------------------------------------------------------------------------------------------

    def _occurrence(self, event: Event, fields: Dict[str, Any], text: str, process: Optional[Process], head: Head) -> Occurrence:
        one = Occurrence(
            event, self.log.lines, len(self.log.sources), text[:600], fields, process, head.device, head.rank,
            head.host or (process.host if process is not None else ""), head.place, head.time,
        )  # fmt: skip
        self._add(one)
        return one

    def _add(self, one: Occurrence) -> None:
        key = (one.event.id, one.code if one.event.by_code else form_of(one) if one.event.id in _BY_FORM else "")
        group = self.log.groups.get(key)
        if group is None:
            if len(self.log.groups) >= _GROUPS:
                self.log.beyond += 1
                return
            group = self.log.groups[key] = Group(one.event, key[1], one.event.tier, one, details_of(one))
            if group.detail.tier is not None:
                group.tier = group.detail.tier
        group.take(one)

    def _forget(self, one: Occurrence) -> None:
        for key, group in list(self.log.groups.items()):
            if one in group.kept:
                group.kept.remove(one)
                group.count -= 1
                if not group.count:
                    del self.log.groups[key]
                return

    def _regroup(self, one: Occurrence) -> None:
        """Note a rank that was found after an occurrence was added."""
        key = (one.event.id, one.code if one.event.by_code else form_of(one) if one.event.id in _BY_FORM else "")
        group = self.log.groups.get(key)
        if group is not None and one.rank is not None:
            group.ranks.add(one.rank)


def _release(code: str) -> str:
    """Return the release of NCCL's number: 2708 is 2.7.8, from 2.9 on 21205 is 2.12.5."""
    number = int(code)
    base = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // base, number % base // 100, number % 100)


# Events of which each form of the text is a group.
_BY_FORM = ("warning", "plugin_warning", "value", "system", "exception", "error_line", "topology")
_NUMBERS = re.compile(r"\b(?:0x[0-9a-f]{1,16}|\d{1,20})\b")


def form_of(one: Occurrence) -> str:
    """Return the begin of a text with # in the place of numbers."""
    text = one.text
    if one.event.id in ("exception", "error_line"):
        label = program_events.LABEL.match(text)
        text = text[label.end() :] if label else text
    return _NUMBERS.sub("#", text[:60])


def log_is_cut(line: bytes) -> bool:
    """Return whether somebody has cut the end of a line off."""
    return line.endswith((b"...", "\u2026".encode()))


def details_of(one: Occurrence) -> Any:
    """Return what tables add to an event for this code, text and place."""
    from .event import Detail

    why = fix = causes = ""
    proven = False
    tier: Optional[int] = None
    for detail, code, text, place in _DETAILS.get(one.event.id, ()):
        fits = (code is None or code.match(one.code)) and (text is None or text.search(one.text)) and (
            place is None or place.search(one.place))  # fmt: skip
        if not fits:
            continue
        why, fix = why or detail.why, fix or detail.fix
        if detail.causes and not causes:
            causes, proven = detail.causes, detail.proven
        tier = tier if tier is not None else detail.tier
    return Detail(one.event.id, why=why, fix=fix, causes=causes, proven=proven, tier=tier)


_DETAILS: Dict[str, List[Any]] = {}
for _detail in (*nccl_events.DETAILS, *program_events.DETAILS):
    _patterns = (re.compile(part) if part else None for part in (_detail.code, _detail.text, _detail.place))
    _DETAILS.setdefault(_detail.event, []).append((_detail, *_patterns))


def read(blocks: Iterable[bytes], name: str = "log") -> Log:
    """Read one source."""
    reader = Reader()
    reader.source(name)
    for block in blocks:
        reader.feed(block)
    reader.end()
    return reader.log
