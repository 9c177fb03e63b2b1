# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NCCL's lines of a log of any size in blocks: facts go into the state, warnings become occurrences of events.

All that is stored has a limit, and what is beyond it is counted. ``log_reader`` reads the lines of others, too.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from . import nccl_events
from .events import Event, Group, Occurrence
from .facts import Fact, fold, may_read
from .facts import read as read_fact
from .lines import LONGEST, Head, Record, decode, numbered, records, without_number
from .state import Found, Key, Process, State

# Connections that are counted without parsing, pids of which the host is stored, and groups of events.
_CACHED, _PIDS, _GROUPS = 20_000, 100_000, 4_096
# Lines of NCCL of which each names its process, though no row reads it.
_WHOLE = 1_024
# Of a line without a head.
_NOBODY: Key = ("", None, None)
# Events of which each form of the text is a group.
_BY_FORM = ("warning", "plugin_warning", "value", "system", "exception", "error_line", "topology")
_NUMBERS = re.compile(r"\b(?:0x[0-9a-f]{1,16}|\d{1,20})\b")
# Words of warnings, and what NET/IB did not find.
_ABSENT = (("libibverbs", "libibverbs"), ("No device found", "device"), ("No IP interface", "interface"))


class StateLog:
    """What NCCL's lines say. lines: of all sources.   info, warnings: records.

    groups: event and code -> its occurrences.   unmatched: lines that no row reads.   beyond: lines that had no room.
    """

    def __init__(self) -> None:
        self.sources: List[str] = []
        self.lines = self.info = self.warnings = self.unmatched = self.beyond = 0
        self.state = State()
        self.groups: Dict[Tuple[str, str], Group] = {}

    def add(self, one: Occurrence) -> None:
        """Put an occurrence into the group of its event and code."""
        key = _key(one)
        if key not in self.groups and len(self.groups) >= _GROUPS:
            self.beyond += 1
            return
        if key not in self.groups:
            detail = one.event.detail(one.code, one.text, one.place)
            tier = one.event.tier if detail.tier is None else detail.tier
            self.groups[key] = Group(one.event, key[1], tier, one, detail)
        self.groups[key].take(one)

    def forget(self, one: Occurrence) -> None:
        """Take an occurrence back."""
        group = self.groups.get(_key(one))
        if group is not None and one in group.kept:
            group.kept.remove(one)
            group.count -= 1
            if not group.count:
                del self.groups[_key(one)]


def _key(one: Occurrence) -> Tuple[str, str]:
    # Numbers apart, begins of texts that are alike are of one form.
    form = _NUMBERS.sub("#", one.text[:60]) if one.event.id in _BY_FORM else ""
    return one.event.id, one.code if one.event.by_code else form


class StateReader:
    """``source`` begins a file, ``feed`` takes blocks of it, ``end`` closes the last one."""

    log: StateLog

    def __init__(self, log: Optional[StateLog] = None) -> None:
        self.log = StateLog() if log is None else log
        self._rest = b""
        self._first: Optional[List[bytes]] = None
        self._numbered = False
        self._at_end = False
        # Begin and end of a line on a connection -> times, process, fields.
        self._channels: Dict[Tuple[bytes, bytes], List[Any]] = {}
        self._pids: Dict[Optional[int], str] = {}
        self._open: Optional[Tuple[Record, Occurrence]] = None
        self._last_process: Optional[Process] = None

    def source(self, name: str) -> None:
        """Begin a file."""
        self.end()
        self.log.sources.append(name)
        self._first, self._numbered = [], False
        self._open = self._last_process = None

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
        lines, self._first = self._first or [], None
        for line in lines:
            self._line(line)
        rest, self._rest, self._at_end = self._rest, b"", True
        if rest:
            self._line(rest)
        self._at_end = False
        self._flush_channels()

    def _line(self, line: bytes) -> None:
        self.log.lines += 1
        line = without_number(line) if self._numbered else line
        at = line.find(b" NCCL ")
        if at < 0:
            if line.strip():
                self._other(line)
            return
        if line.startswith(b"INFO ", at + 6) and line.find(b" NCCL ", at + 6) < 0 and line[:1] != b"{":
            # Most lines of a large log end here.
            key = line[at + 11 : at + 15]
            if key == b"Chan" and self._channel(line, at):
                self.log.info += 1
                return
            if not may_read(key) and self.log.info >= _WHOLE:
                self.log.info += 1
                self.log.unmatched += 1
                self._open = None
                return
        self._records(line)

    def _channel(self, line: bytes, at: int) -> bool:
        """Count a connection of which a line that differs in the channel alone has been parsed."""
        begin = line.find(b" : ", at + 11, at + 40)
        found = self._channels.get((line[:at], line[begin:])) if begin >= 0 and not self._at_end else None
        if found is not None:
            found[0] += 1
            self._open = None
        return found is not None

    def _flush_channels(self) -> None:
        for count, process, fields in self._channels.values():
            if count:
                self.log.state.channel(process, fields, count)
        self._channels = {}

    def _records(self, line: bytes) -> None:
        found = records(decode(line))
        for record in found:
            if record.level in ("WARN", "ATTN"):
                self.log.warnings += 1
                self._warning(record)
            elif record.level in ("INFO", "VERSION"):
                self.log.info += record.level == "INFO"
                self._info(record, line if len(found) == 1 else b"")
            else:
                self.log.unmatched += 1
                self._open = None
        if not found:
            self._other(line)

    def _other(self, _line: bytes) -> None:
        """Read a line that is none of NCCL's."""
        self.log.unmatched += 1

    def _process(self, head: Head) -> Optional[Process]:
        third = head.rank if head.rank is not None else head.device
        key: Key = (head.host, head.pid, None if head.pid is not None else third)
        if head.pid is not None:
            key = self._with_host(key)
        elif key == _NOBODY and self._last_process is not None:
            return self._last_process
        process = self.log.state.process(key, self.log.lines, head.rank)
        if process is not None and head.rank is not None and process.launcher_rank is None:
            process.launcher_rank = head.rank
        return process

    def _with_host(self, key: Key) -> Key:
        """Return the key of a process of which some lines have lost the host."""
        host, pid, _rank = key
        if not host:
            return (self._pids[pid], pid, None) if pid in self._pids else key
        first = self._pids.setdefault(pid, host) if len(self._pids) < _PIDS or pid in self._pids else host
        if first == host:
            self.log.state.rename(("", pid, None), key)
        return key

    def _info(self, record: Record, line: bytes) -> None:
        self._open = None
        head, text = record.head, record.text
        if head.place and text.startswith("->"):
            text = "%s %s" % (head.place.partition(" ")[0], text)
        fact = read_fact(text)
        process = self._process(head)
        if fact is None or process is None:
            self.log.unmatched += fact is None
            return
        self._last_process = process
        fact.fields["_where"] = (len(self.log.sources), self.log.lines, head.device)
        if fact.name == "channel":
            self._remember(line, process, fact)
        fold(self.log.state, process, fact)

    def _remember(self, line: bytes, process: Process, fact: Fact) -> None:
        """Let ``_channel`` count further lines of a connection."""
        fact.fields["cut"] = self._at_end or line.endswith((b"...", "\u2026".encode()))
        at, begin = line.find(b" NCCL "), line.find(b" : ")
        if 0 <= at < begin and not fact.fields["cut"]:
            if len(self._channels) >= _CACHED:
                self._flush_channels()
            self._channels[(line[:at], line[begin:])] = [0, process, fact.fields]

    def _warning(self, record: Record) -> None:
        head, text = record.head, record.text
        process = self._process(head)
        self._last_process, self._open = process, None
        if not text:
            return
        event, fields = nccl_events.classify(text, head.place)
        one = self._occurrence(event, fields, text, process, head)
        if process is not None:
            for why in (why for words, why in _ABSENT if words in text):
                process.add("absent", why)
        # Somebody may have broken it into two lines.
        self._open = (record, one) if event.id in ("warning", "mismatch") or not fields.get("code") else None

    def _occurrence(self, event: Event, fields: Found, text: str, process: Optional[Process], head: Head) -> Occurrence:
        host = head.host or (process.host if process is not None else "")
        source = len(self.log.sources)
        who = (process, head.device, head.rank, host, head.place, head.time)
        one = Occurrence(event, self.log.lines, source, text[:600], fields, *who)
        self.log.add(one)
        return one
